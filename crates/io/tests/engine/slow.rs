//! Members that are slow or hang: what they take too long for is had from the others, or done without them, and what
//! they do late harms nobody.

use std::time::Duration;

use uraid_io::buf::Buf;
use uraid_io::disk::{Image, OpName, Order};
use uraid_io::engine::{Command, Deadlines, EngineError, Joining, Reply};
use uraid_io::format::badblocks::BadBlocks;
use uraid_io::format::superblock::{Consistency, Superblock};
use uraid_layout::{Lba, Level, MemberIndex, MemberSet, Placement, Sectors, StripeId};
use uuid::Uuid;

use crate::faults::assert_recorded;
use crate::support::{
    RAID5, Shape, TestEngine, assert_encoded, buf, images, noise, read, rm2, run, shapes, size, small, with_cache,
    write,
};

const READ: Duration = Duration::from_millis(200);
const WRITE: Duration = Duration::from_millis(1000);
pub(crate) const DEADLINES: Deadlines = Deadlines { read: Some(READ), write: Some(WRITE), hedges: false };

/// What a tick is: [`uraid_io::cache::TICK`], of which an operation may miss the first.
const READ_TICKS: u32 = 3;
pub(crate) const WRITE_TICKS: u32 = 11;

const NAMES: [OpName; 4] = [OpName::Read, OpName::Write, OpName::Zero, OpName::Flush];

fn member(slot: u8) -> MemberIndex {
    MemberIndex(slot)
}

fn only(slot: u8) -> MemberSet {
    MemberSet::EMPTY.with(member(slot))
}

fn filled(shape: Shape, missing: MemberSet) -> (TestEngine, Vec<u8>) {
    let mut engine = shape.engine(missing, Order::Fifo);
    let content = noise(2, engine.geometry().capacity().0);
    write(&mut engine, 0, &content).expect("written");
    engine.set_deadlines(DEADLINES);
    (engine, content)
}

fn redundant() -> impl Iterator<Item = Shape> {
    shapes().into_iter().filter(|shape| shape.geometry().tolerance() > 0)
}

/// A shape, and the same with whatever else there is.
fn with_all(shape: Shape) -> [Shape; 4] {
    let of = |consistency| Shape { consistency, ..shape };
    [shape, of(Consistency::Log), of(Consistency::Bitmap), shape.checked()]
}

pub(crate) fn turn(engine: &mut TestEngine) -> Vec<Reply<u64>> {
    let mut replies = Vec::new();
    engine.turn(&mut replies).expect("memory does not break");
    while engine.wants_turn() {
        engine.turn(&mut replies).expect("memory does not break");
    }
    replies
}

/// Lets time pass until there is a reply; how many ticks it took.
fn wait(engine: &mut TestEngine, ticks_max: u32) -> Option<(u32, Reply<u64>)> {
    for ticks in 0..=ticks_max {
        if let Some(reply) = turn(engine).pop() {
            return Some((ticks, reply));
        }
        engine.tick();
    }
    None
}

fn submit_read(engine: &mut TestEngine, lba: u64, sectors: u64) {
    engine.submit(1, Command::Read { lba: Lba(lba), buf: Buf::zeroed(Sectors(sectors).bytes()) });
}

fn submit_write(engine: &mut TestEngine, lba: u64, bytes: &[u8]) {
    engine.submit(1, Command::Write { lba: Lba(lba), buf: buf(bytes), fua: false });
}

fn hang(engine: &mut TestEngine, slot: u8) {
    NAMES.iter().for_each(|&name| engine.disk_mut().hold(member(slot), name));
}

fn recover(engine: &mut TestEngine, slot: u8) {
    NAMES.iter().for_each(|&name| engine.disk_mut().let_go(member(slot), name));
}

