//! Scrubbing: what the members hold is read and compared, while clients go on.
//!
//! A scrub locks a part of a parity stripe, reads each of its units once and computes every group's XOR. Under the lock
//! the members hold what they are to hold together, whatever is dirty in memory, and nothing is in the log that is not
//! in place. [`verdict`](uraid_layout::verdict) says which unit is wrong, where that can be told; a block that is not
//! what its checksum is of, or that can't be read, is wrong whatever parity says.
//!
//! What is to be repaired is [healed](crate::engine::ops::heal) under the same lock: between the judgement and the
//! write nobody changes the stripe. Then the part is read again, for what else is wrong with it. So pieces are repaired
//! one at a time, in order, and each is tried once.
//!
//! Invariants:
//! - [`ScrubMode::Check`] writes no content.
//! - What is not certain is not written, unless [`ScrubMode::RepairSuspects`] says so, or a scrub is owed: nobody knows
//!   then where parity agrees, and a scrub that repairs makes it what the data says.
//! - Everything before [`ScrubStatus::position`] was compared, or lies before the start.
//!
//! Where a scrub is and when one was finished is on record as far as the caller says so: it has the clock.

use std::cell::{self, Ref, RefCell};
use std::fmt;
use std::ops::Range;

use smallvec::{SmallVec, smallvec};
use uraid_layout::plan::Difference;
use uraid_layout::stripe::{Role, StripeMap};
use uraid_layout::verdict::{Verdict, copied_unit, is_zero, judge};
use uraid_layout::{Bytes, Cell, DiskSector, Geometry, GroupId, Lba, Location, MemberSet, Owner, Sectors, StripeId};

use super::sweep::Sweep;
use crate::engine::damage::{Damage, Piece};
use crate::engine::error::EngineError;
use crate::engine::locks::Guard;
use crate::engine::ops::heal::heal_judged;
use crate::engine::parts::Parts;
use crate::engine::stuck::location;
use crate::engine::sweeper::{Kind, Sweeper};
use crate::engine::transfer::{Goal, Transfer, Workspace, proof, reading};
use crate::format::BLOCK;
use crate::format::badblocks::Lack;
use crate::format::sums::Sum;
use crate::format::superblock::{ScrubFound, ScrubHistory, ScrubMode, ScrubRun};

/// What one part reads, unless a block of each unit is more.
const PART_BYTES: Bytes = Bytes(1 << 20);

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

/// Scrubbing: see the module.
#[derive(Debug, Default)]
pub(in crate::engine) struct Scrubber {
    status: RefCell<Option<ScrubStatus>>,
    /// It began with the first parity stripe, under an earlier engine or this one.
    is_whole: cell::Cell<bool>,
}

/// Part of a parity stripe that is compared, in columns of each chunk, and what of it was repaired already.
#[derive(Clone, Copy, Debug)]
struct Part {
    stripe: StripeId,
    start: Sectors,
    len: Sectors,
    /// Pieces up to this one were tried.
    tried: Option<(Sectors, Cell)>,
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
    /// The member never got it: that is known, and nobody's fault.
    Absent(Cell),
    /// Who is wrong is not known, and the data counts: so this parity of the group is to be what it says.
    Open(GroupId, Cell),
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
    /// Starts a scrub of the parity stripes from `from` on.
    ///
    /// # Errors
    /// [`EngineError::Scrubbing`] while one is running or parts of the last are under way; [`EngineError::ReadOnly`]
    /// when it is to repair and nothing can be written; [`EngineError::OutOfRange`]; [`EngineError::Frozen`].
    pub(in crate::engine) fn start(&self, parts: &Parts, mode: ScrubMode, from: StripeId) -> Result<(), EngineError> {
        let (geometry, sweep) = (parts.geometry(), &mut *parts.sweeps.of(Kind::Scrub));
        if self.is_running() || sweep.is_busy() {
            return Err(EngineError::Scrubbing);
        }
        parts.members.check_frozen()?;
        parts.members.check_at_rest()?;
        if parts.members.is_read_only() && mode != ScrubMode::Check {
            return Err(EngineError::ReadOnly);
        }
        let total = geometry.capacity();
        if from.0 > geometry.stripes().0 {
            return Err(EngineError::OutOfRange { lba: Lba(from.0), len: Sectors(0), capacity: total });
        }
        *self.status.borrow_mut() = Some(ScrubStatus {
            mode,
            is_running: true,
            parts: 0,
            position: from,
            done: Sectors(0),
            total,
            mismatched: Sectors(0),
            repaired: Sectors(0),
            unchecked: Sectors(0),
            missed: Sectors(0),
            mismatches: Vec::new(),
            unlisted: 0,
        });
        self.is_whole.set(from.0 == 0);
        sweep.restart(from.0 * parts_of_stripe(geometry));
        self.note_position(geometry, sweep);
        Ok(())
    }

