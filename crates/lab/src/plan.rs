//! What is to be measured, and on which arrays: plain data.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
pub use uraid_model::workloads::size;

/// The arrays of an experiment: a grid of levels, chunks and cache modes over the same members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrays {
    /// RAID levels, as `uraid create --level` takes them.
    pub levels: Vec<String>,
    /// Chunk sizes in bytes.
    pub chunks: Vec<u64>,
    /// Cache modes, as `uraid serve --cache` takes them.
    pub caches: Vec<String>,
    /// Where the members are.
    pub place: Storage,
    /// Members of an array.
    pub members: usize,
    /// What `uraid serve --cache-size` gets, in bytes.
    pub cache_size: u64,
}

/// How often everything is measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rounds {
    /// The fewest rounds. A round measures every cell once.
    pub min: usize,
    /// The most rounds.
    pub max: usize,
    /// A cell is done when the interval of its median is within this share of it.
    pub precision: f64,
}

/// Arrays under loads. Two runs with the same plan are one experiment, however many rounds they have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The arrays.
    pub arrays: Arrays,
    /// The loads: name, a line for people, digest.
    pub loads: Vec<LoadId>,
    /// What generates them.
    pub driver: Driver,
    /// Random requests begin at multiples of this, in bytes.
    pub align: u64,
    /// Seconds of a cell before anything counts.
    pub warm_up_s: u64,
    /// Seconds that count.
    pub seconds: u64,
}

/// A load in a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadId {
    /// Its name.
    pub name: String,
    /// A line for people.
    pub title: String,
    /// A checksum of its content.
    pub digest: u32,
}

/// What generates requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    /// fio with its nbd engine.
    Fio,
    /// The built-in generator.
    Native,
}

/// Where members are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// Files of this size, made in these directories in turn.
    Directories {
        /// The directories.
        paths: Vec<PathBuf>,
        /// Size of a member in bytes.
        member_size: u64,
    },
    /// These devices, which are blank.
    Devices {
        /// The devices.
        paths: Vec<PathBuf>,
    },
}

/// An array as it is served: a point of the grid.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Config {
    /// The level, as `uraid create --level` takes it.
    pub level: String,
    /// The cache mode.
    pub cache: String,
    /// The chunk in bytes.
    pub chunk: u64,
}

impl Arrays {
    /// All points of the grid, those that share members beside each other.
    #[must_use]
    pub(crate) fn configs(&self) -> Vec<Config> {
        let mut configs = Vec::new();
        for level in &self.levels {
            for &chunk in &self.chunks {
                let config = |cache: &String| Config { level: level.clone(), cache: cache.clone(), chunk };
                configs.extend(self.caches.iter().map(config));
            }
        }
        configs
    }
}

impl Rounds {
    /// Things in the order of a round. It turns round from one round to the next, and rotates, so that nothing always
    /// follows the same thing.
    pub(crate) fn ordered<T>(mut things: Vec<T>, round: usize) -> Vec<T> {
        if round % 2 == 1 {
            things.reverse();
        }
        let turn = (round / 2) % things.len().max(1);
        things.rotate_left(turn);
        things
    }
}

impl Plan {
    /// How long a cell takes at least.
    #[must_use]
    pub(crate) fn cell_time(&self) -> Duration {
        Duration::from_secs(self.warm_up_s + self.seconds)
    }
}

impl Config {
    /// Level and cache mode, for people.
    #[must_use]
    pub fn group(&self) -> String {
        format!("{}, {}", level_title(&self.level), self.cache)
    }
}

impl fmt::Display for Config {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}, chunk {}, {}", level_title(&self.level), size(self.chunk), self.cache)
    }
}

/// A level for people: `RAID 5`, `RM2`.
#[must_use]
pub fn level_title(level: &str) -> String {
    if level == "rm2" { "RM2".to_owned() } else { format!("RAID {level}") }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// RAID 5, chunks of 16, 64 and 256 KiB, write-back, two loads.
    pub(crate) fn plan() -> Plan {
        let load = |name: &str| LoadId { name: name.to_owned(), title: format!("title of {name}"), digest: 1 };
        Plan {
            arrays: arrays(),
            loads: vec![load("small"), load("large")],
            driver: Driver::Native,
            align: 4096,
            warm_up_s: 1,
            seconds: 3,
        }
    }

    /// RAID 5, chunks of 16, 64 and 256 KiB, write-back.
    pub(crate) fn arrays() -> Arrays {
        Arrays {
            levels: vec!["5".into()],
            chunks: vec![16 << 10, 64 << 10, 256 << 10],
            caches: vec!["writeback".into()],
            place: Storage::Directories { paths: vec!["lab".into()], member_size: 256 << 20 },
            members: 5,
            cache_size: 32 << 20,
        }
    }

    pub(crate) const ROUNDS: Rounds = Rounds { min: 6, max: 12, precision: 0.05 };

    #[test]
    fn a_grid_has_every_point_once() {
        let arrays = Arrays {
            levels: vec!["5".into(), "rm2".into()],
            caches: vec!["writeback".into(), "none".into()],
            ..arrays()
        };
        let configs = arrays.configs();
        assert_eq!(configs.len(), 12);
        assert_eq!(configs[1].to_string(), "RAID 5, chunk 16K, none");
        assert_eq!(configs[11].group(), "RM2, none");
    }

    #[test]
    fn nothing_always_follows_the_same_thing() {
        let orders: Vec<Vec<u8>> = (0..6).map(|round| Rounds::ordered(vec![1, 2, 3], round)).collect();
        assert_eq!(orders, [[1, 2, 3], [3, 2, 1], [2, 3, 1], [2, 1, 3], [3, 1, 2], [1, 3, 2]]);
        assert!(Rounds::ordered(Vec::<u8>::new(), 5).is_empty());
    }
}
