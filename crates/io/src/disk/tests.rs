//! One conformance test for every kind of disk, and what is particular to each.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use smallvec::{SmallVec, smallvec};
use uraid_layout::Bytes;

use super::*;
use crate::buf::Buf;
use crate::format::superblock::Allocation;
use crate::member::{Access, Member};

const SIZE: usize = 1 << 20;
const FIRST: MemberIndex = MemberIndex(0);
const ABSENT: MemberIndex = MemberIndex(1);
const THIRD: MemberIndex = MemberIndex(2);

/// A disk of three members of [`SIZE`] zero bytes, of which the second is absent, and what keeps it alive.
type Made = (Box<dyn Disk>, Option<tempfile::TempDir>);

fn in_memory(order: Order) -> Made {
    (Box::new(MemDisk::new(vec![Some(Image::zeroed(SIZE)), None, Some(Image::zeroed(SIZE))], order)), None)
}

fn member_paths(directory: &tempfile::TempDir) -> [PathBuf; 2] {
    ["first", "third"].map(|name| directory.path().join(name))
}

fn with_uring(parent: &str, depth: u32) -> (UringDisk, tempfile::TempDir) {
    let directory = tempfile::tempdir_in(parent).unwrap();
    let [first, third] = member_paths(&directory)
        .map(|path| Arc::new(Member::create(&path, Bytes(SIZE as u64), Allocation::Full).unwrap()));
    (UringDisk::new(vec![Some(first), None, Some(third)], depth).unwrap(), directory)
}

fn boxed((disk, directory): (UringDisk, tempfile::TempDir)) -> Made {
    (Box::new(disk), Some(directory))
}

/// Every disk there is, with a name for messages.
fn disks() -> Vec<(&'static str, Made)> {
    vec![
        ("memory, fifo", in_memory(Order::Fifo)),
        ("memory, lifo", in_memory(Order::Lifo)),
        ("memory, seeded", in_memory(Order::Seeded(7))),
        ("io_uring in /tmp", boxed(with_uring("/tmp", 64))),
        ("io_uring in /dev/shm", boxed(with_uring("/dev/shm", 64))),
        ("io_uring with a tiny ring", boxed(with_uring("/tmp", 2))),
    ]
}

/// Runs everything to its end; results by tag.
fn finish(disk: &mut dyn Disk) -> BTreeMap<u64, Result<(), DiskError>> {
    let mut completions = Vec::new();
    while disk.in_flight() > 0 {
        disk.wait().unwrap();
        disk.reap(&mut completions);
    }
    let count = completions.len();
    let results: BTreeMap<_, _> =
        completions.into_iter().map(|completion| (completion.tag, completion.result)).collect();
    assert_eq!(results.len(), count, "each operation completes once");
    results
}

fn run(disk: &mut dyn Disk, op: DiskOp) -> Result<(), DiskError> {
    let tag = op.tag;
    disk.submit(op);
    finish(disk).remove(&tag).expect("the operation completed")
}

fn op(tag: u64, member: MemberIndex, kind: OpKind, offset: u64) -> DiskOp {
    DiskOp { tag, member, kind, offset: Bytes(offset), segments: SmallVec::new() }
}

fn writing(tag: u64, member: MemberIndex, offset: u64, buf: &Buf) -> DiskOp {
    DiskOp { segments: smallvec![buf.lease_read(0..buf.len())], ..op(tag, member, OpKind::Write, offset) }
}

fn reading(tag: u64, member: MemberIndex, offset: u64, buf: &mut Buf) -> DiskOp {
    let len = buf.len();
    DiskOp { segments: smallvec![buf.lease_write(0..len)], ..op(tag, member, OpKind::Read, offset) }
}

fn filled(len: u64, byte: u8) -> Buf {
    let mut buf = Buf::zeroed(Bytes(len));
    buf.as_mut().fill(byte);
    buf
}

fn content(disk: &mut dyn Disk, member: MemberIndex, offset: u64, len: u64) -> Vec<u8> {
    let mut buf = filled(len, 0xee);
    let op = reading(1, member, offset, &mut buf);
    run(disk, op).unwrap();
    buf.as_ref().to_vec()
}

