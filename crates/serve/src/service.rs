//! An array's reactor, and what serves its clients: the same thread, or connection threads.

use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use uraid_io::array::Array;
use uraid_layout::Bytes;
use uraid_nbd::{Connections, Ending, ExportInfo, Listener, Parting, Rates, Server, Tls};

use crate::connections::{self, ConnectionThreads, partings};
use crate::disk::LiveDisk;
use crate::export_size::ExportSize;
use crate::reactor::{KEPT, Reactor, Settings};
use crate::recorder::Recorder;

/// What it means that an array could not be closed.
const UNCLEAN: &str = "the members could not be marked clean; the next start checks them";

/// See the module.
pub(crate) enum Service<D: LiveDisk> {
    /// The reactor's thread serves the clients, too.
    Alone(Rc<Reactor<D>>, Server<Reactor<D>>),
    /// Other threads serve the clients.
    Beside(Rc<Reactor<D>>, ConnectionThreads),
}

impl<D: LiveDisk> Service<D> {
    /// Starts so many `threads` for connections; none of them serves clients before [`Service::serve`].
    pub(crate) fn start(
        array: Array<D>,
        info: &ExportInfo,
        size: ExportSize,
        settings: Settings,
        threads: u8,
        tls: Option<Tls>,
        rates: &Arc<Rates>,
    ) -> Result<Self> {
        if threads > 0 {
            let recorder = Arc::<Recorder>::default();
            let options = connections::Options {
                info: info.clone(),
                size: size.clone(),
                limits: settings.limits(threads),
                tls,
                rates: Arc::clone(rates),
                kept: Bytes(KEPT.0 / u64::from(threads)),
                busy_poll: settings.busy_poll,
                recorder: Arc::clone(&recorder),
            };
            let (threads, callers) = ConnectionThreads::start(threads.into(), &options)?;
            let reactor = Reactor::new(array.into_engine()?, info.clone(), size, settings, Some(callers), recorder);
            return Ok(Self::Beside(Rc::new(reactor), threads));
        }
        let reactor = Rc::new(Reactor::new(array.into_engine()?, info.clone(), size, settings, None, Arc::default()));
        let server = Server::new(Rc::clone(&reactor), settings.limits(1), tls)?.paced_by(Arc::clone(rates));
        reactor.count_request_memory(server.request_memory());
        Ok(Self::Alone(reactor, server))
    }

    /// The reactor and its clients.
    pub(crate) fn parts(&self) -> (Rc<Reactor<D>>, Connections) {
        match self {
            Self::Alone(reactor, server) => (Rc::clone(reactor), server.connections()),
            Self::Beside(reactor, threads) => (Rc::clone(reactor), threads.connections()),
        }
    }

    /// Serves until `shutdown` says how to end, and then closes the array. Returns what goes to another process.
    ///
    /// # Errors
    /// If the array can't be served any more, or not be closed in time.
    pub(crate) async fn serve(
        self,
        listener: Listener,
        shutdown: impl Future<Output = Ending>,
    ) -> Result<Vec<Parting>> {
        let (reactor, _) = self.parts();
        let mut ring = reactor.spawn();
        let served = async {
            let partings = match self {
                Self::Alone(_, server) => partings(server.serve_until(listener, shutdown).await),
                Self::Beside(reactor, threads) => {
                    let (partings, reports) = threads.serve(listener, shutdown).await?;
                    reactor.keep_reports(reports);
                    partings
                }
            };
            reactor.close().await.context(UNCLEAN).map(|()| partings)
        };
        let served = tokio::select! {
            served = served => served,
            error = reactor.stop_given_up() => Err(error.context(UNCLEAN)),
            broken = &mut ring => return broken?.map(|()| Vec::new()),
        };
        ring.abort();
        served
    }
}
