//! Where clients connect to: a Unix socket or a TCP port, made here or by whoever started the process.

use std::{
    fmt, io,
    net::{SocketAddr, TcpListener as StdTcpListener},
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, sockopt},
};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tracing::debug;

use super::{places::Peer, socket::UnixSocket};
use crate::{Error, uri::uri};

/// Room for replies in the kernel: a Unix socket holds back its sender by the sender's own buffer.
const SEND_BUFFER_BYTES: usize = 2 << 20;

/// Where a server can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// An absolute path.
    Unix(PathBuf),
    /// An address and the port in use.
    Tcp(SocketAddr),
}

impl Endpoint {
    /// The URI by which clients find the export here: `nbd+unix:///NAME?socket=PATH` or `nbd://HOST:PORT/NAME`,
    /// percent-encoded.
    pub fn uri(&self, export_name: &str) -> String {
        uri(self, export_name)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// A socket that clients can already connect to.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    endpoint: Endpoint,
}

#[derive(Debug)]
enum Socket {
    Unix(UnixSocket),
    Tcp(TcpListener),
}

/// A new connection.
pub(super) struct Accepted {
    pub(super) stream: Stream,
    pub(super) peer: Peer,
}

pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// The number of its descriptor.
    pub(super) fn descriptor(&self) -> i32 {
        match self {
            Self::Unix(stream) => stream.as_raw_fd(),
            Self::Tcp(stream) => stream.as_raw_fd(),
        }
    }
}

impl Listener {
    /// Listens on a Unix socket that only this user may connect to (mode 0600).
    ///
    /// # Errors
    /// [`Error::SocketInUse`] if a server answers there, [`Error::NotASocket`] if something else is there, and
    /// [`Error::Listen`].
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    pub fn unix(path: &Path) -> Result<Self, Error> {
        let socket = UnixSocket::bind(path)?;
        let endpoint = Endpoint::Unix(socket.path().to_owned());
        Ok(Self { socket: Socket::Unix(socket), endpoint })
    }

    /// Listens on a TCP address. Port 0 lets the system choose.
    ///
    /// # Errors
    /// [`Error::Listen`].
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    pub fn tcp(address: SocketAddr) -> Result<Self, Error> {
        let listen = || Self::of_tcp(StdTcpListener::bind(address)?);
        listen().map_err(|source| Error::Listen { operation: "listen on", endpoint: address.to_string(), source })
    }

    /// Takes over a socket that somebody else has made, and that listens: a Unix or a TCP socket.
    ///
    /// # Errors
    /// [`Error::Listen`] when it is neither, or can't be polled.
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    pub fn inherit(socket: OwnedFd) -> Result<Self, Error> {
        if sockopt::socket_domain(&socket).is_ok_and(|family| family == AddressFamily::UNIX) {
            let socket = UnixSocket::inherit(socket)?;
            let endpoint = Endpoint::Unix(socket.path().to_owned());
            return Ok(Self { socket: Socket::Unix(socket), endpoint });
        }
        let listen = || Self::of_tcp(StdTcpListener::from(socket));
        listen().map_err(|source| Error::Listen { operation: "take over", endpoint: "a socket".to_owned(), source })
    }

    /// Where clients connect to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn of_tcp(listener: StdTcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let endpoint = Endpoint::Tcp(listener.local_addr()?);
        Ok(Self { socket: Socket::Tcp(TcpListener::from_std(listener)?), endpoint })
    }

    /// Waits for a client. Cancel safe.
    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match &self.socket {
            Socket::Unix(socket) => {
                let stream = socket.accept().await?;
                tune(enlarge_send_buffer(&stream));
                let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
                Ok(Accepted { stream: Stream::Unix(stream), peer: Peer::Local(pid) })
            }
            Socket::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                tune(sockopt::set_tcp_nodelay(&stream, true));
                tune(sockopt::set_socket_keepalive(&stream, true)); // a peer that lost its power says no goodbye
                tune(enlarge_send_buffer(&stream));
                Ok(Accepted { stream: Stream::Tcp(stream), peer: Peer::Remote(address) })
            }
        }
    }
}

/// Root may exceed the system's limit; others get as much as it allows.
fn enlarge_send_buffer(stream: &impl AsFd) -> Result<(), Errno> {
    sockopt::set_socket_send_buffer_size_force(stream, SEND_BUFFER_BYTES)
        .or_else(|_| sockopt::set_socket_send_buffer_size(stream, SEND_BUFFER_BYTES))
}

/// A socket that can't be tuned is slower, but serves.
fn tune(result: Result<(), Errno>) {
    if let Err(error) = result {
        debug!(%error, "could not tune a socket");
    }
}
