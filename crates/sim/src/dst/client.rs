//! A client of the engine, which sends commands at random and waits until all of them are done. An administrator may
//! change the array meanwhile.

use uraid_io::engine::{Command, Engine};
use uraid_io::format::BLOCK;
use uraid_io::format::superblock::Integrity;
use uraid_layout::{Bytes, Lba, Sectors};

use super::administer::Administrator;
use super::anew::{self, Grown};
use super::beginning::{self, Begun};
use super::finding::Finding;
use super::model::Model;
use super::scenario::{Scenario, uuid};
use super::served::{Mover, given_up, suits};
use super::session::{Session, Submitted};
use crate::disk::SimDisk;
use crate::trace::Trace;
use uraid_random::Random;

/// Commands under way at most.
const DEPTH_MAX: u64 = 16;

/// Turns without an end of anything after which the engine is stuck.
const IDLE_TURNS_MAX: u32 = 10_000;

/// Members that are taken in at the end until all are there.
const MENDS_MAX: usize = 32;

/// Ticks in which every reshape comes to its end where nothing fails: a window moves in each.
const MOVES_MAX: usize = 4000;

/// Ticks in which nothing ends, when time passes: what is being written out takes too long then.
const STALL_TICKS: usize = 4;

/// Ticks after each of which it is looked why a reshape does not go on.
const LOOKS: usize = 100;

/// Ticks after which everything that waits for time has happened.
const TICKS_MAX: usize = 400;

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

/// What came of marking the members clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wound {
    Up,
    /// It could not be done, and rightly.
    Left,
    Dark,
}

pub(super) struct Client<'a> {
    pub(super) session: Session<'a>,
    administrator: Option<&'a mut Administrator>,
    /// Who steers a reshape, where the array may be between two shapes.
    mover: Option<&'a mut Mover>,
    random: Random,
    depth: usize,
    /// What its commands are multiples of, in sectors.
    block: u64,
    /// Where this client likes to write.
    hot: Lba,
    /// When time passes though nothing ends, and when writes go past the cache, if ever.
    stalls: Option<Random>,
    bypasses: Option<Random>,
    /// When it asks what reads as zeros; and whether it reads that then.
    statuses: Random,
    reads_zeros: bool,
}

impl<'a> Client<'a> {
    pub(super) fn new(
        engine: Engine<SimDisk, u64>,
        disk: SimDisk,
        scenario: &Scenario,
        model: &'a mut Model,
        mut random: Random,
        trace: Trace,
    ) -> Self {
        let mut stalls = random.clone().fork();
        let mut bypasses = stalls.clone().fork();
        let stalls = stalls.chance(1, 6).then_some(stalls);
        let mut statuses = bypasses.clone().fork();
        let bypasses = bypasses.chance(1, 6).then_some(bypasses);
        let reads_zeros = statuses.chance(1, 3);
        let depth = usize::try_from(random.within(1, DEPTH_MAX)).expect("a small number");
        let hot = Lba(random.below(model.capacity().0));
        let block = if scenario.superblocks[0].integrity == Integrity::None { 1 } else { BLOCK.0 };
        let session = Session::new(engine, disk, scenario, model, trace);
        Self {
            session,
            administrator: None,
            mover: None,
            random,
            depth,
            block,
            hot,
            stalls,
            bypasses,
            statuses,
            reads_zeros,
        }
    }

    /// Lets somebody change and check the array while this client goes on.
    pub(super) fn administered_by(self, administrator: Option<&'a mut Administrator>) -> Self {
        Self { administrator, ..self }
    }

    /// Lets somebody steer a reshape while this client goes on, and have the array grow, or begin to get another shape,
    /// where it may.
    pub(super) fn moved_by(self, mut mover: Option<&'a mut Mover>, may_change: bool) -> Self {
        mover.iter_mut().for_each(|mover| mover.begin_life(&self.session, may_change));
        Self { mover, ..self }
    }

