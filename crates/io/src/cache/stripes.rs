//! The table of cached parity stripes: found by number, listed in the order in which they became dirty.
//!
//! Entries are used again with their memory, so that a steady load allocates nothing.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use uraid_layout::StripeId;

use super::unwritten::Cause;

/// A parity stripe's place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(u32);

/// A page of a parity stripe: its place (see [`super::Cache`]) and where its versions are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    place: u32,
    page: u32,
}

impl Entry {
    pub(super) fn new(place: u64, page: usize) -> Self {
        let narrow = |number: usize| u32::try_from(number).expect("a cache has fewer than 2^32 pages");
        Self { place: u32::try_from(place).expect("a stripe has fewer than 2^32 pages"), page: narrow(page) }
    }

    pub(super) fn place(self) -> u64 {
        self.place.into()
    }

    pub(super) fn page(self) -> usize {
        self.page as usize
    }
}

/// One parity stripe.
#[derive(Debug)]
pub(super) struct Stripe {
    pub(super) id: StripeId,
    /// Ascending by place.
    pub(super) entries: Vec<Entry>,
    /// Sectors in dirty layers.
    pub(super) dirty: u64,
    /// Pages with a clean layer.
    pub(super) clean_pages: usize,
    /// When it became dirty, on the cache's count; none when it is not in the list.
    pub(super) since: Option<u64>,
    /// On which tick it did.
    pub(super) tick: u64,
    /// It has had content for long that is not in the journal.
    pub(super) is_old: bool,
    /// It was picked for destaging, and not yet taken.
    pub(super) is_scheduled: bool,
    /// All of its data flies: its parity is of no use to later writes.
    pub(super) is_whole: bool,
    /// Destaging it failed; it waits for the next flush.
    pub(super) is_stuck: bool,
    /// Why it failed, since it was tried from the start.
    pub(super) cause: Cause,
    /// It failed before, and goes out in runs of its own, one for each column.
    pub(super) alone: Option<Alone>,
    /// What is dirty of it waited for the journal when that had come so far.
    pub(super) left: Option<u64>,
    /// It was used since the last look for memory.
    pub(super) is_warm: bool,
    older: Option<Slot>,
    newer: Option<Slot>,
}

/// How far a stripe has come that goes out by columns: what its chunks have at the same page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Alone {
    /// The first column that is still to be tried.
    pub(super) next: u64,
    /// Whether one before it failed.
    pub(super) has_failed: bool,
}

#[derive(Debug, Default)]
pub(super) struct Stripes {
    index: HashMap<StripeId, Slot, BuildHasherDefault<NumberHasher>>,
    slots: Vec<Stripe>,
    free: Vec<Slot>,
    oldest: Option<Slot>,
    newest: Option<Slot>,
}

/// Spreads stripes' numbers. A client that makes them collide slows down itself: a cache has few stripes, and the
/// clients of an array are trusted with all of its content.
#[derive(Debug, Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, number: u64) {
        // Fibonacci hashing; the table takes its bits from both ends.
        let mixed = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Stripes {
    pub(super) fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    pub(super) fn find(&self, id: StripeId) -> Option<Slot> {
        self.index.get(&id).copied()
    }

    pub(super) fn find_or_insert(&mut self, id: StripeId) -> Slot {
        if let Some(slot) = self.find(id) {
            return slot;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Stripe::new(id));
            Slot(u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 stripes have a page in memory"))
        });
        let entries = std::mem::take(&mut self.get(slot).entries);
        *self.get(slot) = Stripe { entries, ..Stripe::new(id) };
        self.index.insert(id, slot);
        slot
    }

    /// Forgets a stripe without pages.
    pub(super) fn remove(&mut self, slot: Slot) {
        let stripe = self.get(slot);
        assert!(stripe.entries.is_empty() && stripe.since.is_none(), "a stripe that is forgotten holds nothing");
        let id = stripe.id;
        self.index.remove(&id);
        self.free.push(slot);
    }

    pub(super) fn get(&mut self, slot: Slot) -> &mut Stripe {
        &mut self.slots[slot.0 as usize]
    }

    pub(super) fn at(&self, slot: Slot) -> &Stripe {
        &self.slots[slot.0 as usize]
    }

    /// Every slot in turn, without end: the `number`th, counted around; none when there are none. A slot may be free,
    /// and is without pages then.
    pub(super) fn around(&self, number: usize) -> Option<Slot> {
        let index = number.checked_rem(self.slots.len())?;
        Some(Slot(u32::try_from(index).expect("a slot's number")))
    }

    /// Appends a stripe to the list of dirty ones.
    pub(super) fn enlist(&mut self, slot: Slot, since: u64, tick: u64) {
        let older = self.newest.replace(slot);
        match older {
            Some(older) => self.get(older).newer = Some(slot),
            None => self.oldest = Some(slot),
        }
        let stripe = self.get(slot);
        assert!(stripe.since.is_none(), "a stripe is in the list once");
        (stripe.since, stripe.tick, stripe.older, stripe.newer) = (Some(since), tick, older, None);
    }

    /// The same before all others.
    pub(super) fn enlist_first(&mut self, slot: Slot, since: u64, tick: u64) {
        let newer = self.oldest.replace(slot);
        match newer {
            Some(newer) => self.get(newer).older = Some(slot),
            None => self.newest = Some(slot),
        }
        let stripe = self.get(slot);
        assert!(stripe.since.is_none(), "a stripe is in the list once");
        (stripe.since, stripe.tick, stripe.older, stripe.newer) = (Some(since), tick, None, newer);
    }

    /// Takes a stripe out of the list, and says since when it was dirty.
    pub(super) fn delist(&mut self, slot: Slot) -> Option<u64> {
        let stripe = self.get(slot);
        let since = stripe.since.take()?;
        let (older, newer) = (stripe.older.take(), stripe.newer.take());
        match older {
            Some(older) => self.get(older).newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.get(newer).older = older,
            None => self.newest = older,
        }
        Some(since)
    }

    /// Every stripe, in any order.
    pub(super) fn all(&self) -> impl Iterator<Item = &Stripe> {
        self.slots.iter().filter(|stripe| !stripe.entries.is_empty())
    }

    /// The dirty stripes, in the order in which they became dirty.
    pub(super) fn dirty(&self) -> impl Iterator<Item = &Stripe> {
        let mut next = self.oldest;
        std::iter::from_fn(move || {
            let stripe = self.at(next?);
            next = stripe.newer;
            Some(stripe)
        })
    }
}

