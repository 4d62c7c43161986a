//! From results to reply headers.

use super::{decoder::Echo, session::Session};
use crate::{
    Extent, Headers, NbdError,
    proto::{ALLOCATION_CONTEXT_ID, EXTENDED_REPLY_MAGIC, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk},
};

/// The most extents that one reply carries. The client asks again for what is beyond.
pub(crate) const EXTENTS_MAX: usize = 4096;

/// Bytes of an encoded extent, with extended headers and without.
const EXTENT_BYTES: usize = 8;
const EXTENDED_EXTENT_BYTES: usize = 16;

/// The most bytes that [`encode_extents`] makes.
pub(crate) const EXTENTS_BYTES_MAX: usize = EXTENTS_MAX * EXTENDED_EXTENT_BYTES;

const STATE_HOLE: u32 = 1 << 0;
const STATE_ZERO: u32 = 1 << 1;
const HEADER_BYTES_MAX: usize = 40;

/// All of a reply but its data.
#[derive(Debug, Clone, Copy)]
pub struct ReplyHeader {
    bytes: [u8; HEADER_BYTES_MAX],
    length: u8,
}

impl ReplyHeader {
    /// For a read that succeeded. So many bytes of data follow.
    pub fn data(session: &Session, echo: Echo, length_bytes: u32) -> Self {
        match session.headers {
            Headers::Simple => Self::simple(echo, 0),
            Headers::Structured | Headers::Extended => {
                let payload_bytes = 8 + length_bytes; // can't overflow: a request's data are bounded
                Self::chunk(session, chunk::OFFSET_DATA, echo, payload_bytes).with(&echo.offset_bytes.to_be_bytes())
            }
        }
    }

    /// For any other command that succeeded.
    pub fn done(session: &Session, echo: Echo) -> Self {
        match session.headers {
            Headers::Simple | Headers::Structured => Self::simple(echo, 0),
            Headers::Extended => Self::chunk(session, chunk::NONE, echo, 0),
        }
    }

    /// For a block status that succeeded. What [`encode_extents`] made follows.
    ///
    /// # Panics
    /// If `encoded` is longer than [`EXTENTS_MAX`] extents are.
    pub fn extents(session: &Session, echo: Echo, encoded: &[u8]) -> Self {
        assert!(encoded.len() <= EXTENTS_BYTES_MAX, "a reply's extents are bounded");
        let (length, context) = (encoded.len() as u32, ALLOCATION_CONTEXT_ID.to_be_bytes());
        match session.headers {
            Headers::Simple | Headers::Structured => {
                Self::chunk(session, chunk::BLOCK_STATUS, echo, 4 + length).with(&context)
            }
            Headers::Extended => {
                let count = length / EXTENDED_EXTENT_BYTES as u32;
                Self::chunk(session, chunk::BLOCK_STATUS_EXT, echo, 8 + length)
                    .with(&context)
                    .with(&count.to_be_bytes())
            }
        }
    }

    /// For a command that failed.
    pub fn error(session: &Session, echo: Echo, error: NbdError) -> Self {
        match session.headers {
            Headers::Simple => Self::simple(echo, error.code()),
            Headers::Structured | Headers::Extended => {
                let message_bytes = 0u16;
                Self::chunk(session, chunk::ERROR, echo, 6)
                    .with(&error.code().to_be_bytes())
                    .with(&message_bytes.to_be_bytes())
            }
        }
    }

    /// What goes on the wire.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length.into()]
    }

    fn simple(echo: Echo, error: u32) -> Self {
        Self::empty()
            .with(&SIMPLE_REPLY_MAGIC.to_be_bytes())
            .with(&error.to_be_bytes())
            .with(&echo.cookie.to_be_bytes())
    }

    /// Every reply is one chunk, the last of its request.
    fn chunk(session: &Session, kind: u16, echo: Echo, payload_bytes: u32) -> Self {
        let is_extended = session.headers == Headers::Extended;
        let magic = if is_extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC };
        let begun = Self::empty()
            .with(&magic.to_be_bytes())
            .with(&chunk::FLAG_DONE.to_be_bytes())
            .with(&kind.to_be_bytes())
            .with(&echo.cookie.to_be_bytes());
        if is_extended {
            begun.with(&echo.offset_bytes.to_be_bytes()).with(&u64::from(payload_bytes).to_be_bytes())
        } else {
            begun.with(&payload_bytes.to_be_bytes())
        }
    }

    fn empty() -> Self {
        Self { bytes: [0; HEADER_BYTES_MAX], length: 0 }
    }

    fn with(mut self, field: &[u8]) -> Self {
        let start = usize::from(self.length);
        self.bytes[start..start + field.len()].copy_from_slice(field);
        self.length += field.len() as u8;
        self
    }
}

/// The body of a block status reply about so many bytes: as many of `extents` as fit them, the last one cut to them,
/// only the first if `one`.
///
/// # Panics
/// If there is no extent or one of them is empty: the client could not make progress.
pub(crate) fn encode_extents(session: &Session, length_bytes: u64, one: bool, extents: &[Extent]) -> Vec<u8> {
    assert!(!extents.is_empty(), "a block status has at least one extent");
    let limit = if one { 1 } else { EXTENTS_MAX };
    let is_extended = session.headers == Headers::Extended;
    let extent_bytes = if is_extended { EXTENDED_EXTENT_BYTES } else { EXTENT_BYTES };
    let mut left_bytes = length_bytes;
    let mut encoded = Vec::with_capacity(extent_bytes * extents.len().min(limit));
    for extent in extents.iter().take(limit) {
        assert!(extent.length_bytes > 0, "an extent has a length");
        if left_bytes == 0 {
            break;
        }
        let length_bytes = extent.length_bytes.min(left_bytes);
        let hole = if extent.hole { STATE_HOLE } else { 0 };
        let zero = if extent.zero { STATE_ZERO } else { 0 };
        if is_extended {
            encoded.extend_from_slice(&length_bytes.to_be_bytes());
            encoded.extend_from_slice(&u64::from(hole | zero).to_be_bytes());
        } else {
            let length_bytes = u32::try_from(length_bytes).expect("a compact request has a length of 32 bits");
            encoded.extend_from_slice(&length_bytes.to_be_bytes());
            encoded.extend_from_slice(&(hole | zero).to_be_bytes());
        }
        left_bytes -= length_bytes;
    }
    encoded
}
