//! What the cache saves, counted, and what it never loses.

use uraid_io::buf::{Buf, Pool};
use uraid_io::cache::{Cause, RANGES_MAX};
use uraid_io::disk::{Disk as _, Fault, OpName, Order};
use uraid_io::engine::{CacheMode, Command, EngineError, Reply};
use uraid_layout::{Lba, Level, MemberIndex, MemberSet, Placement, Rotation, Sectors};

use crate::counts::moved;
use crate::support::{
    RAID5, Random, SECTOR, Shape, TestEngine, assert_encoded, buf, durable_content, noise, read, rm2, run, run_all,
    small, with_cache, write,
};

/// A healthy array with a write-back cache.
fn writing_back(shape: Shape, pages: u64) -> (TestEngine, Pool) {
    with_cache(shape.engine(MemberSet::EMPTY, Order::Fifo), Some((CacheMode::WriteBack, pages)))
}

fn flush(engine: &mut TestEngine) {
    run(engine, Command::Flush).expect("flushed");
}

/// From now on the members take no writes.
fn hold_writes(engine: &mut TestEngine) {
    for member in engine.geometry().all_members().iter() {
        engine.disk_mut().hold(member, OpName::Write);
    }
}

fn let_writes_go(engine: &mut TestEngine) {
    for member in engine.geometry().all_members().iter() {
        engine.disk_mut().let_go(member, OpName::Write);
    }
}

/// Stripes become whole in memory: no old content is needed, and nothing is written twice.
#[test]
fn a_sequential_stream_writes_whole_stripes() {
    let raid5 = |members| Shape { chunk: 16 << 10, chunks: 40, ..small(RAID5, members) };
    let rm2 = Shape { chunk: 16 << 10, chunks: 42, ..small(rm2(3, Placement::Adjacent), 7) };
    // Data and parity units of a stripe: 2 and 1, 4 and 1, 14 and 7.
    for (shape, data, all) in [(raid5(3), 2, 3), (raid5(5), 4, 5), (rm2, 14, 21)] {
        for batch in [1, 7] {
            let (mut engine, _pool) = writing_back(shape, 256);
            let capacity = engine.geometry().capacity().0;
            let content = noise(1, capacity);
            let cost = moved(&mut engine, |engine| {
                let writes: Vec<usize> = (0..content.len()).step_by(4096).collect();
                for batch in writes.chunks(batch) {
                    let command = |&at: &usize| {
                        let lba = Lba((at / SECTOR) as u64);
                        Command::Write { lba, buf: buf(&content[at..][..4096]), fua: false }
                    };
                    for result in run_all(engine, batch.iter().map(command).collect()) {
                        result.expect("written");
                    }
                }
                flush(engine);
            });
            let (reads, _, _, written, _) = cost;
            assert_eq!(reads, 0, "{shape:?}");
            assert!(
                written * data * 100 <= capacity * 512 * all * 101,
                "{shape:?}: {written} bytes of {capacity} sectors"
            );
            assert_encoded(&engine, &content, "a stream");
        }
    }
}

/// Maximal runs of pages, over all units.
fn runs(pages: &[[bool; 16]]) -> (u64, u64) {
    let starts =
        |unit: &[bool; 16]| (0..16).filter(|&page| unit[page] && (page == 0 || !unit[page - 1])).count() as u64;
    let count = |unit: &[bool; 16]| unit.iter().filter(|&&is_written| is_written).count() as u64;
    (pages.iter().map(starts).sum(), pages.iter().map(count).sum())
}

