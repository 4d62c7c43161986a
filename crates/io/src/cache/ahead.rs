//! Pages that were read ahead: clean ones that are of no more use when they have been read once, and are forgotten
//! then.

use std::ops::Range;

use uraid_layout::plan::Extent;
use uraid_layout::{Lba, Sectors, StripeId};

use super::page::{Layer, Mask, PAGE_SECTORS, bytes_of};
use super::shape::push_missing;
use super::store::Store;
use super::stripes::Slot;
use crate::buf::Buf;

/// The first page of a range of whole pages of which nothing is in memory.
pub(super) fn first_absent(store: &Store, range: Range<u64>) -> Option<Lba> {
    if store.is_empty() {
        return Some(Lba(range.start));
    }
    let absent = store.places(Lba(range.start), Sectors(range.end - range.start));
    absent.filter(|(_, held)| held.is_none()).map(|(piece, _)| Lba(range.start + piece.at)).next()
}

/// Appends the pages of `len` sectors from `lba`, whole pages, of which nothing is in memory.
pub(super) fn list_absent(store: &Store, lba: Lba, len: Sectors, absent: &mut Vec<Extent>) {
    if store.is_empty() {
        return absent.push(Extent::request(lba, len));
    }
    for (piece, _) in store.places(lba, len).filter(|(_, held)| held.is_none()) {
        push_missing(absent, Lba(lba.0 + piece.at), piece.at, PAGE_SECTORS);
    }
}

/// Takes in what the members hold of an extent; see [`super::Cache::put_ahead`].
pub(super) fn put(store: &mut Store, extent: &Extent, buf: &Buf, is_current: impl Fn(StripeId) -> bool) {
    let &Extent { lba, content } = extent;
    let start = bytes_of(&(0..content.start.0)).end;
    let mut last: Option<(StripeId, Option<Slot>)> = None;
    for piece in store.shape.pieces(lba, content.len.0) {
        assert!(piece.is_whole(), "whole pages are read ahead");
        let slot = match last {
            Some((stripe, slot)) if stripe == piece.stripe => slot,
            _ => is_current(piece.stripe).then(|| store.stripes.find_or_insert(piece.stripe)),
        };
        last = Some((piece.stripe, slot));
        let Some(slot) = slot.filter(|&slot| store.page(slot, piece.place).is_none()) else { continue };
        let memory = buf.lease_read(piece.bytes(start));
        store.edit(slot, piece.place, |page| {
            page.clean = Some(Layer { memory, mask: Mask::ALL });
            page.is_ahead = true;
        });
    }
}

/// Forgets what was read ahead of `len` sectors from `lba`, which were read: pages of which the last sector was.
pub(super) fn consume(store: &mut Store, lba: Lba, len: Sectors) {
    if !store.has_clean() {
        return;
    }
    let mut last: Option<Slot> = None;
    for piece in store.shape.pieces(lba, len.0).filter(|piece| piece.sectors.end == PAGE_SECTORS) {
        let slot = match last {
            Some(slot) if store.stripes.at(slot).id == piece.stripe => Some(slot),
            _ => store.stripes.find(piece.stripe),
        };
        last = slot;
        let Some(slot) = slot else { continue };
        let Some(page) = store.page(slot, piece.place) else { continue };
        if page.is_ahead && !page.is_pinned() {
            store.edit(slot, piece.place, |page| page.clean = None);
        }
        store.forget_empty(slot);
    }
}

/// Forgets what was read ahead in a range of sectors that nobody is going to read.
pub(super) fn forget(store: &mut Store, range: &Range<u64>) {
    if range.is_empty() || !store.has_clean() {
        return;
    }
    let stripe = store.shape.stripe_sectors;
    for id in range.start / stripe..range.end.div_ceil(stripe) {
        let (start, end) = (range.start.max(id * stripe), range.end.min((id + 1) * stripe));
        if store.stripes.find(StripeId(id)).is_some() {
            consume(store, Lba(start), Sectors(end - start));
        }
    }
}
