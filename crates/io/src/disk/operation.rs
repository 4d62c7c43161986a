//! Operations on members, and how they end.

use rustix::io::Errno;
use smallvec::SmallVec;
use uraid_layout::{Bytes, MemberIndex};

use super::place::log_at;
use crate::buf::Lease;

/// The most segments of one operation: what one vectored system call takes.
pub(crate) const SEGMENTS_MAX: usize = 1024;

/// An operation's memory: a few pieces without allocation.
pub type Segments = SmallVec<[Lease; 2]>;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Fill the segments, in order, from the member.
    Read,
    /// Write the segments, in order, to the member.
    Write,
    /// The same; it is durable when it ends.
    WriteFua,
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
    /// [`OpKind::Write`] and [`OpKind::WriteFua`].
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// The operation gave what nobody can use.
    #[error("{op} gave a damaged {what}")]
    Damaged {
        /// The operation.
        op: OpInfo,
        /// What should be there.
        what: &'static str,
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
            | Self::Damaged { op, .. }
            | Self::Absent { op }
            | Self::TimedOut { op } => *op,
        }
    }
}

impl OpKind {
    /// The kind without its arguments.
    #[must_use]
    pub fn name(self) -> OpName {
        match self {
            Self::Read => OpName::Read,
            Self::Write | Self::WriteFua => OpName::Write,
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
            OpKind::Read | OpKind::Write | OpKind::WriteFua => {
                Bytes(self.segments.iter().map(|segment| segment.len() as u64).sum())
            }
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

    /// Asserts the contract of [`Disk::submit`](super::Disk::submit).
    ///
    /// # Panics
    /// See there.
    pub fn check(&self) {
        let writable = match self.kind {
            OpKind::Read => true,
            OpKind::Write | OpKind::WriteFua => false,
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

    /// Fills the memory of a read, segment by segment.
    ///
    /// # Panics
    /// When there are fewer bytes than the read covers, or a segment can't be written.
    pub fn fill(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        for segment in &mut self.segments {
            let (own, others) = rest.split_at(segment.len());
            segment.copy_from(own);
            rest = others;
        }
    }

    /// Ends the operation: the leases are dropped here.
    pub fn complete(mut self, result: Result<(), DiskError>) -> Completion {
        // The leases end here: from now on the memory is its owner's again.
        self.segments.clear();
        let spare = if self.segments.spilled() { self.segments.into_vec() } else { Vec::new() };
        Completion { tag: self.tag, member: self.member, result, spare }
    }
}

impl std::fmt::Display for OpInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { member, name, offset, len } = self;
        match log_at(*member) {
            Some(log) => write!(f, "log device {log}: {name} of {len} bytes at byte {offset}"),
            None => write!(f, "member {member}: {name} of {len} bytes at byte {offset}"),
        }
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
