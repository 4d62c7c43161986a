//! Content that is safe while it is written over its own places: in the second half of the members' areas for logs,
//! which no log uses meanwhile.
//!
//! The content is cut into pieces, and each piece is on consecutive members: on one more than there are that can be
//! lost in a row while both shapes survive that. Each copy says whose it is and is checked, so whatever a cut leaves of
//! one is no copy, nor is what an earlier save left: each save has a number, which is on record.
//!
//! A piece with its header, in bytes:
//!
//! | offset | size | field |
//! |---:|---:|---|
//! | 0 | 8 | magic |
//! | 8 | 4 | CRC32 of the header with zeros here |
//! | 12 | 4 | CRC32 of the content |
//! | 16 | 16 | the array's UUID |
//! | 32 | 8 + 8 | the window: its first sector, and its length in sectors |
//! | 48 | 8 | the piece's number |
//! | 56 | 8 | the save's number |
//! | 64 | 256 | a bit for each sector of the content, the lowest of each byte first: nobody has it |
//! | 4096 | | the content, a multiple of 4096; behind the window's end zeros |

use std::ops::Range;

use smallvec::smallvec;
use uraid_layout::repair::Repair;
use uraid_layout::reshape::{Course, Pace};
use uraid_layout::{Bytes, Lba, MemberIndex, SECTOR_BYTES, Sectors};
use uuid::Uuid;

use super::error::ReshapeError;
use super::lacking::{Content, add};
use super::members::Members;
use crate::array::blocking::perform;
use crate::buf::{Buf, Lease};
use crate::disk::{Disk, DiskOp, OpKind};
use crate::format::superblock::Superblock;
use crate::lost::clip;

const MAGIC: [u8; 8] = *b"\x8dUSAVE\r\n";
const HEADER: usize = 4096;

/// Where the bits of lost sectors are, and how long: for those of the longest piece.
const LOST: usize = 64;
const LOST_BYTES: usize = (PIECE_MAX / SECTOR_BYTES / 8) as usize;

/// The longest piece: what a member reads and writes at once.
const PIECE_MAX: u64 = 1 << 20;

/// What moves at once, at most, and on all members together.
const STEP: Bytes = Bytes(16 << 20);
const STEP_ON_MEMBERS: Bytes = Bytes(64 << 20);

/// Which save it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whose {
    pub(crate) array: Uuid,
    pub(crate) save: u64,
}

/// How a window is spread over the members.
struct Spread {
    slots: u64,
    copies: u64,
    /// The length of a piece's content.
    piece: u64,
    pieces: u64,
}

impl Spread {
    fn new(Copies { slots, each: copies }: Copies, window: Bytes) -> Self {
        let piece = window.0.div_ceil(slots).next_multiple_of(HEADER as u64).min(PIECE_MAX);
        Self { slots, copies, piece, pieces: window.0.div_ceil(piece) }
    }

    /// Where the copies of a piece are: the members, and the offsets in their areas for logs.
    fn places(&self, piece: u64) -> impl Iterator<Item = (MemberIndex, Bytes)> + '_ {
        (0..self.copies).map(move |copy| {
            // Each copy has a round of its own over all members, one further than the one before.
            let slot = (piece + copy) % self.slots;
            let index = piece / self.slots * self.copies + copy;
            (MemberIndex(u8::try_from(slot).expect("slots are few")), Bytes(index * (HEADER as u64 + self.piece)))
        })
    }

    /// What it takes of each member.
    fn room(&self) -> Bytes {
        Bytes(self.pieces.div_ceil(self.slots) * self.copies * (HEADER as u64 + self.piece))
    }
}

/// On how many members, of how many, each piece is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copies {
    slots: u64,
    each: u64,
}

impl Copies {
    /// What the reshape needs; it takes some time to find out.
    pub(crate) fn of(course: &Course) -> Self {
        let slots = course.from().members().max(course.to().members()) as u64;
        Self { slots, each: copies(course) }
    }
}

/// How many members have each piece. They are consecutive, so all of them are lost only with a row as long as that,
/// and it is longer than any that both shapes survive to lose. Members that only one of both has count for that one
/// alone, and mirrors survive more than what they always survive.
fn copies(course: &Course) -> u64 {
    let slots = course.from().members().max(course.to().members());
    let is_survived = |first: usize, len: usize| {
        let row = (first..first + len).map(|slot| MemberIndex(u8::try_from(slot % slots).expect("slots are few")));
        let lost = row.collect();
        [course.from(), course.to()].into_iter().all(|shape| Repair::new(shape, lost).is_ok())
    };
    let longest = (1..slots).take_while(|&len| (0..slots).any(|first| is_survived(first, len))).last();
    if planted!(ReshapeSavedOnce) { 1 } else { longest.unwrap_or(0) as u64 + 1 }
}

