//! The order in which a server starts and stops.
//!
//! Clients are accepted when everything else is ready. When the server stops, clients' requests end first, then the
//! members are marked clean and released, and then those are told who wait for that.

use std::cell::Cell;
use std::convert::Infallible;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use uraid_io::array::Array;
use uraid_layout::{Bytes, MemberSet};
use uraid_nbd::{Ending, Endpoint, ExportInfo, Listener, RateLimits, Rates, Scheme, Tls, UnixSocket, when_woken};

use crate::captive::{self, Captive};
use crate::clients::Clients;
use crate::confinement::Confinement;
use crate::control::returns::Returns;
use crate::control::scrubs::Scrubs;
use crate::control::socket::{self, Door};
use crate::control::spares::Spares;
use crate::control::{Control, Parts};
use crate::description::{Config, Description, Place};
use crate::disk::LiveDisk;
use crate::domains::Domain;
use crate::events::{HOOK_TIME_MAX, Hook, Watcher};
use crate::export_size::ExportSize;
use crate::logging;
use crate::metrics::{self, Exporter};
use crate::orders::Inbox;
use crate::reactor::members::Members;
use crate::reactor::{Reactor, Settings, deleted, hedging, holes, laggards};
use crate::running::Registration;
use crate::service::Service;
use crate::signals::Stops;
use crate::smart::Smart;
use crate::spare::Spare;
use crate::systemd::Notifier;
use crate::takeover::Left;

/// How an array is served, and what goes on beside.
#[derive(Debug)]
pub struct Options {
    /// What clients are told of the array.
    pub info: ExportInfo,
    /// Settings of the thread that runs the engine.
    pub settings: Settings,
    /// Threads that serve connections; 0: the engine's thread does.
    pub connection_threads: u8,
    /// If set, clients are served over TLS alone.
    pub tls: Option<Tls>,
    /// In the order in which they are used.
    pub spares: Vec<Spare>,
    /// Which members fail together.
    pub domains: Vec<Domain>,
    /// How long the server of a member on a network has to answer again before the member returns; none: it does not
    /// return by itself.
    pub rejoin_after: Option<Duration>,
    /// Where the settings come from, if that is a file.
    pub config: Option<Config>,
    /// What the server has given up when it has started.
    pub confinement: Confinement,
    /// Most bytes per second to rebuild on each member.
    pub rebuild_limit: Option<Bytes>,
    /// Most bytes per second that scrubs read from each member.
    pub scrub_limit: Option<Bytes>,
    /// Most bytes of content per second that a reshape moves.
    pub reshape_limit: Option<Bytes>,
    /// How fast clients may go on.
    pub client_rates: RateLimits,
    /// How often to scrub.
    pub scrub_every: Option<Duration>,
    /// Where metrics are served.
    pub metrics: Option<metrics::Socket>,
    /// The administrator's program, which is run for each event.
    pub on_event: Option<PathBuf>,
    /// Asks disks whether they are failing.
    pub smart: Option<Smart>,
    /// A command that runs as long as the array is served.
    pub run: Option<OsString>,
    /// Requests from within the process.
    pub inbox: Option<Inbox>,
}

/// Says what clients who connect now are told of the array.
pub type Offer = Box<dyn Fn() -> ExportInfo + Send + Sync>;

/// The sockets of a server.
#[derive(Debug)]
pub struct Sockets {
    /// Where clients connect.
    pub listener: Listener,
    /// Where administrators connect.
    pub control: Option<UnixSocket>,
}

/// Where a server can be reached.
#[derive(Debug)]
pub struct Reachable<'a> {
    /// Where clients connect: at least one.
    pub endpoints: &'a [Endpoint],
    /// How they speak.
    pub scheme: Scheme,
    /// What clients are told of the array.
    pub info: &'a ExportInfo,
    /// What the array is read and written in: smaller requests cost a read.
    pub unit: Bytes,
    /// The URL of the metrics.
    pub metrics: Option<String>,
}

/// Runs what [`serve`] does, or something that includes it, in an event loop of this thread.
///
/// # Errors
/// As `served`, and if there can be no event loop.
pub fn run<T>(served: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = LocalSet::new().block_on(&runtime, when_woken(served));
    // A hanging file system must not delay the exit.
    runtime.shutdown_background();
    served
}

