//! The protocol of the control socket: one JSON object per line, a request in one direction and its response in the
//! other. docs/control-protocol.md describes it.
//!
//! Responses may gain fields, but never lose them or change their meaning. A request with a field or command that the
//! server does not know is an error.
#![expect(missing_docs, reason = "docs/control-protocol.md describes what does not say itself")]

mod devices;
mod limits;
mod network;
mod rebuilds;
mod recording;
mod sandbox;
mod stopped;

use std::ops::Range;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uraid_io::format::badblocks::{self, Lack};
use uraid_layout::{Lba, Sectors};
use uuid::Uuid;

pub use devices::{Latency, LogAdded, LogDevice, LogDeviceState, NamedLog};
pub use limits::Limits;
pub use network::{Away, Crowded, Waiting};
pub use rebuilds::{Rebuild, Replace, Replaced};
pub use recording::{Recorded, Recording};
pub use sandbox::Sandbox;
pub use stopped::{HandedOver, Lost, Stopped, Stopping};

use crate::shape::WantedShape;
use crate::sweeps::{Sweep, Work};

/// Maximum length of a line, including its end.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Report the array's state: [`Status`].
    Status {},
    /// Report counters and latencies: [`Metrics`].
    Metrics {},
    /// Stop as on SIGTERM. Answered when the members are marked clean. Refused if it would lose data, but by `force`.
    Stop {
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Stop, and hand clients and sockets over to whoever asks: [`HandedOver`], then one of them after the other, as
    /// [`takeover`](crate::takeover) says. On the control socket only. Refused like a stop, and if that is another
    /// array.
    HandOver { array: Uuid },
    /// Change a setting until the server ends.
    Set { key: String, value: String },
    /// Read the certificates of TLS anew, for clients that connect from now on.
    ReloadCertificates {},
    /// Fail a member, named by its slot, path or UUID, or a log device, by its path or UUID. Answered when that is on
    /// record.
    Fail { member: String },
    /// Release a member or log device that the array no longer uses, or a spare.
    Remove { member: String },
    /// Add a returning or a new member, and rebuild it; a spare if no member is missing: [`Added`]. Or a log device:
    /// [`LogAdded`].
    Add {
        path: PathBuf,
        #[serde(default)]
        force: bool,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        log_device: bool,
        /// Of a file that does not exist yet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size_bytes: Option<u64>,
    },
    /// Copy a member, named by its slot, path or UUID, to a new one, which then takes its place. A missing member is
    /// rebuilt on the new one: [`Replaced`]. A new log device takes the place of one at once: [`LogAdded`].
    Replace {
        member: String,
        path: PathBuf,
        #[serde(default)]
        force: bool,
        /// Size of a file that does not exist yet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size_bytes: Option<u64>,
    },
    /// Use the room of members that were enlarged: [`Grown`].
    Grow {
        /// Data area of each member; absent: all that the smallest member has room for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        member_bytes: Option<u64>,
    },
    /// Go on with a reshape that is on record, or go back to the shape that the array had if `back` is set.
    Reshape {
        #[serde(default)]
        back: bool,
    },
    /// Begin to give the array another shape; what is not said stays as it is. Answered when that is on record.
    ReshapeBegin(WantedShape),
    /// Limit the rate at which a reshape moves content.
    ReshapeLimit { bytes_per_second: Option<u64> },
    /// Limit the rate of rebuilds and copies to each member.
    RebuildLimit { bytes_per_second: Option<u64> },
    /// Limit the rate at which all clients together read and write.
    ClientLimit { bytes_per_second: Option<u64> },
    /// Limit the rate of all clients' requests.
    ClientIopsLimit { operations_per_second: Option<u64> },
    /// Compare the members' content: [`Scrub`].
    ScrubStart { mode: ScrubMode },
    /// Stop the scrub: [`Scrub`].
    ScrubStop {},
    /// Limit the rate at which scrubs read each member.
    ScrubLimit { bytes_per_second: Option<u64> },
    /// Report the state of the last scrub: [`ScrubReport`].
    ScrubStatus {},
    /// Record clients' reads and writes from now on: [`Recording`]. An earlier recording ends.
    RecordStart {},
    /// Take what was recorded since the last time, and end the recording if `end` is set: [`Recorded`].
    RecordTake {
        recording: u64,
        #[serde(default)]
        end: bool,
    },
}

