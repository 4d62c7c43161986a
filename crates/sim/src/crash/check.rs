//! What the real code makes of what a crash left, held against what must be found.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use uraid_io::array::{self, Assembled, Candidate, OpenError, OpenOptions, Refusal, Verdict, check_presence, judge};
use uraid_io::disk::Disk;
use uraid_io::engine::{Command, Engine};
use uraid_io::format::superblock::{Consistency, LogDevices, LogIndex};
use uraid_io::member::Access;
use uraid_layout::{MemberIndex, MemberSet};
use uuid::Uuid;

use super::Finding;
use super::expect::Expect;
use super::plain::Plain;
use super::shape::{Shape, behind};
use crate::image::Image;
use crate::member::superblock_of;

/// The log's runs after recoveries.
const GENERATION: Uuid = Uuid::from_u128(0x8);

/// Turns after which an engine that has not rebuilt a small array never will.
const TURNS_MAX: u32 = 100_000;

/// What became of an array that was opened.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It is not used without what is missing.
    Refused,
    /// It can be used; what the members hold now.
    Open {
        /// The content by slot, of the members that are part of the array, and of log devices.
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
    /// Who has come while the array was used: it may not know of them, nor they of it.
    pub(super) joining: MemberSet,
    /// Whether the array is opened though it says that it can't be trusted.
    pub(super) forced: bool,
}

/// Opens what a crash left, recovers it, and looks at all of it; then again, which must change nothing.
///
/// # Errors
/// What must not be.
pub(super) fn check(
    shape: &Shape,
    images: &[Option<Image>],
    expect: &Expect,
    given: Given,
) -> Result<Outcome, Finding> {
    // Of stripes of which the log has sums, lost content may be lost for good.
    let left = given.left.minus(shape.log_slots());
    let may_lack = left != shape.geometry.all_members() || !given.returned.union(given.joining).is_empty();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let outcome = open(shape, images, expect, given, may_lack)?;
        let Outcome::Open { images, accepted, .. } = &outcome else { return Ok(outcome) };
        expect.check(shape, images, *accepted, may_lack)?;
        let none = MemberSet::EMPTY;
        let given = Given { left: *accepted, returned: none, joining: none, ..given };
        let again = open(shape, images, expect, given, may_lack)?;
        match again {
            Outcome::Open { images: again, was_recovered: false, .. } if again == *images => Ok(outcome),
            _ => Err(Finding::NotStill),
        }
    }));
    caught.unwrap_or_else(|panic| Err(Finding::of_panic(&*panic)))
}

/// Opens the array, recovers it if it has to be, and has it write out what the journal had and rebuild what is to be
/// rebuilt; until then that can be done without.
fn open(
    shape: &Shape,
    images: &[Option<Image>],
    expect: &Expect,
    given: Given,
    may_lack: bool,
) -> Result<Outcome, Finding> {
    let Some(admitted) = admit(shape, images, given)? else { return Ok(Outcome::Refused) };
    let accepted = admitted.accepted();
    let disk = Plain::new(admitted.images.clone()).with_logs(shape.log_slot(LogIndex(0)));
    let (was_recovered, engine) = recover(disk.clone(), &admitted.verdict, &admitted.candidates)?;
    if !engine.is_dirty()
        && let Some(progress) = engine.rebuilding()
    {
        expect.check(shape, &disk.images(), accepted.minus(progress.members), may_lack)?;
    }
    finish(engine)?;
    Ok(Outcome::Open { images: disk.images(), accepted, was_recovered })
}

/// An array that may be used.
pub(super) struct Admitted {
    pub(super) candidates: Vec<Candidate>,
    pub(super) verdict: Verdict,
    /// What the accepted members hold, by slot, and the log devices.
    pub(super) images: Vec<Option<Image>>,
    /// Where they were found.
    pub(super) sources: Vec<Option<MemberIndex>>,
}

impl Admitted {
    /// Who is part of it.
    pub(super) fn accepted(&self) -> MemberSet {
        self.verdict.geometry.all_members().minus(self.verdict.missing())
    }
}

