//! The write-back cache in the engine: what is taken in, when it is written out, and what waits for that.
//!
//! A job destages a run of adjacent parity stripes: it locks them, makes what is dirty fly, and runs one plan for all
//! of it.
//!
//! Destaging shares the members with the clients: a turn begins no more of it than [`QUANTUM`], and no more than
//! [`DESTAGES_MAX`] runs are under way.

use std::ops::Range;

use uraid_layout::{Bytes, Lba, Sectors, StripeId};

use super::job::{Job, JobId, Stage, Work};
use super::run::Step;
use super::{Engine, EngineError};
use crate::cache::{Cache, Cause, Mark};
use crate::disk::Disk;

/// What destaging begins in one turn: about as long as a batch of clients' commands takes.
pub(super) const QUANTUM: Sectors = Sectors((512 << 10) / 512);

/// Runs under way.
const DESTAGES_MAX: usize = 8;

impl<D: Disk, T> Engine<D, T> {
    /// Whether another turn has something to do though nothing completes: destaging or a scrub goes on.
    pub fn wants_turn(&self) -> bool {
        self.quantum.0 == 0 || self.scrubber.wants_turn(&self.geometry) || self.has_rebuild_left()
    }

    /// Whether replied-to content waits in memory.
    pub fn is_dirty(&self) -> bool {
        self.cache.as_ref().is_some_and(Cache::is_dirty)
    }

    /// Whether something is to be done as time passes: call [`Engine::tick`] then.
    pub fn wants_ticks(&self) -> bool {
        let is_background = self.scrubber.wants_ticks() || self.is_rebuild_waiting();
        self.is_dirty() || self.is_intent_settling() || is_background || self.is_patient()
    }

    /// Forgets clean content, so that its pool can lend `need` more to a request.
    pub fn reclaim(&mut self, need: Bytes) {
        if let Some(cache) = &mut self.cache {
            cache.reclaim(need);
        }
    }

