//! Read-ahead: how few operations a stream takes, that what is read is what was written whatever happens meanwhile, and
//! that nobody is worse off when it fails.

use rustix::io::Errno;
use uraid_io::buf::{Buf, Pool};
use uraid_io::disk::{Fault, OpName, Order};
use uraid_io::engine::{CacheMode, Command, MemberCounters, Reply};
use uraid_layout::{Bytes, Lba, Level, MemberIndex, MemberSet, Placement, Sectors};

use crate::content::Storm;
use crate::support::{
    Caching, RAID5, Random, SECTOR, Shape, TestEngine, buf, encoded, noise, read, rm2, run, size, small, tolerated,
    with_cache,
};

const LARGEST: Bytes = Bytes(1 << 20);

/// An array whose members hold content already, and a cache of 16 MiB: windows of up to 256 KiB.
fn filled(shape: Shape, missing: MemberSet, order: Order) -> (TestEngine, Pool, Vec<u8>) {
    filled_and(CacheMode::WriteThrough, shape, missing, order)
}

fn filled_and(mode: CacheMode, shape: Shape, missing: MemberSet, order: Order) -> (TestEngine, Pool, Vec<u8>) {
    let geometry = shape.geometry();
    let content = noise(3, geometry.capacity().0);
    let engine = shape.engine(missing, order);
    let (mut engine, pool) = with_cache(engine, Some((mode, 4096)));
    for (member, bytes) in (0..).map(MemberIndex).zip(encoded(&geometry, &content)) {
        if !missing.contains(member) {
            engine.disk_mut().data_mut(member)[..bytes.len()].copy_from_slice(&bytes);
        }
    }
    engine.install_read_ahead(LARGEST);
    (engine, pool, content)
}

fn large(level: Level, members: u8) -> Shape {
    Shape { chunk: 64 << 10, chunks: 64, ..small(level, members) }
}

/// Reads of 4 KiB at these places, one at a time, checked; what they cost the members.
fn cost(engine: &mut TestEngine, content: &[u8], places: impl Iterator<Item = u64>) -> MemberCounters {
    for lba in places {
        let start = size(Sectors(lba).bytes());
        assert!(read(engine, lba, 8).expect("read") == content[start..start + 4096], "sector {lba}");
    }
    engine.counters().total()
}

#[test]
fn a_stream_of_small_reads_takes_few_large_ones() {
    for shape in
        [large(Level::Raid0, 4), large(RAID5, 5), large(rm2(3, Placement::Adjacent), 7), large(Level::Raid1, 2)]
    {
        let (mut engine, pool, content) = filled(shape, MemberSet::EMPTY, Order::Seeded(1));
        let capacity = engine.geometry().capacity();
        let cost = cost(&mut engine, &content, (0..capacity.0 / 8).map(|page| page * 8));
        assert_eq!(cost.read_bytes, capacity.bytes().0, "{shape:?}: everything is read once");
        let windows = capacity.bytes().0 / (256 << 10) + 3;
        // A window that begins within a chunk touches one chunk more than it is long.
        assert!(cost.reads <= windows * 5 + 2, "{shape:?}: {} reads for {windows} windows", cost.reads);
        assert_eq!(pool.in_use(), Bytes(0), "{shape:?}: what was read is of no more use");
    }
}

#[test]
fn random_reads_are_not_read_ahead_of() {
    let (mut engine, _, content) = filled(large(RAID5, 5), MemberSet::EMPTY, Order::Fifo);
    let mut random = Random(5);
    let mut last = 0;
    let places: Vec<u64> =
        std::iter::repeat_with(|| random.below(engine.geometry().capacity().0 / 8) * 8).take(1000).collect();
    let apart = places.into_iter().filter(|&lba| lba != std::mem::replace(&mut last, lba) + 8);
    let places: Vec<u64> = apart.collect();
    let count = places.len() as u64;
    let cost = cost(&mut engine, &content, places.into_iter());
    // A read that begins where one of the last few ended is taken for a stream: rare, and worth one window.
    let windows = (cost.read_bytes - count * 4096) / (128 << 10);
    assert!(windows <= 4, "{windows} windows were read ahead of {count} random reads");
    assert!(cost.reads <= count + windows * 3, "{} operations", cost.reads);
}

