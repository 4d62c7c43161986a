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

pub mod array;
pub mod cache;
pub mod disk;
mod drive;
mod locks;
pub mod presets;
pub mod queue;
pub mod run;
pub mod sizes;
pub mod stats;
pub mod system;
pub mod tape;
pub mod trace;
pub mod workload;

#[cfg(test)]
mod tests;

pub use array::{ArraySpec, Phases, SecondParity, Spindles, State, WriteRule};
pub use cache::CacheSpec;
pub use disk::{Disk, DiskSpec};
pub use queue::Discipline;
pub use stats::{Estimate, StopRule};
pub use system::{Outcome, System};
pub use tape::Tape;
pub use workload::{Request, Source};

/// Virtual time since a run began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

/// Why something can't be simulated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A disk is not described in the TOML that is expected.
    #[error(
        "the disk's description can't be read; compare it with the example in the documentation of simulated disks"
    )]
    DiskSyntax(#[from] toml::de::Error),
    /// A disk's figure makes no sense.
    #[error("the disk {disk:?} can't have {field} = {value}: {rule}")]
    Disk {
        /// The disk's name.
        disk: String,
        /// The figure.
        field: &'static str,
        /// Its value.
        value: f64,
        /// What it has to be.
        rule: &'static str,
    },
    /// An array can't be laid out.
    #[error("the array can't be laid out")]
    Geometry(#[from] uraid_layout::GeometryError),
    /// An array does not survive what is missing.
    #[error("the array has lost data")]
    Lost(#[from] uraid_layout::repair::Unrecoverable),
    /// An array is to use more of its disks than there is.
    #[error("the array is to use {used} sectors of each disk, which has {capacity}")]
    Capacity {
        /// What is to be used.
        used: uraid_layout::Sectors,
        /// What there is.
        capacity: uraid_layout::Sectors,
    },
    /// A request is beyond its array.
    #[error("a request can't be planned; it has to lie within its array")]
    Plan(#[from] uraid_layout::plan::PlanError),
    /// A system of no or too many disks, or a request for an array that there is not.
    #[error("{what}: {value}")]
    System {
        /// What is wrong.
        what: &'static str,
        /// The number.
        value: usize,
    },
    /// A size distribution, a mix or a stopping rule makes no sense.
    #[error("the workload can't have {field} = {value}: {rule}")]
    Workload {
        /// The parameter.
        field: &'static str,
        /// Its value.
        value: f64,
        /// What it has to be.
        rule: &'static str,
    },
    /// A trace's line makes no sense.
    #[error("line {line} of the trace: {reason}; it reads {text:?}")]
    Trace {
        /// Its number, from 1.
        line: usize,
        /// What is wrong.
        reason: &'static str,
        /// Its text, the first 80 characters.
        text: String,
    },
    /// A pool of threads can't be had.
    #[error("the threads for the runs can't be had; ask for fewer")]
    Threads(#[from] rayon::ThreadPoolBuildError),
}
