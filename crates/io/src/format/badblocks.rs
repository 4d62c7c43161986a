//! The bad-block list: sectors of a member's data area that do not have their content.
//!
//! A sector is *absent* when its content could not be computed when the member got the rest: what the medium shows
//! there is anything. It is *unread* when the medium did not give it when somebody needed it; it may come back. Both
//! are over when the sector is written.
//!
//! Entries are blocks with a bit for each sector, in order. The area has two copies of the list, of which the later one
//! counts. They are written one after the other, so that one is whole whatever tears the other, and the loss of either
//! loses nothing. An area that was never written is zeros.

use std::collections::BTreeMap;
use std::ops::Range;

use uraid_layout::{Bytes, DiskSector};
use uuid::Uuid;

use super::{BLOCK, BLOCK_BYTES};
use crate::buf::Buf;

/// The size of a copy, in which [`ENTRIES_MAX`] entries have room.
pub const COPY_BYTES: Bytes = Bytes(128 << 10);

/// The most entries that a list has: 64 MiB of a member.
pub const ENTRIES_MAX: usize = (COPY_BYTES.0 as usize - HEADER_BYTES) / ENTRY_BYTES;

/// Blocks have smaller numbers than this: of a member's first EiB.
pub(crate) const BLOCKS_MAX: u64 = 1 << 48;

/// The highest version, so that the next one always fits.
const VERSION_MAX: u64 = u64::MAX / 2;

/// No text; the line ends tell of a transfer that changed them.
const MAGIC: [u8; 8] = *b"\x8dUBAD\r\n\0";
const HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 8;

/// Byte offsets of the header's fields.
mod at {
    pub(super) const MAGIC: usize = 0;
    pub(super) const CHECKSUM: usize = 8;
    pub(super) const COUNT: usize = 12;
    pub(super) const MEMBER: usize = 16;
    pub(super) const VERSION: usize = 32;
}

/// Why a sector does not have its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    /// The medium did not give it.
    Unread,
    /// It was never written there.
    Absent,
}

/// What a member lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadBlocks {
    /// Counts what was written to the member.
    version: u64,
    /// By the number of the block in the data area.
    blocks: BTreeMap<u64, Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// A bit for each sector.
    unread: u8,
    absent: u8,
}

/// The list has no room for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the list of bad blocks is full: it has {ENTRIES_MAX} entries")]
pub struct Full;

/// What is wrong with an area from which no list can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the list of bad blocks is damaged, in both of its copies")]
pub struct Damaged;

/// A copy, as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Zeros.
    Nothing,
    /// A list.
    List(BadBlocks),
    /// It goes on for this many bytes, which were not given.
    Short(Bytes),
    /// Something else, or it could not be read.
    Damaged,
}

impl BadBlocks {
    /// Whether the member has everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// How many blocks have bad sectors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// How many blocks have sectors that lack their content for a reason.
    #[must_use]
    pub fn count(&self, lack: Lack) -> usize {
        self.blocks.values().filter(|entry| entry.mask(lack) != 0).count()
    }

    /// Takes sectors in. What is absent already stays so.
    ///
    /// # Errors
    /// [`Full`]; then some of them may have been taken in.
    pub fn add(&mut self, sectors: Range<DiskSector>, lack: Lack) -> Result<(), Full> {
        for (block, mask) in blocks(sectors) {
            let is_full = self.blocks.len() >= ENTRIES_MAX && !self.blocks.contains_key(&block);
            if is_full {
                return Err(Full);
            }
            let entry = self.blocks.entry(block).or_insert(Entry { unread: 0, absent: 0 });
            match lack {
                Lack::Absent => entry.absent |= mask,
                Lack::Unread => entry.unread |= mask & !entry.absent,
            }
            entry.unread &= !entry.absent;
        }
        Ok(())
    }

    /// Takes sectors out, as they were written; whether any was in.
    pub fn remove(&mut self, sectors: Range<DiskSector>) -> bool {
        self.clear(sectors, 0xff, 0xff)
    }

    /// Takes sectors out that were read after all, unless they are absent; whether any was in.
    pub fn remove_unread(&mut self, sectors: Range<DiskSector>) -> bool {
        self.clear(sectors, 0xff, 0)
    }

