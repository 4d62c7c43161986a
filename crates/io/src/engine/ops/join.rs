//! Members that join, and copies that take a member's place, while clients go on.
//!
//! Nothing is under way meanwhile, and what comes is held back; that is as long as what the members are doing takes, a
//! flush and a round of superblock writes. With a log a new run of it begins then: what is in the old one is in place
//! and durable, and nothing that the member may hold of it, or lacks, matters.
//!
//! For a switch the members are marked clean first. Then the new member gets a superblock of the next epoch, which says
//! that the slot is its, and when that is durable the others get theirs. So, whenever this is cut off: where any member
//! has the next epoch, the new one has it, and all that the old one has; where none has, nothing was written since. An
//! array that goes on with the old member instead marks its members as written first, in a later version of the same
//! epoch, or a later one.

use uraid_layout::{MemberIndex, MemberSet};

use super::calm::calm;
use super::{handover, logs};
use crate::buf::Buf;
use crate::engine::change::{Change, Joining};
use crate::engine::core::Core;
use crate::engine::error::EngineError;
use crate::engine::members::Twin;
use crate::engine::record::Record;
use crate::engine::transfer::Workspace;
use crate::format::Epoch;
use crate::format::superblock::{SUPERBLOCK_BYTES, encode};

/// Changes who is there; a change that became impossible meanwhile is given up.
///
/// # Errors
/// [`EngineError::JoinFailed`]; [`EngineError::Lingering`]; [`EngineError::Frozen`].
pub(in crate::engine) async fn change(core: &Core, space: &mut Workspace, change: Change) -> Result<(), EngineError> {
    let members = &core.sides.below.members;
    let leaving = match &change {
        Change::Replace(joining) => Some(joining.superblock.slot),
        Change::Switch { slot } => Some(*slot),
        Change::Join(_) | Change::Promote(_) | Change::Logs { .. } => None,
    };
    calm(core, leaving).await?;
    match &change {
        Change::Join(joining) | Change::Promote(joining) => {
            handover::leave(&core.sides.below, space, joining.superblock.slot).await?;
        }
        Change::Switch { .. } => handover::empty(&core.sides.below, space).await?,
        Change::Replace(_) | Change::Logs { .. } => {}
    }
    calm(core, leaving).await?;
    let joins = matches!(change, Change::Join(_) | Change::Promote(_));
    let slot = match change {
        Change::Join(joining) => {
            core.sides.below.bad.replace(&joining.superblock, joining.bad_blocks.clone());
            take_in(core, &joining)?;
            joining.superblock.slot
        }
        Change::Promote(joining) => {
            promote(core, &joining).await?;
            joining.superblock.slot
        }
        Change::Replace(joining) => {
            core.background.copies.begin(&core.sides.below, joining);
            return Ok(());
        }
        Change::Switch { slot } => {
            if !switch(core, slot).await? {
                return Ok(());
            }
            slot
        }
        Change::Logs { change, generation } => return logs::change(core, space, change, generation).await,
    };
    members.check_frozen()?;
    if !planted!(JoinUnrecorded) {
        members.settled().await?;
    }
    if joins {
        handover::greet(&core.sides.below, slot).await?;
    }
    if members.missing().contains(slot) { Err(EngineError::JoinFailed { member: slot }) } else { Ok(()) }
}

/// Takes a member in.
fn take_in(core: &Core, joining: &Joining) -> Result<(), EngineError> {
    let (parts, members) = (&core.sides.below, &core.sides.below.members);
    let Joining { superblock, is_whole, generation, .. } = joining;
    let slot = superblock.slot;
    if members.unready().is_empty() && !planted!(CompleteForgotten) {
        // What was being rebuilt has everything, and was flushed with all else: that goes on record with the one that
        // joins.
        members.change_record(Record::complete);
    }
    members.take_in(slot)?;
    tracing::info!(member = %slot, uuid = %superblock.member, is_whole, "a member joins, and is rebuilt");
    parts.repairs.leniency.forget(slot);
    if members.record().any().slots[slot.index()].member != superblock.member {
        members.counters.borrow_mut().forget(slot);
    }
    let is_whole = *is_whole || parts.intent.wanted().is_none();
    members.change_record(|record| record.join(superblock, is_whole, *generation));
    renew_member(core, slot);
    core.background.rebuild.restart(parts);
    Ok(())
}

/// What rests on who is in a slot.
fn renew_member(core: &Core, slot: MemberIndex) {
    let (parts, members) = (&core.sides.below, &core.sides.below.members);
    let record = members.record();
    handover::restart_log(parts);
    if let (Some(journal), Some(own)) = (&parts.journal, record.superblocks().nth(slot.index()).flatten()) {
        journal.replace(own);
    }
    if let (Some(sums), Some(own)) = (&parts.sums, record.superblocks().nth(slot.index()).flatten()) {
        sums.replace(own);
    }
    parts.intent.rewrite();
    parts.blanks.rewrite();
}

