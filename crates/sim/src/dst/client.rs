//! The engine's client: commands at random, and every reply held against the model.

use std::collections::BTreeMap;
use std::time::Duration;

use uraid_io::buf::{Buf, Pool};
use uraid_io::cache::TICK;
use uraid_io::disk::Disk as _;
use uraid_io::engine::{Command, Deadlines, Engine, EngineError, Reply};
use uraid_io::format::BLOCK;
use uraid_io::format::superblock::{Integrity, Superblock};
use uraid_layout::repair::Repair;
use uraid_layout::{Bytes, Lba, MemberIndex, MemberSet, Sectors};
use uuid::Uuid;

use super::Finding;
use super::administer::Administrator;
use super::doubts::Doubts;
use super::model::{Model, Moment, Pending};
use super::scenario::Scenario;
use crate::disk::{Nanos, SimDisk, Steps};
use crate::trace::Trace;
use uraid_random::Random;

/// Commands under way at most.
const DEPTH_MAX: u64 = 16;

/// Turns without an end of anything after which the engine is stuck.
const IDLE_TURNS_MAX: u32 = 10_000;

/// Longer than any operation takes that ends.
const SLOWEST: Duration = Duration::from_secs(40);

/// How a client's time ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The array was closed.
    Closed,
    /// Everything was replied to; nothing is under way.
    Idle,
    /// The power went, or the members hang.
    Dark,
}

/// What a command's reply will mean.
#[derive(Debug)]
pub(super) enum Submitted {
    Read {
        lba: Lba,
        len: Sectors,
        begun: Moment,
    },
    /// A read of what a power cut has left.
    Look {
        lba: Lba,
        len: Sectors,
    },
    Write {
        lba: Lba,
        len: Sectors,
        pending: Option<Pending>,
        fua: bool,
    },
    Flush {
        begun: Moment,
    },
    Close {
        begun: Moment,
    },
    /// That a member is given up.
    Fail {
        slot: MemberIndex,
        /// It is right to refuse it.
        may_refuse: bool,
    },
    /// That a member is copied to another.
    Copy {
        slot: MemberIndex,
    },
    /// That a member is taken in, in the place of another.
    Join {
        slot: MemberIndex,
        before: Uuid,
        lingers: Lingers,
    },
}

/// Whether operations are under way on a member that were given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lingers {
    No,
    /// They have ended; the engine may not know yet.
    NoMore,
    /// They may still end before the engine decides.
    Yes,
}

pub(super) struct Client<'a> {
    pub(super) engine: Engine<SimDisk, u64>,
    pub(super) disk: SimDisk,
    /// Who the members in the slots are, and where things are on them.
    pub(super) superblocks: Vec<Superblock>,
    pub(super) administrator: Option<&'a mut Administrator>,
    /// A member is being given up or taken in.
    pub(super) is_changing: bool,
    /// Members that were exchanged failed operations.
    pub(super) has_struck: bool,
    pool: Pool,
    model: &'a mut Model,
    random: Random,
    trace: Trace,
    submitted: BTreeMap<u64, Submitted>,
    next: u64,
    depth: usize,
    /// What its commands are multiples of, in sectors.
    block: u64,
    /// Where this client likes to write.
    hot: Lba,
    is_closed: bool,
    pub(super) reads: u64,
    /// Commands that failed as members hold something else than was written there.
    pub(super) unreadable: u64,
    /// What looks have shown.
    pub(super) seen: BTreeMap<Lba, Buf>,
    /// Looks that failed.
    blind: Vec<(Lba, Sectors)>,
    /// Corruptions so far, and whether something could not be written meanwhile as too much was corrupted in one place.
    lies: Option<u64>,
    was_lost: bool,
    /// With deadlines: when the engine's clock goes on.
    next_tick: Nanos,
    /// When something was last done on a member, and how much had been by then.
    last_change: Nanos,
    last_steps: Steps,
}

