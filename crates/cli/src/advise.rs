//! `uraid advise`: recommends a chunk size for given disks and load, with reasons.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;
use uraid_layout::{Bytes, Geometry, Level, Sectors, Spec};
use uraid_sim::advise::{self, Answer, Drive, Load, trial};
use uraid_sim::mech::{DiskSpec, presets};

use crate::args::{LevelName, Misuse, bytes, check_level};
use crate::probe;
use crate::terminal::{print, print_json, size};

/// Seed of simulated loads. It is fixed, so the same question has the same answer.
const SEED: u64 = 1;

/// Arguments of `uraid advise`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid advise --level 5 --members 6 --measure /dev/sdb     reads a little of it, writes nothing
  uraid advise --level 5 --members 8 --disk constellation-es --simulate
  uraid advise --level 5 --members 17 --positioning 12.7 --transfer 150 --reads 100 --concurrency 8
  uraid advise --level rm2 --members 9 --rm2-m 3 --positioning 12.7 --transfer 150 --rpm 7200")]
pub(crate) struct AdviseArgs {
    /// RAID level
    #[arg(long, value_enum)]
    level: LevelName,
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
    /// Print JSON
    #[arg(long)]
    json: bool,
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
    /// In bytes, as `uraid create --chunk` takes it.
    chunk: u64,
    /// The data of a parity stripe with this chunk, in bytes.
    stripe: u64,
    disk: DiskFacts,
    rules: Vec<Rule>,
    /// The share of the best throughput that each chunk retains, in simulation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    simulated: Vec<Simulated>,
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

/// The result of a chunk in simulation.
#[derive(Debug, Serialize)]
struct Simulated {
    chunk: u64,
    /// The smallest share of any load's best throughput.
    percent: f64,
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
    let level = args.level.level(members, rm2_m, copies);
    check_level(level, rm2_m, copies)?;
    // Refuse an impossible array before measuring anything.
    let _ = stripe(level, members, Bytes(4 << 10))?;
    let disk = args.disk.described()?;
    let load = Load {
        reads: args.reads.map(|per_cent| f64::from(per_cent) / 100.0),
        concurrency: args.concurrency,
        request: args.request,
    };
    let advice = advise::advise(level, args.members, &disk.drive, &load).map_err(|error| Misuse(error.to_string()))?;
    let trials = if args.simulate { simulated(level, args.members, &disk, &load)? } else { Vec::new() };
    let chosen = trial::best(&trials).map_or(advice.answers[0].chunk, |trial| trial.chunk);
    let Drive { positioning_ms, transfer_mb_s, track } = disk.drive;
    let advised = Advised {
        chunk: chosen.0,
        stripe: stripe(level, args.members, chosen)?.0,
        disk: DiskFacts {
            name: disk.name,
            positioning_ms,
            transfer_mb_s,
            performance_product: disk.drive.product().0,
            track: track.map(|track| track.0),
        },
        rules: advice.answers.into_iter().map(Rule::from).collect(),
        simulated: trials.iter().map(|trial| Simulated { chunk: trial.chunk.0, percent: trial.share }).collect(),
        remarks: advice.remarks,
    };
    if args.json { print_json(&advised) } else { show(&advised) }
}

/// Simulates every chunk on such disks.
fn simulated(level: Level, members: u8, disk: &Described, load: &Load) -> Result<Vec<trial::Trial>> {
    let spec = match &disk.spec {
        Some(spec) => spec.clone(),
        None => disk.drive.disk(disk.revolution_ms).map_err(|error| Misuse(error.to_string()))?,
    };
    Ok(trial::simulate(level, members, &spec, load, SEED)?)
}

fn show(advised: &Advised) -> Result<()> {
    let Advised { chunk, stripe, disk, rules, simulated, remarks } = advised;
    print(format_args!("--chunk {}K", chunk >> 10))?;
    print(format_args!("a stripe then has {} of data", size(*stripe)))?;
    let track = disk.track.map_or(String::new(), |track| format!("; a track holds {}", size(track)));
    print(format_args!(
        "{}: {:.2} ms to get anywhere and {:.1} MB/s from there, so {} go by meanwhile{track}",
        disk.name,
        disk.positioning_ms,
        disk.transfer_mb_s,
        size(disk.performance_product)
    ))?;
    for Simulated { chunk, percent } in simulated {
        print(format_args!("simulated: {} keeps {percent:.0} % of the best or more", size(*chunk)))?;
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
