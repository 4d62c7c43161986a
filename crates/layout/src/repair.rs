//! The ordered steps that bring lost cells back, or the proof that they can't be had.
//!
//! Works on any set of parity groups and never asks for the level. A group with one lost cell gives it back, which may
//! leave another group with one; this *peeling* goes in rounds, so that every cell comes back by as short a chain as
//! there is. When no group has exactly one lost cell, groups with factors are *solved*: a sum of them may have one, and
//! then peeling goes on. Two data units of RAID 6 need that. What no sum of groups has alone can't be had.
//!
//! Groups that are all plain XORs are only peeled. Of every set of members that a level survives that brings back as
//! much, which the tests prove by rank. Beyond that a sum of groups gives RM2 a cell back now and then that peeling
//! does not.

use alloc::vec::Vec;
use core::fmt;

use crate::field::{self, Factor};
use crate::stripe::{Group, StripeMap};
use crate::{Cell, Geometry, MemberIndex, MemberSet, StripeId};

/// One step: `target` is the XOR of its [sources](Repair::sources), each times its factor; each is present or the
/// target of an earlier step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The lost cell.
    pub target: Cell,
    first: u32,
    count: u32,
}

/// How the cells of a set of failed members come back, for every kind of parity stripe of an array; or, of a single
/// stripe, those and some of its other cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    failed: MemberSet,
    is_total: bool,
    maps: Vec<MapRepair>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MapRepair {
    /// By cell.
    lost: Vec<bool>,
    steps: Vec<Step>,
    /// Those of all steps.
    sources: Vec<(Cell, Factor)>,
    /// For each cell, the index of its step.
    step_of: Vec<Option<u16>>,
}

/// A set of failed members takes data away that the others don't give back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "with members {} missing, {} units of every {units} can't be recovered; bring back one of the members {}",
    List(*failed), cells.len(), List(*holders)
)]
pub struct Unrecoverable {
    /// The failed members.
    pub failed: MemberSet,
    /// Which of [`Geometry::maps`] the cells belong to: the first one that has any.
    pub map_index: usize,
    /// The cells that can't be had, ascending.
    pub cells: Vec<Cell>,
    /// The members that hold those cells: unless one of them comes back, nothing helps.
    pub holders: MemberSet,
    /// How many cells the parity stripe has.
    pub units: usize,
}

impl Repair {
    /// Finds the steps that bring back every cell of the failed members, in every map of the geometry. Members that the
    /// array does not have are ignored.
    ///
    /// # Errors
    /// When the remaining members don't determine some cell. For RAID 10's last, partial parity stripe the cells beyond
    /// the members count too.
    pub fn new(geometry: &Geometry, failed: MemberSet) -> Result<Self, Unrecoverable> {
        let repair = Self::partial(geometry, failed);
        match repair.lacking(geometry) {
            None => Ok(repair),
            Some((map_index, cells)) => {
                let holders = cells.iter().map(|&cell| geometry.member(cell)).collect();
                let units = geometry.maps()[map_index].cells();
                Err(Unrecoverable { failed: repair.failed, map_index, holders, cells, units })
            }
        }
    }

    /// Whether every cell of the failed members comes back.
    #[must_use]
    pub fn is_total(&self) -> bool {
        self.is_total
    }

    /// The cells that don't come back, of the first map that has any.
    fn lacking(&self, geometry: &Geometry) -> Option<(usize, Vec<Cell>)> {
        let of_map = |(map_index, (map, steps)): (usize, (&StripeMap, &MapRepair))| {
            let is_left = |cell: &Cell| {
                let index = usize::from(cell.0);
                steps.lost[index] && steps.step_of[index].is_none()
            };
            (map_index, (0..map.cells()).map(as_cell).filter(is_left).collect::<Vec<Cell>>())
        };
        let mut maps = geometry.maps().iter().zip(&self.maps).enumerate().map(of_map);
        maps.find(|(_, cells)| !cells.is_empty())
    }

