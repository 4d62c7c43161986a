//! Members that say anything that a sound superblock can say, each for itself: they are an array, or refused.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uraid_fuzz::Input;
use uraid_fuzz::members::{Sound, array, seal};
use uraid_io::array::{Candidate, OpenOptions, check_presence, judge};
use uraid_io::format::superblock::{Superblock, decode};
use uraid_io::member::Access;

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let members = array(input.byte());
    let mut candidates: Vec<Candidate> = Vec::new();
    for (number, member) in members.iter().enumerate() {
        // Most are as they should be, some are absent, some are there twice.
        let fate = input.byte();
        let copies = [1, 1, 1, 1, 1, 1, 0, 2][usize::from(fate % 8)];
        for copy in 0..copies {
            let superblock = if fate & 8 == 0 { Some(member.superblock.clone()) } else { changed(member, &mut input) };
            let path = format!("member{number}.{copy}").into();
            candidates.extend(superblock.map(|superblock| Candidate { path, superblock }));
        }
    }
    let Ok(verdict) = judge(&candidates) else { return };
    let newest = candidates.iter().map(|candidate| candidate.superblock.epoch).max();
    assert_eq!(Some(verdict.superblock.epoch), newest, "the newest superblock holds");
    assert_eq!(verdict.slots.len(), verdict.geometry.members());
    for (slot, &index) in verdict.slots.iter().enumerate() {
        let Some(index) = index else { continue };
        let accepted = &candidates[index].superblock;
        assert_eq!(accepted.slot.index(), slot, "a member is in the slot that it names");
        assert_eq!(accepted.spec, verdict.superblock.spec, "members describe one array");
        assert_eq!(accepted.member, verdict.superblock.slots[slot].member, "the array knows its members");
        assert!(verdict.set_aside.iter().all(|&(aside, _)| aside != index), "a member is accepted or set aside");
    }
    for options in 0..4 {
        let (allow_degraded, force) = (options & 1 != 0, options & 2 != 0);
        let _ = check_presence(&verdict, &candidates, OpenOptions { access: Access::ReadWrite, allow_degraded, force });
    }
});

/// What else the member could say, if that is sound.
fn changed(member: &Sound, input: &mut Input<'_>) -> Option<Superblock> {
    let mut bytes = member.bytes;
    input.change(&mut bytes);
    seal(&mut bytes);
    decode(&bytes).ok()
}
