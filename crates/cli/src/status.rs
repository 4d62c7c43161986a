//! `uraid status`: shows the state of a running array, on a screen or as JSON.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use uraid_serve::clock::now;
use uraid_serve::health::{stopping, words};
use uraid_serve::names::level_title;
use uraid_serve::protocol::{
    Away, BadBlocks, Crowded, Fill, HealthState, Latency, Limits, LogDevice, LogDeviceState, Member, MemberState,
    Replace, Request, Reshape, Sandbox, Scrub, ScrubMode, Spare, Status, Trouble, Waiting,
};
use uraid_serve::sweeps::{Sweep, Work};
use uraid_serve::text::{duration, list, size, visible};

use crate::server_args::ServerArgs;
use crate::terminal::{Colours, Tone, print, print_json};

/// Polling interval.
const PERIOD: Duration = Duration::from_secs(1);

/// How long the server may take: one that is stopping may wait for members for longer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Moves to the top of the screen and clears it.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Width of a bar, in characters.
const BAR: u64 = 30;

/// Arguments of `uraid status`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid status --watch
  uraid status --socket /run/vault.sock --json | jq .health")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Repeat every second until the server ends
    #[arg(long, short)]
    watch: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &StatusArgs) -> Result<()> {
    let mut client = args.server.connect()?;
    client.limit_patience(ANSWER_TIME_MAX)?;
    let colours = Colours::of(&io::stdout());
    let mut before: Option<Status> = None;
    loop {
        let status: Status = client.ask(&Request::Status {})?;
        match (args.json, args.watch) {
            (true, false) => print_json(&status)?,
            (true, true) => print(format_args!("{}", serde_json::to_string(&status)?))?,
            (false, true) if io::stdout().is_terminal() => {
                print(format_args!("{CLEAR}{}", screen(&status, before.as_ref(), colours)))?;
            }
            (false, true) => print(format_args!("{}", line(&status, before.as_ref())))?,
            (false, false) => print(format_args!("{}", screen(&status, None, colours)))?,
        }
        if !args.watch {
            return Ok(());
        }
        before = Some(status);
        std::thread::sleep(PERIOD);
    }
}

/// The complete status, on several lines.
fn screen(status: &Status, before: Option<&Status>, colours: Colours) -> String {
    let Status { level, layout, members, size_bytes, chunk_bytes, requests, .. } = status;
    let level = level_title(level);
    let clients = if status.clients == 1 { "1 client".to_owned() } else { format!("{} clients", status.clients) };
    let refused =
        if status.clients_refused == 0 { String::new() } else { format!(", {} refused", status.clients_refused) };
    let mode = if status.read_only { ", read-only" } else { "" };
    let mut text = format!(
        "{}: {level} {layout} of {} members, {} in chunks of {}{mode}\n{}\nup {} as {}, {clients}{refused}\n{}\n\n",
        title(status),
        status.reshape.as_ref().map_or(members.len(), |reshape| reshape.members_before.into()),
        size(*size_bytes),
        size(*chunk_bytes),
        status.uri,
        duration(status.uptime_ms / 1000),
        runs_as(status),
        colours.paint(&condition(status), tone(status.health.state)),
    );
    let rate = |now: u64, then: fn(&Status) -> u64| rate(status, before, now, then);
    text += &table(status, before, colours);
    for Member { slot, away, bad_blocks, .. } in &status.members {
        text += &away.as_ref().map_or_else(String::new, |away| format!("away     member {slot}{}\n", self::away(away)));
        text += &counted(*bad_blocks).map_or_else(String::new, |blocks| format!("lacking  member {slot}: {blocks}\n"));
    }
    for device in &status.log_devices {
        text += &log_line(device);
    }
    for Crowded { domain, slots } in &status.crowded_domains {
        text += &format!(
            "domain   {}: members {} fail together, and the array does not survive that\n",
            visible(domain),
            list(slots)
        );
    }
    for Spare { path, problem } in &status.spares {
        let path = visible(path);
        text += &match problem {
            None => format!("spare    {path}\n"),
            Some(problem) => format!("spare    {path}, which can't be taken: {problem}\n"),
        };
    }
    text += &format!(
        "\nclients  read {}{}, wrote {}{}, {} flushes",
        size(requests.read_bytes),
        rate(requests.read_bytes, |status| status.requests.read_bytes),
        size(requests.written_bytes),
        rate(requests.written_bytes, |status| status.requests.written_bytes),
        requests.flushes,
    );
    text += &limited(&status.limits);
    match &status.cache {
        None => text += "\ncache    none",
        Some(fill) if status.read_only => {
            text += &format!("\ncache    {} that the log has and nobody writes out", bar(*fill));
        }
        Some(fill) => {
            let past = if status.cache_bypassed { "; writes go past it, as it does not pay" } else { "" };
            text += &format!("\ncache    {} to be written, {}{past}", bar(*fill), status.cache_mode);
        }
    }
    if let Some(fill) = status.log {
        text += &format!("\nlog      {}", bar(fill));
    }
    for sweep in &status.sweeps {
        text += &format!("\n{}", sweep_line(sweep, &about(status, sweep.work)));
    }
    // The last one, if none is running.
    if let Some(scrub) = status.scrub.as_ref().filter(|scrub| !scrub.running) {
        text += &format!("\n{}", scrub_line(scrub));
    }
    if let (Some(finished), Ok(now)) = (status.scrub_finished_s, now()) {
        text += &format!("\nscrubbed {} ago", duration(now.0.saturating_sub(finished)));
    }
    text
}

