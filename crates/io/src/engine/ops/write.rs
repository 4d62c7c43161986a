//! The life of a write that is written through: content, or zeros.
//!
//! With write-back most writes never come here: the cache takes them, and [`destage`](super::destage) writes them out.

use std::cell::Cell;
use std::ops::Range;

use uraid_layout::{Lba, Sectors};

use super::held::{self, Held};
use super::{flush, journal};
use crate::buf::Buf;
use crate::engine::error::EngineError;
use crate::engine::parts::Parts;
use crate::engine::replies::{Answerable, Ticket};
use crate::engine::sides::Sides;
use crate::engine::transfer::writing::ZERO_OPERATION_MIN;
use crate::engine::transfer::{Goal, PART, Transfer, Workspace, reading, writing};
use crate::engine::zeros::Status;

/// A command that writes.
#[derive(Debug)]
pub(in crate::engine) struct Request {
    pub(in crate::engine) ticket: Ticket,
    /// [`Goal::Write`] or [`Goal::Zero`].
    pub(in crate::engine) goal: Goal,
    /// Where the command begins: its memory counts from here.
    pub(in crate::engine) start: Lba,
    /// What of it is to be written.
    pub(in crate::engine) range: Range<Lba>,
    /// How long the command is. Some of it is in the cache, and to be durable there.
    pub(in crate::engine) len: Sectors,
    pub(in crate::engine) is_cached: bool,
    /// Some of it was zeros already.
    pub(in crate::engine) is_known: bool,
    pub(in crate::engine) buf: Option<Buf>,
    /// Reply when it is durable.
    pub(in crate::engine) fua: bool,
}

impl Request {
    /// Content, of which the cache has taken in what is not in `range`.
    pub(in crate::engine) fn content(
        ticket: Ticket,
        (start, len): (Lba, Sectors),
        range: Range<Lba>,
        buf: Buf,
        fua: bool,
    ) -> Self {
        let is_cached = range.end.0 - range.start.0 < len.0;
        Self { ticket, goal: Goal::Write, start, range, len, is_cached, is_known: false, buf: Some(buf), fua }
    }

    /// Zeros.
    pub(in crate::engine) fn zeroes(ticket: Ticket, range: Range<Lba>, may_punch: bool, fua: bool) -> Self {
        let goal = Goal::Zero { may_punch };
        let len = Sectors(range.end.0 - range.start.0);
        Self { ticket, goal, start: range.start, range, len, is_cached: false, is_known: false, buf: None, fua }
    }
}

/// Writes, and replies: as soon as the log has all of it, or when it is in place.
pub(in crate::engine) async fn write(sides: &Sides, space: &mut Workspace, request: Request) {
    let (ticket, lba) = (request.ticket, request.start);
    let mut answerable = None;
    let result = write_all(sides, space, request, &mut answerable).await;
    match result {
        Err(error) if answerable.as_ref().is_some_and(Answerable::is_answered) => {
            tracing::error!(%lba, %error, "logged content could not be written in place");
        }
        Ok(()) if answerable.as_ref().is_some_and(Answerable::is_answered) => {}
        result => sides.below.replies.give(ticket, result.map(|()| None)),
    }
}

async fn write_all<'a>(
    sides: &'a Sides,
    space: &mut Workspace,
    mut request: Request,
    answerable: &mut Option<Answerable<'a>>,
) -> Result<(), EngineError> {
    request.fua &= !planted!(FuaAsPlain);
    for (parts, range) in sides.split(request.range.clone()) {
        write_parts(parts, space, &mut request, range, answerable).await?;
    }
    // Without write-back nothing that is in memory alone is replied to.
    let is_through = !sides.below.writeback.is_on() && !planted!(LiveTakenIn);
    if (request.is_cached || request.is_known) && (request.fua || is_through) {
        let end = Lba(request.start.0 + request.len.0);
        for (parts, Range { start, end }) in sides.split(request.start..end) {
            keep(parts, start, Sectors(end.0 - start.0)).await?;
        }
    }
    if request.fua && !answerable.as_ref().is_some_and(Answerable::is_answered) {
        flush::durable(&sides.below, flush::Covers::Replied).await?;
    }
    Ok(())
}

