//! Deterministic runs: one seed makes an array, its clients, what fails and when the power goes, over several lives of
//! the array.
//!
//! A life opens the array from what the last one left, recovers it, looks at all of it, and serves clients until it is
//! closed, killed or the power goes, in the middle of recovery too. Every read, and the whole array after every
//! recovery, is held against the [`model`]; parity and every tolerated set of missing members against the layout's maps
//! ([`audit`]).
//!
//! After these lives some arrays are changed while they are [`stopped`]: they grow, or get another shape, with power
//! cuts and failures; and live on in whatever shape they have then. Others get another shape while they are
//! [`served`]: over several lives, in which everything else goes on, and which may [begin](beginning) without a stop.
//! Last of all the log of some gets devices of its own while they are stopped ([`exchanging`]), and they live on with
//! these ([`logs`]).
//!
//! What is expected of an array depends on how it is [kept consistent](uraid_io::format::superblock::Consistency):
//! - with a log, every sector is a version that may be there, also when members are missing after a power cut;
//! - without, only while all members are there; an array that is neither whole nor stopped cleanly must be refused.
//!
//! Members of arrays with checksums lose, misplace and rot what those tell of, in most runs
//! ([`Silent`]). A command may then fail where more members hold something else in one place than
//! the level survives, and only there ([`doubts`]); the array is read before members are looked at.

mod administer;
mod altered;
mod anew;
mod array;
pub(crate) mod audit;
mod beginning;
mod begun;
pub(crate) mod blank;
mod client;
mod copying;
pub(crate) mod doubts;
mod exchanging;
mod extras;
mod faults;
mod finding;
mod found;
mod growing;
mod logs;
pub(crate) mod model;
mod outage;
mod report;
mod reshaping;
mod roster;
mod rot;
mod scenario;
mod served;
mod session;
mod shapes;
mod shelf;
mod stopped;

use std::panic::{AssertUnwindSafe, catch_unwind};

use uraid_io::array::{Assembled, judge};
use uraid_io::engine::Engine;
use uraid_io::format::bitmap::Regions;
use uraid_io::format::superblock::{Consistency, Integrity, LogDevices};
use uraid_io::member::Access;
use uraid_layout::repair::Repair;
use uraid_layout::{Lba, MemberIndex, MemberSet};

pub(crate) use array::look_after;
pub(crate) use faults::areas_in_use;
pub use finding::{Failure, Finding};
pub use report::{Alterations, Changes, Counts, Logged, Report, Rotten, Served};
pub use scenario::Scenario;

use crate::disk::{Ending, Faults, Rate, Silent, SimDisk, Steps};
use crate::members::Members;
use crate::trace::{KEPT, Trace};
use administer::Administrator;
use array::{Array, Opened, Seen};
use client::{Client, End};
use extras::Extras;
use found::Found;
use logs::LogShelf;
use rot::RottenLog;
use served::{Mover, suits};
use session::given_up_late;
use shapes::{survived, tolerance};
use shelf::Shelf;
use stopped::Stopped;
use uraid_random::Random;

/// What a run is to be made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// The ways of keeping consistent that arrays are drawn from.
    pub ways: Vec<Consistency>,
    /// Whether members lose, misplace and change what they were given, saying nothing. No array without checksums
    /// survives that: a run that does not fail then shows that the checks check nothing.
    pub corrupts: bool,
    /// Whether members fail in every life, and the power goes soon after.
    pub is_harsh: bool,
    /// How many of the last events a failure tells.
    pub events: usize,
}

impl Default for Options {
    /// What is built: every way there is of keeping consistent.
    fn default() -> Self {
        Self {
            ways: vec![Consistency::None, Consistency::Bitmap, Consistency::Log, Consistency::Log, Consistency::Log],
            corrupts: false,
            is_harsh: false,
            events: KEPT,
        }
    }
}

