//! System calls of the ring.

use uraid_layout::MemberIndex;

use super::super::{OpKind, Segments};
use super::*;
use crate::buf::Buf;
use crate::format::superblock::Allocation;

/// More than is done at once on a member in memory, so that it does not matter where the temporary directory is.
const BLOCK: Bytes = Bytes(AT_ONCE_MAX.0 + 4096);
const FIRST: MemberIndex = MemberIndex(0);

/// `count` reads or writes, one block each, one after the other.
fn batch(kind: OpKind, count: u64, buffers: &mut [Buf]) -> Vec<DiskOp> {
    let operation = |(tag, buf): (u64, &mut Buf)| {
        let block = 0..BLOCK.0 as usize;
        let lease = if kind == OpKind::Read { buf.lease_write(block) } else { buf.lease_read(block) };
        let segments = Segments::from_iter([lease]);
        DiskOp { tag, member: FIRST, kind, offset: Bytes(tag * BLOCK.0), segments }
    };
    (0..count).zip(buffers).map(operation).collect()
}

#[test]
fn a_batch_enters_the_kernel_once_however_many_operations_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let member = Member::create(&directory.path().join("member"), Bytes(32 << 20), Allocation::Full).unwrap();
    let mut disk = UringDisk::new(vec![Some(Arc::new(member))], DEFAULT_DEPTH).unwrap();
    let mut buffers: Vec<Buf> = (0..128).map(|_| Buf::zeroed(BLOCK)).collect();
    for kind in [OpKind::Write, OpKind::Read] {
        for count in [1, 32, 128] {
            batch(kind, count, &mut buffers).into_iter().for_each(|op| disk.submit(op));
            let before = disk.enters();
            disk.kick().unwrap();
            assert_eq!(disk.enters() - before, 1, "{count} operations");
            let mut completions = Vec::new();
            while disk.in_flight() > 0 {
                disk.wait().unwrap();
                disk.reap(&mut completions);
            }
            assert!(completions.iter().all(|completion| completion.result.is_ok()));
            assert_eq!(completions.len() as u64, count);
        }
    }
}

#[test]
fn a_disk_with_nothing_to_do_stays_out_of_the_kernel() {
    let directory = tempfile::tempdir().unwrap();
    let member = Member::create(&directory.path().join("member"), Bytes(1 << 20), Allocation::Full).unwrap();
    let mut disk = UringDisk::new(vec![Some(Arc::new(member))], 8).unwrap();
    let mut completions = Vec::new();
    for _ in 0..3 {
        disk.kick().unwrap();
        disk.reap(&mut completions);
        disk.wait().unwrap();
    }
    assert_eq!((disk.enters(), completions.len()), (0, 0));
}

/// A member that hangs: a pipe that nobody writes to, and the end that would let it go on.
fn hung() -> (Arc<Member>, std::fs::File) {
    let (reader, writer) = std::io::pipe().unwrap();
    let file = |end: OwnedFd| std::fs::File::from(end);
    (Arc::new(Member::of(file(reader.into()), Bytes(1 << 20))), file(writer.into()))
}

fn read_of(tag: u64, buf: &mut Buf) -> DiskOp {
    let segments = Segments::from_iter([buf.lease_write(0..512)]);
    DiskOp { tag, member: FIRST, kind: OpKind::Read, offset: Bytes(0), segments }
}

#[test]
fn a_member_that_hangs_is_replaced_and_what_it_does_late_is_not_its_successor_s() {
    use std::io::Write;
    let directory = tempfile::tempdir().unwrap();
    let (member, mut other_end) = hung();
    let hung_file = Arc::downgrade(&member);
    let mut disk = UringDisk::new(vec![Some(member)], 8).unwrap();
    let mut buf = Buf::zeroed(Bytes(512));
    disk.submit(read_of(7, &mut buf));
    disk.kick().unwrap();
    let successor = || {
        let path = directory.path().join("successor");
        let _ = std::fs::remove_file(&path);
        Some(Arc::new(Member::create(&path, Bytes(1 << 20), Allocation::Full).unwrap()))
    };
    let refused = disk.put(FIRST, successor()).unwrap_err();
    drop(refused);
    disk.abandon(7);
    drop(disk.put(FIRST, successor()).expect("nobody waits for it"));
    assert!(hung_file.upgrade().is_some(), "the file stays open, and locked, while the kernel has an operation on it");
    // The new member is read; the old operation is still out.
    let mut own = Buf::zeroed(Bytes(512));
    disk.submit(read_of(8, &mut own));
    let mut completions = Vec::new();
    while completions.is_empty() {
        disk.wait_at_most(Duration::from_secs(1)).unwrap();
        disk.reap(&mut completions);
    }
    assert_eq!((completions[0].tag, completions.len(), disk.in_flight()), (8, 1, 1));
    assert!(buf.is_being_filled(), "its memory is its own");
    let timed = disk.latencies().of(FIRST, super::super::OpName::Read).count();
    other_end.write_all(&[5; 512]).unwrap();
    completions.clear();
    while completions.is_empty() {
        disk.wait_at_most(Duration::from_secs(1)).unwrap();
        disk.reap(&mut completions);
    }
    assert_eq!((completions[0].tag, disk.in_flight()), (7, 0), "it ends once, whenever that is");
    assert!(hung_file.upgrade().is_none() && !buf.is_being_filled());
    assert_eq!(disk.latencies().of(FIRST, super::super::OpName::Read).count(), timed, "how long it took says nothing");
}

