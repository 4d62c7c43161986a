//! fio with its nbd engine: the command lines, and what is read from its JSON.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::measured::{Outcome, Unit};
use super::server::EXPORT;

/// One job's load: pattern, block and queue depth in fio's words.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pattern: &'static str,
    block: &'static str,
    depth: u32,
    /// After how many requests there is a flush; 0: never.
    fsync: u32,
}

impl Load {
    pub(crate) const fn new(pattern: &'static str, block: &'static str, depth: u32) -> Self {
        Self { pattern, block, depth, fsync: 0 }
    }

    /// With a flush after so many requests each.
    pub(crate) const fn flushed_after(self, requests: u32) -> Self {
        Self { fsync: requests, ..self }
    }
}

/// When a job ends.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// After this many seconds.
    Seconds(u64),
    /// After this many seconds and a flush, on which fio's clock runs too.
    SecondsAndFlush(u64),
    /// After this many bytes.
    Bytes(u64),
}

/// Who is measured while another job loads the same server.
const MEASURED: &str = "measured";
const LOADING: &str = "loading";
/// Of the time from a request to its reply.
const PERCENTILES: [&str; 3] = ["--lat_percentiles=1", "--clat_percentiles=0", "--percentile_list=50:99"];

/// One job on `span` bytes of the export behind `socket`; JSON goes to `report`.
pub(crate) fn job(load: Load, end: End, span: u64, socket: &Path, report: &Path) -> Command {
    let mut command = common(span, socket, report);
    limit(&mut command, end);
    add(&mut command, MEASURED, load);
    command
}

/// As [`job`], for `seconds`, with what [`tail_outcome`] needs.
pub(crate) fn tail(load: Load, seconds: u64, span: u64, socket: &Path, report: &Path) -> Command {
    let mut command = common(span, socket, report);
    command.args(PERCENTILES);
    limit(&mut command, End::Seconds(seconds));
    add(&mut command, MEASURED, load);
    command
}

/// A job of `reads` on one connection beside a job of `writes` on another, both for `seconds`.
pub(crate) fn pair(reads: Load, writes: Load, seconds: u64, span: u64, socket: &Path, report: &Path) -> Command {
    let mut command = common(span, socket, report);
    command.args(PERCENTILES);
    limit(&mut command, End::Seconds(seconds));
    add(&mut command, MEASURED, reads);
    add(&mut command, LOADING, writes);
    command
}

fn common(span: u64, socket: &Path, report: &Path) -> Command {
    let mut command = Command::new("fio");
    command.args(["--ioengine=nbd", "--norandommap", "--output-format=json"]);
    command.arg(format!("--output={}", report.display())).arg(format!("--size={span}"));
    command.arg(format!("--uri=nbd+unix:///{EXPORT}?socket={}", socket.display()));
    command
}

fn limit(command: &mut Command, end: End) {
    match end {
        End::Seconds(seconds) => command.args(["--time_based".to_owned(), format!("--runtime={seconds}")]),
        End::SecondsAndFlush(seconds) => {
            command.args(["--time_based", "--end_fsync=1"]).arg(format!("--runtime={seconds}"))
        }
        End::Bytes(bytes) => command.arg(format!("--io_size={bytes}")),
    };
}

fn add(command: &mut Command, name: &str, load: Load) {
    command.args([format!("--name={name}"), format!("--rw={}", load.pattern), format!("--bs={}", load.block)]);
    command.args([format!("--iodepth={}", load.depth), format!("--fsync={}", load.fsync)]);
}

/// What the JSON tells of a [`job`].
pub(crate) fn outcome(report: &str, unit: Unit) -> anyhow::Result<Outcome> {
    let report = parse(report)?;
    let job = named(&report, MEASURED)?;
    let direction = direction(job)?;
    let (path, scale) = match unit {
        Unit::Kiops => ("iops", 1e3),
        Unit::MegabytesPerSecond => ("bw_bytes", 1e6),
        Unit::Microseconds => ("lat_ns/mean", 1e3),
    };
    let value = number(job, &format!("/{direction}/{path}"))? / scale;
    Ok(Outcome { requests: number(job, &format!("/{direction}/total_ios"))? as u64, value })
}

/// What the JSON tells of a [`pair`]: the reads' median and 99th percentile in microseconds, and the writer's MB/s.
pub(crate) fn pair_outcome(report: &str) -> anyhow::Result<[f64; 3]> {
    let report = parse(report)?;
    let (reads, writes) = (named(&report, MEASURED)?, named(&report, LOADING)?);
    Ok([
        number(reads, "/read/lat_ns/percentile/50.000000")? / 1e3,
        number(reads, "/read/lat_ns/percentile/99.000000")? / 1e3,
        number(writes, "/write/bw_bytes")? / 1e6,
    ])
}