#[test]
fn an_overdue_read_is_answered_from_the_others_and_what_comes_late_touches_nothing() {
    for shape in redundant().flat_map(with_all) {
        for slot in 0..shape.members {
            let context = format!("{shape:?}, member {slot}");
            let (mut engine, content) = filled(shape, MemberSet::EMPTY);
            let capacity = engine.geometry().capacity().0;
            engine.disk_mut().hold(member(slot), OpName::Read);
            submit_read(&mut engine, 0, capacity);
            let (ticks, reply) = wait(&mut engine, READ_TICKS).expect("the others have it");
            let held = engine.disk().held();
            // Of a mirror another copy may have been read in the first place.
            assert_eq!((ticks == READ_TICKS, ticks == 0), (held > 0, held == 0), "{context}: {ticks} ticks");
            let back = reply.result.expect("read").expect("a read's buffer comes back");
            assert!(back.as_ref() == content, "{context}");
            assert_eq!(engine.slow(), if held > 0 { only(slot) } else { MemberSet::EMPTY }, "{context}");
            let counters = *engine.counters().member(member(slot));
            assert_eq!(
                (counters.overdue > 0, counters.errors, counters.mismatches, counters.repaired),
                (held > 0, 0, 0, 0),
                "{context}"
            );
            // What the device gives now is something else.
            let used = size(engine.geometry().used_sectors().bytes());
            let own = engine.disk().data(member(slot), used).to_vec();
            engine.disk_mut().data_mut(member(slot))[..used].fill(0xEE);
            engine.disk_mut().let_go(member(slot), OpName::Read);
            assert!(turn(&mut engine).is_empty(), "{context}: one reply");
            assert_eq!((engine.slow(), engine.lingering(member(slot))), (MemberSet::EMPTY, 0), "{context}");
            assert!(back.as_ref() == content, "{context}: the client's memory is its own");
            engine.disk_mut().data_mut(member(slot))[..used].copy_from_slice(&own);
            let before = engine.disk().inner.counters(member(slot)).reads;
            assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}");
            let now = engine.disk().inner.counters(member(slot)).reads;
            let is_copied = matches!(shape.level, Level::Raid1 | Level::Raid10 { .. });
            assert!(now > before || is_copied, "{context}: it is read again");
            assert_eq!(engine.missing(), MemberSet::EMPTY, "{context}");
            assert_encoded(&engine, &content, &context);
        }
    }
}

#[test]
fn a_slow_member_is_gone_around_at_once_and_goes_on_being_written() {
    for shape in redundant().flat_map(with_all) {
        let context = format!("{shape:?}");
        let (mut engine, mut content) = filled(shape, MemberSet::EMPTY);
        let capacity = engine.geometry().capacity().0;
        engine.disk_mut().hold(member(0), OpName::Read);
        submit_read(&mut engine, 0, capacity);
        let reply = wait(&mut engine, READ_TICKS).expect("the others have it").1;
        assert!(reply.result.expect("read").expect("its buffer").as_ref() == content, "{context}");
        assert_eq!(engine.slow(), only(0), "{context}");
        let held = engine.disk().held();
        for lba in (0..capacity - 8).step_by(8) {
            let at = size(Sectors(lba).bytes());
            assert!(read(&mut engine, lba, 8).expect("read at once") == content[at..][..4096], "{context}: {lba}");
            let new = noise(lba + 7, 8);
            write(&mut engine, lba, &new).expect("written at once");
            content[at..][..4096].copy_from_slice(&new);
        }
        assert_eq!(engine.disk().held(), held, "{context}: nothing more is read of it");
        engine.disk_mut().let_go(member(0), OpName::Read);
        turn(&mut engine);
        assert_eq!((engine.slow(), engine.missing()), (MemberSet::EMPTY, MemberSet::EMPTY), "{context}");
        assert_encoded(&engine, &content, &context);
    }
}

