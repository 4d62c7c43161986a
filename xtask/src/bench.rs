//! `cargo xtask bench`: the server measured beside its peers, and the load generator that this takes.
//!
//! A timing is shown, never judged: nothing here fails because a server is slow.

use clap::Subcommand;

use crate::project::Project;

mod btrfs;
mod fio;
mod generator;
mod goals;
mod peers;
mod raw;
mod rebuild;
pub(crate) mod report;
pub(crate) mod scratch;
mod server;
mod workload;

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Measure uraid and other NBD servers in turn, in one run
    Peers(peers::Options),
    /// Measure how fast lost members are made again, beside reading and writing files in order, and what clients see of
    /// it
    Rebuild(rebuild::Options),
    /// Load a server that is already running with pipelined requests, and print a line of JSON
    Generate(generator::Options),
}

/// Runs the command.
pub(crate) fn run(project: &Project, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Peers(options) => peers::run(project, options),
        Command::Rebuild(options) => rebuild::run(project, options),
        Command::Generate(options) => generator::run(options),
    }
}
