//! What the members say about the array, and when.

use uraid_io::disk::Order;
use uraid_io::engine::{Command, EngineError};
use uraid_layout::{Lba, MemberSet, Sectors};

use crate::faults::assert_recorded;
use crate::support::{RAID5, SECTOR, assert_encoded, buf, noise, read, run, run_all, shapes, small, tolerated, write};

/// Every tolerated set: the record says failed before the first write is acknowledged, and what is written comes back.
#[test]
fn missing_members_are_on_record_before_the_first_reply() {
    for shape in shapes() {
        for missing in tolerated(&shape.geometry()) {
            let context = format!("{shape:?} without {missing:?}");
            let mut engine = shape.engine(missing, Order::Fifo);
            let capacity = engine.geometry().capacity().0;
            write(&mut engine, 3, &noise(1, 5)).expect("written");
            assert_recorded(&engine, missing, &context);
            assert_eq!(engine.disk().newest().epoch.0, 2, "{context}: one round");
            assert!(!engine.disk().newest().is_clean, "{context}");
            let mut content = noise(2, capacity);
            write(&mut engine, 0, &content).expect("written");
            let part = noise(3, 11);
            write(&mut engine, 6, &part).expect("written");
            content[6 * SECTOR..][..part.len()].copy_from_slice(&part);
            assert!(read(&mut engine, 0, capacity).expect("read") == content, "{context}");
            assert_encoded(&engine, &content, &context);
            run(&mut engine, Command::Close).expect("closed");
            assert_recorded(&engine, missing, &context);
            assert!(engine.disk().newest().is_clean, "{context}");
        }
    }
}

/// Also with nothing but reads and flushes, degraded or not, and when it is closed.
#[test]
fn an_engine_that_writes_nothing_writes_nothing() {
    for shape in shapes() {
        for missing in tolerated(&shape.geometry()) {
            for is_read_only in [false, true] {
                let mut engine = shape.engine_on(shape.members(missing), missing, Order::Fifo, is_read_only);
                let capacity = engine.geometry().capacity().0;
                assert!(read(&mut engine, 0, capacity).expect("read").iter().all(|&byte| byte == 0));
                run(&mut engine, Command::Flush).expect("nothing to flush");
                if is_read_only {
                    let result = write(&mut engine, 0, &noise(1, 1));
                    assert!(matches!(result, Err(EngineError::ReadOnly)), "{result:?}");
                    let zero = Command::WriteZeroes { lba: Lba(0), len: Sectors(1), fua: true, may_punch: true };
                    assert!(matches!(run(&mut engine, zero), Err(EngineError::ReadOnly)));
                }
                run(&mut engine, Command::Close).expect("nothing to do");
                let is_untouched = engine.disk().ops.iter().all(|op| op.name == uraid_io::disk::OpName::Read);
                assert!(is_untouched, "{shape:?} without {missing:?}: {:?}", engine.disk().ops);
                for member in shape.geometry().all_members().minus(missing).iter() {
                    let before = &shape.members(missing)[member.index()];
                    assert!(engine.disk().inner.member(member) == before.as_ref(), "member {member}");
                }
            }
        }
    }
}

/// A write that comes while the array is closed ends either before or after it; neither waits for the other for ever.
#[test]
fn closing_and_writing_at_once_both_end() {
    for order in [Order::Fifo, Order::Lifo, Order::Seeded(1), Order::Seeded(2)] {
        for reaps in 0..12 {
            for close_first in [true, false] {
                let mut engine = small(RAID5, 3).engine(MemberSet::EMPTY, order);
                write(&mut engine, 0, &noise(1, 8)).expect("written");
                if !close_first {
                    run(&mut engine, Command::Close).expect("closed");
                }
                let write = Command::Write { lba: Lba(8), buf: buf(&noise(2, 8)), fua: false };
                let (first, second) = if close_first { (Command::Close, write) } else { (write, Command::Close) };
                let mut replies = Vec::new();
                engine.submit(1, first);
                engine.disk_mut().allow_reaps(reaps);
                engine.turn(&mut replies).expect("memory does not break");
                engine.submit(2, second);
                for _ in 0..100 {
                    engine.disk_mut().allow_reaps(1);
                    engine.turn(&mut replies).expect("memory does not break");
                }
                assert_eq!(replies.len(), 2, "{order:?}, {reaps} steps, close first: {close_first}");
                for reply in replies {
                    assert!(matches!(reply.result, Ok(_) | Err(EngineError::Busy)), "{:?}", reply.result);
                }
                engine.disk_mut().allow_reaps(usize::MAX);
                run(&mut engine, Command::Close).expect("closed");
                assert!(engine.disk().newest().is_clean);
            }
        }
    }
}

#[test]
fn a_write_after_closing_marks_the_members_again() {
    let mut engine = small(RAID5, 3).engine(MemberSet::EMPTY, Order::Seeded(3));
    for turn in 0..4 {
        write(&mut engine, turn, &noise(turn, 3)).expect("written");
        assert!(!engine.disk().newest().is_clean);
        assert_eq!(engine.disk().newest().epoch.0, 2 + 2 * turn);
        run(&mut engine, Command::Close).expect("closed");
        assert!(engine.disk().newest().is_clean);
        assert_eq!(engine.disk().newest().epoch.0, 3 + 2 * turn);
    }
}

#[test]
fn what_is_no_request_is_refused() {
    let mut engine = small(RAID5, 3).engine(MemberSet::EMPTY, Order::Fifo);
    let capacity = engine.geometry().capacity().0;
    let results = run_all(
        &mut engine,
        vec![
            Command::Write { lba: Lba(capacity - 1), buf: buf(&[1; 1024]), fua: false },
            Command::Read { lba: Lba(u64::MAX), buf: buf(&[0; 512]) },
            Command::WriteZeroes { lba: Lba(u64::MAX - 1), len: Sectors(4), fua: false, may_punch: true },
            Command::WriteZeroes { lba: Lba(0), len: Sectors(u64::MAX), fua: false, may_punch: false },
        ],
    );
    for result in results {
        assert!(matches!(result, Err(EngineError::OutOfRange { .. })), "{result:?}");
    }
    let result = run(&mut engine, Command::Write { lba: Lba(0), buf: buf(&[1; 100]), fua: false });
    assert!(matches!(result, Err(EngineError::Unaligned { .. })), "{result:?}");
    assert!(engine.disk().ops.is_empty(), "nothing reached a member");
}
