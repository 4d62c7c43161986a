//! Lost cells come back whenever they can, in the fewest rounds, and with the right bytes.

use proptest::prelude::*;
use uraid_layout::repair::{Repair, Step};
use uraid_layout::stripe::StripeMap;
use uraid_layout::{Cell, Geometry, GroupId, Level, MemberIndex, MemberSet, Placement, Rotation, StripeId};

use crate::oracle::{Oracle, rank, small_levels, spec};

fn set(members: impl IntoIterator<Item = u8>) -> MemberSet {
    members.into_iter().map(MemberIndex).collect()
}

fn subsets(members: u8) -> impl Iterator<Item = MemberSet> {
    (0..1u32 << members).map(move |bits| set((0..members).filter(|member| bits >> member & 1 == 1)))
}

fn index(cell: Cell) -> usize {
    usize::from(cell.0)
}

/// The equations of parity stripe `stripe`, by the oracle: for each group its cells, parity first.
fn equations(geometry: &Geometry, oracle: &Oracle, stripe: u64) -> Vec<Vec<usize>> {
    let units = geometry.stripe_sectors().0 / geometry.chunk().0;
    let rows = geometry.rows() as u64;
    let stripes = geometry.stripes().0;
    let is_partitioned = matches!(geometry.spec().level, Level::Rm2 { placement: Placement::Partitioned, .. });
    let cell = |chunk: crate::oracle::Chunk| {
        let row = if is_partitioned { chunk.index / stripes } else { chunk.index % rows };
        usize::try_from(row).expect("small numbers fit") * geometry.members()
            + usize::try_from(chunk.member).expect("small numbers fit")
    };
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for unit in stripe * units..(stripe + 1) * units {
        let unit = oracle.unit(unit);
        for (group, parity) in unit.parity {
            let group = usize::try_from(group).expect("small numbers fit");
            groups.resize(groups.len().max(group + 1), Vec::new());
            if groups[group].is_empty() {
                groups[group].push(cell(parity));
            }
            groups[group].push(cell(unit.at));
        }
    }
    groups
}

/// Whether the equations determine the failed members' cells.
fn is_determined(geometry: &Geometry, equations: &[Vec<usize>], failed: MemberSet) -> bool {
    let mut column = vec![None; geometry.members() * geometry.rows()];
    let lost = (0..column.len()).filter(|cell| failed.contains(MemberIndex((cell % geometry.members()) as u8)));
    let mut unknowns = 0;
    for cell in lost.collect::<Vec<_>>() {
        column[cell] = Some(unknowns);
        unknowns += 1;
    }
    assert!(unknowns <= 64, "the oracle's matrix has at most 64 columns");
    let row = |cells: &Vec<usize>| cells.iter().filter_map(|&cell| column[cell]).fold(0u64, |row, at| row ^ 1 << at);
    rank(equations.iter().map(row).collect()) == unknowns
}

/// For each cell the least number of rounds after which it is known.
fn fewest_rounds(equations: &[Vec<usize>], is_lost: &[bool]) -> Vec<Option<usize>> {
    let mut rounds: Vec<Option<usize>> = is_lost.iter().map(|&is_lost| (!is_lost).then_some(0)).collect();
    loop {
        let before = rounds.clone();
        for cells in equations {
            for &cell in cells {
                let others = cells.iter().filter(|&&other| other != cell).map(|&other| before[other]);
                let ready =
                    others.collect::<Option<Vec<usize>>>().map(|others| 1 + others.into_iter().max().unwrap_or(0));
                rounds[cell] = [rounds[cell], ready].into_iter().flatten().min();
            }
        }
        if rounds == before {
            return rounds;
        }
    }
}

