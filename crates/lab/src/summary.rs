//! Judges results: the median of each cell, and the chunk that serves all loads best.
//!
//! A load's *share* under a configuration is its throughput there, as a share of the highest that any configuration of
//! the same choice reached. A configuration is as good as its smallest share over all loads (the maximin rule), which
//! is Chen & Lee's way of choosing a unit without knowing the load. The choice is the smallest chunk that is as good as
//! the best one: within [`NEAR`], or within [`NOISE_MAX`] if the rounds don't tell the two apart.

use serde::Serialize;
use uraid_random::Random;

use crate::plan::{Arrays, Config, Plan, level_title, size};
use crate::results::{Measured, Results};
use crate::stats::{Estimate, RESAMPLES, median_of, middle, resampled_indices};

/// Shares that are this close count as equal.
pub(crate) const NEAR: f64 = 0.02;

/// Shares that are this close count as equal if the difference may be chance. A wider one does not, however noisy the
/// rounds: a guess that costs more is no recommendation.
pub(crate) const NOISE_MAX: f64 = 0.05;

/// What results say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Each cell that was measured.
    pub cells: Vec<Cell>,
    /// For each level and cache mode, its chunks.
    pub groups: Vec<Group>,
    /// Among all configurations, if there are several groups.
    pub overall: Option<Choice>,
}

/// A configuration under a load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The array.
    pub config: Config,
    /// The load's name.
    pub load: String,
    /// Throughput in 10^6 bytes a second.
    pub mb_s: Estimate,
    /// Requests a second.
    pub iops: Estimate,
    /// Mean response time in microseconds.
    pub mean_us: Estimate,
    /// The 99th percentile of the response time in microseconds.
    pub p99_us: Estimate,
}

/// The chunks of one level and cache mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// Level and cache mode, for people.
    pub title: String,
    /// The level, as `uraid create --level` takes it.
    pub level: String,
    /// The cache mode.
    pub cache: String,
    /// The chunk that is recommended.
    pub choice: Choice,
}

/// A recommendation among several configurations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// What is recommended.
    pub config: Config,
    /// How good each configuration is, in the plan's order.
    pub scores: Vec<Score>,
    /// How sure it is that nothing else is better by more than [`NEAR`]: the share of [`RESAMPLES`] resamplings of the
    /// rounds in which that is so. `None` if there are too few rounds to tell.
    pub confidence: Option<f64>,
}

/// How good a configuration is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Score {
    /// Which.
    pub config: Config,
    /// Its smallest share over all loads, 0 to 1.
    pub least: f64,
    /// The interval of `least`.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// The load with the smallest share.
    pub worst: String,
}

/// Throughputs of a choice's configurations: by configuration, load and round.
struct Samples {
    configs: Vec<Config>,
    loads: Vec<String>,
    values: Vec<Vec<Vec<f64>>>,
}

impl Summary {
    /// Judges results. Cells that were not measured are left out; `None` if no configuration has all of its loads.
    #[must_use]
    pub fn of(results: &Results) -> Option<Self> {
        let plan = &results.plan;
        let mut cells = Vec::new();
        for config in plan.arrays.configs() {
            for load in &plan.loads {
                let estimate = |value: fn(&Measured) -> f64| Estimate::of(&results.values(&config, &load.name, value));
                let found = (estimate(|it| it.mb_s), estimate(|it| it.iops), estimate(|it| it.mean_us));
                if let ((Some(mb_s), Some(iops), Some(mean_us)), Some(p99_us)) = (found, estimate(|it| it.p99_us)) {
                    let (config, load) = (config.clone(), load.name.clone());
                    cells.push(Cell { config, load, mb_s, iops, mean_us, p99_us });
                }
            }
        }
        let mut groups = Vec::new();
        for (level, cache) in pairs(&plan.arrays) {
            let of_group = |config: &Config| config.level == level && config.cache == cache;
            let choice = choose(&Samples::of(results, of_group)?)?;
            let title = format!("{}, {cache}", level_title(&level));
            groups.push(Group { title, level, cache, choice });
        }
        let overall = if groups.len() > 1 { choose(&Samples::of(results, |_| true)?) } else { None };
        Some(Self { cells, groups, overall })
    }

    /// A cell, if it was measured.
    #[must_use]
    pub fn cell(&self, config: &Config, load: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.load == load && cell.config == *config)
    }

    /// The recommendations, a sentence each.
    #[must_use]
    pub fn sentences(&self, plan: &Plan) -> Vec<String> {
        let loads = plan.loads.len();
        let mut sentences: Vec<String> =
            self.groups.iter().map(|group| group.choice.sentence(&group.title, loads)).collect();
        if let Some(choice) = &self.overall {
            sentences.push(choice.sentence(
                &format!("all of these, {} with cache {}", level_title(&choice.config.level), choice.config.cache),
                loads,
            ));
        }
        sentences
    }
}

