//! What to write out next.
//!
//! - A parity stripe whose data is all dirty goes first and at once: it costs no read.
//! - Others wait, for they may become whole: until the cache fills beyond a high watermark (then the oldest go until it
//!   is below the low one), until they are old, until the clients are idle, or until a flush. What the journal has does
//!   not grow old: it is durable.
//! - The oldest go together, in the order of addresses, and adjacent ones as one run: adjacent stripes become one
//!   operation on each member.
//! - When a write finds no room it is written through. It does not wait for what is dirty.
//! - A stripe that can't be written stays dirty and visible. It is tried again once, alone and column by column:
//!   another stripe of its run may have been the reason, or members that failed in different columns, of which each
//!   can be done without. Columns that fail wait for the next flush, which tries again and tells the failure.
//!
//! It is decided from the list of dirty stripes and from what is noted in them: [`Policy`] knows no page and no memory.
//! Time is counted in ticks that the caller makes; see [`TICK`].

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use uraid_layout::{Sectors, StripeId};

use super::shape::Shape;
use super::stripes::{Alone, Slot, Stripe, Stripes};
use super::unwritten::{Cause, Parts};

/// The time between two ticks.
pub const TICK: Duration = Duration::from_millis(100);

/// How many runs are written out at a time.
pub const DESTAGES_MAX: usize = 32;

/// Ticks after which a dirty stripe is old, or with a journal one with content that is not there.
pub(super) const OLD_TICKS: u64 = 50;

/// Shares of the cache's pages, in sixteenths, at which destaging begins, at which it ends, and at which writes are
/// written through.
const HIGH: usize = 11;
const LOW: usize = 8;
const FULL: usize = 14;

/// Ticks after which flushes don't wait any more for what flies, but put it into the journal.
const OVERDUE_TICKS: u64 = 2;

/// Stripes that are put into the order of addresses at a time.
const BATCH_MAX: usize = 512;

/// Sectors of one run, where it has more than one stripe.
const RUN_SECTORS_MAX: u64 = (2 << 20) / 512;

/// Since when a stripe that failed is dirty. It is older than every mark: flushes that wait already wait for it, too.
pub(super) const UNLISTED: u64 = 0;

/// A point in the cache's history: what was dirty before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(pub(super) u64);

/// Content that was dirty, and flies.
#[derive(Debug)]
pub(super) struct Flying {
    number: FlightNumber,
    /// Since when it was dirty.
    since: u64,
    /// On which tick it took off.
    tick: u64,
    /// The parity stripes that have it.
    pub(super) stripes: Range<u64>,
}

/// Tells flights apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlightNumber(u64);

#[derive(Debug)]
pub(super) struct Policy {
    pages: usize,
    /// Counts stripes that became dirty.
    sequence: u64,
    ticks: u64,
    /// Stripes that became whole.
    whole: VecDeque<StripeId>,
    /// The oldest stripes, descending: the next is the last.
    batch: Vec<StripeId>,
    /// Whether a journal says which stripes are old, and those of which it did.
    has_journal: bool,
    old: Vec<StripeId>,
    /// The flights that flushes wait for, and how many there ever were.
    flights: Vec<Flying>,
    flown: u64,
    /// Stripes whose destaging failed.
    stuck: Vec<StripeId>,
    pub(super) unwritten: Parts,
    /// Everything that was dirty before is to be written.
    drain: Option<Mark>,
    /// The parity stripes that one run may have.
    run_max: u64,
    is_above_low: bool,
    is_idle: bool,
    is_stalled: bool,
    was_busy: bool,
    /// How far the journal has come: what is left of stripes for it may not be by then.
    journal: u64,
}

impl Policy {
    pub(super) fn new(pages: usize) -> Self {
        Self {
            pages,
            sequence: UNLISTED + 1,
            ticks: 0,
            whole: VecDeque::new(),
            batch: Vec::new(),
            has_journal: false,
            old: Vec::new(),
            flights: Vec::new(),
            flown: 0,
            stuck: Vec::new(),
            unwritten: Parts::default(),
            drain: None,
            run_max: u64::MAX,
            is_above_low: false,
            is_idle: false,
            is_stalled: false,
            was_busy: false,
            journal: 0,
        }
    }

    /// Takes the size of another policy.
    pub(super) fn set_pages(&mut self, other: &Self) {
        self.pages = other.pages;
    }

    pub(super) fn has_room(&self, pinned: usize, more: usize) -> bool {
        pinned.saturating_add(more) <= self.pages / 16 * FULL
    }

