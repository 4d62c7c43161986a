//! The write-intent bitmap: what is set before what is written, what that costs, when it is cleared, and what is
//! computed again after an unclean stop. That no write comes too early and no bit is cleared too early is for the
//! watched disk to see, in every test.

use rustix::io::Errno;
use uraid_io::disk::{Fault, OpName, Order};
use uraid_io::engine::{CacheMode, Command, EngineError};
use uraid_io::format::superblock::Consistency;
use uraid_layout::{Lba, Level, MemberIndex, MemberSet, Placement};

use crate::content::Storm;
use crate::faults::assert_recorded;
use crate::support::{RAID5, Random, Shape, TestEngine, buf, noise, rm2, run, small, write};

/// Sectors of a region of a mirror of small chunks: a mebibyte.
pub(crate) const REGION: u64 = 2048;

/// Longer than a region has to be quiet for.
const LONG: usize = 100;

pub(crate) fn with_bitmap(level: Level, members: u8, chunks: u64) -> Shape {
    Shape { chunks, consistency: Consistency::Bitmap, ..small(level, members) }
}

/// Eight regions.
pub(crate) fn mirrors() -> Shape {
    with_bitmap(Level::Raid1, 2, 2048)
}

fn fault(member: u8, name: OpName, count: u64) -> Fault {
    Fault { member: MemberIndex(member), name, after: 0, count, errno: Errno::IO }
}

/// Operations since the last time that are not for data: writes, flushes.
fn metadata(engine: &mut TestEngine) -> (usize, usize) {
    let ops = std::mem::take(&mut engine.disk_mut().ops);
    let count = |name| ops.iter().filter(|op| !op.is_data && op.name == name).count();
    (count(OpName::Write), count(OpName::Flush))
}

fn set(engine: &TestEngine) -> Vec<u32> {
    engine.intent().expect("the array has a bitmap").iter().map(|region| region.0).collect()
}

/// The bits that a member has whatever a power cut leaves.
fn least(engine: &TestEngine, member: u8) -> Vec<u32> {
    let intents = engine.disk().intents.as_ref().expect("the array has bitmaps");
    intents.least(MemberIndex(member)).iter().map(|region| region.0).collect()
}

fn pass(engine: &mut TestEngine, ticks: usize) {
    for _ in 0..ticks {
        engine.tick();
        engine.turn(&mut Vec::new()).expect("memory does not break");
    }
}

#[test]
fn a_region_is_marked_once() {
    let mut engine = mirrors().engine(MemberSet::EMPTY, Order::Fifo);
    write(&mut engine, 0, &noise(1, 8)).expect("written");
    assert_eq!(metadata(&mut engine), (6, 4), "two superblocks and a bitmap for each of two members, flushed apart");
    for lba in [0, 8, REGION - 1] {
        write(&mut engine, lba, &noise(2, 1)).expect("written");
        assert_eq!(metadata(&mut engine), (0, 0), "the bit is set");
    }
    write(&mut engine, REGION, &noise(3, 1)).expect("written");
    assert_eq!(metadata(&mut engine), (2, 2), "another region");
    write(&mut engine, 3 * REGION - 1, &noise(4, 2)).expect("written");
    assert_eq!(metadata(&mut engine), (2, 2), "two regions at once");
    assert_eq!(
        (set(&engine), least(&engine, 0), least(&engine, 1)),
        (vec![0, 1, 2, 3], vec![0, 1, 2, 3], vec![0, 1, 2, 3])
    );
    run(&mut engine, Command::Close).expect("closed");
}

#[test]
fn an_array_without_a_bitmap_pays_nothing() {
    for consistency in [Consistency::None, Consistency::Bitmap] {
        let level = if consistency == Consistency::None { Level::Raid1 } else { Level::Raid0 };
        let mut engine = Shape { consistency, ..with_bitmap(level, 2, 2048) }.engine(MemberSet::EMPTY, Order::Fifo);
        write(&mut engine, 0, &noise(1, 8)).expect("written");
        assert_eq!(metadata(&mut engine), (4, 2), "{consistency:?}");
        assert!(engine.intent().is_none() && !engine.wants_ticks());
    }
}

