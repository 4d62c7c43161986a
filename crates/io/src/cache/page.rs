//! One page of a chunk in up to three versions.

use std::ops::Range;

use uraid_layout::{Bytes, Lba};

use super::journal::{Journal, Journaled};
use crate::buf::{Buf, Lease};

/// Sectors in a page, the cache's unit of memory. Chunks are whole pages.
pub(super) const PAGE_SECTORS: u64 = 8;

/// Bytes in a page.
pub(super) const PAGE_BYTES: usize = 4096;

/// Which sectors of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mask(pub(super) u8);

/// Some sectors of a page in memory: the page's bytes, of which those in the mask mean something.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) memory: Lease,
    pub(super) mask: Mask,
}

/// A page's versions. What is newer hides what is older: dirty, then flying, then clean.
#[derive(Debug, Default)]
pub(super) struct Page {
    /// What the members hold.
    pub(super) clean: Option<Layer>,
    /// What is being written to the members.
    pub(super) flying: Option<Layer>,
    /// What the members are still to be written.
    pub(super) dirty: Option<Layer>,
    /// What the journal has, where the dirty version is newer; it has no sectors that the dirty version lacks.
    pub(super) logged: Option<Layer>,
    /// What is going into the journal, where the dirty version is newer by now.
    pub(super) going: Option<Layer>,
    /// The clean version was read ahead: it is for one read.
    pub(super) is_ahead: bool,
    /// What the journal has of it.
    pub(super) journaled: Journaled,
}

impl Mask {
    pub(super) const ALL: Self = Self(0xFF);

    /// The sectors of a range within the page.
    pub(super) fn of(range: &Range<u64>) -> Self {
        assert!(range.start <= range.end && range.end <= PAGE_SECTORS, "a range is within its page");
        let below = |end: u64| (1_u16 << end) - 1;
        Self(u8::try_from(below(range.end) & !below(range.start)).expect("a page has eight sectors"))
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn count(self) -> u64 {
        u64::from(self.0.count_ones())
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The ranges of adjacent sectors, ascending.
    pub(super) fn runs(self) -> impl Iterator<Item = Range<u64>> {
        let mut left = u16::from(self.0);
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let start = left.trailing_zeros();
            let len = (left >> start).trailing_ones();
            left &= !(((1 << len) - 1) << start);
            Some(u64::from(start)..u64::from(start + len))
        })
    }
}

/// The bytes of a range of a page's sectors.
pub(super) fn bytes_of(sectors: &Range<u64>) -> Range<usize> {
    let byte = |sector: u64| usize::try_from(sector * 512).expect("a page fits the address space");
    byte(sectors.start)..byte(sectors.end)
}

impl Layer {
    /// What was `before`, and `bytes` over it as the sectors of a range. `memory` is a page.
    pub(super) fn merge(before: Option<&Self>, sectors: &Range<u64>, bytes: &[u8], mut memory: Buf) -> Self {
        let mut mask = Mask::of(sectors);
        if let Some(before) = before {
            before.copy_to(before.mask, memory.as_mut());
            mask = mask.or(before.mask);
        }
        memory.bytes_mut(bytes_of(sectors)).copy_from_slice(bytes);
        Self { memory: memory.lease_read(0..PAGE_BYTES), mask }
    }

    /// This with newer content over it.
    fn under(&self, newer: &Self) -> Self {
        let mut both = Buf::zeroed(Bytes(PAGE_BYTES as u64));
        self.copy_to(self.mask.minus(newer.mask), both.as_mut());
        newer.copy_to(newer.mask, both.as_mut());
        Self { memory: both.lease_read(0..PAGE_BYTES), mask: self.mask.or(newer.mask) }
    }

    /// Another holder of the same.
    pub(super) fn share(&self) -> Self {
        Self { memory: self.memory.part(0..PAGE_BYTES), mask: self.mask }
    }

    /// Copies the sectors in `wanted` to their places in a page's bytes.
    pub(super) fn copy_to(&self, wanted: Mask, page: &mut [u8]) {
        for run in wanted.runs() {
            page[bytes_of(&run)].copy_from_slice(&self.memory.bytes()[bytes_of(&run)]);
        }
    }
}

impl Page {
    pub(super) fn is_empty(&self) -> bool {
        self.clean.is_none() && !self.is_pinned()
    }

    /// Whether the page holds what the members don't, for all that is known.
    pub(super) fn is_pinned(&self) -> bool {
        self.dirty.is_some() || self.flying.is_some()
    }

    /// The versions, newest first.
    pub(super) fn layers(&self) -> impl Iterator<Item = &Layer> {
        [&self.dirty, &self.flying, &self.clean].into_iter().flatten()
    }

