//! How a command goes through its stages.
//!
//! [`Engine::advance`] runs a job until it has to wait; what it waits for puts it back into the ready queue. Stages
//! decide; [`super::transfer`] turns the plan into disk operations.

use uraid_layout::plan::{Buffer, Extent, PlanError, View};
use uraid_layout::repair::Repair;
use uraid_layout::{Bytes, Lba, MemberIndex, MemberSet, Sectors, StripeId};

use super::job::{Job, JobId, Slot, Stage, Work};
use super::locks::Span;
use super::replace::cells_of;
use super::{Engine, EngineError, PART, Reply, scrub};
use crate::bounds::COLUMNS;
use crate::buf::{Buf, Pool};
use crate::disk::{Completion, Disk, DiskError, DiskOp, OpKind, Segments};
use crate::format::sums::PageNumber;

/// The stretch of zeros that zeros are written from.
pub(super) const ZEROES_BYTES: Bytes = Bytes(1 << 20);

/// Whose a disk operation is: what its tag says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    Job(JobId),
    Flusher,
    Record,
    Intent,
    Log,
    Seal,
    Sums(PageNumber),
}

/// Whether a job goes on.
pub(super) enum Step {
    To(Stage),
    Wait(Stage),
    Fail(EngineError),
}

impl Caller {
    pub(super) fn tag(self) -> u64 {
        match self {
            Self::Job(id) => u64::from(id.0),
            Self::Flusher => 1 << 32,
            Self::Record => 2 << 32,
            Self::Intent => 3 << 32,
            Self::Log => 4 << 32,
            Self::Seal => 5 << 32,
            Self::Sums(page) => 6 << 32 | u64::from(page.0),
        }
    }

    pub(super) fn of(tag: u64) -> Self {
        let low = u32::try_from(tag & u64::from(u32::MAX)).expect("the lower half");
        match tag >> 32 {
            0 => Self::Job(JobId(low)),
            1 => Self::Flusher,
            2 => Self::Record,
            3 => Self::Intent,
            4 => Self::Log,
            5 => Self::Seal,
            _ => Self::Sums(PageNumber(low)),
        }
    }
}

impl<D: Disk, T> Engine<D, T> {
    /// Starts a job.
    pub(super) fn start(&mut self, job: Job<T>) {
        let id = self.jobs.insert(job);
        let stage = match self.jobs.job(id).work {
            Work::Flush | Work::Close => Stage::Drain,
            Work::Sync | Work::SaveRebuild => Stage::Flush,
            Work::Fail { .. } => Stage::GiveUp,
            _ => self.first_stage(id),
        };
        self.jobs.job(id).stage = stage;
        self.advance(id);
    }

    /// Takes the next part of the command and says where its work begins.
    fn first_stage(&mut self, id: JobId) -> Stage {
        let geometry = &self.geometry;
        let job = self.jobs.job(id);
        if let Work::Heal { stripe, .. } | Work::Scrub { stripe, .. } = job.work {
            job.len = Sectors(job.end.0 - job.at.0);
            return Stage::Lock(Span::new(stripe, stripe));
        }
        if let Work::Rebuild { stripe } | Work::Copy { stripe, .. } = job.work {
            job.len = Sectors(COLUMNS.0.min(job.end.0 - job.at.0));
            job.unreadable = MemberSet::EMPTY;
            if planted!(RebuildUnlocked) {
                return Stage::Plan;
            }
            return Stage::Lock(Span::new(stripe, stripe));
        }
        if job.work == Work::Destage {
            job.len = Sectors(job.end.0 - job.at.0);
            return Stage::Lock(self.span(id));
        }
        if job.work == Work::Ahead {
            job.len = Sectors(job.end.0 - job.at.0);
            return Stage::PlanRead;
        }
        let mut end = job.end.0.min(job.at.0 + PART.0);
        let stripe = geometry.stripe_sectors().0;
        if let Some(log) = &self.log {
            end = end.min((job.at.0 / stripe).saturating_add(log.stripes_max()).saturating_mul(stripe));
        }
        if end < job.end.0 && end / stripe * stripe > job.at.0 {
            end = end / stripe * stripe;
        }
        job.len = Sectors(end - job.at.0);
        job.unreadable = MemberSet::EMPTY;
        if job.work == Work::Read { Stage::Await } else { Stage::Lock(self.span(id)) }
    }

