//! What every server is asked to do, whom it is asked of, and how it is measured.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use uraid_tests::process::Process;

use super::fio::{self, End, Load};
use super::generator;
use super::measured::{Outcome, Sample, Unit};
use super::server::{EXPORT, Programs, Role, Running};

/// A load and what is measured of it.
pub(crate) struct Workload {
    /// Its rows in the table, one for each value that a measurement has.
    pub(crate) rows: &'static [(&'static str, Unit)],
    /// Whom it is for, besides the baseline.
    roles: &'static [Role],
    client: Client,
}

enum Client {
    /// fio for the time of a measurement.
    Fio(Load),
    /// fio for that time and until everything is durable: the flush at the end is on the clock.
    FioAndFlush(Load),
    /// fio for [`BURST_BYTES`] against an idle server that has nothing left to write: the median of several.
    FioBurst(Load),
    /// fio's random reads one by one while its sequential writer saturates the server.
    FioPair,
    /// The project's own generator: load, connections.
    Generator(&'static str, u32),
}

/// What a measurement needs besides the server.
pub(crate) struct Setting<'a> {
    /// Bytes of the export that are used.
    pub(crate) span: u64,
    /// How long the client loads the server.
    pub(crate) seconds: u64,
    pub(crate) programs: &'a Programs,
    /// For the client's files.
    pub(crate) scratch: &'a Path,
}

/// Rows that the goals name.
pub(crate) const RANDOM_READ: &str = "fio 4K random read QD32";
pub(crate) const RANDOM_WRITE_BURST: &str = "fio 4K random write QD32, 96 MiB burst";
pub(crate) const RANDOM_WRITE_SUSTAINED: &str = "fio 4K random write QD32, sustained and flushed";
pub(crate) const SEQUENTIAL_READ: &str = "fio 1M sequential read QD8";
pub(crate) const SEQUENTIAL_WRITE: &str = "fio 1M sequential write QD8";
pub(crate) const READ_LATENCY: &str = "fio 4K random read QD1 latency";
pub(crate) const SEQUENTIAL_WRITE_FLUSHED: &str = "fio 1M sequential write QD8, flushed at the end";
pub(crate) const RANDOM_WRITE_FLUSHED: &str = "fio 4K random write QD32, flushed at the end";
pub(crate) const RANDOM_WRITE_FSYNC_32: &str = "fio 4K random write QD32, flushed after each 32";
pub(crate) const RANDOM_WRITE_FSYNC: &str = "fio 4K random write QD1, flushed after each";
pub(crate) const GENERATOR_READ_4: &str = "generator 4K read, 4 connections";

const AS_THEY_COME: &[Role] = &[Role::Peer, Role::Default];
const WITH_DEGRADED: &[Role] = &[Role::Peer, Role::Default, Role::Degraded, Role::Twin];
const CACHE_MODES: &[Role] = &[Role::Peer, Role::Default, Role::Mode, Role::Twin];
/// Without the default, whose cache takes a good part of the export.
const SUSTAINED_WRITES: &[Role] = &[Role::Peer, Role::Mode, Role::SmallCache, Role::Twin];
const PROTECTED: &[Role] = &[Role::Peer, Role::Default, Role::Protection];

/// What it costs that writes survive a power failure, in the order of the table: loads for members on a medium that has
/// something to wait for.
pub(crate) const DURABLE: &[Workload] = &[
    of(
        &[(SEQUENTIAL_WRITE_FLUSHED, Unit::MegabytesPerSecond)],
        PROTECTED,
        Client::FioAndFlush(Load::new("write", "1m", 8)),
    ),
    of(&[(RANDOM_WRITE_FLUSHED, Unit::Kiops)], PROTECTED, Client::FioAndFlush(Load::new("randwrite", "4k", 32))),
    of(
        &[(RANDOM_WRITE_FSYNC_32, Unit::Kiops)],
        PROTECTED,
        Client::Fio(Load::new("randwrite", "4k", 32).flushed_after(32)),
    ),
    of(&[(RANDOM_WRITE_FSYNC, Unit::Kiops)], PROTECTED, Client::Fio(Load::new("randwrite", "4k", 1).flushed_after(1))),
];