#[test]
fn what_is_abandoned_before_the_kernel_has_it_never_gets_there() {
    let (member, _other_end) = hung();
    let mut disk = UringDisk::new(vec![Some(member)], 8).unwrap();
    let mut buffers: Vec<Buf> = (0..40).map(|_| Buf::zeroed(Bytes(512))).collect();
    (0..).zip(&mut buffers).for_each(|(tag, buf)| disk.submit(read_of(tag, buf)));
    disk.kick().unwrap();
    (0..40).for_each(|tag| disk.abandon(tag));
    let mut completions = Vec::new();
    disk.reap(&mut completions);
    let with_kernel = disk.in_flight();
    assert!(with_kernel >= 8 && completions.len() == 40 - with_kernel, "{with_kernel} are with the kernel");
    let is_given_up = |completion: &Completion| matches!(completion.result, Err(DiskError::TimedOut { .. }));
    assert!(completions.iter().all(is_given_up));
    assert_eq!(buffers.iter().filter(|buf| buf.is_being_filled()).count(), with_kernel);
}

/// It ends, and the memory of what hangs is not freed: whether it is, a sanitizer would say.
#[test]
fn a_disk_of_a_member_that_hangs_can_be_dropped() {
    let (member, other_end) = hung();
    let hung_file = Arc::downgrade(&member);
    let mut disk = UringDisk::new(vec![Some(member)], 8).unwrap();
    let mut buf = Buf::zeroed(Bytes(512));
    disk.submit(read_of(1, &mut buf));
    disk.kick().unwrap();
    disk.abandon(1);
    drop(disk);
    assert!(buf.is_being_filled(), "the kernel keeps it");
    assert!(hung_file.upgrade().is_some(), "and the file");
    drop(other_end);
}

fn write_of(tag: u64, buf: &Buf) -> DiskOp {
    let segments = Segments::from_iter([buf.lease_read(0..512)]);
    DiskOp { tag, member: FIRST, kind: OpKind::Write, offset: Bytes(0), segments }
}

/// A member on a full file system, until its file is exchanged under it.
#[test]
fn a_write_waits_for_room() {
    let directory = tempfile::tempdir().unwrap();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let member = Arc::new(Member::of(full, Bytes(1024)));
    let mut disk = UringDisk::new(vec![Some(Arc::clone(&member))], 8).unwrap();
    let buf = Buf::zeroed(Bytes(512));
    let mut completions = Vec::new();
    let mut look = |disk: &mut UringDisk| {
        disk.wait_at_most(Duration::from_millis(10)).unwrap();
        disk.reap(&mut completions);
        completions.pop()
    };
    disk.submit(write_of(1, &buf));
    let error = std::iter::repeat_with(|| look(&mut disk)).flatten().next().unwrap().result.unwrap_err();
    assert!(matches!(error, DiskError::Io { errno: Errno::NOSPC, .. }), "{error}");
    assert!(!disk.wants_ticks());

    disk.set_waits_for_room(true);
    disk.submit(write_of(2, &buf));
    for _ in 0..3 {
        while !disk.wants_ticks() {
            assert!(look(&mut disk).is_none());
        }
        assert_eq!(disk.in_flight(), 1);
        disk.tick();
        disk.kick().unwrap();
    }
    let path = directory.path().join("room");
    std::fs::write(&path, [7; 1024]).unwrap();
    let room = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    // SAFETY: both descriptors are open, and the one that is replaced stays its owner's.
    assert!(unsafe { libc::dup2(room.as_raw_fd(), member.file().unwrap().as_raw_fd()) } >= 0);
    let done = std::iter::repeat_with(|| {
        disk.tick();
        look(&mut disk)
    });
    let done = done.flatten().next().unwrap();
    assert_eq!((done.tag, done.result, disk.in_flight()), (2, Ok(()), 0));
    assert_eq!(std::fs::read(&path).unwrap(), [[0; 512], [7; 512]].concat());
}

#[test]
fn a_write_that_waits_for_room_can_be_abandoned() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut disk = UringDisk::new(vec![Some(Arc::new(Member::of(full, Bytes(1 << 20))))], 8).unwrap();
    disk.set_waits_for_room(true);
    let buf = Buf::zeroed(Bytes(512));
    disk.submit(write_of(1, &buf));
    let mut completions = Vec::new();
    while !disk.wants_ticks() {
        disk.wait_at_most(Duration::from_millis(10)).unwrap();
        disk.reap(&mut completions);
    }
    assert!(completions.is_empty());
    disk.abandon(1);
    disk.reap(&mut completions);
    assert_eq!((completions.len(), disk.in_flight(), buf.is_lent()), (1, 0, false));
}

/// A write beyond the end would give the file a size again, and what was lost would read as zeros.
#[test]
fn a_member_that_was_truncated_takes_no_writes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("member");
    let member = Member::create(&path, Bytes(8 << 20), Allocation::Sparse).unwrap();
    let mut disk = UringDisk::new(vec![Some(Arc::new(member))], 8).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    let mut completions = Vec::new();
    for _ in 0..3 {
        let mut buffers = [Buf::zeroed(BLOCK)];
        batch(OpKind::Write, 1, &mut buffers).into_iter().for_each(|op| disk.submit(op));
        disk.kick().unwrap();
        while disk.in_flight() > 0 {
            disk.wait().unwrap();
            disk.reap(&mut completions);
        }
    }
    let refused =
        completions.iter().filter(|completion| matches!(completion.result, Err(DiskError::ShortIo { .. }))).count();
    assert_eq!((refused, completions.len()), (3, 3));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
}
