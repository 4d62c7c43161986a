//! RAID 0, whose members may differ in size, and linear arrays.
//!
//! RAID 0 begins with a zone that has all members, up to the end of the smallest. The next zone has those that go on,
//! up to the end of the smallest of these. Source: `create_strip_zones` and `map_sector` in Linux, `raid0.c`.

use uraid_layout::{DiskSector, Lba, Sectors};

use super::place::{GeometryError, Located, Place, Slot};

/// With which member of a zone content begins, where the zone does not begin at a whole round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneOrder {
    /// The chunk's number in the array decides: up to Linux 3.13.
    Original,
    /// The chunk's number in the zone decides: from Linux 3.14 on.
    Alternate,
}

/// A part of the array that goes round the same members.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Zone {
    /// Its sectors of the array.
    start: u64,
    end: u64,
    /// Where it begins on each member.
    on_members: u64,
    members: Vec<Slot>,
}

/// All zones, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Zones {
    zones: Vec<Zone>,
    /// The chunk; none if there is a member to each zone.
    chunk: Option<u64>,
    order: ZoneOrder,
    capacity: u64,
}

impl Zones {
    /// RAID 0 of members of these sizes.
    ///
    /// # Errors
    /// [`GeometryError::ZoneOrder`] if `order` is not known and matters.
    pub(super) fn striped(sizes: &[Sectors], chunk: Sectors, order: Option<ZoneOrder>) -> Result<Self, GeometryError> {
        let whole: Vec<u64> = sizes.iter().map(|size| size.0 - size.0 % chunk.0).collect();
        let (mut zones, mut start, mut on_members) = (Vec::new(), 0, 0);
        loop {
            let reach = |&slot: &usize| whole[slot] > on_members;
            let members: Vec<usize> = (0..whole.len()).filter(reach).collect();
            let Some(end_on_members) = members.iter().map(|&slot| whole[slot]).min() else { break };
            let end = start + (end_on_members - on_members) * members.len() as u64;
            let members = members.into_iter().map(|slot| Slot(slot as u16)).collect();
            zones.push(Zone { start, end, on_members, members });
            (start, on_members) = (end, end_on_members);
        }
        let order = match order {
            None if zones.len() > 1 => return Err(GeometryError::ZoneOrder),
            order => order.unwrap_or(ZoneOrder::Original),
        };
        // The kernel (`raid0_size`) takes every chunk for a power of two here, and so shows less of other ones.
        let capacity = whole.iter().map(|size| size & !(chunk.0 - 1)).sum();
        Ok(Self { zones, chunk: Some(chunk.0), order, capacity })
    }

    /// Members of these sizes, one behind the other; of each only whole chunks, if there are any.
    pub(super) fn linear(sizes: &[Sectors], chunk: Sectors) -> Self {
        let mut start = 0;
        let zone = |(slot, size): (usize, &Sectors)| {
            let whole = size.0 - size.0.checked_rem(chunk.0).unwrap_or(0);
            let zone = Zone { start, end: start + whole, on_members: 0, members: vec![Slot(slot as u16)] };
            start = zone.end;
            zone
        };
        let zones = sizes.iter().enumerate().map(zone).collect();
        Self { zones, chunk: None, order: ZoneOrder::Alternate, capacity: start }
    }

    pub(super) fn capacity(&self) -> Sectors {
        Sectors(self.capacity)
    }

    /// Where a sector is; `None` beyond the end.
    pub(super) fn locate(&self, lba: Lba) -> Option<Located> {
        let zone = self.zones.get(self.zones.partition_point(|zone| zone.end <= lba.0))?;
        let left = self.capacity.checked_sub(lba.0).filter(|&left| left > 0)?;
        let offset = lba.0 - zone.start;
        let Some(chunk) = self.chunk else {
            let place = Place { slot: *zone.members.first()?, sector: DiskSector(offset) };
            return Some(Located { copies: vec![place], run: Sectors(zone.end - lba.0) });
        };
        let count = zone.members.len() as u64;
        let turn = match self.order {
            ZoneOrder::Original => lba.0,
            ZoneOrder::Alternate => offset,
        };
        let slot = *zone.members.get((turn / chunk % count) as usize)?;
        let sector = zone.on_members + offset / (chunk * count) * chunk + offset % chunk;
        let run = Sectors((chunk - offset % chunk).min(left));
        Some(Located { copies: vec![Place { slot, sector: DiskSector(sector) }], run })
    }
}
