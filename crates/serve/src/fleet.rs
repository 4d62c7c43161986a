//! Several arrays in one process: each has a thread of its own, and none holds up another. This thread starts and stops
//! them as their [`Plan`]s say, which can change at any time.
//!
//! An array that ends, fails, or can't be opened leaves the others as they are. An array is closed cleanly before it is
//! opened anew; where a stop would lose data it goes on as it is, and where it could not be closed it stays closed.

mod named;
mod thread;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Result, bail};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::spawn_local;

use crate::control::StopRefused;
use crate::metrics::{Exporter, Socket};
use crate::orders::Orders;
use crate::protocol::Request;
use crate::server;
use crate::signals::Signals;
use crate::systemd::{Notifier, States};
use crate::text::{chain, list};
pub use named::Named;
pub use thread::{Berth, Outdated};
use thread::{Handle, News, Teller};

/// How to serve an array.
pub trait Plan: Send + Sync + 'static {
    /// The array's name, by which it is told from others.
    fn name(&self) -> &str;

    /// What it takes to get from this plan to another one for the same array.
    fn change(&self, new: &Self) -> Change;

    /// Opens the array and serves it to its end, on a thread of its own.
    ///
    /// # Errors
    /// If it can't be opened, served or closed.
    fn serve(&self, berth: Berth) -> Result<()>;
}

/// What it takes to get from one plan to another one.
#[derive(Debug, PartialEq)]
pub enum Change {
    /// Nothing.
    None,
    /// These requests to the running server.
    InPlace(Vec<Request>),
    /// Nothing, if the array has these members now. Otherwise it has to be opened anew, because these settings have
    /// changed.
    Renamed(Named, Vec<String>),
    /// The array has to be opened anew, because these settings have changed.
    Restart(Vec<String>),
}

/// Serves arrays until all have ended, or a signal comes. `plans` reads the plans again when a signal asks for that; if
/// it fails nothing changes. `begun` is called when every array is served, or has failed, with the URL of the metrics
/// of all of them, which are served at one of these addresses; if it fails, all arrays are stopped.
///
/// # Errors
/// If an array could not be opened, served or closed the last time that this was tried, and if `begun` fails.
pub fn run<P: Plan>(
    arrays: Vec<P>,
    plans: impl FnMut() -> Result<Vec<P>>,
    signals: &Signals,
    metrics: Option<&[SocketAddr]>,
    begun: impl FnOnce(Option<String>) -> Result<()>,
) -> Result<()> {
    server::run(async {
        let exporter = metrics.map(|addresses| Exporter::new(Socket::listen(addresses)?)).transpose()?;
        let notifier = Rc::new(Notifier::from_env());
        let alive = Rc::clone(&notifier);
        spawn_local(async move { alive.keep_alive().await });
        let entries = Rc::new(RefCell::new(BTreeMap::new()));
        let url = exporter.as_ref().map(Exporter::url);
        if let Some(exporter) = exporter {
            let entries = Rc::clone(&entries);
            spawn_local(exporter.serve_all(move || metered(&entries.borrow())));
        }
        let (teller, news) = unbounded_channel();
        let mut fleet = Fleet {
            arrays: entries,
            teller,
            states: States::default(),
            notifier,
            failed: Vec::new(),
            is_stopping: false,
            is_settled: false,
        };
        arrays.into_iter().for_each(|plan| fleet.start(Arc::new(plan)));
        fleet.run(signals, news, plans, || begun(url)).await
    })
}

/// All arrays, with a way to ask those that are served.
fn metered<P>(arrays: &Arrays<P>) -> Vec<(String, Option<Orders>)> {
    let orders = |array: &Entry<P>| (array.state == State::Served).then(|| array.handle.orders.clone());
    arrays.iter().map(|(name, array)| (name.clone(), orders(array))).collect()
}

/// Arrays by name.
type Arrays<P> = BTreeMap<String, Entry<P>>;

/// One array.
struct Entry<P> {
    plan: Arc<P>,
    handle: Handle,
    state: State,
    next: Next<P>,
}

/// How far an array is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Opening,
    Served,
    /// It was asked to end, maybe before it was served.
    Leaving,
    /// It has ended, and the server had not asked it to.
    Ended,
}

/// What becomes of an array.
enum Next<P> {
    Stay,
    /// There is no plan for it any more.
    Leave,
    /// There is another plan for it.
    Restart(Arc<P>),
}

/// The arrays of a server.
struct Fleet<P> {
    arrays: Rc<RefCell<Arrays<P>>>,
    teller: Teller,
    states: States,
    notifier: Rc<Notifier>,
    /// Arrays that failed last time.
    failed: Vec<String>,
    is_stopping: bool,
    /// Nothing begins or ends now, and the service manager knows.
    is_settled: bool,
}

