//! Commands about any bytes. The array is read and written in *units*: sectors, or blocks where each has a checksum.
//! Of a write, what covers whole units goes the way of any other; what covers one in part is an *edge*: the unit is
//! read, changed and written again under its stripe's lock.
//!
//! The lock keeps away everything that writes to the members. A write that only the cache takes in needs no lock: so
//! where there is a cache the unit goes there, and is looked up there once more when all of it has been read. From that
//! to its new content being in the cache nothing comes between.

use std::ops::Range;

use uraid_layout::{Bytes, Lba, SECTOR_BYTES, Sectors};

use super::write::Request;
use super::{flush, held, initialise, read, write};
use crate::buf::Buf;
use crate::engine::admission;
use crate::engine::core::Core;
use crate::engine::error::EngineError;
use crate::engine::replies::{Outcome, Ticket};
use crate::engine::transfer::{Goal, Transfer, Workspace};

/// A command that writes bytes.
#[derive(Debug)]
pub(in crate::engine) struct BytesRequest {
    pub(in crate::engine) ticket: Ticket,
    pub(in crate::engine) at: Bytes,
    pub(in crate::engine) len: Bytes,
    /// What; none: zeros.
    pub(in crate::engine) buf: Option<Buf>,
    /// Reply when it is durable.
    pub(in crate::engine) fua: bool,
    /// Whether zeros may give the members' space back.
    pub(in crate::engine) may_punch: bool,
}

/// Fills a buffer from a byte on, and replies.
pub(in crate::engine) async fn read(core: &Core, space: &mut Workspace, ticket: Ticket, at: Bytes, buf: Buf) {
    core.sides.below.replies.give(ticket, fill(core, space, at, buf).await);
}

async fn fill(core: &Core, space: &mut Workspace, at: Bytes, mut buf: Buf) -> Outcome {
    let sectors = core.sides.below.cover(at, Bytes(buf.len() as u64));
    let start = sectors.start;
    let mut all = Buf::try_zeroed(Sectors(sectors.end.0 - start.0).bytes()).ok_or(EngineError::NoMemory)?;
    for (parts, range) in core.sides.split(sectors) {
        let filled = read::fill(core, parts, space, range, (start, all)).await?;
        all = filled.expect("a read gives its memory back");
    }
    let from = index(at.0 - start.0 * SECTOR_BYTES);
    let len = buf.len();
    buf.as_mut().copy_from_slice(all.bytes(from..from + len));
    Ok(Some(buf))
}

/// Writes, and replies.
pub(in crate::engine) async fn write(core: &Core, space: &mut Workspace, request: BytesRequest) {
    let ticket = request.ticket;
    match write_edges(core, space, request).await {
        Ok(Some(whole)) => initialise::write(&core.sides, space, whole).await,
        Ok(None) => core.sides.below.replies.give(ticket, Ok(None)),
        Err(error) => core.sides.below.replies.give(ticket, Err(error)),
    }
}

/// Writes what covers units in part; returns what is left: whole units. The edges come first because that is answered
/// as soon as the log has it.
async fn write_edges(
    core: &Core,
    space: &mut Workspace,
    request: BytesRequest,
) -> Result<Option<Request>, EngineError> {
    let BytesRequest { ticket, at, len, buf, fua, may_punch } = request;
    let end = at.0 + len.0;
    let unit = core.sides.below.unit().bytes().0;
    let (first, last) = (at.0.next_multiple_of(unit), end / unit * unit);
    let edges = if first > last { [at.0..end, 0..0] } else { [at.0..first, last..end] };
    for edge in edges.into_iter().filter(|edge| !edge.is_empty()) {
        let (from, to) = (index(edge.start - at.0), index(edge.end - at.0));
        let content = buf.as_ref().map(|buf| buf.bytes(from..to));
        change_unit(core, space, edge, content).await?;
    }
    if fua && !planted!(EdgesVolatile) {
        flush::flush_awaited(&core.sides).await?;
    }
    if first >= last {
        return Ok(None);
    }
    let whole = Lba(first / SECTOR_BYTES)..Lba(last / SECTOR_BYTES);
    let Some(mut buf) = buf else { return Ok(Some(Request::zeroes(ticket, whole, may_punch, fua))) };
    // What members take begins where memory is aligned.
    let from = index(first - at.0);
    buf.as_mut().copy_within(from..from + index(last - first), 0);
    let (start, len) = (whole.start, Sectors(whole.end.0 - whole.start.0));
    let left = admission::take_in(&core.sides, whole, &buf, fua);
    Ok(Some(Request::content(ticket, (start, len), left, buf, fua)))
}

/// Changes bytes of one unit; `content`: to what, or to zeros.
async fn change_unit(
    core: &Core,
    space: &mut Workspace,
    edge: Range<u64>,
    content: Option<&[u8]>,
) -> Result<(), EngineError> {
    let sectors = core.sides.below.cover(Bytes(edge.start), Bytes(edge.end - edge.start));
    let (parts, _) = core.sides.at(sectors.start);
    initialise::make(parts, space, sectors.clone()).await?;
    let (at, len) = (sectors.start, Sectors(sectors.end.0 - sectors.start.0));
    let from = index(edge.start - at.0 * SECTOR_BYTES);
    let within = from..from + index(edge.end - edge.start);
    let mut transfer = Transfer::new(parts, space, Goal::Read, Some(Buf::zeroed(len.bytes())));
    if parts.writeback.cache().is_none() {
        // Everybody else who writes needs the lock.
        transfer.begin(at, len, Sectors(0));
        let mut held = held::take_over(&mut transfer).await?;
        let mut result = obtain(&mut transfer, at, len, &within, content).await;
        if result.is_ok() {
            result = write::change(&mut transfer, &mut held, |_| ()).await;
        }
        held::release(&mut transfer, held, result.as_ref().err());
        return result;
    }
    for must in [false, true] {
        transfer.begin(at, len, Sectors(0));
        if !planted!(EdgeUnlocked) {
            transfer.guard = Some(parts.locks.acquire(transfer.span()).await);
        }
        let changed = obtain(&mut transfer, at, len, &within, content).await;
        let is_taken = changed.is_ok() && write::take_in(&transfer, must);
        transfer.guard = None;
        changed?;
        if is_taken {
            break;
        }
        match flush::drain_awaited(parts).await {
            // What can't be written out is somebody else's.
            Ok(()) | Err(EngineError::NotDestaged { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    if parts.writeback.is_on() {
        return Ok(());
    }
    // Without write-back nothing that is in memory alone is replied to.
    write::keep(parts, at, len).await
}

/// Gets a unit, whose stripe the transfer has, into its memory, and changes some of that.
async fn obtain(
    transfer: &mut Transfer<'_>,
    at: Lba,
    len: Sectors,
    within: &Range<usize>,
    content: Option<&[u8]>,
) -> Result<(), EngineError> {
    transfer.goal = Goal::Read;
    read::obtain_held(transfer, at, len).await?;
    if !planted!(EdgeOverNewer) {
        transfer.look_up(at, len, Sectors(0));
    }
    let bytes = transfer.content.request.as_mut().expect("a read has memory").bytes_mut(within.clone());
    match content {
        Some(content) => bytes.copy_from_slice(content),
        None => bytes.fill(0),
    }
    transfer.begin(at, len, Sectors(0));
    transfer.goal = Goal::Write;
    Ok(())
}

/// A distance within a request's memory.
fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a buffer fits the address space")
}
