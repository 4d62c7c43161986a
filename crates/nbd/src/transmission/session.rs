//! What a handshake settled.

use crate::{ExportInfo, proto::TransmissionFlags};

/// How requests and replies begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Headers {
    /// Compact requests and simple replies.
    Simple,
    /// Compact requests. Replies that may have data are structured.
    Structured,
    /// Extended requests, with lengths of 64 bits, and extended replies.
    Extended,
}

/// What a handshake settled: how requests are to be understood, and how replies must look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    pub(super) size_bytes: u64,
    pub(super) minimum_bytes: u32,
    pub(super) maximum_bytes: u32,
    pub(super) flags: TransmissionFlags,
    pub(super) headers: Headers,
    pub(super) allocation: bool,
}

impl Session {
    /// A session on the export. `allocation` says that the client selected the context `base:allocation`.
    pub fn new(export: &ExportInfo, headers: Headers, allocation: bool) -> Self {
        Self {
            size_bytes: export.size_bytes,
            minimum_bytes: export.block_sizes.minimum_bytes,
            maximum_bytes: export.block_sizes.maximum_bytes,
            flags: transmission_flags(export, headers, allocation),
            headers,
            allocation,
        }
    }

    /// What the client was told that the export can do.
    pub(crate) fn flags(&self) -> TransmissionFlags {
        self.flags
    }
}

/// What the export can do for a client with such headers, which has selected `base:allocation` or not.
fn transmission_flags(export: &ExportInfo, headers: Headers, allocation: bool) -> TransmissionFlags {
    use TransmissionFlags as F;
    let mut flags = F::HAS_FLAGS | F::SEND_FLUSH | F::SEND_FUA | F::SEND_CACHE;
    let writable = !export.read_only;
    let optional = [
        (export.read_only, F::READ_ONLY),
        (export.rotational, F::ROTATIONAL),
        (writable, F::SEND_WRITE_ZEROES),
        (writable && export.trim, F::SEND_TRIM),
        (writable && export.fast_zero, F::SEND_FAST_ZERO),
        (headers != Headers::Simple, F::SEND_DF),
        (export.multi_conn, F::CAN_MULTI_CONN),
        (headers == Headers::Extended && allocation, F::BLOCK_STATUS_PAYLOAD),
    ];
    for (_, flag) in optional.into_iter().filter(|(set, _)| *set) {
        flags = flags | flag;
    }
    flags
}
