//! What parity groups say of units that are missing, from their definition; nothing here asks the planner.

use uraid_layout::Cell;
use uraid_layout::field::{self, Factor};
use uraid_layout::stripe::Group;

/// A missing unit, and the groups that give it back: their sum, each times its weight, has no other missing unit.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    pub(crate) target: Cell,
    groups: [Option<(&'a Group, Factor)>; 2],
}

/// The next unit that can be had: a group's only missing one, or one of two that two groups have in common, unless the
/// groups say the same of them.
pub(crate) fn next_found(groups: &[Group], is_missing: impl Fn(Cell) -> bool) -> Option<Found<'_>> {
    let missing = |group: &Group| {
        let mut terms = group.terms().filter(|&(cell, _)| is_missing(cell));
        (terms.next(), terms.next(), terms.next())
    };
    for group in groups {
        if let (Some((target, factor)), None, _) = missing(group) {
            return Some(Found { target, groups: [Some((group, factor.inverse()?)), None] });
        }
    }
    let pairs = groups.iter().filter_map(|group| match missing(group) {
        (Some(x), Some(y), None) => Some((group, x, y)),
        _ => None,
    });
    let pairs: Vec<_> = pairs.collect();
    for (index, &(first, (target, a), (other, b))) in pairs.iter().enumerate() {
        for &(second, (x, c), (y, d)) in &pairs[index + 1..] {
            if (x, y) != (target, other) {
                continue;
            }
            // a x + b y = S and c x + d y = T, so x = (d S + b T) / (a d + b c).
            if let Some(inverse) = a.times(d).plus(b.times(c)).inverse() {
                let weights = [d, b].map(|weight| weight.times(inverse));
                let groups = [Some((first, weights[0])), Some((second, weights[1]))];
                return Some(Found { target, groups });
            }
        }
    }
    None
}

impl Found<'_> {
    /// The unit's content from that of all others; missing ones have none.
    pub(crate) fn content<'b>(&self, len: usize, of: impl Fn(Cell) -> Option<&'b [u8]>) -> Vec<u8> {
        let mut content = vec![0; len];
        for &(group, weight) in self.groups.iter().flatten() {
            for (cell, factor) in group.terms() {
                if let Some(bytes) = of(cell) {
                    field::add_multiple(&mut content, bytes, factor.times(weight));
                }
            }
        }
        content
    }
}

/// What a group's units, each times its factor, add up to: zeros where they agree. Units that are not there count as
/// nothing.
pub(crate) fn sum<'a>(group: &Group, len: usize, of: impl Fn(Cell) -> Option<&'a [u8]>) -> Vec<u8> {
    let mut sum = vec![0; len];
    for (cell, factor) in group.terms() {
        if let Some(bytes) = of(cell) {
            field::add_multiple(&mut sum, bytes, factor);
        }
    }
    sum
}
