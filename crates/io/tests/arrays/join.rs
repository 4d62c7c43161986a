//! Members that join an array of files that runs, and those that are refused.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use uraid_io::array::{
    Array, CreateOptions, JoinError, JoinOptions, NewLogs, OpenOptions, create, join, rejoin, returning,
};
use uraid_io::buf::Buf;
use uraid_io::disk::{Disk, UringDisk};
use uraid_io::engine::{Command, Engine, EngineError, Joining};
use uraid_io::format::badblocks::BadBlocks;
use uraid_io::format::superblock::{Allocation, Areas, Consistency, Integrity, SlotState, Superblock};
use uraid_io::format::{Epoch, UnixSeconds};
use uraid_io::member::{Access, Member, MemberError, Wait};
use uraid_layout::{Bytes, Lba, Level, MemberIndex, Rotation, Sectors, Spec, StripeId};
use uuid::Uuid;

const RAID5: Level = Level::Raid5 { rotation: Rotation::LeftSymmetric };
const SIZE: Bytes = Bytes(8 << 20);
const SLOT: MemberIndex = MemberIndex(1);

type FileEngine = Engine<UringDisk, u8>;

fn made(directory: &TempDir, level: Level, consistency: Consistency, integrity: Integrity) -> Vec<PathBuf> {
    let paths: Vec<PathBuf> = (0..3).map(|number| directory.path().join(format!("member{number}"))).collect();
    let options = CreateOptions {
        level,
        chunk: Bytes(16 << 10),
        name: "join".into(),
        size: Some(SIZE),
        allocation: Allocation::Sparse,
        force: false,
        consistency: Some(consistency),
        integrity,
        log_size: None,
        logs: NewLogs::default(),
        created: UnixSeconds(1),
    };
    create(&paths, &options, |_, _| ()).expect("created");
    paths
}

fn opened(paths: &[PathBuf]) -> FileEngine {
    let options = OpenOptions { access: Access::ReadWrite, allow_degraded: false, force: false };
    Array::open(paths, options).expect("opens").into_engine().expect("an engine")
}

fn run(engine: &mut FileEngine, command: Command) -> Result<Option<Buf>, EngineError> {
    engine.submit(0, command);
    let mut replies = Vec::new();
    loop {
        engine.turn(&mut replies)?;
        if let Some(reply) = replies.pop() {
            return reply.result;
        }
        engine.disk_mut().wait()?;
    }
}

fn write(engine: &mut FileEngine, lba: u64, seed: u8, len: usize) {
    let mut buf = Buf::zeroed(Bytes(len as u64));
    buf.as_mut().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 512) as u8 ^ (at as u8) ^ seed);
    drop(run(engine, Command::Write { lba: Lba(lba), buf, fua: true }).expect("written"));
}

fn content(engine: &mut FileEngine) -> Vec<u8> {
    let buf = Buf::zeroed(engine.geometry().capacity().bytes());
    let reply = run(engine, Command::Read { lba: Lba(0), buf }).expect("read");
    reply.expect("its buffer").as_ref().to_vec()
}

/// Gives the member up and takes it out of the disk.
fn give_up(engine: &mut FileEngine) {
    drop(run(engine, Command::Fail { member: SLOT }).expect("given up"));
    while engine.disk().in_flight() > 0 {
        engine.disk_mut().wait().expect("the ring works");
        engine.turn(&mut Vec::new()).expect("the ring works");
    }
    drop(engine.disk_mut().put(SLOT, None).expect("nothing is in flight").expect("it was there"));
}

fn take_in(engine: &mut FileEngine, (member, joining): (Member, Joining)) {
    assert!(engine.disk_mut().put(SLOT, Some(Arc::new(member))).expect("nothing is in flight").is_none());
    drop(run(engine, Command::Join(Box::new(joining))).expect("joined"));
    while engine.rebuilding().is_some() || engine.disk().in_flight() > 0 {
        engine.turn(&mut Vec::new()).expect("the ring works");
        engine.disk_mut().wait().expect("the ring works");
    }
}

