//! Members in partitions of a whole disk.

use std::sync::Arc;

use proptest::prelude::*;
use uraid_layout::Bytes;
use uraid_md::{Options, Partition, Source, partitions, scan};

use crate::arrays::made;
use crate::image::{Recipe, SECTOR, content, one, put};

/// A disk with an MBR whose entries are (type, first sector, sectors).
fn mbr(disk: &mut [u8], at: usize, entries: &[(u8, u32, u32)]) {
    for (index, (kind, first, sectors)) in entries.iter().enumerate() {
        let entry = at + 446 + index * 16;
        put(disk, entry + 4, &[*kind]);
        put(disk, entry + 8, &first.to_le_bytes());
        put(disk, entry + 12, &sectors.to_le_bytes());
    }
    put(disk, at + 510, &[0x55, 0xaa]);
}

/// The checksum of GPT, bit by bit.
fn crc(bytes: &[u8]) -> [u8; 4] {
    let mut crc = u32::MAX;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    (!crc).to_le_bytes()
}

/// A GPT with its copy at the end; entries are (first sector, last sector), all sectors of `sector` bytes.
fn gpt(disk: &mut [u8], sector: usize, entries: &[(u64, u64)]) {
    let last = disk.len() / sector - 1;
    mbr(disk, 0, &[(0xee, 1, u32::MAX)]);
    for (own, other, table) in [(1, last, 2), (last, 1, last - 4096 / sector)] {
        for (index, (first, last)) in entries.iter().enumerate() {
            let entry = table * sector + index * 128;
            put(disk, entry, &[7; 32]);
            put(disk, entry + 32, &first.to_le_bytes());
            put(disk, entry + 40, &last.to_le_bytes());
        }
        let sum = crc(&disk[table * sector..table * sector + 16 * 128]);
        let header = &mut disk[own * sector..own * sector + 92];
        put(header, 0, b"EFI PART\x00\x00\x01\x00\x5c\x00\x00\x00");
        put(header, 24, &(own as u64).to_le_bytes());
        put(header, 32, &(other as u64).to_le_bytes());
        put(header, 72, &(table as u64).to_le_bytes());
        put(header, 80, &16_u32.to_le_bytes());
        put(header, 84, &128_u32.to_le_bytes());
        put(header, 88, &sum);
        header[16..20].fill(0);
        let sum = crc(header);
        put(header, 16, &sum);
    }
}

fn listed(disk: &[u8]) -> Vec<(u32, u64, u64)> {
    let found = partitions(&disk.to_vec()).unwrap();
    found.iter().map(|&Partition { number, start, size }| (number, start.0 / 512, size.0 / 512)).collect()
}

#[test]
fn gpt_in_both_sizes_of_sectors_and_from_its_copy() {
    for sector in [512, 4096] {
        let unit = sector as u64 / 512;
        let mut disk = vec![0; 64 * sector];
        gpt(&mut disk, sector, &[(20, 29), (30, 30)]);
        let wanted = [(1, 20 * unit, 10 * unit), (2, 30 * unit, unit)];
        assert_eq!(listed(&disk), wanted);
        let sound = disk.clone();
        put(&mut disk, 2 * sector + 40, &[21]);
        assert_eq!(listed(&disk), wanted, "the copy counts if entries are damaged");
        disk = sound;
        put(&mut disk, sector + 40, &[1]);
        assert_eq!(listed(&disk), wanted, "the copy counts if the header is damaged");
        let end = disk.len();
        put(&mut disk, end - sector + 40, &[1]);
        let damaged = partitions(&disk).unwrap_err().to_string();
        assert!(damaged.contains("both copies are damaged"), "{damaged}");
    }
}

#[test]
fn mbr_with_logical_partitions() {
    let mut disk = vec![0; 200 * SECTOR];
    mbr(&mut disk, 0, &[(0xfd, 2, 10), (0, 0, 0), (5, 20, 100), (0x83, 150, 1000)]);
    mbr(&mut disk, 20 * SECTOR, &[(0xfd, 2, 8), (5, 30, 20)]);
    mbr(&mut disk, 50 * SECTOR, &[(0x83, 3, 5)]);
    // The last one goes on beyond the end.
    assert_eq!(listed(&disk), [(1, 2, 10), (5, 22, 8), (6, 53, 5), (4, 150, 50)]);
    put(&mut disk, 446, &[0x12]);
    assert_eq!(listed(&disk), [], "it is the boot sector of something else");
}

#[test]
fn a_chain_that_leads_to_itself_ends() {
    let mut disk = vec![0; 200 * SECTOR];
    mbr(&mut disk, 0, &[(5, 20, 100)]);
    mbr(&mut disk, 20 * SECTOR, &[(0xfd, 2, 8), (5, 0, 20)]);
    assert_eq!(listed(&disk).len(), 128);
}

#[test]
fn arrays_are_found_in_partitions() {
    for version in [0, 1, 2, 90] {
        let recipe = Recipe::new(version, 5, 2, 3);
        let (members, wanted) = made(&recipe);
        let mut found = Vec::new();
        for (slot, member) in members.iter().enumerate() {
            let sectors = member.len() / SECTOR;
            let mut disk = vec![0; (128 + sectors) * SECTOR];
            // The first partition ends where the disk does: a superblock of 0.90 is found on both then.
            let start = if slot == 0 { 128 } else { 20 };
            put(&mut disk, start * SECTOR, member);
            if slot == 1 {
                mbr(&mut disk, 0, &[(0xfd, start as u32, sectors as u32)]);
            } else {
                gpt(&mut disk, 512, &[(start as u64, (start + sectors - 1) as u64)]);
                put(&mut disk, start * SECTOR, member);
            }
            let disk: Arc<dyn Source> = Arc::new(disk);
            let scanned = scan(["a", "b", "c"][slot], &disk);
            assert_eq!(scanned.found.len(), 1, "{version} {:?}", scanned.troubles);
            found.extend(scanned.found);
        }
        let labels: Vec<_> = found.iter().map(|found| found.label.as_str()).collect();
        assert_eq!(labels, ["a (partition 1)", "b (partition 1)", "c (partition 1)"]);
        assert!(content(&one(found, &Options::default())) == wanted, "{version}");
    }
}

proptest! {
    #[test]
    fn any_table_is_read_or_refused(
        changes in prop::collection::vec((0..2048_usize, any::<u8>()), 0..12),
        sound_header: bool,
    ) {
        let mut disk = vec![0; 64 * SECTOR];
        gpt(&mut disk, 512, &[(20, 29), (30, 30)]);
        for (at, value) in changes {
            disk[at] = value;
        }
        if sound_header {
            disk[512 + 16..512 + 20].fill(0);
            let sum = crc(&disk[512..512 + 92]);
            put(&mut disk, 512 + 16, &sum);
        }
        for partition in partitions(&disk).into_iter().flatten() {
            let end = partition.start.0.checked_add(partition.size.0).unwrap();
            prop_assert!(partition.start > Bytes(0) && end <= disk.len() as u64);
        }
    }
}
