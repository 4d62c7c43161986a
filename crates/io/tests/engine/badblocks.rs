//! Lists of bad blocks: what can't be computed is an error and nothing else is, until it is written or can be computed
//! after all; whatever stops the array meanwhile.

use rustix::io::Errno;
use uraid_io::array::{LostList, RecoverError, recover};
use uraid_io::disk::{Fault, MemDisk, OpName, Order};
use uraid_io::engine::{Command, Engine, EngineError, Status};
use uraid_io::format::badblocks::{BadBlocks, COPY_BYTES, ENTRIES_MAX, Lack};
use uraid_io::format::superblock::{Consistency, Integrity, ScrubMode, SlotState};
use uraid_io::member::Access;
use uraid_layout::{
    Bytes, Cell, DiskSector, Geometry, Lba, Level, Location, MemberIndex, MemberSet, Placement, Sectors, StripeId,
};

use crate::rebuild::{assert_whole, fail, filled, logged, new_member, states};
use crate::recovery::{assembled, assembled_with, superblock, try_assembled};
use crate::replace::{assert_replaced, replacement};
use crate::reshape_lost::{ask, lack, lose};
use crate::support::{
    CHUNK, Members, RAID5, RAID6, Random, Shape, TestEngine, assert_encoded, block, buf, images, noise, read, rm2, run,
    shapes, size, small, write,
};

/// The sectors that a member's list has, for a reason, as runs.
fn listed(engine: &TestEngine, member: u8, lack: Lack) -> Vec<(u64, u64)> {
    let list = engine.bad_blocks(MemberIndex(member)).expect("it has a list");
    list.all(lack).map(|run| (run.start.0, run.end.0)).collect()
}

/// The list that a member durably has.
fn durable(engine: &TestEngine, member: MemberIndex) -> BadBlocks {
    let bytes = engine.disk().inner.member(member).expect("present");
    let areas = superblock(bytes).areas;
    let copy = |copy: u64| {
        let at = size(Bytes(areas.bad_blocks.offset.0 + copy * COPY_BYTES.0));
        BadBlocks::decode(&bytes[at..at + size(COPY_BYTES)], superblock(bytes).member, areas.data_sectors().0 / 8)
    };
    BadBlocks::newest([copy(0), copy(1)]).expect("a copy is whole")
}

/// Makes a member unable to read from a byte of its data area on.
fn spoil(engine: &mut TestEngine, shape: &Shape, member: u8, at: u64, len: u64) {
    let data = shape.superblocks()[usize::from(member)].areas.data.offset;
    engine.disk_mut().inner.spoil(MemberIndex(member), Bytes(data.0 + at), Bytes(len));
}

/// Reads sector by sector: exactly those that are lost are errors, and the others are right.
fn assert_lost(engine: &mut TestEngine, content: &[u8], lost: &[u64], context: &str) {
    let step = if engine.superblock().integrity == Integrity::None { 1 } else { 8 };
    for lba in (0..engine.geometry().capacity().0).step_by(step) {
        let expected = &content[size(Bytes(lba * 512))..][..step * 512];
        match read(engine, lba, step as u64) {
            Ok(bytes) => {
                assert!(bytes == expected, "{context}: sector {lba} is wrong");
                assert!(!lost.contains(&lba), "{context}: sector {lba} can't be known");
            }
            Err(EngineError::Unreadable { .. }) => assert!(lost.contains(&lba), "{context}: sector {lba} is there"),
            Err(error) => panic!("{context}: sector {lba}: {error}"),
        }
    }
    let told: Vec<u64> = engine.lost().iter().flat_map(|range| range.start.0..range.end.0).collect();
    assert_eq!(told, lost, "{context}: what it says");
}

fn all_of(lost: std::ops::Range<u64>) -> Vec<u64> {
    lost.collect()
}

/// A RAID 5 of four whose member 1 was rebuilt while a block of member 3 could not be read: the parity of stripe 4.
/// Left-symmetric, so that its data are on 0, 1 and 2. What member 1 is to hold of it can't be computed.
fn with_a_hole(shape: Shape) -> (TestEngine, Vec<u8>) {
    rebuilt_beside(shape, 4)
}

/// The same where that block is data of stripe 5, whose parity is on member 2, and whose data are on 3, 0 and 1. Of
/// these the first and the last are lost.
fn with_two_holes(shape: Shape) -> (TestEngine, Vec<u8>) {
    rebuilt_beside(shape, 5)
}

/// The first sectors of what is lost then.
const TWO_HOLES: [u64; 2] = [5 * 24, 5 * 24 + 16];

fn rebuilt_beside(shape: Shape, stripe: u64) -> (TestEngine, Vec<u8>) {
    let (mut engine, content) = filled(shape, Order::Fifo);
    drop(run(&mut engine, fail(MemberIndex(1))).expect("given up"));
    let join = new_member(&mut engine, &shape, MemberIndex(1), 7);
    spoil(&mut engine, &shape, 3, stripe * 4096, 4096);
    drop(run(&mut engine, join).expect("joined"));
    drop(run(&mut engine, Command::Flush).expect("flushed"));
    assert_whole(&engine, "it goes on past what can't be computed");
    (engine, content)
}

fn raid5() -> [Shape; 4] {
    let shape = small(RAID5, 4);
    [shape, logged(shape), Shape { consistency: Consistency::Bitmap, ..shape }, shape.checked()]
}