    fn clear(&mut self, sectors: Range<DiskSector>, unread: u8, absent: u8) -> bool {
        let (mut has_changed, first) = (false, sectors.start.0 / BLOCK.0);
        let entries = self.blocks.range_mut(first..first.max(sectors.end.0.div_ceil(BLOCK.0)));
        for (&block, entry) in entries {
            let mask = mask_of(block, &sectors);
            let left = Entry { unread: entry.unread & !(mask & unread), absent: entry.absent & !(mask & absent) };
            has_changed |= left != std::mem::replace(entry, left);
        }
        if has_changed {
            self.blocks.retain(|_, entry| entry.unread | entry.absent != 0);
        }
        has_changed
    }

    /// What it has of a range of whole blocks.
    #[must_use]
    pub fn part(&self, sectors: &Range<DiskSector>) -> Self {
        let (first, end) = (sectors.start.0 / BLOCK.0, sectors.end.0.div_ceil(BLOCK.0));
        let entries = self.blocks.range(first..first.max(end));
        Self { version: self.version, blocks: entries.map(|(&block, &entry)| (block, entry)).collect() }
    }

    /// Takes out what is from the block on that begins at a sector; whether any was in.
    pub fn truncate(&mut self, end: DiskSector) -> bool {
        !self.blocks.split_off(&end.0.div_ceil(BLOCK.0)).is_empty()
    }

    /// The runs of sectors within these that lack their content for one reason.
    pub fn within(&self, sectors: Range<DiskSector>, lack: Lack) -> impl Iterator<Item = Range<DiskSector>> + '_ {
        let first = sectors.start.0 / BLOCK.0;
        let entries = self.blocks.range(first..first.max(sectors.end.0.div_ceil(BLOCK.0)));
        let bits = entries.flat_map(move |(block, entry)| {
            let mask = entry.mask(lack);
            (0..BLOCK.0).filter(move |bit| mask >> bit & 1 == 1).map(move |bit| block * BLOCK.0 + bit)
        });
        runs(bits.filter(move |sector| (sectors.start.0..sectors.end.0).contains(sector)))
    }

    /// Whether any of these sectors lacks its content.
    #[must_use]
    pub fn touches(&self, sectors: &Range<DiskSector>) -> bool {
        [Lack::Absent, Lack::Unread].into_iter().any(|lack| self.within(sectors.clone(), lack).next().is_some())
    }

    /// All runs of sectors that lack their content for one reason.
    pub fn all(&self, lack: Lack) -> impl Iterator<Item = Range<DiskSector>> + '_ {
        self.within(DiskSector(0)..DiskSector(BLOCKS_MAX * BLOCK.0), lack)
    }

    /// A copy's bytes, in whole blocks, in the next version.
    #[must_use]
    pub fn encode_next(&mut self, member: Uuid) -> Buf {
        self.version += 1;
        self.encode(member)
    }

    fn encode(&self, member: Uuid) -> Buf {
        let size = (HEADER_BYTES + self.blocks.len() * ENTRY_BYTES).next_multiple_of(BLOCK_BYTES);
        let mut buf = Buf::zeroed(Bytes(size as u64));
        let bytes = buf.as_mut();
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(at::MAGIC, &MAGIC);
        put(at::COUNT, &u32::try_from(self.blocks.len()).expect("lists are bounded").to_le_bytes());
        put(at::MEMBER, member.as_bytes());
        put(at::VERSION, &self.version.to_le_bytes());
        for (index, (block, entry)) in self.blocks.iter().enumerate() {
            // A sector lacks its content for one reason; absent sectors are those of the mask that are not unread.
            let [unread, bad] = [entry.unread, entry.unread | entry.absent].map(u64::from);
            put(HEADER_BYTES + index * ENTRY_BYTES, &(block << 16 | unread << 8 | bad).to_le_bytes());
        }
        let checksum = checksum(bytes, self.blocks.len());
        bytes[at::CHECKSUM..at::CHECKSUM + 4].copy_from_slice(&checksum.to_le_bytes());
        buf
    }

    /// Reads a copy from its bytes, or from the first of them, whatever they are: that of `member`, whose data area has
    /// `blocks` blocks.
    #[must_use]
    pub fn decode(bytes: &[u8], member: Uuid, blocks: u64) -> Found {
        if bytes.iter().all(|&byte| byte == 0) {
            return Found::Nothing;
        }
        let is_header = bytes.len() >= HEADER_BYTES && bytes.starts_with(&MAGIC);
        if !is_header || bytes[at::MEMBER..at::MEMBER + 16] != *member.as_bytes() {
            return Found::Damaged;
        }
        let u64_at = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("inside the list"));
        let u32_at = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("inside the list"));
        let count = u32_at(at::COUNT) as usize;
        let size = HEADER_BYTES + count.min(ENTRIES_MAX) * ENTRY_BYTES;
        if count > ENTRIES_MAX {
            return Found::Damaged;
        }
        if bytes.len() < size {
            return Found::Short(Bytes(size.next_multiple_of(BLOCK_BYTES) as u64));
        }
        if u32_at(at::CHECKSUM) != checksum(bytes, count) {
            return Found::Damaged;
        }
        let version = u64_at(at::VERSION);
        if version > VERSION_MAX {
            return Found::Damaged;
        }
        let mut list = Self { version, blocks: BTreeMap::new() };
        let mut next = 0;
        for index in 0..count {
            let entry = u64_at(HEADER_BYTES + index * ENTRY_BYTES);
            let (block, [bad, unread, ..]) = (entry >> 16, entry.to_le_bytes());
            if block < next || block >= blocks || bad == 0 || unread & !bad != 0 {
                return Found::Damaged;
            }
            next = block + 1;
            list.blocks.insert(block, Entry { unread, absent: bad & !unread });
        }
        Found::List(list)
    }

    /// The list that two copies give.
    ///
    /// # Errors
    /// [`Damaged`]. Where only the first copy is damaged and the second is not written yet, the list is torn that was
    /// to be the first: nobody relied on it.
    pub fn newest(copies: [Found; 2]) -> Result<Self, Damaged> {
        match copies {
            [Found::List(first), Found::List(second)] => {
                Ok(if second.version > first.version { second } else { first })
            }
            [Found::List(list), _] | [_, Found::List(list)] => Ok(list),
            [Found::Nothing | Found::Damaged, Found::Nothing] => Ok(Self::default()),
            _ => Err(Damaged),
        }
    }
}

