//! Checksums: what a member holds and nobody wrote there is found, made good from the others and written back; where
//! nothing is left it is an error for the blocks concerned, never wrong data.

use rustix::io::Errno;
use uraid_io::cache::Cause;
use uraid_io::disk::{Disk, Fault, OpName, Order};
use uraid_io::engine::{CacheMode, Command, Engine, EngineError};
use uraid_layout::repair::Repair;
use uraid_layout::stripe::Group;
use uraid_layout::{Lba, Level, MemberIndex, MemberSet, Placement, Sectors};

use crate::support::{
    CHUNK, RAID5, Shape, TestEngine, assert_encoded, block, buf, encoded, images, noise, read, recovered, rm2, run,
    shapes, size, small, tolerated, with_cache, write,
};

use uraid_io::format::BLOCK_BYTES as BLOCK;

pub(super) fn filled(shape: Shape) -> (TestEngine, Vec<u8>) {
    let shape = shape.checked();
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Seeded(1));
    let content = noise(2, engine.geometry().capacity().0);
    write(&mut engine, 0, &content).expect("written");
    (engine, content)
}

pub(super) fn redundant() -> impl Iterator<Item = Shape> {
    shapes().into_iter().filter(|shape| shape.geometry().tolerance() > 0)
}

/// Reads every block alone.
fn blocks<D: Disk>(engine: &mut Engine<D, u64>) -> Vec<Result<Vec<u8>, EngineError>> {
    let capacity = engine.geometry().capacity().0;
    (0..capacity).step_by(8).map(|lba| block(engine, lba)).collect()
}

pub(super) fn assert_content(engine: &mut TestEngine, content: &[u8], context: &str) {
    for (block, (found, expected)) in blocks(engine).into_iter().zip(content.chunks_exact(BLOCK)).enumerate() {
        assert!(found.expect("read") == expected, "{context}: block {block}");
    }
}

/// Where of a member's used blocks the content is that a read of the array looks at first.
pub(super) fn data_blocks(shape: Shape, member: MemberIndex) -> Vec<usize> {
    let geometry = shape.geometry();
    let at = |lba| geometry.locate(Lba(lba));
    let places = (0..geometry.capacity().0).step_by(8).map(at).filter(|at| at.member == member);
    places.map(|at| usize::try_from(at.sector.0 / 8).expect("small")).collect()
}

pub(super) fn is_mirror(shape: Shape) -> bool {
    shape.geometry().maps()[0].groups().iter().any(Group::is_mirror)
}

/// One flipped bit, at one place of every block after the other.
#[test]
fn a_flipped_bit_is_found_and_healed() {
    for shape in redundant() {
        for member in (0..shape.members).map(MemberIndex) {
            let (mut engine, content) = filled(shape);
            let context = format!("{shape:?}, member {member}");
            let blocks = data_blocks(shape, member);
            for (turn, &block) in blocks.iter().enumerate() {
                let byte = block * BLOCK + (turn * 1237 + usize::from(member.0) * 511) % BLOCK;
                engine.disk_mut().data_mut(member)[byte] ^= 1 << (turn % 8);
            }
            assert_content(&mut engine, &content, &context);
            let counters = *engine.counters().member(member);
            assert_eq!((counters.repaired, counters.unrepairable), (counters.mismatches, 0), "{context}");
            assert!(engine.missing().is_empty(), "{context}");
            run(&mut engine, Command::Close).expect("closed");
            if is_mirror(shape) {
                // The other copies may have been read.
                continue;
            }
            assert_eq!(counters.mismatches, blocks.len() as u64, "{context}");
            assert_encoded(&engine, &content, &context);
        }
    }
}

/// Any byte of a block.
#[test]
fn every_byte_of_a_block_counts() {
    let (mut engine, content) = filled(small(RAID5, 3));
    for byte in (0..BLOCK).step_by(3) {
        engine.disk_mut().data_mut(MemberIndex(0))[byte] ^= 0x10;
        assert!(read(&mut engine, 0, 8).expect("read") == content[..BLOCK], "byte {byte}");
        assert!(engine.disk().data(MemberIndex(0), BLOCK) == &content[..BLOCK], "byte {byte}: healed");
    }
}

