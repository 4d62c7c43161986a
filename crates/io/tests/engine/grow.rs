//! Arrays that grow after their members were enlarged, and power cuts at each of the operations that this takes.

use std::collections::BTreeSet;
use std::ops::Range;

use rustix::io::Errno;
use uraid_io::Error;
use uraid_io::array::{self, GrowError};
use uraid_io::buf::Buf;
use uraid_io::disk::{Completion, Disk, DiskOp, Fault, Image, MemDisk, OpKind, OpName, Order};
use uraid_io::engine::{Command, Engine};
use uraid_io::format::superblock::{Areas, Consistency};
use uraid_layout::{Bytes, DiskSector, Lba, Level, Location, MemberIndex, MemberSet, Placement, Sectors};

use uuid::Uuid;

use crate::blank::initialise;
use crate::recovery::{assembled, superblock};
use crate::support::watch::Watch;
use crate::support::{
    Members, RAID5, Random, SECTOR, Shape, TestEngine, buf, encoded, images, noise, read, rm2, run, shapes, size,
    small, write,
};

/// What the members get: several regions of a map of blank regions, some chunks, and what is none.
const MORE: usize = (5 << 20) + 40 * 4096 + 1024;

/// The members of an array, which lose power after some operations. Each takes effect at once, and is durable after the
/// next flush.
pub(crate) struct Power {
    inner: MemDisk,
    pub(crate) durable: Vec<Image>,
    /// Of each member, the bytes that were written since its last flush.
    written: Vec<Vec<Range<usize>>>,
    left: usize,
    done: usize,
    completions: Vec<Completion>,
}

impl Power {
    pub(crate) fn new(members: &Members, left: usize) -> Self {
        let durable = members.iter().map(|bytes| bytes.clone().expect("all are there")).collect();
        let inner = MemDisk::new(members.clone(), Order::Fifo);
        Self { inner, durable, written: vec![Vec::new(); members.len()], left, done: 0, completions: Vec::new() }
    }

    /// What is left when the power goes: of what is not durable, any sectors.
    pub(crate) fn cut(&self, random: &mut Random) -> Members {
        let one = |(index, (durable, written)): (u8, (&Image, &Vec<Range<usize>>))| {
            let now = self.inner.member(MemberIndex(index)).expect("present");
            let mut bytes = durable.clone();
            let sectors: BTreeSet<usize> =
                written.iter().flat_map(|range| range.start / SECTOR..range.end.div_ceil(SECTOR)).collect();
            for at in sectors.into_iter().map(|sector| sector * SECTOR) {
                if random.below(2) != 0 {
                    bytes.write(at, &now[at..at + SECTOR]);
                }
            }
            Some(bytes)
        };
        (0..).zip(self.durable.iter().zip(&self.written)).map(one).collect()
    }
}

impl Disk for &mut Power {
    fn submit(&mut self, op: DiskOp) {
        let (kind, member) = (op.kind, op.member);
        let range = size(op.offset)..size(op.offset) + size(op.len());
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        self.done += 1;
        self.inner.submit(op);
        self.inner.kick().expect("memory does not break");
        let Power { inner, completions, durable, written, .. } = &mut **self;
        inner.reap(completions);
        let written = &mut written[member.index()];
        match kind {
            OpKind::Read => {}
            OpKind::Write | OpKind::WriteFua | OpKind::Zero { .. } => written.push(range),
            OpKind::Flush => {
                let now = inner.member(member).expect("present");
                for range in written.drain(..) {
                    durable[member.index()][range.clone()].copy_from_slice(&now[range]);
                }
            }
        }
    }

    fn kick(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.completions);
    }

    fn wait(&mut self) -> Result<(), Error> {
        if self.left == 0 {
            return Err(Error::OldKernel { release: "none: the power is off".into() });
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.completions.len()
    }
}

