//! The engine's side of the redo log: group commit, and when a record's place may be used again.
//!
//! What a task is about to write waits here, in the order of asking, until a commit takes it along: one record on every
//! member that is to be written, then a flush of those members. Tasks that come while a commit is under way go into the
//! next one. A task writes in place when its commit is durable, and holds its stripes' locks from before it asked until
//! it has. Its client has the reply by then: a write is replied to when its record is written, FUA when it is durable.
//! Until it is in place, reads of its stripes wait for their lock.
//!
//! Of whole parity stripes a record has no content, but a sum of each sector: enough to tell after a crash which of
//! them have been written, so that parity can be computed again. Such a write is replied to when it is in place, or
//! with write-back as others are. A flush waits until it is in place, and is of the members that have it
//! ([`Log::wait_sums_placed`], [`Log::unflushed`]).
//!
//! Invariants:
//! - Nothing is written in place before its record is durable on all members that are written, or those that lack it
//!   are on record as failed.
//! - One commit at a time, and none while a failure is not on record: of all records only the newest can be
//!   uncommitted.
//! - A record is trimmed when it is in place and durable there; its place is used again when the member durably holds a
//!   mark that says so.

mod writer;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use uraid_layout::{Bytes, DiskSector, Geometry, MemberIndex, MemberSet, Sectors};

use super::counters::Fill;
use super::error::EngineError;
use super::flusher::Flusher;
use super::members::Members;
use super::operations::Purpose;
use super::replies::Replies;
use super::tasks::{TaskId, Waiters};
use crate::buf::Lease;
use crate::disk::OpKind;
use crate::format::log::record::{Kind, LogSequence};
use crate::format::log::{RECORD_BYTES_MAX, RING_BYTES_MIN};
use crate::format::superblock::Superblock;
use writer::{BLOCK, Writer};

/// See the module.
#[derive(Debug)]
pub(super) struct Log {
    state: RefCell<State>,
    /// Whether sums are enough of whole parity stripes.
    takes_sums: Cell<bool>,
    /// A commit is under way; and whether anything was answered that its record has and no flush covers yet.
    is_committing: Cell<bool>,
    has_answered: Cell<bool>,
    /// The end of the commit under way.
    committed: Waiters,
    /// Something that the log has is in place.
    placed: Waiters,
}

/// What a task is about to write: pieces of members' data areas, by task.
#[derive(Debug, Default)]
struct Update {
    pieces: Vec<Piece>,
    is_by_sums: bool,
    outcome: Option<Result<LogSequence, MemberSet>>,
}

/// A piece of an update; without content it is zeros.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) member: MemberIndex,
    pub(super) sector: DiskSector,
    pub(super) len: Sectors,
    pub(super) kind: Kind,
    pub(super) content: Option<Lease>,
}

#[derive(Debug)]
struct State {
    /// By slot; none for members that are missing from the start.
    writers: Vec<Option<Writer>>,
    limits: Limits,
    /// The number of the next record.
    next: LogSequence,
    /// Records up to here are in place and durable.
    trim: LogSequence,
    /// By task.
    updates: Vec<Update>,
    /// The tasks whose updates are to be committed.
    waiting: VecDeque<TaskId>,
    /// The list of the tasks of a commit, to be used again.
    spare: Vec<TaskId>,
    /// What is committed and not trimmed, in order and without gaps.
    records: VecDeque<Committed>,
    /// The last record with anything in it.
    filled: LogSequence,
    /// The members have said that nothing up to here is to be done again.
    retired: LogSequence,
    /// Who got the last record.
    previous: MemberSet,
    /// Members that lack a record, where there is no redundancy: nothing more is logged, as only the newest record can
    /// be uncommitted.
    lacking: MemberSet,
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

#[derive(Debug)]
struct Committed {
    sequence: LogSequence,
    participants: MemberSet,
    /// Updates that are not in place yet, and those of them that it has the sums of.
    left: usize,
    sums_left: usize,
    /// The last flush that had begun when the last of them was: later ones cover what is in place.
    placed: u64,
    /// The same of those that it has the sums of; none of them is in place: nothing.
    placed_by_sums: Option<u64>,
}

/// What a commit does.
struct Commit {
    /// None: only a flush, so that records can be trimmed.
    record: Option<LogSequence>,
    trim: LogSequence,
    participants: MemberSet,
    tasks: Vec<TaskId>,
}

/// A task's update that the log has, until it is in place or never will be: when this is dropped.
#[derive(Debug)]
pub(super) struct Logged<'a> {
    log: &'a Log,
    members: &'a Members,
    flusher: &'a Flusher,
    sequence: LogSequence,
    is_by_sums: bool,
}

