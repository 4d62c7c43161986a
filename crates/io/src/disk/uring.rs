//! Members behind one io_uring: batched submission, operations that own their memory until the kernel is done with it.
//!
//! - An operation moves from the queue into a slot, is described to the kernel, and stays in the slot until its
//!   completion has been taken off the ring. Slots, iovecs and queues are reused: a steady load allocates nothing.
//! - No more operations are with the kernel than the completion ring holds, so that it can't overflow; the rest waits.
//! - A write that finds no room can be made to wait for it: what it brings is nowhere else yet.
//! - A short transfer goes back to the kernel for the remainder.
//! - A member that was truncated takes no more writes: they would hide what it lost.
//! - A member in memory (tmpfs) has nothing to wait for, and the kernel would hand each operation to a worker thread:
//!   small transfers on it are done at once, in the same call that would have sent them.
//! - Dropping the disk first waits for everything that the kernel has and somebody waits for, for a while. What the
//!   kernel still has then stays its own for good: the memory, and the open files that it is working on, with their
//!   locks.
//! - A member on a network has a connection, whose requests the ring sends and receives: see [`remote`].
//! - An operation that was abandoned stays in its slot until the kernel is done with it, with the file that it is on,
//!   whoever has its member's place by then.
//!
//! Files are not registered with the ring: that was measured and made no difference beyond noise, and a ring that is
//! being taken apart would keep devices in use. The ring never has DEFER_TASKRUN, whose completions an event loop that
//! polls would not be told of.
#![expect(unsafe_code, reason = "memory is handed to the kernel as raw addresses")]

mod remote;
mod ring;
mod slot;

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::IoUring;
use io_uring::types::{SubmitArgs, Timespec};
use rustix::io::Errno;
use uraid_layout::{Bytes, MemberIndex, MemberSet};

use super::{Completion, Disk, DiskError, DiskOp, Latencies, OpKind, PLACES, log_at};
use crate::error::Error;
use crate::member::Member;
pub(crate) use remote::Claim;
use remote::{Ended, MARK, Remote};
use slot::{Progress, Slot};

/// Operations that the kernel takes in one batch unless asked otherwise.
pub(crate) const DEFAULT_DEPTH: u32 = 256;

/// Transfers of up to this are done at once on members in memory, among them the log records of a full queue of small
/// writes; longer ones are worth a worker thread.
const AT_ONCE_MAX: Bytes = Bytes(128 << 10);

/// How long a member's file is taken to have its size after a look. A write beyond the end of one that was truncated
/// would give it a size again, and its hole would read as zeros.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How long to wait at most while an export holds operations back, which is over as time passes.
const HELD_BACK: Duration = Duration::from_millis(20);

/// How long the disk's end waits for the guards of exports.
const GUARD_WAIT: Duration = Duration::from_secs(1);

/// How long dropping the disk waits for what the kernel has.
const DROP_WAIT: Duration = Duration::from_secs(10);

/// The members of an array behind one io_uring; belongs to one thread.
///
/// Its file descriptor is an eventfd that is written whenever operations complete: an event loop waits for it to become
/// readable, edge-triggered (so that it is never read), clears the readiness and then reaps. What a kick did at once is
/// not signalled: reap after each kick, too. [`Disk::wait`] is for tools.
pub struct UringDisk {
    ring: IoUring,
    event: OwnedFd,
    members: Vec<Option<Arc<Member>>>,
    slots: Vec<Slot>,
    vacant: Vec<usize>,
    /// Connections of members on networks, and of those that had a place, as long as the kernel has something of them.
    #[expect(clippy::vec_box, reason = "the kernel has addresses of what is in them")]
    remotes: Vec<Box<Remote>>,
    next_remote: u32,
    /// Operations on connections that have ended and have not been reaped.
    ended: Vec<Ended>,
    /// Slots whose operation is to be described to the kernel again: remainders of short transfers.
    again: VecDeque<usize>,
    /// Slots whose operation waits for room on its member's file system.
    roomless: Vec<usize>,
    waits_for_room: bool,
    /// By slot: operations that found no room and have not ended.
    short_of_room: Vec<u32>,
    /// Operations that have no slot yet.
    waiting: VecDeque<DiskOp>,
    /// Slots whose operation was done at once, and what the ring would have answered.
    answered: Vec<(usize, i32)>,
    /// Completions of operations that never reached the kernel.
    refused: Vec<Completion>,
    /// Operations that the kernel has: described and not yet completed.
    with_kernel: usize,
    enters: u64,
    latencies: Latencies,
    /// By slot: when the member's file was last seen to have its size.
    seen_whole: Vec<Option<Instant>>,
    broken: Option<std::io::Error>,
    /// Another process has an export: nothing is done on any member any more.
    is_robbed: bool,
}

