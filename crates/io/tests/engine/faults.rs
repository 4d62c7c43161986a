//! Members that fail: the right data or an error, and the failure on record before any write that it missed is
//! acknowledged.

use rustix::io::Errno;
use uraid_io::disk::{Fault, OpName, Order};
use uraid_io::engine::{Command, EngineError};
use uraid_io::format::superblock::{Consistency, SlotState};
use uraid_layout::{Bytes, Lba, Level, MemberIndex, MemberSet, Placement};

use crate::slow::turn;
use crate::support::{
    CHUNK, RAID5, Shape, TestEngine, assert_encoded, buf, noise, read, rm2, run, run_all, shapes, small, write,
};

fn fail(engine: &mut TestEngine, member: u8, name: OpName, after: u64, count: u64) {
    let fault = Fault { member: MemberIndex(member), name, after, count, errno: Errno::IO };
    engine.disk_mut().inner.fail(fault);
}

fn filled(shape: Shape) -> (TestEngine, Vec<u8>) {
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Seeded(1));
    let content = noise(2, engine.geometry().capacity().0);
    write(&mut engine, 0, &content).expect("written");
    (engine, content)
}

/// The newest durable superblocks say that exactly `failed` are failed, all present members agreeing.
pub(crate) fn assert_recorded(engine: &TestEngine, failed: MemberSet, context: &str) {
    let present = engine.geometry().all_members().minus(failed);
    for member in present.iter() {
        let superblock = engine.disk().durable(member).expect("a present member has a superblock");
        let states = (0..).map(MemberIndex).zip(&superblock.slots);
        let recorded: MemberSet =
            states.filter(|(_, slot)| slot.state == SlotState::Failed).map(|(slot, _)| slot).collect();
        assert_eq!(recorded, failed, "{context}: on member {member}");
        assert_eq!(superblock.epoch, engine.disk().newest().epoch, "{context}: on member {member}");
    }
}

#[test]
fn read_errors_are_made_good_from_the_others() {
    for shape in shapes().into_iter().filter(|shape| shape.level != Level::Raid0) {
        for member in 0..shape.members {
            for count in [1, u64::MAX] {
                let (mut engine, mut content) = filled(shape);
                let context = format!("{shape:?}, {count} errors on member {member}");
                fail(&mut engine, member, OpName::Read, 0, count);
                let capacity = engine.geometry().capacity().0;
                assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}");
                for lba in (0..capacity - 5).step_by(37) {
                    let sectors = usize::try_from(lba).expect("small") * 512;
                    let new = noise(lba, 5);
                    write(&mut engine, lba, &new).expect("written");
                    content[sectors..][..new.len()].copy_from_slice(&new);
                }
                assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}");
                // Once, it gives back what was written to heal it; for good, it does not. A copy that nobody reads
                // shows nothing.
                let is_read = engine.disk().inner.counters(MemberIndex(member)).reads > 0;
                let is_failed = is_read && count > 1;
                let failed = if is_failed { MemberSet::EMPTY.with(MemberIndex(member)) } else { MemberSet::EMPTY };
                assert_eq!(engine.missing(), failed, "{context}");
                assert_recorded(&engine, failed, &context);
                let counters = engine.counters().total();
                if !is_read {
                    assert!(counters.repaired + counters.unrepairable == 0, "{context}: {counters:?}");
                } else if count == 1 {
                    assert!(counters.repaired > 0 && counters.unrepairable == 0, "{context}: {counters:?}");
                } else {
                    assert!(counters.repaired == 0 && counters.unrepairable > 0, "{context}: {counters:?}");
                }
                assert_encoded(&engine, &content, &context);
            }
        }
    }
}

