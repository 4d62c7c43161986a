//! The engine: commands in, disk operations out, completions in, replies out.
//!
//! A state machine on one thread. It owns the members' [`Disk`] and drives every command through its stages: locks, the
//! dirty mark, a plan, reads, XORs, writes, the record of failures, a flush. It knows no clock, socket, thread or file,
//! so that simulated members can run it step by step.
//!
//! Invariants:
//! - What changes parity holds the [`locks::Guard`] of its stripes.
//! - No member is written before all of them are durably marked dirty, but what nobody relies on yet of one that is
//!   being rebuilt.
//! - Where there is a log, nothing is written in place before the log durably has it.
//! - Where there is a write-intent bitmap, nothing is written before all members durably have the bits of what is.
//! - No write is acknowledged before every member that missed it is durably recorded as failed on the others.
//! - Memory that a disk operation was given is touched by nobody until the operation completes.
//! - At steady state a command allocates nothing.

mod ahead;
mod counters;
mod deadline;
mod destage;
mod error;
mod errors;
mod flush;
mod heal;
mod inspect;
mod intent;
mod job;
mod join;
mod locks;
mod log;
mod rate;
mod rebuild;
mod record;
mod replace;
mod run;
mod scrub;
mod shares;
mod sums;
mod sweep;
mod transfer;
mod troubles;

use std::collections::VecDeque;
use std::rc::Rc;

use uraid_layout::plan::{Planner, Queue};
use uraid_layout::repair::Repair;
use uraid_layout::{Bytes, DiskSector, Geometry, Lba, MemberIndex, MemberSet, Sectors};

pub use counters::{Counters, MemberCounters, ScrubCounters};
pub use deadline::Deadlines;
pub use error::EngineError;
pub(crate) use error::named;
pub use inspect::{Fill, survives};
pub use join::Joining;
pub use rebuild::Progress;
pub use record::Record;
pub use replace::Replacement;
pub use scrub::{Blame, Mismatch, ScrubStatus};
pub use sweep::Stuck;
pub use troubles::Troubles;

pub use crate::format::superblock::ScrubMode;

use crate::array::Overlay;
use crate::buf::{Buf, Lease, Pool};
use crate::cache::{Cache, Mark};
use crate::disk::{Completion, Deadline, Disk};
use crate::format::superblock::Consistency;
use ahead::ReadAhead;
use deadline::Patience;
use errors::Errors;
use flush::Flusher;
use heal::Heals;
use intent::Intent;
use job::{Job, JobId, Jobs, Work};
use join::{Barrier, Change};
use locks::LockTable;
use log::Log;
use rebuild::Rebuild;
use replace::Replacing;
use scrub::Scrubber;
use shares::Shares;
use sums::Sums;
use troubles::Troubled;

/// Buckets of the lock table: more than the stripes that a full queue of small writes holds.
const LOCK_BUCKETS: usize = 1024;

/// Working memory for all jobs. One job may exceed it when no other has any, so every job can be done.
const SCRATCH_BUDGET: Bytes = Bytes(16 << 20);

/// The part of a command that is planned at once.
const PART: Sectors = Sectors((32 << 20) / 512);

/// What the cache is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// A write is replied to when it is in memory; a flush makes it durable.
    WriteBack,
    /// A write is replied to when the members have it. What is in memory saves later writes their reads.
    WriteThrough,
}

/// What a client asks for.
#[derive(Debug)]
pub enum Command {
    /// Fill the buffer from `lba` on.
    Read {
        /// The first sector.
        lba: Lba,
        /// Where to; its length is the request's.
        buf: Buf,
    },
    /// Write the buffer at `lba`.
    Write {
        /// The first sector.
        lba: Lba,
        /// What; its length is the request's.
        buf: Buf,
        /// Reply when it is durable.
        fua: bool,
    },
    /// Write zeros.
    WriteZeroes {
        /// The first sector.
        lba: Lba,
        /// How many.
        len: Sectors,
        /// Reply when it is durable.
        fua: bool,
        /// Whether the members' space may be given back.
        may_punch: bool,
    },
    /// Give back the space of the parity stripes that lie wholly within the range; they read as zeros then.
    Trim {
        /// The first sector.
        lba: Lba,
        /// How many.
        len: Sectors,
        /// Reply when it is durable.
        fua: bool,
    },
    /// Reply when everything that was replied to before is durable.
    Flush,
    /// Give a member up, as if it had failed; replied to when that is on record on the others. Refused where the level
    /// would not survive it.
    Fail {
        /// The member.
        member: MemberIndex,
    },
    /// Take in a member that the caller has put at its slot of the [`Disk`], which was missing: it is written from now
    /// on, and rebuilt. Replied to when that is on record. What comes meanwhile waits.
    Join(Box<Joining>),
    /// Copy the member in a slot to one that the caller has put at [`Engine::seat`], and which takes its place when it
    /// has everything. Replied to when that has begun; [`Engine::replacement`] says how far it is. At the end the
    /// members have changed places on the [`Disk`]: who is at the seat then can be taken out.
    Replace(Box<Joining>),
    /// Stop a scrub, flush, then mark the members clean, unless they were opened dirty and parity was not computed
    /// again since. A later write marks them dirty again.
    Close,
}

