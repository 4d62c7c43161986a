//! The array of a run: what it is, what its sectors may hold, and how it is opened from what its members hold, with
//! recovery and a look at all of it.
//!
//! It knows nothing of what becomes of the members between two lives, or of who changes them.

use std::collections::BTreeMap;
use std::ops::Range;

use uraid_io::array::{Assembled, RecoverError, Verdict, judge, recover};
use uraid_io::buf::Buf;
use uraid_io::engine::Engine;
use uraid_io::format::BLOCK;
use uraid_io::format::badblocks::{BadBlocks, Lack};
use uraid_io::format::log::replay::ReplayError;
use uraid_io::format::superblock::{Consistency, SlotState, Superblock};
use uraid_io::member::Access;
use uraid_layout::repair::Repair;
use uraid_layout::reshape::Course;
use uraid_layout::{DiskSector, Geometry, Lba, Location, MemberIndex, MemberSet, SECTOR_BYTES, Sectors, StripeId};

use super::audit::{Audit, tolerated};
use super::blank;
use super::client::Client;
use super::doubts::{Doubts, Part, lists, parts};
use super::faults::{draw_silent, may_fail};
use super::finding::Finding;
use super::found::Found;
use super::logs::{active, note_lost};
use super::model::Model;
use super::report::Counts;
use super::rot::RottenLog;
use super::scenario::{self, Scenario};
use super::session::settle_superblocks;
use super::shapes::{survive, survived, tolerance};
use crate::disk::{Faults, Rate, Silent, SimDisk};
use crate::members::Members;
use crate::trace::Trace;
use uraid_random::Random;

/// What was read of an array before it was recovered.
pub(super) type Seen = BTreeMap<Lba, Buf>;

/// See the module.
pub(super) struct Array {
    pub(super) scenario: Scenario,
    /// The way to another shape, while it is being reshaped. The scenario's shape is the one that it had, and its
    /// superblocks are those of both.
    pub(super) course: Option<Course>,
    /// What it may have grown to when its last life was cut off.
    pub(super) larger: Option<Geometry>,
    /// How many slots it may have: its last life was cut off when it began to get another shape, and whether it has is
    /// not known.
    pub(super) undecided: Option<usize>,
    pub(super) model: Model,
    /// Which members corrupt what, where there are checksums.
    pub(super) silent: Option<Silent>,
    /// Whose log has rotted since it was begun anew, and whether that has kept the array from being opened.
    pub(super) rotten_log: Option<RottenLog>,
    pub(super) is_refused: bool,
    /// Whether so much has gone wrong at once that members may lack something.
    pub(super) may_lack: bool,
    /// What has happened on opening it: recoveries, reads before one, and commands that rightly failed.
    pub(super) counts: Counts,
    trace: Trace,
}

/// An array that is open, or what stands in the way.
pub(super) enum Opened {
    Engine(Box<Engine<SimDisk, u64>>),
    /// The power went, or a member failed.
    Broken,
}

/// Opens members of an array with checksums that corrupted something, recovers it, reads all of it and then the
/// members, and holds it against the model; members of `excused` may be set aside. Whether it had to be recovered.
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
    let silent = Some(draw_silent(scenario, &mut Random::new(1)));
    let mut array = Array { model: model.clone(), ..Array::new(scenario.clone(), silent, Trace::default()) };
    let mut random = Random::new(1);
    let mut aside = random.clone().fork();
    match array.open(&disk, &found, &Seen::new(), &mut random, &mut aside)? {
        Opened::Engine(_) => Ok(array.counts.recoveries > 0),
        Opened::Broken => Err(Finding::Refused { error: "it breaks though nothing fails".into() }),
    }
}

impl Array {
    /// A new array.
    pub(super) fn new(scenario: Scenario, silent: Option<Silent>, trace: Trace) -> Self {
        let model = Model::new(scenario.geometry.capacity());
        let counts = Counts::default();
        Self {
            scenario,
            course: None,
            larger: None,
            undecided: None,
            model,
            silent,
            rotten_log: None,
            is_refused: false,
            may_lack: false,
            counts,
            trace,
        }
    }

