//! The thread that runs an array's engine. Usually it serves the clients, too: the NBD server's commands go straight
//! into the engine, and the ring's completions come straight back. Otherwise [connection threads](crate::connections)
//! send it the commands.
//!
//! A connection's batch of commands ends in one turn of the engine, which takes one system call for all disk
//! operations. Operations that complete at once are answered in the same turn. The ring's eventfd signals the rest.

pub(crate) mod blocking;
pub(crate) mod deleted;
mod disowning;
pub(crate) mod grow;
pub(crate) mod hedging;
pub(crate) mod holes;
pub(crate) mod laggards;
pub(crate) mod logs;
pub(crate) mod members;
mod pieces;
mod reports;
pub(crate) mod reshape;
pub(crate) mod slots;
pub(crate) mod snapshot;
mod stop;

use std::cell::{Cell, OnceCell, Ref, RefCell};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use uraid_io::buf::{Buf, Parcel, Pool};
use uraid_io::cache::TICK;
use uraid_io::engine::{self, CacheMode, Engine, EngineError};
use uraid_io::member::Member;
use uraid_layout::{Bytes, Lba, MemberIndex, MemberSet, SECTOR_BYTES};
use uraid_nbd::{Command, Export, ExportInfo, Limits, Payload, ReplySlot, RequestMemory, Span};

use crate::calls::{Call, Caller, Callers, Report};
use crate::commands::{at_once, block_status, for_engine, nbd_error};
use crate::condition::{Condition, LastResort};
use crate::disk::LiveDisk;
use crate::events::Watcher;
use crate::export_size::ExportSize;
use crate::meter::{Meter, Request};
use crate::patience::{FORGIVEN_AFTER, Patience};
use crate::protocol::Stopping;
use crate::recorder::Recorder;
use crate::spin::Spinner;
use crate::sweeps::Pace;
use disowning::Disowning;
use reports::{Checked, Reports};
use stop::{Stop, StopClock};

/// Request memory kept for reuse, by all threads together. Requests in flight beyond it use the allocator.
pub(crate) const KEPT: Bytes = Bytes(16 << 20);

/// How the cache works.
#[derive(Clone, Copy, Debug)]
pub struct Caching {
    /// When writes are acknowledged.
    pub mode: CacheMode,
    /// The cache's memory.
    pub size: Bytes,
    /// Maximum read-ahead for one client.
    pub read_ahead: Bytes,
}

/// A reactor's settings.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long to poll for the next command after each.
    pub busy_poll: Duration,
    /// None: nothing is cached.
    pub caching: Option<Caching>,
    /// What clients may use, of all threads together.
    pub limits: Limits,
    /// Limits for members.
    pub patience: Patience,
    /// Whether the log has sums of whole parity stripes that are written, not their content.
    pub log_sums: bool,
    /// How far the array is served as a last resort.
    pub last_resort: LastResort,
}

impl Settings {
    /// The limits for the clients of one of this many threads.
    pub(crate) fn limits(&self, threads: u8) -> Limits {
        let bytes_in_flight_all_max = self.limits.bytes_in_flight_all_max / u64::from(threads);
        Limits { bytes_in_flight_all_max, ..self.limits }
    }
}

/// An array as an export.
pub(crate) struct Reactor<D> {
    engine: RefCell<Engine<D, Token>>,
    info: ExportInfo,
    /// What the array is read and written in.
    unit: Bytes,
    size: ExportSize,
    caching: Option<Caching>,
    pool: Pool,
    spinner: Spinner,
    /// A member is in the seat, but its copy has not begun yet.
    begins_replacing: Cell<bool>,
    /// Receives the array's condition, if set.
    watcher: OnceCell<Watcher>,
    reports: Reports,
    pace: Pace,
    is_released: Cell<bool>,
    /// Replaced members that are being told.
    disowning: Disowning,
    /// The counter of the memory that its clients' requests take, once it has clients.
    request_memory: OnceCell<RequestMemory>,
    meter: Rc<Meter>,
    /// The connection threads, if there are any.
    callers: Option<Callers>,
    /// `dirtied`: there is work to do as time passes. `unfinished`: there is more to write out than one turn does.
    /// `beating`: reads may be hedged.
    dirtied: Notify,
    beating: Notify,
    unfinished: Notify,
    /// Of large commands, what is to be begun next.
    rests: RefCell<Vec<Rest>>,
    /// The ring is broken, and nothing more will be answered.
    failure: Cell<Option<EngineError>>,
    failed: Notify,
    stop: Stop,
    /// A turn of the engine has ended while it is being closed.
    turned: Notify,
}