impl UringDisk {
    /// A disk of the given members, by [place](super::places); `None` is an absent one. `depth` is the size of a batch,
    /// 1 to 4096, rounded up to a power of two; twice as many operations are with the kernel at most.
    ///
    /// # Errors
    /// When io_uring is missing, refused or too old, or a system limit is reached.
    ///
    /// # Panics
    /// When there are more than there can be.
    pub fn new(members: Vec<Option<Arc<Member>>>, depth: u32) -> Result<Self, Error> {
        assert!(members.len() <= PLACES, "an array has at most 64 members, and a few log devices");
        let depth = depth.clamp(1, 4096).next_power_of_two();
        let (ring, event) = ring::build(depth)?;
        let capacity = 2 * depth as usize;
        let mut disk = Self {
            ring,
            event,
            latencies: Latencies::new(members.len()),
            short_of_room: vec![0; members.len()],
            seen_whole: vec![None; members.len()],
            members,
            slots: (0..capacity).map(|_| Slot::default()).collect(),
            vacant: (0..capacity).rev().collect(),
            remotes: Vec::new(),
            next_remote: 0,
            ended: Vec::new(),
            again: VecDeque::with_capacity(capacity),
            roomless: Vec::new(),
            waits_for_room: false,
            waiting: VecDeque::new(),
            answered: Vec::new(),
            refused: Vec::new(),
            with_kernel: 0,
            enters: 0,
            broken: None,
            is_robbed: false,
        };
        let members: Vec<Arc<Member>> = disk.members.iter().flatten().cloned().collect();
        members.iter().for_each(|member| disk.make_way_for(member));
        Ok(disk)
    }

    /// Has enough threads of the kernel work for the ring that a member which hangs does not keep the others waiting;
    /// and takes the connection of one on a network.
    fn make_way_for(&mut self, member: &Arc<Member>) {
        if member.may_stall() {
            ring::allow_workers(&self.ring, self.slots.len());
        }
        if member.is_export() {
            self.remotes.push(Remote::new(self.next_remote, member));
            self.next_remote = self.next_remote.wrapping_add(1);
        }
    }

    /// Waits until the exports among the members are this process's own. Operations wait for that in any case.
    ///
    /// # Errors
    /// When another process has taken one, or the disk is broken.
    pub fn claim(&mut self) -> Result<(), Error> {
        while self.remotes.iter().any(|remote| remote.is_held_back() || remote.is_guarding()) {
            self.wait_for_some(None)?;
            let mut completions = Vec::new();
            self.reap(&mut completions);
            assert!(completions.is_empty(), "nothing was submitted");
        }
        if self.is_robbed {
            return Err(Error::Ring { action: "claim a member", source: Errno::STALE.into() });
        }
        Ok(())
    }

    /// Waits for a moment for what guards have under way: connections go back to their members without it.
    fn pause_guards(&mut self) -> Vec<usize> {
        let until = Instant::now() + GUARD_WAIT;
        let mut ended = Vec::new();
        self.remotes.iter_mut().for_each(|remote| remote.pause_guard());
        while self.remotes.iter().any(|remote| remote.is_guarding()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.send().is_err() || self.enter_at_most(left).is_err() {
                break;
            }
            self.take_back(&mut ended);
        }
        ended
    }

