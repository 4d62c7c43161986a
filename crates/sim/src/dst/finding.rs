//! What a run must not show.

use std::fmt;

use thiserror::Error;
use uraid_io::format::superblock::{LogIndex, LogSet, SuperblockError};
use uraid_layout::{Lba, MemberIndex, MemberSet, Sectors};
use uuid::Uuid;

use super::audit::Disagreement;
use super::model::Wrong;

/// A seed that shows something that must not be.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What was found.
    pub finding: Finding,
    /// What the run's array was.
    pub scenario: String,
    /// The last events.
    pub events: Vec<String>,
}

/// What must not be.
#[derive(Clone, Debug, Error)]
pub enum Finding {
    /// A read returned what it must not.
    #[error("a read returned wrong content: {0}")]
    WrongRead(Wrong),
    /// The engine says that something reads as zeros that does not.
    #[error("said to be zeros: {0}")]
    NotZeros(Wrong),
    /// The members hold what they must not.
    #[error("without {lost:?}: {wrong}")]
    WrongContent {
        /// Which members were left out beside the missing ones.
        lost: MemberSet,
        /// The first sector.
        wrong: Wrong,
    },
    /// Parity does not agree.
    #[error("parity does not agree: stripe {}, group {}, byte {}", .0.stripe, .0.group, .0.byte)]
    Parity(Disagreement),
    /// Content can't be computed though few enough members are missing.
    #[error("content can't be computed without {lost:?}")]
    Undecodable {
        /// The members.
        lost: MemberSet,
    },
    /// A command failed though few enough members did.
    #[error("command {token} failed though few enough members did: {error}")]
    CommandFailed {
        /// The command.
        token: u64,
        /// Its error.
        error: String,
    },
    /// A command was replied to twice, or not as it should be.
    #[error("command {token} has a second reply, or a read came without its memory")]
    RepliedTwice {
        /// The command.
        token: u64,
    },
    /// Nothing goes on.
    #[error("{commands} commands are never replied to")]
    Stuck {
        /// Commands without a reply.
        commands: usize,
    },
    /// An array that can be opened was refused.
    #[error("refused or failed: {error}")]
    Refused {
        /// Why.
        error: String,
    },
    /// An array that can't be trusted was opened.
    #[error("not stopped cleanly and opened without {missing:?}")]
    NotRefused {
        /// The missing members.
        missing: MemberSet,
    },
    /// A member still holds something else than was written there, after the array was read.
    #[error("sector {lba} can be had, and was not written back to the member that holds something else")]
    NotHealed {
        /// Where in the array.
        lba: Lba,
    },
    /// Members were written though the array was opened for reading only.
    #[error("member {member} was written, and was to be read only")]
    Written {
        /// The member.
        member: MemberIndex,
    },
    /// Recovery brought something else than what was read before it.
    #[error("sector {lba} was read before recovery, and is something else after it")]
    ReadOtherwise {
        /// Where in the array.
        lba: Lba,
    },
    /// A closed array is not clean.
    #[error("the array was closed and is not clean")]
    NotClean,
    /// A member was set aside that nothing has happened to.
    #[error("members {members:?} were set aside, and nothing has happened to them")]
    SetAside {
        /// The members.
        members: MemberSet,
    },
    /// A member that has left the array says that it belongs to it.
    #[error("member {slot} has left, and says that it is still a member")]
    Stays {
        /// Its slot.
        slot: MemberIndex,
    },
    /// A stopped array has not got what was asked for, and nothing keeps it from that.
    #[error("the array has {found} and should have {expected}")]
    Shape {
        /// What it has.
        found: String,
        /// What it should have.
        expected: String,
    },
    /// A reshape of a served array does not come to its end, and nothing keeps it from that.
    #[error("the reshape does not come to its end: {progress}")]
    NotMoved {
        /// How far it is.
        progress: String,
    },
    /// A member was accepted that is not current.
    #[error("members {members:?} were accepted, and are not current or not there")]
    Accepted {
        /// The members.
        members: MemberSet,
    },
    /// A member did not join that could have.
    #[error("a member did not join slot {slot}: {error}")]
    NotJoined {
        /// The slot.
        slot: MemberIndex,
        /// Why.
        error: String,
    },
    /// Members that nothing happens to are not rebuilt.
    #[error("members {members:?} are missing or not rebuilt, and nothing keeps them from it")]
    NotRebuilt {
        /// The members.
        members: MemberSet,
    },
    /// A member that nothing happens to is not copied.
    #[error("member {slot} is not copied, and nothing keeps it from it")]
    NotCopied {
        /// The slot.
        slot: MemberIndex,
    },
    /// Members that hang are waited for.
    #[error("members {members:?} and log devices {logs} hang, and the array waits for them though it survives without")]
    Waits {
        /// The members.
        members: MemberSet,
        /// The log devices.
        logs: LogSet,
    },
    /// A member has returned with operations of its last life in the array under way.
    #[error("member {slot} has returned while operations on it are under way that were given up")]
    Lingering {
        /// The slot.
        slot: MemberIndex,
    },
    /// A scrub finds something wrong with what nobody has corrupted.
    #[error("a scrub finds {sectors} sectors that do not agree, and nothing was corrupted")]
    Mismatch {
        /// How many.
        sectors: Sectors,
    },
    /// Members lack something though nothing has ever failed.
    #[error("members lack something though no member has failed or corrupted anything")]
    LossUnfounded,
    /// A foreign or cloned member was accepted, or one of another side.
    #[error("a foreign or cloned member was accepted, or one that went on without the others")]
    Stranger,
    /// The same of log devices, or none was needed.
    #[error("a foreign or cloned log device was accepted, or none was missed")]
    LogStranger,
    /// Other log devices were accepted than those that are active on record and there.
    #[error("not all log devices that count were accepted, or others: {accepted:?}")]
    WrongLogs {
        /// Those that were, by number.
        accepted: Vec<Option<Uuid>>,
    },
    /// Log devices are done without that nothing has happened to.
    #[error("log devices {logs} are on record as failed, and nothing has happened to them")]
    LogsGivenUp {
        /// The devices.
        logs: LogSet,
    },
    /// A log device was written that was on record as failed.
    #[error("log device {log} was written, and was on record as failed before")]
    LogWritten {
        /// The device.
        log: LogIndex,
    },
    /// A member's superblock went back to an earlier version though one copy of the newest is whole.
    #[error("member {member} has forgotten the newest version of its superblock, of which one copy is whole")]
    Forgotten {
        /// The member.
        member: MemberIndex,
    },
    /// A member's superblock is gone.
    #[error("member {member} has no superblock left: {source}")]
    NoSuperblock {
        /// The member.
        member: MemberIndex,
        /// What is wrong with it.
        source: SuperblockError,
    },
    /// An assertion failed.
    #[error("panicked: {message}")]
    Panicked {
        /// What it said.
        message: String,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, finding, scenario, events } = self;
        writeln!(f, "seed {seed}: {finding}\n  {scenario}\n  the last events:")?;
        events.iter().try_for_each(|event| writeln!(f, "    {event}"))?;
        write!(f, "  again: cargo xtask sim --seeds {seed}..{}", seed + 1)
    }
}
