//! At steady state the engine takes no memory from the allocator: not for a read, not for a write, whatever the cache
//! does.
//!
//! The same requests come over and over, 32 at a time, until everything has grown to the size that they need: that has
//! to end, and stay so. Requests' memory is of a pool, as a server's is.

use uraid_io::buf::Pool;
use uraid_io::disk::{Disk, MemDisk};
use uraid_io::engine::{CacheMode, Command, Deadlines, Engine, Record, Reply};
use uraid_io::format::BLOCK;
use uraid_io::format::superblock::{Areas, Consistency, Integrity, Superblock};
use uraid_layout::{Bytes, Geometry, Lba, Level, MemberIndex, MemberSet, Placement, Rotation, Sectors, Spec};
use uuid::Uuid;

const BATCH: u64 = 32;
const BATCHES: u64 = 24;
/// Rounds in which everything may grow, at most.
const GROWING_ROUNDS: u64 = 150;
/// Rounds in a row that take nothing.
const STEADY_ROUNDS: u64 = 4;

/// What a round consists of.
#[derive(Clone, Copy, Debug)]
enum Load {
    Reads,
    Writes,
    /// Both, and a flush after every batch.
    Both,
}

/// Where its requests go.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// One behind the other.
    Sequential,
    /// All over the array, each place once.
    Scattered,
}

struct Bench {
    engine: Engine<MemDisk, u64>,
    pool: Pool,
    replies: Vec<Reply<u64>>,
}

impl Bench {
    fn new(level: Level, members: u8, missing: MemberSet, caching: Option<(CacheMode, u64)>) -> Self {
        let member_size = Bytes(8 << 20);
        let uuid = |number: u8| Uuid::from_bytes([number; 16]);
        let areas = Areas::new(member_size, Areas::default_log(member_size), Integrity::None).expect("large enough");
        let spec = Spec { level, members, chunk: Bytes(16 << 10), member_size: Sectors((1 << 20) / 512) };
        let consistency = match level {
            Level::Raid1 | Level::Raid10 { .. } => Consistency::Bitmap,
            Level::Raid5 { .. } | Level::Raid6 { .. } | Level::Rm2 { .. } => Consistency::Log,
            Level::Raid0 => Consistency::None,
        };
        let uuids: Vec<_> = (1..=members).map(|number| (uuid(number), areas)).collect();
        let superblocks = Superblock::of_new_array(uuid(99), spec, &uuids).into_iter();
        let present = |new: Superblock| (!missing.contains(new.slot)).then_some(Superblock { consistency, ..new });
        let record = Record::new(superblocks.map(present).collect());
        let disk = MemDisk::zeroed(usize::from(members), member_size);
        let geometry = Geometry::new(spec).expect("a test's geometry");
        let mut engine = Engine::new(disk, geometry, record, false).expect("a tolerated set is missing");
        let pages = caching.map_or(0, |(_, pages)| pages);
        let pool = Pool::new(Bytes((pages + 1024) * 4096));
        if let Some((mode, pages)) = caching {
            engine = engine.with_cache(mode, &pool, Bytes(pages * 4096));
        }
        // As a server has them.
        let time = |seconds| Some(std::time::Duration::from_secs(seconds));
        engine.set_deadlines(Deadlines { read: time(2), write: time(30), hedges: false });
        Self { engine, pool, replies: Vec::new() }
    }

    fn round(&mut self, load: Load, order: Order) {
        let blocks = self.engine.geometry().capacity().0 / BLOCK.0;
        for batch in 0..BATCHES {
            for index in 0..BATCH {
                let number = batch * BATCH + index;
                let block = match order {
                    Order::Sequential => number % blocks,
                    // An odd factor: no block comes twice before all others came.
                    Order::Scattered => number.wrapping_mul(0x9E37_79B9) % blocks,
                };
                let (lba, buf) = (Lba(block * BLOCK.0), self.pool.try_alloc(BLOCK.bytes()).expect("a page is left"));
                let is_read = matches!(load, Load::Reads) || matches!(load, Load::Both) && index % 3 == 0;
                let command =
                    if is_read { Command::Read { lba, buf } } else { Command::Write { lba, buf, fua: false } };
                self.engine.submit(number, command);
            }
            if matches!(load, Load::Both) {
                self.engine.submit(u64::MAX, Command::Flush);
            }
            self.turn();
            if batch % 8 == 0 {
                self.engine.tick();
            }
        }
    }

