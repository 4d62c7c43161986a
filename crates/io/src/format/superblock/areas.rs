//! Where things are on a member: superblocks, intent bitmap, list of bad blocks, log ring, data.

use uraid_layout::{Bytes, Sectors};

use super::settings::Integrity;
use crate::format::BLOCK;
use crate::format::badblocks::{self, BLOCKS_MAX};

/// The size of an encoded superblock.
pub const SUPERBLOCK_BYTES: usize = 4096;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The head area is a multiple of this, so that data starts where devices like it.
pub(crate) const HEAD_STEP: Bytes = Bytes(MIB);

/// The smallest file or device that can be a member: a head and room for something.
pub const MEMBER_MIN: Bytes = Bytes(4 * MIB);

/// The two slots at the head: far enough apart to share no physical block, and where no partition table or common file
/// system has a signature.
const HEAD_SLOTS: [Bytes; 2] = [Bytes(16 * KIB), Bytes(48 * KIB)];

/// Where the third copy is if the data reach over its place at the tail.
const INNER_COPY: Bytes = Bytes(28 * KIB);

/// What is left free at the end, after the superblock's copy: a backup partition table that some tool writes there does
/// not destroy it.
pub(crate) const TAIL_BYTES: u64 = 64 * KIB;

const BITMAP_START: u64 = 64 * KIB;
/// Where the map of blank regions begins in the bitmap's area: the write-intent bitmap is shorter.
const MAP_START: u64 = 32 * KIB;
const BAD_BLOCKS_START: u64 = 256 * KIB;
const LOG_START: u64 = 512 * KIB;
const LOG_EXTRA_MAX: u64 = 512 * MIB;

/// What [`Areas::log_min`] has room for: a few parity stripes, and what the log says of them.
const LOG_STRIPES: u64 = 4;
const LOG_HEADERS: u64 = 64 * KIB;

/// Blocks whose checksums share a sector, beside the sector's own.
pub const SUMS_IN_SECTOR: u64 = 127;

/// A range of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Where it starts.
    pub offset: Bytes,
    /// How long it is.
    pub size: Bytes,
}

/// Where things are on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Areas {
    /// The member's own size when it became one, which says where the copy at the tail is.
    pub member_size: Bytes,
    /// The write-intent bitmap, and the map of blank regions.
    pub bitmap: Area,
    /// The two copies of the list of bad blocks.
    pub bad_blocks: Area,
    /// The log ring.
    pub log: Area,
    /// The checksums of the data area's blocks; empty without [`Integrity::Crc32`].
    pub sums: Area,
    /// What the array's geometry addresses.
    pub data: Area,
}

impl Area {
    /// The first byte after the area; `None` beyond 64 bits.
    #[must_use]
    pub fn end(self) -> Option<Bytes> {
        self.offset.0.checked_add(self.size.0).map(Bytes)
    }
}

impl Areas {
    /// The areas of a new member of the given size, with a log of at least `log`; `None` when the member is below
    /// [`MEMBER_MIN`], or nothing is left for data.
    #[must_use]
    pub fn new(member_size: Bytes, log: Bytes, integrity: Integrity) -> Option<Self> {
        let [.., tail] = positions(member_size)?;
        let log_end = log.0.checked_add(LOG_START)?.checked_next_multiple_of(MIB)?;
        let room = tail.0.checked_sub(log_end)?;
        let sums = match integrity {
            Integrity::None => 0,
            Integrity::Crc32 => {
                (room / BLOCK.bytes().0).div_ceil(SUMS_IN_SECTOR).next_multiple_of(8) * uraid_layout::SECTOR_BYTES
            }
        };
        let data = (log_end + sums).next_multiple_of(MIB);
        (data < tail.0).then(|| Self {
            member_size,
            bitmap: between(BITMAP_START, BAD_BLOCKS_START),
            bad_blocks: between(BAD_BLOCKS_START, LOG_START),
            log: between(LOG_START, log_end),
            sums: between(log_end, log_end + sums),
            data: between(data, tail.0),
        })
    }

    /// The areas of a member of the given size whose data are in place already: from `data` on, at least to `end`. The
    /// log has all that the head leaves it. `None` when the head has no room there, or the data are not at a place that
    /// they can have.
    #[must_use]
    pub(crate) fn around(member_size: Bytes, data: Bytes, end: Bytes) -> Option<Self> {
        let [.., tail] = positions(member_size)?;
        let has_room = data.0 >= HEAD_STEP.0 && data.0.is_multiple_of(HEAD_STEP.0) && data < end && end <= member_size;
        has_room.then(|| Self {
            member_size,
            bitmap: between(BITMAP_START, BAD_BLOCKS_START),
            bad_blocks: between(BAD_BLOCKS_START, LOG_START),
            log: between(LOG_START, data.0),
            sums: between(data.0, data.0),
            data: between(data.0, end.max(tail).0),
        })
    }

    /// Where the three copies of the superblock are: the slots for even and for odd revisions; and the tail, or a place
    /// in the head if the data reach over that.
    ///
    /// # Panics
    /// When the member is below [`MEMBER_MIN`].
    #[must_use]
    pub fn copies(&self) -> [Bytes; 3] {
        let [even, odd, tail] = positions(self.member_size).expect("a member has room for its superblocks");
        [even, odd, if self.data.end().is_some_and(|end| end <= tail) { tail } else { INNER_COPY }]
    }