/// Serves an array until `stops` or an administrator asks for its end, or its command ends. `open` opens the sockets;
/// `announce` is called when clients can connect. To be [run](run()) in an event loop. Returns how the command has
/// ended, if there is one.
///
/// # Errors
/// If the array can't be served, its members could not be marked clean, or the command does not end.
pub async fn serve<D: LiveDisk>(
    array: Array<D>,
    options: Options,
    stops: &Stops,
    notifier: Rc<Notifier>,
    open: impl FnOnce(Offer) -> Result<Sockets>,
    announce: impl FnOnce(&Reachable<'_>) -> Result<()>,
) -> Result<Option<ExitStatus>> {
    let Options { info, settings, connection_threads, tls, config, confinement, scrub_every, .. } = options;
    let hook = options.on_event.as_deref().map(|program| Hook::new(program, HOOK_TIME_MAX)).transpose()?;
    let size = ExportSize::new(&info);
    let (told, export) = (size.clone(), info.clone());
    let Sockets { listener, control: socket } = open(Box::new(move || told.of(&export)))?;
    let exporter = options.metrics.map(Exporter::new).transpose()?;
    let (is_read_only, unit) = (info.read_only, array.superblock.unit().bytes());
    let scheme = if tls.is_some() { Scheme::Nbds } else { Scheme::Nbd };
    let place = place(&listener, scheme, &info.name, exporter.as_ref());
    let description = Description::new(&array, place, is_read_only, connection_threads, options.spares);
    let description = Rc::new(Description { config, confinement, domains: options.domains, ..description });
    let rates = Arc::new(Rates::new(options.client_rates));
    let service = Service::start(array, &info, size, settings, connection_threads, tls.clone(), &rates)?;
    let (reactor, connections) = service.parts();
    let clients = Clients { connections, connections_max: settings.limits.connections_max, rates };
    let members = Rc::new(Members::new(Rc::clone(&reactor)));
    let parts = Parts {
        returns: Returns::new(&description, &reactor, &members, options.rejoin_after),
        spares: Rc::new(Spares::new(Rc::clone(&description), Rc::clone(&reactor), Rc::clone(&members))),
        scrubs: Rc::new(Scrubs::new(Rc::clone(&reactor), description.created)),
        description,
        reactor,
        clients: clients.clone(),
        members,
    };
    let Parts { description, reactor, .. } = &parts;
    let control = Rc::new(Control::new(&parts, stays(options.run.is_some(), options.inbox.is_some()), tls));
    control.limit_background(options.rebuild_limit, options.scrub_limit, options.reshape_limit);
    let (door, registration) = listen_to_administrators(&control, socket, options.inbox);
    let metrics = exporter.as_ref().map(Exporter::url);
    holes::search(Rc::clone(reactor)).await;
    announce(&Reachable { endpoints: listener.endpoints(), scheme, info: &info, unit, metrics })?;
    let exporting = exporter.map(|exporter| exporter.spawn(Rc::clone(reactor), Rc::clone(description), clients));
    notifier.ready();
    let alive = Rc::clone(&notifier);
    spawn_local(async move { alive.keep_alive().await });
    let summing = logging::sum_up()?;
    let watched = Rc::clone(description);
    reactor.watch(|now| Watcher::new(watched, now, hook, Rc::clone(&notifier)));
    let upkeep = spawn_upkeep(&parts, &control, is_read_only, scrub_every, options.smart);
    let variables = captive::variables(listener.endpoints(), scheme, &info.name);
    let captive = options.run.map(|command| Captive::start(&command, &variables)).transpose()?;
    let known = Cell::new(MemberSet::EMPTY);
    let stop = async {
        let ending = stop(&parts, &control, stops, captive.as_ref(), &notifier, &known).await;
        upkeep.iter().for_each(JoinHandle::abort);
        ending
    };
    let has_insisted = Cell::new(false);
    let closed = tokio::select! {
        served = service.serve(listener, stop) => served,
        never = say_to_who_insists(reactor, stops, &has_insisted) => match never {},
    };
    if has_insisted.get() {
        // Who is in a hurry does not wait for programs either.
        stops.ask();
    }
    let (closed, partings) = closed.map_or_else(|error| (Err(error), Vec::new()), |partings| (Ok(()), partings));
    let lost = reactor.vacancies().minus(known.get());
    reactor.finish_disowning().await;
    let members = if closed.is_ok() && control.is_handing_over() { reactor.leave_members() } else { Vec::new() };
    // Anyone waiting for the end may serve the array again at once, even though this process still has to notify the
    // program.
    reactor.release(closed.is_ok());
    let metrics = match exporting {
        Some(exporting) => exporting.end().await.filter(|_| control.is_handing_over()),
        None => None,
    };
    door.close().await;
    let ended = control.end(&closed, lost, Left { members, partings, metrics }, &notifier).await;
    if let Some(watcher) = reactor.watcher() {
        watcher.end(stops.heard()).await;
    }
    drop((summing, registration));
    closed.and(ended).and(Captive::finish(captive, stops.heard()).await)
}

/// Waits for a stop, and begins it: how the server ends. `known` becomes the slots without a member by then.
async fn stop<D: LiveDisk>(
    parts: &Parts<D>,
    control: &Control<D>,
    stops: &Stops,
    captive: Option<&Captive>,
    notifier: &Notifier,
    known: &Cell<MemberSet>,
) -> Ending {
    let Parts { reactor, members, scrubs, .. } = parts;
    let ending = tokio::select! {
        ending = control.stopped() => ending,
        () = stops.heard() => Ending::Close,
        () = Captive::any_ended(captive) => Ending::Close,
    };
    reactor.begin_stop();
    if ending == Ending::Close {
        notifier.stopping();
    }
    captive.into_iter().for_each(Captive::end);
    known.set(reactor.vacancies());
    // Deleted members end with the server, and the next start must not wait for them.
    deleted::give_up(reactor, members).await;
    Box::pin(scrubs.end()).await;
    ending
}

/// Says in the log what a stop waits for, whenever another one is asked for.
async fn say_to_who_insists<D: LiveDisk>(reactor: &Reactor<D>, stops: &Stops, has_insisted: &Cell<bool>) -> Infallible {
    reactor.stop_begun().await;
    loop {
        stops.heard().await;
        has_insisted.set(true);
        reactor.say_what_stops();
    }
}

/// Where clients connect, and where metrics are served.
fn place(listener: &Listener, scheme: Scheme, export: &str, exporter: Option<&Exporter>) -> Place {
    let uri = listener.endpoint().uri(scheme, export);
    Place { uri, endpoints: listener.endpoints().to_vec(), metrics: exporter.map(Exporter::address) }
}

/// Why no other process can go on with clients and sockets of an array with a command, or among several.
fn stays(has_command: bool, has_others: bool) -> Option<&'static str> {
    if has_command {
        return Some("the server has a command, with which it ends: no other can take over from it");
    }
    has_others.then_some("the server serves several arrays, and no other can take over one of them: restart it")
}