/// Checks that the steps are in order, bring back each lost cell once, and take no more rounds than needed.
fn check_steps(geometry: &Geometry, equations: &[Vec<usize>], map_index: usize, repair: &Repair) {
    let cells = geometry.members() * geometry.rows();
    let is_lost: Vec<bool> =
        (0..cells).map(|cell| repair.failed().contains(MemberIndex((cell % geometry.members()) as u8))).collect();
    let fewest = fewest_rounds(equations, &is_lost);
    let mut rounds: Vec<Option<usize>> = is_lost.iter().map(|&is_lost| (!is_lost).then_some(0)).collect();
    for step in repair.steps(map_index) {
        let (target, group) = (index(step.target), &equations[usize::from(step.group.0)]);
        assert!(group.contains(&target) && rounds[target].is_none());
        let others = group.iter().filter(|&&cell| cell != target);
        rounds[target] = Some(
            1 + others.map(|&cell| rounds[cell].expect("operands come first")).max().expect("there is one at least"),
        );
        assert_eq!(repair.step_for(map_index, step.target), Some(*step));
    }
    assert_eq!(rounds, fewest, "{:?} without {:?}", geometry.spec(), repair.failed());
    for cell in (0..cells).filter(|&cell| !is_lost[cell]) {
        assert_eq!(repair.step_for(map_index, Cell(u16::try_from(cell).expect("cells and groups fit 16 bits"))), None);
    }
}

#[test]
fn groups_are_the_oracles() {
    for (level, members) in small_levels() {
        let spec = spec(level, members, 4, 40);
        let (geometry, oracle) = (Geometry::new(spec).unwrap(), Oracle::new(spec));
        for (map_index, map) in geometry.maps().iter().enumerate() {
            assert_eq!(geometry.map_index(StripeId(map_index as u64)), map_index);
            let expected = equations(&geometry, &oracle, map_index as u64);
            assert_eq!(map.groups().len(), expected.len());
            for (group, cells) in map.groups().iter().zip(expected) {
                assert_eq!(index(group.parity), cells[0]);
                let mut data = cells[1..].to_vec();
                data.sort_unstable();
                assert_eq!(group.data.iter().copied().map(index).collect::<Vec<_>>(), data);
            }
        }
    }
}

/// Every set of failed members of every small array: peeling and rank agree, and what is tolerated is survived.
#[test]
fn any_set_of_failures_is_repaired_or_refused_rightly() {
    for (level, members) in small_levels() {
        let spec = spec(level, members, 4, 40);
        let (geometry, oracle) = (Geometry::new(spec).unwrap(), Oracle::new(spec));
        let maps: Vec<_> = (0..geometry.maps().len() as u64).map(|map| equations(&geometry, &oracle, map)).collect();
        let mut fatal = usize::MAX;
        for failed in subsets(members) {
            let is_determined = maps.iter().all(|equations| is_determined(&geometry, equations, failed));
            let repair = Repair::new(&geometry, failed);
            assert_eq!(repair.is_ok(), is_determined, "{spec:?} without {failed:?}");
            for (map_index, equations) in maps.iter().enumerate() {
                // Cells that can't be had have no step, the others have one, whatever becomes of those.
                let partial = Repair::partial(&geometry, failed);
                check_steps(&geometry, equations, map_index, &partial);
                for cell in (0..geometry.members() * geometry.rows()).map(|cell| Cell(u16::try_from(cell).unwrap())) {
                    let is_lost = failed.contains(geometry.member(cell));
                    let is_had = !is_lost || partial.step_for(map_index, cell).is_some();
                    assert_eq!(partial.has(&geometry, StripeId(map_index as u64), cell), is_had);
                }
            }
            match repair {
                Ok(repair) => {
                    assert_eq!(repair.failed(), failed);
                    for (map_index, equations) in maps.iter().enumerate() {
                        check_steps(&geometry, equations, map_index, &repair);
                    }
                }
                Err(error) => {
                    fatal = fatal.min(failed.len());
                    assert_eq!(error.failed, failed);
                    let holders = error.cells.iter().map(|&cell| geometry.member(cell)).collect();
                    assert!(!error.cells.is_empty() && error.holders == holders);
                    assert!(error.holders.minus(failed).is_empty());
                }
            }
        }
        assert_eq!(fatal, geometry.tolerance() + 1, "{spec:?}: tolerance is exact");
    }
}

