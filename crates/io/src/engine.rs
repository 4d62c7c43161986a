//! The engine: commands in, disk operations out, completions in, replies out.
//!
//! Each operation is one straight line of waits and decisions in [`ops`] or [`background`], over parts that own their
//! state. Operations run as tasks of the engine's own executor, on one thread. It knows no clock, socket, thread or
//! file, so that simulated members can run it step by step.
//!
//! Invariants:
//! - What changes parity holds the locks of its stripes ([`locks`]).
//! - No member is written before all of them are durably marked dirty, but what nobody relies on yet of one that is
//!   being rebuilt ([`members`]).
//! - Where there is a log, nothing is written in place before the log durably has it ([`log`]).
//! - Where there is a write-intent bitmap, nothing is written before all members durably have the bits of what is
//!   ([`intent`]).
//! - No write is acknowledged before every member that missed it is durably recorded as failed.
//! - Memory that a disk operation was given is touched by nobody until the operation completes ([`operations`]).
//! - At steady state a command allocates nothing.

mod abilities;
mod admission;
mod background;
mod badblocks;
mod between;
mod blank;
mod bypass;
mod change;
mod command;
mod core;
mod counters;
mod damage;
mod error;
mod executor;
mod flusher;
mod inspect;
mod intent;
mod journal;
mod known;
mod leniency;
mod locks;
mod log;
mod members;
mod memory;
mod moving;
mod operations;
mod ops;
mod parts;
mod patience;
mod rate;
mod record;
mod replies;
mod restart;
mod shares;
mod sides;
mod stuck;
mod sums;
mod sweeper;
mod tasks;
mod tokens;
mod transfer;
mod troubles;
mod work;
mod writeback;
mod zeros;

use std::cell::{Ref, RefMut};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use uraid_layout::{Bytes, Geometry, Lba, MemberIndex, MemberSet, Sectors, StripeId};

pub use background::copy::Replacement;
pub use background::rebuild::Progress;
pub use background::reshape::{ReshapeProgress, Way};
pub use background::scrub::{Blame, Mismatch, ScrubStatus};
pub use bypass::Bypass;
pub use change::Joining;
pub use command::{CacheMode, Command, Reply};
pub use counters::{Counters, Fill, MemberCounters, ScrubCounters};
pub use error::EngineError;
pub(crate) use error::named;
pub use inspect::survives;
pub use known::Known;
pub use patience::{BEAT, Deadlines};
pub use record::Record;
pub(crate) use restart::Kept;
pub use stuck::Stuck;
pub use troubles::Troubles;
pub use zeros::Status;

pub use crate::format::superblock::ScrubMode;

use crate::array::{Overlay, Pages};
use crate::buf::Pool;
use crate::cache::{Cache, TICK, Unwritten};
use crate::disk::{Completion, Disk};
use crate::format::badblocks::BadBlocks;
use crate::format::bitmap::Bitmap;
use crate::format::superblock::{ScrubHistory, ScrubRun, Superblock};
use admission::Admitted;
use background::initialise::Initialising;
use background::rebuild::Rebuild;
use background::sweep::Next;
use change::Change;
use core::Core;
use executor::Executor;
use journal::Journal;
use parts::Parts;
use patience::Patience;
use replies::Ticket;
use sweeper::Kind;
use tokens::Tokens;
use work::Work;

/// Runs commands on the members behind `D`; `T` is what the caller wants back with a reply.
pub struct Engine<D, T> {
    disk: D,
    core: Rc<Core>,
    executor: Executor<Work>,
    patience: Patience,
    tokens: Tokens<T>,
    /// Replies to commands that were over at once.
    answered: Vec<Reply<T>>,
    /// A client has wanted something since the last turn began.
    is_wanted: bool,
    completions: Vec<Completion>,
}

impl<D: Disk, T> Engine<D, T> {
    /// An engine for the members that `record` describes, at least as many of them present as the level needs. One that
    /// is read-only gives what can be had where fewer are.
    ///
    /// # Errors
    /// [`EngineError::TooManyMissing`]; [`EngineError::LogTooSmall`].
    pub fn new(disk: D, geometry: Geometry, record: Record, is_read_only: bool) -> Result<Self, EngineError> {
        let (core, executor) = restart::begin(geometry, record, is_read_only)?;
        let (patience, tokens) = (Patience::default(), Tokens::default());
        let (answered, is_wanted, completions) = (Vec::new(), false, Vec::new());
        Ok(Self { disk, core, executor, patience, tokens, answered, is_wanted, completions })
    }

