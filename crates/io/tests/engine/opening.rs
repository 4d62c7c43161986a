//! Members that fail while the array is opened: as many as the level survives cost nothing that was acknowledged, and
//! none keeps it from starting.

use rustix::io::Errno;
use uraid_io::array::{Assembled, RecoverError, recover};
use uraid_io::disk::{Fault, MemDisk, OpName, Order};
use uraid_io::engine::{Command, Engine, EngineError};
use uraid_io::format::superblock::{Consistency, SlotState};
use uraid_io::member::Access;
use uraid_layout::{Bytes, Lba, Level, MemberIndex, MemberSet, Placement};

use crate::recovery::{superblock, try_assembled};
use crate::support::{Members, RAID5, RAID6, Random, Shape, block, buf, encoded, noise, rm2, run, size, small, write};

/// What there is of an array after a power cut, and all of its content: every write was acknowledged as durable.
struct Left {
    shape: Shape,
    members: Members,
    content: Vec<u8>,
}

/// An array that was filled and closed, and written to again without `missing`: in place is what chance leaves.
fn left(shape: Shape, missing: MemberSet) -> Left {
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
    let capacity = engine.geometry().capacity().0;
    let mut content = noise(2, capacity);
    write(&mut engine, 0, &content).expect("written");
    drop(run(&mut engine, Command::Flush).expect("flushed"));
    missing.iter().for_each(|member| drop(run(&mut engine, Command::Fail { member }).expect("given up")));
    for (seed, lba) in (10..).zip([0, 24, capacity / 2]) {
        let new = noise(seed, 8);
        content[size(Bytes(lba * 512))..][..new.len()].copy_from_slice(&new);
        drop(run(&mut engine, Command::Write { lba: Lba(lba), buf: buf(&new), fua: true }).expect("written"));
    }
    let mut members = engine.disk().cut(&mut Random(7));
    missing.iter().for_each(|member| members[member.index()] = None);
    Left { shape, members, content }
}

impl Left {
    fn disk(&self) -> MemDisk {
        MemDisk::new(self.members.clone(), Order::Fifo)
    }

    fn open(&self, disk: MemDisk) -> Result<Assembled<MemDisk>, RecoverError> {
        let assembled = try_assembled(disk, &self.members, Access::ReadWrite)?;
        if assembled.needs_recovery() { recover(assembled, |_| ()) } else { Ok(assembled) }
    }

    /// The array opens in spite of what fails on `failing`, has all of its content, and agrees; who is missing then.
    fn assert_opens(&self, disk: MemDisk, failing: MemberSet, context: &str) -> (MemberSet, MemDisk) {
        let assembled = self.open(disk).unwrap_or_else(|error| panic!("{context}: {error}"));
        let given_up: MemberSet = assembled.losses().iter().map(|loss| loss.member).collect();
        let mut engine: Engine<MemDisk, u64> = assembled.into_engine().expect("an engine");
        assert!(read_all(&mut engine) == self.content, "{context}: other content");
        let absent = (0u8..).zip(&self.members).filter(|(_, bytes)| bytes.is_none()).map(|(slot, _)| MemberIndex(slot));
        let absent: MemberSet = absent.collect();
        let missing = engine.missing().minus(absent);
        assert!(missing.minus(failing).is_empty() && given_up.minus(missing).is_empty(), "{context}: {missing:?}");
        let geometry = self.shape.geometry();
        let present = geometry.all_members().minus(engine.missing());
        let expected = encoded(&geometry, &self.content);
        let start = size(self.shape.superblocks()[0].areas.data.offset);
        for member in present.minus(failing).iter() {
            let disk: &MemDisk = engine.disk();
            let bytes = disk.member(member).expect("present");
            let data = &bytes[start..][..expected[member.index()].len()];
            assert!(*data == expected[member.index()], "{context}: member {member} does not agree");
            let states = superblock(bytes).slots.into_iter().map(|slot| slot.state == SlotState::Failed);
            let recorded: MemberSet =
                (0u8..).zip(states).filter(|(_, failed)| *failed).map(|(slot, _)| MemberIndex(slot)).collect();
            assert!(
                given_up.minus(recorded).is_empty(),
                "{context}: {given_up:?} failed, and on record is {recorded:?}"
            );
        }
        let (disk, ..) = engine.into_parts();
        (missing, disk)
    }
}