/// A write that never reached the member, one that went elsewhere, and two blocks that changed places: all are whole
/// blocks that were written at some time.
#[test]
fn lost_misdirected_and_swapped_writes_are_found() {
    for shape in redundant() {
        for member in (0..shape.members).map(MemberIndex) {
            let (mut engine, mut content) = filled(shape);
            let context = format!("{shape:?}, member {member}");
            let used = size(shape.geometry().used_sectors().bytes());
            let before = engine.disk().data(member, used).to_vec();
            content = noise(3, (content.len() / 512) as u64);
            write(&mut engine, 0, &content).expect("written");
            let places = data_blocks(shape, member);
            let data = engine.disk_mut().data_mut(member);
            for (turn, &block) in places.iter().enumerate() {
                let at = block * BLOCK;
                match turn % 3 {
                    0 => data[at..at + BLOCK].copy_from_slice(&before[at..at + BLOCK]),
                    1 => data.copy_within(0..BLOCK, at),
                    _ => {
                        let other = places[turn - 1] * BLOCK;
                        let (low, high) = (other.min(at), other.max(at));
                        let (first, second) = data.split_at_mut(high);
                        first[low..low + BLOCK].swap_with_slice(&mut second[..BLOCK]);
                    }
                }
            }
            assert_content(&mut engine, &content, &context);
            assert_eq!(engine.counters().total().unrepairable, 0, "{context}");
            run(&mut engine, Command::Close).expect("closed");
            if !is_mirror(shape) {
                assert!(engine.counters().member(member).repaired > 0, "{context}");
                assert_encoded(&engine, &content, &context);
            }
        }
    }
}

/// Small writes compute parity from what they read: nothing that is wrong gets into it.
#[test]
fn wrong_content_does_not_get_into_parity() {
    for shape in redundant() {
        for member in (0..shape.members).map(MemberIndex) {
            let (mut engine, mut content) = filled(shape);
            let context = format!("{shape:?}, member {member}");
            let used = size(shape.geometry().used_sectors().bytes());
            engine.disk_mut().data_mut(member)[..used].iter_mut().for_each(|byte| *byte ^= 0x55);
            for block in (0..content.len() / BLOCK).step_by(2) {
                let new = noise(100 + block as u64, 8);
                write(&mut engine, block as u64 * 8, &new).expect("written");
                content[block * BLOCK..][..BLOCK].copy_from_slice(&new);
            }
            assert_content(&mut engine, &content, &context);
            // Without any one member the same content comes back, as far as it was read or written before.
            run(&mut engine, Command::Close).expect("closed");
            assert_eq!(engine.counters().total().unrepairable, 0, "{context}");
        }
    }
}

/// Beyond what the level survives: errors for the blocks concerned, everything else is right.
#[test]
fn beyond_what_is_survived_only_the_blocks_concerned_are_errors() {
    for shape in shapes() {
        let tolerance = shape.geometry().tolerance();
        if usize::from(shape.members) <= tolerance {
            continue;
        }
        let (mut engine, content) = filled(shape);
        let context = format!("{shape:?}");
        // The same block of too many members, at the start of the second parity stripe's row.
        let block = 4;
        let victims: Vec<MemberIndex> =
            (0..=tolerance).map(|slot| MemberIndex(u8::try_from(slot).expect("small"))).collect();
        for &member in &victims {
            engine.disk_mut().data_mut(member)[block * BLOCK + 77] ^= 4;
        }
        let geometry = shape.geometry();
        for (index, found) in blocks(&mut engine).into_iter().enumerate() {
            let at = geometry.locate(Lba(index as u64 * 8));
            let is_victim = victims.contains(&at.member) && at.sector.0 == block as u64 * 8;
            match found {
                Ok(bytes) => {
                    assert!(bytes == content[index * BLOCK..][..BLOCK], "{context}: block {index} is wrong data");
                }
                Err(EngineError::Unreadable { .. }) => assert!(is_victim, "{context}: block {index} can be had"),
                Err(error) => panic!("{context}: {error}"),
            }
        }
        // One long read fails or is right.
        if let Ok(bytes) = read(&mut engine, 0, geometry.capacity().0) {
            assert!(bytes == content, "{context}");
        }
        // What is written is right again.
        write(&mut engine, 0, &content).expect("written");
        assert_content(&mut engine, &content, &context);
    }
}