/// Every other load, in the order of the table.
pub(crate) const WORKLOADS: &[Workload] = &[
    of(&[(RANDOM_READ, Unit::Kiops)], WITH_DEGRADED, Client::Fio(Load::new("randread", "4k", 32))),
    of(&[(RANDOM_WRITE_BURST, Unit::Kiops)], CACHE_MODES, Client::FioBurst(Load::new("randwrite", "4k", 32))),
    of(
        &[(RANDOM_WRITE_SUSTAINED, Unit::Kiops)],
        SUSTAINED_WRITES,
        Client::FioAndFlush(Load::new("randwrite", "4k", 32)),
    ),
    of(&[(SEQUENTIAL_READ, Unit::MegabytesPerSecond)], AS_THEY_COME, Client::Fio(Load::new("read", "1m", 8))),
    of(&[(SEQUENTIAL_WRITE, Unit::MegabytesPerSecond)], CACHE_MODES, Client::Fio(Load::new("write", "1m", 8))),
    of(&[(READ_LATENCY, Unit::Microseconds)], AS_THEY_COME, Client::Fio(Load::new("randread", "4k", 1))),
    of(&[("fio 4K sequential read QD1", Unit::Kiops)], AS_THEY_COME, Client::Fio(Load::new("read", "4k", 1))),
    of(
        &[
            ("fio 4K random read QD1 p50 beside a 1M writer", Unit::Microseconds),
            ("fio 4K random read QD1 p99 beside a 1M writer", Unit::Microseconds),
            ("fio 1M sequential write QD8 beside 4K reads", Unit::MegabytesPerSecond),
        ],
        &[Role::Default],
        Client::FioPair,
    ),
    of(&[("generator 4K read, 1 connection", Unit::Kiops)], AS_THEY_COME, Client::Generator("read", 1)),
    of(&[(GENERATOR_READ_4, Unit::Kiops)], AS_THEY_COME, Client::Generator("read", 4)),
    of(&[("generator 4K read, 16 connections", Unit::Kiops)], AS_THEY_COME, Client::Generator("read", 16)),
    of(&[("generator 4K write, 1 connection", Unit::Kiops)], AS_THEY_COME, Client::Generator("write", 1)),
    of(&[("generator 4K write, 4 connections", Unit::Kiops)], AS_THEY_COME, Client::Generator("write", 4)),
    of(&[("generator 4K write, 16 connections", Unit::Kiops)], AS_THEY_COME, Client::Generator("write", 16)),
];

const fn of(rows: &'static [(&'static str, Unit)], roles: &'static [Role], client: Client) -> Workload {
    Workload { rows, roles, client }
}

/// Bytes of a burst: well within the default cache.
const BURST_BYTES: u64 = 96 << 20;
/// Bursts of one measurement: each is over within a fraction of a second.
const BURSTS: usize = 3;
/// Requests in flight on each of the generator's connections.
const WINDOW: u32 = 32;
/// How much longer than the measurement a client may take.
const CLIENT_EXTRA: Duration = Duration::from_secs(60);

