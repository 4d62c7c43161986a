//! Arrays: what the planner plans is what the disks serve, once.

use uraid_layout::plan::{Extent, Plan, Planner, View};
use uraid_layout::repair::Repair;
use uraid_layout::{Bytes, Lba, Level, MemberIndex, MemberSet, Placement, Rotation, Sectors};

use super::super::Request;
use super::super::array::{Phases, State, WriteRule};
use super::super::run::{run_all, seed_of};
use super::super::sizes::{Choices, Sizes};
use super::super::workload::{Component, Mix, Pattern};
use super::super::{ArraySpec, Error, Nanos, StopRule, System, Tape, presets};
use super::{List, RAID5, alone, fixed_disk, round_disk, run_list};

const RAID6: Level = Level::Raid6 { rotation: Rotation::LeftSymmetric };
const RM2: Level = Level::Rm2 { height: 3, placement: Placement::Adjacent };

fn lightnings(disks: u8, level: Level, chunk: Bytes) -> ArraySpec {
    ArraySpec { used: Some(Sectors(60_000)), ..ArraySpec::new(presets::lightning(), disks, level, chunk) }
}

fn served(array: &ArraySpec, is_write: bool, lba: u64, len: u64) -> (u64, u64) {
    let outcome = run_list(array, List::of(is_write, &[(lba, len)]), 1);
    (outcome.served - outcome.writes_served, outcome.writes_served)
}

#[test]
fn requests_take_the_operations_that_the_papers_count() {
    let raid5 = lightnings(5, RAID5, Bytes(8192));
    assert_eq!(served(&raid5, false, 0, 8), (1, 0));
    assert_eq!(served(&raid5, true, 0, 8), (2, 2), "a small write: data and parity, read and written");
    assert_eq!(served(&raid5, true, 0, 4 * 16), (0, 5), "a whole stripe");
    assert_eq!(served(&raid5, true, 0, 3 * 16), (1, 4), "a reconstruct write reads the unit that is not written");
    let modify = ArraySpec { write_rule: WriteRule::ReadModifyWrite, ..raid5.clone() };
    assert_eq!(served(&modify, true, 0, 3 * 16), (4, 4), "read-modify-write reads three units and parity");
    assert_eq!(served(&modify, true, 0, 4 * 16), (0, 5), "of a whole stripe nothing is read whatever the rule");
    let reconstruct = ArraySpec { write_rule: WriteRule::Reconstruct, ..raid5 };
    assert_eq!(served(&reconstruct, true, 0, 16), (3, 2));
    // Half of two units of four: the rest of both is read to reconstruct, two operations more than where units are
    // written whole.
    let units = ArraySpec { write_rule: WriteRule::FewestUnits, ..modify.clone() };
    assert_eq!(served(&ArraySpec { write_rule: WriteRule::FewestOperations, ..modify }, true, 8, 16), (3, 3));
    assert_eq!(served(&units, true, 8, 16), (4, 3));
    assert_eq!(served(&units, true, 0, 2 * 16), (2, 3));
    assert_eq!(served(&units, true, 8, 8), (2, 2));
    assert_eq!(served(&lightnings(7, RM2, Bytes(8192)), true, 0, 8), (3, 3), "a small write of RM2 takes six");
    assert_eq!(served(&lightnings(4, Level::Raid10 { copies: 2 }, Bytes(8192)), true, 0, 8), (0, 2));
    assert_eq!(served(&lightnings(2, Level::Raid1, Bytes(8192)), true, 0, 8), (0, 2));
    assert_eq!(
        served(&lightnings(6, Level::Raid0, Bytes(8192)), true, 0, 8 * 16),
        (0, 6),
        "adjacent units are one operation"
    );
    let apart = ArraySpec { merges: false, joins_reads: false, ..lightnings(6, Level::Raid0, Bytes(8192)) };
    assert_eq!(served(&apart, false, 0, 8 * 16), (8, 0), "each unit is an operation");
    assert_eq!(served(&apart, false, 8, 7 * 16), (8, 0), "of two a half is read");
    assert_eq!(served(&ArraySpec { joins_reads: true, ..apart }, false, 0, 8 * 16), (6, 0));
    // The papers' example: 16 of RM2's 18 data units (N = 9, M = 3) reconstruct in 27 operations of units, or
    // read-modify-write in 50; a disk's units of one stripe are adjacent, so that disks serve fewer.
    let rm2 = lightnings(9, RM2, Bytes(8192));
    let modify = ArraySpec { write_rule: WriteRule::ReadAllThatIsWritten, ..rm2.clone() };
    let sectors = |array: &ArraySpec| run_list(array, List::of(true, &[(0, 16 * 16)]), 1).sectors / 16;
    assert_eq!((sectors(&rm2), sectors(&modify)), (27, 50));
    let stripes = |count: u64| run_list(&modify, List::of(true, &[(0, 18 * 16 * count)]), 1);
    assert_eq!((stripes(1).sectors, stripes(2).served), (27 * 16, 9), "whole stripes are written as they are");
}

