//! Scrubbing: what the members hold is read and compared, while clients go on.
//!
//! A job of its own locks a part of a parity stripe, reads each of its units once and computes every group's XOR. Under
//! the lock the members hold what they are to hold together, whatever is dirty in memory, and nothing is in the log
//! that is not in place. [`verdict`](uraid_layout::verdict) says which unit is wrong, where that can be told; a block
//! that is not what its checksum is of, or that can't be read, is wrong whatever parity says.
//!
//! To repair, the job becomes one that heals, with the lock that it has: between the judgement and the write nobody
//! changes the stripe. Then the part is read again, for what else is wrong with it. So pieces are repaired one at a
//! time, in order, and each is tried once.
//!
//! Invariants:
//! - [`ScrubMode::Check`] writes no content.
//! - What is not certain is not written, unless [`ScrubMode::RepairSuspects`] says so.
//! - Everything before [`ScrubStatus::position`] was compared, or lies before the start.
//!
//! Where a scrub is and when one was finished is on record as far as the caller says so ([`Engine::keep_scrub`]): it
//! has the clock.
//!
//! It knows no time: [`Engine::tick`] says when clients have been away for a while, and hands out what the limit
//! allows.

use std::fmt;
use std::ops::Range;

use smallvec::SmallVec;
use uraid_layout::plan::Difference;
use uraid_layout::stripe::Role;
use uraid_layout::verdict::{Verdict, copied_unit, is_zero, judge};
use uraid_layout::{Bytes, Cell, DiskSector, Geometry, GroupId, Lba, Location, MemberSet, Owner, Sectors, StripeId};

use super::heal::Damage;
use super::job::{Job, JobId, Slot, Stage, Work};
use super::rate::Rate;
use super::run::Step;
use super::{Engine, EngineError};
use crate::disk::Disk;
use crate::format::BLOCK;
use crate::format::sums::Sum;
use crate::format::superblock::{ScrubFound, ScrubHistory, ScrubMode, ScrubRun};

/// Parts under way when clients have been away for [`QUIET_TICKS`].
const PARTS_MAX: usize = 8;

/// Parts under way else.
const PARTS_BESIDE_CLIENTS: usize = 1;

/// After so many ticks without a command the members are the scrub's.
const QUIET_TICKS: u32 = 3;

/// What one part reads, unless a block of each unit is more.
const PART_BYTES: Bytes = Bytes(1 << 20);

/// What the parts under way read together, unless one is more: a part holds its working memory while it waits for the
/// members.
const BYTES_MAX: Bytes = Bytes(4 << 20);

/// Mismatches that are listed.
const MISMATCHES_MAX: usize = 1024;

/// Who is to blame for a mismatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// What this member holds from here on is wrong: its checksum does not match, it can't be read, most copies differ
    /// from it, or it is the only parity unit that disagrees.
    Certain(Location),
    /// This data is wrong, or it was when it was overwritten and its parity units are since.
    Suspected(Location),
    /// Some unit of this parity group, or one of two copies; it can't be told which.
    Unknown(GroupId),
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certain(Location { member, sector }) => {
                write!(f, "member {member}, from sector {sector} of its data")
            }
            Self::Suspected(Location { member, sector }) => {
                write!(f, "probably member {member}, from sector {sector} of its data")
            }
            Self::Unknown(group) => write!(f, "some member of parity group {group}"),
        }
    }
}

/// Adjacent columns of a parity stripe in which something is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The parity stripe.
    pub stripe: StripeId,
    /// The first column: the sector within each unit.
    pub start: Sectors,
    /// How many.
    pub len: Sectors,
    /// What is wrong there.
    pub blame: Blame,
    /// It was made right.
    pub is_repaired: bool,
}

