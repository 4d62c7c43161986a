//! Whole arrays: content is read, and computed, whatever is lost.

use proptest::prelude::*;
use uraid_layout::{Bytes, Lba};
use uraid_md::geometry::{Geometry, Slot};
use uraid_md::{Options, ReadError};

use crate::image::{Recipe, SECTOR, assembled, content, put};

/// The product in GF(2^8), as on paper.
fn product(mut a: u16, mut b: u16) -> u8 {
    let mut product = 0;
    while b > 0 {
        product ^= if b & 1 == 1 { a } else { 0 };
        a <<= 1;
        a ^= if a & 0x100 == 0 { 0 } else { 0x11d };
        b >>= 1;
    }
    product as u8
}

/// Content that is different in every sector.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[1]).collect()
}

/// Writes content to blank members, with parities.
fn fill(recipe: &Recipe, members: &mut [Vec<u8>], geometry: &Geometry, content: &[u8]) {
    let at = |sector: u64| (recipe.data_offset() + sector) as usize * SECTOR;
    for (lba, sector) in (0..).map(Lba).zip(content.chunks(SECTOR)) {
        for copy in geometry.locate(lba).unwrap().copies {
            put(&mut members[usize::from(copy.slot.0)], at(copy.sector.0), sector);
        }
        let Some(stripe) = geometry.stripe(lba) else { continue };
        let (_, power) = *stripe.data.iter().find(|(slot, _)| *slot == stripe.own).unwrap();
        let factor = (0..power).fold(1, |factor, _| product(factor.into(), 2));
        let mut add = |slot: Slot, factor: u8| {
            let parity = &mut members[usize::from(slot.0)][at(stripe.sector.0)..][..SECTOR];
            parity.iter_mut().zip(sector).for_each(|(p, &byte)| *p ^= product(byte.into(), factor.into()));
        };
        add(stripe.p, 1);
        stripe.q.into_iter().for_each(|q| add(q, factor));
    }
}

/// Members of an array, and what it holds.
pub(crate) fn made(recipe: &Recipe) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut members: Vec<Vec<u8>> = (0..recipe.members).map(|slot| recipe.blank(slot)).collect();
    let blank = assembled(&members, &Options::default());
    let geometry = blank.array.as_ref().unwrap().geometry().clone();
    let content = pattern(geometry.capacity().bytes().0 as usize);
    fill(recipe, &mut members, &geometry, &content);
    (members, content)
}

/// Every way to lose up to `most` of them.
fn losses(members: &[Vec<u8>], most: u32) -> impl Iterator<Item = Vec<Vec<u8>>> + '_ {
    let chosen = (0..1_u32 << members.len()).filter(move |lost| lost.count_ones() <= most);
    chosen
        .map(move |lost| (0..).zip(members).filter(|(slot, _)| lost >> slot & 1 == 0).map(|(_, m)| m.clone()).collect())
}

#[test]
fn content_is_there_after_every_loss() {
    let mut recipes = vec![(Recipe::new(2, 1, 0, 3), 2), (Recipe::new(0, 4, 0, 4), 1)];
    recipes.extend((0..6).map(|layout| (Recipe::new(layout % 3, 5, layout, 4), 1)));
    let double = [0, 1, 2, 3, 4, 5, 8, 9, 10, 16, 17, 18, 19, 20];
    recipes.extend(double.map(|layout| (Recipe::new(2, 6, layout, 6), 2)));
    recipes.extend([0x102, 0x201, 0x1_0201, 0x4_0201].map(|layout| (Recipe::new(1, 10, layout, 5), 1)));
    recipes.extend([(Recipe::new(90, 5, 2, 3), 1), (Recipe::new(90, 6, 2, 4), 2), (Recipe::new(90, 1, 0, 2), 1)]);
    recipes.extend([(Recipe::new(2, 0, 0, 3), 0), (Recipe::new(2, -1, 0, 3), 0), (Recipe::new(90, 0, 0, 2), 0)]);
    for (recipe, most) in recipes {
        let (members, wanted) = made(&recipe);
        for mut left in losses(&members, most) {
            left.reverse();
            let assembly = assembled(&left, &Options::default());
            assert_eq!(assembly.missing.len(), members.len() - left.len());
            assert!(content(&assembly) == wanted, "{} layout {:#x}", recipe.level, recipe.layout);
        }
        for left in losses(&members, most + 1).filter(|left| !left.is_empty()) {
            let lost = members.len() - left.len();
            if lost > most as usize && recipe.level != 10 {
                let refused = assembled(&left, &Options::default()).array.err().unwrap();
                assert!(refused.to_string().contains("too many members are missing"), "{refused}");
            }
        }
    }
}

/// A list of bad blocks behind the superblock of 1.2, of these ranges of the member's data.
fn mark_bad(recipe: &Recipe, member: &mut [u8], ranges: &[(u64, u64)]) {
    let list = 16 * SECTOR;
    member[list..list + SECTOR].fill(0xff);
    for (index, (start, len)) in ranges.iter().enumerate() {
        put(member, list + index * 8, &((recipe.data_offset() + start) << 10 | len).to_le_bytes());
        let at = (recipe.data_offset() + start) as usize * SECTOR;
        member[at..at + *len as usize * SECTOR].fill(0xee);
    }
    recipe.change(member, 8, &8_u32.to_le_bytes());
    recipe.change(member, 186, &1_u16.to_le_bytes());
    recipe.change(member, 188, &8_u32.to_le_bytes());
}

