//! The thread of one of several arrays, from opening its members to releasing them.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use tokio::sync::mpsc::UnboundedSender;
use uraid_io::array::Array;

use super::Named;
use crate::disk::LiveDisk;
use crate::orders::{Inbox, Orders, orders};
use crate::server::{self, Offer, Options, Reachable, Sockets};
use crate::signals::Stops;
use crate::systemd::Notifier;

/// What an array's thread tells.
pub(super) enum News {
    /// Clients can connect.
    Served,
    /// The array has the members that a plan names.
    Has(Named),
    /// It was asked to stop, and refuses.
    Stays(anyhow::Error),
    /// The thread has ended.
    Ended(Result<()>),
}

/// News, with the array's name.
pub(super) type Teller = UnboundedSender<(String, News)>;

/// A way to the thread of an array.
pub(super) struct Handle {
    pub(super) orders: Orders,
    pub(super) stops: Stops,
    turn: Arc<Mutex<Turn>>,
    is_outdated: Arc<AtomicBool>,
}

/// An array was not opened, because its plan is not the last one.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("it is to be served in another way, or not at all")]
pub struct Outdated;

/// Whose turn it is to say what becomes of an array that is being opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Opening,
    Serving,
    /// It is not to be served any more.
    Abandoned,
}

/// What a thread serves its array with.
pub struct Berth {
    name: String,
    notifier: Rc<Notifier>,
    inbox: Inbox,
    stops: Stops,
    turn: Arc<Mutex<Turn>>,
    is_outdated: Arc<AtomicBool>,
    teller: Teller,
}

impl Handle {
    /// Starts a thread for the array of this name, which `serve` opens and serves to its end.
    ///
    /// # Errors
    /// If the system can't start a thread.
    pub(super) fn start(
        name: &str,
        serve: impl FnOnce(Berth) -> Result<()> + Send + 'static,
        teller: Teller,
        notifier: Notifier,
    ) -> Result<Self> {
        let (orders, inbox) = orders();
        let (stops, turn) = (Stops::default(), Arc::new(Mutex::new(Turn::Opening)));
        let is_outdated = Arc::<AtomicBool>::default();
        let handle =
            Self { orders, stops: stops.clone(), turn: Arc::clone(&turn), is_outdated: Arc::clone(&is_outdated) };
        let name = name.to_owned();
        let thread = thread::Builder::new().name(name.clone());
        let run = move || {
            let _span = tracing::error_span!("serving", array = %name).entered();
            let notifier = Rc::new(notifier);
            let berth = Berth { name: name.clone(), notifier, inbox, stops, turn, is_outdated, teller: teller.clone() };
            let ended = serve(berth).or_else(|error| if error.is::<Outdated>() { Ok(()) } else { Err(error) });
            // Nobody hears of what was abandoned.
            let _ = teller.send((name, News::Ended(ended)));
        };
        thread.spawn(run).context("can't start a thread")?;
        Ok(handle)
    }

    /// Has an array that still waits for members not be opened: [`Berth::ensure_current`].
    pub(super) fn outdate(&self) {
        self.is_outdated.store(true, Ordering::Relaxed);
    }

    /// Gives up an array that is being opened; false if it is served already. What its thread does can't be cut short:
    /// it goes on until its end or that of the process, which the next start takes for a crash.
    pub(super) fn abandon(&self) -> bool {
        let mut turn = self.turn.lock().expect("a panic ends the process");
        if *turn == Turn::Opening {
            *turn = Turn::Abandoned;
        }
        *turn == Turn::Abandoned
    }
}

impl Berth {
    /// For the service manager.
    #[must_use]
    pub fn notifier(&self) -> &Rc<Notifier> {
        &self.notifier
    }

    /// To be asked while the start waits for something that another plan may do without.
    ///
    /// # Errors
    /// [`Outdated`], which [`super::Plan::serve`] returns.
    pub fn ensure_current(&self) -> Result<()> {
        ensure!(!self.is_outdated.load(Ordering::Relaxed), Outdated);
        Ok(())
    }

    /// Serves the array, as [`server::serve`] does; or not at all, if it was given up while it was being opened.
    ///
    /// # Errors
    /// As [`server::serve`].
    ///
    /// # Panics
    /// If another thread panicked.
    pub fn serve<D: LiveDisk>(
        self,
        array: Array<D>,
        options: Options,
        open: impl FnOnce(Offer) -> Result<Sockets>,
        announce: impl FnOnce(&Reachable<'_>) -> Result<()>,
    ) -> Result<()> {
        let Self { name, notifier, inbox, stops, turn, teller, .. } = self;
        {
            let mut turn = turn.lock().expect("a panic ends the process");
            if *turn == Turn::Abandoned {
                return Ok(());
            }
            *turn = Turn::Serving;
        }
        let announce = |reachable: &Reachable<'_>| {
            announce(reachable)?;
            let _ = teller.send((name, News::Served));
            Ok(())
        };
        let options = Options { inbox: Some(inbox), ..options };
        server::run(server::serve(array, options, &stops, notifier, open, announce)).map(drop)
    }
}
