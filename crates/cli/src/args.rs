//! The command line: what users may say, with examples.

mod values;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use uraid_io::superblock::{Consistency, Integrity};
use uraid_layout::{Bytes, Lba, Level, MemberSet, Placement, Rotation};
use uuid::Uuid;

use crate::advise::AdviseArgs;
use crate::patience::PatienceArgs;
use crate::simulate::SimulateArgs;
pub(crate) use values::{BusyPoll, Most, Rate, ReadAhead, bytes};
use values::{busy_poll, bytes_or_max, lba, members, metrics_address, period, rate, read_ahead, setting};

/// The most threads that serve an array.
const REACTORS_MAX: i64 = 16;

/// Software RAID in user space: files and devices on one side, a network block device on the other.
#[derive(Debug, Parser)]
#[command(name = "uraid", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Start here:\n  uraid quickstart              a small RAID 5 in ./uraid-demo, served at once")]
pub(crate) struct Cli {
    /// How what is logged on standard error is written; URAID_LOG says what: error, warn (default), info, debug, trace
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) log_format: LogFormat,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make an array of files and block devices
    Create(CreateArgs),
    /// Serve an array as a network block device, in the foreground
    Serve(Box<ServeArgs>),
    /// Show what members say about their array, and whether it is whole
    Examine(ExamineArgs),
    /// Change settings of an array that is not being served
    Configure(ConfigureArgs),
    /// Have an array that is not being served use more of its members, after they were enlarged
    Grow(GrowArgs),
    /// Show where a block lives, and what reading and writing it takes
    Map(MapArgs),
    /// Draw how a level places data and parity
    Layout(LayoutArgs),
    /// Make a small RAID 5 of files in a directory and serve it
    Quickstart(QuickstartArgs),
    /// Show how an array is that is being served
    Status(StatusArgs),
    /// Change settings of an array that is being served, until it is stopped
    Set(SetArgs),
    /// Give a member of an array up that is being served; it is told so itself, too, where it can be written
    Fail(MemberArgs),
    /// Let go of a member that has failed, or of a spare, while the array is being served
    Remove(MemberArgs),
    /// Take a member in that returns, or a new one, and rebuild it while the array is being served; a spare if none is
    /// missing
    Add(AddArgs),
    /// Copy a member to a new one, which takes its place, while the array is being served
    Replace(ReplaceArgs),
    /// Limit how fast each member is rebuilt
    RebuildLimit(RateArgs),
    /// Limit how fast scrubs read each member
    ScrubLimit(RateArgs),
    /// Compare what the members hold while the array is being served, and repair what is certainly wrong
    Scrub(ScrubArgs),
    /// Wait until nothing is being rebuilt, copied or scrubbed; succeeds where the array is whole then
    Wait(ServerArgs),
    /// Say which chunk size suits disks and load, and why
    Advise(AdviseArgs),
    /// Compute the tables and figures of the papers again that this rests on
    Simulate(SimulateArgs),
    /// Stop serving an array, and wait until its members are marked clean
    Stop(StopArgs),
}

/// How a log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// A JSON object a line
    Json,
}

/// A RAID level, as the command line says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LevelName {
    /// Striping; no member may fail
    #[value(name = "0")]
    Raid0,
    /// Mirrors; all but one may fail
    #[value(name = "1")]
    Raid1,
    /// Striped mirrors
    #[value(name = "10")]
    Raid10,
    /// Rotated parity; one member may fail
    #[value(name = "5")]
    Raid5,
    /// Two parity groups for each block; two members may fail
    #[value(name = "rm2")]
    Rm2,
}

/// How a level places what it keeps.
#[derive(Debug, Args)]
pub(crate) struct PlacementArgs {
    /// Bytes placed on one member before the next: 4K to 1M, a multiple of 4K
    #[arg(long, value_parser = bytes, default_value = "64K", value_name = "SIZE")]
    pub(crate) chunk: Bytes,
    /// Placement. RAID 5: left-symmetric (default), left-asymmetric, right-symmetric, right-asymmetric; RM2: adjacent
    /// (default), partitioned; RAID 10: near
    #[arg(long, value_name = "NAME")]
    layout: Option<String>,
    /// RM2: rows of a parity stripe, of which one holds parity [default: the most that the members allow]
    #[arg(long, value_name = "M")]
    rm2_m: Option<u8>,
    /// RAID 10: copies of each block [default: 2]
    #[arg(long, value_name = "N")]
    copies: Option<u8>,
}

