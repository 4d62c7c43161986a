//! Members that an administrator gives up, and members that join, while clients go on.
//!
//! A join, as every change of who is there, changes what every plan relies on: who is written, where checksums are,
//! which run of the log counts. So it waits until nothing is under way, and holds back what comes meanwhile; that is as
//! long as what the members are doing takes, a flush and a round of superblock writes. With a log a new run of it
//! begins then: what is in the old one is in place and durable, and nothing that the member may hold of it, or lacks,
//! matters.

use uraid_layout::repair::Repair;
use uraid_layout::{Lba, MemberIndex, MemberSet, StripeId};
use uuid::Uuid;

use super::flush::Waiter;
use super::job::{Job, JobId, Stage, Work};
use super::log::Log;
use super::run::Step;
use super::{Command, Engine, EngineError};
use crate::disk::Disk;
use crate::format::superblock::{Consistency, Integrity, Superblock};

/// A member that is to join: see [`Command::Join`].
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
}

/// A change of who is there, and what it holds back.
#[derive(Debug)]
pub(super) struct Barrier<T> {
    id: JobId,
    change: Box<Change>,
    held: Vec<(T, Command)>,
    /// The change waits until nothing else is under way.
    is_waiting: bool,
}

impl<T> Barrier<T> {
    /// How many commands it holds back.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Its job.
    pub(super) fn id(&self) -> JobId {
        self.id
    }

    /// Whether it is about the member at the seat.
    pub(super) fn needs_seat(&self) -> bool {
        !matches!(*self.change, Change::Join(_))
    }

    /// Whether a copy is taking a member's place.
    pub(super) fn is_switch(&self) -> bool {
        matches!(*self.change, Change::Switch { .. })
    }

    /// The slot whose member has failed while it was being copied, and in which the other one joins.
    pub(super) fn promotes(&self) -> Option<MemberIndex> {
        matches!(*self.change, Change::Promote(_)).then(|| self.change.slot())
    }
}

impl Change {
    fn slot(&self) -> MemberIndex {
        match self {
            Self::Join(joining) | Self::Promote(joining) | Self::Replace(joining) => joining.superblock.slot,
            Self::Switch { slot } => *slot,
        }
    }
}

impl<D: Disk, T> Engine<D, T> {
    /// Whether a member can be given up.
    pub(super) fn check_fail(&self, member: MemberIndex) -> Result<(), EngineError> {
        if member.index() >= self.geometry.members() || self.record.missing().contains(member) {
            return Err(EngineError::NotThere { member });
        }
        let lost = self.record.missing().union(self.unready()).with(member);
        if self.geometry.tolerance() == 0 || Repair::new(&self.geometry, lost).is_err() {
            return Err(EngineError::Needed { member });
        }
        self.check_changes()
    }

    /// Whether a member can join.
    pub(super) fn check_join(&self, joining: &Joining) -> Result<(), EngineError> {
        let slot = joining.superblock.slot;
        if self.replacing.as_ref().is_some_and(|replacing| replacing.slot == slot) {
            return Err(EngineError::Replacing);
        }
        if !self.record.missing().contains(slot) {
            return Err(EngineError::NotMissing { member: slot });
        }
        // What is still under way on the one that was given up could land after it was rebuilt.
        let returns = self.record.any().slots[slot.index()].member == joining.superblock.member;
        let lingers = self.disk.abandoned(slot) > 0 && !planted!(LingeringReturns);
        if self.disk.is_awaited(slot) || returns && lingers {
            return Err(EngineError::Lingering { member: slot });
        }
        self.check_suits(joining)?;
        self.check_changes()
    }

    /// Whether a member is as the array needs one in its slot.
    pub(super) fn check_suits(&self, joining: &Joining) -> Result<(), EngineError> {
        let Superblock { member, slot, areas, .. } = &joining.superblock;
        let truth = self.record.any();
        if truth.slots.iter().enumerate().any(|(index, other)| index != slot.index() && other.member == *member) {
            return Err(EngineError::Unsuited { member: *slot, field: "UUID" });
        }
        let mut own = Superblock { member: *member, slot: *slot, areas: *areas, ..truth.clone() };
        own.slots[slot.index()].member = *member;
        own.check().map_err(|_| EngineError::Unsuited { member: *slot, field: "place for what the array has" })?;
        if truth.consistency == Consistency::Log && areas.log.size < Log::size_min(&self.geometry) {
            return Err(EngineError::Unsuited { member: *slot, field: "log" });
        }
        if truth.integrity != Integrity::None && self.sums.is_none() {
            return Err(EngineError::Unsuited { member: *slot, field: "checksums" });
        }
        Ok(())
    }

    /// Whether it can be changed who is there.
    ///
    /// # Errors
    /// [`EngineError::Frozen`]; [`EngineError::ReadOnly`].
    pub fn check_changes(&self) -> Result<(), EngineError> {
        if self.is_frozen {
            return Err(EngineError::Frozen);
        }
        if self.is_read_only {
            return Err(EngineError::ReadOnly);
        }
        Ok(())
    }

    /// Gives a member up.
    pub(super) fn give_up(&mut self, member: MemberIndex) -> Step {
        match self.fail_members(MemberSet::EMPTY.with(member)) {
            Ok(()) => Step::To(Stage::Settle),
            Err(error) => Step::Fail(error),
        }
    }

    /// Begins a change of who is there: from now on commands wait.
    pub(super) fn begin_change(&mut self, token: Option<T>, change: Change) {
        let job = Job::new(token, Work::Join { member: change.slot() }, Lba(0)..Lba(0));
        let id = self.jobs.insert(Job { stage: Stage::Quiesce, ..job });
        self.barrier = Some(Barrier { id, change: Box::new(change), held: Vec::new(), is_waiting: false });
        self.forget_heals();
        self.ready.push_back(id);
    }

