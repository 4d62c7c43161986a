//! Disk operations that are waited for: what an array does before it has an engine is one such step after the other.
//!
//! Over any [`Disk`]: how long a step may take is the disk's affair ([`wait`](super::wait)). It knows superblocks, and
//! nothing of arrays.

use smallvec::smallvec;
use uraid_layout::{Bytes, MemberIndex};

use crate::Error;
use crate::buf::Buf;
use crate::disk::{Completion, Disk, DiskError, DiskOp, OpKind, Segments};
use crate::format::superblock::{SUPERBLOCK_BYTES, Superblock, encode};

/// Runs operations and waits for all of them. A disk knows no order among operations in flight: what has to be on the
/// medium before something else is written and flushed in calls of their own.
///
/// # Errors
/// The first that failed.
pub(super) fn perform(disk: &mut impl Disk, ops: impl IntoIterator<Item = DiskOp>) -> Result<(), Error> {
    run(disk, ops)?.into_iter().next().map_or(Ok(()), |error| Err(error.into()))
}

/// Runs operations and waits for all of them: the errors, in the order in which they came.
///
/// # Errors
/// When the disk as a whole is broken.
pub(super) fn run(disk: &mut impl Disk, ops: impl IntoIterator<Item = DiskOp>) -> Result<Vec<DiskError>, Error> {
    Ok(run_all(disk, ops)?.into_iter().filter_map(|completion| completion.result.err()).collect())
}

/// The same: how each ended.
///
/// # Errors
/// As [`run`].
pub(super) fn run_all(disk: &mut impl Disk, ops: impl IntoIterator<Item = DiskOp>) -> Result<Vec<Completion>, Error> {
    let mut count = 0_usize;
    for op in ops {
        disk.submit(op);
        count += 1;
    }
    let mut completions = Vec::with_capacity(count);
    disk.kick()?;
    loop {
        disk.reap(&mut completions);
        if completions.len() == count {
            return Ok(completions);
        }
        let (left, in_flight) = (count - completions.len(), disk.in_flight());
        // A disk that is broken as a whole says so, and has nothing in flight any more.
        disk.wait()?;
        assert!(in_flight > 0, "{left} operations are neither under way nor over");
    }
}

pub(super) fn flush(member: MemberIndex) -> DiskOp {
    DiskOp { tag: 0, member, kind: OpKind::Flush, offset: Bytes(0), segments: Segments::new() }
}

/// Makes the next version of all superblocks durable.
///
/// # Errors
/// When a member fails.
pub(super) fn store_all<'a>(
    disk: &mut impl Disk,
    superblocks: impl IntoIterator<Item = &'a Superblock> + Clone,
) -> Result<(), Error> {
    perform(disk, superblocks.clone().into_iter().flat_map(superblock_writes))?;
    // One flush for both copies of a member: until it is over, the version before is whole in the other slot.
    perform(disk, superblocks.into_iter().map(|superblock| flush(superblock.slot)))
}

/// The writes of a superblock: of the copy at the head, and of the one at the tail.
pub(super) fn superblock_writes(superblock: &Superblock) -> [DiskOp; 2] {
    superblock.write_positions().map(|offset| superblock_write(superblock, offset))
}

/// The write of one copy of a superblock.
pub(super) fn superblock_write(superblock: &Superblock, offset: Bytes) -> DiskOp {
    let segments = smallvec![Buf::of(&encode(superblock)).lease_read(0..SUPERBLOCK_BYTES)];
    DiskOp { tag: 0, member: superblock.slot, kind: OpKind::Write, offset, segments }
}
