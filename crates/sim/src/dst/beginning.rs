//! A served array that begins to get another shape, as a server has it begin: its engine was closed, new members are in
//! the slots after its own, and an engine with both shapes goes on; or the power goes, or members fail, at any step of
//! that.
//!
//! Cut off there, it is the array that it was, or the reshape is on record: the next start shows which. A new member
//! that fails leaves the array as it was.

use uraid_io::array::{NewMember, ReshapeError, ReshapePlan, Target, begin_served, plan_served};
use uraid_io::engine::{Command, EngineError};
use uraid_layout::repair::Repair;
use uraid_layout::{Geometry, MemberSet};

use super::anew::{go_on, is_at_rest};
use super::finding::Finding;
use super::reshaping::{new_members, newcomer, slot_of};
use super::scenario::uuid;
use super::served::superblocks_of;
use super::session::{Session, Submitted};
use super::shapes::draw_target;
use crate::disk::{Fault, Planned, Steps};
use crate::member::Member;
use crate::members::Members;
use uraid_random::Random;

/// Shapes that are drawn until the array can get one while it is served: its logs stay as they are.
const DRAWS_MAX: u64 = 16;

/// More operations than a new member gets until the reshape is on record.
const OPERATIONS: usize = 32;

/// A shape that an array is to get.
pub(super) struct Beginning {
    target: Target,
    /// The two shapes.
    shapes: [Geometry; 2],
    /// Who joins, in the slots after the array's own.
    new: Vec<Member>,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// The array has two shapes.
    Yes,
    /// It is rightly as it was, and goes on.
    Left,
    /// The power went, or the server ends: the next start shows which it is.
    Ended,
}

/// Draws a shape that the array can get now; none where there is none.
///
/// # Errors
/// When one is refused, and nothing keeps the array from it.
pub(super) fn draw(session: &mut Session<'_>, random: &mut Random) -> Result<Option<Beginning>, Finding> {
    let own = session.engine.slots();
    let has_others = !session.disk.members().present().minus(own).is_empty();
    if !is_at_rest(session) || has_others || session.engine.rebuilding().is_some() {
        return Ok(None);
    }
    // What can't be read can't be moved, and nobody else has it in its place.
    session.disk.with_members(Members::recuperate);
    let truth = session.engine.superblock().clone();
    for _ in 0..DRAWS_MAX {
        let target = Target { kept: None, ..draw_target(session.engine.geometry(), random) };
        let joining = own.len()..own.len().max(target.members.into());
        let new: Vec<Member> = joining.map(|_| newcomer(&truth, random)).collect();
        match plan_served(&session.engine, &target, &described(own.len(), &new)) {
            Ok(plan) => {
                session.trace.note(format_args!("the array is to become {target:?} without a stop"));
                return Ok(Some(Beginning { target, shapes: shapes(&plan), new }));
            }
            Err(error) if may_refuse(session, &error, None) => {}
            Err(error) => return Err(Finding::Refused { error: error.to_string() }),
        }
    }
    Ok(None)
}

/// Has an array that was closed begin to get another shape.
///
/// # Errors
/// When it does not, and nothing keeps it from that; when it is used although nobody knows which shape it has.
pub(super) fn begin(session: &mut Session<'_>, beginning: Beginning, random: &mut Random) -> Result<Begun, Finding> {
    let Beginning { target, shapes, new } = beginning;
    let (deadlines, missing) = (session.engine.deadlines(), session.engine.missing());
    let own = session.engine.slots().len();
    let slots = own.max(target.members.into());
    session.disk.widen(slots);
    (own..).map(slot_of).zip(new).for_each(|(slot, member)| drop(session.disk.put(slot, Some(member))));
    threaten(session, own..slots, random);
    let new = new_members(&session.disk.members(), own..slots);
    let Err(error) = begin_served(&mut session.engine, &target, &new, uuid(random)) else {
        let truth = session.engine.superblock().clone();
        session.superblocks = superblocks_of(&truth, &session.disk.members());
        session.begun = truth.course();
        go_on(session, deadlines);
        return Ok(Begun::Yes);
    };
    session.trace.note(format_args!("the reshape does not begin: {error}"));
    let struck = session.disk.struck();
    let is_too_much = shapes.iter().any(|shape| Repair::new(shape, missing.union(struck)).is_err());
    if session.disk.is_dark() || session.engine.is_frozen() {
        if !session.disk.is_dark() && !is_too_much {
            return Err(Finding::Refused { error: error.to_string() });
        }
        session.undecided = Some(slots);
        session.disk.cut();
        return Ok(Begun::Ended);
    }
    if !may_refuse(session, &error, Some(struck.minus(MemberSet::all(own)))) {
        return Err(Finding::Refused { error: error.to_string() });
    }
    for slot in (own..slots).map(slot_of).filter(|&slot| !session.disk.is_busy(slot)) {
        session.disk.put(slot, None);
    }
    // What goes on in the background was closed with the engine, until somebody wants something.
    let begun = session.model.now();
    session.submit(Submitted::Flush { begun }, Command::Flush);
    session.is_closed = false;
    Ok(Begun::Left)
}

/// Lets the power go soon, or a new member fail, now and then.
fn threaten(session: &Session<'_>, joining: std::ops::Range<usize>, random: &mut Random) {
    if random.chance(1, 3) {
        let exponent = random.within(2, 8);
        session.disk.cut_after(Steps(1 + random.below(1 << exponent)));
    }
    if !joining.is_empty() && random.chance(1, 4) {
        let member = slot_of(joining.start + random.index(joining.len()));
        let (index, fault) = (random.index(OPERATIONS), *random.pick(&[Fault::Eio, Fault::Short, Fault::Vanish]));
        session.disk.plan(Planned { member, index: session.disk.count(member) + index, fault, lasts: false });
    }
}

fn shapes(plan: &ReshapePlan) -> [Geometry; 2] {
    [plan.from().clone(), plan.to().clone()]
}

/// Members for the slots after the first `own`, before they are there.
fn described(own: usize, new: &[Member]) -> Vec<NewMember> {
    let slots = vec![None; own].into_iter().chain(new.iter().cloned().map(Some));
    new_members(&Members::of(slots.collect()), own..own + new.len())
}

/// Whether it is right that an array does not begin to get another shape, and stays as it was; `failed` are the new
/// members that have failed, where there are any.
fn may_refuse(session: &Session<'_>, error: &ReshapeError, failed: Option<MemberSet>) -> bool {
    let engine = &session.engine;
    match error {
        // Which of these are right is looked at where stopped arrays are reshaped.
        ReshapeError::Same | ReshapeError::TooCoarse { .. } | ReshapeError::Course(_) => true,
        ReshapeError::NoRoom { .. } | ReshapeError::LogTooSmall { .. } | ReshapeError::NotServed { .. } => true,
        ReshapeError::NotWhole { .. } | ReshapeError::TooFew { .. } => !session.failed().is_empty(),
        ReshapeError::LosesMore { .. } => {
            !session.failed().is_empty() && super::doubts::lists(engine).iter().any(|list| !list.is_empty())
        }
        ReshapeError::Blank => engine.superblock().blank.is_some(),
        ReshapeError::Io(_) | ReshapeError::Unmade(_) => failed.is_some_and(|failed| !failed.is_empty()),
        // A member hangs since the engine was closed.
        ReshapeError::Engine(EngineError::Busy) => {
            session.disk.has_any_abandoned() || engine.slots().iter().any(|slot| session.disk.is_busy(slot))
        }
        _ => false,
    }
}
