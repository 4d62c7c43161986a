//! The levels that can be simulated: one more than real arrays have.

use clap::ValueEnum;

use crate::level::LevelName;

/// A level that can be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ModelledLevel {
    /// Striping
    #[value(name = "0")]
    Raid0,
    /// Mirrors
    #[value(name = "1")]
    Raid1,
    /// Striped mirrors
    #[value(name = "10")]
    Raid10,
    /// Rotating parity
    #[value(name = "5")]
    Raid5,
    /// Rotating P and Q: simulated only, with at most one member missing
    #[value(name = "6")]
    Raid6,
    /// Two parity groups for each block
    #[value(name = "rm2")]
    Rm2,
}

impl ModelledLevel {
    /// The level of real arrays; none is a RAID 6.
    pub(super) fn real(self) -> Option<LevelName> {
        Some(match self {
            Self::Raid0 => LevelName::Raid0,
            Self::Raid1 => LevelName::Raid1,
            Self::Raid10 => LevelName::Raid10,
            Self::Raid5 => LevelName::Raid5,
            Self::Raid6 => return None,
            Self::Rm2 => LevelName::Rm2,
        })
    }
}
