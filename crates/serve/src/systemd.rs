//! Communication with the service manager: `sd_notify(3)` and `sd_listen_fds(3)`. Without a service manager, nothing
//! happens.

use std::collections::BTreeMap;
use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use listenfd::ListenFd;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// The service manager's notification socket.
#[derive(Debug)]
pub struct Notifier {
    to: Option<Arc<(UnixDatagram, SocketAddr)>>,
    /// Set if this is for one of a server's arrays.
    array: Option<Array>,
}

/// One of several arrays. The manager hears their states together; it does not hear that one of them begins or ends.
#[derive(Debug)]
struct Array {
    name: String,
    all: States,
}

/// The states of several arrays, in words, by name.
pub type States = Arc<Mutex<BTreeMap<String, String>>>;

impl Notifier {
    /// The socket that `NOTIFY_SOCKET` names.
    #[must_use]
    pub fn from_env() -> Self {
        let open = |name: &[u8]| -> io::Result<(UnixDatagram, SocketAddr)> {
            let address = match name {
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
                path => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
            };
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            Ok((socket, address))
        };
        let to = env::var_os("NOTIFY_SOCKET").and_then(|name| match open(name.as_bytes()) {
            Ok(to) => Some(Arc::new(to)),
            Err(error) => {
                tracing::warn!(%error, "the service manager can't be told anything");
                None
            }
        });
        Self { to, array: None }
    }

    /// The same socket for one of a server's arrays.
    #[must_use]
    pub fn of_array(&self, name: &str, all: &States) -> Self {
        Self { to: self.to.clone(), array: Some(Array { name: name.to_owned(), all: Arc::clone(all) }) }
    }

    /// Clients can connect.
    pub fn ready(&self) {
        if self.array.is_none() {
            self.tell("READY=1");
        }
    }

    /// The configuration is read again; [`Notifier::ready`] says when that is over.
    pub fn reloading(&self) {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", tv_sec * 1_000_000 + tv_nsec / 1000));
    }

    /// Asks for more time to start, from now on.
    pub fn extend(&self, time: Duration) {
        self.tell(&format!("EXTEND_TIMEOUT_USEC={}", time.as_micros()));
    }

    /// The server is about to end.
    pub fn stopping(&self) {
        if self.array.is_none() {
            self.tell("STOPPING=1");
        }
    }

    /// Another process serves the array from now on. The manager believes it if that belongs to the same unit.
    pub fn succeeded_by(&self, process: i32) {
        self.tell(&format!("MAINPID={process}"));
    }

    /// A line for people.
    ///
    /// # Panics
    /// If another thread panicked.
    pub fn status(&self, text: &str) {
        let text = match &self.array {
            None => text.to_owned(),
            Some(Array { name, all }) => {
                let mut all = all.lock().expect("a panic ends the process");
                all.insert(name.clone(), text.to_owned());
                all.values().map(String::as_str).collect::<Vec<_>>().join("; ")
            }
        };
        self.tell(&format!("STATUS={}", text.replace('\n', " ")));
    }

    /// Reports that the server is alive, as often as required. Runs forever on the thread that serves, so a hang is
    /// noticed.
    pub async fn keep_alive(&self) {
        let Some(period) = watchdog().filter(|_| self.array.is_none()) else { return std::future::pending().await };
        let mut ticks = tokio::time::interval(period / 2);
        loop {
            ticks.tick().await;
            self.tell("WATCHDOG=1");
        }
    }

    fn tell(&self, text: &str) {
        if let Some((socket, address)) = self.to.as_deref()
            && let Err(error) = socket.send_to_addr(text.as_bytes(), address)
        {
            tracing::debug!(%error, text, "the service manager did not hear");
        }
    }
}

/// How long the service manager waits for a sign of life.
fn watchdog() -> Option<Duration> {
    let number = |name| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let is_meant = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|&period| period > 1 && is_meant).map(Duration::from_micros)
}

/// Whether the service manager hands over sockets.
#[must_use]
pub fn has_sockets() -> bool {
    let number = |name| env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    number("LISTEN_PID") == Some(std::process::id()) && number("LISTEN_FDS").is_some_and(|count| count > 0)
}

/// The listening sockets that the service manager hands over, in the order in which its unit has them.
pub fn inherited() -> Result<Vec<OwnedFd>> {
    let mut sockets = ListenFd::from_env();
    let mut taken = Vec::new();
    for index in 0..sockets.len() {
        if let Ok(unix) = sockets.take_unix_listener(index) {
            taken.extend(unix.map(OwnedFd::from));
            continue;
        }
        let tcp = sockets.take_tcp_listener(index);
        let tcp = tcp.context("what was handed over is no stream socket: give the unit ListenStream= alone")?;
        taken.extend(tcp.map(OwnedFd::from));
    }
    taken.iter().try_for_each(ensure_listens)?;
    Ok(taken)
}

/// Refuses a socket that nobody can connect to: it is not listening, or is a connection (`Accept=yes`).
fn ensure_listens(socket: &OwnedFd) -> Result<()> {
    let listens = rustix::net::sockopt::socket_acceptconn(socket).context("can't look at what was handed over")?;
    ensure!(
        listens,
        "a socket that was handed over is not listening: give the unit ListenStream= and Accept=no, or call listen(2) \
         before"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use rustix::net::{AddressFamily, SocketType, socket};

    use super::*;

    #[test]
    fn only_sockets_that_listen_are_taken() {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("s")).unwrap();
        ensure_listens(&listener.into()).unwrap();
        let (connected, _other) = UnixStream::pair().unwrap();
        let unbound = [AddressFamily::UNIX, AddressFamily::INET].map(|family| socket(family, SocketType::STREAM, None));
        for deaf in unbound.into_iter().map(Result::unwrap).chain([connected.into()]) {
            let text = ensure_listens(&deaf).unwrap_err().to_string();
            assert!(text.contains("is not listening"), "{text}");
        }
    }
}
