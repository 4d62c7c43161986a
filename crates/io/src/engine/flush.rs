//! Flushes, shared: whoever asks while one is under way waits for the next, together with everybody else who does; or for the
//! present one, where nothing was written since it began.

use std::collections::VecDeque;

use uraid_layout::{MemberIndex, MemberSet};

use super::job::JobId;

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

    /// Lets somebody wait for a flush of `members` that begins now or later. False: there is nothing to flush and nothing to wait for.
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

    /// Begins a round if one is asked for and none is under way: the members to flush. The caller issues one flush for each,
    /// then wakes [`Flusher::next_finished`]: all that was written may have been on members that are gone.
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