    /// Notes that a stripe of which `before` sectors were dirty has new dirty content.
    pub(super) fn touched(&mut self, stripes: &mut Stripes, slot: Slot, before: u64, shape: &Shape) {
        let stripe = stripes.get(slot);
        let whole = shape.sectors_of(stripe.id);
        if before < whole && stripe.dirty == whole && !stripe.is_scheduled {
            self.whole.push_back(stripe.id);
        }
        if stripe.is_stuck {
            self.unwritten.resize(stripe.id, stripe.dirty);
        } else if stripe.since.is_none() {
            stripes.enlist(slot, self.sequence, self.ticks);
            self.sequence += 1;
        }
    }

    /// Notes that other content is about to be written in place of some or all of what was dirty of a stripe.
    pub(super) fn replaced(&mut self, stripes: &mut Stripes, slot: Slot) {
        let stripe = stripes.at(slot);
        if stripe.is_stuck {
            self.unwritten.resize(stripe.id, stripe.dirty);
        }
        if stripe.dirty == 0 {
            stripes.delist(slot);
            let stripe = stripes.get(slot);
            (stripe.is_stuck, stripe.alone) = (false, None);
        }
    }

    /// Notes that what of these stripes is dirty since then flies, if any was.
    pub(super) fn took_off(&mut self, since: Option<u64>, stripes: Range<u64>) -> Option<FlightNumber> {
        let since = since?;
        self.flown += 1;
        let number = FlightNumber(self.flown);
        self.flights.push(Flying { number, since, tick: self.ticks, stripes });
        Some(number)
    }

    /// Notes that it flies no more, or that flushes need not wait for it.
    pub(super) fn landed(&mut self, number: Option<FlightNumber>) {
        if let Some(number) = number {
            let index = self.flights.iter().position(|flight| flight.number == number).expect("what lands took off");
            self.flights.swap_remove(index);
        }
    }

    /// Notes that what is dirty of a stripe, or of a column of it, could not be written, for the second time or not.
    pub(super) fn failed(&mut self, stripes: &mut Stripes, slot: Slot, is_second: bool) {
        if stripes.at(slot).dirty == 0 {
            return;
        }
        // What was left for the journal is not all of it any more.
        stripes.get(slot).left = None;
        if !is_second && !stripes.at(slot).is_stuck {
            stripes.delist(slot);
            stripes.enlist_first(slot, UNLISTED, self.ticks);
            (stripes.get(slot).alone, stripes.get(slot).cause) = (Some(Alone::default()), Cause::default());
            return;
        }
        match &mut stripes.get(slot).alone {
            // Its other columns are still to be tried.
            Some(alone) => alone.has_failed = true,
            None => self.stick(stripes, slot),
        }
    }

    /// Leaves what is dirty of a stripe to the next flush.
    pub(super) fn stick(&mut self, stripes: &mut Stripes, slot: Slot) {
        stripes.delist(slot);
        let stripe = stripes.get(slot);
        stripe.alone = None;
        if !std::mem::replace(&mut stripe.is_stuck, true) {
            self.stuck.push(stripe.id);
        }
        if !planted!(UnwrittenUntold) {
            self.unwritten.note(stripe.id, stripe.dirty, stripe.cause);
        }
    }

    /// Notes that a stripe was written: what could not be is forgotten, unless some of it is still to be.
    pub(super) fn written(&mut self, stripes: &Stripes, id: StripeId) {
        match stripes.find(id).map(|slot| stripes.at(slot)) {
            Some(left) if left.is_stuck => self.unwritten.resize(id, left.dirty),
            // Others of its columns are still to be tried.
            Some(left) if left.alone.is_some() => {}
            _ => self.unwritten.forget(id),
        }
    }

    /// Whether there is content that the members are still to be written, other than what can't be.
    pub(super) fn is_dirty(&self, stripes: &Stripes) -> bool {
        stripes.dirty().next().is_some() || !self.flights.is_empty()
    }

    /// Sets how many parity stripes one run may have.
    pub(super) fn limit_runs(&mut self, stripes: u64) {
        self.run_max = stripes;
    }

    /// Notes that a client wants something.
    pub(super) fn note_activity(&mut self) {
        self.was_busy = true;
        self.is_idle = false;
    }

    /// Notes that the journal has come further.
    pub(super) fn note_journal(&mut self) {
        self.journal += 1;
    }

    /// From now on a journal says which stripes [are old](Policy::note_old).
    pub(super) fn follow_journal(&mut self) {
        self.has_journal = true;
    }

    /// Notes that a stripe has had content for long that is not in the journal.
    pub(super) fn note_old(&mut self, stripes: &mut Stripes, slot: Slot) {
        let stripe = stripes.get(slot);
        if !std::mem::replace(&mut stripe.is_old, true) {
            self.old.push(stripe.id);
        }
    }

