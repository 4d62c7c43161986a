//! The command line: what users may say, with examples.

mod level;
mod listen;
mod set;
mod setup;
mod values;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use uraid_io::format::superblock::{Consistency, Integrity};
use uraid_layout::{Bytes, Lba, MemberSet};
use uuid::Uuid;

use crate::advise::AdviseArgs;
use crate::bench::BenchArgs;
use crate::complete;
use crate::patience::PatienceArgs;
use crate::record::RecordArgs;
use crate::report::ReportArgs;
use crate::simulate::SimulateArgs;
pub(crate) use level::{LevelName, PlacementArgs, check as check_level};
pub(crate) use listen::{EndpointArgs, ListenAt};
pub(crate) use set::{SetArgs, SettingArgs};
pub(crate) use setup::{CompletionsArgs, ManArgs, QuickstartArgs};
pub(crate) use values::period;
pub(crate) use values::{BusyPoll, Most, Rate, ReadAhead, bytes, members};
use values::{busy_poll, bytes_or_max, lba, memory, metrics_address, rate, read_ahead};

/// The most threads that serve connections.
const CONNECTION_THREADS_MAX: i64 = 16;

/// The most members of an array.
const MEMBERS_MAX: i64 = 64;

/// Software RAID in user space, served as a network block device.
#[derive(Debug, Parser)]
#[command(name = "uraid", version, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Format of log lines on standard error: text or json
    ///
    /// URAID_LOG chooses what is logged: error, warn (default), info, debug or trace.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", hide_short_help = true)]
    #[arg(help_heading = "Logging", hide_possible_values = true)]
    pub(crate) log_format: LogFormat,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a small array of files and serve it
    Quickstart(QuickstartArgs),
    /// Create an array from files or block devices
    Create(CreateArgs),
    /// Serve an array over NBD, in the foreground
    #[command(visible_alias = "assemble")]
    Serve(Box<ServeArgs>),
    /// Show the state of a running array
    #[command(visible_alias = "detail")]
    Status(StatusArgs),
    /// Wait until no rebuild, copy or scrub is running
    ///
    /// Exits with 0 if the array is whole then, and with 1 if it is not or if the work can't go on.
    Wait(WaitArgs),
    /// Stop a server and mark its array clean
    Stop(StopArgs),
    /// Add a member and rebuild it, or add a spare
    #[command(visible_aliases = ["attach", "online"])]
    Add(AddArgs),
    /// Copy a member to a new one, then use the new one
    Replace(ReplaceArgs),
    /// Stop using a member
    ///
    /// The member itself records that it has failed, if it can still be written.
    #[command(visible_alias = "offline")]
    Fail(MemberArgs),
    /// Release a failed member or a spare
    #[command(visible_alias = "detach")]
    Remove(MemberArgs),
    /// Check that the members agree, and repair them
    Scrub(ScrubArgs),
    /// Change settings of a running array
    Set(SetArgs),
    /// Find arrays: running ones, and those on devices and files
    ///
    /// Without PATH it looks at running servers, block devices and the files of the working directory.
    List(ListArgs),
    /// Show what members say about their array
    Examine(ExamineArgs),
    /// Rename a stopped array
    Rename(RenameArgs),
    /// Choose how a stopped array survives an unclean stop
    Configure(ConfigureArgs),
    /// Use the additional space of members that were enlarged
    Grow(GrowArgs),
    /// Erase what makes a file or device a member
    Wipe(WipeArgs),
    /// Show where a block is, and how it is read and written
    Map(MapArgs),
    /// Draw where a RAID level puts data and parity
    Layout(LayoutArgs),
    /// Collect what a bug report needs, as one text
    Report(ReportArgs),
    /// Record what clients of a running array read and write
    Record(RecordArgs),
    /// Measure which chunk size, level and cache mode suit your disks and load
    Bench(BenchArgs),
    /// Recommend a chunk size
    Advise(AdviseArgs),
    /// Reproduce tables and figures of the papers, or simulate an array
    Simulate(SimulateArgs),
    /// Print a script that completes uraid's command lines
    Completions(CompletionsArgs),
    /// Write the manual pages into a directory, for packages
    #[command(hide = true)]
    Man(ManArgs),
}

