//! The thread that receives clients for arrays that share sockets.

use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use uraid_nbd::{Limits, Listener, Reception, SharedExports, Tls};

use crate::server;
use crate::signals::Stops;

/// The running reception.
pub struct Front {
    exports: SharedExports,
    stops: Stops,
    thread: JoinHandle<Result<()>>,
}

impl Front {
    /// Opens sockets by `open`, and receives clients from then on. `None` if there are none to open.
    ///
    /// # Errors
    /// If they can't be opened.
    ///
    /// # Panics
    /// If the thread does.
    pub fn open(
        open: impl FnOnce() -> Result<Option<Listener>> + Send + 'static,
        limits: Limits,
        tls: Option<Tls>,
    ) -> Result<Option<Self>> {
        let stops = Stops::default();
        let (sender, opened) = mpsc::channel();
        let stopped = stops.clone();
        let run = move || {
            server::run(async {
                // Whoever opens it waits for that.
                let tell = |opened| sender.send(opened).expect("somebody waits");
                let listener = match open() {
                    Ok(Some(listener)) => listener,
                    Ok(None) => {
                        tell(Ok(None));
                        return Ok(());
                    }
                    Err(error) => {
                        tell(Err(error));
                        return Ok(());
                    }
                };
                let exports = SharedExports::new(listener.endpoints().to_vec());
                tell(Ok(Some(exports.clone())));
                Reception::new(exports, limits, tls).run(listener, stopped.heard()).await;
                Ok(())
            })
        };
        let thread = thread::Builder::new().name("reception".into()).spawn(run).context("can't start a thread")?;
        match opened.recv() {
            Ok(exports) => Ok(exports?.map(|exports| Self { exports, stops, thread })),
            Err(_) => thread.join().expect("a panic ends the process").map(|()| None),
        }
    }

    /// The exports that clients are told of.
    #[must_use]
    pub fn exports(&self) -> &SharedExports {
        &self.exports
    }

    /// Closes the sockets.
    ///
    /// # Errors
    /// If the thread had no event loop.
    ///
    /// # Panics
    /// If the thread does.
    pub fn close(self) -> Result<()> {
        self.stops.ask();
        self.thread.join().expect("a panic ends the process")
    }
}
