//! Whole parity stripes, of which the log has sums: what they cost, and what is left of them by a stop at any point,
//! with all members and without one.

use uraid_io::array::recover;
use uraid_io::buf::Pool;
use uraid_io::disk::{MemDisk, OpName, Order};
use uraid_io::engine::{CacheMode, Command, Engine, EngineError, Reply};
use uraid_io::format::superblock::{Consistency, SUPERBLOCK_BYTES, Superblock, encode, positions};
use uraid_io::member::Access;
use uraid_layout::field;
use uraid_layout::{Bytes, Cell, Geometry, Lba, Level, MemberIndex, MemberSet, Placement, StripeId};

use crate::recovery::{superblock, try_assembled};
use crate::support::{
    Members, RAID5, RAID6, SECTOR, Shape, TestEngine, block, buf, encoded, images, noise, rm2, run, size, small, write,
};

/// The stripe that is written in part.
const STRIPE: StripeId = StripeId(1);

fn logged(level: Level, members: u8) -> Shape {
    Shape { chunks: 12, consistency: Consistency::Log, ..small(level, members) }
}

fn shapes() -> [Shape; 4] {
    let rm2s = [logged(rm2(2, Placement::Adjacent), 5), logged(rm2(3, Placement::Partitioned), 7)];
    [logged(RAID5, 4), rm2s[0], rm2s[1], logged(RAID6, 5)]
}

/// An array after a write of a whole stripe, which is in place and not flushed: what the members held before, what they
/// hold, and the array's content of both times.
struct Written {
    shape: Shape,
    geometry: Geometry,
    before: Vec<u8>,
    after: Vec<u8>,
    now: Members,
}

/// With small writes `before` and `after` the whole one: of which data units of the stripe, with which seeds.
fn written(shape: Shape, before: &[(usize, u64)], after: &[(usize, u64)]) -> Written {
    let geometry = shape.geometry();
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
    let mut content = noise(2, geometry.capacity().0);
    write(&mut engine, 0, &content).expect("written");
    drop(run(&mut engine, Command::Flush).expect("flushed"));
    let (stripe, chunk) = (geometry.stripe_sectors().0, geometry.chunk().0);
    let first = STRIPE.0 * stripe;
    let mut put = |content: &mut Vec<u8>, lba: u64, new: &[u8], fua: bool| {
        content[at(lba)..][..new.len()].copy_from_slice(new);
        drop(run(&mut engine, Command::Write { lba: Lba(lba), buf: buf(new), fua }).expect("written"));
    };
    for &(unit, seed) in before {
        put(&mut content, first + unit as u64 * chunk, &noise(seed, chunk), true);
    }
    let was = content.clone();
    put(&mut content, first, &noise(3, stripe), false);
    for &(unit, seed) in after {
        put(&mut content, first + unit as u64 * chunk, &noise(seed, chunk), true);
    }
    Written { shape, before: was, after: content, now: images(&engine), geometry }
}

fn with_write_back(shape: Shape) -> TestEngine {
    let size = Bytes(1 << 20);
    shape.engine(MemberSet::EMPTY, Order::Fifo).with_cache(CacheMode::WriteBack, &Pool::new(size), size)
}

fn at(lba: u64) -> usize {
    usize::try_from(lba).expect("small") * SECTOR
}

impl Written {
    /// All cells of the stripe.
    fn cells(&self) -> Vec<Cell> {
        (0..).map(Cell).take(self.geometry.map(STRIPE).cells()).collect()
    }

    /// Where a cell is on its member.
    fn place(&self, cell: Cell) -> (usize, std::ops::Range<usize>) {
        let own = self.shape.superblocks()[0].areas.data.offset;
        let from = size(own) + at(self.geometry.sector(STRIPE, cell).0);
        (self.geometry.member(cell).index(), from..from + at(self.geometry.chunk().0))
    }

    /// What the members hold where these cells hold what they did `before`; members that are `lost` are not there.
    fn left(&self, old: &[Cell], lost: MemberSet) -> Members {
        let was = encoded(&self.geometry, &self.before);
        let mut members = self.now.clone();
        for &cell in old {
            let (member, range) = self.place(cell);
            let data = at(self.geometry.sector(STRIPE, cell).0);
            let old = &was[member][data..data + range.len()];
            members[member].as_mut().expect("present")[range].copy_from_slice(old);
        }
        lost.iter().for_each(|member| members[member.index()] = None);
        members
    }

