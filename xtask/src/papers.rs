//! `cargo xtask papers`: the papers' tables and figures, computed again in full, into `docs/papers`.

use std::process::Command;

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
    let mut papers = Command::new(project.checked("uraid-papers")?);
    run_program(papers.current_dir(project.root()).arg(DIRECTORY).args(&options.papers))
}
