//! The crate's errors.

use std::io;
use std::path::PathBuf;

use crate::disk::DiskError;
use crate::format::log_device::LogHeaderError;
use crate::format::superblock::SuperblockError;
use crate::member::MemberError;

/// What can go wrong below the array.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A disk operation failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A member can't be used.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// A member has no superblock that counts.
    #[error("{path}: {source}", path = path.display())]
    Superblock {
        /// The member.
        path: PathBuf,
        /// What is wrong.
        source: SuperblockError,
    },
    /// A log device has no header that counts.
    #[error("{path}: {source}", path = path.display())]
    LogHeader {
        /// The device.
        path: PathBuf,
        /// What is wrong.
        source: LogHeaderError,
    },
    /// io_uring is refused or missing.
    #[error(
        "io_uring is unavailable: {source}; it needs Linux 5.15 or newer, `sysctl kernel.io_uring_disabled` at 0 (or 1 \
         for a privileged user), and a container or seccomp profile that allows io_uring_setup"
    )]
    NoUring {
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel is too old.
    #[error("this kernel is Linux {release}; uraid needs 5.15 or newer for io_uring")]
    OldKernel {
        /// The kernel's release as uname reports it.
        release: String,
    },
    /// The ring itself failed; no operation can be trusted to complete any more.
    #[error("io_uring failed to {action}")]
    Ring {
        /// What was being done.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}
