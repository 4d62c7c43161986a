//! What the log and the journal of pages do when members or log devices come and go: nothing may rely on what whoever
//! was there has.

use uraid_layout::{MemberIndex, MemberSet};

use super::{destage, journal};
use crate::cache::Cache;
use crate::engine::error::EngineError;
use crate::engine::journal::Journal;
use crate::engine::parts::Parts;
use crate::engine::transfer::Workspace;

/// Has the journal hold nothing, with nothing else under way: the array is about to be marked clean.
///
/// # Errors
/// [`EngineError::NotDestaged`]; as [`journal::flush`].
pub(in crate::engine) async fn empty(parts: &Parts, space: &mut Workspace) -> Result<(), EngineError> {
    let Some(ring) = &parts.journal else { return Ok(()) };
    write_out(parts, space, ring).await?;
    let cache = parts.writeback.cache();
    if let Some(unwritten) = cache.and_then(|cache| cache.unwritten().filter(|_| cache.journal().is_held())) {
        return Err(unwritten.into());
    }
    ring.log.retire(&parts.members, &parts.flusher, &parts.replies).await?;
    journal::settle(parts);
    Ok(())
}

/// Whether the journal holds nothing, and nothing is on its way into it.
pub(in crate::engine) fn is_empty(parts: &Parts) -> bool {
    let has_nothing = |ring: &Journal| !ring.is_busy() && ring.log.released_upto() == ring.log.last();
    parts.journal.as_ref().is_none_or(has_nothing) || planted!(JournalKeptAtLogs)
}

/// Has the journal rely on nothing that whoever is in a slot has, with nothing else under way: another member is about
/// to be there.
///
/// # Errors
/// [`EngineError::NotDestaged`]; as [`journal::flush`].
pub(in crate::engine) async fn leave(
    parts: &Parts,
    space: &mut Workspace,
    slot: MemberIndex,
) -> Result<(), EngineError> {
    let Some(ring) = parts.journal.as_ref().filter(|_| !planted!(JournalKeptAtJoin)) else { return Ok(()) };
    ring.leaving.set(MemberSet::EMPTY.with(slot));
    let renewed = put_again(parts, space, ring).await;
    let told = ring.log.tell_trim(&parts.members, &parts.flusher, &parts.replies).await;
    if renewed.is_err() {
        ring.leaving.set(MemberSet::EMPTY);
    }
    journal::settle(parts);
    renewed.and(told)
}

/// Has the journal of a member that has just come say that nothing counts which it has from before: as long as the
/// member is being rebuilt it is one of those that may be lost, and whoever said so until then may be lost later.
///
/// # Errors
/// As [`journal::flush`].
pub(in crate::engine) async fn greet(parts: &Parts, slot: MemberIndex) -> Result<(), EngineError> {
    match parts.journal.as_ref().filter(|_| !planted!(JoinerUntold)) {
        Some(ring) => ring.log.tell_joined(slot, &parts.members, &parts.flusher, &parts.replies).await,
        None => Ok(()),
    }
}

/// Begins a new run of the log, with nothing under way, as the superblocks have it by now.
pub(in crate::engine) fn restart_log(parts: &Parts) {
    let Some(log) = &parts.log else { return };
    let restarted = log.restart(parts.members.record().superblocks(), parts.members.geometries());
    restarted.expect("every log has room: that was checked when it was asked for");
    let _ = parts.writeback.with(|cache| cache.limit_runs(log.stripes_max()));
}

/// The same of the journal, which has nothing.
pub(in crate::engine) fn restart_journal(parts: &Parts) {
    assert!(is_empty(parts), "a journal that begins anew has nothing");
    let Some(ring) = &parts.journal else { return };
    parts.members.record().superblocks().flatten().for_each(|own| ring.replace(own));
}

/// Writes out what can be, and puts the rest into the journal again.
async fn put_again(parts: &Parts, space: &mut Workspace, ring: &Journal) -> Result<(), EngineError> {
    let (last, mut before) = (ring.log.last(), None);
    loop {
        write_out(parts, space, ring).await?;
        if journal::renew_copies(parts, ring, last).await? {
            return Ok(());
        }
        let now = parts.writeback.cache().map(|cache| (ring.log.released_upto(), cache.pinned()));
        if before.replace(now) == Some(now) {
            // It is full of what can't be written out.
            let unwritten = parts.writeback.cache().and_then(|cache| cache.unwritten());
            return Err(unwritten.map_or(EngineError::Busy, EngineError::from));
        }
    }
}

/// Writes out what can be, with nobody else who begins a run.
async fn write_out(parts: &Parts, space: &mut Workspace, ring: &Journal) -> Result<(), EngineError> {
    let Some(mark) = parts.writeback.with(Cache::drain) else { return Ok(()) };
    loop {
        parts.members.check_frozen()?;
        let mut has_begun = false;
        while let Some((stripes, _)) = parts.writeback.with(Cache::next_run).flatten() {
            destage::destage(parts, space, stripes).await;
            has_begun = true;
        }
        let is_drained = parts.writeback.cache().is_some_and(|cache| cache.is_drained(mark));
        if is_drained && !parts.writeback.is_under_way() {
            return ring.wait_arrived(&parts.members).await;
        }
        if !has_begun {
            // The rest is somebody's who has begun it, or is about to.
            ring.changed.wait(parts.tasks()).await;
        }
    }
}
