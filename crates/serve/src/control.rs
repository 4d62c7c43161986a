//! The control socket of a server: administrators' requests about a running array ([protocol](crate::protocol)).
//!
//! It runs on the reactor's thread, and delays them by no more than one request's
//! turn. Lines, connections and waits are bounded. No input from a peer ends the server.

mod changes;
pub(crate) mod returns;
pub(crate) mod scrubs;
pub(crate) mod socket;
pub(crate) mod spares;
mod status;

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tokio::task::{spawn_blocking, spawn_local};
use uraid_io::engine::CacheMode;
use uraid_layout::{Bytes, MemberSet};
use uraid_nbd::{Ending, Tls};
use uuid::Uuid;

use crate::clients::Clients;
use crate::condition::Condition;
use crate::description::Description;
use crate::disk::LiveDisk;
use crate::health;
use crate::lines;
use crate::logging;
use crate::metrics;
use crate::orders::Inbox;
use crate::patience::{Patience, deadline};
use crate::protocol::{Answer, Limits, Lost, Metrics, Recording, Request, Stopped};
use crate::reactor::grow;
use crate::reactor::members::Members;
use crate::reactor::snapshot::Snapshot;
use crate::reactor::{Reactor, deleted};
use crate::systemd::Notifier;
use crate::takeover::{self, Left};
use crate::text;
use changes::Changes;
use returns::Returns;
use scrubs::Scrubs;
use spares::Spares;

/// How long the final replies may take, to the peers that wait for the array's end; and where the last one hands over
/// what is left.
const FAREWELL: Duration = Duration::from_secs(1);
const HANDING_OVER: Duration = Duration::from_secs(30);

/// State that the control socket acts on.
pub(crate) struct Control<D> {
    description: Rc<Description>,
    reactor: Rc<Reactor<D>>,
    clients: Clients,
    started: Instant,
    stop: Notify,
    /// How the server ends if an administrator asks for that.
    ending: Cell<Ending>,
    /// Why no other process may go on with clients and sockets, if that is so.
    stays: Option<&'static str>,
    tls: Option<Tls>,
    /// What is left for another process.
    left: Cell<Left>,
    /// Whether it has that, and which process it is where the system says so.
    successor: Cell<Option<Successor>>,
    changes: Changes<D>,
    scrubs: Rc<Scrubs<D>>,
    limits: Cell<Limits>,
    /// The result of closing the array.
    ended: watch::Sender<Option<Stop>>,
}

/// How an array was stopped: the members that failed meanwhile, or why it could not be closed.
type Stop = Result<Vec<Lost>, String>;

/// An array was not stopped, and goes on.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct StopRefused(String);

/// The process that goes on with clients and sockets, by its number where the system says so.
type Successor = Option<i32>;

/// The parts of a server that administrators reach.
pub(crate) struct Parts<D> {
    pub(crate) description: Rc<Description>,
    pub(crate) reactor: Rc<Reactor<D>>,
    pub(crate) clients: Clients,
    pub(crate) members: Rc<Members<D>>,
    pub(crate) spares: Rc<Spares<D>>,
    pub(crate) returns: Rc<Returns<D>>,
    pub(crate) scrubs: Rc<Scrubs<D>>,
}

impl<D: LiveDisk> Control<D> {
    /// Controls an array of these parts, of which nothing may go to another process if a reason is given. Clients use
    /// that `tls`.
    pub(crate) fn new(parts: &Parts<D>, stays: Option<&'static str>, tls: Option<Tls>) -> Self {
        let Parts { description, reactor, clients, members, spares, returns, scrubs } = parts;
        let (ended, _) = watch::channel(None);
        Self {
            description: Rc::clone(description),
            reactor: Rc::clone(reactor),
            clients: clients.clone(),
            started: Instant::now(),
            stop: Notify::new(),
            ending: Cell::new(Ending::Close),
            stays,
            tls,
            left: Cell::default(),
            successor: Cell::default(),
            changes: Changes {
                description: Rc::clone(description),
                reactor: Rc::clone(reactor),
                members: Rc::clone(members),
                spares: Rc::clone(spares),
                returns: Rc::clone(returns),
                begun: Notify::new(),
            },
            scrubs: Rc::clone(scrubs),
            limits: Cell::default(),
            ended,
        }
    }

    /// Limits the rates of background work.
    pub(crate) fn limit_background(&self, rebuilds: Option<Bytes>, scrubs: Option<Bytes>, reshapes: Option<Bytes>) {
        self.limit_rebuilds(rebuilds);
        self.limit_scrubs(scrubs);
        self.limit_reshapes(reshapes);
    }

