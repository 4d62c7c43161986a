//! Members as an asynchronous device in virtual time: every delay, order, fault and power cut comes from one seed.
//!
//! - Time passes only in [`Disk::wait`], which goes on to the next completion.
//! - A write takes effect in one step or two, at any time before it completes; reads see the sectors that took effect.
//! - The power can be cut at any *step*: between the issues of two operations, between two effects of one, before or
//!   after a completion. From then on nothing moves, and [`SimDisk::leave`] says what is left.
//!
//! A disk is a handle: a clone is the same disk, so what becomes of the members can be seen though the engine has the
//! disk, and after the engine is gone.

mod faults;
mod places;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use uraid_io::Error;
use uraid_io::disk::{Completion, Disk, DiskError, DiskOp, OpKind, OpName, log_at, log_place};
use uraid_io::format::superblock::{Area, LOGS_MAX, LogIndex, LogSet};
use uraid_layout::{Bytes, MemberIndex, MemberSet};

pub use faults::{Fault, Faults, Planned, Rate, Silent};

use crate::image::SECTOR;
use crate::member::{FlushMark, Member, Payload, WriteId};
use crate::members::Members;
use crate::trace::Trace;
use places::Places;
use uraid_random::Random;

/// Virtual time since a disk was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

/// Steps of a disk: what a power cut may come between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Steps(pub u64);

/// The longest usual delay of an operation.
const DELAY_MAX_NS: u64 = 200_000;

/// What [`Fault::Slow`] makes of it.
const SLOW_NS: u64 = 30_000_000_000;

/// Waits without anything in flight after which whoever waits is stuck.
const IDLE_WAITS_MAX: u32 = 1000;

/// How a run of the program that uses the disk ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The power is cut.
    PowerCut,
    /// The program is killed; the members live on.
    Kill,
}

/// A handle on simulated members.
#[derive(Clone, Debug)]
pub struct SimDisk {
    world: Rc<RefCell<World>>,
}

#[derive(Debug)]
struct World {
    /// In their slots, at the seat, and beyond it those whose slots others have, with operations that have not ended.
    members: Members,
    /// The first place beyond the slots.
    seat: usize,
    random: Random,
    faults: Faults,
    /// Log devices that may fail, and how; who may in this does not count.
    log_faults: (LogSet, Faults),
    planned: Vec<Planned>,
    gone: Places,
    trace: Trace,
    now: Nanos,
    steps: Steps,
    cut_at: Option<Steps>,
    /// How long after the first fault the power goes.
    cut_after_fault: Option<Steps>,
    is_dark: bool,
    idle_waits: u32,
    /// Operations that each member was given, and each log device.
    counts: Vec<usize>,
    log_counts: [usize; LOGS_MAX],
    queued: Vec<DiskOp>,
    flying: BTreeMap<u64, Flight>,
    next: u64,
    events: BTreeMap<(Nanos, u64), Event>,
    done: Vec<Completion>,
    /// Members that some fault struck that they told of.
    struck: Places,
    /// Members that corrupted something.
    lied: MemberSet,
    /// How often.
    lies: u64,
    /// Operations that never end, or took half a minute.
    hangs: u64,
    /// Members with such operations.
    late: Places,
    /// The area that a planned fault corrupts from now on.
    rotting: Option<Area>,
    /// Operations on what may be corrupted: whose, and which of the member's.
    corruptible: Vec<(MemberIndex, usize, OpName)>,
}

#[derive(Debug)]
struct Flight {
    op: DiskOp,
    /// Where the member is: not in its slot any more, when another has that.
    place: MemberIndex,
    /// Nobody waits for it.
    is_abandoned: bool,
    fault: Option<Fault>,
    write: Option<WriteId>,
    mark: Option<FlushMark>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// Some sectors of a write, by bytes of it.
    Effect {
        id: u64,
        start: u64,
        end: u64,
    },
    End {
        id: u64,
    },
}

