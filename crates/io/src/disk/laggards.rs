//! Members that keep every deadline and are still far slower than their peers, so that everybody waits for them.
//!
//! How long a member takes says little: disks differ, and so do loads. So each is compared with the others of its
//! array, which have the same load: the median of its reads, or of its writes, in a window of time with the median of
//! the others' medians. A member lags after two windows in a row in which it was far slower, and no longer after two in
//! which it was not. It has no clock, and changes nothing about how members are used.

use std::time::Duration;

use uraid_layout::{MemberIndex, MemberSet};

use super::{Latencies, OpName};
use crate::histogram::Histogram;

/// How long operations are collected before members are compared.
pub const WINDOW: Duration = Duration::from_secs(30);

/// A member with fewer operations of a kind in a window is not compared.
const OPERATIONS_MIN: u64 = 16;

/// How many times as long as its peers a member that lags takes, by the bounds of a histogram: more than four times,
/// and up to sixteen.
const FACTOR: u32 = 8;

/// As long as it takes less than so many times as long, it keeps up.
const FACTOR_ENOUGH: u32 = 4;

/// Whoever takes less keeps up, however fast the others are: disks beside flash are no fault.
const FLOOR: Duration = Duration::from_micros(1 << 16);

/// Windows in a row that make a difference.
const WINDOWS: u8 = 2;

/// See the module.
#[derive(Debug)]
pub struct Laggards {
    /// When the window began, and what had been timed by then.
    began: Duration,
    seen: Latencies,
    lagging: MemberSet,
    /// By slot, in how many windows in a row each was otherwise than it is said to be.
    contrary: Vec<u8>,
}

/// How a member was in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pace {
    KeepsUp,
    Between,
    Lags,
}

impl Laggards {
    /// Nobody, of so many members, as the time is `now`.
    #[must_use]
    pub fn new(members: usize, now: Duration) -> Self {
        let seen = Latencies::new(members);
        Self { began: now, seen, lagging: MemberSet::EMPTY, contrary: vec![0; members] }
    }

    /// Compares the members when a window is over. `latencies` is all that was timed so far, and `present` who is there
    /// to be compared.
    ///
    /// # Panics
    /// When there are other members than at first.
    pub fn look(&mut self, now: Duration, latencies: &Latencies, present: MemberSet) -> MemberSet {
        if now.saturating_sub(self.began) >= WINDOW {
            for (slot, pace) in paces(latencies, &self.seen, present) {
                self.note(slot, pace);
            }
            self.began = now;
            self.seen = latencies.clone();
        }
        self.lagging = self.lagging.minus(self.lagging.minus(present));
        self.lagging
    }

    /// Begins anew for another member in a slot.
    pub fn forget(&mut self, slot: MemberIndex) {
        self.contrary[slot.index()] = 0;
        self.lagging = self.lagging.without(slot);
    }

    fn note(&mut self, slot: MemberIndex, pace: Pace) {
        let is_lagging = self.lagging.contains(slot);
        let contrary = &mut self.contrary[slot.index()];
        let is_contrary = pace == if is_lagging { Pace::KeepsUp } else { Pace::Lags };
        *contrary = if is_contrary { *contrary + 1 } else { 0 };
        if *contrary >= WINDOWS {
            *contrary = 0;
            self.lagging = if is_lagging { self.lagging.without(slot) } else { self.lagging.with(slot) };
        }
    }
}

/// How each member was that had enough to do, as had others: the worst of its reads and its writes.
fn paces(latencies: &Latencies, seen: &Latencies, present: MemberSet) -> Vec<(MemberIndex, Pace)> {
    let medians = |name| -> Vec<(MemberIndex, Duration)> {
        let of_window = |slot| latencies.of(slot, name).since(seen.of(slot, name));
        let with_enough = present.iter().map(|slot| (slot, of_window(slot)));
        let with_enough = with_enough.filter(|(_, window): &(_, Histogram)| window.count() >= OPERATIONS_MIN);
        with_enough.filter_map(|(slot, window)| Some((slot, window.quantile(500)?))).collect()
    };
    let kinds = [OpName::Read, OpName::Write].map(medians);
    let worst = |slot| kinds.iter().filter_map(|medians| pace(slot, medians)).max();
    present.iter().filter_map(|slot| Some((slot, worst(slot)?))).collect()
}