/// How much moves at once, where so much of each member's area for the log can be used; none where a window that has to
/// be saved does not fit.
pub(crate) fn pace(course: &Course, copies: Copies, room: Bytes) -> Option<Pace> {
    let unit = course.unit().bytes().0;
    let on_members = |shape: &uraid_layout::Geometry| {
        let stripe = shape.stripe_sectors().0;
        (shape.rows() as u64 * shape.chunk().0 * shape.members() as u64).div_ceil(stripe)
    };
    let most = on_members(course.from()).max(on_members(course.to()));
    let step = (STEP.0.min(STEP_ON_MEMBERS.0 / most) / unit).max(1);
    let fits = |units: &u64| Spread::new(copies, Bytes(units * unit)).room() <= room;
    let halves = std::iter::successors(Some(step), |&units| (units > 1).then_some(units / 2));
    let saved = halves.into_iter().find(fits)?;
    let sectors = |units: u64| Sectors(units * course.unit().0);
    Some(Pace { plain: sectors(step), saved: sectors(saved) })
}

/// How much of each member's area for the log there is.
pub(crate) fn room<'a>(superblocks: impl Iterator<Item = &'a Superblock>) -> Bytes {
    superblocks.map(|own| own.saves().size).min().unwrap_or_default()
}

/// Saves content; not durable yet.
///
/// # Errors
/// When a member fails that can't be done without.
pub(super) fn write<D: Disk>(
    members: &mut Members<D>,
    copies: Copies,
    whose: Whose,
    window: &Range<Lba>,
    content: &Content,
) -> Result<(), ReshapeError> {
    let pieces = pieces(copies, whose, window, content);
    members.write(Superblock::saves, pieces.into_iter().map(|(member, at, lease)| (member, at, smallvec![lease])))
}

/// What is written to save content: to whom, where in what it has for that, and what.
pub(crate) fn pieces(
    copies: Copies,
    whose: Whose,
    window: &Range<Lba>,
    content: &Content,
) -> Vec<(MemberIndex, Bytes, Lease)> {
    let spread = Spread::new(copies, Bytes(content.bytes.len() as u64));
    let mut writes = Vec::new();
    for number in 0..spread.pieces {
        let piece = encode(&spread, number, whose, window, content);
        writes.extend(spread.places(number).map(|(member, at)| (member, at, piece.lease_read(0..piece.len()))));
    }
    writes
}

/// The content that was saved.
///
/// # Errors
/// [`ReshapeError::SavedLost`] where no member has some piece of it.
pub(super) fn read<D: Disk>(
    members: &mut Members<D>,
    copies: Copies,
    window: &Range<Lba>,
) -> Result<Content, ReshapeError> {
    let len = Sectors(window.end.0 - window.start.0).bytes();
    let spread = Spread::new(copies, len);
    let whose = Whose { array: members.any().array, save: members.reshape().save };
    let mut content = Content { bytes: Buf::zeroed(len), lost: Vec::new() };
    for number in 0..spread.pieces {
        let start = usize::try_from(number * spread.piece).expect("a window fits the address space");
        let mut found = None;
        for (member, at) in spread.places(number) {
            let Some(own) = members.own()[member.index()].as_ref() else { continue };
            let mut piece = Buf::zeroed(Bytes(HEADER as u64 + spread.piece));
            let (offset, size) = (Bytes(own.saves().offset.0 + at.0), piece.len());
            let segments = smallvec![piece.lease_write(0..size)];
            // Who can't give it may have a copy elsewhere.
            let read = [DiskOp { tag: 0, member, kind: OpKind::Read, offset, segments }];
            if perform(&mut members.disk, read).is_ok() && is_right(piece.as_ref(), number, whose, window) {
                found = Some(piece);
                break;
            }
        }
        let piece = found.ok_or(ReshapeError::SavedLost { lba: Lba(window.start.0 + start as u64 / 512) })?;
        let target = &mut content.bytes.as_mut()[start..];
        let size = target.len().min(piece.len() - HEADER);
        target[..size].copy_from_slice(&piece.as_ref()[HEADER..HEADER + size]);
        let first = window.start.0 + start as u64 / SECTOR_BYTES;
        for lba in lost_sectors(piece.as_ref()).map(|sector| first + sector) {
            add(&mut content.lost, Lba(lba)..Lba(lba + 1));
        }
    }
    Ok(content)
}

/// What nobody has of a window that is saved, as far as what is saved can be read: ascending. `read` gives so many
/// bytes of what a member has for that, from an offset on.
pub(super) fn lost_of_saved(
    truth: &Superblock,
    read: impl Fn(MemberIndex, Bytes, usize) -> Option<Vec<u8>>,
) -> Vec<Range<Lba>> {
    let window = truth.course().zip(truth.reshape).and_then(|(course, reshape)| {
        let window = course.ahead(reshape.mark, course.heading(reshape.is_back), reshape.saved)?;
        (!window.is_empty()).then(|| (Copies::of(&course), window, Whose { array: truth.array, save: reshape.save }))
    });
    let Some((copies, window, whose)) = window else { return Vec::new() };
    let spread = Spread::new(copies, Sectors(window.end.0 - window.start.0).bytes());
    let size = HEADER + usize::try_from(spread.piece).expect("a piece is small");
    let mut lost = Vec::new();
    for number in 0..spread.pieces {
        let mut pieces = spread.places(number).filter_map(|(member, at)| read(member, at, size));
        let Some(piece) = pieces.find(|piece| is_right(piece, number, whose, &window)) else { continue };
        let first = window.start.0 + number * spread.piece / SECTOR_BYTES;
        lost_sectors(&piece).for_each(|sector| add(&mut lost, Lba(first + sector)..Lba(first + sector + 1)));
    }
    lost
}