/// Reads and writes of RAID 6 as its definition has them: two parities, either of which gives back one unit, and both
/// two.
#[test]
fn raid_6_has_two_parities() {
    let rotated: Vec<Vec<u8>> = vec![vec![5, 0], vec![4, 5], vec![3, 4], vec![2, 3], vec![1, 2], vec![0, 1]];
    for (array, expected) in [
        (ArraySpec::new(presets::lightning(), 6, RAID6, Bytes(8192)), rotated),
        (ArraySpec::dedicated_raid6(presets::lightning(), 6, Bytes(8192)), vec![vec![4, 5]; 6]),
    ] {
        let raid6 = ArraySpec { used: Some(Sectors(60_000)), ..array };
        assert_eq!(raid6.geometry().unwrap().capacity(), Sectors(60_000 / 16 * 4 * 16));
        assert_eq!(served(&raid6, false, 0, 8), (1, 0));
        assert_eq!(served(&raid6, true, 0, 8), (3, 3), "a small write: data, P and Q, read and written");
        assert_eq!(served(&raid6, true, 0, 4 * 16), (0, 6), "a whole stripe");
        assert_eq!(served(&raid6, true, 0, 3 * 16), (1, 5), "a reconstruct write reads the unit that is not written");
        let geometry = raid6.geometry().unwrap();
        let missing = MemberSet::EMPTY.with(geometry.locate(Lba(0)).member);
        let degraded = ArraySpec { state: State::Degraded(missing), ..raid6.clone() };
        assert_eq!(served(&degraded, false, 0, 8), (4, 0), "the other three units and one parity");
        let missing = missing.with(geometry.locate(Lba(16)).member);
        let degraded = ArraySpec { state: State::Degraded(missing), ..raid6.clone() };
        assert_eq!(served(&degraded, false, 0, 8), (4, 0), "the other two units and both parities");
        let parities: Vec<Vec<u8>> =
            (0..6).map(|stripe| geometry.parity_of(Lba(stripe * 64)).map(|it| it.member.0).collect()).collect();
        assert_eq!(parities, expected);
    }
    assert!(ArraySpec::new(presets::lightning(), 3, RAID6, Bytes(8192)).geometry().is_err());
}

#[test]
fn what_is_missing_costs_the_others_operations() {
    let missing = MemberSet::EMPTY.with(MemberIndex(0));
    let array = ArraySpec { state: State::Degraded(missing), ..lightnings(5, RAID5, Bytes(8192)) };
    assert_eq!(served(&array, false, 0, 8), (4, 0));
    assert_eq!(served(&array, false, 16, 8), (1, 0));
    let lost = ArraySpec { state: State::Degraded(missing.with(MemberIndex(1))), ..array };
    assert!(matches!(System::new(&[lost]), Err(Error::Lost(_))));
}

