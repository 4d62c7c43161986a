//! The configuration file of a server, as a text: it is read whole, and changed without losing what else it has.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::fs::OFlags;
use toml_edit::{DocumentMut, Item, TableLike};

/// Maximum length of a file.
const BYTES_MAX: u64 = 1 << 20;

const NONBLOCK: i32 = OFlags::NONBLOCK.bits().cast_signed();

/// The text of a file. It must be a regular file: a pipe might never end.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let file = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = String::new();
    file.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > BYTES_MAX {
        return Err(io::Error::other("it has more than 1 MiB: is it a configuration?"));
    }
    Ok(text)
}

/// Changes a file's keys to these values, or adds them; those of the table `[array.NAME]` if there is such an `array`.
/// Everything else in the file stays, including comments. An interruption leaves either the old file or the new one.
///
/// # Errors
/// If the file can't be read, is not TOML, has no such table, or can't be replaced.
pub(crate) fn keep(path: &Path, array: Option<&str>, set: &[(&str, String)]) -> Result<()> {
    // A symbolic link must remain one.
    let path = fs::canonicalize(path).with_context(|| format!("can't find {}", path.display()))?;
    let text = read(&path).with_context(|| format!("can't read {}", path.display()))?;
    let mut document: DocumentMut = text.parse().with_context(|| format!("{} is no TOML", path.display()))?;
    let table: &mut dyn TableLike = match array {
        None => document.as_table_mut(),
        Some(array) => {
            let table = document.get_mut("array").and_then(|arrays| arrays.get_mut(array));
            table
                .and_then(Item::as_table_like_mut)
                .with_context(|| format!("{} has no [array.{array}]", path.display()))?
        }
    };
    for (key, value) in set {
        let mut value = toml_edit::Value::from(value);
        if let Some(old) = table.get(key).and_then(Item::as_value) {
            *value.decor_mut() = old.decor().clone();
        }
        table.insert(key, Item::Value(value));
    }
    replace(&path, document.to_string().as_bytes()).with_context(|| format!("can't write {}", path.display()))
}

/// Replaces a file with a new one of these bytes.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::IsADirectory)?;
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::IsADirectory)?);
    name.push(".new");
    let (new, old) = (directory.join(name), fs::metadata(path)?);
    let mut file = File::create(&new)?;
    let written = (|| {
        file.set_permissions(old.permissions())?;
        fchown(&file, Some(old.uid()), Some(old.gid()))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)
    })();
    if written.is_err() {
        // The unfinished file would only be in the way.
        let _ = fs::remove_file(&new);
    }
    written?;
    File::open(directory)?.sync_all()
}
