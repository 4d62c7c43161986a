//! `uraid advise`: recommends a chunk size for given disks and load, with reasons.

mod calibrate;

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;
use uraid_layout::{Bytes, Geometry, Level, Sectors, Spec};
use uraid_model::advise::trial::{Setting, Trial};
use uraid_model::advise::{self, Answer, Drive, Load, trial};
use uraid_model::input::{TRACE_MAX, read_text};
use uraid_model::mech::trace::{self, Format};
use uraid_model::mech::{DiskSpec, presets};
use uraid_model::workloads::{Demand, UnknownWorkload};
use uraid_serve::names::level_name;
use uraid_serve::shape::Variant;
use uraid_serve::text::size;

use crate::level::LevelName;
use crate::misuse::Misuse;
use crate::probe;
use crate::terminal::{print, print_json};
use crate::values::bytes;
use calibrate::Calibration;

/// Seeds of simulated loads. They are fixed, so the same question has the same answer.
const SEEDS: [u64; 3] = [1, 2, 3];

/// What a recommendation is compared with.
const USUAL_CHUNK: Bytes = Bytes(64 << 10);

/// Arguments of `uraid advise`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid advise --level 5 --members 6 --measure /dev/sdb     reads a little of it, writes nothing
  uraid advise --level 5 --members 8 --disk constellation-es --workload esg-oltp
  uraid advise --level 5,10,rm2 --cache writeback,none --members 8 --disk constellation-es --trace monday.csv
  uraid advise --level 5 --members 4 --measure /dev/sdb --workload oltp --calibrate /mnt/b --calibrate /mnt/c
  uraid advise --level 5 --members 17 --positioning 12.7 --transfer 150 --reads 100 --concurrency 8
  uraid advise --level rm2 --members 9 --rm2-m 3 --positioning 12.7 --transfer 150 --rpm 7200")]
pub(crate) struct AdviseArgs {
    /// RAID level; several are compared in simulation
    #[arg(long = "level", value_enum, value_delimiter = ',', required = true, value_name = "LEVEL,...")]
    levels: Vec<LevelName>,
    /// How many members
    #[arg(long, value_name = "N")]
    members: u8,
    /// RM2: rows of a parity stripe [default: the most that the members allow]
    #[arg(long, value_name = "M")]
    rm2_m: Option<u8>,
    /// RAID 10: copies of each block [default: 2]
    #[arg(long, value_name = "N")]
    copies: Option<u8>,
    #[command(flatten)]
    disk: DiskArgs,
    /// The share of requests that are reads, in per cent [default: not known]
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=100), value_name = "PERCENT")]
    reads: Option<u8>,
    /// How many requests are under way at a time [default: not known]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65536), value_name = "N")]
    concurrency: Option<u32>,
    /// The mean size of requests [default: not known]
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    request: Option<Bytes>,
    /// Try the chunks out in simulation, with every load that fits what is known; takes seconds to a minute
    #[arg(long)]
    simulate: bool,
    /// Simulate this load instead; repeatable. `uraid bench workloads` lists the names
    #[arg(long = "workload", value_name = "NAME", conflicts_with_all = ["reads", "concurrency", "request"])]
    workloads: Vec<String>,
    /// Simulate recorded requests: the file of `uraid record`, fio's iolog, blkparse, SPC or MSR Cambridge
    #[arg(long, value_name = "FILE", conflicts_with_all = ["reads", "concurrency", "request"])]
    trace: Option<PathBuf>,
    /// Cache modes to simulate
    #[arg(long = "cache", value_enum, value_delimiter = ',', default_value = "writeback", value_name = "MODE,...")]
    caches: Vec<CacheChoice>,
    /// Measure temporary members in this directory for some chunks, and show how far the simulation is off; repeatable,
    /// one directory for each disk
    #[arg(long = "calibrate", value_name = "DIR")]
    #[arg(conflicts_with_all = ["reads", "concurrency", "request", "simulate"])]
    calibrate: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Cache modes that the simulator tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CacheChoice {
    /// Writes are answered from memory, and written out in whole stripes where possible
    Writeback,
    /// Writes are answered when the members have them
    None,
}