/// A command's end.
#[derive(Debug)]
pub struct Reply<T> {
    /// As given with the command.
    pub token: T,
    /// The buffer of a read comes back.
    pub result: Result<Option<Buf>, EngineError>,
}

/// Runs commands on the members behind `D`; `T` is what the caller wants back with a reply.
#[derive(Debug)]
pub struct Engine<D, T> {
    disk: Deadline<D>,
    patience: Patience,
    errors: Errors,
    troubled: Troubled,
    geometry: Geometry,
    planner: Planner,
    /// The last detour, which is often the next.
    detour: Option<Rc<Repair>>,
    /// How to do without the missing members.
    repair: Repair,
    /// How to do without those that are being rebuilt, too.
    repair_lost: Option<Repair>,
    rebuild: Rebuild,
    /// A member is being copied to another one.
    replacing: Option<Box<Replacing>>,
    /// The last slot in which one has taken a member's place, and how many have.
    replaced: Option<(MemberIndex, u32)>,
    /// Who is there changes.
    barrier: Option<Barrier<T>>,
    record: Record,
    /// Where writes may be under way, in an array with a write-intent bitmap.
    intent: Option<Intent>,
    jobs: Jobs<T>,
    locks: LockTable,
    shares: Shares,
    flusher: Flusher,
    heals: Heals,
    scrubber: Scrubber,
    log: Option<Log>,
    sums: Option<Sums>,
    /// What is in the log and not in place.
    overlay: Overlay,
    pool: Pool,
    cache: Option<Cache>,
    ahead: Option<ReadAhead>,
    writes_back: bool,
    /// Destaging jobs under way.
    destaging: usize,
    /// What destaging may still begin in this turn.
    quantum: Sectors,
    /// What was replied to from the log and is not in place yet; at least [`log::PLACING_MIN`] is counted for each
    /// command.
    placing: Bytes,
    /// Closes that wait until it is.
    closers: Vec<JobId>,
    /// Flushes that wait until what was replied to is written out.
    drainers: Vec<(JobId, Mark)>,
    /// How busy each member is, and one that is to take another's place.
    queues: Vec<Queue>,
    /// A stretch of zeros to write from.
    zeroes: Buf,
    /// Members whose file system or device has no operation for zeroing.
    cannot_zero: MemberSet,
    /// More members failed than the level survives: nothing is answered from now on.
    is_frozen: bool,
    is_read_only: bool,
    /// The members were found dirty, and redundancy is left in which that may show: they are not marked clean.
    is_suspect: bool,
    /// Jobs that wait for working memory, first come first served.
    starved: VecDeque<JobId>,
    ready: VecDeque<JobId>,
    replies: Vec<Reply<T>>,
    completions: Vec<Completion>,
    /// Lists of segments to be used again.
    spare: Vec<Vec<Lease>>,
    counters: Counters,
}