/// The commands under the headings of `uraid help`.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Use an array", &["quickstart", "create", "serve", "status", "wait", "stop"]),
    ("Change a running array", &["add", "replace", "fail", "remove", "scrub", "set"]),
    ("Find arrays, and change stopped ones", &["list", "examine", "rename", "configure", "grow", "wipe", "report"]),
    ("Understand and plan", &["bench", "advise", "record", "map", "layout", "simulate"]),
    ("Set up a shell", &["completions"]),
];

/// The command line, with its commands under headings.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command();
    let mut text = String::new();
    for (heading, names) in GROUPS {
        text += &format!("{heading}:\n");
        for &name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about).map(ToString::to_string);
            text += &format!("  {name:<12}{}\n", about.unwrap_or_default());
        }
        text.push('\n');
    }
    text += "`uraid COMMAND -h` lists the options of a command, `uraid COMMAND --help` explains them.\n\
        Exit status: 0 done, 1 failed, 2 wrong usage.\n\n\
        Start here: uraid quickstart";
    command.help_template("{about}\n\n{usage-heading} uraid <COMMAND>{after-help}").after_help(text)
}

/// How a log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Readable text
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// Arguments of `uraid create`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid create --level 5 --size 1G a.img b.img c.img        RAID 5 of three new files
  uraid create --level rm2 --name vault /dev/sd[b-h]        RM2 of seven devices
  uraid create --level 10 --copies 3 --chunk 256K disk*.img")]
pub(crate) struct CreateArgs {
    /// RAID level
    #[arg(long, short, value_enum)]
    pub(crate) level: LevelName,
    /// Name of the array
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    pub(crate) name: String,
    /// Size of each member; creates files that do not exist
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    pub(crate) size: Option<Bytes>,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    /// Do not reserve disk space for new files
    #[arg(long)]
    pub(crate) sparse: bool,
    /// Overwrite members that are not empty
    ///
    /// A member counts as empty if it carries no known signature and its first and last 4 MiB are zeros.
    #[arg(long)]
    pub(crate) force: bool,
    /// Store a checksum for each 4 KiB block
    ///
    /// Wrong blocks are then found when they are read, and repaired from redundancy. Checksums need `--consistency
    /// log`, which is then the default, and requests that are multiples of 4096 bytes.
    #[arg(long, value_enum, value_name = "MODE", default_value_t = IntegrityName::None)]
    pub(crate) integrity: IntegrityName,
    /// How the array survives an unclean stop [default: log for RAID 5 and RM2, bitmap for 1 and 10, none for 0]
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) consistency: Option<ConsistencyName>,
    /// Size of the log on each member [default: 1/64 of the member, at most 64M]
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    pub(crate) log_size: Option<Bytes>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Files and block devices, in slot order
    #[arg(required = true, value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
}

/// Arguments of `uraid serve`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid serve a.img b.img c.img                       on the socket uraid.sock beside a.img
  uraid serve --socket /run/vault.sock --export vault --spare /dev/sdi /dev/sd[b-h]
  uraid serve --listen storage.lan:10809 --degraded a.img c.img
  uraid serve --config /etc/uraid/vault.toml")]
