//! Members that are given up, members that join, and how they get their content while clients go on.

use std::collections::HashMap;

use rustix::io::Errno;
use uraid_io::array::recover;
use uraid_io::disk::{Fault, Image, MemDisk, OpName, Order};
use uraid_io::engine::{Command, EngineError, Joining, Progress};
use uraid_io::format::badblocks::BadBlocks;
use uraid_io::format::superblock::{Consistency, SlotState, Superblock, encode};
use uraid_layout::{Bytes, DiskSector, Lba, Level, Location, MemberIndex, MemberSet, Placement, StripeId};
use uuid::Uuid;

use crate::content::Storm;
use crate::faults::correct;
use crate::recovery::{assembled, superblock};
use crate::support::model::Model;
use crate::support::watch::Watch;
use crate::support::{
    Members, RAID5, RAID6, Random, Shape, TestEngine, assert_encoded, buf, images, noise, read, rm2, run, run_all,
    shapes, size, small, tolerated, write,
};

/// An engine that rebuilds, with content on its members.
pub(crate) fn filled(shape: Shape, order: Order) -> (TestEngine, Vec<u8>) {
    let mut engine = shape.engine(MemberSet::EMPTY, order).with_rebuild();
    let content = noise(2, engine.geometry().capacity().0);
    write(&mut engine, 0, &content).expect("written");
    (engine, content)
}

/// Puts a new member in at a slot, whose data is anything, and says how it joins.
pub(crate) fn new_member(engine: &mut TestEngine, shape: &Shape, slot: MemberIndex, number: u8) -> Command {
    engine.disk_mut().put(slot, new_bytes(shape, slot));
    Command::Join(Box::new(joining(shape, slot, number)))
}

/// A new member's bytes: where the array will have content, anything.
pub(crate) fn new_bytes(shape: &Shape, slot: MemberIndex) -> Image {
    let areas = shape.superblocks()[slot.index()].areas;
    let mut image = Image::zeroed(size(areas.member_size));
    let data = size(areas.data.offset);
    let geometry = shape.geometry();
    for chunk in 0..shape.chunks {
        // Of what the array does not use the encoder knows that it is zero.
        let at = Location { member: slot, sector: DiskSector(chunk * shape.chunk / 512) };
        if geometry.owner(at).is_some() {
            image.write(data + size(Bytes(chunk * shape.chunk)), &vec![0xA5; size(Bytes(shape.chunk))]);
        }
    }
    image
}

/// What a new member says of itself; numbers tell several apart.
pub(crate) fn joining(shape: &Shape, slot: MemberIndex, number: u8) -> Joining {
    let superblock = shape.superblocks().swap_remove(slot.index());
    let superblock = Superblock { member: Uuid::from_bytes([100 + number; 16]), ..superblock };
    Joining {
        superblock,
        is_whole: true,
        generation: Uuid::from_bytes([200 + number; 16]),
        bad_blocks: BadBlocks::default(),
    }
}

/// As the array knew a member when it was given up: it comes back.
fn returning(shape: &Shape, slot: MemberIndex, engine: &TestEngine) -> Command {
    let superblock = engine.disk().superblock(slot).expect("it has a superblock");
    assert_eq!(superblock.member, shape.superblocks()[slot.index()].member);
    Command::Join(Box::new(Joining {
        superblock,
        is_whole: false,
        generation: Uuid::from_bytes([250; 16]),
        bad_blocks: BadBlocks::default(),
    }))
}

pub(crate) fn fail(member: MemberIndex) -> Command {
    Command::Fail { member }
}

/// The states that every member has durably on record.
pub(crate) fn states(engine: &TestEngine) -> Vec<SlotState> {
    let newest = engine.disk().newest();
    for member in engine.geometry().all_members().minus(engine.missing()).iter() {
        let own = engine.disk().durable(member).expect("a present member has a superblock");
        assert_eq!((own.epoch, &own.slots), (newest.epoch, &newest.slots), "member {member} says what all say");
        assert_eq!(own.slots[member.index()].member, own.member);
    }
    newest.slots.iter().map(|record| record.state).collect()
}

pub(crate) fn assert_whole(engine: &TestEngine, context: &str) {
    assert!(engine.missing().is_empty() && engine.rebuilding().is_none(), "{context}: {:?}", engine.rebuilding());
    assert!(states(engine).iter().all(|&state| state == SlotState::Active), "{context}: {:?}", states(engine));
}

pub(crate) fn logged(shape: Shape) -> Shape {
    Shape { consistency: Consistency::Log, ..shape }
}

pub(crate) fn redundant() -> impl Iterator<Item = Shape> {
    shapes().into_iter().filter(|shape| shape.geometry().tolerance() > 0)
}

