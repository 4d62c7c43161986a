//! From a plan to disk operations, and back from their completions to the job.

use std::ops::Range;

use uraid_layout::plan::{Buffer, DiskIo, Queue, Slice};
use uraid_layout::{Bytes, DiskSector, Location, MemberIndex, Owner, Sectors};

use super::Engine;
use super::heal::Damage;
use super::job::{Job, JobId, Slot, Stage, Work};
use super::run::{Caller, ZEROES_BYTES};
use crate::buf::{Buf, Lease};
use crate::cache::{Contents, Source};
use crate::disk::{Disk, DiskError, DiskOp, OpKind, OpName, SEGMENTS_MAX, Segments};
use crate::xor::xor_into;

/// Shorter zeros are written: an operation of their own would only cut the member's extents up.
const ZERO_OPERATION_MIN: Sectors = Sectors((64 << 10) / 512);

impl<D: Disk, T> Engine<D, T> {
    /// Submits the plan's reads.
    pub(super) fn issue_reads(&mut self, id: JobId) {
        let Self { jobs, disk, record, counters, queues, spare, .. } = self;
        let Slot { job, plan, .. } = jobs.slot(id);
        let job = job.as_mut().expect("the slot has a job");
        let tag = Caller::Job(id).tag();
        for io in plan.reads() {
            let offset = record.offset(io.member, io.sector);
            let mut transfer = Transfer::new(tag, io.member, OpKind::Read, offset, end(io));
            for slice in plan.slices(io) {
                transfer.push(lease_to_fill(job, slice), spare, |op| disk.submit(op));
            }
            job.pending += transfer.finish(queues, |op| disk.submit(op));
            counters.read(io.member, io.len);
        }
    }

    /// Submits the plan's writes.
    pub(super) fn issue_writes(&mut self, id: JobId) {
        let Self { jobs, disk, record, counters, queues, zeroes, cannot_zero, spare, replacing, .. } = self;
        let Slot { job, plan, contents } = jobs.slot(id);
        let job = job.as_mut().expect("the slot has a job");
        let is_copy = matches!(job.work, Work::Copy { .. });
        let is_unlocked =
            [planted!(UnlockAtCommit), planted!(RebuildUnlocked), planted!(ScrubUnlocked)].contains(&true);
        assert!(job.guard.is_some() || is_unlocked, "a stripe is written under its lock");
        let tag = Caller::Job(id).tag();
        for io in plan.writes() {
            let is_left_out = record.rebuilding().contains(io.member) && !matches!(job.work, Work::Rebuild { .. });
            if planted!(RebuildingUnwritten) && is_left_out {
                continue;
            }
            if record.missing().contains(io.member) {
                // It failed after the plan was made; the others hold what it misses.
                continue;
            }
            let is_forgotten = planted!(CopyUnwritten) && !is_copy;
            let twin = replacing.as_deref().filter(|replacing| replacing.slot == io.member && !is_forgotten);
            let twin = twin.map(|replacing| (replacing.seat, replacing.offset(io.sector)));
            let own = (!is_copy).then(|| (io.member, record.offset(io.member, io.sector)));
            for (member, offset) in own.into_iter().chain(twin) {
                let may_zero = io.len >= ZERO_OPERATION_MIN && !cannot_zero.contains(member);
                if may_zero && plan.slices(io).iter().all(|slice| slice.buffer == Buffer::Zeroes) {
                    let may_punch = matches!(job.work, Work::Zero { may_punch: true, .. });
                    let kind = OpKind::Zero { len: io.len.bytes(), may_punch };
                    job.pending +=
                        Transfer::new(tag, member, kind, offset, end(io)).finish(queues, |op| disk.submit(op));
                    counters.zero(member);
                    continue;
                }
                let mut transfer = Transfer::new(tag, member, OpKind::Write, offset, end(io));
                for slice in plan.slices(io) {
                    for_each_lease(job, contents, zeroes, *slice, |lease| {
                        transfer.push(lease, spare, |op| disk.submit(op));
                    });
                }
                job.pending += transfer.finish(queues, |op| disk.submit(op));
                counters.write(member, io.len);
            }
        }
    }

    /// Does the plan's XORs.
    pub(super) fn compute(&mut self, id: JobId) {
        let Slot { job, plan, contents } = self.jobs.slot(id);
        let job = job.as_mut().expect("the slot has a job");
        for xor in plan.xors() {
            let operands = plan.operands(xor);
            let forgotten = usize::from(planted!(XorForgetsOperand) && operands.len() > 1);
            let operands = &operands[forgotten..];
            let mut at = 0;
            while at < xor.target.len.0 {
                let left = xor.target.len.0 - at;
                let len = operands.iter().map(|slice| Contents::run(slice.part(at, left)).0).min().unwrap_or(left);
                assert!(len > 0, "an operand has what is to be XORed");
                xor_part(job, contents, xor.target.part(at, len), operands.iter().map(|slice| slice.part(at, len)));
                at += len;
            }
        }
    }