/// Runs a seed.
///
/// # Errors
/// What must not be.
pub fn run(seed: u64, options: &Options) -> Result<Report, Box<Failure>> {
    let mut random = Random::new(seed);
    let (extras, mut own) = Extras::draw(seed);
    let (extras, after) = extras.and_after(seed);
    let (extras, mover) = extras.and_served(seed);
    let mut scenario = Scenario::draw(&mut random, &options.ways);
    if extras.is_wide {
        scenario = Scenario::draw_wide(&mut own, &options.ways);
    }
    let trace = Trace::keeping(options.events);
    let description = scenario.to_string();
    trace.note(format_args!("{description}"));
    let mut run = Run::new(scenario, random, trace.clone(), options).with_extras(extras, own, after);
    run.mover = Mover::new(mover, Extras::beginnings(seed));
    let (exchanges, chance) = Extras::logged(seed);
    run.logs = LogShelf::new(chance, exchanges);
    let finding = match catch_unwind(AssertUnwindSafe(|| run.live_all())) {
        Ok(Ok(())) => {
            run.report.counts = run.report.counts.plus(run.array.counts);
            run.report.served = run.mover.counts;
            run.report.logged = run.logs.counts;
            run.report.hash = trace.hash();
            run.report.counts.events = trace.count();
            return Ok(run.report);
        }
        Ok(Err(finding)) => finding,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("something that is no text");
            Finding::Panicked { message: text.into() }
        }
    };
    Err(Box::new(Failure { seed, finding, scenario: description, events: trace.last() }))
}

/// A run under way.
struct Run {
    array: Array,
    shelf: Shelf,
    random: Random,
    /// Chance of its own for what only some arrays meet, so that the others' runs stay what they are.
    aside: Random,
    trace: Trace,
    corrupts: bool,
    is_harsh: bool,
    /// Who changes the array while it runs, in some of the runs.
    administrator: Option<Administrator>,
    extras: Extras,
    /// Chance for these.
    own: Random,
    /// Chance for what happens after the lives that all runs have, so that these stay what they are.
    after: Random,
    /// Who has the array reshaped while it is served, in what comes after all of that.
    mover: Mover,
    /// Whether that has begun.
    is_served: bool,
    /// Its log devices, which it may get after all of that.
    logs: LogShelf,
    /// Whether a life ends with the array closed, and nothing of it blank.
    must_close: bool,
    /// With deadlines: members that the array did without at the end of the last life.
    given_up: MemberSet,
    report: Report,
}

/// Whether anything goes wrong in a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    Rough,
    /// The last life shows what the others have left.
    Calm,
}

impl Run {
    fn new(scenario: Scenario, random: Random, trace: Trace, options: &Options) -> Self {
        let Options { corrupts, is_harsh, .. } = *options;
        let shelf = Shelf::new(&scenario.superblocks);
        let mut aside = random.clone().fork().fork();
        let has_sums = scenario.superblocks[0].integrity == Integrity::Crc32;
        let is_silent = has_sums && !corrupts && aside.chance(3, 4);
        let silent = is_silent.then(|| faults::draw_silent(&scenario, &mut aside));
        let mut other = random.clone().fork().fork().fork();
        let is_administered = scenario.geometry.tolerance() > 0 && !corrupts && other.chance(1, 2);
        let administrator = is_administered.then(|| Administrator::new(other));
        Self {
            array: Array::new(scenario, silent, trace.clone()),
            shelf,
            random,
            aside,
            trace,
            corrupts,
            is_harsh,
            administrator,
            extras: Extras::default(),
            own: Random::new(0),
            after: Random::new(0),
            mover: Mover::new(Random::new(0), Random::new(0)),
            is_served: false,
            logs: LogShelf::new(Random::new(0), 0),
            must_close: false,
            given_up: MemberSet::EMPTY,
            report: Report::default(),
        }
    }

    fn with_extras(mut self, extras: Extras, mut own: Random, after: Random) -> Self {
        if extras.copies && !self.corrupts {
            let other = own.fork();
            let administrator = self.administrator.get_or_insert_with(|| Administrator::new(other));
            administrator.copy_members();
        }
        Self { extras, own, after, ..self }
    }

    fn live_all(&mut self) -> Result<(), Finding> {
        let regions = Regions::new(&self.array.scenario.geometry).count();
        self.report.counts.several_regions +=
            u64::from(regions > 1 && self.array.scenario.consistency() != Consistency::None);
        if self.array.silent.is_some() {
            self.zero()?;
        } else if self.extras.is_new {
            let members = blank::renew(&mut self.array.scenario, &mut self.own);
            self.shelf.put(&members, MemberSet::EMPTY, true, &mut self.own);
            self.report.counts.new += 1;
        }
        for _ in 0..self.random.within(1, 6) {
            if !self.live(Weather::Rough)? {
                return Ok(());
            }
        }
        let is_alive = self.live(Weather::Calm)? && self.live_on()? && self.live_between()?;
        if is_alive { self.live_logged() } else { Ok(()) }
    }