#[test]
fn raid10_survives_what_leaves_a_copy_of_everything() {
    let geometry = Geometry::new(spec(Level::Raid10 { copies: 2 }, 4, 4, 10)).unwrap();
    assert_eq!(geometry.tolerance(), 1);
    for (failed, is_survived) in [([0, 2], true), ([1, 3], true), ([0, 3], true), ([0, 1], false), ([2, 3], false)] {
        assert_eq!(Repair::new(&geometry, set(failed)).is_ok(), is_survived, "{failed:?}");
    }
}

#[test]
fn mirrors_repair_from_the_nearest_copy() {
    let geometry = Geometry::new(spec(Level::Raid1, 4, 4, 10)).unwrap();
    let steps = |failed: &[u8]| Repair::new(&geometry, set(failed.iter().copied())).unwrap().steps(0).to_vec();
    // Group g pairs member 0 with member g + 1.
    let step = |target, group| Step { target: Cell(target), group: GroupId(group) };
    assert_eq!(steps(&[0]), [step(0, 0)]);
    assert_eq!(steps(&[0, 1]), [step(0, 1), step(1, 0)]);
    assert_eq!(steps(&[2, 3]), [step(2, 1), step(3, 2)]);
    assert_eq!(steps(&[0, 1, 2]), [step(0, 2), step(1, 0), step(2, 1)]);
}

/// The most rounds that a pair of failures takes to bring back all data, as the exhaustive study of the seeds found
/// them.
#[test]
fn rm2_takes_the_known_number_of_rounds() {
    for (members, height, expected) in
        [(4, 2, 2), (7, 3, 4), (9, 4, 4), (10, 5, 8), (22, 7, 4), (24, 8, 4), (32, 16, 30)]
    {
        let level = Level::Rm2 { height, placement: Placement::Adjacent };
        let geometry = Geometry::new(spec(level, members, 4, 16)).unwrap();
        let map = &geometry.maps()[0];
        let pairs = (0..members).flat_map(|x| (0..x).map(move |y| set([x, y])));
        let most = pairs.map(|failed| data_rounds(map, &Repair::new(&geometry, failed).unwrap())).max();
        assert_eq!(most, Some(expected), "N = {members}, M = {height}");
    }
}

fn data_rounds(map: &StripeMap, repair: &Repair) -> usize {
    let mut rounds = vec![0; map.cells()];
    for step in repair.steps(0) {
        let others = map.group(step.group).cells().filter(|&cell| cell != step.target);
        rounds[index(step.target)] = 1 + others.map(|cell| rounds[index(cell)]).max().expect("there is one at least");
    }
    map.data().iter().map(|&cell| rounds[index(cell)]).max().expect("there is one at least")
}

#[test]
fn without_failures_there_is_nothing_to_do() {
    for (level, members) in small_levels() {
        let geometry = Geometry::new(spec(level, members, 4, 40)).unwrap();
        let repair = Repair::none(&geometry);
        assert!(repair.failed().is_empty());
        assert!((0..geometry.maps().len()).all(|map| repair.steps(map).is_empty()));
    }
}

#[test]
fn members_that_the_array_lacks_are_ignored() {
    let geometry = Geometry::new(spec(Level::Raid5 { rotation: Rotation::LeftSymmetric }, 3, 4, 10)).unwrap();
    assert_eq!(Repair::new(&geometry, set([1, 3, 63])).unwrap().failed(), set([1]));
}

