//! The engine's side of block checksums: pages of the members' tables in memory, and what they say of what was read.
//!
//! A job waits for the pages of what it reads and writes before it begins. What it has written in place gets its
//! checksums when the writes are over; then the job waits for a write of each page that began after that. One write of
//! a page is under way at a time, so jobs that come meanwhile share the next. The job's stripe locks and its place in
//! the log are given up only then.
//!
//! Invariants:
//! - A block's checksum changes under its stripe's lock.
//! - A log record is trimmed only when content and checksums are in place and durable on all members that took them:
//!   whatever a crash leaves of them, recovery makes both anew. Only without redundancy does a member count that failed
//!   to take them: its blocks may be errors after a crash, until they are written again.
//! - A page that a job needs stays in memory until the job is done with it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use smallvec::SmallVec;
use uraid_layout::plan::DiskIo;
use uraid_layout::{Bytes, DiskSector, Geometry, Location, MemberIndex, MemberSet};

use super::Engine;
use super::heal::Damage;
use super::job::{Job, JobId, Slot, Stage, Work};
use super::run::{Caller, Step};
use super::transfer::{Transfer, bytes_to_fill, for_each_lease};
use crate::buf::Buf;
use crate::disk::{Disk, DiskOp, OpKind};
use crate::format::sums::{BlockNumber, PAGE_BYTES, Page, PageNumber, Sum, Tag};
use crate::format::superblock::{Integrity, Superblock};
use crate::format::{BLOCK, BLOCK_BYTES};

/// Pages in memory, beyond which those are forgotten that nobody needs: 16 MiB of checksums, of 16 GiB.
const PAGES_MAX: usize = 4096;

/// Blocks that members are asked for at once.
const ASKED_MAX: usize = 64;

/// A page of a member's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PageId {
    member: MemberIndex,
    number: PageNumber,
}

/// The pages that a job keeps in memory.
pub(super) type Pins = SmallVec<[PageId; 8]>;

/// What other copies' checksums say of a block's content: where each copy is, its checksum if that is its content, too,
/// and whether it is that.
type Said = SmallVec<[(Location, Sum, bool); 2]>;

/// See the module.
#[derive(Debug)]
pub(super) struct Sums {
    /// By slot; none for members that are missing from the start. The seat of a member that is to take another one's
    /// place may be one more.
    tables: Vec<Option<Table>>,
    pages: BTreeMap<PageId, Held>,
    /// Pages to be written, in the order in which they changed.
    dirty: VecDeque<PageId>,
    writing: usize,
    /// Pages that members failed to take, which the array can't do without: what is in memory is nowhere else.
    refused: BTreeSet<PageId>,
    /// Where the search for a page to forget goes on.
    hand: PageId,
    /// Memory for the pages' bytes.
    spare: Vec<Buf>,
}

#[derive(Debug)]
struct Table {
    tag: Tag,
    offset: Bytes,
}

/// A page in memory.
#[derive(Debug)]
struct Held {
    page: Page,
    state: State,
    /// The bytes that are being read or written.
    bytes: Option<Buf>,
    pins: u32,
    is_used: bool,
    is_dirty: bool,
    /// Jobs that wait for the operation under way.
    present: Vec<JobId>,
    /// Jobs that wait for the write after it.
    next: Vec<JobId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reading,
    Idle,
    Writing,
}

