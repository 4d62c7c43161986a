//! The engine's parts, together: what operations are written in terms of.
//!
//! Each part owns its state and knows no operation; none is borrowed while a task waits. An operation takes what it
//! needs of them as guards, which give it back when they are dropped.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use uraid_layout::plan::Planner;
use uraid_layout::{Bytes, DiskSector, Geometry, Lba, MemberIndex, Sectors, StripeId};

use super::badblocks::BadLists;
use super::between::Side;
use super::blank::Blanks;
use super::counters::Fill;
use super::damage::Heals;
use super::error::EngineError;
use super::flusher::Flusher;
use super::intent::Intent;
use super::journal::Journal;
use super::leniency::Leniency;
use super::locks::Locks;
use super::log::Log;
use super::members::Members;
use super::memory::{Memory, ZEROES_BYTES};
use super::operations::Caller;
use super::record::Record;
use super::replies::Replies;
use super::shares::Shares;
use super::sums::Sums;
use super::sweeper::Sweeps;
use super::tasks::{Tasks, Waiters};
use super::writeback::WriteBack;
use super::zeros::Zeros;
use crate::array::Overlay;
use crate::buf::Buf;
use crate::disk::DiskError;
use crate::format::superblock::Consistency;

/// Buckets of the lock table: more than the stripes that a full queue of small writes holds.
const LOCK_BUCKETS: usize = 1024;

/// Working memory for all plans.
const SCRATCH_BUDGET: Bytes = Bytes(16 << 20);

/// See the module.
#[derive(Debug)]
pub(super) struct Parts {
    /// Whose stripes, locks, cache and sweeps these are; the rest is shared by both sides.
    pub(super) side: Side,
    pub(super) members: Rc<Members>,
    pub(super) locks: Locks,
    pub(super) shares: Rc<Shares>,
    pub(super) means: Means,
    pub(super) flusher: Rc<Flusher>,
    pub(super) intent: Intent,
    pub(super) log: Option<Rc<Log>>,
    /// Where a flush puts what is dirty.
    pub(super) journal: Option<Journal>,
    /// What is in the log and not in place, of an array that is only read.
    pub(super) overlay: RefCell<Overlay>,
    pub(super) sums: Option<Rc<Sums>>,
    pub(super) bad: Rc<BadLists>,
    pub(super) blanks: Blanks,
    /// What else is known to read as zeros.
    pub(super) zeros: Rc<Zeros>,
    pub(super) writeback: WriteBack,
    pub(super) replies: Rc<Replies>,
    pub(super) sweeps: Sweeps,
    pub(super) repairs: Repairs,
}

/// What plans are made and carried out with.
#[derive(Debug)]
pub(super) struct Means {
    pub(super) planner: RefCell<Planner>,
    pub(super) memory: Rc<Memory>,
    /// A stretch of zeros to write from.
    pub(super) zeroes: Rc<Buf>,
}

/// What is to be made good in the background.
#[derive(Debug)]
pub(super) struct Repairs {
    /// What members failed to read.
    pub(super) heals: Heals,
    pub(super) leniency: Rc<Leniency>,
    /// It is being changed who is there, or about to be: nothing is begun meanwhile that nobody waits for.
    pub(super) is_held: Cell<bool>,
    /// Something of this has ended, or been written: for those who wait until all has.
    pub(super) changed: Rc<Waiters>,
}

impl Parts {
    /// The parts of an engine for the members that `record` describes, of the first of the shapes that the array has.
    ///
    /// # Errors
    /// [`EngineError::TooManyMissing`]; [`EngineError::LogTooSmall`].
    pub(super) fn new(
        tasks: &Rc<Tasks>,
        geometry: Geometry,
        record: Record,
        is_read_only: bool,
    ) -> Result<Self, EngineError> {
        let members = Members::new(Rc::clone(tasks), geometry, record, is_read_only)?;
        let (record, count) = (members.record(), members.count());
        let has_log = record.consistency() == Consistency::Log && !is_read_only;
        let log = has_log.then(|| Log::new(record.superblocks(), members.geometries())).transpose()?;
        let tolerance = members.geometry(Side::Below).tolerance();
        let journal = log.as_ref().and_then(|_| Journal::new(record.superblocks(), tolerance));
        Ok(Self {
            side: Side::Below,
            locks: Locks::new(Rc::clone(tasks), LOCK_BUCKETS),
            shares: Rc::new(Shares::new(Rc::clone(tasks))),
            means: Means {
                planner: RefCell::new(Planner::new()),
                memory: Rc::new(Memory::new(Rc::clone(tasks), SCRATCH_BUDGET)),
                zeroes: Rc::new(Buf::zeroed(ZEROES_BYTES)),
            },
            flusher: Rc::new(Flusher::new(Rc::clone(tasks), count)),
            intent: Intent::of(members.geometry(Side::Below), &record),
            log: log.map(Rc::new),
            journal,
            overlay: RefCell::default(),
            sums: Sums::new(record.superblocks()).map(Rc::new),
            bad: Rc::new(BadLists::new(record.superblocks())),
            blanks: Blanks::default(),
            zeros: Rc::new(Zeros::new(members.capacity())),
            writeback: WriteBack::new(Rc::clone(tasks)),
            replies: Rc::new(Replies::new(Rc::clone(tasks))),
            sweeps: Sweeps::new(),
            repairs: Repairs {
                heals: Heals::default(),
                leniency: Rc::new(Leniency::new(count)),
                is_held: Cell::new(false),
                changed: Rc::default(),
            },
            members: {
                drop(record);
                Rc::new(members)
            },
        })
    }

