//! What a reshape comes to, decided before anything is written: every refusal is here.

use std::path::PathBuf;

use uraid_layout::repair::Repair;
use uraid_layout::reshape::{Course, CourseError, Pace, Window};
use uraid_layout::{Bytes, Geometry, Lba, Level, MemberIndex, SECTOR_BYTES, Sectors, Spec};
use uuid::Uuid;

use super::error::ReshapeError;
use super::lacking::{listed, lost_of};
use super::saved::{self, Copies};
use super::unserved::Unserved;
use crate::array::assemble::Assembled;
use crate::array::create::stripe_on_member;
use crate::array::open::why_unserved;
use crate::array::sectors::{LargeSectors, too_large};
use crate::disk::Disk;
use crate::engine::Record;
use crate::format::Epoch;
use crate::format::badblocks::BadBlocks;
use crate::format::superblock::{
    Areas, Consistency, Integrity, Reshape, Revision, ScrubHistory, SlotEntry, SlotState, Superblock,
};

/// The most content that the parity stripes of both shapes may have in common: it is in memory.
const UNIT_MAX: Bytes = Bytes(512 << 20);

/// What content is kept in multiples of: no member has larger sectors.
const GRAIN: u64 = 4096;

/// The shape that an array is to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The level with its options.
    pub level: Level,
    /// The number of members.
    pub members: u8,
    /// The chunk.
    pub chunk: Bytes,
    /// How much of the content is kept; none: all of it.
    pub kept: Option<Bytes>,
    /// Although members are missing.
    pub allow_degraded: bool,
}

/// A file or device that becomes a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMember {
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub size: Bytes,
    /// The least that it reads and writes at once.
    pub sector_size: Bytes,
    /// Where members have anything but content it has zeros.
    pub is_clear: bool,
}

/// What a reshape will do.
#[derive(Clone, Debug)]
pub struct ReshapePlan {
    pub(super) reshape: Reshape,
    /// What keeps its stripes consistent meanwhile.
    pub(super) consistency: Consistency,
    pub(super) course: Course,
    /// The new members' superblocks, of the round that begins it.
    pub(super) joining: Vec<Superblock>,
    pub(super) paths: Vec<PathBuf>,
    /// New members have zeros already where members have anything but content.
    pub(super) are_clear: bool,
    pub(super) pace: Pace,
    /// What the members have room for in the new shape.
    room: Sectors,
    unserved: Option<Unserved>,
}

/// How much work it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// How often content moves.
    pub windows: u64,
    /// In how many of these it is saved first.
    pub saved_windows: u64,
    /// How much content is saved.
    pub saved: Bytes,
}

impl ReshapePlan {
    /// The shape that the array has, as far as it has content that is kept.
    #[must_use]
    pub fn from(&self) -> &Geometry {
        self.course.from()
    }

    /// The shape that it gets.
    #[must_use]
    pub fn to(&self) -> &Geometry {
        self.course.to()
    }

    /// How much content is kept.
    #[must_use]
    pub fn kept(&self) -> Bytes {
        self.course.kept().bytes()
    }

    /// How much the array can hold in its new shape: when it has grown into all of its members.
    #[must_use]
    pub fn room(&self) -> Bytes {
        self.room.bytes()
    }

    /// How much moves at once, at most.
    #[must_use]
    pub fn window(&self) -> Bytes {
        self.pace.plain.max(self.pace.saved).bytes()
    }

    /// Refuses an array that can't be served while its content moves.
    ///
    /// # Errors
    /// [`ReshapeError::NotServed`].
    pub fn check_served(&self) -> Result<(), ReshapeError> {
        self.unserved.map_or(Ok(()), |unserved| Err(ReshapeError::NotServed { unserved }))
    }

