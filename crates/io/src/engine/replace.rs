//! A member that is copied to another one, which takes its place then, while clients go on. Redundancy is never less
//! meanwhile.
//!
//! The new member has a *seat* of the disk beyond the slots, and nothing is on record about it. From the beginning on
//! every write to the slot goes to both members; what the old one held before is copied in the order of the parity
//! stripes, a job for each under the stripe's lock, as rebuilding does and within its bounds. What the old member can't
//! read is computed from the others. It alone is read, and remains the array's member whatever becomes of the new one,
//! until the switch.
//!
//! The switch waits until nothing is under way, as a join does, and has everything flushed and the members marked
//! clean. Then the new member gets a superblock of the next epoch, which says that the slot is its, and when that is
//! durable the others get theirs. So, whenever this is cut off: where any member has the next epoch, the new one has
//! it, and all that the old one has; where none has, nothing was written since. An array that goes on with the old
//! member instead marks its members as written first, in a later version of the same epoch, or a later one.
//!
//! When the old member fails the new one joins in its place, and is rebuilt.

use uraid_layout::{Bytes, Cell, DiskSector, Geometry, MemberIndex, MemberSet, Sectors, StripeId};
use uuid::Uuid;

use super::job::{JobId, Stage, Work};
use super::join::{Barrier, Change, Joining};
use super::rebuild::Progress;
use super::run::{Caller, Step};
use super::sweep::{Stuck, Sweep};
use super::{Engine, EngineError};
use crate::buf::Buf;
use crate::disk::{Disk, DiskError, DiskOp, OpKind, Segments};
use crate::format::Epoch;
use crate::format::superblock::{SUPERBLOCK_BYTES, Superblock, encode};

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

/// See the module.
#[derive(Debug)]
pub(super) struct Replacing {
    pub(super) slot: MemberIndex,
    pub(super) seat: MemberIndex,
    joining: Joining,
    pub(super) sweep: Sweep,
    seal: Seal,
    /// Operations of it in flight, and whether one has failed.
    pending: u32,
    is_failed: bool,
}

/// How far the new member is with saying that the slot is its.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seal {
    Open,
    /// What was written to it is being flushed.
    Settling,
    Writing(Epoch),
    Flushing(Epoch),
    /// It durably says so.
    Sealed(Epoch),
}

impl Replacing {
    /// Where a sector of the slot's data area is on the new member.
    pub(super) fn offset(&self, sector: DiskSector) -> Bytes {
        Bytes(self.joining.superblock.areas.data.offset.0 + Sectors(sector.0).bytes().0)
    }
}

impl<D: Disk, T> Engine<D, T> {
    /// The copy under way, if there is one.
    pub fn replacement(&self) -> Option<Replacement> {
        let Replacing { slot, joining, sweep, .. } = self.replacing.as_deref()?;
        let progress = self.progress(MemberSet::EMPTY.with(*slot), sweep);
        Some(Replacement { slot: *slot, member: joining.superblock.member, progress })
    }

    /// The seat of the [`Disk`] for a member that is to take another one's place; none where the array has as many
    /// members as there can be.
    pub fn seat(&self) -> Option<MemberIndex> {
        let seat = u8::try_from(self.geometry.members()).expect("members are at most 64");
        (seat < 64).then_some(MemberIndex(seat))
    }

    /// Whether the member at the seat may not be taken out: it is being copied to, or about to join in the place of the
    /// old one, which has failed.
    pub fn needs_seat(&self) -> bool {
        self.replacing.is_some() || self.barrier.as_ref().is_some_and(Barrier::needs_seat)
    }

    /// Gives a copy up; the old member stays. False: there is none.
    pub fn stop_replacing(&mut self) -> bool {
        let is_switching = self.barrier.as_ref().is_some_and(Barrier::is_switch);
        let replacing = if is_switching { None } else { self.replacing.take() };
        replacing.is_some()
    }

    /// The slot whose member has failed while it was being copied, and in whose place the other one is about to join,
    /// to be rebuilt.
    pub fn promoting(&self) -> Option<MemberIndex> {
        let promotes = self.barrier.as_ref().and_then(Barrier::promotes);
        let is_failed = |slot: &MemberIndex| self.record.missing().contains(*slot);
        promotes.or_else(|| self.replacing.as_ref().map(|replacing| replacing.slot).filter(is_failed))
    }

    /// The slot of the last member whose place was taken by a copy, and how many were.
    pub fn replaced(&self) -> Option<(MemberIndex, u32)> {
        self.replaced
    }