    /// What is read and written as a whole.
    pub(super) fn unit(&self) -> Sectors {
        self.members.record().any().unit()
    }

    /// The sectors that have some of these bytes, in whole units; none of no bytes.
    pub(super) fn cover(&self, at: Bytes, len: Bytes) -> Range<Lba> {
        let (unit, sectors) = (self.unit().bytes().0, self.unit().0);
        let first = at.0 / unit;
        let last = if len.0 == 0 { first } else { at.0.saturating_add(len.0).div_ceil(unit) };
        Lba(first * sectors)..Lba(last * sectors)
    }

    /// One member's log, the journal of pages with it.
    pub(super) fn log_fill_of(&self, member: MemberIndex) -> Option<Fill> {
        let fill = self.log.as_ref()?.fill_of(member)?;
        let pages = self.journal.as_ref().and_then(|journal| journal.log.fill_of(member));
        Some(pages.map_or(fill, |pages| fill.plus(pages)))
    }

    /// The parts of the other shape that the array has, beside these; none where it has one only.
    pub(super) fn above(&self) -> Option<Self> {
        self.members.between()?;
        let (tasks, record) = (Rc::clone(&self.members.tasks), self.members.record());
        let geometry = self.members.geometry(Side::Above);
        Some(Self {
            side: Side::Above,
            members: Rc::clone(&self.members),
            locks: Locks::new(Rc::clone(&tasks), LOCK_BUCKETS),
            shares: Rc::clone(&self.shares),
            means: Means {
                planner: RefCell::new(Planner::new()),
                memory: Rc::clone(&self.means.memory),
                zeroes: Rc::clone(&self.means.zeroes),
            },
            flusher: Rc::clone(&self.flusher),
            intent: Intent::of(geometry, &record),
            log: self.log.clone(),
            journal: None,
            overlay: RefCell::default(),
            sums: self.sums.clone(),
            bad: Rc::clone(&self.bad),
            blanks: Blanks::default(),
            zeros: Rc::clone(&self.zeros),
            writeback: WriteBack::new(tasks),
            replies: Rc::clone(&self.replies),
            sweeps: Sweeps::new(),
            repairs: Repairs {
                heals: Heals::default(),
                leniency: Rc::clone(&self.repairs.leniency),
                is_held: Cell::new(false),
                changed: Rc::clone(&self.repairs.changed),
            },
        })
    }

    /// The first and the last parity stripe of a range that is not empty.
    pub(super) fn stripes_of(&self, at: Lba, len: Sectors) -> (StripeId, StripeId) {
        let geometry = self.geometry();
        let (first, _, offset) = geometry.split(at);
        // Most are within a chunk.
        let is_within = offset.0 + len.0 <= geometry.chunk().0;
        (first, if is_within { first } else { geometry.split(Lba(at.0 + len.0 - 1)).0 })
    }

    /// The addresses whose content parity stripes have.
    pub(super) fn content_of(&self, stripes: Range<u64>) -> Range<Lba> {
        let size = self.geometry().stripe_sectors().0;
        Lba(stripes.start.saturating_mul(size))..Lba(stripes.end.saturating_mul(size))
    }

    /// Tells whoever submitted an operation how it has ended.
    pub(super) fn note_ended(&self, caller: Caller, member: MemberIndex, result: &Result<(), DiskError>) {
        let members = &self.members;
        members.note_result(member, result);
        match caller {
            Caller::Task(task) => {
                if members.operations.call_ended(task, member, result, members.count()) {
                    members.note_written(member);
                }
            }
            Caller::Flusher => self.flusher.ended(members, member, result.is_err()),
            Caller::Page(number) => {
                let sums = self.sums.as_ref().expect("pages are of checksums");
                sums.ended(members, member, number, result.is_err());
                self.wake_repairs();
            }
        }
    }

    pub(super) fn geometry(&self) -> &Geometry {
        self.members.geometry(self.side)
    }

    pub(super) fn tasks(&self) -> &Tasks {
        &self.members.tasks
    }

    /// Whether content that is durable in the log counts as durable: see [`Log::counts`].
    pub(super) fn counts_logged(&self) -> bool {
        self.log.is_some() && Log::counts(&self.members)
    }

    /// Takes note of an error of a member that was corrected.
    pub(super) fn note_corrected(&self, member: MemberIndex) {
        self.repairs.leniency.note_corrected(&self.members, member);
    }

    /// Has what could not be read for a sweep tried again at once, when somebody is about to write a piece
    /// of a member, and holds its stripe's lock: what is tried again comes after it.
    pub(super) fn note_mended(&self, member: MemberIndex, sectors: &Range<DiskSector>) {
        for mut sweep in self.sweeps.each() {
            if sweep.stuck().is_some() {
                sweep.mend(|stuck| stuck.is_in(self.geometry(), member, sectors));
            }
        }
    }

    /// Makes the lists of bad blocks durable; who can't take theirs is given up.
    ///
    /// # Errors
    /// [`EngineError::WriteFailed`] without redundancy; [`EngineError::Frozen`].
    pub(super) async fn keep_lists(&self) -> Result<(), EngineError> {
        if self.members.is_read_only() {
            return Ok(());
        }
        let failed = self.bad.keep(&self.members).await;
        self.members.fail(failed)
    }

    /// Waits until something that is made good in the background has ended.
    pub(super) async fn wait_repairs(&self) {
        self.repairs.changed.wait(self.tasks()).await;
    }

    /// Lets those look again who wait for that.
    pub(super) fn wake_repairs(&self) {
        self.repairs.changed.wake(self.tasks());
    }
}
