//! Members that come back to an array that went on without them.

use std::path::Path;

use uraid_io::array::{Candidate, OpenError, OpenOptions, Refusal, SetAside, accept_stale, check_presence, returning};
use uraid_io::engine::Command;
use uraid_io::format::Epoch;
use uraid_io::format::badblocks::BadBlocks;
use uraid_io::format::superblock::{Consistency, Integrity, SlotEntry, SlotState, Superblock};
use uraid_io::member::Access;
use uraid_layout::{Level, MemberIndex, MemberSet, StripeId};
use uuid::Uuid;

use super::array::{Array, Opening, RAID5, expected};
use crate::members::MemberSector;

const SLOT: MemberIndex = MemberIndex(1);

/// What a member says from two lives ago, what it says now, and what the others say after it was given up.
fn given_up() -> Result<[Superblock; 3], String> {
    let mut array = Array::new(Level::Raid1, 3, Consistency::Bitmap, Integrity::None, 4).with_written(0..4, 1)?;
    let own =
        |array: &Array| array.members.get(SLOT).expect("it is there").superblock().map_err(|error| error.to_string());
    let old = own(&array)?;
    array = array.with_written(0..4, 2)?.with_written(0..4, 3)?;
    let mut life = array.open(Opening::Recovered)?;
    life.run(Command::Fail { member: SLOT })?;
    let truth = life.superblock();
    array.members = life.disk.members();
    Ok([old, own(&array)?, truth])
}

pub(super) fn a_member_is_made_anew_unless_it_is_known_what_it_lacks() -> Result<(), String> {
    let [old, own, truth] = given_up()?;
    match returning(Path::new("now"), &own, BadBlocks::default(), &truth) {
        Ok(joining) if !joining.is_whole => {}
        other => return Err(format!("it lacks nothing but what is marked: {other:?}")),
    }
    match returning(Path::new("then"), &old, BadBlocks::default(), &truth) {
        Ok(joining) if joining.is_whole => Ok(()),
        other => Err(format!("a copy from two lives ago lacks more than is marked: {other:?}")),
    }
}

pub(super) fn a_member_that_was_being_made_is_made_anew() -> Result<(), String> {
    let [_, mut own, truth] = given_up()?;
    own.slots[SLOT.index()].state = SlotState::Rebuilding { upto: StripeId(1), is_whole: true };
    match returning(Path::new("unfinished"), &own, BadBlocks::default(), &truth) {
        Ok(joining) if joining.is_whole => Ok(()),
        other => Err(format!("it may lack anything: {other:?}")),
    }
}

pub(super) fn a_member_whose_slot_has_another_is_set_aside() -> Result<(), String> {
    let array = Array::new(Level::Raid1, 3, Consistency::Bitmap, Integrity::None, 4).with_written(0..4, 1)?;
    let (mut candidates, _) = array.judge()?;
    // The round that took another in was cut off: it is one epoch ahead.
    let newest = &mut candidates[0].superblock;
    newest.epoch.0 += 1;
    newest.slots[SLOT.index()].member = Uuid::from_u64_pair(1, 1);
    let verdict = uraid_io::array::judge(&candidates).map_err(|error| error.to_string())?;
    let is_aside = |&(index, reason): &(usize, SetAside)| {
        candidates[index].superblock.slot == SLOT && matches!(reason, SetAside::Replaced { .. })
    };
    if verdict.missing().contains(SLOT) && verdict.set_aside.iter().any(is_aside) {
        Ok(())
    } else {
        Err("a member is accepted whose slot has another".into())
    }
}

