//! How an array was stopped.

use serde::{Deserialize, Serialize};

/// The array was stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stopped {
    /// Members that failed meanwhile.
    pub lost: Vec<Lost>,
}

/// The server is being stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopping {
    /// For how long.
    pub for_ms: u64,
    /// What that waits for, in words.
    pub waits_for: String,
}

/// The array was stopped, and what is left of the server follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HandedOver {
    /// How many files of members follow.
    pub members: usize,
    /// How many clients and sockets follow then.
    pub partings: usize,
    /// Whether the socket of metrics follows at last.
    #[serde(default)]
    pub metrics: bool,
    /// Members that failed meanwhile.
    pub lost: Vec<Lost>,
}

/// A member that the array now continues without.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lost {
    pub slot: u8,
    pub path: Option<String>,
}
