//! `uraid serve --metrics`: a server's metrics, in Prometheus' text format over HTTP.
//!
//! The page is generated on the reactor's thread on request; nothing is kept between two scrapes.
//! `docs/metrics.md` describes all metrics, and a test compares it with the page.

mod http;
mod merged;
mod text;

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uraid_io::cache::Unwritten;
use uraid_io::disk::OpName;
use uraid_io::engine::{Counters, Fill, MemberCounters, ScrubCounters};
use uraid_layout::{MemberIndex, Sectors};
use uraid_nbd::RateLimits;

use crate::clients::Clients;
use crate::description::Description;
use crate::disk::LiveDisk;
use crate::log_report;
use crate::meter::RequestKind;
use crate::orders::Orders;
use crate::protocol::{Answer, HealthState, LogDevice, LogDeviceState, Metrics, Request, Trouble};
use crate::reactor::Reactor;
use crate::reactor::snapshot::{CacheUse, Snapshot};
use crate::sweeps::{Sweep, Work};
use crate::text::list;
use text::Text;

/// How long one of several arrays may take for its page.
const PAGE_TIME_MAX: Duration = Duration::from_secs(3);

/// A socket for metrics.
#[derive(Debug)]
pub struct Socket(StdTcpListener);

impl Socket {
    /// Listens on the first usable address. With port 0, the system chooses a port.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn listen(addresses: &[SocketAddr]) -> Result<Self> {
        let socket = StdTcpListener::bind(addresses);
        socket.map(Self).with_context(|| format!("can't listen on {} for --metrics", list(addresses)))
    }
}

impl From<OwnedFd> for Socket {
    /// One that another server of the same array had.
    fn from(socket: OwnedFd) -> Self {
        Self(socket.into())
    }
}

/// A running HTTP server for metrics.
#[derive(Debug)]
pub(crate) struct Exporting {
    task: JoinHandle<()>,
    /// Its socket, which another server can go on with.
    socket: io::Result<OwnedFd>,
}

impl Exporting {
    /// Ends it. Whoever asks now waits as long as somebody has the socket.
    pub(crate) async fn end(self) -> Option<OwnedFd> {
        self.task.abort();
        let _ = self.task.await;
        let socket = self.socket;
        socket.inspect_err(|error| tracing::warn!(%error, "the socket of metrics can't be handed over")).ok()
    }
}

/// The HTTP server for metrics.
#[derive(Debug)]
pub struct Exporter {
    listener: TcpListener,
    address: SocketAddr,
}

impl Exporter {
    /// Serves metrics on a socket.
    ///
    /// # Errors
    /// If it can't be polled.
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    pub fn new(Socket(socket): Socket) -> Result<Self> {
        let listen = || {
            socket.set_nonblocking(true)?;
            let address = socket.local_addr()?;
            io::Result::Ok(Self { listener: TcpListener::from_std(socket)?, address })
        };
        listen().context("can't listen for --metrics")
    }

    /// Where it is.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the page.
    pub fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
    }

    /// Serves an array's page in a task of the reactor's thread. Runs forever.
    pub(crate) fn spawn<D: LiveDisk>(
        self,
        reactor: Rc<Reactor<D>>,
        description: Rc<Description>,
        clients: Clients,
    ) -> Exporting {
        let page = async move || Ok(page(&Snapshot::take(&reactor).await?, &description, &clients));
        let socket = self.listener.as_fd().try_clone_to_owned();
        Exporting { task: tokio::task::spawn_local(http::serve(self.listener, text::MEDIA_TYPE, page)), socket }
    }

    /// Serves one page for several arrays. `arrays` has the names of all of them, each with a way to ask it if it is
    /// served. Runs forever, in a [`tokio::task::LocalSet`].
    pub async fn serve_all(self, arrays: impl Fn() -> Vec<(String, Option<Orders>)> + 'static) {
        let page = async move || {
            let ask = |(array, orders)| (array, tokio::task::spawn_local(page_of(orders)));
            let asked: Vec<_> = arrays().into_iter().map(ask).collect();
            let mut pages = Vec::new();
            for (array, page) in asked {
                pages.push((array, page.await?));
            }
            Ok(merged::merged(&pages))
        };
        http::serve(self.listener, text::MEDIA_TYPE, page).await;
    }
}

