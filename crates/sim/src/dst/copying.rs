//! Members that are copied to others, which take their places, while clients go on; with failures and power cuts at any
//! step.
//!
//! What must hold: just one of both has the slot, whatever cuts the copy off, and everything that was acknowledged;
//! once the array has on record that the other one has the place, the old one is never taken again; and where nothing
//! goes wrong the copy comes to its end.

use uraid_io::engine::Command;
use uraid_io::format::superblock::Superblock;
use uraid_layout::{MemberIndex, MemberSet};
use uuid::Uuid;

use super::roster::Roster;
use super::session::{Change, Session, Submitted};
use crate::member::Member;
use crate::members::Members;

/// Who has members copied, one at a time.
#[derive(Debug, Default)]
pub(super) struct Copier {
    under_way: Option<Copying>,
}

/// A copy under way.
#[derive(Clone, Debug)]
struct Copying {
    slot: MemberIndex,
    /// Who has the slot.
    before: Uuid,
    /// Who is to have it.
    superblock: Superblock,
    /// Copies that had taken a place in this life before.
    replaced: u32,
}

impl Copier {
    /// The slot whose member is being copied.
    pub(super) fn copied(&self) -> MemberSet {
        self.under_way.as_ref().map_or(MemberSet::EMPTY, |copying| MemberSet::EMPTY.with(copying.slot))
    }

    /// Who had a slot before it was copied, if it is being copied.
    pub(super) fn before(&self, slot: MemberIndex) -> Option<Uuid> {
        self.under_way.as_ref().filter(|copying| copying.slot == slot).map(|copying| copying.before)
    }

    /// Has a member copied to a new one; false where that can't be.
    pub(super) fn begin(&mut self, session: &mut Session<'_>, roster: &mut Roster, slot: MemberIndex) -> bool {
        let Some(seat) = session.engine.seat().filter(|&seat| !session.disk.is_busy(seat)) else { return false };
        if session.engine.check_replaceable(slot).is_err() {
            return false;
        }
        let truth = session.engine.superblock().clone();
        let (member, joining) = roster.new_member_for(slot, &truth);
        let before = truth.slots[slot.index()].member;
        let replaced = session.engine.replaced().map_or(0, |(_, count)| count);
        self.under_way = Some(Copying { slot, before, superblock: joining.superblock.clone(), replaced });
        roster.changes.copies += 1;
        session.disk.put(seat, Some(member));
        session.submit(Submitted::Change(Change::Copy { slot }), Command::Replace(Box::new(joining)));
        true
    }

    /// Takes note of who has the slot after a turn of the engine, and takes away whoever is not needed any more.
    pub(super) fn turned(&mut self, session: &mut Session<'_>, roster: &mut Roster) {
        note_births(session, roster);
        let Some(seat) = session.engine.seat() else { return };
        let Some(Copying { slot, before, superblock, replaced }) = self.under_way.clone() else { return };
        let is_taken = session.engine.superblock().slots[slot.index()].member == superblock.member;
        if is_taken {
            session.superblocks[slot.index()] = superblock;
        }
        if session.engine.needs_seat() || session.disk.is_busy(seat) {
            return;
        }
        let is_frozen = session.engine.is_frozen();
        let has_switched = session.engine.replaced().is_some_and(|(_, count)| count > replaced);
        self.under_way = None;
        // A copy that did not take the place never was a member of the array.
        roster.keep(if is_taken { session.take_out(seat) } else { session.disk.put(seat, None) });
        if is_taken && !has_switched {
            // It has taken the place of a failed one, and that may not be on record yet.
            roster.unborn = roster.unborn.with(slot);
            roster.unsettle(slot);
        }
        if !is_taken || is_frozen {
            return;
        }
        roster.barred.insert(before);
        roster.changes.promoted += u64::from(!has_switched);
        roster.changes.replaced += u64::from(has_switched);
        if has_switched && !session.engine.missing().contains(slot) {
            roster.settle(slot);
        }
    }

    /// Takes the members that are in no slot at the end of a life, of the first of which it may be that the slot is
    /// its. Gives the slots whose members have no superblock yet that says whose they are, and rightly so.
    pub(super) fn end(
        &mut self,
        roster: &mut Roster,
        left: &Members,
        others: Vec<Member>,
        struck: MemberSet,
    ) -> MemberSet {
        let copying = self.under_way.take();
        let mut others = others.into_iter();
        let is_blank = |slot: MemberIndex| left.get(slot).is_some_and(|member| member.superblock().is_err());
        let unborn: MemberSet = roster.unborn.iter().filter(|&slot| is_blank(slot)).collect();
        let Some(Copying { slot, before, .. }) = copying else {
            others.for_each(|other| roster.keep(Some(other)));
            return unborn;
        };
        roster.contender = others.next().filter(|member| member.superblock().is_ok());
        others.for_each(|other| roster.keep(Some(other)));
        let has_failed =
            roster.barred.contains(&before) || struck.contains(slot) || !struck.minus(left.present()).is_empty();
        if !has_failed {
            return unborn;
        }
        // The array does without the old one, which has failed, and it may not be durably on record that the other one
        // has its place.
        roster.unsettle(slot);
        if is_blank(slot) { unborn.with(slot) } else { unborn }
    }
}

/// Takes note of the members that took the place of failed ones and have joined: all others say so, durably.
fn note_births(session: &Session<'_>, roster: &mut Roster) {
    if roster.unborn.is_empty() {
        return;
    }
    let (missing, slots) = (session.engine.missing(), &session.engine.superblock().slots);
    let counting = session.engine.geometry().all_members().minus(missing);
    let durable = session.disk.members().only(counting).cut(|_, _| 0);
    for slot in roster.unborn.minus(missing).iter() {
        let says = |own: Superblock| own.slots[slot.index()].member == slots[slot.index()].member;
        if durable.superblocks().all(|(_, own)| own.is_ok_and(says)) {
            roster.settle(slot);
        }
    }
}
