//! An array that is between two shapes.

use uraid_layout::reshape::{Course, CourseError};
use uraid_layout::{Lba, Sectors, Spec};

use super::settings::Consistency;

/// What a superblock has beside its own shape while the array gets another one.
///
/// The superblock's [`spec`](super::Superblock::spec) is the shape that the array had. The slots are those of both
/// shapes together: a slot has the same member in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reshape {
    /// The other shape.
    pub to: Spec,
    /// How much content there is.
    pub kept: Sectors,
    /// How far it has come: see [`Course`].
    pub mark: Lba,
    /// It goes back.
    pub is_back: bool,
    /// How much content ahead of the mark is safe in the members' areas for logs, and may not be whole in its places; 0
    /// where all of it is.
    pub saved: Sectors,
    /// The number of the last save: no two have the same of an array, whatever its reshapes.
    pub save: u64,
    /// What kept its stripes consistent before: it has that again where it goes back. Meanwhile it is a log where one
    /// can be, so that the array can be used.
    pub before: Consistency,
}

impl Reshape {
    /// The way that it goes from the shape that the array had.
    ///
    /// # Errors
    /// Where there is none.
    pub fn course(&self, from: Spec) -> Result<Course, CourseError> {
        Course::new(from, self.to, self.kept)
    }

    /// How many slots both shapes have together.
    pub(super) fn slots(&self, from: Spec) -> u8 {
        from.members.max(self.to.members)
    }

    /// The shape that the array has when this was the last window; none before that.
    pub(crate) fn outcome(&self, from: Spec) -> Option<Spec> {
        let course = self.course(from).ok()?;
        let heading = course.heading(self.is_back);
        let is_over = self.mark == course.end(heading) && self.saved == Sectors(0);
        is_over.then(|| *course.target(heading).spec())
    }

    /// Whether the array can be there.
    pub(super) fn is_sound(&self, from: Spec) -> bool {
        let Ok(course) = self.course(from) else { return false };
        // What is recorded is what the course comes to, so that both ends of it can be told from the superblock alone.
        let is_fitted = *course.to().spec() == self.to && self.save <= u64::MAX / 2 && self.before.suits(from.level);
        let is_ahead = course.ahead(self.mark, course.heading(self.is_back), self.saved);
        is_fitted
            && course.is_mark(self.mark)
            && is_ahead.is_some_and(|window| course.is_mark(window.start) && course.is_mark(window.end))
    }
}