    /// How much work it is.
    #[must_use]
    pub fn work(&self) -> Work {
        let heading = self.course.heading(false);
        let (mut mark, mut work) = (self.course.start(), Work::default());
        while let Some(Window { content, is_saved }) = self.course.next(mark, heading, self.pace) {
            work.windows += 1;
            if is_saved {
                work.saved_windows += 1;
                work.saved.0 += (content.end.0 - content.start.0) * SECTOR_BYTES;
            }
            mark = if content.start == mark { content.end } else { content.start };
        }
        work
    }
}

/// What an array has that is to get another shape.
pub(super) struct State<'a> {
    pub(super) geometry: &'a Geometry,
    pub(super) record: &'a Record,
    /// What the members lack, by slot.
    pub(super) bad_blocks: &'a [BadBlocks],
    /// Some of it is not initialised.
    pub(super) is_blank: bool,
    /// It was stopped cleanly, or is going to be before anything begins.
    pub(super) is_clean: bool,
}

/// How a stopped array gets another shape. `new` are members that join, for the slots after those that it has.
///
/// # Errors
/// See [`ReshapeError`].
///
/// # Panics
/// When new members join that the shape has no slots for.
pub fn plan_reshape<D: Disk>(
    assembled: &Assembled<D>,
    target: &Target,
    new: &[NewMember],
) -> Result<ReshapePlan, ReshapeError> {
    let Assembled { geometry, record, bad_blocks, blank, .. } = assembled;
    let (is_blank, is_clean) = (assembled.is_initialising() || blank.is_some(), record.is_clean());
    plan(&State { geometry, record, bad_blocks, is_blank, is_clean }, target, new)
}

/// As [`plan_reshape`], of an array that has this.
pub(super) fn plan(state: &State<'_>, target: &Target, new: &[NewMember]) -> Result<ReshapePlan, ReshapeError> {
    let truth = state.record.any();
    let has_slots = usize::from(target.members) == usize::from(truth.spec.members) + new.len();
    assert!(new.is_empty() || has_slots, "who joins gets a slot of its own");
    refuse_state(state, target)?;
    let joining = joining(truth, new)?;
    let (course, to) = course(state, target, &joining)?;
    let missing = state.record.missing();
    for shape in [course.from(), course.to()] {
        if Repair::new(shape, missing).is_err() {
            return Err(ReshapeError::TooFew { missing, level: shape.spec().level });
        }
    }
    check_losses(state, &course)?;
    let reshape = Reshape {
        to: *course.to().spec(),
        kept: course.kept(),
        mark: course.start(),
        is_back: false,
        saved: Sectors(0),
        // Each save costs at least one epoch: the numbers of former reshapes are lower.
        save: truth.epoch.0,
        before: truth.consistency,
    };
    let old: Vec<Superblock> = state.record.superblocks().flatten().cloned().collect();
    // Who is missing goes on record as failed with the reshape. How far it was rebuilt means nothing in another shape.
    let settled = |(slot, entry): (MemberIndex, &SlotEntry)| {
        let is_over = missing.contains(slot) && entry.state.is_rebuilding();
        SlotEntry { state: if is_over { SlotState::Active } else { entry.state }, ..*entry }
    };
    let known = (0..).map(MemberIndex).zip(&truth.slots).map(settled);
    let slots: Vec<SlotEntry> = known.chain(entries(&joining, truth)).collect();
    let begun = |own: &Superblock| begun(own, reshape, &slots, truth.generation);
    for own in old.iter().chain(&joining) {
        check(&begun(own), &course, truth.consistency)?;
    }
    let consistency = meanwhile(old.iter().chain(&joining).map(begun).collect(), truth.consistency);
    let begun = |own: &Superblock| Superblock { consistency, ..begun(own) };
    check_logs(&old, &joining, &course, after(truth.consistency, truth.integrity, truth.spec.level, target.level))?;
    let room = saved::room(old.iter().chain(&joining));
    let unit = course.unit().bytes();
    let pace = saved::pace(&course, Copies::of(&course), room).ok_or(ReshapeError::TooCoarse { unit, most: room })?;
    if unit > UNIT_MAX {
        return Err(ReshapeError::TooCoarse { unit, most: UNIT_MAX });
    }
    let all: Vec<Superblock> = old.iter().chain(&joining).map(begun).collect();
    let unserved = why_unserved(&all);
    let joining = joining.iter().map(begun).collect();
    Ok(ReshapePlan {
        reshape,
        consistency,
        course,
        joining,
        paths: new.iter().map(|new| new.path.clone()).collect(),
        are_clear: new.iter().all(|new| new.is_clear),
        pace,
        room: to.capacity(),
        unserved,
    })
}

