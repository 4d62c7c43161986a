//! Several records of the journal at once: who waits for whom, and what counts of them after a stop.

use uraid_io::buf::Pool;
use uraid_io::disk::{MemDisk, OpName};
use uraid_io::engine::{CacheMode, Command, Engine, Reply};
use uraid_io::format::log::record::OPEN_MAX;
use uraid_io::format::superblock::Consistency;
use uraid_layout::{Bytes, Lba, MemberIndex, MemberSet, Placement};

use crate::journal::{assert_has, durable, empty, engine_of, journal, put, reopened, with_written};
use crate::support::{
    Members, RAID5, RAID6, Random, Shape, TestEngine, buf, images, noise, rm2, run, small, tolerated, write,
};

/// Arrays with a journal on each member, of a few records of one page.
fn shapes() -> [Shape; 3] {
    let shape = |level, members, log| Shape { consistency: Consistency::Log, log, ..small(level, members) };
    [shape(RAID5, 5, 256 << 10), shape(rm2(3, Placement::Adjacent), 7, 256 << 10), shape(RAID6, 7, 256 << 10)]
}

/// Has a page written and a flush begun; what was replied to.
pub(crate) fn begin(engine: &mut TestEngine, token: u64, lba: u64, page: &[u8]) -> Vec<Reply<u64>> {
    let mut replies = Vec::new();
    engine.submit(0, Command::Write { lba: Lba(lba), buf: buf(page), fua: false });
    engine.submit(token, Command::Flush);
    engine.turn(&mut replies).expect("memory does not break");
    let is_taken = replies.first().is_some_and(|reply| reply.token == 0 && reply.result.is_ok());
    assert!(is_taken, "the cache takes it at {lba}: {replies:?}");
    replies.remove(0);
    replies
}

/// Waits for so many replies in all.
#[track_caller]
pub(crate) fn end(engine: &mut TestEngine, mut replies: Vec<Reply<u64>>, count: usize) {
    for _ in 0..200 {
        engine.turn(&mut replies).expect("memory does not break");
    }
    assert_eq!(replies.len(), count, "{} operations are held", engine.disk().held());
    assert!(replies.iter().all(|reply| reply.result.is_ok()), "{replies:?}");
}

pub(crate) fn hold(engine: &mut TestEngine, members: MemberSet) {
    members.iter().for_each(|member| engine.disk_mut().hold(member, OpName::Write));
}

pub(crate) fn let_go(engine: &mut TestEngine, members: MemberSet) {
    members.iter().for_each(|member| engine.disk_mut().let_go(member, OpName::Write));
}

/// An engine whose journal is in use, and its content.
pub(crate) fn with_a_record(shape: Shape) -> (TestEngine, Vec<u8>) {
    let (mut engine, mut content) = (engine_of(shape), empty(&shape));
    write(&mut engine, 0, &noise(1, 8)).expect("the cache takes it");
    drop(run(&mut engine, Command::Flush).expect("flushed"));
    put(&mut content, 0, &noise(1, 8));
    (engine, content)
}

/// Addresses of pages that make no parity stripe whole.
pub(crate) fn pages(shape: &Shape) -> impl Iterator<Item = u64> {
    let size = shape.geometry().capacity().0;
    (1..).map(move |number| number * 16 % (size / 16 * 16))
}

#[test]
fn a_flush_does_not_wait_for_the_record_of_another() {
    for shape in shapes() {
        let copies = shape.geometry().tolerance() + 1;
        let (mut engine, _) = with_a_record(shape);
        let all = shape.geometry().all_members();
        hold(&mut engine, all);
        for (number, lba) in (1..=OPEN_MAX + 2).zip(pages(&shape)) {
            let replies = begin(&mut engine, number as u64, lba, &noise(lba, 8));
            let under_way = number.min(OPEN_MAX) * copies;
            assert_eq!((engine.disk().held(), replies.len()), (under_way, 0), "{shape:?}, flush {number}");
        }
        let_go(&mut engine, all);
        end(&mut engine, Vec::new(), OPEN_MAX + 2);
    }
}

/// A flush of a page whose older version is on its way waits for that.
#[test]
fn a_page_goes_into_one_record_at_a_time() {
    for shape in shapes() {
        let copies = shape.geometry().tolerance() + 1;
        let (mut engine, mut content) = with_a_record(shape);
        let all = shape.geometry().all_members();
        let lba = pages(&shape).next().expect("one");
        hold(&mut engine, all);
        for version in 1..=3 {
            let replies = begin(&mut engine, version, lba, &noise(10 + version, 8));
            assert_eq!((engine.disk().held(), replies.len()), (copies, 0), "{shape:?}, version {version}");
        }
        let_go(&mut engine, all);
        end(&mut engine, Vec::new(), 3);
        put(&mut content, lba, &noise(13, 8));
        let left = images(&engine);
        for without in tolerated(&shape.geometry()) {
            assert_has(&mut reopened(&left, without), &content, &format!("{shape:?}, without {without:?}"));
        }
    }
}

