//! The XOR loop compiled for each instruction set, and the choice between them at run time.
//!
//! On aarch64 the base instruction set has NEON: the plain build of the loop is the NEON one.
#![expect(
    unsafe_code,
    reason = "a function compiled for an instruction set is called after that set was detected; stores past the caches"
)]

use super::tiles::tiled;

/// A build of the XOR loop.
pub(super) type Kernel = fn(&mut [u8], &[&[u8]], usize);

/// The best build for this processor; detection is cached by the standard library.
pub(super) fn best() -> Kernel {
    #[cfg(target_arch = "x86_64")]
    if let Some(kernel) = with_avx512().or_else(with_avx2) {
        return kernel;
    }
    tiled
}

/// `kernel`'s work, with a target that is written past the caches where the processor has a way to.
pub(super) fn past_caches(kernel: Kernel, target: &mut [u8], sources: &[&[u8]]) {
    // SAFETY: every x86-64 processor has SSE2.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        stream(kernel, target, sources);
    }
    #[cfg(not(target_arch = "x86_64"))]
    kernel(target, sources, 0);
}

/// Adds up one piece after the other in the first-level cache and sends it to memory. Few bytes a piece, so that the
/// stores of one go on while the sources of the next are read.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse2")]
fn stream(kernel: Kernel, target: &mut [u8], sources: &[&[u8]]) {
    use std::arch::x86_64::{__m128i, _mm_set_epi64x, _mm_sfence, _mm_stream_si128};

    const PIECE_BYTES: usize = 2048;
    /// Aligned to the cache's lines, which the widest stores must not straddle.
    #[repr(align(64))]
    struct Piece([u8; PIECE_BYTES]);

    // SAFETY: any 16 bytes are a `__m128i`, and the other way round.
    let (head, lanes, tail) = unsafe { target.align_to_mut::<__m128i>() };
    let lanes_end = head.len() + size_of_val(lanes);
    kernel(head, sources, 0);
    kernel(tail, sources, lanes_end);
    let (mut piece, mut offset) = (Piece([0; PIECE_BYTES]), head.len());
    for lanes in lanes.chunks_mut(PIECE_BYTES / size_of::<__m128i>()) {
        let piece = &mut piece.0[..size_of_val(lanes)];
        kernel(piece, sources, offset);
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

#[cfg(target_arch = "x86_64")]
pub(super) fn with_avx2() -> Option<Kernel> {
    #[target_feature(enable = "avx2")]
    fn avx2(target: &mut [u8], sources: &[&[u8]], offset: usize) {
        tiled(target, sources, offset);
    }
    // SAFETY: the closure is handed out only where AVX2 was detected.
    is_x86_feature_detected!("avx2").then_some(|target, sources, offset| unsafe { avx2(target, sources, offset) })
}

#[cfg(target_arch = "x86_64")]
pub(super) fn with_avx512() -> Option<Kernel> {
    #[target_feature(enable = "avx512f")]
    fn avx512(target: &mut [u8], sources: &[&[u8]], offset: usize) {
        tiled(target, sources, offset);
    }
    // SAFETY: the closure is handed out only where AVX-512F was detected.
    is_x86_feature_detected!("avx512f").then_some(|target, sources, offset| unsafe { avx512(target, sources, offset) })
}
