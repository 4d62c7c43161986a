//! Which members make an array up, and arrays on real files: made, opened, refused, repaired.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use uraid_io::array::{
    Array, Candidate, CreateError, CreateOptions, OpenError, OpenOptions, Patience, Refusal, SetAside, check_presence,
    create, judge,
};
use uraid_io::disk::Disk;
use uraid_io::engine::{Command, Engine, EngineError};
use uraid_io::format::Epoch;
use uraid_io::format::superblock::{Areas, Consistency, Integrity, Revision, SlotState, Superblock};
use uraid_io::member::{Access, Member, MemberError};
use uraid_layout::field;
use uraid_layout::{
    Bytes, Cell, Geometry, Lba, Level, MemberIndex, MemberSet, Placement, Rotation, Sectors, Spec, StripeId,
};
use uuid::Uuid;

use crate::support::{SIZE, options, paths, store, stored};

const RAID5: Level = Level::Raid5 { rotation: Rotation::LeftSymmetric };

fn uuid(number: u8) -> Uuid {
    Uuid::from_bytes([number; 16])
}

/// A member of an array of three; `failed` are the slots that it says have failed.
fn candidate(slot: u8, epoch: u64, failed: &[u8]) -> Candidate {
    let spec = Spec { level: Level::Raid1, members: 3, chunk: Bytes(4096), member_size: Sectors(64) };
    let areas = Areas::new(SIZE, Areas::default_log(SIZE), Integrity::None).expect("large enough");
    let members = [1, 2, 3].map(|number| (uuid(number), areas));
    let mut superblock = Superblock::of_new_array(uuid(99), spec, &members).swap_remove(usize::from(slot));
    (superblock.epoch, superblock.revision) = (Epoch(epoch), Revision(epoch));
    failed.iter().for_each(|&slot| superblock.slots[usize::from(slot)].state = SlotState::Failed);
    Candidate { path: format!("member{slot}").into(), superblock }
}

/// Which slots were accepted, and who was set aside.
type Outcome = (Vec<bool>, Vec<(PathBuf, SetAside)>);

/// What candidates are called, who they are, and what must become of them.
type Case = (&'static str, Vec<Candidate>, [bool; 3], Vec<(&'static str, SetAside)>);

/// Judges the candidates in every order; the slots that were accepted and who was set aside, which must not depend on
/// it.
fn verdict(candidates: &[Candidate]) -> Result<Outcome, Refusal> {
    let outcome = |order: &[usize]| {
        let named: Vec<Candidate> = order.iter().map(|&index| candidates[index].clone()).collect();
        let verdict = judge(&named)?;
        for (slot, index) in verdict.slots.iter().enumerate() {
            assert!(
                index.is_none_or(|index| named[index].superblock.slot.index() == slot),
                "slots come from superblocks"
            );
        }
        let mut aside: Vec<_> =
            verdict.set_aside.iter().map(|&(index, reason)| (named[index].path.clone(), reason)).collect();
        aside.sort_by(|a, b| a.0.cmp(&b.0));
        Ok((verdict.slots.iter().map(Option::is_some).collect(), aside))
    };
    let count = candidates.len();
    let first = outcome(&(0..count).collect::<Vec<_>>());
    for start in 0..count {
        let turned: Vec<usize> = (0..count).map(|index| (start + index) % count).collect();
        let back: Vec<usize> = turned.iter().rev().copied().collect();
        for order in [turned, back] {
            match (&first, outcome(&order)) {
                (Ok(first), Ok(other)) => assert_eq!(*first, other, "the order {order:?} matters"),
                (Err(first), Err(other)) => {
                    assert_eq!(
                        std::mem::discriminant(first),
                        std::mem::discriminant(&other),
                        "the order {order:?} matters"
                    );
                }
                (first, other) => panic!("the order {order:?} matters: {first:?} and {other:?}"),
            }
        }
    }
    first
}

