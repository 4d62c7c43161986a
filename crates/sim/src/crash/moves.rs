//! Bytes between operations' memory and members' content.

use uraid_io::disk::{DiskOp, log_at};
use uraid_io::format::superblock::LogIndex;
use uraid_layout::{Bytes, MemberIndex};

use crate::image::{Image, SECTOR, Sector};

/// Where what a disk has at a place is among members; behind them are log devices, if any, the first one at `logs`.
pub(crate) fn seat(place: MemberIndex, logs: Option<MemberIndex>) -> MemberIndex {
    match (logs, log_at(place)) {
        (Some(first), Some(LogIndex(log))) => MemberIndex(first.0 + log),
        _ => place,
    }
}

/// Does a read: fills its memory.
pub(crate) fn fill(op: &mut DiskOp, image: &Image) {
    let mut at = op.offset.0;
    let mut bytes = [0; 8 * SECTOR];
    for segment in &mut op.segments {
        let len = segment.len();
        let part = if let Some(part) = bytes.get_mut(..len) { part } else { &mut vec![0; len][..] };
        image.read(Bytes(at), part);
        segment.copy_from(part);
        at += len as u64;
    }
}

/// The sectors that a write brings, with the byte offsets where they go.
///
/// # Panics
/// When its memory is not of whole sectors.
pub(crate) fn for_each_sector(op: &DiskOp, mut each: impl FnMut(Bytes, &Sector)) {
    let mut at = op.offset.0;
    for segment in &op.segments {
        let (sectors, rest) = segment.bytes().as_chunks();
        assert!(rest.is_empty(), "whole sectors are written");
        for sector in sectors {
            each(Bytes(at), sector);
            at += SECTOR as u64;
        }
    }
}
