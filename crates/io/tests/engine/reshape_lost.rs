//! Arrays that get another shape while nobody has some of their content: that is lost in the new shape, too, nothing
//! else is, and nothing is read in its place; whatever stops the reshape, and wherever it turns.

use std::ops::Range;

use rustix::io::Errno;
use tempfile::TempDir;
use uraid_io::array::{
    Assembled, ReshapeError, begin_reshape, begin_served, finish_served, first_and_last, grow, lost_of_saved, recover,
    rehearse_moves,
};
use uraid_io::buf::Buf;
use uraid_io::disk::{Fault, MemDisk, OpName, Order};
use uraid_io::engine::{Command, Engine, EngineError};
use uraid_io::format::badblocks::{BadBlocks, COPY_BYTES, Found, Lack};
use uraid_io::format::superblock::{Consistency, Integrity, Superblock};
use uraid_io::member::{Access, Member};
use uraid_layout::{Bytes, DiskSector, Geometry, Lba, Level, Location, MemberIndex, Rotation, Sectors};
use uuid::Uuid;

use crate::recovery::{assembled, superblock};
use crate::reshape::{Case, Power, assert_holds, case, cases, go, is_old, joining, judged, plan, reshape};
use crate::support::{Members, RAID5, Random, SECTOR, Shape, noise, size, small};

/// What is lost in these tests, where blocks have no checksums: sectors of two units of one column among them.
fn lost_of(case: &Case) -> Vec<u64> {
    let chunk = case.from.chunk / 512;
    if case.from.integrity == Integrity::None {
        return [3..5, chunk + 4..chunk + 7, 40..56].into_iter().flatten().collect();
    }
    (8..16).chain(5 * chunk..5 * chunk + 8).collect()
}

/// Has nobody have these sectors: whoever is to have them lacks them, and holds something else.
pub(crate) fn lose(members: &mut Members, geometry: &Geometry, lost: &[u64]) {
    let places = |&lba: &u64| std::iter::once(geometry.locate(Lba(lba))).chain(geometry.parity_of(Lba(lba)));
    lack(members, lost.iter().flat_map(places));
}

/// Has members lack these sectors, and hold anything there.
pub(crate) fn lack(members: &mut Members, places: impl Iterator<Item = Location>) {
    let mut lists = vec![BadBlocks::default(); members.len()];
    for (seed, Location { member, sector }) in (1000..).zip(places) {
        lists[member.index()].add(sector..DiskSector(sector.0 + 1), Lack::Absent).expect("there is room");
        let Some(bytes) = &mut members[member.index()] else { continue };
        let at = size(Bytes(superblock(bytes).areas.data.offset.0 + sector.0 * 512));
        bytes[at..at + SECTOR].copy_from_slice(&noise(seed, 1));
    }
    for (bytes, mut list) in members.iter_mut().zip(lists).filter(|(_, list)| !list.is_empty()) {
        let Some(bytes) = bytes else { continue };
        let Superblock { member, areas, .. } = superblock(bytes);
        let copy = list.encode_next(member);
        for at in [0, COPY_BYTES.0].map(|copy| size(Bytes(areas.bad_blocks.offset.0 + copy))) {
            bytes[at..at + copy.len()].copy_from_slice(copy.as_ref());
        }
    }
}

/// What a member durably lacks.
fn list_of(bytes: &[u8]) -> BadBlocks {
    let Superblock { member, areas, .. } = superblock(bytes);
    let copy = |copy: u64| {
        let at = size(Bytes(areas.bad_blocks.offset.0 + copy * COPY_BYTES.0));
        BadBlocks::decode(&bytes[at..at + size(COPY_BYTES)], member, areas.data_sectors().0 / 8)
    };
    let copies: [Found; 2] = [copy(0), copy(1)];
    BadBlocks::newest(copies).expect("a copy is whole")
}

/// Carries out a command.
pub(crate) fn ask<D: uraid_io::disk::Disk>(
    engine: &mut Engine<D, u64>,
    command: Command,
) -> Result<Option<Buf>, EngineError> {
    let mut replies = Vec::new();
    engine.submit(0, command);
    while replies.is_empty() {
        engine.turn(&mut replies).expect("memory does not break");
        engine.tick();
    }
    replies.remove(0).result
}