/// A read goes around a slow member, and before it has the stripe's lock a member fails without which it can't.
#[test]
fn what_is_slow_is_waited_for_when_another_member_fails() {
    for shape in with_all(small(RAID5, 5)) {
        let (mut engine, content) = filled(shape, MemberSet::EMPTY);
        let geometry = engine.geometry().clone();
        let on = |slot: u8| {
            let mut units = (0..4).map(|unit| Lba(unit * geometry.chunk().0));
            let holder = |lba: &Lba| geometry.member(geometry.map(StripeId(0)).cell(geometry.split(*lba).1));
            units.find(|lba| holder(lba) == member(slot)).expect("each of the first four has a unit")
        };
        let (read_at, write_at) = (on(0), on(1));
        engine.disk_mut().hold(member(1), OpName::Write);
        let new = &content[size(Sectors(write_at.0).bytes())..][..4096];
        engine.submit(2, Command::Write { lba: write_at, buf: buf(new), fua: false });
        turn(&mut engine);
        engine.disk_mut().hold(member(0), OpName::Read);
        submit_read(&mut engine, read_at.0, 8);
        assert!(wait(&mut engine, READ_TICKS).is_none(), "{shape:?}: the stripe is being written");
        engine.submit(3, Command::Fail { member: member(3) });
        turn(&mut engine);
        engine.disk_mut().let_go(member(1), OpName::Write);
        assert!(turn(&mut engine).iter().all(|reply| reply.token != 1), "{shape:?}: nobody else has it");
        engine.disk_mut().let_go(member(0), OpName::Read);
        let replies = turn(&mut engine);
        let reply = replies.into_iter().find(|reply| reply.token == 1).expect("it has answered");
        let back = reply.result.expect("it can be read").expect("a read's buffer comes back");
        assert!(back.as_ref() == &content[size(Sectors(read_at.0).bytes())..][..4096], "{shape:?}");
        assert_eq!(engine.missing(), only(3), "{shape:?}");
    }
}

#[test]
fn a_write_goes_around_what_it_would_have_read() {
    for shape in redundant().flat_map(with_all) {
        // With checksums 8 sectors are the least; without, the odd sector makes mirrors of parity read, too.
        let (lba, sectors) = if shape == shape.checked() { (8, 8) } else { (9, 3) };
        for slot in 0..shape.members {
            let context = format!("{shape:?}, member {slot}");
            let (mut engine, mut content) = filled(shape, MemberSet::EMPTY);
            engine.disk_mut().hold(member(slot), OpName::Read);
            let new = noise(5, sectors);
            submit_write(&mut engine, lba, &new);
            let (ticks, reply) = wait(&mut engine, READ_TICKS).expect("it goes around");
            reply.result.expect("written");
            let held = engine.disk().held();
            assert_eq!(ticks, if held > 0 { READ_TICKS } else { 0 }, "{context}");
            content[size(Sectors(lba).bytes())..][..new.len()].copy_from_slice(&new);
            engine.disk_mut().let_go(member(slot), OpName::Read);
            turn(&mut engine);
            assert_encoded(&engine, &content, &context);
            assert_eq!(engine.missing(), MemberSet::EMPTY, "{context}");
            let capacity = engine.geometry().capacity().0;
            assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}");
        }
    }
}

#[test]
fn a_read_of_what_nobody_else_has_waits() {
    for (shape, missing) in [
        (small(Level::Raid0, 4), MemberSet::EMPTY),
        (small(RAID5, 5), only(2)),
        (small(RAID5, 5).checked(), only(2)),
        (small(Level::Raid1, 2), only(1)),
        (small(rm2(3, Placement::Adjacent), 7), only(2).with(member(5))),
    ] {
        let (mut engine, content) = filled(shape, missing);
        let capacity = engine.geometry().capacity().0;
        hang(&mut engine, 0);
        submit_read(&mut engine, 0, capacity);
        assert!(wait(&mut engine, 10 * WRITE_TICKS).is_none(), "{shape:?}: it waits");
        assert_eq!((engine.missing(), engine.lingering(member(0))), (missing, 0), "{shape:?}");
        assert_eq!(engine.counters().total().overdue, 0, "{shape:?}");
        recover(&mut engine, 0);
        let reply = turn(&mut engine).pop().expect("answered");
        assert!(reply.result.expect("read").expect("its buffer").as_ref() == content, "{shape:?}");
        write(&mut engine, 0, &content[..512 * 16]).expect("written");
    }
}

