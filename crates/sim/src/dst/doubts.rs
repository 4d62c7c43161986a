//! Which blocks members hold something else in than was written there, or lack, and what can't be had because of that:
//! by the bytes of members, the format of checksums, lists of bad blocks, and the layout's maps; nothing here asks the
//! engine. That its lists have no more in them than they may is for others to find.
//!
//! A block is sound when no corruption of it is known and its checksum on the member agrees. What was written and has
//! no checksum on the member yet counts as unsound, so that while writes are under way a little more is excused than
//! there is to excuse.

use std::ops::Range;

use uraid_io::engine::Engine;
use uraid_io::format::BLOCK;
use uraid_io::format::badblocks::{BadBlocks, Lack};
use uraid_io::format::superblock::{Integrity, SUMS_IN_SECTOR, Superblock};
use uraid_layout::{Bytes, Cell, DiskSector, Geometry, Lba, MemberIndex, MemberSet, SECTOR_BYTES, Sectors, StripeId};

use super::audit::{as_cell, exists};
use crate::decode::next_found;
use crate::disk::SimDisk;
use crate::member::Member;
use crate::members::Members;

/// A shape, and the addresses whose content is in it.
pub(crate) type Part = (Geometry, Range<u64>);

/// The checksum of a block whose checksum was lost.
const LOST: u32 = u32::MAX;

/// Members of an array with checksums or bad blocks, and what they hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubts<'a> {
    parts: &'a [Part],
    /// By slot: the members' UUIDs and areas count.
    superblocks: &'a [Superblock],
    members: &'a Members,
    /// What members lack, by slot.
    lists: &'a [BadBlocks],
}

/// The parts of an array, by address: one, or while it is being reshaped two. `geometry` is the one that it has
/// otherwise.
pub(crate) fn parts(geometry: &Geometry, truth: &Superblock) -> Vec<Part> {
    match (truth.course(), truth.reshape) {
        (Some(course), Some(reshape)) => {
            let (mark, Sectors(kept)) = (reshape.mark.0, course.kept());
            vec![(course.below().clone(), 0..mark), (course.above().clone(), mark..kept)]
        }
        _ => vec![(geometry.clone(), 0..geometry.capacity().0)],
    }
}

/// What an engine says that its members lack, by slot.
pub(crate) fn lists<T>(engine: &Engine<SimDisk, T>) -> Vec<BadBlocks> {
    let list = |slot| engine.bad_blocks(slot).map(|list| list.clone()).unwrap_or_default();
    engine.slots().iter().map(list).collect()
}

impl<'a> Doubts<'a> {
    /// None where the array has no checksums, and its members lack nothing.
    pub(crate) fn new(
        parts: &'a [Part],
        superblocks: &'a [Superblock],
        members: &'a Members,
        lists: &'a [BadBlocks],
    ) -> Option<Self> {
        let may_doubt = superblocks[0].integrity == Integrity::Crc32
            || lists.iter().any(|list| !list.is_empty())
            || members.iter().any(|(_, member)| member.is_spoilt());
        may_doubt.then_some(Self { parts, superblocks, members, lists })
    }

    /// Whether a member holds what was written to the block that begins at `sector`.
    pub(crate) fn is_sound(&self, slot: MemberIndex, sector: DiskSector) -> bool {
        let own = &self.superblocks[slot.index()];
        let block = sector..DiskSector(sector.0 + BLOCK.0);
        let is_absent = self.lists[slot.index()].within(block, Lack::Absent).next().is_some();
        !is_absent && self.members.get(slot).is_some_and(|member| is_sound(member, own, sector.0 / BLOCK.0))
    }

    /// Whether what a read of blocks was given an error for can't be had, of one of them at least, without `lost`
    /// members.
    pub(crate) fn excuse_read(&self, lost: MemberSet, lba: Lba, len: Sectors) -> bool {
        blocks(lba, len).any(|lba| {
            self.place(Lba(lba)).is_some_and(|Place { geometry, stripe, cell, column }| {
                !self.known(geometry, lost, stripe, column)[usize::from(cell.0)]
            })
        })
    }

    /// Whether some unit can't be had in one of the columns that these blocks are in, so that what has to be written
    /// with the blocks may not be computed.
    pub(crate) fn excuse_write(&self, lost: MemberSet, lba: Lba, len: Sectors) -> bool {
        let mut last = None;
        blocks(lba, len).any(|lba| {
            let Some(Place { geometry, stripe, column, .. }) = self.place(Lba(lba)) else { return false };
            if last.replace((stripe, column)) == Some((stripe, column)) {
                return false;
            }
            let known = self.known(geometry, lost, stripe, column);
            cells(geometry, stripe).any(|cell| !known[usize::from(cell.0)])
        })
    }

    /// The blocks in whose columns some unit can't be had.
    pub(crate) fn lost(&self, lost: MemberSet) -> impl Iterator<Item = Lba> {
        self.blocks().filter(move |&lba| self.excuse_write(lost, lba, BLOCK))
    }

    /// Whether anything can't be had.
    pub(crate) fn lacks_any(&self, lost: MemberSet) -> bool {
        self.lost(lost).next().is_some()
    }

