//! Clients' reads that take longer than a member's reads do are computed from the others, and nothing else is said of
//! the member.

use std::time::Duration;

use uraid_io::disk::{OpName, Order};
use uraid_io::engine::{BEAT, Command, Deadlines, Reply};
use uraid_layout::{Lba, Level, MemberIndex, MemberSet, Placement, StripeId};

use crate::slow::{DEADLINES, turn};
use crate::support::{RAID5, Shape, TestEngine, assert_encoded, buf, noise, rm2, shapes, small, write};
use uraid_io::buf::Buf;
use uraid_layout::Sectors;

/// What the reads of all members take at most.
const AFTER: [Option<Duration>; 16] = [Some(Duration::from_millis(2)); 16];

/// The beat at which a read has certainly taken longer: it may miss the first.
const BEATS: u32 = 3;

const HEDGES: Deadlines = Deadlines { read: None, write: None, hedges: true };

fn filled(shape: Shape, deadlines: Deadlines) -> (TestEngine, Vec<u8>) {
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
    let content = noise(2, engine.geometry().capacity().0);
    write(&mut engine, 0, &content).expect("written");
    engine.set_deadlines(deadlines);
    (engine, content)
}

fn submit_read(engine: &mut TestEngine, lba: u64) {
    engine.submit(lba, Command::Read { lba: Lba(lba), buf: Buf::zeroed(Sectors(8).bytes()) });
}

#[track_caller]
fn assert_reads(reply: Reply<u64>, content: &[u8], context: &str) {
    let at = usize::try_from(reply.token * 512).expect("a small array");
    let back = reply.result.expect("read").expect("a read's buffer comes back");
    assert!(back.as_ref() == &content[at..][..4096], "{context}: {}", reply.token);
}

/// Lets beats pass at each of which nothing happens, and then one at which it does.
fn hedge(engine: &mut TestEngine, context: &str) -> Vec<Reply<u64>> {
    for beat in 1..BEATS {
        assert!(!engine.beat(&AFTER), "{context}: at beat {beat}");
    }
    assert!(engine.beat(&AFTER), "{context}: it takes too long");
    turn(engine)
}

fn redundant() -> impl Iterator<Item = Shape> {
    shapes().into_iter().filter(|shape| shape.geometry().tolerance() > 0).flat_map(|shape| [shape, shape.checked()])
}

/// The beginnings of the first units of an array's first stripe, by member.
fn units(engine: &TestEngine) -> Vec<(u8, u64)> {
    let geometry = engine.geometry();
    let holder = |lba: u64| geometry.member(geometry.map(StripeId(0)).cell(geometry.split(Lba(lba)).1)).0;
    let units = geometry.stripe_sectors().0 / geometry.chunk().0;
    (0..units).map(|unit| unit * geometry.chunk().0).map(|lba| (holder(lba), lba)).collect()
}

#[test]
fn a_read_that_takes_too_long_is_answered_from_the_others_and_what_comes_late_touches_nothing() {
    let mut all_hedged = 0;
    for shape in redundant() {
        for slot in (0..shape.members).map(MemberIndex) {
            let context = format!("{shape:?}, member {slot}");
            let (mut engine, content) = filled(shape, HEDGES);
            engine.disk_mut().hold(slot, OpName::Read);
            let mut hedged = 0;
            for (_, lba) in units(&engine) {
                submit_read(&mut engine, lba);
                let mut replies = turn(&mut engine);
                if replies.is_empty() {
                    replies = hedge(&mut engine, &context);
                    hedged += 1;
                }
                assert_reads(replies.pop().expect("the others have it"), &content, &context);
            }
            all_hedged += hedged;
            let counters = *engine.counters().member(slot);
            let found = (counters.hedged, counters.overdue, counters.errors, counters.mismatches, counters.repaired);
            assert_eq!(found, (hedged, 0, 0, 0, 0), "{context}");
            assert_eq!((engine.slow(), engine.missing()), (MemberSet::EMPTY, MemberSet::EMPTY), "{context}");
            assert_eq!(u64::from(engine.lingering(slot)), hedged, "{context}");
            engine.disk_mut().let_go(slot, OpName::Read);
            assert!(turn(&mut engine).is_empty(), "{context}: one reply to each");
            assert_eq!(engine.lingering(slot), 0, "{context}");
            assert_encoded(&engine, &content, &context);
        }
    }
    assert!(all_hedged > 50, "{all_hedged} reads");
}