/// An array's page, after whether the array is served; of one that does not answer there is no more than that.
async fn page_of(orders: Option<Orders>) -> String {
    let page = match orders {
        Some(orders) => match timeout(PAGE_TIME_MAX, orders.ask(Request::Metrics {})).await {
            Ok(Ok(Answer::Metrics(Metrics { text }))) => Some(text),
            _ => None,
        },
        None => None,
    };
    let mut text = Text::default();
    text.gauge("uraid_array_served", "1 if the array is served and answers.").sample(&[], u8::from(page.is_some()));
    text.finish() + &page.unwrap_or_default()
}

/// The whole page.
pub(crate) fn page(snapshot: &Snapshot, description: &Description, clients: &Clients) -> String {
    let mut text = Text::default();
    array(&mut text, snapshot, description);
    connections(&mut text, clients);
    requests(&mut text, snapshot);
    stripes(&mut text, &snapshot.counters);
    if let (Some(fill), Some(used)) = (&snapshot.cache, &snapshot.cache_use) {
        caching(&mut text, fill, used, &snapshot.counters);
        let help = "1 while writes go past the cache because it does not pay.";
        text.gauge("uraid_cache_bypassed", help).sample(&[], u64::from(snapshot.is_cache_bypassed));
    }
    members(&mut text, snapshot, description);
    operations(&mut text, &snapshot.counters);
    latencies(&mut text, snapshot);
    logs(&mut text, &snapshot.logs);
    log_devices(&mut text, snapshot, description);
    sweeps(&mut text, snapshot);
    rebuilds(&mut text, snapshot);
    stuck(&mut text, snapshot, description);
    unwritten(&mut text, snapshot);
    scrubs(&mut text, snapshot);
    text.finish()
}

fn array(text: &mut Text, snapshot: &Snapshot, description: &Description) {
    let mut build = text.gauge("uraid_build_info", "Always 1; the label is the version of uraid.");
    build.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    let uuid = description.uuid.to_string();
    let labels = [("uuid", uuid.as_str()), ("name", &description.name), ("level", description.level())];
    text.gauge("uraid_array_info", "Always 1; the labels identify the array.").sample(&labels, 1);
    text.gauge("uraid_array_size_bytes", "Usable size of the array.").sample(&[], description.size());
    text.gauge("uraid_array_members", "Slots for members.").sample(&[], description.members.borrow().len());
    text.gauge("uraid_array_members_missing", "Slots whose member is missing or has failed.")
        .sample(&[], snapshot.condition.missing.len());
    text.gauge(
        "uraid_array_spare_failures",
        "How many more members may fail, whichever they are; lucky mirrors survive more.",
    )
    .sample(&[], snapshot.condition.health(description, &[]).survives);
    let ready = description.spares.borrow().iter().filter(|spare| spare.is_ready()).count();
    text.gauge("uraid_array_spares", "Spares without a known problem.").sample(&[], ready);
    text.gauge("uraid_array_frozen", "1 if more members failed than the level survives: every request is refused.")
        .sample(&[], u8::from(snapshot.condition.is_frozen));
    let unreadable = description.salvage.as_ref().map_or(0, |salvage| salvage.unreadable_bytes);
    text.gauge(
        "uraid_array_unreadable_bytes",
        "Unreadable content of an array that is served although too many members are missing.",
    )
    .sample(&[], unreadable);
    text.gauge("uraid_array_lost_bytes", "Content that no member has, so that reads of it fail.")
        .sample(&[], snapshot.condition.lacking.lost_len().bytes());
    let state = snapshot.condition.state();
    let mut health =
        text.gauge("uraid_array_health", "1 for the worst state that applies to the array, 0 for the others.");
    HealthState::ALL.iter().for_each(|other| health.sample(&[("state", other.name())], u8::from(*other == state)));
}

