//! Another shape for a stopped array: level, chunk, number of members and placement, on the same members and new ones.
//!
//! The content moves window by window ([`Course`]). A window is read from its old places, written with all of its
//! parity to its new ones, made durable, and then the mark goes on record on all members. A window whose new places are
//! some of its old ones is [saved](saved) first, which goes on record, too. Cut off anywhere, this leaves an array
//! whose superblocks say which content is in which shape: nothing else opens it, and it can go on or go back from
//! there.
//!
//! Going back is the same with the mark moving the other way. What joins has its superblock before a member of the
//! array knows of it; what leaves loses its own when no member does any more.

mod content;
mod copied;
mod error;
mod exchange;
mod files;
pub(crate) mod lacking;
pub(super) mod members;
pub(crate) mod moving;
mod plan;
mod rehearse;
pub(super) mod restore;
pub(crate) mod saved;
mod served;
pub(super) mod unserved;

use std::path::PathBuf;

use uraid_layout::repair::Repair;
use uraid_layout::reshape::{Course, Window};
use uraid_layout::{Bytes, DiskSector, Geometry, MemberIndex, MemberSet, Sectors};
use uuid::Uuid;

use super::assemble::{Assembled, catch_up, taken_over};
use super::badblocks::{LostList, read_lists};
use super::bitmap::bitmap_writes;
use super::blocking::{flush, perform, superblock_writes};
use super::judge::{Candidate, Verdict};
use super::losses::{Loss, Losses};
use crate::Error;
use crate::disk::Disk;
use crate::engine::Record;
use crate::format::Epoch;
use crate::format::badblocks::BadBlocks;
use crate::format::bitmap::{Bitmap, Regions};
use crate::format::superblock::{Area, Areas, Reshape, SUPERBLOCK_BYTES, SlotEntry, Superblock, places};
use crate::member::Access;
pub use error::ReshapeError;
pub use exchange::Exchange;
pub use files::{Found, Prepared, UnderWay, lost_of_saved, open_for_reshape};
use lacking::Listed;
use members::Members;
pub use plan::{NewMember, ReshapePlan, Target, Work, plan_reshape};
pub use rehearse::{Rehearsed, first_and_last, rehearse_moves};
use restore::{advance, beyond, restore};
use saved::{Copies, Whose};
pub use served::{begin_served, finish_served, plan_served};
pub use unserved::Unserved;

/// An array that is being reshaped; its members are open.
#[derive(Debug)]
pub struct Reshaping<D> {
    members: Members<D>,
    course: Course,
}

/// What came of it.
#[derive(Debug)]
pub struct Reshaped<D> {
    /// The shape that the array has.
    pub geometry: Geometry,
    /// Whether that is the one that it had.
    pub is_back: bool,
    /// Where its members are, by slot; none is missing.
    pub paths: Vec<Option<PathBuf>>,
    /// Who failed meanwhile.
    pub losses: Vec<Loss>,
    /// The disk, with the members of both shapes.
    pub disk: D,
}

/// Puts a reshape on record; blocks. `more` gives a disk that has the new members, too, in the slots after those of the
/// array. `generation` is a number that nobody can guess.
///
/// # Errors
/// When a member fails. No member has the reshape on record then, or it can go on.
pub fn begin_reshape<D: Disk, E: Disk>(
    assembled: Assembled<D>,
    plan: ReshapePlan,
    generation: Uuid,
    more: impl FnOnce(D) -> Result<E, Error>,
) -> Result<Reshaping<E>, ReshapeError> {
    let Assembled { record, disk, losses, bad_blocks, .. } = assembled;
    let mut disk = more(disk)?;
    make_new(&plan, &mut disk, record.any(), generation)?;
    let paths = (0..).map(MemberIndex).take(record.superblocks().count()).map(|slot| losses.path(slot)).collect();
    put_on_record(plan, disk, (&record, bad_blocks), paths, generation)
}

/// Makes the new members, of which the array's own know nothing yet; `truth` is what these have on record.
fn make_new(
    plan: &ReshapePlan,
    disk: &mut impl Disk,
    truth: &Superblock,
    generation: Uuid,
) -> Result<(), ReshapeError> {
    for new in &plan.joining {
        // Of the array's epoch, in which its own members know nothing of it: until all are made, nothing has begun.
        let first = Superblock { epoch: truth.epoch, ..plan::begun(new, plan.reshape, &new.slots, generation) };
        if !planted!(ReshapeNewUnmade) {
            introduce(disk, &first, plan.are_clear).map_err(ReshapeError::Unmade)?;
        }
    }
    Ok(())
}

