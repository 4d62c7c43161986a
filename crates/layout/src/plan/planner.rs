//! From a request and the array's state to a plan.
//!
//! A request is a list of extents. They are cut at chunks; what falls into one parity stripe is planned as one by
//! [`super::stripe`], however many extents it comes from, and the disk operations of all stripes are merged where they
//! are adjacent on a member. The planner keeps its working memory between plans, so that planning allocates nothing at
//! steady state: a parity stripe takes at most its cells times twice its extents, plus the ends of its cached ranges.
//! It never asks for the level.

use alloc::vec::Vec;

use thiserror::Error;

use super::output::Output;
use super::steps::{Buffer, Extent, Method, Plan};
use super::stripe::{Grid, UnitRange};
use super::view::View;
use crate::{Cell, Geometry, Lba, Sectors, StripeId};

/// Why a request has no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// The request has no extents, or one that has no sectors or reaches beyond the array.
    #[error("sectors {lba}..+{len} are not within the array's {capacity} sectors")]
    OutOfRange {
        /// The first sector.
        lba: Lba,
        /// The length.
        len: Sectors,
        /// The array's size.
        capacity: Sectors,
    },
    /// Something that the plan needs is neither on a member that can be read nor determined by those that can.
    #[error("parity stripe {stripe} has content that can't be read and is needed")]
    Unreadable {
        /// The parity stripe.
        stripe: StripeId,
    },
}

/// Makes plans; see the module.
#[derive(Debug, Default)]
pub struct Planner {
    ranges: Vec<UnitRange>,
    grid: Grid,
    out: Output,
}

impl Planner {
    /// A planner without memory yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Plans the read of extents into the request buffer. They are ascending and disjoint.
    ///
    /// # Errors
    /// [`PlanError::OutOfRange`]; [`PlanError::Unreadable`] where the view's repair does not bring every cell back and
    /// one of those is asked for. As with writes, the plan is of no use then.
    ///
    /// # Panics
    /// When extents overlap or are out of order, or one's content is not to go to the request buffer.
    pub fn read(&mut self, plan: &mut Plan, view: &View<'_>, extents: &[Extent]) -> Result<(), PlanError> {
        let is_target = |extent: &Extent| extent.content.buffer == Buffer::Request;
        assert!(extents.iter().all(is_target), "a read goes to the request buffer");
        self.start(plan, view, extents)?;
        let Self { ranges, grid, out } = self;
        for part in ranges.chunk_by(|a, b| a.stripe == b.stripe) {
            let before = out.reads();
            let is_direct = view.cached_of(part[0].stripe).is_empty();
            if !(is_direct && part.iter().all(|range| direct(view, range, out))) {
                out.truncate_reads(before);
                let stripe = part[0].stripe;
                grid.read(plan, view, part, out).ok_or(PlanError::Unreadable { stripe })?;
            }
        }
        out.finish(plan);
        Ok(())
    }

    /// Plans the write of extents, ascending and disjoint, by the method with the fewest disk operations (ties: the
    /// fewest sectors moved), chosen for each parity stripe; returns the last stripe's. Where the view's repair does
    /// not bring every cell back, a method that needs such a cell is not chosen.
    ///
    /// # Errors
    /// [`PlanError::OutOfRange`]; [`PlanError::Unreadable`] where both methods need a cell that can't be had. The plan
    /// is of no use then.
    ///
    /// # Panics
    /// When extents overlap or are out of order, or one's content is in the plan's own working memory.
    pub fn write(&mut self, plan: &mut Plan, view: &View<'_>, extents: &[Extent]) -> Result<Method, PlanError> {
        self.plan_write(plan, view, extents, None)
    }

    /// As [`Planner::write`], by the method that the caller names where something has to be read at all: the simulator
    /// models arrays that choose otherwise.
    ///
    /// # Errors
    /// [`PlanError::OutOfRange`]; [`PlanError::Unreadable`] where this method needs a cell that can't be had.
    ///
    /// # Panics
    /// As [`Planner::write`].
    pub fn write_by(
        &mut self,
        plan: &mut Plan,
        view: &View<'_>,
        extents: &[Extent],
        method: Method,
    ) -> Result<Method, PlanError> {
        self.plan_write(plan, view, extents, Some(method))
    }

    /// Plans the computation of cells of a stripe from the others, and their writing in place, in the columns
    /// `start..+len` of each chunk: what a member has lost, or one that took its place does not have yet. Cells that
    /// the array does not use are left out. [`Plan::recovered`] says where each cell's content is before it is written.
    ///
    /// # Errors
    /// [`PlanError::OutOfRange`] when the stripe or the columns do not exist; [`PlanError::Unreadable`].
    ///
    /// # Panics
    /// When a cell can be read, or can't be written.
    pub fn rebuild(
        &mut self,
        plan: &mut Plan,
        view: &View<'_>,
        stripe: StripeId,
        cells: impl IntoIterator<Item = Cell>,
        columns: (Sectors, Sectors),
    ) -> Result<(), PlanError> {
        let check = |cell: &Cell| {
            let is_missing = view.missing.contains(view.geometry.member(*cell));
            let is_lost = view.repair.lacks(view.geometry, stripe, *cell) && !is_missing;
            assert!(is_lost, "what is rebuilt can be written and not be read");
        };
        self.copy(plan, view, stripe, cells.into_iter().inspect(check), columns)
    }