    /// The stripe's data units after a start, and what the members hold then.
    fn opened(&self, members: &Members, access: Access) -> (Vec<Option<Vec<u8>>>, Members) {
        self.opened_from(MemDisk::new(members.clone(), Order::Fifo), members, access)
    }

    fn opened_from(&self, disk: MemDisk, members: &Members, access: Access) -> (Vec<Option<Vec<u8>>>, Members) {
        let assembled = try_assembled(disk, members, access).expect("assembled");
        let assembled =
            if assembled.needs_recovery() { recover(assembled, |_| ()).expect("recovered") } else { assembled };
        let mut engine: Engine<MemDisk, u64> = assembled.into_engine().expect("an engine");
        let chunk = self.geometry.chunk().0;
        let first = STRIPE.0 * self.geometry.stripe_sectors().0;
        let units = self.geometry.map(STRIPE).data().len() as u64;
        let units = (0..units).map(|unit| match block(&mut engine, first + unit * chunk) {
            Ok(content) => Some(content),
            Err(EngineError::Unreadable { .. }) => None,
            Err(error) => panic!("{error}"),
        });
        let units = units.collect();
        let disk = engine.disk();
        let members = self.geometry.all_members().iter().map(|slot| disk.member(slot).cloned()).collect();
        (units, members)
    }

    /// A data unit's content in one of the two.
    fn unit(&self, content: &[u8], unit: usize) -> Vec<u8> {
        let chunk = at(self.geometry.chunk().0);
        content[at(STRIPE.0 * self.geometry.stripe_sectors().0) + unit * chunk..][..chunk].to_vec()
    }

    /// What is right to read of each data unit: by what is known of the cells, from parity groups alone.
    fn expected(&self, old: &[Cell], lost: MemberSet) -> Vec<Option<Vec<u8>>> {
        let (map, is_lost) = (self.geometry.map(STRIPE), |cell: Cell| lost.contains(self.geometry.member(cell)));
        let present: Vec<Cell> = self.cells().into_iter().filter(|&cell| !is_lost(cell)).collect();
        let is_all_old = present.iter().all(|cell| old.contains(cell));
        // Which lost cells are known to be what was written.
        let mut new: Vec<Cell> = present.iter().copied().filter(|cell| !old.contains(cell)).collect();
        loop {
            let known = new.len();
            for group in map.groups().iter().filter(|group| !is_lost(group.parity)) {
                if !new.contains(&group.parity) {
                    continue;
                }
                let lacking: Vec<Cell> = group.data.iter().copied().filter(|cell| !new.contains(cell)).collect();
                if let [cell] = lacking[..]
                    && is_lost(cell)
                {
                    new.push(cell);
                }
            }
            // Two of RAID 6 come back together, by both parities.
            let lacking: Vec<Cell> = map.data().iter().copied().filter(|cell| !new.contains(cell)).collect();
            let has_both = map.groups().iter().all(|group| !is_lost(group.parity) && new.contains(&group.parity));
            let is_raid6 = matches!(self.shape.level, Level::Raid6 { .. });
            if is_raid6 && has_both && lacking.len() == 2 && lacking.iter().all(|&cell| is_lost(cell)) {
                new.extend(lacking);
            }
            if new.len() == known {
                break;
            }
        }
        let of = |(unit, &cell): (usize, &Cell)| match is_lost(cell) {
            false if old.contains(&cell) => Some(self.unit(&self.before, unit)),
            true if is_all_old => Some(self.unit(&self.before, unit)),
            true if !new.contains(&cell) => None,
            _ => Some(self.unit(&self.after, unit)),
        };
        map.data().iter().enumerate().map(of).collect()
    }
}

/// Every way to leave out some of a few things; of many things some of these ways.
fn subsets<T: Copy>(all: &[T]) -> impl Iterator<Item = Vec<T>> {
    let all = all.to_vec();
    let step = if all.len() > 6 { 13 } else { 1 };
    (0..1_u32 << all.len()).step_by(step).map(move |bits| {
        let is_in = |index: usize| bits >> index & 1 == 1;
        all.iter().enumerate().filter(|(index, _)| is_in(*index)).map(|(_, &one)| one).collect()
    })
}

