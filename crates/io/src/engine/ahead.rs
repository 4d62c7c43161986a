//! Read-ahead: what a stream of reads will want next is read while the client is still at work on what it has.
//!
//! A prefetch is a job that nobody waits for by name: it reads units from the members as they are, never under a lock
//! and never by way of parity, and what it read goes into the cache as clean pages. A client's read that wants a part
//! of it waits for it, and then finds it there or goes on by itself. Nothing is lost when a prefetch fails or is not
//! begun.
//!
//! Invariants:
//! - A page goes into the cache only if nobody held its stripe's lock from before the prefetch's reads until then:
//!   whoever changes a stripe on the members holds it.
//! - Prefetches in flight do not overlap. They wait for the members only, so whoever waits for them goes on.
//! - Streams have at most a quarter of the cache on the way, and half of it in all; see [`SHARE`].

mod streams;

use std::ops::Range;

use uraid_layout::{Bytes, Lba, Sectors};

use super::job::{Job, JobId, Slot, Stage, Work};
use super::locks::Stamp;
use super::run::Step;
use super::{Engine, EngineError};
use crate::disk::Disk;
use streams::Streams;

/// Prefetches in flight: one for each stream that there can be.
const FLIGHTS_MAX: usize = 16;

/// A window is at most the cache's size divided by this.
const SHARE: u64 = 64;

/// The largest window that can be asked for: one plan's worth.
const WINDOW_MAX: Bytes = super::PART.bytes();

/// The streams, and what is being read for them.
#[derive(Debug)]
pub(super) struct ReadAhead {
    streams: Streams,
    flights: Vec<Flight>,
    /// Empty lists, to be used again.
    spare: Vec<Vec<JobId>>,
}

#[derive(Debug)]
struct Flight {
    range: Range<u64>,
    /// When it began.
    since: Stamp,
    /// Reads that want a part of it.
    waiters: Vec<JobId>,
}

impl<D: Disk, T> Engine<D, T> {
    /// The engine with read-ahead into its cache, of up to `largest` for each stream of reads and a share of the cache.
    /// It pays where members are slower than memory: what was read ahead is copied once more.
    ///
    /// # Panics
    /// When the engine has no cache.
    #[must_use]
    pub fn with_read_ahead(mut self, largest: Bytes) -> Self {
        let cache = self.cache.as_ref().expect("what is read ahead has a cache to go to");
        let largest = Bytes(largest.0.min(WINDOW_MAX.0).min(cache.limit().0 / SHARE));
        let streams = Streams::new(self.geometry.capacity(), largest.whole_sectors());
        let ahead = ReadAhead { streams, flights: Vec::new(), spare: Vec::new() };
        self.ahead = (largest.0 >= 4096).then_some(ahead);
        self
    }

    /// Takes note of a client's read, and begins what should be read ahead of it.
    pub(super) fn read_ahead(&mut self, lba: Lba, len: Sectors) {
        let Self { ahead: Some(ahead), cache: Some(cache), locks, .. } = self else { return };
        let advice = ahead.streams.read(lba, len);
        cache.forget_ahead(&advice.forget);
        let Some(range) = advice.ask.and_then(|range| ahead.outside_flights(range)) else { return };
        let Some(start) = cache.first_absent(range.clone()) else { return };
        let Some(buf) = cache.ahead_memory(Sectors(range.end - start.0)) else { return };
        let waiters = ahead.spare.pop().unwrap_or_default();
        ahead.flights.push(Flight { range: start.0..range.end, since: locks.now(), waiters });
        self.start(Job { buf: Some(buf), ..Job::new(None, Work::Ahead, start..Lba(range.end)) });
    }

    /// Lets a read wait for what is being read ahead of it.
    pub(super) fn await_ahead(&mut self, id: JobId) -> Step {
        let job = self.jobs.job(id);
        let (start, end) = (job.at.0, job.at.0 + job.len.0);
        let flights = self.ahead.iter_mut().flat_map(|ahead| &mut ahead.flights);
        match flights.into_iter().find(|flight| flight.range.start < end && start < flight.range.end) {
            Some(flight) => {
                flight.waiters.push(id);
                Step::Wait(Stage::Await)
            }
            None => Step::To(Stage::PlanRead),
        }
    }

    /// Gives up what was read ahead for a read that is done: its client has it.
    pub(super) fn consume_ahead(&mut self, id: JobId) {
        let Self { ahead: Some(_), cache: Some(cache), jobs, .. } = self else { return };
        let job = jobs.job(id);
        cache.consume_ahead(job.at, job.len);
    }

    /// Ends a prefetch: what it read, and nobody may have changed since, goes into the cache.
    pub(super) fn ahead_done(&mut self, id: JobId, error: Option<EngineError>) {
        let Self { ahead: Some(ahead), cache: Some(cache), locks, jobs, ready, .. } = self else {
            unreachable!("a prefetch is begun where there is read-ahead")
        };
        let Slot { job, contents, .. } = jobs.slot(id);
        let job = job.as_mut().expect("the slot has a job");
        let index = ahead.flights.iter().position(|flight| flight.range.start == job.start.0);
        let Flight { since, mut waiters, .. } = ahead.flights.swap_remove(index.expect("it is in flight"));
        match error {
            Some(error) => tracing::debug!(lba = %job.start, %error, "nothing was read ahead"),
            None => {
                let buf = job.buf.as_ref().expect("a prefetch has a buffer");
                for extent in contents.extents() {
                    cache.put_ahead(extent, buf, |stripe| locks.is_untouched(stripe, since));
                }
            }
        }
        jobs.remove(id);
        ready.extend(waiters.drain(..));
        ahead.spare.push(waiters);
    }
}

impl ReadAhead {
    /// What of a window is to be read: none of it is in flight already.
    fn outside_flights(&self, mut range: Range<u64>) -> Option<Range<u64>> {
        while let Some(flight) = self.flights.iter().find(|flight| flight.range.contains(&range.start)) {
            range.start = flight.range.end;
        }
        let later = self.flights.iter().map(|flight| flight.range.start).filter(|&start| start > range.start);
        range.end = range.end.min(later.min().unwrap_or(u64::MAX));
        (range.start < range.end && self.flights.len() < FLIGHTS_MAX).then_some(range)
    }
}
