//! Checksums of blocks, and the table that keeps them, as bytes.
//!
//! A member's table has a sector for every [`SUMS_IN_SECTOR`] blocks of its data area: their checksums in order,
//! little-endian, then the CRC32 of the sector itself. All of them are over the array's and the member's UUID and the
//! place too, so that what was meant for another place is not taken for what belongs there. A checksum of 0 is not
//! known: nothing is checked. A sector of zeros is valid and knows nothing. One of `u32::MAX` was lost: what the block
//! holds is believed where the other members can't say what it should be.
//!
//! The bytes are described in `docs/on-disk-format.md`. The module reads and writes nothing.

use uuid::Uuid;

use crate::format::BLOCK_BYTES;
use crate::format::superblock::SUMS_IN_SECTOR;

/// What of the table is read and written at once.
pub const PAGE_BYTES: usize = 4096;

/// Checksums in a page.
pub(crate) const SUMS_IN_PAGE: usize = SECTORS * SUMS;

const SECTOR: usize = 512;
const SECTORS: usize = PAGE_BYTES / SECTOR;
#[expect(clippy::cast_possible_truncation, reason = "a small constant")]
const SUMS: usize = SUMS_IN_SECTOR as usize;

/// What sets a sector of the table apart from a block of content.
const TABLE: [u8; 8] = *b"uraidsum";

/// A block of a member's data area, counted from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockNumber(pub u64);

/// A page of a member's table, counted from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageNumber(pub u32);

/// A block's checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u32);

/// Whose checksums they are.
#[derive(Clone, Copy, Debug)]
pub struct Tag {
    /// The CRC32 of both UUIDs, from which all others go on.
    prefix: u32,
}

/// A page's checksums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    sums: Box<[Sum]>,
}

impl BlockNumber {
    /// Where its checksum is: the page, and the place in it.
    ///
    /// # Panics
    /// Beyond 2^32 pages: no member is that large.
    #[must_use]
    pub fn place(self) -> (PageNumber, usize) {
        let page = self.0 / SUMS_IN_PAGE as u64;
        let index = usize::try_from(self.0 % SUMS_IN_PAGE as u64).expect("less than a page has");
        (PageNumber(u32::try_from(page).expect("a member has fewer pages")), index)
    }
}

impl Sum {
    /// Nothing is known of the block.
    pub const UNKNOWN: Self = Self(0);

    /// There was a checksum, in a part of the table that is damaged.
    pub const LOST: Self = Self(u32::MAX);

    /// Whether a block of this checksum is the one that `found` was computed of, as far as is known. Where it was lost
    /// it is not.
    #[must_use]
    pub fn agrees(self, found: Self) -> bool {
        self == Self::UNKNOWN || self == found
    }
}

impl Tag {
    /// The tag of a member of an array.
    #[must_use]
    pub fn new(array: Uuid, member: Uuid) -> Self {
        let mut crc = crc32fast::Hasher::new();
        crc.update(array.as_bytes());
        if !planted!(SumOfNoMember) {
            crc.update(member.as_bytes());
        }
        Self { prefix: crc.finalize() }
    }

    /// A block's checksum; never [`Sum::UNKNOWN`] or [`Sum::LOST`].
    ///
    /// # Panics
    /// When `content` is not a block.
    #[must_use]
    pub fn sum(&self, block: BlockNumber, content: &[u8]) -> Sum {
        assert_eq!(content.len(), BLOCK_BYTES, "a checksum is of a block");
        let mut crc = crc32fast::Hasher::new_with_initial(self.prefix);
        let place = if planted!(SumOfNoPlace) { 0 } else { block.0 };
        crc.update(&place.to_le_bytes());
        crc.update(content);
        Sum(crc.finalize().clamp(1, u32::MAX - 1))
    }

    fn sector(&self, page: PageNumber, index: usize, sums: &[u8]) -> u32 {
        let mut crc = crc32fast::Hasher::new_with_initial(self.prefix);
        crc.update(&TABLE);
        crc.update(&(u64::from(page.0) * SECTORS as u64 + index as u64).to_le_bytes());
        crc.update(sums);
        crc.finalize()
    }
}

impl Page {
    /// A page that knows nothing.
    #[must_use]
    pub fn unknown() -> Self {
        Self { sums: vec![Sum::UNKNOWN; SUMS_IN_PAGE].into() }
    }

    /// A page of which nothing is left.
    #[must_use]
    pub fn lost() -> Self {
        Self { sums: vec![Sum::LOST; SUMS_IN_PAGE].into() }
    }

    /// A page's checksums, and how many of its sectors are damaged: these were lost.
    ///
    /// # Panics
    /// When `bytes` are not a page.
    #[must_use]
    pub fn decode(tag: &Tag, number: PageNumber, bytes: &[u8]) -> (Self, usize) {
        assert_eq!(bytes.len(), PAGE_BYTES, "a page has a size");
        let mut page = Self::unknown();
        let mut damaged = 0;
        for (index, (sector, sums)) in bytes.chunks_exact(SECTOR).zip(page.sums.chunks_exact_mut(SUMS)).enumerate() {
            if sector.iter().all(|&byte| byte == 0) {
                continue;
            }
            let (entries, checksum) = sector.split_at(SECTOR - 4);
            if u32_of(checksum) != tag.sector(number, index, entries) && !planted!(SumsDamagedCount) {
                damaged += 1;
                sums.fill(Sum::LOST);
                continue;
            }
            for (sum, entry) in sums.iter_mut().zip(entries.chunks_exact(4)) {
                *sum = Sum(u32_of(entry));
            }
        }
        (page, damaged)
    }

