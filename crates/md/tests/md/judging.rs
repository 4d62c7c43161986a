//! Who belongs, by the rules of mdadm.

use uraid_md::{AssembleError, Options, Standing, assemble};

use crate::arrays::made;
use crate::image::{Recipe, assembled, content, found, one};

const EVENTS: usize = 200;

fn said(members: &[Vec<u8>]) -> Vec<String> {
    assembled(members, &Options::default()).members.iter().map(|member| member.standing.to_string()).collect()
}

fn error(members: &[Vec<u8>]) -> AssembleError {
    assembled(members, &Options::default()).array.err().unwrap()
}

#[test]
fn who_is_one_event_behind_belongs_and_who_is_further_does_not() {
    let recipe = Recipe::new(2, 5, 2, 4);
    let (mut members, wanted) = made(&recipe);
    recipe.change(&mut members[1], EVENTS, &19_u64.to_le_bytes());
    assert_eq!(said(&members), ["active"; 4]);
    recipe.change(&mut members[1], EVENTS, &18_u64.to_le_bytes());
    members[1][64 * 512..].fill(0x11);
    let assembly = assembled(&members, &Options::default());
    assert_eq!(assembly.members[1].standing.to_string(), "2 events behind: left out");
    assert_eq!((&assembly.missing[..], content(&assembly) == wanted), (&[1][..], true));
    // Without the others its own word is the newest.
    assert!(matches!(error(&members[1..2]), AssembleError::TooFew { members: 4, missing: 3 }));
    recipe.change(&mut members[2], EVENTS, &8_u64.to_le_bytes());
    assert_eq!(error(&members).to_string(), "too many members are missing: of 4 there are 2");
}

#[test]
fn the_newest_word_counts_about_who_failed() {
    for (recipe, at, failed) in [
        (Recipe::new(2, 5, 2, 4), 256 + 2, 0xfffe_u16.to_le_bytes().to_vec()),
        (Recipe::new(90, 5, 2, 4), (128 + 32 + 4) * 4, 1_u32.to_le_bytes().to_vec()),
    ] {
        let (mut members, wanted) = made(&recipe);
        members.iter_mut().enumerate().filter(|(slot, _)| *slot != 1).for_each(|(_, m)| recipe.change(m, at, &failed));
        let events = if recipe.version == 90 { 39 * 4 } else { EVENTS };
        recipe.change(&mut members[1], events, &19_u32.to_le_bytes());
        let assembly = assembled(&members, &Options::default());
        assert_eq!(assembly.members[1].standing.to_string(), "marked as failed by the others: left out");
        assert!(content(&assembly) == wanted);
    }
}

#[test]
fn spares_and_journals_are_no_members() {
    let recipe = Recipe::new(2, 5, 2, 3);
    let (mut members, wanted) = made(&recipe);
    for (number, role, events) in [(3_u32, 0xffff_u16, 90_u64), (4, 0xfffd, 20)] {
        let mut other = recipe.blank(2);
        recipe.change(&mut other, 160, &number.to_le_bytes());
        recipe.change(&mut other, 168, &[number as u8 + 1; 16]);
        recipe.change(&mut other, 256 + 2 * number as usize, &role.to_le_bytes());
        recipe.change(&mut other, EVENTS, &events.to_le_bytes());
        members.push(other);
    }
    let assembly = assembled(&members, &Options::default());
    let said: Vec<_> = assembly.members.iter().map(|member| member.standing.to_string()).collect();
    assert_eq!(said[3..], ["a spare: left out", "a write journal: left out"]);
    assert!(content(&assembly) == wanted);
}

#[test]
fn a_copy_of_a_member_is_refused_and_an_old_copy_left_out() {
    let recipe = Recipe::new(2, 5, 2, 3);
    let (mut members, wanted) = made(&recipe);
    members.push(members[1].clone());
    assert_eq!(error(&members).to_string(), "b and d both are the member in slot 1: name only one of them");
    recipe.change(&mut members[3], EVENTS, &3_u64.to_le_bytes());
    let assembly = assembled(&members, &Options::default());
    assert_eq!(assembly.members[3].standing.to_string(), "17 events behind: left out");
    assert!(content(&assembly) == wanted);
}

