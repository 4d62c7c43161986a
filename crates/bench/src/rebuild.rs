//! `cargo xtask bench rebuild`: how fast lost members are made again, and what clients notice of it.
//!
//! Each round measures in turn what the medium can do (the survivors read and new files written in order, without an
//! array), a rebuild that has the array to itself, and clients' latency without and during rebuilds, one after the
//! other. Ratios are of one round; the table has their medians.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use serde_json::Value;
use uraid_tests::process::Process;

use super::fio::{self, Load};
use super::generator;
use super::machine::{Place, machine};
use super::progress::say;
use super::raw::{self, Movers};
use super::scratch::Scratch;
use super::server::{self, EXPORT, Programs, RAID5, RAID6_OF_6, RM2, RM2_OF_6, Shape};

/// What to measure, and how long.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    place: Place,
    /// How often everything is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// MiB of each member; up to 10 times as much of the medium is taken
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    mebibytes: u64,
    /// Seconds of each measurement of a client
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Measure only the arrays whose names contain this, "of 6" for RAID 6 and RM2 side by side
    #[arg(long, value_name = "SUBSTRING")]
    only: Option<String>,
}

/// An array, and how many of its members are lost.
struct Case {
    name: &'static str,
    shape: &'static Shape,
    lost: usize,
}

const CASES: [Case; 7] = [
    Case { name: "RAID 5 of 5, one lost", shape: &RAID5, lost: 1 },
    Case { name: "RM2 of 7, one lost", shape: &RM2, lost: 1 },
    Case { name: "RM2 of 7, two lost", shape: &RM2, lost: 2 },
    Case { name: "RAID 6 of 6, one lost", shape: &RAID6_OF_6, lost: 1 },
    Case { name: "RM2 of 6, one lost", shape: &RM2_OF_6, lost: 1 },
    Case { name: "RAID 6 of 6, two lost", shape: &RAID6_OF_6, lost: 2 },
    Case { name: "RM2 of 6, two lost", shape: &RM2_OF_6, lost: 2 },
];

/// What clients do meanwhile.
const CLIENTS: [(&str, Load); 3] = [
    ("4K random read QD1", Load::new("randread", "4k", 1)),
    ("4K random read QD16", Load::new("randread", "4k", 16)),
    ("4K random write QD16", Load::new("randwrite", "4k", 16)),
];

/// How long any step may take.
const STEP_MAX: Duration = Duration::from_secs(600);
/// Between two looks at a rebuild.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What one round found in a case.
struct Round {
    /// Seconds of reading and writing in order: by one thread, by a thread a file.
    raw: [f64; 2],
    /// Seconds of a rebuild without clients.
    alone: f64,
    /// For each of [`CLIENTS`]: the 99th percentile in microseconds without and during a rebuild, and how fast that
    /// went in bytes a second.
    clients: Vec<Tail>,
}

#[derive(Clone, Copy)]
struct Tail {
    idle: f64,
    during: f64,
    rate: f64,
}

/// Measures, and prints the tables as markdown.
#[expect(clippy::print_stdout, reason = "the tables are what was asked for")]
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let is_wanted = |case: &&Case| options.only.as_ref().is_none_or(|part| case.name.contains(part));
    let cases: Vec<&Case> = CASES.iter().filter(is_wanted).collect();
    ensure!(!cases.is_empty(), "no array's name contains '{}'", options.only.as_deref().unwrap_or_default());
    let programs = Programs::find()?;
    let (directory, medium) = options.place.find()?;
    println!(
        "{}; {medium}; {} MiB a member; medians of {} rounds, {} s a client",
        machine(),
        options.mebibytes,
        options.rounds,
        options.seconds
    );
    let (mut speeds, mut tails) = (String::new(), String::new());
    for case in cases {
        let scratch = Scratch::create(&directory)?;
        let share = options.mebibytes << 20;
        let mut array = Array::start(case, scratch.path(), share, &programs)?;
        let mut rounds = Vec::new();
        for number in 1..=options.rounds {
            say(&format!("{}: round {number} of {}", case.name, options.rounds));
            rounds.push(array.round(options.seconds)?);
        }
        speeds += &speed_row(case, &rounds, share);
        tails += &tail_rows(case, &rounds);
    }
    println!(
        "\n| array | rebuild, MB/s a member | beside one thread | beside a thread a file \
         |\n|---|---:|---:|---:|\n{speeds}"
    );
    println!(
        "| array | client | p99 idle, µs | p99 during, µs | ratio | rebuild meanwhile, MB/s a member \
         |\n|---|---|---:|---:|---:|---:|\n{tails}"
    );
    Ok(())
}

