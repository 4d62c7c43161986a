//! Hot spares: files and devices that a server is told of, and that take the places of members that fail.
//!
//! A spare is neither held nor written before it is taken. So several servers may be told of the same one: its lock,
//! and what is found on it under that lock, decide who gets it. What holds anything is not taken, whoever named it.

use std::path::{PathBuf, absolute};

use anyhow::{Result, ensure};
use uraid_io::array::{self, Array, Ignored, JoinError, Look};
use uraid_io::member::MemberError;
use uuid::Uuid;

use crate::args::Misuse;

/// A spare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spare {
    pub(crate) path: PathBuf,
    /// Why it could not be taken when it was last looked at.
    pub(crate) problem: Option<String>,
    /// It failed, and is not tried again.
    pub(crate) is_given_up: bool,
}

impl Spare {
    /// One that can be taken, as far as is known.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, problem: None, is_given_up: false }
    }

    /// Whether nothing is known that speaks against it.
    pub(crate) fn is_ready(&self) -> bool {
        self.problem.is_none()
    }
}

/// Tells those of `spares` that are members of the array of `members` by now from those that are not: once taken, a
/// spare is a member, and the same command line serves the array again.
///
/// # Errors
/// When a spare is named twice, or as a member, too.
pub(crate) fn sort(members: &[Look], spares: Vec<Look>) -> Result<(Vec<PathBuf>, Vec<Look>), Misuse> {
    for (index, Look { path, .. }) in spares.iter().enumerate() {
        if members.iter().chain(&spares[..index]).any(|other| other.path == *path) {
            return Err(Misuse(format!("{}: name it once, as a member or a spare", path.display())));
        }
    }
    let ours = members.iter().find_map(array_of);
    let (taken, spares): (Vec<Look>, Vec<Look>) =
        spares.into_iter().partition(|look| ours.is_some() && array_of(look) == ours);
    Ok((members.iter().chain(&taken).map(|look| look.path.clone()).collect(), spares))
}

/// Looks at the spares of an array that is about to be served, and warns of those that could not be taken now.
///
/// # Errors
/// When one never can.
pub(crate) fn at_start(array: &Array, spares: Vec<Look>) -> Result<Vec<Spare>> {
    ensure!(
        spares.is_empty() || array.geometry.tolerance() > 0,
        Misuse(
            "RAID 0 survives no failure, so there is nothing that a spare could take over: leave --spare out".into()
        )
    );
    let look = |Look { path, found }: Look| {
        let path = absolute(path)?;
        let checked = match found {
            Err(Ignored::Member(silent @ MemberError::Silent { .. })) => Err(silent.into()),
            _ => array::check(&path, &array.superblock),
        };
        let problem = match checked {
            Ok(()) => None,
            Err(error @ (JoinError::TooSmall { .. } | JoinError::SectorSize { .. })) => return Err(error.into()),
            Err(error) => {
                tracing::warn!("a spare can't be taken as it is: {error}");
                Some(error.to_string())
            }
        };
        Ok(Spare { problem, ..Spare::new(path) })
    };
    spares.into_iter().map(look).collect()
}

/// Whose member a file or device says that it is.
fn array_of(look: &Look) -> Option<Uuid> {
    look.found.as_ref().ok().map(|(_, own)| own.array)
}
