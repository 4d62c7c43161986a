//! `uraid serve`: serves an array as a network block device, in the foreground.

mod late;
mod start;

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf, absolute};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Signal, getppid, getrlimit, set_parent_process_death_signal};
use tokio::task::{LocalSet, spawn_local};
use uraid_io::array::Array;
use uraid_io::engine::CacheMode;
use uraid_layout::{Bytes, MemberSet};
use uraid_nbd::{BlockSizes, Connections, Endpoint, ExportInfo, Listener, Server, UnixSocket, descriptors_needed};

use crate::about::About;
use crate::args::{BusyPoll, CacheName, EndpointArgs, ListenAt, Misuse, ReadAhead, ServeArgs, WatchArgs};
use crate::connections::{self, ConnectionThreads};
use crate::control::{self, Control};
use crate::events::{HOOK_TIME_MAX, Hook, Watcher, check_program};
use crate::logging;
use crate::metrics::Exporter;
use crate::reactor::{Caching, KEPT, LastResort, Reactor, Settings};
use crate::recorder::Recorder;
use crate::running::Registration;
use crate::signals::{Signals, outlive_file_limits};
use crate::smart::Smart;
use crate::systemd::{self, Notifier};
use crate::terminal::{print, quoted};
use start::{Started, start};

/// How long `--busy-poll auto` polls for the next command: slightly longer than a client on another core takes to wake
/// up. It only polls if none of the kernel's worker threads needs the core.
const BUSY_POLL: Duration = Duration::from_micros(50);

/// Memory of the cache, on machines with at least eight times as much.
const CACHE_BYTES: Bytes = Bytes(256 << 20);

/// Maximum read-ahead with `--read-ahead auto` for each client that reads sequentially, if members are on disks.
const READ_AHEAD: Bytes = Bytes(2 << 20);

/// Minimum of the default limit for clients' requests in flight: two of the largest. The default is the cache's size if
/// that is larger.
const REQUEST_MEMORY_MIN: Bytes = Bytes(2 * REQUEST_BYTES_MAX as u64);

/// Maximum data of one request.
const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// File descriptors of a server without members, and of each connection thread.
const DESCRIPTORS: u64 = 20;
const DESCRIPTORS_OF_THREAD: u64 = 4;

/// How long a stop may take before a log message says what it waits for.
const STOP_SAID_AFTER: Duration = Duration::from_secs(2);

/// Serves until SIGINT or SIGTERM.
pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    ensure_descriptors(args)?;
    outlive_file_limits()?;
    ensure_two_sockets(args)?;
    if args.exit_with_parent {
        exit_with_parent()?;
    }
    args.watch.on_event.as_deref().map_or(Ok(()), check_program)?;
    let smart = args.watch.smart_every.map(Smart::new).transpose()?;
    let (signals, notifier) = (Signals::listen()?, Rc::new(Notifier::from_env()));
    let addresses = args.endpoint.listen.as_ref().map(ListenAt::addresses).transpose()?;
    let metrics = args.watch.metrics.as_ref().map(ListenAt::addresses).transpose()?;
    let started = start(args, &notifier)?;
    signals.hand_over();
    let info = info(&started.array, args);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = LocalSet::new()
        .block_on(&runtime, serve(started, info, args, Outside { addresses, metrics, smart }, &signals, notifier));
    // A hanging file system must not delay the exit.
    runtime.shutdown_background();
    served
}

/// Refuses a limit of open files that is too low for the members and one client, before it makes anything else fail.
fn ensure_descriptors(args: &ServeArgs) -> Result<()> {
    let members = args.members.len() + args.spares.len();
    let own = DESCRIPTORS + DESCRIPTORS_OF_THREAD * u64::from(args.connection_threads);
    let needed = descriptors_needed(own + members as u64);
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    ensure!(
        limit >= needed,
        "the limit of open files is {limit}, and serving {members} members needs {needed}: raise it (ulimit -n, or \
         LimitNOFILE= of the unit)"
    );
    Ok(())
}

/// Lets the end of the parent process count as SIGTERM.
fn exit_with_parent() -> Result<()> {
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::TERM)).context("--exit-with-parent")?;
    ensure!(getppid() == parent, "the process that started the server has ended");
    Ok(())
}

