//! Tests of the public interface: layouts against tables made by hand, whole arrays against images that are written
//! from the format's description.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod arrays;
mod image;
mod judging;
mod layouts;
mod partitions;
mod superblocks;
mod unique;
