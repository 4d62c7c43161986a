//! What can't be rebuilt, and the power that goes at every step of finding that out and of making it good.

use std::cell::Cell;
use std::ops::Range;

use uraid_io::buf::Buf;
use uraid_io::engine::{Command, Joining};
use uraid_io::format::badblocks::BadBlocks;
use uraid_io::format::superblock::{Consistency, Integrity, Revision, Superblock};
use uraid_layout::{Bytes, Lba, Level, MemberIndex};
use uuid::Uuid;

use super::array::{Array, BLOCK, Life, Opening, RAID5, expected};
use crate::member::{Member, Payload};
use crate::members::Members;
use uraid_random::Random;

/// Who is lost, and who can't be read where its content is to be computed.
const LOST: MemberIndex = MemberIndex(1);

/// What a power cut leaves is drawn so often.
const DRAWS: u64 = 3;

/// An array of which a member is lost, and another can't read a block of a parity stripe; the block of content that
/// nobody has then.
struct Holed {
    array: Array,
    hole: u64,
}

impl Holed {
    /// RAID 5 of four, left-symmetric: the second stripe has its parity on member 2, and its data on 3, 0 and 1.
    fn new(consistency: Consistency, integrity: Integrity) -> Result<Self, String> {
        let mut array = Array::new(RAID5, 4, consistency, integrity, 3).with_written(0..9, 1)?;
        let hole = (3..6).find(|&block| array.place(block).member == LOST).ok_or("it has no unit in that stripe")?;
        let place = array.place(hole);
        array.members.replace(LOST, None);
        array.members.get_mut(MemberIndex(2)).expect("it is there").spoil(place.offset, Bytes(BLOCK));
        Ok(Self { array, hole })
    }

    /// A new member, which holds anything, joins and is rebuilt; then what is lost is written anew.
    fn live(&self, life: &mut Life, has_joined: &Cell<bool>, is_written: &Cell<bool>) -> Result<(), String> {
        let truth = life.superblock();
        let member = Uuid::from_u64_pair(0xBAD, 1);
        let mut superblock = Superblock { member, slot: LOST, revision: Revision(0), ..truth };
        superblock.slots[LOST.index()].member = member;
        let mut new = Member::zeroed(superblock.areas.member_size);
        let len = usize::try_from(self.array.geometry.used_sectors().bytes().0).expect("a small member");
        new.write(superblock.areas.data.offset, Payload::Bytes(vec![0xA5; len].into()));
        new.flush();
        life.disk.put(LOST, Some(new));
        let generation = Uuid::from_u64_pair(0xBAD, 2);
        let bad_blocks = BadBlocks::default();
        life.run(Command::Join(Box::new(Joining { superblock, is_whole: true, generation, bad_blocks })))?;
        life.rebuild()?;
        has_joined.set(true);
        life.run(write(self.hole, 2))?;
        is_written.set(true);
        life.run(Command::Close).map(drop)
    }

    /// Whether what is left has all that it must have, and nothing that nobody wrote.
    fn check(&self, members: Members, may_be: &[u64], must_be_there: bool) -> Result<(), String> {
        // What it has it keeps.
        let mut may_lack = !must_be_there;
        let mut left = Array { members, ..self.array.clone() };
        for opening in 1..3 {
            let mut life = left.open(Opening::Recovered).map_err(|no| format!("opening {opening}: {no}"))?;
            let lacks = life.lacks(LOST);
            if lacks && !may_lack {
                return Err(format!("opening {opening}: the member lacks what was written"));
            }
            may_lack = true;
            for block in 0..left.blocks() {
                match life.read(block) {
                    Ok(found) if block == self.hole => {
                        if !may_be.iter().any(|&number| found == expected(block, number)) {
                            return Err(format!("opening {opening}: block {block} is made up"));
                        }
                        may_lack = lacks;
                    }
                    Ok(found) if found == expected(block, 1) => {}
                    Ok(_) => return Err(format!("opening {opening}: block {block} is wrong")),
                    Err(_) if block == self.hole && !must_be_there => {}
                    Err(no) => return Err(format!("opening {opening}: block {block}: {no}")),
                }
            }
            life.run(Command::Close)?;
            left.members = life.disk.members();
        }
        Ok(())
    }
}

/// The ways in which an array is kept, in which what is computed can be relied on after a crash.
fn kept() -> [(Consistency, Integrity); 3] {
    [(Consistency::Log, Integrity::None), (Consistency::Log, Integrity::Crc32), (Consistency::Bitmap, Integrity::None)]
}

fn cuts(steps: Range<u64>, holed: &Holed) -> Result<u64, String> {
    let mut cuts = 0;
    for step in steps {
        let (has_joined, is_written) = (Cell::new(false), Cell::new(false));
        let (members, is_over) = holed.array.cut_off(step, |life| holed.live(life, &has_joined, &is_written))?;
        // Before the new one has joined nobody has it.
        for draw in 0..DRAWS {
            let mut random = Random::new(step * DRAWS + draw);
            let mut left = members.cut(|_, count| match draw {
                0 => 0,
                1 => count - 1,
                _ => random.index(count),
            });
            if left.get(LOST).is_some_and(|member| member.superblock().is_err()) {
                left.replace(LOST, None);
            }
            let all = holed.array.geometry.all_members();
            let is_there = left.present() == all;
            holed.check(left, &[2], is_written.get() && is_there).map_err(|no| {
                let said = (has_joined.get(), is_written.get());
                format!("cut off after {step} steps, draw {draw}, joined and written {said:?}: {no}")
            })?;
        }
        cuts += 1;
        if is_over {
            break;
        }
    }
    Ok(cuts)
}