    /// The parity stripes of the job's present part.
    fn span(&mut self, id: JobId) -> Span {
        let job = self.jobs.job(id);
        let stripe_of = |lba| self.geometry.split(Lba(lba)).0;
        Span::new(stripe_of(job.at.0), stripe_of(job.at.0 + job.len.0 - 1))
    }

    /// The last of them.
    fn last_stripe(&mut self, id: JobId) -> StripeId {
        let job = self.jobs.job(id);
        match job.work {
            Work::Heal { stripe, .. }
            | Work::Scrub { stripe, .. }
            | Work::Rebuild { stripe }
            | Work::Copy { stripe, .. } => stripe,
            _ => self.geometry.split(Lba(job.at.0 + job.len.0 - 1)).0,
        }
    }

    /// The members that can't be read in the job's present part.
    pub(super) fn lost(&mut self, id: JobId) -> MemberSet {
        if self.repair_lost.is_none() {
            return self.record.missing();
        }
        let last = self.last_stripe(id);
        if self.is_ready(last) || planted!(RebuildingRead) { self.record.missing() } else { self.record.lost() }
    }

    /// Goes on with every job that can.
    pub(super) fn run_ready(&mut self) {
        while let Some(id) = self.ready.pop_front() {
            self.advance(id);
        }
    }

    /// Runs a job until it waits or ends.
    fn advance(&mut self, id: JobId) {
        loop {
            let stage = std::mem::replace(&mut self.jobs.job(id).stage, Stage::Done);
            let step = match stage {
                Stage::Await => self.await_ahead(id),
                Stage::PlanRead => self.plan_read(id),
                Stage::Lock(span) => self.lock(id, span),
                Stage::Mark => self.mark(id),
                Stage::Intent => self.intend(id),
                Stage::Plan => self.plan_locked(id),
                Stage::Memory => self.take_memory(id),
                Stage::StartReads => self.start_reads(id),
                Stage::Reads => self.reads_done(id),
                Stage::Asked => self.asked(id),
                Stage::Log => self.log(id),
                Stage::Committed => self.committed(id),
                Stage::StartWrites => self.start_writes(id),
                Stage::Writes => self.writes_done(id),
                Stage::SumsWritten => self.sums_written(id),
                Stage::StartCheck => self.start_check(id),
                Stage::Checked => self.checked(id),
                Stage::Record => self.recorded(id),
                Stage::PartDone => self.part_done(id),
                Stage::Drain => self.drain(id),
                Stage::Draining(mark) => self.drained(id, mark),
                Stage::Flush => self.flush(id),
                Stage::Flushing => self.flushed(id),
                Stage::Clean => self.cleaned(id),
                Stage::GiveUp => match self.jobs.job(id).work {
                    Work::Fail { member } => self.give_up(member),
                    work => unreachable!("{work:?} gives no member up"),
                },
                Stage::Quiesce => self.quiesce(id),
                Stage::Join => self.join(id),
                Stage::Settle => self.settled(id),
                Stage::Done => return self.finish(id, None),
            };
            match step {
                Step::To(stage) => self.jobs.job(id).stage = stage,
                Step::Wait(stage) => {
                    self.jobs.job(id).stage = stage;
                    return;
                }
                Step::Fail(error) => return self.finish(id, Some(error)),
            }
        }
    }

    /// Plans a read. What comes straight from members needs no lock: a concurrent write replaces a sector in one piece.
    /// What is computed from several units does, and so does what may have been replied to and is not in place yet.
    fn plan_read(&mut self, id: JobId) -> Step {
        if let Err(error) = self.plan(id) {
            return Step::Fail(error);
        }
        let Slot { job, plan, contents } = self.jobs.slot(id);
        let has_guard = job.as_ref().is_some_and(|job| job.guard.is_some());
        if !plan.xors().is_empty() && job.as_ref().is_some_and(|job| job.work == Work::Ahead) {
            contents.missing().clear();
            return Step::To(Stage::Done);
        }
        let (reads, computes) = (!plan.reads().is_empty(), !plan.xors().is_empty() && !planted!(DegradedReadUnlocked));
        let span = self.span(id);
        let is_behind = reads && self.placing.0 > 0 && self.locks.is_held(&span) && !planted!(UnplacedRead);
        Step::To(if (computes || is_behind) && !has_guard { Stage::Lock(span) } else { Stage::Memory })
    }

