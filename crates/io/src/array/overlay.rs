//! What the log has and the members do not, for an array that is not to be written.

use std::collections::BTreeMap;
use std::rc::Rc;

use uraid_layout::{DiskSector, MemberIndex, SECTOR_BYTES, Sectors};

use crate::format::badblocks::BadBlocks;

/// Content that is durable in the log and not in place.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    /// By member: by first sector, pieces that do not overlap.
    members: Vec<BTreeMap<DiskSector, Piece>>,
}

/// Sectors in a row.
#[derive(Clone, Debug)]
struct Piece {
    len: Sectors,
    /// Bytes, and where in them the piece's begin; none for zeros, which take no memory however many they are.
    bytes: Option<(Rc<[u8]>, usize)>,
}

impl Overlay {
    /// Nothing, over so many members.
    pub(super) fn new(members: usize) -> Self {
        Self { members: vec![BTreeMap::new(); members] }
    }

    /// Puts content over `len` sectors of a member from `sector` on; none for zeros. What is put there later counts.
    pub(super) fn put(&mut self, member: MemberIndex, sector: DiskSector, len: Sectors, bytes: Option<&[u8]>) {
        let pieces = &mut self.members[member.index()];
        let end = DiskSector(sector.0 + len.0);
        cut(pieces, sector);
        cut(pieces, end);
        let covered: Vec<DiskSector> = pieces.range(sector..end).map(|(&at, _)| at).collect();
        covered.iter().for_each(|at| drop(pieces.remove(at)));
        pieces.insert(sector, Piece { len, bytes: bytes.map(|bytes| (bytes.into(), 0)) });
    }

    /// Puts the log's content over what was read of a member from `sector` on.
    pub(crate) fn apply(&self, member: MemberIndex, sector: DiskSector, bytes: &mut [u8]) {
        let len = Sectors(bytes.len() as u64 / SECTOR_BYTES);
        for (at, piece) in self.meeting(member, sector, len) {
            let (start, end) = (at.0.max(sector.0), (at.0 + piece.len.0).min(sector.0 + len.0));
            let target = &mut bytes[offset(start - sector.0)..offset(end - sector.0)];
            match &piece.bytes {
                Some((bytes, from)) => target.copy_from_slice(&bytes[from + offset(start - at.0)..][..target.len()]),
                None => target.fill(0),
            }
        }
    }

    /// Whether it has anything of the `len` sectors of a member from `sector` on.
    pub(crate) fn touches(&self, member: MemberIndex, sector: DiskSector, len: Sectors) -> bool {
        self.meeting(member, sector, len).next().is_some()
    }

    /// Takes out of the members' lists of bad blocks what it has.
    pub(super) fn cover(&self, lists: &mut [BadBlocks]) {
        for (list, pieces) in lists.iter_mut().zip(&self.members) {
            for (at, piece) in pieces {
                list.remove(*at..DiskSector(at.0 + piece.len.0));
            }
        }
    }

    /// Whether it covers anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.iter().all(BTreeMap::is_empty)
    }

    /// The pieces that have some of these sectors.
    fn meeting(
        &self,
        member: MemberIndex,
        sector: DiskSector,
        len: Sectors,
    ) -> impl Iterator<Item = (DiskSector, &Piece)> {
        let pieces = self.members.get(member.index()).into_iter();
        pieces.flat_map(move |pieces| {
            let before = pieces.range(..sector).next_back().filter(|(at, piece)| at.0 + piece.len.0 > sector.0);
            let others = pieces.range(sector..DiskSector(sector.0 + len.0));
            before.into_iter().chain(others).map(|(&at, piece)| (at, piece))
        })
    }
}

/// Makes no piece go over the begin of `sector`.
fn cut(pieces: &mut BTreeMap<DiskSector, Piece>, sector: DiskSector) {
    let Some((&at, piece)) = pieces.range_mut(..sector).next_back() else { return };
    let Some(rest) = (at.0 + piece.len.0).checked_sub(sector.0).filter(|&rest| rest > 0) else { return };
    let first = Sectors(piece.len.0 - rest);
    let bytes = piece.bytes.as_ref().map(|(bytes, from)| (Rc::clone(bytes), from + offset(first.0)));
    piece.len = first;
    pieces.insert(sector, Piece { len: Sectors(rest), bytes });
}

/// How many bytes so many sectors have.
fn offset(sectors: u64) -> usize {
    usize::try_from(Sectors(sectors).bytes().0).expect("content fits the address space")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MEMBER: MemberIndex = MemberIndex(1);
    const SECTOR: usize = 512;

    #[test]
    fn zeros_of_a_whole_member_are_one_piece() {
        let mut overlay = Overlay::new(2);
        overlay.put(MEMBER, DiskSector(3), Sectors(1 << 40), None);
        overlay.put(MEMBER, DiskSector(100), Sectors(1), Some(&[7; SECTOR]));
        assert_eq!(overlay.members[1].len(), 3, "what is before it, itself, and what is behind it");
        let mut bytes = [1; 2 * SECTOR];
        overlay.apply(MEMBER, DiskSector(100), &mut bytes);
        assert!(bytes[..SECTOR] == [7; SECTOR] && bytes[SECTOR..] == [0; SECTOR]);
        assert!(
            !overlay.touches(MEMBER, DiskSector(0), Sectors(3)) && overlay.touches(MEMBER, DiskSector(0), Sectors(4))
        );
        assert!(!overlay.touches(MemberIndex(0), DiskSector(0), Sectors(1 << 40)));
    }

    proptest! {
        /// Against an array of sectors, each with what was last put there.
        #[test]
        fn what_was_put_last_counts(puts in proptest::collection::vec((0..40_u64, 1..12_u64, any::<Option<u8>>()),
            0..30), reads in proptest::collection::vec((0..48_u64, 1..12_u64), 1..10)) {
            let mut overlay = Overlay::new(2);
            let mut plain = [None::<u8>; 64];
            for (at, len, value) in puts {
                let bytes = value.map(|value| vec![value; offset(len)]);
                overlay.put(MEMBER, DiskSector(at), Sectors(len), bytes.as_deref());
                (at..at + len).for_each(|sector| plain[sector as usize] = Some(value.unwrap_or(0)));
            }
            for (at, len) in reads {
                let mut bytes = vec![0xee; offset(len)];
                overlay.apply(MEMBER, DiskSector(at), &mut bytes);
                let expected = (at..at + len).flat_map(|sector| [plain[sector as usize].unwrap_or(0xee); SECTOR]);
                prop_assert!(bytes.iter().copied().eq(expected));
                let is_touched = (at..at + len).any(|sector| plain[sector as usize].is_some());
                prop_assert_eq!(overlay.touches(MEMBER, DiskSector(at), Sectors(len)), is_touched);
            }
        }
    }
}
