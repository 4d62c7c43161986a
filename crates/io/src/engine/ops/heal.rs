//! Healing: what a member failed to give is computed from the others and written back to it.
//!
//! The piece, within one unit of a parity stripe, is computed under the stripe's lock, written through the log where
//! there is one, then read back and compared. A member that fails the write, or does not give back what was written, is
//! failed as by any other write, unless the array can't do without it: then it is on record that it lacks the piece.

use uraid_layout::{Lba, MemberSet, Sectors};

use super::held;
use super::write::change;
use crate::buf::Buf;
use crate::disk::OpKind;
use crate::engine::damage::Piece;
use crate::engine::error::EngineError;
use crate::engine::locks::Guard;
use crate::engine::operations::Purpose;
use crate::engine::parts::Parts;
use crate::engine::transfer::writing::is_spared;
use crate::engine::transfer::{Goal, Transfer, Workspace, end};
use crate::format::badblocks::Lack;

/// Heals a piece that somebody did without.
pub(in crate::engine) async fn heal(parts: &Parts, space: &mut Workspace, piece: Piece) {
    let healing = parts.repairs.heals.begin();
    let member = parts.geometry().member(piece.cell);
    let is_at_fault = !is_absent(parts, piece);
    let (is_healed, result) = make_good(parts, space, None, piece, MemberSet::EMPTY.with(member)).await;
    if !is_healed && result.is_err() && parts.members.missing().contains(member) {
        // It is done without, and what it was to hold is nobody's loss.
        let Piece { stripe, start, .. } = piece;
        tracing::info!(%member, %stripe, %start, "the member has failed, so nothing is written back to it");
    } else {
        note_outcome(parts, piece, is_at_fault, is_healed, result.err().as_ref());
    }
    drop(healing);
    parts.wake_repairs();
}

/// Heals a piece that a scrub found wrong, which has the stripe's lock; units of the members `without` are not what it
/// is computed from. Where the member `is_at_fault`, that is one of its errors. Whether it is healed.
pub(in crate::engine) async fn heal_judged<'a>(
    parts: &'a Parts,
    space: &'a mut Workspace,
    guard: Option<Guard<'a>>,
    piece: Piece,
    without: MemberSet,
    is_at_fault: bool,
) -> bool {
    let (is_healed, result) = make_good(parts, space, guard, piece, without).await;
    note_outcome(parts, piece, is_at_fault, is_healed, result.err().as_ref());
    is_healed
}

/// Whether it is known that the member never got some of a piece: that is no error of the member.
fn is_absent(parts: &Parts, piece: Piece) -> bool {
    let Piece { stripe, cell, start, len, .. } = piece;
    let (member, sectors) = parts.geometry().columns(stripe, cell, start, len);
    parts.bad.lacks(member, sectors, Lack::Absent)
}

fn note_outcome(parts: &Parts, piece: Piece, is_at_fault: bool, is_healed: bool, error: Option<&EngineError>) {
    let Piece { stripe, cell, start, .. } = piece;
    let member = parts.geometry().member(cell);
    if is_healed {
        parts.members.counters.borrow_mut().repaired(member);
        tracing::info!(%member, %stripe, %start, "content was computed from the other members and written back");
        if is_at_fault {
            parts.note_corrected(member);
        }
    } else {
        parts.members.counters.borrow_mut().unrepairable(member);
        tracing::error!(%member, %stripe, %start, error = error.map(tracing::field::display), "content could not be \
            written back");
    }
}

/// Whether the member gave back what was written to it, and what went wrong.
async fn make_good<'a>(
    parts: &'a Parts,
    space: &'a mut Workspace,
    guard: Option<Guard<'a>>,
    piece: Piece,
    without: MemberSet,
) -> (bool, Result<(), EngineError>) {
    let Piece { stripe, cell, start, len, found } = piece;
    let is_judged = guard.is_some();
    let mut transfer = Transfer::new(parts, space, Goal::Heal { stripe, cell, start, found }, None);
    transfer.guard = guard;
    transfer.begin(Lba(0), len, Sectors(0));
    let own = parts.geometry().member(cell);
    (transfer.unreadable, transfer.shunned) = (MemberSet::EMPTY.with(own), without.without(own));
    let mut held = match held::take(&mut transfer).await {
        Ok(held) => held,
        Err(error) => return (false, Err(error)),
    };
    let mut is_healed = false;
    let result = write_back(&mut transfer, &mut held, is_judged, &mut is_healed).await;
    held::release(&mut transfer, held, result.as_ref().err());
    (is_healed, result)
}

/// Writes the piece as any change of parity stripes, and whether the member gives it back then.
async fn write_back<'a>(
    transfer: &mut Transfer<'a>,
    held: &mut held::Held<'a>,
    is_judged: bool,
    is_healed: &mut bool,
) -> Result<(), EngineError> {
    change(transfer, held, |transfer| {
        if is_judged {
            // What was read of a unit that is wrong without anybody knowing may be in memory.
            let (parts, stripe) = (transfer.parts, transfer.span().0);
            let _ = parts.writeback.with(|cache| cache.forget_clean(stripe));
            parts.zeros.note_written(&parts.content_of(stripe.0..stripe.0 + 1));
        }
    })
    .await?;
    *is_healed = read_back(transfer).await?;
    transfer.parts.members.failures_recorded().await
}

/// Reads back what was written, and compares it; a member that does not give it back has failed.
async fn read_back(transfer: &Transfer<'_>) -> Result<bool, EngineError> {
    let members = &transfer.parts.members;
    let io = transfer.plan.writes().first().expect("what is healed is written");
    if members.missing().contains(io.member) {
        return Ok(false);
    }
    let mut back = Buf::zeroed(io.len.bytes());
    let (offset, len) = (members.offset(io.member, io.sector), back.len());
    members.operations.begin_call(Purpose::Other);
    let mut operation = members.operations.piecewise(io.member, OpKind::Read, offset, end(io));
    operation.push(back.lease_write(0..len));
    operation.finish();
    members.counters.borrow_mut().read(io.member, io.len);
    let has_failed = !members.operations.end_call().await.failed.is_empty();
    let mut at = 0;
    let is_same = !has_failed
        && transfer.plan.slices(io).iter().all(|slice| {
            let written = transfer.content.computed(slice);
            let is_same = back.bytes(at..at + written.len()) == written;
            at += written.len();
            is_same
        });
    let is_healed = is_same || planted!(HealUnchecked);
    if !is_healed {
        let (member, sector) = (io.member, io.sector);
        tracing::error!(%member, %sector, "the member does not give back what was written to heal it");
        let (bad, own) = (&transfer.parts.bad, MemberSet::EMPTY.with(member));
        let is_kept = is_spared(transfer, own) && bad.add(member, sector..end(io), Lack::Absent).is_ok();
        let failed = if is_kept { bad.keep(members).await } else { own };
        members.fail(failed)?;
    }
    Ok(is_healed)
}
