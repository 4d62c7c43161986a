//! Latency of clients' requests.
//!
//! A request begins with the batch that it arrives in, and ends with the turn that answers it. The clock is read once
//! for each of the two.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use uraid_io::buf::Buf;
use uraid_io::engine;
use uraid_io::histogram::Histogram;
use uraid_layout::Bytes;
use uraid_nbd::{NbdError, Payload, ReplySlot};

/// The kind of a client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
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
pub(crate) type ServedByKind = [Served; Asked::ALL.len()];

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Meter {
    now: Cell<Option<Instant>>,
    served: RefCell<ServedByKind>,
}

/// A client's request: where to send the reply, and the facts to record with it.
#[derive(Debug)]
pub(crate) struct Request {
    reply: ReplySlot<Buf>,
    meter: Rc<Meter>,
    kind: Asked,
    len: Bytes,
    began: Instant,
}

impl Asked {
    /// Every kind, in the order of their numbers.
    pub(crate) const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Flush, Self::Trim, Self::Zero];

    fn of(command: &engine::Command) -> (Self, Bytes) {
        match command {
            engine::Command::Read { buf, .. } => (Self::Read, Bytes(buf.len() as u64)),
            engine::Command::Write { buf, .. } => (Self::Write, Bytes(buf.len() as u64)),
            engine::Command::Trim { len, .. } => (Self::Trim, len.bytes()),
            engine::Command::WriteZeroes { len, .. } => (Self::Zero, len.bytes()),
            _ => (Self::Flush, Bytes(0)),
        }
    }
}

impl Meter {
    /// Starts timing a request.
    pub(super) fn begin(self: &Rc<Self>, command: &engine::Command, reply: ReplySlot<Buf>) -> Request {
        let (kind, len) = Asked::of(command);
        Request { reply, meter: Rc::clone(self), kind, len, began: self.now() }
    }

    /// Ends a batch: the next request reads the clock again.
    pub(super) fn pass(&self) {
        self.now.set(None);
    }

    /// The requests answered so far.
    pub(super) fn served(&self) -> ServedByKind {
        *self.served.borrow()
    }

    fn now(&self) -> Instant {
        let now = self.now.get().unwrap_or_else(Instant::now);
        self.now.set(Some(now));
        now
    }
}

impl Request {
    /// Answers the request.
    pub(super) fn done(self, result: Result<Payload<Buf>, NbdError>) {
        let Self { reply, meter, kind, len, began } = self;
        let now = meter.now();
        let served = &mut meter.served.borrow_mut()[kind as usize];
        served.latency.record(now.saturating_duration_since(began));
        match &result {
            Ok(_) => served.bytes.0 += len.0,
            Err(_) => served.errors += 1,
        }
        reply.done(result);
    }
}

impl Served {
    /// Adds the requests that another reactor has answered.
    pub(crate) fn add(&mut self, other: &Self) {
        self.latency.add(&other.latency);
        self.bytes.0 += other.bytes.0;
        self.errors += other.errors;
    }
}
