//! Scrubbing: what is wrong is found, exactly, and named where that can be told; what is right is read once and never
//! written.

use rustix::io::Errno;
use uraid_io::disk::{Fault, OpName, Order};
use uraid_io::engine::{Blame, CacheMode, Command, EngineError, Mismatch, ScrubMode, ScrubStatus};
use uraid_io::format::superblock::Consistency;
use uraid_layout::stripe::{Role, StripeMap};
use uraid_layout::{
    Bytes, Cell, DataUnit, DiskSector, Geometry, Lba, Level, Location, MemberIndex, MemberSet, Placement, Sectors,
    StripeId,
};

use crate::content::{Storm, caching};
use crate::counts::moved;
use crate::support::{
    RAID5, RAID6, SECTOR, Shape, TestEngine, assert_encoded, buf, encoded, images, noise, read, rm2, run, shapes, size,
    small, tolerated, with_cache, write,
};

fn filled(shape: Shape) -> (TestEngine, Vec<u8>) {
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Seeded(1));
    let content = noise(2, engine.geometry().capacity().0);
    write(&mut engine, 0, &content).expect("written");
    run(&mut engine, Command::Flush).expect("flushed");
    (engine, content)
}

/// Turns until the scrub has ended, with time passing where nothing else happens.
fn go_on(engine: &mut TestEngine) -> ScrubStatus {
    let mut replies = Vec::new();
    while engine.scrub().is_some_and(|scrub| scrub.is_running) || engine.in_flight() > 0 {
        engine.turn(&mut replies).expect("memory does not break");
        engine.tick();
    }
    assert!(replies.is_empty(), "nobody asked for anything");
    engine.scrub().expect("there was one").clone()
}

fn scrub(engine: &mut TestEngine, mode: ScrubMode) -> ScrubStatus {
    engine.start_scrub(mode, StripeId(0)).expect("started");
    let status = go_on(engine);
    assert_eq!((status.done, status.position.0), (status.total, engine.geometry().stripes().0));
    status
}

fn cells(map: &StripeMap) -> impl Iterator<Item = Cell> + use<> {
    (0..map.cells()).map(|cell| Cell(u16::try_from(cell).expect("small")))
}

fn used_cells(geometry: &Geometry, stripe: StripeId) -> Vec<Cell> {
    cells(geometry.map(stripe)).filter(|&cell| geometry.uses(stripe, cell)).collect()
}

/// Where a cell is on its member.
fn at(geometry: &Geometry, stripe: StripeId, cell: Cell, column: u64) -> Location {
    let sector = DiskSector(geometry.sector(stripe, cell).0 + column);
    Location { member: geometry.member(cell), sector }
}

/// Makes sectors of a cell differ from what they are, in every byte, as `seed` says.
fn spoil(engine: &mut TestEngine, stripe: StripeId, cell: Cell, columns: std::ops::Range<u64>, seed: u64) {
    let Location { member, sector } = at(&engine.geometry().clone(), stripe, cell, columns.start);
    let len = columns.end - columns.start;
    let start = size(Sectors(sector.0).bytes());
    let part = &mut engine.disk_mut().data_mut(member)[start..start + size(Sectors(len).bytes())];
    part.iter_mut().zip(noise(seed, len)).for_each(|(byte, noise)| *byte ^= noise | 1);
}

/// The members of an array in a storm agree with each other at any moment at which the scrub looks.
fn storm(shape: Shape, missing: MemberSet, order: Order, seed: u64) -> u64 {
    let mut storm = Storm::new(shape, missing, order, seed, caching(seed));
    let context = format!("{shape:?} without {missing:?}, {order:?}, seed {seed}");
    let mut scrubs = 0;
    for _ in 0..6 {
        let mode = if storm.random.below(2) == 0 { ScrubMode::Check } else { ScrubMode::RepairSuspects };
        match storm.engine.start_scrub(mode, StripeId(0)) {
            Ok(()) => scrubs += 1,
            Err(error) => assert!(matches!(error, EngineError::Scrubbing), "{context}: {error}"),
        }
        storm.more(40);
        let status = storm.engine.scrub().expect("started").clone();
        assert_eq!((status.mismatched, &status.mismatches[..]), (Sectors(0), &[][..]), "{context}");
    }
    let status = go_on(&mut storm.engine);
    assert_eq!(status.mismatched, Sectors(0), "{context}");
    assert_eq!(status.done, status.total, "{context}");
    assert_eq!(status.unchecked.0 > 0, !missing.is_empty() && shape.geometry().tolerance() > 0, "{context}");
    assert_eq!(storm.engine.counters().total().repaired, 0, "{context}");
    storm.finish();
    scrubs
}

