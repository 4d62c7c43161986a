//! `uraid configure` and `uraid rename`: change settings of an array that is not being served.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use uraid_io::array::{Array, OpenOptions, Setting};
use uraid_io::member::Access;

use crate::create::ConsistencyName;
use crate::examine;

/// Arguments of `uraid configure`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  uraid configure --consistency bitmap a.img b.img c.img")]
pub(crate) struct ConfigureArgs {
    /// How the array survives an unclean stop
    #[arg(long, value_enum, value_name = "MODE")]
    consistency: ConsistencyName,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// All members, in any order; the array has to be stopped cleanly
    #[arg(required = true, value_name = "MEMBER")]
    members: Vec<PathBuf>,
}

/// Arguments of `uraid rename`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  uraid rename archive a.img b.img c.img")]
pub(crate) struct RenameArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// New name; an empty one removes the name
    #[arg(value_name = "NAME")]
    name: String,
    /// All members, in any order; the array has to be stopped cleanly
    #[arg(required = true, value_name = "MEMBER")]
    members: Vec<PathBuf>,
}

/// Runs `uraid configure`.
pub(crate) fn run(args: &ConfigureArgs) -> Result<()> {
    change(&args.members, &Setting::Consistency(args.consistency.consistency()), args.json)
}

/// Runs `uraid rename`.
pub(crate) fn rename(args: &RenameArgs) -> Result<()> {
    change(&args.members, &Setting::Name(args.name.clone()), args.json)
}

fn change(members: &[PathBuf], setting: &Setting, json: bool) -> Result<()> {
    // Open an array that is not whole, too: `configure` refuses it with advice.
    let options = OpenOptions { access: Access::ReadWrite, allow_degraded: true, force: true };
    let array = Array::open(members, options)?;
    drop(array.configure(setting)?);
    examine::show(&examine::report(members)?, json)
}
