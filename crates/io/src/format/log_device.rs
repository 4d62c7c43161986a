//! What a log device says of itself. Its header says whose it is, and who it is; that never changes, and there are
//! three copies where members have their superblocks. Its marks say of which run of the journal it has every record.
//! What counts is what the members say: a device that is not in their tables, is there as failed, or has no mark of
//! the run that an array was in when it was not closed, has nothing that anybody needs.

use uraid_layout::Bytes;
use uuid::Uuid;

use super::superblock::{LOGS_MAX, LogDevices, MEMBER_MIN, NAME_BYTES_MAX, TAIL_BYTES, positions};

/// The size of an encoded header.
pub const HEADER_BYTES: usize = 4096;

/// The size of a mark. What is behind it up to the end of its block is zero.
pub const MARK_BYTES: usize = 32;

/// Where the marks are, all alike, each in a block of its own: behind the first copy of the header, and behind the
/// second.
pub const MARKS: [Bytes; 2] = [Bytes(24 << 10), Bytes(56 << 10)];

/// As the superblock's, of another kind.
pub(crate) const MAGIC: [u8; 8] = *b"\x8dULDEV\r\n";
const MARK_MAGIC: [u8; 8] = *b"\x8dULRUN\r\n";
const VERSION: u32 = 2;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogHeader {
    /// Whose it is.
    pub array: Uuid,
    /// What that was called when it got the device.
    pub name: String,
    /// Who it is.
    pub uuid: Uuid,
    /// How large it was.
    pub size: Bytes,
    /// What it has for each slot, and for how many slots.
    pub share: Bytes,
    /// For how many slots.
    pub slots: u8,
}

/// Why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogHeaderError {
    /// There is none.
    #[error("is no log device")]
    NoMagic,
    /// Torn or damaged.
    #[error("the log device's header is damaged")]
    Damaged,
    /// Written by another program.
    #[error(
        "the log device has format version {version}, and this program knows version {VERSION} alone: use the uraid \
        that made it"
    )]
    UnknownVersion {
        /// The stored version.
        version: u32,
    },
}

/// Byte offsets of the fields.
mod at {
    pub(super) const CHECKSUM: usize = 8;
    pub(super) const VERSION: usize = 12;
    pub(super) const INCOMPATIBLE: usize = 16;
    pub(super) const ARRAY: usize = 32;
    pub(super) const NAME: usize = 48;
    pub(super) const DEVICE: usize = 120;
    pub(super) const SLOTS: usize = 136;
    pub(super) const SIZE: usize = 160;
    pub(super) const SHARE: usize = 168;
    /// In a mark.
    pub(super) const MARK_RUN: usize = 16;
}

impl LogHeader {
    /// Where its copies are; none where the device is too small for one.
    #[must_use]
    pub fn positions(&self) -> Option<[Bytes; 3]> {
        positions(self.size)
    }

    /// The smallest device with shares for so many slots: the last copy of the header comes behind them.
    #[must_use]
    pub fn size_min(share: Bytes, slots: u8) -> Bytes {
        let end = LogDevices::end(share, slots);
        Bytes(end.0.saturating_add(TAIL_BYTES).max(MEMBER_MIN.0))
    }

    /// The largest share of so many slots on a device of this size, in whole blocks.
    #[must_use]
    pub fn share_max(size: Bytes, slots: u8) -> Bytes {
        let room = positions(size).map_or(0, |[.., tail]| tail.0.saturating_sub(LogDevices::end(Bytes(0), 0).0));
        let block = super::BLOCK.bytes().0;
        Bytes(room / u64::from(slots.max(1)) / block * block)
    }

