//! Why something can't be simulated.

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
