//! A flush: everything that was replied to before is put into the journal or written out, then made durable.

use smallvec::SmallVec;

use super::journal;
use crate::cache::Cache;
use crate::engine::error::EngineError;
use crate::engine::parts::Parts;
use crate::engine::sides::Sides;
use crate::engine::writeback::Awaiting;

/// What a flush is to make durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Covers {
    /// What was replied to; the log may have it.
    Replied,
    /// What was written in place: clearing bits, moving a watermark and marking the members clean need that.
    InPlace,
}

/// Makes everything durable that was replied to.
///
/// # Errors
/// [`EngineError::NotDestaged`]; [`EngineError::FlushFailed`]; [`EngineError::Frozen`].
pub(in crate::engine) async fn flush(sides: &Sides) -> Result<(), EngineError> {
    for parts in sides.all().filter(|parts| !parts.members.is_read_only()) {
        while !journal::flush(parts).await? {
            match drain(parts, false).await {
                Err(EngineError::NotDestaged { .. }) if journal::make_room(parts).await? => {}
                drained => {
                    drained?;
                    break;
                }
            }
        }
    }
    durable(&sides.below, Covers::Replied).await
}

/// As [`flush`], of a command that a change of members waits for: what that holds back is written out meanwhile.
///
/// # Errors
/// As [`flush`].
pub(super) async fn flush_awaited(sides: &Sides) -> Result<(), EngineError> {
    let all = sides.all().filter(|_| !planted!(KeptUnawaited));
    let _awaiting: SmallVec<[Awaiting<'_>; 2]> = all.map(|parts| parts.writeback.begin_awaiting()).collect();
    flush(sides).await
}

/// As [`drain`], of such a command.
///
/// # Errors
/// As [`drain`].
pub(super) async fn drain_awaited(parts: &Parts) -> Result<(), EngineError> {
    let _awaiting = (!planted!(KeptUnawaited)).then(|| parts.writeback.begin_awaiting());
    drain(parts, false).await
}

/// Waits until everything that was replied to is written out; to close the array, until nothing is being written out.
///
/// # Errors
/// [`EngineError::NotDestaged`]; [`EngineError::Frozen`].
pub(in crate::engine) async fn drain(parts: &Parts, is_close: bool) -> Result<(), EngineError> {
    if planted!(FlushUndrained) {
        return Ok(());
    }
    let Some(mark) = parts.writeback.with(Cache::drain) else { return Ok(()) };
    loop {
        parts.members.check_frozen()?;
        // To mark the members clean, what is durable in the log has to be in place, too.
        let is_under_way = parts.writeback.is_under_way() && is_close && !planted!(CleanDuringWrites);
        let is_drained = parts.writeback.cache().is_some_and(|cache| cache.is_drained(mark));
        if is_drained && !is_under_way {
            break;
        }
        parts.writeback.wait_drained(mark).await;
    }
    let cache = parts.writeback.cache().expect("there was one before");
    match cache.unwritten().filter(|_| cache.is_stuck()) {
        Some(unwritten) => Err(unwritten.into()),
        None => Ok(()),
    }
}

/// Makes durable what was written, and waits until every member that failed it is on record: it may have lost what the
/// others hold.
///
/// # Errors
/// [`EngineError::FlushFailed`]; [`EngineError::Frozen`].
pub(in crate::engine) async fn durable(parts: &Parts, covers: Covers) -> Result<(), EngineError> {
    let members = &parts.members;
    match &parts.log {
        Some(log) if covers == Covers::Replied && parts.counts_logged() => {
            log.wait_answered(members).await;
            log.wait_sums_placed(members).await?;
            let unflushed = log.unflushed(members, &parts.flusher);
            if !unflushed.is_empty() {
                // A flush may have come between one of a stripe's writes and the last of them.
                unflushed.iter().for_each(|member| members.note_written(member));
                parts.flusher.flush(members, unflushed).await;
            }
        }
        _ => parts.flusher.flush(members, members.all()).await,
    }
    members.check_frozen()?;
    let failed = parts.flusher.failures();
    if !failed.is_empty() {
        return Err(EngineError::FlushFailed { members: failed });
    }
    members.failures_recorded().await
}