/// How far a scrub is, and what it has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubStatus {
    /// What it does about it.
    pub mode: ScrubMode,
    /// Whether it goes on. After it was stopped parts may be under way for a while.
    pub is_running: bool,
    /// Parts under way.
    pub parts: usize,
    /// The first parity stripe that is not done; a later scrub can start there.
    pub position: StripeId,
    /// What of the array lies before that.
    pub done: Sectors,
    /// The array's size.
    pub total: Sectors,
    /// What was found wrong: of units, or of parity groups where the unit is not known.
    pub mismatched: Sectors,
    /// What of that was made right.
    pub repaired: Sectors,
    /// Parity that could not be checked, because members are missing or could not be read.
    pub unchecked: Sectors,
    /// What of that was because members were missing, or were being rebuilt: a scrub without any has compared
    /// everything that it could ever compare.
    pub missed: Sectors,
    /// Where it was, as found: at most 1024.
    pub mismatches: Vec<Mismatch>,
    /// How many more there were.
    pub unlisted: u64,
}

/// The engine's scrub: see the module.
#[derive(Debug, Default)]
pub(super) struct Scrubber {
    run: Option<Run>,
    /// Of each member.
    rate: Rate,
    /// Ticks since the last command.
    quiet: u32,
    /// Parts that may still begin in this turn.
    quantum: usize,
}

#[derive(Debug)]
struct Run {
    status: ScrubStatus,
    /// Where the next part begins.
    next: (StripeId, Sectors),
    /// The stripes of the parts under way.
    under_way: SmallVec<[StripeId; PARTS_MAX]>,
}

/// What is left of a part, for a job that heals a piece of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    start: Sectors,
    len: Sectors,
    /// Pieces up to this one were tried already.
    tried: Option<(Sectors, Cell)>,
    piece: Option<Finding>,
}

/// A piece that is wrong.
#[derive(Clone, Copy, Debug)]
struct Finding {
    start: Sectors,
    len: Sectors,
    fault: Fault,
    /// Whose units are not to be used to compute it from.
    without: MemberSet,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The member can't read it, or it is not what its checksum is of.
    Unread(Cell, Option<Sum>),
    Judged(Verdict),
}

impl Mismatch {
    /// The array's sectors that may read wrong for it; none where it is parity that is wrong.
    pub fn lbas<'a>(&'a self, geometry: &'a Geometry) -> impl Iterator<Item = Range<Lba>> + 'a {
        let map = geometry.map(self.stripe);
        let lba = move |cell: Cell| {
            let at = location(geometry, self.stripe, cell, self.start);
            let Some(Owner::Data(lba)) = geometry.owner(at) else { return None };
            Some(lba..Lba(lba.0 + self.len.0))
        };
        let cells: &[Cell] = match self.blame {
            Blame::Unknown(group) => &map.group(group).data,
            Blame::Certain(at) | Blame::Suspected(at) => {
                let cell = geometry.cell_at(at).expect("what is scrubbed is of the array").1;
                let unit = copied_unit(map, cell).or(match map.role(cell) {
                    Role::Data(unit) => Some(unit),
                    Role::Parity(_) => None,
                });
                unit.map_or(&[], |unit| &map.data()[usize::from(unit.0)..][..1])
            }
        };
        cells.iter().filter_map(move |&cell| lba(cell))
    }
}

impl Scrubber {
    /// Notes that a client has sent something.
    pub(super) fn note_activity(&mut self) {
        self.quiet = 0;
    }

    /// Notes that time has passed.
    pub(super) fn tick(&mut self) {
        self.quiet = self.quiet.saturating_add(1);
        self.rate.tick();
    }

