//! Rebuilding: members that joined get their content, while clients go on.
//!
//! A member that joins is written by every write from then on. What it lacks is computed from the others in the order
//! of the parity stripes, a job for each, which takes the stripe's lock as every writer does and makes everything that
//! the stripe lacks at once: so each surviving unit is read once. In stripes before the *watermark* a rebuilding member
//! is as good as any; from there on it is written and not read.
//!
//! Only members that are being rebuilt are written here, where nothing on record relies on them. So what is written
//! needs neither log nor dirty mark nor write intent: after a crash it is written again, from the watermark on record.
//! That follows in steps, each after a flush of what it covers. At the end the members are recorded as active.
//!
//! Rebuilding yields: while clients want anything one stripe is under way, otherwise many. A stripe that can't be
//! computed, as the others can't be read there, stops it; it is tried again when that is written, and after a while.

use uraid_layout::plan::DiskIo;
use uraid_layout::{Bytes, Cell, DiskSector, Geometry, Lba, MemberSet, Sectors, StripeId};

use super::job::{Job, JobId, Stage, Work};
use super::rate::Rate;
use super::record::{Rebuilding, Record};
use super::run::Step;
use super::sweep::{Stuck, Sweep};
use super::{Engine, EngineError};
use crate::disk::Disk;
use crate::format::bitmap::Bitmap;
use crate::format::superblock::Superblock;

/// Parity stripes under way while nobody else wants anything.
const IDLE_MAX: usize = 16;

/// Ticks without a client's command after which nobody does.
const QUIET_TICKS: u32 = 2;

/// What is begun in one turn, of each member, while nobody else wants anything; otherwise that is one stripe, so that
/// nobody waits for more.
const QUANTUM: Bytes = Bytes(2 << 20);

/// Steps in which the watermark goes on record: so many in all, but none larger than this on a member.
const STEPS: u64 = 128;
const STEP_MAX: Bytes = Bytes(1 << 30);

/// How far rebuilding has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The members that are being rebuilt.
    pub members: MemberSet,
    /// What of the array they are as good for as any other.
    pub done: Sectors,
    /// The array's size.
    pub total: Sectors,
    /// A stripe can't be made: what the other members hold of it can't be read. It is tried again.
    pub stuck: Option<Stuck>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rebuild {
    is_on: bool,
    /// The array is being closed.
    is_closed: bool,
    /// Where members lack something that are not rebuilt whole.
    regions: Option<Bitmap>,
    sweep: Sweep,
    /// Stripes that are being computed, or copied.
    under_way: usize,
    /// Up to where the members durably have everything.
    saved: StripeId,
    /// The step under way.
    step: Option<StripeId>,
    /// What may be begun in this turn.
    quantum: u64,
    /// Of each member.
    rate: Rate,
    /// Ticks since a client's last command.
    quiet: u32,
}

impl Rebuild {
    /// Begins where the least of the members is. `set` are the regions of which members that are not rebuilt whole may
    /// lack something.
    pub(super) fn restart(&mut self, record: &Record, set: Option<&Bitmap>) {
        let mut start = record.progress().iter().map(|one| one.upto).min().unwrap_or_default();
        start.0 += u64::from(start.0 > 0 && planted!(ResumeLater));
        start = if planted!(WatermarkKept) { start.max(self.done()) } else { start };
        assert_eq!(self.under_way, 0, "a rebuild that begins again is not under way");
        self.sweep.restart(start);
        self.saved = start;
        self.regions = set.cloned();
        self.quiet = QUIET_TICKS;
    }

    /// The watermark.
    pub(super) fn done(&self) -> StripeId {
        self.sweep.done()
    }

    /// Whether a stripe is being computed, or the watermark being recorded.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way > 0 || self.step.is_some()
    }

    /// Ends it until somebody wants something again.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Notes that a client wants something.
    pub(super) fn note_activity(&mut self) {
        (self.is_closed, self.quiet) = (false, 0);
    }

    /// Begins a turn.
    pub(super) fn begin_turn(&mut self) {
        self.quantum = if self.is_disturbing() { 1 } else { QUANTUM.0 };
    }

    /// Whether a member lacks a stripe.
    pub(super) fn lacks(&self, one: &Rebuilding, stripe: StripeId) -> bool {
        lacks(self.regions.as_ref(), one, stripe)
    }

    /// How many stripes may be under way.
    fn most(&self) -> usize {
        if self.is_disturbing() { 1 } else { IDLE_MAX }
    }

    /// Whether clients want something, too.
    fn is_disturbing(&self) -> bool {
        self.quiet < QUIET_TICKS
    }
}

/// Whether a member lacks a stripe; `set` are the regions where one that is not rebuilt whole may.
fn lacks(set: Option<&Bitmap>, one: &Rebuilding, stripe: StripeId) -> bool {
    let is_set = |set: &Bitmap| set.contains(set.regions().of(stripe));
    one.upto <= stripe && (one.is_whole || set.is_none_or(is_set) && !planted!(RegionsIgnored))
}

