//! `uraid bench`: measures which chunk size, level and cache mode suit the disks and the load.

pub(crate) mod arrays;
mod chunk;
mod compare;
mod retrieval;

use anyhow::Result;
use clap::{Args, Subcommand};
use uraid_model::workloads::CATALOGUE;

use crate::terminal::print;

/// Arguments of `uraid bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// What to measure
    #[command(subcommand)]
    what: What,
}

/// What to do.
#[derive(Debug, Subcommand)]
enum What {
    /// Measure arrays with different chunk sizes under the same loads, and recommend one
    Chunk(Box<chunk::ChunkArgs>),
    /// Measure how fast arrays with different chunk sizes let processes read whole files
    Retrieval(Box<retrieval::RetrievalArgs>),
    /// Show what differs between two results, beyond the noise
    Compare(compare::CompareArgs),
    /// List the workloads that have a name
    Workloads,
}

/// Runs the command.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    match &args.what {
        What::Chunk(args) => chunk::run(args),
        What::Retrieval(args) => retrieval::run(args),
        What::Compare(args) => compare::run(args),
        What::Workloads => list(),
    }
}

fn list() -> Result<()> {
    for entry in CATALOGUE {
        print(format_args!("{:26} {}", entry.name, entry.title))?;
    }
    print(format_args!(
        "{:26} a job file of fio's, whose load is kept and whose target and times are not",
        "fio:FILE"
    ))?;
    print(format_args!(
        "{:26} recorded requests: fio's iolog, blkparse, SPC or CSV (seconds,op,offset,bytes)",
        "trace:FILE"
    ))
}
