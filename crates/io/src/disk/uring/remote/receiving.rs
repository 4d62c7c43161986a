//! What is received on a connection: replies into a buffer, large data to where they belong.

use std::ops::Range;
use std::os::fd::RawFd;

use io_uring::opcode::RecvMsg;
use io_uring::squeue::Entry;
use io_uring::types::Fd;
use uraid_nbd::client::RequestIndex;

use super::super::super::SEGMENTS_MAX;
use super::sending::{empty_message, pieces};
use crate::buf::Lease;

/// How much is received ahead of knowing where it belongs, and copied, while no large read is awaited.
const INPUT_BYTES: usize = 64 << 10;

/// The same while one is: a reply's header, and not much more.
const HEADER_BYTES: usize = 64;

/// Where data belong that come next.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) op: usize,
    /// From where on in the operation's bytes.
    pub(super) from: u64,
    pub(super) left: u64,
    /// The request that ends with them, and how.
    pub(super) end: Option<(RequestIndex, Result<(), u32>)>,
}

/// What was received and is awaited.
pub(super) struct Receiving {
    input: Box<[u8]>,
    /// What of it has been received and not been used.
    held: Range<usize>,
    target: Option<Target>,
    /// How much of the receive goes straight to the target.
    direct: u64,
    /// Unchanged while the kernel has them.
    iovecs: Vec<libc::iovec>,
    message: libc::msghdr,
    is_out: bool,
}

impl Receiving {
    pub(super) fn new() -> Self {
        Self {
            input: vec![0; INPUT_BYTES].into(),
            held: 0..0,
            target: None,
            direct: 0,
            iovecs: Vec::new(),
            message: empty_message(),
            is_out: false,
        }
    }

    /// Whether the kernel has it.
    pub(super) fn is_out(&self) -> bool {
        self.is_out
    }

    /// Whether nothing was received that has not been used.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.target.is_none()
    }

    /// Where data belong that come next, if such come next.
    pub(super) fn target(&self) -> Option<Target> {
        self.target
    }

    /// Has the data that come next go there.
    pub(super) fn aim(&mut self, target: Target) {
        self.target = Some(target);
    }

    /// The entry for what comes next; `segments` are the target's, and large reads may be awaited. The kernel may use
    /// the memory once it is pushed.
    pub(super) fn describe(&mut self, file: RawFd, segments: Option<&[Lease]>, awaits_large: bool) -> Entry {
        self.iovecs.clear();
        self.direct = 0;
        if let (Some(target), Some(segments)) = (self.target, segments) {
            pieces(segments, target.from, target.left, &mut self.iovecs);
            // One is left for what follows.
            self.iovecs.truncate(SEGMENTS_MAX - 1);
            self.direct = self.iovecs.iter().map(|iovec| iovec.iov_len as u64).sum();
        }
        if self.target.is_none_or(|target| target.left == self.direct) {
            let room = &mut self.input[self.held.end..];
            let iov_len = if awaits_large { room.len().min(HEADER_BYTES) } else { room.len() };
            self.iovecs.push(libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len });
        }
        self.message.msg_iov = self.iovecs.as_mut_ptr();
        self.message.msg_iovlen = self.iovecs.len();
        self.is_out = true;
        RecvMsg::new(Fd(file), &raw mut self.message).build()
    }

    /// The kernel has it no more.
    pub(super) fn came_back(&mut self) {
        self.is_out = false;
    }

    /// Notes that so many bytes were received.
    pub(super) fn received(&mut self, count: usize) {
        let direct = self.direct.min(count as u64);
        if let Some(target) = &mut self.target {
            target.from += direct;
            target.left -= direct;
        }
        self.held.end += count - usize::try_from(direct).expect("a part of the count");
    }

    /// Moves data from the buffer to their target. Whether that has all then.
    pub(super) fn copy_to(&mut self, segments: &mut [Lease]) -> bool {
        let target = self.target.as_mut().expect("there is a target");
        let count = (self.held.len() as u64).min(target.left);
        let end = self.held.start + usize::try_from(count).expect("inside the buffer");
        write(segments, target.from, &self.input[self.held.start..end]);
        target.from += count;
        target.left -= count;
        self.held.start = end;
        if self.held.is_empty() {
            self.held = 0..0;
        }
        target.left == 0
    }

    /// Ends with the target, which has all, and says which request ends with it.
    pub(super) fn end_target(&mut self) -> Option<(RequestIndex, Result<(), u32>)> {
        self.target.take().and_then(|target| target.end)
    }

    /// What was received and not used.
    pub(super) fn input(&self) -> &[u8] {
        &self.input[self.held.clone()]
    }

    /// Notes that so much of it has been used.
    pub(super) fn consume(&mut self, count: usize) {
        self.held.start += count;
    }

    /// Makes room behind what is left: the beginning of a reply.
    pub(super) fn compact(&mut self) {
        self.input.copy_within(self.held.clone(), 0);
        self.held = 0..self.held.len();
    }
}

/// Writes zeros to memory that is received into.
pub(super) fn zero(segments: &mut [Lease], from: u64, length: u64) {
    const ZEROS: [u8; 4096] = [0; 4096];
    let (mut from, mut left) = (from, length);
    while left > 0 {
        let count = left.min(ZEROS.len() as u64);
        write(segments, from, &ZEROS[..usize::try_from(count).expect("at most a page")]);
        (from, left) = (from + count, left - count);
    }
}

/// Writes bytes to memory that is received into, from there on.
fn write(segments: &mut [Lease], from: u64, bytes: &[u8]) {
    let (mut skipped, mut rest) = (usize::try_from(from).expect("inside the memory"), bytes);
    for segment in segments {
        if rest.is_empty() {
            return;
        }
        if skipped >= segment.len() {
            skipped -= segment.len();
            continue;
        }
        let (own, others) = rest.split_at(rest.len().min(segment.len() - skipped));
        segment.copy_part(skipped, own);
        (skipped, rest) = (0, others);
    }
    assert!(rest.is_empty(), "a reply has no more data than its request has memory");
}

#[cfg(test)]
mod tests {
    use uraid_layout::Bytes;

    use super::*;
    use crate::buf::Buf;

    #[test]
    fn bytes_go_to_their_places_in_any_segments() {
        let cuts = [0, 512, 1024, 5120, 16384];
        for (from, length) in [(0, 16384), (100, 300), (500, 600), (1024, 4096), (700, 10000), (16000, 384)] {
            let mut buf = Buf::zeroed(Bytes(16384));
            buf.as_mut().fill(1);
            let mut segments: Vec<Lease> = cuts.windows(2).map(|cut| buf.lease_write(cut[0]..cut[1])).collect();
            zero(&mut segments, from as u64, length as u64);
            write(&mut segments, from as u64, &[2; 7]);
            drop(segments);
            let mut expected = vec![1; 16384];
            expected[from..from + length].fill(0);
            expected[from..from + 7].fill(2);
            assert!(*buf.as_ref() == expected[..], "{length} bytes from {from} on");
        }
    }
}