    /// Takes what the kernel has done, for nobody; `ended` are slots of it.
    fn take_back(&mut self, ended: &mut Vec<usize>) {
        for entry in self.ring.completion() {
            self.with_kernel -= 1;
            let mark = entry.user_data();
            if mark & MARK == 0 {
                ended.push(usize::try_from(mark).expect("an entry carries its slot"));
            } else {
                remote_of(&mut self.remotes, mark).answered(mark & 1 == 1, entry.result(), &mut self.ended);
            }
        }
    }

    /// Does nothing more if another process has one of the exports.
    fn end_if_robbed(&mut self) {
        if self.is_robbed || !self.remotes.iter().any(|remote| remote.is_robbed()) {
            return;
        }
        self.is_robbed = true;
        tracing::error!("another server has taken a member: nothing is written to any member any more");
        self.remotes.iter_mut().for_each(|remote| remote.give_up(&mut self.ended));
        let robbed = |op: DiskOp| {
            let info = op.info();
            op.complete(Err(DiskError::Io { op: info, errno: Errno::STALE }))
        };
        self.refused.extend(self.waiting.drain(..).map(robbed));
    }

    /// Ends the use of the connection of the member at a place.
    fn retire(&mut self, place: MemberIndex) {
        if let Some(remote) = remote_at(&self.members, &mut self.remotes, place) {
            remote.retire(&mut self.ended);
        }
        self.forget_retired();
    }

    /// Lets go of connections that were ended, and of which the kernel has nothing.
    fn forget_retired(&mut self) {
        let members = &self.members;
        self.remotes
            .retain(|remote| remote.is_with_kernel() || members.iter().flatten().any(|member| remote.is_of(member)));
    }

    /// Whether a write that finds no room on its member's file system waits until there is some, and is tried again
    /// with each tick. Otherwise, as at first, that is its error.
    pub fn set_waits_for_room(&mut self, waits: bool) {
        self.waits_for_room = waits;
    }

    /// The members by slot.
    #[must_use]
    pub fn members(&self) -> &[Option<Arc<Member>>] {
        &self.members
    }

    /// Puts a member in at a slot, or takes it out with `None`; returns the one that was there. The new one's size is
    /// what operations are checked against from now on. Abandoned operations on the old one go on there, and keep it
    /// open. There is one seat beyond the slots, for a member that is to take another one's place.
    ///
    /// # Errors
    /// The member that was to be put in, while operations on that slot are in flight that were not abandoned: try again
    /// when they have completed.
    ///
    /// # Panics
    /// When the disk has no such slot.
    pub fn put(
        &mut self,
        slot: MemberIndex,
        member: Option<Arc<Member>>,
    ) -> Result<Option<Arc<Member>>, Option<Arc<Member>>> {
        if self.is_awaited(slot) {
            return Err(member);
        }
        if slot.index() == self.members.len() {
            self.members.push(None);
            self.latencies.grow(self.members.len());
            self.short_of_room.push(0);
            self.seen_whole.push(None);
        }
        self.seen_whole[slot.index()] = None;
        self.keep_open(slot);
        self.retire(slot);
        member.iter().for_each(|member| self.make_way_for(member));
        let former = std::mem::replace(&mut self.members[slot.index()], member);
        self.forget_retired();
        Ok(former)
    }

    /// Whether operations on a slot's member are in flight that were not abandoned.
    pub fn is_awaited(&self, slot: MemberIndex) -> bool {
        let is_of_slot = |op: &DiskOp| op.member == slot;
        let is_awaited = |taken: &Slot| taken.op().is_some_and(is_of_slot) && !taken.is_abandoned();
        let is_asked = self.remotes.iter().any(|remote| remote.is_awaited(slot));
        self.slots.iter().any(is_awaited) || self.waiting.iter().any(is_of_slot) || is_asked
    }

