//! Content of parity stripes in memory: what clients wrote and the members do not hold yet, and some of what they do
//! hold.
//!
//! A page of a chunk has up to three versions, each of some of its sectors: *dirty* content was acknowledged and is
//! still to be written; *flying* content is being written by a job that holds the stripe's lock; *clean* content is
//! what the members hold. Reads see the newest. A job plans with the clean version as the old content and the flying
//! one as the new, so parity and old data that are in memory cost no read. What is written while an older version flies
//! is dirty beside it; nobody waits.
//!
//! Invariants:
//! - A page that is not dirty and not flying can be forgotten at any time.
//! - Content that was acknowledged stays visible until the members have it, also where a later write takes its place.
//! - Only the holder of a stripe's lock makes its pages fly or settles them; there is at most one flight of a page.
//! - The memory of a client's write becomes the page: whole pages are never copied.
//! - A place is a page's number within its stripe: data pages in the order of addresses, then each group's parity.
//!
//! The cache knows no member, disk operation or clock. What to write out next is decided in [`destage`].

mod ahead;
mod contents;
mod destage;
mod page;
mod stripes;
mod unwritten;

use std::ops::Range;

use uraid_layout::plan::{Buffer, Extent, Slice};
use uraid_layout::{Bytes, DataUnit, Geometry, GroupId, Lba, Sectors, StripeId};

use crate::buf::{Buf, Lease, Pool};
pub use contents::Contents;
use contents::Flight;
pub use destage::{Mark, TICK};
use destage::{Policy, UNLISTED};
use page::{Layer, Mask, PAGE_BYTES, PAGE_SECTORS, Page, bytes_of, cut};
use stripes::{Alone, Entry, Slot, Stripes};
pub use unwritten::{Cause, RANGES_MAX, Unwritten};

/// Stripes that one search for memory looks at.
const LOOKS_MAX: usize = 64;

/// What a write-through is written from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// The request's memory, from this byte on.
    Request(&'a Buf, usize),
    /// A buffer of zeros, at least a page.
    Zeroes(&'a Buf),
}

/// See the module.
#[derive(Debug)]
pub struct Cache {
    shape: Shape,
    pool: Pool,
    limit: Bytes,
    stripes: Stripes,
    pages: Pages,
    /// Pages that can't be forgotten.
    pinned: usize,
    /// Pages with a clean version.
    clean: usize,
    /// Where the search for memory goes on.
    hand: usize,
    policy: Policy,
    traffic: Traffic,
}

/// What went through the cache since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Taken in from writes.
    pub taken: Bytes,
    /// Of that, what took the place of content that was not written out yet.
    pub coalesced: Bytes,
    /// Handed out to be written to the members, what is handed out again after a failure among it.
    pub destaged: Bytes,
}

/// What the cache knows of the geometry.
#[derive(Clone, Copy, Debug)]
struct Shape {
    chunk_pages: u64,
    data_pages: u64,
    stripe_sectors: u64,
    capacity: u64,
}

#[derive(Debug, Default)]
struct Pages {
    slots: Vec<Page>,
    free: Vec<usize>,
}

/// A piece of a request within one page.
#[derive(Clone, Debug)]
struct Piece {
    stripe: StripeId,
    place: u64,
    /// Within the page.
    sectors: Range<u64>,
    /// From the start of the request.
    at: u64,
}

impl Cache {
    /// An empty cache for an array, of at most `limit` bytes in whole size classes of `pool`. The pool is also where
    /// requests have their memory from: what they use counts, since it becomes the cache's.
    #[must_use]
    pub fn new(geometry: &Geometry, pool: Pool, limit: Bytes) -> Self {
        let chunk_pages = geometry.chunk().0 / PAGE_SECTORS;
        let shape = Shape {
            chunk_pages,
            data_pages: geometry.stripe_sectors().0 / PAGE_SECTORS,
            stripe_sectors: geometry.stripe_sectors().0,
            capacity: geometry.capacity().0,
        };
        let pages = usize::try_from(limit.0).unwrap_or(usize::MAX) / PAGE_BYTES;
        Self {
            shape,
            pool,
            limit,
            stripes: Stripes::default(),
            pages: Pages::default(),
            pinned: 0,
            clean: 0,
            hand: 0,
            policy: Policy::new(pages),
            traffic: Traffic::default(),
        }
    }

