//! The paper's grid: striping units by request sizes, shares of reads and numbers of processes.

use uraid_layout::{Bytes, Lba, Level, Placement, Sectors};

use super::super::study::{Study, throughputs};
use super::super::{Grid, Settings};
use crate::mech::run::run_all;
use crate::mech::sizes::{Choices, Shape, Sizes};
use crate::mech::workload::Mix;
use crate::mech::{ArraySpec, Error, Nanos, Request, Source, StopRule, System, WriteRule, presets};

/// An array as the paper compares them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject {
    pub(super) name: &'static str,
    pub(super) level: Level,
    pub(super) disks: u8,
    pub(super) write_rule: WriteRule,
}

/// Which numbers of processes count, as indexes into [`PROCESSES`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Concurrency {
    from: usize,
    to: usize,
}

/// The throughput of one array over the grid.
#[derive(Clone, Debug)]
pub(super) struct Found {
    units: Vec<u64>,
    /// By share of reads, then size, then unit, then number of processes.
    throughputs: Vec<Vec<f64>>,
}

/// The shares of reads.
pub(super) const READS: [f64; 4] = [1.0, 0.6, 0.3, 0.0];

const PROCESSES: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// In KB; 60 is two and a half tracks.
const UNITS: [u64; 16] = [2, 4, 6, 8, 10, 12, 16, 24, 32, 48, 60, 64, 96, 128, 256, 512];
/// With the best units of large writes and of small reads, which shares are of.
const UNITS_REDUCED: [u64; 6] = [2, 8, 16, 32, 64, 128];

const SIZES: [(&str, Shape, u64); 4] = [
    ("exp4KB", Shape::Exponential, 4),
    ("exp16KB", Shape::Exponential, 16),
    ("norm400KB", Shape::Normal, 400),
    ("norm1.5MB", Shape::Normal, 1500),
];

/// Of large writes: the size and how many processes write.
const LARGE: (Shape, Bytes) = (Shape::Normal, Bytes(400 << 10));
const LARGE_PROCESSES: usize = 8;
/// In halves of a KB.
const LARGE_UNITS: [u64; 16] = [4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 20, 24, 32, 48, 64];
const LARGE_UNITS_REDUCED: [u64; 4] = [4, 8, 16, 32];

impl Concurrency {
    /// One process.
    pub(super) const ONE: Self = Self { from: 0, to: 1 };
    /// The set that counts.
    pub(super) const ALL: Self = Self { from: 0, to: 6 };
    /// Others.
    pub(super) const SETS: [Self; 5] =
        [Self::ALL, Self { from: 0, to: 5 }, Self { from: 1, to: 5 }, Self { from: 2, to: 5 }, Self { from: 3, to: 6 }];

    pub(super) fn title(self) -> String {
        format!("{} to {}", PROCESSES[self.from], PROCESSES[self.to - 1])
    }
}

impl Found {
    fn at(&self, reads: usize, size: usize, unit: usize, processes: usize) -> f64 {
        self.throughputs[(reads * SIZES.len() + size) * self.units.len() + unit][processes]
    }

    /// Per cent of a workload's greatest throughput, for each unit.
    fn shares(&self, reads: usize, size: usize, processes: usize) -> Vec<f64> {
        let each = |unit| self.at(reads, size, unit, processes);
        let greatest = (0..self.units.len()).map(each).fold(0.0, f64::max);
        (0..self.units.len()).map(|unit| 100.0 * each(unit) / greatest).collect()
    }

    /// Every workload with a share of reads: its sizes, its processes and its shares by unit.
    pub(super) fn curves(&self, reads: usize) -> Vec<(&'static str, usize, Vec<f64>)> {
        let pairs = SIZES
            .iter()
            .enumerate()
            .flat_map(|size| (Concurrency::ALL.from..Concurrency::ALL.to).map(move |at| (size, at)));
        pairs.map(|((size, (name, ..)), at)| (*name, PROCESSES[at], self.shares(reads, size, at))).collect()
    }
}