#[test]
fn nothing_is_hedged_while_others_are_late_too() {
    let (mut engine, content) = filled(small(RAID5, 5), HEDGES);
    let (units, late) = (units(&engine), [0, 1].map(MemberIndex));
    late.iter().for_each(|&slot| engine.disk_mut().hold(slot, OpName::Read));
    let of = |slot: MemberIndex| units.iter().find(|unit| unit.0 == slot.0).expect("each of the first four has one").1;
    late.iter().for_each(|&slot| submit_read(&mut engine, of(slot)));
    assert!(turn(&mut engine).is_empty());
    assert!((0..10 * BEATS).all(|_| !engine.beat(&AFTER)), "who could be asked is late");
    engine.disk_mut().let_go(late[1], OpName::Read);
    assert_reads(turn(&mut engine).pop().expect("it has come"), &content, "the second");
    assert!(engine.beat(&AFTER), "the others answer");
    assert_reads(turn(&mut engine).pop().expect("they have it"), &content, "the first");
    let hedged = late.map(|slot| engine.counters().member(slot).hedged);
    assert_eq!(hedged, [1, 0]);
}

#[test]
fn what_nobody_else_has_is_waited_for() {
    for (shape, failed) in [(small(Level::Raid0, 4), None), (small(RAID5, 5), Some(MemberIndex(4)))] {
        let (mut engine, content) = filled(shape, HEDGES);
        if let Some(member) = failed {
            engine.submit(u64::MAX >> 1, Command::Fail { member });
            assert_eq!(turn(&mut engine).len(), 1);
        }
        engine.disk_mut().hold(MemberIndex(0), OpName::Read);
        let lba = units(&engine).into_iter().find(|unit| unit.0 == 0).expect("it has a unit").1;
        submit_read(&mut engine, lba);
        assert!(turn(&mut engine).is_empty());
        assert!((0..10 * BEATS).all(|_| !engine.beat(&AFTER)), "{shape:?}");
        engine.disk_mut().let_go(MemberIndex(0), OpName::Read);
        assert_reads(turn(&mut engine).pop().expect("it has come"), &content, "waited for");
        assert_eq!(engine.counters().total().hedged, 0);
    }
}

#[test]
fn only_reads_of_clients_are_hedged_where_it_is_known_what_is_long() {
    let (mut engine, _) = filled(small(rm2(3, Placement::Adjacent), 7), HEDGES);
    (0..7).for_each(|slot| engine.disk_mut().hold(MemberIndex(slot), OpName::Read));
    engine.submit(1, Command::Write { lba: Lba(1), buf: buf(&noise(3, 1)), fua: false });
    assert!(turn(&mut engine).is_empty(), "it reads");
    let one = [Some(Duration::from_millis(2)), None, None, None, None, None, None];
    assert!((0..10 * BEATS).all(|_| !engine.beat(&one)), "a write waits for what it reads");
    let (mut engine, content) = filled(small(RAID5, 5), HEDGES);
    engine.disk_mut().hold(MemberIndex(0), OpName::Read);
    let lba = units(&engine).into_iter().find(|unit| unit.0 == 0).expect("it has a unit").1;
    submit_read(&mut engine, lba);
    assert!(turn(&mut engine).is_empty());
    assert!((0..10 * BEATS).all(|_| !engine.beat(&[None, Some(BEAT)])), "nobody knows how long its reads take");
    engine.set_deadlines(Deadlines { hedges: false, ..HEDGES });
    assert!((0..10 * BEATS).all(|_| !engine.beat(&AFTER)), "nobody wants it");
    engine.disk_mut().let_go(MemberIndex(0), OpName::Read);
    assert_reads(turn(&mut engine).pop().expect("it has come"), &content, "waited for");
}

#[test]
fn who_does_not_answer_a_read_that_was_hedged_is_slow_after_the_deadline() {
    let (mut engine, content) = filled(small(RAID5, 5), Deadlines { hedges: true, ..DEADLINES });
    engine.disk_mut().hold(MemberIndex(0), OpName::Read);
    let lba = units(&engine).into_iter().find(|unit| unit.0 == 0).expect("it has a unit").1;
    submit_read(&mut engine, lba);
    assert!(turn(&mut engine).is_empty());
    assert_reads(hedge(&mut engine, "hedged").pop().expect("the others have it"), &content, "hedged");
    (0..3).for_each(|_| engine.tick());
    assert_eq!(engine.slow(), MemberSet::EMPTY.with(MemberIndex(0)));
    submit_read(&mut engine, lba);
    assert_reads(turn(&mut engine).pop().expect("it is not read"), &content, "gone around at once");
    engine.disk_mut().let_go(MemberIndex(0), OpName::Read);
    turn(&mut engine);
    assert_eq!((engine.slow(), engine.missing()), (MemberSet::EMPTY, MemberSet::EMPTY));
}
