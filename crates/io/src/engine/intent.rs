//! Write intent: no region is written before its bit is durably set on all present members.
//!
//! A job holds its regions from before its writes until their end. Bits that are missing are set in rounds: a write of
//! the blocks that changed, then a flush, for everybody who waits; whoever comes meanwhile is in the next. A job whose
//! bits are set costs nothing. A bit is cleared when nobody has held its region for a while, and a flush has covered
//! what was written there; that is written when time passes, and nobody waits for it.
//!
//! While members are missing or being rebuilt no bit is cleared: the bits say where what they hold is out of date. An
//! array with a log has a bitmap for that alone. As long as every member has everything, its bits are kept in memory
//! only, and nobody waits for them. What is on the members then is of another [`Seal`], and stands for bits that are
//! all set. When it is on record that a member lacks something, the bits are written under the new seal; from then on a
//! bit that is set later is waited for.

use smallvec::smallvec;
use uraid_layout::{Bytes, Geometry, Lba, MemberIndex, MemberSet};

use super::job::{Job, JobId, Stage, Work};
use super::run::{Caller, Step};
use super::{Engine, EngineError, Record};
use crate::disk::{Disk, DiskOp, OpKind, Segments};
use crate::format::BLOCK;
use crate::format::bitmap::{Bitmap, RegionId, Regions, Seal};
use crate::format::superblock::Consistency;

/// How long nobody holds a region before its bit is cleared, in ticks: setting it again costs a flush.
const QUIET_TICKS: u32 = 50;

/// How often such regions are looked for, in ticks.
const SWEEP_TICKS: u32 = 10;

/// What is under way on the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Writing,
    Flushing,
}

/// What keeps a region's bit set.
#[derive(Clone, Copy, Debug, Default)]
struct Hold {
    /// Jobs that write the region, or are about to.
    holders: u32,
    /// When the last of them ended.
    tick: u32,
    /// The flush that covers what they wrote.
    flush: u64,
}

/// The bits, and who waits for them.
#[derive(Debug)]
pub(super) struct Intent {
    regions: Regions,
    /// What the members' bitmap belongs to; none: it is not written.
    seal: Option<Seal>,
    /// The bits that members are to have.
    wanted: Bitmap,
    /// Those that all present members durably have, and others that what they have stands for.
    durable: Bitmap,
    /// Those that the present round writes.
    flying: Bitmap,
    /// The blocks in which members do not have what is wanted.
    stale: Vec<bool>,
    holds: Vec<Hold>,
    ticks: u32,
    phase: Phase,
    pending: u32,
    failed: MemberSet,
    waiters: Vec<JobId>,
    /// A round has ended, or something has been granted, since the waiters last looked.
    has_news: bool,
    /// The array is frozen: nobody waits any more.
    has_given_up: bool,
}

impl Intent {
    /// The intent of an array with a bitmap or a log: see [`Engine::with_intent`].
    pub(super) fn of(geometry: &Geometry, record: &Record) -> Option<Self> {
        let superblock = record.any();
        let has_bitmap = superblock.consistency != Consistency::None && geometry.tolerance() > 0;
        let regions = Regions::new(geometry);
        let is_known = record.is_clean() && record.is_whole();
        let set = || if is_known { Bitmap::empty(regions) } else { Bitmap::full(regions) };
        has_bitmap.then(|| Self::new(superblock.seal(), set()))
    }

    /// The intent of an array in which the bits of `set` have to be taken to be set; what members have is not known.
    fn new(seal: Option<Seal>, set: Bitmap) -> Self {
        let regions = set.regions();
        let empty = Bitmap::empty(regions);
        Self {
            regions,
            seal,
            durable: if seal.is_none() { Bitmap::full(regions) } else { empty.clone() },
            flying: empty,
            wanted: set,
            stale: vec![true; regions.blocks()],
            holds: vec![Hold::default(); regions.count()],
            ticks: 0,
            phase: Phase::Idle,
            pending: 0,
            failed: MemberSet::EMPTY,
            waiters: Vec::new(),
            has_news: false,
            has_given_up: false,
        }
    }