    /// Assembles the array, recovers it, and looks at all of it. What only arrays with checksums meet is drawn from
    /// `aside`.
    pub(super) fn open(
        &mut self,
        disk: &SimDisk,
        found: &Found,
        seen: &Seen,
        random: &mut Random,
        aside: &mut Random,
    ) -> Result<Opened, Finding> {
        let accepted = found.verdict.slots.iter().flatten().map(|&index| &found.candidates[index].superblock);
        accepted.for_each(|own| self.scenario.superblocks[own.slot.index()] = own.clone());
        let generation = scenario::uuid(random);
        let assembled = Assembled::new(disk.clone(), &found.verdict, &found.candidates, Access::ReadWrite, generation);
        let mut assembled = match assembled {
            Ok(assembled) => assembled,
            Err(error) => return self.broken(disk, &found.verdict, &error),
        };
        if assembled.needs_recovery() {
            assembled = match recover(assembled, |_| {}) {
                Ok(assembled) => assembled,
                Err(error) => return self.broken(disk, &found.verdict, &error),
            };
            self.counts.recoveries += 1;
            self.trace.note(format_args!("recovered"));
        }
        self.rotten_log = None;
        let mut engine = assembled.into_engine().map_err(|error| Finding::Refused { error: error.to_string() })?;
        self.take_shape(&engine)?;
        self.may_lack |= self.is_torn(&engine);
        if self.silent.is_some() {
            let Some(healed) = self.heal(disk, engine, aside)? else { return Ok(Opened::Broken) };
            engine = healed;
        }
        // Who is given up while the log is replayed takes part no more in what was not committed: it counts then.
        let nothing = Seen::new();
        let has_all = engine.missing() == found.verdict.missing() && disk.struck_logs().is_empty();
        let seen = if has_all { seen } else { &nothing };
        self.note_faults(disk);
        self.look(&disk.members(), &engine, seen)?;
        if random.chance(1, 4) && self.course.is_none() {
            self.read_without(&disk.members(), &engine, random)?;
        }
        Ok(Opened::Engine(Box::new(engine)))
    }

    /// The shapes that it has: one, or while it is being reshaped two.
    pub(super) fn shapes(&self) -> Vec<Geometry> {
        match &self.course {
            Some(course) => vec![course.from().clone(), course.to().clone()],
            None => vec![self.scenario.geometry.clone()],
        }
    }

    /// The one that uses most of each member.
    pub(super) fn largest(&self) -> Geometry {
        self.shapes().into_iter().max_by_key(Geometry::used_sectors).expect("an array has a shape")
    }

    /// How many slots it has, of both shapes while it is being reshaped.
    pub(super) fn slots(&self) -> usize {
        self.scenario.superblocks.len()
    }

    /// Takes note of the shape that the array has when a reshape is over, one of the two that it had; or of its size.
    ///
    /// # Errors
    /// When it is another one.
    pub(super) fn take_shape(&mut self, engine: &Engine<SimDisk, u64>) -> Result<(), Finding> {
        let now = engine.geometry();
        let course = self.course.take_if(|_| engine.reshape().is_none());
        // It may grow in the life in which the reshape ends.
        let larger = self.larger.take_if(|larger| larger.spec() == now.spec());
        let mut outcomes = course.iter().flat_map(|course| [course.from(), course.to()]).chain(&larger).peekable();
        if outcomes.peek().is_none() {
            return Ok(());
        }
        if !outcomes.clone().any(|shape| shape.spec() == now.spec()) {
            let expected = outcomes.map(|shape| format!("{:?}", shape.spec())).collect::<Vec<_>>().join(", or ");
            return Err(Finding::Shape { found: format!("{:?}", now.spec()), expected });
        }
        self.scenario.geometry = now.clone();
        settle_superblocks(&mut self.scenario.superblocks, engine);
        self.model.resize(now.capacity());
        Ok(())
    }

    /// Whether all that members lack is of parity stripes that were being written when the array stopped, without a
    /// member: the log may have had only the sums of them.
    fn is_torn(&self, engine: &Engine<SimDisk, u64>) -> bool {
        let geometry = engine.geometry();
        if self.scenario.consistency() != Consistency::Log || lost(engine).is_empty() {
            return false;
        }
        let len = geometry.stripe_sectors().0;
        let is_open = |stripe: StripeId| self.model.is_open_within(stripe.0 * len..(stripe.0 + 1) * len);
        let lists = lists(engine);
        let mut lacking = (0..).map(MemberIndex).zip(&lists).flat_map(|(member, list)| {
            let sectors = list.all(Lack::Absent).flat_map(|run| run.start.0..run.end.0);
            sectors.map(move |sector| Location { member, sector: DiskSector(sector) })
        });
        lacking.all(|at| geometry.cell_at(at).is_some_and(|(stripe, ..)| is_open(stripe)))
    }

