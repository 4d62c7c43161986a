//! The cache of an engine, for whoever owns the engine.

use std::cell::Ref;

use uraid_layout::Bytes;

use super::Engine;
use super::command::CacheMode;
use super::counters::Fill;
use crate::buf::Pool;
use crate::cache::Cache;
use crate::disk::Disk;

impl<D: Disk, T> Engine<D, T> {
    /// Gives the engine such a cache, which has none.
    ///
    /// # Panics
    /// When commands are under way.
    pub fn install_cache(&mut self, mode: CacheMode, pool: &Pool, size: Bytes) {
        assert_eq!(self.in_flight(), 0, "a cache is there from the start");
        self.core.sides.install_cache(mode, pool, size);
    }

    /// What the cache holds that the members don't have yet, of all that it may hold.
    pub fn cache_fill(&self) -> Option<Fill> {
        self.core.sides.cache_fill()
    }

    /// The cache, if there is one.
    pub fn cache(&self) -> Option<Ref<'_, Cache>> {
        self.core.sides.below.writeback.cache()
    }

    /// When a write is replied to; none without a cache.
    pub fn cache_mode(&self) -> Option<CacheMode> {
        self.core.cache_mode()
    }

    /// Changes when writes are replied to that come from now on; what is in memory is written out as before. False, and
    /// nothing changes: there is no cache.
    pub fn set_cache_mode(&mut self, mode: CacheMode) -> bool {
        let has_cache = self.cache().is_some();
        let is_on = has_cache && mode == CacheMode::WriteBack;
        self.core.sides.all().for_each(|parts| parts.writeback.set_on(is_on));
        has_cache
    }

    /// Has writes go past the cache, or not, whatever is measured; none: as that says.
    pub fn force_bypass(&mut self, forced: Option<bool>) {
        self.core.sides.all().for_each(|parts| parts.writeback.bypass().force(forced));
    }

    /// Whether writes go past the cache for now, though they could be replied to from memory.
    pub fn is_bypassed(&self) -> bool {
        self.core.sides.below.writeback.is_bypassed()
    }
}

/// Says that writes go past the cache from now on, or not any more.
pub(super) fn tell(is_bypassed: bool) {
    if is_bypassed {
        tracing::info!("the cache does not pay: writes go past it");
    } else {
        tracing::info!("writes go through the cache again");
    }
}
