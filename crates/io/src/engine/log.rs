//! The engine's side of the redo log: group commit, and when a record's place may be used again.
//!
//! What a job is about to write waits here, in the order of asking, until a commit takes it along: one record on every
//! member that is to be written, then a flush of those members. Jobs that come while a commit is under way go into the
//! next one. A job writes in place when its commit is durable, and holds its stripes' locks from before it asked until
//! it has. Its client has the reply by then: a write is replied to when its record is written, FUA when it is durable.
//! Until it is in place, reads of its stripes wait for their lock.
//!
//! Invariants:
//! - Nothing is written in place before its record is durable on all members that are written, or those that lack it
//!   are on record as failed.
//! - One commit at a time, and none while a failure is not on record: of all records only the newest can be
//!   uncommitted.
//! - A record is trimmed when it is in place and durable there; its place is used again when the member durably holds a
//!   mark that says so.

use std::collections::VecDeque;

use uraid_layout::plan::Buffer;
use uraid_layout::{Bytes, DiskSector, Geometry, MemberIndex, MemberSet, Sectors};
use uuid::Uuid;

use super::flush::Waiter;
use super::job::{JobId, Slot, Stage, Work};
use super::run::{Caller, Step, ZEROES_BYTES};
use super::transfer::{Transfer, bytes_to_fill, for_each_lease};
use super::{Engine, EngineError, Fill, Reply};
use crate::buf::{Buf, Lease};
use crate::disk::{Disk, OpKind};
use crate::format::log::record::{self, EXTENTS_MAX, Extent, Header, LogSequence};
use crate::format::log::{RECORD_BYTES_MAX, RING_BYTES_MIN, Ring};
use crate::format::superblock::Superblock;

/// What may be replied to and not be in place: more waits for its reply until it is.
const PLACING_MAX: Bytes = Bytes(16 << 20);

/// What a small write counts for in that, as it takes more than its content.
pub(super) const PLACING_MIN: Bytes = Bytes(16 << 10);

const BLOCK: Bytes = crate::format::BLOCK.bytes();

/// See the module.
#[derive(Debug)]
pub(super) struct Log {
    /// By slot; none for members that are missing from the start.
    writers: Vec<Option<Writer>>,
    /// The number of the next record.
    next: LogSequence,
    /// Records up to here are in place and durable.
    trim: LogSequence,
    /// The jobs whose updates are to be committed.
    waiting: VecDeque<JobId>,
    commit: Option<Commit>,
    /// The list of the jobs of a commit, to be used again.
    spare: Vec<JobId>,
    /// Flushes that wait for the end of the commit.
    flushes: Vec<JobId>,
    /// What is committed and not trimmed, in order and without gaps.
    records: VecDeque<Committed>,
    /// Up to here everything was in place when the flush that is under way began.
    flushing: LogSequence,
    /// Who got the last record.
    previous: MemberSet,
    /// Members that lack a record, where there is no redundancy: nothing more is logged, as only the newest record can
    /// be uncommitted.
    lacking: MemberSet,
    limits: Limits,
}

/// How large records may be on one member.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// A record of several updates.
    group: Bytes,
    /// A record of one.
    record: Bytes,
    /// The parity stripes that one update may touch.
    stripes: u64,
}

/// What writes one member's log.
#[derive(Debug)]
struct Writer {
    /// Where the log area begins on the member.
    area: Bytes,
    ring: Ring,
    /// The record that is being put together or written.
    header: Header,
    content: Bytes,
    /// What the record is without the last update: its extents, the last of them, its content.
    before: (usize, Option<Extent>, Bytes),
    /// The header's memory.
    memory: Buf,
    leases: Vec<Lease>,
}

/// A commit under way.
#[derive(Debug)]
struct Commit {
    /// None: only a flush, so that records can be trimmed.
    record: Option<LogSequence>,
    trim: LogSequence,
    participants: MemberSet,
    jobs: Vec<JobId>,
    pending: u32,
    failed: MemberSet,
    /// Some of its jobs were replied to.
    is_answered: bool,
}

