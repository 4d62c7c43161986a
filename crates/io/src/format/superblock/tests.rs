use proptest::prelude::*;
use uraid_layout::{Bytes, Geometry, Lba, Level, MemberIndex, Placement, Rotation, Sectors, Spec, StripeId};

use uuid::Uuid;

use super::*;
use crate::format::{Epoch, UnixSeconds};

const MIB: u64 = 1 << 20;

fn uuid(byte: u8) -> Uuid {
    Uuid::from_bytes([byte; 16])
}

/// Member 1 of a RAID 5 of three 16 MiB members.
pub(crate) fn sample() -> Superblock {
    let areas = Areas::new(Bytes(16 * MIB), Bytes(MIB / 2), Integrity::None).unwrap();
    let entry = |byte, state, since| SlotEntry { member: uuid(byte), state, since: Epoch(since) };
    Superblock {
        logs: None,
        array: uuid(0xa0),
        name: "tank".into(),
        created: UnixSeconds(0x6543_2100),
        spec: Spec {
            level: Level::Raid5 { rotation: Rotation::LeftSymmetric },
            members: 3,
            chunk: Bytes(64 << 10),
            member_size: areas.data_sectors(),
        },
        member: uuid(0xb1),
        slot: MemberIndex(1),
        areas,
        consistency: Consistency::Log,
        integrity: Integrity::None,
        generation: uuid(0xc0),
        journal: uuid(0xd0),
        epoch: Epoch(5),
        revision: Revision(8),
        is_clean: true,
        initialising: None,
        blank: None,
        reshape: None,
        sector_size: Bytes(512),
        scrub: ScrubHistory {
            finished: Some(UnixSeconds(0x6543_2101)),
            run: Some(ScrubRun {
                mode: ScrubMode::Repair,
                position: StripeId(0x82),
                found: ScrubFound { mismatched: Sectors(24), repaired: Sectors(16), unchecked: Sectors(9) },
            }),
            is_owed: true,
        },
        slots: vec![
            entry(0xb0, SlotState::Active, 1),
            entry(0xb1, SlotState::Rebuilding { upto: StripeId(0x81), is_whole: true }, 4),
            entry(0xb2, SlotState::Failed, 5),
        ],
    }
}

/// The bytes of [`sample`] up to the slot table, typed in from `docs/on-disk-format.md`; the checksum was computed with
/// zlib.
#[rustfmt::skip]
fn sample_head() -> Vec<u8> {
    let mut bytes = vec![
        0x8d, b'U', b'R', b'A', b'I', b'D', b'\r', b'\n',   0x2a, 0xb3, 0xca, 0xfc,   1, 0, 0, 0,
        34, 7, 0, 0, 0, 0, 0, 0,   0, 0, 0, 0, 0, 0, 0, 0,   // log, its sums, pages and open records, bad blocks
    ];
    bytes.extend([0xa0; 16]);
    bytes.extend(b"tank");
    bytes.extend([0; 60]);
    bytes.extend([0x00, 0x21, 0x43, 0x65, 0, 0, 0, 0]);
    bytes.extend([0xb1; 16]);
    bytes.extend([
        1, 3, 5, 2, 0, 1, 0, 0,                     // slot, members, level, rotation, -, clean
        0x00, 0x00, 0x01, 0x00, 0, 0, 0, 0,         // chunk 64 KiB
        0x80, 0x77, 0x00, 0x00, 0, 0, 0, 0,         // 15 MiB - 64 KiB in sectors
        0x00, 0x00, 0x00, 0x01, 0, 0, 0, 0,         // member of 16 MiB
        0x00, 0x00, 0x10, 0x00, 0, 0, 0, 0,         // data from 1 MiB
        0x00, 0x00, 0xef, 0x00, 0, 0, 0, 0,         // 15 MiB - 64 KiB
        0x00, 0x00, 0x01, 0x00, 0, 0, 0, 0,         // bitmap from 64 KiB
        0x00, 0x00, 0x03, 0x00, 0, 0, 0, 0,         // 192 KiB
        0x00, 0x00, 0x08, 0x00, 0, 0, 0, 0,         // log from 512 KiB
        0x00, 0x00, 0x08, 0x00, 0, 0, 0, 0,         // 512 KiB
        5, 0, 0, 0, 0, 0, 0, 0,                     // epoch
        8, 0, 0, 0, 0, 0, 0, 0,                     // revision
        0x00, 0x00, 0x10, 0x00, 0, 0, 0, 0,         // no checksums
        0, 0, 0, 0, 0, 0, 0, 0,
    ]);
    bytes.extend([0xc0; 16]);
    bytes.extend([
        2, 0, 1, 0, 0, 0, 0, 0,                     // a scrub that repairs; one is owed
        0x82, 0, 0, 0, 0, 0, 0, 0,                  // and is at stripe 130
        24, 0, 0, 0, 0, 0, 0, 0,   16, 0, 0, 0, 0, 0, 0, 0,   9, 0, 0, 0, 0, 0, 0, 0,
        0x01, 0x21, 0x43, 0x65, 0, 0, 0, 0,         // the last one's end
        0x00, 0x00, 0x04, 0x00, 0, 0, 0, 0,         // bad blocks from 256 KiB
        0x00, 0x00, 0x04, 0x00, 0, 0, 0, 0,         // 256 KiB
    ]);
    bytes.resize(400, 0);
    bytes.extend([0xd0; 16]);
    bytes
}

