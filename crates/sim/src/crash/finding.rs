//! What was gone through, and what must not be.

use std::any::Any;
use std::fmt;

use thiserror::Error;
use uraid_io::format::superblock::SuperblockError;
use uraid_layout::{Bytes, MemberIndex, MemberSet, StripeId};

use crate::dst::model::Wrong;

/// What was gone through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Workloads.
    pub workloads: u64,
    /// Moments at which the power went.
    pub boundaries: u64,
    /// States that they might leave, with those that were seen before.
    pub generated: u64,
    /// Different ones, each checked.
    pub states: u64,
    /// Of these, how many a crash in a recovery left.
    pub nested: u64,
    /// Arrays that had to be recovered, and were.
    pub recoveries: u64,
    /// Arrays that were rightly refused.
    pub refused: u64,
    /// States that were not as they must be; above 0 only where arrays are forced that can't be trusted.
    pub corrupt: u64,
}

impl Counts {
    /// Two counts as one.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        sum!(self, other: workloads, boundaries, generated, states, nested, recoveries, refused, corrupt)
    }
}

/// A state that is not as it must be.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The workload's name.
    pub workload: String,
    /// When the power went.
    pub boundary: String,
    /// What was left of what was not flushed.
    pub choice: String,
    /// Whom the crash took.
    pub lost: MemberSet,
    /// What was found.
    pub finding: Finding,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, boundary, choice, lost, finding } = self;
        write!(
            f,
            "{workload}: {finding}\n  the power went at {boundary}; members {lost:?} went with it; of what was not \
             flushed was left:\n    {choice}\n  again: cargo xtask crash --only '{workload}'"
        )
    }
}

/// What must not be.
#[derive(Clone, Debug, Error)]
pub enum Finding {
    /// A sector holds what it must not.
    #[error("wrong content: {0}")]
    Content(Wrong),
    /// A sector changed that nobody wrote.
    #[error("sector {sector} of member {member}'s data area has changed, and nothing was written there")]
    Changed {
        /// The member.
        member: MemberIndex,
        /// The sector.
        sector: u64,
    },
    /// Parity does not agree.
    #[error("parity does not agree: stripe {stripe}, group {group}, column {column}")]
    Parity {
        /// The stripe.
        stripe: StripeId,
        /// The group.
        group: usize,
        /// The column.
        column: u64,
    },
    /// A block is not the one that its checksum is of, or the checksum is damaged.
    #[error("block {block} of member {member} is not the one that its checksum is of")]
    Sum {
        /// The member.
        member: MemberIndex,
        /// The block of its data area.
        block: u64,
    },
    /// Content can't be computed though few enough members are missing.
    #[error("content of stripe {stripe} can't be computed")]
    Undecodable {
        /// The stripe.
        stripe: StripeId,
    },
    /// An array that is sound was refused.
    #[error("refused: {error}")]
    Refused {
        /// Why.
        error: String,
    },
    /// An array could not be recovered.
    #[error("not recovered: {error}")]
    NotRecovered {
        /// Why.
        error: String,
    },
    /// A command failed though nothing was wrong.
    #[error("a command failed: {error}")]
    CommandFailed {
        /// Why.
        error: String,
    },
    /// A command is never replied to.
    #[error("a command is never replied to")]
    Stuck,
    /// A member was set aside that nothing has happened to.
    #[error("members {members:?} were set aside, and nothing has happened to them")]
    SetAside {
        /// The members.
        members: MemberSet,
    },
    /// A bitmap does not say that a missing member lacks everything.
    #[error("the bitmap of member {member} says that a failed member lacks less than everything")]
    Bits {
        /// The member.
        member: MemberIndex,
    },
    /// A member that has left says that it belongs to the array.
    #[error("member {member} has left, and says that it is still a member")]
    Stays {
        /// Its slot.
        member: MemberIndex,
    },
    /// An array that is initialising, or between two shapes, can be used, or who made it so was told that it can't be.
    #[error("an array that is not finished is used, or whoever changed it was told that it is")]
    Unfinished,
    /// A new array's member holds something.
    #[error("byte {offset} of member {member} is not zero, in a new array")]
    NotZeroed {
        /// The member.
        member: MemberIndex,
        /// The sector.
        offset: Bytes,
    },
    /// A member of a former array lost something too soon.
    #[error(
        "the sector at byte {offset} of member {member} was overwritten before the members were marked, or while a \
         former array is still there"
    )]
    Overwritten {
        /// The member.
        member: MemberIndex,
        /// The sector.
        offset: Bytes,
    },
    /// Opening a recovered array once more changed something.
    #[error("a recovered array changes, or is recovered, when it is opened again")]
    NotStill,
    /// A member's superblock is gone.
    #[error("member {member} has no superblock left: {source}")]
    NoSuperblock {
        /// The member.
        member: MemberIndex,
        /// What is wrong with it.
        source: SuperblockError,
    },
    /// A recovery that was cut off left what must not be.
    #[error(
        "{finding}\n  after its recovery, without {lost:?} then, was cut off at {event}, leaving of what was not \
         flushed:\n    {choice}\n  where"
    )]
    Nested {
        /// When.
        event: String,
        /// What was left.
        choice: String,
        /// Whom the second crash took.
        lost: MemberSet,
        /// What was found.
        finding: Box<Finding>,
    },
    /// A look at the whole array through the engine, and at its members after it, shows something.
    #[error(transparent)]
    Look(Box<crate::dst::Finding>),
    /// An assertion failed.
    #[error("panicked: {message}")]
    Panicked {
        /// What it said.
        message: String,
    },
}

impl Finding {
    pub(crate) fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("something that is no text");
        Self::Panicked { message: text.into() }
    }

    /// Whether it says that the array's content is wrong.
    pub(super) fn is_corruption(&self) -> bool {
        matches!(self, Self::Content(_) | Self::Changed { .. } | Self::Parity { .. } | Self::Sum { .. })
    }
}
