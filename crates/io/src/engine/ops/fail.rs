//! Giving a member up, as if it had failed.

use uraid_layout::{MemberIndex, MemberSet};

use crate::engine::error::EngineError;
use crate::engine::members::Members;

/// Gives a member up, and waits until that is on record on the others.
///
/// # Errors
/// [`EngineError::Frozen`]; [`EngineError::WriteFailed`] without redundancy.
pub(in crate::engine) async fn fail(members: &Members, member: MemberIndex) -> Result<(), EngineError> {
    members.fail(MemberSet::EMPTY.with(member))?;
    members.check_frozen()?;
    if planted!(FailUnrecorded) { Ok(()) } else { members.settled().await }
}