    fn lock(&mut self, id: JobId, mut span: Span) -> Step {
        match self.locks.acquire(&mut span, id) {
            Some(guard) => {
                let job = self.jobs.job(id);
                job.guard = Some(guard);
                Step::To(match job.work {
                    Work::Rebuild { .. } | Work::Copy { .. } => Stage::Plan,
                    work if work.is_write() => Stage::Mark,
                    _ => Stage::PlanRead,
                })
            }
            None => Step::Wait(Stage::Lock(span)),
        }
    }

    fn mark(&mut self, id: JobId) -> Step {
        if self.is_frozen {
            return Step::Fail(EngineError::Frozen);
        }
        if !std::mem::replace(&mut self.jobs.job(id).is_writer, true) {
            self.record.writer_begun();
        }
        if self.record.demand_dirty(id) || planted!(DirtyMarkSkipped) {
            return Step::To(Stage::Intent);
        }
        self.run_record();
        Step::Wait(Stage::Mark)
    }

    fn plan_locked(&mut self, id: JobId) -> Step {
        match self.plan(id) {
            Ok(()) => Step::To(Stage::Memory),
            Err(error) => Step::Fail(error),
        }
    }

    fn plan(&mut self, id: JobId) -> Result<(), EngineError> {
        if self.is_frozen {
            // A write may have changed parity and not data, or the other way round.
            return Err(EngineError::Frozen);
        }
        self.consult_cache(id);
        let (lost, slow) = (self.lost(id), self.slow());
        let Self { geometry, planner, repair, repair_lost, record, jobs, queues, rebuild, detour, .. } = self;
        let repair = repair_lost.as_ref().filter(|_| lost != record.missing()).unwrap_or(repair);
        let Slot { job, plan, contents } = jobs.slot(id);
        let job = job.as_mut().expect("the slot has a job");
        job.find_detour(geometry, repair, lost, slow, detour)?;
        let repair = job.detour.as_deref().unwrap_or(repair);
        let view = View { geometry, repair, missing: record.missing(), cached: contents.cached(), queues };
        let planned = match job.work {
            Work::Read | Work::Ahead | Work::Destage if contents.extents().is_empty() => {
                plan.clear();
                Ok(())
            }
            Work::Read | Work::Ahead => planner.read(plan, &view, contents.extents()),
            Work::Destage => planner.write(plan, &view, contents.extents()).map(drop),
            Work::Write { .. } => planner.write(plan, &view, &[Extent::request(job.at, job.len)]).map(drop),
            Work::Zero { .. } => planner.write(plan, &view, &[Extent::zeroes(job.at, job.len)]).map(drop),
            Work::Heal { stripe, cell, start, .. } => {
                if record.missing().contains(geometry.member(cell)) {
                    return Err(job.unreadable_error());
                }
                planner.rebuild(plan, &view, stripe, [cell], (start, job.len))
            }
            Work::Scrub { .. } => {
                let (stripe, start) = scrub::columns(job);
                planner.scrub(plan, &view, stripe, (start, job.len))
            }
            Work::Rebuild { stripe } => {
                let cells = Self::lacking_cells(rebuild, record, geometry, stripe);
                planner.rebuild(plan, &view, stripe, cells, (Sectors(job.at.0), job.len))
            }
            Work::Copy { stripe, member } => {
                if record.missing().contains(member) {
                    return Err(job.unreadable_error());
                }
                let cells = cells_of(geometry, stripe, member);
                planner.copy(plan, &view, stripe, cells, (Sectors(job.at.0), job.len))
            }
            Work::Sync | Work::Flush | Work::Close => unreachable!("it has no plan"),
            Work::SaveRebuild | Work::Fail { .. } | Work::Join { .. } => unreachable!("it has no plan"),
        };
        planned.map_err(|error| match error {
            PlanError::Unreadable { .. } => job.unreadable_error(),
            error => EngineError::Plan(error),
        })?;
        self.counters.planned(plan.methods());
        Ok(())
    }

