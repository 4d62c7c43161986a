//! Runs layout plans on member files and devices: buffers, parity, locks, cache, superblocks, engine.

/// Whether a planted bug is on: see `mutant`.
#[cfg(debug_assertions)]
macro_rules! planted {
    ($name:ident) => {
        $crate::mutant::is_planted($crate::mutant::Mutant::$name)
    };
}
#[cfg(not(debug_assertions))]
macro_rules! planted {
    ($name:ident) => {
        false
    };
}

pub mod array;
pub mod badblocks;
pub mod blank;
mod bounds;
pub mod buf;
pub mod cache;
pub mod disk;
pub mod engine;
mod error;
pub mod format;
pub mod histogram;
pub mod log_device;
mod lost;
pub mod member;
pub mod mutant;
mod signature;
pub mod superblock;
pub mod xor;

pub use error::Error;
pub use lost::{lost, lost_between};
