//! Members that end one operation at a time, and keep what a crash at every boundary would leave.
//!
//! A boundary is the begin or the end of a write or a flush. A write takes effect when it ends; until then, and until a
//! flush that was begun after it has ended, a crash may leave any of its sectors.

use std::cell::RefCell;
use std::rc::Rc;

use rustix::io::Errno;
use uraid_io::Error;
use uraid_io::disk::{Completion, Disk, DiskError, DiskOp, OpInfo, OpKind};
use uraid_layout::MemberIndex;

use super::moves::{fill, seat};
use super::workload::{Failing, Order};
use crate::disk::payload;
use crate::member::{FlushMark, Member, WriteId};
use crate::members::Members;

/// A handle on recorded members.
#[derive(Clone, Debug)]
pub(super) struct Tape {
    world: Rc<RefCell<World>>,
}

#[derive(Debug)]
struct World {
    members: Members,
    /// Where the first log device is among them.
    logs: Option<MemberIndex>,
    order: Order,
    queued: Vec<DiskOp>,
    flying: Vec<Flight>,
    done: Vec<Completion>,
    recorded: Vec<(Event, Members)>,
    is_recording: bool,
    failing: Option<Failing>,
}

#[derive(Debug)]
struct Flight {
    op: DiskOp,
    write: Option<WriteId>,
    mark: Option<FlushMark>,
    fails: bool,
}

/// What a boundary comes right after.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The start of the recording.
    Start,
    /// An operation began.
    Begun(OpInfo),
    /// An operation ended.
    Ended(OpInfo),
    /// Commands were replied to.
    Replied,
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Start => write!(f, "the start"),
            Self::Begun(op) => write!(f, "the begin of {op}"),
            Self::Ended(op) => write!(f, "the end of {op}"),
            Self::Replied => write!(f, "a reply"),
        }
    }
}

impl Tape {
    /// A tape of members.
    #[must_use]
    pub(super) fn new(members: Members, order: Order) -> Self {
        let world = World {
            members,
            logs: None,
            order,
            queued: Vec::new(),
            flying: Vec::new(),
            done: Vec::new(),
            recorded: Vec::new(),
            is_recording: false,
            failing: None,
        };
        Self { world: Rc::new(RefCell::new(world)) }
    }

    /// The same, of which log devices begin there.
    #[must_use]
    pub(super) fn with_logs(self, first: MemberIndex) -> Self {
        self.world.borrow_mut().logs = Some(first);
        self
    }

    /// Records from now on; the present is the first boundary.
    pub(super) fn record(&self) {
        self.world.borrow_mut().is_recording = true;
        self.note(Event::Start);
    }

    /// Has a member fail from now on: of what it is given then nothing or any part is done.
    pub(super) fn fail(&self, failing: Failing) {
        self.world.borrow_mut().failing = Some(failing);
    }

    /// Puts a member in at a slot.
    pub(super) fn put(&self, slot: MemberIndex, member: Member) {
        self.world.borrow_mut().members.replace(slot, Some(member));
    }

    /// Records a boundary that the members don't know of.
    pub(super) fn note(&self, event: Event) {
        self.world.borrow_mut().note(event);
    }

    /// The boundaries recorded since this was last asked, with what was on the members.
    #[must_use]
    pub(super) fn take(&self) -> Vec<(Event, Members)> {
        std::mem::take(&mut self.world.borrow_mut().recorded)
    }

    /// The members as they are now.
    #[must_use]
    pub(super) fn members(&self) -> Members {
        self.world.borrow().members.clone()
    }
}

impl World {
    fn note(&mut self, event: Event) {
        if self.is_recording {
            self.recorded.push((event, self.members.clone()));
        }
    }

    fn begin(&mut self, op: DiskOp) {
        let (mut write, mut mark) = (None, None);
        let is_read = op.kind == OpKind::Read;
        if let Some(member) =
            self.members.get_mut(seat(op.member, self.logs)).filter(|member| op.check_end(member.size()).is_ok())
        {
            match op.kind {
                OpKind::Read => {}
                OpKind::Write | OpKind::WriteFua | OpKind::Zero { .. } => {
                    write = Some(member.issue(op.offset, payload(&op)));
                }
                OpKind::Flush => mark = Some(member.flush_begins()),
            }
        }
        let info = op.info();
        let fails = !is_read && self.is_failing(seat(op.member, self.logs));
        self.flying.push(Flight { op, write, mark, fails });
        if !is_read && mark.is_none() {
            self.note(Event::Begun(info));
        }
    }

    /// Whether the member fails the write or flush that it is given now.
    fn is_failing(&mut self, member: MemberIndex) -> bool {
        let Some(failing) = self.failing.as_mut().filter(|failing| failing.member == member) else { return false };
        let fails = failing.index == 0;
        if !fails {
            failing.index -= 1;
        } else if !failing.lasts {
            self.failing = None;
        }
        fails
    }

    /// Ends one operation.
    fn step(&mut self) {
        if self.flying.is_empty() {
            return;
        }
        let index = if self.order == Order::Fifo { 0 } else { self.flying.len() - 1 };
        let Flight { mut op, write, mark, fails } = self.flying.remove(index);
        let info = op.info();
        let result = match self.members.get_mut(seat(op.member, self.logs)) {
            None => Err(DiskError::Io { op: info, errno: Errno::NODEV }),
            Some(member) if fails => {
                write.into_iter().for_each(|write| member.abandon(write));
                mark.into_iter().for_each(|mark| member.flush_fails(mark));
                Err(DiskError::Io { op: info, errno: Errno::IO })
            }
            Some(member) => {
                let complete = if op.kind == OpKind::WriteFua { Member::complete_fua } else { Member::complete };
                write.into_iter().for_each(|write| complete(member, write));
                mark.into_iter().for_each(|mark| member.flush_ends(mark));
                op.check_end(member.size()).map(|()| {
                    if op.kind == OpKind::Read {
                        fill(&mut op, member.current());
                    }
                })
            }
        };
        let is_read = op.kind == OpKind::Read;
        self.done.push(op.complete(result));
        if !is_read {
            self.note(Event::Ended(info));
        }
    }
}

impl Disk for Tape {
    fn submit(&mut self, op: DiskOp) {
        op.check();
        self.world.borrow_mut().queued.push(op);
    }

    fn kick(&mut self) -> Result<(), Error> {
        let mut world = self.world.borrow_mut();
        for op in std::mem::take(&mut world.queued) {
            world.begin(op);
        }
        Ok(())
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.world.borrow_mut().done);
    }

    fn wait(&mut self) -> Result<(), Error> {
        self.kick()?;
        let mut world = self.world.borrow_mut();
        if world.done.is_empty() {
            world.step();
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        let world = self.world.borrow();
        world.queued.len() + world.flying.len() + world.done.len()
    }

    fn exchange(&mut self, one: MemberIndex, other: MemberIndex) {
        let mut world = self.world.borrow_mut();
        let is_either = |member| member == one || member == other;
        let is_busy = world.queued.iter().any(|op| is_either(op.member))
            || world.flying.iter().any(|flight| is_either(flight.op.member));
        assert!(!is_busy, "members change places with nothing in flight");
        let first = world.members.replace(one, None);
        let second = world.members.replace(other, first);
        world.members.replace(one, second);
    }
}
