//! The content of a parity stripe for every level: the only place that knows what sets the levels apart.

use alloc::vec::Vec;

use super::{Level, Rotation, Spec, rm2};
use crate::Cell;
use crate::field::Factor;
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
        Level::Raid6 { rotation } => {
            Maps { rows: 1, maps: (0..members).map(|stripe| raid6(members, rotation, stripe)).collect() }
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
        (1..copies).map(move |copy| Group::xor(cell(first + copy), [cell(first)]))
    });
    Maps { rows, maps: alloc::vec![StripeMap::new(positions, data, groups.collect())] }
}

/// Stripe `stripe` of the rotation's N.
fn raid5(members: usize, rotation: Rotation, stripe: usize) -> StripeMap {
    let parity = first_parity(members, rotation, stripe);
    let data = (0..members - 1).map(|unit| match rotation {
        Rotation::LeftAsymmetric | Rotation::RightAsymmetric => unit + usize::from(unit >= parity),
        Rotation::LeftSymmetric | Rotation::RightSymmetric => (parity + 1 + unit) % members,
    });
    let data = cells(data);
    let group = Group::xor(cell(parity), data.iter().copied());
    StripeMap::new(members, data, alloc::vec![group])
}

/// Where parity is in stripe `stripe` of the rotation's N; of two, P.
fn first_parity(members: usize, rotation: Rotation, stripe: usize) -> usize {
    match rotation {
        Rotation::LeftAsymmetric | Rotation::LeftSymmetric => members - 1 - stripe,
        Rotation::RightAsymmetric | Rotation::RightSymmetric => stripe,
    }
}

/// Stripe `stripe` of the rotation's N, as md places it: Q is on the member after P. P is the XOR of all data. In Q the
/// member k places behind Q counts 2^k times, whatever the order of the data (Anvin, equation 2; md's `raid6_d0`).
fn raid6(members: usize, rotation: Rotation, stripe: usize) -> StripeMap {
    let p = first_parity(members, rotation, stripe);
    let q = (p + 1) % members;
    let data = (0..members - 2).map(|unit| match rotation {
        // Q of a stripe whose P is on the last member is on the first.
        Rotation::LeftAsymmetric | Rotation::RightAsymmetric if q == 0 => unit + 1,
        Rotation::LeftAsymmetric | Rotation::RightAsymmetric => unit + if unit >= p { 2 } else { 0 },
        Rotation::LeftSymmetric | Rotation::RightSymmetric => (q + 1 + unit) % members,
    });
    let data = cells(data);
    let terms = (0..members - 2).map(|place| (cell((q + 1 + place) % members), Factor::power(place)));
    let groups = alloc::vec![Group::xor(cell(p), data.iter().copied()), Group::new(cell(q), terms.collect())];
    StripeMap::new(members, data, groups)
}

/// P and Q of RAID 6 on the last two members of every stripe.
pub(super) fn raid6_fixed(members: usize) -> Maps {
    Maps { rows: 1, maps: alloc::vec![raid6(members, Rotation::RightSymmetric, members - 2)] }
}

/// Row 0 is parity; data unit u is on member u mod N in row u div N + 1, so that N consecutive units keep all members
/// busy.
fn rm2(members: usize, narrow_members: u8, height: u8) -> Maps {
    let seed = rm2::rm2_seed(narrow_members, height).expect("a checked height has a seed");
    let rows = usize::from(height);
    let mut data: Vec<Vec<Cell>> = alloc::vec![Vec::new(); members];
    for (row, &(a, b)) in (1..).zip(&seed) {
        for member in 0..members {
            for offset in [a, b] {
                data[(member + usize::from(offset)) % members].push(cell(row * members + member));
            }
        }
    }
    let groups = data.into_iter().enumerate().map(|(group, data)| Group::xor(cell(group), data)).collect();
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