#[test]
fn the_log_has_sums_of_whole_stripes_and_all_of_others() {
    for shape in shapes() {
        let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
        let (stripe, members) = (engine.geometry().stripe_sectors().0, u64::from(shape.members));
        let logged = |engine: &TestEngine| engine.counters().total().log_bytes;
        let before = logged(&engine);
        write(&mut engine, stripe, &noise(1, stripe)).expect("written");
        assert_eq!(logged(&engine) - before, members * 2 * 4096, "{shape:?}: a header and a block of sums for each");
        engine.log_sums(false);
        let before = logged(&engine);
        write(&mut engine, stripe, &noise(2, stripe)).expect("written");
        let all = engine.geometry().rows() as u64 * engine.geometry().chunk().bytes().0;
        assert_eq!(logged(&engine) - before, members * (4096 + all), "{shape:?}: a header and the content for each");
    }
}

/// The reply comes when all is in place, and a flush makes that durable: the log does not have it.
#[test]
fn a_whole_stripe_is_in_place_when_it_is_replied_to_and_flushed_by_the_next_flush() {
    for shape in shapes() {
        let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
        let stripe = engine.geometry().stripe_sectors().0;
        let content = noise(1, stripe);
        engine.disk_mut().hold_next_data(MemberIndex(2));
        engine.submit(1, Command::Write { lba: Lba(stripe), buf: buf(&content), fua: false });
        let mut replies = Vec::new();
        engine.disk_mut().allow_reaps(usize::MAX);
        engine.turn(&mut replies).expect("memory does not break");
        assert!(replies.is_empty() && engine.disk().held() == 1, "{shape:?}: {replies:?} before it is in place");
        engine.disk_mut().let_go(MemberIndex(2), OpName::Write);
        engine.turn(&mut replies).expect("memory does not break");
        assert!(matches!(replies[..], [Reply { token: 1, result: Ok(_) }]), "{shape:?}: {replies:?}");
        assert_eq!(crate::support::read(&mut engine, stripe, stripe).expect("read"), content, "{shape:?}");
        let before = engine.counters().total().flushes;
        drop(run(&mut engine, Command::Flush).expect("flushed"));
        let members = u64::from(shape.members);
        assert_eq!(engine.counters().total().flushes - before, members, "{shape:?}: all that were written");
        assert_eq!(crate::support::durable_content(&engine)[at(stripe)..][..content.len()], content, "{shape:?}");
        drop(run(&mut engine, Command::Flush).expect("flushed"));
        assert_eq!(engine.counters().total().flushes - before, members, "{shape:?}: nothing is left to flush");
    }
}

/// With write-back the reply comes when the log has the sums; a flush, and a durable write, wait for the rest.
#[test]
fn with_write_back_a_whole_stripe_is_replied_to_early_and_a_flush_waits_for_it() {
    for shape in shapes() {
        let mut engine = with_write_back(shape);
        let stripe = engine.geometry().stripe_sectors().0;
        let content = noise(1, stripe);
        engine.disk_mut().hold_next_data(MemberIndex(2));
        engine.submit(1, Command::Write { lba: Lba(stripe), buf: buf(&content), fua: false });
        let mut replies = Vec::new();
        engine.disk_mut().allow_reaps(usize::MAX);
        engine.turn(&mut replies).expect("memory does not break");
        assert!(matches!(replies[..], [Reply { token: 1, result: Ok(_) }]), "{shape:?}: {replies:?}");
        assert_eq!(engine.disk().held(), 1, "{shape:?}: it is not in place");
        replies.clear();
        engine.submit(2, Command::Flush);
        engine.turn(&mut replies).expect("memory does not break");
        assert!(replies.is_empty(), "{shape:?}: {replies:?} before it is in place");
        engine.disk_mut().let_go(MemberIndex(2), OpName::Write);
        engine.turn(&mut replies).expect("memory does not break");
        assert!(matches!(replies[..], [Reply { token: 2, result: Ok(_) }]), "{shape:?}: {replies:?}");
        assert_eq!(crate::support::durable_content(&engine)[at(stripe)..][..content.len()], content, "{shape:?}");

        let content = noise(2, stripe);
        replies.clear();
        engine.disk_mut().hold_next_data(MemberIndex(1));
        engine.submit(3, Command::Write { lba: Lba(stripe), buf: buf(&content), fua: true });
        engine.turn(&mut replies).expect("memory does not break");
        assert!(replies.is_empty() && engine.disk().held() == 1, "{shape:?}: {replies:?} before it is durable");
        engine.disk_mut().let_go(MemberIndex(1), OpName::Write);
        engine.turn(&mut replies).expect("memory does not break");
        assert!(matches!(replies[..], [Reply { token: 3, result: Ok(_) }]), "{shape:?}: {replies:?}");
        assert_eq!(crate::support::durable_content(&engine)[at(stripe)..][..content.len()], content, "{shape:?}");
    }
}

