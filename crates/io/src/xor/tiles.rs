//! The XOR loop, in plain code: in pieces of the target that stay in the first-level cache, and of few sources.

/// Bytes of the target that stay in the first-level cache while more than [`FUSED_MAX`] sources are added up.
const TILE_BYTES: usize = 4096;

/// Sources that one loop takes: as many pointers as registers hold.
pub(super) const FUSED_MAX: usize = 8;

/// The work, to be compiled for each instruction set: `target` becomes the XOR of the sources from `offset` on. The
/// arguments are checked. Inlined, as only then does it take on the instruction set of its caller.
#[inline(always)]
pub(super) fn tiled(target: &mut [u8], sources: &[&[u8]], offset: usize) {
    if sources.len() <= FUSED_MAX {
        return fused(target, sources, false, offset);
    }
    for (tile, bytes) in target.chunks_mut(TILE_BYTES).enumerate() {
        for (pass, part) in sources.chunks(FUSED_MAX).enumerate() {
            fused(bytes, part, pass > 0, offset + tile * TILE_BYTES);
        }
    }
}

/// `target` becomes, or with `add` is XORed with, the XOR of the sources from `offset` on.
#[inline(always)]
fn fused(target: &mut [u8], sources: &[&[u8]], add: bool, offset: usize) {
    macro_rules! of {
        ($($name:ident),+) => {{
            let [$($name),+] = *sources else { unreachable!("the number of sources was matched") };
            $(let $name = &$name[offset..offset + target.len()];)+
            if add {
                for i in 0..target.len() {
                    target[i] ^= 0 $(^ $name[i])+;
                }
            } else {
                for i in 0..target.len() {
                    target[i] = 0 $(^ $name[i])+;
                }
            }
        }};
    }
    match sources.len() {
        1 => of!(a),
        2 => of!(a, b),
        3 => of!(a, b, c),
        4 => of!(a, b, c, d),
        5 => of!(a, b, c, d, e),
        6 => of!(a, b, c, d, e, f),
        7 => of!(a, b, c, d, e, f, g),
        FUSED_MAX => of!(a, b, c, d, e, f, g, h),
        _ => unreachable!("sources come in parts of at most {FUSED_MAX}"),
    }
}
