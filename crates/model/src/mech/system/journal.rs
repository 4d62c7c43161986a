//! The journal of pages: what clients write is in a record on one disk more than may be lost, and stays dirty in the
//! cache. Several records may be under way; what waits meanwhile shares the next. What goes into a record, and what a
//! flush waits for, the engine's cache says.
//!
//! Who gets a record is the engine's rule: the disks with the least in their rings and under way. What rings have is
//! counted as all that was written to them: nothing is trimmed here, as they have room for what the cache may hold.

use std::ops::Range;

use uraid_io::cache::{FlushLeft, FlushMark};
use uraid_io::format::log::record::OPEN_MAX;
use uraid_layout::Sectors;
use uraid_layout::plan::Queue;

use super::super::array::Op;
use super::super::cache::WriteBack;
use super::index::index_u32;
use super::log::HEADER_SECTORS;

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
    /// Jobs that wait until what they wrote is durable, and since when.
    waiting: Vec<(u32, FlushMark)>,
    /// Records under way, by the job that writes them, and the batch that each holds.
    flying: Vec<(u32, u64)>,
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

    /// Lets a client's job wait until what the cache has taken in is durable.
    pub(super) fn wait(&mut self, job: u32, cache: &WriteBack) {
        self.waiting.push((job, cache.flush()));
    }

    /// Adds the jobs that wait no more.
    pub(super) fn settle(&mut self, cache: &WriteBack, done: &mut Vec<u32>) {
        let is_done = |(_, mark): &mut (u32, FlushMark)| cache.flush_left(*mark) == FlushLeft::Nothing;
        done.extend(self.waiting.extract_if(.., is_done).map(|(job, _)| job));
    }

    /// The batch of pages that somebody waits for, if a record of them may begin, and its operations; to be followed by
    /// [`Journal::begun`]. `queues` says how busy the disks are.
    pub(super) fn begin(&mut self, cache: &mut WriteBack, queues: &[Queue]) -> Option<(u64, Vec<Op>)> {
        let is_wanted = self.waiting.iter().any(|(_, mark)| cache.flush_left(*mark) == FlushLeft::Journal);
        if !is_wanted || self.flying.len() == OPEN_MAX {
            return None;
        }
        let (batch, Sectors(content)) = cache.begin_record();
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
        Some((batch, ops.collect()))
    }

    /// Notes which job writes the record of a batch.
    pub(super) fn begun(&mut self, record: u32, batch: u64) {
        self.flying.push((record, batch));
    }

    /// A record is on its disks.
    pub(super) fn ended(&mut self, record: u32, cache: &mut WriteBack) {
        let index = self.flying.iter().position(|(job, _)| *job == record).expect("what ends has begun");
        cache.end_record(self.flying.swap_remove(index).1);
    }
}
