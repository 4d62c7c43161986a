//! What writes one member's log: its ring, and the record that is being put together for it.

use uraid_layout::{Bytes, DiskSector, MemberIndex, MemberSet, Sectors};
use uuid::Uuid;

use crate::buf::{Buf, Lease};
use crate::format::log::Ring;
use crate::format::log::record::{self, EXTENTS_MAX, Extent, Header, LogSequence};

/// The unit of the log's places.
pub(super) const BLOCK: Bytes = crate::format::BLOCK.bytes();

/// See the module.
#[derive(Debug)]
pub(super) struct Writer {
    /// Where the log area begins on the member.
    area: Bytes,
    pub(super) ring: Ring,
    /// The record that is being put together or written.
    header: Header,
    content: Bytes,
    /// What the record is without the last update: its extents, the last of them, its content.
    before: (usize, Option<Extent>, Bytes),
    /// The header's memory.
    memory: Buf,
    leases: Vec<Lease>,
}

impl Writer {
    /// Of a log of `size` bytes that begins at `area`.
    pub(super) fn new(area: Bytes, size: u64, generation: Uuid, slot: MemberIndex) -> Self {
        let header = Header {
            generation,
            sequence: LogSequence(0),
            trim: LogSequence(0),
            participants: MemberSet::EMPTY,
            previous: MemberSet::EMPTY,
            slot,
            position: Bytes(0),
            content_checksum: 0,
            extents: Vec::new(),
        };
        let memory = Buf::zeroed(BLOCK);
        let (content, before) = (Bytes(0), (0, None, Bytes(0)));
        Self { area, ring: Ring::new(0..size), header, content, before, memory, leases: Vec::new() }
    }

    /// Whose log it is.
    pub(super) fn slot(&self) -> MemberIndex {
        self.header.slot
    }

    /// Begins to put a record together.
    pub(super) fn clear(&mut self) {
        self.header.extents.clear();
        self.content = Bytes(0);
    }

    /// Whether the record has anything.
    pub(super) fn is_empty(&self) -> bool {
        self.header.extents.is_empty()
    }

    /// Begins with the next update.
    pub(super) fn begin(&mut self) {
        self.before = (self.header.extents.len(), self.header.extents.last().copied(), self.content);
    }

    /// Takes the last update out.
    pub(super) fn undo(&mut self) {
        let (extents, last, content) = self.before;
        self.header.extents.truncate(extents);
        if let (Some(place), Some(last)) = (self.header.extents.last_mut(), last) {
            *place = last;
        }
        self.content = content;
    }

    /// Adds a piece of an update.
    pub(super) fn add(&mut self, sector: DiskSector, len: Sectors, is_zero: bool) {
        if !is_zero {
            self.content.0 += len.bytes().0;
        }
        match self.header.extents.last_mut() {
            Some(last) if last.is_zero == is_zero && last.sector.0 + last.len.0 == sector.0 => last.len.0 += len.0,
            _ => self.header.extents.push(Extent { sector, len, is_zero }),
        }
    }

    /// Adds a piece's content.
    pub(super) fn push(&mut self, lease: Lease) {
        if !self.leases.last_mut().is_some_and(|last| last.extend_over(&lease)) {
            self.leases.push(lease);
        }
    }

    /// Whether the record is larger than any can be, whose largest has `limit` bytes.
    pub(super) fn is_too_large(&self, limit: Bytes) -> bool {
        self.total() > limit || self.header.extents.len() > EXTENTS_MAX
    }

    /// Whether it has a place, beside the block that is kept for a record without content.
    pub(super) fn has_place(&self) -> bool {
        self.ring.find(self.total(), BLOCK).is_some()
    }

    fn total(&self) -> Bytes {
        record::total_bytes(self.header.extents.len(), self.content)
    }

    /// Gives the record its place and header.
    pub(super) fn seal(
        &mut self,
        sequence: LogSequence,
        trim: LogSequence,
        participants: MemberSet,
        previous: MemberSet,
    ) {
        let total = self.total();
        let position = self.ring.find(total, Bytes(0)).expect("a participant has room");
        self.ring.take(sequence, position, total);
        let mut crc = crc32fast::Hasher::new();
        self.leases.iter().for_each(|lease| crc.update(lease.bytes()));
        let Header { extents, generation, slot, .. } = &mut self.header;
        let extents = std::mem::take(extents);
        self.header = Header {
            generation: *generation,
            sequence,
            trim,
            participants: if planted!(ParticipantsForgotten) { MemberSet::EMPTY.with(*slot) } else { participants },
            previous,
            slot: *slot,
            position,
            content_checksum: crc.finalize(),
            extents,
        };
        if self.memory.len() < self.header.bytes() {
            self.memory = Buf::zeroed(Bytes(self.header.bytes() as u64));
        }
        self.header.encode(self.memory.as_mut());
    }

    /// Where the sealed record goes on the member, how long it is, and its memory, in order; `zeroes` fill up the last
    /// block.
    pub(super) fn take(&mut self, zeroes: &Buf) -> (Bytes, Bytes, impl Iterator<Item = Lease>) {
        let (header, total) = (self.header.bytes(), self.total());
        let fill = usize::try_from(total.0 - header as u64 - self.content.0).expect("less than a block");
        let head = self.memory.lease_read(0..header);
        let tail = (fill > 0).then(|| zeroes.lease_read(0..fill));
        let offset = Bytes(self.area.0 + self.header.position.0);
        (offset, total, std::iter::once(head).chain(self.leases.drain(..)).chain(tail))
    }
}
