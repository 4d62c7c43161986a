//! Bitmaps: a bit for each region of an array. In the write-intent bitmap it is set where redundancy may not agree; in
//! the map of a new array, where the region is not blank any more.
//!
//! The bits and their form on a member, described in `docs/on-disk-format.md`. A sector that can't be trusted, because
//! it is torn, damaged, of another array or was never written, stands for bits that are all set: there is never a
//! reason to lose one. When bits are set and cleared is the [`engine`](crate::engine)'s affair; nothing is read or
//! written here.

use std::ops::Range;

use uraid_layout::{Bytes, Geometry, StripeId};
use uuid::Uuid;

use super::BLOCK;
use super::units::Epoch;
use crate::buf::Buf;

/// The most regions: few enough that the whole bitmap is two blocks.
const REGIONS_MAX: u64 = 1 << 15;

/// The least content of a region: smaller ones would have to be marked more often than they would save.
const REGION_BYTES_MIN: Bytes = Bytes(1 << 20);

/// The same of the map of a new array. Whoever writes to a blank region waits until all of it is zeros, so regions are
/// many, and not so small that writing through the array means to wait all the time.
const BLANK_REGIONS_MAX: u64 = 1 << 20;
const BLANK_BYTES_MIN: Bytes = Bytes(4 << 20);

/// The most stripes of a region, as a power of two.
const SHIFT_MAX: u32 = 40;

/// A sector's bytes before its bits: checksum, sector's number, region size, nothing.
const HEADER: usize = 16;
const WORDS_IN_SECTOR: usize = (SECTOR - HEADER) / 8;
/// What a device writes whole or not at all: each has a checksum of its own, so that a torn block costs bits of one.
const SECTOR: usize = 512;
const SECTORS_IN_BLOCK: usize = 8;

/// One of the regions of an array, from 0 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u32);

/// How an array is divided: into regions of a power of two of parity stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regions {
    stripes: u64,
    /// Of the stripes of a region the binary logarithm.
    shift: u32,
}

/// What a bitmap on the members belongs to; what has another seal is not sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The array.
    pub array: Uuid,
    /// Since when not all members have everything, where bits are kept only while that is so; 0 where they always are.
    pub since: Epoch,
}

/// A bit for each region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitmap {
    regions: Regions,
    words: Vec<u64>,
}

impl RegionId {
    /// The region's place in a list of all.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Regions {
    /// The regions of an array: the smallest that make few enough of them and are not too small.
    #[must_use]
    pub fn new(geometry: &Geometry) -> Self {
        Self::smallest(geometry, REGION_BYTES_MIN, REGIONS_MAX)
    }

    /// The regions of a new array that are blank at first.
    #[must_use]
    pub fn of_blank(geometry: &Geometry) -> Self {
        Self::smallest(geometry, BLANK_BYTES_MIN, BLANK_REGIONS_MAX)
    }

    /// Regions of 2^`shift` parity stripes; none where they would be too many, or too large for any array.
    #[must_use]
    pub fn of_shift(geometry: &Geometry, shift: u32) -> Option<Self> {
        let regions = Self { stripes: geometry.stripes().0, shift };
        (shift <= SHIFT_MAX && regions.stripes.div_ceil(1 << shift) <= BLANK_REGIONS_MAX).then_some(regions)
    }

    fn smallest(geometry: &Geometry, content_min: Bytes, count_max: u64) -> Self {
        let stripes = geometry.stripes().0;
        let content = geometry.stripe_sectors().bytes().0;
        let least = content_min.0.div_ceil(content).max(stripes.div_ceil(count_max));
        Self { stripes, shift: least.next_power_of_two().ilog2() }
    }

    /// Of the parity stripes of a region the binary logarithm.
    #[must_use]
    pub fn shift(self) -> u32 {
        self.shift
    }

    /// How many there are.
    #[must_use]
    pub fn count(self) -> usize {
        usize::try_from(self.stripes.div_ceil(1 << self.shift)).expect("regions are few")
    }

    /// The region of a parity stripe.
    #[must_use]
    pub fn of(self, stripe: StripeId) -> RegionId {
        RegionId(u32::try_from(stripe.0 >> self.shift).expect("regions are few"))
    }

    /// The regions that some of the parity stripes in a range belong to; the range is not empty.
    pub(crate) fn of_all(self, stripes: &Range<u64>) -> Range<u32> {
        self.of(StripeId(stripes.start)).0..self.of(StripeId(stripes.end - 1)).0 + 1
    }

