//! Geometries: from a level, its options and the members' size to the place of every block.
//!
//! A geometry is one table for each kind of parity stripe ([`StripeMap`]) plus the arithmetic that repeats it over the
//! members: parity stripe s, row r of a member starts at s x stripe stride + r x row stride. Which level it is matters
//! only while the tables are built.
//!
//! Invariants: two blocks never share a sector; no address is beyond [`Geometry::used_sectors`]; all arithmetic on
//! addresses below [`Geometry::capacity`] fits 64 bits. It knows nothing of where a member's data area starts, nor of
//! which members are there.

mod divisor;
mod maps;
mod rm2;
mod seeds;
mod spec;

use alloc::vec::Vec;
use core::ops::Range;

use divisor::Divisor;
pub use rm2::{default_height, rm2_seed};
pub use spec::{GeometryError, Level, Placement, Rotation, Spec};

use crate::stripe::{Role, StripeMap};
use crate::{Bytes, Cell, DataUnit, DiskSector, GroupId, Lba, MemberIndex, MemberSet, Sectors, StripeId, Stripes};

/// The placement of an array's blocks on its members.
#[derive(Clone, Debug, PartialEq)]
pub struct Geometry {
    spec: Spec,
    maps: Vec<StripeMap>,
    /// The number of maps.
    period: Divisor,
    /// The member and the row of each cell.
    positions: Vec<Position>,
    /// The same for each data unit of a period, that is of one parity stripe for each map: one load for a look-up.
    data_positions: Vec<Position>,
    chunk: Divisor,
    units_per_stripe: Divisor,
    units_per_period: Divisor,
    capacity: Sectors,
    stripes: Stripes,
    rows: usize,
    tolerance: usize,
    used: Sectors,
    stripe_stride: Sectors,
    row_stride: Sectors,
    /// How a member's chunks are numbered: by stripe in each row (partitioned) or by row in each stripe.
    numbering: Numbering,
}

/// A sector of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The member.
    pub member: MemberIndex,
    /// The sector, counted from the start of the member's data area.
    pub sector: DiskSector,
}

