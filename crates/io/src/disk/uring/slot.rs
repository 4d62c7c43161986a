//! One operation with the kernel: its leases, its iovecs, and how far it has come.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use io_uring::opcode::{Fallocate, Fsync, Read, Readv, Write, Writev};
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, FsyncFlags};
use rustix::io::Errno;
use uraid_layout::Bytes;

use super::super::{Completion, DiskError, DiskOp, OpKind, OpName};
use crate::member::Member;

/// How often the kernel may say "again" to one operation before that is an error.
const RETRIES_MAX: u32 = 64;

/// The most bytes of one entry; what is beyond comes as its remainder. The kernel's own limit is a page below 2 GiB.
const ENTRY_BYTES_MAX: usize = 1 << 30;

#[derive(Default)]
pub(super) struct Slot {
    /// With the time at which it was started.
    op: Option<(DiskOp, Instant)>,
    file: RawFd,
    /// Whether the file may keep whoever hands the operation over.
    may_stall: bool,
    /// What is left to transfer; unchanged while the kernel has it.
    iovecs: Vec<libc::iovec>,
    /// The first of `iovecs` that is not yet done.
    first: usize,
    done: u64,
    retries: u32,
    /// Nobody waits for it.
    is_abandoned: bool,
    /// It found no room.
    is_short_of_room: bool,
    /// Its member, where another has its place since.
    former: Option<Arc<Member>>,
}

pub(super) enum Progress {
    /// The operation goes back to the kernel.
    More,
    /// It has ended, and the slot is vacant; what it was, and when it was started, unless nobody waited for it.
    Done(Completion, Option<(OpName, Instant)>),
}

impl Slot {
    /// The operation that it has.
    pub(super) fn op(&self) -> Option<&DiskOp> {
        self.op.as_ref().map(|(op, _)| op)
    }

    /// Takes an operation on an open file.
    pub(super) fn start(&mut self, op: DiskOp, file: RawFd, may_stall: bool, now: Instant) {
        assert!(self.op.is_none(), "a vacant slot has no operation");
        self.iovecs.clear();
        self.iovecs.extend(
            op.segments.iter().map(|lease| libc::iovec { iov_base: lease.as_ptr().cast(), iov_len: lease.len() }),
        );
        (self.first, self.done, self.retries) = (0, 0, 0);
        (self.file, self.may_stall) = (file, may_stall);
        (self.is_abandoned, self.is_short_of_room) = (false, false);
        self.op = Some((op, now));
    }

