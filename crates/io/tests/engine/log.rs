//! What the log costs, by the engine's own counters.

use uraid_io::disk::Order;
use uraid_io::engine::{Command, MemberCounters};
use uraid_io::superblock::Consistency;
use uraid_layout::{Lba, Level, MemberSet, Placement, Sectors};

use crate::support::{RAID5, Shape, TestEngine, buf, noise, rm2, run, run_all, small};

fn logged(level: Level, members: u8) -> TestEngine {
    let shape = Shape { consistency: Consistency::Log, ..small(level, members) };
    shape.engine(MemberSet::EMPTY, Order::Fifo)
}

/// What `work` adds to all members' counters together.
fn cost(engine: &mut TestEngine, work: impl FnOnce(&mut TestEngine)) -> MemberCounters {
    let before = engine.counters().total();
    work(engine);
    let after = engine.counters().total();
    MemberCounters {
        reads: after.reads - before.reads,
        writes: after.writes - before.writes,
        flushes: after.flushes - before.flushes,
        log_records: after.log_records - before.log_records,
        log_bytes: after.log_bytes - before.log_bytes,
        ..MemberCounters::default()
    }
}

fn durable(lba: u64, seed: u64) -> Command {
    Command::Write { lba: Lba(lba), buf: buf(&noise(seed, 8)), fua: true }
}

#[test]
fn a_durable_write_logs_and_flushes_only_the_members_that_it_is_written_to() {
    for (level, members, touched) in
        [(RAID5, 5, 2), (rm2(3, Placement::Adjacent), 7, 3), (Level::Raid1, 3, 3), (Level::Raid10 { copies: 2 }, 4, 2)]
    {
        let mut engine = logged(level, members);
        run(&mut engine, durable(0, 1)).expect("written");
        let cost = cost(&mut engine, |engine| drop(run(engine, durable(64, 2)).expect("written")));
        // A header block and a block of content on each.
        let log = (touched, touched * 8192, touched);
        assert_eq!((cost.log_records, cost.log_bytes, cost.flushes), log, "{level:?}");
        assert_eq!(cost.writes, touched, "{level:?}: and each is written in place");
    }
}

#[test]
fn a_flush_of_what_is_durable_in_the_log_costs_nothing() {
    let mut engine = logged(RAID5, 5);
    run(&mut engine, durable(0, 1)).expect("written");
    let cost = cost(&mut engine, |engine| drop(run(engine, Command::Flush).expect("flushed")));
    assert_eq!(cost, MemberCounters::default());
}

#[test]
fn writes_at_once_share_a_record_and_a_flush_of_each_member() {
    let mut engine = logged(RAID5, 5);
    run(&mut engine, durable(0, 1)).expect("written");
    let stripe = engine.geometry().stripe_sectors().0;
    let cost = cost(&mut engine, |engine| {
        for result in run_all(engine, (0..5).map(|number| durable(number * stripe, number)).collect()) {
            result.expect("written");
        }
    });
    assert_eq!((cost.log_records, cost.flushes), (5, 5), "one commit on five members");
    assert_eq!((cost.reads, cost.writes), (10, 10));
    assert_eq!(cost.log_bytes, 5 * 4096 + 10 * 4096, "a header for each member, and the content");
}

#[test]
fn zeros_are_logged_as_ranges() {
    let mut engine = logged(RAID5, 5);
    run(&mut engine, durable(0, 1)).expect("written");
    let len = Sectors(4 * engine.geometry().stripe_sectors().0);
    let zeroes = Command::WriteZeroes { lba: Lba(0), len, fua: true, may_punch: false };
    let cost = cost(&mut engine, |engine| drop(run(engine, zeroes).expect("zeroed")));
    assert!(cost.log_bytes <= cost.log_records * 4096, "{cost:?}: no content");
    assert!(cost.log_records > 0 && cost.log_records.is_multiple_of(5));
}
