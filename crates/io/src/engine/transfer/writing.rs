//! Carrying out what a plan writes: through the log where there is one, in place, and its checksums.

use uraid_layout::plan::{Buffer, DiskIo, Plan};
use uraid_layout::{DiskSector, Lba, Location, MemberSet, Owner, Sectors};

use super::{Goal, Transfer, end, proof};
use crate::cache::Source;
use crate::disk::OpKind;
use crate::engine::error::EngineError;
use crate::engine::log::{Form, Logged, Piece};
use crate::engine::operations::{Call, Purpose};
use crate::engine::ops::journal;
use crate::engine::parts::Parts;
use crate::format::badblocks::Lack;
use crate::format::log::record::Kind;

/// Shorter zeros are written: an operation of their own would only cut the member's extents up.
pub(in crate::engine) const ZERO_OPERATION_MIN: Sectors = Sectors((64 << 10) / 512);

/// Has it durable that parity which the plan leaves out of agreement counts for nothing from now on.
///
/// # Errors
/// [`EngineError::BadBlocks`]; [`EngineError::WriteFailed`], [`EngineError::FlushFailed`] without redundancy;
/// [`EngineError::Frozen`].
pub(in crate::engine) async fn give_up_parity(transfer: &Transfer<'_>) -> Result<(), EngineError> {
    let parts = transfer.parts;
    for (member, sectors) in transfer.without.sectors.iter().filter(|_| !planted!(ParityLeft)) {
        // A twin may have got it before.
        for (holder, _) in parts.members.targets(*member, sectors.start, false) {
            if planted!(TwinParityLeft) && holder != *member {
                continue;
            }
            let added = parts.bad.add(holder, sectors.clone(), Lack::Absent);
            added.map_err(|source| EngineError::BadBlocks { member: *member, source })?;
        }
    }
    if transfer.without.sectors.is_empty() {
        return Ok(());
    }
    parts.keep_lists().await?;
    if let Some(log) = parts.log.as_ref().filter(|_| !planted!(ParityDoneAgain)) {
        // What it has of that parity would come back without what is about to be written.
        log.outlive(&parts.members, &parts.flusher).await?;
    }
    Ok(())
}

/// Makes what is about to be written durable in the log, where there is one; until it is in place the log keeps it.
///
/// # Errors
/// [`EngineError::LogFailed`]; [`EngineError::Frozen`].
pub(in crate::engine) async fn log<'a>(transfer: &mut Transfer<'a>) -> Result<Option<Logged<'a>>, EngineError> {
    let parts = transfer.parts;
    let Some(log) = &parts.log else { return Ok(None) };
    take_over(transfer);
    if planted!(SkipLog) {
        return Ok(None);
    }
    let note_committed = |transfer: &mut Transfer<'_>| {
        let _ = parts.writeback.with(|cache| cache.committed(transfer.content.cached));
        parts.writeback.wake_drained();
        journal::settle(parts);
    };
    if planted!(FlushBeforeCommit) {
        note_committed(transfer);
    }
    // Flushes wait for what flies of the cache, or see to it in other ways.
    let is_seen_to = transfer.content.cached.is_awaited() && matches!(transfer.goal, Goal::Destage);
    let form = if takes_sums(transfer) { Form::Sums { is_awaited: !is_seen_to } } else { Form::Content };
    let kind = if form == Form::Content { Kind::Content } else { Kind::Sums };
    if kind == Kind::Sums {
        transfer.content.cached.note_by_sums();
        // A write that may be answered now is one with write-back: it is in memory, and a flush waits for it.
        parts.replies.answer(parts.tasks().current(), false);
    }
    let logged = log.put(form, |update| update_of(transfer, kind, update), &parts.members, &parts.flusher).await?;
    if !planted!(CommitDespiteFailure) {
        parts.members.failures_recorded().await?;
    }
    if parts.counts_logged() && form == Form::Content {
        note_committed(transfer);
    }
    if parts.flusher.failures().is_empty() && parts.replies.answer(parts.tasks().current(), true) {
        // Whoever reads it waits until it is in place.
        transfer.note_zeroed();
    }
    Ok(Some(logged))
}