    /// The steps for those cells of the failed members that come back, where others do not: see [`Repair::has`].
    #[must_use]
    pub fn partial(geometry: &Geometry, failed: MemberSet) -> Self {
        let failed = failed.minus(failed.minus(geometry.all_members()));
        let maps = geometry.maps().iter().map(|map| {
            MapRepair::new(map, (0..map.cells()).map(|cell| failed.contains(geometry.member(as_cell(cell)))).collect())
        });
        let mut repair = Self { failed, is_total: true, maps: maps.collect() };
        repair.is_total = repair.lacking(geometry).is_none();
        repair
    }

    /// The repair of one parity stripe of which these cells can't be had from their members either, though the members
    /// have not failed. It is of no use for other stripes.
    ///
    /// # Panics
    /// When the array has no such parity stripe or the stripe no such cell.
    #[must_use]
    pub fn beside(&self, geometry: &Geometry, stripe: StripeId, cells: impl IntoIterator<Item = Cell>) -> Self {
        let (mut repair, index) = (self.clone(), geometry.map_index(stripe));
        let lost = &mut repair.maps[index].lost;
        cells.into_iter().for_each(|cell| lost[usize::from(cell.0)] = true);
        repair.maps[index] = MapRepair::new(&geometry.maps()[index], core::mem::take(lost));
        repair.is_total = repair.lacking(geometry).is_none();
        repair
    }

    /// Whether a cell can't be had from its member.
    ///
    /// # Panics
    /// When the array has no such parity stripe or the stripe no such cell.
    #[inline]
    #[must_use]
    pub fn lacks(&self, geometry: &Geometry, stripe: StripeId, cell: Cell) -> bool {
        self.maps[geometry.map_index(stripe)].lost[usize::from(cell.0)]
    }

    /// Whether a cell can be had from its member, or comes back.
    ///
    /// # Panics
    /// When the array has no such parity stripe or the stripe no such cell.
    #[must_use]
    pub fn has(&self, geometry: &Geometry, stripe: StripeId, cell: Cell) -> bool {
        !self.lacks(geometry, stripe, cell) || self.step_for(geometry.map_index(stripe), cell).is_some()
    }

    /// The repair of an array of which no member has failed: no steps.
    #[must_use]
    pub fn none(geometry: &Geometry) -> Self {
        Self::new(geometry, MemberSet::EMPTY).expect("without a failure nothing is lost")
    }

    /// The failed members.
    #[must_use]
    pub fn failed(&self) -> MemberSet {
        self.failed
    }

    /// The steps for the parity stripes of one map, in an order in which they can be done.
    ///
    /// # Panics
    /// When the geometry has no such map.
    #[must_use]
    pub fn steps(&self, map_index: usize) -> &[Step] {
        &self.maps[map_index].steps
    }

    /// What a step of the parity stripes of one map is the XOR of.
    ///
    /// # Panics
    /// When the geometry has no such map or the map no such step.
    #[inline]
    #[must_use]
    pub fn sources(&self, map_index: usize, step: Step) -> &[(Cell, Factor)] {
        &self.maps[map_index].sources[step.first as usize..][..step.count as usize]
    }

    /// The step that brings back a cell; None when it can be had from its member, or not at all.
    ///
    /// # Panics
    /// When the geometry has no such map or the map no such cell.
    #[inline]
    #[must_use]
    pub fn step_for(&self, map_index: usize, cell: Cell) -> Option<Step> {
        let map = &self.maps[map_index];
        map.step_of[usize::from(cell.0)].map(|step| map.steps[usize::from(step)])
    }
}

impl MapRepair {
    /// Brings back the lost cells of a parity stripe, as far as they can be.
    fn new(map: &StripeMap, lost: Vec<bool>) -> Self {
        let step_of = alloc::vec![None; map.cells()];
        let mut repair = Self { lost: lost.clone(), steps: Vec::new(), sources: Vec::new(), step_of };
        let (mut left, is_plain) = (lost, map.groups().iter().all(Group::is_xor));
        loop {
            repair.peel(map, &mut left);
            let solved = (!is_plain).then(|| solve(map, &left)).flatten();
            let Some((target, sources)) = solved else { return repair };
            repair.push(target, sources);
            left[usize::from(target.0)] = false;
        }
    }

