//! What is measured, and what was observed.

use serde::{Deserialize, Serialize};
use uraid_model::mech::stats::regression;
use uraid_model::papers::hauser;

use super::files::MB;
use super::volume::Way;
use crate::plan::{Arrays, Config};
use crate::results;
use crate::stats::Estimate;

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The arrays.
    pub arrays: Arrays,
    /// Files on each.
    pub files: usize,
    /// The most processes.
    pub processes: usize,
    /// For how many seconds processes begin to read files, for each number of processes.
    pub seconds: u64,
    /// How the file system gets at the array.
    pub way: Way,
}

/// An array in a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// From 0 on.
    pub round: usize,
    /// The array.
    pub config: Config,
    /// The mean time of a file with 1, 2 and more processes, in seconds.
    pub mean_s: Vec<f64>,
    /// Files that were read.
    pub files: u64,
    /// Size of the array in bytes.
    pub size: u64,
    /// Size of all its members in bytes.
    pub raw: u64,
}

/// What was observed.
pub type Results = results::Results<Plan, Observation>;

impl Observation {
    /// The average retrieval time in seconds.
    ///
    /// # Panics
    /// If there is no time.
    #[must_use]
    pub fn art_s(&self) -> f64 {
        self.mean_s[0]
    }

    /// The additional time for each further process, in seconds.
    #[must_use]
    pub fn aat_s(&self) -> f64 {
        let points: Vec<(f64, f64)> = (1..).map(f64::from).zip(self.mean_s.iter().copied()).collect();
        regression(&points)
    }

    /// 10^6 bytes a second.
    #[must_use]
    pub fn bang(&self) -> f64 {
        hauser::bang(self.art_s(), self.aat_s()) * MB
    }
}

/// An array's median over the rounds; `None` if it was not measured.
pub(super) fn estimate(results: &Results, config: &Config, value: impl Fn(&Observation) -> f64) -> Option<Estimate> {
    let values = results.observations.iter().filter(|it| it.config == *config).map(value);
    Estimate::of(&values.collect::<Vec<f64>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table I's first row: 0.109 s and 0.032 s more for each process are 1.152 MB/s of 1000 KB, so 1.18 of 10^6 bytes.
    #[test]
    fn bang_is_the_papers() {
        let config = Config { level: "10".into(), cache: "none".into(), chunk: 160 << 10 };
        let mean_s = (0..12).map(|more| 0.109 + 0.032 * f64::from(more)).collect();
        let observed = Observation { round: 0, config, mean_s, files: 1, size: 1, raw: 2 };
        assert!((observed.art_s() - 0.109).abs() < 1e-9 && (observed.aat_s() - 0.032).abs() < 1e-9);
        assert!((observed.bang() - 1.152 * 1.024).abs() < 1e-3, "{}", observed.bang());
    }
}
