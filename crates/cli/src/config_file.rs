//! The configuration file of a server, as a text: it is read whole, and changed without losing what else it has.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rustix::fs::OFlags;
use toml_edit::{DocumentMut, Item, TableLike, Value};

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
    change(path, array, |table| {
        for (key, value) in set {
            insert(table, key, Value::from(value));
        }
    })
}

/// Changes those of a file's keys that are lists of texts, or single ones; [`keep`] says where they are. Lists in which
/// nothing has changed stay as they are, and empty ones are not added.
///
/// # Errors
/// As [`keep`].
pub(crate) fn change_lists(
    path: &Path,
    array: Option<&str>,
    keys: &[&str],
    change_list: impl Fn(&mut Vec<String>, &str),
) -> Result<()> {
    change(path, array, |table| {
        for key in keys {
            let before = table.get(key).map(texts).unwrap_or_default();
            let mut now = before.clone();
            change_list(&mut now, key);
            if now == before {
                continue;
            }
            let Some(list) = table.get_mut(key).and_then(Item::as_array_mut) else {
                insert(table, key, Value::from_iter(now));
                continue;
            };
            for (at, text) in now.iter().enumerate().filter(|(_, text)| !before.contains(text)) {
                // Lines of a list are its administrator's, and so are comments in it.
                let is_gone = |value: &Value| value.as_str().is_some_and(|text| !now.iter().any(|kept| kept == text));
                let mut value = Value::from(text);
                match list.get(at) {
                    Some(former) if is_gone(former) => {
                        *value.decor_mut() = former.decor().clone();
                        list.replace_formatted(at, value);
                    }
                    _ => {
                        let last = list.iter().last().and_then(|last| last.decor().prefix()?.as_str());
                        let lines = last.and_then(|prefix| prefix.rfind('\n').map(|line| prefix[line..].to_owned()));
                        value
                            .decor_mut()
                            .set_prefix(lines.unwrap_or_else(|| if at == 0 { "" } else { " " }.to_owned()));
                        list.insert_formatted(at.min(list.len()), value);
                    }
                }
            }
            list.retain(|value| value.as_str().is_none_or(|text| now.iter().any(|kept| kept == text)));
        }
    })
}

/// The texts of those keys, in their order.
///
/// # Errors
/// As [`keep`].
pub(crate) fn lists(path: &Path, array: Option<&str>, keys: &[&str]) -> Result<Vec<String>> {
    let (_, mut document) = parse(path)?;
    let table = table(path, &mut document, array)?;
    Ok(keys.iter().filter_map(|key| table.get(key)).flat_map(texts).collect())
}

/// The texts of a key.
fn texts(item: &Item) -> Vec<String> {
    let list = item.as_array().into_iter().flatten().filter_map(Value::as_str);
    item.as_str().into_iter().chain(list).map(str::to_owned).collect()
}

/// Gives a key another value, with the comments of the one that it had.
fn insert(table: &mut dyn TableLike, key: &str, mut value: Value) {
    if let Some(old) = table.get(key).and_then(Item::as_value) {
        *value.decor_mut() = old.decor().clone();
    }
    table.insert(key, Item::Value(value));
}

/// Changes a table of a file, and leaves the rest as it is.
fn change(path: &Path, array: Option<&str>, change: impl FnOnce(&mut dyn TableLike)) -> Result<()> {
    let (path, mut document) = parse(path)?;
    change(table(&path, &mut document, array)?);
    replace(&path, document.to_string().as_bytes()).with_context(|| format!("can't write {}", path.display()))
}

/// Where a file is, and what it has.
fn parse(path: &Path) -> Result<(PathBuf, DocumentMut)> {
    // A symbolic link must remain one.
    let path = fs::canonicalize(path).with_context(|| format!("can't find {}", path.display()))?;
    let text = read(&path).with_context(|| format!("can't read {}", path.display()))?;
    let document = text.parse().with_context(|| format!("{} is no TOML", path.display()))?;
    Ok((path, document))
}

fn table<'a>(path: &Path, document: &'a mut DocumentMut, array: Option<&str>) -> Result<&'a mut dyn TableLike> {
    let Some(array) = array else { return Ok(document.as_table_mut()) };
    let table = document.get_mut("array").and_then(|arrays| arrays.get_mut(array));
    table.and_then(Item::as_table_like_mut).with_context(|| format!("{} has no [array.{array}]", path.display()))
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
