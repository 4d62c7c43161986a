//! Why an array can't be opened or recovered, in words that say what to do about it.

use std::path::PathBuf;

use thiserror::Error;
use uraid_layout::{Bytes, MemberIndex, MemberSet};
use uuid::Uuid;

use super::judge::{Refusal, SetAside};
use super::reshape::Unserved;
use super::stale::StaleError;
use crate::Error;
use crate::disk::DiskError;
use crate::engine::EngineError;
use crate::format::badblocks::Full;
use crate::format::log::record::LogSequence;
use crate::format::log::replay::ReplayError;
use crate::member::MemberError;

/// Why an array can't be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// A member can't be used.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// A member says nothing that can be used, or the members can't be reached.
    #[error(transparent)]
    Io(#[from] Error),
    /// The members contradict each other.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A log device of another array.
    #[error(
        "{path}: is a log device of array {found}, and the members are of array {array}; name the log devices of this \
         array",
        path = path.display()
    )]
    ForeignLog {
        /// The device.
        path: PathBuf,
        /// Whose it is.
        found: Uuid,
        /// The members' array.
        array: Uuid,
    },
    /// The same log device twice, or a copy of it.
    #[error(
        "{first} and {second} both claim to be log device {device}: one is a copy; name only the one in use",
        first = first.display(), second = second.display()
    )]
    LogTwice {
        /// One of them.
        first: PathBuf,
        /// The other.
        second: PathBuf,
        /// Who they say they are.
        device: Uuid,
    },
    /// Some log devices are missing.
    #[error(
        "{} missing; name the array's log devices, too, or start without these with --degraded{}",
        log_devices(missing),
        asides(set_aside)
    )]
    LogsMissing {
        /// Who is missing.
        missing: Vec<Uuid>,
        /// What was named and does not count.
        set_aside: Vec<(PathBuf, SetAside)>,
    },
    /// No log device is there.
    #[error("{} missing, and the array has no other: {}{}", log_devices(missing), without_logs(*is_clean),
        asides(set_aside))]
    NoLogs {
        /// Who is missing.
        missing: Vec<Uuid>,
        /// Whether the array was stopped cleanly.
        is_clean: bool,
        /// What was named and does not count.
        set_aside: Vec<(PathBuf, SetAside)>,
    },
    /// A member is smaller than it was.
    #[error(
        "{path}: was truncated: it had {expected} bytes as a member and has {size} now. Start without it, with \
         --degraded",
        path = path.display()
    )]
    Truncated {
        /// The member.
        path: PathBuf,
        /// Its size.
        size: Bytes,
        /// What its superblock says.
        expected: Bytes,
    },
    /// Too many members are missing.
    #[error(
        "too few members: {} missing or not rebuilt, and {level} survives {tolerance} missing{}. To copy off what is \
         still readable, use --read-only --degraded --force; --accept-stale SLOT also reads a member that is out of \
         date",
        describe(missing),
        asides(set_aside)
    )]
    TooFew {
        /// Who is missing.
        missing: Vec<(MemberIndex, Uuid)>,
        /// The level's name.
        level: &'static str,
        /// How many may be missing, whichever they are.
        tolerance: usize,
        /// Members that were named and do not count.
        set_aside: Vec<(PathBuf, SetAside)>,
    },
    /// Too many members of an array that is being reshaped are missing.
    #[error(
        "too few members: {} missing or not rebuilt, and this array is being reshaped, so that its content is on the \
         members that it had and on those that it is to have: name all of them{}",
        describe(missing),
        asides(set_aside)
    )]
    TooFewBetween {
        /// Who is missing.
        missing: Vec<(MemberIndex, Uuid)>,
        /// Members that were named and do not count.
        set_aside: Vec<(PathBuf, SetAside)>,
    },
    /// Members are missing that were there when the array was last used.
    #[error(
        "{} missing; name all members, or start without these with --degraded{}",
        describe(missing),
        asides(set_aside)
    )]
    Degraded {
        /// Who is missing.
        missing: Vec<(MemberIndex, Uuid)>,
        /// Members that were named and do not count.
        set_aside: Vec<(PathBuf, SetAside)>,
    },
    /// The array was not stopped cleanly and is not whole.
    #[error(
        "the array was not stopped cleanly, and {}{}",
        unsound(missing, rebuilding, *is_mirrored),
        asides(set_aside)
    )]
    DirtyDegraded {
        /// Who is missing.
        missing: Vec<(MemberIndex, Uuid)>,
        /// Who is there, and not rebuilt yet.
        rebuilding: Vec<(MemberIndex, Uuid)>,
        /// Whether its members hold copies, and not parity.
        is_mirrored: bool,
        /// Members that were named and do not count.
        set_aside: Vec<(PathBuf, SetAside)>,
    },
    /// The array's creation has not ended, and would have to be ended by writing.
    #[error(
        "the creation of this array was interrupted, so it holds nothing yet: serve it for writing, which finishes the \
         creation, or create it again with --force"
    )]
    Initialising,
    /// The array's creation has not ended, and members are missing.
    #[error(
        "the creation of this array was interrupted, and {} missing: name all of its members, which finishes the \
         creation, or create it again with --force{}",
        describe(missing),
        asides(set_aside)
    )]
    InitialisingDegraded {
        /// Who is missing.
        missing: Vec<(MemberIndex, Uuid)>,
        /// Members that were named and do not count.
        set_aside: Vec<(PathBuf, SetAside)>,
    },
    /// It is between two shapes.
    #[error(
        "this array is being reshaped, and {}go on with `uraid reshape MEMBERS`, or back with `uraid reshape --abort \
         MEMBERS`",
        meanwhile(*unserved)
    )]
    Reshaping {
        /// Why it can't be served for writing; none if it can.
        unserved: Option<Unserved>,
    },
    /// A member's sectors are larger than the array's.
    #[error(
        "{path}: has sectors of {found} bytes, but the array writes sectors of {sector_size} bytes; move the member to \
         a device with sectors of {sector_size} bytes, or start without it, with --degraded", path = path.display()
    )]
    SectorSize {
        /// The member.
        path: PathBuf,
        /// Its sectors.
        found: Bytes,
        /// The array's.
        sector_size: Bytes,
    },
    /// The members can't be brought into agreement.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A member is to be read that is out of date, and is not there as such.
    #[error(transparent)]
    Stale(#[from] StaleError),
    /// Operations on members were given up: see [`Patience::take_hung`](super::Patience::take_hung).
    #[error("a member hangs")]
    Hung,
}

