//! Several engines for one array: what is on record before what, whoever of them writes, fails or flushes.

use rustix::io::Errno;
use uraid_io::bands::Bands;
use uraid_io::buf::Buf;
use uraid_io::disk::{Fault, OpName, Order};
use uraid_io::engine::{CacheMode, Command, EngineError, Joining};
use uraid_io::superblock::{Consistency, Integrity, SlotState};
use uraid_layout::{Lba, Level, MemberIndex, MemberSet, Sectors};

use crate::support::shards::Fleet;
use crate::support::{CHUNK, RAID5, Random, SECTOR, Shape, buf, noise};

/// Eight bands of a megabyte for three engines, and a bit.
const THREE: Shape = Shape {
    level: RAID5,
    members: 3,
    chunk: CHUNK,
    chunks: 1050,
    consistency: Consistency::None,
    integrity: Integrity::None,
};
const BAND: u64 = 2048;

fn write(shard: u64, at: u64, bytes: &[u8]) -> Command {
    Command::Write { lba: Lba(shard * BAND + at), buf: buf(bytes), fua: false }
}

fn fault(member: u8, name: OpName, count: u64) -> Fault {
    Fault { member: MemberIndex(member), name, after: 0, count, errno: Errno::IO }
}

fn recorded(fleet: &Fleet) -> MemberSet {
    fleet.watch(|watch| {
        let states = (0..).map(MemberIndex).zip(&watch.newest().slots);
        states.filter(|(_, slot)| slot.state == SlotState::Failed).map(|(slot, _)| slot).collect()
    })
}

/// The disk itself stops the test at a write of data that comes too early, and at a superblock from a follower.
#[test]
fn a_follower_writes_nothing_before_the_keeper_has_marked_the_members() {
    let mut fleet = Fleet::new(&THREE, 3, Order::Fifo, None);
    fleet.submit(1, 1, write(1, 0, &noise(1, 8)));
    fleet.settle(1);
    assert!(
        fleet.replies.is_empty() && fleet.watch(|watch| watch.newest().is_clean),
        "nobody has asked the keeper yet"
    );
    assert!(fleet.carry(1, 0));
    fleet.settle(1);
    assert!(fleet.replies.is_empty() && fleet.watch(|watch| watch.newest().is_clean), "the keeper has not turned yet");
    fleet.settle(0);
    assert!(!fleet.watch(|watch| watch.newest().is_clean));
    fleet.settle(1);
    assert!(fleet.replies.is_empty(), "the follower does not know");
    fleet.run();
    assert!(matches!(fleet.replies[..], [(1, Ok(None))]), "{:?}", fleet.replies);
    let rounds = fleet.watch(|watch| watch.newest().epoch.0);
    fleet.call(2, write(2, 0, &noise(2, 8))).expect("written");
    fleet.call(0, write(0, 0, &noise(3, 8))).expect("written");
    assert_eq!(fleet.watch(|watch| watch.newest().epoch.0), rounds, "what is on record need not be written again");
}

#[test]
fn no_write_is_replied_to_before_the_member_that_missed_it_is_on_record() {
    for failing in 0..3 {
        for shard in 0..3 {
            let mut fleet = Fleet::new(&THREE, 3, Order::Fifo, None);
            for each in 0..3 {
                fleet.call(each, write(each as u64, 0, &noise(1, 16))).expect("written");
            }
            let failed = MemberSet::EMPTY.with(MemberIndex(failing));
            fleet.watch(|watch| watch.inner.fail(fault(failing, OpName::Write, 1)));
            // Both data members and parity: one of them fails.
            fleet.submit(shard, 1, write(shard as u64, 0, &noise(2, 16)));
            if shard > 0 {
                fleet.settle(shard);
                assert!(fleet.replies.is_empty() && recorded(&fleet).is_empty(), "the keeper does not know yet");
                while fleet.carry(shard, 0) {}
                fleet.settle(0);
                assert_eq!(recorded(&fleet), failed);
                fleet.settle(shard);
                assert!(fleet.replies.is_empty(), "the follower does not know yet");
            }
            fleet.run();
            assert!(matches!(fleet.replies[..], [(1, Ok(None))]), "{:?}", fleet.replies);
            assert_eq!(recorded(&fleet), failed);
            for each in 0..3 {
                assert_eq!(fleet.engine(each).missing(), failed, "everybody knows");
                fleet.call(each, write(each as u64, 5, &noise(3, 20))).expect("written without the member");
                let read = Command::Read { lba: Lba(each as u64 * BAND + 5), buf: Buf::zeroed(Sectors(20).bytes()) };
                assert!(fleet.call(each, read).expect("read") == Some(noise(3, 20)));
            }
        }
    }
}

