//! Connections that are accepted on one thread and served on others.
//!
//! One [`Dispatcher`] accepts, and hands its connections in turn to the [`Incoming`] of each server.
//! [`Limits::connections_max`] holds for all servers together. When the dispatcher ends, so do they, in the way of
//! [`Server::serve`](super::Server::serve).

use std::{
    future::Future,
    io,
    net::TcpStream as StdTcpStream,
    os::unix::net::UnixStream as StdUnixStream,
    sync::{Arc, OnceLock},
};

use tokio::{
    net::{TcpStream, UnixStream},
    sync::mpsc::{Receiver, Sender, channel},
};
use tracing::warn;

use super::{
    client::InTransit,
    door::Door,
    limits::Limits,
    listener::{Arrival, Listener},
    parting::Parting,
    permits::{Connections, Permit},
    served::Ending,
};

/// Hands connections out; see the module.
#[derive(Debug)]
pub struct Dispatcher {
    queues: Vec<Sender<Handed>>,
    limits: Limits,
    open: Connections,
    ending: Arc<OnceLock<Ending>>,
}

/// The connections of one server.
#[derive(Debug)]
pub struct Incoming {
    pub(super) queue: Receiver<Handed>,
    /// How to end when there is nothing more in the queue.
    pub(super) ending: Arc<OnceLock<Ending>>,
}

/// A connection between two threads' event loops.
pub(super) struct Handed {
    pub(super) arrival: Detached,
    pub(super) permit: Permit,
}

/// An [`Arrival`] on no event loop.
pub(super) enum Detached {
    Unix(StdUnixStream),
    Tcp(StdTcpStream),
    Client(InTransit),
}

impl Dispatcher {
    /// A dispatcher, and what each of `servers` gets from it.
    ///
    /// # Panics
    /// When there are no servers.
    #[must_use]
    pub fn new(servers: usize, limits: Limits) -> (Self, Vec<Incoming>) {
        assert!(servers > 0, "connections are handed to somebody");
        let ending = Arc::<OnceLock<Ending>>::default();
        // No more are on the way than there may be.
        let (queues, incoming) = (0..servers)
            .map(|_| channel(limits.connections_max.max(1)))
            .map(|(sender, queue)| (sender, Incoming { queue, ending: Arc::clone(&ending) }))
            .unzip();
        (Self { queues, limits, open: Connections::default(), ending }, incoming)
    }

    /// The connections of all servers.
    pub fn connections(&self) -> Connections {
        self.open.clone()
    }

    /// Accepts until `shutdown` says how to end; then removes the listener's socket files, or returns the sockets for
    /// another process.
    pub async fn run(self, listener: Listener, shutdown: impl Future<Output = Ending>) -> Vec<Parting> {
        let Self { queues, limits, open, ending: told } = self;
        let mut door = Door::new(listener, limits, open);
        let mut shutdown = std::pin::pin!(shutdown);
        let mut next = queues.iter().cycle();
        loop {
            let (arrival, permit) = tokio::select! {
                next = door.next() => next,
                ending = &mut shutdown => {
                    told.set(ending).expect("it is said once");
                    return door.close(ending);
                }
            };
            let queue = next.next().expect("connections are handed to somebody");
            match Detached::new(arrival) {
                Ok(arrival) => {
                    if queue.try_send(Handed { arrival, permit }).is_err() {
                        warn!("a new connection was closed because its thread has ended");
                    }
                }
                Err(error) => warn!(%error, "could not hand over a connection"),
            }
        }
    }
}

impl Detached {
    fn new(arrival: Arrival) -> io::Result<Self> {
        match arrival {
            Arrival::Unix(stream) => stream.into_std().map(Self::Unix),
            Arrival::Tcp(stream) => stream.into_std().map(Self::Tcp),
            Arrival::Client(client) => Ok(Self::Client(client)),
        }
    }

    pub(super) fn attach(self) -> io::Result<Arrival> {
        match self {
            Self::Unix(stream) => UnixStream::from_std(stream).map(Arrival::Unix),
            Self::Tcp(stream) => TcpStream::from_std(stream).map(Arrival::Tcp),
            Self::Client(client) => Ok(Arrival::Client(client)),
        }
    }
}
