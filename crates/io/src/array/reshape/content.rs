//! The content of an array in one of its two shapes, as its clients would read it.
//!
//! An engine that only reads gives it: what a member lacks is computed from the others, so a bad sector or a member
//! that is missing costs nothing that redundancy has.

use std::ops::Range;

use uraid_layout::{Bytes, Geometry, Lba, MemberSet, SECTOR_BYTES, Sectors};

use super::error::ReshapeError;
use super::lacking::{Content, add, in_blocks, lost_of, others, put};
use super::members::Members;
use crate::Error;
use crate::buf::Buf;
use crate::disk::{Completion, Disk, DiskOp};
use crate::engine::{Command, Engine, EngineError, Record};
use crate::format::BLOCK;
use crate::format::superblock::{Consistency, Superblock};

/// What is read at once.
const PIECE: Bytes = Bytes(1 << 20);

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
/// [`ReshapeError::Unreadable`] where redundancy does not give what is not known to be lost.
pub(super) fn read<D: Disk>(
    members: &mut Members<D>,
    shape: &Geometry,
    content: &Range<Lba>,
) -> Result<Content, ReshapeError> {
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
) -> Result<Content, ReshapeError> {
    let missing = members.missing().union(without);
    let known = lost_of(shape, missing, |member| members.lists()[member.index()].clone(), content);
    let record = Record::new(superblocks(members, shape, without));
    let lists = members.lists()[..shape.members()].to_vec();
    let lba = content.start;
    let engine = Engine::new(Lent(&mut members.disk), shape.clone(), record, true);
    let engine: Engine<_, Lba> = engine.map_err(|source| ReshapeError::Unreadable { lba, source })?;
    let mut engine = engine.with_bad_blocks(lists);
    let len = |range: &Range<Lba>| Sectors(range.end.0 - range.start.0).bytes();
    let mut bytes = Buf::zeroed(len(content));
    for piece in others(content, &known, PIECE.whole_sectors().0) {
        match ask(&mut engine, piece.start, len(&piece)) {
            Ok(read) => put(&mut bytes, content.start, piece.start, &read),
            Err(EngineError::Unreadable { .. }) => {
                return Err(first_unreadable(&mut engine, piece.start, len(&piece)));
            }
            Err(source) => return Err(ReshapeError::Unreadable { lba: piece.start, source }),
        }
    }
    let mut lost = Vec::new();
    for block in in_blocks(&known) {
        match ask(&mut engine, block.start, len(&block)) {
            Ok(read) => put(&mut bytes, content.start, block.start, &read),
            Err(EngineError::Unreadable { .. }) => add(&mut lost, block),
            Err(source) => return Err(ReshapeError::Unreadable { lba: block.start, source }),
        }
    }
    Ok(Content { bytes, lost })
}

/// Where in a piece the content is that can't be read, and why.
fn first_unreadable<D: Disk>(engine: &mut Engine<D, Lba>, from: Lba, len: Bytes) -> ReshapeError {
    let mut failure = None;
    for at in (0..len.0).step_by(usize::try_from(BLOCK.bytes().0).expect("a block is small")) {
        let lba = Lba(from.0 + at / SECTOR_BYTES);
        if let Err(source) = ask(engine, lba, Bytes(BLOCK.bytes().0.min(len.0 - at))) {
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