    /// More lives, before each of which the array was stopped and changed; the last one is calm again. False when the
    /// array can't be used any more.
    fn live_on(&mut self) -> Result<bool, Finding> {
        if self.corrupts || self.extras.alterations == 0 {
            return Ok(!self.corrupts);
        }
        for _ in 0..self.extras.alterations {
            self.must_close = true;
            let goes_on = self.live(Weather::Calm)?;
            self.must_close = false;
            if !goes_on {
                return Ok(false);
            }
            let Self { array, shelf, administrator, after, trace, report, .. } = self;
            let roster = administrator.as_mut().map(|administrator| &mut administrator.roster);
            Stopped { array, shelf, random: after, trace, counts: &mut report.alterations }.alter(roster)?;
            for _ in 0..self.after.below(3) {
                if !self.live(Weather::Rough)? {
                    return Ok(false);
                }
            }
        }
        self.live(Weather::Calm)
    }

    /// More lives, in which the array gets another shape while it is served. It may end between two. False when the
    /// array can't be used any more.
    fn live_between(&mut self) -> Result<bool, Finding> {
        for _ in 0..self.extras.served {
            self.must_close = true;
            let goes_on = self.live(Weather::Calm)?;
            self.must_close = false;
            if !goes_on {
                return Ok(false);
            }
            let Self { array, shelf, administrator, mover, trace, .. } = self;
            let roster = administrator.as_mut().map(|administrator| &mut administrator.roster);
            begun::begin(mover, array, shelf, roster, trace)?;
            self.is_served = true;
            for _ in 0..self.mover.random.within(1, 6) {
                if !self.live(Weather::Rough)? {
                    return Ok(false);
                }
            }
        }
        if self.extras.served > 0 && self.mover.random.chance(3, 4) {
            return self.live(Weather::Calm);
        }
        Ok(true)
    }

    /// More lives, before each of which the array gets log devices, or others, or none, while it is stopped.
    fn live_logged(&mut self) -> Result<(), Finding> {
        let has_log = self.array.scenario.consistency() == Consistency::Log;
        if self.corrupts || !has_log || self.logs.exchanges == 0 {
            return Ok(());
        }
        if self.array.scenario.geometry.tolerance() > 0 {
            // Only an array that is whole can be changed.
            let is_spoilt = self.report.rotten.blocks > 0;
            let other = self.logs.random.fork();
            let administrator = self.administrator.get_or_insert_with(|| Administrator::new(other));
            administrator.roster.is_spoilt |= is_spoilt;
        }
        for _ in 0..self.logs.exchanges {
            self.must_close = true;
            let goes_on = self.live(Weather::Calm)?;
            self.must_close = false;
            self.is_served = false;
            if !goes_on || self.array.course.is_some() {
                return Ok(());
            }
            let Self { logs, shelf, administrator, trace, .. } = self;
            let roster = administrator.as_mut().map(|administrator| &mut administrator.roster);
            exchanging::exchange(logs, shelf, roster, trace)?;
            for _ in 0..self.logs.random.within(2, 7) {
                if !self.live(Weather::Rough)? {
                    return Ok(());
                }
            }
        }
        self.live(Weather::Calm).map(drop)
    }

    /// Writes the whole of the new array: a block has a checksum from when it is written.
    fn zero(&mut self) -> Result<(), Finding> {
        let refused = |error: &dyn std::error::Error| Finding::Refused { error: error.to_string() };
        let members = Members::new(&self.array.scenario.superblocks);
        let candidates = members.candidates();
        let verdict = judge(&candidates).map_err(|error| refused(&error))?;
        let disk = SimDisk::new(members, self.aside.fork(), Trace::default());
        let generation = scenario::uuid(&mut self.aside);
        let array = Assembled::new(disk.clone(), &verdict, &candidates, Access::ReadWrite, generation);
        let engine = array.map_err(|error| refused(&error))?.into_engine().map_err(|error| refused(&error))?;
        let scenario = Scenario { cache: None, ..self.array.scenario.clone() };
        let random = self.aside.fork();
        let end = Client::new(engine, disk.clone(), &scenario, &mut self.array.model, random, Trace::default())
            .zero(Lba(0))?;
        assert_eq!(end, End::Closed, "nothing fails without a fault");
        self.array.model.stopped();
        let left = disk.leave(Ending::PowerCut, &mut self.aside);
        self.shelf.put(&left, MemberSet::EMPTY, true, &mut self.aside);
        Ok(())
    }

