//! The administrator of a running array, who gives members up, takes them out and in, and has them copied and checked,
//! while clients go on.
//!
//! There is one change at a time, and anything may cut it off. The administrator acts between two turns of the engine
//! and waits for nothing: whoever drives the engine hands it the [answers](Answer).

use std::path::Path;

use uraid_io::array::returning;
use uraid_io::engine::{Command, ScrubMode};
use uraid_io::format::superblock::Integrity;
use uraid_layout::{Bytes, MemberIndex, MemberSet, Sectors, StripeId};
use uuid::Uuid;

use super::copying::Copier;
use super::finding::Finding;
use super::roster::Roster;
use super::session::{Answer, Change, Lingers, Session, Submitted};
use super::shapes::survive;
use crate::disk::Ending;
use crate::member::Member;
use crate::members::Members;
use uraid_random::Random;

/// Ticks that pass when the administrator waits for a while.
const WAIT_TICKS: usize = 80;

/// See the module.
#[derive(Debug)]
pub(super) struct Administrator {
    pub(super) roster: Roster,
    copier: Copier,
    /// Whether members are copied to others that take their places.
    copies_members: bool,
    /// A member is being given up, taken in or copied.
    is_changing: bool,
}

impl Administrator {
    pub(super) fn new(random: Random) -> Self {
        Self { roster: Roster::new(random), copier: Copier::default(), copies_members: false, is_changing: false }
    }

    /// Lets the administrator copy members, too.
    pub(super) fn copy_members(&mut self) {
        self.copies_members = true;
    }

    /// Begins another life of the array.
    pub(super) fn begin(&mut self) {
        self.roster.begin();
        self.is_changing = false;
    }

    /// Ends it: what becomes of the members that are in no slot. `others` are those that were in the seats beside
    /// `left`, and `struck` failed. Gives the slots whose members have no superblock yet that says whose they are, and
    /// rightly so.
    pub(super) fn end(&mut self, ending: Ending, left: &Members, others: Vec<Member>, struck: MemberSet) -> MemberSet {
        self.roster.end(ending);
        self.copier.end(&mut self.roster, left, others, struck)
    }

    /// Does something, now and then: how many ticks are to pass after it.
    ///
    /// # Errors
    /// When a member can't join that must be able to.
    pub(super) fn act(&mut self, session: &mut Session<'_>) -> Result<usize, Finding> {
        if session.engine.reshape().is_some() {
            // Nobody joins, is copied or checked meanwhile.
            if !self.is_changing && !session.engine.is_frozen() && self.roster.random.chance(1, 48) {
                self.give_up(session);
            }
            return Ok(0);
        }
        if self.copies_members && self.roster.random.chance(1, 24) && !session.engine.is_frozen() {
            self.copy(session);
            return Ok(0);
        }
        if !self.roster.random.chance(1, 12) || session.engine.is_frozen() {
            return Ok(0);
        }
        match self.roster.random.index(16) {
            0..=2 if !self.is_changing => self.give_up(session),
            3..=7 if !self.is_changing => self.take_in(session)?,
            8 if !self.is_changing => {
                let missing: Vec<MemberIndex> = session.engine.missing().minus(self.copier.copied()).iter().collect();
                if let Some(&slot) = missing.first() {
                    self.take_out(session, slot);
                }
            }
            9 => return Ok(WAIT_TICKS),
            10 | 11 => self.start_scrub(session),
            12 => session.engine.stop_scrub(),
            13 => {
                let limit = [None, None, Some(Bytes(64 << 10))][self.roster.random.index(3)];
                session.engine.set_rebuild_limit(limit);
            }
            _ => {}
        }
        Ok(0)
    }

    /// Takes note of what a turn of the engine has changed, before its replies are taken in.
    pub(super) fn turned(&mut self, session: &mut Session<'_>) {
        self.copier.turned(session, &mut self.roster);
    }

