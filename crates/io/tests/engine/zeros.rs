//! What the engine says reads as zeros: never what does not.

use std::ops::Range;

use uraid_io::disk::Order;
use uraid_io::engine::{CacheMode, Command, Status};
use uraid_layout::{Bytes, Lba, Level, MemberIndex, MemberSet, Placement, Sectors};

use crate::rebuild::{fail, logged};
use crate::support::{
    Caching, RAID5, Random, Shape, TestEngine, assert_encoded, block, buf, images, noise, read, recovered, rm2, run,
    run_all, small, with_cache, write,
};

const CACHINGS: [Caching; 3] = [None, Some((CacheMode::WriteThrough, 64)), Some((CacheMode::WriteBack, 64))];

fn shapes() -> [Shape; 7] {
    let raid5 = small(RAID5, 4);
    let rm2 = small(rm2(3, Placement::Adjacent), 6);
    let copies = small(Level::Raid10 { copies: 2 }, 4);
    [raid5, logged(raid5), raid5.checked(), rm2, logged(rm2), logged(copies), small(Level::Raid0, 3)]
}

fn status(engine: &TestEngine, range: Range<u64>) -> Vec<(Status, Range<u64>)> {
    let mut at = range.start;
    let found = engine.zeros().status(&(Lba(range.start)..Lba(range.end)), usize::MAX).expect("it is not frozen");
    let runs: Vec<_> =
        found.into_iter().map(|(status, end)| (status, std::mem::replace(&mut at, end.0)..end.0)).collect();
    assert_eq!(at, range.end, "all of it is told of");
    runs
}

/// What is said to be zeros reads as zeros.
fn assert_true(engine: &mut TestEngine, context: &str) {
    let capacity = engine.geometry().capacity().0;
    for (status, run) in status(engine, 0..capacity) {
        if status != Status::Data {
            let content = read(engine, run.start, run.end - run.start).expect("read");
            assert!(content.iter().all(|&byte| byte == 0), "{context}: {run:?} is said to be {status:?}");
        }
    }
}

fn zeroes(lba: u64, len: u64, may_punch: bool) -> Command {
    Command::WriteZeroes { lba: Lba(lba), len: Sectors(len), fua: false, may_punch }
}

#[test]
fn what_is_said_to_be_zeros_reads_as_zeros() {
    for (shape, caching) in shapes().into_iter().flat_map(|shape| CACHINGS.map(|caching| (shape, caching))) {
        let context = format!("{shape:?}, {caching:?}");
        let (mut engine, _pool) = with_cache(shape.engine(MemberSet::EMPTY, Order::Lifo), caching);
        let (mut random, capacity) = (Random(5), engine.geometry().capacity().0 / 8);
        for turn in 0..200 {
            let commands = (0..=random.below(5)).map(|number| {
                let lba = random.below(capacity);
                let len = 1 + random.below(capacity - lba).min(if turn % 2 == 0 { 3 } else { 40 });
                let (lba, len, fua) = (lba * 8, len * 8, random.below(4) == 0);
                match random.below(3) {
                    0 => zeroes(lba, len, fua),
                    1 => zeroes(lba, len, true),
                    _ => Command::Write { lba: Lba(lba), buf: buf(&noise(turn * 8 + number, len)), fua },
                }
            });
            let commands: Vec<Command> = commands.collect();
            run_all(&mut engine, commands).into_iter().for_each(|result| drop(result.expect("done")));
            assert_true(&mut engine, &context);
            if turn % 16 == 0 {
                run(&mut engine, Command::Flush).expect("flushed");
                assert_true(&mut engine, &context);
            }
            if turn == 150 && engine.geometry().tolerance() > 0 {
                run(&mut engine, fail(MemberIndex(1))).expect("given up");
            }
        }
        run(&mut engine, zeroes(0, capacity * 8, true)).expect("zeroed");
        run(&mut engine, Command::Flush).expect("flushed");
        let known = status(&engine, 0..capacity * 8);
        assert!(known.iter().all(|(status, _)| *status != Status::Data), "{context}: {known:?}");
    }
}

