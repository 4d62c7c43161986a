//! Going over the parity stripes of an array in their order, several at a time, and how far that has come: up to its *watermark* all is done.
//!
//! What can't be done stops it, and is tried again after a while. It knows neither what is done nor by whom.

use uraid_layout::StripeId;

/// Ticks after which a stripe that could not be done is tried again.
const RETRY_TICKS: u32 = 100;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// The next stripe to begin.
    next: StripeId,
    /// The watermark.
    done: StripeId,
    /// What is done beyond it.
    finished: Vec<StripeId>,
    /// What could not be done, and the ticks until it is tried again.
    stuck: Vec<StripeId>,
    retry: u32,
}

impl Sweep {
    /// Begins at a stripe.
    pub(super) fn restart(&mut self, start: StripeId) {
        *self = Self { next: start, done: start, ..Self::default() };
    }

    /// The watermark.
    pub(super) fn done(&self) -> StripeId {
        self.done
    }

    /// The first stripe that could not be done.
    pub(super) fn stuck(&self) -> Option<StripeId> {
        self.stuck.iter().min().copied()
    }

    /// Tries nothing again.
    pub(super) fn forget_stuck(&mut self) {
        self.stuck.clear();
    }

    /// Notes that time has passed.
    pub(super) fn tick(&mut self) {
        self.retry = self.retry.saturating_sub(1);
    }

    /// The next stripe to begin before `end`, if any is left and none has to be tried again first. `wanted` is the first stripe from one on that is to be done
    /// at all.
    pub(super) fn begin(&mut self, end: StripeId, wanted: impl Fn(StripeId) -> StripeId) -> Option<StripeId> {
        if !self.stuck.is_empty() {
            return if self.retry == 0 { self.stuck.pop() } else { None };
        }
        self.next = wanted(self.next);
        self.advance(wanted);
        let stripe = self.next;
        self.next.0 += u64::from(stripe < end);
        (stripe < end).then_some(stripe)
    }

    /// Notes that a stripe is done.
    pub(super) fn finish(&mut self, stripe: StripeId, wanted: impl Fn(StripeId) -> StripeId) {
        self.finished.push(stripe);
        self.advance(wanted);
    }

    /// Notes that a stripe could not be done.
    pub(super) fn fail(&mut self, stripe: StripeId) {
        self.stuck.push(stripe);
        self.retry = RETRY_TICKS;
    }

    /// Moves the watermark over what is done.
    fn advance(&mut self, wanted: impl Fn(StripeId) -> StripeId) {
        loop {
            self.done = wanted(self.done);
            let Some(place) = self.finished.iter().position(|&stripe| stripe == self.done) else { return };
            self.finished.swap_remove(place);
            self.done.0 += 1;
        }
    }
}
