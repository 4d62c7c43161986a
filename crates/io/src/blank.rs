//! The map of blank regions on open members. Everything here blocks; the bytes are
//! [`format::bitmap`](crate::format::bitmap)'s.

use crate::format::bitmap::Bitmap;
use crate::format::superblock::{SlotState, Superblock};
use crate::member::Member;

/// The regions that are not blank, according to these members of one array, each with its superblock; none where
/// nothing is blank. What no member gives whole is not blank.
#[must_use]
pub fn load(members: &[(&Member, &Superblock)]) -> Option<Bitmap> {
    let (_, any) = members.first()?;
    let (seal, regions) = any.blank_map()?;
    // One that is being rebuilt may have the map as it was.
    let is_whole = |own: &Superblock| own.slots[own.slot.index()].state == SlotState::Active;
    let whole = members.iter().filter(|(_, own)| is_whole(own));
    let copies: Vec<Vec<u8>> =
        whole.filter_map(|(member, own)| member.peek(own.areas.blank_map(), regions.bitmap_bytes()).ok()).collect();
    Some(Bitmap::of_copies(regions, seal, copies.iter().map(Vec::as_slice)).0)
}