impl Request {
    /// Whether a server that is being stopped does it: it only tells something, or is about the stop.
    pub(crate) fn is_for_the_stopping(&self) -> bool {
        matches!(
            self,
            Self::Status {} | Self::Metrics {} | Self::ScrubStatus {} | Self::RecordTake { .. } | Self::Stop { .. }
        )
    }
}

/// How a scrub treats mismatches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubMode {
    /// Reports them only.
    Check,
    /// Repairs content that is certainly wrong.
    Repair,
    /// Also repairs data that two parity units contradict.
    RepairSuspects,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Response<T> {
    /// Success, with its result.
    Result(T),
    /// Failure: the reason, and what to do about it.
    Error(String),
}

/// The result of a successful request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Answer {
    Status(Box<Status>),
    Metrics(Metrics),
    Set { key: String, value: String },
    Scrub(Scrub),
    ScrubReport(ScrubReport),
    Added(Added),
    Replaced(Replaced),
    LogAdded(LogAdded),
    Grown(Grown),
    Stopped(Stopped),
    HandedOver(HandedOver),
    Recording(Recording),
    Recorded(Recorded),
    Done {},
}

/// Counters and latencies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// The page that `--metrics` serves.
    pub text: String,
}

/// The state of a running array. Counts start when the server starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub name: String,
    pub uuid: Uuid,
    pub level: String,
    pub layout: String,
    pub size_bytes: u64,
    pub chunk_bytes: u64,
    pub uri: String,
    /// Where clients connect: paths and addresses.
    #[serde(default)]
    pub endpoints: Vec<String>,
    /// The address that serves metrics.
    #[serde(default)]
    pub metrics: Option<String>,
    /// The user that the server runs as.
    #[serde(default)]
    pub user: String,
    /// What the kernel refuses to the server.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// The server's configuration file.
    #[serde(default)]
    pub config: Option<String>,
    /// The array's name in it, if it has several.
    #[serde(default)]
    pub config_array: Option<String>,
    pub read_only: bool,
    pub connection_threads: u8,
    pub uptime_ms: u64,
    /// NBD connections.
    pub clients: usize,
    /// How many there may be.
    #[serde(default)]
    pub clients_max: usize,
    /// How many were closed at once.
    #[serde(default)]
    pub clients_refused: u64,
    pub health: Health,
    pub requests: Traffic,
    pub members: Vec<Member>,
    /// Empty if the members keep the log.
    #[serde(default)]
    pub log_devices: Vec<LogDevice>,
    /// In the order in which they are used.
    pub spares: Vec<Spare>,
    /// Failure domains whose loss the array does not survive.
    #[serde(default)]
    pub crowded_domains: Vec<Crowded>,
    #[serde(default)]
    pub limits: Limits,
    /// `writeback`, `writethrough` or `none`.
    pub cache_mode: String,
    /// Writes go past the cache for now, as it does not pay.
    #[serde(default)]
    pub cache_bypassed: bool,
    /// Data in memory that is still to be written out.
    pub cache: Option<Fill>,
    /// The log of the member whose log is fullest.
    pub log: Option<Fill>,
    /// Background work that has not ended yet.
    pub sweeps: Vec<Sweep>,
    /// The rebuild among them.
    pub rebuild: Option<Rebuild>,
    /// The copy.
    pub replace: Option<Replace>,
    /// The reshape.
    pub reshape: Option<Reshape>,
    /// The last scrub.
    pub scrub: Option<Scrub>,
    /// When the last complete scrub finished, in seconds since 1970.
    pub scrub_finished_s: Option<u64>,
    /// Set while the server stops.
    #[serde(default)]
    pub stopping: Option<Stopping>,
}

