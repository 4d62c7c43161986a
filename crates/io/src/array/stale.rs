//! The last resort: members are read that the array went on without, so that what is left can be copied off.
//!
//! What such a member holds is of an earlier time, and so is everything that is computed from it: where something was
//! written meanwhile, its own content is old, and what it gives for a member that is gone is neither old nor new.
//! Nothing tells afterwards which is which, so an array is only read like this, never written. Where writes were is
//! known when the write-intent bitmap was kept while the member was away.

use std::ops::Range;
use std::path::PathBuf;

use thiserror::Error;
use uraid_layout::{Bytes, Geometry, MemberIndex, MemberSet, Spec};

use super::join::own;
use super::judge::{Candidate, Verdict};
use crate::format::Epoch;
use crate::format::bitmap::Bitmap;
use crate::format::superblock::{Consistency, SlotState, Superblock, SuperblockError};

/// A member that is read although the array went on without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    /// Its slot.
    pub slot: MemberIndex,
    /// Where it is.
    pub path: PathBuf,
    /// The last round that it knows of.
    pub epoch: Epoch,
    /// The array's.
    pub newest: Epoch,
    /// Whether it has everything but what is in regions whose bits are set in the write-intent bitmap.
    pub is_known: bool,
}

/// Why a member can't be taken in that is out of date.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StaleError {
    /// None of the members is.
    #[error("no member of slot {slot} that is out of date was named: name it, or leave --accept-stale {slot} out")]
    NotThere {
        /// The slot.
        slot: MemberIndex,
    },
    /// The slot has a member that is up to date.
    #[error("member {slot} is up to date: leave --accept-stale {slot} out")]
    UpToDate {
        /// The slot.
        slot: MemberIndex,
    },
    /// More than one is.
    #[error(
        "{first} and {second} were both in slot {slot}: name only the one to read",
        first = first.display(), second = second.display()
    )]
    Ambiguous {
        /// One of them.
        first: PathBuf,
        /// Another.
        second: PathBuf,
        /// The slot.
        slot: MemberIndex,
    },
    /// The array was changed since, so that nothing is where it is now.
    #[error("{path}: no longer fits the array", path = path.display())]
    Unfit {
        /// The member.
        path: PathBuf,
        /// What is wrong.
        source: SuperblockError,
    },
}

/// Takes the members of these slots into a verdict that were set aside as out of date, for reading.
///
/// # Errors
/// [`StaleError`].
pub fn accept_stale(
    verdict: &mut Verdict,
    candidates: &[Candidate],
    slots: MemberSet,
) -> Result<Vec<Stale>, StaleError> {
    slots.iter().map(|slot| accept(verdict, candidates, slot)).collect()
}

fn accept(verdict: &mut Verdict, candidates: &[Candidate], slot: MemberIndex) -> Result<Stale, StaleError> {
    if verdict.slots.get(slot.index()).is_some_and(Option::is_some) {
        return Err(StaleError::UpToDate { slot });
    }
    let is_of_slot = |&(index, _): &(usize, _)| candidates[index].superblock.slot == slot;
    let mut found = verdict.set_aside.iter().copied().filter(is_of_slot);
    let (index, _) = found.next().ok_or(StaleError::NotThere { slot })?;
    let Candidate { path, superblock: member } = &candidates[index];
    if let Some((other, _)) = found.next() {
        let (first, second) = (path.clone(), candidates[other].path.clone());
        return Err(StaleError::Ambiguous { first, second, slot });
    }
    let truth = &verdict.superblock;
    fits(member, truth).map_err(|source| StaleError::Unfit { path: path.clone(), source })?;
    let is_known = lacks_what_is_marked(member, truth) || planted!(StaleUndoubted);
    let stale = Stale { slot, path: path.clone(), epoch: member.epoch, newest: truth.epoch, is_known };
    verdict.set_aside.retain(|&(other, _)| other != index);
    verdict.slots[slot.index()] = Some(index);
    verdict.stale = verdict.stale.with(slot);
    Ok(stale)
}

/// What may be old or wrong, of an array that is read from these members: ranges, ascending and apart.
pub(super) fn doubtful(geometry: &Geometry, stale: &[Stale], bitmap: Option<&Bitmap>) -> Vec<Range<Bytes>> {
    let mut ranges: Vec<Range<Bytes>> = Vec::new();
    if stale.is_empty() {
        return ranges;
    }
    let capacity = geometry.capacity().bytes();
    let Some(bitmap) = bitmap.filter(|_| stale.iter().all(|one| one.is_known)) else {
        return vec![Bytes(0)..capacity];
    };
    let stripe = geometry.stripe_sectors().bytes().0;
    for stripes in bitmap.iter().map(|region| bitmap.regions().stripes(region)) {
        let [start, end] = [stripes.start, stripes.end].map(|at| Bytes((at.0 * stripe).min(capacity.0)));
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    ranges
}

/// Whether a member holds the units of the array where the array has them now.
fn fits(member: &Superblock, truth: &Superblock) -> Result<(), SuperblockError> {
    if (Spec { member_size: truth.spec.member_size, ..member.spec }) != truth.spec {
        return Err(SuperblockError::Field { field: "geometry" });
    }
    own(truth, member.member, member.slot, member.areas, member.revision).check()
}

/// Whether a member was given up while it had everything, and the array has kept a bitmap since.
fn lacks_what_is_marked(member: &Superblock, truth: &Superblock) -> bool {
    let entry = truth.slots[member.slot.index()];
    let is_given_up = entry.member == member.member && entry.state == SlotState::Failed;
    let was_last = member.epoch < entry.since && member.epoch.0 + 1 >= entry.since.0;
    let was_whole = !matches!(member.slots[member.slot.index()].state, SlotState::Rebuilding { is_whole: true, .. });
    is_given_up && was_last && was_whole && truth.consistency != Consistency::None
}

#[cfg(test)]
mod tests;
