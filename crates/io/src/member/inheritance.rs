//! Files that another process of ours has left to this one with their locks, so that nobody else gets in between.
//!
//! An flock belongs to the open file, whoever has descriptors of it. One that was handed over is locked all the time.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use rustix::fs::{FlockOperation, OFlags, fcntl_getfl, flock};

use super::lock::Access;

/// Those that no member has yet.
static LEFT: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// Files for members that are opened as long as this exists: opening a member takes its file from them. The others are
/// closed then.
#[derive(Debug)]
pub struct Inheritance(());

impl Inheritance {
    /// Has members take these files. There is one inheritance at a time.
    #[must_use]
    pub fn new(files: Vec<OwnedFd>) -> Self {
        *left() = files.into_iter().map(File::from).collect();
        Self(())
    }
}

impl Drop for Inheritance {
    fn drop(&mut self) {
        left().clear();
    }
}

/// The file that a path leads to, if it was inherited and opened for that; and whether it bypasses the page cache. One
/// that was opened for something else is closed, and with it goes its lock.
pub(super) fn take(path: &Path, access: Access) -> Option<(File, bool)> {
    if access == Access::Inspect {
        return None;
    }
    let file = find(path, |flags| flags & OFlags::ACCMODE != OFlags::RDONLY)?;
    let flags = fcntl_getfl(&file).ok()?;
    // With any other flag it would not do what is expected of it.
    let is_fit = access == Access::ReadWrite && flags & (OFlags::ACCMODE | OFlags::APPEND) == OFlags::RDWR;
    if !is_fit {
        return None;
    }
    // The kernel names the process that has asked for a lock. Meanwhile nobody else can write.
    let _ = flock(&file, FlockOperation::NonBlockingLockShared);
    Some((file, flags.contains(OFlags::DIRECT)))
}

/// The inherited file that a loop device is made of, at this path.
pub(super) fn take_beneath(path: &Path) -> Option<File> {
    find(path, |flags| flags & OFlags::ACCMODE == OFlags::RDONLY)
}

/// Takes the file at a path that was opened in such a way, if it was inherited.
fn find(path: &Path, is_meant: impl Fn(OFlags) -> bool) -> Option<File> {
    let mut left = left();
    let is_meant = |file: &File| fcntl_getfl(file).is_ok_and(&is_meant);
    let index = left.iter().position(|file| is_at(file, path) && is_meant(file))?;
    Some(left.swap_remove(index))
}

fn left() -> MutexGuard<'static, Vec<File>> {
    LEFT.lock().expect("nobody panics with it")
}

/// Whether a file is the one that a path leads to. A [`FileId`](super::FileId) would not tell a loop device from the
/// file that it is made of, and these are locked each for itself.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(one), Ok(other)) = (file.metadata(), path.metadata()) else { return false };
    if one.file_type().is_block_device() && other.file_type().is_block_device() {
        return one.rdev() == other.rdev();
    }
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}
