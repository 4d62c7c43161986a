//! The codec on tokio's sockets.
//!
//! A server runs on one thread, inside a [`tokio::task::LocalSet`]. Each connection is one task, which reads, submits and writes without ever
//! waiting for one of the three in particular.
//!
//! Bounds, per connection: [`Limits`]. When they are reached the task stops reading its socket, so that the client feels it and nobody else does.

mod connection;
mod handover;
mod listener;
mod outbox;
mod places;
mod receive;
mod socket;
mod stream;

use std::{cell::Cell, fmt, future::Future, rc::Rc, time::Duration};

use tokio::{sync::watch, task::JoinSet, time::timeout};
use tracing::{debug, info, warn};

pub use handover::{Dispatcher, Incoming};
pub use listener::{Endpoint, Listener};
pub use outbox::ReplySlot;
pub use places::Connections;
pub use socket::UnixSocket;

use crate::{Error, Export};
use connection::serve_connection;
use listener::Accepted;
use places::Place;
use stream::Stream;

/// How long to leave off accepting when the system is out of descriptors or memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// What clients may use up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time. Further ones are closed at once.
    pub connections_max: usize,
    /// Data of requests of one connection that are not yet received, executed or answered. One request is always admitted.
    pub bytes_in_flight_max: u64,
    /// Requests of one connection whose reply is not yet sent.
    pub requests_in_flight_max: u32,
    /// Time for a handshake.
    pub handshake_timeout: Duration,
    /// Time for requests in flight at shutdown.
    pub shutdown_timeout: Duration,
}

impl Default for Limits {
    /// 64 connections of 64 MiB and 1024 requests, 10 s for a handshake, 30 s for a shutdown.
    fn default() -> Self {
        Self {
            connections_max: 64,
            bytes_in_flight_max: 64 << 20,
            requests_in_flight_max: 1024,
            handshake_timeout: Duration::from_secs(10),
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}

/// A server of one export.
#[derive(Debug)]
pub struct Server<E> {
    export: Rc<E>,
    limits: Limits,
    open: Connections,
}

impl<E: Export> Server<E> {
    /// A server that has yet to be given a listener.
    ///
    /// # Errors
    /// [`Error::InvalidExport`] if the protocol can't describe the export.
    pub fn new(export: Rc<E>, limits: Limits) -> Result<Self, Error> {
        export.info().validate()?;
        Ok(Self { export, limits, open: Connections::default() })
    }

    /// The connections that [`Server::serve`] accepts.
    pub fn connections(&self) -> Connections {
        self.open.clone()
    }

    /// Serves until `shutdown` is ready. Then nothing more is accepted or read, requests in flight are finished and answered within
    /// [`Limits::shutdown_timeout`], every connection is closed, and the listener's socket file is removed.
    ///
    /// Returns whether all requests in flight were answered. Commands that were not may still be running in the export.
    ///
    /// Dropping the future closes all connections at once.
    ///
    /// # Panics
    /// If called outside of a [`tokio::task::LocalSet`].
    pub async fn serve(self, listener: Listener, shutdown: impl Future<Output = ()>) -> bool {
        let (drain, draining) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(stream) => match self.open.place(self.limits.connections_max) {
                        Some(place) => self.spawn(&mut connections, stream, place, draining.clone()),
                        None => warn!("{}", TooMany(self.limits.connections_max)),
                    },
                    Err(error) => {
                        warn!(%error, "could not accept a connection");
                        tokio::time::sleep(ACCEPT_BACKOFF).await;
                    }
                },
                Some(ended) = connections.join_next() => connection_ended(ended),
                () = &mut shutdown => break,
            }
        }
        drop(listener);
        self.finish(connections, &drain).await
    }

    /// Lets the connections end; false: they did not in time.
    async fn finish(&self, mut connections: JoinSet<()>, drain: &watch::Sender<bool>) -> bool {
        info!(connections = connections.len(), "shutting down");
        drain.send_replace(true);
        let drained = timeout(self.limits.shutdown_timeout, async {
            while let Some(ended) = connections.join_next().await {
                connection_ended(ended);
            }
        });
        let finished = drained.await.is_ok();
        if !finished {
            warn!(connections = connections.len(), "requests were still in flight when the time for shutdown was over");
        }
        finished
    }

    /// Serves a connection, which keeps its place among all until it ends.
    fn spawn(&self, connections: &mut JoinSet<()>, stream: Accepted, place: Place, draining: watch::Receiver<bool>) {
        let (export, limits) = (Rc::clone(&self.export), self.limits);
        match stream {
            Accepted::Unix(stream) => connections.spawn_local(logged(stream, export, limits, draining, place)),
            Accepted::Tcp(stream) => connections.spawn_local(logged(stream, export, limits, draining, place)),
        };
    }
}

/// Says that a connection was closed at once.
struct TooMany(usize);

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "too many connections: a new one was closed; there are {} at a time", self.0)
    }
}

async fn logged<S, E>(stream: S, export: Rc<E>, limits: Limits, draining: watch::Receiver<bool>, _place: Place)
where
    S: Stream,
    E: Export,
{
    thread_local!(static CONNECTIONS: Cell<u64> = const { Cell::new(0) });
    let connection = CONNECTIONS.replace(CONNECTIONS.get() + 1);
    debug!(connection, "connected");
    match serve_connection(stream, export, limits, draining).await {
        Ok(()) => debug!(connection, "disconnected"),
        Err(error) => info!(connection, %error, "connection ended"),
    }
}

fn connection_ended(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        warn!(%error, "a connection's task failed");
    }
}
