//! Which unit is wrong, where the units of a parity stripe disagree.
//!
//! Told from the parity groups' differences alone, in one column of one sector at a time. Two rules, neither of which
//! asks for the level:
//!
//! - *Copies*: a unit of which there are copies only is what the strict majority of them is.
//! - *Parity*: if one unit alone were wrong, just the groups that it is in would disagree, each by the unit's error
//!   times its factor there. A unit is named where it is the only one of which that is true. On RM2 and RAID 6 that is
//!   every single unit (Anvin, section 4); on RAID 5, and of two copies, none.
//!
//! What the second rule says of a data unit is a suspicion: see [`Verdict::Suspect`]. Two units of which one's error is
//! a multiple of the other's, on RM2 the same, can look like a third one that is wrong; otherwise they never do.

use alloc::vec::Vec;

use crate::field::Factor;
use crate::stripe::{Group, Role, StripeMap};
use crate::{Cell, DataUnit, GroupId};

/// What a column's disagreement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// This unit is wrong: most of its copies say so, or it is a parity unit, and nothing else disagrees with the data.
    Wrong(Cell),
    /// This data unit is wrong; or it was when it was overwritten, and all of its parity units are since: what was
    /// computed from the wrong content is wrong by the same difference.
    Suspect(Cell),
    /// Some unit of this group is wrong, and the other groups don't tell which.
    Unknown(GroupId),
}

/// Says what is wrong in one column: `differences` has each group's XOR in it by number, none where the group can't be
/// checked. The verdicts are ascending; none: everything agrees that can be checked.
///
/// # Panics
/// When there are not as many differences as groups.
#[must_use]
pub fn judge(map: &StripeMap, differences: &[Option<&[u8]>]) -> Vec<Verdict> {
    assert_eq!(differences.len(), map.groups().len(), "each group has a difference, or none");
    let mut verdicts = Vec::new();
    let disagrees = |group: GroupId| differences[usize::from(group.0)].is_some_and(|bytes| !is_zero(bytes));
    if !groups(map).any(disagrees) {
        return verdicts;
    }
    for unit in (0..map.data().len()).map(|unit| DataUnit(as_u16(unit))) {
        let groups = map.groups_of(unit);
        if is_copied(map, unit) && groups.iter().any(|&group| disagrees(group)) {
            judge_copies(map, differences, unit, &mut verdicts);
        }
    }
    let parity: Vec<GroupId> = groups(map).filter(|&group| !is_copy(map, map.group(group))).collect();
    let disagreeing: Vec<GroupId> = parity.iter().copied().filter(|&group| disagrees(group)).collect();
    if !disagreeing.is_empty() {
        judge_parity(map, differences, &disagreeing, &mut verdicts);
    }
    verdicts.sort_unstable();
    verdicts
}

/// Whether a sector, or any number of bytes, is zeros.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(512).all(|bytes| bytes.iter().fold(0, |sum, byte| sum | byte) == 0)
}

/// The data unit that a cell is or is a copy of; none for the parity of several.
#[must_use]
pub fn copied_unit(map: &StripeMap, cell: Cell) -> Option<DataUnit> {
    let data = match map.role(cell) {
        Role::Data(_) => cell,
        Role::Parity(group) if map.group(group).is_mirror() => map.group(group).data[0],
        Role::Parity(_) => return None,
    };
    let Role::Data(unit) = map.role(data) else { unreachable!("a group's data is data") };
    is_copied(map, unit).then_some(unit)
}