/// Arguments of `uraid create`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid create --level 5 --size 1G a.img b.img c.img        RAID 5 of three new files
  uraid create --level rm2 --name vault /dev/sd[b-h]        RM2 of seven devices
  uraid create --level 10 --copies 3 --chunk 256K disk*.img")]
pub(crate) struct CreateArgs {
    /// RAID level
    #[arg(long, value_enum)]
    pub(crate) level: LevelName,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    /// Size of each member; files that do not exist are created with it
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    pub(crate) size: Option<Bytes>,
    /// Do not reserve the space of new files
    #[arg(long)]
    pub(crate) sparse: bool,
    /// What keeps the members in agreement over an unclean stop [default: log for 5 and rm2, bitmap for 1 and 10, none
    /// for 0]
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) consistency: Option<ConsistencyName>,
    /// Check content by a checksum of each 4 KiB block; needs `--consistency log`, which is the default then. The
    /// array takes only requests that are multiples of 4096 bytes
    #[arg(long, value_enum, value_name = "MODE", default_value_t = IntegrityName::None)]
    pub(crate) integrity: IntegrityName,
    /// Room for the log on each member [default: 1/64 of the member, up to 64M, and room for a few parity stripes]
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    pub(crate) log_size: Option<Bytes>,
    /// The array's name
    #[arg(long, default_value = "", value_name = "NAME")]
    pub(crate) name: String,
    /// Overwrite members that hold something already: a format that is known by its signature, or anything but zeros in
    /// the first or the last 4 MiB
    #[arg(long)]
    pub(crate) force: bool,
    /// Print what was made as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Files and block devices, in the order of their slots
    #[arg(required = true, value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
}

/// Arguments of `uraid serve`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid serve a.img b.img c.img                             on a socket in the first member's directory
  uraid serve --socket /run/vault.sock --export vault --spare /dev/sdi /dev/sd[b-h]
  uraid serve --listen 127.0.0.1:10809 --degraded a.img c.img")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) endpoint: EndpointArgs,
    /// Serve without writing a byte to the members
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Serve although members are missing that the array had when it was last used, hold nothing, or hang for longer
    /// than --write-deadline
    #[arg(long)]
    pub(crate) degraded: bool,
    /// Wait so long for members that are not there yet, before the array is opened without them (with --degraded) or
    /// not at all: a number of seconds (s) or minutes (m)
    #[arg(long, value_parser = period, value_name = "TIME")]
    pub(crate) wait_for_members: Option<Duration>,
    /// Last resort, for reading only: read the member of this slot although the array went on without it. Says what may
    /// be old or wrong then. May be given several times. With --degraded and --force, what is left is served though too
    /// many members are gone, and the rest is an I/O error
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..64), value_name = "SLOT")]
    pub(crate) accept_stale: Vec<u8>,
    /// Serve although the array was not stopped cleanly and members are missing: what they held may come back wrong
    #[arg(long)]
    pub(crate) force: bool,
    /// How long to look for the next command before sleeping: auto (50 microseconds where all members are in memory),
    /// off, or microseconds. Shortens the latency of one command at a time, and costs nothing when idle
    #[arg(long, value_parser = busy_poll, default_value = "auto", value_name = "WHEN")]
    pub(crate) busy_poll: BusyPoll,
    /// Threads that share the array between them. More than one pays where many clients keep one core busy, and costs
    /// each request that is for another thread's part a hop to it. With more than one, members can't be taken in while
    /// the array is served, by spares neither
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=REACTORS_MAX), default_value_t = 1, value_name = "N")]
    pub(crate) reactors: u8,
    /// File or device that takes the place of a member that fails; may be given several times, and to several servers:
    /// who needs it first gets it. It is taken if it is there by then, large enough, and empty (see `uraid create
    /// --force`). Once taken it is a member, and the same command line serves the array again
    #[arg(long = "spare", value_name = "PATH", conflicts_with = "read_only")]
    pub(crate) spares: Vec<PathBuf>,
    /// Compare what the members hold when so much has passed since that was last done: a number of days (d), weeks (w),
    /// hours (h), minutes (m) or seconds (s)
    #[arg(long, value_parser = period, value_name = "PERIOD", conflicts_with = "read_only")]
    pub(crate) scrub_every: Option<Duration>,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) patience: PatienceArgs,
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    #[command(flatten)]
    pub(crate) wanted: WantedArgs,
    /// The array's members, in any order; with --uuid or --name whatever they may be among
    #[arg(required = true, value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
}