/// Refuses the same socket for clients and for administrators.
fn ensure_two_sockets(args: &ServeArgs) -> Result<()> {
    let (Some(control), None) = (&args.watch.control, &args.endpoint.listen) else { return Ok(()) };
    let socket = args.endpoint.socket.clone().unwrap_or_else(|| default_socket(&args.members));
    ensure!(
        absolute(control)? != absolute(&socket)?,
        Misuse(format!("--control: {} is the socket for clients: name another file", control.display()))
    );
    Ok(())
}

fn info(array: &Array, args: &ServeArgs) -> ExportInfo {
    let minimum_bytes = u32::try_from(array.alignment().0).unwrap_or(512);
    ExportInfo {
        name: args.endpoint.export.clone().unwrap_or_else(|| array.superblock.name.clone()),
        description: format!("{} of {} members", array.geometry.spec().level, array.geometry.members()),
        block_sizes: BlockSizes {
            minimum_bytes,
            preferred_bytes: minimum_bytes.max(4096),
            maximum_bytes: REQUEST_BYTES_MAX,
        },
        read_only: args.read_only,
        ..ExportInfo::new(array.geometry.capacity().bytes().0)
    }
}

fn settings(array: &Array, args: &ServeArgs) -> Settings {
    let busy_poll = match args.busy_poll {
        BusyPoll::For(window) => window,
        BusyPoll::Auto if array.is_in_memory() => BUSY_POLL,
        BusyPoll::Auto => Duration::ZERO,
    };
    let read_ahead = match args.cache.read_ahead {
        ReadAhead::UpTo(largest) => largest,
        ReadAhead::Auto if array.is_in_memory() => Bytes(0),
        ReadAhead::Auto => READ_AHEAD,
    };
    let caching = caching(args).map(|(mode, size)| Caching { mode, size, read_ahead });
    let stale = array.stale.iter().map(|stale| stale.slot).collect();
    let last_resort = LastResort { stale, is_partial: array.unreadable().is_some() };
    let cached = caching.map_or(Bytes(0), |caching| caching.size);
    let request_memory = args.cache.request_memory.unwrap_or(cached.max(REQUEST_MEMORY_MIN));
    Settings { busy_poll, caching, request_memory, patience: args.patience.into(), last_resort }
}

/// Resources checked before the array is opened.
struct Outside {
    /// Addresses to listen at, for TCP.
    addresses: Option<Vec<SocketAddr>>,
    /// Addresses for metrics. The first usable one serves them.
    metrics: Option<Vec<SocketAddr>>,
    smart: Option<Smart>,
}

