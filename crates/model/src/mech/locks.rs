//! Locks on runs of parity stripes. A request takes all of its stripes at once, in the order in which requests ask, so
//! nobody waits for somebody who waits.

use std::ops::Range;

/// The parity stripes that a job writes, of one of the system's arrays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stripes {
    pub(super) volume: u32,
    pub(super) range: Range<u64>,
}

/// Who holds stripes and who waits, by the jobs' numbers.
#[derive(Debug, Default)]
pub(super) struct Locks {
    held: Vec<(Stripes, u32)>,
    waiting: Vec<(Stripes, u32)>,
    /// How many requests had to wait.
    pub(super) waits: u64,
}

impl Locks {
    /// Takes stripes for a job, or puts it in line; whether they were free.
    pub(super) fn take(&mut self, stripes: Stripes, job: u32) -> bool {
        let is_wanted = overlaps(&self.held, &stripes) || overlaps(&self.waiting, &stripes);
        self.waits += u64::from(is_wanted);
        if is_wanted { &mut self.waiting } else { &mut self.held }.push((stripes, job));
        !is_wanted
    }

    /// Gives a job's stripes back; `next` gets the jobs that have theirs now.
    pub(super) fn release(&mut self, job: u32, next: &mut Vec<u32>) {
        let index = self.held.iter().position(|&(_, holder)| holder == job).expect("a job that ends holds its stripes");
        self.held.swap_remove(index);
        let mut index = 0;
        while index < self.waiting.len() {
            let stripes = &self.waiting[index].0;
            if overlaps(&self.held, stripes) || overlaps(&self.waiting[..index], stripes) {
                index += 1;
                continue;
            }
            let (stripes, job) = self.waiting.remove(index);
            self.held.push((stripes, job));
            next.push(job);
        }
    }

    pub(super) fn clear(&mut self) {
        self.held.clear();
        self.waiting.clear();
        self.waits = 0;
    }
}

fn overlaps(all: &[(Stripes, u32)], stripes: &Stripes) -> bool {
    let Stripes { volume, range } = stripes;
    all.iter()
        .any(|(other, _)| other.volume == *volume && other.range.start < range.end && range.start < other.range.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripes(range: Range<u64>) -> Stripes {
        Stripes { volume: 0, range }
    }

    #[test]
    fn nobody_overtakes_who_waits_for_the_same() {
        let mut locks = Locks::default();
        assert!(locks.take(stripes(0..2), 0));
        assert!(!locks.take(stripes(1..4), 1));
        assert!(!locks.take(stripes(3..4), 2), "stripe 3 is free, but job 1 wants it first");
        assert!(locks.take(stripes(5..6), 3));
        assert!(locks.take(Stripes { volume: 1, range: 0..9 }, 4), "another array's stripes are others");
        let mut next = Vec::new();
        locks.release(3, &mut next);
        assert_eq!(next, []);
        locks.release(0, &mut next);
        assert_eq!(next, [1]);
        next.clear();
        locks.release(1, &mut next);
        assert_eq!(next, [2]);
        assert_eq!(locks.waits, 2);
    }
}