/// Begins to answer administrators, and lets commands find their socket as long as the registration exists.
fn listen_to_administrators<D: LiveDisk>(
    control: &Rc<Control<D>>,
    socket: Option<UnixSocket>,
    inbox: Option<Inbox>,
) -> (Rc<Door>, Option<Registration>) {
    if let Some(inbox) = inbox {
        spawn_local(Rc::clone(control).take_orders(inbox));
    }
    let registration = socket.as_ref().and_then(|socket| Registration::new(socket.path()));
    let door = Rc::<Door>::default();
    if let Some(socket) = socket {
        spawn_local(socket::serve(Rc::clone(control), socket, Rc::clone(&door)));
    }
    (door, registration)
}

/// Begins what goes on beside the clients until a stop: scrubs, spares, members that return, and a look at the members
/// now and then.
fn spawn_upkeep<D: LiveDisk>(
    parts: &Parts<D>,
    control: &Rc<Control<D>>,
    is_read_only: bool,
    scrub_every: Option<Duration>,
    smart: Option<Smart>,
) -> Vec<JoinHandle<()>> {
    let Parts { reactor, members, spares, returns, scrubs, .. } = parts;
    let reshaping = Rc::clone(control);
    let mut upkeep = vec![
        spawn_local(async move { reshaping.look_after_reshapes().await }),
        spawn_local(Rc::clone(scrubs).look_after(scrub_every)),
        spawn_local(deleted::watch(Rc::clone(reactor), Rc::clone(members))),
        spawn_local(laggards::watch(Rc::clone(reactor))),
        spawn_local(hedging::watch(Rc::clone(reactor))),
    ];
    if !is_read_only {
        scrubs.resume();
        upkeep.push(spawn_local(Rc::clone(spares).keep_whole()));
        upkeep.push(spawn_local(Rc::clone(returns).fetch_all()));
    }
    upkeep.extend(smart.map(|smart| spawn_local(smart.look_after_disks(Rc::clone(reactor)))));
    upkeep
}