const HOLE: std::ops::Range<u64> = 4 * 24 + 8..4 * 24 + 16;

/// Whatever else is known, what nobody has does not read as zeros.
#[test]
fn what_is_lost_is_not_said_to_be_zeros() {
    for shape in raid5().into_iter().filter(|shape| shape.integrity == Integrity::None) {
        let (engine, _) = with_a_hole(shape);
        assert!(engine.zeros().begin_search(), "{shape:?}: everybody is there");
        let data = shape.superblocks()[0].areas.data;
        let all = data.offset..Bytes(data.offset.0 + data.size.0);
        engine.zeros().end_search(&vec![vec![all]; 4], Status::Hole);
        let told = engine.zeros().status(&(Lba(0)..Lba(5 * 24)), usize::MAX).expect("it is not frozen");
        let expected = [(Status::Hole, Lba(HOLE.start)), (Status::Data, Lba(HOLE.end)), (Status::Hole, Lba(5 * 24))];
        assert_eq!(told, expected, "{shape:?}");
    }
}

#[test]
fn a_rebuild_goes_on_past_what_it_cannot_compute() {
    for shape in raid5() {
        let context = format!("{shape:?}");
        let (mut engine, content) = with_a_hole(shape);
        assert_eq!(listed(&engine, 1, Lack::Absent), [(32, 40)], "{context}: what it was to get");
        assert_eq!(listed(&engine, 3, Lack::Unread), [(32, 40)], "{context}: what it would be made of");
        for member in [0, 1, 3].map(MemberIndex) {
            assert_eq!(durable(&engine, member), *engine.bad_blocks(member).expect("it has one"), "{context}");
        }
        assert_lost(&mut engine, &content, &all_of(HOLE), &context);
        assert!(states(&engine).iter().all(|&state| state == SlotState::Active), "{context}");
        assert!(engine.troubles().failing.is_empty(), "{context}: what is lost is told of by itself");
    }
}

/// What a new member shows where it lacks something is anything.
#[test]
fn what_is_absent_is_not_read_though_the_member_would_give_something() {
    let (mut engine, content) = with_a_hole(small(RAID5, 4));
    drop(run(&mut engine, fail(MemberIndex(3))).expect("given up"));
    assert_lost(&mut engine, &content, &all_of(HOLE), "nobody else is read there");
}

#[test]
fn a_write_makes_good_what_it_covers() {
    for shape in raid5() {
        let context = format!("{shape:?}");
        let (mut engine, mut content) = with_a_hole(shape);
        if shape.integrity == Integrity::None {
            let new = noise(40, 3);
            write(&mut engine, HOLE.start + 2, &new).expect("a write needs nothing of what it replaces");
            content[size(Bytes((HOLE.start + 2) * 512))..][..new.len()].copy_from_slice(&new);
            let left: Vec<u64> = HOLE.filter(|lba| !(2..5).contains(&(lba - HOLE.start))).collect();
            assert_lost(&mut engine, &content, &left, &context);
            assert_eq!(listed(&engine, 1, Lack::Absent), [(32, 34), (37, 40)], "{context}");
        }
        let new = noise(41, 8);
        write(&mut engine, HOLE.start, &new).expect("written");
        content[size(Bytes(HOLE.start * 512))..][..new.len()].copy_from_slice(&new);
        drop(run(&mut engine, Command::Flush).expect("flushed"));
        assert_lost(&mut engine, &content, &[], &context);
        for member in (0..4).map(MemberIndex) {
            assert!(durable(&engine, member).is_empty(), "{context}: member {member} has everything");
        }
        assert_encoded(&engine, &content, &context);
    }
}

/// The parity is lost and can't be computed: nothing would be kept by refusing the write.
#[test]
fn what_is_not_lost_of_a_stripe_is_written_all_the_same() {
    for shape in raid5() {
        let context = format!("{shape:?}");
        let (mut engine, mut content) = with_a_hole(shape);
        let new = noise(42, 8);
        write(&mut engine, 4 * 24, &new).expect("only the parity can't be kept");
        content[4 * 24 * 512..][..new.len()].copy_from_slice(&new);
        assert_lost(&mut engine, &content, &all_of(HOLE), &context);
        assert_eq!(listed(&engine, 3, Lack::Absent), [(32, 40)], "{context}: what it has is of before");
        // It can be read again, and says nothing any more.
        engine.disk_mut().inner.clear_spoilt();
        assert_lost(&mut engine, &content, &all_of(HOLE), &context);
        engine.start_scrub(ScrubMode::Repair, StripeId(0)).expect("started");
        drop(run(&mut engine, Command::Flush).expect("flushed"));
        assert_lost(&mut engine, &content, &all_of(HOLE), &context);
        write(&mut engine, HOLE.start, &new).expect("written");
        content[size(Bytes(HOLE.start * 512))..][..new.len()].copy_from_slice(&new);
        assert_lost(&mut engine, &content, &[], &context);
        drop(run(&mut engine, Command::Flush).expect("flushed"));
        assert_encoded(&engine, &content, &context);
    }
}

