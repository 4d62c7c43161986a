//! `uraid bench chunk`: the laboratory on temporary arrays.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf, absolute};
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use rustix::fs::statvfs;
use uraid_lab::machine::Machine;
use uraid_lab::plan::{LoadId, Place, size as unit};
use uraid_lab::run::{self, Observer, Progress, room};
use uraid_lab::{Config, Driver, Error, Load, Plan, Results, Summary, fio, load, report};
use uraid_layout::{Bytes, Geometry, Sectors, Spec};

use crate::args::{CacheName, LevelName, Misuse, bytes, period};
use crate::signals;
use crate::terminal::{StepBar, duration, print, quoted, size};

/// The most members of an array.
const MEMBERS_MAX: i64 = 64;

/// Rounds in which medians get an interval.
const ROUNDS_MIN: usize = 6;

/// What must stay free in a directory.
const RESERVE: u64 = 256 << 20;

/// Arguments of `uraid bench chunk`.
#[derive(Debug, Args)]
#[command(after_help = "The results are in --out: report.html, report.md, summary.json, results.json, figures and \
fio's job files. A run that was interrupted goes on if it is started again in the same way.

Examples:
  uraid bench chunk --dir lab --chunks 16K,64K,256K --workload esg-oltp
  uraid bench chunk --dir /mnt/a --dir /mnt/b --dir /mnt/c --level 5,rm2 --count 6 --workload esg
  uraid bench chunk --members /dev/sd[b-f] --cache writeback,none --workload vm --workload sequential
  uraid bench chunk --dir lab --driver native --workload trace:monday.iolog")]
pub(crate) struct ChunkArgs {
    /// Directory for the temporary members, made if it is missing; repeatable: members are spread over them
    #[arg(long = "dir", value_name = "DIR", required_unless_present = "members", conflicts_with = "members")]
    dirs: Vec<PathBuf>,
    /// Blank devices as members: what they hold is overwritten, and they are blank again at the end
    #[arg(long, value_name = "DEVICE", num_args = 1..)]
    members: Vec<PathBuf>,
    /// RAID levels
    #[arg(long = "level", value_enum, value_delimiter = ',', default_value = "5", value_name = "LEVEL,...")]
    levels: Vec<LevelName>,
    /// Chunk sizes: some, or all powers of two from one to another
    #[arg(long, value_parser = chunks, default_value = "4K..1M", value_name = "SIZE,...|FROM..TO")]
    chunks: Chunks,
    /// Cache modes
    #[arg(long = "cache", value_enum, value_delimiter = ',', default_value = "writeback", value_name = "MODE,...")]
    caches: Vec<CacheName>,
    /// Load; repeatable. `uraid bench workloads` lists the names
    #[arg(long = "workload", value_name = "NAME|fio:FILE|trace:FILE", default_value = "oltp")]
    workloads: Vec<String>,
    /// Number of members in directories
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=MEMBERS_MAX), value_name = "N")]
    #[arg(conflicts_with = "members")]
    count: u8,
    /// Size of a member in a directory
    #[arg(long, value_parser = bytes, default_value = "256M", value_name = "SIZE", conflicts_with = "members")]
    size: Bytes,
    /// What generates the load
    #[arg(long, value_enum, default_value_t, value_name = "DRIVER")]
    driver: DriverName,
    /// Directory for the results [default: the first --dir, or uraid-bench]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Time of a measurement
    #[arg(long, value_parser = positive_seconds, default_value = "5s", value_name = "TIME", help_heading = "Precision")]
    time: u64,
    /// Time before it, which does not count
    #[arg(long, value_parser = seconds, default_value = "2s", value_name = "TIME", help_heading = "Precision")]
    warm_up: u64,
    /// The most rounds; each measures everything once
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..=1000), value_name = "N")]
    #[arg(help_heading = "Precision")]
    rounds: u16,
    /// A load is done when its medians are known within so many per cent; at least 6 rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=100), value_name = "PERCENT")]
    #[arg(help_heading = "Precision")]
    precision: u8,
    /// The server's cache; small, so that a measurement sees the disks
    #[arg(long, value_parser = bytes, default_value = "32M", value_name = "SIZE", help_heading = "Precision")]
    cache_size: Bytes,
    /// Random requests begin at multiples of this
    #[arg(long, value_parser = bytes, default_value = "4K", value_name = "SIZE", help_heading = "Precision")]
    align: Bytes,
}

/// What generates requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum DriverName {
    /// fio with its nbd engine
    #[default]
    Fio,
    /// The built-in generator
    Native,
}

/// Chunk sizes.
#[derive(Clone, Debug)]
struct Chunks(Vec<u64>);

