//! Reading the write-intent bitmap when an array is opened: which regions may lack redundancy.

use smallvec::smallvec;
use uraid_layout::Geometry;

use super::blocking::perform;
use crate::buf::Buf;
use crate::disk::{Disk, DiskOp, OpKind};
use crate::format::bitmap::{Bitmap, Regions};
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
    let mut bitmap =
        (geometry.tolerance() > 0 && any.consistency != Consistency::None).then(|| Bitmap::empty(regions))?;
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