#[test]
fn content_is_told_from_zeros_page_by_page() {
    for (shape, caching) in shapes().into_iter().flat_map(|shape| CACHINGS.map(|caching| (shape, caching))) {
        let (mut engine, _pool) = with_cache(shape.engine(MemberSet::EMPTY, Order::Fifo), caching);
        let capacity = engine.geometry().capacity().0;
        assert_eq!(status(&engine, 0..capacity), [(Status::Data, 0..capacity)], "nothing is known at first");
        run(&mut engine, zeroes(0, capacity, false)).expect("zeroed");
        assert_eq!(status(&engine, 3..capacity - 5), [(Status::Zeros, 3..capacity - 5)], "{shape:?}, {caching:?}");
        write(&mut engine, 80, &noise(1, 8)).expect("written");
        let expected = [(Status::Zeros, 0..80), (Status::Data, 80..88), (Status::Zeros, 88..capacity)];
        assert_eq!(status(&engine, 0..capacity), expected, "{shape:?}, {caching:?}");
        let one = engine.zeros().status(&(Lba(8)..Lba(200)), 1).expect("not frozen");
        assert_eq!(one, [(Status::Zeros, Lba(80))], "as many parts as are asked for");
        run(&mut engine, zeroes(80, 8, false)).expect("zeroed");
        assert_eq!(status(&engine, 0..capacity), [(Status::Zeros, 0..capacity)], "{shape:?}, {caching:?}");
    }
}

/// The cache takes content in while zeros are being written there.
#[test]
fn content_that_comes_while_zeros_are_written_is_not_zeros() {
    for shape in shapes() {
        let caching = Some((CacheMode::WriteBack, 256));
        let (mut engine, _pool) = with_cache(shape.engine(MemberSet::EMPTY, Order::Fifo), caching);
        let capacity = engine.geometry().capacity().0;
        engine.disk_mut().allow_reaps(0);
        let mut replies = Vec::new();
        engine.submit(1, zeroes(0, capacity, true));
        engine.turn(&mut replies).expect("memory does not break");
        engine.submit(2, Command::Write { lba: Lba(80), buf: buf(&noise(1, 8)), fua: false });
        engine.disk_mut().allow_reaps(usize::MAX);
        while engine.in_flight() > 0 {
            engine.turn(&mut replies).expect("memory does not break");
        }
        replies.into_iter().for_each(|reply| drop(reply.result.expect("done")));
        let expected = [(Status::Hole, 0..80), (Status::Data, 80..88), (Status::Hole, 88..capacity)];
        let known = status(&engine, 0..capacity).into_iter().map(|(status, run)| (status != Status::Data, run));
        let expected = expected.map(|(status, run)| (status != Status::Data, run));
        assert_eq!(known.collect::<Vec<_>>(), expected, "{shape:?}");
        assert_true(&mut engine, "afterwards");
    }
}

/// What a member's data area has of these sectors, as bytes of the member.
fn hole(shape: &Shape, sectors: Range<u64>) -> Range<Bytes> {
    let data = shape.superblocks()[0].areas.data.offset.0;
    Bytes(data + sectors.start * 512)..Bytes(data + sectors.end * 512)
}

