//! Clients' requests: how many, how large and how long.
//!
//! A request begins with the batch that it arrives in, and ends with the turn that answers it. The clock is read once
//! for each of the two.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uraid_io::buf::Buf;
use uraid_io::histogram::Histogram;
use uraid_layout::Bytes;
use uraid_nbd::{Command, NbdError, Payload, ReplySlot};

use crate::protocol::Traffic;
use crate::recorder::Recorder;

/// The kind of a client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Read,
    Write,
    Flush,
    Trim,
    Zero,
}

/// The answered requests of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Served {
    pub(crate) latency: Histogram,
    /// Bytes covered by the successful requests.
    pub(crate) bytes: Bytes,
    pub(crate) errors: u64,
}

/// The answered requests of every kind.
pub(crate) type ServedByKind = [Served; RequestKind::ALL.len()];

/// See the module.
#[derive(Debug)]
pub(crate) struct Meter {
    /// What the clients asked for.
    traffic: Cell<Traffic>,
    /// All threads' recorder of clients' requests.
    recorder: Arc<Recorder>,
    /// What times are counted from.
    start: Instant,
    /// Nanoseconds since then, as the clock was read last for this batch; 0: it was not.
    now: Cell<u64>,
    served: RefCell<ServedByKind>,
}

/// A client's request: where to send the reply, and the facts to record with it.
#[derive(Debug)]
pub(crate) struct Request {
    reply: ReplySlot<Buf>,
    meter: Rc<Meter>,
    kind: RequestKind,
    len: Bytes,
    /// By the meter's clock.
    began: u64,
}

impl RequestKind {
    /// Every kind, in the order of their numbers.
    pub(crate) const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Flush, Self::Trim, Self::Zero];

    fn of<B>(command: &Command<B>) -> (Self, Bytes) {
        let (kind, span) = match command {
            Command::Write { span, .. } => (Self::Write, *span),
            Command::Trim { span, .. } => (Self::Trim, *span),
            Command::WriteZeroes { span, .. } => (Self::Zero, *span),
            Command::Flush => return (Self::Flush, Bytes(0)),
            Command::Read { span, .. } | Command::Cache { span } | Command::BlockStatus { span, .. } => {
                (Self::Read, *span)
            }
        };
        (kind, Bytes(span.length_bytes))
    }
}

impl Meter {
    pub(crate) fn new(recorder: Arc<Recorder>) -> Rc<Self> {
        let (traffic, start) = (Cell::default(), Instant::now());
        Rc::new(Self { traffic, recorder, start, now: Cell::new(0), served: RefCell::default() })
    }

    /// Counts a request and starts timing it.
    pub(crate) fn begin(self: &Rc<Self>, command: &Command<Buf>, reply: ReplySlot<Buf>) -> Request {
        self.count(command);
        self.recorder.note(command);
        let (kind, len) = RequestKind::of(command);
        Request { reply, meter: Rc::clone(self), kind, len, began: self.now() }
    }

    /// Ends a batch: the next request reads the clock again.
    pub(crate) fn pass(&self) {
        self.now.set(0);
    }

    /// The requests answered so far.
    pub(crate) fn served(&self) -> ServedByKind {
        *self.served.borrow()
    }

    /// The requests that have arrived so far.
    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic.get()
    }

    /// The recorder of the clients' requests.
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Bytes don't overflow, however often a client trims what is as large as anything can be.
    fn count<B>(&self, command: &Command<B>) {
        let mut traffic = self.traffic.get();
        match command {
            Command::Read { span, .. } => {
                traffic.reads += 1;
                traffic.read_bytes = traffic.read_bytes.saturating_add(span.length_bytes);
            }
            Command::Write { span, .. } | Command::WriteZeroes { span, .. } | Command::Trim { span, .. } => {
                traffic.writes += 1;
                traffic.written_bytes = traffic.written_bytes.saturating_add(span.length_bytes);
            }
            Command::Flush => traffic.flushes += 1,
            Command::Cache { .. } | Command::BlockStatus { .. } => {}
        }
        self.traffic.set(traffic);
    }

    fn now(&self) -> u64 {
        if self.now.get() == 0 {
            let elapsed = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.now.set(elapsed.max(1));
        }
        self.now.get()
    }
}

impl Request {
    /// Whether it is a read.
    pub(crate) fn is_read(&self) -> bool {
        self.kind == RequestKind::Read
    }

    /// Answers a request that needed nothing from the array, and does not count it.
    pub(crate) fn dismiss(self, result: Result<Payload<Buf>, NbdError>) {
        self.reply.done(result);
    }

    /// Answers the request.
    pub(crate) fn done(self, result: Result<Payload<Buf>, NbdError>) {
        let Self { reply, meter, kind, len, began } = self;
        let now = meter.now();
        let served = &mut meter.served.borrow_mut()[kind as usize];
        served.latency.record(Duration::from_nanos(now.saturating_sub(began)));
        match &result {
            Ok(_) => served.bytes.0 = served.bytes.0.saturating_add(len.0),
            Err(_) => served.errors += 1,
        }
        reply.done(result);
    }
}

impl Served {
    /// Adds the requests of another thread's clients.
    pub(crate) fn add(&mut self, other: &Self) {
        self.latency.add(&other.latency);
        self.bytes.0 = self.bytes.0.saturating_add(other.bytes.0);
        self.errors += other.errors;
    }
}
