//! Disk arrays that are modelled, not run: how long the engine's own plans take on mechanical disks.
//!
//! A [`System`] is some arrays, each on disks of its own. Requests come from a [`Source`]; the layout crate's planner
//! turns each into reads and writes, exactly those that the engine would run; the disks serve them, and [`Outcome`]
//! says how long that took. As in the papers' simulators only disks take time: processors, buses and memory are free
//! (Chen & Lee 3.3).
//!
//! - [`disk`] is what is known of a disk, [`presets`] some disks, `drive` one disk at work, [`queue`] the order of
//!   service.
//! - [`mod@array`] is what an array is asked to be and prices requests in disk operations, `locks` keeps writers of a
//!   parity stripe apart, [`cache`] is the engine's in front of it.
//! - [`workload`] makes requests, from sizes of [`sizes`]; [`trace`] reads recorded ones; [`tape`] plans a workload
//!   once for many runs.
//! - [`system`] is the event loop, [`stats`] says when a run has seen enough, [`run`] spreads runs over processors.
//!
//! Invariants: time is virtual, and a run is a function of its arguments; every planned operation is served exactly
//! once; a request's writes begin when all its reads have ended (or those of its parity stripe, see [`array::Phases`]).

pub(crate) mod array;
pub(crate) mod cache;
mod clock;
pub(crate) mod disk;
mod drive;
mod error;
mod locks;
pub mod presets;
pub(crate) mod queue;
mod request;
pub(crate) mod run;
pub mod sizes;
pub mod stats;
pub(crate) mod system;
pub(crate) mod tape;
pub mod trace;
pub mod workload;

#[cfg(test)]
mod tests;

pub use array::{ArraySpec, Phases, Spindles, State, WriteRule};
pub use cache::CacheSpec;
pub use clock::Nanos;
pub use disk::{Disk, DiskSpec};
pub use error::Error;
pub use queue::Discipline;
pub use request::Request;
pub use stats::{Estimate, StopRule};
pub use system::{Outcome, System};
pub use tape::Tape;
pub use workload::Source;
