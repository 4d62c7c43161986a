//! Checksums that a member has lost, with a part of its table that is damaged: what it holds is believed only where
//! nothing else says what was written there.

use uraid_io::disk::Order;
use uraid_io::engine::{Command, EngineError};
use uraid_io::format::BLOCK_BYTES as BLOCK;
use uraid_io::format::superblock::SUMS_IN_SECTOR;
use uraid_layout::repair::Repair;
use uraid_layout::{Bytes, Cell, Geometry, Lba, Level, MemberIndex, Placement, StripeId};

use crate::sums::{assert_content, data_blocks, filled, is_mirror, redundant};
use crate::support::{Members, RAID5, Shape, images, read, rm2, run, shapes, size, small, tolerated};

/// The members of an array that was filled and stopped, and what it holds.
fn stopped(shape: Shape) -> (Members, Vec<u8>) {
    let (mut engine, content) = filled(shape);
    run(&mut engine, Command::Close).expect("closed");
    (images(&engine), content)
}

/// Where a member has its table of checksums, and its data.
fn places(shape: Shape) -> (usize, usize) {
    let areas = shape.superblocks()[0].areas;
    (size(areas.sums.offset), size(areas.data.offset))
}

/// Where nothing else says what the blocks hold, lost checksums cost nothing but the check.
#[test]
fn content_without_its_checksums_is_read_where_nothing_else_has_it() {
    for (level, missing) in [(Level::Raid0, None), (RAID5, Some(2))] {
        let shape = small(level, 3).checked();
        let (healthy, content) = stopped(shape);
        let (table, _) = places(shape);
        let mut members = healthy;
        members[1].as_mut().expect("present")[table] ^= 1;
        if let Some(missing) = missing {
            members[missing] = None;
        }
        let mut engine = shape.reopened(members, Order::Fifo);
        assert_content(&mut engine, &content, "unchecked");
        assert_eq!(engine.counters().total().unrepairable, 0);
    }
}

/// A copy that lost its checksums is held against those of the other copies, where these hold something else.
#[test]
fn a_copy_without_its_checksums_is_held_against_the_other_copies() {
    let (mut read_right, mut refused) = (0, 0);
    for shape in redundant().filter(|&shape| is_mirror(shape)) {
        let shape = shape.checked();
        let (healthy, content) = stopped(shape);
        let (table, data) = places(shape);
        let geometry = shape.geometry();
        let copies: Vec<_> = [geometry.locate(Lba(0))].into_iter().chain(geometry.parity_of(Lba(0))).collect();
        for (known, is_right) in copies.iter().flat_map(|copy| [(copy, true), (copy, false)]) {
            let mut members = healthy.clone();
            for copy in &copies {
                let bytes = members[copy.member.index()].as_mut().expect("present");
                bytes[table] ^= u8::from(copy != known);
                bytes[data + size(Bytes(copy.sector.0 * 512))] ^=
                    if copy == known { 1 } else { 2 * u8::from(!is_right) };
            }
            let mut engine = shape.reopened(members, Order::Fifo);
            match read(&mut engine, 0, 8) {
                Ok(found) => {
                    assert!(is_right && found == content[..BLOCK], "{shape:?}, {known:?}, {is_right}");
                    read_right += 1;
                }
                Err(EngineError::Unreadable { .. }) => refused += usize::from(!is_right),
                Err(error) => panic!("{shape:?}, {known:?}, {is_right}: {error}"),
            }
        }
    }
    assert!(read_right > 0 && refused > 0, "{read_right} {refused}");
}

/// What is wrong in one place says nothing of another: a member's content is no better there for being read together
/// with it.
#[test]
fn lost_checksums_are_believed_only_where_nothing_else_is_left() {
    let shape = Shape { chunks: 6, ..small(RAID5, 3) }.checked();
    let (healthy, content) = stopped(shape);
    let (table, data) = places(shape);
    let (first, second) = (data_blocks(shape, MemberIndex(0)), data_blocks(shape, MemberIndex(1)));
    // Its neighbour has parity there, which is right, and wrong content everywhere else.
    let wrong = *first.iter().find(|block| !second.contains(block)).expect("parity goes around");
    let mut members = healthy.clone();
    members[0].as_mut().expect("present")[data + wrong * BLOCK] ^= 1;
    let neighbour = members[1].as_mut().expect("present");
    neighbour[table] ^= 1;
    second.iter().for_each(|block| neighbour[data + block * BLOCK] ^= 1);
    for order in [Order::Fifo, Order::Lifo, Order::Seeded(3)] {
        let mut engine = shape.reopened(members.clone(), order);
        let len = engine.geometry().capacity().0;
        assert!(read(&mut engine, 0, len).expect("read") == content, "{order:?}: one long read");
        assert_eq!(engine.counters().total().unrepairable, 0, "{order:?}");
    }
}

