//! The write-back cache among the engine's parts: what waits until it is drained, and how much of it is written out at
//! once. What to write out next is the [`Cache`]'s to say.
//!
//! Destaging shares the members with the clients: a turn begins no more of it than [`QUANTUM`], and no more than
//! [`DESTAGES_MAX`] runs are under way.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::ops::Range;
use std::rc::Rc;

use uraid_layout::{Bytes, Geometry, Lba, Sectors};

use super::bypass::Bypass;
use super::error::EngineError;
use super::tasks::{TaskId, Tasks};
use crate::array::Record;
use crate::buf::Buf;
use crate::cache::{Cache, Cause, Contents, DESTAGES_MAX, Mark};
use crate::format::BLOCK;

/// What destaging begins in one turn: about as long as a batch of clients' commands takes.
const QUANTUM: Sectors = Sectors((512 << 10) / 512);

/// See the module.
#[derive(Debug)]
pub(super) struct WriteBack {
    tasks: Rc<Tasks>,
    cache: RefCell<Option<Cache>>,
    /// Whether writes are replied to when they are in memory.
    is_on: Cell<bool>,
    bypass: RefCell<Bypass>,
    /// Runs that are being written out.
    under_way: Cell<usize>,
    /// What may still be begun in this turn.
    quantum: Cell<Sectors>,
    /// Tasks that wait until what was replied to is written out; and how many of them a change of members waits for.
    drainers: RefCell<Vec<(TaskId, Mark)>>,
    awaiting: Cell<u32>,
}

/// A run of parity stripes that is being written out, until this is dropped.
#[derive(Debug)]
pub(super) struct Run<'a>(&'a WriteBack);

/// Has what is dirty be written out though members are about to change, until this is dropped.
#[derive(Debug)]
pub(super) struct Awaiting<'a>(&'a WriteBack);

impl WriteBack {
    pub(super) fn new(tasks: Rc<Tasks>) -> Self {
        let (under_way, awaiting, quantum) = (Cell::new(0), Cell::new(0), Cell::new(Sectors(0)));
        let (cache, is_on, drainers) = (RefCell::default(), Cell::new(false), RefCell::default());
        Self { tasks, cache, is_on, bypass: RefCell::default(), under_way, quantum, drainers, awaiting }
    }

    pub(super) fn tasks(&self) -> &Rc<Tasks> {
        &self.tasks
    }

    /// Takes a cache in, or gives the one that there is its memory; writes are replied to when they are in it if
    /// `is_on`.
    pub(super) fn install(&self, cache: Cache, is_on: bool) {
        match &mut *self.cache.borrow_mut() {
            Some(held) => held.take_memory_of(cache),
            none => *none = Some(cache),
        }
        self.is_on.set(is_on);
    }

    /// Has the cache hold what the journal has.
    pub(super) fn restore(&self, records: &[Record]) {
        let _ = self.with(|cache| {
            for Record { sequence, content } in records {
                let ranges = content.iter().map(|(lba, bytes)| (*lba, Bytes(bytes.len() as u64).whole_sectors()));
                content.iter().for_each(|(lba, bytes)| cache.journal_mut().put(*lba, bytes.as_ref()));
                cache.journal_mut().note_record(*sequence, ranges);
            }
        });
    }

