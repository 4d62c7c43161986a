//! Plans, run by the interpreter and held against a slow oracle: the members that the array's content must give,
//! encoded from scratch after every request.

use proptest::prelude::*;
use uraid_layout::plan::{Buffer, Extent, Method, Plan, PlanError, Planner, Queue, Request, View, check, interpret};
use uraid_layout::{
    Cell, DiskSector, Geometry, Lba, Level, Location, MemberIndex, MemberSet, Placement, Rotation, Sectors, StripeId,
};

use crate::bench::{Bench, CHUNK, SECTOR, any_geometry, encode, geometry, rm2, small_geometries, tolerated};

#[test]
fn every_request_of_the_small_geometries_in_every_tolerated_state() {
    let mut requests = 0u64;
    for geometry in small_geometries() {
        let capacity = geometry.capacity().0;
        for failed in tolerated(&geometry) {
            let mut bench = Bench::degraded(&geometry, failed);
            for start in (0..capacity).step_by(7) {
                for len in [1, 2, 5, 8, 9, 16, 24, 29, geometry.stripe_sectors().0, capacity] {
                    let len = len.min(capacity - start);
                    bench.queues = queues(geometry.members(), start);
                    bench.read(start, len);
                    bench.write(start, len);
                    requests += 2;
                }
            }
        }
    }
    assert!(requests > 20_000, "only {requests}");
}

#[test]
fn both_methods_are_right_in_every_tolerated_state() {
    for geometry in small_geometries() {
        for failed in tolerated(&geometry) {
            let mut bench = Bench::degraded(&geometry, failed);
            for method in [Method::ReadModifyWrite, Method::Reconstruct] {
                for (start, len) in [(0, 1), (3, 8), (6, 12), (1, geometry.stripe_sectors().0 - 2)] {
                    let len = len.min(geometry.capacity().0 - start);
                    bench.write_all(&[Extent::request(Lba(start), Sectors(len))], Some(method));
                }
            }
        }
    }
}

#[test]
fn a_member_that_only_failed_a_read_is_still_written() {
    for geometry in small_geometries() {
        for failed in tolerated(&geometry) {
            let mut bench = Bench::new(&geometry, failed, MemberSet::EMPTY);
            for start in (0..geometry.capacity().0).step_by(5) {
                let len = (start % 13 + 1).min(geometry.capacity().0 - start);
                bench.read(start, len);
                bench.write(start, len);
            }
        }
    }
}

/// RAID 5 gives back one unit of a row. Modifying parity needs what is written and parity to be readable, or the one of
/// them that is not to be given back; reconstructing it needs the same of the rest.
#[test]
fn a_write_takes_the_method_that_can_read_what_it_needs() {
    let geometry = geometry(Level::Raid5 { rotation: Rotation::LeftSymmetric }, 5, 5);
    let mut counts = [0, 0];
    for failed in sets(&geometry, 5) {
        for units in 1..4_u64 {
            for first in 0..=4 - units {
                let map = geometry.map(StripeId(0));
                let holder = |unit| geometry.locate(Lba(unit * CHUNK)).member;
                let written: MemberSet = (first..first + units).map(holder).collect();
                let parity = geometry.member(map.groups()[0].parity);
                let is_there = |needed: MemberSet| {
                    let lost = failed.minus(failed.minus(needed));
                    lost.is_empty() || failed.len() == 1
                };
                let others = geometry.all_members().minus(written.with(parity));
                let is_possible = is_there(written.with(parity)) || is_there(others);
                let mut bench = Bench::unreadable(&geometry, failed);
                let extents = [Extent::request(Lba(first * CHUNK), Sectors(units * CHUNK))];
                let planned = Planner::new().write(&mut Plan::default(), &bench.view(), &extents);
                assert_eq!(planned.is_ok(), is_possible, "{units} units from {first} without {failed}: {planned:?}");
                counts[usize::from(is_possible)] += 1;
                if is_possible {
                    bench.write_all(&extents, None);
                } else {
                    assert_eq!(planned, Err(PlanError::Unreadable { stripe: StripeId(0) }));
                }
            }
        }
    }
    assert!(counts.iter().all(|&count| count > 50), "{counts:?}");
}

