//! Going over the parity stripes of an array in their order, several at a time, and how far that has come: up to its
//! *watermark* all is done.
//!
//! What can't be done stops it, and is tried again after a while, or as soon as what could not be read is written. It
//! knows neither what is done nor by whom. Whoever says what is wanted never points back: the watermark only rises.

use std::ops::Range;

use uraid_layout::repair::Repair;
use uraid_layout::{Cell, DiskSector, Geometry, Lba, MemberIndex, MemberSet, Owner, Sectors, StripeId};

use super::scrub::location;

/// Ticks after which a stripe that could not be done is tried again.
const RETRY_TICKS: u32 = 100;

/// What could not be done of a parity stripe; it is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The parity stripe.
    pub stripe: StripeId,
    /// The first column that can't be had: the sector within each unit.
    pub start: Sectors,
    /// How many.
    pub len: Sectors,
    /// The members that can't be read there.
    pub unreadable: MemberSet,
}

impl Stuck {
    /// What can't be read, from where on in a member's data area.
    pub fn sectors<'a>(&'a self, geometry: &'a Geometry) -> impl Iterator<Item = (MemberIndex, DiskSector)> + 'a {
        let cells = self.cells(geometry).filter(|&cell| self.unreadable.contains(geometry.member(cell)));
        cells.map(|cell| location(geometry, self.stripe, cell, self.start)).map(|at| (at.member, at.sector))
    }

    /// The array's sectors that nobody has now, in order; none where it is parity. `lost` are the members that are
    /// missing or being rebuilt.
    pub fn lbas(&self, geometry: &Geometry, lost: MemberSet) -> Vec<Range<Lba>> {
        let without = lost.union(self.unreadable);
        let repair = Repair::partial(geometry, without);
        let is_lost = |cell| without.contains(geometry.member(cell)) && !repair.has(geometry, self.stripe, cell);
        let lba = |cell| match geometry.owner(location(geometry, self.stripe, cell, self.start)) {
            Some(Owner::Data(lba)) => Some(lba..Lba(lba.0 + self.len.0)),
            _ => None,
        };
        let mut lbas: Vec<Range<Lba>> = self.cells(geometry).filter(|&cell| is_lost(cell)).filter_map(lba).collect();
        lbas.sort_by_key(|lbas| lbas.start);
        lbas
    }

    /// Whether members' sectors that can't be read are among these.
    pub(super) fn is_in(&self, geometry: &Geometry, member: MemberIndex, sectors: &Range<DiskSector>) -> bool {
        let covers = |at: DiskSector| at.0 < sectors.end.0 && sectors.start.0 < at.0 + self.len.0;
        self.unreadable.contains(member) && self.sectors(geometry).any(|(of, at)| of == member && covers(at))
    }

    /// All of the array's sectors in the stripe: whoever writes all of them at once reads nothing of it.
    pub fn stripe_lbas(&self, geometry: &Geometry) -> Range<Lba> {
        let (sectors, capacity) = (geometry.stripe_sectors().0, geometry.capacity().0);
        let start = self.stripe.0.saturating_mul(sectors);
        Lba(start.min(capacity))..Lba(start.saturating_add(sectors).min(capacity))
    }

