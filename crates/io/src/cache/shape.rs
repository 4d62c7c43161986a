//! Where the sectors of requests are in the cache: parity stripes, and pages by their places in them.
//!
//! A place is a page's number within its stripe: data pages in the order of addresses, then each group's parity. This
//! knows the geometry and nothing of what is in memory.

use std::ops::Range;

use uraid_layout::plan::{Buffer, Extent, Slice};
use uraid_layout::stripe::StripeMap;
use uraid_layout::{Cell, DataUnit, Geometry, GroupId, Lba, Sectors, StripeId};

use super::page::{PAGE_SECTORS, bytes_of};

/// What the cache knows of the geometry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) chunk_pages: u64,
    pub(super) data_pages: u64,
    pub(super) stripe_sectors: u64,
    capacity: u64,
}

/// A piece of a request within one page.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) stripe: StripeId,
    pub(super) place: u64,
    /// Within the page.
    pub(super) sectors: Range<u64>,
    /// From the start of the request.
    pub(super) at: u64,
}

impl Shape {
    pub(super) fn new(geometry: &Geometry) -> Self {
        let stripe_sectors = geometry.stripe_sectors().0;
        Self {
            chunk_pages: geometry.chunk().0 / PAGE_SECTORS,
            data_pages: stripe_sectors / PAGE_SECTORS,
            stripe_sectors,
            capacity: geometry.capacity().0,
        }
    }

    /// The sectors that a stripe has: fewer in a partial last one.
    pub(super) fn sectors_of(&self, stripe: StripeId) -> u64 {
        self.stripe_sectors.min(self.capacity - stripe.0 * self.stripe_sectors)
    }

    /// The stripes that extents, of which none is empty, have sectors of; one at a border of two comes twice.
    pub(super) fn stripes_of(self, extents: &[Extent]) -> impl Iterator<Item = StripeId> {
        extents.iter().flat_map(move |extent| {
            let (first, last) = (extent.lba.0, extent.lba.0 + extent.content.len.0 - 1);
            (first / self.stripe_sectors..=last / self.stripe_sectors).map(StripeId)
        })
    }

    /// The first sector of a page of data.
    pub(super) fn lba(&self, stripe: StripeId, place: u64) -> Lba {
        Lba(stripe.0 * self.stripe_sectors + place * PAGE_SECTORS)
    }

    /// Cuts a request at pages.
    pub(super) fn pieces(&self, lba: Lba, len: u64) -> impl Iterator<Item = Piece> + use<> {
        let stripe_sectors = self.stripe_sectors;
        let mut at = 0;
        std::iter::from_fn(move || {
            let (stripe, offset) = ((lba.0 + at) / stripe_sectors, (lba.0 + at) % stripe_sectors);
            let piece = (at < len).then(|| Piece::new(StripeId(stripe), offset, at, len - at))?;
            at += piece.len();
            Some(piece)
        })
    }

    /// Cuts a range of a group's parity at pages; `start` counts from the start of its chunk.
    pub(super) fn parity_pieces(
        &self,
        stripe: StripeId,
        group: GroupId,
        start: Sectors,
        len: u64,
    ) -> impl Iterator<Item = Piece> + use<> {
        let first = (self.data_pages + u64::from(group.0) * self.chunk_pages) * PAGE_SECTORS + start.0;
        let mut at = 0;
        std::iter::from_fn(move || {
            let piece = (at < len).then(|| Piece::new(stripe, first + at, at, len - at))?;
            at += piece.len();
            Some(piece)
        })
    }

    /// The places of the parity that covers a page of data.
    pub(super) fn parity_of<'a>(
        self,
        geometry: &'a Geometry,
        stripe: StripeId,
        place: u64,
    ) -> impl Iterator<Item = u64> + use<'a> {
        let (unit, column) = (place / self.chunk_pages, self.column_of(place));
        let groups = geometry.map(stripe).groups_of(DataUnit(narrow(unit))).iter();
        groups.map(move |group| self.data_pages + u64::from(group.0) * self.chunk_pages + column)
    }

    /// The cell that a page of a stripe with this map is of.
    pub(super) fn cell_of(&self, map: &StripeMap, place: u64) -> Cell {
        let (row, units) = (place / self.chunk_pages, self.data_pages / self.chunk_pages);
        match row.checked_sub(units) {
            None => map.cell(DataUnit(narrow(row))),
            Some(group) => map.group(GroupId(narrow(group))).parity,
        }
    }

    /// A page's number within its chunk.
    pub(super) fn column_of(&self, place: u64) -> u64 {
        place % self.chunk_pages
    }

    /// The columns, in pages, that a range of a stripe's sectors touches.
    pub(super) fn columns(&self, start: u64, len: u64) -> Columns {
        let mut columns = Columns::default();
        for place in start / PAGE_SECTORS..(start + len).div_ceil(PAGE_SECTORS) {
            columns.add(self.column_of(place));
        }
        columns
    }
}

/// A number below that of a stripe's cells.
fn narrow(number: u64) -> u16 {
    u16::try_from(number).expect("a stripe has fewer than 65536 cells")
}

impl Piece {
    /// As much of `left` sectors, `offset` into the stripe's places and `at` into the request, as is in one page.
    fn new(stripe: StripeId, offset: u64, at: u64, left: u64) -> Self {
        let start = offset % PAGE_SECTORS;
        let end = PAGE_SECTORS.min(start + left);
        Self { stripe, place: offset / PAGE_SECTORS, sectors: start..end, at }
    }

    pub(super) fn len(&self) -> u64 {
        self.sectors.end - self.sectors.start
    }

    /// Whether it is a whole page.
    pub(super) fn is_whole(&self) -> bool {
        self.sectors == (0..PAGE_SECTORS)
    }

    /// Its bytes of the request, when the request's begin at `start`.
    pub(super) fn bytes(&self, start: usize) -> Range<usize> {
        let from = start + bytes_of(&(0..self.at)).end;
        from..from + bytes_of(&self.sectors).len()
    }
}

/// Adds a run of sectors, `at` sectors into a request, to the list of what is not in memory of it, or to its last run.
pub(super) fn push_missing(missing: &mut Vec<Extent>, lba: Lba, at: u64, len: u64) {
    match missing.last_mut() {
        Some(last) if last.lba.0 + last.content.len.0 == lba.0 => last.content.len.0 += len,
        _ => missing
            .push(Extent { lba, content: Slice { buffer: Buffer::Request, start: Sectors(at), len: Sectors(len) } }),
    }
}

/// Pages of a chunk, by number; a chunk has at most 256.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Columns([u64; 4]);

impl Columns {
    pub(super) fn add(&mut self, column: u64) {
        let (word, bit) = Self::split(column);
        self.0[word] |= bit;
    }

    pub(super) fn contains(&self, column: u64) -> bool {
        let (word, bit) = Self::split(column);
        self.0[word] & bit != 0
    }

    fn split(column: u64) -> (usize, u64) {
        (usize::try_from(column / 64).expect("a chunk has at most 256 pages"), 1 << (column % 64))
    }
}