/// With write-back, whole stripes are replied to before anything is written, and while others are being written in
/// place their record waits for more; but not when a flush waits for them.
#[test]
fn while_stripes_are_written_in_place_others_come_together_in_a_record() {
    for shape in shapes() {
        let mut engine = with_write_back(shape);
        let stripe = engine.geometry().stripe_sectors().0;
        let contents: Vec<Vec<u8>> = (0..4).map(|number| noise(number, stripe)).collect();
        let (held, mut replies) = (MemberIndex(2), Vec::new());
        engine.disk_mut().allow_reaps(usize::MAX);
        let records = |engine: &TestEngine| engine.counters().member(held).log_records;
        engine.disk_mut().hold_next_data(held);
        for (number, content) in (0..).zip(&contents) {
            engine.submit(number, Command::Write { lba: Lba(number * stripe), buf: buf(content), fua: false });
            engine.turn(&mut replies).expect("memory does not break");
            assert!(matches!(replies.pop(), Some(Reply { token, result: Ok(_) }) if token == number), "{shape:?}");
            assert_eq!((records(&engine), engine.disk().held()), (1, 1), "{shape:?}: {number}");
        }
        engine.submit(9, Command::Flush);
        engine.disk_mut().hold(MemberIndex(1), OpName::Write);
        engine.turn(&mut replies).expect("memory does not break");
        assert_eq!((records(&engine), engine.disk().held()), (2, 2), "{shape:?}: the others have one record");
        engine.disk_mut().let_go(held, OpName::Write);
        engine.turn(&mut replies).expect("memory does not break");
        assert!(replies.is_empty(), "{shape:?}: {replies:?} before that is written");
        engine.disk_mut().let_go(MemberIndex(1), OpName::Write);
        engine.turn(&mut replies).expect("memory does not break");
        assert!(matches!(replies[..], [Reply { token: 9, result: Ok(_) }]), "{shape:?}: {replies:?}");
        assert_eq!(crate::support::durable_content(&engine)[..at(4 * stripe)], contents.concat(), "{shape:?}");
    }
}

/// In every combination of cells that are written and cells that are not, and without any one member: what is there is
/// read as it is, what is lost is read only where parity tells it, and parity agrees after that.
#[test]
fn whatever_of_a_stripe_is_written_nothing_is_invented() {
    let mut lost_units = 0;
    for shape in &shapes()[..2] {
        let written = written(*shape, &[], &[]);
        let all = shape.geometry().all_members();
        let losses = all.iter().map(|member| MemberSet::EMPTY.with(member)).chain([MemberSet::EMPTY]);
        for lost in losses {
            let cells: Vec<Cell> = written.cells();
            let present: Vec<Cell> =
                cells.iter().copied().filter(|&cell| !lost.contains(written.geometry.member(cell))).collect();
            for old in subsets(&present) {
                let context = format!("{shape:?}, without {lost:?}, old: {old:?}");
                let expected = written.expected(&old, lost);
                let left = written.left(&old, lost);
                let (seen, members) = written.opened(&left, Access::ReadOnly);
                assert_eq!(seen, expected, "{context}, only read");
                assert!(members == left, "{context}: written though it was only read");
                let (found, members) = written.opened(&left, Access::ReadWrite);
                assert_eq!(found, expected, "{context}");
                lost_units += found.iter().filter(|unit| unit.is_none()).count();
                if lost.is_empty() {
                    assert_agrees(&written, &members, &context);
                }
            }
        }
    }
    assert!(lost_units > 0, "of some nobody can tell what they were");
}

/// Parity is what the data says, on members that are all there.
fn assert_agrees(written: &Written, members: &Members, context: &str) {
    let bytes = |cell: Cell| {
        let (member, range) = written.place(cell);
        &members[member].as_ref().expect("present")[range]
    };
    for group in written.geometry.map(STRIPE).groups() {
        let mut sum = bytes(group.parity).to_vec();
        for (cell, factor) in group.data_terms() {
            field::add_multiple(&mut sum, bytes(cell), factor);
        }
        assert!(sum.iter().all(|&byte| byte == 0), "{context}: parity does not agree");
    }
}

