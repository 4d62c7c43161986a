//! Sizes of requests: distributions over whole units of 1 KiB.
//!
//! Chen & Lee (3.2): exponential with a mean of 4 or 16 KB; normal with a standard deviation equal to the mean of 100,
//! 400 or 1500 KB. Sizes are whole kilobytes of at least one, and the parameters are adjusted so that the mean that the
//! array sees is the nominal one. What the paper leaves open (whether too small ones are drawn again or become 1 KB,
//! whether the deviation follows the adjusted mean) is a choice here.

use uraid_layout::{Bytes, Sectors};

use super::Error;
use uraid_random::Random;

/// The unit of sizes.
pub const UNIT: Bytes = Bytes(1024);

/// A distribution before it is made discrete.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// All requests have one size.
    Fixed,
    /// Exponential.
    Exponential,
    /// Normal, with a standard deviation of the mean; see [`Choices`].
    Normal,
}

/// What becomes of sizes below 1 KB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TooSmall {
    /// They are drawn again.
    #[default]
    DrawAgain,
    /// They become 1 KB.
    BecomeOne,
}

/// What the paper leaves open of the normal distributions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Choices {
    /// What becomes of sizes below 1 KB.
    pub too_small: TooSmall,
    /// Whether the standard deviation stays the nominal mean as the normal's mean is adjusted; otherwise it follows it.
    pub nominal_deviation: bool,
}

/// A discrete distribution of sizes, from which drawing takes two numbers and one look (Walker's alias method).
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// For size index i: the share of it that stays, in units of 2^-32, and the index that the rest goes to.
    table: Vec<(u32, u32)>,
    /// The size of index 0, and the step, in sectors.
    first: u64,
    step: u64,
    mean: f64,
}

/// The largest mean: 64 MiB.
const MEAN_MAX_KIB: f64 = 65_536.0;

/// Sizes beyond so many standard deviations or exponential means are left out: less than one of 10^12.
const TAIL_NORMAL: f64 = 7.5;
const TAIL_EXPONENTIAL: f64 = 28.0;

