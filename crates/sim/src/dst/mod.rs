//! Deterministic runs: one seed makes an array, its clients, what fails and when the power goes, over several lives of the array.
//!
//! A life opens the array from what the last one left, recovers it, looks at all of it, and serves clients until it is closed, killed or the power
//! goes, in the middle of recovery too. Every read, and the whole array after every recovery, is held against the [`model`]; parity and every
//! tolerated set of missing members against the layout's maps ([`audit`]).
//!
//! What is expected of an array depends on how it is [kept consistent](uraid_io::superblock::Consistency):
//! - with a log, every sector is a version that may be there, also when members are missing after a power cut;
//! - without, only while all members are there; an array that is neither whole nor stopped cleanly must be refused.
//!
//! Members of arrays with checksums lose, misplace and rot what those tell of, in most runs ([`Silent`]). A command may then fail where more
//! members hold something else in one place than the level survives, and only there ([`doubts`]); the array is read before members are looked at.

pub mod audit;
mod client;
pub(crate) mod doubts;
pub mod model;
mod scenario;
mod shelf;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use thiserror::Error;
use uraid_io::array::{Assembled, judge};
use uraid_io::buf::Buf;
use uraid_io::engine::Engine;
use uraid_io::member::Access;
use uraid_io::superblock::{Area, Areas, Consistency, Integrity, SuperblockError};
use uraid_layout::repair::Repair;
use uraid_layout::{Geometry, Lba, Level, MemberIndex, MemberSet};

pub use scenario::Scenario;

use crate::disk::{Ending, Faults, Rate, Silent, SimDisk, Steps};
use crate::members::Members;
use crate::random::Random;
use crate::trace::{KEPT, Trace};
use audit::{Audit, Disagreement, tolerated};
use client::{Client, End};
use doubts::{BLOCK, Doubts};
use model::{Model, Wrong};
use shelf::{Found, Shelf};

/// What a run is to be made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// The ways of keeping consistent that arrays are drawn from.
    pub ways: Vec<Consistency>,
    /// Whether members lose, misplace and change what they were given, saying nothing. No array without checksums survives that: a run that does
    /// not fail then shows that the checks check nothing.
    pub corrupts: bool,
    /// Whether members fail in every life, and the power goes soon after.
    pub is_harsh: bool,
    /// How many of the last events a failure tells.
    pub events: usize,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// A number that two runs have in common when the same happened in both.
    pub hash: u64,
    /// Events.
    pub events: u64,
    /// Times that the array was opened.
    pub lives: u64,
    /// Of these, how often it had to be recovered, and was.
    pub recoveries: u64,
    /// Power cuts, kills and hangs.
    pub cuts: u64,
    /// Of these, how often before the array was recovered.
    pub cuts_in_recovery: u64,
    /// Sectors that clients read.
    pub sectors_read: u64,
    /// Lives without some member.
    pub degraded: u64,
    /// How often members corrupted something silently.
    pub lies: u64,
    /// Commands that rightly failed where too many members had.
    pub unreadable: u64,
    /// Pieces that were computed from other members and written back.
    pub repaired: u64,
    /// Arrays, not stopped cleanly, that were read without being written first.
    pub only_read: u64,
}

/// A seed that shows something that must not be.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What was found.
    pub finding: Finding,
    /// What the run's array was.
    pub scenario: String,
    /// The last events.
    pub events: Vec<String>,
}

