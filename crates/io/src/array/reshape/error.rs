//! Why an array can't get another shape, in words that say what to do about it.

use std::path::PathBuf;

use thiserror::Error;
use uraid_layout::reshape::CourseError;
use uraid_layout::{Bytes, Lba, Level, MemberIndex, MemberSet};

use crate::Error;
use crate::array::error::{OpenError, are};
use crate::array::reshape::unserved::Unserved;
use crate::array::sectors::LargeSectors;
use crate::disk::DiskError;
use crate::engine::EngineError;
use crate::format::badblocks::Full;
use crate::format::superblock::SuperblockError;
use crate::member::MemberError;

/// Why a reshape does not begin, go on or end. What is on record is as it was then; whatever has begun can go on.
#[derive(Debug, Error)]
pub enum ReshapeError {
    /// The array can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A path is no member.
    #[error(
        "{path}: is not a member of the array: leave it out if it left the array in an earlier reshape, and name it \
         with --add if it is to join",
        path = path.display()
    )]
    Stranger {
        /// The path.
        path: PathBuf,
    },
    /// It was being served.
    #[error(
        "the array is being reshaped, and was not stopped cleanly: serve it, which goes on with the reshape (or back, \
         with `uraid reshape --abort --socket SOCKET`), and stop it first to do that here"
    )]
    Served,
    /// The engine is at work, or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// It can't be served meanwhile.
    #[error(
        "this array can't be served while its content moves: {unserved}. What helps: reshape the array while it is \
         stopped (`uraid reshape` with the names of all members, without --begin){}",
        unserved.alternative()
    )]
    NotServed {
        /// Why.
        unserved: Unserved,
    },
    /// On copies, content that moved was read as another one.
    #[error(
        "in the rehearsal, what moved from sector {lba} on was read as something else{}: do not reshape this array, \
         and report this; nothing was written",
        if without.is_empty() { String::new() } else { format!(" without member {without}") }
    )]
    Rehearsal {
        /// Where it begins.
        lba: Lba,
        /// The members without which it was read.
        without: MemberSet,
    },
    /// There is no way to that shape.
    #[error(transparent)]
    Course(#[from] CourseError),
    /// The members would hold less than the array does.
    #[error(
        "in that shape the members hold {room} bytes, and the array has {kept}: add members, or shrink what is on the \
         array, and say with --size how much of it to keep"
    )]
    NoRoom {
        /// What they hold.
        room: Bytes,
        /// What is to be kept.
        kept: Bytes,
    },
    /// More is to be kept than there is.
    #[error("the array has {size} bytes; --size says how many of them to keep, and {asked} is more")]
    TooMuch {
        /// The array's size.
        size: Bytes,
        /// What was asked for.
        asked: Bytes,
    },
    /// It has that shape.
    #[error("the array has this shape already")]
    Same,
    /// Members are missing or being rebuilt.
    #[error(
        "{} missing or not rebuilt: name all members and rebuild them first. Without missing members the reshape \
         computes what they held; --degraded accepts that, if both shapes survive it",
        are(*missing)
    )]
    NotWhole {
        /// Their slots.
        missing: MemberSet,
    },
    /// A level does not survive what is missing.
    #[error("{} missing, and {} does not survive that: bring the members back", are(*missing), level.name())]
    TooFew {
        /// Their slots.
        missing: MemberSet,
        /// The level.
        level: Level,
    },
    /// The array was not stopped cleanly.
    #[error("the array was not stopped cleanly: serve it and stop it once, then reshape it")]
    Dirty,
    /// Its log is not on its members.
    #[error(
        "an array with log devices can't be reshaped: stop it, take them out with `uraid configure --no-log-devices \
         MEMBERS`, reshape it, and give it log devices again"
    )]
    LogDevices,
    /// The array is new.
    #[error("the array is not initialised yet: let `uraid wait` end while it is served, then reshape it")]
    Blank,
    /// A member's list of bad blocks has no room for what nobody has, in the places where it moves.
    #[error(
        "member {member}: {source}. Serve the array and write what is lost anew (`uraid status` says which bytes), or \
         go back with --abort"
    )]
    ListFull {
        /// The member.
        member: MemberIndex,
        /// That it is full.
        source: Full,
    },
    /// Where content is lost, more would be in its new places.
    #[error(
        "the content at byte {} of the array would be lost if it moved: only parity has it then, beside content that \
         is lost already. Bring missing members back, or write what is lost anew (`uraid status` says which bytes), or \
         go back with --abort", lba.0 * 512
    )]
    LosesMore {
        /// Where it is.
        lba: Lba,
    },
    /// A member that leaves is not one of the last.
    #[error(
        "{path}: is in slot {slot}, and only the members in the last slots can leave: remove {last}, which can take \
         this one's place afterwards (`uraid replace {slot} {last}`)", last = named(last), path = path.display()
    )]
    NotLast {
        /// The member.
        path: PathBuf,
        /// Its slot.
        slot: MemberIndex,
        /// The members that can leave.
        last: Vec<PathBuf>,
    },
    /// A new member can't be opened.
    #[error(transparent)]
    New(#[from] MemberError),
    /// A new member is one already.
    #[error(
        "{path}: is member {slot} of this array already, or was until it failed: name it among the members, without \
         --add, or bring it back with `uraid add`",
        path = path.display()
    )]
    Present {
        /// The member.
        path: PathBuf,
        /// Its slot.
        slot: MemberIndex,
    },
    /// A new member may be one that the array's missing members know of.
    #[error(
        "{path}: was to be a member of this array in another reshape, and members are missing, or older, that may know \
         of it: name all members, or use --force to overwrite what it holds",
        path = path.display()
    )]
    Leftover {
        /// The member.
        path: PathBuf,
    },
    /// A new member is too small.
    #[error("{path}: {size} bytes are too few for a member", path = path.display())]
    TooSmall {
        /// The member.
        path: PathBuf,
        /// Its size.
        size: Bytes,
    },
    /// A new member's sectors are larger than the array's.
    #[error(transparent)]
    SectorSize(#[from] LargeSectors),
    /// What moves at once is too much.
    #[error(
        "the parity stripes of both shapes fit together only every {unit} bytes, and at most {most} can move at once: \
         choose another --chunk or number of members, or go there in two steps"
    )]
    TooCoarse {
        /// The least common multiple.
        unit: Bytes,
        /// What there is room for.
        most: Bytes,
    },
    /// A member's log is too small.
    #[error(
        "the log of member {member} has {size} bytes, but parity stripes of that shape need {needed}: choose a smaller \
         --chunk, or another consistency with `uraid configure`"
    )]
    LogTooSmall {
        /// The member.
        member: MemberIndex,
        /// The size of its log.
        size: Bytes,
        /// The least size.
        needed: Bytes,
    },
    /// A member's areas don't allow it.
    #[error("member {member} can't be used in that shape")]
    Unfit {
        /// The member.
        member: MemberIndex,
        /// What is wrong.
        source: SuperblockError,
    },
    /// Another reshape is under way.
    #[error(
        "a reshape to another shape is under way: let it end with `uraid reshape MEMBERS`, or go back with `uraid \
         reshape --abort MEMBERS`"
    )]
    UnderWay,
    /// None is.
    #[error("no reshape of this array is under way")]
    NotUnderWay,
    /// Members are missing that the reshape had.
    #[error("{} missing; name all members, or go on without these with --degraded", are(*missing))]
    Missing {
        /// Their slots.
        missing: MemberSet,
    },
    /// Content can't be read.
    #[error(
        "the content at byte {} of the array can't be read, so it can't move: {source}. Nothing is lost that was there \
         before; bring missing members back and go on, or go back with --abort", lba.0 * 512
    )]
    Unreadable {
        /// Where.
        lba: Lba,
        /// Why.
        source: EngineError,
    },
    /// What was saved is gone.
    #[error(
        "what was saved of the array's content at byte {} is on none of the members that are here: bring the missing \
         ones back", lba.0 * 512
    )]
    SavedLost {
        /// Where.
        lba: Lba,
    },
    /// A member fails that it can't go on without.
    #[error(
        "{path}: {source}; the reshape can't go on without this member: copy it to one that works and go on with the \
         copy in its place, or go back with --abort",
        path = path.display()
    )]
    Needed {
        /// The member.
        path: PathBuf,
        /// What failed.
        source: DiskError,
    },
    /// A new member can't be made one. Nothing has begun.
    #[error("the reshape did not begin")]
    Unmade(#[source] Error),
    /// The members can't be reached.
    #[error("the members can't be reached; what was begun can go on with `uraid reshape MEMBERS`")]
    Io(#[from] Error),
}

impl ReshapeError {
    /// Whether it is what was asked for that is wrong, whatever the members.
    #[must_use]
    pub fn is_misuse(&self) -> bool {
        matches!(
            self,
            Self::Same
                | Self::TooMuch { .. }
                | Self::NotLast { .. }
                | Self::Course(CourseError::Geometry(_) | CourseError::Nothing)
        )
    }
}

fn named(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