/// What the disks are like.
#[derive(Debug, Args)]
struct DiskArgs {
    /// A disk that is known: lightning, elite3, wren4, ra81, ra80, rp06, st31200w, cheetah-15k7, constellation-es,
    /// dc-s4500 or dc-p4500
    #[arg(long, value_name = "NAME", conflicts_with_all = ["positioning", "measure"])]
    disk: Option<String>,
    /// Mean time until a read at a random place begins: seek and half a revolution, in milliseconds
    #[arg(long, value_name = "MS", requires = "transfer")]
    positioning: Option<f64>,
    /// Rate of long reads, in units of 10^6 bytes a second
    #[arg(long, value_name = "MB/S", requires = "positioning")]
    transfer: Option<f64>,
    /// Revolutions a minute, which say how much a track holds: RM2's rules need it
    #[arg(long, value_parser = clap::value_parser!(u32).range(60..=100_000), value_name = "N")]
    #[arg(conflicts_with = "disk")]
    rpm: Option<u32>,
    /// Measure this block device, or the disk of this file: a few seconds of reading, no writing
    #[arg(long, value_name = "PATH", conflicts_with = "positioning")]
    measure: Option<PathBuf>,
}

/// The answer.
#[derive(Debug, Serialize)]
struct Advised {
    level: &'static str,
    /// In bytes, as `uraid create --chunk` takes it.
    chunk: u64,
    /// The data of a parity stripe with this chunk, in bytes.
    stripe: u64,
    disk: DiskFacts,
    rules: Vec<Rule>,
    /// What each level and cache mode can do, the best one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    simulated: Vec<Simulated>,
    /// How far the simulation is from a measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    calibration: Option<Calibration>,
    remarks: Vec<String>,
}

/// A disk's figures.
#[derive(Debug, Serialize)]
struct DiskFacts {
    name: String,
    positioning_ms: f64,
    transfer_mb_s: f64,
    /// Positioning time times transfer rate, in bytes.
    performance_product: u64,
    track: Option<u64>,
}

/// A level and cache mode in simulation.
#[derive(Debug, Serialize)]
struct Simulated {
    level: &'static str,
    cache: &'static str,
    /// The best chunk.
    chunk: u64,
    /// Its throughput over that of the first level and cache mode with chunks of 64 KiB: the geometric mean of the
    /// loads.
    gain: f64,
    chunks: Vec<SimulatedChunk>,
}

/// A chunk in simulation.
#[derive(Debug, Serialize)]
struct SimulatedChunk {
    chunk: u64,
    /// The smallest share of any load's best throughput, with the ends of its interval.
    percent: f64,
    low: f64,
    high: f64,
    /// The load that has it.
    worst: String,
}

/// The result of a rule, in bytes.
#[derive(Debug, Serialize)]
struct Rule {
    rule: &'static str,
    formula: String,
    exact: u64,
    chunk: u64,
    guarantee: &'static str,
}

/// A disk that was described or measured.
struct Described {
    name: String,
    drive: Drive,
    /// The model for simulation.
    spec: Option<DiskSpec>,
    /// Duration of one revolution, if known.
    revolution_ms: Option<f64>,
}

/// Runs the command.
pub(crate) fn run(args: &AdviseArgs) -> Result<()> {
    let AdviseArgs { members, rm2_m, copies, .. } = *args;
    // Of several levels each takes the options that are its own.
    if let [name] = *args.levels {
        let _ = Variant { layout: None, rm2_m, copies }.level(name.name(), members).map_err(Misuse)?;
    }
    let levels: Vec<Level> = args.levels.iter().map(|name| name.level(members, rm2_m, copies)).collect();
    for &level in &levels {
        // Refuse an impossible array before measuring anything.
        let _ = stripe(level, members, Bytes(4 << 10))?;
    }
    let load = Load {
        reads: args.reads.map(|per_cent| f64::from(per_cent) / 100.0),
        concurrency: args.concurrency,
        request: args.request,
    };
    let demands = args.demands(&load)?;
    ensure!(
        args.calibrate.is_empty() || !demands.is_empty() && (args.trace.is_some() || !args.workloads.is_empty()),
        Misuse("--calibrate measures a load: name it with --workload or --trace".into())
    );
    let disk = args.disk.described()?;
    let advice = advise::advise(levels[0], members, &disk.drive, &load).map_err(|error| Misuse(error.to_string()))?;
    let (simulated, trials) =
        if demands.is_empty() { (Vec::new(), Vec::new()) } else { simulated(args, &levels, &disk, &demands)? };
    let calibration = if args.calibrate.is_empty() {
        None
    } else {
        let (level, cache) = (level_name(levels[0]), args.caches[0].name());
        Some(calibrate::calibrate(&args.calibrate, level, cache, members, &args.loads()?, &trials)?)
    };
    let (name, chosen) = match simulated.first() {
        Some(best) => (best.level, Bytes(best.chunk)),
        None => (level_name(levels[0]), advice.answers[0].chunk),
    };
    let level = levels.iter().copied().find(|level| level_name(*level) == name).unwrap_or(levels[0]);
    let Drive { positioning_ms, transfer_mb_s, track } = disk.drive;
    let advised = Advised {
        level: name,
        chunk: chosen.0,
        stripe: stripe(level, members, chosen)?.0,
        disk: DiskFacts {
            name: disk.name,
            positioning_ms,
            transfer_mb_s,
            performance_product: disk.drive.product().0,
            track: track.map(|track| track.0),
        },
        // Rules are for one level, and know nothing of named loads.
        rules: if levels.len() == 1 { advice.answers.into_iter().map(Rule::from).collect() } else { Vec::new() },
        simulated,
        calibration,
        remarks: advice.remarks,
    };
    if args.json { print_json(&advised) } else { show(&advised) }
}

