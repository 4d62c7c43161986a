//! Arrays on small files, for the tests that make and open them.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use uraid_io::array::{CreateOptions, NewLogs};
use uraid_io::format::UnixSeconds;
use uraid_io::format::superblock::{Allocation, Integrity, Superblock};
use uraid_io::member::{Access, Member};
use uraid_io::superblock;
use uraid_layout::{Bytes, Level};

/// The size of members that are created.
pub(crate) const SIZE: Bytes = Bytes(4 << 20);

/// What to make of files that do not exist yet, unless a test wants something else.
pub(crate) fn options(level: Level) -> CreateOptions {
    CreateOptions {
        level,
        chunk: Bytes(4096),
        name: "test".into(),
        size: Some(SIZE),
        allocation: Allocation::Sparse,
        force: false,
        consistency: None,
        log_size: None,
        logs: NewLogs::default(),
        integrity: Integrity::None,
        created: UnixSeconds(1),
    }
}

pub(crate) fn paths(directory: &TempDir, count: usize) -> Vec<PathBuf> {
    (0..count).map(|index| directory.path().join(format!("member{index}"))).collect()
}

pub(crate) fn stored(path: &Path) -> Superblock {
    superblock::load(&Member::open(path, Access::ReadOnly).expect("opened")).expect("a superblock")
}

pub(crate) fn store(path: &Path, superblock: &Superblock) {
    superblock::store(&Member::open(path, Access::ReadWrite).expect("opened"), superblock).expect("stored");
}