    /// Limits the rate of rebuilds and copies to each member from now on.
    fn limit_rebuilds(&self, limit: Option<Bytes>) {
        let rebuild_bytes_per_second = limit.map(|limit| limit.0);
        self.limits.set(Limits { rebuild_bytes_per_second, ..self.limits.get() });
        self.reactor.adjust(|engine| {
            engine.set_rebuild_limit(limit);
            engine.set_initialise_limit(limit);
        });
    }

    /// Limits the rate at which scrubs read each member from now on.
    fn limit_scrubs(&self, limit: Option<Bytes>) {
        let scrub_bytes_per_second = limit.map(|limit| limit.0);
        self.limits.set(Limits { scrub_bytes_per_second, ..self.limits.get() });
        self.reactor.adjust(|engine| engine.set_scrub_limit(limit));
    }

    /// Limits the rate at which a reshape moves content from now on.
    fn limit_reshapes(&self, limit: Option<Bytes>) {
        let reshape_bytes_per_second = limit.map(|limit| limit.0);
        self.limits.set(Limits { reshape_bytes_per_second, ..self.limits.get() });
        self.reactor.adjust(|engine| engine.reshape().into_iter().for_each(|way| way.limit_rate(limit)));
    }

    /// Limits rates as before, of an engine that began anew.
    fn limit_again(&self) {
        let Limits { rebuild_bytes_per_second, scrub_bytes_per_second, reshape_bytes_per_second, .. } =
            self.limits.get();
        let [rebuilds, scrubs, reshapes] =
            [rebuild_bytes_per_second, scrub_bytes_per_second, reshape_bytes_per_second].map(|limit| limit.map(Bytes));
        self.limit_background(rebuilds, scrubs, reshapes);
    }

    /// Ends each reshape that is on record, when it is time, and has the array use all of its members' room.
    pub(crate) async fn look_after_reshapes(&self) {
        loop {
            match self.changes.finish_reshape().await {
                Ok(false) => {
                    self.changes.begun.notified().await;
                    continue;
                }
                Ok(true) => {}
                Err(error) => return tracing::error!("{error:#}"),
            }
            self.limit_again();
            match self.changes.grow(None).await {
                Ok(_) => self.limit_again(),
                Err(error) => tracing::info!("the array is as large as it was: {error:#}"),
            }
        }
    }

    /// Waits until an administrator stops the array. Returns how the server is to end.
    pub(crate) async fn stopped(&self) -> Ending {
        self.stop.notified().await;
        self.ending.get()
    }

    /// Whether another process is to go on with clients and sockets.
    pub(crate) fn is_handing_over(&self) -> bool {
        self.ending.get() == Ending::HandOver
    }

    /// Tells the waiting peers how the array was stopped, and sends what is `left` to who waits for it, of whom the
    /// service manager hears. `lost` are the members that failed meanwhile.
    ///
    /// # Errors
    /// If whoever asked for it did not take it.
    pub(crate) async fn end(
        &self,
        result: &Result<()>,
        lost: MemberSet,
        left: Left,
        notifier: &Notifier,
    ) -> Result<()> {
        let path = |slot| self.description.path(slot).map(|path| path.display().to_string());
        let lost = || lost.iter().map(|slot| Lost { slot: slot.0, path: path(slot) }).collect();
        let said = result.as_ref().map(|()| lost()).map_err(text::chain);
        let is_handing_over = said.is_ok() && self.is_handing_over();
        self.left.set(left);
        self.ended.send_replace(Some(said));
        // A peer that does not read its reply must not delay the server.
        let time_max = if is_handing_over { HANDING_OVER } else { FAREWELL };
        let _ = tokio::time::timeout(time_max, self.ended.closed()).await;
        let successor = self.successor.get();
        ensure!(
            successor.is_some() || !is_handing_over,
            "whoever asked to take over has gone, or does not take what it asked for: clients are disconnected, and \
             the array is not served any more"
        );
        successor.flatten().into_iter().for_each(|process| notifier.succeeded_by(process));
        Ok(())
    }

    /// Executes requests from within the process, each in a task of its own. Runs as long as anybody may send any.
    pub(crate) async fn take_orders(self: Rc<Self>, mut inbox: Inbox) {
        while let Some((request, answer)) = inbox.next().await {
            let control = Rc::clone(&self);
            spawn_local(async move {
                // Whoever asked may not wait for the answer.
                let _ = answer.send(Box::pin(control.answer(request)).await);
            });
        }
    }