async fn serve(
    Started { array, spares }: Started,
    info: ExportInfo,
    args: &ServeArgs,
    Outside { addresses, metrics, smart }: Outside,
    signals: &Signals,
    notifier: Rc<Notifier>,
) -> Result<()> {
    let hook = args.watch.on_event.as_deref().map(|program| Hook::new(program, HOOK_TIME_MAX)).transpose()?;
    let listener = listener(&args.endpoint, addresses.as_deref(), &args.members)?;
    let socket = control_socket(listener.endpoint(), &args.watch)?;
    let exporter = match metrics {
        Some(addresses) => Some(Exporter::listen(&addresses).await?),
        None => None,
    };
    let settings = settings(&array, args);
    let threads = args.connection_threads;
    let about = About::new(&array, listener.endpoint().uri(&info.name), args.read_only, threads, spares);
    let about = Rc::new(About { config: args.config.clone(), ..about });
    let service = Service::start(array, &info, settings, threads)?;
    let (reactor, connections) = service.parts();
    let control = Rc::new(Control::new(Rc::clone(&about), Rc::clone(&reactor), connections));
    control.limit_rebuilds(args.limits.rebuild_limit.0);
    control.limit_scrubs(args.limits.scrub_limit.0);
    let registration = socket.as_ref().and_then(|socket| Registration::new(socket.path()));
    if let Some(socket) = socket {
        spawn_local(control::serve(Rc::clone(&control), socket));
    }
    announce(listener.endpoints(), &info)?;
    let mut exporting = None;
    if let Some(exporter) = exporter {
        print(format_args!("metrics at {}", exporter.url()))?;
        exporting = Some(exporter.spawn(Rc::clone(&reactor), Rc::clone(&about)));
    }
    notifier.ready();
    let alive = Rc::clone(&notifier);
    spawn_local(async move { alive.keep_alive().await });
    let summing = logging::sum_up()?;
    reactor.watch(|now| Watcher::new(about, now, hook, Rc::clone(&notifier)));
    if !args.read_only {
        control.resume_scrub();
    }
    spawn_local(Rc::clone(&control).look_after_scrubs(args.scrub_every));
    if !args.read_only {
        spawn_local(Rc::clone(&control).keep_whole());
    }
    if let Some(smart) = smart {
        spawn_local(smart.look_after_disks(Rc::clone(&reactor)));
    }
    let known = Cell::new(MemberSet::EMPTY);
    let stop = async {
        tokio::select! {
            () = control.stopped() => {}
            () = signals.heard() => {}
        }
        notifier.stopping();
        known.set(reactor.vacancies());
        // Deleted members end with the server, and the next start must not wait for them.
        reactor.give_up_deleted().await;
        spawn_local(say_what_stops(Rc::clone(&reactor)));
        Box::pin(control.end_scrub()).await;
    };
    let served = service.serve(listener, stop).await;
    let closed = served
        .and_then(|()| reactor.close().context("the members could not be marked clean; the next start checks them"));
    let lost = reactor.vacancies().minus(known.get());
    reactor.finish_disowning().await;
    // Anyone waiting for the end may serve the array again at once, even though this process still has to notify the
    // program.
    reactor.release();
    if let Some(exporting) = exporting {
        exporting.abort();
        let _ = exporting.await;
    }
    control.close_door().await;
    control.end(&closed, lost).await;
    if let Some(watcher) = reactor.watcher() {
        watcher.end(signals.heard()).await;
    }
    drop((summing, registration));
    closed
}

/// Logs what a slow stop waits for while clients' requests are in flight.
async fn say_what_stops(reactor: Rc<Reactor>) {
    tokio::time::sleep(STOP_SAID_AFTER).await;
    let requests = reactor.under_way();
    if requests > 0 {
        tracing::warn!(requests, "stopping waits for what clients have asked for");
    }
}

/// The array's reactor, and what serves its clients: the same thread, or connection threads.
enum Service {
    Alone(Rc<Reactor>, Server<Reactor>),
    Beside(Rc<Reactor>, ConnectionThreads),
}

impl Service {
    fn start(array: Array, info: &ExportInfo, settings: Settings, threads: u8) -> Result<Self> {
        if threads > 0 {
            let recorder = Arc::<Recorder>::default();
            let options = connections::Options {
                info: info.clone(),
                limits: settings.limits(threads),
                kept: Bytes(KEPT.0 / u64::from(threads)),
                busy_poll: settings.busy_poll,
                recorder: Arc::clone(&recorder),
            };
            let (threads, callers) = ConnectionThreads::start(threads.into(), &options)?;
            let reactor = Reactor::new(array.into_engine()?, info.clone(), settings, Some(callers), recorder);
            return Ok(Self::Beside(Rc::new(reactor), threads));
        }
        let reactor = Rc::new(Reactor::new(array.into_engine()?, info.clone(), settings, None, Arc::default()));
        let server = Server::new(Rc::clone(&reactor), settings.limits(1))?;
        reactor.count_request_memory(server.request_memory());
        Ok(Self::Alone(reactor, server))
    }

    /// The reactor and its clients.
    fn parts(&self) -> (Rc<Reactor>, Connections) {
        match self {
            Self::Alone(reactor, server) => (Rc::clone(reactor), server.connections()),
            Self::Beside(reactor, threads) => (Rc::clone(reactor), threads.connections()),
        }
    }

    /// Serves until `shutdown` completes.
    async fn serve(self, listener: Listener, shutdown: impl Future<Output = ()>) -> Result<()> {
        let mut ring = self.parts().0.spawn();
        let served = async {
            match self {
                Self::Alone(_, server) => {
                    warn_unless(server.serve(listener, shutdown).await);
                    Ok(())
                }
                Self::Beside(_, threads) => threads.serve(listener, shutdown).await,
            }
        };
        tokio::select! {
            served = served => served?,
            broken = &mut ring => return broken?,
        }
        ring.abort();
        Ok(())
    }
}