#[derive(Debug)]
struct Committed {
    sequence: LogSequence,
    /// Jobs that have not written it in place yet.
    left: usize,
    /// Participants that may lose what was written in place.
    unflushed: MemberSet,
}

impl Log {
    /// The log of the members with these superblocks.
    ///
    /// # Errors
    /// [`EngineError::LogTooSmall`].
    pub(super) fn new<'a>(
        superblocks: impl Iterator<Item = Option<&'a Superblock>>,
        geometry: &Geometry,
    ) -> Result<Self, EngineError> {
        let stripe = geometry.chunk().bytes().0 * geometry.rows() as u64;
        let mut size = u64::MAX;
        let mut writers = Vec::new();
        for (slot, superblock) in (0..).map(MemberIndex).zip(superblocks) {
            let writer = superblock.map(|superblock| {
                let part = superblock.areas.log.size.0 / BLOCK.0 * BLOCK.0;
                size = size.min(part);
                Writer::new(superblock.areas.log.offset, 0..part, superblock.generation, slot)
            });
            writers.push(writer);
        }
        // Whatever is live, one side of it has half of the ring.
        let record = (size / 2).saturating_sub(2 * BLOCK.0).min(RECORD_BYTES_MAX.0);
        let stripes = |bytes: u64| bytes.saturating_sub(2 * BLOCK.0) / stripe;
        if size < Self::size_min(geometry).0 {
            return Err(EngineError::LogTooSmall { size: Bytes(size), needed: Self::size_min(geometry) });
        }
        let limits = Limits { group: Bytes(size / 4), record: Bytes(record), stripes: stripes(size / 4).max(1) };
        assert!(stripes(record) > 0, "the smallest log has room for a parity stripe");
        Ok(Self {
            writers,
            next: LogSequence(1),
            trim: LogSequence(0),
            waiting: VecDeque::new(),
            commit: None,
            spare: Vec::new(),
            flushes: Vec::new(),
            records: VecDeque::new(),
            flushing: LogSequence(0),
            previous: MemberSet::EMPTY,
            lacking: MemberSet::EMPTY,
            limits,
        })
    }

    /// One member's ring; none for a member that was missing from the start.
    pub(super) fn fill_of(&self, member: MemberIndex) -> Option<Fill> {
        let ring = &self.writers.get(member.index())?.as_ref()?.ring;
        Some(Fill { used: ring.used(), limit: ring.size() })
    }

    /// What the engine needs of each member's log.
    pub(super) fn size_min(geometry: &Geometry) -> Bytes {
        let stripe = geometry.chunk().bytes().0 * geometry.rows() as u64;
        Bytes((2 * (stripe + 4 * BLOCK.0)).max(RING_BYTES_MIN.0).next_multiple_of(BLOCK.0))
    }

    /// How many parity stripes one update may touch.
    pub(super) fn stripes_max(&self) -> u64 {
        self.limits.stripes
    }

    /// The fullest ring of a member that is not `missing`.
    pub(super) fn fill(&self, missing: MemberSet) -> Option<Fill> {
        let rings = (0..).map(MemberIndex).zip(&self.writers).filter(|(member, _)| !missing.contains(*member));
        let fills = rings
            .filter_map(|(_, writer)| writer.as_ref())
            .map(|Writer { ring, .. }| Fill { used: ring.used(), limit: ring.size() });
        fills.max_by_key(|fill| fill.used)
    }

    /// Notes that one of a record's jobs has written in place.
    pub(super) fn in_place(&mut self, sequence: LogSequence) {
        if planted!(TrimAheadOfWrite) && self.trim >= sequence {
            return;
        }
        let first = self.records.front().expect("a record with jobs is not trimmed").sequence;
        let index = usize::try_from(sequence.0 - first.0).expect("a number of records");
        self.records[index].left -= 1;
    }

    /// Lets a flush wait for the commit under way, if that has something that was replied to; whether it has.
    pub(super) fn await_answered(&mut self, id: JobId) -> bool {
        let awaits = self.commit.as_ref().is_some_and(|commit| commit.is_answered) && !planted!(FlushBeforeCommit);
        if awaits {
            self.flushes.push(id);
        }
        awaits
    }

    /// Lets a job wait for the end of the commit under way; whether there is one.
    pub(super) fn await_commit(&mut self, id: JobId) -> bool {
        let awaits = self.commit.is_some();
        if awaits {
            self.flushes.push(id);
        }
        awaits
    }

    /// Notes that a flush begins.
    pub(super) fn flush_begins(&mut self) {
        let in_place = self.records.iter().take_while(|record| record.left == 0).last();
        self.flushing = in_place.map_or(self.trim, |record| record.sequence);
    }

    /// Notes that it has ended, on `members` with success.
    pub(super) fn flush_ends(&mut self, members: MemberSet) {
        let is_covered = |record: &&mut Committed| record.sequence <= self.flushing || planted!(FlushCoversLater);
        for record in self.records.iter_mut().take_while(is_covered) {
            record.unflushed = record.unflushed.minus(members);
        }
    }

    /// Trims what is in place and durable, or on members that are durably recorded as failed.
    fn advance(&mut self, failed: MemberSet) {
        while let Some(record) = self.records.front() {
            let is_in_place = record.left == 0 || planted!(TrimAheadOfWrite);
            let is_early = [planted!(TrimUnflushed), planted!(TrimAheadOfWrite)].contains(&true);
            let is_durable = record.unflushed.minus(failed).is_empty() || is_early;
            if !is_in_place || !is_durable {
                return;
            }
            self.trim = record.sequence;
            self.records.pop_front();
            if planted!(ReuseWithoutMark) {
                self.writers.iter_mut().flatten().for_each(|writer| writer.ring.mark(self.trim));
            }
        }
    }

    /// Begins to put a record together.
    fn clear(&mut self) {
        for writer in self.writers.iter_mut().flatten() {
            writer.header.extents.clear();
            writer.content = Bytes(0);
        }
    }

    /// The members that the record under construction is for.
    fn participants(&self) -> MemberSet {
        let writers = self.writers.iter().flatten();
        writers.filter(|writer| !writer.header.extents.is_empty()).map(|writer| writer.header.slot).collect()
    }

    /// Whether the record under construction has a place on every participant.
    fn fits(&self, is_first: bool) -> bool {
        let limit = if is_first { self.limits.record } else { self.limits.group };
        self.writers.iter().flatten().filter(|writer| !writer.header.extents.is_empty()).all(|writer| {
            let total = writer.total();
            let is_small = total <= limit && writer.header.extents.len() <= EXTENTS_MAX;
            is_small && writer.ring.find(total, BLOCK).is_some()
        })
    }

    /// Whether the first update is larger than any record can be.
    fn is_too_large(&self) -> bool {
        let is_large =
            |writer: &Writer| writer.total() > self.limits.record || writer.header.extents.len() > EXTENTS_MAX;
        self.writers.iter().flatten().any(is_large)
    }

    /// Gives every participant its place and header.
    fn seal(&mut self, participants: MemberSet) -> LogSequence {
        let sequence = self.next;
        self.next = LogSequence(sequence.0 + 1);
        let previous = std::mem::replace(&mut self.previous, participants);
        for member in participants.iter() {
            let writer = self.writers[member.index()].as_mut().expect("a participant has a log");
            writer.seal(sequence, self.trim, participants, previous);
        }
        sequence
    }
}

