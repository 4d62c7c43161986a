//! Content in the places that a shape has for it: whole parity stripes, with all of their parity.
//!
//! Nothing of what the members held there is read: so nothing of it counts.

use std::ops::Range;

use uraid_layout::stripe::Role;
use uraid_layout::{Bytes, DiskSector, Geometry, Lba, MemberIndex, SECTOR_BYTES, Sectors, StripeId};

use super::error::ReshapeError;
use super::members::Members;
use crate::buf::Buf;
use crate::disk::Disk;
use crate::xor::xor_into;

/// What a member gets: from which sector of its data area on.
pub(crate) struct Part {
    pub(crate) member: MemberIndex,
    pub(crate) sector: DiskSector,
    pub(crate) bytes: Buf,
}

impl Part {
    /// How much it is.
    pub(crate) fn sectors(&self) -> Sectors {
        Bytes(self.bytes.len() as u64).whole_sectors()
    }
}

/// Writes content where `shape` has it, and makes it durable.
///
/// # Errors
/// When a member fails that can't be done without.
pub(super) fn settle<D: Disk>(
    members: &mut Members<D>,
    shape: &Geometry,
    content: &Range<Lba>,
    bytes: &Buf,
) -> Result<(), ReshapeError> {
    let parts = parts(shape, content, bytes.as_ref());
    let write = |part: &Part| (part.member, Sectors(part.sector.0).bytes(), part.bytes.lease_read(0..part.bytes.len()));
    members.write(|own| own.areas.data, parts.iter().map(write))?;
    members.write_sums(parts.iter().map(|part| (part.member, part.sector, part.bytes.as_ref())))?;
    if planted!(ReshapeUnflushed) { Ok(()) } else { members.flush() }
}

/// What each member gets. A member's rows of consecutive parity stripes are next to each other. What is beyond the
/// content is zeros.
pub(crate) fn parts(shape: &Geometry, content: &Range<Lba>, bytes: &[u8]) -> Vec<Part> {
    let (chunk, rows) = (shape.chunk(), shape.rows() as u64);
    let stripe_sectors = shape.stripe_sectors().0;
    let stripes = content.start.0 / stripe_sectors..content.end.0.div_ceil(stripe_sectors);
    let first = stripes.start * rows * chunk.0;
    let end = (stripes.end * rows * chunk.0).min(shape.used_sectors().0);
    let size = usize::try_from(chunk.bytes().0).expect("a chunk is small");
    // Of a last stripe that is in part beyond the members, whole rows are worked on and not all are written.
    let len = usize::try_from((stripes.end - stripes.start) * rows).expect("a window fits the address space") * size;
    let mut images = vec![vec![0; len]; shape.members()];
    for stripe in stripes.clone() {
        let map = shape.map(StripeId(stripe));
        let from = usize::try_from((stripe - stripes.start) * rows).expect("a window fits the address space") * size;
        let place = |cell| {
            let start = from + shape.row(cell) * size;
            (shape.member(cell).index(), start..start + size)
        };
        for (unit, &cell) in (0..).zip(map.data()) {
            let at = (stripe * stripe_sectors + unit * chunk.0 - content.start.0) * SECTOR_BYTES;
            let at = usize::try_from(at).expect("a window fits the address space");
            let (member, place) = place(cell);
            let source = bytes.get(at..).unwrap_or_default();
            let source = &source[..source.len().min(size)];
            images[member][place][..source.len()].copy_from_slice(source);
        }
        for group in map.groups().iter().filter(|_| !planted!(ReshapeParityKept)) {
            let mut parity = vec![0; size];
            let sources: Vec<&[u8]> = group
                .data
                .iter()
                .map(|&cell| {
                    debug_assert!(matches!(map.role(cell), Role::Data(_)), "a group's data is data");
                    let (member, place) = place(cell);
                    &images[member][place]
                })
                .collect();
            xor_into(&mut parity, &sources);
            let (member, place) = place(group.parity);
            images[member][place].copy_from_slice(&parity);
        }
    }
    let used = Sectors(end - first).bytes();
    let part = |(member, image): (u8, Vec<u8>)| {
        let mut bytes = Buf::zeroed(used);
        let used = bytes.len();
        bytes.as_mut().copy_from_slice(&image[..used]);
        Part { member: MemberIndex(member), sector: DiskSector(first), bytes }
    };
    (0..).zip(images).map(part).collect()
}

#[cfg(test)]
mod tests {
    use uraid_layout::{Level, Placement, Rotation, Spec};

    use super::*;

    /// Every sector is where the geometry looks for it, and so is its parity.
    #[test]
    fn parts_are_what_the_geometry_says() {
        let levels = [
            (Level::Raid0, 3),
            (Level::Raid1, 3),
            (Level::Raid10 { copies: 2 }, 5),
            (Level::Raid5 { rotation: Rotation::LeftSymmetric }, 4),
            (Level::Rm2 { height: 3, placement: Placement::Adjacent }, 7),
        ];
        for (level, members) in levels {
            let member_size = Sectors(9 * 8);
            let shape = Geometry::new(Spec { level, members, chunk: Bytes(4096), member_size }).unwrap();
            let stripe = shape.stripe_sectors().0;
            let last = shape.capacity().0 - 3;
            for content in [Lba(0)..Lba(last), Lba(stripe)..Lba(last.min(2 * stripe))] {
                let byte = |lba: u64, at: usize| u8::try_from((lba * 7 + at as u64 / 64) % 251).unwrap();
                let bytes: Vec<u8> =
                    (content.start.0..content.end.0).flat_map(|lba| (0..512).map(move |at| byte(lba, at))).collect();
                let parts = parts(&shape, &content, &bytes);
                let held = |at: uraid_layout::Location| {
                    let part = &parts[at.member.index()];
                    let start = usize::try_from((at.sector.0 - part.sector.0) * 512).unwrap();
                    part.bytes.bytes(start..start + 512).to_vec()
                };
                for lba in (content.start.0..content.end.0).map(Lba) {
                    let start = usize::try_from((lba.0 - content.start.0) * 512).unwrap();
                    assert!(held(shape.locate(lba)) == bytes[start..start + 512], "{level} {lba}");
                    let (stripe, unit, offset) = shape.split(lba);
                    let map = shape.map(stripe);
                    for (&group, at) in map.groups_of(unit).iter().zip(shape.parity_of(lba)) {
                        let mut sum = held(at);
                        for &cell in map.group(group).data.iter().filter(|&&cell| shape.uses(stripe, cell)) {
                            let sector = DiskSector(shape.sector(stripe, cell).0 + offset.0);
                            let other = held(uraid_layout::Location { member: shape.member(cell), sector });
                            sum.iter_mut().zip(other).for_each(|(sum, byte)| *sum ^= byte);
                        }
                        assert!(sum.iter().all(|&byte| byte == 0), "{level} {lba}");
                    }
                }
            }
        }
    }
}