    /// What has to be taken to be set on the members.
    pub(super) fn wanted(&self) -> &Bitmap {
        &self.wanted
    }

    /// Holds a region: its bit is not cleared from now on.
    fn hold(&mut self, region: RegionId) {
        self.holds[region.index()].holders += 1;
        if self.wanted.insert(region) {
            self.stale[self.regions.block(region)] = true;
        }
    }

    /// Ends a hold; `flush` is the one that covers what was written under it.
    fn release(&mut self, region: RegionId, flush: u64) {
        let hold = &mut self.holds[region.index()];
        hold.holders = hold.holders.checked_sub(1).expect("a hold that ends has begun");
        (hold.tick, hold.flush) = (self.ticks, flush);
    }

    /// Whether the members durably have a held region's bit.
    fn is_durable(&self, region: RegionId) -> bool {
        self.durable.contains(region)
    }

    /// Begins a round where the members do not have what is wanted and none is under way, or goes on with the present
    /// one.
    fn run(&mut self, present: MemberSet, offset: impl Fn(MemberIndex) -> Bytes, mut submit: impl FnMut(DiskOp)) {
        if self.pending > 0 || self.has_given_up {
            return;
        }
        let Some(seal) = self.seal else {
            self.has_news |= self.phase != Phase::Idle;
            self.phase = Phase::Idle;
            return;
        };
        match self.phase {
            Phase::Idle if !self.stale.contains(&true) => {}
            Phase::Idle => {
                self.phase = Phase::Writing;
                self.flying.clone_from(&self.wanted);
                for block in 0..self.stale.len() {
                    if !std::mem::take(&mut self.stale[block]) {
                        continue;
                    }
                    let bytes = self.wanted.encode(seal, block);
                    for member in present.iter() {
                        let at = Bytes(offset(member).0 + block as u64 * BLOCK.bytes().0);
                        self.pending += 1;
                        submit(operation(member, OpKind::Write, at, smallvec![bytes.lease_read(0..bytes.len())]));
                    }
                }
            }
            Phase::Writing if planted!(BitUnflushed) => {
                self.durable.clone_from(&self.flying);
                (self.phase, self.has_news) = (Phase::Idle, true);
                self.run(present, offset, submit);
            }
            Phase::Writing if self.flying == self.durable => {
                // Bits were only cleared: when that becomes durable does not matter.
                (self.phase, self.has_news) = (Phase::Idle, true);
                self.run(present, offset, submit);
            }
            Phase::Writing => {
                self.phase = Phase::Flushing;
                for member in present.iter() {
                    self.pending += 1;
                    submit(operation(member, OpKind::Flush, Bytes(0), smallvec![]));
                }
            }
            Phase::Flushing => {
                self.durable.clone_from(if planted!(BitWantedCounts) { &self.wanted } else { &self.flying });
                (self.phase, self.has_news) = (Phase::Idle, true);
                self.run(present, offset, submit);
            }
        }
    }

    /// Goes over to another seal when a round of superblock writes is over: what the members have stands for bits that
    /// are all set then, or counts for nothing. False: it has that seal.
    fn reseal(&mut self, seal: Option<Seal>) -> bool {
        if self.seal == seal {
            return false;
        }
        match seal {
            Some(_) => self.durable.clone_from(&self.wanted),
            None => self.durable = Bitmap::full(self.regions),
        }
        self.stale.fill(true);
        (self.seal, self.has_news) = (seal, true);
        true
    }

