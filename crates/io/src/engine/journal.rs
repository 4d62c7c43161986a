//! The journal of pages: what a flush puts dirty content into, so that it needs no parity for that. What goes there and
//! when is [`ops::journal`](super::ops::journal)'s; what the journal has of a page is the cache's.
//!
//! It is a log of its own, beside the other one in the log's area: a record is on one member more than can be lost.

use std::cell::{Cell, RefCell};

use uraid_layout::{Bytes, Lba, MemberSet};

use super::log::Log;
use super::members::Members;
use super::tasks::Waiters;
use super::writeback::WriteBack;
use crate::buf::Lease;
use crate::cache::Mark;
use crate::format::BLOCK;
use crate::format::log::record::total_bytes;
use crate::format::superblock::Superblock;

/// How many eighths of a ring flushes fill. The rest is for what has to be on other members.
pub(super) const FLUSH_SHARE: u64 = 6;

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
    /// A record is being written; and for those who wait until none is.
    pub(super) is_busy: Cell<bool>,
    pub(super) idle: Waiters,
    /// Something has come into the journal or gone out of it, or has been written by other ways.
    pub(super) changed: Waiters,
    /// How many wait until something is not live, and how many until something is in the journal or written out.
    pressing: Cell<u32>,
    awaiting: Cell<u32>,
    /// Memory for what goes into a record, to be used again.
    pub(super) content: RefCell<Vec<(Lba, Lease)>>,
    /// What is being written out since the ring became full enough for that.
    pub(super) hurried: Cell<Option<Mark>>,
    /// Whose place another member is about to take.
    pub(super) leaving: Cell<MemberSet>,
}

/// Has what is dirty be written out though members are about to change, until this is dropped.
pub(super) struct Awaiting<'a>(&'a Cell<u32>);

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
            is_busy: Cell::new(false),
            idle: Waiters::default(),
            changed: Waiters::default(),
            pressing: Cell::new(0),
            awaiting: Cell::new(0),
            content: RefCell::default(),
            hurried: Cell::default(),
            leaving: Cell::default(),
        })
    }

    /// Takes another member's part in, on which nothing relies.
    pub(super) fn replace(&self, own: &Superblock) {
        self.log.replace_part(own);
        self.leaving.set(MemberSet::EMPTY);
    }

    /// Who is to get a record of so many pages. None where that would fill a ring beyond `share` eighths.
    pub(super) fn chosen(&self, members: &Members, pages: usize, share: u64) -> Option<MemberSet> {
        // At most: what the record takes of a member.
        let size = total_bytes(pages * RUNS_MAX, Bytes(pages as u64 * BLOCK.bytes().0));
        self.log.choose(members, self.leaving.get(), self.copies, size, share)
    }

    /// Whether somebody waits until something is not live.
    pub(super) fn is_pressed(&self) -> bool {
        self.pressing.get() > 0
    }

    /// Whether something that a change of members waits for waits itself until something is written out.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_pressed() || self.awaiting.get() > 0
    }

    /// Has it awaited until what is returned is dropped.
    pub(super) fn begin_awaiting(&self) -> Awaiting<'_> {
        self.awaiting.set(self.awaiting.get() + 1);
        Awaiting(&self.awaiting)
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

impl Drop for Awaiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
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