/// Two units of a row hold something wrong, which is more than the level survives. A write to a third changes parity by
/// what it changes itself and needs neither, written through or out of the cache; one to those two fails.
#[test]
fn what_is_wrong_beside_a_write_does_not_fail_it() {
    let shape = small(RAID5, 4).checked();
    for is_cached in [false, true] {
        for slots in [[0, 1], [1, 3], [2, 3], [0, 2]] {
            let (mut engine, mut content) = filled(shape);
            run(&mut engine, Command::Close).expect("closed");
            let data = size(shape.superblocks()[0].areas.data.offset);
            let members = (0..4).map(|slot| {
                let mut member = engine.disk().inner.member(MemberIndex(slot)).cloned().expect("present");
                // The first block of the first row.
                member[data] ^= u8::from(slots.contains(&slot));
                Some(member)
            });
            let reopened = shape.reopened(members.collect(), Order::Fifo);
            let (mut engine, _pool) = with_cache(reopened, is_cached.then_some((CacheMode::WriteBack, 1024)));
            let geometry = shape.geometry();
            let lbas = (0..geometry.capacity().0).step_by(8).filter(|&lba| geometry.locate(Lba(lba)).sector.0 == 0);
            let (wrong, intact): (Vec<u64>, Vec<u64>) =
                lbas.partition(|&lba| slots.contains(&geometry.locate(Lba(lba)).member.0));
            let is_parity_wrong = wrong.len() < 2;
            for lba in intact {
                let new = noise(100 + lba, 8);
                let result = write(&mut engine, lba, &new).and_then(|()| run(&mut engine, Command::Flush));
                if is_parity_wrong {
                    // Nothing says what parity is to become: it needs itself, or the other unit that is wrong.
                    let error = result.expect_err("what is wrong is needed");
                    assert!(
                        matches!(error, EngineError::Unreadable { .. } | EngineError::NotDestaged { .. }),
                        "{error}"
                    );
                    break;
                }
                result.unwrap_or_else(|error| panic!("{slots:?}, cached: {is_cached}: {error}"));
                content[size(Sectors(lba).bytes())..][..BLOCK].copy_from_slice(&new);
            }
            if is_parity_wrong {
                continue;
            }
            run(&mut engine, Command::Close).expect("closed");
            for &slot in &slots {
                engine.disk_mut().data_mut(MemberIndex(slot))[0] ^= 1;
            }
            assert_encoded(&engine, &content, "what was wrong is as it was");
        }
    }
}