#[test]
fn two_streams_at_once_are_both_read_ahead_of() {
    let (mut engine, pool, content) = filled(large(RAID5, 5), MemberSet::EMPTY, Order::Lifo);
    let pages = engine.geometry().capacity().0 / 8;
    let places = (0..pages / 2).flat_map(|page| [page * 8, (pages / 2 + page) * 8]);
    let cost = cost(&mut engine, &content, places);
    // The first stream reads ahead into what the second has read already.
    let bytes = pages * 4096;
    assert!((bytes..=bytes + (512 << 10)).contains(&cost.read_bytes), "{} bytes of {bytes}", cost.read_bytes);
    assert!(cost.reads <= pages / 10, "{} operations for {pages} reads", cost.reads);
    assert!(pool.in_use() <= Bytes(512 << 10), "{:?} stay", pool.in_use());
}

/// A write of the content that is there already, in the cache's memory.
fn own_write(pool: &Pool, lba: u64, content: &[u8]) -> Command {
    let mut buf = pool.try_alloc(Bytes(4096)).expect("there is room");
    buf.as_mut().copy_from_slice(&content[size(Sectors(lba).bytes())..][..4096]);
    Command::Write { lba: Lba(lba), buf, fua: false }
}

#[test]
fn what_is_in_memory_is_not_read_ahead() {
    let (mut engine, pool, content) =
        filled_and(CacheMode::WriteBack, large(RAID5, 5), MemberSet::EMPTY, Order::Seeded(2));
    let pages = engine.geometry().capacity().0 / 8;
    for page in (1..pages).step_by(2) {
        run(&mut engine, own_write(&pool, page * 8, &content)).expect("written");
    }
    let cost = cost(&mut engine, &content, (0..pages).map(|page| page * 8));
    assert_eq!((cost.writes, cost.read_bytes), (0, pages / 2 * 4096), "every other page is dirty");
}

#[test]
fn what_writes_leave_in_memory_is_not_for_one_read() {
    let (mut engine, pool, content) = filled(large(RAID5, 5), MemberSet::EMPTY, Order::Fifo);
    run(&mut engine, own_write(&pool, 1024, &content)).expect("written");
    let before = cost(&mut engine, &content, std::iter::repeat_n(1024, 3));
    run(&mut engine, own_write(&pool, 1024, &content)).expect("written");
    assert_eq!(engine.counters().total().reads, before.reads, "old data and old parity are in memory");
}

#[test]
fn streams_that_stop_leave_little_behind() {
    let (mut engine, pool, content) = filled(large(RAID5, 5), MemberSet::EMPTY, Order::Fifo);
    let apart = (192 << 10) / 512;
    let starts = 0..engine.geometry().capacity().0 / apart;
    let places = starts.flat_map(|stream| (0..3).map(move |index| stream * apart + index * 8));
    let cost = cost(&mut engine, &content, places);
    assert!(cost.read_bytes > 80 * (128 << 10), "every stream was read ahead of");
    assert!(
        pool.in_use() <= Bytes(16 * (128 << 10)),
        "{:?} stay, of sixteen streams with a window each",
        pool.in_use()
    );
}

