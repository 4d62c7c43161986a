//! `uraid create`: creates an array.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use uraid_io::array::{self, CreateOptions, NewLogs, Patience};
use uraid_io::format::superblock::{Allocation, Consistency, Integrity};
use uraid_layout::{Bytes, Geometry, Level, MemberIndex, Sectors, Spec};
use uraid_serve::clock::now;
use uraid_serve::domains::{Domain, crowded};
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
  uraid create --level 10 --copies 3 --chunk 256K disk*.img
  uraid create --level 5 --log-device /dev/nvme0n1p3 --log-device /dev/nvme1n1p3 /dev/sd[b-e]")]
pub(crate) struct CreateArgs {
    /// RAID level
    #[arg(long, short, value_enum)]
    level: LevelName,
    /// Name of the array
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    name: String,
    /// Size of each member; creates files that do not exist, and gives empty ones their size
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
    /// log`, which is then the default. To write a block in part, it is read first.
    #[arg(long, value_enum, value_name = "MODE", default_value_t = IntegrityName::None)]
    integrity: IntegrityName,
    /// How the array survives an unclean stop [default: log for RAID 5, 6 and RM2, bitmap for 1 and 10, none for 0]
    #[arg(long, value_enum, value_name = "MODE")]
    consistency: Option<ConsistencyName>,
    /// Size of the log of each member [default: 1/16 of the member, at most 512M]
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    log_size: Option<Bytes>,
    #[command(flatten)]
    logs: LogArgs,
    /// Name what fails together, as NAME=MEMBER; repeatable
    ///
    /// Warns if the array does not survive the loss of all members with one name. Members without one have the host of
    /// their URI. Give the names to `uraid serve`, too.
    #[arg(long = "domain", value_parser = Domain::parse, value_name = "NAME=MEMBER")]
    domains: Vec<Domain>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Files, block devices, and URIs of exports (nbd://HOST/NAME), in slot order
    #[arg(required = true, value_name = "MEMBER")]
    members: Vec<PathBuf>,
}

/// Where the log is, if it is not on the members.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct LogArgs {
    /// Keep the log on this file or device instead of the members; give it twice or more: they mirror each other
    ///
    /// For arrays of disks with a pair of SSDs: writes that are flushed are durable as soon as all log devices have
    /// them. A file that does not exist is created. The array goes on as long as one of its log devices works; what was
    /// written last is lost with the last one, so take at least two, on different disks. At most four.
    #[arg(long = "log-device", value_name = "PATH", group = "setting")]
    pub(crate) paths: Vec<PathBuf>,
    /// Accept a single log device
    ///
    /// If it fails, the array stops to accept writes, and everything that was acknowledged and is not on the members
    /// yet is lost: the array can't be started again after an unclean stop.
    #[arg(long, requires = "paths")]
    pub(crate) single_log_device: bool,
}

impl LogArgs {
    /// What to make.
    pub(crate) fn new_logs(&self, force: bool, allocation: Allocation) -> NewLogs {
        NewLogs { paths: self.paths.clone(), may_be_single: self.single_log_device, force, allocation }
    }
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
    let allocation = if args.sparse { Allocation::Sparse } else { Allocation::Full };
    let options = CreateOptions {
        level: args.placement.level(args.level, count)?,
        chunk: args.placement.chunk,
        name: args.name.clone(),
        size: args.size,
        allocation,
        force: args.force,
        consistency: args.consistency.map(ConsistencyName::consistency),
        log_size: args.log_size,
        logs: args.logs.new_logs(args.force, allocation),
        integrity: args.integrity.integrity(),
        created: now()?,
    };
    make(&args.members, &options)?;
    warn_of_domains(args, options.level, count)?;
    let paths = [args.members.as_slice(), &args.logs.paths].concat();
    let report = examine::report(&paths)?;
    if args.json {
        return print_json(&report);
    }
    print(format_args!("created {}; serve it with", report.title()))?;
    let members: Vec<String> = paths.iter().map(|path| quoted(&path.display().to_string())).collect();
    let dashes = if members.iter().any(|member| member.starts_with('-')) { "-- " } else { "" };
    print(format_args!("  uraid serve {dashes}{}", members.join(" ")))
}

/// Warns of members that share what the array does not survive the loss of.
fn warn_of_domains(args: &CreateArgs, level: Level, members: u8) -> Result<()> {
    // Where blocks are does not depend on how large members are.
    let spec = Spec { level, members, chunk: args.placement.chunk, member_size: Sectors(1 << 32) };
    let members = (0..).map(MemberIndex).zip(args.members.iter().map(PathBuf::as_path));
    for (domain, slots) in crowded(&args.domains, &[Geometry::new(spec)?], members) {
        tracing::warn!("{domain}: members {slots} fail together, and the array does not survive that");
    }
    Ok(())
}

/// Creates the array, with a progress bar if it takes a while.
pub(crate) fn make(members: &[PathBuf], options: &CreateOptions) -> Result<()> {
    // Says which of them do not answer; what is there is looked at once more when it is opened.
    let paths = [members, &options.logs.paths].concat();
    array::look(&paths, &mut Patience::endless())?;
    let mut bar = None;
    array::create(members, options, |done, total| {
        bar.get_or_insert_with(|| Progress::new("initialising", total.0)).set(done.0);
    })?;
    Ok(())
}