/// What keeps its stripes consistent while an array is between two shapes, whose members would have these superblocks:
/// a log where it can be, and otherwise what did before.
fn meanwhile(mut begun: Vec<Superblock>, before: Consistency) -> Consistency {
    if why_unserved(&begun).is_none() {
        return before;
    }
    begun.iter_mut().for_each(|own| own.consistency = Consistency::Log);
    let is_log = why_unserved(&begun).is_none() && begun.iter().all(|own| own.check().is_ok());
    if is_log { Consistency::Log } else { before }
}

/// What keeps an array's stripes consistent that had one level and gets another: what it had, or where that is what its
/// level takes, what the other level takes. Checksums need a log.
pub(super) fn after(before: Consistency, integrity: Integrity, from: Level, to: Level) -> Consistency {
    let is_usual = before == Consistency::of_level(from) && !planted!(ReshapedUnlogged);
    match to {
        _ if integrity != Integrity::None => before,
        Level::Raid0 => Consistency::None,
        to if is_usual => Consistency::of_level(to),
        _ => before,
    }
}

/// A member's superblock when a reshape has begun.
pub(super) fn begun(own: &Superblock, reshape: Reshape, slots: &[SlotEntry], generation: Uuid) -> Superblock {
    Superblock {
        reshape: Some(reshape),
        slots: slots.to_vec(),
        generation,
        journal: generation,
        scrub: ScrubHistory { run: None, ..own.scrub },
        ..own.clone()
    }
}

/// Refuses an array that is not in a state to be reshaped.
fn refuse_state(state: &State<'_>, target: &Target) -> Result<(), ReshapeError> {
    let State { record, .. } = state;
    let (lost, missing) = (record.lost(), record.missing());
    if !lost.is_empty() && (!target.allow_degraded || lost != missing) {
        return Err(ReshapeError::NotWhole { missing: lost });
    }
    if state.record.any().logs.is_some() {
        return Err(ReshapeError::LogDevices);
    }
    if state.is_blank {
        return Err(ReshapeError::Blank);
    }
    if !state.is_clean {
        return Err(ReshapeError::Dirty);
    }
    Ok(())
}

/// Refuses a shape in which more would be lost than is, or whose members have no room to say what is.
fn check_losses(state: &State<'_>, course: &Course) -> Result<(), ReshapeError> {
    let (missing, content) = (state.record.missing(), Lba(0)..Lba(course.kept().0));
    let list = |member: MemberIndex| state.bad_blocks[member.index()].clone();
    let lost = lost_of(course.from(), missing, list, &content);
    let none = vec![BadBlocks::default(); course.to().members()];
    let listed = listed(course.to(), missing, none, &content, &lost);
    let more = listed.map_err(|(member, source)| ReshapeError::ListFull { member, source })?.more;
    more.map_or(Ok(()), |lba| Err(ReshapeError::LosesMore { lba }))
}

/// The superblocks that new members would have if the array had them in its shape.
fn joining(truth: &Superblock, new: &[NewMember]) -> Result<Vec<Superblock>, ReshapeError> {
    let one = |(slot, NewMember { path, size, sector_size, .. }): (u8, &NewMember)| {
        if let Some(found) = too_large(*sector_size, truth.sector_size) {
            let (path, sector_size) = (path.clone(), truth.sector_size);
            return Err(LargeSectors { path, found, sector_size }.into());
        }
        let areas = Areas::new(*size, truth.areas.log.size, truth.integrity);
        let areas = areas.ok_or_else(|| ReshapeError::TooSmall { path: path.clone(), size: *size })?;
        let slot = MemberIndex(truth.spec.members.saturating_add(slot));
        Ok(Superblock { member: Uuid::new_v4(), slot, areas, revision: Revision(0), ..truth.clone() })
    };
    (0..=u8::MAX).zip(new).map(one).collect()
}

