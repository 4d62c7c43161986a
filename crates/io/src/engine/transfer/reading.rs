//! Getting what a plan needs: its reads, around members that fail, and its XORs.
//!
//! What comes straight from members needs no lock: a concurrent write replaces a sector in one piece. What is computed
//! from several units does, and so does what does not match its checksum: a write may be under way.

use uraid_layout::plan::{DiskIo, Plan, Slice};
use uraid_layout::repair::Repair;
use uraid_layout::{DiskSector, Location, MemberSet, Sectors};

use super::content::Content;
use super::{Goal, Transfer, end, proof};
use crate::disk::OpKind;
use crate::engine::damage::Damage;
use crate::engine::error::EngineError;
use crate::engine::operations::{Call, Purpose, Reading};
use crate::engine::parts::Parts;
use crate::format::badblocks::Lack;

/// How an attempt to get what a plan needs has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Attempt {
    /// All is there, and is what was written there.
    Proven,
    /// It is to be planned again.
    Again,
    /// Something was read that was not written there: by a write that is under way, which the stripe's lock keeps away,
    /// or for good.
    Doubted,
}

/// Plans the part and gets what the plan needs, as often as it takes. The transfer has its stripes' locks.
///
/// # Errors
/// [`EngineError::Unreadable`]; [`EngineError::Frozen`].
pub(in crate::engine) async fn obtain(transfer: &mut Transfer<'_>) -> Result<(), EngineError> {
    loop {
        transfer.plan()?;
        match attempt(transfer).await? {
            Attempt::Proven => return Ok(()),
            Attempt::Again | Attempt::Doubted => {}
        }
    }
}

/// Gets what the plan needs, once.
///
/// # Errors
/// [`EngineError::Unreadable`].
pub(in crate::engine) async fn attempt(transfer: &mut Transfer<'_>) -> Result<Attempt, EngineError> {
    let Some(call) = read(transfer).await else { return Ok(again(transfer)) };
    if !call.overdue.is_empty() {
        return go_around(transfer, &call);
    }
    if !call.failed.is_empty() && !planted!(ReadErrorAsData) {
        transfer.unreadable = transfer.unreadable.union(call.failed);
        return do_without(transfer);
    }
    if !proof::verify(transfer) {
        return if transfer.guard.is_some() {
            do_without(transfer)
        } else {
            transfer.let_go();
            Ok(Attempt::Doubted)
        };
    }
    compute(transfer);
    if !proof::prove(transfer).await {
        // It may be had in smaller pieces.
        return if transfer.narrow() { Ok(again(transfer)) } else { Err(transfer.unreadable_error()) };
    }
    for io in transfer.plan.reads() {
        transfer.parts.bad.note_read(io.member, io.sector..end(io));
    }
    heal_later(transfer);
    if transfer.goal.is_write() && !transfer.goal.is_sweep() {
        for io in transfer.plan.writes() {
            transfer.parts.note_mended(io.member, &(io.sector..end(io)));
        }
    }
    Ok(Attempt::Proven)
}

/// Does the plan's reads: what has become of them. None: who is read has changed since the plan was made.
pub(in crate::engine) async fn read(transfer: &mut Transfer<'_>) -> Option<Call> {
    let parts = transfer.parts;
    if transfer.content.scratch.is_none() {
        // Before the share: nobody waits for memory with one.
        transfer.content.scratch = parts.means.memory.take(transfer.plan.scratch().bytes()).await;
    }
    let cost = transfer.plan.reads().iter().map(|io| io.len.0).sum();
    let _permit = parts.shares.enter(transfer.goal.class(), Sectors(cost)).await;
    let is_replanned = pin_pages(transfer).await;
    let members = &parts.members;
    // Who has failed or become slow since the plan was made is gone around.
    let gone = members.missing().union(transfer.slow().minus(transfer.around.slow));
    let is_gone = |io: &DiskIo| gone.contains(io.member);
    if is_replanned || !gone.is_empty() && transfer.plan.reads().iter().any(is_gone) {
        return None;
    }
    let absent = note_absent(transfer);
    if !absent.is_empty() && !matches!(transfer.goal, Goal::Scrub { .. }) {
        return Some(Call::failed_by(absent));
    }
    let may_hedge = transfer.goal == Goal::Read;
    let reading = Reading { unreadable: transfer.unreadable, last: transfer.span().1, may_hedge };
    members.operations.begin_call(Purpose::Reads(reading));
    for io in transfer.plan.reads() {
        read_io(parts, transfer.plan, &mut transfer.content, io, transfer.reads_apart);
    }
    let mut call = members.operations.end_call().await;
    call.failed = call.failed.union(absent);
    for op in &call.errors {
        let sector = members.sector(op.member, op.offset);
        transfer.damage.push(Damage { member: op.member, sector, len: op.len.whole_sectors(), found: None });
    }
    Some(call)
}

/// Begins to read what an operation of the plan reads: at once, or unit by unit.
fn read_io(parts: &Parts, plan: &Plan, content: &mut Content<'_>, io: &DiskIo, is_apart: bool) {
    if !is_apart {
        return read_slices(parts, content, Location { member: io.member, sector: io.sector }, plan.slices(io));
    }
    let (chunk, mut at) = (parts.geometry().chunk().0, Location { member: io.member, sector: io.sector });
    for slice in plan.slices(io) {
        let mut done = 0;
        while done < slice.len.0 {
            let piece = slice.part(done, (chunk - at.sector.0 % chunk).min(slice.len.0 - done));
            read_slices(parts, content, at, &[piece]);
            (at.sector.0, done) = (at.sector.0 + piece.len.0, done + piece.len.0);
        }
    }
}

