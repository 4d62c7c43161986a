//! What the fuzz targets share: sound bytes to begin with, and an input that says what becomes of them.
//!
//! Bytes that nobody made sound fail at the first checksum or magic number, so targets read their input as changes to
//! sound bytes: to superblocks ([`members`], and [`md`] for those of Linux md), to sessions of NBD clients ([`nbd`])
//! and to what servers say to them ([`nbd_client`]). The sound ones are made by code; no corpus is kept.

pub mod md;
pub mod members;
pub mod nbd;
pub mod nbd_client;

use uraid_layout::{MemberIndex, MemberSet};

/// Most changes to one piece of bytes.
const CHANGES_MAX: u8 = 16;

/// The fuzzer's bytes, read from the front; zeros when they are used up.
#[derive(Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// The next eight bytes.
    pub fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// Some of eight members.
    pub fn members(&mut self) -> MemberSet {
        let bits = self.byte();
        (0..8).filter(|member| bits >> member & 1 == 1).map(MemberIndex).collect()
    }

    /// Changes bytes as the input says: single ones, and numbers of eight bytes where numbers are.
    pub fn change(&mut self, bytes: &mut [u8]) {
        for _ in 0..self.byte().min(CHANGES_MAX) {
            let at = usize::from(u16::from_le_bytes([self.byte(), self.byte()])) % bytes.len();
            match self.byte() % 4 {
                0 => bytes[at] = self.byte(),
                1 => bytes[at] ^= 1 << (self.byte() % 8),
                2 => bytes[at] = bytes[at].wrapping_add(self.byte()),
                _ => {
                    let at = at / 8 * 8;
                    let end = (at + 8).min(bytes.len());
                    let word = self.word().to_le_bytes();
                    bytes[at..end].copy_from_slice(&word[..end - at]);
                }
            }
        }
    }
}
