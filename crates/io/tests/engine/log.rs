//! What the log costs, by the engine's own counters, and when writes are replied to that it has.

use rustix::io::Errno;
use uraid_io::disk::{Fault, OpName, Order};
use uraid_io::engine::{CacheMode, Command, MemberCounters, Reply};
use uraid_io::format::superblock::Consistency;
use uraid_layout::{Lba, Level, MemberIndex, MemberSet, Placement, Sectors};

use crate::support::{
    CHUNK, RAID5, RAID6, Shape, TestEngine, block, buf, cost, noise, recovered, rm2, run, run_all, small, with_cache,
    write,
};

fn logged(level: Level, members: u8) -> TestEngine {
    let shape = Shape { consistency: Consistency::Log, ..small(level, members) };
    shape.engine(MemberSet::EMPTY, Order::Fifo)
}

fn durable(lba: u64, seed: u64) -> Command {
    Command::Write { lba: Lba(lba), buf: buf(&noise(seed, 8)), fua: true }
}

#[test]
fn a_durable_write_logs_and_flushes_only_the_members_that_it_is_written_to() {
    for (level, members, touched) in [
        (RAID5, 5, 2),
        (RAID6, 6, 3),
        (rm2(3, Placement::Adjacent), 7, 3),
        (Level::Raid1, 3, 3),
        (Level::Raid10 { copies: 2 }, 4, 2),
    ] {
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

/// Without redundancy a member that fails to take what the log has can't be done without: its record is trimmed, and
/// what was flushed must not be in memory alone then.
#[test]
fn without_redundancy_a_flush_covers_what_is_in_place() {
    let shape = Shape { consistency: Consistency::Log, ..small(Level::Raid0, 2) };
    let (mut kept, mut refused) = (0, 0);
    for after in 0..12 {
        let engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
        let (mut engine, _pool) = with_cache(engine, Some((CacheMode::WriteBack, 64)));
        let (member, content) = (MemberIndex(0), noise(1, 8));
        let fault = Fault { member, name: OpName::Write, after, count: u64::MAX, errno: Errno::NOSPC };
        engine.disk_mut().inner.fail(fault);
        write(&mut engine, 0, &content).expect("in memory");
        let is_flushed = run(&mut engine, Command::Flush).is_ok();
        let is_durable = engine.disk().durable_data(member, content.len()) == content;
        assert_eq!(is_flushed, is_durable, "writes fail after {after}");
        *(if is_flushed { &mut kept } else { &mut refused }) += 1;
    }
    assert!(kept > 0 && refused > 0, "{kept} {refused}");
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

fn plain(lba: u64, seed: u64) -> Command {
    Command::Write { lba: Lba(lba), buf: buf(&noise(seed, 8)), fua: false }
}

fn reading(lba: u64) -> Command {
    Command::Read { lba: Lba(lba), buf: buf(&[0; 4096]) }
}

fn hold(engine: &mut TestEngine, name: OpName) {
    let members = engine.geometry().all_members();
    members.iter().for_each(|member| engine.disk_mut().hold(member, name));
}

fn let_go(engine: &mut TestEngine, name: OpName) {
    let members = engine.geometry().all_members();
    members.iter().for_each(|member| engine.disk_mut().let_go(member, name));
}

/// The replies of the commands that can end now.
fn turn(engine: &mut TestEngine) -> Vec<Reply<u64>> {
    let mut replies = Vec::new();
    engine.turn(&mut replies).expect("memory does not break");
    replies.sort_by_key(|reply| reply.token);
    replies
}

fn tokens(replies: &[Reply<u64>]) -> Vec<u64> {
    assert!(replies.iter().all(|reply| reply.result.is_ok()), "{replies:?}");
    replies.iter().map(|reply| reply.token).collect()
}

/// An engine whose members are marked dirty, with the first write's commit held back before its flush.
fn before_commit(level: Level, members: u8, command: Command) -> TestEngine {
    let mut engine = logged(level, members);
    run(&mut engine, durable(0, 1)).expect("written");
    hold(&mut engine, OpName::Flush);
    engine.submit(0, command);
    engine
}

#[test]
fn a_write_is_replied_to_when_its_record_is_written_and_reads_and_flushes_wait_for_it() {
    let mut engine = before_commit(RAID5, 5, plain(0, 2));
    assert_eq!(tokens(&turn(&mut engine)), [0]);
    let stripe = engine.geometry().stripe_sectors().0;
    engine.submit(1, reading(0));
    engine.submit(2, Command::Flush);
    engine.submit(3, reading(stripe));
    assert_eq!(tokens(&turn(&mut engine)), [3], "a read of another stripe waits for nothing");
    assert!(engine.disk().held() > 0, "the record is not durable");
    let_go(&mut engine, OpName::Flush);
    let replies = turn(&mut engine);
    assert_eq!(tokens(&replies), [1, 2]);
    let found = replies.into_iter().find_map(|reply| reply.result.ok().flatten()).expect("what was read");
    assert!(found.as_ref() == noise(2, 8), "the read sees what was replied to");
}

#[test]
fn a_durable_write_and_a_flush_are_replied_to_at_the_commit_and_a_close_is_not() {
    let mut engine = before_commit(rm2(3, Placement::Adjacent), 7, durable(0, 2));
    assert_eq!(tokens(&turn(&mut engine)), [0_u64; 0]);
    hold(&mut engine, OpName::Write);
    let_go(&mut engine, OpName::Flush);
    assert_eq!(tokens(&turn(&mut engine)), [0], "in the log it is durable");
    engine.submit(1, Command::Flush);
    engine.submit(2, Command::Close);
    engine.submit(3, reading(0));
    assert_eq!(tokens(&turn(&mut engine)), [1]);
    let_go(&mut engine, OpName::Write);
    let replies = turn(&mut engine);
    assert_eq!(tokens(&replies), [2, 3]);
    let found = replies.into_iter().find_map(|reply| reply.result.ok().flatten()).expect("what was read");
    assert!(found.as_ref() == noise(2, 8));
    let superblock = engine.disk().superblock(MemberIndex(0)).expect("it has one");
    assert!(superblock.is_clean, "the close marked it");
}

#[test]
fn without_redundancy_a_write_is_replied_to_when_it_is_in_place() {
    let mut engine = before_commit(Level::Raid0, 3, plain(0, 2));
    assert_eq!(tokens(&turn(&mut engine)), [0_u64; 0]);
    hold(&mut engine, OpName::Write);
    let_go(&mut engine, OpName::Flush);
    assert_eq!(tokens(&turn(&mut engine)), [0_u64; 0]);
    let_go(&mut engine, OpName::Write);
    assert_eq!(tokens(&turn(&mut engine)), [0]);
}

#[test]
fn a_record_that_a_member_lacks_is_replied_to_when_the_failure_is_on_record() {
    let mut engine = logged(RAID5, 5);
    run(&mut engine, durable(0, 1)).expect("written");
    // The first stripe's data is on the first member.
    let fault = Fault { member: MemberIndex(0), name: OpName::Write, after: 0, count: u64::MAX, errno: Errno::IO };
    engine.disk_mut().inner.fail(fault);
    hold(&mut engine, OpName::Flush);
    engine.submit(0, plain(0, 2));
    assert_eq!(tokens(&turn(&mut engine)), [0_u64; 0]);
    let_go(&mut engine, OpName::Flush);
    assert_eq!(tokens(&turn(&mut engine)), [0]);
    assert!(engine.missing().contains(MemberIndex(0)));
}

#[test]
fn what_is_replied_to_and_not_in_place_is_bounded() {
    let shape = Shape { consistency: Consistency::Log, chunk: 16 << 10, chunks: 300, ..small(RAID5, 5) };
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
    run(&mut engine, durable(0, 1)).expect("written");
    hold(&mut engine, OpName::Flush);
    // Zeros of whole stripes, of 64 KiB each, are all in one record; 16 MiB may be replied to.
    let len = engine.geometry().stripe_sectors();
    for token in 0..300 {
        let lba = Lba(token * len.0);
        engine.submit(token, Command::WriteZeroes { lba, len, fua: false, may_punch: false });
    }
    assert_eq!(tokens(&turn(&mut engine)).len(), 256);
    let_go(&mut engine, OpName::Flush);
    assert_eq!(tokens(&turn(&mut engine)).len(), 44);
}

/// A write that is not in place keeps what was logged after it from being trimmed, until the log has no room. Then all
/// of it is trimmed at once, and what comes next may not take its places before the members durably hold a mark that
/// says so: torn, it would leave the older of two writes of a block to be done again, without the newer one.
#[test]
fn a_place_in_the_log_is_used_again_when_the_mark_is_durable() {
    let shape = Shape { consistency: Consistency::Log, chunk: 4 * CHUNK, ..small(Level::Raid1, 2) };
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
    let stripe = engine.geometry().stripe_sectors().0;
    // The log has 16 blocks, and a write of a block takes two: the eighth takes the last ones.
    for seed in 0..7 {
        run(&mut engine, durable(0, seed)).expect("written");
    }
    engine.disk_mut().hold_next_data(MemberIndex(0));
    let waits = (2 * stripe, noise(50, 8));
    engine.submit(0, Command::Write { lba: Lba(waits.0), buf: buf(&waits.1), fua: false });
    assert_eq!(tokens(&turn(&mut engine)), [0]);
    assert_eq!(engine.disk().held(), 1, "it is logged and not in place");
    // From the log's start on: a block twice, then others until there is no room.
    let mut expected = vec![(0, noise(6, 8)), waits];
    let rewritten = 3 * stripe;
    for (lba, seed) in [(rewritten, 60), (rewritten, 61)].into_iter().chain((4..8).map(|at| (at * stripe, at))) {
        engine.submit(lba, plain(lba, seed));
        assert_eq!(tokens(&turn(&mut engine)), [lba]);
        expected.retain(|(other, _)| *other != lba);
        expected.push((lba, noise(seed, 8)));
    }
    let large = noise(70, stripe);
    engine.submit(1, Command::Write { lba: Lba(8 * stripe), buf: buf(&large), fua: false });
    assert_eq!(tokens(&turn(&mut engine)), [], "there is no room for it");
    hold(&mut engine, OpName::Write);
    engine.disk_mut().let_go(MemberIndex(0), OpName::Write);
    engine.disk_mut().hold(MemberIndex(0), OpName::Write);
    let (mut replies, mut torn) = (Vec::new(), 0);
    while replies.is_empty() {
        replies = tokens(&turn(&mut engine));
        assert!(engine.disk().held() > 0 || !replies.is_empty(), "it waits for nothing else");
        torn += 1;
        let mut after = recovered(&shape, engine.disk().torn());
        for (lba, content) in &expected {
            assert!(block(&mut after, *lba).expect("read") == *content, "sector {lba} after {torn} rounds");
        }
        let_go(&mut engine, OpName::Write);
        hold(&mut engine, OpName::Write);
    }
    assert_eq!(replies, [1]);
    assert!(torn > 1, "a mark comes before it");
}