#[test]
fn holes_of_all_members_are_zeros() {
    for shape in [small(RAID5, 4), logged(small(rm2(3, Placement::Adjacent), 6)), small(Level::Raid0, 3)] {
        let shape = Shape { chunks: 24, ..shape };
        let (mut engine, _pool) =
            with_cache(shape.engine(MemberSet::EMPTY, Order::Fifo), Some((CacheMode::WriteBack, 64)));
        let (geometry, stripe) = (shape.geometry(), shape.geometry().stripe_sectors().0);
        let rows = geometry.rows() as u64 * 8;
        assert!(geometry.used_sectors().0 >= 6 * rows, "there are some stripes");
        // Something of every stripe but 1 to 4 has content on some member.
        let mut holes = vec![vec![hole(&shape, 0..5 * rows)]; usize::from(shape.members)];
        holes[1] = vec![hole(&shape, rows - 1..3 * rows), hole(&shape, 3 * rows..6 * rows - 1)];
        write(&mut engine, 2 * stripe, &noise(1, 8)).expect("it is in the cache");
        assert!(engine.zeros().begin_search());
        write(&mut engine, 4 * stripe + 8, &noise(1, 8)).expect("written meanwhile");
        engine.zeros().end_search(&holes, Status::Hole);
        let expected = [
            (Status::Data, 0..stripe),
            (Status::Hole, stripe..2 * stripe),
            (Status::Data, 2 * stripe..2 * stripe + 8),
            (Status::Hole, 2 * stripe + 8..4 * stripe),
            (Status::Hole, 4 * stripe..4 * stripe + 8),
            (Status::Data, 4 * stripe + 8..4 * stripe + 16),
            (Status::Hole, 4 * stripe + 16..5 * stripe),
            (Status::Data, 5 * stripe..6 * stripe),
        ];
        let mut known: Vec<(Status, Range<u64>)> = Vec::new();
        for (status, run) in expected {
            match known.last_mut() {
                Some(last) if last.0 == status => last.1.end = run.end,
                _ => known.push((status, run)),
            }
        }
        assert_eq!(status(&engine, 0..6 * stripe), known, "{shape:?}");
        // What is looked for again is not what was found before.
        engine.zeros().end_search(&holes, Status::Hole);
        assert_eq!(status(&engine, 0..6 * stripe), known, "{shape:?}: the search is over");
    }
}

#[test]
fn holes_do_not_tell_where_members_are_missing_or_blocks_have_checksums() {
    let raid5 = small(RAID5, 4);
    let mut degraded = raid5.engine(MemberSet::EMPTY, Order::Fifo);
    run(&mut degraded, fail(MemberIndex(2))).expect("given up");
    for (name, engine) in [("degraded", degraded), ("checked", raid5.checked().engine(MemberSet::EMPTY, Order::Fifo))] {
        assert!(!engine.zeros().begin_search(), "{name}");
        let all = vec![vec![hole(&raid5, 0..1 << 20)]; 4];
        engine.zeros().end_search(&all, Status::Hole);
        let capacity = engine.geometry().capacity().0;
        assert_eq!(status(&engine, 0..capacity), [(Status::Data, 0..capacity)], "{name}");
    }
    let mut busy = raid5.engine(MemberSet::EMPTY, Order::Fifo);
    busy.disk_mut().allow_reaps(0);
    busy.submit(0, Command::Write { lba: Lba(0), buf: buf(&noise(1, 8)), fua: false });
    busy.turn(&mut Vec::new()).expect("memory does not break");
    assert!(!busy.zeros().begin_search(), "what is being written is not on the members");
}

