//! Writes that go past the cache though they could be replied to from memory.
//!
//! What waits in memory costs processor time, and memory that other work has near. That pays where it is overwritten,
//! or becomes whole parity stripes, before it is written out, and where clients wait for members. Where neither is so,
//! as with random writes over much more than the cache to members in memory, more is done where writes go past the
//! cache, as those do for which there is no room. What seems to come together still goes there: a write that continues
//! another one.
//!
//! What comes and goes is counted in windows of time. After windows in which the cache was full and nothing came
//! together it is tried. If more is written then, it stays so, as long as that is so, there is much to write, and it
//! does not come together. If not, the next try is after a while, and after twice as long each time.

use std::ops::Range;

use uraid_layout::{Bytes, Lba, Sectors};

use crate::cache::Traffic;

/// Ticks of a window.
const WINDOW: u32 = 10;

/// What is written in a window where it is worth while to do anything about it.
const WRITTEN_MIN: Bytes = Bytes(16 << 20);

/// Windows in which the cache does not pay before it is tried without; and those that are compared with them, after one
/// in which what is still in the cache is written out.
const WINDOWS: u64 = 2;

/// Windows before the next try, at first and at most.
const REST_MIN: u64 = 4;
const REST_MAX: u64 = 1 << 9;

/// Streams that are known, by where they go on.
const STREAMS: usize = 8;

/// Of so many pages one is remembered, in so many places.
const SAMPLED: u64 = 16;
const PLACES: usize = 1 << 13;

/// Sectors of a page.
const PAGE: u64 = 8;

/// See the module.
#[derive(Debug, Default)]
pub struct Bypass {
    state: State,
    /// Whatever is measured.
    forced: Option<bool>,
    ticks: u32,
    /// Windows before the next try, and how many there are to be after it if it fails.
    rest: u64,
    penalty: u64,
    window: Window,
    /// What had gone through the cache when the window began.
    seen: Traffic,
    /// Where streams go on; and which of them is the oldest.
    ends: [u64; STREAMS],
    oldest: usize,
    /// Pages that were written, each with the number of pages before it.
    remembered: Vec<(u64, u64)>,
    pages: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Writes go into the cache; it has not paid in so many windows in a row, with so much written.
    Cached { windows: u64, written: u64 },
    /// They go past it, as a try; so much was written in so many windows, and before in as many.
    Tried { windows: u64, written: u64, before: u64 },
    /// They go past it, as more is written so than before in as many windows.
    Bypassed { before: u64, is_slower: bool },
}

/// What there was in a window.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// What went past the cache, and what of that which could have was kept.
    passed: Sectors,
    kept: Sectors,
    /// Pages that were looked for, and those that were found.
    looked: u64,
    found: u64,
}

impl Default for State {
    fn default() -> Self {
        Self::Cached { windows: 0, written: 0 }
    }
}

