//! Where requests come from: processes that wait for each answer before they ask again, and mixes of what they ask for.

use uraid_layout::{Bytes, Lba, Sectors};

use super::array::Planned;
use super::sizes::Sizes;
use super::{Error, Nanos, Request};
use uraid_random::Random;

/// What makes requests.
pub trait Source {
    /// The next request of a process that has none under way; none when the process has ended.
    fn next(&mut self, process: usize, now: Nanos) -> Option<Request>;

    /// The next request that comes at a time of its own, whatever is under way. Times don't fall.
    fn arrival(&mut self) -> Option<(Nanos, Request)> {
        None
    }

    /// The last request as disk operations, where they are known already; see [`Tape`](super::Tape).
    fn planned(&self) -> Option<Planned<'_>> {
        None
    }
}

/// Where in the array a component's requests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Anywhere, uniformly, at a multiple of this.
    Random {
        /// The alignment.
        align: Bytes,
    },
    /// Each process has a stream of its own, from a random place on, and starts over at the array's end.
    Sequential,
    /// All processes have one stream together, from the array's start on.
    Shared,
}

/// A kind of request of a [`Mix`].
#[derive(Clone, Debug, PartialEq)]
pub struct Component {
    /// How often it comes, relative to the others.
    pub weight: f64,
    /// How large it is.
    pub sizes: Sizes,
    /// The share of reads.
    pub reads: f64,
    /// Where it is.
    pub pattern: Pattern,
}

/// Requests drawn from some components: Chen & Lee's workloads have one, a file server's many.
#[derive(Clone, Debug)]
pub struct Mix {
    components: Vec<Component>,
    total: f64,
    capacity: Sectors,
    random: Random,
    /// For each component: where each process's stream goes on, or the shared one.
    streams: Vec<Vec<Option<u64>>>,
}

impl Mix {
    /// Requests to an array of this capacity.
    ///
    /// # Errors
    /// When there is no component, or a weight, share, alignment or size makes no sense for the array.
    pub fn new(components: Vec<Component>, capacity: Sectors, seed: u64) -> Result<Self, Error> {
        let error = |field, value, rule| Err(Error::Workload { field, value, rule });
        for component in &components {
            if !(component.weight > 0.0 && component.weight.is_finite()) {
                return error("weight", component.weight, "over zero");
            }
            if !(0.0..=1.0).contains(&component.reads) {
                return error("reads", component.reads, "a share of 0 to 1");
            }
            if let Pattern::Random { align } = component.pattern
                && (align.0 == 0 || !align.0.is_multiple_of(512))
            {
                return error("alignment", align.0 as f64, "whole sectors of 512 bytes");
            }
            if component.sizes.largest().0 > capacity.0 {
                return error("largest size", component.sizes.largest().0 as f64, "at most the array's sectors");
            }
        }
        if components.is_empty() {
            return error("components", 0.0, "at least one");
        }
        let total = components.iter().map(|component| component.weight).sum();
        let streams = vec![Vec::new(); components.len()];
        Ok(Self { components, total, capacity, random: Random::new(seed), streams })
    }

    /// Chen & Lee's workload: sizes of one distribution, a share of reads, aligned to 1 KiB, uniform over the array.
    ///
    /// # Errors
    /// As [`Mix::new`].
    pub(crate) fn uniform(sizes: Sizes, reads: f64, capacity: Sectors, seed: u64) -> Result<Self, Error> {
        let pattern = Pattern::Random { align: super::sizes::UNIT };
        Self::new(vec![Component { weight: 1.0, sizes, reads, pattern }], capacity, seed)
    }

    /// Draws a request of a process.
    pub fn draw(&mut self, process: usize) -> Request {
        let index = self.component();
        let component = &self.components[index];
        let len = component.sizes.draw(&mut self.random);
        let is_write = self.random.unit() >= component.reads;
        let room = self.capacity.0 - len.0;
        let at = match component.pattern {
            Pattern::Random { align } => {
                let step = align.whole_sectors().0;
                let lba = self.random.below(room / step + 1) * step;
                return self.at(is_write, lba, len);
            }
            Pattern::Sequential => process,
            Pattern::Shared => 0,
        };
        let is_shared = component.pattern == Pattern::Shared;
        let streams = &mut self.streams[index];
        if streams.len() <= at {
            streams.resize(at + 1, None);
        }
        let start = if is_shared { 0 } else { self.random.below(room / len.0 + 1) * len.0 };
        let lba = streams[at].filter(|&next| next <= room).unwrap_or(if streams[at].is_some() { 0 } else { start });
        streams[at] = Some(lba + len.0);
        self.at(is_write, lba, len)
    }

    fn at(&self, is_write: bool, lba: u64, len: Sectors) -> Request {
        Request { volume: 0, is_write, lba: Lba(lba), len }
    }

    fn component(&mut self) -> usize {
        if self.components.len() == 1 {
            return 0;
        }
        let mut left = self.random.unit() * self.total;
        for (index, component) in self.components.iter().enumerate() {
            left -= component.weight;
            if left < 0.0 {
                return index;
            }
        }
        self.components.len() - 1
    }
}

impl Source for Mix {
    fn next(&mut self, process: usize, _now: Nanos) -> Option<Request> {
        Some(self.draw(process))
    }
}

/// Requests of another source that come at random times, independently of each other (a Poisson process).
#[derive(Clone, Debug)]
pub struct Arrivals {
    mix: Mix,
    random: Random,
    mean_ns: f64,
    now: f64,
}

impl Arrivals {
    /// Requests with this mean time between them.
    #[must_use]
    pub fn new(mix: Mix, mean: Nanos, seed: u64) -> Self {
        Self { mix, random: Random::new(seed), mean_ns: mean.0 as f64, now: 0.0 }
    }
}

impl Source for Arrivals {
    fn next(&mut self, _process: usize, _now: Nanos) -> Option<Request> {
        None
    }

    fn arrival(&mut self) -> Option<(Nanos, Request)> {
        self.now -= self.mean_ns * (1.0 - self.random.unit()).ln();
        Some((Nanos(self.now as u64), self.mix.draw(0)))
    }
}
