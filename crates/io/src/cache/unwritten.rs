//! Content that could not be written out: where it is, and which members are to blame.
//!
//! It stays in memory until it can be, or until something else takes its place. While a flush tries it again, it counts
//! as before. All of it is counted; of its parity stripes only the first are looked at more closely, so that asking
//! costs little however much it is.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use uraid_layout::{Lba, MemberSet, Sectors, StripeId};

use crate::engine::named;

/// Ranges that are told.
pub const RANGES_MAX: usize = 16;

/// Parity stripes that are looked at for them.
const STRIPES_MAX: usize = 16;

/// Who could not do what a write needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// Members that could not be read.
    pub unreadable: MemberSet,
    /// Members that could not be written.
    pub unwritable: MemberSet,
}

/// What clients have written and could not be written out when that was tried last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwritten {
    /// All of it.
    pub len: Sectors,
    /// Why, as far as its first parity stripes say.
    pub cause: Cause,
    ranges: [(Lba, Lba); RANGES_MAX],
    count: usize,
}

/// What is known of a parity stripe with such content.
#[derive(Clone, Copy, Debug)]
struct Part {
    sectors: u64,
    cause: Cause,
}

/// The parity stripes with such content.
#[derive(Debug, Default)]
pub(super) struct Parts {
    parts: BTreeMap<StripeId, Part>,
    sectors: u64,
}

impl Cause {
    /// Both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self {
            unreadable: self.unreadable.union(other.unreadable),
            unwritable: self.unwritable.union(other.unwritable),
        }
    }
}

impl Unwritten {
    /// Its first ranges of the array's sectors, ascending: at most [`RANGES_MAX`], and all where they are `len` long
    /// together.
    pub fn ranges(&self) -> impl Iterator<Item = Range<Lba>> {
        self.ranges[..self.count].iter().map(|&(start, end)| start..end)
    }

    /// What two engines of one array know of.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        let len = Sectors(self.len.0 + other.len.0);
        let mut all: Vec<Range<Lba>> = self.ranges().chain(other.ranges()).collect();
        all.sort_by_key(|range| range.start);
        Self::new(len, self.cause.union(other.cause), all)
    }

    /// So much, of which these are the first ranges, ascending: those that there is no room for are left out.
    pub fn new(len: Sectors, cause: Cause, first: impl IntoIterator<Item = Range<Lba>>) -> Self {
        let mut unwritten = Self { len, cause, ranges: [(Lba(0), Lba(0)); RANGES_MAX], count: 0 };
        let _ = first.into_iter().all(|range| unwritten.add(range));
        unwritten
    }

    /// Adds a range after all others, if there is room.
    fn add(&mut self, range: Range<Lba>) -> bool {
        if let Some((_, end)) = self.ranges[..self.count].last_mut().filter(|(_, end)| *end == range.start) {
            *end = range.end;
            return true;
        }
        let Some(next) = self.ranges.get_mut(self.count) else { return false };
        *next = (range.start, range.end);
        self.count += 1;
        true
    }
}

impl fmt::Display for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sectors can't be written out", self.len)?;
        let mut left = self.len.0;
        for (number, Range { start, end }) in self.ranges().enumerate() {
            write!(f, "{} {start}..+{}", if number == 0 { ", sectors" } else { "," }, end.0 - start.0)?;
            left = left.saturating_sub(end.0 - start.0);
        }
        if left > 0 {
            f.write_str(" and others")?;
        }
        let Cause { unreadable, unwritable } = self.cause;
        if !unreadable.is_empty() {
            write!(f, ": {} can't be read there", named(unreadable))?;
        }
        if !unwritable.is_empty() {
            write!(f, ": {} can't be written there", named(unwritable))?;
        }
        Ok(())
    }
}

impl Parts {
    /// The parity stripes that are told of.
    pub(super) fn stripes(&self) -> impl Iterator<Item = StripeId> {
        debug_assert_eq!(self.sectors, self.parts.values().map(|part| part.sectors).sum::<u64>(), "all is counted");
        self.parts.keys().copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Notes that what is dirty of a parity stripe can't be written.
    pub(super) fn note(&mut self, stripe: StripeId, sectors: u64, cause: Cause) {
        self.forget(stripe);
        self.sectors += sectors;
        self.parts.insert(stripe, Part { sectors, cause });
    }

    /// Notes how much of it is dirty by now.
    pub(super) fn resize(&mut self, stripe: StripeId, sectors: u64) {
        if let Some(part) = self.parts.get_mut(&stripe) {
            self.sectors = self.sectors + sectors - part.sectors;
            part.sectors = sectors;
        }
    }

    /// Notes that all of it was written, or something else in its place.
    pub(super) fn forget(&mut self, stripe: StripeId) {
        if let Some(part) = self.parts.remove(&stripe) {
            self.sectors -= part.sectors;
        }
    }

    /// All of it; none where there is none. `ranges` are those of a parity stripe, ascending.
    pub(super) fn told<R: Iterator<Item = Range<Lba>>>(&self, ranges: impl Fn(StripeId) -> R) -> Option<Unwritten> {
        let Self { parts, sectors } = self;
        if parts.is_empty() {
            return None;
        }
        let first = || parts.iter().take(STRIPES_MAX);
        let cause = first().map(|(_, part)| part.cause).fold(Cause::default(), Cause::union);
        Some(Unwritten::new(Sectors(*sectors), cause, first().flat_map(|(&stripe, _)| ranges(stripe))))
    }
}

#[cfg(test)]
impl Parts {
    /// Asserts that a parity stripe that waits for a flush is told of.
    pub(super) fn assert_known(&self, stripe: &super::stripes::Stripe) {
        let part = self.parts.get(&stripe.id);
        assert!(!stripe.is_stuck || part.is_some_and(|part| part.sectors == stripe.dirty), "{part:?}: {stripe:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_engines_know_of_is_one_list() {
        let lbas =
            |ranges: &[(u64, u64)]| -> Vec<_> { ranges.iter().map(|&(start, end)| Lba(start)..Lba(end)).collect() };
        let some = |ranges: &[(u64, u64)]| {
            let len = ranges.iter().map(|(start, end)| end - start).sum();
            Unwritten::new(Sectors(len), Cause::default(), lbas(ranges))
        };
        let both = some(&[(0, 8), (24, 32)]).union(some(&[(8, 16), (40, 48)]));
        let expected = lbas(&[(0, 16), (24, 32), (40, 48)]);
        assert_eq!((both.len, both.ranges().collect()), (Sectors(32), expected));
        let many: Vec<(u64, u64)> = (0..RANGES_MAX as u64).map(|number| (number * 16, number * 16 + 1)).collect();
        let first = some(&many).union(some(&[(8, 9)]));
        let expected = lbas(&[&[(0, 1), (8, 9)], &many[1..RANGES_MAX - 1]].concat());
        assert_eq!((first.len, first.ranges().collect()), (Sectors(17), expected));
    }
}
