//! How a server ends, and what is left of it then.

use super::parting::Parting;

/// How a server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It closes its connections.
    Close,
    /// Another process goes on with its clients and sockets.
    HandOver,
}

/// What is left of a server.
#[derive(Debug)]
pub struct Served {
    /// Whether all requests in flight were answered.
    pub answered: bool,
    /// What goes to another process.
    pub partings: Vec<Parting>,
}
