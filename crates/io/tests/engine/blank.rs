//! New arrays whose members hold anything: regions are blank until they are written, and are zeros to clients.

use std::cell::RefCell;
use std::rc::Rc;

use uraid_io::array::{GrowError, grow, recover};
use uraid_io::disk::{Disk, Image, MemDisk, Order};
use uraid_io::engine::{CacheMode, Command, Engine, ScrubStatus, Troubles};
use uraid_io::format::Epoch;
use uraid_io::format::bitmap::{Bitmap, RegionId};
use uraid_io::format::superblock::{
    Allocation, Blank, Consistency, Integrity, ScrubFound, ScrubHistory, ScrubMode, ScrubRun, Superblock, encode,
};
use uraid_io::member::Access;
use uraid_layout::{
    Bytes, Cell, DiskSector, Lba, Level, Location, MemberIndex, MemberSet, Placement, Sectors, StripeId,
};

use crate::rebuild::{assert_whole, fail, logged, new_member, redundant};
use crate::recovery::{Cut, assembled, superblock, try_assembled};
use crate::replace::{assert_replaced, replacement};
use crate::support::watch::Watch;
use crate::support::{
    Members, RAID5, Random, Shape, TestEngine, assert_encoded, block, buf, encoded, images, noise, read, rm2, run,
    size, small, tolerated, with_cache, write,
};

/// Regions are of one stripe.
const BLANK: Blank = Blank { since: Epoch(1), shift: 0, allocation: Allocation::Full };

/// Where the map is on a member: `docs/on-disk-format.md`.
const MAP_START: usize = 96 << 10;

/// The members of a new array, which hold anything where it will have content; `made` are the stripes that are not
/// blank, by member.
fn new(shape: &Shape, made: impl Fn(MemberIndex) -> Vec<u32>) -> Members {
    let member = |own: Superblock| {
        let mut image = Image::zeroed(size(own.areas.member_size));
        let (data, geometry) = (size(own.areas.data.offset), shape.geometry());
        let held = noise(70 + u64::from(own.slot.0), geometry.used_sectors().0);
        for (sector, held) in (0..).map(DiskSector).zip(held.chunks(512)) {
            // Of what the array does not use the encoder knows that it is zero.
            let cell = geometry.cell_at(Location { member: own.slot, sector });
            if cell.is_some_and(|(stripe, cell, _)| geometry.uses(stripe, cell)) {
                image.write(data + size(Bytes(sector.0 * 512)), held);
            }
        }
        put_map(&mut image, &own, &made(own.slot));
        for position in own.write_positions() {
            image.write(size(position), &encode(&own));
        }
        Some(image)
    };
    shape.superblocks().into_iter().map(|own| member(Superblock { blank: Some(BLANK), ..own })).collect()
}

fn put_map(image: &mut Image, own: &Superblock, made: &[u32]) {
    let (seal, regions) = own.blank_map().expect("it has one");
    let mut map = Bitmap::empty(regions);
    made.iter().for_each(|&region| assert!(map.insert(RegionId(region))));
    let block = map.encode(seal, 0);
    image.write(MAP_START, block.as_ref());
}

/// Opens members; nothing becomes zeros by itself.
fn opened(shape: &Shape, members: &Members) -> TestEngine {
    let used = shape.geometry().used_sectors().bytes();
    let areas = shape.superblocks()[0].areas;
    let watch = Watch::new(MemDisk::new(members.clone(), Order::Fifo), shape.members, areas, used);
    opened_on(watch, members)
}

fn opened_on<D: Disk>(disk: D, members: &Members) -> Engine<D, u64> {
    let assembled = assembled(disk, members);
    let is_torn = assembled.needs_recovery();
    let assembled = if is_torn { recover(assembled, |_| ()).expect("recovered") } else { assembled };
    let mut engine = assembled.into_engine().expect("an engine");
    engine.set_initialise_limit(Some(Bytes(1)));
    engine
}

fn new_engine(shape: &Shape) -> TestEngine {
    opened(shape, &new(shape, |_| Vec::new()))
}

