//! The forms of requests and replies, on which client and server agree.

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
