//! Deadlines: what a member takes too long for is had from the others, or done without the member.
//!
//! - A read that is overdue is computed from the other members. Its member is *slow* from then on: it is written and
//!   not read, where the others can do without it, until everything that was late has come back. Nothing is wrong with
//!   what it holds, so nothing of it is healed.
//! - A member that has anything else under way for too long, or a read for as long, is given up as by an error.
//!
//! Neither happens where the others can't do without the member: then its operations take as long as they take. The
//! same where others hang, too, or are where the hung one is, so that the array would not survive giving up all of
//! them: what stops more than one is hardly a member's fault.
//!
//! What was given up keeps its memory until the device is done with it, so whoever goes on does so in other memory.
//!
//! Invariant: the array survives without all slow members together, when one becomes slow. So what is given up is
//! bounded by what each of them had then.

use std::time::Duration;

use uraid_layout::repair::Repair;
use uraid_layout::{MemberIndex, MemberSet};

use super::Engine;
use super::job::{JobId, Stage};
use super::run::Caller;
use crate::buf::Buf;
use crate::cache::TICK;
use crate::disk::{Disk, OpName, Pending};

/// How long operations on members may take; none: as long as they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadlines {
    /// A read, before what it is to give is computed from the others.
    pub read: Option<Duration>,
    /// Anything, before its member is given up.
    pub write: Option<Duration>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Patience {
    deadlines: Deadlines,
    /// The same in ticks.
    read: Option<u64>,
    write: Option<u64>,
    /// Members that are known to be late and can't be done without.
    stuck: MemberSet,
    slow: MemberSet,
    /// What is pending, to be used again.
    pending: Vec<Pending>,
}

impl Patience {
    /// Whether an operation is overdue that has only its member's failure before it.
    fn is_hung(&self, op: &Pending) -> bool {
        self.write.is_some_and(|most| op.age >= most)
    }

    /// Whether it is on its way there.
    fn is_stalled(&self, op: &Pending) -> bool {
        self.write.is_some_and(|most| op.age >= most.div_ceil(2))
    }

    /// After how many ticks somebody waits for too long, whatever is to be done about it.
    fn soon(&self) -> Option<u64> {
        self.read.into_iter().chain(self.write).min()
    }

    /// Whether a read is overdue; it is looked at again after as long.
    fn is_due(&self, op: &Pending) -> bool {
        let is_read = op.name == OpName::Read && !op.is_abandoned && op.age > 0;
        is_read && self.read.is_some_and(|most| op.age.is_multiple_of(most))
    }
}

impl<D: Disk, T> Engine<D, T> {
    /// Limits how long operations on members may take, from now on; at first there are no limits. Time is
    /// [`Engine::tick`].
    pub fn set_deadlines(&mut self, deadlines: Deadlines) {
        // An operation may be submitted just before a tick.
        let ticks =
            |time: Duration| u64::try_from(time.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u64::MAX - 1) + 1;
        self.patience.deadlines = deadlines;
        (self.patience.read, self.patience.write) = (deadlines.read.map(ticks), deadlines.write.map(ticks));
        self.disk.set_on(deadlines != Deadlines::default());
    }

    /// How long operations on members may take.
    pub fn deadlines(&self) -> Deadlines {
        self.patience.deadlines
    }

    /// Members whose reads are overdue: they are written, and read only where that can't be helped.
    pub fn slow(&self) -> MemberSet {
        self.disk.slow().minus(self.record.missing())
    }

    /// How many operations on a slot's member were given up and have not ended. Until they have, nobody knows what it
    /// is going to hold.
    pub fn lingering(&self, member: MemberIndex) -> u32 {
        self.disk.abandoned(member)
    }

    /// Whether something becomes overdue as time passes.
    pub(super) fn is_patient(&self) -> bool {
        self.disk.wants_ticks() || !self.slow().is_empty() || self.troubled.wants_ticks()
    }

    /// Notes that time has passed.
    pub(super) fn tick_deadlines(&mut self) {
        self.disk.tick();
        let mut pending = std::mem::take(&mut self.patience.pending);
        pending.extend(self.disk.pending());
        self.patience.stuck = self.patience.stuck.minus(MemberSet::all(64).minus(members(&pending)));
        self.give_up_hung(&pending);
        for op in pending.drain(..) {
            if self.is_seat(op.member) {
                if self.patience.is_hung(&op) {
                    self.disk.give_up(op.id);
                }
            } else if self.is_of_lost(&op) {
                self.expire(&op);
            } else if self.patience.is_due(&op) {
                self.read_is_late(&op);
            }
        }
        self.patience.pending = pending;
        self.note_stalled(self.patience.soon());
        self.note_slow();
    }