impl Writer {
    fn new(area: Bytes, part: std::ops::Range<u64>, generation: Uuid, slot: MemberIndex) -> Self {
        let header = Header {
            generation,
            sequence: LogSequence(0),
            trim: LogSequence(0),
            participants: MemberSet::EMPTY,
            previous: MemberSet::EMPTY,
            slot,
            position: Bytes(0),
            content_checksum: 0,
            extents: Vec::new(),
        };
        let memory = Buf::zeroed(BLOCK);
        let (content, before) = (Bytes(0), (0, None, Bytes(0)));
        Self { area, ring: Ring::new(part), header, content, before, memory, leases: Vec::new() }
    }

    /// Begins with the next update.
    fn begin(&mut self) {
        self.before = (self.header.extents.len(), self.header.extents.last().copied(), self.content);
    }

    /// Takes the last update out.
    fn undo(&mut self) {
        let (extents, last, content) = self.before;
        self.header.extents.truncate(extents);
        if let (Some(place), Some(last)) = (self.header.extents.last_mut(), last) {
            *place = last;
        }
        self.content = content;
    }

    fn add(&mut self, sector: DiskSector, len: Sectors, is_zero: bool) {
        if !is_zero {
            self.content.0 += len.bytes().0;
        }
        match self.header.extents.last_mut() {
            Some(last) if last.is_zero == is_zero && last.sector.0 + last.len.0 == sector.0 => last.len.0 += len.0,
            _ => self.header.extents.push(Extent { sector, len, is_zero }),
        }
    }

