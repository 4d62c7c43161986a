//! Members whose content is made anew.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A rebuild.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebuild {
    pub members: Vec<u8>,
    /// A parity stripe that can't be computed because the other members can't be read there.
    pub stuck_stripe: Option<u64>,
}

/// A member added beside another one, or in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaced {
    pub slot: u8,
    pub uuid: Uuid,
    /// The slot had no member, and the new one is being rebuilt.
    pub rebuilding: bool,
}

/// A copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replace {
    /// The slot of the member being replaced.
    pub slot: u8,
    /// The new member.
    pub uuid: Uuid,
    pub path: Option<String>,
    /// A parity stripe in which the member's content can't be read or computed.
    pub stuck_stripe: Option<u64>,
}