    /// Takes note of how a change ended.
    pub(super) fn answered(&mut self, session: &mut Session<'_>, Answer { change, is_done }: Answer) {
        self.is_changing = false;
        match change {
            Change::Fail { slot, .. } if is_done => self.has_given_up(session, slot),
            Change::Join { slot, before, .. } if is_done => self.has_joined(session, slot, before),
            Change::Join { slot, .. } if session.engine.missing().contains(slot) => {
                self.take_out(session, slot);
            }
            Change::Fail { .. } | Change::Copy { .. } | Change::Join { .. } => {}
        }
    }

    /// Whether members that have joined in this life have all of their content.
    pub(super) fn has_rebuilt(&self, session: &Session<'_>) -> bool {
        !self.roster.settled.minus(session.failed()).is_empty()
    }

    /// What a scrub has found where nothing has happened to the members.
    ///
    /// # Errors
    /// When it has found anything.
    pub(super) fn check_scrub(&mut self, session: &Session<'_>) -> Result<(), Finding> {
        let Some(status) = session.engine.scrub() else { return Ok(()) };
        let is_spoilt = self.roster.is_spoilt;
        let has_failed = session.was_struck || !session.disk.struck().is_empty() || is_spoilt;
        let is_over = !status.is_running && status.position.0 == session.engine.geometry().stripes().0;
        if !has_failed && session.superblocks[0].integrity == Integrity::None && status.mismatched > Sectors(0) {
            return Err(Finding::Mismatch { sectors: status.mismatched });
        }
        self.roster.changes.scrubs += u64::from(is_over);
        Ok(())
    }

    /// Takes a member in where one is missing: a new one, or one that was there before.
    ///
    /// # Errors
    /// When a member can't join that must be able to.
    pub(super) fn take_in(&mut self, session: &mut Session<'_>) -> Result<(), Finding> {
        // Where a member fails that is being copied, the other one takes its place by itself.
        let missing = session.engine.missing().minus(self.copier.copied());
        let missing: Vec<MemberIndex> = missing.iter().collect();
        if missing.is_empty() {
            return Ok(());
        }
        let slot = missing[self.roster.random.index(missing.len())];
        if session.engine.lingering(slot) > 0 && self.roster.random.index(3) == 0 {
            self.take_back_lingering(session, slot);
            return Ok(());
        }
        if !self.take_out(session, slot) {
            return Ok(());
        }
        let truth = session.engine.superblock().clone();
        let (member, joining) = self.roster.member_for(slot, &truth)?;
        let before = truth.slots[slot.index()].member;
        session.disk.put(slot, Some(member));
        session.superblocks[slot.index()] = joining.superblock.clone();
        let returns = joining.superblock.member == before;
        let lingers = if returns && session.engine.lingering(slot) > 0 { Lingers::NoMore } else { Lingers::No };
        self.ask(session, Change::Join { slot, before, lingers }, Command::Join(Box::new(joining)));
        Ok(())
    }

    /// Has a member copied when nothing fails any more, if members are copied: which one, and whose the slot is then.
    pub(super) fn copy_at_last(&mut self, session: &mut Session<'_>) -> Option<(MemberIndex, Uuid)> {
        let is_sound = session.superblocks[0].integrity == Integrity::None && session.failed().is_empty();
        let is_idle = !self.is_changing && self.copier.copied().is_empty();
        if !self.copies_members || !is_sound || !is_idle || session.engine.is_frozen() {
            return None;
        }
        let slot = draw_slot(&mut self.roster, session);
        let before = session.engine.superblock().slots[slot.index()].member;
        self.is_changing |= self.copier.begin(session, &mut self.roster, slot);
        Some((slot, before))
    }

    /// Whether a member that was to be copied no longer has the slot, and the copy is over.
    pub(super) fn has_copied(&self, session: &Session<'_>, slot: MemberIndex, before: Uuid) -> bool {
        session.engine.superblock().slots[slot.index()].member != before && self.copier.copied().is_empty()
    }

    fn ask(&mut self, session: &mut Session<'_>, change: Change, command: Command) {
        self.is_changing = true;
        session.submit(Submitted::Change(change), command);
    }