    /// The jobs to wake: they look again.
    fn settled(&mut self) -> impl Iterator<Item = JobId> + '_ {
        let is_due = std::mem::take(&mut self.has_news) || self.has_given_up;
        let count = if is_due { self.waiters.len() } else { 0 };
        self.waiters.drain(..count)
    }

    /// Notes the end of one of a round's operations; true when it was the last: what failed is taken then, and the
    /// round goes on.
    fn completed(&mut self, member: MemberIndex, is_failed: bool) -> bool {
        assert!(self.pending > 0, "an operation that ends was begun");
        self.pending -= 1;
        if is_failed {
            self.failed = self.failed.with(member);
        }
        self.pending == 0
    }

    /// Clears the bits of regions that were quiet for a while and whose writes the flush numbered `flushed` covers;
    /// true: there are such regions that it does not cover.
    fn sweep(&mut self, flushed: u64) -> bool {
        let mut needs_flush = false;
        let Self { wanted, durable, stale, holds, regions, ticks, seal, .. } = self;
        let quiet = |region: &RegionId| {
            let hold = holds[region.index()];
            (hold.holders == 0 || planted!(BitClearedHeld)) && ticks.wrapping_sub(hold.tick) >= QUIET_TICKS
        };
        let quiet: Vec<RegionId> = wanted.iter().filter(quiet).collect();
        for region in quiet {
            if holds[region.index()].flush > flushed && !planted!(BitClearedUnflushed) {
                needs_flush = true;
                continue;
            }
            wanted.remove(region);
            // What is on the members stands for it all the same where it is of another seal.
            if seal.is_some() && !planted!(BitClearedCounts) {
                durable.remove(region);
            }
            stale[regions.block(region)] = true;
        }
        needs_flush
    }
}

impl<D: Disk, T> Engine<D, T> {
    /// The engine, with the bits that have to be taken to be set where the array has a write-intent bitmap or a log:
    /// what was found on the members. Without them those of a clean and whole array are none, and those of another all.
    ///
    /// # Panics
    /// When there are bits and the array has no bitmap, or one of other regions.
    #[must_use]
    pub fn with_intent(mut self, set: Option<Bitmap>) -> Self {
        let Some(set) = set else { return self };
        let intent = self.intent.as_mut().expect("the array has a bitmap");
        assert_eq!(intent.regions, set.regions(), "the bitmap is of this array");
        *intent = Intent::new(intent.seal, set);
        self.rebuild.restart(&self.record, Some(intent.wanted()));
        self
    }

    /// The bits that have to be taken to be set on the members, where the array has a write-intent bitmap or a log.
    pub fn intent(&self) -> Option<&Bitmap> {
        self.intent.as_ref().map(Intent::wanted)
    }

    /// Takes the job's regions, and waits until their bits are durably set.
    pub(super) fn intend(&mut self, id: JobId) -> Step {
        if self.is_frozen {
            return Step::Fail(EngineError::Frozen);
        }
        let Some(intent) = &mut self.intent else { return Step::To(Stage::Plan) };
        let job = self.jobs.job(id);
        let regions = held_by(job, intent.regions);
        if !std::mem::replace(&mut job.has_intent, true) {
            regions.clone().for_each(|region| intent.hold(region));
        }
        if !regions.into_iter().all(|region| intent.is_durable(region)) && !planted!(BitNotAwaited) {
            intent.waiters.push(id);
            self.run_intent();
            return Step::Wait(Stage::Intent);
        }
        if !planted!(BitFailureUnrecorded) && !self.record.demand_failures(id) {
            // A member that could not be marked must not count while the others are written.
            self.run_record();
            return Step::Wait(Stage::Intent);
        }
        Step::To(Stage::Plan)
    }

    /// Ends what the job holds, once its writes are over.
    pub(super) fn end_intent(&mut self, id: JobId) {
        let job = self.jobs.job(id);
        if !std::mem::take(&mut job.has_intent) {
            return;
        }
        let intent = self.intent.as_mut().expect("what is held is there");
        let flush = self.flusher.covering();
        held_by(job, intent.regions).for_each(|region| intent.release(region, flush));
    }

