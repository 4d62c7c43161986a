//! `uraid create`: creates an array.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use uraid_io::array::{self, CreateOptions};
use uraid_io::format::UnixSeconds;
use uraid_io::format::superblock::Allocation;

use crate::args::{ConsistencyName, CreateArgs};
use crate::examine;
use crate::signals::outlive_file_limits;
use crate::terminal::{self, Progress, print, print_json};

/// Runs the command.
pub(crate) fn run(args: &CreateArgs) -> Result<()> {
    outlive_file_limits()?;
    let count = u8::try_from(args.members.len()).unwrap_or(u8::MAX);
    let options = CreateOptions {
        level: args.placement.level(args.level, count)?,
        chunk: args.placement.chunk,
        name: args.name.clone(),
        size: args.size,
        allocation: if args.sparse { Allocation::Sparse } else { Allocation::Full },
        force: args.force,
        consistency: args.consistency.map(ConsistencyName::consistency),
        log_size: args.log_size,
        integrity: args.integrity.integrity(),
        created: now()?,
    };
    make(&args.members, &options)?;
    let report = examine::report(&args.members)?;
    if args.json {
        return print_json(&report);
    }
    print(format_args!("created {}; serve it with", report.title()))?;
    let members: Vec<String> = args.members.iter().map(|path| terminal::quoted(&path.display().to_string())).collect();
    let dashes = if members.iter().any(|member| member.starts_with('-')) { "-- " } else { "" };
    print(format_args!("  uraid serve {dashes}{}", members.join(" ")))
}

/// Creates the array, with a progress bar if it takes a while.
pub(crate) fn make(members: &[PathBuf], options: &CreateOptions) -> Result<()> {
    let mut bar = None;
    array::create(members, options, |done, total| {
        bar.get_or_insert_with(|| Progress::new("initialising", total.0)).set(done.0);
    })?;
    Ok(())
}

/// The time of creation.
pub(crate) fn now() -> Result<UnixSeconds> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is set before 1970")?;
    Ok(UnixSeconds(since.as_secs()))
}
