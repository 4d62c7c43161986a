//! A record's bytes on one member: header blocks, then the content, then sums; little-endian, fixed places, CRC32 over
//! all of it.
//!
//! The layout is in `docs/on-disk-format.md`. Pure: bytes in, values out, whatever the bytes are.

use std::ops::Range;

use uraid_layout::{Bytes, DiskSector, MemberIndex, MemberSet, SECTOR_BYTES, Sectors};
use uuid::Uuid;

use super::RECORD_BYTES_MAX;
use crate::format::{BLOCK, BLOCK_BYTES};

/// No text, and not the superblock's.
const MAGIC: [u8; 8] = *b"\x8dURLOG\r\n";

/// Byte offsets of the fields.
mod at {
    pub(super) const MAGIC: usize = 0;
    pub(super) const CHECKSUM: usize = 8;
    pub(super) const CONTENT_CHECKSUM: usize = 12;
    pub(super) const GENERATION: usize = 16;
    pub(super) const SEQUENCE: usize = 32;
    pub(super) const TRIM: usize = 40;
    pub(super) const PARTICIPANTS: usize = 48;
    pub(super) const POSITION: usize = 56;
    pub(super) const SLOT: usize = 64;
    pub(super) const COUNT: usize = 68;
    pub(super) const PREVIOUS: usize = 72;
    pub(super) const OPEN: usize = 104;
    pub(super) const EXTENTS: usize = 128;
    pub(super) const EXTENT_BYTES: usize = 16;
}

/// The most ranges of one record on a member.
pub const EXTENTS_MAX: usize = (64 * BLOCK_BYTES - at::EXTENTS) / at::EXTENT_BYTES;

/// The most records of a log that are open at once: being written, and not known to be on all participants yet.
pub const OPEN_MAX: usize = 4;

/// Counts the records of a log from 1 on; 0 is before all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogSequence(pub u64);

/// The highest, so that the next one always fits.
const SEQUENCE_MAX: LogSequence = LogSequence(u64::MAX / 2);

/// What of a member's data area a record gives new content to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first sector.
    pub sector: DiskSector,
    /// How many.
    pub len: Sectors,
    /// What the record has of it.
    pub kind: Kind,
}

/// What a record has of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Its content.
    Content,
    /// Nothing: it is zeros.
    Zeros,
    /// A CRC32 of each of its sectors, by which it can be told whether the member has got it.
    Sums,
    /// Content of the array: its sectors count through that, not through the member's data area.
    Page,
}

/// What a sum of a sector takes.
pub const SUM_BYTES: usize = 4;

/// What a record says, beside its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The run of the log that it belongs to: see
    /// [`Superblock::generation`](crate::format::superblock::Superblock::generation).
    pub generation: Uuid,
    /// Its number in the log.
    pub sequence: LogSequence,
    /// Records up to this one are in place and durable.
    pub trim: LogSequence,
    /// The members that get this record.
    pub participants: MemberSet,
    /// The participants of the records before it, the last one's first; none of a record that there was not.
    pub previous: [MemberSet; OPEN_MAX],
    /// The other records that were open when it was written, 0 where there were fewer: all others before it were
    /// committed, or will never be.
    pub open: [LogSequence; OPEN_MAX - 1],
    /// The member that this copy is for.
    pub slot: MemberIndex,
    /// Where in the member's log area it begins.
    pub position: Bytes,
    /// CRC32 of the content and the sums.
    pub content_checksum: u32,
    /// What it gives new content to, in the order of the content and of the sums.
    pub extents: Vec<Extent>,
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// There is none.
    #[error("there is no record")]
    NoMagic,
    /// The bytes end before the record does.
    #[error("the record needs {needed} bytes")]
    Short {
        /// How many it has, as far as it can be told.
        needed: Bytes,
    },
    /// Torn or damaged.
    #[error("the record's checksum is wrong")]
    BadChecksum,
    /// A field makes no sense although the checksum is right.
    #[error("the record's {field} is wrong")]
    Field {
        /// Which.
        field: &'static str,
    },
}

