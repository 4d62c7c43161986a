//! Content that reads show and no flush has covered: a member failed the flush, and the program was killed before
//! that was on record.

use uraid_io::engine::Command;
use uraid_io::format::superblock::{Consistency, Integrity};
use uraid_layout::{Level, MemberIndex, MemberSet};

use super::array::{Array, Opening, RAID5, expected};
use crate::disk::{Fault, Faults, Planned, Rate};
use crate::members::Members;

/// What the members' next users find: all that they show, and what some of them failed to flush.
fn killed(members: &Members, doubtful: MemberSet) -> Members {
    let mut left = members.clone();
    for slot in members.present().iter() {
        let member = left.get_mut(slot).expect("it is there");
        member.kill(|_| true);
        if doubtful.contains(slot) {
            member.flush_fails(member.flush_begins());
        } else {
            member.flush();
        }
    }
    left
}

pub(super) fn content_that_a_failed_flush_left_is_written_again() -> Result<(), String> {
    let arrays = [
        (RAID5, 3, Consistency::None),
        (RAID5, 3, Consistency::Bitmap),
        (Level::Raid1, 2, Consistency::Bitmap),
        (Level::Raid10 { copies: 2 }, 4, Consistency::None),
        (RAID5, 3, Consistency::Log),
    ];
    for (level, count, consistency) in arrays {
        let mut array = Array::new(level, count, consistency, Integrity::None, 4).with_written(0..4, 1)?;
        let mut life = array.open(Opening::Recovered)?;
        (0..4).try_for_each(|block| life.write(block, 2))?;
        array.members = killed(&life.disk.members(), array.geometry.all_members());
        let mut life = array.open(Opening::Recovered)?;
        let shown = (0..4).map(|block| life.read(block)).collect::<Result<Vec<_>, _>>()?;
        array.members = life.disk.members().cut(|_, _| 0);
        let mut life = array.open(Opening::Recovered)?;
        for (block, shown) in (0..).zip(shown) {
            if life.read(block)? != shown {
                return Err(format!("{level:?}, {consistency:?}: what block {block} held after a recovery is gone"));
            }
        }
    }
    Ok(())
}

/// A round of superblock writes reached all members, and their flushes failed. Whatever the power leaves of the next
/// start, no member is so far behind that it does not count.
pub(super) fn a_superblock_that_a_failed_flush_left_is_durable_before_the_next() -> Result<(), String> {
    let mut cuts = 0;
    for (level, count, consistency) in [(Level::Raid0, 2, Consistency::None), (RAID5, 3, Consistency::Log)] {
        let array = Array::new(level, count, consistency, Integrity::None, 4).with_written(0..1, 1)?;
        let mut life = array.open(Opening::Recovered)?;
        let members = array.geometry.all_members();
        life.disk.set_faults(Faults { members, flush_eio: Rate(Rate::OF), ..Faults::default() });
        let _ = life.write(0, 2);
        let left = Array { members: killed(&life.disk.members(), array.geometry.all_members()), ..array };
        let (_, verdict) = left.judge()?;
        if verdict.superblock.is_clean || left.members.unflushed().count() == 0 {
            return Err(format!("{level:?}: the round did not reach the members, or was flushed"));
        }
        for doubtful in (0..count).map(MemberIndex) {
            for steps in 0.. {
                let (members, is_over) =
                    left.cut_off(steps, |life| life.write(0, 3).and_then(|()| life.run(Command::Close).map(drop)))?;
                cuts += 1;
                // The one loses what is not durable, the others keep it.
                let members = members.cut(|place, count| if place.member == doubtful { 0 } else { count - 1 });
                let context = format!("{level:?}, doubts about {doubtful}, cut off after {steps}");
                let (_, verdict) =
                    Array { members, ..left.clone() }.judge().map_err(|no| format!("{context}: {no}"))?;
                if !verdict.missing().is_empty() {
                    return Err(format!("{context}: {:?} is set aside", verdict.missing()));
                }
                if is_over {
                    break;
                }
            }
        }
    }
    if cuts > 100 { Ok(()) } else { Err(format!("{cuts} cuts")) }
}

