//! Medians, their confidence intervals, and whether two samples differ. No distribution is assumed.

use serde::{Deserialize, Serialize};
use uraid_random::Random;

/// The probability that an interval holds the true value.
pub const CONFIDENCE: f64 = 0.95;

/// How often a sample is drawn again.
pub(crate) const RESAMPLES: usize = 2000;

/// A median with its interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// The lower end of the interval; the smallest value if there are too few for one.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// How many values there are.
    pub count: usize,
    /// Whether there are enough values for an interval.
    pub has_interval: bool,
}

impl Estimate {
    /// Of some values; `None` of none.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let sorted = sorted(values);
        let (&low, &high) = (sorted.first()?, sorted.last()?);
        let outer = interval(sorted.len());
        let (low, high) = outer.map_or((low, high), |below| (sorted[below], sorted[sorted.len() - 1 - below]));
        Some(Self { median: median(&sorted), low, high, count: sorted.len(), has_interval: outer.is_some() })
    }

    /// Half the interval's width as a share of the median; infinite without an interval.
    #[must_use]
    pub fn precision(&self) -> f64 {
        if self.has_interval && self.median > 0.0 { (self.high - self.low) / 2.0 / self.median } else { f64::INFINITY }
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The median of some values.
///
/// # Panics
/// If there are none.
#[must_use]
pub fn median_of(values: &[f64]) -> f64 {
    median(&sorted(values))
}

/// The median of sorted values.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

/// How many of `count` sorted values lie outside the median's interval at each end. The median is below the k-th value
/// with the probability that fewer than k of `count` fair coins show heads. `None` if even the extremes are too close.
fn interval(count: usize) -> Option<usize> {
    let (mut outside, mut term, mut below) = (None, 0.5_f64.powi(i32::try_from(count).ok()?), 0.0);
    for index in 0..count / 2 {
        below += term;
        if 2.0 * below > 1.0 - CONFIDENCE {
            break;
        }
        outside = Some(index);
        term *= (count - index) as f64 / (index + 1) as f64;
    }
    outside
}

/// The index of a percentile of `count` sorted values: the least that `share` of them do not exceed.
#[must_use]
pub fn percentile(count: usize, share: f64) -> usize {
    ((count as f64 * share).ceil() as usize).saturating_sub(1)
}

/// Indices of `count` values, as many as there are, drawn with replacement.
pub(crate) fn resampled_indices(count: usize, random: &mut Random) -> impl Iterator<Item = usize> {
    (0..count).map(move |_| random.index(count))
}

/// The ends of the interval that holds [`CONFIDENCE`] of some values.
///
/// # Panics
/// If there are none.
#[must_use]
pub fn middle(values: &[f64]) -> (f64, f64) {
    let sorted = sorted(values);
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let low = (sorted.len() as f64 * tail) as usize;
    (sorted[low], sorted[sorted.len() - 1 - low])
}

/// The probability of two samples at least as far apart as these, if both come from one distribution: the exact
/// two-sided rank-sum test (Mann & Whitney 1947), with mean ranks for equal values.
#[must_use]
pub(crate) fn rank_sum(first: &[f64], second: &[f64]) -> f64 {
    let mut all: Vec<(f64, bool)> = first.iter().map(|&value| (value, true)).collect();
    all.extend(second.iter().map(|&value| (value, false)));
    all.sort_by(|left, right| left.0.total_cmp(&right.0));
    // Twice the rank is whole also where ranks are means of two.
    let mut ranks = vec![0; all.len()];
    let mut from = 0;
    while from < all.len() {
        let to = from + all[from..].iter().take_while(|entry| entry.0 == all[from].0).count();
        ranks[from..to].fill(from + 1 + to);
        from = to;
    }
    let total: usize = ranks.iter().sum();
    let observed: usize = ranks.iter().zip(&all).filter(|(_, entry)| entry.1).map(|(rank, _)| rank).sum();
    // ways[n][s]: how many ways to choose n of the ranks so far with the sum s.
    let mut ways = vec![vec![0.0_f64; total + 1]; first.len() + 1];
    ways[0][0] = 1.0;
    for &rank in &ranks {
        for chosen in (1..=first.len()).rev() {
            for sum in (rank..=total).rev() {
                let added = ways[chosen - 1][sum - rank];
                ways[chosen][sum] += added;
            }
        }
    }
    let counts = &ways[first.len()];
    let expected = total as f64 * first.len() as f64 / all.len() as f64;
    let distance = (observed as f64 - expected).abs() - 1e-9;
    let is_far = |sum: usize| (sum as f64 - expected).abs() >= distance;
    let far: f64 = counts.iter().enumerate().filter(|(sum, _)| is_far(*sum)).map(|(_, count)| count).sum();
    far / counts.iter().sum::<f64>()
}

/// Probabilities of several tests, corrected for their number (Holm 1979).
#[must_use]
pub(crate) fn holm(probabilities: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|&left, &right| probabilities[left].total_cmp(&probabilities[right]));
    let mut corrected = vec![1.0; probabilities.len()];
    let mut least: f64 = 0.0;
    for (rank, index) in order.into_iter().enumerate() {
        least = least.max(probabilities[index] * (probabilities.len() - rank) as f64).min(1.0);
        corrected[index] = least;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables of the sign test: with 6 values the extremes hold 96.9 %, with 9 the second ones 96.1 %, with 20 the
    /// sixth ones 95.9 %.
    #[test]
    fn intervals_of_medians_are_the_tables() {
        assert_eq!(
            [1, 5, 6, 8, 9, 11, 12, 20].map(interval),
            [None, None, Some(0), Some(0), Some(1), Some(1), Some(2), Some(5)]
        );
    }

    #[test]
    fn an_estimate_is_the_median_and_its_neighbours() {
        let estimate = Estimate::of(&[9.0, 1.0, 3.0, 2.0, 4.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
        assert_eq!((estimate.median, estimate.low, estimate.high, estimate.count), (5.0, 2.0, 8.0, 9));
        assert!((estimate.precision() - 0.6).abs() < 1e-9);
        let few = Estimate::of(&[1.0, 2.0]).unwrap();
        assert_eq!((few.median, few.low, few.high), (1.5, 1.0, 2.0));
        assert!(few.precision().is_infinite());
        assert_eq!(Estimate::of(&[]), None);
    }

    /// Tables of Mann and Whitney's: samples of 3 and 3 that don't mix have 2 of 20 orders, of 6 and 6 2 of 924.
    #[test]
    fn rank_sums_are_exact() {
        let close = |found: f64, wanted: f64| assert!((found - wanted).abs() < 1e-12, "{found} {wanted}");
        close(rank_sum(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]), 0.1);
        close(rank_sum(&[7.0, 8.0, 9.0, 10.0, 11.0, 12.0], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 2.0 / 924.0);
        close(rank_sum(&[1.0, 4.0], &[2.0, 3.0]), 1.0);
        close(rank_sum(&[1.0, 1.0], &[1.0, 1.0]), 1.0);
    }

    #[test]
    fn holm_corrects_the_least_most() {
        assert_eq!(holm(&[0.04, 0.01, 0.5]), [0.08, 0.03, 0.5]);
        assert_eq!(holm(&[0.01, 0.009]), [0.018, 0.018]);
    }

    #[test]
    fn percentiles_are_values_that_occur() {
        assert_eq!([(1, 0.5), (100, 0.5), (100, 0.99), (101, 0.5)].map(|(n, p)| percentile(n, p)), [0, 49, 98, 50]);
    }

    #[test]
    fn resampling_finds_how_far_a_median_may_be() {
        let mut random = Random::new(1);
        let values = [1.0, 2.0, 3.0, 4.0, 100.0];
        let resampled = |random: &mut Random| {
            median_of(&resampled_indices(5, random).map(|index| values[index]).collect::<Vec<_>>())
        };
        let medians: Vec<f64> = (0..RESAMPLES).map(|_| resampled(&mut random)).collect();
        // Of 3125 ways to draw five, 181 have three or more of the smallest, or of the largest: 5.8 %.
        assert_eq!(middle(&medians), (1.0, 100.0));
        let share = medians.iter().filter(|median| **median == 1.0).count() as f64 / RESAMPLES as f64;
        assert!((share - 0.0579).abs() < 0.02, "{share}");
    }
}