impl Header {
    /// How many bytes the header takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        header_bytes(self.extents.len())
    }

    /// How many bytes of content and sums follow it.
    #[must_use]
    pub fn content(&self) -> Bytes {
        Bytes(self.extents.iter().map(|extent| extent.bytes().0).sum())
    }

    /// What it has of each range, of all that follows it.
    ///
    /// # Panics
    /// When that is less than [`Header::content`].
    pub fn pieces<'a>(&'a self, content: &'a [u8]) -> impl Iterator<Item = (Extent, &'a [u8])> {
        let of = move |is_sums: bool| self.extents.iter().filter(move |extent| (extent.kind == Kind::Sums) == is_sums);
        of(false).chain(of(true)).scan(content, |rest, &extent| {
            let size = usize::try_from(extent.bytes().0).expect("a record fits the address space");
            let (bytes, others) = rest.split_at(size);
            *rest = others;
            Some((extent, bytes))
        })
    }

    /// How many bytes of the ring the record takes: header, content, and what fills the last block up.
    #[must_use]
    pub fn total(&self) -> Bytes {
        total_bytes(self.extents.len(), self.content())
    }

    /// Writes the header to the start of `bytes`.
    ///
    /// # Panics
    /// When there are fewer than [`Header::bytes`], or more than [`EXTENTS_MAX`] extents.
    pub fn encode(&self, bytes: &mut [u8]) {
        assert!(self.extents.len() <= EXTENTS_MAX, "a record's extents fit its header");
        let bytes = &mut bytes[..self.bytes()];
        bytes.fill(0);
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(at::MAGIC, &MAGIC);
        put(at::CONTENT_CHECKSUM, &self.content_checksum.to_le_bytes());
        put(at::GENERATION, self.generation.as_bytes());
        put(at::SEQUENCE, &self.sequence.0.to_le_bytes());
        put(at::TRIM, &self.trim.0.to_le_bytes());
        put(at::PARTICIPANTS, &bits_of(self.participants).to_le_bytes());
        for (index, participants) in self.previous.iter().enumerate() {
            put(at::PREVIOUS + 8 * index, &bits_of(*participants).to_le_bytes());
        }
        for (index, sequence) in self.open.iter().enumerate() {
            put(at::OPEN + 8 * index, &sequence.0.to_le_bytes());
        }
        put(at::POSITION, &self.position.0.to_le_bytes());
        put(at::SLOT, &[self.slot.0]);
        put(at::COUNT, &u32::try_from(self.extents.len()).expect("a small number").to_le_bytes());
        for (index, extent) in self.extents.iter().enumerate() {
            let at = at::EXTENTS + index * at::EXTENT_BYTES;
            put(at, &extent.sector.0.to_le_bytes());
            let len = extent.len.0 << 2 | extent.kind.code();
            put(at + 8, &len.to_le_bytes());
        }
        let checksum = checksum(bytes);
        bytes[at::CHECKSUM..at::CHECKSUM + 4].copy_from_slice(&checksum.to_le_bytes());
    }
}

impl Extent {
    /// How many bytes a record has of it.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        match self.kind {
            Kind::Content | Kind::Page => self.len.bytes(),
            Kind::Zeros => Bytes(0),
            Kind::Sums => Bytes(self.len.0.saturating_mul(SUM_BYTES as u64)),
        }
    }
}

impl Kind {
    fn code(self) -> u64 {
        match self {
            Self::Content => 0,
            Self::Zeros => 1,
            Self::Sums => 2,
            Self::Page => 3,
        }
    }

    /// The kind that the two lowest bits say.
    fn of(bits: u64) -> Self {
        match bits & 3 {
            0 => Self::Content,
            1 => Self::Zeros,
            2 => Self::Sums,
            _ => Self::Page,
        }
    }
}

/// The sum of a sector.
#[must_use]
pub fn sum(sector: &[u8]) -> [u8; SUM_BYTES] {
    crc32fast::hash(sector).to_le_bytes()
}

/// The bytes of the ring that a record of so many extents and so much content takes.
#[must_use]
pub fn total_bytes(extents: usize, content: Bytes) -> Bytes {
    Bytes((header_bytes(extents) as u64 + content.0).next_multiple_of(BLOCK.bytes().0))
}

/// Whether a block may be the first of a record of this generation: cheap, and no proof.
#[must_use]
pub fn may_begin(block: &[u8], generation: Uuid) -> bool {
    let is_any = planted!(StaleGenerationAccepted);
    block.starts_with(&MAGIC)
        && (is_any || block.get(at::GENERATION..at::GENERATION + 16) == Some(generation.as_bytes()))
}

