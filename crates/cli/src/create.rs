//! `uraid create`: creates an array.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use uraid_io::array::{self, CreateOptions};
use uraid_io::format::superblock::{Allocation, Consistency, Integrity};
use uraid_layout::Bytes;
use uraid_serve::clock::now;
use uraid_serve::signals::outlive_file_limits;
use uraid_serve::text::quoted;

use crate::examine;
use crate::level::{LevelName, PlacementArgs};
use crate::terminal::{Progress, print, print_json};
use crate::values::bytes;

/// Arguments of `uraid create`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid create --level 5 --size 1G a.img b.img c.img        RAID 5 of three new files
  uraid create --level rm2 --name vault /dev/sd[b-h]        RM2 of seven devices
  uraid create --level 10 --copies 3 --chunk 256K disk*.img")]
pub(crate) struct CreateArgs {
    /// RAID level
    #[arg(long, short, value_enum)]
    level: LevelName,
    /// Name of the array
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    name: String,
    /// Size of each member; creates files that do not exist
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    size: Option<Bytes>,
    #[command(flatten)]
    placement: PlacementArgs,
    /// Do not reserve disk space for new files
    #[arg(long)]
    sparse: bool,
    /// Overwrite members that are not empty
    ///
    /// A member counts as empty if it carries no known signature and its first and last 4 MiB are zeros.
    #[arg(long)]
    force: bool,
    /// Store a checksum for each 4 KiB block
    ///
    /// Wrong blocks are then found when they are read, and repaired from redundancy. Checksums need `--consistency
    /// log`, which is then the default, and requests that are multiples of 4096 bytes.
    #[arg(long, value_enum, value_name = "MODE", default_value_t = IntegrityName::None)]
    integrity: IntegrityName,
    /// How the array survives an unclean stop [default: log for RAID 5 and RM2, bitmap for 1 and 10, none for 0]
    #[arg(long, value_enum, value_name = "MODE")]
    consistency: Option<ConsistencyName>,
    /// Size of the log on each member [default: 1/16 of the member, at most 128M]
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    log_size: Option<Bytes>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Files and block devices, in slot order
    #[arg(required = true, value_name = "MEMBER")]
    members: Vec<PathBuf>,
}

/// What keeps the members in agreement over an unclean stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConsistencyName {
    /// Log every write first: after an unclean stop it is complete or never happened
    Log,
    /// Mark regions with writes under way: recompute their parity or copies after an unclean stop
    Bitmap,
    /// Recompute parity or copies everywhere after an unclean stop
    None,
}

/// How content is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IntegrityName {
    /// A CRC-32 of each 4 KiB block, stored apart from it
    Crc32,
    /// No checksums
    None,
}

impl IntegrityName {
    /// What it names.
    pub(crate) fn integrity(self) -> Integrity {
        match self {
            Self::Crc32 => Integrity::Crc32,
            Self::None => Integrity::None,
        }
    }
}

impl ConsistencyName {
    /// What it names.
    pub(crate) fn consistency(self) -> Consistency {
        match self {
            Self::Log => Consistency::Log,
            Self::Bitmap => Consistency::Bitmap,
            Self::None => Consistency::None,
        }
    }
}

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
    let members: Vec<String> = args.members.iter().map(|path| quoted(&path.display().to_string())).collect();
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