fn connections(text: &mut Text, clients: &Clients) {
    let Clients { connections, connections_max, rates } = clients;
    text.gauge("uraid_connections", "NBD connections.").sample(&[], connections.count());
    text.gauge("uraid_connections_max", "Connections that there may be.").sample(&[], connections_max);
    text.counter("uraid_connections_refused_total", "Connections that were closed at once.")
        .sample(&[], connections.refused());
    let RateLimits { operations_per_second, bytes_per_second } = rates.limits();
    let bytes = bytes_per_second.unwrap_or(0);
    text.gauge("uraid_client_limit_bytes_per_second", "Most bytes that clients read and write; 0: no limit.")
        .sample(&[], bytes);
    let operations = operations_per_second.unwrap_or(0);
    text.gauge("uraid_client_limit_requests_per_second", "Most requests of clients; 0: no limit.")
        .sample(&[], operations);
    text.counter("uraid_requests_delayed_total", "Requests that waited because of these limits.")
        .sample(&[], rates.delayed());
}

fn requests(text: &mut Text, snapshot: &Snapshot) {
    let served = || RequestKind::ALL.into_iter().zip(&snapshot.served);
    let mut durations = text.histogram(
        "uraid_request_duration_seconds",
        "From the batch in which the engine received a request to the turn that answered it.",
    );
    served().for_each(|(kind, served)| durations.durations(&[("command", kind_name(kind))], &served.latency));
    let mut bytes = text.counter("uraid_request_bytes_total", "Bytes covered by successful requests.");
    let with_bytes = || served().filter(|(kind, _)| *kind != RequestKind::Flush);
    with_bytes().for_each(|(kind, served)| bytes.sample(&[("command", kind_name(kind))], served.bytes));
    let mut errors = text.counter("uraid_request_errors_total", "Requests answered with an error.");
    served().for_each(|(kind, served)| errors.sample(&[("command", kind_name(kind))], served.errors));
    let Fill { used, limit } = snapshot.requests;
    text.gauge("uraid_request_memory_size_bytes", "Memory that requests in flight may use.").sample(&[], limit);
    text.gauge("uraid_request_memory_used_bytes", "Memory that requests in flight use.").sample(&[], used);
}

fn stripes(text: &mut Text, counters: &Counters) {
    let methods = counters.methods();
    let mut writes = text.counter(
        "uraid_stripe_writes_total",
        "Parity stripes to write, by what has to be read first: nothing, the rest of the stripe, or the old content \
         and its parity.",
    );
    writes.sample(&[("method", "full")], methods.full);
    writes.sample(&[("method", "reconstruct")], methods.reconstruct);
    writes.sample(&[("method", "read_modify_write")], methods.read_modify_write);
}

fn caching(text: &mut Text, fill: &Fill, cache: &CacheUse, counters: &Counters) {
    let (hit, missed) = counters.cache_reads();
    for (name, help, value) in [
        ("uraid_cache_size_bytes", "Memory that the cache may use.", fill.limit),
        ("uraid_cache_used_bytes", "Memory of the cached pages.", cache.held),
        (
            "uraid_cache_dirty_bytes",
            "Memory of pages that are not written out yet, or are being written out.",
            fill.used,
        ),
    ] {
        text.gauge(name, help).sample(&[], value);
    }
    for (name, help, value) in [
        ("uraid_cache_read_hit_bytes_total", "Bytes that clients read from the cache.", hit),
        ("uraid_cache_read_miss_bytes_total", "Bytes that clients read from the members.", missed),
        ("uraid_cache_write_bytes_total", "Bytes acknowledged from memory and written out later.", cache.traffic.taken),
        (
            "uraid_cache_coalesced_bytes_total",
            "Bytes written to the cache that replaced content not yet written out, at no cost for the members.",
            cache.traffic.coalesced,
        ),
        ("uraid_cache_destaged_bytes_total", "Bytes taken from the cache to be written out.", cache.traffic.destaged),
    ] {
        text.counter(name, help).sample(&[], value);
    }
}