impl SimDisk {
    /// A disk of members that never fail.
    #[must_use]
    pub fn new(members: Members, random: Random, trace: Trace) -> Self {
        let counts = vec![0; members.len()];
        let world = World {
            seat: members.len(),
            members,
            random,
            faults: Faults::default(),
            log_faults: (LogSet::EMPTY, Faults::default()),
            planned: Vec::new(),
            gone: Places::default(),
            trace,
            now: Nanos(0),
            steps: Steps(0),
            cut_at: None,
            cut_after_fault: None,
            is_dark: false,
            idle_waits: 0,
            counts,
            log_counts: [0; LOGS_MAX],
            queued: Vec::new(),
            flying: BTreeMap::new(),
            next: 0,
            events: BTreeMap::new(),
            done: Vec::new(),
            struck: Places::default(),
            lied: MemberSet::EMPTY,
            lies: 0,
            hangs: 0,
            late: Places::default(),
            rotting: None,
            corruptible: Vec::new(),
        };
        Self { world: Rc::new(RefCell::new(world)) }
    }

    /// Lets members fail from now on.
    pub(crate) fn set_faults(&self, faults: Faults) {
        self.world.borrow_mut().faults = faults;
    }

    /// Lets some log devices fail from now on.
    pub(crate) fn set_log_faults(&self, logs: LogSet, faults: Faults) {
        self.world.borrow_mut().log_faults = (logs, faults);
    }

    /// Adds a fault.
    pub fn plan(&self, planned: Planned) {
        self.world.borrow_mut().planned.push(planned);
    }

    /// Takes a member away: everything fails from now on, what is in flight too.
    #[cfg(test)]
    pub(crate) fn vanish(&self, member: MemberIndex) {
        self.world.borrow_mut().vanish(member);
    }

    /// Cuts the power after so many more steps.
    pub(crate) fn cut_after(&self, steps: Steps) {
        let mut world = self.world.borrow_mut();
        world.cut_at = Some(Steps(world.steps.0 + steps.0));
    }

    /// Cuts the power so many steps after the first fault.
    pub(crate) fn cut_after_fault(&self, steps: Steps) {
        self.world.borrow_mut().cut_after_fault = Some(steps);
    }

    /// Stops everything now.
    pub fn cut(&self) {
        self.world.borrow_mut().is_dark = true;
    }

    /// Whether the power is off, or nothing that is in flight ever ends.
    #[must_use]
    pub(crate) fn is_dark(&self) -> bool {
        self.world.borrow().is_dark
    }

    /// Steps so far.
    #[must_use]
    pub fn steps(&self) -> Steps {
        self.world.borrow().steps
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.world.borrow().now
    }

    /// Operations that a member, or the log device at a place, was given so far.
    ///
    /// # Panics
    /// When there is no such slot.
    #[must_use]
    pub fn count(&self, place: MemberIndex) -> usize {
        let world = self.world.borrow();
        log_at(place).map_or_else(|| world.counts[place.index()], |log| world.log_counts[usize::from(log.0)])
    }

    /// Members that some fault struck so far that they told of.
    #[must_use]
    pub fn struck(&self) -> MemberSet {
        self.world.borrow().struck.members
    }

    /// The same of log devices.
    #[must_use]
    pub(crate) fn struck_logs(&self) -> LogSet {
        self.world.borrow().struck.logs
    }

    /// Members that corrupted something so far, saying nothing.
    #[must_use]
    pub(crate) fn lied(&self) -> MemberSet {
        self.world.borrow().lied
    }

    /// How often one did.
    #[must_use]
    pub fn lies(&self) -> u64 {
        self.world.borrow().lies
    }

    /// Members that had operations so far that never end, or take half a minute.
    #[must_use]
    pub fn late(&self) -> MemberSet {
        self.world.borrow().late.members
    }

    /// The same of log devices.
    #[must_use]
    pub(crate) fn late_logs(&self) -> LogSet {
        self.world.borrow().late.logs
    }

    /// Counts log devices as late that have something to do, or have ended something that nobody has taken in.
    pub(crate) fn note_logs_late(&self) {
        let busy = (0..).map(LogIndex).take(LOGS_MAX).filter(|&log| self.is_busy(log_place(log))).collect();
        let late = &mut self.world.borrow_mut().late;
        late.logs = late.logs.union(busy);
    }

