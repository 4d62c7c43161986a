//! The receive buffer: one large read brings many requests.

use std::{
    io,
    task::{Context, Poll, ready},
};

use super::stream::Stream;
use crate::Error;

const RECEIVE_BYTES: usize = 256 << 10;

/// Enough for a handshake, which keeps what it needs elsewhere.
const HANDSHAKE_BYTES: usize = 4 << 10;

/// Bytes that have arrived and were not yet looked at.
pub(super) struct ReceiveBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReceiveBuffer {
    /// The most that may be unread.
    pub(super) const BYTES_MAX: usize = RECEIVE_BYTES;

    /// One in which this is unread, as far as there can be so much.
    pub(super) fn of(unread: &[u8]) -> Option<Self> {
        let is_small = unread.len() <= Self::BYTES_MAX;
        is_small.then(|| Self { bytes: unread.to_vec(), start: 0, end: unread.len() })
    }

    /// A small one: a client that is silent costs little.
    pub(super) fn for_handshake() -> Self {
        Self { bytes: vec![0; HANDSHAKE_BYTES], start: 0, end: 0 }
    }

    /// Makes room for requests. What is unread stays.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(super) fn enlarge(&mut self) -> Result<(), Error> {
        self.bytes.try_reserve_exact(RECEIVE_BYTES - self.bytes.len()).map_err(|_| Error::NoMemory)?;
        self.bytes.resize(RECEIVE_BYTES, 0);
        Ok(())
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
