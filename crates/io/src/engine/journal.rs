//! The journal of pages: what a flush puts dirty content into, so that it needs no parity for that. What goes there and
//! when is [`ops::journal`](super::ops::journal)'s; what the journal has of a page is the cache's.
//!
//! It is a log of its own, beside the other one in the log's area: a record is on one member more than can be lost.

use std::cell::{Cell, RefCell};

use smallvec::SmallVec;
use uraid_layout::{Bytes, Lba, MemberSet};

use super::error::EngineError;
use super::log::{Choice, Log};
use super::members::Members;
use super::operations::Pending;
use super::tasks::{TaskId, Tasks, Waiters};
use super::writeback::WriteBack;
use crate::buf::Lease;
use crate::cache::Mark;
use crate::format::BLOCK;
use crate::format::log::record::{OPEN_MAX, total_bytes};
use crate::format::superblock::Superblock;

/// How many eighths of a ring flushes fill. The rest is for what has to be on other members.
pub(super) const FLUSH_SHARE: u64 = 6;

/// How many eighths of a ring are full when what is dirty is written out in the background: the later, the more pages
/// of a parity stripe come together, and the more flushes find the members free.
pub(super) const HURRY_SHARE: u64 = 5;

/// Pages in one record, where rings are large.
const PAGES_MAX: usize = 256;

/// Runs of sectors in a page.
const RUNS_MAX: usize = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) log: Log,
    /// How many members get a record.
    pub(super) copies: usize,
    /// The most pages of a record.
    pub(super) most: usize,
    /// Batches that are on their way into it, by the order in which they began; and the end of one.
    batches: RefCell<SmallVec<[Way; OPEN_MAX]>>,
    begun: Cell<u64>,
    pub(super) arrived: Waiters,
    /// Something has come into the journal or gone out of it, or has been written by other ways.
    pub(super) changed: Waiters,
    /// How many wait until something is not live.
    pressing: Cell<u32>,
    /// Memory for what goes into records, to be used again.
    pub(super) content: RefCell<Vec<Vec<(Lba, Lease)>>>,
    /// What is being written out since the ring became full enough for that.
    pub(super) hurried: Cell<Option<Mark>>,
    /// The next batch is to be; and somebody sees to that.
    wants_hurry: Cell<bool>,
    pub(super) is_hurrying: Cell<bool>,
    /// Whose place another member is about to take.
    pub(super) leaving: Cell<MemberSet>,
    /// Who had something under way for too long at the last tick.
    late: Cell<MemberSet>,
}

/// How long a batch may take before what it has goes into the journal again, on other members, in ticks.
const TICKS_MAX: u64 = 2;

/// A batch on its way.
#[derive(Clone, Copy, Debug)]
struct Way {
    number: u64,
    /// Who waits for it, and what the cache calls it, when it has content.
    content: Option<(TaskId, u64)>,
    /// For how many ticks it has had that.
    age: u64,
    /// Nobody waits for it any more.
    is_overtaken: bool,
}

/// A batch that is on its way into the journal, until this is dropped.
pub(super) struct Sending<'a>(&'a Journal, u64);

/// Keeps the journal from what somebody waits for to be out of it, until this is dropped.
pub(super) struct Pressing<'a>(&'a Journal, &'a WriteBack);