/// A clean array that is full, whose members got more room since, with anything in it; and its content.
fn enlarged(shape: Shape) -> (Members, Vec<u8>) {
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
    let content = noise(3, engine.geometry().capacity().0);
    write(&mut engine, 0, &content).expect("written");
    drop(run(&mut engine, Command::Close).expect("closed"));
    let geometry = shape.geometry();
    let more = |member: MemberIndex| {
        let mut bytes = engine.disk().inner.member(member).expect("present").clone();
        let data = size(shape.superblocks()[0].areas.data.offset);
        for sector in (0..geometry.used_sectors().0).map(DiskSector) {
            if geometry.owner(Location { member, sector }).is_none() {
                bytes.write(data + size(Sectors(sector.0).bytes()), &[0xA5; SECTOR]);
            }
        }
        let len = bytes.len();
        bytes.resize(len + MORE);
        bytes.write(len, &noise(member.0.into(), MORE as u64 / 512 + 1)[..MORE]);
        Some(bytes)
    };
    (geometry.all_members().iter().map(more).collect(), content)
}

fn sizes(members: &Members) -> Vec<Option<Bytes>> {
    members.iter().map(|bytes| bytes.as_ref().map(|bytes| Bytes(bytes.len() as u64))).collect()
}

/// Asserts that the array has this content, then zeros, and that its members agree; gives its size.
fn assert_holds(members: &Members, content: &[u8], context: &str) -> Sectors {
    let disk = MemDisk::new(members.clone(), Order::Fifo);
    let opened = assembled(disk, members);
    assert!(!opened.needs_recovery(), "{context}: it was clean");
    let mut engine: Engine<MemDisk, u64> = opened.into_engine().expect("an engine");
    assert!(engine.missing().is_empty(), "{context}");
    let (geometry, mut replies) = (engine.geometry().clone(), Vec::new());
    engine.submit(0, Command::Read { lba: Lba(0), buf: Buf::zeroed(geometry.capacity().bytes()) });
    while replies.is_empty() {
        engine.turn(&mut replies).expect("memory does not break");
    }
    let found = replies.remove(0).result.expect("read").expect("its buffer").as_ref().to_vec();
    assert!(found[..content.len()] == *content, "{context}: what was there is there");
    assert!(found[content.len()..].iter().all(|&byte| byte == 0), "{context}: and zeros");
    initialise(&mut engine);
    for (member, expected) in geometry.all_members().iter().zip(encoded(&geometry, &found)) {
        let bytes = engine.disk().member(member).expect("present");
        let data = &bytes[size(superblock(bytes).areas.data.offset)..][..expected.len()];
        let is_used = |sector: u64| geometry.owner(Location { member, sector: DiskSector(sector) }).is_some();
        let mut sectors = (0..).zip(data.chunks(SECTOR).zip(expected.chunks(SECTOR)));
        let differs = sectors.find(|&(sector, (found, expected))| found != expected && is_used(sector));
        assert!(differs.is_none(), "{context}: member {member} does not agree at that sector of its data: {differs:?}");
    }
    geometry.capacity()
}

/// Lets the array grow; what is left of its members.
fn grow(members: &Members, used: Option<Bytes>, left: usize, random: &mut Random) -> (Result<(), GrowError>, Members) {
    let mut power = Power::new(members, left);
    let grown = array::grow(assembled(&mut power, members), &sizes(members), used).map(drop);
    (grown, power.cut(random))
}

fn cases() -> Vec<Shape> {
    let consistent = |shape: Shape, consistency| Shape { consistency, ..shape };
    let mut cases: Vec<Shape> = shapes()
        .into_iter()
        .filter(|shape| !matches!(shape.level, Level::Rm2 { placement: Placement::Partitioned, .. }))
        .collect();
    cases.push(consistent(small(Level::Raid1, 2), Consistency::Bitmap));
    cases.push(consistent(small(Level::Raid10 { copies: 2 }, 5), Consistency::Bitmap));
    cases.push(consistent(small(RAID5, 4), Consistency::Log));
    cases.push(small(RAID5, 3).checked());
    cases.push(small(rm2(3, Placement::Adjacent), 7).checked());
    cases
}