#[test]
fn bad_sectors_on_two_members_in_different_stripes_are_both_made_good() {
    for is_write in [false, true] {
        let (mut engine, mut content) = filled(small(RAID5, 5));
        // The first stripe's read of member 0 fails, and a later one's of member 1; both at once for a long request.
        fail(&mut engine, 0, OpName::Read, 0, 1);
        fail(&mut engine, 1, OpName::Read, 0, 1);
        let capacity = engine.geometry().capacity().0;
        if is_write {
            // All but the first and the last sector: both end stripes read what they lack.
            let new = noise(5, capacity - 2);
            write(&mut engine, 1, &new).expect("written");
            content[512..][..new.len()].copy_from_slice(&new);
        }
        assert!(read(&mut engine, 0, capacity).expect("read") == content);
        assert_encoded(&engine, &content, "after bad sectors");
    }
}

#[test]
fn a_member_that_was_truncated_is_given_up() {
    let (mut engine, mut content) = filled(small(RAID5, 5));
    let member = engine.disk_mut().inner.member_mut(MemberIndex(2)).expect("present");
    let len = member.len();
    // The first chunk of its data is left.
    member.resize((1 << 20) + 4096);
    let capacity = engine.geometry().capacity().0;
    assert!(read(&mut engine, 0, capacity).expect("read") == content);
    let failed = MemberSet::EMPTY.with(MemberIndex(2));
    assert_eq!(engine.missing(), failed, "what is beyond its end is gone, even if the file grows again");
    engine.disk_mut().inner.member_mut(MemberIndex(2)).expect("present").resize(len);
    let new = noise(5, 8);
    write(&mut engine, 0, &new).expect("written");
    content[..new.len()].copy_from_slice(&new);
    assert_recorded(&engine, failed, "after a truncation");
    assert!(read(&mut engine, 0, capacity).expect("read") == content);
}

#[test]
fn writes_of_every_width_to_the_widest_degraded_array() {
    let mut engine = small(RAID5, 64).engine(MemberSet::EMPTY.with(MemberIndex(0)), Order::Fifo);
    let mut content = vec![0; usize::try_from(engine.geometry().capacity().bytes().0).expect("small")];
    for units in 1..=63 {
        let new = noise(units, units * 8);
        write(&mut engine, 8, &new).expect("written");
        content[4096..][..new.len()].copy_from_slice(&new);
    }
    assert_encoded(&engine, &content, "64 members");
}

#[test]
fn without_redundancy_only_the_sectors_concerned_are_errors() {
    let (mut engine, content) = filled(small(Level::Raid0, 4));
    fail(&mut engine, 2, OpName::Read, 0, u64::MAX);
    for unit in 0..16_u64 {
        let result = read(&mut engine, unit * 8, 8);
        if unit % 4 == 2 {
            assert!(matches!(result, Err(EngineError::Unreadable { .. })), "unit {unit}: {result:?}");
        } else {
            let start = usize::try_from(unit * 8 * 512).expect("small");
            assert_eq!(result.expect("read"), content[start..][..4096], "unit {unit}");
        }
    }
}

#[test]
fn a_failed_write_is_on_record_before_the_reply() {
    for shape in shapes().into_iter().filter(|shape| shape.level != Level::Raid0) {
        for member in 0..shape.members {
            let (mut engine, mut content) = filled(shape);
            let context = format!("{shape:?}, member {member}");
            let epoch = engine.disk().newest().epoch;
            fail(&mut engine, member, OpName::Write, 0, u64::MAX);
            let capacity = engine.geometry().capacity().0;
            let new = noise(77, capacity);
            write(&mut engine, 0, &new).expect("the others have it");
            content.copy_from_slice(&new);
            let failed = MemberSet::EMPTY.with(MemberIndex(member));
            assert_eq!(engine.missing(), failed, "{context}");
            assert_recorded(&engine, failed, &context);
            assert!(engine.disk().newest().epoch > epoch, "{context}");
            assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}");
            assert_encoded(&engine, &content, &context);
        }
    }
}