impl Log {
    /// The log of the members with these superblocks.
    ///
    /// # Errors
    /// [`EngineError::LogTooSmall`].
    pub(super) fn new<'a>(
        superblocks: impl Iterator<Item = Option<&'a Superblock>>,
        geometries: impl Iterator<Item = &'a Geometry>,
    ) -> Result<Self, EngineError> {
        let state = RefCell::new(State::new(superblocks, geometries)?);
        let (is_committing, has_answered) = (Cell::new(false), Cell::new(false));
        let (committed, placed) = (Waiters::default(), Waiters::default());
        Ok(Self { state, takes_sums: Cell::new(true), is_committing, has_answered, committed, placed })
    }

    /// Begins anew with these superblocks; nothing is under way.
    ///
    /// # Errors
    /// [`EngineError::LogTooSmall`].
    pub(super) fn restart<'a>(
        &self,
        superblocks: impl Iterator<Item = Option<&'a Superblock>>,
        geometries: impl Iterator<Item = &'a Geometry>,
    ) -> Result<(), EngineError> {
        let updates = std::mem::take(&mut self.state.borrow_mut().updates);
        *self.state.borrow_mut() = State { updates, ..State::new(superblocks, geometries)? };
        Ok(())
    }

    /// What the engine needs of each member's log.
    pub(super) fn size_min(geometry: &Geometry) -> Bytes {
        let stripe = on_member(geometry);
        Bytes((2 * (stripe + 4 * BLOCK.0)).max(RING_BYTES_MIN.0).next_multiple_of(BLOCK.0))
    }

    /// Whether sums are enough of whole parity stripes.
    pub(super) fn takes_sums(&self) -> bool {
        self.takes_sums.get()
    }

    /// Changes that, for updates that come from now on.
    pub(super) fn set_takes_sums(&self, takes_sums: bool) {
        self.takes_sums.set(takes_sums);
    }

    /// How many parity stripes one update may touch.
    pub(super) fn stripes_max(&self) -> u64 {
        self.state.borrow().limits.stripes
    }

    /// One member's ring; none for a member that was missing from the start.
    pub(super) fn fill_of(&self, member: MemberIndex) -> Option<Fill> {
        let state = self.state.borrow();
        let ring = &state.writers.get(member.index())?.as_ref()?.ring;
        Some(Fill { used: ring.used(), limit: ring.size() })
    }

    /// Whether content that is durable in the log counts as durable. It does where the array can do without a member
    /// that then fails to take it in place. Without redundancy it would be in memory alone once its record is trimmed.
    pub(super) fn counts(members: &Members) -> bool {
        members.tolerance() > 0 || planted!(LoggedCounts)
    }

    /// Hands the running task's update to the log, which `fill` appends, and waits until it is durable there; members
    /// that lack it then are still to be put on record. Of an update `is_by_sums` it has sums only.
    ///
    /// # Errors
    /// [`EngineError::LogFailed`]; [`EngineError::Frozen`].
    pub(super) async fn put<'a>(
        &'a self,
        is_by_sums: bool,
        fill: impl FnOnce(&mut Vec<Piece>),
        members: &'a Members,
        flusher: &'a Flusher,
    ) -> Result<Logged<'a>, EngineError> {
        let index = members.tasks.current().index();
        {
            let State { updates, waiting, .. } = &mut *self.state.borrow_mut();
            if updates.len() <= index {
                updates.resize_with(index + 1, Update::default);
            }
            assert!(updates[index].pieces.is_empty(), "a task has one update at a time");
            fill(&mut updates[index].pieces);
            (updates[index].outcome, updates[index].is_by_sums) = (None, is_by_sums);
            waiting.push_back(members.tasks.current());
        }
        members.tasks.park().await;
        let outcome = {
            let update = &mut self.state.borrow_mut().updates[index];
            update.pieces.clear();
            update.outcome.take()
        };
        let logged = match outcome {
            Some(Ok(sequence)) => Ok(Logged { log: self, members, flusher, sequence, is_by_sums }),
            Some(Err(failed)) => Err(EngineError::LogFailed { members: failed }),
            None => Err(EngineError::Frozen),
        };
        members.check_frozen()?;
        logged
    }

    /// Waits for the end of the commit under way, if that has something that was replied to; whether it has.
    pub(super) async fn wait_answered(&self, members: &Members) -> bool {
        let waits = self.is_committing.get() && self.has_answered.get() && !planted!(FlushBeforeCommit);
        if waits {
            self.committed.wait(&members.tasks).await;
        }
        waits
    }

    /// Waits until everything that the log has the sums of by now is in place, or never will be: it may have been
    /// replied to.
    ///
    /// # Errors
    /// [`EngineError::Frozen`].
    pub(super) async fn wait_sums_placed(&self, members: &Members) -> Result<(), EngineError> {
        let last = LogSequence(self.state.borrow().next.0 - 1);
        let is_left = |record: &Committed| record.sequence <= last && record.sums_left > 0;
        while self.state.borrow().records.iter().any(is_left) && !planted!(FlushBeforeSums) {
            members.check_frozen()?;
            self.placed.wait(&members.tasks).await;
        }
        members.check_frozen()
    }

    /// The members that may lose something which was replied to, and of which the log has no content.
    pub(super) fn unflushed(&self, members: &Members, flusher: &Flusher) -> MemberSet {
        let state = self.state.borrow();
        let of = |record: &Committed| {
            let placed = record.placed_by_sums.filter(|_| !planted!(SumsCountAsContent));
            placed.map_or(MemberSet::EMPTY, |placed| record.unflushed_since(placed, flusher))
        };
        state.records.iter().map(of).fold(MemberSet::EMPTY, MemberSet::union).minus(members.missing())
    }

    /// Waits for the end of the commit under way; whether there is one.
    pub(super) async fn wait_idle(&self, members: &Members) -> bool {
        let waits = self.is_committing.get();
        if waits {
            self.committed.wait(&members.tasks).await;
        }
        waits
    }

    /// Waits until all that the log has by now is in place, durable and trimmed: after the next record nobody does it
    /// again. Who waits has nothing in the log that is not in place.
    ///
    /// # Errors
    /// [`EngineError::FlushFailed`] where a member that is needed fails that: no later flush proves anything;
    /// [`EngineError::Frozen`].
    pub(super) async fn outlive(&self, members: &Members, flusher: &Flusher) -> Result<(), EngineError> {
        let last = LogSequence(self.state.borrow().next.0 - 1);
        loop {
            members.check_frozen()?;
            // A flush may have come between one of a record's writes and the last of them.
            self.state
                .borrow()
                .in_doubt(flusher)
                .minus(members.missing())
                .iter()
                .for_each(|one| members.note_written(one));
            flusher.flush(members, members.all()).await;
            members.failures_recorded().await?;
            let is_waiting = {
                let state = &mut *self.state.borrow_mut();
                state.advance(members.record().recorded_missing(), flusher);
                if state.trim >= last {
                    return Ok(());
                }
                state.records.iter().any(|record| record.sequence <= last && record.left > 0)
            };
            let failed = flusher.failures();
            if !failed.is_empty() && !planted!(FailedFlushAwaited) {
                return Err(EngineError::FlushFailed { members: failed });
            }
            if is_waiting || !failed.is_empty() {
                self.placed.wait(&members.tasks).await;
            }
        }
    }

    /// Has the members say durably that nothing that the log has by now is to be done again, while it goes on. Who
    /// waits has nothing in the log that is not in place.
    ///
    /// # Errors
    /// [`EngineError::LogFailed`]; [`EngineError::FlushFailed`]; [`EngineError::Frozen`].
    pub(super) async fn retire(
        &self,
        members: &Members,
        flusher: &Flusher,
        replies: &Replies,
    ) -> Result<(), EngineError> {
        let last = self.state.borrow().filled;
        if self.state.borrow().retired >= last || planted!(ReshapeLogKept) {
            return Ok(());
        }
        self.outlive(members, flusher).await?;
        loop {
            members.check_frozen()?;
            if self.wait_idle(members).await {
                continue;
            }
            members.failures_recorded().await?;
            if self.is_committing.get() {
                continue;
            }
            let commit = {
                let state = &mut *self.state.borrow_mut();
                if !state.lacking.is_empty() {
                    return Err(EngineError::LogFailed { members: state.lacking });
                }
                let behind = state.behind(last, members.missing());
                if behind.is_empty() {
                    state.retired = last;
                    return Ok(());
                }
                state.seal_for(behind, Vec::new())
            };
            self.carry_out(commit, members, flusher, replies).await;
        }
    }

    /// Whether a commit may begin.
    pub(super) fn wants_commit(&self) -> bool {
        !self.is_committing.get() && !self.state.borrow().waiting.is_empty()
    }

    /// Writes one record of what waits to its participants and flushes them, or makes room for it; or nothing, as long
    /// as something is in its way.
    pub(super) async fn commit(&self, members: &Members, flusher: &Flusher, replies: &Replies) {
        if let Some(commit) = self.begin(members, flusher) {
            self.carry_out(commit, members, flusher, replies).await;
        }
    }

    /// Does what a commit is to do, and tells those whose updates it has.
    async fn carry_out(&self, mut commit: Commit, members: &Members, flusher: &Flusher, replies: &Replies) {
        self.is_committing.set(true);
        self.has_answered.set(false);
        let failed = self.write(&commit, members).await;
        if members.fail(failed).is_err() && members.tolerance() > 0 {
            members.freeze();
        }
        self.answer_written(&commit, failed, members, replies);
        let whom = if planted!(FlushSomeParticipants) && commit.record.is_some() {
            let first = commit.participants.iter().next();
            first.map_or(commit.participants, |first| commit.participants.without(first))
        } else {
            commit.participants
        };
        if !(planted!(DropCommitFlush) && commit.record.is_some()) {
            flusher.flush(members, whom).await;
        }
        let failed = failed.union(flusher.failures());
        let state = &mut *self.state.borrow_mut();
        let gone = members.missing();
        // Without redundancy nothing makes up for a member that lacks the record.
        let is_committed = failed.minus(gone).is_empty();
        if !is_committed {
            state.lacking = failed;
        } else if commit.record.is_some() {
            for member in commit.participants.minus(gone).iter() {
                state.writer(member).ring.mark(commit.trim);
            }
        }
        for &task in &commit.tasks {
            let sequence = commit.record.expect("tasks have a record");
            if !is_committed {
                state.in_place(sequence, flusher.begun(), state.updates[task.index()].is_by_sums);
            }
            state.updates[task.index()].outcome = Some(if is_committed { Ok(sequence) } else { Err(failed) });
            members.tasks.wake(task);
        }
        commit.tasks.clear();
        state.spare = commit.tasks;
        self.is_committing.set(false);
        self.committed.wake(&members.tasks);
        if !is_committed && !planted!(FailedCommitUntold) {
            // What it has never will be in place.
            self.placed.wake(&members.tasks);
        }
    }

    /// What there is to commit.
    fn begin(&self, members: &Members, flusher: &Flusher) -> Option<Commit> {
        let state = &mut *self.state.borrow_mut();
        let tasks = &members.tasks;
        if members.is_frozen() {
            state.waiting.drain(..).for_each(|task| tasks.wake(task));
            return None;
        }
        if !state.lacking.is_empty() {
            for task in state.waiting.drain(..) {
                state.updates[task.index()].outcome = Some(Err(state.lacking));
                tasks.wake(task);
            }
            return None;
        }
        state.advance(members.record().recorded_missing(), flusher);
        if !planted!(NextCommitDespiteFailure) && !members.record().has_failures_on_record() {
            // It goes on when they are.
            members.demand_record();
            return None;
        }
        let taken = state.gather(members.missing(), |task| tasks.wake(task));
        if !taken.is_empty() {
            return Some(state.seal(taken));
        }
        state.spare = taken;
        state.make_room(members, flusher)
    }

    /// Writes the sealed record to its participants: who failed that.
    async fn write(&self, commit: &Commit, members: &Members) -> MemberSet {
        if commit.record.is_none() {
            return MemberSet::EMPTY;
        }
        members.operations.begin_call(Purpose::Writes);
        for member in commit.participants.iter() {
            let state = &mut *self.state.borrow_mut();
            let (offset, total, memory) = state.writer(member).take();
            // The log is not near the data: the queue's head says nothing.
            let mut operation = members.operations.piecewise(member, OpKind::Write, offset, DiskSector(0));
            memory.for_each(|lease| operation.push(lease));
            operation.finish();
            members.counters.borrow_mut().log(member, total);
        }
        let failed = members.operations.end_call().await.failed;
        if planted!(LogWriteErrorIgnored) { MemberSet::EMPTY } else { failed }
    }

    /// Replies to the plain writes of a record that all participants have taken.
    fn answer_written(&self, commit: &Commit, failed: MemberSet, members: &Members, replies: &Replies) {
        let may = failed.is_empty() && members.record().has_failures_on_record() && !members.is_frozen();
        let mut has_answered = false;
        for &task in commit.tasks.iter().filter(|_| may) {
            has_answered |= replies.answer(task, false);
        }
        self.has_answered.set(has_answered);
    }
}