impl Sums {
    /// The checksums of the members with these superblocks; none where the array has none.
    pub(super) fn new<'a>(superblocks: impl Iterator<Item = Option<&'a Superblock>>) -> Option<Self> {
        let mut has_sums = false;
        let mut table = |superblock: &Superblock| {
            has_sums |= superblock.integrity == Integrity::Crc32;
            Table { tag: Tag::new(superblock.array, superblock.member), offset: superblock.areas.sums.offset }
        };
        let tables = superblocks.map(|superblock| superblock.map(&mut table)).collect();
        let hand = PageId { member: MemberIndex(0), number: PageNumber(0) };
        let (pages, dirty, refused, spare) = (BTreeMap::new(), VecDeque::new(), BTreeSet::new(), Vec::new());
        has_sums.then_some(Self { tables, pages, dirty, writing: 0, refused, hand, spare })
    }

    /// Whether pages are to be written, or being written.
    pub(super) fn is_busy(&self) -> bool {
        self.writing > 0 || !self.dirty.is_empty()
    }

    /// Takes another member at a slot, or at the seat beyond them: its table is read when it is needed. Nobody has
    /// pages of the one before it.
    pub(super) fn replace(&mut self, own: &Superblock) {
        let table = Table { tag: Tag::new(own.array, own.member), offset: own.areas.sums.offset };
        if own.slot.index() == self.tables.len() {
            self.tables.push(None);
        }
        self.tables[own.slot.index()] = Some(table);
        self.pages.retain(|id, _| id.member != own.slot || planted!(SumsKeptAtJoin));
        self.dirty.retain(|id| id.member != own.slot);
        self.refused.retain(|id| id.member != own.slot);
    }

    /// Has pages written again that members failed to take.
    pub(super) fn try_again(&mut self) {
        for &id in &self.refused {
            let held = self.pages.get_mut(&id).expect("a page that is nowhere else is kept");
            if !std::mem::replace(&mut held.is_dirty, true) && held.state == State::Idle {
                self.dirty.push_back(id);
            }
        }
    }

    /// Whether a page is in memory.
    fn has(&self, id: PageId) -> bool {
        self.pages.get(&id).is_some_and(|held| held.state != State::Reading)
    }

    /// Takes memory back, unless an operation that was given up keeps it.
    fn put_back(&mut self, bytes: Buf) {
        if !bytes.is_lent() {
            self.spare.push(bytes);
        }
    }

    fn table(&self, member: MemberIndex) -> &Table {
        self.tables[member.index()].as_ref().expect("a member that is used is present")
    }

    /// What is known of a block, whose page some job keeps in memory.
    fn known(&self, member: MemberIndex, block: BlockNumber) -> Sum {
        let (number, index) = block.place();
        let held = self.pages.get(&PageId { member, number }).expect("the page of what is read is in memory");
        assert_ne!(held.state, State::Reading, "a page is there before what it says of is read");
        held.page.sum(index)
    }

    /// What the checksums of other copies, which `lost` members don't have, say of a block's content. Only what is in
    /// memory counts: a copy that was found wrong has its page there.
    fn said_by_copies(&self, geometry: &Geometry, lost: MemberSet, at: Location, content: &[u8]) -> Said {
        let said = geometry.copies(at).filter_map(|copy| {
            let block = block_at(copy.sector);
            let is_there = self.has(PageId { member: copy.member, number: block.place().0 });
            if lost.contains(copy.member) || !is_there || planted!(CopiesUnasked) {
                return None;
            }
            let (known, sum) = (self.known(copy.member, block), self.table(copy.member).tag.sum(block, content));
            (![Sum::UNKNOWN, Sum::LOST].contains(&known)).then(|| (copy, sum, known.agrees(sum)))
        });
        said.collect()
    }

    /// Notes what a block holds now; true when its page is to be written, and was not before.
    fn set(&mut self, member: MemberIndex, block: BlockNumber, sum: Sum) {
        let (number, index) = block.place();
        let id = PageId { member, number };
        let held = self.pages.get_mut(&id).expect("the page of what is written is in memory");
        held.page.set(index, sum);
        if !std::mem::replace(&mut held.is_dirty, true) && held.state == State::Idle {
            self.dirty.push_back(id);
        }
    }

    fn buf(&mut self) -> Buf {
        self.spare.pop().unwrap_or_else(|| Buf::zeroed(Bytes(PAGE_BYTES as u64)))
    }

    /// Forgets pages that nobody needs while there are too many.
    fn evict(&mut self) {
        let mut looks = 2 * self.pages.len();
        while self.pages.len() >= PAGES_MAX && looks > 0 {
            looks -= 1;
            let next = self.pages.range_mut(self.hand..).next().map(|(&id, held)| (id, held));
            let Some((id, held)) = next else {
                self.hand = PageId { member: MemberIndex(0), number: PageNumber(0) };
                continue;
            };
            self.hand = PageId { number: PageNumber(id.number.0.saturating_add(1)), ..id };
            let is_needed = held.pins > 0 || held.is_dirty || held.state != State::Idle;
            if !is_needed && !std::mem::take(&mut held.is_used) {
                self.pages.remove(&id);
            }
        }
    }

    /// An operation on a page.
    fn op(&self, id: PageId, kind: OpKind, bytes: &mut Buf) -> DiskOp {
        let lease =
            if kind == OpKind::Read { bytes.lease_write(0..PAGE_BYTES) } else { bytes.lease_read(0..PAGE_BYTES) };
        let offset = Bytes(self.table(id.member).offset.0 + u64::from(id.number.0) * PAGE_BYTES as u64);
        DiskOp {
            tag: Caller::Sums(id.number).tag(),
            member: id.member,
            kind,
            offset,
            segments: smallvec::smallvec![lease],
        }
    }
}