/// What must not be.
#[derive(Clone, Debug, Error)]
pub enum Finding {
    /// A read returned what it must not.
    #[error("a read returned wrong content: {0}")]
    WrongRead(Wrong),
    /// The members hold what they must not.
    #[error("without {lost:?}: {wrong}")]
    WrongContent {
        /// Which members were left out beside the missing ones.
        lost: MemberSet,
        /// The first sector.
        wrong: Wrong,
    },
    /// Parity does not agree.
    #[error("parity does not agree: stripe {}, group {}, byte {}", .0.stripe, .0.group, .0.byte)]
    Parity(Disagreement),
    /// Content can't be computed though few enough members are missing.
    #[error("content can't be computed without {lost:?}")]
    Undecodable {
        /// The members.
        lost: MemberSet,
    },
    /// A command failed though few enough members did.
    #[error("command {token} failed though few enough members did: {error}")]
    CommandFailed {
        /// The command.
        token: u64,
        /// Its error.
        error: String,
    },
    /// A command was replied to twice, or not as it should be.
    #[error("command {token} has a second reply, or a read came without its memory")]
    RepliedTwice {
        /// The command.
        token: u64,
    },
    /// Nothing goes on.
    #[error("{commands} commands are never replied to")]
    Stuck {
        /// Commands without a reply.
        commands: usize,
    },
    /// An array that can be opened was refused.
    #[error("refused or failed: {error}")]
    Refused {
        /// Why.
        error: String,
    },
    /// An array that can't be trusted was opened.
    #[error("not stopped cleanly and opened without {missing:?}")]
    NotRefused {
        /// The missing members.
        missing: MemberSet,
    },
    /// A member still holds something else than was written there, after the array was read.
    #[error("sector {lba} can be had, and was not written back to the member that holds something else")]
    NotHealed {
        /// Where in the array.
        lba: Lba,
    },
    /// Members were written though the array was opened for reading only.
    #[error("member {member} was written, and was to be read only")]
    Written {
        /// The member.
        member: MemberIndex,
    },
    /// Recovery brought something else than what was read before it.
    #[error("sector {lba} was read before recovery, and is something else after it")]
    ReadOtherwise {
        /// Where in the array.
        lba: Lba,
    },
    /// A closed array is not clean.
    #[error("the array was closed and is not clean")]
    NotClean,
    /// A member was set aside that nothing has happened to.
    #[error("members {members:?} were set aside, and nothing has happened to them")]
    SetAside {
        /// The members.
        members: MemberSet,
    },
    /// A member was accepted that is not current.
    #[error("members {members:?} were accepted, and are not current or not there")]
    Accepted {
        /// The members.
        members: MemberSet,
    },
    /// A foreign or cloned member was accepted, or one of another side.
    #[error("a foreign or cloned member was accepted, or one that went on without the others")]
    Stranger,
    /// A member's superblock is gone.
    #[error("member {member} has no superblock left: {source}")]
    NoSuperblock {
        /// The member.
        member: MemberIndex,
        /// What is wrong with it.
        source: SuperblockError,
    },
    /// An assertion failed.
    #[error("panicked: {message}")]
    Panicked {
        /// What it said.
        message: String,
    },
}

impl Report {
    /// Two reports as one; the hash is nobody's then.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            hash: 0,
            events: self.events + other.events,
            lives: self.lives + other.lives,
            recoveries: self.recoveries + other.recoveries,
            cuts: self.cuts + other.cuts,
            cuts_in_recovery: self.cuts_in_recovery + other.cuts_in_recovery,
            sectors_read: self.sectors_read + other.sectors_read,
            degraded: self.degraded + other.degraded,
            lies: self.lies + other.lies,
            unreadable: self.unreadable + other.unreadable,
            repaired: self.repaired + other.repaired,
            only_read: self.only_read + other.only_read,
        }
    }
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
    let scenario = Scenario::draw(&mut random, &options.ways);
    let trace = Trace::keeping(options.events);
    let description = scenario.to_string();
    trace.note(format_args!("{description}"));
    let mut run = Run::new(scenario, random, trace.clone(), options);
    let finding = match catch_unwind(AssertUnwindSafe(|| run.live_all())) {
        Ok(Ok(())) => return Ok(Report { hash: trace.hash(), events: trace.count(), ..run.report }),
        Ok(Err(finding)) => finding,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("something that is no text");
            Finding::Panicked { message: text.into() }
        }
    };
    Err(Box::new(Failure { seed, finding, scenario: description, events: trace.last() }))
}

/// Opens members of an array with checksums that corrupted something, recovers it, reads all of it and then the members, and holds it against the
/// model; members of `excused` may be set aside. Whether it had to be recovered.
///
/// # Errors
/// What must not be.
pub(crate) fn look_after(
    scenario: &Scenario,
    members: &Members,
    model: &Model,
    excused: MemberSet,
) -> Result<bool, Finding> {
    let refused = |error: &dyn std::error::Error| Finding::Refused { error: error.to_string() };
    let candidates = members.candidates();
    let verdict = judge(&candidates).map_err(|error| refused(&error))?;
    let aside = verdict.missing().minus(excused);
    if !aside.is_empty() {
        return Err(Finding::SetAside { members: aside });
    }
    let accepted = members.only(scenario.geometry.all_members().minus(verdict.missing()));
    let found = Found { candidates, verdict, members: accepted.clone() };
    let disk = SimDisk::new(accepted, Random::new(1), Trace::default());
    let mut run = Run::new(scenario.clone(), Random::new(1), Trace::default(), &Options::default());
    run.silent = Some(draw_silent(scenario, &mut Random::new(1)));
    run.model = model.clone();
    match run.open(&disk, &found, &Seen::new())? {
        Opened::Engine(_) => Ok(run.report.recoveries > 0),
        Opened::Broken => Err(Finding::Refused { error: "it breaks though nothing fails".into() }),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, finding, scenario, events } = self;
        writeln!(f, "seed {seed}: {finding}\n  {scenario}\n  the last events:")?;
        events.iter().try_for_each(|event| writeln!(f, "    {event}"))?;
        write!(f, "  again: cargo xtask sim --seeds {seed}..{}", seed + 1)
    }
}

