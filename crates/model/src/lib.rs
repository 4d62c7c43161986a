//! Models of disk arrays, for whoever chooses their shape: nothing is run, only priced.
//!
//! [`mech`] prices the engine's own plans on mechanical disks, [`workloads`] names what is asked of them, [`advise`]
//! chooses a chunk size, [`papers`] computes the papers' results again, [`reliability`] has the mean time to data loss,
//! and [`figure`] draws. A result is a function of its arguments: no clock, and no randomness but from a seed.
//!
//! Deliberately unknown: whether the engine does what it plans; what breaks it is in `uraid-sim`.

pub mod advise;
pub mod figure;
pub mod input;
pub mod mech;
pub mod papers;
pub mod reliability;
pub mod workloads;
