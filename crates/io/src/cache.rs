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
//!
//! [`Cache`] puts parts together that don't know each other: the [`store`] has the pages, [`destage`] decides what to
//! write out next, [`unwritten`] has what can't be; both go by the table of [`stripes`]. The cache adds what is about
//! memory: where pages come from, and which are forgotten. It knows no member, disk operation or clock.

mod ahead;
mod contents;
mod destage;
mod flush;
mod journal;
mod page;
mod shape;
mod store;
mod stripes;
mod unwritten;

use std::ops::Range;

use uraid_layout::plan::Extent;
use uraid_layout::{Bytes, Geometry, GroupId, Lba, Sectors, StripeId};

use crate::buf::{Buf, Pool};
pub use contents::Contents;
use contents::Flight;
pub use destage::{DESTAGES_MAX, Mark, TICK};
use destage::{Policy, UNLISTED};
pub use flush::{Edit, FlushLeft, FlushMark, View, Wanted};
use journal::Journal;
use page::{Layer, Mask, PAGE_BYTES, PAGE_SECTORS, Page, bytes_of, cut};
use shape::{Piece, Shape, push_missing};
use store::{Landing, Store, TakenOff};
use stripes::{Alone, Slot};
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
    pool: Pool,
    limit: Bytes,
    store: Store,
    /// Where the search for memory goes on.
    hand: usize,
    policy: Policy,
    journal: Journal,
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
    /// Of that, parity stripes as a whole.
    pub whole: Bytes,
}

impl Cache {
    /// An empty cache for an array, of at most `limit` bytes in whole size classes of `pool`. The pool is also where
    /// requests have their memory from: what they use counts, since it becomes the cache's.
    #[must_use]
    pub fn new(geometry: &Geometry, pool: Pool, limit: Bytes) -> Self {
        let pages = usize::try_from(limit.0).unwrap_or(usize::MAX) / PAGE_BYTES;
        Self {
            pool,
            limit,
            store: Store::new(Shape::new(geometry)),
            hand: 0,
            policy: Policy::new(pages),
            journal: Journal::default(),
            traffic: Traffic::default(),
        }
    }

    /// Takes the memory of another cache, which holds nothing.
    pub(crate) fn take_memory_of(&mut self, other: Self) {
        (self.pool, self.limit) = (other.pool, other.limit);
        self.policy.set_pages(&other.policy);
    }

    /// The most memory that the cache is to have.
    #[must_use]
    pub fn limit(&self) -> Bytes {
        self.limit
    }

    /// Forgets clean pages until the pool can lend `need` more, as far as that goes.
    pub fn reclaim(&mut self, need: Bytes) {
        self.shrink(Bytes(self.pool.budget().0.saturating_sub(need.0)));
    }

