//! The codec on tokio's sockets.
//!
//! A server runs on one thread, inside a [`tokio::task::LocalSet`]. Each connection is one task, which reads, submits
//! and writes without ever waiting for one of the three in particular.
//!
//! Bounds, of each connection and of all together: [`Limits`]. When they are reached the task stops reading its socket,
//! so that its client waits.

mod budget;
mod connection;
mod door;
mod handover;
mod listener;
mod outbox;
mod places;
mod receive;
mod refusals;
mod socket;
mod stream;

use std::{cell::Cell, future::Future, rc::Rc, time::Duration};

use tokio::{sync::watch, task::JoinSet, time::timeout};
use tracing::{debug, info, warn};

pub use door::descriptors_needed;
pub use handover::{Dispatcher, Incoming};
pub use listener::{Endpoint, Listener};
pub use outbox::ReplySlot;
pub use places::Connections;
pub use socket::UnixSocket;

use crate::{Error, Export};
use budget::Budget;
pub use budget::RequestMemory;
use connection::serve_connection;
use door::Door;
use places::Place;

/// The limits on what clients may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time. Further ones take the place of one that still shakes hands, or are closed at once.
    pub connections_max: usize,
    /// Connections at a time of one host in the network: of one IPv4 address, or one IPv6 network of 64 bits. Less than
    /// all, so that one host can't keep the others out.
    pub connections_per_host_max: usize,
    /// Data of requests of one connection that are not yet received, executed or answered. One request is always
    /// admitted.
    pub bytes_in_flight_max: u64,
    /// The same of all connections of one server. One request that is larger than half of it is admitted at a time.
    pub bytes_in_flight_all_max: u64,
    /// Requests of one connection whose reply is not yet sent.
    pub requests_in_flight_max: u32,
    /// How long a client may leave replies unread or announced data unsent while others wait for the memory. It must
    /// move a MiB within this time, or within twice this time at most; otherwise it is disconnected.
    pub stuck_timeout: Duration,
    /// Time for a handshake.
    pub handshake_timeout: Duration,
    /// Time for requests in flight at shutdown.
    pub shutdown_timeout: Duration,
}

impl Default for Limits {
    /// 64 connections, 48 of one host, each of 64 MiB and 1024 requests, together of 256 MiB; 10 s for a handshake, 30
    /// s for who is stuck and for a shutdown.
    fn default() -> Self {
        Self {
            connections_max: 64,
            connections_per_host_max: 48,
            bytes_in_flight_max: 64 << 20,
            bytes_in_flight_all_max: 256 << 20,
            requests_in_flight_max: 1024,
            stuck_timeout: Duration::from_secs(30),
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
    budget: Rc<Budget>,
    open: Connections,
}

impl<E: Export> Server<E> {
    /// A server without a listener.
    ///
    /// # Errors
    /// [`Error::InvalidExport`] if the protocol can't describe the export.
    pub fn new(export: Rc<E>, limits: Limits) -> Result<Self, Error> {
        export.info().validate()?;
        Ok(Self { export, limits, budget: Budget::new(&limits), open: Connections::default() })
    }

    /// How much memory requests in flight take.
    pub fn request_memory(&self) -> RequestMemory {
        RequestMemory::of(&self.budget)
    }

    /// The connections that [`Server::serve`] accepts.
    pub fn connections(&self) -> Connections {
        self.open.clone()
    }

    /// Serves until `shutdown` is ready. Then nothing more is accepted or read, requests in flight are finished and
    /// answered within [`Limits::shutdown_timeout`], every connection is closed, and the listener's socket file is
    /// removed.
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
        let mut watch = std::pin::pin!(self.budget.watch(self.limits.stuck_timeout));
        let mut door = Door::new(listener, self.limits, self.open.clone());
        loop {
            tokio::select! {
                (stream, place) = door.next() => self.spawn(&mut connections, stream, place, draining.clone()),
                Some(ended) = connections.join_next() => connection_ended(ended),
                () = &mut watch => unreachable!("it is watched for ever"),
                () = &mut shutdown => break,
            }
        }
        drop(door);
        self.finish(connections, &drain).await
    }

    /// Waits for the connections to end; false if they did not in time.
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
            warn!(connections = connections.len(), "requests were still in flight when the time to stop was over");
        }
        finished
    }

    /// Serves a connection, which keeps its place among all connections until it ends.
    fn spawn(
        &self,
        connections: &mut JoinSet<()>,
        stream: listener::Stream,
        place: Place,
        draining: watch::Receiver<bool>,
    ) {
        let (export, limits, budget) = (Rc::clone(&self.export), self.limits, Rc::clone(&self.budget));
        match stream {
            listener::Stream::Unix(stream) => {
                connections.spawn_local(logged(stream, export, limits, budget, draining, place))
            }
            listener::Stream::Tcp(stream) => {
                connections.spawn_local(logged(stream, export, limits, budget, draining, place))
            }
        };
    }
}

async fn logged<S, E>(
    stream: S,
    export: Rc<E>,
    limits: Limits,
    budget: Rc<Budget>,
    draining: watch::Receiver<bool>,
    place: Place,
) where
    S: stream::Stream,
    E: Export,
{
    thread_local!(static CONNECTIONS: Cell<u64> = const { Cell::new(0) });
    let connection = CONNECTIONS.replace(CONNECTIONS.get() + 1);
    let peer = place.peer();
    debug!(connection, %peer, "connected");
    match serve_connection(stream, export, limits, budget, draining, place).await {
        Ok(()) => debug!(connection, %peer, "disconnected"),
        Err(error @ (Error::Stuck | Error::NoMemory)) => warn!(connection, %peer, %error, "connection ended"),
        Err(error) => info!(connection, %peer, %error, "connection ended"),
    }
}

fn connection_ended(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        warn!(%error, "a connection's task failed");
    }
}