    /// Forgets clean pages until the pool can lend `need` more, as far as that goes.
    pub fn reclaim(&mut self, need: Bytes) {
        self.shrink(Bytes(self.pool.budget().0.saturating_sub(need.0)));
    }

    /// Whether nothing is in memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stripes.is_empty()
    }

    /// The pages of content and parity that it holds; pages of several versions count once.
    #[must_use]
    pub fn held(&self) -> Bytes {
        Bytes(((self.pages.slots.len() - self.pages.free.len()) * PAGE_BYTES) as u64)
    }

    /// What went through it.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// What can't be forgotten: dirty and flying pages.
    #[must_use]
    pub fn pinned(&self) -> Bytes {
        Bytes((self.pinned * PAGE_BYTES) as u64)
    }

    /// Takes a write in whose content is the `range` of `buf`, and shares its memory; only a partial page gets a page
    /// of its own. False, and nothing is changed, when there is no room: too much is dirty, or the pool is exhausted.
    ///
    /// # Panics
    /// When the buffer has no such range, or it is not whole sectors.
    pub fn write(&mut self, lba: Lba, buf: &Buf, range: Range<usize>) -> bool {
        assert!(range.len().is_multiple_of(512), "a request is whole sectors");
        let len = range.len() as u64 / 512;
        let pages = range.len().div_ceil(PAGE_BYTES) + 1;
        if !self.policy.has_room(self.pinned, pages) || !self.make_room() {
            return false;
        }
        // Memory that is not counted can't be kept.
        let mut copy = None;
        if !self.pool.owns(buf) {
            let Some(mut own) = self.pool.try_alloc(Bytes(range.len() as u64)) else { return false };
            own.as_mut().copy_from_slice(buf.bytes(range.clone()));
            copy = Some(own);
        }
        let (buf, start) = copy.as_ref().map_or((buf, range.start), |own| (own, 0));
        let partial = |piece: &Piece| piece.sectors != (0..PAGE_SECTORS);
        let mut edges: [Option<Buf>; 2] = [None, None];
        for (edge, _) in edges.iter_mut().zip(self.shape.pieces(lba, len).filter(partial)) {
            let Some(page) = self.pool.try_alloc(Bytes(PAGE_BYTES as u64)) else { return false };
            *edge = Some(page);
        }
        let mut edges = edges.into_iter().flatten();
        for piece in self.shape.pieces(lba, len) {
            let slot = self.stripes.find_or_insert(piece.stripe);
            let bytes = request_bytes(&piece, start);
            let layer = if partial(&piece) {
                let page = edges.next().expect("every partial page got its memory");
                self.merge(slot, &piece, buf.bytes(bytes), page)
            } else {
                Layer { memory: buf.lease_read(bytes), mask: Mask::ALL }
            };
            let before = self.stripes.at(slot).dirty;
            self.edit(slot, piece.place, |page| page.dirty = Some(layer));
            let overwritten = piece.sectors.end - piece.sectors.start - (self.stripes.at(slot).dirty - before);
            self.traffic.coalesced.0 += Sectors(overwritten).bytes().0;
            self.policy.touched(&mut self.stripes, slot, before, &self.shape);
        }
        self.traffic.taken.0 += range.len() as u64;
        true
    }

    /// Copies what is in memory of `len` sectors from `lba` to the buffer's bytes from `at` on, and appends the rest to
    /// `missing`, whose contents count from there too.
    ///
    /// # Panics
    /// When the buffer has no such bytes, or they are leased.
    pub fn read(&mut self, lba: Lba, len: Sectors, into: &mut Buf, at: Bytes, missing: &mut Vec<Extent>) {
        let base = usize::try_from(at.0).expect("a buffer fits the address space");
        let mut last = None;
        for (piece, held) in self.places(lba, len) {
            let mut wanted = Mask::of(&piece.sectors);
            if let Some((slot, entry)) = held {
                last = Some(slot);
                for layer in self.pages.slots[entry.page()].layers() {
                    let found = wanted.and(layer.mask);
                    for run in found.runs() {
                        let start = base + bytes_of(&(0..piece.at + run.start - piece.sectors.start)).end;
                        let bytes = &layer.memory.bytes()[bytes_of(&run)];
                        into.bytes_mut(start..start + bytes.len()).copy_from_slice(bytes);
                    }
                    wanted = wanted.minus(found);
                }
            }
            for run in wanted.runs() {
                let at = piece.at + run.start - piece.sectors.start;
                push_missing(missing, Lba(lba.0 + at), at, run.end - run.start);
            }
        }
        if let Some(slot) = last {
            self.stripes.get(slot).is_warm = true;
        }
    }

    /// Finds the clean content that the plan of a write of `len` sectors at `lba` can use.
    pub fn look(&mut self, geometry: &Geometry, lba: Lba, len: Sectors, contents: &mut Contents) {
        contents.clear();
        if self.clean == 0 {
            return;
        }
        let mut at = lba.0;
        while at < lba.0 + len.0 {
            let stripe = StripeId(at / self.shape.stripe_sectors);
            let end = (lba.0 + len.0).min((stripe.0 + 1) * self.shape.stripe_sectors);
            if let Some(slot) = self.stripes.find(stripe) {
                let columns = self.shape.columns(at % self.shape.stripe_sectors, end - at);
                self.add_clean(geometry, slot, &columns, contents);
            }
            at = end;
        }
    }

    /// Makes the dirty content of parity stripes fly: `contents` gets what is to be written and what the members
    /// hold. Of a stripe that failed before it is one column at a time; the others follow in runs of their own.
    /// Nothing was dirty any more, or is worth another try, when it has no extents.
    ///
    /// # Panics
    /// When something of the stripes flies already: the caller does not hold their lock.
    pub fn take(&mut self, geometry: &Geometry, stripes: Range<u64>, contents: &mut Contents) {
        contents.clear();
        let (mut since, mut is_second) = (None, false);
        for stripe in stripes {
            let Some(slot) = self.stripes.find(StripeId(stripe)) else { continue };
            let listed = self.stripes.delist(slot);
            let column = self.next_column(slot);
            let stripe = self.stripes.get(slot);
            let alone = stripe.alone.take();
            (stripe.is_scheduled, stripe.is_stuck) = (false, false);
            if column.is_none() && alone.is_some_and(|alone| alone.has_failed) {
                self.policy.stick(&mut self.stripes, slot);
                continue;
            }
            is_second |= column.is_some() || alone.is_some() && planted!(DestagedWhole);
            since = since.into_iter().chain(listed.or((stripe.dirty > 0).then_some(UNLISTED))).min();
            stripe.is_whole = column.is_none() && stripe.dirty == self.shape.sectors_of(stripe.id);
            let mut columns = Columns::default();
            for entry in &stripe.entries {
                let page = &mut self.pages.slots[entry.page()];
                assert!(page.flying.is_none(), "a stripe has one flight at a time");
                let own = entry.place() % self.shape.chunk_pages;
                if column.is_some_and(|column| column != own) {
                    continue;
                }
                page.flying = page.dirty.take();
                if let Some(layer) = &page.flying {
                    let start = stripe.id.0 * self.shape.stripe_sectors + entry.place() * PAGE_SECTORS;
                    contents.add_dirty(Lba(start), layer);
                    columns.add(own);
                    stripe.dirty -= layer.mask.count();
                }
            }
            if let (Some(column), Some(alone), true) = (column, alone, stripe.dirty > 0) {
                stripe.alone = Some(Alone { next: column + 1, ..alone });
                let tick = stripe.tick;
                self.stripes.enlist_first(slot, UNLISTED, tick);
            }
            if !self.stripes.at(slot).is_whole {
                self.add_clean(geometry, slot, &columns, contents);
            }
        }
        for index in 0..contents.extents().len() {
            let extent = contents.extents()[index];
            self.traffic.destaged.0 += extent.content.len.bytes().0;
            for piece in self.shape.pieces(extent.lba, extent.content.len.0) {
                let slot = self.stripes.find(piece.stripe).expect("what flies is in memory");
                self.drop_parity(geometry, slot, piece.place);
            }
        }
        if !contents.extents().is_empty() {
            self.policy.took_off(since);
            contents.begin(Flight { since, keeps: true, is_second });
        }
    }

    /// Makes the content of a write-through fly in place of older dirty content, as the members are about to be
    /// written. Pages that are not in memory come in with it when `keeps`.
    ///
    /// # Panics
    /// As [`Cache::take`].
    pub fn take_over(
        &mut self,
        geometry: &Geometry,
        (lba, len): (Lba, Sectors),
        source: Source<'_>,
        keeps: bool,
        contents: &mut Contents,
    ) {
        let is_owned = matches!(source, Source::Request(buf, _) if self.pool.owns(buf));
        let mut keeps = keeps && is_owned && self.make_room();
        if self.stripes.is_empty() && !keeps {
            return;
        }
        contents.set_extent(Extent::request(lba, len));
        let mut since = None;
        for piece in self.shape.pieces(lba, len.0) {
            let slot = match self.stripes.find(piece.stripe) {
                Some(slot) => slot,
                None if keeps => self.stripes.find_or_insert(piece.stripe),
                None => continue,
            };
            self.drop_parity(geometry, slot, piece.place);
            if !keeps && self.entry(slot, piece.place).is_none() {
                self.forget_empty(slot);
                continue;
            }
            let mask = Mask::of(&piece.sectors);
            let (memory, is_counted) = self.page_of(&piece, source);
            keeps &= is_counted;
            let layer = Layer { memory, mask };
            let listed = self.stripes.at(slot).since;
            self.edit(slot, piece.place, |page| {
                assert!(page.flying.is_none(), "a stripe has one flight at a time");
                if !page.dirty_mask().and(mask).is_empty() {
                    // A flush that comes now waits for what takes its place.
                    since = since.into_iter().chain(listed.or(Some(UNLISTED))).min();
                }
                cut(&mut page.dirty, mask);
                page.flying = Some(layer);
            });
            if self.stripes.at(slot).is_stuck {
                self.policy.unwritten.resize(piece.stripe, self.stripes.at(slot).dirty);
            }
            if self.stripes.at(slot).dirty == 0 {
                self.stripes.delist(slot);
                let stripe = self.stripes.get(slot);
                (stripe.is_stuck, stripe.alone) = (false, None);
            }
        }
        self.policy.took_off(since);
        contents.begin(Flight { since, keeps, is_second: false });
    }

    /// Adds the new parity of a stripe that flies: it comes to rest with it. Parity of what does not stay in memory is
    /// left out, and what there is no memory for.
    pub fn put_parity(&mut self, contents: &Contents, stripe: StripeId, group: GroupId, start: Sectors, bytes: &[u8]) {
        if !contents.keeps() {
            // There may be no data with it, and then the search for memory would forget the stripe meanwhile.
            return;
        }
        let Some(slot) = self.stripes.find(stripe).filter(|&slot| !self.stripes.at(slot).is_whole) else { return };
        let first = (self.shape.data_pages + u64::from(group.0) * self.shape.chunk_pages) * PAGE_SECTORS + start.0;
        for piece in self.shape.pieces_of(stripe, first, bytes.len() as u64 / 512) {
            if !self.make_room() {
                return;
            }
            let Some(mut page) = self.pool.try_alloc(Bytes(PAGE_BYTES as u64)) else { return };
            page.bytes_mut(bytes_of(&piece.sectors)).copy_from_slice(&bytes[request_bytes(&piece, 0)]);
            let layer = Layer { memory: page.lease_read(0..PAGE_BYTES), mask: Mask::of(&piece.sectors) };
            self.edit(slot, piece.place, |page| page.flying = Some(layer));
        }
    }

    /// Ends the flight of `contents`: what flew is clean, or dirty again when the members could not be written. The
    /// parity that covers it is what [`Cache::put_parity`] was given, or not in memory. False: nothing flew.
    pub fn settle(&mut self, geometry: &Geometry, contents: &mut Contents, is_written: bool) -> bool {
        let Some(Flight { since, keeps, is_second }) = contents.end() else { return false };
        self.policy.landed(since);
        // Where memory is wanted, the next write has what was just read by the members, which the processor still has
        // near.
        let keeps_data = keeps && self.pool.in_use().0 <= self.limit.0 / 2;
        for extent in contents.extents() {
            for piece in self.shape.pieces(extent.lba, extent.content.len.0) {
                let Some(slot) = self.stripes.find(piece.stripe) else { continue };
                // A stripe that was written whole is part of a stream, which does not come back.
                let keeps_data = keeps_data && !self.stripes.at(slot).is_whole;
                if self.entry(slot, piece.place).is_some() {
                    self.edit(slot, piece.place, |page| land(page, is_written, keeps_data));
                }
                self.settle_parity(geometry, slot, piece.place, is_written && keeps);
                if !is_written {
                    self.policy.failed(&mut self.stripes, slot, is_second);
                }
                self.forget_empty(slot);
            }
        }
        for extent in contents.extents() {
            let stripe_of = |lba: u64| lba / self.shape.stripe_sectors;
            for stripe in stripe_of(extent.lba.0)..=stripe_of(extent.lba.0 + extent.content.len.0 - 1) {
                if let Some(slot) = self.stripes.find(StripeId(stripe)) {
                    self.stripes.get(slot).is_whole = false;
                }
            }
        }
        if is_written {
            self.note_written(contents);
        }
        contents.clear();
        true
    }

    /// Notes that what flies for a job is durable in the log: flushes need not wait for it to land.
    pub fn committed(&mut self, contents: &mut Contents) {
        self.policy.landed(contents.take_since());
        self.note_written(contents);
    }

    /// Forgets what the members held of a stripe: its parity is computed anew.
    pub fn forget_clean(&mut self, stripe: StripeId) {
        if let Some(slot) = self.stripes.find(stripe) {
            self.drop_clean(slot, u64::MAX);
            self.forget_empty(slot);
        }
    }

    /// The column that is next of a stripe that goes out by columns; none where that has none left, or is not one.
    fn next_column(&self, slot: Slot) -> Option<u64> {
        let stripe = self.stripes.at(slot);
        let alone = stripe.alone.filter(|_| !planted!(DestagedWhole))?;
        let dirty = stripe.entries.iter().filter(|entry| self.pages.slots[entry.page()].dirty.is_some());
        dirty.map(|entry| entry.place() % self.shape.chunk_pages).filter(|&column| column >= alone.next).min()
    }

    /// Changes a page, and everything that is counted of it; one that was not there begins empty, one that is empty
    /// then is gone.
    fn edit(&mut self, slot: Slot, place: u64, change: impl FnOnce(&mut Page)) {
        let stripe = self.stripes.get(slot);
        let index = stripe.entries.partition_point(|entry| entry.place() < place);
        if stripe.entries.get(index).is_none_or(|entry| entry.place() != place) {
            stripe.entries.insert(index, Entry::new(place, self.pages.insert()));
        }
        let page = &mut self.pages.slots[stripe.entries[index].page()];
        let before = (page.is_pinned(), page.clean.is_some(), page.dirty_mask().count());
        change(page);
        let after = (page.is_pinned(), page.clean.is_some(), page.dirty_mask().count());
        self.pinned = self.pinned + usize::from(after.0) - usize::from(before.0);
        self.clean = self.clean + usize::from(after.1) - usize::from(before.1);
        stripe.clean_pages = stripe.clean_pages + usize::from(after.1) - usize::from(before.1);
        stripe.dirty = stripe.dirty + after.2 - before.2;
        if page.is_empty() {
            page.is_ahead = false;
            self.pages.free.push(stripe.entries.remove(index).page());
        }
    }

    /// The pages of a range, and where they are if something of them is in memory.
    fn places(&self, lba: Lba, len: Sectors) -> impl Iterator<Item = (Piece, Option<(Slot, Entry)>)> {
        let mut last: Option<(StripeId, Option<Slot>)> = None;
        self.shape.pieces(lba, len.0).map(move |piece| {
            let slot = match last {
                Some((stripe, slot)) if stripe == piece.stripe => slot,
                _ => self.stripes.find(piece.stripe),
            };
            last = Some((piece.stripe, slot));
            let held = slot.and_then(|slot| Some((slot, self.entry(slot, piece.place)?)));
            (piece, held)
        })
    }

    fn entry(&self, slot: Slot, place: u64) -> Option<Entry> {
        let entries = &self.stripes.at(slot).entries;
        let index = entries.binary_search_by_key(&place, |entry| entry.place()).ok()?;
        Some(entries[index])
    }

    /// A page's new dirty version: what was dirty before, and the request's piece over it.
    fn merge(&self, slot: Slot, piece: &Piece, bytes: &[u8], mut page: Buf) -> Layer {
        let mut mask = Mask::of(&piece.sectors);
        let before = self.entry(slot, piece.place).and_then(|entry| self.pages.slots[entry.page()].dirty.as_ref());
        if let Some(before) = before {
            before.copy_to(before.mask, page.as_mut());
            mask = mask.or(before.mask);
        }
        page.bytes_mut(bytes_of(&piece.sectors)).copy_from_slice(bytes);
        Layer { memory: page.lease_read(0..PAGE_BYTES), mask }
    }

    /// A piece of a write-through as a page.
    /// Whether its memory counts against the budget comes with it.
    fn page_of(&self, piece: &Piece, source: Source<'_>) -> (Lease, bool) {
        let is_whole = piece.sectors == (0..PAGE_SECTORS);
        match source {
            Source::Zeroes(zeroes) => (zeroes.lease_read(0..PAGE_BYTES), false),
            Source::Request(buf, start) if is_whole => {
                (buf.lease_read(request_bytes(piece, start)), self.pool.owns(buf))
            }
            Source::Request(buf, start) => {
                let len = Bytes(PAGE_BYTES as u64);
                let mut page = self.pool.try_alloc(len).unwrap_or_else(|| Buf::zeroed(len));
                page.bytes_mut(bytes_of(&piece.sectors)).copy_from_slice(buf.bytes(request_bytes(piece, start)));
                (page.lease_read(0..PAGE_BYTES), self.pool.owns(&page))
            }
        }
    }

    /// Adds what the members hold of a stripe in some columns of its chunks.
    fn add_clean(&mut self, geometry: &Geometry, slot: Slot, columns: &Columns, contents: &mut Contents) {
        let stripe = self.stripes.get(slot);
        stripe.is_warm = true;
        if stripe.clean_pages == 0 {
            return;
        }
        let map = geometry.map(stripe.id);
        for entry in &stripe.entries {
            let (row, column) = (entry.place() / self.shape.chunk_pages, entry.place() % self.shape.chunk_pages);
            let Some(layer) = self.pages.slots[entry.page()].clean.as_ref().filter(|_| columns.contains(column)) else {
                continue;
            };
            let number = |row: u64| u16::try_from(row).expect("a stripe has fewer than 65536 cells");
            let units = self.shape.data_pages / self.shape.chunk_pages;
            let cell = match row.checked_sub(units) {
                None => map.cell(DataUnit(number(row))),
                Some(group) => map.group(GroupId(number(group))).parity,
            };
            contents.add_clean(stripe.id, cell, Sectors(column * PAGE_SECTORS), layer);
        }
    }

    /// Forgets the parity that covers a page of data: it is about to change on the members.
    fn drop_parity(&mut self, geometry: &Geometry, slot: Slot, place: u64) {
        if self.stripes.at(slot).clean_pages > 0 && !planted!(StaleParityKept) {
            for place in self.shape.parity_of(geometry, self.stripes.at(slot).id, place) {
                if self.entry(slot, place).is_some() {
                    self.edit(slot, place, |page| page.clean = None);
                }
            }
        }
    }

    fn settle_parity(&mut self, geometry: &Geometry, slot: Slot, place: u64, is_kept: bool) {
        for place in self.shape.parity_of(geometry, self.stripes.at(slot).id, place) {
            let flies = |entry: Entry| self.pages.slots[entry.page()].flying.is_some();
            if self.entry(slot, place).is_some_and(flies) {
                self.edit(slot, place, |page| page.clean = page.flying.take().filter(|_| is_kept));
            }
        }
    }

    /// Forgets clean pages until the limit is kept; whether it is.
    fn make_room(&mut self) -> bool {
        self.shrink(self.limit)
    }

    /// The same for another limit.
    fn shrink(&mut self, limit: Bytes) -> bool {
        for _ in 0..LOOKS_MAX {
            if self.pool.in_use() <= limit || self.clean == 0 {
                break;
            }
            let Some(slot) = self.stripes.around(self.hand) else { break };
            let stripe = self.stripes.get(slot);
            // Parity is needed by every write to its columns, and goes last.
            let is_warm = std::mem::take(&mut stripe.is_warm);
            self.hand = if is_warm { self.hand } else { self.hand + 1 };
            self.drop_clean(slot, if is_warm { self.shape.data_pages } else { u64::MAX });
            self.forget_empty(slot);
        }
        self.pool.in_use() <= limit
    }

    /// Forgets a stripe's clean versions at places below `end`.
    fn drop_clean(&mut self, slot: Slot, end: u64) {
        let Self { stripes, pages, clean, .. } = self;
        let stripe = stripes.get(slot);
        if stripe.clean_pages == 0 {
            return;
        }
        let mut dropped = 0;
        stripe.entries.retain(|entry| {
            let page = &mut pages.slots[entry.page()];
            if entry.place() < end && page.clean.take().is_some() {
                dropped += 1;
            }
            let is_gone = page.is_empty();
            if is_gone {
                page.is_ahead = false;
                pages.free.push(entry.page());
            }
            !is_gone
        });
        stripe.clean_pages -= dropped;
        *clean -= dropped;
    }

    fn forget_empty(&mut self, slot: Slot) {
        let stripe = self.stripes.at(slot);
        if stripe.entries.is_empty() && self.stripes.find(stripe.id) == Some(slot) {
            self.stripes.remove(slot);
        }
    }
}

