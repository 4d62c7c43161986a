//! The specification of an array, and why one may be impossible.

use core::fmt;

use super::rm2;
use crate::{Bytes, Sectors};

/// What a geometry is built from. Plain data: only [`Geometry::new`](super::Geometry::new) says whether it makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// The level with its options.
    pub level: Level,
    /// How many members the array has.
    pub members: u8,
    /// The chunk (stripe unit): 4 KiB to 1 MiB, a multiple of 4 KiB.
    pub chunk: Bytes,
    /// The data area of the smallest member.
    pub member_size: Sectors,
}

/// A level with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// Striping without redundancy, 2 to 64 members.
    Raid0,
    /// Every member holds the same data, 2 to 64 members.
    Raid1,
    /// Striped copies, near each other; 2 to 64 members, odd numbers too.
    Raid10 {
        /// How many members hold each unit: 2 to the number of members.
        copies: u8,
    },
    /// Rotated parity, 3 to 64 members.
    Raid5 {
        /// How parity and data rotate from stripe to stripe.
        rotation: Rotation,
    },
    /// Two rotated parities, P the XOR of the data and Q its sum in GF(2^8), so that any two failures are survived; 4
    /// to 64 members.
    Raid6 {
        /// How parity and data rotate from stripe to stripe: Q is after P.
        rotation: Rotation,
    },
    /// Two parity groups for each data unit, so that any two failures are survived by XOR alone; 4 to 32 members.
    Rm2 {
        /// The rows of a parity stripe (the papers' M), of which one holds parity: 2 to
        /// [`default_height`](super::default_height).
        height: u8,
        /// Where the rows of a parity stripe are on a member.
        placement: Placement,
    },
}

/// How RAID 5 and 6 rotate, numbered as Linux md numbers its layouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Rotation {
    /// Parity moves from the last member to the first; data starts on the first member.
    LeftAsymmetric = 0,
    /// Parity moves from the first member to the last; data starts on the first member.
    RightAsymmetric = 1,
    /// Parity moves from the last member to the first; data starts after the parity and wraps.
    #[default]
    LeftSymmetric = 2,
    /// Parity moves from the first member to the last; data starts after the parity and wraps.
    RightSymmetric = 3,
}

/// Where RM2 keeps the rows of a parity stripe on a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Next to each other: the papers' modified RM2 (Figure 6), short seeks between data and parity.
    #[default]
    Adjacent,
    /// One partition of the member for each row: the papers' original RM2 (Figure 5).
    Partitioned,
}

/// Why no array can follow a [`Spec`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// The level doesn't work with this number of members.
    #[error("{level} takes {min} to {max} members, not {members}")]
    Members {
        /// The level asked for.
        level: Level,
        /// The members asked for.
        members: u8,
        /// The fewest members that the level takes.
        min: u8,
        /// The most members that the level takes.
        max: u8,
    },
    /// RAID 10 can't keep this number of copies.
    #[error("RAID 10 on {members} members keeps 2 to {members} copies of each unit, not {copies}")]
    Copies {
        /// The members asked for.
        members: u8,
        /// The copies asked for.
        copies: u8,
    },
    /// No RM2 placement of this height survives every two failures.
    #[error(
        "RM2 on {members} members survives any two failures with parity stripes of 2 to {max} rows (M), not {height}; \
         use M = {max} for the most capacity or add members"
    )]
    Height {
        /// The members asked for.
        members: u8,
        /// The height asked for.
        height: u8,
        /// The largest height that these members allow.
        max: u8,
    },
    /// The chunk is out of bounds or unaligned.
    #[error("a chunk is 4 KiB to 1 MiB and a multiple of 4 KiB; {chunk} bytes is not")]
    Chunk {
        /// The chunk asked for.
        chunk: Bytes,
    },
    /// The chunk of an array for study isn't a whole number of sectors.
    #[error("a chunk is whole sectors of 512 bytes; {chunk} bytes is not")]
    ModelledChunk {
        /// The chunk asked for.
        chunk: Bytes,
    },
    /// The smallest member has no room for a single parity stripe.
    #[error(
        "the smallest member has {member_size} sectors for data, one parity stripe takes {needed}; \
         use larger members or a smaller chunk"
    )]
    MemberTooSmall {
        /// The data area offered.
        member_size: Sectors,
        /// The least data area that makes an array.
        needed: Sectors,
    },
    /// The smallest member is beyond what addresses can count.
    #[error("the smallest member has {member_size} sectors for data; use at most {MAX_MEMBER_SECTORS} of each member")]
    MemberTooLarge {
        /// The data area offered.
        member_size: Sectors,
    },
}

