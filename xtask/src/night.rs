//! `cargo xtask night`: everything that looks for bugs, at length, and one report of what it counted.
//!
//! What is counted goes to `docs/reliability.json` as soon as a piece is over, so a night that is cut off keeps what it
//! did; [`reliability`] makes the document's tables of it. A piece that fails does not stop the others.

use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;

use crate::counts::{Counts, Failed};
use crate::project::{Project, eprint_step};
use crate::reliability::{self, Row};
use crate::{crash, fuzz, kills, mutants, sim, sweep, vm};

/// Something that runs at length.
struct Piece {
    name: &'static str,
    /// Percent of the night; nothing: it takes what it takes.
    share: u32,
    run: fn(&Project, Duration) -> anyhow::Result<Counts>,
}

/// In this order: those that find most in the least time first.
const PIECES: &[Piece] = &[
    Piece { name: "sweep", share: 0, run: |project, _| sweep::run(project, &sweep::Options::default()) },
    Piece { name: "mutants", share: 0, run: |project, _| mutants::run(project, &mutants::Options::all()) },
    Piece { name: "sim", share: 30, run: |project, time| sim::run(project, &sim::Options::until(time)) },
    Piece { name: "crash", share: 30, run: |project, time| crash::run(project, &crash::Options::until(time)) },
    Piece { name: "kills", share: 15, run: |project, time| kills::run(project, &kills::Options::until(time)) },
    Piece { name: "fuzz", share: 15, run: |project, time| fuzz::run(project, &fuzz::Options::until(time)) },
    Piece { name: "vm", share: 0, run: |project, _| vm::run(project, &vm::Options::at_length()) },
];

/// How long, and what.
#[derive(Args)]
pub(crate) struct Options {
    /// How long to look, beside what can't be cut short: the planted bugs, the sweep and the virtual machines
    #[arg(long, value_name = "N", default_value_t = 8.0)]
    hours: f64,
    /// Only these pieces; they share the time as in a whole night
    #[arg(value_name = "PIECE", value_parser = PIECES.iter().map(|piece| piece.name).collect::<Vec<_>>())]
    pieces: Vec<String>,
}

/// Runs the pieces and writes the report.
///
/// # Errors
/// When a piece failed; the others have run, and all are in the report.
pub(crate) fn run(project: &Project, options: &Options) -> anyhow::Result<()> {
    let commit = project.commit()?;
    let mut failed = Vec::new();
    for piece in PIECES {
        if !options.pieces.is_empty() && !options.pieces.iter().any(|name| name == piece.name) {
            continue;
        }
        let time = Duration::try_from_secs_f64(options.hours * 36.0 * f64::from(piece.share))?;
        eprint_step(&format!("night: {}", piece.name));
        let begun = Instant::now();
        let (counts, failure) = match (piece.run)(project, time) {
            Ok(counts) => (counts, None),
            Err(error) => (
                error.downcast_ref::<Failed>().map(|failed| failed.counts.clone()).unwrap_or_default(),
                Some(format!("{error:#}")),
            ),
        };
        let seconds = begun.elapsed().as_secs();
        if let Some(failure) = &failure {
            eprint_step(&format!("night: {} FAILED: {failure}", piece.name));
            failed.push(piece.name);
        }
        let row = Row { piece: piece.name.to_owned(), commit: commit.clone(), seconds, counts, failure };
        reliability::record(project, row)?;
    }
    reliability::write(project)?;
    if failed.is_empty() { Ok(()) } else { bail!("night: {} failed", failed.join(", ")) }
}