/// Each unit's score for a share of reads: the least share of a workload's greatest throughput, in per cent.
pub(super) fn scores(found: &Found, reads: usize, concurrency: Concurrency) -> Vec<(u64, f64)> {
    let mut least = vec![f64::INFINITY; found.units.len()];
    for size in 0..SIZES.len() {
        for processes in concurrency.from..concurrency.to {
            let shares = found.shares(reads, size, processes);
            least.iter_mut().zip(shares).for_each(|(least, share)| *least = least.min(share));
        }
    }
    found.units.iter().copied().zip(least).collect()
}

/// The unit with the best score, of all or of the powers of two.
pub(super) fn best(scores: &[(u64, f64)], powers_of_two: bool) -> (u64, f64) {
    let counted = scores.iter().filter(|(unit, _)| !powers_of_two || unit.is_power_of_two());
    counted.copied().fold((0, 0.0), |best, score| if score.1 > best.1 { score } else { best })
}

/// Runs the grid for an array, with these shares of reads.
pub(super) fn search(subject: &Subject, reads: &[f64], settings: &Settings) -> Result<Found, Error> {
    let units = if settings.grid == Grid::Full { UNITS.to_vec() } else { UNITS_REDUCED.to_vec() };
    let mut studies = Vec::new();
    for (reads, (_, shape, kib)) in reads.iter().flat_map(|reads| SIZES.iter().map(move |size| (*reads, *size))) {
        let sizes = Sizes::new(shape, Bytes(kib << 10), Choices::default())?;
        for unit in &units {
            let array = ArraySpec {
                write_rule: subject.write_rule,
                ..ArraySpec::new(presets::lightning(), subject.disks, subject.level, Bytes(unit << 10))
            };
            studies.push(Study { array, sizes: sizes.clone(), reads, seed: settings.seed });
        }
    }
    let throughputs = throughputs(&studies, &PROCESSES, &rule(settings))?;
    Ok(Found { units, throughputs })
}

/// The throughput for each disk, in KB a second, of large writes to RM2 of each size, by unit in KB.
pub(super) fn large_writes(
    arrays: &[(u8, u8)],
    write_rule: WriteRule,
    settings: &Settings,
) -> Result<Vec<Vec<(f64, f64)>>, Error> {
    let halves = if settings.grid == Grid::Full { LARGE_UNITS.to_vec() } else { LARGE_UNITS_REDUCED.to_vec() };
    let sizes = Sizes::new(LARGE.0, LARGE.1, Choices::default())?;
    let study = |&(disks, height): &(u8, u8), half: &u64| {
        let level = Level::Rm2 { height, placement: Placement::Adjacent };
        let array = ArraySpec { write_rule, ..ArraySpec::new(presets::lightning(), disks, level, Bytes(half * 512)) };
        Study { array, sizes: sizes.clone(), reads: 0.0, seed: settings.seed }
    };
    let studies: Vec<Study> = arrays
        .iter()
        .flat_map(|array| halves.iter().map(move |half| (array, half)))
        .map(|(array, half)| study(array, half))
        .collect();
    let found = throughputs(&studies, &[LARGE_PROCESSES], &rule(settings))?;
    let curve = |((disks, _), each): (&(u8, u8), &[Vec<f64>])| {
        let points = halves
            .iter()
            .zip(each)
            .map(|(half, found)| (*half as f64 / 2.0, found[0] * 1e6 / 1024.0 / f64::from(*disks)));
        points.collect()
    };
    Ok(arrays.iter().zip(found.chunks(halves.len())).map(curve).collect())
}

/// Of how many seeds a reading is, as additions to the settings' one.
pub(super) const SEEDS: [u64; 3] = [0, 1, 2];

