//! The names of levels and of their layouts, as options, status and metrics have them.

use uraid_layout::{Level, Placement, Rotation};

/// The level as `--level` takes it.
#[must_use]
pub fn level_name(level: Level) -> &'static str {
    match level {
        Level::Raid0 => "0",
        Level::Raid1 => "1",
        Level::Raid10 { .. } => "10",
        Level::Raid5 { .. } => "5",
        Level::Raid6 { .. } => "6",
        Level::Rm2 { .. } => "rm2",
    }
}

/// A level's name in text.
#[must_use]
pub fn level_title(name: &str) -> String {
    if name == "rm2" { "RM2".to_owned() } else { format!("RAID {name}") }
}

/// The layout as `--layout` takes it.
#[must_use]
pub fn layout_name(level: Level) -> &'static str {
    match level {
        Level::Raid0 => "striped",
        Level::Raid1 => "mirrored",
        Level::Raid10 { .. } => "near",
        Level::Raid5 { rotation } | Level::Raid6 { rotation } => match rotation {
            Rotation::LeftAsymmetric => "left-asymmetric",
            Rotation::RightAsymmetric => "right-asymmetric",
            Rotation::LeftSymmetric => "left-symmetric",
            Rotation::RightSymmetric => "right-symmetric",
        },
        Level::Rm2 { placement, .. } => match placement {
            Placement::Adjacent => "adjacent",
            Placement::Partitioned => "partitioned",
        },
    }
}
