//! Pages that were read ahead: clean ones that are of no more use when they have been read once, and are forgotten
//! then.

use std::ops::Range;

use uraid_layout::plan::Extent;
use uraid_layout::{Bytes, Lba, Sectors, StripeId};

use super::page::{Layer, Mask, PAGE_SECTORS, bytes_of};
use super::stripes::Slot;
use super::{Cache, push_missing, request_bytes};
use crate::buf::Buf;

impl Cache {
    /// The most memory that the cache is to have.
    #[must_use]
    pub fn limit(&self) -> Bytes {
        self.limit
    }

    /// Memory to read ahead to; none while it is short.
    #[must_use]
    pub fn ahead_memory(&mut self, len: Sectors) -> Option<Buf> {
        if self.make_room() { self.pool.try_alloc(len.bytes()) } else { None }
    }

    /// The first page of a range of whole pages of which nothing is in memory.
    #[must_use]
    pub fn first_absent(&self, range: Range<u64>) -> Option<Lba> {
        if self.is_empty() {
            return Some(Lba(range.start));
        }
        let absent = self.places(Lba(range.start), Sectors(range.end - range.start));
        absent.filter(|(_, held)| held.is_none()).map(|(piece, _)| Lba(range.start + piece.at)).next()
    }

    /// Appends the pages of `len` sectors from `lba`, whole pages, of which nothing is in memory.
    pub fn absent(&self, lba: Lba, len: Sectors, absent: &mut Vec<Extent>) {
        if self.is_empty() {
            return absent.push(Extent::request(lba, len));
        }
        for (piece, _) in self.places(lba, len).filter(|(_, held)| held.is_none()) {
            push_missing(absent, Lba(lba.0 + piece.at), piece.at, PAGE_SECTORS);
        }
    }

    /// Takes in what the members hold of `extent`, whole pages: its content is in `buf`, whose memory becomes the
    /// pages. Pages of which something is in memory stay as they are, and so do stripes that are not `current`: what
    /// was read of them may have been replaced since.
    ///
    /// # Panics
    /// When it is not whole pages, or the buffer does not have them.
    pub fn put_ahead(&mut self, extent: &Extent, buf: &Buf, is_current: impl Fn(StripeId) -> bool) {
        let &Extent { lba, content } = extent;
        let start = bytes_of(&(0..content.start.0)).end;
        let mut last: Option<(StripeId, Option<Slot>)> = None;
        for piece in self.shape.pieces(lba, content.len.0) {
            assert!(piece.sectors == (0..PAGE_SECTORS), "whole pages are read ahead");
            let slot = match last {
                Some((stripe, slot)) if stripe == piece.stripe => slot,
                _ => is_current(piece.stripe).then(|| self.stripes.find_or_insert(piece.stripe)),
            };
            last = Some((piece.stripe, slot));
            let Some(slot) = slot.filter(|&slot| self.entry(slot, piece.place).is_none()) else { continue };
            let memory = buf.lease_read(request_bytes(&piece, start));
            self.edit(slot, piece.place, |page| {
                page.clean = Some(Layer { memory, mask: Mask::ALL });
                page.is_ahead = true;
            });
        }
    }

    /// Forgets what was read ahead of `len` sectors from `lba`, which were read: pages of which the last sector was.
    pub fn consume_ahead(&mut self, lba: Lba, len: Sectors) {
        if self.clean == 0 {
            return;
        }
        let mut last: Option<Slot> = None;
        for piece in self.shape.pieces(lba, len.0).filter(|piece| piece.sectors.end == PAGE_SECTORS) {
            let slot = match last {
                Some(slot) if self.stripes.at(slot).id == piece.stripe => Some(slot),
                _ => self.stripes.find(piece.stripe),
            };
            last = slot;
            let Some(slot) = slot else { continue };
            let Some(entry) = self.entry(slot, piece.place) else { continue };
            let page = &self.pages.slots[entry.page()];
            if page.is_ahead && !page.is_pinned() {
                self.edit(slot, piece.place, |page| page.clean = None);
            }
            self.forget_empty(slot);
        }
    }

    /// Forgets what was read ahead in a range that nobody is going to read.
    pub fn forget_ahead(&mut self, range: &Range<u64>) {
        if range.is_empty() || self.clean == 0 {
            return;
        }
        let stripe = self.shape.stripe_sectors;
        for id in range.start / stripe..range.end.div_ceil(stripe) {
            let (start, end) = (range.start.max(id * stripe), range.end.min((id + 1) * stripe));
            if self.stripes.find(StripeId(id)).is_some() {
                self.consume_ahead(Lba(start), Sectors(end - start));
            }
        }
    }
}
