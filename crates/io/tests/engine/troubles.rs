//! What the engine says is wrong with members: who keeps clients waiting, who fails what nobody makes good, who has
//! frozen the array.

use std::time::Duration;

use rustix::io::Errno;
use uraid_io::buf::Buf;
use uraid_io::disk::{Fault, OpName, Order};
use uraid_io::engine::{CacheMode, Command, Deadlines, EngineError, Troubles};
use uraid_io::format::superblock::{ScrubFound, ScrubHistory, ScrubMode, ScrubRun};
use uraid_layout::{Bytes, Lba, Level, MemberIndex, MemberSet, Sectors, StripeId};

use crate::recovery::superblock;
use crate::support::{RAID5, TestEngine, assert_encoded, images, noise, read, run, small, with_cache, write};

const DEADLINES: Deadlines =
    Deadlines { read: Some(Duration::from_millis(200)), write: Some(Duration::from_millis(1000)), hedges: false };

/// Ticks of a tenth of a second, of which an operation may miss the first.
const READ_TICKS: u32 = 3;
const WRITE_TICKS: u32 = 11;

fn members(slots: &[u8]) -> MemberSet {
    slots.iter().map(|&slot| MemberIndex(slot)).collect()
}

fn turn(engine: &mut TestEngine) -> usize {
    let mut replies = Vec::new();
    engine.turn(&mut replies).expect("memory does not break");
    replies.len()
}

fn stalled(slots: &[u8]) -> Troubles {
    Troubles { stalled: members(slots), ..Troubles::default() }
}

fn failing(slots: &[u8]) -> Troubles {
    Troubles { failing: members(slots), ..Troubles::default() }
}

/// Everything of its kind fails from now on.
fn fail_all(engine: &mut TestEngine, slot: u8, name: OpName) {
    let fault = Fault { member: MemberIndex(slot), name, after: 0, count: u64::MAX, errno: Errno::IO };
    engine.disk_mut().inner.fail(fault);
}

/// Nobody else has what they hold, so nothing is done about it but to say so.
#[test]
fn a_member_that_is_needed_and_hangs_is_said_to_stall_until_it_answers() {
    for (level, missing) in [(Level::Raid0, &[][..]), (RAID5, &[0])] {
        for name in [OpName::Read, OpName::Write] {
            let shape = small(level, 3);
            let mut engine = shape.engine(members(missing), Order::Fifo);
            let all = engine.geometry().capacity().0;
            write(&mut engine, 0, &noise(1, all)).expect("written");
            engine.set_deadlines(DEADLINES);
            engine.disk_mut().hold(MemberIndex(1), name);
            let buf = Buf::zeroed(Sectors(all).bytes());
            let command = match name {
                OpName::Read => Command::Read { lba: Lba(0), buf },
                _ => Command::Write { lba: Lba(0), buf, fua: false },
            };
            engine.submit(1, command);
            let context = format!("{shape:?} {name}");
            for _ in 0..READ_TICKS - 1 {
                assert_eq!((turn(&mut engine), engine.troubles()), (0, Troubles::default()), "{context}");
                engine.tick();
            }
            for ticks in READ_TICKS..3 * WRITE_TICKS {
                engine.tick();
                assert_eq!((turn(&mut engine), engine.troubles()), (0, stalled(&[1])), "{context}");
                let waited = engine.waits_for(MemberIndex(1)).expect("something waits");
                assert_eq!(waited.as_millis(), u128::from(ticks) * 100, "{context}");
                assert_eq!(engine.waits_for(MemberIndex(2)), None, "{context}");
            }
            engine.disk_mut().let_go(MemberIndex(1), name);
            let mut replies = turn(&mut engine);
            engine.tick();
            replies += turn(&mut engine);
            assert_eq!((replies, engine.troubles()), (1, Troubles::default()), "{context}");
            assert!(!engine.wants_ticks(), "{context}");
        }
    }
}

/// However long it waited for room, it does not hang when there is some; it does when it does not answer from then on.
#[test]
fn a_member_that_had_no_room_does_not_stall_as_soon_as_there_is_some() {
    let mut engine = small(Level::Raid0, 3).engine(MemberSet::EMPTY, Order::Fifo);
    engine.set_deadlines(DEADLINES);
    let roomless = members(&[1]);
    engine.disk_mut().hold(MemberIndex(1), OpName::Write);
    engine.disk_mut().set_roomless(roomless);
    let all = engine.geometry().capacity();
    engine.submit(1, Command::Write { lba: Lba(0), buf: Buf::zeroed(all.bytes()), fua: false });
    for _ in 0..2 * WRITE_TICKS {
        assert_eq!(turn(&mut engine), 0);
        engine.tick();
    }
    let waits = |engine: &TestEngine| engine.waits_for(MemberIndex(1)).map(|waits| waits.as_millis());
    assert_eq!(engine.troubles(), Troubles { roomless, ..Troubles::default() });
    assert_eq!(waits(&engine), Some(u128::from(2 * WRITE_TICKS) * 100));
    engine.disk_mut().set_roomless(MemberSet::EMPTY);
    for ticks in 0..READ_TICKS {
        assert_eq!(
            (turn(&mut engine), engine.troubles()),
            (0, Troubles::default()),
            "{ticks} ticks after there was room"
        );
        assert_eq!(waits(&engine), Some(u128::from(ticks) * 100));
        engine.tick();
    }
    assert_eq!((turn(&mut engine), engine.troubles()), (0, stalled(&[1])));
    engine.disk_mut().let_go(MemberIndex(1), OpName::Write);
    assert_eq!(turn(&mut engine), 1);
}

