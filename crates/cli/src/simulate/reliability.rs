//! `uraid simulate reliability`: how soon levels lose data, with rebuilds beside a load.

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use uraid_layout::{Bytes, MemberIndex, MemberSet};
use uraid_model::mech::{ArraySpec, Disk, DiskSpec, Spindles, State, System};
use uraid_model::reliability;
use uraid_serve::text::{duration, size};

use super::array::{DiskArgs, REBUILT_AT_ONCE, rebuild_s, under};
use crate::level::LevelName;
use crate::misuse::Misuse;
use crate::terminal::{print, print_json};
use crate::values::{bytes, period};

/// Arguments of `uraid simulate reliability`.
#[derive(Debug, Args)]
#[command(after_help = "Members fail independently, which real ones don't: compare levels by it, and keep backups.

Examples:
  uraid simulate reliability --level 5,10,6,rm2 --members 8 --disk constellation-es --workload oltp
  uraid simulate reliability --level 5,6 --members 12 --disks mine.toml --rebuild 30h --mttf 300000 --ure 1e-14")]
pub(crate) struct ReliabilityArgs {
    /// RAID levels
    #[arg(long = "level", value_enum, value_delimiter = ',', required = true, value_name = "LEVEL,...")]
    levels: Vec<LevelName>,
    /// Number of members
    #[arg(long, value_name = "N")]
    members: u8,
    #[command(flatten)]
    disk: DiskArgs,
    /// Chunk size
    #[arg(long, value_parser = bytes, default_value = "64K", value_name = "SIZE")]
    chunk: Bytes,
    /// Load beside which a member is rebuilt; `uraid bench workloads` lists the names
    #[arg(long, value_name = "NAME", required_unless_present = "rebuild", conflicts_with = "rebuild")]
    workload: Option<String>,
    /// How long a rebuild takes, instead of simulating it
    #[arg(long, value_parser = period, value_name = "TIME")]
    rebuild: Option<std::time::Duration>,
    /// Mean time to failure of a member, in hours; 1 % of them fail in a year by default
    #[arg(long, value_parser = hours, default_value = "876600", value_name = "HOURS")]
    mttf: f64,
    /// Unreadable bits among those that are read
    #[arg(long, value_parser = share, default_value = "1e-15", value_name = "SHARE")]
    ure: f64,
    /// The time for which the probability of losing data is shown
    #[arg(long, value_parser = years, default_value = "5", value_name = "YEARS")]
    years: f64,
    /// What the workload is drawn from
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A level.
#[derive(Debug, Serialize)]
struct Estimated {
    level: &'static str,
    /// The array's size over its members'.
    capacity: f64,
    /// In seconds.
    rebuild_s: f64,
    /// The probability that a rebuild without redundancy meets a sector that can't be read.
    unreadable: f64,
    /// Mean time to data loss, from failing members alone.
    mttdl_failures_years: f64,
    /// The same with sectors that can't be read.
    mttdl_years: f64,
    /// The probability of losing data in the time that was asked for.
    loss: f64,
}

fn within(text: &str, range: std::ops::RangeInclusive<f64>) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("'{text}' is not a number"))?;
    let (least, most) = (range.start(), range.end());
    if range.contains(&value) { Ok(value) } else { Err(format!("it has to be from {least} to {most}")) }
}

fn hours(text: &str) -> Result<f64, String> {
    within(text, 1.0..=1e9)
}

fn years(text: &str) -> Result<f64, String> {
    within(text, 0.01..=1000.0)
}

fn share(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("'{text}' is not a number"))?;
    if (0.0..1.0).contains(&value) { Ok(value) } else { Err("a share is from 0 to below 1, such as 1e-15".into()) }
}

/// Runs the command.
pub(super) fn run(args: &ReliabilityArgs) -> Result<()> {
    let disk = args.disk.disk()?;
    let arrays = args.levels.iter().map(|level| Ok((*level, args.array(*level, &disk)?)));
    let arrays = arrays.collect::<Result<Vec<_>>>()?;
    let found = arrays.iter().map(|(level, array)| args.estimate(*level, array)).collect::<Result<Vec<_>>>()?;
    if args.json { print_json(&found) } else { args.show(&disk, &found) }
}

