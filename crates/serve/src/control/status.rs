//! The state of an array in the protocol's terms.

use std::time::Duration;

use uraid_io::disk::OpName;
use uraid_io::engine::CacheMode;
use uraid_layout::MemberIndex;
use uraid_nbd::Endpoint;

use super::scrubs;
use crate::away::Away;
use crate::clients::Clients;
use crate::condition::slots;
use crate::description::{self, Description};
use crate::log_report;
use crate::names::{layout_name, level_name};
use crate::protocol::{
    Crowded, Fill, Health, Latency, Limits, LostContent, Member, MemberState, Rebuild, Replace, Reshape, Spare, Status,
};
use crate::reactor::snapshot::Snapshot;
use crate::spare;

/// Ranges of lost content that are listed.
const LOST_MAX: usize = 1024;

/// The state of an array that has been served for so long, with limits for background work.
pub(super) fn status(
    description: &Description,
    snapshot: Snapshot,
    limits: Limits,
    clients: &Clients,
    uptime: Duration,
) -> Status {
    let Description { name, uuid, place, config, confinement, is_read_only, connection_threads, .. } = description;
    let spec = *description.geometry.borrow().spec();
    let bytes = |fill: Option<uraid_io::engine::Fill>| {
        fill.map(|fill| Fill { used_bytes: fill.used.0, limit_bytes: fill.limit.0 })
    };
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        name: name.clone(),
        uuid: *uuid,
        level: level_name(spec.level).to_owned(),
        layout: layout_name(spec.level).to_owned(),
        size_bytes: description.size().0,
        chunk_bytes: spec.chunk.0,
        uri: place.uri.clone(),
        endpoints: place.endpoints.iter().map(Endpoint::to_string).collect(),
        metrics: place.metrics.map(|address| address.to_string()),
        config: config.as_ref().map(|config| config.path.display().to_string()),
        config_array: config.as_ref().and_then(|config| config.array.clone()),
        user: confinement.user().to_owned(),
        sandbox: confinement.sandbox,
        read_only: *is_read_only,
        connection_threads: *connection_threads,
        uptime_ms: u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX),
        clients: clients.connections.count(),
        clients_max: clients.connections_max,
        clients_refused: clients.connections.refused(),
        health: Health {
            lost: LostContent::of(&snapshot.lost, LOST_MAX),
            ..snapshot.condition.health(description, &snapshot.waits)
        },
        requests: snapshot.traffic,
        members: members(description, &snapshot),
        log_devices: log_report::reports(&description.logs.borrow(), &snapshot),
        spares: spares(description),
        crowded_domains: crowded(description),
        limits: clients.limits(limits),
        cache_mode: cache_name(snapshot.cache_mode).to_owned(),
        cache_bypassed: snapshot.is_cache_bypassed,
        cache: bytes(snapshot.cache),
        log: bytes(snapshot.log),
        sweeps: snapshot.sweeps,
        rebuild: snapshot.rebuild.map(|progress| Rebuild {
            members: slots(progress.members),
            stuck_stripe: progress.stuck.map(|stuck| stuck.stripe.0),
        }),
        replace: snapshot.replacement.map(|(replacement, member)| Replace {
            slot: replacement.slot.0,
            uuid: replacement.member,
            path: member.path.map(|path| path.display().to_string()),
            stuck_stripe: replacement.progress.stuck.map(|stuck| stuck.stripe.0),
        }),
        reshape: snapshot.reshaping.map(|(progress, to)| Reshape {
            level: level_name(to.level).to_owned(),
            layout: layout_name(to.level).to_owned(),
            chunk_bytes: to.chunk.0,
            members: to.members,
            members_before: spec.members,
            back: progress.is_back,
            stuck_block: progress.stuck.map(|lba| lba.0),
        }),
        scrub: snapshot.scrub.as_ref().map(scrubs::scrub),
        scrub_finished_s: snapshot.scrub_record.finished.map(|at| at.0),
        stopping: snapshot.stopping,
    }
}

fn crowded(description: &Description) -> Vec<Crowded> {
    description.crowded().into_iter().map(|(domain, members)| Crowded { domain, slots: slots(members) }).collect()
}

fn spares(description: &Description) -> Vec<Spare> {
    let spares = description.spares.borrow();
    let spare = |spare: &spare::Spare| Spare { path: spare.path.display().to_string(), problem: spare.problem.clone() };
    spares.iter().map(spare).collect()
}

fn members(description: &Description, snapshot: &Snapshot) -> Vec<Member> {
    let member = |(slot, known): (u8, &description::Member)| {
        let index = MemberIndex(slot);
        let counters = snapshot.counters.member(index);
        let state = match () {
            () if snapshot.condition.missing.contains(index) => MemberState::Missing,
            () if snapshot.condition.rebuilding.contains(index) => MemberState::Rebuilding,
            () => MemberState::Active,
        };
        Member {
            slot,
            uuid: known.uuid,
            path: known.path.as_ref().map(|path| path.display().to_string()),
            state,
            away: description.away.borrow().iter().find(|away| away.slot == index).map(Away::report),
            bad_blocks: snapshot.bad_blocks[index.index()],
            troubles: snapshot.condition.troubles_of(index),
            slow: snapshot.condition.slow.contains(index),
            errors: counters.errors,
            overdue: counters.overdue,
            hedged: counters.hedged,
            mismatches: counters.mismatches,
            repaired: counters.repaired,
            unrepairable: counters.unrepairable,
            reads: counters.reads,
            read_bytes: counters.read_bytes,
            writes: counters.writes,
            written_bytes: counters.written_bytes,
            log_bytes: counters.log_bytes,
            flushes: counters.flushes,
            read_latency: Latency::of(snapshot.latencies.of(index, OpName::Read)),
            write_latency: Latency::of(snapshot.latencies.of(index, OpName::Write)),
        }
    };
    (0..).zip(&*description.members.borrow()).map(member).collect()
}

fn cache_name(mode: Option<CacheMode>) -> &'static str {
    match mode {
        Some(CacheMode::WriteBack) => "writeback",
        Some(CacheMode::WriteThrough) => "writethrough",
        None => "none",
    }
}
