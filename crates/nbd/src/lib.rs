//! The Network Block Device protocol: serves an export over it, and uses those of others.
//!
//! The codec ([`handshake`] and [`transmission`] for servers, [`client`] for clients) is plain state machines: bytes
//! in, bytes and decisions out, no socket, no clock and no task. The [`server`] puts tokio sockets around it and hands
//! the commands to an [`Export`]. Without the feature `server`, which is on unless somebody leaves it out, there is the
//! client alone, for which tokio carries what TLS encrypts.
//!
//! Invariants:
//! - every length that a peer declares is checked before anything is allocated or awaited on its account;
//! - a rejected request costs the client an error reply, never the connection, as long as the byte stream still makes
//!   sense;
//! - what one connection does (garbage, silence, unread replies, sudden death) is never seen by another;
//! - a command's buffer is owned by the command until its reply is sent, so a connection may vanish at any moment.
//!
//! The crate knows nothing of arrays, members or disks.

mod buffers;
mod certificates;
pub mod client;
mod command;
mod error;
mod escaped;
#[cfg(feature = "server")]
mod export;
#[cfg(feature = "server")]
mod handshake;
mod headers;
mod info;
mod partial;
#[cfg_attr(not(feature = "server"), expect(dead_code, reason = "only a server says some of it"))]
mod proto;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "server")]
pub mod transmission;

pub use certificates::TlsError;
pub use command::{Command, Extent, Payload, Span};
pub use error::{Error, NbdError};
#[cfg(feature = "server")]
pub use export::Export;
pub use headers::Headers;
pub use info::{BlockSizes, ExportInfo};
#[cfg(feature = "server")]
pub use server::{
    Connections, Dispatcher, Drain, Ending, Endpoint, Fingerprint, FingerprintError, Incoming, Limits, Listener,
    Parting, RateLimits, Rates, Reception, ReplySlot, RequestMemory, Scheme, Served, Server, SharedExports, SocketFile,
    Tls, TlsClients, UnixSocket, descriptors_needed, when_woken,
};
