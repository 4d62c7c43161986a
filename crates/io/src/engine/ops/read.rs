//! The life of a read: what is in memory is copied, and the rest comes from the members.
//!
//! A read looks into the cache once for each part, and plans it once where nothing goes wrong. A plan that computes
//! takes the stripes' locks and is carried out under them as it is: what it reads is looked at again only if who is
//! there has changed meanwhile.

use std::ops::Range;

use uraid_layout::{Lba, MemberSet, Sectors};

use super::write::part_len;
use crate::buf::Buf;
use crate::engine::core::Core;
use crate::engine::error::EngineError;
use crate::engine::parts::Parts;
use crate::engine::replies::{Outcome, Ticket};
use crate::engine::transfer::reading::{Attempt, attempt};
use crate::engine::transfer::{Goal, Transfer, Workspace};

/// Fills a buffer from `start` on, and replies.
pub(in crate::engine) async fn read(core: &Core, space: &mut Workspace, ticket: Ticket, start: Lba, buf: Buf) {
    let end = Lba(start.0 + buf.len() as u64 / 512);
    let mut outcome = Ok(Some(buf));
    for (parts, range) in core.sides.split(start..end) {
        let Ok(Some(buf)) = outcome else { break };
        outcome = fill(core, parts, space, range, (start, buf)).await;
    }
    core.sides.below.replies.give(ticket, outcome);
}

/// Fills a range of what the buffer has from `start` on.
pub(in crate::engine) async fn fill(
    core: &Core,
    parts: &Parts,
    space: &mut Workspace,
    range: Range<Lba>,
    (start, buf): (Lba, Buf),
) -> Outcome {
    let (mut at, end) = (range.start.0, range.end.0);
    let mut transfer = Transfer::new(parts, space, Goal::Read, Some(buf));
    while at < end {
        let (is_blank, run_end) = parts.blanks.run(parts.geometry(), Lba(at), Lba(end));
        if is_blank && !planted!(BlankRead) {
            transfer.fill_with_zeroes(Sectors(at - start.0), Sectors(run_end.0 - at));
            at = run_end.0;
            continue;
        }
        let part = part_len(parts, Lba(at), run_end);
        let part_end = at + part.0;
        core.ahead.wait(parts, at..part_end).await;
        transfer.look_up(Lba(at), part, Sectors(at - start.0));
        // What can't be had together is had piece by piece.
        while at < part_end {
            transfer.begin(Lba(at), Sectors(part_end - at), Sectors(at - start.0));
            let result = obtain(&mut transfer).await;
            if result.is_err() {
                transfer.give_up_on_damage();
            }
            transfer.let_go();
            transfer.guard = None;
            result?;
            core.ahead.consume(parts, transfer.at, transfer.len);
            at += transfer.len.0;
        }
    }
    Ok(transfer.content.request.take())
}

/// Gets sectors whose stripes the transfer has into its memory, from the beginning of that on.
pub(super) async fn obtain_held(transfer: &mut Transfer<'_>, start: Lba, len: Sectors) -> Result<(), EngineError> {
    transfer.look_up(start, len, Sectors(0));
    let (mut at, end) = (start.0, start.0 + len.0);
    while at < end {
        transfer.begin(Lba(at), Sectors(end - at), Sectors(at - start.0));
        let result = obtain(transfer).await;
        if result.is_err() {
            transfer.give_up_on_damage();
        }
        transfer.let_go();
        result?;
        at += transfer.len.0;
    }
    Ok(())
}

/// Gets the part. What comes straight from members needs no lock; what is computed from several units does, and so does
/// what may have been replied to and is not in place yet.
async fn obtain(transfer: &mut Transfer<'_>) -> Result<(), EngineError> {
    let lost_before = transfer.lost();
    // Members that failed to give some of the part before it had its lock. They may give it now: a write that had the
    // lock may have brought it. Then they may be the only ones that still have it.
    let mut stale = MemberSet::EMPTY;
    loop {
        match obtain_once(transfer, &mut stale).await {
            Ok(Attempt::Proven) => return Ok(()),
            Ok(Attempt::Again) => {}
            Ok(Attempt::Doubted) => lock(transfer, &mut stale).await?,
            Err(error @ EngineError::Unreadable { .. }) if !planted!(FailureRemembered) => {
                if transfer.guard.is_none() && transfer.lost() != lost_before {
                    lock(transfer, &mut stale).await?;
                }
                if transfer.unreadable.minus(stale) == transfer.unreadable {
                    return Err(error);
                }
                stale = MemberSet::EMPTY;
                transfer.forget_failures();
            }
            Err(error) => return Err(error),
        }
    }
}

/// Plans the part and gets what the plan needs, once.
async fn obtain_once(transfer: &mut Transfer<'_>, stale: &mut MemberSet) -> Result<Attempt, EngineError> {
    transfer.plan()?;
    if transfer.guard.is_none() && needs_lock(transfer) {
        lock(transfer, stale).await?;
    }
    attempt(transfer).await
}

fn needs_lock(transfer: &Transfer<'_>) -> bool {
    let (parts, plan) = (transfer.parts, &*transfer.plan);
    let computes = !plan.xors().is_empty() && !planted!(DegradedReadUnlocked);
    let reads = !plan.reads().is_empty() && !planted!(UnplacedRead);
    computes || reads && parts.replies.is_placing() && parts.locks.is_held(transfer.span())
}

/// Takes the part's stripes. What members failed to give before is stale from then on.
async fn lock(transfer: &mut Transfer<'_>, stale: &mut MemberSet) -> Result<(), EngineError> {
    transfer.guard = Some(transfer.parts.locks.acquire(transfer.span()).await);
    *stale = transfer.unreadable;
    // A write may have changed parity and not data, or the other way round.
    transfer.parts.members.check_frozen()
}
