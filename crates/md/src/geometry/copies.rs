//! RAID 1, and RAID 10 with near, far and offset copies.
//!
//! Source: `setup_geo`, `calc_sectors` and `__raid10_find_phys` in Linux, `raid10.c`.

use uraid_layout::{DiskSector, Lba, Sectors};

use super::place::{GeometryError, Located, Place, Slot};
use crate::superblock::Level;

/// RAID 10.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copies {
    members: u64,
    chunk: u64,
    near: u64,
    far: u64,
    is_offset: bool,
    /// Far copies stay within sets of so many members; the last set takes the rest, too.
    set: u64,
    /// From a far copy to the next, in sectors.
    stride: u64,
    capacity: u64,
}

impl Copies {
    /// # Errors
    /// [`GeometryError`] if there is no such layout, chunk or number of members.
    pub(super) fn new(layout: u32, members: u16, chunk: Sectors, member_size: Sectors) -> Result<Self, GeometryError> {
        let level = Level::Raid10;
        let unknown = GeometryError::Layout { level, layout };
        let (near, far) = (u64::from(layout & 0xff), u64::from(layout >> 8 & 0xff));
        let (count, is_offset) = (u64::from(members), layout & 1 << 16 != 0);
        if near == 0 || far == 0 || near * far > count {
            return Err(unknown);
        }
        let set = match layout >> 17 {
            0 => count,
            1 => count / far,
            2 => near * far,
            _ => return Err(unknown),
        };
        if !chunk.0.is_power_of_two() || chunk.0 < 8 {
            return Err(GeometryError::Chunk { level, chunk });
        }
        let chunks = member_size.0 / chunk.0 / far * count / near;
        let stride = if is_offset { 1 } else { (chunks * near * far).div_ceil(count) / far };
        let (stride, capacity) = (stride * chunk.0, chunks * chunk.0);
        let copies = Self { members: count, chunk: chunk.0, near, far, is_offset, set, stride, capacity };
        if copies.overlaps() {
            return Err(GeometryError::Overlap { members });
        }
        Ok(copies)
    }

    pub(super) fn capacity(&self) -> Sectors {
        Sectors(self.capacity)
    }

    /// After so many chunks the members take their turns anew.
    pub(super) fn period(&self) -> u64 {
        self.members
    }

    pub(super) fn chunk(&self) -> u64 {
        self.chunk
    }

    /// Where a sector is; `None` beyond the end.
    pub(super) fn locate(&self, lba: Lba) -> Option<Located> {
        if lba.0 >= self.capacity {
            return None;
        }
        let (first, offset) = (lba.0 / self.chunk * self.near, lba.0 % self.chunk);
        let row = first / self.members * if self.is_offset { self.far } else { 1 };
        let mut copies = Vec::new();
        for near in 0..self.near {
            let member = first % self.members + near;
            // Copies that find no member in their row are in the next one.
            let (mut member, wraps) = (member % self.members, member / self.members);
            let mut sector = (row + wraps) * self.chunk + offset;
            for far in 0..self.far {
                if far > 0 {
                    member = self.far_member(member);
                    sector += self.stride;
                }
                copies.push(Place { slot: Slot(member as u16), sector: DiskSector(sector) });
            }
        }
        Some(Located { copies, run: Sectors(self.chunk - offset) })
    }

    /// The member with the next far copy of what this one has.
    fn far_member(&self, member: u64) -> u64 {
        let rest = self.members % self.set;
        let last = (self.members / self.set - 1) * self.set;
        let next = member + self.near;
        if rest > 0 && next > last {
            return (next - last) % (self.set + rest) + last;
        }
        next % self.set + member / self.set * self.set
    }

    /// Whether different chunks would be in one place: the kernel does not refuse that.
    fn overlaps(&self) -> bool {
        // A near copy in the next row is where the far copies of its own row belong.
        let is_torn = self.is_offset && self.far > 1 && !self.members.is_multiple_of(self.near);
        let mut members: Vec<u64> = (0..self.members).collect();
        let mut collide = false;
        for _ in 1..self.far {
            members.iter_mut().for_each(|member| *member = self.far_member(*member));
            let mut sorted = members.clone();
            sorted.sort_unstable();
            collide |= sorted.iter().zip(0..).any(|(&member, slot)| member != slot);
        }
        is_torn || collide
    }
}
