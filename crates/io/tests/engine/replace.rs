//! A member that is copied to another one, which takes its place, while clients go on.

use std::collections::HashMap;
use std::path::PathBuf;

use rustix::io::Errno;
use uraid_io::array::{Candidate, SetAside, judge, recover};
use uraid_io::disk::{Fault, Image, MemDisk, OpName, Order};
use uraid_io::engine::{CacheMode, Command, Engine, EngineError, MemberCounters};
use uraid_io::format::superblock::{Consistency, Integrity, Revision, decode, newest, positions};
use uraid_layout::{Bytes, DiskSector, Lba, Level, Location, MemberIndex, MemberSet, Placement};
use uuid::Uuid;

use crate::content::Storm;
use crate::rebuild::{assert_whole, fail, filled, joining, logged, new_bytes, new_member, states};
use crate::recovery::{assembled, superblock};
use crate::reshape_lost::{ask, lose};
use crate::slow::{DEADLINES, WRITE_TICKS, turn};
use crate::support::model::{Model, Pending};
use crate::support::watch::Watch;
use crate::support::{
    Members, RAID5, Random, SECTOR, Shape, TestEngine, assert_encoded, buf, images, noise, read, rm2, run, shapes,
    size, small, with_cache, write,
};

/// Puts a new member in at the seat, whose data is anything, and says whose place it is to take.
pub(crate) fn replacement(engine: &mut TestEngine, shape: &Shape, slot: MemberIndex, number: u8) -> Command {
    let seat = engine.seat().expect("there is room");
    engine.disk_mut().put(seat, new_bytes(shape, slot));
    let mut joining = joining(shape, slot, number);
    joining.superblock.revision = Revision(0);
    Command::Replace(Box::new(joining))
}

fn uuid(number: u8) -> Uuid {
    Uuid::from_bytes([100 + number; 16])
}

/// Every level, in every way to be consistent.
fn all() -> Vec<Shape> {
    let every = |shape: Shape| {
        let bitmap = Shape { consistency: Consistency::Bitmap, ..shape };
        let checked = (shape.level != Level::Raid0).then(|| shape.checked());
        let bitmap = (shape.level != Level::Raid0).then_some(bitmap);
        [Some(shape), Some(logged(shape)), bitmap, checked].into_iter().flatten()
    };
    shapes().into_iter().flat_map(every).collect()
}

/// Asserts that a member has the slot, and nobody else says so.
pub(crate) fn assert_replaced(engine: &TestEngine, slot: MemberIndex, number: u8, context: &str) {
    assert!(engine.replacement().is_none(), "{context}: {:?}", engine.replacement());
    assert_whole(engine, context);
    let newest = engine.disk().newest();
    assert_eq!(newest.slots[slot.index()].member, uuid(number), "{context}");
    let old = engine.disk().superblock(engine.seat().expect("a seat")).expect("the old one has a superblock");
    assert!(old.epoch < newest.epoch && old.member != uuid(number), "{context}: {:?}", old.epoch);
}

#[test]
fn each_unit_of_the_old_member_is_read_once_and_nothing_of_the_others() {
    for shape in all() {
        for slot in [MemberIndex(0), MemberIndex(shape.members - 1)] {
            let context = format!("{shape:?}, member {slot}");
            let (mut engine, content) = filled(shape, Order::Seeded(3));
            let before = engine.counters().clone();
            let replace = replacement(&mut engine, &shape, slot, 1);
            let seat = engine.seat().expect("a seat");
            engine.disk_mut().inner.reset_counters();
            drop(run(&mut engine, replace).expect("begun"));
            assert_replaced(&engine, slot, 1, &context);
            assert_encoded(&engine, &content, &context);
            let used = (0..engine.geometry().used_sectors().0)
                .filter(|&sector| {
                    engine.geometry().owner(Location { member: slot, sector: DiskSector(sector) }).is_some()
                })
                .count() as u64
                * 512;
            for member in engine.geometry().all_members().iter() {
                let (now, then) = (*engine.counters().member(member), *before.member(member));
                // The new member begins with nothing, and is not asked for anything yet.
                let then = if member == slot { MemberCounters::default() } else { then };
                let moved = |counters: &MemberCounters| (counters.read_bytes, counters.written_bytes);
                assert_eq!(moved(&now), moved(&then), "{context}: member {member}");
            }
            // The old member is at the seat now.
            let (old, new) = (engine.disk().inner.counters(seat), engine.disk().inner.counters(slot));
            assert_eq!(old.writes, 2, "{context}: the clean mark");
            assert!(old.bytes_read.0 >= used && old.bytes_read.0 < used + (64 << 10), "{context}: {old:?}");
            assert!(new.bytes_written.0 >= used && new.bytes_written.0 < used + (64 << 10), "{context}: {new:?}");
            let capacity = engine.geometry().capacity().0;
            assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}");
            if shape.level == Level::Raid0 {
                continue;
            }
            for other in engine.geometry().all_members().iter().filter(|&other| other != slot).take(1) {
                drop(run(&mut engine, fail(other)).expect("given up"));
                assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}: without {other}");
            }
        }
    }
}