/// What a sector of a member belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// A sector of the array.
    Data(Lba),
    /// Parity, or a further copy.
    Parity {
        /// The parity stripe.
        stripe: StripeId,
        /// The parity group.
        group: GroupId,
        /// The sector within the parity unit.
        offset: Sectors,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    member: MemberIndex,
    row: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbering {
    RowsOfStripe(Divisor),
    StripesOfRow(Divisor),
}

impl Geometry {
    /// Builds the geometry of an array.
    ///
    /// # Errors
    /// When these members, options, chunk or size don't suit the level; the message says what does.
    pub fn new(spec: Spec) -> Result<Self, GeometryError> {
        let chunk = spec.check()?;
        Self::build(spec, chunk, maps::build(&spec), tolerance(&spec))
    }

    /// Builds the geometry of an array for study only: its chunk is any number of whole sectors, and RAID 0 may have
    /// one member, a plain disk. Real arrays come from [`Geometry::new`].
    ///
    /// # Errors
    /// When these members, options or size don't suit the level, or the chunk isn't a whole number of sectors.
    pub fn modelled(spec: Spec) -> Result<Self, GeometryError> {
        let chunk = spec.check_modelled()?;
        Self::build(spec, chunk, maps::build(&spec), tolerance(&spec))
    }

    /// Builds the geometry of a RAID 6 for study only, whose parities do not rotate: the last two members have P and Q.
    /// Its [`spec`](Self::spec) is that of one whose parities do.
    ///
    /// # Errors
    /// When there are not 4 to 64 members, the chunk isn't a whole number of sectors, or there is no room for a stripe.
    pub fn modelled_fixed_raid6(members: u8, chunk: Bytes, member_size: Sectors) -> Result<Self, GeometryError> {
        let spec = Spec { level: Level::Raid6 { rotation: Rotation::default() }, members, chunk, member_size };
        let chunk = spec.check_modelled()?;
        Self::build(spec, chunk, maps::raid6_fixed(usize::from(members)), tolerance(&spec))
    }

    fn build(spec: Spec, chunk: Sectors, built: maps::Maps, tolerance: usize) -> Result<Self, GeometryError> {
        let maps::Maps { rows, maps } = built;
        let rows_on_member = spec.member_size.0 / chunk.0;
        let units_per_stripe = as_u64(maps[0].data().len());
        // md's near layout uses the rows that a last, partial repetition of its pattern has.
        let copies = match spec.level {
            Level::Raid10 { copies } => u64::from(copies),
            Level::Raid0 | Level::Raid1 | Level::Raid5 { .. } | Level::Raid6 { .. } | Level::Rm2 { .. } => 0,
        };
        let units = match copies {
            0 => rows_on_member / as_u64(rows) * units_per_stripe,
            copies => rows_on_member * u64::from(spec.members) / copies,
        };
        if units == 0 {
            let needed = Sectors(chunk.0 * if copies == 0 { as_u64(rows) } else { 1 });
            return Err(GeometryError::MemberTooSmall { member_size: spec.member_size, needed });
        }
        let stripes = units.div_ceil(units_per_stripe);
        let used_rows = rows_on_member.min(stripes * as_u64(rows));
        let is_partitioned = matches!(spec.level, Level::Rm2 { placement: Placement::Partitioned, .. });
        let (stripe_stride, row_stride, numbering) = if is_partitioned {
            (chunk.0, chunk.0 * stripes, Numbering::StripesOfRow(Divisor::new(stripes)))
        } else {
            (chunk.0 * as_u64(rows), chunk.0, Numbering::RowsOfStripe(Divisor::new(as_u64(rows))))
        };
        let positions = positions(spec.members, rows);
        let data_positions: Vec<Position> =
            maps.iter().flat_map(StripeMap::data).map(|cell| positions[usize::from(cell.0)]).collect();
        Ok(Self {
            spec,
            period: Divisor::new(as_u64(maps.len())),
            units_per_period: Divisor::new(as_u64(data_positions.len())),
            positions,
            data_positions,
            maps,
            chunk: Divisor::new(chunk.0),
            units_per_stripe: Divisor::new(units_per_stripe),
            capacity: Sectors(units * chunk.0),
            stripes: Stripes(stripes),
            rows,
            tolerance,
            used: Sectors(used_rows * chunk.0),
            stripe_stride: Sectors(stripe_stride),
            row_stride: Sectors(row_stride),
            numbering,
        })
    }

    /// What the geometry was built from.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// How many members the array has.
    #[must_use]
    pub fn members(&self) -> usize {
        usize::from(self.spec.members)
    }

    /// Every member of the array.
    #[must_use]
    pub fn all_members(&self) -> MemberSet {
        MemberSet::all(self.members())
    }

    /// The chunk: how much of a member is one unit.
    #[must_use]
    pub fn chunk(&self) -> Sectors {
        Sectors(self.chunk.get())
    }

    /// The array's size as its clients see it: every whole parity stripe of the smallest member; RAID 10 also the rows
    /// left after them, as md's near layout does.
    #[must_use]
    pub fn capacity(&self) -> Sectors {
        self.capacity
    }

    /// How many parity stripes the array has. RAID 10's last one may be in part beyond the members: see
    /// [`exists`](Self::exists).
    #[must_use]
    pub fn stripes(&self) -> Stripes {
        self.stripes
    }

    /// How many rows (stripes of one unit on each member) a parity stripe has.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How much of each member's data area the array uses: every sector that has an owner is below.
    #[must_use]
    pub fn used_sectors(&self) -> Sectors {
        self.used
    }

    /// How many failures are survived whichever members fail. Mirrors may survive some larger sets:
    /// [`Repair::new`](crate::repair::Repair::new) knows.
    #[must_use]
    pub fn tolerance(&self) -> usize {
        self.tolerance
    }

    /// How much data one parity stripe holds.
    #[must_use]
    pub fn stripe_sectors(&self) -> Sectors {
        Sectors(self.units_per_stripe.get() * self.chunk.get())
    }

    /// The map of a parity stripe.
    #[inline]
    #[must_use]
    pub fn map(&self, stripe: StripeId) -> &StripeMap {
        &self.maps[self.map_index(stripe)]
    }

    /// Which of [`maps`](Self::maps) a parity stripe has.
    #[inline]
    #[must_use]
    pub fn map_index(&self, stripe: StripeId) -> usize {
        usize::try_from(self.period.rem(stripe.0)).expect("there are at most 64 maps")
    }

    /// Every map that a parity stripe can have: N on RAID 5 and 6, whose parity rotates, one elsewhere.
    #[must_use]
    pub fn maps(&self) -> &[StripeMap] {
        &self.maps
    }

    /// The member that holds a cell.
    ///
    /// # Panics
    /// When the parity stripe has no such cell.
    #[inline]
    #[must_use]
    pub fn member(&self, cell: Cell) -> MemberIndex {
        self.positions[usize::from(cell.0)].member
    }

    /// The row of its parity stripe that a cell is in.
    ///
    /// # Panics
    /// When the parity stripe has no such cell.
    #[inline]
    #[must_use]
    pub fn row(&self, cell: Cell) -> usize {
        usize::from(self.positions[usize::from(cell.0)].row)
    }

    /// The first sector of a cell in its member's data area.
    ///
    /// # Panics
    /// When the array has no such parity stripe or the parity stripe no such cell.
    #[inline]
    #[must_use]
    pub fn sector(&self, stripe: StripeId, cell: Cell) -> DiskSector {
        assert!(stripe.0 < self.stripes.0, "the parity stripe is the array's");
        let row = u64::from(self.positions[usize::from(cell.0)].row);
        DiskSector(stripe.0 * self.stripe_stride.0 + row * self.row_stride.0)
    }

    /// Where so many columns of a cell are: its member, and the sectors of that member's data area.
    ///
    /// # Panics
    /// As [`Geometry::sector`].
    #[must_use]
    pub fn columns(
        &self,
        stripe: StripeId,
        cell: Cell,
        start: Sectors,
        len: Sectors,
    ) -> (MemberIndex, Range<DiskSector>) {
        let first = self.sector(stripe, cell).0 + start.0;
        (self.member(cell), DiskSector(first)..DiskSector(first + len.0))
    }

    /// The parity stripe of an address, the data unit within it, and the offset in the unit. Addresses beyond the
    /// capacity give a stripe or a unit that does not [exist](Self::exists).
    #[inline]
    #[must_use]
    pub fn split(&self, lba: Lba) -> (StripeId, DataUnit, Sectors) {
        let (unit, offset) = self.chunk.div_rem(lba.0);
        let (stripe, unit) = self.units_per_stripe.div_rem(unit);
        let unit = DataUnit(u16::try_from(unit).expect("a stripe has fewer than 65536 cells"));
        (StripeId(stripe), unit, Sectors(offset))
    }

    /// Whether the array has a data unit. False beyond the last parity stripe, and for the units of RAID 10's last,
    /// partial parity stripe of which a copy would be beyond the members.
    #[must_use]
    pub fn exists(&self, stripe: StripeId, unit: DataUnit) -> bool {
        let units = self.units_per_stripe.get();
        let end = self.capacity.0 / self.chunk.get();
        stripe.0 < self.stripes.0 && u64::from(unit.0) < units && stripe.0 * units + u64::from(unit.0) < end
    }

    /// Where a sector of the array is.
    ///
    /// # Panics
    /// When `lba` is not below the capacity.
    #[inline]
    #[must_use]
    pub fn locate(&self, lba: Lba) -> Location {
        assert!(lba.0 < self.capacity.0, "the address is below the array's capacity");
        let (unit, offset) = self.chunk.div_rem(lba.0);
        let (stripe, _) = self.units_per_stripe.div_rem(unit);
        let place = usize::try_from(self.units_per_period.rem(unit)).expect("a table's index fits");
        let Position { member, row } = self.data_positions[place];
        let start = stripe * self.stripe_stride.0 + u64::from(row) * self.row_stride.0;
        Location { member, sector: DiskSector(start + offset) }
    }

    /// Where the parity of a sector of the array is, one location for each group that covers it; on mirrors, its
    /// further copies.
    ///
    /// # Panics
    /// When `lba` is not below the capacity.
    pub fn parity_of(&self, lba: Lba) -> impl Iterator<Item = Location> + '_ {
        assert!(lba.0 < self.capacity.0, "the address is below the array's capacity");
        let (stripe, unit, offset) = self.split(lba);
        let map = self.map(stripe);
        map.groups_of(unit).iter().map(move |&group| self.location(stripe, map.group(group).parity, offset))
    }

    /// Whether the array uses a cell of a stripe: RAID 10's last, partial one lacks some.
    ///
    /// # Panics
    /// When the stripe's map has no such cell.
    #[must_use]
    pub fn uses(&self, stripe: StripeId, cell: Cell) -> bool {
        let map = self.map(stripe);
        let exists = |cell: Cell| match map.role(cell) {
            Role::Data(unit) => self.exists(stripe, unit),
            Role::Parity(_) => false,
        };
        match map.role(cell) {
            Role::Data(_) => exists(cell),
            Role::Parity(group) => map.group(group).data.iter().any(|&cell| exists(cell)),
        }
    }

    /// The cell that a sector of a member is in, and the column; none when the array does not use it.
    #[must_use]
    pub fn cell_at(&self, at: Location) -> Option<(StripeId, Cell, Sectors)> {
        if at.member.index() >= self.members() || at.sector.0 >= self.used.0 {
            return None;
        }
        let (chunk, offset) = self.chunk.div_rem(at.sector.0);
        let (stripe, row) = match self.numbering {
            Numbering::RowsOfStripe(rows) => rows.div_rem(chunk),
            Numbering::StripesOfRow(stripes) => {
                let (row, stripe) = stripes.div_rem(chunk);
                (stripe, row)
            }
        };
        let cell = row * u64::from(self.spec.members) + u64::from(at.member.0);
        let cell = Cell(u16::try_from(cell).expect("a used sector is in a row of its stripe"));
        let stripe = StripeId(stripe);
        self.uses(stripe, cell).then_some((stripe, cell, Sectors(offset)))
    }

    /// What a sector of a member belongs to: the inverse of [`locate`](Self::locate). None when the array does not use
    /// it.
    #[must_use]
    pub fn owner(&self, at: Location) -> Option<Owner> {
        let (stripe, cell, offset) = self.cell_at(at)?;
        Some(match self.map(stripe).role(cell) {
            Role::Data(unit) => {
                let unit = stripe.0 * self.units_per_stripe.get() + u64::from(unit.0);
                Owner::Data(Lba(unit * self.chunk.get() + offset.0))
            }
            Role::Parity(group) => Owner::Parity { stripe, group, offset },
        })
    }

    /// The other places that hold the same content as a sector of a member: none where it has no copies, or the array
    /// does not use it.
    pub fn copies(&self, at: Location) -> impl Iterator<Item = Location> + '_ {
        self.cell_at(at).into_iter().flat_map(move |(stripe, cell, offset)| {
            let map = self.map(stripe);
            let unit = match map.role(cell) {
                Role::Data(unit) => Some(unit),
                Role::Parity(group) => {
                    let group = map.group(group);
                    let original = map.role(group.data[0]);
                    group.is_mirror().then_some(original).and_then(Role::unit)
                }
            };
            let original = unit.map(|unit| map.cell(unit));
            let groups = unit.map_or(&[][..], |unit| map.groups_of(unit)).iter().map(|&group| map.group(group));
            let further = groups.filter(|group| group.is_mirror()).map(|group| group.parity);
            let others = original.into_iter().chain(further).filter(move |&copy| copy != cell);
            others.map(move |copy| self.location(stripe, copy, offset))
        })
    }

    fn location(&self, stripe: StripeId, cell: Cell, offset: Sectors) -> Location {
        Location { member: self.member(cell), sector: DiskSector(self.sector(stripe, cell).0 + offset.0) }
    }
}

fn tolerance(spec: &Spec) -> usize {
    match spec.level {
        Level::Raid0 => 0,
        Level::Raid1 => usize::from(spec.members) - 1,
        Level::Raid10 { copies } => usize::from(copies) - 1,
        Level::Raid5 { .. } => 1,
        Level::Raid6 { .. } | Level::Rm2 { .. } => 2,
    }
}

fn positions(members: u8, rows: usize) -> Vec<Position> {
    let rows = u8::try_from(rows).expect("a parity stripe has at most 64 rows");
    let row = |row| (0..members).map(move |member| Position { member: MemberIndex(member), row });
    (0..rows).flat_map(row).collect()
}

fn as_u64(count: usize) -> u64 {
    u64::try_from(count).expect("counts fit 64 bits")
}