impl OpenError {
    /// The members that it lacks, where that is what is wrong.
    pub fn missing(&self) -> &[(MemberIndex, Uuid)] {
        match self {
            Self::TooFew { missing, .. }
            | Self::TooFewBetween { missing, .. }
            | Self::Degraded { missing, .. }
            | Self::InitialisingDegraded { missing, .. }
            | Self::DirtyDegraded { missing, .. } => missing,
            _ => &[],
        }
    }

    /// The same, where something can't be read that was named: it may be a member that is missing.
    pub(super) fn beside(mut self, unreadable: &[(PathBuf, SetAside)]) -> Self {
        if let Self::TooFew { set_aside, .. }
        | Self::TooFewBetween { set_aside, .. }
        | Self::Degraded { set_aside, .. }
        | Self::LogsMissing { set_aside, .. }
        | Self::NoLogs { set_aside, .. }
        | Self::InitialisingDegraded { set_aside, .. }
        | Self::DirtyDegraded { set_aside, .. } = &mut self
        {
            set_aside.extend_from_slice(unreadable);
        }
        self
    }
}

/// Why an array can't be brought into agreement.
#[derive(Debug, Error)]
pub enum RecoverError {
    /// A member failed.
    #[error(transparent)]
    Io(#[from] Error),
    /// The log can't be relied on.
    #[error(transparent)]
    Log(#[from] ReplayError),
    /// No log device has what one member's log had.
    #[error(
        "no log device has record {} of member {member}'s log any more, which was committed: they are damaged. Leave \
         the member out, and start with --degraded, if the logs of the others suffice; it is rebuilt then",
        sequence.0
    )]
    LogsDamaged {
        /// The member.
        member: MemberIndex,
        /// The record.
        sequence: LogSequence,
    },
    /// The log devices fail, and there is no other.
    #[error(
        "{source}; no other log device gives what this one should, and only they have the latest writes: copy it to a \
         disk that works, with a program that skips unreadable sectors (ddrescue), and name the copy in its place"
    )]
    LogsLost {
        /// What failed.
        source: DiskError,
    },
    /// A member's log reads differently the second time.
    #[error(
        "member {member} lost record {} of its log during the start: leave it out, and start with --degraded",
        sequence.0
    )]
    Unstable {
        /// The member.
        member: MemberIndex,
        /// The record.
        sequence: LogSequence,
    },
    /// The array's creation has not ended, and a member was left out since the array was judged.
    #[error(
        "the creation of this array was interrupted, and members {missing:?} can't be used: create it again with \
         --force"
    )]
    InitialisingDegraded {
        /// Their slots.
        missing: MemberSet,
    },
    /// A member fails that the array can't do without.
    #[error(
        "{path}: {source}; {level} needs this member{}: copy it to a disk that works, with a program that skips \
         unreadable sectors (ddrescue), and start the array with the copy in its place",
        lost_already(*beside),
        path = path.display()
    )]
    Needed {
        /// The member.
        path: PathBuf,
        /// The level's name.
        level: &'static str,
        /// Who is missing, being rebuilt or failing beside it.
        beside: MemberSet,
        /// What failed.
        source: DiskError,
    },
    /// Nobody knows what a member lacks that the array can't do without.
    #[error(
        "{path}: both copies of its list of bad blocks are damaged, so nobody knows which of its sectors do not have \
         their content, and {level} needs this member{}. --force takes it to have everything: what it lacked, \
         and what is computed from that, then reads as anything, without an error",
        lost_already(*beside),
        path = path.display()
    )]
    ListLost {
        /// The member.
        path: PathBuf,
        /// The level's name.
        level: &'static str,
        /// Who is missing, being rebuilt or failing beside it.
        beside: MemberSet,
    },
    /// More can't be computed than a member's list of bad blocks has room for.
    #[error(
        "{path}: {source}. More of the array can't be computed than that: start without this member, with --degraded \
         --force; wherever writes were under way its content may then be wrong",
        path = path.display()
    )]
    BadBlocks {
        /// The member.
        path: PathBuf,
        /// That it is full.
        source: Full,
    },
    /// A window of a reshape that was saved can't be brought to its places.
    #[error("a part of the array that was being reshaped can't be brought to its place: {reason}")]
    Saved {
        /// Why.
        reason: String,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// What to do about an array all of whose log devices are missing.
fn without_logs(is_clean: bool) -> &'static str {
    if is_clean {
        "name one of its log devices, too. It was stopped cleanly, so nothing is lost with them: if they are gone for \
         good, `uraid configure --no-log-devices MEMBERS` has the members keep the log, and `uraid configure \
         --log-device PATH --log-device PATH MEMBERS` gives it others"
    } else {
        "it was not stopped cleanly, and only its log devices have the latest writes: name one of them, too. If they \
         are gone for good, `uraid serve --read-only --degraded --force MEMBERS` gives what is in place: writes are \
         missing though they were flushed, some are there in part, and what is computed for a missing member may be \
         wrong there"
    }
}

