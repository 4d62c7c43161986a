//! From a request and the array's state to a plan.
//!
//! A request is cut at parity stripes; each stripe's part is planned by [`super::stripe`], and the disk operations of all
//! parts are merged where they are adjacent on a member. The planner keeps its working memory between plans, so that
//! planning allocates nothing at steady state. It never asks for the level.

use alloc::vec::Vec;

use thiserror::Error;

use super::stripe::{Extent, Grid};
use super::{Buffer, DiskIo, Method, Plan, Slice};
use crate::repair::Repair;
use crate::{Cell, DataUnit, DiskSector, Geometry, Lba, MemberIndex, MemberSet, Sectors, StripeId};

/// What a plan may rely on.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The array's geometry.
    pub geometry: &'a Geometry,
    /// The members that can't be read, and how what is on them comes back.
    pub repair: &'a Repair,
    /// The members that can't be written either: those that are missing, where others only failed a read.
    pub missing: MemberSet,
    /// Current content of the array that is in memory already.
    pub cached: &'a [Cached],
    /// Which copy a read of mirrored data prefers: taken modulo the copies that are there.
    pub copy: usize,
}

/// Current content of a range of one cell, held in [`Buffer::Cache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cached {
    /// The parity stripe.
    pub stripe: StripeId,
    /// The cell: data or parity.
    pub cell: Cell,
    /// Where in the chunk the range starts.
    pub start: Sectors,
    /// The content; its length is the range's.
    pub content: Slice,
}

/// What a write brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// The request's buffer.
    Data,
    /// Zeros, which need no buffer.
    Zeroes,
}

/// Why a request has no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// The request has no sectors or reaches beyond the array.
    #[error("sectors {lba}..+{len} are not within the array's {capacity} sectors")]
    OutOfRange {
        /// The first sector.
        lba: Lba,
        /// The length.
        len: Sectors,
        /// The array's size.
        capacity: Sectors,
    },
}

/// Makes plans; see the module.
#[derive(Debug, Default)]
pub struct Planner {
    extents: Vec<Extent>,
    grid: Grid,
    out: Output,
}

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

impl Planner {
    /// A planner without memory yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Plans the read of `len` sectors from `lba` into the request buffer.
    ///
    /// # Errors
    /// [`PlanError::OutOfRange`].
    pub fn read(&mut self, plan: &mut Plan, view: &View<'_>, lba: Lba, len: Sectors) -> Result<(), PlanError> {
        self.start(plan, view, lba, len, Buffer::Request)?;
        let Self { extents, grid, out } = self;
        for part in extents.chunk_by(|a, b| a.stripe == b.stripe) {
            let before = out.reads.len();
            if !part.iter().all(|extent| direct(view, extent, out)) {
                out.reads.truncate(before);
                grid.read(plan, view, part, out);
            }
        }
        out.finish(plan);
        Ok(())
    }

    /// Plans the write of `len` sectors at `lba`, by the method with the fewest disk operations (ties: the fewest sectors
    /// moved), chosen for each parity stripe; returns the last stripe's.
    ///
    /// # Errors
    /// [`PlanError::OutOfRange`].
    pub fn write(
        &mut self,
        plan: &mut Plan,
        view: &View<'_>,
        lba: Lba,
        len: Sectors,
        write: Write,
    ) -> Result<Method, PlanError> {
        self.plan_write(plan, view, (lba, len), write, None)
    }

    /// As [`Planner::write`], by the method that the caller names where something has to be read at all: the simulator
    /// models arrays that choose otherwise.
    ///
    /// # Errors
    /// [`PlanError::OutOfRange`].
    pub fn write_by(
        &mut self,
        plan: &mut Plan,
        view: &View<'_>,
        lba: Lba,
        len: Sectors,
        method: Method,
    ) -> Result<Method, PlanError> {
        self.plan_write(plan, view, (lba, len), Write::Data, Some(method))
    }