/// Two members fail, each seen by another engine: that is one too many, and nobody may go on.
#[test]
fn all_engines_freeze_when_their_failures_add_up() {
    for (first, second) in [(0, 1), (1, 0), (1, 2), (2, 1)] {
        let mut fleet = Fleet::new(&THREE, 3, Order::Fifo, None);
        for each in 0..3 {
            fleet.call(each, write(each as u64, 0, &noise(1, 16))).expect("written");
        }
        fleet.watch(|watch| watch.allows_late = true);
        for (shard, member) in [(first, 0), (second, 1)] {
            fleet.watch(|watch| watch.inner.fail(fault(member, OpName::Write, 1)));
            fleet.submit(shard, shard as u64, write(shard as u64, 0, &noise(2, 16)));
            fleet.settle(shard);
        }
        fleet.run();
        let failures: Vec<_> = fleet.replies.iter().filter(|(_, result)| result.is_err()).collect();
        assert!(!failures.is_empty(), "at least one write is lost: {:?}", fleet.replies);
        assert!(failures.iter().all(|(_, result)| matches!(result, Err(EngineError::Frozen))), "{failures:?}");
        assert!(recorded(&fleet).len() <= 1);
        for each in 0..3 {
            let read = Command::Read { lba: Lba(each as u64 * BAND), buf: Buf::zeroed(Sectors(1).bytes()) };
            assert!(matches!(fleet.call(each, read), Err(EngineError::Frozen)));
        }
    }
}

#[test]
fn a_follower_freezes_everybody() {
    let mut fleet = Fleet::new(&THREE, 2, Order::Fifo, None);
    fleet.call(1, write(1, 0, &noise(1, 16))).expect("written");
    fleet.watch(|watch| {
        watch.inner.fail(fault(0, OpName::Write, u64::MAX));
        watch.inner.fail(fault(1, OpName::Write, u64::MAX));
    });
    assert!(matches!(fleet.call(1, write(1, 0, &noise(2, 16))), Err(EngineError::Frozen)));
    fleet.watch(|watch| watch.inner.clear_faults());
    assert!(matches!(fleet.call(0, write(0, 0, &noise(2, 16))), Err(EngineError::Frozen)));
}

/// What was replied to is durable after a flush, wherever it is and whatever the caches hold.
#[test]
fn a_flush_of_all_engines_covers_what_all_have_written() {
    for caching in [None, Some(CacheMode::WriteBack), Some(CacheMode::WriteThrough)] {
        let mut fleet = Fleet::new(&THREE, 3, Order::Fifo, caching);
        for (round, each) in (0..3_u64).flat_map(|round| (0..3_usize).map(move |each| (round, each))) {
            fleet.call(each, write(each as u64, round, &noise(round, 16))).expect("written");
            let clock = fleet.watch(|watch| watch.clock());
            fleet.call(each, Command::Flush).expect("flushed");
            fleet.watch(|watch| watch.assert_flushed(clock, "a follower's flush"));
        }
        let fua = Command::Write { lba: Lba(BAND), buf: buf(&noise(4, 9)), fua: true };
        fleet.call(1, fua).expect("written");
        fleet.watch(|watch| watch.assert_flushed(watch.clock(), "a durable write"));
    }
}

#[test]
fn a_member_that_fails_a_followers_flush_is_on_record_before_the_reply() {
    for member in 0..3 {
        let mut fleet = Fleet::new(&THREE, 3, Order::Fifo, None);
        fleet.call(1, write(1, 0, &noise(1, 16))).expect("written");
        fleet.watch(|watch| watch.inner.fail(fault(member, OpName::Flush, 1)));
        fleet.submit(1, 1, Command::Flush);
        fleet.settle(1);
        while fleet.carry(1, 0) {}
        fleet.settle(0);
        fleet.settle(1);
        assert!(fleet.replies.is_empty(), "the follower does not know yet");
        assert_eq!(recorded(&fleet), MemberSet::EMPTY.with(MemberIndex(member)));
        fleet.run();
        assert!(matches!(fleet.replies[..], [(1, Ok(None))]), "{:?}", fleet.replies);
        fleet.watch(|watch| watch.assert_flushed(watch.clock(), "the members that are left"));
        assert!((0..3).all(|each| fleet.engine(each).missing() == recorded(&fleet)), "everybody knows");
    }
}

