//! `cargo xtask mutants`: bugs planted one at a time, and who notices.

use std::process::Command;

use clap::Args;
use serde_json::Value;

use crate::counts::{self, Counts};
use crate::project::{Project, eprint_step, output};

/// How hard to look.
#[derive(Args)]
pub(crate) struct Options {
    /// Seeds of the simulator for each bug
    #[arg(long, value_name = "N", default_value_t = 1000)]
    seeds: u64,
    /// Crash states for each bug that no seed has shown
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    states: u64,
    /// Only bugs drawn from a seed, until the minutes are over: none is left half looked at
    #[arg(long, value_name = "SEED:MINUTES", conflicts_with = "names")]
    sample: Option<String>,
    /// Note who notices each bug, to be tried first the next time: `crates/sim/killers.txt`
    #[arg(long)]
    note: bool,
    /// Only these bugs
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

impl Options {
    /// Every bug.
    pub(crate) fn all() -> Self {
        Self { seeds: 1000, states: 20_000, sample: None, note: true, names: Vec::new() }
    }

    /// Those that are begun within so many minutes.
    pub(crate) fn sample(draw: u64, minutes: u64) -> Self {
        Self { sample: Some(format!("{draw}:{minutes}")), note: false, ..Self::all() }
    }
}

/// Plants each bug; an error when nobody notices one.
pub(crate) fn run(project: &Project, options: &Options) -> anyhow::Result<Counts> {
    let tests = engine_tests(project)?.into_iter().map(|program| format!("tests={program}"));
    let mut command = Command::new(project.checked("uraid-mutants")?);
    command.args([format!("seeds={}", options.seeds), format!("states={}", options.states)]).args(tests);
    command.arg(format!("killers={}", project.root().join("crates/sim/killers.txt").display()));
    command.args(options.note.then_some("note"));
    command.args(options.sample.iter().map(|sample| format!("sample={sample}")));
    counts::run(command.args(&options.names))
}

/// Builds the engine's own tests: the programs.
fn engine_tests(project: &Project) -> anyhow::Result<Vec<String>> {
    let arguments = ["test", "--quiet", "--workspace", "--profile=checked", "--lib", "--test", "engine"];
    let mut command = project.cargo(&arguments);
    eprint_step("building the engine's tests");
    let printed = output(command.args(["--no-run", "--message-format", "json"]))?;
    let messages = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let is_engine = |message: &Value| ["uraid_io", "engine"].iter().any(|name| message["target"]["name"] == *name);
    let program = |message: Value| Some(message["executable"].as_str()?.to_owned());
    Ok(messages.filter(is_engine).filter_map(program).collect())
}
