//! Reshaping: content moves to the other shape, window by window, each while nothing else is under way. Clients wait for
//! it; so while they want something, windows are small, and there is one a tick.

use uraid_layout::reshape::Pace;
use uraid_layout::{Bytes, Lba, Sectors};

use super::sweep::{Next, Sweep};
use crate::array::reshape::saved;
use crate::engine::between::Between;
use crate::engine::change::Change;
use crate::engine::parts::Parts;
use crate::engine::sweeper::{Kind, Sweeper};

/// What moves at once while clients want something, at most; always at least what can.
const BESIDE_CLIENTS: Bytes = Bytes(1 << 20);

/// Reshaping as the engine drives it.
#[derive(Debug, Default)]
pub(in crate::engine) struct Reshaping;

/// How far a reshape has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReshapeProgress {
    /// How much content is where it is to be.
    pub done: Sectors,
    /// How much there is.
    pub total: Sectors,
    /// It goes back to the shape that the array had.
    pub is_back: bool,
    /// Where content is that can't be moved, as it can't be read, or written where it is to be. It is tried again.
    pub stuck: Option<Lba>,
}

impl Reshaping {
    /// How far it has come, while the array is being reshaped.
    pub(in crate::engine) fn progress(parts: &Parts) -> Option<ReshapeProgress> {
        let Between { course, mark, is_back, stuck, .. } = parts.members.between()?;
        let end = course.end(course.heading(is_back.get()));
        let left = mark.get().0.abs_diff(end.0);
        let (done, total) = (Sectors(course.kept().0 - left), course.kept());
        Some(ReshapeProgress { done, total, is_back: is_back.get(), stuck: stuck.get() })
    }
}

/// How much moves at once.
pub(in crate::engine) fn pace(parts: &Parts, between: &Between) -> Pace {
    let room = saved::room(parts.members.record().superblocks().flatten());
    let unit = between.course.unit();
    let Pace { plain, saved } = saved::pace(&between.course, room).unwrap_or(Pace { plain: unit, saved: unit });
    let is_disturbing = parts.sweeps.of(Kind::Reshape).is_disturbing();
    let most = if is_disturbing { between.window.get().min(BESIDE_CLIENTS) } else { between.window.get() };
    let most = most.whole_sectors();
    Pace { plain: plain.min(most), saved: saved.min(most) }
}

impl Sweep for Reshaping {
    fn kind(&self) -> Kind {
        Kind::Reshape
    }

    fn is_wanted(&self, parts: &Parts) -> bool {
        let is_left = parts.members.between().is_some_and(|between| !between.is_over());
        is_left && parts.sweeps.may_repair(Kind::Reshape) && !parts.members.is_frozen()
    }

    fn size(&self, parts: &Parts) -> Bytes {
        let size = |between| pace(parts, between).plain.max(between.course.unit()).bytes();
        parts.members.between().map_or(Bytes(1), size)
    }

    fn next(&self, _: &Parts, _: &mut Sweeper) -> Option<u64> {
        None
    }

    fn step(&self, parts: &Parts) -> Option<Next> {
        let size = self.size(parts);
        let mut sweeper = parts.sweeps.of(Kind::Reshape);
        if !sweeper.may_hold_up() {
            return None;
        }
        sweeper.hold_up(size);
        Some(Next::Change(Box::new(Change::Move)))
    }
}
