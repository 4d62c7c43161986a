//! The workload of a sweep: a few commands of every kind, some of them beside each other, and a look at everything.

use uraid_io::array::{Assembled, judge};
use uraid_io::buf::{Buf, Pool};
use uraid_io::disk::Disk as _;
use uraid_io::engine::{CacheMode, Command, Engine, EngineError, Reply};
use uraid_io::format::BLOCK;
use uraid_io::format::superblock::{Integrity, LogSet, Superblock};
use uraid_io::member::Access;
use uraid_layout::repair::Repair;
use uraid_layout::{Bytes, Lba, MemberSet, Sectors};
use uuid::Uuid;

use crate::crash::Finding;
use crate::crash::shape::Shape;
use crate::crash::workload::Cache;
use crate::disk::{Faults, Planned, Rate, Silent, SimDisk};
use crate::dst::areas_in_use;
use crate::dst::doubts::{Doubts, lists};
use crate::dst::model::{Model, Moment, Pending};
use crate::members::Members;
use crate::trace::Trace;
use uraid_random::Random;

/// The cache's size.
const CACHE: Bytes = Bytes(64 * 4096);

/// Turns after which an engine that has not replied never will.
const TURNS_MAX: u32 = 20_000;

#[derive(Clone, Copy)]
enum Step {
    Read(u64, u64),
    Write(u64, u64, bool),
    Zero(u64, u64),
    Flush,
    Close,
}

enum Submitted {
    Read(Lba, Sectors, Moment),
    Write(Pending, bool),
    Flush(Moment),
}

pub(super) struct Client<'a> {
    shape: &'a Shape,
    engine: Engine<SimDisk, u64>,
    disk: SimDisk,
    pool: Pool,
    model: Model,
    submitted: Vec<(u64, Submitted)>,
    next: u64,
    failed: u64,
    unreadable: u64,
    /// What commands are multiples of.
    unit: u64,
}

/// What a client's time came to.
pub(super) struct Ended {
    pub(super) members: Members,
    pub(super) model: Model,
    /// Members that some fault struck.
    pub(super) struck: MemberSet,
    /// The same of log devices.
    pub(super) struck_logs: LogSet,
    pub(super) lied: MemberSet,
    pub(super) failed: u64,
    pub(super) unreadable: u64,
    pub(super) repaired: u64,
    pub(super) is_hung: bool,
    pub(super) is_unopened: bool,
}

/// Whether the engine goes on.
#[derive(PartialEq, Eq)]
enum Going {
    On,
    Hung,
}

impl<'a> Client<'a> {
    /// Runs the workload with nothing failing; the members, to see what they were asked to do.
    pub(super) fn try_out(shape: &'a Shape, cache: Cache, closes: bool) -> Result<SimDisk, Finding> {
        let disk = disk(shape);
        let ended = Self::run_on(shape, cache, closes, &disk)?;
        assert!(ended.failed == 0 && !ended.is_hung && !ended.is_unopened, "nothing fails without a fault");
        Ok(disk)
    }

    /// Runs the workload with a fault.
    pub(super) fn run(shape: &'a Shape, cache: Cache, closes: bool, fault: Option<Planned>) -> Result<Ended, Finding> {
        let disk = disk(shape);
        fault.into_iter().for_each(|fault| disk.plan(fault));
        Self::run_on(shape, cache, closes, &disk)
    }

    fn run_on(shape: &'a Shape, cache: Cache, closes: bool, disk: &SimDisk) -> Result<Ended, Finding> {
        let mut ended = Ended {
            members: disk.members(),
            model: shape.model.clone(),
            struck: MemberSet::EMPTY,
            struck_logs: LogSet::EMPTY,
            lied: MemberSet::EMPTY,
            failed: 0,
            unreadable: 0,
            repaired: 0,
            is_hung: false,
            is_unopened: false,
        };
        if let Some(engine) = open(shape, disk)? {
            let (engine, pool) = with_cache(engine, cache);
            let (disk, model) = (disk.clone(), shape.model.clone());
            let unit = if shape.integrity == Integrity::None { 1 } else { BLOCK.0 };
            let (submitted, next, failed, unreadable) = (Vec::new(), 0, 0, 0);
            let mut client = Client { shape, engine, disk, pool, model, submitted, next, failed, unreadable, unit };
            ended.is_hung = client.work(closes)? == Going::Hung;
            ended.repaired = client.engine.counters().total().repaired;
            (ended.model, ended.failed, ended.unreadable) = (client.model, client.failed, client.unreadable);
        } else {
            ended.is_unopened = true;
        }
        (ended.members, ended.lied) = (disk.members(), disk.lied());
        (ended.struck, ended.struck_logs) = (disk.struck(), disk.struck_logs());
        ended.model.stopped();
        Ok(ended)
    }