fn read_all(engine: &mut Engine<MemDisk, u64>) -> Vec<u8> {
    let mut replies = Vec::new();
    engine.submit(0, Command::Read { lba: Lba(0), buf: buf(&vec![0; size(engine.geometry().capacity().bytes())]) });
    while replies.is_empty() || engine.in_flight() > 0 {
        engine.turn(&mut replies).expect("memory does not break");
    }
    replies.remove(0).result.expect("read").expect("its buffer").as_ref().to_vec()
}

fn logged(level: Level, members: u8) -> Shape {
    Shape { chunks: 12, consistency: Consistency::Log, ..small(level, members) }
}

fn all_of(member: u8) -> MemberSet {
    MemberSet::EMPTY.with(MemberIndex(member))
}

fn count(disk: &MemDisk, member: MemberIndex, name: OpName) -> u64 {
    let counters = disk.counters(member);
    match name {
        OpName::Read => counters.reads,
        OpName::Write => counters.writes,
        OpName::Zero => counters.zeroings,
        OpName::Flush => counters.flushes,
    }
}

/// One fault at each operation, once and from then on, of each member, after a crash and after a clean stop.
#[test]
fn whatever_fails_on_one_member_the_array_opens() {
    let shapes = [
        logged(RAID5, 3),
        logged(Level::Raid1, 2),
        logged(Level::Raid10 { copies: 2 }, 4),
        logged(rm2(2, Placement::Adjacent), 5),
        logged(RAID6, 4),
        logged(RAID5, 3).checked(),
    ];
    for shape in shapes {
        let left = left(shape, MemberSet::EMPTY);
        assert_opens_whatever_fails(&left, &[OpName::Read, OpName::Write, OpName::Flush]);
    }
}

fn assert_opens_whatever_fails(left: &Left, names: &[OpName]) {
    let shape = left.shape;
    for member in shape.geometry().all_members().iter() {
        for (&name, times) in names.iter().flat_map(|name| [(name, 1), (name, u64::MAX)]) {
            let mut after = 0;
            loop {
                let context = format!("{shape:?}: {name} {after} of member {member}, {times} times");
                let mut disk = left.disk();
                disk.fail(Fault { member, name, after, count: times, errno: Errno::IO });
                let (_, disk) = left.assert_opens(disk, MemberSet::EMPTY.with(member), &context);
                if count(&disk, member, name) <= after {
                    break;
                }
                after += 1;
            }
            assert!(after > 0, "{shape:?}: member {member} is asked for a {name}");
        }
    }
}

/// Where the records of the log are on a member, and how long they are: the last one that was put there last.
fn records(left: &Left, member: MemberIndex) -> Vec<(Bytes, Bytes)> {
    let bytes = left.members[member.index()].as_ref().expect("present");
    let own = superblock(bytes);
    let log = &bytes[size(own.areas.log.offset)..][..size(own.areas.log.size)];
    let found = (0..log.len()).step_by(4096).filter_map(|at| {
        let (header, _) = uraid_io::format::log::record::decode(&log[at..]).ok()?;
        (header.generation == own.generation).then_some((header.sequence, at as u64, header.total()))
    });
    let mut found: Vec<_> = found.collect();
    found.sort_unstable();
    found.into_iter().map(|(_, at, len)| (Bytes(own.areas.log.offset.0 + at), len)).collect()
}

