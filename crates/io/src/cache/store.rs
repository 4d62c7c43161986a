//! The pages that are in memory, of parity stripes: found by stripe and place, changed, and counted.
//!
//! Invariants:
//! - Every page is in one stripe; one that is empty is in none, and its slot is used again.
//! - All counts, of the store and of each stripe, are those of its pages: they change together with them.
//!
//! It does not know where memory comes from, how much of it there may be, or when content is written out.

use std::ops::Range;

use uraid_layout::{Geometry, Lba, Sectors, StripeId};

use super::contents::Contents;
use super::journal::{Journal, Journaled};
use super::page::{Mask, PAGE_SECTORS, Page, bytes_of};
use super::shape::{Columns, Piece, Shape};
use super::stripes::{Entry, Slot, Stripe, Stripes};

/// See the module.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) shape: Shape,
    pub(super) stripes: Stripes,
    pages: Pages,
    /// Pages that can't be forgotten.
    pinned: usize,
    /// Pages with a clean version.
    clean: usize,
}

#[derive(Debug, Default)]
struct Pages {
    slots: Vec<Page>,
    free: Vec<usize>,
}

impl Store {
    pub(super) fn new(shape: Shape) -> Self {
        Self { shape, stripes: Stripes::default(), pages: Pages::default(), pinned: 0, clean: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.stripes.is_empty()
    }

    /// Pages in memory.
    pub(super) fn held(&self) -> usize {
        self.pages.slots.len() - self.pages.free.len()
    }

    /// Pages that can't be forgotten: dirty and flying ones.
    pub(super) fn pinned(&self) -> usize {
        self.pinned
    }

    /// Whether any page has a clean version.
    pub(super) fn has_clean(&self) -> bool {
        self.clean > 0
    }

    /// A page of a stripe, if something of it is in memory.
    pub(super) fn page(&self, slot: Slot, place: u64) -> Option<&Page> {
        let entries = &self.stripes.at(slot).entries;
        let index = entries.binary_search_by_key(&place, |entry| entry.place()).ok()?;
        Some(&self.pages.slots[entries[index].page()])
    }

    /// The pages of a range, and where they are if something of them is in memory.
    pub(super) fn places(&self, lba: Lba, len: Sectors) -> impl Iterator<Item = (Piece, Option<(Slot, &Page)>)> {
        let mut last: Option<(StripeId, Option<Slot>)> = None;
        self.shape.pieces(lba, len.0).map(move |piece| {
            let slot = match last {
                Some((stripe, slot)) if stripe == piece.stripe => slot,
                _ => self.stripes.find(piece.stripe),
            };
            last = Some((piece.stripe, slot));
            let held = slot.and_then(|slot| Some((slot, self.page(slot, piece.place)?)));
            (piece, held)
        })
    }

    /// Changes a page, and everything that is counted of it; one that was not there begins empty, one that is empty
    /// then is gone.
    pub(super) fn edit(&mut self, slot: Slot, place: u64, change: impl FnOnce(&mut Page)) {
        let stripe = self.stripes.get(slot);
        let index = stripe.entries.partition_point(|entry| entry.place() < place);
        if stripe.entries.get(index).is_none_or(|entry| entry.place() != place) {
            stripe.entries.insert(index, Entry::new(place, self.pages.insert()));
        }
        let page = &mut self.pages.slots[stripe.entries[index].page()];
        let before = (page.is_pinned(), page.clean.is_some(), page.dirty_mask().count());
        change(page);
        let after = (page.is_pinned(), page.clean.is_some(), page.dirty_mask().count());
        if page.dirty.is_none() {
            (page.journaled.is_fresh, page.journaled.is_going) = (false, false);
            (page.logged, page.going) = (None, None);
        }
        self.pinned = self.pinned + usize::from(after.0) - usize::from(before.0);
        self.clean = self.clean + usize::from(after.1) - usize::from(before.1);
        stripe.clean_pages = stripe.clean_pages + usize::from(after.1) - usize::from(before.1);
        stripe.dirty = stripe.dirty + after.2 - before.2;
        if page.is_empty() {
            page.is_ahead = false;
            self.pages.free.push(stripe.entries.remove(index).page());
        }
    }

    /// Changes nothing of a page that is counted.
    pub(super) fn look<R>(&mut self, slot: Slot, place: u64, change: impl FnOnce(&mut Page) -> R) -> R {
        let entries = &self.stripes.at(slot).entries;
        let index = entries.binary_search_by_key(&place, |entry| entry.place()).expect("a page that is in memory");
        change(&mut self.pages.slots[entries[index].page()])
    }

    /// Whether a stripe has fresh content of live pages, or any that is going into the journal, and nothing else of
    /// these pages is to be destaged.
    pub(super) fn is_fresh_over_live(&self, slot: Slot, journal: &Journal) -> bool {
        let stripe = self.stripes.at(slot);
        let mut pages = stripe.entries.iter().map(|entry| (entry.place(), &self.pages.slots[entry.page()]));
        let is_due = |page: &Page| (page.journaled.is_fresh || page.journaled.is_going) && page.logged.is_none();
        pages.any(|(place, page)| is_due(page) && journal.is_live(self.shape.lba(stripe.id, place)))
    }

    /// The pages of data of some stripes, and where they begin.
    pub(super) fn pages_within(&self, stripes: Range<u64>) -> impl Iterator<Item = (Lba, &Page)> {
        stripes.filter_map(|id| self.stripes.find(StripeId(id))).flat_map(|slot| {
            let stripe = self.stripes.at(slot);
            let data = stripe.entries.iter().filter(|entry| entry.place() < self.shape.data_pages);
            data.map(|entry| (self.shape.lba(stripe.id, entry.place()), &self.pages.slots[entry.page()]))
        })
    }

    /// Adds what is dirty or flies of a stripe.
    pub(super) fn dirty_sectors(&self, stripe: StripeId, into: &mut Vec<Range<Lba>>) {
        let Some(slot) = self.stripes.find(stripe) else { return };
        for entry in &self.stripes.at(slot).entries {
            let page = &self.pages.slots[entry.page()];
            let lba = self.shape.lba(stripe, entry.place());
            let layers = [&page.dirty, &page.flying].into_iter().flatten();
            let mask = layers.fold(Mask::default(), |mask, layer| mask.or(layer.mask));
            into.extend(mask.runs().map(|run| Lba(lba.0 + run.start)..Lba(lba.0 + run.end)));
        }
    }

    /// Changes a page that is in memory.
    fn edit_held(&mut self, slot: Slot, place: u64, change: impl FnOnce(&mut Page)) {
        if self.page(slot, place).is_some() {
            self.edit(slot, place, change);
        }
    }

    /// The first column, from `from` on, in which something of a stripe is dirty.
    pub(super) fn dirty_column(&self, slot: Slot, from: u64) -> Option<u64> {
        let entries = self.stripes.at(slot).entries.iter();
        let dirty = entries.filter(|entry| self.pages.slots[entry.page()].dirty.is_some());
        dirty.map(|entry| self.shape.column_of(entry.place())).filter(|&column| column >= from).min()
    }

    /// Makes what is dirty of a stripe fly, of one column or of all, and adds it to `contents`: in which columns any
    /// was. Of live pages with fresh content the version flies that the journal has, if that is not in place.
    ///
    /// # Panics
    /// When something of the stripe flies already.
    pub(super) fn take_off(
        &mut self,
        slot: Slot,
        column: Option<u64>,
        journal: &Journal,
        contents: &mut Contents,
    ) -> TakenOff {
        let (mut columns, mut has_fresh, mut is_left) = (Columns::default(), !journal.is_on, false);
        let stripe = self.stripes.get(slot);
        for entry in &stripe.entries {
            let page = &mut self.pages.slots[entry.page()];
            assert!(page.flying.is_none(), "a stripe has one flight at a time");
            let own = self.shape.column_of(entry.place());
            if column.is_some_and(|column| column != own) {
                continue;
            }
            if page.dirty.is_none() {
                continue;
            }
            let lba = self.shape.lba(stripe.id, entry.place());
            let Journaled { is_fresh, is_going, .. } = page.journaled;
            if (is_fresh || is_going) && journal.is_live(lba) && !planted!(FreshOverLive) {
                is_left = true;
                let Some(layer) = page.logged.take() else { continue };
                contents.add_dirty(lba, &layer);
                contents.note_held(true);
                columns.add(own);
                (page.flying, page.journaled.flying) = (Some(layer), page.journaled.dirty.take());
                continue;
            }
            (page.logged, page.going) = (None, None);
            page.flying = page.dirty.take();
            let held = page.journaled.dirty;
            page.journaled = Journaled { flying: held, was_fresh: is_fresh, ..Journaled::default() };
            has_fresh |= is_fresh;
            if let Some(layer) = &page.flying {
                contents.add_dirty(lba, layer);
                contents.note_held(held.is_some());
                columns.add(own);
                stripe.dirty -= layer.mask.count();
            }
        }
        TakenOff { columns, has_fresh, is_left }
    }

    /// Ends the flight of a page of data, and of the parity that covers it: what flew is clean, as far as it is kept,
    /// or dirty again where the members could not be written. Parity that did not fly stays as it is.
    pub(super) fn land(
        &mut self,
        geometry: &Geometry,
        slot: Slot,
        place: u64,
        landing: Landing,
        journal: &mut Journal,
    ) {
        let Landing { is_written, keeps_data, keeps_parity } = landing;
        let lba = self.shape.lba(self.stripes.at(slot).id, place);
        self.edit_held(slot, place, |page| {
            page.come_down(is_written, keeps_data, lba, journal);
        });
        for place in self.shape.parity_of(geometry, self.stripes.at(slot).id, place) {
            if self.page(slot, place).is_some_and(|page| page.flying.is_some()) {
                self.edit(slot, place, |page| page.clean = page.flying.take().filter(|_| is_written && keeps_parity));
            }
        }
    }

    /// Adds what the members hold of a stripe in some columns of its chunks to `contents`.
    pub(super) fn add_clean(&mut self, geometry: &Geometry, slot: Slot, columns: &Columns, contents: &mut Contents) {
        let stripe = self.stripes.get(slot);
        stripe.is_warm = true;
        if stripe.clean_pages == 0 {
            return;
        }
        let map = geometry.map(stripe.id);
        for entry in &stripe.entries {
            let column = self.shape.column_of(entry.place());
            let Some(layer) = self.pages.slots[entry.page()].clean.as_ref().filter(|_| columns.contains(column)) else {
                continue;
            };
            let cell = self.shape.cell_of(map, entry.place());
            contents.add_clean(stripe.id, cell, Sectors(column * PAGE_SECTORS), layer);
        }
    }

    /// Forgets the parity that covers a page of data: it is about to change on the members.
    pub(super) fn drop_parity(&mut self, geometry: &Geometry, slot: Slot, place: u64) {
        if self.stripes.at(slot).clean_pages > 0 && !planted!(StaleParityKept) {
            for place in self.shape.parity_of(geometry, self.stripes.at(slot).id, place) {
                self.edit_held(slot, place, |page| page.clean = None);
            }
        }
    }

    /// Forgets a stripe's clean versions at places below `end`.
    pub(super) fn drop_clean(&mut self, slot: Slot, end: u64) {
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

    /// Forgets a stripe if it has no pages.
    pub(super) fn forget_empty(&mut self, slot: Slot) {
        let stripe = self.stripes.at(slot);
        if stripe.entries.is_empty() && self.stripes.find(stripe.id) == Some(slot) {
            self.stripes.remove(slot);
        }
    }

    /// Goes through every page of data; what is counted does not change.
    pub(super) fn refresh(&mut self, mut each: impl FnMut(Lba, &mut Page)) {
        let Self { stripes, pages, shape, .. } = self;
        for stripe in stripes.all() {
            for entry in stripe.entries.iter().filter(|entry| entry.place() < shape.data_pages) {
                each(shape.lba(stripe.id, entry.place()), &mut pages.slots[entry.page()]);
            }
        }
    }

    /// What is dirty of a stripe.
    pub(super) fn dirty_of(&self, stripe: &Stripe) -> Vec<(Lba, Vec<u8>)> {
        let pages = stripe.entries.iter().map(|entry| (entry.place(), &self.pages.slots[entry.page()]));
        let dirty = pages.filter_map(|(place, page)| Some((self.shape.lba(stripe.id, place), page.dirty.as_ref()?)));
        let runs = dirty.flat_map(|(Lba(at), layer)| {
            layer.mask.runs().map(move |run| (Lba(at + run.start), layer.memory.bytes()[bytes_of(&run)].to_vec()))
        });
        runs.collect()
    }

    /// What is dirty of a stripe, or flies unless the stripe is stuck: ranges of the array, ascending.
    pub(super) fn unwritten_of(&self, stripe: StripeId) -> impl Iterator<Item = Range<Lba>> {
        self.stripes.find(stripe).into_iter().flat_map(move |slot| {
            let stripe = self.stripes.at(slot);
            let data = stripe.entries.iter().filter(|entry| entry.place() < self.shape.data_pages);
            data.flat_map(move |entry| {
                let page = &self.pages.slots[entry.page()];
                let flying = page.flying.as_ref().map(|layer| layer.mask).filter(|_| !stripe.is_stuck);
                let Lba(at) = self.shape.lba(stripe.id, entry.place());
                let runs = page.dirty_mask().or(flying.unwrap_or_default()).runs();
                runs.map(move |run| Lba(at + run.start)..Lba(at + run.end))
            })
        })
    }
}

/// What flies of a stripe.
pub(super) struct TakenOff {
    pub(super) columns: Columns,
    /// Some of it was fresh.
    pub(super) has_fresh: bool,
    /// Fresh content of live pages is left.
    pub(super) is_left: bool,
}

/// How a flight ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landing {
    /// Whether the members were written.
    pub(super) is_written: bool,
    /// Whether data that was written stays in memory.
    pub(super) keeps_data: bool,
    /// Whether its parity does.
    pub(super) keeps_parity: bool,
}

impl Pages {
    fn insert(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Page::default());
            self.slots.len() - 1
        })
    }
}

