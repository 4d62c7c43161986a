//! After an unclean stop: what is computed again, and that it can be cut off anywhere and begun again.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use uraid_io::Error;
use uraid_io::array::{self, Assembled, Candidate, LostList, RecoverError, judge, recovery_bytes};
use uraid_io::buf::Buf;
use uraid_io::disk::{Completion, Disk, DiskOp, Image, MemDisk, OpKind, Order};
use uraid_io::engine::{Command, Engine};
use uraid_io::format::bitmap::{Bitmap, RegionId, Regions};
use uraid_io::format::superblock::{Area, Superblock, decode, newest, positions};
use uraid_io::member::Access;
use uraid_layout::{Bytes, Lba, Level, Location, MemberIndex, MemberSet, Sectors};
use uuid::Uuid;

use crate::intent::{REGION, mirrors, shapes};
use crate::support::watch::Watch;
use crate::support::{self, Members, Random, SECTOR, Shape, buf, encoded, images, noise, run, size, write};

pub(crate) fn superblock(bytes: &[u8]) -> Superblock {
    let positions = positions(Bytes(bytes.len() as u64)).expect("large enough");
    newest(positions.map(|position| decode(&bytes[size(position)..][..4096]))).expect("a superblock")
}

pub(crate) fn assembled<D: Disk>(disk: D, members: &Members) -> Assembled<D> {
    try_assembled(disk, members, Access::ReadWrite).expect("memory does not fail")
}

pub(crate) fn try_assembled<D: Disk>(disk: D, members: &Members, access: Access) -> Result<Assembled<D>, RecoverError> {
    assembled_with(disk, members, access, LostList::Refused)
}

pub(crate) fn assembled_with<D: Disk>(
    disk: D,
    members: &Members,
    access: Access,
    lost_list: LostList,
) -> Result<Assembled<D>, RecoverError> {
    let candidate = |(slot, bytes): (usize, &Image)| Candidate {
        path: PathBuf::from(format!("member{slot}")),
        superblock: superblock(bytes),
    };
    let present = members.iter().enumerate().filter_map(|(slot, bytes)| Some((slot, bytes.as_ref()?)));
    let candidates: Vec<Candidate> = present.map(candidate).collect();
    let verdict = judge(&candidates).expect("an array");
    Assembled::with_lists(disk, &verdict, &candidates, access, Uuid::from_bytes([5; 16]), lost_list)
}

/// The bits that are set on any of the members.
fn marked(shape: &Shape, members: &Members) -> Bitmap {
    let regions = Regions::new(&shape.geometry());
    let mut all = Bitmap::empty(regions);
    for bytes in members.iter().flatten() {
        let superblock = superblock(bytes);
        let area = &bytes[size(superblock.areas.bitmap.offset)..][..size(regions.bitmap_bytes())];
        all.unite(&Bitmap::decode(regions, superblock.seal().expect("the array has a bitmap"), area));
    }
    all
}

/// Members that count what is read of their data.
struct Tally {
    inner: MemDisk,
    data: Area,
    read: u64,
}

impl Disk for Tally {
    fn submit(&mut self, op: DiskOp) {
        let is_data = op.offset >= self.data.offset && self.data.end().is_some_and(|end| op.offset < end);
        if op.kind == OpKind::Read && is_data {
            self.read += op.len().0;
        }
        self.inner.submit(op);
    }

    fn kick(&mut self) -> Result<(), Error> {
        self.inner.kick()
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.inner.reap(completions);
    }

