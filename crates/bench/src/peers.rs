//! `cargo xtask bench peers`: every workload against every server in turn, round after round.
//!
//! All servers run all the time and only one is loaded, when the others have nothing more to do: what one has taken in
//! it may write out later. Figures move from minute to minute on shared machines, hence only those that were measured
//! side by side are compared. Each round starts with another server.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;

use super::machine::{Place, machine};
use super::progress::say;
use super::report::{Report, Row, Served};
use super::scratch::Scratch;
use super::server::{Programs, Role, Running, SERVERS, Server};
use super::tables;
use super::workload::{DURABLE, Setting, WORKLOADS, Workload};

/// How long the servers are watched to tell whether they have anything to do, how often in a row they are to have
/// nothing, and what counts as nothing.
const WATCHED: Duration = Duration::from_millis(300);
const QUIET_TIMES: usize = 3;
const QUIET_MAX: Duration = Duration::from_millis(10);
/// How long is waited for that.
const BUSY_MAX: Duration = Duration::from_secs(60);

/// Each member's log on a disk: what members of 8 GiB and more have by default.
const DISK_LOG: u64 = 512 << 20;

/// What to compare, and how long.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    place: Place,
    /// How often every workload is run against every server
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// MiB of each export; all servers together take about 20 times as much of the medium
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    mebibytes: u64,
    /// Write everything as JSON to this file too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run only the workloads and the servers whose names contain this; where it is in no workload's name, or in no
    /// server's, all of them take part. Servers "of 6" do only if they are named: RAID 6 and RM2 side by side. May be
    /// repeated
    #[arg(long, value_name = "SUBSTRING")]
    only: Vec<String>,
}

/// Measures, and prints the tables as markdown.
#[expect(clippy::print_stdout, reason = "the tables are what was asked for")]
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let programs = Programs::find()?;
    let (directory, medium) = options.place.find()?;
    let (workloads, servers) = selected(loads_for(&medium), &options.only)?;
    let scratch = Scratch::create(&directory)?;
    let capacity = options.mebibytes << 20;
    let log = (medium == "disk").then_some(DISK_LOG);
    let (running, left_out) = start(&servers, &scratch, (capacity, log), &programs)?;
    let setting = Setting { span: capacity, seconds: options.seconds, programs: &programs, scratch: scratch.path() };
    let (rows, failed) = measure(&workloads, &running, options.rounds, &setting);
    let report = Report {
        machine: machine(),
        medium,
        rounds: options.rounds,
        seconds: options.seconds,
        capacity,
        servers: running.iter().map(served).collect(),
        left_out,
        failed,
        rows,
    };
    print!("{}", tables::markdown(&report));
    if let Some(path) = &options.json {
        let text = format!("{:#}\n", tables::json(&report));
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    ensure!(report.failed.is_empty(), "not everything could be measured: {}", report.failed.join("; "));
    Ok(())
}

/// The loads for a medium: on a disk everybody waits for the disk, and what is measured is what it costs that writes
/// are durable; in memory that costs nothing. Of another place nobody knows.
fn loads_for(medium: &str) -> impl Iterator<Item = &'static Workload> + Clone {
    let (usual, durable) = (medium != "disk", medium != "tmpfs");
    let usual = WORKLOADS.iter().filter(move |_| usual);
    usual.chain(DURABLE.iter().filter(move |_| durable))
}

/// Of these workloads those that `only` names, and the servers that it names and that take part in any of them. The
/// baseline always does.
fn selected(
    all: impl Iterator<Item = &'static Workload> + Clone,
    only: &[String],
) -> anyhow::Result<(Vec<&'static Workload>, Vec<&'static Server>)> {
    let named = |name: &str| only.iter().any(|part| name.contains(part));
    let workload_named = |workload: &&Workload| workload.rows.iter().any(|(row, _)| named(row));
    let server_named = |server: &&Server| named(server.name);
    for part in only {
        let known = all.clone().flat_map(|workload| workload.rows).map(|(row, _)| *row);
        let known = known.chain(SERVERS.iter().map(|server| server.name)).any(|name| name.contains(part));
        ensure!(known, "no workload's and no server's name contains '{part}'");
    }
    let (some_workloads, some_servers) =
        (all.clone().any(|one| workload_named(&one)), SERVERS.iter().any(|one| server_named(&one)));
    let workloads = all.filter(|one| !some_workloads || workload_named(one)).collect::<Vec<_>>();
    let takes_part = |server: &&Server| {
        let is_usual = !some_servers && server.role != Role::Twin;
        let chosen = is_usual || server_named(server) || server.role == Role::Baseline;
        chosen && workloads.iter().any(|workload| workload.is_for(server.role))
    };
    let servers = SERVERS.iter().filter(takes_part).collect();
    Ok((workloads, servers))
}

/// What the report tells of a server, at the end of the run.
fn served(running: &Running) -> Served {
    let Server { name, role, cache_mib, .. } = *running.server;
    // A server that has ended has none, and its failure is told anyway.
    Served { name, role, cache_mib, command: running.command.clone(), memory: running.memory().ok() }
}