/// Where the checksum is.
const CHECKSUM: std::ops::Range<usize> = 8..12;

/// CRC32 bit by bit, from its definition: reflected polynomial 0xedb88320, all ones in and out; checked against zlib by
/// [`the_bytes_are_those_of_the_format`].
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc: u32, _| (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

/// Puts the right checksum into bytes that were changed.
fn sealed(mut bytes: [u8; SUPERBLOCK_BYTES]) -> [u8; SUPERBLOCK_BYTES] {
    bytes[CHECKSUM].fill(0);
    let crc = crc32(&bytes);
    bytes[CHECKSUM].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn changed(at: usize, field: &[u8]) -> Result<Superblock, SuperblockError> {
    let mut bytes = encode(&sample());
    bytes[at..at + field.len()].copy_from_slice(field);
    decode(&sealed(bytes))
}

#[test]
fn the_bytes_are_those_of_the_format() {
    let mut expected = sample_head();
    expected.resize(SUPERBLOCK_BYTES, 0);
    let entries = [(0xb0, [1, 0], 1, 0), (0xb1, [3, 1], 4, 0x81), (0xb2, [2, 0], 5, 0)];
    for (slot, (byte, state, since, upto)) in entries.into_iter().enumerate() {
        let entry = &mut expected[1024 + slot * 48..][..48];
        entry[..16].fill(byte);
        entry[16..18].copy_from_slice(&state);
        (entry[24], entry[32]) = (since, upto);
    }
    let expected: [u8; SUPERBLOCK_BYTES] = expected.try_into().unwrap();
    assert!(encode(&sample()) == expected && sealed(expected) == expected);
    assert_eq!(decode(&expected), Ok(sample()));
}

#[test]
fn every_level_survives_the_round_trip() {
    let rotations =
        [Rotation::LeftAsymmetric, Rotation::RightAsymmetric, Rotation::LeftSymmetric, Rotation::RightSymmetric];
    let placements = [Placement::Adjacent, Placement::Partitioned];
    let mut levels = vec![Level::Raid0, Level::Raid1, Level::Raid10 { copies: 2 }, Level::Raid10 { copies: 3 }];
    levels.extend(rotations.map(|rotation| Level::Raid5 { rotation }));
    levels.extend(rotations.map(|rotation| Level::Raid6 { rotation }));
    levels.extend(placements.map(|placement| Level::Rm2 { height: 3, placement }));
    let mut seen = std::collections::HashSet::new();
    for level in levels {
        let mut superblock = sample();
        superblock.spec.level = level;
        superblock.spec.members = 7;
        superblock.slots = (0..7)
            .map(|slot| SlotEntry { member: uuid(0xb0 + slot), state: SlotState::Active, since: Epoch(1) })
            .collect();
        superblock.scrub.run = None;
        superblock.name = "ü".repeat(32);
        superblock.is_clean = false;
        let bytes = encode(&superblock);
        assert!(seen.insert(bytes[138..141].to_vec()), "each level has a code of its own");
        assert_eq!(decode(&bytes), Ok(superblock));
    }
}

/// A program that knows no features, as the first one did, refuses all that it would get wrong.
#[test]
fn what_a_program_must_know_of_is_an_incompatible_feature() {
    let areas = Areas::new(Bytes(16 * MIB), Areas::default_log(Bytes(16 * MIB)), Integrity::Crc32).unwrap();
    let spec = Spec { member_size: areas.data_sectors(), ..sample().spec };
    for (consistency, integrity, bytes) in [
        (Consistency::None, Integrity::None, [32, 0]),
        (Consistency::Bitmap, Integrity::None, [33, 0]),
        (Consistency::Log, Integrity::None, [34, 7]),
        (Consistency::Log, Integrity::Crc32, [38, 7]),
    ] {
        let [low, high] = bytes;
        let superblock = Superblock { consistency, integrity, areas, spec, ..sample() };
        let bytes = encode(&superblock);
        assert_eq!(bytes[16..24], [low, high, 0, 0, 0, 0, 0, 0], "{consistency:?}, {integrity:?}");
        assert_eq!(decode(&bytes), Ok(superblock));
    }
}

/// An array that is initialising has all its members, and was never clean.
#[test]
fn what_is_not_an_array_yet_is_an_incompatible_feature() {
    let slots: Vec<SlotEntry> =
        sample().slots.into_iter().map(|record| SlotEntry { state: SlotState::Active, ..record }).collect();
    let new = Superblock { is_clean: false, slots, ..sample() };
    for (initialising, features, flags) in
        [(None, 34, 0), (Some(Allocation::Full), 42, 0), (Some(Allocation::Sparse), 42, 2)]
    {
        let superblock = Superblock { initialising, ..new.clone() };
        let bytes = encode(&superblock);
        assert_eq!((bytes[16], bytes[141]), (features, flags), "{initialising:?}");
        assert_eq!(decode(&bytes), Ok(superblock));
    }
    let wrong = Err(SuperblockError::Field { field: "state of an array that is initialising" });
    let initialising = Some(Allocation::Full);
    assert_eq!(Superblock { is_clean: true, initialising, ..new.clone() }.check(), wrong);
    assert_eq!(Superblock { is_clean: false, initialising, ..sample() }.check(), wrong, "a slot has failed");
    assert_eq!(Superblock { initialising, ..new }.check(), Ok(()));
}

/// A program that did not know of blank regions would give what members hold there.
#[test]
fn blank_regions_are_an_incompatible_feature() {
    for (allocation, flags) in [(Allocation::Full, 1), (Allocation::Sparse, 3)] {
        let blank = Some(Blank { since: Epoch(4), shift: 5, allocation });
        let superblock = Superblock { blank, ..sample() };
        let bytes = encode(&superblock);
        assert_eq!((bytes[16], bytes[141]), (98, flags), "{allocation:?}");
        assert_eq!(bytes[328..340], [4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(decode(&bytes), Ok(superblock));
        for (at, value) in [(328, 6), (336, 41), (339, 1)] {
            let mut bytes = bytes;
            bytes[at] = value;
            assert_eq!(decode(&sealed(bytes)), Err(SuperblockError::Field { field: "blank regions" }), "byte {at}");
        }
        let slots: Vec<_> =
            sample().slots.iter().map(|entry| SlotEntry { state: SlotState::Active, ..*entry }).collect();
        let initialising = Some(allocation);
        let both = Superblock { blank, initialising, slots, is_clean: false, ..sample() };
        assert_eq!(both.check(), Err(SuperblockError::Field { field: "blank regions" }));
    }
}

/// Member 1 of a RAID 5 of three that is to become a RAID 10 of four, halfway.
fn between() -> Superblock {
    let (spec, slots) = (sample().spec, sample().slots);
    let mut slots: Vec<_> = slots.iter().map(|entry| SlotEntry { state: SlotState::Active, ..*entry }).collect();
    slots.push(SlotEntry { member: uuid(0xb3), state: SlotState::Active, since: Epoch(5) });
    // 40 MiB of RAID 10 would not fit; 10 MiB of 4096 bytes each.
    let to =
        Spec { level: Level::Raid10 { copies: 2 }, members: 4, chunk: Bytes(4096), member_size: Sectors(10 << 10) };
    let reshape = Reshape {
        to,
        kept: Sectors(20 << 10),
        mark: Lba(256),
        is_back: true,
        saved: Sectors(256),
        save: 7,
        before: Consistency::None,
    };
    let scrub = ScrubHistory { run: None, ..sample().scrub };
    Superblock { reshape: Some(reshape), slots, scrub, spec, ..sample() }
}

#[test]
fn an_array_between_two_shapes_is_an_incompatible_feature() {
    let bytes = encode(&between());
    assert_eq!((bytes[16], bytes[137]), (162, 3));
    assert_eq!(bytes[344..352], [0, 1, 0, 0, 0, 0, 0, 0], "the mark");
    assert_eq!(bytes[352..360], [0, 0x50, 0, 0, 0, 0, 0, 0], "what is kept");
    assert_eq!(bytes[360..368], [0, 1, 0, 0, 0, 0, 0, 0], "what is saved");
    assert_eq!(bytes[368..376], [0, 0x28, 0, 0, 0, 0, 0, 0], "used of each member");
    assert_eq!(bytes[376..386], [0, 0x10, 0, 0, 10, 2, 0, 4, 1, 0], "chunk, level, members, direction");
    assert_eq!(bytes[392..400], [7, 0, 0, 0, 0, 0, 0, 0], "the last save");
    assert_eq!(bytes[1024 + 3 * 48..][..16], [0xb3; 16], "the slots of both shapes");
    assert_eq!(decode(&bytes), Ok(between()));
    let field = |field| Err(SuperblockError::Field { field });
    for (at, value, wrong) in [
        (344, &[1][..], "reshape"),
        (345, &[0xff; 7], "reshape"),
        (352, &[0; 8], "reshape"),
        (352, &[0xff; 8], "reshape"),
        (360, &[1], "reshape"),
        (360, &[0xff; 8], "reshape"),
        (368, &[0xff; 8], "reshape"),
        (369, &[0x29], "reshape"),
        (376, &[1], "reshape"),
        (380, &[7], "level"),
        (383, &[65], "number of members"),
        (383, &[1], "reshape"),
        (384, &[2], "direction of a reshape"),
        (392, &[0xff; 8], "reshape"),
        (264, &[1], "state of an array that is being reshaped"),
        (1040, &[3], "slot table's progress"),
        (137, &[4], "slot table's UUIDs"),
    ] {
        let mut bytes = bytes;
        bytes[at..at + value.len()].copy_from_slice(value);
        let found = decode(&sealed(bytes));
        assert!(found == field(wrong) || at == 137, "byte {at}: {found:?}");
    }
}

#[test]
fn sectors_that_are_larger_than_the_smallest_are_an_incompatible_feature() {
    for (size, features, code) in [(512, 34, 0), (1024, 50, 1), (2048, 50, 2), (4096, 50, 3)] {
        let superblock = Superblock { sector_size: Bytes(size), ..sample() };
        let bytes = encode(&superblock);
        assert_eq!((bytes[16], bytes[265]), (features, code), "{size} bytes");
        assert_eq!(decode(&bytes), Ok(superblock));
    }
    for size in [0, 256, 1536, 8192] {
        let wrong = Err(SuperblockError::Field { field: "sector size" });
        assert_eq!(Superblock { sector_size: Bytes(size), ..sample() }.check(), wrong, "{size} bytes");
    }
    let mut bytes = encode(&Superblock { sector_size: Bytes(4096), ..sample() });
    bytes[265] = 4;
    assert_eq!(decode(&sealed(bytes)), Err(SuperblockError::Field { field: "sector size" }));
}

#[test]
fn a_scrub_is_on_record_in_every_mode_or_not_at_all() {
    let run = sample().scrub.run.unwrap();
    let modes = [(ScrubMode::Check, 1), (ScrubMode::Repair, 2), (ScrubMode::RepairSuspects, 3)];
    for (mode, code) in modes {
        for (finished, is_owed) in [(None, true), (Some(UnixSeconds(7)), false)] {
            let scrub = ScrubHistory { finished, run: Some(ScrubRun { mode, ..run }), is_owed };
            let bytes = encode(&Superblock { scrub, ..sample() });
            assert_eq!((bytes[264], decode(&bytes).unwrap().scrub), (code, scrub));
        }
    }
    let none = Superblock { scrub: ScrubHistory::default(), ..sample() };
    let bytes = encode(&none);
    assert_eq!(bytes[264..312], [0; 48]);
    assert_eq!(decode(&bytes), Ok(none));
    // What belongs to a scrub is nothing without one.
    for at in [272, 280, 288, 296] {
        let mut bytes = bytes;
        bytes[at] = 1;
        assert_eq!(decode(&sealed(bytes)), Err(SuperblockError::Field { field: "scrub" }), "byte {at}");
    }
}

#[test]
fn what_is_wrong_is_told_apart() {
    let bytes = encode(&sample());
    assert_eq!(decode(&bytes[..SUPERBLOCK_BYTES - 1]), Err(SuperblockError::NoMagic));
    assert_eq!(decode(&[0; SUPERBLOCK_BYTES]), Err(SuperblockError::NoMagic));
    assert!(matches!(
        decode(&{
            let mut torn = bytes;
            torn[4095] ^= 1;
            torn
        }),
        Err(SuperblockError::BadChecksum { .. })
    ));
    assert_eq!(changed(12, &[2, 0]), Err(SuperblockError::UnknownVersion { version: 2 }));
    assert_eq!(changed(16, &[0, 32]), Err(SuperblockError::UnknownFeatures { flags: 0x2000 }));
    assert_eq!(changed(16, &[34, 39]), Err(SuperblockError::UnknownFeatures { flags: 0x2000 }));
    let converting = SuperblockError::Converting { array: sample().array, member: sample().member };
    assert_eq!(changed(16, &[0, 16]), Err(converting.clone()));
    assert_eq!(decode(&encode_converting(&sample())), Err(converting));
    assert_eq!(changed(24, &[0xff; 8]), Ok(sample()), "compatible features are ignored");
    let field = |field| Err(SuperblockError::Field { field });
    for (at, bytes, wrong) in [
        (32, &[0; 16][..], "array UUID"),
        (48, b"a\0b", "name"),
        (48, &[0xff], "name"),
        (120, &[0; 16], "member UUID"),
        (120, &[0xcc; 16], "slot table's entry of this member"),
        (136, &[3], "slot"),
        (137, &[65], "number of members"),
        (138, &[7], "level"),
        (139, &[4], "level"),
        (16, &[2], "list of features, which lacks bad blocks,"),
        (17, &[0], "list of features, which has a part of what a log takes,"),
        (17, &[1], "list of features, which has a part of what a log takes,"),
        (17, &[2], "list of features, which has a part of what a log takes,"),
        (17, &[3], "list of features, which has a part of what a log takes,"),
        (16, &[32], "list of features, which has a part of what a log takes,"),
        (16, &[35], "features: a bitmap and a log"),
        (16, &[36, 0], "integrity without a log"),
        (16, &[37, 0], "integrity without a log"),
        (142, &[2], "bytes 142 and 143"),
        (143, &[1], "bytes 142 and 143"),
        (160, &[0; 8], "area table"),
        (168, &[0xff; 8], "area table"),
        (176, &[0xff; 8], "area table"),
        (184, &[0; 8], "area table"),
        (192, &[1], "area table"),
        (200, &[0; 8], "area table"),
        (232, &[0; 8], "area table"),
        (312, &[0; 8], "area table"),
        (322, &[2], "area table"),
        (216, &[0; 8], "epoch"),
        (216, &[0xff; 8], "epoch"),
        (224, &[0xff; 8], "revision"),
        (16, &[42], "state of an array that is initialising"),
        (16, &[50], "sector size"),
        (265, &[3], "sector size"),
        (264, &[0], "scrub"),
        (264, &[4], "scrub"),
        (272, &[240], "scrub"),
        (272, &[0xff; 8], "scrub"),
        (1024, &[0xb1; 16], "slot table's UUIDs"),
        (1120, &[0; 16], "slot table's UUIDs"),
        (1040, &[0], "slot table's state"),
        (1040, &[4], "slot table's state"),
        (1041, &[1], "slot table's state"),
        (1089, &[2], "slot table's state"),
        (1048, &[6], "slot table's epochs"),
        (1048, &[0xff; 8], "slot table's epochs"),
        (1104, &[240], "slot table's progress"),
        (1104, &[0xff; 8], "slot table's progress"),
    ] {
        assert_eq!(changed(at, bytes), field(wrong), "byte {at}");
    }
    for (at, bytes) in [(144, &[1][..]), (152, &[0; 8]), (152, &[0xff; 8]), (137, &[1])] {
        assert!(matches!(changed(at, bytes), Err(SuperblockError::Geometry(_))), "byte {at}");
    }
}

#[test]
fn a_log_and_checksums_have_the_room_they_need() {
    let size = Bytes(1 << 30);
    let areas = Areas::new(size, Bytes(3 * MIB), Integrity::Crc32).unwrap();
    assert_eq!(areas.log.size, Bytes(3 * MIB + MIB / 2), "what is left of the last MiB is the log's");
    let blocks = areas.data.size.0 / 4096;
    assert!(areas.sums.size.0 / 512 * 127 >= blocks && areas.sums.size.0 < MIB + blocks / 127 * 512);
    assert!(areas.are_sound(areas.data_sectors()));
    assert_eq!(Areas::new(Bytes(4 * MIB), Bytes(4 * MIB), Integrity::None), None, "nothing is left for data");
    assert_eq!(Areas::new(Bytes(4 * MIB), Bytes(u64::MAX), Integrity::None), None);
}

#[test]
fn areas_have_room_for_everything_on_every_size() {
    for (member_size, head, log) in [
        (4 * MIB, MIB, MIB / 2),
        (16 * MIB, 2 * MIB, MIB + MIB / 2),
        (64 * MIB + 512, 5 * MIB, 4 * MIB + MIB / 2),
        (1 << 30, 65 * MIB, 64 * MIB + MIB / 2),
        (8 << 30, 513 * MIB, 512 * MIB + MIB / 2),
        (1 << 40, 513 * MIB, 512 * MIB + MIB / 2),
    ] {
        let areas = Areas::new(Bytes(member_size), Areas::default_log(Bytes(member_size)), Integrity::None).unwrap();
        assert_eq!((areas.data.offset, areas.log.size), (Bytes(head), Bytes(log)), "{member_size}");
        let [.., tail] = positions(Bytes(member_size)).unwrap();
        assert_eq!(areas.data.end(), Some(tail));
        assert!(tail.0 + 65536 <= member_size && tail.0.is_multiple_of(4096));
        assert!(areas.are_sound(areas.data_sectors()) && !areas.are_sound(Sectors(areas.data_sectors().0 + 1)));
    }
    assert_eq!(positions(Bytes(16 * MIB)), Some([Bytes(16384), Bytes(49152), Bytes(16 * MIB - 65536)]));
    for too_small in [0, 4095, 65535, 4 * MIB - 1] {
        assert_eq!(
            (Areas::new(Bytes(too_small), Bytes(0), Integrity::None), positions(Bytes(too_small))),
            (None, None)
        );
    }
}

#[test]
fn a_later_program_is_not_overruled_by_an_older_copy() {
    let later = SuperblockError::UnknownVersion { version: 2 };
    assert_eq!(newest([Ok(sample()), Err(later.clone()), Ok(sample())]), Err(later));
    let torn = SuperblockError::BadChecksum { expected: 1, found: 2 };
    assert_eq!(newest([Err(torn.clone()), Ok(sample()), Err(SuperblockError::NoMagic)]), Ok(sample()));
    assert_eq!(newest([Err(SuperblockError::NoMagic), Err(torn.clone())]), Err(torn));
}

#[test]
fn epochs_come_before_revisions_and_arrays_are_not_mixed() {
    let with = |epoch, revision| Superblock { epoch: Epoch(epoch), revision: Revision(revision), ..sample() };
    assert_eq!(newest([Ok(with(5, 9)), Ok(with(6, 1)), Ok(with(6, 0))]), Ok(with(6, 1)));
    let other = Superblock { array: uuid(0xa1), epoch: Epoch(9), ..sample() };
    let mixed = SuperblockError::Mixed { first: uuid(0xa0), second: uuid(0xa1) };
    assert_eq!(newest([Ok(sample()), Ok(other)]), Err(mixed));
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
        let _ = decode(&bytes);
    }

    /// With a right checksum in front of them, wrong fields are reached; what passes is sound and encodes to itself.
    #[test]
    fn any_fields_are_decoded_or_refused(changes in proptest::collection::vec((12..1200_usize, any::<u8>()), 1..12)) {
        let mut bytes = encode(&sample());
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        if let Ok(superblock) = decode(&sealed(bytes)) {
            prop_assert!(Geometry::new(superblock.spec).is_ok());
            prop_assert_eq!(decode(&encode(&superblock)), Ok(superblock));
        }
    }

    /// The same of an array between two shapes.
    #[test]
    fn any_reshape_is_decoded_or_refused(
        changes in proptest::collection::vec((prop_oneof![136..160_usize, 344..386_usize], any::<u8>()), 1..12),
    ) {
        let mut bytes = encode(&between());
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        if let Ok(superblock) = decode(&sealed(bytes)) {
            prop_assert_eq!(decode(&encode(&superblock)), Ok(superblock));
        }
    }

    #[test]
    fn one_flipped_bit_is_never_accepted_as_it_is(bit in 0..SUPERBLOCK_BYTES * 8) {
        let mut bytes = encode(&sample());
        bytes[bit / 8] ^= 1 << (bit % 8);
        let result = decode(&bytes);
        prop_assert!(matches!(result, Err(SuperblockError::NoMagic | SuperblockError::BadChecksum { .. })), "{:?}",
            result);
    }
}