/// What a flush can't write out, as two blocks of its row hold something wrong, is told until the members can be read
/// again, or something else takes its place that needs neither. Nobody else's member is failing meanwhile or
/// afterwards.
#[test]
fn what_a_flush_cannot_write_out_is_told_until_it_can_be() {
    type Mend = fn(&mut TestEngine, &[u8]);
    let mends: [Mend; 3] = [
        |engine, stripe| write(engine, 0, stripe).expect("written, and nothing is read"),
        |engine, stripe| {
            for (lba, block) in (0..).step_by(8).zip(stripe.chunks(BLOCK)) {
                write(engine, lba, block).expect("acknowledged");
            }
        },
        |engine, _| [0, 1].into_iter().for_each(|slot| engine.disk_mut().data_mut(MemberIndex(slot))[7] ^= 1),
    ];
    for (number, mend) in mends.into_iter().enumerate() {
        let (engine, mut content) = filled(small(RAID5, 4));
        let (mut engine, _pool) = with_cache(engine, Some((CacheMode::WriteBack, 1024)));
        assert_eq!(engine.unwritten(), None);
        let at = [0, 8, 16, 24].map(|lba| engine.geometry().locate(Lba(lba)).member.0);
        assert_eq!(at, [0, 1, 2, 3], "the first three are of one row, the other one is of the next");
        [0, 1].into_iter().for_each(|slot| engine.disk_mut().data_mut(MemberIndex(slot))[7] ^= 1);
        let mut put = |engine: &mut TestEngine, lba: u64, seed| {
            let new = noise(seed, 8);
            write(engine, lba, &new).expect("acknowledged");
            content[size(Sectors(lba).bytes())..][..BLOCK].copy_from_slice(&new);
        };
        put(&mut engine, 8, 50);
        assert_eq!(engine.unwritten(), None, "nobody has tried yet");
        let told = |engine: &mut TestEngine, ranges: &[(u64, u64)]| {
            let error = run(engine, Command::Flush).expect_err("it covers what can't be written");
            let EngineError::NotDestaged { unwritten } = error else { panic!("{error}") };
            assert_eq!(engine.unwritten(), Some(*unwritten));
            let lbas: Vec<_> = ranges.iter().map(|&(start, end)| Lba(start)..Lba(end)).collect();
            assert_eq!(unwritten.ranges().collect::<Vec<_>>(), lbas);
            assert_eq!(unwritten.len, Sectors(ranges.iter().map(|(start, end)| end - start).sum()));
            let both = [0, 1].map(MemberIndex).into_iter().collect();
            assert_eq!(unwritten.cause, Cause { unreadable: both, unwritable: MemberSet::EMPTY });
        };
        told(&mut engine, &[(8, 16)]);
        // Another client's write elsewhere is written, and its flush fails all the same.
        put(&mut engine, 24, 51);
        told(&mut engine, &[(8, 16)]);
        // Whatever else is dirty of that row waits with it.
        put(&mut engine, 16, 52);
        told(&mut engine, &[(8, 24)]);
        assert!(read(&mut engine, 8, 16).expect("it is in memory") == content[8 * 512..24 * 512]);
        engine.submit(7, Command::Flush);
        let mut replies = Vec::new();
        while replies.is_empty() {
            assert_eq!(engine.unwritten().map(|unwritten| unwritten.len), Some(Sectors(16)), "also while it is tried");
            engine.turn(&mut replies).expect("memory does not break");
        }
        mend(&mut engine, &content[..24 * 512]);
        run(&mut engine, Command::Flush).unwrap_or_else(|error| panic!("mended, {number}: {error}"));
        assert_eq!((engine.unwritten(), engine.troubles().failing), (None, MemberSet::EMPTY), "mended, {number}");
        assert_content(&mut engine, &content, "mended");
        run(&mut engine, Command::Close).expect("closed");
        assert_encoded(&engine, &content, "mended");
    }
}

/// On RAID 0 nothing can be made good, and nothing wrong is given out.
#[test]
fn without_redundancy_wrong_content_is_an_error() {
    let (mut engine, content) = filled(small(Level::Raid0, 4));
    engine.disk_mut().data_mut(MemberIndex(1))[100] ^= 1;
    for (index, found) in blocks(&mut engine).into_iter().enumerate() {
        if index == 1 {
            assert!(matches!(found, Err(EngineError::Unreadable { .. })), "{found:?}");
        } else {
            assert!(found.expect("read") == content[index * BLOCK..][..BLOCK], "block {index}");
        }
    }
    assert_eq!(engine.counters().total().mismatches, 1);
    assert_eq!(engine.counters().total().unrepairable, 1);
}

