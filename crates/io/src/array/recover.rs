//! Bringing an array back into agreement after an unclean stop: by its log, or by computing parity from the data.

use std::ops::Range;

use uraid_layout::{Bytes, MemberIndex, StripeId};

use super::assemble::Assembled;
use super::blocking::{flush, perform};
use super::error::RecoverError;
use super::initialise::{initialisation_bytes, initialise};
use super::pages::Pages;
use super::redo;
use super::reshape::members::Members;
use super::reshape::restore::restore;
use super::resync::Resync;
use crate::disk::Disk;
use crate::engine::{Command, Engine, EngineError, Record};
use crate::format::bitmap::Bitmap;
use crate::format::superblock::Consistency;

/// How much content [`recover`] computes parity for: what is in regions whose bits are set in the write-intent bitmap,
/// or everything; nothing where a log says what to do. Of an array that is initialising, how much it zeroes on all
/// members together.
pub fn recovery_bytes<D: Disk>(assembled: &Assembled<D>) -> Bytes {
    if assembled.is_initialising() {
        return initialisation_bytes(assembled);
    }
    if assembled.record.consistency() == Consistency::Log {
        return Bytes(0);
    }
    let stripes: u64 = suspects(assembled).iter().map(|stripes| stripes.end.0 - stripes.start.0).sum();
    let bytes = assembled.geometry.stripe_sectors().bytes().0 * stripes;
    Bytes(bytes.min(assembled.geometry.capacity().bytes().0))
}

/// The parity stripes in which redundancy may not agree. In those that are blank it need not.
fn suspects<D>(assembled: &Assembled<D>) -> Vec<Range<StripeId>> {
    let runs = match &assembled.bitmap {
        Some(bitmap) => bitmap.iter().map(|region| bitmap.regions().stripes(region)).collect(),
        None => vec![StripeId(0)..StripeId(assembled.geometry.stripes().0)],
    };
    match &assembled.blank {
        Some(map) => runs.into_iter().flat_map(|run| map.stripes_within(run)).collect(),
        None => runs,
    }
}

/// Brings the array into agreement and marks it clean; blocks. It can be cut off anywhere, and begun again by the next
/// start. `progress` gets the bytes done so far: of the log, of array content, or of members that are initialised.
///
/// # Errors
/// When a member fails, or its log is damaged: the array stays marked.
pub fn recover<D: Disk>(
    mut assembled: Assembled<D>,
    progress: impl FnMut(Bytes),
) -> Result<Assembled<D>, RecoverError> {
    if assembled.is_initialising() {
        return initialise(assembled, progress);
    }
    if planted!(RecoverySkipped) {
        assembled.record.renew(assembled.generation);
        assembled.is_recovered = true;
        return Ok(close(assembled)?);
    }
    let assembled = match assembled.record.consistency() {
        _ if assembled.record.is_clean() && assembled.has_saved() => assembled,
        Consistency::Log => replay(assembled, progress)?,
        _ => resync(assembled, progress)?,
    };
    if assembled.has_saved() { bring_back(assembled) } else { Ok(assembled) }
}

/// Brings a window of a reshape that was saved where the reshape wants it; the array is clean, and can be used then.
fn bring_back<D: Disk>(assembled: Assembled<D>) -> Result<Assembled<D>, RecoverError> {
    let own = assembled.superblocks();
    let paths = (0..).map(MemberIndex).take(own.len()).map(|slot| assembled.losses.path(slot)).collect();
    let mut members = Members::new(assembled.disk, own, assembled.bad_blocks, paths, Vec::new());
    let is_back = members.reshape().is_back;
    restore(&mut members, is_back).map_err(|error| RecoverError::Saved { reason: chain(&error) })?;
    let (disk, own, bad_blocks) = members.into_record();
    Ok(Assembled { disk, record: Record::new(own), bad_blocks, is_recovered: true, ..assembled })
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}

