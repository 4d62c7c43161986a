//! The temporary arrays of a measurement: what all of them take from the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf, absolute};
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use rustix::fs::statvfs;
use uraid_lab::machine::Machine;
use uraid_lab::plan::{Storage, size as unit};
use uraid_lab::run::{Observer, Progress, room};
use uraid_lab::{Arrays, Error, Rounds};
use uraid_layout::{Bytes, Geometry, Sectors, Spec};
use uraid_serve::signals;
use uraid_serve::text::{duration, quoted, size};

use crate::level::LevelName;
use crate::serve::args::CacheName;
use crate::terminal::StepBar;
use crate::values::{bytes, period};

/// The most members of an array.
const MEMBERS_MAX: i64 = 64;

/// Rounds in which medians get an interval.
const ROUNDS_MIN: usize = 6;

/// Superblocks, logs and checksums take less than this share of a member that is not tiny.
const METADATA_SHARE: u64 = 16;

/// What must stay free in a directory.
const RESERVE: u64 = 256 << 20;

/// Arguments that say which arrays are measured, and how precisely.
#[derive(Debug, Args)]
pub(super) struct ArraysArgs {
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
    /// Number of members in directories
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=MEMBERS_MAX), value_name = "N")]
    #[arg(conflicts_with = "members")]
    count: u8,
    /// Size of a member in a directory
    #[arg(long, value_parser = bytes, default_value = "256M", value_name = "SIZE", conflicts_with = "members")]
    size: Bytes,
    /// Directory for the results [default: the first --dir, or uraid-bench]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The most rounds; each measures everything once
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..=1000), value_name = "N")]
    #[arg(help_heading = "Precision")]
    rounds: u16,
    /// A measurement is done when its median is known within so many per cent; at least 6 rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=100), value_name = "PERCENT")]
    #[arg(help_heading = "Precision")]
    precision: u8,
    /// The server's cache; small, so that a measurement sees the disks
    #[arg(long, value_parser = bytes, default_value = "32M", value_name = "SIZE", help_heading = "Precision")]
    cache_size: Bytes,
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
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    if text == "0" || text == "0s" { Ok(0) } else { period(text).map(|period| period.as_secs()) }
}

/// A time that is not zero.
pub(super) fn positive_seconds(text: &str) -> Result<u64, String> {
    seconds(text).and_then(|seconds| if seconds > 0 { Ok(seconds) } else { Err("a measurement takes time".into()) })
}

impl ArraysArgs {
    /// The grid of arrays, all of which are possible.
    pub(super) fn arrays(&self) -> Result<Arrays> {
        let absolute = |paths: &[PathBuf]| paths.iter().map(absolute).collect::<std::io::Result<Vec<_>>>();
        let (place, members) = if self.members.is_empty() {
            (Storage::Directories { paths: absolute(&self.dirs)?, member_size: self.size.0 }, usize::from(self.count))
        } else {
            (Storage::Devices { paths: absolute(&self.members)? }, self.members.len())
        };
        // Refuse an impossible array before anything is made.
        let _ = self.geometries(members, Sectors(1 << 20))?;
        Ok(Arrays {
            levels: names(&self.levels),
            chunks: self.chunks.0.clone(),
            caches: names(&self.caches),
            place,
            members,
            cache_size: self.cache_size.0,
        })
    }

    /// The room of the smallest array of files, nearly: superblocks and logs take a little. None of devices.
    pub(super) fn smallest(&self) -> Result<Option<Bytes>> {
        if !self.members.is_empty() {
            return Ok(None);
        }
        let all = self.geometries(self.count.into(), self.size.whole_sectors())?;
        let smallest = all.iter().map(|geometry| geometry.capacity().bytes().0).min().unwrap_or(0);
        Ok(Some(Bytes(smallest - smallest / METADATA_SHARE)))
    }

    /// All arrays on so many members of a size.
    fn geometries(&self, members: usize, member_size: Sectors) -> Result<Vec<Geometry>> {
        let members = u8::try_from(members).ok().context("an array has at most 64 members")?;
        let chunks = &self.chunks.0;
        let specs = self.levels.iter().flat_map(|level| {
            let level = level.level(members, None, None);
            chunks.iter().map(move |&chunk| Spec { level, members, chunk: Bytes(chunk), member_size })
        });
        Ok(specs.map(Geometry::new).collect::<Result<_, _>>()?)
    }

    pub(super) fn rounds(&self) -> Rounds {
        let max = usize::from(self.rounds);
        Rounds { min: ROUNDS_MIN.min(max), max, precision: f64::from(self.precision) / 100.0 }
    }

    /// Makes the directories of members and results, and returns the latter.
    pub(super) fn make_directories(&self) -> Result<PathBuf> {
        let first = || self.dirs.first().cloned();
        let out = self.out.clone().or_else(first).unwrap_or_else(|| PathBuf::from("uraid-bench"));
        for directory in self.dirs.iter().chain([&out]) {
            fs::create_dir_all(directory)
                .with_context(|| format!("can't make the directory {}", directory.display()))?;
        }
        Ok(out)
    }

    /// Facts of this machine, its disks and this command, and some more.
    pub(super) fn machine(&self, mut more: BTreeMap<String, String>) -> Machine {
        let places = if self.dirs.is_empty() { &self.members } else { &self.dirs };
        let Machine(mut facts) = Machine::this(places);
        facts.append(&mut more);
        facts.insert("command".into(), std::env::args().map(|word| quoted(&word)).collect::<Vec<_>>().join(" "));
        Machine(facts)
    }
}

/// The names of values, each once.
fn names(values: &[impl ValueEnum]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let all = values.iter().filter_map(|value| Some(value.to_possible_value()?.get_name().to_owned()));
    all.filter(|name| seen.insert(name.clone())).collect()
}

/// Measures, shows how far it is, and says what to do if somebody stopped it.
pub(crate) fn observed(out: &Path, measure: impl FnOnce(&Path, &mut Observer<'_>) -> Result<(), Error>) -> Result<()> {
    let program = std::env::current_exe().context("can't find this program")?;
    let stop: &AtomicBool = signals::stop_flag()?;
    let mut bar = StepBar::new();
    let mut round = 1;
    let mut progress = |progress: &Progress| {
        let Progress { done, total, round: (now, rounds), what, left } = progress;
        round = *now;
        let left = duration(left.as_secs());
        bar.set(*done, *total, &format!("round {now} of at most {rounds}, at least {left} left: {what}"));
    };
    match measure(&program, &mut Observer { progress: &mut progress, stop }) {
        Err(Error::Interrupted) => {
            let name = out.display();
            bail!("interrupted in round {round}: what was measured is in {name}, the same command goes on")
        }
        other => Ok(other?),
    }
}

/// Refuses a run for which a directory has no room.
pub(crate) fn ensure_room(arrays: &Arrays) -> Result<()> {
    let Storage::Directories { paths, member_size } = &arrays.place else { return Ok(()) };
    let needed = room(arrays, *member_size, paths.len());
    for path in paths {
        let found = statvfs(path).with_context(|| format!("can't look at {}", path.display()))?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        ensure!(
            free >= needed + RESERVE,
            "{} has {} free, and the members of {} arrays need {}: use fewer chunks or levels, a smaller --size, or \
             another --dir",
            path.display(),
            size(free),
            arrays.levels.len() * arrays.chunks.len(),
            size(needed + RESERVE)
        );
    }
    Ok(())
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