/// An added member, or a spare, which does not have a slot and UUID yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Added {
    pub slot: Option<u8>,
    pub uuid: Option<Uuid>,
}

/// What a new file or device has become in the place of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Successor {
    Member(Replaced),
    LogDevice(LogAdded),
}

/// An array that has grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grown {
    /// What it held before, and holds now.
    pub size_bytes_before: u64,
    pub size_bytes: u64,
}

/// A file or device that takes the place of a failing member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spare {
    pub path: String,
    /// Why it can't be used, if a reason is known.
    pub problem: Option<String>,
}

/// A reshape. The array's own fields say which shape it had, but for its members; these say which it is to
/// get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reshape {
    pub level: String,
    pub layout: String,
    pub chunk_bytes: u64,
    pub members: u8,
    /// How many members the shape has that it had.
    pub members_before: u8,
    /// It goes back to the shape that the array had.
    pub back: bool,
    /// A block of 512 bytes from which on content can't be moved now: it can't be read, or written where it is to be.
    pub stuck_block: Option<u64>,
}

/// Progress of a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrub {
    pub mode: ScrubMode,
    pub running: bool,
    pub done_bytes: u64,
    pub total_bytes: u64,
    pub mismatched_bytes: u64,
    pub repaired_bytes: u64,
    /// Parity that could not be checked.
    pub unchecked_bytes: u64,
    /// The part of it that needs missing members. If it is not zero, the scrub does not count as complete.
    #[serde(default)]
    pub missed_bytes: u64,
}

/// Findings of a scrub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    #[serde(flatten)]
    pub scrub: Scrub,
    pub faults: Vec<ScrubFault>,
    /// Number of faults that are not listed.
    pub unlisted: u64,
}

/// Adjacent wrong sectors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubFault {
    pub stripe: u64,
    pub certainty: Certainty,
    /// The wrong member, if known.
    pub slot: Option<u8>,
    /// The first sector, in the member's data area.
    pub member_sector: Option<u64>,
    pub sectors: u64,
    /// The array's sectors that may be wrong, as half-open ranges; empty if only parity is wrong.
    pub blocks: Vec<[u64; 2]>,
    pub repaired: bool,
}

/// How certain it is which member is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Certainty {
    Certain,
    Suspected,
    Unknown,
}

/// Whether the data is safe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    pub state: HealthState,
    /// How many more members may fail, in any combination.
    pub survives: usize,
    /// The same for content that no member has in its list of bad blocks.
    #[serde(default)]
    pub survives_elsewhere: usize,
    /// Slots without a member.
    pub missing: Vec<u8>,
    /// Slots with an incomplete member.
    pub rebuilding: Vec<u8>,
    /// Members that need attention, for each reason, worst reason first.
    pub troubles: Vec<Ailing>,
    /// Rebuilds and copies that can't continue.
    pub held_up: Vec<HeldUp>,
    /// Clients' data that can't be written out.
    #[serde(default)]
    pub unwritten: Option<Unwritten>,
    /// Content that no member has.
    #[serde(default)]
    pub lost: Option<LostContent>,
    /// Members with bad blocks.
    #[serde(default)]
    pub lacking: Vec<Lacking>,
    /// Members may not agree where nobody has written, until a scrub that repairs is complete.
    #[serde(default)]
    pub scrub_owed: bool,
    /// Log devices that failed, or were missing.
    #[serde(default)]
    pub log_devices_failed: Vec<NamedLog>,
    /// Log devices whose files were deleted, and which the array can't do without.
    #[serde(default)]
    pub log_devices_deleted: Vec<NamedLog>,
    /// Log devices that do not answer, so that writes wait.
    #[serde(default)]
    pub log_devices_stalled: Vec<NamedLog>,
    /// How many log devices work; `None` if the members keep the log.
    #[serde(default)]
    pub log_devices_left: Option<usize>,
    /// The array is served read-only, to save what is left of it.
    #[serde(default)]
    pub salvage: Option<Salvage>,
}

