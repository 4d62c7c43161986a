//! The header on an open log device, and its marks: writing the copies, and finding one. Everything here blocks; the
//! bytes are [`format::log_device`](crate::format::log_device)'s.

use uraid_layout::Bytes;
use uuid::Uuid;

use crate::buf::Buf;
use crate::error::Error;
use crate::format::log_device::{HEADER_BYTES, LogHeader, LogHeaderError, MARK_BYTES, MARKS, decode_mark};
use crate::format::superblock::positions;
use crate::member::{Member, MemberError};

/// Writes a device's header to all of its places, durably; blocks.
///
/// # Errors
/// When the device fails.
///
/// # Panics
/// When the header is of a larger device, or this one is open for reading only.
pub fn store(device: &Member, header: &LogHeader) -> Result<(), Error> {
    let buf = Buf::of(&header.encode());
    for position in header.positions().expect("a log device has room for its header") {
        device.write_at(position, &buf)?;
    }
    Ok(device.sync()?)
}

/// Reads a device's header; blocks. All copies say the same, so one is enough.
///
/// # Errors
/// When there is none, or none can be read.
pub fn load(device: &Member) -> Result<LogHeader, Error> {
    let wrong = |source| Error::LogHeader { path: device.path().into(), source };
    let Some(positions) = positions(device.size()) else { return Err(wrong(LogHeaderError::NoMagic)) };
    let read = |position| Ok(LogHeader::decode(&device.peek(position, Bytes(HEADER_BYTES as u64))?));
    let (copies, unreadable): (Vec<_>, Vec<Result<_, MemberError>>) =
        positions.map(read).into_iter().partition(Result::is_ok);
    match LogHeader::any(copies.into_iter().flatten()) {
        Err(LogHeaderError::NoMagic | LogHeaderError::Damaged) if !unreadable.is_empty() => {
            let first = unreadable.into_iter().find_map(Result::err).expect("one could not be read");
            Err(first.into())
        }
        header => header.map_err(wrong),
    }
}

/// The runs that a device is marked with; blocks. What can't be read is no mark.
#[must_use]
pub fn runs(device: &Member) -> Vec<Uuid> {
    let read = |at| device.peek(at, Bytes(MARK_BYTES as u64)).ok();
    MARKS.into_iter().filter_map(read).filter_map(|bytes| decode_mark(&bytes)).collect()
}
