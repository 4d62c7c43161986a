//! Threads that serve clients' connections, while another thread runs the engine.
//!
//! A connection thread reads and writes sockets, encodes and decodes, and copies requests' data; the engine's thread
//! does the rest. Requests go to it in batches, as they arrive, and their answers come back in batches, as a turn of
//! the engine ends: each batch costs one lock and wakes the other thread at most once. A request's memory goes along
//! and is not copied. The memory of a write stays with the engine, which sends back other memory of the same size if it
//! has any to spare, so that at a steady load neither thread allocates.
//!
//! Both queues are bounded by the requests that clients may have in flight.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{LocalSet, spawn_local};
use uraid_io::buf::{Buf, Parcel, Pool};
use uraid_io::engine::Fill;
use uraid_layout::Bytes;
use uraid_nbd::{
    Command, Connections, Dispatcher, Export, ExportInfo, Incoming, Limits, Listener, NbdError, Payload, ReplySlot,
    RequestMemory, Server,
};

use crate::control::protocol::Traffic;
use crate::meter::{Meter, Request, ServedByKind};
use crate::reactor::at_once;
use crate::recorder::Recorder;
use crate::serve::warn_unless;
use crate::spin::Spinner;

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
    fn new() -> Arc<Self> {
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
}

/// Messages to a connection thread.
#[derive(Debug)]
struct Outbox {
    queue: Arc<Queue<Message>>,
    waiting: RefCell<Vec<Message>>,
}

impl Callers {
    /// Answers a request; [`Callers::deliver`] sends it.
    pub(crate) fn answer(&self, caller: Caller, result: Result<(), NbdError>, memory: Option<Parcel>) {
        let message = Message::Answer { request: caller.request, result, memory };
        self.threads[caller.thread].waiting.borrow_mut().push(message);
    }

    /// Sends all answers.
    pub(crate) fn deliver(&self) {
        for Outbox { queue, waiting } in &self.threads {
            queue.post(&mut waiting.borrow_mut());
        }
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

/// The settings of connection threads.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) info: ExportInfo,
    /// For each thread.
    pub(crate) limits: Limits,
    /// Request memory that each thread keeps for reuse.
    pub(crate) kept: Bytes,
    pub(crate) busy_poll: Duration,
    pub(crate) recorder: Arc<Recorder>,
}

/// Running connection threads.
pub(crate) struct ConnectionThreads {
    dispatcher: Dispatcher,
    threads: Vec<JoinHandle<()>>,
    ended: mpsc::Receiver<Result<bool>>,
}

impl ConnectionThreads {
    /// Starts `count` threads. They serve clients as soon as [`ConnectionThreads::serve`] accepts any.
    ///
    /// # Errors
    /// If the system can't start a thread.
    pub(crate) fn start(count: usize, options: &Options) -> Result<(Self, Callers)> {
        let (dispatcher, incoming) = Dispatcher::new(count, options.limits);
        let (sender, ended) = mpsc::channel(count);
        let calls = Queue::new();
        let queues: Vec<_> = (0..count).map(|_| Queue::new()).collect();
        let begin = |(thread, incoming): (usize, Incoming)| {
            let (options, calls, queue) = (options.clone(), Arc::clone(&calls), Arc::clone(&queues[thread]));
            let sender = sender.clone();
            // If the engine's thread ended first, there is nobody to tell.
            let run = move || drop(sender.blocking_send(run(thread, options, calls, queue, incoming)));
            thread::Builder::new().name(format!("connections-{thread}")).spawn(run).context("can't start a thread")
        };
        let threads = incoming.into_iter().enumerate().map(begin).collect::<Result<_>>()?;
        let outboxes = queues.into_iter().map(|queue| Outbox { queue, waiting: RefCell::default() });
        let callers = Callers { calls, threads: outboxes.collect() };
        Ok((Self { dispatcher, threads, ended }, callers))
    }

    /// The clients of all threads.
    pub(crate) fn connections(&self) -> Connections {
        self.dispatcher.connections()
    }

