//! The journal of pages: what a flush costs with it, and that what was flushed is there, whoever is lost and whenever.

use uraid_io::array::recover;
use uraid_io::buf::Pool;
use uraid_io::disk::{MemDisk, OpName, Order};
use uraid_io::engine::{CacheMode, Command, Engine, EngineError, MemberCounters};
use uraid_io::format::superblock::{Consistency, Integrity};
use uraid_io::member::Access;
use uraid_layout::{Bytes, Lba, MemberSet, Placement, Sectors};

use crate::rebuild::{assert_whole, fail, new_member};
use crate::recovery::{assembled, superblock, try_assembled};
use crate::support::{
    Members, RAID5, RAID6, Random, Shape, TestEngine, assert_encoded, block, buf, cost, images, noise, rm2, run,
    run_all, small, tolerated, with_cache, write,
};

/// Pages that are in memory at most.
const PAGES: u64 = 512;

/// Arrays with a journal of 128 KiB on each member.
fn journaled() -> [Shape; 4] {
    let shape = |level, members| Shape { consistency: Consistency::Log, log: 256 << 10, ..small(level, members) };
    let raid5 = Shape { chunk: 16 << 10, ..shape(RAID5, 5) };
    let checked = Shape { integrity: Integrity::Crc32, ..shape(RAID5, 4) };
    [raid5, shape(rm2(3, Placement::Adjacent), 7), shape(RAID6, 5), checked]
}

pub(crate) fn engine_of(shape: Shape) -> TestEngine {
    with_cache(shape.engine(MemberSet::EMPTY, Order::Fifo).with_rebuild(), Some((CacheMode::WriteBack, PAGES))).0
}

fn flush(engine: &mut TestEngine) {
    drop(run(engine, Command::Flush).expect("flushed"));
}

pub(crate) fn durable(lba: u64, bytes: &[u8]) -> Command {
    Command::Write { lba: Lba(lba), buf: buf(bytes), fua: true }
}

/// Puts a page into an array's content, as a write does.
pub(crate) fn put(content: &mut [u8], lba: u64, page: &[u8]) {
    let at = usize::try_from(lba * 512).expect("a small array");
    content[at..at + page.len()].copy_from_slice(page);
}

pub(crate) fn empty(shape: &Shape) -> Vec<u8> {
    vec![0; usize::try_from(shape.geometry().capacity().bytes().0).expect("a small array")]
}

/// The first page of every third unit.
fn scattered(shape: &Shape) -> Vec<u64> {
    (0..shape.geometry().capacity().0).step_by(usize::try_from(3 * shape.chunk / 512).expect("small")).collect()
}

/// Opens what a stop has left, without some members, and brings it into agreement.
#[track_caller]
pub(crate) fn reopened(left: &Members, without: MemberSet) -> Engine<MemDisk, u64> {
    let mut left = left.clone();
    without.iter().for_each(|slot| left[slot.index()] = None);
    let assembled = assembled(MemDisk::new(left.clone(), Order::Fifo), &left);
    assert!(assembled.needs_recovery(), "it was not stopped cleanly");
    recover(assembled, |_| ()).expect("recovered").into_engine().expect("an engine")
}

/// The array has this content, block by block.
#[track_caller]
pub(crate) fn assert_has(engine: &mut Engine<MemDisk, u64>, content: &[u8], context: &str) {
    for (at, expected) in (0..).step_by(8).zip(content.chunks(4096)) {
        let found = block(engine, at).unwrap_or_else(|error| panic!("{context}: sector {at}: {error}"));
        assert!(found == expected, "{context}: sector {at} is wrong");
    }
}

/// What is left has this content, without each set of members that may be lost.
#[track_caller]
fn assert_left(shape: &Shape, left: &Members, content: &[u8], context: &str) {
    for without in tolerated(&shape.geometry()) {
        assert_has(&mut reopened(left, without), content, &format!("{context}, without {without:?}"));
    }
}