    /// Executes a request.
    async fn answer(&self, request: Request) -> Result<Answer> {
        if let Some(stopping) = self.reactor.stopping().filter(|_| !request.is_for_the_stopping()) {
            bail!("the server is {}", health::stopping(&stopping));
        }
        match request {
            Request::Status {} => {
                let snapshot = Snapshot::take(&self.reactor).await?;
                let (limits, uptime) = (self.limits.get(), self.started.elapsed());
                let status = status::status(&self.description, snapshot, limits, &self.clients, uptime);
                Ok(Answer::Status(Box::new(status)))
            }
            Request::Metrics {} => {
                let text = metrics::page(&Snapshot::take(&self.reactor).await?, &self.description, &self.clients);
                Ok(Answer::Metrics(Metrics { text }))
            }
            Request::Stop { force } => {
                if force {
                    self.reactor.force_stop();
                } else if !self.reactor.is_stopping() {
                    self.check_stop().await.map_err(|error| StopRefused(text::chain(&error)))?;
                }
                let mut ended = self.ended.subscribe();
                let lost = self.stop(Ending::Close, &mut ended).await?;
                Ok(Answer::Stopped(Stopped { lost }))
            }
            Request::HandOver { .. } => bail!("clients and sockets can be handed over on the control socket only"),
            Request::Fail { member } => self.changes.fail(&member).await.map(|()| Answer::Done {}),
            Request::Remove { member } => self.changes.remove(&member).await.map(|()| Answer::Done {}),
            Request::Add { path, force, log_device: true, size_bytes } => {
                self.changes.add_log(path, force, size_bytes).await.map(Answer::LogAdded)
            }
            Request::Add { path, force, log_device: false, size_bytes } => {
                self.changes.add(path, force, size_bytes).await.map(Answer::Added)
            }
            Request::Replace { member, path, force, size_bytes } => {
                self.changes.replace(&member, path, force, size_bytes).await
            }
            Request::Grow { member_bytes } => {
                let grown = self.changes.grow(member_bytes.map(Bytes)).await.map(Answer::Grown)?;
                self.limit_again();
                Ok(grown)
            }
            Request::Reshape { back } => self.changes.turn_reshape(back).await.map(|()| Answer::Done {}),
            Request::ReshapeBegin(wanted) => {
                let begun = self.changes.begin_reshape(wanted).await;
                self.limit_again();
                begun.map(|()| Answer::Done {})
            }
            Request::ReshapeLimit { .. }
            | Request::RebuildLimit { .. }
            | Request::ScrubLimit { .. }
            | Request::ClientLimit { .. }
            | Request::ClientIopsLimit { .. } => self.limit(&request).map(|()| Answer::Done {}),
            Request::ScrubStart { mode } => self.scrubs.start(mode).await.map(Answer::Scrub),
            Request::ScrubStop {} => self.scrubs.stop().await.map(Answer::Scrub),
            Request::RecordStart {} => Ok(Answer::Recording(Recording { recording: self.reactor.recorder().start() })),
            Request::RecordTake { recording, end } => {
                self.reactor.recorder().take(recording, end).map(Answer::Recorded)
            }
            Request::ScrubStatus {} => self.scrubs.report().await.map(Answer::ScrubReport),
            Request::ReloadCertificates {} => {
                let tls = self.tls.clone().context("the server does without TLS")?;
                spawn_blocking(move || tls.reload()).await?.context("the certificates stay as they were")?;
                tracing::info!("the certificates have been read anew");
                Ok(Answer::Done {})
            }
            Request::Set { key, value } => {
                self.set(&key, &value)?;
                // A reactor that answers this has applied the setting.
                Snapshot::take(&self.reactor).await?;
                Ok(Answer::Set { key, value })
            }
        }
    }

    /// Stops the array. Returns the members that failed meanwhile. Its end waits as long as `ended` exists.
    async fn stop(&self, ending: Ending, ended: &mut watch::Receiver<Option<Stop>>) -> Result<Vec<Lost>> {
        if !self.reactor.is_stopping() {
            self.ending.set(ending);
            self.stop.notify_one();
        }
        let said = ended.wait_for(Option::is_some).await.map_err(|_| anyhow!("the server has ended"))?.clone();
        said.expect("that is what was waited for").map_err(anyhow::Error::msg)
    }

