//! An array to answer questions about: an existing one, or one that options describe.

use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::Args;
use uraid_io::array::{candidates, judge};
use uraid_io::format::badblocks::BadBlocks;
use uraid_io::format::bitmap::{Bitmap, RegionId};
use uraid_io::format::superblock::Superblock;
use uraid_io::member::{Access, Member};
use uraid_io::{badblocks, blank};
use uraid_layout::reshape::Course;
use uraid_layout::{Bytes, Cell, Geometry, Lba, MemberIndex, MemberSet, Sectors, Spec, StripeId};

use crate::level::{LevelName, MEMBERS_MAX, PlacementArgs};
use crate::misuse::Misuse;
use crate::values::bytes;

/// An array that need not exist.
#[derive(Debug, Args)]
pub(super) struct DescribedArgs {
    /// RAID level of an array that need not exist
    #[arg(long, value_enum, requires = "member_count")]
    level: Option<LevelName>,
    /// Number of members of an array that need not exist
    #[arg(long = "members", id = "member_count", value_name = "N", requires = "level")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=MEMBERS_MAX))]
    count: Option<u8>,
    /// Data area of each member of an array that need not exist
    #[arg(long, value_parser = bytes, default_value = "1G", value_name = "SIZE")]
    size: Bytes,
    #[command(flatten)]
    placement: PlacementArgs,
}

/// A geometry, and the positions of its members' data areas.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) geometry: Geometry,
    pub(super) members: Vec<PlacedMember>,
    /// Members of an existing array that were not named or do not count.
    pub(super) missing: MemberSet,
    /// The regions that are not blank, where any are.
    pub(super) made: Option<Bitmap>,
    /// Set while the array is being reshaped.
    pub(super) between: Option<Between>,
}

/// An array's two shapes, and where they meet.
#[derive(Debug)]
pub(super) struct Between {
    pub(super) course: Course,
    /// What is below is in one shape, everything else is in the other.
    pub(super) mark: Lba,
    /// Blocks that may be at neither place: they are saved elsewhere.
    pub(super) moving: Range<Lba>,
    pub(super) is_back: bool,
    /// Somebody has the members open, and moves the mark.
    pub(super) is_in_use: bool,
}

impl Between {
    fn of(superblock: &Superblock, is_in_use: bool) -> Option<Self> {
        let (course, reshape) = (superblock.course()?, superblock.reshape?);
        let (mark, is_back) = (reshape.mark, reshape.is_back);
        let moving = course.ahead(mark, course.heading(is_back), reshape.saved).unwrap_or(mark..mark);
        Some(Self { course, mark, moving, is_back, is_in_use })
    }

    pub(super) fn is_below(&self, lba: Lba) -> bool {
        lba < self.mark
    }

    /// The shape that has a block.
    fn shape(&self, lba: Lba) -> &Geometry {
        if self.is_below(lba) { self.course.below() } else { self.course.above() }
    }

    /// Refuses a block that has no certain place.
    fn check(&self, lba: Lba) -> Result<()> {
        let Range { start, end } = self.moving;
        let then =
            if self.is_in_use { "ask again in a moment" } else { "go on with `uraid reshape MEMBERS`, and ask again" };
        ensure!(
            !self.moving.contains(&lba),
            "blocks {start} to {end} are moving to another shape, and are saved in the members' areas for logs until \
             they are there: {then}"
        );
        Ok(())
    }
}

/// One member.
#[derive(Clone, Debug, Default)]
pub(super) struct PlacedMember {
    /// `None` if the array does not exist, or the member is missing.
    pub(super) path: Option<PathBuf>,
    pub(super) data_offset: Bytes,
    /// Empty if the list is damaged: `uraid examine` says so.
    pub(super) bad_blocks: BadBlocks,
}

impl Placed {
    /// How many blocks the array has.
    pub(super) fn capacity(&self) -> Sectors {
        self.between.as_ref().map_or_else(|| self.geometry.capacity(), |between| between.course.kept())
    }

