//! Putting an engine's parts together anew, when its array has become another one: it is larger. The disk stays, and so
//! does what was counted.

use std::rc::Rc;

use uraid_layout::{Geometry, MemberIndex};

use super::core::Core;
use super::error::EngineError;
use super::executor::{Desk, Executor};
use super::ops::initialise;
use super::parts::Parts;
use super::record::Record;
use super::tasks::Tasks;
use super::transfer::Workspace;
use super::work::{Work, perform};
use crate::format::badblocks::BadBlocks;
use crate::format::bitmap::Bitmap;
use crate::format::superblock::Superblock;

/// What an array has beside its content.
#[derive(Debug)]
pub(crate) struct Kept {
    /// What is on record.
    pub(crate) record: Record,
    /// What the members lack, by slot.
    pub(crate) bad_blocks: Vec<BadBlocks>,
    /// The regions that are not blank, where any are.
    pub(crate) blank: Option<Bitmap>,
}

/// What an array has whose engine has nothing to do.
pub(super) fn kept(parts: &Parts) -> Kept {
    let (record, present) = (parts.members.record(), parts.members.present());
    // Those of members that are not there are as they were.
    let own = |(slot, own): (u8, Option<&Superblock>)| own.filter(|_| present.contains(MemberIndex(slot))).cloned();
    let superblocks = (0u8..).zip(record.superblocks()).map(own).collect();
    let list = |member| parts.bad.of(member).map(|list| list.clone()).unwrap_or_default();
    let bad_blocks = parts.members.all().iter().map(list).collect();
    Kept { record: Record::new(superblocks), bad_blocks, blank: parts.blanks.map() }
}

/// As [`begin`], of an array that was another one `before`, with all that it has.
///
/// # Errors
/// As [`begin`].
pub(super) fn anew(
    before: &Parts,
    geometry: Geometry,
    kept: Kept,
    intent: Option<Bitmap>,
) -> Result<(Rc<Core>, Executor<Work>), EngineError> {
    let Kept { record, bad_blocks, blank } = kept;
    let (core, executor) = begin(geometry, record, false)?;
    let parts = &core.sides.below;
    let counters = before.members.counters.borrow().clone().of(parts.members.count());
    parts.members.counters.replace(counters);
    if let Some((log, old)) = parts.log.as_ref().zip(before.log.as_ref()) {
        log.set_takes_sums(old.takes_sums());
    }
    intent.into_iter().for_each(|set| parts.intent.restart(set));
    parts.bad.restart(bad_blocks);
    blank.into_iter().for_each(|made| initialise::restart(parts, made));
    parts.sweeps.turn_on();
    Ok((core, executor))
}

/// What operations share, of an array that `record` describes, and those who carry them out.
///
/// # Errors
/// As [`Engine::new`](super::Engine::new).
pub(super) fn begin(
    geometry: Geometry,
    record: Record,
    is_read_only: bool,
) -> Result<(Rc<Core>, Executor<Work>), EngineError> {
    let tasks = Rc::new(Tasks::default());
    let core = Rc::new(Core::new(Parts::new(&tasks, geometry, record, is_read_only)?));
    core.background.rebuild.restart(&core.sides.below);
    let worker = Rc::clone(&core);
    Ok((core, Executor::new(tasks, move |desk| serve(Rc::clone(&worker), desk))))
}

/// A worker: does one piece of work after another.
async fn serve(core: Rc<Core>, desk: Rc<Desk<Work>>) {
    let mut space = Workspace::default();
    loop {
        let work = desk.next().await;
        perform(&core, &mut space, work).await;
        // A worker without work holds no pages.
        space.clear();
    }
}
