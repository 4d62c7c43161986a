//! From the pieces of a plan's stripes to its disk operations: ordered by member and sector, merged where adjacent.

use alloc::vec::Vec;

use super::steps::{Buffer, DiskIo, Plan, Slice};
use super::view::View;
use crate::{Cell, DiskSector, MemberIndex, StripeId};

/// What the parts of a plan add up to, before adjacent pieces are merged.
#[derive(Debug, Default)]
pub(super) struct Output {
    reads: Vec<Piece>,
    writes: Vec<Piece>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    member: MemberIndex,
    sector: DiskSector,
    slice: Slice,
}

impl Output {
    /// Empties it and keeps its memory.
    pub(super) fn clear(&mut self) {
        self.reads.clear();
        self.writes.clear();
    }

    /// How many pieces are to be read so far.
    pub(super) fn reads(&self) -> usize {
        self.reads.len()
    }

    /// Takes back the reads after the first so many.
    pub(super) fn truncate_reads(&mut self, count: usize) {
        self.reads.truncate(count);
    }

    /// Adds the read of a part of a cell.
    pub(super) fn read(&mut self, view: &View<'_>, stripe: StripeId, cell: Cell, start: u64, slice: Slice) {
        self.reads.push(piece(view, stripe, cell, start, slice));
    }

    /// Adds the write of a part of a cell.
    pub(super) fn write(&mut self, view: &View<'_>, stripe: StripeId, cell: Cell, start: u64, slice: Slice) {
        self.writes.push(piece(view, stripe, cell, start, slice));
    }

    /// Merges the pieces into the plan's disk operations.
    pub(super) fn finish(&mut self, plan: &mut Plan) {
        merge(&mut self.reads, &mut plan.reads, &mut plan.slices);
        merge(&mut self.writes, &mut plan.writes, &mut plan.slices);
    }
}

fn piece(view: &View<'_>, stripe: StripeId, cell: Cell, start: u64, slice: Slice) -> Piece {
    let sector = DiskSector(view.geometry.sector(stripe, cell).0 + start);
    Piece { member: view.geometry.member(cell), sector, slice }
}

/// Orders the pieces and joins those that are adjacent on their member; adjacent slices of one buffer become one.
fn merge(pieces: &mut [Piece], ios: &mut Vec<DiskIo>, slices: &mut Vec<Slice>) {
    pieces.sort_unstable_by_key(|piece| (piece.member, piece.sector));
    for piece in pieces.iter() {
        let adjacent =
            ios.last_mut().filter(|io| io.member == piece.member && io.sector.0 + io.len.0 == piece.sector.0);
        let Some(io) = adjacent else {
            let first = index_u32(slices.len());
            slices.push(piece.slice);
            ios.push(DiskIo { member: piece.member, sector: piece.sector, len: piece.slice.len, first, count: 1 });
            continue;
        };
        io.len.0 += piece.slice.len.0;
        let last = slices.last_mut().expect("an operation has a slice");
        let continues = last.buffer == piece.slice.buffer
            && (last.buffer == Buffer::Zeroes || last.start.0 + last.len.0 == piece.slice.start.0);
        if continues {
            last.len.0 += piece.slice.len.0;
        } else {
            slices.push(piece.slice);
            io.count += 1;
        }
    }
}

/// An index of a plan's slices.
pub(super) fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("a plan has fewer than 2^32 slices")
}
