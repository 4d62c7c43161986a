//! Stripe locks: who may change a parity stripe.
//!
//! A hashed table of the stripes that are held now. A job takes its stripes in ascending order and waits for the first
//! that is held, so no two jobs can wait for each other; each stripe is handed on in the order in which it was asked
//! for. The table grows only with the number of stripes held at once, which the number of jobs bounds, and reuses its
//! queues.

use std::collections::VecDeque;
use std::ops::Range;

use uraid_layout::StripeId;

use super::job::JobId;

/// The stripes that a job locks, and how far it has come.
#[derive(Debug)]
pub(super) struct Span {
    next: u64,
    first: u64,
    end: u64,
}

/// Proof that a job holds all stripes of its span; what changes parity asks for it.
#[derive(Debug)]
pub(super) struct Guard {
    first: u64,
    end: u64,
}

/// A point in the table's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp(u64);

/// The table.
#[derive(Debug)]
pub(super) struct LockTable {
    buckets: Vec<Bucket>,
    /// Counts releases.
    clock: u64,
    /// Empty queues, to be used again.
    spare: Vec<VecDeque<JobId>>,
}

#[derive(Debug)]
struct Bucket {
    held: Vec<Held>,
    /// When one of its stripes was last given back.
    released: Stamp,
}

#[derive(Debug)]
struct Held {
    stripe: u64,
    /// Who waits, first come first served.
    waiters: VecDeque<JobId>,
}

impl Span {
    /// The stripes `first` to `last`.
    pub(super) fn new(first: StripeId, last: StripeId) -> Self {
        assert!(first <= last, "a span is not empty");
        Self { next: first.0, first: first.0, end: last.0 + 1 }
    }
}

impl Guard {
    /// The stripes that are held.
    pub(super) fn stripes(&self) -> Range<u64> {
        self.first..self.end
    }
}

impl LockTable {
    /// A table with `buckets` buckets, a power of two.
    pub(super) fn new(buckets: usize) -> Self {
        assert!(buckets.is_power_of_two(), "the hash is a mask");
        let empty = |_| Bucket { held: Vec::new(), released: Stamp(0) };
        Self { buckets: (0..buckets).map(empty).collect(), clock: 0, spare: Vec::new() }
    }

    /// Takes the stripes of `span` that are still to be taken. None: the job waits for one of them, and calls again
    /// when [`LockTable::release`] names it.
    pub(super) fn acquire(&mut self, span: &mut Span, job: JobId) -> Option<Guard> {
        while span.next < span.end {
            let stripe = span.next;
            // Counted as taken even when it is held: release hands it over.
            span.next += 1;
            let bucket = self.bucket(stripe);
            if let Some(held) = self.buckets[bucket].held.iter_mut().find(|held| held.stripe == stripe) {
                held.waiters.push_back(job);
                return None;
            }
            let waiters = self.spare.pop().unwrap_or_default();
            self.buckets[bucket].held.push(Held { stripe, waiters });
        }
        Some(Guard { first: span.first, end: span.end })
    }

    /// Whether somebody holds a stripe of `span`.
    pub(super) fn is_held(&self, span: &Span) -> bool {
        let is_held = |stripe| self.buckets[self.bucket(stripe)].held.iter().any(|held| held.stripe == stripe);
        (span.first..span.end).any(is_held)
    }

    /// Gives all stripes of a guard back; `woken` gets the jobs that now hold one of them.
    #[expect(clippy::needless_pass_by_value, reason = "a guard that was given back is no proof any more")]
    pub(super) fn release(&mut self, guard: Guard, woken: &mut VecDeque<JobId>) {
        self.clock += 1;
        for stripe in guard.first..guard.end {
            let bucket = self.bucket(stripe);
            let Bucket { held: stripes, released } = &mut self.buckets[bucket];
            *released = Stamp(self.clock);
            let held = stripes.iter().position(|held| held.stripe == stripe).expect("a guard's stripes are held");
            match stripes[held].waiters.pop_front() {
                Some(job) => woken.push_back(job),
                None => self.spare.push(stripes.swap_remove(held).waiters),
            }
        }
    }

