//! What a sweep can't do of a parity stripe, as somebody who is to make it good wants to know it.

use std::ops::Range;

use uraid_layout::repair::Repair;
use uraid_layout::{Cell, DiskSector, Geometry, Lba, Location, MemberIndex, MemberSet, Owner, Sectors, StripeId};

/// What could not be done of a parity stripe; it is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The parity stripe.
    pub stripe: StripeId,
    /// The first column that can't be had: the sector within each unit.
    pub start: Sectors,
    /// How many.
    pub len: Sectors,
    /// The members that can't be read there.
    pub unreadable: MemberSet,
}

impl Stuck {
    /// What can't be read, from where on in a member's data area.
    pub fn sectors<'a>(&'a self, geometry: &'a Geometry) -> impl Iterator<Item = (MemberIndex, DiskSector)> + 'a {
        let cells = self.cells(geometry).filter(|&cell| self.unreadable.contains(geometry.member(cell)));
        cells.map(|cell| location(geometry, self.stripe, cell, self.start)).map(|at| (at.member, at.sector))
    }

    /// The array's sectors that nobody has now, in order; none where it is parity. `lost` are the members that are
    /// missing or being rebuilt.
    pub fn lbas(&self, geometry: &Geometry, lost: MemberSet) -> Vec<Range<Lba>> {
        let without = lost.union(self.unreadable);
        let repair = Repair::partial(geometry, without);
        let is_lost = |cell| without.contains(geometry.member(cell)) && !repair.has(geometry, self.stripe, cell);
        let lba = |cell| match geometry.owner(location(geometry, self.stripe, cell, self.start)) {
            Some(Owner::Data(lba)) => Some(lba..Lba(lba.0 + self.len.0)),
            _ => None,
        };
        let mut lbas: Vec<Range<Lba>> = self.cells(geometry).filter(|&cell| is_lost(cell)).filter_map(lba).collect();
        lbas.sort_by_key(|lbas| lbas.start);
        lbas
    }

    /// Whether members' sectors that can't be read are among these.
    pub(super) fn is_in(&self, geometry: &Geometry, member: MemberIndex, sectors: &Range<DiskSector>) -> bool {
        let covers = |at: DiskSector| at.0 < sectors.end.0 && sectors.start.0 < at.0 + self.len.0;
        self.unreadable.contains(member) && self.sectors(geometry).any(|(of, at)| of == member && covers(at))
    }

    /// All of the array's sectors in the stripe: whoever writes all of them at once reads nothing of it.
    pub fn stripe_lbas(&self, geometry: &Geometry) -> Range<Lba> {
        let (sectors, capacity) = (geometry.stripe_sectors().0, geometry.capacity().0);
        let start = self.stripe.0.saturating_mul(sectors);
        Lba(start.min(capacity))..Lba(start.saturating_add(sectors).min(capacity))
    }

    fn cells(self, geometry: &Geometry) -> impl Iterator<Item = Cell> + use<> {
        (0_u16..).map(Cell).take(geometry.map(self.stripe).cells())
    }
}

/// Where a column of a unit is.
pub(super) fn location(geometry: &Geometry, stripe: StripeId, cell: Cell, start: Sectors) -> Location {
    Location { member: geometry.member(cell), sector: DiskSector(geometry.sector(stripe, cell).0 + start.0) }
}