/// Zeros that are there, and have no space, are written neither by trims nor by zeros; those are that are to have
/// space.
#[test]
fn nothing_is_written_for_zeros_that_are_there() {
    for shape in [small(RAID5, 5), logged(small(RAID5, 5)), small(Level::Raid0, 4)] {
        let shape = Shape { chunk: 64 << 10, chunks: 8, log: 1 << 20, ..shape };
        for caching in CACHINGS {
            let context = format!("{shape:?}, {caching:?}");
            let (mut engine, _pool) = with_cache(shape.engine(MemberSet::EMPTY, Order::Fifo), caching);
            let (stripe, capacity) = (engine.geometry().stripe_sectors().0, engine.geometry().capacity().0);
            write(&mut engine, 0, &noise(1, capacity)).expect("written");
            run(&mut engine, zeroes(0, capacity, true)).expect("trimmed");
            run(&mut engine, Command::Flush).expect("flushed");
            let written = |engine: &TestEngine| {
                let total = engine.counters().total();
                (total.written_bytes, total.zeroes)
            };
            let before = written(&engine);
            for (lba, len) in [(0, capacity), (8, 8), (stripe - 16, 32), (16, 3 * stripe), (1, 1), (capacity - 5, 5)] {
                let fua = Command::WriteZeroes { lba: Lba(lba), len: Sectors(len), fua: true, may_punch: true };
                run(&mut engine, fua).expect("trimmed");
                assert_eq!(written(&engine), before, "{context}: {len} at {lba}");
            }
            assert_eq!(status(&engine, 0..capacity), [(Status::Hole, 0..capacity)], "{context}");
            run(&mut engine, zeroes(0, stripe, false)).expect("zeroed");
            assert!(written(&engine) > before, "{context}: they are to have space");
            let expected = [(Status::Zeros, 0..stripe), (Status::Hole, stripe..capacity)];
            assert_eq!(status(&engine, 0..capacity), expected, "{context}");
            // Only whole stripes give it back.
            run(&mut engine, zeroes(0, stripe, true)).expect("trimmed");
            assert_eq!(status(&engine, 0..capacity), [(Status::Hole, 0..capacity)], "{context}");
        }
    }
}

/// With FUA zeros are durable that were there already, in memory only.
#[test]
fn zeros_that_are_there_are_durable_with_fua() {
    for shape in [small(RAID5, 4), small(rm2(3, Placement::Adjacent), 6)] {
        let shape = Shape { log: 1 << 20, ..logged(shape) };
        let caching = Some((CacheMode::WriteBack, 256));
        let (mut engine, _pool) = with_cache(shape.engine(MemberSet::EMPTY, Order::Fifo), caching);
        // The journal has it, so what replaces it goes into the cache.
        run(&mut engine, Command::Write { lba: Lba(80), buf: buf(&noise(1, 8)), fua: true }).expect("written");
        run(&mut engine, zeroes(80, 8, true)).expect("zeroed");
        assert_eq!(status(&engine, 80..88), [(Status::Zeros, 80..88)], "{shape:?}");
        assert!(engine.is_dirty(), "{shape:?}: it is in memory");
        run(&mut engine, Command::WriteZeroes { lba: Lba(80), len: Sectors(8), fua: true, may_punch: true })
            .expect("zeroed");
        let mut engine = recovered(&shape, images(&engine));
        assert_eq!(block(&mut engine, 80).expect("read"), [0; 4096], "{shape:?}");
    }
}

/// What the journal has of a stripe is replaced in the cache; the stripes beside it give their space back all the same.
#[test]
fn stripes_beside_what_the_journal_has_give_their_space_back() {
    let raid5 = Shape { chunk: 64 << 10, ..small(RAID5, 5) };
    for shape in [raid5, Shape { chunk: 32 << 10, ..small(rm2(3, Placement::Adjacent), 7) }] {
        let shape = Shape { chunks: 24, log: 1152 << 10, ..logged(shape) };
        for page in [0, 1, 2].map(|stripes| stripes * shape.geometry().stripe_sectors().0 + 16) {
            let caching = Some((CacheMode::WriteBack, 4096));
            let (mut engine, _pool) = with_cache(shape.engine(MemberSet::EMPTY, Order::Fifo), caching);
            let (stripe, capacity) = (engine.geometry().stripe_sectors().0, engine.geometry().capacity().0);
            write(&mut engine, 0, &noise(1, capacity)).expect("written");
            run(&mut engine, Command::Flush).expect("flushed");
            run(&mut engine, Command::Write { lba: Lba(page), buf: buf(&noise(2, 8)), fua: true }).expect("written");
            run(&mut engine, zeroes(0, capacity, true)).expect("trimmed");
            let zeros = page / stripe * stripe..(page / stripe + 1) * stripe;
            let expected =
                [(Status::Hole, 0..zeros.start), (Status::Zeros, zeros.clone()), (Status::Hole, zeros.end..capacity)];
            let expected: Vec<_> = expected.into_iter().filter(|(_, run)| !run.is_empty()).collect();
            assert_eq!(status(&engine, 0..capacity), expected, "{shape:?}, {page}");
            run(&mut engine, Command::Flush).expect("flushed");
            let mut engine = recovered(&shape, images(&engine));
            for lba in (0..capacity).step_by(8) {
                assert_eq!(block(&mut engine, lba).expect("read"), [0; 4096], "{shape:?}, {page}: {lba}");
            }
        }
    }
}

