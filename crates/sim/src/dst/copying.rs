//! Members that are copied to others, which take their places, while clients go on; with failures and power cuts at any
//! step.
//!
//! What must hold: just one of both has the slot, whatever cuts the copy off, and everything that was acknowledged;
//! once the array has on record that the other one has the place, the old one is never taken again; and where nothing
//! goes wrong the copy comes to its end.

use uraid_io::engine::Command;
use uraid_io::format::superblock::{Integrity, Superblock};
use uraid_layout::{MemberIndex, MemberSet};
use uuid::Uuid;

use super::Finding;
use super::administer::Administrator;
use super::client::{Client, Submitted};
use super::scenario::uuid;
use crate::member::Member;
use crate::members::Members;

/// A copy under way.
#[derive(Clone, Debug)]
pub(super) struct Copying {
    pub(super) slot: MemberIndex,
    /// Who has the slot.
    pub(super) before: Uuid,
    /// Who is to have it.
    superblock: Superblock,
    /// Copies that had taken a place in this life before.
    replaced: u32,
}

impl Client<'_> {
    /// The slot whose member is being copied.
    pub(super) fn copied(&self) -> MemberSet {
        let copying = self.administrator.as_ref().and_then(|administrator| administrator.copying.as_ref());
        copying.map_or(MemberSet::EMPTY, |copying| MemberSet::EMPTY.with(copying.slot))
    }

    /// Whether a copy is begun or given up now.
    pub(super) fn copies_now(&mut self) -> bool {
        let is_due =
            |administrator: &mut &mut Administrator| administrator.copies_members && administrator.random.chance(1, 24);
        self.administrator.as_mut().is_some_and(is_due) && !self.engine.is_frozen()
    }

    /// Has a member copied, where that can be, or gives the copy up.
    pub(super) fn copy(&mut self) {
        if !self.copied().is_empty() {
            if self.draw_below(8) == 0 {
                // It may be taking the place just now.
                let _ = self.engine.stop_replacing();
            }
            return;
        }
        let slot = MemberIndex(u8::try_from(self.draw_below(self.engine.geometry().members())).expect("at most 64"));
        if !self.is_changing {
            self.begin_copy(slot);
        }
    }

    fn begin_copy(&mut self, slot: MemberIndex) {
        let Some(seat) = self.engine.seat().filter(|&seat| !self.disk.is_busy(seat)) else { return };
        if self.engine.check_replaceable(slot).is_err() {
            return;
        }
        let truth = self.engine.superblock().clone();
        let administrator = self.administrator.as_mut().expect("somebody has asked");
        let (member, mut joining) = administrator.new_member(slot, &truth);
        joining.generation = uuid(&mut administrator.random);
        let before = truth.slots[slot.index()].member;
        let replaced = self.engine.replaced().map_or(0, |(_, count)| count);
        administrator.copying = Some(Copying { slot, before, superblock: joining.superblock.clone(), replaced });
        administrator.changes.copies += 1;
        self.disk.put(seat, Some(member));
        self.is_changing = true;
        self.submit(Submitted::Copy { slot }, Command::Replace(Box::new(joining)));
    }

    /// Takes note of who has the slot, and takes away whoever is not needed any more.
    pub(super) fn note_copy(&mut self) {
        self.note_births();
        let Some(seat) = self.engine.seat() else { return };
        let copying = self.administrator.as_ref().and_then(|administrator| administrator.copying.clone());
        let Some(Copying { slot, before, superblock, replaced }) = copying else { return };
        let is_taken = self.engine.superblock().slots[slot.index()].member == superblock.member;
        if is_taken {
            self.superblocks[slot.index()] = superblock;
        }
        if self.engine.needs_seat() || self.disk.is_busy(seat) {
            return;
        }
        self.has_struck |= self.disk.struck().contains(seat);
        let is_frozen = self.engine.is_frozen();
        let has_switched = self.engine.replaced().is_some_and(|(_, count)| count > replaced);
        let other = self.disk.put(seat, None);
        let administrator = self.administrator.as_mut().expect("it has a copy");
        administrator.copying = None;
        administrator.keep(other);
        if is_taken && !has_switched {
            // It has taken the place of a failed one, and that may not be on record yet.
            administrator.unborn = administrator.unborn.with(slot);
            administrator.unsettled = administrator.unsettled.with(slot);
        }
        if !is_taken || is_frozen {
            return;
        }
        administrator.barred.insert(before);
        administrator.changes.promoted += u64::from(!has_switched);
        administrator.changes.replaced += u64::from(has_switched);
        if has_switched && !self.engine.missing().contains(slot) {
            administrator.settle(slot);
        }
    }

    /// Takes note of the members that took the place of failed ones and have joined: all others say so, durably.
    fn note_births(&mut self) {
        let Some(administrator) = self.administrator.as_mut().filter(|by| !by.unborn.is_empty()) else { return };
        let (missing, slots) = (self.engine.missing(), &self.engine.superblock().slots);
        let counting = self.engine.geometry().all_members().minus(missing);
        let durable = self.disk.members().only(counting).cut(|_, _| 0);
        for slot in administrator.unborn.minus(missing).iter() {
            let says = |own: Superblock| own.slots[slot.index()].member == slots[slot.index()].member;
            if durable.superblocks().all(|(_, own)| own.is_ok_and(says)) {
                administrator.settle(slot);
            }
        }
    }

    /// Has a member copied when nothing fails any more, and waits for it; false when the power goes.
    pub(super) fn copy_at_last(&mut self) -> Result<bool, Finding> {
        let copies = self.administrator.as_ref().is_some_and(|administrator| administrator.copies_members);
        let is_sound = self.superblocks[0].integrity == Integrity::None && self.failed().is_empty();
        if !copies || !is_sound || self.engine.is_frozen() || self.is_changing || !self.copied().is_empty() {
            return Ok(true);
        }
        let slot = MemberIndex(u8::try_from(self.draw_below(self.engine.geometry().members())).expect("at most 64"));
        let before = self.engine.superblock().slots[slot.index()].member;
        self.begin_copy(slot);
        if !self.finish()? {
            return Ok(false);
        }
        let is_same = self.engine.superblock().slots[slot.index()].member == before;
        if is_same || !self.copied().is_empty() { Err(Finding::NotCopied { slot }) } else { Ok(true) }
    }
}

