//! Draws a placement as the papers' figures do: a column for each member, a line for each of its chunks.
//!
//! Data units bear their number in the array and parity units the number of their stripe: `7`, `P1`, and `Q1` for the
//! second parity of RAID 6. Where groups cover different data, as on RM2, units bear their groups' numbers, `D2,3` and
//! `P0`, and lines say where they are. Further copies of unit 7 are `7'`, `7'2`, `7'3`; `-` is a chunk that the array
//! does not use.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::stripe::{Role, StripeMap};
use crate::{Cell, Geometry, GroupId, Sectors, StripeId};

/// A placement, for whoever draws it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// The members' names, from left to right.
    pub members: Vec<String>,
    /// From the first chunk of the members on.
    pub lines: Vec<Line>,
    /// Whether units bear the numbers of their groups.
    pub is_named_by_groups: bool,
}

/// A chunk of every member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where the chunk is, if that needs saying; otherwise empty.
    pub label: String,
    /// The parity stripe that the chunk belongs to.
    pub stripe: StripeId,
    /// By member.
    pub units: Vec<Unit>,
}

/// A chunk of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Its label.
    pub name: String,
    /// What it holds.
    pub kind: UnitKind,
}

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitKind {
    /// Data.
    Data,
    /// A further copy of data.
    Copy,
    /// Parity.
    Parity,
    /// Unused by the array.
    Unused,
}

impl Picture {
    /// The first parity stripes of an array, in the order in which they are on its members; all of them when there are
    /// fewer. Takes memory in proportion to `stripes`.
    #[must_use]
    pub fn new(geometry: &Geometry, stripes: usize) -> Self {
        let stripes = u64::try_from(stripes).map_or(geometry.stripes().0, |stripes| stripes.min(geometry.stripes().0));
        let mut places: Vec<(u64, StripeId, usize)> = (0..stripes)
            .flat_map(|stripe| (0..geometry.rows()).map(move |row| (StripeId(stripe), row)))
            .map(|(stripe, row)| (geometry.sector(stripe, cell(geometry, row, 0)).0, stripe, row))
            .filter(|&(sector, ..)| Sectors(sector) < geometry.used_sectors())
            .collect();
        places.sort_unstable();
        let line = |&(_, stripe, row): &(u64, StripeId, usize)| Line {
            label: label(geometry, stripe, row, stripes),
            stripe,
            units: (0..geometry.members()).map(|member| unit(geometry, stripe, cell(geometry, row, member))).collect(),
        };
        Self {
            members: (0..geometry.members()).map(|member| format!("disk{member}")).collect(),
            lines: places.iter().map(line).collect(),
            is_named_by_groups: is_named_by_groups(geometry.map(StripeId(0))),
        }
    }

    /// The legend: each sign of this picture with its meaning.
    #[must_use]
    pub fn legend(&self) -> Vec<(&'static str, &'static str)> {
        let units = || self.lines.iter().flat_map(|line| &line.units);
        let has = |kind| units().any(|unit| unit.kind == kind);
        let mut legend = Vec::new();
        if self.is_named_by_groups {
            legend.push(("Da,b", "data in the parity groups a and b: either of them can recompute it"));
            legend.push(("Pa", "parity of group a: the XOR of all data of that group in the stripe"));
        } else {
            legend.push(("n", "chunk n of the array's data"));
            if has(UnitKind::Copy) {
                legend.push(("n'", "a copy of chunk n"));
            }
            if units().any(|unit| unit.kind == UnitKind::Copy && !unit.name.ends_with('\'')) {
                legend.push(("n'2", "another copy of it"));
            }
            if has(UnitKind::Parity) {
                legend.push(("Pn", "parity of stripe n: the XOR of the data in its line"));
            }
            if units().any(|unit| unit.kind == UnitKind::Parity && unit.name.starts_with('Q')) {
                legend.push(("Qn", "second parity of stripe n: the same data, each times a power of 2 in GF(2^8)"));
            }
        }
        if has(UnitKind::Unused) {
            legend.push(("-", "a chunk that the array does not use"));
        }
        legend
    }
}

