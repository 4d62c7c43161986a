//! A member that stalls while content is on its way to it: flushes put that into the journal, on others.

use std::time::Duration;

use uraid_io::engine::{Command, Deadlines, Reply};
use uraid_io::format::superblock::Consistency;
use uraid_layout::{Lba, MemberIndex, MemberSet, Placement};

use crate::journal::put;
use crate::open_records::{assert_left, begin, end, hold, let_go, pages, with_a_record};
use crate::support::{RAID5, Shape, TestEngine, buf, noise, rm2, run, small};

/// Ticks after which a flush does not wait for what flies.
const OVERDUE: usize = 4;

/// Runs of parity stripes that are written out at once.
const RUNS: u64 = 32;

/// Arrays whose journals have room for a few parity stripes.
fn shapes() -> [Shape; 2] {
    let shape = |level, members, log| Shape { consistency: Consistency::Log, log, ..small(level, members) };
    [shape(RAID5, 5, 1 << 20), shape(rm2(3, Placement::Adjacent), 7, 2 << 20)]
}

/// An engine that knows for how long anything has been under way, and its content.
fn timed(shape: Shape) -> (TestEngine, Vec<u8>) {
    let (mut engine, content) = with_a_record(shape);
    engine.set_deadlines(Deadlines { read: None, write: Some(Duration::from_secs(3600)), hedges: false });
    (engine, content)
}

/// Has time pass, and as much done as can be.
fn pass(engine: &mut TestEngine, ticks: usize, replies: &mut Vec<Reply<u64>>) {
    for _ in 0..ticks {
        engine.tick();
        for _ in 0..50 {
            engine.turn(replies).expect("memory does not break");
        }
    }
}

/// Each member stalls, when `fill` has had content written, part of which is on its way to that member then. A flush
/// makes it durable all the same, and later ones don't wait for time to pass.
fn flushes_go_on(what: &str, shapes: &[Shape], fill: impl Fn(&mut TestEngine, &Shape, &mut Vec<u8>)) {
    for shape in shapes {
        for stalled in shape.geometry().all_members().iter() {
            let context = |when: &str| format!("{what} of {shape:?}, member {stalled}, {when}");
            let (mut engine, mut content) = timed(*shape);
            hold(&mut engine, MemberSet::EMPTY.with(stalled));
            fill(&mut engine, shape, &mut content);
            assert!(engine.disk().held() > 0, "{}", context("something is on its way"));
            let mut replies = Vec::new();
            engine.submit(1, Command::Flush);
            pass(&mut engine, OVERDUE, &mut replies);
            end(&mut engine, replies, 1);
            for lba in pages(shape).skip(20).take(3) {
                put(&mut content, lba, &noise(lba, 8));
                let replies = begin(&mut engine, lba, lba, &noise(lba, 8));
                end(&mut engine, replies, 1);
            }
            assert_left(&engine, &content, &context("still stalls"));
            let_go(&mut engine, MemberSet::EMPTY.with(stalled));
            end(&mut engine, Vec::new(), 0);
            pass(&mut engine, 100, &mut Vec::new());
            drop(run(&mut engine, Command::Flush).expect("flushed"));
            assert_left(&engine, &content, &context("and all is written out"));
            for lba in pages(shape).take(40) {
                put(&mut content, lba, &noise(7 * lba, 8));
                let replies = begin(&mut engine, lba, lba, &noise(7 * lba, 8));
                end(&mut engine, replies, 1);
            }
            assert_left(&engine, &content, &context("long after"));
        }
    }
}

/// Has the cache take a write, whatever is under way.
fn take_in(engine: &mut TestEngine, content: &mut [u8], lba: u64, bytes: &[u8]) {
    put(content, lba, bytes);
    let mut replies = Vec::new();
    engine.submit(0, Command::Write { lba: Lba(lba), buf: buf(bytes), fua: false });
    engine.turn(&mut replies).expect("memory does not break");
    assert!(matches!(&replies[..], [reply] if reply.result.is_ok()), "the cache takes it at {lba}: {replies:?}");
}

#[test]
fn what_is_being_written_out_goes_into_the_journal() {
    flushes_go_on("pages", &shapes(), |engine, shape, content| {
        for lba in pages(shape).take(16) {
            take_in(engine, content, lba, &noise(lba, 8));
        }
        pass(engine, 60, &mut Vec::new());
    });
}

/// What is newer than what flies goes there after it, or without what it hides.
#[test]
fn what_is_newer_than_what_flies_counts() {
    for is_flushed_first in [false, true] {
        flushes_go_on("newer sectors", &shapes(), |engine, shape, content| {
            for lba in pages(shape).take(16) {
                take_in(engine, content, lba, &noise(lba, 8));
            }
            pass(engine, 60, &mut Vec::new());
            for lba in pages(shape).take(16) {
                take_in(engine, content, lba + 2, &noise(lba + 2, 3));
            }
            if is_flushed_first {
                let mut replies = Vec::new();
                engine.submit(1, Command::Flush);
                pass(engine, OVERDUE, &mut replies);
                end(engine, replies, 1);
                for lba in pages(shape).take(16) {
                    take_in(engine, content, lba + 1, &noise(lba + 1, 2));
                }
            }
        });
    }
}

#[test]
fn stripes_that_are_being_written_out_whole_go_into_the_journal() {
    flushes_go_on("stripes", &shapes(), |engine, shape, content| {
        let stripe = shape.geometry().stripe_sectors().0;
        for number in [1, 2] {
            for lba in (number * stripe..(number + 1) * stripe).step_by(8) {
                take_in(engine, content, lba, &noise(lba, 8));
            }
        }
        // The log has sums of it, if that; pages of another stripe are not in place either.
        pass(engine, 1, &mut Vec::new());
    });
}

/// So do stripes that wait for others to be written out: as many as may be are under way.
#[test]
fn stripes_that_are_about_to_be_written_out_go_into_the_journal() {
    let [shape, _] = shapes();
    let shape = Shape { chunks: 80, log: 2 << 20, ..shape };
    let (mut engine, mut content) = timed(shape);
    let stripe = shape.geometry().stripe_sectors().0;
    hold(&mut engine, MemberSet::EMPTY.with(MemberIndex(2)));
    let mut take_whole = |engine: &mut TestEngine, number: u64| {
        for lba in (number * stripe..(number + 1) * stripe).step_by(8) {
            take_in(engine, &mut content, lba, &noise(lba, 8));
        }
    };
    for number in 0..RUNS {
        take_whole(&mut engine, 2 * number);
    }
    pass(&mut engine, OVERDUE, &mut Vec::new());
    take_whole(&mut engine, 2 * RUNS);
    let mut replies = Vec::new();
    engine.submit(1, Command::Flush);
    pass(&mut engine, 1, &mut replies);
    end(&mut engine, replies, 1);
    assert_left(&engine, &content, "stripes that wait");
}
