//! Members of Linux md to begin with: small ones, of any level and version.

use crate::Input;

const SECTOR: usize = 512;
/// Sectors of a member's data, and where they begin.
const DATA: u64 = 64;
const OFFSET: u64 = 32;
/// Sectors of a device: enough for version 0.90, which takes the last whole 64 KiB but one.
const DEVICE: usize = 256;

/// What a set of members is like.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    /// Its version: 90, or 0 to 2 for 1.0 to 1.2.
    pub version: u32,
    level: i32,
    layout: u32,
    /// How many members there are.
    pub members: u16,
}

impl Recipe {
    /// The one that the input asks for.
    pub fn new(input: &mut Input<'_>) -> Self {
        let version = input.pick(&[0, 1, 2, 90]);
        let (level, layout) = input.pick(&[
            (-1, 0),
            (0, 0),
            (1, 0),
            (4, 0),
            (5, 2),
            (5, 0),
            (6, 2),
            (6, 10),
            (6, 16),
            (10, 0x102),
            (10, 0x201),
            (10, 0x1_0201),
            (10, 0x4_0201),
        ]);
        Self { version, level, layout, members: 4 + u16::from(input.byte() % 3) }
    }

    /// Where the superblock is.
    pub fn place(self) -> usize {
        match self.version {
            90 => (DEVICE - 128) * SECTOR,
            0 => (DEVICE - 16) * SECTOR,
            1 => 0,
            _ => 8 * SECTOR,
        }
    }

    /// A sound member.
    pub fn member(self, slot: u16) -> Vec<u8> {
        let mut device: Vec<u8> = (0..DEVICE * SECTOR).map(|at| (at / SECTOR + at) as u8).collect();
        let block = &mut device[self.place()..][..4096];
        block.fill(0);
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &0xa92b_4efc_u32.to_le_bytes());
        let count = u32::from(self.members);
        if self.version == 90 {
            let words = [(2, 90), (5, 7), (6, 9), (7, self.level as u32), (8, 32), (10, count), (33, 1), (39, 5)];
            words.into_iter().for_each(|(word, value)| put(word * 4, &value.to_le_bytes()));
            put(64 * 4, &self.layout.to_le_bytes());
            put(65 * 4, &4096_u32.to_le_bytes());
            for disk in 0..count {
                let entry = (128 + 32 * disk as usize) * 4;
                put(entry + 12, &disk.to_le_bytes());
                put(entry + 16, &6_u32.to_le_bytes());
            }
            put(992 * 4, &u32::from(slot).to_le_bytes());
        } else {
            let words = [(4, 1), (72, self.level as u32), (76, self.layout), (88, 8), (92, count), (220, 16)];
            words.into_iter().for_each(|(at, value)| put(at, &value.to_le_bytes()));
            put(16, &[7; 48]);
            let longs = [(80, DATA), (128, OFFSET), (136, DATA), (144, (self.place() / SECTOR) as u64), (200, 5)];
            longs.into_iter().for_each(|(at, value)| put(at, &value.to_le_bytes()));
            put(208, &u64::MAX.to_le_bytes());
            put(160, &u32::from(slot).to_le_bytes());
            put(168, &[slot as u8; 16]);
            (0..16).for_each(|slot: u16| put(256 + 2 * usize::from(slot), &slot.to_le_bytes()));
        }
        self.seal(&mut device);
        device
    }

    /// Puts a superblock's checksum right, if what it covers is there.
    pub fn seal(self, device: &mut [u8]) {
        let block = &mut device[self.place()..][..4096];
        let devices = u32::from_le_bytes([block[220], block[221], block[222], block[223]]) as usize;
        let (at, len) = if self.version == 90 { (152, 4096) } else { (216, 256 + devices.min(1920) * 2) };
        block[at..at + 4].fill(0);
        let padded = |word: &[u8]| (0..4).map(|at| word.get(at).copied().unwrap_or(0)).collect::<Vec<_>>();
        let words = block[..len].chunks(4).map(padded);
        let sum: u64 = words.map(|word| u64::from(u32::from_le_bytes([word[0], word[1], word[2], word[3]]))).sum();
        block[at..at + 4].copy_from_slice(&(sum as u32).wrapping_add((sum >> 32) as u32).to_le_bytes());
    }
}
