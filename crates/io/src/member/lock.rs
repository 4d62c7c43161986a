//! The advisory lock that keeps two processes of ours off the same member.
//!
//! It is flock(2): it belongs to the open file, so that a second open in the same process is refused too, and for block
//! devices it is the lock that udev and partitioning tools honour.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock, major, minor};
use rustix::io::Errno;

use super::error::MemberError;

/// How long to wait for a lock that nobody is known to hold. A killed process keeps its locks until the kernel has
/// finished its disk operations, which is just how long its members must be left alone; the kernel has no event for it.
const ORPHAN_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long to wait for whoever may only be looking: udev, blkid and their like hold a device for a moment whenever it
/// appears or was written.
const PROBE_WAIT_MAX: Duration = Duration::from_secs(2);

/// How long opening a member may wait for others, however busy the machine is.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(20);

const WAIT_STEP: Duration = Duration::from_millis(20);

/// What a member is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading only: opened read-only, with a shared lock.
    ReadOnly,
    /// Reading and writing, with an exclusive lock.
    ReadWrite,
    /// Reading without a lock what somebody else may be writing: enough to ask a member what it is, not to use it.
    Inspect,
}

/// Whether to wait for whoever uses a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Another one will do as well.
    Never,
    /// For as long as it may be a probe, or what is left of a process that has ended.
    Briefly,
}

/// Takes the lock, or says who holds it; tries once.
pub(super) fn take(file: &File, path: &Path, access: Access) -> Result<(), MemberError> {
    let operation = match access {
        Access::ReadOnly => FlockOperation::NonBlockingLockShared,
        Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
        Access::Inspect => return Ok(()),
    };
    loop {
        match flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => return Err(MemberError::Locked { path: path.into(), holder: holder(file) }),
            Err(errno) => {
                return Err(MemberError::Io { path: path.into(), action: "lock it", source: errno.into() });
            }
        }
    }
}

/// Tries until it succeeds, or somebody has used the member for so long that it is no probe. Pauses between attempts.
pub(super) fn patiently<T>(
    mut attempt: impl FnMut() -> Result<T, MemberError>,
    wait: Wait,
    mut pause: impl FnMut(Duration),
) -> Result<T, MemberError> {
    let mut waited = Duration::ZERO;
    loop {
        let error = match attempt() {
            Err(error) => error,
            done => return done,
        };
        let most = match error {
            MemberError::Locked { holder: None, .. } => ORPHAN_WAIT_MAX,
            MemberError::Locked { .. } | MemberError::Busy { .. } | MemberError::BusyAbove { .. } => PROBE_WAIT_MAX,
            _ => return Err(error),
        };
        if wait == Wait::Never || waited >= most {
            return Err(error);
        }
        pause(WAIT_STEP);
        waited += WAIT_STEP;
    }
}

pub(super) fn release(file: &File) {
    if let Err(errno) = flock(file, FlockOperation::Unlock) {
        tracing::warn!(%errno, "a member's lock was not released; closing the file releases it");
    }
}

/// Who holds the lock, as far as the kernel tells; nobody when it is a process that has ended.
pub(super) fn holder(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let device = metadata.dev();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    holder_in(&locks, (major(device), minor(device), metadata.ino())).filter(|&pid| is_running(pid))
}

fn is_running(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The state follows the name, which is in brackets and may hold anything.
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    !matches!(state, Some('Z' | 'X'))
}

/// Finds the holder of a file's flock in the text of /proc/locks: a line is `1: FLOCK ADVISORY WRITE 1234 08:01:5678 0
/// EOF`, device numbers in hexadecimal; waiters have `->` after the number.
fn holder_in(locks: &str, file: (u32, u32, u64)) -> Option<u32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, place, ..] = fields[..] else { return None };
        let mut parts = place.split(':');
        let device_major = u32::from_str_radix(parts.next()?, 16).ok()?;
        let device_minor = u32::from_str_radix(parts.next()?, 16).ok()?;
        let inode: u64 = parts.next()?.parse().ok()?;
        ((device_major, device_minor, inode) == file).then(|| pid.parse().ok().filter(|&pid: &u32| pid > 0)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_only_looks_at_a_member_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("member");
        let mut prober = Some(File::create(&path).unwrap());
        take(prober.as_ref().unwrap(), &path, Access::ReadWrite).unwrap();
        let file = File::open(&path).unwrap();
        let mut pauses = 0;
        // It looks at it during the first pauses, and has seen enough then.
        let pause = |_| {
            pauses += 1;
            prober.take_if(|_| pauses == 3);
        };
        patiently(|| take(&file, &path, Access::ReadWrite), Wait::Briefly, pause).unwrap();
        assert_eq!(pauses, 3);
    }

    #[test]
    fn whoever_uses_a_member_for_longer_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("member");
        let user = File::create(&path).unwrap();
        take(&user, &path, Access::ReadWrite).unwrap();
        let file = File::open(&path).unwrap();
        let mut waited = Duration::ZERO;
        let refused = patiently(|| take(&file, &path, Access::ReadOnly), Wait::Briefly, |step| waited += step);
        let refused = refused.unwrap_err();
        assert!(matches!(refused, MemberError::Locked { holder: Some(pid), .. } if pid == std::process::id()));
        assert_eq!(waited, Duration::from_secs(2));
        let refused = patiently(|| take(&file, &path, Access::ReadWrite), Wait::Never, |_| panic!("not waited for"));
        assert!(matches!(refused.unwrap_err(), MemberError::Locked { .. }));
        let mut attempts = 0;
        let busy = || -> Result<(), MemberError> {
            attempts += 1;
            Err(if attempts < 5 { MemberError::Busy { path: path.clone() } } else { io_error(&path) })
        };
        let refused = patiently(busy, Wait::Briefly, drop).unwrap_err();
        assert!(matches!(refused, MemberError::Io { .. }), "other errors are final: {refused}");
        assert_eq!(attempts, 5);
    }

    fn io_error(path: &Path) -> MemberError {
        MemberError::Io { path: path.into(), action: "open it", source: Errno::IO.into() }
    }

    #[test]
    fn a_process_that_has_ended_holds_nothing() {
        assert!(is_running(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert!(!is_running(pid));
    }

    #[test]
    fn the_holder_is_found_by_device_and_inode() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 08:01:777 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 22 fd:1a:777 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 33 08:01:777 0 EOF\n\
                     3: FLOCK  ADVISORY  READ  44 08:01:777 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE -1 00:1b:9 0 EOF\n\
                     garbage\n";
        assert_eq!(holder_in(locks, (8, 1, 777)), Some(44));
        assert_eq!(holder_in(locks, (0xfd, 0x1a, 777)), Some(22));
        assert_eq!(holder_in(locks, (0, 0x1b, 9)), None);
        assert_eq!(holder_in(locks, (8, 1, 7)), None);
    }
}