/// Asserts that these sectors of an array are lost and say so, and that all others are right.
fn assert_lost<D: uraid_io::disk::Disk>(engine: &mut Engine<D, u64>, content: &[u8], lost: &[u64], context: &str) {
    let step = if engine.superblock().integrity == Integrity::None { 1 } else { 8 };
    for lba in (0..(content.len() / SECTOR) as u64).step_by(step) {
        let buf = Buf::zeroed(Bytes((step * SECTOR) as u64));
        match ask(engine, Command::Read { lba: Lba(lba), buf }) {
            Ok(buf) => {
                assert!(!lost.contains(&lba), "{context}: sector {lba} is anything");
                let found = buf.expect("its memory");
                assert!(
                    found.as_ref() == &content[size(Bytes(lba * 512))..][..step * SECTOR],
                    "{context}: sector {lba}"
                );
            }
            Err(EngineError::Unreadable { .. }) => assert!(lost.contains(&lba), "{context}: sector {lba} is there"),
            Err(error) => panic!("{context}: sector {lba}: {error}"),
        }
        // Something may move meanwhile.
        assert_eq!(told(engine), lost, "{context}: what it says");
    }
}

/// Asserts that of an array at rest these sectors are lost, and nothing else; and when they are written, nothing is.
fn assert_rest(members: &Members, content: &[u8], lost: &[u64], context: &str) {
    let (_, verdict) = judged(members);
    let own: Members = members[..verdict.geometry.members()].to_vec();
    let opened = assembled(MemDisk::new(own.clone(), Order::Fifo), &own);
    let mut engine: Engine<MemDisk, u64> = opened.into_engine().expect("an engine");
    let capacity = engine.geometry().capacity().0;
    let lost: Vec<u64> = lost.iter().copied().filter(|&lba| lba < capacity).collect();
    let content = &content[..content.len().min(size(Bytes(capacity * 512)))];
    assert_lost(&mut engine, content, &lost, context);
    let step = if engine.superblock().integrity == Integrity::None { 1 } else { 8 };
    for &lba in lost.iter().filter(|&lba| lba % step == 0) {
        let mut buf = Buf::zeroed(Sectors(step).bytes());
        buf.as_mut().copy_from_slice(&content[size(Bytes(lba * 512))..][..size(Bytes(step * 512))]);
        drop(ask(&mut engine, Command::Write { lba: Lba(lba), buf, fua: true }).expect("written"));
    }
    drop(ask(&mut engine, Command::Close).expect("closed"));
    assert!(engine.lost().is_empty(), "{context}: written");
    let (disk, geometry, _) = engine.into_parts();
    let healed: Members = geometry.all_members().iter().map(|slot| disk.member(slot).cloned()).collect();
    for bytes in healed.iter().flatten() {
        assert!(list_of(bytes).is_empty(), "{context}: what nobody has is in no list");
    }
    assert_holds(&healed, content, context);
}

/// The members of an array of which nobody has some sectors; its content, and these.
fn with_losses(case: &Case) -> (Members, Vec<u8>, Vec<u64>) {
    let ((mut members, content), lost) = (case.members(), lost_of(case));
    lose(&mut members, &case.from.geometry(), &lost);
    (members, content, lost)
}

/// What is kept of it.
fn kept(case: &Case, content: &[u8], lost: &[u64]) -> (Vec<u8>, Vec<u64>) {
    let kept = case.kept.map_or(content.len(), size);
    (content[..kept].to_vec(), lost.iter().copied().filter(|&lba| lba < (kept / SECTOR) as u64).collect())
}

#[test]
fn what_nobody_has_is_lost_in_every_shape() {
    for case in cases() {
        let context = format!("{case:?}");
        let (members, content, lost) = with_losses(&case);
        let (outcome, after, _) = reshape(&members, &case, false, usize::MAX, &mut Random(1));
        drop(outcome.expect("it has another shape").unwrap_or_else(|error| panic!("{context}: {error}")));
        let (content, lost) = kept(&case, &content, &lost);
        assert_rest(&after, &content, &lost, &context);
    }
}