#[test]
fn what_is_written_is_read_from_that_place_of_that_member() {
    for (name, (mut disk, _directory)) in disks() {
        let disk = disk.as_mut();
        let buf = filled(8192, 0x11);
        run(disk, writing(1, THIRD, 4096, &buf)).unwrap();
        run(disk, op(2, THIRD, OpKind::Flush, 0)).unwrap();
        assert!(content(disk, THIRD, 0, 16384) == [vec![0; 4096], vec![0x11; 8192], vec![0; 4096]].concat(), "{name}");
        assert!(content(disk, FIRST, 0, 16384) == vec![0; 16384], "{name}");
        let segments = smallvec![buf.lease_read(4096..8192), buf.lease_read(0..4096)];
        run(disk, DiskOp { segments, ..op(3, FIRST, OpKind::WriteFua, 4096) }).unwrap();
        assert!(content(disk, FIRST, 0, 16384) == [vec![0; 4096], vec![0x11; 8192], vec![0; 4096]].concat(), "{name}");
    }
}

#[test]
fn segments_scatter_and_gather_in_order() {
    for (name, (mut disk, _directory)) in disks() {
        let disk = disk.as_mut();
        let parts: Vec<Buf> = (1..=20).map(|byte| filled(4096, byte)).collect();
        let segments = parts.iter().map(|part| part.lease_read(0..4096)).collect();
        run(disk, DiskOp { segments, ..op(1, FIRST, OpKind::Write, 8192) }).unwrap();
        let expected: Vec<u8> = (1..=20).flat_map(|byte| [byte; 4096]).collect();
        assert!(content(disk, FIRST, 8192, 20 * 4096) == expected, "{name}");

        let mut buf = Buf::zeroed(Bytes(12288));
        let segments = smallvec![buf.lease_write(8192..12288), buf.lease_write(0..4096), buf.lease_write(4096..8192)];
        run(disk, DiskOp { segments, ..op(2, FIRST, OpKind::Read, 8192) }).unwrap();
        assert!(buf.as_ref() == [[2; 4096], [3; 4096], [1; 4096]].concat(), "{name}");
    }
}

#[test]
fn many_more_operations_than_a_ring_holds_all_complete() {
    const COUNT: u64 = 1000;
    for (name, (mut disk, _directory)) in disks() {
        let disk = disk.as_mut();
        let place = |i: u64| (if i.is_multiple_of(2) { FIRST } else { THIRD }, i / 2 * 512 % (SIZE as u64));
        let buffers: Vec<Buf> = (0..COUNT).map(|i| filled(4096, u8::try_from(i % 251).unwrap())).collect();
        let mut completions = Vec::new();
        for (i, buf) in (0..).zip(&buffers) {
            let (member, offset) = place(i);
            disk.submit(writing(i, member, offset / 4096 * 4096 + i / 16 % 8 * 4096, buf));
            if i % 100 == 50 {
                disk.kick().unwrap();
                disk.reap(&mut completions);
            }
        }
        let mut results = finish(disk);
        results.extend(completions.into_iter().map(|completion| (completion.tag, completion.result)));
        assert_eq!(results.len(), 1000, "{name}");
        assert!(results.into_values().all(|result| result == Ok(())), "{name}");
        assert_eq!(disk.in_flight(), 0, "{name}");
        assert!(buffers.into_iter().all(|mut buf| !buf.as_mut().is_empty()), "{name}: every lease has ended");
    }
}

#[test]
fn distinct_places_keep_their_own_bytes_under_load() {
    for (name, (mut disk, _directory)) in disks() {
        let disk = disk.as_mut();
        let blocks = SIZE as u64 / 4096;
        let buffers: Vec<Buf> = (0..blocks).map(|i| filled(4096, u8::try_from(i % 251 + 1).unwrap())).collect();
        for (i, buf) in (0..).zip(&buffers) {
            disk.submit(writing(i, FIRST, i * 4096, buf));
        }
        assert!(finish(disk).into_values().all(|result| result == Ok(())), "{name}");
        let expected: Vec<u8> = (0..blocks).flat_map(|i| [u8::try_from(i % 251 + 1).unwrap(); 4096]).collect();
        assert!(content(disk, FIRST, 0, SIZE as u64) == expected, "{name}");
    }
}