/// A stripe's older record is done again where the stripe is not written, and nowhere else.
#[test]
fn an_older_record_is_done_again_where_nothing_newer_is_written() {
    for shape in &shapes()[..2] {
        let written = written(*shape, &[(0, 7)], &[]);
        let cells = written.cells();
        for old in subsets(&cells) {
            let context = format!("{shape:?}, old: {old:?}");
            // What is not written is from before the small write, too: that was not flushed.
            let mut left = written.left(&old, MemberSet::EMPTY);
            let was = encoded(&written.geometry, &noise(2, written.geometry.capacity().0));
            for &cell in &old {
                let (member, range) = written.place(cell);
                let data = at(written.geometry.sector(STRIPE, cell).0);
                let len = range.len();
                left[member].as_mut().expect("present")[range].copy_from_slice(&was[member][data..data + len]);
            }
            let (found, members) = written.opened(&left, Access::ReadWrite);
            assert_eq!(found, written.expected(&old, MemberSet::EMPTY), "{context}");
            assert_agrees(&written, &members, &context);
        }
    }
}

/// What can't be read may have been written: an older record does not take its place. It is computed from the others,
/// or can't be had.
#[test]
fn an_older_record_is_not_done_again_where_nothing_can_be_read() {
    let written = written(logged(RAID5, 4), &[(0, 7)], &[]);
    let map = written.geometry.map(STRIPE);
    let holders: Vec<Cell> = vec![map.data()[0], map.groups()[0].parity];
    for unreadable in holders {
        for lost in
            [None].into_iter().chain(written.cells().into_iter().map(Some)).filter(|&lost| lost != Some(unreadable))
        {
            for access in [Access::ReadOnly, Access::ReadWrite] {
                let lost_set = lost.into_iter().map(|cell| written.geometry.member(cell)).collect();
                let members = written.left(&[], lost_set);
                let mut disk = MemDisk::new(members.clone(), Order::Fifo);
                let (_, range) = written.place(unreadable);
                let (offset, len) = (Bytes(range.start as u64), Bytes(range.len() as u64));
                disk.spoil(written.geometry.member(unreadable), offset, len);
                let (found, _) = written.opened_from(disk, &members, access);
                for (unit, &cell) in map.data().iter().enumerate() {
                    let is_had = lost.is_none() || ![Some(unreadable), lost].contains(&Some(cell));
                    let expected = is_had.then(|| written.unit(&written.after, unit));
                    assert_eq!(
                        found[unit], expected,
                        "{unreadable:?} unreadable, without {lost:?}, {access:?}: {unit}"
                    );
                }
            }
        }
    }
}

/// A later record of one unit was made when the whole stripe was in place, which need not be durable: what it has
/// counts, and parity that it has is believed only where all else is there.
#[test]
fn a_later_record_of_a_unit_counts_and_its_parity_where_the_rest_is_written() {
    let shape = logged(RAID5, 4);
    let written = written(shape, &[], &[(1, 9)]);
    let map = written.geometry.map(STRIPE);
    let (small, parity) = (map.data()[1], map.groups()[0].parity);
    let others: Vec<Cell> = map.data().iter().copied().filter(|&cell| cell != small).collect();
    for old in subsets(&others) {
        for lost in [None, Some(small), Some(others[0]), Some(others[1]), Some(parity)] {
            let lost_set = lost.map_or(MemberSet::EMPTY, |cell| MemberSet::EMPTY.with(written.geometry.member(cell)));
            if lost.is_some_and(|cell| old.contains(&cell)) {
                continue;
            }
            let context = format!("old: {old:?}, without {lost_set:?}");
            let (found, members) = written.opened(&written.left(&old, lost_set), Access::ReadWrite);
            for (unit, &cell) in map.data().iter().enumerate() {
                let expected = match () {
                    () if Some(cell) == lost && !old.is_empty() => None,
                    () if old.contains(&cell) => Some(written.unit(&written.before, unit)),
                    () => Some(written.unit(&written.after, unit)),
                };
                assert_eq!(found[unit], expected, "{context}, unit {unit}");
            }
            if lost.is_none() {
                assert_agrees(&written, &members, &context);
            }
        }
    }
}