/// As [`search`], with one process whose writes take one parity stripe after the other and read all that they write.
pub(super) fn in_turn(subject: &Subject, reads: &[f64], settings: &Settings) -> Result<Found, Error> {
    let units = if settings.grid == Grid::Full { UNITS.to_vec() } else { UNITS_REDUCED.to_vec() };
    let mut points = Vec::new();
    for (reads, (_, shape, kib)) in reads.iter().flat_map(|reads| SIZES.iter().map(move |size| (*reads, *size))) {
        let sizes = Sizes::new(shape, Bytes(kib << 10), Choices::default())?;
        points.extend(units.iter().map(|unit| (Bytes(unit << 10), sizes.clone(), reads)));
    }
    let throughputs = run_all(&points, 0, |(unit, sizes, reads)| {
        Ok(vec![throughput_in_turn(subject.disks, subject.level, *unit, sizes, *reads, settings)?])
    })?;
    Ok(Found { units, throughputs })
}

/// As [`large_writes`], with one process whose writes take one parity stripe after the other and read all that they
/// write.
pub(super) fn large_writes_in_turn(arrays: &[(u8, u8)], settings: &Settings) -> Result<Vec<Vec<(f64, f64)>>, Error> {
    let halves = if settings.grid == Grid::Full { LARGE_UNITS.to_vec() } else { LARGE_UNITS_REDUCED.to_vec() };
    let sizes = Sizes::new(LARGE.0, LARGE.1, Choices::default())?;
    let points: Vec<_> = arrays.iter().flat_map(|array| halves.iter().map(move |half| (*array, *half))).collect();
    let found = run_all(&points, 0, |&((disks, height), half)| {
        let level = Level::Rm2 { height, placement: Placement::Adjacent };
        let mb_s = throughput_in_turn(disks, level, Bytes(half * 512), &sizes, 0.0, settings)?;
        Ok((half as f64 / 2.0, mb_s * 1e6 / 1024.0 / f64::from(disks)))
    })?;
    Ok(found.chunks(halves.len()).map(<[_]>::to_vec).collect())
}

fn throughput_in_turn(
    disks: u8,
    level: Level,
    unit: Bytes,
    sizes: &Sizes,
    reads: f64,
    settings: &Settings,
) -> Result<f64, Error> {
    let write_rule = WriteRule::ReadEverything;
    let array = ArraySpec { write_rule, ..ArraySpec::new(presets::lightning(), disks, level, unit) };
    let mut system = System::new(&[array])?;
    let geometry = system.geometry(0);
    let stripe = geometry.stripe_sectors().0;
    let mix = Mix::uniform(sizes.clone(), reads, geometry.capacity(), settings.seed)?;
    let mut source = InTurn { mix, stripe, rest: None };
    // Pieces are counted, of which a request has several.
    Ok(system.run(&mut source, 1, &rule(settings))?.megabytes_per_second())
}

/// Requests of one process, of which the writes are cut where parity stripes end.
struct InTurn {
    mix: Mix,
    /// Sectors of a parity stripe.
    stripe: u64,
    rest: Option<Request>,
}

impl Source for InTurn {
    fn next(&mut self, process: usize, now: Nanos) -> Option<Request> {
        let request = self.rest.take().or_else(|| self.mix.next(process, now))?;
        let here = self.stripe - request.lba.0 % self.stripe;
        if !request.is_write || request.len.0 <= here {
            return Some(request);
        }
        let (lba, len) = (Lba(request.lba.0 + here), Sectors(request.len.0 - here));
        self.rest = Some(Request { lba, len, ..request });
        Some(Request { len: Sectors(here), ..request })
    }
}

fn rule(settings: &Settings) -> StopRule {
    let requests_max = if settings.grid == Grid::Full { 10_000 } else { 2000 };
    StopRule { warm_up: 100, requests_min: 1000, requests_max, ..StopRule::default() }
}

/// The unit with the greatest throughput.
pub(super) fn greatest(curve: &[(f64, f64)]) -> f64 {
    curve.iter().copied().fold((0.0, 0.0), |best, point| if point.1 > best.1 { point } else { best }).0
}
