//! The copies on a member: where a new member has none yet, and which of those that are there counts.

use uraid_layout::Bytes;

use super::areas::{Area, HEAD_STEP, SUPERBLOCK_BYTES, places};
use super::content::{Superblock, SuperblockError};
use crate::format::owner::{OWNER_AT, OWNER_BYTES};

/// What a new member of this size gets zeros in: first where the superblocks are, so that a former array does without
/// the member before it loses anything else; then, when that is durable, the first MiB and everything from the tail on,
/// where other formats have what they are known by. What is left after the last whole `step` can't be written directly,
/// and holds no signature. The [owner's mark](crate::format::owner) is somebody's who may be using the member.
///
/// # Panics
/// When the size is below [`MEMBER_MIN`](super::areas::MEMBER_MIN).
#[must_use]
pub(crate) fn erased(size: Bytes, step: Bytes) -> [Vec<Area>; 2] {
    let places @ [.., tail] = places(size).expect("a member is not below the smallest size");
    let copies = places.map(|offset| Area { offset, size: Bytes(SUPERBLOCK_BYTES as u64) });
    let last = Area { offset: tail, size: Bytes((size.0 - tail.0) / step.0 * step.0) };
    let until_mark = Area { offset: Bytes(0), size: OWNER_AT };
    let after = Bytes(OWNER_AT.0 + OWNER_BYTES as u64);
    let after_mark = Area { offset: after, size: Bytes(HEAD_STEP.0 - after.0) };
    [copies.into(), vec![until_mark, after_mark, last]]
}

/// The copy that counts beside some that can't be read; none where one of those may be newer. Each version is written
/// to two of the three places: with one unreadable and the others sound, the newest one that anything relies on is
/// among these.
pub(crate) fn newest_beside(
    unreadable: usize,
    copies: Vec<Result<Superblock, SuperblockError>>,
) -> Result<Option<Superblock>, SuperblockError> {
    let is_damaged = |copy: &Result<_, _>| matches!(copy, Err(SuperblockError::BadChecksum { .. }));
    let is_certain = unreadable <= 1 && !copies.iter().any(is_damaged) || planted!(LoneCopyCounts);
    match newest(copies) {
        Ok(superblock) => Ok(is_certain.then_some(superblock)),
        Err(SuperblockError::NoMagic | SuperblockError::BadChecksum { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The copy that counts: of the sound ones, the one with the highest epoch, then the highest revision.
///
/// # Errors
/// When a copy was written whole by a program that this one does not understand, as it may be the newest; when copies
/// belong to different arrays or members; when none is sound.
pub fn newest(
    copies: impl IntoIterator<Item = Result<Superblock, SuperblockError>>,
) -> Result<Superblock, SuperblockError> {
    let mut newest: Option<Superblock> = None;
    let mut damage = SuperblockError::NoMagic;
    for copy in copies {
        let copy = match copy {
            Ok(copy) => copy,
            // Never written, or erased: says nothing of the others.
            Err(SuperblockError::NoMagic) => continue,
            Err(error @ SuperblockError::BadChecksum { .. }) => {
                damage = error;
                continue;
            }
            Err(error) => return Err(error),
        };
        if let Some(other) = &newest
            && (other.array, other.member) != (copy.array, copy.member)
        {
            return Err(SuperblockError::Mixed { first: other.array, second: copy.array });
        }
        if newest.as_ref().is_none_or(|newest| (newest.epoch, newest.revision) < (copy.epoch, copy.revision)) {
            newest = Some(copy);
        }
    }
    newest.ok_or(damage)
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;
    use crate::format::superblock::Revision;

    /// What is found where version 8 was the last to be written, and by whom it may be judged.
    #[test]
    fn one_unreadable_copy_is_done_without_and_two_are_not() {
        let version = |revision| Ok(Superblock { revision: Revision(revision), ..sample() });
        let torn = || Err(SuperblockError::BadChecksum { expected: 1, found: 2 });
        let blank = || Err(SuperblockError::NoMagic);
        let cases = [
            ("the newest slot", 1, vec![version(7), version(8)], Some(8)),
            ("the older slot", 1, vec![version(8), version(8)], Some(8)),
            ("the tail", 1, vec![version(8), version(7)], Some(8)),
            ("the tail of a new member", 1, vec![version(0), blank()], Some(0)),
            ("the newest slot, and the tail is torn", 1, vec![version(7), torn()], None),
            ("the newest slot and the tail", 2, vec![version(7)], None),
            ("the tail, and nothing is anywhere else", 1, vec![blank(), blank()], None),
            ("everything", 3, vec![], None),
        ];
        for (what, unreadable, copies, expected) in cases {
            let found = newest_beside(unreadable, copies).expect("nothing that is not understood");
            assert_eq!(found.map(|found| found.revision.0), expected, "unreadable: {what}");
        }
    }

    #[test]
    fn copies_of_two_arrays_are_refused_beside_an_unreadable_one() {
        let other = Superblock { array: uuid::Uuid::from_bytes([9; 16]), ..sample() };
        let found = newest_beside(1, vec![Ok(sample()), Ok(other)]);
        assert!(matches!(found, Err(SuperblockError::Mixed { .. })), "{found:?}");
    }
}