#[test]
fn bad_blocks_are_computed_and_where_they_meet_content_is_lost() {
    let recipe = Recipe::new(2, 5, 2, 3);
    let (mut members, wanted) = made(&recipe);
    mark_bad(&recipe, &mut members[0], &[(3, 2), (40, 8)]);
    // In one row both lack something, and neither the same: each sector is computed by itself.
    mark_bad(&recipe, &mut members[1], &[(6, 1), (20, 1)]);
    let assembly = assembled(&members, &Options::default());
    assert_eq!(assembly.members.iter().map(|member| member.bad_blocks).collect::<Vec<_>>(), [2, 2, 0]);
    assert!(content(&assembly) == wanted);

    // Row 0 is "0 1 P": sector 4 of both members is content.
    mark_bad(&recipe, &mut members[1], &[(4, 1)]);
    let assembly = assembled(&members, &Options::default());
    let array = assembly.array.unwrap();
    for (lba, lost) in [(3, false), (4, true), (5, false), (11, false), (12, true), (13, false)] {
        let mut sector = [0; SECTOR];
        let read = array.read(Bytes(lba * 512), &mut sector);
        let at = lba as usize * SECTOR;
        assert_eq!(read, if lost { Err(ReadError::Lost(Lba(lba))) } else { Ok(()) });
        assert!(lost || sector[..] == wanted[at..at + SECTOR]);
    }
}

#[test]
fn raid_6_computes_two_bad_sectors_of_a_row() {
    let recipe = Recipe::new(2, 6, 2, 5);
    let (mut members, wanted) = made(&recipe);
    (0..2).for_each(|slot| mark_bad(&recipe, &mut members[slot], &[(0, 64)]));
    assert!(content(&assembled(&members, &Options::default())) == wanted);
    mark_bad(&recipe, &mut members[2], &[(9, 1)]);
    let array = assembled(&members, &Options::default()).array.unwrap();
    let mut all = vec![0; wanted.len()];
    assert!(matches!(array.read(Bytes(0), &mut all), Err(ReadError::Lost(_))));
}

#[test]
fn a_member_that_is_being_rebuilt_counts_up_to_where_that_is() {
    let recipe = Recipe::new(2, 5, 2, 3);
    let (mut members, wanted) = made(&recipe);
    let from = (recipe.data_offset() + 20) as usize * SECTOR;
    members[1][from..].fill(0x55);
    recipe.change(&mut members[1], 8, &2_u32.to_le_bytes());
    recipe.change(&mut members[1], 152, &20_u64.to_le_bytes());
    let assembly = assembled(&members, &Options::default());
    assert_eq!(assembly.missing, [1]);
    assert_eq!(assembly.members[1].standing.to_string(), "being rebuilt, up to sector 20 of its data");
    assert!(content(&assembly) == wanted);
    // It is as good as missing: without another one there is not enough.
    assert!(assembled(&members[..2], &Options::default()).array.is_err());
}

#[test]
fn parity_of_an_unclean_array_counts_only_if_somebody_says_so() {
    let recipe = Recipe::new(2, 5, 2, 3);
    let (mut members, wanted) = made(&recipe);
    for member in &mut members {
        recipe.change(member, 208, &16_u64.to_le_bytes());
    }
    assert!(content(&assembled(&members, &Options::default())) == wanted);
    let degraded = assembled(&members[1..], &Options::default()).array.err().unwrap();
    assert!(degraded.to_string().contains("--force"), "{degraded}");
    let trust = Options { trust_parity: true, ..Options::default() };
    assert!(content(&assembled(&members[1..], &trust)) == wanted);
    // Parity counts before sector 16 of each member. Rows 1 and 2 are "3 P 2" and "P 4 5".
    let bad = |members: &mut [Vec<u8>], slot: usize, sector| {
        mark_bad(&recipe, &mut members[slot], &[(sector, 1)]);
        let array = assembled(members, &Options::default()).array.unwrap();
        let mut all = vec![0; wanted.len()];
        array.read(Bytes(0), &mut all)
    };
    assert_eq!(bad(&mut members, 0, 15), Ok(()));
    assert_eq!(bad(&mut members, 1, 16), Err(ReadError::Lost(Lba(32))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_range_of_bytes_is_read(start in 0..32768_usize, len in 0..20000_usize, lost in 0..4_usize) {
        let (mut members, wanted) = made(&Recipe::new(2, 6, 10, 4));
        members.remove(lost);
        let array = assembled(&members, &Options::default()).array.unwrap();
        let mut bytes = vec![0; len];
        let read = array.read(Bytes(start as u64), &mut bytes);
        match wanted.get(start..start + len) {
            Some(wanted) => prop_assert!(read.is_ok() && bytes == wanted),
            None => prop_assert_eq!(read, Err(ReadError::BeyondEnd)),
        }
    }
}