/// One member may lose its newest record while recovery already puts the others' in place: then nobody could do the
/// rest.
pub(super) fn a_record_that_a_failed_flush_left_is_durable_before_it_is_done_again() -> Result<(), String> {
    let (mut cuts, mut doubted) = (0, 0);
    for doubtful in (0..3).map(MemberIndex) {
        let new = Array::new(RAID5, 3, Consistency::Log, Integrity::None, 4).with_written(0..4, 1)?;
        let mut life = new.open(Opening::Recovered)?;
        life.write(0, 2)?;
        // The next record is written, and its flush never ends.
        for member in (0..3).map(MemberIndex) {
            let index = life.disk.count(member) + 1;
            life.disk.plan(Planned { member, index, fault: Fault::Hang, lasts: true });
        }
        let _ = life.write(1, 2);
        let left = Array { members: killed(&life.disk.members(), MemberSet::EMPTY.with(doubtful)), ..new };
        doubted += left.members.unflushed().count();
        for steps in 0.. {
            let (members, is_over) = left.cut_off(steps, |_| Ok(()))?;
            cuts += 1;
            // The one loses what is not durable, the others keep it.
            let members = members.cut(|place, count| if place.member == doubtful { 0 } else { count - 1 });
            let left = Array { members, ..left.clone() };
            for lost in
                [MemberSet::EMPTY].into_iter().chain((0..3).map(|slot| MemberSet::EMPTY.with(MemberIndex(slot))))
            {
                let mut life = left.without(lost).open(Opening::Recovered)?;
                for block in 0..left.blocks() {
                    let found = life.read(block)?;
                    let is_old = found == expected(block, 1) || block >= 4 && found.iter().all(|&byte| byte == 0);
                    if !is_old && (block > 1 || found != expected(block, 2)) {
                        return Err(format!(
                            "doubts about {doubtful}, cut off after {steps}, without {lost:?}: block {block}"
                        ));
                    }
                }
            }
            if is_over {
                break;
            }
        }
    }
    if cuts > 30 && doubted > 0 { Ok(()) } else { Err(format!("{cuts} cuts, {doubted} sectors in doubt")) }
}

/// Of a whole stripe the log has the sums alone: what members show of it is made durable before anything relies on it.
pub(super) fn a_whole_stripe_that_a_failed_flush_left_is_written_again() -> Result<(), String> {
    let mut doubted = 0;
    for doubtful in (0..3).map(MemberIndex) {
        let new = Array::new(RAID5, 3, Consistency::Log, Integrity::None, 4).with_written(0..4, 1)?;
        let mut life = new.open(Opening::Recovered)?;
        life.write_all(2..4, 2)?;
        let left = Array { members: killed(&life.disk.members(), MemberSet::EMPTY.with(doubtful)), ..new };
        doubted += left.members.unflushed().count();
        for steps in 0.. {
            let (members, is_over) = left.cut_off(steps, |life| life.run(Command::Close).map(drop))?;
            // The one loses what is not durable, the others keep it.
            let members = members.cut(|place, count| if place.member == doubtful { 0 } else { count - 1 });
            let left = Array { members, ..left.clone() };
            let all = (0..3).map(|slot| MemberSet::EMPTY.with(MemberIndex(slot)));
            for lost in [MemberSet::EMPTY].into_iter().chain(all) {
                let mut life = left.without(lost).open(Opening::Recovered)?;
                for block in 0..4 {
                    // With the power a member went: what can't be told is an error, and never made up.
                    let Ok(found) = life.read(block) else { continue };
                    if ![expected(block, 1), expected(block, 2)].contains(&found) {
                        let context = format!("doubts about {doubtful}, cut off after {steps}, without {lost:?}");
                        return Err(format!("{context}: block {block}"));
                    }
                }
            }
            if is_over {
                break;
            }
        }
    }
    if doubted > 0 { Ok(()) } else { Err("nothing was in doubt".into()) }
}