/// Two units of data of one column are lost: a write of one of them needs neither the other nor the parity, which tells
/// nothing of either.
#[test]
fn of_two_lost_units_each_is_made_good_by_itself() {
    for shape in raid5() {
        let context = format!("{shape:?}");
        let (mut engine, mut content) = with_two_holes(shape);
        let [first, second] = TWO_HOLES;
        let both: Vec<u64> = (first..first + 8).chain(second..second + 8).collect();
        assert_lost(&mut engine, &content, &both, &context);
        for (seed, lba, left) in [(44, second, all_of(first..first + 8)), (45, first, Vec::new())] {
            let new = noise(seed, 8);
            drop(run(&mut engine, Command::Write { lba: Lba(lba), buf: buf(&new), fua: true }).expect("written"));
            content[size(Bytes(lba * 512))..][..new.len()].copy_from_slice(&new);
            assert_lost(&mut engine, &content, &left, &context);
        }
        drop(run(&mut engine, Command::Flush).expect("flushed"));
        assert_encoded(&engine, &content, &context);
        assert!((0..4).all(|member| durable(&engine, MemberIndex(member)).is_empty()), "{context}");
    }
}

/// The log has parity from before a write that has to do without it. Done again after a crash, that tells of nothing.
#[test]
fn parity_that_a_write_leaves_behind_does_not_come_back_from_the_log() {
    let shape = logged(small(RAID5, 4));
    let (mut engine, mut content) = with_two_holes(shape);
    let units = [TWO_HOLES[0], 5 * 24 + 8, TWO_HOLES[1]];
    // The first has a record with parity; the other has to do without it.
    for (seed, lba) in [(46, units[1]), (47, units[2])] {
        let new = noise(seed, 8);
        drop(run(&mut engine, Command::Write { lba: Lba(lba), buf: buf(&new), fua: true }).expect("written"));
        content[size(Bytes(lba * 512))..][..new.len()].copy_from_slice(&new);
    }
    let left = engine.disk().cut(&mut Random(4));
    let mut disk = MemDisk::new(left.clone(), Order::Fifo);
    disk.spoil(MemberIndex(3), Bytes(shape.superblocks()[3].areas.data.offset.0 + 5 * 4096), Bytes(4096));
    let recovered = recover(assembled(disk, &left), |_| ()).expect("recovered");
    let mut engine: Engine<MemDisk, u64> = recovered.into_engine().expect("an engine");
    for (unit, is_lost) in [(0, true), (1, false), (2, false)] {
        let mut replies = Vec::new();
        engine.submit(0, Command::Read { lba: Lba(units[unit]), buf: buf(&[0; 4096]) });
        while replies.is_empty() {
            engine.turn(&mut replies).expect("memory does not break");
        }
        match replies.remove(0).result {
            Ok(found) => {
                let found = found.expect("its buffer");
                assert!(found.as_ref() == &content[size(Bytes(units[unit] * 512))..][..4096], "unit {unit} is wrong");
                assert!(!is_lost, "unit {unit} can't be known");
            }
            Err(error) => assert!(is_lost, "unit {unit} is there: {error}"),
        }
    }
}

#[test]
fn a_scrub_or_a_read_makes_good_what_can_be_computed_after_all() {
    for shape in raid5() {
        for is_scrub in [true, false] {
            let context = format!("{shape:?}, {is_scrub}");
            let (mut engine, content) = with_a_hole(shape);
            engine.disk_mut().inner.clear_spoilt();
            if is_scrub {
                engine.start_scrub(ScrubMode::Repair, StripeId(0)).expect("started");
            } else {
                read(&mut engine, HOLE.start, 8).expect("the others can be read again");
            }
            drop(run(&mut engine, Command::Flush).expect("flushed"));
            while engine.scrub().is_some_and(|scrub| scrub.is_running) {
                engine.tick();
                engine.turn(&mut Vec::new()).expect("memory does not break");
            }
            drop(run(&mut engine, Command::Close).expect("closed"));
            assert_lost(&mut engine, &content, &[], &context);
            assert!(durable(&engine, MemberIndex(1)).is_empty(), "{context}");
            assert_encoded(&engine, &content, &context);
        }
    }
}

/// What a rebuild found is known after a stop, clean or not.
#[test]
fn the_lists_are_there_after_a_stop() {
    for shape in raid5() {
        for is_clean in [true, false] {
            let context = format!("{shape:?}, {is_clean}");
            let (mut engine, content) = with_a_hole(shape);
            if is_clean {
                drop(run(&mut engine, Command::Close).expect("closed"));
            }
            let left = engine.disk().cut(&mut Random(3));
            let mut engine = reopened(&shape, &left);
            // Of what was dirty without a log parity is made anew; what is absent is not data.
            assert_lost(&mut engine, &content, &all_of(HOLE), &context);
        }
    }
}

/// Opens what is left of [`with_a_hole`].
fn reopened(shape: &Shape, left: &Members) -> TestEngine {
    let mut disk = MemDisk::new(left.clone(), Order::Fifo);
    // The medium is as it was.
    let data = shape.superblocks()[3].areas.data.offset;
    disk.spoil(MemberIndex(3), Bytes(data.0 + 4 * 4096), Bytes(4096));
    opened_on(disk, shape, left)
}

/// Opens members whose media are all right.
fn opened(shape: &Shape, left: &Members) -> TestEngine {
    opened_on(MemDisk::new(left.clone(), Order::Fifo), shape, left)
}

fn opened_on(disk: MemDisk, shape: &Shape, left: &Members) -> TestEngine {
    let used = shape.geometry().used_sectors().bytes();
    let watch = crate::support::watch::Watch::new(disk, shape.members, shape.superblocks()[0].areas, used);
    let assembled = assembled(watch, left);
    let is_torn = assembled.needs_recovery();
    let assembled = if is_torn { recover(assembled, |_| ()).expect("recovered") } else { assembled };
    assembled.into_engine().expect("an engine")
}

