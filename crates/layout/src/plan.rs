//! Plans as data: the reads, XORs and writes that a request takes, over numbered buffers.
//!
//! A plan has three phases, and each ends before the next begins: all reads, then all XORs in order, then all writes.
//! A redo log fits between the last two.

mod check;
mod interpret;
mod output;
mod planner;
mod steps;
mod stripe;
mod view;

pub use check::{Flaw, Request, check};
pub use interpret::interpret;
pub use planner::{PlanError, Planner};
pub use steps::{Buffer, Difference, DiskIo, Extent, Method, MethodCounts, Operand, Plan, Recovered, Slice, Xor};
pub use view::{Cached, Queue, View};