#[test]
fn cuts_and_turns_neither_lose_more_nor_invent() {
    for (index, case) in (0..).zip(cases()) {
        let (members, content, lost) = with_losses(&case);
        let (_, _, all) = reshape(&members, &case, false, usize::MAX, &mut Random(index));
        for round in 0..6 {
            let mut random = Random(round * 100 + index);
            let mut context = format!("{case:?}, round {round}");
            let (mut now, mut is_back) = (members.clone(), false);
            for _ in 0..=random.below(4) {
                let left = size(Bytes(random.below(all as u64)));
                let (outcome, after, _) = reshape(&now, &case, is_back, left, &mut random);
                context += &format!(", {left} operations{}", if is_back { " back" } else { "" });
                now = after;
                if outcome.is_none_or(|outcome| outcome.is_ok()) {
                    break;
                }
                is_back = random.below(3) == 0;
            }
            let (mut outcome, mut after, _) = reshape(&now, &case, is_back, usize::MAX, &mut random);
            if let Some(Err(ReshapeError::Missing { .. })) = &outcome {
                // It was cut off before all new members were some: there is only the way back.
                (outcome, after, _) = reshape(&now, &case, true, usize::MAX, &mut random);
            }
            outcome.map_or(Ok(()), |outcome| outcome.map(drop)).unwrap_or_else(|error| panic!("{context}: {error}"));
            let (content, lost) = kept(&case, &content, &lost);
            assert!(is_old(&after, &case).is_some(), "{context}");
            assert_rest_of_kept(&after, &case, (&content, &lost), &context);
        }
    }
}

/// On the way back of an array that was to be cut, what was given up may be there or not.
fn assert_rest_of_kept(members: &Members, case: &Case, (content, lost): (&[u8], &[u64]), context: &str) {
    if case.kept.is_none() || is_old(members, case) == Some(false) {
        assert_rest(members, content, lost, context);
    }
}

/// All of its windows are saved, and it goes on or back from each cut.
#[test]
fn the_power_goes_at_each_operation() {
    let case = Case { from: Shape { chunks: 8, ..cases()[7].from }, ..cases()[7] };
    let (members, content, lost) = with_losses(&case);
    let mut saves = 0;
    for left in 0.. {
        let mut random = Random(left as u64);
        let (outcome, after, _) = reshape(&members, &case, false, left, &mut random);
        let is_back = left % 2 == 0;
        let context = format!("cut after {left} operations, then back: {is_back}");
        let is_over = outcome.is_some_and(|outcome| outcome.is_ok());
        // Files take their time.
        if let Some((window, saved)) = (left % 5 == 0).then(|| told_of_saved(&after)).flatten() {
            let expected: Vec<u64> = lost.iter().copied().filter(|&lba| window.contains(&Lba(lba))).collect();
            assert_eq!(saved, expected, "{context}: what is saved of {window:?}");
            saves += usize::from(!saved.is_empty());
        }
        let (outcome, after, _) = reshape(&after, &case, is_back, usize::MAX, &mut random);
        outcome.map_or(Ok(()), |outcome| outcome.map(drop)).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_rest(&after, &content, &lost, &context);
        if is_over {
            break;
        }
    }
    assert!(saves > 0, "something that is lost was saved as that");
}

/// The window that is saved, and what of it the members say that nobody has; none where none is saved.
fn told_of_saved(members: &Members) -> Option<(Range<Lba>, Vec<u64>)> {
    let (_, verdict) = judged(members);
    let (course, reshape) = verdict.superblock.course().zip(verdict.superblock.reshape)?;
    let window = course.ahead(reshape.mark, course.heading(reshape.is_back), reshape.saved).expect("it is sound");
    if window.is_empty() {
        return None;
    }
    let directory = TempDir::new().expect("a directory");
    let files = (0..).zip(members).filter_map(|(slot, bytes)| {
        let (path, bytes) = (directory.path().join(format!("member{slot}")), bytes.as_ref()?);
        std::fs::write(&path, &**bytes).expect("written");
        Some((Member::open(&path, Access::Inspect).expect("a member"), superblock(bytes)))
    });
    let files: Vec<(Member, Superblock)> = files.collect();
    let held: Vec<(&Member, &Superblock)> = files.iter().map(|(member, own)| (member, own)).collect();
    let lost = lost_of_saved(&verdict.superblock, &held);
    Some((window, lost.into_iter().flat_map(|range| range.start.0..range.end.0).collect()))
}