    /// Sends so many commands, and waits for all replies; then closes the array, if so wanted.
    pub(super) fn run(&mut self, commands: u64, closes: bool) -> Result<End, Finding> {
        for _ in 0..commands {
            if self.session.pending() < self.depth {
                let (submitted, command) = self.draw();
                self.session.submit(submitted, command);
            }
            if let Some(administrator) = &mut self.administrator {
                let ticks = administrator.act(&mut self.session)?;
                self.pass(ticks)?;
            }
            if !self.steer()? {
                return Ok(End::Dark);
            }
            if self.random.chance(1, 32) {
                self.session.tick();
            }
            if let Some(random) = &mut self.bypasses
                && random.chance(1, 12)
            {
                self.session.engine.bypass().force(Some(random.chance(2, 3)));
            }
            if self.stalls.as_mut().is_some_and(|random| random.chance(1, 12)) {
                self.session.stall(STALL_TICKS);
            }
            if self.statuses.chance(1, 3) && !self.ask_for_zeros()? {
                return Ok(End::Dark);
            }
            let is_going = match self.random.below(4) {
                0 => true,
                1 => self.turn()?,
                _ => self.turn()? && self.session.wait()?,
            };
            if !is_going {
                return Ok(End::Dark);
            }
        }
        if !self.finish()? {
            return Ok(End::Dark);
        }
        if let Some(administrator) = &mut self.administrator {
            administrator.check_scrub(&self.session)?;
        }
        if !closes {
            return Ok(End::Idle);
        }
        let begun = self.session.model.now();
        self.session.submit(Submitted::Close { begun }, Command::Close);
        if !self.finish()? {
            return Ok(End::Dark);
        }
        Ok(if self.session.is_closed { End::Closed } else { End::Idle })
    }

    /// Reads the whole array as a power cut has left it, what can't be read block by block; false when the power goes.
    pub(super) fn look(&mut self) -> Result<bool, Finding> {
        let (capacity, step) = (self.session.model.capacity().0, 128);
        for lba in (0..capacity).step_by(step) {
            let len = Sectors((capacity - lba).min(step as u64));
            if !self.look_at(Lba(lba), len)? {
                return Ok(false);
            }
            for (lba, len) in std::mem::take(&mut self.session.blind) {
                for block in (lba.0..lba.0 + len.0).step_by(8).filter(|_| len > BLOCK) {
                    if !self.look_at(Lba(block), BLOCK)? {
                        return Ok(false);
                    }
                }
            }
            self.session.blind.clear();
        }
        Ok(true)
    }

    fn look_at(&mut self, lba: Lba, len: Sectors) -> Result<bool, Finding> {
        let buf = self.session.buf(len);
        self.session.submit(Submitted::Look { lba, len }, Command::Read { lba, buf });
        self.finish()
    }

    /// Writes zeros from there on, as a new array is made, and closes it.
    pub(super) fn zero(&mut self, lba: Lba) -> Result<End, Finding> {
        let len = Sectors(self.session.model.capacity().0 - lba.0);
        let zeros = Command::WriteZeroes { lba, len, fua: false, may_punch: false };
        let pending = Some(self.session.model.begin(lba, len, true));
        self.session.submit(Submitted::Write { lba, len, pending, fua: false }, zeros);
        self.run(0, true)
    }

    /// Waits until nothing of the array is blank any more, or for a long time; false when the power goes.
    pub(super) fn initialise(&mut self) -> Result<bool, Finding> {
        for _ in 0..TICKS_MAX {
            if self.session.engine.initialising().is_none() || self.session.engine.is_frozen() {
                break;
            }
            self.pass(1)?;
        }
        self.finish()
    }

