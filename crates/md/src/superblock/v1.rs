//! Versions 1.0, 1.1 and 1.2: the same bytes in different places.
//!
//! Source: `include/uapi/linux/raid/md_p.h` and `super_1_load` of Linux.

use std::ops::Range;

use uraid_layout::{DiskSector, SECTOR_BYTES, Sectors};

use super::content::{ArrayUuid, BadRange, Level, Role, Superblock, SuperblockError, Version};
use crate::bytes::{Fields, word_sum};

/// A superblock and the largest table of roles.
pub(super) const BYTES: usize = 4096;
const HEADER_BYTES: usize = 256;
const CHECKSUM: usize = 216;
/// The most devices: the kernel's limit.
const DEVICES_MAX: u32 = 1920;
/// The least room for data that the kernel takes.
const DATA_MIN: Sectors = Sectors(10);
/// The most sectors of a list of bad blocks: one page.
const LIST_MAX: Sectors = Sectors(8);
/// Roles that are no slots.
const SPARE: u16 = 0xffff;
const FAULTY: u16 = 0xfffe;
const JOURNAL: u16 = 0xfffd;

/// Bits of the feature map.
mod feature {
    pub(super) const BITMAP: u32 = 1;
    pub(super) const RECOVERY: u32 = 2;
    pub(super) const RESHAPE: u32 = 4;
    pub(super) const BAD_BLOCKS: u32 = 8;
    pub(super) const REPLACEMENT: u32 = 16;
    pub(super) const NEW_OFFSET: u32 = 64;
    pub(super) const JOURNAL: u32 = 512;
    pub(super) const PPL: u32 = 1024;
    pub(super) const MULTIPLE_PPL: u32 = 2048;
    pub(super) const ZONE_ORDER: u32 = 4096;
    /// All that have a meaning.
    pub(super) const ALL: u32 = 8191;
}

/// Where the superblock is on a device of this size, in sectors; `None` if the device is too small for one, or the
/// version is not 1.
pub(super) fn place(version: Version, device: Sectors) -> Option<DiskSector> {
    let place = match version {
        Version::V0_90 => return None,
        Version::V1_0 => device.0.checked_sub(16)? & !7,
        Version::V1_1 => 0,
        Version::V1_2 => 8,
    };
    Some(DiskSector(place))
}

/// What the bytes at `place` of a device of this size say.
///
/// # Errors
/// [`SuperblockError`].
pub(super) fn decode(
    bytes: &[u8],
    version: Version,
    place: DiskSector,
    device: Sectors,
) -> Result<Superblock, SuperblockError> {
    let fields = Fields(bytes);
    let cut = SuperblockError::Truncated;
    let devices = fields.u32(220).ok_or(cut)?;
    if devices > DEVICES_MAX {
        return Err(SuperblockError::Unsound("it has more devices than there can be"));
    }
    let covered = fields.slice(0, HEADER_BYTES + 2 * devices as usize).ok_or(SuperblockError::Truncated)?;
    let fields = Fields(covered);
    let read = || content(fields, version, place);
    let (found, wanted) = (fields.u32(CHECKSUM).ok_or(SuperblockError::Truncated)?, word_sum(covered, CHECKSUM));
    if found != wanted {
        return Err(SuperblockError::Checksum { version, found, wanted });
    }
    let (major, features) = (fields.u32(4), fields.u32(8).unwrap_or(u32::MAX));
    if major != Some(1) {
        return Err(SuperblockError::Version { major: major.unwrap_or(u32::MAX), minor: 0 });
    }
    if features & !feature::ALL != 0 {
        return Err(SuperblockError::Feature(format!("bits {:#x}", features & !feature::ALL)));
    }
    // Newer kernels keep the size of logical blocks before the last zeros.
    if fields.u32(12) != Some(0) || fields.slice(228, 28).is_none_or(|pad| pad.iter().any(|&byte| byte != 0)) {
        return Err(SuperblockError::Feature("a reserved field is not zero".to_owned()));
    }
    let said = fields.u64(144).unwrap_or(u64::MAX);
    if said != place.0 {
        return Err(SuperblockError::Misplaced { found: place.0, said });
    }
    let superblock = read().ok_or(SuperblockError::Unsound("it has no members, or more than there can be"))?;
    let own = place.0..place.0 + (covered.len() as u64).div_ceil(SECTOR_BYTES);
    check(&superblock, &own, device)?;
    Ok(superblock)
}