    /// One life; false when the array can't be used any more.
    fn live(&mut self, weather: Weather) -> Result<bool, Finding> {
        let Self { array, shelf, administrator, random, mover, trace, .. } = self;
        let roster = administrator.as_mut().map(|administrator| &mut administrator.roster);
        begun::settle(mover, array, shelf, roster, trace)?;
        let is_between = array.course.is_some();
        let rots = self.extras.rots && weather == Weather::Rough && !is_between;
        if rots {
            self.report.rotten = self.report.rotten.plus(shelf.rot(&mut self.own, trace)?);
        }
        let roster = administrator.as_mut().map(|administrator| &mut administrator.roster);
        let Some(mut found) = shelf.find(&array.shapes(), roster, random, trace)? else {
            return Ok(false);
        };
        // Damage stays until the log begins anew: of a record that several members have lost nobody can say that it was
        // there.
        if rots && self.array.rotten_log.is_none() {
            self.array.rotten_log = rot::rot_log(&mut found, &mut self.own, trace);
            self.report.rotten.logs += u64::from(self.array.rotten_log.is_some());
        }
        // Of what has one copy left nothing may be lost before it has another.
        let has_copy = self.array.rotten_log.is_some_and(|rotten| rotten.has_copy);
        let is_rough = weather == Weather::Rough && !has_copy;
        if is_rough {
            self.spoil(&mut found.members);
        }
        self.logs.bring(&mut found, is_rough, &self.trace)?;
        self.report.counts.lives += 1;
        let disk = SimDisk::new(found.members.clone(), self.random.fork(), self.trace.clone());
        let missing = found.verdict.lost();
        if let Some(administrator) = &mut self.administrator {
            administrator.begin();
            self.shelf.hand_out(found.verdict.missing(), &mut administrator.roster);
        }
        self.report.counts.degraded += u64::from(!missing.is_empty());
        if is_rough {
            self.draw_cut(&disk);
        }
        let faults = self.faults_of_life(missing, is_rough, is_between);
        let (failing, log_faults) = self.logs.faults(&found, is_rough, self.extras.deadlines.is_some());
        if self.random.chance(1, 4) && found.verdict.superblock.consistency == Consistency::Log {
            // Members may fail while the log is replayed.
            disk.set_faults(faults);
            if self.logs.may_fail_early() {
                disk.set_log_faults(failing, log_faults);
            }
        }
        let seen = self.read_before(&found, is_between)?;
        let opened = self.array.open(&disk, &found, &seen, &mut self.random, &mut self.aside)?;
        let was_open = matches!(opened, Opened::Engine(_));
        self.mover.counts.lives += u64::from(is_between && was_open);
        let begun = self.mover.counts.begun;
        let end = match opened {
            Opened::Broken => {
                self.report.counts.cuts_in_recovery += u64::from(!self.array.is_refused);
                End::Dark
            }
            Opened::Engine(engine) => {
                disk.set_faults(faults);
                self.logs.opened(&disk);
                disk.set_log_faults(failing, log_faults);
                self.serve(*engine, &disk, weather)?
            }
        };
        self.note_shape(is_between || self.mover.counts.begun > begun);
        self.report.counts.lies += disk.lies();
        self.array.note_faults(&disk);
        self.end(&disk, &found, end, was_open)?;
        let is_refused = std::mem::take(&mut self.array.is_refused);
        if let Some(RottenLog { member, .. }) = self.array.rotten_log.take_if(|_| is_refused) {
            self.report.rotten.refused += 1;
            if Repair::new(&self.array.scenario.geometry, missing.with(member)).is_err() {
                // Nobody else has what its log has lost.
                return Ok(false);
            }
            self.shelf.leave_out(member);
        }
        Ok(true)
    }

