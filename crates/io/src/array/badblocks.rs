//! The members' lists of bad blocks while no engine has them: reading them when the array is opened, and writing those
//! that change before there is one; blocking, over any [`Disk`].

use smallvec::smallvec;

use super::blocking::{flush, perform, run};
use super::error::RecoverError;
use super::losses::Losses;
use crate::Error;
use crate::buf::Buf;
use crate::disk::{Disk, DiskError, DiskOp, OpKind};
use crate::format::BLOCK;
use crate::format::badblocks::{BadBlocks, Damaged, Found};
use crate::format::superblock::Superblock;
use crate::member::Access;

/// What becomes of a member that the array can't do without, and whose list is damaged in both of its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostList {
    /// The array is refused.
    Refused,
    /// The member is taken to have everything: where it lacked content it gives anything.
    Trusted,
}

/// The members' lists, by slot. A member whose list is damaged in both of its copies is given up: nobody knows what it
/// lacks. One that the array can't do without is taken as `lost_list` says.
///
/// # Errors
/// [`RecoverError::ListLost`].
pub(super) fn read_lists(
    disk: &mut impl Disk,
    superblocks: &[Option<Superblock>],
    losses: &mut Losses,
    access: Access,
    lost_list: LostList,
) -> Result<Vec<BadBlocks>, RecoverError> {
    let mut lists = vec![BadBlocks::default(); superblocks.len()];
    for own in superblocks.iter().flatten().filter(|_| !planted!(BadBlocksUnread)) {
        let copies = [read_copy(disk, own, 0)?, read_copy(disk, own, 1)?];
        match BadBlocks::newest(copies) {
            Ok(list) => lists[own.slot.index()] = list,
            Err(Damaged) if losses.needs(own.slot) && lost_list == LostList::Trusted => {
                tracing::error!(
                    "{}: its list of bad blocks is lost, and it is taken to have everything: what it lacked reads as \
                     anything",
                    losses.path(own.slot).display()
                );
                // Otherwise the next opening would have to be told again.
                if access == Access::ReadWrite
                    && let Err(error) = write_list(disk, own, &mut lists[own.slot.index()])
                {
                    losses.give_up(error)?;
                }
            }
            Err(Damaged) => {
                losses.check_list(own.slot)?;
                let op = read(own, 0, &mut Buf::zeroed(BLOCK.bytes())).info();
                losses.give_up(DiskError::Damaged { op, what: "list of bad blocks, as does its other copy" }.into())?;
            }
        }
    }
    Ok(lists)
}

/// Reads a copy: its first block, and then, if it is longer, all of it.
fn read_copy(disk: &mut impl Disk, own: &Superblock, copy: usize) -> Result<Found, Error> {
    let blocks = own.areas.data_sectors().0 / BLOCK.0;
    let mut size = BLOCK.bytes();
    loop {
        let mut buf = Buf::zeroed(size);
        let op = read(own, copy, &mut buf);
        if let Some(error) = run(disk, [op])?.into_iter().next() {
            return if matches!(error, DiskError::TimedOut { .. }) { Err(error.into()) } else { Ok(Found::Damaged) };
        }
        match BadBlocks::decode(buf.as_ref(), own.member, blocks) {
            Found::Short(needed) => size = needed,
            found => return Ok(found),
        }
    }
}

fn read(own: &Superblock, copy: usize, buf: &mut Buf) -> DiskOp {
    let (offset, len) = (own.areas.bad_blocks_copy(copy), buf.len());
    DiskOp { tag: 0, member: own.slot, kind: OpKind::Read, offset, segments: smallvec![buf.lease_write(0..len)] }
}

/// Writes a member's list, durably, after all that was written to the member before.
///
/// # Errors
/// When the member fails.
pub(super) fn write_list(disk: &mut impl Disk, own: &Superblock, list: &mut BadBlocks) -> Result<(), Error> {
    let bytes = list.encode_next(own.member);
    // The other copy is durable before one is overwritten.
    for copy in 0..2 {
        perform(disk, [flush(own.slot)])?;
        let offset = own.areas.bad_blocks_copy(copy);
        let segments = smallvec![bytes.lease_read(0..bytes.len())];
        perform(disk, [DiskOp { tag: 0, member: own.slot, kind: OpKind::Write, offset, segments }])?;
    }
    perform(disk, [flush(own.slot)])
}
