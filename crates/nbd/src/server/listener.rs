//! Where clients connect to: Unix sockets and TCP ports, made here or by whoever started the process, or an export's
//! place among those that share some.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    io,
    net::{SocketAddr, TcpListener as StdTcpListener},
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    path::Path,
    task::{Context, Poll},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, sockopt},
};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tracing::{debug, warn};

use super::{
    certificates::Fingerprint,
    client::InTransit,
    endpoint::Endpoint,
    parting::{Arrived, Parting},
    peer::Peer,
    refusals::Refusal,
    shared::{Introduced, Place, SharedExports},
    socket::{SocketFile, UnixSocket},
};
use crate::{Error, ExportInfo, buffers::enlarge_send_buffer};

/// Sockets that clients can already connect to: at least one.
#[derive(Debug)]
pub struct Listener {
    sockets: Vec<Socket>,
    /// Of each socket but the clients of a server that has ended.
    endpoints: Vec<Endpoint>,
    /// Whose turn it is: a socket that always has a client must not keep out the others' clients.
    next: Cell<usize>,
    /// Who may connect to Unix sockets beside root and this process's user; none: the files' modes say it all.
    guests: Option<Vec<u32>>,
}

#[derive(Debug)]
enum Socket {
    Unix(UnixSocket),
    Tcp(TcpListener),
    Shared(Place),
    /// Those of a server that has ended.
    Clients(RefCell<VecDeque<Introduced>>),
}

/// A new connection.
pub(super) struct Accepted {
    pub(super) arrival: Arrival,
    pub(super) peer: Peer,
    /// Why it may not stay.
    pub(super) refusal: Option<Refusal>,
}

/// Whoever is at the other end: one that has yet to shake hands, or a client that a reception sends.
pub(super) enum Arrival {
    Unix(UnixStream),
    Tcp(TcpStream),
    Client(InTransit),
}

impl Arrival {
    /// The number of a new descriptor.
    pub(super) fn descriptor(&self) -> Option<i32> {
        match self {
            Self::Unix(stream) => Some(stream.as_raw_fd()),
            Self::Tcp(stream) => Some(stream.as_raw_fd()),
            Self::Client(_) => None,
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
        Ok(Self::of_unix(UnixSocket::bind(path)?))
    }

    /// Listens on TCP addresses, all of them but those that this machine does not have: a name may stand for such ones,
    /// too. Port 0 lets the system choose one for the first address, which is then that of the others with port 0.
    ///
    /// # Errors
    /// [`Error::Listen`] if the machine has none of the addresses, or one of them can't be listened on.
    ///
    /// # Panics
    /// If called outside of a tokio runtime, or with no address.
    pub fn tcp(addresses: &[SocketAddr]) -> Result<Self, Error> {
        assert!(!addresses.is_empty(), "a server listens somewhere");
        let mut sockets: Vec<StdTcpListener> = Vec::new();
        let mut strange = None;
        for &(mut address) in addresses {
            let first = sockets.first().and_then(|first| first.local_addr().ok());
            if let Some(first) = first.filter(|_| address.port() == 0) {
                address.set_port(first.port());
            }
            let failed = |source| Error::Listen { operation: "listen on", endpoint: address.to_string(), source };
            match StdTcpListener::bind(address) {
                Ok(socket) => sockets.push(socket),
                Err(source) if addresses.len() > 1 && is_strange(&source) => {
                    warn!(%address, "this machine does not have the address: it is not listened on");
                    strange = Some(failed(source));
                }
                Err(source) => return Err(failed(source)),
            }
        }
        match strange {
            Some(error) if sockets.is_empty() => Err(error),
            _ => Self::of_tcp(sockets).map_err(|source| Error::Listen {
                operation: "listen on",
                endpoint: addresses[0].to_string(),
                source,
            }),
        }
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
            return Ok(Self::of_unix(UnixSocket::inherit(socket)?));
        }
        let listen = || Self::of_tcp(vec![StdTcpListener::from(socket)]);
        listen().map_err(|source| Error::Listen { operation: "take over", endpoint: "a socket".to_owned(), source })
    }