#[test]
fn a_failed_flush_is_on_record_before_the_reply() {
    for order in [Order::Fifo, Order::Lifo, Order::Seeded(9)] {
        for commands in 1..4 {
            let mut engine = small(RAID5, 5).engine(MemberSet::EMPTY, order);
            let content = noise(3, engine.geometry().capacity().0);
            write(&mut engine, 0, &content).expect("written");
            fail(&mut engine, 3, OpName::Flush, 0, 1);
            let flushes = (0..commands).map(|_| Command::Flush).collect();
            run_all(&mut engine, flushes).into_iter().for_each(|result| drop(result.expect("flushed")));
            assert_recorded(&engine, MemberSet::EMPTY.with(MemberIndex(3)), "after a failed flush");
            assert_encoded(&engine, &content, "after a failed flush");
        }
    }
}

/// What a failed flush dropped is gone: no later flush may say otherwise.
#[test]
fn without_redundancy_a_failed_flush_is_never_made_good() {
    let (mut engine, content) = filled(small(Level::Raid0, 4));
    fail(&mut engine, 1, OpName::Flush, 0, 1);
    for result in run_all(&mut engine, vec![Command::Flush, Command::Flush]) {
        assert!(matches!(result, Err(EngineError::FlushFailed { .. })), "{result:?}");
    }
    write(&mut engine, 0, &content[..512]).expect("written");
    for command in [Command::Flush, Command::Write { lba: Lba(9), buf: buf(&noise(1, 1)), fua: true }, Command::Close] {
        let result = run(&mut engine, command);
        assert!(matches!(result, Err(EngineError::FlushFailed { .. })), "{result:?}");
    }
    assert!(!engine.disk().newest().is_clean, "it is not closed cleanly");
}

#[test]
fn a_member_whose_superblock_cannot_be_written_is_given_up() {
    for (order, name) in [(Order::Fifo, OpName::Write), (Order::Lifo, OpName::Flush), (Order::Seeded(2), OpName::Write)]
    {
        for count in [1, u64::MAX] {
            let mut engine = small(RAID5, 5).engine(MemberSet::EMPTY, order);
            fail(&mut engine, 2, name, 0, count);
            let content = noise(4, engine.geometry().capacity().0);
            write(&mut engine, 0, &content).expect("the others have it");
            assert_recorded(&engine, MemberSet::EMPTY.with(MemberIndex(2)), "superblock");
            assert_encoded(&engine, &content, "superblock");
        }
    }
}

#[test]
fn too_many_failures_freeze_the_array() {
    let (mut engine, content) = filled(small(RAID5, 3));
    fail(&mut engine, 0, OpName::Write, 0, u64::MAX);
    write(&mut engine, 0, &content).expect("one failure is survived");
    fail(&mut engine, 1, OpName::Write, 0, u64::MAX);
    let result = write(&mut engine, 0, &noise(5, 40));
    assert!(matches!(result, Err(EngineError::Frozen)), "{result:?}");
    for command in
        [Command::Flush, Command::Close, Command::Write { lba: Lba(0), buf: buf(&content[..512]), fua: false }]
    {
        let result = run(&mut engine, command);
        assert!(matches!(result, Err(EngineError::Frozen)), "{result:?}");
    }
    let result = read(&mut engine, 0, 1);
    assert!(matches!(result, Err(EngineError::Frozen)), "{result:?}");
}

#[test]
fn superblocks_that_cannot_be_written_freeze_an_array_without_redundancy() {
    let mut engine = small(Level::Raid0, 4).engine(MemberSet::EMPTY, Order::Fifo);
    fail(&mut engine, 0, OpName::Write, 0, u64::MAX);
    let result = write(&mut engine, 8, &noise(5, 8));
    assert!(result.is_err(), "{result:?}");
    assert!(engine.disk().ops.iter().all(|op| !op.is_data), "no data is written before the mark");
}

