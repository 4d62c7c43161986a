//! What plans may rely on: who is there, what is in memory, how busy members are.

use super::steps::Slice;
use crate::repair::Repair;
use crate::{Cell, DataUnit, DiskSector, Geometry, MemberSet, Sectors, StripeId};

/// What a plan may rely on.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The array's geometry.
    pub geometry: &'a Geometry,
    /// What can't be read, and how it comes back. One that is [beside](Repair::beside) cells of a stripe is for plans
    /// of that stripe alone.
    pub repair: &'a Repair,
    /// The members that can't be written either: those that are missing, where others only failed a read.
    pub missing: MemberSet,
    /// Cells that are not to be written though their members are there, in a plan of a single stripe: parity that
    /// nothing is read of any more.
    pub left_out: &'a [Cell],
    /// What the members hold now (a write's old content, not its new one) as far as it is in memory already, in
    /// ascending order of the parity stripe. What is out of order may go unused.
    pub cached: &'a [Cached],
    /// How busy each member is, by index, which decides where mirrored data is read. Of all members or, where mirrored
    /// data is to be read from its first copy, of none.
    pub queues: &'a [Queue],
}

impl<'a> View<'a> {
    /// Nothing is in memory, everybody can be written, and nobody is busier than others.
    #[must_use]
    pub fn new(geometry: &'a Geometry, repair: &'a Repair) -> Self {
        Self { geometry, repair, missing: MemberSet::EMPTY, left_out: &[], cached: &[], queues: &[] }
    }

    /// What is in memory of one parity stripe.
    pub(super) fn cached_of(&self, stripe: StripeId) -> &'a [Cached] {
        if self.cached.is_empty() {
            return self.cached;
        }
        let from = self.cached.partition_point(|cached| cached.stripe < stripe);
        let cached = &self.cached[from..];
        &cached[..cached.partition_point(|cached| cached.stripe == stripe)]
    }

    /// The cell to read a data unit from, of which the sector at `start` of the chunk comes first: its own or, of
    /// mirrored data, the copy with the least to wait for; none when it has to be computed.
    pub(super) fn source(&self, stripe: StripeId, unit: DataUnit, start: u64) -> Option<Cell> {
        let (geometry, map) = (self.geometry, self.geometry.map(stripe));
        let copies = map.groups_of(unit).iter().map(|&group| map.group(group)).filter(|group| group.is_mirror());
        let cells = core::iter::once(map.cell(unit)).chain(copies.map(|group| group.parity));
        let mut present = cells.filter(|&cell| !self.repair.lacks(geometry, stripe, cell));
        if self.queues.is_empty() {
            return present.next();
        }
        present.min_by_key(|&cell| {
            let Queue { depth, head } = self.queues[geometry.member(cell).index()];
            (depth, head.0.abs_diff(geometry.sector(stripe, cell).0 + start), cell)
        })
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

/// Current content of a range of one cell, held in [`Buffer::Cache`](super::Buffer::Cache).
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
