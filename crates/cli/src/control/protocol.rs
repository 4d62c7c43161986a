//! What goes over the control socket: a JSON object a line, a request one way and its response the other.
//! docs/control-protocol.md describes it.
//!
//! Fields are added to responses, never taken away nor given another meaning; requests with fields or commands that the
//! server does not know are errors.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uraid_io::histogram::Histogram;
use uuid::Uuid;

/// The longest line, its end counted.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Request {
    /// How the array is: [`Status`].
    Status {},
    /// What is counted and timed: [`Metrics`].
    Metrics {},
    /// Stop as SIGTERM does; answered when the members are marked clean. Refused where that would lose content, unless
    /// `force` is set.
    Stop {
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Change a setting until the server ends.
    Set { key: String, value: String },
    /// Give a member up, which is named by its slot, path or UUID; answered when that is on record.
    Fail { member: String },
    /// Let go of a member that the array does without, or of a spare.
    Remove { member: String },
    /// Take in a member that returns, or a new one, and rebuild it; a spare where none is missing: [`Added`].
    Add {
        path: PathBuf,
        #[serde(default)]
        force: bool,
        /// Of a file that does not exist yet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size_bytes: Option<u64>,
    },
    /// Copy a member, which is named by its slot, path or UUID, to a new one, which takes its place then; one that is
    /// missing is rebuilt there: [`Replaced`].
    Replace {
        member: String,
        path: PathBuf,
        #[serde(default)]
        force: bool,
        /// Of a file that does not exist yet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size_bytes: Option<u64>,
    },
    /// Rebuild or copy each member no faster than this.
    RebuildLimit { bytes_per_second: Option<u64> },
    /// Compare what the members hold: [`Scrub`].
    ScrubStart { mode: ScrubMode },
    /// Go no further with it: [`Scrub`].
    ScrubStop {},
    /// Have scrubs read each member no faster than this.
    ScrubLimit { bytes_per_second: Option<u64> },
    /// How the last one is: [`ScrubReport`].
    ScrubStatus {},
}

/// What a scrub does about what it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ScrubMode {
    /// Nothing.
    Check,
    /// Repairs what is certainly wrong.
    Repair,
    /// Repairs data that two parity units speak against, too.
    RepairSuspects,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Response<T> {
    /// Done, and what there is to know.
    Result(T),
    /// Not done, why, and what to do.
    Error(String),
}

/// What there is to know.
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
    Stopped(Stopped),
    Done {},
}

/// What is counted and timed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Metrics {
    /// The page that `--metrics` hands out.
    pub(crate) text: String,
}

/// The array was stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stopped {
    /// Members that were given up meanwhile.
    pub(crate) lost: Vec<Lost>,
}

/// A member that the array does without now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Lost {
    pub(crate) slot: u8,
    pub(crate) path: Option<String>,
}

/// How an array is that is being served. Counts are since the server was started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) version: String,
    pub(crate) name: String,
    pub(crate) uuid: Uuid,
    pub(crate) level: String,
    pub(crate) layout: String,
    pub(crate) size_bytes: u64,
    pub(crate) chunk_bytes: u64,
    pub(crate) uri: String,
    /// The file that the server was configured with.
    #[serde(default)]
    pub(crate) config: Option<String>,
    pub(crate) read_only: bool,
    pub(crate) reactors: u8,
    pub(crate) uptime_ms: u64,
    /// NBD connections.
    pub(crate) clients: usize,
    pub(crate) health: Health,
    pub(crate) requests: Traffic,
    pub(crate) members: Vec<Member>,
    /// In the order in which they are taken.
    pub(crate) spares: Vec<Spare>,
    #[serde(default)]
    pub(crate) limits: Limits,
    /// `writeback`, `writethrough` or `none`.
    pub(crate) cache_mode: String,
    /// What is in memory and still to be written.
    pub(crate) cache: Option<Fill>,
    /// The fullest member's log.
    pub(crate) log: Option<Fill>,
    /// What is being rebuilt.
    pub(crate) rebuild: Option<Rebuild>,
    /// What is being copied.
    pub(crate) replace: Option<Replace>,
    /// The last scrub.
    pub(crate) scrub: Option<Scrub>,
    /// When the last one was finished that compared everything, in seconds since 1970.
    pub(crate) scrub_finished_s: Option<u64>,
}