/// A medium may give what was taken for lost.
#[test]
fn what_a_medium_gives_after_all_is_not_lost() {
    let case = cases()[7];
    let (mut members, content) = case.members();
    // Nothing is wrong with it but that lists say so: data and parity of these columns could not be read some time.
    let (geometry, lost) = (case.from.geometry(), [3, 4, 60]);
    let mut lists = vec![BadBlocks::default(); members.len()];
    for lba in lost.map(Lba) {
        for Location { member, sector } in std::iter::once(geometry.locate(lba)).chain(geometry.parity_of(lba)) {
            lists[member.index()].add(sector..DiskSector(sector.0 + 1), Lack::Unread).expect("there is room");
        }
    }
    for (bytes, mut list) in members.iter_mut().flatten().zip(lists) {
        let Superblock { member, areas, .. } = superblock(bytes);
        let (copy, at) = (list.encode_next(member), size(areas.bad_blocks.offset));
        bytes[at..at + copy.len()].copy_from_slice(copy.as_ref());
    }
    let (outcome, after, _) = reshape(&members, &case, false, usize::MAX, &mut Random(1));
    drop(outcome.expect("it has another shape").expect("reshaped"));
    assert_holds(&after, &content, "read after all");
    assert!(after.iter().flatten().all(|bytes| list_of(bytes).is_empty()));
}

/// RAID 5 of four that is to get another rotation, with these sectors lost.
fn in_another_rotation(consistency: Consistency, lost: &[u64]) -> (Case, Members, Vec<u8>) {
    let right = Level::Raid5 { rotation: Rotation::RightAsymmetric };
    let case = case(Shape { consistency, ..small(RAID5, 4) }, right, 4);
    let (mut members, content) = case.members_with_log(Bytes(256 << 10));
    lose(&mut members, &case.from.geometry(), lost);
    (case, members, content)
}

/// What an array says that is lost.
fn told<D: uraid_io::disk::Disk>(engine: &Engine<D, u64>) -> Vec<u64> {
    engine.lost().iter().flat_map(|range| range.start.0..range.end.0).collect()
}

/// An array at rest.
fn at_rest(members: &Members) -> Engine<MemDisk, u64> {
    let opened = assembled(MemDisk::new(members.clone(), Order::Fifo), members);
    opened.into_engine().expect("an engine")
}

/// Where only parity has content, it does not move beside content that is lost: parity would say nothing any more. That
/// is found out before anything has begun, and where a member is missing later.
#[test]
fn content_that_only_parity_would_have_does_not_move_beside_what_is_lost() {
    let (mut moved, mut stopped) = (0, 0);
    // Every fifth page, so that each column has its turn.
    for lba in (0..24 * 3 * 8).step_by(5 * 8) {
        let context = format!("sector {lba}");
        let (case, whole, content) = in_another_rotation(Consistency::Bitmap, &[lba]);
        let begun = (0..).map(|left| reshape(&whole, &case, false, left, &mut Random(1)).1);
        let mut begun =
            begun.into_iter().find(|after| judged(after).1.superblock.reshape.is_some()).expect("it begins");
        let mut fewer = whole.clone();
        (fewer[1], begun[1]) = (None, None);
        // The sector, and that of the missing member beside it, if it has data there.
        let before = told(&at_rest(&fewer));
        let opened = assembled(MemDisk::new(fewer.clone(), Order::Fifo), &fewer);
        let planned = plan(&opened, &fewer, &case);
        let mut power = Power::new(begun.clone(), usize::MAX);
        let outcome = go(&mut power, &begun, &case, false, true).expect("it is under way");
        let mut after = power.cut(&mut Random(1));
        match (outcome, planned) {
            (Ok(_), Ok(_)) => moved += 1,
            (Err(ReshapeError::LosesMore { lba: more }), Err(ReshapeError::LosesMore { .. })) => {
                stopped += 1;
                assert!(!before.contains(&more.0), "{context}");
                let mut power = Power::new(after.clone(), usize::MAX);
                drop(go(&mut power, &after, &case, true, true).expect("it is under way").expect("back"));
                after = power.cut(&mut Random(1));
            }
            (outcome, planned) => panic!("{context}: {outcome:?}, planned: {planned:?}"),
        }
        assert_lost(&mut at_rest(&after), &content, &before, &context);
    }
    assert!(moved > 0 && stopped > 0, "{moved} moved, {stopped} did not");
}