pub(super) fn a_hole_is_known_wherever_the_power_goes() -> Result<(), String> {
    for (consistency, integrity) in kept() {
        let holed = Holed::new(consistency, integrity)?;
        let cuts = cuts(0..5000, &holed).map_err(|no| format!("{consistency:?}, {integrity:?}: {no}"))?;
        if !(50..5000).contains(&cuts) {
            return Err(format!("{consistency:?}, {integrity:?}: {cuts} cuts"));
        }
    }
    Ok(())
}

/// A member that can't be read in one place is copied to another one, which says that it lacks that, too.
pub(super) fn a_copy_takes_its_list_along_wherever_the_power_goes() -> Result<(), String> {
    let mut array = Array::new(Level::Raid0, 2, Consistency::Log, Integrity::None, 4).with_written(0..8, 1)?;
    let hole = (0..8).find(|&block| array.place(block).member == LOST).ok_or("no block is on it")?;
    let place = array.place(hole);
    array.members.get_mut(LOST).expect("it is there").spoil(place.offset, Bytes(BLOCK));
    let holed = Holed { array, hole };
    let mut cuts = 0;
    for step in 0..5000 {
        let is_written = Cell::new(false);
        let (members, is_over) = holed.array.cut_off(step, |life| copy(&holed, life, &is_written))?;
        cuts += 1;
        for draw in 0..DRAWS {
            let mut random = Random::new(step * DRAWS + draw);
            let left = members.cut(|_, count| if draw == 0 { 0 } else { random.index(count) });
            let seat = MemberIndex(2);
            // Whoever says that it has the slot is the one; what is at the seat is the old one then.
            let (mut slots, new) = (left.only(holed.array.geometry.all_members()), left.get(seat).cloned());
            let is_new = |member: &Member| member.superblock().is_ok_and(|own| own.member == NEW);
            if let Some(new) = new.filter(is_new)
                && !slots.get(LOST).is_some_and(is_new)
            {
                slots.replace(LOST, Some(new));
            }
            let context = format!("cut off after {step} steps, draw {draw}, written {}", is_written.get());
            holed.check(slots, &[2], is_written.get()).map_err(|no| format!("{context}: {no}"))?;
        }
        if is_over {
            break;
        }
    }
    if (30..5000).contains(&cuts) { Ok(()) } else { Err(format!("{cuts} cuts")) }
}

const NEW: Uuid = Uuid::from_u128(0xBAD_0001);

fn copy(holed: &Holed, life: &mut Life, is_written: &Cell<bool>) -> Result<(), String> {
    let truth = life.superblock();
    let mut superblock = Superblock { member: NEW, slot: LOST, revision: Revision(0), ..truth };
    superblock.slots[LOST.index()].member = NEW;
    let mut new = Member::zeroed(superblock.areas.member_size);
    let len = usize::try_from(holed.array.geometry.used_sectors().bytes().0).expect("a small member");
    new.write(superblock.areas.data.offset, Payload::Bytes(vec![0xA5; len].into()));
    new.flush();
    life.disk.put(MemberIndex(2), Some(new));
    let generation = Uuid::from_u64_pair(0xBAD, 3);
    let bad_blocks = BadBlocks::default();
    life.run(Command::Replace(Box::new(Joining { superblock, is_whole: true, generation, bad_blocks })))?;
    life.copy()?;
    life.run(write(holed.hole, 2))?;
    is_written.set(true);
    life.run(Command::Close).map(drop)
}

/// A write of a block that is to be durable when it is replied to.
fn write(block: u64, number: u64) -> Command {
    let mut buf = Buf::zeroed(Bytes(BLOCK));
    buf.as_mut().copy_from_slice(&expected(block, number));
    Command::Write { lba: Lba(block * 8), buf, fua: true }
}

/// A list that does not fit a sector is changed: of its two copies one is always whole.
pub(super) fn a_long_list_is_whole_wherever_the_power_goes() -> Result<(), String> {
    const BLOCKS: u64 = 100;
    let mut array =
        Array::new(Level::Raid1, 2, Consistency::Log, Integrity::None, BLOCKS).with_written(0..BLOCKS, 1)?;
    array.members.replace(LOST, None);
    let other = array.members.get_mut(MemberIndex(0)).expect("it is there");
    other.spoil(array.areas.data.offset, Bytes(BLOCKS * BLOCK));
    let holed = Holed { array, hole: 0 };
    let mut life = holed.array.open(Opening::Recovered)?;
    let is_never = Cell::new(false);
    holed.live(&mut life, &is_never, &is_never)?;
    let long = Array { members: life.disk.members(), ..holed.array };
    for step in 0..5000 {
        let (members, is_over) = long.cut_off(step, |life| life.run(write(BLOCKS - 1, 2)).map(drop))?;
        for seed in 0..8 {
            let mut random = Random::new(step * 8 + seed);
            let members = members.cut(|_, count| random.index(count));
            let mut life = Array { members, ..long.clone() }.open(Opening::Recovered)?;
            let (missing, first, last) = (life.missing(), life.read(0), life.read(BLOCKS - 1));
            let is_right =
                first == Ok(expected(0, 2)) && last.as_ref().is_ok_and(|last| *last == expected(BLOCKS - 1, 2));
            if !missing.is_empty() || !(is_right || last.is_err() && !is_over && first == Ok(expected(0, 2))) {
                return Err(format!("cut off after {step} steps, draw {seed}: without {missing:?}, {:?}", last.err()));
            }
            if life.read(BLOCKS / 2).is_ok() {
                return Err(format!("cut off after {step} steps, draw {seed}: a block is made up"));
            }
        }
        if is_over {
            return if step > 10 { Ok(()) } else { Err(format!("{step} cuts")) };
        }
    }
    Err("it does not end".into())
}
