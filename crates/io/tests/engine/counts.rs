//! What requests cost, by the engine's own counters.

use uraid_io::disk::Order;
use uraid_io::engine::{CacheMode, Command};
use uraid_layout::plan::MethodCounts;
use uraid_layout::{Lba, Level, MemberIndex, MemberSet, Placement, Sectors};

use crate::support::{
    RAID5, RAID6, Random, Shape, TestEngine, buf, noise, read, rm2, run, run_all, small, with_cache, write,
};

/// Reads, writes and flushes of data that `work` takes.
fn cost(engine: &mut TestEngine, work: impl FnOnce(&mut TestEngine)) -> (u64, u64, u64) {
    let before = engine.counters().total();
    work(engine);
    let after = engine.counters().total();
    (after.reads - before.reads, after.writes - before.writes, after.flushes - before.flushes)
}

fn healthy(shape: Shape) -> TestEngine {
    shape.engine(MemberSet::EMPTY, Order::Fifo)
}

#[test]
fn a_small_write_takes_as_few_operations_as_the_level_allows() {
    for (shape, reads, writes) in [
        (small(RAID5, 5), 2, 2),
        (small(RAID6, 6), 3, 3),
        (small(rm2(3, Placement::Adjacent), 7), 3, 3),
        (small(rm2(3, Placement::Partitioned), 7), 3, 3),
        (small(Level::Raid1, 3), 0, 3),
        (small(Level::Raid0, 4), 0, 1),
        (small(Level::Raid10 { copies: 2 }, 4), 0, 2),
    ] {
        let mut engine = healthy(shape);
        let chunks = engine.geometry().capacity().0 / 8;
        let mut random = Random(1);
        for turn in 0..50 {
            let lba = random.below(chunks) * 8;
            let cost = cost(&mut engine, |engine| write(engine, lba, &noise(turn, 8)).expect("written"));
            assert_eq!(cost, (reads, writes, 0), "{shape:?} at sector {lba}");
        }
    }
}

#[test]
fn a_full_stripe_takes_one_write_for_each_member_and_no_read() {
    for (shape, members) in [
        (small(RAID5, 5), 5),
        (small(RAID6, 6), 6),
        (small(rm2(3, Placement::Adjacent), 7), 7),
        (small(Level::Raid1, 3), 3),
        (small(Level::Raid0, 4), 4),
    ] {
        let mut engine = healthy(shape);
        let stripe = engine.geometry().stripe_sectors().0;
        for turn in 0..engine.geometry().stripes().0 {
            let cost = cost(&mut engine, |engine| write(engine, turn * stripe, &noise(turn, stripe)).expect("written"));
            assert_eq!(cost, (0, members, 0), "{shape:?} stripe {turn}");
        }
        // Several at once are still one write for each member.
        let cost = cost(&mut engine, |engine| write(engine, stripe, &noise(9, 2 * stripe)).expect("written"));
        assert_eq!(cost, (0, members, 0), "{shape:?}");
    }
}

#[test]
fn a_long_read_takes_one_operation_for_each_member() {
    let shape = Shape { chunk: 64 << 10, chunks: 16, ..small(Level::Raid0, 4) };
    let mut engine = healthy(shape);
    let cost = cost(&mut engine, |engine| drop(read(engine, 0, 2048).expect("read")));
    assert_eq!(cost, (4, 0, 0));
    for member in engine.geometry().all_members().iter() {
        assert_eq!(engine.counters().member(member).reads, 1, "member {member}");
        assert_eq!(engine.counters().member(member).read_bytes, 256 << 10, "member {member}");
    }
}