/// A write of the checksums that was lost: the content is right, and is found to be.
#[test]
fn a_lost_write_of_checksums_costs_nothing() {
    for shape in redundant() {
        for member in (0..shape.members).map(MemberIndex) {
            let (mut engine, _) = filled(shape);
            let context = format!("{shape:?}, member {member}");
            let sums = shape.checked().superblocks()[0].areas.sums;
            let range = size(sums.offset)..size(sums.end().expect("fits"));
            let old = engine.disk().inner.member(member).expect("present")[range.clone()].to_vec();
            let content = noise(9, engine.geometry().capacity().0);
            write(&mut engine, 0, &content).expect("written");
            run(&mut engine, Command::Close).expect("closed");
            engine.disk_mut().inner.member_mut(member).expect("present")[range].copy_from_slice(&old);
            let members = images(&engine);
            let mut engine = shape.checked().reopened(members, Order::Fifo);
            assert_content(&mut engine, &content, &context);
            assert_eq!(engine.counters().total().unrepairable, 0, "{context}");
            if is_mirror(shape) {
                // The other copies may have been read.
                continue;
            }
            // Healed: the checksums are those of the content again.
            let mismatches = engine.counters().total().mismatches;
            assert_content(&mut engine, &content, &context);
            assert_eq!(engine.counters().total().mismatches, mismatches, "{context}");
        }
    }
}

/// Where checksums were lost it is the others that say what the blocks hold, so that content that is wrong, too, is not
/// taken for right.
#[test]
fn content_without_its_checksums_is_held_against_the_others() {
    let shape = small(RAID5, 3).checked();
    let (mut engine, content) = filled(shape);
    run(&mut engine, Command::Close).expect("closed");
    let areas = shape.superblocks()[0].areas;
    let (table, data) = (size(areas.sums.offset), size(areas.data.offset));
    let member = MemberIndex(1);
    let blocks = data_blocks(shape, member);
    for fault in 0..4 {
        let mut members = images(&engine);
        let bytes = members[member.index()].as_mut().expect("present");
        match fault {
            0 => bytes[table + 17] ^= 1,
            1 => bytes[table + 508] ^= 1,
            2 => bytes[table..table + 512].fill(0xFF),
            _ => bytes[table] ^= 1,
        }
        if fault == 3 {
            // The content is wrong, too.
            blocks.iter().for_each(|block| bytes[data + block * BLOCK + 5] ^= 1);
        }
        let mut engine = shape.reopened(members, Order::Fifo);
        assert_content(&mut engine, &content, "damaged checksums");
        let counters = *engine.counters().member(member);
        let count = blocks.len() as u64;
        assert_eq!((counters.mismatches, counters.repaired), (1 + count, count), "the table, and each block");
        assert_eq!(engine.counters().total().unrepairable, 0);
        run(&mut engine, Command::Close).expect("closed");
        let mut engine = shape.reopened(images(&engine), Order::Fifo);
        assert_content(&mut engine, &content, "healed");
        assert_eq!(engine.counters().total().mismatches, 0, "content and checksums are whole again");
    }
}

/// Content that went to another place together with all of its checksums: a sector of the table is of a place, too.
#[test]
fn content_that_is_misplaced_with_its_checksums_is_found() {
    let shape = Shape { chunks: 254, ..small(RAID5, 3) }.checked();
    let (mut engine, content) = filled(shape);
    run(&mut engine, Command::Close).expect("closed");
    let areas = shape.superblocks()[0].areas;
    let (table, data) = (size(areas.sums.offset), size(areas.data.offset));
    let mut members = images(&engine);
    let bytes = members[0].as_mut().expect("present");
    // 127 blocks have their checksums in a sector.
    bytes.copy_within(data..data + 127 * BLOCK, data + 127 * BLOCK);
    bytes.copy_within(table..table + 512, table + 512);
    let mut engine = shape.reopened(members, Order::Fifo);
    assert_content(&mut engine, &content, "misplaced");
}

