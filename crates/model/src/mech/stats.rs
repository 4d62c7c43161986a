//! When a run has seen enough: batch means of response times, and Student's t.
//!
//! Response times that follow each other are not independent; means of long batches of them nearly are. There are
//! [`BATCHES`] to twice as many batches: when there are twice as many, neighbours are joined, and batches get twice as
//! long. A run ends when the half width of the confidence interval of the mean is within the share that the rule names
//! (Chen & Lee 3.3: 5 % at 95 %).

use super::{Error, Nanos};

/// The fewest batches that an interval is made of.
pub const BATCHES: usize = 20;

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StopRule {
    /// The half width of the interval, as a share of the mean.
    pub precision: f64,
    /// The probability that the interval has the true mean.
    pub confidence: f64,
    /// The first requests, which are not counted: the system fills.
    pub warm_up: u64,
    /// The fewest requests that are counted.
    pub requests_min: u64,
    /// The most.
    pub requests_max: u64,
}

/// A mean with its confidence interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half the interval's width.
    pub half_width: f64,
    /// The observations.
    pub count: u64,
}

/// Response times of a run.
#[derive(Clone, Debug)]
pub struct BatchMeans {
    rule: StopRule,
    /// t of the rule's confidence for each number of batches from [`BATCHES`] on.
    quantiles: [f64; BATCHES],
    sums: Vec<f64>,
    batch: u64,
    sum: f64,
    in_batch: u64,
    seen: u64,
}

impl Default for StopRule {
    /// Chen & Lee's: 5 % at 95 %.
    fn default() -> Self {
        Self { precision: 0.05, confidence: 0.95, warm_up: 200, requests_min: 1000, requests_max: 200_000 }
    }
}

impl StopRule {
    /// A run of exactly so many requests, after those that are not counted.
    #[must_use]
    pub fn exactly(warm_up: u64, requests: u64) -> Self {
        Self { precision: 0.0, warm_up, requests_min: requests, requests_max: requests, ..Self::default() }
    }

    /// Whether a run can end by it.
    ///
    /// # Errors
    /// [`Error::Workload`] with the figure that makes no sense.
    pub fn check(&self) -> Result<(), Error> {
        let error = |field, value, rule| Err(Error::Workload { field, value, rule });
        if !(0.0..1.0).contains(&self.precision) {
            return error("precision", self.precision, "a share from 0 up to 1");
        }
        if !(0.5..1.0).contains(&self.confidence) {
            return error("confidence", self.confidence, "a probability from 0.5 up to 1");
        }
        if self.requests_max == 0 || self.requests_max < self.requests_min {
            return error("requests_max", self.requests_max as f64, "at least one and at least requests_min");
        }
        Ok(())
    }
}

impl BatchMeans {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(rule: StopRule) -> Self {
        let upper = 0.5 + rule.confidence / 2.0;
        let quantiles = std::array::from_fn(|more| student_t(upper, (BATCHES + more - 1) as f64));
        Self { rule, quantiles, sums: Vec::with_capacity(2 * BATCHES), batch: 4, sum: 0.0, in_batch: 0, seen: 0 }
    }

    /// Counts a response time; whether the run has seen enough.
    #[inline]
    pub fn add(&mut self, response: Nanos) -> bool {
        self.seen += 1;
        if self.seen <= self.rule.warm_up {
            return false;
        }
        self.sum += response.0 as f64;
        self.in_batch += 1;
        let counted = self.seen - self.rule.warm_up;
        if self.in_batch == self.batch {
            self.end_batch();
            if counted >= self.rule.requests_min && self.sums.len() >= BATCHES {
                let Estimate { mean, half_width, .. } = self.of_batches();
                return half_width <= self.rule.precision * mean || counted >= self.rule.requests_max;
            }
        }
        counted >= self.rule.requests_max
    }

    /// Whether a request that ends now is counted.
    #[inline]
    #[must_use]
    pub fn counts(&self) -> bool {
        self.seen > self.rule.warm_up
    }