/// Those whom replies are for: they get them straight from the engine. None of them acts before the turn is over.
struct Recipients<'a, D>(&'a Reactor<D>);

/// The recipient of a reply.
pub(crate) enum Token {
    Read(Request),
    Other(Request),
    /// A client of a connection thread, with the length of its write.
    Caller(Caller, Bytes),
    /// Whoever waits for all of a large command, of which this is a piece.
    Piece(Box<Rest>),
    /// An administrator of the members.
    Administrator(oneshot::Sender<Result<(), EngineError>>),
    /// The end of [`Reactor::close`].
    Close,
}

/// What is left of a large command while a piece of it is under way.
pub(crate) struct Rest {
    token: Token,
    command: engine::Command,
}

impl<D: LiveDisk> Reactor<D> {
    /// Serves the array of `engine`, to clients of this thread or to those of `callers`.
    pub(crate) fn new(
        mut engine: Engine<D, Token>,
        info: ExportInfo,
        size: ExportSize,
        settings: Settings,
        callers: Option<Callers>,
        recorder: Arc<Recorder>,
    ) -> Self {
        let cached = settings.caching.map_or(Bytes(0), |caching| caching.size);
        let pool = Pool::new(Bytes(cached.0.saturating_add(KEPT.0)));
        if let Some(Caching { mode, read_ahead, .. }) = settings.caching {
            engine.install_cache(mode, &pool, cached);
            engine.install_read_ahead(read_ahead);
        }
        settings.patience.apply(&mut engine);
        engine.log_sums(settings.log_sums);
        let unit = engine.superblock().unit().bytes();
        Self {
            engine: RefCell::new(engine),
            info,
            unit,
            size,
            caching: settings.caching,
            pool,
            spinner: Spinner::new(settings.busy_poll),
            begins_replacing: Cell::new(false),
            watcher: OnceCell::new(),
            reports: Reports::new(settings.last_resort),
            pace: Pace::default(),
            is_released: Cell::new(false),
            disowning: Disowning::default(),
            request_memory: OnceCell::new(),
            meter: Meter::new(recorder),
            callers,
            dirtied: Notify::new(),
            beating: Notify::new(),
            unfinished: Notify::new(),
            rests: RefCell::default(),
            failure: Cell::new(None),
            failed: Notify::new(),
            stop: Stop::default(),
            turned: Notify::new(),
        }
    }

    /// Sets the watcher of the array's condition.
    ///
    /// # Panics
    /// If there is a watcher already.
    pub(crate) fn watch(&self, watcher: impl FnOnce(Condition) -> Watcher) {
        let watcher = watcher(self.condition());
        assert!(self.watcher.set(watcher).is_ok(), "one looks out");
    }

    /// The recorder of the clients' requests.
    pub(crate) fn recorder(&self) -> &Recorder {
        self.meter.recorder()
    }

    /// The watcher of the array's condition.
    pub(crate) fn watcher(&self) -> Option<&Watcher> {
        self.watcher.get()
    }

