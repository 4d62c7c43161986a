//! `uraid configure`: other settings for an array that is not being served.

use anyhow::Result;
use uraid_io::array::{Array, OpenOptions};
use uraid_io::member::Access;

use crate::args::ConfigureArgs;
use crate::examine;

/// Runs the command.
pub(crate) fn run(args: &ConfigureArgs) -> Result<()> {
    // An array that is not whole is refused with what to do about it here.
    let options = OpenOptions { access: Access::ReadWrite, allow_degraded: true, force: true };
    let array = Array::open(&args.members, options)?;
    drop(array.configure(args.consistency.consistency())?);
    examine::show(&examine::report(&args.members)?, args.json)
}
