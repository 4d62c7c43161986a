//! What is on record of scrubs: where one is that was begun, so that it can go on, and when the last one was finished.
//!
//! The engine that scrubs knows no time, so all of it is given by whoever has a clock.

use uraid_layout::{Sectors, StripeId};

use crate::format::units::UnixSeconds;

/// What a scrub does about what it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubMode {
    /// Nothing: it writes no content at all.
    Check,
    /// Repairs what is certainly wrong ([`Blame::Certain`](crate::engine::Blame::Certain)).
    Repair,
    /// Repairs data that two parity units speak against, too ([`Blame::Suspected`](crate::engine::Blame::Suspected)).
    /// Where such a unit was wrong and was then overwritten in part of a stripe, this undoes the overwriting: for
    /// arrays that were only read since they were found wrong.
    RepairSuspects,
}

/// What is on record of scrubs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubHistory {
    /// When the last one was finished that compared everything; none was: none.
    pub finished: Option<UnixSeconds>,
    /// One that was begun and has not ended.
    pub run: Option<ScrubRun>,
    /// Nobody knows where redundancy agrees: the map of blank regions was damaged on all members. A scrub that repairs
    /// and leaves nothing as it found it ends that.
    pub is_owed: bool,
}

/// How far a scrub is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubRun {
    /// What it does about what it finds.
    pub mode: ScrubMode,
    /// The first parity stripe that may not be done.
    pub position: StripeId,
    /// What was found before that; what was found beyond may be in it, and then counts twice.
    pub found: ScrubFound,
}

/// What a scrub has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubFound {
    /// What was wrong: of units, or of parity groups where the unit is not known.
    pub mismatched: Sectors,
    /// What of that was made right.
    pub repaired: Sectors,
    /// Parity that could not be checked, because members are missing or could not be read.
    pub unchecked: Sectors,
}

impl ScrubHistory {
    /// The same where a scrub is owed: one that was begun starts over.
    #[must_use]
    pub(crate) fn owed(self) -> Self {
        let run = self.run.map(|run| ScrubRun { position: StripeId(0), ..run });
        Self { run, is_owed: true, ..self }
    }
}

impl ScrubMode {
    /// The mode's number on record; zero is that of no scrub.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Check => 1,
            Self::Repair => 2,
            Self::RepairSuspects => 3,
        }
    }

    /// The inverse of [`ScrubMode::code`].
    pub(super) fn of_code(code: u8) -> Option<Self> {
        [Self::Check, Self::Repair, Self::RepairSuspects].into_iter().find(|mode| mode.code() == code)
    }
}
