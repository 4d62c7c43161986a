//! A member that is copied to another one, which takes its place then, while clients go on. Redundancy is never less
//! meanwhile.
//!
//! The new member has a *seat* of the disk beyond the slots, and nothing is on record about it. From the beginning on
//! every write to the slot goes to both members; what the old one held before is copied in the order of the parity
//! stripes, each under its lock, as rebuilding does and within its bounds. What the old member can't read is computed
//! from the others; what nobody can give is tried once more at the end, and then lacking. The old member alone is read,
//! and remains the array's member whatever becomes of the new one, until the switch
//! ([`join`](crate::engine::ops::join)).
//!
//! When the old member fails the new one joins in its place, and is rebuilt.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use uraid_layout::{Bytes, DiskSector, Location, MemberIndex, MemberSet, StripeId};
use uuid::Uuid;

use super::rebuild::{Progress, cost, make_columns, progress};
use super::sweep::{Next, Sweep, next_unit};
use crate::engine::change::{Change, Joining};
use crate::engine::error::EngineError;
use crate::engine::members::Twin;
use crate::engine::parts::Parts;
use crate::engine::sweeper::{Kind, Sweeper};
use crate::engine::transfer::{Goal, Workspace};
use crate::format::badblocks::Lack;
use crate::format::superblock::Superblock;

/// A copy under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// Whose place is taken.
    pub slot: MemberIndex,
    /// By whom.
    pub member: Uuid,
    /// How far it is.
    pub progress: Progress,
}

/// What is known of copying beside its sweep.
#[derive(Debug, Default)]
pub(in crate::engine) struct Copies {
    /// Who is being copied to, as long as the members have a twin.
    joining: RefCell<Option<Joining>>,
    /// What could not be copied has been tried once more.
    is_second: Cell<bool>,
    /// The last slot in which one has taken a member's place, and how many have.
    replaced: Cell<Option<(MemberIndex, u32)>>,
}

impl Copies {
    /// The copy under way, if there is one.
    pub(in crate::engine) fn current(&self, parts: &Parts) -> Option<Replacement> {
        let Twin { slot, .. } = parts.members.twin()?;
        let member = self.joining.borrow().as_ref()?.superblock.member;
        let progress = progress(parts, MemberSet::EMPTY.with(slot), &parts.sweeps.of(Kind::Copy));
        Some(Replacement { slot, member, progress })
    }

    /// The slot of the last member whose place was taken by a copy, and how many were.
    pub(in crate::engine) fn replaced(&self) -> Option<(MemberIndex, u32)> {
        self.replaced.get()
    }

    /// Notes that a member's place was taken.
    pub(in crate::engine) fn note_replaced(&self, slot: MemberIndex) {
        self.replaced.set(Some((slot, self.replaced.get().map_or(1, |(_, count)| count + 1))));
    }

    /// Notes what has come of a change that was wanted here: what could not be done is tried again later.
    pub(in crate::engine) fn note_changed(&self, parts: &Parts, result: Result<(), EngineError>) {
        let Err(error) = result else { return };
        if parts.members.is_frozen() || planted!(ChangeTriedAtOnce) {
            return;
        }
        tracing::error!(%error, "the copy of a member can't take its place yet; it is tried again");
        parts.sweeps.of(Kind::Copy).put_off();
    }

    /// Who is being copied to.
    pub(in crate::engine) fn joining(&self) -> Joining {
        self.joining.borrow().clone().expect("a member is being copied")
    }

    /// Begins a copy; nothing is under way.
    pub(in crate::engine) fn begin(&self, parts: &Parts, joining: Joining) {
        let Superblock { member, slot, areas, .. } = joining.superblock;
        let members = &parts.members;
        let seat = members.seat().expect("that was checked when it was asked for");
        tracing::info!(member = %slot, uuid = %member, "a member is being copied to another one, which then takes over \
            its slot");
        members.abilities.forget(seat);
        if let Some(sums) = &parts.sums {
            sums.replace(&Superblock { slot: seat, ..joining.superblock.clone() });
        }
        parts.bad.replace(&Superblock { slot: seat, ..joining.superblock.clone() }, joining.bad_blocks.clone());
        parts.sweeps.of(Kind::Copy).restart(0);
        self.is_second.set(false);
        let data = areas.data.offset;
        members.set_twin(Some(Twin { slot, seat, data, has_failed: false, is_sealing: false }));
        *self.joining.borrow_mut() = Some(joining);
    }