    /// Takes note of what has gone wrong with members.
    pub(super) fn note_faults(&mut self, disk: &SimDisk) {
        self.may_lack |= disk.lies() > 0 || !disk.struck().is_empty();
    }

    /// Has the engine read the whole array, so that what members hold wrong is written back; none when the power goes,
    /// or when it is frozen in the middle of a window that was saved: the next start has that. What was read stays.
    fn heal(
        &mut self,
        disk: &SimDisk,
        engine: Engine<SimDisk, u64>,
        aside: &mut Random,
    ) -> Result<Option<Engine<SimDisk, u64>>, Finding> {
        let scenario = Scenario { cache: None, ..self.scenario.clone() };
        let (random, trace) = (aside.fork(), self.trace.clone());
        let lost = lost(&engine);
        let mut client = Client::new(engine, disk.clone(), &scenario, &mut self.model, random, trace);
        let repaired = |client: &Client<'_>| client.session.engine.counters().total().repaired;
        let (mut before, mut last) = ((0, 0), u64::MAX);
        let is_done = loop {
            let is_done = client.look()?;
            // What can't be had, or written back, may be there when what was read after it is healed.
            let (failed, healed) = (client.session.unreadable - before.0, repaired(&client) - before.1);
            let is_better = failed > 0 && failed < last || failed == 0 && healed > 0 && disk.lied().is_empty();
            if !is_done || !is_better {
                break is_done;
            }
            (before, last) = ((client.session.unreadable, repaired(&client)), failed);
        };
        self.counts.unreadable += client.session.unreadable;
        let seen = std::mem::take(&mut client.session.seen);
        let engine = client.session.engine;
        let is_in_window = engine.superblock().reshape.is_some_and(|reshape| reshape.saved > Sectors(0));
        if !is_done || engine.is_frozen() && is_in_window {
            return Ok(None);
        }
        // Of blocks without a checksum that agrees the members do not show what counts; the array is recovered, and
        // does.
        seen.iter().try_for_each(|(&lba, buf)| self.model.observe(lba, buf.as_ref())).map_err(Finding::WrongRead)?;
        let superblocks = &self.scenario.superblocks;
        let (members, parts) = (disk.members(), parts(engine.geometry(), &engine.superblock()));
        let is_mirror = parts.iter().any(|(geometry, _)| geometry.spec().level.is_mirrored());
        // Of copies one is read, and what came from the journal was in memory.
        if !is_mirror
            && engine.dirty().is_empty()
            && disk.lied().union(disk.struck()).is_empty()
            && let Some(doubts) = Doubts::new(&parts, superblocks, &members, &lists(&engine))
            && let Some(lba) = doubts.unhealed(lost)
        {
            return Err(Finding::NotHealed { lba });
        }
        Ok(Some(engine))
    }

    /// Has the engine read the whole array as the power cut has left it, without writing; what was seen.
    pub(super) fn read_unwritten(&mut self, found: &Found, aside: &mut Random) -> Result<Seen, Finding> {
        let Found { candidates, verdict, members } = found;
        let disk = SimDisk::new(members.clone(), aside.fork(), self.trace.clone());
        let is_logged = self.scenario.consistency() == Consistency::Log;
        if is_logged && aside.chance(1, 4) {
            // Parity can be relied on, so that members may fail meanwhile.
            let members = *aside.pick(&tolerated(&self.scenario.geometry, verdict.lost()));
            let members = may_fail(self.silent, members);
            disk.set_faults(Faults { members, read_eio: Rate(1000), ..Faults::default() });
        }
        let generation = scenario::uuid(aside);
        let array = match Assembled::new(disk.clone(), verdict, candidates, Access::ReadOnly, generation) {
            Ok(array) => array,
            Err(error) => return self.broken(&disk, verdict, &error).map(|_| Seen::new()),
        };
        // What nobody can know without a member, whether a write that was not answered is there, the next start may see
        // otherwise.
        let is_same_later = is_logged && array.losses().is_empty();
        let engine = array.into_engine().map_err(|error| Finding::Refused { error: error.to_string() })?;
        let lacks = lists(&engine).iter().any(|list| !list.is_empty());
        if lacks && !self.may_lack && disk.struck().is_empty() && !self.is_torn(&engine) {
            return Err(Finding::LossUnfounded);
        }
        let mut model = self.model.clone();
        let scenario = Scenario { cache: None, ..self.scenario.clone() };
        let mut client = Client::new(engine, disk.clone(), &scenario, &mut model, aside.fork(), self.trace.clone());
        client.look()?;
        self.counts.only_read += 1;
        self.counts.unreadable += client.session.unreadable;
        let seen = std::mem::take(&mut client.session.seen);
        let after = disk.members();
        let is_same =
            |slot| after.get(slot).map(|member| member.current()) == members.get(slot).map(|member| member.current());
        if let Some(member) = members.present().iter().find(|&slot| !is_same(slot)) {
            return Err(Finding::Written { member });
        }
        // Without a log, recovery may choose another of the copies.
        Ok(if is_same_later { seen } else { Seen::new() })
    }

