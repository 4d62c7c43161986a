//! A sweep, as the engine drives it.

use uraid_layout::Bytes;

use crate::engine::change::Change;
use crate::engine::parts::Parts;
use crate::engine::sweeper::{Kind, Sweeper};

/// A unit of a sweep, by number.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Unit {
    pub(in crate::engine) kind: Kind,
    pub(in crate::engine) number: u64,
}

/// What is to be begun.
#[derive(Debug)]
pub(in crate::engine) enum Next {
    Unit(Unit),
    /// How far members are rebuilt is to be put on record.
    Save,
    /// The next window of a reshape is to move.
    Move,
    /// Who is there is to change.
    Change(Box<Change>),
}

/// A sweep, as the engine drives it.
pub(in crate::engine) trait Sweep {
    /// Which it is.
    fn kind(&self) -> Kind;

    /// Whether anything is left to do, now or as time passes.
    fn is_wanted(&self, parts: &Parts) -> bool;

    /// What a unit moves.
    fn size(&self, parts: &Parts) -> Bytes;

    /// The next unit to begin, which there is room for.
    fn next(&self, parts: &Parts, sweeper: &mut Sweeper) -> Option<u64>;

    /// What is to be begun beside units.
    fn step(&self, _: &Parts) -> Option<Next> {
        None
    }
}

/// The next unit of a sweep, if there is room for one.
pub(in crate::engine) fn next_unit(sweep: &dyn Sweep, parts: &Parts) -> Option<Unit> {
    let (kind, size) = (sweep.kind(), sweep.size(parts));
    let sweeper = &mut *parts.sweeps.of(kind);
    let may_begin = !sweeper.is_turn_over() && sweeper.has_room(size);
    let number = if may_begin { sweep.next(parts, sweeper) } else { None };
    number.map(|number| Unit { kind, number })
}
