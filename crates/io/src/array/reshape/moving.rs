//! Content in the places that a shape has for it: whole parity stripes, with all of their parity.
//!
//! Nothing of what the members held there is read: so nothing of it counts.

use std::ops::Range;

use smallvec::SmallVec;
use uraid_layout::field::Factor;
use uraid_layout::{Bytes, DataUnit, DiskSector, Geometry, Lba, MemberIndex, SECTOR_BYTES, Sectors, StripeId};

use crate::buf::{Buf, Lease, Pool};
use crate::disk::{SEGMENTS_MAX, Segments};
use crate::format::{BLOCK, BLOCK_BYTES};
use crate::xor::combine_into;

/// The most memory for what moves that is kept for what moves next.
pub(crate) const MEMORY: Bytes = Bytes(64 << 20);

/// A write to a member: what it gets from a sector of its data area on, one piece after the other.
pub(crate) struct Part {
    pub(crate) member: MemberIndex,
    pub(crate) sector: DiskSector,
    pub(crate) pieces: Segments,
}

impl Part {
    /// How much it is.
    pub(crate) fn sectors(&self) -> Sectors {
        Bytes(self.pieces.iter().map(|piece| piece.len() as u64).sum()).whole_sectors()
    }

    /// Its blocks, with their sectors.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (DiskSector, &[u8])> {
        let blocks = self.pieces.iter().flat_map(|piece| piece.bytes().chunks_exact(BLOCK_BYTES));
        (0..).map(|index| DiskSector(self.sector.0 + index * BLOCK.0)).zip(blocks)
    }
}

/// Where on each member the rows of whole parity stripes are that have such content. Of a last stripe that is in part
/// beyond the members not all rows are written.
pub(crate) fn rows(shape: &Geometry, content: &Range<Lba>) -> Range<DiskSector> {
    let (stripe, rows) = (shape.stripe_sectors().0, shape.rows() as u64 * shape.chunk().0);
    let end = (content.end.0.div_ceil(stripe) * rows).min(shape.used_sectors().0);
    DiskSector(content.start.0 / stripe * rows)..DiskSector(end)
}

/// What each member gets. A member's rows of consecutive parity stripes are next to each other. What is beyond the
/// content is zeros. Nothing is copied: pieces are of the content, and of parity.
pub(crate) fn parts(shape: &Geometry, content: &Range<Lba>, bytes: &Buf, pool: &Pool) -> Vec<Part> {
    let (chunk, rows) = (shape.chunk(), shape.rows());
    let stripe_sectors = shape.stripe_sectors().0;
    let stripes = content.start.0 / stripe_sectors..content.end.0.div_ceil(stripe_sectors);
    let units = Units::new(bytes, usize::try_from(chunk.bytes().0).expect("a chunk is small"), pool);
    let count = usize::try_from(stripes.end - stripes.start).expect("a window fits the address space");
    // By member and row; nothing is zeros.
    let empty = || std::iter::repeat_with(|| None).take(count * rows).collect();
    let mut places: Vec<Vec<Option<Lease>>> = std::iter::repeat_with(empty).take(shape.members()).collect();
    for (index, stripe) in stripes.clone().enumerate() {
        let map = shape.map(StripeId(stripe));
        let at =
            |unit: DataUnit| (stripe * stripe_sectors + u64::from(unit.0) * chunk.0 - content.start.0) * SECTOR_BYTES;
        let mut put = |cell, lease| places[shape.member(cell).index()][index * rows + shape.row(cell)] = Some(lease);
        for (unit, &cell) in (0..).map(DataUnit).zip(map.data()) {
            put(cell, units.lease(at(unit)));
        }
        let groups = map.groups().iter().filter(|_| !planted!(ReshapeParityKept));
        for group in groups {
            let place = |cell| at(map.role(cell).unit().expect("a group's data is data"));
            let terms = group.data_terms().map(|(cell, factor)| (place(cell), factor));
            let terms: SmallVec<[(u64, Factor); 16]> = terms.collect();
            put(group.parity, units.parity(&terms));
        }
    }
    let Range { start: first, end } = self::rows(shape, content);
    let mut parts = Vec::new();
    for (member, places) in (0..).map(MemberIndex).zip(places) {
        let mut part = Part { member, sector: first, pieces: Segments::new() };
        for (at, piece) in (first.0..end.0).step_by(usize::try_from(chunk.0).expect("a chunk is small")).zip(places) {
            let piece = piece.unwrap_or_else(|| units.zeros());
            if part.pieces.last_mut().is_some_and(|last| last.extend_over(&piece)) {
                continue;
            }
            if part.pieces.len() == SEGMENTS_MAX {
                let next = Part { member, sector: DiskSector(at), pieces: Segments::new() };
                parts.push(std::mem::replace(&mut part, next));
            }
            part.pieces.push(piece);
        }
        parts.push(part);
    }
    parts
}