    /// Data that a member does not hold as it was written, though it can be had without `missing` members.
    pub(crate) fn unhealed(&self, missing: MemberSet) -> Option<Lba> {
        self.blocks().find(|&lba| {
            let Some(Place { geometry, stripe, cell, column }) = self.place(lba) else { return false };
            let is_wrong = !missing.contains(geometry.member(cell)) && !self.has(geometry, stripe, cell, column);
            is_wrong && self.known(geometry, missing, stripe, column)[usize::from(cell.0)]
        })
    }

    /// All blocks that the array has.
    fn blocks(&self) -> impl Iterator<Item = Lba> + use<'a> {
        self.parts.iter().flat_map(|(_, content)| content.clone().step_by(step())).map(Lba)
    }

    /// Where a block is; none beyond the end.
    fn place(&self, lba: Lba) -> Option<Place<'a>> {
        let (geometry, _) = self.parts.iter().find(|(_, content)| content.contains(&lba.0))?;
        let (stripe, unit, column) = geometry.split(lba);
        Some(Place { geometry, stripe, cell: geometry.map(stripe).cell(unit), column })
    }

    fn has(&self, geometry: &Geometry, stripe: StripeId, cell: Cell, column: Sectors) -> bool {
        self.is_sound(geometry.member(cell), DiskSector(geometry.sector(stripe, cell).0 + column.0))
    }

    /// Which cells of a column can be had.
    fn known(&self, geometry: &Geometry, lost: MemberSet, stripe: StripeId, column: Sectors) -> Vec<bool> {
        let (map, slot) = (geometry.map(stripe), |cell| geometry.member(cell));
        let cells: Vec<Cell> = cells(geometry, stripe).collect();
        let is_direct = |cell: &Cell| !lost.contains(slot(*cell)) && self.has(geometry, stripe, *cell, column);
        let mut known = vec![false; map.cells()];
        cells.iter().filter(|cell| is_direct(cell)).for_each(|cell| known[usize::from(cell.0)] = true);
        let is_missing = |known: &[bool], cell: Cell| cells.contains(&cell) && !known[usize::from(cell.0)];
        while let Some(found) = next_found(map.groups(), |cell| is_missing(&known, cell)) {
            known[usize::from(found.target.0)] = true;
        }
        known
    }
}

/// Where a block is.
struct Place<'a> {
    geometry: &'a Geometry,
    stripe: StripeId,
    cell: Cell,
    column: Sectors,
}

/// The shape that has a block, by its number, its parity stripe there, and where in its chunks it is.
pub(crate) fn column(parts: &[Part], lba: Lba) -> Option<(usize, StripeId, Sectors)> {
    let index = parts.iter().position(|(_, content)| content.contains(&lba.0))?;
    let (stripe, _, column) = parts[index].0.split(lba);
    Some((index, stripe, Sectors(column.0 / BLOCK.0 * BLOCK.0)))
}

fn cells(geometry: &Geometry, stripe: StripeId) -> impl Iterator<Item = Cell> + '_ {
    (0..geometry.map(stripe).cells()).map(as_cell).filter(move |&cell| exists(geometry, stripe, cell))
}

/// Whether a block of a member's data area is what its checksum says, where it has one.
fn is_sound(member: &Member, own: &Superblock, block: u64) -> bool {
    let at = Bytes(own.areas.data.offset.0 + block * BLOCK.bytes().0);
    if member.is_rotten(at, BLOCK.bytes()) || member.is_unreadable(at, BLOCK.bytes()) {
        return false;
    }
    if own.integrity == Integrity::None {
        return true;
    }
    let Some(stored) = stored(member, own, block) else { return true };
    let mut content = [0; 4096];
    member.read(at, &mut content);
    let mut crc = tagged(own);
    crc.update(&block.to_le_bytes());
    crc.update(&content);
    // A checksum of 0 says that there is none, and the largest that it was lost.
    stored == crc.finalize().clamp(1, LOST - 1)
}

/// The checksum of a block that the member's table has; that of a sector that is damaged was lost.
fn stored(member: &Member, own: &Superblock, block: u64) -> Option<u32> {
    let (index, entry) = (block / SUMS_IN_SECTOR, usize::try_from(block % SUMS_IN_SECTOR).expect("a small number"));
    let sector = member.current().sector(Bytes(own.areas.sums.offset.0 + index * SECTOR_BYTES));
    let word = |at: usize| u32::from_le_bytes(*sector[at..].first_chunk().expect("inside a sector"));
    let mut crc = tagged(own);
    crc.update(b"uraidsum");
    crc.update(&index.to_le_bytes());
    crc.update(&sector[..508]);
    let is_damaged = word(508) != crc.finalize() && sector.iter().any(|&byte| byte != 0);
    Some(if is_damaged { LOST } else { word(4 * entry) }).filter(|&sum| sum != 0)
}

fn tagged(own: &Superblock) -> crc32fast::Hasher {
    let mut crc = crc32fast::Hasher::new();
    crc.update(own.array.as_bytes());
    crc.update(own.member.as_bytes());
    crc
}

/// The beginnings of the blocks that a range has something of.
fn blocks(lba: Lba, len: Sectors) -> impl Iterator<Item = u64> {
    (lba.0 / BLOCK.0 * BLOCK.0..lba.0 + len.0).step_by(step())
}

fn step() -> usize {
    usize::try_from(BLOCK.0).expect("a small number")
}