/// The strict majority of a unit's copies, the unit among them, is right.
fn judge_copies(map: &StripeMap, differences: &[Option<&[u8]>], unit: DataUnit, verdicts: &mut Vec<Verdict>) {
    let of = |group: GroupId| differences[usize::from(group.0)];
    // What each copy differs by from the unit; the unit itself by nothing.
    let copies: Vec<(GroupId, &[u8])> =
        map.groups_of(unit).iter().filter_map(|&group| Some((group, of(group)?))).collect();
    let count = copies.len() + 1;
    let like = |value: Option<&[u8]>| {
        let is_same = |bytes: &[u8]| value.map_or_else(|| is_zero(bytes), |value| bytes == value);
        let unit = usize::from(value.is_none_or(is_zero));
        unit + copies.iter().filter(|(_, bytes)| is_same(bytes)).count()
    };
    let values = core::iter::once(None).chain(copies.iter().map(|&(_, bytes)| Some(bytes)));
    let Some(right) = values.into_iter().find(|&value| 2 * like(value) > count) else {
        let disagreeing = copies.iter().filter(|(_, bytes)| !is_zero(bytes));
        verdicts.extend(disagreeing.map(|&(group, _)| Verdict::Unknown(group)));
        return;
    };
    if right.is_some_and(|value| !is_zero(value)) {
        verdicts.push(Verdict::Wrong(map.cell(unit)));
    }
    let is_wrong = |bytes: &[u8]| right.map_or_else(|| !is_zero(bytes), |right| bytes != right);
    let wrong = copies.iter().filter(|(_, bytes)| is_wrong(bytes));
    verdicts.extend(wrong.map(|&(group, _)| Verdict::Wrong(map.group(group).parity)));
}

/// The unit that alone would make just these groups disagree, and so.
fn judge_parity(map: &StripeMap, differences: &[Option<&[u8]>], disagreeing: &[GroupId], verdicts: &mut Vec<Verdict>) {
    let of = |group: GroupId| differences[usize::from(group.0)];
    let first = disagreeing[0];
    let factor = |group: GroupId, cell: Cell| map.group(group).factor(cell);
    // Both groups' differences are the cell's error times its factors: so each times the other's factor is the same.
    let is_one_error =
        |cell: Cell, group: GroupId| is_same(of(group), factor(first, cell), of(first), factor(group, cell));
    let explains = |&cell: &Cell| match map.role(cell) {
        Role::Parity(group) => disagreeing == [group],
        Role::Data(unit) => {
            let checked = map.groups_of(unit).iter().filter(|&&group| of(group).is_some());
            checked.copied().eq(disagreeing.iter().copied())
                && disagreeing.iter().all(|&group| is_one_error(cell, group))
        }
    };
    let mut candidates = map.group(first).cells().filter(explains);
    match (candidates.next(), candidates.next()) {
        (Some(cell), None) if matches!(map.role(cell), Role::Parity(_)) => verdicts.push(Verdict::Wrong(cell)),
        (Some(cell), None) => verdicts.push(Verdict::Suspect(cell)),
        _ => verdicts.extend(disagreeing.iter().map(|&group| Verdict::Unknown(group))),
    }
}

/// Whether two differences, each times a factor, are the same.
fn is_same(a: Option<&[u8]>, a_factor: Factor, b: Option<&[u8]>, b_factor: Factor) -> bool {
    if a_factor == b_factor {
        return a == b;
    }
    let (Some(a), Some(b)) = (a, b) else { return false };
    let times = |byte: u8, factor: Factor| Factor(byte).times(factor);
    a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| times(a, a_factor) == times(b, b_factor))
}

/// Whether everything that covers a unit is a copy of it.
fn is_copied(map: &StripeMap, unit: DataUnit) -> bool {
    map.groups_of(unit).iter().all(|&group| map.group(group).is_mirror())
}

/// Whether a group's parity unit is a copy of a unit of which there are copies only.
fn is_copy(map: &StripeMap, group: &Group) -> bool {
    group.is_mirror() && copied_unit(map, group.parity).is_some()
}

fn groups(map: &StripeMap) -> impl Iterator<Item = GroupId> + use<> {
    (0..map.groups().len()).map(|group| GroupId(as_u16(group)))
}

fn as_u16(index: usize) -> u16 {
    u16::try_from(index).expect("a stripe has fewer than 65536 cells")
}
