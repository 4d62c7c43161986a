//! Sound superblocks, whose checksum is put right after they were changed.

use std::sync::LazyLock;

use uraid_io::format::superblock::{
    Areas, Consistency, Integrity, LogDevices, Revision, SUPERBLOCK_BYTES, Superblock, encode,
};
use uraid_io::format::{Epoch, UnixSeconds};
use uraid_layout::{Bytes, Level, Placement, Rotation, Spec};
use uuid::Uuid;

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
