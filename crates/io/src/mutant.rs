//! Planted bugs, for test builds only: what would happen if a rule of the protocol were broken, one at a time.
//!
//! Each is a place in the code where `planted!(Name)` turns one rule off. Without the feature `mutants` that is the
//! constant `false`, and nothing of this is in the program. The simulator and the enumeration of crash points must tell
//! every one of them from the real thing.

use std::cell::Cell;
use std::sync::OnceLock;

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
    BadBlocksUnread: "the lists of bad blocks are not read when the array is opened",
    BlockOrNothing: "of a block some sectors of which can't be had nothing is read",
    UntakenTrusted: "what a member failed to take, that can't be given up, counts as its content though others have it",
    BadBlocksRead: "what is in a list of bad blocks as absent is read",
    BadBlocksKept: "what is written stays in the list of bad blocks",
    BadBlocksUnsaved: "a list of bad blocks from which something was taken out is not written",
    BadBlocksEarly: "a list is written before the content is durable that was taken out of it",
    BadBlocksUnflushed: "a copy of a list is overwritten before the other is durable",
    BadBlocksStay: "members that change places leave their lists of bad blocks behind",
    BadBlocksNotRedone: "what is done again from the log stays in the list of bad blocks",
    BadBlocksResynced: "parity is computed from what is in a list of bad blocks as absent",
    GrownHalfUsed: "an array goes on as it was when a member failed while it grew",
    GrownLogKept: "the log of an array that grows while it is served goes on from its beginning in the same run",
    GrownMapUnmade: "what an array grows by has no map of blank regions",
    GrownUnflushed: "what an array grows by is used before the map of it is durable",
    GrownSumsKept: "what an array grows by has the checksums of what another shape had there",
    GrownUnzeroed: "what an array grows by in a region that has content keeps what the members held there",
    GrownAtOnce: "an array uses more of its members before it is on record that they have more room",
    ReshapeUnsaved: "content whose new places are some of its old ones is not saved before it moves",
    ReshapeSavedUnflushed: "that content is saved goes on record before it is durable",
    ReshapeUnrestored: "content that was saved is read from its old places after a cut",
    ReshapeUnflushed: "that content has moved goes on record before it is durable",
    ReshapeMarkEarly: "that content has moved goes on record before it has",
    MovedSumsKept: "content that moves to another shape keeps the checksums of what was in its places",
    MovedSumsUnawaited: "the mark of a reshape goes on record before the checksums of what has moved are written",
    LostMovedAsZeros: "content that nobody has moves to another shape as zeros that are taken for it",
    LostMovedWithParity: "parity says that content which nobody has is the zeros that moved in its place",
    LostUnsaved: "what was saved of a window does not say what of it nobody has",
    MovedListsLate: "the mark of a reshape goes on record before the lists of bad blocks say what is lost behind it",
    MoreLostByMoving: "content moves to where only parity has it, beside content that is lost",
    LostToldByLists: "what is lost of a window that moves is told by lists of which some are of its new places",
    ListsUntrimmed: "members lack, beyond the shape that an array has now, what they lacked in the one before",
    ReshapeBegunUnfrozen: "an array goes on as it was although some of its members say that a reshape has begun",
    ReshapeTurnedEarly: "a reshape that turns round leaves what was saved in the shape that it turns from",
    ReshapeLogKept: "a window moves to places that the log may write to again",
    ReshapeDirtyLeft: "a window moves without what is in memory of it",
    ReshapeCacheKept: "what is in memory of a window stays there in the shape that it moved from",
    WindowUnheld: "a command for a window that moves does not wait for it",
    WindowUnawaited: "a window moves while commands that touch it are under way",
    WindowHealKept: "what was to be healed of a window is healed in the shape that it moved from",
    ReshapeParityKept: "content moves without its parity",
    ReshapeBitsKept: "a member that is missing at the end of a reshape is taken to lack nothing",
    ReshapeSavedOnce: "content that is saved while it moves is on one member only",
    ReshapeLossUnrecorded: "a reshape goes on without a member that is not on record as failed",
    ReshapeNeededGivenUp: "a reshape gives up members that one of the shapes does not survive without",
    ReshapeNewUnmade: "a reshape begins before its new members have superblocks",
    ReshapedUnlogged: "an array that gets parity is left without a log",
    ReshapeLeaverKept: "a member that left in a reshape says that it still belongs to the array",
    ResyncKeepsParity: "parity that can't be computed after an unclean stop is not taken into the list of bad blocks",
    CalmWithoutList: "who was rebuilt is complete, with one that joins, before its list of bad blocks is durable",
    LossUnlisted: "what can't be rebuilt is not taken into the list of bad blocks",
    WatermarkBeforeList: "a rebuild's watermark goes on record before the list of bad blocks is durable",
    CopySealedDespiteFailure: "a copy that failed to make its content durable says that the slot is its",
    WrittenNowhere: "a write is acknowledged although its member is missing and parity does without it",
    ParityNeeded: "a write needs parity that is lost for good",
    BlankRead: "what is blank is read from the members",
    BlankWritten: "what is blank is written without being made first",
    PassedOver: "a sweep does not come back to what it passed over and was written before its watermark came there",
    BlankCached: "what is blank is taken into the cache without being made first",
    BlankMapUnmade: "the map of a new array is not written",
    BlankZerosUnflushed: "the map says that a region is not blank before its zeros are durable",
    BlankMapsDiffer: "a map that only some members have is not written to all when the array is opened",
    BlankMapUnjoined: "a member that was rebuilt does not have the map",
    BlankMapUncopied: "a copy takes its member's place without the map",
    ScrubOwedUnrecorded: "a map that was damaged on all members is written before it is on record that a scrub is owed",
    BlankForgotten: "the map is forgotten while regions are blank",
    AbsentProven: "what a member never got is compared with the checksum of what it held before",
    CellsByMember: "a member that failed to give one unit of a stripe is done without in all of it",
    SumsLostByMember: "a block that has lost its checksum is believed where other units of its member give it",
    FailedFlushAwaited: "who waits until the log is in place does so after a flush that failed for good",
    FailedCommitUntold: "who waits until the log is in place is not told that a record failed, and never will be",
    ParityDoneAgain: "parity that a write leaves out of agreement may come back from the log",
    ParityLeft: "parity that a write leaves out of agreement counts when it can be read again",
    TwinParityLeft: "parity that a write leaves out of agreement counts on the copy of its member",
    SkipLog: "nothing is logged",
    RedoneOverNew: "an older record is done again over what a later one has written",
    FreshOverLive: "what is newer than the journal's is destaged before the journal has it",
    JournalAlone: "pages are on as many members as can be lost",
    JournalMarkUntold: "that records of pages count no more is relied on before anybody says so",
    FlushBeforeJournal: "a flush does not wait for pages that are going into the journal",
    FreshAnew: "a flush is not about what was flying when it began, and could not be written",
    ReservedJournaled: "pages of a stripe that is being written past the cache go into the journal",
    UnflownPagesClean: "pages that could not be written out count as in the journal, though they were newer",
    JournalOfClean: "the journal has pages of an array that is marked clean",
    LiveTakenIn: "without write-back a write of what the journal has is in memory alone when it is replied to",
    LiveReplaced: "what the journal has is replaced without it",
    JournalKeptAtJoin: "who is there changes while the journal holds pages",
    JournalIgnored: "a start does not look into the journal",
    NobodysRecordCounted: "an update that nobody who is there is written for takes a number in the log",
    FullRingsUntold: "rings that are too full for records are not told what they may be rid of",
    PagesUnflushed: "a record of pages counts when it is written, and not flushed",
    FullOfUnwritten: "a ring that is full makes no room for flushes while its oldest record can't be written out",
    LoneCopyDropped: "a record of pages that not all have who are to have it does not count, and others come after it",
    LoneCopyKept: "a record of pages counts that not all have who are to have it, and they don't get it",
    RedoneOverUnreadable: "an older record is done again in a sector that can't be read, and may have been new",
    SectorsInPart: "a record is done again in a part of a sector",
    OldByGroup: "a column counts as old where one parity group is",
    MixedTrusted: "parity of a stripe that was written in part is trusted",
    LostDataComputed: "parity is computed again although data that it covers is lost",
    WorthlessParityTrusted: "lost data is computed from parity of a stripe that was written in part",
    SumsCountAsContent: "a flush does not wait for stripes that the log has only the sums of",
    SumsOfPart: "the log has only sums of a part of a stripe",
    SumsWhileDegraded: "the log has only sums of stripes while a member is missing",
    FlushBeforeSums: "a flush does not wait for whole stripes that were replied to when the log had their sums",
    SumsAnswered: "a write is answered when the log has its sums",
    DropCommitFlush: "a commit does not flush its participants",
    FlushSomeParticipants: "a commit flushes all participants but one",
    CommitDespiteFailure: "in-place writes begin before a member that lacks the record is on record as failed",
    NextCommitDespiteFailure: "the next commit begins before a member that lacks the last record is on record as \
        failed",
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
    NewestDoubted: "what recovery relies on is not written to the log once more",
    ResyncedInPart: "recovery writes parity and leaves the data as it can be read",
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
    HeadOnly: "the copy of a superblock at the tail is not written",
    FoundCounts: "a superblock that is read counts as durable",
    DamageKept: "a damaged copy of a superblock stays as it is",
    GapIgnored: "a record that nobody holds any more is not missed",
    LossIgnored: "a record that a member has lost is taken for one that was never committed",
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
    FailureRemembered: "a read does not ask whoever failed it before it had its lock again",
    FreezeIgnored: "the array goes on with more members failed than it survives",
    StaleParityKept: "parity in memory outlives the content that it covers",
    BitUnflushed: "a region is written before its bit is durable",
    BitNotAwaited: "a region is written before its bit is written",
    BitOfFirstRegion: "only the first of the regions that a job writes is marked",
    BitEndsBeforeWrites: "a region counts as quiet while it is being written",
    BitClearedHeld: "a bit is cleared while somebody holds its region",
    BitClearedUnflushed: "a bit is cleared before what was written is flushed",
    BitFlushCoversLater: "a flush counts for what was written in a region after it began",
    BitClearedDegraded: "bits are cleared while a member is missing",
    BitClearedCounts: "a bit that was cleared counts as set",
    BitWantedCounts: "a bit counts as set that came too late for the round",
    BitFailureUnrecorded: "a region is written before a member that lacks its bit is on record as failed",
    BitsOfCleanForgotten: "bits of a clean array are forgotten while a member is missing",
    BitsUnread: "recovery does not look at the bitmap",
    BitsOfOneMember: "the bits of one member count instead of those of all",
    BitsDroppedByRecovery: "a recovery drops the bits before it is over",
    BitsDamagedAsClear: "a damaged part of the bitmap counts as clear",
    RegionLacksLastStripe: "the last stripe of a marked region is not made equal",
    SumOfNoPlace: "checksums are not of a place",
    SumOfNoMember: "checksums are not of a member",
    SumNotUpdated: "a write leaves the checksums as they were",
    SumNotAwaited: "a write is over, and its record trimmed, before its checksums are written",
    SumNotRedone: "recovery leaves the checksums as they were",
    MismatchIgnored: "content counts though its checksum is another",
    ComputedUnverified: "what is computed of others counts though its checksum is another",
    CopiesUnasked: "a copy that lost its checksum is not compared with the checksums of the others",
    MembersUnasked: "what is computed is not compared with what its member holds",
    UnfinishedCounts: "of two rounds of one epoch the one counts that never ended",
    RivalsAccepted: "of two members that went on in one slot the newer counts",
    SuspectsCount: "a member is given up for its errors while others have some, too",
    UnwrittenUntold: "what could not be written out is not taken note of",
    DestagedWhole: "what failed together is not tried column by column",
    SumsDamagedCount: "damaged checksums count",
    HealDropped: "what was found damaged is not healed",
    HealUnchecked: "what was healed is not read back",
    WatermarkUnflushed: "the watermark goes on record before what it covers is flushed",
    ResumeLater: "a rebuild goes on one stripe after the watermark on record",
    WatermarkKept: "the watermark is kept when another member joins",
    SuccessorUnrecorded: "a member that joins is taken to be on record where another one was being rebuilt in its slot",
    JoinsAtOnce: "a member that joins is written beside the others",
    LoggedCounts: "without redundancy a flush relies on the log alone",
    LogKeptAtJoin: "a join goes on with the log's run",
    BarrierSkipped: "a join does not wait until nothing is under way",
    JoinUnrecorded: "a join is replied to before it is on record",
    FailUnrecorded: "that a member is given up is replied to before it is on record",
    SinceKept: "it is not noted since when a slot's state is what it is",
    RegionsIgnored: "a member that returns is taken to lack nothing",
    UnfinishedReturns: "a member that was being made is taken to lack only what the bitmap says",
    StaleReturns: "a member returns though what it lacks is not known",
    ReplacedAccepted: "a member is accepted whose slot has another",
    BitClearedRebuilding: "bits are cleared while a member is being rebuilt",
    BitsOfAnyTime: "beside a log, bits from an earlier absence of members count",
    RedoneUnmarked: "what the log has done again is not marked for a member that is missing then",
    RebuildingRead: "a member that is being rebuilt is read beyond the watermark",
    RebuildingUnwritten: "clients' writes leave a member out that is being rebuilt",
    RebuildUnlocked: "a stripe is rebuilt without its lock",
    SumsKeptAtJoin: "what was known of a member's checksums counts for the one in its place",
    HealHoldsJoin: "what is found while a member waits to join is kept to be healed",
    CompleteForgotten: "a join begins a member anew that has just been rebuilt",
    CopyUnwritten: "clients' writes leave the member out that another one is being copied to",
    CopySealedUnflushed: "a copy says that the slot is its before what was copied is durable",
    CopySwitchedUnsealed: "a copy takes the place before it durably says so",
    CopyEndsEarly: "a copy takes the place without the last stripe",
    OwedByOthers: "a write fails as another member has yet to note what it lacks",
    LeavingListNeeded: "a member keeps its place as what it lacks can't be noted on it",
    ChangeTriedAtOnce: "a copy that can't take a member's place tries that again at once, for ever",
    CopyKeepsPlace: "a copy that is to take a failed member's place is dropped with that",
    HungKept: "a member that does not answer is waited for",
    LateMemoryKept: "memory that an operation that was given up may still fill is used again",
    LateReplied: "what was given up ends for whoever waited for it once more",
    LingeringPromoted: "a copy with operations that were given up takes the place of a failed member",
    LingeringReturns: "a member returns while operations on it are under way that were given up",
    ScrubUnlocked: "a scrub repairs without the stripe's lock",
    ScrubRepairsSuspects: "a scrub repairs what is not certain",
    OpeningGivesNobodyUp: "the array does not open when a member fails that it could do without",
    ResyncFromParity: "data that can't be read is taken from parity that may be wrong",
    ResyncUnchecked: "a copy that was written back to a member that can't read it is not read again",
    UnreadableLogIgnored: "a part of a log that can't be read counts as empty",
    HiddenRecordsIgnored: "a part of a log that can't be read counts as empty where nobody else shows what it held",
    LoneCopyCounts: "a copy of the superblock counts though the newer one may be among those that can't be read",
    HealInDoubt: "content is healed from parity that may be wrong",
    StallUnseen: "who keeps somebody waiting is not told",
    WriteNeedsAll: "a write fails where something can't be read that it could do without",
    LossUnseen: "who failed what nobody could make good is not told",
    FreezerUnseen: "whose failure froze the array is not told",
    FormerOverwritten: "a former array loses content before it loses its superblocks",
    InitialisingUnmarked: "a new array's members don't say that it is initialising",
    InitialisingUnflushed: "members are zeroed before all durably say that the array is initialising",
    InitialisedUnflushed: "a new array counts as whole before its zeros are durable",
    InitialisingSkipped: "an array whose creation was cut off is not initialised when it is opened",
    InitialisingDegraded: "an array whose creation was cut off is opened without some of its members",
    StaleUndoubted: "a member that is read though it is out of date is taken to lack only what the bitmap says",
    LastResortWritten: "an array that lacks more members than it survives is opened for writing",
    SectorsIgnored: "a member is accepted whose sectors are larger than the array's",
}

/// The variable that names the bug in a process of its own, where a test is run in one.
pub const VARIABLE: &str = "URAID_MUTANT";

thread_local! {
    static PLANTED: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Plants a bug in this thread, in place of the one before; none takes it out.
pub fn plant(mutant: Option<Mutant>) {
    PLANTED.set(mutant);
}

/// The mutant of that name.
#[must_use]
pub fn named(name: &str) -> Option<Mutant> {
    Mutant::ALL.iter().copied().find(|mutant| mutant.name() == name)
}

pub(crate) fn is_planted(mutant: Mutant) -> bool {
    static EVERYWHERE: OnceLock<Option<Mutant>> = OnceLock::new();
    let everywhere = || std::env::var(VARIABLE).ok().map(|name| named(&name).expect("the variable names a mutant"));
    PLANTED.get().or(*EVERYWHERE.get_or_init(everywhere)) == Some(mutant)
}