    /// Which of a member's operations a silent fault may happen to, by [`Faults::silent`].
    #[must_use]
    pub(crate) fn corruptible(&self, member: MemberIndex, fault: Fault) -> Vec<usize> {
        let world = self.world.borrow();
        let is_its = |(whose, _, name): &&(MemberIndex, usize, OpName)| *whose == member && fault.suits(*name);
        world.corruptible.iter().filter(is_its).map(|&(_, index, _)| index).collect()
    }

    /// Whether an operation in flight never ends.
    #[must_use]
    pub(crate) fn has_hung(&self) -> bool {
        self.world.borrow().flying.values().any(|flight| flight.fault == Some(Fault::Hang))
    }

    /// The members as they are now.
    #[must_use]
    pub fn members(&self) -> Members {
        self.world.borrow().members.clone()
    }

    /// Changes members, while nothing is under way on them.
    pub(crate) fn with_members(&self, change: impl FnOnce(&mut Members)) {
        change(&mut self.world.borrow_mut().members);
    }

    /// Operations so far that never end, or take half a minute.
    #[must_use]
    pub fn hangs(&self) -> u64 {
        self.world.borrow().hangs
    }

    /// The members in slots and at the seat with operations in flight that never end.
    #[must_use]
    pub fn hung(&self) -> MemberSet {
        self.world.borrow().hung().members
    }

    /// The log devices with operations in flight that never end.
    #[must_use]
    pub(crate) fn hung_logs(&self) -> LogSet {
        self.world.borrow().hung().logs
    }

    /// Lets time pass until then.
    pub fn sleep_until(&self, time: Nanos) {
        self.world.borrow_mut().sleep_until(time);
    }

    /// Whether operations on a slot are in flight that somebody waits for.
    #[must_use]
    pub fn is_busy(&self, slot: MemberIndex) -> bool {
        let world = self.world.borrow();
        let flying = world.flying.values().filter(|flight| !flight.is_abandoned).map(|flight| flight.place);
        let others = world.queued.iter().map(|op| op.member).chain(world.done.iter().map(|done| done.member));
        flying.chain(others).any(|member| member == slot)
    }

    /// Whether operations are in flight that were given up, on any member, of those that have left their place, too.
    pub(crate) fn has_any_abandoned(&self) -> bool {
        let is_of_member = |flight: &Flight| log_at(flight.place).is_none();
        self.world.borrow().flying.values().any(|flight| flight.is_abandoned && is_of_member(flight))
    }

    /// Whether operations on the member in a slot are in flight that were given up.
    #[must_use]
    pub(crate) fn has_abandoned(&self, slot: MemberIndex) -> bool {
        self.world.borrow().flying.values().any(|flight| flight.is_abandoned && flight.place == slot)
    }

    /// Makes so many slots, where there are fewer.
    ///
    /// # Panics
    /// When there are members beyond the slots.
    pub(crate) fn widen(&self, slots: usize) {
        let mut world = self.world.borrow_mut();
        if slots > world.seat {
            let seat = world.seat;
            assert!(world.members.present().iter().all(|slot| slot.index() < seat), "nobody is beyond the slots");
            world.seat = slots;
            world.members.extend_to(slots);
            let most = world.counts.len().max(slots + 1);
            world.counts.resize(most, 0);
        }
    }