#[test]
fn every_lost_set_is_rebuilt_in_one_pass() {
    for shape in redundant().flat_map(|shape| [shape, logged(shape), shape.checked()]) {
        for lost in tolerated(&shape.geometry()).into_iter().skip(1) {
            let context = format!("{shape:?}, {lost:?}");
            let (mut engine, mut content) = filled(shape, Order::Seeded(3));
            run_all(&mut engine, lost.iter().map(fail).collect())
                .into_iter()
                .for_each(|reply| drop(reply.expect("given up")));
            assert_eq!(engine.missing(), lost, "{context}");
            let new = noise(9, 16);
            write(&mut engine, 8, &new).expect("written without them");
            content[8 * 512..][..new.len()].copy_from_slice(&new);
            let before = engine.counters().clone();
            let joins = lost.iter().map(|slot| new_member(&mut engine, &shape, slot, slot.0)).collect();
            run_all(&mut engine, joins).into_iter().for_each(|reply| drop(reply.expect("joined")));
            assert_whole(&engine, &context);
            assert_encoded(&engine, &content, &context);
            let used = engine.geometry().used_sectors().bytes().0;
            for member in engine.geometry().all_members().iter() {
                let (now, then) = (*engine.counters().member(member), *before.member(member));
                let (read, written) = (now.read_bytes - then.read_bytes, now.written_bytes - then.written_bytes);
                if lost.contains(member) {
                    assert_eq!(
                        (read, written <= used),
                        (0, true),
                        "{context}: member {member} is written once, {written}"
                    );
                } else {
                    assert!(read <= used && written == 0, "{context}: member {member} is read once, {read} of {used}");
                    assert!(shape.level != RAID5 || read == used, "{context}: and all of it");
                }
            }
            let capacity = engine.geometry().capacity().0;
            assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}");
            // What the new members hold is as good as any: others can be lost now.
            let next = engine.geometry().all_members().minus(lost).iter().next().expect("more than are lost");
            drop(run(&mut engine, fail(next)).expect("given up"));
            assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}: without {next}");
        }
    }
}

/// Checksums that were lost on another member keep nothing from being rebuilt, as there is nothing else to rebuild it
/// from.
#[test]
fn a_member_is_rebuilt_beside_one_that_lost_checksums() {
    let shape = small(RAID5, 3).checked();
    let (mut engine, content) = filled(shape, Order::Fifo);
    run(&mut engine, Command::Close).expect("closed");
    let table = size(shape.superblocks()[0].areas.sums.offset);
    let mut left: Members = images(&engine);
    left[0].as_mut().expect("present")[table] ^= 1;
    left[2] = None;
    let mut engine = shape.reopened(left, Order::Fifo).with_rebuild();
    let join = new_member(&mut engine, &shape, MemberIndex(2), 2);
    drop(run(&mut engine, join).expect("joined"));
    assert_whole(&engine, "rebuilt");
    let capacity = engine.geometry().capacity().0;
    assert!(read(&mut engine, 0, capacity).expect("read") == content);
}

#[test]
fn clients_go_on_while_members_are_rebuilt() {
    for (index, shape) in (0..).zip(redundant()) {
        let bitmap = Shape { consistency: Consistency::Bitmap, ..shape };
        for (number, shape) in (0..).zip([shape, logged(shape), bitmap, shape.checked()]) {
            // A part of them; other shapes and other ways to be consistent have the others.
            let sets = (0..).zip(tolerated(&shape.geometry()).into_iter().skip(1));
            for (turn, lost) in sets.filter(|(turn, _)| (turn + index + number) % 4 == 0) {
                let seed = index * 1000 + number * 100 + turn;
                let caching = crate::content::caching(seed);
                let mut storm = Storm::new(shape, MemberSet::EMPTY, Order::Seeded(seed), seed, caching);
                storm.is_changing();
                storm.engine = storm.engine.with_rebuild();
                storm.run(30);
                lost.iter().for_each(|member| storm.change(fail(member)));
                storm.run(60);
                for member in lost.iter() {
                    let join = new_member(&mut storm.engine, &shape, member, member.0);
                    storm.change(join);
                }
                storm.run(200);
                storm.settle();
                assert_whole(&storm.engine, &format!("{shape:?}, {lost:?}"));
                storm.finish();
            }
        }
    }
}