impl Drop for Logged<'_> {
    fn drop(&mut self) {
        if !self.members.is_frozen() {
            self.log.state.borrow_mut().in_place(self.sequence, self.flusher.begun(), self.is_by_sums);
        }
        self.log.placed.wake(&self.members.tasks);
    }
}

impl State {
    fn new<'a>(
        superblocks: impl Iterator<Item = Option<&'a Superblock>>,
        geometries: impl Iterator<Item = &'a Geometry>,
    ) -> Result<Self, EngineError> {
        let largest = geometries.max_by_key(|geometry| on_member(geometry)).expect("an array has a shape");
        let (stripe, needed) = (on_member(largest), Log::size_min(largest));
        let mut size = u64::MAX;
        let mut writers = Vec::new();
        for (slot, superblock) in (0..).map(MemberIndex).zip(superblocks) {
            let writer = superblock.map(|superblock| {
                let ring = superblock.ring();
                let part = ring.size.0 / BLOCK.0 * BLOCK.0;
                size = size.min(part);
                Writer::new(ring.offset, part, superblock.generation, slot)
            });
            writers.push(writer);
        }
        // Whatever is live, one side of it has half of the ring.
        let record = (size / 2).saturating_sub(2 * BLOCK.0).min(RECORD_BYTES_MAX.0);
        let stripes = |bytes: u64| bytes.saturating_sub(2 * BLOCK.0) / stripe;
        if size < needed.0 {
            return Err(EngineError::LogTooSmall { size: Bytes(size), needed });
        }
        let limits = Limits { group: Bytes(size / 4), record: Bytes(record), stripes: stripes(size / 4).max(1) };
        assert!(stripes(record) > 0, "the smallest log has room for a parity stripe");
        Ok(Self {
            writers,
            limits,
            next: LogSequence(1),
            trim: LogSequence(0),
            updates: Vec::new(),
            waiting: VecDeque::new(),
            spare: Vec::new(),
            records: VecDeque::new(),
            filled: LogSequence(0),
            retired: LogSequence(0),
            previous: MemberSet::EMPTY,
            lacking: MemberSet::EMPTY,
        })
    }

    fn writer(&mut self, member: MemberIndex) -> &mut Writer {
        self.writers[member.index()].as_mut().expect("a member that is written has a log")
    }

    /// Notes that one of a record's updates is in place, or never will be; `begun` flushes have begun.
    fn in_place(&mut self, sequence: LogSequence, begun: u64, is_by_sums: bool) {
        if planted!(TrimAheadOfWrite) && self.trim >= sequence {
            return;
        }
        let first = self.records.front().expect("a record with updates is not trimmed").sequence;
        let index = usize::try_from(sequence.0 - first.0).expect("a number of records");
        let record = &mut self.records[index];
        record.left -= 1;
        record.placed = begun;
        if is_by_sums {
            record.sums_left -= 1;
            record.placed_by_sums = Some(begun);
        }
    }

    /// Trims what is in place and durable, or on members that are durably recorded as failed.
    fn advance(&mut self, failed: MemberSet, flusher: &Flusher) {
        while let Some(record) = self.records.front() {
            let is_in_place = record.left == 0 || planted!(TrimAheadOfWrite);
            let is_early = [planted!(TrimUnflushed), planted!(TrimAheadOfWrite)].contains(&true);
            let is_durable = record.unflushed(flusher).minus(failed).is_empty() || is_early;
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

    /// Takes as many updates into the next record as there is room for.
    fn gather(&mut self, missing: MemberSet, wake: impl Fn(TaskId)) -> Vec<TaskId> {
        let mut taken = std::mem::take(&mut self.spare);
        self.writers.iter_mut().flatten().for_each(Writer::clear);
        while let Some(&task) = self.waiting.front() {
            self.writers.iter_mut().flatten().for_each(Writer::begin);
            let Self { writers, updates, .. } = self;
            for piece in updates[task.index()].pieces.iter().filter(|piece| !missing.contains(piece.member)) {
                let writer = writers[piece.member.index()].as_mut().expect("a member that is written has a log");
                writer.add(piece.sector, piece.len, piece.kind);
            }
            if !self.fits(taken.is_empty()) {
                let is_too_large = |writer: &Writer| writer.is_too_large(self.limits.record);
                if taken.is_empty() && self.writers.iter().flatten().any(is_too_large) {
                    // It fails, as one that could not be written.
                    self.waiting.pop_front();
                    self.updates[task.index()].outcome = Some(Err(MemberSet::EMPTY));
                    wake(task);
                }
                self.writers.iter_mut().flatten().for_each(Writer::undo);
                break;
            }
            self.waiting.pop_front();
            taken.push(task);
        }
        for &task in &taken {
            let Self { writers, updates, .. } = self;
            for piece in updates[task.index()].pieces.drain(..).filter(|piece| !missing.contains(piece.member)) {
                let writer = writers[piece.member.index()].as_mut().expect("a member that is written has a log");
                piece.content.into_iter().for_each(|lease| writer.push(piece.kind, lease));
            }
        }
        taken
    }

    /// Whether the record under construction has a place on every participant.
    fn fits(&self, is_first: bool) -> bool {
        let limit = if is_first { self.limits.record } else { self.limits.group };
        let mut writers = self.writers.iter().flatten().filter(|writer| !writer.is_empty());
        writers.all(|writer| !writer.is_too_large(limit) && writer.has_place())
    }

    /// Ends the record under construction: every participant gets its place and header.
    fn seal(&mut self, tasks: Vec<TaskId>) -> Commit {
        let writers = self.writers.iter().flatten();
        let participants = writers.filter(|writer| !writer.is_empty()).map(Writer::slot).collect();
        self.seal_for(participants, tasks)
    }

    fn seal_for(&mut self, participants: MemberSet, tasks: Vec<TaskId>) -> Commit {
        let (sequence, trim) = (self.next, self.trim);
        self.next = LogSequence(sequence.0 + 1);
        if !tasks.is_empty() {
            self.filled = sequence;
        }
        let previous = std::mem::replace(&mut self.previous, participants);
        for member in participants.iter() {
            self.writer(member).seal(sequence, trim, participants, previous);
        }
        let in_place = if tasks.is_empty() { MemberSet::EMPTY } else { participants };
        let sums_left = tasks.iter().filter(|task| self.updates[task.index()].is_by_sums).count();
        self.records.push_back(Committed {
            sequence,
            participants: in_place,
            left: tasks.len(),
            sums_left,
            placed: 0,
            placed_by_sums: None,
        });
        Commit { record: Some(sequence), trim, participants, tasks }
    }

    /// Members that may lose something of the oldest records which is in place.
    fn in_doubt(&self, flusher: &Flusher) -> MemberSet {
        let in_place = self.records.iter().take_while(|record| record.left == 0);
        in_place.fold(MemberSet::EMPTY, |all, record| all.union(record.unflushed(flusher)))
    }

    /// Makes room in the rings, when the next update has none: by a flush that makes what is in place durable, then by
    /// records that only carry the mark. Neither helps before something is in place.
    fn make_room(&mut self, members: &Members, flusher: &Flusher) -> Option<Commit> {
        if self.waiting.is_empty() {
            return None;
        }
        let unflushed = self.in_doubt(flusher).minus(members.missing());
        if !unflushed.is_empty() {
            // A flush may have come between one of a record's writes and the last of them.
            unflushed.iter().for_each(|member| members.note_written(member));
            return Some(Commit { record: None, trim: self.trim, participants: unflushed, tasks: Vec::new() });
        }
        let behind = self.behind(self.trim, members.missing());
        if behind.is_empty() {
            return None;
        }
        Some(self.seal_for(behind, Vec::new()))
    }

    /// The members whose rings have something up to a record, all of which is in place, and no mark says so of it yet.
    /// A mark that frees nothing would only take the block that is kept for one. Their next record is begun.
    fn behind(&mut self, last: LogSequence, missing: MemberSet) -> MemberSet {
        self.writers.iter_mut().flatten().for_each(Writer::clear);
        let is_behind = |writer: &&Writer| writer.ring.frees(last) && !missing.contains(writer.slot());
        self.writers.iter().flatten().filter(is_behind).map(Writer::slot).collect()
    }
}

/// What a parity stripe takes of a member, in bytes.
fn on_member(geometry: &Geometry) -> u64 {
    geometry.chunk().bytes().0 * geometry.rows() as u64
}

impl Committed {
    /// Participants that may lose what was written in place.
    fn unflushed(&self, flusher: &Flusher) -> MemberSet {
        let placed = if planted!(FlushCoversLater) { self.placed.saturating_sub(1) } else { self.placed };
        self.unflushed_since(placed, flusher)
    }

    /// Participants that may lose what was in place when so many flushes had begun.
    fn unflushed_since(&self, placed: u64, flusher: &Flusher) -> MemberSet {
        self.participants.iter().filter(|&member| flusher.last_of(member) <= placed).collect()
    }
}
