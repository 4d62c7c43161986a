//! Reading bitmaps when an array is opened: which regions may lack redundancy, and which are blank.

use smallvec::smallvec;
use uraid_layout::{Bytes, Geometry, MemberIndex};

use super::blocking::perform;
use crate::buf::Buf;
use crate::disk::{Disk, DiskOp, OpKind};
use crate::format::bitmap::{Bitmap, Regions, Seal};
use crate::format::superblock::{Consistency, SlotState, Superblock};

/// The bits that are set on any of the members, where the array has a write-intent bitmap or a log. What is clean and
/// whole needs none.
pub(super) fn read_bitmap(
    disk: &mut impl Disk,
    geometry: &Geometry,
    is_clean: bool,
    superblocks: &[Option<Superblock>],
) -> Option<Bitmap> {
    let present = || superblocks.iter().flatten();
    let any = present().next()?;
    let regions = Regions::new(geometry);
    // Between two shapes no region is where it was.
    let has_regions = any.reshape.is_none() && geometry.tolerance() > 0;
    let mut bitmap = (has_regions && any.consistency != Consistency::None).then(|| Bitmap::empty(regions))?;
    let is_whole = any.slots.iter().all(|entry| entry.state == SlotState::Active);
    let is_complete = is_whole && present().count() == geometry.members();
    if is_clean && (is_complete || planted!(BitsOfCleanForgotten)) {
        return Some(bitmap);
    }
    let Some(seal) = any.seal() else {
        // Up to now every member had everything; after an unclean stop one that is missing may lack what is in the log.
        let is_known = is_clean || is_complete || planted!(RedoneUnmarked);
        return Some(if is_known { bitmap } else { Bitmap::full(regions) });
    };
    for own in present() {
        let mut bytes = Buf::zeroed(regions.bitmap_bytes());
        let segments = smallvec![bytes.lease_write(0..bytes.len())];
        let (member, offset) = (own.slot, own.areas.bitmap.offset);
        match perform(disk, [DiskOp { tag: 0, member, kind: OpKind::Read, offset, segments }]) {
            Ok(()) if planted!(BitsUnread) => {}
            Ok(()) if planted!(BitsOfOneMember) => bitmap = Bitmap::decode(regions, seal, bytes.as_ref()),
            Ok(()) => bitmap.unite(&Bitmap::decode(regions, seal, bytes.as_ref())),
            Err(error) => {
                tracing::warn!(%member, %error, "the write-intent bitmap can't be read: all of it counts as set");
                return Some(Bitmap::full(regions));
            }
        }
    }
    Some(bitmap)
}

/// The map of blank regions, where the array has one. A bit that is set on any of the members is set; one that is being
/// rebuilt may have it as it was. Also whether any of it is damaged on all members, and counts as not blank for that.
pub(super) fn read_blank_map(disk: &mut impl Disk, superblocks: &[Option<Superblock>]) -> Option<(Bitmap, bool)> {
    let (seal, regions) = superblocks.iter().flatten().next()?.blank_map()?;
    let mut copies: Vec<Buf> = Vec::new();
    let is_whole = |own: &&Superblock| own.slots[own.slot.index()].state == SlotState::Active;
    for own in superblocks.iter().flatten().filter(is_whole) {
        let mut bytes = Buf::zeroed(regions.bitmap_bytes());
        let segments = smallvec![bytes.lease_write(0..bytes.len())];
        let (member, offset) = (own.slot, own.areas.blank_map());
        match perform(disk, [DiskOp { tag: 0, member, kind: OpKind::Read, offset, segments }]) {
            Ok(()) => copies.push(bytes),
            Err(error) => {
                tracing::warn!(%member, %error, "the map of blank regions can't be read: the other members' counts");
            }
        }
    }
    Some(Bitmap::of_copies(regions, seal, copies.iter().map(AsRef::as_ref)))
}

/// Writes of a bitmap to a place of a member.
pub(super) fn bitmap_writes(member: MemberIndex, start: Bytes, seal: Seal, bitmap: &Bitmap) -> Vec<DiskOp> {
    let write = |(at, bytes): (Bytes, Buf)| {
        let (offset, segments) = (Bytes(start.0 + at.0), smallvec![bytes.lease_read(0..bytes.len())]);
        DiskOp { tag: 0, member, kind: OpKind::Write, offset, segments }
    };
    bitmap.encode_all(seal, 0..bitmap.regions().blocks()).map(write).collect()
}