#[test]
fn a_flush_writes_data_alone_to_one_member_more_than_may_be_lost() {
    for shape in journaled() {
        let copies = shape.geometry().tolerance() as u64 + 1;
        let mut engine = engine_of(shape);
        write(&mut engine, 0, &noise(1, 8)).expect("written");
        flush(&mut engine);
        for pages in [1, 3] {
            let cost = cost(&mut engine, |engine| {
                for lba in scattered(&shape).into_iter().skip(1).take(pages) {
                    write(engine, lba, &noise(lba, 8)).expect("written");
                }
                flush(engine);
            });
            // A header block and the pages.
            let bytes = copies * (pages as u64 + 1) * 4096;
            let expected = MemberCounters { log_records: copies, log_bytes: bytes, ..MemberCounters::default() };
            assert_eq!(cost, expected, "{shape:?}, {pages} pages");
        }
        let nothing = cost(&mut engine, flush);
        assert_eq!(nothing, MemberCounters::default(), "{shape:?}: there is nothing more to flush");
    }
}

#[test]
fn a_small_durable_write_costs_the_same() {
    for shape in journaled() {
        let copies = shape.geometry().tolerance() as u64 + 1;
        let mut engine = engine_of(shape);
        drop(run(&mut engine, durable(0, &noise(1, 8))).expect("written"));
        let cost = cost(&mut engine, |engine| drop(run(engine, durable(64, &noise(2, 8))).expect("written")));
        let log_bytes = copies * 2 * 4096;
        let expected = MemberCounters { log_records: copies, log_bytes, ..MemberCounters::default() };
        assert_eq!(cost, expected, "{shape:?}");
    }
}

#[test]
fn a_stripe_that_is_whole_is_written_out_instead() {
    let [shape, ..] = journaled();
    let mut engine = engine_of(shape);
    let content = noise(1, shape.geometry().stripe_sectors().0);
    for (page, bytes) in (0..).zip(content.chunks(4096)) {
        write(&mut engine, page * 8, bytes).expect("written");
    }
    flush(&mut engine);
    let mut all = empty(&shape);
    put(&mut all, 0, &content);
    assert_encoded(&engine, &all, "it is in place");
}

#[test]
fn what_was_flushed_is_there_whoever_is_lost_with_the_power() {
    for shape in journaled() {
        let mut engine = engine_of(shape);
        let mut content = empty(&shape);
        let mut random = Random(4);
        for round in 0..12 {
            for _ in 0..5 {
                let lba = random.below(shape.geometry().capacity().0 / 8) * 8;
                let page = noise(1000 * round + lba, 8);
                write(&mut engine, lba, &page).expect("written");
                put(&mut content, lba, &page);
            }
            flush(&mut engine);
            let left = engine.disk().cut(&mut random);
            assert_left(&shape, &left, &content, &format!("{shape:?}, round {round}"));
        }
    }
}

/// What another flush is putting into the journal is not durable yet.
#[test]
fn a_flush_waits_for_what_another_has_put_on_its_way() {
    let [shape, ..] = journaled();
    let mut engine = engine_of(shape);
    write(&mut engine, 0, &noise(1, 8)).expect("written");
    flush(&mut engine);
    write(&mut engine, 64, &noise(2, 8)).expect("written");
    let all = shape.geometry().all_members();
    all.iter().for_each(|member| engine.disk_mut().hold(member, OpName::Write));
    let mut replies = Vec::new();
    for token in [7, 8] {
        engine.submit(token, Command::Flush);
        engine.turn(&mut replies).expect("memory does not break");
        assert_eq!((engine.disk().held(), replies.len()), (2, 0), "flush {token}: {replies:?}");
    }
    all.iter().for_each(|member| engine.disk_mut().let_go(member, OpName::Write));
    while replies.len() < 2 {
        engine.turn(&mut replies).expect("memory does not break");
    }
    assert!(replies.iter().all(|reply| reply.result.is_ok()), "{replies:?}");
}

