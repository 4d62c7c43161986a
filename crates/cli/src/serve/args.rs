//! Arguments of `uraid serve`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use uraid_io::engine::Deadlines;
use uraid_layout::Bytes;
use uraid_serve::domains::Domain;
use uraid_serve::patience::{Limit, Patience, deadline, errors, hedge};
use uuid::Uuid;

use super::clients::ClientArgs;
use super::listen::{EndpointArgs, ListenAt};
use super::privileges::PrivilegeArgs;
use crate::values::{Rate, bytes, memory, period, rate};

/// The most threads that serve connections.
const CONNECTION_THREADS_MAX: i64 = 16;

/// The most that can be read ahead of a reader.
const READ_AHEAD_MAX: Bytes = Bytes(32 << 20);

pub(super) const READ_DEADLINE: &str = "2s";
pub(super) const WRITE_DEADLINE: &str = "30s";
pub(super) const MAX_ERRORS: &str = "20";
pub(super) const REJOIN_AFTER: &str = "10s";
pub(super) const HEDGE: &str = "auto";

/// Arguments of `uraid serve`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  uraid serve a.img b.img c.img                       on the socket uraid.sock beside a.img
  uraid serve --socket /run/vault.sock --export vault --spare /dev/sdi /dev/sd[b-h]
  uraid serve --listen storage.lan --tls require --tls-certificates /etc/uraid/tls a.img b.img
  uraid serve --config /etc/uraid/vault.toml")]
pub(crate) struct ServeArgs {
    /// Read members and options from a TOML file, of one array or several
    ///
    /// It has a key for the members and one for each option, by its long name: members = ["a.img", "b.img"],
    /// degraded = true, cache-size = "1G", spare = ["c.img"]. Options of the command line count more. Unless it says
    /// otherwise, the server waits 30s for its members. With tables [array.NAME] the server serves several arrays, and
    /// SIGHUP has it read the file again; the guide says which keys stand above the tables.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) endpoint: EndpointArgs,
    #[command(flatten)]
    pub(crate) md: MdArgs,
    /// Write nothing to the members
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Stop when the process that started the server ends, however it ends
    #[arg(long, hide_short_help = true)]
    pub(crate) exit_with_parent: bool,
    /// Take over from the server that runs, which stops: its clients see a pause, and no error
    ///
    /// For an upgrade, or to change settings that `uraid set` does not. Give the same --socket or --listen, or
    /// --control. The running server finishes what clients have asked for, writes out its cache, and hands its clients
    /// and sockets over. Clients that use TLS are disconnected. If no server runs, this one starts as always.
    #[arg(long, conflicts_with = "run", hide_short_help = true)]
    pub(crate) takeover: bool,
    /// Run this command, and stop when it ends
    ///
    /// For example --run 'nbdcopy "$uri" backup.img'. /bin/sh runs it when clients can connect. $uri says where;
    /// $unixsocket, $port and $exportname are the parts of that, where there are any. The server prints nothing, and
    /// exits with the command's status. Unless --socket or --listen is given, it listens in a directory of its own. If
    /// the server stops first, the shell and what it runs get SIGTERM. In the foreground of a terminal, whose Ctrl-C
    /// reaches all of them, only the shell gets it.
    #[arg(long, value_name = "COMMAND", hide_short_help = true)]
    pub(crate) run: Option<OsString>,
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
    /// Name what fails together, as NAME=MEMBER; repeatable
    ///
    /// `uraid status` warns if an array does not survive the loss of all members with one name. Members without one
    /// have the host of their URI.
    #[arg(long = "domain", value_parser = Domain::parse, value_name = "NAME=MEMBER", hide_short_help = true)]
    #[arg(help_heading = "Monitoring and upkeep")]
    pub(crate) domains: Vec<Domain>,
    /// Wait this long for members that have not appeared yet, such as 90s
    #[arg(long, value_parser = period, value_name = "TIME", help_heading = "Starting with problems")]
    pub(crate) wait_for_members: Option<Duration>,
    /// Start although content may come back wrong
    ///
    /// Needed if the array was not stopped cleanly, has no log, and members are missing: what these members held may
    /// be wrong wherever writes were under way. Also if both copies of a member's list of bad blocks are damaged and
    /// the array needs this member: what it lacked reads as anything.
    #[arg(long, help_heading = "Starting with problems")]
    pub(crate) force: bool,
    /// Take members on a network from a server that has fallen silent
    ///
    /// Who serves exports of NBD servers marks them, and counts on there. Another server is refused as long as that
    /// counts on, and also when it does not, unless it is known to have ended, or this is given. A server that was
    /// only cut off notices, and fails all requests from then on.
    #[arg(long, conflicts_with = "read_only", help_heading = "Starting with problems", hide_short_help = true)]
    pub(crate) steal: bool,
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
    #[arg(hide_short_help = true)]
    pub(crate) busy_poll: BusyPoll,
    /// Threads that serve clients' connections, beside the one that serves the array
    ///
    /// They help if many clients keep one core busy; a request that is alone costs two hops between threads. 0: one
    /// thread does everything.
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=CONNECTION_THREADS_MAX), default_value_t = 0)]
    #[arg(value_name = "N", help_heading = "Performance")]
    pub(crate) connection_threads: u8,
    /// What the log has of parity stripes that are written as a whole
    ///
    /// For RAID 5, 6 and RM2 with a log and without block checksums; others log content. With sums such a write is not
    /// written twice. If the power goes and a member with it, what was being written of such stripes may be lost:
    /// reading it is an error then.
    #[arg(long, value_enum, default_value_t, value_name = "WHAT", help_heading = "Performance")]
    #[arg(hide_short_help = true)]
    pub(crate) full_stripe_log: FullStripeLog,
    #[command(flatten)]
    pub(crate) patience: PatienceArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    #[command(flatten)]
    pub(crate) clients: ClientArgs,
    /// Scrub whenever this much time has passed since the last one, such as 30d
    #[arg(long, value_parser = period, value_name = "PERIOD", conflicts_with = "read_only")]
    #[arg(help_heading = "Monitoring and upkeep")]
    pub(crate) scrub_every: Option<Duration>,
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    #[command(flatten)]
    pub(crate) privileges: PrivilegeArgs,
    /// Members in any order; with --uuid, --name or --md, any paths that may be members
    ///
    /// Files, block devices, and exports of NBD servers by their URIs, such as nbd://HOST/NAME.
    #[arg(required_unless_present = "config", value_name = "MEMBER")]
    pub(crate) members: Vec<PathBuf>,
}

