//! Operations that take too long, and can be given up.
//!
//! While it is on, every operation has an entry here and goes to the device under the entry's tag. One that is given up
//! ends at once for whoever submitted it, with [`DiskError::TimedOut`]; the device still has it, and its memory, and
//! when it ends there nobody is told.
//!
//! Time is counted in the caller's ticks, and in beats, of which there are many more. What is too long, and what may be
//! given up, is for the caller to say.

use std::collections::VecDeque;
use std::time::Duration;

use uraid_layout::{MemberIndex, MemberSet};

use super::{Completion, Disk, DiskError, DiskOp, OpInfo, OpName, PLACES};
use crate::error::Error;

/// Set in the tags of operations that have an entry; submitters leave it free.
const OWN: u64 = 1 << 63;

/// An operation that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpId(u32);

/// One that has not ended for a while.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Late {
    pub(crate) id: OpId,
    /// As it was submitted.
    pub(crate) tag: u64,
    pub(crate) member: MemberIndex,
    pub(crate) name: OpName,
    /// In ticks; where its member had no room meanwhile and has some again, since then.
    pub(crate) age: u64,
    /// The same in beats, whether there was room or not.
    pub(crate) beats: u64,
    /// It was given up.
    pub(crate) is_abandoned: bool,
}

/// The operations on the members of one array; see the module.
#[derive(Debug)]
pub(crate) struct Entries {
    is_on: bool,
    now: u64,
    beats: u64,
    list: Vec<Entry>,
    vacant: Vec<u32>,
    /// Entries of operations that somebody waits for.
    live: usize,
    /// By place.
    members: Vec<Lag>,
    /// Members with late reads that are not back.
    slow: MemberSet,
    /// Operations that were given up and whose callers were not told yet.
    given_up: VecDeque<Completion>,
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
    since_beat: u64,
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

impl Entries {
    /// None yet; off.
    pub(crate) fn new() -> Self {
        Self {
            is_on: false,
            now: 0,
            beats: 0,
            list: Vec::new(),
            vacant: Vec::new(),
            live: 0,
            members: vec![Lag::default(); PLACES],
            slow: MemberSet::EMPTY,
            given_up: VecDeque::new(),
        }
    }

    /// Whether operations that are added from now on can be given up.
    pub(crate) fn set_on(&mut self, is_on: bool) {
        self.is_on = is_on;
    }

    /// What has not ended, on the members that are in the slots now, of which `roomless` have no room for writes.
    pub(crate) fn pending(&self, roomless: MemberSet) -> impl Iterator<Item = Late> + '_ {
        (0..).map(OpId).zip(&self.list).filter_map(move |(id, entry)| {
            let is_abandoned = match entry.state {
                State::Vacant | State::Foreign => return None,
                State::Live { .. } => false,
                State::Abandoned { .. } => true,
            };
            let &Entry { tag, op: OpInfo { member, name, .. }, since, since_beat, .. } = entry;
            let had_none = if roomless.contains(member) { 0 } else { self.members[member.index()].roomless };
            let (age, beats) = (self.now - since.max(had_none), self.beats - since_beat);
            Some(Late { id, tag, member, name, age, beats, is_abandoned })
        })
    }

    /// Notes that a read is late.
    pub(crate) fn note_late(&mut self, id: OpId) {
        let entry = &mut self.list[id.0 as usize];
        let (State::Live { is_late } | State::Abandoned { is_late }) = &mut entry.state else { return };
        if !std::mem::replace(is_late, true) {
            self.members[entry.op.member.index()].reads += 1;
            self.slow = self.slow.with(entry.op.member);
        }
    }

    /// Ends an operation for whoever submitted it: the tag under which the device has it, if anybody waited.
    pub(crate) fn give_up(&mut self, id: OpId) -> Option<u64> {
        let entry = &mut self.list[id.0 as usize];
        let State::Live { is_late } = entry.state else { return None };
        entry.state = State::Abandoned { is_late };
        let &mut Entry { tag, op, .. } = entry;
        self.live -= 1;
        self.members[op.member.index()].abandoned += 1;
        let result = Err(DiskError::TimedOut { op });
        self.given_up.push_back(Completion { tag, member: op.member, result, spare: Vec::new() });
        Some(OWN | u64::from(id.0))
    }

    /// The next operation that was given up and whose caller was not told.
    pub(crate) fn next_given_up(&mut self) -> Option<Completion> {
        self.given_up.pop_front()
    }

    /// Members whose reads are late.
    pub(crate) fn slow(&self) -> MemberSet {
        self.slow
    }

