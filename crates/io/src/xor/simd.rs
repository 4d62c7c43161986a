//! The loops compiled for each instruction set, and the choice between them at run time.
//!
//! On aarch64 the base instruction set has NEON: the plain build of the loops is the NEON one.
#![expect(
    unsafe_code,
    reason = "a function compiled for an instruction set is called after that set was detected; stores past the caches"
)]

use uraid_layout::field::Factor;

use super::combined::combined;
use super::tiles::tiled;

/// A build of the XOR loop.
pub(super) type Kernel = fn(&mut [u8], &[&[u8]], usize);

/// A build of the loop with factors.
pub(super) type Combination = fn(&mut [u8], &[(&[u8], Factor)], usize);

/// The best build for this processor; detection is cached by the standard library.
pub(super) fn best() -> Kernel {
    #[cfg(target_arch = "x86_64")]
    if let Some((kernel, _)) = with_avx512().or_else(with_avx2) {
        return kernel;
    }
    tiled
}

/// The same of the loop with factors.
pub(super) fn best_combination() -> Combination {
    #[cfg(target_arch = "x86_64")]
    if let Some((_, combination)) = with_avx512().or_else(with_avx2) {
        return combination;
    }
    combined
}

/// What `kernel` does to a part of the target, which begins so many bytes from the target's start, with a target that
/// is written past the caches where the processor has a way to.
pub(super) fn past_caches(target: &mut [u8], kernel: impl Fn(&mut [u8], usize)) {
    // SAFETY: every x86-64 processor has SSE2.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        stream(target, kernel);
    }
    #[cfg(not(target_arch = "x86_64"))]
    kernel(target, 0);
}

/// Adds up one piece after the other in the first-level cache and sends it to memory. Few bytes a piece, so that the
/// stores of one go on while the sources of the next are read.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse2")]
fn stream(target: &mut [u8], kernel: impl Fn(&mut [u8], usize)) {
    use std::arch::x86_64::{__m128i, _mm_set_epi64x, _mm_sfence, _mm_stream_si128};

    const PIECE_BYTES: usize = 2048;
    /// Aligned to the cache's lines, which the widest stores must not straddle.
    #[repr(align(64))]
    struct Piece([u8; PIECE_BYTES]);

    // SAFETY: any 16 bytes are a `__m128i`, and the other way round.
    let (head, lanes, tail) = unsafe { target.align_to_mut::<__m128i>() };
    let lanes_end = head.len() + size_of_val(lanes);
    kernel(head, 0);
    kernel(tail, lanes_end);
    let (mut piece, mut offset) = (Piece([0; PIECE_BYTES]), head.len());
    for lanes in lanes.chunks_mut(PIECE_BYTES / size_of::<__m128i>()) {
        let piece = &mut piece.0[..size_of_val(lanes)];
        kernel(piece, offset);
        for (lane, bytes) in lanes.iter_mut().zip(piece.as_chunks::<8>().0.as_chunks::<2>().0) {
            let [low, high] = bytes.map(i64::from_le_bytes);
            let bytes = _mm_set_epi64x(high, low);
            // SAFETY: a lane is aligned and borrowed mutably; nobody looks at it before the fence below.
            unsafe { _mm_stream_si128(lane, bytes) };
        }
        offset += piece.len();
    }
    _mm_sfence();
}

/// Both loops, compiled for some instruction sets; none where the processor lacks one of these.
macro_rules! builds {
    ($(#[$doc:meta])* $name:ident, $features:literal, $($detected:tt),+) => {
        $(#[$doc])*
        #[cfg(target_arch = "x86_64")]
        pub(super) fn $name() -> Option<(Kernel, Combination)> {
            #[target_feature(enable = $features)]
            fn xor(target: &mut [u8], sources: &[&[u8]], offset: usize) {
                tiled(target, sources, offset);
            }
            #[target_feature(enable = $features)]
            fn combination(target: &mut [u8], terms: &[(&[u8], Factor)], offset: usize) {
                combined(target, terms, offset);
            }
            let is_there = true $(&& is_x86_feature_detected!($detected))+;
            is_there.then_some((
                // SAFETY: the closure is handed out only where the instruction sets were detected.
                |target, sources, offset| unsafe { xor(target, sources, offset) },
                // SAFETY: so is this one.
                |target, terms, offset| unsafe { combination(target, terms, offset) },
            ))
        }
    };
}

builds!(with_avx2, "avx2", "avx2");
builds!(
    /// Multiples of bytes need AVX-512BW.
    with_avx512,
    "avx512f,avx512bw",
    "avx512f",
    "avx512bw"
);