    /// Lets what is about to be written take the place of what the cache holds of it, and leaves the new parity there.
    pub(super) fn take_over(&mut self, id: JobId) {
        let Self { jobs, cache, geometry, zeroes, .. } = self;
        let Slot { job, plan, contents } = jobs.slot(id);
        let job = job.as_mut().expect("the slot has a job");
        let Some(cache) = cache else { return };
        if !contents.flies() && job.work != Work::Destage {
            let source = match (job.work, &job.buf) {
                (Work::Write { .. }, Some(buf)) => Source::Request(buf, bytes(job.base(Buffer::Request))),
                // What was read of a unit that is wrong without anybody knowing may be in memory.
                (Work::Heal { stripe, .. }, _) if job.rest.is_some() => return cache.forget_clean(stripe),
                (Work::Heal { .. } | Work::Rebuild { .. } | Work::Copy { .. }, _) => return,
                _ => Source::Zeroes(zeroes),
            };
            let keeps = job.len.0 < geometry.stripe_sectors().0;
            cache.take_over(geometry, (job.at, job.len), source, keeps, contents);
        }
        let Some(scratch) = job.scratch.as_ref().filter(|_| contents.flies()) else { return };
        for io in plan.writes() {
            let mut sector = io.sector.0;
            for slice in plan.slices(io) {
                let mut done = 0;
                while slice.buffer == Buffer::Scratch && done < slice.len.0 {
                    let chunk = geometry.chunk().0;
                    let location = Location { member: io.member, sector: DiskSector(sector + done) };
                    let Some(Owner::Parity { stripe, group, offset }) = geometry.owner(location) else { break };
                    let part = slice.part(done, (chunk - offset.0).min(slice.len.0 - done));
                    cache.put_parity(contents, stripe, group, offset, scratch.bytes(range(&part, Sectors(0))));
                    done += part.len.0;
                }
                sector += slice.len.0;
            }
        }
    }

    /// Takes in the end of one of a job's disk operations.
    pub(super) fn job_completed(&mut self, id: JobId, member: MemberIndex, result: &Result<(), DiskError>) {
        let job = self.jobs.job(id);
        let is_write = matches!(job.stage, Stage::Writes);
        let is_read = matches!(job.stage, Stage::Reads);
        job.pending -= 1;
        self.queues[member.index()].depth -= 1;
        match result {
            Ok(()) if is_write && member.index() < self.geometry.members() => self.flusher.wrote(member),
            Ok(()) => {}
            Err(DiskError::Unsupported { op }) if op.name == OpName::Zero => {
                self.cannot_zero = self.cannot_zero.with(member);
                job.again = true;
            }
            Err(_) if member.index() >= self.geometry.members() => {}
            Err(_) if is_write && planted!(WriteErrorIgnored) => {}
            Err(error) => {
                job.failed = job.failed.with(member);
                if let DiskError::Io { op, .. } = error
                    && is_read
                {
                    let (sector, len) = (self.record.sector(member, op.offset), op.len.whole_sectors());
                    job.damage.push(Damage { member, sector, len, found: None });
                }
            }
        }
        if job.pending == 0 {
            self.ready.push_back(id);
        }
    }
}

/// A plan's operation on its way to the disk: one, or several where it has more segments than one can have.
pub(super) struct Transfer {
    op: DiskOp,
    end: DiskSector,
    issued: u32,
}

impl Transfer {
    /// `end` is where the member's head is then.
    pub(super) fn new(tag: u64, member: MemberIndex, kind: OpKind, offset: Bytes, end: DiskSector) -> Self {
        Self { op: DiskOp { tag, member, kind, offset, segments: Segments::new() }, end, issued: 0 }
    }

    pub(super) fn push(&mut self, lease: Lease, spare: &mut Vec<Vec<Lease>>, submit: impl FnOnce(DiskOp)) {
        if self.op.segments.last_mut().is_some_and(|last| last.extend_over(&lease)) {
            return;
        }
        if self.op.segments.len() == SEGMENTS_MAX {
            let DiskOp { tag, member, kind, offset, .. } = self.op;
            let rest = Bytes(offset.0 + self.op.len().0);
            let next = DiskOp { tag, member, kind, offset: rest, segments: Segments::new() };
            submit(std::mem::replace(&mut self.op, next));
            self.issued += 1;
        }
        let segments = &mut self.op.segments;
        if segments.len() == segments.inline_size()
            && !segments.spilled()
            && let Some(mut list) = spare.pop()
        {
            list.extend(segments.drain(..));
            *segments = Segments::from_vec(list);
        }
        segments.push(lease);
    }