    /// Takes from the cache what the job's plan is made of: what a read still misses, what a destage writes, what the
    /// members are known to hold.
    fn consult_cache(&mut self, id: JobId) {
        let Self { geometry, cache, jobs, counters, .. } = self;
        let Slot { job, contents, .. } = jobs.slot(id);
        let job = job.as_mut().expect("the slot has a job");
        let is_cached = cache.is_some();
        match (job.work, cache) {
            (Work::Read, Some(cache)) if !cache.is_empty() => {
                let at = job.base(Buffer::Request).bytes();
                let buf = job.buf.as_mut().expect("a read has a buffer");
                cache.read(job.at, job.len, buf, at, contents.missing());
            }
            (Work::Ahead, Some(cache)) => cache.absent(job.at, job.len, contents.missing()),
            (Work::Read, _) => contents.missing().push(Extent::request(job.at, job.len)),
            (Work::Destage, Some(cache)) if !contents.flies() => {
                let stripe = geometry.stripe_sectors().0;
                cache.take(geometry, job.at.0 / stripe..job.end.0.div_ceil(stripe), contents);
            }
            (Work::Write { .. } | Work::Zero { .. }, Some(cache)) if !contents.flies() => {
                cache.look(geometry, job.at, job.len, contents);
            }
            _ => {}
        }
        if job.work == Work::Read && is_cached {
            let missed = contents.extents().iter().map(|extent| extent.content.len.0).sum();
            counters.looked_up(job.len, Sectors(missed));
        }
    }

    /// Takes the plan's working memory, or waits for it in line.
    fn take_memory(&mut self, id: JobId) -> Step {
        let Slot { job, plan, .. } = self.jobs.slot(id);
        let job = job.as_mut().expect("the slot has a job");
        let need = plan.scratch().bytes();
        if need.0 > 0 && job.scratch.is_none() {
            job.scratch = if self.starved.is_empty() { allocate(&self.pool, need) } else { None };
            if job.scratch.is_none() {
                self.starved.push_back(id);
                return Step::Wait(Stage::Memory);
            }
        }
        Step::To(Stage::StartReads)
    }

    /// Gives working memory that came back to the jobs that wait for it.
    fn feed_starved(&mut self) {
        while let Some(&id) = self.starved.front() {
            let Slot { job, plan, .. } = self.jobs.slot(id);
            let Some(scratch) = allocate(&self.pool, plan.scratch().bytes()) else { return };
            job.as_mut().expect("a starved job is there").scratch = Some(scratch);
            self.starved.pop_front();
            self.ready.push_back(id);
        }
    }

    /// Enters the job into its class's share of the members, for operations that move `cost`; false: it waits.
    fn enter(&mut self, id: JobId, cost: Sectors) -> bool {
        let job = self.jobs.job(id);
        if job.share.is_none() && cost.0 > 0 && self.shares.enter(job.work.class(), id, cost.bytes()) {
            job.share = Some(cost.bytes());
        }
        job.share.is_some() || cost.0 == 0
    }

    /// Gives the job's share back to those who wait for one.
    fn leave(&mut self, id: JobId) {
        let Self { jobs, shares, ready, .. } = self;
        let job = jobs.job(id);
        let (class, share) = (job.work.class(), job.share.take());
        if let Some(share) = share {
            shares.leave(class, share, |id, cost| {
                jobs.job(id).share = Some(cost);
                ready.push_back(id);
            });
        }
    }

    fn start_reads(&mut self, id: JobId) -> Step {
        let cost = self.jobs.slot(id).plan.reads().iter().map(|io| io.len.0).sum();
        if !self.enter(id, Sectors(cost)) {
            return Step::Wait(Stage::StartReads);
        }
        if !self.take_pages(id) {
            return Step::Wait(Stage::StartReads);
        }
        let (missing, slow) = (self.record.missing(), self.slow());
        let Slot { job, plan, .. } = self.jobs.slot(id);
        let job = job.as_mut().expect("the slot has a job");
        // Who has failed or become slow since the plan was made is gone around.
        let gone = missing.union(slow.minus(job.slow));
        let is_gone = !gone.is_empty() && plan.reads().iter().any(|io| gone.contains(io.member));
        if std::mem::take(&mut job.is_replanned) || is_gone {
            return self.plan_again(id);
        }
        (job.failed, job.overdue) = (MemberSet::EMPTY, MemberSet::EMPTY);
        self.issue_reads(id);
        if self.jobs.job(id).pending == 0 { Step::To(Stage::Reads) } else { Step::Wait(Stage::Reads) }
    }

