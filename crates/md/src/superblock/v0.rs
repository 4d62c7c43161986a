//! Version 0.90, of little-endian machines: 4 KiB of 32-bit words.
//!
//! Source: `include/uapi/linux/raid/md_p.h` and `super_90_load` of Linux.

use uraid_layout::{DiskSector, Sectors};

use super::content::{ArrayUuid, Level, Role, Superblock, SuperblockError, Version};
use crate::bytes::{Fields, word_sum};

pub(super) const BYTES: usize = 4096;
/// Devices that the table has room for.
const DISKS: u32 = 27;
const CHECKSUM: usize = 38 * 4;
/// Where the table of devices is, how long each entry is, and where that of the device itself is.
const TABLE: usize = 128 * 4;
const ENTRY: usize = 32 * 4;
const OWN: usize = 992 * 4;
/// Bits of a device's state.
const FAULTY: u32 = 1;
const ACTIVE: u32 = 2;
const IN_SYNC: u32 = 4;
const REMOVED: u32 = 8;
const JOURNAL: u32 = 1 << 18;

/// Where the superblock is on a device of this size, in sectors; `None` if the device is too small for one.
pub(super) fn place(device: Sectors) -> Option<DiskSector> {
    (device.0 & !127).checked_sub(128).map(DiskSector)
}

/// What the bytes at `place` of a device say.
///
/// # Errors
/// [`SuperblockError`].
pub(super) fn decode(bytes: &[u8], place: DiskSector) -> Result<Superblock, SuperblockError> {
    let fields = Fields(bytes.get(..BYTES).ok_or(SuperblockError::Truncated)?);
    let word = |index: usize| fields.u32(index * 4).ok_or(SuperblockError::Truncated);
    let (major, minor) = (word(1)?, word(2)?);
    if major != 0 || !(90..=91).contains(&minor) {
        return Err(SuperblockError::Version { major, minor });
    }
    let (found, wanted) = (word(38)?, word_sum(fields.0, CHECKSUM));
    // Kernels have summed in different ways, which agree in this.
    if folded(found) != folded(wanted) {
        return Err(SuperblockError::Checksum { version: Version::V0_90, found, wanted });
    }
    let raid_disks = word(10)?;
    if raid_disks == 0 || raid_disks > DISKS {
        return Err(SuperblockError::Unsound("it has no members, or more than there can be"));
    }
    let level = Level::from(word(7)? as i32);
    let (events, checked) = (joined(word(40)?, word(39)?), joined(word(42)?, word(41)?));
    let resynced = match word(33)? & 1 {
        1 => None,
        _ if events == checked => Some(Sectors(word(43)?.into())),
        _ => Some(Sectors(0)),
    };
    // Where the superblock begins the data end.
    let (data_size, member_size) = (Sectors(place.0), Sectors(u64::from(word(8)?) * 2));
    if level.is_even() && member_size > data_size {
        return Err(SuperblockError::Short { found: data_size.0, wanted: member_size.0 });
    }
    let roles = (0..DISKS as usize).map(|index| role(fields, TABLE + index * ENTRY)).collect::<Option<Vec<_>>>();
    let uuid = [5, 13, 14, 15].map(word).into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut array = [0; 16];
    array.chunks_exact_mut(4).zip(uuid).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_be_bytes()));
    Ok(Superblock {
        version: Version::V0_90,
        array: ArrayUuid(array),
        name: String::new(),
        created: word(6)?.into(),
        level,
        layout: if level == Level::Raid0 { 0 } else { word(64)? },
        chunk: Sectors(u64::from(word(65)?) / 512),
        raid_disks: raid_disks as u16,
        member_size,
        data_offset: DiskSector(0),
        data_size,
        number: fields.u32(OWN).ok_or(SuperblockError::Truncated)?,
        device: None,
        events,
        resynced: resynced.filter(|_| level.is_even()),
        recovered: None,
        is_replacement: false,
        roles: roles.ok_or(SuperblockError::Truncated)?,
        bad_blocks: None,
        has_bitmap: word(33)? & 1 << 8 != 0,
        has_ppl: false,
        has_journal: false,
        is_reshaping: minor == 91,
        has_zone_order: false,
    })
}

/// The role of the device whose entry in the table is at `at`.
fn role(fields: Fields<'_>, at: usize) -> Option<Role> {
    let (slot, state) = (fields.u32(at + 12)?, fields.u32(at + 16)?);
    let slot = u16::try_from(slot).unwrap_or(u16::MAX);
    Some(if state & (FAULTY | REMOVED) != 0 {
        Role::Faulty
    } else if state & IN_SYNC != 0 {
        Role::Active(slot)
    } else if state & ACTIVE != 0 {
        Role::Joining(slot)
    } else if state & JOURNAL != 0 {
        Role::Journal
    } else {
        Role::Spare
    })
}

fn joined(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn folded(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}