impl Entry {
    fn mask(self, lack: Lack) -> u8 {
        match lack {
            Lack::Absent => self.absent,
            Lack::Unread => self.unread,
        }
    }
}

/// The blocks of a range of sectors, each with the bits of its sectors in the range.
fn blocks(sectors: Range<DiskSector>) -> impl Iterator<Item = (u64, u8)> {
    let blocks = sectors.start.0 / BLOCK.0..sectors.end.0.div_ceil(BLOCK.0);
    blocks.map(move |block| (block, mask_of(block, &sectors))).filter(|&(_, mask)| mask != 0)
}

/// The bits of a block's sectors in a range that has some of the block.
fn mask_of(block: u64, sectors: &Range<DiskSector>) -> u8 {
    let first = sectors.start.0.saturating_sub(block * BLOCK.0);
    let last = (sectors.end.0 - block * BLOCK.0).min(BLOCK.0);
    let mask = (0xff_u32 << first) & (0xff >> (BLOCK.0 - last));
    u8::try_from(mask & 0xff).expect("eight bits")
}

/// Joins adjacent sectors.
fn runs(mut sectors: impl Iterator<Item = u64>) -> impl Iterator<Item = Range<DiskSector>> {
    let mut next = sectors.next();
    std::iter::from_fn(move || {
        let start = next?;
        let mut end = start;
        while next == Some(end) {
            end += 1;
            next = sectors.next();
        }
        Some(DiskSector(start)..DiskSector(end))
    })
}