fn newest_record(left: &Left, member: MemberIndex) -> (Bytes, Bytes) {
    *records(left, member).last().expect("it has a record")
}

/// A block of the ring with nothing that counts: the array was flushed when it was filled, and written three times
/// then, so that of a member's records the last three count at most.
fn stale_block(left: &Left, member: MemberIndex) -> Bytes {
    let area = superblock(left.members[member.index()].as_ref().expect("present")).areas.log;
    let records = records(left, member);
    let counts = |at: u64| {
        let mut newest = records.iter().rev().take(3);
        newest.any(|(first, len)| (first.0..first.0 + len.0).contains(&at))
    };
    let mut blocks = (0..area.size.0 / 4096).rev().map(|block| area.offset.0 + block * 4096);
    Bytes(blocks.find(|&at| !counts(at)).expect("a ring has room for more"))
}

#[test]
fn an_unreadable_part_of_the_log_that_holds_nothing_costs_nothing() {
    for shape in [logged(RAID5, 4), logged(Level::Raid1, 2), logged(rm2(2, Placement::Adjacent), 5)] {
        let left = left(shape, MemberSet::EMPTY);
        for member in shape.geometry().all_members().iter() {
            let mut disk = left.disk();
            disk.spoil(member, stale_block(&left, member), Bytes(512));
            let (missing, _) = left.assert_opens(disk, MemberSet::EMPTY, &format!("{shape:?}, member {member}"));
            assert!(missing.is_empty(), "{shape:?}: nothing that counts was on member {member}");
        }
    }
}

#[test]
fn a_member_whose_log_may_have_held_more_is_given_up() {
    for shape in [logged(RAID5, 3), logged(Level::Raid1, 2), logged(rm2(2, Placement::Adjacent), 5)] {
        let left = left(shape, MemberSet::EMPTY);
        for member in shape.geometry().all_members().iter() {
            let (at, len) = newest_record(&left, member);
            for block in (0..len.0).step_by(4096) {
                let mut disk = left.disk();
                disk.spoil(member, Bytes(at.0 + block), Bytes(512));
                let context = format!("{shape:?}, member {member}, byte {block} of its newest record");
                let (missing, _) = left.assert_opens(disk, MemberSet::EMPTY.with(member), &context);
                // Of some the newest record is in place.
                assert!(missing.is_empty() || missing == MemberSet::EMPTY.with(member), "{context}");
            }
        }
    }
}

/// Without the parity's member a write is on one member alone. When that can't read its log, nobody else knows of the
/// write.
#[test]
fn what_only_an_unreadable_log_can_tell_is_not_guessed() {
    let shape = logged(RAID5, 3);
    let mut refused = 0;
    for absent in 0..3 {
        let left = left(shape, all_of(absent));
        for member in shape.geometry().all_members().without(MemberIndex(absent)).iter() {
            for at in [newest_record(&left, member).0, stale_block(&left, member)] {
                let mut disk = left.disk();
                disk.spoil(member, at, Bytes(512));
                match left.open(disk) {
                    Err(RecoverError::Needed { source, .. }) => {
                        assert_eq!(source.op().member, member);
                        refused += 1;
                    }
                    Err(error) => panic!("without member {absent}, byte {at} of member {member}: {error}"),
                    Ok(_) => panic!(
                        "without member {absent}, byte {at} of member {member}: it can't be known what was there"
                    ),
                }
            }
        }
    }
    assert_eq!(refused, 12);
}

/// A record that only two members took part in, and neither can read.
#[test]
fn two_members_that_cannot_read_their_logs_are_both_given_up() {
    let shape = logged(rm2(2, Placement::Adjacent), 5);
    let left = left(shape, MemberSet::EMPTY);
    for (one, other) in [(0, 1), (1, 3), (2, 4)] {
        let mut disk = left.disk();
        for member in [one, other].map(MemberIndex) {
            disk.spoil(member, stale_block(&left, member), Bytes(512));
        }
        let failing = all_of(one).with(MemberIndex(other));
        let (missing, _) = left.assert_opens(disk, failing, &format!("members {one} and {other}"));
        assert_eq!(missing, failing);
    }
}