const CHUNK_MIN: u64 = 4 << 10;
const CHUNK_MAX: u64 = 1 << 20;

/// `16K,64K` or `4K..1M`.
fn chunks(text: &str) -> Result<Chunks, String> {
    let mut found = match text.split_once("..") {
        Some((from, to)) => {
            let (from, to) = (bytes(from)?.0.max(1), bytes(to)?.0);
            std::iter::successors(Some(from), |chunk| chunk.checked_mul(2)).take_while(|&chunk| chunk <= to).collect()
        }
        None => text.split(',').map(|chunk| bytes(chunk).map(|bytes| bytes.0)).collect::<Result<Vec<_>, _>>()?,
    };
    found.sort_unstable();
    found.dedup();
    let is_possible = |chunk: &u64| chunk.is_multiple_of(CHUNK_MIN) && (CHUNK_MIN..=CHUNK_MAX).contains(chunk);
    match found.iter().find(|chunk| !is_possible(chunk)) {
        _ if found.is_empty() => Err(format!("'{text}' has no chunk size")),
        Some(chunk) => Err(format!("{} is not a chunk size: they are multiples of 4K up to 1M", unit(*chunk))),
        None => Ok(Chunks(found)),
    }
}

/// A time such as 5s or 2m; zero too.
fn seconds(text: &str) -> Result<u64, String> {
    if text == "0" || text == "0s" { Ok(0) } else { period(text).map(|period| period.as_secs()) }
}

/// A time that is not zero.
fn positive_seconds(text: &str) -> Result<u64, String> {
    seconds(text).and_then(|seconds| if seconds > 0 { Ok(seconds) } else { Err("a measurement takes time".into()) })
}

/// Runs the command.
pub(crate) fn run(args: &ChunkArgs) -> Result<()> {
    let loads = loads(args)?;
    let driver = match args.driver {
        DriverName::Fio => Driver::Fio,
        DriverName::Native => Driver::Native,
    };
    let mut facts = BTreeMap::new();
    if driver == Driver::Fio {
        facts.insert("fio".to_owned(), fio::version()?);
    }
    let out = out(args);
    for directory in args.dirs.iter().chain([&out]) {
        fs::create_dir_all(directory).with_context(|| format!("can't make the directory {}", directory.display()))?;
    }
    let plan = plan(args, &loads, driver)?;
    let places = if args.dirs.is_empty() { &args.members } else { &args.dirs };
    let Machine(mut machine) = Machine::this(places);
    machine.append(&mut facts);
    machine.insert("command".into(), std::env::args().map(|word| quoted(&word)).collect::<Vec<_>>().join(" "));
    let mut results = Results::resume(&out, plan, Machine(machine))?;
    if results.observations.is_empty() {
        ensure_room(&results.plan)?;
    }
    let measured = measure(&mut results, &loads, &out);
    if let Err(Error::Interrupted) = measured {
        let rounds = results.observations.iter().map(|it| it.round).max().unwrap_or(0);
        let name = out.display();
        bail!("interrupted in round {}: what was measured is in {name}, the same command goes on", rounds + 1);
    }
    measured?;
    let summary = Summary::of(&results).context("nothing was measured")?;
    let files = report::write(&results, &summary, &out)?;
    show(&results, &summary)?;
    let page = files.iter().find(|name| name.ends_with("html")).context("a report has a page")?;
    print(format_args!("the report is {}", out.join(page).display()))
}

fn measure(results: &mut Results, loads: &[Load], out: &Path) -> Result<(), Error> {
    let program =
        std::env::current_exe().map_err(|source| Error::Io { action: "find", path: "uraid".into(), source })?;
    let stop: &AtomicBool = signals::stop_flag().map_err(|source| Error::Refused(format!("{source:#}")))?;
    let mut bar = StepBar::new();
    let mut progress = |progress: &Progress| {
        let Progress { done, total, round: (round, rounds), what, left } = progress;
        let left = duration(left.as_secs());
        bar.set(*done, *total, &format!("round {round} of at most {rounds}, at least {left} left: {what}"));
    };
    run::run(results, loads, &program, out, &mut Observer { progress: &mut progress, stop })
}

fn loads(args: &ChunkArgs) -> Result<Vec<Load>> {
    ensure!(
        args.align.0.is_power_of_two() && args.align.0 >= 512,
        Misuse("--align: a power of two, from 512 on".into())
    );
    let mut loads: Vec<Load> = Vec::new();
    for spec in &args.workloads {
        let found = load::find(spec, args.align).map_err(|error| match error {
            Error::Workload(unknown) => anyhow::Error::new(Misuse(unknown.to_string())),
            other => other.into(),
        })?;
        for load in found {
            ensure!(
                loads.iter().all(|other| other.name != load.name),
                Misuse(format!("two loads are called {}: name each once", load.name))
            );
            loads.push(load);
        }
    }
    let needs_fio = |load: &&Load| matches!(load.kind, load::Kind::Job(_));
    if let (Some(load), DriverName::Native) = (loads.iter().find(needs_fio), args.driver) {
        bail!(Misuse(format!("{} is a job file: it needs --driver fio", load.name)));
    }
    Ok(loads)
}

