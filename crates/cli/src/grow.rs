//! `uraid grow`: enlarges an array that is not being served.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use uraid_io::array::{Array, OpenOptions};
use uraid_io::member::Access;
use uraid_layout::Bytes;
use uraid_serve::text::size;

use crate::examine;
use crate::terminal::print;
use crate::values::bytes;

/// Arguments of `uraid grow`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  truncate --size 2G a.img b.img c.img && uraid grow a.img b.img c.img")]
pub(crate) struct GrowArgs {
    /// Data area of each member; max: all that the smallest member has room for
    #[arg(long, value_parser = bytes_or_max, default_value = "max", value_name = "SIZE")]
    size: Most,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// All members, in any order; the array has to be stopped cleanly
    #[arg(required = true, value_name = "MEMBER")]
    members: Vec<PathBuf>,
}

/// A size, or none: as much as there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Most(pub(crate) Option<Bytes>);

/// Runs the command.
pub(crate) fn run(args: &GrowArgs) -> Result<()> {
    // Open an array that is not whole, too: `grow` refuses it with advice.
    let options = OpenOptions { access: Access::ReadWrite, allow_degraded: true, force: true };
    let array = Array::open(&args.members, options)?;
    let before = array.geometry.capacity().bytes().0;
    let after = array.grow(args.size.0)?.geometry.capacity().bytes().0;
    if !args.json {
        print(format_args!("grew from {} to {}", size(before), size(after)))?;
    }
    examine::show(&examine::report(&args.members)?, args.json)
}

fn bytes_or_max(text: &str) -> Result<Most, String> {
    if text == "max" { Ok(Most(None)) } else { bytes(text).map(|bytes| Most(Some(bytes))) }
}