/// Content of the array that no member has, so that reads of it fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostContent {
    /// Total size.
    pub bytes: u64,
    /// Number of ranges.
    pub ranges: u64,
    /// The first of them: the array's sectors, half-open.
    pub blocks: Vec<[u64; 2]>,
}

/// A member that lacks content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lacking {
    pub slot: u8,
    pub path: Option<String>,
    /// Number of its bad blocks.
    pub blocks: u64,
}

/// A member's bad blocks, of 4 KiB each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadBlocks {
    /// All of them.
    pub blocks: u64,
    /// Those with sectors whose content could not be computed.
    pub absent: u64,
    /// Those with sectors that the medium did not give.
    pub unread: u64,
}

/// The remains of an array that is served as a last resort.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Salvage {
    /// Members that are out of date but read anyway.
    pub stale: Vec<OutOfDate>,
    /// Number and total size of the array's ranges that may read old or wrong.
    pub doubtful_ranges: u64,
    pub doubtful_bytes: u64,
    /// The first of these ranges: the array's sectors, half-open.
    pub doubtful: Vec<[u64; 2]>,
    /// Size of the unreadable part.
    pub unreadable_bytes: u64,
    /// The array's size.
    pub size_bytes: u64,
}

/// A member that is read although the array went on without it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutOfDate {
    pub slot: u8,
    pub path: Option<String>,
    /// The last epoch that the member knows of, and the array's.
    pub epoch: u64,
    pub newest_epoch: u64,
}

/// A member that needs attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ailing {
    pub slot: u8,
    pub trouble: Trouble,
    pub path: Option<String>,
    /// Age of its oldest operation that somebody waits for, if that is the trouble and there are deadlines.
    pub waits_ms: Option<u64>,
}

/// Why a member needs attention, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trouble {
    /// It is an export that another server has taken: this one does nothing on any member any more.
    Taken,
    /// The array does not survive its failure.
    Failed,
    /// Its file was deleted, and it stays in use until the server ends.
    Deleted,
    /// The connection to it is broken, and the array can't do without it.
    CutOff,
    /// It lost content that the others can't make up for, or it has many errors and the array can't do without it.
    Failing,
    /// It is out of date but read anyway.
    Stale,
    /// Writes wait for room on its file system.
    NoRoom,
    /// It does not answer, and somebody waits for it.
    Stalled,
    /// It does not answer in time, so the others are read instead.
    Slow,
    /// It keeps its deadlines but takes many times as long as the others.
    Lagging,
    /// Its disk reports that it is failing (SMART).
    Smart,
}

/// A rebuild or a copy that can't continue, because a list of bad blocks is full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldUp {
    pub work: Work,
    /// The members being rebuilt or copied.
    pub slots: Vec<u8>,
    /// The parity stripe that blocks it.
    pub stripe: u64,
    /// The unreadable places in it.
    pub unreadable: Vec<Unreadable>,
    /// Number of sectors at each place.
    pub sectors: u64,
    /// The array's sectors that are lost, as half-open ranges.
    pub blocks: Vec<[u64; 2]>,
    /// The array's sectors in the stripe. Writing all of them at once makes it good.
    pub stripe_blocks: [u64; 2],
}