#[test]
fn with_one_of_two_gone_the_other_is_gone_around() {
    for shape in with_all(small(rm2(3, Placement::Adjacent), 7)) {
        for missing in 1..7 {
            let (mut engine, content) = filled(shape, only(missing));
            let capacity = engine.geometry().capacity().0;
            engine.disk_mut().hold(member(0), OpName::Read);
            submit_read(&mut engine, 0, capacity);
            let reply = wait(&mut engine, READ_TICKS).expect("two can be done without").1;
            assert!(reply.result.expect("read").expect("its buffer").as_ref() == content, "{shape:?}, {missing}");
            assert_eq!(engine.missing(), only(missing));
        }
    }
}

/// Whatever of a write a member hangs in, the write goes on without it, when that is on record.
#[test]
fn a_member_that_hangs_is_given_up_and_the_write_is_replied_to() {
    for shape in redundant().flat_map(with_all) {
        for slot in 0..shape.members {
            for names in [&[OpName::Write][..], &[OpName::Flush], &NAMES] {
                for fua in [false, true] {
                    let context = format!("{shape:?}, member {slot}, {names:?}, {fua}");
                    // Nothing is written yet: the first that hangs is the round of superblocks.
                    let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
                    engine.set_deadlines(DEADLINES);
                    names.iter().for_each(|&name| engine.disk_mut().hold(member(slot), name));
                    let content = noise(3, engine.geometry().capacity().0);
                    engine.submit(1, Command::Write { lba: Lba(0), buf: buf(&content), fua });
                    let (ticks, reply) = wait(&mut engine, 2 * WRITE_TICKS).expect("it is replied to");
                    reply.result.expect("written");
                    assert!(ticks >= WRITE_TICKS, "{context}: after {ticks} ticks");
                    assert_eq!(engine.missing(), only(slot), "{context}");
                    assert_recorded(&engine, only(slot), &context);
                    assert!(engine.lingering(member(slot)) > 0, "{context}");
                    // The next find it gone.
                    let new = noise(4, 8);
                    write(&mut engine, 8, &new).expect("written at once");
                    run(&mut engine, Command::Flush).expect("flushed");
                    names.iter().for_each(|&name| engine.disk_mut().let_go(member(slot), name));
                    assert!(turn(&mut engine).is_empty(), "{context}: what comes late is nobody's");
                    assert_eq!(engine.lingering(member(slot)), 0, "{context}");
                    let mut content = content;
                    content[4096..][..4096].copy_from_slice(&new);
                    assert_encoded(&engine, &content, &context);
                    let capacity = engine.geometry().capacity().0;
                    assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}");
                    run(&mut engine, Command::Close).expect("closed");
                }
            }
        }
    }
}

#[test]
fn a_member_that_hangs_later_is_given_up_too() {
    // After the first write the superblocks are right, so that what hangs is the log, the content, its checksums or a
    // flush.
    for shape in redundant().flat_map(with_all) {
        for (names, fua) in [(&[OpName::Write][..], false), (&[OpName::Flush], true), (&NAMES, false)] {
            let context = format!("{shape:?}, {names:?}");
            let (mut engine, mut content) = filled(shape, MemberSet::EMPTY);
            names.iter().for_each(|&name| engine.disk_mut().hold(member(0), name));
            let new = noise(5, engine.geometry().capacity().0);
            engine.submit(1, Command::Write { lba: Lba(0), buf: buf(&new), fua });
            wait(&mut engine, 2 * WRITE_TICKS).expect("it is replied to").1.result.expect("written");
            // A log replies when the others have it.
            wait(&mut engine, WRITE_TICKS);
            content.copy_from_slice(&new);
            assert_recorded(&engine, only(0), &context);
            assert_encoded(&engine, &content, &context);
            run(&mut engine, Command::Close).expect("nobody waits for it");
            recover(&mut engine, 0);
            turn(&mut engine);
            assert_encoded(&engine, &content, &context);
        }
    }
}

