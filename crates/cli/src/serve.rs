//! `uraid serve`: serves an array as a network block device, in the foreground.

pub(crate) mod args;
pub(crate) mod clients;
mod elsewhere;
mod late;
pub(crate) mod listen;
pub(crate) mod md;
pub(crate) mod privileges;
mod reach;
mod sandbox;
mod security;
pub(crate) mod several;
mod sockets;
mod spares;
mod start;
mod takeover;

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, ensure};
use uraid_io::array::Array;
use uraid_io::engine::CacheMode;
use uraid_io::member::{Inheritance, is_rotational};
use uraid_layout::Bytes;
use uraid_nbd::{BlockSizes, Endpoint, ExportInfo, Scheme, Tls};
use uraid_serve::metrics;
use uraid_serve::server::{self, Options, Reachable};
use uraid_serve::signals::{Signals, outlive_file_limits};
use uraid_serve::smart::Smart;
use uraid_serve::spare::Spare;
use uraid_serve::systemd::Notifier;
use uraid_serve::text::{quoted, size};
use uraid_serve::{Caching, Config, Confinement, LastResort, Settings, check_program};

use crate::misuse::Misuse;
use crate::terminal::print;
use args::{BusyPoll, CacheName, FullStripeLog, ReadAhead, ServeArgs};
use listen::ListenAt;
use privileges::Privileges;
use sockets::{PrivateDirectory, ensure_sockets, sockets};
use start::{Started, start};
use takeover::Taken;

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

/// Shells add this to the number of the signal that ended a command.
const SIGNALLED: i32 = 128;

/// What can be known of a server before anything is opened.
struct Prepared {
    addresses: Vec<Vec<SocketAddr>>,
    tls: Option<Tls>,
    smart: Option<Smart>,
    metrics: Option<Vec<SocketAddr>>,
}

/// Serves until SIGINT or SIGTERM, or until the command ends that runs meanwhile: then its status is the server's.
pub(crate) fn run(args: &ServeArgs) -> Result<ExitCode> {
    let prepared = Prepared { tls: args.endpoint.security.tls()?, ..prepare(args)? };
    ensure_descriptors(args)?;
    outlive_file_limits()?;
    ensure_sockets(args)?;
    let privileges = args.privileges.check()?;
    let privileges = privileges.of(reach::runs_programs(args), args.spares.clone(), args.exit_with_parent)?;
    privileges.close(&reach::of_one(args))?;
    let ended = serve(args, &prepared, &privileges).map_err(|error| privileges.confinement().explain(error))?;
    Ok(ended.map_or(ExitCode::SUCCESS, exit_code))
}

/// Opens the array and serves it, as [`server::serve`] does.
fn serve(args: &ServeArgs, prepared: &Prepared, privileges: &Privileges) -> Result<Option<ExitStatus>> {
    let (signals, notifier) = (Signals::listen()?, Rc::new(Notifier::from_env()));
    let take = || takeover::take(args, &prepared.addresses, prepared.metrics.as_deref());
    let taken = args.takeover.then(take).transpose()?.unwrap_or_default();
    let Taken { partings, members, metrics } = taken;
    let inheritance = Inheritance::new(members);
    let Started { array, spares } = start(args, &notifier, || Ok(()))?;
    drop(inheritance);
    signals.hand_over();
    let listen = || prepared.metrics.as_deref().map(metrics::Socket::listen).transpose();
    let metrics = metrics.map_or_else(listen, |socket| Ok(Some(socket)))?;
    let config = args.config.clone().map(|path| Config { path, array: None });
    let (run, confinement) = (args.run.clone(), privileges.confinement());
    let options = Options { config, run, confinement, metrics, ..options(args, &array, spares, prepared) };
    let private = PrivateDirectory::default();
    let open = |_| {
        let sockets = sockets(args, &prepared.addresses, partings, &private)?;
        if let Some(heir) = privileges.heir() {
            heir.gets(&sockets);
            private.path().into_iter().for_each(|directory| heir.gets_directory(directory));
        }
        Ok(sockets)
    };
    let announce = |reachable: &Reachable<'_>| {
        privileges.give_up()?;
        // What a command prints comes without anything between.
        args.run.as_ref().map_or_else(|| announce(reachable), |_| Ok(()))
    };
    server::run(server::serve(array, options, signals.stops(), notifier, open, announce))
}