    fn total(&self) -> Bytes {
        record::total_bytes(self.header.extents.len(), self.content)
    }

    fn seal(&mut self, sequence: LogSequence, trim: LogSequence, participants: MemberSet, previous: MemberSet) {
        let total = self.total();
        let position = self.ring.find(total, Bytes(0)).expect("a participant has room");
        self.ring.take(sequence, position, total);
        let mut crc = crc32fast::Hasher::new();
        self.leases.iter().for_each(|lease| crc.update(lease.bytes()));
        let Header { extents, generation, slot, .. } = &mut self.header;
        let extents = std::mem::take(extents);
        self.header = Header {
            generation: *generation,
            sequence,
            trim,
            participants: if planted!(ParticipantsForgotten) { MemberSet::EMPTY.with(*slot) } else { participants },
            previous,
            slot: *slot,
            position,
            content_checksum: crc.finalize(),
            extents,
        };
        if self.memory.len() < self.header.bytes() {
            self.memory = Buf::zeroed(Bytes(self.header.bytes() as u64));
        }
        self.header.encode(self.memory.as_mut());
    }
}

impl<D: Disk, T> Engine<D, T> {
    /// Hands a job's update to the log.
    pub(super) fn log(&mut self, id: JobId) -> Step {
        self.take_over(id);
        let Some(log) = self.log.as_mut().filter(|_| !planted!(SkipLog)) else {
            return Step::To(Stage::StartWrites);
        };
        if planted!(FlushBeforeCommit)
            && let Some(cache) = &mut self.cache
        {
            cache.committed(&mut self.jobs.slot(id).contents);
        }
        log.waiting.push_back(id);
        Step::Wait(Stage::Committed)
    }

    /// Goes on when the job's record is durable, and members that lack it are on record as failed.
    pub(super) fn committed(&mut self, id: JobId) -> Step {
        if self.is_frozen {
            return Step::Fail(EngineError::Frozen);
        }
        let failed = self.jobs.job(id).failed;
        if self.jobs.job(id).record.is_none() {
            return Step::Fail(EngineError::LogFailed { members: failed });
        }
        if !planted!(CommitDespiteFailure) && !self.record.demand_failures(id) {
            self.run_record();
            return Step::Wait(Stage::Committed);
        }
        let counts = self.counts_logged();
        let Self { cache, jobs, .. } = self;
        if let Some(cache) = cache.as_mut().filter(|_| counts) {
            cache.committed(&mut jobs.slot(id).contents);
            self.wake_drained();
        }
        if self.flusher.failures().is_empty() {
            self.answer(id);
        }
        Step::To(Stage::StartWrites)
    }

    /// Whether content that is durable in the log counts as durable. It does where the array can do without a member
    /// that then fails to take it in place. Without redundancy it would be in memory alone once its record is trimmed.
    pub(super) fn counts_logged(&self) -> bool {
        self.log.is_some() && (self.geometry.tolerance() > 0 || planted!(LoggedCounts))
    }

