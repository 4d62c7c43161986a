//! Operations on members: on their way out, under way, late, given up; and the tasks that wait for them.
//!
//! The engine holds no disk. What is to be done on members leaves through a queue that the engine empties after each
//! step, and what has ended comes back with a tag. A task's operations are a *call*: the task submits them, waits for
//! all, and takes what has become of them.
//!
//! While deadlines are on, an operation can be [given up](Entries): it ends at once for whoever submitted it, with
//! [`DiskError::TimedOut`]; the device still has it, and its memory, and when it ends there nobody is told.
//!
//! Invariants:
//! - Memory that an operation was given is touched by nobody until the operation completes: operations own leases.
//! - An abandoned operation's completion reaches nobody.
//!
//! What is too long, and what may be given up, is for [`patience`](super::patience) to say.

use std::cell::RefCell;
use std::rc::Rc;

use smallvec::SmallVec;
use uraid_layout::plan::Queue;
use uraid_layout::{Bytes, DiskSector, MemberIndex, MemberSet, StripeId};

use super::tasks::{TaskId, Tasks};
use crate::buf::Lease;
use crate::disk::{
    Completion, Disk, DiskError, DiskOp, Entries, Late, OpId, OpInfo, OpKind, OpName, PLACES, SEGMENTS_MAX, Segments,
    log_at,
};
use crate::format::superblock::LogSet;

/// Set in the tags of operations that count in the queues that the planner looks at.
const QUEUED: u64 = 1 << 62;

/// Who submitted an operation: what its tag says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// A task, which waits for it.
    Task(TaskId),
    /// The shared flush.
    Flusher,
    /// A page of the member's table of checksums, by number.
    Page(u32),
}

impl Caller {
    fn tag(self) -> u64 {
        match self {
            Self::Task(task) => u64::from(task.0),
            Self::Flusher => 1 << 32,
            Self::Page(number) => 2 << 32 | u64::from(number),
        }
    }

    fn of(tag: u64) -> Self {
        let low = u32::try_from(tag & u64::from(u32::MAX)).expect("the lower half");
        match (tag & !QUEUED) >> 32 {
            0 => Self::Task(TaskId(low)),
            1 => Self::Flusher,
            _ => Self::Page(low),
        }
    }
}

/// What is to be done with the members.
#[derive(Debug)]
pub(super) enum Order {
    Submit(DiskOp),
    /// Nobody waits any more for the operations with this tag.
    Abandon(u64),
    /// The members at two seats change places.
    Exchange(MemberIndex, MemberIndex),
}

/// What has become of a task's operations since it began to submit them.
#[derive(Debug, Default)]
pub(super) struct Call {
    pending: u32,
    purpose: Purpose,
    /// Members that failed one.
    pub(super) failed: MemberSet,
    /// The same of log devices.
    pub(super) failed_logs: LogSet,
    /// Members that took too long for a read.
    pub(super) overdue: MemberSet,
    /// Members that have no operation for zeroing.
    pub(super) cannot_zero: MemberSet,
    /// A page of checksums takes too long: the reads are to be planned without its member.
    pub(super) is_replanned: bool,
    /// What exactly failed.
    pub(super) errors: SmallVec<[OpInfo; 1]>,
}

impl Call {
    /// The end of a call that was not made, as these members would fail it.
    pub(super) fn failed_by(failed: MemberSet) -> Self {
        Self { failed, ..Self::default() }
    }
}

/// What a call is for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Purpose {
    /// The reads of a plan, which may go around a member that takes too long.
    Reads(Reading),
    /// Pages of checksums; and whether who waits for them may go around their member.
    Pages { may_go_around: bool },
    /// Writes of content.
    Writes,
    #[default]
    Other,
}

/// Reads of a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// The members that the plan goes around for their errors.
    pub(super) unreadable: MemberSet,
    /// The last parity stripe that it reads.
    pub(super) last: StripeId,
    /// A client waits for it, and it is worth reading more for that it waits for less.
    pub(super) may_hedge: bool,
}

