//! Flushes, shared: whoever asks while one is under way waits for the next, together with everybody else who does; or
//! for the present one, where nothing was written since it began.
//!
//! Flushes are counted, so that it can be told which of them covers what was written when ([`Flusher::covering`],
//! [`Flusher::begun`]).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use uraid_layout::{Bytes, MemberIndex, MemberSet};

use super::members::Members;
use super::operations::Caller;
use super::tasks::{TaskId, Tasks};
use crate::disk::{OpKind, Segments};

/// See the module.
#[derive(Debug)]
pub(super) struct Flusher {
    tasks: Rc<Tasks>,
    state: RefCell<State>,
}

/// Who waits for which flush.
#[derive(Debug)]
struct State {
    /// Of whom somebody wants a flush.
    wanted: MemberSet,
    /// Whom the present round flushes.
    round: MemberSet,
    /// Operations of the present round still in flight; 0: there is no round.
    pending: u32,
    present: VecDeque<TaskId>,
    next: VecDeque<TaskId>,
    /// Rounds that have begun.
    begun: u64,
    /// By member: the last of them in which it was flushed with success.
    flushed: Vec<u64>,
    /// The last rounds after which nothing was left to flush: that has begun, and that is over.
    whole_begun: u64,
    whole_ended: u64,
    /// Members that failed a flush and which the array can't do without: no later flush proves anything about them.
    failed: MemberSet,
}

impl Flusher {
    /// No flushes yet, of so many members.
    pub(super) fn new(tasks: Rc<Tasks>, members: usize) -> Self {
        let state = State {
            wanted: MemberSet::EMPTY,
            round: MemberSet::EMPTY,
            pending: 0,
            present: VecDeque::new(),
            next: VecDeque::new(),
            begun: 0,
            flushed: vec![0; members],
            whole_begun: 0,
            whole_ended: 0,
            failed: MemberSet::EMPTY,
        };
        Self { tasks, state: RefCell::new(state) }
    }

    /// Waits for a flush of `whom` that begins now or later; or for none, where nothing was written to them since the
    /// last. [`Flusher::failures`] says who has failed.
    pub(super) async fn flush(&self, members: &Members, whom: MemberSet) {
        if self.ask(members.unflushed(), whom) {
            self.run(members);
            self.tasks.park().await;
        }
    }

    /// Lets the running task wait for a flush of `whom`. False: there is nothing to flush and nothing to wait for.
    fn ask(&self, unflushed: MemberSet, whom: MemberSet) -> bool {
        let state = &mut *self.state.borrow_mut();
        let (task, meets) = (self.tasks.current(), |other: MemberSet| other.minus(whom) != other);
        if planted!(FlushJoinsEarlier) && state.pending > 0 {
            state.present.push_back(task);
            return true;
        }
        if meets(unflushed) {
            state.wanted = state.wanted.union(whom);
            state.next.push_back(task);
            return true;
        }
        let is_under_way = state.pending > 0 && meets(state.round);
        if is_under_way {
            state.present.push_back(task);
        }
        is_under_way
    }

    /// Begins the flush that somebody waits for, if none is under way.
    fn run(&self, members: &Members) {
        for member in self.begin(members).iter() {
            members.counters.borrow_mut().flush(member);
            members.operations.submit(Caller::Flusher, member, OpKind::Flush, Bytes(0), Segments::new());
        }
        // All that was written may have been on members that are gone.
        self.wake_finished();
    }

    /// Begins a round if one is asked for and none is under way: the members to flush.
    fn begin(&self, members: &Members) -> MemberSet {
        let state = &mut *self.state.borrow_mut();
        if state.pending > 0 || state.next.is_empty() {
            return MemberSet::EMPTY;
        }
        std::mem::swap(&mut state.present, &mut state.next);
        let gone = MemberSet::all(64).minus(members.present());
        let unflushed = members.unflushed().minus(gone);
        let rest = unflushed.minus(std::mem::take(&mut state.wanted));
        state.round = unflushed.minus(rest);
        members.set_unflushed(rest);
        if planted!(FlushOneMember) {
            state.round = state.round.iter().take(1).collect();
        }
        state.pending = u32::try_from(state.round.len()).expect("at most 64 members");
        state.begun += 1;
        if rest.is_empty() {
            state.whole_begun = state.begun;
        }
        if state.pending == 0 {
            state.whole_ended = state.whole_begun;
        }
        state.round
    }

    /// Takes in the end of one member's flush. After a failed one a retry proves nothing: what the member dropped is
    /// gone.
    pub(super) fn ended(&self, members: &Members, member: MemberIndex, is_failed: bool) {
        let is_failed = is_failed && !planted!(FlushErrorIgnored);
        let is_lost = is_failed && members.fail(MemberSet::EMPTY.with(member)).is_err();
        let is_over = {
            let state = &mut *self.state.borrow_mut();
            assert!(state.pending > 0, "a flush that ends was begun");
            if is_lost {
                state.failed = state.failed.with(member);
            }
            state.pending -= 1;
            if state.pending == 0 {
                state.whole_ended = state.whole_begun;
                for member in state.round.minus(members.missing()).minus(state.failed).iter() {
                    state.flushed[member.index()] = state.begun;
                }
            }
            state.pending == 0
        };
        if is_over {
            self.wake_finished();
            self.run(members);
        }
    }

    /// Lets those go on whose round is over.
    fn wake_finished(&self) {
        let state = &mut *self.state.borrow_mut();
        if state.pending == 0 {
            state.present.drain(..).for_each(|task| self.tasks.wake(task));
        }
    }

    /// The number of the last round that has begun: whatever is written from now on, only later ones cover.
    pub(super) fn begun(&self) -> u64 {
        self.state.borrow().begun
    }

    /// The number of the last round in which a member was flushed with success.
    pub(super) fn last_of(&self, member: MemberIndex) -> u64 {
        self.state.borrow().flushed[member.index()]
    }

    /// The number of the first round that covers all that has been written so far, to whomever: it may be over, under
    /// way or yet to come.
    pub(super) fn covering(&self, members: &Members) -> u64 {
        let state = self.state.borrow();
        let is_rest = !members.unflushed().is_empty() && !planted!(BitFlushCoversLater);
        if is_rest { state.begun + 1 } else { state.whole_begun }
    }

    /// The number of the last round that is over and after which nothing was left to flush. Members that failed in it
    /// count for nothing any more.
    pub(super) fn flushed(&self) -> u64 {
        self.state.borrow().whole_ended
    }

    /// Whether there is anything to flush.
    pub(super) fn is_needed(&self, members: &Members) -> bool {
        self.state.borrow().pending > 0 || !members.unflushed().is_empty()
    }

    /// The members that failed a flush and which the array can't do without.
    pub(super) fn failures(&self) -> MemberSet {
        self.state.borrow().failed
    }
}
