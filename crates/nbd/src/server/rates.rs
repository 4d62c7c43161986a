//! How fast clients may go on: operations and bytes a second, of all connections to one export together.
//!
//! Each limit is a token bucket that holds what a second allows. Whoever begins a request takes its turn at once, even
//! if that is yet to come, and waits for it: turns come in the order in which they were taken, so nobody starves, and a
//! connection has one at a time. Of bytes a turn takes no more than a slice, and a large request takes several, so that
//! small ones of others get in between. (The generic cell rate algorithm of ITU-T I.371, without refusals.)
//!
//! A connection that waits does not read its socket, and holds no memory for what it waits with.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::Context,
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::Command;

/// What a bucket holds: so much of its rate.
const BURST: Duration = Duration::from_secs(1);

/// A turn's bytes are a 64th of what a second allows, and no less than this.
const SLICE_BYTES_MIN: u64 = 64 << 10;
const SLICES_PER_SECOND: u64 = 64;

/// How long a connection sleeps before it looks whether the limits have changed.
const LOOK: Duration = Duration::from_secs(1);

/// The limits on how fast clients go on, which may change at any time.
#[derive(Debug)]
pub struct Rates {
    /// Whether there is any limit: all that is looked at for a request while there is none.
    is_limited: AtomicBool,
    buckets: Mutex<Buckets>,
    delayed: AtomicU64,
    /// The clock's zero.
    zero: Instant,
}

/// What clients may do in a second; none: as much as they can.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Requests, but for flushes.
    pub operations_per_second: Option<u64>,
    /// Data of reads and writes.
    pub bytes_per_second: Option<u64>,
}

#[derive(Debug, Default)]
struct Buckets {
    limits: RateLimits,
    operations: Bucket,
    bytes: Bucket,
    /// How often the limits have changed.
    changes: u64,
}

#[derive(Debug, Default)]
struct Bucket {
    /// When the next turn is, in nanoseconds; in the past if there is something left in the bucket.
    next_ns: u64,
}

/// A turn that was taken.
#[derive(Debug, Clone, Copy)]
struct Turn {
    due: Instant,
    /// What it is for, and what the request has yet to take.
    operations: u64,
    bytes: u64,
    left_bytes: u64,
    changes: u64,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            is_limited: AtomicBool::new(false),
            buckets: Mutex::default(),
            delayed: AtomicU64::new(0),
            zero: Instant::now(),
        }
    }
}

impl Rates {
    /// These limits.
    #[must_use]
    pub fn new(limits: RateLimits) -> Self {
        let rates = Self::default();
        rates.set(limits);
        rates
    }

    /// The limits now.
    pub fn limits(&self) -> RateLimits {
        self.buckets().limits
    }

    /// Changes the limits, also for those who wait. A limit of zero is none.
    pub fn set(&self, limits: RateLimits) {
        self.set_at(limits, Instant::now());
    }

    fn set_at(&self, limits: RateLimits, now: Instant) {
        let now_ns = self.ns(now);
        let mut buckets = self.buckets();
        // Nobody is owed, nor owes, anything by the limits before.
        *buckets = Buckets {
            limits,
            operations: Bucket { next_ns: now_ns },
            bytes: Bucket { next_ns: now_ns },
            changes: buckets.changes + 1,
        };
        self.is_limited.store(limits != RateLimits::default(), Relaxed);
    }

    /// How many requests have waited because of the limits.
    pub fn delayed(&self) -> u64 {
        self.delayed.load(Relaxed)
    }

    fn buckets(&self) -> MutexGuard<'_, Buckets> {
        self.buckets.lock().expect("nobody panics with the buckets")
    }

    fn ns(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.zero).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Takes a turn for so many operations and, of so many bytes, as many as a turn has.
    fn take(&self, operations: u64, bytes: u64, now: Instant) -> Turn {
        let now_ns = self.ns(now);
        let mut buckets = self.buckets();
        let RateLimits { operations_per_second, bytes_per_second } = buckets.limits;
        let slice = bytes_per_second.map_or(bytes, |rate| bytes.min((rate / SLICES_PER_SECOND).max(SLICE_BYTES_MIN)));
        let due_ns = buckets.operations.take(operations, operations_per_second, now_ns);
        let due_ns = due_ns.max(buckets.bytes.take(slice, bytes_per_second, now_ns));
        let due = now + Duration::from_nanos(due_ns.saturating_sub(now_ns));
        Turn { due, operations, bytes: slice, left_bytes: bytes - slice, changes: buckets.changes }
    }

    /// Whether a turn is by the limits that hold.
    fn is_valid(&self, turn: &Turn) -> bool {
        self.buckets().changes == turn.changes
    }
}

impl Bucket {
    /// Takes so much out, and says when that will have been there.
    fn take(&mut self, amount: u64, per_second: Option<u64>, now_ns: u64) -> u64 {
        let Some(rate) = per_second.filter(|&rate| rate > 0 && amount > 0) else { return now_ns };
        let burst_ns = u64::try_from(BURST.as_nanos()).expect("a second is short");
        let due_ns = self.next_ns.max(now_ns.saturating_sub(burst_ns));
        let cost_ns = (u128::from(amount) * 1_000_000_000).div_ceil(u128::from(rate));
        self.next_ns = due_ns.saturating_add(u64::try_from(cost_ns).unwrap_or(u64::MAX));
        due_ns
    }
}

/// Has the requests of one connection wait for their turns.
#[derive(Debug)]
pub(super) struct Pacer {
    rates: Arc<Rates>,
    turn: Option<Turn>,
    /// Made when it is first needed.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Pacer {
    pub(super) fn new(rates: Arc<Rates>) -> Self {
        Self { rates, turn: None, alarm: None }
    }

    /// Whether the connection's next request may begin. If not, the task of `cx` is woken to ask again. Flushes never
    /// wait: whoever asks for one has waited with what it is about.
    pub(super) fn poll_begin(&mut self, command: &Command<()>, cx: &mut Context<'_>) -> bool {
        if !self.rates.is_limited.load(Relaxed) || matches!(command, Command::Flush) {
            self.turn = None;
            return true;
        }
        while let Some(at) = self.begin(command, Instant::now()) {
            let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(at)));
            alarm.as_mut().reset(at);
            if alarm.as_mut().poll(cx).is_pending() {
                return false;
            }
        }
        true
    }

    /// Takes turns for the connection's next request. If one is yet to come: when to ask again.
    fn begin(&mut self, command: &Command<()>, now: Instant) -> Option<Instant> {
        let mut turn = match self.turn.take() {
            Some(turn) if self.rates.is_valid(&turn) => turn,
            Some(turn) => self.rates.take(turn.operations, turn.bytes + turn.left_bytes, now),
            None => {
                let bytes = match command {
                    Command::Read { span, .. } | Command::Write { span, .. } => span.length_bytes,
                    _ => 0,
                };
                let turn = self.rates.take(1, bytes, now);
                if turn.due > now {
                    self.rates.delayed.fetch_add(1, Relaxed);
                }
                turn
            }
        };
        while turn.due <= now {
            if turn.left_bytes == 0 {
                return None;
            }
            turn = self.rates.take(0, turn.left_bytes, now);
        }
        self.turn = Some(turn);
        Some(turn.due.min(now + LOOK))
    }
}

#[cfg(test)]
mod tests;