/// The largest data area of a member, 64 PiB: even 64 of them make an array whose size in bytes fits a signed 64-bit
/// number, which is what clients and system calls count with.
const MAX_MEMBER_SECTORS: u64 = 1 << 47;

const CHUNK_STEP_BYTES: u64 = 4 << 10;
const MAX_CHUNK_BYTES: u64 = 1 << 20;

impl Level {
    /// What people call the level, without its options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raid0 => "RAID 0",
            Self::Raid1 => "RAID 1",
            Self::Raid10 { .. } => "RAID 10",
            Self::Raid5 { .. } => "RAID 5",
            Self::Raid6 { .. } => "RAID 6",
            Self::Rm2 { .. } => "RM2",
        }
    }

    /// Whether redundancy is copies of the data, and not parity of it.
    #[must_use]
    pub const fn is_mirrored(self) -> bool {
        matches!(self, Self::Raid1 | Self::Raid10 { .. })
    }

    /// Whether redundancy is parity of the data.
    #[must_use]
    pub const fn has_parity(self) -> bool {
        matches!(self, Self::Raid5 { .. } | Self::Raid6 { .. } | Self::Rm2 { .. })
    }

    /// The fewest and the most members that the level takes.
    #[must_use]
    pub const fn members(self) -> core::ops::RangeInclusive<u8> {
        match self {
            Self::Raid0 | Self::Raid1 | Self::Raid10 { .. } => 2..=64,
            Self::Raid5 { .. } => 3..=64,
            Self::Raid6 { .. } => 4..=64,
            Self::Rm2 { .. } => rm2::MIN_MEMBERS..=rm2::MAX_MEMBERS,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Rotation {
    /// Every rotation, indexed by its number.
    pub const ALL: [Self; 4] = [Self::LeftAsymmetric, Self::RightAsymmetric, Self::LeftSymmetric, Self::RightSymmetric];
}

impl Spec {
    /// Checks everything but the room for the parity stripes, and gives the chunk in sectors.
    pub(super) fn check(&self) -> Result<Sectors, GeometryError> {
        self.check_level(*self.level.members().start())?;
        let chunk = self.chunk;
        if !(CHUNK_STEP_BYTES..=MAX_CHUNK_BYTES).contains(&chunk.0) || !chunk.0.is_multiple_of(CHUNK_STEP_BYTES) {
            return Err(GeometryError::Chunk { chunk });
        }
        Ok(chunk.whole_sectors())
    }

    /// The same for an array for study; see [`Geometry::modelled`](super::Geometry::modelled).
    pub(super) fn check_modelled(&self) -> Result<Sectors, GeometryError> {
        let min = if self.level == Level::Raid0 { 1 } else { *self.level.members().start() };
        self.check_level(min)?;
        let chunk = self.chunk.whole_sectors();
        if chunk.bytes() != self.chunk || !(1..=MAX_MEMBER_SECTORS).contains(&chunk.0) {
            return Err(GeometryError::ModelledChunk { chunk: self.chunk });
        }
        Ok(chunk)
    }

    fn check_level(&self, min: u8) -> Result<(), GeometryError> {
        let Self { level, members, member_size, .. } = *self;
        let range = min..=*level.members().end();
        if !range.contains(&members) {
            return Err(GeometryError::Members { level, members, min: *range.start(), max: *range.end() });
        }
        match level {
            Level::Raid10 { copies } if !(2..=members).contains(&copies) => {
                return Err(GeometryError::Copies { members, copies });
            }
            Level::Rm2 { height, .. } if rm2::rm2_seed(members, height).is_none() => {
                return Err(GeometryError::Height { members, height, max: rm2::default_height(members) });
            }
            _ => {}
        }
        if member_size.0 > MAX_MEMBER_SECTORS {
            return Err(GeometryError::MemberTooLarge { member_size });
        }
        Ok(())
    }
}
