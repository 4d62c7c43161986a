//! Runs layout plans on member files and devices: buffers, parity, locks, cache, superblocks, engine.

pub mod array;
pub mod bands;
pub mod buf;
pub mod cache;
pub mod disk;
pub mod engine;
pub mod error;
pub mod log;
pub mod member;
pub mod signature;
pub mod superblock;
pub mod xor;

pub use error::Error;