    /// Peels the lost cells that are left off their groups, as far as they can be.
    ///
    /// Within a round the lower groups come first, which makes a mirror's lost unit come from its nearest copy, and a
    /// lost unit of RAID 6 from P.
    fn peel(&mut self, map: &StripeMap, left: &mut [bool]) {
        loop {
            let round = self.steps.len();
            for group in map.groups() {
                let mut unknown = group.terms().filter(|(cell, _)| left[usize::from(cell.0)]);
                let (Some((target, factor)), None) = (unknown.next(), unknown.next()) else { continue };
                if self.step_of[usize::from(target.0)].is_none() {
                    let inverse = factor.inverse().expect("a cell of a group counts");
                    let others = group.terms().filter(|&(cell, _)| cell != target);
                    self.push(target, others.map(|(cell, factor)| (cell, factor.times(inverse))));
                }
            }
            // Only now, so that this round's targets free other groups for the next round, not for this one.
            for step in &self.steps[round..] {
                left[usize::from(step.target.0)] = false;
            }
            if self.steps.len() == round {
                return;
            }
        }
    }

    fn push(&mut self, target: Cell, sources: impl IntoIterator<Item = (Cell, Factor)>) {
        let index = |index: usize| u32::try_from(index).expect("a stripe has fewer than 65536 cells, and few are lost");
        let first = index(self.sources.len());
        self.sources.extend(sources);
        let count = index(self.sources.len()) - first;
        self.step_of[usize::from(target.0)] = Some(as_u16(self.steps.len()));
        self.steps.push(Step { target, first, count });
    }
}

/// The first lost cell that the groups determine together, and its sources; none of those that are left can be had
/// otherwise. Gauss-Jordan elimination of the lost cells: a row is a sum of groups, and has each cell's factor.
fn solve(map: &StripeMap, lost: &[bool]) -> Option<(Cell, Vec<(Cell, Factor)>)> {
    let is_lost = |cell: Cell| lost[usize::from(cell.0)];
    let touched = map.groups().iter().filter(|group| group.cells().any(is_lost));
    let mut rows: Vec<Vec<u8>> = touched
        .map(|group| {
            let mut row = alloc::vec![0; map.cells()];
            group.terms().for_each(|(cell, Factor(factor))| row[usize::from(cell.0)] = factor);
            row
        })
        .collect();
    let mut pivots: Vec<Cell> = Vec::new();
    for cell in (0..map.cells()).map(as_cell).filter(|&cell| is_lost(cell)) {
        let (column, rank) = (usize::from(cell.0), pivots.len());
        let Some(pivot) = (rank..rows.len()).find(|&row| rows[row][column] != 0) else { continue };
        rows.swap(rank, pivot);
        let mut pivot = core::mem::take(&mut rows[rank]);
        let inverse = Factor(pivot[column]).inverse().expect("a pivot is not zero");
        field::scale(&mut pivot, inverse);
        for row in rows.iter_mut().filter(|row| !row.is_empty() && row[column] != 0) {
            let factor = Factor(row[column]);
            field::add_multiple(row, &pivot, factor);
        }
        rows[rank] = pivot;
        pivots.push(cell);
    }
    let (target, row) = pivots.into_iter().zip(rows).find(|&(target, ref row)| {
        (0..map.cells()).map(as_cell).all(|cell| cell == target || !is_lost(cell) || row[usize::from(cell.0)] == 0)
    })?;
    let factors = (0..map.cells()).map(as_cell).zip(row.into_iter().map(Factor));
    Some((target, factors.filter(|&(cell, factor)| cell != target && factor != Factor::ZERO).collect()))
}

fn as_u16(index: usize) -> u16 {
    u16::try_from(index).expect("a stripe has fewer than 65536 cells")
}

fn as_cell(index: usize) -> Cell {
    Cell(as_u16(index))
}

/// Members as people list them.
struct List(MemberSet);

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, MemberIndex(member)) in self.0.iter().enumerate() {
            write!(f, "{}{member}", if place > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}