/// Whatever level and however many members can't be read: a write that has a plan is right, and one has none where
/// neither method has.
#[test]
fn a_write_without_too_many_members_is_right_or_has_no_plan() {
    let mut counts = [0, 0];
    for geometry in small_geometries() {
        for failed in sets(&geometry, 4) {
            for (start, len) in [(0, 1), (3, 8), (6, 12), (8, 8), (1, geometry.stripe_sectors().0 - 2)] {
                let len = len.min(geometry.capacity().0 - start);
                let extents = [Extent::request(Lba(start), Sectors(len))];
                let mut bench = Bench::unreadable(&geometry, failed);
                let by = |method| Planner::new().write_by(&mut Plan::default(), &bench.view(), &extents, method);
                let by_one = by(Method::ReadModifyWrite).is_ok() || by(Method::Reconstruct).is_ok();
                let planned = Planner::new().write(&mut Plan::default(), &bench.view(), &extents).is_ok();
                assert!(planned || !by_one, "{start}..+{len} without {failed}");
                counts[usize::from(planned)] += 1;
                if planned {
                    bench.write_all(&extents, None);
                }
            }
        }
    }
    assert!(counts.iter().all(|&count| count > 500), "{counts:?}");
}

/// What is read and rebuilt where not everything can be had is right, or has no plan.
#[test]
fn a_read_without_too_many_members_is_right_or_has_no_plan() {
    let mut counts = [0, 0];
    for geometry in small_geometries() {
        for failed in sets(&geometry, 4) {
            for (start, len) in [(0, 1), (3, 8), (8, 8), (1, geometry.stripe_sectors().0 - 2)] {
                let len = len.min(geometry.capacity().0 - start);
                let mut bench = Bench::unreadable(&geometry, failed);
                let has = |lba| {
                    let (stripe, unit, _) = geometry.split(Lba(lba));
                    bench.repair.has(&geometry, stripe, geometry.map(stripe).cell(unit))
                };
                let is_possible = (start..start + len).all(has);
                let extents = [Extent::request(Lba(start), Sectors(len))];
                let planned = Planner::new().read(&mut Plan::default(), &bench.view(), &extents);
                // A mirror's copies are read without asking which of them is the first.
                assert!(planned.is_ok() || !is_possible, "{start}..+{len} without {failed}: {planned:?}");
                counts[usize::from(planned.is_ok())] += 1;
                if planned.is_ok() {
                    bench.read(start, len);
                }
            }
        }
    }
    assert!(counts.iter().all(|&count| count > 500), "{counts:?}");
}

/// All sets of at most so many members.
fn sets(geometry: &Geometry, most: u32) -> Vec<MemberSet> {
    let all = (0..1_u32 << geometry.members()).filter(|set| set.count_ones() <= most);
    all.map(|set| (0..32).filter(|member| set >> member & 1 == 1).map(MemberIndex).collect()).collect()
}

#[test]
fn zeros_are_written_without_a_buffer() {
    for geometry in small_geometries() {
        for failed in tolerated(&geometry) {
            let mut bench = Bench::degraded(&geometry, failed);
            for (start, len) in [(0, 1), (3, 8), (6, 12), (0, geometry.stripe_sectors().0)] {
                let len = len.min(geometry.capacity().0 - start);
                bench.write_all(&[Extent::zeroes(Lba(start), Sectors(len))], None);
            }
            let whole = bench
                .plan
                .writes()
                .iter()
                .all(|io| bench.plan.slices(io).iter().all(|slice| slice.buffer == Buffer::Zeroes));
            assert!(whole && bench.plan.reads().is_empty(), "a zeroed parity stripe is zeros on every member");
            bench.read(0, geometry.capacity().0);
        }
    }
}