#[test]
fn every_level_grows_into_what_its_members_have() {
    for shape in cases() {
        let context = format!("{shape:?}");
        let (members, content) = enlarged(shape);
        let mut random = Random(1);
        let (grown, after) = grow(&members, None, usize::MAX, &mut random);
        grown.expect("grown");
        let capacity = assert_holds(&after, &content, &context);
        // The members of these arrays have their data at 1 or 2 MiB, and 64 KiB are free behind the last superblock.
        let own = superblock(after[0].as_ref().expect("present"));
        let larger = members[0].as_ref().expect("present").len() as u64;
        let room = larger / 4096 * 4096 - (64 << 10) - own.areas.data.offset.0;
        assert_eq!(own.spec.member_size.bytes(), Bytes(room), "{context}");
        assert!(capacity.bytes().0 > content.len() as u64, "{context}");
        assert_eq!(own.areas.member_size, Bytes(larger), "{context}");
        let is_new = (content.len() as u64) < capacity.bytes().0 && own.blank.is_some();
        assert!(is_new, "{context}: what it got is blank: {:?}", own.blank);
        // Written to its end it survives what it did before, and it can't grow again.
        let shape = Shape { chunks: room / shape.chunk, ..shape };
        let areas = own.areas;
        let (full, tolerance) = (noise(8, capacity.0), shape.geometry().tolerance());
        let mut engine = reopened(&shape, &after, areas);
        write(&mut engine, 0, &full).expect("written");
        if tolerance > 0 {
            drop(run(&mut engine, Command::Fail { member: MemberIndex(1) }).expect("given up"));
        }
        assert!(read(&mut engine, 0, capacity.0).expect("read") == full, "{context}");
        let (again, _) = grow(&after, None, usize::MAX, &mut random);
        assert!(matches!(again, Err(GrowError::Nothing { .. })), "{context}: {again:?}");
    }
}

fn reopened(shape: &Shape, members: &Members, areas: Areas) -> TestEngine {
    let used = shape.geometry().used_sectors().bytes();
    let watch = Watch::new(MemDisk::new(members.clone(), Order::Fifo), shape.members, areas, used);
    assembled(watch, members).into_engine().expect("an engine")
}

#[test]
fn the_power_goes_at_each_operation() {
    let shapes = [
        Shape { consistency: Consistency::Bitmap, ..small(Level::Raid10 { copies: 2 }, 5) },
        Shape { consistency: Consistency::Log, ..small(RAID5, 3) },
        small(rm2(2, Placement::Adjacent), 5).checked(),
    ];
    for (index, shape) in (0..).zip(shapes) {
        let (members, content) = enlarged(shape);
        let mut random = Random(index);
        let (mut old, mut new) = (0, 0);
        let old_size = shape.geometry().capacity();
        let mut power = Power::new(&members, usize::MAX);
        drop(assembled(&mut power, &members));
        let opening = power.done;
        for left in (0..).step_by(2) {
            let context = format!("{shape:?}, cut after {left} operations");
            let (grown, after) = grow(&members, None, opening + left, &mut random);
            let capacity = assert_holds(&after, &content, &context);
            if capacity == old_size {
                old += 1;
                assert!(grown.is_err(), "{context}");
                let (again, after) = grow(&after, None, usize::MAX, &mut random);
                again.expect("grown");
                assert!(assert_holds(&after, &content, &context) > old_size, "{context}");
            } else {
                new += 1;
            }
            if grown.is_ok() {
                break;
            }
        }
        assert!(old > 5 && new > 1, "{shape:?}: {old} were as before, {new} had grown");
    }
}

