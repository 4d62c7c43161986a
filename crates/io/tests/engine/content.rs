//! Whatever is done at once, in whatever order members answer: sectors hold what a write brought, whole, and every
//! member holds what an encoder makes of the content.

use std::collections::HashMap;
use std::ops::Range;

use uraid_io::buf::{Buf, Pool};
use uraid_io::disk::{Fault, OpName, Order};
use uraid_io::engine::{CacheMode, Command, Deadlines};
use uraid_io::format::superblock::{Consistency, Integrity};
use uraid_layout::{Bytes, Lba, MemberIndex, MemberSet, Sectors};

use crate::support::model::{Model, Pending};
use crate::support::{
    Caching, RAID5, Random, SECTOR, Shape, TestEngine, assert_encoded, buf, durable_content, noise, read, run, run_all,
    shapes, small, tolerated, with_cache, write,
};

const DEPTH: usize = 16;

thread_local! {
    /// Reads' memory: it shows what an earlier read left where it is not filled.
    static READS: Pool = Pool::new(Bytes(64 << 20));
}

/// What a command in flight is to the model.
enum Flight {
    Read {
        lba: usize,
        since: u64,
    },
    Write {
        pending: Pending,
    },
    /// What an administrator wants.
    Change,
    /// The members' writes and the client's that were over when it was submitted.
    Flush {
        clock: u64,
        since: u64,
    },
}

/// Commands drawn at random, many at a time, checked against the model.
pub(crate) struct Storm {
    pub(crate) engine: TestEngine,
    model: Model,
    pub(crate) random: Random,
    flights: HashMap<u64, Flight>,
    next: u64,
    may_fail: bool,
    is_healthy: bool,
    is_logged: bool,
    /// Only whole blocks are read and written, and what members hold may change at any time.
    is_checked: bool,
    /// What may be made wrong behind the engine's back.
    rotten: MemberSet,
    /// Who stops and goes on, operations of some kind at a time; with deadlines.
    hanging: Option<MemberIndex>,
    pool: Pool,
    context: String,
    /// Where a reader that goes through the array in order is, where there is one.
    pub(crate) reader: Option<u64>,
    /// Where commands are for.
    window: Range<u64>,
}

/// Every way to cache; some so small that content is always on its way out.
const CACHINGS: [Caching; 6] = [
    None,
    Some((CacheMode::WriteThrough, 64)),
    Some((CacheMode::WriteThrough, 4096)),
    Some((CacheMode::WriteBack, 32)),
    Some((CacheMode::WriteBack, 128)),
    Some((CacheMode::WriteBack, 4096)),
];

pub(crate) fn caching(number: u64) -> Caching {
    CACHINGS[usize::try_from(number).expect("small") % CACHINGS.len()]
}

impl Storm {
    pub(crate) fn new(shape: Shape, missing: MemberSet, order: Order, seed: u64, caching: Caching) -> Self {
        let (engine, pool) = with_cache(shape.engine(missing, order), caching);
        let sectors = usize::try_from(engine.geometry().capacity().0).expect("small");
        let context = format!("{shape:?} without {missing:?}, {order:?}, {caching:?}, seed {seed}");
        let is_healthy = missing.is_empty();
        let is_logged = shape.consistency == Consistency::Log;
        let is_checked = shape.integrity == Integrity::Crc32;
        let (model, random, flights) = (Model::new(sectors), Random(seed), HashMap::new());
        Self {
            engine,
            model,
            random,
            flights,
            next: 0,
            may_fail: false,
            is_healthy,
            is_logged,
            is_checked,
            rotten: MemberSet::EMPTY,
            hanging: None,
            pool,
            context,
            reader: None,
            window: 0..sectors as u64,
        }
    }

    /// Lets commands be for these sectors from now on.
    pub(crate) fn within(&mut self, window: Range<u64>) {
        self.window = window;
    }