/// Takes the new member in at the place of the old one, which has failed, to be rebuilt.
async fn promote(core: &Core, joining: &Joining) -> Result<(), EngineError> {
    let members = &core.sides.below.members;
    while !members.record().is_settled() {
        // The last of what was to be done with the old member.
        members.wait_record().await;
        calm(core, None).await?;
    }
    let slot = joining.superblock.slot;
    let seat = members.seat().expect("the new member has one");
    // What was given up on the new member could land after it was rebuilt.
    let lingers = members.operations.abandoned(seat) > 0 && !planted!(LingeringPromoted);
    if members.operations.is_awaited(slot) || members.operations.is_awaited(seat) || lingers {
        return Err(EngineError::Lingering { member: slot });
    }
    members.operations.exchange(slot, seat);
    core.sides.below.bad.exchange(slot, seat);
    take_in(core, joining)
}

/// Puts the new member in the old one's place, when it has said durably that it is there. False: the old one keeps its
/// place, or has failed, and then the new one joins when this is over.
async fn switch(core: &Core, slot: MemberIndex) -> Result<bool, EngineError> {
    let (parts, members) = (&core.sides.below, &core.sides.below.members);
    let mut sealed = None;
    loop {
        let Some(twin) = members.twin() else { return Ok(false) };
        if members.missing().contains(slot) {
            members.set_twin(Some(Twin { is_sealing: false, ..twin }).filter(|twin| !twin.has_failed));
            return Ok(false);
        }
        let failures = parts.flusher.failures();
        if twin.has_failed || !failures.is_empty() {
            tracing::error!(member = %slot, %failures, "the member keeps its place: members failed a flush, or the new \
                one failed");
            members.set_twin(None);
            return Ok(false);
        }
        let is_recorded = members.change_record(|record| record.demand_clean() && record.is_settled());
        let next = Epoch(members.record().any().epoch.0 + 1);
        if !is_recorded {
            members.wait_record().await;
        } else if sealed == Some(next) || planted!(CopySwitchedUnsealed) {
            take_place(core, twin);
            return Ok(true);
        } else {
            // Another round may come meanwhile; then this is done again.
            sealed = Some(seal(core, twin).await);
        }
        calm(core, Some(slot)).await?;
    }
}

/// Has the new member say durably that the slot is its: the epoch of which it says so. Its list of bad blocks is
/// durable since nothing is under way.
async fn seal(core: &Core, twin: Twin) -> Epoch {
    let (members, Joining { superblock, generation, .. }) =
        (&core.sides.below.members, core.background.copies.joining());
    members.set_twin(Some(Twin { is_sealing: true, ..twin }));
    let seat = MemberSet::EMPTY.with(twin.seat);
    if !planted!(BlankMapUncopied) {
        members.operations.write_all(core.sides.below.blanks.writes_to(twin.seat, &superblock)).await;
    }
    if !planted!(CopySealedUnflushed) {
        members.operations.flush_all(seat.iter()).await;
    }
    let sealed = members.record().sealed(&superblock, generation);
    let block = Buf::of(&encode(&sealed));
    let write = |offset| (twin.seat, offset, block.lease_read(0..SUPERBLOCK_BYTES));
    // What it failed to make durable may be gone with the power: then it must not say so.
    if members.twin().is_some_and(|twin| !twin.has_failed) || planted!(CopySealedDespiteFailure) {
        members.operations.write_all(sealed.write_positions().map(write)).await;
        members.operations.flush_all(seat.iter()).await;
    }
    // What it failed meanwhile is noted with it.
    members.set_twin(members.twin().map(|twin| Twin { is_sealing: false, ..twin }));
    sealed.epoch
}

/// The new member is in the slot from now on.
fn take_place(core: &Core, twin: Twin) {
    let (parts, members) = (&core.sides.below, &core.sides.below.members);
    let (slot, Joining { superblock, generation, .. }) = (twin.slot, core.background.copies.joining());
    members.set_twin(None);
    tracing::info!(member = %slot, uuid = %superblock.member, "a member has taken over a slot from another one");
    members.change_record(|record| {
        let sealed = record.sealed(&superblock, generation);
        record.replace(sealed);
    });
    members.exchange(slot, twin.seat);
    parts.bad.exchange(slot, twin.seat);
    parts.repairs.leniency.forget(slot);
    members.counters.borrow_mut().forget(slot);
    renew_member(core, slot);
    core.background.copies.note_replaced(slot);
}
