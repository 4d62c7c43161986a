//! What is on record of scrubs, and work that goes on by itself and is to end.

use uraid_io::disk::Order;
use uraid_io::engine::Command;
use uraid_io::format::UnixSeconds;
use uraid_io::format::superblock::{ScrubFound, ScrubHistory, ScrubMode, ScrubRun};
use uraid_layout::{MemberIndex, MemberSet, Sectors, StripeId};

use crate::rebuild::{filled as rebuilding, new_member};
use crate::support::{RAID5, Shape, TestEngine, images, noise, run, small, write};

fn filled(shape: Shape) -> TestEngine {
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Seeded(1));
    let content = noise(2, engine.geometry().capacity().0);
    write(&mut engine, 0, &content).expect("written");
    engine
}

fn run_at(position: u64) -> ScrubRun {
    let found = ScrubFound { mismatched: Sectors(24), repaired: Sectors(16), unchecked: Sectors(8) };
    ScrubRun { mode: ScrubMode::Check, position: StripeId(position), found }
}

fn at(position: u64) -> ScrubHistory {
    ScrubHistory { finished: Some(UnixSeconds(position + 1000)), run: Some(run_at(position)), is_owed: position == 3 }
}

fn turn(engine: &mut TestEngine) {
    for _ in 0..20 {
        engine.turn(&mut Vec::new()).expect("memory does not break");
    }
}

/// What every present member durably says.
#[track_caller]
fn on_record(engine: &TestEngine) -> ScrubHistory {
    let newest = engine.disk().newest();
    for member in engine.geometry().all_members().minus(engine.missing()).iter() {
        assert_eq!(engine.disk().durable(member).expect("it has one").scrub, newest.scrub, "member {member}");
    }
    newest.scrub
}

#[test]
fn where_a_scrub_is_goes_on_record_at_once_or_with_the_next_round() {
    let shape = Shape { chunks: 40, ..small(RAID5, 4) };
    let mut engine = filled(shape);
    let before = engine.disk().newest().clone();
    engine.keep_scrub(at(1), false);
    turn(&mut engine);
    assert_eq!((engine.disk().newest().epoch, on_record(&engine)), (before.epoch, ScrubHistory::default()));
    assert_eq!(engine.scrub_record(), at(1));

    engine.keep_scrub(at(2), true);
    turn(&mut engine);
    let now = engine.disk().newest().clone();
    assert_eq!((now.epoch.0, on_record(&engine)), (before.epoch.0 + 1, at(2)));
    assert_eq!((now.is_clean, &now.slots), (before.is_clean, &before.slots), "nothing else has changed");

    engine.keep_scrub(at(3), false);
    drop(run(&mut engine, Command::Fail { member: MemberIndex(2) }).expect("given up"));
    assert_eq!(on_record(&engine), at(3));
    engine.keep_scrub(at(4), true);
    drop(run(&mut engine, Command::Close).expect("closed"));
    assert_eq!((on_record(&engine), engine.disk().newest().is_clean), (at(4), true), "a close waits for it");
}

#[test]
fn a_scrub_that_is_on_record_goes_on_after_a_crash() {
    let shape = Shape { chunks: 40, ..small(RAID5, 4) };
    let mut engine = filled(shape);
    engine.keep_scrub(at(30), true);
    turn(&mut engine);
    let members: Vec<_> = images(&engine);
    let mut engine = shape.reopened(members, Order::Fifo);
    assert_eq!(engine.scrub_record(), at(30));
    engine.resume_scrub(run_at(30)).expect("goes on");
    while engine.scrub().is_some_and(|scrub| scrub.is_running) {
        turn(&mut engine);
        engine.tick();
    }
    let status = engine.scrub().expect("there was one");
    assert_eq!((status.position, status.done), (StripeId(40), status.total));
    assert_eq!((status.mismatched, status.repaired, status.unchecked), (Sectors(24), Sectors(16), Sectors(8)));
    assert_eq!(engine.counters().total().read_bytes, 10 * 4 * shape.chunk, "only what was left is read");
    assert_eq!(engine.counters().scrubs().compared, Sectors(10 * 3 * shape.chunk / 512).bytes());
}

#[test]
fn nothing_is_put_on_record_of_an_array_that_is_read_only() {
    let shape = small(RAID5, 4);
    let engine = filled(shape);
    let members: Vec<_> = images(&engine);
    let mut reader = shape.engine_on(members, MemberSet::EMPTY, Order::Fifo, true);
    let before = reader.disk().newest().epoch;
    reader.keep_scrub(at(1), true);
    turn(&mut reader);
    assert_eq!((reader.disk().newest().epoch, reader.scrub_record()), (before, ScrubHistory::default()));
}

/// The array has far more than is under way at a time, so who goes on is seen to have got further.
#[test]
fn what_goes_on_by_itself_ends_with_what_is_under_way() {
    let shape = Shape { chunks: 400, ..small(RAID5, 4) };
    let mut engine = filled(shape);
    engine.start_scrub(ScrubMode::Check, StripeId(0)).expect("started");
    engine.disk_mut().allow_reaps(1);
    engine.turn(&mut Vec::new()).expect("memory does not break");
    engine.wind_down();
    engine.disk_mut().allow_reaps(usize::MAX);
    while engine.in_flight() > 0 {
        engine.turn(&mut Vec::new()).expect("memory does not break");
        engine.tick();
    }
    let status = engine.scrub().expect("there was one");
    assert!(!status.is_running && status.parts == 0 && status.position < StripeId(100), "{:?}", status.position);

    let (mut engine, _) = rebuilding(shape, Order::Fifo);
    drop(run(&mut engine, Command::Fail { member: MemberIndex(1) }).expect("given up"));
    let join = new_member(&mut engine, &shape, MemberIndex(1), 7);
    engine.submit(0, join);
    let mut replies = Vec::new();
    engine.disk_mut().allow_reaps(1);
    while replies.is_empty() {
        engine.turn(&mut replies).expect("memory does not break");
        engine.disk_mut().allow_reaps(1);
    }
    engine.wind_down();
    engine.disk_mut().allow_reaps(usize::MAX);
    while engine.in_flight() > 0 {
        engine.turn(&mut replies).expect("memory does not break");
        engine.tick();
    }
    let progress = engine.rebuilding().expect("it is not rebuilt yet");
    assert!(progress.done.0 < engine.geometry().capacity().0 / 2, "{progress:?}");
}
