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
//! Rebuilding yields: while clients want anything one stripe is under way, otherwise many. What can't be computed, as
//! the others can't be read there, goes into the member's [list of bad blocks](crate::engine::badblocks), and the rest
//! is made. A list that is full stops it; that is tried again when something of the stripe is written, and after a
//! while.

use std::cell::RefCell;

use uraid_layout::{Bytes, Cell, Lba, MemberSet, Sectors, StripeId};

use super::sweep::{Next, Sweep};
use crate::bounds::COLUMNS;
use crate::engine::error::EngineError;
use crate::engine::ops::flush::{Covers, durable};
use crate::engine::parts::Parts;
use crate::engine::record::Rebuilding;
use crate::engine::stuck::Stuck;
use crate::engine::sweeper::{Kind, Sweeper};
use crate::engine::transfer::{Goal, Transfer, Workspace, reading, writing};
use crate::format::badblocks::Lack;
use crate::format::bitmap::Bitmap;

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
    /// Where members lack something that are not rebuilt whole.
    regions: RefCell<Option<Bitmap>>,
}

impl Rebuild {
    /// Begins where the least of the members is.
    pub(in crate::engine) fn restart(&self, parts: &Parts) {
        let mut start = parts.members.record().progress().iter().map(|one| one.upto).min().unwrap_or_default();
        start.0 += u64::from(start.0 > 0 && planted!(ResumeLater));
        let mut sweep = parts.sweeps.of(Kind::Rebuild);
        start = if planted!(WatermarkKept) { start.max(StripeId(sweep.done())) } else { start };
        sweep.restart(start.0);
        sweep.note_quiet();
        parts.members.set_watermark(start);
        *self.regions.borrow_mut() = parts.intent.wanted().as_deref().cloned();
    }

    /// How far it has come, where something is to be rebuilt.
    pub(in crate::engine) fn progress(parts: &Parts) -> Option<Progress> {
        let members = parts.members.rebuilding();
        (!members.is_empty()).then(|| progress(parts, members, &parts.sweeps.of(Kind::Rebuild)))
    }

