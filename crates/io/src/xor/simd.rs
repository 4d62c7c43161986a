//! The XOR loop compiled for each instruction set, and the choice between them at run time.
//!
//! On aarch64 the base instruction set has NEON: the plain build of the loop is the NEON one.
#![expect(unsafe_code, reason = "a function compiled for an instruction set is called after that set was detected")]

use super::tiled;

/// A build of the XOR loop.
pub(super) type Kernel = fn(&mut [u8], &[&[u8]]);

/// The best build for this processor; detection is cached by the standard library.
pub(super) fn best() -> Kernel {
    #[cfg(target_arch = "x86_64")]
    if let Some(kernel) = with_avx512().or_else(with_avx2) {
        return kernel;
    }
    tiled
}

#[cfg(target_arch = "x86_64")]
pub(super) fn with_avx2() -> Option<Kernel> {
    #[target_feature(enable = "avx2")]
    fn avx2(target: &mut [u8], sources: &[&[u8]]) {
        tiled(target, sources);
    }
    // SAFETY: the closure is handed out only where AVX2 was detected.
    is_x86_feature_detected!("avx2").then_some(|target, sources| unsafe { avx2(target, sources) })
}

#[cfg(target_arch = "x86_64")]
pub(super) fn with_avx512() -> Option<Kernel> {
    #[target_feature(enable = "avx512f")]
    fn avx512(target: &mut [u8], sources: &[&[u8]]) {
        tiled(target, sources);
    }
    // SAFETY: the closure is handed out only where AVX-512F was detected.
    is_x86_feature_detected!("avx512f").then_some(|target, sources| unsafe { avx512(target, sources) })
}
