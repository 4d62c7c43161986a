//! A socket that is connected to a server, and blocks no longer than until a given moment.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown, sockopt};
use tokio_rustls::rustls::{ClientConfig, pki_types::ServerName};

use super::{
    error::Error,
    tunnel::{Far, Tunnel},
    uri::Address,
};
use crate::buffers::enlarge_send_buffer;

/// How long a peer may be silent, with nothing under way, before it is asked whether it is there, and how often it is
/// asked: a connection that is open on one side only is found after 30 s.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEPALIVE_COUNT: u32 = 3;

/// How long the system tries to deliver what was sent. After that the connection has failed, and nothing of it is
/// delivered any more.
pub const DELIVERY_MAX: Duration = Duration::from_secs(25);

/// A connected socket with a deadline for everything that is done with it by [`Read`] and [`Write`].
#[derive(Debug)]
pub struct Socket {
    stream: Stream,
    until: Option<Instant>,
    /// The stream is the near end of it.
    tunnel: Option<FarEnd>,
}

/// What is known of a tunnel's other end.
#[derive(Debug)]
struct FarEnd {
    socket: OwnedFd,
    /// Why the tunnel has ended, if that is known.
    fate: Arc<OnceLock<String>>,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects to a server, the first of a name's addresses that answers. What is found by a name is the system's
    /// affair, and may take as long as it likes.
    ///
    /// # Errors
    /// When there is no such host, or nobody answers until then.
    pub fn connect(address: &Address, until: Instant) -> Result<Self, Error> {
        let failed = |source| Error::Socket { action: "connect to the server", source };
        let stream = match address {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).map_err(failed)?;
                // Without it, it is slower.
                let _ = enlarge_send_buffer(&stream);
                Stream::Unix(stream)
            }
            Address::Tcp(host, port) => {
                let unknown = |source| Error::Resolve { host: host.clone(), source };
                let mut last = io::Error::from(io::ErrorKind::NotFound);
                let connected = (host.as_str(), *port).to_socket_addrs().map_err(unknown)?.find_map(|address| {
                    let attempt = left(Some(until))
                        .and_then(|left| TcpStream::connect_timeout(&address, left.expect("there is a deadline")));
                    attempt.map_err(|error| last = error).ok()
                });
                let stream = connected.ok_or_else(|| failed(last))?;
                watch(&stream).map_err(|errno| failed(errno.into()))?;
                Stream::Tcp(stream)
            }
        };
        Ok(Self { stream, until: Some(until), tunnel: None })
    }

    /// Has everything from here on encrypted, by a thread of its own.
    ///
    /// # Errors
    /// When the server does not agree, does not prove itself, or does not answer by the deadline.
    pub(super) fn encrypted(self, config: Arc<ClientConfig>, server: ServerName<'static>) -> Result<Self, Error> {
        let failed = |source| Error::Socket { action: "encrypt a connection", source };
        let (near, other_end) = UnixStream::pair().map_err(failed)?;
        let _ = enlarge_send_buffer(&near);
        let (until, fate) = (self.until, Arc::new(OnceLock::new()));
        let socket = self.as_fd().try_clone_to_owned().map_err(failed)?;
        let far = match self.stream {
            Stream::Tcp(stream) => Far::Tcp(stream),
            Stream::Unix(stream) => Far::Unix(stream),
        };
        let tunnel = Tunnel { far, near: other_end, config, server, until, fate: Arc::clone(&fate) };
        let (tells, established) = channel();
        thread::Builder::new().name("tls".into()).spawn(move || tunnel.run(&tells)).map_err(failed)?;
        established.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into())).map_err(not_established)?;
        Ok(Self { stream: Stream::Unix(near), until, tunnel: Some(FarEnd { socket, fate }) })
    }

    /// Ends the connection at once: what was written to it and has not been sent never is, once it is closed.
    ///
    /// # Errors
    /// When it has ended before.
    pub fn abort(&self) -> io::Result<()> {
        let far = self.tunnel.as_ref().map_or(self.as_fd(), |tunnel| tunnel.socket.as_fd());
        // Where the network comes back later, nothing of it goes out: this end forgets what it has not sent, and says
        // so (RST).
        let aborted =
            sockopt::set_socket_linger(far, Some(Duration::ZERO)).and_then(|()| shutdown(far, Shutdown::Both));
        if self.tunnel.is_some() {
            shutdown(self.as_fd(), Shutdown::Both)?;
        }
        Ok(aborted?)
    }

    /// Reads and writes end at this moment at the latest; with none they last.
    pub fn set_deadline(&mut self, until: Option<Instant>) {
        self.until = until;
    }
}

/// Has small requests sent at once, and a peer that has gone without a word noticed.
fn watch(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT)?;
    sockopt::set_tcp_user_timeout(stream, u32::try_from(DELIVERY_MAX.as_millis()).unwrap_or(u32::MAX))
}

/// How long until then; none: for ever.
fn left(until: Option<Instant>) -> io::Result<Option<Duration>> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    if left.is_some_and(|left| left.is_zero()) { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Why there is no TLS: the network's fault, or that of one of both sides.
fn not_established(source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::Other | io::ErrorKind::InvalidInput => Error::Tls { source },
        io::ErrorKind::UnexpectedEof => Error::UnexpectedEnd,
        _ => Error::Socket { action: "agree on TLS with the server", source },
    }
}

/// A timeout of the socket's is the deadline.
fn late(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = left(self.until)?;
        let read = match &mut self.stream {
            Stream::Tcp(stream) => stream.set_read_timeout(left).and_then(|()| stream.read(buffer)),
            Stream::Unix(stream) => stream.set_read_timeout(left).and_then(|()| stream.read(buffer)),
        };
        match (read, self.tunnel.as_ref().and_then(|tunnel| tunnel.fate.get())) {
            (Ok(0), Some(fate)) => Err(io::Error::other(fate.clone())),
            (read, _) => read.map_err(late),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = left(self.until)?;
        let written = match &mut self.stream {
            Stream::Tcp(stream) => stream.set_write_timeout(left).and_then(|()| stream.write(bytes)),
            Stream::Unix(stream) => stream.set_write_timeout(left).and_then(|()| stream.write(bytes)),
        };
        written.map_err(late)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.stream {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl From<Socket> for OwnedFd {
    /// The descriptor, without a deadline.
    fn from(socket: Socket) -> Self {
        match socket.stream {
            Stream::Tcp(stream) => stream.into(),
            Stream::Unix(stream) => stream.into(),
        }
    }
}
