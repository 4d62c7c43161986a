//! Background work on a whole array, all kinds alike: how far it is, how fast it goes, and how long it will take.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use uraid_io::disk::Disk;
use uraid_io::engine::Engine;
use uraid_layout::Sectors;

/// A rate is the mean over so much time at most, and over so much at least.
const WINDOW: Duration = Duration::from_secs(30);
const WINDOW_MIN: Duration = Duration::from_secs(1);

/// A kind of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Content moves to another shape.
    Reshape,
    /// Missing content of members is computed.
    Rebuild,
    /// A member is copied to the one that is to take its place.
    Replace,
    /// Members are compared.
    Scrub,
    /// What nobody has written becomes zeros on the members.
    Initialise,
}

/// Background work that has not ended yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// What is done.
    pub work: Work,
    /// How much is done, in bytes of the array.
    pub done_bytes: u64,
    /// Of so much.
    pub total_bytes: u64,
    /// The mean rate over the last half minute; `None` in the first second.
    pub bytes_per_second: Option<u64>,
    /// How long the rest takes at that rate; `None` if that is not known, or for ever.
    pub seconds_left: Option<u64>,
    /// It can't go on now. It is tried again.
    pub stuck: bool,
}

/// How far background work has come lately.
#[derive(Debug, Default)]
pub(crate) struct Pace(RefCell<[VecDeque<(Instant, u64)>; Work::ALL.len()]>);

impl Work {
    /// Every kind, in the order in which the engine does them.
    pub const ALL: [Self; 5] = [Self::Reshape, Self::Rebuild, Self::Replace, Self::Scrub, Self::Initialise];

    /// Its name for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reshape => "reshape",
            Self::Rebuild => "rebuild",
            Self::Replace => "replace",
            Self::Scrub => "scrub",
            Self::Initialise => "initialise",
        }
    }

    /// What the server does then, for people.
    #[must_use]
    pub fn doing(self) -> &'static str {
        match self {
            Self::Reshape => "reshaping",
            Self::Rebuild => "rebuilding",
            Self::Replace => "copying",
            Self::Scrub => "scrubbing",
            Self::Initialise => "initialising",
        }
    }

    fn index(self) -> usize {
        self as usize
    }

    /// How much of such work is done, out of how much, and whether it is stuck; `None` if there is none.
    fn progress<D: Disk, T>(self, engine: &Engine<D, T>) -> Option<(Sectors, Sectors, bool)> {
        match self {
            Self::Reshape => {
                let progress = engine.reshape()?.progress();
                Some((progress.done, progress.total, progress.stuck.is_some()))
            }
            Self::Rebuild => engine.rebuilding().map(|one| (one.done, one.total, one.stuck.is_some())),
            Self::Replace => {
                let progress = engine.replacement()?.progress;
                Some((progress.done, progress.total, progress.stuck.is_some()))
            }
            Self::Scrub => {
                let scrub = engine.scrub();
                scrub.filter(|scrub| scrub.is_running).map(|scrub| (scrub.done, scrub.total, false))
            }
            Self::Initialise => engine.initialising().map(|one| (one.done, one.total, one.stuck.is_some())),
        }
    }
}

impl Pace {
    /// Notes how far everything is now.
    pub(crate) fn note<D: Disk, T>(&self, engine: &Engine<D, T>, now: Instant) {
        for work in Work::ALL {
            let done = work.progress(engine).map(|(done, ..)| done.bytes().0);
            note(&mut self.0.borrow_mut()[work.index()], now, done);
        }
    }

    /// What is under way.
    pub(crate) fn sweeps<D: Disk, T>(&self, engine: &Engine<D, T>, now: Instant) -> Vec<Sweep> {
        let sweep = |work: Work| {
            let (done, total, stuck) = work.progress(engine)?;
            let (done_bytes, total_bytes) = (done.bytes().0, total.bytes().0);
            let bytes_per_second = rate(&self.0.borrow()[work.index()], now, done_bytes);
            let left = total_bytes.saturating_sub(done_bytes);
            let seconds_left = bytes_per_second.filter(|&rate| rate > 0).map(|rate| left.div_ceil(rate));
            Some(Sweep { work, done_bytes, total_bytes, bytes_per_second, seconds_left, stuck })
        };
        Work::ALL.into_iter().filter_map(sweep).collect()
    }
}

/// Adds a sample of work, at most one a second; without work the samples end, and what goes back begins anew.
fn note(samples: &mut VecDeque<(Instant, u64)>, now: Instant, done: Option<u64>) {
    let Some(done) = done else { return samples.clear() };
    if samples.back().is_some_and(|&(_, last)| done < last) {
        samples.clear();
    }
    if samples.back().is_none_or(|&(at, _)| now.duration_since(at) >= WINDOW_MIN) {
        samples.push_back((now, done));
    }
    while samples.front().is_some_and(|&(at, _)| now.duration_since(at) > WINDOW) {
        samples.pop_front();
    }
}

/// Bytes a second since the oldest sample.
fn rate(samples: &VecDeque<(Instant, u64)>, now: Instant, done: u64) -> Option<u64> {
    let &(at, before) = samples.front()?;
    let (took, moved) = (now.duration_since(at), u128::from(done.checked_sub(before)?));
    let rate = || u64::try_from(moved * 1000 / took.as_millis()).unwrap_or(u64::MAX);
    (took >= WINDOW_MIN).then(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_own_samples() {
        for (index, work) in Work::ALL.into_iter().enumerate() {
            assert_eq!(work.index(), index, "{work:?}");
        }
    }

    #[test]
    fn a_rate_is_that_of_the_last_half_minute() {
        let (start, mut samples) = (Instant::now(), VecDeque::new());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        note(&mut samples, at(0), Some(500));
        assert_eq!(rate(&samples, at(0), 500), None, "nothing is known yet");
        // 100 bytes a second for a minute, then 10.
        for second in 1..=100 {
            note(&mut samples, at(second), Some(500 + 100 * second.min(60) + 10 * second.saturating_sub(60)));
        }
        assert_eq!(rate(&samples, at(100), 6900), Some(10));
        assert!(samples.len() <= 31, "{} samples", samples.len());
        assert_eq!(rate(&samples, at(130), 6900), Some(5), "it stands still");
    }

    #[test]
    fn what_begins_anew_has_no_rate_of_before() {
        let (start, mut samples) = (Instant::now(), VecDeque::new());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        note(&mut samples, at(0), Some(0));
        note(&mut samples, at(5), Some(5000));
        assert_eq!(rate(&samples, at(5), 5000), Some(1000));
        note(&mut samples, at(6), Some(100));
        assert_eq!(rate(&samples, at(6), 100), None, "it went back");
        assert_eq!(rate(&samples, at(8), 300), Some(100));
        note(&mut samples, at(9), None);
        assert_eq!(rate(&samples, at(20), 300), None, "it has ended");
    }
}
