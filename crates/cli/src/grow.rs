//! `uraid grow`: enlarges an array, whether it is being served or stopped.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use uraid_io::array::{Array, OpenOptions};
use uraid_io::member::Access;
use uraid_layout::Bytes;
use uraid_serve::protocol::{Grown, Request};
use uraid_serve::text::size;

use crate::examine;
use crate::server_args::ServerArgs;
use crate::terminal::{print, print_json};
use crate::values::bytes;

/// Arguments of `uraid grow`.
#[derive(Debug, Args)]
#[command(
    after_help = "Enlarge all members first. What is new reads as zeros, and becomes zeros on the members while the
array is served. Clients that are connected know the old size until they connect again.

Examples:
  truncate --size 2G a.img b.img c.img; uraid grow    the array that is being served
  uraid grow a.img b.img c.img                        one that is stopped"
)]
pub(crate) struct GrowArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Data area of each member; max: all that the smallest member has room for
    #[arg(long, value_parser = bytes_or_max, default_value = "max", value_name = "SIZE")]
    size: Most,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// All members of a stopped array, in any order
    #[arg(value_name = "MEMBER", conflicts_with = "socket")]
    members: Vec<PathBuf>,
}

/// A size, or none: as much as there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Most(pub(crate) Option<Bytes>);

/// Runs the command.
pub(crate) fn run(args: &GrowArgs) -> Result<()> {
    if args.members.is_empty() {
        return grow_served(args);
    }
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

/// Has the server grow the array that it serves.
fn grow_served(args: &GrowArgs) -> Result<()> {
    let mut client = args.server.connect()?;
    // What is in memory is written out first.
    client.be_patient()?;
    let grown: Grown = client.ask(&Request::Grow { member_bytes: args.size.0.map(|size| size.0) })?;
    if args.json {
        return print_json(&grown);
    }
    let Grown { size_bytes_before, size_bytes } = grown;
    print(format_args!(
        "grew from {} to {}; clients see it when they connect again",
        size(size_bytes_before),
        size(size_bytes)
    ))
}

fn bytes_or_max(text: &str) -> Result<Most, String> {
    if text == "max" { Ok(Most(None)) } else { bytes(text).map(|bytes| Most(Some(bytes))) }
}
