//! `uraid simulate array`: an array that need not exist, on modelled disks, under a load.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use uraid_layout::{Bytes, MemberSet};
use uraid_model::input::{DESCRIPTION_MAX, TRACE_MAX, read_text};
use uraid_model::mech::trace::{self, Format, Pace, Replay};
use uraid_model::mech::{ArraySpec, CacheSpec, DiskSpec, Outcome, Spindles, State, StopRule, System, presets};
use uraid_model::workloads;
use uraid_serve::text::{duration, size};

use crate::level::{LevelName, PlacementArgs};
use crate::misuse::Misuse;
use crate::terminal::{print, print_json};
use crate::values::{bytes, members};

/// What an answer from the cache takes, in microseconds.
const HIT_US: f64 = 20.0;

/// Parity stripes that are rebuilt at a time, as in the engine by default.
pub(super) const REBUILT_AT_ONCE: u32 = 8;

/// Requests before those that count, of workloads.
const WARM_UP: u64 = 500;

/// Arguments of `uraid simulate array`.
#[derive(Debug, Args)]
#[command(after_help = "A disk's file is TOML:
  name = \"mine\"
  [mechanism.rotating]                                      or [mechanism.flash] with capacity_gb, read_us, write_us,
  cylinders = 267900                                        read_mb_s, write_mb_s, read_channels, write_channels
  tracks_per_cylinder = 8
  sectors_per_track = 1823
  revolution_ms = 8.33
  seek = { minimum_ms = 0.6, average_ms = 8.5, maximum_ms = 18.0 }

Examples:
  uraid simulate array --level 5 --members 6 --disk constellation-es --workload esg-oltp --cache 16M --log
  uraid simulate array --level rm2 --members 9 --disks mine.toml --trace usr_0.csv --paced
  uraid simulate array --level 5 --members 6 --disk constellation-es --workload oltp --rebuilding 2")]