    /// Submits what is left and says how many operations it came to.
    pub(super) fn finish(self, queues: &mut [Queue], submit: impl FnOnce(DiskOp)) -> u32 {
        let queue = &mut queues[self.op.member.index()];
        queue.depth += self.issued + 1;
        queue.head = self.end;
        submit(self.op);
        self.issued + 1
    }
}

/// Does a XOR of slices that are each in one piece.
fn xor_part<T>(job: &mut Job<T>, contents: &Contents, target: Slice, operands: impl Iterator<Item = Slice> + Clone) {
    let request = job.base(Buffer::Request);
    let base = move |buffer| if buffer == Buffer::Request { request } else { Sectors(0) };
    let of = |buffer| {
        let slices = operands.clone().filter(move |slice| slice.buffer == buffer);
        slices.map(move |slice| range(&slice, base(buffer)))
    };
    let (here, own, other, foreign) = match target.buffer {
        Buffer::Scratch => (job.scratch.as_mut(), Buffer::Scratch, job.buf.as_ref(), Buffer::Request),
        _ => (job.buf.as_mut(), Buffer::Request, job.scratch.as_ref(), Buffer::Scratch),
    };
    let here = here.expect("a plan's target has memory");
    let (sum, mut sources) = here.disjoint(range(&target, base(own)), of(own));
    sources.extend(of(foreign).map(|range| other.expect("a plan's operand has memory").bytes(range)));
    let cached = operands.filter(|slice| slice.buffer == Buffer::Cache);
    sources.extend(cached.flat_map(|slice| contents.pieces(slice)).map(|(page, range)| &page.bytes()[range]));
    xor_into(sum, &sources);
}

/// The bytes of a slice in a buffer of which the part's own begin at `base`.
pub(super) fn range(slice: &Slice, base: Sectors) -> Range<usize> {
    let start = base.0 + slice.start.0;
    bytes(Sectors(start))..bytes(Sectors(start + slice.len.0))
}

fn bytes(sectors: Sectors) -> usize {
    usize::try_from(sectors.bytes().0).expect("a buffer fits the address space")
}

fn lease_to_fill<T>(job: &mut Job<T>, slice: &Slice) -> Lease {
    let (buf, range) = place_to_fill(job, slice);
    buf.lease_write(range)
}

/// The memory of a slice that was read.
pub(super) fn bytes_to_fill<'a, T>(job: &'a mut Job<T>, slice: &Slice) -> &'a mut [u8] {
    let (buf, range) = place_to_fill(job, slice);
    buf.bytes_mut(range)
}

fn place_to_fill<'a, T>(job: &'a mut Job<T>, slice: &Slice) -> (&'a mut Buf, Range<usize>) {
    let base = job.base(slice.buffer);
    let buf = match slice.buffer {
        Buffer::Request => &mut job.buf,
        Buffer::Scratch => &mut job.scratch,
        Buffer::Cache | Buffer::Zeroes => unreachable!("a read fills the request's memory or the plan's"),
    };
    (buf.as_mut().expect("a plan's slice has memory"), range(slice, base))
}

/// The memory of a slice that is written, in order.
pub(super) fn for_each_lease<T>(
    job: &Job<T>,
    contents: &Contents,
    zeroes: &Buf,
    slice: Slice,
    mut each: impl FnMut(Lease),
) {
    let (buf, piece) = match slice.buffer {
        Buffer::Cache => return contents.pieces(slice).for_each(|(page, range)| each(page.part(range))),
        Buffer::Request => (job.buf.as_ref(), slice.len),
        Buffer::Scratch => (job.scratch.as_ref(), slice.len),
        Buffer::Zeroes => (Some(zeroes), ZEROES_BYTES.whole_sectors()),
    };
    let buf = buf.expect("a plan's slice has memory");
    let base = job.base(slice.buffer);
    for at in (0..slice.len.0).step_by(usize::try_from(piece.0).expect("a length fits the address space")) {
        let mut part = slice.part(at, piece.0.min(slice.len.0 - at));
        if slice.buffer == Buffer::Zeroes {
            part.start = Sectors(0);
        }
        each(buf.lease_read(range(&part, base)));
    }
}

/// Where an operation ends on its member.
fn end(io: &DiskIo) -> DiskSector {
    DiskSector(io.sector.0 + io.len.0)
}
