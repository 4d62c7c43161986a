//! Operations that take too long: a disk whose operations can be given up.
//!
//! Between the engine and the device. While it is on, every operation has an entry here, and goes to the device under
//! the entry's tag. One that is given up ends at once for whoever submitted it, with [`DiskError::TimedOut`]; the
//! device still has it, and its memory, and when it ends there nobody is told.
//!
//! Time is [`Disk::tick`]. What is too long, and what may be given up, is for the engine to say.

use std::time::Duration;

use uraid_layout::{MemberIndex, MemberSet};

use super::{Completion, Disk, DiskError, DiskOp, OpInfo, OpName};
use crate::error::Error;

/// Set in the tags of operations that have an entry; submitters leave it free.
const OWN: u64 = 1 << 63;

/// See the module.
#[derive(Debug)]
pub(crate) struct Deadline<D> {
    inner: D,
    is_on: bool,
    now: u64,
    entries: Vec<Entry>,
    vacant: Vec<u32>,
    /// Entries of operations that somebody waits for.
    live: usize,
    /// By slot.
    members: Vec<Lag>,
    /// Members with late reads that are not back.
    slow: MemberSet,
    /// Operations that were given up since the last reap.
    given_up: Vec<Completion>,
}

/// What of a member is late.
#[derive(Clone, Copy, Debug, Default)]
struct Lag {
    reads: u32,
    abandoned: u32,
    /// The last tick when writes waited for room: what was under way then waits for the member's answer since.
    roomless: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    tag: u64,
    op: OpInfo,
    since: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Vacant,
    /// Somebody waits for it.
    Live {
        is_late: bool,
    },
    /// Nobody does, and its member is not idle until it ends.
    Abandoned {
        is_late: bool,
    },
    /// Nobody does, and its slot has another member now.
    Foreign,
}

/// An operation that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpId(u32);

/// One that has not ended for a while.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) id: OpId,
    /// As it was submitted.
    pub(crate) tag: u64,
    pub(crate) member: MemberIndex,
    pub(crate) name: OpName,
    /// In ticks; where its member had no room meanwhile and has some again, since then.
    pub(crate) age: u64,
    /// It was given up.
    pub(crate) is_abandoned: bool,
}

impl<D: Disk> Deadline<D> {
    /// A disk of so many slots and one seat more; off.
    pub(crate) fn new(inner: D, members: usize) -> Self {
        Self {
            inner,
            is_on: false,
            now: 0,
            entries: Vec::new(),
            vacant: Vec::new(),
            live: 0,
            members: vec![Lag::default(); members + 1],
            slow: MemberSet::EMPTY,
            given_up: Vec::new(),
        }
    }

    pub(crate) fn inner(&self) -> &D {
        &self.inner
    }

    pub(crate) fn inner_mut(&mut self) -> &mut D {
        &mut self.inner
    }

    pub(crate) fn into_inner(self) -> D {
        self.inner
    }

    /// Whether operations that are submitted from now on can be given up.
    pub(crate) fn set_on(&mut self, is_on: bool) {
        self.is_on = is_on;
    }

