//! Threads that serve clients' connections, while another thread runs the engine.
//!
//! A connection thread reads and writes sockets, encodes and decodes, and copies requests' data; the engine's thread
//! does the rest. Requests go to it in [batches](crate::calls), as they arrive, and their answers come back in batches,
//! as a turn of the engine ends. A request's memory goes along and is not copied. The memory of a write stays with the
//! engine, which sends back other memory of the same size if it has any to spare, so that at a steady load neither
//! thread allocates.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::mpsc;
use tokio::task::{LocalSet, spawn_local};
use uraid_io::buf::{Buf, Parcel, Pool};
use uraid_io::engine::Fill;
use uraid_layout::Bytes;
use uraid_nbd::{
    Command, Connections, Dispatcher, Ending, Export, ExportInfo, Incoming, Limits, Listener, NbdError, Parting,
    Payload, Rates, ReplySlot, RequestMemory, Served, Server, Tls, when_woken,
};

use crate::calls::{Call, Caller, Callers, Message, Queue, Report};
use crate::commands::at_once;
use crate::export_size::ExportSize;
use crate::meter::{Meter, Request};
use crate::recorder::Recorder;
use crate::spin::Spinner;

/// The settings of connection threads.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) info: ExportInfo,
    pub(crate) size: ExportSize,
    /// For each thread.
    pub(crate) limits: Limits,
    pub(crate) tls: Option<Tls>,
    /// Of all threads together.
    pub(crate) rates: Arc<Rates>,
    /// Request memory that each thread keeps for reuse.
    pub(crate) kept: Bytes,
    pub(crate) busy_poll: Duration,
    pub(crate) recorder: Arc<Recorder>,
}

/// Running connection threads.
pub(crate) struct ConnectionThreads {
    dispatcher: Dispatcher,
    threads: Vec<JoinHandle<()>>,
    ended: mpsc::Receiver<Result<(Served, Report)>>,
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
            // What it logs is about the same array.
            let span = tracing::Span::current();
            // If the engine's thread ended first, there is nobody to tell.
            let run = move || {
                let _span = span.entered();
                drop(sender.blocking_send(run(thread, options, calls, queue, incoming)));
            };
            thread::Builder::new().name(format!("connections-{thread}")).spawn(run).context("can't start a thread")
        };
        let threads = incoming.into_iter().enumerate().map(begin).collect::<Result<_>>()?;
        Ok((Self { dispatcher, threads, ended }, Callers::new(calls, queues)))
    }

    /// The clients of all threads.
    pub(crate) fn connections(&self) -> Connections {
        self.dispatcher.connections()
    }

    /// Accepts clients until `shutdown` says how to end, and waits for the end of their connections. Returns what goes
    /// to another process, and what the clients of each thread have done.
    pub(crate) async fn serve(
        self,
        listener: Listener,
        shutdown: impl Future<Output = Ending>,
    ) -> Result<(Vec<Parting>, Vec<Report>)> {
        let Self { dispatcher, threads, mut ended } = self;
        let all_ended = async {
            let (mut clients, mut reports) = (Vec::new(), Vec::new());
            for _ in &threads {
                let (served, report) = ended.recv().await.context("a connection thread has ended")??;
                clients.extend(partings(served));
                reports.push(report);
            }
            anyhow::Ok((clients, reports))
        };
        let (mut partings, ended) = tokio::join!(dispatcher.run(listener, shutdown), all_ended);
        let (clients, reports) = ended?;
        partings.extend(clients);
        for thread in threads {
            assert!(thread.join().is_ok(), "a thread that has sent its result has not panicked");
        }
        Ok((partings, reports))
    }
}

/// What is left of a server. Logs a warning if its shutdown did not wait for all replies.
pub(crate) fn partings(Served { answered, partings }: Served) -> Vec<Parting> {
    if !answered {
        tracing::warn!("some requests were not answered in time");
    }
    partings
}

/// Runs a connection thread. Returns what is left of its clients, and what they have done.
fn run(
    thread: usize,
    options: Options,
    calls: Arc<Queue<Call>>,
    queue: Arc<Queue<Message>>,
    incoming: Incoming,
) -> Result<(Served, Report)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let Options { info, size, limits, tls, rates, kept, busy_poll, recorder } = options;
    let remote = Rc::new(Remote {
        thread,
        info,
        size,
        pool: Pool::new(kept),
        calls,
        outgoing: RefCell::default(),
        requests: RefCell::default(),
        spinner: Spinner::new(busy_poll),
        meter: Meter::new(recorder),
        request_memory: OnceCell::new(),
    });
    let served = async {
        let server = Server::new(Rc::clone(&remote), limits, tls)?.paced_by(rates);
        remote.request_memory.set(server.request_memory()).expect("there is one server");
        let (receiving, spinning) = (Rc::clone(&remote), Rc::clone(&remote));
        spawn_local(async move { receiving.receive(&queue).await });
        if spinning.spinner.spins() {
            spawn_local(async move { spinning.spinner.run().await });
        }
        let served = server.serve_incoming(incoming).await;
        Ok((served, remote.report()))
    };
    LocalSet::new().block_on(&runtime, when_woken(served))
}

/// The array as a connection thread's clients see it.
struct Remote {
    thread: usize,
    info: ExportInfo,
    size: ExportSize,
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
                    Message::Status { request, result } => {
                        let request = self.requests.borrow_mut().remove(request);
                        request.dismiss(result.map(Payload::Extents));
                    }
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
        self.size.of(&self.info)
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
