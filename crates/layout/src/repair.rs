//! Erasure peeling: the ordered XOR steps that bring lost cells back, or the proof that they can't be had.
//!
//! Works on any set of parity groups and never asks for the level. A group with one lost cell gives it back, which may
//! leave another group with one; this goes in rounds, so that every cell comes back by as short a chain as there is.
//! What is left when no group has exactly one lost cell can't be peeled; for every level here it can't be had in any
//! other way either, which the tests prove by rank over GF(2).

use alloc::vec::Vec;
use core::fmt;

use crate::stripe::StripeMap;
use crate::{Cell, Geometry, GroupId, MemberIndex, MemberSet, StripeId};

/// One XOR step: `target` is the XOR of every other cell of `group`, each present or the target of an earlier step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The lost cell.
    pub target: Cell,
    /// The group that gives it back.
    pub group: GroupId,
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
            peel(map, (0..map.cells()).map(|cell| failed.contains(geometry.member(as_cell(cell)))).collect())
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
        repair.maps[index] = peel(&geometry.maps()[index], core::mem::take(lost));
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

/// Peels the lost cells of a parity stripe off its groups, as far as they can be.
///
/// Within a round the lower groups come first, which makes a mirror's lost unit come from its nearest copy.
fn peel(map: &StripeMap, mut lost: Vec<bool>) -> MapRepair {
    let mut repair = MapRepair { lost: lost.clone(), steps: Vec::new(), step_of: alloc::vec![None; map.cells()] };
    loop {
        let round = repair.steps.len();
        for (group, equation) in map.groups().iter().enumerate() {
            let mut unknown = equation.cells().filter(|cell| lost[usize::from(cell.0)]);
            let (Some(target), None) = (unknown.next(), unknown.next()) else { continue };
            let step_of = &mut repair.step_of[usize::from(target.0)];
            if step_of.is_none() {
                *step_of = Some(as_u16(repair.steps.len()));
                repair.steps.push(Step { target, group: GroupId(as_u16(group)) });
            }
        }
        // Only now, so that this round's targets free other groups for the next round, not for this one.
        for step in &repair.steps[round..] {
            lost[usize::from(step.target.0)] = false;
        }
        if repair.steps.len() == round {
            return repair;
        }
    }
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