#[test]
fn clients_go_on_while_a_member_is_copied() {
    for (index, shape) in (0..).zip(all()) {
        for turn in 0..3 {
            let seed = 7000 + index * 10 + turn;
            let slot = MemberIndex(u8::try_from(seed % u64::from(shape.members)).expect("small"));
            let mut storm =
                Storm::new(shape, MemberSet::EMPTY, Order::Seeded(seed), seed, crate::content::caching(seed));
            storm.is_changing();
            storm.engine = storm.engine.with_rebuild();
            storm.run(30);
            let replace = replacement(&mut storm.engine, &shape, slot, 1);
            storm.change(replace);
            storm.run(200);
            storm.settle();
            let context = format!("{shape:?}, member {slot}");
            assert_replaced(&storm.engine, slot, 1, &context);
            assert_eq!(storm.engine.counters().total().mismatches, 0, "{context}");
            // It may be replaced again.
            let replace = replacement(&mut storm.engine, &shape, slot, 2);
            storm.change(replace);
            storm.more(60);
            storm.settle();
            assert_replaced(&storm.engine, slot, 2, &context);
            storm.finish();
        }
    }
}

/// Runs some turns of few completions each.
fn some_turns(engine: &mut TestEngine, random: &mut Random, turns: u64) {
    let mut replies = Vec::new();
    for _ in 0..turns {
        engine.disk_mut().allow_reaps(1 + size(Bytes(random.below(2))));
        engine.turn(&mut replies).expect("memory does not break");
    }
    assert!(replies.iter().all(|reply| reply.result.is_ok()), "{replies:?}");
    engine.disk_mut().allow_reaps(usize::MAX);
}

/// Lets everything come to its end.
fn settle(engine: &mut TestEngine) {
    drop(run(engine, Command::Flush).expect("flushed"));
}

/// An array in the middle of a copy, under way for some turns.
fn copying(shape: Shape, slot: MemberIndex, seed: u64, turns: u64) -> (TestEngine, Vec<u8>, Random) {
    let (mut engine, content) = filled(shape, Order::Seeded(seed));
    let mut random = Random(seed);
    let replace = replacement(&mut engine, &shape, slot, 1);
    engine.submit(77, replace);
    some_turns(&mut engine, &mut random, turns);
    (engine, content, random)
}

fn is_midway(engine: &TestEngine) -> bool {
    let progress = engine.replacement().map(|replacement| replacement.progress);
    progress.is_some_and(|progress| progress.done.0 > 0 && progress.done < progress.total)
}

/// Turns the engine until it has nothing to do; a copy that can't go on may be left.
fn idle(engine: &mut TestEngine) {
    let mut replies = Vec::new();
    engine.turn(&mut replies).expect("memory does not break");
    while engine.wants_turn() {
        engine.turn(&mut replies).expect("memory does not break");
    }
    assert_eq!(engine.in_flight(), 0, "something hangs");
}

#[test]
fn the_old_member_fails_midway_and_the_new_one_is_rebuilt_in_its_place() {
    let mut midway = 0;
    for shape in [RAID5, rm2(3, Placement::Adjacent)].map(|level| Shape { chunks: 90, ..small(level, 7) }) {
        for shape in [shape, logged(shape), Shape { consistency: Consistency::Bitmap, ..shape }, shape.checked()] {
            for turns in 0..30 {
                let slot = MemberIndex(2);
                let (mut engine, mut content, _) = copying(shape, slot, turns, turns * 2);
                midway += u64::from(is_midway(&engine));
                let context = format!("{shape:?}, after {turns} turns");
                let was_over = engine.superblock().slots[2].member == uuid(1);
                engine.submit(78, fail(slot));
                // Where this is, the new member has what was copied, and its checksums.
                let new = noise(turns, 256);
                engine.submit(79, Command::Write { lba: Lba(0), buf: buf(&new), fua: true });
                content[..new.len()].copy_from_slice(&new);
                let seat = engine.seat().expect("a seat");
                while !was_over && engine.superblock().slots[2].member != uuid(1) {
                    assert!(engine.needs_seat(), "{context}: nobody else has the new member");
                    engine.disk_mut().allow_reaps(1);
                    engine.turn(&mut Vec::new()).expect("memory does not break");
                }
                let old = engine.disk().superblock(seat).expect("the old one").member;
                assert_eq!(old, shape.superblocks()[2].member, "{context}");
                engine.disk_mut().allow_reaps(usize::MAX);
                idle(&mut engine);
                assert!(!engine.needs_seat(), "{context}");
                settle(&mut engine);
                let capacity = engine.geometry().capacity().0;
                assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}");
                assert_encoded(&engine, &content, &context);
                if was_over {
                    // It was the new member that was given up.
                    assert_eq!(engine.missing(), MemberSet::EMPTY.with(slot), "{context}");
                    continue;
                }
                if engine.missing().is_empty() {
                    assert_replaced(&engine, slot, 1, &context);
                }
            }
        }
    }
    assert!(midway > 60, "{midway} were midway");
}

