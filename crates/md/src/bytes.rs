//! Little-endian numbers in bytes of a disk.

/// Bytes whose fields are read by their offsets. What lies beyond the end reads as `None`.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    /// `N` bytes at `at`.
    pub(crate) fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.slice(at, N)?.try_into().ok()
    }

    /// `len` bytes at `at`.
    pub(crate) fn slice(self, at: usize, len: usize) -> Option<&'a [u8]> {
        self.0.get(at..at.checked_add(len)?)
    }

    pub(crate) fn u8(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    pub(crate) fn u16(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub(crate) fn i32(self, at: usize) -> Option<i32> {
        self.array(at).map(i32::from_le_bytes)
    }

    pub(crate) fn u64(self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }
}

/// The sum of all 32-bit words, and of 16 bits that may be left over, as Linux md folds it. The four bytes at `skip`
/// count as zeros.
pub(crate) fn word_sum(bytes: &[u8], skip: usize) -> u32 {
    let mut sum = 0_u64;
    for (index, word) in bytes.chunks(4).enumerate() {
        let mut padded = [0; 4];
        padded[..word.len()].copy_from_slice(word);
        if index * 4 != skip {
            sum += u64::from(u32::from_le_bytes(padded));
        }
    }
    // The carries of at most a page of words fit the upper half, and adding them may wrap: so it does in the kernel.
    (sum as u32).wrapping_add((sum >> 32) as u32)
}