impl ReliabilityArgs {
    /// The array, of which the first member is being rebuilt if the level has redundancy.
    fn array(&self, level: LevelName, disk: &DiskSpec) -> Result<ArraySpec> {
        ensure!(
            level != LevelName::Raid10 || self.members.is_multiple_of(2),
            Misuse("RAID 10 is estimated as pairs: an even number of members".into())
        );
        let named = level.level(self.members, None, None);
        let array = ArraySpec::new(disk.clone(), self.members, named, self.chunk);
        let _ = array.geometry()?;
        let members = MemberSet::EMPTY.with(MemberIndex(0));
        let state = match level {
            LevelName::Raid0 => State::Healthy,
            _ => State::Rebuilding { members, at_once: REBUILT_AT_ONCE },
        };
        Ok(ArraySpec { state, spindles: Spindles::Apart, ..array })
    }

    fn estimate(&self, level: LevelName, array: &ArraySpec) -> Result<Estimated> {
        let geometry = array.geometry()?;
        let rebuild_s = match (self.rebuild, &self.workload) {
            // Nothing can be rebuilt.
            _ if level == LevelName::Raid0 => 0.0,
            (Some(time), _) => time.as_secs_f64(),
            (None, Some(name)) => {
                let mut system = System::new(std::slice::from_ref(array))?;
                let (outcome, _) = under(&mut system, name, None, self.seed)?;
                rebuild_s(&outcome, geometry.stripes().0)
                    .context("nothing is rebuilt beside this load: name --rebuild TIME")?
            }
            (None, None) => bail!(Misuse("say how long a rebuild takes: --workload NAME or --rebuild TIME".into())),
        };
        let bytes = Disk::new(array.disk.clone())?.capacity().bytes().0 as f64;
        let members = u32::from(self.members);
        let (tolerance, sets) = match level {
            LevelName::Raid0 => (0, 1),
            LevelName::Raid1 => (members - 1, 1),
            LevelName::Raid10 => (1, members / 2),
            LevelName::Raid5 => (1, 1),
            LevelName::Raid6 | LevelName::Rm2 => (2, 1),
        };
        let model = reliability::Array { members, tolerance, sets, rebuild_h: (rebuild_s / 3600.0).max(1e-9) };
        let loss = model.loss(&reliability::Disk { mttf_h: self.mttf, unreadable: self.ure, bytes });
        Ok(Estimated {
            level: array.level.name(),
            capacity: geometry.capacity().bytes().0 as f64 / (bytes * f64::from(self.members)),
            rebuild_s,
            unreadable: if level == LevelName::Raid0 { 0.0 } else { loss.unreadable },
            mttdl_failures_years: loss.mttdl_failures_years(),
            mttdl_years: loss.mttdl_years(),
            loss: loss.within(self.years),
        })
    }

    fn show(&self, disk: &DiskSpec, found: &[Estimated]) -> Result<()> {
        let bytes = Disk::new(disk.clone())?.capacity().bytes().0;
        print(format_args!(
            "{} x {} of {}; a member fails after {:.0} hours on average, {:e} of the bits can't be read",
            self.members,
            disk.name,
            size(bytes),
            self.mttf,
            self.ure
        ))?;
        let columns = ["level", "room", "rebuild", "meets an unreadable sector", "years to data loss", "without those"];
        let [level, room, rebuild, unreadable, years, without] = columns;
        let lost = format!("lost in {} years", self.years);
        print(format_args!("{level:8} {room:>5} {rebuild:>12} {unreadable:>27} {years:>19} {without:>14} {lost:>17}"))?;
        for row in found {
            let rebuild = if row.rebuild_s > 0.0 { duration(row.rebuild_s as u64) } else { "none".into() };
            print(format_args!(
                "{:8} {:>3.0} % {rebuild:>12} {:>25.2} % {:>19} {:>14} {:>17}",
                row.level,
                row.capacity * 100.0,
                row.unreadable * 100.0,
                digits(row.mttdl_years),
                digits(row.mttdl_failures_years),
                percent(row.loss)
            ))?;
        }
        match &self.workload {
            Some(name) => print(format_args!(
                "rebuilds are of one member, beside {name}, with {REBUILT_AT_ONCE} stripes at a time"
            )),
            None => Ok(()),
        }
    }
}

/// Three digits, and powers of ten from a million on.
fn digits(value: f64) -> String {
    if value >= 1e6 {
        format!("{value:.2e}")
    } else if value >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

/// Per cent, however small.
fn percent(share: f64) -> String {
    if share >= 1e-4 { format!("{:.2} %", share * 100.0) } else { format!("{:.1e} %", share * 100.0) }
}
