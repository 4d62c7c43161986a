//! What differs between two results, beyond the noise.

use serde::Serialize;

use crate::plan::Config;
use crate::results::Results;
use crate::stats::{CONFIDENCE, Estimate, holm, rank_sum};

/// A cell that both results have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The array.
    pub config: Config,
    /// The load's name.
    pub load: String,
    /// Throughput in the first result, in 10^6 bytes a second.
    pub before: Estimate,
    /// Throughput in the second one.
    pub after: Estimate,
    /// By what share of the first median the second one is higher; negative if it is lower.
    pub change: f64,
    /// The probability that chance alone makes some cell differ so much (rank sums, corrected for the number of cells).
    pub probability: f64,
    /// Whether that is less than 5 %.
    pub is_significant: bool,
    /// Whether the rounds are enough for any difference to become significant.
    pub is_decidable: bool,
}

/// Two results side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Cells that both have, in the first one's order.
    pub differences: Vec<Difference>,
    /// What is not the same about the two experiments, apart from the cells.
    pub warnings: Vec<String>,
}

/// Compares two results cell by cell.
#[must_use]
pub fn compare(before: &Results, after: &Results) -> Comparison {
    let mut found = Vec::new();
    for config in before.plan.arrays.configs() {
        for load in &before.plan.loads {
            let [first, second] = [before, after].map(|it| it.values(&config, &load.name, |it| it.mb_s));
            if let (Some(before), Some(after)) = (Estimate::of(&first), Estimate::of(&second)) {
                found.push((
                    config.clone(),
                    load.name.clone(),
                    before,
                    after,
                    rank_sum(&first, &second),
                    least(&first, &second),
                ));
            }
        }
    }
    let corrected = holm(&found.iter().map(|it| it.4).collect::<Vec<_>>());
    let count = found.len() as f64;
    let differences =
        found.into_iter().zip(corrected).map(|((config, load, before, after, _, least), probability)| Difference {
            config,
            load,
            before,
            after,
            change: after.median / before.median - 1.0,
            probability,
            is_significant: probability < 1.0 - CONFIDENCE,
            is_decidable: least * count < 1.0 - CONFIDENCE,
        });
    Comparison { differences: differences.collect(), warnings: warnings(before, after) }
}

/// The least probability that rank sums of so many values can have: they don't overlap, in 2 of all orders.
fn least(first: &[f64], second: &[f64]) -> f64 {
    let (count, of) = (first.len(), first.len() + second.len());
    let orders = (0..count).fold(1.0, |orders, index| orders * (of - index) as f64 / (index + 1) as f64);
    2.0 / orders
}

/// What makes two experiments differ, apart from what is compared.
fn warnings(before: &Results, after: &Results) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut note = |differs: bool, what: &str| {
        if differs {
            warnings.push(format!("the two runs differ in {what}"));
        }
    };
    let (first, second) = (&before.plan, &after.plan);
    note(first.driver != second.driver, "what generates the load");
    note(first.arrays.members != second.arrays.members, "the number of members");
    note(first.arrays.place != second.arrays.place, "the place or size of the members");
    note(first.arrays.cache_size != second.arrays.cache_size, "the size of the cache");
    note(first.align != second.align, "the alignment of requests");
    note((first.warm_up_s, first.seconds) != (second.warm_up_s, second.seconds), "the time of a measurement");
    let digests_differ = first
        .loads
        .iter()
        .any(|load| second.loads.iter().any(|other| other.name == load.name && other.digest != load.digest));
    note(digests_differ, "what a load of the same name is");
    for name in ["processor", "memory", "kernel", "uraid"] {
        note(before.machine.0.get(name) != after.machine.0.get(name), name);
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::results;

    #[test]
    fn only_what_differs_beyond_the_noise_is_significant() {
        let before = results(8, |round, chunk, _| 100.0 + ((round * 7 + chunk as usize / 4096) % 8) as f64);
        let after = results(8, |round, chunk, load| {
            let faster = if chunk == 16 << 10 && load == "small" { 20.0 } else { 0.0 };
            faster + 100.0 + ((round * 5 + chunk as usize / 4096) % 8) as f64
        });
        let found = compare(&before, &after);
        assert_eq!(found.differences.len(), 6);
        assert!(found.warnings.is_empty(), "{:?}", found.warnings);
        for it in &found.differences {
            let differs = it.config.chunk == 16 << 10 && it.load == "small";
            assert_eq!(it.is_significant, differs, "{it:?}");
            assert!(it.is_decidable);
        }
        assert!((found.differences[0].change - 20.0 / 103.5).abs() < 1e-9);
    }

    /// Four rounds against four can't be significant among six cells: 2 of 70 orders.
    #[test]
    fn few_rounds_decide_nothing() {
        let found = compare(&results(4, |_, _, _| 1.0), &results(4, |_, _, _| 2.0));
        assert!(found.differences.iter().all(|it| !it.is_decidable && !it.is_significant));
    }

    #[test]
    fn different_experiments_are_told_apart() {
        let before = results(1, |_, _, _| 1.0);
        let mut after = before.clone();
        after.plan.arrays.cache_size *= 2;
        after.plan.loads[0].digest += 1;
        after.machine.0.insert("kernel".into(), "other".into());
        assert_eq!(compare(&before, &after).warnings.len(), 3);
    }
}
