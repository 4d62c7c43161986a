//! What an array is asked to be, and its requests as disk operations: the planner's own plans, without their XORs,
//! which take no time.

use uraid_layout::plan::{Cached, Extent, Method, MethodCounts, Plan, Planner, Queue, View};
use uraid_layout::repair::Repair;
use uraid_layout::{
    Bytes, Cell, DiskSector, Geometry, Lba, Level, MemberIndex, MemberSet, Rotation, Sectors, Spec, StripeId, Stripes,
};

use super::Error;
use super::Request;
use super::cache::CacheSpec;
use super::disk::{Disk, DiskSpec};
use super::queue::Discipline;

/// An array on disks of its own, and the free choices that a simulation of it has.
#[derive(Clone, Debug, PartialEq)]
pub struct ArraySpec {
    /// All of its disks.
    pub disk: DiskSpec,
    /// How many they are.
    pub disks: u8,
    /// The level.
    pub level: Level,
    /// Of RAID 6: whether two disks have its parities and nothing else, which real arrays don't have.
    pub has_dedicated_parity: bool,
    /// The chunk (striping unit): any number of whole sectors.
    pub chunk: Bytes,
    /// How much of each disk, from its start, the array uses; without it all.
    pub used: Option<Sectors>,
    /// How parity is brought up to date.
    pub write_rule: WriteRule,
    /// What a write's second half waits for.
    pub phases: Phases,
    /// Whether writers of one parity stripe wait for each other (Park & Choe have a lock for each).
    pub locks: bool,
    /// The order in which a disk serves what waits for it.
    pub discipline: Discipline,
    /// Whether a disk serves as one operation what came one after the other and is adjacent (Chen & Lee 3.3).
    pub merges: bool,
    /// Whether a read's chunks are one operation where they are adjacent on a disk, as in the engine; otherwise each
    /// chunk is one.
    pub joins_reads: bool,
    /// Whether the disks turn together.
    pub spindles: Spindles,
    /// Which members are there.
    pub state: State,
    /// A write-back cache in front of it, whose writes don't go by [`ArraySpec::phases`] and
    /// [`WriteRule::ReadAllThatIsWritten`].
    pub cache: Option<CacheSpec>,
    /// The engine's redo log (see its decision record 7): a ring of this size before the data on each disk, in which
    /// everything is that is about to be written.
    pub log: Option<Bytes>,
    /// The engine's journal of pages (see its decision record 17), of an array that has a cache: a ring of this size
    /// after the log on each disk. Every write is flushed then: one that the cache takes in is answered when it is in a
    /// record on one disk more than may be lost, and written out as the cache has it. The rings have room for all that
    /// the cache may hold.
    pub journal: Option<Bytes>,
}

/// How the disks of an array turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Spindles {
    /// Sector 0 passes under all heads at the same time, as in the papers' simulators.
    #[default]
    Together,
    /// Each at an angle of its own, as disks do that nobody synchronises: the same in every run.
    Apart,
}

/// How a write brings parity up to date where something has to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WriteRule {
    /// The method with the fewest disk operations, for each parity stripe: the engine's rule, and Chen & Lee's (2.2).
    #[default]
    FewestOperations,
    /// The method with the fewest units to read, however little of a unit is written: such a unit is not one that a
    /// reconstruct write reads, as in Chen & Lee's examples, which are of whole units (2.2). RAID 5 with all members
    /// does so, what a cache writes out and other arrays do [`WriteRule::FewestOperations`].
    FewestUnits,
    /// Read-modify-write of the parity groups that are written in part.
    ReadModifyWrite,
    /// Read-modify-write of all that is written of a parity stripe, also of groups whose data is all written, unless
    /// the whole stripe is: 2(u+q) operations, as Park & Choe count them (50 for 16 of 18 units). Arrays with missing
    /// members do [`WriteRule::ReadModifyWrite`].
    ReadAllThatIsWritten,
    /// Read-modify-write of all that is written, whole parity stripes too. Arrays with missing members do
    /// [`WriteRule::ReadModifyWrite`].
    ReadEverything,
    /// Always reconstruct write.
    Reconstruct,
}

/// What a request's writes wait for. The papers don't say which their simulators did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phases {
    /// All of the request's reads, as in the engine.
    #[default]
    Request,
    /// The reads of their own parity stripe: whole stripes are written at once, while what is read for the partial ones
    /// at the request's ends is under way.
    Stripe,
}

/// Which members of an array are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum State {
    /// All.
    #[default]
    Healthy,
    /// These are missing.
    Degraded(MemberSet),
    /// These were replaced and are being rebuilt from the first parity stripe on, beside the clients' requests.
    Rebuilding {
        /// The members.
        members: MemberSet,
        /// The parity stripes that are rebuilt at a time.
        at_once: u32,
    },
}