    pub(crate) fn run(&mut self, commands: u64) {
        let mut replies = Vec::new();
        while self.next < commands || !self.flights.is_empty() {
            while self.next < commands && self.flights.len() < DEPTH {
                self.submit();
            }
            let reaps = 1 + self.random.below(3);
            self.engine.disk_mut().allow_reaps(usize::try_from(reaps).expect("small"));
            let (moved, in_flight) = (self.engine.disk().ops.len(), self.flights.len());
            self.engine.turn(&mut replies).expect("memory does not break");
            let is_idle = uraid_io::disk::Disk::in_flight(self.engine.disk()) == 0 && !self.engine.wants_turn();
            let is_stuck = replies.is_empty() && is_idle;
            if self.random.below(10) == 0 {
                self.engine.tick();
            }
            self.rot();
            self.hang();
            assert!(!is_stuck, "{}: {in_flight} commands wait for nothing after {moved} operations", self.context);
            for reply in replies.drain(..) {
                self.reply(reply.token, &reply.result.map_err(|error| error.to_string()));
            }
        }
        self.engine.disk_mut().allow_reaps(usize::MAX);
    }

    /// Runs this many more commands.
    pub(crate) fn more(&mut self, commands: u64) {
        self.run(self.next + commands);
    }

    /// Makes a bit of some member wrong, now and then.
    fn rot(&mut self) {
        let victims: Vec<_> = self.rotten.minus(self.engine.missing()).iter().collect();
        if victims.is_empty() || self.random.below(4) > 0 {
            return;
        }
        let member = victims[usize::try_from(self.random.below(victims.len() as u64)).expect("small")];
        let used = self.engine.geometry().used_sectors().bytes().0;
        let byte = usize::try_from(self.random.below(used)).expect("small");
        self.engine.disk_mut().data_mut(member)[byte] ^= 1 << self.random.below(8);
    }

    /// Stops the member that hangs, or lets it go on, now and then.
    fn hang(&mut self) {
        let Some(member) = self.hanging else { return };
        let names = [OpName::Read, OpName::Write, OpName::Zero, OpName::Flush];
        match self.random.below(40) {
            0 => {
                // Reads more often than others: what else hangs long enough ends in the member's failure.
                let name = names[usize::try_from(self.random.below(8)).expect("small").saturating_sub(4)];
                self.engine.disk_mut().hold(member, name);
            }
            1 => names.iter().for_each(|&name| self.engine.disk_mut().let_go(member, name)),
            _ => {}
        }
    }

    /// Members come and go: what is durable is not on all of them all the time.
    pub(crate) fn is_changing(&mut self) {
        self.is_healthy = false;
    }

    /// How many commands it has submitted.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Lets what nobody waits for come to its end.
    pub(crate) fn settle(&mut self) {
        let mut replies = Vec::new();
        self.engine.turn(&mut replies).expect("memory does not break");
        while self.engine.wants_turn() {
            self.engine.turn(&mut replies).expect("memory does not break");
        }
        assert!(replies.is_empty(), "{}: replies to nothing", self.context);
    }

    /// Submits what an administrator wants, among the others.
    pub(crate) fn change(&mut self, command: Command) {
        self.flights.insert(self.next, Flight::Change);
        self.engine.submit(self.next, command);
        self.next += 1;
    }

    fn range(&mut self) -> (usize, usize) {
        let Range { start, end } = self.window.clone();
        let lba = start + self.random.below(end - start);
        let longest = match self.random.below(8) {
            0 => end,
            1 | 2 => 64,
            _ => 12,
        };
        let len = 1 + self.random.below(longest.min(end - lba));
        // A chunk, and with it the capacity, is whole blocks.
        let (lba, len) = if self.is_checked { (lba / 8 * 8, (lba % 8 + len).next_multiple_of(8)) } else { (lba, len) };
        (usize::try_from(lba).expect("small"), usize::try_from(len).expect("small"))
    }

    /// The next read of the reader that goes through the array in order.
    fn read_on(&mut self, from: u64) {
        let capacity = self.engine.geometry().capacity().0;
        let len = if self.is_checked { 8 } else { 1 + self.random.below(16) }.min(capacity - from);
        self.reader = Some((from + len) % capacity);
        let flight = Flight::Read { lba: usize::try_from(from).expect("small"), since: self.model.now() };
        self.flights.insert(self.next, flight);
        self.engine.submit(self.next, Command::Read { lba: Lba(from), buf: Buf::zeroed(Sectors(len).bytes()) });
        self.next += 1;
    }

