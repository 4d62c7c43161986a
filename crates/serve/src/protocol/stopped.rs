//! How an array was stopped.

use serde::{Deserialize, Serialize};

/// The array was stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stopped {
    /// Members that failed meanwhile.
    pub lost: Vec<Lost>,
}

/// The array was stopped, and what is left of the server follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HandedOver {
    /// How many files of members follow.
    pub members: usize,
    /// How many clients and sockets follow then.
    pub partings: usize,
    /// Members that failed meanwhile.
    pub lost: Vec<Lost>,
}

/// A member that the array now continues without.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lost {
    pub slot: u8,
    pub path: Option<String>,
}