impl ArraySpec {
    /// A healthy array with the engine's and Chen & Lee's choices: fewest operations, first come first served, merging,
    /// locks.
    #[must_use]
    pub fn new(disk: DiskSpec, disks: u8, level: Level, chunk: Bytes) -> Self {
        Self {
            disk,
            disks,
            level,
            has_dedicated_parity: false,
            chunk,
            used: None,
            write_rule: WriteRule::default(),
            phases: Phases::default(),
            locks: true,
            discipline: Discipline::default(),
            merges: true,
            joins_reads: true,
            spindles: Spindles::default(),
            state: State::default(),
            cache: None,
            log: None,
            journal: None,
        }
    }

    /// A RAID 6 whose last two disks have its parities, otherwise as [`ArraySpec::new`] has it.
    #[must_use]
    pub fn dedicated_raid6(disk: DiskSpec, disks: u8, chunk: Bytes) -> Self {
        let level = Level::Raid6 { rotation: Rotation::default() };
        Self { has_dedicated_parity: true, ..Self::new(disk, disks, level, chunk) }
    }

    /// The array's geometry.
    ///
    /// # Errors
    /// When the level can't be had so, or the array is to use more than a disk has.
    pub fn geometry(&self) -> Result<Geometry, Error> {
        let capacity = Disk::new(self.disk.clone())?.capacity();
        let used = self.used.unwrap_or(capacity);
        if used.0 > capacity.0 {
            return Err(Error::Capacity { used, capacity });
        }
        let member_size = Sectors(used.0.saturating_sub(self.data_start()));
        let spec = Spec { level: self.level, members: self.disks, chunk: self.chunk, member_size };
        Ok(match self.level {
            Level::Raid6 { .. } if self.has_dedicated_parity => {
                Geometry::modelled_fixed_raid6(self.disks, self.chunk, member_size)?
            }
            _ => Geometry::modelled(spec)?,
        })
    }

    /// What the log takes of each disk, and where the journal begins.
    pub(super) fn log_sectors(&self) -> u64 {
        self.log.map_or(0, |size| size.whole_sectors().0)
    }

    /// Where the data begins on each disk.
    pub(super) fn data_start(&self) -> u64 {
        self.log_sectors() + self.journal.map_or(0, |size| size.whole_sectors().0)
    }
}

/// One disk operation: 16 bytes, for tapes have millions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    pub(super) sector: u64,
    pub(super) len: u32,
    pub(super) member: u8,
}

/// Operations of which the writes begin when the reads have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) reads: u32,
    pub(super) writes: u32,
}

/// A request that was planned before; see [`Tape`](super::Tape).
#[derive(Clone, Copy, Debug)]
pub struct Planned<'a> {
    pub(super) ops: &'a [Op],
    pub(super) parts: &'a [Part],
}

/// A request as disk operations: each part's reads, then its writes, part by part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Operations {
    pub(super) ops: Vec<Op>,
    pub(super) parts: Vec<Part>,
}

/// The parts of a request: of its first stripe, of whole stripes, of its last.
pub(super) const PARTS_MAX: usize = 3;

/// Turns requests to one array into disk operations.
#[derive(Debug)]
pub(super) struct Pricer {
    layout: Layout,
    rule: WriteRule,
    phases: Phases,
    joins_reads: bool,
    planner: Planner,
    plan: Plan,
    /// How many parity stripes were written by each method.
    pub(super) methods: MethodCounts,
}

/// What plans rely on.
#[derive(Debug)]
struct Layout {
    geometry: Geometry,
    whole: Repair,
    repair: Repair,
    /// The members that can't be read, in stripes from the watermark on.
    lost: MemberSet,
    /// The members that can't be written either.
    missing: MemberSet,
    /// The first parity stripe that is not rebuilt.
    watermark: StripeId,
}

impl Pricer {
    pub(super) fn new(spec: &ArraySpec) -> Result<Self, Error> {
        let geometry = spec.geometry()?;
        let (lost, missing) = match spec.state {
            State::Healthy => (MemberSet::EMPTY, MemberSet::EMPTY),
            State::Degraded(members) => (members, members),
            State::Rebuilding { members, .. } => (members, MemberSet::EMPTY),
        };
        let whole = Repair::new(&geometry, MemberSet::EMPTY)?;
        let repair = Repair::new(&geometry, lost)?;
        Ok(Self {
            layout: Layout { geometry, whole, repair, lost, missing, watermark: StripeId(0) },
            rule: spec.write_rule,
            phases: spec.phases,
            joins_reads: spec.joins_reads,
            planner: Planner::new(),
            plan: Plan::default(),
            methods: MethodCounts::default(),
        })
    }