    /// Stops the array, if it is this one, and hands its clients and sockets over to the peer. Returns why not, if the
    /// peer is to be told.
    async fn hand_over(&self, stream: &UnixStream, array: Uuid) -> Option<anyhow::Error> {
        let error = match self.check_hand_over(array).await {
            // Whoever has left meanwhile does not go on with anything.
            Ok(()) if lines::has_left(stream) => return None,
            Ok(()) => {
                let mut ended = self.ended.subscribe();
                match self.stop(Ending::HandOver, &mut ended).await {
                    Ok(lost) => {
                        self.send(stream, lost).await;
                        drop(ended);
                        return None;
                    }
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        Some(error)
    }

    /// Refuses to hand over what another server can't go on with.
    async fn check_hand_over(&self, array: Uuid) -> Result<()> {
        if let Some(reason) = self.stays {
            bail!("{reason}");
        }
        ensure!(!self.reactor.is_stopping(), "it is being stopped already");
        ensure!(array == self.description.uuid, "the running server serves another array, {}", self.description.name);
        self.check_stop().await?;
        ensure!(self.ending.get() == Ending::Close, "another server is taking over already");
        Ok(())
    }

    /// Sends a peer what is left of the server.
    async fn send(&self, stream: &UnixStream, lost: Vec<Lost>) {
        match takeover::send(stream, lost, self.left.take()).await {
            Ok(()) => {
                let process = stream.peer_cred().ok().and_then(|peer| peer.pid());
                self.successor.set(Some(process));
                tracing::info!(process, "clients and sockets go on with another server");
            }
            Err(error) => tracing::error!(%error, "the server that was to take over did not"),
        }
    }

    /// Executes a request for a limit.
    fn limit(&self, request: &Request) -> Result<()> {
        match *request {
            Request::ReshapeLimit { bytes_per_second } => self.limit_reshapes(limit(bytes_per_second)?),
            Request::RebuildLimit { bytes_per_second } => self.limit_rebuilds(limit(bytes_per_second)?),
            Request::ScrubLimit { bytes_per_second } => self.limit_scrubs(limit(bytes_per_second)?),
            Request::ClientLimit { bytes_per_second } => {
                self.clients.limit_bytes(limit(bytes_per_second)?.map(|limit| limit.0));
            }
            Request::ClientIopsLimit { operations_per_second } => {
                let is_some = operations_per_second != Some(0);
                ensure!(is_some, "a limit of no requests a second would stop clients for ever; null is no limit");
                self.clients.limit_operations(operations_per_second);
            }
            _ => unreachable!("it is about no limit"),
        }
        Ok(())
    }

    /// Refuses a stop that would lose data.
    async fn check_stop(&self) -> Result<()> {
        let deleted = deleted::find(&self.reactor).await;
        let snapshot = Snapshot::take(&self.reactor).await.context("stop it with --force all the same")?;
        // What the journal has is not lost.
        let is_kept = snapshot.condition.is_kept_by_a_flush()
            && grow::flush(&self.reactor).await.is_ok_and(|late| late.is_empty());
        let unwritten_bytes = snapshot.cache.filter(|_| !is_kept).map_or(0, |fill| fill.used.0);
        let condition = deleted.map_or(snapshot.condition, |deleted| Condition { deleted, ..snapshot.condition });
        let shapes = self.description.shapes();
        // What moves waits for them until they are given up, also where the array can do without them.
        let awaited = condition.late();
        match condition.loss(&shapes, unwritten_bytes) {
            None if shapes.len() > 1 && !awaited.is_empty() && !condition.is_frozen => bail!(
                "content is moving to another shape, and waits for {}: `uraid status` says why. Mend that first; to \
                 stop it all the same, use --force, which may take a minute and loses nothing: the next start goes on",
                self.description.named(awaited)
            ),
            None => Ok(()),
            Some(loss) => bail!("{loss}; to stop it all the same and lose that, use --force"),
        }
    }

    fn set(&self, key: &str, value: &str) -> Result<()> {
        match key {
            "cache" => {
                let mode = match value {
                    "writeback" => CacheMode::WriteBack,
                    "writethrough" => CacheMode::WriteThrough,
                    _ => bail!("a cache is writeback or writethrough, not '{value}'"),
                };
                if self.description.is_read_only {
                    bail!("the array is open for reading only");
                }
                if !self.reactor.adjust(|engine| engine.set_cache_mode(mode)) {
                    bail!("there is no cache: serve without --cache none");
                }
                tracing::info!(cache = value, "set");
                Ok(())
            }
            "log" => logging::set(value),
            "rejoin-after" => {
                let settling = deadline(value).map_err(|error| anyhow!("rejoin-after: {error}"))?;
                self.changes.returns.set_settling(settling.0);
                tracing::info!(key, value, "set");
                Ok(())
            }
            _ => {
                let patience = Patience::of(&*self.reactor.engine());
                let Some(patience) = patience.with(key, value) else {
                    bail!(
                        "there is no setting '{key}'; the settings are cache (writeback, writethrough), log (error, \
                         warn, info, debug, trace, off), read-deadline, write-deadline and rejoin-after (2s, 500ms, \
                         off), hedge (auto, off) and max-errors (20, off)"
                    );
                };
                let patience = patience?;
                self.reactor.adjust(|engine| patience.apply(engine));
                tracing::info!(key, value, "set");
                Ok(())
            }
        }
    }
}

/// A rate limit; `None` means no limit.
fn limit(bytes_per_second: Option<u64>) -> Result<Option<Bytes>> {
    if bytes_per_second == Some(0) {
        bail!("a limit of 0 bytes a second would stop it for ever; null is no limit");
    }
    Ok(bytes_per_second.map(Bytes))
}
