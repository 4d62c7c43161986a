//! The levels that can be simulated: one more than real arrays have.

use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::level::LevelName;

/// A level that can be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelledLevel {
    /// A level of real arrays.
    Real(LevelName),
    /// Rotating P and Q.
    Raid6,
}

impl ValueEnum for ModelledLevel {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::Real(LevelName::Raid0),
            Self::Real(LevelName::Raid1),
            Self::Real(LevelName::Raid10),
            Self::Real(LevelName::Raid5),
            Self::Raid6,
            Self::Real(LevelName::Rm2),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Real(name) => name.to_possible_value(),
            Self::Raid6 => {
                let help = "Rotating P and Q: simulated only, with at most one member missing";
                Some(PossibleValue::new("6").help(help))
            }
        }
    }
}