/// A run under way.
struct Run {
    scenario: Scenario,
    shelf: Shelf,
    model: Model,
    random: Random,
    /// Chance of its own for what only some arrays meet, so that the others' runs stay what they are.
    aside: Random,
    trace: Trace,
    corrupts: bool,
    is_harsh: bool,
    /// Which members corrupt what, where there are checksums.
    silent: Option<Silent>,
    report: Report,
}

/// What was read of an array before it was recovered.
type Seen = BTreeMap<Lba, Buf>;

/// Whether anything goes wrong in a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    Rough,
    /// The last life shows what the others have left.
    Calm,
}

/// An array that is open, or what stands in the way.
enum Opened {
    Engine(Box<Engine<SimDisk, u64>>),
    /// The power went, or a member failed.
    Broken,
}

impl Run {
    fn new(scenario: Scenario, random: Random, trace: Trace, options: &Options) -> Self {
        let Options { corrupts, is_harsh, .. } = *options;
        let shelf = Shelf::new(&scenario.superblocks);
        let model = Model::new(scenario.geometry.capacity());
        let mut aside = random.clone().fork().fork();
        let has_sums = scenario.superblocks[0].integrity == Integrity::Crc32;
        let silent = (has_sums && !corrupts && aside.chance(3, 4)).then(|| draw_silent(&scenario, &mut aside));
        let report = Report::default();
        Self { scenario, shelf, model, random, aside, trace, corrupts, is_harsh, silent, report }
    }

    fn live_all(&mut self) -> Result<(), Finding> {
        if self.silent.is_some() {
            self.zero()?;
        }
        for _ in 0..self.random.within(1, 6) {
            if !self.live(Weather::Rough)? {
                return Ok(());
            }
        }
        self.live(Weather::Calm).map(drop)
    }

    /// Writes the whole of the new array: a block has a checksum from when it is written.
    fn zero(&mut self) -> Result<(), Finding> {
        let refused = |error: &dyn std::error::Error| Finding::Refused { error: error.to_string() };
        let members = Members::new(&self.scenario.superblocks);
        let candidates = members.candidates();
        let verdict = judge(&candidates).map_err(|error| refused(&error))?;
        let disk = SimDisk::new(members, self.aside.fork(), Trace::default());
        let generation = scenario::uuid(&mut self.aside);
        let array = Assembled::new(disk.clone(), &verdict, &candidates, Access::ReadWrite, generation);
        let engine = array.map_err(|error| refused(&error))?.into_engine().map_err(|error| refused(&error))?;
        let scenario = Scenario { cache: None, ..self.scenario.clone() };
        let random = self.aside.fork();
        let end = Client::new(engine, disk.clone(), &scenario, &mut self.model, random, Trace::default()).zero()?;
        assert_eq!(end, End::Closed, "nothing fails without a fault");
        self.model.stopped();
        let left = disk.leave(Ending::PowerCut, &mut self.aside);
        self.shelf.put(&left, MemberSet::EMPTY, true, &mut self.aside);
        Ok(())
    }