#[test]
fn other_members_fail_midway_and_it_goes_on() {
    let mut midway = 0;
    for (shape, others) in [
        (small(RAID5, 7), &[MemberIndex(5)][..]),
        (small(rm2(3, Placement::Adjacent), 7), &[MemberIndex(5), MemberIndex(0)]),
        (small(rm2(3, Placement::Adjacent), 7), &[MemberIndex(5), MemberIndex(2)]),
    ] {
        let shape = Shape { chunks: 90, ..shape };
        for shape in [shape, logged(shape), Shape { consistency: Consistency::Bitmap, ..shape }, shape.checked()] {
            for turns in 0..20 {
                let slot = MemberIndex(2);
                let (mut engine, content, mut random) = copying(shape, slot, turns, turns * 3);
                midway += u64::from(is_midway(&engine));
                let context = format!("{shape:?}, after {turns} turns, {others:?}");
                for (token, &other) in (80..).zip(others) {
                    engine.submit(token, fail(other));
                    some_turns(&mut engine, &mut random, turns);
                }
                idle(&mut engine);
                settle(&mut engine);
                let capacity = engine.geometry().capacity().0;
                assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}");
                assert_encoded(&engine, &content, &context);
                assert!(engine.replacement().is_none() && engine.rebuilding().is_none(), "{context}");
                if !others.contains(&slot) {
                    assert_eq!(engine.superblock().slots[2].member, uuid(1), "{context}: it has taken the place");
                    assert_eq!(engine.missing(), others.iter().copied().collect(), "{context}");
                }
                let newest = states(&engine);
                assert!(newest.iter().all(|state| !state.is_rebuilding()), "{context}");
            }
        }
    }
    assert!(midway > 60, "{midway} were midway");
}

/// A read that hangs, and nothing else, so that its member is given up at any step of the copy, also the last.
#[test]
fn another_member_is_given_up_while_the_copy_takes_the_place() {
    let (slot, other) = (MemberIndex(1), MemberIndex(3));
    let shape = Shape { chunks: 8, ..small(RAID5, 5) };
    let mut given_up_late = 0;
    for shape in [shape, logged(shape), Shape { consistency: Consistency::Bitmap, ..shape }, shape.checked()] {
        for turns in 0..60 {
            let context = format!("{shape:?}, {turns} turns");
            let (mut engine, content) = filled(shape, Order::Fifo);
            settle(&mut engine);
            engine.set_deadlines(DEADLINES);
            engine.disk_mut().hold(other, OpName::Read);
            let capacity = engine.geometry().capacity().0;
            engine.submit(1, Command::Read { lba: Lba(0), buf: buf(&vec![0; content.len()]) });
            for _ in 1..WRITE_TICKS {
                drop(turn(&mut engine));
                engine.tick();
            }
            assert!(engine.missing().is_empty(), "{context}: one tick is left");
            let replace = replacement(&mut engine, &shape, slot, 1);
            engine.submit(77, replace);
            for _ in 0..turns {
                engine.disk_mut().allow_reaps(1);
                engine.turn(&mut Vec::new()).expect("memory does not break");
            }
            let was_over = engine.superblock().slots[1].member == uuid(1);
            given_up_late += u64::from(!was_over && !is_midway(&engine) && turns > 0);
            engine.tick();
            engine.disk_mut().allow_reaps(usize::MAX);
            idle(&mut engine);
            assert_eq!(engine.missing(), MemberSet::EMPTY.with(other), "{context}");
            assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}");
            assert!(engine.replacement().is_none(), "{context}");
            assert_eq!(engine.superblock().slots[1].member, uuid(1), "{context}");
        }
    }
    assert!(given_up_late > 20, "{given_up_late}");
}