    /// Opening may fail when the power goes, when a log has rotted, or when more members fail than the level survives
    /// beside those that are lost.
    fn broken(&mut self, disk: &SimDisk, verdict: &Verdict, error: &RecoverError) -> Result<Opened, Finding> {
        self.trace.note(format_args!("opening failed: {error}"));
        if let RecoverError::Log(ReplayError::Lost { member, .. }) = error
            && self.rotten_log.is_some_and(|rotten| rotten.member == *member && !rotten.has_copy)
        {
            self.is_refused = true;
            return Ok(Opened::Broken);
        }
        let lost = verdict.lost().union(disk.struck());
        let logs = active(&verdict.superblock).minus(verdict.lost_logs);
        let is_logless = verdict.superblock.logs.is_some() && logs.minus(disk.struck_logs()).is_empty();
        let is_rightful = disk.is_dark() || is_logless || !survive(&self.shapes(), lost);
        if is_rightful { Ok(Opened::Broken) } else { Err(Finding::Refused { error: error.to_string() }) }
    }

    /// Holds the whole array against the model, and again without every set of members that it survives, and what was
    /// read before recovery.
    pub(super) fn look(
        &mut self,
        members: &Members,
        engine: &Engine<SimDisk, u64>,
        seen: &Seen,
    ) -> Result<(), Finding> {
        let all = MemberSet::all(self.slots());
        let members = members.only(all.minus(engine.missing()));
        let lists = lists(engine);
        if !self.may_lack && lists.iter().any(|list| !list.is_empty()) {
            return Err(Finding::LossUnfounded);
        }
        let truth = engine.superblock().clone();
        let sets = survived(&self.shapes(), lost(engine));
        let parts = parts(&self.scenario.geometry, &truth);
        let dirty = engine.dirty();
        parts.iter().try_for_each(|(geometry, content)| {
            let said = Said { truth: &truth, lists: &lists, sets: &sets, dirty: &dirty };
            self.look_at(geometry, content.clone(), &members, &said, seen)
        })
    }

    /// The same of the content that is in one shape.
    fn look_at(
        &mut self,
        geometry: &Geometry,
        content: Range<u64>,
        members: &Members,
        &Said { truth, lists, sets, dirty }: &Said<'_>,
        seen: &Seen,
    ) -> Result<(), Finding> {
        let superblocks = &self.scenario.superblocks;
        // What is being rebuilt counts as far as that is on record.
        let is_made = |slot: MemberIndex, stripe: StripeId| match truth.slots[slot.index()].state {
            SlotState::Rebuilding { upto, .. } => stripe < upto,
            SlotState::Active | SlotState::Failed => true,
        };
        let area = |slot: usize| superblocks[slot].areas.data.offset;
        let parts: [Part; 1] = [(geometry.clone(), content.clone())];
        let doubts = Doubts::new(&parts, superblocks, members, lists);
        let piece = if doubts.is_some() { BLOCK } else { geometry.chunk() };
        let len = geometry.stripe_sectors().0;
        let is_in = |stripe: StripeId| content.contains(&(stripe.0 * len));
        // Stripes whose content is in the other shape hold anything.
        let is_its = |slot: MemberIndex, sector: DiskSector| {
            geometry.cell_at(Location { member: slot, sector }).is_none_or(|(stripe, ..)| is_in(stripe))
        };
        let is_sound = |slot, sector| is_its(slot, sector) && doubts.is_none_or(|doubts| doubts.is_sound(slot, sector));
        let made = blank::made(truth, geometry, members);
        let is_blank = |stripe| blank::is_blank(made.as_ref(), stripe);
        let audit = Audit::new(geometry, members, area, piece, is_made, is_sound, is_blank);
        audit.check_parity().map_err(Finding::Parity)?;
        // Without redundancy nothing makes up for a write or a flush that was said to have failed: what it has left is
        // as it is found, and may be gone with the power.
        let is_settled = tolerance(&self.shapes()) > 0 || members.iter().all(|(_, member)| !member.has_doubts());
        for &lost in sets {
            let pieces = audit.content(lost).ok_or(Finding::Undecodable { lost })?;
            let pieces = pieces.iter().filter(|piece| content.contains(&piece.lba.0));
            for (lba, bytes) in pieces.filter_map(|piece| Some((piece.lba, piece.bytes.as_ref()?))) {
                // The last piece of what is kept may be longer than that.
                let left = usize::try_from(Sectors(content.end - lba.0).bytes().0).expect("a simulated array is small");
                let mut bytes = bytes[..left.min(bytes.len())].to_vec();
                // What the journal had is the array's, though no member has it in place.
                dirty.iter().for_each(|(at, newer)| put_over(&mut bytes, lba, *at, newer));
                let bytes = &bytes[..];
                let held = if is_settled { self.model.observe(lba, bytes) } else { self.model.check_left(lba, bytes) };
                held.map_err(|wrong| Finding::WrongContent { lost, wrong })?;
                if !seen.is_empty() && !is_as_seen(seen, lba, bytes) {
                    return Err(Finding::ReadOtherwise { lba });
                }
            }
        }
        Ok(())
    }

