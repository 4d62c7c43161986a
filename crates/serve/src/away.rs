//! Members on networks whose connection broke, and that are wanted back.

use std::path::PathBuf;

use uraid_layout::MemberIndex;
use uuid::Uuid;

use crate::protocol::{self, Waiting};

/// A member that is wanted back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Away {
    pub(crate) slot: MemberIndex,
    pub(crate) member: Uuid,
    /// The URI of its export.
    pub(crate) path: PathBuf,
    /// What its return waits for.
    pub(crate) waiting: Waiting,
    /// Why the last attempt failed.
    pub(crate) problem: Option<String>,
}

impl Away {
    /// A member of which the connection has just broken.
    pub(crate) fn new(slot: MemberIndex, member: Uuid, path: PathBuf) -> Self {
        Self { slot, member, path, waiting: Waiting::Server, problem: None }
    }

    /// The same for administrators.
    pub(crate) fn report(&self) -> protocol::Away {
        protocol::Away { waiting: self.waiting, problem: self.problem.clone() }
    }
}
