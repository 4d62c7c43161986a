//! A piece of a stream that arrives bit by bit.

use std::mem;

use bytes::Buf as _;

/// What has arrived of the next piece. It grows with what arrives, not with what was announced.
#[derive(Debug, Default)]
pub(crate) struct Partial(Vec<u8>);

impl Partial {
    /// Takes what is missing of a piece of so many bytes from the front of `input`: the piece, once it is whole.
    pub(crate) fn complete(&mut self, length_bytes: usize, input: &mut &[u8]) -> Option<Vec<u8>> {
        let missing = length_bytes - self.0.len();
        let taken = missing.min(input.len());
        self.0.extend_from_slice(&input[..taken]);
        input.advance(taken);
        (taken == missing).then(|| mem::take(&mut self.0))
    }

    /// The memory that it takes, in bytes.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity()
    }
}