    /// Has the engine read the whole array from copies of the members, of which some more are missing.
    fn read_without(
        &self,
        members: &Members,
        engine: &Engine<SimDisk, u64>,
        random: &mut Random,
    ) -> Result<(), Finding> {
        let (geometry, lost) = (&self.scenario.geometry, lost(engine));
        let out = *random.pick(&tolerated(geometry, lost));
        let members = members.only(geometry.all_members().minus(engine.missing()).minus(out));
        if Repair::new(geometry, lost.union(out)).is_err() {
            return Ok(());
        }
        let candidates = members.candidates();
        let refused = |error: String| Finding::Refused { error };
        let mut verdict = judge(&candidates).map_err(|error| refused(error.to_string()))?;
        note_lost(&mut verdict, &members);
        let trace = Trace::default();
        let disk = SimDisk::new(members, random.fork(), trace.clone());
        let generation = scenario::uuid(random);
        let array = Assembled::new(disk.clone(), &verdict, &candidates, Access::ReadOnly, generation);
        let engine = array.map_err(|error| refused(error.to_string()))?.into_engine();
        let engine = engine.map_err(|error| refused(error.to_string()))?;
        let mut model = self.model.clone();
        let scenario = Scenario { cache: None, ..self.scenario.clone() };
        Client::new(engine, disk, &scenario, &mut model, random.fork(), trace).look()?;
        Ok(())
    }
}

/// The members that are not there, or do not have all of their content.
fn lost(engine: &Engine<SimDisk, u64>) -> MemberSet {
    engine.missing().union(engine.rebuilding().map_or(MemberSet::EMPTY, |progress| progress.members))
}

/// Whether content is what was read before.
fn is_as_seen(seen: &Seen, lba: Lba, bytes: &[u8]) -> bool {
    (lba.0..).zip(bytes.chunks(512)).all(|(lba, sector)| {
        let Some((first, buf)) = seen.range(..=Lba(lba)).next_back() else { return true };
        let at = usize::try_from(lba - first.0).map_or(usize::MAX, |index| index.saturating_mul(512));
        buf.as_ref().get(at..at.saturating_add(512)).is_none_or(|before| before == sector)
    })
}

/// What an engine says of its array, which is held against the members.
struct Said<'a> {
    truth: &'a Superblock,
    lists: &'a [BadBlocks],
    /// Whose loss the array survives.
    sets: &'a [MemberSet],
    /// What only the journal has.
    dirty: &'a [(Lba, Vec<u8>)],
}

/// Puts what is `newer`, from `at` on, over bytes from `lba` on.
fn put_over(bytes: &mut [u8], lba: Lba, at: Lba, newer: &[u8]) {
    let sectors = |bytes: &[u8]| bytes.len() as u64 / SECTOR_BYTES;
    let (start, end) = (lba.0.max(at.0), (lba.0 + sectors(bytes)).min(at.0 + sectors(newer)));
    if start < end {
        let size =
            |from: u64, to: u64| usize::try_from((to - from) * SECTOR_BYTES).expect("a simulated array is small");
        bytes[size(lba.0, start)..size(lba.0, end)].copy_from_slice(&newer[size(at.0, start)..size(at.0, end)]);
    }
}
