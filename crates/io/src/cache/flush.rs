//! What a flush puts into the journal of pages, and what comes back of it after a stop.

use std::ops::Range;

use uraid_layout::{Bytes, Lba, Sectors, StripeId};

use super::Mark;
use super::destage::{Flying, OLD_TICKS, Policy};
use super::journal::{Batch, Journal};
use super::page::{Layer, Mask, PAGE_BYTES, PAGE_SECTORS, Page, bytes_of};
use super::shape::Shape;
use super::store::Store;
use super::stripes::Slot;
use crate::buf::{Buf, Lease};
use crate::format::log::record::LogSequence;

/// Below this it does not pay to look for pages that are not fresh any more.
const FRESH_FEW: usize = 1024;

/// What a flush is about.
pub type FlushMark = (Mark, u64);

/// What a flush is still to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushLeft {
    /// Something is on its way to the members or to the journal.
    Wait,
    /// Something is to go into the journal.
    Journal,
    /// The same of what flies, as some of it has for too long.
    Flights,
    /// All that it is about is durable, or will be when the log and the members are.
    Nothing,
}

/// What is to go into the journal.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    /// What is fresh.
    Fresh,
    /// What is fresh and of which records up to this one have an older version.
    HeldUpto(LogSequence),
    /// What flies and was dirty before the mark.
    Flights(FlushMark),
}

/// What a flush does with a page that became fresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Nothing: it is not fresh any more.
    Gone,
    /// It goes into the journal.
    Journal,
    /// It is about to be written, or an older version is on its way into the journal.
    Wait,
}

/// Which version of a page is on its way into the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Dirty,
    Flying,
}

/// What the journal has of a cache's pages.
#[derive(Debug)]
pub struct View<'a> {
    pub(super) store: &'a Store,
    pub(super) policy: &'a Policy,
    pub(super) journal: &'a Journal,
}

/// The same, to be changed.
#[derive(Debug)]
pub struct Edit<'a> {
    pub(super) store: &'a mut Store,
    pub(super) policy: &'a mut Policy,
    pub(super) journal: &'a mut Journal,
}