impl<P: Plan> Fleet<P> {
    /// Runs until all arrays have ended.
    async fn run(
        mut self,
        signals: &Signals,
        mut news: UnboundedReceiver<(String, News)>,
        mut read: impl FnMut() -> Result<Vec<P>>,
        begun: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let (mut begun, mut failed) = (Some(begun), None);
        while !self.is_over() {
            if self.settles() {
                failed = begun.take().and_then(|begun| begun().err());
                if failed.is_some() {
                    self.stop();
                    continue;
                }
                self.notifier.ready();
            }
            tokio::select! {
                Some((name, news)) = news.recv() => self.hear(&name, news),
                () = signals.reload() => self.reload(&mut read),
                () = signals.stops().heard() => self.stop(),
            }
        }
        if !self.is_stopping {
            self.notifier.stopping();
        }
        if let Some(error) = failed {
            return Err(error);
        }
        match self.failed.as_slice() {
            [] => Ok(()),
            failed => bail!("not all arrays were served to a clean end: {}; the log says why", list(failed)),
        }
    }

    fn is_over(&self) -> bool {
        self.arrays.borrow().values().all(|array| array.state == State::Ended)
    }

    /// Whether everything that was to begin or to end has done so now.
    fn settles(&mut self) -> bool {
        let is_under_way = |array: &Entry<P>| matches!(array.state, State::Opening | State::Leaving);
        let was_settled = self.is_settled;
        self.is_settled |= !self.is_stopping && !self.arrays.borrow().values().any(is_under_way);
        self.is_settled && !was_settled
    }

    fn start(&mut self, plan: Arc<P>) {
        let name = plan.name().to_owned();
        self.failed.retain(|failed| *failed != name);
        let notifier = self.notifier.of_array(&name, &self.states);
        let served = Arc::clone(&plan);
        match Handle::start(&name, move |berth| served.serve(berth), self.teller.clone(), notifier) {
            Ok(handle) => {
                let array = Entry { plan, handle, state: State::Opening, next: Next::Stay };
                self.arrays.borrow_mut().insert(name, array);
            }
            Err(error) => self.note_failure(&name, &error),
        }
    }

    fn note_failure(&mut self, name: &str, error: &anyhow::Error) {
        let text = chain(error);
        tracing::error!("the array {name} is not served: {text}");
        self.notifier.of_array(name, &self.states).status(&format!("{name} is not served: {text}"));
        self.failed.push(name.to_owned());
    }

    fn hear(&mut self, name: &str, news: News) {
        match news {
            News::Served => self.note_served(name),
            News::Stays(error) => self.note_stay(name, &error),
            News::Has(named) => self.note_members(name, &named),
            News::Ended(ended) => self.note_end(name, &ended),
        }
    }

    fn note_stay(&mut self, name: &str, error: &anyhow::Error) {
        if let Some(array) = self.arrays.borrow_mut().get_mut(name) {
            tracing::error!("the array {name} goes on as it was: {}", chain(error));
            (array.state, array.next) = (State::Served, Next::Stay);
        }
    }

    /// An array has the members that the last plan names.
    fn note_members(&mut self, name: &str, has: &Named) {
        let mut arrays = self.arrays.borrow_mut();
        let Some(array) = arrays.get_mut(name).filter(|array| array.state == State::Leaving) else { return };
        array.state = State::Served;
        match std::mem::replace(&mut array.next, Next::Stay) {
            Next::Stay => {}
            Next::Leave => {
                array.next = Next::Leave;
                array.leave(name, self.teller.clone(), None);
            }
            Next::Restart(plan) => match array.plan.change(&plan) {
                Change::Renamed(named, _) if named == *has => {
                    tracing::info!("the array {name} has the members that the configuration names now");
                    array.plan = plan;
                }
                // The plans have changed once more.
                _ => {
                    drop(arrays);
                    self.follow_one(name, plan);
                }
            },
        }
    }

    fn note_served(&mut self, name: &str) {
        let mut arrays = self.arrays.borrow_mut();
        let Some(array) = arrays.get_mut(name) else { return };
        array.state = State::Served;
        if self.is_stopping {
            array.handle.stops.ask();
        } else if !matches!(array.next, Next::Stay) {
            // The plans have changed while it was being opened.
            array.leave(name, self.teller.clone(), None);
        }
    }

    fn note_end(&mut self, name: &str, ended: &Result<()>) {
        match ended {
            Ok(()) => self.notifier.of_array(name, &self.states).status(&format!("{name} is stopped")),
            Err(error) => self.note_failure(name, error),
        }
        let Some(mut array) = self.arrays.borrow_mut().remove(name) else { return };
        array.state = State::Ended;
        let next = std::mem::replace(&mut array.next, Next::Stay);
        let is_clean = !self.failed.iter().any(|failed| failed == name);
        match next {
            // What was not closed cleanly is for somebody to look at, before it is opened anew.
            Next::Restart(plan) if is_clean && !self.is_stopping => self.start(plan),
            Next::Leave => drop(self.states.lock().expect("a panic ends the process").remove(name)),
            Next::Stay | Next::Restart(_) => drop(self.arrays.borrow_mut().insert(name.to_owned(), array)),
        }
    }

    /// Ends all arrays, side by side; at a second signal, without waiting for administrators' programs.
    fn stop(&mut self) {
        self.notifier.stopping();
        self.is_stopping = true;
        for (name, array) in self.arrays.borrow_mut().iter_mut() {
            if array.state != State::Ended && array.handle.abandon() {
                tracing::warn!("the array {name} was being opened; the next start goes on from here");
                array.state = State::Ended;
            } else {
                array.handle.stops.ask();
            }
        }
    }