pub(crate) struct ServeArgs {
    /// Read members and options from a TOML file
    ///
    /// It has a key for the members and one for each option, by its long name: members = ["a.img", "b.img"],
    /// degraded = true, cache-size = "1G", spare = ["c.img"]. Options of the command line count more. Unless it says
    /// otherwise, the server waits 30s for its members.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) endpoint: EndpointArgs,
    /// Write nothing to the members
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Stop when the process that started the server ends, however it ends
    #[arg(long, hide_short_help = true)]
    pub(crate) exit_with_parent: bool,
    /// Start although members are missing
    ///
    /// Also leaves out members that are blank, whose log is damaged, or that hang for longer than --write-deadline.
    #[arg(long)]
    pub(crate) degraded: bool,
    /// Spare that replaces a failed member; repeatable
    ///
    /// Several servers may share a spare: the first that needs it takes it. It has to be large enough and empty (see
    /// `uraid create --help`, --force). Once taken it is a member, and the same command line serves the array again.
    #[arg(long = "spare", value_name = "PATH", conflicts_with = "read_only")]
    pub(crate) spares: Vec<PathBuf>,
    /// Wait this long for members that have not appeared yet, such as 90s
    #[arg(long, value_parser = period, value_name = "TIME", help_heading = "Starting with problems")]
    pub(crate) wait_for_members: Option<Duration>,
    /// Start although content may come back wrong
    ///
    /// Needed if the array was not stopped cleanly, has no log, and members are missing: what these members held may
    /// be wrong wherever writes were under way.
    #[arg(long, help_heading = "Starting with problems")]
    pub(crate) force: bool,
    /// Last resort: read from this outdated member; repeatable
    ///
    /// The array went on without the member in this slot. uraid says what may be old or wrong, and serves the array
    /// for reading only. With --degraded and --force it serves what is left although too many members are gone;
    /// reading the rest is an I/O error.
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..64), value_name = "SLOT")]
    #[arg(help_heading = "Starting with problems")]
    pub(crate) accept_stale: Vec<u8>,
    #[command(flatten)]
    pub(crate) wanted: WantedArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    /// Poll before sleeping: auto, off, or microseconds
    ///
    /// Polling shortens the latency of single commands and costs nothing when the server is idle. auto polls for
    /// 50 microseconds if all members are in memory.
    #[arg(long, value_parser = busy_poll, default_value = "auto", value_name = "WHEN", help_heading = "Performance")]
    pub(crate) busy_poll: BusyPoll,
    /// Threads that serve clients' connections, beside the one that serves the array
    ///
    /// They help if many clients keep one core busy; a request that is alone costs two hops between threads. 0: one
    /// thread does everything.
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=CONNECTION_THREADS_MAX), default_value_t = 0)]
    #[arg(value_name = "N", help_heading = "Performance")]
    pub(crate) connection_threads: u8,
    #[command(flatten)]
    pub(crate) patience: PatienceArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Scrub whenever this much time has passed since the last one, such as 30d
    #[arg(long, value_parser = period, value_name = "PERIOD", conflicts_with = "read_only")]
    #[arg(help_heading = "Monitoring and upkeep")]
    pub(crate) scrub_every: Option<Duration>,
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    /// Members in any order; with --uuid or --name, any paths that may be members
    #[arg(required_unless_present = "config", value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
}

/// How fast what goes on beside clients' requests may be.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct LimitArgs {
    /// Most bytes per second to rebuild on each member, such as 50M; none: no limit
    #[arg(long, value_parser = rate, default_value = "none", value_name = "RATE|none")]
    #[arg(help_heading = "Monitoring and upkeep", hide_short_help = true)]
    pub(crate) rebuild_limit: Rate,
    /// Most bytes per second that scrubs read from each member; none: no limit
    #[arg(long, value_parser = rate, default_value = "none", value_name = "RATE|none")]
    #[arg(help_heading = "Monitoring and upkeep", hide_short_help = true)]
    pub(crate) scrub_limit: Rate,
}

/// Which array is meant, where paths may lead to members of others or to no member at all.
#[derive(Debug, Default, Args)]
#[group(multiple = false)]
pub(crate) struct WantedArgs {
    /// Serve the array with this UUID, and ignore other paths
    #[arg(long, value_name = "UUID", help_heading = "Finding members")]
    pub(crate) uuid: Option<Uuid>,
    /// Serve the array with this name, and ignore other paths
    #[arg(long, value_name = "NAME", help_heading = "Finding members")]
    pub(crate) name: Option<String>,
}

