//! Background work: what goes on by itself, a file each.

pub(super) mod ahead;
pub(super) mod copy;
pub(super) mod rebuild;
pub(super) mod scrub;
