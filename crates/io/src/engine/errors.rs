//! How many errors a member may make.
//!
//! Each single one is made good from the others and does no harm. A member that makes many is about to make more, or to
//! fail, and is better replaced while the others are all there. So it is given up, unless that endangers anything.

use uraid_layout::repair::Repair;
use uraid_layout::{MemberIndex, MemberSet};

use super::Engine;
use crate::disk::Disk;

/// What each member has made of errors that were corrected.
#[derive(Debug)]
pub(super) struct Errors {
    most: Option<u32>,
    /// By slot.
    counts: Vec<u32>,
    /// Those of whom it was said that they are kept all the same.
    kept: MemberSet,
}

impl Errors {
    /// None so far, and any number is forgiven.
    pub(super) fn new(members: usize) -> Self {
        Self { most: None, counts: vec![0; members], kept: MemberSet::EMPTY }
    }

    /// Members with too many errors that can't be spared.
    pub(super) fn kept(&self) -> MemberSet {
        self.kept
    }

    /// Forgets what the slot's former member did.
    pub(super) fn forget(&mut self, member: MemberIndex) {
        self.counts[member.index()] = 0;
        self.kept = self.kept.without(member);
    }
}

impl<D: Disk, T> Engine<D, T> {
    /// Gives up members of which more than `most` errors were corrected: what could not be read, or was not what was
    /// written there. None, as at first: any number is forgiven. Members that the array needs are kept, and so is one
    /// that is being copied to another; all are while any is being rebuilt. Members with errors of their own that are
    /// not forgiven yet do not count as there for that: what they have wrong, this one may be needed for.
    pub fn set_max_errors(&mut self, most: Option<u32>) {
        self.errors.most = most;
    }

    /// How many corrected errors of a member are forgiven.
    pub fn max_errors(&self) -> Option<u32> {
        self.errors.most
    }

    /// Forgives each member half of its errors, and what could not be made good before the last time: for each hour.
    pub fn forgive_errors(&mut self) {
        self.errors.counts.iter_mut().for_each(|count| *count /= 2);
        self.errors.kept = MemberSet::EMPTY;
        self.troubled.forgive();
    }

    /// Takes note of an error of a member that was corrected.
    pub(super) fn note_corrected(&mut self, member: MemberIndex) {
        let count = &mut self.errors.counts[member.index()];
        *count = count.saturating_add(1);
        let errors = *count;
        let Some(most) = self.errors.most.filter(|&most| errors > most) else { return };
        let is_replaced = self.replacing.as_ref().is_some_and(|replacing| replacing.slot == member);
        let is_needed = self.check_fail(member).is_err() || !self.is_spared(member);
        if is_replaced || !self.record.rebuilding().is_empty() || is_needed {
            if !self.errors.kept.contains(member) {
                tracing::warn!(%member, errors, most, "the member has too many errors, but the array can't spare it \
                    now: replace it");
            }
            self.errors.kept = self.errors.kept.with(member);
            return;
        }
        tracing::error!(%member, errors, most, "the member has too many errors, all of them corrected, and is given \
            up: replace it");
        if self.fail_members(MemberSet::EMPTY.with(member)).is_ok() {
            self.put_on_record();
        }
    }

    /// Whether the array survives the loss of a member beside what others have wrong.
    fn is_spared(&self, member: MemberIndex) -> bool {
        let has_errors = |other: &MemberIndex| *other != member && self.errors.counts[other.index()] > 0;
        let suspects: MemberSet = self.geometry.all_members().iter().filter(has_errors).collect();
        let lost = self.record.missing().union(suspects).with(member);
        planted!(SuspectsCount) || Repair::new(&self.geometry, lost).is_ok()
    }

    /// Has recorded which members have failed, though no write waits for it.
    pub(super) fn put_on_record(&mut self) {
        if !self.is_read_only {
            self.run_record();
        }
    }
}
