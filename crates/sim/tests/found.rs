//! What runs from seeds have found, each as small as it can be.

use uraid_io::array::{Assembled, judge, recover};
use uraid_io::buf::Buf;
use uraid_io::disk::Disk as _;
use uraid_io::engine::{Command, Engine, EngineError};
use uraid_io::format::superblock::{Areas, Consistency, Integrity, MEMBER_MIN, Superblock};
use uraid_io::member::Access;
use uraid_layout::{Bytes, Lba, Level, MemberIndex, Rotation, Sectors, Spec};
use uraid_random::Random;
use uraid_sim::disk::{Fault, Planned, SimDisk};
use uraid_sim::trace::Trace;
use uraid_sim::{Members, disk::Ending};
use uuid::Uuid;

fn members(level: Level, consistency: Consistency) -> Members {
    members_of(level, 2, consistency, Integrity::None)
}

fn members_of(level: Level, count: u8, consistency: Consistency, integrity: Integrity) -> Members {
    let uuid = |number: u8| Uuid::from_bytes([number; 16]);
    let spec = Spec { level, members: count, chunk: Bytes(4096), member_size: Sectors(64) };
    let areas = Areas::new(MEMBER_MIN, Bytes(0), integrity).expect("large enough");
    let members: Vec<(Uuid, Areas)> = (1..=count).map(|number| (uuid(number), areas)).collect();
    let superblocks = Superblock::of_new_array(uuid(99), spec, &members).into_iter();
    Members::new(&superblocks.map(|new| Superblock { consistency, integrity, ..new }).collect::<Vec<_>>())
}

fn open(members: &Members) -> (SimDisk, Assembled<SimDisk>) {
    open_for(members, Access::ReadWrite)
}

fn open_for(members: &Members, access: Access) -> (SimDisk, Assembled<SimDisk>) {
    let disk = SimDisk::new(members.clone(), Random::new(1), Trace::default());
    let candidates = members.candidates();
    let verdict = judge(&candidates).expect("an array");
    let generation = Uuid::from_bytes([7; 16]);
    let array = Assembled::new(disk.clone(), &verdict, &candidates, access, generation).expect("it opens");
    let array = if array.needs_recovery() { recover(array, |_| {}).expect("it recovers") } else { array };
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

fn read(engine: &mut Engine<SimDisk, ()>, lba: u64) -> Result<Vec<u8>, EngineError> {
    let buf = run(engine, Command::Read { lba: Lba(lba), buf: Buf::zeroed(Bytes(4096)) })?;
    Ok(buf.expect("a read gives its memory back").as_ref().to_vec())
}

fn write(engine: &mut Engine<SimDisk, ()>, lba: u64, value: u8) -> Result<(), EngineError> {
    write_block(engine, lba, value, false)
}

fn write_block(engine: &mut Engine<SimDisk, ()>, lba: u64, value: u8, fua: bool) -> Result<(), EngineError> {
    let mut buf = Buf::zeroed(Bytes(4096));
    buf.as_mut().fill(value);
    run(engine, Command::Write { lba: Lba(lba), buf, fua }).map(drop)
}

/// A program that is killed leaves its mark that the members are clean in their caches. The next one must not build on
/// it before it is durable: a power cut would take two rounds at once from some members, and only one or none from
/// others, and those would be set aside as stale.
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

/// Without redundancy a record that did not reach a member stays uncommitted. Were others to follow it, recovery would
/// take it for one that was committed and lost, and refuse the array.
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

/// Two copies on three members: of units 0, 1, 2 on members 0 and 1, 2 and 0, 1 and 2. Without member 0, and with
/// member 1 holding something else everywhere, the copies on member 2 are still good, though not every unit can be had.
#[test]
fn a_good_copy_is_read_though_other_units_can_not_be_had() {
    let members = members_of(Level::Raid10 { copies: 2 }, 3, Consistency::Log, Integrity::Crc32);
    let (disk, array) = open(&members);
    let mut writer = engine(array);
    for unit in 0..6 {
        write(&mut writer, unit * 8, 1 + unit as u8).expect("written");
    }
    run(&mut writer, Command::Close).expect("closed");
    drop(writer);

    let mut left =
        disk.leave(Ending::PowerCut, &mut Random::new(1)).only([1, 2].into_iter().map(MemberIndex).collect());
    let member = left.get_mut(MemberIndex(1)).expect("there");
    let data = member.superblock().expect("sound").areas.data.offset.0;
    for block in 0..8 {
        member.rot(Bytes(data + block * 4096 + 512), 7, 1);
    }
    let (_, array) = open(&left);
    let mut engine = engine(array);
    for unit in 0..6 {
        let found = read(&mut engine, unit * 8);
        if unit % 3 == 0 {
            assert!(matches!(found, Err(EngineError::Unreadable { .. })), "unit {unit}: {found:?}");
        } else {
            assert_eq!(found.expect("member 2 has it"), vec![1 + unit as u8; 4096], "unit {unit}");
        }
    }
}

/// What a log has and is not in place yet has its checksum in place neither: what is computed of a member that can't be
/// read is not held against it.
#[test]
fn content_from_the_log_is_not_held_against_an_older_checksum() {
    let level = Level::Raid5 { rotation: Rotation::LeftSymmetric };
    let members = members_of(level, 3, Consistency::Log, Integrity::Crc32);
    let (disk, array) = open(&members);
    let mut writer = engine(array);
    write(&mut writer, 0, 1).expect("written");
    run(&mut writer, Command::Close).expect("closed");
    drop(writer);
    let (disk, array) = open(&disk.leave(Ending::PowerCut, &mut Random::new(1)));
    let mut writer = engine(array);
    write_block(&mut writer, 0, 2, true).expect("written");
    // The record was flushed, what is in place was not.
    let left = disk.members().cut(|_, _| 0);

    for slot in (0..3).map(MemberIndex) {
        let (disk, array) = open_for(&left, Access::ReadOnly);
        let mut engine = engine(array);
        // The table is read first, then content.
        disk.plan(Planned { member: slot, index: disk.count(slot) + 1, fault: Fault::Eio, lasts: true });
        assert!(read(&mut engine, 0).expect("the others have it") == vec![2; 4096], "without member {slot}");
    }
}