    /// One life; false when the array can't be used any more.
    fn live(&mut self, weather: Weather) -> Result<bool, Finding> {
        let Some(found) = self.shelf.find(&self.scenario.geometry, &mut self.random, &self.trace)? else {
            return Ok(false);
        };
        self.report.lives += 1;
        let disk = SimDisk::new(found.members.clone(), self.random.fork(), self.trace.clone());
        let missing = found.verdict.missing();
        self.report.degraded += u64::from(!missing.is_empty());
        if weather == Weather::Rough && self.random.chance(2, 3) {
            let exponent = self.random.below(12);
            disk.cut_after(Steps(1 + self.random.below(1 << exponent)));
        }
        if weather == Weather::Rough && (self.is_harsh || self.random.chance(1, 3)) {
            // Whoever is to learn of a failure has little time.
            let exponent = self.random.below(if self.is_harsh { 5 } else { 8 });
            disk.cut_after_fault(Steps(1 + self.random.below(1 << exponent)));
        }
        let faults = if weather == Weather::Rough { self.draw_all_faults(missing) } else { Faults::default() };
        if self.random.chance(1, 4) && found.verdict.superblock.consistency == Consistency::Log {
            // Members may fail while the log is replayed.
            disk.set_faults(faults);
        }
        let seen = if !found.verdict.superblock.is_clean && self.aside.chance(1, 3) {
            self.read_unwritten(&found)?
        } else {
            Seen::new()
        };
        let end = match self.open(&disk, &found, &seen)? {
            Opened::Broken => {
                self.report.cuts_in_recovery += 1;
                End::Dark
            }
            Opened::Engine(engine) => {
                disk.set_faults(faults);
                let (random, trace) = (self.random.fork(), self.trace.clone());
                let mut client = Client::new(*engine, disk.clone(), &self.scenario, &mut self.model, random, trace);
                let exponent = self.random.within(2, 8);
                let end = client.run(self.random.below(1 << exponent), self.random.chance(1, 2))?;
                self.report.sectors_read += client.reads;
                self.report.unreadable += client.unreadable;
                self.report.repaired += client.into_engine().counters().total().repaired;
                end
            }
        };
        self.report.lies += disk.lies();
        self.end(&disk, end);
        Ok(true)
    }

    /// Takes the members back after a life.
    fn end(&mut self, disk: &SimDisk, end: End) {
        let ending = if end != End::Closed && self.random.chance(1, 4) { Ending::Kill } else { Ending::PowerCut };
        self.trace.note(format_args!("the life ends: {end:?}, {ending:?}"));
        self.report.cuts += u64::from(end != End::Closed);
        self.model.stopped();
        let left = disk.leave(ending, &mut self.random);
        self.shelf.put(&left, disk.struck().union(disk.lied()), end == End::Closed, &mut self.random);
    }

    /// Assembles the array, recovers it, and looks at all of it.
    fn open(&mut self, disk: &SimDisk, found: &Found, seen: &Seen) -> Result<Opened, Finding> {
        let generation = scenario::uuid(&mut self.random);
        let assembled = Assembled::new(disk.clone(), &found.verdict, &found.candidates, Access::ReadWrite, generation);
        let mut assembled = match assembled {
            Ok(assembled) => assembled,
            Err(error) => return self.broken(disk, error.to_string()),
        };
        if assembled.needs_recovery() {
            assembled = match assembled.recover(|_| {}) {
                Ok(assembled) => assembled,
                Err(error) => return self.broken(disk, error.to_string()),
            };
            self.report.recoveries += 1;
            self.trace.note(format_args!("recovered"));
        }
        let mut engine = assembled.into_engine().map_err(|error| Finding::Refused { error: error.to_string() })?;
        if self.silent.is_some() {
            let Some(healed) = self.heal(disk, engine)? else { return Ok(Opened::Broken) };
            engine = healed;
        }
        self.look(&disk.members(), found, engine.missing(), seen)?;
        if self.random.chance(1, 4) {
            self.read_without(&disk.members(), engine.missing())?;
        }
        Ok(Opened::Engine(Box::new(engine)))
    }

    /// Has the engine read the whole array, so that what members hold wrong is written back; none when the power goes.
    fn heal(&mut self, disk: &SimDisk, engine: Engine<SimDisk, u64>) -> Result<Option<Engine<SimDisk, u64>>, Finding> {
        let scenario = Scenario { cache: None, ..self.scenario.clone() };
        let (random, trace) = (self.aside.fork(), self.trace.clone());
        let mut client = Client::new(engine, disk.clone(), &scenario, &mut self.model, random, trace);
        let is_done = client.look()?;
        self.report.unreadable += client.unreadable;
        let engine = client.into_engine();
        if !is_done {
            return Ok(None);
        }
        let Scenario { geometry, superblocks, .. } = &self.scenario;
        let members = disk.members();
        let is_mirror = matches!(geometry.spec().level, Level::Raid1 | Level::Raid10 { .. });
        // Of copies one is read.
        if !is_mirror
            && disk.lied().union(disk.struck()).is_empty()
            && let Some(doubts) = Doubts::new(geometry, superblocks, &members)
            && let Some(lba) = doubts.unhealed(engine.missing())
        {
            return Err(Finding::NotHealed { lba });
        }
        Ok(Some(engine))
    }