/// Of a trim whose edges are partial stripes, members are sent no more than these.
#[test]
fn whole_stripes_go_without_the_edges() {
    let shape = Shape { chunk: 64 << 10, chunks: 8, ..small(RAID5, 5) };
    let (mut engine, _pool) = with_cache(shape.engine(MemberSet::EMPTY, Order::Fifo), None);
    let (stripe, capacity) = (engine.geometry().stripe_sectors().0, engine.geometry().capacity().0);
    let mut content = noise(1, capacity);
    write(&mut engine, 0, &content).expect("written");
    let (start, end) = (stripe - 8, 4 * stripe + 8);
    let before = engine.counters().total();
    run(&mut engine, zeroes(start, end - start, true)).expect("trimmed");
    let after = engine.counters().total();
    assert_eq!(after.zeroes - before.zeroes, 5, "one operation for each member");
    // Each edge is eight sectors of data and as many of parity.
    assert_eq!(after.written_bytes - before.written_bytes, 2 * 2 * 8 * 512);
    content[usize::try_from(start * 512).expect("small")..usize::try_from(end * 512).expect("small")].fill(0);
    assert_eq!(read(&mut engine, 0, capacity).expect("read"), content);
    let expected = [
        (Status::Data, 0..start),
        (Status::Zeros, start..stripe),
        (Status::Hole, stripe..4 * stripe),
        (Status::Zeros, 4 * stripe..end),
        (Status::Data, end..capacity),
    ];
    assert_eq!(status(&engine, 0..capacity), expected);
}

#[test]
fn zeros_are_fast_where_members_are_known_not_to_be_sent_them() {
    let shape = Shape { chunk: 64 << 10, chunks: 8, ..small(RAID5, 5) };
    let (mut engine, _pool) = with_cache(shape.engine(MemberSet::EMPTY, Order::Fifo), None);
    let (stripe, capacity) = (engine.geometry().stripe_sectors().0, engine.geometry().capacity().0);
    let is_fast = |engine: &TestEngine, range: Range<u64>, may_punch: bool| {
        engine.zeros().is_fast(&(Lba(range.start)..Lba(range.end)), may_punch)
    };
    write(&mut engine, 0, &noise(1, capacity)).expect("written");
    assert!(!is_fast(&engine, 0..capacity, true), "nobody knows whether they can");
    engine.note_can_punch(engine.geometry().all_members().without(MemberIndex(2)));
    assert!(!is_fast(&engine, 0..capacity, true), "one is not known to");
    engine.note_can_punch(engine.geometry().all_members());
    assert!(is_fast(&engine, 0..capacity, true) && !is_fast(&engine, 0..capacity, false), "the other is not known");
    assert!(is_fast(&engine, 8..3 * stripe, true), "most of it are whole stripes");
    assert!(!is_fast(&engine, 8..stripe + 8, true), "there is no whole stripe");
    assert!(!is_fast(&engine, stripe / 2..2 * stripe + stripe / 4 * 3, true), "most of it is edges");
    run(&mut engine, zeroes(0, stripe, false)).expect("zeroed");
    assert!(is_fast(&engine, stripe..3 * stripe, false), "they have done it");
    assert!(is_fast(&engine, 8..16, true), "it is zeros");
    assert!(!is_fast(&engine, 8..16, false), "it is to have space");
}