fn out(args: &ChunkArgs) -> PathBuf {
    let first = || args.dirs.first().cloned();
    args.out.clone().or_else(first).unwrap_or_else(|| PathBuf::from("uraid-bench"))
}

fn plan(args: &ChunkArgs, loads: &[Load], driver: Driver) -> Result<Plan> {
    let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
        value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    };
    let mut levels: Vec<String> = args.levels.iter().map(|level| name(&|| level.to_possible_value())).collect();
    let mut caches: Vec<String> = args.caches.iter().map(|cache| name(&|| cache.to_possible_value())).collect();
    for list in [&mut levels, &mut caches] {
        let mut seen = std::collections::BTreeSet::new();
        list.retain(|item| seen.insert(item.clone()));
    }
    let absolute = |paths: &[PathBuf]| paths.iter().map(absolute).collect::<std::io::Result<Vec<_>>>();
    let (place, members) = if args.members.is_empty() {
        (Place::Directories { paths: absolute(&args.dirs)?, member_size: args.size.0 }, usize::from(args.count))
    } else {
        (Place::Devices { paths: absolute(&args.members)? }, args.members.len())
    };
    let count = u8::try_from(members).ok().context("an array has at most 64 members")?;
    for level in &args.levels {
        for &chunk in &args.chunks.0 {
            // Refuse an impossible array before anything is made.
            let spec = Spec {
                level: level.level(count, None, None),
                members: count,
                chunk: Bytes(chunk),
                member_size: Sectors(1 << 20),
            };
            let _ = Geometry::new(spec)?;
        }
    }
    let id = |load: &Load| LoadId { name: load.name.clone(), title: load.title.clone(), digest: load.digest };
    let rounds_max = usize::from(args.rounds);
    Ok(Plan {
        levels,
        chunks: args.chunks.0.clone(),
        caches,
        loads: loads.iter().map(id).collect(),
        driver,
        place,
        members,
        cache_size: args.cache_size.0,
        align: args.align.0,
        warm_up_s: args.warm_up,
        seconds: args.time,
        rounds_min: ROUNDS_MIN.min(rounds_max),
        rounds_max,
        precision: f64::from(args.precision) / 100.0,
    })
}

/// Refuses a run for which a directory has no room.
fn ensure_room(plan: &Plan) -> Result<()> {
    let Place::Directories { paths, member_size } = &plan.place else { return Ok(()) };
    let needed = room(plan, *member_size, paths.len());
    for path in paths {
        let found = statvfs(path).with_context(|| format!("can't look at {}", path.display()))?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        ensure!(
            free >= needed + RESERVE,
            "{} has {} free, and the members of {} arrays need {}: use fewer chunks or levels, a smaller --size, or \
             another --dir",
            path.display(),
            size(free),
            plan.levels.len() * plan.chunks.len(),
            size(needed + RESERVE)
        );
    }
    Ok(())
}

/// Prints the shares of each level and cache mode, and the recommendations.
fn show(results: &Results, summary: &Summary) -> Result<()> {
    for group in &summary.groups {
        print(format_args!("{}: the smallest share of any load's best throughput", group.title))?;
        for score in &group.choice.scores {
            let Config { chunk, .. } = score.config;
            let percent = |share: f64| share * 100.0;
            print(format_args!(
                "  {:>5}  {:3.0} % ({:.0} to {:.0}), {}",
                unit(chunk),
                percent(score.least),
                percent(score.low),
                percent(score.high),
                score.worst
            ))?;
        }
    }
    summary.sentences(&results.plan).iter().try_for_each(|sentence| print(format_args!("{sentence}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes_are_a_list_or_a_range() {
        let found = |text: &str| chunks(text).map(|Chunks(found)| found.into_iter().map(unit).collect::<Vec<_>>());
        assert_eq!(found("64K,16K,64K"), Ok(vec!["16K".to_owned(), "64K".to_owned()]));
        assert_eq!(found("4K..1M").map(|found| found.len()), Ok(9));
        for wrong in ["", "2K", "2M", "6K", "64K..16K", "4K..2M", "x", "0", "1..4K"] {
            assert!(found(wrong).is_err(), "{wrong}");
        }
    }
}
