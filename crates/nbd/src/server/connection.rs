//! One connection: a handshake here or elsewhere, then a task that reads, submits and writes until either side is done.

use std::{
    future::poll_fn,
    mem,
    ops::ControlFlow,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{sync::watch, task::yield_now, time::timeout};
use tracing::warn;

use super::{
    ReplySlot,
    client::{Attached, Client, Detached},
    common::Common,
    idle::Idle,
    negotiation::{failed, negotiate, say_goodbye},
    outbox::Outbox,
    parting::Parting,
    permits::Permit,
    rates::Pacer,
    receive::ReceiveBuffer,
    stream::{Portable, Stream},
    woken::when_woken,
};
use crate::{
    Command, Error, Export, NbdError, Span,
    transmission::{Decoder, Echo, Received, Request, Session},
};

/// Reads of one turn before everyone else gets theirs: one for what there was, one for what has come meanwhile.
const READS_PER_TURN: u32 = 2;

/// What is missing of a write from here on is read straight into its buffer. Less is better read together with the
/// requests behind it.
const DIRECT_BYTES_MIN: usize = 64 << 10;

/// How long who shakes hands may go on with that when clients go to another process.
const HANDSHAKE_GRACE: Duration = Duration::from_secs(1);

/// How long a newcomer waits for requests of clients that have left, before those that did not begin are dropped: long
/// enough to execute what fits into a connection's budget, and far shorter than clients wait for a reply.
const LEFT_PATIENCE: Duration = Duration::from_secs(5);

/// Whether the server shuts down, and how far that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stopping {
    /// It serves.
    No,
    /// New requests are left for another process, to which the client goes.
    Parting,
    /// New requests are refused.
    Refusing,
    /// Nothing more is read.
    Closing,
}

/// Serves a client until it leaves, fails, is in others' way, or the server is stopping. Dropping the future closes the
/// connection at once.
pub(super) async fn serve_connection<S, E>(
    stream: S,
    common: Common<E>,
    mut draining: watch::Receiver<Stopping>,
    permit: Permit,
) -> Result<Option<Parting>, Error>
where
    S: Stream,
    E: Export,
{
    let limit = common.limits.handshake_timeout;
    let exports = |_| common.export.info().into();
    let negotiation = timeout(limit, negotiate(stream, exports, common.tls.as_ref()));
    let negotiated = tokio::select! {
        negotiated = negotiation => negotiated.map_err(|_| Error::HandshakeTimeout { limit })??,
        () = permit.evicted() => None,
        () = handshakes_are_over(&mut draining) => None,
    };
    match negotiated {
        Some((_, client)) => serve_client(client, common, draining, permit).await,
        None => Ok(None),
    }
}

/// The same with a client that has shaken hands elsewhere.
pub(super) async fn take_over<S, E>(
    client: Detached<S>,
    common: Common<E>,
    draining: watch::Receiver<Stopping>,
    permit: Permit,
) -> Result<Option<Parting>, Error>
where
    S: Portable,
    E: Export,
{
    let client = client.attach().map_err(failed("taking the client over"))?;
    if common.tls.is_some() && matches!(client, Attached::Plain(_)) {
        return Err(Error::TlsRequired);
    }
    if !client.session().fits(&common.export.info()) {
        return Err(Error::ExportChanged);
    }
    serve_client(client, common, draining, permit).await
}

async fn serve_client<S, E>(
    client: Attached<S>,
    common: Common<E>,
    draining: watch::Receiver<Stopping>,
    permit: Permit,
) -> Result<Option<Parting>, Error>
where
    S: Stream,
    E: Export,
{
    match client {
        _ if !permit.keep() => Ok(None),
        Attached::Plain(client) => serve(client, common, draining, &permit).await,
        Attached::Encrypted(client) => serve(*client, common, draining, &permit).await,
    }
}