    /// The cache, if there is one.
    pub(super) fn cache(&self) -> Option<Ref<'_, Cache>> {
        Ref::filter_map(self.cache.borrow(), Option::as_ref).ok()
    }

    /// Does something with the cache, if there is one.
    pub(super) fn with<R>(&self, with: impl FnOnce(&mut Cache) -> R) -> Option<R> {
        self.cache.borrow_mut().as_mut().map(with)
    }

    /// Whether writes are replied to when they are in memory.
    pub(super) fn is_on(&self) -> bool {
        self.is_on.get()
    }

    /// Changes that for writes that come from now on.
    pub(super) fn set_on(&self, is_on: bool) {
        self.is_on.set(is_on);
    }

    /// Begins a turn.
    pub(super) fn begin_turn(&self) {
        self.quantum.set(QUANTUM);
    }

    /// Whether something is left to the next turn.
    pub(super) fn wants_turn(&self) -> bool {
        self.quantum.get().0 == 0
    }

    /// The parity stripes to write out next, within the turn's quantum.
    pub(super) fn next_run(&self) -> Option<Range<u64>> {
        if self.under_way.get() >= DESTAGES_MAX || self.wants_turn() {
            return None;
        }
        let (stripes, dirty) = self.with(Cache::next_run)??;
        self.quantum.set(Sectors(self.quantum.get().0.saturating_sub(dirty.0)));
        Some(stripes)
    }

    /// Begins to write a run out.
    pub(super) fn begin_run(&self) -> Run<'_> {
        self.under_way.set(self.under_way.get() + 1);
        Run(self)
    }

    /// Whether any is being written out.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.get() > 0
    }

    /// Whether something that a change of members waits for waits itself until something is written out.
    pub(super) fn is_awaited(&self) -> bool {
        self.awaiting.get() > 0
    }

    /// Has it awaited until what is returned is dropped.
    pub(super) fn begin_awaiting(&self) -> Awaiting<'_> {
        self.awaiting.set(self.awaiting.get() + 1);
        Awaiting(self)
    }

    /// Notes that time has passed.
    pub(super) fn tick(&self) {
        let traffic = self.with(|cache| {
            cache.tick();
            cache.traffic()
        });
        if traffic.is_some_and(|traffic| self.bypass.borrow_mut().tick(traffic)) {
            match self.is_bypassed() {
                true => tracing::info!("the cache does not pay: writes go past it"),
                false => tracing::info!("writes go through the cache again"),
            }
        }
    }

    /// What sees to it that writes go past the cache where it does not pay.
    pub(super) fn bypass(&self) -> RefMut<'_, Bypass> {
        self.bypass.borrow_mut()
    }

    /// Whether they do.
    pub(super) fn is_bypassed(&self) -> bool {
        self.is_on.get() && self.bypass.borrow().is_on()
    }

    /// Takes a write into the cache as far as it goes, and returns what is to be written through: whole parity stripes,
    /// and what there is no room for; or all of it, where the cache does not pay and it `may_pass`.
    pub(super) fn take_in(
        &self,
        geometry: &Geometry,
        (lba, len): (Lba, Sectors),
        buf: &Buf,
        may_pass: bool,
    ) -> Range<Lba> {
        let all = lba..Lba(lba.0 + len.0);
        let mut cache = self.cache.borrow_mut();
        let Some(cache) = cache.as_mut().filter(|_| self.is_on.get()) else { return all };
        let mut bypass = self.bypass.borrow_mut();
        let passes = may_pass && bypass.passes(lba, len, cache.limit().0 / BLOCK.bytes().0);
        let left = if passes { all } else { take_in(cache, geometry, (lba, len), buf) };
        bypass.note_passed(Sectors(left.end.0 - left.start.0));
        left
    }

    /// Ends what flies for a task, with this error or none, and wakes those who waited for it. False: nothing flew.
    pub(super) fn settle(&self, geometry: &Geometry, contents: &mut Contents, error: Option<&EngineError>) -> bool {
        let has_flown = self.with(|cache| {
            if let Some(error) = error {
                cache.blame(contents, cause(error));
            }
            cache.settle(geometry, contents, error.is_none())
        });
        self.wake_drained();
        has_flown.unwrap_or(false)
    }

    /// Waits for something to be written out that was dirty before a mark, or for a run to end.
    pub(super) async fn wait_drained(&self, mark: Mark) {
        self.drainers.borrow_mut().push((self.tasks.current(), mark));
        self.tasks.park().await;
    }

    /// Lets those go on whose mark is reached.
    pub(super) fn wake_drained(&self) {
        let Some(cache) = self.cache() else { return };
        self.drainers.borrow_mut().retain(|&(task, mark)| {
            let is_drained = cache.is_drained(mark);
            if is_drained {
                self.tasks.wake(task);
            }
            !is_drained
        });
    }
}

impl Drop for Awaiting<'_> {
    fn drop(&mut self) {
        self.0.awaiting.set(self.0.awaiting.get() - 1);
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
        self.0.wake_drained();
    }
}

/// Takes a write into the cache as far as it goes: what is left.
fn take_in(cache: &mut Cache, geometry: &Geometry, (lba, len): (Lba, Sectors), buf: &Buf) -> Range<Lba> {
    let (mut start, mut end) = (lba.0, lba.0 + len.0);
    let stripe = geometry.stripe_sectors().0;
    let (first, last) = (start.next_multiple_of(stripe), end / stripe * stripe);
    let mut take = |from: u64, to: u64| {
        let byte = |at: u64| usize::try_from(Sectors(at - lba.0).bytes().0).expect("a buffer fits the address space");
        from < to && cache.write(Lba(from), buf, byte(from)..byte(to))
    };
    if first >= last {
        return if take(start, end) { lba..lba } else { Lba(start)..Lba(end) };
    }
    if take(start, first) {
        start = first;
    }
    if take(last, end) {
        end = last;
    }
    Lba(start)..Lba(end)
}

/// Who is to blame for an error.
fn cause(error: &EngineError) -> Cause {
    match error {
        &EngineError::Unreadable { members, .. } => Cause { unreadable: members, ..Cause::default() },
        &EngineError::WriteFailed { members }
        | &EngineError::FlushFailed { members }
        | &EngineError::LogFailed { members } => Cause { unwritable: members, ..Cause::default() },
        _ => Cause::default(),
    }
}
