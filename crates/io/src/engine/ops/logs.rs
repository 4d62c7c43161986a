//! Log devices that come and go while clients go on.
//!
//! Nothing is under way meanwhile, as when a member joins. The journal holds nothing then, and the members are marked
//! clean: of such an array nothing counts that any log device has. So whenever this is cut off, either table of log
//! devices does, that of the members which the next round has reached and that of the others. The round begins new runs
//! of the log and of the journal, too, and nothing is written before it is durable: what a device holds of any time
//! before it came is of another run.

use uuid::Uuid;

use super::calm::calm;
use super::handover;
use crate::engine::core::Core;
use crate::engine::error::EngineError;
use crate::engine::transfer::Workspace;
use crate::format::superblock::LogChange;

/// Changes the log devices, with nothing under way but flushes, and waits until that is on record.
///
/// # Errors
/// [`EngineError::FlushFailed`] where something that was written may not be durable, and no other member has it; as
/// [`handover::empty`].
pub(super) async fn change(
    core: &Core,
    space: &mut Workspace,
    change: LogChange,
    generation: Uuid,
) -> Result<(), EngineError> {
    let (parts, members) = (&core.sides.below, &core.sides.below.members);
    loop {
        if !planted!(JournalKeptAtLogs) {
            handover::empty(parts, space).await?;
        }
        calm(core, None).await?;
        let failed = parts.flusher.failures();
        if !failed.is_empty() {
            return Err(EngineError::FlushFailed { members: failed });
        }
        // A flush may put into the journal what could not be written out, and mark the members as written for that.
        let is_ready = handover::is_empty(parts) && !members.record().has_writers();
        let has_waited = match &parts.journal {
            Some(ring) => ring.log.wait_idle(members).await,
            None => false,
        };
        if !is_ready || has_waited {
            continue;
        }
        if members.change_record(|record| record.demand_clean() && record.is_settled()) {
            break;
        }
        members.wait_record().await;
    }
    tracing::info!(?change, "the log devices change");
    members.change_logs(change, generation);
    handover::restart_log(parts);
    handover::restart_journal(parts);
    if planted!(LogsUnrecorded) { Ok(()) } else { members.settled().await }
}