/// What was given up on the new member may still land: it does not take the place of the old one when that fails.
#[test]
fn a_copy_with_operations_that_were_given_up_takes_no_place() {
    for shape in [small(RAID5, 4), logged(small(Level::Raid1, 3))] {
        let slot = MemberIndex(1);
        let (mut engine, _) = filled(shape, Order::Fifo);
        settle(&mut engine);
        engine.set_deadlines(DEADLINES);
        let replace = replacement(&mut engine, &shape, slot, 1);
        let seat = engine.seat().expect("a seat");
        engine.disk_mut().hold(seat, OpName::Write);
        engine.submit(1, replace);
        drop(turn(&mut engine));
        engine.submit(2, Command::Fail { member: slot });
        for _ in 0..2 * WRITE_TICKS {
            drop(turn(&mut engine));
            engine.tick();
        }
        idle(&mut engine);
        assert_eq!(engine.missing(), MemberSet::EMPTY.with(slot), "{shape:?}");
        assert!(engine.replacement().is_none() && engine.promoting().is_none(), "{shape:?}");
        assert!(engine.lingering(seat) > 0, "{shape:?}: something was given up");
    }
}

#[test]
fn a_new_member_that_fails_costs_nobody_anything() {
    let mut hits = 0;
    let levels = [small(RAID5, 4), small(Level::Raid1, 2), small(Level::Raid0, 3)];
    let shapes = levels.into_iter().flat_map(|shape| [Some(shape), Some(logged(shape))]).flatten();
    for shape in shapes.chain([small(RAID5, 4).checked()]) {
        for name in [OpName::Write, OpName::Flush, OpName::Read, OpName::Zero] {
            for after in 0..14 {
                let slot = MemberIndex(1);
                let (mut engine, mut content) = filled(shape, Order::Seeded(after));
                let replace = replacement(&mut engine, &shape, slot, 1);
                let seat = engine.seat().expect("a seat");
                engine.disk_mut().inner.fail(Fault { member: seat, name, after, count: u64::MAX, errno: Errno::IO });
                let context = format!("{shape:?}: {name:?} fails after {after}");
                engine.submit(1, replace);
                let new = noise(after, 24);
                engine.submit(2, Command::Write { lba: Lba(16), buf: buf(&new), fua: true });
                content[16 * SECTOR..][..new.len()].copy_from_slice(&new);
                let mut replies = Vec::new();
                engine.turn(&mut replies).expect("memory does not break");
                while engine.wants_turn() {
                    engine.turn(&mut replies).expect("memory does not break");
                }
                assert!(
                    replies.len() == 2 && replies.iter().all(|reply| reply.result.is_ok()),
                    "{context}: {replies:?}"
                );
                if engine.superblock().slots[1].member == uuid(1) {
                    // There were not that many. Where it failed in the others' round, it is missing.
                    continue;
                }
                hits += 1;
                assert!(engine.replacement().is_none() && engine.missing().is_empty(), "{context}");
                assert_encoded(&engine, &content, &context);
                write(&mut engine, 64, &noise(1, 8)).expect("written");
                content[64 * SECTOR..][..8 * SECTOR].copy_from_slice(&noise(1, 8));
                engine.disk_mut().inner.clear_faults();
                let replace = replacement(&mut engine, &shape, slot, 2);
                drop(run(&mut engine, replace).expect("begun"));
                assert_replaced(&engine, slot, 2, &context);
                assert_encoded(&engine, &content, &context);
            }
        }
    }
    assert!(hits > 80, "only {hits}");
}

#[test]
fn what_the_old_member_cannot_read_is_computed() {
    for shape in [small(RAID5, 4), logged(small(RAID5, 4)), small(RAID5, 4).checked(), small(Level::Raid1, 2)] {
        let slot = MemberIndex(1);
        let (mut engine, content) = filled(shape, Order::Fifo);
        let data = shape.superblocks()[0].areas.data.offset;
        for chunk in [1, 4] {
            engine.disk_mut().inner.spoil(slot, Bytes(data.0 + chunk * shape.chunk + 512), Bytes(1024));
        }
        if shape.integrity == Integrity::Crc32 {
            engine.disk_mut().data_mut(slot)[5 * 4096 + 7] ^= 1;
        }
        let replace = replacement(&mut engine, &shape, slot, 1);
        drop(run(&mut engine, replace).expect("begun"));
        let context = format!("{shape:?}");
        assert_replaced(&engine, slot, 1, &context);
        assert_encoded(&engine, &content, &context);
    }
}

/// What it was given may be gone with the power: it must not say that the slot is its.
#[test]
fn a_new_member_that_fails_to_flush_what_it_has_says_nothing() {
    for shape in [small(RAID5, 4), logged(small(RAID5, 4)), small(Level::Raid0, 3)] {
        let slot = MemberIndex(1);
        let (mut engine, content) = filled(shape, Order::Fifo);
        let replace = replacement(&mut engine, &shape, slot, 1);
        let seat = engine.seat().expect("a seat");
        let fault = Fault { member: seat, name: OpName::Flush, after: 0, count: 1, errno: Errno::IO };
        engine.disk_mut().inner.fail(fault);
        drop(run(&mut engine, replace).expect("begun"));
        settle(&mut engine);
        assert!(engine.replacement().is_none() && engine.replaced().is_none(), "{shape:?}: the old one keeps its slot");
        assert!(engine.disk().superblock(seat).is_none(), "{shape:?}: it says that the slot is its");
        assert_encoded(&engine, &content, "the old one has everything");
    }
}