/// However often and in whatever order a stripe is written, it is planned once: what is read and written follows from
/// which pages are dirty at last.
#[test]
fn many_small_writes_to_a_stripe_cost_one_plan() {
    for seed in 0..20 {
        let shape = Shape { chunk: 64 << 10, chunks: 3, ..small(RAID5, 5) };
        let (mut engine, _pool) = writing_back(shape, 1024);
        let mut random = Random(seed);
        let stripe_sectors = engine.geometry().stripe_sectors().0;
        let mut content = vec![0; usize::try_from(engine.geometry().capacity().0).expect("small") * SECTOR];
        let mut written = [[false; 16]; 4];
        // From a few writes, where old content is modified, to many, where the rest is read.
        let writes = if seed % 2 == 0 { 64 } else { 6 };
        let cost = moved(&mut engine, |engine| {
            for turn in 0..writes {
                let (unit, page) = (random.below(4), random.below(16));
                let lba = stripe_sectors + unit * 128 + page * 8;
                let bytes = noise(turn, 8);
                write(engine, lba, &bytes).expect("written");
                content[usize::try_from(lba).expect("small") * SECTOR..][..4096].copy_from_slice(&bytes);
                written[usize::try_from(unit).expect("small")][usize::try_from(page).expect("small")] = true;
            }
            flush(engine);
        });
        let mut parity = [false; 16];
        let mut rest = [[false; 16]; 4];
        for page in 0..16 {
            parity[page] = written.iter().any(|unit| unit[page]);
            (0..4).for_each(|unit| rest[unit][page] = parity[page] && !written[unit][page]);
        }
        let and_parity = [&written[..], &[parity]].concat();
        let is_full = |page: usize| written.iter().all(|unit| unit[page]);
        // Full columns need nothing; the old content of the others is read by the method that takes fewer operations.
        let mut modified = and_parity.clone();
        (0..16).filter(|&page| is_full(page)).for_each(|page| modified.iter_mut().for_each(|unit| unit[page] = false));
        let (reads, pages_read) = runs(&rest).min(runs(&modified));
        let (writes, pages_written) = runs(&and_parity);
        assert_eq!(cost, (reads, pages_read * 4096, writes, pages_written * 4096, 0), "seed {seed}: {written:?}");
        assert_encoded(&engine, &content, "many small writes");
    }
}

/// What was written stays known: content and parity of it are not read again.
#[test]
fn a_second_small_write_reads_nothing() {
    for (shape, written) in [(small(RAID5, 5), 2), (small(rm2(3, Placement::Adjacent), 7), 3)] {
        for mode in [CacheMode::WriteBack, CacheMode::WriteThrough] {
            let (mut engine, pool) = with_cache(shape.engine(MemberSet::EMPTY, Order::Fifo), Some((mode, 1024)));
            let mut again = |lba: u64, sectors: u64, turn| {
                moved(&mut engine, |engine| {
                    let mut own = pool.try_alloc(Sectors(sectors).bytes()).expect("a page is left");
                    own.as_mut().copy_from_slice(&noise(turn, sectors));
                    run(engine, Command::Write { lba: Lba(lba), buf: own, fua: false }).expect("written");
                    flush(engine);
                })
            };
            let first = again(8, 8, 1);
            assert_eq!(first, (written, written * 4096, written, written * 4096, 0), "{shape:?}, {mode:?}");
            for (lba, sectors, turn) in [(8, 8, 2), (8, 8, 3), (9, 3, 4), (10, 1, 5)] {
                let bytes = written * sectors * 512;
                assert_eq!(again(lba, sectors, turn), (0, 0, written, bytes, 0), "{shape:?}, {mode:?}, turn {turn}");
            }
        }
    }
}

#[test]
fn another_unit_reads_only_its_own_old_content() {
    let (mut engine, _pool) = writing_back(small(RAID5, 5), 1024);
    let mut cost = |lba| {
        moved(&mut engine, |engine| {
            write(engine, lba, &noise(lba, 8)).expect("written");
            flush(engine);
        })
    };
    assert_eq!(cost(0), (2, 8192, 2, 8192, 0), "content and parity");
    assert_eq!(cost(8), (1, 4096, 2, 8192, 0), "the parity is known");
    assert_eq!(cost(24), (1, 4096, 2, 8192, 0), "the parity is known");
    assert_eq!(cost(16), (0, 0, 2, 8192, 0), "the others are known, too");
}

