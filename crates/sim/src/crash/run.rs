//! One run of a workload on the real engine, and what was on the members and promised to clients at each of its
//! boundaries.

use std::path::Path;
use std::rc::Rc;

use uraid_io::array::{Assembled, judge, returning};
use uraid_io::buf::{Buf, Pool};
use uraid_io::disk::Disk as _;
use uraid_io::engine::{CacheMode, Command, Engine, Joining, Reply};
use uraid_io::format::badblocks::BadBlocks;
use uraid_io::format::superblock::{Area, Integrity, LogIndex};
use uraid_io::member::Access;
use uraid_layout::{Bytes, Lba, MemberIndex, Sectors};
use uuid::Uuid;

use super::Finding;
use super::expect::Expect;
use super::shape::Shape;
use super::tape::{Event, Tape};
use super::workload::{After, Between, Cache, Change, ChangeKind, Op, Workload, least};
use crate::dst::model::{Model, Moment, Pending};
use crate::member::Payload;
use crate::members::Members;

/// The cache's size.
const CACHE: Bytes = Bytes(64 * 4096);

/// Turns after which an engine that has not replied never will.
const TURNS_MAX: u32 = 100_000;

/// Longer preludes write every sector twice.
const TWICE: u64 = 6;

/// The log's run while workloads run.
pub(super) const GENERATION: Uuid = Uuid::from_u128(0x7);

/// The one that begins with a change of who is there.
const GENERATION_OF_CHANGE: Uuid = Uuid::from_u128(0x9);

/// A moment at which the power may go.
#[derive(Debug)]
pub(super) struct Boundary {
    /// What has just happened.
    pub(super) event: Event,
    /// What is on the members.
    pub(super) members: Members,
    /// What must be found afterwards.
    pub(super) expect: Rc<Expect>,
}

struct Driver<'a> {
    shape: &'a Shape,
    engine: Engine<Tape, u64>,
    tape: Tape,
    pool: Pool,
    model: Model,
    expect: Rc<Expect>,
    submitted: Vec<(u64, Submitted)>,
    next: u64,
    boundaries: Vec<Boundary>,
}

enum Submitted {
    Write(Pending, bool),
    Flush(Moment),
    Change,
}

/// Runs a workload.
///
/// # Errors
/// When the array can't be opened, or a command fails.
pub(super) fn boundaries(shape: &Shape, workload: &Workload) -> Result<Vec<Boundary>, Finding> {
    let present = shape.geometry.all_members().minus(workload.missing);
    let copies = workload.change.is_some_and(|change| change.kind == ChangeKind::Copy);
    let seats = shape.members.len().max(shape.geometry.members() + usize::from(copies));
    let at = |seat: usize| MemberIndex(u8::try_from(seat).expect("members are few"));
    let present = present.union(shape.log_slots());
    let members = (0..seats).map(at).map(|slot| shape.members.get(slot).filter(|_| present.contains(slot)).cloned());
    let tape = Tape::new(Members::of(members.collect()), workload.order).with_logs(shape.log_slot(LogIndex(0)));
    let candidates = tape.members().candidates();
    let refused = |error: &dyn std::error::Error| Finding::Refused { error: error.to_string() };
    let verdict = judge(&candidates).map_err(|error| refused(&error))?;
    let array = Assembled::new(tape.clone(), &verdict, &candidates, Access::ReadWrite, GENERATION);
    let mut engine = array.map_err(|error| refused(&error))?.into_engine().map_err(|error| refused(&error))?;
    let pool = Pool::new(Bytes(2 * CACHE.0));
    match workload.cache {
        Cache::None => {}
        Cache::Through => engine = engine.with_cache(CacheMode::WriteThrough, &pool, CACHE),
        Cache::Back => engine = engine.with_cache(CacheMode::WriteBack, &pool, CACHE),
    }
    let model = shape.model.clone();
    let expect = Rc::new(Expect::new(shape, &model));
    let (submitted, boundaries) = (Vec::new(), Vec::new());
    let mut driver = Driver { shape, engine, tape, pool, model, expect, submitted, next: 0, boundaries };
    driver.run(workload)?;
    Ok(driver.boundaries)
}