/// The first stripe from `from` on that some member lacks; `end` when there is none.
fn first_lacking(set: Option<&Bitmap>, members: &[Rebuilding], mut from: StripeId, end: StripeId) -> StripeId {
    while from < end && !members.iter().any(|one| lacks(set, one, from)) {
        let later = members.iter().map(|one| one.upto).filter(|&upto| upto > from);
        let region = set.map(|set| set.regions().stripes(set.regions().of(from)).end);
        let next = later.chain(region).min().unwrap_or(end).min(end);
        assert!(next > from, "stripe {from} is before the end of its region, which is {next}");
        from = next;
    }
    from.min(end)
}

impl<D: Disk, T> Engine<D, T> {
    /// The engine, which rebuilds by itself what is to be rebuilt.
    #[must_use]
    pub fn with_rebuild(mut self) -> Self {
        self.rebuild.is_on = !self.is_read_only;
        self
    }

    /// What the members that are there have on record, as one of them says it.
    pub fn superblock(&self) -> &Superblock {
        self.record.any()
    }

    /// How far rebuilding has come, where something is to be rebuilt.
    pub fn rebuilding(&self) -> Option<Progress> {
        let members = self.record.rebuilding();
        (!members.is_empty()).then(|| self.progress(members, &self.rebuild.sweep))
    }

    /// How far a sweep for members has come.
    pub(super) fn progress(&self, members: MemberSet, sweep: &Sweep) -> Progress {
        let (stripes, total) = (self.geometry.stripes().0, self.geometry.capacity());
        let done = u128::from(total.0) * u128::from(sweep.done().0) / u128::from(stripes.max(1));
        let done = Sectors(u64::try_from(done).expect("a part of the array"));
        Progress { members, done, total, stuck: sweep.stuck() }
    }

    /// Limits how fast each member is rebuilt, in bytes a second; none: as fast as the members go, and clients leave
    /// room for.
    pub fn set_rebuild_limit(&mut self, limit: Option<Bytes>) {
        self.rebuild.rate.set(limit);
    }

    /// The members that can't be read in all parity stripes.
    pub(super) fn unready(&self) -> MemberSet {
        if self.rebuild.done() < self.last() { self.record.rebuilding() } else { MemberSet::EMPTY }
    }

    /// Whether rebuilding or copying goes on when time passes.
    pub(super) fn is_rebuild_waiting(&self) -> bool {
        let is_wanted = !self.record.rebuilding().is_empty() || self.replacing.is_some();
        self.rebuild.is_on && !self.rebuild.is_closed && !self.is_frozen && is_wanted
    }

    /// Whether the next turn begins more.
    pub(super) fn has_rebuild_left(&self) -> bool {
        self.rebuild.quantum == 0 && self.is_rebuild_waiting()
    }

    /// Notes that time has passed.
    pub(super) fn tick_rebuild(&mut self) {
        let Rebuild { quiet, sweep, rate, .. } = &mut self.rebuild;
        *quiet = quiet.saturating_add(1);
        sweep.tick();
        rate.tick();
        self.replacing.iter_mut().for_each(|replacing| replacing.sweep.tick());
    }

    /// Begins what there is room for.
    pub(super) fn rebuild(&mut self) {
        if !self.is_rebuild_waiting() || self.barrier.is_some() {
            return;
        }
        let cost = self.geometry.chunk().bytes().0 * self.geometry.rows() as u64;
        while self.rebuild.under_way < self.rebuild.most() && self.rebuild.quantum > 0 {
            let Some(work) = (if self.rebuild.rate.allows() { self.next_to_make() } else { None }) else { break };
            self.rebuild.quantum = self.rebuild.quantum.saturating_sub(cost);
            self.rebuild.rate.take(Bytes(cost));
            self.rebuild.under_way += 1;
            let columns = Lba(0)..Lba(self.geometry.chunk().0);
            self.start(Job::new(None, work, columns));
        }
        if self.record.rebuilding().is_empty() { self.end_copying() } else { self.save_progress() }
    }

    /// What is beyond the last parity stripe.
    pub(super) fn last(&self) -> StripeId {
        StripeId(self.geometry.stripes().0)
    }

    /// What is next: members that lack something come before one that is only copied.
    fn next_to_make(&mut self) -> Option<Work> {
        let end = self.last();
        if self.record.rebuilding().is_empty() {
            return self.next_to_copy(end);
        }
        let Self { rebuild: Rebuild { sweep, regions, .. }, record, .. } = self;
        let wanted = |from| first_lacking(regions.as_ref(), record.progress(), from, end);
        sweep.begin(end, wanted).map(|stripe| Work::Rebuild { stripe })
    }