/// Whoever comes together is in one write of the bitmap; whoever comes while it is being written goes into the next
/// one, all together.
#[test]
fn those_who_wait_share_a_round() {
    let mut engine = mirrors().engine(MemberSet::EMPTY, Order::Fifo);
    write(&mut engine, 0, &noise(1, 8)).expect("written");
    metadata(&mut engine);
    let at = |region: u64| Command::Write { lba: Lba(region * REGION), buf: buf(&noise(region, 8)), fua: false };
    let mut replies = Vec::new();
    engine.disk_mut().allow_reaps(0);
    for regions in [1..3, 3..8, 1..8] {
        regions.for_each(|region| engine.submit(region, at(region)));
        engine.turn(&mut replies).expect("memory does not break");
    }
    assert_eq!((replies.len(), engine.in_flight()), (0, 14), "the first round is under way");
    engine.disk_mut().allow_reaps(usize::MAX);
    engine.turn(&mut replies).expect("memory does not break");
    assert_eq!((replies.len(), engine.in_flight()), (14, 0));
    assert!(replies.iter().all(|reply| reply.result.is_ok()), "{replies:?}");
    assert_eq!(metadata(&mut engine), (4, 4), "the first ones', and everybody else's");
    assert_eq!(set(&engine), (0..8).collect::<Vec<_>>());
}

#[test]
fn quiet_regions_are_cleared_without_anybody_waiting() {
    for is_flushed in [false, true] {
        let mut engine = mirrors().engine(MemberSet::EMPTY, Order::Fifo);
        for region in [1, 3, 7] {
            write(&mut engine, region * REGION, &noise(region, 8)).expect("written");
        }
        if is_flushed {
            run(&mut engine, Command::Flush).expect("flushed");
        }
        metadata(&mut engine);
        assert!(engine.wants_ticks());
        pass(&mut engine, 20);
        assert_eq!((set(&engine), metadata(&mut engine)), (vec![1, 3, 7], (0, 0)), "not at once");
        write(&mut engine, 3 * REGION, &noise(4, 8)).expect("written");
        pass(&mut engine, 40);
        let flushes = if is_flushed { 0 } else { 2 };
        assert_eq!((set(&engine), metadata(&mut engine)), (vec![3], (2, flushes)), "together; 3 was written since");
        pass(&mut engine, LONG);
        assert_eq!((set(&engine), metadata(&mut engine)), (vec![], (2, if is_flushed { 2 } else { 0 })));
        assert_eq!(engine.disk().inner.counters(MemberIndex(0)).reads, 0);
        assert!(!engine.wants_ticks(), "nothing is left to do");
        write(&mut engine, 0, &noise(1, 8)).expect("written");
        assert_eq!(
            (least(&engine, 0), least(&engine, 1)),
            (vec![0], vec![0]),
            "what was cleared was cleared on the members"
        );
    }
}

#[test]
fn a_region_that_is_being_written_is_not_cleared() {
    let mut engine = mirrors().engine(MemberSet::EMPTY, Order::Fifo);
    write(&mut engine, 0, &noise(1, 8)).expect("written");
    write(&mut engine, REGION, &noise(1, 8)).expect("written");
    run(&mut engine, Command::Flush).expect("flushed");
    engine.disk_mut().hold(MemberIndex(1), OpName::Write);
    engine.submit(1, Command::Write { lba: Lba(0), buf: buf(&noise(2, 8)), fua: false });
    pass(&mut engine, 3 * LONG);
    assert_eq!(set(&engine), [0]);
    engine.disk_mut().let_go(MemberIndex(1), OpName::Write);
    pass(&mut engine, 3 * LONG);
    assert_eq!((set(&engine), engine.in_flight()), (vec![], 0));
}

