//! What administrators change while the array is served: limits, the cache's mode, scrubs.

use uraid_io::engine::{CacheMode, EngineError};
use uraid_io::format::superblock::{ScrubHistory, ScrubRun};
use uraid_layout::{Bytes, Geometry};

use super::Reactor;
use crate::disk::LiveDisk;
use crate::patience::Patience;

impl<D: LiveDisk> Reactor<D> {
    /// Changes when new writes are acknowledged. Returns false if there is no cache.
    pub(crate) fn set_cache_mode(&self, mode: CacheMode) -> bool {
        self.engine.borrow_mut().set_cache_mode(mode)
    }

    /// The members' deadlines and error limit.
    pub(crate) fn patience(&self) -> Patience {
        let engine = self.engine.borrow();
        Patience { deadlines: engine.deadlines(), max_errors: engine.max_errors() }
    }

    /// Changes the members' deadlines and error limit from now on.
    pub(crate) fn set_patience(&self, Patience { deadlines, max_errors }: Patience) {
        let mut engine = self.engine.borrow_mut();
        engine.set_deadlines(deadlines);
        engine.set_max_errors(max_errors);
    }

    /// Starts or resumes a scrub.
    ///
    /// # Errors
    /// As [`uraid_io::engine::Engine::start_scrub`].
    pub(crate) fn start_scrub(&self, run: ScrubRun) -> Result<(), EngineError> {
        self.engine.borrow_mut().resume_scrub(run)?;
        self.turn();
        Ok(())
    }

    /// Stops a scrub.
    pub(crate) fn stop_scrub(&self) {
        self.engine.borrow_mut().stop_scrub();
        self.turn();
    }

    /// Limits the rate at which scrubs read each member, in bytes per second.
    pub(crate) fn set_scrub_limit(&self, limit: Option<Bytes>) {
        self.engine.borrow_mut().set_scrub_limit(limit);
        self.turn();
    }

    /// The record of scrubs, on the members or about to be written to them.
    pub(crate) fn scrub_record(&self) -> ScrubHistory {
        self.engine.borrow().scrub_record()
    }

    /// Records the state of scrubs, at once or with the next record.
    pub(crate) fn keep_scrub(&self, record: ScrubHistory, at_once: bool) {
        self.engine.borrow_mut().keep_scrub(record, at_once);
        self.turn();
    }

    /// Whether every member is present and complete.
    pub(crate) fn is_whole(&self) -> bool {
        let engine = self.engine.borrow();
        engine.missing().is_empty() && engine.rebuilding().is_none() && !engine.is_frozen()
    }

    /// The array's geometry.
    pub(crate) fn geometry(&self) -> Geometry {
        self.engine.borrow().geometry().clone()
    }

    /// Limits the rebuild rate of each member, in bytes per second.
    pub(crate) fn set_rebuild_limit(&self, limit: Option<Bytes>) {
        self.engine.borrow_mut().set_rebuild_limit(limit);
        self.turn();
    }
}