/// What members lack beyond the new shape is forgotten: the array is blank there when it grows.
#[test]
fn an_array_that_grows_after_it_lacks_nothing_there() {
    for case in cases().into_iter().filter(|case| case.members >= case.from.members && case.kept.is_none()) {
        let context = format!("{case:?}");
        let (mut members, _) = case.members();
        let geometry = case.from.geometry();
        let last = geometry.capacity().0 - 8;
        lose(&mut members, &geometry, &(last..last + 8).collect::<Vec<u64>>());
        let (outcome, after, _) = reshape(&members, &case, false, usize::MAX, &mut Random(1));
        drop(outcome.expect("it has another shape").unwrap_or_else(|error| panic!("{context}: {error}")));
        let sizes: Vec<_> = after.iter().map(|bytes| bytes.as_ref().map(|bytes| Bytes(bytes.len() as u64))).collect();
        let opened = assembled(MemDisk::new(after.clone(), Order::Fifo), &after);
        let grown = grow(opened, &sizes, None).unwrap_or_else(|error| panic!("{context}: {error}"));
        let mut engine: Engine<MemDisk, u64> = grown.into_engine().expect("an engine");
        assert_eq!(told(&engine), (last..last + 8).collect::<Vec<u64>>(), "{context}");
        let more = engine.geometry().capacity().0 - last - 8;
        let read = ask(&mut engine, Command::Read { lba: Lba(last + 8), buf: Buf::zeroed(Sectors(more).bytes()) });
        let read = read.unwrap_or_else(|error| panic!("{context}: {error}")).expect("its memory");
        assert!(more > 0 && read.as_ref().iter().all(|&byte| byte == 0), "{context}");
    }
}

#[test]
fn a_rehearsal_says_nothing_of_what_is_lost() {
    for case in cases() {
        let context = format!("{case:?}");
        let (members, _, _) = with_losses(&case);
        let mut power = Power::new(members.clone(), usize::MAX);
        let old: Members = members[..usize::from(case.from.members)].to_vec();
        let opened = assembled(&mut power, &old);
        let plan = plan(&opened, &members, &case).expect("a plan");
        let marks = first_and_last(&plan);
        let reshaping = begin_reshape(opened, plan, Uuid::from_u128(9), Ok).expect("begun");
        rehearse_moves(reshaping, &marks).unwrap_or_else(|error| panic!("{context}: {error}"));
    }
}

/// Serves an array until its reshape is over, or the power goes: what it says is lost is so all the time, on both sides
/// of the mark. Whether it came to its end.
fn serve(power: &mut Power, now: &Members, case: &Case, content: &[u8], lost: &[u64], context: &str) -> bool {
    let is_uncut = power.left == usize::MAX;
    let (candidates, verdict) = judged(now);
    let opened = Assembled::new(power, &verdict, &candidates, Access::ReadWrite, Uuid::from_u128(5));
    let opened = opened.and_then(|opened| if opened.needs_recovery() { recover(opened, |_| ()) } else { Ok(opened) });
    assert!(opened.is_ok() || !is_uncut, "{context}: {:?}", opened.as_ref().err());
    let Ok(opened) = opened else { return false };
    let mut engine: Engine<_, u64> = opened.into_engine().expect("an engine");
    let mut replies = Vec::new();
    if engine.reshape().is_none() {
        if is_old(now, case) == Some(false) {
            return true;
        }
        let begun = begin_served(&mut engine, &case.target(), &joining(now, case), Uuid::from_u128(6));
        if engine.disk().left == 0 {
            return false;
        }
        begun.unwrap_or_else(|error| panic!("{context}: {error}"));
    }
    engine.reshape().expect("it is under way").limit_window(Bytes(24 << 10));
    let mut mark = None;
    while engine.reshape().is_some_and(|way| !way.is_over()) {
        engine.turn(&mut replies).expect("memory does not break");
        if engine.disk().left == 0 {
            return false;
        }
        engine.tick();
        let way = engine.reshape().expect("it is under way").progress();
        assert_eq!(way.stuck, None, "{context}");
        assert_eq!(told(&engine), lost, "{context}, {} of {} sectors, while more moves", way.done.0, way.total.0);
        let has_moved = mark.replace(way.done) != Some(way.done);
        if has_moved && is_uncut {
            assert_lost(&mut engine, content, lost, &format!("{context}, {} of {} sectors", way.done.0, way.total.0));
        }
    }
    engine.submit(0, Command::Close);
    while replies.is_empty() {
        engine.turn(&mut replies).expect("memory does not break");
        if engine.disk().left == 0 {
            return false;
        }
        engine.tick();
    }
    let ended = finish_served(&mut engine, Uuid::from_u128(7));
    if engine.disk().left == 0 {
        return false;
    }
    ended.unwrap_or_else(|error| panic!("{context}: {error}"));
    if is_uncut {
        assert_lost(&mut engine, content, lost, context);
        drop(ask(&mut engine, Command::Close));
    }
    true
}

