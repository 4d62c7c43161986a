//! Any bytes in the bitmap's area: no bit is lost that a sound sector does not say is clear, and none is set beyond the
//! last region.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uraid_fuzz::Input;
use uraid_io::format::Epoch;
use uraid_io::format::bitmap::{Bitmap, RegionId, Regions, Seal};
use uraid_layout::{Bytes, Geometry, Level, Spec};
use uuid::Uuid;

const SEAL: Seal = Seal { array: Uuid::from_bytes([0xa0; 16]), since: Epoch(0xa1) };
const SECTOR: usize = 512;
/// The bits of a sector.
const BITS: usize = 3968;

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let regions = regions(&mut input);
    let _ = whole(regions, input.0);

    let mut bitmap = if input.byte() % 2 == 0 { Bitmap::empty(regions) } else { Bitmap::full(regions) };
    for _ in 0..input.byte() {
        let region = RegionId((input.word() % regions.count() as u64) as u32);
        if input.byte() % 2 == 0 {
            bitmap.insert(region);
        } else {
            bitmap.remove(region);
        }
    }
    let blocks = regions.bitmap_bytes().0 as usize / 4096;
    let sound: Vec<u8> = (0..blocks).flat_map(|block| bitmap.encode(SEAL, block).as_ref().to_vec()).collect();
    assert_eq!(whole(regions, &sound), bitmap, "what was written is read");

    let mut changed = sound.clone();
    input.change(&mut changed);
    changed.truncate(changed.len() - usize::from(input.byte()) * 64 % changed.len());
    let is_sealed = input.byte() % 2 == 0;
    if is_sealed {
        changed.chunks_exact_mut(SECTOR).for_each(seal);
    }
    let read = whole(regions, &changed);
    for (sector, regions) in (0..regions.count()).collect::<Vec<_>>().chunks(BITS).enumerate() {
        let range = sector * SECTOR..(sector + 1) * SECTOR;
        let is_as_written = changed.get(range.clone()) == Some(&sound[range]);
        let mut regions = regions.iter().map(|&region| RegionId(region as u32));
        if is_as_written {
            assert!(regions.all(|region| read.contains(region) == bitmap.contains(region)), "other sectors count");
        } else if !is_sealed {
            assert!(regions.all(|region| read.contains(region)), "what is damaged stands for bits that are set");
        }
    }
});

/// Regions of mirrors: from one to more than a block has bits for.
fn regions(input: &mut Input<'_>) -> Regions {
    let mebibytes = [1, 63, 64, 65, 3968, 3969, 31745, 32768, 40000][usize::from(input.byte() % 9)];
    let member_size = Bytes(mebibytes << 20).whole_sectors();
    let geometry = Geometry::new(Spec { level: Level::Raid1, members: 2, chunk: Bytes(65536), member_size });
    Regions::new(&geometry.expect("mirrors of any size are an array"))
}

/// Reads bytes: all bits that are there can be listed, and written again.
fn whole(regions: Regions, bytes: &[u8]) -> Bitmap {
    let bitmap = Bitmap::decode(regions, SEAL, bytes);
    assert_eq!(bitmap.iter().count(), bitmap.len());
    assert!(bitmap.iter().all(|region| region.index() < regions.count()), "no bit is beyond the last region");
    let blocks = 0..regions.bitmap_bytes().0 as usize / 4096;
    let again: Vec<u8> = blocks.flat_map(|block| bitmap.encode(SEAL, block).as_ref().to_vec()).collect();
    assert_eq!(Bitmap::decode(regions, SEAL, &again), bitmap, "what was read can be written");
    bitmap
}

/// Puts a sector's checksum right.
fn seal(sector: &mut [u8]) {
    let checksum = crc32fast::hash(&[SEAL.array.as_bytes(), &SEAL.since.0.to_le_bytes()[..], &sector[4..]].concat());
    sector[..4].copy_from_slice(&checksum.to_le_bytes());
}
