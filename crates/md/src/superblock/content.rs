//! A superblock's content, whatever its version.

use std::fmt;
use std::str::FromStr;

use uraid_layout::{DiskSector, Sectors};

/// The version of a superblock's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 0.90, near the end of the device.
    V0_90,
    /// 1.0, at the end of the device.
    V1_0,
    /// 1.1, at the start of the device.
    V1_1,
    /// 1.2, 4 KiB from the start of the device.
    V1_2,
}

/// What all members of an array share. Shown as mdadm does: four groups of eight hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArrayUuid(pub [u8; 16]);

/// What an array does with its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// One member behind the other.
    Linear,
    /// Stripes without redundancy.
    Raid0,
    /// Copies.
    Raid1,
    /// Parity on one member.
    Raid4,
    /// Parity.
    Raid5,
    /// Two parities.
    Raid6,
    /// Stripes of copies.
    Raid10,
    /// Another number, of a level that is not read here.
    Other(i32),
}

/// What a device is to the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The member in this slot.
    Active(u16),
    /// In this slot, and never brought up to date: only version 0.90 says so.
    Joining(u16),
    /// A spare.
    Spare,
    /// A former member.
    Faulty,
    /// The write journal.
    Journal,
}

/// A superblock that is sound by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Its format.
    pub version: Version,
    /// Which array it is of.
    pub array: ArrayUuid,
    /// The array's name, without what is not a character; empty in version 0.90.
    pub name: String,
    /// When the array was made, in seconds since 1970.
    pub created: u64,
    /// The array's level.
    pub level: Level,
    /// What the level makes of it; see [`layout_words`](super::layout_words).
    pub layout: u32,
    /// The chunk; none for levels without.
    pub chunk: Sectors,
    /// How many members a whole array has.
    pub raid_disks: u16,
    /// How much of each member the array uses; none for RAID 0 and linear arrays.
    pub member_size: Sectors,
    /// Where the member's data begin on its device.
    pub data_offset: DiskSector,
    /// How much room for data the device has.
    pub data_size: Sectors,
    /// The device among those of the array: its index in `roles`.
    pub number: u32,
    /// The device's own UUID; version 0.90 has none.
    pub device: Option<[u8; 16]>,
    /// Counts changes of the array's state: of several superblocks the one with most events is right.
    pub events: u64,
    /// Up to where parity and copies agree, on each member; `None` if they do everywhere.
    pub resynced: Option<Sectors>,
    /// Up to where this member has its content; `None` if it does everywhere.
    pub recovered: Option<Sectors>,
    /// Whether the member is to take the place of another one, which is still there.
    pub is_replacement: bool,
    /// Roles of devices, by their numbers.
    pub roles: Vec<Role>,
    /// Where the list of bad blocks is on the device, and how many bits its blocks are larger than sectors.
    pub bad_blocks: Option<(DiskSector, Sectors, u8)>,
    /// Whether there is a write-intent bitmap.
    pub has_bitmap: bool,
    /// Whether there is a log of partial parity.
    pub has_ppl: bool,
    /// Whether there is a write journal.
    pub has_journal: bool,
    /// Whether the array is between two shapes.
    pub is_reshaping: bool,
    /// Whether the layout of a RAID 0 is on record.
    pub has_zone_order: bool,
}

/// Sectors of a device that do not have their content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRange {
    /// The first, counted from the start of the device.
    pub start: DiskSector,
    /// How many.
    pub len: Sectors,
}

