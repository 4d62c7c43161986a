//! Clients' commands in the engine's terms, and the engine's errors in the clients'.

use uraid_io::buf::Buf;
use uraid_io::disk::Disk;
use uraid_io::engine::{self, Engine, EngineError, Status};
use uraid_layout::{Bytes, Lba, SECTOR_BYTES, Sectors};
use uraid_nbd::{Command, Extent, NbdError, Payload, Span};

/// Extents in one answer: what is beyond the client asks for again.
const EXTENTS_MAX: usize = 4096;

/// The answer to a command for which nobody need ask the array.
pub(crate) fn at_once<B>(command: &Command<B>) -> Option<Payload<Buf>> {
    match command {
        // The cache holds only writes and read-ahead, so a hint has nothing to warm.
        Command::Cache { .. } => Some(Payload::None),
        _ => None,
    }
}

/// The engine's command for a client's; the array is read and written in units of so many bytes. `is_fast` tells
/// whether zeros are possible without writing most of them; with its second argument, members may give space back.
///
/// # Errors
/// [`NbdError::NotSupported`] if zeros are to be fast and would have to be written.
///
/// # Panics
/// If the command is one of those that are answered [at once](at_once).
pub(crate) fn for_engine(
    command: Command<Buf>,
    unit: Bytes,
    is_fast: impl FnOnce(Span, bool) -> bool,
) -> Result<engine::Command, NbdError> {
    let lba = |span: Span| Lba(Bytes(span.offset_bytes).whole_sectors().0);
    let len = |span: Span| -> Sectors { Bytes(span.length_bytes).whole_sectors() };
    let is_whole = |span: Span| (span.offset_bytes | span.length_bytes).is_multiple_of(unit.0);
    let zeroes = |span: Span, fua, may_punch| match is_whole(span) {
        true => engine::Command::WriteZeroes { lba: lba(span), len: len(span), fua, may_punch },
        false => {
            let (at, len) = (Bytes(span.offset_bytes), Bytes(span.length_bytes));
            engine::Command::ZeroBytes { at, len, fua, may_punch }
        }
    };
    Ok(match command {
        Command::Read { span, buffer } if !is_whole(span) => {
            engine::Command::ReadBytes { at: Bytes(span.offset_bytes), buf: buffer }
        }
        Command::Write { span, buffer, fua } if !is_whole(span) => {
            engine::Command::WriteBytes { at: Bytes(span.offset_bytes), buf: buffer, fua }
        }
        Command::Read { span, buffer } => engine::Command::Read { lba: lba(span), buf: buffer },
        Command::Write { span, buffer, fua } => engine::Command::Write { lba: lba(span), buf: buffer, fua },
        Command::Flush => engine::Command::Flush,
        // What is trimmed reads as zeros.
        Command::Trim { span, fua } => zeroes(span, fua, true),
        Command::WriteZeroes { span, fast: true, no_hole, .. } if !is_fast(span, !no_hole) => {
            return Err(NbdError::NotSupported);
        }
        Command::WriteZeroes { span, fua, no_hole, .. } => zeroes(span, fua, !no_hole),
        Command::Cache { .. } | Command::BlockStatus { .. } => unreachable!("it is answered at once"),
    })
}

/// What is known to be zeros of a span, for a client that asks; `one`: of its beginning.
///
/// # Errors
/// If nothing of the array can be read.
pub(crate) fn block_status<D: Disk, T>(engine: &Engine<D, T>, span: Span, one: bool) -> Result<Vec<Extent>, NbdError> {
    let (start, end) = (span.offset_bytes, span.end_bytes());
    let sectors = Lba(start / SECTOR_BYTES)..Lba(end.div_ceil(SECTOR_BYTES));
    let found =
        engine.zeros().status(&sectors, if one { 1 } else { EXTENTS_MAX }).map_err(|error| nbd_error(&error))?;
    let mut at = start;
    let extent = |(status, until): (Status, Lba)| {
        let until = Sectors(until.0).bytes().0.min(end);
        let length_bytes = until - std::mem::replace(&mut at, until);
        Extent { length_bytes, hole: status == Status::Hole, zero: status != Status::Data }
    };
    Ok(found.into_iter().map(extent).collect())
}

/// The client's error for the engine's, which is logged.
pub(crate) fn nbd_error(error: &EngineError) -> NbdError {
    tracing::warn!(%error, "a request failed");
    match error {
        EngineError::OutOfRange { .. } | EngineError::Unaligned { .. } | EngineError::Plan(_) => NbdError::Invalid,
        EngineError::ReadOnly => NbdError::NotPermitted,
        EngineError::NoMemory => NbdError::NoMemory,
        _ => NbdError::Io,
    }
}
