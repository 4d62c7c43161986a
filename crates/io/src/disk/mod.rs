//! The members of one array as one asynchronous device.
//!
//! The engine submits operations and reaps completions; it never learns whether the members are files behind io_uring
//! or arrays of bytes. The contract:
//! - [`Disk::submit`] neither blocks nor fails: what goes wrong comes back as that operation's [`Completion`].
//! - Every operation completes exactly once, in any order. Operations in flight are unordered among each other: to
//!   flush a write, wait for the write's completion before submitting the flush.
//! - An operation owns its memory until its completion, which drops the leases.
//! - A completed read or write is whole: short transfers are continued inside, and what can't be continued is an error.
//!   After an error, any part of a write may have reached the member.
//!
//! A disk knows nothing of chunks, stripes or parity.

mod deadline;
pub mod laggards;
mod latency;
mod mem;
mod uring;

use std::time::Duration;

use rustix::io::Errno;
use smallvec::SmallVec;
use uraid_layout::{Bytes, MemberIndex, MemberSet};

use crate::buf::Lease;
use crate::error::Error;

pub(crate) use deadline::{Deadline, Pending};
pub use latency::Latencies;
pub use mem::{Counters, Fault, MemDisk, Order};
pub use uring::{DEFAULT_DEPTH, UringDisk};

/// The most segments of one operation: what one vectored system call takes.
pub const SEGMENTS_MAX: usize = 1024;

/// An operation's memory: a few pieces without allocation.
pub type Segments = SmallVec<[Lease; 4]>;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Fill the segments, in order, from the member.
    Read,
    /// Write the segments, in order, to the member.
    Write,
    /// Make a range read as zeros without sending them.
    Zero {
        /// How many bytes.
        len: Bytes,
        /// Whether the member may give the space back; otherwise it stays allocated.
        may_punch: bool,
    },
    /// Make every write that completed before this was submitted durable.
    Flush,
}

/// The kinds of operation without their arguments, for messages, counters and faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpName {
    /// [`OpKind::Read`].
    Read,
    /// [`OpKind::Write`].
    Write,
    /// [`OpKind::Zero`].
    Zero,
    /// [`OpKind::Flush`].
    Flush,
}

/// One operation on one member.
#[derive(Debug)]
pub struct DiskOp {
    /// The submitter's own mark; comes back with the completion and means nothing to the disk.
    pub tag: u64,
    /// Which member.
    pub member: MemberIndex,
    /// What to do.
    pub kind: OpKind,
    /// Where, from the start of the member file; zero for a flush.
    pub offset: Bytes,
    /// The memory: leases to write for a read, leases to read for a write, none otherwise.
    pub segments: Segments,
}

/// The end of one operation.
#[derive(Debug)]
#[must_use]
pub struct Completion {
    /// The operation's own mark.
    pub tag: u64,
    /// Which member.
    pub member: MemberIndex,
    /// Whether all of it was done.
    pub result: Result<(), DiskError>,
    /// Where the operation's segments were, if that was a list of its own: memory for another's.
    pub spare: Vec<Lease>,
}

/// What an operation was, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("member {member}: {name} of {len} bytes at byte {offset}")]
pub struct OpInfo {
    /// Which member.
    pub member: MemberIndex,
    /// What was done.
    pub name: OpName,
    /// Where, from the start of the member file.
    pub offset: Bytes,
    /// How many bytes it covers; none for a flush.
    pub len: Bytes,
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The device or file system reported an error.
    #[error("{op} failed: {errno}")]
    Io {
        /// The operation.
        op: OpInfo,
        /// What was reported.
        #[source]
        errno: Errno,
    },
    /// The member ended before the operation did: it has been truncated.
    #[error("{op} stopped after {done} bytes: the member is shorter than it was when it was opened")]
    ShortIo {
        /// The operation.
        op: OpInfo,
        /// How many bytes were done.
        done: Bytes,
    },
    /// The operation reaches beyond the end of the member as it was opened.
    #[error("{op} is beyond the end of the member at {size} bytes")]
    BeyondEnd {
        /// The operation.
        op: OpInfo,
        /// The member's size.
        size: Bytes,
    },
    /// The member can't do this kind of operation; for zeroing, write zeros instead.
    #[error("{op} is not supported by the member's device or file system")]
    Unsupported {
        /// The operation.
        op: OpInfo,
    },
    /// There is no member in that slot.
    #[error("{op}: the member is absent")]
    Absent {
        /// The operation.
        op: OpInfo,
    },
    /// The operation took longer than it may. It may still be under way, and do all or a part of what it was to do.
    #[error("{op} took too long and was given up")]
    TimedOut {
        /// The operation.
        op: OpInfo,
    },
}

impl DiskError {
    /// The operation that failed.
    #[must_use]
    pub fn op(&self) -> OpInfo {
        match self {
            Self::Io { op, .. }
            | Self::ShortIo { op, .. }
            | Self::BeyondEnd { op, .. }
            | Self::Unsupported { op }
            | Self::Absent { op }
            | Self::TimedOut { op } => *op,
        }
    }
}

