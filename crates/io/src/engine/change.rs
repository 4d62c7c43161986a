//! Changes of who is there: what is asked for, and whether that can be.

use uraid_layout::MemberIndex;
use uuid::Uuid;

use super::error::EngineError;
use super::log::Log;
use super::parts::Parts;
use crate::format::badblocks::BadBlocks;
use crate::format::superblock::{Consistency, Integrity, LogChange, Superblock};

/// A member that is to join.
#[derive(Clone, Debug)]
pub struct Joining {
    /// Who it is, which slot it takes, where things are on it, and the number of the last version of its superblock;
    /// the rest is the array's.
    pub superblock: Superblock,
    /// It has nothing of the array. Otherwise it lacks only what is in regions whose bits are set in the write-intent
    /// bitmap; without one it is rebuilt whole in any case.
    pub is_whole: bool,
    /// The log's next run: a number that nobody can guess.
    pub generation: Uuid,
    /// What it lacks of what it should have, as it is on it.
    pub bad_blocks: BadBlocks,
}

/// What nothing may be under way for.
#[derive(Debug)]
pub(super) enum Change {
    /// A member joins.
    Join(Joining),
    /// A member that was to take another one's place, which failed, joins in that.
    Promote(Joining),
    /// A member is to be copied to this one.
    Replace(Joining),
    /// The copy takes the member's place.
    Switch { slot: MemberIndex },
    /// Log devices come and go; with the next runs of the log and of the journal.
    Logs { change: LogChange, generation: Uuid },
}

/// Whether log devices can change so.
///
/// # Errors
/// Why they can't.
pub(super) fn check_logs(parts: &Parts, change: LogChange) -> Result<(), EngineError> {
    let members = &parts.members;
    members.check_at_rest()?;
    members.record().any().check_logs(change)?;
    members.check_changes()?;
    if members.is_suspect() { Err(EngineError::Suspect) } else { Ok(()) }
}

/// Whether a member can join.
///
/// # Errors
/// Why it can't.
pub(super) fn check_join(parts: &Parts, joining: &Joining) -> Result<(), EngineError> {
    let members = &parts.members;
    members.check_at_rest()?;
    let slot = joining.superblock.slot;
    if members.twin().is_some_and(|twin| twin.slot == slot) {
        return Err(EngineError::Replacing);
    }
    if !members.missing().contains(slot) {
        return Err(EngineError::NotMissing { member: slot });
    }
    // What is still under way on the one that was given up could land after it was rebuilt.
    let returns = members.record().any().slots[slot.index()].member == joining.superblock.member;
    let lingers = members.operations.abandoned(slot) > 0 && !planted!(LingeringReturns);
    if members.operations.is_awaited(slot) || returns && lingers {
        return Err(EngineError::Lingering { member: slot });
    }
    check_suits(parts, joining)?;
    members.check_changes()
}

/// Whether a member can be copied to this one.
///
/// # Errors
/// Why it can't.
pub(super) fn check_replace(parts: &Parts, joining: &Joining) -> Result<(), EngineError> {
    check_replaceable(parts, joining.superblock.slot)?;
    check_suits(parts, joining)
}

/// Whether the member in a slot can be copied to another one now.
///
/// # Errors
/// Why it can't.
pub(super) fn check_replaceable(parts: &Parts, slot: MemberIndex) -> Result<(), EngineError> {
    let members = &parts.members;
    members.check_at_rest()?;
    if members.twin().is_some() {
        return Err(EngineError::Replacing);
    }
    if members.seat().is_none() {
        return Err(EngineError::NoSeat);
    }
    if members.is_seat(slot) || members.record().lost().contains(slot) {
        return Err(EngineError::NotThere { member: slot });
    }
    members.check_changes()?;
    if members.is_suspect() { Err(EngineError::Suspect) } else { Ok(()) }
}

/// Whether a member is as the array needs one in its slot.
fn check_suits(parts: &Parts, joining: &Joining) -> Result<(), EngineError> {
    let Superblock { member, slot, areas, .. } = &joining.superblock;
    let record = parts.members.record();
    let truth = record.any();
    if truth.slots.iter().enumerate().any(|(index, other)| index != slot.index() && other.member == *member) {
        return Err(EngineError::Unsuited { member: *slot, field: "UUID" });
    }
    let mut own = Superblock { member: *member, slot: *slot, areas: *areas, ..truth.clone() };
    own.slots[slot.index()].member = *member;
    own.check().map_err(|_| EngineError::Unsuited { member: *slot, field: "place for what the array has" })?;
    if truth.consistency == Consistency::Log && areas.log.size < Log::size_min(parts.geometry()) {
        return Err(EngineError::Unsuited { member: *slot, field: "log" });
    }
    if truth.integrity != Integrity::None && parts.sums.is_none() {
        return Err(EngineError::Unsuited { member: *slot, field: "checksums" });
    }
    Ok(())
}
