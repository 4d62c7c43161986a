//! Flushes, shared: whoever asks while one is under way waits for the next, together with everybody else who does; or for the
//! present one, where nothing was written since it began.

use uraid_layout::{MemberIndex, MemberSet};

use super::job::JobId;

/// Who waits for which flush.
#[derive(Debug, Default)]
pub(super) struct Flusher {
    /// Members written since their last flush began.
    unflushed: MemberSet,
    /// Operations of the present round still in flight; 0: there is no round.
    pending: u32,
    present: Vec<JobId>,
    next: Vec<JobId>,
    /// Members that failed a flush and which the array can't do without: no later flush proves anything about them.
    failed: MemberSet,
}

impl Flusher {
    /// Notes that a write to a member has completed.
    pub(super) fn wrote(&mut self, member: MemberIndex) {
        self.unflushed = self.unflushed.with(member);
    }

    /// Lets a job wait for a flush that begins now or later. False: there is nothing to flush and nothing to wait for.
    pub(super) fn ask(&mut self, job: JobId) -> bool {
        if !self.unflushed.is_empty() {
            self.next.push(job);
        } else if self.pending > 0 {
            self.present.push(job);
        }
        self.is_needed()
    }

    /// Begins a round if one is asked for and none is under way: the members to flush. The caller issues one flush for each,
    /// then wakes [`Flusher::finished`]: all that was written may have been on members that are gone.
    pub(super) fn begin(&mut self, present_members: MemberSet) -> MemberSet {
        if self.pending > 0 || self.next.is_empty() {
            return MemberSet::EMPTY;
        }
        std::mem::swap(&mut self.present, &mut self.next);
        let members = self.unflushed.minus(MemberSet::all(64).minus(present_members));
        self.unflushed = MemberSet::EMPTY;
        self.pending = u32::try_from(members.len()).expect("at most 64 members");
        members
    }

    /// Notes the end of one member's flush; true when it was the round's last.
    pub(super) fn ended(&mut self) -> bool {
        assert!(self.pending > 0, "a flush that ends was begun");
        self.pending -= 1;
        self.pending == 0
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

    /// The jobs whose round is over.
    pub(super) fn finished(&mut self) -> impl Iterator<Item = JobId> + '_ {
        let count = if self.pending == 0 { self.present.len() } else { 0 };
        self.present.drain(..count)
    }
}