    fn work(&mut self, closes: bool) -> Result<Going, Finding> {
        let geometry = &self.shape.geometry;
        let [chunk, stripe, capacity] =
            [geometry.chunk(), geometry.stripe_sectors(), geometry.capacity()].map(|len| len.0 / self.unit);
        let all = Step::Read(0, capacity);
        let batches: [&[Step]; 9] = [
            &[Step::Write(0, 1, false), Step::Write(stripe, 1, false), Step::Read(1, 2)],
            &[Step::Flush],
            &[Step::Write(chunk - 1, 2, true), Step::Read(stripe, 1)],
            &[Step::Write(0, stripe, false)],
            &[Step::Zero(2, 1), Step::Flush],
            &[all],
            &[Step::Write(stripe + 1, 1, true), Step::Write(0, 1, false)],
            &[Step::Flush],
            &[all],
        ];
        for batch in batches.into_iter().chain([[Step::Close].as_slice()].into_iter().filter(|_| closes)) {
            for &step in batch {
                // RAID 1 has one unit in a stripe.
                if let Step::Write(lba, len, _) = step
                    && lba + len > capacity
                {
                    continue;
                }
                self.step(step);
            }
            if self.settle()? == Going::Hung {
                return Ok(Going::Hung);
            }
        }
        Ok(Going::On)
    }

    fn step(&mut self, step: Step) {
        let (submitted, command) = match step {
            Step::Read(lba, len) => {
                let (lba, len) = (Lba(lba * self.unit), Sectors(len * self.unit));
                (Submitted::Read(lba, len, self.model.now()), Command::Read { lba, buf: Buf::zeroed(len.bytes()) })
            }
            Step::Write(lba, len, fua) => {
                let (lba, len) = (Lba(lba * self.unit), Sectors(len * self.unit));
                let pending = self.model.begin(lba, len, false);
                let mut buf = self.pool.try_alloc(len.bytes()).unwrap_or_else(|| Buf::zeroed(len.bytes()));
                buf.as_mut().copy_from_slice(&Model::data(pending));
                (Submitted::Write(pending, fua), Command::Write { lba, buf, fua })
            }
            Step::Zero(lba, len) => {
                let (lba, len) = (Lba(lba * self.unit), Sectors(len * self.unit));
                let pending = self.model.begin(lba, len, true);
                (Submitted::Write(pending, false), Command::WriteZeroes { lba, len, fua: false, may_punch: false })
            }
            Step::Flush => (Submitted::Flush(self.model.now()), Command::Flush),
            Step::Close => (Submitted::Flush(self.model.now()), Command::Close),
        };
        self.submitted.push((self.next, submitted));
        self.engine.submit(self.next, command);
        self.next += 1;
    }

    /// Runs until everything is replied to and nothing is under way.
    fn settle(&mut self) -> Result<Going, Finding> {
        for _ in 0..TURNS_MAX {
            let mut replies = Vec::new();
            let turned = self.engine.turn(&mut replies);
            for reply in replies {
                self.replied(reply)?;
            }
            if let Err(error) = turned {
                return self.broken(&error);
            }
            let is_idle = self.engine.in_flight() == 0 && self.disk.in_flight() == 0 && !self.engine.has_replies();
            if self.submitted.is_empty() && is_idle && !self.engine.wants_turn() {
                self.model.settle();
                return Ok(Going::On);
            }
            if self.disk.in_flight() > 0
                && let Err(error) = self.disk.wait()
            {
                return self.broken(&error);
            }
        }
        Err(Finding::Stuck)
    }

