//! What writes one member's log: its ring, and the record that is being put together for it.

use uraid_layout::{Bytes, DiskSector, MemberIndex, MemberSet, Sectors};
use uuid::Uuid;

use crate::buf::{Buf, Lease};
use crate::format::log::Ring;
use crate::format::log::record::{self, EXTENTS_MAX, Extent, Header, Kind, LogSequence, OPEN_MAX};

/// The unit of the log's places.
pub(super) const BLOCK: Bytes = crate::format::BLOCK.bytes();

/// See the module.
#[derive(Debug)]
pub(super) struct Writer {
    /// Where the log area begins on the member.
    area: Bytes,
    pub(super) ring: Ring,
    /// The record that is being put together.
    header: Header,
    content: Bytes,
    /// What the record is without the last update: its extents, the last of them, its content.
    before: (usize, Option<Extent>, Bytes),
    /// Its content, and the sums behind that.
    leases: Vec<Lease>,
    sums: Vec<u8>,
    /// By berth: what records that are being written have beside their content.
    berths: Vec<Berth>,
}

/// What the copies of a record say that is the same for all participants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    pub(super) sequence: LogSequence,
    pub(super) trim: LogSequence,
    pub(super) participants: MemberSet,
    pub(super) previous: [MemberSet; OPEN_MAX],
    pub(super) open: [LogSequence; OPEN_MAX - 1],
}

/// Memory of a record.
#[derive(Debug)]
struct Berth {
    header: Buf,
    /// The sums, which fill up the last block.
    tail: Buf,
}

impl Writer {
    /// Of a log of `size` bytes that begins at `area`.
    pub(super) fn new(area: Bytes, size: u64, generation: Uuid, slot: MemberIndex) -> Self {
        let header = Header {
            generation,
            sequence: LogSequence(0),
            trim: LogSequence(0),
            participants: MemberSet::EMPTY,
            previous: Default::default(),
            open: Default::default(),
            slot,
            position: Bytes(0),
            content_checksum: 0,
            extents: Vec::new(),
        };
        let (content, before) = (Bytes(0), (0, None, Bytes(0)));
        let (ring, leases, sums, berths) = (Ring::new(0..size), Vec::new(), Vec::new(), Vec::new());
        Self { area, ring, header, content, before, leases, sums, berths }
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
    pub(super) fn add(&mut self, sector: DiskSector, len: Sectors, kind: Kind) {
        let extent = Extent { sector, len, kind };
        self.content.0 += extent.bytes().0;
        match self.header.extents.last_mut() {
            Some(last) if last.kind == kind && last.sector.0 + last.len.0 == sector.0 => last.len.0 += len.0,
            _ => self.header.extents.push(extent),
        }
    }

    /// Adds a piece's content, or its sums.
    pub(super) fn push(&mut self, kind: Kind, lease: Lease) {
        if kind == Kind::Sums {
            let sectors = lease.bytes().chunks_exact(uraid_layout::SECTOR_BYTES as usize);
            self.sums.extend(sectors.flat_map(record::sum));
            return;
        }
        if !self.leases.last_mut().is_some_and(|last| last.extend_over(&lease)) {
            self.leases.push(lease);
        }
    }

    /// Whether the record is larger than any can be, whose largest has `limit` bytes.
    pub(super) fn is_too_large(&self, limit: Bytes) -> bool {
        self.total() > limit || self.header.extents.len() > EXTENTS_MAX
    }

    /// Whether it has a place, beside what is kept for records without content.
    pub(super) fn has_place(&self, spare: Bytes) -> bool {
        self.ring.find(self.total(), spare).is_some()
    }

    fn total(&self) -> Bytes {
        record::total_bytes(self.header.extents.len(), self.content)
    }

    /// Gives the record its place and header; what it has beside its content is in a berth from then on.
    pub(super) fn seal(&mut self, stamp: Stamp, berth: usize) {
        let total = self.total();
        let position = self.ring.find(total, Bytes(0)).expect("a participant has room");
        let Stamp { sequence, trim, participants, previous, open } = stamp;
        self.ring.take(sequence, position, total);
        let mut crc = crc32fast::Hasher::new();
        self.leases.iter().for_each(|lease| crc.update(lease.bytes()));
        crc.update(&self.sums);
        let Header { extents, generation, slot, .. } = &mut self.header;
        let participants = if planted!(ParticipantsForgotten) { MemberSet::EMPTY.with(*slot) } else { participants };
        let (generation, slot, extents) = (*generation, *slot, std::mem::take(extents));
        let content_checksum = crc.finalize();
        self.header = Header {
            generation,
            sequence,
            trim,
            participants,
            previous,
            open,
            slot,
            position,
            content_checksum,
            extents,
        };
        let tail = self.tail_bytes();
        while self.berths.len() <= berth {
            self.berths.push(Berth { header: Buf::zeroed(BLOCK), tail: Buf::zeroed(BLOCK) });
        }
        let berth = &mut self.berths[berth];
        // A log device that hangs keeps what was written to it.
        if berth.header.len() < self.header.bytes() || berth.header.is_lent() {
            berth.header = Buf::zeroed(Bytes(self.header.bytes() as u64));
        }
        self.header.encode(berth.header.as_mut());
        if berth.tail.len() < tail || berth.tail.is_lent() {
            berth.tail = Buf::zeroed(Bytes(tail as u64));
        }
        let (sums, fill) = berth.tail.bytes_mut(0..tail).split_at_mut(self.sums.len());
        sums.copy_from_slice(&self.sums);
        fill.fill(0);
    }

    /// What follows the content in the record: the sums, and what fills up the last block.
    fn tail_bytes(&self) -> usize {
        let content: usize = self.leases.iter().map(Lease::len).sum();
        usize::try_from(self.total().0).expect("a record fits the address space") - self.header.bytes() - content
    }

    /// Where the record that was sealed last goes on the member, how long it is, and its memory, in order.
    pub(super) fn take(&mut self, berth: usize) -> (Bytes, Bytes, impl Iterator<Item = Lease>) {
        let (total, tail) = (self.total(), self.tail_bytes());
        let berth = &mut self.berths[berth];
        let head = berth.header.lease_read(0..self.header.bytes());
        let tail = (tail > 0).then(|| berth.tail.lease_read(0..tail));
        self.sums.clear();
        let offset = Bytes(self.area.0 + self.header.position.0);
        (offset, total, std::iter::once(head).chain(self.leases.drain(..)).chain(tail))
    }
}
