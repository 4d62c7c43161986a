//! Recordings of clients' reads and writes.

use serde::{Deserialize, Serialize};

/// A recording has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// Its number.
    pub recording: u64,
}

/// A part of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// Lines of `seconds,R or W,offset,bytes`.
    pub trace: String,
    /// Requests that were not kept, as nobody took the others in time.
    pub lost: u64,
    /// Whether there is more to take at once.
    pub has_more: bool,
}