/// Two members of RM2 or RAID 6 are lost, and a sector of a third can't be read: what can be computed is.
#[test]
fn of_two_lost_members_only_what_cannot_be_computed_is_lost() {
    let rm2 = small(rm2(3, Placement::Adjacent), 7);
    for shape in [rm2, logged(rm2), logged(small(RAID6, 7))] {
        for (first, second) in [(0, 1), (2, 5), (0, 6)].map(|(a, b)| (MemberIndex(a), MemberIndex(b))) {
            let context = format!("{shape:?}, {first} and {second}");
            let (mut engine, content) = filled(shape, Order::Fifo);
            for slot in [first, second] {
                drop(run(&mut engine, fail(slot)).expect("given up"));
            }
            spoil(&mut engine, &shape, 3, 4 * 4096, 4096);
            for slot in [first, second] {
                let join = new_member(&mut engine, &shape, slot, slot.0);
                drop(run(&mut engine, join).expect("joined"));
            }
            drop(run(&mut engine, Command::Flush).expect("flushed"));
            assert_whole(&engine, &context);
            // What is lost is at most one column of each parity group that needs the sector: what it says is so.
            let lost: Vec<u64> = engine.lost().iter().flat_map(|range| range.start.0..range.end.0).collect();
            assert!(lost.len() <= 3 * 8, "{context}: {lost:?}");
            assert_lost(&mut engine, &content, &lost, &context);
        }
    }
}

/// The cells of a stripe that can be had where these can't be read: one comes back once all others of a group are had.
fn had(geometry: &Geometry, stripe: StripeId, lost: &[Cell]) -> Vec<Cell> {
    let mut lost = lost.to_vec();
    loop {
        let unknown = |cells: Vec<Cell>| cells.into_iter().filter(|cell| lost.contains(cell)).collect::<Vec<_>>();
        let one = geometry.map(stripe).groups().iter().map(|group| unknown(group.cells().collect()));
        let Some(found) = one.filter(|cells| cells.len() == 1).map(|cells| cells[0]).next() else { break };
        lost.retain(|&cell| cell != found);
    }
    let all = (0..u16::try_from(geometry.map(stripe).cells()).expect("few")).map(Cell);
    all.filter(|cell| !lost.contains(cell)).collect()
}

/// Spoils a cell of a stripe.
fn spoil_cell(engine: &mut TestEngine, shape: &Shape, stripe: StripeId, cell: Cell) {
    let geometry = shape.geometry();
    let (MemberIndex(member), sector) = (geometry.member(cell), geometry.sector(stripe, cell));
    spoil(engine, shape, member, sector.0 * 512, CHUNK);
}

/// The data units of a stripe of RM2 on these members: the first of each.
fn units_on(geometry: &Geometry, stripe: StripeId, members: &[u8]) -> Vec<Cell> {
    let data = geometry.map(stripe).data();
    let on = |member: &u8| data.iter().copied().find(|&cell| geometry.member(cell) == MemberIndex(*member));
    members.iter().filter_map(on).collect()
}

fn rm2s() -> [Shape; 3] {
    let shape = small(rm2(3, Placement::Adjacent), 7);
    [shape, logged(shape), shape.checked()]
}

/// More members fail to read a unit of a stripe than may be lost, and all of it can be computed.
#[test]
fn members_that_lack_a_unit_give_the_others() {
    let stripe = StripeId(1);
    for (shape, members) in rm2s().into_iter().flat_map(|shape| [[0, 1, 2], [3, 5, 6]].map(|members| (shape, members)))
    {
        let (context, geometry) = (format!("{shape:?}, {members:?}"), shape.geometry());
        let lost = units_on(&geometry, stripe, &members);
        assert_eq!((lost.len(), had(&geometry, stripe, &lost).len()), (3, 21), "{context}: all of it can be had");
        let (first, units) = (stripe.0 * geometry.stripe_sectors().0, geometry.map(stripe).data().len() as u64);
        // One unit after the other is read, or written, or all at once.
        for unit in 0..=units {
            let (mut engine, mut content) = filled(shape, Order::Fifo);
            lost.iter().for_each(|&cell| spoil_cell(&mut engine, &shape, stripe, cell));
            let (lba, len) = if unit < units { (first + unit * 8, 8) } else { (first, units * 8) };
            let bytes = size(Bytes(lba * 512))..size(Bytes((lba + len) * 512));
            assert!(read(&mut engine, lba, len).expect("it can be computed") == content[bytes.clone()], "{context}");
            lost.iter().for_each(|&cell| spoil_cell(&mut engine, &shape, stripe, cell));
            let new = noise(50 + unit, len);
            write(&mut engine, lba, &new).expect("so can its parity");
            content[bytes].copy_from_slice(&new);
            assert_lost(&mut engine, &content, &[], &context);
            drop(run(&mut engine, Command::Close).expect("closed"));
            assert_encoded(&engine, &content, &format!("{context}, unit {unit}"));
        }
    }
}