/// Which array is meant, where paths may lead to members of others or to no member at all.
#[derive(Debug, Default, Args)]
#[group(multiple = false)]
pub(crate) struct WantedArgs {
    /// Serve the array with this UUID, and ignore what is not of it
    #[arg(long, value_name = "UUID")]
    pub(crate) uuid: Option<Uuid>,
    /// Serve the array with this name, and ignore what is not of it
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// How administrators see and reach a server.
#[derive(Debug, Default, Args)]
pub(crate) struct WatchArgs {
    /// Control socket, for this user only [default: beside --socket, X.sock -> X.ctl; none with --listen]
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// Program to run, without a shell, when something happens: PROGRAM EVENT ARRAY, and each MEMBER that it is about;
    /// URAID_HEALTH in its environment says in words how the array is. EVENT is started, stopped, member-failed,
    /// member-deleted, member-failing, member-no-room, member-stalled, member-lagging, member-missing, degraded,
    /// stalled, failing, salvage, frozen, flush-failing, flush-recovered, rebuild-stuck, replace-stuck, spare-taken,
    /// rebuild-started, rebuild-finished, replace-started, replace-finished, replace-stopped, replace-rebuilding,
    /// recovered, scrub-mismatch, scrub-finished or scrub-incomplete
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) on_event: Option<PathBuf>,
    /// Hand out metrics for Prometheus at http://ADDR/metrics; a port alone is on 127.0.0.1. Anyone who reaches it can
    /// read them
    #[arg(long, value_parser = metrics_address, value_name = "[ADDR:]PORT")]
    pub(crate) metrics: Option<SocketAddr>,
}

/// Which server is meant.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// The server's socket, or its control socket
    #[arg(long, default_value = "uraid.sock", value_name = "PATH")]
    pub(crate) socket: PathBuf,
}

/// Arguments of `uraid stop`.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Stop even if content is lost: of members whose files were deleted, or that was not written because members do
    /// not take it
    #[arg(long)]
    pub(crate) force: bool,
}

/// Arguments of `uraid status`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid status --socket /run/vault.sock --watch
  uraid status --json | jq .health")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Go on each second, until interrupted or the server ends
    #[arg(long)]
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
    /// The member's slot, path or UUID
    #[arg(value_name = "MEMBER")]
    pub(crate) member: String,
}

/// Arguments of `uraid add`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid add d3.img                                          a member that was away, or one that holds nothing
  uraid add --socket /run/vault.sock --size 1G new.img      a new file")]
pub(crate) struct AddArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Make a new member of it, whatever it holds; else it has to be empty: zeros in the first and the last 4 MiB
    #[arg(long)]
    pub(crate) force: bool,
    /// Size of a file that does not exist yet
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    pub(crate) size: Option<Bytes>,
    /// File or block device
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
}

/// Arguments of `uraid replace`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid replace d3.img --size 1G new.img                    a new file
  uraid replace --socket /run/vault.sock 3 /dev/sdf         a device, for the member in slot 3
  uraid fail new.img                                        goes no further with it")]
pub(crate) struct ReplaceArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Make a new member of NEW, whatever it holds; else it has to be empty: zeros in the first and the last 4 MiB
    #[arg(long)]
    pub(crate) force: bool,
    /// Size of a file that does not exist yet
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    pub(crate) size: Option<Bytes>,
    /// The member's slot, path or UUID
    #[arg(value_name = "OLD")]
    pub(crate) old: String,
    /// File or block device
    #[arg(value_name = "NEW")]
    pub(crate) new: PathBuf,
}

/// Arguments of `uraid rebuild-limit` and `uraid scrub-limit`.
#[derive(Debug, Args)]
pub(crate) struct RateArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Bytes a second, such as 50M; none: as fast as members go and clients leave room for
    #[arg(value_parser = rate, value_name = "RATE")]
    pub(crate) rate: Rate,
}

/// Arguments of `uraid scrub`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid scrub start                                         compare, and write nothing
  uraid scrub start --repair
  uraid scrub status --json | jq .faults")]
pub(crate) struct ScrubArgs {
    /// What to do
    #[command(subcommand)]
    pub(crate) action: ScrubAction,
}

