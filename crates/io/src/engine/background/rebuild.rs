//! Rebuilding: members that joined get their content, while clients go on.
//!
//! A member that joins is written by every write from then on. What it lacks is computed from the others in the order
//! of the parity stripes, under each stripe's lock as every writer has it, and everything that the stripe lacks at
//! once: so each surviving unit is read once. In stripes before the *watermark* a rebuilding member is as good as any;
//! from there on it is written and not read.
//!
//! Only members that are being rebuilt are written here, where nothing on record relies on them. So what is written
//! needs neither log nor dirty mark nor write intent: after a crash it is written again, from the watermark on record.
//! That follows in steps, each after a flush of what it covers. At the end the members are recorded as active.
//!
//! Rebuilding yields: while clients want anything one stripe is under way, otherwise many. A stripe that can't be
//! computed, as the others can't be read there, stops it; it is tried again when that is written, and after a while.

use std::cell::{Cell, RefCell};

use uraid_layout::{Bytes, Lba, MemberSet, Sectors, StripeId};

use crate::bounds::COLUMNS;
use crate::engine::error::EngineError;
use crate::engine::ops::flush::{Covers, durable};
use crate::engine::parts::Parts;
use crate::engine::record::Rebuilding;
use crate::engine::stuck::Stuck;
use crate::engine::sweeper::Sweeper;
use crate::engine::transfer::{Goal, Transfer, Workspace, reading, writing};
use crate::format::bitmap::Bitmap;

/// What is begun in one turn, of each member, while nobody else wants anything; otherwise that is one stripe, so that
/// nobody waits for more.
const QUANTUM: Bytes = Bytes(2 << 20);

/// Steps in which the watermark goes on record: so many in all, but none larger than this on a member.
const STEPS: u64 = 128;
const STEP_MAX: Bytes = Bytes(1 << 30);

/// How far rebuilding or copying has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The members that are being made.
    pub members: MemberSet,
    /// What of the array they are as good for as any other.
    pub done: Sectors,
    /// The array's size.
    pub total: Sectors,
    /// A stripe can't be made: what the other members hold of it can't be read. It is tried again.
    pub stuck: Option<Stuck>,
}

/// What is known of rebuilding beside its sweep: see the module.
#[derive(Debug, Default)]
pub(in crate::engine) struct Rebuild {
    is_on: Cell<bool>,
    /// Where members lack something that are not rebuilt whole.
    regions: RefCell<Option<Bitmap>>,
    /// Up to where the members durably have everything.
    saved: Cell<StripeId>,
    /// The step under way.
    step: Cell<Option<StripeId>>,
}

impl Rebuild {
    /// From now on what is to be rebuilt is, and what is to be copied.
    pub(in crate::engine) fn turn_on(&self) {
        self.is_on.set(true);
    }

    /// Begins where the least of the members is.
    pub(in crate::engine) fn restart(&self, parts: &Parts) {
        let mut start = parts.members.record().progress().iter().map(|one| one.upto).min().unwrap_or_default();
        start.0 += u64::from(start.0 > 0 && planted!(ResumeLater));
        let mut sweep = parts.repairs.rebuild.borrow_mut();
        start = if planted!(WatermarkKept) { start.max(StripeId(sweep.done())) } else { start };
        sweep.restart(start.0);
        sweep.note_quiet();
        parts.members.set_watermark(start);
        self.saved.set(start);
        *self.regions.borrow_mut() = parts.intent.wanted().as_deref().cloned();
    }

    /// Whether a stripe is being computed, or the watermark being recorded.
    pub(in crate::engine) fn is_busy(&self, parts: &Parts) -> bool {
        let is_sweeping = parts.repairs.rebuild.borrow().is_busy() || parts.repairs.copy.borrow().is_busy();
        is_sweeping || self.step.get().is_some()
    }

    /// Whether rebuilding or copying may go on.
    pub(in crate::engine) fn may_go_on(&self, parts: &Parts, sweep: &Sweeper) -> bool {
        self.is_on.get() && !sweep.is_closed() && !parts.members.is_frozen()
    }

