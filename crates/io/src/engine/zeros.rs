//! What is known to read as zeros, of what is not [blank](super::blank): a bit for each *granule* of addresses.
//!
//! Nobody asks it before reading: it only answers clients that ask which parts they need not read. So it may know less
//! than is true, and never more.
//!
//! Invariants:
//! - A granule is known only while all of it reads as zeros, whoever has it: the members or the cache.
//! - Content is [noted](Zeros::note_written) when nothing comes between that and the moment from which it may be read:
//!   when the cache takes it in, and, under the lock of its stripes, when it takes the place of what the cache holds.
//! - Zeros are noted when all of them read as such, but where content was noted since they were begun ([`Zeroing`]).
//! - Its memory does not grow with the array: large arrays have larger granules.
//!
//! It knows neither members nor the cache, and is forgotten when the server stops. Then holes of the members' files
//! tell some of it again ([`Zeros::begin_search`]).

use std::cell::{Cell, RefCell};
use std::ops::Range;

use smallvec::SmallVec;
use uraid_layout::{Lba, Sectors};

/// The smallest granule is the cache's page.
const SHIFT_MIN: u32 = 3;

/// At most so many granules, with two bits each: 8 MiB.
const GRANULES_MAX: u64 = 1 << 25;

const WORD_BITS: u64 = 64;

/// What is known of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing.
    Data,
    /// It reads as zeros.
    Zeros,
    /// The same, and members have given its space back, or never had any.
    Hole,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Zeros {
    shift: u32,
    capacity: Sectors,
    /// Whether there is anything to forget: otherwise writes pass.
    is_used: Cell<bool>,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Empty until something is known.
    zero: Bits,
    /// A part of it: what has no space on the members.
    hole: Bits,
    /// What was written since a search began; none: nobody searches.
    written: Option<Bits>,
    /// Zeros that are being written.
    under_way: SmallVec<[UnderWay; 4]>,
    next: u64,
}

/// Zeros that are being written, and the granules around everything that was noted there since.
#[derive(Debug)]
struct UnderWay {
    number: u64,
    range: Range<u64>,
    disturbed: Range<u64>,
}

/// A bit for each granule.
#[derive(Debug, Default)]
struct Bits(Vec<u64>);

/// Zeros that are being written, until this is dropped.
#[derive(Debug)]
pub(super) struct Zeroing<'a> {
    zeros: &'a Zeros,
    number: u64,
}

impl Zeros {
    pub(super) fn new(capacity: Sectors) -> Self {
        let mut shift = SHIFT_MIN;
        while capacity.0 >> shift >= GRANULES_MAX {
            shift += 1;
        }
        Self { shift, capacity, is_used: Cell::new(false), state: RefCell::default() }
    }

    /// Notes content.
    pub(super) fn note_written(&self, range: &Range<Lba>) {
        if self.is_used.get() && !planted!(ZerosRemembered) {
            self.forget(range);
        }
    }

    #[cold]
    fn forget(&self, range: &Range<Lba>) {
        let touched = self.touched(range);
        let State { zero, hole, written, under_way, .. } = &mut *self.state.borrow_mut();
        zero.clear(&touched);
        hole.clear(&touched);
        if let Some(written) = written {
            written.set(self.count(), &touched);
        }
        for zeros in under_way.iter_mut().filter(|_| !planted!(ZerosUndisturbed)) {
            let (start, end) = (touched.start.max(zeros.range.start), touched.end.min(zeros.range.end));
            if start < end {
                let before = if zeros.disturbed.is_empty() { start..end } else { zeros.disturbed.clone() };
                zeros.disturbed = before.start.min(start)..before.end.max(end);
            }
        }
    }

    /// Begins zeros that are about to be written: they get space, unless members say otherwise.
    pub(super) fn zeroing(&self, range: &Range<Lba>) -> Zeroing<'_> {
        self.is_used.set(true);
        let state = &mut *self.state.borrow_mut();
        state.hole.clear(&self.touched(range));
        let number = state.next;
        state.next += 1;
        state.under_way.push(UnderWay { number, range: self.whole(range), disturbed: 0..0 });
        Zeroing { zeros: self, number }
    }

    /// What is known of what begins at an address, and up to where; at most up to `end`.
    pub(super) fn run(&self, from: Lba, end: Lba) -> (Status, Lba) {
        if !self.is_used.get() {
            return (Status::Data, end);
        }
        let state = self.state.borrow();
        let (first, last) = (from.0 >> self.shift, self.touched(&(from..end)).end);
        let (status, next) = state.run(first, last);
        (status, Lba((next << self.shift).min(end.0)))
    }

    /// Whether all of a range is known to read as zeros.
    pub(super) fn has_all(&self, range: &Range<Lba>) -> bool {
        let mut at = range.start;
        while at < range.end {
            match self.run(at, range.end) {
                (Status::Data, _) => return false,
                (_, until) => at = until,
            }
        }
        true
    }

    /// Notes that members have given back the space of a range, as far as it is known to read as zeros.
    pub(super) fn note_hole(&self, range: &Range<Lba>) {
        let state = &mut *self.state.borrow_mut();
        let State { zero, hole, .. } = state;
        let mut at = self.whole(range);
        while at.start < at.end {
            let (is_zero, end) = zero.run(at.start, at.end);
            if is_zero {
                hole.set(self.count(), &(at.start..end));
            }
            at.start = end;
        }
    }

    /// Begins to find out what reads as zeros: what is written from now on counts as content.
    pub(super) fn begin_search(&self) {
        self.is_used.set(true);
        self.state.borrow_mut().written = Some(Bits::default());
    }

    /// Notes what reads as zeros, and has not been written since the search began.
    pub(super) fn note_found(&self, range: &Range<Lba>, status: Status) {
        let state = &mut *self.state.borrow_mut();
        let State { zero, hole, written: Some(written), .. } = state else { return };
        let mut at = self.whole(range);
        while at.start < at.end {
            let (is_written, end) = written.run(at.start, at.end);
            if !is_written || planted!(SearchUnwatched) {
                zero.set(self.count(), &(at.start..end));
                if status == Status::Hole {
                    hole.set(self.count(), &(at.start..end));
                }
            }
            at.start = end;
        }
    }

    /// Ends a search.
    pub(super) fn end_search(&self) {
        self.state.borrow_mut().written = None;
    }

    fn count(&self) -> u64 {
        self.capacity.0.div_ceil(1 << self.shift)
    }

    /// The granules that a range touches.
    fn touched(&self, range: &Range<Lba>) -> Range<u64> {
        let end = range.end.0.min(self.capacity.0);
        let first = range.start.0.min(end) >> self.shift;
        first..end.div_ceil(1 << self.shift).max(first)
    }

    /// Those that lie within it; the last one ends with the array.
    fn whole(&self, range: &Range<Lba>) -> Range<u64> {
        let first = range.start.0.div_ceil(1 << self.shift);
        let last = if range.end.0 >= self.capacity.0 { self.count() } else { range.end.0 >> self.shift };
        first.min(last)..last
    }
}