/// An array that is served, and what it takes to lose and replace its first members.
struct Array<'a> {
    case: &'a Case,
    place: &'a Path,
    programs: &'a Programs,
    socket: PathBuf,
    members: Vec<PathBuf>,
    /// What is used of each member.
    share: u64,
    /// New members so far.
    made: usize,
    server: Process,
}

impl<'a> Array<'a> {
    fn start(case: &'a Case, place: &'a Path, share: u64, programs: &'a Programs) -> anyhow::Result<Self> {
        let socket = place.join("array.sock");
        let capacity = case.shape.capacity(share);
        let members = server::create(case.shape, place, (capacity, None), &programs.uraid, STEP_MAX)?;
        let mut command = Command::new(&programs.uraid);
        command.args(["serve", "--export", EXPORT, "--socket"]).arg(&socket).args(&members);
        let server = Process::start_logged(&mut command, &place.join("server.log"))?;
        let mut array = Self { case, place, programs, socket, members, share, made: 0, server };
        let deadline = Instant::now() + STEP_MAX;
        while array.status().is_err() {
            array.server.check_alive()?;
            ensure!(Instant::now() < deadline, "the server does not answer");
            std::thread::sleep(LOOK_EVERY);
        }
        let mut fill = Command::new(&programs.generator);
        fill.args(generator::fill_arguments(&array.socket, EXPORT, capacity));
        Process::complete(&mut fill, &place.join("fill.log"), STEP_MAX).context("filling")?;
        Ok(array)
    }

    fn round(&mut self, seconds: u64) -> anyhow::Result<Round> {
        let raw = [self.raw(Movers::One)?, self.raw(Movers::OneEach)?];
        let begun = self.replace()?;
        let alone = self.rebuilt(begun)?.as_secs_f64();
        let mut clients = Vec::new();
        for (_, load) in CLIENTS {
            let mut fio = self.client(load, seconds)?;
            ensure!(fio.has_ended(STEP_MAX)?, "fio does not end");
            let idle = self.tail()?;
            let rate = self.rebuild_beside(load, seconds)?;
            clients.push(Tail { idle, during: self.tail()?, rate });
        }
        Ok(Round { raw, alone, clients })
    }

    /// Seconds of reading what a rebuild reads and writing what it writes, without it.
    fn raw(&self, movers: Movers) -> anyhow::Result<f64> {
        let lost = self.case.lost;
        let targets: Vec<PathBuf> = (0..lost).map(|number| self.place.join(format!("raw{number}"))).collect();
        let time = raw::copy(&self.members[lost..], &targets, self.share, movers)?;
        targets.iter().try_for_each(fs::remove_file)?;
        Ok(time.as_secs_f64())
    }

    /// Loses members and puts new ones in their places; when the first of them began to be rebuilt.
    fn replace(&mut self) -> anyhow::Result<Instant> {
        let size = fs::metadata(&self.members[0])?.len().to_string();
        for slot in 0..self.case.lost {
            let number = slot.to_string();
            self.administer(&["fail", &number])?;
            self.administer(&["remove", &number])?;
            fs::remove_file(&self.members[slot])?;
        }
        let begun = Instant::now();
        for slot in 0..self.case.lost {
            self.made += 1;
            let path = self.place.join(format!("new{}", self.made));
            let name = path.to_str().context("the medium's path is UTF-8")?;
            self.administer(&["add", "--size", &size, name])?;
            self.members[slot] = path;
        }
        Ok(begun)
    }

    /// Runs an administrator's command.
    fn administer(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let (name, rest) = arguments.split_first().context("a command")?;
        let mut command = Command::new(&self.programs.uraid);
        command.arg(name).arg("--socket").arg(&self.socket).args(rest);
        Process::complete(&mut command, &self.place.join("command.log"), STEP_MAX)
    }

    /// Rebuilds while a client wants something; bytes a second of each new member.
    fn rebuild_beside(&mut self, load: Load, seconds: u64) -> anyhow::Result<f64> {
        let mut begun = self.replace()?;
        let mut fio = self.client(load, seconds)?;
        let (mut rebuilt, mut time) = (0.0, Duration::ZERO);
        while !fio.has_ended(LOOK_EVERY)? {
            if self.done()?.is_none() {
                (rebuilt, time) = (rebuilt + 1.0, time + begun.elapsed());
                begun = self.replace()?;
            }
        }
        rebuilt += self.done()?.unwrap_or(1.0);
        time += begun.elapsed();
        self.rebuilt(begun)?;
        Ok(rebuilt * self.share as f64 / time.as_secs_f64())
    }

