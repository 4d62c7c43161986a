//! `uraid bench compare`: two results side by side.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use uraid_lab::Results;
use uraid_lab::compare::{Difference, compare};

use crate::terminal::{print, print_json};

/// Arguments of `uraid bench compare`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  uraid bench compare lab-before lab-after")]
pub(crate) struct CompareArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Results of `uraid bench chunk`: its --out
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// Results of another run
    #[arg(value_name = "AFTER")]
    after: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &CompareArgs) -> Result<()> {
    let found = compare(&load(&args.before)?, &load(&args.after)?);
    ensure!(!found.differences.is_empty(), "the two have no array and load in common");
    if args.json {
        return print_json(&found);
    }
    for warning in &found.warnings {
        print(format_args!("note: {warning}"))?;
    }
    let (differ, alike): (Vec<_>, Vec<_>) = found.differences.iter().partition(|it| it.is_significant);
    for Difference { config, load, before, after, change, probability, .. } in &differ {
        print(format_args!(
            "{config}, {load}: {:+.1} % ({:.1} to {:.1} MB/s, p = {probability:.3})",
            change * 100.0,
            before.median,
            after.median
        ))?;
    }
    let undecidable = alike.iter().filter(|it| !it.is_decidable).count();
    if undecidable > 0 {
        print(format_args!(
            "{undecidable} of {} have too few rounds for any difference to show",
            found.differences.len()
        ))?;
    }
    let rest = alike.len() - undecidable;
    if rest > 0 {
        print(format_args!("{rest} of {} don't differ beyond the noise", found.differences.len()))?;
    }
    Ok(())
}

fn load(path: &Path) -> Result<Results> {
    Results::load(path)?.with_context(|| format!("{} has no results.json of `uraid bench chunk`", path.display()))
}
