//! `uraid grow`: enlarges an array that is not being served.

use anyhow::Result;
use uraid_io::array::{Array, OpenOptions};
use uraid_io::member::Access;

use crate::args::GrowArgs;
use crate::examine;
use crate::terminal::{Progress, print, size};

/// Runs the command.
pub(crate) fn run(args: &GrowArgs) -> Result<()> {
    // Open an array that is not whole, too: `grow` refuses it with advice.
    let options = OpenOptions { access: Access::ReadWrite, allow_degraded: true, force: true };
    let array = Array::open(&args.members, options)?;
    let before = array.geometry.capacity().bytes().0;
    let mut bar = None;
    let grown = array.grow(args.size.0, |done, total| {
        bar.get_or_insert_with(|| Progress::new("zeroing", total.0)).set(done.0);
    });
    drop(bar);
    let after = grown?.geometry.capacity().bytes().0;
    if !args.json {
        print(format_args!("grew from {} to {}", size(before), size(after)))?;
    }
    examine::show(&examine::report(&args.members)?, args.json)
}
