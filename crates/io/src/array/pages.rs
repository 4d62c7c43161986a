//! Reading the journal of pages after an unclean stop: what it has comes back as dirty, before anything is served. It
//! is newer than what the log has, or the same; so it is the cache's when the log is done again.

use smallvec::smallvec;
use uraid_layout::{Bytes, Geometry, Lba, Sectors};

use super::blocking::{flush, perform};
use super::error::RecoverError;
use super::redo::{Lane, Pending, copies, load, pending, renew};
use crate::buf::Buf;
use crate::disk::{Disk, DiskOp, OpKind};
use crate::format::log::record::{Header, LogSequence};
use crate::format::superblock::Superblock;
use crate::format::{BLOCK, BLOCK_BYTES};
use crate::member::Access;

/// What the journal has, and where.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// Of every copy of every record, the oldest first.
    pub(crate) headers: Vec<Header>,
    /// The oldest first.
    pub(crate) records: Vec<Record>,
}

/// What a record has of the array.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) sequence: LogSequence,
    pub(crate) content: Vec<(Lba, Buf)>,
}

impl Pages {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// What the journals of the present members have. For writing, the newest record is there durably on all who have
    /// it, or on none of them, when this is over.
    ///
    /// # Errors
    /// When a member fails, or its journal is damaged.
    pub(super) fn read(
        disk: &mut impl Disk,
        superblocks: &[Option<Superblock>],
        geometry: &Geometry,
        access: Access,
    ) -> Result<Self, RecoverError> {
        let has_journal = |own: &Superblock| own.journal_area().is_some();
        if !superblocks.iter().flatten().any(has_journal) || planted!(JournalIgnored) {
            return Ok(Self::default());
        }
        let Pending { redo, held } = pending(disk, superblocks, std::slice::from_ref(geometry), Lane::Journal)?;
        if access == Access::ReadWrite {
            renew(disk, superblocks, &redo, &held, Lane::Journal)?;
            strike(disk, superblocks, held.records().filter(|header| !redo.contains(&header.sequence)))?;
        }
        let mut pages = Self::default();
        for (header, own) in copies(&redo, &held, superblocks) {
            let is_first = pages.records.last().is_none_or(|record| record.sequence != header.sequence);
            pages.headers.push(header.clone());
            if is_first && !header.extents.is_empty() {
                let (buf, content) = load(disk, own, header, Lane::Journal)?;
                let content = header.pieces(buf.bytes(content)).map(|(extent, bytes)| {
                    let mut own = Buf::zeroed(Bytes(bytes.len() as u64));
                    own.as_mut().copy_from_slice(bytes);
                    (Lba(extent.sector.0), own)
                });
                pages.records.push(Record { sequence: header.sequence, content: content.collect() });
            }
        }
        Ok(pages)
    }

    /// How much content that is.
    pub(super) fn content(&self) -> Sectors {
        let content = self.records.iter().flat_map(|record| &record.content);
        Sectors(content.map(|(_, buf)| Bytes(buf.len() as u64).whole_sectors().0).sum())
    }
}

/// Has records not be there that never were committed: later ones come after them.
fn strike<'a>(
    disk: &mut impl Disk,
    superblocks: &[Option<Superblock>],
    records: impl Iterator<Item = &'a Header>,
) -> Result<(), RecoverError> {
    for header in records.filter(|_| !planted!(UncommittedKept)) {
        let Some(own) = &superblocks[header.slot.index()] else { continue };
        let zeros = Buf::zeroed(BLOCK.bytes());
        let offset = Bytes(Lane::Journal.place(own).offset.0 + header.position.0);
        let segments = smallvec![zeros.lease_read(0..BLOCK_BYTES)];
        perform(disk, [DiskOp { tag: 0, member: own.slot, kind: OpKind::Write, offset, segments }])?;
        perform(disk, [flush(own.slot)])?;
    }
    Ok(())
}