impl<D: Disk, T> Engine<D, T> {
    /// An engine for the members that `record` describes, at least as many of them present as the level needs. One that
    /// is read-only gives what can be had where fewer are.
    ///
    /// # Errors
    /// [`EngineError::TooManyMissing`]; [`EngineError::LogTooSmall`].
    pub fn new(disk: D, geometry: Geometry, record: Record, is_read_only: bool) -> Result<Self, EngineError> {
        let without = |missing| match Repair::new(&geometry, missing) {
            Err(_) if is_read_only => Ok(Repair::partial(&geometry, missing)),
            repair => repair.map_err(|source| EngineError::TooManyMissing { missing, source }),
        };
        let repair = without(record.missing())?;
        let is_partial = Repair::new(&geometry, record.missing()).is_err();
        let is_whole = record.rebuilding().is_empty();
        let repair_lost = (!is_whole).then(|| without(record.lost())).transpose()?;
        let mut rebuild = Rebuild::default();
        rebuild.restart(&record, None);
        let sums = Sums::new(record.superblocks());
        let has_log = record.consistency() == Consistency::Log && !is_read_only;
        let log = has_log.then(|| Log::new(record.superblocks(), &geometry)).transpose()?;
        Ok(Self {
            disk: Deadline::new(disk, geometry.members()),
            patience: Patience::default(),
            errors: Errors::new(geometry.members()),
            troubled: Troubled::new(is_partial),
            detour: None,
            planner: Planner::new(),
            repair,
            repair_lost,
            rebuild,
            replacing: None,
            replaced: None,
            barrier: None,
            intent: Intent::of(&geometry, &record),
            jobs: Jobs::new(),
            locks: LockTable::new(LOCK_BUCKETS),
            shares: Shares::default(),
            flusher: Flusher::default(),
            heals: Heals::default(),
            scrubber: Scrubber::default(),
            log,
            sums,
            overlay: Overlay::default(),
            pool: Pool::new(SCRATCH_BUDGET),
            cache: None,
            ahead: None,
            writes_back: false,
            destaging: 0,
            quantum: Sectors(0),
            placing: Bytes(0),
            closers: Vec::new(),
            drainers: Vec::new(),
            queues: vec![Queue { depth: 0, head: DiskSector(0) }; geometry.members() + 1],
            zeroes: Buf::zeroed(run::ZEROES_BYTES),
            cannot_zero: MemberSet::EMPTY,
            is_frozen: false,
            is_read_only,
            is_suspect: !record.is_clean() && record.lost().len() < geometry.tolerance(),
            starved: VecDeque::new(),
            ready: VecDeque::new(),
            replies: Vec::new(),
            completions: Vec::new(),
            spare: Vec::new(),
            counters: Counters::new(geometry.members()),
            geometry,
            record,
        })
    }

    /// The engine with a cache of up to `size`, which takes in the memory of writes; their buffers should be of `pool`.
    ///
    /// # Panics
    /// When commands were submitted already.
    #[must_use]
    pub fn with_cache(mut self, mode: CacheMode, pool: Pool, size: Bytes) -> Self {
        assert_eq!(self.in_flight(), 0, "a cache is there from the start");
        let mut cache = Cache::new(&self.geometry, pool, size);
        if let Some(log) = &self.log {
            cache.limit_runs(log.stripes_max());
        }
        self.cache = Some(cache);
        self.writes_back = mode == CacheMode::WriteBack;
        self
    }

    /// The engine of an array that is only read, with what its log has over what its members hold.
    #[must_use]
    pub(crate) fn with_overlay(mut self, overlay: Overlay) -> Self {
        self.overlay = overlay;
        self
    }

    /// The array's geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The members that are not there.
    pub fn missing(&self) -> MemberSet {
        self.record.missing()
    }

    /// What was done so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The members, for waiting on them.
    pub fn disk(&self) -> &D {
        self.disk.inner()
    }

    /// The members, for what only their kind knows.
    pub fn disk_mut(&mut self) -> &mut D {
        self.disk.inner_mut()
    }

    /// Whether every member can zero a range without being sent zeros, as far as is known.
    pub fn can_zero(&self) -> bool {
        self.cannot_zero.is_empty()
    }

    /// Notes that parity has been brought into agreement since the members were opened: closing them may mark them
    /// clean.
    pub fn trust_parity(&mut self) {
        self.is_suspect = false;
    }

    /// Whether replies wait for the next turn.
    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Takes the engine apart when it has nothing left to do.
    ///
    /// # Panics
    /// When commands are in flight.
    pub fn into_parts(self) -> (D, Geometry, Record) {
        assert_eq!(self.in_flight(), 0, "an engine that is taken apart is idle");
        (self.disk.into_inner(), self.geometry, self.record)
    }

    /// Commands that have no reply yet, and destaging, read-ahead, healing and parts of a scrub under way.
    pub fn in_flight(&self) -> usize {
        self.jobs.len() + self.barrier.as_ref().map_or(0, Barrier::len)
    }

    /// Starts a command; its reply comes from this or a later [`Engine::turn`]. Disk operations are queued, and go out
    /// with the next turn.
    pub fn submit(&mut self, token: T, command: Command) {
        let Some((token, command)) = self.hold_back(token, command) else { return };
        if !matches!(command, Command::Close) {
            self.rebuild.note_activity();
        }
        match self.admit(&command) {
            Ok(Some((Work::Join { .. }, ..))) => match command {
                Command::Join(joining) => self.begin_change(Some(token), Change::Join(*joining)),
                Command::Replace(joining) => self.begin_change(Some(token), Change::Replace(*joining)),
                _ => unreachable!("no other command changes who is there"),
            },
            Ok(Some((work, lba, len))) => {
                let buf = match command {
                    Command::Read { buf, .. } | Command::Write { buf, .. } => Some(buf),
                    _ => None,
                };
                self.scrubber.note_activity();
                if work == Work::Close {
                    self.stop_scrub();
                }
                if let Some(cache) = &mut self.cache {
                    cache.note_activity();
                }
                let through = match &buf {
                    Some(buf) if work == (Work::Write { fua: false }) => self.write_back(lba, len, buf),
                    _ => lba..Lba(lba.0 + len.0),
                };
                if through.start == through.end && work.is_write() {
                    self.replies.push(Reply { token, result: Ok(None) });
                } else {
                    self.start(Job { buf, start: lba, ..Job::new(Some(token), work, through) });
                    if work == Work::Read {
                        self.read_ahead(lba, len);
                    }
                }
            }
            Ok(None) => self.replies.push(Reply { token, result: Ok(None) }),
            Err(error) => self.replies.push(Reply { token, result: Err(error) }),
        }
    }

