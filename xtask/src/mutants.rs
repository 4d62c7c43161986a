//! `cargo xtask mutants`: bugs planted one at a time, and who notices.

use clap::Args;

use crate::project::{Project, run_program};

/// How hard to look.
#[derive(Args)]
pub(crate) struct Options {
    /// Seeds of the simulator for each bug
    #[arg(long, value_name = "N", default_value_t = 3000)]
    seeds: u64,
    /// Crash states for each bug that no seed has shown
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    states: u64,
    /// Only these bugs
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// Plants each bug; an error when nobody notices one.
pub(crate) fn run(project: &Project, options: &Options) -> anyhow::Result<()> {
    let arguments =
        ["run", "--quiet", "--release", "--package", "uraid-sim", "--features", "mutants", "--bin", "mutants", "--"];
    let mut command = project.cargo(&arguments);
    run_program(command.args([options.seeds, options.states].map(|number| number.to_string())).args(&options.names))
}
