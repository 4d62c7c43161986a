//! Parity: the XOR of any number of equal lengths of bytes in one pass over all of them.
//!
//! One plain function does the work; [`simd`] compiles it for each instruction set and picks one at run time. What no
//! cache holds anyway is written past the caches. The module knows nothing of chunks or parity groups.

mod simd;
mod tiles;

/// Bytes of sources and target from which on the target is written past the caches: more than a core's own caches hold,
/// so that fetching the target's lines only to overwrite them is the larger cost.
const PAST_CACHES_MIN_BYTES: usize = 4 << 20;

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
        simd::past_caches(simd::best(), target, sources);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::tiles::tiled;
    use super::*;

    /// The definition, byte by byte.
    fn oracle(len: usize, sources: &[&[u8]]) -> Vec<u8> {
        (0..len).map(|i| sources.iter().fold(0, |sum, source| sum ^ source[i])).collect()
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
    fn kernels() -> Vec<(&'static str, simd::Kernel)> {
        let base: simd::Kernel = tiled;
        #[cfg(target_arch = "x86_64")]
        let more = [("avx2", simd::with_avx2()), ("avx512", simd::with_avx512())];
        #[cfg(not(target_arch = "x86_64"))]
        let more: [(&str, Option<simd::Kernel>); 0] = [];
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
        for (name, kernel) in kernels() {
            let mut target = vec![0xa5; len];
            kernel(&mut target, &sources, 0);
            assert!(target == expected, "{name}: {len} bytes of {count} sources, skewed by {skew}");
            let mut target = vec![0xa5; len + 64];
            simd::past_caches(kernel, &mut target[skew % 64..][..len], &sources);
            assert!(target[skew % 64..][..len] == expected, "{name} past the caches: {len} bytes of {count}, {skew}");
            assert!(target[..skew % 64].iter().chain(&target[skew % 64 + len..]).all(|&byte| byte == 0xa5));
        }
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
    }
}