    /// How large the log of a member is unless somebody wants another: 1/16 of the member, at most 512 MiB, beside what
    /// is left of the first MiB.
    #[must_use]
    pub fn default_log(member_size: Bytes) -> Bytes {
        Bytes(MIB - LOG_START + (member_size.0 / 16).min(LOG_EXTRA_MAX) / MIB * MIB)
    }

    /// The smallest log that can be used where a parity stripe takes `stripe` of each member.
    #[must_use]
    pub(crate) fn log_min(stripe: Bytes) -> Bytes {
        Bytes(stripe.0.saturating_mul(LOG_STRIPES).saturating_add(LOG_HEADERS))
    }

    /// The areas of the member when it has grown to this size: the data reaches to the new tail, and checksums have
    /// what is left before the data. As they are if it has not grown, or not by enough for a tail.
    #[must_use]
    pub(crate) fn grown(self, member_size: Bytes, has_sums: bool) -> Self {
        let end = self.data.end().unwrap_or(Bytes(u64::MAX));
        let has_grown = |&[.., tail]: &[Bytes; 3]| member_size >= self.member_size && tail >= end;
        let Some([.., tail]) = positions(member_size).filter(has_grown) else { return self };
        let sums = if has_sums { Bytes(self.data.offset.0 - self.sums.offset.0) } else { self.sums.size };
        Self {
            member_size,
            sums: Area { size: sums, ..self.sums },
            data: Area { size: Bytes(tail.0 - self.data.offset.0), ..self.data },
            ..self
        }
    }

    /// Where a copy of the list of bad blocks is: the first or the second.
    pub(crate) fn bad_blocks_copy(&self, copy: usize) -> Bytes {
        Bytes(self.bad_blocks.offset.0 + copy as u64 * badblocks::COPY_BYTES.0)
    }

    /// Where the map of blank regions is.
    pub(crate) fn blank_map(&self) -> Bytes {
        Bytes(self.bitmap.offset.0 + MAP_START)
    }

    /// Whether there is room for such a map of so many bytes.
    pub(super) fn has_room_for_map(&self, size: Bytes) -> bool {
        self.bitmap.size.0 >= MAP_START + size.0
    }

    /// How much data there can be checksums for.
    pub(crate) fn summed(&self) -> Bytes {
        Bytes(self.sums.size.whole_sectors().0.saturating_mul(SUMS_IN_SECTOR).saturating_mul(BLOCK.bytes().0))
    }

    /// How many sectors of data the member has that the array can use: where blocks have checksums, only those for
    /// which there is room.
    pub(crate) fn usable_sectors(&self, integrity: Integrity) -> Sectors {
        match integrity {
            Integrity::None => self.data_sectors(),
            Integrity::Crc32 => self.data_sectors().min(self.summed().whole_sectors()),
        }
    }

    /// How many sectors of data the member has.
    #[must_use]
    pub fn data_sectors(&self) -> Sectors {
        self.data.size.whole_sectors()
    }

    /// Whether there is a checksum for every block of so many sectors of data.
    pub(super) fn sums_cover(&self, used: Sectors) -> bool {
        used.bytes().0.div_ceil(BLOCK.bytes().0) <= self.summed().0 / BLOCK.bytes().0
    }

    /// Whether the areas are aligned, in order, apart from each other and from the superblocks, and hold `used`
    /// sectors.
    pub(super) fn are_sound(&self, used: Sectors) -> bool {
        if self.member_size < MEMBER_MIN {
            return false;
        }
        let [_, last_slot, last_copy] = self.copies();
        let end_max = if last_copy == INNER_COPY { self.member_size } else { last_copy };
        let page = SUPERBLOCK_BYTES as u64;
        let mut free_from = Bytes(last_slot.0 + page);
        for area in [self.bitmap, self.bad_blocks, self.log, self.sums, self.data] {
            let is_aligned = area.offset.0.is_multiple_of(page) && area.size.0.is_multiple_of(page);
            let Some(end) = area.end() else { return false };
            if !is_aligned || area.offset < free_from || end > end_max {
                return false;
            }
            free_from = end;
        }
        let is_listed = self.bad_blocks.size == Bytes(2 * badblocks::COPY_BYTES.0) && used.0 / BLOCK.0 < BLOCKS_MAX;
        is_listed && self.data.offset.0.is_multiple_of(HEAD_STEP.0) && used.0 <= self.data_sectors().0
    }
}

/// Where the superblock's copies are on a member of this size: the slots for even and for odd revisions, and the tail,
/// if the data leave room for that ([`Areas::copies`]). `None` when the member is below [`MEMBER_MIN`].
#[must_use]
pub fn positions(member_size: Bytes) -> Option<[Bytes; 3]> {
    let page = SUPERBLOCK_BYTES as u64;
    let tail = Bytes((member_size.0 / page * page).checked_sub(TAIL_BYTES)?);
    (member_size >= MEMBER_MIN).then_some([HEAD_SLOTS[0], HEAD_SLOTS[1], tail])
}

/// All places where a member of this size may have a copy: the two slots, the one in the head, and the tail. `None`
/// when it is below [`MEMBER_MIN`].
#[must_use]
pub(crate) fn places(member_size: Bytes) -> Option<[Bytes; 4]> {
    positions(member_size).map(|[even, odd, tail]| [even, odd, INNER_COPY, tail])
}

fn between(start: u64, end: u64) -> Area {
    Area { offset: Bytes(start), size: Bytes(end - start) }
}
