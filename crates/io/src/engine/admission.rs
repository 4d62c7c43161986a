//! Whether a command can be done, and as what.

use uraid_layout::{Bytes, Lba, Sectors};

use super::change::{check_join, check_replace};
use super::command::Command;
use super::error::EngineError;
use super::parts::Parts;
use crate::format::BLOCK;

/// Checks a command, and cuts a trim to what it does. None: there is nothing to do.
///
/// # Errors
/// Why it can't be done.
pub(super) fn admit(parts: &Parts, command: Command) -> Result<Option<Command>, EngineError> {
    let members = &parts.members;
    let sectors = |buf: &crate::buf::Buf| Bytes(buf.len() as u64).whole_sectors();
    let (lba, len, is_write) = match &command {
        Command::Read { lba, buf } => (*lba, sectors(buf), false),
        Command::Write { lba, buf, .. } => (*lba, sectors(buf), true),
        Command::WriteZeroes { lba, len, .. } | Command::Trim { lba, len, .. } => (*lba, *len, true),
        Command::Flush | Command::Close => return members.check_frozen().map(|()| Some(command)),
        Command::Fail { member } => return members.check_fail(*member).map(|()| Some(command)),
        Command::Join(joining) => return check_join(parts, joining).map(|()| Some(command)),
        Command::Replace(joining) => return check_replace(parts, joining).map(|()| Some(command)),
    };
    let capacity = parts.geometry().capacity();
    if lba.0.checked_add(len.0).is_none_or(|end| end > capacity.0) {
        return Err(EngineError::OutOfRange { lba, len, capacity });
    }
    if let Command::Read { buf, .. } | Command::Write { buf, .. } = &command
        && buf.len() as u64 != len.bytes().0
    {
        return Err(EngineError::Unaligned { len: Bytes(buf.len() as u64) });
    }
    if parts.sums.is_some() && !(lba.0 | len.0).is_multiple_of(BLOCK.0) {
        return Err(EngineError::NotBlocks { lba, len });
    }
    members.check_frozen()?;
    if is_write && members.is_read_only() {
        return Err(EngineError::ReadOnly);
    }
    if let Command::Trim { fua, .. } = command {
        // Only whole parity stripes can be given back without computing parity.
        let stripe = parts.geometry().stripe_sectors().0;
        let first = lba.0.next_multiple_of(stripe);
        let end = (lba.0 + len.0) / stripe * stripe;
        let trim = || Command::Trim { lba: Lba(first), len: Sectors(end - first), fua };
        return Ok((first < end).then(trim));
    }
    Ok((len.0 > 0).then_some(command))
}
