//! `uraid serve`: serves an array as a network block device, in the foreground.

pub(crate) mod args;
mod late;
pub(crate) mod listen;
mod security;
mod spares;
mod start;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf, absolute};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Signal, getppid, getrlimit, set_parent_process_death_signal};
use uraid_io::array::Array;
use uraid_io::engine::CacheMode;
use uraid_io::member::is_rotational;
use uraid_layout::Bytes;
use uraid_nbd::{BlockSizes, Endpoint, ExportInfo, Listener, Scheme, UnixSocket, descriptors_needed};
use uraid_serve::server::{self, Options, Reachable, Sockets};
use uraid_serve::signals::{Signals, outlive_file_limits};
use uraid_serve::smart::Smart;
use uraid_serve::systemd::{self, Notifier};
use uraid_serve::text::quoted;
use uraid_serve::{Caching, LastResort, Settings, check_program};

use crate::misuse::Misuse;
use crate::terminal::print;
use args::{BusyPoll, CacheName, FullStripeLog, ReadAhead, ServeArgs, WatchArgs};
use listen::{EndpointArgs, ListenAt};
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

/// Serves until SIGINT or SIGTERM.
pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    ensure_descriptors(args)?;
    outlive_file_limits()?;
    ensure_sockets(args)?;
    if args.exit_with_parent {
        exit_with_parent()?;
    }
    args.watch.on_event.as_deref().map_or(Ok(()), check_program)?;
    let smart = args.watch.smart_every.map(Smart::new).transpose()?;
    let (signals, notifier) = (Signals::listen()?, Rc::new(Notifier::from_env()));
    let addresses = args.endpoint.listen.iter().map(ListenAt::addresses).collect::<Result<Vec<_>>>()?;
    args.endpoint.security.ensure_private(addresses.iter().flatten().copied())?;
    let tls = args.endpoint.security.tls()?;
    let metrics = args.watch.metrics.as_ref().map(ListenAt::addresses).transpose()?;
    let Started { array, spares } = start(args, &notifier)?;
    signals.hand_over();
    let options = Options {
        info: info(&array, args),
        settings: settings(&array, args),
        connection_threads: args.connection_threads,
        tls,
        spares,
        config: args.config.clone(),
        rebuild_limit: args.limits.rebuild_limit.0,
        reshape_limit: args.limits.reshape_limit.0,
        scrub_limit: args.limits.scrub_limit.0,
        scrub_every: args.scrub_every,
        metrics,
        on_event: args.watch.on_event.clone(),
        smart,
    };
    let open = || sockets(args, &addresses);
    server::run(server::serve(array, options, &signals, notifier, open, announce))
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

/// Refuses the same socket for clients and for administrators, and users of a socket that there is not.
fn ensure_sockets(args: &ServeArgs) -> Result<()> {
    let Some(socket) = unix_socket(&args.endpoint, &args.members) else {
        ensure!(
            args.endpoint.security.allow_uid.is_empty(),
            Misuse("--allow-uid is about the Unix socket, and with --listen alone there is none: give --socket".into())
        );
        return Ok(());
    };
    let Some(control) = &args.watch.control else { return Ok(()) };
    ensure!(
        absolute(control)? != absolute(&socket)?,
        Misuse(format!("--control: {} is the socket for clients: name another file", control.display()))
    );
    Ok(())
}

