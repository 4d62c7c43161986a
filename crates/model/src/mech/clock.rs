//! Time in a run, which passes only as events do.

/// Virtual time since a run began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);