    /// What an array that was not stopped cleanly shows before it is recovered, now and then.
    fn read_before(&mut self, found: &Found, is_between: bool) -> Result<Seen, Finding> {
        // Without a log parity may be wrong before the array is recovered, and whoever only reads it takes it as it is.
        let is_logged = found.verdict.superblock.consistency == Consistency::Log;
        let is_telling = is_logged || found.members.iter().all(|(_, member)| !member.is_spoilt());
        if !found.verdict.superblock.is_clean && !is_between && self.aside.chance(1, 3) && is_telling {
            self.array.read_unwritten(found, &mut self.aside)
        } else {
            Ok(Seen::new())
        }
    }

    /// What fails in a life, of an array that lacks some members and may be between two shapes.
    fn faults_of_life(&mut self, missing: MemberSet, is_rough: bool, is_between: bool) -> Faults {
        let mut faults = if is_rough { self.draw_faults(missing) } else { Faults::default() };
        if self.extras.deadlines.is_some() && is_rough && self.own.chance(2, 3) {
            if faults.members.is_empty() && self.array.silent.is_none() {
                faults.members = *self.own.pick(&survived(&self.array.shapes(), missing));
            }
            let mut rate = || Rate(u32::try_from(self.own.within(1, 300)).expect("small"));
            (faults.hang, faults.slow) = (rate(), rate());
        }
        if self.extras.copies && !is_between && self.own.chance(1, 3) {
            // Whoever is at the seat may fail beside whatever else does.
            let seat = u8::try_from(self.array.scenario.geometry.members()).expect("few members");
            faults.members = faults.members.with(MemberIndex(seat));
        }
        faults
    }

    /// When the power goes.
    fn draw_cut(&mut self, disk: &SimDisk) {
        if self.random.chance(2, 3) {
            let exponent = self.random.below(12);
            disk.cut_after(Steps(1 + self.random.below(1 << exponent)));
        }
        if self.is_harsh || self.random.chance(1, 3) {
            // Whoever is to learn of a failure has little time.
            let exponent = self.random.below(if self.is_harsh { 5 } else { 8 });
            disk.cut_after_fault(Steps(1 + self.random.below(1 << exponent)));
        }
    }

    /// Takes note whether a reshape is over that was under way when the life began.
    fn note_shape(&mut self, was_between: bool) {
        if !was_between || self.array.course.is_some() {
            return;
        }
        let truth = &self.array.scenario.superblocks[0];
        self.shelf.reshaped(self.array.slots(), |member| suits(member, truth));
    }

    /// Makes blocks of members unreadable, now and then.
    fn spoil(&mut self, members: &mut Members) {
        if !self.extras.spoils || self.array.silent.is_some() || !self.own.chance(1, 2) {
            return;
        }
        rot::spoil(members, &self.array.largest(), &mut self.own, &self.trace);
        self.array.may_lack = true;
        self.report.rotten.blocks += 1;
        if let Some(administrator) = &mut self.administrator {
            administrator.roster.is_spoilt = true;
        }
    }