/// A write of checksums that was lost makes all that a member has doubtful. Without two others what is on these is
/// computed from block to block: each of them on the way is just what the member holds.
#[test]
fn stale_checksums_on_the_way_to_a_block_cost_nothing() {
    let mut computed = 0;
    for members in [5, 6] {
        let shape = Shape { chunks: 2, ..small(rm2(2, Placement::Adjacent), members) };
        let (mut engine, _) = filled(shape);
        let shape = shape.checked();
        let geometry = shape.geometry();
        let sums = shape.superblocks()[0].areas.sums;
        let table = size(sums.offset)..size(sums.end().expect("fits"));
        let before = images(&engine);
        let content = noise(9, engine.geometry().capacity().0);
        write(&mut engine, 0, &content).expect("written");
        run(&mut engine, Command::Close).expect("closed");
        let after = images(&engine);
        for missing in tolerated(&geometry).into_iter().filter(|missing| missing.len() == 2) {
            for victim in geometry.all_members().minus(missing).iter() {
                let lost = missing.with(victim);
                let detour = Repair::partial(&geometry, lost);
                for (block, expected) in content.chunks_exact(BLOCK).enumerate() {
                    let lba = Lba(block as u64 * 8);
                    let (stripe, unit, _) = geometry.split(lba);
                    let is_there = detour.has(&geometry, stripe, geometry.map(stripe).cell(unit));
                    if !is_there || !lost.contains(geometry.locate(lba).member) {
                        continue;
                    }
                    // As it was left: reading a block heals others.
                    let mut members = after.clone();
                    missing.iter().for_each(|slot| members[slot.index()] = None);
                    let stale = &before[victim.index()].as_ref().expect("present")[table.clone()];
                    members[victim.index()].as_mut().expect("present")[table.clone()].copy_from_slice(stale);
                    let mut engine = shape.reopened(members, Order::Fifo);
                    let context = format!("{shape:?} without {missing:?}: block {block}, doubting {victim}");
                    let found = read(&mut engine, lba.0, 8).unwrap_or_else(|error| panic!("{context}: {error}"));
                    assert!(found == expected, "{context}");
                    computed += 1;
                }
            }
        }
    }
    assert!(computed > 0, "nothing that is doubted can be computed");
}

/// Too many members fail for a stripe to be written out at once, each in another column: nothing of it stays in memory.
#[test]
fn a_stripe_is_written_out_though_members_fail_in_different_columns() {
    let shape = Shape { chunk: 3 * CHUNK, chunks: 3, ..small(RAID5, 5) }.checked();
    let (mut engine, mut content) = filled(shape);
    run(&mut engine, Command::Close).expect("closed");
    let mut members = images(&engine);
    // The first stripe has its parity on the last member; of the other members, each column has one that is wrong,
    // and a small write reads all.
    let data = size(shape.superblocks()[0].areas.data.offset);
    for (column, slot) in [(0, 0), (1, 4), (2, 0)] {
        members[slot].as_mut().expect("present")[data + column * BLOCK + 9] ^= 1;
    }
    let reopened = shape.reopened(members, Order::Fifo);
    let (mut engine, _pool) = with_cache(reopened, Some((CacheMode::WriteBack, 1024)));
    let new = noise(12, 24);
    write(&mut engine, 0, &new).expect("in memory");
    content[..new.len()].copy_from_slice(&new);
    run(&mut engine, Command::Flush).expect("each column can be written");
    run(&mut engine, Command::Close).expect("closed");
    assert_encoded(&engine, &content, "written out");
}

/// Blocks that were never written are not checked, so that a new array can be of members that hold anything.
#[test]
fn what_was_never_written_is_not_checked() {
    let shape = small(RAID5, 3).checked();
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
    engine.disk_mut().data_mut(MemberIndex(0))[..BLOCK].fill(7);
    assert_eq!(read(&mut engine, 0, 8).expect("read"), vec![7; BLOCK]);
    assert_eq!(engine.counters().total().mismatches, 0);
}