#[test]
fn what_returns_is_rebuilt_where_the_bitmap_says() {
    let mirrors = crate::intent::mirrors();
    for shape in [mirrors, logged(mirrors), logged(crate::intent::with_bitmap(RAID5, 4, 2048))] {
        let region = crate::intent::REGION.next_multiple_of(shape.geometry().stripe_sectors().0);
        let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo).with_rebuild();
        let slot = MemberIndex(1);
        let sectors = engine.geometry().capacity().0;
        write(&mut engine, 0, &noise(1, sectors)).expect("written");
        drop(run(&mut engine, Command::Close).expect("closed"));
        pass(&mut engine, 100);
        assert!(engine.intent().expect("a bitmap").is_empty(), "{shape:?}: all is quiet");
        drop(run(&mut engine, fail(slot)).expect("given up"));
        for touched in [2, 5] {
            write(&mut engine, touched * region + 8, &noise(touched, 8)).expect("written");
        }
        let set: Vec<_> = engine.intent().expect("a bitmap").iter().collect();
        assert_eq!(set.len(), 2, "{shape:?}: {set:?}");
        let regions = engine.intent().expect("a bitmap").regions();
        let stripes: u64 = set.iter().map(|&region| regions.stripes(region)).map(|all| all.end.0 - all.start.0).sum();
        let content = read(&mut engine, 0, sectors).expect("read");
        let before = engine.counters().total().read_bytes;
        let join = returning(&shape, slot, &engine);
        drop(run(&mut engine, join).expect("joined"));
        assert_whole(&engine, "returned");
        let others = u64::from(shape.members) - 1;
        let read = engine.counters().total().read_bytes - before;
        assert_eq!(read, others * stripes * shape.chunk, "{shape:?}: the two regions, once each");
        assert_encoded(&engine, &content, "returned");
    }
}

/// A member that was given up under load, with or without its latest writes, returns under load; it has everything
/// then.
#[test]
fn what_returns_under_load_lacks_nothing() {
    for (number, level) in (0..).zip([RAID5, Level::Raid1, rm2(3, Placement::Adjacent)]) {
        let members = if matches!(level, Level::Rm2 { .. }) { 7 } else { 4 };
        let shape = logged(crate::intent::with_bitmap(level, members, 1100));
        for turn in 0..12 {
            let seed = number * 100 + turn;
            let mut storm =
                Storm::new(shape, MemberSet::EMPTY, Order::Seeded(seed), seed, crate::content::caching(seed));
            storm.is_changing();
            storm.engine = storm.engine.with_rebuild();
            // The second time what the members have of the first must not count: then something else is written.
            let half = storm.engine.geometry().capacity().0 / 2;
            for time in 0..2 {
                storm.within(time * half..(time + 1) * half);
                storm.run(storm.next() + 40);
                let slot = MemberIndex(u8::try_from((turn + time) % u64::from(members)).expect("small"));
                storm.change(fail(slot));
                storm.run(storm.next() + 60);
                pass(&mut storm.engine, 30);
                let join = returning(&shape, slot, &storm.engine);
                storm.change(join);
                storm.run(storm.next() + 40);
                storm.settle();
                assert_whole(&storm.engine, &format!("{shape:?}, {slot:?}, {seed}"));
            }
            storm.finish();
        }
    }
}

/// The bits say what it lacks, to the next start, too.
#[test]
fn bits_stay_set_until_a_member_that_returns_has_everything() {
    let shape = crate::intent::mirrors();
    let region = crate::intent::REGION;
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo).with_rebuild();
    let slot = MemberIndex(1);
    let pass = |engine: &mut TestEngine, ticks| {
        (0..ticks).for_each(|_| {
            engine.tick();
            engine.turn(&mut Vec::new()).expect("memory does not break");
        });
    };
    let sectors = engine.geometry().capacity().0;
    write(&mut engine, 0, &noise(1, sectors)).expect("written");
    pass(&mut engine, 100);
    assert!(engine.intent().expect("a bitmap").is_empty(), "all is quiet");
    drop(run(&mut engine, fail(slot)).expect("given up"));
    write(&mut engine, 2 * region, &noise(2, 8)).expect("written");
    engine.set_rebuild_limit(Some(Bytes(1)));
    let join = returning(&shape, slot, &engine);
    drop(run(&mut engine, join).expect("joined"));
    pass(&mut engine, 200);
    assert!(engine.rebuilding().is_some(), "it takes long");
    assert!(!engine.intent().expect("a bitmap").is_empty(), "it lacks a region");
    engine.set_rebuild_limit(None);
    drop(run(&mut engine, Command::Flush).expect("flushed"));
    assert_whole(&engine, "rebuilt");
    pass(&mut engine, 100);
    assert!(engine.intent().expect("a bitmap").is_empty(), "all is quiet again");
}

