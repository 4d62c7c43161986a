//! What an array's members hold, by the layout's maps alone: nothing here asks the engine or its planner.

use std::borrow::Cow;

use uraid_layout::stripe::Role;
use uraid_layout::{
    Bytes, Cell, DiskSector, Geometry, GroupId, Lba, MemberIndex, MemberSet, SECTOR_BYTES, Sectors, StripeId,
};

use crate::decode;
use crate::members::Members;

/// A parity group that does not agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// Its stripe.
    pub stripe: StripeId,
    /// The group.
    pub group: GroupId,
    /// The first byte of its units that is wrong.
    pub byte: usize,
}

/// The cells of every stripe of an array, as far as members hold them, in pieces of a length that divides a chunk.
#[derive(Debug)]
pub(crate) struct Audit<'a> {
    geometry: &'a Geometry,
    columns: Vec<Column>,
}

/// What the cells of a parity stripe have at one place of a chunk.
#[derive(Debug)]
struct Column {
    stripe: StripeId,
    start: Sectors,
    cells: Vec<Option<Vec<u8>>>,
    /// Whether a member that is there holds something in one of them that counts as missing.
    has_doubts: bool,
    is_blank: bool,
}

/// Content that was found or computed.
#[derive(Debug)]
pub(crate) struct Piece<'a> {
    /// Where it is in the array.
    pub lba: Lba,
    /// None when it can't be had as members hold something that counts as missing.
    pub bytes: Option<Cow<'a, [u8]>>,
}

impl<'a> Audit<'a> {
    /// Reads what the members hold; `data` says where each one's data area begins, `is_made` which members have their
    /// part of a stripe, and `is_sound` what counts of pieces of so many sectors of members. Slots without a member are
    /// missing. In stripes that are blank everything is zeros, whoever is there.
    ///
    /// # Panics
    /// When a member is smaller than the geometry says, or the piece does not divide a chunk.
    #[must_use]
    pub(crate) fn new(
        geometry: &'a Geometry,
        members: &Members,
        data: impl Fn(usize) -> Bytes,
        piece: Sectors,
        is_made: impl Fn(MemberIndex, StripeId) -> bool,
        is_sound: impl Fn(MemberIndex, DiskSector) -> bool,
        is_blank: impl Fn(StripeId) -> bool,
    ) -> Self {
        assert!(geometry.chunk().0.is_multiple_of(piece.0), "pieces make up chunks");
        let [len, step] = [piece.bytes().0, piece.0].map(|len| usize::try_from(len).expect("a chunk is at most 1 MiB"));
        let column = |stripe: StripeId, start: u64| {
            let mut has_doubts = false;
            let cell = |cell: usize| {
                let cell = as_cell(cell);
                let slot = geometry.member(cell);
                if is_blank(stripe) {
                    return exists(geometry, stripe, cell).then(|| vec![0; len]);
                }
                let member = members.get(slot).filter(|_| is_made(slot, stripe) && exists(geometry, stripe, cell))?;
                let at = DiskSector(geometry.sector(stripe, cell).0 + start);
                if !is_sound(slot, at) {
                    has_doubts = true;
                    return None;
                }
                let mut bytes = vec![0; len];
                member.read(Bytes(data(slot.index()).0 + at.0 * SECTOR_BYTES), &mut bytes);
                Some(bytes)
            };
            let cells = (0..geometry.map(stripe).cells()).map(cell).collect();
            Column { stripe, start: Sectors(start), cells, has_doubts, is_blank: is_blank(stripe) }
        };
        let stripes = (0..geometry.stripes().0).map(StripeId);
        let starts = |stripe| (0..geometry.chunk().0).step_by(step).map(move |start| (stripe, start));
        Self { geometry, columns: stripes.flat_map(starts).map(|(stripe, start)| column(stripe, start)).collect() }
    }