/// Two members are rebuilt while others can't read two units of a stripe. Just what can't be computed is lost; what is
/// not can be written; and when all that was lost is written, unit by unit, a scrub makes the parity good.
#[test]
fn what_members_lack_of_a_stripe_is_lost_unit_by_unit() {
    let (stripe, failed) = (StripeId(1), [MemberIndex(0), MemberIndex(3)]);
    for (shape, members) in
        rm2s().into_iter().flat_map(|shape| [[1, 2], [4, 6], [2, 5]].map(|members| (shape, members)))
    {
        let (context, geometry) = (format!("{shape:?}, {members:?}"), shape.geometry());
        let (mut engine, mut content) = filled(shape, Order::Fifo);
        failed.iter().for_each(|&slot| drop(run(&mut engine, fail(slot)).expect("given up")));
        let spoilt = units_on(&geometry, stripe, &members);
        spoilt.iter().for_each(|&cell| spoil_cell(&mut engine, &shape, stripe, cell));
        for slot in failed {
            let join = new_member(&mut engine, &shape, slot, slot.0);
            drop(run(&mut engine, join).expect("joined"));
        }
        drop(run(&mut engine, Command::Flush).expect("flushed"));
        assert_whole(&engine, &context);
        let cells = (0..u16::try_from(geometry.map(stripe).cells()).expect("few")).map(Cell);
        let gone: Vec<Cell> = cells.filter(|&cell| failed.contains(&geometry.member(cell))).chain(spoilt).collect();
        let had = had(&geometry, stripe, &gone);
        let first = stripe.0 * geometry.stripe_sectors().0;
        let data = geometry.map(stripe).data().iter();
        let (mut lost, mut there) = (Vec::new(), Vec::new());
        for (unit, cell) in (0..).zip(data) {
            let of = if had.contains(cell) { &mut there } else { &mut lost };
            of.extend(first + unit * 8..first + unit * 8 + 8);
        }
        assert!(!lost.is_empty(), "{context}: something is lost");
        assert_lost(&mut engine, &content, &lost, &context);
        let mut seed = 60;
        for lba in there.into_iter().step_by(8) {
            seed += 1;
            let new = noise(seed, 8);
            write(&mut engine, lba, &new).expect("what is there can be written");
            content[size(Bytes(lba * 512))..][..new.len()].copy_from_slice(&new);
            assert_lost(&mut engine, &content, &lost, &format!("{context}, {lba} is written"));
        }
        while let Some(&lba) = lost.first() {
            seed += 1;
            let new = noise(seed, 8);
            write(&mut engine, lba, &new).expect("what is lost can be written");
            content[size(Bytes(lba * 512))..][..new.len()].copy_from_slice(&new);
            drop(lost.drain(..8));
            assert_lost(&mut engine, &content, &lost, &format!("{context}, {lba} is written"));
        }
        engine.start_scrub(ScrubMode::Repair, StripeId(0)).expect("started");
        drop(run(&mut engine, Command::Flush).expect("flushed"));
        while engine.scrub().is_some_and(|scrub| scrub.is_running) {
            engine.tick();
            engine.turn(&mut Vec::new()).expect("memory does not break");
        }
        drop(run(&mut engine, Command::Close).expect("closed"));
        assert_encoded(&engine, &content, &context);
        assert!(geometry.all_members().iter().all(|member| durable(&engine, member).is_empty()), "{context}");
    }
}

#[test]
fn a_copy_goes_on_past_what_nobody_has_and_takes_its_list_along() {
    for shape in [small(Level::Raid0, 3), logged(small(Level::Raid0, 3))] {
        let context = format!("{shape:?}");
        let slot = MemberIndex(1);
        let (mut engine, mut content) = filled(shape, Order::Fifo);
        spoil(&mut engine, &shape, 1, 4 * 4096, 4096);
        let replace = replacement(&mut engine, &shape, slot, 1);
        drop(run(&mut engine, replace).expect("begun"));
        drop(run(&mut engine, Command::Flush).expect("flushed"));
        assert_replaced(&engine, slot, 1, &context);
        assert_eq!(listed(&engine, 1, Lack::Absent), [(32, 40)], "{context}");
        assert_eq!(durable(&engine, slot), *engine.bad_blocks(slot).expect("it has one"), "{context}");
        let at = 4 * 3 * 8 + 8;
        assert_lost(&mut engine, &content, &all_of(at..at + 8), &context);
        let new = noise(43, 8);
        write(&mut engine, at, &new).expect("written");
        content[size(Bytes(at * 512))..][..new.len()].copy_from_slice(&new);
        assert_lost(&mut engine, &content, &[], &context);
        drop(run(&mut engine, Command::Flush).expect("flushed"));
        assert_encoded(&engine, &content, &context);
    }
}

/// Parity that a write leaves out of agreement tells nothing on the member either that is to take its member's place,
/// and has got it before.
#[test]
fn parity_that_is_given_up_beside_a_copy_is_given_up_on_both_members() {
    for shape in raid5() {
        let context = format!("{shape:?}");
        let (mut engine, mut content) = with_two_holes(shape);
        let [first, second] = TWO_HOLES;
        let slot = MemberIndex(2);
        let replace = replacement(&mut engine, &shape, slot, 1);
        engine.submit(77, replace);
        let copied = |engine: &TestEngine| engine.replacement().map(|copy| copy.progress.done.0);
        while copied(&engine).is_none_or(|done| done < 6 * 24) {
            assert!(engine.replaced().is_none(), "{context}: the copy is over");
            engine.disk_mut().allow_reaps(1);
            engine.turn(&mut Vec::new()).expect("memory does not break");
        }
        engine.disk_mut().allow_reaps(usize::MAX);
        let new = noise(44, 8);
        drop(run(&mut engine, Command::Write { lba: Lba(second), buf: buf(&new), fua: true }).expect("written"));
        content[size(Bytes(second * 512))..][..new.len()].copy_from_slice(&new);
        drop(run(&mut engine, Command::Flush).expect("flushed"));
        assert_replaced(&engine, slot, 1, &context);
        assert_lost(&mut engine, &content, &all_of(first..first + 8), &context);
        assert_eq!(durable(&engine, slot), *engine.bad_blocks(slot).expect("it has one"), "{context}");
    }
}