/// What was overwritten, and written out, does not come back.
#[test]
fn what_is_newer_counts_in_place_or_not() {
    for shape in journaled() {
        let mut engine = engine_of(shape);
        let mut content = empty(&shape);
        let (first, large) = (noise(1, 8), noise(2, shape.geometry().stripe_sectors().0));
        write(&mut engine, 8, &first).expect("written");
        flush(&mut engine);
        // A whole stripe, zeros and a page over what the journal has, past the cache where that is so.
        write(&mut engine, 0, &large).expect("written");
        flush(&mut engine);
        put(&mut content, 0, &large);
        assert_left(&shape, &engine.disk().cut(&mut Random(1)), &content, "a whole stripe");
        write(&mut engine, 8, &first).expect("written");
        flush(&mut engine);
        put(&mut content, 8, &first);
        let zeroes = Command::WriteZeroes { lba: Lba(8), len: Sectors(8), may_punch: false, fua: true };
        drop(run(&mut engine, zeroes).expect("written"));
        put(&mut content, 8, &[0; 4096]);
        assert_left(&shape, &engine.disk().cut(&mut Random(2)), &content, "zeros");
        drop(run(&mut engine, durable(8, &first)).expect("written"));
        put(&mut content, 8, &first);
        assert_left(&shape, &engine.disk().cut(&mut Random(3)), &content, "a page");
        drop(run(&mut engine, Command::Close).expect("closed"));
        assert_encoded(&engine, &content, "closed");
    }
}

/// Flushes go on when a ring is full: then what is dirty is written out.
#[test]
fn a_full_ring_makes_room_by_writing_out() {
    for shape in journaled() {
        let mut engine = engine_of(shape);
        let mut content = empty(&shape);
        // Many times what it has room for.
        for round in 0..100 {
            for lba in scattered(&shape).into_iter().take(5) {
                let page = noise(100 * round + lba, 8);
                write(&mut engine, lba, &page).expect("written");
                put(&mut content, lba, &page);
            }
            flush(&mut engine);
        }
        assert_left(&shape, &engine.disk().cut(&mut Random(9)), &content, &format!("{shape:?}"));
    }
}

/// When all is written out, a ring that was full enough for that is empty again, whoever gets the next records.
#[test]
fn what_was_written_out_makes_room_in_all_rings() {
    for shape in journaled() {
        let mut engine = engine_of(shape);
        let put = |engine: &mut TestEngine, number: u64| {
            let places = scattered(&shape);
            let lba = places[usize::try_from(number).expect("small") % places.len()];
            write(engine, lba, &noise(number + lba, 8)).expect("written");
            flush(engine);
        };
        for number in 0..60 {
            put(&mut engine, number);
        }
        for _ in 0..100 {
            engine.tick();
            engine.turn(&mut Vec::new()).expect("memory does not break");
        }
        // The first has the full ones told.
        put(&mut engine, 60);
        let cost = cost(&mut engine, |engine| (61..66).for_each(|number| put(engine, number)));
        assert_eq!((cost.writes, cost.reads), (0, 0), "{shape:?}: nothing is written out at once: {cost:?}");
    }
}

/// Nothing relies on a member that is lost, or on one that came in its place.
#[test]
fn what_was_flushed_survives_members_that_are_exchanged() {
    for shape in journaled() {
        for slot in shape.geometry().all_members().iter() {
            let context = format!("{shape:?}, {slot}");
            let mut engine = engine_of(shape);
            let mut content = empty(&shape);
            for lba in scattered(&shape).into_iter().take(6) {
                let page = noise(lba + 1, 8);
                write(&mut engine, lba, &page).expect("written");
                put(&mut content, lba, &page);
                flush(&mut engine);
            }
            drop(run(&mut engine, fail(slot)).expect("given up"));
            let join = new_member(&mut engine, &shape, slot, 7);
            drop(run(&mut engine, join).expect("joined"));
            flush(&mut engine);
            assert_whole(&engine, &context);
            // More than once as many as may be lost, one after the other.
            assert_left(&shape, &engine.disk().cut(&mut Random(5)), &content, &context);
        }
    }
}

/// Reading only shows what the journal has, and writes nothing.
#[test]
fn what_was_flushed_is_there_for_reading_only() {
    for shape in journaled() {
        let mut engine = engine_of(shape);
        let mut content = empty(&shape);
        write(&mut engine, 16, &noise(1, 8)).expect("written");
        put(&mut content, 16, &noise(1, 8));
        flush(&mut engine);
        let left = engine.disk().cut(&mut Random(7));
        let disk = MemDisk::new(left.clone(), Order::Fifo);
        let assembled = try_assembled(disk, &left, Access::ReadOnly).expect("assembled");
        let mut engine: Engine<MemDisk, u64> = assembled.into_engine().expect("an engine");
        assert_has(&mut engine, &content, &format!("{shape:?}"));
        let all = shape.geometry().all_members();
        let now: Members = all.iter().map(|slot| engine.disk().member(slot).cloned()).collect();
        assert!(now == left, "{shape:?}: nothing is written");
    }
}

