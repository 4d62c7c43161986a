//! Reshapes of stopped arrays that are put on record and go on while the arrays are served.

use uraid_io::array::{Assembled, Target, begin_reshape, judge, plan_reshape};
use uraid_io::format::superblock::{Areas, Consistency, Superblock};
use uraid_io::member::Access;
use uraid_layout::{Bytes, Geometry};

use super::array::Array;
use super::finding::Finding;
use super::found::Found;
use super::reshaping::{give_log, new_members, newcomer, slot_of};
use super::roster::Roster;
use super::scenario::uuid;
use super::served::{Mover, given_up, suits, superblocks_of};
use super::shapes::{draw_target, log_min};
use super::shelf::Shelf;
use crate::disk::{Ending, SimDisk};
use crate::members::Members;
use crate::trace::Trace;
use uraid_random::Random;

/// Puts a reshape of a stopped array on record that can be served meanwhile, if the array was closed, enough of it
/// is left, and there is one.
///
/// # Errors
/// What must not be.
pub(super) fn begin(
    mover: &mut Mover,
    array: &mut Array,
    shelf: &mut Shelf,
    mut roster: Option<&mut Roster>,
    trace: &Trace,
) -> Result<(), Finding> {
    let Some(found) = shelf.stopped(roster.as_deref_mut(), &mut mover.random, trace)? else { return Ok(()) };
    if array.course.is_some() {
        return Ok(());
    }
    let Some(members) = put_on_record(mover, &found, trace)? else {
        mover.counts.left_alone += 1;
        return Ok(());
    };
    let candidates = members.candidates();
    let verdict = judge(&candidates).map_err(|error| refused(&error))?;
    let truth = &verdict.superblock;
    trace.note(format_args!("a reshape is on record: {:?}", truth.reshape));
    array.scenario.superblocks = superblocks_of(truth, &members);
    array.course = truth.course();
    shelf.altered(&members, verdict.missing(), |member| suits(member, truth));
    roster.into_iter().for_each(|roster| roster.altered(given_up(truth), |member| suits(member, truth)));
    mover.counts.begun += 1;
    Ok(())
}

/// Takes note of whether the reshape is on record that a served array began when its last life was cut off.
///
/// # Errors
/// When the members do not say.
pub(super) fn settle(
    mover: &mut Mover,
    array: &mut Array,
    shelf: &mut Shelf,
    roster: Option<&mut Roster>,
    trace: &Trace,
) -> Result<(), Finding> {
    if array.undecided.take().is_none() {
        return Ok(());
    }
    let (truth, members) = shelf.judged()?;
    trace.note(format_args!("cut off when it began, a reshape is on record: {:?}", truth.reshape));
    mover.counts.begun_cut_off += 1;
    if truth.reshape.is_none() {
        // Nobody names the new members any more.
        shelf.reshaped(array.slots(), |member| suits(member, &truth));
        return Ok(());
    }
    mover.counts.begun += 1;
    mover.counts.begun_running += 1;
    array.scenario.superblocks = superblocks_of(&truth, &members);
    array.course = truth.course();
    shelf.begun(array.slots(), |member| suits(member, &truth));
    roster.into_iter().for_each(|roster| roster.altered(given_up(&truth), |member| suits(member, &truth)));
    Ok(())
}

/// The members with a reshape on record; none where there is none that can be served.
fn put_on_record(mover: &mut Mover, found: &Found, trace: &Trace) -> Result<Option<Members>, Finding> {
    let random = &mut mover.random;
    let (from, truth) = (&found.verdict.geometry, &found.verdict.superblock);
    let target = Target { kept: None, ..draw_target(from, random) };
    trace.note(format_args!("the array is to become {target:?} while it is served"));
    let mut members = found.members.clone();
    // What can't be read can't be moved, and nobody else has it in its place.
    members.recuperate();
    give_logs(&mut members, truth, from, &target, random);
    members.extend_to(usize::from(target.members));
    for index in from.members()..usize::from(target.members) {
        members.replace(slot_of(index), Some(newcomer(truth, random)));
    }
    let candidates = members.only(from.all_members()).candidates();
    let verdict = judge(&candidates).map_err(|error| refused(&error))?;
    let disk = SimDisk::new(members.clone(), random.fork(), trace.clone());
    let generation = uuid(random);
    let assembled = Assembled::new(disk.clone(), &verdict, &candidates, Access::ReadWrite, generation);
    let assembled = assembled.map_err(|error| refused(&error))?;
    let new = new_members(&members, from.members()..usize::from(target.members));
    let plan = match plan_reshape(&assembled, &target, &new) {
        Ok(plan) if plan.check_served().is_ok() => plan,
        // Which refusals are right is looked at where stopped arrays are reshaped.
        Ok(_) => return Ok(None),
        Err(error) => {
            trace.note(format_args!("it is not: {error}"));
            return Ok(None);
        }
    };
    drop(begin_reshape(assembled, plan, generation, Ok).map_err(|error| refused(&error))?);
    Ok(Some(disk.leave(Ending::PowerCut, random)))
}

fn refused(error: &dyn std::error::Error) -> Finding {
    Finding::Refused { error: error.to_string() }
}

/// Gives the members logs of which half is enough for each shape, and not much more: of a stopped array nothing is in
/// them.
fn give_logs(members: &mut Members, truth: &Superblock, from: &Geometry, target: &Target, random: &mut Random) {
    let Areas { log, sums, .. } = truth.areas;
    let room = sums.offset.0 - log.offset.0;
    let spec = *from.spec();
    let now = Target { level: spec.level, members: spec.members, chunk: spec.chunk, ..*target };
    let least = match truth.consistency {
        Consistency::Log => 2 * log_min(&now).0.max(log_min(target).0),
        _ => 32 << 10,
    };
    let size = (least * random.within(1, 2)).next_multiple_of(8192).max(log.size.0).min(room);
    members.present().iter().for_each(|slot| give_log(members, slot, Bytes(size)));
}
