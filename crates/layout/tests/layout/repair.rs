//! Lost cells come back whenever they can, in the fewest rounds, and with the right bytes.

use proptest::prelude::*;
use uraid_layout::repair::Repair;
use uraid_layout::stripe::StripeMap;
use uraid_layout::{Cell, Geometry, Level, MemberIndex, MemberSet, Placement, Rotation, StripeId};

use crate::oracle::{Oracle, factor, field_rank, product, small_levels, spec};

fn set(members: impl IntoIterator<Item = u8>) -> MemberSet {
    members.into_iter().map(MemberIndex).collect()
}

fn subsets(members: u8) -> impl Iterator<Item = MemberSet> {
    (0..1u32 << members).map(move |bits| set((0..members).filter(|member| bits >> member & 1 == 1)))
}

fn index(cell: Cell) -> usize {
    usize::from(cell.0)
}

/// A group: its cells with their factors, parity first.
type Equation = Vec<(usize, u8)>;

/// The equations of parity stripe `stripe`, by the oracle.
fn equations(geometry: &Geometry, oracle: &Oracle, stripe: u64) -> Vec<Equation> {
    let units = geometry.stripe_sectors().0 / geometry.chunk().0;
    let rows = geometry.rows() as u64;
    let stripes = geometry.stripes().0;
    let is_partitioned = matches!(geometry.spec().level, Level::Rm2 { placement: Placement::Partitioned, .. });
    let cell = |chunk: crate::oracle::Chunk| {
        let row = if is_partitioned { chunk.index / stripes } else { chunk.index % rows };
        usize::try_from(row).expect("small numbers fit") * geometry.members()
            + usize::try_from(chunk.member).expect("small numbers fit")
    };
    let mut groups: Vec<Equation> = Vec::new();
    for unit in stripe * units..(stripe + 1) * units {
        let unit = oracle.unit(unit);
        for (number, parity) in unit.parity {
            let group = usize::try_from(number).expect("small numbers fit");
            let members = (geometry.members() as u64, parity.member, unit.at.member);
            let factor = factor(oracle.spec.level, members.0, number, members.1, members.2);
            groups.resize(groups.len().max(group + 1), Vec::new());
            if groups[group].is_empty() {
                groups[group].push((cell(parity), 1));
            }
            groups[group].push((cell(unit.at), factor));
        }
    }
    groups
}

/// The equations' factors of some cells, as a matrix.
fn matrix(equations: &[Equation], cells: &[usize]) -> Vec<Vec<u8>> {
    let factor =
        |equation: &Equation, cell| equation.iter().find(|&&(other, _)| other == cell).map_or(0, |&(_, factor)| factor);
    equations.iter().map(|equation| cells.iter().map(|&cell| factor(equation, cell)).collect()).collect()
}

/// Of the lost cells those that the equations determine: without one of these their rank is lower.
fn determined(equations: &[Equation], lost: &[usize]) -> Vec<usize> {
    let rank = field_rank(matrix(equations, lost));
    let without = |cell| lost.iter().copied().filter(|&other| other != cell).collect::<Vec<_>>();
    lost.iter().copied().filter(|&cell| field_rank(matrix(equations, &without(cell))) < rank).collect()
}

