use smallvec::smallvec;
use uraid_io::buf::Buf;
use uraid_io::disk::Segments;
use uraid_io::format::superblock::LogIndex;

use super::*;

const SLOT: MemberIndex = MemberIndex(0);
const LEN: usize = 8 * SECTOR;

fn disk(seed: u64) -> SimDisk {
    let members = Members::of(vec![Some(Member::zeroed(Bytes(4 << 20))), Some(Member::zeroed(Bytes(4 << 20)))]);
    SimDisk::new(members, Random::new(seed), Trace::default())
}

fn op(kind: OpKind, offset: u64, segments: Segments) -> DiskOp {
    DiskOp { tag: offset, member: SLOT, kind, offset: Bytes(offset), segments }
}

fn write(offset: u64, value: u8) -> DiskOp {
    let mut buf = Buf::zeroed(Bytes(LEN as u64));
    buf.as_mut().fill(value);
    op(OpKind::Write, offset, smallvec![buf.lease_read(0..LEN)])
}

fn flush() -> DiskOp {
    op(OpKind::Flush, 0, Segments::new())
}

fn run(disk: &mut SimDisk, ops: impl IntoIterator<Item = DiskOp>) -> Vec<Completion> {
    let mut done = Vec::new();
    ops.into_iter().for_each(|op| disk.submit(op));
    while disk.in_flight() > 0 && disk.wait().is_ok() {
        disk.reap(&mut done);
    }
    done
}

fn read(disk: &mut SimDisk, offset: u64) -> Vec<u8> {
    let mut buf = Buf::zeroed(Bytes(LEN as u64));
    let lease = buf.lease_write(0..LEN);
    let done = run(disk, [op(OpKind::Read, offset, smallvec![lease])]);
    assert_eq!(done[0].result, Ok(()));
    buf.as_ref().to_vec()
}

/// What a sector's first byte is after a power cut, over many draws.
fn left(disk: &SimDisk, offset: u64) -> Vec<u8> {
    let mut random = Random::new(9);
    let one =
        |_| disk.leave(Ending::PowerCut, &mut random).get(SLOT).expect("there").current().sector(Bytes(offset))[0];
    let mut values: Vec<u8> = (0..200).map(one).collect();
    values.sort_unstable();
    values.dedup();
    values
}

#[test]
fn what_was_written_is_read_and_survives_a_power_cut_once_flushed() {
    let mut disk = disk(1);
    assert!(run(&mut disk, [write(0, 1), write(4096, 2)]).iter().all(|done| done.result.is_ok()));
    assert_eq!((read(&mut disk, 0), read(&mut disk, 4096)), (vec![1; LEN], vec![2; LEN]));
    assert_eq!(left(&disk, 0), [0, 1]);
    let _ = run(&mut disk, [flush()]);
    assert_eq!((left(&disk, 0), left(&disk, 4096)), (vec![1], vec![2]));
    assert!(disk.now() > Nanos(0), "time has passed");
}

#[test]
fn a_flush_beside_a_write_does_not_cover_it() {
    let mut disk = disk(2);
    let _ = run(&mut disk, [write(0, 1), flush()]);
    assert_eq!(left(&disk, 0), [0, 1]);
}

#[test]
fn a_power_cut_comes_at_each_step_and_leaves_a_part_of_a_write_under_way() {
    let mut seen = Vec::new();
    for seed in 0..200 {
        for steps in 1..4 {
            let mut disk = disk(seed);
            disk.cut_after(Steps(steps));
            let done = run(&mut disk, [write(0, 1)]);
            assert!(disk.is_dark() || done.len() == 1);
            assert!(done.is_empty() || disk.steps() < Steps(steps), "nothing completes after the cut");
            let members = disk.leave(Ending::PowerCut, &mut Random::new(seed));
            let image = members.get(SLOT).expect("there").current();
            seen.push((0..8).filter(|sector| image.sector(Bytes(sector * 512))[0] == 1).count());
        }
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, (0..=8).collect::<Vec<_>>(), "any number of its sectors is there");
}

