//! The copies on a member: writing them in the order that survives a torn write, and finding the one that counts.

use uraid_layout::{Bytes, SECTOR_BYTES};

use super::{HEAD_STEP, SUPERBLOCK_BYTES, Superblock, SuperblockError, decode, encode, positions};
use crate::buf::Buf;
use crate::error::Error;
use crate::member::Member;

/// Writes a superblock to its slot at the head and to the tail, and makes it durable; blocks.
///
/// # Errors
/// When the member fails; then the version before is still in the other slot.
///
/// # Panics
/// When the superblock is unsound, is not of a member of this size, or the member is open for reading only.
pub fn store(member: &Member, superblock: &Superblock) -> Result<(), Error> {
    assert_eq!(superblock.areas.member_size, member.size(), "a superblock is written to its own member");
    let mut buf = Buf::zeroed(Bytes(SUPERBLOCK_BYTES as u64));
    buf.as_mut().copy_from_slice(&encode(superblock));
    for position in superblock.write_positions() {
        member.write_at(position, &buf)?;
    }
    Ok(member.sync()?)
}

/// Overwrites with zeros what other formats, or another array, have at both ends of a member: the first MiB, and everything
/// from the tail on. Durable when it returns; blocks.
///
/// # Errors
/// When the member fails.
///
/// # Panics
/// When the member is open for reading only, or smaller than [`MEMBER_MIN`](super::MEMBER_MIN).
pub fn erase(member: &Member) -> Result<(), Error> {
    let size = member.size().0;
    let [.., tail] = positions(member.size()).expect("a member is not below the smallest size");
    // What is beyond the last whole sector can't be written directly, and holds no signature.
    let step = member.alignment().offset.0.max(SECTOR_BYTES);
    for (start, end) in [(0, size.min(HEAD_STEP.0)), (tail.0, size)] {
        let zeros = Buf::zeroed(Bytes((end - start) / step * step));
        member.write_at(Bytes(start), &zeros)?;
    }
    Ok(member.sync()?)
}

/// Reads the superblock that counts; blocks.
///
/// # Errors
/// When the member can't be read, or as [`newest`].
pub fn load(member: &Member) -> Result<Superblock, Error> {
    let no_superblock = |source| Error::Superblock { path: member.path().into(), source };
    let Some(positions) = positions(member.size()) else { return Err(no_superblock(SuperblockError::NoMagic)) };
    let mut copies = Vec::with_capacity(positions.len());
    for position in positions {
        copies.push(decode(&member.peek(position, Bytes(SUPERBLOCK_BYTES as u64))?));
    }
    newest(copies).map_err(no_superblock)
}

/// The copy that counts: of the sound ones, the one with the highest epoch, then the highest sequence.
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
        if newest.as_ref().is_none_or(|newest| (newest.epoch, newest.sequence) < (copy.epoch, copy.sequence)) {
            newest = Some(copy);
        }
    }
    newest.ok_or(damage)
}