/// What is on its way to a member that stalls goes to others after a while, and what comes later at once.
#[test]
fn a_member_that_stalls_delays_a_flush_for_a_moment() {
    for shape in shapes() {
        for stalled in shape.geometry().all_members().iter() {
            let (mut engine, mut content) = with_a_record(shape);
            let mut pages = pages(&shape);
            let mut next = |content: &mut [u8]| {
                let lba = pages.next().expect("there are more");
                put(content, lba, &noise(lba, 8));
                lba
            };
            hold(&mut engine, MemberSet::EMPTY.with(stalled));
            let (mut begun, mut held_at) = (0, 0);
            while engine.disk().held() == 0 {
                begun += 1;
                let lba = next(&mut content);
                held_at = lba;
                let replies = begin(&mut engine, begun, lba, &noise(lba, 8));
                assert!(begun < 20, "{shape:?}: member {stalled} gets its share");
                let is_held = engine.disk().held() > 0;
                end(&mut engine, replies, usize::from(!is_held));
            }
            engine.tick();
            end(&mut engine, Vec::new(), 0);
            engine.tick();
            end(&mut engine, Vec::new(), 1);
            for _ in 0..3 {
                let lba = next(&mut content);
                let replies = begin(&mut engine, 100 + lba, lba, &noise(lba, 8));
                end(&mut engine, replies, 1);
            }
            assert_eq!(engine.disk().held(), 1, "{shape:?}: member {stalled} got another record");
            assert_left(&engine, &content, &format!("{shape:?}, member {stalled} stalls"));
            let_go(&mut engine, MemberSet::EMPTY.with(stalled));
            end(&mut engine, Vec::new(), 0);
            assert_left(&engine, &content, &format!("{shape:?}, member {stalled} has stalled"));
            // The mark goes beyond the record that came late; the other one of that page is still needed.
            let lba = next(&mut content);
            let replies = begin(&mut engine, 1, lba, &noise(lba, 8));
            end(&mut engine, replies, 1);
            put(&mut content, held_at, &noise(4, 8));
            write(&mut engine, held_at, &noise(4, 8)).expect("the cache takes it");
            for _ in 0..100 {
                engine.tick();
                end(&mut engine, Vec::new(), 0);
            }
            drop(run(&mut engine, Command::Flush).expect("flushed"));
            assert_left(&engine, &content, &format!("{shape:?}, written out after member {stalled} has stalled"));
            for _ in 0..20 {
                let lba = next(&mut content);
                put(&mut content, lba, &noise(7 * lba, 8));
                let replies = begin(&mut engine, 100 + lba, lba, &noise(7 * lba, 8));
                end(&mut engine, replies, 1);
            }
            assert_left(&engine, &content, &format!("{shape:?}, long after member {stalled} has stalled"));
        }
    }
}

/// However many flushes come before it is known to stall, one member does not have all places of open records.
#[test]
fn a_member_that_stalls_leaves_a_place_to_others() {
    for shape in shapes() {
        for stalled in shape.geometry().all_members().iter() {
            let (mut engine, mut content) = with_a_record(shape);
            hold(&mut engine, MemberSet::EMPTY.with(stalled));
            let mut replies = Vec::new();
            for lba in pages(&shape).take(16) {
                put(&mut content, lba, &noise(lba, 8));
                replies.extend(begin(&mut engine, lba, lba, &noise(lba, 8)));
            }
            for _ in 0..50 {
                engine.turn(&mut replies).expect("memory does not break");
            }
            let held = engine.disk().held();
            assert!((1..OPEN_MAX).contains(&held), "{shape:?}, member {stalled} has {held} records");
            (0..3).for_each(|_| engine.tick());
            end(&mut engine, replies, 16);
            assert_left(&engine, &content, &format!("{shape:?}, member {stalled}"));
        }
    }
}