/// Makes what the cache has of a range durable.
pub(super) async fn keep(parts: &Parts, start: Lba, len: Sectors) -> Result<(), EngineError> {
    // A change of members that waits for this holds everything else back.
    let _awaiting = (!planted!(KeptUnawaited)).then(|| parts.writeback.begin_awaiting());
    let mark = parts.writeback.cache().map(|cache| cache.journal().mark());
    let is_left = || {
        let cache = parts.writeback.cache();
        cache.zip(mark).is_some_and(|(cache, mark)| cache.journal().is_left_at(mark, start, len))
    };
    while !journal::flush(parts).await? {
        let pressing = parts.journal.as_ref().map(|journal| journal.begin_pressing(&parts.writeback));
        let drained = flush::drain(parts, false).await;
        drop(pressing);
        match drained {
            // What can't be written out is somebody else's.
            Err(EngineError::NotDestaged { .. }) if !is_left() => break,
            Err(EngineError::NotDestaged { .. }) if journal::make_room(parts).await? => {}
            drained => {
                drained?;
                break;
            }
        }
    }
    Ok(())
}

/// Writes a range of a request, whose memory comes back for the rest.
async fn write_parts<'a>(
    parts: &'a Parts,
    space: &mut Workspace,
    request: &mut Request,
    range: Range<Lba>,
    answerable: &mut Option<Answerable<'a>>,
) -> Result<(), EngineError> {
    let Request { ticket, goal, start, fua, is_cached, range: ref whole, ref mut buf, .. } = *request;
    let size = Sectors(whole.end.0 - start.0).bytes();
    let mut transfer = Transfer::new(parts, space, goal, buf.take());
    let (mut at, mut is_by_sums) = (range.start, false);
    let has_cached = Cell::new(is_cached);
    // What is blank or not from here to there. What is not stays so.
    let mut run = (false, at);
    while at < range.end {
        if at >= run.1 {
            run = parts.blanks.run(parts.geometry(), at, range.end);
        }
        let (is_blank, end) = run;
        if is_blank && !planted!(BlankWritten) {
            // They are to be zeros, and are.
            at = end;
            continue;
        }
        let end = match goal {
            Goal::Zero { may_punch: true } => match has_zeros(parts, at, end) {
                (true, end) => {
                    request.is_known |= !planted!(KnownZerosVolatile);
                    at = end;
                    continue;
                }
                (false, end) => end,
            },
            _ => end,
        };
        // What is there may be in memory only.
        let is_known = request.is_known;
        write_run(&mut transfer, start, at..end, &has_cached, |transfer| {
            // A command is answered when the log has the last of it: the content of that, and for a durable one of all.
            // With write-back sums are enough, as for any write that is in memory only.
            let (start, len) = transfer.asked();
            let is_last = start.0 + len.0 == whole.end.0;
            let takes_sums = writing::takes_sums(transfer);
            is_by_sums |= takes_sums;
            let is_early = parts.writeback.is_on() && !fua;
            let is_there = is_early
                || !(takes_sums || has_cached.get() || is_known || fua && is_by_sums)
                || planted!(SumsAnswered);
            if is_last && parts.counts_logged() && is_there {
                *answerable = Some(parts.replies.promise(ticket, size, fua));
            }
        })
        .await?;
        at = end;
    }
    *buf = transfer.content.request.take();
    request.is_cached = has_cached.get();
    Ok(())
}

/// Writes zeros that no client asked for.
///
/// # Errors
/// As [`change`].
pub(in crate::engine) async fn write_range(
    parts: &Parts,
    space: &mut Workspace,
    goal: Goal,
    range: Range<Lba>,
) -> Result<(), EngineError> {
    let mut transfer = Transfer::new(parts, space, goal, None);
    write_run(&mut transfer, range.start, range, &Cell::new(false), |_| ()).await
}