    /// Its bytes.
    ///
    /// # Panics
    /// When the name is too long.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        assert!(self.name.len() <= NAME_BYTES_MAX, "an array's name has room in a header");
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(at::VERSION, &VERSION.to_le_bytes());
        put(at::ARRAY, self.array.as_bytes());
        put(at::NAME, self.name.as_bytes());
        put(at::DEVICE, self.uuid.as_bytes());
        put(at::SLOTS, &[self.slots]);
        put(at::SIZE, &self.size.0.to_le_bytes());
        put(at::SHARE, &self.share.0.to_le_bytes());
        let checksum = checksum(&bytes);
        bytes[at::CHECKSUM..at::CHECKSUM + 4].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a header from its bytes, whatever they are.
    ///
    /// # Errors
    /// What is wrong, checked in this order: magic, checksum, version and features, fields.
    pub fn decode(bytes: &[u8]) -> Result<Self, LogHeaderError> {
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(LogHeaderError::NoMagic)?;
        if bytes.first_chunk() != Some(&MAGIC) {
            return Err(LogHeaderError::NoMagic);
        }
        if u32::from_le_bytes(array_at(bytes, at::CHECKSUM)) != checksum(bytes) {
            return Err(LogHeaderError::Damaged);
        }
        let version = u32::from_le_bytes(array_at(bytes, at::VERSION));
        if version != VERSION || array_at(bytes, at::INCOMPATIBLE) != [0; 8] {
            return Err(LogHeaderError::UnknownVersion { version });
        }
        let field: [u8; NAME_BYTES_MAX] = array_at(bytes, at::NAME);
        let len = field.iter().position(|&byte| byte == 0).unwrap_or(NAME_BYTES_MAX);
        let name = String::from_utf8(field[..len].to_vec()).map_err(|_| LogHeaderError::Damaged)?;
        let number = |at| Bytes(u64::from_le_bytes(array_at(bytes, at)));
        let uuid = |at| Uuid::from_bytes(array_at(bytes, at));
        let (array, own, slots) = (uuid(at::ARRAY), uuid(at::DEVICE), bytes[at::SLOTS]);
        let header = Self { array, name, uuid: own, size: number(at::SIZE), share: number(at::SHARE), slots };
        let is_told_apart = !array.is_nil() && !own.is_nil();
        let has_room = LogDevices::is_share(header.share) && Self::size_min(header.share, slots) <= header.size;
        if is_told_apart && has_room { Ok(header) } else { Err(LogHeaderError::Damaged) }
    }

    /// The copy that counts: any that is sound, as all say the same.
    ///
    /// # Errors
    /// Why none is; one that a later program wrote goes first.
    pub fn any(copies: impl IntoIterator<Item = Result<Self, LogHeaderError>>) -> Result<Self, LogHeaderError> {
        let mut reason = LogHeaderError::NoMagic;
        for copy in copies {
            match copy {
                Ok(copy) => return Ok(copy),
                Err(LogHeaderError::NoMagic) => {}
                Err(error @ LogHeaderError::UnknownVersion { .. }) => return Err(error),
                Err(error @ LogHeaderError::Damaged) => reason = error,
            }
        }
        Err(reason)
    }
}

/// The mark of a device that has every record of a run of the journal.
#[must_use]
pub fn encode_mark(run: Uuid) -> [u8; MARK_BYTES] {
    let mut bytes = [0; MARK_BYTES];
    bytes[..8].copy_from_slice(&MARK_MAGIC);
    bytes[at::MARK_RUN..].copy_from_slice(run.as_bytes());
    let checksum = crc32fast::hash(&bytes);
    bytes[at::CHECKSUM..at::CHECKSUM + 4].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The run that a mark is of; none where there is no mark, whatever the bytes are.
#[must_use]
pub fn decode_mark(bytes: &[u8]) -> Option<Uuid> {
    let bytes: &[u8; MARK_BYTES] = bytes.first_chunk()?;
    let run = Uuid::from_bytes(*bytes.last_chunk()?);
    (*bytes == encode_mark(run)).then_some(run)
}

const _: () = assert!(LOGS_MAX <= 8, "a set of log devices has eight bits");

fn checksum(bytes: &[u8; HEADER_BYTES]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes[..at::CHECKSUM]);
    crc.update(&[0; 4]);
    crc.update(&bytes[at::CHECKSUM + 4..]);
    crc.finalize()
}

