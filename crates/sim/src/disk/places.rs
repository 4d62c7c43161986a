//! Sets of members and log devices, which have places of one kind on a disk.

use uraid_io::disk::log_at;
use uraid_io::format::superblock::LogSet;
use uraid_layout::{MemberIndex, MemberSet};

/// Some members, and some log devices.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Places {
    pub(super) members: MemberSet,
    pub(super) logs: LogSet,
}

impl Places {
    /// Whether one of them is at a place.
    pub(super) fn contains(self, place: MemberIndex) -> bool {
        log_at(place).map_or(self.members.contains(place), |log| self.logs.contains(log))
    }

    /// Adds the one that is at a place.
    pub(super) fn add(&mut self, place: MemberIndex) {
        match log_at(place) {
            Some(log) => self.logs = self.logs.with(log),
            None => self.members = self.members.with(place),
        }
    }
}
