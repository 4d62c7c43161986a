//! The redo log: what is about to be written is in a record first, on each disk that it is
//! written to, and one record is under way at a time; what waits meanwhile shares the next.
//!
//! Replies are given when the record is on the disks, as the engine does where a member may fail. Flushes and the
//! marks that trim the log take no time of their own here.

use super::super::array::Op;
use super::index::index_u32;
use super::job::Jobs;

/// What a record has besides content: a page.
pub(super) const HEADER_SECTORS: u64 = 8;

/// A log, which is a ring on each disk.
#[derive(Debug)]
pub(super) struct Log {
    /// The ring's size.
    sectors: u64,
    /// Where the next record begins, by member.
    next: Vec<u64>,
    /// Parts of jobs, by number, that the next record will hold.
    waiting: Vec<u32>,
    /// Those of the record that is under way.
    flying: Vec<u32>,
}

impl Log {
    pub(super) fn new(sectors: u64, disks: u8) -> Self {
        Self { sectors, next: vec![0; disks.into()], waiting: Vec::new(), flying: Vec::new() }
    }

    pub(super) fn clear(&mut self) {
        self.next.fill(0);
        self.waiting.clear();
        self.flying.clear();
    }

    /// Lets a part of a job wait for the next record; whether that can begin now.
    pub(super) fn wait(&mut self, number: u32) -> bool {
        self.waiting.push(number);
        self.flying.is_empty()
    }

    /// Begins a record of all that waits; its operations, if anything does.
    pub(super) fn commit(&mut self, jobs: &Jobs) -> Option<Vec<Op>> {
        std::mem::swap(&mut self.flying, &mut self.waiting);
        if self.flying.is_empty() {
            return None;
        }
        let mut lengths = vec![0; self.next.len()];
        for &number in &self.flying {
            let (job, part) = Jobs::of_part(number);
            for op in jobs.at(job).writes(part) {
                lengths[usize::from(op.member)] += u64::from(op.len);
            }
        }
        let mut ops = Vec::new();
        for (member, content) in lengths.into_iter().enumerate().filter(|(_, content)| *content > 0) {
            let len = (content + HEADER_SECTORS).min(self.sectors);
            // A record is in one piece.
            let sector = if self.next[member] + len > self.sectors { 0 } else { self.next[member] };
            self.next[member] = sector + len;
            ops.push(Op { sector, len: index_u32(len as usize), member: member as u8 });
        }
        Some(ops)
    }

    /// A record is on the disks: the parts of jobs that it holds.
    pub(super) fn committed(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.flying)
    }
}
