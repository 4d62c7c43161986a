//! Closing the array: all is written out and durable, then the members are marked clean.

use super::flush::{Covers, drain, durable, flush};
use crate::engine::core::Core;
use crate::engine::error::EngineError;
use crate::engine::record::Record;

/// Closes the array. Members that were opened dirty, and whose parity was not computed again since, stay marked so. A
/// later write marks them dirty again.
///
/// # Errors
/// [`EngineError::Busy`] while writes are under way; [`EngineError::Journaled`]; as [`flush`].
pub(in crate::engine) async fn close(core: &Core) -> Result<(), EngineError> {
    let (parts, members) = (&core.sides.below, &core.sides.below.members);
    loop {
        parts.sweeps.each().for_each(|mut sweep| sweep.close());
        if core.is_busy() {
            parts.wait_repairs().await;
        } else if parts.replies.is_placing() && !planted!(CleanDuringWrites) {
            parts.replies.wait_placed().await;
        } else {
            break;
        }
    }
    for parts in core.sides.all().filter(|parts| !parts.members.is_read_only()) {
        loop {
            if let Err(error) = drain(parts, true).await {
                return Err(kept(core, error).await);
            }
            // Something that was going into the journal is left out of a run.
            let is_left = parts.writeback.cache().is_some_and(|cache| cache.is_dirty() || cache.journal().is_held());
            if !is_left {
                break;
            }
            if let Some(journal) = parts.journal.as_ref().filter(|journal| journal.is_busy()) {
                journal.arrived.wait(parts.tasks()).await;
            }
        }
    }
    loop {
        if let Some(sums) = &parts.sums {
            sums.try_again();
        }
        parts.keep_lists().await?;
        if !planted!(CleanUnflushed) {
            durable(parts, Covers::InPlace).await?;
        }
        members.check_frozen()?;
        if members.is_read_only() || members.is_suspect() {
            return Ok(());
        }
        if mark_clean(core).await? {
            return Ok(());
        }
    }
}

/// Why an array can't be closed of which something can't be written out: it may be durable nevertheless.
async fn kept(core: &Core, error: EngineError) -> EngineError {
    let is_kept = core.sides.below.journal.is_some() && flush(&core.sides).await.is_ok();
    match error {
        EngineError::NotDestaged { unwritten } if is_kept => EngineError::Journaled { unwritten },
        error => error,
    }
}

/// Marks the members clean; false: something was written since the last flush.
async fn mark_clean(core: &Core) -> Result<bool, EngineError> {
    let (parts, members) = (&core.sides.below, &core.sides.below.members);
    loop {
        members.check_frozen()?;
        if core.is_busy() {
            parts.wait_repairs().await;
            continue;
        }
        if members.record().has_writers() {
            return Err(EngineError::Busy);
        }
        if parts.flusher.is_needed(members) && !planted!(CleanUnflushed) {
            return Ok(false);
        }
        if parts.intent.wait_idle(members).await {
            continue;
        }
        core.background.rebuild.note_end(parts);
        if members.change_record(Record::demand_clean) {
            return Ok(true);
        }
        members.wait_record().await;
    }
}
