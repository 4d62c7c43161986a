//! `cargo xtask crash`: every crash of small workloads, one by one, on all cores.
//!
//! A failure names its workload, when the power went, what was left and who was lost, and the command that shows it
//! again.

use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::Args;

use crate::counts::{self, Counts};
use crate::project::Project;

/// How much of it.
#[derive(Args)]
pub(crate) struct Options {
    /// Stop after so many different states
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    states: u64,
    /// Stop after so many hours instead
    #[arg(long, value_name = "H", value_parser = hours, conflicts_with = "states")]
    hours: Option<Duration>,
    /// Begin with workloads that follow from this number
    #[arg(long, value_name = "N", default_value_t = 0)]
    draw: u64,
    /// Only arrays of these levels
    #[arg(long, value_name = "LEVEL", value_parser = ["0", "1", "10", "5", "6", "rm2-m2", "rm2-m3"])]
    level: Vec<String>,
    /// Only this workload, as a failure names it
    #[arg(long, value_name = "WORKLOAD")]
    only: Option<String>,
    /// On so many threads; as many as there are cores unless given
    #[arg(long)]
    threads: Option<usize>,
}

impl Options {
    /// So many states of workloads that are drawn.
    pub(crate) fn states(states: u64, draw: u64) -> Self {
        Self { states, hours: None, draw, level: Vec::new(), only: None, threads: None }
    }

    /// As many as there is time for, of other workloads each time.
    pub(crate) fn until(time: Duration) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { hours: Some(time), ..Self::states(0, now.as_secs()) }
    }
}

/// Goes through crashes; an error when one of them leaves what must not be.
pub(crate) fn run(project: &Project, options: &Options) -> anyhow::Result<Counts> {
    let threads = options.threads.map_or_else(|| thread::available_parallelism().map(usize::from), Ok);
    let threads = threads.context("the number of cores is not known: give --threads")?;
    let mut arguments = vec![format!("threads={threads}"), format!("draw={}", options.draw)];
    match options.hours {
        Some(hours) => arguments.push(format!("seconds={}", hours.as_secs())),
        None => arguments.push(format!("states={}", options.states)),
    }
    arguments.extend(options.level.iter().map(|level| format!("level={level}")));
    arguments.extend(options.only.iter().map(|only| format!("only={only}")));
    counts::run(Command::new(project.checked("uraid-crash")?).args(arguments))
}

fn hours(text: &str) -> Result<Duration, String> {
    let hours: f64 = text.parse().map_err(|_| format!("'{text}' is no number of hours"))?;
    Duration::try_from_secs_f64(hours * 3600.0).map_err(|error| error.to_string())
}