    /// Whether it has an operation that nobody waits for.
    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned && self.op.is_some()
    }

    /// Notes that nobody waits for its operation.
    pub(super) fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    /// Whether its operation is on a member whose place another has.
    pub(super) fn has_former(&self) -> bool {
        self.former.is_some()
    }

    /// Keeps its operation's member open until it ends.
    pub(super) fn keep(&mut self, member: Arc<Member>) {
        self.former = Some(member);
    }

    /// Ends an operation of which nothing is with the kernel.
    pub(super) fn end(&mut self) -> Completion {
        let (op, _) = self.op.take().expect("a taken slot has an operation");
        self.former = None;
        let info = op.info();
        op.complete(Err(DiskError::TimedOut { op: info }))
    }

    /// The entry for what is left of the operation. The kernel may use the slot's memory once the entry is pushed.
    pub(super) fn describe(&self) -> Entry {
        let (op, _) = self.op.as_ref().expect("a taken slot has an operation");
        let file = Fd(self.file);
        let offset = op.offset.0 + self.done;
        let left = &self.iovecs[self.first..];
        let entry = match (op.kind, left) {
            (OpKind::Read, [one]) => Read::new(file, one.iov_base.cast(), entry_len(one)).offset(offset).build(),
            (OpKind::Write, [one]) => Write::new(file, one.iov_base.cast(), entry_len(one)).offset(offset).build(),
            (OpKind::Read, left) => Readv::new(file, left.as_ptr(), count(left)).offset(offset).build(),
            (OpKind::Write, left) => Writev::new(file, left.as_ptr(), count(left)).offset(offset).build(),
            (OpKind::WriteFua, left) => {
                Writev::new(file, left.as_ptr(), count(left)).offset(offset).rw_flags(libc::RWF_DSYNC).build()
            }
            (OpKind::Zero { len, may_punch }, _) => {
                let clear = if may_punch { libc::FALLOC_FL_PUNCH_HOLE } else { libc::FALLOC_FL_ZERO_RANGE };
                Fallocate::new(file, len.0).offset(offset).mode(clear | libc::FALLOC_FL_KEEP_SIZE).build()
            }
            (OpKind::Flush, _) => Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
        };
        // The kernel begins an operation on the thread that hands it over, and such a file system does not give that
        // back.
        if self.may_stall { entry.flags(Flags::ASYNC) } else { entry }
    }

    /// Whether the operation is a flush, or a transfer of at most `len_max` bytes.
    pub(super) fn is_small(&self, len_max: Bytes) -> bool {
        let (op, _) = self.op.as_ref().expect("a taken slot has an operation");
        !matches!(op.kind, OpKind::Zero { .. }) && op.len() <= len_max
    }

    /// Does what is left of a small operation here and now, and returns what the ring would have answered.
    pub(super) fn do_at_once(&mut self) -> i32 {
        let (op, _) = self.op.as_ref().expect("a taken slot has an operation");
        let offset = libc::off_t::try_from(op.offset.0 + self.done).expect("checked against the member's size");
        let left = &self.iovecs[self.first..];
        let count = libc::c_int::try_from(left.len()).expect("an operation has at most 1024 segments");
        let done = match op.kind {
            // SAFETY: the iovecs describe memory that the operation's leases keep and allow to be filled.
            OpKind::Read => unsafe { libc::preadv(self.file, left.as_ptr(), count, offset) },
            // SAFETY: the iovecs describe memory that the operation's leases keep.
            OpKind::Write => unsafe { libc::pwritev(self.file, left.as_ptr(), count, offset) },
            // SAFETY: the same.
            OpKind::WriteFua => unsafe { libc::pwritev2(self.file, left.as_ptr(), count, offset, libc::RWF_DSYNC) },
            // SAFETY: the descriptor is the member's, which outlives its operations.
            OpKind::Flush => unsafe { libc::fdatasync(self.file) as isize },
            OpKind::Zero { .. } => unreachable!("zeroing is not small"),
        };
        if done < 0 {
            let errno = std::io::Error::last_os_error().raw_os_error();
            return -errno.unwrap_or(libc::EIO);
        }
        i32::try_from(done).expect("a small transfer")
    }

    /// Whether the kernel's answer says that its file system has no room for what the operation brings, which somebody
    /// waits for.
    pub(super) fn lacks_room(&self, answer: i32) -> bool {
        let is_write = self.op().is_some_and(|op| matches!(op.kind.name(), OpName::Write | OpName::Zero));
        is_write && !self.is_abandoned && matches!(-answer, libc::ENOSPC | libc::EDQUOT)
    }

    /// Notes that its operation found no room; false: it did so before.
    pub(super) fn note_no_room(&mut self) -> bool {
        !std::mem::replace(&mut self.is_short_of_room, true)
    }

    /// Whether its operation found no room at some time.
    pub(super) fn was_short_of_room(&self) -> bool {
        self.is_short_of_room
    }

    /// Takes the kernel's answer: a count of bytes or a negative error number.
    pub(super) fn advance(&mut self, answer: i32) -> Progress {
        let progress = self.take_in(answer);
        if self.is_abandoned && matches!(progress, Progress::More) {
            return Progress::Done(self.end(), None);
        }
        progress
    }

    fn take_in(&mut self, answer: i32) -> Progress {
        let (op, _) = self.op.as_ref().expect("a taken slot has an operation");
        let len = op.len().0;
        let result = match (u64::try_from(answer), op.kind) {
            (Err(_), _) => {
                let errno = Errno::from_raw_os_error(answer.saturating_neg());
                if matches!(errno, Errno::INTR | Errno::AGAIN) && self.retries < RETRIES_MAX {
                    self.retries += 1;
                    return Progress::More;
                }
                let is_unsupported = matches!(op.kind, OpKind::Zero { .. }) && is_unsupported(errno);
                Err(if is_unsupported {
                    DiskError::Unsupported { op: op.info() }
                } else {
                    DiskError::Io { op: op.info(), errno }
                })
            }
            (Ok(_), OpKind::Zero { .. } | OpKind::Flush) => Ok(()),
            (Ok(count), _) if self.done + count == len => Ok(()),
            (Ok(count), _) if count == 0 || self.done + count > len => {
                Err(DiskError::ShortIo { op: op.info(), done: Bytes(self.done) })
            }
            (Ok(count), _) => {
                self.skip(count);
                return Progress::More;
            }
        };
        let (op, began) = self.op.take().expect("a taken slot has an operation");
        self.former = None;
        let timed = (!self.is_abandoned).then(|| (op.kind.name(), began));
        Progress::Done(op.complete(result), timed)
    }

    /// Moves past bytes that are done.
    fn skip(&mut self, count: u64) {
        self.done += count;
        let mut count = usize::try_from(count).expect("a part of a buffer");
        for iovec in &mut self.iovecs[self.first..] {
            if count < iovec.iov_len {
                iovec.iov_base = iovec.iov_base.wrapping_byte_add(count);
                iovec.iov_len -= count;
                return;
            }
            count -= iovec.iov_len;
            self.first += 1;
        }
    }
}

