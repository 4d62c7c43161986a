//! Initialising: the blank regions of a new array are made, a few at a time, in the order of their addresses. See
//! [`Blanks`](crate::engine::blank::Blanks).

use uraid_layout::{Bytes, Lba, MemberSet, Sectors, StripeId};

use super::rebuild::{Progress, cost};
use super::sweep::Sweep;
use crate::engine::ops::initialise::make;
use crate::engine::parts::Parts;
use crate::engine::stuck::Stuck;
use crate::engine::sweeper::{Kind, Sweeper};
use crate::engine::transfer::Workspace;

/// The regions of a unit: they share the flushes.
const REGIONS: u64 = 4;

/// Initialising as the engine drives it.
#[derive(Debug, Default)]
pub(in crate::engine) struct Initialising;

impl Initialising {
    /// How far it has come, where anything is blank.
    pub(in crate::engine) fn progress(parts: &Parts) -> Option<Progress> {
        let (done, total) = (parts.blanks.made(parts.geometry())?, parts.geometry().capacity());
        // What can't be written is a member's failure: nothing holds it up for long.
        Some(Progress { members: MemberSet::EMPTY, done, total, stuck: None })
    }

    /// Makes what is blank of a unit.
    pub(in crate::engine) async fn initialise(&self, parts: &Parts, space: &mut Workspace, unit: u64) {
        let stripes = stripes_of_unit(parts)
            .map_or(0..0, |stripes| unit * stripes..((unit + 1) * stripes).min(parts.geometry().stripes().0));
        let size = parts.geometry().stripe_sectors().0;
        let end = (stripes.end * size).min(parts.geometry().capacity().0);
        // Meanwhile clients may have had all of it made.
        let result =
            if stripes.is_empty() { Ok(()) } else { make(parts, space, Lba(stripes.start * size)..Lba(end)).await };
        let sweep = &mut *parts.sweeps.of(Kind::Initialise);
        match result {
            Ok(()) => sweep.finish(unit, |from| next_unit(parts, from)),
            Err(error) => {
                let (stripe, len) = (StripeId(stripes.start), parts.geometry().chunk());
                let stuck = Stuck { stripe: StripeId(unit), start: Sectors(0), len, unreadable: MemberSet::EMPTY };
                if sweep.fail(stuck) {
                    tracing::error!(%stripe, %error, "the array can't be initialised");
                }
            }
        }
        parts.wake_repairs();
    }
}

impl Sweep for Initialising {
    fn kind(&self) -> Kind {
        Kind::Initialise
    }

    fn is_wanted(&self, parts: &Parts) -> bool {
        parts.sweeps.may_repair(Kind::Initialise) && !parts.members.is_frozen() && parts.blanks.has_any()
    }

    fn size(&self, parts: &Parts) -> Bytes {
        Bytes(cost(parts).0.saturating_mul(stripes_of_unit(parts).unwrap_or(1)))
    }

    fn next(&self, parts: &Parts, sweeper: &mut Sweeper) -> Option<u64> {
        let end = parts.geometry().stripes().0.div_ceil(stripes_of_unit(parts)?);
        sweeper.begin(end, self.size(parts), |from| next_unit(parts, from))
    }
}

fn stripes_of_unit(parts: &Parts) -> Option<u64> {
    parts.blanks.regions().map(|regions| REGIONS << regions.shift())
}

/// The first unit from one on of which anything is blank; what is beyond the last where there is none.
fn next_unit(parts: &Parts, from: u64) -> u64 {
    let Some(stripes) = stripes_of_unit(parts) else { return from };
    let end = parts.geometry().stripes().0;
    let next = parts.blanks.next_blank(from.saturating_mul(stripes).min(end), end);
    if next >= end { from.max(end.div_ceil(stripes)) } else { from.max(next / stripes) }
}
