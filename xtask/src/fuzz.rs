//! `cargo xtask fuzz`: the fuzz targets of what is read from members and of what NBD clients send, all at the same
//! time, for a minute or for as long as one likes.
//!
//! They need cargo-fuzz and a C++ compiler, which are installed when they are missing. There is no unsafe code in what
//! they reach, so they run without a sanitizer: on the project's own toolchain, and faster.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;

use crate::counts::{Counts, Failed};
use crate::package;
use crate::packages;
use crate::project::{Project, eprint_step, run_program};

/// Where the targets are; a workspace of its own.
const DIRECTORY: &str = "fuzz";

/// That workspace.
pub(crate) const MANIFEST: &str = "fuzz/Cargo.toml";

/// Memory is bounded, whatever a member or a client says. Inputs are changes to sound bytes, so short ones reach
/// everything; they may be that long at once, for in a minute they would not grow so far.
const LIMITS: [&str; 4] = ["-rss_limit_mb=1024", "-malloc_limit_mb=64", "-max_len=1024", "-len_control=0"];

/// What to run and for how long.
#[derive(Args)]
pub(crate) struct Options {
    /// How long
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: u32,
    /// Targets, by name [default: all of them]
    target: Vec<String>,
}

impl Options {
    /// All targets, so long.
    pub(crate) fn seconds(seconds: u32) -> Self {
        Self { seconds, target: Vec::new() }
    }

    /// All targets, so long.
    pub(crate) fn until(time: Duration) -> Self {
        Self::seconds(u32::try_from(time.as_secs()).unwrap_or(u32::MAX))
    }
}

/// Runs the targets, and returns how many inputs each has tried; an error when one finds something.
pub(crate) fn run(project: &Project, options: &Options) -> anyhow::Result<Counts> {
    packages::ensure(packages::FUZZ, true)?;
    package::ensure_tool(project, "cargo-fuzz")?;
    run_program(&mut fuzz(project, "build"))?;
    let targets = if options.target.is_empty() { all(project)? } else { options.target.clone() };
    let outcomes: Vec<anyhow::Result<Output>> = std::thread::scope(|scope| {
        let running = targets.iter().map(|target| scope.spawn(|| fuzz_target(project, target, options.seconds)));
        let running: Vec<_> = running.collect();
        running.into_iter().map(|thread| thread.join().expect("starting a program does not panic")).collect()
    });
    let (mut failed, mut counts) = (Vec::new(), Counts::new());
    for (target, outcome) in targets.iter().zip(outcomes) {
        let output = outcome?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            let inputs = executed(&said).with_context(|| format!("{target} does not say how many inputs it tried"))?;
            eprint_step(&format!("{target}: nothing found in {inputs} inputs"));
            counts.insert(format!("inputs_of_{target}"), inputs.into());
        } else {
            eprint_step(&format!("{target} failed ({}):\n{said}", output.status));
            failed.push(target.as_str());
        }
    }
    if !failed.is_empty() {
        let failed = failed.join(", ");
        let reason = format!("fuzzing found something: {failed}; the inputs are in {DIRECTORY}/artifacts");
        return Err(Failed { counts, reason }.into());
    }
    Ok(counts)
}

/// How many inputs were tried, from libFuzzer's final statistics.
fn executed(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))?.trim().parse().ok()
}

/// The names of all targets.
fn all(project: &Project) -> anyhow::Result<Vec<String>> {
    let output = project.cargo(&["fuzz", "list", "--fuzz-dir", DIRECTORY]).output().context("listing fuzz targets")?;
    let names = String::from_utf8(output.stdout).context("cargo fuzz prints UTF-8")?;
    let names: Vec<String> = names.lines().map(str::to_owned).collect();
    if names.is_empty() {
        bail!("{DIRECTORY} has no fuzz targets: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(names)
}

fn fuzz_target(project: &Project, target: &str, seconds: u32) -> anyhow::Result<Output> {
    let mut command = fuzz(project, "run");
    command.args([target, "--"]).args(LIMITS).arg(format!("-max_total_time={seconds}")).arg("-print_final_stats=1");
    command.stdin(Stdio::null()).output().with_context(|| format!("starting {target}"))
}

fn fuzz(project: &Project, what: &str) -> Command {
    project.cargo(&["fuzz", what, "--fuzz-dir", DIRECTORY, "--sanitizer", "none"])
}
