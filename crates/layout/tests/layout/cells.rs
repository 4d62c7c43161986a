//! Cells of a parity stripe that can't be read though their members are there.

#![allow(clippy::cast_possible_truncation, reason = "the arrays are small")]

use proptest::prelude::*;
use uraid_layout::plan::{Extent, PlanError, View};
use uraid_layout::repair::Repair;
use uraid_layout::{Cell, Geometry, Lba, Level, MemberIndex, MemberSet, Placement, Sectors, StripeId};

use crate::bench::{Bench, CHUNK, small_geometries};

/// What can be had of a stripe: a lost cell comes back once all others of one of its groups are had.
fn had(geometry: &Geometry, stripe: StripeId, is_lost: impl Fn(Cell) -> bool) -> Vec<bool> {
    let map = geometry.map(stripe);
    let mut had: Vec<bool> = (0..map.cells() as u16).map(|cell| !is_lost(Cell(cell))).collect();
    loop {
        let before = had.clone();
        for group in map.groups() {
            let cells: Vec<usize> = group.cells().map(|cell| usize::from(cell.0)).collect();
            if let [cell] = cells.iter().filter(|&&cell| !before[cell]).collect::<Vec<_>>()[..] {
                had[*cell] = true;
            }
        }
        if had == before {
            // Any two units of a stripe of RAID 6 come back together.
            let are_two =
                matches!(geometry.spec().level, Level::Raid6 { .. }) && had.iter().filter(|&&had| !had).count() <= 2;
            return if are_two { vec![true; had.len()] } else { had };
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    /// Members and cells are lost, however many: just what they determine is read, and any write is right that can be.
    #[test]
    fn what_can_be_had_is_had(
        which in any::<prop::sample::Index>(),
        failed in any::<[bool; 8]>(),
        is_degraded in any::<bool>(),
        lost in any::<[u8; 24]>(),
        often in 1..200u8,
        stripe in any::<prop::sample::Index>(),
        (from, to) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        let geometries = small_geometries();
        let geometry = &geometries[which.index(geometries.len())];
        let stripe = StripeId(stripe.index(geometry.stripes().0 as usize) as u64);
        let map = geometry.map(stripe);
        let failed: MemberSet = geometry.all_members().iter().filter(|member| failed[member.index()]).take(1).collect();
        let failed = if is_degraded { failed } else { MemberSet::EMPTY };
        let cells: Vec<Cell> = (0..map.cells() as u16).map(Cell).filter(|cell| lost[cell.0 as usize] < often).collect();
        let is_lost = |cell: Cell| cells.contains(&cell) || failed.contains(geometry.member(cell));
        let had = had(geometry, stripe, is_lost);
        let first = stripe.0 * geometry.stripe_sectors().0;
        let end = geometry.capacity().0.min(first + geometry.stripe_sectors().0);
        let ends = [from, to].map(|at| first + at.index((end - first) as usize) as u64);
        let (lba, len) = (ends[0].min(ends[1]), 1 + ends[0].abs_diff(ends[1]));
        let unit = |lba: u64| map.cell(geometry.split(Lba(lba)).1);
        let mut bench = Bench::lacking(geometry, failed, stripe, &cells);
        let extents = [Extent::request(Lba(lba), Sectors(len))];
        if (lba..lba + len).all(|lba| had[usize::from(unit(lba).0)]) {
            bench.read_all(&extents);
        } else {
            let Bench { planner, plan, geometry, repair, missing, .. } = &mut bench;
            let view = View { missing: *missing, ..View::new(geometry, repair) };
            let error = planner.read(plan, &view, &extents).unwrap_err();
            prop_assert_eq!(error, PlanError::Unreadable { stripe });
        }
        // What all cells are had for can be written.
        let mut bench = Bench::lacking(geometry, failed, stripe, &cells);
        if had.iter().all(|&had| had) {
            bench.write_all(&extents, None);
        }
        // So can it where the parity that is lost is not to be kept up.
        let groups = map.groups().iter().filter(|group| is_lost(group.parity));
        let left_out: Vec<Cell> = groups.map(|group| group.parity).filter(|cell| cells.contains(cell)).collect();
        let is_lost_data = |&cell: &Cell| geometry.uses(stripe, cell) && !had[usize::from(cell.0)];
        let lost_data = map.data().iter().any(is_lost_data);
        if !lost_data {
            bench.left_out = left_out;
            bench.write_all(&extents, None);
        }
    }
}

/// Three members lack a cell each of a stripe of RM2, which survives two: all of it is read.
#[test]
fn three_members_of_rm2_may_lack_a_cell_each() {
    let geometry = crate::bench::geometry(crate::bench::rm2(3, Placement::Adjacent), 7, 2);
    let data = geometry.map(StripeId(0)).data();
    let cells: Vec<Cell> = [0, 1, 2]
        .into_iter()
        .filter_map(|member| data.iter().copied().find(|&cell| geometry.member(cell) == MemberIndex(member)))
        .collect();
    assert_eq!(cells.len(), 3);
    let mut bench = Bench::lacking(&geometry, MemberSet::EMPTY, StripeId(0), &cells);
    bench.read(0, CHUNK * data.len() as u64);
    assert!(Repair::new(&geometry, [0, 1, 2].map(MemberIndex).into_iter().collect()).is_err());
}