fn served_cases() -> Vec<Case> {
    let logged = |shape: Shape| Shape { consistency: Consistency::Log, ..shape };
    let right = Level::Raid5 { rotation: Rotation::RightAsymmetric };
    let rm2 = crate::support::rm2(3, uraid_layout::Placement::Adjacent);
    vec![
        case(logged(small(RAID5, 3)), RAID5, 4),
        case(logged(small(RAID5, 4)), right, 4),
        case(logged(small(rm2, 7)), RAID5, 4),
        case(small(RAID5, 3).checked(), rm2, 7),
        case(small(Level::Raid0, 3), Level::Raid0, 4),
    ]
}

#[test]
fn what_nobody_has_moves_while_the_array_is_served() {
    for case in served_cases() {
        let context = format!("{case:?}");
        let (mut members, content) = case.members_with_log(Bytes(256 << 10));
        let lost = lost_of(&case);
        lose(&mut members, &case.from.geometry(), &lost);
        let mut power = Power::new(members.clone(), usize::MAX);
        power.late = Some(Random(3));
        assert!(serve(&mut power, &members, &case, &content, &lost, &context), "{context}");
        assert_rest(&power.cut(&mut Random(1)), &content, &lost, &context);
    }
}

#[test]
fn cuts_of_a_served_array_neither_lose_more_nor_invent() {
    for (index, case) in (0..).zip(served_cases()) {
        for round in 0..12 {
            let mut context = format!("{case:?}, round {round}");
            let mut random = Random(round * 100 + index);
            let (mut now, content) = case.members_with_log(Bytes(256 << 10));
            let lost = lost_of(&case);
            lose(&mut now, &case.from.geometry(), &lost);
            for cut in 0..4 {
                let left = if cut < 3 { 1 + size(Bytes(random.below(400))) } else { usize::MAX };
                context += &format!(", {left} operations");
                let mut power = Power::new(now.clone(), left);
                let is_over = serve(&mut power, &now, &case, &content, &lost, &context);
                now = power.cut(&mut random);
                if is_over {
                    break;
                }
            }
            assert_rest(&now, &content, &lost, &context);
        }
    }
}

#[test]
fn a_served_array_does_not_move_what_only_parity_would_have_until_what_is_lost_is_written() {
    let geometry = case(small(RAID5, 4), RAID5, 4).from.geometry();
    let lost: Vec<u64> = (0..24 * 3 * 8).step_by(8).filter(|&lba| geometry.locate(Lba(lba)).member.0 == 0).collect();
    let (case, members, content) = in_another_rotation(Consistency::Log, &lost);
    let mut engine = at_rest(&members);
    begin_served(&mut engine, &case.target(), &[], Uuid::from_u128(6)).expect("begun");
    engine.reshape().expect("begun").limit_rate(Some(Bytes(1)));
    drop(run_on(&mut engine, Command::Fail { member: MemberIndex(1) }));
    let before = told(&engine);
    assert!(before.len() > lost.len(), "of the missing member's some is lost, too");
    engine.reshape().expect("begun").limit_rate(None);
    let mut replies = Vec::new();
    for _ in 0..2000 {
        engine.turn(&mut replies).expect("memory does not break");
        engine.tick();
        if engine.reshape().is_some_and(|way| way.progress().stuck.is_some()) {
            break;
        }
    }
    assert!(engine.reshape().expect("under way").progress().stuck.is_some(), "it waits");
    assert_lost(&mut engine, &content, &before, "it waits");
    let mut unwritten = Vec::new();
    for &lba in &before {
        let written = ask(&mut engine, write_of(&content, lba));
        let read = ask(&mut engine, Command::Read { lba: Lba(lba), buf: Buf::zeroed(Bytes(512)) });
        assert_eq!(written.is_ok(), read.is_ok(), "sector {lba}: {written:?}, {read:?}");
        unwritten.extend(written.is_err().then_some(lba));
    }
    // What only parity would have waits for what else is lost of its column.
    assert!(unwritten.len() < before.len() / 2, "{unwritten:?}");
    for lba in unwritten {
        drop(run_on(&mut engine, write_of(&content, lba)));
    }
    // It is tried again at once, not some time.
    for _ in 0..500 {
        engine.turn(&mut replies).expect("memory does not break");
    }
    assert_eq!(engine.reshape().expect("under way").progress().stuck, None, "it goes on");
    for _ in 0..2000 {
        engine.turn(&mut replies).expect("memory does not break");
        engine.tick();
    }
    assert!(engine.reshape().expect("under way").is_over(), "it goes on: {:?}", engine.reshape());
    assert_lost(&mut engine, &content, &[], "all is there");
}