    /// The page's bytes.
    ///
    /// # Panics
    /// When there is no room for exactly a page.
    pub fn encode(&self, tag: &Tag, number: PageNumber, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), PAGE_BYTES, "a page has a size");
        for (index, (sector, sums)) in bytes.chunks_exact_mut(SECTOR).zip(self.sums.chunks_exact(SUMS)).enumerate() {
            let (entries, checksum) = sector.split_at_mut(SECTOR - 4);
            for (entry, sum) in entries.chunks_exact_mut(4).zip(sums) {
                entry.copy_from_slice(&sum.0.to_le_bytes());
            }
            let is_known = sums.iter().any(|&sum| sum != Sum::UNKNOWN);
            let crc = if is_known { tag.sector(number, index, entries) } else { 0 };
            checksum.copy_from_slice(&crc.to_le_bytes());
        }
    }

    /// The checksum at a place in the page.
    #[must_use]
    pub fn sum(&self, index: usize) -> Sum {
        self.sums[index]
    }

    /// Changes it.
    pub fn set(&mut self, index: usize, sum: Sum) {
        self.sums[index] = sum;
    }
}

fn u32_of(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(member: u8) -> Tag {
        Tag::new(Uuid::from_bytes([9; 16]), Uuid::from_bytes([member; 16]))
    }

    fn content(seed: usize) -> Vec<u8> {
        (0..BLOCK_BYTES)
            .map(|index| u8::try_from((index * 7 + seed * 13 + index / 251) % 256).expect("a byte"))
            .collect()
    }

    #[test]
    fn a_sum_is_the_crc_of_the_tag_the_place_and_the_content() {
        let bytes = [&[9; 16][..], &[2; 16], &5_u64.to_le_bytes(), &content(1)].concat();
        assert_eq!(tag(2).sum(BlockNumber(5), &content(1)), Sum(crc32fast::hash(&bytes)));
    }

    #[test]
    fn content_of_another_place_member_or_array_does_not_agree() {
        let sum = tag(1).sum(BlockNumber(70_000), &content(3));
        assert!(sum.agrees(tag(1).sum(BlockNumber(70_000), &content(3))));
        for other in [0, 1, 69_999, 70_001, 70_000 + (1 << 31)] {
            assert!(!sum.agrees(tag(1).sum(BlockNumber(other), &content(3))), "block {other}");
        }
        assert!(!sum.agrees(tag(2).sum(BlockNumber(70_000), &content(3))));
        let other = Tag::new(Uuid::from_bytes([8; 16]), Uuid::from_bytes([1; 16]));
        assert!(!sum.agrees(other.sum(BlockNumber(70_000), &content(3))));
        for byte in 0..BLOCK_BYTES {
            let mut content = content(3);
            content[byte] ^= 0x40;
            assert!(!sum.agrees(tag(1).sum(BlockNumber(70_000), &content)), "byte {byte}");
        }
        assert!(Sum::UNKNOWN.agrees(sum), "what is not known is not checked");
        assert!(!Sum::LOST.agrees(sum), "what was lost is not taken for right");
    }

    #[test]
    fn pages_are_what_they_were_and_damage_is_seen_sector_by_sector() {
        let mut page = Page::unknown();
        let mut bytes = vec![0xEE; PAGE_BYTES];
        page.encode(&tag(1), PageNumber(3), &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == 0), "what knows nothing is zeros");
        for index in (0..SUMS_IN_PAGE).filter(|index| index % 5 != 0 && index / SUMS != 6) {
            page.set(index, tag(1).sum(BlockNumber((3 * SUMS_IN_PAGE + index) as u64), &content(index)));
        }
        page.encode(&tag(1), PageNumber(3), &mut bytes);
        assert_eq!(Page::decode(&tag(1), PageNumber(3), &bytes), (page.clone(), 0));
        // All sectors but the seventh, which knows nothing.
        let mut lost = Page::lost();
        (6 * SUMS..7 * SUMS).for_each(|index| lost.set(index, Sum::UNKNOWN));
        assert_eq!(Page::decode(&tag(1), PageNumber(4), &bytes), (lost.clone(), 7), "of another place");
        assert_eq!(Page::decode(&tag(2), PageNumber(3), &bytes), (lost, 7), "of another member");
        for byte in 0..PAGE_BYTES {
            let mut damaged = bytes.clone();
            damaged[byte] ^= 1;
            let (found, count) = Page::decode(&tag(1), PageNumber(3), &damaged);
            let known = |index: usize| if index / SUMS == byte / SECTOR { Sum::LOST } else { page.sum(index) };
            assert_eq!(count, 1, "byte {byte}");
            assert!((0..SUMS_IN_PAGE).all(|index| found.sum(index) == known(index)), "byte {byte}");
        }
    }

    #[test]
    fn every_block_has_a_place_of_its_own() {
        assert_eq!(BlockNumber(0).place(), (PageNumber(0), 0));
        assert_eq!(BlockNumber(1015).place(), (PageNumber(0), 1015));
        assert_eq!(BlockNumber(1016).place(), (PageNumber(1), 0));
    }
}
