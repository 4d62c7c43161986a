//! Healing: what a member failed to read is computed from the others and written back to it.
//!
//! A job that got its data from the others leaves here what a member failed. Each piece, within one unit of a parity
//! stripe, becomes a job of its own: it locks the stripe, computes the piece, writes it through the log where there is
//! one, then reads it back and compares. A member that fails the write, or does not give back what was written, is
//! failed as by any other write.
//!
//! Few heal at a time, and of many pieces some are forgotten: the next read finds them again.

use std::collections::VecDeque;

use uraid_layout::plan::Buffer;
use uraid_layout::{Cell, DiskSector, Geometry, Lba, Location, MemberIndex, MemberSet, Sectors, StripeId};

use super::job::{Job, JobId, Slot, Stage, Work};
use super::run::{Caller, Step};
use super::sums::Sums;
use super::transfer::Transfer;
use super::{Engine, EngineError};
use crate::buf::Buf;
use crate::disk::{Disk, OpKind};
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

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Heals {
    waiting: VecDeque<Piece>,
    under_way: usize,
    /// Jobs that go on when nothing is to be healed any more.
    closers: Vec<JobId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    stripe: StripeId,
    cell: Cell,
    start: Sectors,
    len: Sectors,
    found: Option<Sum>,
}

impl Heals {
    /// Whether anything is to be healed.
    fn is_busy(&self) -> bool {
        self.under_way > 0 || !self.waiting.is_empty()
    }

    /// Cuts damage at units.
    fn add(&mut self, geometry: &Geometry, damage: Damage) {
        let Damage { member, sector, len, found } = damage;
        let mut at = 0;
        while at < len.0 {
            let location = Location { member, sector: DiskSector(sector.0 + at) };
            let Some((stripe, cell, start)) = geometry.cell_at(location) else { return };
            let len = Sectors((geometry.chunk().0 - start.0).min(len.0 - at));
            let piece = Piece { stripe, cell, start, len, found };
            if self.waiting.len() < WAITING_MAX && !self.waiting.contains(&piece) {
                self.waiting.push_back(piece);
            }
            at += len.0;
        }
    }
}

impl<D: Disk, T> Engine<D, T> {
    /// Has everything healed that a job found and did without; not while a member waits to join, which waits for that:
    /// the next read finds it again.
    pub(super) fn heal_later(&mut self, id: JobId) {
        let damage = std::mem::take(&mut self.jobs.job(id).damage);
        // Parity that may be wrong is good enough to answer from where nothing else is left, not to be made what the
        // member holds.
        let is_doubted = self.is_suspect && !planted!(HealInDoubt);
        let is_held_back = self.barrier.is_some() && !planted!(HealHoldsJoin);
        if self.is_read_only || is_doubted || is_held_back || planted!(HealDropped) {
            return;
        }
        for damage in damage.into_iter().filter(|damage| !self.record.missing().contains(damage.member)) {
            self.heals.add(&self.geometry, damage);
        }
    }

    /// Counts what a job found and could not do without.
    pub(super) fn give_up_on(&mut self, id: JobId) {
        let is_kept = self.jobs.job(id).work == Work::Destage;
        for Damage { member, .. } in std::mem::take(&mut self.jobs.job(id).damage) {
            self.counters.unrepairable(member);
            // What could not be written out is told of by itself for as long as that lasts: it is still in memory.
            if !is_kept {
                self.troubled.note_lost(MemberSet::EMPTY.with(member));
            }
        }
    }

    /// Begins to heal what there is room for.
    pub(super) fn heal(&mut self) {
        while self.heals.under_way < HEALS_MAX && self.barrier.is_none() {
            let Some(Piece { stripe, cell, start, len, found }) = self.heals.waiting.pop_front() else { return };
            self.heals.under_way += 1;
            let work = Work::Heal { stripe, cell, start, found };
            let member = self.geometry.member(cell);
            let unreadable = MemberSet::EMPTY.with(member);
            self.start(Job { unreadable, heals: Some(member), ..Job::new(None, work, Lba(0)..Lba(len.0)) });
        }
    }

    /// Forgets what waits to be healed: the next read finds it again.
    pub(super) fn forget_heals(&mut self) {
        self.heals.waiting.clear();
    }