const OPTIONS: JoinOptions =
    JoinOptions { size: Some(SIZE), allocation: Allocation::Sparse, force: false, wait: Wait::Briefly };

#[test]
fn a_new_member_takes_the_place_of_one_that_was_given_up() {
    let ways = [
        (RAID5, Consistency::None, Integrity::None),
        (RAID5, Consistency::Log, Integrity::Crc32),
        (Level::Raid1, Consistency::Bitmap, Integrity::None),
    ];
    for (level, consistency, integrity) in ways {
        let directory = tempfile::tempdir().expect("a directory");
        let mut paths = made(&directory, level, consistency, integrity);
        let mut engine = opened(&paths);
        write(&mut engine, 0, 1, 3 << 20);
        give_up(&mut engine);
        write(&mut engine, 64, 2, 1 << 20);
        let before = content(&mut engine);
        paths[1] = directory.path().join("new");
        let joining = join(&paths[1], OPTIONS, &engine.superblock(), SLOT).expect("prepared");
        take_in(&mut engine, joining);
        assert!(engine.missing().is_empty());
        drop(run(&mut engine, Command::Close).expect("closed"));
        drop(engine);
        let mut engine = opened(&paths);
        assert!(content(&mut engine) == before, "{level:?}");
        drop(run(&mut engine, Command::Fail { member: MemberIndex(0) }).expect("given up"));
        assert!(content(&mut engine) == before, "{level:?}: without another");
    }
}

#[test]
fn a_member_that_returns_is_rebuilt_where_it_lacks_something() {
    let ways = [(Level::Raid1, Consistency::Bitmap, Integrity::None), (RAID5, Consistency::Log, Integrity::Crc32)];
    for (level, consistency, integrity) in ways {
        let directory = tempfile::tempdir().expect("a directory");
        let paths = made(&directory, level, consistency, integrity);
        let mut engine = opened(&paths);
        write(&mut engine, 0, 1, 3 << 20);
        give_up(&mut engine);
        write(&mut engine, 64, 2, 1 << 20);
        let before = content(&mut engine);
        let (member, joining) = rejoin(&paths[1], &engine.superblock(), &HashMap::new()).expect("it may return");
        assert_eq!(joining.is_whole, consistency != Consistency::Bitmap);
        take_in(&mut engine, (member, joining));
        let again = rejoin(&paths[1], &engine.superblock(), &HashMap::new());
        assert!(matches!(again, Err(JoinError::Member(_))), "{again:?}: it is in use");
        drop(run(&mut engine, Command::Close).expect("closed"));
        drop(engine);
        let again = rejoin(&paths[1], &opened(&paths).superblock(), &HashMap::new());
        assert!(again.is_err(), "{again:?}");
        assert!(content(&mut opened(&paths)) == before, "{level:?}");
    }
}

/// A file has no mark that counts, as the copy of an export has not that is older than the array's last start.
#[test]
fn an_export_that_lacks_what_was_durable_is_made_anew() {
    let directory = tempfile::tempdir().expect("a directory");
    let paths = made(&directory, Level::Raid1, Consistency::Bitmap, Integrity::None);
    let mut engine = opened(&paths);
    give_up(&mut engine);
    let truth = engine.superblock();
    let own = truth.slots[SLOT.index()].member;
    for (beats, is_whole) in [(vec![(own, 1)], true), (vec![(own, 0), (truth.slots[0].member, 1)], false)] {
        let (_, joining) = rejoin(&paths[1], &truth, &beats.into_iter().collect()).expect("it may return");
        assert_eq!(joining.is_whole, is_whole);
    }
}

