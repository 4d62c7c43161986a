//! Stripe locks: who may change a parity stripe.
//!
//! A hashed table of the stripes that are held now. A task takes its stripes in ascending order and waits for the first
//! that is held, so no two tasks can wait for each other; each stripe is handed on in the order in which it was asked
//! for. The table grows only with the number of stripes held at once, which the number of tasks bounds, and reuses its
//! queues.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use uraid_layout::StripeId;

use super::tasks::{TaskId, Tasks};

/// The locks of an array's stripes.
#[derive(Debug)]
pub(super) struct Locks {
    tasks: Rc<Tasks>,
    table: RefCell<Table>,
}

/// Proof that a task holds stripes; what changes parity asks for it. They are given back when it is dropped.
#[derive(Debug)]
pub(super) struct Guard<'a> {
    locks: &'a Locks,
    stripes: Range<u64>,
}

/// A point in the table's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp(u64);

#[derive(Debug)]
struct Table {
    buckets: Vec<Bucket>,
    /// Counts releases.
    clock: u64,
    /// Empty queues, to be used again.
    spare: Vec<VecDeque<TaskId>>,
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
    waiters: VecDeque<TaskId>,
}

impl Locks {
    /// Locks in a table with `buckets` buckets, a power of two.
    pub(super) fn new(tasks: Rc<Tasks>, buckets: usize) -> Self {
        assert!(buckets.is_power_of_two(), "the hash is a mask");
        let empty = |_| Bucket { held: Vec::new(), released: Stamp(0) };
        let table = Table { buckets: (0..buckets).map(empty).collect(), clock: 0, spare: Vec::new() };
        Self { tasks, table: RefCell::new(table) }
    }

    /// Takes the stripes `first` to `last`, each when its turn comes.
    ///
    /// A call that is dropped while it waits keeps what it has: tasks are only dropped with the engine.
    pub(super) async fn acquire(&self, (first, last): (StripeId, StripeId)) -> Guard<'_> {
        assert!(first <= last, "a span is not empty");
        for stripe in first.0..=last.0 {
            // Who has waited has been handed the stripe.
            if !self.take(stripe) {
                self.tasks.park().await;
            }
        }
        Guard { locks: self, stripes: first.0..last.0 + 1 }
    }

    /// Takes a stripe, or waits in line for it.
    fn take(&self, stripe: u64) -> bool {
        let mut table = self.table.borrow_mut();
        let bucket = table.bucket(stripe);
        if let Some(held) = table.buckets[bucket].held.iter_mut().find(|held| held.stripe == stripe) {
            held.waiters.push_back(self.tasks.current());
            return false;
        }
        let waiters = table.spare.pop().unwrap_or_default();
        table.buckets[bucket].held.push(Held { stripe, waiters });
        true
    }

    /// Whether somebody holds one of the stripes `first` to `last`.
    pub(super) fn is_held(&self, (first, last): (StripeId, StripeId)) -> bool {
        let table = self.table.borrow();
        let is_held = |stripe| table.buckets[table.bucket(stripe)].held.iter().any(|held| held.stripe == stripe);
        (first.0..=last.0).any(is_held)
    }

    /// The present, for [`Locks::is_untouched`].
    pub(super) fn now(&self) -> Stamp {
        Stamp(self.table.borrow().clock)
    }

    /// Whether nobody held a stripe at `since`, or later until now. Of stripes that share a bucket with one that was
    /// held it says no too.
    pub(super) fn is_untouched(&self, stripe: StripeId, since: Stamp) -> bool {
        let table = self.table.borrow();
        let Bucket { held, released } = &table.buckets[table.bucket(stripe.0)];
        // Who held it then holds it still, or has given it back since.
        *released <= since && held.iter().all(|held| held.stripe != stripe.0)
    }

    /// How many stripes are held.
    #[cfg(test)]
    fn held(&self) -> usize {
        self.table.borrow().buckets.iter().map(|bucket| bucket.held.len()).sum()
    }
}