    pub(super) fn geometry(&self) -> &Geometry {
        &self.layout.geometry
    }

    /// Whether where something is read depends on how busy the members are.
    pub(super) fn has_copies(&self) -> bool {
        self.geometry().spec().level.is_mirrored()
    }

    /// The parity stripes that a request touches.
    pub(super) fn stripes(&self, lba: Lba, len: Sectors) -> std::ops::Range<u64> {
        let stripe = self.geometry().stripe_sectors().0;
        lba.0 / stripe..(lba.0 + len.0).div_ceil(stripe)
    }

    /// A client's request.
    pub(super) fn request(&mut self, request: &Request, queues: &[Queue], out: &mut Operations) -> Result<(), Error> {
        out.clear();
        let Request { lba, len, .. } = *request;
        if !request.is_write {
            return self.read(&[Extent::request(lba, len)], queues, out);
        }
        self.write(&[Extent::request(lba, len)], &[], out)?;
        let is_own_rule =
            matches!(self.rule, WriteRule::ReadAllThatIsWritten | WriteRule::ReadEverything | WriteRule::FewestUnits);
        let by_stripe = self.phases == Phases::Stripe || is_own_rule && self.layout.lost.is_empty();
        if by_stripe && (out.parts[0].reads > 0 || self.rule == WriteRule::ReadEverything) {
            self.write_by_stripe(lba, len, out)?;
        }
        if self.phases == Phases::Request && out.parts.len() > 1 {
            out.join();
        }
        self.count_methods();
        Ok(())
    }

    /// The read of extents.
    pub(super) fn read(&mut self, extents: &[Extent], queues: &[Queue], out: &mut Operations) -> Result<(), Error> {
        let end = extents.last().map_or(0, |last| self.stripes(last.lba, last.content.len).end);
        let view = View { queues, ..self.layout.view(end) };
        self.planner.read(&mut self.plan, &view, extents)?;
        out.add(&self.plan);
        if !self.joins_reads {
            out.split_at_chunks(self.geometry().chunk());
        }
        Ok(())
    }

    /// The last plan.
    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Counts by which methods the last plan writes.
    pub(super) fn count_methods(&mut self) {
        self.methods += self.plan.methods();
    }

    /// The write of extents, of which the members' old content is in memory as far as `cached` goes.
    pub(super) fn write(&mut self, extents: &[Extent], cached: &[Cached], out: &mut Operations) -> Result<(), Error> {
        let end = extents.last().map_or(0, |last| self.stripes(last.lba, last.content.len).end);
        let view = View { cached, ..self.layout.view(end) };
        let plan = &mut self.plan;
        match self.rule {
            WriteRule::FewestOperations => self.planner.write(plan, &view, extents)?,
            WriteRule::FewestUnits => match self.layout.method_of_fewest_units(extents) {
                Some(method) => self.planner.write_by(plan, &view, extents, method)?,
                None => self.planner.write(plan, &view, extents)?,
            },
            WriteRule::ReadModifyWrite | WriteRule::ReadAllThatIsWritten | WriteRule::ReadEverything => {
                self.planner.write_by(plan, &view, extents, Method::ReadModifyWrite)?
            }
            WriteRule::Reconstruct => self.planner.write_by(plan, &view, extents, Method::Reconstruct)?,
        };
        out.add(&self.plan);
        Ok(())
    }

    /// The same in parts that don't wait for each other.
    fn write_by_stripe(&mut self, lba: Lba, len: Sectors, out: &mut Operations) -> Result<(), Error> {
        let stripe = self.geometry().stripe_sectors().0;
        let (start, end) = (lba.0, lba.0 + len.0);
        let first = start.next_multiple_of(stripe).min(end);
        let last = (end / stripe * stripe).max(first);
        out.clear();
        let mut methods = MethodCounts::default();
        for (from, to) in [(start, first), (first, last), (last, end)] {
            if from < to {
                self.write(&[Extent::request(Lba(from), Sectors(to - from))], &[], out)?;
                methods += self.plan.methods();
                let is_read = out.parts.last().is_some_and(|part| part.reads > 0);
                let reads_all = match self.rule {
                    WriteRule::ReadAllThatIsWritten => is_read,
                    rule => rule == WriteRule::ReadEverything,
                };
                if reads_all && self.layout.lost.is_empty() {
                    out.read_all_that_is_written();
                }
            }
        }
        self.methods += methods;
        self.plan.clear();
        Ok(())
    }