/// Draws the first parity stripes of an array as text: see [`Picture::new`].
#[must_use]
pub fn draw(geometry: &Geometry, stripes: usize) -> String {
    let picture = Picture::new(geometry, stripes);
    let header = [String::new()].into_iter().chain(picture.members).collect();
    let line = |line: Line| [line.label].into_iter().chain(line.units.into_iter().map(|unit| unit.name)).collect();
    let lines: Vec<Vec<String>> = [header].into_iter().chain(picture.lines.into_iter().map(line)).collect();
    table(&lines)
}

fn cell(geometry: &Geometry, row: usize, member: usize) -> Cell {
    Cell(u16::try_from(row * geometry.members() + member).expect("a stripe has fewer than 65536 cells"))
}

/// Whether units bear the numbers of their groups: these cover different data, and are not pairs of copies.
fn is_named_by_groups(map: &StripeMap) -> bool {
    let Some((first, others)) = map.groups().split_first() else { return false };
    !first.is_mirror() && others.iter().any(|group| group.data != first.data)
}

fn unit(geometry: &Geometry, stripe: StripeId, cell: Cell) -> Unit {
    let map = geometry.map(stripe);
    let number = |unit: u16| stripe.0 * (geometry.stripe_sectors().0 / geometry.chunk().0) + u64::from(unit);
    let (name, kind) = match map.role(cell) {
        Role::Data(unit) if !geometry.exists(stripe, unit) => (String::from("-"), UnitKind::Unused),
        Role::Data(unit) if is_named_by_groups(map) => {
            let groups: Vec<String> = map.groups_of(unit).iter().map(|group| format!("{group}")).collect();
            (format!("D{}", groups.join(",")), UnitKind::Data)
        }
        Role::Data(unit) => (format!("{}", number(unit.0)), UnitKind::Data),
        Role::Parity(group) if map.group(group).is_mirror() => match copy_name(geometry, stripe, group, number) {
            Some(name) => (name, UnitKind::Copy),
            None => (String::from("-"), UnitKind::Unused),
        },
        Role::Parity(group) if is_named_by_groups(map) => (format!("P{group}"), UnitKind::Parity),
        Role::Parity(group) => {
            let letter = if map.group(group).is_xor() { 'P' } else { 'Q' };
            (format!("{letter}{stripe}"), UnitKind::Parity)
        }
    };
    Unit { name, kind }
}

/// None where the array has no such unit.
fn copy_name(geometry: &Geometry, stripe: StripeId, group: GroupId, number: impl Fn(u16) -> u64) -> Option<String> {
    let map = geometry.map(stripe);
    let Role::Data(unit) = map.role(map.group(group).data[0]) else { unreachable!("a group covers data units") };
    if !geometry.exists(stripe, unit) {
        return None;
    }
    let copy = 1 + map.groups_of(unit).iter().position(|&other| other == group).expect("a unit knows its groups");
    Some(if copy == 1 { format!("{}'", number(unit.0)) } else { format!("{}'{copy}", number(unit.0)) })
}

fn label(geometry: &Geometry, stripe: StripeId, row: usize, stripes: u64) -> String {
    let map = geometry.map(stripe);
    if !is_named_by_groups(map) {
        return String::new();
    }
    let is_parity =
        (0..geometry.members()).all(|member| matches!(map.role(cell(geometry, row, member)), Role::Parity(_)));
    let stripe = if stripes > 1 { format!("stripe {stripe} ") } else { String::new() };
    format!("{stripe}row {row}{}", if is_parity { " (parity)" } else { "" })
}

/// Labels to the left, the rest to the right of columns as wide as their widest cell.
fn table(lines: &[Vec<String>]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let mut text = String::new();
    for line in lines {
        if widths[0] > 0 {
            text += &format!("{:<width$}  ", line[0], width = widths[0]);
        }
        let cells: Vec<String> =
            line[1..].iter().zip(&widths[1..]).map(|(cell, &width)| format!("{cell:>width$}")).collect();
        text += &cells.join(" ");
        text.push('\n');
    }
    text
}