/// What members lost, in any columns: all of them at once, or one of them while the others stay away.
#[test]
fn rebuild_gives_back_what_members_lost() {
    let mut rebuilt = 0;
    for geometry in small_geometries() {
        for failed in tolerated(&geometry).into_iter().filter(|failed| !failed.is_empty()) {
            for target in failed.iter().map(|member| MemberSet::EMPTY.with(member)).chain([failed]) {
                let mut bench = Bench::new(&geometry, failed, failed.minus(target));
                for member in target.iter() {
                    bench.members[member.index()].fill(0xDB);
                }
                let missing = bench.missing;
                let view = View { missing, ..View::new(&geometry, &bench.repair) };
                for stripe in (0..geometry.stripes().0).map(StripeId) {
                    let cells = || (0..geometry.map(stripe).cells()).map(|cell| Cell(cell as u16));
                    let lost = || cells().filter(|&cell| target.contains(geometry.member(cell)));
                    for columns in [(Sectors(0), Sectors(3)), (Sectors(3), Sectors(5))] {
                        bench.planner.rebuild(&mut bench.plan, &view, stripe, lost(), columns).expect("exists");
                        check(&bench.plan, &view, Request::Rebuild).expect("sound");
                        let read: Vec<u8> = bench.plan.reads().iter().map(|io| io.member.0).collect();
                        let sectors: u64 = bench.plan.reads().iter().map(|io| io.len.0).sum();
                        let present = geometry.members() - failed.len();
                        assert!(
                            sectors <= (present * geometry.rows()) as u64 * columns.1.0,
                            "each unit once: {read:?}"
                        );
                        interpret(&bench.plan, &mut bench.members, &mut [], &[]);
                        rebuilt += 1;
                    }
                }
                let expected = encode(&geometry, &bench.content);
                for member in target.iter().map(MemberIndex::index) {
                    let used = |bytes: &[u8]| used_of(&geometry, member, bytes);
                    assert!(used(&bench.members[member]) == used(&expected[member]), "member {member} of {failed:?}");
                }
            }
        }
    }
    assert!(rebuilt > 1000, "only {rebuilt}");
}

/// The sectors of a member that hold something of the array.
fn used_of(geometry: &Geometry, member: usize, bytes: &[u8]) -> Vec<u8> {
    let member = MemberIndex(member as u8);
    let is_used = |sector: usize| geometry.owner(Location { member, sector: DiskSector(sector as u64) }).is_some();
    bytes
        .chunks(SECTOR)
        .enumerate()
        .filter(|&(sector, _)| is_used(sector))
        .flat_map(|(_, bytes)| bytes.to_vec())
        .collect()
}

/// A plan says which content it computes, and computes it rightly.
#[test]
fn what_a_plan_recovers_is_what_the_members_held() {
    let mut recovered = 0;
    for geometry in small_geometries() {
        for failed in tolerated(&geometry) {
            let mut bench = Bench::degraded(&geometry, failed);
            bench.read(0, geometry.capacity().0);
            let mut answer = bench.content.clone();
            interpret(&bench.plan, &mut bench.members, &mut answer, &[]);
            let expected = encode(&geometry, &bench.content);
            for piece in bench.plan.recovered().iter().filter(|piece| piece.content.buffer == Buffer::Request) {
                let at = |sectors: u64| sectors as usize * SECTOR;
                let (start, len) = (at(piece.content.start.0), at(piece.content.len.0));
                let held = &expected[piece.member.index()][at(piece.sector.0)..][..len];
                assert!(answer[start..][..len] == *held, "{piece:?}");
                assert!(failed.contains(piece.member));
                recovered += 1;
            }
        }
    }
    assert!(recovered > 100, "only {recovered}");
}

#[test]
fn a_small_write_costs_two_and_two_on_raid5_and_three_and_three_on_raid6_and_rm2() {
    for (level, members, expected) in [
        (Level::Raid0, 4, (0, 1)),
        (Level::Raid1, 3, (0, 3)),
        (Level::Raid10 { copies: 2 }, 4, (0, 2)),
        (Level::Raid5 { rotation: Rotation::LeftSymmetric }, 5, (2, 2)),
        (Level::Raid6 { rotation: Rotation::LeftSymmetric }, 7, (3, 3)),
        (rm2(3, Placement::Adjacent), 7, (3, 3)),
        (rm2(3, Placement::Partitioned), 7, (3, 3)),
        (rm2(3, Placement::Adjacent), 6, (3, 3)),
    ] {
        let geometry = geometry(level, members, 2);
        let mut bench = Bench::healthy(&geometry);
        for unit in 0..geometry.capacity().0 / CHUNK {
            bench.write(unit * CHUNK + 2, 3);
            // In the modified RM2 placement a unit's parity can never be adjacent to it: they are on other members.
            assert_eq!(bench.operations(), expected, "{level:?} unit {unit}");
            let sectors: u64 = bench.plan.reads().iter().map(|io| io.len.0).sum();
            assert_eq!(sectors, 3 * expected.0 as u64, "only the sectors that change move");
        }
    }
}