    fn wait(&mut self) -> Result<(), Error> {
        self.inner.wait()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

/// Brings an array into agreement, and gives what is read of its members' data for that; its content is read through
/// the engine then, and compared with what the members hold.
fn recover(shape: &Shape, members: &Members, context: &str) -> (u64, Vec<u8>) {
    let data = shape.superblocks()[0].areas.data;
    let disk = Tally { inner: MemDisk::new(members.clone(), Order::Fifo), data, read: 0 };
    let assembled = assembled(disk, members);
    let is_dirty = assembled.needs_recovery();
    let assembled = if is_dirty { array::recover(assembled, |_| ()).expect("memory does not fail") } else { assembled };
    assert!(!assembled.needs_recovery(), "{context}");
    let mut engine: Engine<Tally, u64> = assembled.into_engine().expect("an engine");
    let geometry = shape.geometry();
    let read = engine.disk().read;
    let mut replies = Vec::new();
    engine.submit(0, Command::Read { lba: Lba(0), buf: Buf::zeroed(geometry.capacity().bytes()) });
    while replies.is_empty() {
        engine.turn(&mut replies).expect("memory does not break");
    }
    let content = replies.remove(0).result.expect("read").expect("its buffer").as_ref().to_vec();
    for (member, expected) in geometry.all_members().iter().zip(encoded(&geometry, &content)) {
        let start = size(shape.superblocks()[0].areas.data.offset);
        let data = &engine.disk().inner.member(member).expect("present")[start..][..expected.len()];
        let differs = data.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{context}: member {member} does not agree at that byte of its data");
    }
    (read, content)
}

/// Puts other bytes in place of what a member has of some sectors of its data, as a write that did not reach it leaves
/// them.
fn disturb(shape: &Shape, members: &mut Members, member: usize, sector: u64, sectors: u64) {
    let start = size(shape.superblocks()[0].areas.data.offset) + size(Sectors(sector).bytes());
    let bytes = members[member].as_mut().expect("present");
    bytes[start..][..size(Sectors(sectors).bytes())].copy_from_slice(&noise(77, sectors));
}

/// Where no log says what was under way, redundancy follows from the data, whatever is on the members.
#[test]
fn redundancy_is_computed_from_the_data() {
    for shape in support::shapes().into_iter().filter(|shape| shape.level != Level::Raid0) {
        let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
        let capacity = engine.geometry().capacity();
        write(&mut engine, 0, &noise(1, capacity.0)).expect("written");
        let mut left = images(&engine);
        for member in 0..left.len() {
            disturb(&shape, &mut left, member, 1 + member as u64, 5);
        }
        let start = size(shape.superblocks()[0].areas.data.offset);
        let data = (0..capacity.0).flat_map(|lba| {
            let Location { member, sector } = engine.geometry().locate(Lba(lba));
            let at = start + size(Sectors(sector.0).bytes());
            &left[member.index()].as_ref().expect("present")[at..at + SECTOR]
        });
        let data: Vec<u8> = data.copied().collect();
        let (_, content) = recover(&shape, &left, &format!("{shape:?}"));
        assert!(content == data, "{shape:?}: data is not changed");
    }
}

#[test]
fn only_marked_regions_are_read_and_made_equal() {
    for touched in [&[][..], &[1], &[0, 7], &[2, 3, 4, 6]] {
        let shape = mirrors();
        let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
        for &region in touched {
            write(&mut engine, region * REGION + 5, &noise(region, 8)).expect("written");
        }
        let mut left = images(&engine);
        for &region in touched {
            disturb(&shape, &mut left, 1, region * REGION + 2000, 8);
        }
        let (read, content) = recover(&shape, &left, &format!("{touched:?}"));
        assert_eq!(read, (touched.len() as u64) * (1 << 20), "{touched:?}");
        for &region in touched {
            let at = size(Sectors(region * REGION + 5).bytes());
            assert!(content[at..at + 8 * SECTOR] == noise(region, 8), "{touched:?}: what was written is there");
        }
    }
}

/// What was computed again need not be after the next unclean stop, and what was quiet before neither.
#[test]
fn bits_do_not_outlive_their_reason() {
    let shape = mirrors();
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
    write(&mut engine, REGION, &noise(1, 8)).expect("written");
    let assembled = assembled(MemDisk::new(images(&engine), Order::Fifo), &images(&engine));
    assert_eq!(recovery_bytes(&assembled), Bytes(1 << 20));
    let mut engine: Engine<MemDisk, u64> =
        array::recover(assembled, |_| ()).expect("recovered").into_engine().expect("an engine");
    engine.submit(1, Command::Write { lba: Lba(6 * REGION), buf: buf(&noise(2, 8)), fua: true });
    let mut replies = Vec::new();
    while replies.is_empty() {
        engine.turn(&mut replies).expect("memory does not break");
    }
    let left = (0..2).map(|member| engine.disk().member(MemberIndex(member)).cloned()).collect();
    assert_eq!(marked(&shape, &left).iter().collect::<Vec<_>>(), [RegionId(6)]);
    assert_eq!(recover(&shape, &left, "again").0, 1 << 20);
}

#[test]
fn bitmaps_that_can_not_be_trusted_stand_for_everything() {
    let shape = mirrors();
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
    write(&mut engine, REGION, &noise(1, 8)).expect("written");
    let at = size(shape.superblocks()[0].areas.bitmap.offset);
    for bad in 0..2 {
        let mut left = images(&engine);
        left[bad].as_mut().expect("present")[at + 20] ^= 1;
        disturb(&shape, &mut left, 1, 6 * REGION, 8);
        assert_eq!(recover(&shape, &left, "damaged").0, 8 << 20);
    }
}

/// Whoever was missing keeps its bits, also when the array is stopped and opened again without it.
#[test]
fn what_a_missing_member_lacks_stays_marked() {
    let shape = mirrors();
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
    write(&mut engine, 0, &noise(1, 8)).expect("written");
    run(&mut engine, Command::Close).expect("closed");
    let mut left = images(&engine);
    left[1] = None;
    for (region, expected) in [(3, vec![0, 3]), (5, vec![0, 3, 5])] {
        let assembled = assembled(MemDisk::new(left.clone(), Order::Fifo), &left);
        let mut engine: Engine<MemDisk, u64> = assembled.into_engine().expect("an engine");
        engine.submit(1, Command::Write { lba: Lba(region * REGION), buf: buf(&noise(2, 8)), fua: true });
        let mut replies = Vec::new();
        while replies.is_empty() {
            engine.turn(&mut replies).expect("memory does not break");
        }
        engine.submit(2, Command::Close);
        engine.turn(&mut replies).expect("memory does not break");
        left[0] = engine.disk().member(MemberIndex(0)).cloned();
        assert_eq!(superblock(left[0].as_ref().expect("present")).is_clean, replies.len() == 2);
        assert_eq!(marked(&shape, &left).iter().map(|region| region.0).collect::<Vec<_>>(), expected);
    }
}

/// A power cut at any moment of a run under load.
#[test]
fn every_cut_of_a_run_is_recovered_from_what_is_marked() {
    let mut is_partial = false;
    for (index, shape) in (0..).zip(shapes()) {
        for seed in 0..8 {
            let context = format!("{shape:?}, seed {seed}");
            let mut random = Random(index * 100 + seed);
            let mut engine = shape.engine(MemberSet::EMPTY, Order::Seeded(seed));
            let capacity = engine.geometry().capacity().0;
            let steps = random.below(400);
            let mut replies = Vec::new();
            for step in 0..steps {
                if engine.in_flight() < 8 {
                    let len = 1 + random.below(40);
                    let lba = Lba(random.below(capacity - len));
                    engine.submit(step, Command::Write { lba, buf: buf(&noise(step, len)), fua: random.below(6) == 0 });
                }
                (0..random.below(20)).for_each(|_| engine.tick());
                engine.disk_mut().allow_reaps(1);
                engine.turn(&mut replies).expect("memory does not break");
            }
            let left = engine.disk().cut(&mut random);
            let is_clean = left.iter().flatten().all(|bytes| superblock(bytes).is_clean);
            let marked = marked(&shape, &left);
            let stripes = marked.iter().map(|region| marked.regions().stripes(region));
            let stripes: u64 = stripes.map(|stripes| stripes.end.0 - stripes.start.0).sum();
            is_partial |= !is_clean && marked.len() < marked.regions().count();
            let content = stripes * shape.geometry().stripe_sectors().bytes().0;
            let expected = if is_clean { 0 } else { content };
            let (read, content) = recover(&shape, &left, &context);
            // The last stripe of some arrays is not whole.
            assert!(read <= expected && read + (1 << 20) > expected, "{context}: {read} bytes read, not {expected}");
            assert_eq!(content.len() as u64, Sectors(capacity).bytes().0);
        }
    }
    assert!(is_partial, "some have only a part to do");
}

/// The members of an array that lose power after some operations.
pub(crate) struct Cut {
    pub(crate) watch: Rc<RefCell<Watch>>,
    pub(crate) left: usize,
}

impl Disk for Cut {
    fn submit(&mut self, op: DiskOp) {
        if self.left > 0 {
            self.left -= 1;
            self.watch.borrow_mut().submit(op);
        }
    }

    fn kick(&mut self) -> Result<(), Error> {
        self.watch.borrow_mut().kick()
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        self.watch.borrow_mut().reap(completions);
    }

    fn wait(&mut self) -> Result<(), Error> {
        if self.left == 0 {
            return Err(Error::OldKernel { release: "none: the power is off".into() });
        }
        self.watch.borrow_mut().wait()
    }

    fn in_flight(&self) -> usize {
        self.watch.borrow().in_flight()
    }
}

/// Recovery is cut off after each of its operations, and begun again; in between any sectors are lost that are not
/// durable.
#[test]
fn recovery_can_be_cut_off_anywhere() {
    for (index, shape) in (0..).zip(shapes()) {
        let shape = Shape { chunks: 300, ..shape };
        let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
        let lba = engine.geometry().capacity().0 - 100;
        // The last region is still marked while the first is worked on.
        write(&mut engine, 0, &noise(2, 8)).expect("written");
        write(&mut engine, lba, &noise(1, 50)).expect("written");
        let mut random = Random(index);
        let mut left = images(&engine);
        // Somewhere in the last region.
        disturb(&shape, &mut left, 0, shape.geometry().used_sectors().0 - 40, 24);
        let mut cut = 0;
        loop {
            let context = format!("{shape:?}, cut off after {cut} operations");
            let used = shape.geometry().used_sectors().bytes();
            let disk = MemDisk::new(left.clone(), Order::Seeded(cut as u64));
            let watch = Watch::new(disk, shape.members, shape.superblocks()[0].areas, used);
            let watch = Rc::new(RefCell::new(watch));
            // What comes before the recovery itself: superblocks are read, written and flushed, copy by copy; bitmaps
            // and lists of bad blocks are read.
            let free = 10 * usize::from(shape.members);
            let disk = Cut { watch: Rc::clone(&watch), left: free + cut };
            let ended = array::recover(assembled(disk, &left), |_| ());
            let is_over = ended.is_ok();
            drop(ended);
            recover(&shape, &watch.borrow().cut(&mut random), &context);
            if is_over {
                break;
            }
            cut += 1 + cut / 12;
        }
        assert!(cut > 20, "{shape:?}: it takes more than {cut} operations");
    }
}
