//! What every server is asked to do, and how the answer is read from the client that asks.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::generator;
use super::process::Process;
use super::server::{EXPORT, Programs, Running};

/// A load and what is measured of it.
pub(crate) struct Workload {
    /// Its row in the table.
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    client: Client,
}

/// What a result counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Thousands of requests a second; more is better.
    Kiops,
    /// Megabytes a second; more is better.
    MegabytesPerSecond,
    /// Mean microseconds from a request to its reply; less is better.
    Microseconds,
}

enum Client {
    /// fio's nbd engine: pattern, block, queue depth.
    Fio(&'static str, &'static str, u32),
    /// The project's own generator: load, connections.
    Generator(&'static str, u32),
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    /// In the workload's unit.
    pub(crate) value: f64,
    /// The server's processor time for each request, in microseconds, durability of what was written included.
    pub(crate) processor: f64,
}

/// What a client reports of its run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Outcome {
    requests: u64,
    value: f64,
}

/// Every load, in the order of the table.
pub(crate) const WORKLOADS: &[Workload] = &[
    fio("fio 4K random read QD32", Unit::Kiops, "randread", "4k", 32),
    fio("fio 4K random write QD32", Unit::Kiops, "randwrite", "4k", 32),
    fio("fio 1M sequential read QD8", Unit::MegabytesPerSecond, "read", "1m", 8),
    fio("fio 1M sequential write QD8", Unit::MegabytesPerSecond, "write", "1m", 8),
    fio("fio 4K random read QD1 latency", Unit::Microseconds, "randread", "4k", 1),
    generator("generator 4K read, 1 connection", "read", 1),
    generator("generator 4K read, 4 connections", "read", 4),
    generator("generator 4K read, 16 connections", "read", 16),
    generator("generator 4K write, 1 connection", "write", 1),
    generator("generator 4K write, 4 connections", "write", 4),
    generator("generator 4K write, 16 connections", "write", 16),
];

const fn fio(name: &'static str, unit: Unit, pattern: &'static str, block: &'static str, depth: u32) -> Workload {
    Workload { name, unit, client: Client::Fio(pattern, block, depth) }
}

const fn generator(name: &'static str, load: &'static str, connections: u32) -> Workload {
    Workload { name, unit: Unit::Kiops, client: Client::Generator(load, connections) }
}

/// Requests in flight on each of the generator's connections.
pub(crate) const WINDOW: u32 = 32;
/// How much longer than the measurement a client may take.
const CLIENT_EXTRA: Duration = Duration::from_secs(60);

impl Unit {
    /// How it is written.
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Self::Kiops => "kIOPS",
            Self::MegabytesPerSecond => "MB/s",
            Self::Microseconds => "us",
        }
    }
}

impl Workload {
    /// Loads `server`, of whose export `span` bytes are used, for `seconds`, and waits until what was written is durable.
    pub(crate) fn measure(
        &self,
        server: &Running,
        span: u64,
        seconds: u64,
        programs: &Programs,
        scratch: &Path,
    ) -> anyhow::Result<Sample> {
        let (log, report) = (scratch.join("client.log"), scratch.join("client.json"));
        let before = server.processor_time()?;
        let within = Duration::from_secs(seconds) + CLIENT_EXTRA;
        let outcome = match self.client {
            Client::Fio(pattern, block, depth) => {
                let mut command = Command::new("fio");
                command.args(["--name=bench", "--ioengine=nbd", "--time_based", "--norandommap"]);
                command.arg(format!("--uri=nbd+unix:///{EXPORT}?socket={}", server.socket.display()));
                command.args([format!("--rw={pattern}"), format!("--bs={block}"), format!("--iodepth={depth}")]);
                command.args([format!("--size={span}"), format!("--runtime={seconds}")]);
                command.arg("--output-format=json").arg(format!("--output={}", report.display()));
                Process::complete(command.current_dir(scratch), &log, within)?;
                fio_outcome(&fs::read_to_string(&report)?, self.unit)?
            }
            Client::Generator(load, connections) => {
                let words = [
                    format!("--load={load}"),
                    format!("--connections={connections}"),
                    format!("--window={WINDOW}"),
                    format!("--seconds={seconds}"),
                ];
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let mut command = Command::new(&programs.generator);
                command.args(generator::arguments(&server.socket, EXPORT, span, &words));
                Process::complete(&mut command, &log, within)?;
                generator_outcome(&fs::read_to_string(&log)?)?
            }
        };
        server.flush()?;
        ensure!(outcome.requests > 0, "no request was answered");
        let used = server.processor_time()?.saturating_sub(before);
        Ok(Sample { value: outcome.value, processor: used.as_secs_f64() * 1e6 / outcome.requests as f64 })
    }
}

