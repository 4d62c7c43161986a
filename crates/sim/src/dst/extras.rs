//! What only some runs have, beside what all have.
//!
//! Drawn from chance of its own, so that the runs that have nothing of it stay what they are.

use crate::random::Random;

/// Tells this chance from the rest of a run.
const APART: u64 = 0x7769_6465_6E65_6421;

/// What a run has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extras {
    /// Its array has several regions of a write-intent bitmap, where it has one at all.
    pub(super) is_wide: bool,
    /// Superblocks, bitmaps and logs rot between its lives.
    pub(super) rots: bool,
}

impl Extras {
    /// The extras of a seed, and chance for them.
    pub(super) fn draw(seed: u64) -> (Self, Random) {
        let mut random = Random::new(seed ^ APART);
        let extras = Self { is_wide: random.chance(1, 48), rots: random.chance(1, 6) };
        (extras, random)
    }
}
