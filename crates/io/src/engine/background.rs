//! Background work: what goes on by itself.
//!
//! A *sweep* goes over the array unit by unit. It is a file here, which says what is wanted and does a unit, and a row
//! in the [sweeper's](super::sweeper) table, which says at what pace. The engine asks for what to begin next.

pub(super) mod ahead;
pub(super) mod copy;
pub(super) mod initialise;
pub(super) mod rebuild;
pub(super) mod reshape;
pub(super) mod scrub;
pub(super) mod sweep;

use uraid_layout::StripeId;

use super::parts::Parts;
use super::sweeper::Kind;
use super::transfer::Workspace;
use copy::Copies;
use initialise::Initialising;
use rebuild::Rebuild;
use reshape::Reshaping;
use scrub::Scrubber;
use sweep::{Next, Sweep, Unit, next_unit};

/// The sweeps.
#[derive(Debug, Default)]
pub(super) struct Background {
    pub(super) rebuild: Rebuild,
    pub(super) copies: Copies,
    pub(super) scrubber: Scrubber,
    pub(super) initialising: Initialising,
    reshaping: Reshaping,
}

impl Background {
    fn sweeps(&self) -> [&dyn Sweep; 5] {
        [&self.scrubber, &self.rebuild, &self.copies, &self.initialising, &self.reshaping]
    }

    /// Begins a turn.
    pub(super) fn begin_turn(&self, parts: &Parts) {
        for sweep in self.sweeps() {
            let size = sweep.size(parts);
            parts.sweeps.of(sweep.kind()).begin_turn(size);
        }
    }

    /// What is to be begun next, as far as there is room for it.
    pub(super) fn next(&self, parts: &Parts) -> Option<Next> {
        let wanted = self.sweeps().into_iter().filter(|sweep| sweep.is_wanted(parts));
        wanted.into_iter().find_map(|sweep| next_unit(sweep, parts).map(Next::Unit).or_else(|| sweep.step(parts)))
    }

    /// Whether another turn has something to do though nothing completes.
    pub(super) fn wants_turn(&self, parts: &Parts) -> bool {
        self.sweeps().into_iter().filter(|sweep| sweep.is_wanted(parts)).any(|sweep| {
            let size = sweep.size(parts);
            let sweeper = parts.sweeps.of(sweep.kind());
            sweeper.is_turn_over() && sweeper.has_room(size)
        })
    }

    /// Whether anything is to be done as time passes.
    pub(super) fn wants_ticks(&self, parts: &Parts) -> bool {
        self.sweeps().into_iter().any(|sweep| sweep.is_wanted(parts))
    }

    /// Does a unit.
    pub(super) async fn perform(&self, parts: &Parts, space: &mut Workspace, unit: Unit) {
        let number = unit.number;
        match unit.kind {
            Kind::Scrub => self.scrubber.scrub(parts, space, number).await,
            Kind::Rebuild => self.rebuild.make(parts, space, StripeId(number)).await,
            Kind::Initialise => self.initialising.initialise(parts, space, number).await,
            Kind::Copy => self.copies.copy(parts, space, StripeId(number)).await,
            Kind::Reshape => unreachable!("a window is no unit"),
        }
    }
}