/// What fio's JSON tells of its one job.
fn fio_outcome(report: &str, unit: Unit) -> anyhow::Result<Outcome> {
    // Notes of fio may precede the JSON.
    let json = &report[report.find('{').context("fio printed no JSON")?..];
    let report: Value = serde_json::from_str(json).context("fio prints JSON")?;
    let job = &report["jobs"][0];
    ensure!(job["error"].as_u64() == Some(0), "fio reports error {}", job["error"]);
    let number = |direction: &str, path: &str| job[direction].pointer(path).and_then(Value::as_f64);
    let direction = if number("write", "/total_ios").is_some_and(|ios| ios > 0.0) { "write" } else { "read" };
    let (path, scale) = match unit {
        Unit::Kiops => ("/iops", 1e3),
        Unit::MegabytesPerSecond => ("/bw_bytes", 1e6),
        Unit::Microseconds => ("/lat_ns/mean", 1e3),
    };
    let value = number(direction, path).with_context(|| format!("fio's JSON has no {direction}{path}"))?;
    let requests = job[direction]["total_ios"].as_u64().context("fio's JSON has no total_ios")?;
    Ok(Outcome { requests, value: value / scale })
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

    /// Cut from what fio 3.33 printed.
    const FIO: &str = r#"note: both iodepth >= 1 and synchronous I/O engine are selected
{
  "fio version" : "fio-3.33",
  "jobs" : [
    {
      "jobname" : "bench",
      "error" : 0,
      "read" : {
        "io_bytes" : 754343936, "bw_bytes" : 376983476, "bw" : 368147, "iops" : 92036.981509, "runtime" : 2001,
        "total_ios" : 184166,
        "lat_ns" : { "min" : 49155, "max" : 5011432, "mean" : 346221.5, "stddev" : 84200.0, "N" : 184166 }
      },
      "write" : { "io_bytes" : 0, "bw_bytes" : 0, "iops" : 0.0, "total_ios" : 0, "lat_ns" : { "mean" : 0.0 } }
    }
  ]
}"#;

    #[test]
    fn fio_is_understood() {
        let outcome = |unit| fio_outcome(FIO, unit).unwrap();
        assert_eq!(outcome(Unit::Kiops), Outcome { requests: 184_166, value: 92.036981509 });
        assert_eq!(outcome(Unit::MegabytesPerSecond).value, 376.983476);
        assert_eq!(outcome(Unit::Microseconds).value, 346.2215);
    }

    #[test]
    fn writes_are_read_from_the_write_side() {
        let report = r#"{"jobs":[{"error":0,"read":{"total_ios":0,"iops":0},"write":{"total_ios":9,"iops":4500.0}}]}"#;
        assert_eq!(fio_outcome(report, Unit::Kiops).unwrap(), Outcome { requests: 9, value: 4.5 });
    }

    #[test]
    fn failures_of_fio_are_told() {
        assert!(fio_outcome("fio: failed", Unit::Kiops).is_err());
        assert!(fio_outcome(r#"{"jobs":[]}"#, Unit::Kiops).is_err());
        let error = fio_outcome(&FIO.replace("\"error\" : 0", "\"error\" : 5"), Unit::Kiops).unwrap_err();
        assert!(error.to_string().contains("error 5"), "{error}");
    }

    #[test]
    fn the_generator_is_understood() {
        let outcome = generator_outcome("{\"requests\":3000,\"seconds\":2.0}\n").unwrap();
        assert_eq!(outcome, Outcome { requests: 3000, value: 1.5 });
        assert!(generator_outcome("{\"requests\":3000,\"seconds\":0.0}").is_err());
    }
}
