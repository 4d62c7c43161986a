//! What is chosen when an array is made, beside its geometry: how its stripes are kept consistent and its content is
//! checked, its sectors, its name, and whether its files take their space at once.

use uraid_layout::{Bytes, Level};

/// The most bytes of an array's name.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// The sectors that an array can have.
pub(crate) const SECTOR_SIZES: [Bytes; 4] = [Bytes(512), Bytes(1024), Bytes(2048), Bytes(4096)];

/// What keeps stripes consistent over an unclean stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// Nothing: all parity is computed again.
    #[default]
    None,
    /// A bitmap says where writes may have been under way: parity is computed again there.
    Bitmap,
    /// A log has every write before it is done: what was under way is done again or never was. While members lack
    /// something, a bitmap says where.
    Log,
}

/// How content is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Integrity {
    /// Not at all, beyond what the members do.
    #[default]
    None,
    /// A checksum for each [block](crate::format::BLOCK).
    Crc32,
}

/// Whether a new member file gets its space at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocation {
    /// All of it, so that the file system can't run out later.
    #[default]
    Full,
    /// As it is written.
    Sparse,
}

/// Why no array can have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It does not fit the superblock.
    #[error("the name has {len} bytes; at most {NAME_BYTES_MAX} fit")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// It would play tricks on a terminal.
    #[error("the name has control characters such as line breaks: leave them out")]
    Control,
}

/// Whether an array can have this name.
///
/// # Errors
/// See [`NameError`].
pub(crate) fn check_name(name: &str) -> Result<(), NameError> {
    match name.len() {
        len if len > NAME_BYTES_MAX => Err(NameError::TooLong { len }),
        _ if name.chars().any(char::is_control) => Err(NameError::Control),
        _ => Ok(()),
    }
}

impl Consistency {
    /// What suits a level: a log where there is parity, a bitmap for mirrors, nothing where nothing is kept twice.
    #[must_use]
    pub(crate) fn of_level(level: Level) -> Self {
        match level {
            Level::Raid0 => Self::None,
            Level::Raid1 | Level::Raid10 { .. } => Self::Bitmap,
            Level::Raid5 { .. } | Level::Raid6 { .. } | Level::Rm2 { .. } => Self::Log,
        }
    }

    /// Whether it is of any use to a level.
    #[must_use]
    pub fn suits(self, level: Level) -> bool {
        self != Self::Bitmap || level != Level::Raid0
    }
}
