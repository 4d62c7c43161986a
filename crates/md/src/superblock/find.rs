//! Where superblocks are on a device, and which of several counts.

use uraid_layout::{Bytes, DiskSector, SECTOR_BYTES};

use super::content::{BadRange, Superblock, SuperblockError, Version};
use super::{v0, v1};
use crate::bytes::Fields;
use crate::source::Source;

const MAGIC: u32 = 0xa92b_4efc;

/// What a device says of itself.
#[derive(Debug, Default)]
pub struct Holding {
    /// The superblock that counts, and its list of bad blocks.
    pub superblock: Option<(Superblock, Vec<BadRange>)>,
    /// What is the matter with others.
    pub troubles: Vec<SuperblockError>,
}

/// Looks for superblocks of all versions. Of several sound ones that of the array that was made last counts: mdadm
/// takes it, too. What can't be read is among the troubles.
#[must_use]
pub fn find(device: &dyn Source) -> Holding {
    let mut holding = Holding::default();
    for version in [Version::V1_2, Version::V1_1, Version::V1_0, Version::V0_90] {
        match look(device, version) {
            Ok(None) => {}
            Ok(Some(found)) => match &holding.superblock {
                Some((other, _)) if other.created >= found.0.created => {}
                _ => holding.superblock = Some(found),
            },
            Err(error) => holding.troubles.push(error),
        }
    }
    holding
}

/// The superblock of this version, if there is one.
fn look(device: &dyn Source, version: Version) -> Result<Option<(Superblock, Vec<BadRange>)>, SuperblockError> {
    let sectors = device.size().whole_sectors();
    let place = match version {
        Version::V0_90 => v0::place(sectors),
        version => v1::place(version, sectors),
    };
    let Some(place) = place else { return Ok(None) };
    let bytes = read(device, place, if version == Version::V0_90 { v0::BYTES } else { v1::BYTES })?;
    let (magic, major) = (Fields(&bytes).u32(0), Fields(&bytes).u32(4));
    let superblock = match version {
        Version::V0_90 if magic.is_some_and(|magic| magic.swap_bytes() == MAGIC) => {
            return Err(SuperblockError::BigEndian);
        }
        // Places of different versions can be the same.
        _ if magic != Some(MAGIC) || (major == Some(1)) == (version == Version::V0_90) => return Ok(None),
        Version::V0_90 => v0::decode(&bytes, place)?,
        version => v1::decode(&bytes, version, place, sectors)?,
    };
    let Some((list, sectors, shift)) = superblock.bad_blocks else { return Ok(Some((superblock, Vec::new()))) };
    let list = read(device, list, sectors.bytes().0 as usize)?;
    if list.len() < sectors.bytes().0 as usize {
        return Err(SuperblockError::BadBlocks);
    }
    let bad = v1::bad_ranges(&list, shift).ok_or(SuperblockError::BadBlocks)?;
    Ok(Some((superblock, bad)))
}

/// So many bytes from a sector on, or those that are there.
fn read(device: &dyn Source, sector: DiskSector, len: usize) -> Result<Vec<u8>, SuperblockError> {
    let at = sector.0.checked_mul(SECTOR_BYTES).ok_or(SuperblockError::Truncated)?;
    let len = device.size().0.saturating_sub(at).min(len as u64) as usize;
    let mut bytes = vec![0; len];
    // Beyond the end there is no place to read from.
    if len > 0 {
        device.read_at(&mut bytes, Bytes(at))?;
    }
    Ok(bytes)
}
