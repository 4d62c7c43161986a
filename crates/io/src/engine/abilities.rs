//! Which members can make a range zeros without being sent zeros. That shows when they are asked for it: who can't is
//! sent zeros from then on.
//!
//! There are two such operations: one gives the members' space back, the other does not. A file system may have either.

use std::cell::Cell;

use uraid_layout::{MemberIndex, MemberSet};

/// See the module.
#[derive(Debug)]
pub(super) struct Abilities {
    /// Whoever is in neither was not asked yet. By operation: see [`of`].
    can: Cell<[MemberSet; 2]>,
    cannot: Cell<[MemberSet; 2]>,
}

impl Abilities {
    /// Nothing is known.
    pub(super) fn new() -> Self {
        Self { can: Cell::new([MemberSet::EMPTY; 2]), cannot: Cell::new([MemberSet::EMPTY; 2]) }
    }

    /// Members that have done the operation.
    pub(super) fn can(&self, may_punch: bool) -> MemberSet {
        self.can.get()[of(may_punch)]
    }

    /// Members that don't have it.
    pub(super) fn cannot(&self, may_punch: bool) -> MemberSet {
        self.cannot.get()[of(may_punch)]
    }

    /// Notes members that have done it.
    pub(super) fn note_can(&self, members: MemberSet, may_punch: bool) {
        note(&self.can, members, may_punch);
    }

    /// Notes members that don't have it.
    pub(super) fn note_cannot(&self, members: MemberSet, may_punch: bool) {
        note(&self.cannot, members, may_punch);
    }

    /// Forgets what is known of a place: it has another member.
    pub(super) fn forget(&self, member: MemberIndex) {
        for known in [&self.can, &self.cannot] {
            known.set(known.get().map(|members| members.without(member)));
        }
    }

    /// Notes that the member at a seat has a slot now.
    pub(super) fn exchange(&self, slot: MemberIndex, seat: MemberIndex) {
        let moved = |members: MemberSet| {
            let left = members.without(slot).without(seat);
            if members.contains(seat) { left.with(slot) } else { left }
        };
        for known in [&self.can, &self.cannot] {
            known.set(known.get().map(moved));
        }
    }
}

fn note(known: &Cell<[MemberSet; 2]>, members: MemberSet, may_punch: bool) {
    let mut sets = known.get();
    sets[of(may_punch)] = sets[of(may_punch)].union(members);
    known.set(sets);
}

fn of(may_punch: bool) -> usize {
    usize::from(may_punch)
}
