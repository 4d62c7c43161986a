//! The crate's errors: what ends a connection or a server ([`Error`]), and what a reply tells the client
//! ([`NbdError`]).

use std::{io, path::PathBuf, time::Duration};

/// Why a connection, or the server, can't go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The client answered the greeting with flags that were not offered.
    #[error(
        "the client set handshake flags {flags:#x}, of which some were not offered: it is not an NBD client, or a \
         newer one"
    )]
    ClientFlags {
        /// What the client sent.
        flags: u32,
    },
    /// An option did not start with the option magic.
    #[error("expected an option and got {found:#018x}: the peer does not speak NBD")]
    OptionMagic {
        /// What was there instead.
        found: u64,
    },
    /// The client sent too many options.
    #[error("the client sent more than {limit} options: disconnected")]
    TooManyOptions {
        /// The most options that a handshake may have.
        limit: u32,
    },
    /// An option's data is larger than a server need skip.
    #[error("option {option} declares {length_bytes} bytes of data: disconnected")]
    OptionTooLarge {
        /// The option's number.
        option: u32,
        /// Its declared length.
        length_bytes: u32,
    },
    /// `NBD_OPT_EXPORT_NAME` named an export that this server doesn't have, and the option has no error reply.
    #[error("the client asked for the export {name:?}, which is not served here")]
    UnknownExport {
        /// The name, made printable.
        name: String,
    },
    /// The client can't be served without TLS, and said something that has no error reply.
    #[error("the client does not use TLS, which this server requires")]
    TlsRequired,
    /// Bytes in the clear followed `NBD_OPT_STARTTLS`.
    #[error(
        "something in the clear follows the request for TLS: somebody tampers with the connection, or the client is \
         broken"
    )]
    PlainAfterStartTls,
    /// The client and the server did not agree on TLS, or the client did not prove itself.
    #[error("TLS was not established: {source}")]
    Tls {
        /// What the TLS library says.
        source: io::Error,
    },
    /// A request did not start with the request magic, so the stream can't be followed any more.
    #[error("expected a request and got {found:#010x}: the stream is out of step")]
    RequestMagic {
        /// What was there instead.
        found: u32,
    },
    /// A request declares more data than a server need swallow.
    #[error("a request declares {length_bytes} bytes of data: disconnected")]
    PayloadTooLarge {
        /// Its declared length.
        length_bytes: u64,
    },
    /// The client closed its side in the middle of a message.
    #[error("the client went away in the middle of a message")]
    UnexpectedEnd,
    /// A client was taken over from another server, which told it other things of the export.
    #[error("the export is not what the client was told by the server that it comes from: disconnected")]
    ExportChanged,
    /// The handshake did not end in time.
    #[error("the client did not finish the handshake within {limit:?}")]
    HandshakeTimeout {
        /// The time allowed.
        limit: Duration,
    },
    /// The client did nothing.
    #[error("the client sent nothing, and took no replies, within {limit:?}: disconnected")]
    Idle {
        /// The time allowed.
        limit: Duration,
    },
    /// The client held memory that others were waiting for, and made no progress.
    #[error(
        "the client read no replies, or did not send the data that it had announced, while other clients waited for \
         memory, or for the end of its connection: disconnected"
    )]
    Stuck,
    /// There is no memory for a connection.
    #[error("there is no memory left for another client: disconnected")]
    NoMemory,
    /// A connected socket failed.
    #[error("{operation} failed: {source}")]
    Connection {
        /// What was being done.
        operation: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A listening socket could not be opened.
    #[error("can't {operation} {endpoint}: {source}")]
    Listen {
        /// What was being done.
        operation: &'static str,
        /// The path or address.
        endpoint: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Another server answers on the socket.
    #[error("{} is in use by a running server: stop that one, or choose another socket", path.display())]
    SocketInUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// Another export of the same listeners has the name.
    #[error("another export of the same sockets has the name '{name}': give one of them another name")]
    ExportNameTaken {
        /// The name.
        name: String,
    },
    /// Another process holds the lock of the socket's directory.
    #[error(
        "can't make {}: another process keeps its directory locked, which servers do for a moment while they make a \
         socket. End that process, or choose another directory",
        path.display()
    )]
    DirectoryLocked {
        /// The socket's path.
        path: PathBuf,
    },
    /// The socket's path names something that is not a socket.
    #[error("{} exists and is not a socket: move it away, or choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The protocol can't express how the export describes itself.
    #[error("the export can't be served: {reason}")]
    InvalidExport {
        /// The rule that is broken.
        reason: &'static str,
    },
}

#[cfg(feature = "server")]
impl Error {
    /// Whether the end of a connection tells an administrator something: of certificates, of somebody who tampers, of
    /// memory.
    pub(crate) fn is_notable(&self) -> bool {
        matches!(self, Self::Tls { .. } | Self::PlainAfterStartTls | Self::Stuck | Self::NoMemory)
    }
}

/// The error values that a reply may carry. Source: the protocol document, "Error values".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u32)]
pub enum NbdError {
    /// Operation not permitted, such as a write to a read-only export.
    #[error("operation not permitted")]
    NotPermitted = 1,
    /// Input/output error.
    #[error("input/output error")]
    Io = 5,
    /// Out of memory.
    #[error("out of memory")]
    NoMemory = 12,
    /// The request breaks a rule of the protocol or of this export.
    #[error("invalid request")]
    Invalid = 22,
    /// A write beyond the end of the export, or no room for it.
    #[error("no space left")]
    NoSpace = 28,
    /// The reply would be too large.
    #[error("value too large")]
    Overflow = 75,
    /// A fast zeroing that would not be fast.
    #[error("not supported")]
    NotSupported = 95,
    /// The server is shutting down.
    #[error("the server is shutting down")]
    Shutdown = 108,
}

impl NbdError {
    /// The value on the wire.
    pub fn code(self) -> u32 {
        self as u32
    }
}