impl View<'_> {
    /// Whether flushes may put pages there.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.journal.is_on
    }

    /// Whether they can: no flush has found it full of what can't be written out since one found room.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.journal.is_on && !self.journal.is_full
    }

    /// Whether any page of a range is live.
    #[must_use]
    pub fn is_live(&self, lba: Lba, len: Sectors) -> bool {
        self.journal.has_live() && self.pages_of(lba, len.0).any(|page| self.journal.is_live(page))
    }

    /// Whether the journal is held for any page of a range.
    #[must_use]
    pub fn is_held_within(&self, lba: Lba, len: Sectors) -> bool {
        let is_held = |page: Lba| {
            let Some((slot, place)) = self.find(page, &self.store.shape) else { return false };
            let held = self.store.page(slot, place).map(|page| page.journaled).unwrap_or_default();
            held.is_going || held.dirty.is_some() || held.flying.is_some()
        };
        self.pages_of(lba, len.0).any(is_held)
    }

    /// Whether some page of a range is as dirty as when a flush began, and not in the journal.
    #[must_use]
    pub fn is_left_at(&self, (_, count): FlushMark, lba: Lba, len: Sectors) -> bool {
        let shape = self.store.shape;
        let pages = lba.0 / PAGE_SECTORS * PAGE_SECTORS..lba.0 + len.0;
        let mut before = self.journal.fresh.iter().take_while(|(number, _)| *number < count);
        before.any(|(_, page)| pages.contains(&page.0) && self.fate(*page, &shape) != Fate::Gone)
    }

    /// How many of these sectors are of pages that are all live, as the first is, or all not; and whether it is.
    #[must_use]
    pub fn live_run(&self, lba: Lba, len: Sectors) -> (Sectors, bool) {
        if !self.journal.has_live() {
            return (len, false);
        }
        let is_live = |page: &Lba| self.journal.is_live(*page);
        let mut pages = self.pages_of(lba, len.0);
        let first = pages.next().is_some_and(|page| is_live(&page));
        let end = pages.find(|page| is_live(page) != first).map_or(lba.0 + len.0, |page| page.0);
        (Sectors(end - lba.0), first)
    }

    /// Whether the journal is held for anything.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.journal.is_held()
    }

    /// Whether the journal has to have something of these parity stripes before they are destaged.
    #[must_use]
    pub fn is_fresh_over_live(&self, stripes: Range<u64>) -> bool {
        self.journal.has_live()
            && stripes.into_iter().any(|stripe| {
                let Some(slot) = self.store.stripes.find(StripeId(stripe)) else { return false };
                self.store.is_fresh_over_live(slot, self.journal)
            })
    }

    /// What a flush that began at the mark is still to do.
    #[must_use]
    pub fn left(&self, (mark, count): FlushMark) -> FlushLeft {
        let (is_before, shape) = (|number: u64| number < count, &self.store.shape);
        let mut left = FlushLeft::Nothing;
        for flight in self.policy.flying_before(mark) {
            if !self.policy.is_stalled() {
                return FlushLeft::Wait;
            }
            for (page, _) in self.unjournaled_of(flight) {
                if !self.journal.is_going(page) {
                    return FlushLeft::Flights;
                }
                left = FlushLeft::Wait;
            }
        }
        for &(_, page) in self.journal.fresh.iter().take_while(|(number, _)| is_before(*number)) {
            match self.fate(page, shape) {
                Fate::Gone => {}
                Fate::Journal => return FlushLeft::Journal,
                Fate::Wait => left = FlushLeft::Wait,
            }
        }
        let on_their_way = self.journal.going.iter().filter(|batch| !batch.is_overtaken);
        let mut going = on_their_way.flat_map(|batch| &batch.pages);
        let is_going = !planted!(FlushBeforeJournal) && going.any(|&(number, _)| is_before(number));
        if is_going { FlushLeft::Wait } else { left }
    }

    /// What a flush that begins now is about: what is dirty, and fresh, by now.
    #[must_use]
    pub fn mark(&self) -> FlushMark {
        (self.policy.mark(), self.journal.count)
    }

    /// Whether something flies for so long that flushes don't wait for it.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.policy.is_stalled()
    }

    /// At most how many pages of these there are.
    #[must_use]
    pub fn count(&self, wanted: Wanted) -> usize {
        let shape = &self.store.shape;
        match wanted {
            Wanted::Fresh => self.journal.fresh.len(),
            Wanted::HeldUpto(upto) => {
                let is_due = |page| self.fate(page, shape) == Fate::Journal && self.is_held_upto(page, upto, shape);
                self.journal.fresh.iter().filter(|&&(_, page)| is_due(page)).count()
            }
            Wanted::Flights(mark) => self.flying_pages(mark).count(),
        }
    }

    /// The pages of a flight that the journal is to have, and what of them.
    fn unjournaled_of(&self, flight: &Flying) -> impl Iterator<Item = (Lba, (&Layer, Mask))> {
        self.store
            .pages_within(flight.stripes.clone())
            .filter_map(|(lba, page)| Some((lba, page.unjournaled_flight()?)))
    }

    /// Those that are not on their way there, of all flights of before the mark.
    fn flying_pages(&self, (mark, _): FlushMark) -> impl Iterator<Item = (Lba, (&Layer, Mask))> {
        let pages = self.policy.flying_before(mark).flat_map(|flight| self.unjournaled_of(flight));
        pages.filter(|(page, _)| !self.journal.is_going(*page))
    }

    /// Whether a record up to this one is held for what is dirty of a page.
    fn is_held_upto(&self, page: Lba, upto: LogSequence, shape: &Shape) -> bool {
        let held = self.find(page, shape).and_then(|(slot, place)| self.store.page(slot, place)?.journaled.dirty);
        held.is_some_and(|sequence| sequence <= upto)
    }

    fn pages_of(&self, lba: Lba, len: u64) -> impl Iterator<Item = Lba> + use<> {
        let first = lba.0 / PAGE_SECTORS * PAGE_SECTORS;
        (first..lba.0 + len).step_by(usize::try_from(PAGE_SECTORS).expect("a small number")).map(Lba)
    }

    /// Where a page is that is in memory.
    fn find(&self, page: Lba, shape: &Shape) -> Option<(Slot, u64)> {
        let piece = shape.pieces(page, 1).next().expect("a page has a sector");
        let slot = self.store.stripes.find(piece.stripe)?;
        self.store.page(slot, piece.place).map(|_| (slot, piece.place))
    }

    /// What a flush does with a page that became fresh.
    fn fate(&self, page: Lba, shape: &Shape) -> Fate {
        let Some((slot, place)) = self.find(page, shape) else { return Fate::Gone };
        let is_fresh = self.store.page(slot, place).is_some_and(|page| page.journaled.is_fresh);
        if !is_fresh {
            return Fate::Gone;
        }
        let stripe = self.store.stripes.at(slot);
        if self.journal.is_going(page) {
            // An older version: this one goes there when that has arrived.
            return Fate::Wait;
        }
        if self.journal.is_live(page) {
            return Fate::Journal;
        }
        let is_aside = stripe.is_stuck || stripe.alone.is_some() || stripe.left.is_some();
        // Where what flies stalls, it would wait for that.
        let is_aside = is_aside || self.policy.is_stalled() && !planted!(WholeStripesAwaited);
        let is_whole = stripe.dirty == shape.sectors_of(stripe.id) && !is_aside;
        if is_whole || self.journal.is_reserved(stripe.id.0) && !planted!(ReservedJournaled) {
            Fate::Wait
        } else {
            Fate::Journal
        }
    }
}