    /// Whether it depends on time passing.
    pub(super) fn wants_ticks(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.status.is_running)
    }

    /// Begins a turn.
    pub(super) fn turn(&mut self) {
        self.quantum = PARTS_MAX;
    }

    /// Whether a part is left to the next turn.
    pub(super) fn wants_turn(&self, geometry: &Geometry) -> bool {
        self.quantum == 0 && self.has_room(geometry)
    }

    /// Whether parts are under way.
    pub(super) fn is_busy(&self) -> bool {
        self.run.as_ref().is_some_and(|run| !run.under_way.is_empty())
    }

    fn has_room(&self, geometry: &Geometry) -> bool {
        let Some(run) = self.run.as_ref().filter(|run| run.status.is_running) else { return false };
        let count = run.under_way.len() as u64;
        let parts = if self.quiet < QUIET_TICKS { PARTS_BESIDE_CLIENTS } else { PARTS_MAX };
        let bytes = (count + 1).saturating_mul(part_bytes(geometry).0);
        let is_within = run.under_way.len() < parts && (count == 0 || bytes <= BYTES_MAX.0);
        is_within && run.next.0.0 < geometry.stripes().0 && self.rate.allows()
    }
}

impl<D: Disk, T> Engine<D, T> {
    /// Starts a scrub of the parity stripes from `from` on. It goes on in the turns that follow.
    ///
    /// # Errors
    /// [`EngineError::Scrubbing`] while one is running or parts of the last are under way; [`EngineError::ReadOnly`]
    /// when it is to repair and nothing can be written; [`EngineError::OutOfRange`]; [`EngineError::Frozen`].
    pub fn start_scrub(&mut self, mode: ScrubMode, from: StripeId) -> Result<(), EngineError> {
        if self.scrubber.run.as_ref().is_some_and(|run| run.status.is_running || !run.under_way.is_empty()) {
            return Err(EngineError::Scrubbing);
        }
        if self.is_frozen {
            return Err(EngineError::Frozen);
        }
        if self.is_read_only && mode != ScrubMode::Check {
            return Err(EngineError::ReadOnly);
        }
        if from.0 > self.geometry.stripes().0 {
            let capacity = self.geometry.capacity();
            return Err(EngineError::OutOfRange { lba: Lba(from.0), len: Sectors(0), capacity });
        }
        let status = ScrubStatus {
            mode,
            is_running: true,
            parts: 0,
            position: from,
            done: Sectors(0),
            total: self.geometry.capacity(),
            mismatched: Sectors(0),
            repaired: Sectors(0),
            unchecked: Sectors(0),
            missed: Sectors(0),
            mismatches: Vec::new(),
            unlisted: 0,
        };
        let next = (from, Sectors(0));
        self.scrubber.run = Some(Run { status, next, under_way: SmallVec::new() });
        self.note_position();
        Ok(())
    }

    /// Goes on with a scrub that is on record.
    ///
    /// # Errors
    /// As [`Engine::start_scrub`].
    pub fn resume_scrub(&mut self, run: ScrubRun) -> Result<(), EngineError> {
        self.start_scrub(run.mode, run.position)?;
        let status = &mut self.scrubber.run.as_mut().expect("it was started").status;
        let ScrubFound { mismatched, repaired, unchecked } = run.found;
        (status.mismatched, status.repaired, status.unchecked) = (mismatched, repaired, unchecked);
        // Why is not on record.
        status.missed = unchecked;
        Ok(())
    }

    /// How scrubs are, as it is on record or about to be.
    pub fn scrub_record(&self) -> ScrubHistory {
        self.record.scrub()
    }

    /// Has the members' superblocks say how scrubs are: at once, or when they are written next. Nothing is written to
    /// an array that is read only.
    ///
    /// # Panics
    /// When a scrub's position is beyond the last parity stripe.
    pub fn keep_scrub(&mut self, record: ScrubHistory, at_once: bool) {
        let is_within = record.run.is_none_or(|run| run.position.0 <= self.geometry.stripes().0);
        assert!(is_within, "a scrub is within the array");
        if !self.is_read_only && !self.is_frozen {
            self.record.keep_scrub(record, at_once);
            self.run_record();
        }
    }

    /// Begins no more parts; those under way still end. [`ScrubStatus::position`] says where to go on.
    pub fn stop_scrub(&mut self) {
        if let Some(run) = &mut self.scrubber.run {
            run.status.is_running = false;
        }
    }