    /// Whether the member in a slot can be copied to another one now.
    ///
    /// # Errors
    /// Why it can't.
    pub fn check_replaceable(&self, slot: MemberIndex) -> Result<(), EngineError> {
        if self.replacing.is_some() {
            return Err(EngineError::Replacing);
        }
        if self.seat().is_none() {
            return Err(EngineError::NoSeat);
        }
        if slot.index() >= self.geometry.members() || self.record.lost().contains(slot) {
            return Err(EngineError::NotThere { member: slot });
        }
        self.check_changes()?;
        if self.is_suspect { Err(EngineError::Suspect) } else { Ok(()) }
    }

    /// Whether a member can be copied to this one.
    pub(super) fn check_replace(&self, joining: &Joining) -> Result<(), EngineError> {
        self.check_replaceable(joining.superblock.slot)?;
        self.check_suits(joining)
    }

    /// Begins the copy; nothing is under way.
    pub(super) fn begin_replacing(&mut self, joining: Joining) {
        let Superblock { member, slot, .. } = joining.superblock;
        let seat = self.seat().expect("that was checked when it was asked for");
        tracing::info!(member = %slot, uuid = %member, "a member is being copied to another one, which then takes over \
            its slot");
        self.cannot_zero = self.cannot_zero.without(seat);
        if let Some(sums) = &mut self.sums {
            sums.replace(&Superblock { slot: seat, ..joining.superblock.clone() });
        }
        let mut sweep = Sweep::default();
        sweep.restart(StripeId(0));
        let seal = Seal::Open;
        self.replacing = Some(Box::new(Replacing { slot, seat, joining, sweep, seal, pending: 0, is_failed: false }));
    }

    /// The next stripe to copy.
    pub(super) fn next_to_copy(&mut self, end: StripeId) -> Option<Work> {
        let replacing = self.replacing.as_mut()?;
        let member = replacing.slot;
        if self.record.missing().contains(member) {
            return None;
        }
        replacing.sweep.begin(end, |from| from).map(|stripe| Work::Copy { stripe, member })
    }

    /// Takes note of the end of a stripe.
    pub(super) fn note_copied(&mut self, stuck: Stuck, error: Option<&EngineError>) {
        let stripe = stuck.stripe;
        let Some(Replacing { slot, sweep, .. }) = self.replacing.as_deref_mut() else { return };
        match error {
            _ if self.record.missing().contains(*slot) => {}
            None => sweep.finish(stripe, |from| from),
            Some(error) => {
                if sweep.fail(stuck) {
                    tracing::error!(%stripe, %error, "a parity stripe can't be copied: the member can't be read there, \
                        and the others can't compute it");
                }
            }
        }
    }

    /// Has the new member take the place, when it has everything, or the old one has failed.
    pub(super) fn end_copying(&mut self) {
        let Some(Replacing { slot, joining, sweep, .. }) = self.replacing.as_deref() else { return };
        if self.record.missing().contains(*slot) {
            tracing::warn!(member = %slot, "the copied member failed: the new one takes over its slot now and is \
                rebuilt");
            let change = Change::Promote(joining.clone());
            self.replacing = None;
            if !planted!(CopyKeepsPlace) {
                self.begin_change(None, change);
            }
        } else if (sweep.done() == self.last() || planted!(CopyEndsEarly) && sweep.done().0 + 1 == self.last().0)
            && self.record.rebuilding().is_empty()
        {
            self.begin_change(None, Change::Switch { slot: *slot });
        }
    }

    /// Whether a place of the disk is the new member's.
    pub(super) fn is_seat(&self, member: MemberIndex) -> bool {
        member.index() >= self.geometry.members()
    }

    /// The new member failed: the old one stays, and nobody's work fails.
    pub(super) fn give_up_replacing(&mut self, error: &DiskError) {
        let Some(replacing) = self.replacing.as_deref_mut() else { return };
        tracing::error!(member = %replacing.slot, %error, "the new member failed; the old one keeps its slot");
        replacing.is_failed = true;
        if replacing.pending == 0 {
            self.replacing = None;
        }
    }