    /// Puts a member in at a slot or the seat beyond, or takes it out with `None`; the one that was there, if nothing
    /// is in flight on it any more. What has happened to that one is forgotten.
    ///
    /// # Panics
    /// When there is no such slot, or somebody [waits](SimDisk::is_busy) for operations on it.
    pub fn put(&self, slot: MemberIndex, member: Option<Member>) -> Option<Member> {
        assert!(!self.is_busy(slot), "a member is exchanged with nothing in flight");
        let mut world = self.world.borrow_mut();
        world
            .trace
            .note(format_args!("slot {slot} has {} member now", if member.is_some() { "another" } else { "no" }));
        assert!(slot.index() <= world.seat, "members are in slots, or at the seat");
        let end = world.members.len().max(world.seat + 1);
        let most = end.max(world.counts.len());
        world.members.extend_to(slot.index() + 1);
        world.counts.resize(most, 0);
        if world.flying.values().any(|flight| flight.place == slot) {
            let aside = MemberIndex(u8::try_from(end).expect("few members are put aside"));
            world.members.extend_to(end + 1);
            world.exchange(slot, aside);
        }
        let World { gone, struck, late, lied, .. } = &mut *world;
        for set in [&mut gone.members, &mut struck.members, &mut late.members, lied] {
            *set = set.without(slot);
        }
        world.members.replace(slot, member)
    }

    /// What is left of the members after an ending, those that were gone too. Chance chooses what a power cut leaves,
    /// in one of several ways.
    #[must_use]
    pub fn leave(&self, ending: Ending, random: &mut Random) -> Members {
        leave(&self.world.borrow().members, ending, random)
    }
}

/// What is left of members after an ending: see [`SimDisk::leave`].
pub(crate) fn leave(members: &Members, ending: Ending, random: &mut Random) -> Members {
    // One in so many sectors gets the newest version, or the durable one; mostly a mixture.
    let (newest, durable) = *random.pick(&[(1, 2), (1, 2), (1, 1), (0, 1), (1, 16), (15, 16), (1, 4)]);
    let by_member: Vec<bool> = (0..members.len()).map(|_| random.chance(1, 8)).collect();
    let by_log: LogSet = members.present_logs().iter().filter(|_| random.chance(1, 8)).collect();
    match ending {
        Ending::PowerCut => members.cut(|place, count| {
            if log_at(place.member).map_or_else(|| by_member[place.member.index()], |log| by_log.contains(log)) {
                0
            } else if random.chance(1, 8) {
                random.index(count)
            } else if random.chance(newest, durable) {
                count - 1
            } else {
                0
            }
        }),
        Ending::Kill => {
            let mut members = members.clone();
            let places: Vec<_> = members.present().iter().chain(members.present_logs().iter().map(log_place)).collect();
            for place in places {
                if let Some(member) = members.get_mut(place) {
                    member.kill(|_| random.chance(newest, durable));
                }
            }
            members
        }
    }
}

impl World {
    fn step(&mut self) {
        self.steps.0 += 1;
        if self.cut_at.is_some_and(|at| self.steps >= at) && !self.is_dark {
            self.is_dark = true;
            self.trace.note(format_args!("{}: the power is cut", self.now.0));
        }
    }

    /// Lets two members change places, with all that has happened to them and what is in flight.
    fn exchange(&mut self, one: MemberIndex, other: MemberIndex) {
        let most = one.index().max(other.index()) + 1;
        self.members.extend_to(most);
        self.counts.resize(most.max(self.counts.len()), 0);
        self.counts.swap(one.index(), other.index());
        let [first, second] = [one, other].map(|place| self.members.replace(place, None));
        self.members.replace(one, second);
        self.members.replace(other, first);
        let moved = |place: MemberIndex| match place {
            _ if place == one => other,
            _ if place == other => one,
            _ => place,
        };
        let Self { gone, struck, late, lied, .. } = self;
        for set in [&mut gone.members, &mut struck.members, &mut late.members, lied] {
            *set = set.iter().map(moved).collect();
        }
        self.flying.values_mut().for_each(|flight| flight.place = moved(flight.place));
    }