    /// How far the last scrub is; none was started: none.
    pub fn scrub(&self) -> Option<&ScrubStatus> {
        self.scrubber.run.as_ref().map(|run| &run.status)
    }

    /// Limits what scrubs read of each member, in bytes a second; none: what there is room for beside the clients.
    pub fn set_scrub_limit(&mut self, limit: Option<Bytes>) {
        self.scrubber.rate.set(limit);
    }

    /// Begins as many parts as there is room for.
    pub(super) fn scrub_on(&mut self) {
        while self.scrubber.quantum > 0 && self.barrier.is_none() && self.scrubber.has_room(&self.geometry) {
            if self.is_frozen {
                return self.stop_scrub();
            }
            let columns = part_columns(&self.geometry);
            let chunk = self.geometry.chunk();
            let run = self.scrubber.run.as_mut().expect("there is room for a part of it");
            let (stripe, start) = run.next;
            let len = Sectors((chunk.0 - start.0).min(columns.0));
            run.under_way.push(stripe);
            run.status.parts = run.under_way.len();
            run.next = (stripe, Sectors(start.0 + len.0));
            if run.next.1 == chunk {
                run.next = (StripeId(stripe.0 + 1), Sectors(0));
            }
            self.scrubber.quantum -= 1;
            self.scrubber.rate.take(Bytes(columns.bytes().0 * self.geometry.rows() as u64));
            self.start(Job::new(None, Work::Scrub { stripe, start }, Lba(0)..Lba(len.0)));
        }
    }

    /// All reads of a part are back: compares them, and goes on with what is to be repaired first.
    pub(super) fn compared(&mut self, id: JobId) -> Step {
        if !self.jobs.job(id).failed.is_empty() && self.narrow(id) {
            // Of what failed together, some need not fail alone.
            return self.plan_again(id);
        }
        if self.jobs.job(id).failed.is_empty() {
            self.verify_reads(id);
        }
        self.cover(id);
        self.compute(id);
        let (findings, missed, unread) = self.compare(id);
        let job = self.jobs.job(id);
        job.unreadable = MemberSet::EMPTY;
        let tried = job.rest.and_then(|rest| rest.tried);
        let is_next = |finding: &&Finding| self.may_repair(finding) && finding.key() > tried;
        if let Some(&finding) = findings.iter().find(is_next) {
            return self.repair(id, finding);
        }
        let Work::Scrub { stripe, .. } = self.jobs.job(id).work else { unreachable!("only a scrub compares") };
        findings.iter().for_each(|finding| self.note_mismatch(stripe, finding, false));
        if let Some(run) = &mut self.scrubber.run {
            run.status.missed.0 += missed.0;
            let unchecked = Sectors(missed.0 + unread.0);
            run.status.unchecked.0 += unchecked.0;
            self.counters.scrubs_mut().unchecked.0 += unchecked.bytes().0;
        }
        Step::To(Stage::PartDone)
    }