impl Administrator {
    /// Takes note that a slot's member has joined in this life.
    pub(super) fn settle(&mut self, slot: MemberIndex) {
        self.settled = self.settled.with(slot);
        self.unsettled = self.unsettled.without(slot);
        self.unborn = self.unborn.without(slot);
    }

    /// Takes the members that are in no slot at the end of a life, of the first of which it may be that the slot is
    /// its. Gives the slots whose members have no superblock yet that says whose they are, and rightly so.
    pub(super) fn end_copy(&mut self, left: &Members, others: Vec<Member>, struck: MemberSet) -> MemberSet {
        let copying = self.copying.take();
        let mut others = others.into_iter();
        let is_blank = |slot: MemberIndex| left.get(slot).is_some_and(|member| member.superblock().is_err());
        let unborn: MemberSet = self.unborn.iter().filter(|&slot| is_blank(slot)).collect();
        let Some(Copying { slot, before, .. }) = copying else {
            others.for_each(|other| self.keep(Some(other)));
            return unborn;
        };
        self.contender = others.next().filter(|member| member.superblock().is_ok());
        others.for_each(|other| self.keep(Some(other)));
        let has_failed =
            self.barred.contains(&before) || struck.contains(slot) || !struck.minus(left.present()).is_empty();
        if !has_failed {
            return unborn;
        }
        // The array does without the old one, which has failed, and it may not be durably on record that the other one
        // has its place.
        self.unsettled = self.unsettled.with(slot);
        if is_blank(slot) { unborn.with(slot) } else { unborn }
    }
}
