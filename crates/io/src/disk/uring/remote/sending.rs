//! What is sent on a connection: headers and writes' data, gathered from where they are.

use std::os::fd::RawFd;

use io_uring::opcode::SendMsg;
use io_uring::squeue::Entry;
use io_uring::types::Fd;
use uraid_nbd::client::{RequestHeader, RequestIndex};

use super::super::super::SEGMENTS_MAX;
use crate::buf::Lease;

/// The most requests of one send.
const REQUESTS_MAX: usize = 64;

/// One send, from the first of its bytes to the last: the kernel may take it in several pieces.
pub(super) struct Sending {
    /// Never more than there is room for from the start: the kernel has their addresses.
    headers: Vec<RequestHeader>,
    requests: Vec<RequestIndex>,
    /// What was answered before the send was known to be over.
    answered: Vec<(RequestIndex, Result<(), u32>)>,
    /// What is to be sent; unchanged while the kernel has it.
    iovecs: Vec<libc::iovec>,
    /// The first of `iovecs` that is not yet sent.
    first: usize,
    message: libc::msghdr,
    is_out: bool,
    /// Some of it may have been sent: nothing is added any more.
    is_begun: bool,
}

impl Sending {
    pub(super) fn new() -> Self {
        Self {
            headers: Vec::with_capacity(REQUESTS_MAX),
            requests: Vec::with_capacity(REQUESTS_MAX),
            answered: Vec::with_capacity(REQUESTS_MAX),
            iovecs: Vec::new(),
            first: 0,
            message: empty_message(),
            is_out: false,
            is_begun: false,
        }
    }

    /// Whether the kernel has it.
    pub(super) fn is_out(&self) -> bool {
        self.is_out
    }

    /// Whether the kernel has taken a part of it, and gets the rest next.
    pub(super) fn is_in_part(&self) -> bool {
        self.is_begun && !self.is_out
    }

    /// Whether another request may be added.
    pub(super) fn has_room(&self) -> bool {
        !self.is_begun && self.headers.len() < REQUESTS_MAX && self.iovecs.len() < SEGMENTS_MAX
    }

    /// Adds a request, and the data of a write: so many bytes of the segments, from there on.
    ///
    /// # Panics
    /// When there is no room.
    pub(super) fn add(&mut self, request: RequestIndex, header: RequestHeader, data: Option<(&[Lease], u64, u64)>) {
        assert!(self.has_room(), "a send that the kernel may have stays as it is");
        self.requests.push(request);
        self.headers.push(header);
        let header = self.headers[self.headers.len() - 1].as_bytes();
        self.iovecs.push(libc::iovec { iov_base: header.as_ptr().cast_mut().cast(), iov_len: header.len() });
        if let Some((segments, from, length)) = data {
            pieces(segments, from, length, &mut self.iovecs);
        }
    }

    /// The entry for what is left, if anything is. The kernel may use the memory once the entry is pushed.
    pub(super) fn describe(&mut self, file: RawFd) -> Option<Entry> {
        let left = &mut self.iovecs[self.first..];
        if left.is_empty() {
            return None;
        }
        self.message.msg_iov = left.as_mut_ptr();
        self.message.msg_iovlen = left.len().min(SEGMENTS_MAX);
        (self.is_out, self.is_begun) = (true, true);
        let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL).cast_unsigned();
        Some(SendMsg::new(Fd(file), &raw const self.message).flags(flags).build())
    }

    /// The kernel has it no more, and has sent nothing.
    pub(super) fn came_back(&mut self) {
        self.is_out = false;
    }

    /// Notes that so many bytes were sent. Whether that is all.
    pub(super) fn sent(&mut self, count: usize) -> bool {
        self.is_out = false;
        let mut count = count;
        for iovec in &mut self.iovecs[self.first..] {
            if count < iovec.iov_len {
                iovec.iov_base = iovec.iov_base.wrapping_byte_add(count);
                iovec.iov_len -= count;
                return false;
            }
            count -= iovec.iov_len;
            self.first += 1;
        }
        self.headers.clear();
        self.requests.clear();
        self.iovecs.clear();
        self.first = 0;
        self.is_begun = false;
        true
    }

    /// Notes the answer to a request that is in the send, which is to end with it. Whether it is.
    pub(super) fn note_answered(&mut self, request: RequestIndex, result: Result<(), u32>) -> bool {
        let is_in = self.requests.contains(&request);
        if is_in {
            self.answered.push((request, result));
        }
        is_in
    }

    /// A request that was answered while it was in the send.
    pub(super) fn next_answered(&mut self) -> Option<(RequestIndex, Result<(), u32>)> {
        self.answered.pop()
    }
}

/// Describes so many bytes of segments, from there on.
pub(super) fn pieces(segments: &[Lease], from: u64, length: u64, iovecs: &mut Vec<libc::iovec>) {
    let (mut skipped, mut left) = (from, length);
    for segment in segments {
        let len = segment.len() as u64;
        if left == 0 {
            return;
        }
        if skipped >= len {
            skipped -= len;
            continue;
        }
        let taken = (len - skipped).min(left);
        let start = usize::try_from(skipped).expect("inside a buffer");
        let iov_len = usize::try_from(taken).expect("inside a buffer");
        iovecs.push(libc::iovec { iov_base: segment.as_ptr().wrapping_byte_add(start).cast(), iov_len });
        (skipped, left) = (0, left - taken);
    }
}

/// A message without addresses, ancillary data or flags.
pub(super) fn empty_message() -> libc::msghdr {
    // SAFETY: all zeros are a valid value of this structure of integers and pointers.
    unsafe { std::mem::zeroed() }
}
