//! The journal of pages: what clients write is in a record on one disk more than may be lost, and stays dirty in the
//! cache. Several records may be under way; what waits meanwhile shares the next.
//!
//! Who gets a record is the engine's rule: the disks with the least in their rings and under way. What rings have is
//! counted as all that was written to them: nothing is trimmed here, as they have room for what the cache may hold.

use std::ops::Range;

use uraid_layout::plan::Queue;

use super::super::array::Op;
use super::index::index_u32;
use super::job::Jobs;
use super::log::HEADER_SECTORS;

/// The most records under way.
const RECORDS_MAX: usize = 4;

/// What an operation under way counts for: this part of a ring.
const BURDEN: u64 = 16;

/// A journal, which is a ring on each disk.
#[derive(Debug)]
pub(super) struct Journal {
    /// Where the ring is on each disk.
    ring: Range<u64>,
    /// How many disks have a record.
    copies: usize,
    /// What was written to each ring.
    written: Vec<u64>,
    /// Where the next record begins, by member.
    next: Vec<u64>,
    /// Jobs that the next record will hold.
    waiting: Vec<u32>,
    /// Records under way, by the job that writes them, and what they hold.
    flying: Vec<(u32, Vec<u32>)>,
}

impl Journal {
    pub(super) fn new(ring: Range<u64>, copies: usize, disks: u8) -> Self {
        let each = usize::from(disks);
        let next = vec![ring.start; each];
        Self { ring, copies, written: vec![0; each], next, waiting: Vec::new(), flying: Vec::new() }
    }

    pub(super) fn clear(&mut self) {
        self.written.fill(0);
        self.next.fill(self.ring.start);
        self.waiting.clear();
        self.flying.clear();
    }

    /// Lets a client's job wait for the next record.
    pub(super) fn wait(&mut self, job: u32) {
        self.waiting.push(job);
    }

    /// The operations of a record of all that waits, if anything does and a record may begin; to be followed by
    /// [`Journal::begun`]. `queues` says how busy the disks are.
    pub(super) fn begin(&mut self, jobs: &Jobs, queues: &[Queue]) -> Option<Vec<Op>> {
        if self.waiting.is_empty() || self.flying.len() == RECORDS_MAX {
            return None;
        }
        let content: u64 = self.waiting.iter().map(|&job| jobs.at(job).request.len.0).sum();
        let size = self.ring.end - self.ring.start;
        let len = (HEADER_SECTORS + content).min(size);
        let mut able: Vec<usize> = (0..self.next.len()).collect();
        able.sort_by_key(|&member| self.written[member] + size / BURDEN * u64::from(queues[member].depth));
        able.truncate(self.copies);
        let ops = able.into_iter().map(|member| {
            // A record is in one piece.
            let sector = if self.next[member] + len > self.ring.end { self.ring.start } else { self.next[member] };
            self.next[member] = sector + len;
            self.written[member] += len;
            Op { sector, len: index_u32(len as usize), member: member as u8 }
        });
        Some(ops.collect())
    }

    /// Notes which job writes the record that has just begun.
    pub(super) fn begun(&mut self, record: u32) {
        self.flying.push((record, std::mem::take(&mut self.waiting)));
    }

    /// A record is on its disks: the clients' jobs that it holds.
    pub(super) fn ended(&mut self, record: u32) -> Vec<u32> {
        let index = self.flying.iter().position(|(job, _)| *job == record).expect("what ends has begun");
        self.flying.swap_remove(index).1
    }
}
