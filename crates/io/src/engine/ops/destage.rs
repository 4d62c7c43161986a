//! Destaging: writing out what is dirty of a run of adjacent parity stripes, in one plan.

use std::ops::Range;

use uraid_layout::{Lba, Sectors, StripeId};

use super::{held, journal, write};
use crate::engine::error::EngineError;
use crate::engine::parts::Parts;
use crate::engine::transfer::{Goal, Transfer, Workspace};

/// Writes out what is dirty of these parity stripes. What can't be written is dirty again, and is told of.
pub(in crate::engine) async fn destage(parts: &Parts, space: &mut Workspace, stripes: Range<u64>) {
    let run = parts.writeback.begin_run();
    let stripe = parts.geometry().stripe_sectors().0;
    let (start, end) = (stripes.start * stripe, (stripes.end * stripe).min(parts.geometry().capacity().0));
    let mut transfer = Transfer::new(parts, space, Goal::Destage, None);
    transfer.begin(Lba(start), Sectors(end - start), Sectors(0));
    let result = match journal::free(parts, &stripes).await {
        Ok(()) => write_out(&mut transfer).await,
        Err(error) => Err((error, false)),
    };
    if let Err((_, false)) = &result {
        let _ = parts.writeback.with(|cache| cache.abandon(stripes.clone()));
    }
    drop(run);
    // What was left may be in place by now. Whoever relies on it finds out by itself whether it was said.
    drop(journal::free(parts, &stripes).await);
    journal::settle(parts);
    let Err((error, _)) = result else { return };
    tracing::error!(first = %StripeId(stripes.start), %error, "parity stripes could not be written; they stay in \
        memory");
}

/// Whether anything flew comes with an error.
async fn write_out(transfer: &mut Transfer<'_>) -> Result<(), (EngineError, bool)> {
    let mut held = held::take(transfer).await.map_err(|error| (error, false))?;
    let result = write::change(transfer, &mut held, |_| ()).await;
    let has_flown = held::release(transfer, held, result.as_ref().err());
    result.map_err(|error| (error, has_flown))
}
