//! Requests that are under way, in slots that are used again with their memory.

use std::ops::Range;

use uraid_layout::{Lba, Sectors, StripeId};

use super::super::Request;
use super::super::array::{Op, Operations, PARTS_MAX, Part};
use super::index::index_u32;

/// Whose a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A process's, which asks again when it has ended.
    Process(usize),
    /// A request's that came at a time of its own.
    Arrival,
    /// The system's own.
    Rebuild(StripeId),
    /// A cache's, to write out what is dirty.
    Destage,
    /// A log's, to write a record.
    Commit,
    /// A journal's, to write a record.
    Append,
}

/// How far a part of a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    New,
    Reading,
    /// Waiting for its record.
    Logging,
    Writing,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) kind: Kind,
    pub(super) request: Request,
    /// The sectors of the array that the disks are to serve: all, or what the cache does not take.
    pub(super) rest: Range<u64>,
    /// When it was asked for, in nanoseconds.
    pub(super) begun: u64,
    pub(super) operations: Operations,
    /// Operations of each part that the disks have not served.
    pub(super) pending: [u32; PARTS_MAX],
    stages: [Stage; PARTS_MAX],
    pub(super) parts_left: u32,
    /// Parts that are not in the log yet.
    pub(super) unlogged: u32,
    pub(super) is_locked: bool,
    /// Whether the client has its answer, although something is not in place.
    pub(super) is_answered: bool,
}

#[derive(Debug, Default)]
pub(super) struct Jobs {
    slots: Vec<Job>,
    free: Vec<u32>,
}

impl Job {
    /// Takes a part to its next stage: the operations of that, and whether they write; none when the part has ended.
    #[inline]
    pub(super) fn advance(&mut self, part: usize) -> Option<(Range<usize>, bool)> {
        let parts = &self.operations.parts;
        let before: u32 = parts[..part].iter().map(|part| part.reads + part.writes).sum();
        let (before, reads, writes) = (before as usize, parts[part].reads as usize, parts[part].writes as usize);
        match self.stages[part] {
            Stage::New => {
                self.stages[part] = Stage::Reading;
                Some((before..before + reads, false))
            }
            Stage::Reading | Stage::Logging => {
                self.stages[part] = Stage::Writing;
                Some((before + reads..before + reads + writes, true))
            }
            Stage::Writing => None,
        }
    }

    /// Whether a part has to be in the log next; it waits for that from now on.
    pub(super) fn wait_for_log(&mut self, part: usize) -> bool {
        let waits = self.stages[part] == Stage::Reading && self.operations.parts[part].writes > 0;
        if waits {
            self.stages[part] = Stage::Logging;
        }
        waits
    }

    /// What a part writes.
    pub(super) fn writes(&self, part: usize) -> &[Op] {
        let parts = &self.operations.parts;
        let before: u32 = parts[..part].iter().map(|part| part.reads + part.writes).sum();
        let start = (before + parts[part].reads) as usize;
        &self.operations.ops[start..start + parts[part].writes as usize]
    }
}

impl Jobs {
    pub(super) fn add(&mut self, kind: Kind, request: Request, now: u64) -> u32 {
        let rest = request.lba.0..request.lba.0.saturating_add(request.len.0);
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            (slot.kind, slot.request, slot.begun) = (kind, request, now);
            (slot.is_locked, slot.is_answered) = (false, false);
            slot.rest = rest;
            slot.stages = Default::default();
            slot.operations.clear();
            return index;
        }
        self.slots.push(Job {
            kind,
            request,
            rest,
            begun: now,
            operations: Operations::default(),
            pending: [0; PARTS_MAX],
            stages: [Stage::New; PARTS_MAX],
            parts_left: 0,
            unlogged: 0,
            is_locked: false,
            is_answered: false,
        });
        index_u32(self.slots.len() - 1)
    }

    /// Adds a job that writes a record, by these operations.
    pub(super) fn add_record(&mut self, kind: Kind, volume: usize, ops: Vec<Op>, now: u64) -> u32 {
        let record = self.add(kind, Request { volume, is_write: true, lba: Lba(0), len: Sectors(0) }, now);
        let operations = &mut self.at_mut(record).operations;
        operations.parts.push(Part { reads: 0, writes: index_u32(ops.len()) });
        operations.ops = ops;
        record
    }

    #[inline]
    pub(super) fn at(&self, job: u32) -> &Job {
        &self.slots[job as usize]
    }

    #[inline]
    pub(super) fn at_mut(&mut self, job: u32) -> &mut Job {
        &mut self.slots[job as usize]
    }

    pub(super) fn free(&mut self, job: u32) {
        self.free.push(job);
    }

    pub(super) fn clear(&mut self) {
        self.free.clear();
        self.free.extend((0..index_u32(self.slots.len())).rev());
    }

    /// One number for a part of a job.
    #[inline]
    pub(super) fn part_number(job: u32, part: usize) -> u32 {
        job << 2 | part as u32
    }

    /// The job and the part that have a number.
    #[inline]
    pub(super) fn of_part(number: u32) -> (u32, usize) {
        (number >> 2, (number & 3) as usize)
    }
}
