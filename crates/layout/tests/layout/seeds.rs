//! Every seed of RM2 proven: all single and double failures decode, by rank over GF(2) and by peeling; and no taller
//! parity stripe than the tallest offered does.

use uraid_layout::geometry::{default_height, rm2_seed};
use uraid_layout::repair::Repair;
use uraid_layout::{Geometry, Level, MemberIndex, MemberSet, Placement};

use crate::oracle::{is_published, rank, spec};

type Seed = [(u8, u8)];

/// Whether losing `failed` can be undone, from the redundancy matrix's definition: unknowns are the lost parity units
/// and the lost data units, equations the parity groups.
fn is_decodable(n: usize, seed: &Seed, failed: &[usize]) -> bool {
    let mut groups = vec![0u64; n];
    let mut unknowns = 0;
    for &member in failed {
        groups[member] |= 1 << unknowns;
        unknowns += 1;
        for &(a, b) in seed {
            groups[(member + usize::from(a)) % n] |= 1 << unknowns;
            groups[(member + usize::from(b)) % n] |= 1 << unknowns;
            unknowns += 1;
        }
    }
    rank(groups) == unknowns
}

fn survives_any_two(n: usize, seed: &Seed) -> bool {
    (0..n).all(|x| is_decodable(n, seed, &[x]) && (0..x).all(|y| is_decodable(n, seed, &[x, y])))
}

fn members(indices: &[usize]) -> MemberSet {
    indices.iter().map(|&member| MemberIndex(u8::try_from(member).expect("members fit a byte"))).collect()
}

#[test]
fn every_seed_survives_any_two_failures() {
    let mut proven = 0usize;
    for n in 4..=32u8 {
        for height in 2..=default_height(n) {
            let seed = rm2_seed(n, height).unwrap();
            assert_eq!(seed.len() + 1, usize::from(height));
            assert!(survives_any_two(n.into(), &seed), "N = {n}, M = {height}: {seed:?}");
            let level = Level::Rm2 { height, placement: Placement::Adjacent };
            let geometry = Geometry::new(spec(level, n, 4, 16)).unwrap();
            for x in 0..usize::from(n) {
                for y in 0..=x {
                    let failed = members(&[x, y]);
                    assert!(Repair::new(&geometry, failed).is_ok(), "N = {n}, M = {height}: {failed:?}");
                }
            }
            proven += 1;
        }
    }
    // Half the members, rounded down, is the tallest for all but N = 8; height 1 has no data.
    let heights: usize = (4..=32).map(|n| n / 2 - 1 - usize::from(n == 8)).sum();
    assert_eq!(proven, heights);
}

#[test]
fn the_published_bound_is_served_by_the_nested_seed() {
    for n in 4..=32u8 {
        for height in (2..=16).filter(|&m| is_published(n.into(), m.into())) {
            let nested: Vec<(u8, u8)> = (1..height).map(|k| (height - k, height - 1 + k)).collect();
            assert_eq!(rm2_seed(n, height), Some(nested), "N = {n}, M = {height}");
        }
    }
}

/// Beyond the published bound the nested seed serves exactly as far as it decodes.
#[test]
fn the_nested_seed_serves_where_it_decodes() {
    for n in 4..=32u8 {
        for height in 2..=default_height(n) {
            let nested: Vec<(u8, u8)> = (1..height).map(|k| (height - k, height - 1 + k)).collect();
            let is_served = rm2_seed(n, height).unwrap() == nested;
            assert_eq!(is_served, survives_any_two(n.into(), &nested), "N = {n}, M = {height}");
        }
    }
}

/// Tries every set of pairs: for a few members that is quick. Eight members stop at 3 rows, where others reach N/2.
#[test]
fn no_taller_stripe_decodes() {
    fn search(n: usize, pairs: &[(u8, u8)], seed: &mut Vec<(u8, u8)>, missing: usize) -> bool {
        if missing == 0 {
            return true;
        }
        // Any part of a decodable seed is decodable.
        pairs.iter().enumerate().any(|(index, &pair)| {
            seed.push(pair);
            let found = survives_any_two(n, seed) && search(n, &pairs[index + 1..], seed, missing - 1);
            seed.pop();
            found
        })
    }
    for n in 4..=10u8 {
        let pairs: Vec<(u8, u8)> = (1..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))).collect();
        let tallest = usize::from(default_height(n));
        assert!(search(n.into(), &pairs, &mut Vec::new(), tallest - 1), "N = {n} has M = {tallest}");
        assert!(!search(n.into(), &pairs, &mut Vec::new(), tallest), "N = {n} has no M = {}", tallest + 1);
    }
}

#[test]
fn there_are_no_other_seeds() {
    assert_eq!(rm2_seed(8, 4), None);
    for (n, height) in [(7, 0), (7, 1), (7, 4), (3, 2), (33, 2), (0, 2), (255, 2)] {
        assert_eq!(rm2_seed(n, height), None, "N = {n}, M = {height}");
    }
}
