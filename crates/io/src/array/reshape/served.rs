//! Reshapes of an array that is served begin and end while its engine is closed for a moment, with nothing to do. Then
//! it goes on with what the members have on record by then.

use std::path::PathBuf;

use uuid::Uuid;

use super::content::Lent;
use super::error::ReshapeError;
use super::members::Members;
use super::plan::{self, NewMember, ReshapePlan, State, Target};
use super::{Reshaping, make_new, put_on_record};
use crate::disk::Disk;
use crate::engine::{Engine, EngineError, Kept, Record};
use crate::format::superblock::Superblock;

/// How a served array gets another shape; `new` are members that join, for the slots after those that it has. Nothing
/// is written.
///
/// # Errors
/// See [`ReshapeError`].
///
/// # Panics
/// When new members join that the shape has no slots for.
pub fn plan_served<D: Disk, T>(
    engine: &Engine<D, T>,
    target: &Target,
    new: &[NewMember],
) -> Result<ReshapePlan, ReshapeError> {
    engine.check_changes()?;
    if engine.reshape().is_some() {
        return Err(EngineError::Reshaping.into());
    }
    let Kept { record, bad_blocks, blank } = engine.kept();
    let (geometry, is_blank) = (engine.geometry(), blank.is_some());
    let state = State { geometry, record: &record, bad_blocks: &bad_blocks, is_blank, is_clean: true };
    let plan = plan::plan(&state, target, new)?;
    plan.check_served()?;
    Ok(plan)
}

/// Begins the reshape of a served array, whose engine was closed a moment ago and has nothing to do; blocks. The new
/// members are in the disk, in the slots after those of the array. The engine goes on with both shapes, without cache,
/// deadlines and limits. `generation` is a number that nobody can guess.
///
/// # Errors
/// As [`plan_served`]; when the engine is at work. When a new member fails: the array is as it was, and can be used.
/// When one of its own does: then the engine is frozen.
///
/// # Panics
/// As [`plan_served`].
pub fn begin_served<D: Disk, T>(
    engine: &mut Engine<D, T>,
    target: &Target,
    new: &[NewMember],
    generation: Uuid,
) -> Result<(), ReshapeError> {
    if !engine.is_idle() {
        return Err(EngineError::Busy.into());
    }
    let plan = plan_served(engine, target, new)?;
    let Kept { record, bad_blocks, .. } = engine.kept();
    if !record.is_clean() {
        return Err(EngineError::Busy.into());
    }
    // Who is missing and not on record as that goes on record with the beginning.
    make_new(&plan, engine.disk_mut(), record.any(), generation)?;
    let paths = vec![PathBuf::new(); record.superblocks().count()];
    let begun = put_on_record(plan, Lent(engine.disk_mut()), (&record, bad_blocks), paths, generation);
    let begun = begun.map(|Reshaping { members, course }| {
        let (_, own, lists) = members.into_record();
        (own, lists, course.from().clone())
    });
    let result = begun.and_then(|(own, bad_blocks, geometry)| {
        Ok(engine.restart(geometry, Kept { record: Record::new(own), bad_blocks, blank: None }, None)?)
    });
    if result.is_err() && !planted!(ReshapeBegunUnfrozen) {
        // Members may have more on record by now than this engine knows.
        engine.freeze();
    }
    result
}

/// Ends the reshape of a served array: all content is where it is to be, and its engine was closed a moment ago and has
/// nothing to do. It goes on with the shape that the array has now, without cache, deadlines and limits. The members
/// that the array has no place for any more are still in the disk, in the slots after its own.
///
/// # Errors
/// When the engine is at work, or a member fails; then it is frozen.
pub fn finish_served<D: Disk, T>(engine: &mut Engine<D, T>, generation: Uuid) -> Result<(), ReshapeError> {
    if !engine.is_settled() {
        return Err(EngineError::Busy.into());
    }
    let Kept { record, bad_blocks, .. } = engine.kept();
    let own = record.into_superblocks();
    let course = own
        .iter()
        .flatten()
        .next()
        .map(Superblock::course)
        .expect("an array has a member")
        .expect("it is being reshaped");
    let paths = vec![PathBuf::new(); own.len()];
    let members = Members::new(Lent(engine.disk_mut()), own, bad_blocks, paths, Vec::new());
    if members.reshape().outcome(members.any().spec).is_none() {
        // Content is left elsewhere, or it is not on record yet which way it went.
        return Err(EngineError::Busy.into());
    }
    let is_back = members.reshape().is_back;
    let (members, geometry) = match (Reshaping { members, course }).end(is_back, generation) {
        Ok(ended) => ended,
        Err(error) => {
            // Members may have more on record by now than this engine knows.
            engine.freeze();
            return Err(error);
        }
    };
    let (_, own, bad_blocks) = members.into_record();
    if !engine.is_settled() {
        // Who left may not have answered.
        engine.freeze();
        return Err(EngineError::Busy.into());
    }
    engine.restart(geometry, Kept { record: Record::new(own), bad_blocks, blank: None }, None)?;
    Ok(())
}