/// A member that fails to read once gives what it has when the copy is otherwise done.
#[test]
fn a_copy_tries_once_more_what_could_not_be_read() {
    let shape = small(Level::Raid0, 3);
    let slot = MemberIndex(1);
    let (mut engine, content) = filled(shape, Order::Fifo);
    engine.disk_mut().inner.fail(Fault { member: slot, name: OpName::Read, after: 4, count: 1, errno: Errno::IO });
    let replace = replacement(&mut engine, &shape, slot, 1);
    drop(run(&mut engine, replace).expect("begun"));
    drop(run(&mut engine, Command::Flush).expect("flushed"));
    assert_replaced(&engine, slot, 1, "it has everything");
    assert_eq!(listed(&engine, 1, Lack::Absent), []);
    assert_encoded(&engine, &content, "it has everything");
}

/// Without redundancy a member that fails to take its list stays. The write is an error; the next one of the same place
/// counts only when the member has the list, too.
#[test]
fn a_list_that_could_not_be_written_is_written_with_the_next_write() {
    let shape = small(Level::Raid0, 3);
    let slot = MemberIndex(1);
    let (mut engine, mut content) = filled(shape, Order::Fifo);
    spoil(&mut engine, &shape, 1, 4 * 4096, 4096);
    let replace = replacement(&mut engine, &shape, slot, 1);
    drop(run(&mut engine, replace).expect("begun"));
    drop(run(&mut engine, Command::Flush).expect("flushed"));
    assert_replaced(&engine, slot, 1, "it lacks a block");
    let (lba, new) = (4 * 3 * 8 + 8, noise(46, 8));
    content[size(Bytes(lba * 512))..][..new.len()].copy_from_slice(&new);
    // Its superblock says already that writes are under way. Its content is taken, neither copy of its list is.
    write(&mut engine, 0, &content[..4096]).expect("written");
    let list = Fault { member: slot, name: OpName::Write, after: 1, count: 2, errno: Errno::IO };
    engine.disk_mut().inner.fail(list);
    let mut write = || run(&mut engine, Command::Write { lba: Lba(lba), buf: buf(&new), fua: true });
    let refused = write().expect_err("the member still has the block in its list");
    assert!(matches!(refused, EngineError::WriteFailed { .. }), "{refused}");
    drop(write().expect("written"));
    assert!(durable(&engine, slot).is_empty(), "what was acknowledged is not lost after the next start");
    assert_lost(&mut engine, &content, &[], "written");
}

/// More than a list has room for, of a member that is rebuilt: it stops, says so, and goes on when there is room.
#[test]
fn a_list_that_is_full_stops_the_rebuild() {
    let shape = Shape { chunks: ENTRIES_MAX as u64 + 100, ..small(Level::Raid1, 2) };
    let (mut engine, content) = filled(shape, Order::Fifo);
    drop(run(&mut engine, fail(MemberIndex(1))).expect("given up"));
    spoil(&mut engine, &shape, 0, 0, shape.chunks * 4096);
    let join = new_member(&mut engine, &shape, MemberIndex(1), 7);
    drop(run(&mut engine, join).expect("joined"));
    drop(run(&mut engine, Command::Flush).expect("flushed"));
    let progress = engine.rebuilding().expect("it can't go on");
    assert!(progress.stuck.is_some(), "{progress:?}");
    assert_eq!(engine.bad_blocks(MemberIndex(1)).expect("a list").len(), ENTRIES_MAX);
    let half = content.len() / 2 / 4096 * 4096;
    write(&mut engine, 0, &content[..half]).expect("written");
    for _ in 0..200 {
        engine.tick();
        engine.turn(&mut Vec::new()).expect("memory does not break");
    }
    drop(run(&mut engine, Command::Flush).expect("flushed"));
    assert_whole(&engine, "half of it has room");
    let lost = all_of(half as u64 / 512..engine.geometry().capacity().0);
    assert_eq!(engine.lost().to_vec(), [Lba(lost[0])..Lba(lost[lost.len() - 1] + 1)]);
}

/// A copy of a list is lost, then both.
#[test]
fn a_list_is_read_from_either_copy_and_a_member_without_any_is_given_up() {
    let shape = logged(small(RAID5, 4));
    let (mut engine, content) = with_a_hole(shape);
    drop(run(&mut engine, Command::Close).expect("closed"));
    let left = engine.disk().cut(&mut Random(3));
    let at = shape.superblocks()[1].areas.bad_blocks.offset;
    for damaged in [vec![0], vec![1], vec![0, 1]] {
        let mut left = left.clone();
        for copy in &damaged {
            let bytes = left[1].as_mut().expect("present");
            bytes[size(Bytes(at.0 + copy * COPY_BYTES.0)) + 70] ^= 1;
        }
        let is_lost = damaged.len() == 2;
        let mut engine = reopened(&shape, &left);
        let missing = if is_lost { MemberSet::EMPTY.with(MemberIndex(1)) } else { MemberSet::EMPTY };
        assert_eq!(engine.missing(), missing, "copies {damaged:?}");
        if is_lost {
            let error = read(&mut engine, HOLE.start, 8).expect_err("neither the member nor the parity is there");
            assert!(matches!(error, EngineError::Unreadable { .. }), "{error}");
        } else {
            assert_lost(&mut engine, &content, &all_of(HOLE), &format!("copies {damaged:?}"));
        }
    }
}

