//! The operations that wait for a disk, and which is served next.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::drive::Head;

/// The order in which a disk serves what waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Discipline {
    /// As it came.
    #[default]
    Fcfs,
    /// The shortest seek first; of equals the one that came first.
    Sstf,
    /// The nearest cylinder in the direction of the last move, turning where nothing is left (LOOK); within a cylinder
    /// as it came.
    Elevator,
}

/// An operation that waits. Of a merged one, `part` is the first's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) sector: u64,
    pub(super) cylinder: u64,
    pub(super) len: u32,
    pub(super) is_write: bool,
    /// Whose it is.
    pub(super) part: u32,
}

/// What waits for one disk.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<Waiting>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Whether the operation that came first writes.
    pub(super) fn next_is_write(&self) -> bool {
        self.waiting.front().is_some_and(|first| first.is_write)
    }

    #[inline]
    pub(super) fn push(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    /// Takes the next operation, joined with those that came directly after it and continue it where `merges`; `parts`
    /// gets whose all of them are.
    #[inline]
    pub(super) fn pop(
        &mut self,
        discipline: Discipline,
        merges: bool,
        head: &mut Head,
        parts: &mut Vec<u32>,
    ) -> Option<Waiting> {
        let index = match discipline {
            Discipline::Fcfs => 0,
            Discipline::Sstf => self.nearest(head.cylinder)?,
            Discipline::Elevator => self.ahead(head)?,
        };
        let mut first = if index == 0 { self.waiting.pop_front() } else { self.waiting.remove(index) }?;
        parts.push(first.part);
        while merges && let Some(next) = self.waiting.get(index) {
            if next.is_write != first.is_write || next.sector != first.sector + u64::from(first.len) {
                break;
            }
            first.len += next.len;
            parts.push(next.part);
            self.waiting.remove(index);
        }
        Some(first)
    }

    fn nearest(&self, cylinder: u64) -> Option<usize> {
        (0..self.waiting.len()).min_by_key(|&index| self.waiting[index].cylinder.abs_diff(cylinder))
    }

    fn ahead(&self, head: &mut Head) -> Option<usize> {
        for _ in 0..2 {
            let Head { cylinder, goes_down, .. } = *head;
            let is_ahead = |other: u64| if goes_down { other <= cylinder } else { other >= cylinder };
            let ahead = (0..self.waiting.len()).filter(|&index| is_ahead(self.waiting[index].cylinder));
            let next = ahead.min_by_key(|&index| self.waiting[index].cylinder.abs_diff(cylinder));
            if next.is_some() {
                return next;
            }
            head.goes_down = !goes_down;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(discipline: Discipline, start: u64, cylinders: &[u64]) -> Vec<u64> {
        let mut queue = Queue::default();
        for &cylinder in cylinders {
            queue.push(Waiting { sector: cylinder * 100, cylinder, len: 1, is_write: false, part: 0 });
        }
        let mut head = Head::default();
        head.cylinder = start;
        let mut served = Vec::new();
        while let Some(next) = queue.pop(discipline, true, &mut head, &mut Vec::new()) {
            head.cylinder = next.cylinder;
            served.push(next.cylinder);
        }
        served
    }

    #[test]
    fn each_discipline_has_its_order() {
        let cylinders = [48, 60, 45, 90, 55];
        assert_eq!(order(Discipline::Fcfs, 50, &cylinders), cylinders);
        assert_eq!(order(Discipline::Sstf, 50, &cylinders), [48, 45, 55, 60, 90]);
        assert_eq!(order(Discipline::Elevator, 50, &cylinders), [55, 60, 90, 48, 45]);
        // Of equals the first: 40 before 60; the elevator goes up first.
        assert_eq!(order(Discipline::Sstf, 50, &[40, 60]), [40, 60]);
        assert_eq!(order(Discipline::Elevator, 50, &[40, 60]), [60, 40]);
    }

    #[test]
    fn what_follows_and_is_adjacent_is_one_operation() {
        let waiting = |sector, len, is_write, part| Waiting { sector, cylinder: 0, len, is_write, part };
        let mut queue = Queue::default();
        for operation in [
            waiting(10, 5, false, 1),
            waiting(15, 3, false, 2),
            waiting(18, 2, true, 3),
            waiting(0, 1, true, 4),
            waiting(20, 1, true, 5),
        ] {
            queue.push(operation);
        }
        let mut pop = |merges| {
            let mut parts = Vec::new();
            let first = queue.pop(Discipline::Fcfs, merges, &mut Head::default(), &mut parts).expect("some are left");
            (first.sector, first.len, parts)
        };
        assert_eq!(pop(true), (10, 8, vec![1, 2]), "a write does not join a read");
        assert_eq!(pop(true), (18, 2, vec![3]), "what comes between keeps others apart");
        assert_eq!(pop(false), (0, 1, vec![4]));
        assert_eq!(pop(true), (20, 1, vec![5]));
    }
}