#[test]
fn only_whole_blocks_are_read_and_written() {
    let shape = small(RAID5, 3).checked();
    let mut engine = shape.engine(MemberSet::EMPTY, Order::Fifo);
    for (lba, sectors) in [(1, 8), (0, 7), (4, 4)] {
        let result = read(&mut engine, lba, sectors);
        assert!(matches!(result, Err(EngineError::NotBlocks { .. })), "{result:?}");
        let result = write(&mut engine, lba, &noise(1, sectors));
        assert!(matches!(result, Err(EngineError::NotBlocks { .. })), "{result:?}");
    }
}

/// A member that can't take the checksums misses the write.
#[test]
fn a_member_that_fails_the_checksums_is_on_record() {
    for shape in redundant() {
        let (mut engine, _) = filled(shape);
        let sums = shape.checked().superblocks()[0].areas.sums.offset;
        // The log's record, the content, the checksums: the third write is theirs.
        let fault = Fault { member: MemberIndex(0), name: OpName::Write, after: 2, count: 1, errno: Errno::IO };
        engine.disk_mut().inner.fail(fault);
        let content = noise(5, engine.geometry().capacity().0);
        write(&mut engine, 0, &content).expect("the others have it");
        let failed = MemberSet::EMPTY.with(MemberIndex(0));
        assert_eq!(engine.missing(), failed, "{shape:?}, {sums}");
        crate::faults::assert_recorded(&engine, failed, "after checksums that failed");
        assert_content(&mut engine, &content, &format!("{shape:?}"));
    }
}

/// A stripe of a RAID 0, of whose writes to member 0 one fails: what was there, and what should be.
fn with_a_failed_write(after: u64) -> (TestEngine, Vec<u8>, Vec<u8>) {
    let (mut engine, old) = filled(small(Level::Raid0, 3));
    let new = noise(5, engine.geometry().stripe_sectors().0);
    engine.disk_mut().inner.fail(Fault {
        member: MemberIndex(0),
        name: OpName::Write,
        after,
        count: 1,
        errno: Errno::NOSPC,
    });
    let failed = MemberSet::EMPTY.with(MemberIndex(0));
    let written = write(&mut engine, 0, &new);
    assert!(matches!(written, Err(EngineError::WriteFailed { members }) if members == failed), "{written:?}");
    (engine, old, new)
}

/// Of what a member failed to write nothing is known; what the others wrote is checked as ever.
#[test]
fn a_failed_write_without_redundancy_costs_the_others_no_checksums() {
    // After the log's record.
    let (mut engine, old, new) = with_a_failed_write(1);
    run(&mut engine, Command::Close).expect("closed");
    let members = images(&engine);
    let mut engine = small(Level::Raid0, 3).checked().reopened(members, Order::Fifo);
    let geometry = engine.geometry().clone();
    for (index, found) in blocks(&mut engine).into_iter().enumerate() {
        let range = index * BLOCK..(index + 1) * BLOCK;
        let has_failed = geometry.locate(Lba(8 * index as u64)).member == MemberIndex(0);
        let found = found.expect("read");
        let is_new = new.get(range.clone()).is_some_and(|new| found == new);
        let may_be_old = has_failed || range.end > new.len();
        assert!(is_new || may_be_old && found == old[range], "block {index}");
    }
    engine.disk_mut().data_mut(MemberIndex(1))[100] ^= 1;
    let wrong = blocks(&mut engine).into_iter().filter(Result::is_err).count();
    assert_eq!(wrong, 1, "what rots on another member is found");
}

/// What is in memory is nowhere else, and the content is there already.
#[test]
fn checksums_that_a_member_could_not_take_are_written_when_the_array_is_closed() {
    // After the log's record and the content.
    let (mut engine, old, new) = with_a_failed_write(2);
    run(&mut engine, Command::Close).expect("closed");
    let members = images(&engine);
    let mut engine = small(Level::Raid0, 3).checked().reopened(members, Order::Fifo);
    assert_content(&mut engine, &[&new, &old[new.len()..]].concat(), "after the start");
    assert_eq!(engine.counters().total().mismatches, 0);
}