#[test]
fn members_are_accepted_or_set_aside_with_the_reason() {
    let stale = |epoch, newest| SetAside::Stale { epoch: Epoch(epoch), newest: Epoch(newest) };
    let replaced = |mut candidate: Candidate| {
        candidate.superblock.member = uuid(77);
        candidate.superblock.slots[candidate.superblock.slot.index()].member = uuid(77);
        candidate
    };
    let cases: [Case; 8] = [
        ("whole", vec![candidate(0, 5, &[]), candidate(1, 5, &[]), candidate(2, 5, &[])], [true; 3], vec![]),
        ("one epoch behind", vec![candidate(0, 5, &[]), candidate(1, 4, &[]), candidate(2, 5, &[])], [true; 3], vec![]),
        ("only one ahead", vec![candidate(0, 5, &[]), candidate(1, 4, &[]), candidate(2, 4, &[])], [true; 3], vec![]),
        (
            "stale",
            vec![candidate(0, 5, &[]), candidate(1, 3, &[]), candidate(2, 5, &[])],
            [true, false, true],
            vec![("member1", stale(3, 5))],
        ),
        (
            "a failed member returns",
            vec![candidate(0, 5, &[1]), candidate(1, 4, &[]), candidate(2, 5, &[1])],
            [true, false, true],
            vec![("member1", SetAside::Failed)],
        ),
        (
            "only a failed member got an earlier round with the same epoch",
            vec![candidate(0, 5, &[1]), candidate(1, 5, &[]), candidate(2, 5, &[1])],
            [true, false, true],
            vec![("member1", SetAside::Failed)],
        ),
        (
            "replaced",
            vec![candidate(0, 5, &[]), replaced(candidate(1, 4, &[])), candidate(2, 5, &[])],
            [true, false, true],
            vec![("member1", SetAside::Replaced { owner: uuid(2) })],
        ),
        ("missing", vec![candidate(2, 5, &[0])], [false, false, true], vec![]),
    ];
    for (name, candidates, slots, aside) in cases {
        let aside = aside.into_iter().map(|(path, reason)| (path.into(), reason)).collect();
        assert_eq!(verdict(&candidates), Ok((slots.to_vec(), aside)), "{name}");
    }
}

#[test]
fn contradictions_are_refused() {
    assert!(matches!(verdict(&[]), Err(Refusal::NoMembers)));
    let mut foreign = candidate(1, 5, &[]);
    foreign.superblock.array = uuid(98);
    assert!(matches!(verdict(&[candidate(0, 5, &[]), foreign]), Err(Refusal::Foreign { .. })));
    assert!(matches!(verdict(&[candidate(0, 5, &[]), candidate(0, 4, &[])]), Err(Refusal::Clone { .. })));
    let mut other = candidate(1, 5, &[]);
    other.superblock.spec.chunk = Bytes(8192);
    assert!(matches!(verdict(&[candidate(0, 5, &[]), other]), Err(Refusal::Contradiction { .. })));
    for (mine, yours) in [(5, 5), (5, 6), (9, 6)] {
        let split = [candidate(0, mine, &[1]), candidate(1, yours, &[0])];
        assert!(matches!(verdict(&split), Err(Refusal::SplitBrain { .. })), "epochs {mine} and {yours}");
    }
}

/// A member of an array of three that says `state` of slot 1, since `since`.
fn saying(slot: u8, epoch: u64, state: SlotState, since: u64) -> Candidate {
    let mut candidate = candidate(slot, epoch, &[]);
    let record = &mut candidate.superblock.slots[1];
    (record.state, record.since) = (state, Epoch(since));
    candidate
}

#[test]
fn what_is_rebuilt_is_written_and_counts_as_lost() {
    let rebuilding = SlotState::Rebuilding { upto: StripeId(2), is_whole: true };
    let members = [0, 1, 2].map(|slot| saying(slot, 9, rebuilding, 7));
    assert_eq!(verdict(&members), Ok((vec![true; 3], vec![])));
    let one = |members: &[Candidate]| judge(members).expect("an array");
    let slot = MemberSet::EMPTY.with(MemberIndex(1));
    assert_eq!((one(&members).missing(), one(&members).rebuilding()), (MemberSet::EMPTY, slot));
    assert!(one(&members[..2]).is_readable() && !one(&members[1..2]).is_readable(), "alone it is nothing");
    assert_eq!(one(&[members[0].clone(), members[2].clone()]).newly_missing(), MemberSet::EMPTY, "it was lost before");
    let may = |is_clean, force, allow_degraded| {
        let mut members = members.clone();
        members.iter_mut().for_each(|member| member.superblock.is_clean = is_clean);
        check_presence(&one(&members), &members, OpenOptions { access: Access::ReadWrite, allow_degraded, force })
    };
    assert!(may(true, false, false).is_ok());
    assert!(may(false, false, true).is_ok(), "copies have all of it that were there when it was written");
    let mut parity = members.clone();
    for member in &mut parity {
        member.superblock.is_clean = false;
        member.superblock.spec.level = Level::Raid5 { rotation: Rotation::LeftSymmetric };
    }
    let options = OpenOptions { access: Access::ReadWrite, allow_degraded: true, force: false };
    let refused = check_presence(&one(&parity), &parity, options).unwrap_err();
    assert!(matches!(refused, OpenError::DirtyDegraded { .. }), "no log makes it good: {refused}");
    let said = refused.to_string();
    assert!(said.contains("is there, but not rebuilt yet") && said.contains("nothing to bring back"), "{said}");
    assert!(!said.contains("missing") && said.contains("parity"), "{said}");
    let forced = OpenOptions { force: true, ..options };
    assert!(check_presence(&one(&parity), &parity, forced).is_ok());
    // Two epochs behind it has missed writes.
    let stale = [members[0].clone(), saying(1, 7, rebuilding, 7), members[2].clone()];
    let aside = SetAside::Stale { epoch: Epoch(7), newest: Epoch(9) };
    assert_eq!(verdict(&stale), Ok((vec![true, false, true], vec![("member1".into(), aside)])));
}

