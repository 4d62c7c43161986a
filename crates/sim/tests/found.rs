//! What runs from seeds have found, each as small as it can be.

use uraid_io::array::{Assembled, judge};
use uraid_io::buf::Buf;
use uraid_io::disk::Disk as _;
use uraid_io::engine::{Command, Engine, EngineError};
use uraid_io::member::Access;
use uraid_io::superblock::{Areas, Consistency, Integrity, MEMBER_MIN, Superblock};
use uraid_layout::{Bytes, Lba, Level, MemberIndex, MemberSet, Sectors, Spec};
use uraid_sim::disk::{Fault, Planned, SimDisk};
use uraid_sim::random::Random;
use uraid_sim::trace::Trace;
use uraid_sim::{Members, disk::Ending};
use uuid::Uuid;

fn members(level: Level, consistency: Consistency) -> Members {
    let uuid = |number: u8| Uuid::from_bytes([number; 16]);
    let spec = Spec { level, members: 2, chunk: Bytes(4096), member_size: Sectors(64) };
    let areas = Areas::new(MEMBER_MIN, Bytes(0), Integrity::None).expect("large enough");
    let superblocks = Superblock::of_new_array(uuid(99), spec, &[(uuid(1), areas), (uuid(2), areas)]);
    let superblocks = superblocks.into_iter().map(|new| Superblock { consistency, ..new });
    Members::new(&superblocks.collect::<Vec<_>>())
}

fn open(members: &Members) -> (SimDisk, Assembled<SimDisk>) {
    let disk = SimDisk::new(members.clone(), Random::new(1), Trace::default());
    let candidates = members.candidates();
    let verdict = judge(&candidates).expect("an array");
    assert_eq!(verdict.missing(), MemberSet::EMPTY);
    let generation = Uuid::from_bytes([7; 16]);
    let array = Assembled::new(disk.clone(), &verdict, &candidates, Access::ReadWrite, generation).expect("it opens");
    let array = if array.needs_recovery() { array.recover(|_| {}).expect("it recovers") } else { array };
    (disk, array)
}

fn engine(array: Assembled<SimDisk>) -> Engine<SimDisk, ()> {
    array.into_engine().expect("it is whole")
}

fn run(engine: &mut Engine<SimDisk, ()>, command: Command) -> Result<Option<Buf>, EngineError> {
    engine.submit((), command);
    let mut replies = Vec::new();
    loop {
        engine.turn(&mut replies).expect("the power stays on");
        if let Some(reply) = replies.pop() {
            return reply.result;
        }
        engine.disk_mut().wait().expect("the power stays on");
    }
}

fn write(engine: &mut Engine<SimDisk, ()>, lba: u64, value: u8) -> Result<(), EngineError> {
    let mut buf = Buf::zeroed(Bytes(4096));
    buf.as_mut().fill(value);
    run(engine, Command::Write { lba: Lba(lba), buf, fua: false }).map(drop)
}

/// A program that is killed leaves its mark that the members are clean in their caches. The next one must not build on it before it is durable:
/// a power cut would take two rounds at once from some members, and only one or none from others, and those would be set aside as stale.
#[test]
fn a_clean_mark_is_durable_before_the_next_round_begins() {
    let (disk, array) = open(&members(Level::Raid1, Consistency::None));
    let mut engine = engine(array);
    write(&mut engine, 0, 1).expect("written");
    // The mark is written; the flushes that follow are not waited for.
    let hang = |slot, index| Planned { member: MemberIndex(slot), index, fault: Fault::Hang, lasts: true };
    for slot in 0..2 {
        disk.plan(hang(slot, disk.count(MemberIndex(slot)) + 3));
    }
    engine.submit((), Command::Close);
    while engine.turn(&mut Vec::new()).is_ok() && engine.disk_mut().wait().is_ok() {}
    let killed = disk.leave(Ending::Kill, &mut Random::new(2));
    assert!(killed.superblocks().all(|(_, superblock)| superblock.expect("sound").is_clean), "the mark is visible");

    let (disk, array) = open(&killed);
    drop(array);
    let durable = disk.members().cut(|_, _| 0);
    assert!(durable.superblocks().all(|(_, superblock)| superblock.expect("sound").is_clean), "and now durable");
}

/// Without redundancy a record that did not reach a member stays uncommitted. Were others to follow it, recovery would take it for one that was
/// committed and lost, and refuse the array.
#[test]
fn nothing_is_logged_after_a_record_that_a_member_of_a_raid0_lacks() {
    let (disk, array) = open(&members(Level::Raid0, Consistency::Log));
    let mut engine = engine(array);
    write(&mut engine, 0, 1).expect("written");
    let slot = MemberIndex(1);

    disk.plan(Planned { member: slot, index: disk.count(slot), fault: Fault::Eio, lasts: false });
    let across = |engine: &mut _| {
        let mut buf = Buf::zeroed(Bytes(8192));
        buf.as_mut().fill(2);
        run(engine, Command::Write { lba: Lba(0), buf, fua: false })
    };
    for _ in 0..2 {
        let error = across(&mut engine).expect_err("a member lacks the record");
        assert!(matches!(error, EngineError::LogFailed { .. }), "{error}");
    }
    drop(engine);
    for seed in 0..50 {
        let (_, array) = open(&disk.leave(Ending::PowerCut, &mut Random::new(seed)));
        assert!(!array.needs_recovery());
    }
}
