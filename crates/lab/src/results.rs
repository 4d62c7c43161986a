//! What was observed. A run writes it after each cell, so that one that is cut off goes on.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::machine::Machine;
use crate::plan::{Config, Plan, Rounds};

/// A plan with everything that was observed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results<P = Plan, O = Observation> {
    /// The version of this file's format: 1.
    pub format: u32,
    /// What is measured.
    pub plan: P,
    /// How often.
    pub rounds: Rounds,
    /// On which machine.
    pub machine: Machine,
    /// Each measurement, as it was made.
    pub observations: Vec<O>,
    /// Directories of a run that may have been cut off; the next one removes them.
    pub scratch: Vec<PathBuf>,
}

/// A cell of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// From 0 on.
    pub round: usize,
    /// The array.
    pub config: Config,
    /// The load's name.
    pub load: String,
    /// What was measured.
    pub measured: Measured,
}

/// What a generator measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Requests answered.
    pub requests: u64,
    /// Requests a second.
    pub iops: f64,
    /// 10^6 bytes a second.
    pub mb_s: f64,
    /// Mean response time in microseconds.
    pub mean_us: f64,
    /// Its median.
    pub p50_us: f64,
    /// Its 99th percentile.
    pub p99_us: f64,
}

const FORMAT: u32 = 1;
/// What must be the same when a run goes on.
const SAME_FACTS: [&str; 5] = ["processor", "memory", "kernel", "uraid", "fio"];
const FILE: &str = "results.json";

impl<P: PartialEq + Serialize + DeserializeOwned, O: Serialize + DeserializeOwned> Results<P, O> {
    /// No observations yet.
    #[must_use]
    pub fn new(plan: P, rounds: Rounds, machine: Machine) -> Self {
        Self { format: FORMAT, plan, rounds, machine, observations: Vec::new(), scratch: Vec::new() }
    }

    /// The results of a directory, to go on with, or none yet. The rounds may differ from before, the plan may not.
    ///
    /// # Errors
    /// If the directory has results of another experiment or another machine, or they can't be read.
    pub fn resume(directory: &Path, plan: P, rounds: Rounds, machine: Machine) -> Result<Self, Error> {
        let Some(mut found) = Self::load(directory)? else { return Ok(Self::new(plan, rounds, machine)) };
        let name = directory.display();
        let refuse = |what: &str| {
            Err(Error::Refused(format!("{name} has results of {what}: name another --out, or remove them")))
        };
        if found.plan != plan {
            return refuse("another experiment (other arrays, loads or times)");
        }
        let fact = |machine: &Machine, name: &str| machine.0.get(name).cloned();
        if let Some(name) = SAME_FACTS.iter().find(|name| fact(&found.machine, name) != fact(&machine, name)) {
            return refuse(&format!("another machine (its {name} differs)"));
        }
        found.rounds = rounds;
        Ok(found)
    }

    /// Reads a directory's results; `None` if it has none.
    ///
    /// # Errors
    /// If they can't be read, or are of another version.
    pub fn load(directory: &Path) -> Result<Option<Self>, Error> {
        let path = if directory.is_dir() { directory.join(FILE) } else { directory.to_owned() };
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read(&path).map_err(Error::io("read", &path))?;
        let results: Self =
            serde_json::from_slice(&text).map_err(|source| Error::Results { path: path.clone(), source })?;
        if results.format != FORMAT {
            let (path, found) = (path.display(), results.format);
            return Err(Error::Refused(format!("{path} has version {found}, this program reads {FORMAT}")));
        }
        Ok(Some(results))
    }

    /// Writes them into a directory; either the new version is there afterwards, or the one before.
    ///
    /// # Errors
    /// If they can't be written.
    pub fn save(&self, directory: &Path) -> Result<(), Error> {
        let path = directory.join(FILE);
        let beside = directory.join(format!("{FILE}.new"));
        let write = || {
            let mut file = fs::File::create(&beside)?;
            file.write_all(&serde_json::to_vec_pretty(self)?)?;
            file.sync_all()?;
            fs::rename(&beside, &path)
        };
        write().map_err(Error::io("write", &path))
    }
}

impl Results {
    /// Whether a cell was measured in a round.
    #[must_use]
    pub fn has(&self, round: usize, config: &Config, load: &str) -> bool {
        self.observations.iter().any(|it| it.round == round && it.load == load && it.config == *config)
    }

    /// A cell's measurements by round, which a reader selects a number of.
    #[must_use]
    pub fn values(&self, config: &Config, load: &str, value: impl Fn(&Measured) -> f64) -> Vec<f64> {
        let cell = self.observations.iter().filter(|it| it.load == load && it.config == *config);
        cell.map(|it| value(&it.measured)).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::plan::tests::{ROUNDS, plan};

    /// Results whose throughput a function of round, chunk and load gives.
    pub(crate) fn results(rounds: usize, mb_s: impl Fn(usize, u64, &str) -> f64) -> Results {
        let mut results = Results::new(plan(), ROUNDS, Machine::default());
        for round in 0..rounds {
            for config in results.plan.arrays.configs() {
                for load in results.plan.loads.clone() {
                    let mb_s = mb_s(round, config.chunk, &load.name);
                    let measured = Measured {
                        requests: 100,
                        iops: mb_s * 100.0,
                        mb_s,
                        mean_us: 1e4 / mb_s,
                        p50_us: 9e3 / mb_s,
                        p99_us: 1e5 / mb_s,
                    };
                    let config = config.clone();
                    results.observations.push(Observation { round, config, load: load.name, measured });
                }
            }
        }
        results
    }

    #[test]
    fn results_are_read_as_they_were_written() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(Results::<Plan, Observation>::load(directory.path()).expect("nothing is fine"), None);
        let results = results(2, |round, chunk, _| round as f64 + chunk as f64);
        results.save(directory.path()).expect("they are written");
        assert_eq!(Results::load(directory.path()).expect("they are read"), Some(results.clone()));
        assert!(
            results.has(1, &results.plan.arrays.configs()[0], "small")
                && !results.has(2, &results.plan.arrays.configs()[0], "small")
        );
        let more = Rounds { max: 50, ..ROUNDS };
        let resume = |plan, machine| Results::<Plan, Observation>::resume(directory.path(), plan, more, machine);
        let resumed = resume(plan(), Machine::default()).expect("more rounds are fine");
        assert_eq!((resumed.rounds, resumed.observations), (more, results.observations));
        assert!(resume(Plan { seconds: 9, ..plan() }, Machine::default()).is_err());
        assert!(resume(plan(), Machine([("kernel".into(), "other".into())].into())).is_err());
        fs::write(directory.path().join(FILE), "{}").expect("a file");
        assert!(resume(plan(), Machine::default()).is_err());
    }
}
