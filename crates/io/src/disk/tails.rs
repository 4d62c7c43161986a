//! How long nearly all reads of each member take: who takes longer is worth asking others instead.
//!
//! It is the 99th percentile of a member's own reads, of the last thousand or so. Reads that were given up have no
//! time; they took longer than nearly all did. There is no clock here.

use std::time::Duration;

use uraid_layout::{MemberIndex, MemberSet};

use super::{Latencies, OpName};
use crate::histogram::Histogram;

/// Reads before anything is said of a member, and before it is said anew.
const READS_FIRST: u64 = 100;
const READS: u64 = 1000;

/// Of so many reads one may take longer.
const OF: u64 = 100;

/// Nothing is unusually long that does not take longer than this: asking others takes as long.
const FLOOR: Duration = Duration::from_millis(1);

/// See the module.
#[derive(Debug, Default)]
pub struct Tails {
    members: Vec<Tail>,
    /// By slot.
    after: Vec<Option<Duration>>,
}

/// A member's.
#[derive(Clone, Copy, Debug, Default)]
struct Tail {
    /// Its reads when its time was found, and those that were given up by then.
    seen: Histogram,
    seen_given_up: u64,
}

impl Tails {
    /// Looks at what was timed so far. Of each member that is meant: how many of its reads were given up for taking
    /// longer than is said here. Of others nothing is said.
    pub fn look(&mut self, latencies: &Latencies, given_up: impl Iterator<Item = (MemberIndex, u64)>) {
        let mut absent = MemberSet::all(self.after.len());
        for (slot, given_up) in given_up {
            absent = absent.without(slot);
            let slots = self.members.len().max(slot.index() + 1);
            self.members.resize(slots, Tail::default());
            self.after.resize(slots, None);
            let (tail, after) = (&mut self.members[slot.index()], &mut self.after[slot.index()]);
            tail.look(latencies.of(slot, OpName::Read), given_up, after);
        }
        for slot in absent.iter() {
            (self.members[slot.index()], self.after[slot.index()]) = (Tail::default(), None);
        }
    }

    /// How long nearly all reads of each member take, by slot; none: too few are known.
    #[must_use]
    pub fn after(&self) -> &[Option<Duration>] {
        &self.after
    }
}

impl Tail {
    fn look(&mut self, reads: &Histogram, given_up: u64, after: &mut Option<Duration>) {
        if reads.count() < self.seen.count() || given_up < self.seen_given_up {
            // It is another member, which is counted anew.
            (*self, *after) = (Self::default(), None);
        }
        let timed = reads.since(&self.seen);
        let late = given_up - self.seen_given_up;
        let count = timed.count() + late;
        if count < if after.is_some() { READS } else { READS_FIRST } {
            return;
        }
        *after = Some(match *after {
            // More took longer than was said than should: nobody knows how long.
            Some(before) if late > count / OF => (2 * before).min(Histogram::bounds().last().expect("a bound")),
            _ => with_late(&timed, late).quantile(1000 - 1000 / OF).expect("there were some").max(FLOOR),
        });
        (self.seen, self.seen_given_up) = (*reads, given_up);
    }
}

/// These, and so many that took longer.
fn with_late(timed: &Histogram, late: u64) -> Histogram {
    let mut buckets = *timed.buckets();
    *buckets.last_mut().expect("a last one") += late;
    Histogram::of_buckets(buckets, timed.sum())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const MEMBER: MemberIndex = MemberIndex(1);

    struct Rig {
        tails: Tails,
        latencies: Latencies,
        given_up: u64,
        start: Instant,
    }

    impl Rig {
        fn new() -> Self {
            let (tails, latencies) = (Tails::default(), Latencies::new(2));
            Self { tails, latencies, given_up: 0, start: Instant::now() }
        }

        /// So many reads that take so long; what is said then, in microseconds.
        fn reads(&mut self, count: usize, micros: u64) -> Option<u128> {
            for _ in 0..count {
                let end = self.start + Duration::from_micros(micros);
                self.latencies.ended(MEMBER, OpName::Read, self.start, end);
                self.latencies.ended(MEMBER, OpName::Write, self.start, self.start + Duration::from_secs(9));
            }
            self.look()
        }

        fn give_up(&mut self, count: u64) -> Option<u128> {
            self.given_up += count;
            self.look()
        }

        fn look(&mut self) -> Option<u128> {
            self.tails.look(&self.latencies, [(MEMBER, self.given_up)].into_iter());
            assert_eq!(self.tails.after()[0], None, "of the other one nothing is known");
            self.tails.after()[1].map(|after| after.as_micros())
        }
    }

    #[test]
    fn what_is_said_is_the_bound_that_one_of_a_hundred_is_beyond() {
        let mut rig = Rig::new();
        assert_eq!((rig.reads(98, 3000), rig.reads(1, 60_000)), (None, None), "too few");
        assert_eq!(rig.reads(1, 3000), Some(4096), "one of a hundred may take longer");
        assert_eq!((rig.reads(979, 3000), rig.reads(20, 60_000)), (Some(4096), Some(4096)), "once in a thousand reads");
        assert_eq!(rig.reads(1, 3000), Some(65_536), "two of a hundred did");
        assert_eq!(rig.reads(1000, 20), Some(1000), "what takes less is not worth while");
    }

    #[test]
    fn what_was_given_up_took_longer() {
        let mut rig = Rig::new();
        assert_eq!(rig.reads(100, 3000), Some(4096));
        assert_eq!((rig.reads(990, 3000), rig.give_up(10)), (Some(4096), Some(4096)), "one of a hundred");
        assert_eq!((rig.reads(989, 3000), rig.give_up(11)), (Some(4096), Some(8192)), "more");
        assert_eq!((rig.reads(990, 300), rig.give_up(10)), (Some(8192), Some(1000)), "it is fast again");
        for _ in 0..20 {
            let _ = rig.give_up(1000);
        }
        assert_eq!(rig.give_up(1000), Some(8_388_608), "there is an end to it");
    }

    #[test]
    fn what_was_given_up_counts_where_it_is_as_much_as_should_be() {
        let mut rig = Rig::new();
        assert_eq!(rig.reads(100, 3000), Some(4096));
        assert_eq!((rig.reads(981, 3000), rig.reads(9, 60_000)), (Some(4096), Some(4096)));
        assert_eq!(rig.give_up(10), Some(65_536), "990 of a thousand took that long at most");
    }

    #[test]
    fn of_another_member_nothing_is_known() {
        let mut rig = Rig::new();
        assert_eq!((rig.reads(100, 3000), rig.give_up(1)), (Some(4096), Some(4096)));
        rig.latencies.forget(MEMBER);
        assert_eq!(rig.look(), None);
        assert_eq!(rig.reads(100, 9000), Some(16_384));
        (rig.given_up, rig.latencies) = (0, Latencies::new(2));
        assert_eq!(rig.look(), None);
        assert_eq!(rig.reads(100, 9000), Some(16_384));
        rig.tails.look(&rig.latencies, std::iter::empty());
        assert_eq!(rig.tails.after(), [None, None], "it is a file now");
    }
}