    /// Notes that [`TICK`] has passed.
    pub(super) fn tick(&mut self) {
        self.ticks += 1;
        self.is_idle = !std::mem::take(&mut self.was_busy);
        let is_overdue = |flight: &Flying| self.ticks - flight.tick > OVERDUE_TICKS && !planted!(FlightsAwaited);
        self.is_stalled = self.flights.iter().any(is_overdue);
    }

    /// Wants everything that is dirty now, and stripes that failed once more.
    pub(super) fn drain(&mut self, stripes: &mut Stripes) -> Mark {
        // What has failed of a stripe that goes out by columns, too: such stripes are the first.
        let first = stripes.dirty().take_while(|stripe| stripe.since == Some(UNLISTED));
        let failed = first.filter(|stripe| stripe.alone.is_some_and(|alone| alone.has_failed));
        for id in failed.map(|stripe| stripe.id).collect::<Vec<_>>() {
            let slot = stripes.find(id).expect("it is in the list");
            (stripes.get(slot).alone, stripes.get(slot).cause) = (Some(Alone::default()), Cause::default());
            stripes.get(slot).left = None;
        }
        for id in std::mem::take(&mut self.stuck) {
            let Some(slot) = stripes.find(id).filter(|&slot| stripes.at(slot).is_stuck) else { continue };
            (stripes.get(slot).is_stuck, stripes.get(slot).cause) = (false, Cause::default());
            stripes.get(slot).left = None;
            if stripes.at(slot).dirty > 0 && stripes.at(slot).since.is_none() {
                stripes.enlist_first(slot, UNLISTED, self.ticks);
                stripes.get(slot).alone = Some(Alone::default());
            }
        }
        self.hurry()
    }

    /// Wants everything that is dirty now, but what failed.
    pub(super) fn hurry(&mut self) -> Mark {
        let mark = self.mark();
        self.drain = Some(mark);
        mark
    }