/// How administrators see and reach a server.
#[derive(Debug, Default, Args)]
pub(crate) struct WatchArgs {
    /// Serve metrics for Prometheus at http://ADDR:PORT/metrics
    ///
    /// A port alone listens on 127.0.0.1. Anyone who reaches the port can read the metrics.
    #[arg(long, value_parser = metrics_address, value_name = "[HOST:]PORT", help_heading = "Monitoring and upkeep")]
    #[arg(allow_negative_numbers = true)]
    pub(crate) metrics: Option<ListenAt>,
    /// Run this program when something happens
    ///
    /// uraid runs PROGRAM EVENT ARRAY [MEMBER...] without a shell; URAID_HEALTH in its environment describes the
    /// array's health. Events: started, stopped, degraded, stalled, failing, frozen, salvage, recovered,
    /// member-missing, member-failed, member-failing, member-deleted, member-stalled, member-lagging, member-no-room,
    /// member-smart, flush-failing, flush-recovered, spare-taken, rebuild-started, rebuild-finished, rebuild-stuck,
    /// replace-started, replace-finished, replace-stopped, replace-stuck, replace-rebuilding, scrub-finished,
    /// scrub-incomplete, scrub-mismatch.
    #[arg(long, value_name = "PROGRAM", help_heading = "Monitoring and upkeep")]
    pub(crate) on_event: Option<PathBuf>,
    /// Ask disks so often whether they fail, such as 6h; needs smartctl
    ///
    /// A member on a disk whose SMART health is not good makes the event member-smart, and `uraid status` shows it.
    #[arg(long, value_parser = period, value_name = "PERIOD", help_heading = "Monitoring and upkeep")]
    pub(crate) smart_every: Option<Duration>,
    /// Control socket [default: the socket with the extension .ctl]
    ///
    /// Only the user who started the server may connect. With --listen there is no control socket unless this option
    /// names one.
    #[arg(long, value_name = "PATH", help_heading = "Monitoring and upkeep")]
    pub(crate) control: Option<PathBuf>,
}

/// Which server is meant.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServerArgs {
    /// Socket or control socket of the server [default: ./uraid.sock, or the only running server]
    #[arg(long, short, value_name = "PATH", add = ArgValueCompleter::new(complete::sockets))]
    pub(crate) socket: Option<PathBuf>,
}

/// Arguments of `uraid wait`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  uraid replace d3.img /dev/sdf && uraid wait")]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// Arguments of `uraid stop`.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Stop even if content is lost
    ///
    /// Content is lost if files of members were deleted, or if members do not take what clients have written.
    #[arg(long)]
    pub(crate) force: bool,
}

/// Arguments of `uraid status`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid status --watch
  uraid status --socket /run/vault.sock --json | jq .health")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Repeat every second until the server ends
    #[arg(long, short)]
    pub(crate) watch: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A member of an array that is being served.
#[derive(Debug, Args)]
pub(crate) struct MemberArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Slot, path or UUID
    #[arg(value_name = "MEMBER", add = ArgValueCompleter::new(complete::members))]
    pub(crate) member: String,
}

/// Arguments of `uraid add`.
#[derive(Debug, Args)]
#[command(after_help = "A former member gets only what it missed. Anything else is added as a new member, or as a
spare if no member is missing.

Examples:
  uraid add d3.img                                    a former member, or an empty file
  uraid add --size 1G new.img                         a new file of this size
  uraid add --socket /run/vault.sock /dev/sdf         to another server")]
pub(crate) struct AddArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Size of a file that does not exist yet
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    pub(crate) size: Option<Bytes>,
    /// Overwrite what PATH holds
    #[arg(long)]
    pub(crate) force: bool,
    /// File or block device
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
}

/// Arguments of `uraid replace`.
#[derive(Debug, Args)]
#[command(after_help = "Redundancy is never reduced: the old member is used until the copy is complete.

Examples:
  uraid replace 3 /dev/sdf                            the member in slot 3
  uraid replace --size 1G d3.img new.img              a new file of this size
  uraid fail new.img                                  gives up the copy")]