/// Ends a page's flight.
fn land(page: &mut Page, is_written: bool, is_kept: bool) {
    let Some(flying) = page.flying.take() else { return };
    page.is_ahead = false;
    if is_written {
        page.clean = Some(flying).filter(|_| is_kept);
        return;
    }
    // Any part of it may be on the members.
    page.clean = None;
    if let Some(dirty) = &mut page.dirty {
        let older = flying.mask.minus(dirty.mask);
        if !older.is_empty() {
            let mut both = Buf::zeroed(Bytes(PAGE_BYTES as u64));
            flying.copy_to(older, both.as_mut());
            dirty.copy_to(dirty.mask, both.as_mut());
            *dirty = Layer { memory: both.lease_read(0..PAGE_BYTES), mask: dirty.mask.or(older) };
        }
    } else {
        page.dirty = Some(flying);
    }
}

/// The request's bytes of a piece, when the request's begin at `start`.
fn request_bytes(piece: &Piece, start: usize) -> Range<usize> {
    let from = start + bytes_of(&(0..piece.at)).end;
    from..from + bytes_of(&piece.sectors).len()
}

/// Adds a run to a read's list, or to its last run.
fn push_missing(missing: &mut Vec<Extent>, lba: Lba, at: u64, len: u64) {
    match missing.last_mut() {
        Some(last) if last.lba.0 + last.content.len.0 == lba.0 => last.content.len.0 += len,
        _ => missing
            .push(Extent { lba, content: Slice { buffer: Buffer::Request, start: Sectors(at), len: Sectors(len) } }),
    }
}