    /// Waits with closing the array until nothing is to be healed, and no checksum to be written; false: there is
    /// nothing.
    pub(super) fn awaits_rest(&mut self, id: JobId) -> bool {
        let is_busy = self.is_busy();
        if is_busy {
            self.heals.closers.push(id);
        }
        is_busy
    }

    /// Reads back what was written to a healed member.
    pub(super) fn start_check(&mut self, id: JobId) -> Step {
        let Self { jobs, disk, record, counters, queues, spare, .. } = self;
        let Slot { job, plan, .. } = jobs.slot(id);
        let job = job.as_mut().expect("the slot has a job");
        job.failed = MemberSet::EMPTY;
        for io in plan.writes().iter().filter(|io| !record.missing().contains(io.member)) {
            let mut buf = Buf::zeroed(io.len.bytes());
            let offset = record.offset(io.member, io.sector);
            let end = DiskSector(io.sector.0 + io.len.0);
            let mut transfer = Transfer::new(Caller::Job(id).tag(), io.member, OpKind::Read, offset, end);
            let len = buf.len();
            transfer.push(buf.lease_write(0..len), spare, |op| disk.submit(op));
            job.pending += transfer.finish(queues, |op| disk.submit(op));
            counters.read(io.member, io.len);
            assert!(job.buf.replace(buf).is_none(), "one unit is healed by one write");
        }
        if job.pending == 0 { Step::To(Stage::Record) } else { Step::Wait(Stage::Checked) }
    }

    /// Compares what was read back.
    pub(super) fn checked(&mut self, id: JobId) -> Step {
        let Slot { job, plan, .. } = self.jobs.slot(id);
        let job = job.as_mut().expect("the slot has a job");
        let io = plan.writes().first().expect("what is healed is written");
        let back = job.buf.take().expect("it was read back");
        let scratch = job.scratch.as_ref().expect("what is healed was computed");
        let mut at = 0;
        let has_failed = !job.failed.is_empty();
        let is_same = !has_failed
            && plan.slices(io).iter().all(|slice| {
                assert_eq!(slice.buffer, Buffer::Scratch, "what is healed was computed");
                let written = scratch.bytes(super::transfer::range(slice, Sectors(0)));
                let same = back.bytes(at..at + written.len()) == written;
                at += written.len();
                same
            });
        let member = io.member;
        let is_healed = is_same || planted!(HealUnchecked);
        job.is_healed = is_healed;
        if !is_healed {
            tracing::error!(%member, sector = %io.sector, "the member does not give back what was written to heal it");
            if let Err(error) = self.fail_members(MemberSet::EMPTY.with(member)) {
                return Step::Fail(error);
            }
        }
        Step::To(Stage::Record)
    }

    /// Ends a job that healed, or could not.
    pub(super) fn healed(&mut self, id: JobId, error: Option<&EngineError>) {
        let Job { work, is_healed, rest, .. } = self.jobs.remove(id);
        let Work::Heal { stripe, cell, start, .. } = work else { unreachable!("only a job that heals ends here") };
        let member = self.geometry.member(cell);
        if is_healed {
            self.counters.repaired(member);
            tracing::info!(%member, %stripe, %start, "content was computed from the other members and written back");
            self.note_corrected(member);
        } else if error.is_some() && rest.is_none() && self.record.missing().contains(member) {
            // It is done without, and what it was to hold is nobody's loss.
            tracing::info!(%member, %stripe, %start, "the member has failed, so nothing is written back to it");
        } else {
            self.counters.unrepairable(member);
            tracing::error!(%member, %stripe, %start, error = error.map(tracing::field::display), "content could not \
                be written back");
        }
        if let Some(rest) = rest {
            return self.rescrub(stripe, rest, is_healed);
        }
        self.heals.under_way -= 1;
        self.wake_closers();
    }

    /// Lets those go on who wait with closing the array.
    pub(super) fn wake_closers(&mut self) {
        if !self.is_busy() {
            self.ready.extend(self.heals.closers.drain(..));
        }
    }

    fn is_busy(&self) -> bool {
        let is_background = self.scrubber.is_busy() || self.rebuild.is_busy();
        self.heals.is_busy() || is_background || self.sums.as_ref().is_some_and(Sums::is_busy)
    }
}