#[test]
fn a_member_without_a_bitmap_is_rebuilt_whole_though_it_returns() {
    let shape = small(RAID5, 5);
    let (mut engine, content) = filled(shape, Order::Fifo);
    let slot = MemberIndex(3);
    drop(run(&mut engine, fail(slot)).expect("given up"));
    let before = engine.counters().total().read_bytes;
    let join = returning(&shape, slot, &engine);
    drop(run(&mut engine, join).expect("joined"));
    assert_eq!(engine.counters().total().read_bytes - before, 4 * engine.geometry().used_sectors().bytes().0);
    assert_whole(&engine, "returned");
    assert_encoded(&engine, &content, "returned");
}

fn pass(engine: &mut TestEngine, ticks: usize) {
    for _ in 0..ticks {
        engine.tick();
        engine.turn(&mut Vec::new()).expect("memory does not break");
    }
}

/// Nobody has written since: nothing else has put it on record.
#[test]
fn who_was_missing_from_the_start_is_put_on_record_when_that_is_asked_for() {
    for shape in [small(RAID5, 4), small(rm2(3, Placement::Adjacent), 7)] {
        let slot = MemberIndex(2);
        let mut engine = shape.engine(MemberSet::EMPTY.with(slot), Order::Fifo);
        assert!(engine.superblock().slots[slot.index()].state.is_written());
        drop(run(&mut engine, fail(slot)).expect("put on record"));
        for (number, member) in images(&engine).into_iter().enumerate().filter(|&(number, _)| number != slot.index()) {
            let own = superblock(&member.expect("it is there"));
            assert_eq!(own.slots[slot.index()].state, SlotState::Failed, "member {number}");
            assert!(own.is_clean, "member {number}: nothing was written");
        }
        let reply = run(&mut engine, fail(slot));
        assert!(matches!(reply, Err(EngineError::NotThere { .. })), "{reply:?}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let shape = small(RAID5, 4);
    let (mut engine, _) = filled(shape, Order::Fifo);
    let join = new_member(&mut shape.engine(MemberSet::EMPTY, Order::Fifo), &shape, MemberIndex(1), 1);
    let Command::Join(joining) = join else { panic!("a join") };
    let again = || Command::Join(joining.clone());
    let reply = run(&mut engine, again());
    assert!(matches!(reply, Err(EngineError::NotMissing { member: MemberIndex(1) })), "{reply:?}");
    let reply = run(&mut engine, fail(MemberIndex(4)));
    assert!(matches!(reply, Err(EngineError::NotThere { .. })), "{reply:?}");
    drop(run(&mut engine, fail(MemberIndex(1))).expect("given up"));
    let reply = run(&mut engine, fail(MemberIndex(1)));
    assert!(matches!(reply, Err(EngineError::NotThere { .. })), "{reply:?}");
    let reply = run(&mut engine, fail(MemberIndex(0)));
    assert!(matches!(reply, Err(EngineError::Needed { member: MemberIndex(0) })), "{reply:?}");
    assert_eq!(engine.missing(), MemberSet::EMPTY.with(MemberIndex(1)));
    let mut other = joining.clone();
    other.superblock.member = shape.superblocks()[2].member;
    let reply = run(&mut engine, Command::Join(other));
    assert!(matches!(reply, Err(EngineError::Unsuited { .. })), "{reply:?}");
    let mut short = joining.clone();
    short.superblock.areas.data.size = Bytes(4096);
    let reply = run(&mut engine, Command::Join(short));
    assert!(matches!(reply, Err(EngineError::Unsuited { .. })), "{reply:?}");
    let mut none = small(Level::Raid0, 3).engine(MemberSet::EMPTY, Order::Fifo);
    let reply = run(&mut none, fail(MemberIndex(0)));
    assert!(matches!(reply, Err(EngineError::Needed { .. })), "{reply:?}");
}

#[test]
fn a_joining_member_that_fails_is_missing_again() {
    for name in [OpName::Write, OpName::Flush] {
        for after in 0..12 {
            let shape = logged(small(RAID5, 4));
            let (mut engine, content) = filled(shape, Order::Seeded(after));
            let slot = MemberIndex(2);
            drop(run(&mut engine, fail(slot)).expect("given up"));
            let join = new_member(&mut engine, &shape, slot, 7);
            let fault = Fault { member: slot, name, after, count: 1, errno: Errno::IO };
            engine.disk_mut().inner.fail(fault);
            let reply = run(&mut engine, join);
            let context = format!("{name:?} fails after {after}: {reply:?}");
            let was_hit = engine.missing().contains(slot);
            if !was_hit {
                // There were not that many.
                assert_whole(&engine, &context);
                continue;
            }
            assert!(engine.rebuilding().is_none(), "{context}");
            let capacity = engine.geometry().capacity().0;
            assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}");
            drop(run(&mut engine, Command::Close).expect("closed"));
            assert_eq!(states(&engine)[2], SlotState::Failed, "{context}");
            let join = new_member(&mut engine, &shape, slot, 8);
            engine.disk_mut().inner.clear_faults();
            drop(run(&mut engine, join).expect("joined"));
            assert_whole(&engine, &context);
            assert_encoded(&engine, &content, &context);
        }
    }
}

/// What is on record of a member that was being rebuilt, and is not there any more, is not of the one that joins.
#[test]
fn a_member_that_joins_for_one_that_was_being_rebuilt_is_on_record() {
    let shape = logged(small(RAID5, 4));
    let slot = MemberIndex(2);
    let mut members = shape.members(MemberSet::EMPTY.with(slot));
    for (bytes, superblock) in members.iter_mut().zip(shape.superblocks()) {
        let mut superblock = superblock;
        superblock.slots[slot.index()].state = SlotState::Rebuilding { upto: StripeId(0), is_whole: true };
        for position in superblock.write_positions() {
            bytes.iter_mut().for_each(|bytes| bytes[size(position)..][..4096].copy_from_slice(&encode(&superblock)));
        }
    }
    let mut engine = shape.reopened(members, Order::Fifo);
    let join = new_member(&mut engine, &shape, slot, 7);
    drop(run(&mut engine, join).expect("joined"));
    let own = engine.disk().durable(slot).expect("it says that it belongs to the array").member;
    assert_eq!(own, joining(&shape, slot, 7).superblock.member);
    assert_eq!(states(&engine)[2], SlotState::Rebuilding { upto: StripeId(0), is_whole: true });
    assert_eq!(engine.disk().newest().slots[2].member, own, "the others know it");
}

/// Runs some turns of few completions each.
fn some_turns(engine: &mut TestEngine, random: &mut Random, turns: u64) {
    let mut replies = Vec::new();
    for _ in 0..turns {
        engine.disk_mut().allow_reaps(1 + size(Bytes(random.below(2))));
        engine.turn(&mut replies).expect("memory does not break");
    }
    assert!(replies.iter().all(|reply| reply.result.is_ok()), "{replies:?}");
}

#[test]
fn another_member_fails_midway() {
    let mut was_midway = 0;
    for level in [rm2(3, Placement::Adjacent), RAID5] {
        let shape = Shape { chunks: 90, ..logged(small(level, 7)) };
        for turns in 0..40 {
            let (mut engine, content) = filled(shape, Order::Seeded(turns));
            let mut random = Random(turns);
            drop(run(&mut engine, fail(MemberIndex(2))).expect("given up"));
            let join = new_member(&mut engine, &shape, MemberIndex(2), 7);
            engine.submit(77, join);
            some_turns(&mut engine, &mut random, turns);
            let is_midway =
                engine.rebuilding().is_some_and(|progress| progress.done.0 > 0 && progress.done < progress.total);
            was_midway += u64::from(is_midway);
            let context = format!("{shape:?}, after {turns} turns, {:?}", engine.rebuilding());
            engine.submit(78, fail(MemberIndex(5)));
            engine.disk_mut().allow_reaps(usize::MAX);
            let mut replies = Vec::new();
            engine.turn(&mut replies).expect("memory does not break");
            while engine.wants_turn() {
                engine.turn(&mut replies).expect("memory does not break");
            }
            let given_up = engine.missing().contains(MemberIndex(5));
            assert!(given_up || level == RAID5, "{context}: RM2 survives it");
            assert!(engine.rebuilding().is_none() || level == RAID5, "{context}");
            let capacity = engine.geometry().capacity().0;
            assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}");
            assert_encoded(&engine, &content, &context);
        }
    }
    assert!(was_midway > 10, "{was_midway} were midway");
}