/// How fast what goes on beside clients' requests may be, on each member; none: as fast as it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limits {
    pub(crate) rebuild_bytes_per_second: Option<u64>,
    pub(crate) scrub_bytes_per_second: Option<u64>,
}

/// A member that was taken in, or a spare, which has neither slot nor UUID yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Added {
    pub(crate) slot: Option<u8>,
    pub(crate) uuid: Option<Uuid>,
}

/// A file or device that takes the place of a member that fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spare {
    pub(crate) path: String,
    /// Why it can't be taken, as far as is known.
    pub(crate) problem: Option<String>,
}

/// How far rebuilding is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rebuild {
    pub(crate) members: Vec<u8>,
    pub(crate) done_bytes: u64,
    pub(crate) total_bytes: u64,
    /// A parity stripe that can't be computed, as the other members can't be read there.
    pub(crate) stuck_stripe: Option<u64>,
}

/// A member that was taken in beside another one, or in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Replaced {
    pub(crate) slot: u8,
    pub(crate) uuid: Uuid,
    /// The slot had no member: the new one is rebuilt.
    pub(crate) rebuilding: bool,
}

/// How far copying a member is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Replace {
    /// Whose place is taken.
    pub(crate) slot: u8,
    /// By whom.
    pub(crate) uuid: Uuid,
    pub(crate) path: Option<String>,
    pub(crate) done_bytes: u64,
    pub(crate) total_bytes: u64,
    /// A parity stripe of which nobody can read what the member holds.
    pub(crate) stuck_stripe: Option<u64>,
}

/// How far a scrub is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scrub {
    pub(crate) mode: ScrubMode,
    pub(crate) running: bool,
    pub(crate) done_bytes: u64,
    pub(crate) total_bytes: u64,
    pub(crate) mismatched_bytes: u64,
    pub(crate) repaired_bytes: u64,
    /// Parity that could not be checked.
    pub(crate) unchecked_bytes: u64,
    /// What of that needs members that were missing: with any of it the scrub does not count as complete.
    #[serde(default)]
    pub(crate) missed_bytes: u64,
}

/// What a scrub has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ScrubReport {
    #[serde(flatten)]
    pub(crate) scrub: Scrub,
    pub(crate) faults: Vec<ScrubFault>,
    /// Faults that are not listed.
    pub(crate) unlisted: u64,
}

/// Adjacent sectors that are wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ScrubFault {
    pub(crate) stripe: u64,
    pub(crate) certainty: Certainty,
    /// Who is wrong, where that is known.
    pub(crate) slot: Option<u8>,
    /// From where on, in the member's data area.
    pub(crate) member_sector: Option<u64>,
    pub(crate) sectors: u64,
    /// The array's sectors that may be wrong, each from and up to; none where it is parity.
    pub(crate) blocks: Vec<[u64; 2]>,
    pub(crate) repaired: bool,
}

/// Whether it is known who is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Certainty {
    Certain,
    Suspected,
    Unknown,
}

/// Whether data is safe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Health {
    pub(crate) state: HealthState,
    /// How many more members may fail, whichever they are.
    pub(crate) survives: usize,
    /// Slots without a member.
    pub(crate) missing: Vec<u8>,
    /// Slots whose member does not have everything yet.
    pub(crate) rebuilding: Vec<u8>,
    /// Members that need attention, for each reason; the worst reason first.
    pub(crate) troubles: Vec<Ailing>,
    /// Rebuilds and copies that can't go on.
    pub(crate) held_up: Vec<HeldUp>,
    /// What clients have written and can't be written out: flushes fail.
    #[serde(default)]
    pub(crate) unwritten: Option<Unwritten>,
    /// The array is only read for what is left of it.
    #[serde(default)]
    pub(crate) salvage: Option<Salvage>,
}