impl Stripe {
    fn new(id: StripeId) -> Self {
        Self {
            id,
            entries: Vec::new(),
            dirty: 0,
            clean_pages: 0,
            since: None,
            tick: 0,
            is_old: false,
            is_scheduled: false,
            is_whole: false,
            is_stuck: false,
            cause: Cause::default(),
            alone: None,
            left: None,
            is_warm: true,
            older: None,
            newer: None,
        }
    }
}

#[cfg(test)]
impl Stripes {
    /// Every stripe, after a check that the table finds it, and that the list has those that are dirty, oldest first.
    pub(super) fn checked(&self) -> Vec<Slot> {
        let slots: Vec<Slot> = self.index.values().copied().collect();
        assert_eq!(slots.len() + self.free.len(), self.slots.len(), "a slot is in the index or free");
        assert!(self.index.iter().all(|(&id, &slot)| self.at(slot).id == id), "a stripe is found by its number");
        for &slot in &self.free {
            assert!(self.at(slot).entries.is_empty() && self.at(slot).since.is_none(), "{:?} is free", self.at(slot));
            assert!(!slots.contains(&slot), "a slot is not in the index and free");
        }
        let list: Vec<&Stripe> = self.dirty().collect();
        assert!(list.is_sorted_by_key(|stripe| stripe.since), "the oldest is first");
        assert!(list.iter().all(|stripe| stripe.since.is_some()), "what is in the list knows since when");
        assert_eq!(
            list.len(),
            slots.iter().filter(|&&slot| self.at(slot).since.is_some()).count(),
            "and the other way round"
        );
        assert_eq!(
            self.newest.map(|slot| self.at(slot).id),
            list.last().map(|stripe| stripe.id),
            "the list has its end"
        );
        let links = list.iter().map(|stripe| stripe.older.map(|slot| self.at(slot).id));
        let before = std::iter::once(None).chain(list.iter().map(|stripe| Some(stripe.id)));
        assert!(links.eq(before.take(list.len())), "the list is the same backwards");
        slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(stripes: &Stripes) -> Vec<u64> {
        stripes.dirty().map(|stripe| stripe.id.0).collect()
    }

    #[test]
    fn the_list_keeps_its_order_wherever_a_stripe_leaves() {
        for gone in 0..4 {
            let mut stripes = Stripes::default();
            let slots: Vec<Slot> = (0..4).map(|id| stripes.find_or_insert(StripeId(id))).collect();
            for (since, &slot) in (0..).zip(&slots) {
                stripes.enlist(slot, since, 0);
            }
            assert_eq!(stripes.delist(slots[gone]), Some(gone as u64));
            assert_eq!(stripes.delist(slots[gone]), None);
            let left: Vec<u64> = (0..4).filter(|&id| id != gone as u64).collect();
            assert_eq!(listed(&stripes), left);
            stripes.enlist(slots[gone], 9, 0);
            assert_eq!(listed(&stripes).last(), Some(&(gone as u64)));
            stripes.delist(slots[gone]);
            stripes.enlist_first(slots[gone], 0, 0);
            assert_eq!(listed(&stripes), [&[gone as u64], &left[..]].concat());
        }
    }

    #[test]
    fn a_slot_is_used_again() {
        let mut stripes = Stripes::default();
        let slot = stripes.find_or_insert(StripeId(7));
        assert_eq!(stripes.find_or_insert(StripeId(7)), slot);
        stripes.remove(slot);
        assert!(stripes.find(StripeId(7)).is_none() && stripes.is_empty());
        assert_eq!(stripes.find_or_insert(StripeId(8)), slot);
    }
}
