//! Replies: what clients are told, and what they were told before it was in place.
//!
//! A write is answered when the log has it, and written in place after that. Until it is, it counts here: so much may
//! be answered and not in place, and whoever closes the array waits until nothing is.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;

use uraid_layout::Bytes;

use super::error::EngineError;
use super::tasks::{TaskId, Tasks, Waiters};
use crate::buf::Buf;

/// What may be answered and not be in place: more waits for its reply until it is.
const PLACING_MAX: Bytes = Bytes(16 << 20);

/// What a small write counts for in that, as it takes more than its content.
const PLACING_MIN: Bytes = Bytes(16 << 10);

/// Whom a reply is for: a number that stands for the caller's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(pub(super) u32);

impl Ticket {
    /// Its slot in tables by ticket.
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A command's end.
pub(super) type Outcome = Result<Option<Buf>, EngineError>;

/// See the module.
#[derive(Debug)]
pub(super) struct Replies {
    tasks: Rc<Tasks>,
    given: RefCell<Vec<(Ticket, Outcome)>>,
    /// By task: a write that may be answered before it is in place.
    promises: RefCell<Vec<Option<Promise>>>,
    /// What was answered and is not in place; at least [`PLACING_MIN`] is counted for each.
    placing: Cell<Bytes>,
    all_placed: Waiters,
}

#[derive(Clone, Copy, Debug)]
struct Promise {
    ticket: Ticket,
    size: Bytes,
    is_durable: bool,
    is_answered: bool,
}

/// A write of the running task that may be answered early; what was answered counts as placed when this is dropped.
#[derive(Debug)]
pub(super) struct Answerable<'a> {
    replies: &'a Replies,
    task: TaskId,
}

impl Replies {
    pub(super) fn new(tasks: Rc<Tasks>) -> Self {
        let (given, promises) = (RefCell::default(), RefCell::default());
        Self { tasks, given, promises, placing: Cell::new(Bytes(0)), all_placed: Waiters::default() }
    }

    /// Replies to a command.
    pub(super) fn give(&self, ticket: Ticket, outcome: Outcome) {
        self.given.borrow_mut().push((ticket, outcome));
    }

    /// Whether there are replies to take.
    pub(super) fn has_any(&self) -> bool {
        !self.given.borrow().is_empty()
    }

    /// The replies to take, in their order.
    pub(super) fn given(&self) -> RefMut<'_, Vec<(Ticket, Outcome)>> {
        self.given.borrow_mut()
    }

    /// Lets [`Replies::answer`] answer the running task's command, of `size` bytes; when it is durable only if
    /// `is_durable`.
    pub(super) fn promise(&self, ticket: Ticket, size: Bytes, is_durable: bool) -> Answerable<'_> {
        let (task, size) = (self.tasks.current(), size.max(PLACING_MIN));
        let mut promises = self.promises.borrow_mut();
        if promises.len() <= task.index() {
            promises.resize(task.index() + 1, None);
        }
        promises[task.index()] = Some(Promise { ticket, size, is_durable, is_answered: false });
        Answerable { replies: self, task }
    }

    /// Answers a task's command that the log has, if it may be and was not yet; whether it did.
    pub(super) fn answer(&self, task: TaskId, is_durable: bool) -> bool {
        let mut promises = self.promises.borrow_mut();
        let Some(promise) = promises.get_mut(task.index()).and_then(Option::as_mut) else { return false };
        let is_early = promise.is_durable && !is_durable;
        if promise.is_answered || is_early || self.placing.get() >= PLACING_MAX {
            return false;
        }
        promise.is_answered = true;
        self.placing.set(Bytes(self.placing.get().0 + promise.size.0));
        self.give(promise.ticket, Ok(None));
        true
    }

    /// Whether anything was answered that is not in place.
    pub(super) fn is_placing(&self) -> bool {
        self.placing.get().0 > 0
    }

    /// Waits until nothing is, or something else calls for another look.
    pub(super) async fn wait_placed(&self) {
        self.all_placed.wait(&self.tasks).await;
    }
}

impl Answerable<'_> {
    /// Whether it was answered.
    pub(super) fn is_answered(&self) -> bool {
        self.replies.promises.borrow()[self.task.index()].is_some_and(|promise| promise.is_answered)
    }
}

impl Drop for Answerable<'_> {
    fn drop(&mut self) {
        let Replies { tasks, promises, placing, all_placed, .. } = self.replies;
        let promise = promises.borrow_mut()[self.task.index()].take();
        let Some(promise) = promise.filter(|promise| promise.is_answered) else { return };
        placing.set(Bytes(placing.get().0 - promise.size.0));
        if placing.get().0 == 0 {
            all_placed.wake(tasks);
        }
    }
}
