//! The registry of running servers: each array that is served has a link to its control socket in a directory that
//! commands search.
//!
//! The directory is `URAID_RUNTIME_DIR`. Without it, it is `/run/uraid/servers` for root, and `uraid` in
//! `XDG_RUNTIME_DIR` for others; root's commands search both. A server without such a directory is not found, but works
//! normally otherwise. A server that is killed leaves its link behind; the first command that gets no answer there
//! removes it.

use std::env;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf, absolute};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::geteuid;

/// The directory of root's servers.
const SYSTEM: &str = "/run/uraid/servers";

/// A server's link, as long as the server runs.
#[derive(Debug)]
pub(crate) struct Registration(PathBuf);

impl Registration {
    /// Leaves a link to a control socket. Returns `None` if that is not possible.
    pub(crate) fn new(control: &Path) -> Option<Self> {
        // One process may serve several arrays.
        static LINKS: AtomicU32 = AtomicU32::new(0);
        let name = format!("{}-{}", process::id(), LINKS.fetch_add(1, Ordering::Relaxed));
        let link = directory()?.join(name);
        let left = leave(&link, control);
        left.inspect_err(|error| tracing::debug!(%error, link = %link.display(), "commands will not find this server"))
            .ok()?;
        Some(Self(link))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // If this fails, a command removes the link later.
        let _ = fs::remove_file(&self.0);
    }
}

/// The directory in which this user's servers leave their links, if there is one to be had.
#[must_use]
pub fn directory() -> Option<PathBuf> {
    directories().into_iter().next()
}

/// Makes the directory, unless it exists.
///
/// # Errors
/// If the system does not let it.
pub fn make_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

fn leave(link: &Path, control: &Path) -> io::Result<()> {
    if let Some(directory) = link.parent() {
        make_directory(directory)?;
    }
    match fs::remove_file(link) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(absolute(control)?, link)
}

/// The directories of servers' links. The first is where this user's servers leave theirs.
fn directories() -> Vec<PathBuf> {
    let named = |variable: &str| env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(directory) = named("URAID_RUNTIME_DIR") {
        return vec![directory];
    }
    let own = named("XDG_RUNTIME_DIR").map(|directory| directory.join("uraid"));
    let system = geteuid().is_root().then(|| PathBuf::from(SYSTEM));
    system.into_iter().chain(own).collect()
}

/// The control sockets of the servers that answer, in order.
#[must_use]
pub fn servers() -> Vec<PathBuf> {
    let entries = directories().into_iter().filter_map(|directory| fs::read_dir(directory).ok());
    let mut sockets = Vec::new();
    for link in entries.flatten().flatten().map(|entry| entry.path()) {
        let Ok(socket) = fs::read_link(&link) else { continue };
        match UnixStream::connect(&socket) {
            Ok(_) => sockets.push(socket),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                let _ = fs::remove_file(&link);
            }
            // The server belongs to another user.
            Err(_) => {}
        }
    }
    sockets.sort();
    sockets.dedup();
    sockets
}