#[test]
fn a_copy_keeps_the_rebuilds_limit_and_can_be_stopped() {
    let shape = Shape { chunks: 64, ..small(RAID5, 4) };
    let (mut engine, content) = filled(shape, Order::Fifo);
    engine.set_rebuild_limit(Some(Bytes(40 * 4096)));
    let replace = replacement(&mut engine, &shape, MemberIndex(1), 1);
    let seat = engine.seat().expect("a seat");
    drop(run(&mut engine, replace).expect("begun"));
    let written = |engine: &TestEngine| engine.disk().inner.counters(seat).bytes_written.0;
    let before = written(&engine);
    for ticks in 1..=10_u64 {
        engine.tick();
        settle(&mut engine);
        let moved = written(&engine) - before;
        assert!(moved.abs_diff(ticks * 4 * 4096) <= 4096, "{moved} after {ticks} ticks");
    }
    // Closed and begun again it goes on.
    drop(run(&mut engine, Command::Close).expect("closed"));
    assert!(engine.disk().newest().is_clean && engine.replacement().is_some());
    assert!(engine.stop_replacing() && !engine.stop_replacing());
    engine.set_rebuild_limit(None);
    settle(&mut engine);
    assert!(engine.replacement().is_none() && !engine.wants_ticks());
    assert_eq!(engine.superblock().slots[1].member, shape.superblocks()[1].member);
    assert_encoded(&engine, &content, "stopped");
    let replace = replacement(&mut engine, &shape, MemberIndex(2), 2);
    drop(run(&mut engine, replace).expect("begun"));
    assert_replaced(&engine, MemberIndex(2), 2, "another one");
    assert_encoded(&engine, &content, "another one");
}

#[test]
fn a_member_joins_while_another_is_copied() {
    for shape in [logged(small(rm2(3, Placement::Adjacent), 7)), small(rm2(3, Placement::Adjacent), 7).checked()] {
        for turns in 0..20 {
            let shape = Shape { chunks: 60, ..shape };
            let (mut engine, content, mut random) = copying(shape, MemberIndex(2), turns, turns);
            engine.submit(80, fail(MemberIndex(4)));
            some_turns(&mut engine, &mut random, turns);
            idle(&mut engine);
            assert_eq!(engine.missing(), MemberSet::EMPTY.with(MemberIndex(4)));
            let join = new_member(&mut engine, &shape, MemberIndex(4), 30);
            drop(run(&mut engine, join).expect("joined"));
            settle(&mut engine);
            let context = format!("{shape:?}, {turns} turns");
            assert_replaced(&engine, MemberIndex(2), 1, &context);
            assert_encoded(&engine, &content, &context);
        }
    }
}

#[test]
fn what_can_not_be_replaced_is_refused() {
    let shape = Shape { chunks: 64, ..small(RAID5, 4) };
    let (mut engine, _) = filled(shape, Order::Fifo);
    engine.set_rebuild_limit(Some(Bytes(4096)));
    drop(run(&mut engine, fail(MemberIndex(3))).expect("given up"));
    let replace = replacement(&mut engine, &shape, MemberIndex(3), 1);
    let reply = run(&mut engine, replace);
    assert!(matches!(reply, Err(EngineError::NotThere { member: MemberIndex(3) })), "{reply:?}");
    let Command::Replace(joining) = replacement(&mut engine, &shape, MemberIndex(1), 1) else { panic!("to replace") };
    let mut other = joining.clone();
    other.superblock.member = shape.superblocks()[2].member;
    let reply = run(&mut engine, Command::Replace(other));
    assert!(matches!(reply, Err(EngineError::Unsuited { .. })), "{reply:?}");
    let mut short = joining.clone();
    short.superblock.areas.data.size = Bytes(4096);
    let reply = run(&mut engine, Command::Replace(short));
    assert!(matches!(reply, Err(EngineError::Unsuited { .. })), "{reply:?}");
    drop(run(&mut engine, Command::Replace(joining.clone())).expect("begun"));
    let reply = run(&mut engine, Command::Replace(joining));
    assert!(matches!(reply, Err(EngineError::Replacing)), "{reply:?}");
    let wide = Shape { chunks: 2, ..small(Level::Raid1, 64) }.engine(MemberSet::EMPTY, Order::Fifo);
    assert_eq!(wide.seat(), None);
}