    /// Has the engine read the whole array as the power cut has left it, without writing; what was seen.
    fn read_unwritten(&mut self, found: &Found) -> Result<Seen, Finding> {
        let Found { candidates, verdict, members } = found;
        let disk = SimDisk::new(members.clone(), self.aside.fork(), self.trace.clone());
        let is_logged = self.scenario.consistency() == Consistency::Log;
        if is_logged && self.aside.chance(1, 4) {
            // Parity can be relied on, so that members may fail meanwhile.
            let members = *self.aside.pick(&tolerated(&self.scenario.geometry, verdict.missing()));
            disk.set_faults(Faults { members, read_eio: Rate(1000), ..Faults::default() });
        }
        let generation = scenario::uuid(&mut self.aside);
        let array = match Assembled::new(disk.clone(), verdict, candidates, Access::ReadOnly, generation) {
            Ok(array) => array,
            Err(error) => return self.broken(&disk, error.to_string()).map(|_| Seen::new()),
        };
        let engine = array.into_engine().map_err(|error| Finding::Refused { error: error.to_string() })?;
        let mut model = self.model.clone();
        let scenario = Scenario { cache: None, ..self.scenario.clone() };
        let mut client =
            Client::new(engine, disk.clone(), &scenario, &mut model, self.aside.fork(), self.trace.clone());
        client.look()?;
        self.report.only_read += 1;
        self.report.unreadable += client.unreadable;
        let seen = std::mem::take(&mut client.seen);
        let after = disk.members();
        let is_same =
            |slot| after.get(slot).map(|member| member.current()) == members.get(slot).map(|member| member.current());
        if let Some(member) = members.present().iter().find(|&slot| !is_same(slot)) {
            return Err(Finding::Written { member });
        }
        // Without a log, recovery may choose another of the copies.
        Ok(if is_logged { seen } else { Seen::new() })
    }

    fn broken(&self, disk: &SimDisk, error: String) -> Result<Opened, Finding> {
        self.trace.note(format_args!("opening failed: {error}"));
        if disk.is_dark() || !disk.struck().is_empty() { Ok(Opened::Broken) } else { Err(Finding::Refused { error }) }
    }

    /// Holds the whole array against the model, and again without every set of members that it survives, and what was read before recovery.
    fn look(&mut self, members: &Members, found: &Found, missing: MemberSet, seen: &Seen) -> Result<(), Finding> {
        let Scenario { geometry, superblocks, .. } = &self.scenario;
        let members = members.only(geometry.all_members().minus(missing));
        let area =
            |slot: usize| found.verdict.slots[slot].map(|index| found.candidates[index].superblock.areas.data.offset);
        let area = |slot| area(slot).unwrap_or_default();
        let doubts = self.silent.and_then(|_| Doubts::new(geometry, superblocks, &members));
        let piece = if doubts.is_some() { BLOCK } else { geometry.chunk() };
        let is_sound = |slot, sector| doubts.is_none_or(|doubts| doubts.is_sound(slot, sector));
        let audit = Audit::new(geometry, &members, area, piece, is_sound);
        audit.check_parity().map_err(Finding::Parity)?;
        for lost in tolerated(geometry, missing) {
            let content = audit.content(lost).ok_or(Finding::Undecodable { lost })?;
            for (lba, bytes) in content.iter().filter_map(|piece| Some((piece.lba, piece.bytes.as_ref()?))) {
                self.model.observe(lba, bytes).map_err(|wrong| Finding::WrongContent { lost, wrong })?;
                if !seen.is_empty() && !is_as_seen(seen, lba, bytes) {
                    return Err(Finding::ReadOtherwise { lba });
                }
            }
        }
        Ok(())
    }

    /// Has the engine read the whole array from copies of the members, of which some more are missing.
    fn read_without(&mut self, members: &Members, missing: MemberSet) -> Result<(), Finding> {
        let geometry = &self.scenario.geometry;
        let lost = *self.random.pick(&tolerated(geometry, missing));
        let members = members.only(geometry.all_members().minus(missing).minus(lost));
        if Repair::new(geometry, missing.union(lost)).is_err() {
            return Ok(());
        }
        let candidates = members.candidates();
        let refused = |error: String| Finding::Refused { error };
        let verdict = judge(&candidates).map_err(|error| refused(error.to_string()))?;
        let trace = Trace::default();
        let disk = SimDisk::new(members, self.random.fork(), trace.clone());
        let generation = scenario::uuid(&mut self.random);
        let array = Assembled::new(disk.clone(), &verdict, &candidates, Access::ReadOnly, generation);
        let engine = array.map_err(|error| refused(error.to_string()))?.into_engine();
        let engine = engine.map_err(|error| refused(error.to_string()))?;
        let mut model = self.model.clone();
        let scenario = Scenario { cache: None, ..self.scenario.clone() };
        Client::new(engine, disk, &scenario, &mut model, self.random.fork(), trace).look()?;
        Ok(())
    }

