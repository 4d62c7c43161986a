//! Why the engine could not do what it was asked.

use thiserror::Error;
use uraid_layout::plan::PlanError;
use uraid_layout::repair::Unrecoverable;
use uraid_layout::{Bytes, Lba, MemberIndex, MemberSet, Sectors};

use crate::cache::Unwritten;
use crate::format::badblocks::Full;
use crate::format::superblock::LogChangeError;

/// Why a command failed, or why there is no engine.
#[derive(Debug, Error)]
pub enum EngineError {
    /// More members are missing than the level survives.
    #[error("too many members are missing: {missing}")]
    TooManyMissing {
        /// Their slots.
        missing: MemberSet,
        /// What can't be recovered.
        source: Box<Unrecoverable>,
    },
    /// The range is not within the array.
    #[error("sectors {lba}..+{len} are not within the array's {capacity} sectors")]
    OutOfRange {
        /// The first sector.
        lba: Lba,
        /// The length.
        len: Sectors,
        /// The array's size.
        capacity: Sectors,
    },
    /// The buffer is not a whole number of sectors.
    #[error("a request of {len} bytes is not a whole number of 512-byte sectors")]
    Unaligned {
        /// Its length.
        len: Bytes,
    },
    /// The array has a checksum for each block, and the range is not one of whole blocks.
    #[error("sectors {lba}..+{len} are not whole blocks of 4096 bytes, as an array with checksums requires")]
    NotBlocks {
        /// The first sector.
        lba: Lba,
        /// The length.
        len: Sectors,
    },
    /// There is no memory for what has to be read beside the bytes that are asked for.
    #[error("there is no memory for the request")]
    NoMemory,
    /// A write to an array that is open for reading only.
    #[error("the array is open for reading only")]
    ReadOnly,
    /// More members failed than the level survives, or all log devices; nothing is read or written any more, so that
    /// nothing is made up.
    #[error(
        "the array is frozen, because more members failed than it survives, or all of its log devices: stop it and \
         check them"
    )]
    Frozen,
    /// The data can't be read from its member nor computed from the others.
    #[error(
        "sectors {lba}..+{len} can't be read: {} can't give it, and the other members can't make up for that",
        named(*members)
    )]
    Unreadable {
        /// The first sector of the part that failed.
        lba: Lba,
        /// Its length.
        len: Sectors,
        /// The members whose reads failed.
        members: MemberSet,
    },
    /// A write failed and the level has nowhere else to keep what it brought.
    #[error("{} failed a write, and this level has no other copy", named(*members))]
    WriteFailed {
        /// The members.
        members: MemberSet,
    },
    /// A flush failed and the level has nowhere else to keep what it covered.
    #[error("{} failed a flush: earlier writes may be lost", named(*members))]
    FlushFailed {
        /// The members.
        members: MemberSet,
    },
    /// Content of writes that were replied to could not be written.
    #[error(
        "a flush covers all that was acknowledged, and of that {unwritten}; reads give it from memory, and each flush \
         tries again"
    )]
    NotDestaged {
        /// Which, and why.
        unwritten: Box<Unwritten>,
    },
    /// The array can't be closed: content of writes that were replied to could not be written. Only the journal has it.
    #[error("{unwritten}. Nothing is lost: the log has it for the next start")]
    Journaled {
        /// Which, and why.
        unwritten: Box<Unwritten>,
    },
    /// The log of some member failed, and the level has nowhere else to keep what it covers.
    #[error(
        "{} failed to log a write, and this level has no other copy; nothing was written in place",
        named(*members)
    )]
    LogFailed {
        /// The members; empty: it does not fit the log.
        members: MemberSet,
    },
    /// The members' logs have no room for a parity stripe.
    #[error("the log of {size} is too small: it needs {needed}; create the array with a larger --log-size")]
    LogTooSmall {
        /// The smallest log of a member.
        size: Bytes,
        /// What it needs.
        needed: Bytes,
    },
    /// More of a member can't be made than its list of bad blocks has room for.
    #[error(
        "member {member}: {source}. Write what is lost anew, or give this member up and restore the array elsewhere"
    )]
    BadBlocks {
        /// Its slot.
        member: MemberIndex,
        /// That it is full.
        source: Full,
    },
    /// Where content is lost, more would be in its new places.
    #[error(
        "the content at byte {} would be lost if it moved: only parity has it then, beside content that is lost \
         already. Bring missing members back, write what is lost anew, or have the reshape go back", lba.0 * 512
    )]
    LosesMore {
        /// Where it is.
        lba: Lba,
    },
    /// The array was not stopped cleanly, and its log is still to be done again.
    #[error("the array was not stopped cleanly: recover it first")]
    NotRecovered,
    /// The array is on its way to another shape.
    #[error("the array is being reshaped: wait until that is over (uraid wait), or have it go back")]
    Reshaping,
    /// The array can't be closed while writes are under way.
    #[error("writes are under way; wait for their replies before closing the array")]
    Busy,
    /// A scrub is under way already.
    #[error("a scrub is under way; stop it, or wait for its end")]
    Scrubbing,
    /// A member that is not there, or that the array goes on without already.
    #[error("member {member} is missing already")]
    NotThere {
        /// Its slot.
        member: MemberIndex,
    },
    /// The array can't do without the member.
    #[error("the array needs member {member}: no other member can make up for it now")]
    Needed {
        /// Its slot.
        member: MemberIndex,
    },
    /// The slot of a member that is to join is not free.
    #[error("slot {member} has a member; remove that first")]
    NotMissing {
        /// The slot.
        member: MemberIndex,
    },
    /// A member that is to join does not suit the array.
    #[error("the new member for slot {member} does not fit the array: its {field} differs")]
    Unsuited {
        /// The slot.
        member: MemberIndex,
        /// What of it.
        field: &'static str,
    },
    /// A member that is to return has not ended what it was given before.
    #[error(
        "member {member} can't return before its abandoned operations end. Try again, or restart the machine that it \
         is attached to"
    )]
    Lingering {
        /// Its slot.
        member: MemberIndex,
    },
    /// A member failed while it joined.
    #[error("member {member} failed before it joined; the array continues without it")]
    JoinFailed {
        /// Its slot.
        member: MemberIndex,
    },
    /// A member is being copied to another one already, or this one's place is being taken.
    #[error("a member is being replaced; wait until that is done, or fail the new member to stop it")]
    Replacing,
    /// Log devices can't change so.
    #[error(transparent)]
    LogDevices(#[from] LogChangeError),
    /// There is no place for one more.
    #[error(
        "an array of 64 members has no room for a 65th to copy to: fail the member, remove it, and add the new one"
    )]
    NoSeat,
    /// The array was not stopped cleanly, and redundancy may not agree.
    #[error(
        "the array's redundancy is doubtful since it was not stopped cleanly: bring the missing members back, and \
         serve it again"
    )]
    Suspect,
    /// The request can't be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The members can't be reached at all.
    #[error("the members can't be reached")]
    Device(#[source] Box<crate::Error>),
}

impl From<crate::Error> for EngineError {
    fn from(error: crate::Error) -> Self {
        Self::Device(Box::new(error))
    }
}

// Every reply has room for one.
const _: () = assert!(size_of::<EngineError>() <= 32);

impl From<Unwritten> for EngineError {
    fn from(unwritten: Unwritten) -> Self {
        Self::NotDestaged { unwritten: Box::new(unwritten) }
    }
}

/// `member 1`, `members 1 and 2`.
pub(crate) fn named(members: MemberSet) -> String {
    if members.is_empty() {
        return "its member".to_owned();
    }
    format!("{} {members}", if members.len() == 1 { "member" } else { "members" })
}
