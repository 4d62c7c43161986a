//! What an array's members hold, by the layout's maps and by XOR alone: nothing here asks the engine or its planner.

use uraid_layout::stripe::Role;
use uraid_layout::{Bytes, Cell, Geometry, GroupId, MemberSet, SECTOR_BYTES, StripeId};

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

/// The cells of every stripe of an array, as far as members hold them.
#[derive(Debug)]
pub struct Audit<'a> {
    geometry: &'a Geometry,
    stripes: Vec<Vec<Option<Vec<u8>>>>,
}

impl<'a> Audit<'a> {
    /// Reads what the members hold; `data` says where each one's data area begins. Slots without a member are missing.
    ///
    /// # Panics
    /// When a member is smaller than the geometry says.
    #[must_use]
    pub fn new(geometry: &'a Geometry, members: &Members, data: impl Fn(usize) -> Bytes) -> Self {
        let chunk = usize::try_from(geometry.chunk().bytes().0).expect("a chunk is at most 1 MiB");
        let cell = |stripe: StripeId, cell: usize| {
            let cell = as_cell(cell);
            let slot = geometry.member(cell);
            let member = members.get(slot).filter(|_| exists(geometry, stripe, cell))?;
            let mut bytes = vec![0; chunk];
            let at = geometry.sector(stripe, cell).0 * SECTOR_BYTES;
            member.read(Bytes(data(slot.index()).0 + at), &mut bytes);
            Some(bytes)
        };
        let cells = |stripe: StripeId| (0..geometry.map(stripe).cells()).map(|index| cell(stripe, index)).collect();
        Self { geometry, stripes: (0..geometry.stripes().0).map(|stripe| cells(StripeId(stripe))).collect() }
    }

    /// Whether each parity group whose members are all there XORs to zero.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check_parity(&self) -> Result<(), Disagreement> {
        for (stripe, cells) in self.stripes() {
            for (index, group) in self.geometry.map(stripe).groups().iter().enumerate() {
                let mut units = Vec::new();
                for cell in group.cells().filter(|&cell| exists(self.geometry, stripe, cell)) {
                    units.push(cells[usize::from(cell.0)].as_ref());
                }
                let Some(units) = units.into_iter().collect::<Option<Vec<_>>>() else { continue };
                if let Some(byte) = xor(&units).iter().position(|&byte| byte != 0) {
                    let group = GroupId(u16::try_from(index).expect("a stripe has fewer groups"));
                    return Err(Disagreement { stripe, group, byte });
                }
            }
        }
        Ok(())
    }

    /// The array's content as it is read without `lost` members, beside those that are missing anyway; none when that can't be done.
    #[must_use]
    pub fn content(&self, lost: MemberSet) -> Option<Vec<u8>> {
        let capacity = usize::try_from(self.geometry.capacity().bytes().0).expect("a simulated array is small");
        let mut content = Vec::with_capacity(capacity);
        for (stripe, cells) in self.stripes() {
            let map = self.geometry.map(stripe);
            let is_lost = |cell: usize| lost.contains(self.geometry.member(as_cell(cell)));
            let mut known: Vec<Option<std::borrow::Cow<'_, [u8]>>> = cells
                .iter()
                .enumerate()
                .map(|(cell, bytes)| bytes.as_deref().filter(|_| !is_lost(cell)).map(Into::into))
                .collect();
            // Each pass finds the cells that are the only unknown one of a group.
            loop {
                let mut found = false;
                for group in map.groups() {
                    let there = group.cells().filter(|&cell| exists(self.geometry, stripe, cell));
                    let cells: Vec<usize> = there.map(|cell| usize::from(cell.0)).collect();
                    let unknown: Vec<usize> = cells.iter().copied().filter(|&cell| known[cell].is_none()).collect();
                    if let [target] = unknown[..] {
                        let units: Vec<&[u8]> = cells.iter().filter_map(|&cell| known[cell].as_deref()).collect();
                        if !units.is_empty() {
                            known[target] = Some(xor(&units).into());
                            found = true;
                        }
                    }
                }
                if !found {
                    break;
                }
            }
            for &cell in map.data().iter().filter(|&&cell| exists(self.geometry, stripe, cell)) {
                content.extend_from_slice(known[usize::from(cell.0)].as_deref()?);
            }
        }
        Some(content)
    }

    fn stripes(&self) -> impl Iterator<Item = (StripeId, &Vec<Option<Vec<u8>>>)> {
        (0..).map(StripeId).zip(&self.stripes)
    }
}

/// Every set of further members that the level survives beside those that are missing, the empty one first.
#[must_use]
pub fn tolerated(geometry: &Geometry, missing: MemberSet) -> Vec<MemberSet> {
    let mut sets = vec![MemberSet::EMPTY];
    let spare = geometry.tolerance().saturating_sub(missing.len());
    let mut last = sets.clone();
    for _ in 0..spare {
        let larger = |set: &MemberSet| {
            let above = set.iter().map(|member| member.0 + 1).max().unwrap_or(0);
            let present = geometry.all_members().minus(missing);
            let set = *set;
            present
                .iter()
                .filter(move |member| member.0 >= above)
                .map(move |member| set.with(member))
                .collect::<Vec<_>>()
        };
        last = last.iter().flat_map(larger).collect();
        sets.extend(&last);
    }
    sets
}

/// Whether the array has a cell: RAID 10's last stripe may be in part beyond the members.
fn exists(geometry: &Geometry, stripe: StripeId, cell: Cell) -> bool {
    let map = geometry.map(stripe);
    let has = |cell: Cell| matches!(map.role(cell), Role::Data(unit) if geometry.exists(stripe, unit));
    match map.role(cell) {
        Role::Data(_) => has(cell),
        Role::Parity(group) => map.group(group).data.iter().any(|&cell| has(cell)),
    }
}

fn xor(units: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let Some((first, others)) = units.split_first() else { return Vec::new() };
    let mut sum = first.as_ref().to_vec();
    for unit in others {
        sum.iter_mut().zip(unit.as_ref()).for_each(|(sum, byte)| *sum ^= byte);
    }
    sum
}

fn as_cell(index: usize) -> Cell {
    Cell(u16::try_from(index).expect("a stripe has fewer than 65536 cells"))
}