/// Whether a member says that it is one.
fn is_member(bytes: &[u8]) -> bool {
    let positions = positions(Bytes(bytes.len() as u64)).expect("large enough");
    newest(positions.map(|position| decode(&bytes[size(position)..][..4096]))).is_ok()
}

/// What these members come to: who is in which slot, by their places in `left`.
fn judged(left: &[Image], context: &str) -> Vec<Option<usize>> {
    let candidate = |bytes: &Image| Candidate { path: PathBuf::from("member"), superblock: superblock(bytes) };
    let candidates: Vec<Candidate> = left.iter().map(candidate).collect();
    let verdict = judge(&candidates).expect("an array");
    for (index, reason) in &verdict.set_aside {
        assert!(matches!(reason, SetAside::Replaced { .. }), "{context}: member {index}: {reason}, {candidates:?}");
    }
    verdict.slots
}

/// Opens the members that count, and lets everything come to its end.
fn reopened(shape: &Shape, left: &[Image], random: &mut Random, context: &str) -> TestEngine {
    let used = shape.geometry().used_sectors().bytes();
    let accepted: Members = judged(left, context).iter().map(|index| index.map(|index| left[index].clone())).collect();
    let disk = MemDisk::new(accepted.clone(), Order::Seeded(random.below(1 << 20)));
    let watch = Watch::new(disk, shape.members, shape.superblocks()[0].areas, used);
    let assembled = assembled(watch, &accepted);
    let is_torn = assembled.needs_recovery();
    let assembled = if is_torn { recover(assembled, |_| ()).expect("recovered") } else { assembled };
    assembled.into_engine().expect("an engine")
}

/// Clients' writes, and what they make of the array.
struct Load {
    model: Model,
    flights: HashMap<u64, Pending>,
    next: u64,
}

impl Load {
    /// Some steps of the engine under load, which is cut off at the end.
    fn run(&mut self, engine: &mut TestEngine, random: &mut Random, steps: u64) {
        let capacity = engine.geometry().capacity().0;
        let mut replies = Vec::new();
        for _ in 0..steps {
            if self.flights.len() < 4 && random.below(3) == 0 {
                let blocks = capacity / 8;
                let first = random.below(blocks);
                let len = 1 + random.below((blocks - first).min(6));
                let pending = self.model.submit(size(Bytes(first * 8)), size(Bytes(len * 8)), false);
                let buf = buf(&self.model.data(pending));
                self.next += 1;
                self.flights.insert(self.next, pending);
                engine.submit(self.next, Command::Write { lba: Lba(first * 8), buf, fua: true });
            }
            if random.below(8) == 0 {
                engine.tick();
            }
            engine.disk_mut().allow_reaps(1);
            engine.turn(&mut replies).expect("memory does not break");
            for reply in replies.drain(..) {
                let pending = self.flights.remove(&reply.token);
                pending.into_iter().for_each(|pending| self.model.replied(pending, reply.result.is_ok()));
                reply.result.expect("nothing fails");
            }
        }
        engine.disk_mut().allow_reaps(usize::MAX);
    }

    /// Asserts that the members hold what was written.
    fn assert_held(&mut self, engine: &mut TestEngine, context: &str) {
        self.flights.clear();
        let capacity = engine.geometry().capacity().0;
        let content = read(engine, 0, capacity).expect("read");
        self.model.assert_read(0, &content, self.model.now(), context);
        drop(run(engine, Command::Close).expect("closed"));
        assert_encoded(engine, &content, context);
    }
}

/// One of four levels, kept consistent in one of its ways.
fn shape_of(seed: u64) -> Shape {
    let levels =
        [small(RAID5, 4), small(Level::Raid0, 3), small(Level::Raid1, 2), small(rm2(3, Placement::Adjacent), 7)];
    let shape = Shape { chunks: 9, ..levels[size(Bytes(seed % 4))] };
    let bitmap = Shape { consistency: Consistency::Bitmap, ..shape };
    let ways = if shape.level == Level::Raid0 {
        [shape, logged(shape), shape, logged(shape)]
    } else {
        [shape, logged(shape), bitmap, shape.checked()]
    };
    ways[size(Bytes(seed / 4 % 4))]
}

