//! The members of one array among paths that may lead to anything: whatever a pattern matches.
//!
//! Nothing is locked or written here, and nobody is judged: what is chosen is opened as if it had been named alone.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;
use uuid::Uuid;

use crate::Error;
use crate::format::log_device::LogHeader;
use crate::format::superblock::Superblock;
use crate::member::{FileId, MemberError};

/// Which array is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The one with this UUID.
    Array(Uuid),
    /// The one with this name.
    Name(String),
}

/// What a path leads to at the moment.
#[derive(Debug)]
pub struct Look {
    /// The path.
    pub path: PathBuf,
    /// Whose member it says it is.
    pub found: Result<(FileId, Superblock), Ignored>,
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
    /// It is no member, but a log device.
    #[error("{path}: is a log device of array {} ({:?})", header.array, header.name, path = path.display())]
    LogDevice {
        /// The path.
        path: PathBuf,
        /// What it leads to.
        id: FileId,
        /// What it says.
        header: LogHeader,
    },
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

/// Those that lead to members of the wanted array, in the order given, then its log devices; and why the others are
/// ignored.
#[must_use]
pub fn select(looks: Vec<Look>, wanted: &Wanted) -> (Vec<Look>, Vec<Ignored>) {
    let (mut chosen, mut ignored): (Vec<Look>, _) = (Vec::new(), Vec::new());
    let mut logs = Vec::new();
    for Look { path, found } in looks {
        let (id, superblock) = match found {
            Ok(found) => found,
            Err(reason @ Ignored::LogDevice { .. }) => {
                logs.push((path, reason));
                continue;
            }
            Err(reason) => {
                ignored.push(reason);
                continue;
            }
        };
        let is_same = |other: &&Look| other.found.as_ref().is_ok_and(|(other, _)| *other == id);
        if !wanted.is(&superblock) {
            ignored.push(Ignored::Foreign { path, array: superblock.array, name: superblock.name });
        } else if let Some(first) = chosen.iter().find(is_same) {
            ignored.push(Ignored::Again { path, first: first.path.clone() });
        } else {
            chosen.push(Look { path, found: Ok((id, superblock)) });
        }
    }
    let arrays: Vec<Uuid> = chosen.iter().flat_map(|look| &look.found).map(|(_, own)| own.array).collect();
    for (path, reason) in logs {
        let Ignored::LogDevice { id, header, .. } = &reason else { continue };
        let is_same = |other: &&Look| matches!(&other.found, Err(Ignored::LogDevice { id: other, .. }) if other == id);
        if !arrays.contains(&header.array) {
            ignored.push(reason);
        } else if let Some(first) = chosen.iter().find(is_same) {
            ignored.push(Ignored::Again { path, first: first.path.clone() });
        } else {
            chosen.push(Look { path, found: Err(reason) });
        }
    }
    (chosen, ignored)
}

impl Wanted {
    /// Whether it is the array that a member is of.
    #[must_use]
    pub fn is(&self, Superblock { array, name, .. }: &Superblock) -> bool {
        match self {
            Self::Array(uuid) => array == uuid,
            Self::Name(wanted) => name == wanted,
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Array(uuid) => write!(f, "array {uuid}"),
            Self::Name(name) => write!(f, "an array named {name:?}"),
        }
    }
}