    /// Whether each parity group whose members are all there agrees.
    ///
    /// # Errors
    /// The first that does not.
    pub(crate) fn check_parity(&self) -> Result<(), Disagreement> {
        for Column { stripe, start, cells, .. } in &self.columns {
            for (index, group) in self.geometry.map(*stripe).groups().iter().enumerate() {
                let unit = |cell: Cell| cells[usize::from(cell.0)].as_deref();
                let mut existing = group.cells().filter(|&cell| exists(self.geometry, *stripe, cell));
                let Some(len) = existing.clone().find_map(unit).map(<[u8]>::len) else { continue };
                if existing.any(|cell| unit(cell).is_none()) {
                    continue;
                }
                if let Some(byte) = decode::sum(group, len, unit).iter().position(|&byte| byte != 0) {
                    let group = GroupId(u16::try_from(index).expect("a stripe has fewer groups"));
                    let byte = byte + usize::try_from(start.bytes().0).expect("a chunk is at most 1 MiB");
                    return Err(Disagreement { stripe: *stripe, group, byte });
                }
            }
        }
        Ok(())
    }

    /// The array's content as it is read without `lost` members, beside those that are missing anyway; none when that
    /// can't be done.
    #[must_use]
    pub(crate) fn content(&self, lost: MemberSet) -> Option<Vec<Piece<'_>>> {
        let mut content = Vec::new();
        for column in &self.columns {
            let map = self.geometry.map(column.stripe);
            let mut known = self.decode(column, lost);
            for (index, &cell) in map.data().iter().enumerate() {
                if !exists(self.geometry, column.stripe, cell) {
                    continue;
                }
                let unit = column.stripe.0 * map.data().len() as u64 + index as u64;
                let bytes = known[usize::from(cell.0)].take();
                if bytes.is_none() && !column.has_doubts {
                    return None;
                }
                content.push(Piece { lba: Lba(unit * self.geometry.chunk().0 + column.start.0), bytes });
            }
        }
        Some(content)
    }

    /// A column's cells without `lost` members, as far as they can be had.
    fn decode<'b>(&self, column: &'b Column, lost: MemberSet) -> Vec<Option<Cow<'b, [u8]>>> {
        let is_lost = |cell: usize| !column.is_blank && lost.contains(self.geometry.member(as_cell(cell)));
        let cells = column.cells.iter().enumerate();
        let mut known: Vec<Option<Cow<'_, [u8]>>> =
            cells.map(|(cell, bytes)| bytes.as_deref().filter(|_| !is_lost(cell)).map(Into::into)).collect();
        let Some(len) = known.iter().flatten().next().map(|bytes| bytes.len()) else { return known };
        let groups = self.geometry.map(column.stripe).groups();
        let is_missing = |known: &[Option<Cow<'_, [u8]>>], cell: Cell| {
            known[usize::from(cell.0)].is_none() && exists(self.geometry, column.stripe, cell)
        };
        while let Some(found) = decode::next_found(groups, |cell| is_missing(&known, cell)) {
            let content = found.content(len, |cell| known[usize::from(cell.0)].as_deref());
            known[usize::from(found.target.0)] = Some(content.into());
        }
        known
    }
}

/// Every set of further members that the level survives beside those that are missing, the empty one first.
#[must_use]
pub(crate) fn tolerated(geometry: &Geometry, missing: MemberSet) -> Vec<MemberSet> {
    subsets(geometry.all_members().minus(missing), geometry.tolerance().saturating_sub(missing.len()))
}

/// Every set of at most so many of these members, the smaller ones first.
pub(super) fn subsets(all: MemberSet, most: usize) -> Vec<MemberSet> {
    let mut sets = vec![MemberSet::EMPTY];
    let mut last = sets.clone();
    for _ in 0..most {
        let larger = |set: &MemberSet| {
            let above = set.iter().map(|member| member.0 + 1).max().unwrap_or(0);
            let set = *set;
            all.iter().filter(move |member| member.0 >= above).map(move |member| set.with(member)).collect::<Vec<_>>()
        };
        last = last.iter().flat_map(larger).collect();
        sets.extend(&last);
    }
    sets
}

/// Whether the array has a cell: RAID 10's last stripe may be in part beyond the members.
pub(super) fn exists(geometry: &Geometry, stripe: StripeId, cell: Cell) -> bool {
    let map = geometry.map(stripe);
    let has = |cell: Cell| matches!(map.role(cell), Role::Data(unit) if geometry.exists(stripe, unit));
    match map.role(cell) {
        Role::Data(_) => has(cell),
        Role::Parity(group) => map.group(group).data.iter().any(|&cell| has(cell)),
    }
}

pub(super) fn as_cell(index: usize) -> Cell {
    Cell(u16::try_from(index).expect("a stripe has fewer than 65536 cells"))
}
