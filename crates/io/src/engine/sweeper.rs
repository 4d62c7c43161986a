//! Going over an array in the background: units of work in their order, several at a time, at a pace.
//!
//! A sweep yields: while clients want anything few units are under way, otherwise many; its own limit comes on top. Up
//! to the *watermark* all is done. What can't be done stops the sweep, and is tried again after a while, or as soon as
//! what could not be read is written.
//!
//! A sweep that lasts over a stop has its watermark put on record in *steps*.
//!
//! It knows neither what is done nor by whom: a rebuild's unit is a parity stripe, a scrub's a part of one. Whoever
//! says what is wanted never points back: the watermark only rises. Time is counted in the caller's ticks.

use std::cell::{Cell, RefCell, RefMut};

use uraid_layout::{Bytes, StripeId};

use super::rate::Rate;
use super::stuck::Stuck;

/// Ticks after which a unit that could not be done is tried again.
const RETRY_TICKS: u32 = 100;

/// Steps in which a watermark goes on record: so many in all, but none that moved more on a member than this.
const STEPS: u64 = 128;
const STEP_MAX: Bytes = Bytes(1 << 30);

/// What sweeps there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Comparing what members hold, by parts of parity stripes.
    Scrub,
    /// Making what members lack that joined, by parity stripes.
    Rebuild,
    /// Copying a member to one that is to take its place, by parity stripes.
    Copy,
    /// Making blank regions, by a few of them.
    Initialise,
    /// Moving content to another shape, by windows; nothing else goes on meanwhile.
    Reshape,
}

/// The policy of each, in their order. A part that is compared holds its working memory while it waits for the members.
const PACES: [Pace; 5] = [
    Pace { quiet_ticks: 3, beside_clients: 1, alone: 8, bytes: Bytes(4 << 20), turn: Bytes(8 << 20) },
    Pace { quiet_ticks: 2, beside_clients: 1, alone: 16, bytes: Bytes(u64::MAX), turn: Bytes(2 << 20) },
    Pace { quiet_ticks: 2, beside_clients: 1, alone: 16, bytes: Bytes(u64::MAX), turn: Bytes(2 << 20) },
    Pace { quiet_ticks: 2, beside_clients: 1, alone: 4, bytes: Bytes(256 << 20), turn: Bytes(64 << 20) },
    Pace { quiet_ticks: 2, beside_clients: 1, alone: 1, bytes: Bytes(u64::MAX), turn: Bytes(64 << 20) },
];

/// How a kind of sweep shares the members with the clients.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Ticks without a client's command after which nobody wants anything.
    quiet_ticks: u32,
    /// Units under way while clients want something, and otherwise.
    beside_clients: usize,
    alone: usize,
    /// What the units under way move together, unless one is more.
    bytes: Bytes,
    /// What one turn begins while nobody else wants anything; else that is one unit, so that nobody waits for more.
    turn: Bytes,
}

/// The sweeps of an engine, and whether those that repair go on by themselves.
#[derive(Debug)]
pub(super) struct Sweeps {
    sweepers: [RefCell<Sweeper>; PACES.len()],
    is_on: Cell<bool>,
}

/// A sweep; see the module.
#[derive(Debug)]
pub(super) struct Sweeper {
    pace: Pace,
    /// The next unit to begin.
    next: u64,
    /// The watermark.
    done: u64,
    /// The watermark that is on record, and the one that is being put there.
    saved: u64,
    step: Option<u64>,
    /// What is done beyond it.
    finished: Vec<u64>,
    /// What could not be done, and the ticks until it is tried again; and what is being tried again.
    stuck: Vec<Stuck>,
    retry: u32,
    tried: Vec<Stuck>,
    /// What could not be read there is being written: they are tried again at once.
    mended: Vec<u64>,
    under_way: Vec<u64>,
    /// Units that may still be begun in this turn.
    quantum: usize,
    rate: Rate,
    /// Ticks since a client's last command.
    quiet: u32,
    /// It goes on when a client wants something again.
    is_closed: bool,
}

impl Sweeps {
    /// Sweeps that have not begun.
    pub(super) fn new() -> Self {
        Self { sweepers: PACES.map(|pace| RefCell::new(Sweeper::new(pace))), is_on: Cell::new(false) }
    }

