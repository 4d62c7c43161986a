//! The file that keeps what a conversion overwrites.
//!
//! A line that names the format and the checksum of the rest; a line of JSON that says of each member what follows; and
//! then the bytes of all members.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use uraid_io::array::Former;
use uraid_layout::Bytes;
use uuid::Uuid;

/// The first word of the file, and the version of its format.
const FORMAT: &str = "uraid-undo 1";

/// The largest file that is read: 64 members have less.
const SIZE_MAX: u64 = 64 << 20;

/// A member; its bytes follow those of the members before it.
#[derive(Serialize, Deserialize)]
struct Entry {
    path: PathBuf,
    member: Uuid,
    size: u64,
    head: usize,
    last: u64,
    behind: usize,
}

/// Writes a new file, durably.
///
/// # Errors
/// When there is one, or it can't be written.
pub(super) fn keep(path: &Path, formers: &[Former]) -> Result<()> {
    let failed = || format!("can't write {}", path.display());
    let entries: Vec<Entry> = formers.iter().map(entry).collect::<Result<_>>()?;
    let mut rest = serde_json::to_vec(&entries).with_context(failed)?;
    rest.push(b'\n');
    formers.iter().for_each(|former| rest.extend([former.head.as_slice(), &former.behind].concat()));
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).with_context(failed)?;
    let written = writeln!(file, "{FORMAT} {:08x}", crc32fast::hash(&rest)).and_then(|()| file.write_all(&rest));
    if let Err(error) = written.and_then(|()| file.sync_all()) {
        // Nothing was written to the members yet, and the next attempt may have the same name.
        let _ = fs::remove_file(path);
        return Err(error).with_context(failed);
    }
    // Its name has to be as durable as what it has.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory).and_then(|directory| directory.sync_all()).with_context(failed)
}

/// Reads such a file.
///
/// # Errors
/// When it can't be read, or is not what [`keep`] has written.
pub(super) fn read(path: &Path) -> Result<Vec<Former>> {
    let shown = path.display();
    let metadata = fs::metadata(path).with_context(|| format!("can't read {shown}"))?;
    ensure!(metadata.is_file() && metadata.len() <= SIZE_MAX, "{shown}: is no file of `uraid convert --undo-file`");
    let bytes = fs::read(path).with_context(|| format!("can't read {shown}"))?;
    parse(&bytes).with_context(|| format!("{shown}: is no file of `uraid convert --undo-file`, or was changed or cut"))
}

fn parse(bytes: &[u8]) -> Option<Vec<Former>> {
    let mut parts = bytes.splitn(2, |&byte| byte == b'\n');
    let (first, rest) = (parts.next()?, parts.next()?);
    (first == format!("{FORMAT} {:08x}", crc32fast::hash(rest)).as_bytes()).then_some(())?;
    let mut parts = rest.splitn(2, |&byte| byte == b'\n');
    let entries: Vec<Entry> = serde_json::from_slice(parts.next()?).ok()?;
    let mut left = parts.next()?;
    let mut take = |len: usize| {
        let (taken, behind) = left.split_at_checked(len)?;
        left = behind;
        Some(taken.to_vec())
    };
    let mut formers = Vec::with_capacity(entries.len());
    for Entry { path, member, size, head, last, behind } in entries {
        let (head, behind) = (take(head)?, take(behind)?);
        formers.push(Former { path, member, size: Bytes(size), head, last: Bytes(last), behind });
    }
    (left.is_empty() && !formers.is_empty()).then_some(formers)
}

fn entry(former: &Former) -> Result<Entry> {
    Ok(Entry {
        // Whoever takes it back may be in another directory.
        path: std::path::absolute(&former.path)?,
        member: former.member,
        size: former.size.0,
        head: former.head.len(),
        last: former.last.0,
        behind: former.behind.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_read_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("undo");
        let former = |slot: u8| Former {
            path: PathBuf::from(format!("/dev/member{slot}")),
            member: Uuid::from_bytes([slot; 16]),
            size: Bytes(5 << 20),
            head: vec![b'\n', slot, 0, 255],
            last: Bytes(4 << 20),
            behind: vec![slot; usize::from(slot)],
        };
        let formers: Vec<Former> = (1..4).map(former).collect();
        keep(&path, &formers).unwrap();
        assert_eq!(read(&path).unwrap(), formers);
        assert!(keep(&path, &formers).is_err(), "what is there is not overwritten");
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(parse(&changed), None, "byte {at}");
            assert_eq!(parse(&bytes[..at]), None, "cut at {at}");
        }
        assert!(read(directory.path()).is_err() && read(&directory.path().join("none")).is_err());
    }
}
