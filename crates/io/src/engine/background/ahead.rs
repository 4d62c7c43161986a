//! Read-ahead: what a stream of reads will want next is read while the client is still at work on what it has.
//!
//! A prefetch is work that nobody waits for by name: it reads units from the members as they are, never under a lock
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

use std::cell::RefCell;
use std::ops::Range;

use uraid_layout::{Bytes, Lba, Sectors};

use crate::buf::Buf;
use crate::engine::error::EngineError;
use crate::engine::locks::Stamp;
use crate::engine::parts::Parts;
use crate::engine::tasks::TaskId;
use crate::engine::transfer::reading::{Attempt, attempt};
use crate::engine::transfer::{Goal, PART, Transfer, Workspace};
use streams::Streams;

/// Prefetches in flight: one for each stream that there can be.
const FLIGHTS_MAX: usize = 16;

/// A window is at most the cache's size divided by this.
const SHARE: u64 = 64;

/// The largest window that can be asked for: one plan's worth.
const WINDOW_MAX: Bytes = PART.bytes();

/// Read-ahead, if there is any.
#[derive(Debug, Default)]
pub(in crate::engine) struct Ahead(RefCell<Option<State>>);

/// The streams, and what is being read for them.
#[derive(Debug)]
struct State {
    streams: Streams,
    flights: Vec<Flight>,
    /// Empty lists, to be used again.
    spare: Vec<Vec<TaskId>>,
}

#[derive(Debug)]
struct Flight {
    range: Range<u64>,
    /// When it began.
    since: Stamp,
    /// Reads that want a part of it.
    waiters: Vec<TaskId>,
}

/// Something to read ahead: from where on, and to what memory.
#[derive(Debug)]
pub(in crate::engine) struct Prefetch {
    start: Lba,
    buf: Buf,
}

impl Ahead {
    /// Begins to read ahead, up to `largest` for each stream of reads and a share of the cache.
    ///
    /// # Panics
    /// When there is no cache.
    pub(in crate::engine) fn install(&self, parts: &Parts, largest: Bytes) {
        let cache = parts.writeback.cache().expect("what is read ahead has a cache to go to");
        let largest = Bytes(largest.0.min(WINDOW_MAX.0).min(cache.limit().0 / SHARE));
        let streams = Streams::new(parts.geometry().capacity(), largest.whole_sectors());
        let state = State { streams, flights: Vec::new(), spare: Vec::new() };
        *self.0.borrow_mut() = (largest.0 >= 4096).then_some(state);
    }

    /// Takes note of a client's read: what should be read ahead of it.
    pub(in crate::engine) fn note_read(&self, parts: &Parts, lba: Lba, len: Sectors) -> Option<Prefetch> {
        let state = &mut *self.0.borrow_mut();
        // Between two shapes nothing is: what is ahead may be in the other one.
        let state = state.as_mut().filter(|_| parts.members.between().is_none())?;
        let advice = state.streams.read(lba, len);
        parts.writeback.with(|cache| {
            cache.forget_ahead(&advice.forget);
            let range = state.outside_flights(advice.ask?)?;
            if parts.blanks.touches(parts.geometry(), &(Lba(range.start)..Lba(range.end))) {
                return None;
            }
            let start = cache.first_absent(range.clone())?;
            let buf = cache.ahead_memory(Sectors(range.end - start.0))?;
            let waiters = state.spare.pop().unwrap_or_default();
            state.flights.push(Flight { range: start.0..range.end, since: parts.locks.now(), waiters });
            Some(Prefetch { start, buf })
        })?
    }

    /// Waits until nothing of a range is being read ahead.
    pub(in crate::engine) async fn wait(&self, parts: &Parts, range: Range<u64>) {
        while self.is_flying(&range, parts.tasks().current()) {
            parts.tasks().park().await;
        }
    }

    fn is_flying(&self, range: &Range<u64>, task: TaskId) -> bool {
        let state = &mut *self.0.borrow_mut();
        let flights = state.iter_mut().flat_map(|state| &mut state.flights);
        let mut over = flights.filter(|flight| flight.range.start < range.end && range.start < flight.range.end);
        let Some(flight) = over.next() else { return false };
        flight.waiters.push(task);
        true
    }

    /// Gives up what was read ahead for a read that is done: its client has it.
    pub(in crate::engine) fn consume(&self, parts: &Parts, lba: Lba, len: Sectors) {
        if self.0.borrow().is_some() {
            let _ = parts.writeback.with(|cache| cache.consume_ahead(lba, len));
        }
    }

    /// Reads ahead. What is read, and nobody may have changed since, goes into the cache.
    pub(in crate::engine) async fn prefetch(&self, parts: &Parts, space: &mut Workspace, prefetch: Prefetch) {
        let Prefetch { start, buf } = prefetch;
        let len = Bytes(buf.len() as u64).whole_sectors();
        let mut transfer = Transfer::new(parts, space, Goal::Ahead, Some(buf));
        transfer.begin(start, len, Sectors(0));
        let result = read(&mut transfer).await;
        transfer.let_go();
        let state = &mut *self.0.borrow_mut();
        let state = state.as_mut().expect("a prefetch is begun where there is read-ahead");
        let index = state.flights.iter().position(|flight| flight.range.start == start.0);
        let Flight { since, mut waiters, .. } = state.flights.swap_remove(index.expect("it is in flight"));
        match result {
            Err(error) => {
                transfer.give_up_on_damage();
                tracing::debug!(lba = %start, %error, "nothing was read ahead");
            }
            Ok(()) => {
                let buf = transfer.content.request.as_ref().expect("a prefetch has a buffer");
                let _ = parts.writeback.with(|cache| {
                    for extent in transfer.content.cached.extents() {
                        cache.put_ahead(extent, buf, |stripe| parts.locks.is_untouched(stripe, since));
                    }
                });
            }
        }
        waiters.drain(..).for_each(|task| parts.tasks().wake(task));
        state.spare.push(waiters);
    }
}

/// Reads what is not in memory, unless it had to be computed: then nothing is.
async fn read(transfer: &mut Transfer<'_>) -> Result<(), EngineError> {
    transfer.look_for_absent(transfer.at, transfer.len);
    loop {
        transfer.plan()?;
        if !transfer.plan.xors().is_empty() {
            transfer.content.cached.missing();
            return Ok(());
        }
        match attempt(transfer).await? {
            Attempt::Proven => return Ok(()),
            Attempt::Again => {}
            Attempt::Doubted => return Err(transfer.unreadable_error()),
        }
    }
}

impl State {
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