    /// Takes over sockets and clients of a server that has ended. Clients that are gone meanwhile are left out.
    ///
    /// # Errors
    /// [`Error::Listen`] if something else was handed over, or a socket can't be polled; as [`Listener::unix`] where a
    /// socket's file was removed.
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    pub fn take_over(partings: Vec<Parting>) -> Result<Self, Error> {
        let failed = |source| Error::Listen { operation: "take over", endpoint: "a socket".to_owned(), source };
        let (mut listeners, mut clients) = (Vec::new(), VecDeque::new());
        for parting in partings {
            let is_client = parting.is_client();
            match parting.arrive() {
                Ok(Arrived::Unix(socket, file)) => {
                    listeners.push(Self::of_unix(UnixSocket::adopt(socket, file)?));
                }
                Ok(Arrived::Tcp(socket)) => listeners.push(Self::of_tcp(vec![socket]).map_err(failed)?),
                Ok(Arrived::Client(client)) => clients.push_back(client),
                Err(error) if is_client => warn!(%error, "a client was not taken over"),
                Err(error) => return Err(failed(error)),
            }
        }
        let clients = Socket::Clients(RefCell::new(clients));
        let clients = Self { sockets: vec![clients], endpoints: Vec::new(), next: Cell::new(0), guests: None };
        Ok(listeners.into_iter().fold(clients, Self::and))
    }

    /// Leaves its sockets to another server, and with them those who wait there. Clients that came from elsewhere, and
    /// were not accepted, are disconnected.
    #[must_use]
    pub fn part(mut self) -> Vec<Parting> {
        let mut partings = Vec::new();
        for socket in &mut self.sockets {
            let left = match socket {
                Socket::Unix(socket) => socket.leave().map(|(socket, file)| Parting::of_unix_socket(socket, file)),
                Socket::Tcp(socket) => socket.as_fd().try_clone_to_owned().map(Parting::of_tcp_socket),
                Socket::Shared(_) | Socket::Clients(_) => continue,
            };
            match left {
                Ok(parting) => partings.push(parting),
                Err(error) => warn!(%error, "a socket could not be handed over"),
            }
        }
        partings
    }

    /// Without the sockets of these endpoints, which are closed.
    #[must_use]
    pub fn without(mut self, unwanted: impl Fn(&Endpoint) -> bool) -> Self {
        let mut endpoints = self.endpoints.iter();
        self.sockets.retain(|socket| match socket {
            Socket::Clients(_) => true,
            _ => !unwanted(endpoints.next().expect("each socket has an endpoint")),
        });
        self.endpoints.retain(|endpoint| !unwanted(endpoint));
        self
    }

    /// Offers an export among those that share listeners, and takes the clients that choose it. `info` says what they
    /// are told of it; with `clients`, those without one of these certificates do not learn of it.
    ///
    /// # Errors
    /// [`Error::ExportNameTaken`].
    pub fn shared(
        exports: &SharedExports,
        info: impl Fn() -> ExportInfo + Send + Sync + 'static,
        clients: Option<Vec<Fingerprint>>,
    ) -> Result<Self, Error> {
        let place = exports.offer(Box::new(info), clients)?;
        let endpoints = place.endpoints().to_vec();
        Ok(Self { sockets: vec![Socket::Shared(place)], endpoints, next: Cell::new(0), guests: None })
    }

