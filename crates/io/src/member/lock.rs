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

use super::{Access, MemberError};

/// How long to wait for a lock that nobody is known to hold. A killed process keeps its locks until the kernel has
/// finished its disk operations, which is just how long its members must be left alone; the kernel has no event for it.
const ORPHAN_WAIT_MAX: Duration = Duration::from_secs(10);
const ORPHAN_WAIT_STEP: Duration = Duration::from_millis(20);

/// Takes the lock, or says who holds it.
pub(super) fn take(file: &File, path: &Path, access: Access) -> Result<(), MemberError> {
    let operation = match access {
        Access::ReadOnly => FlockOperation::NonBlockingLockShared,
        Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
        Access::Inspect => return Ok(()),
    };
    let mut waited = Duration::ZERO;
    loop {
        match flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => {
                let holder = holder(file);
                if holder.is_some() || waited >= ORPHAN_WAIT_MAX {
                    return Err(MemberError::Locked { path: path.into(), holder });
                }
                std::thread::sleep(ORPHAN_WAIT_STEP);
                waited += ORPHAN_WAIT_STEP;
            }
            Err(errno) => {
                return Err(MemberError::Io { path: path.into(), action: "lock it", source: errno.into() });
            }
        }
    }
}

pub(super) fn release(file: &File) {
    if let Err(errno) = flock(file, FlockOperation::Unlock) {
        tracing::warn!(%errno, "a member's lock was not released; closing the file releases it");
    }
}

/// Who holds the lock, as far as the kernel tells; nobody when it is a process that has ended.
fn holder(file: &File) -> Option<u32> {
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

/// Finds the holder of a file's flock in the text of /proc/locks: a line is
/// `1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF`, device numbers in hexadecimal; waiters have `->` after the number.
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