    /// Accepts clients until `shutdown` completes, and waits for the end of their connections.
    pub(crate) async fn serve(self, listener: Listener, shutdown: impl Future<Output = ()>) -> Result<()> {
        let Self { dispatcher, threads, mut ended } = self;
        let all_ended = async {
            for _ in &threads {
                let answered = ended.recv().await.context("a connection thread has ended")??;
                warn_unless(answered);
            }
            anyhow::Ok(())
        };
        let ((), ended) = tokio::join!(dispatcher.run(listener, shutdown), all_ended);
        ended?;
        for thread in threads {
            assert!(thread.join().is_ok(), "a thread that has sent its result has not panicked");
        }
        Ok(())
    }
}

/// Runs a connection thread. Returns whether all its clients' requests were answered.
fn run(
    thread: usize,
    options: Options,
    calls: Arc<Queue<Call>>,
    queue: Arc<Queue<Message>>,
    incoming: Incoming,
) -> Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let Options { info, limits, kept, busy_poll, recorder } = options;
    let remote = Rc::new(Remote {
        thread,
        info,
        pool: Pool::new(kept),
        calls,
        outgoing: RefCell::default(),
        requests: RefCell::default(),
        spinner: Spinner::new(busy_poll),
        meter: Meter::new(recorder),
        request_memory: OnceCell::new(),
    });
    LocalSet::new().block_on(&runtime, async {
        let server = Server::new(Rc::clone(&remote), limits)?;
        remote.request_memory.set(server.request_memory()).expect("there is one server");
        let (receiving, spinning) = (Rc::clone(&remote), Rc::clone(&remote));
        spawn_local(async move { receiving.receive(&queue).await });
        if spinning.spinner.spins() {
            spawn_local(async move { spinning.spinner.run().await });
        }
        Ok(server.serve_incoming(incoming).await)
    })
}

/// The array as a connection thread's clients see it.
struct Remote {
    thread: usize,
    info: ExportInfo,
    pool: Pool,
    calls: Arc<Queue<Call>>,
    /// What is to be sent to the engine.
    outgoing: RefCell<Vec<Call>>,
    /// The clients' requests that the engine has, by number.
    requests: RefCell<Requests>,
    spinner: Spinner,
    meter: Rc<Meter>,
    request_memory: OnceCell<RequestMemory>,
}

#[derive(Default)]
struct Requests {
    slots: Vec<Option<Request>>,
    free: Vec<u32>,
}

impl Remote {
    /// Handles messages as they arrive. Runs forever.
    async fn receive(&self, queue: &Queue<Message>) {
        let mut batch = Vec::new();
        loop {
            queue.take(&mut batch).await;
            for message in batch.drain(..) {
                match message {
                    Message::Answer { request, result, memory } => self.end(request, result, memory),
                    // Whoever asked may have gone.
                    Message::Look(answer) => drop(answer.send(self.report())),
                }
            }
            self.meter.pass();
        }
    }

    fn end(&self, request: u32, result: Result<(), NbdError>, memory: Option<Parcel>) {
        let buf = memory.map(|memory| self.pool.adopt(memory));
        let request = self.requests.borrow_mut().remove(request);
        match result {
            Err(NbdError::NotSupported) => request.dismiss(Err(NbdError::NotSupported)),
            Ok(()) if request.is_read() => request.done(Ok(buf.map_or(Payload::None, Payload::Data))),
            result => request.done(result.map(|()| Payload::None)),
        }
    }

    fn report(&self) -> Report {
        let memory = self.request_memory.get().expect("the server is there before its clients");
        let requests = Fill { used: Bytes(memory.used_bytes()), limit: Bytes(memory.limit_bytes()) };
        Report { traffic: self.meter.traffic(), served: self.meter.served(), requests }
    }
}

impl Requests {
    fn insert(&mut self, request: Request) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("connections have fewer requests in flight")
        });
        self.slots[number as usize] = Some(request);
        number
    }

    fn remove(&mut self, number: u32) -> Request {
        self.free.push(number);
        self.slots[number as usize].take().expect("a request ends once")
    }
}

impl Export for Remote {
    type Buffer = Buf;

    fn info(&self) -> ExportInfo {
        self.info.clone()
    }

    fn buffer(&self, length_bytes: u32) -> Option<Buf> {
        let len = Bytes(length_bytes.into());
        self.pool.try_alloc(len).or_else(|| Buf::try_zeroed(len))
    }

    fn submit(&self, command: Command<Buf>, reply: ReplySlot<Buf>) {
        let request = self.meter.begin(&command, reply);
        if let Some(payload) = at_once(&command) {
            return request.dismiss(Ok(payload));
        }
        let caller = Caller { thread: self.thread, request: self.requests.borrow_mut().insert(request) };
        let (command, buf) = command.split();
        self.outgoing.borrow_mut().push(Call { caller, command, memory: buf.map(Buf::into_parcel) });
    }

    fn kick(&self) {
        self.meter.pass();
        self.calls.post(&mut self.outgoing.borrow_mut());
        self.spinner.touch();
    }
}
