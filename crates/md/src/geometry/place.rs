//! What all levels answer with.

use uraid_layout::{DiskSector, Sectors};

use crate::superblock::Level;

/// A member's place in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u16);

/// A sector of a member, counted from the start of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Which member.
    pub slot: Slot,
    /// Which sector.
    pub sector: DiskSector,
}

/// Where a sector of the array is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Where its content is: each of these has all of it.
    pub copies: Vec<Place>,
    /// How many sectors from there on are beside each other, at least 1.
    pub run: Sectors,
}

/// What belongs to one parity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// The sector, on every member.
    pub sector: DiskSector,
    /// The member that has the content.
    pub own: Slot,
    /// Members with data, and the power of 2 by which each counts in Q.
    pub data: Vec<(Slot, usize)>,
    /// The member with the XOR of all data.
    pub p: Slot,
    /// The member with the other parity of RAID 6.
    pub q: Option<Slot>,
}

/// Why there is no such array.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The level is not read here.
    #[error("{0} is not supported")]
    Level(Level),
    /// The layout is not known.
    #[error("{level} has no layout {layout:#x}")]
    Layout {
        /// The level.
        level: Level,
        /// The layout.
        layout: u32,
    },
    /// The level can't have such a chunk.
    #[error("{level} can't have chunks of {} sectors", chunk.0)]
    Chunk {
        /// The level.
        level: Level,
        /// The chunk.
        chunk: Sectors,
    },
    /// The level can't have so many members.
    #[error("{level} can't have {members} members")]
    Members {
        /// The level.
        level: Level,
        /// How many.
        members: u16,
    },
    /// Different sectors of the array would be in one place.
    #[error("this layout of RAID 10 puts different content into one place when there are {members} members")]
    Overlap {
        /// How many.
        members: u16,
    },
    /// RAID 0 of unequal members, and nothing says in which of two ways content goes round.
    #[error(
        "its members differ in size, and nothing on them says whether Linux 3.13 or older (original) or a newer one \
         (alternate) wrote it"
    )]
    ZoneOrder,
    /// The sizes are not what disks can have.
    #[error("it is larger than anything that can be addressed")]
    TooLarge,
}
