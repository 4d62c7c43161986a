//! The administrator of a running array: members are given up, taken out and taken in, checked and waited for, while
//! clients go on.
//!
//! One change at a time, and any of them cut off by anything. What the administrator was told is held against what is
//! found later: a member that the array has on record as given up or replaced is never taken again by itself, and one
//! that has joined is there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use uraid_io::array::returning;
use uraid_io::engine::{Command, Joining, ScrubMode};
use uraid_io::format::Epoch;
use uraid_io::format::superblock::{Area, Areas, Integrity, Revision, Superblock};
use uraid_layout::repair::Repair;
use uraid_layout::{Bytes, MemberIndex, MemberSet, Sectors, StripeId};
use uuid::Uuid;

use super::client::{Client, Lingers, Submitted};
use super::copying::Copying;
use super::scenario::uuid;
use super::{Changes, Finding};
use crate::disk::{Ending, leave};
use crate::member::{Member, Payload};
use crate::members::Members;
use uraid_random::Random;

/// Members that are taken in at the end until all are there.
const MENDS_MAX: usize = 32;

/// Ticks after which everything that waits for time has happened.
const TICKS_MAX: usize = 400;

/// See the module.
#[derive(Debug)]
pub(super) struct Administrator {
    pub(super) random: Random,
    /// Members that are in no slot.
    pub(super) loose: Vec<Member>,
    /// Copies of members from earlier lives.
    pub(super) copies: Vec<Member>,
    /// Members that the array has on record that it does without.
    pub(super) barred: BTreeSet<Uuid>,
    /// Members that were given up in this life, and nothing else has happened to, with the array's epoch then. A copy
    /// from an earlier life that is loose beside its member has an older one.
    sound: BTreeMap<Uuid, Epoch>,
    /// Slots of which it is not known in this life whom the array has on record there.
    pub(super) unsettled: MemberSet,
    /// Slots whose members have joined in this life.
    pub(super) settled: MemberSet,
    /// Slots whose members took the place of failed ones, which is not on record yet: they may have no superblock.
    pub(super) unborn: MemberSet,
    pub(super) changes: Changes,
    /// A member that is gone: there is only a copy from an earlier life.
    discarded: Option<Uuid>,
    /// Members are copied to others that take their places; and the copy under way.
    pub(super) copies_members: bool,
    pub(super) copying: Option<Copying>,
    /// The other one of two members of which either has a slot: which of them the array's members say.
    pub(super) contender: Option<Member>,
    /// A member that nobody names in this life.
    pub(super) withheld: Option<Member>,
}

impl Administrator {
    pub(super) fn new(random: Random) -> Self {
        Self {
            random,
            loose: Vec::new(),
            copies: Vec::new(),
            barred: BTreeSet::new(),
            sound: BTreeMap::new(),
            unsettled: MemberSet::EMPTY,
            settled: MemberSet::EMPTY,
            unborn: MemberSet::EMPTY,
            changes: Changes::default(),
            discarded: None,
            copies_members: false,
            copying: None,
            contender: None,
            withheld: None,
        }
    }

    /// Begins another life of the array.
    pub(super) fn begin(&mut self) {
        (self.unsettled, self.settled, self.unborn) = (MemberSet::EMPTY, MemberSet::EMPTY, MemberSet::EMPTY);
        self.sound.clear();
    }

    /// Ends it: what becomes of the members that are in no slot.
    pub(super) fn end(&mut self, ending: Ending) {
        let loose = std::mem::take(&mut self.loose).into_iter().map(Some).collect();
        let left = leave(&Members::of(loose), ending, &mut self.random);
        let members = left.iter().map(|(_, member)| member.clone());
        self.loose = members.filter(|member| member.superblock().is_ok()).collect();
        self.loose.extend(self.withheld.take());
    }

    /// Puts a member aside that is in no slot any more.
    pub(super) fn keep(&mut self, member: Option<Member>) {
        self.loose.extend(member.filter(|member| member.superblock().is_ok()));
    }
}