#[test]
fn a_clean_array_has_no_mismatch_under_load() {
    let mut scrubs = 0;
    for (index, shape) in (0..).zip(shapes()) {
        for (turn, consistency) in (0..).zip([Consistency::None, Consistency::Log, Consistency::Bitmap]) {
            if consistency == Consistency::Bitmap && shape.geometry().tolerance() == 0 {
                continue;
            }
            for number in 0..4 {
                let shape = Shape { consistency, ..shape };
                let seed = 70_000 + index * 100 + turn * 10 + number;
                let order = if number == 0 { Order::Lifo } else { Order::Seeded(seed) };
                scrubs += storm(shape, MemberSet::EMPTY, order, seed);
            }
        }
        scrubs += storm(shape.checked(), MemberSet::EMPTY, Order::Seeded(index), 72_000 + index);
    }
    assert!(scrubs > 200, "only {scrubs}");
}

#[test]
fn a_degraded_array_is_checked_as_far_as_it_goes_under_load() {
    for (index, shape) in (0..).zip(shapes()) {
        for (turn, missing) in (0..).zip(tolerated(&shape.geometry())).skip(1).step_by(3) {
            storm(shape, missing, Order::Seeded(turn), 74_000 + index * 100 + turn);
        }
    }
}

/// What a scrub must say of one wrong unit: from the definitions of the levels.
fn expected(geometry: &Geometry, stripe: StripeId, cell: Cell, columns: std::ops::Range<u64>) -> Vec<Mismatch> {
    let map = geometry.map(stripe);
    let (start, len) = (Sectors(columns.start), Sectors(columns.end - columns.start));
    let mismatch = |blame| Mismatch { stripe, start, len, blame, is_repaired: false };
    let here = at(geometry, stripe, cell, columns.start);
    let copies = match geometry.spec().level {
        Level::Raid0 => return vec![],
        Level::Raid6 { .. } | Level::Rm2 { .. } => {
            let is_data = matches!(map.role(cell), Role::Data(_));
            return vec![mismatch(if is_data { Blame::Suspected(here) } else { Blame::Certain(here) })];
        }
        Level::Raid1 => usize::from(geometry.spec().members),
        Level::Raid10 { copies } => usize::from(copies),
        Level::Raid5 { .. } => 1,
    };
    if copies > 2 {
        return vec![mismatch(Blame::Certain(here))];
    }
    let groups = map.groups().iter().zip(0..).filter(|(group, _)| group.cells().any(|other| other == cell));
    groups.map(|(_, group)| mismatch(Blame::Unknown(uraid_layout::GroupId(group)))).collect()
}

/// Every cell of every level's stripe: found where it is and nowhere else; checking changes no byte, and reads each
/// unit once.
#[test]
fn one_wrong_unit_is_reported_exactly_and_nothing_is_written() {
    for shape in shapes() {
        let (mut engine, _) = filled(shape);
        let geometry = engine.geometry().clone();
        let stripe = StripeId(geometry.stripes().0 - 1);
        let used: usize = (0..geometry.stripes().0).map(|stripe| used_cells(&geometry, StripeId(stripe)).len()).sum();
        for (turn, cell) in (0..).zip(used_cells(&geometry, stripe)) {
            let columns = turn % 5..turn % 5 + 1 + turn % 3;
            spoil(&mut engine, stripe, cell, columns.clone(), 9);
            let before = images(&engine);
            let ops = engine.disk().ops.len();
            let mut status = None;
            let cost = moved(&mut engine, |engine| status = Some(scrub(engine, ScrubMode::Check)));
            let status = status.expect("scrubbed");
            let context = format!("{shape:?}: cell {cell} of {stripe}");
            let expected = expected(&geometry, stripe, cell, columns.clone());
            assert_eq!(status.mismatches, expected, "{context}");
            let len = columns.end - columns.start;
            assert_eq!(status.mismatched.0, len * expected.len() as u64, "{context}");
            assert_eq!((status.repaired, status.unchecked, status.unlisted), (Sectors(0), Sectors(0), 0), "{context}");
            assert_eq!((cost.1, cost.2, cost.4), (used as u64 * shape.chunk, 0, 0), "{context}: each unit read once");
            assert!(engine.disk().ops[ops..].iter().all(|op| op.name == OpName::Read), "{context}");
            assert!(images(&engine) == before, "{context}: something was written");
            spoil(&mut engine, stripe, cell, columns, 9);
        }
    }
}