    /// The first stripe from one on that some member lacks; what is beyond the last where there is none.
    fn first_lacking(&self, parts: &Parts, from: u64) -> u64 {
        let (set, end) = (self.regions.borrow(), StripeId(parts.geometry().stripes().0));
        let mut at = from;
        loop {
            // Of what is blank a member lacks nothing.
            let made = parts.blanks.next_made(at, end.0);
            at = first_lacking(set.as_ref(), parts.members.record().progress(), StripeId(made), end).0;
            if at >= end.0 || at == made {
                return at.max(from);
            }
        }
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
        let sweep = &mut *parts.sweeps.of(Kind::Rebuild);
        match result {
            Ok(()) => {
                parts.members.counters.borrow_mut().rebuilt(parts.geometry().stripe_sectors());
                sweep.finish(stripe.0, |from| self.first_lacking(parts, from));
            }
            Err((error, stuck)) => {
                if sweep.fail(stuck) {
                    tracing::error!(%stripe, %error, "a parity stripe can't be rebuilt");
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

    /// Puts the watermark on record; after the last step the members are as good as any.
    pub(in crate::engine) async fn save(&self, parts: &Parts) {
        let upto = StripeId(parts.sweeps.of(Kind::Rebuild).step());
        let result = self.put_on_record(parts, upto).await;
        parts.sweeps.of(Kind::Rebuild).end_step(result.is_ok());
        if parts.members.rebuilding().is_empty() {
            parts.members.end_rebuild();
        }
        parts.wake_repairs();
    }

    async fn put_on_record(&self, parts: &Parts, upto: StripeId) -> Result<(), EngineError> {
        if !planted!(WatermarkBeforeList) {
            parts.keep_lists().await?;
        }
        if !planted!(BlankMapUnjoined) {
            parts.blanks.save(&parts.members).await;
        }
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
        let done = StripeId(parts.sweeps.of(Kind::Rebuild).save());
        parts.members.change_record(|record| record.advance(done));
    }
}

impl Sweep for Rebuild {
    fn kind(&self) -> Kind {
        Kind::Rebuild
    }

    fn is_wanted(&self, parts: &Parts) -> bool {
        let Parts { members, sweeps, .. } = parts;
        sweeps.may_repair(Kind::Rebuild) && !members.is_frozen() && !members.rebuilding().is_empty()
    }

    fn size(&self, parts: &Parts) -> Bytes {
        cost(parts)
    }

    fn next(&self, parts: &Parts, sweeper: &mut Sweeper) -> Option<u64> {
        let (end, cost) = (parts.geometry().stripes().0, cost(parts));
        let stripe = sweeper.begin(end, cost, |from| self.first_lacking(parts, from));
        parts.members.set_watermark(StripeId(sweeper.done()));
        stripe
    }

    fn step(&self, parts: &Parts) -> Option<Next> {
        let is_due = parts.sweeps.of(Kind::Rebuild).begin_step(parts.geometry().stripes().0, cost(parts));
        is_due.then_some(Next::Save)
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
    let (mut at, mut lost) = (0, Sectors(0));
    while at < end {
        transfer.begin(Lba(at), Sectors(COLUMNS.0.min(end - at)), Sectors(0));
        if !planted!(RebuildUnlocked) {
            transfer.guard = Some(parts.locks.acquire(transfer.span()).await);
        }
        let mut result = make_part(&mut transfer).await;
        if let Err(EngineError::Unreadable { .. }) = result {
            result = make_cells(&mut transfer, &mut lost).await;
        }
        if result.is_err() {
            transfer.give_up_on_damage();
        }
        transfer.let_go();
        transfer.guard = None;
        let (start, len, unreadable) = (Sectors(transfer.at.0), transfer.len, transfer.unreadable);
        result.map_err(|error| (error, Stuck { stripe: transfer.span().0, start, len, unreadable }))?;
        at += transfer.len.0;
    }
    if lost.0 > 0 {
        tracing::error!(stripe = %transfer.span().0, sectors = %lost, "content can't be computed, as other members \
            can't be read there: it is lost until it is written anew");
    }
    Ok(())
}

/// Makes the cells of a part one by one that can't be made together. What can't be made at all goes into the list of
/// bad blocks of the member that was to get it, and so does what could not be read for it.
///
/// # Errors
/// [`EngineError::BadBlocks`] where a list is full; what ends the rebuild or copy.
async fn make_cells(transfer: &mut Transfer<'_>, lost: &mut Sectors) -> Result<(), EngineError> {
    let (at, len) = (transfer.at, transfer.len);
    if matches!(transfer.goal, Goal::Copy { member, .. } if transfer.parts.members.missing().contains(member)) {
        // Nothing is copied of it any more.
        return Err(transfer.unreadable_error());
    }
    let cells: Vec<Cell> = transfer.cells().collect();
    for &cell in &cells {
        if cells.len() > 1 {
            // As if nothing had been tried yet.
            transfer.damage.clear();
            transfer.let_go();
            transfer.only = Some(cell);
            transfer.begin(at, len, Sectors(0));
            match make_part(transfer).await {
                Err(EngineError::Unreadable { .. }) => {}
                made => {
                    made?;
                    continue;
                }
            }
        }
        lose(transfer, cell)?;
        transfer.give_up_on_damage();
        lost.0 += len.0;
    }
    transfer.only = None;
    Ok(())
}

/// Takes into the lists of bad blocks what can't be made of a cell, and what it would be made of and nobody has.
fn lose(transfer: &mut Transfer<'_>, cell: Cell) -> Result<(), EngineError> {
    let (parts, stripe) = (transfer.parts, transfer.span().0);
    let geometry = parts.geometry();
    let repair = transfer.do_with_rest(transfer.lost());
    for damage in transfer.damage.iter() {
        for piece in damage.pieces(geometry).filter(|piece| !repair.has(geometry, stripe, piece.cell)) {
            let (member, sectors) = geometry.columns(stripe, piece.cell, piece.start, piece.len);
            // That the medium fails there shows by itself: it is kept for administrators, as far as there is room.
            let _ = parts.bad.add(member, sectors, Lack::Unread);
        }
    }
    let (member, sectors) = geometry.columns(stripe, cell, Sectors(transfer.at.0), transfer.len);
    let place = match transfer.goal {
        Goal::Copy { .. } => parts.members.twin().map(|twin| twin.seat),
        _ => Some(member),
    };
    // A copy whose end has come meanwhile has no place.
    let Some(place) = place.filter(|_| !planted!(LossUnlisted)) else { return Ok(()) };
    parts.bad.add(place, sectors, Lack::Absent).map_err(|source| EngineError::BadBlocks { member, source })
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
