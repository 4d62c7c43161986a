//! Any bytes in the area of a list of bad blocks: what was written is read, what is damaged is found, and whatever is
//! read is a list that can be written.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uraid_fuzz::Input;
use uraid_io::format::badblocks::{BadBlocks, Found, Lack};
use uraid_layout::DiskSector;
use uuid::Uuid;

const MEMBER: Uuid = Uuid::from_bytes([0xa0; 16]);
/// Blocks of the member's data area.
const BLOCKS: u64 = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let _ = read(input.0);

    let mut list = BadBlocks::default();
    for _ in 0..input.byte() {
        let start = input.word() % (BLOCKS * 8);
        let end = (start + u64::from(input.byte())).min(BLOCKS * 8);
        let sectors = DiskSector(start)..DiskSector(end);
        match input.byte() % 4 {
            0 => drop(list.add(sectors, Lack::Absent)),
            1 => drop(list.add(sectors, Lack::Unread)),
            2 => drop(list.remove(sectors)),
            _ => drop(list.remove_unread(sectors)),
        }
    }
    let sound = list.encode_next(MEMBER).as_ref().to_vec();
    assert_eq!(read(&sound), Found::List(list.clone()), "what was written is read");

    let mut changed = sound.clone();
    input.change(&mut changed);
    changed.truncate(changed.len() - usize::from(input.byte()) * 64 % changed.len());
    let used = 64 + list.len() * 8;
    let is_same = changed.len() >= used && changed[..used] == sound[..used];
    match read(&changed) {
        Found::List(found) => assert!(is_same && found == list, "what is damaged is no list"),
        Found::Short(_) | Found::Damaged => assert!(!is_same, "what nobody changed is read"),
        Found::Nothing => assert!(changed.iter().all(|&byte| byte == 0), "only zeros are nothing"),
    }
    if input.byte() % 2 == 0 {
        seal(&mut changed);
        let _ = read(&changed);
    }
});

/// Reads bytes: what is a list can be written, and read again.
fn read(bytes: &[u8]) -> Found {
    let found = BadBlocks::decode(bytes, MEMBER, BLOCKS);
    if let Found::List(list) = &found {
        let mut next = list.clone();
        let again = next.encode_next(MEMBER);
        assert_eq!(
            BadBlocks::decode(again.as_ref(), MEMBER, BLOCKS),
            Found::List(next),
            "what was read can be written"
        );
        let runs = [Lack::Absent, Lack::Unread].map(|lack| list.all(lack).collect::<Vec<_>>());
        let is_within = |run: &std::ops::Range<DiskSector>| run.start < run.end && run.end.0 <= BLOCKS * 8;
        assert!(runs.iter().flatten().all(is_within), "every sector is of the data area");
        assert_eq!(list.is_empty(), runs.iter().all(Vec::is_empty));
    }
    found
}

/// Puts a list's checksum right, as far as it has the entries that it says.
fn seal(bytes: &mut [u8]) {
    let Some(count) = bytes.get(12..16) else { return };
    let count = u32::from_le_bytes(count.try_into().expect("four bytes")) as usize;
    let Some(end) = count.checked_mul(8).and_then(|size| size.checked_add(64)).filter(|&end| end <= bytes.len()) else {
        return;
    };
    bytes[8..12].fill(0);
    let checksum = crc32fast::hash(&bytes[..end]);
    bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
}