/// Data in memory that could not be written out at the last attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unwritten {
    /// Total size.
    pub bytes: u64,
    /// The first of it: the array's sectors, as half-open ranges.
    pub blocks: Vec<[u64; 2]>,
    /// The array's sectors in the affected parity stripes. Writing all of them requires no reads.
    pub stripe_blocks: Vec<[u64; 2]>,
    /// Members that block it because they can't be read.
    pub unreadable: Vec<Named>,
    /// Members that can't be written.
    pub unwritable: Vec<Named>,
    /// Whether flushes fail for it; otherwise the log keeps it while that has room.
    pub flushes_fail: bool,
    /// Members whose copies take their places only after that.
    pub replacing: Vec<Named>,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    pub slot: u8,
    pub path: Option<String>,
}

/// An unreadable place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreadable {
    pub slot: u8,
    pub path: Option<String>,
    /// Sector in the member's data area.
    pub member_sector: u64,
}

/// The array's overall state: its worst condition. Ordered from best to worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HealthState {
    /// Every member is present, and has all of its content.
    #[default]
    Whole,
    /// Members are missing, lack content or may not agree, but nothing is lost.
    Degraded,
    /// Clients wait for a member that does not answer, or for room.
    Stalled,
    /// Content is unavailable, lost, or about to be lost.
    Failing,
    /// The rest of the array is read: content is unavailable, old or wrong because members are gone or out of date.
    Salvage,
    /// More members failed than the level survives.
    Frozen,
}

/// Clients' requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    pub reads: u64,
    pub read_bytes: u64,
    /// Writes of data or zeros, and trims.
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
}

/// A slot and its member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub slot: u8,
    pub uuid: Uuid,
    pub path: Option<String>,
    pub state: MemberState,
    /// It is on a network, its connection broke, and it is wanted back.
    #[serde(default)]
    pub away: Option<Away>,
    #[serde(default)]
    pub bad_blocks: BadBlocks,
    /// Why it needs attention, worst reason first.
    pub troubles: Vec<Trouble>,
    /// It does not answer in time, so the others are read instead.
    #[serde(default)]
    pub slow: bool,
    /// Operations that failed.
    pub errors: u64,
    /// Operations that were abandoned because they were not done in time.
    #[serde(default)]
    pub overdue: u64,
    /// Reads of a member on a network that took unusually long, and were computed from the others.
    #[serde(default)]
    pub hedged: u64,
    /// Blocks whose content was not what was written.
    pub mismatches: u64,
    /// Pieces that were reconstructed from the others and written back.
    pub repaired: u64,
    pub unrepairable: u64,
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub log_bytes: u64,
    pub flushes: u64,
    pub read_latency: Latency,
    pub write_latency: Latency,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    /// It is read and written.
    Active,
    /// It is neither read nor written.
    Missing,
    /// It is written, and read where it is rebuilt already.
    Rebuilding,
}

/// Use of a bounded resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fill {
    pub used_bytes: u64,
    pub limit_bytes: u64,
}

impl Status {
    /// How far some work is, if it is under way.
    #[must_use]
    pub fn sweep(&self, work: Work) -> Option<&Sweep> {
        self.sweeps.iter().find(|sweep| sweep.work == work)
    }
}

impl LostContent {
    /// Sums up ascending ranges of the array, and lists the first `most` of them. `None` if nothing is lost.
    #[must_use]
    pub fn of(ranges: &[Range<Lba>], most: usize) -> Option<Self> {
        let sectors: u64 = ranges.iter().map(|range| range.end.0 - range.start.0).sum();
        (sectors > 0).then(|| Self {
            bytes: Sectors(sectors).bytes().0,
            ranges: ranges.len() as u64,
            blocks: ranges.iter().take(most).map(|range| [range.start.0, range.end.0]).collect(),
        })
    }
}

impl BadBlocks {
    /// Counts a list's blocks.
    #[must_use]
    pub fn of(list: &badblocks::BadBlocks) -> Self {
        let [absent, unread] = [Lack::Absent, Lack::Unread].map(|lack| list.count(lack) as u64);
        Self { blocks: list.len() as u64, absent, unread }
    }
}

