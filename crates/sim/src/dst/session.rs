//! A running engine over simulated members: commands, and every reply held against the model; time, and how long it may
//! take.
//!
//! It knows who the members in the slots are, but not who sends commands, and why. Whoever changes members is told how
//! that ended: see [`Answer`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use uraid_io::buf::{Buf, Pool};
use uraid_io::cache::TICK;
use uraid_io::disk::Disk as _;
use uraid_io::engine::{CacheMode, Command, Deadlines, Engine, EngineError, Reply, Status};
use uraid_io::format::BLOCK;
use uraid_io::format::superblock::{LogSet, Superblock};
use uraid_layout::reshape::{Course, Pace, Window};
use uraid_layout::{Bytes, Geometry, Lba, MemberIndex, MemberSet, Sectors, StripeId};
use uuid::Uuid;

use super::doubts::{Doubts, Part, column, lists, parts};
use super::finding::Finding;
use super::model::{Model, Moment, Pending};
use super::scenario::Scenario;
use super::shapes::{survive, tolerance};
use crate::disk::{Nanos, SimDisk, Steps};
use crate::image::SECTOR;
use crate::member::Member;
use crate::trace::Trace;
use uraid_random::Random;

/// Longer than any operation takes that ends.
const SLOWEST: Duration = Duration::from_secs(40);

/// How far ahead an engine reads.
pub(super) const READ_AHEAD: Bytes = Bytes(64 << 10);

/// What a command's reply will mean.
#[derive(Debug)]
pub(super) enum Submitted {
    Read {
        lba: Lba,
        len: Sectors,
        begun: Moment,
    },
    /// A read of what the engine says is zeros, with nothing else under way.
    Zeros {
        lba: Lba,
        len: Sectors,
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
    Change(Change),
}

/// A change of the array's members.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// That a member is given up.
    Fail {
        slot: MemberIndex,
        /// It is right to refuse it.
        may_refuse: bool,
    },
    /// That a member is copied to another.
    Copy { slot: MemberIndex },
    /// That a member is taken in, in the place of another.
    Join { slot: MemberIndex, before: Uuid, lingers: Lingers },
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

/// How a change ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) change: Change,
    /// It was done; otherwise it was rightly not.
    pub(super) is_done: bool,
}

