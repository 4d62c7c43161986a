//! What the real code makes of what a crash left, held against what must be found.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use uraid_io::array::{Assembled, Candidate, OpenError, OpenOptions, Refusal, check_presence, judge};
use uraid_io::disk::Disk;
use uraid_io::member::Access;
use uraid_io::superblock::Consistency;
use uraid_layout::{MemberIndex, MemberSet};
use uuid::Uuid;

use super::Finding;
use super::expect::Expect;
use super::plain::Plain;
use super::shape::Shape;
use crate::image::Image;
use crate::member::superblock_of;

/// The log's runs after recoveries.
const GENERATION: Uuid = Uuid::from_u128(0x8);

/// What became of an array that was opened.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It is not used without what is missing.
    Refused,
    /// It can be used; what the members hold now.
    Open {
        /// The content by slot, of the members that are part of the array.
        images: Vec<Option<Image>>,
        /// Who is part of it.
        accepted: MemberSet,
        /// Whether there was something to recover.
        was_recovered: bool,
    },
}

/// Whom the array may set aside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    /// Who is there.
    pub(super) left: MemberSet,
    /// Of these, who was away before, or failed: the array may do without them.
    pub(super) returned: MemberSet,
    /// Whether the array is opened though it says that it can't be trusted.
    pub(super) forced: bool,
}

/// Opens what a crash left, recovers it, and looks at all of it; then again, which must change nothing.
///
/// # Errors
/// What must not be.
pub(super) fn check(
    shape: &Shape,
    images: Vec<Option<Image>>,
    expect: &Expect,
    given: Given,
) -> Result<Outcome, Finding> {
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let outcome = open(shape, images, given)?;
        let Outcome::Open { images, accepted, .. } = &outcome else { return Ok(outcome) };
        expect.check(shape, images, *accepted)?;
        let again = open(shape, images.clone(), Given { left: *accepted, returned: MemberSet::EMPTY, ..given })?;
        match again {
            Outcome::Open { images: again, was_recovered: false, .. } if again == *images => Ok(outcome),
            _ => Err(Finding::NotStill),
        }
    }));
    caught.unwrap_or_else(|panic| Err(Finding::of_panic(&*panic)))
}

/// Opens the array and recovers it if it has to be.
fn open(shape: &Shape, images: Vec<Option<Image>>, given: Given) -> Result<Outcome, Finding> {
    let Some((candidates, verdict)) = admit(shape, &images, given)? else { return Ok(Outcome::Refused) };
    let accepted = shape.geometry.all_members().minus(verdict.missing());
    let images = (0u8..).zip(images).map(|(slot, image)| image.filter(|_| accepted.contains(MemberIndex(slot))));
    let disk = Plain::new(images.collect());
    let was_recovered = recover(disk.clone(), &verdict, &candidates)?;
    Ok(Outcome::Open { images: disk.images(), accepted, was_recovered })
}

type Admitted = (Vec<Candidate>, uraid_io::array::Verdict);

/// Whether the array may be used with these members.
pub(super) fn admit(shape: &Shape, images: &[Option<Image>], given: Given) -> Result<Option<Admitted>, Finding> {
    let candidates = candidates(images)?;
    let verdict = match judge(&candidates) {
        Ok(verdict) => verdict,
        Err(Refusal::SplitBrain { .. }) if !given.returned.is_empty() => return Ok(None),
        Err(error) => return Err(Finding::Refused { error: error.to_string() }),
    };
    let aside = verdict.missing().minus(shape.geometry.all_members().minus(given.left)).minus(given.returned);
    if !aside.is_empty() {
        return Err(Finding::SetAside { members: aside });
    }
    let options = OpenOptions { access: Access::ReadWrite, allow_degraded: true, force: given.forced };
    match check_presence(&verdict, &candidates, options) {
        Ok(()) => Ok(Some((candidates, verdict))),
        Err(OpenError::DirtyDegraded { .. }) if shape.consistency != Consistency::Log => Ok(None),
        Err(error) => Err(Finding::Refused { error: error.to_string() }),
    }
}

fn candidates(images: &[Option<Image>]) -> Result<Vec<Candidate>, Finding> {
    let slots = (0u8..).zip(images).filter_map(|(slot, image)| Some((MemberIndex(slot), image.as_ref()?)));
    let candidate = |(member, image)| {
        let superblock = superblock_of(image).map_err(|source| Finding::NoSuperblock { member, source })?;
        Ok(Candidate { path: PathBuf::new(), superblock })
    };
    slots.map(candidate).collect()
}

/// Assembles an array, recovers it and makes an engine of it; whether there was something to recover.
pub(super) fn recover(
    disk: impl Disk,
    verdict: &uraid_io::array::Verdict,
    candidates: &[Candidate],
) -> Result<bool, Finding> {
    let failed = |error: &dyn std::error::Error| Finding::NotRecovered { error: error.to_string() };
    let assembled = Assembled::new(disk, verdict, candidates, Access::ReadWrite, GENERATION);
    let mut assembled = assembled.map_err(|error| failed(&error))?;
    let needs_recovery = assembled.needs_recovery();
    if needs_recovery {
        assembled = assembled.recover(|_| {}).map_err(|error| failed(&error))?;
    }
    assembled.into_engine::<u64>().map_err(|error| failed(&error))?;
    Ok(needs_recovery)
}
