//! What the engine is doing for one command.

use std::ops::Range;
use std::rc::Rc;

use uraid_layout::plan::{Buffer, Plan};
use uraid_layout::repair::Repair;
use uraid_layout::{Bytes, Cell, Geometry, Lba, Location, MemberIndex, MemberSet, Sectors, StripeId};

use super::EngineError;
use super::heal::Damage;
use super::locks::{Guard, Span};
use super::log::PLACING_MIN;
use super::replace::cells_of;
use super::scrub::Rest;
use super::shares::Class;
use super::sums::Pins;
use super::sweep::Stuck;
use crate::buf::Buf;
use crate::cache::{Contents, Mark};
use crate::format::BLOCK;
use crate::format::log::record::LogSequence;
use crate::format::sums::Sum;

/// A slot of the engine's job table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobId(pub(super) u32);

/// A command under way.
#[derive(Debug)]
pub(super) struct Job<T> {
    /// The caller's, given back with the reply; none where nobody waits for one.
    pub(super) token: Option<T>,
    pub(super) work: Work,
    pub(super) stage: Stage,
    /// The part of the command that is being done; what follows it up to `end` comes after.
    pub(super) at: Lba,
    pub(super) len: Sectors,
    pub(super) end: Lba,
    /// Where the command began: a part's place in the request's memory is the distance from here.
    pub(super) start: Lba,
    /// The request's memory; what a read fills, what a write brings.
    pub(super) buf: Option<Buf>,
    pub(super) scratch: Option<Buf>,
    pub(super) guard: Option<Guard>,
    /// What of its class's share the present phase has.
    pub(super) share: Option<Bytes>,
    /// Disk operations in flight.
    pub(super) pending: u32,
    /// Members that failed a read of this part, and how to do without them and the missing ones.
    pub(super) unreadable: MemberSet,
    pub(super) detour: Option<Rc<Repair>>,
    /// Members that took too long for a read of the present phase.
    pub(super) overdue: MemberSet,
    /// The members that were slow when it was planned.
    pub(super) slow: MemberSet,
    /// A page of checksums takes too long: the reads are planned without its member.
    pub(super) is_replanned: bool,
    /// What exactly they failed, to be healed when the job has done without it.
    pub(super) damage: Vec<Damage>,
    /// Blocks that were computed, and that their members are asked for.
    pub(super) asked: Vec<(Location, Buf)>,
    /// The pages of checksums that the present part needs.
    pub(super) pins: Pins,
    /// The member that is to be healed.
    pub(super) heals: Option<MemberIndex>,
    /// What a scrub goes on with when the piece that it found wrong is healed.
    pub(super) rest: Option<Rest>,
    /// What was healed was read back.
    pub(super) is_healed: bool,
    /// Members that failed an operation of the present phase.
    pub(super) failed: MemberSet,
    /// The writes have to be issued again: a member turned out to have no operation for zeroing.
    pub(super) again: bool,
    /// The log's record that has the part's update, until the update is in place.
    pub(super) record: Option<LogSequence>,
    /// Its reply was given before it was in place: the log has it.
    pub(super) is_answered: bool,
    /// Whether the job counts as a writer, before which the members can't be marked clean.
    pub(super) is_writer: bool,
    /// Whether the job holds its regions' bits in the write-intent bitmap.
    pub(super) has_intent: bool,
}

/// What a job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Read,
    Write {
        fua: bool,
    },
    Zero {
        fua: bool,
        may_punch: bool,
    },
    /// Compute what a member failed to read, and write it back.
    Heal {
        stripe: StripeId,
        cell: Cell,
        start: Sectors,
        /// The checksum of what the member gave.
        found: Option<Sum>,
    },
    /// Read every unit of a parity stripe, in the columns of each chunk from `start` on, and compare them.
    Scrub {
        stripe: StripeId,
        start: Sectors,
    },
    /// Compute what members lack of a parity stripe; the job's range are the columns.
    Rebuild {
        stripe: StripeId,
    },
    /// Copy what a member has of a parity stripe to the one that is to take its place; the job's range are the columns.
    Copy {
        stripe: StripeId,
        member: MemberIndex,
    },
    /// Put on record how far members are rebuilt.
    SaveRebuild,
    /// Give a member up.
    Fail {
        member: MemberIndex,
    },
    /// Take a member in, or put one in another one's place.
    Join {
        member: MemberIndex,
    },
    /// Read what a stream of reads will want next into the cache.
    Ahead,
    /// Write out what is dirty of the job's parity stripes.
    Destage,
    /// Make durable what was written, for the bits that are cleared then.
    Sync,
    Flush,
    Close,
}

