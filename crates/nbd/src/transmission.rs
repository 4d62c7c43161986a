//! The transmission phase without I/O: requests are decoded and checked, reply headers are written.
//!
//! ```text
//! request           magic 25609513 | flags 16 | type 16 | cookie 64 | offset 64 | length 32 | a write's data
//! simple reply      magic 67446698 | error 32 | cookie 64 | a read's data
//! structured chunk  magic 668e33ef | flags 16 | type 16 | cookie 64 | length 32 | payload
//! ```
//!
//! Data never pass through here: the caller receives a write's data where it wants them, and sends a read's data after
//! the header.

mod decoder;
mod reply;
#[cfg(test)]
mod tests;

pub use decoder::{Cookie, Decoder, REQUEST_BYTES, Received, Request, WRITE_BYTES_MAX};
pub use reply::{EXTENTS_MAX, ReplyHeader, encode_extents};

use crate::{ExportInfo, proto::TransmissionFlags};

/// What a handshake settled: how requests are to be understood, and how replies must look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    size_bytes: u64,
    minimum_bytes: u32,
    maximum_bytes: u32,
    flags: TransmissionFlags,
    structured_replies: bool,
    allocation: bool,
}

impl Session {
    /// A session on the export. `allocation` says that the client selected the context `base:allocation`.
    pub fn new(export: &ExportInfo, structured_replies: bool, allocation: bool) -> Self {
        Self {
            size_bytes: export.size_bytes,
            minimum_bytes: export.block_sizes.minimum_bytes,
            maximum_bytes: export.block_sizes.maximum_bytes,
            flags: transmission_flags(export, structured_replies),
            structured_replies,
            allocation,
        }
    }

    /// What the client was told that the export can do.
    pub fn flags(&self) -> TransmissionFlags {
        self.flags
    }

    /// Whether reads are answered in chunks.
    pub fn structured_replies(&self) -> bool {
        self.structured_replies
    }

    /// Whether the client may ask for block status.
    pub fn allocation(&self) -> bool {
        self.allocation
    }
}

/// What the export can do for a client with or without structured replies.
pub(crate) fn transmission_flags(export: &ExportInfo, structured_replies: bool) -> TransmissionFlags {
    use TransmissionFlags as F;
    let mut flags = F::HAS_FLAGS | F::SEND_FLUSH | F::SEND_FUA | F::SEND_CACHE;
    let writable = !export.read_only;
    let optional = [
        (export.read_only, F::READ_ONLY),
        (writable, F::SEND_WRITE_ZEROES),
        (writable && export.trim, F::SEND_TRIM),
        (writable && export.fast_zero, F::SEND_FAST_ZERO),
        (structured_replies, F::SEND_DF),
        (export.multi_conn, F::CAN_MULTI_CONN),
    ];
    for (_, flag) in optional.into_iter().filter(|(set, _)| *set) {
        flags = flags | flag;
    }
    flags
}