pub(crate) struct ReplaceArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Size of a file that does not exist yet
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    pub(crate) size: Option<Bytes>,
    /// Overwrite what NEW holds
    #[arg(long)]
    pub(crate) force: bool,
    /// Slot, path or UUID of the member to replace
    #[arg(value_name = "OLD", add = ArgValueCompleter::new(complete::members))]
    pub(crate) old: String,
    /// File or block device
    #[arg(value_name = "NEW")]
    pub(crate) new: PathBuf,
}

/// Arguments of `uraid scrub`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid scrub start                                   compare, and write nothing
  uraid scrub start --repair --wait                   compare and repair, and show the result
  uraid scrub status --json | jq .faults")]
pub(crate) struct ScrubArgs {
    /// What to do
    #[command(subcommand)]
    pub(crate) action: ScrubAction,
}

/// What to do about a scrub.
#[derive(Debug, Subcommand)]
pub(crate) enum ScrubAction {
    /// Start a scrub; clients have priority
    Start {
        #[command(flatten)]
        server: ServerArgs,
        /// Repair what is certainly wrong
        ///
        /// That is a block that a checksum contradicts, the copy that differs from most others, or the only parity
        /// that disagrees.
        #[arg(long)]
        repair: bool,
        /// Also repair data that both of its parity units contradict
        ///
        /// Only for arrays that were not written since they were found wrong.
        #[arg(long)]
        repair_suspects: bool,
        /// Write nothing (default)
        #[arg(long, conflicts_with_all = ["repair", "repair_suspects"])]
        dry_run: bool,
        /// Wait for the end and show the result; exit with 1 unless everything is right
        #[arg(long, short)]
        wait: bool,
    },
    /// Stop the running scrub
    Stop {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show progress and results of the last scrub
    Status {
        #[command(flatten)]
        server: ServerArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// What is kept in memory.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct CacheArgs {
    /// When writes are answered
    ///
    /// A flush makes writes durable in every mode, and so does FUA.
    #[arg(long, value_enum, default_value_t, value_name = "MODE", help_heading = "Performance")]
    pub(crate) cache: CacheName,
    /// Memory for the cache [default: 256M, at most 1/8 of the machine's memory]
    #[arg(long, value_parser = memory, value_name = "SIZE", help_heading = "Performance")]
    pub(crate) cache_size: Option<Bytes>,
    /// Memory for clients' requests [default: the cache's size, at least 64M]
    ///
    /// Clients wait while none is left. A client that takes no replies for 30 seconds while others wait is
    /// disconnected.
    #[arg(long, value_parser = memory, value_name = "SIZE", help_heading = "Performance")]
    pub(crate) request_memory: Option<Bytes>,
    /// Read ahead of sequential readers: auto, off, or up to 32M
    ///
    /// auto reads up to 2M ahead if members are on disks. Each reader gets at most a 64th of the cache for it.
    #[arg(long, value_parser = read_ahead, default_value = "auto", value_name = "SIZE", help_heading = "Performance")]
    pub(crate) read_ahead: ReadAhead,
}

/// When a write is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheName {
    /// When data is in memory; it reaches the members in whole stripes where possible
    #[default]
    Writeback,
    /// When the members have it; the cache saves later reads
    Writethrough,
    /// When the members have it; nothing is cached
    None,
}

/// Arguments of `uraid examine`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  uraid examine --json disk*.img | jq .missing")]
pub(crate) struct ExamineArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Members; one is enough
    #[arg(required = true, value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
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

/// Arguments of `uraid list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid list                                          running servers, block devices, this directory
  uraid list /srv/images /dev/sd*
  uraid list --json | jq -r .[].uri")]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Files, devices and directories; what is not a member is skipped
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
}

/// Arguments of `uraid rename`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  uraid rename archive a.img b.img c.img")]
pub(crate) struct RenameArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// New name; an empty one removes the name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// All members, in any order; the array has to be stopped cleanly
    #[arg(required = true, value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
}

/// Arguments of `uraid wipe`.
#[derive(Debug, Args)]
#[command(after_help = "Without --force it shows what the members belong to, and changes nothing.