/// Where only so many members are left as get a record, flushes wait for a place without waking each other.
#[test]
fn flushes_of_a_degraded_array_wait_for_a_place() {
    let shape = Shape { consistency: Consistency::Log, log: 256 << 10, ..small(RAID5, 3) };
    let (mut engine, mut content) = with_a_record(shape);
    drop(run(&mut engine, Command::Fail { member: MemberIndex(2) }).expect("it survives that"));
    let all = shape.geometry().all_members().without(MemberIndex(2));
    hold(&mut engine, all);
    let mut replies = Vec::new();
    for lba in pages(&shape).take(6) {
        put(&mut content, lba, &noise(lba, 8));
        replies.extend(begin(&mut engine, lba, lba, &noise(lba, 8)));
    }
    assert_eq!((engine.disk().held(), replies.len()), (2 * (OPEN_MAX - 1), 0));
    let_go(&mut engine, all);
    end(&mut engine, replies, 6);
    assert_has(&mut reopened(&images(&engine), MemberSet::EMPTY.with(MemberIndex(2))), &content, "degraded");
}

/// What the members hold has this content, whoever is lost.
#[track_caller]
pub(crate) fn assert_left(engine: &TestEngine, content: &[u8], context: &str) {
    let left = images(engine);
    for without in tolerated(engine.geometry()).into_iter().take(8) {
        assert_has(&mut reopened(&left, without), content, &format!("{context}, without {without:?}"));
    }
}

/// Of records that were open together each counts that anybody has; then they are on all who are to have them.
#[test]
fn what_some_have_of_records_that_were_open_counts() {
    for shape in shapes() {
        let all = shape.geometry().all_members();
        let mut random = Random(5);
        for _ in 0..4 {
            let bits = random.below(1 << all.len());
            let arrived: MemberSet = all.iter().filter(|member| bits >> member.0 & 1 == 1).collect();
            let (mut engine, content) = with_a_record(shape);
            hold(&mut engine, all);
            let written: Vec<u64> = pages(&shape).take(OPEN_MAX).collect();
            for &lba in &written {
                assert!(begin(&mut engine, lba, lba, &noise(lba, 8)).is_empty());
            }
            let_go(&mut engine, arrived);
            let mut replies = Vec::new();
            for _ in 0..4 {
                engine.turn(&mut replies).expect("memory does not break");
            }
            let left = images(&engine);
            let all_lost = tolerated(&shape.geometry());
            let some_lost = all_lost[usize::try_from(random.below(all_lost.len() as u64)).expect("few")];
            for without in [MemberSet::EMPTY, some_lost] {
                let context = format!("{shape:?}, {arrived:?} got theirs, without {without:?}");
                let mut content = content.clone();
                for &lba in written.iter().filter(|lba| has_copy(&left, without, &noise(**lba, 8))) {
                    put(&mut content, lba, &noise(lba, 8));
                }
                goes_on(&shape, &left, without, content, &context);
            }
        }
    }
}

/// Whether a page is in the journal of one of the members that are not lost.
fn has_copy(left: &Members, without: MemberSet, page: &[u8]) -> bool {
    let there = (0..).map(MemberIndex).zip(left).filter(|(slot, _)| !without.contains(*slot));
    let mut journals = there.filter_map(|(_, bytes)| bytes.as_ref()).map(|bytes| &bytes[journal(bytes)]);
    journals.any(|journal| journal.chunks_exact(4096).any(|block| block == page))
}

/// What is left has this content, at once and after more was written, so much that places are used again, whoever is
/// lost then.
fn goes_on(shape: &Shape, left: &Members, without: MemberSet, mut content: Vec<u8>, context: &str) {
    let mut engine = reopened(left, without);
    engine.install_cache(CacheMode::WriteBack, &Pool::new(Bytes(16 << 20)), Bytes(4 << 20));
    assert_has(&mut engine, &content, context);
    let also = if without.is_empty() { tolerated(&shape.geometry()) } else { vec![without] };
    let also = also.into_iter().step_by(3).collect::<Vec<_>>();
    let check = |engine: &Engine<MemDisk, u64>, content: &[u8], when: &str| {
        let members = engine.geometry().all_members();
        let now: Members = members.iter().map(|slot| engine.disk().member(slot).cloned()).collect();
        for &out in &also {
            assert_has(&mut reopened(&now, out), content, &format!("{context}, {when}, then without {out:?}"));
        }
    };
    check(&engine, &content, "at once");
    let size = shape.geometry().capacity().0;
    for number in 1..80 {
        let lba = number * 8 % (size / 8) * 8;
        put(&mut content, lba, &noise(1000 + number, 8));
        drop(with_written(&mut engine, durable(lba, &noise(1000 + number, 8))));
        if number == 1 || number == 79 {
            check(&engine, &content, &format!("after {number} more"));
        }
    }
}