fn info(array: &Array, args: &ServeArgs) -> ExportInfo {
    // Smaller ones cost a read.
    let unit_bytes = u32::try_from(array.superblock.unit().bytes().0).unwrap_or(512);
    ExportInfo {
        name: args.endpoint.export.clone().unwrap_or_else(|| array.superblock.name.clone()),
        description: format!("{} of {} members", array.geometry.spec().level, array.geometry.members()),
        block_sizes: BlockSizes {
            minimum_bytes: 1,
            preferred_bytes: unit_bytes.max(4096),
            maximum_bytes: REQUEST_BYTES_MAX,
        },
        read_only: args.read_only,
        // Some of any load goes to the slowest.
        rotational: array.paths.iter().flatten().any(|path| is_rotational(path)),
        ..ExportInfo::new(array.capacity().bytes().0)
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
    let (patience, log_sums) = (args.patience.into(), args.full_stripe_log == FullStripeLog::Sums);
    Settings { busy_poll, caching, request_memory, patience, log_sums, last_resort }
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

fn sockets(args: &ServeArgs, addresses: &[Vec<SocketAddr>]) -> Result<Sockets> {
    let listener = listener(&args.endpoint, addresses, &args.members)?;
    args.endpoint.security.ensure_private(listener.endpoints().iter().filter_map(Endpoint::address))?;
    let guests = &args.endpoint.security.allow_uid;
    let listener = if guests.is_empty() { listener } else { listener.admit(guests.clone())? };
    let control = control_socket(listener.endpoints(), &args.watch)?;
    Ok(Sockets { listener, control })
}

/// Everywhere that clients connect to: a Unix socket comes first, where people look for it.
fn listener(endpoint: &EndpointArgs, addresses: &[Vec<SocketAddr>], members: &[PathBuf]) -> Result<Listener> {
    let inherited = systemd::inherited()?;
    if !inherited.is_empty() {
        return handed_over(inherited, endpoint, addresses);
    }
    let unix = unix_socket(endpoint, members).map(|path| Listener::unix(&path)).transpose()?;
    let tcp = addresses.iter().map(|addresses| Listener::tcp(addresses));
    let listeners = unix.into_iter().map(Ok).chain(tcp).collect::<Result<Vec<_>, _>>()?;
    Ok(listeners.into_iter().reduce(Listener::and).expect("without an address there is a socket"))
}

/// The sockets of the service manager, which have to be those that are asked for if any are.
fn handed_over(sockets: Vec<OwnedFd>, endpoint: &EndpointArgs, addresses: &[Vec<SocketAddr>]) -> Result<Listener> {
    let listeners = sockets.into_iter().map(Listener::inherit).collect::<Result<Vec<_>, _>>()?;
    let listener = listeners.into_iter().reduce(Listener::and).expect("at least one was handed over");
    let got = listener.endpoints();
    let wanted = endpoint.socket.as_ref().map(absolute).transpose()?;
    if wanted.is_none() && addresses.is_empty() {
        return Ok(listener);
    }
    let is_asked_for = |got: &&Endpoint| match got {
        Endpoint::Unix(path) => wanted.as_ref() == Some(path),
        Endpoint::Tcp(address) => addresses.iter().flatten().any(|wanted| wanted == address),
    };
    if let Some(other) = got.iter().find(|got| !is_asked_for(got)) {
        let advice = "leave --socket and --listen out, or name it";
        return Err(Misuse(format!("the service manager handed over {other}: {advice}")).into());
    }
    let missing = wanted.filter(|path| !got.contains(&Endpoint::Unix(path.clone()))).map(Endpoint::Unix);
    let is_there = |wanted: &SocketAddr| got.contains(&Endpoint::Tcp(*wanted));
    // A name may have addresses that this machine does not have.
    let mut without = addresses.iter().filter(|all| !all.iter().any(is_there));
    let missing = missing.or_else(|| without.next().map(|all| Endpoint::Tcp(all[0])));
    if let Some(missing) = missing {
        let advice = "add a ListenStream= for it, or leave --socket and --listen out";
        return Err(Misuse(format!("the service manager did not hand over {missing}: {advice}")).into());
    }
    Ok(listener)
}

/// The Unix socket that is asked for: with TCP addresses alone there is none.
fn unix_socket(endpoint: &EndpointArgs, members: &[PathBuf]) -> Option<PathBuf> {
    let default = || endpoint.listen.is_empty().then(|| default_socket(members));
    endpoint.socket.clone().or_else(default)
}

/// The control socket, if there is one.
fn control_socket(endpoints: &[Endpoint], args: &WatchArgs) -> Result<Option<UnixSocket>> {
    // A socket without a name has no directory to put it in.
    let named = endpoints.iter().find_map(|endpoint| match endpoint {
        Endpoint::Unix(path) if path.file_name().is_some() => Some(path),
        _ => None,
    });
    let path = match (&args.control, named) {
        (Some(path), _) => path.clone(),
        (None, Some(socket)) => beside(socket)?,
        (None, None) => return Ok(None),
    };
    Ok(Some(UnixSocket::bind(&path)?))
}

/// The control socket beside an NBD socket: `X.sock` -> `X.ctl`.
fn beside(socket: &Path) -> Result<PathBuf, Misuse> {
    if socket.extension().is_some_and(|extension| extension == "ctl") {
        let path = socket.display();
        return Err(Misuse(format!(
            "{path}: this is the name of a control socket; name the socket for clients {}",
            socket.with_extension("sock").display()
        )));
    }
    Ok(socket.with_extension("ctl"))
}

/// The default socket, in the first member's directory. For devices it is in the working directory.
fn default_socket(members: &[PathBuf]) -> PathBuf {
    // One that is not there is taken for what its path says: files may be in /dev, too, as in /dev/shm.
    let is_device = |member: &Path| {
        member.metadata().map_or(member.starts_with("/dev"), |metadata| metadata.file_type().is_block_device())
    };
    let file = members.first().filter(|member| !is_device(member));
    file.and_then(|member| member.parent()).unwrap_or(Path::new("")).join("uraid.sock")
}

/// Prints where the array is served and how clients connect.
fn announce(Reachable { endpoints, scheme, info, unit, metrics }: &Reachable<'_>) -> Result<()> {
    let endpoint = &endpoints[0];
    let uri = endpoint.uri(*scheme, &info.name);
    print(format_args!("{uri}"))?;
    for other in &endpoints[1..] {
        print(format_args!("  also {}", other.uri(*scheme, &info.name)))?;
    }
    match scheme {
        Scheme::Nbd => print_clients(endpoint, &uri, &info.name, *unit)?,
        Scheme::Nbds => print_tls_clients(endpoint, &uri, &info.name)?,
    }
    print(format_args!("stop with Ctrl-C"))?;
    metrics.as_ref().map_or(Ok(()), |url| print(format_args!("metrics at {url}")))
}

/// Prints how clients connect in the clear.
fn print_clients(endpoint: &Endpoint, uri: &str, name: &str, unit: Bytes) -> Result<()> {
    let name = if name.is_empty() { String::new() } else { format!(" -N {}", quoted(name)) };
    let client = match endpoint {
        Endpoint::Unix(path) => format!("nbd-client -unix {} /dev/nbd0{name}", quoted(&path.display().to_string())),
        Endpoint::Tcp(address) => format!("nbd-client {} {} /dev/nbd0{name}", address.ip(), address.port()),
    };
    let uri = quoted_uri(uri);
    print(format_args!("  {client} -b {} -C 4", unit.0))?;
    print(format_args!("  qemu-img info {uri}"))?;
    print(format_args!("  fio --name=try --ioengine=nbd --uri={uri} --rw=randread --bs=4k --iodepth=32 --size=16m"))
}

/// Prints how clients connect over TLS. They have a directory of their own, with the authority's certificate.
fn print_tls_clients(endpoint: &Endpoint, uri: &str, name: &str) -> Result<()> {
    let server = match endpoint {
        Endpoint::Unix(path) => format!("server.type=unix,server.path={}", path.display()),
        Endpoint::Tcp(address) => {
            format!("server.type=inet,server.host={},server.port={}", address.ip(), address.port())
        }
    };
    let image = quoted(&format!("driver=nbd,{server},export={name},tls-creds=tls"));
    let sign = if uri.contains('?') { '&' } else { '?' };
    print(format_args!("  nbdinfo {}", quoted_uri(&format!("{uri}{sign}tls-certificates=DIR"))))?;
    print(format_args!("  qemu-img info --object tls-creds-x509,id=tls,dir=DIR,endpoint=client --image-opts {image}"))
}

/// Quotes a URI, because some of its characters are special in shells.
fn quoted_uri(uri: &str) -> String {
    format!("'{uri}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_socket_is_beside_files_wherever_they_are() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let member = directory.path().join("d0");
        std::fs::write(&member, []).unwrap();
        assert_eq!(default_socket(&[member]), directory.path().join("uraid.sock"));
        assert_eq!(default_socket(&[PathBuf::from("/dev/no-such-disk")]), Path::new("uraid.sock"));
        assert_eq!(default_socket(&[PathBuf::from("/srv/d0"), PathBuf::from("/x/d1")]), Path::new("/srv/uraid.sock"));
    }
}