/// The array's sectors of a mismatch are those that read wrong, or that may.
#[test]
fn a_mismatch_names_the_sectors_of_the_array() {
    for shape in shapes() {
        let geometry = shape.geometry();
        let stripe = StripeId(geometry.stripes().0 - 1);
        for cell in used_cells(&geometry, stripe) {
            for mismatch in expected(&geometry, stripe, cell, 2..5) {
                let mut found: Vec<u64> =
                    mismatch.lbas(&geometry).flat_map(|range| range.start.0..range.end.0).collect();
                let is_of = |lba: &u64| {
                    let lba = Lba(*lba);
                    let mut places = geometry.parity_of(lba).chain([geometry.locate(lba)]);
                    let is_here = |at: Location| {
                        geometry.cell_at(at).is_some_and(|(id, other, column)| {
                            id == stripe && other == cell && (2..5).contains(&column.0)
                        })
                    };
                    match (mismatch.blame, geometry.map(stripe).role(cell)) {
                        (Blame::Unknown(group), _) => {
                            // Whatever of the group is in these columns.
                            let data = &geometry.map(stripe).group(group).data;
                            let at = geometry.cell_at(geometry.locate(lba)).expect("used");
                            at.0 == stripe && data.contains(&at.1) && (2..5).contains(&at.2.0)
                        }
                        (_, Role::Parity(group)) if !geometry.map(stripe).group(group).is_mirror() => false,
                        _ => places.any(is_here),
                    }
                };
                found.sort_unstable();
                let expected: Vec<u64> = (0..geometry.capacity().0).filter(is_of).collect();
                assert_eq!(found, expected, "{shape:?}: cell {cell}: {mismatch:?}");
            }
        }
    }
}

/// Levels that can tell which unit is wrong.
fn with_two_parities() -> impl Iterator<Item = Shape> {
    let rm2s = [(2, 4), (2, 5), (3, 6), (3, 7), (4, 9)].into_iter().flat_map(|(height, members)| {
        let placements =
            if members == 7 { vec![Placement::Adjacent, Placement::Partitioned] } else { vec![Placement::Adjacent] };
        let shape = move |placement| Shape { chunks: u64::from(height) * 2, ..small(rm2(height, placement), members) };
        placements.into_iter().map(shape)
    });
    let raid6s = [4, 5, 7].map(|members| Shape { chunks: 3, ..small(RAID6, members) });
    let consistencies = [Consistency::None, Consistency::Log, Consistency::Bitmap];
    let with = move |shape: Shape| consistencies.map(|consistency| Shape { consistency, ..shape });
    rm2s.chain(raid6s).flat_map(with)
}

/// Every cell: repaired for good, and only its sectors are written; a suspect only when that is asked for.
#[test]
fn a_wrong_unit_with_two_parities_is_repaired() {
    for shape in with_two_parities() {
        let (mut engine, content) = filled(shape);
        let geometry = engine.geometry().clone();
        let stripe = StripeId(1);
        for (turn, cell) in (0..).zip(used_cells(&geometry, stripe)) {
            let columns = turn % 5..turn % 5 + 1 + turn % 3;
            let len = Sectors(columns.end - columns.start);
            let context = format!("{shape:?}: cell {cell}");
            spoil(&mut engine, stripe, cell, columns.clone(), 30 + turn);
            let is_data = matches!(geometry.map(stripe).role(cell), Role::Data(_));
            if is_data {
                let before = images(&engine);
                let status = scrub(&mut engine, ScrubMode::Repair);
                assert_eq!((status.mismatched, status.repaired), (len, Sectors(0)), "{context}: not certain");
                assert!(images(&engine) == before, "{context}: it is left alone");
            }
            let mode = if is_data { ScrubMode::RepairSuspects } else { ScrubMode::Repair };
            let before = engine.counters().total().written_bytes;
            let status = scrub(&mut engine, mode);
            assert_eq!((status.mismatched, status.repaired), (len, len), "{context}");
            let expected = expected(&geometry, stripe, cell, columns);
            let expected: Vec<Mismatch> =
                expected.into_iter().map(|mismatch| Mismatch { is_repaired: true, ..mismatch }).collect();
            assert_eq!(status.mismatches, expected, "{context}");
            assert_eq!(engine.counters().total().written_bytes - before, len.bytes().0, "{context}");
            assert_encoded(&engine, &content, &context);
            assert_eq!(scrub(&mut engine, ScrubMode::Check).mismatched, Sectors(0), "{context}");
        }
        assert!(engine.missing().is_empty());
        run(&mut engine, Command::Close).expect("closed");
        assert!(engine.disk().newest().is_clean);
    }
}

