//! The engine's side of the redo log: group commit, and when a record's place may be used again.
//!
//! What a task is about to write waits here, in the order of asking, until a commit takes it along: one record on every
//! member that is to be written, then a flush of those members. Tasks that come while as many commits are under way as
//! may be go into the next one. A task writes in place when its commit is durable, and holds its stripes' locks from
//! before it asked until it has. Its client has the reply by then: a write is replied to when its record is written,
//! FUA when it is durable. Until it is in place, reads of its stripes wait for their lock.
//!
//! Of whole parity stripes a record has no content, but a sum of each sector: enough to tell after a crash which of
//! them have been written, so that parity can be computed again. Such a write is replied to when it is in place, or
//! with write-back when it is handed over: it is in memory, as what the cache has. A flush waits until it is in place,
//! and is of the members that have it ([`Log::wait_sums_placed`], [`Log::unflushed`]). Records that have nothing else
//! begin when nothing is being written in place, or enough has come together.
//!
//! Invariants:
//! - Nothing is written in place before its record is durable on all members that are written, or those that lack it
//!   are on record as failed.
//! - No commit begins while a failure is not on record, and each record says which others are *open* when it gets its
//!   number: of all others before it those that are on record as failed lack it, or nobody does.
//! - Records that are open together have nothing in common: updates of parity stripes hold these, and pages that go
//!   into the journal don't go there again before they have arrived or were overtaken. So it does not matter which of
//!   them count after a stop.
//! - A record is trimmed when it is in place and durable there; its place is used again when the member durably holds a
//!   mark that says so.

mod state;
mod writer;

use std::cell::{Cell, RefCell};

use smallvec::SmallVec;
use uraid_layout::{Bytes, DiskSector, Geometry, MemberIndex, MemberSet};

use super::counters::Fill;
use super::error::EngineError;
use super::flusher::Flusher;
use super::members::Members;
use super::operations::{Call, Purpose};
use super::replies::Replies;
use super::tasks::{TaskId, Waiters};
use crate::buf::Lease;
use crate::disk::OpKind;
use crate::format::log::record::{Header, LogSequence, OPEN_MAX};
use crate::format::superblock::Superblock;
use state::{Commit, Committed, Limits, Open, State, Update};
pub(super) use state::{Form, Piece};
use writer::{BLOCK, Writer};

/// Blocks of each ring of the journal that are kept for records that only have a mark. A start goes on with what is in
/// the rings, also with one that a stop has cut off and which frees nothing any more: there have to be others.
const MARKS_KEPT: u64 = 4;

/// Whoever is to get pages has an operation under way: that counts as much as this part of its ring.
const BURDEN: u64 = 16;

/// See the module.
#[derive(Debug)]
pub(super) struct Log {
    state: RefCell<State>,
    /// Of a journal: no record has anything that is about to be written in place.
    is_journal: bool,
    /// Each record is written durably by itself: that of a journal is, and what is on log devices, which have nothing
    /// else that could go with its flush.
    is_through: bool,
    /// A record's memory on its way to several log devices, to be used again.
    memory: RefCell<Vec<Lease>>,
    /// Whether sums are enough of whole parity stripes.
    takes_sums: Cell<bool>,
    /// The end of a commit.
    committed: Waiters,
    /// Something that the log has is in place.
    placed: Waiters,
}

/// A task's update that the log has, until it is in place or never will be: when this is dropped.
#[derive(Debug)]
pub(super) struct Logged<'a> {
    log: &'a Log,
    members: &'a Members,
    flusher: &'a Flusher,
    sequence: LogSequence,
    form: Form,
}