#[test]
fn a_member_whose_reads_never_end_is_given_up() {
    let (mut engine, content) = filled(small(RAID5, 5), MemberSet::EMPTY);
    let capacity = engine.geometry().capacity().0;
    engine.disk_mut().hold(member(3), OpName::Read);
    submit_read(&mut engine, 0, capacity);
    wait(&mut engine, READ_TICKS).expect("the others have it");
    for _ in READ_TICKS..WRITE_TICKS - 1 {
        assert!(engine.wants_ticks() && engine.missing().is_empty(), "it may still answer");
        engine.tick();
        turn(&mut engine);
    }
    engine.tick();
    turn(&mut engine);
    assert_recorded(&engine, only(3), "it does not answer");
    assert!(!engine.wants_ticks(), "nothing depends on it any more");
    assert!(read(&mut engine, 0, capacity).expect("read") == content);
}

/// What stops more members than the array survives is hardly their fault, and no reason to lose the array.
#[test]
fn where_too_many_hang_none_is_given_up() {
    for shape in redundant().flat_map(with_all) {
        let hung = shape.geometry().tolerance() + 1;
        let hung = u8::try_from(hung).expect("small").min(shape.members);
        let context = format!("{shape:?}, {hung} members");
        let (mut engine, content) = filled(shape, MemberSet::EMPTY);
        let new = noise(5, engine.geometry().capacity().0);
        // They stop one after the other.
        for slot in 0..hung {
            hang(&mut engine, slot);
        }
        engine.submit(1, Command::Write { lba: Lba(0), buf: buf(&new), fua: true });
        let reply = wait(&mut engine, 5 * WRITE_TICKS);
        assert!(reply.is_none(), "{context}: {reply:?}");
        assert_eq!(engine.missing(), MemberSet::EMPTY, "{context}");
        (0..hung).for_each(|slot| recover(&mut engine, slot));
        turn(&mut engine).pop().expect("replied to").result.expect("written");
        assert_ne!(content, new);
        assert_encoded(&engine, &new, &context);
    }
}

/// Members on one file system hang together, whichever shows it first.
#[test]
fn where_too_many_are_in_one_place_none_is_given_up() {
    for (kin, is_given_up) in [(only(0), true), (only(0).with(member(3)), false)] {
        let (mut engine, _) = filled(small(RAID5, 5), MemberSet::EMPTY);
        engine.disk_mut().kin = kin;
        hang(&mut engine, 0);
        let new = noise(5, engine.geometry().capacity().0);
        submit_write(&mut engine, 0, &new);
        assert_eq!(wait(&mut engine, 5 * WRITE_TICKS).is_some(), is_given_up, "{kin:?}");
        assert_eq!(engine.missing(), if is_given_up { only(0) } else { MemberSet::EMPTY }, "{kin:?}");
        recover(&mut engine, 0);
        turn(&mut engine);
        assert_encoded(&engine, &new, "it went on");
    }
}

#[test]
fn without_deadlines_everything_waits() {
    let mut engine = small(RAID5, 5).engine(MemberSet::EMPTY, Order::Fifo);
    hang(&mut engine, 0);
    submit_write(&mut engine, 0, &noise(1, 64));
    assert!(wait(&mut engine, 100 * WRITE_TICKS).is_none());
    assert_eq!(engine.missing(), MemberSet::EMPTY);
    recover(&mut engine, 0);
    turn(&mut engine).pop().expect("replied to").result.expect("written");
}

