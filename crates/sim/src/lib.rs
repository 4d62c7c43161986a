//! Simulated members, and the real engine, cache, log and metadata code run on them.
//!
//! [`members`] remember, sector by sector, what a power cut may leave of what was written to them. Everything is a
//! function of its arguments: no clock, no thread, no randomness but what a caller brings.

/// Two counts as one: the sum of each field, of which none can be left out.
macro_rules! sum {
    ($a:ident, $b:ident: $($field:ident),+) => { Self { $($field: $a.$field + $b.$field),+ } };
}

pub mod crash;
mod decode;
pub mod disk;
pub mod dst;
mod image;
mod member;
mod members;
pub mod scenes;
pub mod sweep;
pub mod tally;
pub mod trace;

pub use disk::SimDisk;
pub use members::Members;