/// Not on record yet, but that need not be waited for.
#[test]
fn another_member_joins_when_one_has_everything() {
    let mut joined = 0;
    for shape in [small(RAID5, 4), logged(small(RAID5, 4)), small(Level::Raid10 { copies: 2 }, 3)] {
        for seed in 0..400 {
            let [first, second] = [MemberIndex(1), MemberIndex(2)];
            let (mut engine, content) = filled(shape, Order::Seeded(seed));
            drop(run(&mut engine, fail(first)).expect("given up"));
            let join = new_member(&mut engine, &shape, first, 1);
            engine.submit(1, join);
            let (mut replies, mut turns) = (Vec::new(), 0);
            let mut one_by_one = |engine: &mut TestEngine| {
                engine.disk_mut().allow_reaps(1);
                engine.turn(&mut replies).expect("memory does not break");
                assert!(replies.iter().all(|reply| reply.result.is_ok()), "{shape:?}, seed {seed}: {replies:?}");
                turns += 1;
                assert!(turns < 10_000, "{shape:?}, seed {seed}: it never ends");
                replies.len()
            };
            // As soon as the array can do without the other.
            while engine.missing().contains(first)
                || engine.rebuilding().is_some_and(|rebuilding| !has_all(&rebuilding))
            {
                one_by_one(&mut engine);
            }
            engine.submit(2, fail(second));
            assert!(engine.missing().contains(second), "{shape:?}, seed {seed}");
            while engine.superblock().slots[second.index()].state != SlotState::Failed {
                one_by_one(&mut engine);
            }
            joined += u64::from(engine.rebuilding().is_some());
            let join = new_member(&mut engine, &shape, second, 2);
            engine.submit(3, join);
            while one_by_one(&mut engine) < 3 {}
            drop(run(&mut engine, Command::Flush).expect("flushed"));
            assert_whole(&engine, &format!("{shape:?}, seed {seed}"));
            assert_encoded(&engine, &content, &format!("{shape:?}, seed {seed}"));
        }
    }
    assert!(joined > 20, "{joined} joined before that was on record");
}