/// What the log has of parity stripes that are written as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum FullStripeLog {
    /// A sum of each sector: enough to compute parity again
    #[default]
    Sums,
    /// All of it: done again whatever is missing
    Content,
}

/// Arrays of Linux md.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct MdArgs {
    /// Serve an array of Linux md, for reading only
    ///
    /// The paths are files, devices or whole disks with partitions; `uraid import` shows what they hold. Missing
    /// members, bad blocks and unfinished rebuilds are read around. Nothing is ever written. There is no cache and no
    /// control socket: Ctrl-C or SIGTERM stops the server.
    #[arg(long, conflicts_with_all = NOT_WITH_MD)]
    pub(crate) md: bool,
    /// How a RAID 0 of unequal members goes round, if nothing on them says so
    #[arg(long, requires = "md", value_enum, value_name = "ORDER", help_heading = "Starting with problems")]
    #[arg(hide_short_help = true)]
    pub(crate) md_zones: Option<MdZones>,
}

/// How a RAID 0 of unequal members goes round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MdZones {
    /// As Linux did up to 3.13
    Original,
    /// As Linux does since 3.14
    Alternate,
}

/// Options that mean nothing to an array of Linux md.
const NOT_WITH_MD: [&str; 26] = [
    "config",
    "takeover",
    "spares",
    "wait_for_members",
    "accept_stale",
    "steal",
    "domains",
    "cache",
    "cache_size",
    "read_ahead",
    "busy_poll",
    "connection_threads",
    "full_stripe_log",
    "read_deadline",
    "write_deadline",
    "max_errors",
    "rejoin_after",
    "hedge",
    "rebuild_limit",
    "scrub_limit",
    "reshape_limit",
    "scrub_every",
    "metrics",
    "on_event",
    "smart_every",
    "control",
];