/// Adjacent stripes are one operation on each member.
#[test]
fn adjacent_stripes_are_written_together() {
    for (shape, members) in [(small(Level::Raid0, 4), 4), (small(RAID5, 5), 5), (small(RAID5, 3), 3)] {
        let (mut engine, _pool) = writing_back(shape, 1024);
        let stripe = engine.geometry().stripe_sectors().0;
        let cost = moved(&mut engine, |engine| {
            let page = |lba| Command::Write { lba: Lba(lba), buf: buf(&noise(lba, 8)), fua: false };
            let pages = (2 * stripe..7 * stripe).step_by(8).map(page).collect();
            run_all(engine, pages).into_iter().for_each(|result| drop(result.expect("written")));
        });
        assert_eq!(cost, (0, 0, members, members * 5 * 4096, 0), "{shape:?}: whole stripes need no flush");
    }
    // One unit of each of five stripes, in any order.
    let (mut engine, _pool) = writing_back(small(Level::Raid0, 4), 1024);
    let cost = moved(&mut engine, |engine| {
        for stripe in [4, 2, 6, 3, 5] {
            write(engine, stripe * 32 + 8, &noise(stripe, 8)).expect("written");
        }
        flush(engine);
    });
    assert_eq!(cost, (0, 0, 1, 5 * 4096, 0), "a member's adjacent chunks");
    // All but a sector of each stripe.
    let (mut engine, _pool) =
        writing_back(Shape { level: Level::Raid5 { rotation: Rotation::LeftAsymmetric }, ..small(RAID5, 3) }, 1024);
    let cost = moved(&mut engine, |engine| {
        for stripe in [1, 0] {
            write(engine, stripe * 16, &noise(stripe, 15)).expect("written");
        }
        flush(engine);
    });
    // Stripe 0 has its units on members 0 and 1 and its parity on 2; stripe 1 has them on 0 and 2 and on 1, where the
    // sector is missing between the two. The parity of that column is computed from the other unit and what is read.
    assert_eq!(cost, (2, 2 * 512, 4, (16 + 7 + 8 + 15) * 512, 0), "all but a sector");
}

/// The partial last stripe of a RAID 10 is whole when all that there is of it is written.
#[test]
fn a_partial_last_stripe_is_whole_sooner() {
    let shape = Shape { chunks: 7, ..small(Level::Raid10 { copies: 2 }, 5) };
    let (mut engine, _pool) = writing_back(shape, 1024);
    let (stripe, capacity) = (engine.geometry().stripe_sectors().0, engine.geometry().capacity().0);
    let first = capacity / stripe * stripe;
    assert!(first < capacity && capacity - first >= 16, "the last stripe is partial");
    for lba in (first..capacity).step_by(8) {
        assert_eq!(engine.counters().total().writes, 0, "sector {lba}: it is not whole yet");
        write(&mut engine, lba, &noise(lba, 8)).expect("written");
    }
    assert!(!engine.is_dirty(), "whole stripes need no flush");
}

#[test]
fn a_write_is_acknowledged_and_read_back_without_any_disk_operation() {
    for shape in [small(RAID5, 5), small(rm2(3, Placement::Adjacent), 7), small(Level::Raid0, 4)] {
        let (mut engine, _pool) = writing_back(shape, 1024);
        let content = noise(1, 21);
        write(&mut engine, 5, &content).expect("in memory");
        assert!(read(&mut engine, 5, 21).expect("in memory") == content, "{shape:?}");
        assert!(read(&mut engine, 9, 6).expect("in memory") == content[4 * SECTOR..10 * SECTOR], "{shape:?}");
        assert_eq!(engine.disk().ops, [], "{shape:?}");
        assert!(engine.is_dirty());
        flush(&mut engine);
        assert!(!engine.is_dirty());
        let before = engine.disk().ops.len();
        assert!(read(&mut engine, 5, 21).expect("in memory") == content, "{shape:?}");
        assert_eq!(engine.disk().ops.len(), before, "{shape:?}: what was written out is still known");
        let cost = moved(&mut engine, |engine| drop(read(engine, 4, 4).expect("read")));
        assert_eq!(cost, (1, 512, 0, 0, 0), "{shape:?}: only what is not in memory is read");
    }
}