impl Journal {
    /// The journal of members with these superblocks. None where there is no room for it.
    pub(super) fn new<'a>(superblocks: impl Iterator<Item = Option<&'a Superblock>>, tolerance: usize) -> Option<Self> {
        let copies = if planted!(JournalAlone) { tolerance } else { tolerance + 1 };
        let log = Log::journal(superblocks)?;
        let most = usize::try_from(log.record_max().0 / BLOCK.bytes().0).unwrap_or(usize::MAX);
        let most = (most.saturating_sub(2) / 2).clamp(1, PAGES_MAX);
        Some(Self {
            log,
            copies,
            most,
            batches: RefCell::default(),
            begun: Cell::default(),
            arrived: Waiters::default(),
            changed: Waiters::default(),
            pressing: Cell::new(0),
            content: RefCell::default(),
            hurried: Cell::default(),
            wants_hurry: Cell::default(),
            is_hurrying: Cell::default(),
            leaving: Cell::default(),
            late: Cell::default(),
        })
    }

    /// Takes another member's part in, on which nothing relies.
    pub(super) fn replace(&self, own: &Superblock) {
        self.log.replace_part(own);
        self.leaving.set(MemberSet::EMPTY);
    }

    /// Begins with a batch. None: as many are on their way as may be.
    pub(super) fn begin_batch(&self) -> Option<Sending<'_>> {
        let mut batches = self.batches.borrow_mut();
        if batches.len() == OPEN_MAX {
            return None;
        }
        self.begun.set(self.begun.get() + 1);
        batches.push(Way { number: self.begun.get(), content: None, age: 0, is_overtaken: false });
        Some(Sending(self, self.begun.get()))
    }

    /// Notes that time has passed, and what is `pending`: a batch that takes too long is overtaken by others.
    pub(super) fn tick(&self, pending: &[Pending], members: &Members, writeback: &WriteBack) {
        let late = pending.iter().filter(|op| op.age >= TICKS_MAX && !op.is_abandoned && !planted!(LateChosen));
        self.late.set(late.map(|op| op.member).collect());
        for way in self.batches.borrow_mut().iter_mut().filter(|way| !way.is_overtaken) {
            let Some((task, batch)) = way.content else { continue };
            way.age += 1;
            // With log devices whoever else gets it has its log on the same ones.
            let is_due = way.age >= TICKS_MAX && !members.has_logs() && !planted!(NeverOvertaken);
            if is_due && self.log.overtake(task, way.number, members) {
                way.is_overtaken = true;
                let _ = writeback.with(|cache| cache.journal_mut().overtake(batch));
                self.changed.wake(&members.tasks);
            }
        }
        if writeback.cache().is_some_and(|cache| cache.journal().is_stalled()) {
            self.changed.wake(&members.tasks);
        }
    }

    /// Takes note of what has arrived though nobody waited for it any more.
    pub(super) fn settle_late(&self, members: &Members, writeback: &WriteBack) {
        while let Some((number, record)) = self.log.take_late() {
            let ways = &mut *self.batches.borrow_mut();
            let index = ways.iter().position(|way| way.number == number).expect("it is on its way");
            let (_, batch) = ways.remove(index).content.expect("what is overtaken has content");
            let _ = writeback.with(|cache| cache.journal_mut().journaled(batch, record));
            self.arrived.wake(&members.tasks);
        }
    }

    /// Has the next batch of what it has be written out.
    pub(super) fn want_hurry(&self) {
        self.wants_hurry.set(!self.is_hurrying.get());
    }

    /// Whether somebody is to see to that: whoever asks.
    pub(super) fn takes_up_hurry(&self) -> bool {
        let is_taken = self.wants_hurry.take();
        self.is_hurrying.set(self.is_hurrying.get() || is_taken);
        is_taken
    }

    /// Whether any batch is on its way.
    pub(super) fn is_busy(&self) -> bool {
        !self.batches.borrow().is_empty()
    }

    /// Waits until those batches have arrived that are on their way now.
    ///
    /// # Errors
    /// [`EngineError::Frozen`].
    pub(super) async fn wait_arrived(&self, members: &Members) -> Result<(), EngineError> {
        let last = self.begun.get();
        while self.batches.borrow().iter().any(|way| way.number <= last) {
            members.check_frozen()?;
            self.arrived.wait(&members.tasks).await;
        }
        Ok(())
    }

    /// Who is to get a record of so many pages. None where that would fill a ring beyond `share` eighths.
    pub(super) fn chosen(&self, members: &Members, pages: usize, share: u64) -> Option<MemberSet> {
        // At most: what the record takes of a member.
        let size = total_bytes(pages * RUNS_MAX, Bytes(pages as u64 * BLOCK.bytes().0));
        let choice = Choice { without: self.leaving.get(), late: self.late.get(), count: self.copies, size, share };
        self.log.choose(members, choice)
    }

    /// Whether somebody waits until something is not live.
    pub(super) fn is_pressed(&self) -> bool {
        self.pressing.get() > 0
    }

    /// Has the cache take in nothing of live pages where somebody waits.
    pub(super) fn press(&self, writeback: &WriteBack) {
        let _ = writeback.with(|cache| cache.journal_mut().press(self.is_pressed()));
    }

    /// Has it pressed until what is returned is dropped.
    pub(super) fn begin_pressing<'a>(&'a self, writeback: &'a WriteBack) -> Pressing<'a> {
        self.pressing.set(self.pressing.get() + 1);
        self.press(writeback);
        Pressing(self, writeback)
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.0.batches.borrow_mut().retain(|way| way.number != self.1 || way.is_overtaken);
    }
}

impl Sending<'_> {
    /// Whether others have overtaken it: its end is told by [`Journal::settle_late`].
    pub(super) fn is_overtaken(&self) -> bool {
        self.0.batches.borrow().iter().any(|way| way.number == self.1 && way.is_overtaken)
    }

    /// Notes what the cache calls it, for which the running task waits.
    pub(super) fn note(&self, batch: u64, tasks: &Tasks) {
        let mut ways = self.0.batches.borrow_mut();
        let content = Some((tasks.current(), batch));
        ways.iter_mut().filter(|way| way.number == self.1).for_each(|way| way.content = content);
    }
}

impl Drop for Pressing<'_> {
    fn drop(&mut self) {
        let Self(journal, writeback) = self;
        journal.pressing.set(journal.pressing.get() - 1);
        journal.press(writeback);
        journal.changed.wake(writeback.tasks());
    }
}