    /// Sends the bitmap's writes and flushes that are wanted next, and wakes those who waited for them.
    pub(super) fn run_intent(&mut self) {
        let Self { intent: Some(intent), disk, record, geometry, ready, .. } = self else { return };
        let present = geometry.all_members().minus(record.missing());
        intent.run(present, |member| record.bitmap_offset(member), |op| disk.submit(op));
        ready.extend(intent.settled());
    }

    /// Takes in the end of one of the bitmap's operations. Who can't be written has failed, as with any write.
    pub(super) fn intent_completed(&mut self, member: MemberIndex, is_failed: bool) {
        let intent = self.intent.as_mut().expect("its operations are the bitmap's own");
        if intent.completed(member, is_failed) {
            let failed = std::mem::take(&mut intent.failed);
            if self.fail_members(failed).is_err() {
                self.is_frozen = true;
                self.give_up_intent();
            }
            self.run_intent();
        }
    }

    /// Takes note of what is on record now.
    pub(super) fn reseal_intent(&mut self) {
        let seal = self.record.any().seal();
        if self.intent.as_mut().is_some_and(|intent| intent.reseal(seal)) {
            self.run_intent();
        }
    }

    /// Has all of the bitmap written again: a member has joined.
    pub(super) fn rewrite_intent(&mut self) {
        if let Some(intent) = self.intent.as_mut().filter(|intent| intent.seal.is_some()) {
            intent.stale.fill(true);
            intent.durable = Bitmap::empty(intent.regions);
        }
        self.run_intent();
    }

    /// Lets everybody go on who waits for bits: the array is frozen.
    pub(super) fn give_up_intent(&mut self) {
        if let Some(intent) = &mut self.intent {
            intent.has_given_up = true;
        }
    }

    /// Notes that time has passed: bits of regions that are quiet are cleared, after a flush of what was written there.
    pub(super) fn tick_intent(&mut self) {
        let may_clear = self.may_clear();
        let Some(intent) = &mut self.intent else { return };
        intent.ticks = intent.ticks.wrapping_add(1);
        // In a round a bit that is on its way to the members must not be taken back.
        if !may_clear || intent.phase != Phase::Idle || !intent.ticks.is_multiple_of(SWEEP_TICKS) {
            return;
        }
        if intent.sweep(self.flusher.flushed()) && intent.seal.is_some() {
            self.start(Job::new(None, Work::Sync, Lba(0)..Lba(0)));
        }
        self.run_intent();
    }

    /// Whether bits are set that will be cleared as time passes.
    pub(super) fn is_intent_settling(&self) -> bool {
        // Bits in memory may stay as long as nothing else makes time pass.
        let is_kept = |intent: &Intent| intent.seal.is_some() && !intent.wanted.is_empty();
        self.may_clear() && self.intent.as_ref().is_some_and(is_kept)
    }

    /// Lets a job wait until the bitmap is not being written; false: it is not.
    pub(super) fn await_intent(&mut self, id: JobId) -> bool {
        let busy = self.intent.as_mut().filter(|intent| intent.phase != Phase::Idle && !intent.has_given_up);
        busy.map(|intent| intent.waiters.push(id)).is_some()
    }

    /// Whether everything that was written is as good on all members as on any.
    fn may_clear(&self) -> bool {
        let is_rebuilding = planted!(BitClearedRebuilding) && self.record.missing().is_empty();
        let is_whole = self.record.is_whole() || planted!(BitClearedDegraded) || is_rebuilding;
        !self.is_frozen && !self.is_suspect && is_whole
    }
}

/// The regions of a job's stripes.
fn held_by<T>(job: &Job<T>, regions: Regions) -> impl Iterator<Item = RegionId> + Clone + use<T> {
    let range = regions.of_all(&job.guard.as_ref().expect("a stripe is written under its lock").stripes());
    let range = if planted!(BitOfFirstRegion) { range.start..range.start + 1 } else { range };
    range.map(RegionId)
}

fn operation(member: MemberIndex, kind: OpKind, offset: Bytes, segments: Segments) -> DiskOp {
    DiskOp { tag: Caller::Intent.tag(), member, kind, offset, segments }
}
