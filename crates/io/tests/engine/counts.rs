//! What requests cost, by the engine's own counters.

use uraid_io::disk::Order;
use uraid_io::engine::Command;
use uraid_layout::{Lba, Level, MemberSet, Placement, Sectors};

use crate::support::{RAID5, Random, Shape, TestEngine, buf, noise, read, rm2, run, run_all, small, write};

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
