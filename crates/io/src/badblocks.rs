//! The list of bad blocks on an open member. Everything here blocks; the bytes are
//! [`format::badblocks`](crate::format::badblocks)'s.

use crate::format::BLOCK;
use crate::format::badblocks::{BadBlocks, COPY_BYTES, Damaged, Found};
use crate::format::superblock::Superblock;
use crate::member::Member;

/// Reads the list of a member with that superblock; one of its copies may be unreadable.
///
/// # Errors
/// [`Damaged`].
pub fn load(member: &Member, own: &Superblock) -> Result<BadBlocks, Damaged> {
    let blocks = own.areas.data_sectors().0 / BLOCK.0;
    let copy = |copy| match member.peek(own.areas.bad_blocks_copy(copy), COPY_BYTES) {
        Ok(bytes) => BadBlocks::decode(&bytes, own.member, blocks),
        Err(_) => Found::Damaged,
    };
    BadBlocks::newest([copy(0), copy(1)])
}