    /// Whether rebuilding goes on when time passes.
    pub(in crate::engine) fn is_waiting(&self, parts: &Parts) -> bool {
        self.may_go_on(parts, &parts.repairs.rebuild.borrow()) && !parts.members.rebuilding().is_empty()
    }

    /// How far it has come, where something is to be rebuilt.
    pub(in crate::engine) fn progress(parts: &Parts) -> Option<Progress> {
        let members = parts.members.rebuilding();
        (!members.is_empty()).then(|| progress(parts, members, &parts.repairs.rebuild.borrow()))
    }

    /// The next stripe to make, if there is room for one.
    pub(in crate::engine) fn next(&self, parts: &Parts) -> Option<StripeId> {
        if !self.is_waiting(parts) || parts.repairs.is_held.get() {
            return None;
        }
        let sweep = &mut *parts.repairs.rebuild.borrow_mut();
        let cost = cost(parts);
        if sweep.wants_turn() || !sweep.has_room(cost) {
            return None;
        }
        let stripe = sweep.begin(parts.geometry().stripes().0, cost, |from| self.first_lacking(parts, from));
        parts.members.set_watermark(StripeId(sweep.done()));
        stripe.map(StripeId)
    }

    /// The first stripe from one on that some member lacks; what is beyond the last where there is none.
    fn first_lacking(&self, parts: &Parts, from: u64) -> u64 {
        let (set, end) = (self.regions.borrow(), StripeId(parts.geometry().stripes().0));
        first_lacking(set.as_ref(), parts.members.record().progress(), StripeId(from), end).0
    }

    /// Whether members lack a stripe, and which.
    fn lacking(&self, parts: &Parts, stripe: StripeId) -> MemberSet {
        let set = self.regions.borrow();
        let record = parts.members.record();
        record.progress().iter().filter(|one| lacks(set.as_ref(), one, stripe)).map(|one| one.member).collect()
    }

    /// Makes what members lack of a stripe.
    pub(in crate::engine) async fn make(&self, parts: &Parts, space: &mut Workspace, stripe: StripeId) {
        let goal = Goal::Rebuild { stripe, lacking: self.lacking(parts, stripe) };
        let result = make_columns(parts, space, goal).await;
        let sweep = &mut *parts.repairs.rebuild.borrow_mut();
        match result {
            Ok(()) => {
                parts.members.counters.borrow_mut().rebuilt(parts.geometry().stripe_sectors());
                sweep.finish(stripe.0, |from| self.first_lacking(parts, from));
            }
            Err((error, stuck)) => {
                if sweep.fail(stuck) {
                    tracing::error!(%stripe, %error, "a parity stripe can't be rebuilt: the other members' parts of it \
                        can't be read");
                }
            }
        }
        if parts.members.rebuilding().is_empty() {
            // All of them have failed.
            sweep.forget_stuck();
        }
        parts.members.set_watermark(StripeId(sweep.done()));
        parts.wake_repairs();
    }

    /// Whether the watermark is to be put on record, as it has come far enough since the last time.
    pub(in crate::engine) fn wants_step(&self, parts: &Parts) -> bool {
        if !self.is_waiting(parts) || parts.repairs.is_held.get() || self.step.get().is_some() {
            return false;
        }
        let (end, done) = (parts.geometry().stripes().0, parts.repairs.rebuild.borrow().done());
        let step = (end / STEPS).min(STEP_MAX.0 / cost(parts).0).max(1);
        let is_due = done == end || done - self.saved.get().0 >= step;
        if is_due {
            self.step.set(Some(StripeId(done)));
        }
        is_due
    }

    /// Puts the watermark on record; after the last step the members are as good as any.
    pub(in crate::engine) async fn save(&self, parts: &Parts) {
        let upto = self.step.get().expect("a step is under way");
        let result = self.put_on_record(parts, upto).await;
        self.step.set(None);
        if result.is_ok() {
            self.saved.set(upto);
        }
        if parts.members.rebuilding().is_empty() {
            parts.members.end_rebuild();
        }
        parts.wake_repairs();
    }

