//! The members of one array as one asynchronous device.
//!
//! The engine submits operations and reaps completions; it never learns whether the members are files behind io_uring
//! or images in memory. The contract:
//! - [`Disk::submit`] neither blocks nor fails: what goes wrong comes back as that operation's [`Completion`].
//! - Every operation completes exactly once, in any order. Operations in flight are unordered among each other: to
//!   flush a write, wait for the write's completion before submitting the flush.
//! - An operation owns its memory until its completion, which drops the leases.
//! - A completed read or write is whole: short transfers are continued inside, and what can't be continued is an error.
//!   After an error, any part of a write may have reached the member.
//!
//! Log devices have places beyond those of members: see [`log_place`]. No [`MemberSet`] has them.
//!
//! A disk knows nothing of chunks, stripes or parity.

mod deadline;
mod image;
pub mod laggards;
mod latency;
mod mem;
mod operation;
mod place;
pub mod tails;
mod uring;

use std::time::Duration;

use uraid_layout::{MemberIndex, MemberSet};

use crate::error::Error;

pub(crate) use deadline::{Deadline, Entries, Late, OpId};
pub use image::Image;
pub use latency::Latencies;
pub use mem::{Counters, Fault, MemDisk, Order};
pub(crate) use operation::SEGMENTS_MAX;
pub use operation::{Completion, DiskError, DiskOp, OpInfo, OpKind, OpName, Segments};
pub(crate) use place::PLACES;
pub use place::{log_at, log_place, places};
pub use uring::UringDisk;
pub(crate) use uring::{Claim, DEFAULT_DEPTH};

/// The members of one array as one asynchronous device; see the module's contract.
pub trait Disk {
    /// Takes an operation; it may wait inside until [`Disk::kick`].
    ///
    /// # Panics
    /// When the segments don't suit the kind: a read needs leases to write, a write leases to read, neither is empty or
    /// has more than 1024, and zeroing and flushing have none.
    fn submit(&mut self, op: DiskOp);

    /// Sends everything submitted since the last kick to the device in one batch. Some of it may have completed by
    /// then: reap before waiting for anything else.
    ///
    /// # Errors
    /// When the device as a whole is broken; operations already in flight may never complete.
    fn kick(&mut self) -> Result<(), Error>;

    /// Appends the operations that have completed; never blocks.
    fn reap(&mut self, completions: &mut Vec<Completion>);

    /// Kicks, then blocks until [`Disk::reap`] has something to return, a signal arrives, or nothing is in flight.
    ///
    /// # Errors
    /// As [`Disk::kick`].
    fn wait(&mut self) -> Result<(), Error>;

    /// As [`Disk::wait`], but no longer than `time`, where the disk's operations take time of their own.
    ///
    /// # Errors
    /// As [`Disk::kick`].
    fn wait_at_most(&mut self, time: Duration) -> Result<(), Error> {
        let _ = time;
        self.wait()
    }

    /// The members, this one among them, that whatever stops this one is likely to stop, too.
    fn kin(&self, member: MemberIndex) -> MemberSet {
        MemberSet::EMPTY.with(member)
    }

    /// Members with writes that wait until there is room on their file systems.
    fn roomless(&self) -> MemberSet {
        MemberSet::EMPTY
    }

    /// Whether there are members on a network.
    fn has_exports(&self) -> bool {
        false
    }

    /// Notes that time has passed: operations that wait for it go on with the next kick.
    fn tick(&mut self) {}

    /// Whether operations wait for time to pass.
    fn wants_ticks(&self) -> bool {
        false
    }

    /// Notes that nobody waits any more for the operations with this tag. They complete as ever, some of them sooner.
    fn abandon(&mut self, tag: u64) {
        let _ = tag;
    }

    /// How many operations were submitted and not yet reaped.
    fn in_flight(&self) -> usize;

    /// Lets the members at two seats change places. Nothing is in flight on either but what was abandoned.
    ///
    /// # Panics
    /// When there is no such seat. This one always: a disk whose members are not replaced has nothing to do here.
    fn exchange(&mut self, one: MemberIndex, other: MemberIndex) {
        panic!("members {one} and {other} keep their places on this disk");
    }
}

#[cfg(test)]
mod tests;