impl<D: Disk, T> Engine<D, T> {
    /// Takes the pages of what the job's plan reads and writes into memory, and keeps them there; false: the job waits
    /// for some.
    pub(super) fn take_pages(&mut self, id: JobId) -> bool {
        let Self { sums, jobs, disk, record, replacing, .. } = self;
        let Some(sums) = sums else { return true };
        let Slot { job, plan, .. } = jobs.slot(id);
        let job = job.as_mut().expect("the slot has a job");
        if !job.pins.is_empty() {
            return true;
        }
        let touched = plan.reads().iter().chain(plan.writes()).map(|io| (io.member, io.sector, io.len, true));
        let recovered = plan.recovered().iter().map(|piece| (piece.member, piece.sector, piece.content.len, false));
        let twin = replacing.as_deref();
        let twins = plan.writes().iter().filter_map(|io| {
            twin.filter(|twin| twin.slot == io.member).map(|twin| (twin.seat, io.sector, io.len, true))
        });
        for (member, sector, len, is_needed) in touched.chain(recovered).chain(twins) {
            if record.missing().contains(member) {
                continue;
            }
            let (first, last) = (block_at(sector).place().0, block_at(DiskSector(sector.0 + len.0 - 1)).place().0);
            for number in (first.0..=last.0).map(PageNumber) {
                let page = PageId { member, number };
                // What a slow member should hold is not worth waiting for: everything that it is computed from is
                // checked itself.
                let is_wanted = is_needed || !disk.slow().contains(member) || sums.has(page);
                if is_wanted && !job.pins.contains(&page) {
                    job.pins.push(page);
                }
            }
        }
        for &page in &job.pins {
            if !sums.pages.contains_key(&page) {
                sums.evict();
                let mut bytes = sums.buf();
                disk.submit(sums.op(page, OpKind::Read, &mut bytes));
                sums.pages.insert(page, Held::new(bytes));
            }
            let held = sums.pages.get_mut(&page).expect("it is there now");
            held.pins += 1;
            held.is_used = true;
            if held.state == State::Reading {
                held.present.push(id);
                job.pending += 1;
            }
        }
        job.pending == 0
    }

    /// Lets go of the job's pages.
    pub(super) fn leave_pages(&mut self, id: JobId) {
        let Some(sums) = &mut self.sums else { return };
        for page in std::mem::take(&mut self.jobs.job(id).pins) {
            sums.pages.get_mut(&page).expect("a page that is needed is kept").pins -= 1;
        }
    }

    /// Whether everything that the job has read is what was written there. What is not is noted as damage; without the
    /// stripe's lock nothing is said for sure yet.
    pub(super) fn verify_reads(&mut self, id: JobId) -> bool {
        let lost = self.lost(id);
        let Self { geometry, sums, jobs, overlay, counters, .. } = self;
        let Some(sums) = sums else { return true };
        let Slot { job, plan, .. } = jobs.slot(id);
        let job = job.as_mut().expect("the slot has a job");
        let mut is_sound = true;
        for io in plan.reads() {
            let mut sector = io.sector;
            for slice in plan.slices(io) {
                for at in (0..slice.len.0).step_by(BLOCK_SECTORS) {
                    let (place, block) = (sector, block_at(sector));
                    sector.0 += BLOCK.0;
                    let content = bytes_to_fill(job, &slice.part(at, BLOCK.0));
                    let found = sums.table(io.member).tag.sum(block, content);
                    let known = sums.known(io.member, block);
                    let at = Location { member: io.member, sector: place };
                    let is_lost = known == Sum::LOST;
                    let said = if is_lost { sums.said_by_copies(geometry, lost, at, content) } else { Said::new() };
                    if planted!(MismatchIgnored)
                        || known.agrees(found)
                        || is_lost && !job.is_denied(&said) && job.has_to_believe(geometry, lost, at)
                        || overlay.touches(io.member, place, BLOCK)
                    {
                        continue;
                    }
                    is_sound = false;
                    if job.guard.is_some() {
                        counters.mismatch(io.member);
                        tracing::error!(member = %io.member, sector = %place, "a block does not match its checksum");
                        job.unreadable = job.unreadable.with(io.member);
                        job.damage.push(Damage { member: io.member, sector: place, len: BLOCK, found: Some(found) });
                    }
                }
            }
        }
        is_sound
    }