/// What a stop waits for, if there is one, and the array's health.
pub(crate) fn condition(status: &Status) -> String {
    let stopping = status.stopping.as_ref().map_or_else(String::new, |it| format!("{}; ", stopping(it)));
    format!("{stopping}{}", words(&status.health))
}

/// Whom the server runs as, and what the kernel refuses to it: `uraid in a sandbox (paths, system calls)`.
fn runs_as(status: &Status) -> String {
    let Sandbox { paths, calls } = status.sandbox;
    let closed = match (paths, calls) {
        (false, false) => "",
        (true, false) => " in a sandbox (paths)",
        (false, true) => " in a sandbox (system calls)",
        (true, true) => " in a sandbox (paths, system calls)",
    };
    format!("{}{closed}", visible(&status.user))
}

/// How fast clients may go on: `, limited to 50 MiB/s and 500 requests/s`; nothing if there is no limit.
fn limited(limits: &Limits) -> String {
    let bytes = limits.client_bytes_per_second.map(|bytes| format!("{}/s", size(bytes)));
    let operations = limits.client_operations_per_second.map(|count| format!("{count} requests/s"));
    let limits: Vec<String> = bytes.into_iter().chain(operations).collect();
    if limits.is_empty() { String::new() } else { format!(", limited to {}", limits.join(" and ")) }
}

/// `log 0    /dev/nvme0n1p3, active, 12 MiB in 40 records, 0.05 / 0.13 ms`.
fn log_line(device: &LogDevice) -> String {
    let LogDevice { number, uuid, path, state, stalled, records, written_bytes, errors, write_latency } = device;
    let path = path.as_ref().map_or_else(|| uuid.to_string(), |path| visible(path));
    let state = match state {
        LogDeviceState::Failed => "FAILED",
        LogDeviceState::Active if *stalled => "STALLED",
        LogDeviceState::Active => "active",
    };
    let errors = if *errors == 0 { String::new() } else { format!(", {errors} errors") };
    let took = latency(write_latency, None);
    format!("log {number}    {path}, {state}, {} in {records} records, {took} ms{errors}\n", size(*written_bytes))
}

/// `3 bad blocks, 2 absent and 1 unread`; `None` if there are none. A block can be both.
pub(crate) fn counted(BadBlocks { blocks, absent, unread }: BadBlocks) -> Option<String> {
    let noun = if blocks == 1 { "block" } else { "blocks" };
    (blocks > 0).then(|| format!("{blocks} bad {noun}, {absent} absent and {unread} unread"))
}

/// Background work: `rebuild  [####...] 1 GiB of 3 GiB (64 MiB/s, 31 s left), member 2`.
fn sweep_line(sweep: &Sweep, about: &str) -> String {
    let Sweep { work, done_bytes, total_bytes, bytes_per_second, seconds_left, stuck } = *sweep;
    let done = bar(Fill { used_bytes: done_bytes, limit_bytes: total_bytes });
    let rest = match (bytes_per_second, seconds_left) {
        (_, _) if stuck => " (STUCK)".to_owned(),
        (None, _) => String::new(),
        (Some(rate), None) => format!(" ({}/s)", rounded(rate)),
        (Some(rate), Some(left)) => format!(" ({}/s, {} left)", rounded(rate), duration(left)),
    };
    let separator = if about.is_empty() { "" } else { ", " };
    // Zeroing says more than initialising to who has not initialised anything.
    let name = if work == Work::Initialise { "zeroing" } else { work.name() };
    format!("{name:<7}  {done}{rest}{separator}{about}")
}

/// What is to be known of some work beside its progress.
fn about(status: &Status, work: Work) -> String {
    match work {
        Work::Rebuild => status.rebuild.as_ref().map(|rebuild| format!("member {}", list(&rebuild.members))),
        Work::Replace => status.replace.as_ref().map(|Replace { slot, uuid, path, .. }| {
            let new = path.as_ref().map_or_else(|| uuid.to_string(), |path| visible(path));
            format!("member {slot} to {new}")
        }),
        Work::Reshape => status.reshape.as_ref().map(target),
        Work::Scrub => status.scrub.as_ref().map(found),
        Work::Initialise => None,
    }
    .unwrap_or_default()
}