    fn submit(&mut self) {
        if let Some(from) = self.reader
            && self.random.below(3) > 0
        {
            return self.read_on(from);
        }
        let (lba, len) = self.range();
        let (at, sectors) = (Lba(lba as u64), Sectors(len as u64));
        let fua = self.random.below(8) == 0;
        let token = self.next;
        self.next += 1;
        let (flight, command) = match self.random.below(20) {
            0..7 => {
                let buf = READS.with(|pool| pool.try_alloc(sectors.bytes())).expect("small");
                let read = Command::Read { lba: at, buf };
                (Flight::Read { lba, since: self.model.now() }, read)
            }
            7..15 => {
                let pending = self.model.submit(lba, len, false);
                let mut buf = buf(&self.model.data(pending));
                if self.random.below(2) == 0
                    && let Some(mut own) = self.pool.try_alloc(sectors.bytes())
                {
                    own.as_mut().copy_from_slice(buf.as_ref());
                    buf = own;
                }
                (Flight::Write { pending }, Command::Write { lba: at, buf, fua })
            }
            15 | 16 => {
                let pending = self.model.submit(lba, len, true);
                let may_punch = fua;
                (Flight::Write { pending }, Command::WriteZeroes { lba: at, len: sectors, fua, may_punch })
            }
            17 => {
                let pending = self.model.submit(lba, len, true);
                (Flight::Write { pending }, Command::WriteZeroes { lba: at, len: sectors, fua: false, may_punch: true })
            }
            _ => {
                let (clock, since) = (self.engine.disk().clock(), self.model.now());
                (Flight::Flush { clock, since }, Command::Flush)
            }
        };
        self.flights.insert(token, flight);
        self.engine.submit(token, command);
    }

    fn reply(&mut self, token: u64, result: &Result<Option<Buf>, String>) {
        let context = format!("{}, command {token}", self.context);
        if let Err(error) = result {
            assert!(self.may_fail, "{context}: {error}");
        }
        match (self.flights.remove(&token).expect("one reply for each command"), result) {
            (Flight::Read { lba, since }, Ok(buf)) => {
                let buf = buf.as_ref().expect("a read's buffer comes back");
                self.model.assert_read(lba, buf.as_ref(), since, &context);
            }
            (Flight::Write { pending }, result) => self.model.replied(pending, result.is_ok()),
            (Flight::Flush { clock, since }, Ok(_)) => {
                // What the log has is durable, too: the simulator looks at that.
                if self.is_logged {
                    return;
                }
                self.engine.disk().assert_flushed(clock, &context);
                if self.is_healthy && self.engine.missing().is_empty() {
                    self.model.assert_read(0, &durable_content(&self.engine), since, &format!("{context}: durable"));
                }
            }
            (Flight::Change, Ok(_)) | (_, Err(_)) => {}
        }
    }

    /// Reads everything back, directly and then with each further member gone that the level survives.
    pub(crate) fn finish(mut self) {
        let context = self.context.clone();
        let capacity = self.engine.geometry().capacity().0;
        let content = read(&mut self.engine, 0, capacity).expect("everything can be read");
        self.model.assert_read(0, &content, self.model.now(), &context);
        run(&mut self.engine, Command::Flush).expect("flushes");
        assert!(!self.engine.is_dirty(), "{context}: flushed and still dirty");
        if !self.is_logged {
            assert_encoded(&self.engine, &content, &context);
        }
        run(&mut self.engine, Command::Close).expect("closes");
        assert_encoded(&self.engine, &content, &context);
        let newest = self.engine.disk().newest();
        assert!(newest.is_clean, "{context}: closed and not clean");
        self.engine.disk().assert_flushed(u64::MAX, &context);
    }
}