/// The power goes at any moment of a copy and of the switch at its end. Just one of both members has the slot then,
/// with all that was written; if the array goes on with the old one instead, the new one is not taken for its member
/// later.
#[test]
fn the_power_goes_at_any_moment() {
    let (mut before, mut sealed, mut within, mut after) = (0, 0, 0, 0);
    for seed in 0..320 {
        let mut random = Random(seed);
        let shape = shape_of(seed);
        let slot = MemberIndex(u8::try_from(random.below(u64::from(shape.members))).expect("small"));
        let context = format!("seed {seed}: {shape:?}, member {slot}");
        let mut engine = shape.engine(MemberSet::EMPTY, Order::Seeded(seed)).with_rebuild();
        let capacity = engine.geometry().capacity().0;
        let mut load = Load { model: Model::new(size(Bytes(capacity))), flights: HashMap::new(), next: 1000 };
        let all = load.model.submit(0, size(Bytes(capacity)), false);
        write(&mut engine, 0, &load.model.data(all)).expect("written");
        load.model.replied(all, true);
        settle(&mut engine);
        let replace = replacement(&mut engine, &shape, slot, 1);
        let seat = engine.seat().expect("a seat");
        engine.submit(1, replace);
        // Most of them near the switch: from a moment before the new member has a superblock, just after, or when
        // others know it.
        let moment = random.below(4);
        if moment > 0 {
            let others = engine.geometry().all_members().minus(MemberSet::EMPTY.with(slot));
            let knows = |engine: &TestEngine, other| {
                engine.disk().superblock(other).is_some_and(|own| own.slots[slot.index()].member == uuid(1))
            };
            let is_there = |engine: &TestEngine| match moment {
                1 => engine.replacement().is_none_or(|one| one.progress.done == one.progress.total),
                2 => engine.disk().superblock(seat).is_some() || engine.replacement().is_none(),
                _ => others.iter().any(|other| knows(engine, other)),
            };
            load.run(&mut engine, &mut random, 3);
            while !is_there(&engine) {
                load.run(&mut engine, &mut random, 1);
            }
            let steps = random.below([0, 12, 4, 2][size(Bytes(moment))]);
            load.run(&mut engine, &mut random, steps);
        } else {
            let steps = random.below(60);
            load.run(&mut engine, &mut random, steps);
        }
        load.flights.clear();
        let mut left: Vec<Image> = engine.disk().cut(&mut random).into_iter().flatten().collect();
        let (old, new) = match left.iter().position(|bytes| is_member(bytes) && superblock(bytes).member == uuid(1)) {
            Some(new) => (if new == slot.index() { seat.index() } else { slot.index() }, Some(new)),
            None => (slot.index(), None),
        };
        if new.is_none() {
            left.truncate(seat.index());
        }
        let owner = judged(&left, &context)[slot.index()].expect("somebody has the slot");
        assert!(owner == old || Some(owner) == new, "{context}");
        let others = left.iter().enumerate().filter(|&(index, _)| index != old && Some(index) != new);
        let ahead = others.filter(|(_, bytes)| superblock(bytes).slots[slot.index()].member == uuid(1)).count();
        match new {
            None => before += 1,
            Some(_) if ahead == 0 => sealed += 1,
            Some(_) if ahead + 1 < usize::from(shape.members) => within += 1,
            Some(_) => after += 1,
        }
        let mut again = reopened(&shape, &left, &mut random, &context);
        load.assert_held(&mut again, &context);
        let Some(new) = new else { continue };
        assert_eq!(owner, new, "{context}: what has said that it is there has everything");
        // Without it the array goes on as it was, where it can: it is not its member any more then.
        let without: Vec<Image> =
            left.iter().enumerate().filter(|(index, _)| *index != new).map(|(_, bytes)| bytes.clone()).collect();
        if ahead > 0 {
            assert_eq!(judged(&without, &context)[slot.index()], None, "{context}");
            continue;
        }
        let mut again = reopened(&shape, &without, &mut random, &context);
        let steps = random.below(30);
        load.run(&mut again, &mut random, steps);
        load.flights.clear();
        let mut both: Vec<Image> = again.disk().cut(&mut random).into_iter().flatten().collect();
        both.push(left[new].clone());
        let context = format!("{context}; {steps} steps without the new one");
        let mut again = reopened(&shape, &both, &mut random, &context);
        load.assert_held(&mut again, &context);
    }
    let counts = [before, sealed, within, after];
    assert!(counts.iter().all(|&count| count > 20), "{counts:?}");
}

/// A RAID 0 of three of which nobody has a sector that a member is to hold: that sector, and the content.
fn with_a_lost_sector(member: MemberIndex) -> (Engine<MemDisk, u64>, Lba, Vec<u8>) {
    let shape = small(Level::Raid0, 3);
    let (engine, content) = filled(shape, Order::Fifo);
    let (mut members, geometry) = (images(&engine), shape.geometry());
    let mut lbas = (0..geometry.capacity().0).map(Lba);
    let lba = lbas.find(|&lba| geometry.locate(lba).member == member).expect("each member has something");
    lose(&mut members, &geometry, &[lba.0]);
    let new = [Some(new_bytes(&shape, MemberIndex(0)))];
    let disk = MemDisk::new(members.iter().cloned().chain(new).collect(), Order::Fifo);
    (assembled(disk, &members).into_engine().expect("an engine"), lba, content)
}