Example:
  uraid wipe --force /dev/sdf")]
pub(crate) struct WipeArgs {
    /// Wipe: the array can't use these members any more
    #[arg(long)]
    pub(crate) force: bool,
    /// Members that no server uses
    #[arg(required = true, value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
}

/// Arguments of `uraid configure`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  uraid configure --consistency bitmap a.img b.img c.img")]
pub(crate) struct ConfigureArgs {
    /// How the array survives an unclean stop
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) consistency: ConsistencyName,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// All members, in any order; the array has to be stopped cleanly
    #[arg(required = true, value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
}

/// Arguments of `uraid grow`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  truncate --size 2G a.img b.img c.img && uraid grow a.img b.img c.img")]
pub(crate) struct GrowArgs {
    /// Data area of each member; max: all that the smallest member has room for
    #[arg(long, value_parser = bytes_or_max, default_value = "max", value_name = "SIZE")]
    pub(crate) size: Most,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// All members, in any order; the array has to be stopped cleanly
    #[arg(required = true, value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
}

/// Arguments of `uraid map`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid map --lba 2048 a.img b.img c.img
  uraid map --lba 0 --level rm2 --members 7 --rm2-m 3 --failed 1,3")]
pub(crate) struct MapArgs {
    /// Block: a 512-byte sector of the array
    #[arg(long, value_parser = lba, value_name = "N")]
    pub(crate) lba: Lba,
    /// Assume that these members are missing, such as 1,3
    #[arg(long, value_parser = members, default_value = "", hide_default_value = true, value_name = "SLOTS")]
    pub(crate) failed: MemberSet,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) described: DescribedArgs,
    /// Members of an array; or use --level and --members instead
    #[arg(value_name = "MEMBER", conflicts_with_all = ["level", "member_count"])]
    pub(crate) members: Vec<PathBuf>,
}

/// An array that need not exist.
#[derive(Debug, Args)]
pub(crate) struct DescribedArgs {
    /// RAID level of an array that need not exist
    #[arg(long, value_enum, requires = "member_count")]
    pub(crate) level: Option<LevelName>,
    /// Number of members of an array that need not exist
    #[arg(long = "members", id = "member_count", value_name = "N", requires = "level")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=MEMBERS_MAX))]
    pub(crate) count: Option<u8>,
    /// Data area of each member of an array that need not exist
    #[arg(long, value_parser = bytes, default_value = "1G", value_name = "SIZE")]
    pub(crate) size: Bytes,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
}

/// Arguments of `uraid layout`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid layout --level 5 --members 5
  uraid layout --level rm2 --members 7 --rm2-m 3 --svg rm2.svg")]
pub(crate) struct LayoutArgs {
    /// RAID level
    #[arg(long, value_enum)]
    pub(crate) level: LevelName,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    /// Number of members
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=MEMBERS_MAX), value_name = "N")]
    pub(crate) members: u8,
    /// Number of stripes to draw [default: until the placement repeats]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..), value_name = "N")]
    pub(crate) stripes: Option<u16>,
    /// Write the picture as SVG; -: to standard output
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub(crate) svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Words that are right one by one and together describe nothing that can be.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misuse(pub(crate) String);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_under_one_heading() {
        let command = Cli::command();
        command.clone().debug_assert();
        let mut named: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut there: Vec<&str> = shown.map(clap::Command::get_name).collect();
        named.sort_unstable();
        there.sort_unstable();
        assert_eq!(named, there);
    }

    #[test]
    fn short_help_fits_a_screen() {
        let overview = command().render_help().to_string();
        assert!(overview.lines().count() <= 60, "{overview}");
        for command in command().get_subcommands_mut() {
            let help = command.render_help().to_string();
            assert!(help.lines().count() <= 60, "{help}");
            assert!(!help.contains("--log-format"), "{help}");
            for line in help.lines() {
                assert!(line.chars().count() <= 100, "{line}");
            }
        }
    }
}
