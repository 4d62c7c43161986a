//! `cargo xtask bench peers`: every workload against every server in turn, round after round.
//!
//! All servers run all the time and only one is loaded: figures move from minute to minute on shared machines, hence
//! only those that were measured side by side are compared. Each round starts with another server.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::Args;

use super::process::Scratch;
use super::report::{Report, Row};
use super::server::{Programs, Running, SERVERS};
use super::workload::{WORKLOADS, Workload};
use crate::project::{Project, eprint_step, run_program};

/// What to compare, and how long.
#[derive(Args)]
pub(crate) struct Options {
    /// Where the members and files are: `tmpfs` (/dev/shm), `disk` (/var/tmp) or a directory
    #[arg(long, default_value = "tmpfs")]
    medium: PathBuf,
    /// How often every workload is run against every server
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// MiB of each export
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    mebibytes: u64,
    /// Write everything as JSON to this file too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run only the workloads whose names contain this
    #[arg(long, default_value = "", hide_default_value = true, value_name = "SUBSTRING")]
    only: String,
}

/// Measures, and prints the tables as markdown.
#[expect(clippy::print_stdout, reason = "the tables are what was asked for")]
pub(crate) fn run(project: &Project, options: &Options) -> anyhow::Result<()> {
    let workloads: Vec<&Workload> = WORKLOADS.iter().filter(|workload| workload.name.contains(&options.only)).collect();
    ensure!(!workloads.is_empty(), "no workload's name contains '{}'", options.only);
    let programs = build(project)?;
    let (directory, medium) = medium(&options.medium);
    let directory = directory.canonicalize().with_context(|| format!("looking for {}", directory.display()))?;
    let scratch = Scratch::create(&directory)?;
    let (running, left_out) = start(&scratch, options.mebibytes << 20, &programs)?;
    let rows = measure(&workloads, &running, options, &programs, scratch.path())?;
    let report = Report {
        machine: machine(),
        medium,
        rounds: options.rounds,
        seconds: options.seconds,
        capacity: options.mebibytes << 20,
        servers: running.iter().map(|server| (server.name, server.command.clone())).collect(),
        left_out,
        rows,
    };
    print!("{}", report.markdown());
    if let Some(path) = &options.json {
        let text = format!("{:#}\n", report.json());
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Builds the server and this program with optimisation: the generator must not be what is measured.
fn build(project: &Project) -> anyhow::Result<Programs> {
    run_program(&mut project.cargo(&["build", "--release", "--quiet", "--package", "uraid", "--package", "xtask"]))?;
    let metadata = project.metadata()?;
    let target = metadata["target_directory"].as_str().context("cargo metadata names the target directory")?;
    let release = Path::new(target).join("release");
    Ok(Programs { uraid: release.join("uraid"), generator: release.join("xtask") })
}

/// The directory that `--medium` means, and how to call it.
fn medium(option: &Path) -> (&Path, String) {
    match option.to_str() {
        Some("tmpfs") => (Path::new("/dev/shm"), "tmpfs".to_owned()),
        Some("disk") => (Path::new("/var/tmp"), "disk".to_owned()),
        _ => (option, option.display().to_string()),
    }
}

/// The servers that run, and each other one with the reason.
type Field = (Vec<Running>, Vec<(&'static str, String)>);

fn start(scratch: &Scratch, capacity: u64, programs: &Programs) -> anyhow::Result<Field> {
    let (mut running, mut left_out) = (Vec::new(), Vec::new());
    for (number, server) in SERVERS.iter().enumerate() {
        eprint_step(&format!("starting and filling {}", server.name));
        match Running::start(server, &scratch.path().join(number.to_string()), capacity, programs) {
            Ok(started) => running.push(started),
            Err(error) => {
                eprint_step(&format!("leaving out {}: {error:#}", server.name));
                left_out.push((server.name, format!("{error:#}")));
            }
        }
    }
    ensure!(!running.is_empty(), "no server could be started");
    Ok((running, left_out))
}

fn measure(
    workloads: &[&Workload],
    running: &[Running],
    options: &Options,
    programs: &Programs,
    scratch: &Path,
) -> anyhow::Result<Vec<Row>> {
    let mut rows: Vec<Row> = workloads
        .iter()
        .map(|workload| Row { workload: workload.name, unit: workload.unit, samples: vec![Vec::new(); running.len()] })
        .collect();
    for round in 0..options.rounds as usize {
        for (workload, row) in workloads.iter().zip(&mut rows) {
            eprint_step(&format!("round {} of {}: {}", round + 1, options.rounds, workload.name));
            for index in turn(round, running.len()) {
                let server = &running[index];
                let span = options.mebibytes << 20;
                let sample = workload.measure(server, span, options.seconds, programs, scratch);
                row.samples[index].push(sample.with_context(|| format!("{} against {}", workload.name, server.name))?);
            }
        }
    }
    Ok(rows)
}

/// The order of the servers in a round: each round begins one further.
fn turn(round: usize, servers: usize) -> impl Iterator<Item = usize> {
    (0..servers).map(move |position| (position + round) % servers)
}

/// Processor, cores and kernel.
fn machine() -> String {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{model}, {cores} cores, Linux {}", kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_begins_one_further() {
        let order = |round| turn(round, 3).collect::<Vec<usize>>();
        assert_eq!([order(0), order(1), order(2), order(3)], [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]);
    }

    #[test]
    fn media_have_names() {
        assert_eq!(medium(Path::new("tmpfs")).0, Path::new("/dev/shm"));
        assert_eq!(medium(Path::new("/mnt/x")), (Path::new("/mnt/x"), "/mnt/x".to_owned()));
    }
}
