//! Which bytes of a read were delivered.

use std::ops::Range;

use super::error::Error;

/// The most gaps that a read's delivery may have at a time. Servers that deliver in order leave none.
const GAPS_MAX: usize = 64;

/// Disjoint ranges that do not touch, ascending. Kept for the next read: it allocates once.
#[derive(Debug, Default)]
pub(super) struct Covered(Vec<Range<u32>>);

impl Covered {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether just these many bytes were delivered, from the first on.
    pub(super) fn is_all_of(&self, length: u32) -> bool {
        matches!(&self.0[..], [only] if *only == (0..length))
    }

    /// Notes a range, which is not empty.
    ///
    /// # Errors
    /// When some of it was delivered before, or there are too many gaps.
    pub(super) fn add(&mut self, range: Range<u32>) -> Result<(), Error> {
        let after = self.0.partition_point(|other| other.end <= range.start);
        if self.0.get(after).is_some_and(|next| next.start < range.end) {
            return Err(Error::Reply { what: "the same bytes of a read twice" });
        }
        let joins_next = self.0.get(after).is_some_and(|next| next.start == range.end);
        let joins_last = after > 0 && self.0[after - 1].end == range.start;
        match (joins_last, joins_next) {
            (true, true) => {
                self.0[after - 1].end = self.0[after].end;
                self.0.remove(after);
            }
            (true, false) => self.0[after - 1].end = range.end,
            (false, true) => self.0[after].start = range.start,
            (false, false) if self.0.len() > GAPS_MAX => {
                return Err(Error::Reply { what: "a read in too many pieces without order" });
            }
            (false, false) => self.0.insert(after, range),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gaps_are_bounded() {
        let mut covered = Covered::default();
        let added: Vec<bool> = (0..100).map(|piece| covered.add(piece * 2..piece * 2 + 1).is_ok()).collect();
        assert_eq!(added, [vec![true; 65], vec![false; 35]].concat());
    }

    proptest! {
        /// Against one flag for each byte.
        #[test]
        fn ranges_are_as_flags_have_them(ranges in prop::collection::vec((0..40u32, 1..8u32), 0..30)) {
            let (mut covered, mut flags) = (Covered::default(), [false; 48]);
            for (start, length) in ranges {
                let own = &mut flags[start as usize..(start + length) as usize];
                let is_new = own.iter().all(|flag| !flag);
                prop_assert_eq!(covered.add(start..start + length).is_ok(), is_new);
                if is_new {
                    own.fill(true);
                }
                for end in 1..48 {
                    let all = flags[..end].iter().all(|flag| *flag) && flags[end..].iter().all(|flag| !flag);
                    prop_assert_eq!(covered.is_all_of(end as u32), all);
                }
            }
        }
    }
}
