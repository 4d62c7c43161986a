//! What is asked of arrays.

use uraid_layout::{Lba, Sectors};

/// What a client asks of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which of the system's arrays.
    pub volume: usize,
    /// Whether it writes.
    pub is_write: bool,
    /// The first sector.
    pub lba: Lba,
    /// How many.
    pub len: Sectors,
}
