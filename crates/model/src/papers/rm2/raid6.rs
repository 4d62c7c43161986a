//! RM2 beside RAID 6 of the same disks and capacity, which the paper does without: it says only that codes such as
//! Reed-Solomon need disks of their own for what is redundant, and that those are a bottleneck.

use uraid_layout::{Bytes, Level, Placement, Rotation};

use super::super::report::{Cell, Report, Table};
use super::super::study::{Study, throughputs};
use super::super::{Grid, Settings};
use super::grid::{SEEDS, greatest};
use crate::figure::{Axis, Figure, Series};
use crate::mech::sizes::{Choices, Shape, Sizes};
use crate::mech::stats::estimate;
use crate::mech::{ArraySpec, Error, StopRule, presets};

/// Disks, and RM2's M with which as much is left for data as on RAID 6: (M - 1) / M = (N - 2) / N.
const ARRAYS: [(u8, u8); 2] = [(6, 3), (10, 5)];

/// In KB.
const UNITS: [u64; 7] = [2, 4, 8, 16, 32, 64, 128];

/// Name, distribution, mean in KB, share of reads.
const LOADS: [(&str, Shape, u64, f64); 8] = [
    ("small reads, exp4KB", Shape::Exponential, 4, 1.0),
    ("small mix, exp4KB, 70 % reads", Shape::Exponential, 4, 0.7),
    ("small writes, exp4KB", Shape::Exponential, 4, 0.0),
    ("large reads, norm400KB", Shape::Normal, 400, 1.0),
    ("large mix, norm400KB, 70 % reads", Shape::Normal, 400, 0.7),
    ("large writes, norm400KB", Shape::Normal, 400, 0.0),
    ("larger reads, norm1.5MB", Shape::Normal, 1500, 1.0),
    ("larger writes, norm1.5MB", Shape::Normal, 1500, 0.0),
];
const SMALL_WRITES: usize = 2;

const PROCESSES: usize = 16;

const CONFIDENCE: f64 = 0.95;

/// The codes that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Rm2,
    Rotated,
    Dedicated,
}

const CODES: [Code; 3] = [Code::Rm2, Code::Rotated, Code::Dedicated];

impl Code {
    fn array(self, disks: u8, height: u8, unit_kib: u64) -> ArraySpec {
        let (disk, unit) = (presets::lightning(), Bytes(unit_kib << 10));
        match self {
            Self::Rm2 => ArraySpec::new(disk, disks, Level::Rm2 { height, placement: Placement::Adjacent }, unit),
            Self::Rotated => ArraySpec::new(disk, disks, Level::Raid6 { rotation: Rotation::LeftSymmetric }, unit),
            Self::Dedicated => ArraySpec::dedicated_raid6(disk, disks, unit),
        }
    }
}

/// Throughputs in 10^6 bytes a second, by array, code, load, seed and unit.
struct Found {
    units: Vec<u64>,
    values: Vec<f64>,
}

impl Found {
    fn measure(settings: &Settings) -> Result<Self, Error> {
        let full = settings.grid == Grid::Full;
        let units: Vec<u64> = if full { UNITS.to_vec() } else { UNITS.iter().copied().step_by(2).collect() };
        let mut studies = Vec::new();
        for (disks, height) in ARRAYS {
            for code in CODES {
                for (_, shape, kib, reads) in LOADS {
                    let sizes = Sizes::new(shape, Bytes(kib << 10), Choices::default())?;
                    for more in SEEDS {
                        let seed = settings.seed + more;
                        let study = |unit: &u64| {
                            let array = code.array(disks, height, *unit);
                            Study { array, sizes: sizes.clone(), reads, seed }
                        };
                        studies.extend(units.iter().map(study));
                    }
                }
            }
        }
        let requests_max = if full { 5000 } else { 1000 };
        let rule = StopRule { warm_up: 100, requests_min: 500, requests_max, ..StopRule::default() };
        let values = throughputs(&studies, &[PROCESSES], &rule)?.into_iter().map(|found| found[0]).collect();
        Ok(Self { units, values })
    }

    fn at(&self, array: usize, code: usize, load: usize, seed: usize) -> &[f64] {
        let place = ((array * CODES.len() + code) * LOADS.len() + load) * SEEDS.len() + seed;
        &self.values[place * self.units.len()..][..self.units.len()]
    }

