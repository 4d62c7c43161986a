//! What a change that nothing may be under way for waits for.

use uraid_layout::MemberIndex;

use crate::engine::core::Core;
use crate::engine::error::EngineError;

/// Waits until nothing is under way, and has everything flushed, and what members lack on record: whoever was rebuilt
/// may go on record as complete then. Of a member that is `leaving` nobody will ask that.
pub(super) async fn calm(core: &Core, leaving: Option<MemberIndex>) -> Result<(), EngineError> {
    let (parts, members) = (&core.sides.below, &core.sides.below.members);
    loop {
        if core.has_transfers() && !planted!(BarrierSkipped) {
            core.wait_quiet().await;
        } else if core.is_busy() {
            parts.wait_repairs().await;
        } else {
            if !planted!(CalmWithoutList) {
                match parts.keep_lists().await {
                    Err(EngineError::WriteFailed { members })
                        if members == leaving.into_iter().collect() && !planted!(LeavingListNeeded) => {}
                    kept => kept?,
                }
            }
            parts.flusher.flush(members, members.all()).await;
            if is_calm(core).await? {
                return Ok(());
            }
        }
    }
}

/// Whether nothing is under way and all is flushed, when neither the bitmap nor the log is being written.
async fn is_calm(core: &Core) -> Result<bool, EngineError> {
    let (parts, members) = (&core.sides.below, &core.sides.below.members);
    loop {
        members.check_frozen()?;
        let is_busy = parts.flusher.is_needed(members) || core.has_transfers();
        if is_busy && !planted!(BarrierSkipped) {
            return Ok(false);
        }
        let has_waited = parts.intent.wait_idle(members).await
            || match &parts.log {
                Some(log) => log.wait_idle(members).await,
                None => false,
            };
        if !has_waited {
            return Ok(true);
        }
    }
}