    /// One of them.
    pub(super) fn of(&self, kind: Kind) -> RefMut<'_, Sweeper> {
        self.sweepers[kind as usize].borrow_mut()
    }

    /// All of them.
    pub(super) fn each(&self) -> impl Iterator<Item = RefMut<'_, Sweeper>> {
        self.sweepers.iter().map(RefCell::borrow_mut)
    }

    /// From now on what is to be repaired is.
    pub(super) fn turn_on(&self) {
        self.is_on.set(true);
    }

    /// Whether a sweep that repairs may go on.
    pub(super) fn may_repair(&self, kind: Kind) -> bool {
        self.is_on.get() && !self.of(kind).is_closed
    }
}

impl Sweeper {
    fn new(pace: Pace) -> Self {
        Self {
            pace,
            next: 0,
            done: 0,
            saved: 0,
            step: None,
            finished: Vec::new(),
            stuck: Vec::new(),
            retry: 0,
            tried: Vec::new(),
            mended: Vec::new(),
            under_way: Vec::new(),
            quantum: 0,
            rate: Rate::default(),
            quiet: 0,
            is_closed: false,
        }
    }

    /// Begins at a unit.
    ///
    /// # Panics
    /// When units are under way.
    pub(super) fn restart(&mut self, start: u64) {
        assert!(self.under_way.is_empty(), "a sweep that begins again is not under way");
        (self.next, self.done, self.saved) = (start, start, start);
        self.finished.clear();
        self.forget_stuck();
        self.retry = 0;
    }

    /// The watermark.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// The watermark that is to be put on record now, as it has come far enough since the last time, where a unit moves
    /// `cost` on a member: true, and a step is under way.
    pub(super) fn begin_step(&mut self, end: u64, cost: Bytes) -> bool {
        let step = (end / STEPS).min(STEP_MAX.0 / cost.0).max(1);
        let is_due = self.step.is_none() && (self.done == end || self.done - self.saved >= step);
        if is_due {
            self.step = Some(self.done);
        }
        is_due
    }

    /// The watermark of the step under way.
    ///
    /// # Panics
    /// When there is none.
    pub(super) fn step(&self) -> u64 {
        self.step.expect("a step is under way")
    }

    /// Ends the step; whether it is on record.
    pub(super) fn end_step(&mut self, is_saved: bool) {
        let step = self.step.take();
        if is_saved {
            self.saved = step.expect("a step that ends has begun");
        }
    }

    /// Notes that the watermark is going on record with something else, and returns it.
    pub(super) fn save(&mut self) -> u64 {
        self.saved = self.done;
        self.done
    }

    /// The first stripe that could not be done.
    pub(super) fn stuck(&self) -> Option<Stuck> {
        self.stuck.iter().chain(&self.tried).min_by_key(|stuck| stuck.stripe).copied()
    }

    /// Tries nothing again.
    pub(super) fn forget_stuck(&mut self) {
        self.stuck.clear();
        self.tried.clear();
        self.mended.clear();
    }

    /// Notes that what could not be read is being written, under the stripe's lock: nothing is stuck there until that
    /// has been tried again, at once.
    pub(super) fn mend(&mut self, is_mended: impl Fn(&Stuck) -> bool) {
        self.mended.extend(self.stuck.extract_if(.., |stuck| is_mended(stuck)).map(|stuck| stuck.stripe.0));
        // These wait for the lock, or come to it again when they fail.
        self.tried.retain(|stuck| !is_mended(stuck));
    }

    /// Limits how fast it goes, in bytes a second; none: as fast as the members go, and clients leave room for.
    pub(super) fn set_limit(&mut self, limit: Option<Bytes>) {
        self.rate.set(limit);
    }

    /// Notes that time has passed.
    pub(super) fn tick(&mut self) {
        self.quiet = self.quiet.saturating_add(1);
        self.retry = self.retry.saturating_sub(1);
        self.rate.tick();
    }

    /// Takes of the limit what it has cost.
    pub(super) fn charge(&mut self, cost: Bytes) {
        self.rate.take(cost);
    }

    /// Whether something waits to be tried again.
    pub(super) fn is_put_off(&self) -> bool {
        self.retry > 0
    }

