//! How fast something may go that has no end of work: bytes a second, handed out as time passes.

use uraid_layout::Bytes;

use crate::cache::TICK;

/// A limit, and what it still allows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    /// In bytes a second; none: as fast as it goes.
    limit: Option<Bytes>,
    /// Below zero: more was used than there was, and is paid back.
    tokens: i64,
}

impl Rate {
    /// Changes the limit from now on.
    pub(super) fn set(&mut self, limit: Option<Bytes>) {
        *self = Self { limit, tokens: 0 };
    }

    /// Notes that a [`TICK`] has passed. What is not used within a second is lost.
    pub(super) fn tick(&mut self) {
        let Some(limit) = self.limit else { return };
        let second = i64::try_from(limit.0).unwrap_or(i64::MAX).min(i64::MAX / 4);
        let part = i64::try_from(TICK.as_millis()).expect("a short time");
        self.tokens = second.min(self.tokens.saturating_add((second / 1000).saturating_mul(part).max(1)));
    }

    /// Whether anything may begin.
    pub(super) fn allows(&self) -> bool {
        self.limit.is_none() || self.tokens > 0
    }

    /// Takes what something costs that begins.
    pub(super) fn take(&mut self, cost: Bytes) {
        self.tokens = if self.limit.is_some() { self.tokens.saturating_sub_unsigned(cost.0) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins as often as is allowed in so many ticks; how much that was.
    fn moved(rate: &mut Rate, cost: u64, ticks: u64) -> u64 {
        let mut sum = 0;
        for _ in 0..ticks {
            rate.tick();
            while rate.allows() {
                rate.take(Bytes(cost));
                sum += cost;
            }
        }
        sum
    }

    #[test]
    fn as_much_goes_in_a_second_as_the_limit_says_whatever_the_pieces_are() {
        let second = 1000 / u64::try_from(TICK.as_millis()).unwrap();
        for cost in [1, 777, 4096, 1 << 20, 5 << 20] {
            let mut rate = Rate::default();
            rate.set(Some(Bytes(1_000_000)));
            let sum = moved(&mut rate, cost, 20 * second);
            assert!((20_000_000..20_000_000 + cost).contains(&sum), "{cost}: {sum}");
        }
    }

    #[test]
    fn what_is_not_used_is_lost_after_a_second_and_a_new_limit_counts_at_once() {
        let mut rate = Rate::default();
        assert!(rate.allows());
        rate.take(Bytes(u64::MAX));
        assert!(rate.allows(), "without a limit nothing is counted");
        rate.set(Some(Bytes(1_000_000)));
        (0..1000).for_each(|_| rate.tick());
        let mut burst = 0;
        while rate.allows() {
            rate.take(Bytes(1000));
            burst += 1;
        }
        assert_eq!(burst, 1000);
        rate.take(Bytes(u64::MAX));
        rate.set(Some(Bytes(u64::MAX)));
        rate.tick();
        assert!(rate.allows());
        rate.set(None);
        assert!(rate.allows());
    }
}