/// What to do about a scrub.
#[derive(Debug, Subcommand)]
pub(crate) enum ScrubAction {
    /// Start one; it yields to clients
    Start {
        #[command(flatten)]
        server: ServerArgs,
        /// Repair what is certainly wrong: what a checksum, most copies or the only parity that disagrees speak against
        #[arg(long)]
        repair: bool,
        /// Repair data, too, that both of its parity units speak against. Only for arrays that were not written since
        /// they were found wrong
        #[arg(long)]
        repair_suspects: bool,
        /// Write nothing; this is the default
        #[arg(long, conflicts_with_all = ["repair", "repair_suspects"])]
        dry_run: bool,
        /// Wait for its end and say what it has found; succeeds where all of it is right then
        #[arg(long)]
        wait: bool,
    },
    /// Stop the one that runs
    Stop {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show how far the last one is, and what it has found
    Status {
        #[command(flatten)]
        server: ServerArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Arguments of `uraid set`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid set cache=writethrough                              writes are answered when the members have them
  uraid set --socket /run/vault.sock log=info")]
pub(crate) struct SetArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// cache=writeback|writethrough, log=error|warn|info|debug|trace|off, read-deadline=TIME|off,
    /// write-deadline=TIME|off, max-errors=N|off
    #[arg(required = true, value_parser = setting, value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<(String, String)>,
}

/// What is kept in memory.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct CacheArgs {
    /// When a write is answered. A flush or FUA makes writes durable in every mode
    #[arg(long, value_enum, default_value_t, value_name = "MODE")]
    pub(crate) cache: CacheName,
    /// Memory of the cache [default: 256M, or an eighth of the machine's memory where that is less]
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    pub(crate) cache_size: Option<Bytes>,
    /// Memory for the data of clients' requests in flight, replies that were not taken included. Clients wait while
    /// there is none left, and one that leaves its replies lying for 30 seconds while others wait is disconnected
    /// [default: the cache's size, and at least 64M]
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    pub(crate) request_memory: Option<Bytes>,
    /// The most to read ahead of clients that read in order: auto (2M where members are on disks), off, or a size of up
    /// to 32M. It goes to the cache, of which each reader gets a 64th at most
    #[arg(long, value_parser = read_ahead, default_value = "auto", value_name = "SIZE")]
    pub(crate) read_ahead: ReadAhead,
}

/// When a write is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheName {
    /// When it is in memory; it is written out in whole stripes where that can be
    #[default]
    Writeback,
    /// When the members have it; what is in memory saves later writes their reads
    Writethrough,
    /// When the members have it; nothing is kept
    None,
}

/// Where to serve.
#[derive(Debug, Default, Args)]
pub(crate) struct EndpointArgs {
    /// Unix socket to serve on, for this user only [default: uraid.sock beside the first member]
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    pub(crate) socket: Option<PathBuf>,
    /// TCP address to serve on; anyone who reaches it can read and write the array
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// The export's name for clients; the default export is this one too [default: the array's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) export: Option<String>,
}

/// Arguments of `uraid examine`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  uraid examine --json disk*.img | jq .missing")]
pub(crate) struct ExamineArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Members; one is enough to ask
    #[arg(required = true, value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
}

/// What keeps the members in agreement over an unclean stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConsistencyName {
    /// Writes go to a log first: what was under way is done again or never was
    Log,
    /// A bitmap says where writes were under way: parity is computed again there
    Bitmap,
    /// Parity is computed again everywhere
    None,
}

/// How content is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IntegrityName {
    /// By a checksum of each 4 KiB block, kept apart from it
    Crc32,
    /// Not at all, beyond what the members do
    None,
}

/// Arguments of `uraid configure`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  uraid configure --consistency bitmap a.img b.img c.img")]
pub(crate) struct ConfigureArgs {
    /// What keeps the members in agreement over an unclean stop
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) consistency: ConsistencyName,
    /// Print what the members say then as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// All members of an array that was stopped cleanly, in any order
    #[arg(required = true, value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
}

/// Arguments of `uraid grow`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  truncate --size 2G a.img b.img c.img && uraid grow a.img b.img c.img")]
pub(crate) struct GrowArgs {
    /// How much data of each member the array is to use, or max: all that the smallest has room for
    #[arg(long, value_parser = bytes_or_max, default_value = "max", value_name = "SIZE")]
    pub(crate) size: Most,
    /// Print what the members say then as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// All members of an array that was stopped cleanly, in any order
    #[arg(required = true, value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
}

/// Arguments of `uraid map`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid map --lba 2048 a.img b.img c.img
  uraid map --lba 0 --level rm2 --members 7 --rm2-m 3 --failed 1,3")]