#[test]
fn a_superblock_that_can_not_be_read_is_written_anew() {
    for consistency in [Consistency::Log, Consistency::Bitmap] {
        let shape = Shape { consistency, ..logged(RAID5, 3) };
        let left = left(shape, MemberSet::EMPTY);
        for member in (0..3).map(MemberIndex) {
            let [head, _] = superblock(left.members[member.index()].as_ref().expect("present")).write_positions();
            let mut disk = left.disk();
            disk.spoil(member, head, Bytes(512));
            let (missing, disk) = left.assert_opens(disk, MemberSet::EMPTY, &format!("{consistency:?}, {member}"));
            assert!(missing.is_empty() && !disk.is_spoilt(member), "{consistency:?}: member {member}");
        }
    }
}

fn mirrors() -> [Shape; 3] {
    let bitmap = |level, members| Shape { consistency: Consistency::Bitmap, ..logged(level, members) };
    [
        bitmap(Level::Raid1, 2),
        bitmap(Level::Raid1, 3),
        Shape { consistency: Consistency::None, ..bitmap(Level::Raid10 { copies: 2 }, 5) },
    ]
}

/// As after a log: of copies that are computed again one member may fail in any way.
#[test]
fn whatever_fails_on_one_copy_the_array_opens() {
    for shape in mirrors() {
        let left = left(shape, MemberSet::EMPTY);
        assert_opens_whatever_fails(&left, &[OpName::Read, OpName::Write, OpName::Flush]);
    }
}

/// What parity is computed from must be read; whoever fails to take it is given up in the end.
#[test]
fn whoever_fails_to_take_parity_is_given_up_when_it_is_complete() {
    for level in [RAID5, rm2(2, Placement::Adjacent)] {
        let left = left(Shape { consistency: Consistency::Bitmap, ..logged(level, 5) }, MemberSet::EMPTY);
        assert_opens_whatever_fails(&left, &[OpName::Write, OpName::Flush]);
    }
}

/// A bad sector on each of the copies, at different places.
#[test]
fn what_one_copy_lacks_is_taken_from_another() {
    for shape in mirrors() {
        let left = left(shape, MemberSet::EMPTY);
        let start = superblock(left.members[0].as_ref().expect("present")).areas.data.offset.0;
        let mut disk = left.disk();
        let members = shape.geometry().all_members();
        for member in members.iter() {
            disk.spoil(member, Bytes(start + u64::from(member.0) * 4096 + 512), Bytes(512));
        }
        let (missing, disk) = left.assert_opens(disk, MemberSet::EMPTY, &format!("{shape:?}"));
        assert!(missing.is_empty(), "{shape:?}");
        // Only what is read of a stripe is found.
        assert!(!disk.is_spoilt(MemberIndex(0)), "{shape:?}: what was found was written back");
    }
}

/// The same of the copies that are left, where the one that is read first is missing.
#[test]
fn what_one_copy_of_a_degraded_mirror_lacks_is_taken_from_another() {
    for consistency in [Consistency::Bitmap, Consistency::None] {
        let shape = Shape { consistency, ..mirrors()[1] };
        let first = MemberSet::EMPTY.with(MemberIndex(0));
        let left = left(shape, first);
        let start = superblock(left.members[1].as_ref().expect("present")).areas.data.offset.0;
        let mut disk = left.disk();
        for slot in [1, 2] {
            disk.spoil(MemberIndex(slot), Bytes(start + u64::from(slot) * 4096 + 512), Bytes(512));
        }
        let (missing, disk) = left.assert_opens(disk, MemberSet::EMPTY, "two copies");
        assert!(missing.is_empty(), "nobody else is given up: {missing:?}");
        assert!(!disk.is_spoilt(MemberIndex(1)), "what was found was written back");
    }
}