    /// Plans the reading of cells of a stripe, or their computation where their member can't be read, and their writing
    /// in place, in the columns `start..+len` of each chunk: a member is copied by running the writes on another one.
    /// Cells that the array does not use are left out.
    ///
    /// # Errors
    /// [`PlanError::OutOfRange`] when the stripe or the columns do not exist; [`PlanError::Unreadable`].
    pub fn copy(
        &mut self,
        plan: &mut Plan,
        view: &View<'_>,
        stripe: StripeId,
        cells: impl IntoIterator<Item = Cell>,
        (start, len): (Sectors, Sectors),
    ) -> Result<(), PlanError> {
        check_columns(view.geometry, stripe, start, len)?;
        self.clear(plan);
        let cells = cells.into_iter().filter(|&cell| view.geometry.uses(stripe, cell));
        let planned = self.grid.rebuild(plan, view, stripe, cells, (start, len), &mut self.out);
        self.out.finish(plan);
        planned.ok_or(PlanError::Unreadable { stripe })
    }

    /// Plans the comparison of a stripe's units, in the columns `start..+len` of each chunk: every cell that can be
    /// read is read, once, and the XOR of each group of which all can be is computed. [`Plan::differences`] says where
    /// it is; groups with a cell that can't be read, or that the array does not use, are not there.
    ///
    /// # Errors
    /// [`PlanError::OutOfRange`] when the stripe or the columns do not exist.
    pub fn scrub(
        &mut self,
        plan: &mut Plan,
        view: &View<'_>,
        stripe: StripeId,
        (start, len): (Sectors, Sectors),
    ) -> Result<(), PlanError> {
        check_columns(view.geometry, stripe, start, len)?;
        self.clear(plan);
        self.grid.scrub(plan, view, stripe, (start, len), &mut self.out);
        self.out.finish(plan);
        Ok(())
    }

    fn plan_write(
        &mut self,
        plan: &mut Plan,
        view: &View<'_>,
        extents: &[Extent],
        method: Option<Method>,
    ) -> Result<Method, PlanError> {
        let is_source = |extent: &Extent| extent.content.buffer != Buffer::Scratch;
        assert!(extents.iter().all(is_source), "a write's content is there before the plan is run");
        self.start(plan, view, extents)?;
        let Self { ranges, grid, out } = self;
        let mut last = Method::Full;
        for part in ranges.chunk_by(|a, b| a.stripe == b.stripe) {
            let stripe = part[0].stripe;
            last = grid.write(plan, view, part, method, out).ok_or(PlanError::Unreadable { stripe })?;
            plan.methods.add(last);
        }
        out.finish(plan);
        Ok(last)
    }

    fn clear(&mut self, plan: &mut Plan) {
        plan.clear();
        self.ranges.clear();
        self.out.clear();
    }

    /// Cuts the request at chunks.
    fn start(&mut self, plan: &mut Plan, view: &View<'_>, extents: &[Extent]) -> Result<(), PlanError> {
        let geometry = view.geometry;
        let capacity = geometry.capacity();
        let out_of_range = |lba, len| PlanError::OutOfRange { lba, len, capacity };
        if extents.is_empty() {
            return Err(out_of_range(Lba(0), Sectors(0)));
        }
        self.clear(plan);
        let mut at = 0;
        for &Extent { lba, content } in extents {
            let end = lba.0.checked_add(content.len.0).filter(|&end| end <= capacity.0 && content.len.0 > 0);
            let end = end.ok_or(out_of_range(lba, content.len))?;
            assert!(at <= lba.0, "extents are ascending and disjoint");
            at = lba.0;
            while at < end {
                let (stripe, unit, start) = geometry.split(Lba(at));
                let len = (geometry.chunk().0 - start.0).min(end - at);
                let content = content.part(at - lba.0, len);
                self.ranges.push(UnitRange { stripe, unit, start: start.0, content });
                at += len;
            }
        }
        Ok(())
    }
}

fn check_columns(geometry: &Geometry, stripe: StripeId, start: Sectors, len: Sectors) -> Result<(), PlanError> {
    let lba = Lba(stripe.0.saturating_mul(geometry.stripe_sectors().0));
    let columns_exist = len.0 > 0 && start.0.checked_add(len.0).is_some_and(|end| end <= geometry.chunk().0);
    if lba.0 >= geometry.capacity().0 || !columns_exist {
        return Err(PlanError::OutOfRange { lba, len, capacity: geometry.capacity() });
    }
    Ok(())
}

/// Reads a range straight from a member; false when it has to be computed.
fn direct(view: &View<'_>, range: &UnitRange, out: &mut Output) -> bool {
    let cell = view.source(range.stripe, range.unit, range.start);
    if let Some(cell) = cell {
        out.read(view, range.stripe, cell, range.start, range.content);
    }
    cell.is_some()
}