/// Read-modify-writes by the hundred, each of which has working memory that its read may still fill: they do not starve
/// those after them.
#[test]
fn what_hangs_keeps_its_memory_and_no_more() {
    let shape = Shape { chunk: 1 << 20, chunks: 64, ..small(RAID5, 5) };
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
    engine.set_deadlines(DEADLINES);
    let capacity = engine.geometry().capacity().0;
    engine.disk_mut().hold(member(0), OpName::Read);
    let stripe = engine.geometry().stripe_sectors().0;
    let new = noise(9, stripe / 4);
    for number in 0..capacity / stripe {
        engine.submit(number, Command::Write { lba: Lba(number * stripe), buf: buf(&new), fua: false });
    }
    let mut replies = 0;
    for _ in 0..3 * READ_TICKS {
        for reply in turn(&mut engine) {
            reply.result.expect("written");
            replies += 1;
        }
        engine.tick();
    }
    assert_eq!((replies, engine.in_flight()), (capacity / stripe, 0));
    assert!(engine.disk().held() > 0, "some are still out");
}

/// A member that joins in the place of one that hangs.
fn joining(engine: &mut TestEngine, shape: &Shape, slot: u8, uuid: Option<u8>) -> Command {
    let superblock = shape.superblocks().swap_remove(usize::from(slot));
    let uuid = uuid.map_or(superblock.member, |number| Uuid::from_bytes([number; 16]));
    engine.disk_mut().put(member(slot), Image::zeroed(size(superblock.areas.member_size)));
    let superblock = Superblock { member: uuid, ..superblock };
    Command::Join(Box::new(Joining {
        superblock,
        is_whole: true,
        generation: Uuid::from_bytes([77; 16]),
        bad_blocks: BadBlocks::default(),
    }))
}

#[test]
fn another_member_takes_the_place_of_one_that_hangs() {
    for shape in redundant().flat_map(with_all) {
        let context = format!("{shape:?}");
        let (engine, mut content) = filled(shape, MemberSet::EMPTY);
        let mut engine = engine.with_rebuild();
        hang(&mut engine, 1);
        let new = noise(5, engine.geometry().capacity().0);
        engine.submit(1, Command::Write { lba: Lba(0), buf: buf(&new), fua: true });
        wait(&mut engine, 3 * WRITE_TICKS).expect("replied to").1.result.expect("written");
        wait(&mut engine, WRITE_TICKS);
        content.copy_from_slice(&new);
        assert_eq!(engine.missing(), only(1), "{context}");
        let same = joining(&mut engine, &shape, 1, None);
        let refused = run(&mut engine, same).expect_err("what it was given may land at any time");
        assert!(matches!(refused, EngineError::Lingering { .. }), "{context}: {refused}");
        // Another device has its place: what hangs is not of it.
        engine.disk_mut().release_elsewhere(member(1));
        let other = joining(&mut engine, &shape, 1, Some(50));
        run(&mut engine, other).expect("joined");
        assert!(engine.missing().is_empty() && engine.rebuilding().is_none(), "{context}");
        assert_encoded(&engine, &content, &context);
        for _ in 0..2 * WRITE_TICKS {
            turn(&mut engine);
            engine.tick();
        }
        assert!(engine.missing().is_empty(), "{context}: what the former has not ended is not its fault");
        engine.disk_mut().end_elsewhere();
        assert!(turn(&mut engine).is_empty(), "{context}");
        assert_eq!((engine.lingering(member(1)), engine.missing()), (0, MemberSet::EMPTY), "{context}");
        let capacity = engine.geometry().capacity().0;
        assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}");
    }
}

#[test]
fn a_member_returns_when_nothing_of_it_is_out() {
    let shape = small(RAID5, 5);
    let (engine, content) = filled(shape, MemberSet::EMPTY);
    let mut engine = engine.with_rebuild();
    hang(&mut engine, 1);
    submit_write(&mut engine, 0, &content);
    wait(&mut engine, 2 * WRITE_TICKS).expect("replied to").1.result.expect("written");
    recover(&mut engine, 1);
    turn(&mut engine);
    let join = joining(&mut engine, &shape, 1, None);
    run(&mut engine, join).expect("joined");
    assert!(engine.missing().is_empty());
    assert_encoded(&engine, &content, "it has returned");
}