    /// Has operations on a slot's member keep it open, which another is going to replace.
    fn keep_open(&mut self, slot: MemberIndex) {
        let Some(former) = &self.members[slot.index()] else { return };
        let is_left = |taken: &&mut Slot| taken.op().is_some_and(|op| op.member == slot) && !taken.has_former();
        self.slots.iter_mut().filter(is_left).for_each(|taken| taken.keep(Arc::clone(former)));
    }

    /// Begins to time operations of a slot's member anew: it is another one.
    ///
    /// # Panics
    /// When the disk has no such slot.
    pub fn forget_latencies(&mut self, slot: MemberIndex) {
        self.latencies.forget(slot);
    }

    /// Lets go of all members, whose locks are free then. One with operations that were abandoned stays open until they
    /// end.
    pub fn release(&mut self) {
        self.pause_guards();
        for slot in 0..self.members.len() {
            let slot = MemberIndex(u8::try_from(slot).expect("an array has at most 64 members, and a seat"));
            self.keep_open(slot);
            self.retire(slot);
        }
        self.members.fill(None);
        self.forget_retired();
    }

    /// How often the kernel was entered on the ring's behalf; transfers that are done at once are not among it.
    #[must_use]
    pub fn enters(&self) -> u64 {
        self.enters
    }

    /// How long operations took.
    #[must_use]
    pub fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// Why an operation can't even be tried.
    fn refuse(&self, op: &DiskOp) -> Result<(), DiskError> {
        match self.members.get(op.member.index()) {
            Some(Some(_)) if self.is_robbed => Err(DiskError::Io { op: op.info(), errno: Errno::STALE }),
            Some(Some(member)) => op.check_end(member.size()),
            Some(None) | None => Err(DiskError::Absent { op: op.info() }),
        }
    }