/// Whether sums of what the plan writes are enough for the log: it is whole parity stripes, on members that are all
/// there and lack nothing. What of them is written can be told by the sums, and all other content of the stripes is
/// that of this write. Where a member is missing, parity may be all that says what it holds, and is not to be torn from
/// it. Checksums are made anew from logged content.
pub(in crate::engine) fn takes_sums(transfer: &Transfer<'_>) -> bool {
    let Transfer { parts, goal, at, len, plan, content, .. } = transfer;
    let Parts { members, log, sums, bad, .. } = parts;
    let stripe = parts.geometry().stripe_sectors().0;
    let is_whole = at.0.is_multiple_of(stripe) && len.0.is_multiple_of(stripe) && plan.reads().is_empty();
    let is_written = match goal {
        Goal::Write => true,
        Goal::Destage => content.cached.extents().iter().map(|extent| extent.content.len.0).sum::<u64>() == len.0,
        _ => false,
    };
    let has_parity = parts.geometry().spec().level.has_parity();
    let is_plain = sums.is_none() && bad.is_empty() && members.between().is_none();
    let has_all = members.missing().is_empty() && members.rebuilding().is_empty() || planted!(SumsWhileDegraded);
    let is_on = log.as_ref().is_some_and(|log| log.takes_sums());
    // What the journal keeps has to be in the log before it is let go.
    let is_held = content.cached.has_held();
    is_on && !is_held && (is_whole || planted!(SumsOfPart)) && is_written && has_parity && is_plain && has_all
}

/// Appends the plan's writes as pieces for the log: their content, or sums of it.
fn update_of(transfer: &Transfer<'_>, kind: Kind, update: &mut Vec<Piece>) {
    let plan = &*transfer.plan;
    let missing = transfer.parts.members.missing();
    let count = plan.writes().len() - usize::from(planted!(LastWriteNotLogged) && !plan.writes().is_empty());
    for io in plan.writes()[..count].iter().filter(|io| !missing.contains(io.member)) {
        let (member, mut sector) = (io.member, io.sector);
        for slice in plan.slices(io) {
            if slice.buffer == Buffer::Zeroes && kind == Kind::Content {
                if !planted!(ZeroesNotLogged) {
                    update.push(Piece { member, sector, len: slice.len, kind: Kind::Zeros, content: None });
                }
                sector.0 += slice.len.0;
                continue;
            }
            transfer.content.for_each_lease(*slice, |lease| {
                let len = uraid_layout::Bytes(lease.len() as u64).whole_sectors();
                update.push(Piece { member, sector, len, kind, content: Some(lease) });
                sector.0 += len.0;
            });
        }
    }
}

/// Writes in place what the plan says, and its checksums. Members that fail are given up; that is still to be put on
/// record.
///
/// # Errors
/// [`EngineError::Frozen`]; [`EngineError::WriteFailed`] where there is no redundancy.
pub(in crate::engine) async fn write(transfer: &mut Transfer<'_>) -> Result<(), EngineError> {
    let (parts, members) = (transfer.parts, &transfer.parts.members);
    if planted!(UnlockAtCommit) {
        transfer.guard = None;
    }
    let cost = transfer.plan.writes().iter().map(|io| io.len.0).sum();
    let mut is_first = true;
    let failed = loop {
        members.check_frozen()?;
        let _permit = parts.shares.enter(transfer.goal.class(), Sectors(cost)).await;
        if std::mem::take(&mut is_first) && parts.log.is_none() {
            take_over(transfer);
        }
        let call = issue(transfer).await;
        // A member may have turned out to have no operation for zeroing.
        note_abilities(transfer, &call);
        if call.cannot_zero.is_empty() {
            break call.failed;
        }
    };
    let (unwritten, is_spared) = (failed, is_spared(transfer, failed));
    let untaken = if is_spared || is_had(parts) { failed } else { MemberSet::EMPTY };
    let failed = if is_spared { MemberSet::EMPTY } else { failed };
    if let Err(error) = members.fail(failed)
        && members.is_frozen()
    {
        proof::note_written(transfer, unwritten);
        return Err(error);
    }
    members.check_frozen()?;
    proof::note_written(transfer, unwritten);
    let late = proof::wait_written(transfer).await;
    let failed = failed.union(late).union(settle_lists(transfer, unwritten, untaken).await);
    // Without redundancy it fails only now, when what members hold has its checksums.
    members.fail(failed)
}

