//! What a job takes out of the cache for its plan: the pages behind [`Buffer::Cache`], what is to be written of them,
//! and what the members hold.
//!
//! The buffer's sectors count through the pages in the order in which they were added. A page's sector is at its own
//! place in the page, so that all operands of a XOR change pages together.

use uraid_layout::plan::{Buffer, Cached, Extent, Slice};
use uraid_layout::{Cell, Lba, Sectors, StripeId};

use super::destage::FlightNumber;
use super::page::{Layer, PAGE_BYTES, PAGE_SECTORS, bytes_of};
use crate::buf::Lease;

/// See the module.
#[derive(Debug, Default)]
pub struct Contents {
    pages: Vec<Lease>,
    extents: Vec<Extent>,
    cached: Vec<Cached>,
    flight: Option<Flight>,
    /// The journal has some of what flies, and nobody else does.
    has_held: bool,
    /// The log has only sums of it.
    is_by_sums: bool,
}

/// What the cache was told to make fly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    /// What it is called as long as flushes wait for it.
    pub(super) awaited: Option<FlightNumber>,
    /// Whether it stays in memory.
    pub(super) keeps: bool,
    /// Whether it failed before, and is a column.
    pub(super) is_second: bool,
}

impl Contents {
    /// What is to be written, ascending.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// What the members hold, ascending by stripe.
    #[must_use]
    pub fn cached(&self) -> &[Cached] {
        &self.cached
    }

    /// The list of a read that is in memory in part.
    pub fn missing(&mut self) -> &mut Vec<Extent> {
        self.clear();
        &mut self.extents
    }

    /// Whether pages fly for this job.
    #[must_use]
    pub fn flies(&self) -> bool {
        self.flight.is_some()
    }

    /// Whether the journal keeps something of what flies until the log has it.
    #[must_use]
    pub fn has_held(&self) -> bool {
        self.has_held
    }

    /// Whether flushes wait for what flies.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.flight.is_some_and(|flight| flight.awaited.is_some())
    }

    /// Takes note that the log has only sums of what flies.
    pub fn note_by_sums(&mut self) {
        self.is_by_sums = true;
    }

    pub(super) fn is_by_sums(&self) -> bool {
        self.is_by_sums
    }

    pub(super) fn note_held(&mut self, is_held: bool) {
        self.has_held |= is_held;
    }

    /// Whether what flies for this job is tried again, by itself.
    pub(super) fn is_second(&self) -> bool {
        self.flight.is_some_and(|flight| flight.is_second)
    }

    /// Whether what flies for this job stays in memory.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.flight.is_some_and(|flight| flight.keeps)
    }

    /// The memory of a slice of [`Buffer::Cache`], cut at pages.
    ///
    /// # Panics
    /// When the slice is not of what was taken.
    pub fn pieces(&self, slice: Slice) -> impl Iterator<Item = (&Lease, std::ops::Range<usize>)> {
        let end = slice.start.0 + slice.len.0;
        let mut at = slice.start.0;
        std::iter::from_fn(move || {
            let start = at % PAGE_SECTORS;
            let page = usize::try_from(at / PAGE_SECTORS).expect("a page's number");
            let len = (PAGE_SECTORS - start).min(end - at);
            (at < end).then(|| {
                at += len;
                (&self.pages[page], bytes_of(&(start..start + len)))
            })
        })
    }

    /// How much of a slice, from its start, is in one piece: up to the end of a page of [`Buffer::Cache`], or all of
    /// it.
    #[must_use]
    pub fn run(slice: Slice) -> Sectors {
        let left = PAGE_SECTORS - slice.start.0 % PAGE_SECTORS;
        Sectors(if slice.buffer == Buffer::Cache { left.min(slice.len.0) } else { slice.len.0 })
    }

    /// Lets go of everything.
    ///
    /// # Panics
    /// When pages fly.
    pub fn clear(&mut self) {
        assert!(self.flight.is_none(), "a flight ends before the next begins");
        self.pages.clear();
        self.extents.clear();
        self.cached.clear();
        (self.has_held, self.is_by_sums) = (false, false);
    }

    /// Adds the sectors of a page at `lba` that are to be written.
    pub(super) fn add_dirty(&mut self, lba: Lba, layer: &Layer) {
        let base = self.add_page(layer);
        for run in layer.mask.runs() {
            let (lba, start, len) = (lba.0 + run.start, base + run.start, run.end - run.start);
            match self.extents.last_mut() {
                Some(last) if continues(last, lba, start) => last.content.len.0 += len,
                _ => self.extents.push(Extent { lba: Lba(lba), content: slice(start, len) }),
            }
        }
    }

    /// Adds the sectors of a page that the members hold, `start` sectors into the cell.
    pub(super) fn add_clean(&mut self, stripe: StripeId, cell: Cell, start: Sectors, layer: &Layer) {
        let base = self.add_page(layer);
        for run in layer.mask.runs() {
            let (start, from, len) = (start.0 + run.start, base + run.start, run.end - run.start);
            match self.cached.last_mut() {
                Some(last)
                    if (last.stripe, last.cell) == (stripe, cell)
                        && last.start.0 + last.content.len.0 == start
                        && last.content.start.0 + last.content.len.0 == from =>
                {
                    last.content.len.0 += len;
                }
                _ => self.cached.push(Cached { stripe, cell, start: Sectors(start), content: slice(from, len) }),
            }
        }
    }

    /// Makes one extent what is to be written.
    pub(super) fn set_extent(&mut self, extent: Extent) {
        self.extents.clear();
        self.extents.push(extent);
    }

    pub(super) fn begin(&mut self, flight: Flight) {
        assert!(self.flight.is_none(), "a job has one flight at a time");
        self.flight = Some(flight);
    }

    /// What flies for this job if flushes wait for it, once.
    pub(super) fn take_awaited(&mut self) -> Option<FlightNumber> {
        self.flight.as_mut().and_then(|flight| flight.awaited.take())
    }

    /// Ends the flight.
    pub(super) fn end(&mut self) -> Option<Flight> {
        self.flight.take()
    }

    fn add_page(&mut self, layer: &Layer) -> u64 {
        self.pages.push(layer.memory.part(0..PAGE_BYTES));
        (self.pages.len() as u64 - 1) * PAGE_SECTORS
    }
}

fn slice(start: u64, len: u64) -> Slice {
    Slice { buffer: Buffer::Cache, start: Sectors(start), len: Sectors(len) }
}

fn continues(extent: &Extent, lba: u64, start: u64) -> bool {
    extent.lba.0 + extent.content.len.0 == lba && extent.content.start.0 + extent.content.len.0 == start
}
