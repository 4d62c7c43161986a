//! What the fuzz targets share: sound superblocks to begin with, and an input that says what becomes of them.
//!
//! Bytes that nobody made sound fail at the checksum, so targets read their input as changes to sound bytes, whose
//! checksum is then put right. The sound ones are made here; no corpus is kept.

use std::sync::LazyLock;

use uraid_io::format::superblock::{
    Areas, Consistency, Integrity, LogDevices, Revision, SUPERBLOCK_BYTES, Superblock, encode,
};
use uraid_io::format::{Epoch, UnixSeconds};
use uraid_layout::{Bytes, Level, MemberIndex, MemberSet, Placement, Rotation, Spec};
use uuid::Uuid;

/// Most changes to one superblock.
const CHANGES_MAX: u8 = 16;

/// Where the checksum of a superblock is, and of a record's header; `docs/on-disk-format.md`.
const CHECKSUM: std::ops::Range<usize> = 8..12;

/// Arrays to begin with: level, members, whether they have checksums, and how many log devices they have.
const ARRAYS: [(Level, u8, Integrity, u8); 10] = [
    (Level::Raid0, 64, Integrity::None, 0),
    (Level::Raid1, 2, Integrity::None, 0),
    (Level::Raid10 { copies: 3 }, 5, Integrity::Crc32, 0),
    (Level::Raid5 { rotation: Rotation::LeftSymmetric }, 3, Integrity::None, 0),
    (Level::Raid5 { rotation: Rotation::RightAsymmetric }, 5, Integrity::Crc32, 0),
    (Level::Rm2 { height: 3, placement: Placement::Adjacent }, 7, Integrity::None, 0),
    (Level::Rm2 { height: 3, placement: Placement::Partitioned }, 6, Integrity::Crc32, 0),
    (Level::Rm2 { height: 2, placement: Placement::Adjacent }, 5, Integrity::None, 0),
    (Level::Raid5 { rotation: Rotation::LeftSymmetric }, 4, Integrity::None, 2),
    (Level::Rm2 { height: 3, placement: Placement::Adjacent }, 7, Integrity::Crc32, 4),
];

/// Which of them has two log devices, and which has as many as there can be.
pub const WITH_LOGS: [u8; 2] = [8, 9];

/// The fuzzer's bytes, read from the front; zeros when they are used up.
#[derive(Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// The next eight bytes.
    pub fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Some of eight members.
    pub fn members(&mut self) -> MemberSet {
        let bits = self.byte();
        (0..8).filter(|member| bits >> member & 1 == 1).map(MemberIndex).collect()
    }

    /// Changes bytes as the input says: single ones, and numbers of eight bytes where numbers are.
    pub fn change(&mut self, bytes: &mut [u8]) {
        for _ in 0..self.byte().min(CHANGES_MAX) {
            let at = usize::from(u16::from_le_bytes([self.byte(), self.byte()])) % bytes.len();
            match self.byte() % 4 {
                0 => bytes[at] = self.byte(),
                1 => bytes[at] ^= 1 << (self.byte() % 8),
                2 => bytes[at] = bytes[at].wrapping_add(self.byte()),
                _ => {
                    let at = at / 8 * 8;
                    let end = (at + 8).min(bytes.len());
                    let word = self.word().to_le_bytes();
                    bytes[at..end].copy_from_slice(&word[..end - at]);
                }
            }
        }
    }
}

/// A member's superblock, sound.
#[derive(Clone, Debug)]
pub struct Sound {
    /// What it says.
    pub superblock: Superblock,
    /// Its bytes.
    pub bytes: [u8; SUPERBLOCK_BYTES],
}

/// All members of one of some arrays.
#[must_use]
pub fn array(choice: u8) -> &'static [Sound] {
    static MADE: LazyLock<Vec<Vec<Sound>>> = LazyLock::new(|| ARRAYS.map(members).into());
    &MADE[usize::from(choice) % ARRAYS.len()]
}

fn members((level, members, integrity, logs): (Level, u8, Integrity, u8)) -> Vec<Sound> {
    let size = Bytes(64 << 20);
    let areas = Areas::new(size, Areas::default_log(size), integrity).expect("a member of 64 MiB has room");
    let spec = Spec { level, members, chunk: Bytes(64 << 10), member_size: areas.data_sectors() };
    let uuid = |slot: u8| Uuid::from_bytes([0x40 + slot; 16]);
    let uuids: Vec<_> = (0..members).map(|slot| (uuid(slot), areas)).collect();
    let devices = (0..logs).map(|log| Uuid::from_bytes([0xe0 + log; 16]));
    let table = LogDevices::new(areas.log.size, devices, Epoch(2));
    let complete = |new| {
        let superblock = Superblock {
            name: "fuzz".into(),
            created: UnixSeconds(1_700_000_000),
            consistency: Consistency::Log,
            integrity,
            generation: Uuid::from_bytes([0xc0; 16]),
            epoch: Epoch(5),
            revision: Revision(8),
            is_clean: false,
            logs: Some(table.clone()).filter(|_| logs > 0),
            ..new
        };
        Sound { bytes: encode(&superblock), superblock }
    };
    Superblock::of_new_array(Uuid::from_bytes([0xa0; 16]), spec, &uuids).into_iter().map(complete).collect()
}

/// Puts the checksum of a superblock or of a record's header right.
pub fn seal(bytes: &mut [u8]) {
    bytes[CHECKSUM].fill(0);
    let checksum = crc32fast::hash(bytes);
    bytes[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
}
