//! The control socket of a server: administrators' requests about a running array ([protocol]).
//!
//! It runs on the reactor's thread, and delays them by no more than one request's
//! turn. Lines, connections and waits are bounded. No input from a peer ends the server.

pub(crate) mod client;
mod members;
pub(crate) mod protocol;
mod scrub;
mod serve;
mod spares;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use tokio::sync::{Mutex, Notify, watch};
use uraid_io::disk::OpName;
use uraid_io::engine::CacheMode;
use uraid_layout::{Bytes, MemberSet};
use uraid_nbd::Connections;

use crate::about::About;
use crate::args::Misuse;
use crate::health::{Condition, slots};
use crate::logging;
use crate::metrics;
use crate::reactor::{Facts, Reactor};
use protocol::{
    Answer, Fill, Latency, Limits, Lost, Member, MemberState, Metrics, Rebuild, Recording, Replace, Request, Spare,
    Status, Stopped,
};

pub(crate) use serve::serve;

/// How long the final replies may take, to the peers that wait for the array's end.
const FAREWELL: Duration = Duration::from_secs(1);

/// State that the control socket acts on.
pub(crate) struct Control {
    about: Rc<About>,
    reactor: Rc<Reactor>,
    connections: Connections,
    started: Instant,
    stop: Notify,
    /// Held while a member is being failed, removed or added.
    changing: Mutex<()>,
    scrubs: scrub::Followed,
    limits: Cell<Limits>,
    /// Notified when a silent spare answers.
    spare_answers: Notify,
    /// The result of closing the array.
    ended: watch::Sender<Option<Result<Vec<Lost>, String>>>,
    door: Door,
}

/// Whether the control socket is open.
#[derive(Default)]
struct Door {
    is_open: Cell<bool>,
    closes: Notify,
    closed: Notify,
}

impl Control {
    /// Controls the array that `reactor` serves.
    pub(crate) fn new(about: Rc<About>, reactor: Rc<Reactor>, connections: Connections) -> Self {
        let (ended, _) = watch::channel(None);
        Self {
            about,
            reactor,
            connections,
            started: Instant::now(),
            stop: Notify::new(),
            changing: Mutex::new(()),
            scrubs: scrub::Followed::default(),
            limits: Cell::default(),
            spare_answers: Notify::new(),
            ended,
            door: Door::default(),
        }
    }

    /// Limits the rate of rebuilds and copies to each member from now on.
    pub(crate) fn limit_rebuilds(&self, limit: Option<Bytes>) {
        let rebuild_bytes_per_second = limit.map(|limit| limit.0);
        self.limits.set(Limits { rebuild_bytes_per_second, ..self.limits.get() });
        self.reactor.set_rebuild_limit(limit);
    }

    /// Limits the rate at which scrubs read each member from now on.
    pub(crate) fn limit_scrubs(&self, limit: Option<Bytes>) {
        let scrub_bytes_per_second = limit.map(|limit| limit.0);
        self.limits.set(Limits { scrub_bytes_per_second, ..self.limits.get() });
        self.reactor.set_scrub_limit(limit);
    }

    /// Waits until an administrator stops the array.
    pub(crate) async fn stopped(&self) {
        self.stop.notified().await;
    }

    /// Stops listening, so that another server can listen. Existing connections stay.
    pub(crate) async fn close_door(&self) {
        if self.door.is_open.get() {
            self.door.closes.notify_one();
            self.door.closed.notified().await;
        }
    }

    /// Tells the waiting peers how the array was stopped. `lost` are the members that failed meanwhile.
    pub(crate) async fn end(&self, result: &Result<()>, lost: MemberSet) {
        let path = |slot| self.about.path(slot).map(|path| path.display().to_string());
        let lost = || lost.iter().map(|slot| Lost { slot: slot.0, path: path(slot) }).collect();
        let said = result.as_ref().map(|()| lost()).map_err(crate::chain);
        self.ended.send_replace(Some(said));
        // A peer that does not read its reply must not delay the server.
        let _ = tokio::time::timeout(FAREWELL, self.ended.closed()).await;
    }

