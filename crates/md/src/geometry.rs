//! Where each sector of an array is: linear, and levels 0, 1, 4, 5, 6 and 10 in all of their layouts.
//!
//! The formulas are those of Linux (`drivers/md`), quirks included. They know no disks: a [`Geometry`] is made of a
//! [`Shape`], and answers with numbers.

mod copies;
mod map;
mod parity;
mod place;
mod zones;

pub use map::{Geometry, Shape};
pub use place::{GeometryError, Located, Place, Slot, Stripe};
pub use zones::ZoneOrder;