#[test]
fn a_full_parity_stripe_costs_one_write_a_member_and_no_read() {
    for (level, members, writes) in [
        (Level::Raid0, 4, 4),
        (Level::Raid5 { rotation: Rotation::LeftSymmetric }, 5, 5),
        (Level::Raid6 { rotation: Rotation::LeftSymmetric }, 7, 7),
        (rm2(3, Placement::Adjacent), 7, 7),
        (rm2(3, Placement::Adjacent), 6, 6),
        (rm2(3, Placement::Partitioned), 7, 21),
    ] {
        let geometry = geometry(level, members, 3);
        let mut bench = Bench::healthy(&geometry);
        let stripe = geometry.stripe_sectors().0;
        assert_eq!(bench.write(stripe, stripe), Method::Full);
        assert_eq!(bench.operations(), (0, writes), "{level:?}");
        if writes == usize::from(members) {
            // Several full stripes are still one operation a member.
            assert_eq!(bench.write(0, 3 * stripe), Method::Full);
            assert_eq!(bench.operations(), (0, writes), "{level:?}");
        }
    }
}

/// Chen & Lee's rule on RAID 5: writing u of the N - 1 units takes min(u + 1, N - 1 - u) reads and u + 1 writes.
#[test]
fn the_method_with_the_fewest_operations_is_chosen() {
    for members in 3..=9u8 {
        let geometry = geometry(Level::Raid5 { rotation: Rotation::LeftSymmetric }, members, 2);
        let mut bench = Bench::healthy(&geometry);
        let data = u64::from(members) - 1;
        for units in 1..=data {
            let method = bench.write(0, units * CHUNK);
            let (modify, reconstruct) = (units + 1, data - units);
            assert_eq!(bench.operations(), (modify.min(reconstruct) as usize, units as usize + 1), "{units} of {data}");
            let expected = match reconstruct {
                0 => Method::Full,
                _ if reconstruct <= modify => Method::Reconstruct,
                _ => Method::ReadModifyWrite,
            };
            assert_eq!(method, expected);
        }
    }
}

/// Two data units of RAID 6 are computed from every other unit, which are read once; then a write of one of them reads
/// no more than that.
#[test]
fn two_data_units_of_raid6_come_back_in_two_steps() {
    let geometry = geometry(Level::Raid6 { rotation: Rotation::LeftSymmetric }, 7, 2);
    let lost = [0, 3].map(|unit| geometry.locate(Lba(unit * CHUNK)).member);
    let mut bench = Bench::degraded(&geometry, lost.into_iter().collect());
    bench.read(0, 4 * CHUNK);
    assert_eq!((bench.operations(), bench.plan.xors().len()), ((5, 0), 2));
    bench.read(3 * CHUNK + 1, 2);
    assert_eq!(bench.operations(), (5, 0));
    bench.write(3 * CHUNK + 1, 2);
    assert_eq!(bench.operations(), (5, 2), "P and Q");
}

#[test]
fn a_partial_write_of_almost_everything_reads_only_the_rest() {
    let geometry = geometry(Level::Raid5 { rotation: Rotation::LeftSymmetric }, 5, 1);
    let mut bench = Bench::healthy(&geometry);
    // All but the first sector of unit 0 and the last two of unit 3.
    assert_eq!(bench.write(1, 4 * CHUNK - 3), Method::Reconstruct);
    let mut sectors: Vec<u64> = bench.plan.reads().iter().map(|io| io.len.0).collect();
    sectors.sort_unstable();
    assert_eq!(sectors, [1, 2]);
}

