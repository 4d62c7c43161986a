//! `uraid configure` and `uraid rename`: change settings of an array that is not being served.

use std::path::PathBuf;

use anyhow::Result;
use clap::{ArgGroup, Args};
use uraid_io::array::{Array, Setting};
use uraid_io::format::superblock::Allocation;

use crate::create::{ConsistencyName, LogArgs};
use crate::examine;

/// Arguments of `uraid configure`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid configure --consistency bitmap a.img b.img c.img
  uraid configure --log-device /dev/nvme0n1p3 --log-device /dev/nvme1n1p3 /dev/sd[b-e]
  uraid configure --no-log-devices /dev/sd[b-e]")]
#[command(group(ArgGroup::new("setting").required(true).multiple(false)))]
pub(crate) struct ConfigureArgs {
    /// How the array survives an unclean stop
    #[arg(long, value_enum, value_name = "MODE", group = "setting")]
    consistency: Option<ConsistencyName>,
    #[command(flatten)]
    logs: LogArgs,
    /// Keep the log on the members again; log devices that are gone are not needed for that
    #[arg(long, group = "setting")]
    no_log_devices: bool,
    /// Overwrite log devices that are not empty
    #[arg(long, requires = "paths")]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// All members, in any order; the array has to be stopped cleanly
    ///
    /// Files, block devices, and exports of NBD servers by their URIs, such as nbd://HOST/NAME.
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
    if let Some(consistency) = args.consistency {
        return change(&args.members, &Setting::Consistency(consistency.consistency()), args.json);
    }
    Array::open_stopped(&args.members)?.set_logs(&args.logs.new_logs(args.force, Allocation::Full))?;
    examine::show(&examine::report(&[args.members.as_slice(), &args.logs.paths].concat())?, args.json)
}

/// Runs `uraid rename`.
pub(crate) fn rename(args: &RenameArgs) -> Result<()> {
    change(&args.members, &Setting::Name(args.name.clone()), args.json)
}

fn change(members: &[PathBuf], setting: &Setting, json: bool) -> Result<()> {
    // Open an array that is not whole, too: `configure` refuses it with advice.
    let array = Array::open_stopped(members)?;
    drop(array.configure(setting)?);
    examine::show(&examine::report(members)?, json)
}