/// All pairs of cells of a small RM2, in the same columns and in overlapping ones: either a unit that is wrong is made
/// right, or nothing changes.
#[test]
fn two_wrong_units_are_located_or_left_alone() {
    let shape = Shape { chunks: 3, ..small(rm2(3, Placement::Adjacent), 7) };
    let (mut engine, content) = filled(shape);
    let geometry = engine.geometry().clone();
    let right = encoded(&geometry, &content);
    let stripe = StripeId(0);
    let all = used_cells(&geometry, stripe);
    let (mut left, mut repaired) = (0, 0);
    for (a, b) in all.iter().flat_map(|&a| all.iter().filter(move |&&b| a < b).map(move |&b| (a, b))) {
        for other in [2..4, 3..6, 5..7] {
            spoil(&mut engine, stripe, a, 2..4, 50);
            spoil(&mut engine, stripe, b, other.clone(), 51);
            let wrong: Vec<Vec<u8>> = geometry
                .all_members()
                .iter()
                .map(|member| engine.disk().data(member, right[member.index()].len()).to_vec())
                .collect();
            let status = scrub(&mut engine, ScrubMode::RepairSuspects);
            for member in geometry.all_members().iter().map(MemberIndex::index) {
                let data = engine.disk().data(MemberIndex(u8::try_from(member).expect("small")), right[member].len());
                for (sector, data) in data.chunks(SECTOR).enumerate() {
                    let of = |bytes: &[Vec<u8>]| bytes[member][sector * SECTOR..][..SECTOR].to_vec();
                    let is_fine = data == of(&right) || data == of(&wrong);
                    assert!(is_fine, "cells {a} and {b} {other:?}: sector {sector} of {member} is something else");
                }
            }
            // Where only one of them is wrong, it is repaired.
            let both = 4_u64.saturating_sub(other.start);
            assert_eq!(status.repaired.0, 2 - both + (other.end - other.start - both), "{a} {b} {other:?}: {status:?}");
            left += u64::from(both > 0);
            repaired += u64::from(both < 2);
            write(&mut engine, 0, &content).expect("written");
            assert_encoded(&engine, &content, "written anew");
        }
    }
    assert!(left > 100 && repaired > 100);
}

/// One parity unit after the other rots while clients write: each is repaired or written over, and what clients have
/// written is never changed.
#[test]
fn parity_that_rots_under_load_is_repaired() {
    let mut repaired = 0;
    for (index, shape) in (0..).zip(with_two_parities()) {
        for turn in 0..3 {
            let seed = 76_000 + index * 10 + turn;
            let mut storm = Storm::new(shape, MemberSet::EMPTY, Order::Seeded(seed), seed, caching(seed));
            let geometry = storm.engine.geometry().clone();
            for round in 0..8 {
                storm.more(10);
                let stripe = StripeId(storm.random.below(geometry.stripes().0));
                let groups = geometry.map(stripe).groups();
                let group = storm.random.below(groups.len() as u64);
                let parity = groups[usize::try_from(group).expect("small")].parity;
                let column = storm.random.below(7);
                spoil(&mut storm.engine, stripe, parity, column..column + 2, seed * 100 + round);
                storm.engine.start_scrub(ScrubMode::Repair, StripeId(0)).expect("the last one is over");
                while storm.engine.scrub().is_some_and(|scrub| scrub.is_running) {
                    storm.more(10);
                }
                let status = storm.engine.scrub().expect("started");
                assert_eq!(status.repaired, status.mismatched, "{shape:?}, seed {seed}: {status:?}");
                repaired += status.repaired.0;
            }
            storm.finish();
        }
    }
    assert!(repaired > 200, "only {repaired} sectors");
}