    /// The present, for [`LockTable::is_untouched`].
    pub(super) fn now(&self) -> Stamp {
        Stamp(self.clock)
    }

    /// Whether nobody held a stripe at `since`, or later until now. Of stripes that share a bucket with one that was
    /// held it says no too.
    pub(super) fn is_untouched(&self, stripe: StripeId, since: Stamp) -> bool {
        let Bucket { held, released } = &self.buckets[self.bucket(stripe.0)];
        // Who held it then holds it still, or has given it back since.
        *released <= since && held.iter().all(|held| held.stripe != stripe.0)
    }

    /// How many stripes are held.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.held.len()).sum()
    }

    fn bucket(&self, stripe: u64) -> usize {
        // Neighbouring stripes go to different buckets; Fibonacci hashing spreads strides too.
        let hash = stripe.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        usize::try_from(hash).expect("32 bits fit") & (self.buckets.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first: u64, last: u64) -> Span {
        Span::new(StripeId(first), StripeId(last))
    }

    #[test]
    fn a_stripe_is_handed_on_in_the_order_of_asking() {
        let mut table = LockTable::new(2);
        let first = table.acquire(&mut span(5, 5), JobId(0)).expect("free");
        let mut spans: Vec<Span> = (1..4).map(|_| span(5, 5)).collect();
        for (job, span) in (1..).zip(&mut spans) {
            assert!(table.acquire(span, JobId(job)).is_none());
        }
        let mut guard = Some(first);
        for (job, span) in (1..).zip(&mut spans) {
            let mut woken = VecDeque::new();
            table.release(guard.take().expect("held"), &mut woken);
            assert_eq!(woken, [JobId(job)]);
            guard = table.acquire(span, JobId(job));
        }
        table.release(guard.expect("held"), &mut VecDeque::new());
        assert_eq!(table.held(), 0);
    }

    #[test]
    fn a_stripe_that_was_held_in_between_is_not_untouched() {
        let mut table = LockTable::new(1024);
        let started = table.now();
        let is_untouched = |table: &LockTable, since| table.is_untouched(StripeId(5), since);
        assert!(is_untouched(&table, started));
        let guard = table.acquire(&mut span(4, 6), JobId(0)).expect("free");
        let meanwhile = table.now();
        assert!(!is_untouched(&table, started) && !is_untouched(&table, meanwhile), "it is held now");
        table.release(guard, &mut VecDeque::new());
        assert!(!is_untouched(&table, started) && !is_untouched(&table, meanwhile), "it was held since");
        let later = table.now();
        let other = table.acquire(&mut span(50, 50), JobId(0)).expect("free");
        table.release(other, &mut VecDeque::new());
        assert!(is_untouched(&table, later), "another was held");
    }

    #[test]
    fn overlapping_spans_never_wait_for_each_other() {
        // One bucket, so that every stripe collides with every other.
        let mut table = LockTable::new(1);
        let low = table.acquire(&mut span(0, 3), JobId(0)).expect("free");
        let mut middle = span(2, 6);
        assert!(table.acquire(&mut middle, JobId(1)).is_none());
        let mut high = span(5, 9);
        let high = table.acquire(&mut high, JobId(2)).expect("the waiting job holds nothing beyond what it waits for");
        let mut woken = VecDeque::new();
        table.release(low, &mut woken);
        assert_eq!(woken, [JobId(1)], "stripe 2 is handed over");
        assert!(table.acquire(&mut middle, JobId(1)).is_none(), "stripe 5 is held by the high span");
        woken.clear();
        table.release(high, &mut woken);
        assert_eq!(woken, [JobId(1)]);
        let middle = table.acquire(&mut middle, JobId(1)).expect("all is free");
        table.release(middle, &mut VecDeque::new());
        assert_eq!(table.held(), 0);
    }
}
