use std::cell::Cell;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use smallvec::smallvec;
use uraid_layout::Bytes;

use super::*;
use crate::array::blocking::{flush, perform};
use crate::buf::Buf;
use crate::disk::{OpKind, UringDisk};
use crate::format::superblock::Allocation;
use crate::member::{Access, Member};

/// Short for a test, and longer than a disk takes.
const DEADLINE: Duration = Duration::from_millis(500);

/// Says when it is dropped.
struct Held(Sender<&'static str>);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.send("let go of");
    }
}

fn counting(deadline: Option<Duration>) -> (Patience, Rc<Cell<u32>>) {
    let ticks = Rc::new(Cell::new(0));
    let own = Rc::clone(&ticks);
    (Patience::new(deadline, move || own.set(own.get() + 1)), ticks)
}

#[test]
fn a_step_that_hangs_is_left_behind_and_the_others_count() {
    let (mut patience, ticks) = counting(Some(DEADLINE));
    let (release, hanging) = channel::<()>();
    let (held, told) = channel();
    let mut hanging = Some(hanging);
    let steps = ["a", "b", "c"].map(|name| {
        let hanging = hanging.take_if(|_| name == "b");
        let held = held.clone();
        let step = move || {
            if let Some(hanging) = hanging {
                let _ = hanging.recv();
            }
            (name, Held(held))
        };
        (PathBuf::from(name), step)
    });
    let found = patience.each("open", Duration::ZERO, steps).unwrap();
    let names: Vec<_> = found.iter().map(|found| found.as_ref().map(|(name, _)| *name)).collect();
    match &names[..] {
        [Ok("a"), Err(MemberError::Silent { path, action: "open", deadline: DEADLINE }), Ok("c")] => {
            assert_eq!(path, &PathBuf::from("b"));
        }
        names => panic!("{names:?}"),
    }
    assert_eq!(ticks.get(), 6, "five ticks take 400 ms at least, six 500 ms");
    drop(found);
    assert_eq!([told.recv(), told.recv()], [Ok("let go of"); 2]);
    assert!(told.try_recv().is_err(), "it has what it holds while it hangs");
    drop(release);
    assert_eq!(told.recv(), Ok("let go of"));
}

#[test]
fn without_a_deadline_a_step_is_waited_for() {
    let (release, hanging) = channel::<()>();
    let mut release = Some(release);
    let mut patience = Patience::new(None, move || drop(release.take()));
    let step = move || hanging.recv().is_err();
    let found = patience.each("open", Duration::ZERO, [(PathBuf::from("a"), step)]).unwrap();
    assert!(matches!(found[..], [Ok(true)]), "{found:?}");
}

fn read(member: u8, buf: &mut Buf) -> DiskOp {
    let segments = smallvec![buf.lease_write(0..512)];
    DiskOp { tag: 0, member: MemberIndex(member), kind: OpKind::Read, offset: Bytes(0), segments }
}

#[test]
fn an_operation_that_hangs_is_given_up_and_its_member_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (sound_path, pipe_path) = (directory.path().join("sound"), directory.path().join("pipe"));
    let sound = Arc::new(Member::create(&sound_path, Bytes(1 << 20), Allocation::Full).unwrap());
    let (reader, mut writer) = std::io::pipe().unwrap();
    let hung = Arc::new(Member::of(std::fs::File::from(OwnedFd::from(reader)), Bytes(1 << 20)));
    let hung_file = Arc::downgrade(&hung);
    let disk = UringDisk::new(vec![Some(sound), Some(hung)], 8).unwrap();
    let (mut patience, ticks) = counting(Some(DEADLINE));
    let mut disk = Watched::new(disk, vec![sound_path.clone(), pipe_path.clone()], &mut patience);
    let (mut one, mut other) = (Buf::zeroed(Bytes(512)), Buf::zeroed(Bytes(512)));
    let failed = perform(&mut disk, [read(0, &mut one), read(1, &mut other)]).unwrap_err();
    assert!(matches!(failed, Error::Disk(DiskError::TimedOut { op }) if op.member == MemberIndex(1)), "{failed}");
    assert_eq!(ticks.get(), 6);
    // Nothing more is asked of it, and the other one is as ever.
    let failed = perform(&mut disk, [read(1, &mut one), flush(MemberIndex(1))]).unwrap_err();
    assert!(matches!(failed, Error::Disk(DiskError::TimedOut { .. })), "{failed}");
    assert_eq!(ticks.get(), 6, "nobody waited for that");
    perform(&mut disk, [read(0, &mut one), flush(MemberIndex(0))]).unwrap();
    assert!(disk.into_inner().is_none());
    let hung = patience.take_hung();
    assert!(
        matches!(&hung[..], [MemberError::Silent { path, action: "read", deadline: DEADLINE }] if *path == pipe_path),
        "{hung:?}"
    );
    // It keeps its file open, and its memory; the other one is free for the next attempt.
    assert!(hung_file.upgrade().is_some() && other.is_being_filled());
    Member::open(&sound_path, Access::ReadWrite).unwrap();
    writer.write_all(&[1; 512]).unwrap();
}

#[test]
fn a_disk_that_answers_is_the_same_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("member");
    let member = Arc::new(Member::create(&path, Bytes(1 << 20), Allocation::Full).unwrap());
    let disk = UringDisk::new(vec![Some(member)], 8).unwrap();
    let mut patience = Patience::endless();
    let mut disk = Watched::new(disk, vec![path], &mut patience);
    let mut buf = Buf::zeroed(Bytes(512));
    perform(&mut disk, [read(0, &mut buf)]).unwrap();
    let mut disk = disk.into_inner().unwrap();
    perform(&mut disk, [read(0, &mut buf), flush(MemberIndex(0))]).unwrap();
    assert_eq!(disk.in_flight(), 0);
}
