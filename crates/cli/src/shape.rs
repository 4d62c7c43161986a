//! An array to answer questions about: an existing one, or one that options describe.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use uraid_io::array::{candidates, judge};
use uraid_io::format::superblock::{Consistency, Integrity};
use uraid_io::member::Access;
use uraid_layout::{Bytes, Geometry, Level, MemberSet, Placement, Rotation, Spec};

use crate::args::{DescribedArgs, MapArgs, Misuse};

/// A geometry, and the positions of its members' data areas.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) geometry: Geometry,
    pub(crate) members: Vec<PlacedMember>,
    /// Members of an existing array that were not named or do not count.
    pub(crate) missing: MemberSet,
}

/// One member.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlacedMember {
    /// `None` if the array does not exist, or the member is missing.
    pub(crate) path: Option<PathBuf>,
    pub(crate) data_offset: Bytes,
}

/// The array that `uraid map` was asked about.
pub(crate) fn placed(args: &MapArgs) -> Result<Placed> {
    if args.members.is_empty() { described(&args.described) } else { existing(&args.members) }
}

fn existing(paths: &[PathBuf]) -> Result<Placed> {
    let named = candidates(paths, Access::Inspect)?;
    let candidates: Vec<_> = named.members.into_iter().map(|opened| opened.candidate).collect();
    let verdict = judge(&candidates)?;
    let member = |index: &Option<usize>| {
        let candidate = index.map(|index| &candidates[index]);
        let path = candidate.map(|candidate| candidate.path.clone());
        // Missing members have their data at the same offset as the others, unless their sizes differ.
        let areas = candidate.map_or(verdict.superblock.areas, |candidate| candidate.superblock.areas);
        PlacedMember { path, data_offset: areas.data.offset }
    };
    let members = verdict.slots.iter().map(member).collect();
    Ok(Placed { members, missing: verdict.missing(), geometry: verdict.geometry })
}

fn described(args: &DescribedArgs) -> Result<Placed> {
    let (Some(name), Some(count)) = (args.level, args.count) else {
        bail!(Misuse("name the members of an array, or describe one with --level and --members".into()));
    };
    let level = args.placement.level(name, count)?;
    let spec = Spec { level, members: count, chunk: args.placement.chunk, member_size: args.size.whole_sectors() };
    let geometry = Geometry::new(spec)?;
    let members = vec![PlacedMember::default(); geometry.members()];
    Ok(Placed { geometry, members, missing: MemberSet::EMPTY })
}

/// The level as `--level` takes it.
pub(crate) fn level_name(level: Level) -> &'static str {
    match level {
        Level::Raid0 => "0",
        Level::Raid1 => "1",
        Level::Raid10 { .. } => "10",
        Level::Raid5 { .. } => "5",
        Level::Rm2 { .. } => "rm2",
    }
}

/// A level's name in text.
pub(crate) fn level_title(name: &str) -> String {
    if name == "rm2" { "RM2".to_owned() } else { format!("RAID {name}") }
}

/// The consistency as `--consistency` takes it.
pub(crate) fn consistency_name(consistency: Consistency) -> &'static str {
    match consistency {
        Consistency::Log => "log",
        Consistency::Bitmap => "bitmap",
        Consistency::None => "none",
    }
}

/// The integrity as `--integrity` takes it.
pub(crate) fn integrity_name(integrity: Integrity) -> &'static str {
    match integrity {
        Integrity::Crc32 => "crc32",
        Integrity::None => "none",
    }
}

/// The layout as `--layout` takes it.
pub(crate) fn layout_name(level: Level) -> &'static str {
    match level {
        Level::Raid0 => "striped",
        Level::Raid1 => "mirrored",
        Level::Raid10 { .. } => "near",
        Level::Raid5 { rotation } => match rotation {
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

/// The geometry that `uraid layout` draws: `stripes` of the level's own parity stripes.
pub(crate) fn drawn(level: Level, members: u8, chunk: Bytes, stripes: u16) -> Result<Geometry> {
    ensure!(stripes > 0, Misuse("there is nothing to draw in 0 stripes".into()));
    let height = if let Level::Rm2 { height, .. } = level { height } else { 1 };
    let member_size =
        chunk.0.checked_mul(u64::from(stripes) * u64::from(height)).map(|bytes| Bytes(bytes).whole_sectors());
    let member_size = member_size.context("the chunk is too large; it can be up to 1M")?;
    Ok(Geometry::new(Spec { level, members, chunk, member_size })?)
}