fn entries(joining: &[Superblock], truth: &Superblock) -> Vec<SlotEntry> {
    let since = Epoch(truth.epoch.0);
    joining.iter().map(|own| SlotEntry { member: own.member, state: SlotState::Active, since }).collect()
}

/// The way to the shape that the array is to get, and that shape with as much of each member as there is.
fn course(state: &State<'_>, target: &Target, joining: &[Superblock]) -> Result<(Course, Geometry), ReshapeError> {
    let State { geometry, record, .. } = state;
    let from = *geometry.spec();
    let size = geometry.capacity().bytes();
    let kept = target.kept.unwrap_or(size);
    if kept > size {
        return Err(ReshapeError::TooMuch { size, asked: kept });
    }
    let kept = Bytes(kept.0.next_multiple_of(GRAIN).min(size.0));
    let old = record.superblocks().flatten();
    let members = old.chain(joining).filter(|own| own.slot.0 < target.members);
    let room = members.map(|own| own.areas.usable_sectors(own.integrity)).min().unwrap_or_default();
    // What is missing has at least as much as the array uses.
    let is_missing = record.missing().iter().any(|slot| slot.0 < target.members);
    let room = if is_missing { room.min(from.member_size) } else { room };
    let to = Spec { level: target.level, members: target.members, chunk: target.chunk, member_size: room };
    if (to.level, to.members, to.chunk, kept) == (from.level, from.members, from.chunk, size) {
        return Err(ReshapeError::Same);
    }
    let course = Course::new(from, to, kept.whole_sectors()).map_err(|error| match error {
        CourseError::NoRoom { room, kept } => ReshapeError::NoRoom { room: room.bytes(), kept: kept.bytes() },
        error => error.into(),
    })?;
    Ok((course, Geometry::new(to).map_err(CourseError::from)?))
}

/// Refuses members that can't have what their superblocks would say, now or at either end.
fn check(begun: &Superblock, course: &Course, before: Consistency) -> Result<(), ReshapeError> {
    let unfit = |source| ReshapeError::Unfit { member: begun.slot, source };
    begun.check().map_err(unfit)?;
    let after = after(before, begun.integrity, begun.spec.level, course.to().spec().level);
    for (shape, consistency) in [(course.to(), after), (course.from(), before)] {
        if begun.slot.index() < shape.members() {
            ended(begun, shape, consistency, begun.generation).check().map_err(unfit)?;
        }
    }
    Ok(())
}

/// A member's superblock when the array has got a shape.
pub(super) fn ended(own: &Superblock, shape: &Geometry, consistency: Consistency, generation: Uuid) -> Superblock {
    Superblock {
        spec: *shape.spec(),
        reshape: None,
        slots: own.slots[..shape.members()].to_vec(),
        consistency,
        generation,
        journal: generation,
        ..own.clone()
    }
}

/// Refuses logs that are too small for the new shape, where it is to have one.
fn check_logs(
    old: &[Superblock],
    joining: &[Superblock],
    course: &Course,
    consistency: Consistency,
) -> Result<(), ReshapeError> {
    let needed = Areas::log_min(stripe_on_member(course.to()));
    let members = old.iter().chain(joining).filter(|own| own.slot.index() < course.to().members());
    let least = members.min_by_key(|own| own.areas.log.size).expect("an array has members");
    let (member, size) = (least.slot, least.areas.log.size);
    if consistency == Consistency::Log && size < needed {
        return Err(ReshapeError::LogTooSmall { member, size, needed });
    }
    Ok(())
}
