//! Where the clients of several exports come in: accepted, introduced by their handshake, and sent to the server of the
//! export that they have chosen.
//!
//! The limits on connections count those that shake hands here; each server counts its clients by its own.

use std::{future::Future, rc::Rc};

use tokio::{task::JoinSet, time::timeout};
use tracing::{debug, info, warn};

use super::{
    certificates::Tls,
    client::{Detached, InTransit},
    door::Door,
    limits::Limits,
    listener::{Arrival, Listener},
    negotiation::{failed, negotiate},
    permits::{Connections, Permit},
    shared::{Introduced, SharedExports},
    stream::Portable,
};
use crate::{Error, handshake::Exports};

/// See the module.
#[derive(Debug)]
pub struct Reception(Rc<Desk>);

/// What all handshakes have in common.
#[derive(Debug)]
struct Desk {
    exports: SharedExports,
    limits: Limits,
    tls: Option<Tls>,
}

impl Reception {
    /// A reception for the clients of `exports`. With `tls` it requires that of every client.
    #[must_use]
    pub fn new(exports: SharedExports, limits: Limits, tls: Option<Tls>) -> Self {
        Self(Rc::new(Desk { exports, limits, tls }))
    }

    /// Introduces clients until `shutdown` is ready. Then nothing more is accepted, handshakes that have not ended are
    /// given up, and the listener's socket files are removed.
    ///
    /// # Panics
    /// If called outside of a [`tokio::task::LocalSet`].
    pub async fn run(self, listener: Listener, shutdown: impl Future<Output = ()>) {
        let Self(desk) = self;
        let mut handshakes = JoinSet::new();
        let mut door = Door::new(listener, desk.limits, Connections::default());
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                (arrival, permit) = door.next() => {
                    let desk = Rc::clone(&desk);
                    handshakes.spawn_local(async move { desk.receive(arrival, permit).await });
                }
                Some(_) = handshakes.join_next() => {}
                () = &mut shutdown => return,
            }
        }
    }
}

impl Desk {
    async fn receive(&self, arrival: Arrival, permit: Permit) {
        let peer = permit.peer();
        debug!(%peer, "connected");
        let introduced = match arrival {
            Arrival::Unix(stream) => Box::pin(self.introduce(stream, permit, InTransit::Unix)).await,
            Arrival::Tcp(stream) => Box::pin(self.introduce(stream, permit, InTransit::Tcp)).await,
            Arrival::Client(_) => unreachable!("nobody is introduced to a reception"),
        };
        match introduced {
            Ok(()) => {}
            Err(error) if error.is_notable() => warn!(%peer, %error, "connection ended"),
            Err(error) => info!(%peer, %error, "connection ended"),
        }
    }

    /// Shakes hands with a client, and sends it where it belongs.
    async fn introduce<S: Portable>(
        &self,
        stream: S,
        permit: Permit,
        in_transit: fn(Detached<S>) -> InTransit,
    ) -> Result<(), Error> {
        let limit = self.limits.handshake_timeout;
        let mut offers = Vec::new();
        let shown = |client| {
            offers = self.exports.offered_to(client);
            Exports::new(offers.iter().map(|offer| offer.info()).collect())
        };
        let negotiated = tokio::select! {
            negotiated = timeout(limit, negotiate(stream, shown, self.tls.as_ref())) => {
                negotiated.map_err(|_| Error::HandshakeTimeout { limit })??
            }
            () = permit.evicted() => None,
        };
        let Some((export, client)) = negotiated.filter(|_| permit.keep()) else { return Ok(()) };
        let client = in_transit(client.detach().map_err(failed("handing the client over"))?);
        if !offers[export.get()].send(Introduced { client, peer: permit.peer() }) {
            warn!(peer = %permit.peer(), "a client was closed: its export is not served any more, or many wait for it");
        }
        Ok(())
    }
}