/// Reads the record that `bytes` begin with: what it says, and where in `bytes` its content is.
///
/// # Errors
/// What is wrong; [`RecordError::Short`] asks for more bytes, at most [`RECORD_BYTES_MAX`].
pub fn decode(bytes: &[u8]) -> Result<(Header, Range<usize>), RecordError> {
    let wrong = |field| RecordError::Field { field };
    if bytes.len() < BLOCK_BYTES {
        return Err(RecordError::Short { needed: BLOCK.bytes() });
    }
    if !bytes.starts_with(&MAGIC) {
        return Err(RecordError::NoMagic);
    }
    let count = u32::from_le_bytes(array_at(bytes, at::COUNT)) as usize;
    if count > EXTENTS_MAX {
        return Err(wrong("number of extents"));
    }
    let Some(header) = bytes.get(..header_bytes(count)) else {
        return Err(RecordError::Short { needed: Bytes(header_bytes(count) as u64) });
    };
    if checksum(header) != u32::from_le_bytes(array_at(header, at::CHECKSUM)) {
        return Err(RecordError::BadChecksum);
    }
    let mut extents = Vec::with_capacity(count);
    let mut content = 0_u64;
    for extent in header[at::EXTENTS..].chunks_exact(at::EXTENT_BYTES).take(count) {
        let (sector, len) = (u64_at(extent, 0), u64_at(extent, 8));
        let extent = Extent { sector: DiskSector(sector), len: Sectors(len >> 2), kind: Kind::of(len) };
        let end = sector.checked_add(extent.len.0).and_then(|end| end.checked_mul(SECTOR_BYTES));
        if extent.len.0 == 0 || end.is_none() {
            return Err(wrong("extents"));
        }
        content = content.saturating_add(extent.bytes().0);
        extents.push(extent);
    }
    // Capped before it is added: extents of any length pass the checks so far.
    let total = header.len() as u64 + content.min(RECORD_BYTES_MAX.0);
    if total > RECORD_BYTES_MAX.0 {
        return Err(wrong("size"));
    }
    let content = header.len()..usize::try_from(total).expect("a record fits the address space");
    let Some(bytes) = bytes.get(content.clone()) else { return Err(RecordError::Short { needed: Bytes(total) }) };
    let content_checksum = u32::from_le_bytes(array_at(header, at::CONTENT_CHECKSUM));
    if !planted!(ContentUnchecked) && crc32fast::hash(bytes) != content_checksum {
        return Err(RecordError::BadChecksum);
    }
    let header = Header {
        generation: Uuid::from_bytes(array_at(header, at::GENERATION)),
        sequence: LogSequence(u64_at(header, at::SEQUENCE)),
        trim: LogSequence(u64_at(header, at::TRIM)),
        participants: members_of(u64_at(header, at::PARTICIPANTS)),
        previous: std::array::from_fn(|index| members_of(u64_at(header, at::PREVIOUS + 8 * index))),
        open: std::array::from_fn(|index| LogSequence(u64_at(header, at::OPEN + 8 * index))),
        slot: MemberIndex(header[at::SLOT]),
        position: Bytes(u64_at(header, at::POSITION)),
        content_checksum,
        extents,
    };
    if !header.participants.contains(header.slot) {
        return Err(wrong("participants"));
    }
    if header.sequence > SEQUENCE_MAX {
        return Err(wrong("sequence"));
    }
    if header.trim >= header.sequence {
        return Err(wrong("trim mark"));
    }
    if header.open.iter().any(|open| *open >= header.sequence) {
        return Err(wrong("list of open records"));
    }
    Ok((header, content))
}

/// Bit n: the member in slot n.
fn bits_of(members: MemberSet) -> u64 {
    members.iter().fold(0, |bits, member| bits | 1 << member.0)
}

/// The inverse of [`bits_of`].
fn members_of(bits: u64) -> MemberSet {
    (0..64).filter(|bit| bits >> bit & 1 == 1).map(MemberIndex).collect()
}

fn header_bytes(extents: usize) -> usize {
    (at::EXTENTS + extents * at::EXTENT_BYTES).next_multiple_of(BLOCK_BYTES)
}

