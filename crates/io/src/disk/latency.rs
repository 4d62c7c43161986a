//! How long operations on members take.
//!
//! The time of an operation begins when it is described to the kernel, and ends when its completion is taken off the
//! ring: what it waited for a place in the ring is not in it. The clock is read once for each batch of either, so
//! operations that are done at once, on members in memory, last as long as their batch.

use std::time::Instant;

use uraid_layout::MemberIndex;

use super::OpName;
use crate::histogram::Histogram;

/// Histograms of every member's operations, by kind: superblocks, checksums and logs are among them.
#[derive(Clone, Debug)]
pub struct Latencies {
    /// By slot, then by kind.
    members: Vec<[Histogram; 4]>,
}

impl Latencies {
    /// Nothing yet, for so many members.
    #[must_use]
    pub fn new(members: usize) -> Self {
        Self { members: vec![[Histogram::default(); 4]; members] }
    }

    /// One member's operations of one kind.
    ///
    /// # Panics
    /// When there is no such member.
    #[must_use]
    pub fn of(&self, member: MemberIndex, name: OpName) -> &Histogram {
        &self.members[member.index()][kind(name)]
    }

    /// Adds what another disk of the same members has done.
    ///
    /// # Panics
    /// When that has more members.
    pub fn add(&mut self, other: &Self) {
        for (index, histograms) in other.members.iter().enumerate() {
            self.members[index].iter_mut().zip(histograms).for_each(|(sum, more)| sum.add(more));
        }
    }

    /// Begins anew for another member in a slot.
    pub(super) fn forget(&mut self, member: MemberIndex) {
        self.members[member.index()] = Default::default();
    }

    /// Notes that two members have changed places.
    pub(super) fn exchange(&mut self, one: MemberIndex, other: MemberIndex) {
        self.members.swap(one.index(), other.index());
    }

    /// Makes room for so many members.
    pub(super) fn grow(&mut self, members: usize) {
        self.members.resize(members.max(self.members.len()), [Histogram::default(); 4]);
    }

    /// Notes an operation's end.
    pub(super) fn ended(&mut self, member: MemberIndex, name: OpName, began: Instant, now: Instant) {
        self.members[member.index()][kind(name)].record(now.saturating_duration_since(began));
    }
}

fn kind(name: OpName) -> usize {
    match name {
        OpName::Read => 0,
        OpName::Write => 1,
        OpName::Zero => 2,
        OpName::Flush => 3,
    }
}
