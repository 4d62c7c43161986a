//! The chunk-size laboratory: measures arrays of different shapes under named workloads, and judges them.
//!
//! A [`Plan`] says which arrays (level, chunk, cache mode) meet which loads, and how long. [`run`] creates the arrays,
//! serves each with the `uraid` program as a user would, and measures it with fio or the [`native`] generator, in
//! alternating order. [`Results`] keeps every observation; a run that is cut off goes on with them. [`Summary`] judges
//! them, [`report`] writes them as Markdown and as a page with figures, [`compare`] finds what differs between two.
//!
//! - [`load`] finds workloads: named ones of the models, fio's job files, traces. [`fio`] writes job files and reads
//!   fio's JSON.
//! - [`retrieval`] measures how fast whole files are read from a file system on the arrays.
//! - [`plan`] and [`results`] are plain data, `stage` owns files and servers, [`machine`] collects facts.
//! - [`stats`] has medians, their intervals and tests; it knows nothing of arrays.
//!
//! Invariants: nothing is written to a file or device that held something before the run; every cell of a round is
//! measured before the next round begins; a timing is shown and compared with other timings, never asserted.

use std::io;
use std::path::PathBuf;

pub mod compare;
pub mod fio;
pub mod load;
pub mod machine;
pub mod native;
pub mod plan;
pub mod report;
pub mod results;
pub mod retrieval;
pub mod run;
mod stage;
pub mod stats;
pub mod summary;

pub use load::Load;
pub use plan::{Arrays, Config, Driver, Plan, Rounds};
pub use results::{Measured, Results};
pub use summary::Summary;

/// Why a measurement is impossible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory can't be used.
    #[error("can't {action} {}", path.display())]
    Io {
        /// What was to be done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A program failed.
    #[error("{program} failed{}{said}", if said.is_empty() { "" } else { ": " })]
    Program {
        /// Its name.
        program: String,
        /// What it said.
        said: String,
    },
    /// A program is missing.
    #[error("{program} can't be run: {advice}")]
    Missing {
        /// Its name.
        program: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// The server refused, or the connection to it failed.
    #[error(transparent)]
    Client(#[from] uraid_nbd_client::ClientError),
    /// The server broke the protocol or the connection.
    #[error("{what}")]
    Server {
        /// What happened.
        what: String,
        /// The cause, if the connection failed.
        source: Option<io::Error>,
    },
    /// The request makes no sense; the text says what to do.
    #[error("{0}")]
    Refused(String),
    /// There is no such workload.
    #[error(transparent)]
    Workload(#[from] uraid_model::workloads::UnknownWorkload),
    /// A workload does not fit the array, or a trace can't be read.
    #[error(transparent)]
    Load(#[from] uraid_model::mech::Error),
    /// The results can't be read.
    #[error("{} has no results that this command can read", path.display())]
    Results {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// Somebody asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    fn io<'a>(action: &'static str, path: &'a std::path::Path) -> impl FnOnce(io::Error) -> Self + use<'a> {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}
