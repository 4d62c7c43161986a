//! The members that an array's administrator has at hand, and what is known of them.
//!
//! What the administrator was told is held against what is found later: a member that the array has on record as given
//! up or replaced is never taken again by itself, and one that has joined is there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use uraid_io::array::returning;
use uraid_io::engine::Joining;
use uraid_io::format::Epoch;
use uraid_io::format::badblocks::BadBlocks;
use uraid_io::format::superblock::{Area, Areas, Integrity, Revision, Superblock};
use uraid_layout::{Bytes, MemberIndex, MemberSet};
use uuid::Uuid;

use super::finding::Finding;
use super::report::Changes;
use super::scenario::uuid;
use crate::disk::{Ending, leave};
use crate::member::{Member, Payload};
use crate::members::Members;
use uraid_random::Random;

/// See the module.
#[derive(Debug)]
pub(super) struct Roster {
    /// All that an administrator does is drawn from it.
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
    /// Blocks became unreadable between its lives.
    pub(super) is_spoilt: bool,
    /// What was done so far.
    pub(super) changes: Changes,
    /// A member that is gone: there is only a copy from an earlier life.
    discarded: Option<Uuid>,
    /// The other one of two members of which either has a slot: which of them the array's members say.
    pub(super) contender: Option<Member>,
    /// A member that nobody names in this life.
    pub(super) withheld: Option<Member>,
}

impl Roster {
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
            is_spoilt: false,
            changes: Changes::default(),
            discarded: None,
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

    /// Takes note that the array has changed while it was stopped, and does without `barred`. Of members in no slot
    /// only those are kept that fit it.
    pub(super) fn altered(&mut self, barred: impl IntoIterator<Item = Uuid>, fits: impl Fn(&Member) -> bool) {
        self.barred.extend(barred);
        // Who was given up before may rightly be refused.
        self.sound.clear();
        self.loose.retain(&fits);
        self.withheld.take_if(|member| !fits(member));
    }

    /// Takes note that a slot's member has joined in this life.
    pub(super) fn settle(&mut self, slot: MemberIndex) {
        self.settled = self.settled.with(slot);
        self.unsettled = self.unsettled.without(slot);
        self.unborn = self.unborn.without(slot);
    }

    /// Takes note that nobody knows whom the array has on record in a slot.
    pub(super) fn unsettle(&mut self, slot: MemberIndex) {
        self.unsettled = self.unsettled.with(slot);
    }

    /// Takes note that a member may have been given up, at an epoch; `is_sound`: it was, and has failed nothing.
    pub(super) fn given_up(&mut self, slot: MemberIndex, member: Uuid, epoch: Epoch, is_sound: bool) {
        self.unsettle(slot);
        self.settled = self.settled.without(slot);
        if is_sound {
            self.sound.insert(member, epoch);
        }
    }

    /// Puts a member aside that was taken out of a slot, whose UUID is `uuid` for all that is known.
    pub(super) fn taken_out(&mut self, slot: MemberIndex, uuid: Uuid, member: Option<Member>, has_failed: bool) {
        if has_failed {
            self.sound.remove(&uuid);
        }
        self.unsettle(slot);
        self.keep(member);
    }

    /// A member for a slot and how it joins: one that was there before, if it is to come back and is not rightly
    /// refused, or else a new one.
    ///
    /// # Errors
    /// When one that must be able to return is refused.
    pub(super) fn member_for(&mut self, slot: MemberIndex, truth: &Superblock) -> Result<(Member, Joining), Finding> {
        let returning = self.find(slot).map(|member| self.returning(member, truth)).transpose()?.flatten();
        let (member, joining) = returning.unwrap_or_else(|| {
            self.changes.joins += 1;
            self.new_member(slot, truth)
        });
        Ok((member, self.with_generation(joining)))
    }

    /// A new member for a slot, and how it joins.
    pub(super) fn new_member_for(&mut self, slot: MemberIndex, truth: &Superblock) -> (Member, Joining) {
        let (member, joining) = self.new_member(slot, truth);
        (member, self.with_generation(joining))
    }

    fn with_generation(&mut self, joining: Joining) -> Joining {
        Joining { generation: uuid(&mut self.random), ..joining }
    }

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
        let joining = match returning(Path::new("returning"), &own, member.bad_blocks(&own), truth) {
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
    fn new_member(&mut self, slot: MemberIndex, truth: &Superblock) -> (Member, Joining) {
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
        (member, Joining { superblock, is_whole: true, generation: new, bad_blocks: BadBlocks::default() })
    }
}
