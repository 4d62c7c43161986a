//! Draws a placement as the papers' figures do: a column for each member, a line for each of its chunks.
//!
//! Data units bear their number in the array and parity units the number of their stripe: `7`, `P1`. Where a unit is in
//! two groups, as on RM2, units bear their groups' numbers, `D2,3` and `P0`, and lines say where they are. Further
//! copies of unit 7 are `7'`, `7'2`, `7'3`; `-` is a chunk that the array does not use.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::stripe::{Role, StripeMap};
use crate::{Cell, Geometry, GroupId, Sectors, StripeId};

/// Draws the first parity stripes of an array, in the order in which they are on its members; all of them when there
/// are fewer. Takes memory in proportion to `stripes`.
#[must_use]
pub fn draw(geometry: &Geometry, stripes: usize) -> String {
    let stripes = u64::try_from(stripes).map_or(geometry.stripes().0, |stripes| stripes.min(geometry.stripes().0));
    let mut places: Vec<(u64, StripeId, usize)> = (0..stripes)
        .flat_map(|stripe| (0..geometry.rows()).map(move |row| (StripeId(stripe), row)))
        .map(|(stripe, row)| (geometry.sector(stripe, cell(geometry, row, 0)).0, stripe, row))
        .filter(|&(sector, ..)| Sectors(sector) < geometry.used_sectors())
        .collect();
    places.sort_unstable();

    let header = (0..geometry.members()).map(|member| format!("disk{member}"));
    let mut lines = alloc::vec![[String::new()].into_iter().chain(header).collect::<Vec<String>>()];
    for &(_, stripe, row) in &places {
        let cells = (0..geometry.members()).map(|member| cell(geometry, row, member));
        let names = cells.map(|cell| name(geometry, stripe, cell));
        lines.push([label(geometry, stripe, row, stripes)].into_iter().chain(names).collect());
    }
    table(&lines)
}

fn cell(geometry: &Geometry, row: usize, member: usize) -> Cell {
    Cell(u16::try_from(row * geometry.members() + member).expect("a stripe has fewer than 65536 cells"))
}

/// Whether units bear the numbers of their groups: there are several groups, which are not pairs of copies.
fn is_named_by_groups(map: &StripeMap) -> bool {
    map.groups().len() > 1 && !map.groups()[0].is_mirror()
}

fn name(geometry: &Geometry, stripe: StripeId, cell: Cell) -> String {
    let map = geometry.map(stripe);
    let number = |unit: u16| stripe.0 * (geometry.stripe_sectors().0 / geometry.chunk().0) + u64::from(unit);
    match map.role(cell) {
        Role::Data(unit) if !geometry.exists(stripe, unit) => String::from("-"),
        Role::Data(unit) if is_named_by_groups(map) => {
            let groups: Vec<String> = map.groups_of(unit).iter().map(|group| format!("{group}")).collect();
            format!("D{}", groups.join(","))
        }
        Role::Data(unit) => format!("{}", number(unit.0)),
        Role::Parity(group) if map.group(group).is_mirror() => copy_name(geometry, stripe, group, number),
        Role::Parity(group) if is_named_by_groups(map) => format!("P{group}"),
        Role::Parity(_) => format!("P{stripe}"),
    }
}

fn copy_name(geometry: &Geometry, stripe: StripeId, group: GroupId, number: impl Fn(u16) -> u64) -> String {
    let map = geometry.map(stripe);
    let Role::Data(unit) = map.role(map.group(group).data[0]) else { unreachable!("a group covers data units") };
    if !geometry.exists(stripe, unit) {
        return String::from("-");
    }
    let copy = 1 + map.groups_of(unit).iter().position(|&other| other == group).expect("a unit knows its groups");
    if copy == 1 { format!("{}'", number(unit.0)) } else { format!("{}'{copy}", number(unit.0)) }
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
