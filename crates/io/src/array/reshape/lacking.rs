//! Content that nobody has, when it moves: nobody has it in its new places either, and the members' lists of bad blocks
//! say so there.
//!
//! In its new places it is written as zeros, and is zeros in their parity, which is no content: data and parity of
//! these columns are absent there. So redundancy says nothing of what it might have been, nor of anything beside it
//! that is on a member which is missing. Lists have what is true of the shape in which content is; of places that hold
//! none they say anything, until something moves there.

use std::ops::Range;

use uraid_layout::{DiskSector, Geometry, Lba, MemberIndex, MemberSet, SECTOR_BYTES};

use super::moving::rows;
use crate::buf::Buf;
use crate::format::BLOCK;
use crate::format::badblocks::{BadBlocks, Full, Lack};
use crate::lost::{Piece, clip, lost, pieces};

/// Content that was read.
#[derive(Debug)]
pub(crate) struct Content {
    /// All of it; zeros where it is lost.
    pub(crate) bytes: Buf,
    /// What nobody has, as lists of bad blocks say: ascending.
    pub(crate) lost: Vec<Range<Lba>>,
}

/// Content that may be lost, block by block: a medium may give it after all.
pub(crate) fn in_blocks(lost: &[Range<Lba>]) -> impl Iterator<Item = Range<Lba>> + '_ {
    lost.iter().flat_map(|range| {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let block = at..Lba((at.0 / BLOCK.0 + 1) * BLOCK.0).min(range.end);
            at = block.end;
            (!block.is_empty()).then_some(block)
        })
    })
}