/// Without a member, what another holds wrong is an error or made good from what is left; with the cache and all.
#[test]
fn a_degraded_array_gives_out_nothing_wrong() {
    for shape in redundant() {
        let (mut engine, content) = filled(shape);
        run(&mut engine, Command::Close).expect("closed");
        let all = encoded(&shape.geometry(), &content);
        for missing in (0..shape.members).map(MemberIndex) {
            let mut members = images(&engine);
            members[missing.index()] = None;
            let engine = shape.checked().reopened(members, Order::Fifo);
            let (mut engine, _pool) = with_cache(engine, Some((CacheMode::WriteThrough, 64)));
            let victim = MemberIndex((missing.0 + 1) % shape.members);
            let len = all[victim.index()].len();
            engine.disk_mut().data_mut(victim)[..len].iter_mut().step_by(BLOCK).for_each(|byte| *byte ^= 1);
            let mut errors = 0;
            for (index, found) in blocks(&mut engine).into_iter().enumerate() {
                match found {
                    Ok(bytes) => assert!(bytes == content[index * BLOCK..][..BLOCK], "{shape:?}: block {index}"),
                    Err(EngineError::Unreadable { .. }) => errors += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(
                errors == 0,
                shape.geometry().tolerance() > 1 || is_apart(shape, missing, victim),
                "{shape:?} without {missing}"
            );
        }
    }
}

/// Whether two members of a mirror hold no block both.
fn is_apart(shape: Shape, first: MemberIndex, second: MemberIndex) -> bool {
    let both = MemberSet::EMPTY.with(first).with(second);
    Repair::new(&shape.geometry(), both).is_ok()
}

/// The server is killed after any of its disk operations: recovery makes content and checksums agree, and every block
/// is old or new.
#[test]
fn a_crash_between_content_and_checksums_is_made_good() {
    let mut crashes = 0;
    for shape in shapes().into_iter().step_by(2) {
        let shape = shape.checked();
        for seed in 0..3 {
            let mut engine = shape.engine(MemberSet::EMPTY, Order::Seeded(seed));
            let capacity = engine.geometry().capacity().0;
            let old = noise(seed, capacity);
            write(&mut engine, 0, &old).expect("written");
            let new = noise(seed + 50, capacity);
            for block in (0..capacity / 8).step_by(3) {
                let bytes = &new[size(Sectors(block * 8).bytes())..][..BLOCK];
                engine.submit(block, Command::Write { lba: Lba(block * 8), buf: buf(bytes), fua: false });
            }
            let mut replies = Vec::new();
            let mut acknowledged = Vec::new();
            while engine.in_flight() > 0 {
                engine.disk_mut().allow_reaps(1);
                engine.turn(&mut replies).expect("memory does not break");
                acknowledged.extend(replies.drain(..).map(|reply| {
                    reply.result.expect("written");
                    reply.token
                }));
                let members = images(&engine);
                let mut after = recovered(&shape, members);
                let context = format!("{shape:?}, seed {seed}, crash {crashes}");
                for (block, found) in (0u64..).zip(blocks(&mut after)) {
                    let found = found.unwrap_or_else(|error| panic!("{context}: block {block}: {error}"));
                    let at = size(Sectors(block * 8).bytes());
                    let is_new = block % 3 == 0 && found == new[at..][..BLOCK];
                    let is_old = found == old[at..][..BLOCK] && !acknowledged.contains(&block);
                    assert!(is_new || is_old, "{context}: block {block}");
                }
                assert_eq!(after.counters().total().mismatches, 0, "{context}");
                crashes += 1;
            }
            engine.disk_mut().allow_reaps(usize::MAX);
        }
    }
    assert!(crashes > 300, "only {crashes}");
}
