//! Reading the journal of pages after an unclean stop: what it has comes back as dirty, before anything is served. It
//! is newer than what the log has, or the same; so it is the cache's when the log is done again.

use std::cmp::Reverse;

use smallvec::smallvec;
use uraid_layout::{Bytes, Geometry, Lba, Sectors};

use super::blocking::perform;
use super::error::RecoverError;
use super::redo::{Lane, Pending, copies, load, log_places, pending, renew};
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

    /// What the journals of the present members have. For writing, each record is there durably on all who are to have
    /// it when this is over.
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
        let Pending { mut redo, open, void, mut held } =
            pending(disk, superblocks, std::slice::from_ref(geometry), Lane::Journal)?;
        let is_left_over = |header: &&Header| !redo.contains(&header.sequence) && !planted!(LoneCopyDropped);
        let mut incomplete: Vec<Header> = held.records().filter(is_left_over).cloned().collect();
        incomplete.sort_by_key(|header| Reverse(header.sequence));
        incomplete.dedup_by_key(|header| header.sequence);
        if planted!(NewestCopyAlone) {
            incomplete.truncate(1);
        }
        redo.extend(incomplete.iter().map(|header| header.sequence));
        if access == Access::ReadWrite {
            incomplete.retain(|_| !planted!(LoneCopyKept));
            redo.extend(void.iter().map(|header| header.sequence));
            incomplete.extend(void);
            // Each is put before those that came after it.
            incomplete.sort_by_key(|header| Reverse(header.sequence));
            for header in &incomplete {
                complete(disk, superblocks, header, &mut held)?;
            }
            renew(disk, superblocks, (&redo, &open), &held, Lane::Journal)?;
        }
        redo.sort_unstable();
        let mut pages = Self::default();
        for (header, own) in copies(&redo, &held, superblocks) {
            let is_first = pages.records.last().is_none_or(|record| record.sequence != header.sequence);
            pages.headers.push(header.clone());
            if is_first && !header.extents.is_empty() {
                let (buf, content) = load(disk, own, header, Lane::Journal)?;
                let pieces = header.pieces(buf.bytes(content));
                let content = pieces.map(|(extent, bytes)| (Lba(extent.sector.0), Buf::of(bytes)));
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

/// Has a record be there on all who are to have it, as one of them has it, or one without anything; those that came
/// after it are.
///
/// Whether it was cut off before it was committed, or was, and a copy has rotted, nobody can say. It was open: what it
/// has may count either way.
fn complete(
    disk: &mut impl Disk,
    superblocks: &[Option<Superblock>],
    header: &Header,
    held: &mut Held,
) -> Result<(), RecoverError> {
    let is_there = held.records().any(|other| (other.slot, other.sequence) == (header.slot, header.sequence));
    let mut record = match superblocks[header.slot.index()].as_ref().filter(|_| is_there) {
        Some(source) => load(disk, source, header, Lane::Journal)?.0,
        None => Buf::zeroed(header.total()),
    };
    for own in superblocks.iter().flatten().filter(|own| header.participants.contains(own.slot)) {
        let lost = ReplayError::Lost { member: own.slot, sequence: header.sequence };
        let Area { offset, size } = own.journal_area().ok_or(lost)?;
        let others = held.records().filter(|other| other.slot == own.slot);
        if others.clone().any(|other| other.sequence == header.sequence) {
            continue;
        }
        let position = place(others, size, header).ok_or(lost)?;
        let copy = Header { slot: own.slot, position, ..header.clone() };
        copy.encode(record.as_mut());
        let offset = Bytes(offset.0 + position.0);
        for place in log_places(own) {
            let segments = smallvec![record.lease_read(0..record.len())];
            perform(disk, [DiskOp { tag: 0, member: place, kind: OpKind::WriteFua, offset, segments }])?;
        }
        held.add(copy);
    }
    Ok(())
}

/// Where a record goes in a ring of `size` with these others, so that they are in order: right before the next one,
/// where it was meant to be or after that; else behind all. None where there is no room.
fn place<'a>(others: impl Iterator<Item = &'a Header>, size: Bytes, record: &Header) -> Option<Bytes> {
    let mut others: Vec<&Header> = others.collect();
    others.sort_unstable_by_key(|other| other.sequence);
    let (older, newer) = others.split_at(others.partition_point(|other| other.sequence < record.sequence));
    let len = record.total();
    let Some(next) = newer.first() else {
        let mut ring = Ring::new(0..size.0);
        older.iter().for_each(|other| ring.take(other.sequence, other.position, other.total()));
        return ring.find(len, Bytes(0));
    };
    let is_free = |at: &u64| {
        let overlaps = |other: &&Header| *at < other.position.0 + other.total().0 && other.position.0 < *at + len.0;
        !others.iter().any(overlaps)
    };
    let before = next.position.0.checked_sub(len.0);
    // Where the next is the first one of the ring, or there was no room before it, this one was at the end.
    before.filter(is_free).or_else(|| size.0.checked_sub(len.0).filter(is_free)).map(Bytes)
}
