//! Flushes, shared: whoever asks while one is under way waits for the next, together with everybody else who does; or
//! for the present one, where nothing was written since it began.

use std::collections::VecDeque;

use uraid_layout::{Bytes, MemberIndex, MemberSet};

use super::job::{JobId, Stage, Work};
use super::run::{Caller, Step};
use super::{Engine, EngineError};
use crate::disk::{Disk, OpKind, Segments};

/// Who waits for a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiter {
    Job(JobId),
    /// The log's commit.
    Log,
}

/// Who waits for which flush.
#[derive(Debug, Default)]
pub(super) struct Flusher {
    /// Members written since their last flush began.
    unflushed: MemberSet,
    /// Of whom somebody wants a flush.
    wanted: MemberSet,
    /// Whom the present round flushes.
    round: MemberSet,
    /// Operations of the present round still in flight; 0: there is no round.
    pending: u32,
    present: VecDeque<Waiter>,
    next: VecDeque<Waiter>,
    /// Rounds after which nothing was left to flush: that have begun, and that are over.
    begun: u64,
    ended: u64,
    /// Members that failed a flush and which the array can't do without: no later flush proves anything about them.
    failed: MemberSet,
}

impl Flusher {
    /// Notes that a write to a member has completed.
    pub(super) fn wrote(&mut self, member: MemberIndex) {
        self.unflushed = self.unflushed.with(member);
    }

    /// Lets somebody wait for a flush of `members` that begins now or later. False: there is nothing to flush and
    /// nothing to wait for.
    pub(super) fn ask(&mut self, waiter: Waiter, members: MemberSet) -> bool {
        let meets = |other: MemberSet| other.minus(members) != other;
        if planted!(FlushJoinsEarlier) && self.pending > 0 {
            self.present.push_back(waiter);
            return true;
        }
        if meets(self.unflushed) {
            self.wanted = self.wanted.union(members);
            self.next.push_back(waiter);
            return true;
        }
        let is_under_way = self.pending > 0 && meets(self.round);
        if is_under_way {
            self.present.push_back(waiter);
        }
        is_under_way
    }

    /// Begins a round if one is asked for and none is under way: the members to flush. The caller issues one flush for
    /// each, then wakes [`Flusher::next_finished`]: all that was written may have been on members that are gone.
    pub(super) fn begin(&mut self, present_members: MemberSet) -> MemberSet {
        if self.pending > 0 || self.next.is_empty() {
            return MemberSet::EMPTY;
        }
        std::mem::swap(&mut self.present, &mut self.next);
        self.unflushed = self.unflushed.minus(MemberSet::all(64).minus(present_members));
        let rest = self.unflushed.minus(std::mem::take(&mut self.wanted));
        self.round = self.unflushed.minus(rest);
        self.unflushed = rest;
        if planted!(FlushOneMember) {
            self.round = self.round.iter().take(1).collect();
        }
        self.pending = u32::try_from(self.round.len()).expect("at most 64 members");
        self.begun += u64::from(rest.is_empty());
        if self.pending == 0 {
            self.ended = self.begun;
        }
        self.round
    }

    /// Notes the end of one member's flush; the members of the round when it was the round's last.
    pub(super) fn ended(&mut self) -> Option<MemberSet> {
        assert!(self.pending > 0, "a flush that ends was begun");
        self.pending -= 1;
        if self.pending == 0 {
            self.ended = self.begun;
        }
        (self.pending == 0).then_some(self.round)
    }

    /// The number of the round that covers all that has been written so far: it may be over, under way or yet to come.
    pub(super) fn covering(&self) -> u64 {
        // Where nothing is left to flush, the last round that began is one after which nothing was.
        self.begun + u64::from(!self.unflushed.is_empty() && !planted!(BitFlushCoversLater))
    }

    /// The number of the last such round that is over. Members that failed in it count for nothing any more.
    pub(super) fn flushed(&self) -> u64 {
        self.ended
    }

    /// Whether there is anything to flush.
    pub(super) fn is_needed(&self) -> bool {
        self.pending > 0 || !self.unflushed.is_empty()
    }

    /// Notes that a member's flush failed.
    pub(super) fn failed(&mut self, member: MemberIndex) {
        self.failed = self.failed.with(member);
    }

    /// The members that failed a flush and which the array can't do without.
    pub(super) fn failures(&self) -> MemberSet {
        self.failed
    }

