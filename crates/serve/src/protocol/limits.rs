//! How fast things may go.

use serde::{Deserialize, Serialize};

/// Limits for background work on each member, and for clients; `None` means as fast as possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub rebuild_bytes_per_second: Option<u64>,
    pub scrub_bytes_per_second: Option<u64>,
    /// Of content, not for each member.
    #[serde(default)]
    pub reshape_bytes_per_second: Option<u64>,
    /// What all clients together read and write.
    #[serde(default)]
    pub client_bytes_per_second: Option<u64>,
    #[serde(default)]
    pub client_operations_per_second: Option<u64>,
}
