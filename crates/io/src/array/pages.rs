//! Reading the journal of pages after an unclean stop: what it has comes back as dirty, before anything is served. It
//! is newer than what the log has, or the same; so it is the cache's when the log is done again.

use smallvec::smallvec;
use uraid_layout::{Bytes, Geometry, Lba, Sectors};

use super::blocking::perform;
use super::error::RecoverError;
use super::redo::{Lane, Pending, copies, load, pending, renew};
use crate::buf::Buf;
use crate::disk::{Disk, DiskOp, OpKind};
use crate::format::log::Ring;
use crate::format::log::record::{Header, LogSequence};
use crate::format::log::replay::{Held, ReplayError};
use crate::format::superblock::{Area, Superblock};
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

    /// What the journals of the present members have. For writing, the newest record is there durably on all who are to
    /// have it when this is over.
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
        let Pending { mut redo, mut held } = pending(disk, superblocks, std::slice::from_ref(geometry), Lane::Journal)?;
        let is_left_over = |header: &&Header| !redo.contains(&header.sequence);
        let incomplete = held.records().find(is_left_over).filter(|_| !planted!(LoneCopyDropped)).cloned();
        redo.extend(incomplete.iter().map(|header| header.sequence));
        if access == Access::ReadWrite {
            if let Some(header) = incomplete.filter(|_| !planted!(LoneCopyKept)) {
                complete(disk, superblocks, &header, &mut held)?;
            }
            renew(disk, superblocks, &redo, &held, Lane::Journal)?;
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

/// Has a record be there on all who are to have it, as one of them has it.
///
/// Whether it was cut off before it was committed, or was, and a copy has rotted, nobody can say. It is the newest:
/// what it has may count either way.
fn complete(
    disk: &mut impl Disk,
    superblocks: &[Option<Superblock>],
    header: &Header,
    held: &mut Held,
) -> Result<(), RecoverError> {
    let source = superblocks[header.slot.index()].as_ref().expect("who has a record is present");
    let (mut record, _) = load(disk, source, header, Lane::Journal)?;
    for own in superblocks.iter().flatten().filter(|own| header.participants.contains(own.slot)) {
        let mut records: Vec<&Header> = held.records().filter(|other| other.slot == own.slot).collect();
        records.sort_unstable_by_key(|other| other.sequence);
        if records.last().is_some_and(|newest| newest.sequence == header.sequence) {
            continue;
        }
        let lost = ReplayError::Lost { member: own.slot, sequence: header.sequence };
        let Area { offset, size } = own.journal_area().ok_or(lost)?;
        let mut ring = Ring::new(0..size.0);
        records.iter().for_each(|other| ring.take(other.sequence, other.position, other.total()));
        let position = ring.find(header.total(), Bytes(0)).ok_or(lost)?;
        let copy = Header { slot: own.slot, position, ..header.clone() };
        copy.encode(record.as_mut());
        let segments = smallvec![record.lease_read(0..record.len())];
        let offset = Bytes(offset.0 + position.0);
        perform(disk, [DiskOp { tag: 0, member: own.slot, kind: OpKind::Write, offset, segments }])?;
        held.add(copy);
    }
    Ok(())
}
