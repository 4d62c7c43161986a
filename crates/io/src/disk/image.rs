//! A member's bytes in memory, for tests: what is zero in them is neither copied nor compared.
//!
//! A member has 4 MiB at least, and in most tests a few of its blocks hold anything.

use std::ops::{Deref, DerefMut, Range};

/// What is copied and compared as one.
const BLOCK: usize = 4096;

/// The bytes of a member.
#[derive(Debug)]
pub struct Image {
    bytes: Vec<u8>,
    /// Of each block whether it may hold anything but zeros.
    written: Vec<bool>,
}

impl Image {
    /// So many bytes, all zero.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self { bytes: vec![0; len], written: vec![false; len.div_ceil(BLOCK)] }
    }

    /// Puts `bytes` at byte `at`.
    ///
    /// # Panics
    /// When they reach over the end.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        self.range_mut(at..at + bytes.len()).copy_from_slice(bytes);
    }

    /// A range of the bytes, to change; the whole, by [`DerefMut`], costs the next copy a look at all of it.
    ///
    /// # Panics
    /// When it reaches over the end.
    pub fn range_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        if !range.is_empty() {
            self.written[range.start / BLOCK..range.end.div_ceil(BLOCK)].fill(true);
        }
        &mut self.bytes[range]
    }

    /// Cuts it off at `len` bytes, or lengthens it by zeros.
    pub fn resize(&mut self, len: usize) {
        self.bytes.resize(len, 0);
        self.written.resize(len.div_ceil(BLOCK), false);
    }

    fn block(&self, index: usize) -> &[u8] {
        let start = index * BLOCK;
        &self.bytes[start..self.bytes.len().min(start + BLOCK)]
    }
}

impl Clone for Image {
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.bytes.len());
        for index in (0..self.written.len()).filter(|&index| self.written[index]) {
            let block = self.block(index);
            if block != &[0; BLOCK][..block.len()] {
                copy.write(index * BLOCK, block);
            }
        }
        copy
    }
}

impl PartialEq for Image {
    fn eq(&self, other: &Self) -> bool {
        let mut written = (0..self.written.len()).filter(|&index| self.written[index] || other.written[index]);
        self.bytes.len() == other.bytes.len() && written.all(|index| self.block(index) == other.block(index))
    }
}

impl Eq for Image {}

impl From<Vec<u8>> for Image {
    fn from(bytes: Vec<u8>) -> Self {
        let written = vec![true; bytes.len().div_ceil(BLOCK)];
        Self { bytes, written }
    }
}

impl Deref for Image {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Image {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.written.fill(true);
        &mut self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_hold_what_was_written_in_any_way() {
        let mut image = Image::zeroed(3 * BLOCK + 100);
        let mut bytes = vec![0; 3 * BLOCK + 100];
        let mut changed = |image: &mut Image, at: usize, byte: u8| {
            bytes[at] = byte;
            assert_eq!(image.clone().to_vec(), bytes, "the copy, at {at}");
            assert_eq!(image.clone(), *image, "at {at}");
            assert_eq!(Image::from(bytes.clone()), *image, "at {at}");
        };
        image.write(BLOCK - 1, &[1]);
        changed(&mut image, BLOCK - 1, 1);
        image.range_mut(BLOCK..BLOCK + 1)[0] = 2;
        changed(&mut image, BLOCK, 2);
        image[3 * BLOCK + 99] = 3;
        changed(&mut image, 3 * BLOCK + 99, 3);
        let mut copy = image.clone();
        copy[3 * BLOCK + 99] = 0;
        assert_ne!(copy, image);
        copy.resize(3 * BLOCK + 99);
        assert_ne!(copy, image);
        copy.resize(3 * BLOCK + 100);
        image.write(3 * BLOCK + 99, &[0]);
        assert_eq!(copy, image, "zeros that were written are as zeros that were not");
    }
}