/// What a job waits for or does next.
#[derive(Debug)]
pub(super) enum Stage {
    /// Wait for what is being read ahead of a read.
    Await,
    /// Plan a read; if it has to be computed, lock first.
    PlanRead,
    /// Take the stripes.
    Lock(Span),
    /// Wait until the members are marked as being written.
    Mark,
    /// Wait until the bits of the stripes' regions are set on the members.
    Intent,
    /// Plan under the lock.
    Plan,
    /// Wait for working memory.
    Memory,
    /// Start the plan's reads.
    StartReads,
    /// Wait for the plan's reads.
    Reads,
    /// Wait for what members hold themselves of what was computed and does not agree with their checksums.
    Asked,
    /// Put the plan's writes into the log.
    Log,
    /// Wait until they are durable there.
    Committed,
    /// Start the plan's writes.
    StartWrites,
    /// Wait for the plan's writes.
    Writes,
    /// Wait until the checksums of what was written are written.
    SumsWritten,
    /// Read back what was written to heal a member.
    StartCheck,
    /// Wait for it.
    Checked,
    /// Wait until the members that missed the write are recorded as failed.
    Record,
    /// Give the stripes back, then go on with the next part or the flush.
    PartDone,
    /// Ask that everything that was replied to be written out.
    Drain,
    /// Wait until it is.
    Draining(Mark),
    /// Ask for a flush.
    Flush,
    /// Wait for the flush.
    Flushing,
    /// Wait until the members are marked clean.
    Clean,
    /// Give a member up.
    GiveUp,
    /// Wait until nothing else is under way.
    Quiesce,
    /// Take a member in.
    Join,
    /// Wait until the record says what it is to say.
    Settle,
    /// Reply.
    Done,
}

/// A place for a job; the memory of the plan and of what it takes from the cache outlives the job.
#[derive(Debug)]
pub(super) struct Slot<T> {
    pub(super) job: Option<Job<T>>,
    pub(super) plan: Plan,
    pub(super) contents: Contents,
}

/// The engine's jobs; slots are used again.
#[derive(Debug)]
pub(super) struct Jobs<T> {
    slots: Vec<Slot<T>>,
    free: Vec<JobId>,
}

