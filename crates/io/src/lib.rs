//! Runs layout plans on member files and devices: buffers, parity, locks, superblocks, engine.

pub mod buf;
pub mod disk;
pub mod error;
pub mod member;
pub mod xor;

pub use error::Error;