/// Has all members say that the reshape has begun. The array's are at `paths`, say what `record` has, and lack what is
/// in the lists.
fn put_on_record<D: Disk>(
    plan: ReshapePlan,
    disk: D,
    (record, lists): (&Record, Vec<BadBlocks>),
    paths: Vec<PathBuf>,
    generation: Uuid,
) -> Result<Reshaping<D>, ReshapeError> {
    let ReshapePlan { reshape, consistency, course, joining, paths: new_paths, .. } = plan;
    let (truth, missing) = (record.any(), record.missing());
    let is_there = |own: &Superblock| !missing.contains(own.slot);
    let mut own: Vec<Option<Superblock>> = record.superblocks().map(|own| own.cloned().filter(is_there)).collect();
    let mut slots = joining.first().map_or_else(|| truth.slots.clone(), |own| own.slots.clone());
    // They are members from the round on that all others get.
    let epoch = Epoch(truth.epoch.0 + 1);
    slots[own.len()..].iter_mut().for_each(|entry: &mut SlotEntry| entry.since = epoch);
    let paths = paths.into_iter().chain(new_paths).collect();
    own.extend(joining.into_iter().map(|new| Some(Superblock { epoch: truth.epoch, ..new })));
    let mut members = Members::new(disk, own, lists, paths, Vec::new());
    members.record(|own| *own = Superblock { consistency, ..plan::begun(own, reshape, &slots, generation) })?;
    Ok(Reshaping { members, course })
}

/// Makes a new member: nothing that it held is taken for anything of the array, and then it has its superblock.
fn introduce(disk: &mut impl Disk, own: &Superblock, is_clear: bool) -> Result<(), Error> {
    if !is_clear {
        members::erase(disk, own.slot, &superblock_areas(&own.areas))?;
        members::erase(disk, own.slot, &[own.areas.bitmap, own.areas.bad_blocks, own.areas.log, own.areas.sums])?;
    }
    perform(disk, superblock_writes(own))?;
    perform(disk, [flush(own.slot)])
}

/// Where a member may have superblocks.
fn superblock_areas(areas: &Areas) -> [Area; 4] {
    let places = places(areas.member_size).expect("checked areas have room for a superblock");
    places.map(|offset| Area { offset, size: Bytes(SUPERBLOCK_BYTES as u64) })
}

impl<D: Disk> Reshaping<D> {
    /// The array that a verdict describes and that is being reshaped; `disk` has the accepted members in their slots.
    /// Members that the last round of superblock writes did not reach catch up.
    ///
    /// # Errors
    /// When members are missing that it can't do without, going forward or back; or when some are that are on record as
    /// there, unless that is allowed, or it goes back and they are new.
    ///
    /// # Panics
    /// When the array is not being reshaped.
    pub fn found(
        mut disk: D,
        verdict: &Verdict,
        candidates: &[Candidate],
        is_back: bool,
        allow_degraded: bool,
    ) -> Result<Self, ReshapeError> {
        let reshape = verdict.superblock.reshape.expect("the array is being reshaped");
        if !verdict.superblock.is_clean {
            return Err(ReshapeError::Served);
        }
        let course = reshape.course(verdict.superblock.spec)?;
        let is_needed = |slot: &MemberIndex| !is_back || slot.index() < course.from().members();
        let newly_missing: MemberSet = verdict.newly_missing().iter().filter(is_needed).collect();
        if !newly_missing.is_empty() && !allow_degraded {
            return Err(ReshapeError::Missing { missing: newly_missing });
        }
        let mut own = taken_over(verdict, candidates);
        let mut losses = Losses::new(verdict, candidates);
        let paths = (0..).map(MemberIndex).take(own.len()).map(|slot| losses.path(slot)).collect();
        catch_up(&mut disk, verdict, candidates, &mut own, &mut losses).map_err(super::OpenError::from)?;
        let lists = read_lists(&mut disk, &own, &mut losses, Access::ReadWrite, LostList::Refused);
        let lists = lists.map_err(super::OpenError::from)?;
        losses.members().iter().for_each(|member| own[member.index()] = None);
        let members = Members::new(disk, own, lists, paths, losses.all().to_vec());
        let missing = members.missing();
        for shape in members.shapes(is_back) {
            if Repair::new(&shape, missing).is_err() {
                return Err(ReshapeError::TooFew { missing, level: shape.spec().level });
            }
        }
        Ok(Self { members, course })
    }

    /// The two shapes, and the way between them.
    pub fn course(&self) -> &Course {
        &self.course
    }

    /// How far it has come.
    pub fn state(&self) -> Reshape {
        self.members.reshape()
    }

