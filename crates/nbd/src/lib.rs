//! Serves an export over the Network Block Device protocol.
//!
//! The crate has two halves. The codec ([`handshake`], [`transmission`]) is plain state machines: bytes in, bytes and
//! decisions out, no socket, no clock and no task. The [`server`] puts tokio sockets around it and hands the commands
//! to an [`Export`].
//!
//! Invariants:
//! - every length that a peer declares is checked before anything is allocated or awaited on its account;
//! - a rejected request costs the client an error reply, never the connection, as long as the byte stream still makes
//!   sense;
//! - what one connection does (garbage, silence, unread replies, sudden death) is never seen by another;
//! - a command's buffer is owned by the command until its reply is sent, so a connection may vanish at any moment.
//!
//! The crate knows nothing of arrays, members or disks.

mod command;
mod error;
mod export;
mod handshake;
mod info;
mod proto;
mod server;
pub mod transmission;

pub use command::{Command, Extent, Payload, Span};
pub use error::{Error, NbdError};
pub use export::Export;
pub use info::{BlockSizes, ExportInfo};
pub use server::{
    Connections, Dispatcher, Drain, Ending, Endpoint, Fingerprint, FingerprintError, Incoming, Limits, Listener,
    Parting, RateLimits, Rates, Reception, ReplySlot, RequestMemory, Scheme, Served, Server, SharedExports, SocketFile,
    Tls, TlsClients, TlsError, UnixSocket, descriptors_needed,
};
