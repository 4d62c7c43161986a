//! What members failed to give: pieces that wait to be healed.
//!
//! Who got its data from the others leaves here what a member failed. Few are healed at a time, and of many pieces some
//! are forgotten: the next read finds them again.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;

use uraid_layout::{Cell as Unit, DiskSector, Geometry, Location, MemberIndex, Sectors, StripeId};

use crate::format::sums::Sum;

/// Pieces under way.
const HEALS_MAX: usize = 4;

/// Pieces that wait.
const WAITING_MAX: usize = 1024;

/// What a member failed to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) member: MemberIndex,
    pub(super) sector: DiskSector,
    pub(super) len: Sectors,
    /// The checksum of what it gave, where that is one block and not what was written there.
    pub(super) found: Option<Sum>,
}

/// Damage within one unit of a parity stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) stripe: StripeId,
    pub(super) cell: Unit,
    pub(super) start: Sectors,
    pub(super) len: Sectors,
    pub(super) found: Option<Sum>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Heals {
    waiting: RefCell<VecDeque<Piece>>,
    under_way: Cell<usize>,
}

/// A piece that is being healed, until this is dropped.
#[derive(Debug)]
pub(super) struct Healing<'a>(&'a Heals);

impl Damage {
    /// Cuts it at units.
    pub(super) fn pieces(self, geometry: &Geometry) -> impl Iterator<Item = Piece> + '_ {
        let Self { member, sector, len, found } = self;
        let mut at = 0;
        std::iter::from_fn(move || {
            let location = Location { member, sector: DiskSector(sector.0 + at) };
            let (stripe, cell, start) = if at < len.0 { geometry.cell_at(location)? } else { return None };
            let len = Sectors((geometry.chunk().0 - start.0).min(len.0 - at));
            at += len.0;
            Some(Piece { stripe, cell, start, len, found })
        })
    }
}

impl Heals {
    /// Whether anything is to be healed, or being healed.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way.get() > 0 || !self.waiting.borrow().is_empty()
    }

    /// Has damage healed.
    pub(super) fn add(&self, geometry: &Geometry, damage: Damage) {
        let mut waiting = self.waiting.borrow_mut();
        for piece in damage.pieces(geometry) {
            if waiting.len() < WAITING_MAX && !waiting.contains(&piece) {
                waiting.push_back(piece);
            }
        }
    }

    /// Forgets what waits.
    pub(super) fn forget(&self) {
        self.waiting.borrow_mut().clear();
    }

    /// Forgets what waits of some parity stripes.
    pub(super) fn forget_within(&self, stripes: &Range<u64>) {
        self.waiting.borrow_mut().retain(|piece| !stripes.contains(&piece.stripe.0));
    }

    /// The next piece to heal of those that may be, if there is room for it.
    pub(super) fn next(&self, may_be: impl Fn(&Piece) -> bool) -> Option<Piece> {
        let waiting = &mut *self.waiting.borrow_mut();
        let next = if self.under_way.get() < HEALS_MAX { waiting.iter().position(may_be) } else { None };
        waiting.remove(next?)
    }

    /// Begins to heal one.
    pub(super) fn begin(&self) -> Healing<'_> {
        self.under_way.set(self.under_way.get() + 1);
        Healing(self)
    }
}

impl Drop for Healing<'_> {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
    }
}
