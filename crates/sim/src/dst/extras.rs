//! What only some runs have, beside what all have.
//!
//! Drawn from chance of its own, so that the runs that have nothing of it stay what they are.

use std::time::Duration;

use uraid_io::engine::Deadlines;

use uraid_random::Random;

/// Tells this chance from the rest of a run.
const APART: u64 = 0x7769_6465_6E65_6421;

/// Tells chance for what comes after everything else from both.
const AFTERWARDS: u64 = 0x7265_7368_6170_6521;

/// Tells chance for what comes after that from all of these.
const SERVED: u64 = 0x7365_7276_6564_6D76;

/// Tells chance for what begins without a stop from the rest of that.
const RUNNING: u64 = 0x7275_6E6E_696E_6721;

/// Tells chance for log devices from all of these.
const LOGGED: u64 = 0x6C6F_6764_6576_6963;

/// What a run has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extras {
    /// Its array has several regions of a write-intent bitmap, where it has one at all.
    pub(super) is_wide: bool,
    /// Superblocks, bitmaps and logs rot between its lives.
    pub(super) rots: bool,
    /// Its administrator copies members to others that take their places.
    pub(super) copies: bool,
    /// Operations on its members are given up after a while, and time passes by the members' clock.
    pub(super) deadlines: Option<Deadlines>,
    /// Blocks of its members become unreadable between its lives, where it has no checksums.
    pub(super) spoils: bool,
    /// Its array is new: members hold anything, and regions are blank.
    pub(super) is_new: bool,
    /// How often its array grows, or gets another shape, after the lives that it has anyway.
    pub(super) alterations: u64,
    /// How often its array is reshaped while it is served, after all of that.
    pub(super) served: u64,
}

impl Extras {
    /// The extras of a seed, and chance for them.
    pub(super) fn draw(seed: u64) -> (Self, Random) {
        let mut random = Random::new(seed ^ APART);
        let (is_wide, rots, copies) = (random.chance(1, 48), random.chance(1, 6), random.chance(1, 4));
        let deadlines = random.chance(1, 6).then(|| draw_deadlines(&mut random));
        let (spoils, is_new) = (random.chance(1, 5), random.chance(1, 4));
        let extras = Self { is_wide, rots, copies, deadlines, spoils, is_new, alterations: 0, served: 0 };
        (extras, random)
    }

    /// With what happens after all of that, and chance for it.
    pub(super) fn and_after(self, seed: u64) -> (Self, Random) {
        let mut random = Random::new(seed ^ AFTERWARDS);
        let alterations = if random.chance(1, 3) { random.within(1, 3) } else { 0 };
        (Self { alterations, ..self }, random)
    }

    /// With reshapes of the served array after all of that, and chance for them.
    pub(super) fn and_served(self, seed: u64) -> (Self, Random) {
        let mut random = Random::new(seed ^ SERVED);
        let served = if random.chance(1, 2) { random.within(1, 3) } else { 0 };
        (Self { served, ..self }, random)
    }

    /// Chance for reshapes that begin without a stop.
    pub(super) fn beginnings(seed: u64) -> Random {
        Random::new(seed ^ RUNNING)
    }

    /// How often its array gets log devices, after all of that, if it has a log; and chance for them.
    pub(super) fn logged(seed: u64) -> (u64, Random) {
        let mut random = Random::new(seed ^ LOGGED);
        (if random.chance(1, 6) { random.within(1, 3) } else { 0 }, random)
    }
}

/// Short ones and long ones, beside the half a minute that slow operations take.
fn draw_deadlines(random: &mut Random) -> Deadlines {
    let mut deadline = |longest: u64| {
        let exponent = random.below(longest);
        random.chance(7, 8).then(|| Duration::from_millis(random.within(200, 400 << exponent)))
    };
    Deadlines { read: deadline(4), write: deadline(8), hedges: false }
}