/// One of each level, kept consistent in every way.
fn every() -> impl Iterator<Item = Shape> {
    let rotates =
        |shape: &Shape| matches!(shape.level, Level::Raid5 { .. }) && (shape.level != RAID5 || shape.members > 3);
    let redundant = redundant().filter(move |shape| !rotates(shape)).flat_map(|shape| {
        let bitmap = Shape { consistency: Consistency::Bitmap, ..shape };
        [shape, logged(shape), bitmap, shape.checked()]
    });
    let striped = small(Level::Raid0, 4);
    redundant.chain([striped, logged(striped), striped.checked()])
}

fn read_all(engine: &mut TestEngine) -> Vec<u8> {
    let capacity = engine.geometry().capacity().0;
    read(engine, 0, capacity).expect("read")
}

/// Lets time pass until nothing is blank.
pub(crate) fn initialise<D: Disk>(engine: &mut Engine<D, u64>) {
    engine.set_initialise_limit(None);
    for _ in 0..1000 {
        if engine.initialising().is_none() {
            break;
        }
        engine.tick();
        engine.turn(&mut Vec::new()).expect("memory does not break");
    }
    let mut replies = Vec::new();
    engine.submit(0, Command::Flush);
    while replies.is_empty() {
        engine.turn(&mut replies).expect("memory does not break");
    }
    replies.remove(0).result.expect("flushed");
    assert!(engine.initialising().is_none(), "{:?}", engine.initialising());
}

/// What members hold in the stripes that are not blank is what the encoder says.
fn assert_encoded_in(engine: &TestEngine, content: &[u8], stripes: &[u64], context: &str) {
    let geometry = engine.geometry();
    let expected = encoded(geometry, content);
    for &stripe in stripes {
        for cell in (0..u16::try_from(geometry.map(StripeId(stripe)).cells()).expect("few")).map(Cell) {
            let member = geometry.member(cell);
            if !geometry.uses(StripeId(stripe), cell) || engine.missing().contains(member) {
                continue;
            }
            let at = size(Bytes(geometry.sector(StripeId(stripe), cell).0 * 512));
            let data = &engine.disk().data(member, at + 4096)[at..];
            assert!(data == &expected[member.index()][at..at + 4096], "{context}: stripe {stripe}, member {member}");
        }
    }
}

#[test]
fn a_new_array_is_zeros_until_it_is_written_and_then_by_and_by() {
    for shape in every() {
        for cache in [None, Some((CacheMode::WriteBack, 64)), Some((CacheMode::WriteThrough, 64))] {
            let context = format!("{shape:?}, {cache:?}");
            let (mut engine, _pool) = with_cache(new_engine(&shape), cache);
            let stripe = engine.geometry().stripe_sectors().0;
            let mut content = vec![0; size(engine.geometry().capacity().bytes())];
            assert!(read_all(&mut engine) == content, "{context}: nothing was written");
            assert_eq!(engine.counters().total().read_bytes, 0, "{context}: nor is anything read");
            let step = if shape.integrity == Integrity::None { 1 } else { 8 };
            let new = noise(7, step);
            write(&mut engine, stripe, &new).expect("written");
            content[size(Bytes(stripe * 512))..][..new.len()].copy_from_slice(&new);
            drop(run(&mut engine, Command::Flush).expect("flushed"));
            assert!(read_all(&mut engine) == content, "{context}");
            assert_encoded_in(&engine, &content, &[1], &context);
            let progress = engine.initialising().expect("the rest is blank");
            assert_eq!((progress.done.0, progress.total.0), (stripe, engine.geometry().capacity().0), "{context}");
            let reopened = opened(&shape, &images(&engine));
            assert_eq!(reopened.initialising().expect("the same is blank").done, progress.done, "{context}");
            initialise(&mut engine);
            assert!(read_all(&mut engine) == content, "{context}");
            assert_encoded(&engine, &content, &context);
            drop(run(&mut engine, Command::Close).expect("closed"));
            let newest = engine.disk().newest();
            assert_eq!(newest.blank, None, "{context}");
            assert!(opened(&shape, &images(&engine)).initialising().is_none(), "{context}");
        }
    }
}