/// How fast what goes on beside clients' requests may be.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct LimitArgs {
    /// Most bytes per second to rebuild or to initialise on each member, such as 50M; none: no limit
    #[arg(long, value_parser = rate, default_value = "none", value_name = "RATE|none")]
    #[arg(help_heading = "Monitoring and upkeep", hide_short_help = true)]
    pub(crate) rebuild_limit: Rate,
    /// Most bytes per second that scrubs read from each member; none: no limit
    #[arg(long, value_parser = rate, default_value = "none", value_name = "RATE|none")]
    #[arg(help_heading = "Monitoring and upkeep", hide_short_help = true)]
    pub(crate) scrub_limit: Rate,
    /// Most bytes of content per second that a reshape moves; none: no limit
    #[arg(long, value_parser = rate, default_value = "none", value_name = "RATE|none")]
    #[arg(help_heading = "Monitoring and upkeep", hide_short_help = true)]
    pub(crate) reshape_limit: Rate,
}

/// Which array is meant, where paths may lead to members of others or to no member at all.
#[derive(Debug, Default, Args)]
#[group(multiple = false)]
pub(crate) struct WantedArgs {
    /// Serve the array with this UUID, and ignore other paths
    #[arg(long, value_parser = uuid, value_name = "UUID", help_heading = "Finding members")]
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
    /// array's health, and at reshape-finished URAID_SHAPE says whether the array has its `new` shape, or its `old` one
    /// again.
    /// Events: started, stopped, degraded, stalled, failing, frozen, salvage, recovered, member-missing, member-failed,
    /// member-failing, member-deleted, member-stalled, member-lagging, member-no-room, member-smart, log-device-failed,
    /// log-device-deleted, log-device-stalled, log-device-joined, unwritten, written-out, content-lost,
    /// content-restored, spare-taken, member-returns, rebuild-started, rebuild-finished, rebuild-stuck,
    /// replace-started, replace-finished, replace-stopped, replace-stuck, replace-rebuilding, scrub-started,
    /// scrub-finished, scrub-incomplete, scrub-mismatch, initialise-started, initialise-finished, reshape-started,
    /// reshape-finished, reshape-stuck, grown.
    #[arg(long, value_name = "PROGRAM", help_heading = "Monitoring and upkeep")]
    pub(crate) on_event: Option<PathBuf>,
    /// Ask disks so often whether they fail, such as 6h; needs smartctl
    ///
    /// A member on a disk whose SMART health is not good makes the event member-smart, and `uraid status` shows it.
    #[arg(long, value_parser = period, value_name = "PERIOD", help_heading = "Monitoring and upkeep")]
    pub(crate) smart_every: Option<Duration>,
    /// Control socket [default: the socket with the extension .ctl]
    ///
    /// Only the user who started the server may connect. With --listen and without --socket there is no control socket
    /// unless this option names one.
    #[arg(long, value_name = "PATH", help_heading = "Monitoring and upkeep")]
    pub(crate) control: Option<PathBuf>,
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
    /// Memory for all clients' requests [default: the cache's size, at least 64M]
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

/// As it was asked for on the command line.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct PatienceArgs {
    /// Read around a member that takes longer than this to answer
    ///
    /// What it does not deliver is computed from the other members until it answers again. off: wait for it.
    #[arg(long, value_parser = deadline, default_value = READ_DEADLINE, value_name = "TIME|off")]
    #[arg(help_heading = "Failing members")]
    pub(crate) read_deadline: Limit<Duration>,
    /// Fail a member that takes longer than this
    ///
    /// Applies to reads, writes and flushes, and only if the array survives without the member. off: wait for it.
    #[arg(long, value_parser = deadline, default_value = WRITE_DEADLINE, value_name = "TIME|off")]
    #[arg(help_heading = "Failing members")]
    pub(crate) write_deadline: Limit<Duration>,
    /// Fail a member after more corrected errors than this
    ///
    /// The count is halved every hour. A member is failed only if redundancy is left without it. off: never.
    #[arg(long, value_parser = errors, default_value = MAX_ERRORS, value_name = "N|off")]
    #[arg(help_heading = "Failing members")]
    pub(crate) max_errors: Limit<u32>,
    /// Have a member on a network return when its server has answered again for this long
    ///
    /// For members that are exports of NBD servers and failed because their connection broke. Their server is asked
    /// for them again and again; in this time it is to end what it still has of the old connection. off: they return
    /// with `uraid add`.
    #[arg(long, value_parser = deadline, default_value = REJOIN_AFTER, value_name = "TIME|off")]
    #[arg(help_heading = "Failing members", hide_short_help = true)]
    pub(crate) rejoin_after: Limit<Duration>,
    /// Read around a member on a network when it is unusually slow: auto or off
    ///
    /// A client's read that takes longer than 99 of 100 reads of the same member, and than a millisecond, is computed
    /// from the other members if none of these is late, too. auto learns how long reads take. Files and devices are
    /// not read so.
    #[arg(long, value_parser = Hedge::parse, default_value = HEDGE, value_name = "auto|off")]
    #[arg(help_heading = "Failing members", hide_short_help = true)]
    pub(crate) hedge: Hedge,
}