impl Sizes {
    /// The distribution whose discrete mean is `mean`.
    ///
    /// # Errors
    /// When the mean is not 1 to 65536 KiB or, where all have one size, not whole sectors.
    pub fn new(shape: Shape, mean: Bytes, choices: Choices) -> Result<Self, Error> {
        let nominal = mean.0 as f64 / UNIT.0 as f64;
        if shape == Shape::Fixed {
            return Self::fixed(mean);
        }
        if !(2.0..=MEAN_MAX_KIB).contains(&nominal) {
            return Err(Error::Workload { field: "mean KiB", value: nominal, rule: "2 to 65536" });
        }
        let weights = |parameter: f64| match shape {
            Shape::Normal if choices.nominal_deviation => normal(parameter, nominal, choices.too_small),
            Shape::Normal => normal(parameter, parameter, choices.too_small),
            Shape::Fixed | Shape::Exponential => exponential(parameter),
        };
        // The mean rises with the parameter, and the parameter that gives the nominal one is within these.
        let is_free = shape == Shape::Normal && choices.nominal_deviation;
        let (mut low, mut high) = (if is_free { -3.0 } else { 0.2 } * nominal, 2.0 * nominal);
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            *(if mean_of(&weights(middle)) < nominal { &mut low } else { &mut high }) = middle;
        }
        Ok(Self::of_weights(&weights(high), UNIT.whole_sectors().0, UNIT.whole_sectors().0))
    }

    /// Requests of one size.
    ///
    /// # Errors
    /// When it is not whole sectors, none, or more than 2^31.
    pub fn fixed(size: Bytes) -> Result<Self, Error> {
        let sectors = size.whole_sectors();
        if sectors.bytes() != size || !(1..1 << 31).contains(&sectors.0) {
            return Err(Error::Workload {
                field: "size",
                value: size.0 as f64,
                rule: "whole sectors of 512 bytes, 1 to 2^31",
            });
        }
        Ok(Self::of_weights(&[1.0], sectors.0, 1))
    }

    /// Chen & Lee's five distributions with their names.
    ///
    /// # Panics
    /// Never: their means are good.
    #[must_use]
    pub(crate) fn chen_lee(choices: Choices) -> [(&'static str, Self); 5] {
        let table = [
            ("exp4KB", Shape::Exponential, 4),
            ("exp16KB", Shape::Exponential, 16),
            ("norm100KB", Shape::Normal, 100),
            ("norm400KB", Shape::Normal, 400),
            ("norm1500KB", Shape::Normal, 1500),
        ];
        table.map(|(name, shape, kib)| {
            let sizes = Self::new(shape, Bytes(kib * UNIT.0), choices).expect("the paper's means are in range");
            (name, sizes)
        })
    }

    /// The mean of what is drawn, in sectors.
    #[must_use]
    pub(crate) fn mean_sectors(&self) -> f64 {
        self.mean
    }

    /// The largest size.
    #[must_use]
    pub fn largest(&self) -> Sectors {
        Sectors(self.first + (self.table.len() as u64 - 1) * self.step)
    }

    /// Each size with its probability, from small to large.
    #[must_use]
    pub fn probabilities(&self) -> Vec<(Sectors, f64)> {
        let share = |stays: u32| f64::from(stays) / 2f64.powi(32);
        let count = self.table.len() as f64;
        let mut probabilities: Vec<f64> = self.table.iter().map(|entry| share(entry.0) / count).collect();
        for &(stays, other) in &self.table {
            probabilities[other as usize] += (1.0 - share(stays)) / count;
        }
        (0..).zip(probabilities).map(|(index, it)| (Sectors(self.first + index * self.step), it)).collect()
    }

    /// Draws a size.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> Sectors {
        let bits = random.bits();
        let index = (((bits >> 32) * self.table.len() as u64) >> 32) as usize;
        let (stays, other) = self.table[index];
        let index = if (bits as u32) < stays { index as u64 } else { other.into() };
        Sectors(self.first + index * self.step)
    }

    fn of_weights(weights: &[f64], first: u64, step: u64) -> Self {
        let total: f64 = weights.iter().sum();
        let count = weights.len();
        let mut shares: Vec<f64> = weights.iter().map(|weight| weight / total * count as f64).collect();
        let mut table = vec![(u32::MAX, 0); count];
        for (index, entry) in table.iter_mut().enumerate() {
            entry.1 = index_u32(index);
        }
        let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..count).partition(|&index| shares[index] < 1.0);
        while let (Some(&rich), Some(poor)) = (large.last(), small.pop()) {
            table[poor] = ((shares[poor] * 2f64.powi(32)) as u32, index_u32(rich));
            shares[rich] -= 1.0 - shares[poor];
            if shares[rich] < 1.0 {
                large.pop();
                small.push(rich);
            }
        }
        let mean = weights.iter().zip(0..).map(|(weight, index)| weight * (first + index * step) as f64).sum::<f64>();
        Self { table, first, step, mean: mean / total }
    }
}

/// Weights of 1, 2, ... KiB: the density at each.
fn exponential(scale: f64) -> Vec<f64> {
    let count = (scale * TAIL_EXPONENTIAL).ceil() as u64 + 1;
    (1..=count).map(|size| (-(size as f64) / scale).exp()).collect()
}

fn normal(mean: f64, deviation: f64, too_small: TooSmall) -> Vec<f64> {
    let count = (mean + TAIL_NORMAL * deviation).ceil().max(1.0) as u64;
    let density = |size: f64| (-((size - mean) / deviation).powi(2) / 2.0).exp();
    let mut weights: Vec<f64> = (1..=count).map(|size| density(size as f64)).collect();
    if too_small == TooSmall::BecomeOne {
        let below = (TAIL_NORMAL * deviation - mean).ceil().max(0.0) as u64;
        weights[0] += (0..=below).map(|size| density(-(size as f64))).sum::<f64>();
    }
    weights
}

/// In KiB.
fn mean_of(weights: &[f64]) -> f64 {
    weights.iter().zip(1u32..).map(|(weight, size)| weight * f64::from(size)).sum::<f64>() / weights.iter().sum::<f64>()
}

fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("a distribution has fewer than 2^32 sizes")
}