#[test]
fn zeroing_reads_back_as_zeros_or_says_that_it_can_not() {
    for (name, (mut disk, _directory)) in disks() {
        let disk = disk.as_mut();
        for may_punch in [true, false] {
            let before = filled(16384, 0x77);
            run(disk, writing(1, FIRST, 0, &before)).unwrap();
            let kind = OpKind::Zero { len: Bytes(8192), may_punch };
            let result = run(disk, op(2, FIRST, kind, 4096));
            let is_zeroed = result.is_ok();
            if let Err(error) = result {
                assert!(matches!(error, DiskError::Unsupported { .. }) && name.contains("/dev/shm"), "{name}: {error}");
            }
            let middle = if is_zeroed { 0 } else { 0x77 };
            let expected = [vec![0x77; 4096], vec![middle; 8192], vec![0x77; 4096]].concat();
            assert!(content(disk, FIRST, 0, 16384) == expected, "{name}");
        }
    }
}

#[test]
fn failures_come_as_completions_that_name_the_operation() {
    for (name, (mut disk, _directory)) in disks() {
        let disk = disk.as_mut();
        let mut buf = Buf::zeroed(Bytes(8192));
        let absent = reading(1, ABSENT, 0, &mut buf);
        let beyond_table = op(2, MemberIndex(9), OpKind::Flush, 0);
        for op in [absent, beyond_table] {
            let info = op.info();
            assert_eq!(run(disk, op), Err(DiskError::Absent { op: info }), "{name}");
        }
        let size = Bytes(SIZE as u64);
        for offset in [size.0 - 4096, size.0, u64::MAX - 4095] {
            let op = reading(3, THIRD, offset, &mut buf);
            let info = op.info();
            let error = run(disk, op).unwrap_err();
            assert_eq!(error, DiskError::BeyondEnd { op: info, size }, "{name}");
            let message = error.to_string();
            assert!(message.contains("member 2: read of 8192 bytes at byte"), "{message}");
        }
        let zero = OpKind::Zero { len: Bytes(8192), may_punch: true };
        assert!(matches!(run(disk, op(4, FIRST, zero, size.0)), Err(DiskError::BeyondEnd { .. })), "{name}");
        buf.as_mut().fill(1);
    }
}

#[test]
#[should_panic(expected = "suit its direction")]
fn a_read_into_memory_lent_for_reading_is_a_bug() {
    let buf = Buf::zeroed(Bytes(4096));
    let segments = smallvec![buf.lease_read(0..4096)];
    in_memory(Order::Fifo).0.submit(DiskOp { segments, ..op(1, FIRST, OpKind::Read, 0) });
}

#[test]
#[should_panic(expected = "has bytes to move")]
fn a_write_of_nothing_is_a_bug() {
    in_memory(Order::Fifo).0.submit(op(1, FIRST, OpKind::Write, 0));
}

#[test]
fn a_member_truncated_while_open_gives_short_reads_as_errors() {
    for parent in ["/tmp", "/dev/shm"] {
        let (mut disk, directory) = with_uring(parent, 8);
        let [first, _] = member_paths(&directory);
        std::fs::OpenOptions::new().write(true).open(first).unwrap().set_len(8192).unwrap();
        let mut buf = Buf::zeroed(Bytes(8192));
        for (offset, expected) in [(4096, 4096), (8192, 0)] {
            let op = reading(1, FIRST, offset, &mut buf);
            let info = op.info();
            assert_eq!(run(&mut disk, op), Err(DiskError::ShortIo { op: info, done: Bytes(expected) }), "{parent}");
        }
    }
}

#[test]
fn a_read_only_member_is_not_written() {
    let (disk, directory) = with_uring("/tmp", 8);
    drop(disk);
    let [first, _] = member_paths(&directory);
    let first = Arc::new(Member::open(&first, Access::ReadOnly).unwrap());
    let mut disk = UringDisk::new(vec![Some(first)], 8).unwrap();
    let buf = filled(4096, 1);
    let error = run(&mut disk, writing(1, FIRST, 0, &buf)).unwrap_err();
    assert!(matches!(error, DiskError::Io { errno: Errno::BADF, .. }), "{error}");
    assert!(content(&mut disk, FIRST, 0, 4096) == [0; 4096]);
}

