//! Members that return what nobody wrote there, of an array with checksums.

use uraid_io::engine::Command;
use uraid_io::format::superblock::{Consistency, Integrity};
use uraid_layout::{Bytes, MemberSet};

use super::array::{Array, BLOCK, Opening, RAID5, expected};
use crate::disk::{Fault, Planned, Steps};
use crate::members::MemberSector;

/// What a sector of a table covers.
const BLOCKS_IN_SECTOR: u64 = 127;
const SECTOR: u64 = 512;

fn checked(blocks: u64) -> Result<Array, String> {
    let array = Array::new(RAID5, 3, Consistency::Log, Integrity::Crc32, blocks);
    let count = array.blocks();
    array.with_written(0..count, 1)
}

/// Where the checksum of the block is that a member has there.
fn sum_of(array: &Array, place: MemberSector) -> MemberSector {
    let block = (place.offset.0 - array.areas.data.offset.0) / BLOCK;
    let offset = block / BLOCKS_IN_SECTOR * SECTOR + block % BLOCKS_IN_SECTOR * 4;
    MemberSector { offset: Bytes(array.areas.sums.offset.0 + offset), ..place }
}

fn flip(array: &mut Array, place: MemberSector) {
    let sector = MemberSector { offset: Bytes(place.offset.0 / SECTOR * SECTOR), ..place };
    let mut bytes = array.bytes(sector, SECTOR);
    bytes[usize::try_from(place.offset.0 % SECTOR).expect("small")] ^= 0x10;
    array.put(sector, &bytes);
}

pub(super) fn rot_is_found_and_healed() -> Result<(), String> {
    for block in 0..4 {
        let mut array = checked(4)?;
        let place = array.place(block);
        flip(&mut array, MemberSector { offset: Bytes(place.offset.0 + 1000), ..place });
        let mut life = array.open(Opening::Recovered)?;
        if life.read(block)? != expected(block, 1) {
            return Err(format!("block {block} has rotted and is given out"));
        }
        life.run(Command::Close)?;
        array.members = life.disk.members();
        if array.bytes(place, BLOCK) != expected(block, 1) {
            return Err(format!("block {block} was found rotten, and still is"));
        }
    }
    Ok(())
}

pub(super) fn a_member_that_does_not_take_what_heals_it_is_failed() -> Result<(), String> {
    let mut array = checked(4)?;
    let place = array.place(0);
    flip(&mut array, place);
    let mut life = array.open(Opening::Recovered)?;
    let lost = Planned { member: place.member, index: 0, fault: Fault::Lost, lasts: true };
    life.disk.plan(lost);
    if life.read(0)? != expected(0, 1) {
        return Err("what has rotted is given out".into());
    }
    if life.missing().contains(place.member) { Ok(()) } else { Err("it counts as healed".into()) }
}

/// A write was lost, together with its checksum. What the member holds is sound, and its neighbour can't be computed of
/// it.
pub(super) fn what_is_computed_of_stale_content_is_not_given_out() -> Result<(), String> {
    let before = checked(4)?;
    let [first, second] = [0, 1].map(|block| before.place(block));
    let table = MemberSector { offset: before.areas.sums.offset, ..second };
    let [content, sums] = [(second, BLOCK), (table, BLOCK)].map(|(place, len)| before.bytes(place, len));
    let mut array = before.with_written(1..2, 2)?;
    array.put(second, &content);
    array.put(table, &sums);
    flip(&mut array, first);
    let found = array.open(Opening::Recovered)?.read(0);
    match found {
        Ok(found) if found != expected(0, 1) => Err("wrong content is given out".into()),
        _ => Ok(()),
    }
}

/// Nothing else says what the blocks hold, and nothing contradicts them either.
pub(super) fn damaged_checksums_cost_nothing() -> Result<(), String> {
    let array = checked(4)?;
    for block in 0..array.blocks() {
        let place = array.place(block);
        for lost in array.geometry.all_members().without(place.member).iter() {
            let mut array = array.without(MemberSet::EMPTY.with(lost));
            let sum = sum_of(&array, place);
            flip(&mut array, sum);
            let found = array.open(Opening::Recovered)?.read(block)?;
            if found != expected(block, 1) {
                return Err(format!("block {block} is wrong"));
            }
        }
    }
    Ok(())
}

/// What a member is missing for is computed from blocks of which each has to agree with its checksum.
pub(super) fn a_crash_leaves_checksums_that_agree() -> Result<(), String> {
    let before = checked(4)?;
    for steps in 1..160 {
        let mut life = before.open(Opening::Recovered)?;
        life.disk.cut_after(Steps(steps));
        // Of one block several times, so that the log goes on; whatever becomes of it.
        let is_over = (2..4).all(|number| life.write(0, number).is_ok()) && life.run(Command::Close).is_ok();
        for keeps in 0..4 {
            let mut array = before.clone();
            array.members = life.disk.members().cut(|place, count| {
                let is_of = |start: Bytes, end: u64| (start.0..end).contains(&place.offset.0);
                let is_data = is_of(array.areas.data.offset, array.areas.data.offset.0 + 4 * BLOCK);
                let is_table = is_of(array.areas.sums.offset, array.areas.data.offset.0);
                let is_kept = !(is_data && keeps & 1 == 0 || is_table && keeps & 2 == 0);
                if is_kept { count - 1 } else { 0 }
            });
            let mut life = array.open(Opening::Recovered)?;
            life.run(Command::Close)?;
            array.members = life.disk.members();
            check_without_each(&array).map_err(|wrong| format!("cut after {steps} steps, leaving {keeps}: {wrong}"))?;
        }
        if is_over {
            return Ok(());
        }
    }
    Err("the power went too early to see the end".into())
}

fn check_without_each(array: &Array) -> Result<(), String> {
    for lost in array.geometry.all_members().iter() {
        let mut life = array.without(MemberSet::EMPTY.with(lost)).open(Opening::ForReading)?;
        for block in 0..array.blocks() {
            let found = life.read(block).map_err(|error| format!("without member {lost}: block {block}: {error}"))?;
            let mut numbers = if block == 0 { 1..4 } else { 1..2 };
            if !numbers.any(|number| found == expected(block, number)) {
                return Err(format!("without member {lost}: block {block} is wrong"));
            }
        }
    }
    Ok(())
}