    /// Listens on the sockets of `other`, too, which come after its own.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.sockets.extend(other.sockets);
        self.endpoints.extend(other.endpoints);
        self
    }

    /// Lets these users connect to the Unix sockets, beside root and this process's own: the kernel says who a client
    /// is (`SO_PEERCRED`), and a socket's mode becomes 0666 if this process has made it. Has no meaning for TCP.
    ///
    /// # Errors
    /// [`Error::Listen`] if the mode can't be changed.
    pub fn admit(self, users: Vec<u32>) -> Result<Self, Error> {
        for socket in &self.sockets {
            if let Socket::Unix(socket) = socket {
                socket.open_to_all()?;
            }
        }
        Ok(Self { guests: Some(users), ..self })
    }

    /// The files of Unix sockets that this process has made.
    pub fn files(&self) -> Vec<SocketFile> {
        let file = |socket: &Socket| match socket {
            Socket::Unix(socket) => socket.file(),
            Socket::Tcp(_) | Socket::Shared(_) | Socket::Clients(_) => None,
        };
        self.sockets.iter().filter_map(file).collect()
    }

    /// Where clients connect to; the first place where there are several.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoints[0]
    }

    /// Everywhere that clients connect to.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    fn of_unix(socket: UnixSocket) -> Self {
        let endpoints = vec![Endpoint::Unix(socket.path().to_owned())];
        Self { sockets: vec![Socket::Unix(socket)], endpoints, next: Cell::new(0), guests: None }
    }

    fn of_tcp(listeners: Vec<StdTcpListener>) -> io::Result<Self> {
        let (mut sockets, mut endpoints) = (Vec::new(), Vec::new());
        for listener in listeners {
            listener.set_nonblocking(true)?;
            endpoints.push(Endpoint::Tcp(listener.local_addr()?));
            sockets.push(Socket::Tcp(TcpListener::from_std(listener)?));
        }
        Ok(Self { sockets, endpoints, next: Cell::new(0), guests: None })
    }

    /// Waits for a client. Cancel safe.
    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        let count = self.sockets.len();
        let first = self.next.get();
        for index in (first..first + count).map(|index| index % count) {
            let accepted = match &self.sockets[index] {
                Socket::Unix(socket) => socket.poll_accept(context).map(|stream| self.local(stream?)),
                Socket::Tcp(listener) => listener.poll_accept(context).map_ok(remote),
                Socket::Shared(place) => place.poll_next(context).map(|client| Ok(introduced(client))),
                Socket::Clients(clients) => {
                    clients.borrow_mut().pop_front().map_or(Poll::Pending, |client| Poll::Ready(Ok(introduced(client))))
                }
            };
            if accepted.is_ready() {
                self.next.set((index + 1) % count);
                return accepted;
            }
        }
        Poll::Pending
    }

    fn local(&self, stream: UnixStream) -> io::Result<Accepted> {
        tune(enlarge_send_buffer(&stream));
        let credentials = stream.peer_cred()?;
        let refusal = self.refusal(credentials.uid());
        Ok(Accepted { arrival: Arrival::Unix(stream), peer: Peer::Local(credentials.pid()), refusal })
    }

    fn refusal(&self, user: u32) -> Option<Refusal> {
        let guests = self.guests.as_ref()?;
        let is_owner = user == rustix::process::geteuid().as_raw() || rustix::process::Uid::from_raw(user).is_root();
        (!is_owner && !guests.contains(&user)).then_some(Refusal::Stranger { user })
    }
}

fn remote((stream, address): (TcpStream, SocketAddr)) -> Accepted {
    tune(sockopt::set_tcp_nodelay(&stream, true));
    tune(sockopt::set_socket_keepalive(&stream, true)); // a peer that lost its power says no goodbye
    tune(enlarge_send_buffer(&stream));
    Accepted { arrival: Arrival::Tcp(stream), peer: Peer::Remote(address), refusal: None }
}

fn introduced(Introduced { client, peer }: Introduced) -> Accepted {
    Accepted { arrival: Arrival::Client(client), peer, refusal: None }
}

/// Whether an address can't be listened on because it is not one of this machine's.
fn is_strange(error: &io::Error) -> bool {
    let strange = [Errno::ADDRNOTAVAIL, Errno::AFNOSUPPORT].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|error| strange.contains(&error))
}

/// A socket that can't be tuned is slower, but serves.
fn tune(result: Result<(), Errno>) {
    if let Err(error) = result {
        debug!(%error, "could not tune a socket");
    }
}