/// Member 2 says that member 1 was given up, which was taken back later.
#[test]
fn who_was_given_up_before_is_merely_old_and_who_went_on_is_not() {
    let truth = |slot, back: u64, out: u64| {
        let mut member = saying(slot, 12, SlotState::Active, back);
        let gone = &mut member.superblock.slots[2];
        (gone.state, gone.since) = (SlotState::Failed, Epoch(out));
        member
    };
    let outsider = |epoch| saying(2, epoch, SlotState::Failed, 4);
    let judged = |back, out, epoch| verdict(&[truth(0, back, out), truth(1, back, out), outsider(epoch)]);
    let old = Ok((vec![true, true, false], vec![("member2".into(), SetAside::Failed)]));
    assert_eq!(judged(6, 9, 8), old, "given up at 4, back at 6; the outsider given up at 9");
    assert!(matches!(judged(6, 9, 9), Err(Refusal::SplitBrain { .. })), "it went on after that");
    assert!(matches!(judged(4, 9, 8), Err(Refusal::SplitBrain { .. })), "never given up by the others");
    assert!(matches!(judged(1, 9, 8), Err(Refusal::SplitBrain { .. })));
}

/// Member 1 was replaced at epoch 6, and the array is at 9.
#[test]
fn who_was_replaced_and_went_on_is_not_merely_set_aside() {
    let successor = uuid(77);
    let truth = |slot, epoch| {
        let mut member = saying(slot, epoch, SlotState::Active, 6);
        member.superblock.slots[1].member = successor;
        if slot == 1 {
            member.superblock.member = successor;
        }
        member
    };
    let former = |epoch| saying(1, epoch, SlotState::Active, 1);
    let judged = |former: Candidate| verdict(&[truth(0, 9), truth(1, 9), truth(2, 9), former]);
    let old = Ok((vec![true; 3], vec![("member1".into(), SetAside::Replaced { owner: successor })]));
    assert_eq!(judged(former(5)), old, "it has what there was when it was replaced");
    for epoch in [6, 7, 9] {
        assert!(matches!(judged(former(epoch)), Err(Refusal::SplitBrain { .. })), "it went on, until {epoch}");
    }
    // The former one is the newest.
    let judged = |successor: Candidate| verdict(&[former(20), successor]);
    assert!(matches!(judged(truth(1, 9)), Err(Refusal::SplitBrain { .. })), "the array went on with the successor");
    let aside = Ok((vec![false, true, false], vec![("member1".into(), SetAside::Replaced { owner: uuid(2) })]));
    assert_eq!(judged(truth(1, 6)), aside, "it never took the place");
}

fn without_log(level: Level) -> CreateOptions {
    CreateOptions { consistency: Some(Consistency::None), ..options(level) }
}

fn open(paths: &[PathBuf]) -> Result<Array, OpenError> {
    Array::open(paths, OpenOptions { access: Access::ReadWrite, allow_degraded: false, force: false })
}

fn garbage(path: &Path, size: Bytes, seed: u8) {
    let bytes: Vec<u8> = (0..size.0).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed).collect();
    fs::write(path, bytes).expect("written");
}

fn contents(directory: &TempDir) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(directory.path())
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path())
        .map(|path| (path.clone(), fs::read(path).expect("read")))
        .collect();
    files.sort();
    files
}