/// Whether the array may be used with these members.
pub(super) fn admit(shape: &Shape, images: &[Option<Image>], given: Given) -> Result<Option<Admitted>, Finding> {
    let (sources, candidates): (Vec<MemberIndex>, Vec<Candidate>) =
        candidates(shape, images, given.joining)?.into_iter().unzip();
    let mut verdict = match judge(&candidates) {
        Ok(verdict) => verdict,
        Err(Refusal::SplitBrain { .. }) if !given.returned.minus(given.joining).is_empty() => return Ok(None),
        Err(error) => return Err(Finding::Refused { error: error.to_string() }),
    };
    let aside = verdict.missing().minus(shape.geometry.all_members().minus(given.left)).minus(given.returned);
    if !aside.is_empty() {
        return Err(Finding::SetAside { members: aside });
    }
    let active = verdict.superblock.logs.as_ref().map(LogDevices::active).unwrap_or_default();
    let device = |log: LogIndex| images.get(shape.log_slot(log).index()).and_then(Option::as_ref);
    verdict.lost_logs = active.iter().filter(|&log| device(log).is_none()).collect();
    if !active.is_empty() && verdict.lost_logs == active {
        return Ok(None);
    }
    let options = OpenOptions { access: Access::ReadWrite, allow_degraded: true, force: given.forced };
    match check_presence(&verdict, &candidates, options) {
        Ok(()) => {
            let sources: Vec<_> = verdict.slots.iter().map(|candidate| candidate.map(|at| sources[at])).collect();
            let logs = (0..shape.logs).map(|log| device(LogIndex(log)).cloned());
            let images = behind(sources.iter().map(|source| source.and_then(|at| images[at.index()].clone())), logs);
            Ok(Some(Admitted { candidates, verdict, images, sources }))
        }
        Err(OpenError::DirtyDegraded { .. }) if shape.consistency != Consistency::Log => Ok(None),
        Err(error) => Err(Finding::Refused { error: error.to_string() }),
    }
}

/// What the members say, with where they are. One that has just come may have nothing to say.
fn candidates(
    shape: &Shape,
    images: &[Option<Image>],
    joining: MemberSet,
) -> Result<Vec<(MemberIndex, Candidate)>, Finding> {
    let logs = shape.log_slots();
    let slots = (0u8..).zip(images).filter_map(|(slot, image)| Some((MemberIndex(slot), image.as_ref()?)));
    let slots = slots.filter(|(slot, _)| !logs.contains(*slot));
    let candidate = |(member, image)| match superblock_of(image) {
        Ok(superblock) => Some(Ok((member, Candidate { path: PathBuf::new(), superblock }))),
        Err(_) if joining.contains(member) => None,
        Err(source) => Some(Err(Finding::NoSuperblock { member, source })),
    };
    slots.filter_map(candidate).collect()
}

/// Assembles an array, recovers it and makes an engine of it; with whether there was something to recover.
pub(super) fn recover<D: Disk>(
    disk: D,
    verdict: &Verdict,
    candidates: &[Candidate],
) -> Result<(bool, Engine<D, u64>), Finding> {
    let failed = |error: &dyn std::error::Error| Finding::NotRecovered { error: error.to_string() };
    let assembled = Assembled::new(disk, verdict, candidates, Access::ReadWrite, GENERATION);
    let mut assembled = assembled.map_err(|error| failed(&error))?;
    let needs_recovery = assembled.needs_recovery();
    if needs_recovery {
        assembled = array::recover(assembled, |_| {}).map_err(|error| failed(&error))?;
    }
    let engine = assembled.into_engine().map_err(|error| failed(&error))?;
    Ok((needs_recovery, engine))
}

/// Has an engine write out what the journal had and rebuild what is to be rebuilt, and closes the array, if there is
/// anything of that.
pub(super) fn finish<D: Disk>(mut engine: Engine<D, u64>) -> Result<(), Finding> {
    if !engine.is_dirty() && engine.rebuilding().is_none() {
        return Ok(());
    }
    let failed = |error: &dyn std::error::Error| Finding::NotRecovered { error: error.to_string() };
    let (mut replies, mut is_closing) = (Vec::new(), false);
    for _ in 0..TURNS_MAX {
        engine.turn(&mut replies).map_err(|error| failed(&error))?;
        if let Some(reply) = replies.pop() {
            return reply.result.map(drop).map_err(|error| failed(&error));
        }
        if engine.disk().in_flight() > 0 {
            engine.disk_mut().wait().map_err(|error| failed(&error))?;
        } else if engine.rebuilding().is_some() {
            engine.tick();
        } else if !std::mem::replace(&mut is_closing, true) {
            engine.submit(0, Command::Close);
        }
    }
    Err(Finding::Stuck)
}