/// A read of a missing unit waits for the stripe's lock while the write that holds it fails on a second member: what it
/// would compute from half a write is not content.
#[test]
fn a_read_behind_a_write_that_freezes_the_array_is_refused() {
    let shape = small(RAID5, 3);
    for victim in 0..3 {
        for missing in (0..3).filter(|&missing| missing != victim) {
            let mut engine = shape.engine(MemberSet::EMPTY.with(MemberIndex(missing)), Order::Fifo);
            let content = noise(6, engine.geometry().capacity().0);
            write(&mut engine, 0, &content).expect("written");
            fail(&mut engine, victim, OpName::Write, 0, u64::MAX);
            let units = engine.geometry().capacity().0 / 8;
            let commands = (0..units).flat_map(|unit| {
                let read = Command::Read { lba: Lba(unit * 8), buf: buf(&[0; 4096]) };
                [Command::Write { lba: Lba(unit * 8), buf: buf(&noise(unit, 8)), fua: false }, read]
            });
            let mut results = run_all(&mut engine, commands.collect()).into_iter();
            for unit in 0..units {
                let (wrote, got) = (results.next().expect("a reply"), results.next().expect("a reply"));
                let Ok(got) = got else { continue };
                let got = got.expect("a read's buffer comes back");
                let start = usize::try_from(unit * 4096).expect("small");
                let (old, new) = (&content[start..][..4096], noise(unit, 8));
                let is_content = got.as_ref() == old || got.as_ref() == new;
                assert!(is_content, "without {missing}, {victim} fails, write {wrote:?}: unit {unit} is made up");
            }
        }
    }
}

/// A member can't give what is read, and a write is under way that brings it anew; another member is given up before
/// the read begins to wait for that write, or meanwhile. Then nobody but the first member has it.
#[test]
fn a_read_behind_a_write_asks_again_whoever_failed_it_before() {
    for (consistency, is_waiting) in
        [Consistency::None, Consistency::Log].into_iter().flat_map(|c| [(c, false), (c, true)])
    {
        let shape = Shape { consistency, ..small(RAID5, 3) };
        let context = format!("{consistency:?}, {is_waiting}");
        let (mut engine, _) = filled(shape);
        let [own, other] = [0, CHUNK / 512].map(|lba| engine.geometry().locate(Lba(lba)).member);
        let parity = engine.geometry().all_members().without(own).without(other).iter().next().expect("three members");
        engine.disk_mut().inner.spoil(own, shape.superblocks()[0].areas.data.offset, Bytes(CHUNK));
        [own, parity].iter().for_each(|&member| engine.disk_mut().hold_next_data(member));
        let new = noise(7, 8);
        engine.submit(1, Command::Write { lba: Lba(0), buf: buf(&new), fua: false });
        turn(&mut engine);
        engine.submit(2, Command::Read { lba: Lba(0), buf: buf(&[0; 4096]) });
        if is_waiting {
            assert!(turn(&mut engine).is_empty(), "{context}: the read waits for the write");
        }
        engine.submit(3, Command::Fail { member: other });
        let replies = turn(&mut engine);
        assert!(replies.iter().all(|reply| reply.token == 3 && reply.result.is_ok()), "{context}: {replies:?}");
        assert_eq!(engine.missing(), MemberSet::EMPTY.with(other), "{context}");
        [own, parity].iter().for_each(|&member| engine.disk_mut().let_go(member, OpName::Write));
        let mut replies = turn(&mut engine);
        let read = replies.extract_if(.., |reply| reply.token == 2).next().expect("a reply to the read");
        let got = read.result.expect("the member has it again").expect("a read's buffer comes back");
        assert_eq!(got.as_ref(), new, "{context}");
    }
}