/// Logs a warning if a shutdown did not wait for all replies.
pub(crate) fn warn_unless(answered: bool) {
    if !answered {
        tracing::warn!("some requests were not answered in time");
    }
}

/// The cache mode and the cache's memory.
fn caching(args: &ServeArgs) -> Option<(CacheMode, Bytes)> {
    let mode = match args.cache.cache {
        CacheName::Writeback => CacheMode::WriteBack,
        CacheName::Writethrough => CacheMode::WriteThrough,
        CacheName::None => return None,
    };
    let memory = rustix::system::sysinfo();
    let eighth = (memory.totalram as u64).saturating_mul(memory.mem_unit.into()) / 8;
    let size = args.cache.cache_size.unwrap_or(Bytes(CACHE_BYTES.0.min(eighth)));
    // A read-only array still uses the cache for read-ahead.
    Some((if args.read_only { CacheMode::WriteThrough } else { mode }, size))
}

fn listener(endpoint: &EndpointArgs, addresses: Option<&[SocketAddr]>, members: &[PathBuf]) -> Result<Listener> {
    if let Some(socket) = systemd::inherited()? {
        let listener = Listener::inherit(socket)?;
        let is_asked_for = match (listener.endpoint(), &endpoint.socket, addresses) {
            (_, None, None) => true,
            (Endpoint::Unix(path), Some(socket), _) => absolute(socket)? == *path,
            (Endpoint::Tcp(address), _, Some(addresses)) => addresses.contains(address),
            _ => false,
        };
        let got = listener.endpoint();
        ensure!(
            is_asked_for,
            Misuse(format!("the service manager handed over {got}: leave --socket and --listen out, or name it"))
        );
        return Ok(listener);
    }
    let listener = match (&endpoint.socket, addresses) {
        (_, Some(addresses)) => Listener::tcp(addresses)?,
        (Some(socket), None) => Listener::unix(socket)?,
        (None, None) => Listener::unix(&default_socket(members))?,
    };
    Ok(listener)
}

/// The control socket, if there is one.
fn control_socket(endpoint: &Endpoint, args: &WatchArgs) -> Result<Option<UnixSocket>> {
    let path = match (&args.control, endpoint) {
        (Some(path), _) => path.clone(),
        // A socket without a name has no directory to put it in.
        (None, Endpoint::Unix(socket)) if socket.file_name().is_some() => control::beside(socket)?,
        (None, _) => return Ok(None),
    };
    Ok(Some(UnixSocket::bind(&path)?))
}

/// The default socket, in the first member's directory. For devices it is in the working directory.
fn default_socket(members: &[PathBuf]) -> PathBuf {
    let directory = members.first().and_then(|member| member.parent()).filter(|parent| !parent.starts_with("/dev"));
    directory.unwrap_or(Path::new("")).join("uraid.sock")
}

/// Prints where the array is served and how clients connect.
fn announce(endpoints: &[Endpoint], info: &ExportInfo) -> Result<()> {
    let endpoint = &endpoints[0];
    let uri = endpoint.uri(&info.name);
    print(format_args!("{uri}"))?;
    for other in &endpoints[1..] {
        print(format_args!("  also {}", other.uri(&info.name)))?;
    }
    let name = if info.name.is_empty() { String::new() } else { format!(" -N {}", quoted(&info.name)) };
    let client = match endpoint {
        Endpoint::Unix(path) => format!("nbd-client -unix {} /dev/nbd0{name}", quoted(&path.display().to_string())),
        Endpoint::Tcp(address) => format!("nbd-client {} {} /dev/nbd0{name}", address.ip(), address.port()),
    };
    let uri = quoted_uri(&uri);
    print(format_args!("  {client} -b {} -C 4", info.block_sizes.minimum_bytes.max(512)))?;
    print(format_args!("  qemu-img info {uri}"))?;
    print(format_args!("  fio --name=try --ioengine=nbd --uri={uri} --rw=randread --bs=4k --iodepth=32 --size=16m"))?;
    print(format_args!("stop with Ctrl-C"))
}

/// Quotes a URI, because some of its characters are special in shells.
fn quoted_uri(uri: &str) -> String {
    format!("'{uri}'")
}