/// The members of one array as one asynchronous device; see the module's contract.
pub trait Disk {
    /// Takes an operation; it may wait inside until [`Disk::kick`].
    ///
    /// # Panics
    /// When the segments don't suit the kind: a read needs leases to write, a write leases to read, neither is empty or
    /// has more than [`SEGMENTS_MAX`], and zeroing and flushing have none.
    fn submit(&mut self, op: DiskOp);

    /// Sends everything submitted since the last kick to the device in one batch. Some of it may have completed by
    /// then: reap before waiting for anything else.
    ///
    /// # Errors
    /// When the device as a whole is broken; operations already in flight may never complete.
    fn kick(&mut self) -> Result<(), Error>;

    /// Appends the operations that have completed; never blocks.
    fn reap(&mut self, completions: &mut Vec<Completion>);

    /// Kicks, then blocks until [`Disk::reap`] has something to return, a signal arrives, or nothing is in flight.
    ///
    /// # Errors
    /// As [`Disk::kick`].
    fn wait(&mut self) -> Result<(), Error>;

    /// As [`Disk::wait`], but no longer than `time`, where the disk's operations take time of their own.
    ///
    /// # Errors
    /// As [`Disk::kick`].
    fn wait_at_most(&mut self, time: Duration) -> Result<(), Error> {
        let _ = time;
        self.wait()
    }

    /// The members, this one among them, that whatever stops this one is likely to stop, too.
    fn kin(&self, member: MemberIndex) -> MemberSet {
        MemberSet::EMPTY.with(member)
    }

    /// Members with writes that wait until there is room on their file systems.
    fn roomless(&self) -> MemberSet {
        MemberSet::EMPTY
    }

    /// Notes that time has passed: operations that wait for it go on with the next kick.
    fn tick(&mut self) {}

    /// Whether operations wait for time to pass.
    fn wants_ticks(&self) -> bool {
        false
    }

    /// Notes that nobody waits any more for the operations with this tag. They complete as ever, some of them sooner.
    fn abandon(&mut self, tag: u64) {
        let _ = tag;
    }

    /// How many operations were submitted and not yet reaped.
    fn in_flight(&self) -> usize;

    /// Lets the members at two seats change places. Nothing is in flight on either but what was abandoned.
    ///
    /// # Panics
    /// When there is no such seat. This one always: a disk whose members are not replaced has nothing to do here.
    fn exchange(&mut self, one: MemberIndex, other: MemberIndex) {
        panic!("members {one} and {other} keep their places on this disk");
    }
}

impl OpKind {
    /// The kind without its arguments.
    #[must_use]
    pub fn name(self) -> OpName {
        match self {
            Self::Read => OpName::Read,
            Self::Write => OpName::Write,
            Self::Zero { .. } => OpName::Zero,
            Self::Flush => OpName::Flush,
        }
    }
}

impl OpName {
    /// What a member is asked to do by it.
    #[must_use]
    pub fn verb(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Zero => "write zeros",
            Self::Flush => "flush",
        }
    }
}

impl DiskOp {
    /// How many bytes of the member the operation covers; none for a flush.
    #[must_use]
    pub fn len(&self) -> Bytes {
        match self.kind {
            OpKind::Read | OpKind::Write => Bytes(self.segments.iter().map(|segment| segment.len() as u64).sum()),
            OpKind::Zero { len, .. } => len,
            OpKind::Flush => Bytes(0),
        }
    }

    /// Whether the operation covers no bytes, as a flush does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == Bytes(0)
    }

    /// What the operation is, for messages.
    #[must_use]
    pub fn info(&self) -> OpInfo {
        OpInfo { member: self.member, name: self.kind.name(), offset: self.offset, len: self.len() }
    }

    /// Asserts the contract of [`Disk::submit`].
    ///
    /// # Panics
    /// See there.
    pub fn check(&self) {
        let writable = match self.kind {
            OpKind::Read => true,
            OpKind::Write => false,
            OpKind::Zero { .. } | OpKind::Flush => {
                assert!(self.segments.is_empty(), "{:?} has no segments", self.kind);
                return;
            }
        };
        assert!(!self.is_empty() && self.segments.len() <= SEGMENTS_MAX, "{:?} has bytes to move", self.kind);
        let suits = |segment: &Lease| segment.is_writable() == writable && !segment.is_empty();
        assert!(self.segments.iter().all(suits), "the leases of a {:?} suit its direction", self.kind);
    }

    /// The error of an operation that reaches beyond a member of `size` bytes.
    ///
    /// # Errors
    /// [`DiskError::BeyondEnd`].
    pub fn check_end(&self, size: Bytes) -> Result<(), DiskError> {
        let end = self.offset.0.checked_add(self.len().0);
        if end.is_none_or(|end| end > size.0) { Err(DiskError::BeyondEnd { op: self.info(), size }) } else { Ok(()) }
    }

    /// Ends the operation: the leases are dropped here.
    pub fn complete(mut self, result: Result<(), DiskError>) -> Completion {
        self.segments.clear();
        let spare = if self.segments.spilled() { self.segments.into_vec() } else { Vec::new() };
        Completion { tag: self.tag, member: self.member, result, spare }
    }
}

impl std::fmt::Display for OpName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Zero => "zeroing",
            Self::Flush => "flush",
        })
    }
}

#[cfg(test)]
mod tests;