impl CacheChoice {
    fn name(self) -> &'static str {
        match self {
            Self::Writeback => "writeback",
            Self::None => "none",
        }
    }
}

impl AdviseArgs {
    /// The same as loads for a measurement, in the same order.
    fn loads(&self) -> Result<Vec<uraid_lab::Load>> {
        let trace = self.trace.iter().map(|path| format!("trace:{}", path.display()));
        let mut loads = Vec::new();
        for spec in self.workloads.iter().cloned().chain(trace) {
            loads.extend(uraid_lab::load::find(&spec, Bytes(4 << 10))?);
        }
        Ok(loads)
    }

    /// What is simulated; nothing if the rules are enough.
    fn demands(&self, load: &Load) -> Result<Vec<(String, Demand)>> {
        let misuse = |error: UnknownWorkload| Misuse(error.to_string());
        let mut demands = Vec::new();
        for name in &self.workloads {
            demands.extend(trial::named(name).map_err(misuse)?);
        }
        if let Some(path) = &self.trace {
            let name = path.display();
            let text = read_text(path, TRACE_MAX).with_context(|| format!("can't read {name}"))?;
            let records = trace::parse(&text, Format::of(&text)).with_context(|| format!("can't read {name}"))?;
            ensure!(!records.is_empty(), "{name} has no reads or writes");
            demands.push((name.to_string(), Demand::Trace(records)));
        }
        let compares = self.simulate || self.levels.len() > 1 || self.caches.len() > 1;
        if demands.is_empty() && compares {
            demands = trial::demands(load).map_err(misuse)?;
        }
        Ok(demands)
    }
}

/// Simulates every chunk on such disks, with each level and cache mode. Also gives the trials of the first of them.
fn simulated(
    args: &AdviseArgs,
    levels: &[Level],
    disk: &Described,
    demands: &[(String, Demand)],
) -> Result<(Vec<Simulated>, Vec<Trial>)> {
    let spec = match &disk.spec {
        Some(spec) => spec.clone(),
        None => disk.drive.disk(disk.revolution_ms).map_err(|error| Misuse(error.to_string()))?,
    };
    let mut found = Vec::new();
    let mut usual: Option<Vec<f64>> = None;
    let mut first = Vec::new();
    for &level in levels {
        for cache in &args.caches {
            let is_cached = *cache == CacheChoice::Writeback;
            let setting = Setting { level, members: args.members, disk: &spec, is_cached, demands, seeds: &SEEDS };
            let trials = trial::simulate(&setting)?;
            let of_usual = trials.iter().find(|trial| trial.chunk == USUAL_CHUNK);
            let usual = usual.get_or_insert_with(|| of_usual.map_or(Vec::new(), |trial| trial.mb_s.clone()));
            let best = trial::best(&trials).context("no chunk was tried")?;
            let logs = best.mb_s.iter().zip(&*usual).map(|(it, usual)| (it / usual).ln());
            let gain = (logs.sum::<f64>() / demands.len() as f64).exp();
            let chunks = trials.iter().map(|trial| {
                let (percent, low, high) = trial.share();
                SimulatedChunk { chunk: trial.chunk.0, percent, low, high, worst: trial.worst.clone() }
            });
            found.push(Simulated {
                level: level_name(level),
                cache: cache.name(),
                chunk: best.chunk.0,
                gain,
                chunks: chunks.collect(),
            });
            if first.is_empty() {
                first = trials;
            }
        }
    }
    found.sort_by(|left, right| right.gain.total_cmp(&left.gain));
    Ok((found, first))
}

