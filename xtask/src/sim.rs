//! `cargo xtask sim`: deterministic runs of the engine on simulated members, one for each seed, on all cores.
//!
//! A failure names its seed, the commit, the last events, and the command that shows it again.

use std::ops::Range;
use std::process::Command;
use std::thread;

use anyhow::{Context as _, ensure};
use clap::Args;

use crate::project::{Project, eprint_step, run_program};

/// Which seeds.
#[derive(Args)]
pub(crate) struct Options {
    /// The seeds, for example `0..1000`; the end is not one of them
    #[arg(long, value_parser = parse_seeds)]
    seeds: Range<u64>,
    /// Stop after so many minutes, however many seeds are left
    #[arg(long, default_value_t = 0)]
    minutes: u64,
    /// On so many threads; as many as there are cores unless given
    #[arg(long)]
    threads: Option<usize>,
}

impl Default for Options {
    /// What continuous integration runs.
    fn default() -> Self {
        Self { seeds: 0..1000, minutes: 0, threads: None }
    }
}

/// Runs the seeds; an error when one of them fails.
pub(crate) fn run(project: &Project, options: &Options) -> anyhow::Result<()> {
    let threads = options.threads.map_or_else(|| thread::available_parallelism().map(usize::from), Ok);
    let threads = threads.context("the number of cores is not known: give --threads")?;
    let Range { start, end } = options.seeds;
    let commit = commit(project)?;
    eprint_step(&format!("seeds {start}..{end} at commit {commit}"));
    let numbers = [start, end, options.minutes, threads as u64].map(|number| number.to_string());
    let mut command = project.cargo(&["run", "--quiet", "--release", "--package", "uraid-sim", "--"]);
    run_program(command.args(numbers)).with_context(|| format!("seeds failed at commit {commit}"))
}

/// Which commit this is, and whether the work tree is another.
fn commit(project: &Project) -> anyhow::Result<String> {
    let mut git = Command::new("git");
    let arguments = ["-c", "safe.directory=*", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"];
    let output = git.args(arguments).current_dir(project.root()).output().context("git says which commit this is")?;
    ensure!(output.status.success(), "git does not say which commit this is");
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn parse_seeds(text: &str) -> anyhow::Result<Range<u64>> {
    let (start, end) = text.split_once("..").context("seeds are given as FIRST..END")?;
    let number = |text: &str| text.trim().parse::<u64>().with_context(|| format!("{text:?} is no seed"));
    let seeds = number(start)?..number(end)?;
    ensure!(!seeds.is_empty(), "there is no seed in {text}");
    Ok(seeds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range() {
        assert_eq!(parse_seeds("3..10").unwrap(), 3..10);
        for wrong in ["", "3", "3..", "..3", "3..3", "4..3", "-1..3", "a..b"] {
            assert!(parse_seeds(wrong).is_err(), "{wrong:?}");
        }
    }
}
