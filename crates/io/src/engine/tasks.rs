//! Tasks: who runs, who waits, and who is to go on.
//!
//! A task is an operation on its way through an `async fn`. One that has to wait leaves its number where it waits and
//! parks; whoever ends the wait wakes it, once. Woken tasks go on in the order in which they were woken. There is no
//! clock, thread or waker in this: the same calls give the same steps.
//!
//! It knows neither what tasks do nor what they wait for. [`Executor`](super::executor::Executor) polls them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A task's number: a slot of the executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TaskId(pub(super) u32);

impl TaskId {
    /// Its slot in tables by task.
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    ready: RefCell<VecDeque<TaskId>>,
    current: Cell<TaskId>,
    /// By task: woken, and not polled since.
    is_woken: RefCell<Vec<bool>>,
}

impl Tasks {
    /// The task that is running.
    pub(super) fn current(&self) -> TaskId {
        self.current.get()
    }

    /// Notes that a task is about to run.
    pub(super) fn enter(&self, task: TaskId) {
        self.current.set(task);
        let mut is_woken = self.is_woken.borrow_mut();
        if is_woken.len() <= task.index() {
            is_woken.resize(task.index() + 1, false);
        }
        is_woken[task.index()] = false;
    }

    /// Lets a task go on that has parked or is about to.
    ///
    /// # Panics
    /// When it was woken already: then it waits in two places.
    pub(super) fn wake(&self, task: TaskId) {
        let was_woken = std::mem::replace(&mut self.is_woken.borrow_mut()[task.index()], true);
        assert!(!was_woken, "a task is woken once for each wait");
        self.ready.borrow_mut().push_back(task);
    }

    /// The next task that goes on.
    pub(super) fn next(&self) -> Option<TaskId> {
        self.ready.borrow_mut().pop_front()
    }

    /// Whether no task is to go on.
    pub(super) fn is_idle(&self) -> bool {
        self.ready.borrow().is_empty()
    }

    /// Waits until the running task is woken. Its number has to be where somebody wakes it from.
    ///
    /// A wait that is dropped is not undone: tasks are only dropped with the engine.
    pub(super) fn park(&self) -> impl Future<Output = ()> + use<> {
        Park { has_parked: false }
    }
}

struct Park {
    has_parked: bool,
}

impl Future for Park {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.has_parked, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Tasks that wait for the same thing. All are woken together, and look again.
#[derive(Debug, Default)]
pub(super) struct Waiters(RefCell<Vec<TaskId>>);

impl Waiters {
    /// Waits until they are woken.
    pub(super) async fn wait(&self, tasks: &Tasks) {
        self.0.borrow_mut().push(tasks.current());
        tasks.park().await;
    }

    /// Wakes them, in the order in which they came.
    pub(super) fn wake(&self, tasks: &Tasks) {
        self.0.borrow_mut().drain(..).for_each(|task| tasks.wake(task));
    }
}