    /// The blocks that were computed of members that can't be read, and of which nothing shows that they are what
    /// these should hold: neither the checksum nor what the member gave.
    pub(super) fn unproven(&mut self, id: JobId) -> Vec<Location> {
        // What a member's table says of what it does not have yet is of something older, where it has taken a failed
        // one's place.
        let lost = self.lost(id);
        let Self { sums, jobs, overlay, .. } = self;
        let mut unproven = Vec::new();
        let Some(sums) = sums.as_mut().filter(|_| !planted!(ComputedUnverified)) else { return unproven };
        let Slot { job, plan, .. } = jobs.slot(id);
        let job = job.as_mut().expect("the slot has a job");
        for piece in plan.recovered().iter().filter(|piece| !lost.contains(piece.member)) {
            for at in (0..piece.content.len.0).step_by(BLOCK_SECTORS) {
                let sector = DiskSector(piece.sector.0 + at);
                let block = block_at(sector);
                let content = bytes_to_fill(job, &piece.content.part(at, BLOCK.0));
                let sum = sums.table(piece.member).tag.sum(block, content);
                // Where the member holds just what the others say, it is the checksum that was lost; what the log has
                // may be newer than either.
                let is_logged = overlay.touches(piece.member, sector, BLOCK);
                let page = PageId { member: piece.member, number: block.place().0 };
                if !job.pins.contains(&page) {
                    continue;
                }
                let known = sums.known(piece.member, block);
                let is_proven =
                    known.agrees(sum) || known == Sum::LOST || is_logged || job.has_found(piece.member, sector, sum);
                if !is_proven {
                    unproven.push(Location { member: piece.member, sector });
                }
            }
        }
        unproven
    }

    /// Reads blocks that were computed on the way to others from their members, too: a member that holds just that
    /// has lost the checksum, not the block. False where that is no use: they are too many at once, or were looked at
    /// already.
    pub(super) fn ask_members(&mut self, id: JobId, blocks: Vec<Location>) -> bool {
        let Self { jobs, disk, record, counters, queues, spare, .. } = self;
        let job = jobs.job(id);
        let is_known = |at: &Location| job.has_looked_at(*at);
        if blocks.len() > ASKED_MAX || blocks.iter().any(is_known) || planted!(MembersUnasked) {
            return false;
        }
        job.failed = MemberSet::EMPTY;
        for at in blocks {
            let mut buf = Buf::zeroed(BLOCK.bytes());
            let (offset, end) = (record.offset(at.member, at.sector), DiskSector(at.sector.0 + BLOCK.0));
            let mut transfer = Transfer::new(Caller::Job(id).tag(), at.member, OpKind::Read, offset, end);
            transfer.push(buf.lease_write(0..BLOCK_BYTES), spare, |op| disk.submit(op));
            job.pending += transfer.finish(queues, |op| disk.submit(op));
            counters.read(at.member, BLOCK);
            job.asked.push((at, buf));
        }
        true
    }

    /// Goes on with what the members hold.
    pub(super) fn asked(&mut self, id: JobId) -> Step {
        let Self { sums, jobs, record, counters, .. } = self;
        let sums = sums.as_ref().expect("what has no checksums proves itself");
        let job = jobs.job(id);
        let failed = std::mem::take(&mut job.failed);
        for (Location { member, sector }, buf) in std::mem::take(&mut job.asked) {
            if failed.contains(member) || record.missing().contains(member) {
                continue;
            }
            let found = sums.table(member).tag.sum(block_at(sector), buf.as_ref());
            if !sums.known(member, block_at(sector)).agrees(found) {
                counters.mismatch(member);
                tracing::error!(%member, %sector, "a block does not match its checksum");
                job.damage.push(Damage { member, sector, len: BLOCK, found: Some(found) });
            }
        }
        if self.unproven(id).is_empty() { self.proven(id) } else { self.disprove(id) }
    }