/// The newest record counts as long as one member has it, whether it was cut off or a copy has rotted, and is on all
/// who are to have it before anything comes after it.
#[test]
fn what_one_member_has_of_the_newest_record_counts() {
    let [shape, ..] = journaled();
    let mut engine = engine_of(shape);
    write(&mut engine, 0, &noise(1, 8)).expect("written");
    flush(&mut engine);
    let stripe = shape.geometry().stripe_sectors().0;
    let last = 4 * stripe;
    write(&mut engine, last, &noise(2, 8)).expect("written");
    let before = images(&engine);
    flush(&mut engine);
    let after = engine.disk().cut(&mut Random(8));
    let changed = |slot: usize| changes(before[slot].as_ref().expect("there"), after[slot].as_ref().expect("there"));
    let got: Vec<usize> = (0..before.len()).filter(|&slot| !changed(slot).is_empty()).collect();
    assert_eq!(got.len(), 2, "two members have a record");
    for (&damaged, is_rot) in got.iter().flat_map(|damaged| [(damaged, false), (damaged, true)]) {
        let mut left = after.clone();
        let bytes = left[damaged].as_mut().expect("there");
        if is_rot {
            // In its content.
            bytes[changed(damaged)[4096 + 77]] ^= 4;
        } else {
            // It never got there.
            let range = journal(bytes);
            bytes[range.clone()].copy_from_slice(&before[damaged].as_ref().expect("there")[range]);
        }
        for without in tolerated(&shape.geometry()) {
            let context = format!("without the copy of {damaged}, rotten: {is_rot}, and {without:?}");
            let has_copy = got.iter().any(|&slot| slot != damaged && !without.iter().any(|out| out.index() == slot));
            goes_on_with(&shape, &left, without, (last, has_copy), &context);
        }
    }
}

/// What is left, opened without some members, has the first page of content, and that at `last` or zeros; and what is
/// written then, whoever of those is lost that may be.
fn goes_on_with(shape: &Shape, left: &Members, without: MemberSet, (last, has_last): (u64, bool), context: &str) {
    let stripe = shape.geometry().stripe_sectors().0;
    let mut content = empty(shape);
    put(&mut content, 0, &noise(1, 8));
    if has_last {
        put(&mut content, last, &noise(2, 8));
    }
    let open = || {
        let mut engine = reopened(left, without);
        engine.install_cache(CacheMode::WriteBack, &Pool::new(Bytes(16 << 20)), Bytes(4 << 20));
        engine
    };
    let mut engine = open();
    assert_has(&mut engine, &content, context);
    let now: Members = shape.geometry().all_members().iter().map(|one| engine.disk().member(one).cloned()).collect();
    let also = if without.is_empty() { tolerated(&shape.geometry()) } else { vec![without] };
    for &out in &also {
        assert_has(&mut reopened(&now, out), &content, &format!("{context}, at once, then without {out:?}"));
    }
    for number in 1..4 {
        let (lba, page) = (number * stripe, noise(3 + number, 8));
        put(&mut content, lba, &page);
        let now = with_durable(&mut engine, lba, &page);
        for &out in &also {
            assert_has(&mut reopened(&now, out), &content, &format!("{context}, then without {out:?}"));
        }
    }
    // What is newer is in place: what the record has does not come back for that.
    let mut content = empty(shape);
    put(&mut content, 0, &noise(1, 8));
    let bytes = noise(9, stripe);
    put(&mut content, last, &bytes);
    let now = with_durable(&mut open(), last, &bytes);
    for &out in &also {
        assert_has(&mut reopened(&now, out), &content, &format!("{context}, overwritten, then without {out:?}"));
    }
}