/// Holds what a superblock, which is in these sectors, says of its device against that.
fn check(superblock: &Superblock, own: &Range<u64>, device: Sectors) -> Result<(), SuperblockError> {
    let Superblock { data_offset, data_size, member_size, level, bad_blocks, .. } = superblock;
    let end = data_offset.0.checked_add(data_size.0);
    let end = end.ok_or(SuperblockError::Unsound("its data end beyond what can be counted"))?;
    // A journal or spare may have nothing.
    if *data_size < DATA_MIN {
        return Err(SuperblockError::Unsound("it has no room for data"));
    }
    if end > device.0 {
        return Err(SuperblockError::Short { found: device.0, wanted: end });
    }
    if own.start < end && data_offset.0 < own.end {
        return Err(SuperblockError::Unsound("its data begin before it ends, or end behind its beginning"));
    }
    if level.is_even() && member_size > data_size && superblock.role() != Role::Journal {
        return Err(SuperblockError::Unsound("the array uses more of it than it has"));
    }
    if bad_blocks.is_some_and(|(_, sectors, _)| sectors > LIST_MAX) {
        return Err(SuperblockError::BadBlocks);
    }
    Ok(())
}

/// The fields of a superblock whose checksum is right; `None` if the array has no members, or too many.
fn content(fields: Fields<'_>, version: Version, place: DiskSector) -> Option<Superblock> {
    let features = fields.u32(8)?;
    let has = |bits: u32| features & bits != 0;
    let raid_disks = fields.u32(92).filter(|&count| (1..=DEVICES_MAX).contains(&count))? as u16;
    let level = Level::from(fields.i32(72)?);
    let name = fields.slice(32, 32)?.split(|&byte| byte == 0).next().unwrap_or_default();
    let (list_sectors, list_offset) = (fields.u16(186)?, fields.i32(188)?);
    let list = place.0.checked_add_signed(list_offset.into()).map(DiskSector);
    let list = list.filter(|_| has(feature::BAD_BLOCKS) && list_sectors > 0);
    let shift = fields.u8(185)?;
    Some(Superblock {
        version,
        array: ArrayUuid(fields.array(16)?),
        name: String::from_utf8_lossy(name).chars().filter(|character| !character.is_control()).collect(),
        created: fields.u64(64)? & ((1 << 40) - 1),
        level,
        layout: fields.u32(76)?,
        chunk: Sectors(fields.u32(88)?.into()),
        raid_disks,
        member_size: Sectors(fields.u64(80)?),
        data_offset: DiskSector(fields.u64(128)?),
        data_size: Sectors(fields.u64(136)?),
        number: fields.u32(160)?,
        device: Some(fields.array(168)?),
        events: fields.u64(200)?,
        resynced: fields.u64(208).filter(|&sector| sector != u64::MAX && level.is_even()).map(Sectors),
        recovered: fields.u64(152).filter(|_| has(feature::RECOVERY)).map(Sectors),
        is_replacement: has(feature::REPLACEMENT),
        roles: (HEADER_BYTES..fields.0.len()).step_by(2).map_while(|at| fields.u16(at)).map(role).collect(),
        bad_blocks: list.map(|list| (list, Sectors(list_sectors.into()), shift)),
        has_bitmap: has(feature::BITMAP) && !has(feature::PPL | feature::MULTIPLE_PPL),
        has_ppl: has(feature::PPL | feature::MULTIPLE_PPL),
        has_journal: has(feature::JOURNAL),
        is_reshaping: has(feature::RESHAPE | feature::NEW_OFFSET),
        has_zone_order: has(feature::ZONE_ORDER),
    })
}

fn role(role: u16) -> Role {
    match role {
        SPARE => Role::Spare,
        FAULTY => Role::Faulty,
        JOURNAL => Role::Journal,
        slot => Role::Active(slot),
    }
}

/// The entries of a list of bad blocks, whose blocks are `1 << shift` sectors; `None` if it is not sound.
pub(super) fn bad_ranges(list: &[u8], shift: u8) -> Option<Vec<BadRange>> {
    let entries = list.chunks_exact(8).filter_map(|entry| Fields(entry).u64(0));
    let entries = entries.take_while(|&entry| entry != u64::MAX).filter(|&entry| entry & 0x3ff != 0);
    let scaled = |blocks: u64| blocks.checked_shl(shift.into()).filter(|sectors| sectors >> shift == blocks);
    let range = |entry: u64| {
        let (start, len) = (scaled(entry >> 10)?, scaled(entry & 0x3ff)?);
        start.checked_add(len)?;
        Some(BadRange { start: DiskSector(start), len: Sectors(len) })
    };
    entries.map(range).collect()
}