/// See the module.
pub(super) struct Session<'a> {
    pub(super) engine: Engine<SimDisk, u64>,
    pub(super) disk: SimDisk,
    /// Who the members in the slots are, and where things are on them.
    pub(super) superblocks: Vec<Superblock>,
    pub(super) model: &'a mut Model,
    /// Whether a command to close the array has succeeded.
    pub(super) is_closed: bool,
    /// Sectors that were read.
    pub(super) reads: u64,
    /// Commands that failed as members hold something else than was written there.
    pub(super) unreadable: u64,
    /// Members failed operations that are not with the array any more.
    pub(super) was_struck: bool,
    /// Members that may have been given up though they were in time.
    hurried: MemberSet,
    /// What looks have shown.
    pub(super) seen: BTreeMap<Lba, Buf>,
    /// Looks that failed.
    pub(super) blind: Vec<(Lba, Sectors)>,
    /// What the array becomes if it grows in this life.
    pub(super) larger: Option<Geometry>,
    /// The way to another shape that it has begun to go in this life.
    pub(super) begun: Option<Course>,
    /// How many slots it may have when the next start shows whether it has begun to.
    pub(super) undecided: Option<usize>,
    /// How the engine caches, and whether it reads ahead.
    pub(super) cache: Option<(CacheMode, Bytes)>,
    pub(super) reads_ahead: bool,
    pub(super) pool: Pool,
    pub(super) trace: Trace,
    submitted: BTreeMap<u64, Submitted>,
    next: u64,
    /// Corruptions so far, and whether something could not be written meanwhile as too much was corrupted in one place.
    lies: Option<u64>,
    was_lost: bool,
    /// The columns that could not be had at some time.
    lost: BTreeSet<(usize, StripeId, Sectors)>,
    /// With deadlines: when the engine's clock goes on.
    next_tick: Nanos,
    /// When something was last done on a member, and how much had been by then.
    last_change: Nanos,
    last_steps: Steps,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        mut engine: Engine<SimDisk, u64>,
        disk: SimDisk,
        scenario: &Scenario,
        model: &'a mut Model,
        trace: Trace,
    ) -> Self {
        let size = scenario.cache.map_or(Bytes(0), |(_, size)| size);
        let pool = Pool::new(Bytes(size.0 + (4 << 20)));
        if let Some((mode, size)) = scenario.cache {
            engine = engine.with_cache(mode, &pool, size);
            if scenario.reads_ahead {
                engine.install_read_ahead(READ_AHEAD);
            }
        }
        let now = disk.now();
        Self {
            engine,
            disk,
            superblocks: scenario.superblocks.clone(),
            larger: None,
            begun: None,
            undecided: None,
            cache: scenario.cache,
            reads_ahead: scenario.reads_ahead,
            model,
            is_closed: false,
            reads: 0,
            unreadable: 0,
            was_struck: false,
            hurried: MemberSet::EMPTY,
            seen: BTreeMap::new(),
            blind: Vec::new(),
            pool,
            trace,
            submitted: BTreeMap::new(),
            next: 0,
            lies: None,
            was_lost: false,
            lost: BTreeSet::new(),
            next_tick: now,
            last_change: now,
            last_steps: Steps(0),
        }
    }

    /// Commands without a reply.
    pub(super) fn pending(&self) -> usize {
        self.submitted.len()
    }

    /// Whether every command was replied to, and nothing is under way.
    pub(super) fn is_over(&self) -> bool {
        self.submitted.is_empty() && self.engine.in_flight() == 0 && !self.engine.wants_turn()
    }

    pub(super) fn disk_is_idle(&self) -> bool {
        self.disk.in_flight() == 0
    }

    /// Waits for the members, if the engine has nothing to do before they end something; false when the power goes.
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
        self.goes_on(waited)
    }

    /// Lets the engine's clock go on: with deadlines when as much time has passed for the members.
    pub(super) fn tick(&mut self) {
        if self.engine.deadlines() != Deadlines::default() {
            self.disk.sleep_until(self.next_tick);
            self.next_tick.0 += u64::try_from(TICK.as_nanos()).expect("a short time");
        }
        self.engine.tick();
    }

    /// Lets so many ticks pass in which nobody takes in what members end: these may be given up though they were in
    /// time.
    pub(super) fn stall(&mut self, ticks: usize) {
        let busy = self.engine.slots().iter().filter(|&slot| self.disk.is_busy(slot));
        self.hurried = self.hurried.union(busy.collect());
        self.disk.note_logs_late();
        (0..ticks).for_each(|_| self.tick());
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
        if self.disk.now().0 - self.last_change.0 < most || self.is_over() {
            return Ok(true);
        }
        let (slots, shapes) = (self.engine.slots(), self.shapes());
        let hung: MemberSet = self.disk.hung().iter().filter(|&slot| slots.contains(slot)).collect();
        let logs = self.disk.hung_logs();
        // A log device is given up whatever the level is, as long as there is another one.
        let is_logs = hung.is_empty() && !logs.is_empty();
        let survives = survive(&shapes, self.failed().union(hung)) && (tolerance(&shapes) > 0 || is_logs);
        if deadlines.write.is_some() && survives && self.has_log_beside(logs) {
            return Err(Finding::Waits { members: hung, logs });
        }
        self.disk.cut();
        Ok(false)
    }

    /// Whether a log device is left beside these and all that have failed something, where the log is on such devices.
    fn has_log_beside(&self, lost: LogSet) -> bool {
        let truth = self.engine.superblock();
        // Who is missing may not be on record as failed yet.
        let failed = self.disk.struck_logs().union(lost).union(self.engine.troubles().failed_logs);
        truth.logs.as_ref().is_none_or(|logs| !logs.active().minus(failed).is_empty())
    }

    /// The shapes that the array has: one, or while it is being reshaped two.
    pub(super) fn shapes(&self) -> Vec<Geometry> {
        if self.engine.reshape().is_none() {
            return vec![self.engine.geometry().clone()];
        }
        self.engine.superblock().shapes()
    }

    /// Its parts, each with the addresses of its content.
    fn parts(&self) -> Vec<Part> {
        parts(self.engine.geometry(), &self.engine.superblock())
    }

    /// Whether some content can't be had that a reshape is to move next, as little of it as can move at once, or is in
    /// memory and can't be written out before.
    pub(super) fn lacks_next(&self) -> bool {
        let truth = self.engine.superblock();
        let Some((course, reshape)) = truth.course().zip(truth.reshape) else { return false };
        let unit = course.unit();
        let next = course.next(reshape.mark, course.heading(reshape.is_back), Pace { plain: unit, saved: unit });
        let (parts, members, lists) = (self.parts(), self.disk.members(), lists(&self.engine));
        let doubts = Doubts::new(&parts, &self.superblocks, &members, &lists);
        let Some((Window { content, .. }, doubts)) = next.zip(doubts) else { return false };
        let (failed, len) = (self.failed(), Sectors(content.end.0 - content.start.0));
        let is_within = |range: Range<Lba>| range.start < content.end && content.start < range.end;
        let is_dirty = self.engine.unwritten().is_some_and(|unwritten| unwritten.ranges().any(is_within));
        // What lists say is lost moves as that, unless more would be lost by it, beside members that are missing.
        let known = self.engine.lost();
        let is_known = |lba: u64| known.iter().any(|range| range.start.0 <= lba && lba + BLOCK.0 <= range.end.0);
        let blocks = (content.start.0..content.end.0).step_by(8);
        let lacks_other = |lba: u64| doubts.excuse_read(failed, Lba(lba), BLOCK) && !is_known(lba);
        !failed.is_empty() && doubts.excuse_read(failed, content.start, len)
            || blocks.into_iter().any(lacks_other)
            || is_dirty && doubts.excuse_write(failed, content.start, len)
    }

    /// Takes a member of the array out that is needed no more. Others may lack what it failed to give, though whoever
    /// comes after it has failed nothing.
    pub(super) fn take_out(&mut self, slot: MemberIndex) -> Option<Member> {
        self.was_struck |= self.disk.struck().contains(slot);
        self.disk.put(slot, None)
    }

    /// The members that are not there, have failed something, or do not have all of their content.
    pub(super) fn failed(&self) -> MemberSet {
        let rebuilding = self.engine.rebuilding().map_or(MemberSet::EMPTY, |progress| progress.members);
        let struck = self.disk.struck().iter().filter(|&slot| self.engine.slots().contains(slot));
        self.engine.missing().union(rebuilding).union(struck.collect())
    }

    /// Notes whether too much is corrupted in one place.
    fn note_lies(&mut self) {
        if self.lies.replace(self.disk.lies()) != Some(self.disk.lies()) {
            let (parts, members, lists) = (self.parts(), self.disk.members(), lists(&self.engine));
            let doubts = Doubts::new(&parts, &self.superblocks, &members, &lists);
            let failed = self.failed();
            self.was_lost |= doubts.is_some_and(|doubts| doubts.lacks_any(failed));
        }
    }

    /// Notes which columns can't be had now: a command that was begun by then may fail though they can be later.
    fn note_lost(&mut self) {
        let (members, lists) = (self.disk.members(), lists(&self.engine));
        let may_lack = lists.iter().any(|list| !list.is_empty()) || members.iter().any(|(_, one)| one.is_spoilt());
        if !may_lack || self.superblocks.len() < self.engine.geometry().members() {
            return;
        }
        let parts = self.parts();
        let Some(doubts) = Doubts::new(&parts, &self.superblocks, &members, &lists) else { return };
        self.lost.extend(doubts.lost(self.failed()).filter_map(|lba| column(&parts, lba)));
        self.was_lost |= !self.lost.is_empty();
    }

    /// Begins a turn of the engine: the replies are to be [taken in](Self::replied), and the result ends the turn.
    pub(super) fn begin_turn(&mut self) -> (Vec<Reply<u64>>, Result<(), EngineError>) {
        self.note_lies();
        let mut replies = Vec::new();
        let turned = self.engine.turn(&mut replies);
        (replies, turned)
    }

    /// Ends a turn of the engine; false when the power goes.
    pub(super) fn end_turn(&mut self, turned: Result<(), EngineError>) -> Result<bool, Finding> {
        if self.submitted.is_empty() {
            self.model.settle();
        }
        self.goes_on(turned)
    }

    /// Whether the power is on; what else is wrong must not be.
    fn goes_on(&self, result: Result<(), impl ToString>) -> Result<bool, Finding> {
        match result {
            Ok(()) => Ok(true),
            Err(_) if self.disk.is_dark() => Ok(false),
            Err(error) => Err(Finding::Refused { error: error.to_string() }),
        }
    }

    pub(super) fn submit(&mut self, submitted: Submitted, command: Command) {
        self.note_lost();
        let token = self.next;
        self.next += 1;
        let name = match &command {
            Command::Read { lba, buf } => format!("read {lba}+{}", buf.len() / 512),
            Command::Write { lba, buf, fua } => format!("write {lba}+{} fua {fua}", buf.len() / 512),
            Command::WriteZeroes { lba, len, fua, may_punch } => {
                format!("zeroes {lba}+{len} fua {fua} punch {may_punch}")
            }
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

    /// Takes a reply in. One to a change of members is an answer to whoever wanted it.
    pub(super) fn replied(&mut self, Reply { token, result }: Reply<u64>) -> Result<Option<Answer>, Finding> {
        let submitted = self.submitted.remove(&token).ok_or(Finding::RepliedTwice { token })?;
        let buf = match result {
            Ok(buf) => buf,
            Err(error) => {
                self.trace.note(format_args!("command {token} failed: {error}"));
                if let (EngineError::Journaled { .. }, Submitted::Close { begun }) = (&error, &submitted) {
                    self.model.flushed(*begun);
                }
                self.excuse(token, &submitted, &error)?;
                return Ok(match submitted {
                    Submitted::Change(change) => Some(Answer { change, is_done: false }),
                    _ => None,
                });
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
            Submitted::Zeros { lba, .. } => {
                let buf = buf.ok_or(Finding::RepliedTwice { token })?;
                if let Some(at) = buf.as_ref().iter().position(|&byte| byte != 0) {
                    let at = at / SECTOR;
                    let sector = buf.as_ref()[at * SECTOR..].first_chunk().expect("a read is whole sectors");
                    return Err(Finding::NotZeros(self.model.wrong(Lba(lba.0 + at as u64), sector)));
                }
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
            Submitted::Change(Change::Join { slot, lingers: Lingers::Yes, .. }) if self.disk.has_abandoned(slot) => {
                return Err(Finding::Lingering { slot });
            }
            Submitted::Change(change) => return Ok(Some(Answer { change, is_done: true })),
        }
        Ok(None)
    }

    /// A command may fail only when more members failed than the level survives, or hold something else than was
    /// written in one place.
    fn excuse(&mut self, token: u64, submitted: &Submitted, error: &EngineError) -> Result<(), Finding> {
        let failed = self.failed();
        if let Submitted::Look { lba, len } = *submitted {
            self.blind.push((lba, len));
        }
        if !self.has_log_beside(late_logs(&self.disk, self.engine.deadlines())) {
            return Ok(());
        }
        let is_too_much = |failed| !survive(&self.shapes(), failed);
        // A member that does not give back what is written to heal it fails, which may be one more than the level
        // survives.
        let is_frozen = matches!(error, EngineError::Frozen) && is_too_much(failed.union(self.disk.lied()));
        let is_refused = matches!(submitted, Submitted::Change(change) if self.may_refuse(change, failed, error));
        // As a flush, where the journal is full of what can't be written out.
        let is_through = self.engine.cache_mode() != Some(CacheMode::WriteBack);
        let is_durable = matches!(submitted, Submitted::Write { fua, .. } if *fua || is_through);
        let is_full =
            is_durable && matches!(error, EngineError::NotDestaged { .. }) && self.engine.unwritten().is_some();
        if is_too_much(failed) || is_frozen || is_refused || is_full {
            return Ok(());
        }
        let (parts, members, lists) = (self.parts(), self.disk.members(), lists(&self.engine));
        let doubts = Doubts::new(&parts, &self.superblocks, &members, &lists);
        let was_lost = |lba: Lba, len: Sectors| {
            let blocks = (lba.0 / BLOCK.0 * BLOCK.0..lba.0 + len.0).step_by(usize::try_from(BLOCK.0).expect("small"));
            blocks.into_iter().filter_map(|lba| column(&parts, Lba(lba))).any(|column| self.lost.contains(&column))
        };
        let is_excused = match *submitted {
            Submitted::Read { lba, len, .. }
            | Submitted::Zeros { lba, len }
            | Submitted::Look { lba, len }
            | Submitted::Write { lba, len, .. } => was_lost(lba, len),
            _ => false,
        };
        let is_excused = is_excused
            || doubts.is_some_and(|doubts| match *submitted {
                Submitted::Read { lba, len, .. } | Submitted::Zeros { lba, len } | Submitted::Look { lba, len } => {
                    doubts.excuse_read(failed, lba, len)
                }
                Submitted::Write { lba, len, .. } => doubts.excuse_write(failed, lba, len),
                // What it is about may have been lost for a while only.
                Submitted::Flush { .. } | Submitted::Close { .. } => self.was_lost || doubts.lacks_any(failed),
                Submitted::Change(_) => false,
            });
        self.unreadable += u64::from(is_excused);
        if is_excused { Ok(()) } else { Err(Finding::CommandFailed { token, error: error.to_string() }) }
    }

    /// Whether the array may refuse a change that it was asked for.
    fn may_refuse(&self, change: &Change, failed: MemberSet, error: &EngineError) -> bool {
        match *change {
            Change::Fail { slot, may_refuse } => {
                // While a window of a reshape moves it waits, and members may fail meanwhile.
                let is_needed = !survive(&self.shapes(), failed.with(slot));
                let is_gone = self.engine.missing().contains(slot);
                matches!(error, EngineError::Needed { .. }) && (may_refuse || is_needed)
                    || matches!(error, EngineError::NotThere { .. }) && (may_refuse || is_gone)
            }
            Change::Join { lingers: Lingers::Yes | Lingers::NoMore, .. }
                if matches!(error, EngineError::Lingering { .. }) =>
            {
                true
            }
            // The journal is full of what can't be written out, and may need who was there.
            Change::Join { .. } if matches!(error, EngineError::NotDestaged { .. }) => {
                self.engine.unwritten().is_some()
            }
            // It has failed, too, or was too late.
            Change::Join { slot, .. } => {
                let has_deadline = self.engine.deadlines().write.is_some();
                let hurried = if has_deadline { self.hurried } else { MemberSet::EMPTY };
                let late = given_up_late(&self.disk, Some(self.engine.deadlines())).union(hurried);
                self.disk.struck().union(self.disk.lied()).union(late).contains(slot)
            }
            Change::Copy { slot } => failed.union(self.disk.lied()).contains(slot),
        }
    }

    /// Checks that what the engine says reads as zeros now may be read as that; and some of it, if there is any.
    pub(super) fn check_zeros(&self, random: &mut Random) -> Result<Option<(Lba, Sectors)>, Finding> {
        let end = Lba(self.model.capacity().0);
        // It is frozen, or another size of the array is about to begin.
        let Ok(told) = self.engine.zeros().status(&(Lba(0)..end), usize::MAX) else { return Ok(None) };
        let (mut at, mut some) = (Lba(0), None);
        for (status, until) in told {
            let (lba, len) = (at, Sectors(until.0 - at.0));
            at = until;
            if status == Status::Data {
                continue;
            }
            let zeros = vec![0; usize::try_from(len.bytes().0).expect("a simulated array fits the address space")];
            self.model.check(lba, &zeros, self.model.now()).map_err(Finding::NotZeros)?;
            if some.is_none() || random.chance(1, 3) {
                some = Some((lba, len));
            }
        }
        Ok(some)
    }

    /// Memory for a command.
    pub(super) fn buf(&mut self, len: Sectors) -> Buf {
        self.engine.reclaim(len.bytes());
        self.pool.try_alloc(len.bytes()).unwrap_or_else(|| Buf::zeroed(len.bytes()))
    }
}

/// What the members' superblocks say when a reshape is over.
pub(super) fn settle_superblocks(superblocks: &mut Vec<Superblock>, engine: &Engine<SimDisk, u64>) {
    let truth = engine.superblock();
    superblocks.truncate(truth.slots.len());
    for own in superblocks {
        (own.spec, own.reshape, own.consistency) = (truth.spec, None, truth.consistency);
    }
}

/// Which log devices may have been given up because they took too long.
fn late_logs(disk: &SimDisk, deadlines: Deadlines) -> LogSet {
    if deadlines.write.is_some() { disk.late_logs() } else { LogSet::EMPTY }
}

/// Who may have been given up because it took too long.
pub(super) fn given_up_late(disk: &SimDisk, deadlines: Option<Deadlines>) -> MemberSet {
    let has_deadline = deadlines.is_some_and(|deadlines| deadlines.write.is_some());
    if has_deadline { disk.late() } else { MemberSet::EMPTY }
}