#[test]
fn what_is_missing_is_not_computed_before_anybody_asks() {
    for (shape, is_read_ahead) in [(large(RAID5, 5), false), (large(Level::Raid1, 2), true)] {
        let missing = MemberSet::EMPTY.with(MemberIndex(1));
        let (mut engine, _, content) = filled(shape, missing, Order::Fifo);
        let pages = engine.geometry().capacity().0 / 8;
        let cost = cost(&mut engine, &content, (0..pages).map(|page| page * 8));
        assert_eq!(cost.reads < pages / 4, is_read_ahead, "{shape:?}: {} reads", cost.reads);
        let (mut engine, ..) = filled(shape, missing, Order::Fifo);
        engine.install_read_ahead(Bytes(0));
        let without = self::cost(&mut engine, &content, (0..pages).map(|page| page * 8));
        assert_eq!(cost.read_bytes, without.read_bytes, "{shape:?}: nothing was read for nothing");
    }
}

/// Every read of a reader that goes through the array in order, and of others, under a storm of everything.
#[test]
fn concurrent_commands_with_a_stream() {
    let levels = [(Level::Raid0, 4), (Level::Raid10 { copies: 2 }, 4), (RAID5, 5), (rm2(3, Placement::Adjacent), 7)];
    let cachings: [Caching; 5] = [
        Some((CacheMode::WriteThrough, 128)),
        Some((CacheMode::WriteThrough, 1024)),
        Some((CacheMode::WriteBack, 128)),
        Some((CacheMode::WriteBack, 512)),
        Some((CacheMode::WriteBack, 4096)),
    ];
    for (index, (level, members)) in (0..).zip(levels) {
        let shape = Shape { chunks: 24, ..small(level, members) };
        for (turn, caching) in (0..).zip(cachings) {
            for seed in 0..6 {
                let seed = 40_000 + index * 1000 + turn * 100 + seed;
                let order = [Order::Fifo, Order::Lifo, Order::Seeded(seed)][size(Bytes(seed % 3))];
                let missing = tolerated(&shape.geometry());
                let missing = missing[size(Bytes(if seed % 6 == 5 { seed / 6 % missing.len() as u64 } else { 0 }))];
                let mut storm = Storm::new(shape, missing, order, seed, caching);
                storm.engine.install_read_ahead(LARGEST);
                storm.reader = Some(0);
                storm.run(600);
                storm.finish();
            }
        }
    }
}

/// Commands in flight on a stripe of two members, of which a prefetch has read one and waits for the other.
struct Standoff {
    engine: TestEngine,
    content: Vec<u8>,
    replies: Vec<Reply<u64>>,
}

/// Places of whole chunks that the prefetch covers: it has read the first and waits for the second.
const READ: u64 = 16;
const AWAITED: u64 = 8;

impl Standoff {
    fn new(may_fail: bool) -> Self {
        let (mut engine, _, content) = filled(small(Level::Raid0, 2), MemberSet::EMPTY, Order::Fifo);
        // From now on the members are marked as being written.
        run(&mut engine, foreign_write(24, &content[24 * SECTOR..][..8 * SECTOR])).expect("written");
        read(&mut engine, 0, 4).expect("read");
        let before = engine.disk().ops.len();
        engine.disk_mut().hold(MemberIndex(1), OpName::Read);
        if may_fail {
            let fault = Fault { member: MemberIndex(1), name: OpName::Read, after: 0, count: 1, errno: Errno::IO };
            engine.disk_mut().inner.fail(fault);
        }
        let mut standoff = Self { engine, content, replies: Vec::new() };
        standoff.submit(1, Command::Read { lba: Lba(4), buf: Buf::zeroed(Bytes(2048)) });
        assert_eq!(standoff.replies.drain(..).count(), 1, "nobody waits for a prefetch");
        assert_eq!(standoff.engine.disk().ops.len(), before + 3, "a read of the client's, and one of each member");
        assert_eq!(standoff.engine.in_flight(), 1, "the prefetch");
        standoff
    }

    fn submit(&mut self, token: u64, command: Command) {
        self.engine.submit(token, command);
        self.turn();
    }

    fn turn(&mut self) {
        self.engine.turn(&mut self.replies).expect("memory does not break");
    }

