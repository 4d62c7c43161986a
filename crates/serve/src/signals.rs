//! SIGINT, SIGTERM and SIGHUP. They are handled at any time, even while the server waits for members. SIGHUP, which is
//! sent when the terminal closes, stops a server, but stays ignored if it is ignored at the start, as under nohup. A
//! server of several arrays reads its configuration again at SIGHUP.
//!
//! Before the array is served, these signals end the process at once. The members are then as after a crash, and the
//! next start continues from there. If a thread of the process hangs in the kernel, the process does not disappear
//! until the kernel releases the thread, whatever the signal.

use std::fs;
use std::future::poll_fn;
use std::io::{Write as _, stderr};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::sync::Notify;

/// Shells add this to the number of the signal that ended a program.
const SIGNALLED: i32 = 128;

/// Listens for signals on a separate thread, until the process ends.
pub struct Signals(Arc<Shared>);

struct Shared {
    is_served: Mutex<bool>,
    stops: Stops,
    /// SIGHUP asks for that, and for no stop.
    reloads: Option<Notify>,
}

/// Requests to stop: each is heard once.
#[derive(Clone, Debug, Default)]
pub struct Stops(Arc<Notify>);

impl Stops {
    /// Asks for a stop; a second time, not to wait for what takes long.
    pub fn ask(&self) {
        self.0.notify_one();
    }

    /// Waits for a request. Cancel safe.
    pub async fn heard(&self) {
        self.0.notified().await;
    }
}

/// A signal to listen for.
struct Heard {
    name: &'static str,
    kind: SignalKind,
    signal: unix::Signal,
}

impl Signals {
    /// Listens for signals from now on.
    ///
    /// # Errors
    /// If the system does not let it.
    pub fn listen() -> Result<Self> {
        Self::listen_for(!is_ignored(SignalKind::hangup()), None)
    }

    /// The same, where SIGHUP is to be [heard](Signals::reload).
    ///
    /// # Errors
    /// If the system does not let it.
    pub fn listen_for_reloads() -> Result<Self> {
        Self::listen_for(true, Some(Notify::new()))
    }

    fn listen_for(hangups: bool, reloads: Option<Notify>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let signals = {
            let _context = runtime.enter();
            listen(hangups)?
        };
        let shared = Arc::new(Shared { is_served: Mutex::new(false), stops: Stops::default(), reloads });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("signals".into());
        thread.spawn(move || runtime.block_on(hear(signals, &own))).context("can't start a thread")?;
        Ok(Self(shared))
    }

    /// The array is about to be served. From now on, a signal leaves ending the process to the server.
    pub fn hand_over(&self) {
        *self.0.is_served.lock().expect("a panic ends the process") = true;
    }

    /// The signals after [`Signals::hand_over`] that ask for a stop.
    #[must_use]
    pub fn stops(&self) -> &Stops {
        &self.0.stops
    }

    /// Waits for SIGHUP, if that is to be heard. Cancel safe.
    pub async fn reload(&self) {
        match &self.0.reloads {
            Some(reloads) => reloads.notified().await,
            None => std::future::pending().await,
        }
    }
}

/// A flag that SIGINT, SIGTERM and SIGHUP set. The second signal ends the process at once.
pub fn stop_flag() -> Result<&'static AtomicBool> {
    static STOP: AtomicBool = AtomicBool::new(false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let mut signals = {
        let _context = runtime.enter();
        listen(!is_ignored(SignalKind::hangup()))?
    };
    let thread = std::thread::Builder::new().name("signals".into());
    let hear = move || {
        runtime.block_on(async {
            let _ = next(&mut signals).await;
            STOP.store(true, Ordering::Relaxed);
            let (_, kind) = next(&mut signals).await;
            process::exit(SIGNALLED + kind.as_raw_value());
        });
    };
    thread.spawn(hear).context("can't start a thread")?;
    Ok(&STOP)
}

/// Makes a write fail if it exceeds the file size limit (`ulimit -f`), instead of ending the process.
pub fn outlive_file_limits() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _context = runtime.enter();
    // Once there is a handler, nobody has to listen.
    signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map(drop).context("can't listen for signals")
}

/// Whether the process was started with a signal ignored.
fn is_ignored(kind: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (kind.as_raw_value() - 1) & 1 != 0
}

/// Starts to listen. To be called within a runtime.
fn listen(hangups: bool) -> Result<Vec<Heard>> {
    let mut kinds = vec![("SIGINT", SignalKind::interrupt()), ("SIGTERM", SignalKind::terminate())];
    if hangups {
        kinds.push(("SIGHUP", SignalKind::hangup()));
    }
    kinds.into_iter().map(|(name, kind)| Ok(Heard { name, kind, signal: signal(kind)? })).collect()
}

/// Waits for the next signal.
async fn next(signals: &mut [Heard]) -> (&'static str, SignalKind) {
    poll_fn(|context| {
        let heard = signals
            .iter_mut()
            .find_map(|Heard { name, kind, signal }| signal.poll_recv(context).is_ready().then_some((*name, *kind)));
        heard.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

async fn hear(mut signals: Vec<Heard>, shared: &Shared) {
    loop {
        let (name, kind) = next(&mut signals).await;
        if let Some(reloads) = shared.reloads.as_ref().filter(|_| kind == SignalKind::hangup()) {
            reloads.notify_one();
            continue;
        }
        let is_served = shared.is_served.lock().expect("a panic ends the process");
        if !*is_served {
            // If standard error is closed, there is nobody to tell.
            let _ = writeln!(stderr(), "uraid: {name}: not serving the array; the next start goes on from here");
            process::exit(SIGNALLED + kind.as_raw_value());
        }
        shared.stops.ask();
    }
}
