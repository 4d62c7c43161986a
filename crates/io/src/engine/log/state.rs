//! What a log has, in memory: who is to write what, and which records there are and count.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;
use uraid_layout::{Bytes, DiskSector, Geometry, MemberIndex, MemberSet, SECTOR_BYTES, Sectors};

use super::writer::{BLOCK, Stamp, Writer};
use crate::buf::Lease;
use crate::engine::error::EngineError;
use crate::engine::flusher::Flusher;
use crate::engine::members::Members;
use crate::engine::tasks::TaskId;
use crate::format::log::record::{Header, Kind, LogSequence, OPEN_MAX};
use crate::format::log::{RECORD_BYTES_MAX, RING_BYTES_MIN};
use crate::format::superblock::Superblock;

/// So much is gathered for a record of sums alone while stripes are being written in place. Each record takes a flush
/// of everybody, and the disks are busy meanwhile.
const GATHERED: Sectors = Sectors((8 << 20) / SECTOR_BYTES);

/// The most open records of a log that is no journal.
const OPEN_DEFAULT: usize = 1;

/// What a task is about to write: pieces of members' data areas, by task.
#[derive(Debug, Default)]
pub(super) struct Update {
    pub(super) pieces: Vec<Piece>,
    pub(super) form: Form,
    /// How many were handed over before it, and it.
    pub(super) number: u64,
    pub(super) outcome: Option<Result<LogSequence, MemberSet>>,
}

/// How the log has an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) enum Form {
    #[default]
    Content,
    /// By sums of its content. Flushes wait until it is in place if it `is_awaited`.
    Sums { is_awaited: bool },
}

/// A piece of an update; without content it is zeros.
#[derive(Debug)]
pub(in crate::engine) struct Piece {
    pub(in crate::engine) member: MemberIndex,
    pub(in crate::engine) sector: DiskSector,
    pub(in crate::engine) len: Sectors,
    pub(in crate::engine) kind: Kind,
    pub(in crate::engine) content: Option<Lease>,
}

#[derive(Debug)]
pub(super) struct State {
    /// By slot; none for members that are missing from the start.
    pub(super) writers: Vec<Option<Writer>>,
    pub(super) limits: Limits,
    /// The number of the next record.
    pub(super) next: LogSequence,
    /// Records up to here are in place and durable.
    pub(super) trim: LogSequence,
    /// Of a journal: whoever is lost, the others say so durably of those up to here.
    pub(super) marked: LogSequence,
    /// By task.
    pub(super) updates: Vec<Update>,
    /// The tasks whose updates are to be committed.
    pub(super) waiting: VecDeque<TaskId>,
    /// Lists of the tasks of commits, to be used again.
    pub(super) spare: Vec<Vec<TaskId>>,
    /// Records that are being written.
    pub(super) open: SmallVec<[Open; OPEN_MAX]>,
    /// What nobody waited for any more and is over: in which record it is, if it is in one.
    pub(super) late: Vec<(u64, Option<LogSequence>)>,
    /// Somebody makes room, for which a block is kept.
    pub(super) is_making_room: bool,
    /// What is open or committed, and not trimmed, in order and without gaps.
    pub(super) records: VecDeque<Committed>,
    /// The last record with anything in it.
    pub(super) filled: LogSequence,
    /// The members have said that nothing up to here is to be done again.
    pub(super) retired: LogSequence,
    /// Who got the last records, the newest first.
    pub(super) previous: [MemberSet; OPEN_MAX],
    /// Members that lack a record, where there is no redundancy: nothing more is logged, as a record that does not call
    /// it open would say that it is committed.
    pub(super) lacking: MemberSet,
    /// How many updates were handed over.
    pub(super) handed: u64,
    /// Somebody waits for all up to this one.
    pub(super) awaited: u64,
}

/// How large records may be on one member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// A record of several updates.
    pub(super) group: Bytes,
    /// A record of one.
    pub(super) record: Bytes,
    /// The parity stripes that one update may touch.
    pub(super) stripes: u64,
    /// The updates in a record, and the records that may be open.
    pub(super) updates: usize,
    pub(super) open: usize,
    /// What is kept of each ring for records that only have a mark: one that a stop has cut off keeps its place.
    pub(super) spare: Bytes,
}

#[derive(Debug)]
pub(super) struct Committed {
    pub(super) sequence: LogSequence,
    pub(super) participants: MemberSet,
    /// Updates that are not in place yet, and those of them that it has the sums of.
    pub(super) left: usize,
    pub(super) sums_left: usize,
    /// The last flush that had begun when the last of them was: later ones cover what is in place.
    pub(super) placed: u64,
    /// The same of those that it has the sums of; none of them is in place: nothing.
    pub(super) placed_by_sums: Option<u64>,
}