/// Unreadable places heal when they are read: they are written with what the others say, and can be read again.
#[test]
fn what_cannot_be_read_is_healed() {
    for consistency in [Consistency::None, Consistency::Log] {
        for shape in shapes().into_iter().filter(|shape| shape.level != Level::Raid0) {
            let shape = Shape { consistency, ..shape };
            for member in (0..shape.members).map(MemberIndex) {
                let (mut engine, content) = filled(shape);
                let context = format!("{shape:?}, member {member}");
                let data = shape.superblocks()[0].areas.data.offset;
                // A sector of one unit, and the end of another with the start of the next.
                engine.disk_mut().inner.spoil(member, Bytes(data.0 + 4096 + 512), Bytes(512));
                engine.disk_mut().inner.spoil(member, Bytes(data.0 + 5 * 4096 - 1024), Bytes(2048));
                let capacity = engine.geometry().capacity().0;
                for lba in (0..capacity).step_by(8) {
                    let start = usize::try_from(lba).expect("small") * 512;
                    let bytes = read(&mut engine, lba, 8).expect("read");
                    assert!(bytes == content[start..][..4096], "{context}, sector {lba}");
                }
                assert!(engine.missing().is_empty(), "{context}");
                run(&mut engine, Command::Close).expect("closed");
                assert_encoded(&engine, &content, &context);
                assert!(engine.disk().newest().is_clean, "{context}");
                assert_eq!(engine.counters().member(member).unrepairable, 0, "{context}");
                if shape.level == Level::Raid1 {
                    // A copy that nobody reads shows nothing.
                    continue;
                }
                let others = engine.geometry().all_members().minus(MemberSet::EMPTY.with(member));
                for other in others.iter() {
                    assert_eq!(engine.counters().member(other).repaired, 0, "{context}: only what failed is written");
                }
            }
        }
    }
}

/// Every read of a spoilt place leads to its healing, whatever the place holds.
#[test]
fn data_and_parity_are_healed_when_a_plan_reads_them() {
    for shape in
        shapes().into_iter().filter(|shape| shape.geometry().maps()[0].groups().iter().any(|group| !group.is_mirror()))
    {
        let (mut engine, mut content) = filled(shape);
        let data = shape.superblocks()[0].areas.data.offset;
        let used = shape.geometry().used_sectors().bytes();
        // All of a member, which small writes then come across: data and parity.
        engine.disk_mut().inner.spoil(MemberIndex(1), data, used);
        for lba in (0..engine.geometry().capacity().0).step_by(8) {
            let new = noise(lba, 8);
            write(&mut engine, lba, &new).expect("written");
            let start = usize::try_from(lba).expect("small") * 512;
            content[start..][..4096].copy_from_slice(&new);
        }
        assert!(!engine.disk().inner.is_spoilt(MemberIndex(1)), "{shape:?}: everything was read or written");
        assert!(engine.counters().member(MemberIndex(1)).repaired > 0, "{shape:?}");
        assert!(engine.missing().is_empty(), "{shape:?}");
        assert_encoded(&engine, &content, &format!("{shape:?}"));
    }
}

/// Where a second member fails to read in the same columns nothing is left, and only there.
#[test]
fn beyond_what_is_survived_only_the_blocks_concerned_are_errors() {
    let shape = Shape { chunk: 16384, ..small(RAID5, 3) };
    let (mut engine, content) = filled(shape);
    let data = shape.superblocks()[0].areas.data.offset.0;
    let inner = &mut engine.disk_mut().inner;
    // In the first stripe: blocks 0 and 2 of member 0, 1 and 2 of member 1.
    for (member, block) in [(0, 0), (0, 2), (1, 1), (1, 2)] {
        inner.spoil(MemberIndex(member), Bytes(data + block * 4096), Bytes(4096));
    }
    // Unit 0 is on member 0 and unit 1 on member 1.
    for unit in 0..2 {
        for block in 0..4 {
            let lba = (unit * 4 + block) * 8;
            let result = read(&mut engine, lba, 8);
            let start = usize::try_from(lba).expect("small") * 512;
            if block == 2 {
                assert!(matches!(result, Err(EngineError::Unreadable { .. })), "block {block}: {result:?}");
            } else {
                assert!(result.expect("read") == content[start..][..4096], "unit {unit}, block {block}");
            }
        }
    }
    let counters = engine.counters().total();
    assert!(counters.repaired >= 2 && counters.unrepairable >= 2, "{counters:?}");
    assert!(engine.missing().is_empty());
    // What is written there is readable again.
    write(&mut engine, 0, &content).expect("written");
    assert!(read(&mut engine, 0, shape.geometry().capacity().0).expect("read") == content);
    // In one long read what failed on different members in different blocks is made good, too.
    for (member, block) in [(0, 0), (1, 1), (2, 3)] {
        engine.disk_mut().inner.spoil(MemberIndex(member), Bytes(data + block * 4096), Bytes(4096));
    }
    assert!(read(&mut engine, 0, shape.geometry().capacity().0).expect("read") == content);
}

