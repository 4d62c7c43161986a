//! Facts about a running array, and settings that can change while it runs.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::timeout;
use uraid_io::cache::Traffic as CacheTraffic;
use uraid_io::disk::Latencies;
use uraid_io::engine::{CacheMode, Counters, EngineError, Fill, Progress, Replacement, ScrubStatus};
use uraid_io::format::superblock::{ScrubHistory, ScrubRun};
use uraid_layout::{Bytes, Geometry};
use uraid_nbd::RequestMemory;

use super::Reactor;
use crate::about::Member;
use crate::connections::{Callers, Report};
use crate::control::protocol::Traffic;
use crate::health::Condition;
use crate::meter::ServedByKind;
use crate::patience::Patience;

/// How long a connection thread may take to report what its clients have done.
const PATIENCE: Duration = Duration::from_secs(5);

/// The state of a running array.
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
    pub(crate) scrub_record: ScrubHistory,
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

    /// The facts.
    ///
    /// # Errors
    /// If a connection thread does not answer.
    pub(crate) async fn all_facts(&self) -> Result<Facts> {
        let mut facts = self.facts();
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

    /// Changes when new writes are acknowledged. Returns false if there is no cache.
    pub(crate) fn set_cache_mode(&self, mode: CacheMode) -> bool {
        self.engine.borrow_mut().set_cache_mode(mode)
    }

    /// The members' deadlines and error limit.
    pub(crate) fn patience(&self) -> Patience {
        let engine = self.engine.borrow();
        Patience { deadlines: engine.deadlines(), max_errors: engine.max_errors() }
    }

    /// Changes the members' deadlines and error limit from now on.
    pub(crate) fn set_patience(&self, Patience { deadlines, max_errors }: Patience) {
        let mut engine = self.engine.borrow_mut();
        engine.set_deadlines(deadlines);
        engine.set_max_errors(max_errors);
    }

    /// Starts or resumes a scrub.
    ///
    /// # Errors
    /// As [`uraid_io::engine::Engine::start_scrub`].
    pub(crate) fn start_scrub(&self, run: ScrubRun) -> Result<(), EngineError> {
        self.engine.borrow_mut().resume_scrub(run)?;
        self.turn();
        Ok(())
    }

    /// Stops a scrub.
    pub(crate) fn stop_scrub(&self) {
        self.engine.borrow_mut().stop_scrub();
        self.turn();
    }

    /// Limits the rate at which scrubs read each member, in bytes per second.
    pub(crate) fn set_scrub_limit(&self, limit: Option<Bytes>) {
        self.engine.borrow_mut().set_scrub_limit(limit);
        self.turn();
    }

    /// The record of scrubs, on the members or about to be written to them.
    pub(crate) fn scrub_record(&self) -> ScrubHistory {
        self.engine.borrow().scrub_record()
    }

    /// Records the state of scrubs, at once or with the next record.
    pub(crate) fn keep_scrub(&self, record: ScrubHistory, at_once: bool) {
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

    fn facts(&self) -> Facts {
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
}
