//! Every crash of every small workload, one by one.
//!
//! The real engine runs a [`workload`] once, over members that end one operation at a time ([`tape`]). At every
//! boundary, the begin or end of an operation or a reply, the [`states`] that a power cut may leave are gone through:
//! every choice of what is not flushed, and with each every tolerated set of members that is lost with it. The array
//! that is left is judged, recovered and assembled by the real code, and held against what clients were promised by
//! then ([`expect`]). Of some states the recovery itself is recorded, and cut off at each of its boundaries.
//!
//! Members may be lost
//! - *before*: the engine runs without them, and they come back after the crash;
//! - *during*: the crash takes them, and they come back after the array went on without them;
//! - *after*: parity agrees on an array that is recovered, so that it can be done without any tolerated set; see
//!   [`expect`].
//!
//! Members may come, too: a new one or the one that was missing joins and is rebuilt, or a new one takes the place of
//! one that it is copied from. The crash may take it. What it lacks afterwards the array does without, rebuilds, and
//! does not do without again.
//!
//! What is done to arrays that nobody uses has workloads of its own: [`creation`], and [`altering`], which are growing
//! them and giving them another shape.

pub mod altering;
mod check;
pub mod creation;
pub mod directed;
mod enumerate;
mod expect;
mod finding;
mod moves;
mod plain;
mod run;
pub mod shape;
mod states;
mod tape;
pub mod workload;

use uraid_layout::MemberSet;

pub use enumerate::{Enumeration, Options};
pub use finding::{Counts, Failure, Finding};
pub use states::Grain;

use crate::dst::model::Model;
use crate::members::Members;
use shape::Shape;

/// What became of an array that was looked after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlook {
    /// It is not used as it is.
    Refused,
    /// It had to be recovered, and was.
    Recovered,
    /// There was nothing to recover.
    Clean,
}

/// Opens members after a power cut, recovers the array, and holds all of it against what may be there. Members of
/// `excused` may be set aside.
pub(crate) fn look_after(
    shape: &Shape,
    members: &Members,
    model: &Model,
    excused: MemberSet,
) -> Result<Outlook, Finding> {
    let mut images = vec![None; members.len()];
    members.iter().for_each(|(slot, member)| images[slot.index()] = Some(member.current().clone()));
    let joining = MemberSet::EMPTY;
    let given = check::Given { left: members.present(), returned: excused, joining, forced: false };
    let expect = expect::Expect::new(shape, model).after_failures_of(shape, excused);
    Ok(match check::check(shape, &images, &expect, given)? {
        check::Outcome::Refused => Outlook::Refused,
        check::Outcome::Open { was_recovered: true, .. } => Outlook::Recovered,
        check::Outcome::Open { .. } => Outlook::Clean,
    })
}

#[cfg(test)]
mod tests;
