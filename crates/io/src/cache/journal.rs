//! What the journal of pages has of content that the members are still to be written: a flush puts it there, and needs
//! no parity for that.
//!
//! A page is *fresh* when its dirty version is newer than what the journal has, or the journal has nothing of it. It is
//! *live* from when it goes into the journal until nothing of it there counts any more after a stop, whoever is lost:
//! then the newest that the journal has of it comes back as dirty. A record is *held* for a page as long as what it has
//! of that is neither in a later record, nor committed to the log by a destage.
//!
//! Invariants:
//! - Of a live page nothing is written to the members that is newer than what the journal has: it would be gone after a
//!   stop. Of a live page with fresh content the version is destaged that the journal has; what would replace it
//!   without the cache waits until it is not live.
//! - A record is released when nobody holds it.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::ops::Range;

use uraid_layout::Lba;

use super::stripes::NumberHasher;
use crate::format::log::record::LogSequence;

/// What it is to a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Journaled {
    /// The dirty version is fresh.
    pub(super) is_fresh: bool,
    /// It is going into the journal.
    pub(super) is_going: bool,
    /// What flies was fresh when it took off, and is not in the journal since.
    pub(super) was_fresh: bool,
    /// What flies is going into the journal.
    pub(super) flight_goes: bool,
    /// The records that are held for what is dirty, and for what flies.
    pub(super) dirty: Option<LogSequence>,
    pub(super) flying: Option<LogSequence>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Journal {
    pub(super) is_on: bool,
    /// The last flush that wanted room found it full of what can't be written out.
    pub(super) is_full: bool,
    /// Nothing is to be made fresh of live pages: somebody waits until they are not.
    pub(super) is_pressed: bool,
    /// Pages that became fresh, by their first sectors, each with its number in that order; some are not any more.
    pub(super) fresh: VecDeque<(u64, Lba)>,
    /// Memory for those that are passed over, to be used again.
    pub(super) passed_over: Vec<(u64, Lba)>,
    /// How many there ever were.
    pub(super) count: u64,
    /// How many there were by each of the last ticks.
    counts: VecDeque<u64>,
    /// Pages that go into the journal, by batch, each in one; and memory for such lists, to be used again.
    pub(super) going: Vec<Batch>,
    pub(super) spare: Vec<Vec<(u64, Lba)>>,
    /// How many batches there ever were.
    batches: u64,
    /// The newest record that has something of a page; none yet of those that go there.
    live: HashMap<Lba, Option<LogSequence>, BuildHasherDefault<NumberHasher>>,
    /// The pages that records have, the oldest record's first.
    records: VecDeque<(LogSequence, Lba)>,
    /// For how many pages each record is held.
    held: HashMap<LogSequence, usize, BuildHasherDefault<NumberHasher>>,
    /// Records that nobody holds any more.
    released: Vec<LogSequence>,
    /// Parity stripes that are being written without the cache.
    reserved: Vec<Range<u64>>,
}

/// Pages that go into the journal together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) number: u64,
    pub(super) pages: Vec<(u64, Lba)>,
    /// It takes too long: its pages go there again.
    pub(super) is_overtaken: bool,
}

impl Journal {
    pub(super) fn is_live(&self, page: Lba) -> bool {
        self.live.contains_key(&page)
    }

    /// Whether any page is.
    pub(super) fn has_live(&self) -> bool {
        !self.live.is_empty()
    }

    /// Whether any record is held.
    pub(super) fn is_held(&self) -> bool {
        !self.held.is_empty() || !self.going.is_empty()
    }

    /// Takes note that a page has become fresh.
    pub(super) fn note_fresh(&mut self, page: Lba) {
        self.fresh.push_back((self.count, page));
        self.count += 1;
    }

    /// Takes note that a page is fresh again that has flown, or was going into the journal, and did not arrive: a flush
    /// that began meanwhile is about it.
    pub(super) fn note_fresh_again(&mut self, page: Lba) {
        if planted!(FreshAnew) {
            return self.note_fresh(page);
        }
        self.fresh.push_front((0, page));
        self.count = self.count.max(1);
    }

    /// Puts pages back that were taken from the oldest and are still fresh.
    pub(super) fn pass_over(&mut self, mut pages: Vec<(u64, Lba)>) {
        pages.drain(..).rev().for_each(|page| self.fresh.push_front(page));
        self.passed_over = pages;
    }

