//! Listening sockets.
//!
//! A Unix socket is nobody else's from the moment it exists, replaces the leavings of a dead server but never a live one, and is removed at the
//! end if it is still the same file.

use std::{
    fmt, fs, io,
    net::{SocketAddr, TcpListener as StdTcpListener},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::{Path, PathBuf, absolute},
};

use rustix::{
    fs::{FileType, FlockOperation, Mode, OFlags},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt},
};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tracing::{debug, warn};

use crate::{Error, uri::uri};

/// Room for replies in the kernel: a Unix socket holds back its sender by the sender's own buffer.
const SEND_BUFFER_BYTES: usize = 2 << 20;
const BACKLOG: i32 = 128;

/// Where a server can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// An absolute path.
    Unix(PathBuf),
    /// An address and the port in use.
    Tcp(SocketAddr),
}

impl Endpoint {
    /// The URI by which clients find the export here: `nbd+unix:///NAME?socket=PATH` or `nbd://HOST:PORT/NAME`, percent-encoded.
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
    Unix { listener: UnixListener, identity: FileIdentity },
    Tcp(TcpListener),
}

/// A new connection.
pub(super) enum Accepted {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Listener {
    /// Listens on a Unix socket that only this user may connect to (mode 0600).
    ///
    /// # Errors
    /// [`Error::SocketInUse`] if a server answers there, [`Error::NotASocket`] if something else is there, and [`Error::Listen`].
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    pub fn unix(path: &Path) -> Result<Self, Error> {
        let failed = |operation| {
            let endpoint = path.display().to_string();
            move |errno: Errno| Error::Listen { operation, endpoint, source: errno.into() }
        };
        let path = absolute(path).map_err(|source| Error::Listen {
            operation: "find",
            endpoint: path.display().to_string(),
            source,
        })?;
        let address = SocketAddrUnix::new(&path).map_err(failed("name a socket"))?;
        // Two servers must not both find the same dead socket and then remove each other's new one.
        let directory = path.parent().unwrap_or(Path::new("/"));
        let directory =
            rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(failed("open the directory of"))?;
        rustix::fs::flock(&directory, FlockOperation::LockExclusive).map_err(failed("lock the directory of"))?;
        remove_stale(&path, &address)?;
        let socket = unix_socket().map_err(failed("create the socket"))?;
        // On Linux the file inherits the socket's own mode, so that it is never open to others, whatever the umask.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed("restrict"))?;
        rustix::net::bind(&socket, &address).map_err(failed("create"))?;
        let identity = FileIdentity::of(&path).map_err(|source| Error::Listen {
            operation: "find the new",
            endpoint: path.display().to_string(),
            source,
        })?;
        rustix::net::listen(&socket, BACKLOG).map_err(failed("listen on"))?;
        let listener = UnixListener::from_std(socket.into()).map_err(|source| Error::Listen {
            operation: "poll",
            endpoint: path.display().to_string(),
            source,
        })?;
        Ok(Self { socket: Socket::Unix { listener, identity }, endpoint: Endpoint::Unix(path) })
    }

    /// Listens on a TCP address. Port 0 lets the system choose.
    ///
    /// # Errors
    /// [`Error::Listen`].
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    pub fn tcp(address: SocketAddr) -> Result<Self, Error> {
        let listen = || {
            let listener = StdTcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let endpoint = Endpoint::Tcp(listener.local_addr()?);
            Ok(Self { socket: Socket::Tcp(TcpListener::from_std(listener)?), endpoint })
        };
        listen().map_err(|source| Error::Listen { operation: "listen on", endpoint: address.to_string(), source })
    }

    /// Where clients connect to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Waits for a client. Cancel safe.
    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match &self.socket {
            Socket::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                tune(enlarge_send_buffer(&stream));
                Ok(Accepted::Unix(stream))
            }
            Socket::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                tune(sockopt::set_tcp_nodelay(&stream, true));
                tune(sockopt::set_socket_keepalive(&stream, true)); // a peer that lost its power says no goodbye
                tune(enlarge_send_buffer(&stream));
                Ok(Accepted::Tcp(stream))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let (Socket::Unix { identity, .. }, Endpoint::Unix(path)) = (&self.socket, &self.endpoint) else { return };
        if FileIdentity::of(path).is_ok_and(|now| now == *identity)
            && let Err(error) = fs::remove_file(path)
        {
            warn!(path = %path.display(), %error, "could not remove the socket");
        }
    }
}

/// Tells a file from another that took its name.
#[derive(Debug, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(path)?;
        Ok(Self { device: metadata.dev(), inode: metadata.ino() })
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

fn unix_socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

/// Makes way for a new socket, if what is there is one that nobody listens on.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), Error> {
    let failed = |operation| move |source| Error::Listen { operation, endpoint: path.display().to_string(), source };
    let stat = match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        stat => stat.map_err(io::Error::from).map_err(failed("examine"))?,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(Error::NotASocket { path: path.to_owned() });
    }
    let probe = unix_socket().map_err(io::Error::from).map_err(failed("create a socket to probe"))?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => {
            debug!(path = %path.display(), "removing the socket of a server that is gone");
            fs::remove_file(path).map_err(failed("remove the stale socket"))
        }
        // A full backlog means a server, too.
        Ok(()) | Err(Errno::AGAIN) => Err(Error::SocketInUse { path: path.to_owned() }),
        Err(errno) => Err(failed("probe")(errno.into())),
    }
}
