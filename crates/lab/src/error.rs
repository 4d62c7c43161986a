//! Why a measurement is impossible.

use std::io;
use std::path::PathBuf;

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
    /// What was to be done to a file, for `map_err`.
    pub(crate) fn io<'a>(action: &'static str, path: &'a std::path::Path) -> impl FnOnce(io::Error) -> Self + use<'a> {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}