/// One that has not ended for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) id: OpId,
    pub(super) caller: Caller,
    pub(super) member: MemberIndex,
    pub(super) name: OpName,
    /// In ticks.
    pub(super) age: u64,
    /// In beats.
    pub(super) beats: u64,
    /// It was given up.
    pub(super) is_abandoned: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Operations {
    tasks: Rc<Tasks>,
    orders: RefCell<Vec<Order>>,
    /// By task.
    calls: RefCell<Vec<Call>>,
    /// How busy each member is, and one that is to take another's place.
    queues: RefCell<Vec<Queue>>,
    /// Lists of segments to be used again.
    spare: RefCell<Vec<Vec<Lease>>>,
    entries: RefCell<Entries>,
}

impl Operations {
    /// None yet.
    pub(super) fn new(tasks: Rc<Tasks>) -> Self {
        Self {
            tasks,
            orders: RefCell::default(),
            calls: RefCell::default(),
            queues: RefCell::new(vec![Queue { depth: 0, head: DiskSector(0) }; PLACES]),
            spare: RefCell::default(),
            entries: RefCell::new(Entries::new()),
        }
    }

    /// Hands out what is to be done, in order.
    pub(super) fn drain_orders(&self, each: impl FnMut(Order)) {
        self.orders.borrow_mut().drain(..).for_each(each);
    }

    /// Begins a call of the running task.
    pub(super) fn begin_call(&self, purpose: Purpose) {
        let index = self.tasks.current().index();
        let mut calls = self.calls.borrow_mut();
        if calls.len() <= index {
            calls.resize_with(index + 1, Call::default);
        }
        assert_eq!(calls[index].pending, 0, "a task makes one call at a time");
        calls[index] = Call { purpose, ..Call::default() };
    }

    /// Waits until all of the running task's operations have ended: what has become of them.
    pub(super) async fn end_call(&self) -> Call {
        let index = self.tasks.current().index();
        if self.calls.borrow()[index].pending > 0 {
            // Whoever ends the last one wakes the task.
            self.tasks.park().await;
        }
        std::mem::take(&mut self.calls.borrow_mut()[index])
    }

    /// Has the running task's call wait for one more thing, which ends with [`Operations::end_one`].
    pub(super) fn expect_one(&self) {
        self.calls.borrow_mut()[self.tasks.current().index()].pending += 1;
    }

    /// Ends one of the things that a task waits for; `change` notes what has become of it.
    pub(super) fn end_one(&self, task: TaskId, change: impl FnOnce(&mut Call)) {
        let call = &mut self.calls.borrow_mut()[task.index()];
        change(call);
        call.pending -= 1;
        if call.pending == 0 {
            self.tasks.wake(task);
        }
    }

    /// What a task waits for, and the members that took too long for it.
    pub(super) fn purpose(&self, task: TaskId) -> (Purpose, MemberSet) {
        let calls = self.calls.borrow();
        calls.get(task.index()).map_or_else(Default::default, |call| (call.purpose, call.overdue))
    }

    /// Writes to many, as a call of the running task: what has become of it.
    pub(super) async fn write_all(&self, writes: impl IntoIterator<Item = (MemberIndex, Bytes, Lease)>) -> Call {
        let writes = writes.into_iter();
        self.write_pieces(writes.map(|(member, offset, lease)| (member, offset, smallvec::smallvec![lease]))).await
    }

    /// The same with what each write takes in pieces.
    pub(super) async fn write_pieces(&self, writes: impl Iterator<Item = (MemberIndex, Bytes, Segments)>) -> Call {
        self.begin_call(Purpose::Other);
        for (member, offset, segments) in writes {
            self.call(member, OpKind::Write, offset, segments);
        }
        self.end_call().await
    }

    /// Flushes members, as a call of the running task: what has become of it.
    pub(super) async fn flush_all(&self, whom: impl IntoIterator<Item = MemberIndex>) -> Call {
        self.begin_call(Purpose::Other);
        for member in whom {
            self.call(member, OpKind::Flush, Bytes(0), Segments::new());
        }
        self.end_call().await
    }

    /// Submits an operation of the running task's call that does not count in the queues.
    pub(super) fn call(&self, member: MemberIndex, kind: OpKind, offset: Bytes, segments: Segments) {
        self.expect_one();
        self.submit(Caller::Task(self.tasks.current()), member, kind, offset, segments);
    }

