//! The content of a parity stripe for every level: the only place that knows what sets the levels apart.

use alloc::vec::Vec;

use super::{Level, Rotation, Spec, rm2};
use crate::Cell;
use crate::stripe::{Group, StripeMap};

/// The rows and the maps of a level's parity stripes; stripe s has map s mod the number of maps.
pub(super) struct Maps {
    pub(super) rows: usize,
    pub(super) maps: Vec<StripeMap>,
}

/// Builds the maps of a checked specification.
pub(super) fn build(spec: &Spec) -> Maps {
    let members = usize::from(spec.members);
    match spec.level {
        Level::Raid0 => Maps { rows: 1, maps: alloc::vec![StripeMap::new(members, cells(0..members), Vec::new())] },
        Level::Raid1 => mirrors(members, members),
        Level::Raid10 { copies } => mirrors(members, usize::from(copies)),
        Level::Raid5 { rotation } => {
            Maps { rows: 1, maps: (0..members).map(|stripe| raid5(members, rotation, stripe)).collect() }
        }
        Level::Rm2 { height, .. } => rm2(members, spec.members, height),
    }
}

/// Copies next to each other: position x of the stripe is member x mod N of row x div N, and every `copies` positions
/// hold one unit. Closed after the least common multiple of members and copies.
fn mirrors(members: usize, copies: usize) -> Maps {
    let rows = copies / greatest_common_divisor(members, copies);
    let positions = rows * members;
    let units = positions / copies;
    let data = cells((0..units).map(|unit| unit * copies));
    let groups = (0..units).flat_map(|unit| {
        let first = unit * copies;
        (1..copies).map(move |copy| Group { parity: cell(first + copy), data: alloc::vec![cell(first)] })
    });
    Maps { rows, maps: alloc::vec![StripeMap::new(positions, data, groups.collect())] }
}

/// Stripe `stripe` of the rotation's N.
fn raid5(members: usize, rotation: Rotation, stripe: usize) -> StripeMap {
    let parity = match rotation {
        Rotation::LeftAsymmetric | Rotation::LeftSymmetric => members - 1 - stripe,
        Rotation::RightAsymmetric | Rotation::RightSymmetric => stripe,
    };
    let data = (0..members - 1).map(|unit| match rotation {
        Rotation::LeftAsymmetric | Rotation::RightAsymmetric => unit + usize::from(unit >= parity),
        Rotation::LeftSymmetric | Rotation::RightSymmetric => (parity + 1 + unit) % members,
    });
    let data = cells(data);
    let group = Group { parity: cell(parity), data: data.clone() };
    StripeMap::new(members, data, alloc::vec![group])
}

/// P and Q of RAID 6, as md's left-symmetric layout rotates them: Q after P, then the data, and all wrap. Without
/// rotation every stripe is as the second one: P and Q on the last two members. Both groups cover all data. Q is no
/// XOR, but it reads and writes what one would.
pub(super) fn raid6(members: usize, is_rotated: bool) -> Maps {
    let stripe = |stripe: usize| {
        let parity = members - 1 - stripe;
        let data = cells((0..members - 2).map(|unit| (parity + 2 + unit) % members));
        let group = |parity: usize| Group { parity: cell(parity), data: data.clone() };
        let groups = alloc::vec![group(parity), group((parity + 1) % members)];
        StripeMap::new(members, data, groups)
    };
    let stripes = if is_rotated { 0..members } else { 1..2 };
    Maps { rows: 1, maps: stripes.map(stripe).collect() }
}

/// Row 0 is parity; data unit u is on member u mod N in row u div N + 1, so that N consecutive units keep all members
/// busy.
fn rm2(members: usize, narrow_members: u8, height: u8) -> Maps {
    let seed = rm2::rm2_seed(narrow_members, height).expect("a checked height has a seed");
    let rows = usize::from(height);
    let mut groups: Vec<Group> = (0..members).map(|group| Group { parity: cell(group), data: Vec::new() }).collect();
    for (row, &(a, b)) in (1..).zip(&seed) {
        for member in 0..members {
            for offset in [a, b] {
                groups[(member + usize::from(offset)) % members].data.push(cell(row * members + member));
            }
        }
    }
    Maps { rows, maps: alloc::vec![StripeMap::new(rows * members, cells(members..rows * members), groups)] }
}

fn cell(index: usize) -> Cell {
    Cell(u16::try_from(index).expect("a stripe has fewer than 65536 cells"))
}

fn cells(indices: impl Iterator<Item = usize>) -> Vec<Cell> {
    indices.map(cell).collect()
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
