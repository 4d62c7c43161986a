//! `cargo xtask papers`: the papers' tables and figures, computed again in full, into `docs/papers`.

use clap::Args;

use crate::project::{Project, run_program};

/// Where documents and drawings go.
const DIRECTORY: &str = "docs/papers";

/// Which papers.
#[derive(Args)]
pub(crate) struct Options {
    /// Only these, by the names that `uraid simulate` lists
    #[arg(value_name = "PAPER")]
    papers: Vec<String>,
}

/// Computes and writes them.
pub(crate) fn run(project: &Project, options: &Options) -> anyhow::Result<()> {
    let arguments =
        ["run", "--quiet", "--profile=checked", "--package", "uraid-model", "--bin", "uraid-papers", "--", DIRECTORY];
    run_program(project.cargo(&arguments).args(&options.papers))
}