impl Bypass {
    /// Whether writes go past the cache.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.forced.unwrap_or(!matches!(self.state, State::Cached { .. }))
    }

    /// Decides it whatever is measured, or leaves it to that.
    pub fn force(&mut self, forced: Option<bool>) {
        self.forced = forced;
        self.begin(State::default());
    }

    /// Notes what of a write went past the cache.
    pub(super) fn note_passed(&mut self, len: Sectors) {
        self.window.passed.0 += len.0;
    }

    /// Whether a write goes past the cache, which has room for so many pages.
    pub(super) fn passes(&mut self, lba: Lba, len: Sectors, room: u64) -> bool {
        if !self.is_on() {
            return false;
        }
        let end = lba.0 + len.0;
        if let Some(place) = self.ends.iter_mut().find(|place| **place == lba.0).filter(|_| lba.0 > 0) {
            *place = end;
            self.window.kept.0 += len.0;
            return planted!(StreamsPass);
        }
        self.ends[self.oldest] = end;
        self.oldest = (self.oldest + 1) % STREAMS;
        self.remember(lba.0 / PAGE..end.div_ceil(PAGE), room);
        true
    }

    /// Looks for pages among those that were written before, of which the cache would still have `room`.
    fn remember(&mut self, pages: Range<u64>, room: u64) {
        for page in pages {
            self.pages += 1;
            // Fibonacci hashing.
            let hash = page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
            if !hash.is_multiple_of(SAMPLED) {
                continue;
            }
            let index = usize::try_from(hash / SAMPLED).expect("32 bits") % PLACES;
            let (other, number) = std::mem::replace(&mut self.remembered[index], (page, self.pages));
            self.window.looked += 1;
            self.window.found += u64::from(other == page && number > 0 && self.pages - number <= room);
        }
    }

    /// Notes that a tick has passed, with what went through the cache so far. Whether writes go past the cache from now
    /// on, or don't any more.
    pub(super) fn tick(&mut self, traffic: Traffic) -> bool {
        self.ticks += 1;
        if self.ticks < WINDOW {
            return false;
        }
        let was_on = self.is_on();
        let next = self.next(traffic);
        if std::mem::discriminant(&next) == std::mem::discriminant(&self.state) {
            self.state = next;
        } else {
            self.begin(next);
        }
        (self.ticks, self.seen, self.window) = (0, traffic, Window::default());
        self.is_on() != was_on
    }

    fn begin(&mut self, state: State) {
        self.state = state;
        // Whoever does not need the memory does not have it.
        let places = if self.is_on() { PLACES } else { 0 };
        if self.remembered.len() != places {
            (self.remembered, self.ends) = (vec![(0, 0); places], Default::default());
        }
    }

    /// What is done after the window that is over.
    fn next(&mut self, traffic: Traffic) -> State {
        let taken = traffic.taken.0 - self.seen.taken.0;
        match self.state {
            State::Cached { .. } if self.rest > 0 => {
                self.rest -= 1;
                State::default()
            }
            State::Cached { windows, written } if self.is_moot(traffic) => {
                let written = written + taken + self.window.passed.bytes().0;
                match windows + 1 {
                    WINDOWS => State::Tried { windows: 0, written: 0, before: written },
                    windows => State::Cached { windows, written },
                }
            }
            State::Tried { .. } | State::Bypassed { .. } if self.would_pay() => State::default(),
            State::Tried { windows: 0, before, .. } => State::Tried { windows: 1, written: 0, before },
            State::Tried { windows, written, before } => {
                let written = written + self.written_past();
                match windows {
                    WINDOWS if written > before / 100 * 105 || planted!(TriesKept) => {
                        self.penalty = REST_MIN;
                        State::Bypassed { before, is_slower: false }
                    }
                    WINDOWS => self.gives_up(),
                    _ => State::Tried { windows: windows + 1, written, before },
                }
            }
            State::Bypassed { before, is_slower: was_slower } => {
                let is_slower = self.written_past() < before / WINDOWS;
                if is_slower && was_slower { self.gives_up() } else { State::Bypassed { before, is_slower } }
            }
            State::Cached { .. } => State::default(),
        }
    }

    /// Writes go into the cache again, for longer each time.
    fn gives_up(&mut self) -> State {
        self.rest = self.penalty.max(REST_MIN);
        self.penalty = (2 * self.rest).min(REST_MAX);
        State::default()
    }

    /// Whether the cache was full and nothing came together in this window, with much to write.
    fn is_moot(&self, traffic: Traffic) -> bool {
        let since = |of: fn(&Traffic) -> Bytes| of(&traffic).0 - of(&self.seen).0;
        let (taken, destaged) = (since(|traffic| traffic.taken), since(|traffic| traffic.destaged));
        let comes_together = since(|all| all.coalesced) > taken / 8 || since(|all| all.whole) > destaged / 8;
        let is_full = destaged >= taken / 4 * 3;
        // What never goes into the cache says nothing about it.
        let is_used = taken >= WRITTEN_MIN.0 / 4;
        is_used && taken + self.window.passed.bytes().0 >= WRITTEN_MIN.0 && is_full && !comes_together
    }

    /// Whether the cache would have paid in this window, or there was little to write.
    fn would_pay(&self) -> bool {
        let Window { passed, kept, looked, found } = self.window;
        self.written_past() < WRITTEN_MIN.0 / 2 || kept > passed || found > looked / 4
    }

    /// What was written in this window.
    fn written_past(&self) -> u64 {
        self.window.passed.bytes().0 + self.window.kept.bytes().0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// What clients write in a window, all of which the cache writes out at once: how much, and what of that comes
    /// together.
    struct Rig {
        bypass: Bypass,
        traffic: Traffic,
        lba: u64,
    }

    impl Rig {
        fn new() -> Self {
            Self { bypass: Bypass::default(), traffic: Traffic::default(), lba: 0 }
        }

        /// A window with so much written in places far from each other; whether the next one goes past the cache.
        fn window(&mut self, mib: u64, coalesced: u64) -> bool {
            self.write(mib, coalesced, |lba| lba.wrapping_mul(7919) % (1 << 30) / 8 * 8)
        }

        fn write(&mut self, mib: u64, coalesced: u64, place: impl Fn(u64) -> u64) -> bool {
            for _ in 0..mib * 256 {
                self.lba += 8;
                let lba = Lba(place(self.lba));
                if self.bypass.passes(lba, Sectors(8), 1 << 13) {
                    self.bypass.note_passed(Sectors(8));
                } else {
                    self.traffic.taken.0 += 4096;
                    self.traffic.destaged.0 += 4096;
                }
            }
            if !self.bypass.is_on() {
                self.traffic.coalesced.0 += coalesced * MIB;
                self.traffic.destaged.0 -= coalesced * MIB;
            }
            (1..WINDOW).for_each(|_| assert!(!self.bypass.tick(self.traffic)));
            let was_on = self.bypass.is_on();
            assert_eq!(self.bypass.tick(self.traffic), self.bypass.is_on() != was_on);
            self.bypass.is_on()
        }

        /// Windows of these sizes, in MiB.
        fn windows(&mut self, sizes: &[u64]) -> Vec<bool> {
            sizes.iter().map(|&mib| self.window(mib, 0)).collect()
        }
    }

    #[test]
    fn writes_go_past_a_cache_as_long_as_more_is_written_so() {
        let mut rig = Rig::new();
        assert_eq!(rig.windows(&[40, 40, 40, 50, 50, 50]), [false, true, true, true, true, true]);
        assert_eq!(rig.windows(&[30, 50, 30, 30]), [true, true, true, false], "one slow window may be");
        assert_eq!(rig.windows(&[40; 6]), [false, false, false, false, false, true], "after a rest");
    }

    #[test]
    fn a_try_that_is_not_faster_ends_and_the_next_one_is_later_each_time() {
        let mut rig = Rig::new();
        let mut tries = Vec::new();
        let mut was_on = false;
        for window in 0..2000 {
            let is_on = rig.window(40, 0);
            if is_on && !was_on {
                tries.push(window);
            }
            was_on = is_on;
        }
        let gaps: Vec<u64> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
        // Two windows before a try, three of it.
        assert_eq!(gaps, [4, 8, 16, 32, 64, 128, 256, 512, 512].map(|rest| rest + 5));
    }

    #[test]
    fn what_comes_together_or_is_little_goes_into_the_cache() {
        for (mib, coalesced) in [(15, 0), (40, 6)] {
            let mut rig = Rig::new();
            assert!((0..20).all(|_| !rig.window(mib, coalesced)), "{mib} MiB, {coalesced} of them overwritten");
        }
        let mut rig = Rig::new();
        for _ in 0..20 {
            rig.bypass.note_passed(Bytes(100 * MIB).whole_sectors());
            assert!(!rig.window(3, 0), "all but the edges of what is large");
        }
        let begun = || {
            let mut rig = Rig::new();
            assert_eq!(rig.windows(&[40, 40, 50]), [false, true, true]);
            rig
        };
        assert!(!begun().window(7, 0), "little is written");
        assert!(!begun().write(50, 0, |lba| lba), "one stream");
        assert!(begun().write(50, 0, |lba| lba * 3), "apart");
        assert!(!begun().write(50, 0, |lba| lba % (24 << 11) * 3), "what the cache would still have is written again");
        assert!(begun().write(50, 0, |lba| lba % (48 << 11) * 3), "what it would not have any more is");
    }

    #[test]
    fn what_continues_another_write_is_kept() {
        let mut bypass = Bypass::default();
        bypass.force(Some(true));
        let mut passes = |lba| bypass.passes(Lba(lba), Sectors(8), 64);
        assert!(passes(0) && passes(800) && passes(1600));
        assert!(!passes(808) && !passes(8) && !passes(816) && !passes(1608));
        assert!(passes(840));
        bypass.force(None);
        assert!(!bypass.is_on() && !bypass.passes(Lba(0), Sectors(8), 64));
    }
}
