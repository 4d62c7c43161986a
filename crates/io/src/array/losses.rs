//! Members that fail while the array is opened, and which it goes on without.
//!
//! The running array gives members up that fail; so does opening it, by the same rule: the level must survive what is
//! lost. Here is only who was given up and why. That it goes on record before anything is done without the member is
//! [`Assembled`](super::Assembled)'s affair.

use std::path::PathBuf;

use uraid_layout::repair::Repair;
use uraid_layout::{Geometry, MemberIndex, MemberSet};

use super::error::RecoverError;
use super::judge::{Candidate, Verdict};
use crate::Error;
use crate::disk::{DiskError, log_at};
use crate::format::superblock::{LogDevices, LogIndex, LogSet};

/// A member that failed while the array was opened.
#[derive(Clone, Debug)]
pub struct Loss {
    /// Its slot.
    pub member: MemberIndex,
    /// Where it is.
    pub path: PathBuf,
    /// What failed.
    pub error: DiskError,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Losses {
    /// The shapes that the array has.
    shapes: Vec<Geometry>,
    /// By slot.
    paths: Vec<PathBuf>,
    /// Who is missing or being rebuilt without them.
    lost: MemberSet,
    all: Vec<Loss>,
    /// The log devices that are left, and those that failed.
    left_logs: LogSet,
    lost_logs: LogSet,
}

impl Losses {
    /// None yet.
    pub(super) fn new(verdict: &Verdict, candidates: &[Candidate]) -> Self {
        let path = |index: &Option<usize>| index.map(|index| candidates[index].path.clone()).unwrap_or_default();
        let paths = verdict.slots.iter().map(path).collect();
        let logs = verdict.superblock.logs.as_ref().map(LogDevices::active).unwrap_or_default();
        let (left_logs, lost_logs) = (logs.minus(verdict.lost_logs), verdict.lost_logs);
        Self { shapes: verdict.shapes(), paths, lost: verdict.lost(), all: Vec::new(), left_logs, lost_logs }
    }

    /// The members that were given up.
    pub(super) fn members(&self) -> MemberSet {
        self.all.iter().map(|loss| loss.member).collect()
    }

    /// The log devices that are not there, or were given up.
    pub(super) fn lost_logs(&self) -> LogSet {
        self.lost_logs
    }

    /// Who, where and why.
    pub(super) fn all(&self) -> &[Loss] {
        &self.all
    }

    /// A member's path.
    pub(super) fn path(&self, member: MemberIndex) -> PathBuf {
        self.paths[member.index()].clone()
    }

    /// Whether the level does not survive that a member is lost, too.
    pub(super) fn needs(&self, member: MemberIndex) -> bool {
        !self.is_survived(self.lost.with(member))
    }

    /// Whether the array can do without a member whose list of bad blocks is lost.
    ///
    /// # Errors
    /// [`RecoverError::ListLost`].
    pub(super) fn check_list(&self, member: MemberIndex) -> Result<(), RecoverError> {
        // As a last resort an array is read though too many are gone.
        if self.needs(member) && self.is_survived(self.lost) {
            let (path, level) = (self.path(member), self.shapes[0].spec().level.name());
            return Err(RecoverError::ListLost { path, level, beside: self.lost.without(member) });
        }
        Ok(())
    }

    fn is_survived(&self, lost: MemberSet) -> bool {
        self.shapes.iter().all(|shape| Repair::new(shape, lost).is_ok())
    }

    /// Gives up a log device.
    fn give_up_log(&mut self, log: LogIndex, error: DiskError) -> Result<(), RecoverError> {
        let left = self.left_logs.minus(LogSet::EMPTY.with(log));
        if left.is_empty() && !planted!(LastLogGivenUp) || left == self.left_logs {
            return Err(RecoverError::LogsLost { source: error });
        }
        tracing::error!("{error}; the array continues without this log device");
        (self.left_logs, self.lost_logs) = (left, self.lost_logs.with(log));
        Ok(())
    }

    /// Gives up the member that an operation failed on.
    ///
    /// # Errors
    /// The error itself, where it is no member's; [`RecoverError::Needed`] where the array can't do without the member.
    pub(super) fn give_up(&mut self, error: Error) -> Result<(), RecoverError> {
        let error = match error {
            // Who hangs may go on any time: whoever opens the array decides whether it does without the member.
            Error::Disk(error) if !matches!(error, DiskError::TimedOut { .. }) => error,
            error => return Err(error.into()),
        };
        let member = error.op().member;
        if let Some(log) = log_at(member) {
            return self.give_up_log(log, error);
        }
        if self.members().contains(member) {
            return Ok(());
        }
        let path = self.path(member);
        let lost = self.lost.with(member);
        // As a last resort an array is read though too many are gone.
        if self.is_survived(self.lost) && self.needs(member) || planted!(OpeningGivesNobodyUp) {
            let level = self.shapes[0].spec().level.name();
            return Err(RecoverError::Needed { path, level, beside: self.lost.without(member), source: error });
        }
        tracing::error!("{}: {error}; the array continues without this member", path.display());
        self.lost = lost;
        self.all.push(Loss { member, path, error });
        Ok(())
    }
}