#[test]
fn the_event_descriptor_tells_of_completions() {
    let (mut disk, _directory) = with_uring("/tmp", 8);
    let readable = |disk: &UringDisk, timeout_ms: i64| {
        let event = disk.as_fd();
        let timeout = rustix::event::Timespec { tv_sec: timeout_ms / 1000, tv_nsec: 0 };
        poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&timeout)).unwrap() == 1
    };
    assert!(!readable(&disk, 0));
    let buf = filled(4096, 1);
    for submitted in [writing(1, FIRST, 0, &buf), writing(2, ABSENT, 0, &buf)] {
        disk.submit(submitted);
        disk.kick().unwrap();
        assert!(readable(&disk, 60_000), "the kernel, or the disk itself, wrote the event");
        let mut completions = Vec::new();
        disk.reap(&mut completions);
        assert_eq!(completions.len(), 1);
        let mut count = [0; 8];
        rustix::io::read(disk.as_fd(), &mut count).unwrap();
    }
}

#[test]
fn dropping_the_disk_waits_for_the_kernel() {
    for parent in ["/tmp", "/dev/shm"] {
        let (mut disk, directory) = with_uring(parent, 64);
        let mut buffers: Vec<Buf> = (0..60).map(|_| filled(16384, 0x42)).collect();
        for (i, buf) in (0..).zip(&buffers) {
            disk.submit(writing(i, FIRST, i * 16384, buf));
        }
        disk.kick().unwrap();
        drop(disk);
        buffers.iter_mut().for_each(|buf| buf.as_mut().fill(0));
        let [first, _] = member_paths(&directory);
        assert!(std::fs::read(first).unwrap()[..60 * 16384] == vec![0x42; 60 * 16384], "{parent}");
    }
}

#[test]
fn memory_disk_counts_and_fails_as_told() {
    let mut disk = MemDisk::zeroed(2, Bytes(65536));
    let fault = Fault { member: FIRST, name: OpName::Write, after: 1, count: 2, errno: Errno::IO };
    disk.fail(fault);
    let buf = filled(4096, 9);
    let results: Vec<bool> = (0..5).map(|i| run(&mut disk, writing(1, FIRST, i * 4096, &buf)).is_ok()).collect();
    assert_eq!(results, [true, false, false, true, true]);
    assert!(run(&mut disk, writing(1, ABSENT, 0, &buf)).is_ok(), "the other member has no fault");
    run(&mut disk, op(2, FIRST, OpKind::Flush, 0)).unwrap();
    let expected = Counters { writes: 5, flushes: 1, bytes_written: Bytes(20480), ..Counters::default() };
    assert_eq!(disk.counters(FIRST), expected);
    assert!(disk.member(FIRST).unwrap()[4096..12288] == [0; 8192], "a failed write writes nothing");
    disk.reset_counters();
    assert_eq!(disk.counters(FIRST), Counters::default());
}

#[test]
fn memory_disk_orders_are_what_they_say() {
    let order_of = |order| {
        let mut disk = MemDisk::new(vec![Some(Image::zeroed(4096))], order);
        (0..16).for_each(|tag| disk.submit(op(tag, FIRST, OpKind::Flush, 0)));
        let mut completions = Vec::new();
        disk.reap(&mut completions);
        assert!(completions.is_empty(), "nothing completes before a kick");
        while disk.in_flight() > 0 {
            disk.wait().unwrap();
            disk.reap(&mut completions);
        }
        completions.iter().map(|completion| completion.tag).collect::<Vec<_>>()
    };
    assert_eq!(order_of(Order::Fifo), (0..16).collect::<Vec<_>>());
    assert_eq!(order_of(Order::Lifo), (0..16).rev().collect::<Vec<_>>());
    let seeded = order_of(Order::Seeded(1));
    assert_eq!(seeded, order_of(Order::Seeded(1)), "the same seed gives the same order");
    assert_ne!(seeded, order_of(Order::Seeded(2)));
    let mut sorted = seeded;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..16).collect::<Vec<_>>());
}