fn array_at<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("fields are inside the header")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> LogHeader {
        let [array, uuid] = [1, 2].map(|byte| Uuid::from_bytes([byte; 16]));
        LogHeader { array, name: "vault".into(), uuid, size: Bytes(64 << 20), share: Bytes(4 << 20), slots: 5 }
    }

    #[test]
    fn every_field_is_where_the_format_says() {
        let bytes = sample().encode();
        assert_eq!(bytes[..8], *b"\x8dULDEV\r\n");
        assert_eq!(bytes[12..32], [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((bytes[32], bytes[48..53].to_vec(), bytes[120], bytes[136]), (1, b"vault".to_vec(), 2, 5));
        assert_eq!(bytes[160..176], [0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0]);
        assert_eq!(LogHeader::decode(&bytes), Ok(sample()));
    }

    #[test]
    fn any_changed_bit_is_found() {
        let bytes = sample().encode();
        for at in 0..HEADER_BYTES {
            let mut changed = bytes;
            changed[at] ^= 1 << (at % 8);
            assert!(LogHeader::decode(&changed).is_err(), "byte {at}");
        }
        assert_eq!(LogHeader::decode(&bytes[..4095]), Err(LogHeaderError::NoMagic));
    }

    /// Bytes with these fields and the right checksum.
    fn forged(change: impl FnOnce(&mut [u8; HEADER_BYTES])) -> [u8; HEADER_BYTES] {
        let mut bytes = sample().encode();
        change(&mut bytes);
        bytes[8..12].fill(0);
        let crc = crc32fast::hash(&bytes);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn what_makes_no_sense_or_is_of_a_later_program_is_refused() {
        assert_eq!(LogHeader::decode(&forged(|_| ())), Ok(sample()));
        let later = |at: usize| LogHeader::decode(&forged(|bytes| bytes[at] = 3));
        assert!(matches!(later(12), Err(LogHeaderError::UnknownVersion { .. })));
        assert!(matches!(later(20), Err(LogHeaderError::UnknownVersion { .. })));
        for damage in [
            forged(|bytes| bytes[32..48].fill(0)),
            forged(|bytes| bytes[120..136].fill(0)),
            forged(|bytes| bytes[48] = 0xFF),
            forged(|bytes| bytes[136] = 64),
            forged(|bytes| bytes[168..176].fill(0xFF)),
            forged(|bytes| {
                bytes[160..168].fill(0xFF);
                bytes[169..176].fill(0xF0);
            }),
            forged(|bytes| bytes[168] = 1),
            forged(|bytes| bytes[168..176].fill(0)),
        ] {
            assert_eq!(LogHeader::decode(&damage), Err(LogHeaderError::Damaged));
        }
    }

    #[test]
    fn a_mark_says_of_which_run_it_is_and_any_changed_bit_is_found() {
        let run = Uuid::from_bytes([7; 16]);
        let bytes = encode_mark(run);
        assert_eq!((bytes[..8].to_vec(), bytes[12..16].to_vec()), (b"\x8dULRUN\r\n".to_vec(), vec![0; 4]));
        assert_eq!(bytes[16..], [7; 16]);
        assert_eq!(decode_mark(&bytes), Some(run));
        for bit in 0..MARK_BYTES * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_mark(&changed), None, "bit {bit}");
        }
        assert_eq!((decode_mark(&bytes[..31]), decode_mark(&[0; 32])), (None, None));
    }

    #[test]
    fn one_copy_is_enough() {
        let lost = || Err(LogHeaderError::Damaged);
        assert_eq!(LogHeader::any([lost(), Err(LogHeaderError::NoMagic), Ok(sample())]), Ok(sample()));
        assert_eq!(LogHeader::any([Err(LogHeaderError::NoMagic), lost()]), lost());
        assert_eq!(LogHeader::any([]), Err(LogHeaderError::NoMagic));
    }

    #[test]
    fn the_last_copy_is_behind_the_shares() {
        for (share, slots) in [(64 << 10, 2), (0x0012_3000, 7), (128 << 20, 64)] {
            let size = LogHeader::size_min(Bytes(share), slots);
            let [.., tail] = positions(size).expect("large enough");
            assert!(tail >= LogDevices::end(Bytes(share), slots), "{share} for {slots}");
            assert!(LogHeader::share_max(size, slots).0 >= share, "{share} for {slots}");
            let less = LogHeader::share_max(Bytes(size.0 - 4096), slots);
            assert!(less.0 < share || size == MEMBER_MIN, "{share} for {slots}");
        }
    }
}
