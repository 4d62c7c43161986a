//! SIGINT and SIGTERM: heard at any time, also while members are waited for.
//!
//! Until the array is served they end the process at once: what that leaves on the members is what a crash leaves, and
//! the next start goes on from there. A thread of the process that hangs in the kernel keeps the process's remains
//! until the kernel lets it go, whatever the signal.

use std::io::{Write as _, stderr};
use std::process;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

/// What shells add to the number of the signal that ended a program.
const SIGNALLED: i32 = 128;

/// Hears signals on a thread of its own, to the end of the process.
pub(crate) struct Signals(Arc<Shared>);

struct Shared {
    is_served: Mutex<bool>,
    asked: Notify,
}

impl Signals {
    /// Hears signals from now on.
    pub(crate) fn listen() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let signals = {
            let _context = runtime.enter();
            [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?]
        };
        let shared = Arc::new(Shared { is_served: Mutex::new(false), asked: Notify::new() });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("signals".into());
        thread.spawn(move || runtime.block_on(hear(signals, &own))).context("can't start a thread")?;
        Ok(Self(shared))
    }

    /// The array is about to be served: from now on whoever serves it ends the process.
    pub(crate) fn hand_over(&self) {
        *self.0.is_served.lock().expect("a panic ends the process") = true;
    }

    /// Waits for a signal that came after [`Signals::hand_over`]. Cancel safe.
    pub(crate) async fn heard(&self) {
        self.0.asked.notified().await;
    }
}

async fn hear(signals: [Signal; 2], shared: &Shared) {
    let [mut interrupts, mut terminates] = signals;
    loop {
        let (name, number) = tokio::select! {
            _ = interrupts.recv() => ("SIGINT", SignalKind::interrupt().as_raw_value()),
            _ = terminates.recv() => ("SIGTERM", SignalKind::terminate().as_raw_value()),
        };
        let is_served = shared.is_served.lock().expect("a panic ends the process");
        if !*is_served {
            // Nobody is left to tell where standard error is closed.
            let _ = writeln!(stderr(), "uraid: {name}: not serving the array; the next start goes on from here");
            process::exit(SIGNALLED + number);
        }
        shared.asked.notify_one();
    }
}