#[test]
fn what_can_not_grow_stays_as_it_is() {
    let mut random = Random(1);
    let shape = small(RAID5, 3);
    let (members, content) = enlarged(shape);
    let used = shape.spec().member_size.bytes();
    let refused = |members: &Members, used: Option<u64>, random: &mut Random| {
        let (grown, after) = grow(members, used.map(Bytes), usize::MAX, random);
        assert_eq!(assert_holds(&after, &content, "refused"), shape.geometry().capacity());
        grown.expect_err("refused")
    };
    let error = refused(&members, Some(used.0 - 4096), &mut random);
    assert!(matches!(error, GrowError::Shrinks { .. }), "{error}");
    let error = refused(&members, Some(8 << 30), &mut random);
    assert!(matches!(error, GrowError::NoRoom { by_sums: false, .. }), "{error}");
    let error = refused(&members, Some(used.0), &mut random);
    assert!(matches!(error, GrowError::Nothing { .. }), "{error}");
    // By a part.
    let (grown, after) = grow(&members, Some(Bytes(used.0 + 3 * 4096)), usize::MAX, &mut random);
    grown.expect("grown");
    assert_eq!(assert_holds(&after, &content, "in part"), Sectors((9 + 3) * 2 * 8));
    let (partitioned, _) = enlarged(small(rm2(3, Placement::Partitioned), 7));
    let (grown, _) = grow(&partitioned, None, usize::MAX, &mut random);
    assert!(matches!(grown, Err(GrowError::Unsuited { .. })), "{grown:?}");
    // One that was not stopped cleanly.
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
    drop(run(&mut engine, Command::Write { lba: Lba(0), buf: buf(&content[..4096]), fua: true }).expect("written"));
    let dirty: Members = images(&engine);
    let (grown, _) = grow(&dirty, None, usize::MAX, &mut random);
    assert!(matches!(grown, Err(GrowError::Dirty)), "{grown:?}");
}

/// An array that is served pauses, grows, and goes on: its content is there, what is new is zeros and can be written,
/// and after a crash all of that is so.
#[test]
fn an_array_grows_while_it_is_served() {
    for shape in cases() {
        let context = format!("{shape:?}");
        let (mut members, mut content) = enlarged(shape);
        for bytes in members.iter_mut().flatten() {
            // What filled it has left records of the same run, as all tests have one.
            let log = superblock(bytes).areas.log;
            bytes[size(log.offset)..][..size(log.size)].fill(0);
        }
        let mut engine: Engine<MemDisk, u64> =
            assembled(MemDisk::new(members.clone(), Order::Fifo), &members).into_engine().expect("an engine");
        let before = engine.geometry().capacity();
        // More records than what comes after.
        for seed in 70..78 {
            let new = noise(seed, 8);
            on(&mut engine, Command::Write { lba: Lba(8), buf: buf(&new), fua: true });
            content[8 * SECTOR..][..new.len()].copy_from_slice(&new);
        }
        let sizes = sizes(&members);
        let foreseen = array::check_growth(&engine, &sizes, None).expect("it can grow");
        let early = array::grow_served(&mut engine, &sizes, None, Uuid::from_u128(5));
        assert!(matches!(early, Err(GrowError::Dirty)), "{context}: {early:?}");
        on(&mut engine, Command::Close);
        let written = engine.counters().total().written_bytes;
        array::grow_served(&mut engine, &sizes, None, Uuid::from_u128(5)).expect("grown");
        // What is blank is not made meanwhile: the log is not to be full of that.
        engine.set_initialise_limit(Some(Bytes(1)));
        assert_eq!(engine.counters().total().written_bytes, written, "{context}: what was counted stays");
        let capacity = engine.geometry().capacity();
        assert!(capacity > before && capacity == foreseen.capacity(), "{context}");
        content.resize(size(capacity.bytes()), 0);
        // What is new is written last: its region is made then, which fills the log.
        for (lba, seed) in [(8, 78), (capacity.0 - 8, 79)] {
            let new = noise(seed, 8);
            on(&mut engine, Command::Write { lba: Lba(lba), buf: buf(&new), fua: true });
            content[size(Bytes(lba * 512))..][..new.len()].copy_from_slice(&new);
            assert!(all(&mut engine) == content, "{context}");
            // The power goes.
            let left: Members =
                (0..shape.members).map(|slot| engine.disk().member(MemberIndex(slot)).cloned()).collect();
            let opened = assembled(MemDisk::new(left.clone(), Order::Fifo), &left);
            let is_torn = opened.needs_recovery();
            let opened = if is_torn { array::recover(opened, |_| ()).expect("recovered") } else { opened };
            assert!(all(&mut opened.into_engine().expect("an engine")) == content, "{context}: after a crash");
        }
        let again = array::check_growth(&engine, &sizes, None);
        assert!(matches!(again, Err(GrowError::Nothing { .. })), "{context}: {again:?}");
    }
}