    /// What is wrong with a part, in order, and how much parity could not be checked: because members are missing, and
    /// because something could not be read.
    fn compare(&mut self, id: JobId) -> (Vec<Finding>, Sectors, Sectors) {
        let Self { jobs, geometry, sums, .. } = self;
        let Slot { job, plan, .. } = jobs.slot(id);
        let job = job.as_mut().expect("the slot has a job");
        let (stripe, start) = columns(job);
        let map = geometry.map(stripe);
        let unread = unread(geometry, std::mem::take(&mut job.damage));
        let used = map.groups().iter().filter(|group| geometry.uses(stripe, group.parity)).count();
        let missed = Sectors((used - plan.differences().len()) as u64 * job.len.0);
        let mut unchecked = 0;
        let content = |difference: &Difference| {
            let scratch = job.scratch.as_ref().expect("a difference has memory");
            scratch.bytes(super::transfer::range(&difference.content, Sectors(0)))
        };
        if unread.is_empty() && plan.differences().iter().all(|difference| is_zero(content(difference))) {
            return (Vec::new(), missed, Sectors(unchecked));
        }
        // Where blocks have checksums, they are written whole.
        let step = if sums.is_some() { BLOCK.0 } else { 1 };
        let mut runs: Vec<(Range<u64>, Vec<Verdict>)> = Vec::new();
        for column in (0..job.len.0).step_by(usize::try_from(step).expect("small")) {
            let is_unread = |cell: Cell| {
                let at = start.0 + column;
                unread.iter().any(|piece| piece.cell() == Some(cell) && (piece.start.0..piece.end()).contains(&at))
            };
            let mut differences: SmallVec<[Option<&[u8]>; 16]> = smallvec::smallvec![None; map.groups().len()];
            for difference in plan.differences() {
                if map.group(difference.group).cells().any(is_unread) {
                    unchecked += step;
                    continue;
                }
                let bytes = |sectors: u64| usize::try_from(Sectors(sectors).bytes().0).expect("fits");
                let part = &content(difference)[bytes(column)..][..bytes(step)];
                differences[usize::from(difference.group.0)] = Some(part);
            }
            let verdicts = judge(map, &differences);
            let at = start.0 + column;
            match runs.last_mut().filter(|(range, last)| range.end == at && *last == verdicts) {
                Some((range, _)) => range.end += step,
                None => runs.push((at..at + step, verdicts)),
            }
        }
        let mut findings = unread;
        for (range, verdicts) in &runs {
            findings.extend(verdicts.iter().map(|&verdict| Finding::of(geometry, stripe, range, verdict, verdicts)));
        }
        findings.sort_by_key(Finding::key);
        (findings, missed, Sectors(unchecked))
    }

    /// Whether the present scrub may write what a unit should hold.
    fn may_repair(&self, finding: &Finding) -> bool {
        // While parity was not computed since an unclean stop, it tells nothing.
        let is_open = !self.is_read_only && !self.is_suspect && !self.is_frozen;
        let mode = self.scrubber.run.as_ref().map_or(ScrubMode::Check, |run| run.status.mode);
        is_open
            && match finding.fault {
                Fault::Unread(..) | Fault::Judged(Verdict::Wrong(_)) => mode != ScrubMode::Check,
                Fault::Judged(Verdict::Suspect(_)) if planted!(ScrubRepairsSuspects) => mode != ScrubMode::Check,
                Fault::Judged(Verdict::Suspect(_)) => mode == ScrubMode::RepairSuspects,
                Fault::Judged(Verdict::Unknown(_)) => false,
            }
    }

    /// Makes the job one that heals a piece, with the lock that it has.
    fn repair(&mut self, id: JobId, finding: Finding) -> Step {
        let job = self.jobs.job(id);
        let (stripe, start) = columns(job);
        let cell = finding.cell().expect("what is repaired is a unit's");
        let found = if let Fault::Unread(_, found) = finding.fault { found } else { None };
        let rest = Sectors(job.end.0 - job.at.0);
        job.rest = Some(Rest { start, len: rest, tried: finding.key(), piece: Some(finding) });
        job.work = Work::Heal { stripe, cell, start: finding.start, found };
        (job.start, job.at, job.end, job.len) = (Lba(0), Lba(0), Lba(finding.len.0), finding.len);
        job.unreadable = finding.without;
        job.heals = Some(self.geometry.member(cell));
        if planted!(ScrubUnlocked)
            && let Some(guard) = job.guard.take()
        {
            self.locks.release(guard, &mut self.ready);
        }
        self.drop_scratch(id);
        self.leave_pages(id);
        Step::To(Stage::Mark)
    }