/// A member that can be spared is given up, and is missing then.
#[test]
fn a_member_that_was_given_up_does_not_stall() {
    let mut engine = small(RAID5, 3).engine(MemberSet::EMPTY, Order::Fifo);
    engine.set_deadlines(DEADLINES);
    engine.disk_mut().hold(MemberIndex(1), OpName::Write);
    let all = engine.geometry().capacity();
    engine.submit(1, Command::Write { lba: Lba(0), buf: Buf::zeroed(all.bytes()), fua: false });
    for _ in 0..=READ_TICKS {
        assert_eq!(turn(&mut engine), 0);
        engine.tick();
    }
    assert_eq!(engine.troubles(), stalled(&[1]), "somebody waits until then");
    let mut replies = 0;
    for _ in 0..WRITE_TICKS {
        replies += turn(&mut engine);
        engine.tick();
    }
    assert_eq!((replies, engine.troubles(), engine.missing()), (1, Troubles::default(), members(&[1])));
}

#[test]
fn reads_that_nothing_makes_good_are_of_members_that_fail() {
    let mut engine = small(RAID5, 4).engine(MemberSet::EMPTY, Order::Fifo);
    let all = engine.geometry().capacity().0;
    write(&mut engine, 0, &noise(1, all)).expect("written");
    let data = small(RAID5, 4).superblocks()[0].areas.data.offset;
    engine.disk_mut().inner.spoil(MemberIndex(1), data, Bytes(4096));
    assert!(read(&mut engine, 0, all).is_ok());
    assert_eq!(engine.troubles(), Troubles::default(), "that was made good");
    for slot in [1, 2] {
        fail_all(&mut engine, slot, OpName::Read);
    }
    assert!(matches!(read(&mut engine, 0, all), Err(EngineError::Unreadable { .. })));
    assert_eq!(engine.troubles(), failing(&[1, 2]));
    assert_eq!(engine.missing(), MemberSet::EMPTY);
    // For two hours at most, unless it happens again.
    engine.forgive_errors();
    assert_eq!(engine.troubles(), failing(&[1, 2]));
    assert!(read(&mut engine, 0, all).is_err());
    engine.forgive_errors();
    assert_eq!(engine.troubles(), failing(&[1, 2]));
    engine.forgive_errors();
    assert_eq!(engine.troubles(), Troubles::default());
}

#[test]
fn writes_and_flushes_that_fail_where_nothing_is_kept_twice_are_of_members_that_fail() {
    for name in [OpName::Write, OpName::Flush] {
        let mut engine = small(Level::Raid0, 3).engine(MemberSet::EMPTY, Order::Fifo);
        let all = engine.geometry().capacity().0;
        write(&mut engine, 0, &noise(1, all)).expect("written");
        fail_all(&mut engine, 2, name);
        let written = write(&mut engine, 0, &noise(2, all));
        assert!(written.and_then(|()| run(&mut engine, Command::Flush).map(drop)).is_err());
        assert_eq!(engine.troubles(), failing(&[2]), "{name}");
    }
}

#[test]
fn an_array_that_is_frozen_says_by_whom() {
    let mut engine = small(RAID5, 4).engine(members(&[3]), Order::Fifo);
    let all = engine.geometry().capacity().0;
    write(&mut engine, 0, &noise(1, all)).expect("written");
    fail_all(&mut engine, 1, OpName::Write);
    assert!(matches!(write(&mut engine, 0, &noise(2, all)), Err(EngineError::Frozen)));
    assert!(engine.is_frozen());
    assert_eq!(engine.troubles().frozen_by, members(&[1]));
    assert_eq!(engine.missing(), members(&[3]));
}

/// A superblock that fails freezes an array that needs its member, and what is in memory alone could never be written.
#[test]
fn what_scrubs_do_is_not_recorded_at_once_while_a_needed_member_fails() {
    let caching = Some((CacheMode::WriteBack, 64));
    let (mut engine, _pool) = with_cache(small(Level::Raid0, 3).engine(MemberSet::EMPTY, Order::Fifo), caching);
    let (all, on_it) = (engine.geometry().capacity().0, engine.geometry().chunk().0);
    let mut content = noise(1, all);
    write(&mut engine, 0, &content).expect("written");
    run(&mut engine, Command::Flush).expect("flushed");
    fail_all(&mut engine, 1, OpName::Write);
    write(&mut engine, on_it, &noise(2, 8)).expect("it is in memory");
    content[usize::try_from(on_it * 512).expect("small")..][..4096].copy_from_slice(&noise(2, 8));
    run(&mut engine, Command::Flush).expect_err("a member does not take it");
    let run_of = ScrubRun { mode: ScrubMode::Check, position: StripeId(1), found: ScrubFound::default() };
    let history = ScrubHistory { finished: None, run: Some(run_of), is_owed: false };
    engine.keep_scrub(history, true);
    assert_eq!(read(&mut engine, 0, all).expect("read"), content);
    assert_eq!(engine.troubles(), failing(&[1]));
    engine.disk_mut().inner.clear_faults();
    run(&mut engine, Command::Flush).expect("it takes it again");
    run(&mut engine, Command::Close).expect("closed");
    assert_encoded(&engine, &content, "written out");
    assert_eq!(superblock(images(&engine)[0].as_ref().expect("it is there")).scrub, history);
}