/// Where checksums know nothing, parity speaks; blocks are repaired whole then.
#[test]
fn blocks_that_were_never_written_are_compared() {
    let shape = small(rm2(3, Placement::Adjacent), 7).checked();
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Seeded(3));
    let geometry = engine.geometry().clone();
    for (stripe, group) in (0..geometry.stripes().0).map(StripeId).zip(geometry.map(StripeId(0)).groups()) {
        spoil(&mut engine, stripe, group.parity, 1..3, 4);
        let status = scrub(&mut engine, ScrubMode::Repair);
        assert_eq!((status.mismatched, status.repaired), (Sectors(8), Sectors(8)), "{stripe}");
    }
    assert_encoded(&engine, &vec![0; size(geometry.capacity().bytes())], "repaired");
}

/// A write that comes while a unit is found wrong waits until it is repaired: before that it would make the parity
/// wrong instead.
#[test]
fn a_write_waits_for_the_repair_of_its_stripe() {
    for shape in with_two_parities() {
        let (mut engine, mut content) = filled(shape);
        let cell = engine.geometry().map(StripeId(0)).data()[0];
        spoil(&mut engine, StripeId(0), cell, 0..8, 6);
        engine.start_scrub(ScrubMode::RepairSuspects, StripeId(0)).expect("started");
        let mut replies = Vec::new();
        engine.disk_mut().allow_reaps(0);
        engine.turn(&mut replies).expect("memory does not break");
        assert_eq!(engine.in_flight(), 1, "the unit is being read");
        let new = noise(5, 8);
        content[..8 * SECTOR].copy_from_slice(&new);
        engine.submit(0, Command::Write { lba: Lba(0), buf: buf(&new), fua: false });
        engine.disk_mut().allow_reaps(usize::MAX);
        while engine.in_flight() > 0 || engine.wants_turn() {
            engine.turn(&mut replies).expect("memory does not break");
        }
        assert!(replies.len() == 1 && replies[0].result.is_ok());
        assert_eq!(go_on(&mut engine).repaired, Sectors(8), "{shape:?}");
        run(&mut engine, Command::Close).expect("closed");
        assert_encoded(&engine, &content, &format!("{shape:?}"));
    }
}

/// RAID 5 and two copies: which unit is wrong can't be told, and nothing is touched.
#[test]
fn what_is_not_known_is_not_touched() {
    for shape in [small(RAID5, 3), small(RAID5, 5), small(Level::Raid1, 2), small(Level::Raid10 { copies: 2 }, 5)] {
        let (mut engine, _) = filled(shape);
        let geometry = engine.geometry().clone();
        for cell in used_cells(&geometry, StripeId(2)) {
            spoil(&mut engine, StripeId(2), cell, 1..3, 8);
            let before = images(&engine);
            let status = scrub(&mut engine, ScrubMode::RepairSuspects);
            assert_eq!((status.mismatched, status.repaired), (Sectors(2), Sectors(0)), "{shape:?}: {cell}");
            assert!(images(&engine) == before, "{shape:?}: {cell}");
            spoil(&mut engine, StripeId(2), cell, 1..3, 8);
        }
    }
}

/// Of three copies any one, of five any two, whichever unit they are.
#[test]
fn the_majority_of_copies_is_restored() {
    for (shape, count) in [
        (small(Level::Raid1, 3), 1),
        (small(Level::Raid10 { copies: 3 }, 5), 1),
        (small(Level::Raid1, 5), 2),
        (Shape { consistency: Consistency::Log, ..small(Level::Raid1, 5) }, 2),
    ] {
        let (mut engine, content) = filled(shape);
        let geometry = engine.geometry().clone();
        let stripe = StripeId(1);
        let all = used_cells(&geometry, stripe);
        for (turn, &cell) in all.iter().enumerate() {
            let victims = &[cell, all[(turn + 1) % all.len()]][..count];
            // Alike and not, in columns that overlap in part.
            for (number, &victim) in (0..).zip(victims) {
                spoil(&mut engine, stripe, victim, 1 + number..4, 8 + number % 2 * (turn as u64 % 2));
            }
            let status = scrub(&mut engine, ScrubMode::Repair);
            let wrong = if count == 2 { 5 } else { 3 };
            assert_eq!((status.mismatched.0, status.repaired.0), (wrong, wrong), "{shape:?}: {victims:?}: {status:?}");
            assert_encoded(&engine, &content, &format!("{shape:?}: {victims:?}"));
        }
    }
}