    /// Takes note that a tick has passed: pages whose numbers are below this have been fresh for so many ticks, if they
    /// still are.
    pub(super) fn grow_older(&mut self, ticks: u64) -> Option<u64> {
        self.counts.push_back(self.count);
        let is_long = self.counts.len() as u64 > ticks && !planted!(FreshForEver);
        is_long.then(|| self.counts.pop_front()).flatten()
    }

    /// Whether a page is on its way into the journal.
    pub(super) fn is_going(&self, page: Lba) -> bool {
        self.live.get(&page) == Some(&None) && !planted!(GoingTwice)
    }

    /// Begins with a batch of pages that go into the journal: its number.
    pub(super) fn begin_batch(&mut self) -> u64 {
        self.batches += 1;
        let pages = self.spare.pop().unwrap_or_default();
        self.going.push(Batch { number: self.batches, pages, is_overtaken: false });
        self.batches
    }

    /// Takes note that a page goes into the journal, with the last batch.
    pub(super) fn go(&mut self, number: u64, page: Lba) {
        self.going.last_mut().expect("a batch was begun").pages.push((number, page));
        // As long as that is on its way, whatever counts no more of what there was.
        self.live.insert(page, None);
    }

    /// Ends a batch.
    pub(super) fn end_batch(&mut self, number: u64) -> Batch {
        let index = self.going.iter().position(|batch| batch.number == number).expect("it was begun");
        self.going.swap_remove(index)
    }

    /// Takes note that a page did not arrive, for all that is known: some member may have it nevertheless.
    pub(super) fn note_lost(&mut self, page: Lba) {
        self.live.entry(page).and_modify(|newest| *newest = newest.or(Some(LogSequence(0))));
    }

    /// Takes note that nothing was written of a page: what there was before counts.
    pub(super) fn note_given_back(&mut self, page: Lba) {
        match self.records.iter().rev().find(|(_, other)| *other == page) {
            Some(&(sequence, _)) => self.live.insert(page, Some(sequence)),
            None => self.live.remove(&page),
        };
    }

    /// Takes note that a record has a page that was overtaken on its way; there may be newer ones by now.
    pub(super) fn note_late(&mut self, sequence: LogSequence, page: Lba) {
        let newest = self.live.entry(page).or_default();
        if newest.is_some_and(|newest| newest > sequence) {
            return;
        }
        *newest = Some(sequence);
        self.records.push_back((sequence, page));
    }

    /// Takes note that the newest record has a page; whether that is news.
    pub(super) fn note_record(&mut self, sequence: LogSequence, page: Lba) -> bool {
        let is_new = self.live.insert(page, Some(sequence)) != Some(Some(sequence));
        if is_new {
            self.records.push_back((sequence, page));
        }
        is_new
    }

    pub(super) fn hold(&mut self, sequence: LogSequence) {
        *self.held.entry(sequence).or_insert(0) += 1;
    }

    pub(super) fn let_go(&mut self, sequence: LogSequence) {
        let count = self.held.get_mut(&sequence).expect("what is let go is held");
        *count -= 1;
        if *count == 0 {
            self.held.remove(&sequence);
            self.released.push(sequence);
        }
    }

    /// Takes note that nobody ever held a record, unless somebody does.
    pub(super) fn settle(&mut self, sequence: LogSequence) {
        if !self.held.contains_key(&sequence) {
            self.released.push(sequence);
        }
    }

    /// A record that nobody holds any more, once.
    pub(super) fn released(&mut self) -> Option<LogSequence> {
        self.released.pop()
    }

    /// Takes note that records up to this one count no more after a stop; whether anything did before.
    pub(super) fn marked(&mut self, upto: LogSequence) -> bool {
        let before = self.live.len();
        while self.records.front().is_some_and(|(sequence, _)| *sequence <= upto) {
            let (sequence, page) = self.records.pop_front().expect("there is one");
            if self.live.get(&page) == Some(&Some(sequence)) {
                self.live.remove(&page);
            }
        }
        self.live.len() < before
    }

    pub(super) fn reserve(&mut self, stripes: Range<u64>) {
        self.reserved.push(stripes);
    }

    pub(super) fn unreserve(&mut self, stripes: &Range<u64>) {
        let index = self.reserved.iter().position(|other| other == stripes).expect("it was reserved");
        self.reserved.swap_remove(index);
    }

    pub(super) fn is_reserved(&self, stripe: u64) -> bool {
        self.reserved.iter().any(|stripes| stripes.contains(&stripe))
    }
}