impl Workload {
    /// The row by which it is spoken of.
    pub(crate) fn name(&self) -> &'static str {
        self.rows[0].0
    }

    /// Whether a server of that role is measured.
    pub(crate) fn is_for(&self, role: Role) -> bool {
        role == Role::Baseline || self.roles.contains(&role)
    }

    /// Loads `server`, and waits until what was written is durable. Returns one sample for each of the rows.
    pub(crate) fn measure(&self, server: &Running, setting: &Setting<'_>) -> anyhow::Result<Vec<Sample>> {
        let before = server.processor_time()?;
        let (socket, report) = (server.socket.as_path(), setting.scratch.join("client.json"));
        let job = |load, end| fio::job(load, end, setting.span, socket, &report);
        let unit = self.rows[0].1;
        let outcome = match &self.client {
            Client::Fio(load) => run_fio(&mut job(*load, End::Seconds(setting.seconds)), setting, unit)?,
            Client::FioAndFlush(load) => {
                run_fio(&mut job(*load, End::SecondsAndFlush(setting.seconds)), setting, unit)?
            }
            Client::FioBurst(load) => {
                let mut bursts = Vec::new();
                for _ in 0..BURSTS {
                    server.flush()?;
                    bursts.push(run_fio(&mut job(*load, End::Bytes(BURST_BYTES)), setting, unit)?);
                }
                bursts.sort_by(|one, other| one.value.total_cmp(&other.value));
                let requests = bursts.iter().map(|burst| burst.requests).sum();
                Outcome { requests, value: bursts[BURSTS / 2].value }
            }
            Client::FioPair => {
                let (reads, writes) = (Load::new("randread", "4k", 1), Load::new("write", "1m", 8));
                let mut command = fio::pair(reads, writes, setting.seconds, setting.span, socket, &report);
                complete(&mut command, setting)?;
                server.flush()?;
                let values = fio::pair_outcome(&fs::read_to_string(&report)?)?;
                return Ok(values.map(|value| Sample { value, processor: None }).to_vec());
            }
            Client::Generator(load, connections) => run_generator(load, *connections, socket, setting)?,
        };
        server.flush()?;
        ensure!(outcome.requests > 0, "no request was answered");
        let used = server.processor_time()?.saturating_sub(before);
        let processor = Some(used.as_secs_f64() * 1e6 / outcome.requests as f64);
        Ok(vec![Sample { value: outcome.value, processor }])
    }
}

fn run_fio(command: &mut Command, setting: &Setting<'_>, unit: Unit) -> anyhow::Result<Outcome> {
    complete(command, setting)?;
    fio::outcome(&fs::read_to_string(setting.scratch.join("client.json"))?, unit)
}

fn run_generator(load: &str, connections: u32, socket: &Path, setting: &Setting<'_>) -> anyhow::Result<Outcome> {
    let words = [
        format!("--load={load}"),
        format!("--connections={connections}"),
        format!("--window={WINDOW}"),
        format!("--seconds={}", setting.seconds),
    ];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = Command::new(&setting.programs.generator);
    command.args(generator::arguments(socket, EXPORT, setting.span, &words));
    generator_outcome(&complete(&mut command, setting)?)
}

/// Runs a client to its end, in the scratch directory, and returns what it printed.
fn complete(command: &mut Command, setting: &Setting<'_>) -> anyhow::Result<String> {
    let log = setting.scratch.join("client.log");
    let within = Duration::from_secs(setting.seconds) + CLIENT_EXTRA;
    Process::complete(command.current_dir(setting.scratch), &log, within)?;
    fs::read_to_string(&log).with_context(|| format!("reading {}", log.display()))
}

/// What the generator's line tells, in thousands of requests a second.
fn generator_outcome(line: &str) -> anyhow::Result<Outcome> {
    let report: Value = serde_json::from_str(line.trim()).context("the generator prints JSON")?;
    let requests = report["requests"].as_u64().context("the generator counts requests")?;
    let seconds = report["seconds"].as_f64().filter(|&seconds| seconds > 0.0).context("the generator took time")?;
    Ok(Outcome { requests, value: requests as f64 / seconds / 1e3 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_understood() {
        let outcome = generator_outcome("{\"requests\":3000,\"seconds\":2.0}\n").unwrap();
        assert_eq!(outcome, Outcome { requests: 3000, value: 1.5 });
        assert!(generator_outcome("{\"requests\":3000,\"seconds\":0.0}").is_err());
    }

    #[test]
    fn rows_have_names_of_their_own() {
        let all = WORKLOADS.iter().chain(DURABLE);
        let mut names: Vec<&str> = all.flat_map(|workload| workload.rows).map(|row| row.0).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn every_workload_has_the_baseline() {
        assert!(
            WORKLOADS
                .iter()
                .chain(DURABLE)
                .all(|workload| workload.is_for(Role::Baseline) && !workload.rows.is_empty())
        );
    }
}