pub(crate) struct MapArgs {
    /// Block to look for: a 512-byte sector of the array
    #[arg(long, value_parser = lba, value_name = "N")]
    pub(crate) lba: Lba,
    /// Members that are taken to be missing
    #[arg(long, value_parser = members, default_value = "", hide_default_value = true, value_name = "SLOTS")]
    pub(crate) failed: MemberSet,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) described: DescribedArgs,
    /// The array's members; or describe an array with --level and --members
    #[arg(value_name = "MEMBER", conflicts_with_all = ["level", "member_count"])]
    pub(crate) members: Vec<PathBuf>,
}

/// An array that need not exist.
#[derive(Debug, Args)]
pub(crate) struct DescribedArgs {
    /// Without members: RAID level
    #[arg(long, value_enum, requires = "member_count")]
    pub(crate) level: Option<LevelName>,
    /// Without members: how many the array has
    #[arg(long = "members", id = "member_count", value_name = "N", requires = "level")]
    pub(crate) count: Option<u8>,
    /// Without members: size of each member's data area
    #[arg(long, value_parser = bytes, default_value = "1G", value_name = "SIZE")]
    pub(crate) size: Bytes,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
}

/// Arguments of `uraid layout`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid layout --level 5 --members 5
  uraid layout --level rm2 --members 7 --rm2-m 3")]
pub(crate) struct LayoutArgs {
    /// RAID level
    #[arg(long, value_enum)]
    pub(crate) level: LevelName,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    /// How many members
    #[arg(long, value_name = "N")]
    pub(crate) members: u8,
    /// How many stripes to draw [default: until the placement repeats]
    #[arg(long, value_name = "N")]
    pub(crate) stripes: Option<u16>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `uraid quickstart`.
#[derive(Debug, Args)]
pub(crate) struct QuickstartArgs {
    #[command(flatten)]
    pub(crate) endpoint: EndpointArgs,
    /// Where to put the members
    #[arg(default_value = "./uraid-demo", value_name = "DIR")]
    pub(crate) dir: PathBuf,
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

impl LevelName {
    /// The level in its default layout; what is not said of `rm2_m` and `copies` has the default for `members` members.
    pub(crate) fn level(self, members: u8, rm2_m: Option<u8>, copies: Option<u8>) -> Level {
        match self {
            Self::Raid0 => Level::Raid0,
            Self::Raid1 => Level::Raid1,
            Self::Raid10 => Level::Raid10 { copies: copies.unwrap_or(2) },
            Self::Raid5 => Level::Raid5 { rotation: Rotation::LeftSymmetric },
            Self::Rm2 => {
                let height = rm2_m.unwrap_or_else(|| uraid_layout::geometry::default_height(members));
                Level::Rm2 { height, placement: Placement::Adjacent }
            }
        }
    }
}

impl PlacementArgs {
    /// The level with the options that it takes, for `members` members.
    pub(crate) fn level(&self, name: LevelName, members: u8) -> Result<Level, Misuse> {
        let Self { ref layout, rm2_m, copies, .. } = *self;
        let layout = layout.as_deref();
        let refuse = |text: String| Err(Misuse(text));
        let level = match (name.level(members, rm2_m, copies), layout) {
            (level, None) | (level @ Level::Raid10 { .. }, Some("near")) => level,
            (Level::Raid5 { .. }, Some(name)) => {
                let rotation = match name {
                    "left-symmetric" => Rotation::LeftSymmetric,
                    "left-asymmetric" => Rotation::LeftAsymmetric,
                    "right-symmetric" => Rotation::RightSymmetric,
                    "right-asymmetric" => Rotation::RightAsymmetric,
                    _ => {
                        return refuse(format!(
                            "RAID 5 has no layout '{name}'; choose left-symmetric, left-asymmetric, right-symmetric or \
                             right-asymmetric"
                        ));
                    }
                };
                Level::Raid5 { rotation }
            }
            (Level::Rm2 { height, .. }, Some(name)) => {
                let placement = match name {
                    "adjacent" => Placement::Adjacent,
                    "partitioned" => Placement::Partitioned,
                    _ => return refuse(format!("RM2 has no layout '{name}'; choose adjacent or partitioned")),
                };
                Level::Rm2 { height, placement }
            }
            (level, Some(layout)) => {
                let name = crate::shape::level_name(level);
                return refuse(format!("RAID {name} has no layout '{layout}'; leave --layout out"));
            }
        };
        if rm2_m.is_some() && !matches!(level, Level::Rm2 { .. }) {
            return refuse("--rm2-m is for level rm2 only".into());
        }
        if copies.is_some() && !matches!(level, Level::Raid10 { .. }) {
            return refuse("--copies is for level 10 only".into());
        }
        Ok(level)
    }
}