/// A block that is not what its checksum is of is wrong, on every level that has another one to tell what it should be.
#[test]
fn checksums_tell_which_block_is_wrong() {
    for shape in shapes() {
        let shape = shape.checked();
        let (mut engine, content) = filled(shape);
        let geometry = engine.geometry().clone();
        let stripe = StripeId(1);
        for cell in used_cells(&geometry, stripe) {
            let context = format!("{shape:?}: cell {cell}");
            spoil(&mut engine, stripe, cell, 3..5, 8);
            let here = Mismatch {
                stripe,
                start: Sectors(0),
                len: Sectors(8),
                blame: Blame::Certain(at(&geometry, stripe, cell, 0)),
                is_repaired: false,
            };
            let before = images(&engine);
            assert_eq!(scrub(&mut engine, ScrubMode::Check).mismatches, [here], "{context}");
            assert!(images(&engine) == before, "{context}: something was written");
            let status = scrub(&mut engine, ScrubMode::Repair);
            let is_repaired = geometry.tolerance() > 0;
            assert_eq!(status.mismatches, [Mismatch { is_repaired, ..here }], "{context}");
            if !is_repaired {
                spoil(&mut engine, stripe, cell, 3..5, 8);
            }
            assert_encoded(&engine, &content, &context);
        }
    }
}

/// What can't be read is computed from the others and written back, one block and no more; without redundancy it is
/// reported.
#[test]
fn what_a_member_can_not_read_is_repaired() {
    // Chunks of several blocks: of different rows nothing fails together.
    for shape in shapes().into_iter().map(|shape| Shape { chunk: 16 << 10, ..shape }) {
        let (mut engine, content) = filled(shape);
        let geometry = engine.geometry().clone();
        let stripe = StripeId(1);
        for cell in used_cells(&geometry, stripe).into_iter().step_by(2) {
            let context = format!("{shape:?}: cell {cell}");
            let Location { member, sector } = at(&geometry, stripe, cell, 0);
            let offset = shape.superblocks()[0].areas.data.offset.0 + Sectors(sector.0).bytes().0;
            engine.disk_mut().inner.spoil(member, Bytes(offset + 512), Bytes(512));
            let status = scrub(&mut engine, ScrubMode::Check);
            assert_eq!((status.mismatched, status.repaired), (Sectors(8), Sectors(0)), "{context}");
            assert!(engine.disk().inner.is_spoilt(member), "{context}: it is not written");
            let status = scrub(&mut engine, ScrubMode::Repair);
            let is_repaired = geometry.tolerance() > 0;
            assert_eq!(status.repaired, Sectors(if is_repaired { 8 } else { 0 }), "{context}");
            assert_eq!(engine.disk().inner.is_spoilt(member), !is_repaired, "{context}");
            if !is_repaired {
                break;
            }
            assert_encoded(&engine, &content, &context);
        }
        assert!(engine.missing().is_empty());
    }
}

/// A member that fails the repair is given up as with any write, and the scrub goes on.
#[test]
fn a_member_that_fails_a_repair_is_on_record() {
    let (mut engine, content) = filled(small(rm2(3, Placement::Adjacent), 7));
    let geometry = engine.geometry().clone();
    let parity = geometry.map(StripeId(0)).groups()[0].parity;
    spoil(&mut engine, StripeId(0), parity, 0..8, 3);
    let member = geometry.member(parity);
    let fault = Fault { member, name: OpName::Write, after: 0, count: u64::MAX, errno: Errno::IO };
    engine.disk_mut().inner.fail(fault);
    let status = scrub(&mut engine, ScrubMode::Repair);
    assert_eq!(status.repaired, Sectors(0));
    assert_eq!(engine.missing(), MemberSet::EMPTY.with(member));
    crate::faults::assert_recorded(&engine, engine.missing(), "after a repair that failed");
    assert!(read(&mut engine, 0, geometry.capacity().0).expect("read") == content);
}