/// Writes it: the member takes the content, and then fails so many writes of its list.
fn write_without_list(engine: &mut Engine<MemDisk, u64>, lba: Lba, content: &[u8], failures: u64) {
    let member = engine.geometry().locate(lba).member;
    engine.disk_mut().fail(Fault { member, name: OpName::Write, after: 1, count: failures, errno: Errno::IO });
    let written = &content[size(Bytes(lba.0 * 512))..][..SECTOR];
    let error = ask(engine, Command::Write { lba, buf: buf(written), fua: false }).expect_err("it is not noted");
    assert!(matches!(error, EngineError::WriteFailed { .. }), "{error}");
}

fn begin_replacing(engine: &mut Engine<MemDisk, u64>) {
    let mut joining = joining(&small(Level::Raid0, 3), MemberIndex(0), 1);
    joining.superblock.revision = Revision(0);
    drop(ask(engine, Command::Replace(Box::new(joining))).expect("begun"));
}

fn pass(engine: &mut Engine<MemDisk, u64>, ticks: usize) {
    for _ in 0..ticks {
        engine.turn(&mut Vec::new()).expect("memory does not break");
        engine.tick();
    }
}

fn assert_taken_over(engine: &mut Engine<MemDisk, u64>, content: &[u8]) {
    assert!(engine.replacement().is_none(), "{:?}", engine.replacement());
    assert_eq!(engine.superblock().slots[0].member, uuid(1));
    let read = ask(engine, Command::Read { lba: Lba(0), buf: buf(&vec![0; content.len()]) }).expect("read");
    assert!(read.expect("its memory").as_ref() == content, "all of it is there");
}

/// What a member that leaves lacks is nobody's business any more: that it can't be noted there keeps nobody from taking
/// its place. Two copies of the list fail three times: for the write, as the copy begins, and as it is to end.
#[test]
fn a_member_whose_list_can_not_be_written_is_replaced() {
    let (mut engine, lba, content) = with_a_lost_sector(MemberIndex(0));
    write_without_list(&mut engine, lba, &content, 2 * 8);
    begin_replacing(&mut engine);
    pass(&mut engine, 50);
    assert_taken_over(&mut engine, &content);
}

/// What another member lacks has to be noted first. That is tried again some time, and not over and over.
#[test]
fn a_copy_that_waits_for_the_list_of_another_member_tries_again_later() {
    let (mut engine, lba, content) = with_a_lost_sector(MemberIndex(1));
    engine.set_rebuild_limit(Some(Bytes(1)));
    begin_replacing(&mut engine);
    write_without_list(&mut engine, lba, &content, 2 * 100);
    engine.set_rebuild_limit(None);
    pass(&mut engine, 50);
    assert!(engine.replacement().is_some(), "it waits");
    pass(&mut engine, 10_000);
    assert_taken_over(&mut engine, &content);
}

/// A write of some bytes that is to be durable waits until the cache is written out. A change of members waits for that
/// write, and holds back what is written out: but not then.
#[test]
fn durable_bytes_and_the_beginning_of_a_copy_do_not_wait_for_each_other() {
    for shape in [small(RAID5, 3), logged(small(RAID5, 3)), small(rm2(3, Placement::Adjacent), 7).checked()] {
        let context = format!("{shape:?}");
        let (engine, mut content) = filled(shape, Order::Fifo);
        let (mut engine, _pool) = with_cache(engine, Some((CacheMode::WriteBack, 64)));
        let replace = replacement(&mut engine, &shape, MemberIndex(1), 1);
        let mut replies = Vec::new();
        content[700..707].copy_from_slice(b"durable");
        engine.disk_mut().allow_reaps(0);
        engine.submit(0, Command::WriteBytes { at: Bytes(700), buf: buf(b"durable"), fua: true });
        // It reads what is around them.
        engine.turn(&mut replies).expect("memory does not break");
        engine.submit(1, replace);
        engine.turn(&mut replies).expect("memory does not break");
        engine.disk_mut().allow_reaps(usize::MAX);
        engine.turn(&mut replies).expect("memory does not break");
        while engine.wants_turn() {
            engine.turn(&mut replies).expect("memory does not break");
        }
        assert_eq!(engine.in_flight(), 0, "{context}: commands hang");
        assert!(replies.len() == 2 && replies.iter().all(|reply| reply.result.is_ok()), "{context}: {replies:?}");
        assert_replaced(&engine, MemberIndex(1), 1, &context);
        let capacity = engine.geometry().capacity().0;
        assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}");
    }
}