/// A member that does not take what is to heal it, or gives something else back, is failed.
#[test]
fn a_member_that_does_not_heal_is_given_up() {
    for name in [OpName::Write, OpName::Read] {
        let shape = small(RAID5, 5);
        let (mut engine, content) = filled(shape);
        let data = shape.superblocks()[0].areas.data.offset;
        run(&mut engine, Command::Flush).expect("flushed");
        engine.disk_mut().inner.spoil(MemberIndex(0), data, Bytes(4096));
        let after = u64::from(name == OpName::Read);
        fail(&mut engine, 0, name, after, 1);
        assert!(read(&mut engine, 0, 8).expect("read") == content[..4096], "{name}");
        let failed = MemberSet::EMPTY.with(MemberIndex(0));
        assert_eq!(engine.missing(), failed, "{name}");
        assert_recorded(&engine, failed, "after a heal that failed");
        assert_eq!(engine.counters().member(MemberIndex(0)).unrepairable, 1);
        assert!(read(&mut engine, 0, shape.geometry().capacity().0).expect("read") == content, "{name}");
    }
}

/// One that can't be done without is kept: what it lacks the others have, and the array goes on. With a log, the first
/// write is the record's.
#[test]
fn a_member_that_does_not_heal_and_is_needed_is_kept() {
    let writes = [(Consistency::None, OpName::Write, 0), (Consistency::Log, OpName::Write, 1)];
    let reads = (1..6).flat_map(|after| [Consistency::None, Consistency::Log].map(|it| (it, OpName::Read, after)));
    let pairs = (1..7).flat_map(|one| (1..one).map(move |other| [one, other].map(MemberIndex)));
    let mut kept = 0;
    for (pair, (consistency, name, after)) in pairs.zip(writes.into_iter().chain(reads).cycle()) {
        let lost: MemberSet = pair.into_iter().collect();
        let shape = Shape { consistency, ..small(rm2(3, Placement::Adjacent), 7) };
        let capacity = shape.geometry().capacity().0;
        let own = |lba: &u64| shape.geometry().locate(Lba(*lba)).member == MemberIndex(0);
        for lba in (0..capacity).step_by(8).filter(own) {
            let (mut engine, content) = filled(shape);
            for member in pair {
                drop(run(&mut engine, Command::Fail { member }).expect("given up"));
            }
            let context = format!("{name} {after}, {consistency:?}, without {lost}, sector {lba}");
            let at = shape.geometry().locate(Lba(lba)).sector.0 * 512 + engine.disk().data_start().0;
            engine.disk_mut().inner.spoil(MemberIndex(0), Bytes(at), Bytes(4096));
            fail(&mut engine, 0, name, after, 1);
            let start = usize::try_from(lba).expect("small") * 512;
            let found = read(&mut engine, lba, 8);
            assert!(!engine.is_frozen() && engine.missing() == lost, "{context}");
            match found {
                Ok(bytes) => {
                    assert!(bytes == content[start..][..4096], "{context}");
                    kept += engine.counters().member(MemberIndex(0)).unrepairable;
                }
                Err(error) => assert!(matches!(error, EngineError::Unreadable { .. }), "{context}: {error}"),
            }
            engine.disk_mut().inner.clear_faults();
            engine.disk_mut().inner.clear_spoilt();
            assert!(read(&mut engine, lba, 8).expect("read") == content[start..][..4096], "{context}");
            write(&mut engine, lba, &content[start..][..4096]).expect("written");
            run(&mut engine, Command::Close).expect("closed");
            assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}");
        }
    }
    assert!(kept > 3, "{kept}");
}