impl Choice {
    /// The score of the recommended configuration.
    ///
    /// # Panics
    /// Never: the choice is one of its scores.
    #[must_use]
    pub fn score(&self) -> &Score {
        self.scores.iter().find(|score| score.config == self.config).expect("the choice is one of its scores")
    }

    fn sentence(&self, title: &str, loads: usize) -> String {
        let score = self.score();
        let chunk = size(self.config.chunk);
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let served = match loads {
            1 => format!("it reaches {} of the best throughput", percent(score.least)),
            _ => format!(
                "each of the {loads} loads reaches at least {} of its best throughput ({} loses most)",
                percent(score.least),
                score.worst
            ),
        };
        let sure = match self.confidence {
            None => "too few rounds to say how sure that is".to_owned(),
            Some(confidence) => format!("confidence {}", percent(confidence)),
        };
        format!("For {title}: chunk {chunk}; {served}, {sure}.")
    }
}

/// Levels and cache modes, in the plan's order.
fn pairs(arrays: &Arrays) -> Vec<(String, String)> {
    let of = |level: &String| arrays.caches.iter().map(|cache| (level.clone(), cache.clone())).collect::<Vec<_>>();
    arrays.levels.iter().flat_map(of).collect()
}

impl Samples {
    /// The configurations that all loads met; `None` if there is none.
    fn of(results: &Results, includes: impl Fn(&Config) -> bool) -> Option<Self> {
        let loads: Vec<String> = results.plan.loads.iter().map(|load| load.name.clone()).collect();
        let (mut configs, mut values) = (Vec::new(), Vec::new());
        for config in results.plan.arrays.configs().into_iter().filter(|config| includes(config)) {
            let of_config: Vec<Vec<f64>> =
                loads.iter().map(|load| results.values(&config, load, |it| it.mb_s)).collect();
            if of_config.iter().all(|values| !values.is_empty()) {
                configs.push(config);
                values.push(of_config);
            }
        }
        (!configs.is_empty()).then_some(Self { configs, loads, values })
    }

    /// Each configuration's smallest share and the load that has it, from a number for each cell.
    fn scores(&self, of: impl Fn(&[f64]) -> f64) -> Vec<(f64, usize)> {
        let medians: Vec<Vec<f64>> =
            self.values.iter().map(|loads| loads.iter().map(|values| of(values)).collect()).collect();
        let best = |load: usize| medians.iter().map(|of| of[load]).fold(0.0, f64::max);
        let best: Vec<f64> = (0..self.loads.len()).map(best).collect();
        let share = |of: &[f64], load: usize| if best[load] > 0.0 { of[load] / best[load] } else { 1.0 };
        let least = |of: &Vec<f64>| {
            let shares = (0..of.len()).map(|load| (share(of, load), load));
            shares.fold((f64::INFINITY, 0), |least, next| if next.0 < least.0 { next } else { least })
        };
        medians.iter().map(least).collect()
    }

    /// The fewest rounds that a cell has.
    fn rounds(&self) -> usize {
        self.values.iter().flatten().map(Vec::len).min().unwrap_or(0)
    }
}

fn choose(samples: &Samples) -> Option<Choice> {
    let scores = samples.scores(median_of);
    let top = scores.iter().map(|score| score.0).max_by(f64::total_cmp)?;
    let mut random = Random::new(1);
    let resampled: Vec<Vec<f64>> = (0..RESAMPLES)
        .map(|_| {
            // Cells of one round were measured next to each other, so a round is drawn as a whole.
            let seed = random.bits();
            let of = |values: &[f64]| {
                let mut random = Random::new(seed);
                let drawn: Vec<f64> = resampled_indices(values.len(), &mut random).map(|index| values[index]).collect();
                median_of(&drawn)
            };
            samples.scores(of).into_iter().map(|score| score.0).collect()
        })
        .collect();
    let best = scores.iter().position(|score| score.0 >= top)?;
    let is_as_good = |index: usize| {
        let behind: Vec<f64> = resampled.iter().map(|scores| scores[best] - scores[index]).collect();
        scores[index].0 >= top - NEAR || scores[index].0 >= top - NOISE_MAX && middle(&behind).0 <= 0.0
    };
    let chosen = (0..scores.len()).filter(|&index| is_as_good(index)).min_by_key(|&index| {
        // Levels and caches are not ordered: among them the best one wins, and then its smallest chunk.
        let is_other = samples.configs[index].group() != samples.configs[best].group();
        (is_other, samples.configs[index].chunk)
    })?;
    let is_near = |scores: &&Vec<f64>| scores[chosen] >= scores.iter().copied().fold(0.0, f64::max) - NEAR;
    let confidence = resampled.iter().filter(is_near).count() as f64 / RESAMPLES as f64;
    let score = |(index, &(least, worst)): (usize, &(f64, usize))| {
        let all: Vec<f64> = resampled.iter().map(|scores| scores[index]).collect();
        let (low, high) = middle(&all);
        Score { config: samples.configs[index].clone(), least, low, high, worst: samples.loads[worst].clone() }
    };
    Some(Choice {
        config: samples.configs[chosen].clone(),
        scores: scores.iter().enumerate().map(score).collect(),
        confidence: (samples.rounds() >= ROUNDS_MIN).then_some(confidence),
    })
}