impl Default for PatienceArgs {
    fn default() -> Self {
        Self {
            read_deadline: deadline(READ_DEADLINE).expect("a time"),
            write_deadline: deadline(WRITE_DEADLINE).expect("a time"),
            max_errors: errors(MAX_ERRORS).expect("a number"),
            rejoin_after: deadline(REJOIN_AFTER).expect("a time"),
            hedge: Hedge::parse(HEDGE).expect("auto or off"),
        }
    }
}

impl From<PatienceArgs> for Patience {
    fn from(args: PatienceArgs) -> Self {
        let PatienceArgs { read_deadline, write_deadline, max_errors, hedge, .. } = args;
        let deadlines = Deadlines { read: read_deadline.0, write: write_deadline.0, hedges: hedge.0 };
        Self { deadlines, max_errors: max_errors.0 }
    }
}

/// Whether reads of members on a network are hedged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hedge(bool);

impl Hedge {
    fn parse(text: &str) -> Result<Self, String> {
        hedge(text).map(Self)
    }
}

/// How much to read ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReadAhead {
    /// Where it pays.
    #[default]
    Auto,
    /// Always up to this; zero: never.
    UpTo(Bytes),
}

/// How long to look for the next command before sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BusyPoll {
    /// Where it pays.
    Auto,
    /// Always this long; zero: never.
    For(Duration),
}

/// A port of this machine's own, or an address or a name with a port that others may reach.
fn metrics_address(text: &str) -> Result<ListenAt, String> {
    ListenAt::parse_with_port(text).ok_or_else(|| {
        format!("'{text}' is not a port, nor an address or a name with one; write for example 9187 or storage.lan:9187")
    })
}

/// A UUID as everybody writes it, or as mdadm does: with colons.
fn uuid(text: &str) -> Result<Uuid, uuid::Error> {
    text.replace(':', "").parse()
}

fn read_ahead(text: &str) -> Result<ReadAhead, String> {
    match (text, bytes(text)) {
        ("auto", _) => Ok(ReadAhead::Auto),
        ("off", _) => Ok(ReadAhead::UpTo(Bytes(0))),
        (_, Ok(size)) if size <= READ_AHEAD_MAX => Ok(ReadAhead::UpTo(size)),
        _ => Err(format!("'{text}' is not auto, off or a size of up to 32M")),
    }
}

fn busy_poll(text: &str) -> Result<BusyPoll, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(BusyPoll::Auto),
        ("off", _) => Ok(BusyPoll::For(Duration::ZERO)),
        (_, Ok(microseconds @ 0..=1000)) => Ok(BusyPoll::For(Duration::from_micros(microseconds))),
        _ => Err(format!("'{text}' is not auto, off or a number of microseconds up to 1000")),
    }
}