/// Does again what the log says. Where a member fails that, all of it is done again without the member.
fn replay<D: Disk>(mut assembled: Assembled<D>, mut progress: impl FnMut(Bytes)) -> Result<Assembled<D>, RecoverError> {
    let records = loop {
        // What is missing now may be back after another stop, and lack what is done without it: whether a record is
        // done must not change with that.
        if !planted!(ReplayUnrecorded) {
            assembled.record_losses()?;
        }
        match replay_all(&mut assembled, &mut progress) {
            Ok((records, pages)) => {
                assembled.pages = pages;
                break records;
            }
            Err(RecoverError::Io(error)) => assembled.give_up(error)?,
            Err(error) => return Err(error),
        }
    };
    tracing::info!(records, "did again what was in the log");
    assembled.is_recovered = true;
    if !assembled.pages.is_empty() {
        let content = assembled.pages.content().bytes();
        tracing::info!(%content, "the journal has pages, which are written out while the array is served");
        // What the log had is in place, and the array is as it was in the middle of a run: with pages to be written.
        assembled.record.renew_log(assembled.generation);
        assembled.record_losses()?;
        let is_whole = assembled.record.is_whole();
        assembled.bitmap = assembled.bitmap.map(|set| if is_whole { Bitmap::empty(set.regions()) } else { set });
        return Ok(assembled);
    }
    if !planted!(GenerationKept) {
        assembled.record.renew(assembled.generation);
    }
    Ok(close(assembled)?)
}

/// Does it, and makes it durable; how many records that were, and what the journal has.
fn replay_all<D: Disk>(
    assembled: &mut Assembled<D>,
    progress: impl FnMut(Bytes),
) -> Result<(usize, Pages), RecoverError> {
    let superblocks = assembled.superblocks();
    let shapes = assembled.record.any().shapes();
    let Assembled { disk, bad_blocks, losses, .. } = assembled;
    // Where a member fails that, what was taken out of the lists is taken out again.
    let mut lists = bad_blocks.clone();
    let records = redo::redo(disk, &superblocks, &shapes, losses, &mut lists, progress)?;
    *bad_blocks = lists;
    // The array begins a new run of the log when it is closed, and then nothing is left that could do this once more.
    if !planted!(ReplayUnflushed) {
        perform(&mut assembled.disk, superblocks.iter().flatten().map(|own| flush(own.slot)))?;
    }
    let pages = Pages::read(&mut assembled.disk, &superblocks, &assembled.geometry, assembled.access)?;
    Ok((records, pages))
}

/// Computes parity from the data where it may not agree, and marks the array clean; blocks. `progress` gets the bytes
/// of array content done so far. The bits of the bitmap's regions are kept until it is over.
///
/// # Errors
/// When the array can't do without what fails: it stays marked.
fn resync<D: Disk>(mut assembled: Assembled<D>, progress: impl FnMut(Bytes)) -> Result<Assembled<D>, RecoverError> {
    let suspects = suspects(&assembled);
    let superblocks = assembled.superblocks();
    let absent = assembled.record.lost();
    let Assembled { disk, geometry, losses, bad_blocks, .. } = &mut assembled;
    let mut resync = Resync { disk, geometry, superblocks: &superblocks, absent, losses, lists: bad_blocks };
    let stripes = suspects.into_iter().flat_map(|stripes| stripes.start.0..stripes.end.0);
    resync.run(stripes.map(StripeId), progress)?;
    // Now that all agree, the array goes on without those that fail.
    assembled.record.fail(assembled.losses.members());
    Ok(close(assembled)?)
}

/// Closes the array, as its engine does it: the members say that it is clean, and no bit of the bitmap is left that
/// nothing needs.
fn close<D: Disk>(assembled: Assembled<D>) -> Result<Assembled<D>, EngineError> {
    let Assembled { geometry, record, disk, bitmap, .. } = assembled;
    let engine: Engine<D, ()> = Engine::new(disk, geometry, record, false)?;
    let mut engine = engine.with_intent(match bitmap {
        Some(set) if planted!(BitsDroppedByRecovery) => Some(Bitmap::empty(set.regions())),
        set => set,
    });
    engine.trust_parity();
    engine.submit((), Command::Close);
    let mut replies = Vec::new();
    loop {
        engine.turn(&mut replies)?;
        replies.drain(..).try_for_each(|reply| reply.result.map(drop))?;
        if engine.in_flight() == 0 && !engine.has_replies() {
            break;
        }
        let is_under_way = engine.disk_mut().in_flight() > 0 || engine.wants_turn();
        assert!(is_under_way, "commands of a recovery wait, and not for members");
        engine.disk_mut().wait()?;
    }
    let set = engine.intent().as_deref().cloned();
    let (disk, geometry, record) = engine.into_parts();
    let is_whole = record.is_clean() && record.is_whole();
    let bitmap = set.map(|set| if is_whole { Bitmap::empty(set.regions()) } else { set });
    Ok(Assembled { geometry, record, disk, is_recovered: true, bitmap, ..assembled })
}
