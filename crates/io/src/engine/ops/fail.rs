//! Giving a member up, or a log device, as if it had failed.

use uraid_layout::{MemberIndex, MemberSet};

use crate::disk::log_at;
use crate::engine::error::EngineError;
use crate::engine::members::Members;
use crate::format::superblock::LogSet;

/// Gives up a member, or the log device at that place, and waits until that is on record.
///
/// # Errors
/// [`EngineError::Frozen`]; [`EngineError::WriteFailed`] without redundancy.
pub(in crate::engine) async fn fail(members: &Members, member: MemberIndex) -> Result<(), EngineError> {
    match log_at(member) {
        Some(log) => members.fail_logs(LogSet::EMPTY.with(log)),
        None => members.fail(MemberSet::EMPTY.with(member))?,
    }
    members.check_frozen()?;
    if planted!(FailUnrecorded) { Ok(()) } else { members.settled().await }
}