/// CRC32 of the header, with zeros for the checksum, and the entries.
fn checksum(bytes: &[u8], count: usize) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes[..at::CHECKSUM]);
    crc.update(&[0; 4]);
    crc.update(&bytes[at::CHECKSUM + 4..HEADER_BYTES + count * ENTRY_BYTES]);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MEMBER: Uuid = Uuid::from_bytes([7; 16]);

    fn sectors(start: u64, end: u64) -> Range<DiskSector> {
        DiskSector(start)..DiskSector(end)
    }

    fn list(absent: &[(u64, u64)], unread: &[(u64, u64)]) -> BadBlocks {
        let mut list = BadBlocks::default();
        for (ranges, lack) in [(absent, Lack::Absent), (unread, Lack::Unread)] {
            ranges.iter().for_each(|&(start, end)| list.add(sectors(start, end), lack).expect("there is room"));
        }
        list
    }

    fn all(list: &BadBlocks, lack: Lack) -> Vec<(u64, u64)> {
        list.all(lack).map(|run| (run.start.0, run.end.0)).collect()
    }

    #[test]
    fn sectors_are_kept_one_by_one() {
        let mut list = list(&[(6, 18)], &[(16, 26), (64, 65)]);
        assert_eq!((all(&list, Lack::Absent), all(&list, Lack::Unread)), (vec![(6, 18)], vec![(18, 26), (64, 65)]));
        assert_eq!((list.len(), list.count(Lack::Absent), list.count(Lack::Unread)), (5, 3, 3));
        assert!(list.remove(sectors(7, 16)) && !list.remove(sectors(7, 16)));
        assert_eq!(all(&list, Lack::Absent), [(6, 7), (16, 18)]);
        assert!(list.remove_unread(sectors(0, 20)), "what is absent was not read");
        assert_eq!(
            (all(&list, Lack::Absent), all(&list, Lack::Unread)),
            (vec![(6, 7), (16, 18)], vec![(20, 26), (64, 65)])
        );
        let within: Vec<_> = list.within(sectors(17, 23), Lack::Unread).collect();
        assert_eq!(within, [sectors(20, 23)]);
        assert!(list.remove(sectors(0, 1000)) && list.is_empty());
    }

    #[test]
    fn no_sectors_are_nothing() {
        let mut empty = BadBlocks::default();
        for at in [0, 5, 8] {
            assert_eq!(empty.add(sectors(at, at), Lack::Absent), Ok(()));
            assert!(empty.is_empty() && !empty.remove(sectors(at, at)) && !empty.touches(&sectors(at, at)));
        }
    }

    #[test]
    fn absent_sectors_are_not_read_back_by_an_error() {
        let list = list(&[(0, 8)], &[(0, 8)]);
        assert_eq!((all(&list, Lack::Absent), all(&list, Lack::Unread)), (vec![(0, 8)], vec![]));
    }

    #[test]
    fn a_full_list_says_so_and_takes_what_it_has() {
        let mut list = BadBlocks::default();
        let end = ENTRIES_MAX as u64 * BLOCK.0;
        assert_eq!(list.add(sectors(0, end), Lack::Absent), Ok(()));
        assert_eq!(list.add(sectors(end, end + 1), Lack::Absent), Err(Full));
        assert_eq!(list.add(sectors(end - 8, end), Lack::Unread), Ok(()));
        let bytes = list.encode_next(MEMBER);
        assert_eq!(bytes.len() as u64, COPY_BYTES.0);
        assert_eq!(BadBlocks::decode(bytes.as_ref(), MEMBER, end), Found::List(list));
    }

    /// The bytes, written out.
    #[test]
    fn a_copy_is_laid_out_as_documented() {
        let list = BadBlocks { version: 0x0101, ..list(&[(9, 11)], &[(15, 17)]) };
        let bytes = list.clone().encode_next(MEMBER);
        let bytes = bytes.as_ref();
        assert_eq!(bytes.len(), 4096);
        assert_eq!(bytes[..8], [0x8d, b'U', b'B', b'A', b'D', 13, 10, 0]);
        assert_eq!(bytes[12..16], [2, 0, 0, 0]);
        assert_eq!(bytes[16..32], [7; 16]);
        assert_eq!(bytes[32..64], [[2, 1, 0, 0, 0, 0, 0, 0], [0; 8], [0; 8], [0; 8]].concat());
        assert_eq!(bytes[64..72], [0b1000_0110, 0b1000_0000, 1, 0, 0, 0, 0, 0], "block 1");
        assert_eq!(bytes[72..80], [1, 1, 2, 0, 0, 0, 0, 0], "block 2");
        assert!(bytes[80..].iter().all(|&byte| byte == 0));
        let crc = crc32fast::hash(&[&bytes[..8], &[0; 4], &bytes[12..80]].concat());
        assert_eq!(bytes[8..12], crc.to_le_bytes());
    }

    #[test]
    fn what_is_no_list_is_damaged() {
        let sound = list(&[(9, 11)], &[(4000, 4001)]);
        let bytes = sound.encode(MEMBER).as_ref().to_vec();
        assert_eq!(BadBlocks::decode(&bytes, MEMBER, 501), Found::List(sound));
        assert_eq!(BadBlocks::decode(&bytes, MEMBER, 500), Found::Damaged, "beyond the data area");
        assert_eq!(BadBlocks::decode(&bytes, Uuid::from_bytes([8; 16]), 501), Found::Damaged, "of another member");
        assert_eq!(BadBlocks::decode(&bytes[..72], MEMBER, 501), Found::Short(Bytes(4096)));
        assert_eq!(BadBlocks::decode(&[0; 4096], MEMBER, 501), Found::Nothing);
        let last = BadBlocks { version: VERSION_MAX, ..list(&[(9, 11)], &[]) };
        let [last, beyond] = [last.encode(MEMBER), last.clone().encode_next(MEMBER)];
        assert!(matches!(BadBlocks::decode(last.as_ref(), MEMBER, 501), Found::List(_)), "the last version");
        assert_eq!(BadBlocks::decode(beyond.as_ref(), MEMBER, 501), Found::Damaged, "there is none after the last");
        for at in 0..80 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            let found = BadBlocks::decode(&damaged, MEMBER, 501);
            assert!(matches!(found, Found::Damaged | Found::Short(_)), "byte {at}: {found:?}");
        }
    }

    #[test]
    fn the_later_copy_counts_and_one_is_enough() {
        let of = |version, end| BadBlocks { version, ..list(&[(0, end)], &[]) };
        let found = |version, end| Found::List(of(version, end));
        let newest = |first, second| BadBlocks::newest([first, second]);
        assert_eq!(newest(found(2, 2), found(1, 1)), Ok(of(2, 2)));
        assert_eq!(newest(found(1, 1), found(2, 2)), Ok(of(2, 2)));
        assert_eq!(newest(Found::Damaged, found(1, 1)), Ok(of(1, 1)));
        assert_eq!(newest(found(2, 2), Found::Damaged), Ok(of(2, 2)));
        assert_eq!(newest(Found::Nothing, Found::Nothing), Ok(BadBlocks::default()));
        assert_eq!(newest(Found::Damaged, Found::Nothing), Ok(BadBlocks::default()), "the first, torn");
        assert_eq!(newest(Found::Nothing, Found::Damaged), Err(Damaged));
        assert_eq!(newest(Found::Damaged, Found::Damaged), Err(Damaged));
    }

    proptest! {
        #[test]
        fn a_list_survives_its_bytes_and_agrees_with_a_set(
            steps in prop::collection::vec((0..3_u8, 0..200_u64, 1..40_u64), 0..40), version in 0..VERSION_MAX,
        ) {
            let (mut absent, mut unread) = ([false; 256], [false; 256]);
            let mut list = BadBlocks { version, ..BadBlocks::default() };
            for (kind, start, len) in steps {
                let range = start as usize..(start + len) as usize;
                match kind {
                    0 => {
                        list.add(sectors(start, start + len), Lack::Absent).expect("there is room");
                        range.for_each(|at| (absent[at], unread[at]) = (true, false));
                    }
                    1 => {
                        list.add(sectors(start, start + len), Lack::Unread).expect("there is room");
                        range.for_each(|at| unread[at] = !absent[at]);
                    }
                    _ => {
                        let is_in = range.clone().any(|at| absent[at] || unread[at]);
                        prop_assert_eq!(list.remove(sectors(start, start + len)), is_in);
                        range.for_each(|at| (absent[at], unread[at]) = (false, false));
                    }
                }
            }
            for (lack, expected) in [(Lack::Absent, &absent), (Lack::Unread, &unread)] {
                let runs: Vec<_> = list.all(lack).collect();
                let mut shown = [false; 256];
                for run in &runs {
                    (run.start.0..run.end.0).for_each(|at| shown[at as usize] = true);
                }
                prop_assert_eq!(&shown, expected);
                prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start), "runs are whole");
            }
            let bytes = list.encode_next(MEMBER);
            prop_assert_eq!(BadBlocks::decode(bytes.as_ref(), MEMBER, 32), Found::List(list));
        }
    }
}