    async fn put_on_record(&self, parts: &Parts, upto: StripeId) -> Result<(), EngineError> {
        if !planted!(WatermarkUnflushed) {
            durable(parts, Covers::InPlace).await?;
        }
        if upto.0 == parts.geometry().stripes().0 {
            tracing::info!(members = %parts.members.rebuilding(), "members are rebuilt");
            parts.members.change_record(|record| record.complete());
            parts.members.troubled.borrow_mut().absolve();
        } else {
            parts.members.change_record(|record| record.advance(upto));
        }
        parts.members.settled().await
    }

    /// Has recorded with the next round how far it has come; everything is flushed.
    pub(in crate::engine) fn note_end(&self, parts: &Parts) {
        let done = StripeId(parts.repairs.rebuild.borrow().done());
        parts.members.change_record(|record| record.advance(done));
        self.saved.set(done);
    }
}

/// Does a rebuild or a copy of a stripe, a few columns at a time.
///
/// # Errors
/// Why it can't be done, and where.
pub(in crate::engine) async fn make_columns(
    parts: &Parts,
    space: &mut Workspace,
    goal: Goal,
) -> Result<(), (EngineError, Stuck)> {
    let end = parts.geometry().chunk().0;
    let mut transfer = Transfer::new(parts, space, goal, None);
    let mut at = 0;
    while at < end {
        transfer.begin(Lba(at), Sectors(COLUMNS.0.min(end - at)), Sectors(0));
        if !planted!(RebuildUnlocked) {
            transfer.guard = Some(parts.locks.acquire(transfer.span()).await);
        }
        let result = make_part(&mut transfer).await;
        if result.is_err() {
            transfer.give_up_on_damage();
        }
        transfer.let_go();
        transfer.guard = None;
        let (start, len, unreadable) = (Sectors(transfer.at.0), transfer.len, transfer.unreadable);
        result.map_err(|error| (error, Stuck { stripe: transfer.span().0, start, len, unreadable }))?;
        at += transfer.len.0;
    }
    Ok(())
}

async fn make_part(transfer: &mut Transfer<'_>) -> Result<(), EngineError> {
    reading::obtain(transfer).await?;
    writing::write(transfer).await?;
    transfer.parts.members.failures_recorded().await
}

/// How far a sweep for members has come.
pub(in crate::engine) fn progress(parts: &Parts, members: MemberSet, sweep: &Sweeper) -> Progress {
    let (stripes, total) = (parts.geometry().stripes().0, parts.geometry().capacity());
    let done = u128::from(total.0) * u128::from(sweep.done()) / u128::from(stripes.max(1));
    let done = Sectors(u64::try_from(done).expect("a part of the array"));
    Progress { members, done, total, stuck: sweep.stuck() }
}

/// What a stripe is on one member.
pub(in crate::engine) fn cost(parts: &Parts) -> Bytes {
    Bytes(parts.geometry().chunk().bytes().0 * parts.geometry().rows() as u64)
}

/// How many stripes one turn may begin.
pub(in crate::engine) fn quantum(parts: &Parts, sweep: &Sweeper) -> usize {
    let most = usize::try_from(QUANTUM.0.div_ceil(cost(parts).0)).expect("a small number");
    if sweep.is_disturbing() { 1 } else { most }
}

/// Whether a member lacks a stripe; `set` are the regions where one that is not rebuilt whole may.
fn lacks(set: Option<&Bitmap>, one: &Rebuilding, stripe: StripeId) -> bool {
    let is_set = |set: &Bitmap| set.contains(set.regions().of(stripe));
    one.upto <= stripe && (one.is_whole || set.is_none_or(is_set) && !planted!(RegionsIgnored))
}

/// The first stripe from `from` on that some member lacks; `end` when there is none.
fn first_lacking(set: Option<&Bitmap>, members: &[Rebuilding], mut from: StripeId, end: StripeId) -> StripeId {
    while from < end && !members.iter().any(|one| lacks(set, one, from)) {
        let later = members.iter().map(|one| one.upto).filter(|&upto| upto > from);
        let region = set.map(|set| set.regions().stripes(set.regions().of(from)).end);
        let next = later.chain(region).min().unwrap_or(end).min(end);
        assert!(next > from, "stripe {from} is before the end of its region, which is {next}");
        from = next;
    }
    from.min(end)
}