/// Requests of all sizes, read and written, with what the planner plans for them.
fn drawn(array: &ArraySpec, missing: MemberSet) -> (Vec<Request>, u64, u64) {
    let geometry = array.geometry().unwrap();
    let sizes = Sizes::chen_lee(Choices::default())[2].1.clone();
    let mut mix = Mix::uniform(sizes, 0.5, geometry.capacity(), 21).unwrap();
    let requests: Vec<Request> = (0..400).map(|_| mix.draw(0)).collect();
    let repair = Repair::new(&geometry, missing).unwrap();
    let view = View { missing, ..View::new(&geometry, &repair) };
    let (mut planner, mut plan) = (Planner::new(), Plan::default());
    let (mut count, mut sectors) = (0, 0);
    for request in &requests {
        let extents = [Extent::request(request.lba, request.len)];
        if request.is_write {
            planner.write(&mut plan, &view, &extents).unwrap();
        } else {
            planner.read(&mut plan, &view, &extents).unwrap();
        }
        for io in plan.reads().iter().chain(plan.writes()) {
            count += 1;
            sectors += io.len.0;
        }
    }
    (requests, count, sectors)
}

#[test]
fn every_planned_operation_is_served_once() {
    let missing = MemberSet::EMPTY.with(MemberIndex(2));
    let partitioned = Level::Rm2 { height: 3, placement: Placement::Partitioned };
    for level in [Level::Raid0, RAID5, RM2, partitioned, Level::Raid10 { copies: 2 }] {
        for missing in [MemberSet::EMPTY, missing] {
            let mut array = lightnings(8, level, Bytes(6144));
            if level == Level::Raid0 && !missing.is_empty() {
                continue;
            }
            if !missing.is_empty() {
                array.state = State::Degraded(missing);
            }
            let (requests, count, sectors) = drawn(&array, missing);
            let outcome = run_list(&array, List::new(requests.clone()), 7);
            assert_eq!(outcome.sectors, sectors, "{level:?} {missing:?}");
            // Which copy is read, and so what is adjacent, follows from the queues.
            let is_mirrored = matches!(level, Level::Raid10 { .. });
            assert!(outcome.planned == count || is_mirrored, "{level:?} {missing:?}");
            assert_eq!(outcome.response.count, 400);
            assert!(outcome.served <= outcome.planned);
            array.merges = false;
            let outcome = run_list(&array, List::new(requests.clone()), 7);
            assert_eq!((outcome.served, outcome.sectors), (outcome.planned, sectors));
            // By stripe nothing is left out either, nor moved twice.
            array.phases = Phases::Stripe;
            assert_eq!(run_list(&array, List::new(requests), 7).sectors, sectors, "{level:?} {missing:?}");
        }
    }
}

#[test]
fn a_write_begins_when_its_reads_have_ended() {
    // The sectors of data and parity pass under the heads at one time. They are read in one revolution and written in
    // the next, again and again.
    let array = ArraySpec::new(round_disk(), 3, RAID5, Bytes(5120));
    let outcome = run_list(&array, List::of(true, &[(0, 1); 10]), 1);
    // The first is read from 0 to 1 ms and written from 10 to 11, the next is read from 20 to 21 and written from 30 to
    // 31, and so on.
    assert_eq!(outcome.end, Nanos(191_000_000));
}

#[test]
fn whole_stripes_don_t_wait_for_the_reads_of_others() {
    // A whole stripe and one sector of the next. Disk 2 has P0 in row 0 and data unit 2 in row 1; parity of stripe 1 is
    // on disk 1.
    let array = ArraySpec::new(round_disk(), 3, RAID5, Bytes(5120));
    let whole = run_list(&array, List::of(true, &[(0, 21)]), 1);
    let by_stripe = ArraySpec { phases: Phases::Stripe, ..array };
    let parts = run_list(&by_stripe, List::of(true, &[(0, 21)]), 1);
    assert_eq!(whole.sectors, parts.sectors);
    // Sectors 10 of two disks are read from 0 ms to 1 ms. Then the two disks write 11 sectors from sector 0, which
    // passes at 10 ms.
    assert_eq!(whole.end, Nanos(21_000_000));
    // By stripe the first ten sectors are written from 0 ms on, sector 10 is read at 10 ms (track 1 begins where track
    // 0 ends), and written a revolution later.
    assert_eq!(parts.end, Nanos(21_000_000));
    assert!(parts.served > whole.served);
}