impl Client<'_> {
    /// Lets the administrator do something, now and then.
    pub(super) fn administer(&mut self) -> Result<(), Finding> {
        if self.copies_now() {
            self.copy();
            return Ok(());
        }
        let is_due = |administrator: &mut &mut Administrator| administrator.random.chance(1, 12);
        if !self.administrator.as_mut().is_some_and(is_due) || self.engine.is_frozen() {
            return Ok(());
        }
        match self.draw_below(16) {
            0..=2 if !self.is_changing => self.give_up(),
            3..=7 if !self.is_changing => return self.take_in(),
            8 if !self.is_changing => {
                let missing: Vec<MemberIndex> = self.engine.missing().minus(self.copied()).iter().collect();
                if let Some(&slot) = missing.first() {
                    self.take_out(slot);
                }
            }
            9 => self.pass(80)?,
            10 | 11 => self.start_scrub(),
            12 => self.engine.stop_scrub(),
            13 => {
                let limit = [None, None, Some(Bytes(64 << 10))][self.draw_below(3)];
                self.engine.set_rebuild_limit(limit);
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes members in until none is missing, and waits until they have everything; false when the power goes.
    pub(super) fn mend(&mut self) -> Result<bool, Finding> {
        self.engine.set_rebuild_limit(None);
        for _ in 0..MENDS_MAX {
            if self.engine.missing().is_empty() || self.engine.is_frozen() {
                break;
            }
            if !self.wait_for_missing()? {
                return Ok(false);
            }
            self.take_in()?;
            if !self.finish()? {
                return Ok(false);
            }
        }
        self.pass(TICKS_MAX)?;
        if !self.finish()? || !self.copy_at_last()? {
            return Ok(false);
        }
        let failed = self.failed();
        let is_sound = self.superblocks[0].integrity == Integrity::None && !self.engine.is_frozen();
        let has_redundancy = self.engine.geometry().tolerance() > 0;
        if is_sound && has_redundancy && !failed.is_empty() {
            return Err(Finding::NotRebuilt { members: failed });
        }
        Ok(true)
    }

    /// Whether members that have joined in this life have all of their content.
    pub(super) fn has_rebuilt(&self) -> bool {
        let settled = self.administrator.as_ref().map_or(MemberSet::EMPTY, |administrator| administrator.settled);
        !settled.minus(self.failed()).is_empty()
    }

    /// Waits for what members still have under way that were given up: until it ends they can't be exchanged. False
    /// when the power goes.
    fn wait_for_missing(&mut self) -> Result<bool, Finding> {
        while self.engine.missing().iter().any(|slot| self.disk.is_busy(slot)) {
            if !self.turn()? || !self.wait()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What a scrub has found where nothing has happened to the members.
    pub(super) fn check_scrub(&mut self) -> Result<(), Finding> {
        let Some(status) = self.engine.scrub().filter(|_| self.administrator.is_some()) else { return Ok(()) };
        let has_failed = self.has_struck || !self.disk.struck().is_empty();
        let is_over = !status.is_running && status.position.0 == self.engine.geometry().stripes().0;
        if !has_failed && self.superblocks[0].integrity == Integrity::None && status.mismatched > Sectors(0) {
            return Err(Finding::Mismatch { sectors: status.mismatched });
        }
        self.administrator.iter_mut().for_each(|administrator| administrator.changes.scrubs += u64::from(is_over));
        Ok(())
    }

    /// Notes that a member was given up.
    pub(super) fn failed_as_asked(&mut self, slot: MemberIndex) {
        self.is_changing = false;
        // Where the member was being copied, the other one may have the place by now: it is not the one that was given
        // up.
        let owner = self.engine.superblock().slots[slot.index()].member;
        let is_there = !self.engine.missing().contains(slot);
        if let Some(administrator) = &mut self.administrator {
            let copied = administrator.copying.as_ref().filter(|copying| is_there && copying.slot == slot);
            let given_up = copied.map_or(owner, |copying| copying.before);
            administrator.barred.insert(given_up);
            administrator.changes.fails += 1;
        }
    }

    /// Notes that a member has joined, in the place of another.
    pub(super) fn joined(&mut self, slot: MemberIndex, before: Uuid) {
        self.is_changing = false;
        let (own, is_there) = (self.superblocks[slot.index()].member, !self.engine.missing().contains(slot));
        let Some(administrator) = &mut self.administrator else { return };
        if own != before {
            administrator.barred.insert(before);
        }
        if is_there {
            administrator.settle(slot);
        }
    }

    /// Takes a member out again that could not join.
    pub(super) fn not_joined(&mut self, slot: MemberIndex) {
        if self.engine.missing().contains(slot) {
            self.take_out(slot);
        }
    }

    pub(super) fn draw_below(&mut self, bound: usize) -> usize {
        self.administrator.as_mut().map_or(0, |administrator| administrator.random.index(bound))
    }

    /// Lets time pass.
    pub(super) fn pass(&mut self, ticks: usize) -> Result<(), Finding> {
        for _ in 0..ticks {
            self.tick();
            if !self.turn()? || !self.wait()? {
                break;
            }
        }
        Ok(())
    }

    fn start_scrub(&mut self) {
        let stripes = usize::try_from(self.engine.geometry().stripes().0).expect("a small array");
        let from = StripeId(if self.draw_below(2) == 0 { 0 } else { self.draw_below(stripes) as u64 });
        let mode = [ScrubMode::Check, ScrubMode::Repair][self.draw_below(2)];
        // One is running, or the array is frozen.
        let _ = self.engine.start_scrub(mode, from);
    }

    fn give_up(&mut self) {
        let geometry = self.engine.geometry();
        let (count, missing) = (geometry.members(), self.engine.missing());
        let slot = MemberIndex(u8::try_from(self.draw_below(count)).expect("at most 64"));
        let rebuilding = self.engine.rebuilding().map_or(MemberSet::EMPTY, |progress| progress.members);
        let geometry = self.engine.geometry();
        let is_needed = Repair::new(geometry, missing.union(rebuilding).with(slot)).is_err();
        // Where a copy is about to take a place, it may be the copy that is given up.
        let is_copied = !self.copied().is_empty();
        let may_refuse = is_needed || is_copied || missing.contains(slot);
        let (uuid, epoch) = (self.superblocks[slot.index()].member, self.engine.superblock().epoch);
        self.is_changing = true;
        self.submit(Submitted::Fail { slot, may_refuse }, Command::Fail { member: slot });
        let is_failed = self.engine.missing().contains(slot) && !missing.contains(slot);
        let is_sound = !self.disk.struck().union(self.disk.lied()).contains(slot);
        let administrator = self.administrator.as_mut().expect("somebody has asked");
        if is_failed || is_copied {
            administrator.unsettled = administrator.unsettled.with(slot);
            administrator.settled = administrator.settled.without(slot);
            if is_sound && is_failed {
                administrator.sound.insert(uuid, epoch);
            }
        }
    }

    /// Takes a member out that the array does without; what nobody could name any more is lost.
    fn take_out(&mut self, slot: MemberIndex) -> bool {
        if self.disk.is_busy(slot) {
            return false;
        }
        let has_failed = self.disk.struck().contains(slot);
        self.has_struck |= has_failed;
        let administrator = self.administrator.as_mut().expect("somebody has asked");
        if has_failed {
            administrator.sound.remove(&self.superblocks[slot.index()].member);
        }
        administrator.unsettled = administrator.unsettled.with(slot);
        administrator.keep(self.disk.put(slot, None));
        true
    }

    /// Takes a member in where one is missing: a new one, or one that was there before.
    fn take_in(&mut self) -> Result<(), Finding> {
        // Where a member fails that is being copied, the other one takes its place by itself.
        let missing = self.engine.missing().minus(self.copied());
        let missing: Vec<MemberIndex> = missing.iter().collect();
        if missing.is_empty() {
            return Ok(());
        }
        let slot = missing[self.draw_below(missing.len())];
        if self.engine.lingering(slot) > 0 && self.draw_below(3) == 0 {
            self.take_back_lingering(slot);
            return Ok(());
        }
        if !self.take_out(slot) {
            return Ok(());
        }
        let truth = self.engine.superblock().clone();
        let administrator = self.administrator.as_mut().expect("somebody has asked");
        let returning = administrator.find(slot).map(|member| administrator.returning(member, &truth));
        let returning = returning.transpose()?.flatten();
        let (member, mut joining) = returning.unwrap_or_else(|| {
            administrator.changes.joins += 1;
            administrator.new_member(slot, &truth)
        });
        joining.generation = uuid(&mut administrator.random);
        let before = truth.slots[slot.index()].member;
        self.disk.put(slot, Some(member));
        self.superblocks[slot.index()] = joining.superblock.clone();
        self.is_changing = true;
        let returns = joining.superblock.member == before;
        let lingers = if returns && self.engine.lingering(slot) > 0 { Lingers::NoMore } else { Lingers::No };
        self.submit(Submitted::Join { slot, before, lingers }, Command::Join(Box::new(joining)));
        Ok(())
    }

    /// Asks for a member to be taken back on which operations are still under way: the array has to refuse that.
    fn take_back_lingering(&mut self, slot: MemberIndex) {
        let members = self.disk.members();
        let Some(Ok(own)) = members.get(slot).map(Member::superblock) else { return };
        if self.disk.is_busy(slot) {
            return;
        }
        let joining = returning(Path::new("returning"), &own, &self.engine.superblock());
        if let Ok(joining) = joining {
            self.is_changing = true;
            let submitted = Submitted::Join { slot, before: own.member, lingers: Lingers::Yes };
            self.submit(submitted, Command::Join(Box::new(joining)));
        }
    }
}

impl Administrator {
    /// A member that was in a slot, or a copy of it from an earlier life, if it is to come back.
    fn find(&mut self, slot: MemberIndex) -> Option<Member> {
        let is_its = |member: &Member| member.superblock().is_ok_and(|own| own.slot == slot);
        let copies: Vec<&Member> = self.copies.iter().filter(|copy| is_its(copy)).collect();
        if !copies.is_empty() && self.random.chance(1, 4) {
            let copy = (*self.random.pick(&copies)).clone();
            copy.superblock().iter().for_each(|own| self.forget(own.member));
            return Some(copy);
        }
        let known: Vec<usize> = (0..self.loose.len()).filter(|&at| is_its(&self.loose[at])).collect();
        if known.is_empty() || self.random.chance(1, 3) {
            return None;
        }
        let at = *self.random.pick(&known);
        Some(self.loose.swap_remove(at))
    }

    /// Forgets a member in whose place there is a copy from an earlier life.
    fn forget(&mut self, uuid: Uuid) {
        self.loose.retain(|member| member.superblock().is_ok_and(|own| own.member != uuid));
        self.sound.remove(&uuid);
        self.discarded = Some(uuid);
    }

    /// A member that comes back; none where that is rightly refused.
    fn returning(&mut self, mut member: Member, truth: &Superblock) -> Result<Option<(Member, Joining)>, Finding> {
        let own = member.superblock().expect("only such are kept");
        let slot = own.slot;
        let is_sound = self.sound.get(&own.member).is_some_and(|given_up| own.epoch >= *given_up);
        let joining = match returning(Path::new("returning"), &own, truth) {
            Ok(joining) => joining,
            Err(error) if is_sound && truth.slots[slot.index()].member == own.member => {
                return Err(Finding::NotJoined { slot, error: error.to_string() });
            }
            Err(_) => {
                self.loose.extend(Some(member).filter(|_| self.discarded != Some(own.member)));
                return Ok(None);
            }
        };
        if truth.integrity != Integrity::None {
            let Area { offset, size } = own.areas.sums;
            member.write(offset, Payload::Zeros(size));
            member.flush();
        }
        self.barred.remove(&own.member);
        self.sound.remove(&own.member);
        self.changes.returns += 1;
        self.changes.shorts += u64::from(!joining.is_whole);
        Ok(Some((member, joining)))
    }

    /// A new member, whose data is anything.
    pub(super) fn new_member(&mut self, slot: MemberIndex, truth: &Superblock) -> (Member, Joining) {
        let mut areas = truth.areas;
        if truth.integrity == Integrity::None && self.random.chance(1, 3) {
            // It need not be as large as the others.
            let size = Bytes(areas.member_size.0 + (self.random.below(4) << 20));
            let other = Areas::new(size, areas.log.size, truth.integrity);
            areas = other.filter(|other| other.data_sectors() >= truth.spec.member_size).unwrap_or(areas);
        }
        let mut member = Member::zeroed(areas.member_size);
        let filling = u8::try_from(1 + self.random.below(255)).expect("a byte");
        let len = usize::try_from(truth.spec.member_size.bytes().0).expect("a small member");
        member.write(areas.data.offset, Payload::Bytes(vec![filling; len].into()));
        member.flush();
        let new = uuid(&mut self.random);
        let mut superblock = Superblock { member: new, slot, areas, revision: Revision(0), ..truth.clone() };
        superblock.slots[slot.index()].member = new;
        (member, Joining { superblock, is_whole: true, generation: new })
    }
}