/// Where a reshape goes: `to RAID 5 left-symmetric of 4 members in chunks of 64 KiB`.
fn target(reshape: &Reshape) -> String {
    let Reshape { level, layout, chunk_bytes, members, back, stuck_block, .. } = reshape;
    let way = if *back { "back from" } else { "to" };
    let stuck = stuck_block.map_or_else(String::new, |block| format!("; nothing from block {block} on, see the log"));
    let (level, chunk) = (level_title(level), size(*chunk_bytes));
    format!("{way} {level} {layout} of {members} members in chunks of {chunk}{stuck}")
}

/// The last scrub: `scrub    [####...] 3 GiB of 3 GiB, finished; 4 KiB wrong, 4 KiB repaired`.
pub(crate) fn scrub_line(scrub: &Scrub) -> String {
    let done = bar(Fill { used_bytes: scrub.done_bytes, limit_bytes: scrub.total_bytes });
    format!("scrub    {done}, {}", found(scrub))
}

/// What a scrub does and has found: `checking; 4 KiB wrong`.
fn found(scrub: &Scrub) -> String {
    let Scrub { mode, running, done_bytes, total_bytes, mismatched_bytes, repaired_bytes, .. } = *scrub;
    let Scrub { unchecked_bytes, missed_bytes, .. } = *scrub;
    let state = match (running, mode) {
        (true, ScrubMode::Check) => "checking",
        (true, ScrubMode::Repair | ScrubMode::RepairSuspects) => "repairing",
        (false, _) if done_bytes == total_bytes && missed_bytes > 0 => "finished without missing members",
        (false, _) if done_bytes == total_bytes => "finished",
        (false, _) => "stopped",
    };
    let found = match (mismatched_bytes, repaired_bytes) {
        (0, _) if unchecked_bytes > 0 => "nothing wrong in the rest".to_owned(),
        (0, _) => "nothing wrong".to_owned(),
        (wrong, 0) => format!("{} wrong", size(wrong)),
        (wrong, repaired) => format!("{} wrong, {} repaired", size(wrong), size(repaired)),
    };
    let unchecked = match unchecked_bytes {
        0 => String::new(),
        bytes => format!("{} of parity could not be checked, ", size(bytes)),
    };
    format!("{state}; {unchecked}{found}")
}

/// What the return of a member waits for: `, whose server is asked for it: it does not answer`.
fn away(Away { waiting, problem }: &Away) -> String {
    let what = match waiting {
        Waiting::Server => ", whose server is asked for it again and again",
        Waiting::Settling => ", whose server answers: it is about to return",
        Waiting::Administrator => ", which returns with `uraid add`",
    };
    problem.as_ref().map_or_else(|| what.to_owned(), |problem| format!("{what}: {problem}"))
}

/// A row for each member.
fn table(status: &Status, before: Option<&Status>, colours: Colours) -> String {
    let head = ["", "member", "state", "read", "written", "operations", "read ms", "write ms", "errors", "repaired"];
    let head = head.map(str::to_owned);
    let row = |(index, member): (usize, &Member)| {
        let Member { slot, path, uuid, state, troubles, errors, overdue, mismatches, repaired, unrepairable, .. } =
            member;
        let state = match state {
            MemberState::Missing => "missing",
            MemberState::Active | MemberState::Rebuilding if !troubles.is_empty() => trouble_name(troubles[0]),
            MemberState::Active => "active",
            MemberState::Rebuilding => "rebuilding",
        };
        let then = before.and_then(|before| before.members.get(index).map(|member| (before, member)));
        let moved = |now: u64, of: fn(&Member) -> u64| match then {
            None => size(now),
            Some((before, member)) => per_second(status, before, now, of(member)),
        };
        [
            slot.to_string(),
            path.as_ref().map_or_else(|| uuid.to_string(), |path| visible(path)),
            state.to_owned(),
            moved(member.read_bytes, |member| member.read_bytes),
            moved(member.written_bytes + member.log_bytes, |member| member.written_bytes + member.log_bytes),
            (member.reads + member.writes).to_string(),
            latency(&member.read_latency, then.map(|(_, then)| &then.read_latency)),
            latency(&member.write_latency, then.map(|(_, then)| &then.write_latency)),
            (errors + mismatches + overdue).to_string(),
            if *unrepairable > 0 { format!("{repaired}, not {unrepairable}") } else { repaired.to_string() },
        ]
    };
    let rows: Vec<_> = std::iter::once(head).chain(status.members.iter().enumerate().map(row)).collect();
    let widths: [usize; 10] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default());
    // The heading has none.
    let tones = std::iter::once(None).chain(status.members.iter().map(member_tone));
    let mut text = String::new();
    for (row, tone) in rows.iter().zip(tones) {
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Names are left-aligned, numbers right-aligned.
            let cell = if (1..3).contains(&column) { format!("{cell:<width$}  ") } else { format!("{cell:>width$}  ") };
            text += &match tone {
                Some(tone) if column == 2 => colours.paint(&cell, tone),
                _ => cell,
            };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// The colour of an array's state.
pub(crate) fn tone(state: HealthState) -> Tone {
    match state {
        HealthState::Whole => Tone::Good,
        HealthState::Degraded | HealthState::Stalled => Tone::Attention,
        HealthState::Failing | HealthState::Salvage | HealthState::Frozen => Tone::Bad,
    }
}

/// The colour of a member's state; `None`: no colour.
fn member_tone(member: &Member) -> Option<Tone> {
    match member.state {
        MemberState::Missing => Some(Tone::Bad),
        _ if !member.troubles.is_empty() => Some(Tone::Bad),
        MemberState::Rebuilding => Some(Tone::Attention),
        MemberState::Active => None,
    }
}

/// A trouble, worded for a column.
fn trouble_name(trouble: Trouble) -> &'static str {
    match trouble {
        Trouble::NoRoom => "waiting for room",
        Trouble::Stale => "out of date",
        Trouble::Smart => "disk fails (SMART)",
        _ => trouble.name(),
    }
}