/// Where a member's journal is.
pub(crate) fn journal(bytes: &[u8]) -> std::ops::Range<usize> {
    let area = superblock(bytes).journal_area().expect("there is a journal");
    usize::try_from(area.offset.0).expect("small")..usize::try_from(area.offset.0 + area.size.0).expect("small")
}

/// The bytes of blocks of a member's journal that have changed.
fn changes(before: &[u8], after: &[u8]) -> Vec<usize> {
    let blocks = journal(after).step_by(4096).filter(|&at| before[at..at + 4096] != after[at..at + 4096]);
    blocks.flat_map(|at| at..at + 4096).collect()
}

/// What members hold after a durable write.
fn with_durable(engine: &mut Engine<MemDisk, u64>, lba: u64, bytes: &[u8]) -> Members {
    with_written(engine, durable(lba, bytes))
}

/// What members hold as soon as a write is replied to.
pub(crate) fn with_written(engine: &mut Engine<MemDisk, u64>, command: Command) -> Members {
    let mut replies = Vec::new();
    engine.submit(1, command);
    while replies.is_empty() {
        engine.turn(&mut replies).expect("memory does not break");
    }
    assert!(replies.pop().is_some_and(|reply| reply.result.is_ok()), "written");
    engine.geometry().all_members().iter().map(|slot| engine.disk().member(slot).cloned()).collect()
}

/// An array with checksums of which two blocks of the first row are wrong, and the address of the second of them: it
/// can't be written out.
fn with_two_wrong_blocks() -> (TestEngine, u64) {
    let [.., shape] = journaled();
    let mut engine = engine_of(shape);
    write(&mut engine, 0, &noise(1, shape.geometry().stripe_sectors().0)).expect("written");
    run(&mut engine, Command::Close).expect("closed");
    let unit = shape.chunk / 512;
    for lba in [0, unit] {
        let at = shape.geometry().locate(Lba(lba));
        let sector = usize::try_from(at.sector.0 * 512).expect("small");
        engine.disk_mut().data_mut(at.member)[sector] ^= 1;
    }
    (engine, unit)
}

/// Without write-back, from some time on or from a start on, whatever is replied to is there though the program is
/// killed, also what is written of pages that the journal has.
#[test]
fn what_is_written_through_over_the_journal_is_not_in_memory_alone() {
    let [shape, ..] = journaled();
    for (is_start, has_cache) in [(false, true), (true, true), (true, false)] {
        let mut engine = engine_of(shape);
        write(&mut engine, 0, &noise(1, 8)).expect("written");
        flush(&mut engine);
        let left = if is_start {
            let left = engine.disk().cut(&mut Random(11));
            let mut engine = reopened(&left, MemberSet::EMPTY);
            if has_cache {
                engine.install_cache(CacheMode::WriteThrough, &Pool::new(Bytes(16 << 20)), Bytes(4 << 20));
            }
            with_written(&mut engine, Command::Write { lba: Lba(0), buf: buf(&noise(2, 8)), fua: false })
        } else {
            assert!(engine.set_cache_mode(CacheMode::WriteThrough));
            write(&mut engine, 0, &noise(2, 8)).expect("written");
            images(&engine)
        };
        let context = format!("after a start: {is_start}, with a cache: {has_cache}");
        let found = block(&mut reopened(&left, MemberSet::EMPTY), 0).expect("read");
        assert!(found == noise(2, 8), "{context}");
    }
}

/// What can't be written out keeps what it takes of a ring, not all that comes after it.
#[test]
fn a_ring_does_not_fill_up_behind_what_can_not_be_written_out() {
    let page = noise(2, 8);
    let (mut engine, lba) = with_two_wrong_blocks();
    write(&mut engine, lba, &page).expect("acknowledged");
    flush(&mut engine);
    let stripe = engine.geometry().stripe_sectors().0;
    let written: Vec<u64> = (1..9).map(|number| number * stripe).collect();
    // Many times what the ring has room for.
    for round in 0..60 {
        for &at in &written {
            write(&mut engine, at, &noise(round + at, 8)).expect("written");
        }
        flush(&mut engine);
        drop(run(&mut engine, durable(stripe + 8, &noise(round, 8))).expect("durable"));
    }
    let left = engine.disk().cut(&mut Random(5));
    for without in tolerated(engine.geometry()) {
        let mut engine = reopened(&left, without);
        assert!(block(&mut engine, lba).expect("read") == page, "without {without:?}");
        for &at in &written {
            assert!(block(&mut engine, at).expect("read") == noise(59 + at, 8), "without {without:?}, sector {at}");
        }
        assert!(block(&mut engine, stripe + 8).expect("read") == noise(59, 8), "without {without:?}");
    }
}

