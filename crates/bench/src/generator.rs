//! `cargo xtask bench generate`: the laboratory's load generator as a process of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use serde_json::json;
use uraid_lab::native::{self, Time};
use uraid_layout::Bytes;
use uraid_model::mech::workload::Mix;
use uraid_model::workloads;

/// The load.
#[derive(Args)]
pub(crate) struct Options {
    /// Unix socket of the server
    #[arg(long)]
    socket: PathBuf,
    /// Name of the export
    #[arg(long, default_value = "")]
    export: String,
    /// What to do; writes destroy what the export holds
    #[arg(long, value_enum)]
    load: Load,
    /// Connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: u16,
    /// Requests in flight on each connection
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=128))]
    window: u16,
    /// Bytes of the export to use, from its start
    #[arg(long)]
    span: u64,
    /// How long to go on
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

/// What is asked for, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Load {
    /// Reads of 4 KiB at random places until the time is over
    Read,
    /// Writes of 4 KiB at random places until the time is over
    Write,
    /// Writes every byte once, in order; the time does not matter
    Fill,
}

/// Loads the server and prints `{"requests": N, "seconds": S}`; a fill prints nothing.
#[expect(clippy::print_stdout, reason = "the result is for the caller")]
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let span = Bytes(options.span);
    let size = native::size(&options.socket, &options.export)?;
    ensure!(size >= span, "the export has {} bytes only", size.0);
    let spec = match options.load {
        Load::Fill => return Ok(native::fill(&options.socket, &options.export, span)?),
        Load::Read => "random-read",
        Load::Write => "random-write",
    };
    let workload = workloads::find(spec, Bytes(4096))?.remove(0);
    let source = |seed| Mix::new(workload.components.clone(), span.whole_sectors(), seed);
    let sources = (0..u64::from(options.connections)).map(source).collect::<Result<Vec<_>, _>>()?;
    let time = Time { warm_up: Duration::ZERO, measured: Duration::from_secs(options.seconds) };
    let found = native::load(&options.socket, &options.export, sources, usize::from(options.window), time)?;
    println!("{}", json!({ "requests": found.requests, "seconds": found.requests as f64 / found.iops }));
    Ok(())
}

/// The command line that fills the first `span` bytes of an export.
pub(crate) fn fill_arguments(socket: &Path, export: &str, span: u64) -> Vec<String> {
    arguments(socket, export, span, &["--load=fill"])
}

/// The command line of a load on `span` bytes.
pub(crate) fn arguments(socket: &Path, export: &str, span: u64, load: &[&str]) -> Vec<String> {
    let target = [format!("--socket={}", socket.display()), format!("--export={export}"), format!("--span={span}")];
    let words = ["generate"].iter().chain(load).map(|word| (*word).to_owned());
    words.chain(target).collect()
}