/// A full cache writes through. Whoever reads does not wait for who writes.
#[test]
fn reads_do_not_wait_for_writes() {
    let shape = Shape { chunks: 600, ..small(RAID5, 5) };
    let (mut engine, pool) = writing_back(shape, 64);
    run(&mut engine, Command::Write { lba: Lba(0), buf: buf(&noise(0, 8)), fua: true }).expect("marked dirty");
    hold_writes(&mut engine);
    let mut replies = Vec::new();
    for turn in 0..1000 {
        let write = Command::Write { lba: Lba(turn * 16), buf: buf(&noise(turn, 8)), fua: false };
        engine.submit(turn, write);
        engine.turn(&mut replies).expect("memory does not break");
    }
    let acknowledged = replies.len();
    assert!((8..=56).contains(&acknowledged), "{acknowledged} writes fit the cache");
    assert!(
        pool.in_use().0 <= 65 * 4096,
        "a page more than the limit may be taken in: {} bytes are in use",
        pool.in_use()
    );
    for (token, lba) in [(2000, 16), (2001, 8), (2002, 17_000)] {
        engine.submit(token, Command::Read { lba: Lba(lba), buf: Buf::zeroed(Sectors(8).bytes()) });
        replies.clear();
        engine.turn(&mut replies).expect("memory does not break");
        let [Reply { token: got, result: Ok(Some(bytes)) }] = &replies[..] else { panic!("a read waits: {replies:?}") };
        let expected = if lba == 16 { noise(1, 8) } else { vec![0; 4096] };
        assert!(*got == token && bytes.as_ref() == expected, "sector {lba}");
    }
    let_writes_go(&mut engine);
    replies.clear();
    while replies.len() < 1000 - acknowledged {
        engine.turn(&mut replies).expect("memory does not break");
        assert!(
            engine.disk().in_flight() > 0 || engine.wants_turn() || replies.len() >= 1000 - acknowledged,
            "writes wait for nothing"
        );
    }
    flush(&mut engine);
    assert!(read(&mut engine, 999 * 16, 8).expect("read") == noise(999, 8));
}

/// What failed to be written out and is then taken up by a write-through is durable before a flush says so.
#[test]
fn a_flush_waits_for_what_replaces_content_that_failed() {
    let (mut engine, _pool) = writing_back(small(Level::Raid0, 4), 1024);
    write(&mut engine, 40, &noise(9, 1)).expect("written");
    flush(&mut engine);
    write(&mut engine, 0, &noise(1, 8)).expect("acknowledged");
    let fault = Fault { member: MemberIndex(0), name: OpName::Write, after: 0, count: 2, errno: rustix::io::Errno::IO };
    engine.disk_mut().inner.fail(fault);
    let result = run(&mut engine, Command::Flush);
    assert!(matches!(result, Err(EngineError::NotDestaged { .. })), "{result:?}");
    assert!(read(&mut engine, 0, 8).expect("still there") == noise(1, 8));
    hold_writes(&mut engine);
    engine.submit(1, Command::Write { lba: Lba(0), buf: buf(&noise(2, 8)), fua: true });
    engine.submit(2, Command::Flush);
    let mut replies = Vec::new();
    engine.turn(&mut replies).expect("memory does not break");
    assert!(replies.is_empty(), "acknowledged content is neither on the members nor about to be: {replies:?}");
    let_writes_go(&mut engine);
    engine.turn(&mut replies).expect("memory does not break");
    assert_eq!(replies.len(), 2);
    assert!(replies.into_iter().all(|reply| reply.result.is_ok()));
    assert!(durable_content(&engine)[..4096] == noise(2, 8));
}

