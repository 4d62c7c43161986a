//! What passes between the engine's thread and the threads that serve clients' connections: requests in one direction,
//! their answers in the other, both in batches. A batch costs one lock, and wakes the other thread at most once.
//!
//! Both queues are bounded by the requests that clients may have in flight.

use std::cell::{OnceCell, RefCell};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};
use uraid_io::buf::Parcel;
use uraid_io::engine::Fill;
use uraid_nbd::{Command, Extent, NbdError};

use crate::meter::ServedByKind;
use crate::protocol::Traffic;

/// A client's request on its way to the engine.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) caller: Caller,
    pub(crate) command: Command<()>,
    /// The memory of a read's or write's data.
    pub(crate) memory: Option<Parcel>,
}

/// The sender of a request: its thread, and the request's number there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) thread: usize,
    pub(crate) request: u32,
}

/// A message to a connection thread.
#[derive(Debug)]
pub(crate) enum Message {
    /// A request has ended. The memory is a read's data, or spare.
    Answer { request: u32, result: Result<(), NbdError>, memory: Option<Parcel> },
    /// What is known to be zeros, for a request that asked for that.
    Status { request: u32, result: Result<Vec<Extent>, NbdError> },
    /// Report what the clients of the thread have done.
    Look(oneshot::Sender<Report>),
}

/// What the clients of a thread have done.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) traffic: Traffic,
    pub(crate) served: ServedByKind,
    /// Memory of requests in flight.
    pub(crate) requests: Fill,
}

/// Messages from one thread or several to another.
#[derive(Debug)]
pub(crate) struct Queue<M> {
    messages: Mutex<Vec<M>>,
    arrived: Notify,
}

impl<M> Queue<M> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { messages: Mutex::default(), arrived: Notify::new() })
    }

    /// Sends what is in `batch`, which is empty afterwards.
    pub(crate) fn post(&self, batch: &mut Vec<M>) {
        if batch.is_empty() {
            return;
        }
        self.messages().append(batch);
        self.arrived.notify_one();
    }

    /// Receives into `batch`, which is empty, everything that has arrived, and waits if that is nothing.
    pub(crate) async fn take(&self, batch: &mut Vec<M>) {
        loop {
            std::mem::swap(&mut *self.messages(), batch);
            if !batch.is_empty() {
                return;
            }
            self.arrived.notified().await;
        }
    }

    fn messages(&self) -> MutexGuard<'_, Vec<M>> {
        // Whoever holds the lock only moves messages.
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The engine's side of all connection threads.
#[derive(Debug)]
pub(crate) struct Callers {
    pub(crate) calls: Arc<Queue<Call>>,
    /// By thread: its queue, and what is to be sent to it.
    threads: Vec<Outbox>,
    /// The last report of each thread, when all have ended.
    last: OnceCell<Vec<Report>>,
}

/// Messages to a connection thread.
#[derive(Debug)]
struct Outbox {
    queue: Arc<Queue<Message>>,
    waiting: RefCell<Vec<Message>>,
}

impl Callers {
    /// The engine's side: requests come in `calls`, and each thread's messages go into its queue.
    pub(crate) fn new(calls: Arc<Queue<Call>>, queues: Vec<Arc<Queue<Message>>>) -> Self {
        let outboxes = queues.into_iter().map(|queue| Outbox { queue, waiting: RefCell::default() });
        Self { calls, threads: outboxes.collect(), last: OnceCell::new() }
    }

    /// Answers a request; [`Callers::deliver`] sends it.
    pub(crate) fn answer(&self, caller: Caller, result: Result<(), NbdError>, memory: Option<Parcel>) {
        let message = Message::Answer { request: caller.request, result, memory };
        self.threads[caller.thread].waiting.borrow_mut().push(message);
    }

    /// The same for a request that asked what is zeros.
    pub(crate) fn answer_status(&self, caller: Caller, result: Result<Vec<Extent>, NbdError>) {
        let message = Message::Status { request: caller.request, result };
        self.threads[caller.thread].waiting.borrow_mut().push(message);
    }

    /// Sends all answers.
    pub(crate) fn deliver(&self) {
        for Outbox { queue, waiting } in &self.threads {
            queue.post(&mut waiting.borrow_mut());
        }
    }

    /// All threads have ended, and these are their last reports.
    ///
    /// # Panics
    /// If they had ended before.
    pub(crate) fn end(&self, reports: Vec<Report>) {
        assert!(self.last.set(reports).is_ok(), "threads end once");
    }

    /// The threads' last reports, if they have ended.
    pub(crate) fn last(&self) -> Option<&[Report]> {
        self.last.get().map(Vec::as_slice)
    }

    /// Asks every thread for its report.
    pub(crate) fn look(&self) -> Vec<oneshot::Receiver<Report>> {
        let ask = |thread: &Outbox| {
            let (sender, report) = oneshot::channel();
            thread.queue.post(&mut vec![Message::Look(sender)]);
            report
        };
        self.threads.iter().map(ask).collect()
    }
}