    /// Has a member copied, where that can be, or gives the copy up.
    fn copy(&mut self, session: &mut Session<'_>) {
        if !self.copier.copied().is_empty() {
            if self.roster.random.index(8) == 0 {
                // It may be taking the place just now.
                let _ = session.engine.stop_replacing();
            }
            return;
        }
        let slot = draw_slot(&mut self.roster, session);
        if !self.is_changing {
            self.is_changing = self.copier.begin(session, &mut self.roster, slot);
        }
    }

    fn start_scrub(&mut self, session: &mut Session<'_>) {
        let random = &mut self.roster.random;
        let stripes = usize::try_from(session.engine.geometry().stripes().0).expect("a small array");
        let from = StripeId(if random.index(2) == 0 { 0 } else { random.index(stripes) as u64 });
        let mode = [ScrubMode::Check, ScrubMode::Repair][random.index(2)];
        // One is running, or the array is frozen.
        let _ = session.engine.start_scrub(mode, from);
    }

    fn give_up(&mut self, session: &mut Session<'_>) {
        let missing = session.engine.missing();
        let slot = draw_slot(&mut self.roster, session);
        let rebuilding = session.engine.rebuilding().map_or(MemberSet::EMPTY, |progress| progress.members);
        let is_needed = !survive(&session.shapes(), missing.union(rebuilding).with(slot));
        // Where a copy is about to take a place, it may be the copy that is given up.
        let is_copied = !self.copier.copied().is_empty();
        let may_refuse = is_needed || is_copied || missing.contains(slot);
        let (uuid, epoch) = (session.superblocks[slot.index()].member, session.engine.superblock().epoch);
        self.ask(session, Change::Fail { slot, may_refuse }, Command::Fail { member: slot });
        let is_failed = session.engine.missing().contains(slot) && !missing.contains(slot);
        let is_sound = !session.disk.struck().union(session.disk.lied()).contains(slot);
        // It may wait for a window of a reshape that moves.
        if is_failed || is_copied || session.engine.reshape().is_some() {
            self.roster.given_up(slot, uuid, epoch, is_sound && is_failed);
        }
    }

    /// Notes that a member was given up.
    fn has_given_up(&mut self, session: &Session<'_>, slot: MemberIndex) {
        // Where the member was being copied, the other one may have the place by now: it is not the one that was given
        // up.
        let is_there = !session.engine.missing().contains(slot);
        let copied = self.copier.before(slot).filter(|_| is_there);
        let given_up = copied.unwrap_or(session.engine.superblock().slots[slot.index()].member);
        self.roster.barred.insert(given_up);
        self.roster.changes.fails += 1;
    }

    /// Notes that a member has joined, in the place of another.
    fn has_joined(&mut self, session: &Session<'_>, slot: MemberIndex, before: Uuid) {
        if session.superblocks[slot.index()].member != before {
            self.roster.barred.insert(before);
        }
        if !session.engine.missing().contains(slot) {
            self.roster.settle(slot);
        }
    }

    /// Takes a member out that the array does without; what nobody could name any more is lost.
    fn take_out(&mut self, session: &mut Session<'_>, slot: MemberIndex) -> bool {
        if session.disk.is_busy(slot) {
            return false;
        }
        let has_failed = session.disk.struck().contains(slot);
        let uuid = session.superblocks[slot.index()].member;
        self.roster.taken_out(slot, uuid, session.take_out(slot), has_failed);
        true
    }

    /// Asks for a member to be taken back on which operations are still under way: the array has to refuse that.
    fn take_back_lingering(&mut self, session: &mut Session<'_>, slot: MemberIndex) {
        let members = session.disk.members();
        let Some(member) = members.get(slot) else { return };
        let Ok(own) = member.superblock() else { return };
        if session.disk.is_busy(slot) {
            return;
        }
        let joining = returning(Path::new("returning"), &own, member.bad_blocks(&own), &session.engine.superblock());
        if let Ok(joining) = joining {
            let change = Change::Join { slot, before: own.member, lingers: Lingers::Yes };
            self.ask(session, change, Command::Join(Box::new(joining)));
        }
    }
}

/// Any of the array's slots.
fn draw_slot(roster: &mut Roster, session: &Session<'_>) -> MemberIndex {
    let count = session.engine.slots().len();
    MemberIndex(u8::try_from(roster.random.index(count)).expect("at most 64"))
}