    fn let_go(&mut self, member: u8, name: OpName) {
        self.engine.disk_mut().let_go(MemberIndex(member), name);
        self.turn();
    }

    /// The content of a chunk, by a read of the client's.
    fn chunk(&mut self, lba: u64) -> Vec<u8> {
        read(&mut self.engine, lba, 8).expect("read")
    }

    fn expected(&self, lba: u64) -> &[u8] {
        &self.content[size(Sectors(lba).bytes())..][..8 * SECTOR]
    }
}

/// Its memory is not the cache's, so that nothing of it stays there.
fn foreign_write(lba: u64, bytes: &[u8]) -> Command {
    Command::Write { lba: Lba(lba), buf: buf(bytes), fua: false }
}

#[test]
fn what_was_written_meanwhile_is_not_what_was_read_ahead() {
    let mut standoff = Standoff::new(false);
    let new = noise(77, 8);
    standoff.submit(2, foreign_write(READ, &new));
    assert_eq!(standoff.replies.drain(..).count(), 1, "a write waits for no prefetch");
    standoff.let_go(1, OpName::Read);
    assert_eq!(standoff.engine.in_flight(), 0);
    assert_eq!(standoff.chunk(READ), new);
    assert_eq!(standoff.chunk(AWAITED), standoff.expected(AWAITED));
}

#[test]
fn what_is_being_written_is_not_what_was_read_ahead() {
    let mut standoff = Standoff::new(false);
    let new = noise(78, 8);
    standoff.engine.disk_mut().hold(MemberIndex(0), OpName::Write);
    standoff.submit(2, foreign_write(READ, &new));
    standoff.let_go(1, OpName::Read);
    assert!(standoff.replies.is_empty(), "it is being written");
    assert_eq!(standoff.engine.in_flight(), 1, "the prefetch is over");
    standoff.let_go(0, OpName::Write);
    assert_eq!(standoff.replies.drain(..).count(), 1);
    assert_eq!(standoff.engine.in_flight(), 0);
    assert_eq!(standoff.chunk(READ), new);
}

#[test]
fn a_read_waits_for_what_is_read_ahead_of_it() {
    let mut standoff = Standoff::new(false);
    let before = standoff.engine.disk().ops.len();
    standoff.submit(2, Command::Read { lba: Lba(AWAITED), buf: Buf::zeroed(Bytes(4096)) });
    standoff.submit(3, Command::Read { lba: Lba(READ), buf: Buf::zeroed(Bytes(4096)) });
    assert!(standoff.replies.is_empty());
    standoff.let_go(1, OpName::Read);
    for (reply, lba) in std::mem::take(&mut standoff.replies).into_iter().zip([AWAITED, READ]) {
        let buf = reply.result.expect("read").expect("its buffer");
        assert_eq!(buf.as_ref(), standoff.expected(lba));
    }
    assert_eq!(standoff.engine.in_flight(), 0);
    assert_eq!(standoff.engine.disk().ops.len(), before, "both were read ahead");
}

#[test]
fn a_prefetch_that_fails_is_nobodys_error() {
    let mut standoff = Standoff::new(true);
    standoff.submit(2, Command::Read { lba: Lba(AWAITED), buf: Buf::zeroed(Bytes(4096)) });
    assert!(standoff.replies.is_empty());
    standoff.let_go(1, OpName::Read);
    let reply = standoff.replies.pop().expect("the read goes on by itself");
    let buf = reply.result.expect("the member fails once only").expect("its buffer");
    assert_eq!(buf.as_ref(), standoff.expected(AWAITED));
    assert_eq!(standoff.engine.counters().total().errors, 1);
    assert_eq!(standoff.engine.in_flight(), 0);
    let whole = standoff.content.len() as u64 / 512;
    assert!(read(&mut standoff.engine, 0, whole).expect("read") == standoff.content, "the content differs");
    run(&mut standoff.engine, Command::Close).expect("closes");
}
