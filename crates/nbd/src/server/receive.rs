//! The receive buffer: one large read brings many requests.

use std::{
    io,
    task::{Context, Poll, ready},
};

use super::stream::Stream;

const RECEIVE_BYTES: usize = 256 << 10;

/// Bytes that have arrived and were not yet looked at.
pub(super) struct ReceiveBuffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl ReceiveBuffer {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; RECEIVE_BYTES].into(), start: 0, end: 0 }
    }

    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        assert!(self.start <= self.end, "no more is consumed than was received");
    }

    /// Reads behind what is unread. Ready with 0 at the end of the stream.
    ///
    /// # Panics
    /// If the buffer is full: its user keeps less than one message in it.
    pub(super) fn poll_fill<S: Stream>(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.bytes.copy_within(self.start..self.end, 0); // at most a message's beginning
        self.end -= self.start;
        self.start = 0;
        assert!(self.end < self.bytes.len(), "the receive buffer holds less than one message when it is read into");
        let filled = ready!(stream.poll_receive(cx, &mut self.bytes[self.end..]))?;
        self.end += filled;
        Poll::Ready(Ok(filled))
    }
}