#[test]
fn each_fault_does_what_it_says() {
    let planned = |fault, lasts| Planned { member: SLOT, index: 0, fault, lasts };
    for (fault, is_ok) in [
        (Fault::Eio, Some(false)),
        (Fault::NoSpace, Some(false)),
        (Fault::Short, Some(false)),
        (Fault::Vanish, Some(false)),
        (Fault::Slow, Some(true)),
        (Fault::Lost, Some(true)),
        (Fault::Misdirected, Some(true)),
        (Fault::Flipped, Some(true)),
        (Fault::Hang, None),
    ] {
        let mut disk = disk(3);
        disk.plan(planned(fault, false));
        let done = run(&mut disk, [write(1 << 20, 1)]);
        assert_eq!(done.first().map(|done| done.result.is_ok()), is_ok, "{fault:?}");
        assert_eq!(disk.has_hung(), fault == Fault::Hang, "{fault:?}");
        let is_silent = matches!(fault, Fault::Slow | Fault::Lost | Fault::Misdirected | Fault::Flipped);
        assert_eq!(disk.struck().is_empty(), is_silent, "{fault:?}");
        if fault == Fault::Vanish {
            assert!(run(&mut disk, [flush()])[0].result.is_err(), "a member that is gone stays gone");
        } else if is_ok == Some(true) {
            let read_back = read(&mut disk, 1 << 20);
            let same = read_back.iter().filter(|&&byte| byte == 1).count();
            let expected = match fault {
                Fault::Lost | Fault::Misdirected => 0,
                Fault::Flipped => LEN - 1,
                _ => LEN,
            };
            assert_eq!(same, expected, "{fault:?}");
            assert_eq!(disk.now() > Nanos(SLOW_NS), fault == Fault::Slow);
        }
        let image = disk.members().get(SLOT).expect("there").current().clone();
        let ones = (0..4 << 20).step_by(SECTOR).filter(|&at| image.sector(Bytes(at)) == &[1; SECTOR]).count();
        match fault {
            Fault::Misdirected => assert_eq!(ones, 8, "it is elsewhere"),
            Fault::Lost => assert_eq!(ones, 0),
            _ => {}
        }
    }
    let mut disk = disk(4);
    disk.plan(planned(Fault::Eio, true));
    assert!(run(&mut disk, [write(0, 1), write(4096, 1)]).iter().all(|done| done.result.is_err()));
}

#[test]
fn the_same_seed_gives_the_same_events() {
    let hash = |seed| {
        let mut disk = disk(seed);
        for round in 0..20 {
            let _ = run(&mut disk, (0..8).map(|at| write(at * 4096, round)).chain([flush()]));
        }
        disk.world.borrow().trace.hash()
    };
    assert_eq!(hash(5), hash(5));
    assert_ne!(hash(5), hash(6));
}

#[test]
fn a_member_is_exchanged_with_nothing_in_flight_and_begins_anew() {
    let mut disk = disk(1);
    assert!(run(&mut disk, [write(0, 7)]).iter().all(|done| done.result.is_ok()));
    disk.vanish(SLOT);
    assert!(run(&mut disk, [write(0, 8)]).iter().all(|done| done.result.is_err()));
    assert_eq!(disk.struck(), MemberSet::EMPTY.with(SLOT));
    disk.submit(write(0, 9));
    assert!(disk.is_busy(SLOT) && !disk.is_busy(MemberIndex(1)));
    let _ = run(&mut disk, []);
    let before = disk.put(SLOT, Some(Member::zeroed(Bytes(4 << 20)))).expect("there was one");
    assert_eq!(before.current().sector(Bytes(0))[0], 7);
    assert_eq!(disk.struck(), MemberSet::EMPTY, "another one has failed nothing");
    assert_eq!(read(&mut disk, 0), [0; LEN]);
    assert!(run(&mut disk, [write(0, 5)]).iter().all(|done| done.result.is_ok()));
    assert_eq!(read(&mut disk, 0), [5; LEN]);
}

#[test]
fn log_devices_fail_by_themselves_and_leave_something_of_their_own() {
    let (log, place) = (LogIndex(0), log_place(LogIndex(0)));
    let one = || Some(Member::zeroed(Bytes(4 << 20)));
    let mut disk = SimDisk::new(Members::of(vec![one()]).with_logs(vec![one()]), Random::new(1), Trace::default());
    let mut succeeds = |faults: [Faults; 2], is_log: bool, kind| {
        disk.set_faults(faults[0]);
        disk.set_log_faults(LogSet::EMPTY.with(log), faults[1]);
        let plain = write(0, 1);
        let member = if is_log { place } else { plain.member };
        run(&mut disk, [DiskOp { member, kind, ..plain }])[0].result.is_ok()
    };
    let none = Faults::default();
    let all = Faults { members: MemberSet::all(64), write_eio: Rate(Rate::OF), ..none };
    assert!(!succeeds([none, all], true, OpKind::Write) && succeeds([none, all], false, OpKind::Write));
    assert!(succeeds([all, none], true, OpKind::WriteFua) && !succeeds([all, none], false, OpKind::Write));
    assert_eq!((disk.struck(), disk.struck_logs()), (MemberSet::EMPTY.with(SLOT), LogSet::EMPTY.with(log)));
    for ending in [Ending::PowerCut, Ending::Kill] {
        let left = disk.leave(ending, &mut Random::new(3));
        assert_eq!(left.get(place).expect("there").current().sector(Bytes(0))[0], 1, "it was durable");
    }
}