/// What is dirty in memory is neither compared nor lost, and what was computed in memory of a wrong unit is forgotten
/// with its repair.
#[test]
fn memory_and_members_agree_after_a_repair() {
    for (mode, consistency) in [
        (CacheMode::WriteBack, Consistency::Log),
        (CacheMode::WriteBack, Consistency::None),
        (CacheMode::WriteThrough, Consistency::Log),
        (CacheMode::WriteThrough, Consistency::Bitmap),
    ] {
        let shape = Shape { consistency, ..small(rm2(3, Placement::Adjacent), 7) };
        let (mut engine, _pool) = with_cache(shape.engine(MemberSet::EMPTY, Order::Seeded(4)), Some((mode, 4096)));
        let geometry = engine.geometry().clone();
        let mut content = noise(2, geometry.capacity().0);
        write(&mut engine, 0, &content).expect("written");
        run(&mut engine, Command::Flush).expect("flushed");
        let map = geometry.map(StripeId(0));
        let parity = map.group(map.groups_of(DataUnit(0))[0]).parity;
        spoil(&mut engine, StripeId(0), parity, 0..8, 6);
        let mut put = |engine: &mut TestEngine, lba: usize, seed| {
            let new = noise(seed, 4);
            write(engine, lba as u64, &new).expect("written");
            content[lba * SECTOR..][..4 * SECTOR].copy_from_slice(&new);
        };
        // The wrong parity is read, and what is computed of it stays in memory.
        put(&mut engine, 1, 5);
        run(&mut engine, Command::Flush).expect("flushed");
        spoil(&mut engine, StripeId(1), map.data()[2], 1..3, 7);
        put(&mut engine, 2, 6);
        assert_eq!(engine.is_dirty(), mode == CacheMode::WriteBack);
        let status = scrub(&mut engine, ScrubMode::RepairSuspects);
        assert_eq!((status.mismatched, status.repaired), (Sectors(10), Sectors(10)), "{mode:?} {status:?}");
        put(&mut engine, 3, 7);
        assert!(read(&mut engine, 0, geometry.capacity().0).expect("read") == content, "{mode:?}");
        run(&mut engine, Command::Close).expect("closed");
        assert_encoded(&engine, &content, &format!("{mode:?}"));
    }
}

/// A unit that was wrong when a part of its stripe was overwritten looks as before: now its parity is wrong, and what
/// was written is not undone.
#[test]
fn what_was_overwritten_is_not_undone() {
    for shape in with_two_parities() {
        let (mut engine, mut content) = filled(shape);
        let geometry = engine.geometry().clone();
        let cell = geometry.map(StripeId(0)).data()[0];
        spoil(&mut engine, StripeId(0), cell, 0..8, 6);
        let new = noise(5, 8);
        write(&mut engine, 0, &new).expect("written");
        content[..8 * SECTOR].copy_from_slice(&new);
        let status = scrub(&mut engine, ScrubMode::Repair);
        assert_eq!(status.repaired, Sectors(0), "{shape:?}");
        assert!(read(&mut engine, 0, geometry.capacity().0).expect("read") == content, "{shape:?}");
    }
}

#[test]
fn a_scrub_is_stopped_and_goes_on_where_it_was() {
    let shape = Shape { chunks: 40, ..small(RAID5, 5) };
    let (mut engine, _) = filled(shape);
    let geometry = engine.geometry().clone();
    let total = geometry.capacity().0 / 8 * 5 / 4 * 4096;
    let (mut position, mut read, mut stops) = (StripeId(0), 0, 0);
    let mut replies = Vec::new();
    while position.0 < geometry.stripes().0 {
        let before = engine.counters().total().read_bytes;
        engine.start_scrub(ScrubMode::Check, position).expect("started");
        assert!(matches!(engine.start_scrub(ScrubMode::Check, position), Err(EngineError::Scrubbing)));
        engine.disk_mut().allow_reaps(3);
        engine.turn(&mut replies).expect("memory does not break");
        engine.stop_scrub();
        engine.disk_mut().allow_reaps(usize::MAX);
        let status = go_on(&mut engine);
        assert!(!status.is_running && status.position > position, "{status:?}");
        assert_eq!(status.done.0, status.position.0 * geometry.stripe_sectors().0);
        position = status.position;
        read += engine.counters().total().read_bytes - before;
        stops += 1;
    }
    assert_eq!(read, total, "each unit was read once in all");
    assert!(stops > 3, "{stops}");
    assert!(matches!(engine.start_scrub(ScrubMode::Check, StripeId(41)), Err(EngineError::OutOfRange { .. })));
}