impl Storm {
    /// As [`Storm::finish`] where members hold wrong content that nobody has read yet.
    fn finish_rotten(mut self) {
        let context = self.context.clone();
        let capacity = self.engine.geometry().capacity().0;
        let content = read(&mut self.engine, 0, capacity).expect("everything can be read");
        self.model.assert_read(0, &content, self.model.now(), &context);
        run(&mut self.engine, Command::Close).expect("closes");
        assert!(self.engine.disk().newest().is_clean, "{context}: closed and not clean");
        let again = read(&mut self.engine, 0, capacity).expect("everything can be read");
        assert!(again == content, "{context}: it reads the same again");
    }
}

fn orders(seed: u64) -> [Order; 4] {
    [Order::Fifo, Order::Lifo, Order::Seeded(seed), Order::Seeded(seed ^ 0xABCD)]
}

#[test]
fn concurrent_commands_on_healthy_arrays() {
    for (index, shape) in (0..).zip(shapes()) {
        for (number, caching) in (0..).zip(CACHINGS) {
            // Half of the orders; the next shape has the others.
            for (turn, order) in (0..).zip(orders(index)).filter(|(turn, _)| (turn + number + index) % 2 == 0) {
                let seed = 1000 + index * 100 + turn * 10 + number;
                let mut storm = Storm::new(shape, MemberSet::EMPTY, order, seed, caching);
                storm.run(200);
                storm.finish();
            }
        }
    }
}

#[test]
fn concurrent_commands_on_degraded_arrays() {
    for (index, shape) in (0..).zip(shapes()) {
        for (turn, missing) in (0..).zip(tolerated(&shape.geometry())).skip(1) {
            let mut storm = Storm::new(shape, missing, Order::Seeded(turn), 5000 + index * 100 + turn, caching(turn));
            storm.run(130);
            storm.finish();
        }
    }
}

/// The same with a log, whose places are used again all the time.
#[test]
fn concurrent_commands_with_a_log() {
    for (index, shape) in (0..).zip(shapes()) {
        let shape = Shape { consistency: Consistency::Log, ..shape };
        for (turn, missing) in (0..).zip(tolerated(&shape.geometry()).into_iter().take(6)) {
            for order in orders(index) {
                let seed = 30_000 + index * 100 + turn;
                let mut storm = Storm::new(shape, missing, order, seed, caching(seed + turn));
                storm.run(150);
                storm.finish();
            }
        }
    }
}

/// Content that is checked, healthy and degraded.
#[test]
fn concurrent_commands_with_checksums() {
    for (index, shape) in (0..).zip(shapes()) {
        let shape = shape.checked();
        for (turn, missing) in (0..).zip(tolerated(&shape.geometry()).into_iter().take(4)) {
            for order in orders(index) {
                let seed = 40_000 + index * 100 + turn;
                let mut storm = Storm::new(shape, missing, order, seed, caching(seed + turn));
                storm.run(120);
                assert_eq!(storm.engine.counters().total().mismatches, 0, "{}", storm.context);
                storm.finish();
            }
        }
    }
}

/// A member's content rots under load; with two failures survived, two members' does, or one's beside a missing one.
/// What a block was before it rotted comes back.
#[test]
fn members_rot_under_load() {
    let mut found = 0;
    for (index, shape) in (0..).zip(shapes()).filter(|(_, shape)| shape.geometry().tolerance() > 0) {
        let shape = shape.checked();
        let tolerance = shape.geometry().tolerance();
        for seed in 0..12_u64 {
            let first =
                MemberSet::EMPTY.with(MemberIndex(u8::try_from(seed % u64::from(shape.members)).expect("small")));
            let second =
                MemberSet::EMPTY.with(MemberIndex(u8::try_from((seed + 1) % u64::from(shape.members)).expect("small")));
            let (missing, rotten) = match seed % 3 {
                0 if tolerance > 1 => (second, first),
                1 if tolerance > 1 => (MemberSet::EMPTY, first.union(second)),
                _ => (MemberSet::EMPTY, first),
            };
            let order = Order::Seeded(seed);
            let mut storm = Storm::new(shape, missing, order, 50_000 + index * 100 + seed, caching(seed));
            // What was never written is not checked.
            let len = storm.engine.geometry().capacity();
            run(&mut storm.engine, Command::WriteZeroes { lba: Lba(0), len, fua: false, may_punch: false })
                .expect("zeroed");
            storm.rotten = rotten;
            storm.run(150);
            storm.rotten = MemberSet::EMPTY;
            found += storm.engine.counters().total().mismatches;
            storm.finish_rotten();
        }
    }
    assert!(found > 500, "only {found} rotten blocks were read");
}