    /// Has members taken in until none is missing, and waits until they have everything; false when the power goes.
    pub(super) fn mend(&mut self) -> Result<bool, Finding> {
        self.session.engine.set_rebuild_limit(None);
        for _ in 0..MENDS_MAX {
            if self.session.engine.missing().is_empty() || self.session.engine.is_frozen() {
                break;
            }
            if !self.wait_for_missing()? {
                return Ok(false);
            }
            if let Some(administrator) = &mut self.administrator {
                administrator.take_in(&mut self.session)?;
            }
            if !self.finish()? {
                return Ok(false);
            }
        }
        self.pass(TICKS_MAX)?;
        if !self.finish()? || !self.copy_at_last()? {
            return Ok(false);
        }
        let failed = self.session.failed();
        let is_sound = self.session.superblocks[0].integrity == Integrity::None && !self.session.engine.is_frozen();
        let has_redundancy = self.session.engine.geometry().tolerance() > 0;
        // Members are not exchanged as long as the journal has what can't be written out.
        let is_kept = self.session.engine.unwritten().is_some();
        if is_sound && has_redundancy && !is_kept && !failed.is_empty() {
            return Err(Finding::NotRebuilt { members: failed });
        }
        Ok(true)
    }

    /// Waits until a reshape is over, and gives the array its shape, or until it rightly can't go on; false when the
    /// power goes.
    ///
    /// # Errors
    /// When it does not come to its end.
    pub(super) fn move_to_the_end(&mut self) -> Result<bool, Finding> {
        for moves in 0..MOVES_MAX {
            let is_over = self.session.engine.reshape().is_none_or(|way| way.is_over());
            if is_over || self.session.engine.is_frozen() {
                return self.end_reshape();
            }
            // What is next is to be all that moves.
            let stuck = self.session.engine.reshape().filter(|way| way.progress().stuck.is_some());
            stuck.iter().for_each(|way| way.limit_window(Bytes(1)));
            if stuck.is_some() && moves % LOOKS == LOOKS - 1 && self.session.lacks_next() {
                return Ok(true);
            }
            self.session.tick();
            if !self.finish()? {
                return Ok(false);
            }
        }
        let way = self.session.engine.reshape().map(|way| format!("{:?}", way.progress()));
        Err(Finding::NotMoved { progress: way.unwrap_or_default() })
    }

    /// Asks what reads as zeros, and reads some of it if nothing else is under way; false when the power goes.
    fn ask_for_zeros(&mut self) -> Result<bool, Finding> {
        let some = self.session.check_zeros(&mut self.statuses)?;
        let Some((lba, len)) = some.filter(|_| self.reads_zeros && self.session.pending() == 0) else {
            return Ok(true);
        };
        let buf = self.session.buf(len);
        self.session.submit(Submitted::Zeros { lba, len }, Command::Read { lba, buf });
        self.finish()
    }

    /// Has a reshape steered, and ended where it is over; false when the power goes.
    fn steer(&mut self) -> Result<bool, Finding> {
        let Some(mover) = &mut self.mover else { return Ok(true) };
        let ticks = mover.act(&self.session);
        if mover.wants_growth(&self.session) {
            return self.grow();
        }
        if mover.wants_shape(&self.session) {
            return self.begin_reshape();
        }
        self.pass(ticks)?;
        let is_over = self.session.engine.reshape().is_some_and(|way| way.is_over());
        let is_noticed = self.mover.as_mut().is_some_and(|mover| is_over && mover.random.chance(1, 4));
        if is_noticed { self.end_reshape() } else { Ok(true) }
    }

    /// Ends a reshape whose content is all where it is to be, as a server does; false when the power goes.
    fn end_reshape(&mut self) -> Result<bool, Finding> {
        let is_over = |client: &Self| client.session.engine.reshape().is_some_and(|way| way.is_over());
        if !is_over(self) || self.session.engine.is_frozen() {
            return Ok(true);
        }
        // It may be turned round meanwhile, or members fail.
        match self.wind_up()? {
            Wound::Dark => return Ok(false),
            Wound::Left => return Ok(true),
            Wound::Up if !is_over(self) => return Ok(true),
            Wound::Up => {}
        }
        let mover = self.mover.as_mut().expect("whoever ends a reshape steers it");
        let is_back = self.session.engine.reshape().is_some_and(|way| way.progress().is_back);
        if !anew::end_reshape(&mut self.session, uuid(&mut mover.random))? {
            return Ok(false);
        }
        mover.ended(is_back);
        self.note_change();
        Ok(true)
    }

