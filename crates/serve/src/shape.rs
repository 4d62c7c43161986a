//! Shapes of arrays in words.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use uraid_layout::geometry::default_height;
use uraid_layout::{Level, Placement, Rotation};

use crate::names::{layout_name, level_name, level_title};

/// The options within a level; what is not said has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// The placement, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
    /// RM2: rows of a parity stripe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rm2_m: Option<u8>,
    /// RAID 10: copies of each block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u8>,
}

/// The shape that an array is to get, and who joins or leaves it; what is not said stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WantedShape {
    /// The level, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// The options within it.
    #[serde(default)]
    pub variant: Variant,
    /// The chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_bytes: Option<u64>,
    /// Empty files and devices that become members.
    #[serde(default)]
    pub add: Vec<PathBuf>,
    /// Members that leave, of the last slots.
    #[serde(default)]
    pub remove: Vec<PathBuf>,
    /// Overwrite what new members hold.
    #[serde(default)]
    pub force: bool,
    /// Although members are missing.
    #[serde(default)]
    pub degraded: bool,
}

impl Variant {
    /// The level of this name with these options, for `members` members.
    ///
    /// # Errors
    /// What is wrong with the words.
    pub fn level(&self, name: &str, members: u8) -> Result<Level, String> {
        let levels = levels(self.rm2_m.unwrap_or_else(|| default_height(members)), self.copies.unwrap_or(2));
        let of_name: Vec<Level> = levels.into_iter().filter(|&level| level_name(level) == name).collect();
        let first = *of_name.first().ok_or_else(|| format!("there is no level '{name}'"))?;
        if self.rm2_m.is_some() && !matches!(first, Level::Rm2 { .. }) {
            return Err("--rm2-m is for level rm2 only".into());
        }
        if self.copies.is_some() && !matches!(first, Level::Raid10 { .. }) {
            return Err("--copies is for level 10 only".into());
        }
        let Some(layout) = &self.layout else { return Ok(first) };
        let title = level_title(name);
        match of_name.iter().find(|&&level| layout_name(level) == layout) {
            _ if matches!(first, Level::Raid0 | Level::Raid1) => {
                Err(format!("{title} has no layout '{layout}'; leave --layout out"))
            }
            Some(&level) => Ok(level),
            None => {
                let known: Vec<&str> = of_name.into_iter().map(layout_name).collect();
                Err(format!("{title} has no layout '{layout}'; choose {}", known.join(", ")))
            }
        }
    }

    /// The level that an array of `before` is to get, for `members` members: of this name, or the one that it has. What
    /// is not said of that stays as it is.
    ///
    /// # Errors
    /// As [`Variant::level`].
    pub fn level_after(&self, name: Option<&str>, before: Level, members: u8) -> Result<Level, String> {
        let name = name.unwrap_or_else(|| level_name(before));
        let mut variant = self.clone();
        if name == level_name(before) {
            let keep_layout = |layout: Option<String>| layout.or_else(|| Some(layout_name(before).to_owned()));
            match before {
                Level::Raid0 | Level::Raid1 => {}
                Level::Raid10 { copies } => variant.copies = variant.copies.or(Some(copies)),
                Level::Raid5 { .. } | Level::Raid6 { .. } => variant.layout = keep_layout(variant.layout),
                Level::Rm2 { height, .. } => {
                    variant.rm2_m = variant.rm2_m.or(Some(height.min(default_height(members))));
                    variant.layout = keep_layout(variant.layout);
                }
            }
        }
        variant.level(name, members)
    }
}

/// All levels and placements; the default placement of each first.
fn levels(height: u8, copies: u8) -> Vec<Level> {
    let rotations =
        [Rotation::LeftSymmetric, Rotation::LeftAsymmetric, Rotation::RightSymmetric, Rotation::RightAsymmetric];
    let placements = [Placement::Adjacent, Placement::Partitioned];
    [Level::Raid0, Level::Raid1, Level::Raid10 { copies }]
        .into_iter()
        .chain(rotations.map(|rotation| Level::Raid5 { rotation }))
        .chain(rotations.map(|rotation| Level::Raid6 { rotation }))
        .chain(placements.map(|placement| Level::Rm2 { height, placement }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(layout: Option<&str>, rm2_m: Option<u8>, copies: Option<u8>) -> Variant {
        Variant { layout: layout.map(str::to_owned), rm2_m, copies }
    }

    #[test]
    fn what_is_not_said_has_its_default() {
        let left = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        assert_eq!(variant(None, None, None).level("5", 4), Ok(left));
        assert_eq!(variant(None, None, None).level("10", 4), Ok(Level::Raid10 { copies: 2 }));
        assert_eq!(variant(None, None, None).level("6", 5), Ok(Level::Raid6 { rotation: Rotation::LeftSymmetric }));
        let rm2 = Level::Rm2 { height: 3, placement: Placement::Adjacent };
        assert_eq!(variant(None, Some(3), None).level("rm2", 7), Ok(rm2));
    }

    #[test]
    fn what_is_not_said_of_a_level_that_stays_stays() {
        let right = Level::Raid5 { rotation: Rotation::RightAsymmetric };
        assert_eq!(Variant::default().level_after(None, right, 5), Ok(right));
        assert_eq!(Variant::default().level_after(Some("5"), right, 5), Ok(right));
        let of_6 = Level::Raid6 { rotation: Rotation::RightAsymmetric };
        assert_eq!(Variant::default().level_after(None, of_6, 5), Ok(of_6));
        let partitioned = Level::Rm2 { height: 2, placement: Placement::Partitioned };
        assert_eq!(Variant::default().level_after(None, partitioned, 7), Ok(partitioned));
        assert_eq!(Variant::default().level_after(Some("0"), partitioned, 7), Ok(Level::Raid0));
    }

    #[test]
    fn options_of_other_levels_are_refused() {
        const NOT_OF_6: &str =
            "RAID 6 has no layout 'near'; choose left-symmetric, left-asymmetric, right-symmetric, right-asymmetric";
        for (given, name, expected) in [
            (variant(None, Some(3), None), "5", "--rm2-m is for level rm2 only"),
            (variant(None, None, Some(3)), "1", "--copies is for level 10 only"),
            (variant(Some("mirrored"), None, None), "1", "RAID 1 has no layout 'mirrored'; leave --layout out"),
            (variant(Some("far"), None, None), "10", "RAID 10 has no layout 'far'; choose near"),
            (variant(Some("near"), None, None), "rm2", "RM2 has no layout 'near'; choose adjacent, partitioned"),
            (variant(Some("near"), None, None), "6", NOT_OF_6),
            (variant(None, None, None), "7", "there is no level '7'"),
        ] {
            assert_eq!(given.level(name, 7), Err(expected.to_owned()));
        }
    }
}