/// A limit is kept on average, however much one part is.
#[test]
fn a_limited_scrub_reads_no_more_than_it_may() {
    let shape = Shape { chunks: 60, ..small(RAID5, 5) };
    let (mut engine, _) = filled(shape);
    // In a tenth of a second, of five members together.
    engine.set_scrub_limit(Some(Bytes(10 * 10_000)));
    engine.start_scrub(ScrubMode::Check, StripeId(0)).expect("started");
    let before = engine.counters().total().read_bytes;
    let mut replies = Vec::new();
    let mut ticks = 0;
    while engine.scrub().is_some_and(|scrub| scrub.is_running) {
        engine.turn(&mut replies).expect("memory does not break");
        while engine.wants_turn() {
            engine.turn(&mut replies).expect("memory does not break");
        }
        ticks += 1;
        let read = engine.counters().total().read_bytes - before;
        // A part is 20 KiB.
        assert!(read <= ticks * 50_000 + 20_480, "{read} bytes in {ticks} ticks");
        assert!(engine.wants_ticks() || !engine.scrub().is_some_and(|scrub| scrub.is_running));
        engine.tick();
    }
    assert!(ticks > 20, "{ticks}");
}

/// Beside clients one part is under way, and several when they are away.
#[test]
fn a_scrub_yields_to_clients() {
    let (mut engine, _) = filled(Shape { chunks: 60, ..small(RAID5, 5) });
    let members = engine.geometry().all_members();
    members.iter().for_each(|member| engine.disk_mut().hold(member, OpName::Read));
    engine.start_scrub(ScrubMode::Check, StripeId(0)).expect("started");
    let mut replies = Vec::new();
    let mut turn = |engine: &mut TestEngine| {
        engine.turn(&mut replies).expect("memory does not break");
        engine.in_flight()
    };
    assert_eq!(turn(&mut engine), 1);
    for _ in 0..3 {
        engine.tick();
    }
    assert_eq!(turn(&mut engine), 8);
    members.iter().for_each(|member| engine.disk_mut().let_go(member, OpName::Read));
    assert_eq!(go_on(&mut engine).mismatched, Sectors(0));
}

/// Closing the array stops a scrub, and what it repairs is over by then.
#[test]
fn closing_stops_a_scrub() {
    for reaps in 0..12 {
        let (mut engine, content) = filled(Shape { chunks: 30, ..small(Level::Raid1, 3) });
        spoil(&mut engine, StripeId(0), Cell(1), 0..8, 3);
        engine.start_scrub(ScrubMode::Repair, StripeId(0)).expect("started");
        engine.disk_mut().allow_reaps(reaps);
        engine.turn(&mut Vec::new()).expect("memory does not break");
        run(&mut engine, Command::Close).expect("closed");
        let status = engine.scrub().expect("started").clone();
        assert!(!status.is_running, "{reaps}");
        assert!(engine.disk().newest().is_clean, "{reaps}");
        if status.position > StripeId(0) {
            assert_encoded(&engine, &content, "repaired");
        }
        assert_eq!(engine.in_flight(), 0);
    }
}

/// An array that is open for reading only, or whose parity was not made to agree since an unclean stop, is checked and
/// not repaired.
#[test]
fn an_array_that_must_not_be_written_is_not() {
    let shape = small(Level::Raid1, 3);
    let (mut engine, _) = filled(shape);
    spoil(&mut engine, StripeId(0), Cell(2), 0..8, 3);
    let members: Vec<_> = images(&engine);
    let mut reader = shape.engine_on(members.clone(), MemberSet::EMPTY, Order::Fifo, true);
    assert!(matches!(reader.start_scrub(ScrubMode::Repair, StripeId(0)), Err(EngineError::ReadOnly)));
    assert_eq!(scrub(&mut reader, ScrubMode::Check).mismatched, Sectors(8));
    let mut unclean = shape.reopened(members, Order::Fifo);
    let status = scrub(&mut unclean, ScrubMode::Repair);
    assert_eq!((status.mismatched, status.repaired), (Sectors(8), Sectors(0)));
    unclean.trust_parity();
    assert_eq!(scrub(&mut unclean, ScrubMode::Repair).repaired, Sectors(8));
}
