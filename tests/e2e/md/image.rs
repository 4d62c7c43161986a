//! Members of arrays of Linux md, written from the description of their format and from the formulas of RAID 5 and 6,
//! left-symmetric. Nothing of the program under test is used.

use std::path::{Path, PathBuf};

use uraid_tests::image::Random;

const CHUNK: usize = 64 << 10;
/// Where data begin in version 1.2.
const DATA: usize = 1 << 20;

/// What an array is like.
#[derive(Clone, Copy)]
pub(super) struct Recipe {
    /// 5 or 6.
    pub(super) level: u32,
    pub(super) members: usize,
    /// How many rows of chunks there are.
    pub(super) rows: usize,
    /// Whether superblocks are of version 0.90, and not 1.2.
    pub(super) is_old: bool,
    /// What the array's UUID and the members' are made of.
    pub(super) number: u8,
}

/// The members of an array, and what it holds.
pub(super) struct Made {
    pub(super) members: Vec<PathBuf>,
    pub(super) content: Vec<u8>,
}

impl Recipe {
    /// Writes the members into a directory.
    pub(super) fn make(self, directory: &Path) -> Made {
        let Self { level, members: count, rows, is_old, number } = self;
        let parities = level as usize - 4;
        let content = Random::new(number.into()).bytes(rows * (count - parities) * CHUNK);
        let mut data = vec![Vec::new(); count];
        for (row, chunks) in content.chunks((count - parities) * CHUNK).enumerate() {
            for (slot, chunk) in self.row(row, chunks).into_iter().enumerate() {
                data[slot].extend(chunk);
            }
        }
        let devices = data.into_iter().enumerate().map(|(slot, data)| {
            let path = directory.join(format!("md{number}-{slot}.img"));
            let device = if is_old { self.older(slot, data) } else { self.newer(slot, data) };
            std::fs::write(&path, device).unwrap();
            path
        });
        Made { members: devices.collect(), content }
    }

    /// The chunks of a row, by slots: P goes from the last member to the first, Q follows it, and data follow these.
    fn row(self, row: usize, chunks: &[u8]) -> Vec<Vec<u8>> {
        let Self { level, members, .. } = self;
        let p = members - 1 - row % members;
        let first = if level == 6 { p + 2 } else { p + 1 };
        let (mut sum, mut other) = (vec![0; CHUNK], vec![0; CHUNK]);
        let mut slots = vec![Vec::new(); members];
        for (index, chunk) in chunks.chunks(CHUNK).enumerate() {
            slots[(first + index) % members] = chunk.to_vec();
            sum.iter_mut().zip(chunk).for_each(|(sum, byte)| *sum ^= byte);
        }
        // Horner's rule: each step multiplies by 2 what the data from the last to this one have come to.
        for chunk in chunks.chunks(CHUNK).rev() {
            other.iter_mut().zip(chunk).for_each(|(q, byte)| *q = (*q << 1) ^ ((*q >> 7) * 0x1d) ^ byte);
        }
        slots[p] = sum;
        if level == 6 {
            slots[(p + 1) % members] = other;
        }
        slots
    }

    /// A member with these data and a superblock of version 1.2.
    pub(super) fn newer(self, slot: usize, data: Vec<u8>) -> Vec<u8> {
        let Self { level, members, number, .. } = self;
        let sectors = (data.len() / 512) as u64;
        let mut device = vec![0; DATA];
        let block = &mut device[4096..4096 + 512];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &0xa92b_4efc_u32.to_le_bytes());
        put(4, &1_u32.to_le_bytes());
        put(16, &[number; 16]);
        put(32, format!("host:vault{number}").as_bytes());
        put(64, &1_700_000_000_u64.to_le_bytes());
        put(72, &level.to_le_bytes());
        put(76, &2_u32.to_le_bytes());
        put(80, &sectors.to_le_bytes());
        put(88, &(CHUNK as u32 / 512).to_le_bytes());
        put(92, &(members as u32).to_le_bytes());
        put(128, &(DATA as u64 / 512).to_le_bytes());
        put(136, &sectors.to_le_bytes());
        put(144, &8_u64.to_le_bytes());
        put(160, &(slot as u32).to_le_bytes());
        put(168, &[number, slot as u8, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        put(200, &500_u64.to_le_bytes());
        put(208, &u64::MAX.to_le_bytes());
        put(220, &128_u32.to_le_bytes());
        put(256, &[0xff; 256]);
        (0..members).for_each(|slot| put(256 + 2 * slot, &(slot as u16).to_le_bytes()));
        seal(block, 216);
        device.extend(data);
        device
    }

    /// A member with a superblock of version 0.90.
    fn older(self, slot: usize, data: Vec<u8>) -> Vec<u8> {
        let Self { level, members, number, .. } = self;
        let size = data.len();
        let mut device = data;
        // The data end where the superblock begins: at a multiple of 64 KiB, the last that has as much behind it.
        device.resize(size + (100 << 10), 0);
        let block = &mut device[size..size + 4096];
        let mut put = |word: usize, value: u32| block[word * 4..word * 4 + 4].copy_from_slice(&value.to_le_bytes());
        let count = members as u32;
        let words = [(0, 0xa92b_4efc), (2, 90), (5, number.into()), (6, 1_700_000_000), (7, level), (13, 13), (14, 14)];
        words.into_iter().for_each(|(word, value)| put(word, value));
        let words = [(8, size as u32 / 1024), (9, count), (10, count), (15, 15), (33, 1), (39, 500), (64, 2)];
        words.into_iter().for_each(|(word, value)| put(word, value));
        put(65, CHUNK as u32);
        for disk in 0..count {
            let entry = 128 + 32 * disk as usize;
            [(0, disk), (3, disk), (4, 6)].into_iter().for_each(|(word, value)| put(entry + word, value));
        }
        put(992, slot as u32);
        seal(block, 152);
        device
    }

    /// Changes bytes of a member's superblock of version 1.2, and puts its checksum right.
    pub(super) fn change(member: &Path, at: usize, bytes: &[u8]) {
        let mut device = std::fs::read(member).unwrap();
        device[4096 + at..4096 + at + bytes.len()].copy_from_slice(bytes);
        seal(&mut device[4096..4096 + 512], 216);
        std::fs::write(member, device).unwrap();
    }
}

/// Puts a checksum right: the sum of all words without it, and the carries.
fn seal(block: &mut [u8], at: usize) {
    block[at..at + 4].fill(0);
    let sum: u64 = block.chunks(4).map(|word| u64::from(u32::from_le_bytes(word.try_into().unwrap()))).sum();
    let folded = (sum & 0xffff_ffff) + (sum >> 32);
    block[at..at + 4].copy_from_slice(&(folded as u32).to_le_bytes());
}