    /// The parity stripes of a region.
    #[must_use]
    pub fn stripes(self, region: RegionId) -> Range<StripeId> {
        let start = u64::from(region.0) << self.shift;
        let last = u64::from(planted!(RegionLacksLastStripe));
        StripeId(start)..StripeId(self.stripes.min(start + (1 << self.shift)) - last)
    }

    /// What a bitmap takes of a member: whole blocks.
    #[must_use]
    pub fn bitmap_bytes(self) -> Bytes {
        Bytes(self.blocks() as u64 * BLOCK.bytes().0)
    }

    /// The blocks of a bitmap.
    pub(crate) fn blocks(self) -> usize {
        self.words().div_ceil(WORDS_IN_SECTOR * SECTORS_IN_BLOCK)
    }

    /// The block that a region's bit is in.
    pub(crate) fn block(self, region: RegionId) -> usize {
        region.index() / 64 / (WORDS_IN_SECTOR * SECTORS_IN_BLOCK)
    }

    fn words(self) -> usize {
        self.count().div_ceil(64)
    }
}

impl Bitmap {
    /// No bit set.
    #[must_use]
    pub fn empty(regions: Regions) -> Self {
        Self { regions, words: vec![0; regions.words()] }
    }

    /// Every bit set.
    #[must_use]
    pub fn full(regions: Regions) -> Self {
        let mut bitmap = Self { regions, words: vec![u64::MAX; regions.words()] };
        bitmap.clip();
        bitmap
    }

    /// What its bits are for.
    #[must_use]
    pub fn regions(&self) -> Regions {
        self.regions
    }

    /// Whether a region's bit is set.
    #[must_use]
    pub fn contains(&self, region: RegionId) -> bool {
        self.words[region.index() / 64] >> (region.0 % 64) & 1 != 0
    }

    /// Sets a region's bit; true: it was not set.
    pub fn insert(&mut self, region: RegionId) -> bool {
        let is_new = !self.contains(region);
        self.words[region.index() / 64] |= 1 << (region.0 % 64);
        is_new
    }

    /// Clears a region's bit.
    pub fn remove(&mut self, region: RegionId) {
        self.words[region.index() / 64] &= !(1 << (region.0 % 64));
    }

    /// Sets every bit that is set in `other`, which is of the same array.
    pub fn unite(&mut self, other: &Self) {
        assert_eq!(self.regions, other.regions, "bitmaps of one array");
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
    }