#[test]
fn flushes_are_shared() {
    for order in [Order::Fifo, Order::Lifo, Order::Seeded(4)] {
        let mut engine = small(RAID5, 5).engine(MemberSet::EMPTY, order);
        let flushes = |count: u64| (0..count).map(|_| Command::Flush).collect::<Vec<_>>();
        let nothing = cost(&mut engine, |engine| {
            run_all(engine, flushes(10)).into_iter().for_each(|result| drop(result.expect("flushed")));
        });
        assert_eq!(nothing, (0, 0, 0), "nothing was written");
        assert_eq!(engine.disk().ops.len(), 0, "nothing was written");
        write(&mut engine, 0, &noise(1, 8)).expect("written");
        let clock = engine.disk().clock();
        let (_, _, flushed) = cost(&mut engine, |engine| {
            run_all(engine, flushes(10)).into_iter().for_each(|result| drop(result.expect("flushed")));
        });
        assert!((2..=4).contains(&flushed), "{flushed} flushes for two members' writes: more than two rounds");
        engine.disk().assert_flushed(clock, "after ten flushes");
        let again = cost(&mut engine, |engine| drop(run(engine, Command::Flush).expect("flushed")));
        assert_eq!(again, (0, 0, 0), "nothing was written since");
    }
}

/// Flushes asked for while others and writes are under way all end, and cover what was replied to before.
#[test]
fn flushes_between_writes_cover_them() {
    let mut engine = small(RAID5, 5).engine(MemberSet::EMPTY, Order::Seeded(6));
    for turn in 0..50 {
        let mixed = (0..10).map(|index| {
            if index % 2 == 0 {
                return Command::Flush;
            }
            Command::Write { lba: Lba(index * 8 + turn % 7), buf: buf(&noise(turn, 3)), fua: index == 5 }
        });
        run_all(&mut engine, mixed.collect()).into_iter().for_each(|result| drop(result.expect("done")));
        let clock = engine.disk().clock();
        run(&mut engine, Command::Flush).expect("flushed");
        engine.disk().assert_flushed(clock, "after a flush");
    }
}

#[test]
fn forced_unit_access_flushes_what_it_wrote() {
    let mut engine = healthy(small(RAID5, 5));
    let lba = Lba(16);
    let (reads, writes, flushes) = cost(&mut engine, |engine| {
        run(engine, Command::Write { lba, buf: buf(&noise(1, 8)), fua: true }).expect("written");
    });
    assert_eq!((reads, writes, flushes), (2, 2, 2), "the two members that were written");
    engine.disk().assert_flushed(engine.disk().clock(), "after the write");
    run(&mut engine, Command::WriteZeroes { lba, len: Sectors(8), fua: true, may_punch: false }).expect("zeroed");
    engine.disk().assert_flushed(engine.disk().clock(), "after zeroing");
}

/// Reads and their bytes, writes and their bytes, and operations that zero.
type Moved = (u64, u64, u64, u64, u64);

pub(crate) fn moved(engine: &mut TestEngine, work: impl FnOnce(&mut TestEngine)) -> Moved {
    let before = engine.counters().total();
    work(engine);
    let after = engine.counters().total();
    let reads = (after.reads - before.reads, after.read_bytes - before.read_bytes);
    let writes = (after.writes - before.writes, after.written_bytes - before.written_bytes);
    (reads.0, reads.1, writes.0, writes.1, after.zeroes - before.zeroes)
}

/// Only what changes moves: a sector of the data and one of each parity that covers it, each way.
#[test]
fn one_sector_costs_one_sector_of_each() {
    let small_write = |count| (count, count * 512, count, count * 512, 0);
    for (shape, expected) in [
        (small(RAID5, 5), small_write(2)),
        (Shape { chunk: 64 << 10, chunks: 4, ..small(RAID5, 5) }, small_write(2)),
        (small(RAID6, 6), small_write(3)),
        (small(rm2(3, Placement::Adjacent), 7), small_write(3)),
        (small(rm2(3, Placement::Partitioned), 7), small_write(3)),
        (small(Level::Raid0, 4), (0, 0, 1, 512, 0)),
        (small(Level::Raid1, 3), (0, 0, 3, 1536, 0)),
    ] {
        for caching in [None, Some((CacheMode::WriteThrough, 256)), Some((CacheMode::WriteBack, 256))] {
            let (mut engine, _pool) = with_cache(healthy(shape), caching);
            for (turn, lba) in [(1, 0), (2, 13), (3, 31), (4, 66)] {
                let cost = moved(&mut engine, |engine| {
                    write(engine, lba, &noise(turn, 1)).expect("written");
                    run(engine, Command::Flush).expect("flushed");
                });
                assert_eq!(cost, expected, "{shape:?}, {caching:?}, sector {lba}");
            }
        }
    }
}