/// What the member dropped may be anybody's: no engine's flush succeeds after that.
#[test]
fn where_nothing_makes_up_for_a_failed_flush_all_later_ones_fail() {
    let shape = Shape { level: Level::Raid0, members: 2, ..THREE };
    let mut fleet = Fleet::new(&shape, 3, Order::Fifo, None);
    for each in 0..3 {
        fleet.call(each, write(each as u64, 0, &noise(1, 16))).expect("written");
    }
    fleet.watch(|watch| watch.inner.fail(fault(0, OpName::Flush, 1)));
    let failed = MemberSet::EMPTY.with(MemberIndex(0));
    for each in [1, 2, 0, 1] {
        let result = fleet.call(each, Command::Flush);
        assert!(matches!(result, Err(EngineError::FlushFailed { members }) if members == failed), "{each}: {result:?}");
    }
}

/// Random requests at random engines, everything late and in any order; then the keeper closes.
#[test]
fn engines_that_hear_of_each_other_late_keep_the_content() {
    let bands = Bands::new(&THREE.geometry(), 3);
    let capacity = THREE.geometry().capacity().0;
    for (seed, caching) in
        (0..12).zip([None, Some(CacheMode::WriteBack), Some(CacheMode::WriteThrough)].into_iter().cycle())
    {
        let mut random = Random(seed);
        let mut fleet = Fleet::new(&THREE, 3, Order::Seeded(seed), caching);
        let mut content = vec![0; usize::try_from(capacity).expect("small") * SECTOR];
        for request in 0..60 {
            let lba = random.below(capacity - 64);
            let bytes = noise(seed * 1000 + request, 1 + random.below(63));
            let at = usize::try_from(lba).expect("small") * SECTOR;
            content[at..at + bytes.len()].copy_from_slice(&bytes);
            for (shard, part) in bands.parts(Lba(lba)..Lba(lba + bytes.len() as u64 / 512)) {
                let from = usize::try_from(part.start.0 - lba).expect("small") * SECTOR;
                let to = usize::try_from(part.end.0 - lba).expect("small") * SECTOR;
                let fua = random.below(4) == 0;
                let write = Command::Write { lba: part.start, buf: buf(&bytes[from..to]), fua };
                fleet.submit(shard.index(), request, write);
            }
            if random.below(8) == 0 {
                (0..3).for_each(|shard| fleet.submit(shard, 1000, Command::Flush));
            }
            // Requests that overlap are one after the other.
            while fleet.engines_busy() {
                fleet.step(&mut random);
            }
        }
        assert!(fleet.replies.iter().all(|(_, result)| result.is_ok()), "{:?}", fleet.replies);
        for (shard, part) in bands.parts(Lba(0)..Lba(capacity)) {
            let range = usize::try_from(part.start.0).expect("small") * SECTOR
                ..usize::try_from(part.end.0).expect("small") * SECTOR;
            let read = Command::Read { lba: part.start, buf: Buf::zeroed(Sectors(part.end.0 - part.start.0).bytes()) };
            let found = fleet.call(shard.index(), read).expect("read").expect("with its buffer");
            assert!(found == content[range], "seed {seed}: {part:?}");
        }
        (1..3).for_each(|shard| drop(fleet.call(shard, Command::Flush).expect("flushed")));
        assert!(!fleet.watch(|watch| watch.newest().is_clean));
        fleet.call(0, Command::Close).expect("closed");
        assert!(fleet.watch(|watch| watch.newest().is_clean));
        fleet.watch(|watch| watch.assert_flushed(watch.clock(), "closed"));
    }
}

/// Whoever is asked: it is on record, everybody knows, and nobody joins while engines share the array.
#[test]
fn a_member_can_be_given_up_at_any_engine() {
    for shard in 0..3 {
        let mut fleet = Fleet::new(&THREE, 3, Order::Fifo, None);
        let slot = MemberIndex(1);
        fleet.call(shard, Command::Fail { member: slot }).expect("given up");
        assert_eq!(recorded(&fleet), MemberSet::EMPTY.with(slot));
        fleet.run();
        assert!((0..3).all(|each| fleet.engine(each).missing().contains(slot)), "everybody knows");
        for each in 0..3 {
            let content = noise(u64::from(slot.0), 16);
            fleet.call(each, write(each as u64, 0, &content)).expect("written without it");
            let superblock = THREE.superblocks().swap_remove(1);
            let joining = Joining { superblock, is_whole: true, generation: uuid::Uuid::from_bytes([9; 16]) };
            let reply = fleet.call(each, Command::Join(Box::new(joining)));
            assert!(matches!(reply, Err(EngineError::Shared)), "{reply:?}");
            let reply = fleet.call(each, Command::Fail { member: MemberIndex(0) });
            assert!(matches!(reply, Err(EngineError::Needed { .. })), "{reply:?}");
        }
    }
}
