//! Content that could not be written out: where it is, and which members are to blame.
//!
//! It stays in memory until it can be, or until something else takes its place. While a flush tries it again, it counts
//! as before. All of it is counted; of its parity stripes only the first are looked at more closely, so that asking
//! costs little however much it is.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use uraid_layout::{Lba, MemberSet, Sectors, StripeId};

use super::Cache;
use super::page::PAGE_SECTORS;
use super::stripes::Slot;
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
        write!(f, "{} sectors of them can't be written out", self.len)?;
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
}

impl Cache {
    /// What could not be written out, for all that is known; none: there is no such thing.
    #[must_use]
    pub fn unwritten(&self) -> Option<Unwritten> {
        let Parts { parts, sectors } = &self.policy.unwritten;
        if parts.is_empty() {
            return None;
        }
        let first = || parts.iter().take(STRIPES_MAX);
        let cause = first().map(|(_, part)| part.cause).fold(Cause::default(), Cause::union);
        let slots = first().filter_map(|(&stripe, _)| self.stripes.find(stripe));
        Some(Unwritten::new(Sectors(*sectors), cause, slots.flat_map(|slot| self.unwritten_of(slot))))
    }

    /// Notes why what is about to be settled could not be written.
    pub fn blame(&mut self, contents: &super::Contents, cause: Cause) {
        // A run is tried again stripe by stripe; only then is it known whose fault it is.
        if !contents.is_second() {
            return;
        }
        for extent in contents.extents() {
            let stripe_of = |lba: u64| lba / self.shape.stripe_sectors;
            for stripe in stripe_of(extent.lba.0)..=stripe_of(extent.lba.0 + extent.content.len.0 - 1) {
                if let Some(slot) = self.stripes.find(StripeId(stripe)) {
                    let stripe = self.stripes.get(slot);
                    stripe.cause = stripe.cause.union(cause);
                }
            }
        }
    }

    /// Forgets what could not be written of parity stripes that were, unless some of them is still to be.
    pub(super) fn note_written(&mut self, contents: &super::Contents) {
        if self.policy.unwritten.is_empty() {
            return;
        }
        for extent in contents.extents() {
            let stripe_of = |lba: u64| lba / self.shape.stripe_sectors;
            for stripe in stripe_of(extent.lba.0)..=stripe_of(extent.lba.0 + extent.content.len.0 - 1) {
                let stripe = StripeId(stripe);
                match self.stripes.find(stripe).map(|slot| self.stripes.at(slot)) {
                    Some(left) if left.is_stuck => self.policy.unwritten.resize(stripe, left.dirty),
                    // Others of its columns are still to be tried.
                    Some(left) if left.alone.is_some() => {}
                    _ => self.policy.unwritten.forget(stripe),
                }
            }
        }
    }

    /// What is dirty of a parity stripe, or tried again.
    fn unwritten_of(&self, slot: Slot) -> impl Iterator<Item = Range<Lba>> {
        let stripe = self.stripes.at(slot);
        let start = stripe.id.0 * self.shape.stripe_sectors;
        let data = stripe.entries.iter().filter(|entry| entry.place() < self.shape.data_pages);
        data.flat_map(move |entry| {
            let page = &self.pages.slots[entry.page()];
            let flying = page.flying.as_ref().map(|layer| layer.mask).filter(|_| !stripe.is_stuck);
            let at = start + entry.place() * PAGE_SECTORS;
            let runs = page.dirty_mask().or(flying.unwrap_or_default()).runs();
            runs.map(move |run| Lba(at + run.start)..Lba(at + run.end))
        })
    }
}

#[cfg(test)]
impl Parts {
    /// Asserts that a parity stripe that waits for a flush is told of.
    pub(super) fn assert_known(&self, stripe: &super::stripes::Stripe) {
        let part = self.parts.get(&stripe.id);
        assert!(!stripe.is_stuck || part.is_some_and(|part| part.sectors == stripe.dirty), "{part:?}: {stripe:?}");
    }

    /// The parity stripes that are told of.
    pub(super) fn stripes(&self) -> impl Iterator<Item = StripeId> {
        assert_eq!(self.sectors, self.parts.values().map(|part| part.sectors).sum::<u64>(), "all is counted");
        self.parts.keys().copied()
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
