//! Facts about running reactors, and settings that can change while they run.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::oneshot;
use tokio::time::timeout;
use uraid_io::cache::Traffic as CacheTraffic;
use uraid_io::disk::Latencies;
use uraid_io::engine::{CacheMode, Counters, EngineError, Fill, Progress, Replacement, ScrubStatus};
use uraid_io::superblock::{ScrubFound, ScrubRecord, ScrubRun};
use uraid_layout::{Bytes, Geometry, Sectors};
use uraid_nbd::RequestMemory;

use super::Reactor;
use super::post::Message;
use crate::about::Member;
use crate::connections::{Callers, Report};
use crate::control::protocol::Traffic;
use crate::health::Condition;
use crate::meter::ServedByKind;
use crate::patience::Patience;

/// How long a reactor may take to report its facts.
const PATIENCE: Duration = Duration::from_secs(5);

/// The state of one reactor, or of several combined.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) counters: Counters,
    pub(crate) traffic: Traffic,
    pub(crate) served: ServedByKind,
    /// Memory of requests in flight.
    pub(crate) requests: Fill,
    pub(crate) latencies: Latencies,
    pub(crate) condition: Condition,
    /// How long each member has kept somebody waiting, by slot.
    pub(crate) waits: Vec<Option<Duration>>,
    pub(crate) cache_mode: Option<CacheMode>,
    pub(crate) cache: Option<Fill>,
    pub(crate) cache_use: Option<CacheUse>,
    pub(crate) log: Option<Fill>,
    /// By slot.
    pub(crate) logs: Vec<Option<Fill>>,
    pub(crate) scrub: Option<ScrubStatus>,
    pub(crate) scrub_record: ScrubRecord,
    pub(crate) rebuild: Option<Progress>,
    /// With the new member and its path.
    pub(crate) replacement: Option<(Replacement, Member)>,
}

/// Bytes in the cache, whether written out or not, and the traffic through it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheUse {
    pub(crate) held: Bytes,
    pub(crate) traffic: CacheTraffic,
}

impl Reactor {
    /// Connects the counter of the memory that the clients' requests take. From then on, facts include it.
    pub(crate) fn count_request_memory(&self, memory: RequestMemory) {
        assert!(self.request_memory.set(memory).is_ok(), "a reactor has one server");
    }

    /// The facts of all reactors combined. Call this on the keeper, or on the only reactor.
    pub(crate) async fn all_facts(&self) -> Result<Facts> {
        let mut facts = self.facts();
        for other in self.ask_peers() {
            let other = timeout(PATIENCE, other).await.ok().and_then(Result::ok);
            let other = other.context("a reactor does not say how it is: the server is stopping, or a member hangs")?;
            facts.add(&other);
        }
        for report in self.callers.iter().flat_map(Callers::look) {
            let report = timeout(PATIENCE, report).await.ok().and_then(Result::ok);
            let Report { traffic, served, requests } = report.context("a connection thread has ended")?;
            facts.traffic = facts.traffic.plus(traffic);
            facts.served.iter_mut().zip(&served).for_each(|(served, other)| served.add(other));
            facts.requests.used.0 += requests.used.0;
            facts.requests.limit.0 += requests.limit.0;
        }
        Ok(facts)
    }

    /// Changes, in all reactors, when new writes are acknowledged. Returns false if there is no cache.
    pub(crate) fn set_cache_mode(&self, mode: CacheMode) -> bool {
        self.post_all(|| Message::CacheMode(mode));
        self.engine.borrow_mut().set_cache_mode(mode)
    }

    /// The members' deadlines and error limit.
    pub(crate) fn patience(&self) -> Patience {
        let engine = self.engine.borrow();
        Patience { deadlines: engine.deadlines(), max_errors: engine.max_errors() }
    }

    /// Changes the members' deadlines and error limit from now on, in all reactors.
    pub(crate) fn set_patience(&self, patience: Patience) {
        self.post_all(|| Message::Patience(patience));
        self.be_patient(patience);
    }

    /// Changes the members' deadlines and error limit in this reactor.
    pub(super) fn be_patient(&self, Patience { deadlines, max_errors }: Patience) {
        let mut engine = self.engine.borrow_mut();
        engine.set_deadlines(deadlines);
        engine.set_max_errors(max_errors);
    }

    /// Starts or resumes a scrub in all reactors.
    ///
    /// # Errors
    /// As [`uraid_io::engine::Engine::start_scrub`].
    pub(crate) fn start_scrub(&self, run: ScrubRun) -> Result<(), EngineError> {
        self.engine.borrow_mut().resume_scrub(run)?;
        // Earlier findings count only once.
        self.post_all(|| Message::StartScrub(ScrubRun { found: ScrubFound::default(), ..run }));
        self.turn();
        Ok(())
    }

    /// Stops a scrub in all reactors.
    pub(crate) fn stop_scrub(&self) {
        self.engine.borrow_mut().stop_scrub();
        self.post_all(|| Message::StopScrub);
        self.turn();
    }

    /// Limits the rate at which scrubs read each member, in bytes per second, for all reactors together.
    pub(crate) fn set_scrub_limit(&self, limit: Option<Bytes>) {
        let reactors = self.peers.as_ref().map_or(1, |peers| peers.bands.shards().count() as u64);
        let limit = limit.map(|limit| Bytes((limit.0 / reactors).max(1)));
        self.post_all(|| Message::ScrubLimit(limit));
        self.engine.borrow_mut().set_scrub_limit(limit);
        self.turn();
    }

