//! From results to reply headers.

use super::{decoder::Cookie, session::Session};
use crate::{
    Extent, NbdError, Span,
    proto::{ALLOCATION_CONTEXT_ID, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk},
};

/// The most extents that one reply carries. The client asks again for what is beyond.
pub(crate) const EXTENTS_MAX: usize = 4096;

const STATE_HOLE: u32 = 1 << 0;
const STATE_ZERO: u32 = 1 << 1;
const HEADER_BYTES_MAX: usize = 28;

/// All of a reply but its data.
#[derive(Debug, Clone, Copy)]
pub struct ReplyHeader {
    bytes: [u8; HEADER_BYTES_MAX],
    length: u8,
}

impl ReplyHeader {
    /// For a read that succeeded. The span's data follow.
    pub fn data(session: &Session, cookie: Cookie, span: Span) -> Self {
        if !session.structured_replies {
            return Self::simple(cookie, 0);
        }
        let payload_bytes = 8 + span.length_bytes; // can't overflow: a request's data are bounded
        Self::chunk(chunk::OFFSET_DATA, cookie, payload_bytes).with(&span.offset_bytes.to_be_bytes())
    }

    /// For any other command that succeeded.
    pub fn done(cookie: Cookie) -> Self {
        Self::simple(cookie, 0)
    }

    /// For a block status that succeeded. What [`encode_extents`] made follows.
    ///
    /// # Panics
    /// If `encoded` is longer than [`EXTENTS_MAX`] extents are.
    pub fn extents(cookie: Cookie, encoded: &[u8]) -> Self {
        assert!(encoded.len() <= EXTENTS_MAX * 8, "a reply's extents are bounded");
        Self::chunk(chunk::BLOCK_STATUS, cookie, 4 + encoded.len() as u32).with(&ALLOCATION_CONTEXT_ID.to_be_bytes())
    }

    /// For a command that failed.
    pub fn error(session: &Session, cookie: Cookie, error: NbdError) -> Self {
        if !session.structured_replies {
            return Self::simple(cookie, error.code());
        }
        let message_bytes = 0u16;
        Self::chunk(chunk::ERROR, cookie, 6).with(&error.code().to_be_bytes()).with(&message_bytes.to_be_bytes())
    }

    /// What goes on the wire.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length.into()]
    }

    fn simple(cookie: Cookie, error: u32) -> Self {
        Self::empty().with(&SIMPLE_REPLY_MAGIC.to_be_bytes()).with(&error.to_be_bytes()).with(&cookie.0.to_be_bytes())
    }

    /// Every reply is one chunk, the last of its request.
    fn chunk(kind: u16, cookie: Cookie, payload_bytes: u32) -> Self {
        Self::empty()
            .with(&STRUCTURED_REPLY_MAGIC.to_be_bytes())
            .with(&chunk::FLAG_DONE.to_be_bytes())
            .with(&kind.to_be_bytes())
            .with(&cookie.0.to_be_bytes())
            .with(&payload_bytes.to_be_bytes())
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

/// The body of a block status reply: as many of `extents` as fit the span, the last one cut to it, only the first if
/// `one`.
///
/// # Panics
/// If there is no extent or one of them is empty: the client could not make progress.
pub(crate) fn encode_extents(span: Span, one: bool, extents: &[Extent]) -> Vec<u8> {
    assert!(!extents.is_empty(), "a block status has at least one extent");
    let limit = if one { 1 } else { EXTENTS_MAX };
    let mut left_bytes = span.length_bytes;
    let mut encoded = Vec::with_capacity(8 * extents.len().min(limit));
    for extent in extents.iter().take(limit) {
        assert!(extent.length_bytes > 0, "an extent has a length");
        if left_bytes == 0 {
            break;
        }
        let length_bytes = extent.length_bytes.min(left_bytes);
        let hole = if extent.hole { STATE_HOLE } else { 0 };
        let zero = if extent.zero { STATE_ZERO } else { 0 };
        encoded.extend_from_slice(&length_bytes.to_be_bytes());
        encoded.extend_from_slice(&(hole | zero).to_be_bytes());
        left_bytes -= length_bytes;
    }
    encoded
}
