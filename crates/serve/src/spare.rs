//! Hot spares: files and devices that a server knows of and that take the places of failed members.
//!
//! A spare is neither held nor written before it is taken. So several servers may name the same spare: its lock, and
//! the content found under that lock, decide which server gets it. A spare that holds any content is not taken, whoever
//! named it.

use std::path::PathBuf;
use std::time::Duration;

/// How long a spare may take to report its content before the array is served, or another spare is taken.
pub const SPARE_TIME_MAX: Duration = Duration::from_secs(2);

/// A spare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spare {
    /// Where it is.
    pub path: PathBuf,
    /// Why it could not be taken when it was last checked.
    pub problem: Option<String>,
    /// It failed, and is not tried again.
    pub(crate) is_given_up: bool,
    /// It did not answer, and is not tried until it does.
    pub is_silent: bool,
    /// It is about to be a member.
    pub(crate) is_taken: bool,
}

impl Spare {
    /// A spare that can be taken, as far as is known.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, problem: None, is_given_up: false, is_silent: false, is_taken: false }
    }

    /// Whether it may be tried.
    pub(crate) fn is_worth_trying(&self) -> bool {
        !self.is_given_up && !self.is_silent
    }

    /// Whether no problem with it is known.
    pub(crate) fn is_ready(&self) -> bool {
        self.problem.is_none()
    }
}
