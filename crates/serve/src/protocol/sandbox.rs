//! The sandbox of a server.

use serde::{Deserialize, Serialize};

/// What the kernel refuses to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Paths that it was not started with.
    pub paths: bool,
    /// System calls that only administrators need.
    pub calls: bool,
}