/// A sector that takes what is written, and does not give it back.
#[test]
fn what_was_written_back_is_read_again() {
    let shape = mirrors()[0];
    let left = left(shape, MemberSet::EMPTY);
    let member = MemberIndex(0);
    // The last that is read of it is its data.
    let sound = left.open(left.disk()).expect("nothing fails").into_engine::<u64>().expect("an engine");
    let after = count(sound.disk(), member, OpName::Read) - 1;
    let mut disk = left.disk();
    disk.fail(Fault { member, name: OpName::Read, after, count: u64::MAX, errno: Errno::IO });
    let assembled = left.open(disk).expect("the other copy is there");
    assert_eq!(
        assembled.losses().iter().map(|loss| loss.member).collect::<Vec<_>>(),
        [member],
        "found while it is opened"
    );
}

/// What only parity could give, where parity may be wrong, is not made up; all else is there.
#[test]
fn data_is_not_computed_from_parity_that_may_be_wrong() {
    let shape = Shape { consistency: Consistency::Bitmap, ..logged(RAID5, 4) };
    let left = left(shape, MemberSet::EMPTY);
    let geometry = shape.geometry();
    for lba in [0, 24 + 3, geometry.capacity().0 / 2] {
        let at = geometry.locate(Lba(lba));
        let start = superblock(left.members[0].as_ref().expect("present")).areas.data.offset.0;
        let mut disk = left.disk();
        disk.spoil(at.member, Bytes(start + at.sector.0 * 512), Bytes(512));
        let assembled = left.open(disk).expect("the rest is there");
        let mut engine: Engine<MemDisk, u64> = assembled.into_engine().expect("an engine");
        let lost = lba / 8 * 8;
        assert_eq!(engine.lost().to_vec(), [Lba(lost)..Lba(lost + 8)]);
        for at in (0..geometry.capacity().0).step_by(8) {
            match block(&mut engine, at) {
                Ok(bytes) => assert!(at != lost && bytes == left.content[size(Bytes(at * 512))..][..4096], "{at}"),
                Err(error) => assert!(at == lost && matches!(error, EngineError::Unreadable { .. }), "{at}: {error}"),
            }
        }
    }
}

/// The message names the path and what failed, and nothing is written.
#[test]
fn a_member_that_the_array_needs_is_named() {
    let shape = logged(Level::Raid0, 3);
    let left = left(shape, MemberSet::EMPTY);
    let mut disk = left.disk();
    disk.fail(Fault { member: MemberIndex(1), name: OpName::Flush, after: 0, count: 1, errno: Errno::IO });
    let error = left.open(disk).expect_err("RAID 0 needs every member").to_string();
    assert!(error.starts_with("member1: member 1: flush") && error.contains("RAID 0 needs this member"), "{error}");
}

/// What is read of an array that is not to be written is the same without a member whose log can't be read.
#[test]
fn reading_only_goes_on_without_a_member_whose_log_fails() {
    for shape in [logged(RAID5, 3), logged(Level::Raid1, 2), logged(rm2(2, Placement::Adjacent), 5)] {
        let left = left(shape, MemberSet::EMPTY);
        for member in shape.geometry().all_members().iter() {
            let mut disk = left.disk();
            disk.spoil(member, newest_record(&left, member).0, Bytes(512));
            let assembled = try_assembled(disk, &left.members, Access::ReadOnly).expect("opened");
            let mut engine: Engine<MemDisk, u64> = assembled.into_engine().expect("an engine");
            assert!(read_all(&mut engine) == left.content, "{shape:?} without member {member}");
            let untouched = shape.geometry().all_members().iter().all(|member| {
                engine.disk().counters(member).writes == 0 && engine.disk().counters(member).flushes == 0
            });
            assert!(untouched, "nothing is written");
        }
    }
}
