//! What members say of their array: superblocks of versions 0.90, 1.0, 1.1 and 1.2.

mod content;
mod find;
mod names;
mod v0;
mod v1;

pub use content::{ArrayUuid, BadRange, Level, Role, Superblock, SuperblockError, Version};
pub use find::{Holding, find};
pub use names::layout_words;
