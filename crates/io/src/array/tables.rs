//! The checksums of what is done again from the logs; blocking, over any [`Disk`].
//!
//! A crash may have left old checksums beside new content, or the other way round. Both are made anew from the record,
//! which has the content. Pages wait in memory until all records are done: a log covers few.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use smallvec::smallvec;
use uraid_layout::{Bytes, MemberIndex};

use super::blocking::perform;
use crate::Error;
use crate::buf::Buf;
use crate::disk::{Disk, DiskOp, OpKind};
use crate::format::log::record::Header;
use crate::format::sums::{BlockNumber, PAGE_BYTES, Page, PageNumber, Tag};
use crate::format::superblock::{Integrity, Superblock};
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
    pub(super) fn note(
        &mut self,
        disk: &mut impl Disk,
        superblock: &Superblock,
        header: &Header,
        content: &[u8],
    ) -> Result<(), Error> {
        if superblock.integrity == Integrity::None || planted!(SumNotRedone) {
            return Ok(());
        }
        let tag = Tag::new(superblock.array, superblock.member);
        let mut content = content.chunks_exact(BLOCK_BYTES);
        for extent in &header.extents {
            let blocks = extent.sector.0 / BLOCK.0..(extent.sector.0 + extent.len.0) / BLOCK.0;
            for block in blocks.map(BlockNumber) {
                let bytes =
                    if extent.is_zero { &[0; BLOCK_BYTES][..] } else { content.next().unwrap_or(&[0; BLOCK_BYTES]) };
                let (number, index) = block.place();
                let key = (superblock.slot, number);
                let page = match self.pages.entry(key) {
                    Entry::Occupied(held) => held.into_mut(),
                    Entry::Vacant(place) => place.insert(load(disk, superblock, &tag, number)?),
                };
                page.set(index, tag.sum(block, bytes));
            }
        }
        Ok(())
    }

    /// Writes all of it. Not durable yet.
    ///
    /// # Errors
    /// When a member fails.
    pub(super) fn write(self, disk: &mut impl Disk, superblocks: &[Option<Superblock>]) -> Result<(), Error> {
        for ((member, number), page) in self.pages {
            let superblock = superblocks[member.index()].as_ref().expect("a member with a record is present");
            let mut bytes = Buf::zeroed(Bytes(PAGE_BYTES as u64));
            page.encode(&Tag::new(superblock.array, superblock.member), number, bytes.as_mut());
            let segments = smallvec![bytes.lease_read(0..PAGE_BYTES)];
            let offset = offset(superblock, number);
            perform(disk, [DiskOp { tag: 0, member, kind: OpKind::Write, offset, segments }])?;
        }
        Ok(())
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
