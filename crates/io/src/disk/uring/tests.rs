//! System calls of the ring.

use uraid_layout::MemberIndex;

use super::super::{OpKind, Segments};
use super::*;
use crate::buf::Buf;
use crate::member::Allocation;

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