    /// Whether nothing is in memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.store.is_empty()
    }

    /// The pages of content and parity that it holds; pages of several versions count once.
    #[must_use]
    pub fn held(&self) -> Bytes {
        Bytes((self.store.held() * PAGE_BYTES) as u64)
    }

    /// What went through it.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// What can't be forgotten: dirty and flying pages.
    #[must_use]
    pub fn pinned(&self) -> Bytes {
        Bytes((self.store.pinned() * PAGE_BYTES) as u64)
    }

    /// Takes a write in whose content is the `range` of `buf`, and shares its memory; only a partial page gets a page
    /// of its own. False, and nothing is changed, when there is no room: too much is dirty, or the pool is exhausted.
    ///
    /// # Panics
    /// When the buffer has no such range, or it is not whole sectors.
    pub fn write(&mut self, lba: Lba, buf: &Buf, range: Range<usize>) -> bool {
        let is_held_back = self.journal.is_pressed && self.journal().is_live(lba, Sectors(range.len() as u64 / 512));
        !is_held_back && self.take_in(lba, buf, range, false)
    }

    /// The same of a write of which something is live, whoever waits: nothing else can take its place. It
    /// `must` be taken in where what it replaces can't be written out, which it takes no more room than.
    ///
    /// # Panics
    /// As [`Cache::write`].
    pub fn take_in(&mut self, lba: Lba, buf: &Buf, range: Range<usize>, must: bool) -> bool {
        assert!(range.len().is_multiple_of(512), "a request is whole sectors");
        let len = range.len() as u64 / 512;
        if !self.has_room_for(range.len().div_ceil(PAGE_BYTES) + 1) && !must {
            return false;
        }
        // Memory that is not counted can't be kept.
        let mut copy = None;
        if !self.pool.owns(buf) {
            let Some(mut own) = self.memory(range.len(), must) else { return false };
            own.as_mut().copy_from_slice(buf.bytes(range.clone()));
            copy = Some(own);
        }
        let (buf, start) = copy.as_ref().map_or((buf, range.start), |own| (own, 0));
        let mut edges: [Option<Buf>; 2] = [None, None];
        let partial = self.store.shape.pieces(lba, len).filter(|piece| !piece.is_whole());
        for (edge, _) in edges.iter_mut().zip(partial) {
            let Some(page) = self.memory(PAGE_BYTES, must) else { return false };
            *edge = Some(page);
        }
        let mut edges = edges.into_iter().flatten();
        for piece in self.store.shape.pieces(lba, len) {
            let slot = self.store.stripes.find_or_insert(piece.stripe);
            let bytes = piece.bytes(start);
            let layer = if piece.is_whole() {
                Layer { memory: buf.lease_read(bytes), mask: Mask::ALL }
            } else {
                let page = edges.next().expect("every partial page got its memory");
                let older = self.store.page(slot, piece.place).and_then(|page| page.dirty.as_ref());
                Layer::merge(older, &piece.sectors, buf.bytes(bytes), page)
            };
            self.put(&piece, slot, layer);
        }
        self.traffic.taken.0 += range.len() as u64;
        true
    }

    /// Takes zeros in, as [`Cache::take_in`] does content; `zeroes` is a page of them at least.
    pub fn take_in_zeros(&mut self, lba: Lba, len: Sectors, zeroes: &Buf, must: bool) -> bool {
        let pages = usize::try_from(len.0 / PAGE_SECTORS).unwrap_or(usize::MAX).saturating_add(2);
        if !self.has_room_for(pages) && !must {
            return false;
        }
        for piece in self.store.shape.pieces(lba, len.0) {
            let slot = self.store.stripes.find_or_insert(piece.stripe);
            let layer = if piece.is_whole() {
                Layer { memory: zeroes.lease_read(0..PAGE_BYTES), mask: Mask::ALL }
            } else {
                let older = self.store.page(slot, piece.place).and_then(|page| page.dirty.as_ref());
                let page = Buf::zeroed(Bytes(PAGE_BYTES as u64));
                Layer::merge(older, &piece.sectors, zeroes.bytes(bytes_of(&piece.sectors)), page)
            };
            self.put(&piece, slot, layer);
        }
        self.traffic.taken.0 += len.bytes().0;
        true
    }

    /// Whether so many pages more may be dirty, after clean ones were forgotten.
    fn has_room_for(&mut self, pages: usize) -> bool {
        self.policy.has_room(self.store.pinned(), pages) && self.make_room()
    }

    /// Memory for dirty content, the pool's unless there `must` be some.
    fn memory(&self, len: usize, must: bool) -> Option<Buf> {
        let len = Bytes(len as u64);
        self.pool.try_alloc(len).or_else(|| must.then(|| Buf::zeroed(len)))
    }

    /// Makes a layer what is dirty of a page.
    fn put(&mut self, piece: &Piece, slot: Slot, layer: Layer) {
        let before = self.store.stripes.at(slot).dirty;
        let Self { store, journal, .. } = self;
        let lba = store.shape.lba(piece.stripe, piece.place);
        store.edit(slot, piece.place, |page| {
            page.overwrite(layer);
            if journal.is_on && !std::mem::replace(&mut page.journaled.is_fresh, true) {
                journal.note_fresh(lba);
            }
        });
        let overwritten = piece.len() - (self.store.stripes.at(slot).dirty - before);
        self.traffic.coalesced.0 += Sectors(overwritten).bytes().0;
        let Store { stripes, shape, .. } = &mut self.store;
        self.policy.touched(stripes, slot, before, shape);
    }

    /// What the journal has of its pages.
    #[must_use]
    pub fn journal(&self) -> View<'_> {
        let Self { store, policy, journal, .. } = self;
        View { store, policy, journal }
    }

    /// The same, to be changed.
    #[must_use]
    pub fn journal_mut(&mut self) -> Edit<'_> {
        let Self { store, policy, journal, .. } = self;
        Edit { store, policy, journal }
    }

    /// Copies what is in memory of `len` sectors from `lba` to the buffer's bytes from `at` on, and appends the rest to
    /// `missing`, whose contents count from there too.
    ///
    /// # Panics
    /// When the buffer has no such bytes, or they are leased.
    pub fn read(&mut self, lba: Lba, len: Sectors, into: &mut Buf, at: Bytes, missing: &mut Vec<Extent>) {
        let base = usize::try_from(at.0).expect("a buffer fits the address space");
        let mut last = None;
        for (piece, held) in self.store.places(lba, len) {
            let mut wanted = Mask::of(&piece.sectors);
            if let Some((slot, page)) = held {
                last = Some(slot);
                for layer in page.layers() {
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
            self.store.stripes.get(slot).is_warm = true;
        }
    }

    /// Finds the clean content that the plan of a write of `len` sectors at `lba` can use.
    pub fn look(&mut self, geometry: &Geometry, lba: Lba, len: Sectors, contents: &mut Contents) {
        contents.clear();
        if !self.store.has_clean() {
            return;
        }
        let shape = self.store.shape;
        let mut at = lba.0;
        while at < lba.0 + len.0 {
            let stripe = StripeId(at / shape.stripe_sectors);
            let end = (lba.0 + len.0).min((stripe.0 + 1) * shape.stripe_sectors);
            if let Some(slot) = self.store.stripes.find(stripe) {
                let columns = shape.columns(at % shape.stripe_sectors, end - at);
                self.store.add_clean(geometry, slot, &columns, contents);
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
        for stripe in stripes.clone() {
            let Some(slot) = self.store.stripes.find(StripeId(stripe)) else { continue };
            let listed = self.store.stripes.delist(slot);
            let column = self.next_column(slot);
            let stripe = self.store.stripes.get(slot);
            let alone = stripe.alone.take();
            (stripe.is_old, stripe.is_scheduled, stripe.is_stuck, stripe.left) = (false, false, false, None);
            if column.is_none() && alone.is_some_and(|alone| alone.has_failed) {
                self.policy.stick(&mut self.store.stripes, slot);
                continue;
            }
            is_second |= column.is_some() || alone.is_some() && planted!(DestagedWhole);
            let is_whole = column.is_none() && stripe.dirty == self.store.shape.sectors_of(stripe.id);
            stripe.is_whole = is_whole;
            let before = stripe.dirty;
            self.traffic.whole.0 += if is_whole { Sectors(before).bytes().0 } else { 0 };
            let taken = self.store.take_off(slot, column, &self.journal, contents);
            let TakenOff { columns, has_fresh, is_left } = taken;
            if has_fresh {
                since = since.into_iter().chain(listed.or((before > 0).then_some(UNLISTED))).min();
            }
            if is_left {
                self.store.stripes.get(slot).is_whole = false;
            }
            if is_left && column.is_none() {
                // It waits until the journal has it, or nothing else of it.
                self.policy.leave(&mut self.store.stripes, slot);
            }
            let stripe = self.store.stripes.get(slot);
            if let (Some(column), Some(alone), true) = (column, alone, stripe.dirty > 0) {
                stripe.alone = Some(Alone { next: column + 1, ..alone });
                let tick = stripe.tick;
                self.store.stripes.enlist_first(slot, UNLISTED, tick);
            }
            if !is_whole {
                self.store.add_clean(geometry, slot, &columns, contents);
            }
        }
        for extent in contents.extents() {
            self.traffic.destaged.0 += extent.content.len.bytes().0;
            for piece in self.store.shape.pieces(extent.lba, extent.content.len.0) {
                let slot = self.store.stripes.find(piece.stripe).expect("what flies is in memory");
                self.store.drop_parity(geometry, slot, piece.place);
            }
        }
        if !contents.extents().is_empty() {
            let awaited = self.policy.took_off(since, stripes);
            contents.begin(Flight { awaited, keeps: true, is_second });
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
        if self.store.is_empty() && !keeps {
            return;
        }
        contents.set_extent(Extent::request(lba, len));
        let mut since = None;
        for piece in self.store.shape.pieces(lba, len.0) {
            let slot = match self.store.stripes.find(piece.stripe) {
                Some(slot) => slot,
                None if keeps => self.store.stripes.find_or_insert(piece.stripe),
                None => continue,
            };
            self.store.drop_parity(geometry, slot, piece.place);
            if !keeps && self.store.page(slot, piece.place).is_none() {
                self.store.forget_empty(slot);
                continue;
            }
            let (layer, is_counted) = self.page_of(&piece, source);
            keeps &= is_counted;
            let listed = self.store.stripes.at(slot).since;
            self.store.edit(slot, piece.place, |page| {
                assert!(page.flying.is_none(), "a stripe has one flight at a time");
                if !page.dirty_mask().and(layer.mask).is_empty() {
                    // A flush that comes now waits for what takes its place.
                    since = since.into_iter().chain(listed.or(Some(UNLISTED))).min();
                }
                cut(&mut page.dirty, layer.mask);
                page.flying = Some(layer);
                page.journaled.was_fresh = true;
            });
            self.policy.replaced(&mut self.store.stripes, slot);
        }
        let stripe = self.store.shape.stripe_sectors;
        let awaited = self.policy.took_off(since, lba.0 / stripe..(lba.0 + len.0).div_ceil(stripe));
        contents.begin(Flight { awaited, keeps, is_second: false });
    }

    /// Adds the new parity of a stripe that flies: it comes to rest with it. Parity of what does not stay in memory is
    /// left out, and what there is no memory for.
    pub fn put_parity(&mut self, contents: &Contents, stripe: StripeId, group: GroupId, start: Sectors, bytes: &[u8]) {
        if !contents.keeps() {
            // There may be no data with it, and then the search for memory would forget the stripe meanwhile.
            return;
        }
        let stripes = &self.store.stripes;
        let Some(slot) = stripes.find(stripe).filter(|&slot| !stripes.at(slot).is_whole) else { return };
        for piece in self.store.shape.parity_pieces(stripe, group, start, bytes.len() as u64 / 512) {
            if !self.make_room() {
                return;
            }
            let Some(page) = self.pool.try_alloc(Bytes(PAGE_BYTES as u64)) else { return };
            let layer = Layer::merge(None, &piece.sectors, &bytes[piece.bytes(0)], page);
            self.store.edit(slot, piece.place, |page| page.flying = Some(layer));
        }
    }

    /// Ends the flight of `contents`: what flew is clean, or dirty again when the members could not be written. The
    /// parity that covers it is what [`Cache::put_parity`] was given, or not in memory. False: nothing flew.
    pub fn settle(&mut self, geometry: &Geometry, contents: &mut Contents, is_written: bool) -> bool {
        let Some(Flight { awaited, keeps, is_second }) = contents.end() else { return false };
        self.policy.landed(awaited);
        // Where memory is wanted, the next write has what was just read by the members, which the processor still has
        // near.
        let keeps_data = keeps && self.pool.in_use().0 <= self.limit.0 / 2;
        for extent in contents.extents() {
            for piece in self.store.shape.pieces(extent.lba, extent.content.len.0) {
                let Some(slot) = self.store.stripes.find(piece.stripe) else { continue };
                // A stripe that was written whole is part of a stream, which does not come back.
                let keeps_data = keeps_data && !self.store.stripes.at(slot).is_whole;
                let is_held = |page: &Page| page.journaled.flying.is_some();
                let is_kept = contents.is_by_sums() && self.store.page(slot, piece.place).is_some_and(is_held);
                if is_written && is_kept && !planted!(PlacedLetGo) {
                    // What is in place may be lost until it is flushed, and the log does not have it.
                    let before = self.store.stripes.at(slot).dirty;
                    let landing = Landing { is_written: false, keeps_data: false, keeps_parity: false };
                    self.store.land(geometry, slot, piece.place, landing, &mut self.journal);
                    let Store { stripes, shape, .. } = &mut self.store;
                    self.policy.touched(stripes, slot, before, shape);
                    continue;
                }
                let landing = Landing { is_written, keeps_data, keeps_parity: keeps };
                self.store.land(geometry, slot, piece.place, landing, &mut self.journal);
                if !is_written {
                    self.policy.failed(&mut self.store.stripes, slot, is_second);
                }
                self.store.forget_empty(slot);
            }
        }
        for stripe in self.store.shape.stripes_of(contents.extents()) {
            if let Some(slot) = self.store.stripes.find(stripe) {
                self.store.stripes.get(slot).is_whole = false;
            }
        }
        if is_written {
            self.note_written(contents);
        }
        contents.clear();
        true
    }

    /// Notes that what flies for a job is durable in the log: flushes need not wait for it to land, and the journal
    /// need not keep it.
    pub fn committed(&mut self, contents: &mut Contents) {
        self.policy.landed(contents.take_awaited());
        if contents.has_held() {
            let Self { store, journal, .. } = self;
            for extent in contents.extents() {
                for piece in store.shape.pieces(extent.lba, extent.content.len.0) {
                    let Some(slot) = store.stripes.find(piece.stripe) else { continue };
                    if store.page(slot, piece.place).is_some_and(|page| page.journaled.flying.is_some()) {
                        let flying = |page: &mut Page| page.journaled.flying.take();
                        let sequence = store.look(slot, piece.place, flying).expect("it was there");
                        journal.let_go(sequence);
                    }
                }
            }
        }
        self.note_written(contents);
    }

    /// What is dirty, ascending.
    #[must_use]
    pub fn dirty(&self) -> Vec<(Lba, Vec<u8>)> {
        let mut dirty: Vec<_> = self.store.stripes.all().flat_map(|stripe| self.store.dirty_of(stripe)).collect();
        dirty.sort_unstable_by_key(|(lba, _)| *lba);
        dirty
    }

    /// Forgets what the members held of a stripe: its parity is computed anew.
    pub fn forget_clean(&mut self, stripe: StripeId) {
        if let Some(slot) = self.store.stripes.find(stripe) {
            self.store.drop_clean(slot, u64::MAX);
            self.store.forget_empty(slot);
        }
    }

    /// Whether any of these parity stripes has content that the members are still to be written.
    #[must_use]
    pub fn is_dirty_within(&self, stripes: Range<u64>) -> bool {
        let mut slots = stripes.filter_map(|stripe| self.store.stripes.find(StripeId(stripe)));
        slots.any(|slot| self.store.stripes.at(slot).dirty > 0)
    }

    /// Whether there is content that the members are still to be written, other than what can't be.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.policy.is_dirty(&self.store.stripes)
    }

    /// Adds the sectors of which it has what could not be written, in no order.
    pub fn unwritten_sectors(&self, into: &mut Vec<Range<Lba>>) {
        self.policy.unwritten.stripes().for_each(|stripe| self.store.dirty_sectors(stripe, into));
    }

    /// Sets how many parity stripes one run may have.
    pub fn limit_runs(&mut self, stripes: u64) {
        self.policy.limit_runs(stripes);
    }

    /// Notes that a client wants something.
    pub fn note_activity(&mut self) {
        self.policy.note_activity();
    }

    /// Notes that [`TICK`] has passed.
    pub fn tick(&mut self) {
        self.policy.tick();
        self.journal_mut().tick();
    }

    /// Asks that everything that is dirty now be written out, and stripes that failed be tried again.
    pub fn drain(&mut self) -> Mark {
        self.policy.drain(&mut self.store.stripes)
    }

    /// Asks that everything that is dirty now be written out, but what could not be.
    pub fn hurry(&mut self) -> Mark {
        self.policy.hurry()
    }

    /// Whether everything that was dirty before the mark is written, or [stuck](Cache::is_stuck), or waits for that.
    #[must_use]
    pub fn is_drained(&self, mark: Mark) -> bool {
        let stripes = &self.store.stripes;
        self.policy.is_drained(stripes, mark) || self.policy.is_blocked(stripes, mark)
    }

    /// Whether there is content that could not be written, and all else that is dirty waits for the journal to be rid
    /// of that.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.policy.is_blocked(&self.store.stripes, Mark(u64::MAX))
    }

    /// Whether there is content that could not be written.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.policy.is_stuck(&self.store.stripes)
    }

    /// The next run of adjacent parity stripes to write out: lock them, then [`Cache::take`] what is dirty of them,
    /// which is the second value by now. None when nothing is to be written for now.
    pub fn next_run(&mut self) -> Option<(Range<u64>, Sectors)> {
        let mut pinned = self.store.pinned();
        if !self.store.has_clean() {
            // Everything in use is dirty or pinned by what is: large requests of which little is left, too.
            pinned = pinned.max(usize::try_from(self.pool.in_use().0).unwrap_or(usize::MAX) / PAGE_BYTES);
        }
        let Store { stripes, shape, .. } = &mut self.store;
        self.policy.next_run(stripes, shape, pinned)
    }

    /// Gives a run back that was not taken and will not be, as one that failed.
    pub fn abandon(&mut self, stripes: Range<u64>) {
        self.policy.abandon(&mut self.store.stripes, stripes);
    }

    /// What could not be written out, for all that is known; none: there is no such thing.
    #[must_use]
    pub fn unwritten(&self) -> Option<Unwritten> {
        self.policy.unwritten.told(|stripe| self.store.unwritten_of(stripe))
    }

    /// Notes why what is about to be settled could not be written.
    pub fn blame(&mut self, contents: &Contents, cause: Cause) {
        // A run is tried again stripe by stripe; only then is it known whose fault it is.
        if !contents.is_second() {
            return;
        }
        for stripe in self.store.shape.stripes_of(contents.extents()) {
            if let Some(slot) = self.store.stripes.find(stripe) {
                let stripe = self.store.stripes.get(slot);
                stripe.cause = stripe.cause.union(cause);
            }
        }
    }

    /// Memory to read ahead to; none while it is short.
    #[must_use]
    pub fn ahead_memory(&mut self, len: Sectors) -> Option<Buf> {
        if self.make_room() { self.pool.try_alloc(len.bytes()) } else { None }
    }

    /// The first page of a range of whole pages of which nothing is in memory.
    #[must_use]
    pub fn first_absent(&self, range: Range<u64>) -> Option<Lba> {
        ahead::first_absent(&self.store, range)
    }

    /// Appends the pages of `len` sectors from `lba`, whole pages, of which nothing is in memory.
    pub fn absent(&self, lba: Lba, len: Sectors, absent: &mut Vec<Extent>) {
        ahead::list_absent(&self.store, lba, len, absent);
    }

    /// Takes in what the members hold of `extent`, whole pages: its content is in `buf`, whose memory becomes the
    /// pages. Pages of which something is in memory stay as they are, and so do stripes that are not `current`: what
    /// was read of them may have been replaced since.
    ///
    /// # Panics
    /// When it is not whole pages, or the buffer does not have them.
    pub fn put_ahead(&mut self, extent: &Extent, buf: &Buf, is_current: impl Fn(StripeId) -> bool) {
        ahead::put(&mut self.store, extent, buf, is_current);
    }

    /// Forgets what was read ahead of `len` sectors from `lba`, which were read: pages of which the last sector was.
    pub fn consume_ahead(&mut self, lba: Lba, len: Sectors) {
        ahead::consume(&mut self.store, lba, len);
    }

    /// Forgets what was read ahead in a range that nobody is going to read.
    pub fn forget_ahead(&mut self, range: &Range<u64>) {
        ahead::forget(&mut self.store, range);
    }

    /// The column that is next of a stripe that goes out by columns; none where that has none left, or is not one.
    fn next_column(&self, slot: Slot) -> Option<u64> {
        let alone = self.store.stripes.at(slot).alone.filter(|_| !planted!(DestagedWhole))?;
        self.store.dirty_column(slot, alone.next)
    }

    /// Forgets what could not be written of parity stripes that were, unless some of them is still to be.
    fn note_written(&mut self, contents: &Contents) {
        if !self.policy.unwritten.is_empty() {
            for stripe in self.store.shape.stripes_of(contents.extents()) {
                self.policy.written(&self.store.stripes, stripe);
            }
        }
    }

    /// A piece of a write-through as a page, and whether its memory counts against the budget.
    fn page_of(&self, piece: &Piece, source: Source<'_>) -> (Layer, bool) {
        let mask = Mask::of(&piece.sectors);
        match source {
            Source::Zeroes(zeroes) => (Layer { memory: zeroes.lease_read(0..PAGE_BYTES), mask }, false),
            Source::Request(buf, start) if piece.is_whole() => {
                (Layer { memory: buf.lease_read(piece.bytes(start)), mask }, self.pool.owns(buf))
            }
            Source::Request(buf, start) => {
                let len = Bytes(PAGE_BYTES as u64);
                let page = self.pool.try_alloc(len).unwrap_or_else(|| Buf::zeroed(len));
                let is_counted = self.pool.owns(&page);
                (Layer::merge(None, &piece.sectors, buf.bytes(piece.bytes(start)), page), is_counted)
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
            if self.pool.in_use() <= limit || !self.store.has_clean() {
                break;
            }
            let Some(slot) = self.store.stripes.around(self.hand) else { break };
            let stripe = self.store.stripes.get(slot);
            // Parity is needed by every write to its columns, and goes last.
            let is_warm = std::mem::take(&mut stripe.is_warm);
            self.hand = if is_warm { self.hand } else { self.hand + 1 };
            self.store.drop_clean(slot, if is_warm { self.store.shape.data_pages } else { u64::MAX });
            self.store.forget_empty(slot);
        }
        self.pool.in_use() <= limit
    }
}

#[cfg(test)]
mod tests;
