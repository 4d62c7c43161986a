//! Members as mdadm makes them, written from the description of the format; nothing of the crate is used for that.

use std::sync::Arc;

use uraid_layout::Bytes;
use uraid_md::{Assembly, Found, Options, Scan, Source, assemble, scan};

pub(crate) const SECTOR: usize = 512;
/// Where data of version 1.1 and 1.2 begin, in sectors.
const DATA: u64 = 64;

/// What to write into superblocks.
#[derive(Clone)]
pub(crate) struct Recipe {
    /// 0 to 2 for 1.0 to 1.2; 90.
    pub(crate) version: u32,
    pub(crate) level: i32,
    pub(crate) layout: u32,
    pub(crate) chunk: u32,
    pub(crate) members: u16,
    /// Sectors of each member that are used.
    pub(crate) size: u64,
    pub(crate) uuid: u8,
}

impl Recipe {
    pub(crate) fn new(version: u32, level: i32, layout: u32, members: u16) -> Self {
        Self { version, level, layout, chunk: 8, members, size: 64, uuid: 7 }
    }

    pub(crate) fn data_offset(&self) -> u64 {
        if matches!(self.version, 1 | 2) { DATA } else { 0 }
    }

    /// Where the superblock is, in bytes.
    pub(crate) fn place(&self) -> usize {
        let sector = match self.version {
            90 => (self.sectors() & !127) - 128,
            0 => (self.sectors() - 16) & !7,
            1 => 0,
            _ => 8,
        };
        sector as usize * SECTOR
    }

    /// Sectors of the device.
    pub(crate) fn sectors(&self) -> u64 {
        match self.version {
            90 => 384,
            0 => self.size + 32,
            _ => self.size + DATA,
        }
    }

    /// A member without data.
    pub(crate) fn blank(&self, slot: u16) -> Vec<u8> {
        let mut device = vec![0; self.sectors() as usize * SECTOR];
        let place = self.place();
        if self.version == 90 {
            self.old(&mut device[place..], slot);
        } else {
            self.new_one(&mut device[place..], slot);
        }
        self.seal(&mut device);
        device
    }

    fn old(&self, block: &mut [u8], slot: u16) {
        let mut word = |index: usize, value: u32| put(block, index * 4, &value.to_le_bytes());
        for (index, value) in [(0, 0xa92b_4efc), (2, 90), (6, 1000), (7, self.level as u32), (8, self.size as u32 / 2)]
        {
            word(index, value);
        }
        for (index, value) in [(5, 1), (13, 2), (14, 3), (15, self.uuid.into()), (10, self.members.into()), (33, 1)] {
            word(index, value);
        }
        for (index, value) in [(39, 20), (41, 20), (64, self.layout), (65, self.chunk * 512)] {
            word(index, value);
        }
        for disk in 0..self.members.into() {
            let entry = 128 + 32 * disk as usize;
            word(entry, disk);
            word(entry + 3, disk);
            word(entry + 4, 6);
        }
        word(992, slot.into());
    }

    fn new_one(&self, block: &mut [u8], slot: u16) {
        let word = |at: usize, value: u32| (at, value.to_le_bytes().to_vec());
        let long = |at: usize, value: u64| (at, value.to_le_bytes().to_vec());
        let mut fields = vec![
            word(0, 0xa92b_4efc),
            word(4, 1),
            (16, vec![self.uuid; 16]),
            (32, b"host:vault".to_vec()),
            long(64, 1000),
            word(72, self.level as u32),
            word(76, self.layout),
            long(80, self.size),
            word(88, self.chunk),
            word(92, self.members.into()),
            long(128, self.data_offset()),
            long(136, self.size),
            long(144, (self.place() / SECTOR) as u64),
            word(160, slot.into()),
            (168, vec![slot as u8 + 1; 16]),
            long(200, 20),
            long(208, u64::MAX),
            word(220, 128),
        ];
        fields.push((256, vec![0xff; 256]));
        fields.push((256, (0..self.members).flat_map(u16::to_le_bytes).collect()));
        fields.into_iter().for_each(|(at, bytes)| put(block, at, &bytes));
    }

    /// Changes a field of the superblock, and puts the checksum right.
    pub(crate) fn change(&self, device: &mut [u8], at: usize, bytes: &[u8]) {
        put(device, self.place() + at, bytes);
        self.seal(device);
    }

    fn seal(&self, device: &mut [u8]) {
        let block = &mut device[self.place()..];
        let (len, at) = if self.version == 90 { (4096, 152) } else { (512, 216) };
        block[at..at + 4].fill(0);
        let words = block[..len].chunks_exact(4).map(|word| u64::from(u32::from_le_bytes(word.try_into().unwrap())));
        let sum: u64 = words.sum();
        put(block, at, &((sum & 0xffff_ffff) as u32).wrapping_add((sum >> 32) as u32).to_le_bytes());
    }
}

pub(crate) fn put(block: &mut [u8], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

/// What is found on devices that are called a, b, c and so on.
pub(crate) fn found(devices: &[Vec<u8>]) -> Scan {
    let mut all = Scan::default();
    for (letter, device) in ('a'..).zip(devices) {
        let source: Arc<dyn Source> = Arc::new(device.clone());
        let Scan { found, troubles } = scan(&letter.to_string(), &source);
        all.found.extend(found);
        all.troubles.extend(troubles);
    }
    all
}

pub(crate) fn assembled(devices: &[Vec<u8>], options: &Options) -> Assembly {
    let Scan { found, troubles } = found(devices);
    assert!(troubles.is_empty(), "{troubles:?}");
    one(found, options)
}

pub(crate) fn one(found: Vec<Found>, options: &Options) -> Assembly {
    let mut arrays = assemble(found, options);
    assert_eq!(arrays.len(), 1);
    arrays.pop().unwrap()
}

/// All that an array holds.
pub(crate) fn content(assembly: &Assembly) -> Vec<u8> {
    let array = assembly.array.as_ref().unwrap();
    let mut content = vec![0; array.capacity().0 as usize];
    array.read(Bytes(0), &mut content).unwrap();
    content
}