    /// Notes the checksums of what the job has written in place, and waits until they are written.
    pub(super) fn write_sums(&mut self, id: JobId) -> Step {
        if self.is_frozen {
            return Step::Fail(super::EngineError::Frozen);
        }
        self.note_sums(id);
        let Self { sums, jobs, record, replacing, .. } = self;
        let Slot { job, plan, .. } = jobs.slot(id);
        let job = job.as_mut().expect("the slot has a job");
        let Some(sums) = sums.as_mut().filter(|_| !planted!(SumNotAwaited)) else { return self.sums_written(id) };
        let is_copy = matches!(job.work, Work::Copy { .. });
        let twin = replacing.as_deref();
        let is_written = |page: &&PageId| {
            let touches = |io: &DiskIo| {
                let last = DiskSector(io.sector.0 + io.len.0 - 1);
                let numbers = block_at(io.sector).place().0..=block_at(last).place().0;
                let is_twin = twin.is_some_and(|twin| twin.slot == io.member && twin.seat == page.member);
                (is_twin || io.member == page.member && !is_copy) && numbers.contains(&page.number)
            };
            // As for noting them: of a member that has just failed no checksum is written, nor of its copy.
            plan.writes().iter().filter(|io| !record.missing().contains(io.member)).any(touches)
        };
        for page in job.pins.iter().filter(is_written) {
            let held = sums.pages.get_mut(page).expect("a page that is needed is kept");
            held.next.push(id);
            job.pending += 1;
        }
        if job.pending == 0 { self.sums_written(id) } else { Step::Wait(Stage::SumsWritten) }
    }

    /// Goes on when they are; without redundancy it fails now where a member failed to take content or checksums.
    pub(super) fn sums_written(&mut self, id: JobId) -> Step {
        let job = self.jobs.job(id);
        let (failed, is_heal) = (std::mem::take(&mut job.failed), matches!(job.work, Work::Heal { .. }));
        if let Err(error) = self.fail_members(failed) {
            return Step::Fail(error);
        }
        Step::To(if is_heal { Stage::StartCheck } else { Stage::Record })
    }

    /// Notes what the blocks hold that the job has written, or that nothing is known of them any more where the member
    /// failed: the old, the new, or some of both.
    pub(super) fn note_sums(&mut self, id: JobId) {
        let Self { sums, jobs, record, zeroes, replacing, .. } = self;
        let Some(sums) = sums else { return };
        let Slot { job, plan, contents } = jobs.slot(id);
        let job = job.as_mut().expect("the slot has a job");
        let is_copy = matches!(job.work, Work::Copy { .. });
        let twin = replacing.as_deref();
        let places = plan.writes().iter().filter(|io| !record.missing().contains(io.member)).flat_map(|io| {
            let twin = twin.filter(|twin| twin.slot == io.member).map(|twin| twin.seat);
            (!is_copy).then_some(io.member).into_iter().chain(twin).map(move |member| (member, io))
        });
        for (member, io) in places {
            let mut block = block_at(io.sector);
            let (tag, is_known) = (sums.table(member).tag, !job.failed.contains(member));
            for slice in plan.slices(io) {
                for_each_lease(job, contents, zeroes, *slice, |lease| {
                    for content in lease.bytes().chunks_exact(BLOCK_BYTES) {
                        let sum = if is_known { tag.sum(block, content) } else { Sum::UNKNOWN };
                        if !planted!(SumNotUpdated) {
                            sums.set(member, block, sum);
                        }
                        block.0 += 1;
                    }
                });
            }
        }
    }

    /// Writes the pages that changed and are not being written.
    pub(super) fn write_pages(&mut self) {
        let Self { sums, jobs, disk, record, ready, .. } = self;
        let Some(sums) = sums else { return };
        while let Some(id) = sums.dirty.pop_front() {
            let mut bytes = sums.buf();
            let tag = sums.table(id.member).tag;
            let held = sums.pages.get_mut(&id).expect("a page that changed is kept");
            held.is_dirty = false;
            if record.missing().contains(id.member) {
                sums.spare.push(bytes);
                for id in held.next.drain(..) {
                    finish_one(jobs.job(id), id, ready);
                }
                continue;
            }
            held.page.encode(&tag, id.number, bytes.as_mut());
            held.state = State::Writing;
            assert!(held.present.is_empty(), "one operation on a page at a time");
            std::mem::swap(&mut held.present, &mut held.next);
            disk.submit(sums.op(id, OpKind::Write, &mut bytes));
            sums.pages.get_mut(&id).expect("it is still there").bytes = Some(bytes);
            sums.writing += 1;
        }
        self.wake_closers();
    }