    /// Describes operations to the kernel until none is left or no more fit, and enters it once for each full batch.
    fn send(&mut self) -> std::io::Result<()> {
        loop {
            self.fill_batch();
            if self.ring.submission().is_empty() {
                return Ok(());
            }
            self.enters += 1;
            match self.ring.submit() {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                // The kernel is short of memory or wants its completions taken: the batch stays for the next turn.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Has each connection put what it sends and receives into the batch, as far as there is room.
    fn fill_batch_of_remotes(&mut self) {
        let mut batch = self.ring.submission();
        for remote in &mut self.remotes {
            while !batch.is_full()
                && let Some(entry) = remote.next_entry()
            {
                // SAFETY: the connection, which has a place of its own in memory, keeps what the entry refers to
                // unchanged, and the socket open, until the entry's completion is reaped; it stays in `remotes` until
                // then. Dropping the disk waits for the completion, or leaks the connection.
                let pushed = unsafe { batch.push(&entry) };
                pushed.expect("the batch was not full");
                self.with_kernel += 1;
            }
            remote.end_if_broken(&mut self.ended);
        }
    }

    fn fill_batch(&mut self) {
        if !self.remotes.is_empty() {
            self.fill_batch_of_remotes();
        }
        if self.again.is_empty() && self.waiting.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut batch = self.ring.submission();
        while !batch.is_full() {
            let index = if let Some(index) = self.again.pop_front() {
                index
            } else if self.vacant.is_empty() {
                return;
            } else if let Some(op) = self.waiting.pop_front() {
                let index = self.vacant.pop().expect("a slot is vacant");
                let member = self.members[op.member.index()].as_ref().expect("submit refused absent members");
                let seen = &mut self.seen_whole[op.member.index()];
                if op.kind != OpKind::Read && !is_whole(member, seen, now) {
                    self.vacant.push(index);
                    let error = DiskError::ShortIo { op: op.info(), done: Bytes(0) };
                    self.refused.push(op.complete(Err(error)));
                    continue;
                }
                // Where it goes through the page cache, whoever hands it over would do the flush.
                let may_stall = member.may_stall() || op.kind == OpKind::WriteFua && !member.is_direct();
                let file = member.file().expect("what is on a network has a connection").as_raw_fd();
                self.slots[index].start(op, file, may_stall, now);
                if member.is_in_memory() && self.slots[index].is_small(AT_ONCE_MAX) {
                    let answer = self.slots[index].do_at_once();
                    self.answered.push((index, answer));
                    continue;
                }
                index
            } else {
                return;
            };
            let entry = self.slots[index].describe().user_data(index as u64);
            // SAFETY: the slot owns the operation's leases and iovecs and keeps them unchanged until the entry's
            // completion is reaped, and `members` keeps its file open; dropping the disk waits for the completion, or
            // leaks the slots.
            let pushed = unsafe { batch.push(&entry) };
            pushed.expect("the batch was not full");
            self.with_kernel += 1;
        }
    }

    fn wait_for_some(&mut self, at_most: Option<Duration>) -> Result<(), Error> {
        self.kick()?;
        let has_some = !self.refused.is_empty() || !self.answered.is_empty() || !self.ended.is_empty();
        // What an export that is not claimed yet holds back has nothing with the kernel.
        let is_held_back = self.remotes.iter().any(|remote| remote.is_held_back());
        let at_most = if is_held_back { Some(at_most.unwrap_or(HELD_BACK).min(HELD_BACK)) } else { at_most };
        let has_any = self.with_kernel > 0 || is_held_back || at_most.is_some() && !self.roomless.is_empty();
        if !has_some && has_any && self.ring.completion().is_empty() {
            self.enters += 1;
            let waited = match at_most {
                None => self.ring.submit_and_wait(1).map(drop).or_else(ring::transient),
                Some(time) => self.enter_at_most(time),
            };
            self.note(waited);
        }
        self.check_broken("wait for completions")
    }

    /// Waits in the kernel for a completion.
    fn enter_at_most(&self, time: Duration) -> std::io::Result<()> {
        let time = Timespec::from(time);
        let entered = self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time)).map(drop);
        entered.or_else(|error| match error.raw_os_error() {
            Some(libc::ETIME) => Ok(()),
            _ => ring::transient(error),
        })
    }

    fn note(&mut self, result: std::io::Result<()>) {
        if let Err(error) = result {
            self.broken.get_or_insert(error);
        }
    }

    fn check_broken(&mut self, action: &'static str) -> Result<(), Error> {
        match &self.broken {
            None => Ok(()),
            Some(error) => {
                let source =
                    error.raw_os_error().map_or_else(|| error.kind().into(), std::io::Error::from_raw_os_error);
                Err(Error::Ring { action, source })
            }
        }
    }
}

/// Whether a member's file has its size, as far as a recent look tells. Looking at one that hangs would hang.
fn is_whole(member: &Member, seen: &mut Option<Instant>, now: Instant) -> bool {
    if member.is_device() || member.may_stall() || seen.is_some_and(|at| now.duration_since(at) < LOOK_EVERY) {
        return true;
    }
    *seen = (!member.is_cut()).then_some(now);
    seen.is_some()
}

/// The connection of the member at a place, if that is on a network.
fn remote_at<'a>(
    members: &[Option<Arc<Member>>],
    remotes: &'a mut [Box<Remote>],
    place: MemberIndex,
) -> Option<&'a mut Remote> {
    if remotes.is_empty() {
        return None;
    }
    let member = members.get(place.index())?.as_ref().filter(|member| member.is_export())?;
    // One that was retired may be there, too.
    remotes.iter_mut().rev().find(|remote| remote.is_of(member)).map(|remote| &mut **remote)
}

/// The connection that an entry was of.
fn remote_of(remotes: &mut [Box<Remote>], mark: u64) -> &mut Remote {
    let number = (mark & !MARK) >> 1;
    let remote = remotes.iter_mut().find(|remote| u64::from(remote.number()) == number);
    remote.expect("a connection stays as long as the kernel has something of it")
}