/// A member dies under load, for writes, flushes or everything; on RM2 a second one does later.
#[test]
fn members_die_under_load() {
    let all = [OpName::Read, OpName::Write, OpName::Zero, OpName::Flush];
    let kinds: [&[OpName]; 4] = [&all, &[OpName::Write], &[OpName::Flush], &[OpName::Read]];
    for (index, shape) in (0..).zip(shapes()).filter(|(_, shape)| shape.geometry().tolerance() > 0) {
        for seed in 0..24_u64 {
            let consistency = if seed % 3 == 0 { Consistency::Log } else { Consistency::None };
            let shape = Shape { consistency, ..shape };
            let tolerance = shape.geometry().tolerance();
            let mut storm =
                Storm::new(shape, MemberSet::EMPTY, Order::Seeded(seed), 9000 + index * 100 + seed, caching(seed / 4));
            let victims = tolerance.min(2) as u64;
            for victim in 0..victims {
                let member = MemberIndex(u8::try_from((seed + victim * 2) % u64::from(shape.members)).expect("small"));
                let after = storm.random.below(60);
                for &name in kinds[usize::try_from(seed % 4).expect("small")] {
                    let fault = Fault { member, name, after, count: u64::MAX, errno: rustix::io::Errno::IO };
                    storm.engine.disk_mut().inner.fail(fault);
                }
            }
            storm.run(140);
            storm.finish();
        }
    }
}

/// A member stops and goes on under load, for one kind of operation or another; on some seeds for so long that it is
/// given up.
#[test]
fn members_hang_under_load() {
    let tick = uraid_io::cache::TICK;
    let (mut overdue, mut failed, mut back) = (0, 0, 0);
    for (index, shape) in (0..).zip(shapes()).filter(|(_, shape)| shape.geometry().tolerance() > 0) {
        for seed in 0..24_u64 {
            let consistency = if seed % 3 == 0 { Consistency::Log } else { Consistency::None };
            let shape = if seed % 4 == 3 { shape.checked() } else { Shape { consistency, ..shape } };
            let order = Order::Seeded(seed);
            let mut storm = Storm::new(shape, MemberSet::EMPTY, order, 60_000 + index * 100 + seed, caching(seed / 4));
            let member = MemberIndex(u8::try_from(seed % u64::from(shape.members)).expect("small"));
            let write = tick * u32::try_from(8 + seed % 5 * 40).expect("small");
            storm.engine.set_deadlines(Deadlines { read: Some(tick * 2), write: Some(write), hedges: false });
            storm.hanging = Some(member);
            storm.run(200);
            for name in [OpName::Read, OpName::Write, OpName::Zero, OpName::Flush] {
                storm.engine.disk_mut().let_go(member, name);
            }
            // What is swallowed is nothing to a turn.
            (0..100).for_each(|_| storm.settle());
            let counters = storm.engine.counters().total();
            assert_eq!((counters.mismatches, counters.repaired, counters.errors), (0, 0, 0), "{}", storm.context);
            assert!(storm.engine.missing().minus(MemberSet::EMPTY.with(member)).is_empty(), "{}", storm.context);
            assert_eq!(
                (storm.engine.lingering(member), storm.engine.slow()),
                (0, MemberSet::EMPTY),
                "{}",
                storm.context
            );
            overdue += counters.overdue;
            failed += u32::from(!storm.engine.missing().is_empty());
            back += u32::from(storm.engine.missing().is_empty() && counters.overdue > 0);
            storm.finish();
        }
    }
    assert!(overdue > 500 && failed > 15 && back > 100, "{overdue} overdue, {failed} given up, {back} came back");
}

