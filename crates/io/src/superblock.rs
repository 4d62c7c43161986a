//! The superblock on an open member: writing it in the order that survives a torn write, finding the copy that counts,
//! erasing all of them. Everything here blocks; the bytes are [`format::superblock`](crate::format::superblock)'s.

use uraid_layout::{Bytes, SECTOR_BYTES};

use crate::buf::Buf;
use crate::error::Error;
use crate::format::owner::{OWNER_AT, OWNER_BYTES};
use crate::format::superblock::{
    SUPERBLOCK_BYTES, Superblock, SuperblockError, decode, encode, erased, newest, newest_beside, places,
};
use crate::member::{Member, MemberError};

/// Writes a superblock to its slot at the head and to the last copy, and makes it durable; blocks.
///
/// # Errors
/// When the member fails; then the version before is still in the other slot.
///
/// # Panics
/// When the superblock is unsound, is of a member that is larger than this one, or the member is open for reading only.
pub fn store(member: &Member, superblock: &Superblock) -> Result<(), Error> {
    // One that was enlarged has its last copy where it ended before.
    assert!(superblock.areas.member_size <= member.size(), "a superblock is written to its own member");
    let buf = Buf::of(&encode(superblock));
    for position in superblock.write_positions() {
        member.write_at(position, &buf)?;
    }
    // One flush for both copies: until it is over, the version before is whole in the other slot.
    Ok(member.sync()?)
}

/// Overwrites what a torn write left in the slot that the next version goes to, if anything, with this one, which
/// counts: a next write that is torn in the other half could make the two whole together. Durable when it returns;
/// blocks.
///
/// # Errors
/// When the member fails.
///
/// # Panics
/// When the superblock is unsound, or the member is open for reading only.
pub fn mend_other(member: &Member, superblock: &Superblock) -> Result<(), Error> {
    let position = superblock.other_position();
    let copy = member.peek(position, Bytes(SUPERBLOCK_BYTES as u64)).map(|copy| decode(&copy));
    if matches!(copy, Ok(Ok(_) | Err(SuperblockError::NoMagic))) {
        return Ok(());
    }
    member.write_at(position, &Buf::of(&encode(superblock)))?;
    Ok(member.sync()?)
}

/// Overwrites with zeros what other formats, or another array, have at both ends of a member, see [`erased`], and the
/// mark of an owner. Durable when it returns; blocks.
///
/// # Errors
/// When the member fails.
///
/// # Panics
/// When the member is open for reading only, or smaller than [`MEMBER_MIN`](crate::format::superblock::MEMBER_MIN).
pub fn erase(member: &Member) -> Result<(), Error> {
    let step = Bytes(member.alignment().offset.0.max(SECTOR_BYTES));
    // The superblocks go first, durably: a member that is half erased is none.
    for areas in erased(member.size(), step) {
        for area in areas {
            member.write_at(area.offset, &Buf::zeroed(area.size))?;
        }
        member.sync()?;
    }
    member.write_at(OWNER_AT, &Buf::zeroed(Bytes(OWNER_BYTES as u64)))?;
    Ok(member.sync()?)
}

/// Checks that no copy of the superblock, wherever one can be, says that the member is being converted; blocks.
///
/// # Errors
/// What the first of those says; or the member can't be read.
pub(crate) fn check_not_converting(member: &Member) -> Result<(), Error> {
    match converting(member)?.pop() {
        Some((_, source)) => Err(Error::Superblock { path: member.path().into(), source }),
        None => Ok(()),
    }
}

/// Takes away what a conversion left that was cut off, and nothing else. Durable when it returns; blocks.
///
/// # Errors
/// When the member fails.
///
/// # Panics
/// When the member is open for reading only.
pub fn erase_conversion(member: &Member) -> Result<(), Error> {
    for (position, _) in converting(member)? {
        member.write_at(position, &Buf::zeroed(Bytes(SUPERBLOCK_BYTES as u64)))?;
    }
    Ok(member.sync()?)
}

/// Where a superblock says that the member is being converted, and what it says. At the tail only if none is in its
/// place in the head: otherwise the tail is within the data.
fn converting(member: &Member) -> Result<Vec<(Bytes, SuperblockError)>, Error> {
    let Some([even, _, inner, tail]) = places(member.size()) else { return Ok(Vec::new()) };
    let says = |position| -> Result<_, Error> {
        let copy = decode(&member.peek(position, Bytes(SUPERBLOCK_BYTES as u64))?);
        Ok(copy
            .err()
            .filter(|error| matches!(error, SuperblockError::Converting { .. }))
            .map(|error| (position, error)))
    };
    let last = match says(inner)? {
        None => says(tail)?,
        in_head => in_head,
    };
    Ok(says(even)?.into_iter().chain(last).collect())
}

/// Reads the superblock that counts; blocks. One of its three copies may be unreadable: each version is in two of them.
/// What the head says decides where the last one is; if it says nothing, it is looked for in both places.
///
/// # Errors
/// When the member can't be read, or as [`newest`].
pub fn load(member: &Member) -> Result<Superblock, Error> {
    let no_superblock = |source| Error::Superblock { path: member.path().into(), source };
    let Some(places) = places(member.size()) else { return Err(no_superblock(SuperblockError::NoMagic)) };
    let read = |position| Ok(decode(&member.peek(position, Bytes(SUPERBLOCK_BYTES as u64))?));
    let mut found = Vec::from(places.map(read));
    let in_head = found[..3].iter().filter_map(|copy: &Result<_, MemberError>| copy.as_ref().ok()?.as_ref().ok());
    if let Some(newest) = in_head.max_by_key(|own| (own.epoch, own.revision)) {
        let [.., inner, _] = places;
        drop(found.remove(if newest.areas.copies().contains(&inner) { 3 } else { 2 }));
    }
    let (copies, unreadable): (Vec<_>, Vec<_>) = found.into_iter().partition(Result::is_ok);
    let copies: Vec<_> = copies.into_iter().flatten().collect();
    let count = unreadable.len();
    let first: Option<MemberError> = unreadable.into_iter().find_map(Result::err);
    let Some(error) = first else { return newest(copies).map_err(no_superblock) };
    match newest_beside(count, copies).map_err(no_superblock)? {
        Some(superblock) => {
            tracing::warn!("a copy of the superblock can't be read, so the other copies count: {error}");
            Ok(superblock)
        }
        None => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