    /// Gives up the members that have had something for too long, unless the array needs them.
    fn give_up_hung(&mut self, pending: &[Pending]) {
        let missing = self.record.missing();
        let of = |is: &dyn Fn(&Pending) -> bool| -> MemberSet {
            let of_slots = pending.iter().filter(|op| is(op) && !self.is_seat(op.member));
            of_slots.map(|op| op.member).collect::<MemberSet>().minus(missing)
        };
        let hung = of(&|op| self.patience.is_hung(op));
        if hung.is_empty() || planted!(HungKept) {
            return;
        }
        let kin = hung.iter().fold(MemberSet::EMPTY, |all, member| all.union(self.disk.kin(member)));
        let stalled = of(&|op| self.patience.is_stalled(op)).union(kin.minus(missing));
        if self.geometry.tolerance() == 0 || self.repairs(missing.union(stalled)).is_err() {
            return self.note_stuck(hung);
        }
        for member in hung.iter() {
            tracing::error!(%member, deadline = self.patience.deadlines.write.map(tracing::field::debug), "the member \
                does not answer");
        }
        if self.fail_members(hung).is_ok() {
            self.put_on_record();
        }
    }

    /// Whether an operation's member is given up, and nobody need wait for it any more.
    fn is_of_lost(&self, op: &Pending) -> bool {
        let is_overdue = self.patience.soon().is_some_and(|most| op.age >= most) || self.disk.abandoned(op.member) > 0;
        !op.is_abandoned && self.record.missing().contains(op.member) && is_overdue
    }

    /// Has a read done without, if the others can.
    fn read_is_late(&mut self, op: &Pending) {
        let together = self.disk.slow().union(self.record.lost()).with(op.member);
        if self.geometry.tolerance() == 0 || Repair::new(&self.geometry, together).is_err() {
            return self.note_stuck(MemberSet::EMPTY.with(op.member));
        }
        self.disk.note_late(op.id);
        match Caller::of(op.tag) {
            Caller::Job(id) if self.can_go_around(id, op.member) => self.expire(op),
            Caller::Sums(number) => self.go_around_page(op.member, number),
            _ => {}
        }
    }

    /// Whether a job that reads can have what it wants from others.
    fn can_go_around(&mut self, id: JobId, member: MemberIndex) -> bool {
        let lost = self.lost(id);
        let job = self.jobs.job(id);
        let is_reading = matches!(job.stage, Stage::Reads);
        is_reading && job.can_do_without(&self.geometry, lost.union(job.overdue), member)
    }

    fn expire(&mut self, op: &Pending) {
        self.counters.overdue(op.member);
        if let (OpName::Read, Caller::Job(id)) = (op.name, Caller::of(op.tag)) {
            let job = self.jobs.job(id);
            job.overdue = job.overdue.with(op.member);
        }
        self.disk.give_up(op.id);
    }

    /// Says, once, that members are late which the array can't do without.
    fn note_stuck(&mut self, late: MemberSet) {
        for member in late.minus(self.patience.stuck).iter() {
            tracing::warn!(%member, "the member takes too long, and the array needs it: waiting");
        }
        self.patience.stuck = self.patience.stuck.union(late);
    }

    /// Says which members have become slow, or are not any more.
    pub(super) fn note_slow(&mut self) {
        let (slow, before) = (self.slow(), self.patience.slow);
        if slow == before {
            return;
        }
        for member in slow.minus(before).iter() {
            tracing::warn!(%member, "the member's reads take too long: reading the other members instead");
        }
        for member in before.minus(slow).minus(self.record.missing()).iter() {
            tracing::info!(%member, "the member has answered and is read again");
        }
        self.patience.slow = slow;
    }

    /// Gives the job other memory where an operation that was given up may still fill the one that it has.
    pub(super) fn renew_memory(&mut self, id: JobId) {
        let job = self.jobs.job(id);
        let kept = usize::try_from(job.base(uraid_layout::plan::Buffer::Request).bytes().0).expect("fits");
        if let Some(old) = job.buf.take_if(|buf| buf.is_being_filled() && !planted!(LateMemoryKept)) {
            let mut new = Buf::zeroed(uraid_layout::Bytes(old.len() as u64));
            // What comes after is read again.
            new.bytes_mut(0..kept).copy_from_slice(old.bytes(0..kept));
            job.buf = Some(new);
            old.disown();
        }
    }
}

fn members(pending: &[Pending]) -> MemberSet {
    pending.iter().map(|op| op.member).collect()
}