/// With fewer rounds a resampling says little.
const ROUNDS_MIN: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::results;

    const KIB: u64 = 1 << 10;

    fn chunk(results: &Results) -> (u64, Option<f64>) {
        let choice = &Summary::of(results).expect("all is there").groups[0].choice;
        (choice.config.chunk, choice.confidence)
    }

    /// Small requests like small chunks and large ones large chunks: the one between loses least on either.
    #[test]
    fn the_chunk_that_no_load_suffers_from_wins() {
        let found = results(6, |round, chunk, load| {
            let noise = round as f64 / 10.0;
            noise
                + match (load, chunk / KIB) {
                    ("small", 16) | ("large", 256) => 100.0,
                    ("small", 256) => 50.0,
                    ("large", 16) => 40.0,
                    _ => 90.0,
                }
        });
        let summary = Summary::of(&found).expect("all is there");
        let choice = &summary.groups[0].choice;
        assert_eq!((choice.config.chunk, choice.confidence), (64 * KIB, Some(1.0)));
        assert!((choice.score().least - 0.9).abs() < 0.01);
        assert_eq!(choice.scores[0].worst, "large");
        assert_eq!(summary.overall, None);
        let sentence = &summary.sentences(&found.plan)[0];
        assert!(
            sentence.starts_with("For RAID 5, writeback: chunk 64K; each of the 2 loads reaches at least 90 %"),
            "{sentence}"
        );
    }

    #[test]
    fn among_equals_the_smallest_chunk_wins() {
        assert_eq!(chunk(&results(6, |round, _, _| 100.0 + round as f64)).0, 16 * KIB);
        // Half a per cent is nothing.
        let nearly =
            results(6, |round, chunk, _| 100.0 + round as f64 / 100.0 + if chunk == 256 * KIB { 0.5 } else { 0.0 });
        assert_eq!(chunk(&nearly), (16 * KIB, Some(1.0)));
    }

    /// Ten per cent less in most rounds, and more in the others: chance can't be excluded, and still nobody wants it.
    #[test]
    fn noise_is_no_reason_for_a_much_slower_chunk() {
        let noisy = results(6, |round, chunk, _| {
            let slower = chunk == 16 * KIB;
            if slower && round < 4 {
                85.0
            } else if slower {
                120.0
            } else {
                100.0
            }
        });
        assert_eq!(chunk(&noisy).0, 64 * KIB);
    }

    /// Twenty per cent more in half of the rounds and less in the others is noise; in all rounds it is not.
    #[test]
    fn noise_lowers_the_confidence_and_not_the_chunk() {
        let noisy = results(6, |round, chunk, _| {
            let swing = if (round % 2 == 0) == (chunk == 16 * KIB) { 20.0 } else { 0.0 };
            100.0 + swing + chunk as f64 / (64.0 * 1024.0)
        });
        let (found, confidence) = chunk(&noisy);
        assert_eq!(found, 16 * KIB);
        assert!(confidence.is_some_and(|confidence| confidence < 0.9), "{confidence:?}");
        let clear = results(6, |round, chunk, _| 100.0 + round as f64 + if chunk == 256 * KIB { 20.0 } else { 0.0 });
        assert_eq!(chunk(&clear), (256 * KIB, Some(1.0)));
        assert_eq!(chunk(&results(2, |_, _, _| 100.0)).1, None, "too few rounds");
    }

    #[test]
    fn what_is_missing_is_left_out() {
        let mut found = results(2, |_, chunk, _| chunk as f64);
        found.observations.retain(|it| it.config.chunk != 256 * KIB || it.load == "small");
        let summary = Summary::of(&found).expect("two chunks are complete");
        assert_eq!(summary.groups[0].choice.config.chunk, 64 * KIB);
        assert_eq!(summary.cells.len(), 5);
        found.observations.clear();
        assert_eq!(Summary::of(&found), None);
    }
}