/// What the JSON tells of a [`tail`]: the 99th percentile in microseconds.
pub(crate) fn tail_outcome(report: &str) -> anyhow::Result<f64> {
    let report = parse(report)?;
    let job = named(&report, MEASURED)?;
    Ok(number(job, &format!("/{}/lat_ns/percentile/99.000000", direction(job)?))? / 1e3)
}

fn direction(job: &Value) -> anyhow::Result<&'static str> {
    Ok(if number(job, "/write/total_ios")? > 0.0 { "write" } else { "read" })
}

fn parse(report: &str) -> anyhow::Result<Value> {
    // Notes of fio may precede the JSON.
    let json = &report[report.find('{').context("fio printed no JSON")?..];
    serde_json::from_str(json).context("fio prints JSON")
}

/// The job of that name; an error when it had one.
fn named<'a>(report: &'a Value, name: &str) -> anyhow::Result<&'a Value> {
    let jobs = report["jobs"].as_array().context("fio's JSON has jobs")?;
    let job = jobs.iter().find(|job| job["jobname"] == name).with_context(|| format!("fio tells of no job {name}"))?;
    ensure!(job["error"].as_u64() == Some(0), "fio reports error {} of job {name}", job["error"]);
    Ok(job)
}

fn number(job: &Value, path: &str) -> anyhow::Result<f64> {
    job.pointer(path).and_then(Value::as_f64).with_context(|| format!("fio's JSON has no {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cut from what fio 3.33 printed.
    const JOB: &str = r#"note: both iodepth >= 1 and synchronous I/O engine are selected
{
  "fio version" : "fio-3.33",
  "jobs" : [
    {
      "jobname" : "measured",
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

    /// Likewise.
    const PAIR: &str = r#"{
  "jobs" : [
    {
      "jobname" : "measured", "error" : 0,
      "read" : {
        "total_ios" : 13173,
        "lat_ns" : {
          "min" : 10716, "max" : 3262135, "mean" : 75469.599484, "stddev" : 154429.613815, "N" : 13173,
          "percentile" : { "50.000000" : 21376, "99.000000" : 757760 }
        }
      },
      "write" : { "total_ios" : 0, "bw_bytes" : 0 }
    },
    {
      "jobname" : "loading", "error" : 0,
      "read" : { "total_ios" : 0, "bw_bytes" : 0 },
      "write" : { "total_ios" : 1397, "bw_bytes" : 1456123928, "runtime" : 1006 }
    }
  ]
}"#;

    #[test]
    fn a_job_is_understood() {
        let found = |unit| outcome(JOB, unit).unwrap();
        assert_eq!(found(Unit::Kiops), Outcome { requests: 184_166, value: 92.036981509 });
        assert_eq!(found(Unit::MegabytesPerSecond).value, 376.983476);
        assert_eq!(found(Unit::Microseconds).value, 346.2215);
    }

    #[test]
    fn writes_are_read_from_the_write_side() {
        let report = r#"{"jobs":[{"jobname":"measured","error":0,"read":{"total_ios":0,"iops":0},
            "write":{"total_ios":9,"iops":4500.0}}]}"#;
        assert_eq!(outcome(report, Unit::Kiops).unwrap(), Outcome { requests: 9, value: 4.5 });
    }

    #[test]
    fn a_pair_is_understood() {
        assert_eq!(pair_outcome(PAIR).unwrap(), [21.376, 757.76, 1456.123928]);
        assert!(pair_outcome(JOB).is_err(), "the other job is missing");
        assert_eq!(tail_outcome(PAIR).unwrap(), 757.76);
        assert!(tail_outcome(JOB).is_err(), "it has no percentiles");
    }

    #[test]
    fn failures_are_told() {
        assert!(outcome("fio: failed", Unit::Kiops).is_err());
        assert!(outcome(r#"{"jobs":[]}"#, Unit::Kiops).is_err());
        let error = outcome(&JOB.replace("\"error\" : 0", "\"error\" : 5"), Unit::Kiops).unwrap_err();
        assert!(error.to_string().contains("error 5"), "{error}");
    }

    #[test]
    fn options_of_one_job_follow_its_name() {
        let (reads, writes) = (Load::new("randread", "4k", 1), Load::new("write", "1m", 8).flushed_after(3));
        let command = pair(reads, writes, 2, 4096, Path::new("/s"), Path::new("/r"));
        let words: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let jobs = words.iter().position(|word| word == "--name=measured").unwrap();
        let expected = "--name=measured --rw=randread --bs=4k --iodepth=1 --fsync=0 \
                        --name=loading --rw=write --bs=1m --iodepth=8 --fsync=3";
        assert_eq!(words[jobs..].join(" "), expected);
        assert!(words[..jobs].iter().any(|word| word == "--runtime=2"), "{words:?}");
    }
}
