//! What there is to open an array from.

use uraid_io::array::{Candidate, Verdict};

use crate::members::Members;

/// An array that may be opened.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) candidates: Vec<Candidate>,
    pub(super) verdict: Verdict,
    /// The accepted members in their slots.
    pub(super) members: Members,
}