/// Writes sectors part by part; the command's memory counts from `start`. `obtained` is called for each part when
/// everything is there that it takes. Parts of which the journal has something go into the cache if they can.
async fn write_run<'a>(
    transfer: &mut Transfer<'a>,
    start: Lba,
    range: Range<Lba>,
    has_cached: &Cell<bool>,
    mut obtained: impl FnMut(&Transfer<'a>),
) -> Result<(), EngineError> {
    let (mut at, mut may_widen, mut punched) = (range.start, true, Vec::new());
    transfer.begin_zeroing(&range);
    while at < range.end {
        let len = match transfer.goal {
            Goal::Write => part_len(transfer.parts, at, range.end),
            _ => zeros_len(transfer.parts, at, range.end),
        };
        transfer.begin(at, len, Sectors(at.0 - start.0));
        let Some(mut held) = take(transfer).await? else {
            has_cached.set(true);
            at.0 += transfer.len.0;
            continue;
        };
        let whole = if may_widen { widen(transfer) } else { None };
        let result = change(transfer, &mut held, &mut obtained).await;
        held::release(transfer, held, result.as_ref().err());
        result?;
        may_widen = whole.is_none_or(|whole| whole == transfer.len);
        if !may_widen {
            // Less could be done at once, and that is what was not asked for.
            continue;
        }
        if transfer.is_punched {
            punched.push(transfer.at..Lba(transfer.at.0 + transfer.len.0));
        }
        let (start, len) = transfer.asked();
        at = Lba(start.0 + len.0);
    }
    transfer.end_zeroing();
    punched.iter().for_each(|range| transfer.parts.zeros.note_hole(range));
    Ok(())
}

/// Takes the stripes of a part, which is to be written without the cache. None: the cache has taken it in, or a shorter
/// one, as what the journal has of it would come back after a stop.
async fn take<'a>(transfer: &mut Transfer<'a>) -> Result<Option<Held<'a>>, EngineError> {
    let parts = transfer.parts;
    if journal::is_live(parts, transfer.at, transfer.len) && take_in(transfer, false) {
        return Ok(None);
    }
    loop {
        match held::take_over(transfer).await {
            Err(EngineError::NotDestaged { .. }) => {}
            held => return held.map(Some),
        }
        // What can't be written out is replaced where it is.
        let Transfer { at, len, .. } = *transfer;
        let (len, is_live) = parts.writeback.with(|cache| cache.journal().live_run(at, len)).expect("it has the rest");
        transfer.begin(at, len, transfer.content.base);
        if is_live && take_in(transfer, true) {
            return Ok(None);
        }
    }
}

/// Has the cache take a part in. False: there is no room, and it need not.
pub(super) fn take_in(transfer: &Transfer<'_>, must: bool) -> bool {
    let Transfer { parts, goal, at, len, content, .. } = transfer;
    if *goal == Goal::Write {
        parts.zeros.note_written(&(*at..Lba(at.0 + len.0)));
    }
    let taken = parts.writeback.with(|cache| match (goal, &content.request) {
        (Goal::Write, Some(buf)) => {
            let byte = |sectors: Sectors| usize::try_from(sectors.bytes().0).expect("a buffer fits the address space");
            let from = byte(content.base);
            cache.take_in(*at, buf, from..from + byte(*len), must)
        }
        _ => cache.take_in_zeros(*at, *len, content.zeroes, must),
    });
    taken.unwrap_or(false)
}

/// Plans a change of parity stripes, reads and computes what the plan needs, has the log keep what is to be written,
/// writes it in place, and waits until every member that missed it is on record.
///
/// # Errors
/// [`EngineError::Unreadable`]; [`EngineError::LogFailed`]; [`EngineError::WriteFailed`]; [`EngineError::Frozen`].
pub(in crate::engine) async fn change<'a>(
    transfer: &mut Transfer<'a>,
    held: &mut Held<'a>,
    obtained: impl FnOnce(&Transfer<'a>),
) -> Result<(), EngineError> {
    reading::obtain(transfer).await?;
    obtained(transfer);
    writing::give_up_parity(transfer).await?;
    let logged = writing::log(transfer).await?;
    if planted!(BitEndsBeforeWrites) {
        held.end_intent();
    }
    writing::write(transfer).await?;
    transfer.parts.members.failures_recorded().await?;
    drop(logged);
    Ok(())
}