    /// Has the array grow as a server does, where it can; false when the power goes.
    fn grow(&mut self) -> Result<bool, Finding> {
        // Members get larger while nothing is under way on them.
        if !self.finish()? {
            return Ok(false);
        }
        let mover = self.mover.as_mut().expect("whoever wants it to grow");
        let Some(used) = anew::make_room(&mut self.session, &mut mover.random)? else { return Ok(true) };
        match self.wind_up()? {
            Wound::Dark => return Ok(false),
            Wound::Left => return Ok(true),
            Wound::Up => {}
        }
        let mover = self.mover.as_mut().expect("the same");
        match anew::grow(&mut self.session, used, uuid(&mut mover.random))? {
            Grown::Ended => return Ok(false),
            Grown::Left => {}
            Grown::Larger => {
                mover.counts.grown += 1;
                self.note_change();
            }
        }
        Ok(true)
    }

    /// Has the array begin to get another shape as a server does, where it can; false when the power goes.
    fn begin_reshape(&mut self) -> Result<bool, Finding> {
        // Nothing is under way on members that others join.
        if !self.finish()? {
            return Ok(false);
        }
        let mover = self.mover.as_mut().expect("whoever wants another shape");
        let Some(beginning) = beginning::draw(&mut self.session, &mut mover.beginnings)? else { return Ok(true) };
        match self.wind_up()? {
            Wound::Dark => return Ok(false),
            Wound::Left => return Ok(true),
            Wound::Up => {}
        }
        let mover = self.mover.as_mut().expect("the same");
        match beginning::begin(&mut self.session, beginning, &mut mover.beginnings)? {
            Begun::Ended => return Ok(false),
            Begun::Left => mover.counts.not_begun += 1,
            Begun::Yes => {
                mover.begun(&self.session);
                self.note_change();
            }
        }
        Ok(true)
    }

    /// Writes out all that is in memory, and has the members marked clean, as before an array becomes another one.
    fn wind_up(&mut self) -> Result<Wound, Finding> {
        // So that there is little left to write out while clients wait.
        let begun = self.session.model.now();
        self.session.submit(Submitted::Flush { begun }, Command::Flush);
        if !self.finish()? {
            return Ok(Wound::Dark);
        }
        self.session.engine.wind_down();
        let begun = self.session.model.now();
        self.session.submit(Submitted::Close { begun }, Command::Close);
        if !self.finish()? {
            return Ok(Wound::Dark);
        }
        Ok(if std::mem::take(&mut self.session.is_closed) { Wound::Up } else { Wound::Left })
    }

    /// Takes note that the array has become another one.
    fn note_change(&mut self) {
        let truth = self.session.engine.superblock().clone();
        let roster = self.administrator.as_mut().map(|administrator| &mut administrator.roster);
        roster.into_iter().for_each(|roster| roster.altered(given_up(&truth), |member| suits(member, &truth)));
    }

    /// Whether members that have joined in this life have all of their content.
    pub(super) fn has_rebuilt(&self) -> bool {
        self.administrator.as_ref().is_some_and(|administrator| administrator.has_rebuilt(&self.session))
    }