pub(super) fn two_that_went_on_in_one_slot_are_refused() -> Result<(), String> {
    let array = Array::new(Level::Raid1, 3, Consistency::Bitmap, Integrity::None, 4).with_written(0..4, 1)?;
    let (mut candidates, _) = array.judge()?;
    let epoch = candidates[0].superblock.epoch;
    for Superblock { slot, epoch: own, slots, .. } in candidates.iter_mut().map(|one| &mut one.superblock) {
        // The others replaced it in the next round and went on, and so did it.
        if *slot == SLOT {
            *own = Epoch(epoch.0 + 1);
        } else {
            *own = Epoch(epoch.0 + 2);
            let member = Uuid::from_u64_pair(1, 1);
            slots[SLOT.index()] = SlotEntry { member, state: SlotState::Active, since: Epoch(epoch.0 + 1) };
        }
    }
    match uraid_io::array::judge(&candidates) {
        Err(Refusal::SplitBrain { .. }) => Ok(()),
        other => Err(format!("what one of them wrote is lost: {other:?}")),
    }
}

/// A member that is read as the last resort is known to lack only what is marked where it could also return for that.
pub(super) fn what_is_read_out_of_date_is_in_doubt() -> Result<(), String> {
    let [old, own, truth] = given_up()?;
    let candidate =
        |superblock: Superblock| Candidate { path: format!("member{}", superblock.slot).into(), superblock };
    let other = |slot: u8| {
        let member = truth.slots[usize::from(slot)].member;
        candidate(Superblock { slot: MemberIndex(slot), member, ..truth.clone() })
    };
    for (member, is_known) in [(own, true), (old, false)] {
        let candidates = [other(0), candidate(member), other(2)];
        let mut verdict = uraid_io::array::judge(&candidates).map_err(|error| error.to_string())?;
        let stale =
            accept_stale(&mut verdict, &candidates, MemberSet::EMPTY.with(SLOT)).map_err(|error| error.to_string())?;
        if stale.iter().map(|stale| stale.is_known).ne([is_known]) {
            return Err(format!("it is {is_known} that what it lacks is known, and not that {stale:?}"));
        }
    }
    Ok(())
}

pub(super) fn what_lacks_too_many_members_is_only_read() -> Result<(), String> {
    let array = Array::new(RAID5, 3, Consistency::Log, Integrity::None, 4).with_written(0..4, 1)?;
    let array = array.without([0, 1].map(MemberIndex).into_iter().collect());
    let (candidates, verdict) = array.judge()?;
    let open =
        |access| check_presence(&verdict, &candidates, OpenOptions { access, allow_degraded: true, force: true });
    open(Access::ReadOnly).map_err(|error| format!("what is left can't be copied off: {error}"))?;
    match open(Access::ReadWrite) {
        Err(OpenError::TooFew { .. }) => Ok(()),
        other => Err(format!("it would be written: {other:?}")),
    }
}

/// The power goes when a block is in the log and nowhere else. One member does not come back at once, so that the log
/// is done again without it.
pub(super) fn a_member_gets_what_the_log_did_again_without_it() -> Result<(), String> {
    let mut array = Array::new(Level::Raid1, 2, Consistency::Log, Integrity::None, 4).with_written(0..4, 1)?;
    let mut life = array.open(Opening::Recovered)?;
    life.write(0, 2)?;
    let data = array.areas.data.offset;
    let end = data.0 + array.geometry.used_sectors().bytes().0;
    let is_data = |place: MemberSector| (data.0..end).contains(&place.offset.0);
    array.members = life.disk.members().cut(|place, count| if is_data(place) { 0 } else { count - 1 });
    let back = array.members.get(SLOT).cloned();
    let own = back.as_ref().expect("it is there").superblock().map_err(|error| error.to_string())?;
    let mut life = array.without(MemberSet::EMPTY.with(SLOT)).open(Opening::Recovered)?;
    let joining = returning(Path::new("back"), &own, BadBlocks::default(), &life.superblock())
        .map_err(|error| error.to_string())?;
    if joining.is_whole {
        return Err("it lacks nothing but what is marked, and is made anew".into());
    }
    life.disk.put(SLOT, back);
    life.run(Command::Join(Box::new(joining)))?;
    life.rebuild()?;
    life.run(Command::Close)?;
    array.members = life.disk.members();
    let found = array.without(MemberSet::EMPTY.with(MemberIndex(0))).open(Opening::ForReading)?.read(0)?;
    if found == expected(0, 2) { Ok(()) } else { Err("it lacks what was done without it".into()) }
}