/// How many zeros from `at` to `end` go together: whole parity stripes go without what is partial, as members are not
/// sent them, and without stripes that go into the cache, as those give no space back.
fn zeros_len(parts: &Parts, at: Lba, end: Lba) -> Sectors {
    let stripe = parts.geometry().stripe_sectors().0;
    let (next, last) = (at.0.next_multiple_of(stripe), end.0 / stripe * stripe);
    if at.0 < next {
        return part_len(parts, at, Lba(next.min(end.0)));
    }
    if at.0 >= last {
        return part_len(parts, at, end);
    }
    let whole = part_len(parts, at, Lba(last));
    match parts.writeback.with(|cache| cache.journal().live_run(at, whole)) {
        Some((run, false)) => Sectors((run.0 / stripe * stripe).max(stripe).min(whole.0)),
        Some((run, true)) => Sectors(run.0.next_multiple_of(stripe).min(whole.0)),
        None => whole,
    }
}

/// Has zeros of a part of a parity stripe, which the transfer has, be those of all of it, if the rest is known to be
/// zeros: then parity is, too, and members give all of its space back. The length then.
fn widen(transfer: &mut Transfer<'_>) -> Option<Sectors> {
    let Transfer { parts, goal, at, len, .. } = *transfer;
    let (stripe, capacity) = (parts.geometry().stripe_sectors().0, parts.geometry().capacity().0);
    let start = Lba(at.0 / stripe * stripe);
    let end = Lba((start.0 + stripe).min(capacity));
    let is_part = len.0 < end.0 - start.0 && at.0 + len.0 <= end.0;
    if goal != (Goal::Zero { may_punch: true }) || !is_part {
        return None;
    }
    let is_rest_zero =
        planted!(WidenedUnknown) || parts.zeros.has_all(&(start..at)) && parts.zeros.has_all(&(Lba(at.0 + len.0)..end));
    let whole = Sectors(end.0 - start.0);
    if !is_rest_zero || journal::is_live(parts, start, whole) {
        return None;
    }
    transfer.begin(start, whole, Sectors(0));
    transfer.asked = Some((at, len));
    Some(whole)
}

/// Whether zeros are there already, and up to where it is as that is; at most up to `end`. Those that have space are
/// written once more where whole parity stripes can give it back.
fn has_zeros(parts: &Parts, at: Lba, end: Lba) -> (bool, Lba) {
    let (geometry, members) = (parts.geometry(), &parts.members);
    let (stripe, capacity) = (geometry.stripe_sectors().0, geometry.capacity().0);
    let (status, until) = parts.zeros.run(at, end);
    let (start, next) = (at.0 / stripe * stripe, (at.0 / stripe + 1) * stripe);
    // Whole parity stripes and what begins or ends the range, as far as it is as at its beginning.
    let known = if until == end { end.0 } else { until.0 / stripe * stripe };
    let of_stripe = geometry.chunk().0 * geometry.rows() as u64;
    let gives_back = |stripes: u64| {
        let can = members.abilities.cannot(true).minus(members.missing()).is_empty();
        can && stripes * of_stripe >= ZERO_OPERATION_MIN.0
    };
    match status {
        Status::Data => (false, Lba(until.0.next_multiple_of(stripe).min(end.0))),
        _ if known <= at.0 => (false, Lba(next.min(end.0))),
        Status::Hole => (true, Lba(known)),
        Status::Zeros if at.0 == start && known >= next => {
            let whole = known / stripe * stripe;
            (!gives_back((whole - start) / stripe), Lba(whole))
        }
        Status::Zeros => {
            let is_whole = parts.zeros.has_all(&(Lba(start)..Lba(next.min(capacity))));
            (!(is_whole && gives_back(1)), Lba(next.min(known)))
        }
    }
}

/// How much of a command from `at` to `end` is planned at once: what a plan and a record may have, up to the end of a
/// parity stripe where it is not all.
pub(in crate::engine) fn part_len(parts: &Parts, at: Lba, end: Lba) -> Sectors {
    let stripe = parts.geometry().stripe_sectors().0;
    let mut last = end.0.min(at.0 + PART.0);
    if let Some(log) = &parts.log {
        last = last.min((at.0 / stripe).saturating_add(log.stripes_max()).saturating_mul(stripe));
    }
    if last < end.0 && last / stripe * stripe > at.0 {
        last = last / stripe * stripe;
    }
    Sectors(last - at.0)
}