fn has_all(progress: &Progress) -> bool {
    progress.done == progress.total
}

/// What is found while a member waits to join is healed later: the join waits for all that is being healed.
#[test]
fn a_read_error_under_way_does_not_keep_a_member_from_joining() {
    let shape = small(Level::Raid1, 3);
    let (mut engine, content) = filled(shape, Order::Fifo);
    let slot = MemberIndex(2);
    drop(run(&mut engine, fail(slot)).expect("given up"));
    let join = new_member(&mut engine, &shape, slot, 7);
    let data = shape.superblocks()[0].areas.data.offset.0;
    for member in [0_u8, 1] {
        // Whichever of the copies is read.
        let offset = Bytes(data + u64::from(member) * crate::support::CHUNK);
        engine.disk_mut().inner.spoil(MemberIndex(member), offset, Bytes(512));
    }
    let capacity = engine.geometry().capacity().0;
    engine.disk_mut().allow_reaps(0);
    engine.submit(1, Command::Read { lba: Lba(0), buf: buf(&vec![0; content.len()]) });
    let mut replies = Vec::new();
    engine.turn(&mut replies).expect("memory does not break");
    engine.submit(2, join);
    engine.disk_mut().allow_reaps(usize::MAX);
    engine.turn(&mut replies).expect("memory does not break");
    let ends: Vec<(u64, bool)> = replies.iter().map(|reply| (reply.token, reply.result.is_ok())).collect();
    assert_eq!(ends, [(1, true), (2, true)], "{replies:?}");
    drop(run(&mut engine, Command::Flush).expect("flushed"));
    assert!(read(&mut engine, 0, capacity).expect("read") == content);
    drop(run(&mut engine, Command::Flush).expect("flushed"));
    assert!(engine.counters().total().repaired > 0, "it is found again, and healed then");
    assert_whole(&engine, "joined");
    assert_encoded(&engine, &content, "joined");
}

#[test]
fn a_limit_is_kept_and_clients_come_first() {
    let shape = Shape { chunks: 64, ..small(RAID5, 4) };
    let (mut engine, _) = filled(shape, Order::Fifo);
    drop(run(&mut engine, fail(MemberIndex(1))).expect("given up"));
    engine.set_rebuild_limit(Some(Bytes(40 * 4096)));
    let join = new_member(&mut engine, &shape, MemberIndex(1), 7);
    drop(run(&mut engine, join).expect("joined"));
    let written = |engine: &TestEngine| engine.counters().member(MemberIndex(1)).written_bytes;
    let before = written(&engine);
    // A tick is a tenth of a second: four stripes' worth.
    for ticks in 1..=10_u64 {
        engine.tick();
        engine.turn(&mut Vec::new()).expect("memory does not break");
        let moved = written(&engine) - before;
        assert!(moved.abs_diff(ticks * 4 * 4096) <= 4096, "{moved} after {ticks} ticks");
    }
    engine.set_rebuild_limit(None);
    assert!(engine.wants_ticks());
    drop(run(&mut engine, Command::Flush).expect("flushed"));
    assert_whole(&engine, "without a limit it ends");
    assert!(!engine.wants_ticks(), "nothing is left to do");
}