    /// The cells of a parity stripe that their members can't give in a column, because it is in their lists.
    pub(super) fn lacking(&self, stripe: StripeId, column: Sectors) -> Vec<Cell> {
        let lacks = |&cell: &Cell| {
            let (MemberIndex(member), sectors) = self.geometry.columns(stripe, cell, column, Sectors(1));
            self.members[usize::from(member)].bad_blocks.touches(&sectors)
        };
        (0_u16..).map(Cell).take(self.geometry.map(stripe).cells()).filter(lacks).collect()
    }

    /// The blank regions around a block, as a range of blocks; none: it is not blank.
    pub(super) fn blank(&self, lba: Lba) -> Option<Range<Lba>> {
        let made = self.made.as_ref()?;
        let (regions, stripe) = (made.regions(), self.geometry.split(lba).0);
        let own = regions.of(stripe);
        if made.contains(own) {
            return None;
        }
        let count = u32::try_from(regions.count()).expect("regions are few");
        let first = (0..own.0).rev().map(RegionId).take_while(|&region| !made.contains(region)).last().unwrap_or(own);
        let last = (own.0..count).map(RegionId).take_while(|&region| !made.contains(region)).last().unwrap_or(own);
        let lba = |stripe: StripeId| {
            let start = stripe.0.saturating_mul(self.geometry.stripe_sectors().0);
            Lba(start.min(self.geometry.capacity().0))
        };
        Some(lba(regions.stripes(first).start)..lba(regions.stripes(last).end))
    }
}

/// The array of these members, or without any the one that is described; while it is being reshaped, in the shape that
/// has this block.
pub(super) fn placed(members: &[PathBuf], args: &DescribedArgs, lba: Lba) -> Result<Placed> {
    if members.is_empty() { described(args) } else { existing(members, lba) }
}

fn existing(paths: &[PathBuf], lba: Lba) -> Result<Placed> {
    let named = candidates(paths, Access::Inspect)?;
    let known = named.members.into_iter().map(|opened| {
        let list = badblocks::load(&opened.member, &opened.candidate.superblock);
        ((list.unwrap_or_default(), opened.member), opened.candidate)
    });
    let (known, candidates): (Vec<_>, Vec<_>) = known.unzip();
    let verdict = judge(&candidates)?;
    let is_in_use = || paths.iter().any(|path| Member::user(path).is_some());
    let is_reshaped = verdict.superblock.reshape.is_some();
    let between = Between::of(&verdict.superblock, is_reshaped && is_in_use());
    between.as_ref().map_or(Ok(()), |between| between.check(lba))?;
    let geometry = between.as_ref().map_or(&verdict.geometry, |between| between.shape(lba)).clone();
    let counted = verdict.slots.iter().flatten().map(|&index| (&known[index].1, &candidates[index].superblock));
    let made = blank::load(&counted.collect::<Vec<_>>());
    let member = |index: &Option<usize>| {
        let candidate = index.map(|index| &candidates[index]);
        let path = candidate.map(|candidate| candidate.path.clone());
        // Missing members have their data at the same offset as the others, unless their sizes differ.
        let areas = candidate.map_or(verdict.superblock.areas, |candidate| candidate.superblock.areas);
        let bad_blocks = index.map_or_else(BadBlocks::default, |index| known[index].0.clone());
        PlacedMember { path, data_offset: areas.data.offset, bad_blocks }
    };
    let members = verdict.slots.iter().map(member).collect();
    Ok(Placed { members, missing: verdict.missing(), geometry, made, between })
}

fn described(args: &DescribedArgs) -> Result<Placed> {
    let (Some(name), Some(count)) = (args.level, args.count) else {
        bail!(Misuse("name the members of an array, or describe one with --level and --members".into()));
    };
    let level = args.placement.level(name, count)?;
    let spec = Spec { level, members: count, chunk: args.placement.chunk, member_size: args.size.whole_sectors() };
    let geometry = Geometry::new(spec)?;
    let members = vec![PlacedMember::default(); geometry.members()];
    Ok(Placed { geometry, members, missing: MemberSet::EMPTY, made: None, between: None })
}