/// How a member was beside the others; none where it, or they, had too little to do.
fn pace(slot: MemberIndex, medians: &[(MemberIndex, Duration)]) -> Option<Pace> {
    let (_, own) = *medians.iter().find(|(member, _)| *member == slot)?;
    let mut others: Vec<Duration> =
        medians.iter().filter(|(member, _)| *member != slot).map(|&(_, median)| median).collect();
    others.sort_unstable();
    let peers = *others.get(others.len() / 2)?;
    Some(match () {
        () if own >= FLOOR && own >= peers * FACTOR => Pace::Lags,
        () if own >= FLOOR && own >= peers * FACTOR_ENOUGH => Pace::Between,
        () => Pace::KeepsUp,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Members that take as long as they are told to, under virtual time.
    struct Rig {
        laggards: Laggards,
        latencies: Latencies,
        now: Duration,
        start: Instant,
    }

    impl Rig {
        fn new(members: usize) -> Self {
            let (laggards, latencies) = (Laggards::new(members, Duration::ZERO), Latencies::new(members));
            Self { laggards, latencies, now: Duration::ZERO, start: Instant::now() }
        }

        /// Runs a window in which each member serves `count` operations one after the other, each taking so many
        /// milliseconds; who lags then.
        fn window(&mut self, name: OpName, count: u64, millis: &[u64]) -> Vec<u8> {
            for (slot, &millis) in (0..).map(MemberIndex).zip(millis) {
                for _ in 0..count {
                    let end = self.start + Duration::from_millis(millis);
                    self.latencies.ended(slot, name, self.start, end);
                }
            }
            let all = MemberSet::all(millis.len());
            self.now += WINDOW - Duration::from_nanos(1);
            let before = self.laggards.look(self.now, &self.latencies, all);
            assert_eq!(before, self.laggards.lagging, "the window is not over");
            self.now += Duration::from_nanos(1);
            self.laggards.look(self.now, &self.latencies, all).iter().map(|slot| slot.0).collect()
        }
    }

    #[test]
    fn one_that_takes_half_a_second_lags_after_two_windows_and_keeps_up_after_two() {
        for name in [OpName::Read, OpName::Write] {
            let mut rig = Rig::new(4);
            assert_eq!(rig.window(name, 50, &[8, 8, 500, 8]), [0; 0], "once is no habit");
            assert_eq!(rig.window(name, 50, &[8, 8, 500, 8]), [2]);
            assert_eq!(rig.window(name, 50, &[8, 8, 8, 8]), [2]);
            assert_eq!(rig.window(name, 50, &[8, 8, 500, 8]), [2], "it begins again");
            assert_eq!(rig.window(name, 50, &[8, 8, 8, 8]), [2]);
            assert_eq!(rig.window(name, 50, &[8, 8, 8, 8]), [0; 0]);
            assert_eq!(rig.window(name, 50, &[8, 8, 500, 8]), [0; 0]);
        }
    }

    #[test]
    fn between_the_two_factors_nothing_changes() {
        let mut rig = Rig::new(3);
        for _ in 0..3 {
            assert_eq!(rig.window(OpName::Read, 50, &[30, 130, 30]), [0; 0], "four times");
        }
        (0..2).for_each(|_| drop(rig.window(OpName::Read, 50, &[30, 500, 30])));
        for _ in 0..3 {
            assert_eq!(rig.window(OpName::Read, 50, &[30, 130, 30]), [1], "four times");
        }
    }

    #[test]
    fn what_is_fast_enough_or_slow_everywhere_or_idle_does_not_lag() {
        for (count, millis) in
            [(50, &[1, 30, 1][..]), (50, &[500; 4]), (15, &[8, 8, 500]), (50, &[8, 500, 500]), (50, &[500])]
        {
            let mut rig = Rig::new(millis.len());
            for _ in 0..3 {
                assert_eq!(rig.window(OpName::Read, count, millis), [0; 0], "{count} of {millis:?} ms");
            }
        }
    }

    #[test]
    fn a_mirror_of_two_has_one_peer() {
        let mut rig = Rig::new(2);
        let _ = rig.window(OpName::Write, 20, &[8, 500]);
        assert_eq!(rig.window(OpName::Write, 20, &[8, 500]), [1]);
        assert_eq!(rig.laggards.look(rig.now, &rig.latencies, MemberSet::EMPTY.with(MemberIndex(0))), MemberSet::EMPTY);
    }
}