/// Serves the client's requests until either side is done, and nothing of them is under way that changes anything; or
/// until the client goes to another process, and nothing of it is under way at all.
async fn serve<S: Stream, E: Export>(
    client: Client<S>,
    common: Common<E>,
    mut draining: watch::Receiver<Stopping>,
    permit: &Permit,
) -> Result<Option<Parting>, Error> {
    let Client { stream, mut received, session } = client;
    let Common { export, limits, budget, rates, .. } = common;
    received.enlarge()?;
    tokio::select! {
        () = permit.fence(|| stream.is_closed(), LEFT_PATIENCE.min(limits.stuck_timeout)) => {}
        stopping = stopping_further(&mut draining, Stopping::No) => {
            return if stopping == Stopping::Parting && S::MAY_PART {
                part(&stream, &session, &received).map(Some)
            } else {
                Ok(None)
            };
        }
    }
    let mut connection = Connection {
        stream,
        export,
        outbox: Outbox::new(session, limits, budget),
        decoder: Decoder::new(session),
        received,
        stage: Stage::Header,
        pacer: Pacer::new(rates),
        received_bytes: 0,
        stopping: Stopping::No,
    };
    let outbox = Rc::clone(&connection.outbox);
    let mut idle = Idle::new(limits.idle_timeout);
    let mut is_settled = false;
    let ended = loop {
        let stopping = connection.stopping;
        let rest = when_woken(interruption(permit, &outbox, is_settled, &mut idle, &mut draining, stopping));
        let interruption = tokio::select! {
            biased;
            ended = connection.run() => break ended,
            interruption = rest => interruption,
        };
        match interruption {
            Interruption::Asked => permit.answer(connection.stream.is_closed()),
            Interruption::Settled => {
                is_settled = true;
                permit.settle();
            }
            Interruption::Evicted => break Err(Error::Stuck),
            Interruption::Tick => {
                if let Some(limit) = limits.idle_timeout.filter(|_| idle.is_over(connection.moved_at_rest())) {
                    break Err(Error::Idle { limit });
                }
            }
            Interruption::Stopping(further) => {
                if stopping == Stopping::Parting {
                    let peer = permit.peer();
                    warn!(%peer, "a client did not end its requests in time to go on: it is disconnected");
                }
                connection.stop(further);
            }
        }
    };
    let parting = match &ended {
        Ok(()) if connection.may_part() => {
            Some(part(&connection.stream, connection.outbox.session(), &connection.received)?)
        }
        _ => {
            say_goodbye(&mut connection.stream).await;
            None
        }
    };
    drop(connection);
    permit.answer(true);
    outbox.settled().await;
    ended.map(|()| parting)
}

/// What happens to a connection beside its client's requests: rarely.
enum Interruption {
    /// Somebody asks whether it is closed.
    Asked,
    /// Its client has made its last request, and nothing changes any more.
    Settled,
    /// Its permit is given to somebody else.
    Evicted,
    /// It is time to look whether its client does anything.
    Tick,
    /// The shutdown has come so far.
    Stopping(Stopping),
}

/// Waits for the next one. Cancel safe.
async fn interruption<B: AsRef<[u8]>>(
    permit: &Permit,
    outbox: &Outbox<B>,
    is_settled: bool,
    idle: &mut Idle,
    draining: &mut watch::Receiver<Stopping>,
    stopping: Stopping,
) -> Interruption {
    tokio::select! {
        biased;
        () = permit.asked() => Interruption::Asked,
        () = outbox.settled(), if !is_settled => Interruption::Settled,
        () = permit.evicted() => Interruption::Evicted,
        () = idle.tick() => Interruption::Tick,
        further = stopping_further(draining, stopping) => Interruption::Stopping(further),
    }
}

/// Has a client go to another process.
fn part(stream: &impl Stream, session: &Session, received: &ReceiveBuffer) -> Result<Parting, Error> {
    let stream = stream.for_another_process().map_err(failed("handing the client over"))?;
    Ok(Parting::of_client(stream, session, received.unread()))
}

/// Waits until who shakes hands has no more time for that: where clients go to another process they may go on for a
/// moment, and go there afterwards. Those who are silent must not have the others wait.
async fn handshakes_are_over(draining: &mut watch::Receiver<Stopping>) {
    if stopping_further(draining, Stopping::No).await == Stopping::Parting {
        let _ = timeout(HANDSHAKE_GRACE, stopping_further(draining, Stopping::Parting)).await;
    }
}

