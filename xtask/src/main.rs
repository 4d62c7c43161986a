//! The project's own commands, run as `cargo xtask COMMAND`.
//!
//! Each command is one module with a `run` function and one line in [`Command`]; what several of them need is in
//! [`project`]. Nothing here is linked into the product.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::project::Project;

mod bench;
mod ci;
mod circles;
mod code;
mod conformance;
mod counts;
mod crash;
mod fuzz;
mod kills;
mod links;
mod lint;
mod mutants;
mod network;
mod night;
mod package;
mod packages;
mod papers;
mod project;
mod reliability;
mod sim;
mod source;
mod sweep;
mod test;
mod vm;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands", version = None::<&str>)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check formatting, clippy, docs, dependency directions and the source tree's rules
    Lint,
    /// Install what the tests need (as root), build the server, run every test
    Test(test::Options),
    /// Measure the server beside its peers
    Bench(bench::Options),
    /// Run the engine on simulated members that fail and lose power, one run for each seed
    Sim(sim::Options),
    /// Feed what members may hold, and may not, to what reads it
    Fuzz(fuzz::Options),
    /// Go through the crashes of small workloads, every choice of what was not flushed
    Crash(crash::Options),
    /// Let every operation of every member fail, one at a time
    Sweep(sweep::Options),
    /// Plant bugs in the engine, one at a time, and see that the simulator notices
    Mutants(mutants::Options),
    /// Kill servers under load on real files, and look whether they keep what they must
    Kills(kills::Options),
    /// Serve members on other machines, as network namespaces (as root), while servers and links fail
    Network(network::Options),
    /// Try the server under a real kernel in a virtual machine: file systems, power cuts, and Linux md as the judge of
    /// layouts
    Vm(vm::Options),
    /// Compute the papers' tables and figures again, into docs/papers
    Papers(papers::Options),
    /// Make the Debian package and the list of software that it is made of
    Package(package::Options),
    /// Run everything that looks for bugs, at length, and write one report
    Night(night::Options),
    /// Make the tables of docs/reliability.md again, from what nights counted
    Reliability,
    /// Make docs/nbd-conformance.md again, of the list of rules and their tests
    Conformance,
    /// Exactly what continuous integration runs
    Ci,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            project::eprint_step(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> anyhow::Result<()> {
    let project = Project::find()?;
    match command {
        Command::Lint => lint::run(&project),
        Command::Test(options) => test::run(&project, options),
        Command::Bench(options) => bench::run(&project, options),
        Command::Sim(options) => sim::run(&project, options).map(drop),
        Command::Fuzz(options) => fuzz::run(&project, options).map(drop),
        Command::Crash(options) => crash::run(&project, options).map(drop),
        Command::Sweep(options) => sweep::run(&project, options).map(drop),
        Command::Mutants(options) => mutants::run(&project, options).map(drop),
        Command::Kills(options) => kills::run(&project, options).map(drop),
        Command::Network(options) => network::run(&project, options).map(drop),
        Command::Vm(options) => vm::run(&project, options).map(drop),
        Command::Papers(options) => papers::run(&project, options),
        Command::Package(options) => package::run(&project, options),
        Command::Night(options) => night::run(&project, options),
        Command::Reliability => reliability::write(&project),
        Command::Conformance => conformance::write(&project),
        Command::Ci => ci::run(&project),
    }
}
