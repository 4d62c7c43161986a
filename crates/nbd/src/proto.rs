//! The protocol's numbers, by the names that its document gives them. All integers on the wire are big-endian.
//!
//! Source: `doc/proto.md` of the NBD project; for extended headers, that of its branch `extension-ext-header`.

use std::ops::BitOr;

/// First eight bytes that a server sends: `NBDMAGIC`.
pub(crate) const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: second word of the greeting, and the start of each option.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Start of each reply to an option.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Start of each compact request.
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Start of each extended request.
pub(crate) const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Start of a simple reply.
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Start of a structured reply chunk.
pub(crate) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Start of an extended reply chunk.
pub(crate) const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Handshake flag, and the client's answer to it: options have structured replies.
pub(crate) const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag, and the client's answer to it: no 124 zero bytes after `NBD_OPT_EXPORT_NAME`.
pub(crate) const FLAG_NO_ZEROES: u16 = 1 << 1;

/// The longest string that the protocol allows, in bytes.
pub(crate) const STRING_BYTES_MAX: usize = 4096;

/// Options of the handshake, `NBD_OPT_*`.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
    pub(crate) const EXTENDED_HEADERS: u32 = 11;
}

/// Replies to options, `NBD_REP_*`.
pub(crate) mod option_reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub(crate) const ERR_POLICY: u32 = (1 << 31) + 2;
    pub(crate) const ERR_INVALID: u32 = (1 << 31) + 3;
    pub(crate) const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    pub(crate) const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub(crate) const ERR_TOO_BIG: u32 = (1 << 31) + 9;
    pub(crate) const ERR_EXT_HEADER_REQD: u32 = (1 << 31) + 10;
}

/// Items of information about an export, `NBD_INFO_*`.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Requests, `NBD_CMD_*`.
pub(crate) mod command {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISC: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const CACHE: u16 = 5;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

/// Flags of a request, `NBD_CMD_FLAG_*`.
pub(crate) mod command_flag {
    pub(crate) const FUA: u16 = 1 << 0;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const DF: u16 = 1 << 2;
    pub(crate) const REQ_ONE: u16 = 1 << 3;
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
    pub(crate) const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Chunks of a structured or extended reply, `NBD_REPLY_*`.
pub(crate) mod chunk {
    pub(crate) const FLAG_DONE: u16 = 1 << 0;
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const OFFSET_HOLE: u16 = 2;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const BLOCK_STATUS_EXT: u16 = 6;
    pub(crate) const ERROR: u16 = (1 << 15) + 1;
}

/// The one metadata context served.
pub(crate) const ALLOCATION_CONTEXT: &str = "base:allocation";
/// The number by which replies refer to [`ALLOCATION_CONTEXT`].
pub(crate) const ALLOCATION_CONTEXT_ID: u32 = 1;

/// What an export can do, `NBD_FLAG_*` of the transmission phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TransmissionFlags(u16);

impl TransmissionFlags {
    pub(crate) const HAS_FLAGS: Self = Self(1 << 0);
    pub(crate) const READ_ONLY: Self = Self(1 << 1);
    pub(crate) const SEND_FLUSH: Self = Self(1 << 2);
    pub(crate) const SEND_FUA: Self = Self(1 << 3);
    pub(crate) const ROTATIONAL: Self = Self(1 << 4);
    pub(crate) const SEND_TRIM: Self = Self(1 << 5);
    pub(crate) const SEND_WRITE_ZEROES: Self = Self(1 << 6);
    pub(crate) const SEND_DF: Self = Self(1 << 7);
    pub(crate) const CAN_MULTI_CONN: Self = Self(1 << 8);
    pub(crate) const SEND_CACHE: Self = Self(1 << 10);
    pub(crate) const SEND_FAST_ZERO: Self = Self(1 << 11);
    pub(crate) const BLOCK_STATUS_PAYLOAD: Self = Self(1 << 12);
}

impl TransmissionFlags {
    /// The value on the wire.
    pub(crate) fn bits(self) -> u16 {
        self.0
    }

    /// The flags of a value on the wire.
    pub(crate) fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// Those by which a client decides what it may ask for; others are hints.
    pub(crate) fn promises(self) -> Self {
        Self(self.0 & !Self::ROTATIONAL.0)
    }

    /// Whether all of `flags` are set.
    pub(crate) fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

impl BitOr for TransmissionFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