/// Waits until the shutdown has come further than that.
async fn stopping_further(draining: &mut watch::Receiver<Stopping>, than: Stopping) -> Stopping {
    match draining.wait_for(|stopping| *stopping > than).await {
        Ok(stopping) => *stopping,
        // Nobody shuts the server down any more.
        Err(_) => std::future::pending().await,
    }
}

struct Connection<S, E: Export> {
    stream: S,
    export: Rc<E>,
    outbox: Rc<Outbox<E::Buffer>>,
    decoder: Decoder,
    received: ReceiveBuffer,
    stage: Stage<E::Buffer>,
    pacer: Pacer,
    /// All that the client has sent.
    received_bytes: u64,
    stopping: Stopping,
}

/// Where the connection stands in its stream of requests.
enum Stage<B: AsRef<[u8]>> {
    /// At a request, or in the data of one that is refused.
    Header,
    /// A request whose turn has not come yet.
    Paced(Request),
    /// A request that the budget has no room for yet.
    Unadmitted(Request),
    /// A refusal that the budget has no room for yet.
    Refusal(Echo, NbdError),
    /// In a write's data.
    Data(Writing<B>),
    /// Past the last request: replies are still due.
    Closing,
}

/// What a turn did.
#[derive(Default)]
struct Turn {
    submitted: bool,
    refused: bool,
}

struct Writing<B: AsRef<[u8]>> {
    span: Span,
    fua: bool,
    buffer: B,
    filled_bytes: usize,
    slot: ReplySlot<B>,
}

impl<S: Stream, E: Export> Connection<S, E> {
    /// Serves until either side is done. Cancel safe: all state is in `self`.
    async fn run(&mut self) -> Result<(), Error> {
        while poll_fn(|cx| self.poll_turn(cx)).await?.is_continue() {
            // Unlike a task that wakes itself, this lets the event loop ask the other sockets first.
            yield_now().await;
        }
        Ok(())
    }

