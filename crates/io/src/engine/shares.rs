//! Weighted shares in flight: how reads, writes and background work share the members.
//!
//! What a member is given it serves in its own order, so what decides how long a read waits is how much else is there
//! already. Each class may have so many bytes with the members ([`LIMITS`]); more waits here, in the order of asking,
//! for its own class only. So a read never queues behind a write, a writer that saturates the array finds room as soon
//! as its own operations end, and destaging can't crowd out either. A phase that is larger than the limit goes alone in
//! its class. Nothing is paid below the limits.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use uraid_layout::{Bytes, Sectors};

use super::tasks::{TaskId, Tasks};

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
const LIMITS: [Bytes; 5] = [Bytes(8 << 20), Bytes(4 << 20), Bytes(2 << 20), Bytes(4 << 20), Bytes(8 << 20)];

/// See the module.
#[derive(Debug)]
pub(super) struct Shares {
    tasks: Rc<Tasks>,
    classes: RefCell<[Share; 5]>,
}

/// A phase's share of its class, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Permit<'a> {
    shares: &'a Shares,
    class: Class,
    cost: Bytes,
}

#[derive(Debug, Default)]
struct Share {
    in_flight: u64,
    waiting: VecDeque<(TaskId, Bytes)>,
}

impl Shares {
    pub(super) fn new(tasks: Rc<Tasks>) -> Self {
        Self { tasks, classes: RefCell::default() }
    }

    /// Waits until a phase that moves `cost` may begin.
    pub(super) async fn enter(&self, class: Class, cost: Sectors) -> Permit<'_> {
        let cost = cost.bytes();
        if cost.0 > 0 && !self.classes.borrow_mut()[class as usize].enter(class, self.tasks.current(), cost) {
            // Who has waited has entered.
            self.tasks.park().await;
        }
        Permit { shares: self, class, cost }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if self.cost.0 > 0 {
            let mut classes = self.shares.classes.borrow_mut();
            classes[self.class as usize].leave(self.class, self.cost, |task| self.shares.tasks.wake(task));
        }
    }
}

impl Share {
    /// Whether a phase may begin. If not, its task waits until [`Share::leave`] names it, and has entered then.
    fn enter(&mut self, class: Class, task: TaskId, cost: Bytes) -> bool {
        let enters = self.waiting.is_empty() && self.fits(class, cost);
        if enters {
            self.in_flight += cost.0;
        } else {
            self.waiting.push_back((task, cost));
        }
        enters
    }

    /// Ends a phase. The tasks that enter in its place are handed to `entered`.
    fn leave(&mut self, class: Class, cost: Bytes, mut entered: impl FnMut(TaskId)) {
        self.in_flight -= cost.0;
        while let Some(&(task, cost)) = self.waiting.front().filter(|(_, cost)| self.fits(class, *cost)) {
            self.waiting.pop_front();
            self.in_flight += cost.0;
            entered(task);
        }
    }

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
        let mut shares: [Share; 5] = Default::default();
        let mut enter = |class: Class, task, mib| shares[class as usize].enter(class, TaskId(task), Bytes(mib * MIB));
        assert!((0..4).all(|task| enter(Class::Write, task, 1)), "four MiB are the limit of writes");
        assert!(!enter(Class::Write, 4, 3) && !enter(Class::Write, 5, 1) && !enter(Class::Write, 6, 1));
        assert!(enter(Class::Read, 7, 8) && enter(Class::Background, 8, 2), "others have shares of their own");
        let mut leave = |cost: u64| {
            let mut entered = Vec::new();
            shares[Class::Write as usize].leave(Class::Write, Bytes(cost * MIB), |task| entered.push(task.0));
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
        let mut share = Share::default();
        assert!(share.enter(Class::Background, TaskId(0), Bytes(1)));
        assert!(!share.enter(Class::Background, TaskId(1), Bytes(64 * MIB)));
        let mut entered = Vec::new();
        share.leave(Class::Background, Bytes(1), |task| entered.push(task));
        assert_eq!(entered, [TaskId(1)]);
        assert!(!share.enter(Class::Background, TaskId(2), Bytes(1)));
    }
}