    /// The regions whose bits are set, in order.
    pub fn iter(&self) -> impl Iterator<Item = RegionId> + '_ {
        (0..).zip(&self.words).flat_map(|(index, &word): (u32, _)| {
            let bits = std::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
            bits.take_while(|&word| word != 0).map(move |word: u64| RegionId(index * 64 + word.trailing_zeros()))
        })
    }

    /// The parity stripes among these that are in regions whose bits are set, as runs, in order.
    #[must_use]
    pub fn stripes_within(&self, stripes: Range<StripeId>) -> Vec<Range<StripeId>> {
        let mut runs: Vec<Range<StripeId>> = Vec::new();
        let mut at = stripes.start;
        while at < stripes.end {
            let region = self.regions.of(at);
            let end = self.regions.stripes(region).end.min(stripes.end);
            match runs.last_mut().filter(|last| last.end == at) {
                Some(last) if self.contains(region) => last.end = end,
                _ if self.contains(region) => runs.push(at..end),
                _ => {}
            }
            at = end;
        }
        runs
    }

    /// How many bits are set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether every bit is set.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() == self.regions.count()
    }

    /// Whether no bit is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// A block's bytes, as every member has them from [`BLOCK_BYTES`](crate::format::BLOCK_BYTES) times its number on
    /// in the bitmap's area.
    ///
    /// # Panics
    /// When the bitmap has no such block.
    #[must_use]
    pub fn encode(&self, seal: Seal, block: usize) -> Buf {
        assert!(block < self.regions.blocks(), "the bitmap has the block");
        let mut bytes = Buf::zeroed(BLOCK.bytes());
        let first = block * SECTORS_IN_BLOCK;
        let sectors = self.words.chunks(WORDS_IN_SECTOR).enumerate().skip(first);
        for ((index, words), sector) in sectors.zip(bytes.as_mut().chunks_exact_mut(SECTOR)) {
            sector[4..8].copy_from_slice(&u32::try_from(index).expect("sectors are few").to_le_bytes());
            sector[8..12].copy_from_slice(&self.regions.shift.to_le_bytes());
            let fields = sector[HEADER..].chunks_exact_mut(8);
            fields.zip(words).for_each(|(field, word)| field.copy_from_slice(&word.to_le_bytes()));
            let checksum = checksum(seal, sector);
            sector[..4].copy_from_slice(&checksum.to_le_bytes());
        }
        bytes
    }

    /// The bytes of these blocks, and where each begins in the bitmap's area.
    ///
    /// # Panics
    /// When the bitmap has no such block.
    pub(crate) fn encode_all(
        &self,
        seal: Seal,
        blocks: impl Iterator<Item = usize>,
    ) -> impl Iterator<Item = (Bytes, Buf)> {
        blocks.map(move |block| (Bytes(block as u64 * BLOCK.bytes().0), self.encode(seal, block)))
    }

    /// Reads a bitmap with a seal from the first bytes of its area, whatever they are: what is no sound sector of it
    /// has all bits set.
    #[must_use]
    pub fn decode(regions: Regions, seal: Seal, bytes: &[u8]) -> Self {
        Self::of_copies(regions, seal, [bytes]).0
    }

    /// The same from copies of which the newest, whichever it is, has all bits that any of them has: a sector has the
    /// bits of all sound copies of it, and all bits where none is sound. Also whether that is so of any.
    #[must_use]
    pub fn of_copies<'a>(regions: Regions, seal: Seal, copies: impl IntoIterator<Item = &'a [u8]>) -> (Self, bool) {
        let mut bitmap = Self::empty(regions);
        let mut is_known = vec![planted!(BitsDamagedAsClear); regions.words().div_ceil(WORDS_IN_SECTOR)];
        for bytes in copies {
            let sectors = bitmap.words.chunks_mut(WORDS_IN_SECTOR).zip(bytes.chunks_exact(SECTOR));
            for (((words, sector), is_known), index) in sectors.zip(&mut is_known).zip(0_u32..) {
                let is_sound = field(sector, 0) == checksum(seal, sector)
                    && field(sector, 4) == index
                    && field(sector, 8) == regions.shift;
                *is_known |= is_sound;
                for (word, field) in words.iter_mut().zip(sector[HEADER..].as_chunks().0).filter(|_| is_sound) {
                    *word |= u64::from_le_bytes(*field);
                }
            }
        }
        let is_damaged = is_known.contains(&false);
        for (words, _) in bitmap.words.chunks_mut(WORDS_IN_SECTOR).zip(is_known).filter(|(_, is_known)| !is_known) {
            words.fill(u64::MAX);
        }
        bitmap.clip();
        (bitmap, is_damaged)
    }

    /// Clears what is set beyond the last region.
    fn clip(&mut self) {
        let rest = self.regions.count() % 64;
        if let Some(last) = self.words.last_mut().filter(|_| rest > 0) {
            *last &= (1 << rest) - 1;
        }
    }
}

fn field(sector: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*sector[at..].first_chunk().expect("a sector is larger than its header"))
}

