//! Division by a number that is known in advance: a shift, or a multiplication by the reciprocal.

/// A divisor from 1 to 2^63.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Divisor {
    divisor: u64,
    method: Method,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// The divisor is 2 to this power.
    Shift(u32),
    /// The least whole number over 2^64/divisor.
    Reciprocal(u64),
}

impl Divisor {
    /// # Panics
    /// When `divisor` is zero or over 2^63.
    pub(super) const fn new(divisor: u64) -> Self {
        assert!(divisor > 0 && divisor <= 1 << 63, "a divisor is 1 to 2^63");
        let method = if divisor.is_power_of_two() {
            Method::Shift(divisor.trailing_zeros())
        } else {
            Method::Reciprocal(u64::MAX / divisor + 1)
        };
        Self { divisor, method }
    }

    /// The divisor itself.
    pub(super) const fn get(self) -> u64 {
        self.divisor
    }

    /// The quotient and the remainder.
    #[inline]
    pub(super) const fn div_rem(self, dividend: u64) -> (u64, u64) {
        match self.method {
            Method::Shift(shift) => (dividend >> shift, dividend & (self.divisor - 1)),
            // The reciprocal is over 2^64/divisor by less than 1, so the estimate is the quotient or one more, for
            // every dividend; one more only for dividends far beyond those of an array, which is a branch that costs
            // nothing.
            Method::Reciprocal(reciprocal) => {
                let estimate = ((dividend as u128 * reciprocal as u128) >> 64) as u64;
                let rest = dividend.wrapping_sub(estimate.wrapping_mul(self.divisor));
                if rest < self.divisor { (estimate, rest) } else { (estimate - 1, rest.wrapping_add(self.divisor)) }
            }
        }
    }

    /// The remainder alone.
    #[inline]
    pub(super) const fn rem(self, dividend: u64) -> u64 {
        self.div_rem(dividend).1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Divisor;

    fn assert_exact(dividend: u64, divisor: u64) {
        let expected = (dividend / divisor, dividend % divisor);
        assert_eq!(Divisor::new(divisor).div_rem(dividend), expected, "{dividend} / {divisor}");
    }

    /// Every small dividend, and the dividends around every multiple where an estimate could slip, of every divisor
    /// that is a chunk, a parity stripe's units or a number of members.
    #[test]
    fn small_divisors_are_exact() {
        for divisor in 1..=4096 {
            for dividend in 0..300 {
                assert_exact(dividend, divisor);
                assert_exact(u64::MAX - dividend, divisor);
            }
            for shift in 1..64 {
                let multiple = (1u64 << shift) / divisor * divisor;
                for dividend in [multiple.saturating_sub(1), multiple, multiple + 1] {
                    assert_exact(dividend, divisor);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_divisor_is_exact(dividend: u64, divisor in 1u64..=1 << 63, multiple: u64, shift in 0u32..64) {
            assert_exact(dividend, divisor);
            let divisor = (divisor >> shift).max(1);
            assert_exact(dividend, divisor);
            let multiple = (multiple / divisor).max(1) * divisor;
            assert_exact(multiple, divisor);
            assert_exact(multiple - 1, divisor);
        }
    }
}