impl Pages {
    fn insert(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Page::default());
            self.slots.len() - 1
        })
    }
}

impl Shape {
    /// The sectors that a stripe has: fewer in a partial last one.
    fn sectors_of(&self, stripe: StripeId) -> u64 {
        self.stripe_sectors.min(self.capacity - stripe.0 * self.stripe_sectors)
    }

    /// Cuts a request at pages.
    fn pieces(&self, lba: Lba, len: u64) -> impl Iterator<Item = Piece> + use<> {
        let stripe_sectors = self.stripe_sectors;
        let mut at = 0;
        std::iter::from_fn(move || {
            let (stripe, offset) = ((lba.0 + at) / stripe_sectors, (lba.0 + at) % stripe_sectors);
            let piece = (at < len).then(|| piece(StripeId(stripe), offset, at, len - at))?;
            at += piece.sectors.end - piece.sectors.start;
            Some(piece)
        })
    }

    /// The same for a range of a stripe's places, in sectors.
    fn pieces_of(&self, stripe: StripeId, first: u64, len: u64) -> impl Iterator<Item = Piece> + use<> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let piece = (at < len).then(|| piece(stripe, first + at, at, len - at))?;
            at += piece.sectors.end - piece.sectors.start;
            Some(piece)
        })
    }

    /// The places of the parity that covers a page of data.
    fn parity_of<'a>(
        self,
        geometry: &'a Geometry,
        stripe: StripeId,
        place: u64,
    ) -> impl Iterator<Item = u64> + use<'a> {
        let (unit, column) = (place / self.chunk_pages, place % self.chunk_pages);
        let unit = DataUnit(u16::try_from(unit).expect("a stripe has fewer than 65536 cells"));
        let groups = geometry.map(stripe).groups_of(unit).iter();
        groups.map(move |group| self.data_pages + u64::from(group.0) * self.chunk_pages + column)
    }

    /// The columns, in pages, that a range of a stripe's sectors touches.
    fn columns(&self, start: u64, len: u64) -> Columns {
        let mut columns = Columns::default();
        for place in start / PAGE_SECTORS..(start + len).div_ceil(PAGE_SECTORS) {
            columns.add(place % self.chunk_pages);
        }
        columns
    }
}

fn piece(stripe: StripeId, offset: u64, at: u64, left: u64) -> Piece {
    let start = offset % PAGE_SECTORS;
    let end = PAGE_SECTORS.min(start + left);
    Piece { stripe, place: offset / PAGE_SECTORS, sectors: start..end, at }
}

/// Pages of a chunk, by number; a chunk has at most 256.
#[derive(Clone, Copy, Debug, Default)]
struct Columns([u64; 4]);

impl Columns {
    fn add(&mut self, column: u64) {
        let (word, bit) = Self::split(column);
        self.0[word] |= bit;
    }

    fn contains(&self, column: u64) -> bool {
        let (word, bit) = Self::split(column);
        self.0[word] & bit != 0
    }

    fn split(column: u64) -> (usize, u64) {
        (usize::try_from(column / 64).expect("a chunk has at most 256 pages"), 1 << (column % 64))
    }
}

#[cfg(test)]
mod tests;