/// Makes a sector of the first chunk of data on member 0 unreadable, and has it made good.
pub(crate) fn correct(engine: &mut TestEngine, number: u64) {
    correct_of(engine, MemberIndex(0), number);
}

fn correct_of(engine: &mut TestEngine, member: MemberIndex, number: u64) {
    let is_there = |&lba: &u64| engine.geometry().locate(Lba(lba)).member == member;
    let lba = (0..).step_by(8).find(is_there).expect("every member has data") + number % 8;
    let sector = engine.geometry().locate(Lba(lba)).sector.0;
    let start = engine.disk().data_start();
    engine.disk_mut().inner.spoil(member, Bytes(start.0 + sector * 512), Bytes(512));
    read(engine, lba, 1).expect("the others have it");
    run(engine, Command::Flush).expect("flushed");
}

#[test]
fn a_member_with_too_many_corrected_errors_is_given_up() {
    for (shape, missing) in [
        (small(RAID5, 5), MemberSet::EMPTY),
        (Shape { consistency: Consistency::Log, ..small(RAID5, 5) }, MemberSet::EMPTY),
        (small(rm2(3, Placement::Adjacent), 7), MemberSet::EMPTY.with(MemberIndex(3))),
        (small(Level::Raid1, 2), MemberSet::EMPTY),
    ] {
        let (mut engine, content) = filled(shape);
        engine.set_max_errors(Some(5));
        for member in missing.iter() {
            drop(run(&mut engine, Command::Fail { member }).expect("given up"));
        }
        for number in 0..5 {
            correct(&mut engine, number);
            assert_eq!(engine.missing(), missing, "{shape:?}: {number} are forgiven");
        }
        // An hour goes by: 5 become 2.
        engine.forgive_errors();
        for number in 5..8 {
            correct(&mut engine, number);
            assert_eq!(engine.missing(), missing, "{shape:?}: {number} are forgiven");
        }
        correct(&mut engine, 8);
        let failed = missing.with(MemberIndex(0));
        assert_eq!(engine.missing(), failed, "{shape:?}");
        assert_recorded(&engine, failed, &format!("{shape:?}"));
        assert_eq!(engine.counters().member(MemberIndex(0)).repaired, 9);
        let capacity = engine.geometry().capacity().0;
        assert!(read(&mut engine, 0, capacity).expect("read") == content, "{shape:?}");
    }
}

/// What another member has wrong may be made good from this one alone.
#[test]
fn a_member_with_many_errors_is_kept_while_others_have_some() {
    let (mut engine, content) = filled(small(RAID5, 5));
    engine.set_max_errors(Some(5));
    correct_of(&mut engine, MemberIndex(1), 0);
    for number in 0..20 {
        correct(&mut engine, number);
        assert_eq!(engine.missing(), MemberSet::EMPTY, "{number}");
    }
    // An hour goes by, and nothing is held against the other one any more; 20 become 10.
    engine.forgive_errors();
    correct(&mut engine, 20);
    assert_eq!(engine.missing(), MemberSet::EMPTY.with(MemberIndex(0)));
    let capacity = engine.geometry().capacity().0;
    assert!(read(&mut engine, 0, capacity).expect("read") == content);
}

#[test]
fn errors_without_number_are_forgiven_unless_there_is_a_limit() {
    let (mut engine, _) = filled(small(RAID5, 5));
    (0..100).for_each(|number| correct(&mut engine, number));
    assert_eq!(engine.missing(), MemberSet::EMPTY);
    engine.set_max_errors(Some(0));
    correct(&mut engine, 0);
    assert_eq!(engine.missing(), MemberSet::EMPTY.with(MemberIndex(0)));
}