    /// The engine, to look at.
    pub(crate) fn engine(&self) -> Ref<'_, Engine<D, Token>> {
        self.engine.borrow()
    }

    /// Changes something in the engine, and lets it act on that.
    pub(crate) fn adjust<R>(&self, change: impl FnOnce(&mut Engine<D, Token>) -> R) -> R {
        let result = change(&mut self.engine.borrow_mut());
        self.turn();
        result
    }

    /// Records which members' disks report that they are failing, and checks the array's condition.
    pub(crate) fn note_failing_disks(&self, members: Vec<(MemberIndex, PathBuf)>) {
        self.reports.set_failing_disks(members);
        self.note_condition();
    }

    /// Records which members are kept though the connection to them is broken, and checks the array's condition.
    pub(crate) fn note_cut_off(&self, slots: MemberSet) {
        let members = self.engine.borrow().disk().members().to_vec();
        let member = |slot: MemberIndex| Some(Checked::new(slot, members.get(slot.index())?.as_ref()?));
        self.reports.set_cut_off(slots.iter().filter_map(member).collect());
        self.note_condition();
    }

    /// The present members and their paths.
    pub(crate) fn member_paths(&self) -> Vec<(MemberIndex, PathBuf)> {
        slots::present_paths(&self.engine.borrow())
    }

    /// The slots without a member.
    pub(crate) fn vacancies(&self) -> MemberSet {
        self.engine.borrow().missing()
    }

    /// Connects the counter of the memory that the clients' requests take. From then on, snapshots include it.
    pub(crate) fn count_request_memory(&self, memory: RequestMemory) {
        assert!(self.request_memory.set(memory).is_ok(), "a reactor has one server");
    }

    /// Connection threads have ended, and these are their last reports, which snapshots include.
    pub(crate) fn keep_reports(&self, reports: Vec<Report>) {
        self.callers.as_ref().expect("there are connection threads").end(reports);
    }

    /// Waits until all members that were replaced have been told, or can't be.
    pub(crate) async fn finish_disowning(&self) {
        self.disowning.finish().await;
    }

    /// Runs the reactor in tasks of its thread's [`tokio::task::LocalSet`]. The returned task ends when the ring
    /// breaks.
    pub(crate) fn spawn(self: &Rc<Self>) -> JoinHandle<Result<()>> {
        let (aging, destaging, spinning) = (Rc::clone(self), Rc::clone(self), Rc::clone(self));
        tokio::task::spawn_local(async move { aging.age().await });
        let forgiving = Rc::clone(self);
        tokio::task::spawn_local(async move { forgiving.forgive().await });
        tokio::task::spawn_local(async move { destaging.go_on().await });
        if self.spinner.spins() {
            tokio::task::spawn_local(async move { spinning.spinner.run().await });
        }
        if self.callers.is_some() {
            let calls = Rc::clone(self);
            tokio::task::spawn_local(async move { calls.receive_calls().await });
        }
        let ring = Rc::clone(self);
        tokio::task::spawn_local(async move { ring.run().await })
    }

    /// Handles completions as the ring signals them, until the ring breaks.
    async fn run(&self) -> Result<()> {
        let event: OwnedFd = self.engine.borrow().disk().as_fd().try_clone_to_owned()?;
        #[expect(deprecated, reason = "an owned descriptor meets the conditions for which its replacement is unsafe")]
        let event = AsyncFd::with_interest(event, Interest::READABLE).context("can't wait for the ring")?;
        loop {
            tokio::select! {
                ready = event.readable() => ready.context("can't wait for the ring")?.clear_ready(),
                () = self.failed.notified() => {}
            }
            self.turn();
            if let Some(error) = self.failure.take() {
                return Err(error).context("the array can't be served any more");
            }
        }
    }

    /// Ticks the engine while its work depends on time.
    async fn age(&self) {
        loop {
            self.dirtied.notified().await;
            while self.engine.borrow().wants_ticks() {
                tokio::time::sleep(TICK).await;
                self.engine.borrow_mut().tick();
                self.pace.note(&self.engine.borrow(), Instant::now());
                self.turn();
            }
        }
    }

    /// Periodically forgives members their errors.
    async fn forgive(&self) {
        loop {
            tokio::time::sleep(FORGIVEN_AFTER).await;
            self.engine.borrow_mut().forgive_errors();
        }
    }

    /// Continues unfinished work of a turn, in between the clients' commands.
    async fn go_on(&self) {
        loop {
            self.unfinished.notified().await;
            tokio::task::yield_now().await;
            self.turn();
        }
    }

    /// Flushes and marks the members clean, when clients are gone. Members that do not answer are given up on the way.
    /// Administrators can ask meanwhile; nothing is done for them any more.
    pub(crate) async fn close(&self) -> Result<()> {
        self.stop.close();
        self.adjust(Engine::wind_down);
        // Operations that clients left behind still run to completion.
        while self.under_way() > 0 {
            self.turned.notified().await;
        }
        self.ask(engine::Command::Close).await
    }

    /// The same at once, for an engine that is to go on as another one; `replies` gets what clients are told meanwhile.
    /// Blocks. Nothing else may run meanwhile. A hanging member that the array can't do without ends the attempt.
    fn wind_up(&self, engine: &mut Engine<D, Token>, replies: &mut Vec<engine::Reply<Token>>) -> Result<()> {
        engine.wind_down();
        let mut clock = StopClock::new(engine);
        // Operations that clients left behind still run to completion.
        while engine.in_flight() > 0 {
            engine.turn(replies)?;
            if engine.in_flight() > 0 {
                clock.wait(engine)?;
            }
        }
        engine.submit(Token::Close, engine::Command::Close);
        loop {
            engine.turn(replies)?;
            if let Some(index) = replies.iter().position(|reply| matches!(reply.token, Token::Close)) {
                replies.remove(index).result?;
                return Ok(());
            }
            clock.wait(engine)?;
        }
    }

    /// The array is to be stopped.
    pub(crate) fn begin_stop(&self) {
        self.stop.begin(&self.engine.borrow());
    }

    /// Whether it is being stopped.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.has_begun()
    }

    /// Has the array be stopped whatever is lost. One that is being stopped already waits for nothing any more that
    /// does not move.
    pub(crate) fn force_stop(&self) {
        self.stop.force();
    }

    /// How far the stop is, if there is one.
    pub(crate) fn stopping(&self) -> Option<Stopping> {
        self.stop.stopping(&self.engine.borrow())
    }

    /// Completes when a stop has begun. Cancel safe.
    pub(crate) async fn stop_begun(&self) {
        self.stop.begun().await;
    }

    /// Completes when a stop has waited long enough, and says for what. Says in the log what it waits for before that.
    pub(crate) async fn stop_given_up(&self) -> anyhow::Error {
        self.stop.begun().await;
        loop {
            tokio::time::sleep(TICK).await;
            if let Some(error) = self.stop.look(&self.engine.borrow()) {
                return error;
            }
        }
    }

    /// Says in the log what a stop waits for, and what would end that.
    pub(crate) fn say_what_stops(&self) {
        self.stop.say(&self.engine.borrow());
    }

    /// How many commands and background jobs are in flight.
    pub(crate) fn under_way(&self) -> usize {
        self.engine.borrow().in_flight()
    }

    /// The members' files for another process, with their locks, which are not free when they are released here.
    pub(crate) fn leave_members(&self) -> Vec<OwnedFd> {
        let engine = self.engine.borrow();
        let leave = |member: &Arc<Member>| {
            let path = member.path().display();
            // The other one has to open it itself, and may find somebody else there.
            let left = member.leave();
            left.inspect_err(|error| tracing::warn!(%path, %error, "a member's file can't be handed over"))
        };
        engine.disk().members().iter().flatten().flat_map(leave).flatten().collect()
    }

    /// Releases the members, so that others may use them; `is_closed` says whether the array was stopped cleanly. It is
    /// not used afterwards: that it has no members then is nobody's failure.
    pub(crate) fn release(&self, is_closed: bool) {
        self.is_released.set(true);
        if is_closed {
            slots::note_stopped(&self.engine.borrow());
        }
        self.engine.borrow_mut().disk_mut().release();
    }

    fn turn(&self) {
        if self.is_released.get() {
            return;
        }
        let turned = self.engine.borrow_mut().turn(&mut Recipients(self));
        self.note_condition();
        let goes_on = self.begin_rests();
        self.callers.iter().for_each(Callers::deliver);
        if self.stop.is_closing() {
            self.turned.notify_one();
        }
        let engine = self.engine.borrow();
        if goes_on || engine.wants_turn() {
            self.unfinished.notify_one();
        }
        if engine.wants_ticks() {
            self.dirtied.notify_one();
        }
        if engine.wants_beats() {
            self.beating.notify_one();
        }
        if let Err(error) = turned {
            self.failure.set(Some(error));
            self.failed.notify_one();
        }
    }

    /// Hands a command to the engine, or the first piece of it.
    fn begin(&self, token: Token, mut command: engine::Command) {
        let mut engine = self.engine.borrow_mut();
        let token = match pieces::cut(&mut command, || engine.geometry().stripe_sectors()) {
            Some(command) => Token::Piece(Box::new(Rest { token, command })),
            None => token,
        };
        engine.submit(token, command);
    }

    /// Begins the next pieces of commands whose last ones have been done; whether there are any.
    fn begin_rests(&self) -> bool {
        let rests = self.rests.take();
        let is_any = !rests.is_empty();
        rests.into_iter().for_each(|Rest { token, command }| self.begin(token, command));
        is_any
    }

    fn answer(&self, reply: engine::Reply<Token>) {
        let engine::Reply { token, result } = reply;
        let nbd = |error: EngineError| nbd_error(&error);
        match token {
            Token::Read(slot) => {
                slot.done(result.map_err(nbd).map(|buf| buf.map_or(Payload::None, Payload::Data)));
            }
            Token::Other(slot) => slot.done(result.map_err(nbd).map(|_| Payload::None)),
            Token::Piece(rest) => match result {
                Ok(_) => self.rests.borrow_mut().push(*rest),
                Err(error) => self.answer(engine::Reply { token: rest.token, result: Err(error) }),
            },
            // The requester may be gone.
            Token::Administrator(reply) => drop(reply.send(result.map(drop))),
            Token::Caller(caller, len) => {
                let spare = || (len > Bytes(0)).then(|| self.pool.spare(len)).flatten();
                let memory = |buf: Option<Buf>| buf.map(Buf::into_parcel).or_else(spare);
                let (result, memory) = match result {
                    Ok(buf) => (Ok(()), memory(buf)),
                    Err(error) => (Err(nbd(error)), None),
                };
                self.callers.as_ref().expect("a caller's request comes from one").answer(caller, result, memory);
            }
            // Nobody waits for it any more: closing was given up.
            Token::Close => {}
        }
    }

    /// The array's condition.
    pub(crate) fn condition(&self) -> Condition {
        self.reports.condition(&self.engine.borrow())
    }

    /// Passes the array's condition to the watcher. Then releases a member that was replaced, or whose copy was
    /// cancelled.
    fn note_condition(&self) {
        let condition = self.condition();
        if let Some(watcher) = self.watcher.get() {
            watcher.look(condition, || slots::members(&self.engine.borrow()));
        }
        let mut engine = self.engine.borrow_mut();
        let Some(seat) = engine.seat().filter(|_| !self.begins_replacing.get() && !engine.needs_seat()) else {
            return;
        };
        let is_taken = engine.disk().members().get(seat.index()).is_some_and(Option::is_some);
        // While operations on it are in flight, the next turn tries again.
        if is_taken && let Ok(Some(member)) = engine.disk_mut().put(seat, None) {
            tracing::info!(path = %member.path().display(), "it is not needed any more, and can be taken away");
            self.disowning.begin(member, engine.superblock().clone());
        }
    }

    /// Passes the current members to the watcher.
    pub(crate) fn tell_members(&self) {
        self.watcher.get().into_iter().for_each(|watcher| watcher.set_members(slots::members(&self.engine.borrow())));
    }

    /// Has the engine do something for an administrator. Completes when that is done.
    ///
    /// # Errors
    /// If it fails, or the array is being closed.
    pub(crate) async fn administer(&self, command: engine::Command) -> Result<()> {
        ensure!(!self.stop.is_closing(), "the server is stopping");
        self.ask(command).await
    }

    async fn ask(&self, command: engine::Command) -> Result<()> {
        let (sender, reply) = oneshot::channel();
        self.engine.borrow_mut().submit(Token::Administrator(sender), command);
        self.turn();
        Ok(reply.await.context("the server is stopping")??)
    }

    /// Handles connection threads' requests as they arrive. Runs forever.
    async fn receive_calls(&self) {
        let callers = self.callers.as_ref().expect("there are connection threads");
        let mut batch = Vec::new();
        loop {
            callers.calls.take(&mut batch).await;
            for Call { caller, command, memory } in batch.drain(..) {
                if let Command::BlockStatus { span, one } = command {
                    callers.answer_status(caller, block_status(&self.engine.borrow(), span, one));
                    continue;
                }
                let len = memory.as_ref().filter(|_| matches!(command, Command::Write { .. })).map_or(0, Parcel::len);
                let mut buf = memory.map(|memory| self.adopt(memory));
                let command = command.with_buffer(|| buf.take().expect("reads and writes come with memory"));
                match for_engine(command, self.unit, |span, may_punch| self.is_fast(span, may_punch)) {
                    Ok(command) => {
                        self.begin(Token::Caller(caller, Bytes(len as u64)), command);
                    }
                    Err(error) => callers.answer(caller, Err(error), None),
                }
            }
            self.kick();
        }
    }

    /// The memory of a connection thread's request.
    fn adopt(&self, memory: Parcel) -> Buf {
        let len = Bytes(memory.len() as u64);
        if !self.pool.has_room(len) {
            self.engine.borrow_mut().reclaim(len);
        }
        self.pool.adopt(memory)
    }

    /// Memory for a request, if there is any.
    fn memory(&self, len: Bytes) -> Option<Buf> {
        let again = || {
            self.engine.borrow_mut().reclaim(len);
            self.pool.try_alloc(len)
        };
        self.pool.try_alloc(len).or_else(again).or_else(|| Buf::try_zeroed(len))
    }

    /// Whether zeros are possible without writing most of them.
    fn is_fast(&self, span: Span, may_punch: bool) -> bool {
        let sectors = Lba(span.offset_bytes.div_ceil(SECTOR_BYTES))..Lba(span.end_bytes() / SECTOR_BYTES);
        sectors.start < sectors.end && self.engine.borrow().zeros().is_fast(&sectors, may_punch)
    }
}