fn show(advised: &Advised) -> Result<()> {
    let Advised { level, chunk, stripe, disk, rules, simulated, calibration, remarks } = advised;
    let with_level = if simulated.len() > 1 { format!("--level {level} ") } else { String::new() };
    print(format_args!("{with_level}--chunk {}K", chunk >> 10))?;
    print(format_args!("a stripe then has {} of data", size(*stripe)))?;
    let track = disk.track.map_or(String::new(), |track| format!("; a track holds {}", size(track)));
    print(format_args!(
        "{}: {:.2} ms to get anywhere and {:.1} MB/s from there, so {} go by meanwhile{track}",
        disk.name,
        disk.positioning_ms,
        disk.transfer_mb_s,
        size(disk.performance_product)
    ))?;
    for Simulated { level, cache, chunk, gain, chunks } in simulated {
        let gain = (gain - 1.0) * 100.0;
        print(format_args!(
            "simulated: level {level}, cache {cache}: {} is best, {gain:+.0} % throughput",
            size(*chunk)
        ))?;
        for SimulatedChunk { chunk, percent, low, high, worst } in chunks {
            print(format_args!(
                "  {:>8}: at least {percent:.0} % ({low:.0} to {high:.0}) of the best throughput; least: {worst}",
                size(*chunk)
            ))?;
        }
    }
    if !simulated.is_empty() {
        print(format_args!(
            "  gains are over chunks of {} with the first level and cache mode; disks turn unsynchronised, and parity \
             levels log writes; `uraid bench chunk` measures",
            size(USUAL_CHUNK.0)
        ))?;
    }
    if let Some(calibration) = calibration {
        calibration.show()?;
    }
    for (index, Rule { rule, formula, exact, chunk, guarantee }) in rules.iter().enumerate() {
        let lead = if index == 0 && simulated.is_empty() { "because" } else { "also" };
        let rounded = if exact == chunk { String::new() } else { format!(", so {}", size(*chunk)) };
        print(format_args!("{lead}: {rule}: {formula} = {}{rounded}", size(*exact)))?;
        print(format_args!("  worth {guarantee}"))?;
    }
    remarks.iter().try_for_each(|remark| print(format_args!("note: {remark}")))
}

/// The data of a parity stripe. Fails if the level is impossible with this many members.
fn stripe(level: Level, members: u8, chunk: Bytes) -> Result<Bytes> {
    let geometry = Geometry::new(Spec { level, members, chunk, member_size: Sectors(1 << 20) })?;
    Ok(geometry.stripe_sectors().bytes())
}

impl DiskArgs {
    fn described(&self) -> Result<Described> {
        if let Some(name) = &self.disk {
            return preset(name);
        }
        let (name, positioning_ms, transfer_mb_s) = match (self.positioning, self.transfer, &self.measure) {
            (Some(positioning_ms), Some(transfer_mb_s), None) => {
                ("the disk described".to_owned(), positioning_ms, transfer_mb_s)
            }
            (None, None, Some(path)) => {
                let measured = probe::measure(path)?;
                (path.display().to_string(), measured.positioning_ms, measured.transfer_mb_s)
            }
            _ => {
                bail!(Misuse(
                    "say what the disks are like: --disk NAME, --positioning MS --transfer MB/S, or --measure PATH"
                        .into()
                ))
            }
        };
        let track = self.rpm.map(|rpm| Bytes((transfer_mb_s * 1e6 * 60.0 / f64::from(rpm)) as u64));
        let revolution_ms = self.rpm.map(|rpm| 60_000.0 / f64::from(rpm));
        Ok(Described { name, drive: Drive { positioning_ms, transfer_mb_s, track }, spec: None, revolution_ms })
    }
}

/// A disk that is known by name.
fn preset(name: &str) -> Result<Described> {
    let Some(spec) = presets::named(name) else {
        bail!(Misuse(format!("no disk is known as '{name}'; choose one of {}", presets::NAMES.join(", "))));
    };
    let drive = Drive::of(&spec)?;
    Ok(Described { name: spec.name.clone(), drive, spec: Some(spec), revolution_ms: None })
}

impl From<Answer> for Rule {
    fn from(answer: Answer) -> Self {
        let Answer { rule, formula, exact, chunk, guarantee } = answer;
        Self { rule, formula, exact: exact.0, chunk: chunk.0, guarantee }
    }
}