/// More members die than the level survives: errors, and never content that nobody wrote.
#[test]
fn too_many_members_die_under_load() {
    for (index, shape) in (0..).zip(shapes()) {
        for seed in 0..12_u64 {
            let tolerance = shape.geometry().tolerance();
            let order = Order::Seeded(seed);
            let mut storm = Storm::new(shape, MemberSet::EMPTY, order, 20_000 + index * 100 + seed, caching(seed));
            storm.may_fail = true;
            for victim in 0..=tolerance.min(usize::from(shape.members) - 1) {
                let member = MemberIndex(u8::try_from(victim).expect("small"));
                let after = storm.random.below(50);
                for name in [OpName::Write, OpName::Zero, OpName::Flush] {
                    let fault = Fault { member, name, after, count: u64::MAX, errno: rustix::io::Errno::IO };
                    storm.engine.disk_mut().inner.fail(fault);
                }
            }
            storm.run(120);
        }
    }
}

/// Members that have no operation for zeroing are sent zeros; that is no failure.
#[test]
fn zeroing_falls_back_to_writing() {
    let shape = Shape { chunks: 64, ..small(RAID5, 3) };
    for order in [Order::Fifo, Order::Lifo, Order::Seeded(3)] {
        let mut engine = shape.engine(MemberSet::EMPTY, order);
        let capacity = engine.geometry().capacity().0;
        let mut content = noise(1, capacity);
        write(&mut engine, 0, &content).expect("written");
        for member in engine.geometry().all_members().iter() {
            let fault =
                Fault { member, name: OpName::Zero, after: 0, count: u64::MAX, errno: rustix::io::Errno::OPNOTSUPP };
            engine.disk_mut().inner.fail(fault);
        }
        let zero = |lba| Command::WriteZeroes { lba: Lba(lba), len: Sectors(300), fua: false, may_punch: true };
        for result in run_all(&mut engine, vec![zero(3), zero(310), zero(650)]) {
            result.expect("zeroed");
        }
        for lba in [3, 310, 650] {
            content[lba * SECTOR..][..300 * SECTOR].fill(0);
        }
        assert!(engine.missing().is_empty(), "{order:?}");
        assert_eq!(read(&mut engine, 0, capacity).expect("read"), content, "{order:?}");
        assert_encoded(&engine, &content, "after zeroing");
        write(&mut engine, 0, &noise(2, capacity)).expect("written");
        let all = Lba(0)..Lba(capacity);
        assert!(!engine.zeros().is_fast(&all, true) && !engine.zeros().is_fast(&all, false), "{order:?}");
    }
}

/// Commands beyond what is planned at once.
#[test]
fn long_commands_are_done_in_parts() {
    for shape in [
        Shape { chunk: 1 << 20, chunks: 20, ..small(RAID5, 3) },
        Shape { chunk: 12 << 10, chunks: 3000, ..small(RAID5, 3) },
    ] {
        let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
        let capacity = engine.geometry().capacity().0;
        assert!(capacity * 512 > 34 << 20, "more than one part");
        let content = noise(7, capacity - 1);
        write(&mut engine, 1, &content).expect("written");
        let expected = [vec![0; SECTOR], content].concat();
        assert!(read(&mut engine, 0, capacity).expect("read") == expected, "{shape:?}: the content differs");
        assert_encoded(&engine, &expected, "a long write");
    }
}

/// Jobs that need more working memory together than there is wait for each other and all end.
#[test]
fn working_memory_is_shared() {
    let shape = Shape { chunk: 1 << 20, chunks: 24, ..small(RAID5, 3) };
    let missing = MemberSet::EMPTY.with(MemberIndex(1));
    let mut engine = shape.engine(missing, Order::Seeded(5));
    let capacity = engine.geometry().capacity().0;
    let content = noise(8, capacity);
    write(&mut engine, 0, &content).expect("written");
    let one = || Command::Read { lba: Lba(5), buf: Buf::zeroed(Sectors(capacity - 10).bytes()) };
    for result in run_all(&mut engine, (0..4).map(|_| one()).collect()) {
        let buf = result.expect("read").expect("its buffer");
        assert!(buf.as_ref() == &content[5 * SECTOR..content.len() - 5 * SECTOR], "the content differs");
    }
}
