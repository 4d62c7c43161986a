//! Copies of superblocks that are damaged.

use uraid_io::array::Assembled;
use uraid_io::format::superblock::{Consistency, Integrity, SUPERBLOCK_BYTES, Superblock, decode, encode, positions};
use uraid_io::member::Access;
use uraid_layout::{Bytes, Level, MemberIndex};
use uuid::Uuid;

use super::array::Array;
use crate::disk::{Ending, SimDisk, Steps};
use crate::members::{MemberSector, Members};
use crate::trace::Trace;
use uraid_random::Random;

/// Power cuts that are tried at each step.
const CUTS: u64 = 24;

/// A closed array of two mirrors, the newest versions of whose superblocks are in one of the slots at the head.
fn closed(is_even: bool) -> Result<Array, String> {
    let mut array = Array::new(Level::Raid1, 2, Consistency::Log, Integrity::None, 4).with_written(0..1, 1)?;
    for mut own in superblocks(&array.members)? {
        if own.revision.0.is_multiple_of(2) == is_even {
            continue;
        }
        own.revision.0 += 1;
        for offset in own.write_positions() {
            array.put(MemberSector { member: own.slot, offset }, &encode(&own));
        }
    }
    Ok(array)
}

fn superblocks(members: &Members) -> Result<Vec<Superblock>, String> {
    let all = members.superblocks();
    all.map(|(slot, own)| own.map_err(|error| format!("member {slot}: {error}"))).collect()
}

/// Changes a bit of one copy of each superblock.
fn damage(members: &mut Members, copy: usize) {
    for slot in members.present().iter() {
        let member = members.get_mut(slot).expect("it is there");
        let at = positions(member.size()).expect("it has room for superblocks")[copy];
        member.rot(Bytes(at.0 + SUPERBLOCK_BYTES as u64 / 2), 7, 1);
    }
}

/// Whether no member's superblock is of an earlier version than before.
fn went_back(before: &[Superblock], members: &Members) -> Result<Option<MemberIndex>, String> {
    let version = |own: &Superblock| (own.epoch, own.revision);
    let after = superblocks(members)?;
    let pairs = before.iter().zip(&after);
    Ok(pairs.filter(|(before, after)| version(after) < version(before)).map(|(own, _)| own.slot).next())
}

/// Where a copy of a member's superblock is damaged, if one is.
fn damaged_copy(members: &Members) -> Option<MemberSector> {
    let of = |member: MemberIndex| {
        let image = members.get(member).expect("it is there").current();
        let mut all = positions(image.size()).expect("it has room for superblocks").into_iter();
        let is_damaged = |at: &Bytes| {
            let mut copy = [0; SUPERBLOCK_BYTES];
            image.read(*at, &mut copy);
            decode(&copy).is_err()
        };
        all.find(is_damaged).map(|offset| MemberSector { member, offset })
    };
    members.present().iter().find_map(of)
}

/// One copy of each superblock is damaged, and the power goes at any step of opening: no superblock is lost. Once the
/// array is open, any copy may be damaged again.
pub(super) fn a_damaged_copy_of_a_superblock_is_made_good() -> Result<(), String> {
    for (copy, is_even) in (0..3).flat_map(|copy| [(copy, false), (copy, true)]) {
        let mut array = closed(is_even)?;
        let before = superblocks(&array.members)?;
        damage(&mut array.members, copy);
        for cut in 1.. {
            let context = format!("copy {copy}, even {is_even}, cut at step {cut}");
            if went_back(&before, &array.members)?.is_some() {
                return Err(format!("{context}: one copy is not as good as the other"));
            }
            let (candidates, verdict) = array.judge()?;
            let disk = SimDisk::new(array.members.clone(), Random::new(cut), Trace::default());
            disk.cut_after(Steps(cut));
            let generation = Uuid::from_u64_pair(cut, 1);
            let opened = Assembled::new(disk.clone(), &verdict, &candidates, Access::ReadWrite, generation);
            if opened.is_ok() {
                disk.cut();
            }
            for seed in 0..CUTS {
                let left = disk.leave(Ending::PowerCut, &mut Random::new(seed));
                match went_back(&before, &left).map_err(|error| format!("{context}: {error}"))? {
                    Some(slot) => return Err(format!("{context}: member {slot} has an earlier version")),
                    None if opened.is_err() => {}
                    None => {
                        if let Some(damaged) = damaged_copy(&left) {
                            return Err(format!("{context}: {damaged:?} is damaged as before"));
                        }
                        for again in 0..3 {
                            let mut rotten = left.clone();
                            damage(&mut rotten, again);
                            let slot = went_back(&before, &rotten).map_err(|error| format!("{context}: {error}"))?;
                            if let Some(slot) = slot {
                                return Err(format!("{context}, copy {again} again: member {slot} is not whole"));
                            }
                        }
                    }
                }
            }
            if opened.is_ok() {
                break;
            }
        }
    }
    Ok(())
}