    /// Who may fail in this life, and how; now and then more members than the level survives.
    fn draw_faults(&mut self, missing: MemberSet) -> Faults {
        let is_harsh = self.is_harsh;
        let random = &mut self.random;
        let geometry = &self.scenario.geometry;
        let mut faults = Faults::default();
        if random.chance(1, 4) {
            faults.cannot_zero = geometry.all_members().iter().filter(|_| random.chance(1, 2)).collect();
        }
        if self.corrupts {
            let rate = Rate(200);
            return Faults { members: geometry.all_members(), lost: rate, misdirected: rate, flipped: rate, ..faults };
        }
        if !is_harsh && random.chance(1, 2) {
            return faults;
        }
        faults.members = *random.pick(&tolerated(geometry, missing));
        if random.chance(1, 20) {
            faults.members = geometry.all_members().iter().filter(|_| random.chance(1, 2)).collect();
        }
        let mut rate =
            || Rate(if random.chance(1, 3) { u32::try_from(random.within(1, 500)).expect("small") } else { 0 });
        (faults.read_eio, faults.write_eio, faults.flush_eio) = (rate(), rate(), rate());
        (faults.no_space, faults.short, faults.slow) = (rate(), rate(), rate());
        (faults.vanish, faults.hang) = (rate(), Rate(rate().0 / 20));
        faults
    }

    /// The same with what corrupts silently, where something does. A member does not fail otherwise then, nor any where a failed write leaves
    /// nothing known of what a block holds: a block is not checked if its checksum can't be read, or is not known.
    fn draw_all_faults(&mut self, missing: MemberSet) -> Faults {
        let mut faults = self.draw_faults(missing);
        if let Some(silent) = self.silent {
            let random = &mut self.aside;
            let mut rate =
                || Rate(if random.chance(1, 2) { u32::try_from(random.within(1, 3000)).expect("small") } else { 0 });
            faults.silent = Some(Silent { lost: rate(), misdirected: rate(), flipped: rate(), ..silent });
            faults.members = faults.members.minus(silent.content).minus(silent.tables);
            if self.scenario.geometry.tolerance() == 0 {
                faults.members = MemberSet::EMPTY;
            }
        }
        faults
    }
}

/// Which members of an array corrupt what; mostly as many as the level survives.
fn draw_silent(scenario: &Scenario, random: &mut Random) -> Silent {
    let Scenario { geometry, superblocks, .. } = scenario;
    let any = |random: &mut Random| geometry.all_members().iter().filter(|_| random.chance(1, 2)).collect();
    let sets: Vec<MemberSet> =
        tolerated(geometry, MemberSet::EMPTY).into_iter().filter(|set| !set.is_empty()).collect();
    let all = if sets.is_empty() || random.chance(1, 3) { any(random) } else { *random.pick(&sets) };
    let tables: MemberSet = all.iter().filter(|_| random.chance(1, 4)).collect();
    let areas = areas_in_use(&superblocks[0].areas, geometry);
    Silent { content: all.minus(tables), tables, areas, lost: Rate(0), misdirected: Rate(0), flipped: Rate(0) }
}

/// The areas as far as the array uses them: a stray write is to hit something.
pub(crate) fn areas_in_use(areas: &Areas, geometry: &Geometry) -> Areas {
    let used = geometry.used_sectors().bytes();
    Areas { data: Area { size: used, ..areas.data }, ..*areas }
}

/// Whether content is what was read before.
fn is_as_seen(seen: &Seen, lba: Lba, bytes: &[u8]) -> bool {
    (lba.0..).zip(bytes.chunks(512)).all(|(lba, sector)| {
        let Some((first, buf)) = seen.range(..=Lba(lba)).next_back() else { return true };
        let at = usize::try_from(lba - first.0).map_or(usize::MAX, |index| index.saturating_mul(512));
        buf.as_ref().get(at..at.saturating_add(512)).is_none_or(|before| before == sector)
    })
}

#[cfg(test)]
mod tests;
