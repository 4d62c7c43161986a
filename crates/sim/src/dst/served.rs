//! A reshape that goes on while the array is served: begun while it is stopped, then steered over several lives, while
//! clients go on, members fail and the power goes.
//!
//! What is expected is content by address, as ever: an address is in one of two shapes, and the array survives what
//! both survive. When all content is where it is to be, the array is given that shape as a server does it, and its life
//! goes on.

use uraid_io::array::{Assembled, Target, begin_reshape, judge, plan_reshape};
use uraid_io::format::superblock::{Areas, Consistency, SlotState, Superblock};
use uraid_io::member::Access;
use uraid_layout::{Bytes, Geometry, Lba, Sectors};

use super::array::Array;
use super::finding::Finding;
use super::found::Found;
use super::report::Served;
use super::reshaping::{give_log, new_members, newcomer, slot_of};
use super::roster::Roster;
use super::scenario::uuid;
use super::session::Session;
use super::shapes::{draw_target, log_min};
use super::shelf::Shelf;
use crate::disk::{Ending, SimDisk};
use crate::member::Member;
use crate::members::Members;
use crate::trace::Trace;
use uraid_random::Random;

/// How much may move at once: about a parity stripe, some, or all that can.
const WINDOWS: [Bytes; 5] = [Bytes(4096), Bytes(4096), Bytes(24 << 10), Bytes(64 << 10), Bytes(u64::MAX)];

/// The most ticks that pass at once: a window moves in one.
const TICKS_MAX: u64 = 8;

/// Who begins reshapes, and steers them.
#[derive(Debug)]
pub(super) struct Mover {
    /// All of it is drawn from this.
    pub(super) random: Random,
    pub(super) counts: Served,
    /// Where the mark was when it was looked at last.
    mark: Option<Lba>,
    /// Whether the array may grow in this life.
    may_grow: bool,
}

impl Mover {
    pub(super) fn new(random: Random) -> Self {
        Self { random, counts: Served::default(), mark: None, may_grow: false }
    }

    /// Begins another life of the array, in which it may grow.
    pub(super) fn begin_life(&mut self, session: &Session<'_>, may_grow: bool) {
        (self.mark, self.may_grow) = (None, may_grow);
        if let Some(way) = session.engine.reshape() {
            way.limit_window(*self.random.pick(&WINDOWS));
        }
    }

    /// Does something, now and then: how many ticks are to pass after it.
    pub(super) fn act(&mut self, session: &Session<'_>) -> usize {
        let Some(way) = session.engine.reshape() else { return 0 };
        let is_over = way.is_over();
        match self.random.below(24) {
            // What is about to be over goes the other way now and then: what has moved moves back.
            turn if turn == 0 || is_over && turn > 20 => {
                let is_back = if is_over { !way.progress().is_back } else { self.random.chance(1, 2) };
                self.counts.turns += u64::from(way.progress().is_back != is_back);
                way.turn(is_back);
                0
            }
            1 => {
                way.limit_window(*self.random.pick(&WINDOWS));
                0
            }
            2..=8 => usize::try_from(self.random.within(1, TICKS_MAX)).expect("few"),
            _ => 0,
        }
    }

    /// Whether the array is to grow now; once in a life.
    pub(super) fn wants_growth(&mut self, session: &Session<'_>) -> bool {
        let wants = self.may_grow && session.engine.reshape().is_none() && self.random.chance(1, 48);
        self.may_grow &= !wants;
        wants
    }

    /// Takes note of what a turn of the engine has moved.
    pub(super) fn turned(&mut self, session: &Session<'_>) {
        let mark = session.engine.superblock().reshape.map(|reshape| reshape.mark);
        let before = std::mem::replace(&mut self.mark, mark);
        if let (Some(mark), Some(before)) = (mark, before)
            && mark != before
        {
            self.counts.windows += 1;
            self.counts.windows_under_load += u64::from(session.pending() > 0);
        }
    }

    /// Takes note that a reshape is over.
    pub(super) fn ended(&mut self, is_back: bool) {
        self.mark = None;
        self.counts.ended += 1;
        self.counts.ended_back += u64::from(is_back);
    }