    /// All reads are back. Where a member failed one, or gave something else than was written, the rest of the array
    /// takes its place.
    fn reads_done(&mut self, id: JobId) -> Step {
        self.leave(id);
        let job = self.jobs.job(id);
        let overdue = std::mem::take(&mut job.overdue);
        if !overdue.is_empty() {
            return self.go_around(id, overdue);
        }
        if matches!(job.work, Work::Scrub { .. }) {
            return self.compared(id);
        }
        if !job.failed.is_empty() && !planted!(ReadErrorAsData) {
            job.unreadable = job.unreadable.union(job.failed);
            return self.do_without(id);
        }
        if !self.verify_reads(id) {
            return self.doubt(id);
        }
        self.cover(id);
        self.compute(id);
        let unproven = self.unproven(id);
        if unproven.is_empty() {
            self.proven(id)
        } else if self.ask_members(id, unproven) {
            Step::Wait(Stage::Asked)
        } else {
            self.disprove(id)
        }
    }

    /// Some of what was computed is not what its member should hold: it may be had in smaller pieces.
    pub(super) fn disprove(&mut self, id: JobId) -> Step {
        if self.narrow(id) { self.plan_again(id) } else { Step::Fail(self.jobs.job(id).unreadable_error()) }
    }

    /// Everything that was read and computed is what was written there.
    pub(super) fn proven(&mut self, id: JobId) -> Step {
        self.heal_later(id);
        let work = self.jobs.job(id).work;
        if work.is_write() && !matches!(work, Work::Rebuild { .. } | Work::Copy { .. }) {
            self.note_mended(id);
        }
        Step::To(match work {
            Work::Rebuild { .. } | Work::Copy { .. } => Stage::StartWrites,
            work if !work.is_write() => Stage::PartDone,
            _ if self.log.is_some() => Stage::Log,
            _ => Stage::StartWrites,
        })
    }

    /// Something was read that was not written there: by a write that is under way, which the stripe's lock keeps away,
    /// or for good.
    fn doubt(&mut self, id: JobId) -> Step {
        let job = self.jobs.job(id);
        if job.guard.is_some() {
            return self.do_without(id);
        }
        if job.work == Work::Ahead {
            return Step::Fail(job.unreadable_error());
        }
        self.drop_scratch(id);
        self.leave_pages(id);
        Step::To(Stage::Lock(self.span(id)))
    }

    /// Some of the job's reads took too long: begins the part again, in other memory, without the members that failed
    /// others. Those that are overdue are slow now, and read again should nobody else have what they hold by then.
    fn go_around(&mut self, id: JobId, overdue: MemberSet) -> Step {
        self.renew_memory(id);
        let job = self.jobs.job(id);
        job.unreadable = job.unreadable.union(job.failed.minus(overdue));
        if let Work::Scrub { .. } = job.work {
            // What else it found it finds again.
            job.damage.clear();
        }
        self.do_without(id)
    }

    /// Begins the part again without the members that failed to give what they hold.
    fn do_without(&mut self, id: JobId) -> Step {
        let lost = self.lost(id);
        let job = self.jobs.job(id);
        if job.work == Work::Ahead {
            job.damage.clear();
            // Nothing is recovered that nobody asked for.
            return Step::Fail(job.unreadable_error());
        }
        let without = job.unreadable.union(lost);
        if Repair::new(&self.geometry, without).is_err() {
            self.narrow(id);
        }
        self.plan_again(id)
    }

    pub(super) fn plan_again(&mut self, id: JobId) -> Step {
        // Who has a share of the members has its working memory: nobody waits for memory with a share.
        self.leave(id);
        self.drop_scratch(id);
        self.leave_pages(id);
        Step::To(if self.jobs.job(id).work.is_write() { Stage::Plan } else { Stage::PlanRead })
    }

    /// Makes a part that spans parity stripes end with its first, one that spans units with its first, and at last one
    /// within a unit with its first block; false: it is none of them. So: what failed together need not fail there.
    pub(super) fn narrow(&mut self, id: JobId) -> bool {
        let Self { geometry, jobs, .. } = self;
        let job = jobs.job(id);
        if let Work::Destage | Work::Heal { .. } = job.work {
            // It fails, and is tried again in smaller pieces.
            return false;
        }
        let shorter = job.shorter(geometry);
        if let Some(len) = shorter {
            job.len = len;
            job.unreadable = MemberSet::EMPTY;
            job.damage.clear();
        }
        shorter.is_some()
    }

