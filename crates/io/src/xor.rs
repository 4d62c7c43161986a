//! Parity: the XOR of any number of equal lengths of bytes in one pass over all of them, each times a factor in GF(2^8)
//! if need be.
//!
//! Two plain functions do the work: [`tiles`] has the XOR, [`combined`] has the one with factors. [`simd`] compiles
//! them for each instruction set and picks one at run time. What no cache holds anyway is written past the caches. The
//! module knows nothing of chunks or parity groups.

mod combined;
mod simd;
mod tiles;

use smallvec::SmallVec;
use uraid_layout::field::Factor;

/// Bytes of sources and target from which on the target is written past the caches: more than a core's own caches hold,
/// so that fetching the target's lines only to overwrite them is the larger cost.
const PAST_CACHES_MIN_BYTES: usize = 4 << 20;

/// So many terms take no memory of the heap: what a write of half a stripe of 64 members has.
pub(crate) const TERMS_INLINE: usize = 64;

/// Overwrites `target` with the XOR of `sources`; one source is copied.
///
/// # Panics
/// When there are no sources, or a source's length is not the target's.
pub fn xor_into(target: &mut [u8], sources: &[&[u8]]) {
    assert!(!sources.is_empty(), "a XOR has sources");
    assert!(sources.iter().all(|source| source.len() == target.len()), "a XOR's sources are as long as its target");
    if let [source] = sources {
        target.copy_from_slice(source);
    } else if (sources.len() + 1).saturating_mul(target.len()) < PAST_CACHES_MIN_BYTES {
        simd::best()(target, sources, 0);
    } else {
        let kernel = simd::best();
        simd::past_caches(target, |part, offset| kernel(part, sources, offset));
    }
}

