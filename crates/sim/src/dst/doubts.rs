//! Which blocks members hold something else in than was written there, and what can't be had because of that: by the bytes of members, the format of
//! checksums, and the layout's maps; nothing here asks the engine.
//!
//! A block is sound when no corruption of it is known and its checksum on the member agrees. What was written and has no checksum on the member yet
//! counts as unsound, so that while writes are under way a little more is excused than there is to excuse.

use uraid_io::superblock::{BLOCK_BYTES, Integrity, SUMS_IN_SECTOR, Superblock};
use uraid_layout::repair::Repair;
use uraid_layout::{
    Bytes, Cell, DiskSector, Geometry, Lba, Level, MemberIndex, MemberSet, SECTOR_BYTES, Sectors, StripeId,
};

use super::audit::{as_cell, exists};
use crate::member::Member;
use crate::members::Members;

/// A block, in sectors.
pub(crate) const BLOCK: Sectors = Sectors(BLOCK_BYTES.0 / SECTOR_BYTES);

/// Members of an array with checksums, and what they hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubts<'a> {
    geometry: &'a Geometry,
    /// By slot: the members' UUIDs and areas count.
    superblocks: &'a [Superblock],
    members: &'a Members,
}

impl<'a> Doubts<'a> {
    /// None where the array has no checksums.
    pub(crate) fn new(geometry: &'a Geometry, superblocks: &'a [Superblock], members: &'a Members) -> Option<Self> {
        (superblocks[0].integrity == Integrity::Crc32).then_some(Self { geometry, superblocks, members })
    }

    /// Whether a member holds what was written to the block that begins at `sector`.
    pub(crate) fn is_sound(&self, slot: MemberIndex, sector: DiskSector) -> bool {
        let own = &self.superblocks[slot.index()];
        self.members.get(slot).is_some_and(|member| is_sound(member, own, sector.0 / BLOCK.0))
    }

    /// Whether what a read of blocks was given an error for can't be had, of one of them at least, without `lost` members.
    pub(crate) fn excuse_read(&self, lost: MemberSet, lba: Lba, len: Sectors) -> bool {
        (lba.0..lba.0 + len.0).step_by(step()).any(|lba| {
            let (stripe, unit, column) = self.geometry.split(Lba(lba));
            let cell = self.geometry.map(stripe).data()[usize::from(unit.0)];
            let slot = self.geometry.member(cell);
            let is_there = !lost.contains(slot) && self.is_sound(slot, self.sector(stripe, cell, column));
            !is_there && !self.known(lost, stripe, column)[usize::from(cell.0)]
        })
    }

    /// Whether there is something that can't be had without `lost` members in the parity stripes' columns of these blocks, so that what has to be
    /// written with them can't be computed.
    pub(crate) fn excuse_write(&self, lost: MemberSet, lba: Lba, len: Sectors) -> bool {
        (lba.0..lba.0 + len.0).step_by(step()).any(|lba| {
            let (stripe, _, column) = self.geometry.split(Lba(lba));
            let known = self.known(lost, stripe, column);
            known.iter().enumerate().any(|(cell, &is_known)| !is_known && exists(self.geometry, stripe, as_cell(cell)))
        })
    }

    /// Data that a member does not hold as it was written, though it can be had without `missing` members.
    pub(crate) fn unhealed(&self, missing: MemberSet) -> Option<Lba> {
        let all = (0..self.geometry.capacity().0).step_by(step()).map(Lba);
        all.into_iter().find(|&lba| {
            let (stripe, unit, column) = self.geometry.split(lba);
            let cell = self.geometry.map(stripe).data()[usize::from(unit.0)];
            let slot = self.geometry.member(cell);
            let is_wrong = !missing.contains(slot) && !self.is_sound(slot, self.sector(stripe, cell, column));
            is_wrong && self.known(missing, stripe, column)[usize::from(cell.0)]
        })
    }

    fn sector(&self, stripe: StripeId, cell: Cell, column: Sectors) -> DiskSector {
        DiskSector(self.geometry.sector(stripe, cell).0 + column.0)
    }

    /// Which cells of a column can be had. A member that holds something else in one of its cells of the column gives none of them: that is how
    /// much the engine promises.
    fn known(&self, lost: MemberSet, stripe: StripeId, column: Sectors) -> Vec<bool> {
        let map = self.geometry.map(stripe);
        let cells: Vec<Cell> =
            (0..map.cells()).map(as_cell).filter(|&cell| exists(self.geometry, stripe, cell)).collect();
        let unsound = |cell: &Cell| !self.is_sound(self.geometry.member(*cell), self.sector(stripe, *cell, column));
        let unsound = cells.iter().copied().filter(unsound).map(|cell| self.geometry.member(cell));
        let lost = lost.union(unsound.collect());
        let mut known = vec![false; map.cells()];
        cells.iter().for_each(|cell| known[usize::from(cell.0)] = !lost.contains(self.geometry.member(*cell)));
        // Of a mirror the copies of one unit count, of parity all members: where they are too many, nothing is computed at all.
        let is_mirror = matches!(self.geometry.spec().level, Level::Raid1 | Level::Raid10 { .. });
        if !is_mirror && Repair::new(self.geometry, lost).is_err() {
            return known;
        }
        loop {
            let mut found = false;
            for group in map.groups() {
                let mut unknown = group.cells().filter(|cell| cells.contains(cell) && !known[usize::from(cell.0)]);
                let (Some(target), None) = (unknown.next(), unknown.next()) else { continue };
                // Alone in its group, it is in no other place.
                if group.cells().filter(|cell| cells.contains(cell)).count() > 1 {
                    known[usize::from(target.0)] = true;
                    found = true;
                }
            }
            if !found {
                return known;
            }
        }
    }
}

/// Whether a block of a member's data area is what its checksum says, where it has one.
fn is_sound(member: &Member, own: &Superblock, block: u64) -> bool {
    let at = Bytes(own.areas.data.offset.0 + block * BLOCK_BYTES.0);
    if member.is_rotten(at, BLOCK_BYTES) {
        return false;
    }
    let Some(stored) = stored(member, own, block) else { return true };
    let mut content = [0; 4096];
    member.read(at, &mut content);
    let mut crc = tagged(own);
    crc.update(&block.to_le_bytes());
    crc.update(&content);
    // A checksum of 0 says that there is none.
    stored == crc.finalize().max(1)
}

/// The checksum of a block that the member's table has.
fn stored(member: &Member, own: &Superblock, block: u64) -> Option<u32> {
    let (index, entry) = (block / SUMS_IN_SECTOR, usize::try_from(block % SUMS_IN_SECTOR).expect("a small number"));
    let sector = member.current().sector(Bytes(own.areas.sums.offset.0 + index * SECTOR_BYTES));
    let word = |at: usize| u32::from_le_bytes(*sector[at..].first_chunk().expect("inside a sector"));
    let mut crc = tagged(own);
    crc.update(b"uraidsum");
    crc.update(&index.to_le_bytes());
    crc.update(&sector[..508]);
    let sum = word(4 * entry);
    (sum != 0 && word(508) == crc.finalize()).then_some(sum)
}

fn tagged(own: &Superblock) -> crc32fast::Hasher {
    let mut crc = crc32fast::Hasher::new();
    crc.update(own.array.as_bytes());
    crc.update(own.member.as_bytes());
    crc
}

fn step() -> usize {
    usize::try_from(BLOCK.0).expect("a small number")
}