/// Asserts that every parity group agrees.
fn assert_agrees(paths: &[PathBuf], context: &str) {
    let superblocks: Vec<Superblock> = paths.iter().map(|path| stored(path)).collect();
    let geometry = Geometry::new(superblocks[0].spec).expect("a geometry");
    let files: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).expect("read")).collect();
    let chunk = usize::try_from(geometry.chunk().bytes().0).expect("small");
    let bytes = |stripe, cell: Cell| {
        let member = geometry.member(cell).index();
        let start = superblocks[member].areas.data.offset.0 + geometry.sector(stripe, cell).0 * 512;
        &files[member][usize::try_from(start).expect("small")..][..chunk]
    };
    for stripe in (0..geometry.stripes().0).map(StripeId) {
        for group in geometry.map(stripe).groups() {
            let mut sum = vec![0; chunk];
            for (cell, factor) in group.terms() {
                field::add_multiple(&mut sum, bytes(stripe, cell), factor);
            }
            assert!(sum.iter().all(|&byte| byte == 0), "{context}: parity of {stripe} disagrees");
        }
    }
}

fn run(engine: &mut Engine<uraid_io::disk::UringDisk, u8>, command: Command) -> Result<(), EngineError> {
    engine.submit(0, command);
    let mut replies = Vec::new();
    loop {
        engine.turn(&mut replies)?;
        if let Some(reply) = replies.pop() {
            return reply.result.map(drop);
        }
        engine.disk_mut().wait()?;
    }
}

#[test]
fn what_is_refused_changes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let all = paths(&directory, 4);
    garbage(&all[0], SIZE, 1);
    garbage(&all[1], SIZE, 2);
    let mut ext = fs::read(&all[1]).expect("read");
    ext[1080..1082].copy_from_slice(&[0x53, 0xEF]);
    ext[1024..1080].fill(1);
    fs::write(&all[1], ext).expect("written");
    garbage(&all[2], Bytes(1 << 20), 3);
    let before = contents(&directory);
    let with = |change: &dyn Fn(&mut CreateOptions)| {
        let mut options = options(RAID5);
        change(&mut options);
        options
    };
    let free = [all[0].clone(), directory.path().join("a"), directory.path().join("b")];
    let cases: [(&str, Vec<PathBuf>, CreateOptions); 8] = [
        ("in use", vec![all[0].clone(), all[1].clone(), all[3].clone()], with(&|_| ())),
        ("too small", vec![all[0].clone(), all[2].clone(), all[3].clone()], with(&|options| options.size = None)),
        ("smaller", vec![all[0].clone(), all[2].clone(), all[3].clone()], with(&|_| ())),
        ("no size", free.to_vec(), with(&|options| options.size = None)),
        ("twice", vec![free[0].clone(), free[1].clone(), free[1].clone()], with(&|_| ())),
        ("too few", free[..2].to_vec(), with(&|_| ())),
        ("chunk", free.to_vec(), with(&|options| options.chunk = Bytes(5000))),
        ("name", free.to_vec(), with(&|options| options.name = "x".repeat(65))),
    ];
    for (name, paths, options) in cases {
        let refused = create(&paths, &options, |_, _| ());
        assert!(refused.is_err(), "{name}");
        assert!(!matches!(refused, Err(CreateError::Initialise(_) | CreateError::Io(_))), "{name}: {refused:?}");
        assert!(contents(&directory) == before, "{name} changed a file");
    }
    // A member of an array is refused too.
    let made: Vec<PathBuf> = ["x", "y", "z"].map(|name| directory.path().join(name)).to_vec();
    create(&made, &options(RAID5), |_, _| ()).expect("created");
    let before = contents(&directory);
    assert!(matches!(create(&made, &options(RAID5), |_, _| ()), Err(CreateError::Member(MemberError::InUse { .. }))));
    assert!(contents(&directory) == before);
}