/// Whether who failed to take what was to heal it is kept, as the array can't do without it: nobody asked for that
/// write, and what it lacks others have.
pub(in crate::engine) fn is_spared(transfer: &Transfer<'_>, failed: MemberSet) -> bool {
    let members = &transfer.parts.members;
    let is_needed = members.tolerance() > 0 && !failed.is_empty() && !members.survives(failed);
    matches!(transfer.goal, Goal::Heal { .. }) && is_needed && !planted!(HealFreezes)
}

/// Whether others have what members fail to take, who are kept as the array's other shape has no redundancy: parity of
/// this one would say something else than they do.
fn is_had(parts: &Parts) -> bool {
    parts.members.tolerance() == 0 && parts.geometry().tolerance() > 0 && !planted!(UntakenTrusted)
}

/// Takes out of the lists of bad blocks what has its content now, and into them what is `untaken`: what members failed
/// to take who are kept. Has that durable: who failed to take it.
async fn settle_lists(transfer: &Transfer<'_>, failed: MemberSet, untaken: MemberSet) -> MemberSet {
    let Parts { members, bad, .. } = transfer.parts;
    if bad.is_empty() && !bad.is_owed() && untaken.is_empty() || planted!(BadBlocksKept) {
        return MemberSet::EMPTY;
    }
    let is_copy = matches!(transfer.goal, Goal::Copy { .. });
    let (mut has_changed, mut written) = (!untaken.is_empty(), MemberSet::EMPTY);
    for io in transfer.plan.writes() {
        if untaken.contains(io.member) && bad.add(io.member, io.sector..end(io), Lack::Absent).is_err() {
            tracing::error!(member = %io.member, sector = %io.sector, "its list of bad blocks is full: parity does not \
                agree there until it is written again");
        }
        let targets = members.targets(io.member, io.sector, is_copy).into_iter().map(|(member, _)| member);
        for member in targets.filter(|&member| !failed.contains(member)) {
            has_changed |= bad.remove(member, io.sector..end(io));
            written = written.with(member);
        }
    }
    members.between().into_iter().filter(|_| has_changed).for_each(|between| between.is_mended.set(true));
    if (has_changed || bad.is_owed()) && !planted!(BadBlocksUnsaved) {
        let unkept = bad.keep(members).await;
        // Whose list was owed before is for those who write to it.
        if planted!(OwedByOthers) { unkept } else { unkept.minus(unkept.minus(written)) }
    } else {
        MemberSet::EMPTY
    }
}

