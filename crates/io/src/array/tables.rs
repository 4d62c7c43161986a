//! The checksums of what is done again from the logs, or moves to another shape; blocking, over any [`Disk`].
//!
//! A crash may have left old checksums beside new content, or the other way round. Both are made anew from the record,
//! which has the content. Pages wait in memory until all of it is done: a log covers few, and so does a window.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use smallvec::smallvec;
use uraid_layout::{Bytes, DiskSector, MemberIndex};

use super::blocking::perform;
use crate::Error;
use crate::buf::Buf;
use crate::disk::{Disk, DiskOp, OpKind};
use crate::format::log::record::{Header, Kind};
use crate::format::sums::{BlockNumber, PAGE_BYTES, Page, PageNumber, Tag};
use crate::format::superblock::{Area, Integrity, Superblock};
use crate::format::{BLOCK, BLOCK_BYTES};

/// The pages that changed, by member.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pages: BTreeMap<(MemberIndex, PageNumber), Page>,
}

impl Tables {
    /// Takes note of what a record leaves on a member.
    ///
    /// # Errors
    /// When the member fails.
    pub(super) fn note_record(
        &mut self,
        disk: &mut impl Disk,
        superblock: &Superblock,
        header: &Header,
        content: &[u8],
    ) -> Result<(), Error> {
        if superblock.integrity == Integrity::None || planted!(SumNotRedone) {
            return Ok(());
        }
        for (extent, content) in header.pieces(content).filter(|(extent, _)| extent.kind != Kind::Sums) {
            let mut content = content.chunks_exact(BLOCK_BYTES);
            let blocks = extent.sector.0 / BLOCK.0..(extent.sector.0 + extent.len.0) / BLOCK.0;
            for block in blocks.map(BlockNumber) {
                self.set(disk, superblock, block, content.next().unwrap_or(&[0; BLOCK_BYTES]))?;
            }
        }
        Ok(())
    }

    /// Takes note of what blocks of a member's data area are to hold.
    ///
    /// # Errors
    /// When the member fails.
    pub(super) fn note<'a>(
        &mut self,
        disk: &mut impl Disk,
        superblock: &Superblock,
        mut blocks: impl Iterator<Item = (DiskSector, &'a [u8])>,
    ) -> Result<(), Error> {
        if superblock.integrity == Integrity::None || planted!(MovedSumsKept) {
            return Ok(());
        }
        blocks.try_for_each(|(sector, bytes)| self.set(disk, superblock, BlockNumber(sector.0 / BLOCK.0), bytes))
    }

    /// Takes note that a range of a member's data area is to hold zeros: whole blocks, in bytes from its start.
    ///
    /// # Errors
    /// When the member fails.
    pub(super) fn note_zeros(
        &mut self,
        disk: &mut impl Disk,
        superblock: &Superblock,
        area: Area,
    ) -> Result<(), Error> {
        if superblock.integrity == Integrity::None || planted!(GrownSumsKept) {
            return Ok(());
        }
        let first = (area.offset.0 - superblock.areas.data.offset.0) / BLOCK.bytes().0;
        let mut blocks = (first..first + area.size.0 / BLOCK.bytes().0).map(BlockNumber);
        blocks.try_for_each(|block| self.set(disk, superblock, block, &[0; BLOCK_BYTES]))
    }

    fn set(
        &mut self,
        disk: &mut impl Disk,
        superblock: &Superblock,
        block: BlockNumber,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let (tag, (number, index)) = (Tag::new(superblock.array, superblock.member), block.place());
        let page = match self.pages.entry((superblock.slot, number)) {
            Entry::Occupied(held) => held.into_mut(),
            Entry::Vacant(place) => place.insert(load(disk, superblock, &tag, number)?),
        };
        page.set(index, tag.sum(block, bytes));
        Ok(())
    }

    /// The writes of all of it, to the members with these superblocks. Not durable when they are over.
    pub(super) fn into_writes(self, superblocks: &[Option<Superblock>]) -> impl Iterator<Item = DiskOp> {
        self.pages.into_iter().filter_map(|((member, number), page)| {
            let superblock = superblocks[member.index()].as_ref()?;
            let mut bytes = Buf::zeroed(Bytes(PAGE_BYTES as u64));
            page.encode(&Tag::new(superblock.array, superblock.member), number, bytes.as_mut());
            let segments = smallvec![bytes.lease_read(0..PAGE_BYTES)];
            Some(DiskOp { tag: 0, member, kind: OpKind::Write, offset: offset(superblock, number), segments })
        })
    }
}

/// A page of a member's table; what is damaged of it was lost.
fn load(disk: &mut impl Disk, superblock: &Superblock, tag: &Tag, number: PageNumber) -> Result<Page, Error> {
    let mut bytes = Buf::zeroed(Bytes(PAGE_BYTES as u64));
    let segments = smallvec![bytes.lease_write(0..PAGE_BYTES)];
    let (member, offset) = (superblock.slot, offset(superblock, number));
    perform(disk, [DiskOp { tag: 0, member, kind: OpKind::Read, offset, segments }])?;
    let (page, damaged) = Page::decode(tag, number, bytes.as_ref());
    if damaged > 0 {
        tracing::error!(%member, page = number.0, damaged, "checksums are damaged: reads of these blocks compute them \
            from the other members");
    }
    Ok(page)
}

fn offset(superblock: &Superblock, number: PageNumber) -> Bytes {
    Bytes(superblock.areas.sums.offset.0 + u64::from(number.0) * PAGE_BYTES as u64)
}