    fn cells(self, geometry: &Geometry) -> impl Iterator<Item = Cell> + use<> {
        (0_u16..).map(Cell).take(geometry.map(self.stripe).cells())
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// The next stripe to begin.
    next: StripeId,
    /// The watermark.
    done: StripeId,
    /// What is done beyond it.
    finished: Vec<StripeId>,
    /// What could not be done, and the ticks until it is tried again; and what is being tried again.
    stuck: Vec<Stuck>,
    retry: u32,
    tried: Vec<Stuck>,
    /// What could not be read there is being written: they are tried again at once.
    mended: Vec<StripeId>,
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
    pub(super) fn stuck(&self) -> Option<Stuck> {
        self.stuck.iter().chain(&self.tried).min_by_key(|stuck| stuck.stripe).copied()
    }

    /// Tries nothing again.
    pub(super) fn forget_stuck(&mut self) {
        self.stuck.clear();
        self.tried.clear();
        self.mended.clear();
    }

    /// Notes that what could not be read is being written, under the stripe's lock: nothing is stuck there until that
    /// has been tried again, at once.
    pub(super) fn mend(&mut self, is_mended: impl Fn(&Stuck) -> bool) {
        self.mended.extend(self.stuck.extract_if(.., |stuck| is_mended(stuck)).map(|stuck| stuck.stripe));
        // These wait for the lock, or come to it again when they fail.
        self.tried.retain(|stuck| !is_mended(stuck));
    }

    /// Notes that time has passed.
    pub(super) fn tick(&mut self) {
        self.retry = self.retry.saturating_sub(1);
    }

    /// The next stripe to begin before `end`, if any is left and none has to be tried again first. `wanted` is the
    /// first stripe from one on that is to be done at all.
    pub(super) fn begin(&mut self, end: StripeId, wanted: impl Fn(StripeId) -> StripeId) -> Option<StripeId> {
        if let Some(stripe) = self.mended.pop() {
            return Some(stripe);
        }
        if !self.stuck.is_empty() {
            let again = if self.retry == 0 { self.stuck.pop() } else { None };
            self.tried.extend(again);
            return again.map(|stuck| stuck.stripe);
        }
        self.next = ahead(self.next, &wanted);
        self.advance(wanted);
        let stripe = self.next;
        self.next.0 += u64::from(stripe < end);
        (stripe < end).then_some(stripe)
    }

    /// Notes that a stripe is done.
    pub(super) fn finish(&mut self, stripe: StripeId, wanted: impl Fn(StripeId) -> StripeId) {
        self.tried.retain(|stuck| stuck.stripe != stripe);
        self.finished.push(stripe);
        self.advance(wanted);
    }

    /// Notes that a stripe could not be done; true: that is news.
    pub(super) fn fail(&mut self, stuck: Stuck) -> bool {
        let before = self.tried.len();
        self.tried.retain(|tried| tried.stripe != stuck.stripe);
        self.stuck.push(stuck);
        self.retry = RETRY_TICKS;
        self.tried.len() == before
    }

    /// Moves the watermark over what is done.
    fn advance(&mut self, wanted: impl Fn(StripeId) -> StripeId) {
        // Each time but the last takes one of those that are finished.
        for _ in 0..=self.finished.len() {
            self.done = ahead(self.done, &wanted);
            let Some(place) = self.finished.iter().position(|&stripe| stripe == self.done) else { return };
            self.finished.swap_remove(place);
            self.done.0 += 1;
        }
        unreachable!("what is finished is taken once");
    }
}

/// The first wanted stripe from one on.
///
/// # Panics
/// When that is before it.
fn ahead(from: StripeId, wanted: impl Fn(StripeId) -> StripeId) -> StripeId {
    let next = wanted(from);
    assert!(next >= from, "stripe {next} is wanted next after stripe {from}");
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "stripe 2 is wanted next after stripe 3")]
    fn a_sweep_that_is_pointed_back_says_so() {
        let mut sweep = Sweep::default();
        sweep.restart(StripeId(3));
        sweep.begin(StripeId(8), |_| StripeId(2));
    }

    #[test]
    fn the_watermark_rises_over_what_is_finished_in_any_order() {
        let mut sweep = Sweep::default();
        sweep.restart(StripeId(0));
        let all = |from| from;
        let begun: Vec<u64> = std::iter::from_fn(|| sweep.begin(StripeId(4), all)).map(|stripe| stripe.0).collect();
        assert_eq!(begun, [0, 1, 2, 3]);
        let marks = [2, 1, 0, 3].map(|stripe| {
            sweep.finish(StripeId(stripe), all);
            sweep.done().0
        });
        assert_eq!(marks, [0, 0, 3, 4]);
    }
}
