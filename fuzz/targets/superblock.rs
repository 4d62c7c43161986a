//! Any bytes in the places of a member's superblock: they are refused, or sound.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uraid_fuzz::Input;
use uraid_fuzz::members::{Sound, array, seal};
use uraid_io::format::superblock::{SUPERBLOCK_BYTES, Superblock, decode, encode, newest};

/// Where the revision is; `docs/on-disk-format.md`.
const REVISION: usize = 224;

fuzz_target!(|bytes: &[u8]| {
    let _ = decode(bytes);
    let mut input = Input(bytes);
    let members = array(input.byte());
    let sound = &members[usize::from(input.byte()) % members.len()];
    let copies: Vec<_> = (0..3).map(|copy| copy_of(sound, copy, &mut input)).collect();
    let decoded: Vec<_> = copies.iter().map(|copy| decode(copy)).collect();
    for superblock in decoded.iter().flatten() {
        superblock.check().expect("what was decoded is sound");
        assert_eq!(decode(&encode(superblock)).as_ref(), Ok(superblock), "what was decoded can be written");
        let _ = superblock.write_positions();
    }
    if let Ok(newest) = newest(decoded.clone()) {
        let newer = |other: &Superblock| (other.epoch, other.revision) > (newest.epoch, newest.revision);
        assert!(!decoded.iter().flatten().any(newer), "no newer copy is sound");
    }
});

/// One of a member's copies, changed, and mostly with the right checksum.
fn copy_of(sound: &Sound, copy: u8, input: &mut Input<'_>) -> [u8; SUPERBLOCK_BYTES] {
    let mut bytes = sound.bytes;
    bytes[REVISION] += copy;
    input.change(&mut bytes);
    if input.byte() % 8 != 7 {
        seal(&mut bytes);
    }
    bytes
}