#[test]
fn writers_of_a_parity_stripe_wait_for_each_other() {
    let array = ArraySpec::new(round_disk(), 3, RAID5, Bytes(5120));
    let same = run_list(&array, List::of(true, &[(0, 1), (5, 1)]), 2);
    assert_eq!(same.lock_waits, 1);
    let apart = run_list(&array, List::of(true, &[(0, 1), (25, 1)]), 2);
    assert_eq!(apart.lock_waits, 0);
    let unlocked = ArraySpec { locks: false, ..array };
    let free = run_list(&unlocked, List::of(true, &[(0, 1), (5, 1)]), 2);
    assert_eq!((free.lock_waits, free.sectors), (0, same.sectors));
    // Together the two are read at 0 and 5 ms and written a revolution later; one after the other the second is read at
    // 15 ms and written at 25.
    assert_eq!((free.end, same.end), (Nanos(16_000_000), Nanos(26_000_000)));
}

#[test]
fn mirrors_share_reads() {
    let array = ArraySpec::new(fixed_disk(), 2, Level::Raid1, Bytes(4096));
    let outcome = run_list(&array, List::of(false, &[(0, 100); 10]), 2);
    assert_eq!(outcome.end, Nanos(5 * 200_000));
}

#[test]
fn a_rebuild_reads_and_writes_every_stripe_once() {
    let members = MemberSet::EMPTY.with(MemberIndex(1));
    for at_once in [1, 4] {
        let array = ArraySpec { state: State::Rebuilding { members, at_once }, ..lightnings(5, RAID5, Bytes(8192)) };
        let stripes = array.geometry().unwrap().stripes().0;
        let outcome = run_list(&array, List::new(Vec::new()), 0);
        assert_eq!(outcome.stripes_rebuilt, stripes);
        assert_eq!((outcome.planned, outcome.sectors), (5 * stripes, 5 * stripes * 16));
    }
}

#[test]
fn what_is_rebuilt_is_read_like_the_rest() {
    let members = MemberSet::EMPTY.with(MemberIndex(0));
    let array = ArraySpec {
        used: Some(Sectors(160)),
        state: State::Rebuilding { members, at_once: 1 },
        ..lightnings(5, RAID5, Bytes(8192))
    };
    let rebuild = run_list(&array, List::new(Vec::new()), 0);
    // Reads of the lost unit of the first stripe, one after the other for longer than the rebuild takes: at first of
    // four disks, then of one.
    let reads = 400;
    let outcome = run_list(&array, List::of(false, &vec![(0, 16); reads]), 1);
    assert_eq!(outcome.stripes_rebuilt, 10);
    let of_clients = outcome.planned - rebuild.planned;
    assert!((reads as u64 + 3..2 * reads as u64).contains(&of_clients), "{of_clients}");
}

#[test]
fn a_tape_gives_the_run_that_planning_as_it_goes_gives() {
    for phases in [Phases::Request, Phases::Stripe] {
        let array = ArraySpec { phases, ..lightnings(9, RM2, Bytes(6144)) };
        let sizes = Sizes::chen_lee(Choices::default())[2].1.clone();
        let mix = Mix::uniform(sizes, 0.3, array.geometry().unwrap().capacity(), 33).unwrap();
        let mut system = System::new(std::slice::from_ref(&array)).unwrap();
        let rule = StopRule::exactly(50, 600);
        let mut tape = Tape::new(&array, mix.clone()).unwrap();
        for _ in 0..2 {
            tape.rewind();
            let taped = system.run(&mut tape, 6, &rule).unwrap();
            let live = system.run(&mut mix.clone(), 6, &rule).unwrap();
            assert_eq!(taped, super::super::Outcome { methods: taped.methods, ..live });
        }
    }
    assert!(Tape::new(&lightnings(2, Level::Raid1, Bytes(4096)), mix_of(100)).is_err());
}