fn all(engine: &mut Engine<MemDisk, u64>) -> Vec<u8> {
    let buf = Buf::zeroed(engine.geometry().capacity().bytes());
    on(engine, Command::Read { lba: Lba(0), buf }).expect("its buffer").as_ref().to_vec()
}

/// Nothing is written of an array that lacks a member, or in which one is being rebuilt.
#[test]
fn an_array_that_is_not_whole_does_not_grow_while_it_is_served() {
    let shape = Shape { consistency: Consistency::Log, ..small(RAID5, 3) };
    let (members, content) = enlarged(shape);
    let mut engine: Engine<MemDisk, u64> =
        assembled(MemDisk::new(members.clone(), Order::Fifo), &members).into_engine().expect("an engine");
    on(&mut engine, Command::Fail { member: MemberIndex(0) });
    on(&mut engine, Command::Close);
    let written = engine.disk().member(MemberIndex(1)).expect("present").clone();
    for grown in [
        array::check_growth(&engine, &sizes(&members), None).map(drop),
        array::grow_served(&mut engine, &sizes(&members), None, Uuid::from_u128(5)),
    ] {
        assert!(matches!(grown, Err(GrowError::NotWhole { missing }) if missing.contains(MemberIndex(0))), "{grown:?}");
    }
    assert!(engine.disk().member(MemberIndex(1)) == Some(&written), "nothing is written");
    let read = Command::Read { lba: Lba(0), buf: Buf::zeroed(Bytes(content.len() as u64)) };
    assert!(on(&mut engine, read).expect("its buffer").as_ref() == content, "it goes on");
}

/// A member that fails while the array grows ends it: nothing is written any more, and the next opening finds an array
/// that is as large as before or larger, with all that it held.
#[test]
fn a_member_that_fails_while_the_array_grows_ends_it() {
    let shape = Shape { consistency: Consistency::Log, ..small(RAID5, 3) };
    let (members, content) = enlarged(shape);
    let (mut old, mut new) = (0, 0);
    for (name, after) in
        [OpName::Write, OpName::Flush].into_iter().flat_map(|name| (0..).take(200).map(move |n| (name, n)))
    {
        let mut engine: Engine<MemDisk, u64> =
            assembled(MemDisk::new(members.clone(), Order::Fifo), &members).into_engine().expect("an engine");
        on(&mut engine, Command::Close);
        let fault = Fault { member: MemberIndex(1), name, after, count: u64::MAX, errno: Errno::IO };
        engine.disk_mut().fail(fault);
        let grown = array::grow_served(&mut engine, &sizes(&members), None, Uuid::from_u128(5));
        let Err(error) = grown else { continue };
        assert!(matches!(error, GrowError::Member(_)), "{name:?} {after}: {error}");
        let mut replies = Vec::new();
        engine.submit(0, Command::Write { lba: Lba(0), buf: buf(&noise(9, 8)), fua: true });
        while replies.is_empty() {
            engine.turn(&mut replies).expect("memory does not break");
        }
        assert!(replies.remove(0).result.is_err(), "{name:?} {after}: it goes on");
        let left: Members = (0..shape.members).map(|slot| engine.disk().member(MemberIndex(slot)).cloned()).collect();
        let capacity = assert_holds(&left, &content, &format!("{name:?} {after}"));
        *if capacity == shape.geometry().capacity() { &mut old } else { &mut new } += 1;
    }
    assert!(old > 3 && new > 0, "{old} were as before, {new} had grown");
}

/// Has an engine do something; what it replies.
fn on(engine: &mut Engine<MemDisk, u64>, command: Command) -> Option<Buf> {
    let mut replies = Vec::new();
    engine.submit(0, command);
    while replies.is_empty() || engine.in_flight() > 0 {
        engine.turn(&mut replies).expect("memory does not break");
    }
    replies.remove(0).result.expect("done")
}