    /// Goes on to the end, or back to the beginning; blocks. `progress` gets how much content is where it is to be.
    /// `generation` is a number for the log that nobody can guess.
    ///
    /// # Errors
    /// When a member fails that can't be done without, or content can't be read. It can go on from there.
    pub fn run(
        mut self,
        is_back: bool,
        generation: Uuid,
        mut progress: impl FnMut(Bytes),
    ) -> Result<Reshaped<D>, ReshapeError> {
        restore(&mut self.members, is_back)?;
        let heading = self.course.heading(is_back);
        let end = self.course.end(heading);
        let room = saved::room(self.members.own().iter().flatten());
        let unit = self.course.unit().bytes();
        let copies = Copies::of(&self.course);
        let pace = saved::pace(&self.course, copies, room).ok_or(ReshapeError::TooCoarse { unit, most: room })?;
        loop {
            let mark = self.state().mark;
            progress(Sectors(self.course.kept().0 - mark.0.abs_diff(end.0)).bytes());
            let Some(window) = self.course.next(mark, heading, pace) else { break };
            self.step(&window, is_back, copies)?;
        }
        self.finish(is_back, generation)
    }

    /// Moves a window.
    fn step(&mut self, window: &Window, is_back: bool, copies: Copies) -> Result<(), ReshapeError> {
        let Self { members, course } = self;
        let (heading, range) = (course.heading(is_back), &window.content);
        let next = beyond(range, members.reshape().mark);
        let content = content::read(members, course.source(heading), range)?;
        let Listed { lists, more } = members.listed(course.target(heading), range, &content)?;
        if let Some(lba) = more.filter(|_| !planted!(MoreLostByMoving)) {
            return Err(ReshapeError::LosesMore { lba });
        }
        if window.is_saved && !planted!(ReshapeUnsaved) {
            let whose = Whose { array: members.any().array, save: members.reshape().save + 1 };
            saved::write(members, copies, whose, range, &content)?;
            if !planted!(ReshapeSavedUnflushed) {
                members.flush()?;
            }
            let saved = Sectors(range.end.0 - range.start.0);
            members.record(|own| advance(own, |reshape| (reshape.saved, reshape.save) = (saved, whose.save)))?;
        }
        let done = |own: &mut Superblock| {
            advance(own, |reshape| (reshape.mark, reshape.saved) = (next, Sectors(0)));
        };
        if planted!(ReshapeMarkEarly) {
            members.record(done)?;
        }
        members.settle(course.target(heading), range, &content, lists)?;
        members.record(done)
    }

    /// Says that the array has its shape, and lets those go that it has no place for.
    fn finish(self, is_back: bool, generation: Uuid) -> Result<Reshaped<D>, ReshapeError> {
        let (members, geometry) = self.end(is_back, generation)?;
        let (disk, paths, losses) = members.into_parts();
        Ok(Reshaped { geometry, is_back, paths, losses, disk })
    }

    fn end(self, is_back: bool, generation: Uuid) -> Result<(Members<D>, Geometry), ReshapeError> {
        let Self { mut members, course } = self;
        let shape = course.target(course.heading(is_back)).clone();
        let leaving = members.split_off(shape.members());
        let truth = members.any();
        let before = members.reshape().before;
        let consistency =
            if is_back { before } else { plan::after(before, truth.integrity, truth.spec.level, shape.spec().level) };
        let change = |own: &mut Superblock| *own = plan::ended(own, &shape, consistency, generation);
        // Whoever is missing lacks all of it, whatever a bitmap said of the shape before.
        let regions = Regions::new(&shape);
        let is_whole = members.missing().is_empty() || planted!(ReshapeBitsKept);
        let bitmap = if is_whole { Bitmap::empty(regions) } else { Bitmap::full(regions) };
        let seal_of = |own: &Superblock| {
            let mut own = own.clone();
            change(&mut own);
            own.seal().filter(|_| shape.tolerance() > 0)
        };
        let write = |own: &Superblock| {
            let seal = seal_of(own)?;
            Some(bitmap_writes(own.slot, own.areas.bitmap.offset, seal, &bitmap))
        };
        let writes: Vec<_> = members.own().iter().flatten().filter_map(write).flatten().collect();
        members.perform(writes)?;
        members.flush()?;
        // What is beyond the shape is nobody's, and blank when the array grows into it.
        let mut lists = members.lists().to_vec();
        for list in lists.iter_mut().filter(|_| !planted!(ListsUntrimmed)) {
            list.truncate(DiskSector(shape.used_sectors().0));
        }
        members.keep(lists)?;
        members.record(change)?;
        for own in leaving.into_iter().filter(|_| !planted!(ReshapeLeaverKept)) {
            // It is no member of the array any more, whatever it says.
            if let Err(error) = members.erase(own.slot, &superblock_areas(&own.areas)) {
                tracing::warn!(slot = %own.slot, %error, "a member that left still has its superblock");
            }
        }
        Ok((members, shape))
    }
}