/// What is left of an array that is served as the last resort.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Salvage {
    /// Members that are out of date, and read all the same.
    pub(crate) stale: Vec<OutOfDate>,
    /// How many ranges of the array may be read old or wrong, and how much that is.
    pub(crate) doubtful_ranges: u64,
    pub(crate) doubtful_bytes: u64,
    /// The first of them, the array's sectors from and up to.
    pub(crate) doubtful: Vec<[u64; 2]>,
    /// What can't be read at all.
    pub(crate) unreadable_bytes: u64,
    /// The array's size.
    pub(crate) size_bytes: u64,
}

/// A member that is read although the array went on without it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OutOfDate {
    pub(crate) slot: u8,
    pub(crate) path: Option<String>,
    /// The last round of changes that it knows of, and the array's.
    pub(crate) epoch: u64,
    pub(crate) newest_epoch: u64,
}

/// A member that needs attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ailing {
    pub(crate) slot: u8,
    pub(crate) trouble: Trouble,
    pub(crate) path: Option<String>,
    /// How long it has had the oldest operation that somebody waits for, where that is the trouble and there are
    /// deadlines.
    pub(crate) waits_ms: Option<u64>,
}

/// Why, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Trouble {
    /// Its failure was more than the level survives.
    Failed,
    /// Its file was deleted, and it is used until the server ends.
    Deleted,
    /// It failed what nobody could make good, or makes many errors and can't be spared.
    Failing,
    /// It is out of date, and read all the same.
    Stale,
    /// Writes wait for room on its file system.
    NoRoom,
    /// It does not answer, and somebody waits for it.
    Stalled,
    /// It does not answer in time: the others are read instead.
    Slow,
    /// It keeps its deadlines, and takes many times as long as the others.
    Lagging,
    /// Its disk says of itself that it fails (SMART).
    Smart,
}

/// A rebuild or a copy that can't go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldUp {
    pub(crate) work: Work,
    /// Who is rebuilt or copied.
    pub(crate) slots: Vec<u8>,
    /// The parity stripe that can't be done.
    pub(crate) stripe: u64,
    /// What can't be read for it.
    pub(crate) unreadable: Vec<Unreadable>,
    /// How many sectors of each.
    pub(crate) sectors: u64,
    /// The array's sectors that nobody has, each from and up to.
    pub(crate) blocks: Vec<[u64; 2]>,
    /// The array's sectors in the stripe: writing all of them at once mends it.
    pub(crate) stripe_blocks: [u64; 2],
}

/// Content in memory that could not be written out when that was tried last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unwritten {
    /// All of it.
    pub(crate) bytes: u64,
    /// The first of it: the array's sectors, each from and up to.
    pub(crate) blocks: Vec<[u64; 2]>,
    /// The array's sectors in the parity stripes of those: writing all of them reads nothing.
    pub(crate) stripe_blocks: Vec<[u64; 2]>,
    /// Who can't be read for it.
    pub(crate) unreadable: Vec<Named>,
    /// Who can't be written.
    pub(crate) unwritable: Vec<Named>,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Named {
    pub(crate) slot: u8,
    pub(crate) path: Option<String>,
}

/// What is held up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Work {
    Rebuild,
    Replace,
}

/// A place that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unreadable {
    pub(crate) slot: u8,
    pub(crate) path: Option<String>,
    /// In the member's data area.
    pub(crate) member_sector: u64,
}

/// The worst that is true, from the best on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum HealthState {
    /// Every member is there.
    Whole,
    /// Members are missing, and nothing is lost.
    Degraded,
    /// Clients wait for a member that does not answer, or for room.
    Stalled,
    /// Content can't be had, or is about to be lost.
    Failing,
    /// What is left is read: content can't be had, or may be old or wrong, as members are gone or out of date.
    Salvage,
    /// More members failed than the level survives.
    Frozen,
}

