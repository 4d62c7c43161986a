//! What is wrong with members, beside that they are missing: who keeps somebody waiting, who failed what nobody could
//! make good, whose failure has frozen the array.
//!
//! Facts alone: what they are called, and what is to be done, somebody else says.

use uraid_layout::{MemberIndex, MemberSet};

use crate::format::superblock::LogSet;

/// Members that need somebody's attention; one may need it for several reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Troubles {
    /// They have had something for longer than a read may take, and somebody waits for it.
    pub stalled: MemberSet,
    /// Their file system has no room for a write that waits until there is some.
    pub roomless: MemberSet,
    /// They failed something lately that could not be made good from the others, or make many errors and can't be
    /// spared.
    pub failing: MemberSet,
    /// Their failure was more than the level survives: the array is frozen.
    pub frozen_by: MemberSet,
    /// The same of log devices: none is left.
    pub frozen_by_logs: LogSet,
    /// Log devices that are not there or lack something, those among them.
    pub failed_logs: LogSet,
    /// Log devices that have had something for longer than a read may take.
    pub stalled_logs: LogSet,
    /// More are missing than the level survives, and the array is only read: it gives what can be had.
    pub is_partial: bool,
}

/// What the engine keeps of them.
#[derive(Debug, Default)]
pub(super) struct Troubled {
    /// As of the last tick.
    stalled: MemberSet,
    /// Who failed what was not made good since errors were forgiven last, and who before that.
    failed: MemberSet,
    failed_before: MemberSet,
    frozen_by: MemberSet,
    frozen_by_logs: LogSet,
    stalled_logs: LogSet,
    is_partial: bool,
}

impl Troubled {
    /// Of an array of which more members are missing than the level survives, if that is so.
    pub(super) fn new(is_partial: bool) -> Self {
        Self { is_partial, ..Self::default() }
    }

    /// Notes members whose failures nothing makes good.
    pub(super) fn note_lost(&mut self, members: MemberSet) {
        if !planted!(LossUnseen) {
            self.failed = self.failed.union(members);
        }
    }

    /// Notes whose failure has frozen the array.
    pub(super) fn note_frozen(&mut self, by: MemberSet) {
        if !planted!(FreezerUnseen) {
            self.frozen_by = self.frozen_by.union(by);
        }
    }

    /// The same of log devices.
    pub(super) fn note_frozen_by_logs(&mut self, by: LogSet) {
        self.frozen_by_logs = self.frozen_by_logs.union(by);
    }

    /// Notes which log devices keep somebody waiting, as of now.
    pub(super) fn set_stalled_logs(&mut self, logs: LogSet) {
        self.stalled_logs = logs;
    }

    /// Forgets what failed before the last time.
    pub(super) fn forgive(&mut self) {
        self.failed_before = std::mem::take(&mut self.failed);
    }

    /// Forgets what failed: all of what the members hold was read, or written anew.
    pub(super) fn absolve(&mut self) {
        (self.failed, self.failed_before) = (MemberSet::EMPTY, MemberSet::EMPTY);
    }

    /// Forgets what a slot's former member did.
    pub(super) fn forget(&mut self, member: MemberIndex) {
        for set in [&mut self.stalled, &mut self.failed, &mut self.failed_before] {
            *set = set.without(member);
        }
    }

    /// Whether members failed something lately that nothing makes good.
    pub(super) fn has_failed(&self) -> bool {
        !self.failed.is_empty() || !self.failed_before.is_empty()
    }

    /// Whether time must pass to find out that somebody has answered.
    pub(super) fn wants_ticks(&self) -> bool {
        !self.stalled.is_empty() || !self.stalled_logs.is_empty()
    }

    /// Notes who keeps somebody waiting, as of now.
    pub(super) fn set_stalled(&mut self, members: MemberSet) {
        self.stalled = members;
    }

    /// What is wrong with members that are `present`, of which `roomless` wait for room, and `kept` make many errors;
    /// and with log devices, of which these failed.
    pub(super) fn among(
        &self,
        present: MemberSet,
        failed_logs: LogSet,
        roomless: MemberSet,
        kept: MemberSet,
    ) -> Troubles {
        let there = |members: MemberSet| members.minus(members.minus(present));
        let roomless = there(roomless);
        Troubles {
            stalled: there(self.stalled).minus(roomless),
            roomless,
            failing: there(self.failed.union(self.failed_before).union(kept)),
            frozen_by: self.frozen_by,
            frozen_by_logs: self.frozen_by_logs,
            failed_logs: failed_logs.union(self.frozen_by_logs),
            stalled_logs: self.stalled_logs,
            is_partial: self.is_partial,
        }
    }
}
