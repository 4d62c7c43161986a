//! ISA-L's `xor_gen` over slices, where the library was installed when this was built. Knows nothing of measuring.
#![expect(unsafe_code, reason = "a C library is called to be measured beside ours")]

use std::ffi::{c_int, c_void};

/// Most sources of one call.
const SOURCES_MAX: usize = 8;
/// What `xor_gen` asks of every pointer.
const ALIGNMENT: usize = 32;

#[link(name = "isal")]
unsafe extern "C" {
    /// Writes the XOR of the first `vects - 1` vectors to the last one; each has `len` bytes. 0 is success.
    fn xor_gen(vects: c_int, len: c_int, array: *mut *mut c_void) -> c_int;
}

/// Overwrites `target` with the XOR of `sources`.
///
/// # Panics
/// When there are fewer than 2 or more than 8 sources, a length differs, a slice is not aligned to 32 bytes, or the
/// library refuses.
pub(crate) fn xor_into(target: &mut [u8], sources: &[&[u8]]) {
    let len = target.len();
    assert!((2..=SOURCES_MAX).contains(&sources.len()), "{} sources", sources.len());
    assert!(sources.iter().all(|source| source.len() == len), "sources are as long as the target");
    let mut vectors = [std::ptr::null_mut(); SOURCES_MAX + 1];
    for (vector, source) in vectors.iter_mut().zip(sources) {
        *vector = source.as_ptr().cast::<c_void>().cast_mut();
    }
    vectors[sources.len()] = target.as_mut_ptr().cast();
    let vectors = &mut vectors[..=sources.len()];
    assert!(vectors.iter().all(|vector| vector.cast::<u8>().align_offset(ALIGNMENT) == 0), "vectors are aligned");
    let count = c_int::try_from(vectors.len()).expect("a few vectors");
    let len = c_int::try_from(len).expect("a buffer is shorter than 2 GiB");
    // SAFETY: the vectors are `count` pointers to `len` bytes each, aligned as the library asks. It reads all but the
    // last, which is `target`, borrowed mutably, and so no source overlaps it.
    let refused = unsafe { xor_gen(count, len, vectors.as_mut_ptr()) };
    assert_eq!(refused, 0, "xor_gen refused its arguments");
}
