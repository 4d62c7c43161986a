//! What is on members, as bytes: superblocks, the log, the write-intent bitmap, checksums, lists of bad blocks; and
//! what log devices say of themselves.
//!
//! Values in, bytes out, and back, whatever the bytes are; all of it is described in `docs/on-disk-format.md`, and the
//! fuzz targets for members are for this module. Nothing here knows a disk, a file or the engine: when and in which
//! order bytes are written is others' affair.

pub mod badblocks;
pub mod bitmap;
pub mod log;
pub mod log_device;
pub mod owner;
pub mod sums;
pub mod superblock;
mod units;

pub use units::{Epoch, UnixSeconds};
use uraid_layout::Sectors;

/// The unit of everything here: what a checksum covers, what of a bitmap is written at once, and what places in the log
/// are multiples of. Members of every [sector size](superblock::SECTOR_SIZES) take it.
pub const BLOCK: Sectors = Sectors(8);

/// The bytes of a [`BLOCK`].
pub const BLOCK_BYTES: usize = 4096;

const _: () = assert!(BLOCK.bytes().0 == BLOCK_BYTES as u64);