#[test]
fn whoever_is_lost_of_a_new_array_what_was_written_is_there_and_the_rest_is_zeros() {
    for shape in every() {
        for lost in tolerated(&shape.geometry()) {
            let context = format!("{shape:?}, {lost:?}");
            let mut engine = new_engine(&shape);
            let stripe = engine.geometry().stripe_sectors().0;
            let mut content = vec![0; size(engine.geometry().capacity().bytes())];
            for (lba, seed) in [(stripe - 8, 5), (2 * stripe + 8, 6)] {
                let new = noise(seed, 16);
                write(&mut engine, lba, &new).expect("written");
                content[size(Bytes(lba * 512))..][..new.len()].copy_from_slice(&new);
            }
            lost.iter().for_each(|member| drop(run(&mut engine, fail(member)).expect("given up")));
            assert!(read_all(&mut engine) == content, "{context}");
            let new = noise(9, 8);
            write(&mut engine, 0, &new).expect("written without them");
            content[..new.len()].copy_from_slice(&new);
            assert!(read_all(&mut engine) == content, "{context}");
            for slot in lost.iter() {
                let join = new_member(&mut engine, &shape, slot, slot.0);
                drop(run(&mut engine, join).expect("joined"));
            }
            assert_whole(&engine, &context);
            assert!(read_all(&mut engine) == content, "{context}: after a rebuild");
            initialise(&mut engine);
            assert_encoded(&engine, &content, &context);
        }
    }
}

fn trim(len: Sectors) -> Command {
    Command::WriteZeroes { lba: Lba(0), len, fua: true, may_punch: true }
}

/// Zeros are there already: nothing is written for them, and no region becomes a member's business.
#[test]
fn zeros_and_trims_of_what_is_blank_cost_nothing() {
    for shape in every() {
        let context = format!("{shape:?}");
        let mut engine = new_engine(&shape);
        let (stripe, capacity) = (engine.geometry().stripe_sectors().0, engine.geometry().capacity());
        drop(run(&mut engine, trim(capacity)).expect("trimmed"));
        let zero =
            Command::WriteZeroes { lba: Lba(8), len: Sectors(capacity.0 / 16 * 8), fua: false, may_punch: false };
        drop(run(&mut engine, zero).expect("zeroed"));
        assert_eq!(engine.counters().total().written_bytes, 0, "{context}");
        // What is not blank becomes zeros.
        write(&mut engine, stripe, &noise(4, 8)).expect("written");
        drop(run(&mut engine, trim(capacity)).expect("trimmed"));
        assert!(read_all(&mut engine).iter().all(|&byte| byte == 0), "{context}");
        assert_eq!(engine.initialising().expect("the rest is blank").done.0, stripe, "{context}");
    }
}

/// Neither a scrub, nor a rebuild or a copy, reads or writes what is blank.
#[test]
fn sweeps_pass_over_what_is_blank() {
    for shape in every() {
        let context = format!("{shape:?}");
        let mut engine = new_engine(&shape);
        engine.start_scrub(ScrubMode::Repair, StripeId(0)).expect("started");
        drop(run(&mut engine, Command::Flush).expect("flushed"));
        let scrub = engine.scrub().expect("there is one").clone();
        assert!(!scrub.is_running && scrub.mismatched.0 == 0, "{context}: {scrub:?}");
        if engine.geometry().tolerance() > 0 {
            drop(run(&mut engine, fail(MemberIndex(0))).expect("given up"));
            let join = new_member(&mut engine, &shape, MemberIndex(0), 7);
            drop(run(&mut engine, join).expect("joined"));
            assert_whole(&engine, &context);
        }
        let replace = replacement(&mut engine, &shape, MemberIndex(1), 1);
        drop(run(&mut engine, replace).expect("begun"));
        assert_replaced(&engine, MemberIndex(1), 1, &context);
        let total = engine.counters().total();
        assert_eq!((total.read_bytes, total.written_bytes), (0, 0), "{context}");
        let content = vec![0; size(engine.geometry().capacity().bytes())];
        assert!(read_all(&mut engine) == content, "{context}");
    }
}