/// Begins an operation that reads from a place on into these slices.
fn read_slices(parts: &Parts, content: &mut Content<'_>, at: Location, slices: &[Slice]) {
    let (members, len) = (&parts.members, Sectors(slices.iter().map(|slice| slice.len.0).sum()));
    let (offset, end) = (members.offset(at.member, at.sector), DiskSector(at.sector.0 + len.0));
    let mut operation = members.operations.piecewise(at.member, OpKind::Read, offset, end);
    slices.iter().for_each(|slice| operation.push(content.lease_to_fill(slice)));
    operation.finish();
    members.counters.borrow_mut().read(at.member, len);
}

/// The members that do not have what is to be read of them. That is damage, as if they failed to read it.
fn note_absent(transfer: &mut Transfer<'_>) -> MemberSet {
    let bad = &transfer.parts.bad;
    let mut absent = MemberSet::EMPTY;
    if bad.is_empty() || planted!(BadBlocksRead) {
        return absent;
    }
    for io in transfer.plan.reads() {
        for run in bad.within(io.member, io.sector..end(io), Lack::Absent) {
            let len = Sectors(run.end.0 - run.start.0);
            transfer.damage.push(Damage { member: io.member, sector: run.start, len, found: None });
            absent = absent.with(io.member);
        }
    }
    absent
}

/// Takes the pages of checksums of what the plan reads and writes into memory; true: one takes too long, and the plan
/// is to do without its member.
async fn pin_pages(transfer: &mut Transfer<'_>) -> bool {
    let parts = transfer.parts;
    let Some(sums) = &parts.sums else { return false };
    let plan = &*transfer.plan;
    let touched = plan.reads().iter().chain(plan.writes()).map(|io| (io.member, io.sector, io.len.0, true));
    let recovered = plan.recovered().iter().map(|piece| (piece.member, piece.sector, piece.content.len.0, false));
    let twin = parts.members.twin();
    let twins = plan
        .writes()
        .iter()
        .filter_map(|io| twin.filter(|twin| twin.slot == io.member).map(|twin| (twin.seat, io.sector, io.len.0, true)));
    parts.members.operations.begin_call(Purpose::Pages { may_go_around: plan.writes().is_empty() });
    transfer.pins = sums.pin(&parts.members, transfer.slow(), touched.chain(recovered).chain(twins));
    parts.members.operations.end_call().await.is_replanned
}

/// Puts what only the log has over what was read, and does the plan's XORs.
pub(in crate::engine) fn compute(transfer: &mut Transfer<'_>) {
    let overlay = transfer.parts.overlay.borrow();
    if !overlay.is_empty() {
        for io in transfer.plan.reads() {
            let mut sector = io.sector;
            for slice in transfer.plan.slices(io) {
                overlay.apply(io.member, sector, transfer.content.bytes_to_fill(slice));
                sector.0 += slice.len.0;
            }
        }
    }
    transfer.content.compute(transfer.plan);
}

/// Some reads took too long: the part begins again, in other memory, without the members that failed others. Those that
/// are overdue are slow for it, and read again should nobody else have what they hold by then.
///
/// # Errors
/// As [`do_without`].
pub(in crate::engine) fn go_around(transfer: &mut Transfer<'_>, call: &Call) -> Result<Attempt, EngineError> {
    transfer.renew_memory();
    transfer.overdue = transfer.overdue.union(call.overdue);
    transfer.unreadable = transfer.unreadable.union(call.failed.minus(call.overdue));
    do_without(transfer)
}

/// Has the part planned without the members that failed to give what they hold.
///
/// # Errors
/// [`EngineError::Unreadable`] for what is read ahead: nothing is recovered that nobody asked for.
fn do_without(transfer: &mut Transfer<'_>) -> Result<Attempt, EngineError> {
    if transfer.goal == Goal::Ahead {
        transfer.damage.clear();
        return Err(transfer.unreadable_error());
    }
    let without = transfer.unreadable.union(transfer.lost());
    if Repair::new(transfer.parts.geometry(), without).is_err() {
        let _ = transfer.narrow() || transfer.read_apart();
    }
    Ok(again(transfer))
}

/// The part is planned again.
pub(in crate::engine) fn again(transfer: &mut Transfer<'_>) -> Attempt {
    transfer.let_go();
    Attempt::Again
}

/// Has everything healed that was found and done without; not while a member waits to join, which waits for that: the
/// next read finds it again.
fn heal_later(transfer: &mut Transfer<'_>) {
    let (parts, members) = (transfer.parts, &transfer.parts.members);
    // Parity that may be wrong is good enough to answer from where nothing else is left, not to be made what the member
    // holds.
    let is_doubted = members.is_suspect() && !planted!(HealInDoubt);
    let is_held = parts.repairs.is_held.get() && !planted!(HealHoldsJoin);
    let missing = members.missing();
    for damage in transfer.damage.drain(..) {
        let is_left = members.is_read_only() || is_doubted || is_held || planted!(HealDropped);
        if !is_left && !missing.contains(damage.member) {
            parts.repairs.heals.add(parts.geometry(), damage);
        }
    }
}