fn entry_len(iovec: &libc::iovec) -> u32 {
    u32::try_from(iovec.iov_len.min(ENTRY_BYTES_MAX)).expect("limited to 1 GiB")
}

fn count(iovecs: &[libc::iovec]) -> u32 {
    u32::try_from(iovecs.len()).expect("an operation has at most 1024 segments")
}

/// What file systems and devices say when they can't zero a range.
fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV)
}

#[cfg(test)]
mod tests {
    use uraid_layout::MemberIndex;

    use super::*;
    use crate::buf::Buf;

    fn reading(buf: &mut Buf, parts: &[usize]) -> Slot {
        let mut start = 0;
        let segments = parts.iter().map(|len| {
            start += len;
            buf.lease_write(start - len..start)
        });
        let segments = segments.collect();
        let op = DiskOp { tag: 7, member: MemberIndex(3), kind: OpKind::Read, offset: Bytes(4096), segments };
        let mut slot = Slot::default();
        slot.start(op, -1, false, Instant::now());
        slot
    }

    fn left(slot: &Slot) -> Vec<(usize, usize)> {
        slot.iovecs[slot.first..].iter().map(|iovec| (iovec.iov_base as usize, iovec.iov_len)).collect()
    }

    fn ended(progress: Progress) -> Completion {
        match progress {
            Progress::Done(completion, ..) => completion,
            Progress::More => panic!("the operation goes on"),
        }
    }

    #[test]
    fn short_transfers_go_on_where_they_stopped() {
        let mut buf = Buf::zeroed(Bytes(8192));
        let base = buf.as_ref().as_ptr() as usize;
        let mut slot = reading(&mut buf, &[512, 1024, 512]);
        assert!(matches!(slot.advance(100), Progress::More));
        assert_eq!(left(&slot), [(base + 100, 412), (base + 512, 1024), (base + 1536, 512)]);
        assert!(matches!(slot.advance(412), Progress::More));
        assert_eq!(left(&slot), [(base + 512, 1024), (base + 1536, 512)]);
        assert!(matches!(slot.advance(1500), Progress::More));
        assert_eq!((left(&slot), slot.done), (vec![(base + 2012, 36)], 2012));
        let completion = ended(slot.advance(36));
        assert_eq!((completion.tag, completion.member, completion.result), (7, MemberIndex(3), Ok(())));
    }

    #[test]
    fn nothing_transferred_is_an_error_that_tells_how_far_it_came() {
        let mut buf = Buf::zeroed(Bytes(4096));
        let mut slot = reading(&mut buf, &[4096]);
        assert!(matches!(slot.advance(512), Progress::More));
        let Err(DiskError::ShortIo { op, done }) = ended(slot.advance(0)).result else { panic!("no short read") };
        assert_eq!((op.member, op.offset, op.len, done), (MemberIndex(3), Bytes(4096), Bytes(4096), Bytes(512)));
    }

    #[test]
    fn again_is_tried_a_bounded_number_of_times() {
        let mut buf = Buf::zeroed(Bytes(4096));
        let mut slot = reading(&mut buf, &[4096]);
        for _ in 0..RETRIES_MAX {
            assert!(matches!(slot.advance(-libc::EAGAIN), Progress::More));
        }
        let Err(DiskError::Io { errno, .. }) = ended(slot.advance(-libc::EAGAIN)).result else { panic!("no error") };
        assert_eq!(errno, Errno::AGAIN);
    }

    #[test]
    fn the_memory_is_free_when_the_operation_has_ended() {
        let mut buf = Buf::zeroed(Bytes(4096));
        let mut slot = reading(&mut buf, &[4096]);
        let _completion = ended(slot.advance(-libc::EIO));
        buf.as_mut().fill(1);
    }
}