/// CRC32 over the header with zeros for the checksum.
fn checksum(header: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header[..at::CHECKSUM]);
    crc.update(&[0; 4]);
    crc.update(&header[at::CHECKSUM + 4..]);
    crc.finalize()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("fields are inside the header")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> (Header, Vec<u8>) {
        let mut content: Vec<u8> = (0..1024_u32).map(|at| at.to_le_bytes()[0]).collect();
        content.extend([0xa1, 0xa2, 0xa3, 0xa4, 0xb1, 0xb2, 0xb3, 0xb4]);
        let extent = |sector, len, kind| Extent { sector: DiskSector(sector), len: Sectors(len), kind };
        let header = Header {
            generation: Uuid::from_bytes([0xc0; 16]),
            sequence: LogSequence(7),
            trim: LogSequence(5),
            participants: MemberSet::all(3),
            previous: [MemberSet::all(2), MemberSet::EMPTY, MemberSet::all(1), MemberSet::all(9)],
            open: [LogSequence(6), LogSequence(3), LogSequence(0)],
            slot: MemberIndex(1),
            position: Bytes(8192),
            content_checksum: crc32fast::hash(&content),
            extents: vec![
                extent(16, 1, Kind::Content),
                extent(300, 2, Kind::Sums),
                extent(1 << 40, 1 << 20, Kind::Zeros),
                extent(99, 1, Kind::Content),
            ],
        };
        let mut bytes = vec![0; header.bytes()];
        header.encode(&mut bytes);
        bytes.extend(content);
        (header, bytes)
    }

    /// Typed in from `docs/on-disk-format.md`; both checksums were computed with zlib.
    #[test]
    #[rustfmt::skip]
    fn the_bytes_are_those_of_the_format() {
        let (header, bytes) = sample();
        let mut expected = vec![0x8d, b'U', b'R', b'L', b'O', b'G', b'\r', b'\n', 0xe1, 0x3c, 0xdf, 0xfa, 0x5e, 0x79,
            0xbc, 0xdd];
        expected.extend([0xc0; 16]);
        expected.extend([7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0,
            0, 0, 1, 0, 0, 0, 4, 0, 0, 0]);
        expected.extend([3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xff, 1, 0, 0, 0, 0,
            0, 0]);
        expected.extend([6, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend([16, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend([0x2c, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend([0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0x40, 0, 0, 0, 0, 0]);
        expected.extend([99, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        expected.resize(4096, 0);
        assert_eq!(bytes[..4096], expected[..]);
        assert_eq!(decode(&bytes), Ok((header.clone(), 4096..5128)));
        assert_eq!((header.bytes(), header.content(), header.total()), (4096, Bytes(1032), Bytes(8192)));
        let pieces: Vec<_> = header.pieces(&bytes[4096..]).map(|(extent, bytes)| (extent.sector.0, bytes)).collect();
        let (content, sums) = (&bytes[4096..5120], &bytes[5120..]);
        assert_eq!(pieces, [(16, &content[..512]), (1 << 40, &[][..]), (99, &content[512..]), (300, sums)]);
        assert_eq!(sum(b"123456789"), [0x26, 0x39, 0xf4, 0xcb], "the check value of CRC32");
    }

    #[test]
    fn what_is_torn_is_no_record() {
        let (header, bytes) = sample();
        for len in 0..bytes.len() {
            assert!(
                matches!(decode(&bytes[..len]), Err(RecordError::Short { needed }) if needed.0 as usize <= bytes.len())
            );
        }
        for sector in 0..bytes.len().div_ceil(512) {
            let mut torn = bytes.clone();
            let end = bytes.len().min((sector + 1) * 512);
            torn[sector * 512..end].fill(0x5a);
            assert!(decode(&torn).is_err(), "sector {sector}");
        }
        assert!(
            may_begin(&bytes, header.generation)
                && !may_begin(&bytes, Uuid::nil())
                && !may_begin(&bytes[..20], header.generation)
        );
    }

    /// The header with changed fields and a right checksum.
    fn changed(change: impl FnOnce(&mut Header)) -> Result<(Header, Range<usize>), RecordError> {
        let (mut header, bytes) = sample();
        change(&mut header);
        let mut encoded = vec![0; header.bytes()];
        header.encode(&mut encoded);
        encoded.extend(&bytes[4096..]);
        decode(&encoded)
    }

    #[test]
    fn what_makes_no_sense_is_no_record() {
        let field = |field| Err(RecordError::Field { field });
        assert_eq!(changed(|header| header.slot = MemberIndex(3)), field("participants"));
        assert_eq!(changed(|header| header.slot = MemberIndex(200)), field("participants"));
        assert_eq!(changed(|header| header.trim = LogSequence(7)), field("trim mark"));
        assert_eq!(changed(|header| header.open[2] = LogSequence(7)), field("list of open records"));
        assert_eq!(changed(|header| header.sequence = LogSequence(u64::MAX)), field("sequence"));
        assert_eq!(changed(|header| header.extents[0].len = Sectors(0)), field("extents"));
        assert_eq!(changed(|header| header.extents[0].sector = DiskSector(u64::MAX)), field("extents"));
        assert_eq!(changed(|header| header.extents[0].sector = DiskSector(u64::MAX / 512)), field("extents"));
        assert_eq!(changed(|header| header.extents[0].len = Sectors(1 << 40)), field("size"));
        let mut many = sample().1;
        many[at::COUNT..at::COUNT + 4].fill(0xff);
        assert_eq!(decode(&many), field("number of extents"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..9000)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn one_flipped_bit_is_never_accepted(bit in 0..5128_usize * 8) {
            let (_, mut bytes) = sample();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&bytes).is_err());
        }
    }
}
