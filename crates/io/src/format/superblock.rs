//! What a member knows of its array: the superblock, where its copies are, and which copy counts.
//!
//! The bytes are described in `docs/on-disk-format.md`; [`encode`] and [`decode`] are pure. Three copies exist: two at
//! the head that are written alternately, so that a torn write leaves the one before, and one near the end for a member
//! whose head is destroyed. The module does not judge members against each other, nor does it read a clock or draw a
//! UUID.

mod areas;
mod codec;
mod content;
mod copies;
mod logs;
mod reshape;
mod scrub;
mod settings;
#[cfg(test)]
pub(crate) mod tests;

pub use areas::{Area, Areas, MEMBER_MIN, SUMS_IN_SECTOR, SUPERBLOCK_BYTES, positions};
pub(crate) use areas::{TAIL_BYTES, places};
pub(crate) use codec::MAGIC;
pub(crate) use codec::encode_converting;
pub use codec::{decode, encode};
pub use content::{Blank, Revision, SlotEntry, SlotState, Superblock, SuperblockError};
pub use copies::newest;
pub(crate) use copies::{erased, newest_beside};
pub(crate) use logs::SHARE_MAX;
pub use logs::{LOGS_MAX, LogChange, LogChangeError, LogDevice, LogDevices, LogIndex, LogSet};
pub use reshape::Reshape;
pub use scrub::{ScrubFound, ScrubHistory, ScrubMode, ScrubRun};
pub use settings::{Allocation, Consistency, Integrity, NameError};
pub(crate) use settings::{NAME_BYTES_MAX, SECTOR_SIZES, check_name};
