//! The mark of whoever has an export open for writing, which is to an export what its lock is to a file. Behind it is
//! a counter, which moves as long as that process lives; `member::owner` says what follows from it.

use std::fmt;

use uraid_layout::Bytes;
use uuid::Uuid;

use super::{BLOCK_BYTES, Epoch};

/// Where the mark is: between the superblock's slots, where log devices have nothing, either.
pub const OWNER_AT: Bytes = Bytes(40 << 10);

/// The size of an encoded mark.
pub const OWNER_BYTES: usize = BLOCK_BYTES;

/// The longest name of a host.
const HOST_BYTES_MAX: usize = 64;

/// Of how many members a mark says what they held.
const WITNESSED_MAX: usize = 64;
const WITNESSED_BYTES: usize = 24;
const _: () = assert!(at::WITNESSED + WITNESSED_MAX * WITNESSED_BYTES <= OWNER_BYTES);

const MAGIC: [u8; 8] = *b"\x8dUOWNER\n";
const VERSION: u32 = 1;

/// Byte offsets of the fields.
mod at {
    pub(super) const CHECKSUM: usize = 8;
    pub(super) const VERSION: usize = 12;
    pub(super) const RUN: usize = 16;
    pub(super) const BEAT: usize = 32;
    pub(super) const BOOT: usize = 40;
    pub(super) const NAMESPACE: usize = 56;
    pub(super) const PROCESS: usize = 64;
    pub(super) const HOST: usize = 72;
    pub(super) const EPOCH: usize = 136;
    pub(super) const WITNESSED_COUNT: usize = 144;
    pub(super) const WITNESSED: usize = 152;
}

/// Who has an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The run of a program: another one each time that it is started.
    pub run: Uuid,
    /// How often it has said that it is there.
    pub beat: u64,
    /// The machine's name, for people.
    pub host: String,
    /// The machine's start, as its kernel calls it; nil if that is not known.
    pub boot: Uuid,
    /// The process, and the namespace in which it has this number; 0 if that is not known.
    pub process: u32,
    /// See there.
    pub namespace: u64,
    /// What this run knows of the array's exports.
    pub testimony: Testimony,
}

/// What a run knows to be durable on an array's exports. A server that shows less of one has an older copy of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Testimony {
    /// The array's epoch at that time: it says nothing of another.
    pub epoch: Epoch,
    /// How far the run's mark had counted that was made durable on the export that is this member. 64 at most.
    pub beats: Vec<(Uuid, u64)>,
}

impl Owner {
    /// Its bytes. A name of a host that is too long is cut off, and so are counts that are too many.
    #[must_use]
    pub fn encode(&self) -> [u8; OWNER_BYTES] {
        let mut bytes = [0; OWNER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(at::VERSION, &VERSION.to_le_bytes());
        put(at::RUN, self.run.as_bytes());
        put(at::BEAT, &self.beat.to_le_bytes());
        put(at::BOOT, self.boot.as_bytes());
        put(at::NAMESPACE, &self.namespace.to_le_bytes());
        put(at::PROCESS, &self.process.to_le_bytes());
        let most = HOST_BYTES_MAX.min(self.host.len());
        let len = (0..=most).rev().find(|&len| self.host.is_char_boundary(len)).unwrap_or_default();
        put(at::HOST, &self.host.as_bytes()[..len]);
        let Testimony { epoch, beats } = &self.testimony;
        let beats = &beats[..beats.len().min(WITNESSED_MAX)];
        put(at::EPOCH, &epoch.0.to_le_bytes());
        put(at::WITNESSED_COUNT, &(beats.len() as u64).to_le_bytes());
        for (at, (member, beat)) in (at::WITNESSED..).step_by(WITNESSED_BYTES).zip(beats) {
            put(at, member.as_bytes());
            put(at + 16, &beat.to_le_bytes());
        }
        let checksum = checksum(&bytes);
        bytes[at::CHECKSUM..at::CHECKSUM + 4].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a mark from its bytes, whatever they are; none if it is torn, or of another version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; OWNER_BYTES] = bytes.first_chunk()?;
        let is_sound = u32::from_le_bytes(field(bytes, at::CHECKSUM)) == checksum(bytes)
            && u32::from_le_bytes(field(bytes, at::VERSION)) == VERSION;
        let host: [u8; HOST_BYTES_MAX] = field(bytes, at::HOST);
        let len = host.iter().position(|&byte| byte == 0).unwrap_or(HOST_BYTES_MAX);
        let count = u64::from_le_bytes(field(bytes, at::WITNESSED_COUNT));
        let count = usize::try_from(count).map_or(WITNESSED_MAX, |count| count.min(WITNESSED_MAX));
        let beat = |at| (Uuid::from_bytes(field(bytes, at)), u64::from_le_bytes(field(bytes, at + 16)));
        (is_one(bytes) && is_sound).then(|| Self {
            run: Uuid::from_bytes(field(bytes, at::RUN)),
            beat: u64::from_le_bytes(field(bytes, at::BEAT)),
            host: String::from_utf8_lossy(&host[..len]).into_owned(),
            boot: Uuid::from_bytes(field(bytes, at::BOOT)),
            process: u32::from_le_bytes(field(bytes, at::PROCESS)),
            namespace: u64::from_le_bytes(field(bytes, at::NAMESPACE)),
            testimony: Testimony {
                epoch: Epoch(u64::from_le_bytes(field(bytes, at::EPOCH))),
                beats: (at::WITNESSED..).step_by(WITNESSED_BYTES).take(count).map(beat).collect(),
            },
        })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of host {}", self.process, self.host)
    }
}

/// Whether bytes are a mark, if perhaps a torn one, or one of another version.
#[must_use]
pub fn is_one(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

fn field<const N: usize>(bytes: &[u8; OWNER_BYTES], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("fields lie within a mark")
}

fn checksum(bytes: &[u8; OWNER_BYTES]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..at::CHECKSUM]);
    hasher.update(&[0; 4]);
    hasher.update(&bytes[at::CHECKSUM + 4..]);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        let [run, boot] = [7, 8].map(Uuid::from_u128);
        let beats = [12, 13].map(|number| (Uuid::from_u128(number), 3 << number));
        let testimony = Testimony { epoch: Epoch(14), beats: beats.into() };
        Owner { run, beat: 9, host: "storage".into(), boot, process: 10, namespace: 11, testimony }
    }

    #[test]
    fn a_mark_is_read_as_it_was_written_and_no_other_is() {
        let bytes = owner().encode();
        assert_eq!(Owner::decode(&bytes), Some(owner()));
        assert_eq!(owner().to_string(), "process 10 of host storage");
        for at in 0..240 {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(Owner::decode(&damaged), None, "byte {at}");
            assert_eq!(is_one(&damaged), at >= 8, "byte {at}");
        }
        assert_eq!(Owner::decode(&bytes[1..]), None);
        assert!(!is_one(&[0; OWNER_BYTES]));
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let host = "x".repeat(HOST_BYTES_MAX - 1) + "ö";
        let read = Owner::decode(&Owner { host, ..owner() }.encode()).expect("a mark");
        assert_eq!(read.host, "x".repeat(HOST_BYTES_MAX - 1));
    }
}
