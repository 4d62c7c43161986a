//! What all operations share: the parts, what goes on in the background, and whether who is there is being changed.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use uraid_layout::{Lba, MemberIndex};

use super::background::Background;
use super::background::ahead::Ahead;
use super::change::Change;
use super::command::CacheMode;
use super::command::Command;
use super::damage::Piece;
use super::members::Members;
use super::moving::Moving;
use super::parts::Parts;
use super::replies::Ticket;
use super::sides::Sides;
use super::tasks::{TaskId, Waiters};
use crate::cache::Cache;

/// See the module.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) sides: Sides,
    pub(super) background: Background,
    pub(super) ahead: Ahead,
    /// A change of who is there.
    barrier: RefCell<Option<Barrier>>,
    /// The window of a reshape.
    pub(super) moving: Moving,
    /// Commands that go on after one of them.
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

/// A window that moves, until this is dropped: what was held back goes on.
#[derive(Debug)]
pub(super) struct WindowHeld<'a>(&'a Core);

/// Work under way, until this is dropped.
#[derive(Debug)]
pub(super) struct UnderWay<'a> {
    core: &'a Core,
    is_transfer: bool,
    /// Whose extent is noted.
    task: Option<TaskId>,
}

impl Core {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            sides: Sides::new(parts),
            background: Background::default(),
            ahead: Ahead::default(),
            barrier: RefCell::default(),
            moving: Moving::default(),
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
    /// there to do so. `extent` is what it touches, of an array that is being reshaped.
    pub(super) fn begin(&self, is_transfer: bool, extent: Option<Range<Lba>>) -> UnderWay<'_> {
        self.under_way.set(self.under_way.get() + 1);
        self.transfers.set(self.transfers.get() + usize::from(is_transfer));
        let task = extent.map(|extent| {
            let task = self.sides.below.tasks().current();
            self.moving.enter(task, extent);
            task
        });
        UnderWay { core: self, is_transfer, task }
    }

    /// Work under way, and commands that wait for a change of who is there or for a window.
    pub(super) fn in_flight(&self) -> usize {
        let held = self.barrier.borrow().as_ref().map_or(0, |barrier| barrier.held.len());
        self.under_way.get() + held + self.moving.held()
    }

    /// Whether another turn has something to do though nothing completes: destaging or a sweep goes on.
    pub(super) fn wants_turn(&self) -> bool {
        self.sides.all().any(|parts| parts.writeback.wants_turn()) || self.background.wants_turn(&self.sides.below)
    }

    /// Whether something is to be done as time passes.
    pub(super) fn wants_ticks(&self) -> bool {
        let (parts, members) = (&self.sides.below, &self.sides.below.members);
        let is_late = !members.slow().is_empty() || members.troubled.borrow().wants_ticks();
        let is_patient = members.operations.wants_ticks() || is_late;
        let is_dirty = self.sides.caches().any(|cache| cache.is_dirty());
        let is_dirty = is_dirty || self.sides.all().any(|parts| parts.writeback.is_bypassed());
        is_dirty || parts.intent.is_settling(members) || self.background.wants_ticks(parts) || is_patient
    }

    /// Whether transfers are under way.
    pub(super) fn has_transfers(&self) -> bool {
        self.transfers.get() > 0
    }

    /// When a write is replied to; none without a cache.
    pub(super) fn cache_mode(&self) -> Option<CacheMode> {
        let writeback = &self.sides.below.writeback;
        let mode = if writeback.is_on() { CacheMode::WriteBack } else { CacheMode::WriteThrough };
        writeback.cache().map(|_| mode)
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
        is_healing || is_sweeping || sums.as_ref().is_some_and(|sums| sums.is_busy())
    }

    /// Begins a change of who is there: from now on commands wait.
    pub(super) fn begin_change(&self, change: &Change) {
        let promotes = if let Change::Promote(joining) = change { Some(joining.superblock.slot) } else { None };
        let needs_seat = !matches!(change, Change::Join(_) | Change::Logs { .. });
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

    /// Whether a command has to wait, for the change or for the window that moves.
    pub(super) fn holds_back(&self, command: &Command) -> bool {
        self.is_changing() || self.moving.holds_back(command)
    }

    /// Has a command wait that has to.
    ///
    /// # Panics
    /// When there is nothing to wait for.
    pub(super) fn hold_back(&self, ticket: Ticket, command: Command) {
        match &mut *self.barrier.borrow_mut() {
            Some(barrier) => barrier.held.push((ticket, command)),
            None => self.moving.hold_back(ticket, command),
        }
    }

    /// Whether a piece may be healed now: nothing of it is moving.
    pub(super) fn may_heal(&self, parts: &Parts, piece: &Piece) -> bool {
        !self.moving.touches(&parts.content_of(piece.stripe.0..piece.stripe.0 + 1))
    }

    /// Has what touches a window wait until this is dropped.
    pub(super) fn hold_window(&self, content: Range<Lba>) -> WindowHeld<'_> {
        self.moving.begin(content);
        WindowHeld(self)
    }

    /// The commands that were held back by what has ended.
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

impl Drop for WindowHeld<'_> {
    fn drop(&mut self) {
        self.0.released.borrow_mut().extend(self.0.moving.end());
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let Core { under_way, transfers, quiet, sides, moving, .. } = self.core;
        if let Some(task) = self.task {
            moving.leave(task, sides.below.tasks());
        }
        under_way.set(under_way.get() - 1);
        transfers.set(transfers.get() - usize::from(self.is_transfer));
        if transfers.get() == 0 {
            quiet.wake(sides.below.tasks());
        }
    }
}
