//! The redo log's part of the event loop: what is about to be written is in a record first, on each disk that it is
//! written to, and one record is under way at a time; what waits meanwhile shares the next.
//!
//! Replies are given when the record is on the disks, as the engine does where a member may fail. Flushes and the
//! marks that trim the log take no time of their own here.

use uraid_layout::{Lba, Sectors};

use super::super::Error;
use super::super::array::{Op, Part};
use super::super::workload::Request;
use super::job::{Jobs, Kind};
use super::{System, index_u32};

/// What a record has besides content: a page.
const HEADER_SECTORS: u64 = 8;

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
}

impl System {
    /// Whether a part of a job waits for the log now, before it writes.
    pub(super) fn waits_for_log(&mut self, job: u32, part: usize) -> Result<bool, Error> {
        let at = self.jobs.at_mut(job);
        let volume = at.request.volume;
        let is_logged = !matches!(at.kind, Kind::Rebuild(_) | Kind::Commit);
        let Some(log) = self.volumes[volume].log.as_mut().filter(|_| is_logged) else { return Ok(false) };
        if !at.wait_for_log(part) {
            return Ok(false);
        }
        log.waiting.push(Jobs::part_number(job, part));
        if log.flying.is_empty() {
            self.commit(volume)?;
        }
        Ok(true)
    }

    /// Writes a record of all that waits, if anything does.
    fn commit(&mut self, volume: usize) -> Result<(), Error> {
        let Some(log) = &mut self.volumes[volume].log else { return Ok(()) };
        std::mem::swap(&mut log.flying, &mut log.waiting);
        if log.flying.is_empty() {
            return Ok(());
        }
        let mut lengths = vec![0; log.next.len()];
        for &number in &log.flying {
            let (job, part) = Jobs::of_part(number);
            for op in self.jobs.at(job).writes(part) {
                lengths[usize::from(op.member)] += u64::from(op.len);
            }
        }
        let mut ops = Vec::new();
        for (member, content) in lengths.into_iter().enumerate().filter(|(_, content)| *content > 0) {
            let len = (content + HEADER_SECTORS).min(log.sectors);
            // A record is in one piece.
            let sector = if log.next[member] + len > log.sectors { 0 } else { log.next[member] };
            log.next[member] = sector + len;
            ops.push(Op { sector, len: index_u32(len as usize), member: member as u8 });
        }
        let request = Request { volume, is_write: true, lba: Lba(0), len: Sectors(0) };
        let record = self.jobs.add(Kind::Commit, request, self.now);
        let operations = &mut self.jobs.at_mut(record).operations;
        operations.parts.push(Part { reads: 0, writes: index_u32(ops.len()) });
        operations.ops = ops;
        self.begin(record)
    }

    /// A record is on the disks: what it holds is written in place, its clients have their answers, and what waited
    /// meanwhile is the next record.
    pub(super) fn committed(&mut self, volume: usize) -> Result<(), Error> {
        let Some(log) = &mut self.volumes[volume].log else { return Ok(()) };
        let mut parts = std::mem::take(&mut log.flying);
        for number in parts.drain(..) {
            let (job, part) = Jobs::of_part(number);
            let at = self.jobs.at_mut(job);
            at.unlogged -= 1;
            if at.unlogged == 0 && matches!(at.kind, Kind::Process(_) | Kind::Arrival) {
                at.is_answered = true;
                self.ended.push(job);
            }
            self.go_on(job, part)?;
        }
        self.commit(volume)
    }
}
