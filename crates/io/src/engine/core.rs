//! What all operations share: the parts, what goes on in the background, and whether who is there is being changed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use uraid_layout::MemberIndex;

use super::background::Background;
use super::background::ahead::Ahead;
use super::change::Change;
use super::command::Command;
use super::members::Members;
use super::parts::Parts;
use super::replies::Ticket;
use super::sides::Sides;
use super::sums::Sums;
use super::tasks::Waiters;
use crate::cache::Cache;

/// See the module.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) sides: Sides,
    pub(super) background: Background,
    pub(super) ahead: Ahead,
    /// A change of who is there.
    barrier: RefCell<Option<Barrier>>,
    /// Commands that go on after one.
    released: RefCell<Vec<(Ticket, Command)>>,
    /// Work under way, all of it and what reads or writes parity stripes or relies on who is there to do so.
    under_way: Cell<usize>,
    transfers: Cell<usize>,
    /// Nothing of the latter is under way.
    quiet: Waiters,
}

/// A change of who is there, and what it holds back. It changes what every plan relies on: who is written, where
/// checksums are, which run of the log counts. So it waits until nothing is under way.
#[derive(Debug)]
struct Barrier {
    /// It is about the member at the seat.
    needs_seat: bool,
    /// A copy is taking a member's place.
    is_switch: bool,
    /// The slot whose member has failed while it was being copied, and in which the other one joins.
    promotes: Option<MemberIndex>,
    held: Vec<(Ticket, Command)>,
}

/// Work under way, until this is dropped.
#[derive(Debug)]
pub(super) struct UnderWay<'a> {
    core: &'a Core,
    is_transfer: bool,
}

impl Core {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            sides: Sides::new(parts),
            background: Background::default(),
            ahead: Ahead::default(),
            barrier: RefCell::default(),
            released: RefCell::default(),
            under_way: Cell::new(0),
            transfers: Cell::new(0),
            quiet: Waiters::default(),
        }
    }

    /// Begins a turn; somebody wanted something since the last one or nobody did.
    pub(super) fn begin_turn(&self, is_wanted: bool) {
        if is_wanted {
            self.sides.below.sweeps.each().for_each(|mut sweep| sweep.note_activity());
            self.sides.each_cache(Cache::note_activity);
        }
        self.sides.all().for_each(|parts| parts.writeback.begin_turn());
        self.background.begin_turn(&self.sides.below);
    }

    /// Whether rounds of superblocks or of the bitmap have been asked for.
    pub(super) fn wants_rounds(&self) -> bool {
        let Parts { members, intent, .. } = &self.sides.below;
        members.wants_record_round() || intent.wants_round()
    }

    /// Takes the members out at the end.
    ///
    /// # Panics
    /// When something else shares them.
    pub(super) fn into_members(self) -> Members {
        let members = Rc::clone(&self.sides.below.members);
        drop(self);
        Rc::into_inner(members).expect("the parts are all that shares the members")
    }

    /// Begins work that the engine is not idle without; a transfer reads or writes parity stripes, or relies on who is
    /// there to do so.
    pub(super) fn begin(&self, is_transfer: bool) -> UnderWay<'_> {
        self.under_way.set(self.under_way.get() + 1);
        self.transfers.set(self.transfers.get() + usize::from(is_transfer));
        UnderWay { core: self, is_transfer }
    }

    /// Work under way, and commands that wait for a change of who is there.
    pub(super) fn in_flight(&self) -> usize {
        self.under_way.get() + self.barrier.borrow().as_ref().map_or(0, |barrier| barrier.held.len())
    }

    /// Whether transfers are under way.
    pub(super) fn has_transfers(&self) -> bool {
        self.transfers.get() > 0
    }

    /// Waits until none are.
    pub(super) async fn wait_quiet(&self) {
        self.quiet.wait(self.sides.below.tasks()).await;
    }

    /// Whether anything goes on in the background that has to end before the array is closed, or who is there changes.
    pub(super) fn is_busy(&self) -> bool {
        let Parts { sweeps, sums, .. } = &self.sides.below;
        let is_sweeping = sweeps.each().any(|sweep| sweep.is_busy());
        let is_healing = self.sides.all().any(|parts| parts.repairs.heals.is_busy());
        is_healing || is_sweeping || sums.as_ref().is_some_and(Sums::is_busy)
    }

    /// Begins a change of who is there: from now on commands wait.
    pub(super) fn begin_change(&self, change: &Change) {
        let promotes = if let Change::Promote(joining) = change { Some(joining.superblock.slot) } else { None };
        let needs_seat = !matches!(change, Change::Join(_) | Change::Move);
        let is_switch = matches!(change, Change::Switch { .. });
        *self.barrier.borrow_mut() = Some(Barrier { needs_seat, is_switch, promotes, held: Vec::new() });
        for Parts { repairs, .. } in self.sides.all() {
            repairs.is_held.set(true);
            repairs.heals.forget();
        }
    }

    /// Ends it: what was held back goes on.
    pub(super) fn end_change(&self) {
        let Some(barrier) = self.barrier.borrow_mut().take() else { return };
        self.sides.all().for_each(|parts| parts.repairs.is_held.set(false));
        self.released.borrow_mut().extend(barrier.held);
    }

    /// Whether commands have to wait for a change of who is there.
    pub(super) fn is_changing(&self) -> bool {
        self.barrier.borrow().is_some()
    }

    /// Has a command wait for the change.
    ///
    /// # Panics
    /// When there is none.
    pub(super) fn hold_back(&self, ticket: Ticket, command: Command) {
        self.barrier.borrow_mut().as_mut().expect("a change is under way").held.push((ticket, command));
    }

    /// The commands that were held back by a change that has ended.
    pub(super) fn take_released(&self) -> Vec<(Ticket, Command)> {
        std::mem::take(&mut self.released.borrow_mut())
    }

    /// Gives a copy up; the old member stays. False: there is none, or it is taking the member's place already.
    pub(super) fn stop_copy(&self) -> bool {
        let is_switching = self.barrier.borrow().as_ref().is_some_and(|barrier| barrier.is_switch);
        let is_stopped = !is_switching && self.sides.below.members.twin().is_some();
        if is_stopped {
            self.sides.below.members.set_twin(None);
        }
        is_stopped
    }

    /// Whether the member at the seat may not be taken out.
    pub(super) fn needs_seat(&self) -> bool {
        let is_changing = self.barrier.borrow().as_ref().is_some_and(|barrier| barrier.needs_seat);
        self.sides.below.members.twin().is_some() || is_changing
    }

    /// The slot whose member has failed while it was being copied, and in whose place the other one is about to join.
    pub(super) fn promoting(&self) -> Option<MemberIndex> {
        let promotes = self.barrier.borrow().as_ref().and_then(|barrier| barrier.promotes);
        let is_failed = |slot: &MemberIndex| self.sides.below.members.missing().contains(*slot);
        promotes.or_else(|| self.sides.below.members.twin().map(|twin| twin.slot).filter(is_failed))
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let Core { under_way, transfers, quiet, sides, .. } = self.core;
        under_way.set(under_way.get() - 1);
        transfers.set(transfers.get() - usize::from(self.is_transfer));
        if transfers.get() == 0 {
            quiet.wake(sides.below.tasks());
        }
    }
}