/// What a client asks for waits for one stripe at most, also where members answer at once.
#[test]
fn while_clients_want_something_a_turn_makes_one_stripe() {
    let shape = Shape { chunks: 64, ..small(RAID5, 4) };
    let (mut engine, _) = filled(shape, Order::Fifo);
    drop(run(&mut engine, fail(MemberIndex(1))).expect("given up"));
    engine.set_rebuild_limit(Some(Bytes(1)));
    let join = new_member(&mut engine, &shape, MemberIndex(1), 7);
    drop(run(&mut engine, join).expect("joined"));
    engine.set_rebuild_limit(None);
    let written = |engine: &TestEngine| engine.counters().member(MemberIndex(1)).written_bytes;
    let mut replies = Vec::new();
    for _ in 0..10 {
        let before = written(&engine);
        engine.submit(1, Command::Read { lba: Lba(0), buf: buf(&[0; 4096]) });
        engine.turn(&mut replies).expect("memory does not break");
        assert_eq!(written(&engine) - before, 4096);
    }
    assert_eq!(replies.len(), 10);
    while engine.wants_turn() {
        engine.turn(&mut replies).expect("memory does not break");
    }
    assert_whole(&engine, "it goes on to its end");
}

/// The state of a slot that holds, and how far the member in it has come.
fn on_record(left: &Members, slot: MemberIndex) -> SlotState {
    let newest = left.iter().flatten().map(|bytes| superblock(bytes)).max_by_key(|own| own.epoch);
    newest.expect("a member is there").slots[slot.index()].state
}

/// Opens what a crash has left, and lets everything come to its end.
fn resumed(shape: &Shape, left: &Members, random: &mut Random) -> TestEngine {
    let used = shape.geometry().used_sectors().bytes();
    let disk = MemDisk::new(left.clone(), Order::Seeded(random.below(1 << 20)));
    let watch = Watch::new(disk, shape.members, shape.superblocks()[0].areas, used);
    let assembled = assembled(watch, left);
    let is_torn = assembled.needs_recovery();
    let assembled = if is_torn { recover(assembled, |_| ()).expect("recovered") } else { assembled };
    let mut engine: TestEngine = assembled.into_engine().expect("an engine");
    drop(run(&mut engine, Command::Flush).expect("flushed"));
    engine
}

/// A crash at any moment of a rebuild, under load where a log makes that good; then it goes on from what is on record.
#[test]
fn a_crash_at_any_moment_goes_on_from_the_record() {
    let (mut midway, mut late) = (0, 0);
    let levels = [small(RAID5, 4), small(rm2(3, Placement::Adjacent), 7), small(Level::Raid10 { copies: 2 }, 4)];
    for seed in 0..240 {
        let mut random = Random(seed);
        let shape = Shape { chunks: 48, ..levels[size(Bytes(seed % 3))] };
        let shape = [shape, logged(shape), Shape { consistency: Consistency::Bitmap, ..shape }, shape.checked()]
            [size(Bytes(seed / 3 % 4))];
        let is_loaded = shape.consistency == Consistency::Log;
        let sets = tolerated(&shape.geometry());
        let lost = sets[1 + size(Bytes(random.below(sets.len() as u64 - 1)))];
        let context = format!("seed {seed}: {shape:?}, {lost:?}");
        let mut engine = shape.engine(MemberSet::EMPTY, Order::Seeded(seed)).with_rebuild();
        let capacity = engine.geometry().capacity().0;
        let mut model = Model::new(size(Bytes(capacity)));
        let all = model.submit(0, size(Bytes(capacity)), false);
        write(&mut engine, 0, &model.data(all)).expect("written");
        model.replied(all, true);
        drop(run(&mut engine, Command::Close).expect("closed"));
        drop(run_all(&mut engine, lost.iter().map(fail).collect()));
        for (token, slot) in (1000..).zip(lost.iter()) {
            let join = new_member(&mut engine, &shape, slot, slot.0);
            engine.submit(token, join);
        }
        let mut flights = HashMap::new();
        let mut replies = Vec::new();
        for step in 0..random.below(if is_loaded { 140 } else { 70 }) {
            if is_loaded && flights.len() < 4 && random.below(3) == 0 {
                let blocks = capacity / 8;
                let first = random.below(blocks);
                let len = 1 + random.below((blocks - first).min(6));
                let pending = model.submit(size(Bytes(first * 8)), size(Bytes(len * 8)), false);
                let command = Command::Write { lba: Lba(first * 8), buf: buf(&model.data(pending)), fua: false };
                flights.insert(2000 + step, pending);
                engine.submit(2000 + step, command);
            }
            engine.disk_mut().allow_reaps(1);
            engine.turn(&mut replies).expect("memory does not break");
            for reply in replies.drain(..) {
                let pending = flights.remove(&reply.token);
                pending.into_iter().for_each(|pending| model.replied(pending, reply.result.is_ok()));
                reply.result.expect("nothing fails");
            }
        }
        let mut left = engine.disk().cut(&mut random);
        for slot in lost.iter().filter(|&slot| engine.disk().superblock(slot).is_none()) {
            left[slot.index()] = None;
        }
        let before = lost.iter().map(|slot| on_record(&left, slot)).collect::<Vec<_>>();
        let mut again = resumed(&shape, &left, &mut random);
        let content = read(&mut again, 0, capacity).expect("read");
        model.assert_read(0, &content, model.now(), &context);
        drop(run(&mut again, Command::Close).expect("closed"));
        assert_encoded(&again, &content, &context);
        let stripes = again.geometry().stripes().0;
        let upto = before.iter().map(|state| match state {
            SlotState::Rebuilding { upto, .. } => upto.0,
            SlotState::Active | SlotState::Failed => stripes,
        });
        if before.contains(&SlotState::Failed) || lost.iter().any(|slot| left[slot.index()].is_none()) {
            // It had not joined when the power went.
            continue;
        }
        let is_over = again.missing().is_empty() && again.rebuilding().is_none();
        assert!(is_over, "{context}: {before:?}, {:?}, {:?}", again.missing(), again.rebuilding());
        // Each stripe from there on was made again, and none before; recovery writes what the log has beside that.
        let upto = upto.min().expect("one is lost");
        let rest = stripes - upto;
        let on_member = shape.chunk * again.geometry().rows() as u64;
        let written = again.counters().member(lost.iter().next().expect("one is lost")).written_bytes;
        assert!(written <= rest * on_member, "{context}: {written} bytes written, and {rest} stripes were left");
        if shape.level == RAID5 {
            assert_eq!(written, rest * on_member, "{context}");
        }
        midway += u64::from(upto > 0 && rest > 0);
        late += u64::from(rest == 0);
    }
    assert!(midway > 30 && late > 2, "{midway} were midway, {late} over");
}

