//! Why an array can't be used while it is being reshaped.
//!
//! What is written meanwhile has to be consistent after an unclean stop in both shapes. That takes a log where either
//! has redundancy; and the log has half of its area then, as the other half is for what is saved. Every member has that
//! area, and it may be too small.

use std::fmt;

use uraid_layout::{Bytes, Level, MemberIndex};

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unserved {
    /// The level that has redundancy; RAID 0 where the array has a log all the same.
    pub level: Level,
    /// A member whose area for a log is among the smallest.
    pub member: MemberIndex,
    /// How large that area is.
    pub size: Bytes,
    /// How large it has to be.
    pub needed: Bytes,
    /// Whether that is so for the shape that the array is to get alone.
    pub is_for_new: bool,
}

impl Unserved {
    /// What else there is to do about it before a reshape begins, other than to stop the array.
    pub(super) fn alternative(&self) -> &'static str {
        if self.is_for_new {
            ", or choose a smaller --chunk"
        } else {
            "; only `uraid create --log-size` sets the size of logs"
        }
    }
}

impl fmt::Display for Unserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level, member, size, needed, .. } = self;
        match level {
            Level::Raid0 => write!(f, "the array has a log")?,
            level => write!(f, "{} has redundancy, which a log keeps right meanwhile", level.name())?,
        }
        write!(
            f,
            "; the room for it on member {member} has {size} bytes, but parity stripes of both shapes need {needed} \
             while they move"
        )
    }
}
