//! `cargo xtask sweep`: one fault at a time at every operation of every member, on all cores.
//!
//! A failure names its case and the command that shows it again.

use std::process::Command;
use std::thread;

use anyhow::Context as _;
use clap::Args;

use crate::counts::{self, Counts};
use crate::project::Project;

/// Which cases.
#[derive(Args, Default)]
pub(crate) struct Options {
    /// Only arrays of these levels
    #[arg(long, value_name = "LEVEL", value_parser = ["0", "1", "10", "5", "6", "rm2-m2", "rm2-m3"])]
    level: Vec<String>,
    /// Only this case, as a failure names it
    #[arg(long, value_name = "CASE")]
    only: Option<String>,
    /// Only so many cases, drawn from a seed
    #[arg(long, value_name = "SEED:CASES", conflicts_with = "only")]
    sample: Option<String>,
    /// On so many threads; as many as there are cores unless given
    #[arg(long)]
    threads: Option<usize>,
}

impl Options {
    /// So many cases, drawn from `seed`.
    pub(crate) fn sample(seed: u64, cases: u64) -> Self {
        Self { sample: Some(format!("{seed}:{cases}")), ..Self::default() }
    }
}

/// Runs the cases; an error when one of them is not as it must be.
pub(crate) fn run(project: &Project, options: &Options) -> anyhow::Result<Counts> {
    let threads = options.threads.map_or_else(|| thread::available_parallelism().map(usize::from), Ok);
    let threads = threads.context("the number of cores is not known: give --threads")?;
    let mut arguments = vec![format!("threads={threads}")];
    arguments.extend(options.level.iter().map(|level| format!("level={level}")));
    arguments.extend(options.only.iter().map(|only| format!("only={only}")));
    arguments.extend(options.sample.iter().map(|sample| format!("sample={sample}")));
    counts::run(Command::new(project.checked("uraid-sweep")?).args(arguments))
}