    /// Goes on with a part of which a piece was healed, or could not be.
    pub(super) fn rescrub(&mut self, stripe: StripeId, rest: Rest, is_healed: bool) {
        let piece = rest.piece.filter(|_| is_healed);
        piece.iter().for_each(|piece| self.note_mismatch(stripe, piece, true));
        let work = Work::Scrub { stripe, start: rest.start };
        self.start(Job { rest: Some(rest), ..Job::new(None, work, Lba(0)..Lba(rest.len.0)) });
    }

    /// Ends a part.
    pub(super) fn scrubbed(&mut self, id: JobId, error: Option<&EngineError>) {
        let Job { work, .. } = self.jobs.remove(id);
        let Work::Scrub { stripe, .. } = work else { unreachable!("only a scrub ends here") };
        let run = self.scrubber.run.as_mut().expect("a part is of a scrub");
        let before = run.status.done;
        let place = run.under_way.iter().position(|&other| other == stripe).expect("a part that ends was under way");
        run.under_way.swap_remove(place);
        if let Some(error) = error {
            tracing::error!(%stripe, %error, "the scrub can't go on");
            run.status.is_running = false;
            run.next = run.next.min((stripe, Sectors(0)));
        }
        self.note_position();
        let done = self.scrub().expect("the same").done;
        self.counters.scrubs_mut().compared.0 += Sectors(done.0 - before.0).bytes().0;
        self.wake_closers();
    }

    fn note_position(&mut self) {
        let Some(run) = &self.scrubber.run else { return };
        let position = run.under_way.iter().copied().fold(run.next.0, StripeId::min);
        let end = Sectors(position.0.saturating_mul(self.geometry.stripe_sectors().0));
        let done = end.min(self.geometry.capacity());
        let run = self.scrubber.run.as_mut().expect("the same");
        (run.status.position, run.status.done) = (position, done);
        run.status.parts = run.under_way.len();
        if position.0 >= self.geometry.stripes().0 {
            run.status.is_running = false;
        }
    }

    fn note_mismatch(&mut self, stripe: StripeId, finding: &Finding, is_repaired: bool) {
        let &Finding { start, len, fault, .. } = finding;
        let at = |cell| location(&self.geometry, stripe, cell, start);
        let blame = match fault {
            Fault::Unread(cell, _) | Fault::Judged(Verdict::Wrong(cell)) => Blame::Certain(at(cell)),
            Fault::Judged(Verdict::Suspect(cell)) => Blame::Suspected(at(cell)),
            Fault::Judged(Verdict::Unknown(group)) => Blame::Unknown(group),
        };
        let counters = self.counters.scrubs_mut();
        let kind = match blame {
            Blame::Certain(_) => &mut counters.certain,
            Blame::Suspected(_) => &mut counters.suspected,
            Blame::Unknown(_) => &mut counters.unknown,
        };
        kind.0 += len.bytes().0;
        counters.repaired.0 += if is_repaired { len.bytes().0 } else { 0 };
        let Some(Run { status, .. }) = &mut self.scrubber.run else { return };
        status.mismatched.0 += len.0;
        status.repaired.0 += if is_repaired { len.0 } else { 0 };
        let mismatch = Mismatch { stripe, start, len, blame, is_repaired };
        let has_room = status.mismatches.len() < MISMATCHES_MAX;
        if has_room {
            tracing::error!(%stripe, %start, %len, %blame, is_repaired, "units of a parity stripe do not agree");
        }
        match status.mismatches.last_mut().filter(|last| last.is_continued_by(&mismatch)) {
            Some(last) => last.len.0 += len.0,
            None if has_room => status.mismatches.push(mismatch),
            None => status.unlisted += 1,
        }
    }
}