    /// Copies a stripe.
    pub(in crate::engine) async fn copy(&self, parts: &Parts, space: &mut Workspace, stripe: StripeId) {
        let Some(Twin { slot: member, .. }) = parts.members.twin() else {
            return parts.sweeps.of(Kind::Copy).drop_unit(stripe.0);
        };
        let result = make_columns(parts, space, Goal::Copy { stripe, member }).await;
        let sweep = &mut *parts.sweeps.of(Kind::Copy);
        let is_over = parts.members.twin().is_none() || parts.members.missing().contains(member);
        match result {
            _ if is_over => sweep.drop_unit(stripe.0),
            Ok(()) => sweep.finish(stripe.0, |from| self.first_wanted(parts, from)),
            Err((error, stuck)) => {
                if sweep.fail(stuck) {
                    tracing::error!(%stripe, %error, "a parity stripe can't be copied");
                }
            }
        }
        parts.wake_repairs();
    }

    /// What has to change now: the new member has everything, or the old one has failed.
    fn next_change(&self, parts: &Parts) -> Option<Change> {
        let Twin { slot, .. } = parts.members.twin()?;
        if !parts.members.rebuilding().is_empty() {
            return None;
        }
        if parts.members.missing().contains(slot) {
            tracing::warn!(member = %slot, "the copied member failed: the new one takes over its slot now and is \
                rebuilt");
            parts.members.set_twin(None);
            return (!planted!(CopyKeepsPlace)).then(|| Change::Promote(self.joining()));
        }
        let (done, last) = (parts.sweeps.of(Kind::Copy).done(), parts.geometry().stripes().0);
        let has_everything = done == last || planted!(CopyEndsEarly) && done + 1 == last;
        has_everything.then_some(Change::Switch { slot })
    }

    /// Begins a second time, with what could not be copied: the old member may give it yet, and goes then.
    fn begins_again(&self, parts: &Parts) -> bool {
        let (done, last) = (parts.sweeps.of(Kind::Copy).done(), parts.geometry().stripes().0);
        let has_ended = done == last && !parts.sweeps.of(Kind::Copy).is_busy() && !self.is_second.replace(true);
        let is_wanted = has_ended && self.first_wanted(parts, 0) < last;
        if is_wanted {
            parts.sweeps.of(Kind::Copy).restart(0);
        }
        is_wanted
    }

    /// The first stripe from one on that is to be copied: all of them, and then those that could not be.
    fn first_wanted(&self, parts: &Parts, from: u64) -> u64 {
        let geometry = parts.geometry();
        if !self.is_second.get() {
            return parts.blanks.next_made(from, geometry.stripes().0);
        }
        let end = from.max(geometry.stripes().0);
        let Some((twin, list)) = parts.members.twin().and_then(|twin| Some((twin, parts.bad.of(twin.seat)?))) else {
            return end;
        };
        let stripe = |sector| geometry.cell_at(Location { member: twin.slot, sector }).map(|(stripe, ..)| stripe.0);
        let chunk = usize::try_from(geometry.chunk().0).expect("a chunk is small");
        let units = |run: Range<DiskSector>| (run.start.0..run.end.0).step_by(chunk).chain([run.end.0 - 1]);
        let lacking = list.all(Lack::Absent).flat_map(units).map(DiskSector).filter_map(stripe);
        lacking.filter(|&stripe| stripe >= from).min().unwrap_or(end)
    }
}

impl Sweep for Copies {
    fn kind(&self) -> Kind {
        Kind::Copy
    }

    fn is_wanted(&self, parts: &Parts) -> bool {
        let Parts { members, sweeps, .. } = parts;
        sweeps.may_repair(Kind::Copy) && !members.is_frozen() && members.twin().is_some()
    }

    fn size(&self, parts: &Parts) -> Bytes {
        cost(parts)
    }

    fn next(&self, parts: &Parts, sweeper: &mut Sweeper) -> Option<u64> {
        let twin = parts.members.twin()?;
        // A member that has failed is not copied, and what members lack that joined comes first.
        let is_idle = parts.members.missing().contains(twin.slot) || !parts.members.rebuilding().is_empty();
        let end = parts.geometry().stripes().0;
        if is_idle { None } else { sweeper.begin(end, cost(parts), |from| self.first_wanted(parts, from)) }
    }

    fn step(&self, parts: &Parts) -> Option<Next> {
        if self.begins_again(parts) {
            return next_unit(self, parts).map(Next::Unit);
        }
        let is_put_off = parts.sweeps.of(Kind::Copy).is_put_off();
        let change = if is_put_off { None } else { self.next_change(parts) };
        change.map(|change| Next::Change(Box::new(change)))
    }
}
