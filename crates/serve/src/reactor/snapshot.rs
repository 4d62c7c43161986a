//! The state of a running array at one moment, for everyone who shows it.

use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::time::timeout;
use uraid_io::cache::Traffic as CacheTraffic;
use uraid_io::disk::Latencies;
use uraid_io::engine::{CacheMode, Counters, Fill, Progress, Replacement, ReshapeProgress, ScrubStatus};
use uraid_io::format::superblock::ScrubHistory;
use uraid_layout::{Bytes, Lba, MemberIndex, Spec};

use super::{Reactor, slots};
use crate::calls::Report;
use crate::condition::Condition;
use crate::description::Member;
use crate::disk::LiveDisk;
use crate::meter::ServedByKind;
use crate::protocol::{BadBlocks, Stopping, Traffic};
use crate::sweeps::Sweep;

/// How long a connection thread may take to report what its clients have done.
const PATIENCE: Duration = Duration::from_secs(5);

/// The state of a running array.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) counters: Counters,
    pub(crate) traffic: Traffic,
    pub(crate) served: ServedByKind,
    /// Memory of requests in flight.
    pub(crate) requests: Fill,
    pub(crate) latencies: Latencies,
    pub(crate) condition: Condition,
    /// The array's sectors that no member has, ascending.
    pub(crate) lost: Rc<[Range<Lba>]>,
    /// Of present members, by slot.
    pub(crate) bad_blocks: Vec<BadBlocks>,
    /// How long each member has kept somebody waiting, by slot.
    pub(crate) waits: Vec<Option<Duration>>,
    pub(crate) cache_mode: Option<CacheMode>,
    pub(crate) is_cache_bypassed: bool,
    pub(crate) cache: Option<Fill>,
    pub(crate) cache_use: Option<CacheUse>,
    pub(crate) log: Option<Fill>,
    /// By slot.
    pub(crate) logs: Vec<Option<Fill>>,
    pub(crate) scrub: Option<ScrubStatus>,
    pub(crate) scrub_record: ScrubHistory,
    pub(crate) sweeps: Vec<Sweep>,
    pub(crate) rebuild: Option<Progress>,
    /// With the shape that the array is to get.
    pub(crate) reshaping: Option<(ReshapeProgress, Spec)>,
    /// With the new member and its path.
    pub(crate) replacement: Option<(Replacement, Member)>,
    pub(crate) stopping: Option<Stopping>,
}

/// Bytes in the cache, whether written out or not, and the traffic through it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheUse {
    pub(crate) held: Bytes,
    pub(crate) traffic: CacheTraffic,
}

impl Snapshot {
    /// The state now, of the connection threads, too.
    ///
    /// # Errors
    /// If a connection thread does not answer.
    pub(crate) async fn take<D: LiveDisk>(reactor: &Reactor<D>) -> Result<Self> {
        let mut snapshot = Self::without_threads(reactor);
        let Some(callers) = &reactor.callers else { return Ok(snapshot) };
        if let Some(last) = callers.last() {
            last.iter().for_each(|report| snapshot.add(report));
            return Ok(snapshot);
        }
        for report in callers.look() {
            let report = timeout(PATIENCE, report).await.ok().and_then(Result::ok);
            snapshot.add(&report.context("a connection thread has ended")?);
        }
        Ok(snapshot)
    }

    /// Adds what the clients of a connection thread have done.
    fn add(&mut self, report: &Report) {
        let Report { traffic, served, requests } = report;
        self.traffic = self.traffic.plus(*traffic);
        self.served.iter_mut().zip(served).for_each(|(served, other)| served.add(other));
        self.requests.used.0 += requests.used.0;
        self.requests.limit.0 += requests.limit.0;
    }

    /// The state but for what connection threads have done.
    fn without_threads<D: LiveDisk>(reactor: &Reactor<D>) -> Self {
        let engine = reactor.engine.borrow();
        let bad_blocks = |member: MemberIndex| {
            let list = engine.bad_blocks(member).filter(|_| !engine.missing().contains(member));
            list.map_or(BadBlocks::default(), |list| BadBlocks::of(&list))
        };
        Self {
            counters: engine.counters().clone(),
            traffic: reactor.meter.traffic(),
            served: reactor.meter.served(),
            requests: reactor.request_memory.get().map_or(Fill::default(), |memory| Fill {
                used: Bytes(memory.used_bytes()),
                limit: Bytes(memory.limit_bytes()),
            }),
            latencies: engine.disk().latencies().clone(),
            condition: reactor.reports.condition(&engine),
            lost: engine.lost(),
            bad_blocks: engine.slots().iter().map(bad_blocks).collect(),
            waits: engine.slots().iter().map(|member| engine.waits_for(member)).collect(),
            cache_mode: engine.cache_mode(),
            is_cache_bypassed: engine.bypass().is_on(),
            cache: engine.cache_fill(),
            cache_use: engine.cache().map(|cache| CacheUse { held: cache.held(), traffic: cache.traffic() }),
            log: engine.log_fill(),
            logs: engine.slots().iter().map(|member| engine.log_fill_of(member)).collect(),
            scrub: engine.scrub().as_deref().cloned(),
            scrub_record: engine.scrub_record(),
            sweeps: reactor.pace.sweeps(&engine, Instant::now()),
            rebuild: engine.rebuilding(),
            reshaping: engine
                .reshape()
                .map(|way| way.progress())
                .zip(engine.superblock().reshape.map(|reshape| reshape.to)),
            replacement: slots::replacement(&engine),
            stopping: reactor.stopping(),
        }
    }
}