    /// One turn. Ready to continue if the socket may have more.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Result<ControlFlow<()>, Error>> {
        self.outbox.unpark();
        if self.outbox.is_evicted() {
            return Poll::Ready(Err(Error::Stuck));
        }
        let mut reads = 0;
        let ended = loop {
            // Read on even if the socket takes no more replies: the budget says how far.
            let sent = self.outbox.poll_send(&mut self.stream, cx);
            if let Poll::Ready(Err(source)) = sent {
                break Poll::Ready(Err(Error::Connection { operation: "sending to the client", source }));
            }
            match self.advance(cx) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => break Poll::Ready(Err(error)),
            }
            if matches!(self.stage, Stage::Closing) {
                self.outbox.finish();
            }
            let is_past_all = matches!(self.stage, Stage::Closing) || self.may_part();
            if is_past_all && self.outbox.is_idle() && sent.is_ready() {
                break Poll::Ready(Ok(ControlFlow::Break(())));
            }
            if reads == READS_PER_TURN {
                break Poll::Ready(Ok(ControlFlow::Continue(())));
            }
            reads += 1;
            match self.poll_receive(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                Poll::Pending => break Poll::Pending,
            }
        };
        self.outbox.park(cx.waker(), matches!(self.stage, Stage::Data(_)));
        ended
    }

    /// How many bytes have passed in both directions; none if it is not for the client to act: a request is being
    /// executed, or waits for its turn.
    fn moved_at_rest(&self) -> Option<u64> {
        let (is_clients_turn, is_incomplete) = match self.stage {
            Stage::Header | Stage::Closing => (true, false),
            Stage::Data(_) => (true, true),
            Stage::Paced(_) => (false, false),
            // There is room when replies have left; without any, others have it.
            Stage::Unadmitted(_) | Stage::Refusal(..) => (self.outbox.has_replies(), false),
        };
        let is_at_rest = is_clients_turn && self.outbox.has_executed(is_incomplete);
        is_at_rest.then(|| self.received_bytes + self.outbox.all_sent_bytes())
    }

    /// Whether the client goes to another process, and stands at a request.
    fn may_part(&self) -> bool {
        self.stopping == Stopping::Parting && matches!(self.stage, Stage::Header) && !self.decoder.is_skipping()
    }

    /// Starts no more requests. One that waits, or whose data are still on their way, was never started: it gets no
    /// reply, or that the server shuts down, as those do that come from now on. Where the client goes to another
    /// process such a request goes on, and those after it are left as they are.
    fn stop(&mut self, stopping: Stopping) {
        self.stopping = match stopping {
            Stopping::Parting if !S::MAY_PART => Stopping::Closing,
            stopping => stopping,
        };
        if self.stopping == Stopping::Parting {
            return;
        }
        self.outbox.stop_waiting();
        let refuses = stopping == Stopping::Refusing;
        self.stage = match mem::replace(&mut self.stage, Stage::Closing) {
            Stage::Data(writing) => {
                let (left_bytes, echo) = (writing.missing_bytes(), writing.slot.echo());
                drop(writing.buffer);
                writing.slot.abandon();
                match u32::try_from(left_bytes) {
                    Ok(left_bytes) if refuses => {
                        self.decoder.refuse(left_bytes, echo, NbdError::Shutdown);
                        Stage::Header
                    }
                    _ => Stage::Closing,
                }
            }
            Stage::Paced(request) | Stage::Unadmitted(request) if refuses => self.refuse(&request),
            stage if refuses => stage,
            _ => Stage::Closing,
        };
    }

    /// Answers a request with the news that the server shuts down; what follows of it is skipped.
    fn refuse(&mut self, request: &Request) -> Stage<E::Buffer> {
        match request.command {
            Command::Write { span, .. } => {
                self.decoder.refuse(span.data_bytes(), request.echo, NbdError::Shutdown);
                Stage::Header
            }
            _ => Stage::Refusal(request.echo, NbdError::Shutdown),
        }
    }

    /// Submits what has arrived, as far as the budget goes. Returns whether replies may be due.
    fn advance(&mut self, cx: &mut Context<'_>) -> Result<bool, Error> {
        let mut turn = Turn::default();
        let taken = self.take_requests(&mut turn, cx);
        if turn.submitted {
            self.export.kick(); // also if the stream went wrong after these commands
        }
        taken.map(|()| turn.submitted || turn.refused)
    }

    fn take_requests(&mut self, turn: &mut Turn, cx: &mut Context<'_>) -> Result<(), Error> {
        loop {
            self.stage = match mem::replace(&mut self.stage, Stage::Closing) {
                Stage::Header => match self.next_request()? {
                    Some(stage) => stage,
                    None => {
                        self.stage = Stage::Header;
                        return Ok(());
                    }
                },
                Stage::Paced(request) => {
                    if !self.pacer.poll_begin(&request.command, cx) {
                        self.stage = Stage::Paced(request);
                        return Ok(());
                    }
                    Stage::Unadmitted(request)
                }
                Stage::Unadmitted(request) => match self.outbox.admit(&request) {
                    Some(slot) => self.start(request.command, slot, turn),
                    None => {
                        self.stage = Stage::Unadmitted(request);
                        return Ok(());
                    }
                },
                Stage::Refusal(echo, error) => {
                    if !self.outbox.reject(echo, error) {
                        self.stage = Stage::Refusal(echo, error);
                        return Ok(());
                    }
                    turn.refused = true;
                    Stage::Header
                }
                Stage::Data(mut writing) => {
                    writing.take_from(&mut self.received);
                    if writing.missing_bytes() > 0 {
                        self.stage = Stage::Data(writing);
                        return Ok(());
                    }
                    let Writing { span, fua, buffer, slot, .. } = writing;
                    self.export.submit(Command::Write { span, buffer, fua }, slot);
                    turn.submitted = true;
                    Stage::Header
                }
                Stage::Closing => return Ok(()),
            };
        }
    }

    /// What to do with the next request, if it has arrived.
    fn next_request(&mut self) -> Result<Option<Stage<E::Buffer>>, Error> {
        if self.may_part() {
            return Ok(None);
        }
        let mut unread = self.received.unread();
        let next = self.decoder.next(&mut unread);
        let consumed = self.received.unread().len() - unread.len();
        self.received.consume(consumed);
        let Some(next) = next? else { return Ok(None) };
        Ok(Some(match next {
            Received::Request(request) if self.stopping <= Stopping::Parting => Stage::Paced(request),
            Received::Request(request) => self.refuse(&request),
            Received::Rejected { echo, error } => Stage::Refusal(echo, error),
            Received::Disconnect => Stage::Closing,
        }))
    }

    /// Submits a command, or makes ready to receive its data. A request that there is no memory for is refused.
    fn start(&mut self, command: Command<()>, slot: ReplySlot<E::Buffer>, turn: &mut Turn) -> Stage<E::Buffer> {
        let command = match command {
            Command::Write { span, fua, .. } => {
                let Some(buffer) = self.buffer(span) else {
                    self.decoder.refuse(span.data_bytes(), slot.echo(), NbdError::NoMemory);
                    slot.abandon();
                    return Stage::Header;
                };
                return Stage::Data(Writing { span, fua, buffer, filled_bytes: 0, slot });
            }
            Command::Read { span, .. } => match self.buffer(span) {
                Some(buffer) => Command::Read { span, buffer },
                None => {
                    slot.done(Err(NbdError::NoMemory));
                    turn.refused = true;
                    return Stage::Header;
                }
            },
            other => other.with_buffer(|| unreachable!("only reads and writes have data")),
        };
        self.export.submit(command, slot);
        turn.submitted = true;
        Stage::Header
    }

    fn buffer(&self, span: Span) -> Option<E::Buffer> {
        let buffer = self.export.buffer(span.data_bytes())?;
        debug_assert_eq!(buffer.as_ref().len(), span.length_bytes as usize, "a buffer is as long as was asked for");
        Some(buffer)
    }

    /// Reads more, unless what was read before must wait for the budget.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.may_part() {
            return Poll::Pending;
        }
        let receiving = match &mut self.stage {
            Stage::Paced(_) | Stage::Unadmitted(_) | Stage::Refusal(..) | Stage::Closing => return Poll::Pending,
            Stage::Data(writing) if writing.missing_bytes() >= DIRECT_BYTES_MIN => {
                let received = self.stream.poll_receive(cx, &mut writing.buffer.as_mut()[writing.filled_bytes..]);
                if let Poll::Ready(Ok(bytes)) = received {
                    writing.filled_bytes += bytes;
                }
                received
            }
            Stage::Header | Stage::Data(_) => self.received.poll_fill(&mut self.stream, cx),
        };
        let filled = ready!(receiving).map_err(failed("receiving from the client"))?;
        self.received_bytes += filled as u64;
        if matches!(self.stage, Stage::Data(_)) {
            self.outbox.received(filled);
        }
        if filled == 0 {
            if !matches!(self.stage, Stage::Header) || !self.received.is_empty() || self.decoder.is_skipping() {
                return Poll::Ready(Err(Error::UnexpectedEnd));
            }
            self.stage = Stage::Closing; // the client may still read replies
        }
        Poll::Ready(Ok(()))
    }
}

impl<S, E: Export> Drop for Connection<S, E> {
    fn drop(&mut self) {
        self.outbox.close();
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Writing<B> {
    fn missing_bytes(&self) -> usize {
        self.span.length_bytes as usize - self.filled_bytes
    }

    fn take_from(&mut self, received: &mut ReceiveBuffer) {
        let taken = received.unread().len().min(self.missing_bytes());
        let target = &mut self.buffer.as_mut()[self.filled_bytes..];
        target[..taken].copy_from_slice(&received.unread()[..taken]);
        self.filled_bytes += taken;
        received.consume(taken);
    }
}

#[cfg(test)]
mod tests;