#[test]
fn a_degraded_small_read_costs_the_group_and_a_copy_costs_nothing() {
    let raid5 = geometry(Level::Raid5 { rotation: Rotation::LeftSymmetric }, 5, 2);
    let mut bench = Bench::degraded(&raid5, MemberSet::EMPTY.with(MemberIndex(0)));
    bench.read(1, 2);
    assert_eq!(bench.operations(), (4, 0), "Chen & Lee's figure: unit 0 is on disk 0");
    bench.read(CHUNK, 2);
    assert_eq!(bench.operations(), (1, 0), "unit 1 is on disk 1");
    let mirror = geometry(Level::Raid1, 3, 2);
    let mut bench = Bench::degraded(&mirror, MemberSet::EMPTY.with(MemberIndex(0)));
    bench.read(1, 2);
    assert_eq!((bench.operations(), bench.plan.xors().len()), ((1, 0), 0));
    // A whole degraded stripe: every surviving unit once.
    let mut bench = Bench::degraded(&raid5, MemberSet::EMPTY.with(MemberIndex(1)));
    bench.read(0, 4 * CHUNK);
    assert_eq!((bench.operations(), bench.plan.xors().len()), ((4, 0), 1));
}

/// Queues that differ from seed to seed, many of them equally deep.
fn queues(members: usize, seed: u64) -> Vec<Queue> {
    let queue = |member| {
        let state = (seed + 1).wrapping_mul(member as u64 + 3).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        Queue { depth: (state % 2) as u32, head: DiskSector(state / 2 % 64) }
    };
    (0..members).map(queue).collect()
}

/// The member from which the one operation of the last plan reads.
fn reader(bench: &Bench<'_>) -> u8 {
    let [io] = bench.plan.reads() else { panic!("{:?}", bench.plan) };
    io.member.0
}

#[test]
fn a_copy_is_read_from_the_shortest_queue_then_the_nearest_head_then_the_lowest_cell() {
    let geometry = geometry(Level::Raid1, 3, 4);
    let mut bench = Bench::degraded(&geometry, MemberSet::EMPTY);
    let queue = |depth, head| Queue { depth, head: DiskSector(head) };
    for (queues, expected) in [
        (vec![], 0),
        (vec![queue(0, 0); 3], 0),
        (vec![queue(2, 17), queue(1, 0), queue(1, 0)], 1),
        (vec![queue(2, 17), queue(2, 17), queue(1, 0)], 2),
        (vec![queue(1, 12), queue(1, 20), queue(1, 30)], 1),
        (vec![queue(1, 0), queue(1, 31), queue(1, 15)], 2),
        (vec![queue(1, 14), queue(1, 20), queue(1, 21)], 0),
        (vec![queue(1, 0), queue(1, 20), queue(1, 14)], 1),
    ] {
        bench.queues = queues;
        bench.read(17, 4);
        assert_eq!(reader(&bench), expected, "{:?}", bench.queues);
    }
    // What is not there is not asked, however idle; one long read of a mirror is one operation.
    bench = Bench::degraded(&geometry, MemberSet::EMPTY.with(MemberIndex(1)));
    bench.queues = vec![queue(3, 0), queue(0, 0), queue(2, 31)];
    bench.read(1, 3 * CHUNK);
    assert_eq!(reader(&bench), 2);
}

#[test]
fn the_distance_is_to_the_copy_that_is_wrapped_to_the_next_row() {
    let geometry = geometry(Level::Raid10 { copies: 2 }, 3, 4);
    let mut bench = Bench::healthy(&geometry);
    // The second data unit is on member 2 in row 0 and on member 0 in row 1.
    for (heads, expected) in [([CHUNK, 0, 1], 0), ([CHUNK, 0, 0], 2), ([0, 0, 0], 2), ([0, 0, CHUNK + 1], 0)] {
        bench.queues = heads.map(|head| Queue { depth: 1, head: DiskSector(head) }).to_vec();
        bench.read(CHUNK, 2);
        assert_eq!(reader(&bench), expected, "{heads:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_requests_in_any_tolerated_state(
        geometry in any_geometry(),
        failed in any::<prop::sample::Index>(),
        kept in any::<u64>(),
        requests in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()), 1..6),
    ) {
        let sets = tolerated(&geometry);
        let failed = sets[failed.index(sets.len())];
        // Some of the failed members are only unreadable.
        let missing = failed.iter().filter(|member| kept >> member.0 & 1 == 0).collect();
        let mut bench = Bench::new(&geometry, failed, missing);
        for (start, len, seed, is_write) in requests {
            let start = start % geometry.capacity().0;
            let len = 1 + len % (geometry.capacity().0 - start);
            bench.queues = queues(geometry.members(), seed % 1000);
            if is_write {
                bench.write(start, len);
            }
            bench.read(start, len);
        }
    }
}
