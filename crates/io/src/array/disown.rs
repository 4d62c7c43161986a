//! A member that is given up or replaced while it works, and is told so itself.
//!
//! The others have it on record, and whoever opens it beside one of them leaves it out. Alone it has only its own word
//! for it, and would be all that is left of the array. So its own superblock says that it failed, too, when that is
//! durable on the others. Its epoch stays, which says what it lacks when it returns.
//!
//! Nothing relies on this: a member that can't be written is as it was.

use crate::Error;
use crate::format::superblock::{Revision, SlotEntry, SlotState, Superblock, SuperblockError};
use crate::member::Member;
use crate::superblock;

/// Has a member of an array, of which `truth` is a present member's newest superblock, say that it was given up, where
/// it was, or another one has its slot. One that did not have everything, or does not any more, says nothing new: it
/// does not count alone. Blocks.
///
/// # Errors
/// When the member fails, or its superblock is damaged.
pub fn disown(member: &Member, truth: &Superblock) -> Result<(), Error> {
    let mut own = match superblock::load(member) {
        // It never had a place.
        Err(Error::Superblock { source: SuperblockError::NoMagic, .. }) => return Ok(()),
        own => own?,
    };
    let (slot, epoch) = (own.slot.index(), own.epoch);
    let is_given_up = |entry: &SlotEntry| {
        let is_out = entry.member != own.member || entry.state == SlotState::Failed;
        is_out && epoch < entry.since
    };
    let is_ours = own.array == truth.array && truth.slots.get(slot).is_some_and(is_given_up);
    let is_cut_off = own.areas.member_size > member.size();
    if !is_ours || is_cut_off || own.slots[slot].state != SlotState::Active {
        return Ok(());
    }
    (own.slots[slot].state, own.slots[slot].since) = (SlotState::Failed, epoch);
    own.revision = Revision(own.revision.0 + 1);
    superblock::store(member, &own)
}