/// The bits say what a member that comes back lacks.
#[test]
fn nothing_is_cleared_while_a_member_is_missing() {
    let mut engine = mirrors().engine(MemberSet::EMPTY, Order::Fifo);
    write(&mut engine, 0, &noise(1, 8)).expect("written");
    engine.disk_mut().inner.fail(fault(1, OpName::Write, u64::MAX));
    write(&mut engine, 8, &noise(2, 8)).expect("written to the other");
    write(&mut engine, 5 * REGION, &noise(3, 8)).expect("written to the other");
    run(&mut engine, Command::Flush).expect("flushed");
    assert!(!engine.wants_ticks(), "there is nothing to wait for");
    pass(&mut engine, 3 * LONG);
    assert_eq!((set(&engine), least(&engine, 0)), (vec![0, 5], vec![0, 5]));
    run(&mut engine, Command::Close).expect("closed");
    assert_eq!(least(&engine, 0), [0, 5], "nor by closing");
}

#[test]
fn a_member_that_can_not_be_marked_has_failed() {
    for name in [OpName::Write, OpName::Flush] {
        for member in 0..2 {
            let mut engine = mirrors().engine(MemberSet::EMPTY, Order::Fifo);
            write(&mut engine, 0, &noise(1, 8)).expect("written");
            engine.disk_mut().inner.fail(fault(member, name, 1));
            write(&mut engine, REGION, &noise(2, 8)).expect("written to the other");
            let failed = MemberSet::EMPTY.with(MemberIndex(member));
            assert_eq!(engine.missing(), failed);
            assert_recorded(&engine, failed, &format!("{name} of member {member}"));
            assert_eq!(least(&engine, 1 - member), [0, 1]);
        }
        let mut engine = mirrors().engine(MemberSet::EMPTY, Order::Fifo);
        write(&mut engine, 0, &noise(1, 8)).expect("written");
        engine.disk_mut().inner.fail(fault(0, name, u64::MAX));
        engine.disk_mut().inner.fail(fault(1, name, u64::MAX));
        engine.disk_mut().ops.clear();
        let result = write(&mut engine, REGION, &noise(2, 8));
        assert!(matches!(result, Err(EngineError::Frozen)), "{result:?}");
        assert!(engine.disk().ops.iter().all(|op| !op.is_data), "nothing is written that is not marked");
    }
}

/// Small arrays of several regions, of every level that has something to mark.
pub(crate) fn shapes() -> [Shape; 5] {
    [
        with_bitmap(Level::Raid1, 2, 700),
        with_bitmap(Level::Raid1, 3, 700),
        with_bitmap(Level::Raid10 { copies: 2 }, 5, 300),
        with_bitmap(RAID5, 3, 400),
        with_bitmap(rm2(3, Placement::Adjacent), 7, 300),
    ]
}

#[test]
fn concurrent_commands_with_a_bitmap() {
    let cachings = [None, Some((CacheMode::WriteBack, 64)), Some((CacheMode::WriteThrough, 512))];
    for (index, shape) in (0..).zip(shapes()) {
        for (caching, seed) in cachings.into_iter().zip(index * 10..) {
            let order = if seed % 3 == 0 { Order::Lifo } else { Order::Seeded(seed) };
            let mut storm = Storm::new(shape, MemberSet::EMPTY, order, seed, caching);
            let mut random = Random(seed);
            for round in 1..8 {
                storm.run(round * 25);
                let ticks = usize::try_from(random.below(160)).expect("small");
                pass(&mut storm.engine, ticks);
            }
            pass(&mut storm.engine, 3 * LONG);
            assert_eq!(set(&storm.engine), [0; 0], "all is quiet");
            storm.finish();
        }
    }
}

/// The same, and a member dies: from any operation on, or in one alone.
#[test]
fn members_die_while_regions_are_marked() {
    for (index, shape) in (0..).zip(shapes()) {
        for seed in 0..12 {
            let mut storm = Storm::new(shape, MemberSet::EMPTY, Order::Seeded(seed), 100 + index * 100 + seed, None);
            let name = [OpName::Write, OpName::Flush][(seed % 2) as usize];
            let (after, count) = (storm.random.below(40), if seed % 3 == 0 { 1 } else { u64::MAX });
            let member = u8::try_from(seed % u64::from(shape.members)).expect("small");
            storm.engine.disk_mut().inner.fail(Fault { after, ..fault(member, name, count) });
            storm.run(60);
            storm.finish();
        }
    }
}