/// Who makes errors while another is being rebuilt is needed more than ever.
#[test]
fn nobody_is_given_up_for_corrected_errors_while_another_is_rebuilt() {
    for shape in [small(rm2(3, Placement::Adjacent), 7), small(rm2(2, Placement::Adjacent), 5), small(RAID6, 5)] {
        let (mut engine, content) = filled(shape, Order::Fifo);
        engine.set_max_errors(Some(3));
        drop(run(&mut engine, fail(MemberIndex(2))).expect("given up"));
        engine.set_rebuild_limit(Some(Bytes(1)));
        let join = new_member(&mut engine, &shape, MemberIndex(2), 2);
        drop(run(&mut engine, join).expect("joined"));
        assert!(engine.rebuilding().is_some(), "{shape:?}");
        (0..10).for_each(|number| correct(&mut engine, number));
        assert_eq!(engine.missing(), MemberSet::EMPTY, "{shape:?}");
        engine.set_rebuild_limit(None);
        assert!(read(&mut engine, 0, 8).expect("read") == content[..4096], "{shape:?}");
        while engine.rebuilding().is_some() {
            engine.tick();
            read(&mut engine, 0, 8).expect("read");
        }
        correct(&mut engine, 0);
        assert_eq!(engine.missing(), MemberSet::EMPTY.with(MemberIndex(0)), "{shape:?}: now it can be spared");
    }
}

/// A member that returns is the one that it was; another one begins with nothing.
#[test]
fn a_new_member_does_not_inherit_what_is_counted_of_the_old_one() {
    let shape = small(RAID5, 4);
    let slot = MemberIndex(1);
    let (mut engine, _) = filled(shape, Order::Fifo);
    let data = shape.superblocks()[0].areas.data.offset;
    engine.disk_mut().inner.spoil(slot, Bytes(data.0 + shape.chunk + 512), Bytes(1024));
    let capacity = engine.geometry().capacity().0;
    drop(read(&mut engine, 0, capacity).expect("computed from the others"));
    let errors = engine.counters().member(slot).errors;
    assert!(errors > 0);
    drop(run(&mut engine, fail(slot)).expect("given up"));
    let back = returning(&shape, slot, &engine);
    drop(run(&mut engine, back).expect("it joins"));
    assert_eq!(engine.counters().member(slot).errors, errors, "it is the same member");
    drop(run(&mut engine, fail(slot)).expect("given up"));
    let new = new_member(&mut engine, &shape, slot, 1);
    drop(run(&mut engine, new).expect("it joins"));
    let counters = *engine.counters().member(slot);
    assert_eq!((counters.errors, counters.repaired), (0, 0), "it is another one");
    assert!(counters.written_bytes > 0);
}