/// With as many members missing as RM2 survives, some of what another one has can still be computed.
#[test]
fn lost_checksums_are_not_believed_where_a_degraded_array_has_the_content() {
    let mut computed = 0;
    for shape in shapes().into_iter().filter(|shape| shape.geometry().tolerance() == 2 && !is_mirror(*shape)) {
        let shape = shape.checked();
        let (healthy, content) = stopped(shape);
        let (table, data) = places(shape);
        let geometry = shape.geometry();
        for other in (1..shape.members - 1).map(MemberIndex) {
            let (victim, missing) = (MemberIndex(shape.members - 1), [MemberIndex(0), other]);
            let mut members = healthy.clone();
            missing.iter().for_each(|slot| members[slot.index()] = None);
            let bytes = members[victim.index()].as_mut().expect("present");
            bytes[table] ^= 1;
            let detour = Repair::partial(&geometry, missing.into_iter().chain([victim]).collect());
            let there = |block: usize| {
                let (stripe, unit, _) = geometry.split(Lba(block as u64 * 8));
                detour.has(&geometry, stripe, geometry.map(stripe).cell(unit))
            };
            let places = content.chunks_exact(BLOCK).enumerate().filter(|&(block, _)| there(block));
            let places: Vec<_> =
                places.map(|(block, bytes)| (block, bytes, geometry.locate(Lba(block as u64 * 8)))).collect();
            let own = places.iter().filter(|(_, _, at)| at.member == victim);
            own.clone().for_each(|(_, _, at)| bytes[data + size(Bytes(at.sector.0 * 512))] ^= 1);
            computed += own.count();
            let mut engine = shape.reopened(members, Order::Fifo);
            for (block, expected, _) in places {
                let found = read(&mut engine, block as u64 * 8, 8).expect("read");
                assert!(found == expected, "{shape:?} without 0 and {other}: block {block}");
            }
        }
    }
    assert!(computed > 0, "nothing of what is wrong can be computed");
}

/// A member's units of a stripe whose checksums are in a sector of its table.
fn units_of_sector(geometry: &Geometry, stripe: StripeId, member: MemberIndex, sector: u64) -> Vec<Cell> {
    let cells = (0..geometry.map(stripe).cells()).map(|cell| Cell(u16::try_from(cell).expect("few")));
    let own = cells.filter(|&cell| geometry.member(cell) == member);
    own.filter(|&cell| geometry.sector(stripe, cell).0 / 8 / SUMS_IN_SECTOR == sector).collect()
}

/// A unit whose checksum is lost is computed from others of its own member where these have theirs: what a member has
/// of a stripe may have its checksums in two sectors of the table.
#[test]
fn lost_checksums_are_not_believed_where_other_units_of_the_member_give_the_content() {
    let mut computed = 0;
    for (height, members, chunks) in [(2, 5, 128), (3, 8, 129)] {
        let shape = Shape { chunks, ..small(rm2(height, Placement::Adjacent), members) }.checked();
        let (healthy, content) = stopped(shape);
        let (table, data) = places(shape);
        let geometry = shape.geometry();
        let stripe = StripeId(SUMS_IN_SECTOR / u64::from(height));
        let first = stripe.0 * geometry.stripe_sectors().0;
        let all = first..geometry.capacity().0.min(first + geometry.stripe_sectors().0);
        let cell = |lba| geometry.map(stripe).cell(geometry.split(Lba(lba)).1);
        for missing in tolerated(&geometry).into_iter().filter(|missing| missing.len() == 2) {
            for (victim, sector) in geometry.all_members().minus(missing).iter().flat_map(|of| [(of, 0), (of, 1)]) {
                let doubted = units_of_sector(&geometry, stripe, victim, sector);
                let by_unit = Repair::partial(&geometry, missing).beside(&geometry, stripe, doubted.iter().copied());
                let by_member = Repair::partial(&geometry, missing.with(victim));
                let is_asked = |&lba: &u64| {
                    let has = |repair: &Repair| repair.has(&geometry, stripe, cell(lba));
                    doubted.contains(&cell(lba)) && has(&by_unit) && !has(&by_member)
                };
                for lba in all.clone().step_by(8).filter(is_asked) {
                    let mut members = healthy.clone();
                    missing.iter().for_each(|slot| members[slot.index()] = None);
                    let bytes = members[victim.index()].as_mut().expect("present");
                    bytes[table + 512 * size(Bytes(sector))] ^= 1;
                    bytes[data + size(Bytes(geometry.locate(Lba(lba)).sector.0 * 512))] ^= 1;
                    for range in [lba..lba + 8, all.clone()] {
                        let context = format!("{shape:?} without {missing:?}, {victim}, {lba} in {range:?}");
                        let mut engine = shape.reopened(members.clone(), Order::Fifo);
                        let found = read(&mut engine, range.start, range.end - range.start);
                        let bytes = size(Bytes(range.start * 512))..size(Bytes(range.end * 512));
                        assert!(found.expect("read") == content[bytes], "{context}");
                        run(&mut engine, Command::Flush).expect("flushed");
                        assert!(engine.counters().total().repaired > 0, "{context}: it is not written back");
                    }
                    computed += 1;
                }
            }
        }
    }
    assert!(computed > 0, "nothing of what is wrong can be computed");
}