    /// The throughput at the best unit, for each seed.
    fn best(&self, array: usize, code: usize, load: usize) -> Vec<f64> {
        let best = |seed| self.at(array, code, load, seed).iter().copied().fold(0.0, f64::max);
        (0..SEEDS.len()).map(best).collect()
    }

    /// The mean over the seeds, by unit.
    fn curve(&self, array: usize, code: usize, load: usize) -> Vec<(f64, f64)> {
        let mean = |unit: usize| {
            (0..SEEDS.len()).map(|seed| self.at(array, code, load, seed)[unit]).sum::<f64>() / SEEDS.len() as f64
        };
        self.units.iter().enumerate().map(|(index, unit)| (*unit as f64, mean(index))).collect()
    }
}

/// A mean with the half width of its interval.
fn mean(values: &[f64]) -> String {
    let found = estimate(values, CONFIDENCE);
    format!("{:.2} ± {:.2}", found.mean, found.half_width)
}

pub(super) fn raid6(settings: &Settings) -> Report {
    let mut report = Report::new("rm2 raid6", "RM2 beside RAID 6 (P+Q) of equal capacity");
    let found = match Found::measure(settings) {
        Ok(found) => found,
        Err(error) => {
            report.miss(format!("the simulation could not be run: {error}"));
            return report;
        }
    };
    for (array, (disks, height)) in ARRAYS.iter().enumerate() {
        let title = format!("{disks} disks, M = {height}: throughput at the best unit, MB/s");
        let columns = ["RM2", "RAID 6, rotated", "RM2 in that", "RAID 6, P and Q on disks of their own", "RM2 in that"];
        let mut table = Table::new(title, "load", columns);
        for (load, (name, ..)) in LOADS.iter().enumerate() {
            let [rm2, rotated, dedicated] = [0, 1, 2].map(|code| found.best(array, code, load));
            let ratio = |other: &[f64]| {
                let each: Vec<f64> = rm2.iter().zip(other).map(|(rm2, other)| rm2 / other).collect();
                Cell::text(mean(&each))
            };
            let text = |values: &[f64], code| {
                let unit = greatest(&found.curve(array, code, load));
                Cell::text(format!("{} at {unit} KB", mean(values)))
            };
            let cells = vec![text(&rm2, 0), text(&rotated, 1), ratio(&rotated), text(&dedicated, 2), ratio(&dedicated)];
            table.row(*name, cells);
        }
        report.tables.push(table);
        let [rm2, dedicated] = [0, 2].map(|code| found.best(array, code, SMALL_WRITES));
        let gains: Vec<f64> = rm2.iter().zip(&dedicated).map(|(rm2, other)| rm2 / other).collect();
        report.check(
            format!("disks of parity alone are a bottleneck of small writes, which RM2 does without; {disks} disks"),
            "RM2 is faster (section 1)",
            format!("{} times as fast", mean(&gains)),
            gains.iter().all(|gain| *gain > 1.0),
        );
        let name = format!("rm2-raid6-{disks}");
        let title = format!("{disks} disks: writes by striping unit, RM2 and RAID 6");
        let series = [2, 5].into_iter().flat_map(|load| {
            let label = LOADS[load].0;
            let line = |name: &str, code| Series::line(format!("{name}, {label}"), found.curve(array, code, load));
            [line("RM2", 0), line("RAID 6", 1)]
        });
        let axes = (Axis::log2("striping unit, KB"), Axis::linear("MB/s"));
        report.figures.push(Figure::new(&name, &title, axes.0, axes.1, series.collect()));
    }
    if report.failed().next().is_some() {
        report.miss(
            "Of 6 disks 4 have data. To write a unit, a reconstruct write reads the three others: as many operations \
             as a read-modify-write of the unit and both parities. The disks of parity are then only written, once \
             for each request, and RM2 has no such way. Of 10 disks a read-modify-write is cheaper, and takes each of \
             them twice.",
        );
    }
    report.method(format!(
        "Not in the paper, which has no RAID 6. IBM 0661 disks, {PROCESSES} processes, fewest operations, units of 2 \
         to 128 KB; 95 % intervals over {} seeds. RAID 6 is modelled by what it reads and writes: P and Q cover all \
         data of a stripe.",
        SEEDS.len()
    ));
    report
}