    pub(super) fn dirty_mask(&self) -> Mask {
        self.dirty.as_ref().map_or(Mask::default(), |layer| layer.mask)
    }

    /// The sectors of what flies that are to go into the journal, if any are: what the journal has, or is getting, of
    /// newer content is not hidden by older.
    pub(super) fn unjournaled_flight(&self) -> Option<(&Layer, Mask)> {
        let layer = self.flying.as_ref().filter(|_| self.journaled.was_fresh)?;
        let newer = if self.journaled.is_fresh { Mask::default() } else { self.dirty_mask() };
        let newer = if planted!(FlightOverNewer) { Mask::default() } else { newer };
        Some((layer, layer.mask.minus(newer))).filter(|(_, mask)| !mask.is_empty())
    }

    /// Puts a newer version over what is dirty. What the journal has, or is getting, is kept beside it.
    pub(super) fn overwrite(&mut self, layer: Layer) {
        let older = self.dirty.replace(layer);
        if self.journaled.is_fresh {
            return;
        }
        if self.journaled.is_going {
            self.going = older;
        } else if self.journaled.dirty.is_some() {
            self.logged = older;
        }
    }

    /// Ends the flight of what flew, and what the journal holds for it. Its first sector is `page`.
    pub(super) fn come_down(&mut self, is_written: bool, is_kept: bool, page: Lba, journal: &mut Journal) {
        let (held, was_fresh) = (self.journaled.flying.take(), std::mem::take(&mut self.journaled.was_fresh));
        self.journaled.flight_goes = false;
        if is_written {
            held.into_iter().for_each(|sequence| journal.let_go(sequence));
            return self.land(true, is_kept);
        }
        let flown = self.flying.as_ref().map(Layer::share);
        let before = self.dirty.as_ref().map(Layer::share);
        self.land(false, is_kept);
        let Some(flown) = flown else { return };
        let is_newer = self.journaled.is_fresh || self.journaled.is_going;
        if was_fresh {
            if !is_newer && self.journaled.dirty.is_some() {
                self.logged = before;
            }
            if !planted!(UnflownPagesClean) {
                self.journaled.is_fresh = true;
                journal.note_fresh_again(page);
            }
            return;
        }
        // A journal is trimmed from its start: what the older record has is there for as long as that is held.
        self.journaled.dirty = match (self.journaled.dirty, held) {
            (Some(one), Some(other)) => {
                journal.let_go(one.max(other));
                if let Some(logged) = self.logged.take() {
                    self.logged = Some(flown.under(&logged));
                }
                Some(one.min(other))
            }
            (None, Some(held)) => {
                self.logged = Some(flown).filter(|_| is_newer);
                Some(held)
            }
            (held, None) => held,
        };
    }

    /// Ends the flight: what flew is clean, if it is kept, or dirty again where the members could not be written.
    pub(super) fn land(&mut self, is_written: bool, is_kept: bool) {
        let Some(flying) = self.flying.take() else { return };
        self.is_ahead = false;
        if is_written {
            self.clean = Some(flying).filter(|_| is_kept);
            return;
        }
        // Any part of it may be on the members.
        self.clean = None;
        if let Some(dirty) = &mut self.dirty {
            let older = flying.mask.minus(dirty.mask);
            if !older.is_empty() {
                let mut both = Buf::zeroed(Bytes(PAGE_BYTES as u64));
                flying.copy_to(older, both.as_mut());
                dirty.copy_to(dirty.mask, both.as_mut());
                *dirty = Layer { memory: both.lease_read(0..PAGE_BYTES), mask: dirty.mask.or(older) };
            }
        } else {
            self.dirty = Some(flying);
        }
    }
}

/// Takes sectors out of a layer; one without sectors is none.
pub(super) fn cut(layer: &mut Option<Layer>, gone: Mask) {
    if let Some(some) = layer {
        some.mask = some.mask.minus(gone);
        if some.mask.is_empty() {
            *layer = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mask_is_its_runs() {
        for bits in 0..=u8::MAX {
            let runs: Vec<Range<u64>> = Mask(bits).runs().collect();
            let sectors: Vec<u64> = runs.iter().cloned().flatten().collect();
            let expected: Vec<u64> = (0..8).filter(|sector| bits >> sector & 1 == 1).collect();
            assert_eq!(sectors, expected);
            assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start), "{bits:08b}: runs are maximal");
            assert_eq!(Mask(bits).count(), expected.len() as u64);
        }
    }

    #[test]
    fn masks_of_ranges() {
        assert_eq!(Mask::of(&(0..8)), Mask::ALL);
        assert_eq!(Mask::of(&(2..5)), Mask(0b0001_1100));
        assert_eq!(Mask::of(&(3..3)), Mask(0));
    }
}
