//! Planted bugs, for test builds only: what would happen if a rule of the protocol were broken, one at a time.
//!
//! Each is a place in the code where `planted!(Name)` turns one rule off. Without the feature `mutants` that is the constant `false`, and
//! nothing of this is in the program. The simulator and the enumeration of crash points must tell every one of them from the real thing.

use std::sync::atomic::{AtomicU16, Ordering};

macro_rules! mutants {
    ($($name:ident: $rule:literal,)*) => {
        /// The planted bugs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Mutant {
            $(#[doc = $rule] $name,)*
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// What is wrong with it.
            #[must_use]
            pub fn rule(self) -> &'static str {
                match self { $(Self::$name => $rule,)* }
            }
        }
    };
}

mutants! {
    SkipLog: "nothing is logged",
    DropCommitFlush: "a commit does not flush its participants",
    FlushSomeParticipants: "a commit flushes all participants but one",
    CommitDespiteFailure: "in-place writes begin before a member that lacks the record is on record as failed",
    NextCommitDespiteFailure: "the next commit begins before a member that lacks the last record is on record as failed",
    LogWriteErrorIgnored: "a failed write of a record counts as done",
    TrimAheadOfWrite: "records are trimmed before they are in place",
    TrimUnflushed: "records are trimmed before what is in place is durable",
    FlushCoversLater: "a flush counts for what was written in place after it began",
    ReuseWithoutMark: "a record's place is used again before the mark is durable",
    ParticipantsForgotten: "a record names no other participant",
    LastWriteNotLogged: "a record lacks the last of an update's writes",
    ZeroesNotLogged: "a record lacks the zeros of an update",
    ContentUnchecked: "the content of a record is not checked",
    StaleGenerationAccepted: "records of an earlier run of the log count",
    GenerationKept: "recovery does not begin a new run of the log",
    ReplayAny: "a record is done again though a participant lacks it",
    ReplayTrimmed: "trimmed records are done again",
    ReplaySmallestMark: "the smallest mark of the members counts instead of the largest",
    ReplayReversed: "records are done again in the wrong order",
    ReplayOldestOnly: "only the oldest record is done again",
    ReplaySkipsOldest: "the oldest record is not done again",
    ReplayUnflushed: "what was done again is not flushed before the log is dropped",
    ReplayUnrecorded: "members that are missing at recovery are not put on record first",
    ReplayFirstExtent: "only the first range of a record is done again",
    RecoverySkipped: "an unclean array is marked clean as it is",
    FlushUndrained: "a flush does not wait for what is in memory",
    FlushBeforeCommit: "a flush does not wait for the commit",
    FuaAsPlain: "FUA is ignored",
    FlushOneMember: "a flush goes to one member",
    FlushJoinsEarlier: "a flush is joined that began before the write was over",
    FlushErrorIgnored: "a failed flush counts as done",
    WriteErrorIgnored: "a failed write counts as done",
    DirtyMarkSkipped: "members are written before they are marked dirty",
    RoundUnflushed: "a round of superblocks is not flushed",
    FailureUnrecorded: "a write is acknowledged before the members that missed it are on record as failed",
    CleanUnflushed: "members are marked clean before what was written is flushed",
    CleanDuringWrites: "members are marked clean while what is logged is being put in place",
    EpochKept: "a round of superblocks does not advance the epoch",
    StaleAccepted: "a member of an earlier epoch is accepted",
    FailedAccepted: "a member on record as failed is accepted",
    CatchUpSkipped: "a member that a round did not reach stays behind",
    OneSlot: "every version of a superblock goes to the same place",
    SplitBrainAccepted: "two halves that went on without each other are accepted",
    CloneAccepted: "a copy beside its original is accepted",
    ForeignAccepted: "a member of another array is accepted",
    OpenUnflushed: "an open trusts what is not durable",
    UnlockAtCommit: "stripes are given back before they are in place",
    UnplacedRead: "a read does not wait for what was replied to and is not in place",
    DegradedReadUnlocked: "content is computed from units that are being written",
    XorForgetsOperand: "an XOR lacks an operand",
    ReadErrorAsData: "a failed read counts as data",
    FreezeIgnored: "the array goes on with more members failed than it survives",
    StaleParityKept: "parity in memory outlives the content that it covers",
}

static PLANTED: AtomicU16 = AtomicU16::new(u16::MAX);

/// Plants a bug in this process, in place of the one before; none takes it out.
pub fn plant(mutant: Option<Mutant>) {
    PLANTED.store(mutant.map_or(u16::MAX, |mutant| mutant as u16), Ordering::Relaxed);
}

/// The mutant of that name.
#[must_use]
pub fn named(name: &str) -> Option<Mutant> {
    Mutant::ALL.iter().copied().find(|mutant| mutant.name() == name)
}

pub(crate) fn is_planted(mutant: Mutant) -> bool {
    PLANTED.load(Ordering::Relaxed) == mutant as u16
}