    /// The record of scrubs, on the members or about to be written to them.
    pub(crate) fn scrub_record(&self) -> ScrubRecord {
        self.engine.borrow().scrub_record()
    }

    /// Records the state of scrubs, at once or with the next record.
    pub(crate) fn keep_scrub(&self, record: ScrubRecord, at_once: bool) {
        self.engine.borrow_mut().keep_scrub(record, at_once);
        self.turn();
    }

    /// Whether every member is present and complete.
    pub(crate) fn is_whole(&self) -> bool {
        let engine = self.engine.borrow();
        engine.missing().is_empty() && engine.rebuilding().is_none() && !engine.is_frozen()
    }

    /// The array's geometry.
    pub(crate) fn geometry(&self) -> Geometry {
        self.engine.borrow().geometry().clone()
    }

    fn post_all(&self, message: impl Fn() -> Message) {
        if let Some(peers) = &self.peers {
            peers.outboxes.post_all(message);
            peers.outboxes.deliver();
        }
    }

    /// The facts of this reactor.
    pub(super) fn facts(&self) -> Facts {
        let engine = self.engine.borrow();
        Facts {
            counters: engine.counters().clone(),
            traffic: self.meter.traffic(),
            served: self.meter.served(),
            requests: self.request_memory.get().map_or(Fill::default(), |memory| Fill {
                used: Bytes(memory.used_bytes()),
                limit: Bytes(memory.limit_bytes()),
            }),
            latencies: engine.disk().latencies().clone(),
            condition: Condition {
                smart: self.failing_disks(),
                ..Condition::of(&engine, self.deleted(), self.lagging.get(), self.last_resort)
            },
            waits: engine.geometry().all_members().iter().map(|member| engine.waits_for(member)).collect(),
            cache_mode: engine.cache_mode(),
            cache: engine.cache_fill(),
            cache_use: engine.cache().map(|cache| CacheUse { held: cache.held(), traffic: cache.traffic() }),
            log: engine.log_fill(),
            logs: engine.geometry().all_members().iter().map(|member| engine.log_fill_of(member)).collect(),
            scrub: engine.scrub().cloned(),
            scrub_record: engine.scrub_record(),
            rebuild: engine.rebuilding(),
            replacement: self.replacement(),
        }
    }

    fn ask_peers(&self) -> Vec<oneshot::Receiver<Facts>> {
        let Some(peers) = &self.peers else { return Vec::new() };
        let others = peers.bands.shards().filter(|&shard| shard != peers.shard);
        let answers = others.map(|shard| {
            let (sender, answer) = oneshot::channel();
            peers.outboxes.post(shard, Message::Look(sender));
            answer
        });
        let answers = answers.collect();
        peers.outboxes.deliver();
        answers
    }
}

impl Facts {
    fn add(&mut self, other: &Self) {
        let sum = |a: Option<Fill>, b: Option<Fill>| match (a, b) {
            (Some(a), Some(b)) => Some(Fill { used: Bytes(a.used.0 + b.used.0), limit: Bytes(a.limit.0 + b.limit.0) }),
            (one, other) => one.or(other),
        };
        self.counters.add(&other.counters);
        self.traffic = self.traffic.plus(other.traffic);
        self.condition = self.condition.with(&other.condition);
        self.waits.iter_mut().zip(&other.waits).for_each(|(waits, &other)| *waits = (*waits).max(other));
        self.requests = sum(Some(self.requests), Some(other.requests)).expect("both are known");
        self.cache = sum(self.cache, other.cache);
        if let (Some(one), Some(other)) = (&mut self.cache_use, &other.cache_use) {
            one.add(other);
        }
        self.log = sum(self.log, other.log);
        self.logs.iter_mut().zip(&other.logs).for_each(|(log, &other)| *log = sum(*log, other));
        self.served.iter_mut().zip(&other.served).for_each(|(served, other)| served.add(other));
        self.latencies.add(&other.latencies);
        if let (Some(scrub), Some(other)) = (&mut self.scrub, &other.scrub) {
            add_scrub(scrub, other);
        }
    }
}

impl CacheUse {
    fn add(&mut self, other: &Self) {
        let Self { held, traffic: CacheTraffic { taken, coalesced, destaged } } = other;
        self.held.0 += held.0;
        self.traffic.taken.0 += taken.0;
        self.traffic.coalesced.0 += coalesced.0;
        self.traffic.destaged.0 += destaged.0;
    }
}

/// Adds the progress and the findings of another reactor's scrub.
fn add_scrub(scrub: &mut ScrubStatus, other: &ScrubStatus) {
    let add = |sum: &mut Sectors, more: Sectors| sum.0 += more.0;
    scrub.is_running |= other.is_running;
    scrub.parts += other.parts;
    scrub.position = scrub.position.min(other.position);
    add(&mut scrub.done, other.done);
    add(&mut scrub.total, other.total);
    add(&mut scrub.mismatched, other.mismatched);
    add(&mut scrub.repaired, other.repaired);
    add(&mut scrub.unchecked, other.unchecked);
    add(&mut scrub.missed, other.missed);
    scrub.mismatches.extend_from_slice(&other.mismatches);
    scrub.mismatches.sort_by_key(|mismatch| (mismatch.stripe, mismatch.start));
    scrub.unlisted += other.unlisted;
}