#[test]
fn what_can_not_join_stays_as_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let paths = made(&directory, RAID5, Consistency::Log, Integrity::None);
    let mut engine = opened(&paths);
    give_up(&mut engine);
    let truth = engine.superblock().clone();
    let small = directory.path().join("small");
    let refused = join(&small, JoinOptions { size: Some(Bytes(SIZE.0 - 4096)), ..OPTIONS }, &truth, SLOT);
    assert!(
        matches!(refused, Err(JoinError::TooSmall { needed, .. }) if needed == truth.spec.member_size),
        "{refused:?}"
    );
    let refused = join(&small, JoinOptions { size: None, ..OPTIONS }, &truth, SLOT);
    assert!(matches!(refused, Err(JoinError::NoSize { .. })) && !small.exists(), "{refused:?}");
    let before = fs::read(&paths[1]).expect("read");
    let refused = join(&paths[1], OPTIONS, &truth, SLOT);
    assert!(matches!(refused, Err(JoinError::Member(MemberError::InUse { .. }))), "{refused:?}");
    assert!(fs::read(&paths[1]).expect("read") == before);
    let forced = join(&paths[1], JoinOptions { force: true, ..OPTIONS }, &truth, SLOT).expect("overwritten");
    assert_ne!(forced.1.superblock.member, truth.slots[1].member, "it is another member then");
    drop(forced);
    assert!(rejoin(&paths[1], &truth, &HashMap::new()).is_err(), "it has no superblock any more");
}

/// Member 1 of three mirrors, given up in epoch 9.
#[test]
fn a_member_is_made_anew_unless_it_is_known_what_it_lacks() {
    let uuid = |number: u8| Uuid::from_bytes([number; 16]);
    let areas = Areas::new(SIZE, Areas::default_log(SIZE), Integrity::None).expect("large enough");
    let spec = Spec { level: Level::Raid1, members: 3, chunk: Bytes(4096), member_size: Sectors(1024) };
    let members = [1, 2, 3].map(|number| (uuid(number), areas));
    let new = Superblock::of_new_array(uuid(99), spec, &members);
    let truth = |consistency| {
        let mut truth = Superblock { consistency, epoch: Epoch(12), ..new[0].clone() };
        (truth.slots[1].state, truth.slots[1].since) = (SlotState::Failed, Epoch(9));
        truth
    };
    let own = |epoch| Superblock { epoch: Epoch(epoch), ..new[1].clone() };
    let asked =
        |own: &Superblock, consistency| returning(Path::new("member1"), own, BadBlocks::default(), &truth(consistency));
    let bitmap = |own: &Superblock| asked(own, Consistency::Bitmap);
    assert!(!bitmap(&own(8)).expect("it missed no round").is_whole);
    assert!(bitmap(&own(7)).expect("it is made anew").is_whole);
    assert!(asked(&own(7), Consistency::None).expect("it is made anew").is_whole);
    assert!(!asked(&own(8), Consistency::Log).expect("it missed no round").is_whole);
    assert!(asked(&own(7), Consistency::Log).expect("it is made anew").is_whole);
    for epoch in [9, 15] {
        assert!(matches!(bitmap(&own(epoch)), Err(JoinError::SplitBrain { since: Epoch(9), .. })), "{epoch}");
    }
    let mut unfinished = own(8);
    unfinished.slots[1].state = SlotState::Rebuilding { upto: StripeId(3), is_whole: true };
    assert!(bitmap(&unfinished).expect("it may return").is_whole, "it never had everything");
    unfinished.slots[1].state = SlotState::Rebuilding { upto: StripeId(3), is_whole: false };
    assert!(!bitmap(&unfinished).expect("it may return").is_whole);
    let other = Superblock { member: uuid(77), ..own(8) };
    assert!(matches!(bitmap(&other), Err(JoinError::Replaced { owner, .. }) if owner == uuid(2)));
    let foreign = Superblock { array: uuid(98), ..own(8) };
    assert!(matches!(bitmap(&foreign), Err(JoinError::Foreign { .. })));
    assert!(matches!(bitmap(&Superblock { epoch: Epoch(8), ..new[2].clone() }), Err(JoinError::Present { .. })));
}
