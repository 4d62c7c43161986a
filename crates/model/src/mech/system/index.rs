//! How many there are of anything in a system.

pub(super) fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("a system has fewer than 2^32 of anything")
}
