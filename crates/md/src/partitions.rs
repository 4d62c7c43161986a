//! Partitions of a whole disk: GPT, and MBR with logical partitions.
//!
//! Source: UEFI specification 2.10, chapter 5; for MBR what every PC has done since. Every number is checked: counts
//! and chains are bounded, and nothing lies outside of the disk.

use std::io;

use uraid_layout::Bytes;

use crate::bytes::Fields;
use crate::source::Source;

/// A partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, as Linux counts: from 1; logical ones from 5.
    pub number: u32,
    /// Where it begins.
    pub start: Bytes,
    /// How long it is, within the disk.
    pub size: Bytes,
}

/// Why a disk's partitions are not known.
#[derive(Debug, thiserror::Error)]
pub enum PartitionError {
    /// It can't be read.
    #[error("its partition table can't be read: {0}")]
    Io(#[from] io::Error),
    /// Both copies of a GPT are damaged.
    #[error("it has a GPT, of which both copies are damaged")]
    Damaged,
}

/// Sizes of sectors that disks have had.
const SECTOR_SIZES: [usize; 2] = [512, 4096];
/// The most bytes of a GPT's entries; usual are 16 KiB.
const ENTRIES_BYTES_MAX: usize = 1 << 20;
/// The most logical partitions.
const LOGICAL_MAX: u32 = 128;
/// A GPT header's bytes that count.
const HEADER_BYTES: usize = 92;

/// The partitions of a whole disk, in the order of its table; none if there is no table.
///
/// # Errors
/// [`PartitionError`].
pub fn partitions(disk: &dyn Source) -> Result<Vec<Partition>, PartitionError> {
    if disk.size().0 < 1024 {
        return Ok(Vec::new());
    }
    let mut boot = [0; 512];
    disk.read_at(&mut boot, Bytes(0))?;
    let mut is_claimed = false;
    for sector in SECTOR_SIZES {
        let last = (disk.size().0 / sector as u64).saturating_sub(1);
        for lba in [1, last] {
            match gpt(disk, sector, lba)? {
                Table::Sound(partitions) => return Ok(partitions),
                Table::Damaged => is_claimed = true,
                Table::None => {}
            }
        }
    }
    let entries = entries(&boot);
    // Only a disk that says so itself has a damaged GPT: another one's may have been left there.
    if is_claimed && entries.iter().any(|entry| entry.kind == PROTECTIVE) {
        return Err(PartitionError::Damaged);
    }
    mbr(disk, &entries)
}

enum Table {
    None,
    Damaged,
    Sound(Vec<Partition>),
}

/// What a GPT header at `lba` says.
fn gpt(disk: &dyn Source, sector: usize, lba: u64) -> Result<Table, PartitionError> {
    let mut bytes = vec![0; sector];
    let Some(at) = lba.checked_mul(sector as u64).filter(|at| at + sector as u64 <= disk.size().0) else {
        return Ok(Table::None);
    };
    disk.read_at(&mut bytes, Bytes(at))?;
    if !bytes.starts_with(b"EFI PART") {
        return Ok(Table::None);
    }
    Ok(sound(disk, sector, lba, &mut bytes)?.map_or(Table::Damaged, Table::Sound))
}

/// The partitions of a GPT whose header these bytes are; none if it is damaged.
fn sound(
    disk: &dyn Source,
    sector: usize,
    lba: u64,
    header: &mut [u8],
) -> Result<Option<Vec<Partition>>, PartitionError> {
    let fields = Fields(header);
    let read = || {
        let header_bytes = fields.u32(12)? as usize;
        let (sum, own) = (fields.u32(16)?, fields.u64(24)?);
        let (entries_lba, count) = (fields.u64(72)?, fields.u32(80)? as usize);
        let (entry_bytes, entries_sum) = (fields.u32(84)? as usize, fields.u32(88)?);
        let is_sane = (HEADER_BYTES..=sector).contains(&header_bytes) && own == lba && entry_bytes >= 128;
        let total = entry_bytes.checked_mul(count).filter(|&total| is_sane && total <= ENTRIES_BYTES_MAX)?;
        Some((header_bytes, sum, entries_lba, entry_bytes, total, entries_sum))
    };
    let Some((header_bytes, sum, entries_lba, entry_bytes, total, entries_sum)) = read() else { return Ok(None) };
    header[16..20].fill(0);
    let at = entries_lba.checked_mul(sector as u64);
    let inside = |at: &u64| at.checked_add(total as u64).is_some_and(|end| end <= disk.size().0);
    let Some(at) = at.filter(inside).filter(|_| crc32fast::hash(&header[..header_bytes]) == sum) else {
        return Ok(None);
    };
    let mut entries = vec![0; total];
    disk.read_at(&mut entries, Bytes(at))?;
    if crc32fast::hash(&entries) != entries_sum {
        return Ok(None);
    }
    let used = (1..).zip(entries.chunks_exact(entry_bytes)).filter(|(_, entry)| entry[..16].iter().any(|&b| b != 0));
    let partition = |(number, entry)| {
        let (first, last) = (Fields(entry).u64(32)?, Fields(entry).u64(40)?);
        let sectors = last.checked_sub(first)?.checked_add(1)?;
        within(disk, number, first.checked_mul(sector as u64)?, sectors.checked_mul(sector as u64)?)
    };
    Ok(Some(used.filter_map(partition).collect()))
}

/// The type of the partition that stands for a GPT.
const PROTECTIVE: u8 = 0xee;

/// An entry of an MBR, or of the table of a logical partition.
#[derive(Clone, Copy)]
struct Entry {
    kind: u8,
    first: u64,
    sectors: u64,
}

impl Entry {
    fn is_extended(&self) -> bool {
        matches!(self.kind, 0x05 | 0x0f | 0x85)
    }
}

/// The entries of a boot sector, with those that are not used; none if it is something else.
fn entries(boot: &[u8; 512]) -> Vec<Entry> {
    let entries = boot[446..510].chunks_exact(16);
    // A file system's boot sector has the same signature, and code where entries have their flags.
    if boot[510..] != [0x55, 0xaa] || entries.clone().any(|entry| entry[0] & 0x7f != 0) {
        return Vec::new();
    }
    let entry = |entry| {
        let fields = Fields(entry);
        Some(Entry { kind: fields.u8(4)?, first: fields.u32(8)?.into(), sectors: fields.u32(12)?.into() })
    };
    entries.filter_map(entry).collect()
}

fn mbr(disk: &dyn Source, entries: &[Entry]) -> Result<Vec<Partition>, PartitionError> {
    let mut partitions = Vec::new();
    let mut logical = 5;
    for (number, entry) in (1..).zip(entries) {
        match entry {
            Entry { kind: 0 | PROTECTIVE, .. } => {}
            extended if extended.is_extended() => {
                logical = add_logical(disk, extended.first, logical, &mut partitions)?;
            }
            Entry { first, sectors, .. } => partitions.extend(within(disk, number, first * 512, sectors * 512)),
        }
    }
    Ok(partitions)
}

/// Adds the logical partitions of an extended one, which are a chain; returns the next number.
fn add_logical(
    disk: &dyn Source,
    extended: u64,
    first_number: u32,
    partitions: &mut Vec<Partition>,
) -> Result<u32, PartitionError> {
    let (mut table, mut number) = (extended, first_number);
    while number < 5 + LOGICAL_MAX {
        let mut boot = [0; 512];
        if (table + 1) * 512 > disk.size().0 {
            break;
        }
        disk.read_at(&mut boot, Bytes(table * 512))?;
        let entries = entries(&boot);
        let is_own = |entry: &&Entry| entry.kind != 0 && !entry.is_extended();
        if let Some(own) = entries.iter().find(is_own) {
            partitions.extend(within(disk, number, (table + own.first) * 512, own.sectors * 512));
        }
        number += 1;
        match entries.iter().find(|entry| entry.is_extended()) {
            Some(next) => table = extended + next.first,
            None => break,
        }
    }
    Ok(number)
}

/// A partition, cut at the end of the disk; none if nothing of it is on the disk.
fn within(disk: &dyn Source, number: u32, start: u64, size: u64) -> Option<Partition> {
    let size = size.min(disk.size().0.checked_sub(start)?);
    (start > 0 && size > 0).then_some(Partition { number, start: Bytes(start), size: Bytes(size) })
}