/// An array with another member for slot 1, with these features, of which so many sectors are ready.
fn with_replacement(features: u32, ready: u64) -> (Vec<Vec<u8>>, Vec<u8>) {
    let recipe = Recipe::new(2, 5, 2, 3);
    let (mut members, wanted) = made(&recipe);
    let mut next = recipe.blank(1);
    recipe.change(&mut next, 8, &features.to_le_bytes());
    recipe.change(&mut next, 160, &3_u32.to_le_bytes());
    recipe.change(&mut next, 152, &ready.to_le_bytes());
    members.push(next);
    // All of them know the role of device 3.
    members.iter_mut().for_each(|member| recipe.change(member, 256 + 6, &1_u16.to_le_bytes()));
    (members, wanted)
}

/// Whether it is ready or not (8 of 64 sectors), by its features or by its numbers.
#[test]
fn a_replacement_waits_while_the_member_is_there() {
    for (features, ready) in [(18, 8), (18, 64), (18, u64::MAX), (16, 0)] {
        let (mut members, wanted) = with_replacement(features, ready);
        for _ in 0..2 {
            let assembly = assembled(&members, &Options::default());
            let said: Vec<_> = assembly.members.iter().map(|member| member.standing.to_string()).collect();
            assert_eq!(said.iter().filter(|said| *said == "active").count(), 3, "{features} {ready}: {said:?}");
            assert!(said.iter().any(|said| said.ends_with("has its slot: left out")), "{said:?}");
            assert!(assembly.missing.is_empty() && content(&assembly) == wanted, "{features} {ready}");
            members.reverse();
        }
    }
}

#[test]
fn arrays_are_told_apart() {
    let (one, other) = (Recipe::new(2, 1, 0, 2), Recipe { uuid: 9, ..Recipe::new(1, 0, 0, 2) });
    let members = [made(&one).0, made(&other).0].concat();
    let arrays = assemble(found(&members).found, &Options::default());
    let sizes: Vec<_> = arrays.iter().map(|assembly| assembly.array.as_ref().unwrap().capacity().0).collect();
    assert_eq!(sizes, [64 * 512, 128 * 512]);
}

#[test]
fn who_describes_another_array_under_the_same_uuid_is_left_out() {
    let recipe = Recipe::new(2, 5, 2, 3);
    let (mut members, wanted) = made(&recipe);
    recipe.change(&mut members[0], 88, &16_u32.to_le_bytes());
    // Two that agree are right, in whatever order they are named.
    for order in [[1, 2, 0], [0, 1, 2], [1, 0, 2]] {
        let named = order.map(|slot: usize| members[slot].clone());
        let assembly = one(found(&named).found, &Options::default());
        let odd = order.iter().position(|&slot| slot == 0).unwrap();
        let said = assembly.members[odd].standing.to_string();
        assert_eq!(said, "describes another array under the same UUID: left out", "{order:?}");
        assert!(content(&assembly) == wanted, "{order:?}");
    }
}

#[test]
fn what_is_not_finished_or_elsewhere_is_refused_by_name() {
    let recipe = Recipe::new(2, 5, 2, 3);
    for (feature, refused) in
        [(4_u32, AssembleError::Reshape), (64, AssembleError::Reshape), (512, AssembleError::Journal)]
    {
        let mut members = made(&recipe).0;
        members.iter_mut().for_each(|member| recipe.change(member, 8, &feature.to_le_bytes()));
        assert_eq!(error(&members), refused);
    }
    let old = Recipe::new(90, 5, 2, 3);
    let mut members = made(&old).0;
    members.iter_mut().for_each(|member| old.change(member, 8, &91_u32.to_le_bytes()));
    assert_eq!(error(&members), AssembleError::Reshape);
}

#[test]
fn unequal_members_of_raid_0_need_an_order() {
    let (recipe, large) = (Recipe::new(2, 0, 0, 2), Recipe { size: 96, ..Recipe::new(2, 0, 0, 2) });
    let mut members = vec![recipe.blank(0), large.blank(1)];
    members.iter_mut().zip([&recipe, &large]).for_each(|(member, recipe)| recipe.change(member, 80, &[0; 8]));
    assert!(error(&members).to_string().contains("alternate"));
    // Without the feature the number in the field has no meaning.
    members.iter_mut().zip([&recipe, &large]).for_each(|(member, recipe)| recipe.change(member, 76, &[2]));
    assert!(error(&members).to_string().contains("alternate"));
    members.iter_mut().zip([&recipe, &large]).for_each(|(member, recipe)| {
        recipe.change(member, 8, &4096_u32.to_le_bytes());
        recipe.change(member, 76, &2_u32.to_le_bytes());
    });
    let assembly = assembled(&members, &Options::default());
    assert_eq!(assembly.array.unwrap().capacity().0, 160 * 512);
    assert!(assembly.members.iter().all(|member| matches!(member.standing, Standing::Active { .. })));
}