#[test]
fn members_full_of_garbage_come_into_agreement() {
    let rm2 = |placement| Level::Rm2 { height: 3, placement };
    let levels = [(RAID5, 3), (Level::Raid1, 2), (rm2(Placement::Adjacent), 7), (rm2(Placement::Partitioned), 7)];
    for (level, count) in levels {
        let directory = tempfile::tempdir().expect("a directory");
        let paths = paths(&directory, count);
        for (seed, path) in (0..).zip(&paths[1..]) {
            // Unequal sizes: the array uses the smallest.
            garbage(path, Bytes(SIZE.0 + u64::from(seed) * 70_000), seed);
        }
        let mut last = (Bytes(0), Bytes(1));
        let options = CreateOptions { force: true, ..options(level) };
        let made = create(&paths, &options, |done, total| last = (done, total)).expect("created");
        assert_eq!(last.0, last.1, "{level:?}: progress ends");
        assert_eq!(
            made.spec.member_size,
            Areas::new(SIZE, Areas::default_log(SIZE), Integrity::None).expect("large enough").data_sectors(),
            "{level:?}"
        );
        assert!(paths.iter().all(|path| stored(path).is_clean), "{level:?}");
        let mut engine = open(&paths).expect("opens").into_engine::<u8>().expect("an engine");
        while engine.initialising().is_some() {
            engine.tick();
            engine.turn(&mut Vec::new()).expect("files do not break");
            if engine.disk_mut().in_flight() > 0 {
                engine.disk_mut().wait().expect("files do not break");
            }
        }
        run(&mut engine, Command::Close).expect("closed");
        drop(engine);
        assert_agrees(&paths, &format!("{level:?}"));
    }
}

#[test]
fn an_unclean_mirror_is_refused_for_what_mirrors_lack() {
    let directory = tempfile::tempdir().expect("a directory");
    let paths = paths(&directory, 2);
    create(&paths, &without_log(Level::Raid1), |_, _| ()).expect("created");
    let mut engine = open(&paths).expect("opens").into_engine::<u8>().expect("an engine");
    let buf = uraid_io::buf::Buf::zeroed(Bytes(4096));
    run(&mut engine, Command::Write { lba: Lba(0), buf, fua: true }).expect("written");
    drop(engine);
    let degraded = OpenOptions { access: Access::ReadWrite, allow_degraded: true, force: false };
    let said = Array::open(&paths[1..], degraded).unwrap_err().to_string();
    assert!(said.contains("member 0 (") && said.contains(") is missing: ") && said.contains("copies"), "{said}");
    assert!(!said.contains("parity") && said.contains("Bring the missing member back"), "{said}");
}

#[test]
fn an_unclean_array_is_resynced_when_whole_and_refused_when_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut paths = paths(&directory, 4);
    create(&paths, &without_log(RAID5), |_, _| ()).expect("created");
    let mut engine = open(&paths).expect("opens").into_engine::<u8>().expect("an engine");
    let mut buf = uraid_io::buf::Buf::zeroed(Bytes(1 << 20));
    buf.as_mut().iter_mut().zip(0_u32..).for_each(|(byte, at)| *byte = (at.wrapping_mul(2_654_435_761) >> 24) as u8);
    run(&mut engine, Command::Write { lba: Lba(5), buf, fua: true }).expect("written");
    drop(engine);
    assert!(paths.iter().all(|path| !stored(path).is_clean), "dropped without closing");
    assert_agrees(&paths, "after writing");
    // Parity that does not match, as a write that was cut off leaves it.
    let mut file = fs::read(&paths[3]).expect("read");
    file[1 << 20..(1 << 20) + 100_000].fill(0xA5);
    fs::write(&paths[3], file).expect("written");
    let degraded = OpenOptions { access: Access::ReadWrite, allow_degraded: true, force: false };
    let refused = Array::open(&paths[1..], degraded).unwrap_err();
    assert!(matches!(refused, OpenError::DirtyDegraded { .. }), "{refused}");
    let said = refused.to_string();
    assert!(
        said.contains("is missing: ") && said.contains("parity") && said.contains("Bring the missing member back"),
        "{said}"
    );
    assert!(matches!(open(&paths[1..]), Err(OpenError::Degraded { .. })));
    assert!(matches!(open(&paths[2..]), Err(OpenError::TooFew { .. })));
    paths.reverse();
    let array = open(&paths).expect("opens in any order");
    paths.reverse();
    assert!(array.needs_recovery());
    let total = array.geometry.capacity().bytes();
    let mut done = Bytes(0);
    let array = array.recover(|bytes| done = bytes).expect("resynced");
    assert_eq!(done, total, "progress ends");
    assert!(!array.needs_recovery());
    drop(array);
    assert!(paths.iter().all(|path| stored(path).is_clean));
    assert_agrees(&paths, "after a resync");
    assert!(!Array::open(&paths[1..], degraded).expect("a clean array may be degraded").needs_recovery());
}