/// Latency of operations since the previous status, if there is one: the mean, and the upper bound for 99 of 100, in
/// milliseconds.
fn latency(now: &Latency, then: Option<&Latency>) -> String {
    let then = then.and_then(Latency::histogram).unwrap_or_default();
    let took = now.histogram().map(|now| now.since(&then));
    match took.and_then(|took| Some((took.mean()?, took.quantile(990)?))) {
        Some((mean, most)) => format!("{:.2} / {:.2}", mean.as_secs_f64() * 1e3, most.as_secs_f64() * 1e3),
        None => "-".to_owned(),
    }
}

/// The most important facts, on one line.
fn line(status: &Status, before: Option<&Status>) -> String {
    let Status { requests, cache, log, .. } = status;
    let moved = |now: u64, then: fn(&Status) -> u64| match before {
        None => size(now),
        Some(before) => per_second(status, before, now, then(before)),
    };
    let percent = |what: &str, fill: &Option<Fill>| {
        fill.map_or_else(String::new, |fill| format!(", {what} {} %", share(fill, 100)))
    };
    format!(
        "{}: {}; {} clients, read {}, written {}{}{}",
        title(status),
        condition(status),
        status.clients,
        moved(requests.read_bytes, |status| status.requests.read_bytes),
        moved(requests.written_bytes, |status| status.requests.written_bytes),
        percent("cache", cache),
        percent("log", log),
    )
}

fn title(status: &Status) -> String {
    if status.name.is_empty() { status.uuid.to_string() } else { visible(&status.name) }
}

/// ` (12 MiB/s)`, if there is a previous status.
fn rate(status: &Status, before: Option<&Status>, now: u64, then: fn(&Status) -> u64) -> String {
    before.map_or_else(String::new, |before| format!(" ({})", per_second(status, before, now, then(before))))
}

/// Bytes per second between two status requests.
fn per_second(status: &Status, before: &Status, now: u64, then: u64) -> String {
    let milliseconds = status.uptime_ms.saturating_sub(before.uptime_ms).max(1);
    let bytes = u128::from(now.saturating_sub(then)) * 1000 / u128::from(milliseconds);
    format!("{}/s", rounded(u64::try_from(bytes).unwrap_or(u64::MAX)))
}

/// A size that changes all the time, without the digits that nobody reads.
fn rounded(bytes: u64) -> String {
    let unit = 1_u64 << (10 * (bytes.max(1).ilog2() / 10));
    if bytes / unit >= 10 { size(bytes / unit * unit) } else { size(bytes) }
}

/// The number of `parts` in use.
fn share(fill: Fill, parts: u64) -> u64 {
    let share = u128::from(fill.used_bytes) * u128::from(parts) / u128::from(fill.limit_bytes.max(1));
    u64::try_from(share).unwrap_or(parts).min(parts)
}

/// `[######........] 12 MiB of 256 MiB`.
fn bar(fill: Fill) -> String {
    let full = share(fill, BAR);
    let bar: String = (0..BAR).map(|at| if at < full { '#' } else { '.' }).collect();
    format!("[{bar}] {} of {}", size(fill.used_bytes), size(fill.limit_bytes))
}

#[cfg(test)]
mod tests;
