//! How many errors a member may make.
//!
//! Each single one is made good from the others and does no harm. A member that makes many is about to make more, or to
//! fail, and is better replaced while the others are all there. So it is given up, unless that endangers anything.

use std::cell::{Cell, RefCell};

use uraid_layout::{MemberIndex, MemberSet};

use super::members::Members;

/// What each member has made of errors that were corrected.
#[derive(Debug)]
pub(super) struct Leniency {
    most: Cell<Option<u32>>,
    /// By slot.
    counts: RefCell<Vec<u32>>,
    /// Those of whom it was said that they are kept all the same.
    kept: Cell<MemberSet>,
}

impl Leniency {
    /// No errors so far, and any number is forgiven.
    pub(super) fn new(members: usize) -> Self {
        let counts = RefCell::new(vec![0; members]);
        Self { most: Cell::new(None), counts, kept: Cell::new(MemberSet::EMPTY) }
    }

    /// Changes how many are forgiven.
    pub(super) fn set_most(&self, most: Option<u32>) {
        self.most.set(most);
    }

    /// How many are forgiven.
    pub(super) fn most(&self) -> Option<u32> {
        self.most.get()
    }

    /// Forgives each member half of its errors.
    pub(super) fn forgive(&self) {
        self.counts.borrow_mut().iter_mut().for_each(|count| *count /= 2);
        self.kept.set(MemberSet::EMPTY);
    }

    /// Members with too many errors that can't be spared.
    pub(super) fn kept(&self) -> MemberSet {
        self.kept.get()
    }

    /// Forgets what the slot's former member did.
    pub(super) fn forget(&self, member: MemberIndex) {
        self.counts.borrow_mut()[member.index()] = 0;
        self.kept.set(self.kept.get().without(member));
    }

    /// Takes note of an error of a member that was corrected, and gives the member up if it was one too many. Members
    /// that the array needs are kept, and so is one that is being copied to another; all are while any is being
    /// rebuilt. Members with errors of their own that are not forgiven yet do not count as there for that: what they
    /// have wrong, this one may be needed for.
    pub(super) fn note_corrected(&self, members: &Members, member: MemberIndex) {
        let errors = {
            let count = &mut self.counts.borrow_mut()[member.index()];
            *count = count.saturating_add(1);
            *count
        };
        let Some(most) = self.most.get().filter(|&most| errors > most) else { return };
        let is_replaced = members.twin().is_some_and(|twin| twin.slot == member);
        let is_needed = members.check_fail(member).is_err() || !self.is_spared(members, member);
        if is_replaced || !members.rebuilding().is_empty() || is_needed {
            if !self.kept.get().contains(member) {
                tracing::warn!(%member, errors, most, "the member has too many errors, but the array can't spare it \
                    now: replace it");
            }
            self.kept.set(self.kept.get().with(member));
            return;
        }
        tracing::error!(%member, errors, most, "the member has too many errors, all of them corrected, and is given \
            up: replace it");
        if members.fail(MemberSet::EMPTY.with(member)).is_ok() && !members.is_read_only() {
            members.demand_record();
        }
    }

    /// Whether the array survives the loss of a member beside what others have wrong.
    fn is_spared(&self, members: &Members, member: MemberIndex) -> bool {
        let counts = self.counts.borrow();
        let has_errors = |other: &MemberIndex| *other != member && counts[other.index()] > 0;
        let suspects: MemberSet = members.all().iter().filter(has_errors).collect();
        planted!(SuspectsCount) || members.can_do_without(suspects.with(member))
    }
}
