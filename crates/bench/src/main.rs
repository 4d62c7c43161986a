//! `cargo xtask bench`: the server measured beside its peers, and the load generator that this takes.
//!
//! A timing is shown, never judged: nothing here fails because a server is slow. Programs are run and clients connect
//! as in the end-to-end tests, by their harness.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod btrfs;
mod fio;
mod generator;
mod goals;
mod machine;
mod measured;
mod network;
mod peers;
mod progress;
mod raw;
mod rebuild;
mod report;
mod scratch;
mod server;
mod tables;
mod workload;

#[derive(Parser)]
#[command(
    name = "cargo xtask bench",
    bin_name = "cargo xtask bench",
    about = "Measure the server beside its peers",
    version = None::<&str>
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// What to measure.
#[derive(Subcommand)]
enum Command {
    /// Measure uraid and other NBD servers in turn, in one run
    Peers(peers::Options),
    /// Measure how fast lost members are made again, beside reading and writing files in order, and what clients see of
    /// it
    Rebuild(rebuild::Options),
    /// Measure members that are exports of NBD servers beside files, and beside nbdfuse
    Network(network::Options),
    /// Load a server that is already running with pipelined requests, and print a line of JSON
    Generate(generator::Options),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Peers(options) => peers::run(&options),
        Command::Rebuild(options) => rebuild::run(&options),
        Command::Network(options) => network::run(&options),
        Command::Generate(options) => generator::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            progress::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