/// Content by units, as long as it is: zeros are behind it.
struct Units<'a> {
    content: &'a Buf,
    size: usize,
    zeros: Buf,
    /// The unit in which the content ends, and where that begins.
    last: Option<(usize, Buf)>,
    pool: &'a Pool,
}

/// Memory that holds anything.
pub(crate) fn memory(pool: &Pool, len: Bytes) -> Buf {
    pool.try_alloc(len).unwrap_or_else(|| Buf::zeroed(len))
}

impl<'a> Units<'a> {
    fn new(content: &'a Buf, size: usize, pool: &'a Pool) -> Self {
        let (zeros, start) = (Buf::zeroed(Bytes(size as u64)), content.len() / size * size);
        let rest = content.bytes(start..content.len());
        let last = (!rest.is_empty()).then(|| {
            let mut unit = Buf::zeroed(Bytes(size as u64));
            unit.as_mut()[..rest.len()].copy_from_slice(rest);
            (start, unit)
        });
        Self { content, size, zeros, last, pool }
    }

    /// Where the unit is that begins so many bytes from the content's start.
    fn find(&self, at: u64) -> (&Buf, Range<usize>) {
        let start = usize::try_from(at).unwrap_or(usize::MAX);
        match &self.last {
            _ if start.saturating_add(self.size) <= self.content.len() => (self.content, start..start + self.size),
            Some((last, unit)) if *last == start => (unit, 0..self.size),
            _ => (&self.zeros, 0..self.size),
        }
    }

    fn lease(&self, at: u64) -> Lease {
        let (buf, range) = self.find(at);
        buf.lease_read(range)
    }

    fn zeros(&self) -> Lease {
        self.zeros.lease_read(0..self.size)
    }

    /// The parity of these units with their factors; of one it is the unit.
    fn parity(&self, units: &[(u64, Factor)]) -> Lease {
        if let [(unit, Factor::ONE)] = units {
            return self.lease(*unit);
        }
        let terms: SmallVec<[(&[u8], Factor); 16]> = units
            .iter()
            .map(|&(unit, factor)| {
                let (buf, range) = self.find(unit);
                (buf.bytes(range), if planted!(MovedFactorsForgotten) { Factor::ONE } else { factor })
            })
            .collect();
        let mut parity = memory(self.pool, Bytes(self.size as u64));
        combine_into(parity.as_mut(), &terms);
        parity.lease_read(0..self.size)
    }
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
            (Level::Raid6 { rotation: Rotation::RightAsymmetric }, 5),
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
                let buf = Buf::of(&bytes);
                let parts = parts(&shape, &content, &buf, &Pool::new(Bytes(0)));
                let held = |at: uraid_layout::Location| {
                    let part = &parts[at.member.index()];
                    let start = usize::try_from((at.sector.0 - part.sector.0) * 512).unwrap();
                    let image: Vec<u8> = part.pieces.iter().flat_map(Lease::bytes).copied().collect();
                    image[start..start + 512].to_vec()
                };
                for lba in (content.start.0..content.end.0).map(Lba) {
                    let start = usize::try_from((lba.0 - content.start.0) * 512).unwrap();
                    assert!(held(shape.locate(lba)) == bytes[start..start + 512], "{level} {lba}");
                    let (stripe, unit, offset) = shape.split(lba);
                    let map = shape.map(stripe);
                    for (&group, at) in map.groups_of(unit).iter().zip(shape.parity_of(lba)) {
                        let mut sum = held(at);
                        let data = map.group(group).data_terms();
                        for (cell, factor) in data.filter(|&(cell, _)| shape.uses(stripe, cell)) {
                            let sector = DiskSector(shape.sector(stripe, cell).0 + offset.0);
                            let other = held(uraid_layout::Location { member: shape.member(cell), sector });
                            uraid_layout::field::add_multiple(&mut sum, &other, factor);
                        }
                        assert!(sum.iter().all(|&byte| byte == 0), "{level} {lba}");
                    }
                }
            }
        }
    }
}
