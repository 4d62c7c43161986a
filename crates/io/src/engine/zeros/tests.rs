use super::*;

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn toss(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// The same, sector by sector: what reads as zeros, and what has no space.
struct Slow {
    zero: Vec<bool>,
    hole: Vec<bool>,
}

fn indices(range: &Range<Lba>) -> Range<usize> {
    index(range.start.0)..index(range.end.0)
}

fn runs(zeros: &Zeros, capacity: u64) -> Vec<(Status, Range<usize>)> {
    let (mut runs, mut at) = (Vec::new(), Lba(0));
    while at.0 < capacity {
        let (status, end) = zeros.run(at, Lba(capacity));
        assert!(at < end && end.0 <= capacity, "a run is not empty and within the range");
        runs.push((status, indices(&(at..end))));
        at = end;
    }
    runs
}

#[test]
fn nothing_is_said_to_be_zeros_that_is_not() {
    for capacity in [8, 513, 4096, 70_001] {
        let mut random = Random(capacity);
        let zeros = Zeros::new(Sectors(capacity));
        let mut slow = Slow { zero: vec![false; index(capacity)], hole: vec![false; index(capacity)] };
        for _ in 0..2000 {
            let start = random.below(capacity);
            let len = if random.toss() { 1 + random.below(64) } else { 1 + random.below(capacity) };
            let range = Lba(start)..Lba((start + len).min(capacity));
            if random.toss() {
                zeros.note_written(&range);
                slow.zero[indices(&range)].fill(false);
                slow.hole[indices(&range)].fill(false);
                continue;
            }
            let may_punch = random.toss();
            let zeroing = zeros.zeroing(&range);
            let mut left = vec![true; index(range.end.0 - range.start.0)];
            for _ in 0..random.below(3) {
                // Somebody writes meanwhile.
                let start = random.below(capacity);
                let written = Lba(start)..Lba((start + 1 + random.below(40)).min(capacity));
                zeros.note_written(&written);
                slow.zero[indices(&written)].fill(false);
                slow.hole[indices(&written)].fill(false);
                for at in indices(&written).filter(|at| indices(&range).contains(at)) {
                    left[at - index(range.start.0)] = false;
                }
            }
            zeroing.note();
            if may_punch {
                zeros.note_hole(&range);
            }
            for (at, _) in indices(&range).zip(left).filter(|(_, left)| *left) {
                (slow.zero[at], slow.hole[at]) = (true, may_punch);
            }
            for (status, run) in runs(&zeros, capacity) {
                let is_true = match status {
                    Status::Data => true,
                    Status::Zeros => slow.zero[run.clone()].iter().all(|&zero| zero),
                    Status::Hole => slow.hole[run.clone()].iter().all(|&hole| hole),
                };
                assert!(is_true, "{status:?} {run:?} of {capacity}");
            }
        }
    }
}

#[test]
fn whole_granules_are_known_to_the_end_of_the_array() {
    let zeros = Zeros::new(Sectors(100));
    zeros.zeroing(&(Lba(9)..Lba(40))).note();
    zeros.note_hole(&(Lba(0)..Lba(90)));
    zeros.zeroing(&(Lba(96)..Lba(100))).note();
    zeros.zeroing(&(Lba(24)..Lba(32))).note();
    assert!(zeros.has_all(&(Lba(17)..Lba(39))) && !zeros.has_all(&(Lba(17)..Lba(41))));
    let expected = [
        (Status::Data, 0..16),
        (Status::Hole, 16..24),
        (Status::Zeros, 24..32),
        (Status::Hole, 32..40),
        (Status::Data, 40..96),
        (Status::Zeros, 96..100),
    ];
    assert_eq!(runs(&zeros, 100), expected);
    zeros.note_written(&(Lba(23)..Lba(33)));
    let expected = [(Status::Data, 0..96), (Status::Zeros, 96..100)];
    assert_eq!(runs(&zeros, 100), expected, "all that it touches is written");
}

#[test]
fn large_arrays_have_larger_granules_and_no_more_memory() {
    // 16 TiB.
    let capacity = 1 << 35;
    let zeros = Zeros::new(Sectors(capacity));
    assert!(zeros.count() <= GRANULES_MAX && zeros.count() >= GRANULES_MAX / 2);
    let granule = 1 << zeros.shift;
    zeros.zeroing(&(Lba(1)..Lba(3 * granule))).note();
    assert_eq!(zeros.run(Lba(0), Lba(capacity)), (Status::Data, Lba(granule)));
    assert_eq!(zeros.run(Lba(granule + 5), Lba(2 * granule + 1)), (Status::Zeros, Lba(2 * granule + 1)));
    assert_eq!(zeros.run(Lba(granule), Lba(capacity)), (Status::Zeros, Lba(3 * granule)));
    assert_eq!(zeros.run(Lba(3 * granule), Lba(capacity)), (Status::Data, Lba(capacity)));
}

#[test]
fn what_is_written_during_a_search_is_not_found() {
    let zeros = Zeros::new(Sectors(400));
    zeros.begin_search();
    zeros.note_written(&(Lba(100)..Lba(101)));
    zeros.note_found(&(Lba(0)..Lba(200)), Status::Hole);
    let expected = [(Status::Hole, 0..96), (Status::Data, 96..104), (Status::Hole, 104..200), (Status::Data, 200..400)];
    assert_eq!(runs(&zeros, 400), expected);
    zeros.end_search();
    zeros.note_found(&(Lba(200)..Lba(400)), Status::Hole);
    assert_eq!(runs(&zeros, 400), expected, "the search is over");
}