impl Driver<'_> {
    fn run(&mut self, workload: &Workload) -> Result<(), Finding> {
        let one = least(self.shape);
        for number in 0..workload.prelude {
            let column = if workload.prelude > TWICE { number / 2 } else { number };
            // Of a chunk of blocks the second is the last.
            let lba = if one == Sectors(1) { Lba(2 + column) } else { Lba(one.0 * (1 + column % 2)) };
            self.write(lba, one, false);
            self.settle()?;
        }
        if workload.prelude > 0 {
            self.flush(Command::Flush);
            self.settle()?;
            self.model.settle();
        }
        self.learn();
        self.tape.record();
        workload.failing.into_iter().for_each(|failing| self.tape.fail(failing));
        if let Some(change) = workload.change.filter(|change| change.steps.is_some()) {
            self.change(change)?;
        }
        for (index, &op) in workload.ops.iter().enumerate() {
            if index > 0 {
                self.go_between(workload.between)?;
            }
            self.op(op);
        }
        self.settle()?;
        if let Some(change) = workload.change {
            if change.steps.is_none() {
                self.change(change)?;
            }
            self.end_change()?;
        }
        match workload.after {
            After::Nothing => {
                for _ in 0..TURNS_MAX {
                    if !self.engine.is_dirty() {
                        break;
                    }
                    self.engine.tick();
                    self.settle()?;
                }
            }
            After::Flush => self.flush(Command::Flush),
            After::Close => self.flush(Command::Close),
        }
        self.settle()
    }

    fn go_between(&mut self, between: Between) -> Result<(), Finding> {
        match between {
            Between::Beside => Ok(()),
            Between::Wait => self.settle(),
            Between::Midway => {
                self.turn()?;
                self.tape.wait().map_err(|error| Finding::Refused { error: error.to_string() })?;
                self.turn()
            }
            Between::Flush => {
                self.settle()?;
                self.flush(Command::Flush);
                self.settle()
            }
            Between::FlushBeside => {
                // The flush has something to cover when the first command was replied to.
                self.settle()?;
                self.flush(Command::Flush);
                Ok(())
            }
        }
    }

    /// Has a member come, and lets the members go on for some steps.
    fn change(&mut self, Change { kind, slot, steps }: Change) -> Result<(), Finding> {
        let truth = self.engine.superblock().clone();
        let generation = GENERATION_OF_CHANGE;
        let superblock = self.shape.new_superblock(&truth, slot);
        let new = || Joining { superblock, is_whole: true, generation, bad_blocks: BadBlocks::default() };
        let (seat, member, command) = match kind {
            ChangeKind::Join => (slot, self.shape.newcomer.clone(), Command::Join(Box::new(new()))),
            ChangeKind::Copy => {
                let seat = self.engine.seat().expect("a small array has room for one more");
                (seat, self.shape.newcomer.clone(), Command::Replace(Box::new(new())))
            }
            ChangeKind::Return => {
                // It is on record what the array has gone on without when something was written.
                self.flush(Command::Flush);
                self.settle()?;
                let truth = self.engine.superblock().clone();
                let mut member = self.shape.members.get(slot).expect("every slot has one").clone();
                let own = member.superblock().map_err(|source| Finding::NoSuperblock { member: slot, source })?;
                let joining = returning(Path::new("returning"), &own, member.bad_blocks(&own), &truth);
                let joining = joining.map_err(|error| Finding::CommandFailed { error: error.to_string() })?;
                if self.shape.integrity != Integrity::None {
                    // As the program does, for what is made anew.
                    let Area { offset, size } = own.areas.sums;
                    member.write(offset, Payload::Zeros(size));
                    member.flush();
                }
                (slot, member, Command::Join(Box::new(Joining { generation, ..joining })))
            }
        };
        self.tape.put(seat, member);
        self.submit(Submitted::Change, command);
        for _ in 0..steps.unwrap_or(0) {
            self.turn()?;
            self.tape.wait().map_err(|error| Finding::Refused { error: error.to_string() })?;
        }
        self.turn()
    }

    /// Lets time pass until the member that came has all of its content.
    fn end_change(&mut self) -> Result<(), Finding> {
        for _ in 0..TURNS_MAX {
            self.settle()?;
            if self.engine.rebuilding().is_none() && self.engine.replacement().is_none() {
                return Ok(());
            }
            self.engine.tick();
        }
        Err(Finding::Stuck)
    }

    fn op(&mut self, Op { kind, fua }: Op) {
        let (lba, len) = kind.range(self.shape);
        if !kind.is_zero() {
            return self.write(lba, len, fua);
        }
        let pending = self.model.begin(lba, len, true);
        self.submit(Submitted::Write(pending, fua), Command::WriteZeroes { lba, len, fua, may_punch: true });
    }

    fn write(&mut self, lba: Lba, len: Sectors, fua: bool) {
        let pending = self.model.begin(lba, len, false);
        let mut buf = self.pool.try_alloc(len.bytes()).unwrap_or_else(|| Buf::zeroed(len.bytes()));
        buf.as_mut().copy_from_slice(&Model::data(pending));
        self.submit(Submitted::Write(pending, fua), Command::Write { lba, buf, fua });
    }

    fn flush(&mut self, command: Command) {
        self.submit(Submitted::Flush(self.model.now()), command);
    }

    fn submit(&mut self, submitted: Submitted, command: Command) {
        self.learn();
        self.submitted.push((self.next, submitted));
        self.engine.submit(self.next, command);
        self.next += 1;
    }

    /// Runs until everything is replied to and nothing is under way.
    fn settle(&mut self) -> Result<(), Finding> {
        for _ in 0..TURNS_MAX {
            self.turn()?;
            let is_idle = self.engine.in_flight() == 0 && self.tape.in_flight() == 0 && !self.engine.has_replies();
            if self.submitted.is_empty() && is_idle && !self.engine.wants_turn() {
                return Ok(());
            }
            self.tape.wait().map_err(|error| Finding::Refused { error: error.to_string() })?;
        }
        Err(Finding::Stuck)
    }

    fn turn(&mut self) -> Result<(), Finding> {
        let mut replies = Vec::new();
        self.engine.turn(&mut replies).map_err(|error| Finding::Refused { error: error.to_string() })?;
        self.collect();
        let is_news = !replies.is_empty();
        for Reply { token, result } in replies {
            result.map_err(|error| Finding::CommandFailed { error: error.to_string() })?;
            let index = self.submitted.iter().position(|(submitted, _)| *submitted == token).ok_or(Finding::Stuck)?;
            match self.submitted.remove(index).1 {
                Submitted::Write(pending, fua) => self.model.replied(pending, fua),
                Submitted::Flush(begun) => self.model.flushed(begun),
                Submitted::Change => {}
            }
        }
        if is_news {
            self.learn();
            self.tape.note(Event::Replied);
            self.collect();
        }
        Ok(())
    }

    /// Takes over what the tape has, under what was promised by then.
    fn collect(&mut self) {
        let expect = &self.expect;
        let boundary = |(event, members)| Boundary { event, members, expect: Rc::clone(expect) };
        self.boundaries.extend(self.tape.take().into_iter().map(boundary));
    }

    /// Takes note of what must be found from now on.
    fn learn(&mut self) {
        self.collect();
        self.expect = Rc::new(Expect::new(self.shape, &self.model));
    }
}
