//! The codec on tokio's sockets.
//!
//! A server runs on one thread, inside a [`tokio::task::LocalSet`]. Each connection is one task, which reads, submits
//! and writes without ever waiting for one of the three in particular.
//!
//! Bounds, of each connection and of all together: [`Limits`], and of what goes on in a second: [`Rates`]. When they
//! are reached the task stops reading its socket, so that its client waits.

mod budget;
mod certificates;
mod client;
mod common;
mod connection;
mod door;
mod endpoint;
mod handover;
mod idle;
mod limits;
mod listener;
mod negotiation;
mod outbox;
mod peer;
mod permits;
mod rates;
mod receive;
mod reception;
mod refusals;
mod shared;
mod socket;
mod stream;
mod tls;

use std::{cell::Cell, future::Future, rc::Rc, sync::Arc, time::Duration};

use tokio::{sync::watch, task::JoinSet, time::timeout};
use tracing::{debug, info, warn};

pub use certificates::{Fingerprint, FingerprintError, Tls, TlsClients, TlsError};
pub use door::descriptors_needed;
pub use endpoint::{Endpoint, Scheme};
pub use handover::{Dispatcher, Incoming};
pub use limits::{Drain, Limits};
pub use listener::Listener;
pub use outbox::ReplySlot;
pub use permits::Connections;
pub use rates::{RateLimits, Rates};
pub use reception::Reception;
pub use shared::SharedExports;
pub use socket::{SocketFile, UnixSocket};

use crate::{Error, Export};
use budget::Budget;
pub use budget::RequestMemory;
use client::InTransit;
use common::Common;
use connection::{Stopping, serve_connection, take_over};
use door::Door;
use handover::Handed;
use listener::Arrival;
use peer::Peer;
use permits::Permit;

/// How long connections have to end when the time of a shutdown is over for clients that were refused until then.
const CLOSING: Duration = Duration::from_secs(1);

/// A server of one export.
#[derive(Debug)]
pub struct Server<E> {
    common: Common<E>,
    open: Connections,
}

impl<E: Export> Server<E> {
    /// A server without a listener. With `tls` it requires that of every client, wherever it comes from.
    ///
    /// # Errors
    /// [`Error::InvalidExport`] if the protocol can't describe the export.
    pub fn new(export: Rc<E>, limits: Limits, tls: Option<Tls>) -> Result<Self, Error> {
        export.info().validate()?;
        let common = Common { export, limits, budget: Budget::new(&limits), rates: Arc::default(), tls };
        Ok(Self { common, open: Connections::default() })
    }

    /// Has its clients keep these limits, together with those of other servers that have the same.
    #[must_use]
    pub fn paced_by(self, rates: Arc<Rates>) -> Self {
        Self { common: Common { rates, ..self.common }, ..self }
    }

    /// How much memory requests in flight take.
    pub fn request_memory(&self) -> RequestMemory {
        RequestMemory::of(&self.common.budget)
    }

    /// The connections that [`Server::serve`] accepts.
    pub fn connections(&self) -> Connections {
        self.open.clone()
    }

    /// Serves until `shutdown` is ready. Then nothing more is accepted, requests in flight are finished and answered
    /// within [`Limits::shutdown_timeout`], others as [`Limits::drain`] says, every connection is closed, and the
    /// listener's socket files are removed.
    ///
    /// Returns whether all requests in flight were answered. Commands that were not may still be running in the export.
    ///
    /// Dropping the future closes all connections at once.
    ///
    /// # Panics
    /// If called outside of a [`tokio::task::LocalSet`].
    pub async fn serve(self, listener: Listener, shutdown: impl Future<Output = ()>) -> bool {
        let (drain, draining) = watch::channel(Stopping::No);
        let mut connections = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        let Common { limits, budget, .. } = &self.common;
        let mut watch = std::pin::pin!(budget.watch(limits.stuck_timeout));
        let mut door = Door::new(listener, *limits, self.open.clone());
        loop {
            tokio::select! {
                (arrival, permit) = door.next() => self.spawn(&mut connections, arrival, permit, draining.clone()),
                Some(ended) = connections.join_next() => connection_ended(ended),
                () = &mut watch => unreachable!("it is watched for ever"),
                () = &mut shutdown => break,
            }
        }
        drop(door);
        self.finish(connections, &drain).await
    }