    /// Has it tried again later: it could not be done.
    pub(super) fn put_off(&mut self) {
        self.retry = RETRY_TICKS;
    }

    /// Notes that a client wants something.
    pub(super) fn note_activity(&mut self) {
        (self.is_closed, self.quiet) = (false, 0);
    }

    /// Takes clients to want nothing, until one does.
    pub(super) fn note_quiet(&mut self) {
        self.quiet = self.pace.quiet_ticks;
    }

    /// Begins nothing until a client wants something again.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Whether clients want something, too.
    pub(super) fn is_disturbing(&self) -> bool {
        self.quiet < self.pace.quiet_ticks
    }

    /// Begins a turn; a unit moves `size`.
    pub(super) fn begin_turn(&mut self, size: Bytes) {
        let most = usize::try_from(self.pace.turn.0.div_ceil(size.0)).expect("a small number");
        self.quantum = if self.is_disturbing() { 1 } else { most };
    }

    /// Whether no more units may begin in this turn.
    pub(super) fn is_turn_over(&self) -> bool {
        self.quantum == 0
    }

    /// Whether units are under way, or the watermark is being put on record.
    pub(super) fn is_busy(&self) -> bool {
        !self.under_way.is_empty() || self.step.is_some()
    }

    /// How many are.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Whether a unit that moves `size` may begin, beside those that are under way.
    pub(super) fn has_room(&self, size: Bytes) -> bool {
        let most = if self.is_disturbing() { self.pace.beside_clients } else { self.pace.alone };
        let under_way = self.under_way.len();
        let bytes = (under_way as u64 + 1).saturating_mul(size.0);
        under_way < most && (under_way == 0 || bytes <= self.pace.bytes.0) && self.rate.allows()
    }

    /// The next unit before `end`, which the caller begins, if any is left and there is room for it. It costs `cost` of
    /// the limit. `wanted` is the first unit from one on that is to be done at all.
    pub(super) fn begin(&mut self, end: u64, cost: Bytes, wanted: impl Fn(u64) -> u64) -> Option<u64> {
        let unit = self.choose(end, wanted)?;
        self.quantum -= 1;
        self.under_way.push(unit);
        self.rate.take(cost);
        Some(unit)
    }

    /// Begins a unit of a sweep that finds its way by itself: it ends with [`Sweeper::drop_unit`], and what it costs is
    /// [charged](Sweeper::charge).
    pub(super) fn begin_unit(&mut self, unit: u64) {
        self.quantum = self.quantum.saturating_sub(1);
        self.under_way.push(unit);
    }

    fn choose(&mut self, end: u64, wanted: impl Fn(u64) -> u64) -> Option<u64> {
        if let Some(unit) = self.mended.pop() {
            return Some(unit);
        }
        if !self.stuck.is_empty() {
            // Nothing new is begun before that has been tried again.
            let again = if self.retry == 0 { self.stuck.pop() } else { None };
            self.tried.extend(again);
            return again.map(|stuck| stuck.stripe.0);
        }
        self.next = ahead(self.next, &wanted);
        self.advance(wanted);
        if self.done < self.next && !self.under_way.contains(&self.done) && !planted!(PassedOver) {
            // It was passed over, and is wanted since: it was blank, and a client wrote there.
            return Some(self.done);
        }
        let unit = self.next;
        self.next += u64::from(unit < end);
        (unit < end).then_some(unit)
    }

    /// Notes that a unit is done.
    pub(super) fn finish(&mut self, unit: u64, wanted: impl Fn(u64) -> u64) {
        self.end(unit);
        self.tried.retain(|stuck| stuck.stripe != StripeId(unit));
        self.finished.push(unit);
        self.advance(wanted);
    }

    /// Notes that a unit could not be done, and is nobody's business any more.
    pub(super) fn drop_unit(&mut self, unit: u64) {
        self.end(unit);
    }

    /// Notes that a stripe could not be done, and is to be tried again; true: that is news.
    pub(super) fn fail(&mut self, stuck: Stuck) -> bool {
        self.end(stuck.stripe.0);
        let before = self.tried.len();
        self.tried.retain(|tried| tried.stripe != stuck.stripe);
        self.stuck.push(stuck);
        self.retry = RETRY_TICKS;
        self.tried.len() == before
    }

