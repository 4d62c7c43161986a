//! Where every block of an array lives, and what must be done to read, write or recover it.
//!
//! The crate is pure: no I/O, no clock, no unsafe, no `std`. It turns a [`Geometry`] and a request into a
//! [`Plan`](plan::Plan): reads, XORs and writes over numbered buffers, which the engine runs on real members,
//! `plan::interpret` runs on arrays of bytes in tests, and a simulator can price.
//!
//! One language serves every level. A *parity stripe* is the smallest set of whole stripes that is closed under its
//! parity groups; its N x rows chunks are *cells*; a *parity group* is a set of cells whose XOR is zero, each cell
//! times its factor in GF(2^8), which is 1 but for RAID 6's Q. A mirror copy is a parity unit that covers one data
//! unit. Nothing outside [`geometry`] asks which level it is.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod draw;
pub mod field;
pub mod geometry;
pub mod plan;
pub mod repair;
pub mod reshape;
pub mod stripe;
mod units;
pub mod verdict;

pub use geometry::{Geometry, GeometryError, Level, Location, Owner, Placement, Rotation, Spec};
pub use units::{
    Bytes, Cell, DataUnit, DiskSector, GroupId, Lba, MemberIndex, MemberSet, SECTOR_BYTES, Sectors, StripeId, Stripes,
};