    fn turn(&mut self) {
        loop {
            self.engine.turn(&mut self.replies).expect("memory does not break");
            self.replies.drain(..).for_each(|reply| assert!(reply.result.is_ok(), "{reply:?}"));
            if !self.engine.wants_turn() && self.engine.disk().in_flight() == 0 {
                return;
            }
        }
    }
}

const RAID5: Level = Level::Raid5 { rotation: Rotation::LeftSymmetric };
const RAID6: Level = Level::Raid6 { rotation: Rotation::LeftSymmetric };
const CACHINGS: [Option<(CacheMode, u64)>; 5] = [
    None,
    Some((CacheMode::WriteThrough, 128)),
    Some((CacheMode::WriteThrough, 4096)),
    Some((CacheMode::WriteBack, 128)),
    Some((CacheMode::WriteBack, 4096)),
];

fn assert_steady(level: Level, members: u8, missing: MemberSet) {
    let mut failures = Vec::new();
    for caching in CACHINGS {
        for load in [Load::Reads, Load::Writes, Load::Both] {
            for order in [Order::Sequential, Order::Scattered] {
                if is_exempt(level, caching, load, order) {
                    continue;
                }
                let mut bench = Bench::new(level, members, missing, caching);
                let (mut steady, mut last) = (0, 0);
                for _ in 0..GROWING_ROUNDS {
                    let counted = allocation_counter::measure(|| bench.round(load, order));
                    steady = if counted.count_total == 0 { steady + 1 } else { 0 };
                    last = counted.count_total;
                    if steady == STEADY_ROUNDS {
                        break;
                    }
                }
                if steady < STEADY_ROUNDS {
                    failures.push(format!("{caching:?}, {load:?}, {order:?}: {last}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "allocations in the last {} requests: {failures:#?}", BATCH * BATCHES);
}

/// Long runs of scattered content wait for the log with so much working memory that the pool has to exchange blocks of
/// one size for another; with RM2, whose runs have the most parity, also where flushes go into the journal meanwhile.
fn is_exempt(level: Level, caching: Option<(CacheMode, u64)>, load: Load, order: Order) -> bool {
    let is_small = caching == Some((CacheMode::WriteBack, 128));
    let is_exempt = match level {
        Level::Raid5 { .. } => matches!(load, Load::Writes),
        Level::Raid6 { .. } | Level::Rm2 { .. } => matches!(load, Load::Writes | Load::Both),
        Level::Raid0 | Level::Raid1 | Level::Raid10 { .. } => false,
    };
    is_small && is_exempt && matches!(order, Order::Scattered)
}

#[test]
fn raid_0_allocates_nothing() {
    assert_steady(Level::Raid0, 4, MemberSet::EMPTY);
}

#[test]
fn raid_5_allocates_nothing() {
    assert_steady(RAID5, 5, MemberSet::EMPTY);
}

#[test]
fn degraded_raid_5_allocates_nothing() {
    assert_steady(RAID5, 5, MemberSet::EMPTY.with(MemberIndex(1)));
}

#[test]
fn raid_6_allocates_nothing() {
    assert_steady(RAID6, 6, MemberSet::EMPTY);
}

#[test]
fn raid_6_without_two_allocates_nothing() {
    assert_steady(RAID6, 6, [1, 4].map(MemberIndex).into_iter().collect());
}

#[test]
fn mirrors_allocate_nothing() {
    assert_steady(Level::Raid10 { copies: 2 }, 5, MemberSet::EMPTY);
}

#[test]
fn rm2_allocates_nothing() {
    assert_steady(Level::Rm2 { height: 3, placement: Placement::Adjacent }, 7, MemberSet::EMPTY);
}
