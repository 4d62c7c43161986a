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
pub(crate) struct Pace(RefCell<[Samples; Work::ALL.len()]>);

/// How far some work was, and when.
#[derive(Debug, Default)]
struct Samples {
    at: VecDeque<(Instant, u64)>,
    /// It went back then: a reshape that is given up.
    is_back: bool,
}

/// How far some work is.
#[derive(Clone, Copy, Debug)]
struct Progress {
    done: Sectors,
    total: Sectors,
    is_stuck: bool,
    is_back: bool,
}

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

    /// How far such work is; `None` if there is none, or none that goes on: nothing is written to an array that is only
    /// read.
    fn progress<D: Disk, T>(self, engine: &Engine<D, T>) -> Option<Progress> {
        if self == Self::Scrub {
            let scrub = engine.scrub()?;
            let (done, total) = (scrub.done, scrub.total);
            return scrub.is_running.then_some(Progress { done, total, is_stuck: false, is_back: false });
        }
        // What is written waits for room.
        let is_stuck = !engine.troubles().roomless.is_empty();
        let of = |one: uraid_io::engine::Progress| Progress {
            done: one.done,
            total: one.total,
            is_stuck: is_stuck || one.stuck.is_some(),
            is_back: false,
        };
        let progress = match self {
            Self::Reshape => engine.reshape().map(|way| way.progress()).map(|one| Progress {
                done: one.done,
                total: one.total,
                is_stuck: is_stuck || one.stuck.is_some(),
                is_back: one.is_back,
            }),
            Self::Rebuild => engine.rebuilding().map(of),
            Self::Replace => engine.replacement().map(|copy| {
                let progress = of(copy.progress);
                // The copy takes its place when the members can be marked clean.
                let is_kept = progress.done == progress.total && engine.unwritten().is_some();
                Progress { is_stuck: progress.is_stuck || is_kept, ..progress }
            }),
            Self::Initialise | Self::Scrub => engine.initialising().map(of),
        };
        progress.filter(|_| !engine.is_read_only())
    }
}

impl Pace {
    /// Notes how far everything is now.
    pub(crate) fn note<D: Disk, T>(&self, engine: &Engine<D, T>, now: Instant) {
        for work in Work::ALL {
            self.0.borrow_mut()[work.index()].note(now, work.progress(engine));
        }
    }

    /// What is under way.
    pub(crate) fn sweeps<D: Disk, T>(&self, engine: &Engine<D, T>, now: Instant) -> Vec<Sweep> {
        let sweep = |work: Work| {
            let progress = work.progress(engine)?;
            let (done_bytes, total_bytes, stuck) =
                (progress.done.bytes().0, progress.total.bytes().0, progress.is_stuck);
            let bytes_per_second = self.0.borrow()[work.index()].rate(now, progress);
            let left = total_bytes.saturating_sub(done_bytes);
            let seconds_left = bytes_per_second.filter(|&rate| rate > 0).map(|rate| left.div_ceil(rate));
            Some(Sweep { work, done_bytes, total_bytes, bytes_per_second, seconds_left, stuck })
        };
        Work::ALL.into_iter().filter_map(sweep).collect()
    }
}

impl Samples {
    /// Adds a sample, at most one a second; without work they end, and what turns round or goes back begins anew.
    fn note(&mut self, now: Instant, progress: Option<Progress>) {
        let Some(Progress { done, is_back, .. }) = progress else { return self.at.clear() };
        let done = done.bytes().0;
        if self.is_back != is_back || self.at.back().is_some_and(|&(_, last)| done < last) {
            self.at.clear();
        }
        self.is_back = is_back;
        if self.at.back().is_none_or(|&(at, _)| now.duration_since(at) >= WINDOW_MIN) {
            self.at.push_back((now, done));
        }
        while self.at.front().is_some_and(|&(at, _)| now.duration_since(at) > WINDOW) {
            self.at.pop_front();
        }
    }

    /// Bytes a second since the oldest one.
    fn rate(&self, now: Instant, Progress { done, is_back, .. }: Progress) -> Option<u64> {
        let &(at, before) = self.at.front().filter(|_| self.is_back == is_back)?;
        let (took, moved) = (now.duration_since(at), u128::from(done.bytes().0.checked_sub(before)?));
        let rate = || u64::try_from(moved * 1000 / took.as_millis()).unwrap_or(u64::MAX);
        (took >= WINDOW_MIN).then(rate)
    }
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

    fn progress(done: u64, is_back: bool) -> Progress {
        Progress { done: Sectors(done), total: Sectors(100_000), is_stuck: false, is_back }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_rate_is_that_of_the_last_half_minute() {
        let (start, mut samples) = (Instant::now(), Samples::default());
        let at = |second: u64| progress(500 + 100 * second.min(60) + 10 * second.saturating_sub(60), false);
        samples.note(start, Some(at(0)));
        assert_eq!(samples.rate(start, at(0)), None, "nothing is known yet");
        // 100 sectors a second for a minute, then 10.
        (1..=100).for_each(|second| samples.note(start + seconds(second), Some(at(second))));
        assert_eq!(samples.rate(start + seconds(100), at(100)), Some(10 * 512));
        assert!(samples.at.len() <= 31, "{samples:?}");
        assert_eq!(samples.rate(start + seconds(130), at(100)), Some(5 * 512), "it stands still");
    }

    #[test]
    fn what_begins_anew_has_no_rate_of_before() {
        let (start, mut samples) = (Instant::now(), Samples::default());
        let at = |second: u64| start + seconds(second);
        samples.note(at(0), Some(progress(0, false)));
        samples.note(at(5), Some(progress(5000, false)));
        assert_eq!(samples.rate(at(5), progress(5000, false)), Some(1000 * 512));
        // What is done of the way back is what was left of the way there.
        assert_eq!(samples.rate(at(6), progress(95_000, true)), None, "it has turned round");
        samples.note(at(6), Some(progress(95_000, true)));
        assert_eq!(samples.rate(at(8), progress(95_200, true)), Some(100 * 512));
        samples.note(at(9), Some(progress(100, true)));
        assert_eq!(samples.rate(at(9), progress(100, true)), None, "it has begun anew");
        samples.note(at(10), None);
        assert_eq!(samples.rate(at(20), progress(300, true)), None, "it has ended");
    }
}
