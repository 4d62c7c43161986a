//! Which servers are running: each leaves a link to its control socket in a directory that commands look into.
//!
//! The directory is `URAID_RUNTIME_DIR`; without it `/run/uraid/servers` for root, and for others `uraid` in
//! `XDG_RUNTIME_DIR`. A server that has no such directory is not found, and everything else works as always. A server
//! that was killed leaves its link; whoever finds that nobody answers there removes it.

use std::env;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf, absolute};
use std::process;

use rustix::process::geteuid;

/// Where root's servers are.
const SYSTEM: &str = "/run/uraid/servers";

/// A server's link, as long as it runs.
#[derive(Debug)]
pub(crate) struct Registration(PathBuf);

impl Registration {
    /// Leaves a link to a control socket; none where that can't be.
    pub(crate) fn new(control: &Path) -> Option<Self> {
        let link = directories().into_iter().next()?.join(process::id().to_string());
        let left = leave(&link, control);
        left.inspect_err(|error| tracing::debug!(%error, link = %link.display(), "commands will not find this server"))
            .ok()?;
        Some(Self(link))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Whoever finds it later removes it.
        let _ = fs::remove_file(&self.0);
    }
}

fn leave(link: &Path, control: &Path) -> io::Result<()> {
    if let Some(directory) = link.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    match fs::remove_file(link) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(absolute(control)?, link)
}

/// Where servers leave their links: the first is where this user's do.
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
pub(crate) fn servers() -> Vec<PathBuf> {
    let entries = directories().into_iter().filter_map(|directory| fs::read_dir(directory).ok());
    let mut sockets = Vec::new();
    for link in entries.flatten().flatten().map(|entry| entry.path()) {
        let Ok(socket) = fs::read_link(&link) else { continue };
        match UnixStream::connect(&socket) {
            Ok(_) => sockets.push(socket),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                let _ = fs::remove_file(&link);
            }
            // Another user's.
            Err(_) => {}
        }
    }
    sockets.sort();
    sockets.dedup();
    sockets
}