    /// Sends what is queued to the members, takes in what they completed, goes on with the commands that waited for it,
    /// and appends the replies. Returns when the members have nothing more to say for now.
    ///
    /// # Errors
    /// [`EngineError::Device`] when the members can't be reached at all: the ring is broken.
    pub fn turn(&mut self, replies: &mut Vec<Reply<T>>) -> Result<(), EngineError> {
        self.quantum = destage::QUANTUM;
        self.scrubber.turn();
        self.rebuild.begin_turn();
        loop {
            self.run_ready();
            self.destage();
            self.heal();
            self.scrub_on();
            self.rebuild();
            self.commit();
            self.write_pages();
            self.disk.kick().map_err(EngineError::Device)?;
            let mut completions = std::mem::take(&mut self.completions);
            self.disk.reap(&mut completions);
            let is_idle = completions.is_empty();
            for completion in completions.drain(..) {
                self.completed(completion);
            }
            self.completions = completions;
            self.note_slow();
            if is_idle && self.ready.is_empty() {
                replies.append(&mut self.replies);
                return Ok(());
            }
        }
    }

    /// Checks a command. None: there is nothing to do.
    fn admit(&self, command: &Command) -> Result<Option<(Work, Lba, Sectors)>, EngineError> {
        let sectors = |buf: &Buf| Bytes(buf.len() as u64).whole_sectors();
        let (work, lba, len) = match *command {
            Command::Read { lba, ref buf } => (Work::Read, lba, sectors(buf)),
            Command::Write { lba, ref buf, fua } => (Work::Write { fua }, lba, sectors(buf)),
            Command::WriteZeroes { lba, len, fua, may_punch } => (Work::Zero { fua, may_punch }, lba, len),
            Command::Trim { lba, len, fua } => (Work::Zero { fua, may_punch: true }, lba, len),
            Command::Flush => (Work::Flush, Lba(0), Sectors(0)),
            Command::Close => (Work::Close, Lba(0), Sectors(0)),
            Command::Fail { member } => {
                return self.check_fail(member).map(|()| Some((Work::Fail { member }, Lba(0), Sectors(0))));
            }
            Command::Join(ref joining) => {
                let member = joining.superblock.slot;
                return self.check_join(joining).map(|()| Some((Work::Join { member }, Lba(0), Sectors(0))));
            }
            Command::Replace(ref joining) => {
                let member = joining.superblock.slot;
                return self.check_replace(joining).map(|()| Some((Work::Join { member }, Lba(0), Sectors(0))));
            }
        };
        let capacity = self.geometry.capacity();
        if lba.0.checked_add(len.0).is_none_or(|end| end > capacity.0) {
            return Err(EngineError::OutOfRange { lba, len, capacity });
        }
        if let Command::Read { buf, .. } | Command::Write { buf, .. } = command
            && buf.len() as u64 != len.bytes().0
        {
            return Err(EngineError::Unaligned { len: Bytes(buf.len() as u64) });
        }
        if self.sums.is_some() && !(lba.0 | len.0).is_multiple_of(crate::format::BLOCK.0) {
            return Err(EngineError::NotBlocks { lba, len });
        }
        if self.is_frozen {
            return Err(EngineError::Frozen);
        }
        if self.is_read_only && work.is_write() {
            return Err(EngineError::ReadOnly);
        }
        if matches!(command, Command::Trim { .. }) {
            // Only whole parity stripes can be given back without computing parity.
            let stripe = self.geometry.stripe_sectors().0;
            let first = lba.0.next_multiple_of(stripe);
            let end = (lba.0 + len.0) / stripe * stripe;
            return Ok((first < end).then(|| (work, Lba(first), Sectors(end - first))));
        }
        let is_transfer = work == Work::Read || work.is_write();
        Ok((len.0 > 0 || !is_transfer).then_some((work, lba, len)))
    }
}