    fn end(&mut self, unit: u64) {
        let place = self.under_way.iter().position(|&begun| begun == unit);
        self.under_way.swap_remove(place.expect("what ends has begun"));
    }

    /// Moves the watermark over what is done.
    fn advance(&mut self, wanted: impl Fn(u64) -> u64) {
        // Each time but the last takes one of those that are finished.
        for _ in 0..=self.finished.len() {
            self.done = ahead(self.done, &wanted);
            let Some(place) = self.finished.iter().position(|&unit| unit == self.done) else { return };
            self.finished.swap_remove(place);
            self.done += 1;
        }
        panic!("what is finished is taken once");
    }
}

/// The first wanted unit from one on.
///
/// # Panics
/// When that is before it.
fn ahead(from: u64, wanted: impl Fn(u64) -> u64) -> u64 {
    let next = wanted(from);
    assert!(next >= from, "stripe {next} is wanted next after stripe {from}");
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { quiet_ticks: 2, beside_clients: 1, alone: 16, bytes: Bytes(u64::MAX), turn: Bytes(16) };

    fn begin(sweeper: &mut Sweeper, end: u64, wanted: impl Fn(u64) -> u64) -> Option<u64> {
        sweeper.begin_turn(Bytes(1));
        sweeper.begin(end, Bytes(1), wanted)
    }

    #[test]
    #[should_panic(expected = "stripe 2 is wanted next after stripe 3")]
    fn a_sweep_that_is_pointed_back_says_so() {
        let mut sweeper = Sweeper::new(PACE);
        sweeper.restart(3);
        begin(&mut sweeper, 8, |_| 2);
    }

    #[test]
    fn the_watermark_rises_over_what_is_finished_in_any_order() {
        let mut sweeper = Sweeper::new(PACE);
        sweeper.restart(0);
        let all = |from| from;
        let begun: Vec<u64> = std::iter::from_fn(|| begin(&mut sweeper, 4, all)).collect();
        assert_eq!(begun, [0, 1, 2, 3]);
        let marks = [2, 1, 0, 3].map(|unit| {
            sweeper.finish(unit, all);
            sweeper.done()
        });
        assert_eq!(marks, [0, 0, 3, 4]);
    }

    #[test]
    fn what_was_passed_over_and_is_wanted_later_is_done() {
        let mut sweeper = Sweeper::new(PACE);
        sweeper.restart(0);
        let all = |from| from;
        let but_one = |from| if from == 1 { 2 } else { from };
        let begun: Vec<u64> = (0..2).filter_map(|_| begin(&mut sweeper, 4, but_one)).collect();
        assert_eq!(begun, [0, 2]);
        // Unit 1 is wanted from now on.
        sweeper.finish(2, all);
        sweeper.finish(0, all);
        let begun: Vec<u64> = std::iter::from_fn(|| begin(&mut sweeper, 4, all)).collect();
        assert_eq!((begun.as_slice(), sweeper.done()), (&[1, 3][..], 1));
        begun.iter().for_each(|&unit| sweeper.finish(unit, all));
        assert_eq!((begin(&mut sweeper, 4, all), sweeper.done()), (None, 4));
    }

    #[test]
    fn there_is_room_for_one_unit_beside_clients_and_for_many_when_they_are_away() {
        let mut sweeper = Sweeper::new(Pace { bytes: Bytes(8), ..PACE });
        let units = |sweeper: &mut Sweeper, size| {
            let mut begun = Vec::new();
            while sweeper.has_room(Bytes(size)) {
                begun.extend(begin(sweeper, 1000, |from| from));
            }
            begun.iter().for_each(|&unit| sweeper.drop_unit(unit));
            begun.len()
        };
        sweeper.note_activity();
        assert_eq!(units(&mut sweeper, 1), 1);
        (0..2).for_each(|_| sweeper.tick());
        assert_eq!((units(&mut sweeper, 0), units(&mut sweeper, 1), units(&mut sweeper, 9)), (16, 8, 1));
        sweeper.set_limit(Some(Bytes(10)));
        assert_eq!(units(&mut sweeper, 1), 0, "nothing is allowed before time passes");
    }
}