fn mirrors() -> [Shape; 2] {
    let shape = small(Level::Raid1, 2);
    [Shape { consistency: Consistency::Bitmap, ..shape }, logged(shape)]
}

/// All others are gone: what a member says alone counts.
fn assert_alone(members: &Members, slot: MemberIndex, content: &[u8], context: &str) {
    let alone: Members =
        (0..).map(MemberIndex).zip(members).map(|(at, bytes)| bytes.clone().filter(|_| at == slot)).collect();
    let mut engine = opened_on(MemDisk::new(alone.clone(), Order::Fifo), &alone);
    assert_eq!(engine.missing().len() + 1, members.len(), "{context}");
    for lba in (0..engine.geometry().capacity().0).step_by(8) {
        let expected = &content[size(Bytes(lba * 512))..][..4096];
        assert!(block(&mut engine, lba).expect("read") == expected, "{context}: sector {lba} of member {slot} alone");
    }
}

#[test]
fn a_member_that_was_rebuilt_or_copied_has_the_map() {
    for shape in mirrors() {
        for is_copy in [false, true] {
            let context = format!("{shape:?}, {is_copy}");
            let mut engine = new_engine(&shape);
            let mut content = vec![0; size(engine.geometry().capacity().bytes())];
            let new = noise(3, 8);
            write(&mut engine, 16, &new).expect("written");
            content[16 * 512..][..new.len()].copy_from_slice(&new);
            let slot = MemberIndex(1);
            if is_copy {
                let replace = replacement(&mut engine, &shape, slot, 1);
                drop(run(&mut engine, replace).expect("begun"));
                assert_replaced(&engine, slot, 1, &context);
            } else {
                drop(run(&mut engine, fail(slot)).expect("given up"));
                let join = new_member(&mut engine, &shape, slot, 1);
                drop(run(&mut engine, join).expect("joined"));
                assert_whole(&engine, &context);
            }
            drop(run(&mut engine, Command::Close).expect("closed"));
            assert_alone(&images(&engine), slot, &content, &context);
        }
    }
}

/// The power went while the map was written: one member has it, and what is written from then on is on both.
#[test]
fn what_one_member_says_all_say_when_the_array_is_opened() {
    for shape in mirrors() {
        let context = format!("{shape:?}");
        let mut members = new(&shape, |slot| if slot == MemberIndex(0) { vec![2] } else { Vec::new() });
        // Its zeros are durable everywhere.
        let at = size(Bytes(shape.superblocks()[0].areas.data.offset.0 + 2 * 4096));
        members.iter_mut().flatten().for_each(|bytes| bytes[at..at + 4096].fill(0));
        let mut engine = opened(&shape, &members);
        let mut content = vec![0; size(engine.geometry().capacity().bytes())];
        let new = noise(3, 8);
        drop(run(&mut engine, Command::Write { lba: Lba(16), buf: buf(&new), fua: true }).expect("written"));
        content[16 * 512..][..new.len()].copy_from_slice(&new);
        let left = engine.disk().cut(&mut Random(5));
        assert_alone(&left, MemberIndex(1), &content, &context);
    }
}

/// A map that a member can't give is the others'; one that nobody gives says that nothing is blank: content counts.
#[test]
fn a_damaged_map_loses_no_content() {
    for shape in [logged(small(RAID5, 3)), small(rm2(2, Placement::Adjacent), 5)] {
        let context = format!("{shape:?}");
        let mut engine = new_engine(&shape);
        let (stripe, new) = (engine.geometry().stripe_sectors().0, noise(3, 8));
        write(&mut engine, stripe, &new).expect("written");
        drop(run(&mut engine, Command::Close).expect("closed"));
        let mut content = vec![0; size(engine.geometry().capacity().bytes())];
        content[size(Bytes(stripe * 512))..][..new.len()].copy_from_slice(&new);
        let mut left = images(&engine);
        for (slot, bytes) in left.clone().iter().enumerate() {
            let mut some = left.clone();
            some[slot].as_mut().expect("present")[MAP_START + 20] ^= 1;
            assert!(read_all(&mut opened(&shape, &some)) == content, "{context}: member {slot} is damaged");
            assert!(bytes.is_some());
        }
        left.iter_mut().flatten().for_each(|bytes| bytes[MAP_START + 20] ^= 1);
        let mut engine = opened(&shape, &left);
        assert!(engine.initialising().is_none(), "{context}: nobody knows what is blank");
        assert!(read(&mut engine, stripe, 8).expect("read") == new, "{context}: what was written is there");
        assert_eq!(engine.missing(), MemberSet::EMPTY);
    }
}