#[cfg(test)]
impl Store {
    /// A stripe's pages and their places, ascending.
    pub(super) fn pages_of(&self, slot: Slot) -> impl Iterator<Item = (u64, &Page)> {
        self.stripes.at(slot).entries.iter().map(|entry| (entry.place(), &self.pages.slots[entry.page()]))
    }

    /// Every stripe, after a recount of everything from the pages.
    pub(super) fn checked(&self) -> Vec<Slot> {
        let (mut pinned, mut clean, mut used) = (0, 0, Vec::new());
        let slots = self.stripes.checked();
        for &slot in &slots {
            let stripe = self.stripes.at(slot);
            let pages = || self.pages_of(slot).map(|(_, page)| page);
            assert!(!stripe.entries.is_empty(), "a stripe without pages is forgotten: {stripe:?}");
            assert!(stripe.entries.windows(2).all(|pair| pair[0].place() < pair[1].place()), "{stripe:?}");
            assert!(pages().all(|page| !page.is_empty()), "an empty page is forgotten: {stripe:?}");
            assert_eq!(stripe.dirty, pages().map(|page| page.dirty_mask().count()).sum::<u64>(), "{stripe:?}");
            assert_eq!(stripe.clean_pages, pages().filter(|page| page.clean.is_some()).count(), "{stripe:?}");
            pinned += pages().filter(|page| page.is_pinned()).count();
            clean += stripe.clean_pages;
            used.extend(stripe.entries.iter().map(|entry| entry.page()));
        }
        assert_eq!((self.pinned, self.clean), (pinned, clean), "pinned and clean pages");
        assert!(self.pages.free.iter().all(|&page| self.pages.slots[page].is_empty()));
        used.extend(&self.pages.free);
        used.sort_unstable();
        assert!(used.iter().copied().eq(0..self.pages.slots.len()), "every page is in one stripe or free: {used:?}");
        slots
    }
}