/// When the last piece of a parity stripe is trimmed, all of it is given back.
#[test]
fn pieces_of_a_stripe_give_it_back_together() {
    let raid5 = small(RAID5, 5);
    for shape in [raid5, logged(raid5), raid5.checked(), small(rm2(3, Placement::Adjacent), 7)] {
        let shape = Shape { chunk: 64 << 10, chunks: 9, log: 1 << 20, ..shape };
        for caching in CACHINGS {
            let context = format!("{shape:?}, {caching:?}");
            let (mut engine, _pool) = with_cache(shape.engine(MemberSet::EMPTY, Order::Fifo), caching);
            let (stripe, capacity) = (engine.geometry().stripe_sectors().0, engine.geometry().capacity().0);
            let mut content = noise(1, capacity);
            write(&mut engine, 0, &content).expect("written");
            run(&mut engine, Command::Flush).expect("flushed");
            let piece = stripe / 8 / 8 * 8;
            let pieces = [1, 3, 5, 0, 2, 6, 4].map(|number| (number * piece, piece)).into_iter();
            let pieces = pieces.chain([(7 * piece, stripe - 7 * piece)]);
            let mut zeroed = 0;
            for (start, len) in pieces {
                let before = engine.counters().total().zeroes;
                run(&mut engine, zeroes(stripe + start, len, true)).expect("trimmed");
                zeroed = engine.counters().total().zeroes - before;
                let range = (stripe + start) * 512..(stripe + start + len) * 512;
                content[usize::try_from(range.start).expect("small")..usize::try_from(range.end).expect("small")]
                    .fill(0);
            }
            assert_eq!(zeroed, u64::from(shape.members), "{context}: the last piece takes one operation for each");
            let expected = [(Status::Data, 0..stripe), (Status::Hole, stripe..2 * stripe)];
            assert_eq!(status(&engine, 0..2 * stripe), expected, "{context}");
            assert_eq!(read(&mut engine, 0, capacity).expect("read"), content, "{context}");
            // What is written there next is computed from what is there.
            write(&mut engine, stripe + 8, &noise(2, 8)).expect("written");
            content[usize::try_from((stripe + 8) * 512).expect("small")..][..4096].copy_from_slice(&noise(2, 8));
            run(&mut engine, Command::Flush).expect("flushed");
            run(&mut engine, Command::Close).expect("closed");
            assert_encoded(&engine, &content, &context);
        }
    }
}

/// Whatever is zeroed and written in whatever pieces, content and parity are right.
#[test]
fn zeros_in_pieces_keep_content_and_parity() {
    for (shape, caching) in shapes().into_iter().flat_map(|shape| CACHINGS.map(|caching| (shape, caching))) {
        let context = format!("{shape:?}, {caching:?}");
        let (mut engine, _pool) = with_cache(shape.engine(MemberSet::EMPTY, Order::Fifo), caching);
        let (stripe, capacity) = (engine.geometry().stripe_sectors().0, engine.geometry().capacity().0);
        let (mut random, mut content) = (Random(11), noise(3, capacity));
        write(&mut engine, 0, &content).expect("written");
        for turn in 0..400 {
            // Few stripes, so that pieces come together.
            let lba = random.below(2 * stripe / 8) * 8;
            let len = (8 * (1 + random.below(stripe / 8))).min(capacity - lba);
            let place = usize::try_from(lba * 512).expect("small");
            let place = place..place + usize::try_from(len * 512).expect("small");
            if random.below(5) == 0 {
                let len = len.min(16);
                let noise = noise(turn + 100, len);
                write(&mut engine, lba, &noise).expect("written");
                content[place.start..][..noise.len()].copy_from_slice(&noise);
            } else {
                run(&mut engine, zeroes(lba, len, random.below(4) > 0)).expect("zeroed");
                content[place].fill(0);
            }
            if random.below(8) == 0 {
                assert_true(&mut engine, &context);
                assert_eq!(read(&mut engine, 0, capacity).expect("read"), content, "{context}, turn {turn}");
            }
        }
        run(&mut engine, Command::Flush).expect("flushed");
        run(&mut engine, Command::Close).expect("closed");
        assert_encoded(&engine, &content, &context);
    }
}