impl<T> Jobs<T> {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    pub(super) fn insert(&mut self, job: Job<T>) -> JobId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { job: None, plan: Plan::default(), contents: Contents::default() });
            JobId(u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 jobs at once"))
        });
        self.slot(id).job = Some(job);
        id
    }

    /// The slot of a job.
    pub(super) fn slot(&mut self, id: JobId) -> &mut Slot<T> {
        &mut self.slots[id.0 as usize]
    }

    /// The job of a slot that has one.
    pub(super) fn job(&mut self, id: JobId) -> &mut Job<T> {
        self.slot(id).job.as_mut().expect("the slot has a job")
    }

    /// Every job.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Job<T>> {
        self.slots.iter().filter_map(|slot| slot.job.as_ref())
    }

    pub(super) fn remove(&mut self, id: JobId) -> Job<T> {
        self.free.push(id);
        self.slot(id).contents.clear();
        self.slot(id).job.take().expect("the slot has a job")
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl<T> Job<T> {
    /// A job for a range of the array, yet to be begun.
    pub(super) fn new(token: Option<T>, work: Work, range: Range<Lba>) -> Self {
        Self {
            token,
            work,
            stage: Stage::Done,
            at: range.start,
            len: Sectors(0),
            end: range.end,
            start: range.start,
            buf: None,
            scratch: None,
            guard: None,
            share: None,
            pending: 0,
            unreadable: MemberSet::EMPTY,
            detour: None,
            overdue: MemberSet::EMPTY,
            slow: MemberSet::EMPTY,
            is_replanned: false,
            damage: Vec::new(),
            asked: Vec::new(),
            pins: Pins::new(),
            heals: None,
            rest: None,
            is_healed: false,
            failed: MemberSet::EMPTY,
            again: false,
            record: None,
            is_answered: false,
            is_writer: false,
            has_intent: false,
        }
    }

    /// Where the present part begins in a buffer: its plan counts from there.
    pub(super) fn base(&self, buffer: Buffer) -> Sectors {
        Sectors(if buffer == Buffer::Request { self.at.0 - self.start.0 } else { 0 })
    }

    /// What the command counts for while it is replied to and not in place.
    pub(super) fn placing(&self) -> Bytes {
        Sectors(self.end.0 - self.start.0).bytes().max(PLACING_MIN)
    }

    /// Finds how to do without the members that failed a read of this part and without those that are lost by now, and,
    /// where that can be, without those that are `slow`, too. `base` does without those that are lost, `last` is the
    /// detour that was found last.
    pub(super) fn find_detour(
        &mut self,
        geometry: &Geometry,
        base: &Repair,
        lost: MemberSet,
        slow: MemberSet,
        last: &mut Option<Rc<Repair>>,
    ) -> Result<(), EngineError> {
        (self.detour, self.slow) = (None, slow);
        let needed = self.unreadable.union(lost);
        let wanted = needed.union(slow);
        let find = |without| match &*last {
            Some(last) if last.failed() == without => Some(Rc::clone(last)),
            _ => Repair::new(geometry, without).ok().map(Rc::new),
        };
        if wanted != lost {
            self.detour = find(wanted);
        }
        if self.detour.is_none() && needed != lost {
            self.detour = find(needed);
        }
        if self.detour.is_some() {
            last.clone_from(&self.detour);
        } else if needed != lost || !base.is_total() {
            if matches!(self.work, Work::Scrub { .. }) || self.work.is_write() && planted!(WriteNeedsAll) {
                return Err(self.unreadable_error());
            }
            // What is enough for this part is not for another's: a mirror's copy may be on a member that is there, and
            // a write may not need what can't be had. The planner finds out.
            self.detour = Some(Rc::new(Repair::partial(geometry, needed)));
        }
        Ok(())
    }

    /// Whether this part can be read though others are lost with these members.
    fn can_read_without(&self, geometry: &Geometry, without: MemberSet) -> bool {
        let detour = Repair::partial(geometry, without);
        match self.work {
            Work::Read => (self.at.0..self.at.0 + self.len.0).all(|lba| {
                let (stripe, unit, _) = geometry.split(Lba(lba));
                detour.has(geometry, stripe, geometry.map(stripe).cell(unit))
            }),
            Work::Heal { stripe, cell, .. } => detour.has(geometry, stripe, cell),
            Work::Copy { stripe, member } => {
                cells_of(geometry, stripe, member).all(|cell| detour.has(geometry, stripe, cell))
            }
            _ => false,
        }
    }

    /// Whether what one more member holds can be computed from the others.
    pub(super) fn can_do_without(&self, geometry: &Geometry, lost: MemberSet, member: MemberIndex) -> bool {
        Repair::new(geometry, self.unreadable.union(lost).with(member)).is_ok()
    }

    /// Whether a block that has lost its checksum is taken for what was written there, as nothing else says what that
    /// is. It is not as long as the block could be had if what can't be read elsewhere in the part were not in the way:
    /// the part is made smaller, or tried again as a smaller one.
    pub(super) fn has_to_believe(&self, geometry: &Geometry, lost: MemberSet, at: Location) -> bool {
        let (without, needed) = (lost.with(at.member), self.unreadable.union(lost).with(at.member));
        let gives_all = |without| Repair::new(geometry, without).is_ok();
        if gives_all(needed) || self.can_read_without(geometry, needed) {
            return false;
        }
        let gives_block = |(stripe, cell, _)| Repair::partial(geometry, without).has(geometry, stripe, cell);
        let stripe_of = |lba| geometry.split(Lba(lba)).0;
        let is_smaller_tried = match self.work {
            Work::Ahead => true,
            Work::Read | Work::Write { .. } | Work::Zero { .. } => self.shorter(geometry).is_some(),
            Work::Destage => stripe_of(self.at.0) != stripe_of(self.at.0 + self.len.0 - 1),
            _ => false,
        };
        let is_read = matches!(self.work, Work::Read | Work::Ahead);
        !(is_smaller_tried && (gives_all(without) || is_read && geometry.cell_at(at).is_some_and(gives_block)))
    }

    /// The next smaller length of a part: its first parity stripe, its first unit, its first block.
    pub(super) fn shorter(&self, geometry: &Geometry) -> Option<Sectors> {
        let sizes = [geometry.stripe_sectors(), geometry.chunk(), BLOCK];
        sizes.into_iter().map(|size| Sectors(size.0 - self.at.0 % size.0)).find(|&len| len < self.len)
    }

    /// What could not be done of a stripe that is rebuilt or copied, whose columns are the job's range.
    pub(super) fn stuck(&self, stripe: StripeId) -> Stuck {
        Stuck { stripe, start: Sectors(self.at.0), len: self.len, unreadable: self.unreadable }
    }

    /// The error of a part that can't be read.
    pub(super) fn unreadable_error(&self) -> EngineError {
        EngineError::Unreadable { lba: self.at, len: self.len, members: self.unreadable }
    }
}

impl Work {
    /// Whether it changes the members.
    pub(super) fn is_write(self) -> bool {
        matches!(
            self,
            Self::Write { .. }
                | Self::Zero { .. }
                | Self::Heal { .. }
                | Self::Rebuild { .. }
                | Self::Copy { .. }
                | Self::Destage
        )
    }

    /// Whether it reads or writes parity stripes, or relies on who is there to do so.
    pub(super) fn uses_stripes(self) -> bool {
        let waits = matches!(self, Self::Flush | Self::Close | Self::Sync);
        !waits && !matches!(self, Self::Fail { .. } | Self::Join { .. })
    }

    /// Whose share of the members its operations count to.
    pub(super) fn class(self) -> Class {
        match self {
            Self::Read | Self::Ahead => Class::Read,
            Self::Destage | Self::Heal { .. } => Class::Background,
            Self::Scrub { .. } => Class::Scrub,
            Self::Rebuild { .. } | Self::Copy { .. } => Class::Rebuild,
            _ => Class::Write,
        }
    }

    /// Whether its reply waits for a flush.
    pub(super) fn flushes(self) -> bool {
        if planted!(FuaAsPlain) && self.is_write() {
            return false;
        }
        matches!(
            self,
            Self::Write { fua: true } | Self::Zero { fua: true, .. } | Self::Sync | Self::Flush | Self::Close
        )
    }
}
