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
mod parting;
mod peer;
mod permits;
mod rates;
mod receive;
mod reception;
mod refusals;
mod served;
mod shared;
mod socket;
mod stream;
mod tls;
mod woken;

use std::{cell::Cell, future::Future, rc::Rc, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::{JoinError, JoinSet},
    time::timeout,
};
use tracing::{debug, info, warn};

pub use certificates::{Fingerprint, FingerprintError, Tls, TlsClients};
pub use door::descriptors_needed;
pub use endpoint::{Endpoint, Scheme};
pub use handover::{Dispatcher, Incoming};
pub use limits::{Drain, Limits};
pub use listener::Listener;
pub use outbox::ReplySlot;
pub use parting::Parting;
pub use permits::Connections;
pub use rates::{RateLimits, Rates};
pub use reception::Reception;
pub use served::{Ending, Served};
pub use shared::SharedExports;
pub use socket::{SocketFile, UnixSocket};
pub use woken::when_woken;

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

    /// Serves until `shutdown` is ready, and ends with [`Ending::Close`]. Returns whether all requests in flight were
    /// answered. Commands that were not may still be running in the export.
    ///
    /// Dropping the future closes all connections at once.
    ///
    /// # Panics
    /// If called outside of a [`tokio::task::LocalSet`].
    pub async fn serve(self, listener: Listener, shutdown: impl Future<Output = ()>) -> bool {
        let shutdown = async {
            shutdown.await;
            Ending::Close
        };
        self.serve_until(listener, shutdown).await.answered
    }

    /// Serves until `shutdown` says how to end. Then nothing more is accepted.
    ///
    /// With [`Ending::Close`], requests in flight are finished and answered within [`Limits::shutdown_timeout`], others
    /// as [`Limits::drain`] says, every connection is closed, and the listener's socket files are removed.
    ///
    /// With [`Ending::HandOver`], requests that were begun are finished and answered within that time, and what is left
    /// goes to another process: clients, but for those that use TLS or were not ready in time, and sockets.
    ///
    /// Dropping the future closes all connections at once.
    ///
    /// # Panics
    /// If called outside of a [`tokio::task::LocalSet`].
    pub async fn serve_until(self, listener: Listener, shutdown: impl Future<Output = Ending>) -> Served {
        let (drain, draining) = watch::channel(Stopping::No);
        let mut connections = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        let ending;
        let Common { limits, budget, .. } = &self.common;
        let mut watch = std::pin::pin!(budget.watch(limits.stuck_timeout));
        let mut door = Door::new(listener, *limits, self.open.clone());
        loop {
            tokio::select! {
                (arrival, permit) = door.next() => self.spawn(&mut connections, arrival, permit, draining.clone()),
                Some(ended) = connections.join_next() => drop(parting(ended)),
                () = &mut watch => unreachable!("it is watched for ever"),
                how = &mut shutdown => {
                    ending = how;
                    break;
                }
            }
        }
        let sockets = door.close(ending);
        let Served { answered, partings } = self.finish(connections, &drain, ending).await;
        Served { answered, partings: [sockets, partings].into_iter().flatten().collect() }
    }

    /// Serves the connections that a [`Dispatcher`] hands to it, until that ends; the rest is as with
    /// [`Server::serve_until`], but for sockets.
    ///
    /// # Panics
    /// If called outside of a [`tokio::task::LocalSet`].
    pub async fn serve_incoming(self, mut incoming: Incoming) -> Served {
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
                Some(ended) = connections.join_next() => drop(parting(ended)),
                () = &mut watch => unreachable!("it is watched for ever"),
            }
        }
        // A dispatcher that was dropped had nothing to say.
        let ending = incoming.ending.get().copied().unwrap_or(Ending::Close);
        self.finish(connections, &drain, ending).await
    }

    /// Waits for the connections to end.
    async fn finish(
        &self,
        mut connections: JoinSet<Option<Parting>>,
        drain: &watch::Sender<Stopping>,
        ending: Ending,
    ) -> Served {
        info!(connections = connections.len(), "shutting down");
        let Limits { shutdown_timeout, drain: how, .. } = self.common.limits;
        let stopping = match (ending, how) {
            (Ending::HandOver, _) => Stopping::Parting,
            (Ending::Close, Drain::Close) => Stopping::Closing,
            (Ending::Close, Drain::Refuse) => Stopping::Refusing,
        };
        drain.send_replace(stopping);
        let mut partings = Vec::new();
        let mut answered = ended_within(shutdown_timeout, &mut connections, &mut partings).await;
        if !answered && stopping < Stopping::Closing {
            drain.send_replace(Stopping::Closing);
            answered = ended_within(CLOSING, &mut connections, &mut partings).await;
        }
        if !answered {
            warn!(connections = connections.len(), "requests were still in flight when the time to stop was over");
        }
        Served { answered, partings }
    }

    /// Serves a connection, which keeps its permit until it ends.
    fn spawn(
        &self,
        connections: &mut JoinSet<Option<Parting>>,
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

/// Waits for the connections to end; false if they did not in time. `partings` are those that go on elsewhere.
async fn ended_within(
    limit: Duration,
    connections: &mut JoinSet<Option<Parting>>,
    partings: &mut Vec<Parting>,
) -> bool {
    let all = async {
        while let Some(ended) = connections.join_next().await {
            partings.extend(parting(ended));
        }
    };
    timeout(limit, all).await.is_ok()
}

async fn logged(peer: Peer, served: impl Future<Output = Result<Option<Parting>, Error>>) -> Option<Parting> {
    thread_local!(static CONNECTIONS: Cell<u64> = const { Cell::new(0) });
    let connection = CONNECTIONS.replace(CONNECTIONS.get() + 1);
    debug!(connection, %peer, "connected");
    match served.await {
        Ok(None) => debug!(connection, %peer, "disconnected"),
        Ok(parting) => {
            debug!(connection, %peer, "goes on elsewhere");
            return parting;
        }
        Err(error) if error.is_notable() => warn!(connection, %peer, %error, "connection ended"),
        Err(error) => info!(connection, %peer, %error, "connection ended"),
    }
    None
}

/// A connection that has ended, if it goes on elsewhere.
fn parting(ended: Result<Option<Parting>, JoinError>) -> Option<Parting> {
    ended.inspect_err(|error| warn!(%error, "a connection's task failed")).ok().flatten()
}
