//! Deadlines: what a member takes too long for is had from the others, or done without the member.
//!
//! - A read that is overdue is computed from the other members. Its member is *slow* from then on: it is written and
//!   not read, where the others can do without it, until everything that was late has come back. Nothing is wrong with
//!   what it holds, so nothing of it is healed.
//! - A client's read of a member on a network that takes longer than nearly all of that member's reads is computed from
//!   the others, too, long before it is overdue: it is *hedged*. That says nothing of the member, which is read as
//!   ever. It is not done where others are late as well: what stops more than one has them read more only to be later.
//! - What is on its way into the journal, and takes too long, goes there again, on other members.
//! - A member that has anything else under way for too long, or a read for as long, is given up as by an error.
//!
//! Neither happens where the others can't do without the member: then its operations take as long as they take. The
//! same where others hang, too, or are where the hung one is, so that the array would not survive giving up all of
//! them: what stops more than one is hardly a member's fault. A log device is given up as a member is, as long as
//! another one answers.
//!
//! What was given up keeps its memory until the device is done with it, so whoever goes on does so in other memory.
//!
//! Invariant: the array survives without all slow members together, when one becomes slow. So what is given up is
//! bounded by what each of them had then.

use std::time::Duration;

use uraid_layout::{MemberIndex, MemberSet};

use super::operations::{Caller, Pending, Purpose};
use super::parts::Parts;
use super::sums::PageId;
use crate::cache::TICK;
use crate::disk::{OpName, log_at};
use crate::format::sums::PageNumber;
use crate::format::superblock::LogSet;

/// A unit of time for reads of members on a network, which are late sooner than [`TICK`] tells.
pub const BEAT: Duration = Duration::from_millis(1);