/// For each cell the least number of rounds after which it is known.
fn fewest_rounds(equations: &[Equation], is_lost: &[bool]) -> Vec<Option<usize>> {
    let mut rounds: Vec<Option<usize>> = is_lost.iter().map(|&is_lost| (!is_lost).then_some(0)).collect();
    loop {
        let before = rounds.clone();
        for cells in equations {
            for &(cell, _) in cells {
                let others = cells.iter().filter(|&&(other, _)| other != cell).map(|&(other, _)| before[other]);
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

/// Checks that each step follows from the equations, that the steps are in order and bring back once each lost cell
/// that can be had, and that they take no more rounds than needed.
fn check_steps(geometry: &Geometry, equations: &[Equation], map_index: usize, repair: &Repair) {
    let cells: Vec<usize> = (0..geometry.members() * geometry.rows()).collect();
    let is_lost: Vec<bool> =
        cells.iter().map(|cell| repair.failed().contains(MemberIndex((cell % geometry.members()) as u8))).collect();
    let all = matrix(equations, &cells);
    let rank = field_rank(all.clone());
    let mut rounds: Vec<Option<usize>> = is_lost.iter().map(|&is_lost| (!is_lost).then_some(0)).collect();
    for &step in repair.steps(map_index) {
        let (target, sources) = (index(step.target), repair.sources(map_index, step));
        assert!(rounds[target].is_none());
        let mut row = vec![0; cells.len()];
        row[target] = 1;
        sources.iter().for_each(|&(cell, factor)| row[index(cell)] = factor.0);
        assert_eq!(field_rank(all.iter().cloned().chain([row]).collect()), rank, "{:?}: {step:?}", geometry.spec());
        let others = sources.iter().map(|&(cell, _)| rounds[index(cell)].expect("operands come first"));
        rounds[target] = Some(1 + others.max().expect("there is one at least"));
        assert_eq!(repair.step_for(map_index, step.target), Some(step));
    }
    let lost: Vec<usize> = cells.iter().copied().filter(|&cell| is_lost[cell]).collect();
    let back: Vec<usize> = lost.iter().copied().filter(|&cell| rounds[cell].is_some()).collect();
    if matches!(geometry.spec().level, Level::Raid6 { .. }) {
        // Two data units come back by no group alone.
        assert_eq!(back, determined(equations, &lost), "{:?} without {:?}", geometry.spec(), repair.failed());
    } else {
        let fewest = fewest_rounds(equations, &is_lost);
        assert_eq!(rounds, fewest, "{:?} without {:?}", geometry.spec(), repair.failed());
    }
    for cell in (0..cells.len()).filter(|&cell| !is_lost[cell]) {
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
                let mut terms = cells[1..].to_vec();
                terms.sort_unstable();
                assert_eq!(
                    group.data.iter().copied().map(index).collect::<Vec<_>>(),
                    terms.iter().map(|&(cell, _)| cell).collect::<Vec<_>>()
                );
                terms.push(cells[0]);
                assert_eq!(group.terms().map(|(cell, factor)| (index(cell), factor.0)).collect::<Vec<_>>(), terms);
            }
        }
    }
}

/// Every set of failed members of every small array: steps and rank agree, and what is tolerated is survived.
#[test]
fn any_set_of_failures_is_repaired_or_refused_rightly() {
    for (level, members) in small_levels() {
        let spec = spec(level, members, 4, 40);
        let (geometry, oracle) = (Geometry::new(spec).unwrap(), Oracle::new(spec));
        let maps: Vec<_> = (0..geometry.maps().len() as u64).map(|map| equations(&geometry, &oracle, map)).collect();
        let mut fatal = usize::MAX;
        for failed in subsets(members) {
            let cells = 0..geometry.members() * geometry.rows();
            let is_lost = |cell: &usize| failed.contains(MemberIndex((cell % geometry.members()) as u8));
            let lost: Vec<usize> = cells.filter(is_lost).collect();
            let is_determined = maps.iter().all(|equations| field_rank(matrix(equations, &lost)) == lost.len());
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
    // Every further copy is compared with the first one. A step is its target and the copy that it takes.
    let steps = |failed: &[u8]| -> Vec<(u16, u16)> {
        let repair = Repair::new(&geometry, set(failed.iter().copied())).unwrap();
        let source = |step| match repair.sources(0, step) {
            &[(Cell(source), uraid_layout::field::Factor(1))] => source,
            sources => panic!("one copy is taken, not {sources:?}"),
        };
        repair.steps(0).iter().map(|&step| (step.target.0, source(step))).collect()
    };
    assert_eq!(steps(&[0]), [(0, 1)]);
    assert_eq!(steps(&[0, 1]), [(0, 2), (1, 0)]);
    assert_eq!(steps(&[2, 3]), [(2, 0), (3, 0)]);
    assert_eq!(steps(&[0, 1, 2]), [(0, 3), (1, 0), (2, 0)]);
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
        let sources = repair.sources(0, *step).iter().map(|&(cell, _)| rounds[index(cell)]);
        rounds[index(step.target)] = 1 + sources.max().expect("there is one at least");
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
fn encode(cells: usize, equations: &[Equation], bytes: &mut dyn FnMut() -> u8) -> Vec<Vec<u8>> {
    let mut content: Vec<Vec<u8>> = (0..cells).map(|_| (0..16).map(|_| bytes()).collect()).collect();
    for cells in equations {
        let sum = |at| cells[1..].iter().fold(0, |sum, &(cell, factor)| sum ^ product(content[cell][at], factor));
        content[cells[0].0] = (0..16).map(sum).collect();
    }
    content
}

fn restore(geometry: &Geometry, map_index: usize, repair: &Repair, whole: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let is_lost = |cell: usize| {
        repair.failed().contains(geometry.member(Cell(u16::try_from(cell).expect("cells and groups fit 16 bits"))))
    };
    let mut content = whole.to_vec();
    for (cell, bytes) in content.iter_mut().enumerate() {
        if is_lost(cell) {
            bytes.fill(0xEE);
        }
    }
    for &step in repair.steps(map_index) {
        let mut sum = vec![0; 16];
        for &(cell, factor) in repair.sources(map_index, step) {
            sum.iter_mut().zip(&content[index(cell)]).for_each(|(sum, &byte)| *sum ^= product(byte, factor.0));
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
                let restored = restore(&geometry, map_index, &repair, &whole);
                assert_eq!(restored, whole, "{spec:?} without {:?}", repair.failed());
            }
        }
    }
}

proptest! {
    /// The larger arrays: pairs on RM2 and RAID 6, one member on RAID 5, all but one on RAID 1.
    #[test]
    fn steps_restore_the_bytes_of_larger_arrays(
        rotation in 0usize..4, members in 12u8..=32, x in any::<u8>(), y in any::<u8>(), bytes in any::<u64>(),
    ) {
        let tallest = (2..=16).filter(|&m| crate::oracle::is_published(members.into(), m)).max().unwrap() as u8;
        let (x, y) = (x % members, y % members);
        for (level, failed) in [
            (Level::Rm2 { height: tallest, placement: Placement::Adjacent }, set([x, y])),
            (Level::Raid5 { rotation: Rotation::ALL[rotation] }, set([x])),
            (Level::Raid6 { rotation: Rotation::ALL[rotation] }, set([x, y])),
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
            let restored = restore(&geometry, map_index, &repair, &whole);
            prop_assert_eq!(restored, whole);
        }
    }
}
