//! A running array that becomes another one, as a server has it become that: its members are marked clean, their
//! superblocks say what it is, and the same engine goes on with it.

use uraid_io::array::{GrowError, check_growth, finish_served, grow_served};
use uraid_io::engine::{Command, Deadlines};
use uraid_io::format::superblock::Integrity;
use uraid_layout::{Bytes, Geometry, Sectors, Spec};
use uuid::Uuid;

use super::finding::Finding;
use super::growing::{draw_used, enlarge, is_partitioned};
use super::session::{READ_AHEAD, Session, Submitted, settle_superblocks};
use uraid_random::Random;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grown {
    /// The array is larger.
    Larger,
    /// It is rightly as large as it was, and goes on.
    Left,
    /// The power went, or the server ends: the next start shows how large it is.
    Ended,
}

/// Gives an array that was closed, and whose content is all where it is to be, the shape that it has then, as a
/// server does; false when the power goes, or the server has to end: the next start goes on from there.
pub(super) fn end_reshape(session: &mut Session<'_>, generation: Uuid) -> Result<bool, Finding> {
    let deadlines = session.engine.deadlines();
    let (slots, missing) = (session.engine.slots(), session.engine.missing());
    if let Err(error) = finish_served(&mut session.engine, generation) {
        session.trace.note(format_args!("the reshape can't be ended now: {error}"));
        let lingers = |slot| session.engine.lingering(slot) > 0;
        if !session.disk.is_dark() && session.disk.struck().is_empty() && !slots.iter().any(lingers) {
            return Err(Finding::Refused { error: error.to_string() });
        }
        session.disk.cut();
        return Ok(false);
    }
    let now = session.engine.slots();
    let (all, struck) = (session.disk.members(), session.disk.struck());
    for slot in slots.minus(now).iter() {
        let stays = all.get(slot).is_some_and(|member| member.superblock().is_ok());
        if stays && !struck.union(missing).contains(slot) && !session.disk.is_dark() {
            return Err(Finding::Stays { slot });
        }
        if !session.disk.is_busy(slot) {
            session.take_out(slot);
        }
    }
    settle_superblocks(&mut session.superblocks, &session.engine);
    go_on(session, deadlines);
    Ok(true)
}

/// Gives the members more room, where the array may grow now: how much of each it is to use.
///
/// # Errors
/// When it is refused that it grows, and nothing keeps it from that.
pub(super) fn make_room(session: &mut Session<'_>, random: &mut Random) -> Result<Option<Bytes>, Finding> {
    if !is_at_rest(session) || !session.failed().is_empty() {
        return Ok(None);
    }
    let before = session.engine.geometry().clone();
    let used = draw_used(&before, random);
    session.trace.note(format_args!("the array is to use {used} bytes of each member"));
    session.disk.with_members(|members| enlarge(members, before.used_sectors().bytes(), used, random));
    match check_growth(&session.engine, &sizes(session), Some(used)) {
        Ok(larger) => {
            session.larger = Some(larger);
            Ok(Some(used))
        }
        Err(error) => excuse_growth(session, &error, &before, used).map(|()| None),
    }
}

/// Whether an array may become another one now: nothing else is about to change it, and nothing is under way on it.
pub(super) fn is_at_rest(session: &Session<'_>) -> bool {
    let engine = &session.engine;
    let is_changing = engine.replacement().is_some() || engine.needs_seat() || engine.reshape().is_some();
    let is_scrubbing = engine.scrub().is_some_and(|scrub| scrub.is_running);
    let lingers = engine.slots().iter().any(|slot| engine.lingering(slot) > 0 || session.disk.is_busy(slot));
    // A block has a checksum from when it is written.
    let is_checked = session.superblocks[0].integrity != Integrity::None;
    !is_changing && !is_scrubbing && !lingers && !is_checked && !engine.is_frozen()
}

/// Has an array that was closed use more of its members.
///
/// # Errors
/// When it does not, and nothing keeps it from that.
pub(super) fn grow(session: &mut Session<'_>, used: Bytes, generation: Uuid) -> Result<Grown, Finding> {
    let (before, deadlines, sizes) = (session.engine.geometry().clone(), session.engine.deadlines(), sizes(session));
    match grow_served(&mut session.engine, &sizes, Some(used), generation) {
        Ok(()) => {}
        Err(error) if session.disk.is_dark() || matches!(error, GrowError::Member(_)) => {
            session.trace.note(format_args!("the array can't grow now: {error}"));
            if !session.disk.is_dark() && session.disk.struck().is_empty() {
                return Err(Finding::Refused { error: error.to_string() });
            }
            session.disk.cut();
            return Ok(Grown::Ended);
        }
        Err(error) => {
            excuse_growth(session, &error, &before, used)?;
            // What goes on in the background was closed with the engine, until somebody wants something.
            let begun = session.model.now();
            session.submit(Submitted::Flush { begun }, Command::Flush);
            session.is_closed = false;
            return Ok(Grown::Left);
        }
    }
    let members = session.disk.members();
    for own in &mut session.superblocks {
        let is_its = |found: &uraid_io::format::superblock::Superblock| found.member == own.member;
        let found = members.get(own.slot).and_then(|member| member.superblock().ok()).filter(is_its);
        found.into_iter().for_each(|found| *own = found);
    }
    go_on(session, deadlines);
    Ok(Grown::Larger)
}

fn sizes(session: &Session<'_>) -> Vec<Option<Bytes>> {
    let members = session.disk.members();
    session.engine.geometry().all_members().iter().map(|slot| members.get(slot).map(|one| one.size())).collect()
}

/// Whether it is right that an array does not grow.
fn excuse_growth(session: &Session<'_>, error: &GrowError, before: &Geometry, used: Bytes) -> Result<(), Finding> {
    session.trace.note(format_args!("the array does not grow: {error}"));
    let larger = Geometry::new(Spec { member_size: Sectors(used.0 / 512), ..*before.spec() });
    let is_right = match error {
        GrowError::NotWhole { .. } => !session.failed().is_empty(),
        GrowError::Nothing { .. } => larger.is_ok_and(|larger| larger.capacity() == before.capacity()),
        GrowError::Unsuited { .. } => is_partitioned(before),
        GrowError::Initialising => session.engine.superblock().blank.is_some(),
        // Who has no slot is not named.
        GrowError::Busy { members } => !members.is_empty() || session.disk.has_any_abandoned(),
        _ => false,
    };
    if is_right { Ok(()) } else { Err(Finding::Refused { error: error.to_string() }) }
}

/// Goes on with what the array is now.
pub(super) fn go_on(session: &mut Session<'_>, deadlines: Deadlines) {
    session.model.resize(session.engine.geometry().capacity());
    if let Some((mode, size)) = session.cache {
        session.engine.install_cache(mode, &session.pool, size);
        if session.reads_ahead {
            session.engine.install_read_ahead(READ_AHEAD);
        }
    }
    session.engine.set_deadlines(deadlines);
    session.is_closed = false;
    session.trace.note(format_args!("the array is {:?} now", session.engine.geometry().spec()));
}