/// How long operations on members may take; none: as long as they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadlines {
    /// A read, before what it is to give is computed from the others.
    pub read: Option<Duration>,
    /// Anything, before its member is given up.
    pub write: Option<Duration>,
    /// Clients' reads of members on a network are computed from the others as soon as they take unusually long: see
    /// [`Engine::beat`](super::Engine::beat).
    pub hedges: bool,
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
    /// Changes how long operations may take, from now on.
    pub(super) fn set(&mut self, deadlines: Deadlines, parts: &Parts) {
        // An operation may be submitted just before a tick.
        let ticks =
            |time: Duration| u64::try_from(time.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u64::MAX - 1) + 1;
        self.deadlines = deadlines;
        (self.read, self.write) = (deadlines.read.map(ticks), deadlines.write.map(ticks));
        parts.members.operations.set_deadlines_on(deadlines != Deadlines::default());
    }

    /// Notes that a [`BEAT`] has passed; `after` is how long a read may take by slot before it is hedged. Whether any
    /// read is had from others now.
    pub(super) fn beat(&mut self, parts: &Parts, after: &[Option<Duration>]) -> bool {
        let (members, operations) = (&parts.members, &parts.members.operations);
        operations.beat();
        if !self.deadlines.hedges {
            return false;
        }
        let mut pending = std::mem::take(&mut self.pending);
        operations.pending(MemberSet::EMPTY, &mut pending);
        // A read may be submitted just before a beat.
        let has_taken = |op: &Pending, time: Duration| u128::from(op.beats) > time.as_nanos().div_ceil(BEAT.as_nanos());
        let after = |op: &Pending| after.get(op.member.index()).copied().flatten();
        pending.retain(|op| op.name == OpName::Read && after(op).is_some_and(|after| has_taken(op, after)));
        let late: MemberSet = pending.iter().map(|op| op.member).collect();
        let without = late.union(operations.slow()).union(members.record().lost());
        let may = members.tolerance() > 0 && members.can_do_without(without);
        let mut is_any = false;
        for op in pending.iter().filter(|op| may && !op.is_abandoned) {
            is_any |= hedge(parts, op);
        }
        pending.clear();
        self.pending = pending;
        is_any
    }

    /// How long they may take.
    pub(super) fn deadlines(&self) -> Deadlines {
        self.deadlines
    }

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
        let is_read = op.name == OpName::Read && op.age > 0;
        is_read && self.read.is_some_and(|most| op.age.is_multiple_of(most))
    }

    /// Notes that time has passed; `kin` are the members that whatever stops one is likely to stop, too.
    pub(super) fn tick(&mut self, parts: &Parts, roomless: MemberSet, kin: impl Fn(MemberIndex) -> MemberSet) {
        let (members, operations) = (&parts.members, &parts.members.operations);
        operations.tick(roomless);
        let mut pending = std::mem::take(&mut self.pending);
        operations.pending(roomless, &mut pending);
        self.give_up_hung_logs(parts, &pending);
        pending.retain(|op| log_at(op.member).is_none());
        let late: MemberSet = pending.iter().map(|op| op.member).collect();
        self.stuck = self.stuck.minus(MemberSet::all(64).minus(late));
        self.give_up_hung(parts, &pending, kin);
        for op in &pending {
            if members.is_seat(op.member) {
                if self.is_hung(op) {
                    operations.give_up(op.id);
                }
            } else if self.is_of_lost(parts, op) {
                expire(parts, op);
            } else if self.is_due(op) {
                self.read_is_late(parts, op);
            }
        }
        self.note_stalled(parts, roomless, &mut pending);
        parts.journal.iter().for_each(|journal| journal.tick(&pending, &parts.members, &parts.writeback));
        pending.clear();
        self.pending = pending;
        self.note_slow(parts);
    }

    /// Notes who has had something for too long, after whoever can be given up was.
    fn note_stalled(&self, parts: &Parts, roomless: MemberSet, pending: &mut Vec<Pending>) {
        let members = &parts.members;
        // What waits for room has its reason, and does not stall when there is some.
        let excused = members.missing().union(roomless);
        let is_late = |age: u64| self.soon().is_some_and(|most| age >= most) && !planted!(StallUnseen);
        pending.clear();
        members.operations.pending(roomless, pending);
        pending.retain(|op| log_at(op.member).is_none());
        let late = pending.iter().filter(|op| is_late(op.age) && !op.is_abandoned && !members.is_seat(op.member));
        let late: MemberSet = late.map(|op| op.member).collect();
        members.troubled.borrow_mut().set_stalled(late.minus(excused));
    }

    /// Gives up the log devices that have had something for too long, where others are left that don't stall.
    fn give_up_hung_logs(&self, parts: &Parts, pending: &[Pending]) {
        let members = &parts.members;
        let of = |is: &dyn Fn(&Pending) -> bool| -> LogSet {
            pending.iter().filter(|op| is(op) && !op.is_abandoned).filter_map(|op| log_at(op.member)).collect()
        };
        let (hung, stalled) = (of(&|op| self.is_hung(op)), of(&|op| self.is_stalled(op)));
        if !members.logs().minus(stalled).is_empty() && !planted!(LogHungKept) {
            members.fail_logs(hung);
        }
        let is_late = |op: &Pending| self.soon().is_some_and(|most| op.age >= most);
        members.troubled.borrow_mut().set_stalled_logs(of(&is_late).minus(of(&is_late).minus(members.logs())));
        let is_lost = |op: &&Pending| log_at(op.member).is_some_and(|log| !members.logs().contains(log));
        pending.iter().filter(is_lost).filter(|op| !op.is_abandoned).for_each(|op| members.operations.give_up(op.id));
    }

    /// Gives up the members that have had something for too long, unless the array needs them.
    fn give_up_hung(&mut self, parts: &Parts, pending: &[Pending], kin: impl Fn(MemberIndex) -> MemberSet) {
        let members = &parts.members;
        let missing = members.missing();
        let of = |is: &dyn Fn(&Pending) -> bool| -> MemberSet {
            let of_slots = pending.iter().filter(|op| is(op) && !members.is_seat(op.member));
            of_slots.map(|op| op.member).collect::<MemberSet>().minus(missing)
        };
        let hung = of(&|op| self.is_hung(op));
        if hung.is_empty() || planted!(HungKept) {
            return;
        }
        let kin = hung.iter().fold(MemberSet::EMPTY, |all, member| all.union(kin(member)));
        let stalled = of(&|op| self.is_stalled(op)).union(kin.minus(missing));
        if members.tolerance() == 0 || !members.survives(stalled) {
            return self.note_stuck(hung);
        }
        for member in hung.iter() {
            tracing::error!(%member, deadline = self.deadlines.write.map(tracing::field::debug), "the member does not \
                answer");
        }
        if members.fail(hung).is_ok() && !members.is_read_only() {
            members.demand_record();
        }
    }

    /// Whether an operation's member is given up, and nobody need wait for it any more.
    fn is_of_lost(&self, parts: &Parts, op: &Pending) -> bool {
        let members = &parts.members;
        let is_overdue = self.soon().is_some_and(|most| op.age >= most) || members.operations.abandoned(op.member) > 0;
        !op.is_abandoned && members.missing().contains(op.member) && is_overdue
    }

    /// Has a read done without, if the others can.
    fn read_is_late(&mut self, parts: &Parts, op: &Pending) {
        let members = &parts.members;
        let together = members.operations.slow().union(members.record().lost()).with(op.member);
        let is_needed = members.tolerance() == 0 || !members.can_do_without(together);
        if op.is_abandoned {
            // It was hedged, and has not come since.
            if !is_needed && !members.missing().contains(op.member) {
                members.operations.note_late(op.id);
            }
            return;
        }
        if is_needed {
            return self.note_stuck(MemberSet::EMPTY.with(op.member));
        }
        members.operations.note_late(op.id);
        match op.caller {
            Caller::Task(task) => {
                let (purpose, overdue) = members.operations.purpose(task);
                if let Purpose::Reads(reading) = purpose {
                    let lost = members.lost(reading.last).union(overdue);
                    if members.can_do_without(reading.unreadable.union(lost).with(op.member)) {
                        expire(parts, op);
                    }
                }
            }
            Caller::Page(number) => {
                let page = PageId { member: op.member, number: PageNumber(number) };
                let may = |task| matches!(members.operations.purpose(task).0, Purpose::Pages { may_go_around: true });
                parts.sums.iter().for_each(|sums| sums.go_around(members, page, may));
            }
            Caller::Flusher => {}
        }
    }

    /// Says, once, that members are late which the array can't do without.
    fn note_stuck(&mut self, late: MemberSet) {
        for member in late.minus(self.stuck).iter() {
            tracing::warn!(%member, "the member takes too long, and the array needs it: waiting");
        }
        self.stuck = self.stuck.union(late);
    }

    /// Says which members have become slow, or are not any more.
    pub(super) fn note_slow(&mut self, parts: &Parts) {
        let (slow, before) = (parts.members.slow(), self.slow);
        if slow == before {
            return;
        }
        for member in slow.minus(before).iter() {
            tracing::warn!(%member, "the member's reads take too long: reading the other members instead");
        }
        for member in before.minus(slow).minus(parts.members.missing()).iter() {
            tracing::info!(%member, "the member has answered and is read again");
        }
        self.slow = slow;
    }
}

/// Has a client's read computed from others, if they can; whether it is.
fn hedge(parts: &Parts, op: &Pending) -> bool {
    let members = &parts.members;
    let Caller::Task(task) = op.caller else { return false };
    let (Purpose::Reads(reading), overdue) = members.operations.purpose(task) else { return false };
    let without = reading.unreadable.union(members.lost(reading.last)).union(overdue).with(op.member);
    let is_hedged = reading.may_hedge && members.can_do_without(without);
    if is_hedged {
        members.counters.borrow_mut().hedged(op.member);
        members.operations.note_overdue(task, op.member);
        members.operations.give_up(op.id);
    }
    is_hedged
}

/// Ends an operation for whoever waits for it.
fn expire(parts: &Parts, op: &Pending) {
    let members = &parts.members;
    members.counters.borrow_mut().overdue(op.member);
    if let (OpName::Read, Caller::Task(task)) = (op.name, op.caller) {
        members.operations.note_overdue(task, op.member);
    }
    members.operations.give_up(op.id);
}