/// What no member has, and could not be written out, is not lost: reads give it.
#[test]
fn what_is_in_memory_and_on_no_member_is_not_lost() {
    let page = noise(2, 8);
    for is_written in [false, true] {
        let (mut engine, lba) = with_two_wrong_blocks();
        let [.., shape] = journaled();
        if is_written {
            write(&mut engine, lba, &page).expect("acknowledged");
            flush(&mut engine);
        }
        let replaced = shape.geometry().locate(Lba(2 * lba)).member;
        drop(run(&mut engine, fail(replaced)).expect("given up"));
        let join = new_member(&mut engine, &shape, replaced, 7);
        drop(run(&mut engine, join).expect("joined"));
        for _ in 0..50 {
            engine.tick();
            engine.turn(&mut Vec::new()).expect("memory does not break");
        }
        assert!(engine.rebuilding().is_none(), "it is rebuilt");
        let lost: Vec<u64> = engine.lost().iter().flat_map(|range| range.start.0..range.end.0).collect();
        assert!(lost.contains(&(2 * lba)), "the new member lacks what nobody could compute: {lost:?}");
        assert_eq!(engine.lost().iter().any(|range| range.contains(&Lba(lba))), !is_written);
        if is_written {
            assert!(block(&mut engine, lba).expect("read") == page);
        }
    }
}

/// Of content that can't be written out as much is durable as the ring has room for; then flushes fail.
#[test]
fn content_that_can_not_be_written_out_has_all_of_the_ring_and_no_more() {
    let [.., shape] = journaled();
    for (batch, sound, flushes) in [(1, 0, 1), (3, 0, 1), (5, 0, 1), (1, 6, 1), (2, 9, 1), (11, 0, 2), (12, 0, 2)] {
        let shape = Shape { log: 512 << 10, chunks: 120, ..shape };
        let (mut engine, unit, stripe) = (engine_of(shape), shape.chunk / 512, shape.geometry().stripe_sectors().0);
        let rows = shape.geometry().capacity().0 / stripe;
        write(&mut engine, 0, &noise(1, rows * stripe)).expect("written");
        run(&mut engine, Command::Close).expect("closed");
        for lba in (0..rows).flat_map(|row| [row * stripe, row * stripe + unit]) {
            let at = shape.geometry().locate(Lba(lba));
            let sector = usize::try_from(at.sector.0 * 512).expect("small");
            engine.disk_mut().data_mut(at.member)[sector] ^= 1;
        }
        let mut flushed = 0;
        let is_full = (0..rows / batch).any(|round| {
            for row in round * batch..(round + 1) * batch {
                write(&mut engine, row * stripe + unit, &noise(row, 8)).expect("acknowledged");
            }
            for row in 0..sound {
                write(&mut engine, row * stripe + 2 * unit, &noise(1000 * round + row, 8)).expect("acknowledged");
            }
            let results = run_all(&mut engine, (0..flushes).map(|_| Command::Flush).collect());
            let is_known = |result: &Result<_, _>| matches!(result, Ok(None) | Err(EngineError::NotDestaged { .. }));
            assert!(results.iter().all(is_known), "{results:?}");
            let result = results.into_iter().collect::<Result<Vec<_>, _>>();
            flushed += if result.is_ok() { batch } else { 0 };
            result.is_err()
        });
        // A block for each page, and for each record its header's.
        let context = format!("{batch} at once, beside {sound} that can");
        assert!(is_full && (24..=96).contains(&flushed), "{context}: {flushed} pages");
        let left = engine.disk().cut(&mut Random(5));
        for without in tolerated(engine.geometry()) {
            let mut engine = reopened(&left, without);
            for row in 0..flushed {
                let found = block(&mut engine, row * stripe + unit).expect("read");
                assert!(found == noise(row, 8), "{context}, without {without:?}, row {row}");
            }
        }
    }
}