pub(crate) struct ArrayArgs {
    /// RAID level
    #[arg(long, value_enum)]
    level: LevelName,
    /// Number of members
    #[arg(long, value_name = "N")]
    members: u8,
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    disk: DiskArgs,
    /// Workload; `uraid bench workloads` lists the names
    #[arg(long, value_name = "NAME", required_unless_present = "trace", conflicts_with = "trace")]
    workload: Option<String>,
    /// Recorded requests: of `uraid record`, fio's iolog, blkparse, SPC or MSR Cambridge
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Make a trace's requests when they were made, instead of 32 at a time
    #[arg(long, requires = "trace")]
    paced: bool,
    /// Write-back cache of this size
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    cache: Option<Bytes>,
    /// Log writes first, as arrays with parity do by default
    #[arg(long)]
    log: bool,
    /// Every write is flushed, and goes into the journal of pages, as small ones do by default
    #[arg(long, requires_all = ["cache", "log"])]
    flushed: bool,
    /// Members that are missing, such as 1,3
    #[arg(long, value_parser = members, default_value = "", hide_default_value = true, value_name = "SLOTS")]
    failed: MemberSet,
    /// Members that are being rebuilt
    #[arg(long, value_parser = members, default_value = "", hide_default_value = true, value_name = "SLOTS")]
    rebuilding: MemberSet,
    /// Disks turn together; else each at an angle of its own
    #[arg(long)]
    synchronised: bool,
    /// What workloads are drawn from
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The disks.
#[derive(Debug, Args)]
pub(super) struct DiskArgs {
    /// A known disk: see `uraid advise --help`
    #[arg(long, value_name = "NAME", required_unless_present = "disks", conflicts_with = "disks")]
    disk: Option<String>,
    /// A disk described in TOML
    #[arg(long, value_name = "FILE")]
    disks: Option<PathBuf>,
}

/// What a simulation has shown.
#[derive(Debug, Serialize)]
struct Shown {
    requests: u64,
    /// Clients' requests a second.
    iops: f64,
    /// In units of 10^6 bytes a second.
    mb_s: f64,
    mean_ms: f64,
    /// Half the width of the mean's 95 % interval.
    mean_half_width_ms: f64,
    /// The share of time that the disks worked.
    utilisation: f64,
    /// Operations of disks for each request.
    operations: f64,
    /// How long a whole rebuild takes at this rate, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    rebuild_s: Option<f64>,
}

/// Runs the command.
pub(super) fn run(args: &ArrayArgs) -> Result<()> {
    let array = args.array()?;
    let mut system = System::new(std::slice::from_ref(&array))?;
    let capacity = system.geometry(0).capacity();
    let stripes = system.geometry(0).stripes().0;
    // Requests that the disks served and that don't count.
    let mut uncounted = 0;
    let found = match (&args.trace, &args.workload) {
        (Some(path), _) => {
            let name = path.display();
            let text = read_text(path, TRACE_MAX).with_context(|| format!("can't read {name}"))?;
            let records = trace::parse(&text, Format::of(&text)).with_context(|| format!("can't read {name}"))?;
            ensure!(!records.is_empty(), "{name} has no reads or writes");
            let (pace, processes) =
                if args.paced { (Pace::Recorded, 0) } else { (Pace::AsFast, workloads::TRACE_DEPTH) };
            let mut replay = Replay::new(records, pace, capacity)?;
            system.run(&mut replay, processes, &StopRule::exactly(0, u64::MAX))?
        }
        (None, Some(name)) => {
            let (found, warm_up) = under(&mut system, name, args.cache, args.seed)?;
            uncounted = warm_up;
            found
        }
        (None, None) => bail!(Misuse("name a load: --workload NAME or --trace FILE".into())),
    };
    let shown = Shown::of(&found, uncounted, stripes);
    if args.json { print_json(&shown) } else { show(&array, &shown) }
}

/// Runs a workload on a system of one array. Gives what it has shown, and how many requests before did not count.
pub(super) fn under(system: &mut System, name: &str, cache: Option<Bytes>, seed: u64) -> Result<(Outcome, u64)> {
    let found = workloads::find(name, Bytes(4096)).map_err(|error| Misuse(error.to_string()))?;
    let [workload] = &found[..] else {
        let names: Vec<&str> = found.iter().map(|workload| workload.name.as_str()).collect();
        bail!(Misuse(format!("{name} is several: name one of {}", names.join(", "))));
    };
    let demand = workloads::Demand::Mix(workload.clone());
    let filling = cache.filter(|_| demand.writes()).map_or(0.0, |cache| 2.0 * cache.0 as f64);
    // A cache fills, and then writes out in bouts: some of these are to count.
    let filling = (filling / demand.mean_bytes()) as u64;
    let warm_up = WARM_UP + filling;
    let (mut source, depth) = demand.source(system.geometry(0).capacity(), seed)?;
    let default = StopRule::default();
    let requests_min = default.requests_min.max(filling);
    let rule = StopRule { warm_up, requests_min, requests_max: 50_000.max(2 * filling), ..default };
    Ok((system.run(&mut source, depth, &rule)?, warm_up))
}

/// How long a whole rebuild takes at the rate that was seen, in seconds; none if nothing was rebuilt.
pub(super) fn rebuild_s(found: &Outcome, stripes: u64) -> Option<f64> {
    let rebuilt = found.stripes_rebuilt as f64;
    (rebuilt > 0.0).then(|| found.end.0 as f64 / 1e9 * stripes as f64 / rebuilt)
}

impl DiskArgs {
    pub(super) fn disk(&self) -> Result<DiskSpec> {
        match (&self.disk, &self.disks) {
            (Some(name), _) => presets::named(name).ok_or_else(|| {
                Misuse(format!("no disk is known as '{name}'; choose one of {}", presets::NAMES.join(", "))).into()
            }),
            (None, Some(path)) => described(path),
            (None, None) => bail!(Misuse("name a disk: --disk NAME or --disks FILE".into())),
        }
    }
}

impl ArrayArgs {
    fn array(&self) -> Result<ArraySpec> {
        let (disk, chunk) = (self.disk.disk()?, self.placement.chunk);
        let level = self.placement.level(self.level, self.members)?;
        let array = ArraySpec::new(disk, self.members, level, chunk);
        let state = match (self.failed, self.rebuilding) {
            (MemberSet::EMPTY, MemberSet::EMPTY) => State::Healthy,
            (failed, MemberSet::EMPTY) => State::Degraded(failed),
            (MemberSet::EMPTY, members) => State::Rebuilding { members, at_once: REBUILT_AT_ONCE },
            _ => bail!(Misuse("members are either missing or being rebuilt: name --failed or --rebuilding".into())),
        };
        let last = usize::from(self.members);
        let named = self.failed.union(self.rebuilding);
        ensure!(
            named.iter().all(|member| member.index() < last),
            Misuse(format!("the members are 0 to {}", last.saturating_sub(1)))
        );
        let spindles = if self.synchronised { Spindles::Together } else { Spindles::Apart };
        let log = self.log.then_some(Bytes(64 << 20));
        let cache = self.cache.map(|size| CacheSpec { size, hit_us: HIT_US });
        let journal = self.flushed.then_some(Bytes(256 << 20));
        Ok(ArraySpec { state, spindles, log, cache, journal, ..array })
    }
}

fn described(path: &Path) -> Result<DiskSpec> {
    let text = read_text(path, DESCRIPTION_MAX).with_context(|| format!("can't read {}", path.display()))?;
    DiskSpec::from_toml(&text).with_context(|| format!("{} describes no disk", path.display()))
}

impl Shown {
    fn of(found: &Outcome, uncounted: u64, stripes: u64) -> Self {
        let answered = (uncounted + found.response.count).max(1) as f64;
        Self {
            requests: found.response.count,
            iops: found.requests_per_second(),
            mb_s: found.megabytes_per_second(),
            mean_ms: found.response_ms(),
            mean_half_width_ms: found.response.half_width / 1e6,
            utilisation: found.utilisation,
            operations: found.served as f64 / answered,
            rebuild_s: rebuild_s(found, stripes),
        }
    }
}

fn show(array: &ArraySpec, shown: &Shown) -> Result<()> {
    let ArraySpec { disk, disks, chunk, .. } = array;
    let level = array.level;
    print(format_args!("{level} of {disks} x {}, chunks of {}", disk.name, size(chunk.0)))?;
    let Shown { requests, iops, mb_s, mean_ms, mean_half_width_ms, utilisation, operations, rebuild_s } = shown;
    print(format_args!("{requests} requests: {iops:.0} a second, {mb_s:.1} MB/s"))?;
    let interval = match mean_half_width_ms {
        // One request has none.
        half if half.is_finite() => format!(", +/- {half:.3} ms at 95 %"),
        _ => String::new(),
    };
    print(format_args!("response time {mean_ms:.3} ms{interval}"))?;
    print(format_args!(
        "disks are busy {:.0} % of the time; {operations:.2} operations for each request",
        utilisation * 100.0
    ))?;
    match rebuild_s {
        Some(seconds) => print(format_args!("a whole rebuild beside this load takes {}", duration(*seconds as u64))),
        None => Ok(()),
    }
}
