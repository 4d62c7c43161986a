//! The executor: a slab of workers, each of which does one piece of work after another.
//!
//! A worker is a future that never ends: it takes a piece of work, does it, and asks for the next. So the memory of an
//! operation's state is a worker's, made once and used again, and a steady load allocates nothing. What a worker waits
//! for puts its number into the ready queue of [`Tasks`]; the waker of these futures does nothing.
//!
//! It knows neither the work nor the engine.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use super::tasks::{TaskId, Tasks};

/// Workers, and what each is to do.
pub(super) struct Executor<W> {
    tasks: Rc<Tasks>,
    desk: Rc<Desk<W>>,
    workers: Vec<Worker>,
    idle: Vec<TaskId>,
    hire: Box<dyn Fn(Rc<Desk<W>>) -> Worker>,
}

/// A future that never ends.
type Worker = Pin<Box<dyn Future<Output = ()>>>;

/// Where workers find their work.
pub(super) struct Desk<W> {
    tasks: Rc<Tasks>,
    places: RefCell<Vec<Place<W>>>,
}

enum Place<W> {
    /// The worker has nothing to do.
    Idle,
    /// It is to do this.
    Given(W),
    /// It is at it.
    Busy,
}

impl<W: 'static> Executor<W> {
    /// An executor without workers; `hire` makes one, which takes its work from [`Desk::next`] for ever.
    pub(super) fn new<F: Future<Output = ()> + 'static>(
        tasks: Rc<Tasks>,
        hire: impl Fn(Rc<Desk<W>>) -> F + 'static,
    ) -> Self {
        let desk = Rc::new(Desk { tasks: Rc::clone(&tasks), places: RefCell::default() });
        let hire = Box::new(move |desk| Box::pin(hire(desk)) as Worker);
        Self { tasks, desk, workers: Vec::new(), idle: Vec::new(), hire }
    }

    /// Begins a piece of work, and does it up to where it has to wait.
    pub(super) fn start(&mut self, work: W) {
        let task = self.idle.pop().unwrap_or_else(|| {
            self.workers.push((self.hire)(Rc::clone(&self.desk)));
            self.desk.places.borrow_mut().push(Place::Idle);
            TaskId(u32::try_from(self.workers.len() - 1).expect("fewer than 2^32 tasks at once"))
        });
        self.desk.places.borrow_mut()[task.index()] = Place::Given(work);
        self.poll(task);
    }

    /// Goes on with every task that was woken.
    pub(super) fn run(&mut self) {
        while let Some(task) = self.tasks.next() {
            let is_busy = matches!(self.desk.places.borrow()[task.index()], Place::Busy);
            assert!(is_busy, "only a task that is at work waits for something");
            self.poll(task);
        }
    }

    /// Whether no task is to go on.
    pub(super) fn is_idle(&self) -> bool {
        self.tasks.is_idle()
    }

    fn poll(&mut self, task: TaskId) {
        self.tasks.enter(task);
        let poll = self.workers[task.index()].as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending(), "a worker never ends");
        if matches!(self.desk.places.borrow()[task.index()], Place::Idle) {
            self.idle.push(task);
        }
    }
}

impl<W> Desk<W> {
    /// The running worker's next piece of work. What it had before is done.
    pub(super) async fn next(&self) -> W {
        loop {
            if let Some(work) = self.take(self.tasks.current()) {
                return work;
            }
            // `Executor::start` comes back here.
            self.tasks.park().await;
        }
    }

    /// A worker's work; without any it is idle.
    fn take(&self, task: TaskId) -> Option<W> {
        let place = &mut self.places.borrow_mut()[task.index()];
        if let Place::Given(work) = std::mem::replace(place, Place::Busy) {
            return Some(work);
        }
        *place = Place::Idle;
        None
    }
}

impl<W> fmt::Debug for Executor<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("workers", &self.workers.len()).field("idle", &self.idle.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::super::tasks::Waiters;
    use super::*;

    type Heard = Rc<RefCell<Vec<(char, u32)>>>;

    /// An executor whose work is a number: it says so, waits to be let go on, and says so again.
    fn echo() -> (Executor<u32>, Rc<Waiters>, Heard) {
        let (tasks, gate, said) = (Rc::new(Tasks::default()), Rc::new(Waiters::default()), Rc::default());
        let (waits, heard, clock) = (Rc::clone(&gate), Rc::clone(&said), Rc::clone(&tasks));
        let executor = Executor::new(tasks, move |desk: Rc<Desk<u32>>| {
            let (gate, said, tasks) = (Rc::clone(&waits), Heard::clone(&heard), Rc::clone(&clock));
            async move {
                loop {
                    let number = desk.next().await;
                    said.borrow_mut().push(('<', number));
                    gate.wait(&tasks).await;
                    said.borrow_mut().push(('>', number));
                }
            }
        });
        (executor, gate, said)
    }

    #[test]
    fn work_begins_at_once_and_goes_on_in_the_order_of_waking() {
        let (mut executor, gate, said) = echo();
        (1..4).for_each(|number| executor.start(number));
        assert_eq!(*said.borrow(), [('<', 1), ('<', 2), ('<', 3)]);
        gate.wake(&executor.tasks);
        executor.run();
        assert_eq!(said.borrow()[3..], [('>', 1), ('>', 2), ('>', 3)]);
    }

    #[test]
    fn workers_are_used_again() {
        let (mut executor, gate, _) = echo();
        for _ in 0..100 {
            (0..7).for_each(|number| executor.start(number));
            gate.wake(&executor.tasks);
            executor.run();
        }
        assert_eq!((executor.workers.len(), executor.idle.len()), (7, 7));
    }

    #[test]
    #[should_panic(expected = "a task is woken once for each wait")]
    fn a_task_that_waits_in_two_places_is_found() {
        let (mut executor, _, _) = echo();
        executor.start(1);
        executor.tasks.wake(TaskId(0));
        executor.tasks.wake(TaskId(0));
    }
}
