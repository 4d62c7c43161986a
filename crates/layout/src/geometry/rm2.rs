//! RM2's seeds: in which two parity groups each data unit lies (Park & Choe, the redundancy matrix's first column).
//!
//! Data unit k = 1..M-1 of member j lies in groups (j + a) mod N and (j + b) mod N, (a, b) being the seed's pair k; the
//! parity of group i is on member i.

use alloc::vec::Vec;

use super::seeds::SEARCH_SEEDS;

pub(super) const MIN_MEMBERS: u8 = 4;
pub(super) const MAX_MEMBERS: u8 = 32;

/// The tallest parity stripe (the papers' M) with which RM2 on `members` members survives any two failures: the best
/// storage efficiency, (M - 1) / M. 0 when RM2 doesn't work with that many members.
#[must_use]
pub fn default_height(members: u8) -> u8 {
    if !(MIN_MEMBERS..=MAX_MEMBERS).contains(&members) {
        return 0;
    }
    let pairs = SEARCH_SEEDS[usize::from(members - MIN_MEMBERS)].len();
    u8::try_from(pairs + 1).expect("a seed has fewer pairs than members")
}

/// The offset pairs of data units 1 to `height` - 1: the nested seed where it decodes, else the search seed. None where
/// no seed is known to survive any two failures.
#[must_use]
pub fn rm2_seed(members: u8, height: u8) -> Option<Vec<(u8, u8)>> {
    if height < 2 || height > default_height(members) {
        return None;
    }
    if is_nested_decodable(members, height) {
        return Some((1..height).map(|unit| (height - unit, height - 1 + unit)).collect());
    }
    let search = SEARCH_SEEDS[usize::from(members - MIN_MEMBERS)];
    Some(search[..usize::from(height) - 1].to_vec())
}

/// Even N: N >= 4M - 5. Odd N: M <= N(q - 1) / 2q, with q the smallest prime factor of N.
fn is_nested_decodable(members: u8, height: u8) -> bool {
    let (n, m) = (u32::from(members), u32::from(height));
    if n % 2 == 0 {
        return n + 5 >= 4 * m;
    }
    let q = (3..=n).find(|factor| n % factor == 0).expect("a number divides itself");
    2 * q * m <= n * (q - 1)
}
