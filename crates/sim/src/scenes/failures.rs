//! Members that fail, and members that come back.

use uraid_io::engine::Command;
use uraid_io::format::superblock::{Consistency, Integrity};
use uraid_layout::{Level, MemberIndex};

use super::array::{Array, BLOCK, Opening, RAID5, expected};
use crate::disk::{Fault, Planned};

pub(super) fn a_member_from_earlier_lives_is_set_aside() -> Result<(), String> {
    for consistency in [Consistency::None, Consistency::Bitmap, Consistency::Log] {
        let mut array = Array::new(Level::Raid1, 3, consistency, Integrity::None, 4).with_written(0..4, 1)?;
        let slot = MemberIndex(1);
        let old = array.members.get(slot).cloned();
        array = array.with_written(0..4, 2)?.with_written(0..4, 3)?;
        array.members.replace(slot, old);
        let (_, verdict) = array.judge()?;
        if !verdict.missing().contains(slot) {
            return Err(format!("{consistency:?}: a copy from two lives ago is accepted"));
        }
    }
    Ok(())
}

/// All members are copied, and both copies are used equally often; then a member of one is put into the other.
pub(super) fn members_of_two_copies_are_no_array() -> Result<(), String> {
    let arrays = [(Level::Raid1, Consistency::None), (RAID5, Consistency::Bitmap), (RAID5, Consistency::Log)];
    for (level, consistency) in arrays {
        let array = Array::new(level, 3, consistency, Integrity::None, 4).with_written(0..4, 1)?;
        let copy = Array { line: 1, ..array.clone() };
        let (mut mixed, other) = (array.with_written(0..4, 2)?, copy.with_written(0..4, 3)?);
        let slot = MemberIndex(1);
        mixed.members.replace(slot, other.members.get(slot).cloned());
        if mixed.judge().is_ok() {
            return Err(format!("{level:?}, {consistency:?}: a member of the other copy is accepted"));
        }
    }
    Ok(())
}

pub(super) fn a_write_that_too_many_members_fail_is_not_acknowledged() -> Result<(), String> {
    let arrays =
        [(Level::Raid1, 2, Consistency::Bitmap), (Level::Raid1, 2, Consistency::Log), (RAID5, 3, Consistency::Log)];
    for (level, count, consistency) in arrays {
        // From each of their operations on: while marking, while logging, in place, while flushing.
        for index in 0..24 {
            let mut array = Array::new(level, count, consistency, Integrity::None, 4).with_written(0..4, 1)?;
            let mut life = array.open(Opening::Recovered)?;
            for member in (0..2).map(MemberIndex) {
                life.disk.plan(Planned { member, index, fault: Fault::Eio, lasts: true });
            }
            let durable = (0..4).all(|block| life.write(block, 2).is_ok()) && life.run(Command::Flush).is_ok();
            if !durable {
                continue;
            }
            array.members = life.disk.members().cut(|_, _| 0);
            let mut life = array.open(Opening::Recovered)?;
            for block in 0..4 {
                if life.read(block)? != expected(block, 2) {
                    return Err(format!("{level:?}, {consistency:?}: a write that was acknowledged is gone"));
                }
            }
        }
    }
    Ok(())
}

pub(super) fn nothing_is_healed_from_parity_that_may_be_wrong() -> Result<(), String> {
    let mut array = Array::new(RAID5, 3, Consistency::None, Integrity::None, 4).with_written(0..8, 1)?;
    let mut life = array.open(Opening::Recovered)?;
    life.write(7, 2)?;
    array.members = life.disk.members().cut(|_, count| count - 1);
    // As a write leaves it that was cut off: parity of the first stripe is not what the data says.
    let [first, second] = [0, 1].map(|block| array.place(block));
    let parity = array.geometry.all_members().without(first.member).without(second.member);
    let parity = crate::members::MemberSector { member: parity.iter().next().expect("there are three"), ..first };
    let wrong: Vec<u8> = array.bytes(parity, BLOCK).iter().map(|byte| byte ^ 0x55).collect();
    array.put(parity, &wrong);
    let mut life = array.open(Opening::AsItIs)?;
    let index = life.disk.count(first.member);
    life.disk.plan(Planned { member: first.member, index, fault: Fault::Eio, lasts: false });
    // Whatever it says.
    let _ = life.read(0);
    array.members = life.disk.members();
    if array.bytes(first, BLOCK) == expected(0, 1) { Ok(()) } else { Err("a member's content was replaced".into()) }
}