/// RAID 5 of five members with chunks of 4 KiB: unit u of stripe 0 is on member u, its parity on member 4.
#[test]
fn what_each_kind_of_plan_moves() {
    const K: u64 = 1024;
    let write = |lba, sectors| Command::Write { lba: Lba(lba), buf: buf(&noise(lba, sectors)), fua: false };
    let zero = |lba, len| Command::WriteZeroes { lba: Lba(lba), len: Sectors(len), fua: false, may_punch: false };
    let read = |lba, sectors| Command::Read { lba: Lba(lba), buf: buf(&noise(lba, sectors)) };
    let none: &[u8] = &[];
    for (name, missing, command, expected) in [
        ("full", none, write(0, 32), (0, 0, 5, 20 * K, 0)),
        ("reconstruct three", none, write(0, 24), (1, 4 * K, 4, 16 * K, 0)),
        ("reconstruct two", none, write(8, 16), (2, 8 * K, 3, 12 * K, 0)),
        ("read-modify-write", none, write(8, 8), (2, 8 * K, 2, 8 * K, 0)),
        ("two halves of units", none, write(4, 8), (3, 8 * K, 3, 8 * K, 0)),
        ("zeroes of a unit", none, zero(8, 8), (2, 8 * K, 2, 8 * K, 0)),
        ("zeroes of a stripe", none, zero(0, 32), (0, 0, 5, 20 * K, 0)),
        ("unit missing", &[1], write(8, 8), (3, 12 * K, 1, 4 * K, 0)),
        ("another unit missing", &[2], write(8, 8), (2, 8 * K, 2, 8 * K, 0)),
        ("parity missing", &[4], write(8, 8), (0, 0, 1, 4 * K, 0)),
        ("full without a unit", &[1], write(0, 32), (0, 0, 4, 16 * K, 0)),
        ("full without parity", &[4], write(0, 32), (0, 0, 4, 16 * K, 0)),
        ("read", none, read(0, 32), (4, 16 * K, 0, 0, 0)),
        ("read of a part", none, read(11, 3), (1, 1536, 0, 0, 0)),
        ("read of a missing unit", &[1], read(8, 8), (4, 16 * K, 0, 0, 0)),
        ("read of a part of it", &[1], read(11, 3), (4, 6 * K, 0, 0, 0)),
        ("read of a stripe without a unit", &[1], read(0, 32), (4, 16 * K, 0, 0, 0)),
        ("read without parity", &[4], read(0, 32), (4, 16 * K, 0, 0, 0)),
    ] {
        let missing = missing.iter().map(|&member| MemberIndex(member)).collect();
        let mut engine = small(RAID5, 5).engine(missing, Order::Fifo);
        let cost = moved(&mut engine, |engine| drop(run(engine, command).expect(name)));
        assert_eq!(cost, expected, "{name}");
    }
}

/// Two missing members of RM2 with seven members and three rows, and of RAID 6 with six, and what mirrors take.
#[test]
fn what_other_levels_move() {
    const K: u64 = 1024;
    let rm2 = small(rm2(3, Placement::Adjacent), 7);
    let raid6 = small(RAID6, 6);
    let write = |sectors| Command::Write { lba: Lba(0), buf: buf(&noise(1, sectors)), fua: false };
    let none: &[u8] = &[];
    let raid10 = small(Level::Raid10 { copies: 2 }, 4);
    for (name, shape, missing, command, expected) in [
        ("RM2, full", rm2, none, write(112), (0, 0, 7, 84 * K, 0)),
        ("RM2, full without two", rm2, &[0, 1][..], write(112), (0, 0, 5, 60 * K, 0)),
        ("RM2, a unit", rm2, none, write(8), (3, 12 * K, 3, 12 * K, 0)),
        ("RAID 6, full", raid6, none, write(32), (0, 0, 6, 24 * K, 0)),
        ("RAID 6, full without two", raid6, &[1, 2][..], write(32), (0, 0, 4, 16 * K, 0)),
        ("RAID 6, a unit", raid6, none, write(8), (3, 12 * K, 3, 12 * K, 0)),
        ("RAID 6, a unit that is missing with another", raid6, &[1, 2], write(8), (4, 16 * K, 2, 8 * K, 0)),
        ("RAID 1", small(Level::Raid1, 3), none, write(8), (0, 0, 3, 12 * K, 0)),
        ("RAID 1 without one", small(Level::Raid1, 3), &[1], write(8), (0, 0, 2, 8 * K, 0)),
        ("RAID 10", raid10, none, write(8), (0, 0, 2, 8 * K, 0)),
        ("RAID 10, two units", raid10, none, write(16), (0, 0, 4, 16 * K, 0)),
        ("RAID 0", small(Level::Raid0, 4), none, write(8), (0, 0, 1, 4 * K, 0)),
        ("RAID 0, two stripes", small(Level::Raid0, 4), none, write(64), (0, 0, 4, 32 * K, 0)),
    ] {
        let missing = missing.iter().map(|&member| MemberIndex(member)).collect();
        let mut engine = shape.engine(missing, Order::Fifo);
        let cost = moved(&mut engine, |engine| drop(run(engine, command).expect(name)));
        assert_eq!(cost, expected, "{name}");
    }
}