    /// The rebuilding of the stripe at the watermark; false when all are rebuilt.
    pub(super) fn rebuild(&mut self, stripe: StripeId, out: &mut Operations) -> Result<(), Error> {
        out.clear();
        let Layout { geometry, lost, .. } = &self.layout;
        let cells = (0..geometry.rows() * geometry.members())
            .map(|cell| Cell(u16::try_from(cell).expect("a stripe has fewer than 65536 cells")))
            .filter(|&cell| lost.contains(geometry.member(cell)));
        let view = self.layout.view(u64::MAX);
        self.planner.rebuild(&mut self.plan, &view, stripe, cells, (Sectors(0), geometry.chunk()))?;
        out.add(&self.plan);
        Ok(())
    }

    /// Notes that all stripes before this one are rebuilt.
    pub(super) fn rebuilt(&mut self, watermark: StripeId) {
        self.layout.watermark = watermark;
    }

    /// The number of parity stripes.
    pub(super) fn stripe_count(&self) -> Stripes {
        self.geometry().stripes()
    }
}

impl Layout {
    /// What plans for stripes before `end` rely on: all members where those are rebuilt.
    fn view(&self, end: u64) -> View<'_> {
        let repair = if end <= self.watermark.0 { &self.whole } else { &self.repair };
        View { missing: self.missing, ..View::new(&self.geometry, repair) }
    }

    /// How one extent within a parity stripe of a whole RAID 5 is written with the fewest units read; as in the planner
    /// a reconstruct write where both read as many.
    fn method_of_fewest_units(&self, extents: &[Extent]) -> Option<Method> {
        let &[Extent { lba, content }] = extents else { return None };
        let end = lba.0 + content.len.0;
        let is_one_stripe = lba.0 / self.geometry.stripe_sectors().0 == (end - 1) / self.geometry.stripe_sectors().0;
        let is_raid5 = matches!(self.geometry.spec().level, Level::Raid5 { .. });
        if !is_raid5 || !is_one_stripe || !self.lost.is_empty() {
            return None;
        }
        let chunk = self.geometry.chunk().0;
        let written = end.div_ceil(chunk) - lba.0 / chunk;
        let others = self.geometry.stripe_sectors().0 / chunk - written;
        Some(if others <= written + 1 { Method::Reconstruct } else { Method::ReadModifyWrite })
    }
}

impl Operations {
    pub(super) fn clear(&mut self) {
        self.ops.clear();
        self.parts.clear();
    }

    pub(super) fn copy(&mut self, planned: Planned<'_>) {
        self.clear();
        self.ops.extend_from_slice(planned.ops);
        self.parts.extend_from_slice(planned.parts);
    }

    /// Has the last part read what it writes, and nothing else.
    fn read_all_that_is_written(&mut self) {
        let part = self.parts.last_mut().expect("a request has a part");
        let writes = self.ops.len() - part.writes as usize;
        let reads = writes - part.reads as usize;
        self.ops.drain(reads..writes);
        self.ops.extend_from_within(reads..);
        part.reads = part.writes;
    }

    /// Cuts the operations of the only part, which reads, where chunks end.
    fn split_at_chunks(&mut self, chunk: Sectors) {
        let mut whole = std::mem::take(&mut self.ops);
        for mut op in whole.drain(..) {
            while op.len > 0 {
                let left = chunk.0 - op.sector % chunk.0;
                let len = u32::try_from(left).map_or(op.len, |left| op.len.min(left));
                self.ops.push(Op { len, ..op });
                op.sector += u64::from(len);
                op.len -= len;
            }
        }
        self.parts[0].reads = u32::try_from(self.ops.len()).expect("a request has fewer than 2^32 chunks");
    }

    /// Makes one part of all, whose writes wait for all reads.
    fn join(&mut self) {
        let mut writes = Vec::new();
        let mut at = 0;
        for part in &self.parts {
            at += part.reads as usize;
            writes.extend(self.ops.drain(at..at + part.writes as usize));
        }
        self.ops.append(&mut writes);
        let total = |of: fn(&Part) -> u32| self.parts.iter().map(of).sum();
        let whole = Part { reads: total(|part| part.reads), writes: total(|part| part.writes) };
        self.parts.clear();
        self.parts.push(whole);
    }

    fn add(&mut self, plan: &Plan) {
        let as_op = |member: MemberIndex, sector: DiskSector, len: Sectors| Op {
            sector: sector.0,
            len: u32::try_from(len.0).expect("an operation is shorter than 2^32 sectors"),
            member: member.0,
        };
        for io in plan.reads().iter().chain(plan.writes()) {
            self.ops.push(as_op(io.member, io.sector, io.len));
        }
        let count = |len: usize| u32::try_from(len).expect("a plan has fewer than 2^32 operations");
        self.parts.push(Part { reads: count(plan.reads().len()), writes: count(plan.writes().len()) });
    }
}
