//! The simulations that all tables and figures of the paper are read from: throughput by striping unit, concurrency and
//! request size, of reads and of writes.

use std::collections::BTreeMap;

use uraid_layout::{Bytes, Level, Rotation, Sectors};

use crate::mech::disk::{Mechanism, Rotating};
use crate::mech::run::{run_all, seed_of};
use crate::mech::sizes::{Choices, Sizes};
use crate::mech::workload::Mix;
use crate::mech::{ArraySpec, Discipline, DiskSpec, Error, Phases, StopRule, System, Tape, WriteRule};

/// The first 300 MB of each disk are used: 300 * 1024 KB (3.1).
pub(crate) const USED: Sectors = Sectors(300 * 1024 * 2);

/// How many size distributions the paper has.
pub(crate) const SIZES: usize = 5;

/// What the paper leaves open. The default is what all reports are made with but the one that compares choices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Open {
    /// How sizes below 1 KB and the adjusted deviation are understood.
    pub sizes: Choices,
    /// What a write's second half waits for.
    pub phases: Phases,
    /// Whether cylinders are skewed, so that a transfer that crosses to the next one goes on after its seek; otherwise
    /// it waits for sector 0 to come around.
    pub skewed: bool,
    /// In which order disks serve.
    pub discipline: Discipline,
    /// How parity is brought up to date: by the fewest operations (2.2), or otherwise.
    pub rule: WriteRule,
    /// Whether every striping unit has requests of its own.
    pub independent: bool,
}

impl Default for Open {
    /// Parity stripes don't wait for each other; tracks and cylinders begin at one angle, and disks serve as it comes,
    /// as is the plainest reading of 3.1.
    fn default() -> Self {
        Self {
            sizes: Choices::default(),
            phases: Phases::Stripe,
            skewed: false,
            discipline: Discipline::Fcfs,
            rule: WriteRule::FewestOperations,
            independent: false,
        }
    }
}

/// A set of runs.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The disks, of which an array has only one kind.
    pub disks: Vec<DiskSpec>,
    /// How many of them an array has.
    pub members: u8,
    /// Striping units in KB, ascending.
    pub units: Vec<u64>,
    /// Numbers of processes, ascending.
    pub concurrencies: Vec<usize>,
    /// What is open.
    pub open: Open,
    /// When a run ends.
    pub stop: StopRule,
    /// What the workloads are drawn from.
    pub seed: u64,
}

/// Reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Direction {
    /// All requests read.
    Read,
    /// All requests write.
    Write,
}

/// A curve: all but the striping unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Workload {
    /// Reads or writes.
    pub direction: Direction,
    /// Which of the [`SIZES`] distributions.
    pub size: usize,
    /// How many processes.
    pub concurrency: usize,
}

/// Throughputs of one kind of disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// Striping units in KB, ascending.
    pub units: Vec<u64>,
    /// For each workload, MB/s by striping unit.
    pub curves: BTreeMap<Workload, Vec<f64>>,
    /// The disk operations that were simulated.
    pub operations: u64,
    /// Runs that ended before their interval was narrow enough.
    pub imprecise: u64,
}

/// A unit, a distribution and a direction: one tape.
#[derive(Clone, Copy, Debug)]
struct Point {
    unit: usize,
    size: usize,
    direction: Direction,
}

/// Runs a plan, and gives what it found for each disk.
///
/// The n-th request of a distribution and direction is the same in all runs, for all have an array of one size. So
/// curves differ from each other by what is varied, and less by chance; and what is planned for one disk and
/// concurrency serves for all.
///
/// # Errors
/// When an array of the plan can't be had.
pub(crate) fn measure(plan: &Plan) -> Result<Vec<Measured>, Error> {
    let sizes = Sizes::chen_lee(plan.open.sizes);
    let directions = [Direction::Read, Direction::Write];
    let mut points = Vec::new();
    for (direction, size) in directions.into_iter().flat_map(|direction| (0..SIZES).map(move |size| (direction, size)))
    {
        points.extend((0..plan.units.len()).map(|unit| Point { unit, size, direction }));
    }
    let found = run_all(&points, 0, |point| runs(plan, &sizes[point.size].1, *point))?;
    let mut measured = vec![Measured { units: plan.units.clone(), ..Measured::default() }; plan.disks.len()];
    for (point, runs) in points.iter().zip(found) {
        for Run { disk, concurrency, throughput, operations, is_precise } in runs {
            let into = &mut measured[disk];
            let workload = Workload { direction: point.direction, size: point.size, concurrency };
            into.curves.entry(workload).or_default().push(throughput);
            into.operations += operations;
            into.imprecise += u64::from(!is_precise);
        }
    }
    Ok(measured)
}

struct Run {
    disk: usize,
    concurrency: usize,
    throughput: f64,
    operations: u64,
    is_precise: bool,
}

/// All runs of one tape.
fn runs(plan: &Plan, sizes: &Sizes, point: Point) -> Result<Vec<Run>, Error> {
    let array = |disk: &DiskSpec| array(disk, plan.members, Bytes(plan.units[point.unit] << 10), &plan.open);
    let first = array(&plan.disks[0]);
    let reads = if point.direction == Direction::Read { 1.0 } else { 0.0 };
    let of_unit = if plan.open.independent { plan.units[point.unit] } else { 0 };
    let seed = seed_of(plan.seed, &[point.size as u64, u64::from(point.direction == Direction::Write), of_unit]);
    // Where the last stripe ends depends on the unit; requests end before that of the longest.
    let capacity = Sectors(first.geometry()?.capacity().0.min(USED.0 * u64::from(plan.members - 1) * 99 / 100));
    let mut tape = Tape::new(&first, Mix::uniform(sizes.clone(), reads, capacity, seed)?)?;
    let mut found = Vec::new();
    for (disk, spec) in plan.disks.iter().enumerate() {
        let mut system = System::new(&[array(spec)])?;
        for &concurrency in &plan.concurrencies {
            tape.rewind();
            let outcome = system.run(&mut tape, concurrency, &plan.stop)?;
            found.push(Run {
                disk,
                concurrency,
                throughput: outcome.megabytes_per_second(),
                operations: outcome.planned,
                is_precise: outcome.is_precise,
            });
        }
    }
    Ok(found)
}

/// The paper's array: RAID 5, left-symmetric, on the first 300 MB of its disks.
#[must_use]
pub(crate) fn array(disk: &DiskSpec, members: u8, unit: Bytes, open: &Open) -> ArraySpec {
    let level = Level::Raid5 { rotation: Rotation::LeftSymmetric };
    let mut disk = disk.clone();
    if let Mechanism::Rotating(Rotating { skewed, .. }) = &mut disk.mechanism {
        *skewed = open.skewed;
    }
    ArraySpec {
        used: Some(USED),
        phases: open.phases,
        discipline: open.discipline,
        write_rule: open.rule,
        ..ArraySpec::new(disk, members, level, unit)
    }
}