    fn sleep_until(&mut self, time: Nanos) {
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= time) {
            if self.is_dark {
                return;
            }
            self.now = self.now.max(entry.key().0);
            let event = entry.remove();
            self.happen(event);
        }
        self.now = self.now.max(time);
    }

    fn vanish(&mut self, member: MemberIndex) {
        self.trace.note(format_args!("{}: member {member} vanishes", self.now.0));
        self.gone.add(member);
        self.struck.add(member);
    }

    /// Operations in flight that never end.
    fn hung(&self) -> Places {
        let mut hung = Places::default();
        let flying = self.flying.values().filter(|flight| flight.fault == Some(Fault::Hang));
        flying.for_each(|flight| hung.add(flight.place));
        hung
    }

    fn fault(&mut self, op: &DiskOp) -> Option<Fault> {
        let count = match log_at(op.member) {
            Some(log) => &mut self.log_counts[usize::from(log.0)],
            None => &mut self.counts[op.member.index()],
        };
        let index = *count;
        *count += 1;
        let name = op.kind.name();
        let size = self.members.get(op.member).map_or(Bytes(0), Member::size);
        let area = self.faults.silent.map(|silent| silent.area(op, size));
        let Self { planned, rotting, corruptible, .. } = self;
        corruptible.extend(area.flatten().map(|_| (op.member, index, name)));
        let is_due = |planned: &&Planned| {
            let is_now = index == planned.index || planned.lasts && index > planned.index;
            // What checksums tell of is corrupted, and of content and table only the one that was first.
            let is_told = match area {
                Some(area) if planned.fault.is_silent() => {
                    area.is_some() && (index == planned.index || *rotting == area)
                }
                _ => true,
            };
            planned.member == op.member && is_now && planned.fault.suits(name) && is_told
        };
        let planned = planned.iter().find(is_due).map(|planned| planned.fault);
        if planned.is_some() {
            *rotting = area.flatten();
        }
        let Self { faults, log_faults: (logs, of_logs), random, .. } = self;
        planned.or_else(|| match log_at(op.member) {
            Some(log) if !logs.contains(log) => None,
            Some(_) => of_logs.strike(name, random),
            None => faults.draw(op, size, random),
        })
    }

    /// Gives an operation to its member.
    fn issue(&mut self, op: DiskOp) {
        let fault = self.fault(&op);
        let id = self.next;
        self.next += 1;
        match fault {
            Some(fault) => self.trace.note(format_args!("{}: #{id} {} ({fault:?})", self.now.0, op.info())),
            None => self.trace.note(format_args!("{}: #{id} {}", self.now.0, op.info())),
        }
        if fault.is_some_and(Fault::is_silent) {
            self.lied = self.lied.with(op.member);
        }
        if matches!(fault, Some(Fault::Slow | Fault::Hang)) {
            self.hangs += 1;
            self.late.add(op.member);
        }
        if fault.is_some_and(|fault| fault != Fault::Slow) {
            if !fault.is_some_and(Fault::is_silent) {
                self.struck.add(op.member);
            }
            if let Some(steps) = self.cut_after_fault.take() {
                let at = Steps(self.steps.0 + steps.0);
                self.cut_at = Some(self.cut_at.map_or(at, |cut| cut.min(at)));
            }
        }
        if fault == Some(Fault::Vanish) {
            self.vanish(op.member);
        }
        let can_start = !self.gone.contains(op.member);
        let member = self.members.get_mut(op.member).filter(|member| can_start && op.check_end(member.size()).is_ok());
        let is_refused = op.kind.name() == OpName::Zero && self.faults.cannot_zero.contains(op.member);
        let (mut write, mut mark) = (None, None);
        if let Some(member) = member.filter(|_| !is_refused) {
            match op.kind {
                OpKind::Read => {}
                OpKind::Write | OpKind::WriteFua => {
                    write = Some(member.issue(op.offset, Payload::Bytes(gather(&op).into())));
                }
                OpKind::Zero { len, .. } => write = Some(member.issue(op.offset, Payload::Zeros(len))),
                OpKind::Flush => mark = Some(member.flush_begins()),
            }
        }
        let delay = self.delay(fault);
        if write.is_some() && self.random.chance(1, 3) {
            let sectors = op.len().0 / SECTOR as u64;
            let (a, b) = (self.random.below(sectors + 1), self.random.below(sectors + 1));
            let (start, end) = (a.min(b) * SECTOR as u64, a.max(b) * SECTOR as u64);
            let part = self.random.below(delay + 1);
            self.schedule(part, Event::Effect { id, start, end });
        }
        if fault != Some(Fault::Hang) {
            self.schedule(delay, Event::End { id });
        }
        let place = op.member;
        self.flying.insert(id, Flight { op, place, is_abandoned: false, fault, write, mark });
        self.step();
    }

    fn delay(&mut self, fault: Option<Fault>) -> u64 {
        let usual = self.random.below(DELAY_MAX_NS);
        match fault {
            Some(Fault::Slow) => SLOW_NS + usual,
            _ if self.random.chance(1, 50) => usual * 50,
            // Coarse, so that several end together.
            _ => usual / 20_000 * 20_000,
        }
    }

    fn schedule(&mut self, delay: u64, event: Event) {
        let order = self.next;
        self.next += 1;
        self.events.insert((Nanos(self.now.0 + delay), order), event);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Effect { id, start, end } => {
                let flight = &self.flying[&id];
                // What is lost or goes elsewhere has no effect where it was meant to.
                let is_real = !matches!(flight.fault, Some(Fault::Lost | Fault::Misdirected));
                if let (Some(write), true) = (flight.write, is_real) {
                    let member = self.members.get_mut(flight.place).expect("a member that is written is there");
                    member.take_effect(write, start..end);
                }
            }
            Event::End { id } => {
                let mut flight = self.flying.remove(&id).expect("an operation ends once");
                let result = self.end(&mut flight);
                self.lies += u64::from(flight.fault.is_some_and(Fault::is_silent));
                let outcome = if result.is_ok() { "done" } else { "failed" };
                self.trace.note(format_args!("{}: #{id} {outcome}", self.now.0));
                self.done.push(flight.op.complete(result));
            }
        }
        self.step();
    }

    /// Does what is left to do of an operation, and says how it went.
    fn end(&mut self, flight: &mut Flight) -> Result<(), DiskError> {
        let Flight { op, place, fault, write, mark, .. } = flight;
        let (info, is_gone) = (op.info(), self.gone.contains(*place));
        let Some(member) = self.members.get_mut(*place) else { return Err(DiskError::Absent { op: info }) };
        if is_gone {
            write.iter().for_each(|&write| member.abandon(write));
            return Err(DiskError::Io { op: info, errno: Errno::IO });
        }
        op.check_end(member.size())?;
        if info.name == OpName::Zero && write.is_none() {
            return Err(DiskError::Unsupported { op: info });
        }
        let random = &mut self.random;
        let some_sectors = |random: &mut Random| random.below(info.len.0 / SECTOR as u64 + 1) * SECTOR as u64;
        match *fault {
            Some(Fault::Eio | Fault::NoSpace) => {
                fail_part(member, *write, some_sectors(random), random);
                mark.iter().for_each(|&mark| member.flush_fails(mark));
                let errno = if *fault == Some(Fault::Eio) { Errno::IO } else { Errno::NOSPC };
                return Err(DiskError::Io { op: info, errno });
            }
            Some(Fault::Short) => {
                let done = some_sectors(random).min(info.len.0 - SECTOR as u64);
                if let Some(write) = *write {
                    member.take_effect(write, 0..done);
                    member.abandon(write);
                }
                return Err(DiskError::ShortIo { op: info, done: Bytes(done) });
            }
            Some(Fault::Lost) => write.take().into_iter().for_each(|write| member.lose(write)),
            Some(Fault::Misdirected) => {
                if let Some(write) = write.take() {
                    member.lose(write);
                    let all = Area { offset: Bytes(0), size: member.size() };
                    let area = self.faults.silent.and_then(|silent| silent.area(op, member.size())).unwrap_or(all);
                    let room = (area.size.0 - info.len.0) / SECTOR as u64 + 1;
                    member.stray(Bytes(area.offset.0 + random.below(room) * SECTOR as u64), payload(op));
                }
            }
            _ => {}
        }
        if op.kind == OpKind::Read && member.is_unreadable(op.offset, info.len) {
            return Err(DiskError::Io { op: info, errno: Errno::IO });
        }
        let complete = if op.kind == OpKind::WriteFua { Member::complete_fua } else { Member::complete };
        write.iter().for_each(|&write| complete(member, write));
        mark.iter().for_each(|&mark| member.flush_ends(mark));
        if *fault == Some(Fault::Flipped) {
            let at = random.below(info.len.0 / SECTOR as u64) * SECTOR as u64;
            member.rot(Bytes(info.offset.0 + at), random.index(SECTOR), 1 << random.below(8));
        }
        if op.kind == OpKind::Read {
            let mut bytes = vec![0; usize::try_from(info.len.0).expect("a read fits the address space")];
            member.read(op.offset, &mut bytes);
            op.fill(&bytes);
        }
        Ok(())
    }

    fn kick(&mut self) -> Result<(), Error> {
        for op in std::mem::take(&mut self.queued) {
            if !self.is_dark {
                self.issue(op);
            }
        }
        if self.is_dark {
            let source = io::Error::other("nothing in flight ever ends: the power is off, or the members hang");
            return Err(Error::Ring { action: "wait for the members", source });
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), Error> {
        self.kick()?;
        let is_idle = self.done.is_empty() && self.flying.is_empty();
        self.idle_waits = if is_idle { self.idle_waits + 1 } else { 0 };
        assert!(self.idle_waits < IDLE_WAITS_MAX, "somebody waits though nothing is in flight");
        while self.done.is_empty() && !self.is_dark && !self.flying.is_empty() {
            let Some(((time, _), event)) = self.events.pop_first() else {
                self.trace.note(format_args!("{}: nothing in flight ever ends", self.now.0));
                self.is_dark = true;
                break;
            };
            self.now = self.now.max(time);
            self.happen(event);
        }
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= self.now) {
            if self.is_dark {
                break;
            }
            let event = entry.remove();
            self.happen(event);
        }
        self.kick()
    }
}