    /// Submits an operation.
    pub(super) fn submit(&self, caller: Caller, member: MemberIndex, kind: OpKind, offset: Bytes, segments: Segments) {
        self.send(DiskOp { tag: caller.tag(), member, kind, offset, segments });
    }

    /// Begins an operation of the running task's call that counts in the queues, and that is cut where it has more
    /// segments than one can have. `end` is where the member's head is then.
    pub(super) fn piecewise(&self, member: MemberIndex, kind: OpKind, offset: Bytes, end: DiskSector) -> Piecewise<'_> {
        let tag = Caller::Task(self.tasks.current()).tag() | QUEUED;
        Piecewise { operations: self, op: DiskOp { tag, member, kind, offset, segments: Segments::new() }, end }
    }

    /// How busy the members are, for the planner.
    pub(super) fn queues(&self) -> std::cell::Ref<'_, Vec<Queue>> {
        self.queues.borrow()
    }

    fn send(&self, mut op: DiskOp) {
        self.entries.borrow_mut().add(&mut op);
        self.orders.borrow_mut().push(Order::Submit(op));
    }

    fn send_queued(&self, op: DiskOp, end: DiskSector) {
        self.expect_one();
        let queue = &mut self.queues.borrow_mut()[op.member.index()];
        queue.depth += 1;
        queue.head = end;
        self.send(op);
    }

    /// Takes in a completion; none: nobody waits for it.
    pub(super) fn ended(&self, mut completion: Completion) -> Option<(Caller, MemberIndex, Result<(), DiskError>)> {
        if completion.spare.capacity() > 0 {
            self.spare.borrow_mut().push(std::mem::take(&mut completion.spare));
        }
        if !self.entries.borrow_mut().ended(&mut completion) {
            return None;
        }
        Some(self.told(completion))
    }

    /// The callers of operations that were given up since the last time.
    pub(super) fn next_given_up(&self) -> Option<(Caller, MemberIndex, Result<(), DiskError>)> {
        let completion = self.entries.borrow_mut().next_given_up();
        completion.map(|completion| self.told(completion))
    }

    fn told(&self, Completion { tag, member, result, .. }: Completion) -> (Caller, MemberIndex, Result<(), DiskError>) {
        if tag & QUEUED != 0 {
            self.queues.borrow_mut()[member.index()].depth -= 1;
        }
        (Caller::of(tag), member, result)
    }

    /// Notes the end of one of a task's operations; whether it wrote to its member with success. What a member at the
    /// seat fails, of `members` slots, is not its task's matter.
    pub(super) fn call_ended(
        &self,
        task: TaskId,
        member: MemberIndex,
        result: &Result<(), DiskError>,
        members: usize,
    ) -> bool {
        let log = log_at(member);
        let is_seat = log.is_none() && member.index() >= members;
        let is_write = |call: &Call| matches!(call.purpose, Purpose::Writes);
        let mut has_written = false;
        self.end_one(task, |call| match result {
            Ok(()) => has_written = is_write(call) && !is_seat && log.is_none(),
            Err(DiskError::Unsupported { op }) if op.name == OpName::Zero => {
                call.cannot_zero = call.cannot_zero.with(member);
            }
            Err(_) if log.is_some() => call.failed_logs = call.failed_logs.union(log.into_iter().collect()),
            Err(_) if is_seat => {}
            Err(_) if is_write(call) && planted!(WriteErrorIgnored) => {}
            Err(error) => {
                call.failed = call.failed.with(member);
                if let (DiskError::Io { op, .. }, Purpose::Reads(_)) = (error, call.purpose) {
                    call.errors.push(*op);
                }
            }
        });
        has_written
    }

    /// Whether operations that are submitted from now on can be given up.
    pub(super) fn set_deadlines_on(&self, is_on: bool) {
        self.entries.borrow_mut().set_on(is_on);
    }

    /// For how many ticks a slot's member has had its oldest operation that somebody waits for, as [`pending`] has it.
    ///
    /// [`pending`]: Self::pending
    pub(super) fn oldest(&self, member: MemberIndex, roomless: MemberSet) -> Option<u64> {
        let mut pending = Vec::new();
        self.pending(roomless, &mut pending);
        pending.iter().filter(|op| op.member == member && !op.is_abandoned).map(|op| op.age).max()
    }

    /// Appends what has not ended, on the members that are in the slots now, of which `roomless` have no room for
    /// writes.
    pub(super) fn pending(&self, roomless: MemberSet, into: &mut Vec<Pending>) {
        into.extend(self.entries.borrow().pending(roomless).map(
            |Late { id, tag, member, name, age, beats, is_abandoned }| Pending {
                id,
                caller: Caller::of(tag),
                member,
                name,
                age,
                beats,
                is_abandoned,
            },
        ));
    }

    /// Notes that a read is late.
    pub(super) fn note_late(&self, id: OpId) {
        self.entries.borrow_mut().note_late(id);
    }

    /// Ends an operation for whoever submitted it.
    pub(super) fn give_up(&self, id: OpId) {
        let tag = self.entries.borrow_mut().give_up(id);
        self.orders.borrow_mut().extend(tag.map(Order::Abandon));
    }

    /// Notes that a member took too long for a task's read.
    pub(super) fn note_overdue(&self, task: TaskId, member: MemberIndex) {
        let call = &mut self.calls.borrow_mut()[task.index()];
        call.overdue = call.overdue.with(member);
    }

    /// Members whose reads are late.
    pub(super) fn slow(&self) -> MemberSet {
        self.entries.borrow().slow()
    }

    /// Whether somebody waits for operations on a slot's member.
    pub(super) fn is_awaited(&self, member: MemberIndex) -> bool {
        self.entries.borrow().is_awaited(member)
    }

    /// How many operations on a slot's member were given up and have not ended.
    pub(super) fn abandoned(&self, member: MemberIndex) -> u32 {
        self.entries.borrow().abandoned(member)
    }

    /// Notes that a slot has another member: what was given up is not its.
    pub(super) fn forget(&self, member: MemberIndex) {
        self.entries.borrow_mut().forget(member);
    }

    /// Lets the members at two seats change places.
    pub(super) fn exchange(&self, one: MemberIndex, other: MemberIndex) {
        self.forget(one);
        self.forget(other);
        self.orders.borrow_mut().push(Order::Exchange(one, other));
    }

    /// Notes that time has passed, and which members have no room for writes now.
    pub(super) fn tick(&self, roomless: MemberSet) {
        self.entries.borrow_mut().tick(roomless);
    }

    /// Notes that a little time has passed.
    pub(super) fn beat(&self) {
        self.entries.borrow_mut().beat();
    }

    /// Whether something becomes late as time passes.
    pub(super) fn wants_ticks(&self) -> bool {
        self.entries.borrow().wants_ticks()
    }
}

