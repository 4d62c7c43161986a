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

pub mod compare;
mod error;
pub mod fio;
pub mod load;
pub mod machine;
pub mod native;
pub mod plan;
pub mod report;
mod results;
pub mod retrieval;
pub mod run;
mod stage;
pub mod stats;
mod summary;

pub use error::Error;
pub use load::Load;
pub use plan::{Arrays, Config, Driver, Plan, Rounds};
pub use results::{Measured, Results};
pub use summary::Summary;
