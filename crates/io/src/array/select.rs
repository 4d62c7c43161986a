//! The members of one array among paths that may lead to anything: whatever a pattern matches.
//!
//! Nothing is locked or written here, and nobody is judged: what is chosen is opened as if it had been named alone.

use std::fmt;
use std::path::{Path, PathBuf};

use thiserror::Error;
use uuid::Uuid;

use crate::Error;
use crate::member::{Access, FileId, Member, MemberError};
use crate::superblock::{self, Superblock};

/// Which array is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The one with this UUID.
    Array(Uuid),
    /// The one with this name.
    Name(String),
}

/// Why a path is not chosen.
#[derive(Debug, Error)]
pub enum Ignored {
    /// It can't be opened.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// It is no member of an array.
    #[error(transparent)]
    Io(#[from] Error),
    /// It is of another array.
    #[error("{path}: belongs to array {array} ({name:?})", path = path.display())]
    Foreign {
        /// The path.
        path: PathBuf,
        /// Its array.
        array: Uuid,
        /// That array's name.
        name: String,
    },
    /// It leads to the same file as one before it.
    #[error("{path}: is {first} once more", path = path.display(), first = first.display())]
    Again {
        /// The path.
        path: PathBuf,
        /// The one before it.
        first: PathBuf,
    },
}

/// The paths that lead to members of the wanted array, in the order given, and why the others are ignored.
#[must_use]
pub fn select(paths: &[impl AsRef<Path>], wanted: &Wanted) -> (Vec<PathBuf>, Vec<Ignored>) {
    let (mut chosen, mut ignored): (Vec<(FileId, PathBuf)>, _) = (Vec::new(), Vec::new());
    for path in paths.iter().map(AsRef::as_ref) {
        match look(path, wanted) {
            Ok(id) => match chosen.iter().find(|(other, _)| *other == id) {
                Some((_, first)) => ignored.push(Ignored::Again { path: path.into(), first: first.clone() }),
                None => chosen.push((id, path.into())),
            },
            Err(reason) => ignored.push(reason),
        }
    }
    (chosen.into_iter().map(|(_, path)| path).collect(), ignored)
}

/// Which file a path leads to, if that is a member of the wanted array.
fn look(path: &Path, wanted: &Wanted) -> Result<FileId, Ignored> {
    let member = Member::open(path, Access::Inspect)?;
    let Superblock { array, name, .. } = superblock::load(&member)?;
    let is_wanted = match wanted {
        Wanted::Array(uuid) => array == *uuid,
        Wanted::Name(other) => name == *other,
    };
    if is_wanted { Ok(member.id()) } else { Err(Ignored::Foreign { path: path.into(), array, name }) }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Array(uuid) => write!(f, "array {uuid}"),
            Self::Name(name) => write!(f, "an array named {name:?}"),
        }
    }
}