fn members(text: &mut Text, snapshot: &Snapshot, description: &Description) {
    let slots: Vec<(MemberIndex, String)> = slots(description.members.borrow().len());
    let mut infos =
        text.gauge("uraid_member_info", "Always 1; the labels are the UUID and the path of the member in a slot.");
    for ((_, slot), member) in slots.iter().zip(description.members.borrow().iter()) {
        let path = member.path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        infos.sample(&[("member", slot), ("uuid", &member.uuid.to_string()), ("path", &path)], 1);
    }
    let mut present = text.gauge("uraid_member_present", "1 if the member is present and written, 0 if it is missing.");
    for (member, slot) in &slots {
        present.sample(&[("member", slot)], u8::from(!snapshot.condition.missing.contains(*member)));
    }
    let mut away = text.gauge("uraid_member_away", "1 if the member's connection broke, and it is wanted back.");
    for (member, slot) in &slots {
        let is_away = description.away.borrow().iter().any(|away| away.slot == *member);
        away.sample(&[("member", slot)], u8::from(is_away));
    }
    let mut troubles = text.gauge("uraid_member_trouble", "1 if the member needs attention for this reason.");
    for (member, slot) in &slots {
        for trouble in Trouble::ALL {
            let is_so = snapshot.condition.members_in(trouble).contains(*member);
            troubles.sample(&[("member", slot), ("trouble", trouble.name())], u8::from(is_so));
        }
    }
    let mut bad = text.gauge(
        "uraid_member_bad_blocks",
        "Blocks of 4 KiB that lack content: absent ones could not be computed, unread ones could not be read.",
    );
    for ((_, slot), blocks) in slots.iter().zip(&snapshot.bad_blocks) {
        bad.sample(&[("member", slot), ("kind", "absent")], blocks.absent);
        bad.sample(&[("member", slot), ("kind", "unread")], blocks.unread);
    }
}

