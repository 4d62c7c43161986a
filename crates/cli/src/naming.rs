//! The members that a server's configuration file names, when commands give the array others.
//!
//! A path that has left the array may go on being named: the next start leaves it out. One that the file lacks is
//! lacking then, so commands write it there, or say what is to be written.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use uraid_serve::protocol::Status;

use crate::config_file;
use crate::misuse::Misuse;
use crate::terminal::print;

/// A server's configuration file, and the array's name in it if it has several.
#[derive(Debug)]
pub(crate) struct Configuration {
    path: PathBuf,
    array: Option<String>,
}

/// How the array's files and devices have changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    /// The key of the file that is to have the new one.
    pub(crate) key: &'static str,
    /// It is no part of the array any more.
    pub(crate) gone: Option<&'a str>,
    /// It is one now, or is going to be.
    pub(crate) new: Option<&'a str>,
}

impl Configuration {
    /// That of the server with this status.
    pub(crate) fn of(status: &Status) -> Option<Self> {
        Some(Self { path: status.config.as_ref()?.into(), array: status.config_array.clone() })
    }

    /// The same, where something is to be kept there.
    ///
    /// # Errors
    /// If the server has none.
    pub(crate) fn to_keep_in(status: &Status) -> Result<Self, Misuse> {
        Self::of(status).ok_or_else(|| {
            Misuse(
                "the server has no configuration file: start it with `uraid serve --config`, or give it the option"
                    .into(),
            )
        })
    }

    /// Changes keys to these values, or adds them.
    ///
    /// # Errors
    /// As [`config_file::keep`].
    pub(crate) fn keep(&self, set: &[(&str, String)]) -> Result<()> {
        config_file::keep(&self.path, self.array.as_deref(), set)
    }

    /// Has the file name what the array has now if that is to `persist`, or says what it lacks.
    ///
    /// # Errors
    /// If it is to be changed and can't be.
    pub(crate) fn follow(&self, change: Change<'_>, persist: bool) -> Result<()> {
        let (array, place) = (self.array.as_deref(), self.place());
        if persist {
            let exchange = |list: &mut Vec<String>, key: &str| exchange(list, key, change);
            config_file::change_lists(&self.path, array, &["members", "spare"], exchange)
                .with_context(|| format!("it is done, and {place} does not say so: change it yourself"))?;
            return print(format_args!("kept in {place}"));
        }
        // Who may not read the file is not told of it.
        let Ok(named) = config_file::lists(&self.path, array, &["members", "spare"]) else { return Ok(()) };
        let is_named = |path: &str| named.iter().any(|named| is_same(named, path));
        match (change.new, change.gone) {
            (Some(new), _) if !is_named(new) => print(format_args!(
                "{place} does not name {new}, without which the next start fails: put it in {}, or give --persist next \
                 time",
                change.key
            )),
            (None, Some(gone)) if is_named(gone) => print(format_args!("{place} goes on naming {gone}")),
            _ => Ok(()),
        }
    }

    /// Where the settings are: `/etc/uraid/arrays.toml, [array.photos]`.
    pub(crate) fn place(&self) -> String {
        let table = self.array.as_ref().map_or_else(String::new, |array| format!(", [array.{array}]"));
        format!("{}{table}", self.path.display())
    }
}

/// Has the list of a key follow a change; what is new comes where the other one was.
fn exchange(list: &mut Vec<String>, key: &str, change: Change<'_>) {
    let place = change.gone.and_then(|gone| list.iter().position(|named| is_same(named, gone)));
    if let Some(place) = place {
        list.remove(place);
    }
    let is_named = |list: &[String], new: &str| list.iter().any(|named| is_same(named, new));
    if let Some(new) = change.new.filter(|new| key == change.key && !is_named(list, new)) {
        list.insert(place.unwrap_or(list.len()), new.to_owned());
    }
}

/// Whether two paths lead to the same place.
fn is_same(one: &str, other: &str) -> bool {
    let place = |path: &str| fs::canonicalize(Path::new(path)).ok();
    one == other || place(one).is_some_and(|one| place(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new_is_named_once_and_where_the_other_one_was() {
        let followed = |key: &str, gone: Option<&str>, new: Option<&str>| {
            let mut list = ["/a", "/b", "/c"].map(str::to_owned).to_vec();
            exchange(&mut list, key, Change { key: "members", gone, new });
            list.join(" ")
        };
        assert_eq!(followed("members", Some("/b"), Some("/x")), "/a /x /c");
        assert_eq!(followed("members", None, Some("/x")), "/a /b /c /x");
        assert_eq!(followed("members", Some("/y"), Some("/x")), "/a /b /c /x");
        assert_eq!(followed("members", None, Some("/c")), "/a /b /c");
        assert_eq!(followed("members", Some("/a"), None), "/b /c");
        assert_eq!(followed("spare", Some("/b"), Some("/x")), "/a /c", "what was a spare is none any more");
    }
}