impl Finding {
    /// Of verdicts on the same columns.
    fn of(geometry: &Geometry, stripe: StripeId, range: &Range<u64>, verdict: Verdict, all: &[Verdict]) -> Self {
        let (start, len) = (Sectors(range.start), Sectors(range.end - range.start));
        let map = geometry.map(stripe);
        let without = match verdict {
            Verdict::Unknown(_) => MemberSet::EMPTY,
            Verdict::Suspect(cell) => MemberSet::EMPTY.with(geometry.member(cell)),
            Verdict::Wrong(cell) => {
                // Copies that are wrong, too, are not what it is computed from.
                let is_copy =
                    |other: Cell| copied_unit(map, other).is_some_and(|of| copied_unit(map, cell) == Some(of));
                let wrong = all
                    .iter()
                    .filter_map(|verdict| if let Verdict::Wrong(cell) = verdict { Some(*cell) } else { None });
                wrong.filter(|&other| other == cell || is_copy(other)).map(|cell| geometry.member(cell)).collect()
            }
        };
        Self { start, len, fault: Fault::Judged(verdict), without }
    }

    fn end(&self) -> u64 {
        self.start.0 + self.len.0
    }

    /// The unit that is wrong, where it is known.
    fn cell(&self) -> Option<Cell> {
        match self.fault {
            Fault::Unread(cell, _) | Fault::Judged(Verdict::Wrong(cell) | Verdict::Suspect(cell)) => Some(cell),
            Fault::Judged(Verdict::Unknown(_)) => None,
        }
    }

    /// The order in which findings are repaired; none: not at all.
    fn key(&self) -> Option<(Sectors, Cell)> {
        self.cell().map(|cell| (self.start, cell))
    }
}

impl Mismatch {
    /// Whether the next one is more of the same.
    fn is_continued_by(&self, next: &Self) -> bool {
        let blame = match self.blame {
            Blame::Unknown(group) => Blame::Unknown(group),
            Blame::Certain(at) => Blame::Certain(after(at, self.len)),
            Blame::Suspected(at) => Blame::Suspected(after(at, self.len)),
        };
        let start = Sectors(self.start.0 + self.len.0);
        let expected = Self { stripe: self.stripe, start, len: next.len, blame, is_repaired: self.is_repaired };
        expected == *next
    }
}

fn after(at: Location, len: Sectors) -> Location {
    Location { sector: DiskSector(at.sector.0 + len.0), ..at }
}

/// Where a column of a unit is.
pub(super) fn location(geometry: &Geometry, stripe: StripeId, cell: Cell, start: Sectors) -> Location {
    Location { member: geometry.member(cell), sector: DiskSector(geometry.sector(stripe, cell).0 + start.0) }
}

/// The parity stripe of a job that scrubs, and the first column of its present part.
pub(super) fn columns<T>(job: &Job<T>) -> (StripeId, Sectors) {
    let Work::Scrub { stripe, start } = job.work else { unreachable!("only a scrub has such columns") };
    (stripe, Sectors(start.0 + job.at.0))
}

/// The pieces of units that could not be read, or are not what their checksums are of.
fn unread(geometry: &Geometry, damage: Vec<Damage>) -> Vec<Finding> {
    let mut pieces = Vec::new();
    for Damage { member, sector, len, found } in damage {
        let mut at = 0;
        while at < len.0 {
            let location = Location { member, sector: DiskSector(sector.0 + at) };
            let (_, cell, start) = geometry.cell_at(location).expect("what is scrubbed is of the array");
            let len = Sectors((geometry.chunk().0 - start.0).min(len.0 - at));
            pieces.push(Finding {
                start,
                len,
                fault: Fault::Unread(cell, found),
                without: MemberSet::EMPTY.with(member),
            });
            at += len.0;
        }
    }
    pieces
}

/// How many columns of a parity stripe are one part.
fn part_columns(geometry: &Geometry) -> Sectors {
    let cells = geometry.maps()[0].cells() as u64;
    let columns = PART_BYTES.whole_sectors().0 / cells / BLOCK.0 * BLOCK.0;
    Sectors(columns.clamp(BLOCK.0, geometry.chunk().0))
}

/// What a part reads at most.
fn part_bytes(geometry: &Geometry) -> Bytes {
    Sectors(part_columns(geometry).0 * geometry.maps()[0].cells() as u64).bytes()
}