#[test]
fn the_refusal_says_who_must_come_back() {
    let geometry = Geometry::new(spec(Level::Raid10 { copies: 2 }, 6, 4, 10)).unwrap();
    let error = Repair::new(&geometry, set([0, 2, 3])).unwrap_err();
    assert_eq!((error.holders, error.cells.clone()), (set([2, 3]), vec![Cell(2), Cell(3)]));
    assert_eq!(
        error.to_string(),
        "with members 0, 2, 3 missing, 2 units of every 6 can't be recovered; bring back one of the members 2, 3"
    );
}

/// Fills a parity stripe with data and the parity that the oracle's equations want.
fn encode(cells: usize, equations: &[Vec<usize>], bytes: &mut dyn FnMut() -> u8) -> Vec<Vec<u8>> {
    let mut content: Vec<Vec<u8>> = (0..cells).map(|_| (0..16).map(|_| bytes()).collect()).collect();
    for cells in equations {
        let sum = |at| cells[1..].iter().fold(0, |sum, &cell: &usize| sum ^ content[cell][at]);
        content[cells[0]] = (0..16).map(sum).collect();
    }
    content
}

fn restore(geometry: &Geometry, map: &StripeMap, steps: &[Step], failed: MemberSet, whole: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let is_lost = |cell: usize| {
        failed.contains(geometry.member(Cell(u16::try_from(cell).expect("cells and groups fit 16 bits"))))
    };
    let mut content = whole.to_vec();
    for (cell, bytes) in content.iter_mut().enumerate() {
        if is_lost(cell) {
            bytes.fill(0xEE);
        }
    }
    for step in steps {
        let mut sum = vec![0; 16];
        for cell in map.group(step.group).cells().filter(|&cell| cell != step.target) {
            sum.iter_mut().zip(&content[index(cell)]).for_each(|(sum, byte)| *sum ^= byte);
        }
        content[index(step.target)] = sum;
    }
    content
}

#[test]
fn steps_restore_the_bytes() {
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    for (level, members) in small_levels() {
        let spec = spec(level, members, 4, 40);
        let (geometry, oracle) = (Geometry::new(spec).unwrap(), Oracle::new(spec));
        for (map_index, map) in geometry.maps().iter().enumerate() {
            let whole = encode(map.cells(), &equations(&geometry, &oracle, map_index as u64), &mut random);
            for repair in subsets(members).filter_map(|failed| Repair::new(&geometry, failed).ok()) {
                let restored = restore(&geometry, map, repair.steps(map_index), repair.failed(), &whole);
                assert_eq!(restored, whole, "{spec:?} without {:?}", repair.failed());
            }
        }
    }
}

proptest! {
    /// The larger arrays: pairs on RM2, one member on RAID 5, all but one on RAID 1.
    #[test]
    fn steps_restore_the_bytes_of_larger_arrays(
        rotation in 0usize..4, members in 12u8..=32, x in any::<u8>(), y in any::<u8>(), bytes in any::<u64>(),
    ) {
        let tallest = (2..=16).filter(|&m| crate::oracle::is_published(members.into(), m)).max().unwrap() as u8;
        let (x, y) = (x % members, y % members);
        for (level, failed) in [
            (Level::Rm2 { height: tallest, placement: Placement::Adjacent }, set([x, y])),
            (Level::Raid5 { rotation: Rotation::ALL[rotation] }, set([x])),
            (Level::Raid1, MemberSet::all(members.into()).without(MemberIndex(x))),
        ] {
            let spec = spec(level, members, 4, 100);
            let (geometry, oracle) = (Geometry::new(spec).unwrap(), Oracle::new(spec));
            let map_index = geometry.maps().len() - 1;
            let map = &geometry.maps()[map_index];
            let mut state = bytes;
            let mut random = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            };
            let whole = encode(map.cells(), &equations(&geometry, &oracle, map_index as u64), &mut random);
            let repair = Repair::new(&geometry, failed).unwrap();
            let restored = restore(&geometry, map, repair.steps(map_index), failed, &whole);
            prop_assert_eq!(restored, whole);
        }
    }
}
