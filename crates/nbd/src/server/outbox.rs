//! Replies on their way out, and the budget of what is in flight.
//!
//! Commands end anywhere on the thread: each holds a [`ReplySlot`], which puts its reply into the connection's outbox
//! and wakes the connection's task. All replies of a turn are then in the outbox when the task runs, and leave in one
//! vectored write, data straight from the commands' buffers.
//!
//! Nothing here allocates once the queue has grown to the connection's depth.

#[cfg(test)]
mod tests;

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io::{self, IoSlice},
    mem,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker, ready},
};

use tokio::{io::AsyncWrite, sync::Notify};

use super::budget::{Account, Budget, Charge};
use crate::{
    Command, NbdError, Payload,
    server::Limits,
    transmission::{EXTENTS_BYTES_MAX, Echo, ReplyHeader, Request, Session, encode_extents},
};

/// Pieces of one vectored write: a header and data for each of half as many replies. The system takes up to 1024.
const SLICES_MAX: usize = 256;

/// What a connection shares with the commands that it has in flight.
pub(super) struct Outbox<B> {
    session: Session,
    limits: Limits,
    replies: RefCell<VecDeque<Reply<B>>>,
    /// Bytes of the first reply that are sent.
    sent_bytes: Cell<usize>,
    /// Bytes of all replies that are sent.
    all_sent_bytes: Cell<u64>,
    bytes_in_flight: Cell<u64>,
    requests_in_flight: Cell<u32>,
    /// Commands without an answer that change something, or may.
    changes: Cell<u32>,
    /// The client has made its last request.
    is_past_all: Cell<bool>,
    /// It has, and there are no changes any more.
    settled: Notify,
    /// Of all connections.
    budget: Rc<Budget>,
    account: Rc<Account>,
    closed: Cell<bool>,
}

struct Reply<B> {
    header: ReplyHeader,
    body: Body<B>,
    charge: Charge,
}

enum Body<B> {
    None,
    Data(B),
    Encoded(Vec<u8>),
}

/// A request's place in the budget, and the way back for its reply. A slot that is dropped unanswered replies with
/// [`NbdError::Io`].
pub struct ReplySlot<B: AsRef<[u8]>> {
    outbox: Option<Rc<Outbox<B>>>,
    echo: Echo,
    form: Form,
    charge: Charge,
}

/// What a success looks like.
#[derive(Debug, Clone, Copy)]
enum Form {
    Plain,
    Data { length_bytes: u32 },
    Extents { length_bytes: u64, one: bool },
}

impl Form {
    /// Whether a command with such a reply may change something: reads and questions don't.
    fn may_change(self) -> bool {
        matches!(self, Self::Plain)
    }
}

impl<B: AsRef<[u8]>> Outbox<B> {
    pub(super) fn new(session: Session, limits: Limits, budget: Rc<Budget>) -> Rc<Self> {
        let account = budget.open();
        Rc::new(Self {
            session,
            limits,
            replies: RefCell::default(),
            sent_bytes: Cell::new(0),
            all_sent_bytes: Cell::new(0),
            bytes_in_flight: Cell::new(0),
            requests_in_flight: Cell::new(0),
            changes: Cell::new(0),
            is_past_all: Cell::new(false),
            settled: Notify::new(),
            budget,
            account,
            closed: Cell::new(false),
        })
    }

    /// How the connection's replies look.
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// A slot for the request, or `None` if the budget has no room before a reply is sent.
    pub(super) fn admit(self: &Rc<Self>, request: &Request) -> Option<ReplySlot<B>> {
        let (form, charge_bytes) = match request.command {
            Command::Read { span, .. } => (Form::Data { length_bytes: span.data_bytes() }, span.length_bytes),
            Command::Write { span, .. } => (Form::Plain, span.length_bytes),
            Command::BlockStatus { span, one } => {
                (Form::Extents { length_bytes: span.length_bytes, one }, EXTENTS_BYTES_MAX as u64)
            }
            Command::Flush | Command::Trim { .. } | Command::WriteZeroes { .. } | Command::Cache { .. } => {
                (Form::Plain, 0)
            }
        };
        let charge = self.charge(charge_bytes)?;
        self.changes.update(|changes| changes + u32::from(form.may_change()));
        Some(ReplySlot { outbox: Some(Rc::clone(self)), echo: request.echo, form, charge })
    }

