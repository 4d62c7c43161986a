//! Exports that share listeners, each of a server of its own.
//!
//! A [`Reception`](super::Reception) accepts clients, shakes hands, and sends each to the server of the export that it
//! has chosen. That server finds it at a listener made by [`Listener::shared`](super::Listener::shared): there the
//! export is offered as long as the listener exists.

use std::{
    cell::RefCell,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
};

use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::{certificates::Fingerprint, client::InTransit, endpoint::Endpoint, peer::Peer};
use crate::{Error, ExportInfo};

/// The most clients that wait until the server of their export takes them in. Further ones are closed.
const WAITING_MAX: usize = 1024;

/// The exports that share listeners.
#[derive(Debug, Clone)]
pub struct SharedExports(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Of the listeners.
    endpoints: Vec<Endpoint>,
    offers: Mutex<Vec<Arc<Offer>>>,
}

/// An export as the reception knows it.
pub(super) struct Offer {
    info: Box<dyn Fn() -> ExportInfo + Send + Sync>,
    /// If set, who has another certificate does not learn of it.
    clients: Option<Vec<Fingerprint>>,
    queue: Sender<Introduced>,
}

/// A client on its way from the reception to the server of its export.
pub(super) struct Introduced {
    pub(super) client: InTransit,
    pub(super) peer: Peer,
}

/// An export's place among the shared ones, with the clients that come for it. It is offered until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    exports: SharedExports,
    offer: Arc<Offer>,
    arriving: RefCell<Receiver<Introduced>>,
}

impl SharedExports {
    /// No exports yet, of listeners at these places.
    #[must_use]
    pub fn new(endpoints: Vec<Endpoint>) -> Self {
        Self(Arc::new(Shared { endpoints, offers: Mutex::default() }))
    }

    /// Where clients connect to.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.0.endpoints
    }

    /// Offers an export from now on, to clients with these certificates alone if there are any.
    pub(super) fn offer(
        &self,
        info: Box<dyn Fn() -> ExportInfo + Send + Sync>,
        clients: Option<Vec<Fingerprint>>,
    ) -> Result<Place, Error> {
        let name = info().name;
        let (queue, arriving) = channel(WAITING_MAX);
        let offer = Arc::new(Offer { info, clients, queue });
        let mut offers = self.offers();
        if offers.iter().any(|other| other.info().name == name) {
            return Err(Error::ExportNameTaken { name });
        }
        offers.push(Arc::clone(&offer));
        drop(offers);
        Ok(Place { exports: self.clone(), offer, arriving: RefCell::new(arriving) })
    }

    /// What a client with this certificate may choose from, by name.
    pub(super) fn offered_to(&self, client: Option<Fingerprint>) -> Vec<Arc<Offer>> {
        let mut offers: Vec<_> = self.offers().iter().filter(|offer| offer.is_for(client)).cloned().collect();
        offers.sort_by_cached_key(|offer| offer.info().name);
        offers
    }

    fn offers(&self) -> MutexGuard<'_, Vec<Arc<Offer>>> {
        self.0.offers.lock().expect("nobody panics with the table of exports")
    }
}

impl Offer {
    /// What clients are told of the export now.
    pub(super) fn info(&self) -> ExportInfo {
        (self.info)()
    }

    /// Sends a client to the export's server; false if that has ended, or too many wait for it.
    pub(super) fn send(&self, client: Introduced) -> bool {
        self.queue.try_send(client).is_ok()
    }

    fn is_for(&self, client: Option<Fingerprint>) -> bool {
        self.clients.as_ref().is_none_or(|clients| client.is_some_and(|client| clients.contains(&client)))
    }
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offer").field("info", &self.info()).field("clients", &self.clients).finish_non_exhaustive()
    }
}

impl fmt::Debug for Introduced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Introduced").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Place {
    /// Where clients connect to.
    pub(super) fn endpoints(&self) -> &[Endpoint] {
        self.exports.endpoints()
    }

    /// The next client that has chosen the export.
    pub(super) fn poll_next(&self, context: &mut Context<'_>) -> Poll<Introduced> {
        self.arriving.borrow_mut().poll_recv(context).map(|next| next.expect("the offer has the other end"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.exports.offers().retain(|offer| !Arc::ptr_eq(offer, &self.offer));
    }
}
