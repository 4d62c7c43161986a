//! Any bytes in the places of a log device's header, and in the part of a superblock that is about log devices: they
//! are refused, or sound.

#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use uraid_fuzz::Input;
use uraid_fuzz::members::{WITH_LOGS, array, seal};
use uraid_io::format::Epoch;
use uraid_io::format::log_device::{HEADER_BYTES, LogHeader, decode_mark, encode_mark};
use uraid_io::format::superblock::{Area, LogDevices, Superblock, decode, encode};
use uraid_layout::{Bytes, MemberIndex};
use uuid::Uuid;

/// Where a superblock has its log devices, and where a header has its fields; `docs/on-disk-format.md`.
const TABLE: std::ops::Range<usize> = 416..1024;
const FIELDS: usize = 256;

/// Where the first share begins.
const HEAD: u128 = 1 << 20;

/// Of what shares are multiples.
const BLOCK: u64 = 4096;

fuzz_target!(|bytes: &[u8]| {
    let _ = LogHeader::decode(bytes);
    if let Some(run) = decode_mark(bytes) {
        assert!(bytes.starts_with(&encode_mark(run)), "a mark says one thing");
    }
    let mut input = Input(bytes);
    headers(&mut input);
    table(&mut input);
});

/// Three copies of a device's header, each changed, and mostly with the right checksum.
fn headers(input: &mut Input<'_>) {
    let [array, uuid] = [0xa0, 0xe0].map(|byte| Uuid::from_bytes([byte; 16]));
    let (slots, share) = (input.byte() % 64 + 1, Bytes((4 + u64::from(input.byte())) * BLOCK));
    let size = Bytes(LogHeader::size_min(share, slots).0 + u64::from(input.byte()) * BLOCK);
    let sound = LogHeader { array, name: "fuzz".into(), uuid, size, share, slots };
    let copies: Vec<_> = (0..3).map(|_| LogHeader::decode(&copy_of(&sound, input))).collect();
    for header in copies.iter().flatten() {
        assert_eq!(LogHeader::decode(&header.encode()).as_ref(), Ok(header), "what was decoded can be written");
        let [.., tail] = header.positions().expect("a sound header has places on its device");
        assert!(tail.0 + BLOCK <= header.size.0, "its last copy is on the device");
        let end = HEAD + u128::from(header.share.0) * u128::from(header.slots);
        assert!(end <= u128::from(header.size.0), "the shares are on the device");
    }
    match LogHeader::any(copies.clone()) {
        Ok(header) => assert!(copies.contains(&Ok(header)), "it is one of the copies"),
        Err(_) => assert!(!copies.iter().all(Result::is_ok), "sound copies count"),
    }
}

fn copy_of(sound: &LogHeader, input: &mut Input<'_>) -> [u8; HEADER_BYTES] {
    let mut bytes = sound.encode();
    input.change(&mut bytes[..FIELDS]);
    if input.byte() % 8 != 7 {
        seal(&mut bytes);
    }
    bytes
}

/// A superblock whose table of log devices was changed.
fn table(input: &mut Input<'_>) {
    let members = array(WITH_LOGS[usize::from(input.byte()) % WITH_LOGS.len()]);
    let sound = &members[usize::from(input.byte()) % members.len()];
    let mut bytes = sound.bytes;
    input.change(&mut bytes[TABLE]);
    seal(&mut bytes);
    let Ok(own) = decode(&bytes) else { return };
    assert_eq!(decode(&encode(&own)).as_ref(), Ok(&own), "what was decoded can be written");
    let logs = own.logs.as_ref().expect("the superblock says that it has log devices");
    check_devices(logs, own.epoch);
    check_areas(logs, &own);
}

/// Devices are told apart, one has every record, and none has a state of a round that has yet to come.
fn check_devices(logs: &LogDevices, epoch: Epoch) {
    let uuids: HashSet<Uuid> = logs.devices.iter().map(|device| device.uuid).collect();
    assert!((1..=4).contains(&logs.devices.len()) && uuids.len() == logs.devices.len());
    assert!(!uuids.contains(&Uuid::nil()) && logs.devices.iter().any(|device| device.is_active));
    assert!(logs.devices.iter().all(|device| device.since <= epoch));
    assert_eq!(logs.active().len() + logs.failed().len(), logs.devices.len(), "each is active or has failed");
}

/// Shares are one after the other, and rings within them.
fn check_areas(logs: &LogDevices, own: &Superblock) {
    let mut end = Bytes(1 << 20);
    for slot in (0..own.spec.members).map(MemberIndex) {
        let area = logs.area(slot);
        assert!(area.offset == end && area.size.0 > 0 && area.size.0.is_multiple_of(BLOCK));
        end = area.end().expect("a share ends somewhere");
        let own = Superblock { slot, ..own.clone() };
        let is_within = |part: Area| part.offset >= area.offset && part.end().is_some_and(|last| last <= end);
        assert!(is_within(own.ring()), "the ring is in its member's share");
        let Some(journal) = own.journal_area() else { continue };
        assert!(is_within(journal) && own.ring().end().is_some_and(|ring| ring <= journal.offset));
    }
    assert_eq!(LogDevices::end(logs.share, own.spec.members), end);
}