    /// Replies to a write that the log has, when this is all of it; whether it did.
    fn answer(&mut self, id: JobId) -> bool {
        let is_redundant = self.counts_logged();
        let job = self.jobs.job(id);
        let is_command = matches!(job.work, Work::Write { .. } | Work::Zero { .. });
        let is_last = job.at.0 + job.len.0 == job.end.0;
        if !is_command || !is_last || !is_redundant || job.is_answered || self.placing >= PLACING_MAX {
            return false;
        }
        let Some(token) = job.token.take() else { return false };
        job.is_answered = true;
        self.placing.0 += job.placing().0;
        self.replies.push(Reply { token, result: Ok(None) });
        true
    }

    /// Notes that what was replied to is in place, or that the array is lost.
    pub(super) fn placed(&mut self, id: JobId, error: Option<&EngineError>) {
        let job = self.jobs.job(id);
        if !std::mem::take(&mut job.is_answered) {
            return;
        }
        self.placing.0 -= job.placing().0;
        if let Some(error) = error {
            tracing::error!(lba = %job.at, %error, "logged content could not be written in place");
        }
        if self.placing.0 == 0 {
            self.ready.extend(self.closers.drain(..));
        }
    }

    /// Puts what only the log has over what was read.
    pub(super) fn cover(&mut self, id: JobId) {
        if self.overlay.is_empty() {
            return;
        }
        let Slot { job, plan, .. } = self.jobs.slot(id);
        let job = job.as_mut().expect("the slot has a job");
        for io in plan.reads() {
            let mut sector = io.sector;
            for slice in plan.slices(io) {
                self.overlay.apply(io.member, sector, bytes_to_fill(job, slice));
                sector.0 += slice.len.0;
            }
        }
    }

    /// Begins the next commit, when there is something to commit and nothing in its way.
    pub(super) fn commit(&mut self) {
        let Some(log) = &mut self.log else { return };
        if log.commit.is_some() || log.waiting.is_empty() {
            return;
        }
        if self.is_frozen {
            self.ready.extend(log.waiting.drain(..));
            return;
        }
        if !log.lacking.is_empty() {
            for id in log.waiting.drain(..) {
                self.jobs.job(id).failed = log.lacking;
                self.ready.push_back(id);
            }
            return;
        }
        log.advance(self.record.recorded_missing());
        if !planted!(NextCommitDespiteFailure) && !self.record.has_failures_on_record() {
            // It goes on when they are.
            return self.run_record();
        }
        let jobs = self.gather();
        if jobs.is_empty() {
            self.log.as_mut().expect("there is a log").spare = jobs;
            self.make_room();
        } else {
            self.start_commit(jobs);
        }
    }

    /// Takes as many updates into the next record as there is room for.
    fn gather(&mut self) -> Vec<JobId> {
        let Self { log, jobs, record, .. } = self;
        let log = log.as_mut().expect("there is a log");
        let mut taken = std::mem::take(&mut log.spare);
        log.clear();
        while let Some(&id) = log.waiting.front() {
            let Slot { plan, .. } = jobs.slot(id);
            log.writers.iter_mut().flatten().for_each(Writer::begin);
            for io in plan.writes() {
                let is_last = std::ptr::eq(io, plan.writes().last().expect("it is one of them"));
                if record.missing().contains(io.member) || planted!(LastWriteNotLogged) && is_last {
                    continue;
                }
                let writer = log.writers[io.member.index()].as_mut().expect("a member that is written has a log");
                let mut sector = io.sector;
                for slice in plan.slices(io) {
                    if planted!(ZeroesNotLogged) && slice.buffer == Buffer::Zeroes {
                        continue;
                    }
                    writer.add(sector, slice.len, slice.buffer == Buffer::Zeroes);
                    sector.0 += slice.len.0;
                }
            }
            if !log.fits(taken.is_empty()) {
                if taken.is_empty() && log.is_too_large() {
                    // It fails, as one that could not be written.
                    log.waiting.pop_front();
                    self.ready.push_back(id);
                }
                log.writers.iter_mut().flatten().for_each(Writer::undo);
                break;
            }
            log.waiting.pop_front();
            taken.push(id);
        }
        taken
    }