    /// Puts the new member in the old one's place, when it has said durably that it is there; nothing is under way.
    pub(super) fn switch(&mut self, id: JobId) -> Step {
        let Some(&Replacing { slot, is_failed, .. }) = self.replacing.as_deref() else { return Step::To(Stage::Done) };
        if self.record.missing().contains(slot) {
            // It joins when the barrier is away.
            return Step::To(Stage::Done);
        }
        let failures = self.flusher.failures();
        if is_failed || !failures.is_empty() {
            tracing::error!(member = %slot, %failures, "the member keeps its place: members failed a flush, or the new \
                one failed");
            self.replacing = None;
            return Step::To(Stage::Done);
        }
        if !self.record.demand_clean(id) || !self.record.demand_settled(id) {
            self.run_record();
            return Step::Wait(Stage::Join);
        }
        if !self.seal() && !planted!(CopySwitchedUnsealed) {
            return Step::Wait(Stage::Join);
        }
        let replacing = self.replacing.take().expect("it was there a moment ago");
        let Replacing { seat, joining, .. } = *replacing;
        let Joining { superblock, generation, .. } = joining;
        tracing::info!(member = %slot, uuid = %superblock.member, "a member has taken over a slot from another one");
        let sealed = self.record.sealed(&superblock, generation);
        self.record.replace(sealed);
        self.disk.exchange(slot, seat);
        self.errors.forget(slot);
        self.troubled.forget(slot);
        self.counters.forget(slot);
        if self.cannot_zero.contains(seat) {
            self.cannot_zero = self.cannot_zero.with(slot).without(seat);
        }
        self.renew_member(slot);
        self.replaced = Some((slot, self.replaced.map_or(1, |(_, count)| count + 1)));
        Step::To(Stage::Settle)
    }

    /// Takes the new member in at the place of the old one, which has failed, to be rebuilt.
    pub(super) fn promote(&mut self, id: JobId, joining: Joining) -> Step {
        if !self.record.demand_settled(id) {
            // The last of what was to be done with the old member.
            self.run_record();
            return Step::Wait(Stage::Join);
        }
        let slot = joining.superblock.slot;
        let seat = self.seat().expect("the new member has one");
        // What was given up on the new member could land after it was rebuilt.
        let lingers = self.disk.abandoned(seat) > 0 && !planted!(LingeringPromoted);
        if self.disk.is_awaited(slot) || self.disk.is_awaited(seat) || lingers {
            return Step::Fail(EngineError::Lingering { member: slot });
        }
        self.disk.exchange(slot, seat);
        self.take_in(joining)
    }

    /// Takes the new member a step further to its superblock; true: it durably has it.
    fn seal(&mut self) -> bool {
        let next = Epoch(self.record.any().epoch.0 + 1);
        let Some(replacing) = self.replacing.as_deref_mut() else { return false };
        if replacing.pending > 0 {
            return false;
        }
        let seat = replacing.seat;
        let flush = || DiskOp {
            tag: Caller::Seal.tag(),
            member: seat,
            kind: OpKind::Flush,
            offset: Bytes(0),
            segments: Segments::new(),
        };
        replacing.seal = match replacing.seal {
            Seal::Sealed(epoch) | Seal::Flushing(epoch) if epoch == next => Seal::Sealed(epoch),
            // Another round may have come between.
            Seal::Open | Seal::Sealed(_) | Seal::Flushing(_) if !planted!(CopySealedUnflushed) => {
                replacing.pending = 1;
                self.disk.submit(flush());
                Seal::Settling
            }
            Seal::Open | Seal::Sealed(_) | Seal::Flushing(_) | Seal::Settling => {
                let Joining { superblock, generation, .. } = &replacing.joining;
                let sealed = self.record.sealed(superblock, *generation);
                let mut block = Buf::zeroed(Bytes(SUPERBLOCK_BYTES as u64));
                block.as_mut().copy_from_slice(&encode(&sealed));
                for offset in sealed.write_positions() {
                    replacing.pending += 1;
                    let segments = smallvec::smallvec![block.lease_read(0..SUPERBLOCK_BYTES)];
                    self.disk.submit(DiskOp { kind: OpKind::Write, offset, segments, ..flush() });
                }
                Seal::Writing(next)
            }
            Seal::Writing(epoch) => {
                replacing.pending = 1;
                self.disk.submit(flush());
                Seal::Flushing(epoch)
            }
        };
        matches!(replacing.seal, Seal::Sealed(epoch) if epoch == next)
    }

    /// Takes in the end of one of these operations.
    pub(super) fn seal_completed(&mut self) {
        let replacing = self.replacing.as_deref_mut().expect("it stays while operations of it are in flight");
        replacing.pending -= 1;
        if replacing.pending == 0 {
            self.ready.extend(self.barrier.as_ref().map(Barrier::id));
        }
    }
}

/// The cells of a stripe that a member has.
pub(super) fn cells_of(geometry: &Geometry, stripe: StripeId, member: MemberIndex) -> impl Iterator<Item = Cell> + '_ {
    let cells = (0_u16..).map(Cell).take(geometry.map(stripe).cells());
    cells.filter(move |&cell| geometry.member(cell) == member)
}