    fn start_writes(&mut self, id: JobId) -> Step {
        if planted!(UnlockAtCommit)
            && let Some(guard) = self.jobs.job(id).guard.take()
        {
            self.locks.release(guard, &mut self.ready);
        }
        if self.is_frozen {
            return Step::Fail(EngineError::Frozen);
        }
        let cost = self.jobs.slot(id).plan.writes().iter().map(|io| io.len.0).sum();
        if !self.enter(id, Sectors(cost)) {
            return Step::Wait(Stage::StartWrites);
        }
        self.jobs.job(id).failed = MemberSet::EMPTY;
        if self.log.is_none() {
            self.take_over(id);
        }
        if planted!(BitEndsBeforeWrites) {
            self.end_intent(id);
        }
        self.issue_writes(id);
        if self.jobs.job(id).pending == 0 { Step::To(Stage::Writes) } else { Step::Wait(Stage::Writes) }
    }

    fn writes_done(&mut self, id: JobId) -> Step {
        self.leave(id);
        if std::mem::take(&mut self.jobs.job(id).again) {
            return Step::To(Stage::StartWrites);
        }
        let failed = self.jobs.job(id).failed;
        if let Err(error) = self.fail_members(failed)
            && self.is_frozen
        {
            self.note_sums(id);
            return Step::Fail(error);
        }
        // Without redundancy it fails when what members hold now has its checksums.
        self.write_sums(id)
    }

    /// A write is done when every member that missed it is on record.
    fn recorded(&mut self, id: JobId) -> Step {
        if self.is_frozen {
            return Step::Fail(EngineError::Frozen);
        }
        if self.record.demand_failures(id) {
            return Step::To(Stage::PartDone);
        }
        self.run_record();
        Step::Wait(Stage::Record)
    }

    fn part_done(&mut self, id: JobId) -> Step {
        self.leave_log(id);
        self.settle(id, None);
        self.drop_scratch(id);
        self.leave_pages(id);
        self.unlock(id);
        if self.jobs.job(id).work == Work::Read {
            self.consume_ahead(id);
        }
        let job = self.jobs.job(id);
        let is_part = job.at.0 + job.len.0 < job.end.0;
        job.at.0 += job.len.0;
        if is_part {
            return Step::To(self.first_stage(id));
        }
        Step::To(if job.work.flushes() && !job.is_answered { Stage::Flush } else { Stage::Done })
    }

    /// Ends a job, and lets go on who waits for that.
    fn finish(&mut self, id: JobId, error: Option<EngineError>) {
        self.end(id, error);
        self.note_quiet();
    }

    /// Ends a job with its reply.
    fn end(&mut self, id: JobId, error: Option<EngineError>) {
        self.leave_log(id);
        let mut has_flown = false;
        if error.is_some() {
            has_flown = self.settle(id, error.as_ref());
            self.give_up_on(id);
        }
        self.leave(id);
        self.drop_scratch(id);
        self.leave_pages(id);
        self.unlock(id);
        match self.jobs.job(id).work {
            Work::Destage => {
                self.destaged(id, has_flown, error);
                self.jobs.remove(id);
                return;
            }
            Work::Ahead => return self.ahead_done(id, error),
            Work::Heal { .. } => return self.healed(id, error.as_ref()),
            Work::Scrub { .. } => return self.scrubbed(id, error.as_ref()),
            Work::Rebuild { .. } => return self.rebuilt(id, error.as_ref()),
            Work::Copy { .. } => return self.copied(id, error.as_ref()),
            Work::SaveRebuild => return self.progress_saved(id, error.as_ref()),
            _ => self.placed(id, error.as_ref()),
        }
        let Job { token, work, buf, .. } = self.jobs.remove(id);
        let result = error.map_or_else(|| Ok(buf.filter(|_| work == Work::Read)), Err);
        self.replies.extend(token.map(|token| Reply { token, result }));
        if matches!(work, Work::Join { .. }) {
            self.end_join();
        }
    }