/// An operation that is being put together: one, or several where it has more segments than one can have.
pub(super) struct Piecewise<'a> {
    operations: &'a Operations,
    op: DiskOp,
    end: DiskSector,
}

impl Piecewise<'_> {
    /// Appends memory.
    pub(super) fn push(&mut self, lease: Lease) {
        if self.op.segments.last_mut().is_some_and(|last| last.extend_over(&lease)) {
            return;
        }
        if self.op.segments.len() == SEGMENTS_MAX {
            let DiskOp { tag, member, kind, offset, .. } = self.op;
            let rest = Bytes(offset.0 + self.op.len().0);
            let next = DiskOp { tag, member, kind, offset: rest, segments: Segments::new() };
            let full = std::mem::replace(&mut self.op, next);
            self.operations.send_queued(full, self.end);
        }
        let segments = &mut self.op.segments;
        if segments.len() == segments.inline_size()
            && !segments.spilled()
            && let Some(mut list) = self.operations.spare.borrow_mut().pop()
        {
            list.extend(segments.drain(..));
            *segments = Segments::from_vec(list);
        }
        segments.push(lease);
    }

    /// Submits what is left.
    pub(super) fn finish(self) {
        self.operations.send_queued(self.op, self.end);
    }
}

/// Hands an order to the members.
pub(super) fn carry_out(order: Order, disk: &mut impl Disk) {
    match order {
        Order::Submit(op) => disk.submit(op),
        Order::Abandon(tag) => disk.abandon(tag),
        Order::Exchange(one, other) => disk.exchange(one, other),
    }
}
