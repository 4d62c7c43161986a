//! What the paper makes of throughputs: shares of the maximum, the unit that guarantees most, and the coefficients S
//! and Z.
//!
//! The best units are measured ones. The ends of ranges are finer than the grid: between measured units curves are
//! straight over the logarithm of the unit.

use super::experiment::{Direction, Measured, Workload};

/// Striping units to look at between two measured ones.
const STEPS: usize = 24;

/// A striping unit and what it guarantees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Best {
    /// In KB.
    pub unit: f64,
    /// The lowest share of maximum throughput of all workloads that are considered.
    pub guarantee: f64,
}

/// The striping units of a concurrency that are good enough, in KB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Range {
    /// How many processes.
    pub concurrency: usize,
    /// The smallest.
    pub from: f64,
    /// The largest.
    pub to: f64,
    /// The unit that guarantees most.
    pub best: Best,
}

/// The lowest share of maximum throughput of some workloads, by striping unit in KB.
#[must_use]
pub(crate) fn scores(measured: &Measured, considered: impl Fn(&Workload) -> bool) -> Vec<(f64, f64)> {
    let units: Vec<f64> = measured.units.iter().map(|&unit| unit as f64).collect();
    let mut scores = fine(&units);
    for (_, curve) in measured.curves.iter().filter(|(workload, _)| considered(workload)) {
        let most = curve.iter().copied().fold(0.0, f64::max);
        for (index, (_, score)) in scores.iter_mut().enumerate() {
            let (at, step) = (index / STEPS, (index % STEPS) as f64 / STEPS as f64);
            let next = curve[(at + 1).min(curve.len() - 1)];
            *score = f64::min(*score, (curve[at] * (1.0 - step) + next * step) / most);
        }
    }
    scores
}

/// The measured units and [`STEPS`] - 1 between each two of them, with a score of one.
fn fine(units: &[f64]) -> Vec<(f64, f64)> {
    let mut all = Vec::new();
    for pair in units.windows(2) {
        let step = |step| pair[0] * (pair[1] / pair[0]).powf(step as f64 / STEPS as f64);
        all.extend((0..STEPS).map(|index| (step(index), 1.0)));
    }
    all.extend(units.last().map(|&last| (last, 1.0)));
    all
}

/// The unit that guarantees most.
#[must_use]
pub(crate) fn best(scores: &[(f64, f64)]) -> Best {
    let first = Best { unit: 0.0, guarantee: 0.0 };
    scores.iter().fold(
        first,
        |best, &(unit, guarantee)| if guarantee > best.guarantee { Best { unit, guarantee } } else { best },
    )
}

/// Those of the scores that are of measured units.
#[must_use]
pub(crate) fn of_grid(scores: &[(f64, f64)]) -> Vec<(f64, f64)> {
    scores.iter().copied().step_by(STEPS).collect()
}

/// What a measured unit guarantees.
#[must_use]
pub(crate) fn guarantee(scores: &[(f64, f64)], unit: u64) -> Option<f64> {
    of_grid(scores).into_iter().find(|&(other, _)| (other / unit as f64 - 1.0).abs() < 1e-9).map(|(_, score)| score)
}

/// For each concurrency the smallest and the largest unit that guarantee so much whatever the request size; just the
/// best where even that does not.
#[must_use]
pub(crate) fn ranges(measured: &Measured, direction: Direction, threshold: f64) -> Vec<Range> {
    let mut concurrencies: Vec<usize> = measured.curves.keys().map(|workload| workload.concurrency).collect();
    concurrencies.sort_unstable();
    concurrencies.dedup();
    let range = |concurrency| {
        let scores =
            scores(measured, |workload| workload.direction == direction && workload.concurrency == concurrency);
        let best = best(&of_grid(&scores));
        let is_good = |&&(_, score): &&(f64, f64)| score >= threshold.min(best.guarantee);
        let mut good = scores.iter().filter(is_good).map(|&(unit, _)| unit);
        let from = good.next().expect("the best is good enough");
        let to = good.next_back().unwrap_or(from);
        Range { concurrency, from, to, best }
    };
    concurrencies.into_iter().map(range).collect()
}

/// The least slope of a line from half a KB at concurrency 1 that reaches the range of every other concurrency, in KB;
/// and whether it stays within all of them.
#[must_use]
pub(crate) fn slope(ranges: &[Range]) -> (f64, bool) {
    let more = |range: &Range| (range.concurrency - 1) as f64;
    let above_one = || ranges.iter().filter(|range| range.concurrency > 1);
    let slope = above_one().map(|range| (range.from - 0.5) / more(range)).fold(0.0, f64::max);
    (slope, above_one().all(|range| slope * more(range) + 0.5 <= range.to * (1.0 + 1e-9)))
}