    /// Whether somebody waits for operations on a slot's member.
    pub(crate) fn is_awaited(&self, member: MemberIndex) -> bool {
        let is_live = |entry: &Entry| matches!(entry.state, State::Live { .. }) && entry.op.member == member;
        self.list.iter().any(is_live)
    }

    /// How many operations on a slot's member were given up and have not ended.
    pub(crate) fn abandoned(&self, member: MemberIndex) -> u32 {
        self.members[member.index()].abandoned
    }

    /// Notes that time has passed, and which members have no room for writes now.
    pub(crate) fn tick(&mut self, roomless: MemberSet) {
        self.now += 1;
        for member in roomless.iter() {
            self.members[member.index()].roomless = self.now;
        }
    }

    /// Notes that a little time has passed.
    pub(crate) fn beat(&mut self) {
        self.beats += 1;
    }

    /// Whether something becomes late as time passes.
    pub(crate) fn wants_ticks(&self) -> bool {
        self.live > 0
    }

    /// Gives an operation an entry, and its tag, while deadlines are on.
    pub(crate) fn add(&mut self, op: &mut DiskOp) {
        if !self.is_on {
            return;
        }
        assert_eq!(op.tag & OWN, 0, "a caller's tag leaves the highest bit free");
        let (since, since_beat, state) = (self.now, self.beats, State::Live { is_late: false });
        let entry = Entry { tag: op.tag, op: op.info(), since, since_beat, state };
        let number = match self.vacant.pop() {
            Some(number) => {
                self.list[number as usize] = entry;
                number
            }
            None => {
                self.list.push(entry);
                u32::try_from(self.list.len() - 1).expect("fewer than 2^32 operations at once")
            }
        };
        self.live += 1;
        op.tag = OWN | u64::from(number);
    }

    /// Takes in a completion of the device's; false: nobody waits for it.
    pub(crate) fn ended(&mut self, completion: &mut Completion) -> bool {
        if completion.tag & OWN == 0 {
            return true;
        }
        let number = u32::try_from(completion.tag & !OWN).expect("a tag that was given");
        let entry = &mut self.list[number as usize];
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

    /// Notes that a slot has another member: what was given up is not its.
    pub(crate) fn forget(&mut self, member: MemberIndex) {
        for entry in self.list.iter_mut().filter(|entry| entry.op.member == member) {
            match entry.state {
                State::Abandoned { .. } => entry.state = State::Foreign,
                State::Vacant | State::Foreign => {}
                State::Live { .. } => panic!("a member that is exchanged has no operations that somebody waits for"),
            }
        }
        self.members[member.index()] = Lag::default();
        self.slow = self.slow.without(member);
    }
}

/// A disk whose operations can be given up.
#[derive(Debug)]
pub(crate) struct Deadline<D> {
    inner: D,
    entries: Entries,
}

impl<D: Disk> Deadline<D> {
    /// A disk whose operations can be given up from now on.
    pub(crate) fn new(inner: D) -> Self {
        let mut entries = Entries::new();
        entries.set_on(true);
        Self { inner, entries }
    }

    pub(crate) fn into_inner(self) -> D {
        self.inner
    }

    pub(crate) fn inner(&self) -> &D {
        &self.inner
    }

    /// What has not ended.
    pub(crate) fn pending(&self) -> impl Iterator<Item = Late> + '_ {
        self.entries.pending(self.inner.roomless())
    }

    /// Ends an operation for whoever submitted it.
    pub(crate) fn give_up(&mut self, id: OpId) {
        if let Some(tag) = self.entries.give_up(id) {
            self.inner.abandon(tag);
        }
    }
}

impl<D: Disk> Disk for Deadline<D> {
    fn submit(&mut self, mut op: DiskOp) {
        self.entries.add(&mut op);
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
            index <= before || self.entries.ended(completion)
        });
        completions.extend(std::iter::from_fn(|| self.entries.next_given_up()));
    }

    fn wait(&mut self) -> Result<(), Error> {
        if self.entries.given_up.is_empty() { self.inner.wait() } else { self.inner.kick() }
    }

    fn wait_at_most(&mut self, time: Duration) -> Result<(), Error> {
        if self.entries.given_up.is_empty() { self.inner.wait_at_most(time) } else { self.inner.kick() }
    }

    fn tick(&mut self) {
        self.entries.tick(self.inner.roomless());
        self.inner.tick();
    }

    fn wants_ticks(&self) -> bool {
        self.entries.wants_ticks() || self.inner.wants_ticks()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.entries.given_up.len()
    }
}