    /// Has those planned without a slow member that only read, and wait for a page of its checksums.
    pub(super) fn go_around_page(&mut self, member: MemberIndex, number: PageNumber) {
        let Self { sums, jobs, ready, .. } = self;
        let Some(held) = sums.as_mut().and_then(|sums| sums.pages.get_mut(&PageId { member, number })) else { return };
        held.present.retain(|&id| {
            let Slot { job, plan, .. } = jobs.slot(id);
            let job = job.as_mut().expect("the slot has a job");
            let goes_around = plan.writes().is_empty();
            if goes_around {
                job.is_replanned = true;
                finish_one(job, id, ready);
            }
            !goes_around
        });
    }

    /// Takes in the end of an operation on a page.
    pub(super) fn page_completed(&mut self, member: MemberIndex, number: PageNumber, is_failed: bool) {
        let Self { sums, jobs, flusher, counters, ready, record, geometry, .. } = self;
        let is_seat = member.index() >= geometry.members();
        let sums = sums.as_mut().expect("pages are of checksums");
        let id = PageId { member, number };
        let tag = sums.table(member).tag;
        let held = sums.pages.get_mut(&id).expect("a page under way is kept");
        let bytes = held.bytes.take().expect("an operation has memory");
        let was = std::mem::replace(&mut held.state, State::Idle);
        if was == State::Reading {
            let (page, damaged) =
                if is_failed { (Page::lost(), 1) } else { Page::decode(&tag, number, bytes.as_ref()) };
            if damaged > 0 && !is_seat && !record.missing().contains(member) {
                counters.mismatch(member);
                tracing::error!(%member, page = number.0, damaged, "checksums are damaged: reads of these blocks \
                    compute them from the other members");
            }
            held.page = page;
        } else {
            sums.writing -= 1;
            if is_seat {
                // What it lacks then nobody relies on.
            } else if is_failed {
                held.pins += u32::from(sums.refused.insert(id));
            } else {
                held.pins -= u32::from(sums.refused.remove(&id));
                flusher.wrote(member);
            }
            if held.is_dirty {
                sums.dirty.push_back(id);
            }
        }
        let mut present = std::mem::take(&mut held.present);
        for id in present.drain(..) {
            let job = jobs.job(id);
            if was == State::Writing && is_failed && !is_seat {
                job.failed = job.failed.with(member);
            }
            finish_one(job, id, ready);
        }
        held.present = present;
        sums.put_back(bytes);
        self.wake_closers();
    }
}

impl Held {
    fn new(bytes: Buf) -> Self {
        Self {
            page: Page::unknown(),
            state: State::Reading,
            bytes: Some(bytes),
            pins: 0,
            is_used: true,
            is_dirty: false,
            present: Vec::new(),
            next: Vec::new(),
        }
    }
}

impl<T> Job<T> {
    /// Whether a member was read there, and what it gave is not what its checksum says.
    fn has_looked_at(&self, at: Location) -> bool {
        self.damage.iter().any(|damage| (damage.member, damage.sector, damage.len) == (at.member, at.sector, BLOCK))
    }

    /// Whether other copies say that a block's content is not what was written there. Where one of their members gave
    /// just this content, it is its checksum that is wrong.
    fn is_denied(&self, said: &Said) -> bool {
        let confirms =
            |&(copy, sum, agrees): &(Location, Sum, bool)| agrees || self.has_found(copy.member, copy.sector, sum);
        !said.is_empty() && !said.iter().any(confirms)
    }

    /// Whether a member gave a block with this checksum, which was not the one that is known.
    fn has_found(&self, member: MemberIndex, sector: DiskSector, sum: Sum) -> bool {
        let is_same = |damage: &Damage| {
            damage.member == member && damage.sector == sector && damage.len == BLOCK && damage.found == Some(sum)
        };
        let is_healed = |found| self.len == BLOCK && self.heals == Some(member) && found == Some(sum);
        let is_heal = matches!(self.work, Work::Heal { found, .. } if is_healed(found));
        is_heal || self.damage.iter().any(is_same)
    }
}

const BLOCK_SECTORS: usize = BLOCK_BYTES / 512;

fn block_at(sector: DiskSector) -> BlockNumber {
    BlockNumber(sector.0 / BLOCK.0)
}

/// Notes that one of the things has happened that a job waits for.
fn finish_one<T>(job: &mut Job<T>, id: JobId, ready: &mut VecDeque<JobId>) {
    job.pending -= 1;
    if job.pending == 0 {
        ready.push_back(id);
    }
}