fn operations(text: &mut Text, counters: &Counters) {
    let slots = slots(counters.members());
    let counters = |slot: &MemberIndex| *counters.member(*slot);
    type Value = fn(&MemberCounters) -> u64;
    type Named<'a> = (&'a str, Value);
    let by_operation: [(&str, &str, &[Named<'_>]); 2] = [
        (
            "uraid_member_operations_total",
            "Operations on the data area.",
            &[
                ("read", |member| member.reads),
                ("write", |member| member.writes),
                ("zero", |member| member.zeroes),
                ("flush", |member| member.flushes),
            ],
        ),
        (
            "uraid_member_bytes_total",
            "Bytes read from and written to the data area.",
            &[("read", |member| member.read_bytes), ("write", |member| member.written_bytes)],
        ),
    ];
    for (name, help, operations) in by_operation {
        let mut family = text.counter(name, help);
        for (member, slot) in &slots {
            for (operation, value) in operations {
                family.sample(&[("member", slot), ("operation", operation)], value(&counters(member)));
            }
        }
    }
    let plain: [(&str, &str, Value); 8] = [
        ("uraid_member_log_records_total", "Records written to the log.", |member| member.log_records),
        ("uraid_member_log_bytes_total", "Bytes of the records written to the log.", |member| member.log_bytes),
        ("uraid_member_errors_total", "Failed operations.", |member| member.errors),
        ("uraid_member_overdue_total", "Operations abandoned after their deadline.", |member| member.overdue),
        ("uraid_member_hedged_total", "Slow reads of a member on a network, computed from the others.", |member| {
            member.hedged
        }),
        (
            "uraid_member_checksum_mismatches_total",
            "Blocks read from the member that did not match their checksum.",
            |member| member.mismatches,
        ),
        ("uraid_member_repaired_total", "Pieces computed from the other members and written back.", |member| {
            member.repaired
        }),
        ("uraid_member_unrepairable_total", "Pieces that could not be computed or not be written back.", |member| {
            member.unrepairable
        }),
    ];
    for (name, help, value) in plain {
        let mut family = text.counter(name, help);
        slots.iter().for_each(|(member, slot)| family.sample(&[("member", slot)], value(&counters(member))));
    }
}

fn latencies(text: &mut Text, snapshot: &Snapshot) {
    let mut durations = text.histogram(
        "uraid_member_operation_duration_seconds",
        "Time that the kernel took, including operations on the log, checksums, bitmap and superblocks.",
    );
    for (member, slot) in &slots(snapshot.counters.members()) {
        for (operation, name) in
            [("read", OpName::Read), ("write", OpName::Write), ("zero", OpName::Zero), ("flush", OpName::Flush)]
        {
            durations.durations(&[("member", slot), ("operation", operation)], snapshot.latencies.of(*member, name));
        }
    }
}

fn logs(text: &mut Text, logs: &[Option<Fill>]) {
    type Value = fn(&Fill) -> u64;
    let gauges: [(&str, &str, Value); 2] = [
        ("uraid_member_log_size_bytes", "Size of the log.", |log| log.limit.0),
        ("uraid_member_log_used_bytes", "Bytes of log records that are still needed.", |log| log.used.0),
    ];
    if logs.iter().all(Option::is_none) {
        return;
    }
    for (name, help, value) in gauges {
        let mut family = text.gauge(name, help);
        for ((_, slot), log) in slots(logs.len()).iter().zip(logs) {
            if let Some(log) = log {
                family.sample(&[("member", slot)], value(log));
            }
        }
    }
}

fn log_devices(text: &mut Text, snapshot: &Snapshot, description: &Description) {
    let devices = log_report::reports(&description.logs.borrow(), snapshot);
    if devices.is_empty() {
        return;
    }
    let mut infos = text.gauge("uraid_log_device_info", "Always 1; the labels are a log device's UUID and path.");
    for device in &devices {
        let (number, uuid) = (device.number.to_string(), device.uuid.to_string());
        let path = device.path.clone().unwrap_or_default();
        infos.sample(&[("log_device", &number), ("uuid", &uuid), ("path", &path)], 1);
    }
    type Value = fn(&LogDevice) -> u64;
    let gauges: [(&str, &str, Value); 2] = [
        ("uraid_log_device_present", "1 if the log device has every record, 0 if it failed or was missing.", |log| {
            u64::from(log.state == LogDeviceState::Active)
        }),
        ("uraid_log_device_stalled", "1 if the log device does not answer, and writes wait for it.", |log| {
            u64::from(log.stalled)
        }),
    ];
    let counters: [(&str, &str, Value); 3] = [
        ("uraid_log_device_records_total", "Records written to the log device.", |log| log.records),
        ("uraid_log_device_bytes_total", "Bytes of the records written to the log device.", |log| log.written_bytes),
        ("uraid_log_device_errors_total", "Operations that the log device failed.", |log| log.errors),
    ];
    for (name, help, value) in gauges {
        let mut family = text.gauge(name, help);
        devices.iter().for_each(|log| family.sample(&[("log_device", &log.number.to_string())], value(log)));
    }
    for (name, help, value) in counters {
        let mut family = text.counter(name, help);
        devices.iter().for_each(|log| family.sample(&[("log_device", &log.number.to_string())], value(log)));
    }
}

/// Background work, all kinds alike.
fn sweeps(text: &mut Text, snapshot: &Snapshot) {
    let mut gauge = |name: &str, help: &str, value: fn(&Sweep) -> u64| {
        let mut family = text.gauge(name, help);
        for work in Work::ALL {
            let sweep = snapshot.sweeps.iter().find(|sweep| sweep.work == work);
            family.sample(&[("work", work.name())], sweep.map_or(0, value));
        }
    };
    gauge("uraid_sweep_running", "1 while such background work has not ended.", |_| 1);
    gauge("uraid_sweep_total_bytes", "Bytes of the array that it is about; 0 without any.", |sweep| sweep.total_bytes);
    gauge("uraid_sweep_done_bytes", "Bytes of these that are done; 0 without any.", |sweep| sweep.done_bytes);
    gauge("uraid_sweep_bytes_per_second", "The mean rate over the last half minute; 0 without any.", |sweep| {
        sweep.bytes_per_second.unwrap_or(0)
    });
    gauge("uraid_sweep_stuck", "1 if it can't go on now.", |sweep| sweep.stuck.into());
}

fn rebuilds(text: &mut Text, snapshot: &Snapshot) {
    let members = snapshot.rebuild.map_or(0, |progress| progress.members.len());
    text.gauge("uraid_rebuild_members", "Members under rebuild.").sample(&[], members);
    let made = snapshot.counters.rebuilt_bytes();
    text.counter("uraid_rebuild_bytes_total", "Bytes of the array rebuilt.").sample(&[], made);
}

fn stuck(text: &mut Text, snapshot: &Snapshot, description: &Description) {
    let mut stuck = text.gauge(
        "uraid_rebuild_stuck",
        "1 if a rebuild or copy cannot go on, as a list of bad blocks is full; the labels name the parity stripe, the \
         member that can't be read there, and the stripe's byte range in the array.",
    );
    let held_up = snapshot.condition.health(description, &[]).held_up;
    for work in [Work::Rebuild, Work::Replace] {
        let mut is_stuck = false;
        for held in held_up.iter().filter(|held| held.work == work) {
            is_stuck = true;
            let [start, end] = held.stripe_blocks.map(|block| (block * 512).to_string());
            let mut slots: Vec<String> = held.unreadable.iter().map(|unreadable| unreadable.slot.to_string()).collect();
            slots.dedup();
            let stripe = held.stripe.to_string();
            for slot in &slots {
                let labels = [
                    ("work", work.name()),
                    ("stripe", stripe.as_str()),
                    ("member", slot),
                    ("start", &start),
                    ("end", &end),
                ];
                stuck.sample(&labels, 1);
            }
        }
        if !is_stuck {
            stuck.sample(&[("work", work.name())], 0);
        }
    }
}

fn unwritten(text: &mut Text, snapshot: &Snapshot) {
    let unwritten = snapshot.condition.unwritten;
    let bytes = unwritten.map_or(0, |unwritten| unwritten.len.bytes().0);
    text.gauge("uraid_unwritten_bytes", "Bytes acknowledged to clients that can't be written out.").sample(&[], bytes);
    let mut ranges = text.gauge(
        "uraid_unwritten_range_bytes",
        "The first of these ranges, in bytes of the array (end exclusive); 0 without labels if there are none.",
    );
    if unwritten.is_none() {
        ranges.sample(&[], 0);
    }
    for Range { start, end } in unwritten.iter().flat_map(Unwritten::ranges) {
        let labels = [start, end].map(|lba| Sectors(lba.0).bytes().to_string());
        ranges.sample(&[("start", &labels[0]), ("end", &labels[1])], Sectors(end.0 - start.0).bytes());
    }
}

fn scrubs(text: &mut Text, snapshot: &Snapshot) {
    let ScrubCounters { compared, certain, suspected, unknown, repaired, unchecked } = snapshot.counters.scrubs();
    text.gauge(
        "uraid_scrub_owed",
        "1 until a repairing scrub is complete after the map of blank regions was damaged on all members.",
    )
    .sample(&[], u8::from(snapshot.scrub_record.is_owed));
    let finished = snapshot.scrub_record.finished.map_or(0, |at| at.0);
    text.gauge(
        "uraid_scrub_finished_timestamp_seconds",
        "When the latest complete scrub ended, under an earlier server too; 0: never.",
    )
    .sample(&[], finished);
    text.counter("uraid_scrub_bytes_total", "Bytes of the array compared by scrubs.").sample(&[], compared);
    let mut mismatched = text.counter(
        "uraid_scrub_mismatched_bytes_total",
        "Bytes that scrubs found wrong, by certainty: of units, or of parity groups if the unit is not known.",
    );
    for (certainty, bytes) in [("certain", certain), ("suspected", suspected), ("unknown", unknown)] {
        mismatched.sample(&[("certainty", certainty)], bytes);
    }
    text.counter("uraid_scrub_repaired_bytes_total", "Bytes of these that were repaired.").sample(&[], repaired);
    text.counter("uraid_scrub_unchecked_bytes_total", "Bytes of parity that scrubs could not check.")
        .sample(&[], unchecked);
}

fn slots(count: usize) -> Vec<(MemberIndex, String)> {
    (0..count).filter_map(|slot| u8::try_from(slot).ok()).map(|slot| (MemberIndex(slot), slot.to_string())).collect()
}

fn kind_name(kind: RequestKind) -> &'static str {
    match kind {
        RequestKind::Read => "read",
        RequestKind::Write => "write",
        RequestKind::Flush => "flush",
        RequestKind::Trim => "trim",
        RequestKind::Zero => "zero",
    }
}