/// A new array whose map is damaged on all members, which hold anything in what was blank; some of it was written.
fn damaged(shape: &Shape) -> (Members, Vec<u8>) {
    let mut engine = new_engine(shape);
    let (stripe, new) = (engine.geometry().stripe_sectors().0, noise(3, 8));
    write(&mut engine, stripe, &new).expect("written");
    drop(run(&mut engine, Command::Close).expect("closed"));
    let mut left = images(&engine);
    left.iter_mut().flatten().for_each(|bytes| bytes[MAP_START + 20] ^= 1);
    (left, new)
}

fn closed(mut engine: TestEngine) -> Members {
    drop(run(&mut engine, Command::Close).expect("closed"));
    images(&engine)
}

fn scrubbed(engine: &mut TestEngine, mode: ScrubMode) -> ScrubStatus {
    engine.start_scrub(mode, StripeId(0)).expect("started");
    to_its_end(engine)
}

fn to_its_end(engine: &mut TestEngine) -> ScrubStatus {
    while engine.scrub().is_some_and(|scrub| scrub.is_running) || engine.in_flight() > 0 {
        engine.turn(&mut Vec::new()).expect("memory does not break");
        engine.tick();
    }
    engine.scrub().expect("there was one").clone()
}

/// Nobody knows then where members agree: it stays on record until a scrub has made parity what the data says.
#[test]
fn a_map_that_nobody_has_leaves_a_scrub_owed_until_one_repairs() {
    for shape in every() {
        let context = format!("{shape:?}");
        let (left, new) = damaged(&shape);
        let engine = opened(&shape, &left);
        assert!(engine.scrub_record().is_owed, "{context}");
        // The map is whole from now on, and tells nothing of it.
        let mut engine = opened(&shape, &closed(engine));
        engine.set_max_errors(Some(1));
        assert!(engine.scrub_record().is_owed, "{context}: when it is opened again");
        let content = read_all(&mut engine);
        let status = scrubbed(&mut engine, ScrubMode::Check);
        assert!(engine.scrub_record().is_owed, "{context}: it repaired nothing");
        assert_eq!(status.mismatched.0 > 0, engine.geometry().tolerance() > 0, "{context}: {status:?}");
        engine.start_scrub(ScrubMode::Repair, StripeId(1)).expect("started");
        let _ = to_its_end(&mut engine);
        assert!(engine.scrub_record().is_owed, "{context}: it did not compare everything");
        let status = scrubbed(&mut engine, ScrubMode::Repair);
        assert!(!engine.scrub_record().is_owed, "{context}: {status:?}");
        assert_eq!(engine.troubles(), Troubles::default(), "{context}: it is no member's fault");
        assert_eq!(engine.missing(), MemberSet::EMPTY, "{context}");
        // Of copies that differed either may have been read.
        let after = read_all(&mut engine);
        assert!(shape.level.is_mirrored() || after == content, "{context}: no data changes");
        assert_encoded(&engine, &after, &context);
        let stripe = engine.geometry().stripe_sectors().0;
        assert!(read(&mut engine, stripe, 8).expect("read") == new, "{context}: what was written is there");
        let engine = opened(&shape, &closed(engine));
        assert!(!engine.scrub_record().is_owed, "{context}: it is settled");
    }
}

