//! Arguments of commands for those who begin: a first array, and what a package or a shell takes from the program.

use std::path::PathBuf;

use clap::Args;

use super::EndpointArgs;
use crate::complete::Shell;

/// Arguments of `uraid quickstart`.
#[derive(Debug, Args)]
pub(crate) struct QuickstartArgs {
    #[command(flatten)]
    pub(crate) endpoint: EndpointArgs,
    /// Directory for the members
    #[arg(default_value = "./uraid-demo", value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// Arguments of `uraid completions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  source <(uraid completions bash)                    for this shell
  uraid completions fish > ~/.config/fish/completions/uraid.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    pub(crate) shell: Shell,
}

/// Arguments of `uraid man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Directory that exists
    #[arg(value_name = "DIRECTORY")]
    pub(crate) directory: PathBuf,
}