    /// Writes the record of the jobs that were gathered.
    fn start_commit(&mut self, taken: Vec<JobId>) {
        let Self { log, jobs, record, zeroes, .. } = self;
        let log = log.as_mut().expect("there is a log");
        for &id in &taken {
            let Slot { job, plan, contents } = jobs.slot(id);
            let job = job.as_mut().expect("the slot has a job");
            for io in plan.writes() {
                let is_last = std::ptr::eq(io, plan.writes().last().expect("it is one of them"));
                if record.missing().contains(io.member) || planted!(LastWriteNotLogged) && is_last {
                    continue;
                }
                let writer = log.writers[io.member.index()].as_mut().expect("a member that is written has a log");
                for slice in plan.slices(io).iter().filter(|slice| slice.buffer != Buffer::Zeroes) {
                    for_each_lease(job, contents, zeroes, *slice, |lease| {
                        if !writer.leases.last_mut().is_some_and(|last| last.extend_over(&lease)) {
                            writer.leases.push(lease);
                        }
                    });
                }
            }
        }
        let participants = log.participants();
        let sequence = log.seal(participants);
        for &id in &taken {
            jobs.job(id).record = Some(sequence);
        }
        log.records.push_back(Committed { sequence, left: taken.len(), unflushed: participants });
        self.write_record(Some(sequence), participants, taken);
    }

    /// Writes the sealed record to its participants.
    fn write_record(&mut self, record: Option<LogSequence>, participants: MemberSet, jobs: Vec<JobId>) {
        let Self { log, disk, counters, queues, spare, zeroes, .. } = self;
        let log = log.as_mut().expect("there is a log");
        let mut pending = 0;
        for member in participants.iter() {
            let writer = log.writers[member.index()].as_mut().expect("a participant has a log");
            let offset = Bytes(writer.area.0 + writer.header.position.0);
            let mut transfer = Transfer::new(Caller::Log.tag(), member, OpKind::Write, offset, DiskSector(0));
            let header = writer.header.bytes();
            transfer.push(writer.memory.lease_read(0..header), spare, |op| disk.submit(op));
            writer.leases.drain(..).for_each(|lease| transfer.push(lease, spare, |op| disk.submit(op)));
            let total = writer.total();
            let fill = usize::try_from(total.0 - header as u64 - writer.content.0).expect("less than a block");
            if fill > 0 {
                transfer.push(zeroes.lease_read(0..fill), spare, |op| disk.submit(op));
            }
            // The log is not near the data: the queue's head says nothing.
            pending += transfer.finish(queues, |op| disk.submit(op));
            counters.log(member, total);
        }
        let trim = log.trim;
        let failed = MemberSet::EMPTY;
        log.commit = Some(Commit { record, trim, participants, jobs, pending, failed, is_answered: false });
        if pending == 0 {
            // Every member that was to be written has failed since.
            self.flush_log();
        }
    }

    /// Makes room in the rings, when the next update has none: by a flush that makes what is in place durable, then by
    /// records that only carry the mark. Neither helps before something is in place; the end of a job's writes comes
    /// back here.
    fn make_room(&mut self) {
        let Self { log, record, flusher, .. } = self;
        let log = log.as_mut().expect("there is a log");
        if log.waiting.is_empty() {
            return;
        }
        let is_in_place = |committed: &&Committed| committed.left == 0;
        let unflushed = log.records.iter().take_while(is_in_place);
        let unflushed =
            unflushed.fold(MemberSet::EMPTY, |all, committed| all.union(committed.unflushed)).minus(record.missing());
        if !unflushed.is_empty() {
            // A flush may have come between one of a record's writes and the last of them.
            unflushed.iter().for_each(|member| flusher.wrote(member));
            let (trim, participants) = (log.trim, unflushed);
            let (jobs, failed) = (Vec::new(), MemberSet::EMPTY);
            log.commit =
                Some(Commit { record: None, trim, participants, jobs, pending: 0, failed, is_answered: false });
            return self.flush_log();
        }
        let trim = log.trim;
        // A mark that frees nothing would only take the block that is kept for one.
        let is_behind = |writer: &&Writer| writer.ring.frees(trim) && !record.missing().contains(writer.header.slot);
        let behind: MemberSet =
            log.writers.iter().flatten().filter(is_behind).map(|writer| writer.header.slot).collect();
        if behind.is_empty() {
            return;
        }
        log.clear();
        let sequence = log.seal(behind);
        log.records.push_back(Committed { sequence, left: 0, unflushed: MemberSet::EMPTY });
        self.write_record(Some(sequence), behind, Vec::new());
    }