#[test]
fn a_scrub_goes_around_a_slow_member() {
    for shape in [small(RAID5, 5), small(RAID5, 5).checked(), small(Level::Raid1, 3)] {
        let (mut engine, content) = filled(shape, MemberSet::EMPTY);
        engine.disk_mut().hold(member(2), OpName::Read);
        engine.start_scrub(uraid_io::engine::ScrubMode::Repair, StripeId(0)).expect("started");
        for _ in 0..4 * READ_TICKS {
            turn(&mut engine);
            engine.tick();
        }
        let status = engine.scrub().expect("started").clone();
        assert!(!status.is_running && status.mismatched == Sectors(0), "{shape:?}: {status:?}");
        assert!(status.unchecked > Sectors(0), "{shape:?}: what could not be read was not checked");
        engine.disk_mut().let_go(member(2), OpName::Read);
        turn(&mut engine);
        assert_encoded(&engine, &content, "after a scrub");
    }
}

/// A page of checksums that does not come is as good a reason to read elsewhere as the content itself.
#[test]
fn checksums_that_do_not_come_are_gone_around() {
    let shape = small(RAID5, 5).checked();
    let (mut engine, content) = filled(shape, MemberSet::EMPTY);
    run(&mut engine, Command::Close).expect("closed");
    let members = images(&engine);
    let mut engine = shape.reopened(members, Order::Fifo);
    engine.set_deadlines(DEADLINES);
    engine.disk_mut().hold(member(0), OpName::Read);
    let capacity = engine.geometry().capacity().0;
    submit_read(&mut engine, 0, capacity);
    let (ticks, reply) = wait(&mut engine, 2 * READ_TICKS).expect("the others have it");
    assert!(ticks >= READ_TICKS, "after {ticks} ticks");
    assert!(reply.result.expect("read").expect("its buffer").as_ref() == content);
    assert_eq!(engine.counters().total().mismatches, 0);
    engine.disk_mut().let_go(member(0), OpName::Read);
    turn(&mut engine);
    assert!(read(&mut engine, 0, capacity).expect("read") == content);
    assert_eq!((engine.slow(), engine.counters().total().mismatches), (MemberSet::EMPTY, 0));
}

#[test]
fn what_is_cached_is_written_without_a_member_that_hangs() {
    use uraid_io::engine::CacheMode;
    for shape in redundant().flat_map(with_all) {
        let engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
        let (mut engine, _pool) = with_cache(engine, Some((CacheMode::WriteBack, 4096)));
        engine.set_deadlines(DEADLINES);
        hang(&mut engine, 0);
        let content = noise(6, engine.geometry().capacity().0);
        engine.submit(0, Command::Write { lba: Lba(0), buf: buf(&content), fua: false });
        wait(&mut engine, 2 * WRITE_TICKS).expect("replied to").1.result.expect("taken");
        engine.submit(1, Command::Flush);
        wait(&mut engine, 4 * WRITE_TICKS).expect("replied to").1.result.expect("flushed");
        assert_recorded(&engine, only(0), "it hangs");
        // What is in memory goes on being changed while the kernel may still have it.
        let mut content = content;
        for lba in (0..engine.geometry().capacity().0 - 8).step_by(8) {
            let new = noise(lba, 8);
            write(&mut engine, lba, &new).expect("taken");
            content[size(Sectors(lba).bytes())..][..4096].copy_from_slice(&new);
        }
        run(&mut engine, Command::Flush).expect("flushed");
        run(&mut engine, Command::Close).expect("closed");
        assert_encoded(&engine, &content, &format!("{shape:?}"));
        recover(&mut engine, 0);
        turn(&mut engine);
        assert_encoded(&engine, &content, &format!("{shape:?}"));
    }
}