    /// The mean response time so far, in nanoseconds, with an infinite half width before there are [`BATCHES`] batches.
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        let counted = self.seen.saturating_sub(self.rule.warm_up);
        let mean = (self.sums.iter().sum::<f64>() + self.sum) / counted.max(1) as f64;
        let half_width = if self.sums.len() < BATCHES { f64::INFINITY } else { self.of_batches().half_width };
        Estimate { mean, half_width, count: counted }
    }

    fn end_batch(&mut self) {
        self.sums.push(std::mem::take(&mut self.sum));
        self.in_batch = 0;
        if self.sums.len() == 2 * BATCHES {
            for index in 0..BATCHES {
                self.sums[index] = self.sums[2 * index] + self.sums[2 * index + 1];
            }
            self.sums.truncate(BATCHES);
            self.batch *= 2;
        }
    }

    fn of_batches(&self) -> Estimate {
        let batches = self.sums.len() as f64;
        let mean = self.sums.iter().sum::<f64>() / batches;
        let variance = self.sums.iter().map(|sum| (sum - mean).powi(2)).sum::<f64>() / (batches - 1.0);
        let quantile = self.quantiles[self.sums.len() - BATCHES];
        let size = self.batch as f64;
        let half_width = quantile * (variance / batches).sqrt() / size;
        Estimate { mean: mean / size, half_width, count: self.batch * self.sums.len() as u64 }
    }
}

/// The mean of independent observations with its confidence interval.
#[must_use]
pub fn estimate(observations: &[f64], confidence: f64) -> Estimate {
    let count = observations.len() as f64;
    let mean = observations.iter().sum::<f64>() / count.max(1.0);
    let squares = observations.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    let half_width = if observations.len() < 2 {
        f64::INFINITY
    } else {
        student_t(0.5 + confidence / 2.0, count - 1.0) * (squares / (count - 1.0) / count).sqrt()
    };
    Estimate { mean, half_width, count: observations.len() as u64 }
}

/// The quantile of Student's t with so many degrees of freedom, for probabilities from a half up to one; good to five
/// digits up to 0.9999. From 15 degrees of freedom on by Fisher & Cornish's expansion about the normal quantile, below
/// by bisection of the distribution function.
#[must_use]
pub(crate) fn student_t(probability: f64, freedom: f64) -> f64 {
    if freedom < 15.0 {
        return bisect(|x| student_above_half(x, freedom), probability - 0.5);
    }
    let z = bisect(normal_above_half, probability - 0.5);
    let [z3, z5, z7] = [3, 5, 7].map(|power| z.powi(power));
    let first = (z3 + z) / 4.0;
    let second = (5.0 * z5 + 16.0 * z3 + 3.0 * z) / 96.0;
    let third = (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / 384.0;
    z + first / freedom + second / freedom.powi(2) + third / freedom.powi(3)
}

/// The slope of a line through points, by least squares.
#[must_use]
pub fn regression(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / count, y + point.1 / count));
    let (xy, xx) = points
        .iter()
        .fold((0.0, 0.0), |(xy, xx), point| (xy + (point.0 - x) * (point.1 - y), xx + (point.0 - x).powi(2)));
    xy / xx
}

/// Where a rising function that is 0 at 0 has a value.
fn bisect(function: impl Fn(f64) -> f64, value: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while function(high) < value && high < 1e6 {
        high *= 2.0;
    }
    for _ in 0..50 {
        let middle = f64::midpoint(low, high);
        *(if function(middle) < value { &mut low } else { &mut high }) = middle;
    }
    high
}

/// The probability that a normal variable is between 0 and x: the series of odd powers.
fn normal_above_half(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for index in 1..200 {
        term *= x * x / f64::from(2 * index + 1);
        sum += term;
    }
    sum * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// The probability that t is between 0 and x: Simpson's rule over x = tan(angle), which makes the range finite however
/// heavy the tail.
fn student_above_half(x: f64, freedom: f64) -> f64 {
    let power = f64::midpoint(freedom, 1.0);
    let scale = (ln_gamma(power) - ln_gamma(freedom / 2.0)).exp() / (freedom * std::f64::consts::PI).sqrt();
    let integrand = |angle: f64| scale * (1.0 + angle.tan().powi(2) / freedom).powf(-power) / angle.cos().powi(2);
    let (steps, end) = (400, x.atan());
    let width = end / f64::from(steps);
    let inner = (1..steps).map(|step| if step % 2 == 1 { 4.0 } else { 2.0 } * integrand(f64::from(step) * width));
    (integrand(0.0) + inner.sum::<f64>() + integrand(end)) * width / 3.0
}

/// The logarithm of the gamma function, by Lanczos' approximation.
fn ln_gamma(x: f64) -> f64 {
    const TERMS: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let x = x - 1.0;
    let series = TERMS[1..].iter().zip(1..).map(|(term, index)| term / (x + f64::from(index))).sum::<f64>();
    let base = x + 7.5;
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * base.ln() - base + (TERMS[0] + series).ln()
}
