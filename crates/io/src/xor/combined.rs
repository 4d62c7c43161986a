//! The loop with factors, in plain code: the XOR of sources, each times its factor in GF(2^8).
//!
//! A factor is a sum of powers of 2, and so is the product: source by source it would take a table or a multiplication;
//! over all sources it takes eight doublings. By Horner's rule, from the highest power down: double the sum, and add
//! the sources whose factors have that power. In Q of RAID 6, whose factors are powers of 2, each source is added once,
//! and the first eight take no more doublings than that (Anvin, section 3). All of it stays in registers.

use uraid_layout::field::Factor;

/// Bytes of the target that stay in the first-level cache while more than [`TERMS_MAX`] sources are added up.
const TILE_BYTES: usize = 4096;

/// Sources that one loop takes.
const TERMS_MAX: usize = 16;

/// The powers of 2 that a factor has.
const POWERS: usize = 8;

/// Bytes that one turn of the loop has in registers.
const LANES: usize = 128;

/// The sources by power, the highest first.
struct Layers<'a> {
    sources: [&'a [u8]; TERMS_MAX * POWERS],
    /// Where each power's sources end.
    ends: [usize; POWERS],
}

impl<'a> Layers<'a> {
    #[inline(always)]
    fn new(terms: &[(&'a [u8], Factor)]) -> Self {
        let mut layers = Self { sources: [&[]; TERMS_MAX * POWERS], ends: [0; POWERS] };
        let mut end = 0;
        for (power, layer_end) in (0..POWERS).rev().zip(&mut layers.ends) {
            for &(source, _) in terms.iter().filter(|(_, factor)| factor.0 >> power & 1 == 1) {
                layers.sources[end] = source;
                end += 1;
            }
            *layer_end = end;
        }
        layers
    }

    /// The sum of `N` bytes of each source from `at` on.
    #[inline(always)]
    fn sum<const N: usize>(&self, at: usize) -> [u8; N] {
        let (mut sum, mut start) = ([0; N], 0);
        for &end in &self.ends {
            if start > 0 {
                sum.iter_mut().for_each(|byte| *byte = doubled(*byte));
            }
            for source in &self.sources[start..end] {
                sum.iter_mut().zip(&source[at..at + N]).for_each(|(sum, byte)| *sum ^= byte);
            }
            start = end;
        }
        sum
    }
}

/// Twice a byte, modulo the polynomial 0x11d.
#[inline(always)]
fn doubled(byte: u8) -> u8 {
    let carry = (byte.cast_signed() >> 7).cast_unsigned();
    byte << 1 ^ carry & 0x1d
}

/// The work, to be compiled for each instruction set: `target` becomes the XOR of the terms from `offset` on. The
/// arguments are checked. Inlined, as only then does it take on the instruction set of its caller.
#[inline(always)]
pub(super) fn combined(target: &mut [u8], terms: &[(&[u8], Factor)], offset: usize) {
    for (tile, bytes) in target.chunks_mut(TILE_BYTES).enumerate() {
        let offset = offset + tile * TILE_BYTES;
        for (pass, part) in terms.chunks(TERMS_MAX).enumerate() {
            let layers = Layers::new(part);
            let (blocks, rest) = bytes.as_chunks_mut::<LANES>();
            let rest_offset = offset + blocks.len() * LANES;
            for (index, block) in blocks.iter_mut().enumerate() {
                put(block, layers.sum::<LANES>(offset + index * LANES), pass > 0);
            }
            for (index, byte) in rest.as_chunks_mut::<1>().0.iter_mut().enumerate() {
                put(byte, layers.sum::<1>(rest_offset + index), pass > 0);
            }
        }
    }
}

/// The target becomes, or with `add` is XORed with, the sum.
#[inline(always)]
fn put<const N: usize>(target: &mut [u8; N], sum: [u8; N], add: bool) {
    if add {
        target.iter_mut().zip(sum).for_each(|(target, sum)| *target ^= sum);
    } else {
        *target = sum;
    }
}