fn encode(spread: &Spread, number: u64, whose: Whose, window: &Range<Lba>, content: &Content) -> Buf {
    let bytes = content.bytes.as_ref();
    let mut piece = Buf::zeroed(Bytes(HEADER as u64 + spread.piece));
    let start = usize::try_from(number * spread.piece).expect("a window fits the address space");
    let (header, target) = piece.as_mut().split_at_mut(HEADER);
    let source = &bytes[start..bytes.len().min(start + target.len())];
    target[..source.len()].copy_from_slice(source);
    header[0..8].copy_from_slice(&MAGIC);
    header[12..16].copy_from_slice(&crc32fast::hash(target).to_le_bytes());
    header[16..64].copy_from_slice(&identity(number, whose, window));
    let first = window.start.0 + start as u64 / SECTOR_BYTES;
    let held = Lba(first)..Lba(first + source.len() as u64 / SECTOR_BYTES);
    for lba in clip(&content.lost, &held).into_iter().flat_map(|range| range.start.0..range.end.0) {
        let sector = usize::try_from(lba - first).expect("a piece is small");
        header[LOST + sector / 8] |= if planted!(LostUnsaved) { 0 } else { 1 << (sector % 8) };
    }
    let checksum = crc32fast::hash(header);
    header[8..12].copy_from_slice(&checksum.to_le_bytes());
    piece
}

/// The sectors of a piece's content that nobody has.
fn lost_sectors(piece: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let bits = (0..8 * LOST_BYTES).filter(|bit| piece[LOST + bit / 8] >> (bit % 8) & 1 == 1);
    bits.map(|bit| bit as u64)
}

/// Whether this is that piece, whole.
fn is_right(piece: &[u8], number: u64, whose: Whose, content: &Range<Lba>) -> bool {
    let (header, held) = piece.split_at(HEADER);
    let mut unsealed = header.to_vec();
    unsealed[8..12].fill(0);
    header[0..8] == MAGIC
        && header[8..12] == crc32fast::hash(&unsealed).to_le_bytes()
        && header[12..16] == crc32fast::hash(held).to_le_bytes()
        && header[16..64] == identity(number, whose, content)
}

/// What tells a piece from others: the header's bytes from 16 on.
fn identity(number: u64, whose: Whose, content: &Range<Lba>) -> [u8; 48] {
    let mut bytes = [0; 48];
    bytes[..16].copy_from_slice(whose.array.as_bytes());
    let numbers = [content.start.0, content.end.0 - content.start.0, number, whose.save];
    for (at, field) in bytes[16..].chunks_exact_mut(8).zip(numbers) {
        at.copy_from_slice(&field.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use uraid_layout::{Level, Placement, Rotation, Spec};

    use super::*;

    #[test]
    fn the_copies_of_a_piece_are_on_different_members_and_apart() {
        let rm2 = Level::Rm2 { height: 3, placement: Placement::Adjacent };
        let spec = |level, members| Spec { level, members, chunk: Bytes(4096), member_size: Sectors(9000) };
        let raid5 = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        for (from, to, lost) in [
            (spec(raid5, 3), spec(raid5, 4), 1),
            (spec(Level::Raid1, 3), spec(rm2, 7), 2),
            (spec(rm2, 7), spec(Level::Raid0, 8), 0),
            // Who leaves, or joins, may be lost beside others.
            (spec(rm2, 7), spec(Level::Raid0, 5), 2),
            (spec(raid5, 3), spec(rm2, 7), 2),
            // Mirrors survive neighbours of two pairs.
            (spec(Level::Raid10 { copies: 2 }, 6), spec(Level::Raid10 { copies: 2 }, 6), 2),
        ] {
            let course = Course::new(from, to, Sectors(4096)).unwrap();
            for window in [4096, 24 << 10, 5 << 20, 32 << 20] {
                let spread = Spread::new(Copies::of(&course), Bytes(window));
                assert!(spread.pieces * spread.piece >= window && spread.piece <= PIECE_MAX);
                let mut all = Vec::new();
                for piece in 0..spread.pieces {
                    let places: Vec<_> = spread.places(piece).collect();
                    let mut members: Vec<_> = places.iter().map(|&(member, _)| member).collect();
                    members.dedup();
                    assert_eq!(members.len(), lost + 1, "piece {piece} of {window} bytes");
                    all.extend(places);
                }
                let room = spread.room();
                assert!(all.iter().all(|(_, at)| at.0 + 4096 + spread.piece <= room.0), "{window} bytes");
                let count = all.len();
                all.sort();
                all.dedup();
                assert_eq!(all.len(), count, "{window} bytes: no place has two pieces");
            }
        }
    }
}
