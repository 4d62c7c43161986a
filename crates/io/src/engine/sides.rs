//! The parts of each shape that the array has: of one, or while it is being reshaped of what is below the mark and of
//! what is not.

use std::cell::Ref;
use std::ops::Range;
use std::rc::Rc;

use uraid_layout::{Bytes, Lba};

use super::between::Side;
use super::command::CacheMode;
use super::counters::Fill;
use super::parts::Parts;
use crate::array::Pages;
use crate::buf::Pool;
use crate::cache::Cache;
use crate::lost::{clip, without};

/// The memory of a cache that begins with what the journal has, until it is given its own.
const RESTORED_BYTES: Bytes = Bytes(4 << 20);

/// See the module.
#[derive(Debug)]
pub(super) struct Sides {
    /// Of the only shape, or of what is below the mark.
    pub(super) below: Parts,
    above: Option<Parts>,
}

impl Sides {
    /// These parts, and those of the other shape where there is one.
    pub(super) fn new(below: Parts) -> Self {
        Self { above: below.above(), below }
    }

    /// The parts of the shape that has an address, and the end of what it has from there on.
    pub(super) fn at(&self, lba: Lba) -> (&Parts, Lba) {
        let Some(between) = self.below.members.between() else { return (&self.below, Lba(u64::MAX)) };
        match between.side(lba) {
            Side::Below => (&self.below, between.mark.get()),
            side @ Side::Above => (self.of(side), Lba(u64::MAX)),
        }
    }

    /// The parts of a range, each with what it has of it.
    pub(super) fn split(&self, range: Range<Lba>) -> impl Iterator<Item = (&Parts, Range<Lba>)> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let (parts, end) = self.at(at);
            let part = at..end.min(range.end);
            at = part.end;
            (!part.is_empty()).then_some((parts, part))
        })
    }

    /// The parts of a shape.
    ///
    /// # Panics
    /// When the array has one shape only, and this is the other.
    pub(super) fn of(&self, side: Side) -> &Parts {
        match side {
            Side::Below => &self.below,
            Side::Above => self.above.as_ref().expect("the array has two shapes"),
        }
    }

    /// The parts of each shape that the array has.
    pub(super) fn all(&self) -> impl Iterator<Item = &Parts> {
        [&self.below].into_iter().chain(&self.above)
    }

    /// The array's sectors that nobody has, as far as the lists of bad blocks say, nor the cache, which could not write
    /// them out: ascending.
    pub(super) fn lost(&self) -> Rc<[Range<Lba>]> {
        let lost = self.lost_by_members();
        if lost.is_empty() || planted!(UnwrittenCalledLost) {
            return lost;
        }
        let mut unwritten = Vec::new();
        self.caches().for_each(|cache| cache.unwritten_sectors(&mut unwritten));
        without(&lost, unwritten).into()
    }

    fn lost_by_members(&self) -> Rc<[Range<Lba>]> {
        let of = |parts: &Parts| parts.bad.lost(parts.geometry(), parts.members.record().lost());
        let Some(between) = self.below.members.between() else { return of(&self.below) };
        let (mark, moving) = (between.mark.get(), between.moving.borrow());
        let moving = moving.as_ref().filter(|_| !planted!(LostToldByLists));
        let (window, lost) = moving.map_or((mark..mark, &[][..]), |(window, lost)| (window.clone(), lost));
        let (below, above) = (of(&self.below), of(self.of(Side::Above)));
        let (lower, upper) = (Lba(0)..window.start, window.end..Lba(u64::MAX));
        clip(&below, &lower).into_iter().chain(lost.iter().cloned()).chain(clip(&above, &upper)).collect()
    }

    /// Gives each of them a cache, of `size` together.
    pub(super) fn install_cache(&self, mode: CacheMode, pool: &Pool, size: Bytes) {
        let size = Bytes(size.0 / self.all().count() as u64);
        for parts in self.all() {
            let mut cache = Cache::new(parts.geometry(), pool.clone(), size);
            if let Some(log) = &parts.log {
                cache.limit_runs(log.stripes_max());
            }
            if parts.journal.is_some() {
                cache.journal_mut().turn_on();
            }
            parts.writeback.install(cache, mode == CacheMode::WriteBack);
        }
    }

    /// Changes when writes are replied to. False: there is no cache.
    pub(super) fn set_cache_mode(&self, mode: CacheMode) -> bool {
        let has_cache = self.caches().next().is_some();
        self.all().for_each(|parts| parts.writeback.set_on(has_cache && mode == CacheMode::WriteBack));
        has_cache
    }

    /// Has the cache begin with what the journal of pages has.
    pub(super) fn restore(&self, pages: &Pages) {
        if pages.is_empty() {
            return;
        }
        if let Some(journal) = &self.below.journal {
            journal.log.resume(&pages.headers);
        }
        self.below.members.trust_parity();
        self.install_cache(CacheMode::WriteThrough, &Pool::new(RESTORED_BYTES), RESTORED_BYTES);
        self.below.writeback.restore(&pages.records);
    }

    /// The cache of each of them.
    pub(super) fn caches(&self) -> impl Iterator<Item = Ref<'_, Cache>> {
        self.all().filter_map(|parts| parts.writeback.cache())
    }

    /// What they hold that the members don't have yet, of all that they may hold.
    pub(super) fn cache_fill(&self) -> Option<Fill> {
        let fill = |cache: Ref<'_, Cache>| Fill { used: cache.pinned(), limit: cache.limit() };
        self.caches().map(fill).reduce(Fill::plus)
    }

    /// Does something with the cache of each of them.
    pub(super) fn each_cache(&self, mut with: impl FnMut(&mut Cache)) {
        for parts in self.all() {
            let _ = parts.writeback.with(&mut with);
        }
    }
}