/// Begun again after it was cut off anywhere, and without one more member, a start invents nothing.
#[test]
fn a_start_that_is_cut_off_and_begun_again_without_a_member_invents_nothing() {
    let shape = logged(RAID5, 4);
    let written = written(shape, &[], &[]);
    let cells = written.cells();
    for old in subsets(&cells) {
        let left = written.left(&old, MemberSet::EMPTY);
        // Parity may have been computed again, and nothing of that is on record.
        let map = written.geometry.map(STRIPE);
        let (member, range) = written.place(map.groups()[0].parity);
        let mut mended = left.clone();
        let mut sum = vec![0; range.len()];
        for &cell in map.data() {
            let (member, range) = written.place(cell);
            sum.iter_mut().zip(&left[member].as_ref().expect("present")[range]).for_each(|(sum, byte)| *sum ^= byte);
        }
        mended[member].as_mut().expect("present")[range].copy_from_slice(&sum);
        for member in written.geometry.all_members().iter() {
            let mut members = mended.clone();
            members[member.index()] = None;
            let (found, _) = written.opened(&members, Access::ReadWrite);
            for (unit, &cell) in map.data().iter().enumerate() {
                let content = if old.contains(&cell) { &written.before } else { &written.after };
                let is_lost = written.geometry.member(cell) == member;
                let is_right = found[unit].as_ref().map_or(is_lost, |found| *found == written.unit(content, unit));
                assert!(is_right, "old: {old:?}, without {member}: unit {unit} is invented");
            }
        }
    }
}

/// While a member is missing, parity may be all that tells what it holds: the log has the content.
#[test]
fn without_a_member_the_log_has_the_content() {
    let shape = logged(RAID5, 4);
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
    drop(run(&mut engine, Command::Fail { member: MemberIndex(2) }).expect("given up"));
    let stripe = engine.geometry().stripe_sectors().0;
    let before = engine.counters().total().log_bytes;
    write(&mut engine, stripe, &noise(1, 2 * stripe)).expect("written");
    assert_eq!(engine.counters().total().log_bytes - before, 3 * 3 * 4096, "a header and two chunks for each");
}

/// An array whose sectors are 4096 bytes: where some of one happens to be what a later write was to bring there, all of
/// it is done again.
#[test]
fn an_older_record_is_done_again_in_whole_sectors() {
    let shape = logged(RAID5, 4);
    let written = written(shape, &[(0, 7)], &[]);
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
    let (stripe, chunk) = (written.geometry.stripe_sectors().0, written.geometry.chunk().0);
    let first = STRIPE.0 * stripe;
    let content = noise(2, written.geometry.capacity().0);
    write(&mut engine, 0, &content).expect("written");
    drop(run(&mut engine, Command::Flush).expect("flushed"));
    let small = Command::Write { lba: Lba(first), buf: buf(&noise(7, chunk)), fua: true };
    drop(run(&mut engine, small).expect("written"));
    let mut whole = noise(3, stripe);
    whole[..SECTOR].copy_from_slice(&content[at(first)..][..SECTOR]);
    write(&mut engine, first, &whole).expect("written");
    let mut members = images(&engine);
    for bytes in members.iter_mut().flatten() {
        let own = Superblock { sector_size: Bytes(4096), ..superblock(bytes) };
        for position in positions(Bytes(bytes.len() as u64)).expect("large enough") {
            bytes[size(position)..][..SUPERBLOCK_BYTES].copy_from_slice(&encode(&own));
        }
    }
    // The first unit is as before the small write, and the others are written.
    let cell = written.geometry.map(STRIPE).data()[0];
    let (member, range) = written.place(cell);
    let len = range.len();
    members[member].as_mut().expect("present")[range].copy_from_slice(&content[at(first)..][..len]);
    let mut disk = MemDisk::new(members.clone(), Order::Fifo);
    disk.set_sector_size(Bytes(4096));
    let assembled = try_assembled(disk, &members, Access::ReadWrite).expect("assembled");
    let mut engine: Engine<MemDisk, u64> = recover(assembled, |_| ()).expect("recovered").into_engine().expect("one");
    assert!(engine.missing().is_empty(), "a member was given something smaller than its sectors");
    assert_eq!(block(&mut engine, first).expect("read"), noise(7, chunk), "all of the small write");
}