    /// Goes on with a scrub that is on record.
    ///
    /// # Errors
    /// As [`Scrubber::start`].
    pub(in crate::engine) fn resume(&self, parts: &Parts, run: ScrubRun) -> Result<(), EngineError> {
        self.start(parts, run.mode, run.position)?;
        self.is_whole.set(true);
        let ScrubFound { mismatched, repaired, unchecked } = run.found;
        self.change(|status| {
            (status.mismatched, status.repaired, status.unchecked) = (mismatched, repaired, unchecked);
            // Why is not on record.
            status.missed = unchecked;
        });
        Ok(())
    }

    /// Begins no more parts; those under way still end. [`ScrubStatus::position`] says where to go on.
    pub(in crate::engine) fn stop(&self) {
        self.change(|status| status.is_running = false);
    }

    /// How far the last scrub is; none was started: none.
    pub(in crate::engine) fn status(&self) -> Option<Ref<'_, ScrubStatus>> {
        Ref::filter_map(self.status.borrow(), Option::as_ref).ok()
    }

    /// Whether it goes on.
    fn is_running(&self) -> bool {
        self.status.borrow().as_ref().is_some_and(|status| status.is_running)
    }

    /// What the present scrub does about what it finds.
    fn mode(&self) -> ScrubMode {
        self.status.borrow().as_ref().map_or(ScrubMode::Check, |status| status.mode)
    }

    /// Compares a part, and makes good what it finds wrong as far as the scrub's mode allows.
    pub(in crate::engine) async fn scrub(&self, parts: &Parts, space: &mut Workspace, number: u64) {
        let geometry = parts.geometry();
        let (per_stripe, columns) = (parts_of_stripe(geometry), part_columns(geometry));
        let start = Sectors(number % per_stripe * columns.0);
        let len = Sectors(columns.0.min(geometry.chunk().0 - start.0));
        let mut part = Part { stripe: StripeId(number / per_stripe), start, len, tried: None };
        let result = loop {
            match self.compare_part(parts, &mut *space, part).await {
                Ok(Some((rest, guard, finding))) => {
                    part = Part { tried: finding.key(), ..rest };
                    let piece = finding.piece(part.stripe).expect("what is repaired is a unit's");
                    // What is repaired is rare: it has working memory of its own.
                    let is_owed = parts.members.record().scrub().is_owed;
                    let is_at_fault = match finding.fault {
                        Fault::Unread(..) => true,
                        Fault::Absent(_) => false,
                        Fault::Judged(_) | Fault::Open(..) => !is_owed,
                    };
                    let space = &mut Workspace::default();
                    if heal_judged(parts, space, guard, piece, finding.without, is_at_fault).await {
                        self.note_mismatch(parts, part.stripe, &finding, true);
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.end_part(parts, number, part.stripe, result);
    }

    /// Compares what is left of a part; if something is to be repaired, what is left from there on, the stripe's lock,
    /// and what it is.
    async fn compare_part<'a>(
        &self,
        parts: &'a Parts,
        space: &'a mut Workspace,
        part: Part,
    ) -> Result<Option<(Part, Option<Guard<'a>>, Finding)>, EngineError> {
        let goal = Goal::Scrub { stripe: part.stripe, start: part.start };
        let mut transfer = Transfer::new(parts, space, goal, None);
        let mut at = Lba(0);
        while at.0 < part.len.0 {
            transfer.begin(at, Sectors(part.len.0 - at.0), Sectors(0));
            if transfer.guard.is_none() {
                transfer.guard = Some(parts.locks.acquire(transfer.span()).await);
            }
            let found = self.compare_columns(&mut transfer, part).await;
            if found.is_err() {
                transfer.give_up_on_damage();
            }
            transfer.let_go();
            if let Some(finding) = found? {
                let start = Sectors(part.start.0 + at.0);
                let rest = Part { start, len: Sectors(part.len.0 - at.0), ..part };
                return Ok(Some((rest, transfer.guard.take(), finding)));
            }
            transfer.guard = None;
            at.0 += transfer.len.0;
        }
        Ok(None)
    }

    /// Reads and compares the columns of a transfer: what is to be repaired first.
    async fn compare_columns(&self, transfer: &mut Transfer<'_>, part: Part) -> Result<Option<Finding>, EngineError> {
        let parts = transfer.parts;
        loop {
            transfer.plan()?;
            let Some(call) = reading::read(transfer).await else {
                reading::again(transfer);
                continue;
            };
            if !call.overdue.is_empty() {
                // What else it found it finds again.
                transfer.damage.clear();
                reading::go_around(transfer, &call)?;
                continue;
            }
            if !call.failed.is_empty() && (transfer.narrow() || transfer.read_apart()) {
                // Of what failed together, some need not fail alone.
                reading::again(transfer);
                continue;
            }
            if call.failed.is_empty() {
                proof::verify(transfer);
            }
            break;
        }
        reading::compute(transfer);
        let is_owed = parts.members.record().scrub().is_owed && self.mode() != ScrubMode::Check;
        let (findings, missed, unread) = compare(transfer, part, is_owed);
        transfer.unreadable = MemberSet::EMPTY;
        let is_next = |finding: &&Finding| self.may_repair(parts, finding) && finding.key() > part.tried;
        if let Some(&finding) = findings.iter().find(is_next) {
            return Ok(Some(finding));
        }
        findings.iter().for_each(|finding| self.note_mismatch(parts, part.stripe, finding, false));
        let unchecked = Sectors(missed.0 + unread.0);
        self.change(|status| {
            status.missed.0 += missed.0;
            status.unchecked.0 += unchecked.0;
        });
        parts.members.counters.borrow_mut().scrubs_mut().unchecked.0 += unchecked.bytes().0;
        Ok(None)
    }

    /// Whether the present scrub may write what a unit should hold.
    fn may_repair(&self, parts: &Parts, finding: &Finding) -> bool {
        let members = &parts.members;
        // While parity was not computed since an unclean stop, it tells nothing.
        let is_open = !members.is_read_only() && !members.is_suspect() && !members.is_frozen();
        let mode = self.mode();
        is_open
            && match finding.fault {
                Fault::Unread(..) | Fault::Absent(_) | Fault::Open(..) | Fault::Judged(Verdict::Wrong(_)) => {
                    mode != ScrubMode::Check
                }
                Fault::Judged(Verdict::Suspect(_)) if planted!(ScrubRepairsSuspects) => mode != ScrubMode::Check,
                Fault::Judged(Verdict::Suspect(_)) => mode == ScrubMode::RepairSuspects,
                Fault::Judged(Verdict::Unknown(_)) => false,
            }
    }

    /// Ends a part.
    fn end_part(&self, parts: &Parts, number: u64, stripe: StripeId, result: Result<(), EngineError>) {
        let (geometry, sweep) = (parts.geometry(), &mut *parts.sweeps.of(Kind::Scrub));
        let done_of = || self.status.borrow().as_ref().map_or(0, |status| status.done.0);
        let before = done_of();
        match result {
            Ok(()) => sweep.finish(number, |from| next_part(parts, from)),
            Err(error) => {
                tracing::error!(%stripe, %error, "the scrub can't go on");
                sweep.drop_unit(number);
                self.stop();
            }
        }
        self.note_position(geometry, sweep);
        self.settle(parts);
        let compared = Sectors(done_of() - before).bytes();
        parts.members.counters.borrow_mut().scrubs_mut().compared.0 += compared.0;
        parts.wake_repairs();
    }

    fn note_position(&self, geometry: &Geometry, sweep: &Sweeper) {
        let position = StripeId(sweep.done() / parts_of_stripe(geometry));
        let end = Sectors(position.0.saturating_mul(geometry.stripe_sectors().0));
        self.change(|status| {
            (status.position, status.done) = (position, end.min(geometry.capacity()));
            status.parts = sweep.under_way();
            if position.0 >= geometry.stripes().0 {
                status.is_running = false;
            }
        });
    }

    /// Takes it back that a scrub is owed, when this one has compared everything, and left nothing as it found it.
    fn settle(&self, parts: &Parts) {
        let is_done = self.status.borrow().as_ref().is_some_and(|status| {
            let has_all = status.done == status.total && status.unchecked == Sectors(0) && self.is_whole.get();
            has_all && status.mode != ScrubMode::Check && status.mismatched == status.repaired
        });
        let record = parts.members.record().scrub();
        if is_done && record.is_owed && !parts.members.is_read_only() {
            parts.members.change_record(|kept| kept.keep_scrub(ScrubHistory { is_owed: false, ..record }, true));
            parts.members.demand_record();
        }
    }

    fn note_mismatch(&self, parts: &Parts, stripe: StripeId, finding: &Finding, is_repaired: bool) {
        let &Finding { start, len, fault, .. } = finding;
        let at = |cell| location(parts.geometry(), stripe, cell, start);
        let blame = match fault {
            Fault::Absent(_) => return,
            Fault::Unread(cell, _) | Fault::Judged(Verdict::Wrong(cell)) => Blame::Certain(at(cell)),
            Fault::Judged(Verdict::Suspect(cell)) => Blame::Suspected(at(cell)),
            Fault::Open(group, _) | Fault::Judged(Verdict::Unknown(group)) => Blame::Unknown(group),
        };
        let mut counters = parts.members.counters.borrow_mut();
        let counters = counters.scrubs_mut();
        let kind = match blame {
            Blame::Certain(_) => &mut counters.certain,
            Blame::Suspected(_) => &mut counters.suspected,
            Blame::Unknown(_) => &mut counters.unknown,
        };
        kind.0 += len.bytes().0;
        counters.repaired.0 += if is_repaired { len.bytes().0 } else { 0 };
        self.change(|status| {
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
        });
    }

    fn change(&self, change: impl FnOnce(&mut ScrubStatus)) {
        if let Some(status) = &mut *self.status.borrow_mut() {
            change(status);
        }
    }
}

impl Sweep for Scrubber {
    fn kind(&self) -> Kind {
        Kind::Scrub
    }

    fn is_wanted(&self, _: &Parts) -> bool {
        self.is_running()
    }

    fn size(&self, parts: &Parts) -> Bytes {
        let geometry = parts.geometry();
        Sectors(part_columns(geometry).0 * geometry.maps()[0].cells() as u64).bytes()
    }

    fn next(&self, parts: &Parts, sweeper: &mut Sweeper) -> Option<u64> {
        if parts.members.is_frozen() {
            self.stop();
            return None;
        }
        let geometry = parts.geometry();
        let cost = Bytes(part_columns(geometry).bytes().0 * geometry.rows() as u64);
        let end = geometry.stripes().0 * parts_of_stripe(geometry);
        let part = sweeper.begin(end, cost, |from| next_part(parts, from));
        // What is blank at the end is passed over without a part.
        self.note_position(geometry, sweeper);
        self.settle(parts);
        part
    }
}

/// What is wrong with columns that were read, in order, and how much parity could not be checked: because members are
/// missing, and because something could not be read. Where the data counts, it is parity that is wrong.
fn compare(transfer: &mut Transfer<'_>, part: Part, data_counts: bool) -> (Vec<Finding>, Sectors, Sectors) {
    let parts = transfer.parts;
    let geometry = parts.geometry();
    let (stripe, start, len) = (part.stripe, Sectors(part.start.0 + transfer.at.0), transfer.len);
    let map = geometry.map(stripe);
    let unread = unread(parts, transfer.damage.drain(..));
    let (plan, content) = (&*transfer.plan, &transfer.content);
    let used = map.groups().iter().filter(|group| geometry.uses(stripe, group.parity)).count();
    let missed = Sectors((used - plan.differences().len()) as u64 * len.0);
    let mut unchecked = 0;
    let content = |difference: &Difference| content.computed(&difference.content);
    if unread.is_empty() && plan.differences().iter().all(|difference| is_zero(content(difference))) {
        return (Vec::new(), missed, Sectors(unchecked));
    }
    // Where blocks have checksums, they are written whole.
    let step = if parts.sums.is_some() { BLOCK.0 } else { 1 };
    let mut runs: Vec<(Range<u64>, Vec<Verdict>)> = Vec::new();
    for column in (0..len.0).step_by(usize::try_from(step).expect("small")) {
        let is_unread = |cell: Cell| {
            let at = start.0 + column;
            unread.iter().any(|piece| piece.cell() == Some(cell) && (piece.start.0..piece.end()).contains(&at))
        };
        let mut differences: SmallVec<[Option<&[u8]>; 16]> = smallvec![None; map.groups().len()];
        for difference in plan.differences() {
            if map.group(difference.group).cells().any(is_unread) {
                unchecked += step;
                continue;
            }
            let bytes = |sectors: u64| usize::try_from(Sectors(sectors).bytes().0).expect("fits");
            let part = &content(difference)[bytes(column)..][..bytes(step)];
            differences[usize::from(difference.group.0)] = Some(part);
        }
        let mut verdicts = judge(map, &differences);
        if data_counts {
            verdicts = open(map, &verdicts, &differences);
        }
        let at = start.0 + column;
        match runs.last_mut().filter(|(range, last)| range.end == at && *last == verdicts) {
            Some((range, _)) => range.end += step,
            None => runs.push((at..at + step, verdicts)),
        }
    }
    let mut findings = unread;
    for (range, verdicts) in &runs {
        for &verdict in verdicts {
            let finding = Finding::of(geometry, stripe, range, verdict, verdicts);
            findings.push(if data_counts { finding.by_data(geometry, stripe) } else { finding });
        }
    }
    findings.sort_by_key(Finding::key);
    (findings, missed, Sectors(unchecked))
}

/// The same verdicts without suspicions of data.
fn open(map: &StripeMap, verdicts: &[Verdict], differences: &[Option<&[u8]>]) -> Vec<Verdict> {
    let disagrees = |group: &GroupId| differences[usize::from(group.0)].is_some_and(|bytes| !is_zero(bytes));
    let of = |&verdict: &Verdict| match verdict {
        Verdict::Suspect(cell) => {
            let Role::Data(unit) = map.role(cell) else { unreachable!("only data is suspected") };
            let groups = map.groups_of(unit).iter().copied().filter(disagrees);
            groups.map(Verdict::Unknown).collect::<SmallVec<[_; 2]>>()
        }
        verdict => smallvec![verdict],
    };
    verdicts.iter().flat_map(of).collect()
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

    /// The same where data is right: what is open is parity's fault.
    fn by_data(self, geometry: &Geometry, stripe: StripeId) -> Self {
        let Fault::Judged(Verdict::Unknown(group)) = self.fault else { return self };
        let parity = geometry.map(stripe).group(group).parity;
        let without = MemberSet::EMPTY.with(geometry.member(parity));
        Self { fault: Fault::Open(group, parity), without, ..self }
    }

    fn end(&self) -> u64 {
        self.start.0 + self.len.0
    }

    /// The unit that is wrong, where it is known or does not matter.
    fn cell(&self) -> Option<Cell> {
        match self.fault {
            Fault::Unread(cell, _)
            | Fault::Absent(cell)
            | Fault::Open(_, cell)
            | Fault::Judged(Verdict::Wrong(cell) | Verdict::Suspect(cell)) => Some(cell),
            Fault::Judged(Verdict::Unknown(_)) => None,
        }
    }

    /// What is to be healed, where the unit is known.
    fn piece(&self, stripe: StripeId) -> Option<Piece> {
        let found = if let Fault::Unread(_, found) = self.fault { found } else { None };
        self.cell().map(|cell| Piece { stripe, cell, start: self.start, len: self.len, found })
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

/// The pieces of units that could not be read, that are not what their checksums are of, or that are absent.
fn unread(parts: &Parts, damage: impl Iterator<Item = Damage>) -> Vec<Finding> {
    let geometry = parts.geometry();
    let finding = |Damage { member, sector, len, .. }: Damage, piece: Piece| {
        let sectors = sector..DiskSector(sector.0 + len.0);
        let is_absent = parts.bad.lacks(member, sectors, Lack::Absent);
        let fault = if is_absent { Fault::Absent(piece.cell) } else { Fault::Unread(piece.cell, piece.found) };
        Finding { start: piece.start, len: piece.len, fault, without: MemberSet::EMPTY.with(member) }
    };
    damage.flat_map(|damage| damage.pieces(geometry).map(move |piece| finding(damage, piece))).collect()
}

/// The first part from one on that is not blank; what is beyond the last where there is none.
fn next_part(parts: &Parts, from: u64) -> u64 {
    let (geometry, per_stripe) = (parts.geometry(), parts_of_stripe(parts.geometry()));
    let (stripe, end) = (from / per_stripe, geometry.stripes().0);
    let made = parts.blanks.next_made(stripe, end);
    if made == stripe { from } else { from.max(made * per_stripe) }
}

/// How many parts a parity stripe has.
fn parts_of_stripe(geometry: &Geometry) -> u64 {
    geometry.chunk().0.div_ceil(part_columns(geometry).0)
}

/// How many columns of a parity stripe are one part.
fn part_columns(geometry: &Geometry) -> Sectors {
    let cells = geometry.maps()[0].cells() as u64;
    let columns = PART_BYTES.whole_sectors().0 / cells / BLOCK.0 * BLOCK.0;
    Sectors(columns.clamp(BLOCK.0, geometry.chunk().0))
}