    /// Waits for a rebuild's end; the time since `begun`.
    fn rebuilt(&self, begun: Instant) -> anyhow::Result<Duration> {
        while self.done()?.is_some() {
            ensure!(begun.elapsed() < STEP_MAX, "the rebuild does not end");
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(begun.elapsed())
    }

    /// What part of the array is rebuilt; none when nothing is to be rebuilt.
    fn done(&self) -> anyhow::Result<Option<f64>> {
        let status = self.status()?;
        let rebuild = &status["rebuild"];
        if rebuild.is_null() {
            ensure!(status["health"]["state"] == "whole", "the array is not whole: {}", status["health"]);
            return Ok(None);
        }
        let sweep =
            status["sweeps"].as_array().and_then(|sweeps| sweeps.iter().find(|sweep| sweep["work"] == "rebuild"));
        let sweep = sweep.context("status says nothing of how far the rebuild is")?;
        let number = |field: &str| sweep[field].as_f64().with_context(|| format!("status has no {field}"));
        Ok(Some(number("done_bytes")? / number("total_bytes")?))
    }

    fn status(&self) -> anyhow::Result<Value> {
        let mut stream = UnixStream::connect(self.socket.with_extension("ctl"))?;
        stream.write_all(b"{\"command\":\"status\"}\n")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        let mut answer: Value = serde_json::from_str(&line).context("status is JSON")?;
        if answer["result"].is_null() {
            bail!("no status: {answer}");
        }
        Ok(answer["result"].take())
    }

    /// Starts a client.
    fn client(&self, load: Load, seconds: u64) -> anyhow::Result<Process> {
        let span = self.case.shape.capacity(self.share);
        let mut command = fio::tail(load, seconds, span, &self.socket, &self.report());
        Process::start_logged(&mut command, &self.place.join("fio.log"))
    }

    /// The 99th percentile of what the last client has waited, in microseconds.
    fn tail(&self) -> anyhow::Result<f64> {
        fio::tail_outcome(&fs::read_to_string(self.report())?)
    }

    fn report(&self) -> PathBuf {
        self.place.join("fio.json")
    }
}

fn speed_row(case: &Case, rounds: &[Round], share: u64) -> String {
    let rate = median(rounds.iter().map(|round| share as f64 / round.alone / 1e6));
    let beside = |movers: usize| median(rounds.iter().map(|round| round.raw[movers] / round.alone));
    format!("| {} | {rate:.0} | {:.2} | {:.2} |\n", case.name, beside(0), beside(1))
}

fn tail_rows(case: &Case, rounds: &[Round]) -> String {
    let mut rows = String::new();
    for (number, (client, _)) in CLIENTS.iter().enumerate() {
        let of = |figure: fn(&Tail) -> f64| median(rounds.iter().map(|round| figure(&round.clients[number])));
        let (idle, during, ratio) = (of(|tail| tail.idle), of(|tail| tail.during), of(|tail| tail.during / tail.idle));
        let rate = of(|tail| tail.rate / 1e6);
        writeln!(rows, "| {} | {client} | {idle:.0} | {during:.0} | {ratio:.2} | {rate:.0} |", case.name)
            .expect("a string takes what is written");
    }
    rows
}

/// Of one value at least.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    super::report::median(values.collect()).expect("there was a round")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_medians_of_ratios() {
        let round = |raw: f64, alone: f64, during: f64| Round {
            raw: [raw, raw / 2.0],
            alone,
            clients: vec![Tail { idle: 10.0, during, rate: 5e6 }; CLIENTS.len()],
        };
        let rounds = [round(1.0, 2.0, 10.0), round(4.0, 4.0, 30.0), round(1.0, 10.0, 20.0)];
        assert_eq!(speed_row(&CASES[0], &rounds, 8_000_000), "| RAID 5 of 5, one lost | 2 | 0.50 | 0.25 |\n");
        let rows = tail_rows(&CASES[0], &rounds);
        assert!(rows.starts_with("| RAID 5 of 5, one lost | 4K random read QD1 | 10 | 20 | 2.00 | 5 |\n"), "{rows}");
        assert_eq!(rows.lines().count(), CLIENTS.len());
    }

    #[test]
    fn a_median_of_two_is_between_them() {
        assert_eq!(median([3.0, 1.0].into_iter()), 2.0);
        assert_eq!(median([9.0, 1.0, 2.0].into_iter()), 2.0);
    }
}