impl<'a> Client<'a> {
    pub(super) fn new(
        engine: Engine<SimDisk, u64>,
        disk: SimDisk,
        scenario: &'a Scenario,
        model: &'a mut Model,
        mut random: Random,
        trace: Trace,
    ) -> Self {
        let size = scenario.cache.map_or(Bytes(0), |(_, size)| size);
        let pool = Pool::new(Bytes(size.0 + (4 << 20)));
        let mut engine = engine;
        if let Some((mode, size)) = scenario.cache {
            engine = engine.with_cache(mode, pool.clone(), size);
            if scenario.reads_ahead {
                engine = engine.with_read_ahead(Bytes(64 << 10));
            }
        }
        let depth = usize::try_from(random.within(1, DEPTH_MAX)).expect("a small number");
        let hot = Lba(random.below(model.capacity().0));
        let now = disk.now();
        Self {
            engine,
            disk,
            superblocks: scenario.superblocks.clone(),
            administrator: None,
            is_changing: false,
            has_struck: false,
            pool,
            model,
            random,
            trace,
            submitted: BTreeMap::new(),
            next: 0,
            depth,
            block: if scenario.superblocks[0].integrity == Integrity::None { 1 } else { BLOCK.0 },
            hot,
            is_closed: false,
            reads: 0,
            unreadable: 0,
            seen: BTreeMap::new(),
            blind: Vec::new(),
            lies: None,
            was_lost: false,
            next_tick: now,
            last_change: now,
            last_steps: Steps(0),
        }
    }

    /// Sends so many commands, and waits for all replies; then closes the array, if so wanted.
    pub(super) fn run(&mut self, commands: u64, closes: bool) -> Result<End, Finding> {
        for _ in 0..commands {
            if self.submitted.len() < self.depth {
                let (submitted, command) = self.draw();
                self.submit(submitted, command);
            }
            self.administer()?;
            if self.random.chance(1, 32) {
                self.tick();
            }
            let is_going = match self.random.below(4) {
                0 => true,
                1 => self.turn()?,
                _ => self.turn()? && self.wait()?,
            };
            if !is_going {
                return Ok(End::Dark);
            }
        }
        if !self.finish()? {
            return Ok(End::Dark);
        }
        self.check_scrub()?;
        if !closes {
            return Ok(End::Idle);
        }
        let begun = self.model.now();
        self.submit(Submitted::Close { begun }, Command::Close);
        if !self.finish()? {
            return Ok(End::Dark);
        }
        Ok(if self.is_closed { End::Closed } else { End::Idle })
    }

    /// Reads the whole array as a power cut has left it, what can't be read block by block; false when the power goes.
    pub(super) fn look(&mut self) -> Result<bool, Finding> {
        let (capacity, step) = (self.model.capacity().0, 128);
        for lba in (0..capacity).step_by(step) {
            let len = Sectors((capacity - lba).min(step as u64));
            if !self.look_at(Lba(lba), len)? {
                return Ok(false);
            }
            for (lba, len) in std::mem::take(&mut self.blind) {
                for block in (lba.0..lba.0 + len.0).step_by(8).filter(|_| len > BLOCK) {
                    if !self.look_at(Lba(block), BLOCK)? {
                        return Ok(false);
                    }
                }
            }
            self.blind.clear();
        }
        Ok(true)
    }

    fn look_at(&mut self, lba: Lba, len: Sectors) -> Result<bool, Finding> {
        let buf = self.buf(len);
        self.submit(Submitted::Look { lba, len }, Command::Read { lba, buf });
        self.finish()
    }

    /// Writes zeros everywhere, as a new array is made, and closes it.
    pub(super) fn zero(&mut self) -> Result<End, Finding> {
        let len = self.model.capacity();
        let zeros = Command::WriteZeroes { lba: Lba(0), len, fua: false, may_punch: false };
        let pending = Some(self.model.begin(Lba(0), len, true));
        self.submit(Submitted::Write { lba: Lba(0), len, pending, fua: false }, zeros);
        self.run(0, true)
    }

    /// Lets somebody change and check the array while this client goes on.
    pub(super) fn administered_by(self, administrator: Option<&'a mut Administrator>) -> Self {
        Self { administrator, ..self }
    }

    /// The engine, with nothing under way.
    pub(super) fn into_engine(self) -> Engine<SimDisk, u64> {
        self.engine
    }