/// A member fails to take something, and stays, as the other shape needs it: what it has there counts for nothing, and
/// nothing is made of it.
#[test]
fn what_a_kept_member_failed_to_take_is_not_its_content() {
    let case = case(Shape { consistency: Consistency::Log, ..small(RAID5, 3) }, Level::Raid0, 3);
    let (members, content) = case.members_with_log(Bytes(256 << 10));
    let (geometry, lba, new) = (case.from.geometry(), 40, noise(1000, 8));
    let stripe = geometry.stripe_sectors().0;
    let of_stripe = lba / stripe * stripe..(lba / stripe + 1) * stripe;
    let row = geometry.locate(Lba(of_stripe.start)).sector;
    let mut kept = 0;
    for (failing, after) in (0..3).map(MemberIndex).flat_map(|member| (0..4).map(move |after| (member, after))) {
        let mut engine = at_rest(&members);
        begin_served(&mut engine, &case.target(), &[], Uuid::from_u128(6)).expect("begun");
        engine.reshape().expect("begun").limit_rate(Some(Bytes(1)));
        let (data, rest) =
            (engine.superblock().areas.data.offset, [1, 2].map(|next| MemberIndex((failing.0 + next) % 3)));
        engine.disk_mut().fail(Fault { member: failing, name: OpName::Write, after, count: 1, errno: Errno::IO });
        let mut buf = Buf::zeroed(Bytes(4096));
        buf.as_mut().copy_from_slice(&new);
        let written = ask(&mut engine, Command::Write { lba: Lba(lba), buf, fua: false });
        kept += u64::from(matches!(written, Err(EngineError::WriteFailed { .. })) && engine.missing().is_empty());
        for other in rest {
            engine.disk_mut().spoil(other, Bytes(data.0 + row.0 * 512), Bytes(case.from.chunk));
            for at in of_stripe.clone() {
                let read = ask(&mut engine, Command::Read { lba: Lba(at), buf: Buf::zeroed(Bytes(512)) });
                let Ok(Some(found)) = read else { continue };
                let old = &content[size(Bytes(at * 512))..][..SECTOR];
                let new = (lba..lba + 8).contains(&at).then(|| &new[size(Bytes((at - lba) * 512))..][..SECTOR]);
                let is_right = found.as_ref() == old || Some(found.as_ref()) == new;
                assert!(is_right, "sector {at}, {failing} fails after {after} writes, without {other}");
            }
            engine.disk_mut().clear_spoilt();
        }
    }
    assert!(kept > 0, "some of the writes fail in place");
}

/// What an array is to hold in a sector.
fn write_of(content: &[u8], lba: u64) -> Command {
    let mut buf = Buf::zeroed(Bytes(512));
    buf.as_mut().copy_from_slice(&content[size(Bytes(lba * 512))..][..SECTOR]);
    Command::Write { lba: Lba(lba), buf, fua: false }
}

fn run_on(engine: &mut Engine<MemDisk, u64>, command: Command) -> Option<Buf> {
    ask(engine, command).expect("done")
}