/// Does the plan's writes: what has become of them.
async fn issue(transfer: &Transfer<'_>) -> Call {
    let (plan, members) = (&*transfer.plan, &transfer.parts.members);
    let is_unlocked = [planted!(UnlockAtCommit), planted!(RebuildUnlocked), planted!(ScrubUnlocked)].contains(&true);
    assert!(transfer.guard.is_some() || is_unlocked, "a stripe is written under its lock");
    let is_copy = matches!(transfer.goal, Goal::Copy { .. });
    let may_punch = matches!(transfer.goal, Goal::Zero { may_punch: true });
    members.operations.begin_call(Purpose::Writes);
    for io in plan.writes() {
        let is_zero = io.len >= ZERO_OPERATION_MIN && is_zeros(plan, io);
        let is_left_out = members.rebuilding().contains(io.member) && !matches!(transfer.goal, Goal::Rebuild { .. });
        if planted!(RebuildingUnwritten) && is_left_out {
            continue;
        }
        for (member, offset) in members.targets(io.member, io.sector, is_copy) {
            if is_zero && !members.abilities.cannot(may_punch).contains(member) {
                let kind = OpKind::Zero { len: io.len.bytes(), may_punch };
                members.operations.piecewise(member, kind, offset, end(io)).finish();
                members.counters.borrow_mut().zero(member);
                continue;
            }
            let mut operation = members.operations.piecewise(member, OpKind::Write, offset, end(io));
            for slice in plan.slices(io) {
                transfer.content.for_each_lease(*slice, |lease| operation.push(lease));
            }
            operation.finish();
            members.counters.borrow_mut().write(member, io.len);
        }
    }
    members.operations.end_call().await
}

/// Whether an operation writes nothing but zeros.
fn is_zeros(plan: &Plan, io: &DiskIo) -> bool {
    plan.slices(io).iter().all(|slice| slice.buffer == Buffer::Zeroes)
}

/// Notes which members have an operation for zeroing and which don't, and whether all have given back their space.
fn note_abilities(transfer: &mut Transfer<'_>, call: &Call) {
    let Goal::Zero { may_punch } = transfer.goal else { return };
    let (plan, abilities) = (&*transfer.plan, &transfer.parts.members.abilities);
    abilities.note_cannot(call.cannot_zero, may_punch);
    let (mut zeroed, mut is_punched) = (MemberSet::EMPTY, may_punch);
    for io in plan.writes() {
        let is_zeroed = io.len >= ZERO_OPERATION_MIN && is_zeros(plan, io);
        zeroed = if is_zeroed { zeroed.with(io.member) } else { zeroed };
        is_punched &= is_zeroed && !abilities.cannot(may_punch).contains(io.member);
    }
    abilities.note_can(zeroed.minus(call.failed).minus(abilities.cannot(may_punch)), may_punch);
    transfer.is_punched = is_punched;
}

/// Lets what is about to be written take the place of what the cache holds of it, and leaves the new parity there.
fn take_over(transfer: &mut Transfer<'_>) {
    let (at, len) = transfer.asked();
    let Transfer { parts, goal, asked, plan, content, .. } = transfer;
    let (parts, geometry) = (*parts, parts.geometry());
    if *goal == Goal::Write {
        parts.zeros.note_written(&(at..Lba(at.0 + len.0)));
    }
    let _ = parts.writeback.with(|cache| {
        if asked.is_some() {
            // The members are to hold zeros for the rest, too. What has come there meanwhile stays: it is newer.
            cache.forget_clean(geometry.split(at).0);
        }
        if !content.cached.flies() {
            let source = match (*goal, &content.request) {
                (Goal::Write, Some(request)) => Source::Request(request, super::content::bytes(content.base)),
                (Goal::Zero { .. }, _) => Source::Zeroes(content.zeroes),
                _ => return,
            };
            let keeps = len.0 < geometry.stripe_sectors().0 && !parts.writeback.is_bypassed();
            cache.take_over(geometry, (at, len), source, keeps, content.cached);
        }
        if !content.cached.flies() {
            return;
        }
        for io in plan.writes() {
            let mut sector = io.sector.0;
            for slice in plan.slices(io) {
                let mut done = 0;
                while slice.buffer == Buffer::Scratch && done < slice.len.0 {
                    let location = Location { member: io.member, sector: DiskSector(sector + done) };
                    let Some(Owner::Parity { stripe, group, offset }) = geometry.owner(location) else { break };
                    let part = slice.part(done, (geometry.chunk().0 - offset.0).min(slice.len.0 - done));
                    cache.put_parity(content.cached, stripe, group, offset, content.computed(&part));
                    done += part.len.0;
                }
                sector += slice.len.0;
            }
        }
    });
}