impl State {
    /// The status of a granule, and where the first is, at most at `end`, that has another one. It goes through both
    /// lists together: what is long in one of them and short in the other is not gone through for each part of that.
    fn run(&self, first: u64, end: u64) -> (Status, u64) {
        let Self { zero, hole, .. } = self;
        let (is_zero, is_hole) = (zero.has(first), hole.has(first));
        let status = match (is_zero, is_hole) {
            (false, _) => Status::Data,
            (true, false) => Status::Zeros,
            (true, true) => Status::Hole,
        };
        let mut next = first;
        while next < end && !zero.0.is_empty() {
            let word = next / WORD_BITS;
            let others = (zero.unlike(word, is_zero) | hole.unlike(word, is_hole)) >> (next % WORD_BITS);
            if others != 0 {
                return (status, end.min(next + u64::from(others.trailing_zeros())));
            }
            next = (word + 1) * WORD_BITS;
        }
        (status, end)
    }
}

impl Zeroing<'_> {
    /// Notes that they read as such now, but for what was written meanwhile.
    pub(super) fn note(&self) {
        let State { zero, under_way, .. } = &mut *self.zeros.state.borrow_mut();
        let own = under_way.iter().find(|zeros| zeros.number == self.number).expect("it is under way");
        let Range { start, end } = own.range;
        let parts = if own.disturbed.is_empty() {
            [start..end, end..end]
        } else {
            [start..own.disturbed.start, own.disturbed.end..end]
        };
        for part in parts.iter().filter(|part| !part.is_empty()) {
            zero.set(self.zeros.count(), part);
        }
    }
}

impl Drop for Zeroing<'_> {
    fn drop(&mut self) {
        self.zeros.state.borrow_mut().under_way.retain(|zeros| zeros.number != self.number);
    }
}

impl Bits {
    fn set(&mut self, count: u64, range: &Range<u64>) {
        if self.0.is_empty() {
            self.0 = vec![0; index(count.div_ceil(WORD_BITS))];
        }
        words(range).for_each(|(word, mask)| self.0[word] |= mask);
    }

    fn clear(&mut self, range: &Range<u64>) {
        if !self.0.is_empty() {
            words(range).for_each(|(word, mask)| self.0[word] &= !mask);
        }
    }

    /// Whether a bit is set, and where the first is, at most at `end`, that is not as that one is.
    fn run(&self, first: u64, end: u64) -> (bool, u64) {
        let is_set = self.has(first);
        let mut next = first;
        while next < end && !self.0.is_empty() {
            let others = self.unlike(next / WORD_BITS, is_set) >> (next % WORD_BITS);
            if others != 0 {
                return (is_set, end.min(next + u64::from(others.trailing_zeros())));
            }
            next = (next / WORD_BITS + 1) * WORD_BITS;
        }
        (is_set, end)
    }

    fn has(&self, bit: u64) -> bool {
        self.word(bit / WORD_BITS) >> (bit % WORD_BITS) & 1 == 1
    }

    /// The bits of a word that are not as `is_set` says.
    fn unlike(&self, word: u64, is_set: bool) -> u64 {
        if is_set { !self.word(word) } else { self.word(word) }
    }

    fn word(&self, word: u64) -> u64 {
        self.0.get(index(word)).copied().unwrap_or(0)
    }
}

/// The words of a range of bits, each with those of its bits that are in the range.
fn words(range: &Range<u64>) -> impl Iterator<Item = (usize, u64)> + use<> {
    let Range { start, end } = *range;
    let last = if start < end { end.div_ceil(WORD_BITS) } else { start / WORD_BITS };
    (start / WORD_BITS..last).map(move |word| {
        let (from, to) = (start.max(word * WORD_BITS) % WORD_BITS, (end - word * WORD_BITS).min(WORD_BITS));
        (index(word), (u64::MAX << from) & (u64::MAX >> (WORD_BITS - to)))
    })
}

fn index(word: u64) -> usize {
    usize::try_from(word).expect("granules are few")
}

#[cfg(test)]
mod tests;