impl Request {
    /// Parses a line: one object, and nothing after it.
    pub(crate) fn parse(line: &[u8]) -> serde_json::Result<Self> {
        // Without this step, a list would be accepted, too.
        let object: serde_json::Map<String, Value> = serde_json::from_slice(line)?;
        Self::deserialize(Value::Object(object))
    }
}

impl HealthState {
    pub(crate) const ALL: [Self; 6] =
        [Self::Whole, Self::Degraded, Self::Stalled, Self::Failing, Self::Salvage, Self::Frozen];

    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Degraded => "degraded",
            Self::Stalled => "stalled",
            Self::Failing => "failing",
            Self::Salvage => "salvage",
            Self::Frozen => "frozen",
        }
    }
}

impl Trouble {
    pub(crate) const ALL: [Self; 11] = [
        Self::Taken,
        Self::Failed,
        Self::Deleted,
        Self::CutOff,
        Self::Failing,
        Self::Stale,
        Self::NoRoom,
        Self::Stalled,
        Self::Slow,
        Self::Lagging,
        Self::Smart,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Failed => "failed",
            Self::Deleted => "deleted",
            Self::CutOff => "cut-off",
            Self::Failing => "failing",
            Self::Stale => "stale",
            Self::NoRoom => "no-room",
            Self::Stalled => "stalled",
            Self::Slow => "slow",
            Self::Lagging => "lagging",
            Self::Smart => "smart",
        }
    }

    /// Whether clients wait because of it.
    pub(crate) fn is_wait(self) -> bool {
        matches!(self, Self::NoRoom | Self::Stalled)
    }
}

impl Traffic {
    /// The sum of two threads' traffic.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            read_bytes: self.read_bytes.saturating_add(other.read_bytes),
            writes: self.writes + other.writes,
            written_bytes: self.written_bytes.saturating_add(other.written_bytes),
            flushes: self.flushes + other.flushes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Result<Request, String> {
        Request::parse(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn requests_are_these_bytes() {
        assert_eq!(request(r#"{"command":"status"}"#), Ok(Request::Status {}));
        assert_eq!(request(r#"{"command":"stop"}"#), Ok(Request::Stop { force: false }));
        assert_eq!(request(r#"{"command":"stop","force":true}"#), Ok(Request::Stop { force: true }));
        let start = Request::ScrubStart { mode: ScrubMode::RepairSuspects };
        assert_eq!(request(r#"{"command":"scrub-start","mode":"repair-suspects"}"#), Ok(start));
        let set = Request::Set { key: "cache".into(), value: "writethrough".into() };
        assert_eq!(request(r#"{"command":"set","key":"cache","value":"writethrough"}"#), Ok(set.clone()));
        assert_eq!(serde_json::to_string(&set).unwrap(), r#"{"command":"set","key":"cache","value":"writethrough"}"#);
    }

    #[test]
    fn what_is_not_known_is_an_error_that_names_it() {
        for (text, named) in [
            (r#"{"command":"frobnicate"}"#, "frobnicate"),
            (r#"{"command":"status","loud":true}"#, "loud"),
            (r#"{"command":"set","key":"cache"}"#, "value"),
            (r#"{"status":true}"#, "command"),
            (r#"["stop"]"#, "sequence"),
            (r#"{"command":"stop"}{}"#, "trailing"),
        ] {
            let error = request(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn responses_are_these_bytes() {
        let result = Response::Result(Answer::Set { key: "log".into(), value: "info".into() });
        assert_eq!(serde_json::to_string(&result).unwrap(), r#"{"result":{"key":"log","value":"info"}}"#);
        assert_eq!(serde_json::to_string(&Response::Result(Answer::Done {})).unwrap(), r#"{"result":{}}"#);
        let error = Response::<Answer>::Error("no".into());
        assert_eq!(serde_json::to_string(&error).unwrap(), r#"{"error":"no"}"#);
    }
}