/// The damage is there to be found again, or on record, whenever the power goes while the array is opened.
#[test]
fn a_scrub_is_owed_wherever_the_opening_is_cut_off() {
    for shape in mirrors().into_iter().chain([logged(small(RAID5, 3)), small(RAID5, 3).checked()]) {
        let (left, _) = damaged(&shape);
        let used = shape.geometry().used_sectors().bytes();
        for cut in 0.. {
            let disk = MemDisk::new(left.clone(), Order::Fifo);
            let watch = Watch::new(disk, shape.members, shape.superblocks()[0].areas, used);
            let watch = Rc::new(RefCell::new(watch));
            let disk = Cut { watch: Rc::clone(&watch), left: cut };
            let is_over = try_assembled(disk, &left, Access::ReadWrite).is_ok();
            let after = watch.borrow().cut(&mut Random(cut as u64));
            let engine = opened(&shape, &after);
            assert!(engine.scrub_record().is_owed, "{shape:?}, cut off after {cut} operations");
            if is_over {
                break;
            }
        }
    }
}

/// A scrub that was under way starts over: what it had compared by then counts for nothing.
#[test]
fn a_scrub_under_way_starts_over_where_one_is_owed() {
    let shape = logged(small(RAID5, 3));
    let mut engine = opened(&shape, &damaged(&shape).0.clone());
    let run = ScrubRun { mode: ScrubMode::Repair, position: StripeId(2), found: ScrubFound::default() };
    engine.keep_scrub(ScrubHistory { finished: None, run: Some(run), is_owed: false }, true);
    let mut left = closed(engine);
    // As if regions were blank again, and then were not.
    for bytes in left.iter_mut().flatten() {
        let own = Superblock { blank: Some(BLANK), ..superblock(bytes) };
        for at in own.write_positions() {
            bytes[size(at)..][..4096].copy_from_slice(&encode(&own));
        }
    }
    left.iter_mut().flatten().for_each(|bytes| bytes[MAP_START + 20] ^= 1);
    let record = opened(&shape, &left).scrub_record();
    let run = ScrubRun { position: StripeId(0), ..run };
    assert_eq!(record, ScrubHistory { finished: None, run: Some(run), is_owed: true });
}

/// A new array grows: what was blank is, what it gets is zeros, and what was written is there.
#[test]
fn a_new_array_that_grows_is_zeros_where_nobody_wrote() {
    for shape in every().filter(|shape| !matches!(shape.level, Level::Rm2 { placement: Placement::Partitioned, .. })) {
        let context = format!("{shape:?}");
        let mut engine = new_engine(&shape);
        let (stripe, new) = (engine.geometry().stripe_sectors().0, noise(3, 8));
        write(&mut engine, stripe, &new).expect("written");
        drop(run(&mut engine, Command::Close).expect("closed"));
        let mut members = images(&engine);
        for image in members.iter_mut().flatten() {
            let (len, more) = (image.len(), noise(11, 64 * 8));
            image.resize(len + more.len());
            image.write(len, &more);
        }
        let sizes: Vec<_> = members.iter().map(|bytes| bytes.as_ref().map(|bytes| Bytes(bytes.len() as u64))).collect();
        let opened = assembled(MemDisk::new(members.clone(), Order::Fifo), &members);
        let grown = match grow(opened, &sizes, None) {
            Ok(grown) => grown,
            // Of checksums there is room for no more.
            Err(GrowError::Nothing { .. }) if shape.integrity != Integrity::None => continue,
            Err(error) => panic!("{context}: {error}"),
        };
        let mut engine: Engine<MemDisk, u64> = grown.into_engine().expect("an engine");
        engine.set_initialise_limit(Some(Bytes(1)));
        assert!(engine.geometry().capacity() > shape.geometry().capacity(), "{context}");
        for round in 0..2 {
            for lba in (0..engine.geometry().capacity().0).step_by(8) {
                let expected = if lba == stripe { new.clone() } else { vec![0; 4096] };
                assert!(block(&mut engine, lba).expect("read") == expected, "{context}: sector {lba}, round {round}");
            }
            if round == 0 {
                engine.submit(1, Command::Close);
                while engine.in_flight() > 0 {
                    engine.turn(&mut Vec::new()).expect("memory does not break");
                }
                let left: Members =
                    (0..shape.members).map(|slot| engine.disk().member(MemberIndex(slot)).cloned()).collect();
                engine = opened_on(MemDisk::new(left.clone(), Order::Fifo), &left);
            }
        }
    }
}