/// What clients asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Traffic {
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    /// Writes of data or zeros, and trims.
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) flushes: u64,
}

/// A slot, and who is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) slot: u8,
    pub(crate) uuid: Uuid,
    pub(crate) path: Option<String>,
    pub(crate) state: MemberState,
    /// What it needs attention for, the worst first.
    pub(crate) troubles: Vec<Trouble>,
    /// It does not answer in time: the others are read instead.
    #[serde(default)]
    pub(crate) slow: bool,
    /// Operations that failed.
    pub(crate) errors: u64,
    /// Operations that were not done in time and were given up.
    #[serde(default)]
    pub(crate) overdue: u64,
    /// Blocks that were not what was written there.
    pub(crate) mismatches: u64,
    /// Pieces that were computed from the others and written back.
    pub(crate) repaired: u64,
    pub(crate) unrepairable: u64,
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) log_bytes: u64,
    pub(crate) flushes: u64,
    pub(crate) read_latency: Latency,
    pub(crate) write_latency: Latency,
}

/// How long a member's operations took, in microseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// None without operations.
    pub(crate) mean_us: Option<u64>,
    /// What 99 of 100 took at most, as far as buckets tell.
    pub(crate) p99_us: Option<u64>,
    /// All together.
    pub(crate) sum_us: u64,
    /// How many took so long: bounds are powers of two from 16 us on; what is beyond the last one is last.
    pub(crate) buckets: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MemberState {
    /// Read and written.
    Active,
    /// Neither.
    Missing,
    /// Written, and read where it is rebuilt already.
    Rebuilding,
}

/// How much of something bounded is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fill {
    pub(crate) used_bytes: u64,
    pub(crate) limit_bytes: u64,
}

impl Latency {
    /// What a histogram says.
    pub(crate) fn of(histogram: &Histogram) -> Self {
        let us = |took: Duration| u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        Self {
            mean_us: histogram.mean().map(us),
            p99_us: histogram.quantile(990).map(us),
            sum_us: us(histogram.sum()),
            buckets: histogram.buckets().to_vec(),
        }
    }

    /// The histogram, where a server of this version has said it.
    pub(crate) fn histogram(&self) -> Option<Histogram> {
        let buckets = self.buckets.as_slice().try_into().ok()?;
        Some(Histogram::of_buckets(buckets, Duration::from_micros(self.sum_us)))
    }
}

impl Request {
    /// What a line asks for: an object, and nothing after it.
    pub(crate) fn parse(line: &[u8]) -> serde_json::Result<Self> {
        // Otherwise a list would do, too.
        let object: serde_json::Map<String, Value> = serde_json::from_slice(line)?;
        Self::deserialize(Value::Object(object))
    }
}

impl HealthState {
    pub(crate) const ALL: [Self; 6] =
        [Self::Whole, Self::Degraded, Self::Stalled, Self::Failing, Self::Salvage, Self::Frozen];

    pub(crate) fn name(self) -> &'static str {
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
    pub(crate) const ALL: [Self; 9] = [
        Self::Failed,
        Self::Deleted,
        Self::Failing,
        Self::Stale,
        Self::NoRoom,
        Self::Stalled,
        Self::Slow,
        Self::Lagging,
        Self::Smart,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Deleted => "deleted",
            Self::Failing => "failing",
            Self::Stale => "stale",
            Self::NoRoom => "no-room",
            Self::Stalled => "stalled",
            Self::Slow => "slow",
            Self::Lagging => "lagging",
            Self::Smart => "smart",
        }
    }

    /// Whether somebody waits.
    pub(crate) fn is_wait(self) -> bool {
        matches!(self, Self::NoRoom | Self::Stalled)
    }
}

impl Traffic {
    /// The sum of two reactors'.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            read_bytes: self.read_bytes + other.read_bytes,
            writes: self.writes + other.writes,
            written_bytes: self.written_bytes + other.written_bytes,
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