    /// A mark of now.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.sequence)
    }

    /// Whether anything flies that was dirty before the mark.
    pub(super) fn flies_before(&self, mark: Mark) -> bool {
        self.flying_before(mark).next().is_some()
    }

    /// The flights of what was dirty before the mark.
    pub(super) fn flying_before(&self, mark: Mark) -> impl Iterator<Item = &Flying> {
        self.flights.iter().filter(move |flight| flight.since < mark.0)
    }

    /// Whether something flew for so long at the last tick that flushes wait for nothing that does.
    pub(super) fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// Notes that something of a stripe waits for the journal, which is in the list again.
    pub(super) fn leave(&mut self, stripes: &mut Stripes, slot: Slot) {
        stripes.get(slot).left = Some(self.journal);
        stripes.enlist_first(slot, UNLISTED, self.ticks);
    }

    /// Whether everything that was dirty before the mark is written, or stuck.
    pub(super) fn is_drained(&self, stripes: &Stripes, mark: Mark) -> bool {
        let oldest = stripes.dirty().next().and_then(|stripe| stripe.since);
        oldest.into_iter().chain(self.flights.iter().map(|flight| flight.since)).all(|since| since >= mark.0)
    }

    /// Whether all that was dirty before the mark waits for the journal, and that for what could not be written.
    pub(super) fn is_blocked(&self, stripes: &Stripes, mark: Mark) -> bool {
        let mut older = stripes.dirty().take_while(|stripe| stripe.since.is_some_and(|since| since < mark.0));
        self.is_stuck(stripes) && !self.flies_before(mark) && older.all(|stripe| stripe.left == Some(self.journal))
    }

    /// Whether there is content that could not be written.
    pub(super) fn is_stuck(&self, stripes: &Stripes) -> bool {
        let is_stuck = |&id: &StripeId| stripes.find(id).is_some_and(|slot| stripes.at(slot).is_stuck);
        self.stuck.iter().any(is_stuck)
    }

    /// The next run of adjacent parity stripes to write out, and how much it is; `pinned` pages can't be forgotten.
    pub(super) fn next_run(
        &mut self,
        stripes: &mut Stripes,
        shape: &Shape,
        pinned: usize,
    ) -> Option<(Range<u64>, Sectors)> {
        self.next_whole(stripes, shape).or_else(|| self.next_partial(stripes, pinned))
    }

    /// Takes a run back that was not taken and will not be, as one that failed.
    pub(super) fn abandon(&mut self, stripes: &mut Stripes, run: Range<u64>) {
        for id in run {
            if let Some(slot) = stripes.find(StripeId(id)).filter(|&slot| stripes.at(slot).is_scheduled) {
                stripes.get(slot).is_scheduled = false;
                if stripes.at(slot).alone.is_some() {
                    self.stick(stripes, slot);
                } else {
                    self.failed(stripes, slot, false);
                }
            }
        }
    }

    fn next_whole(&mut self, stripes: &mut Stripes, shape: &Shape) -> Option<(Range<u64>, Sectors)> {
        loop {
            let StripeId(first) = self.whole.pop_front()?;
            let mut end = first;
            let is_short = |count: u64| count * shape.stripe_sectors < RUN_SECTORS_MAX && count < self.run_max;
            while end == first || is_short(end - first) {
                let Some(slot) = stripes.find(StripeId(end)) else { break };
                let whole = shape.sectors_of(StripeId(end));
                let stripe = stripes.get(slot);
                if stripe.dirty < whole
                    || stripe.is_scheduled
                    || stripe.is_stuck
                    || stripe.alone.is_some() && end > first
                {
                    break;
                }
                stripe.is_scheduled = true;
                end += 1;
                if stripe.alone.is_some() {
                    break;
                }
            }
            if end > first {
                return Some((first..end, Sectors((end - first) * shape.stripe_sectors)));
            }
        }
    }

    fn next_partial(&mut self, stripes: &mut Stripes, pinned: usize) -> Option<(Range<u64>, Sectors)> {
        self.is_above_low = pinned > self.pages / 16 * if self.is_above_low { LOW } else { HIGH };
        loop {
            if self.batch.is_empty() && !self.refill(stripes) {
                return None;
            }
            let first = self.batch.pop().expect("the batch was filled").0;
            let Some(dirty) = self.schedule(stripes, first, 0) else { continue };
            let (mut end, mut sectors) = (first + 1, dirty);
            let is_alone = stripes.find(StripeId(first)).is_some_and(|slot| stripes.at(slot).alone.is_some());
            while self.batch.last() == Some(&StripeId(end)) && !is_alone && end - first < self.run_max {
                let Some(dirty) = self.schedule(stripes, end, sectors) else { break };
                self.batch.pop();
                sectors += dirty;
                end += 1;
            }
            return Some((first..end, Sectors(sectors)));
        }
    }

    /// Marks a stripe as picked, if it is still to be, and if it fits a run that has `sectors`: how much of it is
    /// dirty.
    fn schedule(&self, stripes: &mut Stripes, id: u64, sectors: u64) -> Option<u64> {
        let slot = stripes.find(StripeId(id))?;
        let stripe = stripes.get(slot);
        stripe.since.filter(|_| !stripe.is_scheduled)?;
        let fits = sectors == 0 || (sectors + stripe.dirty <= RUN_SECTORS_MAX && stripe.alone.is_none());
        if !fits || stripe.left == Some(self.journal) || !self.is_wanted(stripe) {
            return None;
        }
        stripe.is_scheduled = true;
        Some(stripe.dirty)
    }

    /// Takes the oldest stripes that are wanted, in descending order; whether there are any.
    fn refill(&mut self, stripes: &Stripes) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        batch.append(&mut self.old);
        let oldest = stripes.dirty().take_while(|stripe| self.is_wanted(stripe));
        // Those that were picked already and wait for their lock stay at the front for a while.
        let is_next = |stripe: &&Stripe| !stripe.is_scheduled && stripe.left != Some(self.journal);
        batch.extend(oldest.filter(is_next).map(|stripe| stripe.id).take(BATCH_MAX));
        batch.sort_unstable_by_key(|&id| std::cmp::Reverse(id));
        self.batch = batch;
        !self.batch.is_empty()
    }

    fn is_wanted(&self, stripe: &Stripe) -> bool {
        let is_old = stripe.is_old || !self.has_journal && self.ticks - stripe.tick >= OLD_TICKS;
        let is_drained = self.drain.zip(stripe.since).is_some_and(|(mark, since)| since < mark.0);
        self.is_above_low || self.is_idle || is_old || is_drained
    }
}

#[cfg(test)]
impl Policy {
    /// Asserts that a stripe that waits for something will be found.
    pub(super) fn assert_known(&self, stripe: &Stripe, whole: u64) {
        let is_whole = stripe.dirty == whole && !stripe.is_scheduled && !stripe.is_stuck && stripe.alone.is_none();
        assert!(!is_whole || self.whole.contains(&stripe.id), "a whole stripe goes first: {stripe:?}");
        assert!(!stripe.is_stuck || self.stuck.contains(&stripe.id), "a stuck stripe is tried again: {stripe:?}");
        self.unwritten.assert_known(stripe);
    }
}