    /// Takes in the end of one of the record's writes.
    pub(super) fn log_written(&mut self, member: MemberIndex, is_failed: bool) {
        self.queues[member.index()].depth -= 1;
        let commit =
            self.log.as_mut().and_then(|log| log.commit.as_mut()).expect("a record that is written is committed");
        commit.pending -= 1;
        if is_failed && !planted!(LogWriteErrorIgnored) {
            commit.failed = commit.failed.with(member);
        } else {
            self.flusher.wrote(member);
        }
        if commit.pending == 0 {
            self.flush_log();
        }
    }

    /// Flushes the record's participants.
    fn flush_log(&mut self) {
        let commit = self.log.as_mut().and_then(|log| log.commit.as_mut()).expect("there is a commit");
        let (members, failed, is_record) = (commit.participants, commit.failed, commit.record.is_some());
        if self.fail_members(failed).is_err() && self.geometry.tolerance() > 0 {
            self.is_frozen = true;
        }
        let members = if planted!(FlushSomeParticipants) && is_record {
            members.iter().next().map_or(members, |first| members.without(first))
        } else {
            members
        };
        self.answer_written();
        let is_dropped = planted!(DropCommitFlush) && is_record;
        if !is_dropped && self.flusher.ask(Waiter::Log, members) {
            self.run_flusher();
        } else {
            self.log_flushed();
        }
    }

    /// Replies to the plain writes of a record that all participants have taken.
    fn answer_written(&mut self) {
        let commit = self.log.as_mut().and_then(|log| log.commit.as_mut()).expect("there is a commit");
        if !commit.failed.is_empty() || !self.record.has_failures_on_record() || self.is_frozen {
            return;
        }
        let jobs = std::mem::take(&mut commit.jobs);
        let mut is_answered = false;
        for &id in &jobs {
            is_answered |= !self.jobs.job(id).work.flushes() && self.answer(id);
        }
        let commit = self.log.as_mut().and_then(|log| log.commit.as_mut()).expect("there is a commit");
        (commit.jobs, commit.is_answered) = (jobs, is_answered);
    }

    /// Ends the commit: its jobs go on.
    pub(super) fn log_flushed(&mut self) {
        let lost = self.flusher.failures();
        let gone = self.record.missing();
        let log = self.log.as_mut().expect("what is flushed is a log");
        let Commit { record, trim, participants, mut jobs, failed, .. } = log.commit.take().expect("there is a commit");
        let failed = failed.union(lost);
        // Without redundancy nothing makes up for a member that lacks the record.
        let is_committed = failed.minus(gone).is_empty();
        if !is_committed {
            log.lacking = failed;
        } else if record.is_some() {
            for member in participants.minus(gone).iter() {
                log.writers[member.index()].as_mut().expect("a participant has a log").ring.mark(trim);
            }
        }
        for &id in &jobs {
            let job = self.jobs.job(id);
            job.failed = MemberSet::EMPTY;
            if !is_committed {
                job.failed = failed;
                job.record = None;
                log.in_place(record.expect("jobs have a record"));
            }
        }
        self.ready.extend(jobs.drain(..));
        self.ready.extend(log.flushes.drain(..));
        if record.is_some() {
            log.spare = jobs;
        }
    }

    /// Notes that a job's update is in place, or never will be.
    pub(super) fn leave_log(&mut self, id: JobId) {
        if let (Some(sequence), Some(log)) = (self.jobs.job(id).record.take(), &mut self.log)
            && !self.is_frozen
        {
            log.in_place(sequence);
        }
    }
}

const _: () = assert!(ZEROES_BYTES.0 >= BLOCK.0, "the last block of a record is filled up from the zeros");