    /// Replies to a request that is not executed, or returns `false` if the budget has no room before another reply is
    /// sent.
    pub(super) fn reject(&self, echo: Echo, error: NbdError) -> bool {
        let Some(charge) = self.charge(0) else { return false };
        let header = ReplyHeader::error(&self.session, echo, error);
        self.push(Reply { header, body: Body::None, charge });
        true
    }

    /// Whether every request was answered and every answer sent.
    pub(super) fn is_idle(&self) -> bool {
        self.requests_in_flight.get() == 0
    }

    /// Whether every request was executed. One is `incomplete` if some of its data are still on their way.
    pub(super) fn has_executed(&self, incomplete: bool) -> bool {
        let replies = self.replies.borrow().len();
        self.requests_in_flight.get() as usize == replies + usize::from(incomplete)
    }

    /// Whether replies wait for the client to take them.
    pub(super) fn has_replies(&self) -> bool {
        !self.replies.borrow().is_empty()
    }

    /// Number of bytes of replies that the client's socket has taken.
    pub(super) fn all_sent_bytes(&self) -> u64 {
        self.all_sent_bytes.get()
    }

    /// Notes that the client has made its last request.
    pub(super) fn finish(&self) {
        if !self.is_past_all.replace(true) && self.changes.get() == 0 {
            self.settled.notify_one();
        }
    }

    /// Waits until the client has made its last request, and no command is under way any more that may change
    /// something. Cancel safe.
    pub(super) async fn settled(&self) {
        while !self.is_past_all.get() || self.changes.get() > 0 {
            self.settled.notified().await;
        }
    }

    /// Notes that a command has ended, or never began.
    fn end(&self, form: Form) {
        self.changes.update(|changes| changes - u32::from(form.may_change()));
        if self.is_past_all.get() && self.changes.get() == 0 {
            self.settled.notify_one();
        }
    }

    /// Notes that the task waits, and is to be woken by the next reply; `awaits_data`: of the client, for a write.
    pub(super) fn park(&self, waker: &Waker, awaits_data: bool) {
        self.account.park(waker, awaits_data || self.has_replies());
    }

    /// Notes that the task is running.
    pub(super) fn unpark(&self) {
        self.account.unpark();
    }

    /// Notes that a part of a write's data has come.
    pub(super) fn received(&self, bytes: usize) {
        self.account.moved(bytes);
    }

    /// Whether the client was too slow to keep memory that others wait for.
    pub(super) fn is_evicted(&self) -> bool {
        self.account.is_evicted()
    }

    /// Notes that the request that was not admitted will not be tried again.
    pub(super) fn stop_waiting(&self) {
        self.budget.stop_waiting(&self.account);
    }

    /// Sends what there is. Pending if the socket takes no more for now. A reply whose last byte is still in the stream
    /// counts as sent, and its memory is free.
    pub(super) fn poll_send<S: AsyncWrite + Unpin>(
        &self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let sent = {
                let replies = self.replies.borrow();
                if replies.is_empty() {
                    return Pin::new(stream).poll_flush(cx);
                }
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let count = gather(&replies, self.sent_bytes.get(), &mut slices);
                ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &slices[..count]))?
            };
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent(sent);
        }
    }

    /// Drops what is queued, and what will be.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.finish();
        self.budget.close(&self.account);
        let replies = mem::take(&mut *self.replies.borrow_mut());
        for Reply { body, charge, .. } in replies {
            drop(body);
            self.discharge(charge);
        }
    }

    fn charge(&self, charge_bytes: u64) -> Option<Charge> {
        let requests = self.requests_in_flight.get();
        let bytes = self.bytes_in_flight.get() + charge_bytes;
        let admitted = requests < self.limits.requests_in_flight_max.max(1)
            && (bytes <= self.limits.bytes_in_flight_max || bytes == charge_bytes);
        let charge = if admitted { self.budget.charge(&self.account, charge_bytes)? } else { return None };
        self.requests_in_flight.set(requests + 1);
        self.bytes_in_flight.set(bytes);
        Some(charge)
    }

    /// To be called when the memory is free again.
    fn discharge(&self, charge: Charge) {
        self.requests_in_flight.update(|requests| requests - 1);
        self.bytes_in_flight.update(|bytes| bytes - charge.bytes());
        self.budget.discharge(&self.account, charge);
    }

    fn push(&self, reply: Reply<B>) {
        if self.closed.get() {
            let Reply { body, charge, .. } = reply;
            drop(body);
            return self.discharge(charge);
        }
        self.replies.borrow_mut().push_back(reply);
        self.account.wake();
    }

    /// Drops the replies that are sent, and gives back their budget.
    fn sent(&self, mut bytes: usize) {
        self.account.moved(bytes);
        self.all_sent_bytes.update(|sent| sent + bytes as u64);
        bytes += self.sent_bytes.get();
        loop {
            let reply = {
                let mut replies = self.replies.borrow_mut();
                match replies.front() {
                    Some(first) if first.length_bytes() <= bytes => {
                        replies.pop_front().expect("there is a first reply")
                    }
                    _ => break,
                }
            };
            bytes -= reply.length_bytes();
            let Reply { body, charge, .. } = reply;
            drop(body);
            self.discharge(charge);
        }
        self.sent_bytes.set(bytes);
    }
}