/// CRC32 over the seal and a sector without its checksum: a sector with another seal is not sound.
fn checksum(seal: Seal, sector: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(seal.array.as_bytes());
    crc.update(&seal.since.0.to_le_bytes());
    crc.update(&sector[4..]);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use uraid_layout::{Level, Rotation, Spec};

    const SEAL: Seal = Seal { array: Uuid::from_bytes([7; 16]), since: Epoch(0x0102) };

    fn regions(level: Level, members: u8, chunk: u64, member_bytes: u64) -> Regions {
        let member_size = Bytes(member_bytes).whole_sectors();
        let geometry = Geometry::new(Spec { level, members, chunk: Bytes(chunk), member_size }).expect("a geometry");
        let regions = Regions::new(&geometry);
        let content = geometry.stripe_sectors().bytes().0 << regions.shift;
        assert!(
            content >= 1 << 20 && regions.count() <= 32768,
            "{content} bytes a region, {} of them",
            regions.count()
        );
        // Half as large they would be too small or too many.
        let half = 1_u64 << regions.shift >> 1;
        let is_least = half == 0 || content / 2 < 1 << 20 || geometry.stripes().0.div_ceil(half) > 32768;
        assert!(is_least, "regions are larger than they have to be");
        assert!(regions.bitmap_bytes().0 <= 8192);
        let of_regions = (0..regions.count()).map(|region| RegionId(u32::try_from(region).expect("few")));
        let stripes: u64 = of_regions.map(|region| stripes(regions, region).count() as u64).sum();
        assert_eq!(stripes, geometry.stripes().0, "every stripe is in one region");
        regions
    }

    fn with(regions: Regions, set: impl IntoIterator<Item = u32>) -> Bitmap {
        let mut bitmap = Bitmap::empty(regions);
        for region in set {
            assert!(bitmap.insert(RegionId(region)), "each once");
        }
        bitmap
    }

    fn stripes(regions: Regions, region: RegionId) -> impl Iterator<Item = StripeId> {
        let stripes = regions.stripes(region);
        (stripes.start.0..stripes.end.0).map(StripeId)
    }

    /// Five thousand regions: more than a block has bits for would need an array of gigabytes.
    fn many() -> Regions {
        regions(Level::Raid1, 2, 65536, 5000 << 20)
    }

    #[test]
    fn regions_are_few_and_not_too_small() {
        let raid5 = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        assert_eq!(regions(Level::Raid1, 2, 4096, 8 << 20).count(), 8);
        assert_eq!(regions(Level::Raid1, 2, 4096, (8 << 20) + 4096).count(), 9, "the last may be short");
        assert_eq!(regions(raid5, 3, 1 << 20, 7 << 20).count(), 7, "a stripe is enough");
        assert_eq!(regions(raid5, 4, 65536, 3 << 30).shift, 3, "eight stripes of 192 KiB");
        assert_eq!(regions(Level::Raid1, 2, 65536, 32 << 30).count(), 32768);
        assert_eq!(regions(Level::Raid1, 2, 65536, (32 << 30) + 65536).count(), 16385);
        assert_eq!(regions(Level::Raid1, 2, 1 << 20, 64 << 40).count(), 32768);
    }

    #[test]
    fn a_region_has_the_stripes_that_say_so() {
        let regions = regions(Level::Raid1, 2, 4096, (3 << 20) + 4096);
        for region in (0..4).map(RegionId) {
            assert!(stripes(regions, region).all(|stripe| regions.of(stripe) == region));
        }
        assert_eq!(stripes(regions, RegionId(3)).collect::<Vec<_>>(), [StripeId(768)]);
        assert_eq!(regions.of_all(&(255..257)), 0..2);
        assert_eq!(regions.of_all(&(256..257)), 1..2);
    }

    #[test]
    fn bits_are_kept_apart() {
        let regions = many();
        let mut bitmap = Bitmap::empty(regions);
        assert!(bitmap.is_empty() && bitmap.iter().next().is_none());
        let set = [0, 1, 63, 64, 3967, 3968, 4999].map(RegionId);
        for region in set {
            assert!(bitmap.insert(region) && !bitmap.insert(region), "it is new once");
        }
        assert_eq!(bitmap.iter().collect::<Vec<_>>(), set);
        assert_eq!(bitmap.len(), 7);
        bitmap.remove(RegionId(64));
        bitmap.remove(RegionId(65));
        assert!(!bitmap.contains(RegionId(64)) && bitmap.contains(RegionId(63)) && bitmap.len() == 6);
        assert_eq!(Bitmap::full(regions).len(), 5000);
    }

    /// The bytes, written out.
    #[test]
    fn a_sector_is_laid_out_as_documented() {
        let regions = regions(Level::Raid1, 2, 4096, 66 << 20);
        let bitmap = with(regions, [0, 9, 65]);
        let block = bitmap.encode(SEAL, 0);
        let bytes = block.as_ref();
        assert_eq!(bytes[4..16], [0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0], "sector 0, 2^8 stripes, reserved");
        assert_eq!(bytes[16..32], [1, 2, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert!(bytes[32..].iter().all(|&byte| byte == 0));
        let crc = crc32fast::hash(&[&[7; 16], &[2, 1, 0, 0, 0, 0, 0, 0][..], &bytes[4..512]].concat());
        assert_eq!(bytes[..4], crc.to_le_bytes());
    }

    #[test]
    fn what_is_damaged_counts_as_set() {
        let regions = many();
        let bitmap = with(regions, [5, 4000]);
        let block = bitmap.encode(SEAL, 0);
        let bytes = block.as_ref().to_vec();
        assert_eq!(Bitmap::decode(regions, SEAL, &bytes), bitmap);
        let first: Vec<RegionId> = (0..3968).map(RegionId).collect();
        for at in 0..512 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            let set: Vec<RegionId> = Bitmap::decode(regions, SEAL, &damaged).iter().collect();
            assert!(set[..3968] == first && set[3968..] == [RegionId(4000)], "byte {at}: the other sector is sound");
        }
        let swapped = [&bytes[512..1024], &bytes[..512]].concat();
        for (bytes, what) in [(&swapped[..], "in the wrong place"), (&[0; 4096], "never written"), (&[], "not there")] {
            assert_eq!(Bitmap::decode(regions, SEAL, bytes), Bitmap::full(regions), "{what}");
        }
        let (other, later) = (Seal { array: Uuid::from_bytes([8; 16]), ..SEAL }, Seal { since: Epoch(0x0103), ..SEAL });
        assert_eq!(Bitmap::decode(regions, other, &bytes), Bitmap::full(regions), "of another array");
        assert_eq!(Bitmap::decode(regions, later, &bytes), Bitmap::full(regions), "of another time");
        let larger = self::regions(Level::Raid1, 2, 65536, 40000 << 20);
        assert_eq!(Bitmap::decode(larger, SEAL, &bytes), Bitmap::full(larger), "of other regions");
    }

    /// A sector of one copy, another of the other, bits of both; where neither is sound all are set.
    #[test]
    fn copies_make_up_for_each_other() {
        let regions = many();
        let encode = |set: &[u32]| with(regions, set.iter().copied()).encode(SEAL, 0).as_ref().to_vec();
        let (mut one, mut other) = (encode(&[5, 4000]), encode(&[6, 4001]));
        let copies = |one: &[u8], other: &[u8]| Bitmap::of_copies(regions, SEAL, [one, other]);
        assert_eq!(copies(&one, &other), (with(regions, [5, 6, 4000, 4001]), false));
        one[0] ^= 1;
        assert_eq!(copies(&one, &other), (with(regions, [6, 4000, 4001]), false));
        other[512] ^= 1;
        assert_eq!(copies(&one, &other), (with(regions, [6, 4000]), false));
        other[0] ^= 1;
        assert_eq!(copies(&one, &other), (with(regions, (0..3968).chain([4000])), true));
    }

    #[test]
    fn regions_of_a_new_array_are_many_and_of_a_shift_that_is_kept() {
        let geometry = |member_bytes: u64| {
            let member_size = Bytes(member_bytes).whole_sectors();
            Geometry::new(Spec { level: Level::Raid1, members: 2, chunk: Bytes(65536), member_size }).expect("valid")
        };
        let small = Regions::of_blank(&geometry(1 << 30));
        assert_eq!((small.count(), small.shift()), (256, 6), "4 MiB each");
        let large = Regions::of_blank(&geometry(64 << 40));
        assert_eq!((large.count(), large.shift(), large.bitmap_bytes()), (1 << 20, 10, Bytes(34 * 4096)));
        assert_eq!(Regions::of_shift(&geometry(2 << 30), 6).map(Regions::count), Some(512));
        assert_eq!(Regions::of_shift(&geometry(64 << 40), 9), None, "too many");
        assert_eq!(
            (Regions::of_shift(&geometry(1 << 30), 41), Regions::of_shift(&geometry(1 << 30), 64)),
            (None, None)
        );
    }

    #[test]
    fn a_large_bitmap_has_two_blocks() {
        let regions = regions(Level::Raid1, 2, 65536, 32 << 30);
        let bitmap = with(regions, (0..32768).step_by(37));
        assert_eq!((regions.blocks(), regions.bitmap_bytes()), (2, Bytes(8192)));
        assert_eq!((regions.block(RegionId(31743)), regions.block(RegionId(31744))), (0, 1));
        let bytes: Vec<u8> = (0..2).flat_map(|block| bitmap.encode(SEAL, block).as_ref().to_vec()).collect();
        assert_eq!(Bitmap::decode(regions, SEAL, &bytes), bitmap);
        let mut united = with(regions, [0, 1]);
        united.unite(&bitmap);
        assert_eq!((bitmap.len(), united.len()), (886, 887));
    }
}
