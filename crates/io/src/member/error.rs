//! Why members can't be used, in words that say what to do about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;
use uraid_layout::Bytes;
use uraid_nbd::client::{self, UriError};

/// What the kernel says of a device that fails, or has gone: the block layer's errors, what opening a dead device
/// gives, and what a connection to a server does.
const DEVICE_FAILURES: [Errno; 17] = [
    Errno::IO,
    Errno::NXIO,
    Errno::NODEV,
    Errno::NOMEDIUM,
    Errno::REMOTEIO,
    Errno::NODATA,
    Errno::ILSEQ,
    Errno::TIMEDOUT,
    Errno::NOLINK,
    Errno::BADE,
    Errno::SHUTDOWN,
    Errno::CONNREFUSED,
    Errno::CONNRESET,
    Errno::HOSTUNREACH,
    Errno::NETUNREACH,
    Errno::HOSTDOWN,
    Errno::PIPE,
];

/// Why a member can't be used.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// A system call failed.
    #[error("{path}: can't {action}: {source}", path = path.display())]
    Io {
        /// The member.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// Neither a regular file nor a block device.
    #[error("{path}: is {kind}; a member is a regular file or a block device", path = path.display())]
    WrongKind {
        /// The path.
        path: PathBuf,
        /// What it is, with its article.
        kind: &'static str,
    },
    /// No sound URI of an export.
    #[error(transparent)]
    Uri {
        /// What is wrong with it.
        source: UriError,
    },
    /// A server refuses, or says what it may not.
    #[error("{path}: {source}", path = path.display())]
    Server {
        /// The member.
        path: PathBuf,
        /// What it said.
        source: client::Error,
    },
    /// An export that can't be a member.
    #[error("{path}: {what}", path = path.display())]
    UnfitExport {
        /// The member.
        path: PathBuf,
        /// Why, and what to do.
        what: &'static str,
    },
    /// Another process of ours uses it.
    #[error("{path}: is in use by {}; stop \
        that first", holder.map_or("another process".into(), |pid| format!("process {pid}")),
        path = path.display())]
    Locked {
        /// The member.
        path: PathBuf,
        /// The process that holds the lock, where the kernel tells.
        holder: Option<u32>,
    },
    /// Another process writes to the export.
    #[error("{path}: is in use by {owner}; stop that first", path = path.display())]
    Owned {
        /// The member.
        path: PathBuf,
        /// Who that is.
        owner: String,
    },
    /// Another process wrote to the export, and has not let go of it.
    #[error(
        "{path}: was in use by {owner}, which has fallen silent. If it has ended, or is cut off for good, take the \
         member from it with `uraid serve --steal`",
        path = path.display()
    )]
    OwnerSilent {
        /// The member.
        path: PathBuf,
        /// Who that was.
        owner: String,
    },
    /// The kernel uses the device.
    #[error(
        "{path}: the kernel uses this device: unmount it, or stop the array, volume or \
         swap on it",
        path = path.display()
    )]
    Busy {
        /// The device.
        path: PathBuf,
    },
    /// The kernel uses a loop device that is made of it.
    #[error(
        "{path}: the kernel uses {device}, which is made of this file: unmount it, or stop the array, volume or swap \
         on it",
        path = path.display(), device = device.display()
    )]
    BusyAbove {
        /// The member.
        path: PathBuf,
        /// The loop device.
        device: PathBuf,
    },
    /// It hangs. What was begun may still be done, at any time.
    #[error("{path}: did not {action} within {}", span(*deadline), path = path.display())]
    Silent {
        /// The member.
        path: PathBuf,
        /// What it was to do.
        action: &'static str,
        /// How long it had.
        deadline: Duration,
    },
    /// The same file twice.
    #[error(
        "{second}: is the same file as {first}; name each \
         member once",
        first = first.display(), second = second.display()
    )]
    SameFile {
        /// The path that was named first.
        first: PathBuf,
        /// The path that leads to the same file.
        second: PathBuf,
    },
    /// The same export by two names.
    #[error(
        "{second}: is the same export as {first}, or another client writes to it; name each member once",
        first = first.display(), second = second.display()
    )]
    SameExport {
        /// The one that holds what was written to the other.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// It holds something that would be overwritten.
    #[error(
        "{path}: holds {what} (at byte {offset}); use --force to overwrite it, or fill its first and its last 4 MiB \
         with zeros",
        path = path.display()
    )]
    InUse {
        /// The member.
        path: PathBuf,
        /// What it holds.
        what: &'static str,
        /// Where that shows.
        offset: Bytes,
    },
    /// The file to create exists.
    #[error("{path}: exists already", path = path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// The file system has no room, or can't promise it.
    #[error(
        "{path}: can't allocate {size} bytes: {source}; make room, or create a sparse file and risk running out later",
        path = path.display()
    )]
    NoSpace {
        /// The path.
        path: PathBuf,
        /// The size asked for.
        size: Bytes,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A time for people.
fn span(time: Duration) -> String {
    if time.subsec_millis() == 0 { format!("{} s", time.as_secs()) } else { format!("{} ms", time.as_millis()) }
}

impl MemberError {
    /// What the kernel said where the device itself failed: who it is may be asked of others. None where somebody has
    /// to mend the path, the permissions or the program.
    #[must_use]
    pub fn failure(&self) -> Option<(&'static str, Errno)> {
        self.said().filter(|(_, errno)| DEVICE_FAILURES.contains(errno))
    }

    /// What the kernel said where a member can't be opened for writing: it is write-protected, or this user may not.
    pub(crate) fn protection(&self) -> Option<(&'static str, Errno)> {
        self.said().filter(|(_, errno)| [Errno::PERM, Errno::ACCESS, Errno::ROFS].contains(errno))
    }

    /// What was to be done, and what the kernel said to it.
    fn said(&self) -> Option<(&'static str, Errno)> {
        let Self::Io { action, source, .. } = self else { return None };
        Some((*action, Errno::from_raw_os_error(source.raw_os_error()?)))
    }
}