impl<B: AsRef<[u8]>> Reply<B> {
    fn body(&self) -> &[u8] {
        match &self.body {
            Body::None => &[],
            Body::Data(buffer) => buffer.as_ref(),
            Body::Encoded(bytes) => bytes,
        }
    }

    fn length_bytes(&self) -> usize {
        self.header.as_bytes().len() + self.body().len()
    }
}

/// Points `slices` at the replies from byte `skipped` of the first on, and says how many it used.
fn gather<'a, B: AsRef<[u8]>>(
    replies: &'a VecDeque<Reply<B>>,
    mut skipped: usize,
    slices: &mut [IoSlice<'a>],
) -> usize {
    let pieces = replies.iter().flat_map(|reply| [reply.header.as_bytes(), reply.body()]);
    let unsent = pieces.filter_map(|piece| {
        let piece_skipped = skipped.min(piece.len());
        skipped -= piece_skipped;
        let unsent = &piece[piece_skipped..];
        (!unsent.is_empty()).then_some(unsent)
    });
    slices.iter_mut().zip(unsent).map(|(slice, piece)| *slice = IoSlice::new(piece)).count()
}

impl<B: AsRef<[u8]>> ReplySlot<B> {
    /// Answers the request.
    ///
    /// # Panics
    /// If a success carries another payload than its command asked for: see [`Payload`].
    pub fn done(mut self, outcome: Result<Payload<B>, NbdError>) {
        self.answer(outcome);
    }

    /// Gives the request's place back without a reply; its memory must be free.
    pub(super) fn abandon(mut self) {
        if let Some(outbox) = self.outbox.take() {
            outbox.end(self.form);
            outbox.discharge(self.charge);
        }
    }

    /// What the reply repeats of the request.
    pub(super) fn echo(&self) -> Echo {
        self.echo
    }

    fn answer(&mut self, outcome: Result<Payload<B>, NbdError>) {
        let Some(outbox) = self.outbox.take() else { return };
        outbox.end(self.form);
        let (session, echo) = (&outbox.session, self.echo);
        let (header, body) = match (self.form, outcome) {
            (_, Err(error)) => (ReplyHeader::error(session, echo, error), Body::None),
            (Form::Plain, Ok(Payload::None)) => (ReplyHeader::done(session, echo), Body::None),
            (Form::Data { length_bytes }, Ok(Payload::Data(buffer))) => {
                assert_eq!(buffer.as_ref().len(), length_bytes as usize, "a read's buffer is as long as the read");
                (ReplyHeader::data(session, echo, length_bytes), Body::Data(buffer))
            }
            (Form::Extents { length_bytes, one }, Ok(Payload::Extents(extents))) => {
                let encoded = encode_extents(session, length_bytes, one, &extents);
                (ReplyHeader::extents(session, echo, &encoded), Body::Encoded(encoded))
            }
            (form, Ok(_)) => panic!("the payload does not fit the command: {form:?}"),
        };
        outbox.push(Reply { header, body, charge: self.charge });
    }
}

impl<B: AsRef<[u8]>> Drop for ReplySlot<B> {
    fn drop(&mut self) {
        self.answer(Err(NbdError::Io));
    }
}

impl<B: AsRef<[u8]>> std::fmt::Debug for ReplySlot<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplySlot").field("echo", &self.echo).field("form", &self.form).finish_non_exhaustive()
    }
}