impl Guard<'_> {
    /// The stripes that are held.
    pub(super) fn stripes(&self) -> Range<u64> {
        self.stripes.clone()
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let mut table = self.locks.table.borrow_mut();
        table.clock += 1;
        for stripe in self.stripes.clone() {
            let (bucket, now) = (table.bucket(stripe), Stamp(table.clock));
            let Bucket { held: stripes, released } = &mut table.buckets[bucket];
            *released = now;
            let held = stripes.iter().position(|held| held.stripe == stripe).expect("a guard's stripes are held");
            match stripes[held].waiters.pop_front() {
                Some(task) => self.locks.tasks.wake(task),
                None => {
                    let waiters = stripes.swap_remove(held).waiters;
                    table.spare.push(waiters);
                }
            }
        }
    }
}

impl Table {
    fn bucket(&self, stripe: u64) -> usize {
        // Neighbouring stripes go to different buckets; Fibonacci hashing spreads strides too.
        let hash = stripe.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        usize::try_from(hash).expect("32 bits fit") & (self.buckets.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn locks(buckets: usize) -> Locks {
        Locks::new(Rc::default(), buckets)
    }

    fn span(first: u64, last: u64) -> (StripeId, StripeId) {
        (StripeId(first), StripeId(last))
    }

    /// Lets a task ask, or go on.
    fn poll<'a>(locks: &Locks, task: u32, ask: Pin<&mut impl Future<Output = Guard<'a>>>) -> Option<Guard<'a>> {
        locks.tasks.enter(TaskId(task));
        match ask.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(guard) => Some(guard),
            Poll::Pending => None,
        }
    }

    fn woken(locks: &Locks) -> Vec<u32> {
        std::iter::from_fn(|| locks.tasks.next()).map(|task| task.0).collect()
    }

    #[test]
    fn a_stripe_is_handed_on_in_the_order_of_asking() {
        let locks = locks(2);
        let mut guard = poll(&locks, 0, pin!(locks.acquire(span(5, 5))));
        assert!(guard.is_some(), "free");
        let mut asks: Vec<_> = (1..4).map(|_| Box::pin(locks.acquire(span(5, 5)))).collect();
        for (task, ask) in (1..).zip(&mut asks) {
            assert!(poll(&locks, task, ask.as_mut()).is_none());
        }
        for (task, ask) in (1..).zip(&mut asks) {
            drop(guard.take().expect("held"));
            assert_eq!(woken(&locks), [task]);
            guard = poll(&locks, task, ask.as_mut());
        }
        drop(guard.expect("held"));
        assert_eq!(locks.held(), 0);
    }

    #[test]
    fn a_stripe_that_was_held_in_between_is_not_untouched() {
        let locks = locks(1024);
        let started = locks.now();
        let is_untouched = |since| locks.is_untouched(StripeId(5), since);
        assert!(is_untouched(started));
        let guard = poll(&locks, 0, pin!(locks.acquire(span(4, 6)))).expect("free");
        let meanwhile = locks.now();
        assert!(!is_untouched(started) && !is_untouched(meanwhile), "it is held now");
        drop(guard);
        assert!(!is_untouched(started) && !is_untouched(meanwhile), "it was held since");
        let later = locks.now();
        drop(poll(&locks, 0, pin!(locks.acquire(span(50, 50)))).expect("free"));
        assert!(is_untouched(later), "another was held");
    }

    #[test]
    fn overlapping_spans_never_wait_for_each_other() {
        // One bucket, so that every stripe collides with every other.
        let locks = locks(1);
        let low = poll(&locks, 0, pin!(locks.acquire(span(0, 3)))).expect("free");
        let mut middle = pin!(locks.acquire(span(2, 6)));
        assert!(poll(&locks, 1, middle.as_mut()).is_none());
        let high = poll(&locks, 2, pin!(locks.acquire(span(5, 9))));
        let high = high.expect("the waiting task holds nothing beyond what it waits for");
        drop(low);
        assert_eq!(woken(&locks), [1], "stripe 2 is handed over");
        assert!(poll(&locks, 1, middle.as_mut()).is_none(), "stripe 5 is held by the high span");
        drop(high);
        assert_eq!(woken(&locks), [1]);
        drop(poll(&locks, 1, middle.as_mut()).expect("all is free"));
        assert_eq!(locks.held(), 0);
    }
}
