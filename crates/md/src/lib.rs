//! Reads arrays of Linux md from images and block devices: without the kernel, without root, and without writing.
//!
//! [`scan()`] finds members in files, devices and their partitions. [`assemble()`] judges the members of each array as
//! mdadm does, and says of each why it is used or left out. [`Array::read`] reads content, and computes what missing
//! members and bad blocks had.
//!
//! Whatever the bytes on a disk are, nothing here panics, and nothing makes up content: what can't be read or computed
//! is an error. The crate opens nothing for writing, and knows neither NBD nor an executor.
#![forbid(unsafe_code)]

mod assemble;
mod bytes;
pub mod geometry;
mod partitions;
mod reader;
mod scan;
mod source;
pub mod superblock;

pub use assemble::{AssembleError, Assembly, Judged, LeftOut, Options, Standing, assemble};
pub use partitions::{Partition, PartitionError, partitions};
pub use reader::{Array, ReadError};
pub use scan::{Found, Scan, Trouble, TroubleReason, scan};
pub use source::{FileSource, OpenError, Source, Window};