impl Edit<'_> {
    fn look(&self) -> View<'_> {
        let Self { store, policy, journal } = self;
        View { store, policy, journal }
    }

    /// From now on flushes may put pages into a journal.
    pub fn turn_on(&mut self) {
        self.journal.is_on = true;
        self.policy.follow_journal();
    }

    /// Takes note whether a flush has found it full of what can't be written out.
    pub fn note_full(&mut self, is_full: bool) {
        self.journal.is_full = is_full;
    }

    /// Takes in what a record of the journal has of a range. Records come in their order, each before what
    /// [`Self::note_record`] says of it.
    ///
    /// # Panics
    /// When it is not whole sectors.
    pub fn put(&mut self, lba: Lba, bytes: &[u8]) {
        for piece in self.store.shape.pieces(lba, bytes.len() as u64 / 512) {
            let slot = self.store.stripes.find_or_insert(piece.stripe);
            let older = self.store.page(slot, piece.place).and_then(|page| page.dirty.as_ref());
            let page = Buf::zeroed(Bytes(PAGE_BYTES as u64));
            let layer = Layer::merge(older, &piece.sectors, &bytes[piece.bytes(0)], page);
            let before = self.store.stripes.at(slot).dirty;
            self.store.edit(slot, piece.place, |page| page.dirty = Some(layer));
            let Store { stripes, shape, .. } = &mut self.store;
            self.policy.touched(stripes, slot, before, shape);
        }
    }

    /// Takes note that a record of the journal has these ranges, which were taken in.
    pub fn note_record(&mut self, sequence: LogSequence, ranges: impl Iterator<Item = (Lba, Sectors)>) {
        let Self { store, journal, .. } = self;
        for (lba, len) in ranges {
            for piece in store.shape.pieces(lba, len.0) {
                let page = store.shape.lba(piece.stripe, piece.place);
                let Some(slot) = store.stripes.find(piece.stripe) else { continue };
                if store.page(slot, piece.place).is_none() || !journal.note_record(sequence, page) {
                    continue;
                }
                journal.hold(sequence);
                let older = store.look(slot, piece.place, |page| page.journaled.dirty.replace(sequence));
                older.into_iter().for_each(|older| journal.let_go(older));
            }
        }
        journal.settle(sequence);
    }

    /// Has writes of live pages not be taken in: somebody waits until they are not live.
    pub fn press(&mut self, is_pressed: bool) {
        self.journal.is_pressed = is_pressed;
    }

    /// Keeps parity stripes that are about to be written without the cache out of the journal, until they were.
    pub fn reserve(&mut self, stripes: Range<u64>) {
        self.journal.reserve(stripes);
    }

    /// Ends that.
    ///
    /// # Panics
    /// When they were not reserved.
    pub fn unreserve(&mut self, stripes: &Range<u64>) {
        self.journal.unreserve(stripes);
    }

    /// Makes fresh what is dirty and held by records up to this one; whether there is anything.
    pub fn refresh(&mut self, upto: LogSequence) -> bool {
        let Self { store, journal, .. } = self;
        let mut has_any = false;
        store.refresh(|lba, page| {
            let held = page.journaled;
            let is_due = held.dirty.is_some_and(|sequence| sequence <= upto) && !held.is_going;
            has_any |= is_due;
            if is_due && !held.is_fresh {
                page.logged = page.dirty.as_ref().map(Layer::share);
                page.journaled.is_fresh = true;
                journal.note_fresh(lba);
            }
        });
        has_any
    }

    /// Has up to so many pages go into the journal, but for what is about to be written whole: appends their sectors to
    /// `going`. The number of the batch, which is to [arrive](Self::journaled).
    pub fn take(&mut self, most: usize, wanted: Wanted, going: &mut Vec<(Lba, Lease)>) -> u64 {
        let batch = self.journal.begin_batch();
        match wanted {
            Wanted::Fresh => self.take_fresh(most, None, going),
            Wanted::HeldUpto(upto) => self.take_fresh(most, Some(upto), going),
            Wanted::Flights(mark) => self.take_flights(most, mark, going),
        }
        batch
    }

    /// Has pages go there that fly.
    fn take_flights(&mut self, most: usize, mark: FlushMark, going: &mut Vec<(Lba, Lease)>) {
        let shape = self.store.shape;
        let mut pages = Vec::new();
        for (page, (layer, mask)) in self.look().flying_pages(mark).take(most) {
            going.extend(mask.runs().map(|run| (Lba(page.0 + run.start), layer.memory.part(bytes_of(&run)))));
            pages.push(page);
        }
        for page in pages {
            let (slot, place) = self.look().find(page, &shape).expect("it flies");
            self.store.look(slot, place, |held| held.journaled.flight_goes = true);
            self.journal.go(0, page);
        }
    }

    /// Has fresh pages go there.
    fn take_fresh(&mut self, most: usize, held_upto: Option<LogSequence>, going: &mut Vec<(Lba, Lease)>) {
        let mut left = std::mem::take(&mut self.journal.passed_over);
        let (mut count, shape) = (0, self.store.shape);
        while count < most
            && let Some((number, page)) = self.journal.fresh.pop_front()
        {
            let fate = self.look().fate(page, &shape);
            let is_due = |upto| self.look().is_held_upto(page, upto, &shape);
            let is_wanted = fate == Fate::Journal && held_upto.is_none_or(is_due);
            if !is_wanted {
                left.extend((fate != Fate::Gone).then_some((number, page)));
                continue;
            }
            let (slot, place) = self.look().find(page, &shape).expect("a page with a fate is in memory");
            self.store.look(slot, place, |held| {
                (held.journaled.is_fresh, held.journaled.is_going) = (false, true);
                let layer = held.dirty.as_ref().expect("what is fresh is dirty");
                going.extend(layer.mask.runs().map(|run| (Lba(page.0 + run.start), layer.memory.part(bytes_of(&run)))));
            });
            self.journal.go(number, page);
            count += 1;
        }
        self.journal.pass_over(left);
    }

    /// Has the pages of a batch that takes too long go into the journal again, as it may arrive late or never.
    ///
    /// # Panics
    /// When no such batch is on its way.
    pub fn overtake(&mut self, batch: u64) {
        let mut batch = self.journal.end_batch(batch);
        batch.pages.iter().for_each(|(_, page)| self.lost(*page));
        batch.is_overtaken = true;
        self.journal.going.push(batch);
        self.policy.note_journal();
    }

    /// Takes note that a record has what went into the journal with a batch; none: it could not be written.
    ///
    /// # Panics
    /// When no such batch is on its way.
    pub fn journaled(&mut self, batch: u64, record: Option<LogSequence>) {
        let Batch { mut pages, is_overtaken, .. } = self.journal.end_batch(batch);
        for (_, page) in pages.drain(..) {
            match record {
                Some(sequence) if is_overtaken => self.journal.note_late(sequence, page),
                Some(sequence) => self.arrived(sequence, page),
                None if is_overtaken => {}
                None => self.lost(page),
            }
        }
        self.journal.spare.push(pages);
        self.policy.note_journal();
        record.into_iter().for_each(|sequence| self.journal.settle(sequence));
    }

    /// A page that was on its way is in a record.
    fn arrived(&mut self, sequence: LogSequence, page: Lba) {
        self.journal.note_record(sequence, page);
        self.end_going(page, |held, version, journal| {
            journal.hold(sequence);
            let older = match version {
                Version::Dirty => {
                    held.logged = held.going.take();
                    held.journaled.dirty.replace(sequence)
                }
                Version::Flying => {
                    held.journaled.was_fresh = false;
                    held.journaled.flying.replace(sequence)
                }
            };
            older.into_iter().for_each(|older| journal.let_go(older));
        });
    }

    /// Takes note that nothing was written of what was to go into the journal with a batch.
    ///
    /// # Panics
    /// When no such batch is on its way.
    pub fn give_back(&mut self, batch: u64) {
        let mut pages = self.journal.end_batch(batch).pages;
        for (_, page) in pages.drain(..) {
            if planted!(GivenBackLive) {
                self.journal.note_lost(page);
            } else {
                self.journal.note_given_back(page);
            }
            self.stays(page);
        }
        self.journal.spare.push(pages);
        self.policy.note_journal();
    }

    /// A page that was on its way is not in a record, for all that is known.
    fn lost(&mut self, page: Lba) {
        self.journal.note_lost(page);
        self.stays(page);
    }

    /// A page that was on its way is as fresh as it was.
    fn stays(&mut self, page: Lba) {
        self.end_going(page, |held, version, journal| {
            if version == Version::Dirty {
                held.going = None;
                held.journaled.is_fresh = true;
                journal.note_fresh_again(page);
            }
        });
    }

    /// Ends that a page is on its way, if what was is still in memory.
    fn end_going(&mut self, page: Lba, end: impl FnOnce(&mut Page, Version, &mut Journal)) {
        let shape = self.store.shape;
        let Some((slot, place)) = self.look().find(page, &shape) else { return };
        let Self { store, journal, .. } = self;
        store.look(slot, place, |held| {
            if std::mem::take(&mut held.journaled.is_going) {
                end(held, Version::Dirty, journal);
            } else if std::mem::take(&mut held.journaled.flight_goes) {
                end(held, Version::Flying, journal);
            }
        });
    }

    /// A record that nobody needs any more, once.
    pub fn released(&mut self) -> Option<LogSequence> {
        let released = self.journal.released();
        released.into_iter().for_each(|_| self.policy.note_journal());
        released
    }

    /// Takes note that records up to this one count no more after a stop, whoever is lost.
    pub fn marked(&mut self, upto: LogSequence) {
        if self.journal.marked(upto) {
            self.policy.note_journal();
        }
    }

    /// Notes that a tick has passed: stripes with pages that have been fresh for long are old.
    pub(super) fn tick(&mut self) {
        self.forget_not_fresh();
        let Some(old) = self.journal.grow_older(OLD_TICKS) else { return };
        let (mut left, shape) = (std::mem::take(&mut self.journal.passed_over), self.store.shape);
        while let Some(&(number, page)) = self.journal.fresh.front().filter(|(number, _)| *number < old) {
            self.journal.fresh.pop_front();
            let fate = self.look().fate(page, &shape);
            if fate == Fate::Journal {
                let (slot, _) = self.look().find(page, &shape).expect("a page with a fate is in memory");
                self.policy.note_old(&mut self.store.stripes, slot);
            }
            left.extend((fate != Fate::Gone).then_some((number, page)));
        }
        self.journal.pass_over(left);
    }

    /// Forgets pages that are not fresh any more, where that pays.
    fn forget_not_fresh(&mut self) {
        if self.journal.fresh.len() > 2 * self.store.held() + FRESH_FEW {
            let shape = self.store.shape;
            let mut fresh = std::mem::take(&mut self.journal.fresh);
            fresh.retain(|&(_, page)| self.look().fate(page, &shape) != Fate::Gone);
            self.journal.fresh = fresh;
        }
    }
}
