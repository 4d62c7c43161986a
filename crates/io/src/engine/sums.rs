//! The engine's side of block checksums: pages of the members' tables in memory.
//!
//! A task waits for the pages of what it reads and writes before it begins. What it has written in place gets its
//! checksums when the writes are over; then the task waits for a write of each page that began after that. One write of
//! a page is under way at a time, so tasks that come meanwhile share the next. The task's stripe locks and its place in
//! the log are given up only then.
//!
//! Invariants:
//! - A block's checksum changes under its stripe's lock.
//! - A log record is trimmed only when content and checksums are in place and durable on all members that took them:
//!   whatever a crash leaves of them, recovery makes both anew. Only without redundancy does a member count that failed
//!   to take them: its blocks may be errors after a crash, until they are written again.
//! - A page that a task needs stays in memory until the task is done with it.
//!
//! It does not know what was read: it says what a block should be.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use smallvec::SmallVec;
use uraid_layout::{Bytes, DiskSector, Geometry, Location, MemberIndex, MemberSet};

use super::members::Members;
use super::operations::Caller;
use super::tasks::TaskId;
use crate::buf::Buf;
use crate::disk::OpKind;
use crate::format::BLOCK;
use crate::format::sums::{BlockNumber, PAGE_BYTES, Page, PageNumber, Sum, Tag};
use crate::format::superblock::{Integrity, Superblock};

/// Pages in memory, beyond which those are forgotten that nobody needs: 16 MiB of checksums, of 16 GiB.
const PAGES_MAX: usize = 4096;

/// A page of a member's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PageId {
    pub(super) member: MemberIndex,
    pub(super) number: PageNumber,
}

/// The pages that a task keeps in memory until this is dropped.
#[derive(Debug, Default)]
pub(super) struct Pins<'a> {
    sums: Option<&'a Sums>,
    pages: SmallVec<[PageId; 8]>,
}

/// What another copy's checksum says of a block's content: where the copy is, its checksum if that is its content, too,
/// and whether it is that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opinion {
    pub(super) copy: Location,
    pub(super) sum: Sum,
    pub(super) agrees: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Sums(RefCell<State>);

