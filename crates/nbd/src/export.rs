//! What the server needs from the thing it serves.
//!
//! An [`Export`] lives on one thread with its connections: nothing here is `Send`. Commands reach it already checked
//! against its
//! [`ExportInfo`]: inside the export, aligned, not empty, not larger than the maximum, and no write if it is read-only.

use crate::{Command, ExportInfo, ReplySlot};

/// Something that a server can serve.
pub trait Export: 'static {
    /// The memory of one read's or write's data; its slices are exactly as long as was asked of [`Export::buffer`].
    type Buffer: AsRef<[u8]> + AsMut<[u8]>;

    /// What clients are told about the export. It must not change while the server runs.
    fn info(&self) -> ExportInfo;

    /// Memory for the data of one request, or `None` when there is no more: the request is answered with
    /// [`crate::NbdError::NoMemory`]. `length_bytes` is at most the export's maximum, and all that clients hold at a
    /// time is within [`crate::Limits::bytes_in_flight_all_max`].
    fn buffer(&self, length_bytes: u32) -> Option<Self::Buffer>;

    /// Starts a command. The slot is answered once: at any later time, in any order, or before this returns.
    /// The connection may be gone by then, which the slot takes care of.
    fn submit(&self, command: Command<Self::Buffer>, reply: ReplySlot<Self::Buffer>);

    /// Called once after the commands that one turn of a connection submitted.
    fn kick(&self);
}