    /// Puts a reshape of a stopped array on record that can be served meanwhile, if the array was closed, enough of it
    /// is left, and there is one.
    ///
    /// # Errors
    /// What must not be.
    pub(super) fn begin(
        &mut self,
        array: &mut Array,
        shelf: &mut Shelf,
        mut roster: Option<&mut Roster>,
        trace: &Trace,
    ) -> Result<(), Finding> {
        let Some(found) = shelf.stopped(roster.as_deref_mut(), &mut self.random, trace)? else { return Ok(()) };
        if array.course.is_some() {
            return Ok(());
        }
        let Some(members) = self.put_on_record(&found, trace)? else {
            self.counts.left_alone += 1;
            return Ok(());
        };
        let candidates = members.candidates();
        let verdict = judge(&candidates).map_err(|error| refused(&error))?;
        let truth = &verdict.superblock;
        trace.note(format_args!("a reshape is on record: {:?}", truth.reshape));
        let own = |(slot, entry)| {
            let own = members.get(slot).and_then(|member| member.superblock().ok());
            own.unwrap_or_else(|| Superblock { slot, member: entry, ..truth.clone() })
        };
        let slots = truth.slots.iter().enumerate().map(|(index, entry)| (slot_of(index), entry.member));
        array.scenario.superblocks = slots.map(own).collect();
        array.course = truth.course();
        shelf.altered(&members, verdict.missing(), |member| suits(member, truth));
        roster.into_iter().for_each(|roster| roster.altered(given_up(truth), |member| suits(member, truth)));
        self.counts.begun += 1;
        Ok(())
    }

    /// The members with a reshape on record; none where there is none that can be served.
    fn put_on_record(&mut self, found: &Found, trace: &Trace) -> Result<Option<Members>, Finding> {
        let random = &mut self.random;
        let (from, truth) = (&found.verdict.geometry, &found.verdict.superblock);
        let target = Target { kept: None, ..draw_target(from, random) };
        trace.note(format_args!("the array is to become {target:?} while it is served"));
        let mut members = found.members.clone();
        // What can't be read can't be moved, and nobody else has it in its place.
        members.recuperate();
        give_logs(&mut members, truth, from, &target, random);
        members.extend_to(usize::from(target.members));
        for index in from.members()..usize::from(target.members) {
            members.replace(slot_of(index), Some(newcomer(truth, random)));
        }
        let candidates = members.only(from.all_members()).candidates();
        let verdict = judge(&candidates).map_err(|error| refused(&error))?;
        let disk = SimDisk::new(members.clone(), random.fork(), trace.clone());
        let generation = uuid(random);
        let assembled = Assembled::new(disk.clone(), &verdict, &candidates, Access::ReadWrite, generation);
        let assembled = assembled.map_err(|error| refused(&error))?;
        let new = new_members(&members, from.members()..usize::from(target.members));
        let plan = match plan_reshape(&assembled, &target, &new) {
            Ok(plan) if plan.can_be_served() => plan,
            // Which refusals are right is looked at where stopped arrays are reshaped.
            Ok(_) => return Ok(None),
            Err(error) => {
                trace.note(format_args!("it is not: {error}"));
                return Ok(None);
            }
        };
        drop(begin_reshape(assembled, plan, generation, Ok).map_err(|error| refused(&error))?);
        Ok(Some(disk.leave(Ending::PowerCut, random)))
    }
}

/// The members that an array has on record as failed.
pub(super) fn given_up(truth: &Superblock) -> impl Iterator<Item = uuid::Uuid> {
    truth.slots.iter().filter(|entry| entry.state == SlotState::Failed).map(|entry| entry.member)
}

/// Whether a member may be of an array some time. Who has a smaller log than it needs now is rightly refused.
pub(super) fn suits(member: &Member, truth: &Superblock) -> bool {
    let fits = |own: Superblock| own.slot.index() < truth.slots.len() && own.areas.log.size >= truth.areas.log.size;
    member.superblock().is_ok_and(fits)
}

fn refused(error: &dyn std::error::Error) -> Finding {
    Finding::Refused { error: error.to_string() }
}

/// Gives the members logs of which half is enough for each shape, and not much more: of a stopped array nothing is in
/// them.
fn give_logs(members: &mut Members, truth: &Superblock, from: &Geometry, target: &Target, random: &mut Random) {
    let Areas { log, sums, .. } = truth.areas;
    let room = sums.offset.0 - log.offset.0;
    let spec = *from.spec();
    let now = Target { level: spec.level, members: spec.members, chunk: spec.chunk, ..*target };
    let least = match truth.consistency {
        Consistency::Log => 2 * log_min(&now).0.max(log_min(target).0),
        _ => 32 << 10,
    };
    let size = (least * random.within(1, 2)).next_multiple_of(8192).max(log.size.0).min(room);
    members.present().iter().for_each(|slot| give_log(members, slot, Bytes(size)));
}

/// The parts of an array, each with the content that it has: one shape, or while it is being reshaped two.
pub(super) fn parts(array: &Array, truth: &Superblock) -> Vec<(Geometry, std::ops::Range<u64>)> {
    match (&array.course, truth.reshape) {
        (Some(course), Some(reshape)) => {
            let (mark, Sectors(kept)) = (reshape.mark.0, course.kept());
            vec![(course.below().clone(), 0..mark), (course.above().clone(), mark..kept)]
        }
        _ => vec![(array.scenario.geometry.clone(), 0..array.scenario.geometry.capacity().0)],
    }
}