#[derive(Debug)]
struct State {
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
    is_at: Stage,
    /// The bytes that are being read or written.
    bytes: Option<Buf>,
    pins: u32,
    is_used: bool,
    is_dirty: bool,
    /// Tasks that wait for the operation under way.
    present: Vec<TaskId>,
    /// Tasks that wait for the write after it.
    next: Vec<TaskId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
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
        let state = State {
            tables: superblocks.map(|superblock| superblock.map(&mut table)).collect(),
            pages: BTreeMap::new(),
            dirty: VecDeque::new(),
            writing: 0,
            refused: BTreeSet::new(),
            hand: PageId { member: MemberIndex(0), number: PageNumber(0) },
            spare: Vec::new(),
        };
        has_sums.then_some(Self(RefCell::new(state)))
    }

    /// Whether pages are to be written, or being written.
    pub(super) fn is_busy(&self) -> bool {
        let state = self.0.borrow();
        state.writing > 0 || !state.dirty.is_empty()
    }

    /// Takes another member at a slot, or at the seat beyond them: its table is read when it is needed. Nobody has
    /// pages of the one before it.
    pub(super) fn replace(&self, own: &Superblock) {
        let state = &mut *self.0.borrow_mut();
        let table = Table { tag: Tag::new(own.array, own.member), offset: own.areas.sums.offset };
        if own.slot.index() == state.tables.len() {
            state.tables.push(None);
        }
        state.tables[own.slot.index()] = Some(table);
        state.pages.retain(|id, _| id.member != own.slot || planted!(SumsKeptAtJoin));
        state.dirty.retain(|id| id.member != own.slot);
        state.refused.retain(|id| id.member != own.slot);
    }

    /// Has pages written again that members failed to take.
    pub(super) fn try_again(&self) {
        let State { refused, pages, dirty, .. } = &mut *self.0.borrow_mut();
        for &id in refused.iter() {
            let held = pages.get_mut(&id).expect("a page that is nowhere else is kept");
            if !std::mem::replace(&mut held.is_dirty, true) && held.is_at == Stage::Idle {
                dirty.push_back(id);
            }
        }
    }

    /// The number that a block's content has on a member.
    pub(super) fn sum(&self, member: MemberIndex, block: BlockNumber, content: &[u8]) -> Sum {
        self.0.borrow().table(member).tag.sum(block, content)
    }

    /// What is known of a block, whose page some task keeps in memory.
    ///
    /// # Panics
    /// When none does.
    pub(super) fn known(&self, member: MemberIndex, block: BlockNumber) -> Sum {
        self.0.borrow().known(member, block)
    }

    /// Whether it is known that a block has lost its checksum; it is not of what is not in memory.
    pub(super) fn has_lost(&self, member: MemberIndex, block: BlockNumber) -> bool {
        let state = self.0.borrow();
        let is_there = state.has(PageId { member, number: block.place().0 });
        is_there && state.known(member, block) == Sum::LOST
    }

    /// What the checksums of other copies, which `lost` members don't have, say of a block's content. Only what is in
    /// memory counts: a copy that was found wrong has its page there.
    pub(super) fn opinions(
        &self,
        geometry: &Geometry,
        lost: MemberSet,
        at: Location,
        content: &[u8],
    ) -> SmallVec<[Opinion; 2]> {
        let state = self.0.borrow();
        let opinion = |copy: Location| {
            let block = block_at(copy.sector);
            let is_there = state.has(PageId { member: copy.member, number: block.place().0 });
            if lost.contains(copy.member) || !is_there || planted!(CopiesUnasked) {
                return None;
            }
            let (known, sum) = (state.known(copy.member, block), state.table(copy.member).tag.sum(block, content));
            let says = ![Sum::UNKNOWN, Sum::LOST].contains(&known);
            says.then(|| Opinion { copy, sum, agrees: known.agrees(sum) })
        };
        geometry.copies(at).filter_map(opinion).collect()
    }

    /// Takes pages into memory and keeps them there; the running task's call waits for those that have to be read.
    /// Each range of sectors comes with whether it can't be done without: what a slow member should hold is not worth
    /// waiting for, as everything that it is computed from is checked itself.
    pub(super) fn pin<'a>(
        &'a self,
        members: &Members,
        slow: MemberSet,
        ranges: impl Iterator<Item = (MemberIndex, DiskSector, u64, bool)>,
    ) -> Pins<'a> {
        let state = &mut *self.0.borrow_mut();
        let mut pins = Pins { sums: Some(self), pages: SmallVec::new() };
        let missing = members.missing();
        for (member, sector, len, is_needed) in ranges.filter(|(member, ..)| !missing.contains(*member)) {
            let (first, last) = (block_at(sector).place().0, block_at(DiskSector(sector.0 + len - 1)).place().0);
            for number in (first.0..=last.0).map(PageNumber) {
                let page = PageId { member, number };
                let is_wanted = is_needed || !slow.contains(member) || state.has(page);
                if is_wanted && !pins.pages.contains(&page) {
                    pins.pages.push(page);
                }
            }
        }
        for &id in &pins.pages {
            if !state.pages.contains_key(&id) {
                state.evict();
                let mut bytes = state.buf();
                state.submit(members, id, OpKind::Read, &mut bytes);
                state.pages.insert(id, Held::new(bytes));
            }
            let held = state.pages.get_mut(&id).expect("it is there now");
            held.pins += 1;
            held.is_used = true;
            if held.is_at == Stage::Reading {
                held.present.push(members.tasks.current());
                members.operations.expect_one();
            }
        }
        pins
    }

    /// Notes what a block holds now, whose page the task keeps in memory.
    pub(super) fn set(&self, member: MemberIndex, block: BlockNumber, sum: Sum) {
        let state = &mut *self.0.borrow_mut();
        let (number, index) = block.place();
        let id = PageId { member, number };
        let held = state.pages.get_mut(&id).expect("the page of what is written is in memory");
        held.page.set(index, sum);
        if !std::mem::replace(&mut held.is_dirty, true) && held.is_at == Stage::Idle {
            state.dirty.push_back(id);
        }
    }

    /// Has the running task's call wait for a write of a page that it keeps, which begins from now on.
    pub(super) fn await_write(&self, members: &Members, id: PageId) {
        let mut state = self.0.borrow_mut();
        let held = state.pages.get_mut(&id).expect("a page that is needed is kept");
        held.next.push(members.tasks.current());
        members.operations.expect_one();
    }

    /// Writes the pages that changed and are not being written. True: some were of members that are gone.
    pub(super) fn write_dirty(&self, members: &Members) -> bool {
        let mut has_dropped = false;
        let state = &mut *self.0.borrow_mut();
        let missing = members.missing();
        while let Some(id) = state.dirty.pop_front() {
            let mut bytes = state.buf();
            let tag = state.table(id.member).tag;
            let held = state.pages.get_mut(&id).expect("a page that changed is kept");
            held.is_dirty = false;
            if missing.contains(id.member) {
                held.next.drain(..).for_each(|task| members.operations.end_one(task, |_| ()));
                state.spare.push(bytes);
                has_dropped = true;
                continue;
            }
            held.page.encode(&tag, id.number, bytes.as_mut());
            held.is_at = Stage::Writing;
            assert!(held.present.is_empty(), "one operation on a page at a time");
            std::mem::swap(&mut held.present, &mut held.next);
            state.submit(members, id, OpKind::Write, &mut bytes);
            state.pages.get_mut(&id).expect("it is still there").bytes = Some(bytes);
            state.writing += 1;
        }
        has_dropped
    }

    /// Has those go around a slow member that wait for a page of its checksums, as far as `may` says so.
    pub(super) fn go_around(&self, members: &Members, id: PageId, may: impl Fn(TaskId) -> bool) {
        let mut state = self.0.borrow_mut();
        let Some(held) = state.pages.get_mut(&id) else { return };
        held.present.retain(|&task| {
            let goes_around = may(task);
            if goes_around {
                members.operations.end_one(task, |call| call.is_replanned = true);
            }
            !goes_around
        });
    }

    /// Takes in the end of an operation on a page.
    pub(super) fn ended(&self, members: &Members, member: MemberIndex, number: u32, is_failed: bool) {
        let state = &mut *self.0.borrow_mut();
        let is_seat = members.is_seat(member);
        let id = PageId { member, number: PageNumber(number) };
        let tag = state.table(member).tag;
        let held = state.pages.get_mut(&id).expect("a page under way is kept");
        let bytes = held.bytes.take().expect("an operation has memory");
        let was = std::mem::replace(&mut held.is_at, Stage::Idle);
        if was == Stage::Reading {
            let (page, damaged) =
                if is_failed { (Page::lost(), 1) } else { Page::decode(&tag, id.number, bytes.as_ref()) };
            if damaged > 0 && !is_seat && !members.missing().contains(member) {
                members.counters.borrow_mut().mismatch(member);
                tracing::error!(%member, page = number, damaged, "checksums are damaged: reads of these blocks compute \
                    them from the other members");
            }
            held.page = page;
        } else {
            state.writing -= 1;
            if is_seat {
                // What it lacks then nobody relies on.
            } else if is_failed {
                held.pins += u32::from(state.refused.insert(id));
            } else {
                held.pins -= u32::from(state.refused.remove(&id));
                members.note_written(member);
            }
            if held.is_dirty {
                state.dirty.push_back(id);
            }
        }
        let is_lost = was == Stage::Writing && is_failed && !is_seat;
        for task in held.present.drain(..) {
            members.operations.end_one(task, |call| {
                if is_lost {
                    call.failed = call.failed.with(member);
                }
            });
        }
        // An operation that was given up keeps its memory.
        if !bytes.is_lent() {
            state.spare.push(bytes);
        }
    }
}