/// Checks what arguments say, and looks up what they name; all but TLS.
fn prepare(args: &ServeArgs) -> Result<Prepared> {
    args.clients.check()?;
    ensure_cache_fits(args.cache.cache_size)?;
    args.watch.on_event.as_deref().map_or(Ok(()), check_program)?;
    let smart = args.watch.smart_every.map(Smart::new).transpose()?;
    let addresses = args.endpoint.listen.iter().map(ListenAt::addresses).collect::<Result<Vec<_>>>()?;
    args.endpoint.security.ensure_private(addresses.iter().flatten().copied())?;
    let metrics = args.watch.metrics.as_ref().map(ListenAt::addresses).transpose()?;
    Ok(Prepared { addresses, tls: None, smart, metrics })
}

/// How to serve an array.
fn options(args: &ServeArgs, array: &Array, spares: Vec<Spare>, prepared: &Prepared) -> Options {
    Options {
        info: info(array, args),
        settings: settings(array, args),
        connection_threads: args.connection_threads,
        tls: prepared.tls.clone(),
        spares,
        domains: args.domains.clone(),
        rejoin_after: args.patience.rejoin_after.0,
        config: None,
        confinement: Confinement::default(),
        rebuild_limit: args.limits.rebuild_limit.0,
        reshape_limit: args.limits.reshape_limit.0,
        scrub_limit: args.limits.scrub_limit.0,
        client_rates: args.clients.rates(),
        scrub_every: args.scrub_every,
        metrics: None,
        on_event: args.watch.on_event.clone(),
        smart: prepared.smart.clone(),
        run: None,
        inbox: None,
    }
}

/// As shells tell how a command has ended: its own status, or 128 and the number of the signal that ended it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| SIGNALLED + signal));
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Refuses a limit of open files that is too low, before it makes anything else fail.
fn ensure_descriptors(args: &ServeArgs) -> Result<()> {
    args.clients.ensure_descriptors(DESCRIPTORS + descriptors(args), args.members.len() + args.spares.len())
}

/// How many of them an array takes without clients.
fn descriptors(args: &ServeArgs) -> u64 {
    let members = args.members.len() + args.spares.len();
    DESCRIPTORS_OF_THREAD * u64::from(args.connection_threads) + members as u64
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
    let limits = args.clients.limits(request_memory);
    let (patience, log_sums) = (args.patience.into(), args.full_stripe_log == FullStripeLog::Sums);
    Settings { busy_poll, caching, limits, patience, log_sums, last_resort }
}

/// Refuses a cache that is larger than the machine's memory: it would fill up until the kernel ends the server.
fn ensure_cache_fits(cache: Option<Bytes>) -> Result<()> {
    let (cache, memory) = (cache.unwrap_or_default(), machine_memory());
    ensure!(
        cache <= memory,
        Misuse(format!(
            "--cache-size {} is more than the {} of memory that this machine has: write less, or leave it out",
            size(cache.0),
            size(memory.0)
        ))
    );
    Ok(())
}

fn machine_memory() -> Bytes {
    let memory = rustix::system::sysinfo();
    Bytes((memory.totalram as u64).saturating_mul(memory.mem_unit.into()))
}

/// The cache mode and the cache's memory.
fn caching(args: &ServeArgs) -> Option<(CacheMode, Bytes)> {
    let mode = match args.cache.cache {
        CacheName::Writeback => CacheMode::WriteBack,
        CacheName::Writethrough => CacheMode::WriteThrough,
        CacheName::None => return None,
    };
    let size = args.cache.cache_size.unwrap_or(Bytes(CACHE_BYTES.0.min(machine_memory().0 / 8)));
    // A read-only array still uses the cache for read-ahead.
    Some((if args.read_only { CacheMode::WriteThrough } else { mode }, size))
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
