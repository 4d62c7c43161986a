//! Making blank regions: zeros are written to all of a region, as any others are, and made durable; then the members'
//! map says that it is not blank.

use std::ops::Range;

use uraid_layout::{Lba, Sectors};

use super::flush::{Covers, durable};
use super::write::{self, Request, write_range};
use crate::engine::blank::Claim;
use crate::engine::error::EngineError;
use crate::engine::parts::Parts;
use crate::engine::sides::Sides;
use crate::engine::transfer::{Goal, Workspace};
use crate::format::bitmap::Bitmap;

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
    let (first, last) = parts.stripes_of(range.start, Sectors(range.end.0 - range.start.0));
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

/// A client's write: what of it is blank is made first.
pub(in crate::engine) async fn write(sides: &Sides, space: &mut Workspace, request: Request) {
    let made = match request.goal {
        // What the cache has taken in was made before.
        Goal::Write if !request.range.is_empty() => make(&sides.below, space, request.range.clone()).await,
        // They are there, but are to have space.
        Goal::Zero { may_punch: false } if sides.below.blanks.may_punch() && !request.range.is_empty() => {
            make(&sides.below, space, request.range.clone()).await
        }
        // Zeros are there already.
        _ => Ok(()),
    };
    match made {
        Ok(()) => write::write(sides, space, request).await,
        Err(error) => sides.below.replies.give(request.ticket, Err(error)),
    }
}

/// Takes the map as it was found on the members.
pub(in crate::engine) fn restart(parts: &Parts, made: Bitmap) {
    let own = parts.members.record().any().clone();
    parts.blanks.restart(&own, made);
    end_when_done(parts);
}

/// Has it recorded when no region is blank any more. A stop before that is found to be past it by the map.
fn end_when_done(parts: &Parts) {
    if parts.blanks.end() && !parts.members.is_read_only() {
        tracing::info!("the array is initialised: no region is blank any more");
        parts.members.change_record(|record| record.end_blank());
        parts.members.demand_record();
    }
}
