//! A RAID level and its placement, as the command line says them.

use clap::{Args, ValueEnum};
use uraid_layout::{Bytes, Level};
use uraid_serve::shape::Variant;

use crate::misuse::Misuse;
use crate::values::bytes;

/// The most members of an array.
pub(crate) const MEMBERS_MAX: i64 = 64;

/// A RAID level, as the command line says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LevelName {
    /// Striping: survives no failure
    #[value(name = "0")]
    Raid0,
    /// Mirrors: all members but one may fail
    #[value(name = "1")]
    Raid1,
    /// Striped mirrors: one copy of each block has to be left
    #[value(name = "10")]
    Raid10,
    /// Rotating parity: any one member may fail
    #[value(name = "5")]
    Raid5,
    /// Rotating P and Q: any two members may fail
    #[value(name = "6")]
    Raid6,
    /// Two parity groups for each block, by XOR alone: any two members may fail
    #[value(name = "rm2")]
    Rm2,
}

/// How a level places what it keeps.
#[derive(Debug, Args)]
pub(crate) struct PlacementArgs {
    /// Chunk size: 4K to 1M
    #[arg(long, value_parser = bytes, default_value = "64K", value_name = "SIZE")]
    pub(crate) chunk: Bytes,
    #[command(flatten)]
    variant: VariantArgs,
}

/// The shape that an array is to get; what is not said stays as it is.
#[derive(Debug, Args)]
pub(crate) struct ShapeArgs {
    /// RAID level
    #[arg(long, short, value_enum)]
    level: Option<LevelName>,
    /// Chunk size: 4K to 1M
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    pub(crate) chunk: Option<Bytes>,
    #[command(flatten)]
    variant: VariantArgs,
}

/// The options within a level.
#[derive(Clone, Debug, Args)]
struct VariantArgs {
    /// Placement within the level
    ///
    /// RAID 5 and 6: left-symmetric (default), left-asymmetric, right-symmetric, right-asymmetric. RM2: adjacent
    /// (default), partitioned. RAID 10: near.
    #[arg(long, value_name = "NAME")]
    layout: Option<String>,
    /// RM2: rows per parity stripe [default: as many as possible]
    ///
    /// One row of each stripe holds parity, so more rows leave more room for data.
    #[arg(long, value_name = "M")]
    rm2_m: Option<u8>,
    /// RAID 10: copies of each block [default: 2]
    #[arg(long, value_name = "N")]
    copies: Option<u8>,
}

impl LevelName {
    /// The name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Raid0 => "0",
            Self::Raid1 => "1",
            Self::Raid10 => "10",
            Self::Raid5 => "5",
            Self::Raid6 => "6",
            Self::Rm2 => "rm2",
        }
    }

    /// The level in its default layout, with those of the options that it takes; what is not said has the default for
    /// `members` members.
    pub(crate) fn level(self, members: u8, rm2_m: Option<u8>, copies: Option<u8>) -> Level {
        let (rm2_m, copies) = (rm2_m.filter(|_| self == Self::Rm2), copies.filter(|_| self == Self::Raid10));
        let variant = Variant { layout: None, rm2_m, copies };
        variant.level(self.name(), members).expect("a level takes its own options")
    }
}

impl PlacementArgs {
    /// The level with the options that it takes, for `members` members.
    pub(crate) fn level(&self, name: LevelName, members: u8) -> Result<Level, Misuse> {
        self.variant.named().level(name.name(), members).map_err(Misuse)
    }
}

impl ShapeArgs {
    /// Whether anything is said.
    pub(crate) fn is_empty(&self) -> bool {
        let VariantArgs { layout, rm2_m, copies } = &self.variant;
        let options = layout.is_none() && rm2_m.is_none() && copies.is_none();
        self.level.is_none() && self.chunk.is_none() && options
    }

    /// The name of the level, and the options within it.
    pub(crate) fn level(&self) -> (Option<&'static str>, Variant) {
        (self.level.map(LevelName::name), self.variant.named())
    }

    /// The level that an array of `before` is to get, for `members` members.
    pub(crate) fn level_after(&self, before: Level, members: u8) -> Result<Level, Misuse> {
        let (name, variant) = self.level();
        variant.level_after(name, before, members).map_err(Misuse)
    }
}

impl VariantArgs {
    fn named(&self) -> Variant {
        let Self { layout, rm2_m, copies } = self.clone();
        Variant { layout, rm2_m, copies }
    }
}