    /// Waits for every reply; false when the power goes.
    pub(super) fn finish(&mut self) -> Result<bool, Finding> {
        let mut idle = 0;
        while self.turn()? {
            if self.submitted.is_empty() && self.engine.in_flight() == 0 {
                return Ok(true);
            }
            if !self.wait()? {
                return Ok(false);
            }
            idle = if self.disk_is_idle() { idle + 1 } else { 0 };
            if idle > IDLE_TURNS_MAX {
                return Err(Finding::Stuck { commands: self.submitted.len() });
            }
        }
        Ok(false)
    }

    fn disk_is_idle(&self) -> bool {
        self.disk.in_flight() == 0
    }

    pub(super) fn wait(&mut self) -> Result<bool, Finding> {
        if self.engine.wants_turn() || self.disk_is_idle() {
            return Ok(true);
        }
        let waited = if self.engine.deadlines() == Deadlines::default() {
            self.disk.wait()
        } else {
            let time = self.next_tick.0.saturating_sub(self.disk.now().0);
            let waited = self.disk.wait_at_most(Duration::from_nanos(time));
            if self.disk.now() >= self.next_tick {
                self.tick();
            }
            if !self.is_patient()? {
                return Ok(false);
            }
            waited
        };
        match waited {
            Ok(()) => Ok(true),
            Err(_) if self.disk.is_dark() => Ok(false),
            Err(error) => Err(Finding::Refused { error: error.to_string() }),
        }
    }

    /// Lets the engine's clock go on: with deadlines when as much time has passed for the members.
    pub(super) fn tick(&mut self) {
        if self.engine.deadlines() != Deadlines::default() {
            self.disk.sleep_until(self.next_tick);
            self.next_tick.0 += u64::try_from(TICK.as_nanos()).expect("a short time");
        }
        self.engine.tick();
    }

    /// Looks whether anything still ends where members hang; false when the array rightly waits for them.
    fn is_patient(&mut self) -> Result<bool, Finding> {
        let steps = self.disk.steps();
        if std::mem::replace(&mut self.last_steps, steps) != steps {
            self.last_change = self.disk.now();
        }
        let deadlines = self.engine.deadlines();
        let longest = deadlines.read.into_iter().chain(deadlines.write).max().unwrap_or_default();
        let most = u64::try_from((4 * longest + SLOWEST).as_nanos()).expect("minutes");
        if self.disk.now().0 - self.last_change.0 < most {
            return Ok(true);
        }
        if self.submitted.is_empty() && self.engine.in_flight() == 0 {
            return Ok(true);
        }
        let slots = self.engine.geometry().members();
        let hung: MemberSet = self.disk.hung().iter().filter(|slot| slot.index() < slots).collect();
        let survives = Repair::new(self.engine.geometry(), self.failed().union(hung)).is_ok();
        if deadlines.write.is_some() && survives && self.engine.geometry().tolerance() > 0 {
            return Err(Finding::Waits { members: hung });
        }
        self.disk.cut();
        Ok(false)
    }

    /// The members that are not there, have failed something, or do not have all of their content.
    pub(super) fn failed(&self) -> MemberSet {
        let rebuilding = self.engine.rebuilding().map_or(MemberSet::EMPTY, |progress| progress.members);
        let struck = self.disk.struck().iter().filter(|slot| slot.index() < self.engine.geometry().members());
        self.engine.missing().union(rebuilding).union(struck.collect())
    }

    /// Notes whether too much is corrupted in one place.
    fn note_lies(&mut self) {
        if self.lies.replace(self.disk.lies()) != Some(self.disk.lies()) {
            let (geometry, members) = (self.engine.geometry(), self.disk.members());
            let doubts = Doubts::new(geometry, &self.superblocks, &members);
            let failed = self.failed();
            self.was_lost |= doubts.is_some_and(|doubts| doubts.excuse_write(failed, Lba(0), geometry.capacity()));
        }
    }

    /// A turn of the engine; false when the power goes.
    pub(super) fn turn(&mut self) -> Result<bool, Finding> {
        self.note_lies();
        let mut replies = Vec::new();
        let turned = self.engine.turn(&mut replies);
        self.note_copy();
        for reply in replies {
            self.replied(reply)?;
        }
        if self.submitted.is_empty() {
            self.model.settle();
        }
        match turned {
            Ok(()) => Ok(true),
            Err(_) if self.disk.is_dark() => Ok(false),
            Err(error) => Err(Finding::Refused { error: error.to_string() }),
        }
    }

