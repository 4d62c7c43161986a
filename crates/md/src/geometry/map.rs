//! The geometry of any level.

use uraid_layout::{DiskSector, Lba, Sectors};

use super::copies::Copies;
use super::parity::Parity;
use super::place::{GeometryError, Located, Place, Slot, Stripe};
use super::zones::{ZoneOrder, Zones};
use crate::superblock::Level;

/// The largest array and the largest member, in sectors: no number derived from them overflows.
const SECTORS_MAX: u64 = 1 << 54;

/// What an array is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its level.
    pub level: Level,
    /// What the level makes of it.
    pub layout: u32,
    /// The chunk.
    pub chunk: Sectors,
    /// How much of each member is used; not for RAID 0 and linear arrays.
    pub member_size: Sectors,
    /// The room of each member, by slots.
    pub sizes: Vec<Sectors>,
    /// For RAID 0 of unequal members.
    pub zone_order: Option<ZoneOrder>,
}

/// Where each sector of an array is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    members: u16,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Zones(Zones),
    /// All members have the same content.
    Mirror(Sectors),
    Parity(Parity),
    Copies(Copies),
}

impl Geometry {
    /// The geometry of an array of this shape.
    ///
    /// # Errors
    /// [`GeometryError`] if there is no such array.
    pub fn new(shape: &Shape) -> Result<Self, GeometryError> {
        let Shape { level, layout, chunk, member_size, ref sizes, zone_order } = *shape;
        let members = u16::try_from(sizes.len()).map_err(|_| GeometryError::TooLarge)?;
        let total = sizes.iter().try_fold(0_u64, |sum, size| sum.checked_add(size.0));
        let is_usual = total.is_some_and(|total| total <= SECTORS_MAX) && member_size.0 <= SECTORS_MAX / 2048;
        if !is_usual || chunk.0 > u32::MAX.into() {
            return Err(GeometryError::TooLarge);
        }
        if members == 0 {
            return Err(GeometryError::Members { level, members });
        }
        let kind = match level {
            Level::Linear => Kind::Zones(Zones::linear(sizes, chunk)),
            Level::Raid0 if chunk.0 == 0 => return Err(GeometryError::Chunk { level, chunk }),
            Level::Raid0 => Kind::Zones(Zones::striped(sizes, chunk, zone_order)?),
            Level::Raid1 => Kind::Mirror(member_size),
            Level::Raid4 | Level::Raid5 | Level::Raid6 => {
                Kind::Parity(Parity::new(level, layout, members, chunk, member_size)?)
            }
            Level::Raid10 => Kind::Copies(Copies::new(layout, members, chunk, member_size)?),
            Level::Other(_) => return Err(GeometryError::Level(level)),
        };
        Ok(Self { members, kind })
    }

    /// How many sectors the array has.
    #[must_use]
    pub fn capacity(&self) -> Sectors {
        match &self.kind {
            Kind::Zones(zones) => zones.capacity(),
            Kind::Mirror(size) => *size,
            Kind::Parity(parity) => parity.capacity(),
            Kind::Copies(copies) => copies.capacity(),
        }
    }

    /// Where a sector is; `None` beyond the end.
    #[must_use]
    pub fn locate(&self, lba: Lba) -> Option<Located> {
        match &self.kind {
            Kind::Zones(zones) => zones.locate(lba),
            Kind::Mirror(size) => {
                let run = Sectors(size.0.checked_sub(lba.0).filter(|&run| run > 0)?);
                let place = |slot| Place { slot: Slot(slot), sector: DiskSector(lba.0) };
                Some(Located { copies: (0..self.members).map(place).collect(), run })
            }
            Kind::Parity(parity) => parity.locate(lba),
            Kind::Copies(copies) => copies.locate(lba),
        }
    }

    /// What a sector can be computed from; `None` without parity, and beyond the end.
    #[must_use]
    pub fn stripe(&self, lba: Lba) -> Option<Stripe> {
        match &self.kind {
            Kind::Parity(parity) => parity.stripe(lba),
            Kind::Zones(_) | Kind::Mirror(_) | Kind::Copies(_) => None,
        }
    }

    /// Whether all content is there with the members of which `is_there`.
    #[must_use]
    pub fn survives(&self, is_there: impl Fn(Slot) -> bool) -> bool {
        let missing = (0..self.members).filter(|&slot| !is_there(Slot(slot))).count() as u64;
        match &self.kind {
            Kind::Zones(_) => missing == 0,
            Kind::Mirror(_) => missing < self.members.into(),
            Kind::Parity(parity) => missing <= parity.parities(),
            Kind::Copies(copies) => {
                let chunks = (0..copies.period()).map_while(|chunk| copies.locate(Lba(chunk * copies.chunk())));
                missing == 0 || chunks.into_iter().all(|located| located.copies.iter().any(|copy| is_there(copy.slot)))
            }
        }
    }
}