/// The servers that run, and each other one with the reason.
type Field = (Vec<Running>, Vec<(&'static str, String)>);

fn start(
    servers: &[&'static Server],
    scratch: &Scratch,
    sizes: (u64, Option<u64>),
    programs: &Programs,
) -> anyhow::Result<Field> {
    let (mut running, mut left_out) = (Vec::new(), Vec::new());
    for (number, server) in servers.iter().enumerate() {
        say(&format!("starting and filling {}", server.name));
        match Running::start(server, &scratch.path().join(number.to_string()), sizes, programs) {
            Ok(started) => running.push(started),
            Err(error) => {
                say(&format!("leaving out {}: {error:#}", server.name));
                left_out.push((server.name, format!("{error:#}")));
            }
        }
    }
    ensure!(!running.is_empty(), "no server could be started");
    Ok((running, left_out))
}

/// The rows, and what could not be measured: a server that failed in a workload has no samples of it.
fn measure(
    workloads: &[&Workload],
    running: &[Running],
    rounds: u32,
    setting: &Setting<'_>,
) -> (Vec<Row>, Vec<String>) {
    let mut found: Vec<Vec<Row>> = workloads
        .iter()
        .map(|workload| {
            let row = |&(name, unit)| Row { name, unit, samples: vec![Vec::new(); running.len()] };
            workload.rows.iter().map(row).collect()
        })
        .collect();
    let (mut failed, mut failed_pairs) = (Vec::new(), BTreeSet::new());
    for round in 0..rounds as usize {
        for (number, (workload, rows)) in workloads.iter().zip(&mut found).enumerate() {
            say(&format!("round {} of {rounds}: {}", round + 1, workload.name()));
            for index in turn(round, running.len()).filter(|&index| workload.is_for(running[index].server.role)) {
                if failed_pairs.contains(&(number, index)) {
                    continue;
                }
                match await_quiet(running).and_then(|()| workload.measure(&running[index], setting)) {
                    Ok(samples) => {
                        rows.iter_mut().zip(samples).for_each(|(row, sample)| row.samples[index].push(sample));
                    }
                    Err(error) => {
                        let message = format!("{} against {}: {error:#}", workload.name(), running[index].server.name);
                        say(&message);
                        rows.iter_mut().for_each(|row| row.samples[index].clear());
                        failed_pairs.insert((number, index));
                        failed.push(message);
                    }
                }
            }
        }
    }
    (found.into_iter().flatten().collect(), failed)
}

/// Waits until no server has anything to do.
///
/// # Errors
/// If one has for long, or has ended.
fn await_quiet(running: &[Running]) -> anyhow::Result<()> {
    let all = || running.iter().map(Running::processor_time).sum::<anyhow::Result<Duration>>();
    let (begun, mut before, mut times) = (Instant::now(), all()?, 0);
    while times < QUIET_TIMES {
        ensure!(begun.elapsed() < BUSY_MAX, "the servers have been busy for {} s by themselves", BUSY_MAX.as_secs());
        std::thread::sleep(WATCHED);
        let now = all()?;
        times = if now.saturating_sub(before) <= QUIET_MAX { times + 1 } else { 0 };
        before = now;
    }
    Ok(())
}

/// The order of the servers in a round: each round begins one further.
fn turn(round: usize, servers: usize) -> impl Iterator<Item = usize> {
    (0..servers).map(move |position| (position + round) % servers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_begins_one_further() {
        let order = |round| turn(round, 3).collect::<Vec<usize>>();
        assert_eq!([order(0), order(1), order(2), order(3)], [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]);
    }

    #[test]
    fn names_select_workloads_and_servers() {
        let on = |medium: &str, only: &[&str]| {
            let (workloads, servers) =
                selected(loads_for(medium), &only.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>()).unwrap();
            let workloads: Vec<&str> = workloads.iter().map(|workload| workload.name()).collect();
            (workloads, servers.iter().map(|server| server.name).collect::<Vec<&str>>())
        };
        let names = |only: &[&str]| on("tmpfs", only);
        let count = |roles: &[Role]| SERVERS.iter().filter(|server| roles.contains(&server.role)).count();
        let (protections, twins) = (count(&[Role::Protection]), count(&[Role::Twin]));
        let all = names(&[]);
        assert_eq!((all.0.len(), all.1.len()), (WORKLOADS.len(), SERVERS.len() - protections - twins));
        let (workloads, servers) = on("disk", &[]);
        assert_eq!(workloads.len(), DURABLE.len());
        assert!(servers.contains(&"uraid RM2 bitmap") && !servers.contains(&"uraid RM2 uncached"), "{servers:?}");
        let (workloads, servers) = on("/mnt", &[]);
        assert_eq!((workloads.len(), servers.len()), (WORKLOADS.len() + DURABLE.len(), SERVERS.len() - twins));
        let (workloads, servers) = names(&["sustained"]);
        assert_eq!(workloads.len(), 1);
        assert!(servers.contains(&"uraid RM2 small cache") && !servers.contains(&"uraid RM2"), "{servers:?}");
        let (workloads, servers) = names(&["RAID 5 degraded"]);
        assert_eq!((workloads.len(), servers), (WORKLOADS.len(), vec!["nbdkit file", "uraid RAID 5 degraded"]));
        let (workloads, servers) = names(&["p99", "uraid RM2"]);
        assert_eq!((workloads.len(), servers), (1, vec!["nbdkit file", "uraid RM2"]));
        let (workloads, servers) = names(&["of 6"]);
        assert_eq!((workloads.contains(&"fio 1M sequential write QD8"), servers.len()), (true, 1 + twins));
        assert!(selected(loads_for("tmpfs"), &["no such thing".to_owned()]).is_err());
    }
}