    pub(super) fn submit(&mut self, submitted: Submitted, command: Command) {
        let token = self.next;
        self.next += 1;
        let name = match &command {
            Command::Read { lba, buf } => format!("read {lba}+{}", buf.len() / 512),
            Command::Write { lba, buf, fua } => format!("write {lba}+{} fua {fua}", buf.len() / 512),
            Command::WriteZeroes { lba, len, fua, .. } => format!("zeroes {lba}+{len} fua {fua}"),
            Command::Trim { lba, len, fua } => format!("trim {lba}+{len} fua {fua}"),
            Command::Join(joining) => format!("join {}, whole {}", joining.superblock.slot, joining.is_whole),
            Command::Replace(joining) => format!("replace {}", joining.superblock.slot),
            other => format!("{other:?}"),
        };
        let number =
            if let Submitted::Write { pending: Some(pending), .. } = &submitted { pending.number.0 } else { 0 };
        self.trace.note(format_args!("command {token}: {name} (write {number})"));
        self.submitted.insert(token, submitted);
        self.engine.submit(token, command);
    }

    fn replied(&mut self, Reply { token, result }: Reply<u64>) -> Result<(), Finding> {
        let submitted = self.submitted.remove(&token).ok_or(Finding::RepliedTwice { token })?;
        let buf = match result {
            Ok(buf) => buf,
            Err(error) => {
                self.trace.note(format_args!("command {token} failed: {error}"));
                return self.excuse(token, &submitted, &error);
            }
        };
        self.trace.note(format_args!("command {token} done"));
        match submitted {
            Submitted::Look { lba, .. } => {
                let buf = buf.ok_or(Finding::RepliedTwice { token })?;
                self.reads += buf.len() as u64 / 512;
                self.model.check_left(lba, buf.as_ref()).map_err(Finding::WrongRead)?;
                self.seen.insert(lba, buf);
            }
            Submitted::Read { lba, begun, .. } => {
                let buf = buf.ok_or(Finding::RepliedTwice { token })?;
                self.reads += buf.len() as u64 / 512;
                self.model.check(lba, buf.as_ref(), begun).map_err(Finding::WrongRead)?;
            }
            Submitted::Write { pending: Some(pending), fua, .. } => self.model.replied(pending, fua),
            Submitted::Write { pending: None, .. } => {}
            Submitted::Flush { begun } => self.model.flushed(begun),
            Submitted::Close { begun } => {
                self.model.flushed(begun);
                self.is_closed = true;
            }
            Submitted::Fail { slot, .. } => self.failed_as_asked(slot),
            Submitted::Copy { .. } => self.is_changing = false,
            Submitted::Join { slot, lingers: Lingers::Yes, .. } if self.disk.has_abandoned(slot) => {
                return Err(Finding::Lingering { slot });
            }
            Submitted::Join { slot, before, .. } => self.joined(slot, before),
        }
        Ok(())
    }

