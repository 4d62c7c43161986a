//! Weighted shares in flight: how reads, writes and background work share the members.
//!
//! What a member is given it serves in its own order, so what decides how long a read waits is how much else is there
//! already. Each class may have so many bytes with the members ([`LIMITS`]); more waits here, in the order of asking,
//! for its own class only. So a read never queues behind a write, a writer that saturates the array finds room as soon
//! as its own operations end, and destaging can't crowd out either. A phase that is larger than the limit goes alone in
//! its class. Nothing is paid below the limits.

use std::collections::VecDeque;

use uraid_layout::Bytes;

use super::job::JobId;

/// What work is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Clients' reads.
    Read,
    /// Clients' writes and what else changes the array while somebody waits.
    Write,
    /// What nobody waits for: destaging.
    Background,
    /// Comparing what members hold.
    Scrub,
    /// What a member that joined lacks.
    Rebuild,
}

/// Bytes of each class that may be with the members: several times what keeps a fast device busy for a millisecond, in
/// the proportion in which they are to be served.
pub(super) const LIMITS: [Bytes; 5] = [Bytes(8 << 20), Bytes(4 << 20), Bytes(2 << 20), Bytes(4 << 20), Bytes(8 << 20)];

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Shares {
    classes: [Share; 5],
}

#[derive(Debug, Default)]
struct Share {
    in_flight: u64,
    waiting: VecDeque<(JobId, Bytes)>,
}

impl Shares {
    /// Whether a job's phase that moves `cost` may begin. If not, the job waits until [`Shares::leave`] names it, and
    /// has entered then.
    pub(super) fn enter(&mut self, class: Class, job: JobId, cost: Bytes) -> bool {
        let share = &mut self.classes[class as usize];
        let enters = share.waiting.is_empty() && share.fits(class, cost);
        if enters {
            share.in_flight += cost.0;
        } else {
            share.waiting.push_back((job, cost));
        }
        enters
    }

    /// Ends a phase. The jobs that enter in its place are handed to `entered`.
    pub(super) fn leave(&mut self, class: Class, cost: Bytes, mut entered: impl FnMut(JobId, Bytes)) {
        let share = &mut self.classes[class as usize];
        share.in_flight -= cost.0;
        while let Some(&(job, cost)) = share.waiting.front().filter(|(_, cost)| share.fits(class, *cost)) {
            share.waiting.pop_front();
            share.in_flight += cost.0;
            entered(job, cost);
        }
    }
}

impl Share {
    fn fits(&self, class: Class, cost: Bytes) -> bool {
        self.in_flight == 0 || self.in_flight + cost.0 <= LIMITS[class as usize].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_class_waits_for_itself_only_and_in_order() {
        let mut shares = Shares::default();
        let mut enter = |class, job, mib| shares.enter(class, JobId(job), Bytes(mib * MIB));
        assert!((0..4).all(|job| enter(Class::Write, job, 1)), "four MiB are the limit of writes");
        assert!(!enter(Class::Write, 4, 3) && !enter(Class::Write, 5, 1) && !enter(Class::Write, 6, 1));
        assert!(enter(Class::Read, 7, 8) && enter(Class::Background, 8, 2), "others have shares of their own");
        let mut leave = |cost: u64| {
            let mut entered = Vec::new();
            shares.leave(Class::Write, Bytes(cost * MIB), |JobId(job), _| entered.push(job));
            entered
        };
        assert_eq!(leave(1), [], "the first in line does not fit, and nobody passes it");
        assert_eq!(leave(1), []);
        assert_eq!(leave(1), [4]);
        assert_eq!(leave(1), [5]);
        assert_eq!(leave(3), [6]);
    }

    #[test]
    fn what_is_larger_than_the_limit_goes_alone() {
        let mut shares = Shares::default();
        assert!(shares.enter(Class::Background, JobId(0), Bytes(1)));
        assert!(!shares.enter(Class::Background, JobId(1), Bytes(64 * MIB)));
        let mut entered = Vec::new();
        shares.leave(Class::Background, Bytes(1), |job, cost| entered.push((job, cost)));
        assert_eq!(entered, [(JobId(1), Bytes(64 * MIB))]);
        assert!(!shares.enter(Class::Background, JobId(2), Bytes(1)));
    }
}