    /// Serves clients, and has the array changed meanwhile. Where a member was rebuilt and the array was closed, all of
    /// it is looked at.
    fn serve(&mut self, engine: Engine<SimDisk, u64>, disk: &SimDisk, weather: Weather) -> Result<End, Finding> {
        let (random, trace) = (self.random.fork(), self.trace.clone());
        let is_between = self.array.course.is_some();
        let client = Client::new(engine, disk.clone(), &self.array.scenario, &mut self.array.model, random, trace);
        let may_change = self.is_served && weather == Weather::Rough && !self.extras.rots;
        let client = client.moved_by(self.is_served.then_some(&mut self.mover), may_change);
        let mends = self.administrator.is_some() && weather == Weather::Calm;
        let mut client = client.administered_by(self.administrator.as_mut());
        if let Some(deadlines) = self.extras.deadlines {
            client.session.engine.set_deadlines(deadlines);
        }
        let exponent = self.random.within(2, 8);
        let (commands, closes) = (self.random.below(1 << exponent), self.random.chance(1, 2));
        let moves = is_between && weather == Weather::Calm;
        let mut end = client.run(commands, closes && !mends && !moves && !self.must_close)?;
        if moves && end != End::Dark {
            end = if !client.move_to_the_end()? { End::Dark } else { client.run(0, !mends && !self.must_close)? };
        }
        // Members can not join what is between two shapes, because content is lost.
        let mends = mends && client.session.engine.reshape().is_none();
        if self.must_close && end != End::Dark {
            // Now and then it is closed though regions are blank.
            let is_on = self.after.chance(1, 8) || client.initialise()?;
            end = if !is_on || mends { end } else { client.run(0, true)? };
            end = if is_on { end } else { End::Dark };
        }
        if mends && end != End::Dark {
            end = if client.mend()? { client.run(0, true)? } else { End::Dark };
        }
        let has_rebuilt = end != End::Dark && client.has_rebuilt();
        let superblocks = client.session.superblocks.clone();
        self.array.larger = client.session.larger.take();
        self.array.undecided = client.session.undecided;
        let begun = client.session.begun.take();
        self.report.counts.sectors_read += client.session.reads;
        self.report.counts.unreadable += client.session.unreadable;
        self.array.may_lack |= client.session.was_struck;
        let engine = client.session.engine;
        if self.extras.deadlines.is_some() {
            // One that hangs, or is slow, is given up though it has failed nothing.
            self.given_up = engine.missing();
            self.report.counts.hangs += disk.hangs();
            self.report.counts.overdue += engine.counters().total().overdue;
        }
        let failed = engine.superblock().logs.as_ref().map(LogDevices::failed).unwrap_or_default();
        self.logs.check(failed, disk, engine.deadlines().write.is_some())?;
        self.report.counts.repaired += engine.counters().total().repaired;
        if let Some(course) = begun {
            let truth = engine.superblock();
            self.shelf.begun(superblocks.len(), |member| suits(member, &truth));
            self.array.course = Some(course);
        }
        self.array.scenario.superblocks = superblocks;
        self.array.take_shape(&engine)?;
        self.report.changes.rebuilds += u64::from(has_rebuilt);
        if has_rebuilt && end == End::Closed {
            self.array.model.stopped();
            self.array.note_faults(disk);
            self.array.look(&disk.members(), &engine, &Seen::new())?;
        }
        Ok(end)
    }

    /// Takes the members back after a life.
    fn end(&mut self, disk: &SimDisk, found: &Found, end: End, was_open: bool) -> Result<(), Finding> {
        let is_killed = end != End::Closed && self.random.chance(1, 4);
        // Whether a reshape has begun is to be the same at every later start.
        let is_killed = is_killed && self.array.undecided.is_none();
        let ending = if is_killed { Ending::Kill } else { Ending::PowerCut };
        self.trace.note(format_args!("the life ends: {end:?}, {ending:?}"));
        self.report.counts.cuts += u64::from(end != End::Closed);
        self.array.model.stopped();
        let mut left = disk.leave(ending, &mut self.random);
        let struck = disk.struck().union(disk.lied());
        let slots = self.array.undecided.unwrap_or(self.array.slots());
        let others = left.split_off(slots);
        self.shelf.make_room(slots);
        if let Some(administrator) = &mut self.administrator {
            let failed = struck.union(given_up_late(disk, self.extras.deadlines));
            for slot in administrator.end(ending, &left, others, failed).iter() {
                left.replace(slot, None);
            }
            let roster = &administrator.roster;
            self.shelf.administered(roster, struck, found.members.present(), left.present(), was_open);
            self.report.changes =
                roster.changes.plus(Changes { rebuilds: self.report.changes.rebuilds, ..Changes::default() });
        }
        let struck = struck.union(std::mem::take(&mut self.given_up)).iter();
        let struck = struck.filter(|slot| slot.index() < slots).collect();
        self.shelf.put(&left, struck, end == End::Closed, &mut self.random);
        self.logs.put(&left, &found.verdict.superblock, disk.struck_logs())
    }

    /// What goes wrong in a life with members beside those that are missing.
    fn draw_faults(&mut self, missing: MemberSet) -> Faults {
        let geometry = &self.array.scenario.geometry;
        if self.corrupts {
            return faults::draw_corrupt(geometry, &mut self.random);
        }
        let survived = survived(&self.array.shapes(), missing);
        let faults = faults::draw(MemberSet::all(self.array.slots()), &survived, self.is_harsh, &mut self.random);
        let Some(silent) = self.array.silent else { return faults };
        let areas = areas_in_use(&self.array.scenario.superblocks[0].areas, &self.array.largest());
        let silent = Silent { areas, ..silent };
        faults::with_silent(faults, silent, tolerance(&self.array.shapes()), &mut self.aside)
    }
}

#[cfg(test)]
mod tests;
