//! A rehearsal: the first window of a reshape and the last one are moved on copies of the members, and read back, with
//! all members and without any of them.

use uraid_layout::repair::Repair;
use uraid_layout::reshape::Window;
use uraid_layout::{Bytes, Lba, MemberSet, SECTOR_BYTES, Sectors};

use super::content::{read, read_without};
use super::error::ReshapeError;
use super::lacking::{Content, others};
use super::restore::advance;
use super::saved::{self, Copies};
use super::{ReshapePlan, Reshaping};
use crate::disk::Disk;

/// What was rehearsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rehearsed {
    /// Windows that were moved: the first, and the last where that is another one.
    pub windows: u64,
    /// How much content is in them.
    pub content: Bytes,
    /// They were also read without any one member.
    pub survives_any: bool,
}

/// Where the mark is before the first window of a reshape moves, and before the last does.
#[must_use]
pub fn first_and_last(plan: &ReshapePlan) -> Vec<Lba> {
    let (course, heading) = (&plan.course, plan.course.heading(false));
    let mut marks = Vec::new();
    let mut mark = course.start();
    while let Some(Window { content, .. }) = course.next(mark, heading, plan.pace) {
        marks.truncate(1);
        marks.push(mark);
        mark = super::beyond(&content, mark);
    }
    marks
}

/// Moves the windows before which the mark is there, whatever else has moved, and compares what is read then with
/// what was read before. The members are not as they were then: they should be copies.
///
/// # Errors
/// [`ReshapeError::Rehearsal`] where content is another one; what ends a reshape.
pub fn rehearse_moves<D: Disk>(mut reshaping: Reshaping<D>, marks: &[Lba]) -> Result<Rehearsed, ReshapeError> {
    let (course, heading) = (reshaping.course.clone(), reshaping.course.heading(false));
    let (copies, room) = (Copies::of(&course), saved::room(reshaping.members.own().iter().flatten()));
    let unit = course.unit().bytes();
    let pace = saved::pace(&course, copies, room).ok_or(ReshapeError::TooCoarse { unit, most: room })?;
    let missing = reshaping.members.missing();
    let survives = |slot| {
        let without = missing.with(slot);
        [course.from(), course.to()].into_iter().all(|shape| Repair::new(shape, without).is_ok())
    };
    let survives_any = reshaping.members.present().iter().all(survives);
    let mut rehearsed = Rehearsed { windows: 0, content: Bytes(0), survives_any };
    for &mark in marks {
        reshaping.members.record(|own| advance(own, |reshape| (reshape.mark, reshape.saved) = (mark, Sectors(0))))?;
        let Some(window) = course.next(mark, heading, pace) else { continue };
        let before = read(&mut reshaping.members, course.source(heading), &window.content)?;
        reshaping.step(&window, false, copies)?;
        let target = course.target(heading);
        let slots = reshaping.members.present().iter().filter(|slot| survives_any && slot.index() < target.members());
        let losses = slots.map(|slot| MemberSet::EMPTY.with(slot));
        for without in std::iter::once(MemberSet::EMPTY).chain(losses.collect::<Vec<_>>()) {
            let after = read_without(&mut reshaping.members, target, &window.content, without)?;
            if !is_same(&before, &after, without, window.content.start) {
                return Err(ReshapeError::Rehearsal { lba: window.content.start, without });
            }
        }
        rehearsed.windows += 1;
        rehearsed.content.0 += before.bytes.len() as u64;
    }
    Ok(rehearsed)
}

/// Whether content is what it was: what is lost now was lost before, unless members are missing.
fn is_same(before: &Content, after: &Content, without: MemberSet, start: Lba) -> bool {
    if without.is_empty() {
        return before.lost == after.lost && before.bytes.as_ref() == after.bytes.as_ref();
    }
    let content = start..Lba(start.0 + before.bytes.len() as u64 / SECTOR_BYTES);
    others(&content, &after.lost, u64::MAX).all(|range| {
        let at = |lba: Lba| usize::try_from((lba.0 - start.0) * SECTOR_BYTES).expect("a window fits the address space");
        let bytes = at(range.start)..at(range.end);
        before.bytes.as_ref()[bytes.clone()] == after.bytes.as_ref()[bytes]
    })
}
