//! Reshaping: content moves to the other shape, window by window, while clients go on with all else. Who wants
//! something of a window waits for it, so while clients are there windows are small.

use uraid_layout::reshape::Pace;
use uraid_layout::{Bytes, Lba, Sectors};

use super::sweep::{Next, Sweep};
use crate::engine::between::Between;
use crate::engine::parts::Parts;
use crate::engine::sweeper::{Kind, Sweeper};

/// What moves at once while clients want something, at most; always at least what can.
const BESIDE_CLIENTS: Bytes = Bytes(1 << 20);

/// What is with the members at once of a window meanwhile: nobody's operation waits behind more.
const TURN_BESIDE_CLIENTS: Bytes = Bytes(128 << 10);

/// Reshaping as the engine drives it.
#[derive(Debug, Default)]
pub(in crate::engine) struct Reshaping;

/// An array's way to another shape, to look at and to steer.
#[derive(Debug)]
pub struct Way<'a> {
    parts: &'a Parts,
    between: &'a Between,
}

/// How far a reshape has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReshapeProgress {
    /// How much content is where it is to be.
    pub done: Sectors,
    /// How much there is.
    pub total: Sectors,
    /// It goes back to the shape that the array had.
    pub is_back: bool,
    /// That is on record.
    pub is_turned: bool,
    /// Where content is that can't be moved, as it can't be read, or written where it is to be. It is tried again.
    pub stuck: Option<Lba>,
}

impl<'a> Way<'a> {
    /// That of an array which is being reshaped.
    pub(in crate::engine) fn of(parts: &'a Parts) -> Option<Self> {
        Some(Self { parts, between: parts.members.between()? })
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> ReshapeProgress {
        let Between { course, mark, is_back, stuck, .. } = self.between;
        let left = mark.get().0.abs_diff(course.end(self.between.heading()).0);
        let (done, total) = (Sectors(course.kept().0 - left), course.kept());
        let is_turned = is_turned(self.parts, self.between);
        ReshapeProgress { done, total, is_back: is_back.get(), is_turned, stuck: stuck.get() }
    }

    /// Whether all content is where it is to be, and which way it went is on record.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.between.is_over() && is_turned(self.parts, self.between)
    }

    /// Has content move to the shape that the array is to get, or back to the one that it had, from the next window on;
    /// that goes on record by itself.
    pub fn turn(&self, is_back: bool) {
        self.between.is_back.set(is_back);
    }

    /// Limits how fast content moves, in bytes of it a second.
    pub fn limit_rate(&self, limit: Option<Bytes>) {
        self.parts.sweeps.of(Kind::Reshape).set_limit(limit);
    }

    /// Limits how much content moves at once, while clients wait; always at least what can.
    pub fn limit_window(&self, most: Bytes) {
        self.between.window.set(most);
    }
}

/// Whether it is on record which way it goes.
fn is_turned(parts: &Parts, between: &Between) -> bool {
    let recorded = parts.members.record().recorded_reshape();
    recorded.is_some_and(|reshape| reshape.is_back == between.is_back.get())
}

/// How much of a window is with the members at once.
pub(in crate::engine) fn at_once(parts: &Parts) -> Bytes {
    if parts.sweeps.of(Kind::Reshape).is_disturbing() { TURN_BESIDE_CLIENTS } else { Bytes(u64::MAX) }
}

/// How much moves at once.
pub(in crate::engine) fn pace(parts: &Parts, between: &Between) -> Pace {
    let Pace { plain, saved } = between.pace;
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
        let is_left = |between: &Between| !between.is_over() || !is_turned(parts, between);
        let is_left = parts.members.between().is_some_and(is_left);
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
        let between = parts.members.between()?;
        let (size, sweeper) = (self.size(parts), &mut *parts.sweeps.of(Kind::Reshape));
        let has_room = !sweeper.is_turn_over() && sweeper.has_room(size);
        // What an administrator wants goes on record at once, whatever the pace.
        let may_begin = has_room || !is_turned(parts, between);
        let is_put_off = sweeper.is_put_off() && !between.is_mended.get();
        if sweeper.is_busy() || is_put_off || !may_begin {
            return None;
        }
        between.is_mended.set(false);
        sweeper.begin_unit(between.mark.get().0);
        Some(Next::Move)
    }
}