    pub(super) fn drop_scratch(&mut self, id: JobId) {
        if let Some(scratch) = self.jobs.job(id).scratch.take() {
            if scratch.is_lent() {
                // An operation that was given up keeps it, and nobody else is to wait for that.
                scratch.disown();
            } else {
                drop(scratch);
            }
            self.feed_starved();
        }
    }

    fn unlock(&mut self, id: JobId) {
        self.end_intent(id);
        let job = self.jobs.job(id);
        if let Some(guard) = job.guard.take() {
            self.locks.release(guard, &mut self.ready);
        }
        if std::mem::take(&mut job.is_writer) {
            self.record.writer_done();
        }
    }

    /// Sends the superblock writes or flushes that the record wants next, and wakes those who waited for it.
    pub(super) fn run_record(&mut self) {
        self.record.run(|op| self.disk.submit(op));
        self.ready.extend(self.record.settled());
        if self.record.is_idle() {
            self.reseal_intent();
        }
    }

    pub(super) fn submit_op(
        &mut self,
        owner: Caller,
        member: MemberIndex,
        kind: OpKind,
        offset: Bytes,
        segments: Segments,
    ) {
        self.disk.submit(DiskOp { tag: owner.tag(), member, kind, offset, segments });
    }

    /// Takes note of members that missed a write or a flush.
    pub(super) fn fail_members(&mut self, failed: MemberSet) -> Result<(), EngineError> {
        let failed = failed.minus(self.record.missing());
        if failed.is_empty() {
            return Ok(());
        }
        if self.geometry.tolerance() == 0 {
            // Nothing is gained by giving a member up: what it has is nowhere else.
            self.troubled.note_lost(failed);
            return Err(EngineError::WriteFailed { members: failed });
        }
        let missing = self.record.missing().union(failed);
        match self.repairs(missing) {
            Ok((repair, lost)) => {
                tracing::error!(members = %failed, "members failed; the array continues without them");
                (self.repair, self.repair_lost) = (repair, lost);
                self.record.fail(failed);
                Ok(())
            }
            Err(_) if planted!(FreezeIgnored) => Ok(()),
            Err(_) => {
                let before = self.record.lost();
                tracing::error!(members = %failed, %before, "more members failed than the level survives: the array is \
                    frozen");
                self.troubled.note_frozen(failed);
                self.is_frozen = true;
                Err(EngineError::Frozen)
            }
        }
    }

    /// Takes in the end of a disk operation.
    pub(super) fn completed(&mut self, completion: Completion) {
        let Completion { tag, member, result, spare } = completion;
        if spare.capacity() > 0 {
            self.spare.push(spare);
        }
        match &result {
            Ok(()) => {}
            Err(error @ DiskError::Unsupported { .. }) => tracing::debug!(%member, %error, "zeros are written"),
            Err(error) if self.is_seat(member) => self.give_up_replacing(error),
            Err(error @ DiskError::TimedOut { .. }) => tracing::debug!(%member, %error, "the others go on"),
            Err(error) => {
                self.counters.error(member);
                tracing::warn!(%member, %error, "disk operation failed");
                if matches!(error, DiskError::ShortIo { .. } | DiskError::BeyondEnd { .. })
                    && self.fail_members(MemberSet::EMPTY.with(member)).is_err()
                {
                    tracing::error!(%member, "the member was truncated while in use");
                }
            }
        }
        match Caller::of(tag) {
            Caller::Job(id) => self.job_completed(id, member, &result),
            Caller::Flusher => self.flush_completed(member, result.is_err()),
            Caller::Sums(page) => self.page_completed(member, page, result.is_err()),
            Caller::Log => self.log_written(member, result.is_err()),
            Caller::Seal => self.seal_completed(),
            Caller::Intent => self.intent_completed(member, result.is_err()),
            Caller::Record => {
                if self.record.completed(member, result.is_err()) {
                    let failed = self.record.take_failed();
                    if self.fail_members(failed).is_err() {
                        self.is_frozen = true;
                        self.record.give_up();
                    }
                    self.run_record();
                }
            }
        }
    }
}

/// Working memory for a plan. One that needs more than there ever is, or than the system has for a pool, gets it when
/// it has no company.
fn allocate(pool: &Pool, need: Bytes) -> Option<Buf> {
    let is_alone = || pool.in_use() == Bytes(0);
    pool.try_alloc(need).or_else(|| is_alone().then(|| Buf::zeroed(need)))
}
