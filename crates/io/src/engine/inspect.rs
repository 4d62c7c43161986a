//! What the engine can tell of itself while it runs, and what can be changed then. Nothing here waits or writes.

use uraid_layout::repair::Repair;
use uraid_layout::{Bytes, Geometry, MemberIndex, MemberSet};

use super::{CacheMode, Engine};
use crate::cache::{Cache, Unwritten};
use crate::disk::Disk;

/// How much of something bounded is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// What is in use.
    pub used: Bytes,
    /// The most that can be.
    pub limit: Bytes,
}

/// How many more members an array without these survives, whichever they are; a lower bound where that is more than
/// one.
#[must_use]
pub fn survives(geometry: &Geometry, lost: MemberSet) -> usize {
    let at_least = geometry.tolerance().saturating_sub(lost.len());
    let present = geometry.all_members().minus(lost);
    let survives = |member| Repair::new(geometry, lost.with(member)).is_ok();
    // A level may survive more failures than its tolerance where they hit different mirrors.
    if at_least == 0 && !lost.is_empty() && present.iter().all(survives) { 1 } else { at_least }
}

impl<D: Disk, T> Engine<D, T> {
    /// Whether more members failed than the level survives: nothing is answered any more.
    pub fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// How many more members may fail, whichever they are; a lower bound where that is more than one.
    pub fn survives(&self) -> usize {
        if self.is_frozen {
            return 0;
        }
        survives(&self.geometry, self.record.lost())
    }

    /// Content that was replied to and could not be written when that was tried last: flushes fail until it is. The
    /// next one tries again.
    pub fn unwritten(&self) -> Option<Unwritten> {
        self.cache.as_ref().and_then(Cache::unwritten)
    }

    /// When a write is replied to; none without a cache.
    pub fn cache_mode(&self) -> Option<CacheMode> {
        let mode = if self.writes_back { CacheMode::WriteBack } else { CacheMode::WriteThrough };
        self.cache.as_ref().map(|_| mode)
    }

    /// Changes when writes are replied to that come from now on; what is in memory is written out as before. False, and
    /// nothing changes: there is no cache.
    pub fn set_cache_mode(&mut self, mode: CacheMode) -> bool {
        self.writes_back = self.cache.is_some() && mode == CacheMode::WriteBack;
        self.cache.is_some()
    }

    /// What the cache holds that the members don't have yet, of all that it may hold.
    pub fn cache_fill(&self) -> Option<Fill> {
        self.cache.as_ref().map(|cache| Fill { used: cache.pinned(), limit: cache.limit() })
    }

    /// The cache, if there is one.
    pub fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }

    /// One member's log, within this engine's part of it; none without a log, or where the member was missing from the
    /// start.
    pub fn log_fill_of(&self, member: MemberIndex) -> Option<Fill> {
        self.log.as_ref()?.fill_of(member)
    }

    /// Begins nothing more of its own accord: a scrub stops, and so does rebuilding until somebody wants something.
    /// What is under way still ends.
    pub fn wind_down(&mut self) {
        self.stop_scrub();
        self.rebuild.close();
    }

    /// The fullest member's log, within this engine's part of it.
    pub fn log_fill(&self) -> Option<Fill> {
        self.log.as_ref().and_then(|log| log.fill(self.record.missing()))
    }
}