impl Disk for UringDisk {
    fn submit(&mut self, op: DiskOp) {
        op.check();
        match self.refuse(&op) {
            Ok(()) => match remote_at(&self.members, &mut self.remotes, op.member) {
                Some(remote) => remote.submit(op, &mut self.ended),
                None => self.waiting.push_back(op),
            },
            Err(error) => self.refused.push(op.complete(Err(error))),
        }
    }

    fn kick(&mut self) -> Result<(), Error> {
        let sent = self.send();
        self.note(sent);
        if !self.refused.is_empty() || !self.ended.is_empty() {
            ring::signal(&self.event);
        }
        self.check_broken("take operations")
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.refused);
        if self.ring.submission().taskrun() {
            // Completions wait for this thread to enter the kernel.
            self.enters += 1;
            let entered = self.ring.submit().map(drop);
            self.note(entered.or_else(ring::transient));
        }
        let remotes = &mut self.remotes;
        let from_ring = self.ring.completion().filter_map(|entry| {
            self.with_kernel -= 1;
            let (mark, answer) = (entry.user_data(), entry.result());
            if mark & MARK != 0 {
                remote_of(remotes, mark).answered(mark & 1 == 1, answer, &mut self.ended);
                return None;
            }
            Some((usize::try_from(mark).expect("an entry carries its slot"), answer))
        });
        let mut now = None;
        for (index, answer) in self.answered.drain(..).chain(from_ring) {
            // Of a log device that is an error: others have what it is to have.
            let is_member = self.slots[index].op().is_some_and(|op| log_at(op.member).is_none());
            if self.waits_for_room && is_member && self.slots[index].lacks_room(answer) {
                if self.slots[index].note_no_room()
                    && let Some(op) = self.slots[index].op()
                {
                    let count = &mut self.short_of_room[op.member.index()];
                    *count += 1;
                    if *count == 1 {
                        let path = self.members[op.member.index()].as_ref().map(|member| member.path().display());
                        let path = path.map(tracing::field::display);
                        tracing::error!(member = %op.member, path, op = %op.info(), "the file system is full: waiting \
                            for room");
                    }
                }
                self.roomless.push(index);
                continue;
            }
            let was_short = self.slots[index].was_short_of_room();
            match self.slots[index].advance(answer) {
                Progress::More => self.again.push_back(index),
                Progress::Done(completion, timed) => {
                    if let Some((name, began)) = timed {
                        let now = *now.get_or_insert_with(Instant::now);
                        self.latencies.ended(completion.member, name, began, now);
                    }
                    self.short_of_room[completion.member.index()] -= u32::from(was_short);
                    self.vacant.push(index);
                    completions.push(completion);
                }
            }
        }
        self.end_if_robbed();
        for (completion, timed) in self.ended.drain(..) {
            if let Some((name, began)) = timed {
                let now = *now.get_or_insert_with(Instant::now);
                self.latencies.ended(completion.member, name, began, now);
            }
            completions.push(completion);
        }
        if !self.remotes.is_empty() {
            self.forget_retired();
        }
        // What waited for a slot or a remainder goes on at once; the next kick may be long in coming.
        if !self.again.is_empty() || !self.waiting.is_empty() || !self.remotes.is_empty() {
            let sent = self.send();
            self.note(sent);
        }
    }

    fn wait(&mut self) -> Result<(), Error> {
        self.wait_for_some(None)
    }

    fn wait_at_most(&mut self, time: Duration) -> Result<(), Error> {
        self.wait_for_some(Some(time))
    }

    fn kin(&self, member: MemberIndex) -> MemberSet {
        let Some(Some(own)) = self.members.get(member.index()) else { return MemberSet::EMPTY.with(member) };
        let is_kin = |other: &Option<Arc<Member>>| other.as_ref().is_some_and(|other| own.shares_fate(other));
        let slots = (0..64).map(MemberIndex).zip(&self.members);
        let kin: MemberSet = slots.filter(|(_, other)| is_kin(other)).map(|(slot, _)| slot).collect();
        kin.with(member)
    }

    fn roomless(&self) -> MemberSet {
        let slots = (0..).map(MemberIndex).zip(&self.short_of_room);
        slots.filter(|(_, count)| **count > 0).map(|(slot, _)| slot).collect()
    }

    fn has_exports(&self) -> bool {
        !self.remotes.is_empty()
    }

    fn tick(&mut self) {
        self.again.extend(self.roomless.drain(..));
    }

    fn wants_ticks(&self) -> bool {
        !self.roomless.is_empty() || self.remotes.iter().any(|remote| remote.wants_ticks())
    }

    fn abandon(&mut self, tag: u64) {
        self.remotes.iter_mut().for_each(|remote| remote.abandon(tag, &mut self.ended));
        if let Some(place) = self.waiting.iter().position(|op| op.tag == tag) {
            let op = self.waiting.remove(place).expect("it was just found");
            let info = op.info();
            self.refused.push(op.complete(Err(DiskError::TimedOut { op: info })));
        }
        let Some(index) = self.slots.iter().position(|slot| slot.op().is_some_and(|op| op.tag == tag)) else { return };
        self.slots[index].abandon();
        let again = self.again.iter().position(|&again| again == index).and_then(|place| self.again.remove(place));
        let roomless = self.roomless.iter().position(|&roomless| roomless == index);
        if again.or_else(|| roomless.map(|place| self.roomless.swap_remove(place))).is_some() {
            let was_short = self.slots[index].was_short_of_room();
            let completion = self.slots[index].end();
            self.short_of_room[completion.member.index()] -= u32::from(was_short);
            self.refused.push(completion);
            self.vacant.push(index);
        }
    }

    fn in_flight(&self) -> usize {
        let of_remotes: usize = self.remotes.iter().map(|remote| remote.with_kernel()).sum();
        self.with_kernel - of_remotes
            + self.again.len()
            + self.roomless.len()
            + self.waiting.len()
            + self.answered.len()
            + self.refused.len()
            + self.remotes.iter().map(|remote| remote.in_flight()).sum::<usize>()
            + self.ended.len()
    }

    fn exchange(&mut self, one: MemberIndex, other: MemberIndex) {
        self.keep_open(one);
        self.keep_open(other);
        self.members.swap(one.index(), other.index());
        self.seen_whole.swap(one.index(), other.index());
        self.latencies.exchange(one, other);
    }
}