    /// Holds a command back; gives it back when nothing has to wait.
    pub(super) fn hold_back(&mut self, token: T, command: Command) -> Option<(T, Command)> {
        match &mut self.barrier {
            Some(barrier) => {
                barrier.held.push((token, command));
                None
            }
            None => Some((token, command)),
        }
    }

    /// Lets a join go on when nothing that reads or writes is under way.
    pub(super) fn note_quiet(&mut self) {
        if let Some(barrier) = self.barrier.as_mut().filter(|barrier| barrier.is_waiting)
            && self.jobs.iter().all(|job| !job.work.uses_stripes())
        {
            barrier.is_waiting = false;
            self.ready.push_back(barrier.id);
        }
    }

    /// Waits until nothing is under way, then has everything flushed.
    pub(super) fn quiesce(&mut self, id: JobId) -> Step {
        if self.jobs.iter().any(|job| job.work.uses_stripes()) && !planted!(BarrierSkipped) {
            self.barrier.iter_mut().for_each(|barrier| barrier.is_waiting = true);
            return Step::Wait(Stage::Quiesce);
        }
        if self.awaits_rest(id) {
            return Step::Wait(Stage::Quiesce);
        }
        if self.flusher.ask(Waiter::Job(id), self.geometry.all_members()) {
            self.run_flusher();
            return Step::Wait(Stage::Join);
        }
        Step::To(Stage::Join)
    }

    /// Does what nothing may be under way for.
    pub(super) fn join(&mut self, id: JobId) -> Step {
        if self.is_frozen {
            return Step::Fail(EngineError::Frozen);
        }
        let is_busy = self.flusher.is_needed() || self.jobs.iter().any(|job| job.work.uses_stripes());
        if is_busy && !planted!(BarrierSkipped) {
            return Step::To(Stage::Quiesce);
        }
        if self.await_intent(id) || self.log.as_mut().is_some_and(|log| log.await_commit(id)) {
            return Step::Wait(Stage::Join);
        }
        let Some(Barrier { change, .. }) = &self.barrier else { unreachable!("a join has a barrier") };
        match &**change {
            Change::Join(joining) => self.take_in(joining.clone()),
            Change::Promote(joining) => self.promote(id, joining.clone()),
            Change::Replace(joining) => {
                self.begin_replacing(joining.clone());
                Step::To(Stage::Done)
            }
            Change::Switch { .. } => self.switch(id),
        }
    }

    /// Takes a member in.
    pub(super) fn take_in(&mut self, Joining { superblock, is_whole, generation }: Joining) -> Step {
        let slot = superblock.slot;
        if self.unready().is_empty() && !planted!(CompleteForgotten) {
            // What was being rebuilt has everything, and was flushed with all else: that goes on record with the one
            // that joins.
            self.record.complete();
        }
        let lost = self.record.lost().with(slot);
        let Ok(repair) = Repair::new(&self.geometry, self.record.missing().without(slot)) else {
            return Step::Fail(EngineError::Frozen);
        };
        let Ok(detour) = Repair::new(&self.geometry, lost) else { return Step::Fail(EngineError::Frozen) };
        tracing::info!(member = %slot, uuid = %superblock.member, is_whole, "a member joins, and is rebuilt");
        self.disk.forget(slot);
        self.errors.forget(slot);
        self.troubled.forget(slot);
        if self.record.any().slots[slot.index()].member != superblock.member {
            self.counters.forget(slot);
        }
        self.record.join(&superblock, is_whole || self.intent.is_none(), generation);
        (self.repair, self.repair_lost) = (repair, Some(detour));
        self.cannot_zero = self.cannot_zero.without(slot);
        self.renew_member(slot);
        self.rebuild.restart(&self.record, self.intent.as_ref().map(super::intent::Intent::wanted));
        Step::To(Stage::Settle)
    }

    /// What rests on who is in a slot.
    pub(super) fn renew_member(&mut self, slot: MemberIndex) {
        if self.log.is_some() {
            let log = Log::new(self.record.superblocks(), &self.geometry);
            let log = log.expect("every log has room: that was checked when it was asked for");
            self.cache.iter_mut().for_each(|cache| cache.limit_runs(log.stripes_max()));
            self.log = Some(log);
        }
        if let (Some(sums), Some(own)) = (&mut self.sums, self.record.superblocks().nth(slot.index()).flatten()) {
            sums.replace(own);
        }
        self.rewrite_intent();
    }

    /// Ends a join: what was held back goes on.
    pub(super) fn end_join(&mut self) {
        let Some(barrier) = self.barrier.take() else { return };
        for (token, command) in barrier.held {
            self.submit(token, command);
        }
    }

    /// Makes the plans' base after who is there has changed: how to do without the missing members, and without those
    /// that are rebuilt, too.
    ///
    /// # Errors
    /// When the level does not survive it.
    pub(super) fn repairs(&self, missing: MemberSet) -> Result<(Repair, Option<Repair>), EngineError> {
        let rebuilding = self.unready().minus(missing);
        let too_many = |source| EngineError::TooManyMissing { missing, source };
        let repair = Repair::new(&self.geometry, missing).map_err(too_many)?;
        let lost = (!rebuilding.is_empty()).then(|| Repair::new(&self.geometry, missing.union(rebuilding)));
        Ok((repair, lost.transpose().map_err(too_many)?))
    }

    /// Whether every member that is there can be read in the stripes up to `last`.
    pub(super) fn is_ready(&self, last: StripeId) -> bool {
        last < self.rebuild.done()
    }
}
