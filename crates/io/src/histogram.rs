//! How long things took, in buckets whose bounds are powers of two.
//!
//! Recording takes no memory and a handful of instructions. A histogram knows no clock: durations come from whoever has one.

use std::time::Duration;

/// The first bound is two to this power of microseconds, about 16 of them.
const FIRST_POWER: u32 = 4;

/// Buckets with a bound; the last one's is about 8 s.
pub const BOUNDS: usize = 20;

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