    /// Waits for what members still have under way that were given up: until it ends they can't be exchanged. False
    /// when the power goes.
    fn wait_for_missing(&mut self) -> Result<bool, Finding> {
        while self.session.engine.missing().iter().any(|slot| self.session.disk.is_busy(slot)) {
            if !self.turn()? || !self.session.wait()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Has a member copied when nothing fails any more, and waits for it; false when the power goes.
    fn copy_at_last(&mut self) -> Result<bool, Finding> {
        let Some(administrator) = &mut self.administrator else { return Ok(true) };
        let Some((slot, before)) = administrator.copy_at_last(&mut self.session) else { return Ok(true) };
        if !self.finish()? {
            return Ok(false);
        }
        let has_copied = |by: &&mut Administrator| by.has_copied(&self.session, slot, before);
        // Members are not exchanged as long as the journal has what can't be written out.
        let is_kept = self.session.engine.unwritten().is_some();
        let is_right = is_kept || self.administrator.as_ref().is_some_and(has_copied);
        if is_right { Ok(true) } else { Err(Finding::NotCopied { slot }) }
    }

    /// Lets time pass.
    fn pass(&mut self, ticks: usize) -> Result<(), Finding> {
        for _ in 0..ticks {
            self.session.tick();
            if !self.turn()? || !self.session.wait()? {
                break;
            }
        }
        Ok(())
    }

    /// Waits for every reply; false when the power goes.
    fn finish(&mut self) -> Result<bool, Finding> {
        let mut idle = 0;
        while self.turn()? {
            if self.session.is_over() {
                return Ok(true);
            }
            if !self.session.wait()? {
                return Ok(false);
            }
            idle = if self.session.disk_is_idle() { idle + 1 } else { 0 };
            if idle > IDLE_TURNS_MAX {
                return Err(Finding::Stuck { commands: self.session.pending() });
            }
        }
        Ok(false)
    }

    /// A turn of the engine; false when the power goes.
    fn turn(&mut self) -> Result<bool, Finding> {
        let (replies, turned) = self.session.begin_turn();
        if let Some(administrator) = &mut self.administrator {
            administrator.turned(&mut self.session);
        }
        if let Some(mover) = &mut self.mover {
            mover.turned(&self.session);
        }
        for reply in replies {
            let answer = self.session.replied(reply)?;
            if let (Some(answer), Some(administrator)) = (answer, &mut self.administrator) {
                administrator.answered(&mut self.session, answer);
            }
        }
        self.session.end_turn(turned)
    }

    fn draw(&mut self) -> (Submitted, Command) {
        let (lba, len) = self.range();
        let fua = self.random.chance(1, 8);
        match self.random.below(100) {
            0..=21 => self.read(lba, len),
            22..=83 => {
                let pending = self.session.model.begin(lba, len, false);
                let data = Model::data(pending);
                let mut buf = self.session.buf(len);
                buf.as_mut().copy_from_slice(&data);
                (Submitted::Write { lba, len, pending: Some(pending), fua }, Command::Write { lba, buf, fua })
            }
            84..=87 => {
                let pending = Some(self.session.model.begin(lba, len, true));
                let may_punch = self.random.chance(1, 2);
                (Submitted::Write { lba, len, pending, fua }, Command::WriteZeroes { lba, len, fua, may_punch })
            }
            88..=90 => {
                let pending = Some(self.session.model.begin(lba, len, true));
                (Submitted::Write { lba, len, pending, fua }, Command::WriteZeroes { lba, len, fua, may_punch: true })
            }
            _ => (Submitted::Flush { begun: self.session.model.now() }, Command::Flush),
        }
    }

    fn read(&mut self, lba: Lba, len: Sectors) -> (Submitted, Command) {
        let buf = self.session.buf(len);
        (Submitted::Read { lba, len, begun: self.session.model.now() }, Command::Read { lba, buf })
    }

    fn range(&mut self) -> (Lba, Sectors) {
        let (capacity, random) = (self.session.model.capacity().0, &mut self.random);
        let (chunk, stripe) =
            (self.session.engine.geometry().chunk().0, self.session.engine.geometry().stripe_sectors().0);
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
}