    /// The cells of a stripe that are to be computed.
    pub(super) fn lacking_cells<'a>(
        rebuild: &'a Rebuild,
        record: &'a Record,
        geometry: &'a Geometry,
        stripe: StripeId,
    ) -> impl Iterator<Item = Cell> + 'a {
        let cells = (0_u16..).map(Cell).take(geometry.map(stripe).cells());
        let members = record.progress();
        cells.filter(move |&cell| {
            let member = geometry.member(cell);
            members.iter().any(|one| one.member == member && rebuild.lacks(one, stripe))
        })
    }

    /// Has what could not be read for a rebuild or a copy tried again at once, when a job is about to write it. The job
    /// holds the stripe's lock, so what is tried again comes after it.
    pub(super) fn note_mended(&mut self, id: JobId) {
        let Self { jobs, geometry, rebuild, replacing, .. } = self;
        let sweeps =
            std::iter::once(&mut rebuild.sweep).chain(replacing.iter_mut().map(|replacing| &mut replacing.sweep));
        let writes = jobs.slot(id).plan.writes();
        for sweep in sweeps.filter(|sweep| sweep.stuck().is_some()) {
            sweep.mend(|stuck| {
                let sectors = |io: &DiskIo| io.sector..DiskSector(io.sector.0 + io.len.0);
                writes.iter().any(|io| stuck.is_in(geometry, io.member, &sectors(io)))
            });
        }
    }

    /// Takes in the end of a stripe.
    pub(super) fn rebuilt(&mut self, id: JobId, error: Option<&EngineError>) {
        let job = self.jobs.remove(id);
        let Work::Rebuild { stripe } = job.work else { unreachable!("only a job that rebuilds ends here") };
        let end = self.last();
        self.rebuild.under_way -= 1;
        let Self { rebuild: Rebuild { sweep, regions, .. }, record, .. } = self;
        match error {
            None => {
                self.counters.rebuilt(self.geometry.stripe_sectors());
                sweep.finish(stripe, |from| first_lacking(regions.as_ref(), record.progress(), from, end));
            }
            Some(error) => {
                if sweep.fail(job.stuck(stripe)) {
                    tracing::error!(%stripe, %error, "a parity stripe can't be rebuilt: the other members' parts of it \
                        can't be read");
                }
            }
        }
        if record.rebuilding().is_empty() {
            // All of them have failed.
            sweep.forget_stuck();
        }
        self.wake_closers();
    }

    /// Takes note of the end of a stripe that was copied.
    pub(super) fn copied(&mut self, id: JobId, error: Option<&EngineError>) {
        let job = self.jobs.remove(id);
        let Work::Copy { stripe, .. } = job.work else { unreachable!("only a job that copies ends here") };
        self.rebuild.under_way -= 1;
        self.note_copied(job.stuck(stripe), error);
        self.wake_closers();
    }

    /// Begins to put the watermark on record, when it has come far enough since the last time.
    fn save_progress(&mut self) {
        let (end, done) = (self.last(), self.rebuild.done());
        let on_member = self.geometry.chunk().bytes().0 * self.geometry.rows() as u64;
        let step = (end.0 / STEPS).min(STEP_MAX.0 / on_member).max(1);
        let is_due = done == end || done.0 - self.rebuild.saved.0 >= step;
        if self.rebuild.step.is_none() && is_due {
            self.rebuild.step = Some(done);
            self.start(Job::new(None, Work::SaveRebuild, Lba(0)..Lba(0)));
        }
    }

    /// What the members have is durable: has it recorded.
    pub(super) fn progress_durable(&mut self) {
        let upto = self.rebuild.step.expect("a step is under way");
        if upto == self.last() {
            tracing::info!(members = %self.record.rebuilding(), "members are rebuilt");
            self.record.complete();
            self.troubled.absolve();
        } else {
            self.record.advance(upto);
        }
    }

    /// Ends a step.
    pub(super) fn progress_saved(&mut self, id: JobId, error: Option<&EngineError>) {
        self.jobs.remove(id);
        let upto = self.rebuild.step.take().expect("a step is under way");
        if error.is_none() {
            self.rebuild.saved = upto;
        }
        if self.record.rebuilding().is_empty() {
            self.repair_lost = None;
        }
        self.wake_closers();
    }

    /// Has recorded at the end how far it has come; everything is flushed.
    pub(super) fn close_rebuild(&mut self) {
        self.record.advance(self.rebuild.done());
        self.rebuild.saved = self.rebuild.done();
    }

    /// Waits until the record is as it is wanted.
    pub(super) fn settled(&mut self, id: JobId) -> Step {
        if self.is_frozen {
            return Step::Fail(EngineError::Frozen);
        }
        let work = self.jobs.job(id).work;
        let is_early = match work {
            Work::Join { .. } => planted!(JoinUnrecorded),
            Work::Fail { .. } => planted!(FailUnrecorded),
            _ => false,
        };
        if !is_early && !self.record.demand_settled(id) {
            self.run_record();
            return Step::Wait(Stage::Settle);
        }
        match work {
            Work::Join { member } if self.record.missing().contains(member) => {
                Step::Fail(EngineError::JoinFailed { member })
            }
            _ => Step::To(Stage::Done),
        }
    }
}
