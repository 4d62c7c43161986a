//! The content of an array in one of its two shapes, as its clients would read it.
//!
//! An engine that only reads gives it: what a member lacks is computed from the others, so a bad sector or a member
//! that is missing costs nothing that redundancy has.

use std::ops::Range;

use uraid_layout::{Bytes, Geometry, Lba, MemberSet, SECTOR_BYTES, Sectors};

use super::error::ReshapeError;
use super::members::Members;
use crate::Error;
use crate::buf::Buf;
use crate::disk::{Completion, Disk, DiskOp};
use crate::engine::{Command, Engine, EngineError, Record};
use crate::format::superblock::{Consistency, Superblock};

/// What is read at once.
const PIECE: Bytes = Bytes(1 << 20);

/// The least that is read where a piece fails: to say where.
const BLOCK: Bytes = Bytes(4096);

/// The members, lent to an engine, or by one.
#[derive(Debug)]
pub(super) struct Lent<'a, D>(pub(super) &'a mut D);

impl<D: Disk> Disk for Lent<'_, D> {
    fn submit(&mut self, op: DiskOp) {
        self.0.submit(op);
    }

    fn kick(&mut self) -> Result<(), Error> {
        self.0.kick()
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.0.reap(completions);
    }

    fn wait(&mut self) -> Result<(), Error> {
        self.0.wait()
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }
}

/// Reads content of the array where `shape` has it.
///
/// # Errors
/// [`ReshapeError::Unreadable`] where redundancy does not give it.
pub(super) fn read<D: Disk>(
    members: &mut Members<D>,
    shape: &Geometry,
    content: &Range<Lba>,
) -> Result<Buf, ReshapeError> {
    read_without(members, shape, content, MemberSet::EMPTY)
}

/// The same as if some members were missing, too.
///
/// # Errors
/// As [`read`].
pub(super) fn read_without<D: Disk>(
    members: &mut Members<D>,
    shape: &Geometry,
    content: &Range<Lba>,
    without: MemberSet,
) -> Result<Buf, ReshapeError> {
    let record = Record::new(superblocks(members, shape, without));
    let lba = content.start;
    let engine = Engine::new(Lent(&mut members.disk), shape.clone(), record, true);
    let mut engine: Engine<_, Lba> = engine.map_err(|source| ReshapeError::Unreadable { lba, source })?;
    let len = Sectors(content.end.0 - content.start.0).bytes();
    let mut bytes = Buf::zeroed(len);
    let mut at = 0;
    while at < len.0 {
        let piece = PIECE.0.min(len.0 - at);
        let from = Lba(content.start.0 + at / SECTOR_BYTES);
        let read = match ask(&mut engine, from, Bytes(piece)) {
            Err(EngineError::Unreadable { .. }) => return Err(first_unreadable(&mut engine, from, Bytes(piece))),
            read => read.map_err(|source| ReshapeError::Unreadable { lba: from, source })?,
        };
        let start = usize::try_from(at).expect("a window fits the address space");
        bytes.as_mut()[start..start + read.len()].copy_from_slice(read.as_ref());
        at += piece;
    }
    Ok(bytes)
}

/// Where in a piece the content is that can't be read, and why.
fn first_unreadable<D: Disk>(engine: &mut Engine<D, Lba>, from: Lba, len: Bytes) -> ReshapeError {
    let mut failure = None;
    for at in (0..len.0).step_by(usize::try_from(BLOCK.0).expect("a block is small")) {
        let lba = Lba(from.0 + at / SECTOR_BYTES);
        if let Err(source) = ask(engine, lba, Bytes(BLOCK.0.min(len.0 - at))) {
            failure = Some(ReshapeError::Unreadable { lba, source });
            break;
        }
    }
    // It can be read block by block: whoever goes on tries again.
    let again = EngineError::Unreadable { lba: from, len: len.whole_sectors(), members: MemberSet::EMPTY };
    failure.unwrap_or(ReshapeError::Unreadable { lba: from, source: again })
}

fn ask<D: Disk>(engine: &mut Engine<D, Lba>, lba: Lba, len: Bytes) -> Result<Buf, EngineError> {
    engine.submit(lba, Command::Read { lba, buf: Buf::zeroed(len) });
    let mut replies = Vec::new();
    loop {
        engine.turn(&mut replies)?;
        if engine.in_flight() == 0 && !engine.has_replies() {
            break;
        }
        engine.disk_mut().wait()?;
    }
    let reply = replies.pop().expect("a command is replied to");
    Ok(reply.result?.expect("a read's buffer comes back"))
}

/// The superblocks that the members would have if the array had this shape and nothing else.
fn superblocks<D: Disk>(members: &Members<D>, shape: &Geometry, without: MemberSet) -> Vec<Option<Superblock>> {
    let of_shape = |own: &Superblock| Superblock {
        spec: *shape.spec(),
        reshape: None,
        consistency: Consistency::None,
        slots: own.slots[..shape.members()].to_vec(),
        ..own.clone()
    };
    let is_there = |own: &&Superblock| !without.contains(own.slot);
    members.own()[..shape.members()].iter().map(|own| own.as_ref().filter(is_there).map(of_shape)).collect()
}