/// Why a superblock does not count.
#[derive(Debug, thiserror::Error)]
pub enum SuperblockError {
    /// It can't be read.
    #[error("its superblock can't be read: {0}")]
    Io(#[from] std::io::Error),
    /// It goes on beyond what is there.
    #[error("its superblock is cut short")]
    Truncated,
    /// Its checksum is wrong.
    #[error(
        "its superblock (version {version}) is damaged: the checksum is {found:#010x} and should be {wanted:#010x}"
    )]
    Checksum {
        /// The format.
        version: Version,
        /// What is there.
        found: u32,
        /// What the content has.
        wanted: u32,
    },
    /// It was written by a machine of the other byte order.
    #[error("its superblock (version 0.90) is of a big-endian machine, which is not supported")]
    BigEndian,
    /// Its version is not known.
    #[error("its superblock has version {major}.{minor}, which is not known")]
    Version {
        /// The major version.
        major: u32,
        /// The minor one.
        minor: u32,
    },
    /// It has features that are not known, or fields that are to be zero.
    #[error("its superblock has features that are not known: {0}")]
    Feature(String),
    /// A number in it can't be.
    #[error("its superblock is not sound: {0}")]
    Unsound(&'static str),
    /// It was written for another place: the device was larger, or it is a copy.
    #[error(
        "its superblock is at sector {found} and says that it is at sector {said}: the device was moved or resized"
    )]
    Misplaced {
        /// Where it is.
        found: u64,
        /// Where it should be.
        said: u64,
    },
    /// The device ends before its data do.
    #[error("it ends after {found} sectors, and its data after {wanted}: it was cut short")]
    Short {
        /// How long the device is.
        found: u64,
        /// Where its data end.
        wanted: u64,
    },
    /// Its list of bad blocks can't be read.
    #[error("its list of bad blocks can't be read")]
    BadBlocks,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V0_90 => "0.90",
            Self::V1_0 => "1.0",
            Self::V1_1 => "1.1",
            Self::V1_2 => "1.2",
        })
    }
}

impl fmt::Display for ArrayUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if index > 0 && index % 4 == 0 { ":" } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for ArrayUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// From 32 hexadecimal digits, with colons or dashes wherever.
impl FromStr for ArrayUuid {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut digits = text.chars().filter(|character| !matches!(character, ':' | '-'));
        let mut bytes = [0; 16];
        for byte in &mut bytes {
            let [high, low] = [digits.next(), digits.next()].map(|digit| digit.and_then(|digit| digit.to_digit(16)));
            *byte = (high.ok_or(())? * 16 + low.ok_or(())?) as u8;
        }
        digits.next().is_none().then_some(Self(bytes)).ok_or(())
    }
}

impl From<i32> for Level {
    fn from(level: i32) -> Self {
        match level {
            -1 => Self::Linear,
            0 => Self::Raid0,
            1 => Self::Raid1,
            4 => Self::Raid4,
            5 => Self::Raid5,
            6 => Self::Raid6,
            10 => Self::Raid10,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linear => f.write_str("linear"),
            Self::Raid0 => f.write_str("RAID 0"),
            Self::Raid1 => f.write_str("RAID 1"),
            Self::Raid4 => f.write_str("RAID 4"),
            Self::Raid5 => f.write_str("RAID 5"),
            Self::Raid6 => f.write_str("RAID 6"),
            Self::Raid10 => f.write_str("RAID 10"),
            Self::Other(-4) => f.write_str("multipath"),
            Self::Other(-5) => f.write_str("faulty"),
            Self::Other(-100) => f.write_str("container"),
            Self::Other(number) => write!(f, "level {number}"),
        }
    }
}

impl Level {
    /// Whether members have parity.
    #[must_use]
    pub fn has_parity(self) -> bool {
        matches!(self, Self::Raid4 | Self::Raid5 | Self::Raid6)
    }

    /// Whether all members have the same size.
    pub(crate) fn is_even(self) -> bool {
        !matches!(self, Self::Linear | Self::Raid0)
    }
}

impl Superblock {
    /// What the device is to the array, by its own words.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role_of(self.number)
    }

    /// What the device with this number is to the array. Devices that the array has not heard of are spares.
    #[must_use]
    pub fn role_of(&self, number: u32) -> Role {
        self.roles.get(number as usize).copied().unwrap_or(Role::Spare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_shown_as_mdadm_does_and_read_in_all_usual_forms() {
        let uuid = ArrayUuid(*b"0123456789abcdef");
        assert_eq!(uuid.to_string(), "30313233:34353637:38396162:63646566");
        for text in [
            "30313233:34353637:38396162:63646566",
            "30313233-3435-3637-3839-616263646566",
            "30313233343536373839616263646566",
        ] {
            assert_eq!(text.parse(), Ok(uuid));
        }
        for wrong in ["", "30313233:34353637:38396162:6364656", "30313233:34353637:38396162:636465667", "x"] {
            assert_eq!(wrong.parse::<ArrayUuid>(), Err(()), "{wrong}");
        }
    }
}
