//! What is said of members on a network.

use serde::{Deserialize, Serialize};

/// Members that fail together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crowded {
    pub domain: String,
    pub slots: Vec<u8>,
}

/// A member whose connection broke.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Away {
    /// What its return waits for.
    pub waiting: Waiting,
    /// Why the last attempt failed.
    pub problem: Option<String>,
}

/// What a member's return waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Waiting {
    /// Its server is asked for it again and again.
    Server,
    /// Its server has answered, and is watched for a while.
    Settling,
    /// It does not return by itself.
    Administrator,
}