    /// Executes a request.
    async fn answer(self: &Rc<Self>, request: Request) -> Result<Answer> {
        match request {
            Request::Status {} => Ok(Answer::Status(Box::new(self.status().await?))),
            Request::Metrics {} => {
                let text = metrics::page(&self.reactor.all_facts().await?, &self.about);
                Ok(Answer::Metrics(Metrics { text }))
            }
            Request::Stop { force } => {
                if !force {
                    self.check_stop().await?;
                }
                self.stop.notify_one();
                let mut ended = self.ended.subscribe();
                let said = ended.wait_for(Option::is_some).await.map_err(|_| anyhow!("the server has ended"))?.clone();
                let lost = said.expect("that is what was waited for").map_err(anyhow::Error::msg)?;
                Ok(Answer::Stopped(Stopped { lost }))
            }
            Request::Fail { member } => self.fail(&member).await.map(|()| Answer::Done {}),
            Request::Remove { member } => self.remove(&member).await.map(|()| Answer::Done {}),
            Request::Add { path, force, size_bytes } => self.add(path, force, size_bytes).await.map(Answer::Added),
            Request::Replace { member, path, force, size_bytes } => {
                self.replace(&member, path, force, size_bytes).await.map(Answer::Replaced)
            }
            Request::RebuildLimit { bytes_per_second } => {
                self.limit_rebuilds(limit(bytes_per_second)?);
                Ok(Answer::Done {})
            }
            Request::ScrubStart { mode } => self.start_scrub(mode).await.map(Answer::Scrub),
            Request::ScrubStop {} => self.stop_scrub().await.map(Answer::Scrub),
            Request::ScrubLimit { bytes_per_second } => {
                self.limit_scrubs(limit(bytes_per_second)?);
                Ok(Answer::Done {})
            }
            Request::RecordStart {} => Ok(Answer::Recording(Recording { recording: self.reactor.recorder().start() })),
            Request::RecordTake { recording, end } => {
                self.reactor.recorder().take(recording, end).map(Answer::Recorded)
            }
            Request::ScrubStatus {} => self.scrub().await.map(Answer::ScrubReport),
            Request::Set { key, value } => {
                self.set(&key, &value)?;
                // A reactor that answers this has applied the setting.
                self.reactor.all_facts().await?;
                Ok(Answer::Set { key, value })
            }
        }
    }