    /// Reads the plans again, and follows them; if anything in them is wrong, does nothing.
    fn reload(&mut self, read: &mut impl FnMut() -> Result<Vec<P>>) {
        if self.is_stopping {
            return;
        }
        self.notifier.reloading();
        self.is_settled = false;
        match read() {
            Ok(plans) => self.follow(plans),
            Err(error) => {
                let text = format!("nothing has changed, because of the configuration: {}", chain(&error));
                tracing::error!("{text}");
                self.notifier.status(&text);
            }
        }
    }

    fn follow(&mut self, plans: Vec<P>) {
        let plans = plans.into_iter().map(|plan| (plan.name().to_owned(), Arc::new(plan)));
        let mut new: BTreeMap<String, Arc<P>> = plans.collect();
        let names: Vec<String> = self.arrays.borrow().keys().cloned().collect();
        for name in names {
            match new.remove(&name) {
                Some(plan) => self.follow_one(&name, plan),
                None => self.dismiss(&name),
            }
        }
        for (name, plan) in new {
            tracing::info!("the array {name} is new");
            self.start(plan);
        }
    }

    /// There is a plan for an array, as before or another one.
    fn follow_one(&mut self, name: &str, plan: Arc<P>) {
        let mut arrays = self.arrays.borrow_mut();
        let array = arrays.get_mut(name).expect("it is there");
        if array.state == State::Ended {
            drop(arrays);
            tracing::info!("the array {name} is not served: it is opened again");
            return self.start(plan);
        }
        match array.plan.change(&plan) {
            Change::None => array.next = Next::Stay,
            Change::InPlace(requests) if array.state == State::Served => {
                array.plan = plan;
                array.order(name, requests);
            }
            Change::InPlace(_) => {
                array.next = Next::Restart(plan);
                array.stop_opening();
            }
            Change::Renamed(named, keys) if array.state == State::Served => {
                array.next = Next::Restart(plan);
                array.leave(name, self.teller.clone(), Some((named, keys)));
            }
            Change::Renamed(_, keys) | Change::Restart(keys) => {
                let is_served = array.state == State::Served;
                say_restart(name, &keys, is_served);
                array.next = Next::Restart(plan);
                if is_served {
                    array.leave(name, self.teller.clone(), None);
                } else {
                    array.stop_opening();
                }
            }
        }
        if array.state == State::Leaving && matches!(array.next, Next::Stay) {
            // It is ending, and is wanted as it was.
            array.next = Next::Restart(Arc::clone(&array.plan));
        }
    }

    /// There is no plan for an array any more.
    fn dismiss(&mut self, name: &str) {
        let mut arrays = self.arrays.borrow_mut();
        let array = arrays.get_mut(name).expect("it is there");
        if array.state == State::Ended {
            arrays.remove(name);
            self.failed.retain(|failed| failed != name);
            self.states.lock().expect("a panic ends the process").remove(name);
            return;
        }
        if matches!(array.next, Next::Leave) {
            return;
        }
        tracing::warn!("the array {name} is stopped: the configuration does not have it any more");
        array.next = Next::Leave;
        if array.state == State::Served {
            array.leave(name, self.teller.clone(), None);
        } else {
            array.stop_opening();
        }
    }
}

fn say_restart(name: &str, keys: &[String], is_served: bool) {
    let clients = if is_served { ", and its clients are disconnected" } else { "" };
    tracing::warn!("the array {name} is opened anew{clients}: {} changed", list(keys));
}

impl<P> Entry<P> {
    /// Has an array that is not served yet wait no longer for members. If it does not wait, it is opened all the same,
    /// and ends then.
    fn stop_opening(&mut self) {
        self.state = State::Leaving;
        self.handle.outdate();
    }

    /// Has the array end, unless that would lose data, or it has the members that another plan names, which has other
    /// keys.
    fn leave(&mut self, name: &str, teller: Teller, unless: Option<(Named, Vec<String>)>) {
        self.state = State::Leaving;
        let (orders, name) = (self.handle.orders.clone(), name.to_owned());
        spawn_local(async move {
            if let Some((named, keys)) = unless {
                if named.are_in_use(&orders).await {
                    let _ = teller.send((name, News::Has(named)));
                    return;
                }
                say_restart(&name, &keys, true);
            }
            // How an array ends that does is told by its thread.
            if let Err(error) = orders.order(Request::Stop { force: false }).await
                && error.is::<StopRefused>()
            {
                let _ = teller.send((name, News::Stays(error)));
            }
        });
    }

    /// Has the running server change settings.
    fn order(&self, name: &str, requests: Vec<Request>) {
        let (orders, name) = (self.handle.orders.clone(), name.to_owned());
        spawn_local(async move {
            for request in requests {
                if let Err(error) = orders.order(request).await {
                    tracing::error!("a setting of the array {name} stays as it was: {}", chain(&error));
                }
            }
            tracing::info!("the array {name} has its new settings");
        });
    }
}
