//! Whether a command can be done, and what of it is left to do.

use std::ops::Range;

use uraid_layout::{Bytes, Lba, Sectors};

use super::change::{check_join, check_logs, check_replace};
use super::command::Command;
use super::error::EngineError;
use super::parts::Parts;
use super::sides::Sides;
use crate::buf::Buf;
use crate::format::BLOCK;

/// What is left of a command that can be done.
#[derive(Debug)]
pub(super) enum Admitted {
    /// Nothing: it asked for nothing, or the cache has taken it in.
    Done,
    /// These sectors; of a command that is about none, itself.
    Left(Range<Lba>),
}

/// Checks a command, and has the cache take in what it can of a write.
///
/// # Errors
/// Why it can't be done.
pub(super) fn admit(sides: &Sides, command: &Command) -> Result<Admitted, EngineError> {
    let (parts, members) = (&sides.below, &sides.below.members);
    let itself = || Admitted::Left(Lba(0)..Lba(0));
    let of = |buf: &Buf| Bytes(buf.len() as u64);
    let (lba, len, is_write) = match command {
        Command::Read { lba, buf } => (*lba, sectors(buf)?, false),
        Command::Write { lba, buf, .. } => (*lba, sectors(buf)?, true),
        Command::WriteZeroes { lba, len, .. } => (*lba, *len, true),
        Command::ReadBytes { at, buf } => covered(parts, *at, of(buf), false),
        Command::WriteBytes { at, buf, .. } => covered(parts, *at, of(buf), true),
        Command::ZeroBytes { at, len, .. } => covered(parts, *at, *len, true),
        Command::Flush | Command::Close => return members.check_frozen().map(|()| itself()),
        Command::Fail { member } => return members.check_fail(*member).map(|()| itself()),
        Command::Join(joining) => return check_join(parts, joining).map(|()| itself()),
        Command::Replace(joining) => return check_replace(parts, joining).map(|()| itself()),
        Command::ChangeLogs { change, .. } => return check_logs(parts, *change).map(|()| itself()),
    };
    let capacity = members.capacity();
    if lba.0.checked_add(len.0).is_none_or(|end| end > capacity.0) {
        return Err(EngineError::OutOfRange { lba, len, capacity });
    }
    if parts.sums.is_some() && !(lba.0 | len.0).is_multiple_of(BLOCK.0) {
        return Err(EngineError::NotBlocks { lba, len });
    }
    members.check_frozen()?;
    if is_write && members.is_read_only() {
        return Err(EngineError::ReadOnly);
    }
    let all = lba..Lba(lba.0 + len.0);
    let left = match command {
        Command::Write { buf, fua, .. } => {
            let left = take_in(sides, all.clone(), buf, *fua);
            // What is to be durable goes into the journal.
            return Ok(if left.is_empty() && (!fua || all.is_empty()) { Admitted::Done } else { Admitted::Left(left) });
        }
        _ => all,
    };
    Ok(if left.is_empty() { Admitted::Done } else { Admitted::Left(left) })
}

/// Has the cache take in what it can of a write: what is left.
pub(super) fn take_in(sides: &Sides, all: Range<Lba>, buf: &Buf, fua: bool) -> Range<Lba> {
    let (parts, end) = sides.at(all.start);
    // What is in two shapes is written through.
    let may_be = (!fua || parts.journal.is_some())
        && all.end <= end
        && (planted!(BlankCached) || !parts.blanks.touches(parts.geometry(), &all));
    if !may_be {
        return all;
    }
    let len = Sectors(all.end.0 - all.start.0);
    parts.zeros.note_written(&all);
    parts.writeback.take_in(parts.geometry(), (all.start, len), buf, !fua)
}

/// The first sector and the length of what has these bytes; and whether that is written.
fn covered(parts: &Parts, at: Bytes, len: Bytes, is_write: bool) -> (Lba, Sectors, bool) {
    let Range { start, end } = parts.cover(at, len);
    (start, Sectors(end.0 - start.0), is_write)
}

/// The sectors of a request's memory.
fn sectors(buf: &Buf) -> Result<Sectors, EngineError> {
    let (len, sectors) = (Bytes(buf.len() as u64), Bytes(buf.len() as u64).whole_sectors());
    if sectors.bytes() == len { Ok(sectors) } else { Err(EngineError::Unaligned { len }) }
}