    /// Refuses a stop that would lose data.
    async fn check_stop(&self) -> Result<()> {
        let deleted = self.reactor.find_deleted().await;
        let facts = self.reactor.all_facts().await.context("stop it with --force all the same")?;
        let unwritten_bytes = facts.cache.map_or(0, |fill| fill.used.0);
        let condition = deleted.map_or(facts.condition, |deleted| Condition { deleted, ..facts.condition });
        match condition.loss(&self.about.geometry, unwritten_bytes) {
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
                if self.about.is_read_only {
                    bail!("the array is open for reading only");
                }
                if !self.reactor.set_cache_mode(mode) {
                    bail!("there is no cache: serve without --cache none");
                }
                tracing::info!(cache = value, "set");
                Ok(())
            }
            "log" => logging::set(value),
            _ => match self.reactor.patience().with(key, value) {
                Some(patience) => {
                    self.reactor.set_patience(patience?);
                    tracing::info!(key, value, "set");
                    Ok(())
                }
                None => bail!(
                    "there is no setting '{key}'; the settings are cache (writeback, writethrough), log (error, warn, \
                     info, debug, trace, off), read-deadline and write-deadline (2s, 500ms, off) and max-errors \
                     (20, off)"
                ),
            },
        }
    }

    async fn status(&self) -> Result<Status> {
        let facts = self.reactor.all_facts().await?;
        let About { name, uuid, level, layout, size, chunk, uri, config, is_read_only, connection_threads, .. } =
            &*self.about;
        let bytes = |fill: Option<uraid_io::engine::Fill>| {
            fill.map(|fill| Fill { used_bytes: fill.used.0, limit_bytes: fill.limit.0 })
        };
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            name: name.clone(),
            uuid: *uuid,
            level: (*level).to_owned(),
            layout: (*layout).to_owned(),
            size_bytes: size.0,
            chunk_bytes: chunk.0,
            uri: uri.clone(),
            config: config.as_ref().map(|path| path.display().to_string()),
            read_only: *is_read_only,
            connection_threads: *connection_threads,
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            clients: self.connections.count(),
            health: facts.condition.health(&self.about, &facts.waits),
            requests: facts.traffic,
            members: self.members(&facts),
            spares: self.spares(),
            limits: self.limits.get(),
            cache_mode: cache_name(facts.cache_mode).to_owned(),
            cache: bytes(facts.cache),
            log: bytes(facts.log),
            rebuild: facts.rebuild.map(|progress| Rebuild {
                members: slots(progress.members),
                done_bytes: progress.done.bytes().0,
                total_bytes: progress.total.bytes().0,
                stuck_stripe: progress.stuck.map(|stuck| stuck.stripe.0),
            }),
            replace: facts.replacement.map(|(replacement, member)| Replace {
                slot: replacement.slot.0,
                uuid: replacement.member,
                path: member.path.map(|path| path.display().to_string()),
                done_bytes: replacement.progress.done.bytes().0,
                total_bytes: replacement.progress.total.bytes().0,
                stuck_stripe: replacement.progress.stuck.map(|stuck| stuck.stripe.0),
            }),
            scrub: facts.scrub.as_ref().map(scrub::scrub),
            scrub_finished_s: facts.scrub_record.finished.map(|at| at.0),
        })
    }

    fn spares(&self) -> Vec<Spare> {
        let spares = self.about.spares.borrow();
        let spare = |spare: &crate::spares::Spare| Spare {
            path: spare.path.display().to_string(),
            problem: spare.problem.clone(),
        };
        spares.iter().map(spare).collect()
    }

    fn members(&self, facts: &Facts) -> Vec<Member> {
        let member = |(slot, known): (u8, &crate::about::Member)| {
            let index = uraid_layout::MemberIndex(slot);
            let counters = facts.counters.member(index);
            let state = match () {
                () if facts.condition.missing.contains(index) => MemberState::Missing,
                () if facts.condition.rebuilding.contains(index) => MemberState::Rebuilding,
                () => MemberState::Active,
            };
            Member {
                slot,
                uuid: known.uuid,
                path: known.path.as_ref().map(|path| path.display().to_string()),
                state,
                troubles: facts.condition.troubles_of(index),
                slow: facts.condition.slow.contains(index),
                errors: counters.errors,
                overdue: counters.overdue,
                mismatches: counters.mismatches,
                repaired: counters.repaired,
                unrepairable: counters.unrepairable,
                reads: counters.reads,
                read_bytes: counters.read_bytes,
                writes: counters.writes,
                written_bytes: counters.written_bytes,
                log_bytes: counters.log_bytes,
                flushes: counters.flushes,
                read_latency: Latency::of(facts.latencies.of(index, OpName::Read)),
                write_latency: Latency::of(facts.latencies.of(index, OpName::Write)),
            }
        };
        (0..).zip(&*self.about.members.borrow()).map(member).collect()
    }
}

fn cache_name(mode: Option<CacheMode>) -> &'static str {
    match mode {
        Some(CacheMode::WriteBack) => "writeback",
        Some(CacheMode::WriteThrough) => "writethrough",
        None => "none",
    }
}

/// A rate limit; `None` means no limit.
fn limit(bytes_per_second: Option<u64>) -> Result<Option<Bytes>> {
    if bytes_per_second == Some(0) {
        bail!("a limit of 0 bytes a second would stop it for ever; null is no limit");
    }
    Ok(bytes_per_second.map(Bytes))
}

/// The control socket beside an NBD socket: `X.sock` -> `X.ctl`.
pub(crate) fn beside(socket: &Path) -> Result<PathBuf, Misuse> {
    if socket.extension().is_some_and(|extension| extension == "ctl") {
        let path = socket.display();
        return Err(Misuse(format!(
            "{path}: this is the name of a control socket; name the socket for clients {}",
            socket.with_extension("sock").display()
        )));
    }
    Ok(socket.with_extension("ctl"))
}