/// Zeros are content as any other: what is zeroed, or trimmed in whole parity stripes, is not lost any more.
#[test]
fn a_trim_and_zeros_heal_what_they_cover() {
    for shape in raid5() {
        for is_trim in [true, false] {
            let context = format!("{shape:?}, trim: {is_trim}");
            let (mut engine, mut content) = with_a_hole(shape);
            let zeroed = if is_trim { 4 * 24..5 * 24 } else { HOLE };
            let (lba, len) = (Lba(zeroed.start), Sectors(zeroed.end - zeroed.start));
            let zero = match is_trim {
                true => Command::WriteZeroes { lba, len, fua: true, may_punch: true },
                false => Command::WriteZeroes { lba, len, fua: true, may_punch: false },
            };
            drop(run(&mut engine, zero).expect("zeroed"));
            content[size(Bytes(zeroed.start * 512))..size(Bytes(zeroed.end * 512))].fill(0);
            assert_eq!(listed(&engine, 1, Lack::Absent), [], "{context}");
            assert_lost(&mut engine, &content, &[], &context);
        }
    }
}

/// Member 0 is gone, and so nobody could do without member 1, of which nobody knows what it lacks.
#[test]
fn a_needed_member_without_a_list_is_refused_until_it_is_trusted() {
    let shape = logged(small(RAID5, 4));
    let (mut engine, content) = with_a_hole(shape);
    drop(run(&mut engine, Command::Close).expect("closed"));
    let mut left = engine.disk().cut(&mut Random(3));
    left[0] = None;
    let at = shape.superblocks()[1].areas.bad_blocks.offset;
    for copy in 0..2 {
        left[1].as_mut().expect("present")[size(Bytes(at.0 + copy * COPY_BYTES.0)) + 70] ^= 1;
    }
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let open = |lost_list| assembled_with(MemDisk::new(left.clone(), Order::Fifo), &left, access, lost_list);
        match open(LostList::Refused) {
            Err(error @ RecoverError::ListLost { .. }) => {
                let said = error.to_string();
                assert!(said.contains("member1: both copies of its list of bad blocks") && said.contains("--force"));
                assert!(said.contains("beside member 0, which is lost already"), "{said}");
            }
            other => panic!("{access:?}: {other:?}"),
        }
        let mut engine: Engine<MemDisk, u64> = open(LostList::Trusted).expect("trusted").into_engine().expect("fine");
        assert_eq!(engine.missing(), MemberSet::EMPTY.with(MemberIndex(0)), "{access:?}");
        let is_there = |engine: &mut Engine<MemDisk, u64>, lba: u64| {
            block(engine, lba).expect("it is trusted") == content[size(Bytes(lba * 512))..][..4096]
        };
        let blocks = (0..engine.geometry().capacity().0).step_by(8);
        let other: Vec<u64> = blocks.filter(|&lba| !is_there(&mut engine, lba)).collect();
        // It is in the fifth parity stripe, and so is what is computed from it.
        assert!(other.iter().all(|lba| lba / 24 == HOLE.start / 24), "{access:?}: {other:?} is wrong");
        if access == Access::ReadWrite {
            let left: Members = (0..4).map(|slot| engine.disk().member(MemberIndex(slot)).cloned()).collect();
            let again = try_assembled(MemDisk::new(left.clone(), Order::Fifo), &left, access);
            assert!(again.is_ok(), "it has a list again: {again:?}");
        }
    }
}

/// One member is lost and another one can't read a block, on every level.
#[test]
fn nothing_is_lost_that_others_have() {
    for shape in shapes().into_iter().filter(|shape| shape.geometry().tolerance() > 0) {
        let context = format!("{shape:?}");
        let (mut engine, content) = filled(shape, Order::Seeded(5));
        drop(run(&mut engine, fail(MemberIndex(0))).expect("given up"));
        spoil(&mut engine, &shape, 1, 4096, 4096);
        let join = new_member(&mut engine, &shape, MemberIndex(0), 7);
        drop(run(&mut engine, join).expect("joined"));
        drop(run(&mut engine, Command::Flush).expect("flushed"));
        assert_whole(&engine, &context);
        let lost: Vec<u64> = engine.lost().iter().flat_map(|range| range.start.0..range.end.0).collect();
        assert_lost(&mut engine, &content, &lost, &context);
        // A block of each of the two members, where nobody else makes up for it.
        let most = if shape.geometry().tolerance() > 1 { 0 } else { 16 };
        assert!(lost.len() <= most && listed(&engine, 0, Lack::Absent).len() * 16 <= most, "{context}: {lost:?}");
        // A write of all makes all good.
        write(&mut engine, 0, &content).expect("written");
        drop(run(&mut engine, Command::Flush).expect("flushed"));
        assert_lost(&mut engine, &content, &[], &context);
        assert_encoded(&engine, &content, &context);
        assert!(durable(&engine, MemberIndex(0)).is_empty(), "{context}");
    }
}

