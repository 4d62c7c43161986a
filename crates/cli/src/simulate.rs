//! `uraid simulate`: recomputes the papers' tables and figures, and simulates arrays of one's own.

mod array;
mod reliability;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use uraid_model::papers::report::Report;
use uraid_model::papers::{self, Grid, PAPERS, Settings, render};

use crate::misuse::Misuse;
use crate::terminal::{print, print_json};

/// Arguments of `uraid simulate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid simulate                                            what there is
  uraid simulate salem fig4a --svg figures                  numbers here, the drawing in figures/salem-fig4a.svg
  uraid simulate salem --csv > salem.csv                    all of a paper
  uraid simulate array --level 5 --members 6 --disk constellation-es --workload esg-oltp
  uraid simulate reliability --level 5,10,6,rm2 --members 8 --disk constellation-es --workload oltp")]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct SimulateArgs {
    #[command(subcommand)]
    own: Option<Own>,
    /// Draw the figures into this directory
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print every number as a line of CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// What the workloads are drawn from; the same seed gives the same numbers
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Only a part of the paper's grid, to see the trends in seconds
    #[arg(long)]
    quick: bool,
    /// The paper; left out: list all
    #[arg(value_name = "PAPER")]
    paper: Option<String>,
    /// The table or figure; left out: all of the paper's
    #[arg(value_name = "WHAT")]
    what: Option<String>,
}

/// What is not a paper's.
#[derive(Debug, Subcommand)]
enum Own {
    /// Simulate an array that need not exist under a workload or a trace, whole, degraded or rebuilding
    Array(Box<array::ArrayArgs>),
    /// Estimate how soon levels lose data: rebuilds beside a load, failures and unreadable sectors
    Reliability(reliability::ReliabilityArgs),
}

/// Runs the command.
pub(crate) fn run(args: &SimulateArgs) -> Result<()> {
    match &args.own {
        Some(Own::Array(args)) => return array::run(args),
        Some(Own::Reliability(args)) => return reliability::run(args),
        None => {}
    }
    let Some(name) = &args.paper else { return list() };
    let misuse = |error: papers::PapersError| Misuse(error.to_string());
    let paper = papers::paper(name).map_err(misuse)?;
    let settings = Settings { seed: args.seed, grid: if args.quick { Grid::Reduced } else { Grid::Full } };
    let names = match &args.what {
        Some(what) => vec![what.as_str()],
        None => paper.items.iter().map(|item| item.name).collect(),
    };
    let mut reports = Vec::new();
    for what in names {
        let report = papers::run(name, what, &settings).map_err(misuse)?;
        if let Some(directory) = &args.svg {
            draw(directory, &report)?;
        }
        // Print each report as soon as it is ready: some take a while.
        if !args.json && !args.csv {
            print(format_args!("{}", render::text(&report)))?;
        }
        reports.push(report);
    }
    match reports.as_slice() {
        _ if args.csv => print(format_args!("{}", render::csv(&reports).trim_end())),
        [report] if args.json && args.what.is_some() => print_json(report),
        reports if args.json => print_json(&reports),
        _ => Ok(()),
    }
}

fn list() -> Result<()> {
    for paper in PAPERS {
        print(format_args!("{}: {}", paper.name, paper.title))?;
        for item in paper.items {
            print(format_args!("  {:8} {}", item.name, item.title))?;
        }
    }
    Ok(())
}

/// Writes a report's drawings.
fn draw(directory: &Path, report: &Report) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("can't make the directory {}", directory.display()))?;
    for figure in &report.figures {
        let path = directory.join(&figure.name).with_extension("svg");
        fs::write(&path, figure.svg()).with_context(|| format!("can't write {}", path.display()))?;
    }
    Ok(())
}