/// Who is to get pages: `count` of the members that may, with the least in their rings and under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    /// Who may not.
    pub(super) without: MemberSet,
    /// Who does not answer, for all that is known: they come last.
    pub(super) late: MemberSet,
    pub(super) count: usize,
    /// What the record takes of a member, at most.
    pub(super) size: Bytes,
    /// Up to how many eighths a ring may be filled.
    pub(super) share: u64,
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
        let superblocks: Vec<Option<&Superblock>> = superblocks.collect();
        let is_through = superblocks.iter().flatten().any(|own| own.logs.is_some());
        let state = State::new(superblocks.into_iter(), geometries)?;
        Ok(Self { is_through, ..Self::of(state, false) })
    }

    fn of(state: State, is_journal: bool) -> Self {
        let (committed, placed) = (Waiters::default(), Waiters::default());
        let (state, takes_sums) = (RefCell::new(state), Cell::new(true));
        let memory = RefCell::default();
        Self { state, is_journal, is_through: is_journal, memory, takes_sums, committed, placed }
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

    /// The journal of pages of the members with these superblocks. None where they have no room for it.
    pub(super) fn journal<'a>(superblocks: impl Iterator<Item = Option<&'a Superblock>>) -> Option<Self> {
        let mut writers: Vec<Option<Writer>> = Vec::new();
        for (slot, superblock) in (0..).map(MemberIndex).zip(superblocks) {
            let area = superblock.and_then(|own| Some((own.journal_area()?, own.journal)));
            writers.push(area.map(|(area, generation)| Writer::new(area.offset, area.size.0, generation, slot)));
        }
        let size = writers.iter().flatten().map(|writer| writer.ring.size().0).min()?;
        let (group, record, stripes) = (Bytes(size / 4), Bytes(size / 4), u64::MAX);
        // A record is released as a whole.
        let spare = Bytes(MARKS_KEPT * BLOCK.0);
        let limits = Limits { group, record, stripes, updates: 1, open: OPEN_MAX, spare };
        Some(Self::of(State::of(writers, limits), true))
    }

    /// Takes a member's part of the journal in, of which nothing counts.
    pub(super) fn replace_part(&self, own: &Superblock) {
        let writer = own.journal_area().map(|area| Writer::new(area.offset, area.size.0, own.journal, own.slot));
        self.state.borrow_mut().writers[own.slot.index()] = writer;
    }

    /// What the engine needs of each member's log.
    pub(super) fn size_min(geometry: &Geometry) -> Bytes {
        state::size_min(geometry)
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
    /// that lack it then are still to be put on record.
    ///
    /// # Errors
    /// [`EngineError::LogFailed`]; [`EngineError::Frozen`].
    pub(super) async fn put<'a>(
        &'a self,
        form: Form,
        fill: impl FnOnce(&mut Vec<Piece>),
        members: &'a Members,
        flusher: &'a Flusher,
    ) -> Result<Logged<'a>, EngineError> {
        let sequence = self.hand_over(form, fill, members).await?;
        let logged = Logged { log: self, members, flusher, sequence, form };
        members.check_frozen()?;
        Ok(logged)
    }

    /// The same of pages, which the journal keeps until they are [released](Log::release). None: there is no room for
    /// them any more. It means nothing where the task was [overtaken](Log::overtake).
    ///
    /// # Errors
    /// As [`Log::put`].
    pub(super) async fn put_pages(
        &self,
        fill: impl FnOnce(&mut Vec<Piece>),
        members: &Members,
    ) -> Result<Option<LogSequence>, EngineError> {
        let sequence = match self.hand_over(Form::Content, fill, members).await {
            Err(EngineError::LogFailed { members }) if members.is_empty() => None,
            sequence => Some(sequence?),
        };
        members.check_frozen()?;
        Ok(sequence)
    }

    /// Has a task not wait any more for the record of pages that is being written: [`Log::take_late`] has the end of
    /// that, by `number`. False: there is no such record.
    pub(super) fn overtake(&self, task: TaskId, number: u64, members: &Members) -> bool {
        let state = &mut *self.state.borrow_mut();
        let is_its = |open: &&mut Open| open.task == Some(task) && open.overtaken.is_none();
        let Some(open) = state.open.iter_mut().find(is_its) else { return false };
        open.overtaken = Some(number);
        state.updates[task.index()].outcome = Some(Ok(LogSequence(0)));
        members.tasks.wake(task);
        true
    }

    /// Whether anything that was overtaken has come to its end.
    pub(super) fn has_late(&self) -> bool {
        !self.state.borrow().late.is_empty()
    }

    /// The end of something that was overtaken: its number, and which record has it; none: it could not be written.
    pub(super) fn take_late(&self) -> Option<(u64, Option<LogSequence>)> {
        self.state.borrow_mut().late.pop()
    }

    /// Goes on with these records of pages, of all members and the oldest first, which the members have and which are
    /// needed until they are released.
    pub(super) fn resume(&self, live: &[Header]) {
        self.state.borrow_mut().resume(live);
    }

    /// Notes that nothing of a record of pages is needed any more.
    pub(super) fn release(&self, sequence: LogSequence, members: &Members) {
        {
            let state = &mut *self.state.borrow_mut();
            state.in_place(sequence, 0, Form::Content);
            // Nothing of it is in place of its own: no flush has to cover that.
            let of = |record: &&mut Committed| record.sequence == sequence && record.left == 0;
            state.records.iter_mut().filter(of).for_each(|record| record.participants = MemberSet::EMPTY);
        }
        self.placed.wake(&members.tasks);
    }

    /// The most that a record takes of a member.
    pub(super) fn record_max(&self) -> Bytes {
        self.state.borrow().limits.record
    }

    /// The last record that there was.
    pub(super) fn last(&self) -> LogSequence {
        LogSequence(self.state.borrow().next.0 - 1)
    }

    /// Up to this record all of pages were released.
    pub(super) fn released_upto(&self) -> LogSequence {
        let state = self.state.borrow();
        let first = state.records.iter().find(|record| record.left > 0);
        first.map_or(LogSequence(state.next.0 - 1), |record| LogSequence(record.sequence.0 - 1))
    }

    /// Up to this record of pages nothing counts any more after a stop.
    pub(super) fn marked(&self) -> LogSequence {
        self.state.borrow().marked
    }

    /// Which members are to get the next pages. None: there is no room.
    pub(super) fn choose(&self, members: &Members, choice: Choice) -> Option<MemberSet> {
        let Choice { without, late, count, size, share } = choice;
        let state = self.state.borrow();
        let lost = members.missing().union(members.rebuilding()).union(without);
        let mut able: SmallVec<[&Writer; 16]> =
            state.writers.iter().flatten().filter(|writer| !lost.contains(writer.slot())).collect();
        let turn = usize::try_from(state.next.0 % able.len().max(1) as u64).expect("members are few");
        able.rotate_left(turn);
        let queues = members.operations.queues();
        let overtaken = state.open.iter().filter(|open| open.overtaken.is_some());
        let overtaken = overtaken.fold(MemberSet::EMPTY, |all, open| all.union(open.participants));
        let burden = |writer: &&Writer| {
            let depth = if planted!(BusyChosen) { 0 } else { queues[writer.slot().index()].depth };
            // Whoever stalls gets nothing as long as there are others.
            let stalls = depth > 0 && overtaken.union(late).contains(writer.slot());
            let is_last = stalls || state.has_its_share(writer.slot());
            (is_last, writer.ring.used().0 + writer.ring.size().0 / BURDEN * u64::from(depth))
        };
        able.sort_by_key(burden);
        let fits = |writer: &&Writer| {
            // What waits to be put there may need the same room: then pages are given back.
            let (ring, most) = (&writer.ring, writer.ring.size().0 / 8 * share);
            ring.used().0 + size.0 <= most && ring.find(size, state.limits.spare).is_some()
        };
        let chosen: MemberSet =
            able.iter().take(count).filter(|writer| fits(writer)).map(|writer| writer.slot()).collect();
        (able.len() >= count && chosen.len() == count).then_some(chosen)
    }

    /// Whether one of these members takes part in as many open records as it may.
    pub(super) fn have_their_share(&self, chosen: MemberSet) -> bool {
        let state = self.state.borrow();
        chosen.iter().any(|member| state.has_its_share(member))
    }

    /// Whether a ring has more in it than so many eighths.
    pub(super) fn is_fuller_than(&self, share: u64) -> bool {
        let state = self.state.borrow();
        state.writers.iter().flatten().any(|writer| writer.ring.used().0 > writer.ring.size().0 / 8 * share)
    }

    /// Hands an update over, and waits until it is durable in the log.
    async fn hand_over(
        &self,
        form: Form,
        fill: impl FnOnce(&mut Vec<Piece>),
        members: &Members,
    ) -> Result<LogSequence, EngineError> {
        let index = members.tasks.current().index();
        {
            let State { updates, waiting, handed, .. } = &mut *self.state.borrow_mut();
            if updates.len() <= index {
                updates.resize_with(index + 1, Update::default);
            }
            assert!(updates[index].pieces.is_empty(), "a task has one update at a time");
            fill(&mut updates[index].pieces);
            *handed += 1;
            (updates[index].outcome, updates[index].form, updates[index].number) = (None, form, *handed);
            waiting.push_back(members.tasks.current());
        }
        members.tasks.park().await;
        let outcome = {
            let update = &mut self.state.borrow_mut().updates[index];
            update.pieces.clear();
            update.outcome.take()
        };
        match outcome {
            Some(Ok(sequence)) => Ok(sequence),
            Some(Err(failed)) => Err(EngineError::LogFailed { members: failed }),
            None => Err(EngineError::Frozen),
        }
    }

    /// Waits for the end of the commits under way that have something which was replied to.
    pub(super) async fn wait_answered(&self, members: &Members) {
        let last = self.last();
        let is_due = |open: &Open| open.has_answered && open.sequence <= last;
        while self.state.borrow().open.iter().any(is_due) && !planted!(FlushBeforeCommit) {
            self.committed.wait(&members.tasks).await;
        }
    }

    /// Waits until everything that the log has awaited sums of by now, or is to have, is in place, or never will be: it
    /// may have been replied to.
    ///
    /// # Errors
    /// [`EngineError::Frozen`].
    pub(super) async fn wait_sums_placed(&self, members: &Members) -> Result<(), EngineError> {
        let upto = {
            let state = &mut *self.state.borrow_mut();
            state.awaited = state.handed;
            state.awaited
        };
        while self.state.borrow().has_waiting_sums(upto) && !planted!(FlushBeforeRecord) {
            members.check_frozen()?;
            self.committed.wait(&members.tasks).await;
        }
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

    /// Waits for the end of a commit, if any is under way; whether one is.
    pub(super) async fn wait_idle(&self, members: &Members) -> bool {
        let waits = self.state.borrow().is_committing();
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
        self.tell(last, members, flusher, replies).await?;
        self.state.borrow_mut().retired = last;
        Ok(())
    }

    /// Has the members say durably what is not to be done again by now, so that there is room.
    ///
    /// # Errors
    /// As [`Log::retire`].
    pub(super) async fn tell_trim(
        &self,
        members: &Members,
        flusher: &Flusher,
        replies: &Replies,
    ) -> Result<(), EngineError> {
        let last = {
            let state = &mut *self.state.borrow_mut();
            state.advance(members.record().recorded_missing(), flusher);
            state.trim
        };
        self.tell(last, members, flusher, replies).await
    }

    async fn tell(
        &self,
        last: LogSequence,
        members: &Members,
        flusher: &Flusher,
        replies: &Replies,
    ) -> Result<(), EngineError> {
        loop {
            self.wait_turn(members).await?;
            let commit = {
                let state = &mut *self.state.borrow_mut();
                if !state.lacking.is_empty() {
                    return Err(EngineError::LogFailed { members: state.lacking });
                }
                let behind = state.behind(last, members.missing());
                if behind.is_empty() || planted!(JournalMarkUntold) {
                    state.marked = state.marked.max(last);
                    return Ok(());
                }
                let full = state.too_full(behind);
                if !full.is_empty() {
                    return Err(EngineError::LogFailed { members: full });
                }
                state.seal_mark(behind)
            };
            self.carry_out(commit, members, flusher, replies).await;
        }
    }

    /// Has a member that has come into a slot say the same: what is in its part of the log is somebody's who was there
    /// before, or its own of that time.
    ///
    /// # Errors
    /// As [`Log::retire`].
    pub(super) async fn tell_joined(
        &self,
        member: MemberIndex,
        members: &Members,
        flusher: &Flusher,
        replies: &Replies,
    ) -> Result<(), EngineError> {
        self.wait_turn(members).await?;
        let commit = {
            let state = &mut *self.state.borrow_mut();
            if members.missing().contains(member) || state.writers[member.index()].is_none() {
                return Ok(());
            }
            state.advance(members.record().recorded_missing(), flusher);
            state.writer(member).clear();
            state.seal_mark(MemberSet::EMPTY.with(member))
        };
        self.carry_out(commit, members, flusher, replies).await;
        members.failures_recorded().await
    }

    /// Waits until a record may begin that only has a mark.
    async fn wait_turn(&self, members: &Members) -> Result<(), EngineError> {
        loop {
            members.check_frozen()?;
            members.failures_recorded().await?;
            let may_begin = self.state.borrow().may_mark() && !self.state.borrow().is_making_room;
            if may_begin || planted!(MarksTogether) {
                return Ok(());
            }
            self.committed.wait(&members.tasks).await;
        }
    }

    /// Whether a commit may begin.
    pub(super) fn wants_commit(&self) -> bool {
        let state = self.state.borrow();
        state.may_begin() && !state.waiting.is_empty() && !state.gathers()
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
        let failed = self.write(&commit, members).await;
        if members.fail(failed).is_err() && members.tolerance() > 0 {
            members.freeze();
        }
        // Pages are durable by now; and whoever was overtaken may be at something else.
        if !self.is_journal {
            self.answer_written(&commit, failed, members, replies);
        }
        let whom = if planted!(FlushSomeParticipants) && commit.record.is_some() {
            let first = commit.participants.iter().next();
            first.map_or(commit.participants, |first| commit.participants.without(first))
        } else {
            commit.participants
        };
        let is_durable = (self.is_through || planted!(DropCommitFlush)) && commit.record.is_some();
        if !is_durable {
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
            // Others may hold what only some say of: who has the record is enough where it has content.
            if !commit.tasks.is_empty() {
                state.marked = state.marked.max(commit.trim);
            }
        }
        let overtaken = state.open.iter().find(|open| Some(open.sequence) == commit.record);
        let overtaken = overtaken.and_then(|open| open.overtaken);
        for &task in &commit.tasks {
            let sequence = commit.record.expect("tasks have a record");
            if let Some(number) = overtaken {
                state.late.push((number, Some(sequence).filter(|_| is_committed)));
                continue;
            }
            if !is_committed {
                state.in_place(sequence, flusher.begun(), state.updates[task.index()].form);
            }
            state.updates[task.index()].outcome = Some(if is_committed { Ok(sequence) } else { Err(failed) });
            members.tasks.wake(task);
        }
        state.is_making_room &= !commit.tasks.is_empty();
        commit.tasks.clear();
        state.spare.push(commit.tasks);
        state.open.retain(|open| Some(open.sequence) != commit.record);
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
        state.spare.push(taken);
        let commit = state.make_room(members, flusher);
        if commit.is_none() && self.is_journal && !state.is_committing() && !planted!(RoomAwaited) {
            // What would make room may wait for this.
            for task in state.waiting.drain(..) {
                state.updates[task.index()].outcome = Some(Err(MemberSet::EMPTY));
                tasks.wake(task);
            }
        }
        commit
    }

    /// Writes the sealed record to its participants: who failed that.
    async fn write(&self, commit: &Commit, members: &Members) -> MemberSet {
        if commit.record.is_none() {
            return MemberSet::EMPTY;
        }
        let (purpose, kind) = match self.is_through && !planted!(PagesUnflushed) {
            true => (Purpose::Other, OpKind::WriteFua),
            false => (Purpose::Writes, OpKind::Write),
        };
        members.operations.begin_call(purpose);
        for member in commit.participants.iter() {
            let state = &mut *self.state.borrow_mut();
            let (offset, total, leases) = state.writer(member).take(commit.berth);
            let memory = &mut *self.memory.borrow_mut();
            memory.extend(leases);
            for place in members.log_places(member) {
                // The log is not near the data: the queue's head says nothing.
                let mut operation = members.operations.piecewise(place, kind, offset, DiskSector(0));
                memory.iter().for_each(|lease| operation.push(lease.part(0..lease.len())));
                operation.finish();
                members.counters.borrow_mut().log(place, total);
            }
            memory.clear();
        }
        let Call { failed, failed_logs, .. } = members.operations.end_call().await;
        members.fail_logs(failed_logs);
        if planted!(LogWriteErrorIgnored) { MemberSet::EMPTY } else { failed }
    }

    /// Replies to the plain writes of a record that all participants have taken.
    fn answer_written(&self, commit: &Commit, failed: MemberSet, members: &Members, replies: &Replies) {
        let may = failed.is_empty() && members.record().has_failures_on_record() && !members.is_frozen();
        let mut has_answered = false;
        for &task in commit.tasks.iter().filter(|_| may) {
            has_answered |= replies.answer(task, false);
        }
        let state = &mut *self.state.borrow_mut();
        for open in state.open.iter_mut().filter(|open| Some(open.sequence) == commit.record) {
            open.has_answered = has_answered;
        }
    }
}

impl Drop for Logged<'_> {
    fn drop(&mut self) {
        if !self.members.is_frozen() {
            self.log.state.borrow_mut().in_place(self.sequence, self.flusher.begun(), self.form);
        }
        self.log.placed.wake(&self.members.tasks);
    }
}
