//! `cargo xtask sim`: deterministic runs of the engine on simulated members, one for each seed, on all cores.
//!
//! A failure names its seed, the commit, the last events, and the command that shows it again. Seeds that failed once
//! are kept in [`FAILED_ONCE`].

use std::fs;
use std::ops::Range;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, ensure};
use clap::Args;

use crate::counts::{self, Counts};
use crate::project::{Project, eprint_step};

/// One seed a line, and after `#` what it found.
const FAILED_ONCE: &str = "crates/sim/seeds.txt";

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

impl Options {
    /// So many seeds from `first` on.
    pub(crate) fn seeds(first: u64, count: u64) -> Self {
        Self { seeds: first..first + count, minutes: 0, threads: None }
    }

    /// As many seeds as there is time for, and other ones each time.
    pub(crate) fn until(time: Duration) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let first = now.as_secs() << 24;
        Self { seeds: first..u64::MAX, minutes: time.as_secs().div_ceil(60).max(1), threads: None }
    }
}

/// Runs the seeds that failed once; an error when one of them fails again.
pub(crate) fn failed_once(project: &Project) -> anyhow::Result<()> {
    let text =
        fs::read_to_string(project.root().join(FAILED_ONCE)).with_context(|| format!("reading {FAILED_ONCE}"))?;
    for seed in seeds(&text).with_context(|| format!("{FAILED_ONCE} has a seed on each line"))? {
        run(project, &Options::seeds(seed, 1))?;
    }
    Ok(())
}

/// The seeds of a list; none where a line is no seed.
fn seeds(text: &str) -> Option<Vec<u64>> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(|line| line.parse().ok()).collect()
}

/// Runs the seeds; an error when one of them fails.
pub(crate) fn run(project: &Project, options: &Options) -> anyhow::Result<Counts> {
    let threads = options.threads.map_or_else(|| thread::available_parallelism().map(usize::from), Ok);
    let threads = threads.context("the number of cores is not known: give --threads")?;
    let Range { start, end } = options.seeds;
    let commit = commit(project)?;
    eprint_step(&format!("seeds {start}..{end} at commit {commit}"));
    let numbers = [start, end, options.minutes, threads as u64].map(|number| number.to_string());
    let mut command = Command::new(project.checked("uraid-sim")?);
    counts::run(command.args(numbers)).with_context(|| format!("seeds failed at commit {commit}"))
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
    fn a_list_has_a_seed_on_each_line() {
        assert_eq!(seeds("# found\n3 # a hang\n\n17\n"), Some(vec![3, 17]));
        assert_eq!(seeds("3 a hang\n"), None);
    }

    #[test]
    fn seeds_are_a_range() {
        assert_eq!(parse_seeds("3..10").unwrap(), 3..10);
        for wrong in ["", "3", "3..", "..3", "3..3", "4..3", "-1..3", "a..b"] {
            assert!(parse_seeds(wrong).is_err(), "{wrong:?}");
        }
    }
}
