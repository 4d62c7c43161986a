//! New member files: private, allocated in full unless asked otherwise, and durable with their names.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use uraid_layout::Bytes;

use super::error::MemberError;
use crate::format::superblock::Allocation;

/// Creates a file of `size` zero bytes with mode 0600 and makes it and its name durable; then `open` opens it. A file
/// that can't be made whole, or can't be opened, is removed.
pub(super) fn new_file<T>(
    path: &Path,
    size: Bytes,
    allocation: Allocation,
    open: impl FnOnce() -> Result<T, MemberError>,
) -> Result<T, MemberError> {
    let fail = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => MemberError::Exists { path: path.into() },
        _ => MemberError::Io { path: path.into(), action: "create it", source },
    };
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(fail)?;
    let made = fill(&file, path, size, allocation).and_then(|()| open());
    if made.is_err()
        && let Err(error) = std::fs::remove_file(path)
    {
        tracing::warn!(path = %path.display(), %error, "a member file that was not made whole is left behind");
    }
    made
}

/// Gives an empty file `size` zero bytes and makes it and its name durable.
pub(super) fn fill(file: &File, path: &Path, size: Bytes, allocation: Allocation) -> Result<(), MemberError> {
    let allocated = match allocation {
        Allocation::Full => fallocate(file, FallocateFlags::empty(), 0, size.0).map_err(io::Error::from),
        Allocation::Sparse => file.set_len(size.0),
    };
    allocated.map_err(|source| MemberError::NoSpace { path: path.into(), size, source })?;
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        Some(_) | None => Path::new("."),
    };
    // Without its directory's fsync a file may lose its name with the power.
    let synced = file.sync_all().and_then(|()| File::open(parent)?.sync_all());
    synced.map_err(|source| MemberError::Io { path: path.into(), action: "make it durable", source })
}
