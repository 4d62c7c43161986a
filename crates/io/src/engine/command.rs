//! What clients and administrators ask for, and what they are told.

use uraid_layout::{Bytes, Lba, MemberIndex, Sectors};
use uuid::Uuid;

use super::change::Joining;
use super::error::EngineError;
use crate::buf::Buf;
use crate::format::superblock::LogChange;

/// What a client asks for.
#[derive(Debug)]
pub enum Command {
    /// Fill the buffer from `lba` on.
    Read {
        /// The first sector.
        lba: Lba,
        /// Where to; its length is the request's.
        buf: Buf,
    },
    /// Write the buffer at `lba`.
    Write {
        /// The first sector.
        lba: Lba,
        /// What; its length is the request's.
        buf: Buf,
        /// Reply when it is durable.
        fua: bool,
    },
    /// Fill the buffer from a byte on, wherever that is.
    ReadBytes {
        /// The first byte.
        at: Bytes,
        /// Where to; its length is the request's.
        buf: Buf,
    },
    /// Write the buffer at a byte, wherever that is.
    WriteBytes {
        /// The first byte.
        at: Bytes,
        /// What; its length is the request's.
        buf: Buf,
        /// Reply when it is durable.
        fua: bool,
    },
    /// Write zeros at any byte; see [`Command::WriteZeroes`].
    ZeroBytes {
        /// The first byte.
        at: Bytes,
        /// How many.
        len: Bytes,
        /// Reply when it is durable.
        fua: bool,
        /// Whether the members' space may be given back.
        may_punch: bool,
    },
    /// Write zeros. Whole parity stripes give the members' space back, where that may be; the rest is written.
    WriteZeroes {
        /// The first sector.
        lba: Lba,
        /// How many.
        len: Sectors,
        /// Reply when it is durable.
        fua: bool,
        /// Whether the members' space may be given back.
        may_punch: bool,
    },
    /// Reply when everything that was replied to before is durable.
    Flush,
    /// Give a member up, or the log device at that place, as if it had failed; replied to when that is on record on the
    /// others. Refused where the level would not survive it, and of the last log device. Of a member that was missing
    /// from the start, put that on record.
    Fail {
        /// The member.
        member: MemberIndex,
    },
    /// Take in a member that the caller has put at its slot of the disk, which was missing: it is written from now on,
    /// and rebuilt. Replied to when that is on record. What comes meanwhile waits.
    Join(Box<Joining>),
    /// Copy the member in a slot to one that the caller has put at the engine's seat, and which takes its place when it
    /// has everything. Replied to when that has begun. At the end the members have changed places on the disk: who is
    /// at the seat then can be taken out.
    Replace(Box<Joining>),
    /// Have log devices come and go; one that comes was made for the array, and the caller has put it at the place
    /// behind those that there are. Replied to when that is on record; what comes meanwhile waits. Whoever leaves is at
    /// the place behind those that there are then, and can be taken out.
    ChangeLogs {
        /// How.
        change: LogChange,
        /// The next runs of the log and of the journal: a number that nobody can guess.
        generation: Uuid,
    },
    /// Stop a scrub, flush, then mark the members clean, unless they were opened dirty and parity was not computed
    /// again since. A later write marks them dirty again.
    Close,
}

/// A command's end.
#[derive(Debug)]
pub struct Reply<T> {
    /// As given with the command.
    pub token: T,
    /// The buffer of a read comes back.
    pub result: Result<Option<Buf>, EngineError>,
}

/// What the cache is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// A write is replied to when it is in memory; a flush makes it durable.
    WriteBack,
    /// A write is replied to when the members have it. What is in memory saves later writes their reads.
    WriteThrough,
}