impl Pins<'_> {
    /// The pages.
    pub(super) fn pages(&self) -> &[PageId] {
        &self.pages
    }
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        let Some(sums) = self.sums else { return };
        let state = &mut *sums.0.borrow_mut();
        for page in &self.pages {
            state.pages.get_mut(page).expect("a page that is needed is kept").pins -= 1;
        }
    }
}

impl State {
    fn table(&self, member: MemberIndex) -> &Table {
        self.tables[member.index()].as_ref().expect("a member that is used is present")
    }

    /// Whether a page is in memory.
    fn has(&self, id: PageId) -> bool {
        self.pages.get(&id).is_some_and(|held| held.is_at != Stage::Reading)
    }

    fn known(&self, member: MemberIndex, block: BlockNumber) -> Sum {
        let (number, index) = block.place();
        let held = self.pages.get(&PageId { member, number }).expect("the page of what is read is in memory");
        assert_ne!(held.is_at, Stage::Reading, "a page is there before what it says of is read");
        held.page.sum(index)
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
            let is_needed = held.pins > 0 || held.is_dirty || held.is_at != Stage::Idle;
            if !is_needed && !std::mem::take(&mut held.is_used) {
                self.pages.remove(&id);
            }
        }
    }

    /// Submits an operation on a page.
    fn submit(&self, members: &Members, id: PageId, kind: OpKind, bytes: &mut Buf) {
        let lease =
            if kind == OpKind::Read { bytes.lease_write(0..PAGE_BYTES) } else { bytes.lease_read(0..PAGE_BYTES) };
        let offset = Bytes(self.table(id.member).offset.0 + u64::from(id.number.0) * PAGE_BYTES as u64);
        let segments = smallvec::smallvec![lease];
        members.operations.submit(Caller::Page(id.number.0), id.member, kind, offset, segments);
    }
}

impl Held {
    fn new(bytes: Buf) -> Self {
        Self {
            page: Page::unknown(),
            is_at: Stage::Reading,
            bytes: Some(bytes),
            pins: 0,
            is_used: true,
            is_dirty: false,
            present: Vec::new(),
            next: Vec::new(),
        }
    }
}

/// The block with a sector of a member's data area.
pub(super) fn block_at(sector: DiskSector) -> BlockNumber {
    BlockNumber(sector.0 / BLOCK.0)
}