#[test]
fn a_forced_array_stays_dirty_while_redundancy_is_left_that_may_not_match() {
    let rm2 = Level::Rm2 { height: 2, placement: Placement::Adjacent };
    for (level, members, stays_clean) in [(RAID5, 4, true), (rm2, 5, false)] {
        let directory = tempfile::tempdir().expect("a directory");
        let paths = paths(&directory, members);
        create(&paths, &without_log(level), |_, _| ()).expect("created");
        for path in &paths {
            store(path, &Superblock { is_clean: false, revision: Revision(2), ..stored(path) });
        }
        let forced = OpenOptions { access: Access::ReadWrite, allow_degraded: true, force: true };
        let mut engine = Array::open(&paths[1..], forced).expect("forced").into_engine::<u8>().expect("an engine");
        let buf = uraid_io::buf::Buf::zeroed(Bytes(4096));
        run(&mut engine, Command::Write { lba: Lba(0), buf, fua: false }).expect("written");
        run(&mut engine, Command::Close).expect("closed");
        drop(engine);
        assert!(paths[1..].iter().all(|path| stored(path).is_clean == stays_clean), "{level:?}");
    }
}

#[test]
fn a_truncated_member_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let paths = paths(&directory, 3);
    create(&paths, &CreateOptions { size: Some(Bytes(5 << 20)), ..options(RAID5) }, |_, _| ()).expect("created");
    fs::OpenOptions::new().write(true).open(&paths[1]).expect("opened").set_len((5 << 20) - 4096).expect("truncated");
    let refused = open(&paths).expect_err("truncated");
    assert!(matches!(refused, OpenError::Truncated { .. }), "{refused}");
}

/// Two rounds of superblock writes in a row are cut off after the first member: still nobody is stale, as nothing was
/// written.
#[test]
fn two_rounds_cut_off_in_a_row_lose_nobody() {
    let directory = tempfile::tempdir().expect("a directory");
    let paths = paths(&directory, 3);
    create(&paths, &options(RAID5), |_, _| ()).expect("created");
    for _ in 0..3 {
        let mut superblock = stored(&paths[0]);
        superblock.epoch.0 += 1;
        superblock.revision.0 += 1;
        store(&paths[0], &superblock);
        let array = open(&paths).expect("a round that was cut off is no loss");
        assert!(array.missing().is_empty());
    }
    let epochs: Vec<u64> = paths.iter().map(|path| stored(path).epoch.0).collect();
    assert_eq!(epochs, [5, 5, 5], "creating it took two rounds");
}

#[test]
fn opening_and_reading_writes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let paths = paths(&directory, 3);
    create(&paths, &options(RAID5), |_, _| ()).expect("created");
    for (access, count) in
        [(Access::ReadOnly, 3), (Access::ReadOnly, 2), (Access::ReadWrite, 3), (Access::ReadWrite, 2)]
    {
        let before = contents(&directory);
        let options = OpenOptions { access, allow_degraded: true, force: false };
        let array = Array::open(&paths[..count], options).expect("opens");
        let mut engine = array.into_engine::<u8>().expect("an engine");
        let buf = uraid_io::buf::Buf::zeroed(Bytes(1 << 20));
        run(&mut engine, Command::Read { lba: Lba(0), buf }).expect("read");
        run(&mut engine, Command::Flush).expect("flushed");
        run(&mut engine, Command::Close).expect("closed");
        drop(engine);
        assert!(contents(&directory) == before, "{access:?} with {count} members changed a file");
    }
}

/// Whoever has a member may write it: an array that went on without it would be two.
#[test]
fn a_member_that_somebody_uses_is_never_done_without_as_if_it_hung() {
    let directory = tempfile::tempdir().expect("a directory");
    let paths = paths(&directory, 3);
    create(&paths, &options(Level::Raid1), |_, _| ()).expect("created");
    let _user = Member::open(&paths[1], Access::ReadWrite).expect("opened");
    let degraded = OpenOptions { access: Access::ReadWrite, allow_degraded: true, force: false };
    let mut patience = Patience::new(Some(Duration::from_millis(100)), || ());
    let refused = Array::open_patiently(&paths, degraded, MemberSet::EMPTY, &mut patience).expect_err("it is in use");
    assert!(matches!(refused, OpenError::Member(MemberError::Locked { .. })), "{refused}");
}