/// Overwrites `target` with the XOR of `terms`: sources, each times its factor.
///
/// # Panics
/// When there are no terms, or a source's length is not the target's.
pub fn combine_into(target: &mut [u8], terms: &[(&[u8], Factor)]) {
    if terms.iter().all(|&(_, factor)| factor == Factor::ONE) {
        let sources: SmallVec<[&[u8]; TERMS_INLINE]> = terms.iter().map(|&(source, _)| source).collect();
        return xor_into(target, &sources);
    }
    assert!(terms.iter().all(|(source, _)| source.len() == target.len()), "a XOR's sources are as long as its target");
    let kernel = simd::best_combination();
    if (terms.len() + 1).saturating_mul(target.len()) < PAST_CACHES_MIN_BYTES {
        kernel(target, terms, 0);
    } else {
        simd::past_caches(target, |part, offset| kernel(part, terms, offset));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::combined::combined;
    use super::tiles::tiled;
    use super::*;

    /// The definition, byte by byte.
    fn oracle(len: usize, sources: &[&[u8]]) -> Vec<u8> {
        (0..len).map(|i| sources.iter().fold(0, |sum, source| sum ^ source[i])).collect()
    }

    /// A product, as on paper: shift, and subtract the polynomial.
    fn product(a: u8, b: u8) -> u8 {
        let shifted = (0..8).filter(|bit| b >> bit & 1 == 1).map(|bit| u16::from(a) << bit);
        let sum = shifted.fold(0, |sum, part| sum ^ part);
        let rest = (8..16).rev().fold(sum, |sum, bit| if sum >> bit & 1 == 1 { sum ^ 0x11d << (bit - 8) } else { sum });
        u8::try_from(rest).expect("a byte is left")
    }

    /// The definition with factors.
    fn oracle_of_terms(len: usize, terms: &[(&[u8], Factor)]) -> Vec<u8> {
        (0..len).map(|i| terms.iter().fold(0, |sum, (source, factor)| sum ^ product(source[i], factor.0))).collect()
    }

    /// Bytes without a pattern that lines up with any tile or register.
    fn noise(len: usize, mut seed: u64) -> Vec<u8> {
        let step = |seed: &mut u64| {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed.to_le_bytes()[7]
        };
        (0..len).map(|_| step(&mut seed)).collect()
    }

    /// Every build that this processor runs.
    fn kernels() -> Vec<(&'static str, (simd::Kernel, simd::Combination))> {
        let base: (simd::Kernel, simd::Combination) = (tiled, combined);
        #[cfg(target_arch = "x86_64")]
        let more = [("avx2", simd::with_avx2()), ("avx512", simd::with_avx512())];
        #[cfg(not(target_arch = "x86_64"))]
        let more: [(&str, Option<(simd::Kernel, simd::Combination)>); 0] = [];
        let more = more.into_iter().filter_map(|(name, kernel)| Some((name, kernel?)));
        std::iter::once(("base", base)).chain(more).collect()
    }

    fn compare(len: usize, count: usize, skew: usize) {
        let memory: Vec<Vec<u8>> = (0..count).map(|i| noise(len + skew + i % 3, i as u64 + 1)).collect();
        let sources: Vec<&[u8]> = memory.iter().enumerate().map(|(i, bytes)| &bytes[skew + i % 3..]).collect();
        let expected = oracle(len, &sources);
        let mut target = vec![0xa5; len];
        xor_into(&mut target, &sources);
        assert!(target == expected, "{len} bytes of {count} sources, skewed by {skew}");
        for (name, (kernel, _)) in kernels() {
            let mut target = vec![0xa5; len];
            kernel(&mut target, &sources, 0);
            assert!(target == expected, "{name}: {len} bytes of {count} sources, skewed by {skew}");
            let mut target = vec![0xa5; len + 64];
            simd::past_caches(&mut target[skew % 64..][..len], |part, offset| kernel(part, &sources, offset));
            assert!(target[skew % 64..][..len] == expected, "{name} past the caches: {len} bytes of {count}, {skew}");
            assert!(target[..skew % 64].iter().chain(&target[skew % 64 + len..]).all(|&byte| byte == 0xa5));
        }
    }

    fn compare_terms(len: usize, factors: &[u8], skew: usize) {
        let memory: Vec<Vec<u8>> = (0..).zip(factors).map(|(i, _)| noise(len + skew + i % 3, i as u64 + 1)).collect();
        let sources = memory.iter().enumerate().map(|(i, bytes)| &bytes[skew + i % 3..]);
        let terms: Vec<(&[u8], Factor)> = sources.zip(factors.iter().copied().map(Factor)).collect();
        let expected = oracle_of_terms(len, &terms);
        let mut target = vec![0xa5; len];
        combine_into(&mut target, &terms);
        assert!(target == expected, "{len} bytes times {factors:?}, skewed by {skew}");
        for (name, (_, kernel)) in kernels() {
            let mut target = vec![0xa5; len];
            kernel(&mut target, &terms, 0);
            assert!(target == expected, "{name}: {len} bytes times {factors:?}, skewed by {skew}");
            let mut target = vec![0xa5; len + 64];
            simd::past_caches(&mut target[skew % 64..][..len], |part, offset| kernel(part, &terms, offset));
            assert!(target[skew % 64..][..len] == expected, "{name} past the caches: {len} bytes times {factors:?}");
            assert!(target[..skew % 64].iter().chain(&target[skew % 64 + len..]).all(|&byte| byte == 0xa5));
        }
    }

    #[test]
    fn every_factor_gives_the_definition() {
        for factor in 0..=u8::MAX {
            compare_terms(300, &[factor], 0);
            compare_terms(4097, &[1, factor, 0x8e], 1);
        }
    }

    #[test]
    fn every_count_of_terms_gives_the_definition() {
        for count in 1..=40 {
            let factors: Vec<u8> = (0..count).map(|i: u8| i.wrapping_mul(37) ^ 2).collect();
            for len in [0, 1, 127, 128, 512, 4096, 8192 + 129] {
                compare_terms(len, &factors, 0);
            }
        }
    }

    #[test]
    fn terms_that_no_cache_holds_give_the_definition() {
        compare_terms(PAST_CACHES_MIN_BYTES / 4 + 13, &[1, 2, 4], 3);
    }

    #[test]
    #[should_panic(expected = "as long as its target")]
    fn a_short_term_is_refused() {
        combine_into(&mut [0; 8], &[(&[0; 8], Factor(2)), (&[0; 7], Factor(3))]);
    }

    #[test]
    fn what_no_cache_holds_gives_the_definition() {
        for count in [2, 4, 9] {
            compare(PAST_CACHES_MIN_BYTES / (count + 1) + 13, count, 3);
        }
    }

    #[test]
    fn every_count_of_sources_gives_the_definition() {
        for count in 1..=130 {
            for len in [0, 1, 31, 512, 4096, 4097, 12_800] {
                compare(len, count, 0);
            }
        }
    }

    #[test]
    fn a_chunk_is_its_parity_xored_with_the_others() {
        let chunks: Vec<Vec<u8>> = (0..5).map(|i| noise(8192, 40 + i)).collect();
        let mut parity = vec![0; 8192];
        xor_into(&mut parity, &chunks.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let mut again = vec![0; 8192];
        xor_into(&mut again, &[&chunks[0], &chunks[1], &parity, &chunks[3], &chunks[4]]);
        assert!(again == chunks[2]);
    }

    #[test]
    #[should_panic(expected = "as long as its target")]
    fn a_short_source_is_refused() {
        xor_into(&mut [0; 8], &[&[0; 8], &[0; 7]]);
    }

    #[test]
    #[should_panic(expected = "a XOR has sources")]
    fn no_source_is_refused() {
        xor_into(&mut [0; 8], &[]);
    }

    proptest! {
        #[test]
        fn any_length_count_and_alignment_gives_the_definition(len in 0..9000_usize, count in 1..=64_usize,
            skew in 0..70_usize) {
            compare(len, count, skew);
        }

        #[test]
        fn any_terms_give_the_definition(len in 0..5000_usize, factors in prop::collection::vec(any::<u8>(), 1..40),
            skew in 0..70_usize) {
            compare_terms(len, &factors, skew);
        }
    }
}