/// More units of a block lack a sector than may be lost, each another one: all of it can be computed, and a member that
/// is rebuilt lacks just what is in their columns.
#[test]
fn within_a_block_each_sector_that_is_lacking_is_made_up_for_by_itself() {
    // The parity of stripe 4 is on member 3, and its data are on 0, 1 and 2.
    let places =
        || (0..4).map(|column| Location { member: MemberIndex(column), sector: DiskSector(32 + u64::from(column)) });
    // Without bitmaps: what watches them takes what is healed for written.
    let shape = small(RAID5, 4);
    let (mut engine, mut content) = filled(shape, Order::Fifo);
    drop(run(&mut engine, Command::Close).expect("closed"));
    let mut left = engine.disk().cut(&mut Random(3));
    lack(&mut left, places());
    let mut engine = opened(&shape, &left);
    let all = read(&mut engine, 0, content.len() as u64 / 512).expect("it can be computed");
    assert!(all == content);
    let mut engine = opened(&shape, &left);
    let new = noise(50, 4);
    write(&mut engine, 4 * 24 + 4, &new).expect("so can its parity");
    content[size(Bytes((4 * 24 + 4) * 512))..][..new.len()].copy_from_slice(&new);
    assert_lost(&mut engine, &content, &[], "written");
    let mut engine = opened(&shape, &left);
    drop(run(&mut engine, fail(MemberIndex(1))).expect("given up"));
    let join = new_member(&mut engine, &shape, MemberIndex(1), 7);
    drop(run(&mut engine, join).expect("joined"));
    drop(run(&mut engine, Command::Flush).expect("flushed"));
    assert_whole(&engine, "rebuilt");
    let told: Vec<u64> = engine.lost().iter().flat_map(|range| range.start.0..range.end.0).collect();
    assert_eq!(told, [96, 104, 106, 107, 114]);
}

/// Without a log parity is made anew after an unclean stop, but not from what is absent.
#[test]
fn parity_is_not_computed_from_what_is_absent() {
    let shape = Shape { consistency: Consistency::Bitmap, ..small(RAID5, 4) };
    let (mut engine, content) = with_a_hole(shape);
    // Its region is dirty when the power fails.
    drop(
        run(&mut engine, Command::Write { lba: Lba(5 * 24), buf: buf(&content[5 * 24 * 512..][..4096]), fua: true })
            .expect("written"),
    );
    let mut left = engine.disk().cut(&mut Random(9));
    let mut engine = reopened(&shape, &left);
    assert_eq!(listed(&engine, 3, Lack::Absent), [(32, 40)], "the parity of what is absent is nothing");
    assert_lost(&mut engine, &content, &all_of(HOLE), "opened");
    drop(run(&mut engine, Command::Close).expect("closed"));
    left = engine.disk().cut(&mut Random(9));
    left[2] = None;
    let mut engine = reopened(&shape, &left);
    for lba in HOLE {
        assert!(read(&mut engine, lba, 1).is_err(), "sector {lba} would be made up");
    }
    let sectors = DiskSector(32)..DiskSector(40);
    assert!(engine.bad_blocks(MemberIndex(1)).expect("a list").touches(&sectors));
}

/// What is to be written of a missing member is in parity alone. Where that can't be made, as more is lost of its
/// column, the write is an error: until that is written, or all of it is together.
#[test]
fn a_write_that_nobody_could_hold_is_an_error() {
    let shape = small(RAID5, 4);
    let geometry = shape.geometry();
    // Of the first stripe members 0 to 2 have the data, and member 3 the parity.
    let (first, second) = (Lba(0), Lba(geometry.chunk().0));
    assert_eq!([first, second].map(|lba| geometry.locate(lba).member.0), [0, 1]);
    let (engine, content) = filled(shape, Order::Fifo);
    let mut members = images(&engine);
    lose(&mut members, &geometry, &[second.0]);
    for (whole, is_whole) in [(geometry.stripe_sectors().0, true), (1, false)] {
        let opened = assembled(MemDisk::new(members.clone(), Order::Fifo), &members);
        let mut engine: Engine<MemDisk, u64> = opened.into_engine().expect("an engine");
        drop(ask(&mut engine, fail(MemberIndex(0))).expect("given up"));
        let new = noise(77, geometry.stripe_sectors().0);
        let write = |lba: Lba, len: u64| Command::Write { lba, buf: buf(&new[..size(Bytes(len * 512))]), fua: false };
        let error = ask(&mut engine, write(first, 1)).expect_err("nobody would hold it");
        assert!(matches!(error, EngineError::Unreadable { .. }), "{error}");
        if !is_whole {
            drop(ask(&mut engine, write(second, 1)).expect("it is on its own member"));
        }
        drop(ask(&mut engine, write(first, whole)).expect("all else is known"));
        let read =
            ask(&mut engine, Command::Read { lba: first, buf: buf(&[0; 512]) }).expect("read").expect("a buffer");
        assert!(read.as_ref() == &new[..512], "whole: {is_whole}");
        let read =
            ask(&mut engine, Command::Read { lba: Lba(1), buf: buf(&[0; 512]) }).expect("read").expect("a buffer");
        let expected = if is_whole { &new[512..1024] } else { &content[512..1024] };
        assert!(read.as_ref() == expected, "whole: {is_whole}");
    }
}
