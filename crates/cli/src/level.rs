//! A RAID level and its placement, as the command line says them.

use clap::{Args, ValueEnum};
use uraid_layout::{Bytes, Level, Placement, Rotation};
use uraid_serve::names::{layout_name, level_name};

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
    /// Two parity groups for each block: any two members may fail
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
    /// RAID 5: left-symmetric (default), left-asymmetric, right-symmetric, right-asymmetric. RM2: adjacent (default),
    /// partitioned. RAID 10: near.
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
    /// A level's name.
    fn of(level: Level) -> Self {
        match level {
            Level::Raid0 => Self::Raid0,
            Level::Raid1 => Self::Raid1,
            Level::Raid10 { .. } => Self::Raid10,
            Level::Raid5 { .. } => Self::Raid5,
            Level::Rm2 { .. } => Self::Rm2,
        }
    }

    /// The level in its default layout; what is not said of `rm2_m` and `copies` has the default for `members` members.
    pub(crate) fn level(self, members: u8, rm2_m: Option<u8>, copies: Option<u8>) -> Level {
        match self {
            Self::Raid0 => Level::Raid0,
            Self::Raid1 => Level::Raid1,
            Self::Raid10 => Level::Raid10 { copies: copies.unwrap_or(2) },
            Self::Raid5 => Level::Raid5 { rotation: Rotation::LeftSymmetric },
            Self::Rm2 => {
                let height = rm2_m.unwrap_or_else(|| uraid_layout::geometry::default_height(members));
                Level::Rm2 { height, placement: Placement::Adjacent }
            }
        }
    }
}

impl PlacementArgs {
    /// Refuses options of a level that takes none but the chunk.
    pub(crate) fn ensure_default(&self, level: &str) -> Result<(), Misuse> {
        let VariantArgs { layout, rm2_m, copies } = &self.variant;
        let given = [("--layout", layout.is_some()), ("--rm2-m", rm2_m.is_some()), ("--copies", copies.is_some())];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => Err(Misuse(format!("{level} does not take {option}; leave it out"))),
            None => Ok(()),
        }
    }

    /// The level with the options that it takes, for `members` members.
    pub(crate) fn level(&self, name: LevelName, members: u8) -> Result<Level, Misuse> {
        self.variant.level(name, members)
    }
}

impl ShapeArgs {
    /// Whether anything is said.
    pub(crate) fn is_empty(&self) -> bool {
        let VariantArgs { layout, rm2_m, copies } = &self.variant;
        let options = layout.is_none() && rm2_m.is_none() && copies.is_none();
        self.level.is_none() && self.chunk.is_none() && options
    }

    /// The level that an array of `before` is to get, for `members` members.
    pub(crate) fn level(&self, before: Level, members: u8) -> Result<Level, Misuse> {
        let name = self.level.unwrap_or_else(|| LevelName::of(before));
        let mut variant = self.variant.clone();
        if name == LevelName::of(before) {
            match before {
                Level::Raid0 | Level::Raid1 => {}
                Level::Raid10 { copies } => variant.copies = variant.copies.or(Some(copies)),
                Level::Raid5 { .. } => variant.layout = variant.layout.or_else(|| Some(layout_name(before).into())),
                Level::Rm2 { height, .. } => {
                    let most = uraid_layout::geometry::default_height(members);
                    variant.rm2_m = variant.rm2_m.or(Some(height.min(most)));
                    variant.layout = variant.layout.or_else(|| Some(layout_name(before).into()));
                }
            }
        }
        variant.level(name, members)
    }
}

impl VariantArgs {
    /// The level with these options, for `members` members.
    fn level(&self, name: LevelName, members: u8) -> Result<Level, Misuse> {
        let Self { ref layout, rm2_m, copies } = *self;
        let layout = layout.as_deref();
        let refuse = |text: String| Err(Misuse(text));
        let level = match (name.level(members, rm2_m, copies), layout) {
            (level, None) | (level @ Level::Raid10 { .. }, Some("near")) => level,
            (Level::Raid5 { .. }, Some(name)) => {
                let rotation = match name {
                    "left-symmetric" => Rotation::LeftSymmetric,
                    "left-asymmetric" => Rotation::LeftAsymmetric,
                    "right-symmetric" => Rotation::RightSymmetric,
                    "right-asymmetric" => Rotation::RightAsymmetric,
                    _ => {
                        return refuse(format!(
                            "RAID 5 has no layout '{name}'; choose left-symmetric, left-asymmetric, right-symmetric or \
                             right-asymmetric"
                        ));
                    }
                };
                Level::Raid5 { rotation }
            }
            (Level::Rm2 { height, .. }, Some(name)) => {
                let placement = match name {
                    "adjacent" => Placement::Adjacent,
                    "partitioned" => Placement::Partitioned,
                    _ => return refuse(format!("RM2 has no layout '{name}'; choose adjacent or partitioned")),
                };
                Level::Rm2 { height, placement }
            }
            (level, Some(layout)) => {
                let name = level_name(level);
                return refuse(format!("RAID {name} has no layout '{layout}'; leave --layout out"));
            }
        };
        check(level, rm2_m, copies)?;
        Ok(level)
    }
}

/// Refuses what another level takes.
pub(crate) fn check(level: Level, rm2_m: Option<u8>, copies: Option<u8>) -> Result<(), Misuse> {
    if rm2_m.is_some() && !matches!(level, Level::Rm2 { .. }) {
        return Err(Misuse("--rm2-m is for level rm2 only".into()));
    }
    if copies.is_some() && !matches!(level, Level::Raid10 { .. }) {
        return Err(Misuse("--copies is for level 10 only".into()));
    }
    Ok(())
}