    /// A command may fail only when more members failed than the level survives, or hold something else than was
    /// written in one place.
    fn excuse(&mut self, token: u64, submitted: &Submitted, error: &EngineError) -> Result<(), Finding> {
        let failed = self.failed();
        let is_refused = match *submitted {
            Submitted::Fail { may_refuse, .. }
                if matches!(error, EngineError::Needed { .. } | EngineError::NotThere { .. }) =>
            {
                may_refuse
            }
            Submitted::Join { lingers: Lingers::Yes | Lingers::NoMore, .. }
                if matches!(error, EngineError::Lingering { .. }) =>
            {
                true
            }
            // It has failed, too, or was too late.
            Submitted::Join { slot, .. } => {
                let late = super::given_up_late(&self.disk, Some(self.engine.deadlines()));
                self.disk.struck().union(self.disk.lied()).union(late).contains(slot)
            }
            Submitted::Copy { slot } => failed.union(self.disk.lied()).contains(slot),
            _ => false,
        };
        if let Submitted::Join { slot, .. } = *submitted {
            self.not_joined(slot);
        }
        self.is_changing &=
            !matches!(submitted, Submitted::Fail { .. } | Submitted::Join { .. } | Submitted::Copy { .. });
        let geometry = self.engine.geometry();
        let is_too_much = |failed| Repair::new(geometry, failed).is_err();
        if let Submitted::Look { lba, len } = *submitted {
            self.blind.push((lba, len));
        }
        // A member that does not give back what is written to heal it fails, which may be one more than the level
        // survives.
        let is_frozen = matches!(error, EngineError::Frozen) && is_too_much(failed.union(self.disk.lied()));
        if is_too_much(failed) || is_frozen || is_refused {
            return Ok(());
        }
        let members = self.disk.members();
        let doubts = Doubts::new(geometry, &self.superblocks, &members);
        let is_excused = doubts.is_some_and(|doubts| match *submitted {
            Submitted::Read { lba, len, .. } | Submitted::Look { lba, len } => doubts.excuse_read(failed, lba, len),
            Submitted::Write { lba, len, .. } => doubts.excuse_write(failed, lba, len),
            // What it is about may have been lost for a while only.
            Submitted::Flush { .. } | Submitted::Close { .. } => {
                self.was_lost || doubts.excuse_write(failed, Lba(0), geometry.capacity())
            }
            Submitted::Fail { .. } | Submitted::Join { .. } | Submitted::Copy { .. } => false,
        });
        self.unreadable += u64::from(is_excused);
        if is_excused { Ok(()) } else { Err(Finding::CommandFailed { token, error: error.to_string() }) }
    }

    fn draw(&mut self) -> (Submitted, Command) {
        let (lba, len) = self.range();
        let fua = self.random.chance(1, 8);
        match self.random.below(100) {
            0..=21 => self.read(lba, len),
            22..=83 => {
                let pending = self.model.begin(lba, len, false);
                let data = Model::data(pending);
                let mut buf = self.buf(len);
                buf.as_mut().copy_from_slice(&data);
                (Submitted::Write { lba, len, pending: Some(pending), fua }, Command::Write { lba, buf, fua })
            }
            84..=87 => {
                let pending = Some(self.model.begin(lba, len, true));
                let may_punch = self.random.chance(1, 2);
                (Submitted::Write { lba, len, pending, fua }, Command::WriteZeroes { lba, len, fua, may_punch })
            }
            88..=90 => {
                // Only whole stripes are given back; the rest stays as it is.
                let stripe = self.engine.geometry().stripe_sectors().0;
                let (first, end) = (lba.0.next_multiple_of(stripe), (lba.0 + len.0) / stripe * stripe);
                let pending = (first < end).then(|| self.model.begin(Lba(first), Sectors(end - first), true));
                (Submitted::Write { lba, len, pending, fua }, Command::Trim { lba, len, fua })
            }
            _ => (Submitted::Flush { begun: self.model.now() }, Command::Flush),
        }
    }

    fn read(&mut self, lba: Lba, len: Sectors) -> (Submitted, Command) {
        let buf = self.buf(len);
        (Submitted::Read { lba, len, begun: self.model.now() }, Command::Read { lba, buf })
    }

    fn range(&mut self) -> (Lba, Sectors) {
        let (capacity, random) = (self.model.capacity().0, &mut self.random);
        let (chunk, stripe) = (self.engine.geometry().chunk().0, self.engine.geometry().stripe_sectors().0);
        let len = match random.below(10) {
            0..=2 => random.within(1, 4),
            3..=5 => 8 * random.within(1, 3),
            6 => random.within(1, 2 * chunk),
            7 => chunk,
            8 => stripe,
            _ => random.within(1, 3 * stripe),
        };
        let len = len.min(capacity);
        let near = if random.chance(1, 2) { self.hot.0 + random.below(32) } else { random.below(capacity) };
        let align = *random.pick(&[1, 8, 8, chunk, stripe]);
        let start = (near / align * align).min(capacity - len);
        let end = (start + len).next_multiple_of(self.block);
        let start = start / self.block * self.block;
        (Lba(start), Sectors(end - start))
    }

    fn buf(&mut self, len: Sectors) -> Buf {
        self.engine.reclaim(len.bytes());
        self.pool.try_alloc(len.bytes()).unwrap_or_else(|| Buf::zeroed(len.bytes()))
    }
}