/// A durable write of content that can't be written out ends, however full the ring is.
#[test]
fn a_durable_write_ends_in_a_ring_full_of_what_can_not_be_written_out() {
    let [.., shape] = journaled();
    let shape = Shape { members: 5, log: 512 << 10, chunks: 150, ..shape };
    let stripe = shape.geometry().stripe_sectors().0;
    let rows = shape.geometry().capacity().0 / stripe;
    let mut engine = engine_of(shape);
    write(&mut engine, 0, &noise(1, rows * stripe)).expect("written");
    run(&mut engine, Command::Close).expect("closed");
    let mut random = Random(6);
    for row in 0..rows {
        let at = shape.geometry().locate(Lba(row * stripe));
        engine.disk_mut().data_mut(at.member)[usize::try_from(at.sector.0 * 512).expect("small")] ^= 1;
    }
    let lost = shape.geometry().locate(Lba(8)).member;
    drop(run(&mut engine, fail(lost)).expect("given up"));
    let (mut durable_ones, mut failed) = (0, 0);
    for number in 0..3000 {
        let page = random.below(rows * stripe / 8) * 8;
        let fua = random.below(2) == 0;
        engine.submit(number, Command::Write { lba: Lba(page), buf: buf(&noise(number, 8)), fua });
        if random.below(6) == 0 {
            engine.submit(10_000 + number, Command::Flush);
        }
        let mut replies = Vec::new();
        for turn in 0.. {
            engine.disk_mut().allow_reaps(usize::MAX);
            engine.turn(&mut replies).expect("memory does not break");
            if !engine.wants_turn() {
                break;
            }
            assert!(turn < 20_000, "command {number} never ends");
        }
        durable_ones += usize::from(fua && replies.iter().all(|reply| reply.result.is_ok()));
        failed += replies.iter().filter(|reply| reply.result.is_err()).count();
        assert!(!replies.is_empty(), "there is a reply");
    }
    assert!(durable_ones > 50 && failed > 50, "{durable_ones} durable, {failed} failed: both happen");
}

/// What is being written out when a flush begins, and can't be, is durable when the flush is over.
#[test]
fn a_flush_is_about_what_was_being_written_out_in_vain() {
    let page = noise(2, 8);
    let (mut engine, lba) = with_two_wrong_blocks();
    write(&mut engine, lba, &page).expect("acknowledged");
    let member = engine.geometry().locate(Lba(lba)).member;
    engine.disk_mut().hold(member, OpName::Read);
    let mut replies = Vec::new();
    // It is old enough some time.
    while engine.disk().held() == 0 {
        engine.tick();
        engine.turn(&mut replies).expect("memory does not break");
    }
    engine.submit(7, Command::Flush);
    engine.turn(&mut replies).expect("memory does not break");
    assert!(replies.is_empty(), "{replies:?}");
    engine.disk_mut().let_go(member, OpName::Read);
    while replies.is_empty() {
        engine.turn(&mut replies).expect("memory does not break");
    }
    assert!(replies.pop().is_some_and(|reply| reply.result.is_ok()), "the journal has room");
    let left = engine.disk().cut(&mut Random(10));
    assert!(block(&mut reopened(&left, MemberSet::EMPTY), lba).expect("it is there") == page);
}

/// Content that can't be written out, as two blocks of its row are wrong, is durable when that is said of closing the
/// array.
#[test]
fn what_can_not_be_written_out_is_kept_when_the_array_is_closed() {
    let (mut engine, unit) = with_two_wrong_blocks();
    let page = noise(2, 8);
    write(&mut engine, unit, &page).expect("acknowledged");
    let error = run(&mut engine, Command::Close).expect_err("it can't be written out");
    let EngineError::Journaled { unwritten } = error else { panic!("{error}") };
    assert_eq!(unwritten.ranges().collect::<Vec<_>>(), [Lba(unit)..Lba(unit + 8)]);
    let left = engine.disk().cut(&mut Random(9));
    let mut engine = reopened(&left, MemberSet::EMPTY);
    assert!(block(&mut engine, unit).expect("the journal has it") == page);
}