/// However much can't be written out, its first ranges are told, and how much it is.
#[test]
fn of_what_cannot_be_written_out_the_first_ranges_are_told() {
    let (mut engine, _pool) = writing_back(small(Level::Raid0, 4), 1024);
    // The members are marked dirty with it.
    write(&mut engine, 40, &noise(9, 1)).expect("acknowledged");
    flush(&mut engine);
    let fault =
        Fault { member: MemberIndex(0), name: OpName::Write, after: 0, count: u64::MAX, errno: rustix::io::Errno::IO };
    engine.disk_mut().inner.fail(fault);
    // Of each stripe the first unit is on member 0.
    let lbas: Vec<u64> = (0..8).flat_map(|stripe| [0, 2, 4, 6].map(|at| stripe * 32 + at)).collect();
    for &lba in &lbas {
        write(&mut engine, lba, &noise(lba, 1)).expect("acknowledged");
    }
    let error = run(&mut engine, Command::Flush).expect_err("nothing of it can be written").to_string();
    let told = engine.unwritten().expect("a flush has failed");
    let first: Vec<_> = lbas[..RANGES_MAX].iter().map(|&lba| Lba(lba)..Lba(lba + 1)).collect();
    assert_eq!((told.len, told.ranges().collect()), (Sectors(32), first));
    assert_eq!(told.cause, Cause { unreadable: MemberSet::EMPTY, unwritable: MemberSet::EMPTY.with(MemberIndex(0)) });
    for part in ["32 sectors", "sectors 0..+1, 2..+1, ", "102..+1 and others: member 0 can't be written"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    engine.disk_mut().inner.clear_faults();
    flush(&mut engine);
    assert_eq!(engine.unwritten(), None);
}

/// Content that could not be written stays, is told of by each flush, and is written as soon as that works.
#[test]
fn content_that_cannot_be_written_stays_until_it_can() {
    let (mut engine, _pool) = writing_back(small(Level::Raid0, 4), 1024);
    for lba in [0, 32, 64, 96] {
        write(&mut engine, lba, &noise(lba, 8)).expect("acknowledged");
    }
    let fault =
        Fault { member: MemberIndex(0), name: OpName::Write, after: 2, count: u64::MAX, errno: rustix::io::Errno::IO };
    engine.disk_mut().inner.fail(fault);
    for _ in 0..3 {
        let result = run(&mut engine, Command::Flush);
        assert!(matches!(result, Err(EngineError::NotDestaged { .. })), "{result:?}");
        for lba in [0, 32, 64, 96] {
            assert!(read(&mut engine, lba, 8).expect("still there") == noise(lba, 8), "sector {lba}");
        }
    }
    engine.disk_mut().inner.clear_faults();
    flush(&mut engine);
    let durable = durable_content(&engine);
    for lba in [0_usize, 32, 64, 96] {
        assert!(durable[lba * SECTOR..][..4096] == noise(lba as u64, 8), "sector {lba}");
    }
    assert!(!engine.is_dirty());
}

/// What a degraded read finds in memory is copied and counted once, although its plan takes a lock, and so is what it
/// finds after members failed it.
#[test]
fn a_degraded_read_looks_into_the_cache_once() {
    for missing in [MemberSet::EMPTY, MemberSet::EMPTY.with(MemberIndex(1))] {
        let engine = small(RAID5, 5).engine(missing, Order::Fifo);
        let (mut engine, _pool) = with_cache(engine, Some((CacheMode::WriteBack, 256)));
        let (capacity, content) = (engine.geometry().capacity().0, noise(1, 8));
        write(&mut engine, 8, &content).expect("written");
        let back = read(&mut engine, 0, capacity).expect("read");
        assert!(back[8 * SECTOR..][..8 * SECTOR] == content, "without {missing}");
        let (hit, missed) = engine.counters().cache_reads();
        let bytes = |sectors: u64| Sectors(sectors).bytes();
        assert_eq!((hit, missed), (bytes(8), bytes(capacity - 8)), "without {missing}");
    }
}
