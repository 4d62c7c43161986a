//! Making blank regions: zeros are written to all of a region, as any others are, and made durable; then the members'
//! map says that it is not blank.

use std::ops::Range;

use uraid_layout::Lba;

use super::flush::{Covers, durable};
use super::write::write_range;
use crate::engine::blank::Claim;
use crate::engine::error::EngineError;
use crate::engine::parts::Parts;
use crate::engine::transfer::{Goal, Workspace};

/// Makes the regions of sectors that are about to be written, of which there are some.
///
/// # Errors
/// As writing zeros has; [`EngineError::FlushFailed`]; [`EngineError::Frozen`].
pub(in crate::engine) async fn make(
    parts: &Parts,
    space: &mut Workspace,
    range: Range<Lba>,
) -> Result<(), EngineError> {
    if !parts.blanks.has_any() || planted!(BlankWritten) {
        return Ok(());
    }
    let (first, last) = parts.members.stripes_of(range.start, uraid_layout::Sectors(range.end.0 - range.start.0));
    loop {
        parts.members.check_frozen()?;
        match parts.blanks.claim(first.0..last.0 + 1, parts.tasks()) {
            Claim::Made => return Ok(()),
            Claim::Busy => parts.blanks.wait(parts.tasks()).await,
            Claim::Making(making) => {
                let (stripes, size) = (making.stripes(), parts.geometry().stripe_sectors().0);
                let end = stripes.end.0.saturating_mul(size).min(parts.geometry().capacity().0);
                let goal = Goal::Zero { may_punch: parts.blanks.may_punch() };
                write_range(parts, space, goal, Lba(stripes.start.0 * size)..Lba(end)).await?;
                if !planted!(BlankZerosUnflushed) {
                    durable(parts, Covers::InPlace).await?;
                }
                making.note_zeroed();
                parts.blanks.save(&parts.members).await;
                drop(making);
                end_when_done(parts);
            }
        }
    }
}

/// Has it recorded when no region is blank any more. A stop before that is found to be past it by the map.
pub(in crate::engine) fn end_when_done(parts: &Parts) {
    if parts.blanks.end() && !parts.members.is_read_only() {
        tracing::info!("the array is initialised: no region is blank any more");
        parts.members.change_record(|record| record.end_blank());
        parts.members.demand_record();
    }
}
