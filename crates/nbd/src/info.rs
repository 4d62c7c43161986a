//! What clients are told about an export.

use crate::{Error, proto::STRING_BYTES_MAX};

/// The most data that a request may carry. That of a write that is refused is skipped; a write that declares more ends
/// the connection.
pub(crate) const WRITE_BYTES_MAX: u32 = 64 << 20;

/// What clients are told about an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// The canonical name. Clients may also ask for the default export, whose name is empty.
    pub name: String,
    /// A line for people.
    pub description: String,
    /// Size of the export.
    pub size_bytes: u64,
    /// Granularity of requests.
    pub block_sizes: BlockSizes,
    /// Whether commands that would change the export are refused.
    pub read_only: bool,
    /// Whether it has the characteristics of a disk that rotates, so that clients order requests by their places.
    pub rotational: bool,
    /// Whether a flush on one connection covers the writes of all.
    pub multi_conn: bool,
    /// Whether [`Command::Trim`](crate::Command::Trim) is understood.
    pub trim: bool,
    /// Whether [`Command::WriteZeroes`](crate::Command::WriteZeroes) with `fast` is understood, if only to refuse it at
    /// once.
    pub fast_zero: bool,
}

/// Granularity of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of this: a power of two up to 65536.
    pub minimum_bytes: u32,
    /// Aligned requests of at least this size are efficient: a power of two, at least 512 and the minimum.
    pub preferred_bytes: u32,
    /// The most data that one request or reply may carry: at least the preferred size, at most 64 MiB.
    pub maximum_bytes: u32,
}

impl Default for BlockSizes {
    /// What a client may assume when nothing is said: 1, 4 KiB, 32 MiB.
    fn default() -> Self {
        Self { minimum_bytes: 1, preferred_bytes: 4096, maximum_bytes: 32 << 20 }
    }
}

impl ExportInfo {
    /// An export without a name, of default block sizes, that may be written and can do everything.
    pub fn new(size_bytes: u64) -> Self {
        Self {
            name: String::new(),
            description: String::new(),
            size_bytes,
            block_sizes: BlockSizes::default(),
            read_only: false,
            rotational: false,
            multi_conn: true,
            trim: true,
            fast_zero: true,
        }
    }

    /// Checks that the protocol can express this.
    ///
    /// # Errors
    /// [`Error::InvalidExport`] naming the first rule that is broken.
    pub fn validate(&self) -> Result<(), Error> {
        let sizes = self.block_sizes;
        let minimum_ok = sizes.minimum_bytes.is_power_of_two() && sizes.minimum_bytes <= 65536;
        let preferred_ok =
            sizes.preferred_bytes.is_power_of_two() && sizes.preferred_bytes >= sizes.minimum_bytes.max(512);
        let rules = [
            (minimum_ok, "the minimum block size must be a power of two up to 65536"),
            (preferred_ok, "the preferred block size must be a power of two, at least 512 and the minimum block size"),
            (
                sizes.maximum_bytes >= sizes.preferred_bytes,
                "the maximum payload must be at least the preferred block size",
            ),
            (sizes.maximum_bytes <= WRITE_BYTES_MAX, "the maximum payload must be at most 64 MiB"),
            (self.name.len() <= STRING_BYTES_MAX, "the name must have at most 4096 bytes"),
            (self.description.len() <= STRING_BYTES_MAX, "the description must have at most 4096 bytes"),
            (!self.name.contains('\0'), "the name must not contain NUL"),
            (!self.description.contains('\0'), "the description must not contain NUL"),
        ];
        if let Some((_, reason)) = rules.into_iter().find(|(holds, _)| !holds) {
            return Err(Error::InvalidExport { reason });
        }
        if !self.size_bytes.is_multiple_of(sizes.minimum_bytes.into()) {
            return Err(Error::InvalidExport { reason: "the size must be a multiple of the minimum block size" });
        }
        Ok(())
    }
}
