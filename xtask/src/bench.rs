//! `cargo xtask bench`: the package `uraid-bench`, built with optimisation and run.

use std::ffi::OsString;
use std::process::Command;

use clap::Args;

use crate::project::{Project, run_program};

/// What is passed on.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// What to measure, and how: `--help` tells
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Builds the server and what measures it, and measures.
pub(crate) fn run(project: &Project, options: &Options) -> anyhow::Result<()> {
    let packages = ["--package", "uraid", "--package", "uraid-bench"];
    run_program(project.cargo(&["build", "--release", "--quiet"]).args(packages))?;
    let release = project.target()?.join("release");
    let mut bench = Command::new(release.join("uraid-bench"));
    if std::env::var_os("URAID_BIN").is_none() {
        // It is built already; alone it would be built once more, with fewer features of its dependencies.
        bench.env("URAID_BIN", release.join("uraid"));
    }
    run_program(bench.args(&options.arguments))
}