    /// Serves the connections that a [`Dispatcher`] hands to it, until that ends; the rest is as with
    /// [`Server::serve`].
    ///
    /// # Panics
    /// If called outside of a [`tokio::task::LocalSet`].
    pub async fn serve_incoming(self, mut incoming: Incoming) -> bool {
        let (drain, draining) = watch::channel(Stopping::No);
        let mut connections = JoinSet::new();
        let Common { limits, budget, .. } = &self.common;
        let mut watch = std::pin::pin!(budget.watch(limits.stuck_timeout));
        loop {
            tokio::select! {
                handed = incoming.queue.recv() => match handed {
                    None => break,
                    Some(Handed { arrival, permit }) => match arrival.attach() {
                        Ok(arrival) => self.spawn(&mut connections, arrival, permit, draining.clone()),
                        Err(error) => warn!(%error, "could not take over a connection"),
                    }
                },
                Some(ended) = connections.join_next() => connection_ended(ended),
                () = &mut watch => unreachable!("it is watched for ever"),
            }
        }
        self.finish(connections, &drain).await
    }

    /// Waits for the connections to end; false if they did not in time.
    async fn finish(&self, mut connections: JoinSet<()>, drain: &watch::Sender<Stopping>) -> bool {
        info!(connections = connections.len(), "shutting down");
        let Limits { shutdown_timeout, drain: how, .. } = self.common.limits;
        let stopping = match how {
            Drain::Close => Stopping::Closing,
            Drain::Refuse => Stopping::Refusing,
        };
        drain.send_replace(stopping);
        let mut finished = ended_within(shutdown_timeout, &mut connections).await;
        if !finished && how == Drain::Refuse {
            drain.send_replace(Stopping::Closing);
            finished = ended_within(CLOSING, &mut connections).await;
        }
        if !finished {
            warn!(connections = connections.len(), "requests were still in flight when the time to stop was over");
        }
        finished
    }

    /// Serves a connection, which keeps its permit until it ends.
    fn spawn(
        &self,
        connections: &mut JoinSet<()>,
        arrival: Arrival,
        permit: Permit,
        draining: watch::Receiver<Stopping>,
    ) {
        let (common, peer) = (self.common.clone(), permit.peer());
        match arrival {
            Arrival::Unix(stream) => {
                connections.spawn_local(logged(peer, serve_connection(stream, common, draining, permit)))
            }
            Arrival::Tcp(stream) => {
                connections.spawn_local(logged(peer, serve_connection(stream, common, draining, permit)))
            }
            Arrival::Client(InTransit::Unix(client)) => {
                connections.spawn_local(logged(peer, take_over(client, common, draining, permit)))
            }
            Arrival::Client(InTransit::Tcp(client)) => {
                connections.spawn_local(logged(peer, take_over(client, common, draining, permit)))
            }
        };
    }
}

/// Waits for the connections to end; false if they did not in time.
async fn ended_within(limit: Duration, connections: &mut JoinSet<()>) -> bool {
    let all = async {
        while let Some(ended) = connections.join_next().await {
            connection_ended(ended);
        }
    };
    timeout(limit, all).await.is_ok()
}

async fn logged(peer: Peer, served: impl Future<Output = Result<(), Error>>) {
    thread_local!(static CONNECTIONS: Cell<u64> = const { Cell::new(0) });
    let connection = CONNECTIONS.replace(CONNECTIONS.get() + 1);
    debug!(connection, %peer, "connected");
    match served.await {
        Ok(()) => debug!(connection, %peer, "disconnected"),
        Err(error @ (Error::Stuck | Error::NoMemory | Error::PlainAfterStartTls)) => {
            warn!(connection, %peer, %error, "connection ended");
        }
        Err(error) => info!(connection, %peer, %error, "connection ended"),
    }
}

fn connection_ended(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        warn!(%error, "a connection's task failed");
    }
}