    /// Plans the computation of every parity unit of a stripe from its data, in the columns `start..+len` of each chunk. Groups with a
    /// missing cell are left out.
    ///
    /// # Errors
    /// [`PlanError::OutOfRange`] when the stripe or the columns do not exist.
    pub fn resync(
        &mut self,
        plan: &mut Plan,
        view: &View<'_>,
        stripe: StripeId,
        start: Sectors,
        len: Sectors,
    ) -> Result<(), PlanError> {
        let geometry = view.geometry;
        let lba = Lba(stripe.0.saturating_mul(geometry.stripe_sectors().0));
        let columns_exist = len.0 > 0 && start.0.checked_add(len.0).is_some_and(|end| end <= geometry.chunk().0);
        if lba.0 >= geometry.capacity().0 || !columns_exist {
            return Err(PlanError::OutOfRange { lba, len, capacity: geometry.capacity() });
        }
        self.clear(plan);
        self.grid.resync(plan, view, stripe, (start, len), &mut self.out);
        self.out.finish(plan);
        Ok(())
    }

    fn plan_write(
        &mut self,
        plan: &mut Plan,
        view: &View<'_>,
        (lba, len): (Lba, Sectors),
        write: Write,
        method: Option<Method>,
    ) -> Result<Method, PlanError> {
        let buffer = match write {
            Write::Data => Buffer::Request,
            Write::Zeroes => Buffer::Zeroes,
        };
        self.start(plan, view, lba, len, buffer)?;
        let Self { extents, grid, out } = self;
        let mut last = Method::Full;
        for part in extents.chunk_by(|a, b| a.stripe == b.stripe) {
            last = grid.write(plan, view, part, method, out);
        }
        out.finish(plan);
        Ok(last)
    }

    fn clear(&mut self, plan: &mut Plan) {
        plan.clear();
        self.extents.clear();
        self.out.reads.clear();
        self.out.writes.clear();
    }

    /// Cuts the request at chunks.
    fn start(
        &mut self,
        plan: &mut Plan,
        view: &View<'_>,
        lba: Lba,
        len: Sectors,
        buffer: Buffer,
    ) -> Result<(), PlanError> {
        let geometry = view.geometry;
        let capacity = geometry.capacity();
        let end = lba.0.checked_add(len.0).filter(|&end| end <= capacity.0 && len.0 > 0);
        let end = end.ok_or(PlanError::OutOfRange { lba, len, capacity })?;
        self.clear(plan);
        let mut at = lba.0;
        while at < end {
            let (stripe, unit, start) = geometry.split(Lba(at));
            let len = (geometry.chunk().0 - start.0).min(end - at);
            let content = Slice { buffer, start: Sectors(at - lba.0), len: Sectors(len) };
            self.extents.push(Extent { stripe, unit, start: start.0, content });
            at += len;
        }
        Ok(())
    }
}

/// The cell to read a data unit from: its own or, of mirrored data, the copy that the view prefers; none when it has to be
/// computed.
pub(super) fn source(view: &View<'_>, stripe: StripeId, unit: DataUnit) -> Option<Cell> {
    let (geometry, map) = (view.geometry, view.geometry.map(stripe));
    let copies = map.groups_of(unit).iter().map(|&group| map.group(group)).filter(|group| group.is_mirror());
    let cells = core::iter::once(map.cell(unit)).chain(copies.map(|group| group.parity));
    let mut present = cells.filter(|&cell| !view.repair.failed().contains(geometry.member(cell)));
    match map.groups_of(unit) {
        [group, ..] if map.group(*group).is_mirror() => {
            let count = present.clone().count();
            present.nth(view.copy.checked_rem(count)?)
        }
        _ => present.next(),
    }
}

/// Reads an extent straight from a member; false when it has to be computed or may be in memory.
fn direct(view: &View<'_>, extent: &Extent, out: &mut Output) -> bool {
    let cell = source(view, extent.stripe, extent.unit).filter(|_| view.cached.is_empty());
    if let Some(cell) = cell {
        out.read(view, extent.stripe, cell, extent.start, extent.content);
    }
    cell.is_some()
}

impl Output {
    pub(super) fn read(&mut self, view: &View<'_>, stripe: StripeId, cell: Cell, start: u64, slice: Slice) {
        self.reads.push(piece(view, stripe, cell, start, slice));
    }

    pub(super) fn write(&mut self, view: &View<'_>, stripe: StripeId, cell: Cell, start: u64, slice: Slice) {
        self.writes.push(piece(view, stripe, cell, start, slice));
    }

    fn finish(&mut self, plan: &mut Plan) {
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

pub(super) fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("a plan has fewer than 2^32 slices")
}