impl<D: LiveDisk> Extend<engine::Reply<Token>> for Recipients<'_, D> {
    fn extend<R: IntoIterator<Item = engine::Reply<Token>>>(&mut self, replies: R) {
        // The replies of a turn end their requests at the same time, which is later than when these began.
        self.0.meter.pass();
        replies.into_iter().for_each(|reply| self.0.answer(reply));
        self.0.meter.pass();
    }
}

impl<D: LiveDisk> Export for Reactor<D> {
    type Buffer = Buf;

    fn info(&self) -> ExportInfo {
        self.size.of(&self.info)
    }

    fn buffer(&self, length_bytes: u32) -> Option<Buf> {
        self.memory(Bytes(length_bytes.into()))
    }

    fn submit(&self, command: Command<Buf>, reply: ReplySlot<Buf>) {
        let request = self.meter.begin(&command, reply);
        if let Some(payload) = at_once(&command) {
            return request.dismiss(Ok(payload));
        }
        if let Command::BlockStatus { span, one } = command {
            let extents = block_status(&self.engine.borrow(), span, one);
            return request.dismiss(extents.map(Payload::Extents));
        }
        let command = match for_engine(command, self.unit, |span, may_punch| self.is_fast(span, may_punch)) {
            Ok(command) => command,
            Err(error) => return request.dismiss(Err(error)),
        };
        let token = if request.is_read() { Token::Read } else { Token::Other };
        self.begin(token(request), command);
    }

    fn kick(&self) {
        self.spinner.touch();
        self.turn();
    }
}

#[cfg(test)]
mod tests;