/// `log device UUID is`, `log devices UUID, UUID are`.
fn log_devices(missing: &[Uuid]) -> String {
    let names: Vec<String> = missing.iter().map(Uuid::to_string).collect();
    let (noun, verb) = if missing.len() == 1 { ("log device", "is") } else { ("log devices", "are") };
    format!("{noun} {} {verb}", names.join(", "))
}

/// What can be done with an array that is being reshaped before that is over.
fn meanwhile(unserved: Option<Unserved>) -> String {
    match unserved {
        Some(why) => format!("can't be served before that is over: {why}. Have it "),
        None => {
            "can only be served for writing meanwhile (uraid serve MEMBERS), which has it go on, too. Or ".to_owned()
        }
    }
}

/// ` beside members 1, 4, which are lost already`.
fn lost_already(lost: MemberSet) -> String {
    let slots: Vec<String> = lost.iter().map(|slot| slot.to_string()).collect();
    match slots.len() {
        0 => String::new(),
        1 => format!(" beside member {}, which is lost already", slots[0]),
        _ => format!(" beside members {}, which are lost already", slots.join(", ")),
    }
}

/// Members, and the verb: `member 1 is`, `members 1 and 3 are`.
pub(super) fn are(members: MemberSet) -> String {
    match members.len() {
        1 => format!("member {members} is"),
        _ => format!("members {members} are"),
    }
}

/// Why an array should be whole that was not stopped cleanly, and what can be done about it.
fn unsound(missing: &[(MemberIndex, Uuid)], rebuilding: &[(MemberIndex, Uuid)], is_mirrored: bool) -> String {
    let gone = (!missing.is_empty()).then(|| format!("{} missing", describe(missing)));
    let new = (!rebuilding.is_empty()).then(|| format!("{} there, but not rebuilt yet", describe(rebuilding)));
    let who: Vec<String> = gone.into_iter().chain(new).collect();
    let risk = if is_mirrored {
        "writes that were under way may be in some copies and not in others. The copies that are left count then: what \
         was read before the stop, and never flushed, may be older again"
    } else {
        "writes that were under way may have left parity that does not match, and what is computed from it would be \
         wrong there"
    };
    let way = match missing.len() {
        0 => {
            "What is to be there is with the others alone, so there is nothing to bring back: accept that with --force"
        }
        1 => "Bring the missing member back, or accept that with --force",
        _ => "Bring the missing members back, or accept that with --force",
    };
    format!("{}: {risk}. {way}", who.join(", and "))
}

/// `member 2 (UUID) is`, `members 2 (UUID), 3 (UUID) are`.
fn describe(members: &[(MemberIndex, Uuid)]) -> String {
    let names: Vec<String> = members.iter().map(|(slot, uuid)| format!("{slot} ({uuid})")).collect();
    let (noun, verb) = if members.len() == 1 { ("member", "is") } else { ("members", "are") };
    format!("{noun} {} {verb}", names.join(", "))
}

fn asides(set_aside: &[(PathBuf, SetAside)]) -> String {
    set_aside.iter().map(|(path, reason)| format!("; {} does not count: {reason}", path.display())).collect()
}