fn mix_of(capacity: u64) -> Mix {
    Mix::uniform(Sizes::fixed(Bytes(1024)).unwrap(), 1.0, Sectors(capacity), 0).unwrap()
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let points: Vec<u64> = (0..12).collect();
    let work = |&point: &u64| {
        let array = lightnings(5, RAID5, Bytes(4096 << (point % 4)));
        let sizes = Sizes::chen_lee(Choices::default())[1].1.clone();
        let mut mix = Mix::uniform(sizes, 0.5, array.geometry()?.capacity(), seed_of(1, &[point]))?;
        System::new(&[array])?.run(&mut mix, 4, &StopRule::default())
    };
    let one = run_all(&points, 1, work).unwrap();
    assert_eq!(one, run_all(&points, 2, work).unwrap());
    assert!(one.iter().all(|outcome| outcome.is_precise));
    assert_ne!(one[0].response, one[4].response, "other seeds give other runs");
}

#[test]
fn arrays_have_disks_of_their_own() {
    let array = alone(fixed_disk());
    let to = |volume, lba| Request { volume, is_write: false, lba: Lba(lba), len: Sectors(100) };
    let mut system = System::new(&[array.clone(), array]).unwrap();
    let rule = StopRule { warm_up: 0, requests_min: 1 << 40, requests_max: 1 << 40, ..StopRule::default() };
    let mut apart = List::new(vec![to(0, 0), to(1, 0)]);
    assert_eq!(system.run(&mut apart, 2, &rule).unwrap().end, Nanos(200_000));
    let mut together = List::new(vec![to(1, 0), to(1, 200)]);
    assert_eq!(system.run(&mut together, 2, &rule).unwrap().end, Nanos(400_000));
    assert!(system.run(&mut List::new(vec![to(2, 0)]), 1, &rule).is_err());
    assert!(system.run(&mut List::new(vec![to(0, 1 << 40)]), 1, &rule).is_err());
}

#[test]
fn streams_are_sequential_and_mixes_have_their_shares() {
    let sizes = |kib: u64| Sizes::fixed(Bytes(kib * 1024)).unwrap();
    let component = |weight, kib, reads, pattern| Component { weight, sizes: sizes(kib), reads, pattern };
    let random = Pattern::Random { align: Bytes(4096) };
    let components = vec![component(9.0, 4, 0.75, random), component(1.0, 8, 1.0, Pattern::Sequential)];
    let mut mix = Mix::new(components, Sectors(1 << 20), 77).unwrap();
    let drawn: Vec<Request> = (0..40_000).map(|index| mix.draw(index % 2)).collect();
    let share = |of: &dyn Fn(&Request) -> bool| drawn.iter().filter(|request| of(request)).count() as f64 / 4e4;
    super::assert_near(share(&|request| request.len.0 == 16), 0.1, 0.05);
    super::assert_near(share(&|request| request.is_write), 0.9 * 0.25, 0.03);
    assert!(drawn.iter().all(|request| request.lba.0 + request.len.0 <= 1 << 20 && request.lba.0 % 8 == 0));
    for process in 0..2 {
        let stream: Vec<u64> = drawn
            .iter()
            .skip(process)
            .step_by(2)
            .filter(|request| request.len.0 == 16)
            .map(|request| request.lba.0)
            .collect();
        assert!(stream.windows(2).all(|pair| pair[1] == pair[0] + 16 || pair[1] == 0), "process {process}");
    }
    let mut shared = Mix::new(vec![component(1.0, 4, 1.0, Pattern::Shared)], Sectors(24), 1).unwrap();
    let lbas: Vec<u64> = (0..5).map(|process| shared.draw(process).lba.0).collect();
    assert_eq!(lbas, [0, 8, 16, 0, 8]);
}