    /// A command may fail only when more members did than the level survives, or hold something else than was written
    /// in one place.
    fn excuse(&mut self, submitted: &Submitted, error: &EngineError) -> Result<(), Finding> {
        let Shape { geometry, members, .. } = self.shape;
        let failed = self.engine.missing().union(self.disk.struck());
        let superblocks: Vec<Superblock> =
            members.superblocks().filter_map(|(_, superblock)| superblock.ok()).collect();
        let now = self.disk.members();
        let lists = lists(&self.engine);
        let parts = [(geometry.clone(), 0..geometry.capacity().0)];
        let is_excused = Doubts::new(&parts, &superblocks, &now, &lists).is_some_and(|doubts| match *submitted {
            Submitted::Read(lba, len, _) => doubts.excuse_read(failed, lba, len),
            Submitted::Write(Pending { lba, len, .. }, _) => doubts.excuse_write(failed, lba, len),
            Submitted::Flush(_) => doubts.excuse_write(failed, Lba(0), geometry.capacity()),
        });
        self.unreadable += u64::from(is_excused);
        let is_too_much = Repair::new(geometry, failed).is_err();
        if is_too_much || is_excused { Ok(()) } else { Err(Finding::CommandFailed { error: error.to_string() }) }
    }

    fn broken(&self, error: &dyn std::error::Error) -> Result<Going, Finding> {
        if self.disk.has_hung() { Ok(Going::Hung) } else { Err(Finding::Refused { error: error.to_string() }) }
    }

    fn replied(&mut self, Reply { token, result }: Reply<u64>) -> Result<(), Finding> {
        let index = self.submitted.iter().position(|(submitted, _)| *submitted == token).ok_or(Finding::Stuck)?;
        let submitted = self.submitted.remove(index).1;
        let buf = match result {
            Ok(buf) => buf,
            Err(error) => {
                self.failed += 1;
                return self.excuse(&submitted, &error);
            }
        };
        match submitted {
            Submitted::Read(lba, _, begun) => {
                let buf = buf.ok_or(Finding::Stuck)?;
                self.model.check(lba, buf.as_ref(), begun).map_err(Finding::Content)?;
            }
            Submitted::Write(pending, fua) => self.model.replied(pending, fua),
            Submitted::Flush(begun) => self.model.flushed(begun),
        }
        Ok(())
    }
}

/// The array's members, of which any may be corrupted where checksums tell.
fn disk(shape: &Shape) -> SimDisk {
    let disk = SimDisk::new(shape.apart(), Random::new(1), Trace::default());
    let (all, none) = (shape.geometry.all_members(), Rate(0));
    let areas = areas_in_use(&shape.areas, &shape.geometry);
    let silent = Silent { content: all, tables: all, areas, lost: none, misdirected: none, flipped: none };
    let silent = (shape.integrity == Integrity::Crc32).then_some(silent);
    disk.set_faults(Faults { silent, ..Faults::default() });
    disk
}

/// The array's engine; none when a member fails meanwhile.
fn open(shape: &Shape, disk: &SimDisk) -> Result<Option<Engine<SimDisk, u64>>, Finding> {
    let candidates = shape.members.candidates();
    let refused = |error: &dyn std::error::Error| Finding::Refused { error: error.to_string() };
    let verdict = judge(&candidates).map_err(|error| refused(&error))?;
    let generation = Uuid::from_u128(0x9);
    match Assembled::new(disk.clone(), &verdict, &candidates, Access::ReadWrite, generation) {
        Ok(array) => array.into_engine().map(Some).map_err(|error| refused(&error)),
        // A log device that fails is done without; one that hangs has no deadline here.
        Err(_) if !disk.struck().is_empty() || disk.has_hung() => Ok(None),
        Err(error) => Err(refused(&error)),
    }
}

fn with_cache(engine: Engine<SimDisk, u64>, cache: Cache) -> (Engine<SimDisk, u64>, Pool) {
    let pool = Pool::new(Bytes(2 * CACHE.0));
    let engine = match cache {
        Cache::None => engine,
        Cache::Through => engine.with_cache(CacheMode::WriteThrough, &pool, CACHE),
        Cache::Back => engine.with_cache(CacheMode::WriteBack, &pool, CACHE),
    };
    (engine, pool)
}
