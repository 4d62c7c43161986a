//! How long things took, in buckets whose bounds are powers of two.
//!
//! Recording takes no memory and a handful of instructions. A histogram knows no clock: durations come from whoever has
//! one.

use std::time::Duration;

/// The first bound is two to this power of microseconds, about 16 of them.
const FIRST_POWER: u32 = 4;

/// Buckets with a bound; the last one's is about 8 s.
pub(crate) const BOUNDS: usize = 20;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// By bound, and last what is beyond them all.
    buckets: [u64; BOUNDS + 1],
    sum_nanos: u64,
}

impl Histogram {
    /// The upper bounds, which belong to their buckets, ascending.
    pub fn bounds() -> impl Iterator<Item = Duration> {
        (FIRST_POWER..).take(BOUNDS).map(|power| Duration::from_micros(1 << power))
    }

    /// Counts one more that took this long.
    pub fn record(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let micros = nanos.div_ceil(1000);
        let power = micros.max(1).next_power_of_two().trailing_zeros();
        let index = power.saturating_sub(FIRST_POWER) as usize;
        self.buckets[index.min(BOUNDS)] += 1;
        self.sum_nanos = self.sum_nanos.saturating_add(nanos);
    }

    /// How many took at most each of [`Histogram::bounds`].
    pub fn cumulative(&self) -> impl Iterator<Item = u64> {
        self.buckets[..BOUNDS].iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        })
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// How long they took together.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos)
    }

    /// A histogram of what is in each bucket, by bound and last what is beyond them all.
    #[must_use]
    pub fn of_buckets(buckets: [u64; BOUNDS + 1], sum: Duration) -> Self {
        Self { buckets, sum_nanos: u64::try_from(sum.as_nanos()).unwrap_or(u64::MAX) }
    }

    /// What is in each bucket, as [`Histogram::of_buckets`] takes it.
    #[must_use]
    pub fn buckets(&self) -> &[u64; BOUNDS + 1] {
        &self.buckets
    }

    /// What came since this was as `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let buckets = std::array::from_fn(|index| self.buckets[index].saturating_sub(earlier.buckets[index]));
        Self { buckets, sum_nanos: self.sum_nanos.saturating_sub(earlier.sum_nanos) }
    }

    /// How long they took on average; none without any.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        self.sum_nanos.checked_div(self.count()).map(Duration::from_nanos)
    }

    /// What so many of a thousand took at most, as far as bounds tell; the last bound where it is beyond them all. None
    /// without any.
    ///
    /// # Panics
    /// When it is more than a thousand.
    #[must_use]
    pub fn quantile(&self, of_thousand: u64) -> Option<Duration> {
        assert!(of_thousand <= 1000, "a part of them");
        let count = self.count();
        let rank = (u128::from(count) * u128::from(of_thousand)).div_ceil(1000);
        let found = self.cumulative().position(|below| u128::from(below) >= rank);
        let bound = Self::bounds().nth(found.unwrap_or(BOUNDS - 1));
        bound.filter(|_| count > 0)
    }

    /// Adds what another one has counted.
    pub fn add(&mut self, other: &Self) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(sum, count)| *sum += count);
        self.sum_nanos = self.sum_nanos.saturating_add(other.sum_nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bucket of one duration, by the definition: the first whose bound is not below it.
    fn expected(took: Duration) -> Option<usize> {
        Histogram::bounds().position(|bound| took <= bound)
    }

    #[test]
    fn bounds_go_from_16_microseconds_to_8_seconds_in_powers_of_two() {
        let bounds: Vec<u128> = Histogram::bounds().map(|bound| bound.as_micros()).collect();
        assert_eq!((bounds.len(), bounds[0], bounds[BOUNDS - 1]), (BOUNDS, 16, 8_388_608));
        assert!(bounds.windows(2).all(|pair| pair[1] == 2 * pair[0]));
    }

    #[test]
    fn every_duration_is_in_the_first_bucket_that_is_not_below_it() {
        let edges = Histogram::bounds().flat_map(|bound| [-1, 0, 1].map(|off| bound.as_nanos() as i128 + off));
        for nanos in edges.chain([0, 1, 999, 20_000_000_000, i128::from(u64::MAX)]) {
            let took = Duration::from_nanos(u64::try_from(nanos).unwrap());
            let mut histogram = Histogram::default();
            histogram.record(took);
            let first = histogram.cumulative().position(|count| count == 1);
            assert_eq!(first, expected(took), "{took:?}");
            assert_eq!((histogram.count(), histogram.sum()), (1, took));
        }
    }

    #[test]
    fn quantiles_are_the_bounds_of_the_buckets_that_they_are_in() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.quantile(990), histogram.mean()), (None, None));
        let micros = Duration::from_micros;
        for took in [10, 20, 30, 40, 50, 60, 70, 80, 90, 1000] {
            histogram.record(micros(took));
        }
        let quantiles = [0, 100, 101, 500, 800, 900, 901, 1000].map(|part| histogram.quantile(part).unwrap());
        assert_eq!(quantiles, [16, 16, 32, 64, 128, 128, 1024, 1024].map(micros));
        assert_eq!(histogram.mean(), Some(micros(145)));
        histogram.record(Duration::from_secs(100));
        assert_eq!(histogram.quantile(1000), Histogram::bounds().last());
    }

    #[test]
    fn what_came_since_is_what_was_recorded_since() {
        let mut before = Histogram::default();
        before.record(Duration::from_micros(100));
        let (mut now, mut since) = (before, Histogram::default());
        for histogram in [&mut now, &mut since] {
            histogram.record(Duration::from_millis(3));
            histogram.record(Duration::from_secs(60));
        }
        assert_eq!(now.since(&before), since);
        assert_eq!(Histogram::of_buckets(*now.buckets(), now.sum()), now);
    }

    #[test]
    fn sums_are_sums() {
        let (mut one, mut other) = (Histogram::default(), Histogram::default());
        for micros in [3, 100, 100_000] {
            one.record(Duration::from_micros(micros));
        }
        other.record(Duration::from_secs(60));
        one.add(&other);
        assert_eq!(one.count(), 4);
        assert_eq!(one.sum(), Duration::from_micros(60_100_103));
        assert_eq!(one.cumulative().last(), Some(3), "a minute is beyond all bounds");
    }
}