/// Zeroing and trimming of whole stripes is one operation for each member, and moves nothing.
#[test]
fn large_zeroes_and_trims_move_nothing() {
    let shape = Shape { chunk: 64 << 10, chunks: 8, ..small(RAID5, 5) };
    let stripe = 512;
    for (name, command, zeroings) in [
        (
            "zero one stripe",
            Command::WriteZeroes { lba: Lba(0), len: Sectors(stripe), fua: false, may_punch: false },
            5,
        ),
        (
            "zero three",
            Command::WriteZeroes { lba: Lba(stripe), len: Sectors(3 * stripe), fua: false, may_punch: true },
            5,
        ),
        ("trim", Command::WriteZeroes { lba: Lba(0), len: Sectors(2 * stripe), fua: false, may_punch: true }, 5),
    ] {
        let mut engine = healthy(shape);
        let cost = moved(&mut engine, |engine| drop(run(engine, command).expect(name)));
        assert_eq!(cost, (0, 0, 0, 0, zeroings), "{name}");
    }
}

#[test]
fn how_stripes_are_written_is_counted() {
    let mut engine = healthy(small(RAID5, 5));
    let stripe = engine.geometry().stripe_sectors().0;
    write(&mut engine, 0, &noise(1, 2 * stripe)).expect("written");
    assert_eq!(engine.counters().methods(), MethodCounts { full: 2, ..MethodCounts::default() });
    write(&mut engine, 8, &noise(2, 8)).expect("written");
    // Three of four chunks: one read instead of four.
    write(&mut engine, stripe, &noise(3, stripe / 4 * 3)).expect("written");
    let _ = read(&mut engine, 0, 8).expect("read");
    assert_eq!(engine.counters().methods(), MethodCounts { full: 2, reconstruct: 1, read_modify_write: 1 });
}

#[test]
fn what_may_still_fail_follows_from_who_is_missing() {
    let copies = |copies| Level::Raid10 { copies };
    for (shape, missing, expected) in [
        (small(Level::Raid0, 4), vec![], 0),
        (small(RAID5, 5), vec![], 1),
        (small(RAID5, 5), vec![3], 0),
        (small(RAID6, 4), vec![], 2),
        (small(RAID6, 4), vec![2, 3], 0),
        (small(rm2(3, Placement::Adjacent), 7), vec![], 2),
        (small(rm2(3, Placement::Adjacent), 7), vec![6], 1),
        (small(rm2(3, Placement::Adjacent), 7), vec![0, 6], 0),
        (small(Level::Raid1, 3), vec![1], 1),
        (small(copies(2), 4), vec![], 1),
        (small(copies(2), 4), vec![1], 0),
        (small(copies(3), 6), vec![], 2),
        // Copies of one block are on three members in a row.
        (small(copies(3), 6), vec![0, 1], 0),
        (small(copies(3), 6), vec![0, 3], 1),
    ] {
        let set: MemberSet = missing.iter().map(|&slot| MemberIndex(slot)).collect();
        assert_eq!(shape.engine(set, Order::Fifo).survives(), expected, "{shape:?} without {missing:?}");
    }
}