/// The rest of it, in pieces of at most so many sectors.
pub(crate) fn others<'a>(
    content: &Range<Lba>,
    lost: &'a [Range<Lba>],
    most: u64,
) -> impl Iterator<Item = Range<Lba>> + use<'a> {
    let (mut at, end) = (content.start, content.end);
    let mut lost = lost.iter().peekable();
    std::iter::from_fn(move || {
        while let Some(range) = lost.next_if(|range| range.start == at) {
            at = range.end;
        }
        let next = lost.peek().map_or(end, |range| range.start);
        let piece = at..next.min(Lba(at.0.saturating_add(most)));
        at = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Adds a part of content that nobody has, behind all others.
pub(crate) fn add(lost: &mut Vec<Range<Lba>>, part: Range<Lba>) {
    match lost.last_mut() {
        Some(last) if last.end == part.start => last.end = part.end,
        _ => lost.push(part),
    }
}

/// Takes what was read of content into what it is a part of.
pub(crate) fn put(bytes: &mut Buf, start: Lba, lba: Lba, read: &Buf) {
    let at = usize::try_from((lba.0 - start.0) * SECTOR_BYTES).expect("a window fits the address space");
    bytes.as_mut()[at..at + read.len()].copy_from_slice(read.as_ref());
}

/// What the members lack when content is in its places.
#[derive(Debug)]
pub(crate) struct Listed {
    /// By slot.
    pub(crate) lists: Vec<BadBlocks>,
    /// Where the first of what nobody has then is that somebody has had.
    pub(crate) more: Option<Lba>,
}

/// What nobody has of a part of the array's content, of whole parity stripes but for its end, without the `missing`
/// members: ascending.
pub(crate) fn lost_of(
    shape: &Geometry,
    missing: MemberSet,
    list: impl Fn(MemberIndex) -> BadBlocks,
    content: &Range<Lba>,
) -> Vec<Range<Lba>> {
    let rows = rows(shape, content);
    clip(&lost(shape, missing, &|member| list(member).part(&rows)), content)
}

/// The members' lists, by slot, when content is where `shape` has it, but for what of it is `lost`.
///
/// # Errors
/// [`Full`], and whose.
pub(crate) fn listed(
    shape: &Geometry,
    missing: MemberSet,
    mut lists: Vec<BadBlocks>,
    content: &Range<Lba>,
    lost: &[Range<Lba>],
) -> Result<Listed, (MemberIndex, Full)> {
    let rows = rows(shape, content);
    for list in lists.iter_mut().take(shape.members()) {
        list.remove(rows.clone());
    }
    for (member, sectors) in lost.iter().flat_map(|lost| places(shape, lost)).filter(|_| !planted!(LostMovedAsZeros)) {
        lists[member.index()].add(sectors, Lack::Absent).map_err(|full| (member, full))?;
    }
    let now = lost_of(shape, missing, |member| lists[member.index()].clone(), content);
    let is_more = |range: &Range<Lba>| (range.start.0..range.end.0).find(|lba| !holds(lost, Lba(*lba)));
    Ok(Listed { more: now.iter().find_map(is_more).map(Lba), lists })
}

fn holds(ranges: &[Range<Lba>], lba: Lba) -> bool {
    ranges.iter().any(|range| range.contains(&lba))
}

/// Where a range is on the members, and where all parity is that is of it.
fn places(shape: &Geometry, range: &Range<Lba>) -> Vec<(MemberIndex, Range<DiskSector>)> {
    let mut places = Vec::new();
    for Piece { stripe, cell, start, len } in pieces(shape, range.clone()) {
        let groups = shape.map(stripe).groups().iter().filter(|group| group.data.contains(&cell));
        let parity = groups.map(|group| group.parity).filter(|_| !planted!(LostMovedWithParity));
        places.extend(std::iter::once(cell).chain(parity).map(|cell| shape.columns(stripe, cell, start, len)));
    }
    places
}

#[cfg(test)]
mod tests {
    use uraid_layout::{Bytes, Level, Rotation, Sectors, Spec};

    use super::*;
    use crate::format::badblocks::ENTRIES_MAX;

    fn raid5() -> Geometry {
        let level = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        Geometry::new(Spec { level, members: 4, chunk: Bytes(4096), member_size: Sectors(1 << 20) }).unwrap()
    }

    fn sectors(start: u64, end: u64) -> Range<DiskSector> {
        DiskSector(start)..DiskSector(end)
    }

    /// The first stripe has its parity on member 3, and its data on 0, 1 and 2.
    #[test]
    fn what_is_lost_is_listed_with_its_parity_and_all_else_there_is_not() {
        let mut lists = vec![BadBlocks::default(); 4];
        lists[0].add(sectors(0, 16), Lack::Unread).unwrap();
        lists[2].add(sectors(4, 6), Lack::Absent).unwrap();
        let listed = listed(&raid5(), MemberSet::EMPTY, lists, &(Lba(0)..Lba(24)), &[Lba(9)..Lba(12)]).unwrap();
        assert_eq!(listed.more, None);
        let has = |list: &BadBlocks| {
            let runs = |lack| list.all(lack).map(|run| (run.start.0, run.end.0)).collect::<Vec<_>>();
            (runs(Lack::Absent), runs(Lack::Unread))
        };
        let found: Vec<_> = listed.lists.iter().map(has).collect();
        let none = || (vec![], vec![]);
        assert_eq!(found, [(vec![], vec![(8, 16)]), (vec![(1, 4)], vec![]), none(), (vec![(1, 4)], vec![])]);
    }

    #[test]
    fn content_of_a_missing_member_is_lost_beside_what_is() {
        let (none, missing) = (vec![BadBlocks::default(); 4], MemberSet::EMPTY.with(MemberIndex(2)));
        let listed = listed(&raid5(), missing, none, &(Lba(0)..Lba(24)), &[Lba(9)..Lba(12)]).unwrap();
        assert_eq!(listed.more, Some(Lba(17)), "member 2 has the sectors from 16 on");
    }

    #[test]
    fn a_list_without_room_says_so() {
        let mut lists = vec![BadBlocks::default(); 4];
        let first = 8;
        lists[3].add(sectors(first, first + ENTRIES_MAX as u64 * 8), Lack::Unread).unwrap();
        let full = listed(&raid5(), MemberSet::EMPTY, lists, &(Lba(0)..Lba(24)), &[Lba(9)..Lba(12)]).unwrap_err();
        assert_eq!(full, (MemberIndex(3), Full));
    }

    #[test]
    fn content_is_read_in_pieces_around_what_is_lost() {
        let of = |ranges: Vec<Range<Lba>>| ranges.iter().map(|range| (range.start.0, range.end.0)).collect::<Vec<_>>();
        let lost = [Lba(3)..Lba(4), Lba(4)..Lba(21), Lba(40)..Lba(48)];
        let others = others(&(Lba(0)..Lba(48)), &lost, 10).collect();
        assert_eq!(of(others), [(0, 3), (21, 31), (31, 40)]);
        assert_eq!(of(in_blocks(&lost).collect()), [(3, 4), (4, 8), (8, 16), (16, 21), (40, 48)]);
    }
}