/// A record that is being written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) sequence: LogSequence,
    pub(super) participants: MemberSet,
    /// Whose memory holds it: of each participant, the same.
    berth: usize,
    /// Something was replied to that it has.
    pub(super) has_answered: bool,
    /// Of a journal: whose update it has, and what that is called since nobody waits for it any more.
    pub(super) task: Option<TaskId>,
    pub(super) overtaken: Option<u64>,
}

/// What a commit does.
pub(super) struct Commit {
    /// None: only a flush, so that records can be trimmed.
    pub(super) record: Option<LogSequence>,
    pub(super) trim: LogSequence,
    pub(super) participants: MemberSet,
    /// None: it makes room.
    pub(super) tasks: Vec<TaskId>,
    pub(super) berth: usize,
}

impl State {
    pub(super) fn new<'a>(
        superblocks: impl Iterator<Item = Option<&'a Superblock>>,
        geometries: impl Iterator<Item = &'a Geometry>,
    ) -> Result<Self, EngineError> {
        let largest = geometries.max_by_key(|geometry| on_member(geometry)).expect("an array has a shape");
        let (stripe, needed) = (on_member(largest), size_min(largest));
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
        assert!(stripes(record) > 0, "the smallest log has room for a parity stripe");
        let (group, record, stripes) = (Bytes(size / 4), Bytes(record), stripes(size / 4).max(1));
        let limits = Limits { group, record, stripes, updates: usize::MAX, open: OPEN_DEFAULT, spare: BLOCK };
        Ok(Self::of(writers, limits))
    }

    pub(super) fn of(writers: Vec<Option<Writer>>, limits: Limits) -> Self {
        Self {
            writers,
            limits,
            next: LogSequence(1),
            trim: LogSequence(0),
            marked: LogSequence(0),
            updates: Vec::new(),
            waiting: VecDeque::new(),
            spare: Vec::new(),
            open: SmallVec::new(),
            late: Vec::new(),
            is_making_room: false,
            records: VecDeque::new(),
            filled: LogSequence(0),
            retired: LogSequence(0),
            previous: Default::default(),
            lacking: MemberSet::EMPTY,
            handed: 0,
            awaited: 0,
        }
    }

    /// Whether a commit is under way.
    pub(super) fn is_committing(&self) -> bool {
        !self.open.is_empty() || self.is_making_room
    }

    /// Whether another may begin.
    pub(super) fn may_begin(&self) -> bool {
        self.open.len() < self.limits.open
    }

    /// Whether an update up to this one waits for its record, which is to have sums that flushes wait for.
    pub(super) fn has_waiting_sums(&self, upto: u64) -> bool {
        let waiting = self.waiting.iter().map(|task| &self.updates[task.index()]);
        waiting.take_while(|update| update.number <= upto).any(|update| update.form == Form::Sums { is_awaited: true })
    }

    /// Whether the next record is to have more than waits for it. What has is of whole stripes, which nobody waits for.
    pub(super) fn gathers(&self) -> bool {
        let is_awaited = self.has_waiting_sums(self.awaited) && !planted!(AwaitedGathered);
        if is_awaited || self.records.iter().all(|record| record.left == 0) {
            return false;
        }
        let mut gathered = 0;
        for task in &self.waiting {
            let update = &self.updates[task.index()];
            gathered += update.pieces.iter().map(|piece| piece.len.0).sum::<u64>();
            if update.form == Form::Content || gathered >= GATHERED.0 {
                return false;
            }
        }
        true
    }

    /// Whether a mark may: one place is for records.
    pub(super) fn may_mark(&self) -> bool {
        self.open.len() < self.limits.open.saturating_sub(1).max(1) || planted!(LastPlaceTaken) && self.may_begin()
    }

    /// Whether a member takes part in as many open records as it may. The last place is for others: it may stall.
    pub(super) fn has_its_share(&self, member: MemberIndex) -> bool {
        let open = self.open.iter().filter(|open| open.participants.contains(member)).count();
        let is_of = |task: &&TaskId| self.updates[task.index()].pieces.iter().any(|piece| piece.member == member);
        open + self.waiting.iter().filter(is_of).count() + 1 >= self.limits.open && !planted!(LastPlaceTaken)
    }

    /// See [`Log::resume`].
    pub(super) fn resume(&mut self, live: &[Header]) {
        let mut records: BTreeMap<LogSequence, &Header> = BTreeMap::new();
        for header in live {
            records.insert(header.sequence, header);
            if let Some(writer) = &mut self.writers[header.slot.index()] {
                writer.ring.take(header.sequence, header.position, header.total());
            }
        }
        let Some((&LogSequence(first), _)) = records.first_key_value() else { return };
        let (&LogSequence(last), _) = records.last_key_value().expect("it has a first one");
        (self.trim, self.marked) = (LogSequence(first - 1), LogSequence(first - 1));
        (self.next, self.filled) = (LogSequence(last + 1), LogSequence(last));
        self.previous = std::array::from_fn(|back| {
            let record = last.checked_sub(back as u64).and_then(|sequence| records.get(&LogSequence(sequence)));
            record.map_or(MemberSet::EMPTY, |record| record.participants)
        });
        // A number without a record was a mark.
        self.records.extend((first..=last).map(LogSequence).map(|sequence| {
            let record = records.get(&sequence).filter(|record| !record.extents.is_empty());
            Committed {
                sequence,
                participants: record.map_or(MemberSet::EMPTY, |record| record.participants),
                left: usize::from(record.is_some()),
                sums_left: 0,
                placed: 0,
                placed_by_sums: None,
            }
        }));
    }

    pub(super) fn writer(&mut self, member: MemberIndex) -> &mut Writer {
        self.writers[member.index()].as_mut().expect("a member that is written has a log")
    }

    /// Notes that one of a record's updates is in place, or never will be; `begun` flushes have begun.
    pub(super) fn in_place(&mut self, sequence: LogSequence, begun: u64, form: Form) {
        let is_of_nothing = sequence == LogSequence(0);
        if is_of_nothing || planted!(TrimAheadOfWrite) && self.trim >= sequence {
            return;
        }
        let first = self.records.front().expect("a record with updates is not trimmed").sequence;
        let index = usize::try_from(sequence.0 - first.0).expect("a number of records");
        let record = &mut self.records[index];
        record.left -= 1;
        record.placed = begun;
        if let Form::Sums { is_awaited } = form {
            record.sums_left -= usize::from(is_awaited);
            record.placed_by_sums = Some(begun);
        }
    }

    /// Trims what is in place and durable, or on members that are durably recorded as failed.
    pub(super) fn advance(&mut self, failed: MemberSet, flusher: &Flusher) {
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

    /// Takes as many updates into the next record as there is room for. Those that have nothing for anybody who is
    /// there are in none.
    pub(super) fn gather(&mut self, missing: MemberSet, wake: impl Fn(TaskId)) -> Vec<TaskId> {
        let mut taken = self.spare.pop().unwrap_or_default();
        self.writers.iter_mut().flatten().for_each(Writer::clear);
        while let Some(&task) = self.waiting.front().filter(|_| taken.len() < self.limits.updates) {
            let is_there = |piece: &Piece| !missing.contains(piece.member);
            if !self.updates[task.index()].pieces.iter().any(is_there) {
                // A record that nobody gets would not be missed, nor would the one before it.
                self.waiting.pop_front();
                self.updates[task.index()].outcome = Some(Ok(LogSequence(0)));
                wake(task);
                continue;
            }
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
    pub(super) fn fits(&self, is_first: bool) -> bool {
        let limit = if is_first { self.limits.record } else { self.limits.group };
        let mut writers = self.writers.iter().flatten().filter(|writer| !writer.is_empty());
        writers.all(|writer| !writer.is_too_large(limit) && writer.has_place(self.limits.spare))
    }

    /// Ends the record under construction: every participant gets its place and header.
    pub(super) fn seal(&mut self, tasks: Vec<TaskId>) -> Commit {
        let writers = self.writers.iter().flatten();
        let participants = writers.filter(|writer| !writer.is_empty()).map(Writer::slot).collect();
        self.seal_for(participants, tasks)
    }

    /// The same of a record that only carries the mark, for these members.
    pub(super) fn seal_mark(&mut self, participants: MemberSet) -> Commit {
        let tasks = self.spare.pop().unwrap_or_default();
        self.is_making_room = true;
        self.seal_for(participants, tasks)
    }

    /// Those of these members on which a record that only has a mark finds no place.
    pub(super) fn too_full(&self, members: MemberSet) -> MemberSet {
        let has_place = |member: &MemberIndex| {
            self.writers[member.index()].as_ref().is_some_and(|writer| writer.ring.find(BLOCK, Bytes(0)).is_some())
        };
        members.iter().filter(|member| !has_place(member)).collect()
    }

    fn seal_for(&mut self, participants: MemberSet, tasks: Vec<TaskId>) -> Commit {
        let (sequence, trim) = (self.next, self.trim);
        self.next = LogSequence(sequence.0 + 1);
        if !tasks.is_empty() {
            self.filled = sequence;
        }
        let is_free = |berth: &usize| self.open.iter().all(|open| open.berth != *berth);
        let berth = (0..OPEN_MAX).find(is_free).expect("there are not more open records");
        let mut open = [LogSequence(0); OPEN_MAX - 1];
        open.iter_mut().zip(&self.open).for_each(|(place, open)| *place = open.sequence);
        if planted!(OpenUntold) {
            open = Default::default();
        }
        let stamp = Stamp { sequence, trim, participants, previous: self.previous, open };
        let task = tasks.first().copied();
        self.open.push(Open { sequence, participants, berth, has_answered: false, task, overtaken: None });
        self.previous.rotate_right(1);
        self.previous[0] = participants;
        for member in participants.iter() {
            self.writer(member).seal(stamp, berth);
        }
        let in_place = if tasks.is_empty() { MemberSet::EMPTY } else { participants };
        let is_awaited = |task: &&TaskId| self.updates[task.index()].form == Form::Sums { is_awaited: true };
        let sums_left = tasks.iter().filter(is_awaited).count();
        self.records.push_back(Committed {
            sequence,
            participants: in_place,
            left: tasks.len(),
            sums_left,
            placed: 0,
            placed_by_sums: None,
        });
        Commit { record: Some(sequence), trim, participants, tasks, berth }
    }

    /// Members that may lose something of the oldest records which is in place.
    pub(super) fn in_doubt(&self, flusher: &Flusher) -> MemberSet {
        let in_place = self.records.iter().take_while(|record| record.left == 0);
        in_place.fold(MemberSet::EMPTY, |all, record| all.union(record.unflushed(flusher)))
    }

    /// Makes room in the rings, when the next update has none: by a flush that makes what is in place durable, then by
    /// records that only carry the mark. Neither helps before something is in place.
    pub(super) fn make_room(&mut self, members: &Members, flusher: &Flusher) -> Option<Commit> {
        if self.waiting.is_empty() || self.is_making_room {
            return None;
        }
        let unflushed = self.in_doubt(flusher).minus(members.missing());
        if !unflushed.is_empty() {
            // A flush may have come between one of a record's writes and the last of them.
            unflushed.iter().for_each(|member| members.note_written(member));
            let tasks = self.spare.pop().unwrap_or_default();
            self.is_making_room = true;
            let (record, trim, participants) = (None, self.trim, unflushed);
            return Some(Commit { record, trim, participants, tasks, berth: 0 });
        }
        let behind = self.behind(self.trim, members.missing());
        if behind.is_empty() {
            return None;
        }
        Some(self.seal_mark(behind))
    }

    /// The members whose rings have something up to a record, all of which is in place, and no mark says so of it yet.
    /// A mark that frees nothing would only take the block that is kept for one. Their next record is begun.
    pub(super) fn behind(&mut self, last: LogSequence, missing: MemberSet) -> MemberSet {
        self.writers.iter_mut().flatten().for_each(Writer::clear);
        let is_behind = |writer: &&Writer| writer.ring.frees(last) && !missing.contains(writer.slot());
        self.writers.iter().flatten().filter(is_behind).map(Writer::slot).collect()
    }
}

/// What the engine needs of each member's log.
pub(super) fn size_min(geometry: &Geometry) -> Bytes {
    let stripe = on_member(geometry);
    Bytes((2 * (stripe + 4 * BLOCK.0)).max(RING_BYTES_MIN.0).next_multiple_of(BLOCK.0))
}

/// What a parity stripe takes of a member, in bytes.
fn on_member(geometry: &Geometry) -> u64 {
    geometry.chunk().bytes().0 * geometry.rows() as u64
}

impl Committed {
    /// Participants that may lose what was written in place.
    pub(super) fn unflushed(&self, flusher: &Flusher) -> MemberSet {
        let placed = if planted!(FlushCoversLater) { self.placed.saturating_sub(1) } else { self.placed };
        self.unflushed_since(placed, flusher)
    }

    /// Participants that may lose what was in place when so many flushes had begun.
    pub(super) fn unflushed_since(&self, placed: u64, flusher: &Flusher) -> MemberSet {
        self.participants.iter().filter(|&member| flusher.last_of(member) <= placed).collect()
    }
}
