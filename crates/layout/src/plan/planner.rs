//! From a request and the array's state to a plan.
//!
//! A request is a list of extents. They are cut at chunks; what falls into one parity stripe is planned as one by
//! [`super::stripe`], however many extents it comes from, and the disk operations of all stripes are merged where they
//! are adjacent on a member. The planner keeps its working memory between plans, so that planning allocates nothing at
//! steady state: a parity stripe takes at most its cells times twice its extents, plus the ends of its cached ranges.
//! It never asks for the level.

use alloc::vec::Vec;

use thiserror::Error;

use super::stripe::{Grid, UnitRange};
use super::{Buffer, DiskIo, Extent, Method, Plan, Slice};
use crate::repair::Repair;
use crate::{Cell, DataUnit, DiskSector, Geometry, Lba, MemberIndex, MemberSet, Sectors, StripeId};

/// What a plan may rely on.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The array's geometry.
    pub geometry: &'a Geometry,
    /// The members that can't be read, and how what is on them comes back.
    pub repair: &'a Repair,
    /// The members that can't be written either: those that are missing, where others only failed a read.
    pub missing: MemberSet,
    /// What the members hold now (a write's old content, not its new one) as far as it is in memory already, in
    /// ascending order of the parity stripe. What is out of order may go unused.
    pub cached: &'a [Cached],
    /// How busy each member is, by index, which decides where mirrored data is read. Of all members or, where mirrored
    /// data is to be read from its first copy, of none.
    pub queues: &'a [Queue],
}

impl<'a> View<'a> {
    /// What is in memory of one parity stripe.
    pub(super) fn cached_of(&self, stripe: StripeId) -> &'a [Cached] {
        if self.cached.is_empty() {
            return self.cached;
        }
        let from = self.cached.partition_point(|cached| cached.stripe < stripe);
        let cached = &self.cached[from..];
        &cached[..cached.partition_point(|cached| cached.stripe == stripe)]
    }
}

/// How busy a member is. Of the copies that are there, the one on the member with the least depth is read; of several,
/// the one whose member has its head nearest to the sector; of several, the lowest cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// The operations that are under way or waiting.
    pub depth: u32,
    /// Where the last operation ended.
    pub head: DiskSector,
}

/// Current content of a range of one cell, held in [`Buffer::Cache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cached {
    /// The parity stripe.
    pub stripe: StripeId,
    /// The cell: data or parity.
    pub cell: Cell,
    /// Where in the chunk the range starts.
    pub start: Sectors,
    /// The content; its length is the range's.
    pub content: Slice,
}

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

/// What the parts of a plan add up to, before adjacent pieces are merged.
#[derive(Debug, Default)]
pub(super) struct Output {
    reads: Vec<Piece>,
    writes: Vec<Piece>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    member: MemberIndex,
    sector: DiskSector,
    slice: Slice,
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
            let before = out.reads.len();
            let is_direct = view.cached_of(part[0].stripe).is_empty();
            if !(is_direct && part.iter().all(|range| direct(view, range, out))) {
                out.reads.truncate(before);
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
    /// When a cell is on a member that can be read, or can't be written.
    pub fn rebuild(
        &mut self,
        plan: &mut Plan,
        view: &View<'_>,
        stripe: StripeId,
        cells: impl IntoIterator<Item = Cell>,
        columns: (Sectors, Sectors),
    ) -> Result<(), PlanError> {
        let check = |cell: &Cell| {
            let member = view.geometry.member(*cell);
            let is_lost = view.repair.failed().contains(member) && !view.missing.contains(member);
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
        self.out.reads.clear();
        self.out.writes.clear();
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

/// The cell to read a data unit from, of which the sector at `start` of the chunk comes first: its own or, of mirrored
/// data, the copy with the least to wait for; none when it has to be computed.
pub(super) fn source(view: &View<'_>, stripe: StripeId, unit: DataUnit, start: u64) -> Option<Cell> {
    let (geometry, map) = (view.geometry, view.geometry.map(stripe));
    let copies = map.groups_of(unit).iter().map(|&group| map.group(group)).filter(|group| group.is_mirror());
    let cells = core::iter::once(map.cell(unit)).chain(copies.map(|group| group.parity));
    let mut present = cells.filter(|&cell| !view.repair.failed().contains(geometry.member(cell)));
    if view.queues.is_empty() {
        return present.next();
    }
    present.min_by_key(|&cell| {
        let Queue { depth, head } = view.queues[geometry.member(cell).index()];
        (depth, head.0.abs_diff(geometry.sector(stripe, cell).0 + start), cell)
    })
}

/// Reads a range straight from a member; false when it has to be computed.
fn direct(view: &View<'_>, range: &UnitRange, out: &mut Output) -> bool {
    let cell = source(view, range.stripe, range.unit, range.start);
    if let Some(cell) = cell {
        out.read(view, range.stripe, cell, range.start, range.content);
    }
    cell.is_some()
}

impl Output {
    pub(super) fn read(&mut self, view: &View<'_>, stripe: StripeId, cell: Cell, start: u64, slice: Slice) {
        self.reads.push(piece(view, stripe, cell, start, slice));
    }

    pub(super) fn write(&mut self, view: &View<'_>, stripe: StripeId, cell: Cell, start: u64, slice: Slice) {
        self.writes.push(piece(view, stripe, cell, start, slice));
    }

    fn finish(&mut self, plan: &mut Plan) {
        merge(&mut self.reads, &mut plan.reads, &mut plan.slices);
        merge(&mut self.writes, &mut plan.writes, &mut plan.slices);
    }
}

fn piece(view: &View<'_>, stripe: StripeId, cell: Cell, start: u64, slice: Slice) -> Piece {
    let sector = DiskSector(view.geometry.sector(stripe, cell).0 + start);
    Piece { member: view.geometry.member(cell), sector, slice }
}

/// Orders the pieces and joins those that are adjacent on their member; adjacent slices of one buffer become one.
fn merge(pieces: &mut [Piece], ios: &mut Vec<DiskIo>, slices: &mut Vec<Slice>) {
    pieces.sort_unstable_by_key(|piece| (piece.member, piece.sector));
    for piece in pieces.iter() {
        let adjacent =
            ios.last_mut().filter(|io| io.member == piece.member && io.sector.0 + io.len.0 == piece.sector.0);
        let Some(io) = adjacent else {
            let first = index_u32(slices.len());
            slices.push(piece.slice);
            ios.push(DiskIo { member: piece.member, sector: piece.sector, len: piece.slice.len, first, count: 1 });
            continue;
        };
        io.len.0 += piece.slice.len.0;
        let last = slices.last_mut().expect("an operation has a slice");
        let continues = last.buffer == piece.slice.buffer
            && (last.buffer == Buffer::Zeroes || last.start.0 + last.len.0 == piece.slice.start.0);
        if continues {
            last.len.0 += piece.slice.len.0;
        } else {
            slices.push(piece.slice);
            io.count += 1;
        }
    }
}

pub(super) fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("a plan has fewer than 2^32 slices")
}