impl Disk for SimDisk {
    fn submit(&mut self, op: DiskOp) {
        op.check();
        self.world.borrow_mut().queued.push(op);
    }

    fn kick(&mut self) -> Result<(), Error> {
        self.world.borrow_mut().kick()
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        let mut world = self.world.borrow_mut();
        if !world.is_dark {
            completions.append(&mut world.done);
        }
    }

    fn wait(&mut self) -> Result<(), Error> {
        self.world.borrow_mut().wait()
    }

    /// Operations that never end do not end the wait, nor anything else.
    fn wait_at_most(&mut self, time: Duration) -> Result<(), Error> {
        let mut world = self.world.borrow_mut();
        world.kick()?;
        let until = Nanos(world.now.0 + u64::try_from(time.as_nanos()).expect("a short time"));
        while world.done.is_empty() && !world.is_dark && world.now < until {
            let next = world.events.first_key_value().map_or(until, |(&(at, _), _)| at.min(until));
            world.sleep_until(next);
        }
        world.kick()
    }

    fn abandon(&mut self, tag: u64) {
        let mut world = self.world.borrow_mut();
        let flights = world.flying.values_mut().filter(|flight| flight.op.tag == tag);
        flights.for_each(|flight| flight.is_abandoned = true);
    }

    fn exchange(&mut self, one: MemberIndex, other: MemberIndex) {
        self.world.borrow_mut().exchange(one, other);
    }

    fn in_flight(&self) -> usize {
        let world = self.world.borrow();
        world.queued.len() + world.flying.len() + world.done.len()
    }
}

/// Ends a write of which any part may have reached the member.
fn fail_part(member: &mut Member, write: Option<WriteId>, end: u64, random: &mut Random) {
    let Some(write) = write else { return };
    if random.chance(1, 2) {
        member.take_effect(write, 0..end);
    }
    member.abandon(write);
}

/// What a write brings.
pub(crate) fn payload(op: &DiskOp) -> Payload {
    match op.kind {
        OpKind::Zero { len, .. } => Payload::Zeros(len),
        _ => Payload::Bytes(gather(op).into()),
    }
}

/// The bytes that a write brings.
fn gather(op: &DiskOp) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(usize::try_from(op.len().0).expect("a write fits the address space"));
    op.segments.iter().for_each(|segment| bytes.extend_from_slice(segment.bytes()));
    bytes
}

#[cfg(test)]
mod tests;