    /// One of those whose round is over.
    pub(super) fn next_finished(&mut self) -> Option<Waiter> {
        if self.pending == 0 { self.present.pop_front() } else { None }
    }
}

impl<D: Disk, T> Engine<D, T> {
    pub(super) fn flush(&mut self, id: JobId) -> Step {
        let (failed, counts_logged) = (self.flusher.failures(), self.counts_logged());
        let job = self.jobs.job(id);
        job.failed = failed;
        if let (Work::Close, Some(sums)) = (job.work, &mut self.sums) {
            sums.try_again();
        }
        // What was replied to is durable in the log; clearing bits and marking the members clean need what is in place
        // to be so, too.
        let is_logged = counts_logged && !matches!(job.work, Work::Sync | Work::Close | Work::SaveRebuild);
        let is_skipped = match job.work {
            Work::Close => planted!(CleanUnflushed),
            Work::SaveRebuild => planted!(WatermarkUnflushed),
            _ => false,
        };
        if is_logged && self.log.as_mut().is_some_and(|log| log.await_answered(id)) {
            return Step::Wait(Stage::Flushing);
        }
        if is_logged || is_skipped || !self.flusher.ask(Waiter::Job(id), self.geometry.all_members()) {
            return Step::To(Stage::Flushing);
        }
        self.run_flusher();
        Step::Wait(Stage::Flushing)
    }

    pub(super) fn flushed(&mut self, id: JobId) -> Step {
        if self.is_frozen {
            return Step::Fail(EngineError::Frozen);
        }
        let job = self.jobs.job(id);
        if !job.failed.is_empty() {
            return Step::Fail(EngineError::FlushFailed { members: job.failed });
        }
        if !self.record.demand_failures(id) {
            // A member whose flush failed may have lost what the others hold.
            self.run_record();
            return Step::Wait(Stage::Flushing);
        }
        let job = self.jobs.job(id);
        if job.work == Work::SaveRebuild {
            self.progress_durable();
            return Step::To(Stage::Settle);
        }
        let is_close = job.work == Work::Close && !self.is_read_only && !self.is_suspect;
        Step::To(if is_close { Stage::Clean } else { Stage::Done })
    }

    pub(super) fn cleaned(&mut self, id: JobId) -> Step {
        if self.is_frozen {
            return Step::Fail(EngineError::Frozen);
        }
        if self.awaits_rest(id) {
            return Step::Wait(Stage::Clean);
        }
        if self.record.has_writers() {
            return Step::Fail(EngineError::Busy);
        }
        if self.flusher.is_needed() && !planted!(CleanUnflushed) {
            return Step::To(Stage::Flush);
        }
        if self.await_intent(id) {
            return Step::Wait(Stage::Clean);
        }
        self.close_rebuild();
        if self.record.demand_clean(id) {
            return Step::To(Stage::Done);
        }
        self.run_record();
        Step::Wait(Stage::Clean)
    }

    /// Begins the flush that somebody waits for.
    pub(super) fn run_flusher(&mut self) {
        let present = self.geometry.all_members().minus(self.record.missing());
        let members = self.flusher.begin(present);
        if let Some(log) = self.log.as_mut().filter(|_| !members.is_empty()) {
            log.flush_begins();
        }
        for member in members.iter() {
            self.counters.flush(member);
            self.submit_op(Caller::Flusher, member, OpKind::Flush, Bytes(0), Segments::new());
        }
        self.wake_flushed();
    }

    pub(super) fn wake_flushed(&mut self) {
        let failed = self.flusher.failures();
        while let Some(waiter) = self.flusher.next_finished() {
            match waiter {
                Waiter::Job(id) => {
                    self.jobs.job(id).failed = failed;
                    self.ready.push_back(id);
                }
                Waiter::Log => self.log_flushed(),
            }
        }
    }

    pub(super) fn flush_completed(&mut self, member: MemberIndex, is_failed: bool) {
        // After a failed flush a retry proves nothing: what the member dropped is gone.
        let is_failed = is_failed && !planted!(FlushErrorIgnored);
        let error = is_failed && self.fail_members(MemberSet::EMPTY.with(member)).is_err();
        if error {
            self.flusher.failed(member);
        }
        if let Some(members) = self.flusher.ended() {
            let lost = self.record.missing().union(self.flusher.failures());
            if let Some(log) = &mut self.log {
                log.flush_ends(members.minus(lost));
            }
            self.wake_flushed();
            self.run_flusher();
        }
    }
}