    /// Notes that [`TICK`](crate::cache::TICK) has passed: what is old, or not disturbed by clients, is written out by
    /// the next turns, and what nobody writes any more is taken out of the write-intent bitmap; a scrub may read on,
    /// and what is overdue is given up.
    pub fn tick(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.tick();
        }
        self.tick_intent();
        self.scrubber.tick();
        self.tick_rebuild();
        self.tick_deadlines();
    }

    /// Takes a write into the cache as far as it goes, and returns what is to be written through: whole parity stripes,
    /// and what there is no room for.
    pub(super) fn write_back(&mut self, lba: Lba, len: Sectors, buf: &crate::buf::Buf) -> Range<Lba> {
        let (mut start, mut end) = (lba.0, lba.0 + len.0);
        let Some(cache) = self.cache.as_mut().filter(|_| self.writes_back) else { return Lba(start)..Lba(end) };
        let stripe = self.geometry.stripe_sectors().0;
        let (first, last) = (start.next_multiple_of(stripe), end / stripe * stripe);
        let mut take = |from: u64, to: u64| {
            let byte =
                |at: u64| usize::try_from(Sectors(at - lba.0).bytes().0).expect("a buffer fits the address space");
            from < to && cache.write(Lba(from), buf, byte(from)..byte(to))
        };
        if first >= last {
            return if take(start, end) { lba..lba } else { Lba(start)..Lba(end) };
        }
        if take(start, first) {
            start = first;
        }
        if take(last, end) {
            end = last;
        }
        Lba(start)..Lba(end)
    }

    /// Begins to write out what the cache wants written, within the turn's quantum.
    pub(super) fn destage(&mut self) {
        if self.barrier.is_some() {
            return;
        }
        let stripe = self.geometry.stripe_sectors().0;
        let capacity = self.geometry.capacity().0;
        while self.destaging < DESTAGES_MAX && self.quantum.0 > 0 {
            let Some((stripes, dirty)) = self.cache.as_mut().and_then(Cache::next_run) else { return };
            self.quantum.0 = self.quantum.0.saturating_sub(dirty.0);
            self.destaging += 1;
            let range = Lba(stripes.start * stripe)..Lba((stripes.end * stripe).min(capacity));
            self.start(Job::new(None, Work::Destage, range));
        }
    }

    /// Ends what a job made fly, and wakes the flushes that waited for it. False: nothing flew.
    pub(super) fn settle(&mut self, id: JobId, error: Option<&EngineError>) -> bool {
        let Self { cache, geometry, jobs, .. } = self;
        let Some(cache) = cache else { return false };
        let contents = &mut jobs.slot(id).contents;
        if let Some(error) = error {
            cache.blame(contents, cause(error));
        }
        let has_flown = cache.settle(geometry, contents, error.is_none());
        self.wake_drained();
        has_flown
    }

    pub(super) fn wake_drained(&mut self) {
        let Self { cache, drainers, ready, .. } = self;
        let Some(cache) = cache else { return };
        drainers.retain(|&(id, mark)| {
            let is_drained = cache.is_drained(mark);
            if is_drained {
                ready.push_back(id);
            }
            !is_drained
        });
    }

    /// Ends a destaging job; what it made fly is dirty again where it failed, and was told of.
    pub(super) fn destaged(&mut self, id: JobId, has_flown: bool, error: Option<EngineError>) {
        self.destaging -= 1;
        let Some(error) = error else { return self.wake_drained() };
        let job = self.jobs.job(id);
        let stripe = self.geometry.stripe_sectors().0;
        let stripes = job.at.0 / stripe..job.end.0.div_ceil(stripe);
        if let Some(cache) = self.cache.as_mut().filter(|_| !has_flown) {
            cache.abandon(stripes.clone());
        }
        self.wake_drained();
        tracing::error!(first = %StripeId(stripes.start), %error, "parity stripes could not be written; they stay in \
            memory");
    }

    /// Asks that everything that was replied to be written out, before a flush.
    pub(super) fn drain(&mut self, id: JobId) -> Step {
        if self.jobs.job(id).work == Work::Close {
            self.rebuild.close();
        }
        if self.jobs.job(id).work == Work::Close && self.awaits_rest(id) {
            return Step::Wait(Stage::Drain);
        }
        if self.jobs.job(id).work == Work::Close && self.placing.0 > 0 && !planted!(CleanDuringWrites) {
            self.closers.push(id);
            return Step::Wait(Stage::Drain);
        }
        match &mut self.cache {
            _ if planted!(FlushUndrained) => Step::To(Stage::Flush),
            None => Step::To(Stage::Flush),
            Some(cache) => Step::To(Stage::Draining(cache.drain())),
        }
    }

    /// Waits until it is.
    pub(super) fn drained(&mut self, id: JobId, mark: Mark) -> Step {
        let Some(cache) = &mut self.cache else { return Step::To(Stage::Flush) };
        if self.is_frozen {
            return Step::Fail(EngineError::Frozen);
        }
        // To mark the members clean, what is durable in the log has to be in place, too.
        let is_under_way = self.destaging > 0 && self.jobs.job(id).work == Work::Close && !planted!(CleanDuringWrites);
        if !cache.is_drained(mark) || is_under_way {
            self.drainers.push((id, mark));
            return Step::Wait(Stage::Draining(mark));
        }
        match cache.unwritten().filter(|_| cache.is_stuck()) {
            Some(unwritten) => Step::Fail(EngineError::NotDestaged { unwritten: Box::new(unwritten) }),
            None => Step::To(Stage::Flush),
        }
    }
}

/// Who is to blame for an error.
fn cause(error: &EngineError) -> Cause {
    match error {
        &EngineError::Unreadable { members, .. } => Cause { unreadable: members, ..Cause::default() },
        &EngineError::WriteFailed { members }
        | &EngineError::FlushFailed { members }
        | &EngineError::LogFailed { members } => Cause { unwritable: members, ..Cause::default() },
        _ => Cause::default(),
    }
}
