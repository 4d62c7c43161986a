//! The protocol's numbers and how bytes are read and made. Source: `doc/proto.md` of the NBD project, and that of its
//! branch `extension-ext-header`. It shares nothing with the server's own codec.

/// What a server says first; the last two bytes are its flags, fixed newstyle and no zeroes.
pub(super) const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";
pub(super) const OPTION_MAGIC: &[u8] = b"IHAVEOPT";
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(super) const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
pub(super) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(super) const CHUNK_MAGIC: u32 = 0x668e_33ef;
pub(super) const EXTENDED_CHUNK_MAGIC: u32 = 0x6e8a_278c;

/// The one metadata context.
pub(super) const CONTEXT: &[u8] = b"base:allocation";

pub(super) mod option {
    pub(in super::super) const EXPORT_NAME: u32 = 1;
    pub(in super::super) const ABORT: u32 = 2;
    pub(in super::super) const LIST: u32 = 3;
    pub(in super::super) const STARTTLS: u32 = 5;
    pub(in super::super) const INFO: u32 = 6;
    pub(in super::super) const GO: u32 = 7;
    pub(in super::super) const STRUCTURED_REPLY: u32 = 8;
    pub(in super::super) const LIST_META_CONTEXT: u32 = 9;
    pub(in super::super) const SET_META_CONTEXT: u32 = 10;
    pub(in super::super) const EXTENDED_HEADERS: u32 = 11;
}

pub(super) mod option_reply {
    pub(in super::super) const ACK: u32 = 1;
    pub(in super::super) const SERVER: u32 = 2;
    pub(in super::super) const INFO: u32 = 3;
    pub(in super::super) const META_CONTEXT: u32 = 4;
    pub(in super::super) const ERR_UNSUP: u32 = 0x8000_0001;
    pub(in super::super) const ERR_POLICY: u32 = 0x8000_0002;
    pub(in super::super) const ERR_INVALID: u32 = 0x8000_0003;
    pub(in super::super) const ERR_UNKNOWN: u32 = 0x8000_0006;
    pub(in super::super) const ERR_TOO_BIG: u32 = 0x8000_0009;
    pub(in super::super) const ERR_EXT_HEADER_REQD: u32 = 0x8000_000a;
}

pub(super) mod command {
    pub(in super::super) const READ: u16 = 0;
    pub(in super::super) const WRITE: u16 = 1;
    pub(in super::super) const DISCONNECT: u16 = 2;
    pub(in super::super) const FLUSH: u16 = 3;
    pub(in super::super) const TRIM: u16 = 4;
    pub(in super::super) const CACHE: u16 = 5;
    pub(in super::super) const WRITE_ZEROES: u16 = 6;
    pub(in super::super) const BLOCK_STATUS: u16 = 7;
}

pub(super) mod flag {
    pub(in super::super) const FUA: u16 = 1;
    pub(in super::super) const NO_HOLE: u16 = 2;
    pub(in super::super) const DF: u16 = 4;
    pub(in super::super) const REQ_ONE: u16 = 8;
    pub(in super::super) const FAST_ZERO: u16 = 16;
    pub(in super::super) const PAYLOAD_LEN: u16 = 32;
}

pub(super) mod error {
    pub(in super::super) const EPERM: u32 = 1;
    pub(in super::super) const EIO: u32 = 5;
    pub(in super::super) const ENOMEM: u32 = 12;
    pub(in super::super) const EINVAL: u32 = 22;
    pub(in super::super) const ENOSPC: u32 = 28;
    pub(in super::super) const EOVERFLOW: u32 = 75;
    pub(in super::super) const ENOTSUP: u32 = 95;
}

/// How requests and replies begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Headers {
    Simple,
    Structured,
    Extended,
}

/// Bytes read from the front; `None` where there are not enough.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.number(2).map(|number| number as u16)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.number(4).map(|number| number as u32)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.number(8)
    }

    /// A length of 32 bits and that many bytes.
    pub(super) fn string(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.take(length.into())
    }

    fn number(&mut self, bytes: u64) -> Option<u64> {
        Some(self.take(bytes)?.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }
}

/// An option with its data.
pub(super) fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [OPTION_MAGIC, &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

/// A length of 32 bits and that many bytes.
pub(super) fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text].concat()
}

/// What a request says before its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) flags: u16,
    pub(super) kind: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl Ask {
    /// The request's bytes; a compact one has the low half of the length.
    pub(super) fn encode(&self, headers: Headers, payload: &[u8]) -> Vec<u8> {
        let is_extended = headers == Headers::Extended;
        let magic = if is_extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        let length = self.length.to_be_bytes();
        [
            &magic.to_be_bytes()[..],
            &self.flags.to_be_bytes(),
            &self.kind.to_be_bytes(),
            &self.cookie.to_be_bytes(),
            &self.offset.to_be_bytes(),
            if is_extended { &length } else { &length[4..] },
            payload,
        ]
        .concat()
    }
}