impl AsFd for UringDisk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Drop for UringDisk {
    fn drop(&mut self) {
        let until = Instant::now() + DROP_WAIT;
        let (mut result, mut ended) = (Ok(()), self.pause_guards());
        // What is closed comes back.
        self.remotes.iter_mut().for_each(|remote| remote.retire(&mut self.ended));
        let abandoned = self.slots.iter().filter(|slot| slot.is_abandoned()).count();
        while self.with_kernel > abandoned && result.is_ok() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            result = self.enter_at_most(left);
            self.take_back(&mut ended);
        }
        if self.with_kernel > 0 {
            let error = result.err().map(tracing::field::display);
            let operations = self.with_kernel;
            tracing::error!(
                error,
                operations,
                "operations on members have not ended, so the kernel keeps their memory"
            );
            // The locks of their members stay, too.
            let is_left = |(index, slot): &(usize, &Slot)| !ended.contains(index) && !slot.has_former();
            let left = self.slots.iter().enumerate().filter(is_left);
            let hung: Vec<MemberIndex> = left.filter_map(|(_, slot)| slot.op()).map(|op| op.member).collect();
            for member in hung {
                std::mem::forget(self.members[member.index()].take());
            }
            std::mem::forget(std::mem::take(&mut self.slots));
            std::mem::forget(std::mem::take(&mut self.remotes));
        }
    }
}

impl std::fmt::Debug for UringDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (members, in_flight) = (&self.members, self.in_flight());
        f.debug_struct("UringDisk").field("members", members).field("in_flight", &in_flight).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
