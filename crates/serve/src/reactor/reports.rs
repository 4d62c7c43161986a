//! What is known of the members beside what the engine knows: deleted files, slow members, failing disks; and what is
//! summed up of what the engine knows. With the engine's part it makes up the array's condition.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use uraid_io::engine::{Engine, Troubles};
use uraid_io::format::superblock::LogSet;
use uraid_io::member::Member;
use uraid_layout::{MemberIndex, MemberSet};

use super::slots::present_paths;
use crate::condition::{Condition, LastResort};
use crate::disk::LiveDisk;
use crate::lacking::{Lacking, Summed};

/// See the module. Each report is as of its last check, and the slots may hold other members by now.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// Members whose files were deleted and that the array can't do without.
    deleted: RefCell<Vec<Checked>>,
    /// Members to which the connection is broken and that the array can't do without.
    cut_off: RefCell<Vec<Checked>>,
    /// Log devices whose files were deleted.
    deleted_logs: Cell<LogSet>,
    /// Members that are slow compared with the others.
    lagging: Cell<MemberSet>,
    /// Members whose disks report that they are failing, with their paths.
    failing_disks: RefCell<Vec<(MemberIndex, PathBuf)>>,
    last_resort: LastResort,
    summed: Summed,
}

/// A member and the slot that it was in when the slot was checked.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) slot: MemberIndex,
    member: Weak<Member>,
}

impl Checked {
    /// The member that is in this slot.
    pub(super) fn new(slot: MemberIndex, member: &Arc<Member>) -> Self {
        Self { slot, member: Arc::downgrade(member) }
    }

    fn is_in(&self, members: &[Option<Arc<Member>>]) -> bool {
        let member = members.get(self.slot.index()).and_then(Option::as_ref);
        member.is_some_and(|member| Weak::ptr_eq(&self.member, &Arc::downgrade(member)))
    }
}

impl Reports {
    /// Nothing is reported yet of an array that is served so far as a last resort.
    pub(super) fn new(last_resort: LastResort) -> Self {
        Self { last_resort, ..Self::default() }
    }

    pub(super) fn set_deleted(&self, deleted: Vec<Checked>) {
        self.deleted.replace(deleted);
    }

    pub(super) fn set_cut_off(&self, cut_off: Vec<Checked>) {
        self.cut_off.replace(cut_off);
    }

    pub(super) fn set_deleted_logs(&self, deleted: LogSet) {
        self.deleted_logs.set(deleted);
    }

    pub(super) fn set_lagging(&self, lagging: MemberSet) {
        self.lagging.set(lagging);
    }

    pub(super) fn set_failing_disks(&self, members: Vec<(MemberIndex, PathBuf)>) {
        self.failing_disks.replace(members);
    }

    /// Members whose files were deleted and that are still there.
    pub(super) fn deleted(&self, disk: &impl LiveDisk) -> MemberSet {
        still_there(&self.deleted.borrow(), disk)
    }

    /// The array's condition.
    pub(super) fn condition<D: LiveDisk, T>(&self, engine: &Engine<D, T>) -> Condition {
        let missing = engine.missing();
        let of_engine = Condition::of(engine);
        // Whether anybody waits for them or not.
        let silent = members_that(engine.disk(), Member::is_silent).minus(missing);
        let stalled = of_engine.troubles.stalled.union(silent);
        Condition {
            deleted: self.deleted(engine.disk()).minus(missing),
            cut_off: still_there(&self.cut_off.borrow(), engine.disk()).minus(missing),
            taken: members_that(engine.disk(), Member::is_robbed),
            deleted_logs: self.deleted_logs.get(),
            lagging: self.lagging.get().minus(missing),
            smart: self.on_failing_disks(engine),
            last_resort: self.last_resort,
            lacking: Lacking::of(engine, &self.summed),
            troubles: Troubles { stalled, ..of_engine.troubles },
            ..of_engine
        }
    }

    fn on_failing_disks<D: LiveDisk, T>(&self, engine: &Engine<D, T>) -> MemberSet {
        let reported = self.failing_disks.borrow();
        if reported.is_empty() {
            return MemberSet::EMPTY;
        }
        let present = present_paths(engine);
        reported.iter().filter(|&member| present.contains(member)).map(|&(slot, _)| slot).collect()
    }
}

/// The slots whose members are those that were found there.
fn still_there(found: &[Checked], disk: &impl LiveDisk) -> MemberSet {
    found.iter().filter(|checked| checked.is_in(disk.members())).map(|checked| checked.slot).collect()
}

/// The members of which this is so.
fn members_that(disk: &impl LiveDisk, is_so: fn(&Member) -> bool) -> MemberSet {
    let slots = (0..64).map(MemberIndex).zip(disk.members());
    slots.filter(|(_, member)| member.as_ref().is_some_and(|member| is_so(member))).map(|(slot, _)| slot).collect()
}
