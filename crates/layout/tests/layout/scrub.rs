//! Scrubbing: what is read and compared, and what is said of units that are wrong.

use uraid_layout::plan::{Difference, Request, View, check, interpret};
use uraid_layout::stripe::{Role, StripeMap};
use uraid_layout::verdict::{Verdict, judge};
use uraid_layout::{
    Cell, DiskSector, Geometry, GroupId, Level, Location, MemberSet, Placement, Rotation, Sectors, StripeId,
};

use crate::bench::{Bench, CHUNK, SECTOR, geometry, rm2, small_geometries, tolerated};
use crate::oracle::{factor, product};

fn cells(map: &StripeMap) -> impl Iterator<Item = Cell> + use<> {
    (0..map.cells()).map(|cell| Cell(cell as u16))
}

/// The groups that a cell is in, by looking through all of them.
fn groups_with(map: &StripeMap, cell: Cell) -> Vec<GroupId> {
    let groups = map.groups().iter().enumerate().filter(|(_, group)| group.cells().any(|other| other == cell));
    groups.map(|(group, _)| GroupId(group as u16)).collect()
}

/// Each used cell that can be read is read once, and each group of such cells compared: zeros where its cells agree,
/// what one cell is wrong by where that one is wrong.
#[test]
fn every_readable_cell_is_read_once_and_every_whole_group_compared() {
    let mut compared = 0;
    for geometry in small_geometries() {
        for failed in tolerated(&geometry) {
            let mut bench = Bench::degraded(&geometry, failed);
            for stripe in (0..geometry.stripes().0).map(StripeId) {
                for columns in [(0, 3), (3, 5), (0, CHUNK)] {
                    scrub(&mut bench, stripe, columns);
                    let map = geometry.map(stripe);
                    let readable =
                        |cell: &Cell| geometry.uses(stripe, *cell) && !failed.contains(geometry.member(*cell));
                    let whole: Vec<usize> = (0..map.groups().len())
                        .filter(|&group| map.groups()[group].cells().all(|cell| readable(&cell)))
                        .collect();
                    assert!(differences(&bench).iter().map(|(group, _)| *group).eq(whole), "{:?}", geometry.spec());
                    assert!(differences(&bench).iter().all(|(_, sum)| sum.iter().all(|&byte| byte == 0)));
                    let mut expected: Vec<(u8, u64)> = Vec::new();
                    for cell in cells(map).filter(readable) {
                        let start = geometry.sector(stripe, cell).0 + columns.0;
                        expected.extend((start..start + columns.1).map(|sector| (geometry.member(cell).0, sector)));
                    }
                    let reads = bench.plan.reads().iter();
                    let mut read: Vec<(u8, u64)> = reads
                        .flat_map(|io| (io.sector.0..io.sector.0 + io.len.0).map(|at| (io.member.0, at)))
                        .collect();
                    expected.sort_unstable();
                    read.sort_unstable();
                    assert_eq!(read, expected, "{:?} without {failed:?}", geometry.spec());
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 500, "only {compared}");
}

#[test]
fn a_wrong_cell_shows_in_just_its_groups_and_columns() {
    for geometry in small_geometries() {
        let mut bench = Bench::healthy(&geometry);
        let stripe = StripeId(geometry.stripes().0 - 1);
        let map = geometry.map(stripe);
        for cell in cells(map).filter(|&cell| geometry.uses(stripe, cell)) {
            let at = (geometry.sector(stripe, cell).0 as usize + 4) * SECTOR + 17;
            bench.members[geometry.member(cell).index()][at] ^= 0x21;
            scrub(&mut bench, stripe, (2, 5));
            for (group, sum) in differences(&bench) {
                let is_in = groups_with(map, cell).contains(&GroupId(group as u16));
                let wrong: Vec<(usize, u8)> = sum.iter().copied().enumerate().filter(|&(_, byte)| byte != 0).collect();
                let holder = geometry.member(map.groups()[group].parity);
                let members = [holder, geometry.member(cell)].map(|member| u64::from(member.0));
                let count = geometry.members() as u64;
                let factor = factor(geometry.spec().level, count, group as u64, members[0], members[1]);
                let expected = if is_in { vec![(2 * SECTOR + 17, product(0x21, factor))] } else { vec![] };
                assert_eq!(wrong, expected, "{:?}: cell {cell}, group {group}", geometry.spec());
            }
            bench.members[geometry.member(cell).index()][at] ^= 0x21;
        }
    }
}

fn scrub(bench: &mut Bench<'_>, stripe: StripeId, (start, len): (u64, u64)) {
    let Bench { geometry, repair, missing, planner, plan, .. } = bench;
    let view = View { missing: *missing, ..View::new(geometry, repair) };
    planner.scrub(plan, &view, stripe, (Sectors(start), Sectors(len))).expect("exists");
    check(plan, &view, Request::Scrub).expect("sound");
    assert!(planner.scrub(plan, &view, stripe, (Sectors(CHUNK), Sectors(1))).is_err());
    planner.scrub(plan, &view, stripe, (Sectors(start), Sectors(len))).expect("exists");
}

/// The groups that the plan compares and what they differ by.
fn differences(bench: &Bench<'_>) -> Vec<(usize, Vec<u8>)> {
    let mut members = bench.members.clone();
    let scratch = interpret(&bench.plan, &mut members, &mut [], &[]);
    assert!(members == bench.members, "nothing is written");
    let of = |difference: &Difference| {
        let start = difference.content.start.0 as usize * SECTOR;
        let sum = scratch[start..][..difference.content.len.0 as usize * SECTOR].to_vec();
        (usize::from(difference.group.0), sum)
    };
    bench.plan.differences().iter().map(of).collect()
}

/// Verdicts on a stripe whose cells are wrong by a byte each; groups with a lost cell are not checked.
fn verdicts(map: &StripeMap, wrong: &[(Cell, u8)], lost: &[Cell]) -> Vec<Verdict> {
    let wrong: Vec<(Cell, [u8; 1])> = wrong.iter().map(|&(cell, by)| (cell, [by])).collect();
    verdicts_of(map, &wrong, lost)
}

/// The same by more bytes.
fn verdicts_of<const N: usize>(map: &StripeMap, wrong: &[(Cell, [u8; N])], lost: &[Cell]) -> Vec<Verdict> {
    let sums: Vec<Option<[u8; N]>> = map
        .groups()
        .iter()
        .map(|group| {
            let is_checked = group.cells().all(|cell| !lost.contains(&cell));
            let error = |cell: Cell, at: usize| {
                wrong.iter().filter(|(other, _)| *other == cell).fold(0, |sum, (_, by)| sum ^ by[at])
            };
            let sum = |at| group.terms().fold(0, |sum, (cell, factor)| sum ^ product(error(cell, at), factor.0));
            is_checked.then(|| core::array::from_fn(sum))
        })
        .collect();
    let differences: Vec<Option<&[u8]>> = sums.iter().map(|sum| sum.as_ref().map(|sum| &sum[..])).collect();
    judge(map, &differences)
}

fn rm2_geometries() -> Vec<Geometry> {
    let shapes = [(2, 4), (2, 5), (2, 9), (3, 6), (3, 7), (3, 10), (4, 9), (4, 12), (5, 14), (6, 16)];
    let of = |&(height, members): &(u8, u8)| geometry(rm2(height, Placement::Adjacent), members, 1);
    shapes.iter().map(of).collect()
}

/// Every cell of every small geometry.
#[test]
fn a_single_wrong_unit_is_named_where_that_can_be_told() {
    for geometry in small_geometries().into_iter().chain(rm2_geometries()) {
        for map in geometry.maps() {
            assert_eq!(verdicts(map, &[], &[]), []);
            for cell in cells(map) {
                let expected = match (geometry.spec().level, map.role(cell)) {
                    (Level::Raid0, _) => vec![],
                    (Level::Raid6 { .. } | Level::Rm2 { .. }, Role::Data(_)) => vec![Verdict::Suspect(cell)],
                    (Level::Raid6 { .. } | Level::Rm2 { .. }, Role::Parity(_)) => vec![Verdict::Wrong(cell)],
                    (Level::Raid1, _) if geometry.members() > 2 => vec![Verdict::Wrong(cell)],
                    (Level::Raid10 { copies: 3 }, _) => vec![Verdict::Wrong(cell)],
                    _ => groups_with(map, cell).into_iter().map(Verdict::Unknown).collect(),
                };
                assert_eq!(verdicts(map, &[(cell, 7)], &[]), expected, "{:?}: {cell}", geometry.spec());
            }
        }
    }
}

/// All pairs of units of RM2 that are wrong by different bytes: no third one is ever named, nor one of both.
#[test]
fn two_units_that_are_wrong_differently_are_left_alone() {
    let mut pairs = 0;
    for geometry in rm2_geometries() {
        let map = &geometry.maps()[0];
        for (a, b) in cells(map).flat_map(|a| cells(map).filter(move |&b| a < b).map(move |b| (a, b))) {
            let found = verdicts(map, &[(a, 7), (b, 9)], &[]);
            let is_unknown = |verdict: &Verdict| matches!(verdict, Verdict::Unknown(_));
            assert!(!found.is_empty() && found.iter().all(is_unknown), "{:?}: {a} {b}: {found:?}", geometry.spec());
            pairs += 1;
        }
    }
    assert!(pairs > 5000, "only {pairs}");
}

/// All pairs of units of RAID 6: no third one is named, nor one of both, unless one's bytes are a multiple of the
/// other's.
#[test]
fn two_units_of_raid6_that_are_wrong_differently_are_left_alone() {
    let (mut pairs, mut named) = (0, 0);
    for members in 4..=16 {
        let geometry = geometry(Level::Raid6 { rotation: Rotation::LeftSymmetric }, members, 1);
        let map = &geometry.maps()[0];
        for (a, b) in cells(map).flat_map(|a| cells(map).filter(move |&b| a < b).map(move |b| (a, b))) {
            let found = verdicts_of(map, &[(a, [7, 0]), (b, [9, 9])], &[]);
            let are_open = |found: &[Verdict]| found.iter().all(|verdict| matches!(verdict, Verdict::Unknown(_)));
            assert!(!found.is_empty() && are_open(&found), "{members}: {a} {b}: {found:?}");
            pairs += 1;
            named += usize::from(!are_open(&verdicts_of(map, &[(a, [7, 14]), (b, [9, 18])], &[])));
        }
    }
    assert!(pairs > 500 && named > 20, "{pairs} {named}");
}

/// By the same bytes a pair looks like a third unit just where the groups of all three cancel out: there nothing can be
/// told.
#[test]
fn two_units_that_are_wrong_alike_look_like_a_third_where_one_completes_them() {
    let (mut alike, mut left) = (0, 0);
    for geometry in rm2_geometries() {
        let map = &geometry.maps()[0];
        let mask = |cell: Cell| groups_with(map, cell).iter().fold(0u64, |mask, group| mask ^ 1 << group.0);
        for (a, b) in cells(map).flat_map(|a| cells(map).filter(move |&b| a < b).map(move |b| (a, b))) {
            let third: Vec<Cell> = cells(map).filter(|&c| mask(a) ^ mask(b) ^ mask(c) == 0).collect();
            let found = verdicts(map, &[(a, 7), (b, 7)], &[]);
            let is_named = match found[..] {
                [Verdict::Wrong(cell) | Verdict::Suspect(cell)] => third == [cell],
                _ => third.is_empty() && found.iter().all(|verdict| matches!(verdict, Verdict::Unknown(_))),
            };
            assert!(is_named, "{:?}: {a} {b} {third:?}: {found:?}", geometry.spec());
            if third.is_empty() { left += 1 } else { alike += 1 }
        }
    }
    assert!(alike > 100 && left > 1000, "{alike} {left}");
}

/// With members missing a unit is named only where no other one explains the same: never a wrong one.
#[test]
fn a_degraded_stripe_names_no_unit_that_is_right() {
    let mut named = 0;
    let raid6 = (4..8).map(|members| geometry(Level::Raid6 { rotation: Rotation::LeftSymmetric }, members, 1));
    for geometry in rm2_geometries().into_iter().chain(raid6) {
        let map = &geometry.maps()[0];
        for failed in geometry.all_members().iter().map(|member| MemberSet::EMPTY.with(member)) {
            let lost: Vec<Cell> = cells(map).filter(|&cell| failed.contains(geometry.member(cell))).collect();
            for cell in cells(map).filter(|cell| !lost.contains(cell)) {
                for verdict in verdicts(map, &[(cell, 7)], &lost) {
                    let is_right = match verdict {
                        Verdict::Wrong(found) | Verdict::Suspect(found) => found == cell,
                        Verdict::Unknown(group) => groups_with(map, cell).contains(&group),
                    };
                    assert!(is_right, "{:?} without {failed:?}: {cell}: {verdict:?}", geometry.spec());
                    named += usize::from(!matches!(verdict, Verdict::Unknown(_)));
                }
            }
        }
    }
    assert!(named > 100, "only {named}");
}

/// More copies than three: what more than half of them say.
#[test]
fn the_majority_of_copies_is_right() {
    let five = geometry(Level::Raid1, 5, 2);
    let map = &five.maps()[0];
    let wrong = |cells: &[u16]| cells.iter().map(|&cell| Verdict::Wrong(Cell(cell))).collect::<Vec<_>>();
    for (a, b) in (0..5).flat_map(|a| (0..a).map(move |b| (b, a))) {
        assert_eq!(verdicts(map, &[(Cell(a), 1), (Cell(b), 1)], &[]), wrong(&[a, b]), "alike, outnumbered");
        assert_eq!(verdicts(map, &[(Cell(a), 1), (Cell(b), 2)], &[]), wrong(&[a, b]), "differently");
    }
    let four = geometry(Level::Raid1, 4, 2);
    for (a, b) in (0..4).flat_map(|a| (0..a).map(move |b| (b, a))) {
        for by in [1, 2] {
            let found = verdicts(&four.maps()[0], &[(Cell(a), 1), (Cell(b), by)], &[]);
            let is_unknown = |verdict: &Verdict| matches!(verdict, Verdict::Unknown(_));
            assert!(!found.is_empty() && found.iter().all(is_unknown), "half are no majority: {found:?}");
        }
    }
    let three = geometry(Level::Raid1, 3, 2);
    let found = verdicts(&three.maps()[0], &[(Cell(1), 1)], &[Cell(2)]);
    assert!(matches!(found[..], [Verdict::Unknown(_)]), "of three copies one is missing: {found:?}");
}

/// Units of one mirrored stripe are judged apart from each other.
#[test]
fn mirrored_units_are_judged_each_for_itself() {
    let geometry = geometry(Level::Raid10 { copies: 3 }, 6, 2);
    let map = &geometry.maps()[0];
    let first = Location { member: geometry.member(map.data()[0]), sector: DiskSector(0) };
    assert!(geometry.owner(first).is_some());
    let (a, b) = (map.data()[0], map.group(map.groups_of(uraid_layout::DataUnit(1))[0]).parity);
    assert_eq!(verdicts(map, &[(a, 3), (b, 3)], &[]), [Verdict::Wrong(a.min(b)), Verdict::Wrong(a.max(b))]);
}