    /// What has not ended, on the members that are in the slots now.
    pub(crate) fn pending(&self) -> impl Iterator<Item = Pending> + '_ {
        let roomless = self.inner.roomless();
        (0..).map(OpId).zip(&self.entries).filter_map(move |(id, entry)| {
            let is_abandoned = match entry.state {
                State::Vacant | State::Foreign => return None,
                State::Live { .. } => false,
                State::Abandoned { .. } => true,
            };
            let &Entry { tag, op: OpInfo { member, name, .. }, since, .. } = entry;
            let had_none = if roomless.contains(member) { 0 } else { self.members[member.index()].roomless };
            Some(Pending { id, tag, member, name, age: self.now - since.max(had_none), is_abandoned })
        })
    }

    /// Notes that a read is late; true: it was not before.
    pub(crate) fn note_late(&mut self, id: OpId) -> bool {
        let entry = &mut self.entries[id.0 as usize];
        let State::Live { is_late } = &mut entry.state else { return false };
        let is_new = !std::mem::replace(is_late, true);
        let member = entry.op.member;
        if is_new {
            self.members[member.index()].reads += 1;
            self.slow = self.slow.with(member);
        }
        is_new
    }

    /// Ends an operation for whoever submitted it.
    pub(crate) fn give_up(&mut self, id: OpId) {
        let entry = &mut self.entries[id.0 as usize];
        let State::Live { is_late } = entry.state else { return };
        entry.state = State::Abandoned { is_late };
        let &mut Entry { tag, op, .. } = entry;
        self.live -= 1;
        self.members[op.member.index()].abandoned += 1;
        self.inner.abandon(OWN | u64::from(id.0));
        let result = Err(DiskError::TimedOut { op });
        self.given_up.push(Completion { tag, member: op.member, result, spare: Vec::new() });
    }

    /// Members whose reads are late.
    pub(crate) fn slow(&self) -> MemberSet {
        self.slow
    }

    /// Whether somebody waits for operations on a slot's member.
    pub(crate) fn is_awaited(&self, member: MemberIndex) -> bool {
        let is_live = |entry: &Entry| matches!(entry.state, State::Live { .. }) && entry.op.member == member;
        self.entries.iter().any(is_live)
    }

    /// How many operations on a slot's member were given up and have not ended.
    pub(crate) fn abandoned(&self, member: MemberIndex) -> u32 {
        self.members[member.index()].abandoned
    }

    /// Notes that a slot has another member: what was given up is not its.
    pub(crate) fn forget(&mut self, member: MemberIndex) {
        for entry in self.entries.iter_mut().filter(|entry| entry.op.member == member) {
            match entry.state {
                State::Abandoned { .. } => entry.state = State::Foreign,
                State::Vacant | State::Foreign => {}
                State::Live { .. } => panic!("a member that is exchanged has no operations that somebody waits for"),
            }
        }
        self.members[member.index()] = Lag::default();
        self.slow = self.slow.without(member);
    }

    /// Takes in a completion of the device's; false: nobody waits for it.
    fn ended(&mut self, completion: &mut Completion) -> bool {
        if completion.tag & OWN == 0 {
            return true;
        }
        let number = u32::try_from(completion.tag & !OWN).expect("a tag that was given");
        let entry = &mut self.entries[number as usize];
        let (state, member) = (std::mem::replace(&mut entry.state, State::Vacant), entry.op.member);
        completion.tag = entry.tag;
        self.vacant.push(number);
        let lag = &mut self.members[member.index()];
        let (is_live, is_late) = match state {
            State::Live { is_late } => (true, is_late),
            State::Abandoned { is_late } => {
                lag.abandoned -= 1;
                (false, is_late)
            }
            State::Foreign => (false, false),
            State::Vacant => panic!("an operation ends once"),
        };
        self.live -= usize::from(is_live);
        lag.reads -= u32::from(is_late);
        if lag.reads == 0 {
            self.slow = self.slow.without(member);
        }
        is_live || planted!(LateReplied) && state != State::Foreign
    }
}

impl<D: Disk> Disk for Deadline<D> {
    fn submit(&mut self, mut op: DiskOp) {
        if self.is_on {
            assert_eq!(op.tag & OWN, 0, "a submitter's tag leaves the highest bit free");
            let entry = Entry { tag: op.tag, op: op.info(), since: self.now, state: State::Live { is_late: false } };
            let number = match self.vacant.pop() {
                Some(number) => {
                    self.entries[number as usize] = entry;
                    number
                }
                None => {
                    self.entries.push(entry);
                    u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 operations at once")
                }
            };
            self.live += 1;
            op.tag = OWN | u64::from(number);
        }
        self.inner.submit(op);
    }

    fn kick(&mut self) -> Result<(), Error> {
        self.inner.kick()
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        let (mut index, before) = (0, completions.len());
        self.inner.reap(completions);
        completions.retain_mut(|completion| {
            index += 1;
            index <= before || self.ended(completion)
        });
        completions.append(&mut self.given_up);
    }

    fn wait(&mut self) -> Result<(), Error> {
        if self.given_up.is_empty() { self.inner.wait() } else { self.inner.kick() }
    }

    fn wait_at_most(&mut self, time: Duration) -> Result<(), Error> {
        if self.given_up.is_empty() { self.inner.wait_at_most(time) } else { self.inner.kick() }
    }

    fn kin(&self, member: MemberIndex) -> MemberSet {
        self.inner.kin(member)
    }

    fn roomless(&self) -> MemberSet {
        self.inner.roomless()
    }

    fn tick(&mut self) {
        self.now += 1;
        for member in self.inner.roomless().iter() {
            self.members[member.index()].roomless = self.now;
        }
        self.inner.tick();
    }

    fn wants_ticks(&self) -> bool {
        self.live > 0 || self.inner.wants_ticks()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.given_up.len()
    }

    fn exchange(&mut self, one: MemberIndex, other: MemberIndex) {
        self.forget(one);
        self.forget(other);
        self.inner.exchange(one, other);
    }
}
