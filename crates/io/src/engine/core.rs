//! What all operations share: the parts, what goes on in the background, and whether who is there is being changed.

use std::cell::{Cell, Ref, RefCell};
use std::ops::Range;
use std::rc::Rc;

use uraid_layout::{Bytes, Lba, MemberIndex};

use super::background::Background;
use super::background::ahead::Ahead;
use super::change::Change;
use super::command::{CacheMode, Command};
use super::counters::Fill;
use super::members::{Members, Side};
use super::parts::Parts;
use super::replies::Ticket;
use super::sums::Sums;
use super::tasks::Waiters;
use crate::buf::Pool;
use crate::cache::Cache;

/// See the module.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) parts: Parts,
    /// While the array is being reshaped, those of what is not below the mark.
    above: Option<Parts>,
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
            above: parts.above(),
            parts,
            background: Background::default(),
            ahead: Ahead::default(),
            barrier: RefCell::default(),
            released: RefCell::default(),
            under_way: Cell::new(0),
            transfers: Cell::new(0),
            quiet: Waiters::default(),
        }
    }

    /// The parts of the shape that has an address, and the end of what it has from there on.
    pub(super) fn at(&self, lba: Lba) -> (&Parts, Lba) {
        let Some(between) = self.parts.members.between() else { return (&self.parts, Lba(u64::MAX)) };
        match between.side(lba) {
            Side::Below => (&self.parts, between.mark.get()),
            side @ Side::Above => (self.of(side), Lba(u64::MAX)),
        }
    }

    /// The parts of a range, each with what it has of it.
    pub(super) fn split(&self, range: Range<Lba>) -> impl Iterator<Item = (&Parts, Range<Lba>)> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let (parts, end) = self.at(at);
            let part = at..end.min(range.end);
            at = part.end;
            (!part.is_empty()).then_some((parts, part))
        })
    }

    /// The parts of a shape.
    ///
    /// # Panics
    /// When the array has one shape only, and this is the other.
    pub(super) fn of(&self, side: Side) -> &Parts {
        match side {
            Side::Below => &self.parts,
            Side::Above => self.above.as_ref().expect("the array has two shapes"),
        }
    }

    /// The parts of each shape that the array has.
    pub(super) fn sides(&self) -> impl Iterator<Item = &Parts> {
        [&self.parts].into_iter().chain(&self.above)
    }

    /// Begins a turn; somebody wanted something since the last one or nobody did.
    pub(super) fn begin_turn(&self, is_wanted: bool) {
        if is_wanted {
            self.parts.sweeps.each().for_each(|mut sweep| sweep.note_activity());
            self.each_cache(Cache::note_activity);
        }
        self.sides().for_each(|parts| parts.writeback.begin_turn());
        self.background.begin_turn(&self.parts);
    }

    /// Whether rounds of superblocks or of the bitmap have been asked for.
    pub(super) fn wants_rounds(&self) -> bool {
        let Parts { members, intent, .. } = &self.parts;
        members.wants_record_round() || intent.wants_round()
    }

    /// Gives each of them a cache, of `size` together.
    pub(super) fn install_cache(&self, mode: CacheMode, pool: &Pool, size: Bytes) {
        let size = Bytes(size.0 / self.sides().count() as u64);
        for parts in self.sides() {
            let mut cache = Cache::new(parts.geometry(), pool.clone(), size);
            if let Some(log) = &parts.log {
                cache.limit_runs(log.stripes_max());
            }
            parts.writeback.install(cache, mode == CacheMode::WriteBack);
        }
    }

    /// The cache of each of them.
    pub(super) fn caches(&self) -> impl Iterator<Item = Ref<'_, Cache>> {
        self.sides().filter_map(|parts| parts.writeback.cache())
    }

    /// What they hold that the members don't have yet, of all that they may hold.
    pub(super) fn cache_fill(&self) -> Option<Fill> {
        let fill = |cache: Ref<'_, Cache>| Fill { used: cache.pinned(), limit: cache.limit() };
        self.caches().map(fill).reduce(|one, other| Fill {
            used: Bytes(one.used.0 + other.used.0),
            limit: Bytes(one.limit.0 + other.limit.0),
        })
    }

    /// Does something with the cache of each of them.
    pub(super) fn each_cache(&self, mut with: impl FnMut(&mut Cache)) {
        for parts in self.sides() {
            let _ = parts.writeback.with(&mut with);
        }
    }

    /// Takes the members out at the end.
    ///
    /// # Panics
    /// When something else shares them.
    pub(super) fn into_members(self) -> Members {
        let Self { parts, above, .. } = self;
        drop(above);
        let members = Rc::clone(&parts.members);
        drop(parts);
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
        self.quiet.wait(self.parts.tasks()).await;
    }

    /// Whether anything goes on in the background that has to end before the array is closed, or who is there changes.
    pub(super) fn is_busy(&self) -> bool {
        let Parts { sweeps, sums, .. } = &self.parts;
        let is_sweeping = sweeps.each().any(|sweep| sweep.is_busy());
        let is_healing = self.sides().any(|parts| parts.repairs.heals.is_busy());
        is_healing || is_sweeping || sums.as_ref().is_some_and(Sums::is_busy)
    }

    /// Begins a change of who is there: from now on commands wait.
    pub(super) fn begin_change(&self, change: &Change) {
        let promotes = if let Change::Promote(joining) = change { Some(joining.superblock.slot) } else { None };
        let needs_seat = !matches!(change, Change::Join(_) | Change::Move);
        let is_switch = matches!(change, Change::Switch { .. });
        *self.barrier.borrow_mut() = Some(Barrier { needs_seat, is_switch, promotes, held: Vec::new() });
        for Parts { repairs, .. } in self.sides() {
            repairs.is_held.set(true);
            repairs.heals.forget();
        }
    }

    /// Ends it: what was held back goes on.
    pub(super) fn end_change(&self) {
        let Some(barrier) = self.barrier.borrow_mut().take() else { return };
        self.sides().for_each(|parts| parts.repairs.is_held.set(false));
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
        let is_stopped = !is_switching && self.parts.members.twin().is_some();
        if is_stopped {
            self.parts.members.set_twin(None);
        }
        is_stopped
    }

    /// Whether the member at the seat may not be taken out.
    pub(super) fn needs_seat(&self) -> bool {
        let is_changing = self.barrier.borrow().as_ref().is_some_and(|barrier| barrier.needs_seat);
        self.parts.members.twin().is_some() || is_changing
    }

    /// The slot whose member has failed while it was being copied, and in whose place the other one is about to join.
    pub(super) fn promoting(&self) -> Option<MemberIndex> {
        let promotes = self.barrier.borrow().as_ref().and_then(|barrier| barrier.promotes);
        let is_failed = |slot: &MemberIndex| self.parts.members.missing().contains(*slot);
        promotes.or_else(|| self.parts.members.twin().map(|twin| twin.slot).filter(is_failed))
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let Core { under_way, transfers, quiet, parts, .. } = self.core;
        under_way.set(under_way.get() - 1);
        transfers.set(transfers.get() - usize::from(self.is_transfer));
        if transfers.get() == 0 {
            quiet.wake(parts.tasks());
        }
    }
}