    /// The engine with a cache of up to `size`, which takes in the memory of writes; their buffers should be of `pool`.
    ///
    /// # Panics
    /// When commands were submitted already.
    #[must_use]
    pub fn with_cache(mut self, mode: CacheMode, pool: &Pool, size: Bytes) -> Self {
        self.install_cache(mode, pool, size);
        self
    }

    /// Gives the engine such a cache, which has none.
    ///
    /// # Panics
    /// When commands are under way.
    pub fn install_cache(&mut self, mode: CacheMode, pool: &Pool, size: Bytes) {
        assert_eq!(self.in_flight(), 0, "a cache is there from the start");
        self.core.sides.install_cache(mode, pool, size);
    }

    /// What the cache holds that the members don't have yet, of all that it may hold.
    pub fn cache_fill(&self) -> Option<Fill> {
        self.core.sides.cache_fill()
    }

    /// The cache, if there is one.
    pub fn cache(&self) -> Option<Ref<'_, Cache>> {
        self.core.sides.below.writeback.cache()
    }

    /// When a write is replied to; none without a cache.
    pub fn cache_mode(&self) -> Option<CacheMode> {
        self.core.cache_mode()
    }

    /// Changes when writes are replied to that come from now on; what is in memory is written out as before. False, and
    /// nothing changes: there is no cache.
    pub fn set_cache_mode(&mut self, mode: CacheMode) -> bool {
        self.core.sides.set_cache_mode(mode)
    }

    /// What sees to it that writes go past the cache where it does not pay.
    pub fn bypass(&self) -> RefMut<'_, Bypass> {
        self.core.sides.below.writeback.bypass()
    }

    /// The engine of an array that is only read, with what its log has over what its members hold.
    #[must_use]
    pub(crate) fn with_overlay(self, overlay: Overlay) -> Self {
        *self.core.sides.below.overlay.borrow_mut() = overlay;
        self
    }

    /// The engine, with the bits that have to be taken to be set where the array has a write-intent bitmap or a log:
    /// what was found on the members. Without them those of a clean and whole array are none, and those of another all.
    ///
    /// # Panics
    /// When there are bits and the array has no bitmap, or one of other regions.
    #[must_use]
    pub fn with_intent(self, set: Option<Bitmap>) -> Self {
        if let Some(set) = set {
            self.core.sides.below.intent.restart(set);
            self.core.background.rebuild.restart(&self.core.sides.below);
        }
        self
    }

    /// The engine, with what its members lack, by slot; without this they have everything.
    #[must_use]
    pub fn with_bad_blocks(self, lists: Vec<BadBlocks>) -> Self {
        self.core.sides.below.bad.restart(lists);
        self
    }

    /// The engine, with the regions that are not blank, where any are; without this all are as the members hold them.
    ///
    /// # Panics
    /// When it is not the map that the members' superblocks tell of.
    #[must_use]
    pub fn with_blank(self, made: Option<Bitmap>) -> Self {
        made.into_iter().for_each(|made| ops::initialise::restart(&self.core.sides.below, made));
        self
    }

    /// The engine, with what the journal of pages has: the cache begins with it.
    pub(crate) fn with_pages(self, pages: &Pages) -> Self {
        self.core.sides.restore(pages);
        self
    }

    /// The engine, which rebuilds by itself what is to be rebuilt.
    #[must_use]
    pub fn with_rebuild(self) -> Self {
        if !self.core.sides.below.members.is_read_only() {
            self.core.sides.below.sweeps.turn_on();
        }
        self
    }

    /// Begins read-ahead into the engine's cache, of up to `largest` for each stream of reads and a share of the cache.
    /// It pays where members are slower than memory: what was read ahead is copied once more.
    ///
    /// # Panics
    /// When the engine has no cache.
    pub fn install_read_ahead(&mut self, largest: Bytes) {
        self.core.ahead.install(&self.core.sides.below, largest);
    }

    /// Takes the engine apart when it has nothing left to do.
    ///
    /// # Panics
    /// When commands are in flight.
    pub fn into_parts(self) -> (D, Geometry, Record) {
        assert_eq!(self.in_flight(), 0, "an engine that is taken apart is idle");
        let Self { disk, core, executor, .. } = self;
        // Its workers use the core.
        drop(executor);
        let core = Rc::into_inner(core).expect("workers are all that shares the core");
        let (geometry, record) = core.into_members().into_parts();
        (disk, geometry, record)
    }

    /// Whether nothing is under way, nor anything that was given up.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight() == 0 && !self.has_replies() && self.disk.in_flight() == 0
    }

    /// The same, and nothing is about to go on record.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_idle() && self.core.sides.below.members.record().is_settled()
    }

    /// What the array has: as the members have it when the engine was closed, and nothing was written since.
    pub(crate) fn kept(&self) -> Kept {
        restart::kept(&self.core.sides.below)
    }

    /// Has nothing more written: what is on record of the array is not what this engine knows.
    pub(crate) fn freeze(&self) {
        self.core.sides.below.members.freeze();
    }

    /// Goes on with another array, whose members are those that the disk has. `intent` is what
    /// [`Engine::with_intent`] takes.
    ///
    /// # Errors
    /// As [`Engine::new`].
    ///
    /// # Panics
    /// When something is under way.
    pub(crate) fn restart(
        &mut self,
        geometry: Geometry,
        kept: Kept,
        intent: Option<Bitmap>,
    ) -> Result<(), EngineError> {
        assert!(self.is_idle(), "an engine that begins anew is idle");
        (self.core, self.executor) = restart::anew(&self.core.sides.below, geometry, kept, intent)?;
        Ok(())
    }

    /// Commands that have no reply yet, and destaging, read-ahead, healing and parts of a scrub under way.
    pub fn in_flight(&self) -> usize {
        self.core.in_flight()
    }

    /// Whether replies wait for the next turn.
    pub fn has_replies(&self) -> bool {
        !self.answered.is_empty() || self.core.sides.below.replies.has_any()
    }

    /// Starts a command; its reply comes from this or a later [`Engine::turn`]. Disk operations are queued, and go out
    /// with the next turn.
    pub fn submit(&mut self, token: T, command: Command) {
        self.is_wanted |= !matches!(command, Command::Close);
        if self.core.holds_back(&command) {
            return self.core.hold_back(self.tokens.issue(token), command);
        }
        match admission::admit(&self.core.sides, &command) {
            Ok(Admitted::Done) => self.answered.push(Reply { token, result: Ok(None) }),
            Err(error) => self.answered.push(Reply { token, result: Err(error) }),
            Ok(Admitted::Left(sectors)) => {
                let ticket = self.tokens.issue(token);
                self.begin(ticket, command, sectors);
            }
        }
    }

    /// Sends what is queued to the members, takes in what they completed, goes on with the commands that waited for it,
    /// and hands the replies out, which must not call the engine. Returns when the members have nothing more to say for
    /// now.
    ///
    /// # Errors
    /// [`EngineError::Device`] when the members can't be reached at all: the ring is broken.
    pub fn turn(&mut self, replies: &mut impl Extend<Reply<T>>) -> Result<(), EngineError> {
        self.core.begin_turn(std::mem::take(&mut self.is_wanted));
        loop {
            self.run();
            self.begin_background();
            self.begin_rounds();
            self.send();
            self.disk.kick()?;
            let is_idle = !self.take_in_completions();
            self.patience.note_slow(&self.core.sides.below);
            if is_idle && self.executor.is_idle() && !self.core.wants_rounds() {
                let Self { core, tokens, answered, .. } = self;
                let mut given = core.sides.below.replies.given();
                let given = given.drain(..).map(|(ticket, result)| Reply { token: tokens.redeem(ticket), result });
                replies.extend(answered.drain(..).chain(given));
                return Ok(());
            }
        }
    }

    /// Notes that [`TICK`] has passed: what is old, or not disturbed by clients, is written out by the next turns, and
    /// what nobody writes any more is taken out of the write-intent bitmap; a scrub may read on, and what is overdue is
    /// given up.
    pub fn tick(&mut self) {
        let core = Rc::clone(&self.core);
        let parts = &core.sides.below;
        core.sides.all().for_each(|parts| parts.writeback.tick());
        if parts.intent.tick(&parts.members, &parts.flusher) {
            self.executor.start(Work::Sync);
        }
        parts.sweeps.each().for_each(|mut sweep| sweep.tick());
        self.disk.tick();
        self.patience.tick(parts, self.disk.roomless(), |member| self.disk.kin(member));
        self.send();
    }

    /// Notes that [`BEAT`] has passed: which reads are hedged that take longer than `after`, by slot; true: turn again.
    pub fn beat(&mut self, after: &[Option<Duration>]) -> bool {
        self.patience.beat(&self.core.sides.below, after)
    }

    /// Begins a command, of which these sectors are left to do.
    fn begin(&mut self, ticket: Ticket, command: Command, sectors: Range<Lba>) {
        let read = if let Command::Read { lba, .. } = command { Some(lba..sectors.end) } else { None };
        if matches!(command, Command::Close) {
            self.stop_scrub();
        }
        match Work::of(ticket, command, sectors) {
            Ok(work) => self.executor.start(work),
            Err(change) => self.begin_change(Some(ticket), *change),
        }
        let prefetch = read.and_then(|Range { start, end }| {
            self.core.ahead.note_read(&self.core.sides.below, start, Sectors(end.0 - start.0))
        });
        prefetch.into_iter().for_each(|prefetch| self.executor.start(Work::Prefetch(prefetch)));
    }

    /// Begins a change of who is there: from now on commands wait.
    fn begin_change(&mut self, ticket: Option<Ticket>, change: Change) {
        self.core.begin_change(&change);
        self.executor.start(Work::Change(ticket, Box::new(change)));
    }

    /// Goes on with every task that can, and with commands that were held back.
    fn run(&mut self) {
        loop {
            self.executor.run();
            let released = self.core.take_released();
            if released.is_empty() {
                return;
            }
            released.into_iter().for_each(|(ticket, command)| self.release(ticket, command));
        }
    }

    /// Begins a command that was held back, unless it has to wait again.
    fn release(&mut self, ticket: Ticket, command: Command) {
        if self.core.holds_back(&command) {
            return self.core.hold_back(ticket, command);
        }
        match admission::admit(&self.core.sides, &command) {
            Ok(Admitted::Done) => self.core.sides.below.replies.give(ticket, Ok(None)),
            Err(error) => self.core.sides.below.replies.give(ticket, Err(error)),
            Ok(Admitted::Left(sectors)) => self.begin(ticket, command, sectors),
        }
    }

    /// Begins what is to go on in the background, as far as there is room for it.
    fn begin_background(&mut self) {
        let core = Rc::clone(&self.core);
        let parts = &core.sides.below;
        let may_write = !parts.members.is_read_only();
        let is_held = parts.repairs.is_held.get();
        // Somebody who has to end first may wait for it.
        let is_pressed = parts.journal.as_ref().is_some_and(Journal::is_pressed);
        let may_destage = |side: &Parts| may_write && (!is_held || is_pressed || side.writeback.is_awaited());
        for side in core.sides.all().filter(|side| may_destage(side)) {
            while let Some(stripes) = side.writeback.next_run() {
                self.executor.start(Work::Destage(side.side, stripes));
            }
            while let Some(piece) = side.repairs.heals.next(|piece| !is_held && core.may_heal(side, piece)) {
                self.executor.start(Work::Heal(side.side, piece));
            }
        }
        if is_held {
            return;
        }
        while let Some(next) = core.background.next(parts) {
            match next {
                Next::Unit(unit) => self.executor.start(Work::Unit(unit)),
                Next::Move => self.executor.start(Work::Move),
                Next::Save => self.executor.start(Work::SaveRebuild),
                Next::Change(change) => return self.begin_change(None, *change),
            }
        }
    }

    /// Begins the rounds of superblocks, bitmap and log that somebody waits for, and writes checksums.
    fn begin_rounds(&mut self) {
        work::rounds(&self.core.sides.below).for_each(|round| self.executor.start(round));
    }

    /// Hands what is to be done to the members.
    fn send(&mut self) {
        self.core.sides.below.members.operations.drain_orders(|order| operations::carry_out(order, &mut self.disk));
    }

    /// Takes in what the members have completed, and what was given up; whether there was any.
    fn take_in_completions(&mut self) -> bool {
        let operations = &self.core.sides.below.members.operations;
        self.disk.reap(&mut self.completions);
        let mut has_any = !self.completions.is_empty();
        for completion in self.completions.drain(..) {
            if let Some((caller, member, result)) = operations.ended(completion) {
                self.core.sides.below.note_ended(caller, member, &result);
            }
        }
        while let Some((caller, member, result)) = operations.next_given_up() {
            has_any = true;
            self.core.sides.below.note_ended(caller, member, &result);
        }
        has_any
    }

    /// The array's geometry; while it is being reshaped the one that it had.
    pub fn geometry(&self) -> &Geometry {
        let members = &self.core.sides.below.members;
        members.between().map_or_else(|| self.core.sides.below.geometry(), |between| between.course.from())
    }

    /// Every slot, of whichever shape the array has.
    pub fn slots(&self) -> MemberSet {
        self.core.sides.below.members.all()
    }

    /// The members that are not there.
    pub fn missing(&self) -> MemberSet {
        self.core.sides.below.members.missing()
    }

    /// What was done so far.
    pub fn counters(&self) -> Ref<'_, Counters> {
        self.core.sides.below.members.counters.borrow()
    }

    /// The members, for waiting on them.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// The members, for what only their kind knows.
    pub fn disk_mut(&mut self) -> &mut D {
        &mut self.disk
    }

    /// Notes members that can make a range zeros without being sent zeros, and give its space back.
    pub fn note_can_punch(&self, members: MemberSet) {
        self.core.sides.below.members.abilities.note_can(members, true);
    }

    /// Notes that parity has been brought into agreement since the members were opened: closing them may mark them
    /// clean.
    pub fn trust_parity(&mut self) {
        self.core.sides.below.members.trust_parity();
    }

    /// Content that clients wrote and that the members are still to be written, ascending.
    pub fn dirty(&self) -> Vec<(Lba, Vec<u8>)> {
        self.core.sides.caches().flat_map(|cache| cache.dirty()).collect()
    }

    /// Whether another turn has something to do though nothing completes: destaging or a scrub goes on.
    pub fn wants_turn(&self) -> bool {
        self.core.wants_turn()
    }

    /// Whether something is to be done as time passes: call [`Engine::tick`] then.
    pub fn wants_ticks(&self) -> bool {
        self.disk.wants_ticks() || self.core.wants_ticks()
    }

    /// Whether replied-to content waits in memory.
    pub fn is_dirty(&self) -> bool {
        self.core.sides.caches().any(|cache| cache.is_dirty())
    }

    /// Forgets clean content, so that its pool can lend `need` more to a request.
    pub fn reclaim(&mut self, need: Bytes) {
        self.core.sides.each_cache(|cache| cache.reclaim(need));
    }

    /// Begins nothing more of its own accord: a scrub stops, and so does rebuilding until somebody wants something.
    /// What is under way still ends.
    pub fn wind_down(&mut self) {
        self.is_wanted = false;
        self.stop_scrub();
        self.core.sides.below.sweeps.each().for_each(|mut sweep| sweep.close());
    }

    /// Limits how long operations on members may take from now on, by [`Engine::tick`]; at first there are no limits.
    pub fn set_deadlines(&mut self, deadlines: Deadlines) {
        self.patience.set(deadlines, &self.core.sides.below);
    }

    /// How long operations on members may take.
    pub fn deadlines(&self) -> Deadlines {
        self.patience.deadlines()
    }

    /// Whether reads may be hedged as time passes: call [`Engine::beat`] then.
    pub fn wants_beats(&self) -> bool {
        self.deadlines().hedges && self.disk.has_exports() && self.core.sides.below.members.operations.wants_ticks()
    }

    /// Members whose reads are overdue: they are written, and read only where that can't be helped.
    pub fn slow(&self) -> MemberSet {
        self.core.sides.below.members.slow()
    }

    /// How many operations on a slot's member were given up and have not ended. Until they have, nobody knows what it
    /// is going to hold.
    pub fn lingering(&self, member: MemberIndex) -> u32 {
        self.core.sides.below.members.operations.abandoned(member)
    }

    /// How long a member has had its oldest operation that somebody waits for, where there are deadlines.
    pub fn waits_for(&self, member: MemberIndex) -> Option<Duration> {
        let age = self.core.sides.below.members.operations.oldest(member, self.disk.roomless());
        age.map(|ticks| TICK * u32::try_from(ticks).unwrap_or(u32::MAX))
    }

    /// Whether more members failed than the level survives: nothing is answered any more.
    pub fn is_frozen(&self) -> bool {
        self.core.sides.below.members.is_frozen()
    }

    /// How many more members may fail, whichever they are; a lower bound where that is more than one.
    pub fn survives(&self) -> usize {
        let members = &self.core.sides.below.members;
        if members.is_frozen() { 0 } else { members.tolerates() }
    }

    /// Whether nothing is written to the members.
    pub fn is_read_only(&self) -> bool {
        self.core.sides.below.members.is_read_only()
    }

    /// What is wrong with members that are there.
    pub fn troubles(&self) -> Troubles {
        let Parts { members, repairs, .. } = &self.core.sides.below;
        members.troubles(self.disk.roomless(), repairs.leniency.kept())
    }

    /// One member's log and journal of pages; none without a log, or where it was missing from the start.
    pub fn log_fill_of(&self, member: MemberIndex) -> Option<Fill> {
        self.core.sides.below.log_fill_of(member)
    }

    /// The fullest member's log.
    pub fn log_fill(&self) -> Option<Fill> {
        let present = self.core.sides.below.members.present();
        present.iter().filter_map(|member| self.log_fill_of(member)).max_by_key(|fill| fill.used)
    }

    /// Gives up members of which more than `most` errors were corrected: what could not be read, or was not what was
    /// written there. None, as at first: any number is forgiven. Members that the array needs are kept, and so is one
    /// that is being copied to another; all are while any is being rebuilt.
    pub fn set_max_errors(&mut self, most: Option<u32>) {
        self.core.sides.below.repairs.leniency.set_most(most);
    }

    /// How many corrected errors of a member are forgiven.
    pub fn max_errors(&self) -> Option<u32> {
        self.core.sides.below.repairs.leniency.most()
    }

    /// Forgives each member half of its errors, and what could not be made good before the last time: for each hour.
    pub fn forgive_errors(&mut self) {
        self.core.sides.below.repairs.leniency.forgive();
        self.core.sides.below.members.troubled.borrow_mut().forgive();
    }

    /// Content that was replied to and could not be written when that was tried last: flushes try again, and fail where
    /// the journal has no room for it.
    pub fn unwritten(&self) -> Option<Unwritten> {
        self.core.sides.caches().find_map(|cache| cache.unwritten())
    }

    /// Whether the log has sums of whole parity stripes that are written from now on, as at first, or their content.
    pub fn log_sums(&mut self, is_on: bool) {
        self.core.sides.below.log.iter().for_each(|log| log.set_takes_sums(is_on));
    }

    /// The bits that have to be taken to be set on the members, where the array has a write-intent bitmap or a log.
    pub fn intent(&self) -> Option<Ref<'_, Bitmap>> {
        self.core.sides.below.intent.wanted()
    }

    /// What the members that are there have on record, as one of them says it.
    pub fn superblock(&self) -> Ref<'_, Superblock> {
        Ref::map(self.core.sides.below.members.record(), Record::any)
    }

    /// What a slot's member lacks of what it should have; none where it was missing from the start.
    pub fn bad_blocks(&self, member: MemberIndex) -> Option<Ref<'_, BadBlocks>> {
        self.core.sides.below.bad.of(member)
    }

    /// The array's sectors that nobody has, as far as the lists of bad blocks say: ascending.
    pub fn lost(&self) -> Rc<[Range<Lba>]> {
        self.core.sides.lost()
    }

    /// What is known to read as zeros.
    pub fn zeros(&self) -> Known<'_> {
        Known::of(&self.core)
    }

    /// How far rebuilding has come, where something is to be rebuilt.
    pub fn rebuilding(&self) -> Option<Progress> {
        Rebuild::progress(&self.core.sides.below)
    }

    /// How far initialising has come, where any region is blank: nobody has written to it, and it reads as zeros.
    pub fn initialising(&self) -> Option<Progress> {
        Initialising::progress(&self.core.sides.below)
    }

    /// The array's way to another shape, while it is being reshaped.
    pub fn reshape(&self) -> Option<Way<'_>> {
        Way::of(&self.core.sides.below)
    }

    /// Limits how fast each member is rebuilt, in bytes a second; none: as fast as the members go, and clients leave
    /// room for.
    pub fn set_rebuild_limit(&mut self, limit: Option<Bytes>) {
        [Kind::Rebuild, Kind::Copy].into_iter().for_each(|kind| self.core.sides.below.sweeps.of(kind).set_limit(limit));
    }

    /// The same for how fast blank regions that no client writes to are made on each member.
    pub fn set_initialise_limit(&mut self, limit: Option<Bytes>) {
        self.core.sides.below.sweeps.of(Kind::Initialise).set_limit(limit);
    }

    /// Whether it can be changed who is there.
    ///
    /// # Errors
    /// [`EngineError::Frozen`]; [`EngineError::ReadOnly`].
    pub fn check_changes(&self) -> Result<(), EngineError> {
        self.core.sides.below.members.check_changes()
    }

    /// Whether the member in a slot can be copied to another one now.
    ///
    /// # Errors
    /// Why it can't.
    pub fn check_replaceable(&self, slot: MemberIndex) -> Result<(), EngineError> {
        change::check_replaceable(&self.core.sides.below, slot)
    }

    /// The copy under way, if there is one.
    pub fn replacement(&self) -> Option<Replacement> {
        self.core.background.copies.current(&self.core.sides.below)
    }

    /// The seat of the [`Disk`] for a member that is to take another one's place; none where the array has as many
    /// members as there can be.
    pub fn seat(&self) -> Option<MemberIndex> {
        self.core.sides.below.members.seat()
    }

    /// Whether the member at the seat may not be taken out: it is being copied to, or about to join in the place of the
    /// old one, which has failed.
    pub fn needs_seat(&self) -> bool {
        self.core.needs_seat()
    }

    /// Gives a copy up; the old member stays. False: there is none.
    pub fn stop_replacing(&mut self) -> bool {
        self.core.stop_copy()
    }

    /// The slot whose member has failed while it was being copied, and in whose place the other one is about to join,
    /// to be rebuilt.
    pub fn promoting(&self) -> Option<MemberIndex> {
        self.core.promoting()
    }

    /// The slot of the last member whose place was taken by a copy, and how many were.
    pub fn replaced(&self) -> Option<(MemberIndex, u32)> {
        self.core.background.copies.replaced()
    }

    /// Starts a scrub of the parity stripes from `from` on. It goes on in the turns that follow.
    ///
    /// # Errors
    /// [`EngineError::Scrubbing`] while one is running or parts of the last are under way; [`EngineError::ReadOnly`]
    /// when it is to repair and nothing can be written; [`EngineError::OutOfRange`]; [`EngineError::Frozen`].
    pub fn start_scrub(&mut self, mode: ScrubMode, from: StripeId) -> Result<(), EngineError> {
        self.core.background.scrubber.start(&self.core.sides.below, mode, from)
    }

    /// Goes on with a scrub that is on record.
    ///
    /// # Errors
    /// As [`Engine::start_scrub`].
    pub fn resume_scrub(&mut self, run: ScrubRun) -> Result<(), EngineError> {
        self.core.background.scrubber.resume(&self.core.sides.below, run)
    }

    /// Begins no more parts; those under way still end. [`ScrubStatus::position`] says where to go on.
    pub fn stop_scrub(&mut self) {
        self.core.background.scrubber.stop();
    }

    /// How far the last scrub is; none was started: none.
    pub fn scrub(&self) -> Option<Ref<'_, ScrubStatus>> {
        self.core.background.scrubber.status()
    }

    /// Limits what scrubs read of each member, in bytes a second; none: what there is room for beside the clients.
    pub fn set_scrub_limit(&mut self, limit: Option<Bytes>) {
        self.core.sides.below.sweeps.of(Kind::Scrub).set_limit(limit);
    }

    /// How scrubs are, as it is on record or about to be.
    pub fn scrub_record(&self) -> ScrubHistory {
        self.core.sides.below.members.record().scrub()
    }

    /// Has the superblocks say how scrubs are: at once, or when they are written next; not those that are only read.
    ///
    /// # Panics
    /// When a scrub's position is beyond the last parity stripe.
    pub fn keep_scrub(&mut self, record: ScrubHistory, at_once: bool) {
        let is_within = record.run.is_none_or(|run| run.position.0 <= self.geometry().stripes().0);
        assert!(is_within, "a scrub is within the array");
        self.core.sides.below.members.keep_scrub(record, at_once);
    }
}

impl<D: fmt::Debug, T> fmt::Debug for Engine<D, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("disk", &self.disk).field("core", &self.core).finish_non_exhaustive()
    }
}
