//! Unix sockets that servers listen on.
//!
//! Only its owner may use such a socket, until others are let in. It replaces a dead server's socket but never a live
//! one's, and is removed at the end if the file is still the same.

use std::{
    fs,
    future::poll_fn,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{fs::MetadataExt as _, net::UnixListener as StdUnixListener},
    },
    path::{Path, PathBuf, absolute},
    task::{Context, Poll},
    time::Duration,
};

use rustix::{
    fs::{FileType, FlockOperation, Mode, OFlags},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use tokio::net::{UnixListener, UnixStream};
use tracing::{debug, warn};

use crate::Error;

const BACKLOG: i32 = 128;

/// How long another server may take to make its socket in the same directory.
const DIRECTORY_WAIT_MAX: Duration = Duration::from_secs(2);
const DIRECTORY_WAIT_STEP: Duration = Duration::from_millis(20);

/// A Unix socket that clients can already connect to.
#[derive(Debug)]
pub struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    /// None if somebody else made the file, and removes it.
    identity: Option<FileIdentity>,
}

impl UnixSocket {
    /// Listens on a socket that only this user may connect to (mode 0600). Blocks for two seconds at most, while others
    /// make theirs in the same directory.
    ///
    /// # Errors
    /// [`Error::SocketInUse`] if a server answers there, [`Error::NotASocket`] if something else is there,
    /// [`Error::DirectoryLocked`], and [`Error::Listen`].
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    pub fn bind(path: &Path) -> Result<Self, Error> {
        let failed = |operation| {
            let endpoint = path.display().to_string();
            move |errno: Errno| Error::Listen { operation, endpoint, source: errno.into() }
        };
        let path = absolute(path).map_err(|source| Error::Listen {
            operation: "find",
            endpoint: path.display().to_string(),
            source,
        })?;
        let address = SocketAddrUnix::new(&path).map_err(failed("name a socket"))?;
        // Two servers must not both find the same dead socket and then remove each other's new one.
        let directory = path.parent().unwrap_or(Path::new("/"));
        let directory =
            rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(failed("open the directory of"))?;
        if !lock(&directory).map_err(failed("lock the directory of"))? {
            return Err(Error::DirectoryLocked { path });
        }
        remove_stale(&path, &address)?;
        let socket = unix_socket().map_err(failed("create the socket"))?;
        // On Linux the file inherits the socket's own mode, so that it is never open to others, whatever the umask.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed("restrict"))?;
        rustix::net::bind(&socket, &address).map_err(failed("create"))?;
        let identity = FileIdentity::of(&path).map_err(|source| Error::Listen {
            operation: "find the new",
            endpoint: path.display().to_string(),
            source,
        })?;
        rustix::net::listen(&socket, BACKLOG).map_err(failed("listen on"))?;
        let listener = UnixListener::from_std(socket.into()).map_err(|source| Error::Listen {
            operation: "poll",
            endpoint: path.display().to_string(),
            source,
        })?;
        Ok(Self { listener, path, identity: Some(identity) })
    }

    /// Takes over a socket that somebody else has made, and that listens already.
    ///
    /// # Errors
    /// [`Error::Listen`] when it can't be polled.
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    pub fn inherit(socket: OwnedFd) -> Result<Self, Error> {
        let listen = || {
            let listener = StdUnixListener::from(socket);
            listener.set_nonblocking(true)?;
            let path = listener.local_addr()?.as_pathname().map(Path::to_path_buf).unwrap_or_default();
            Ok(Self { listener: UnixListener::from_std(listener)?, path, identity: None })
        };
        listen().map_err(|source| Error::Listen { operation: "take over", endpoint: "a socket".to_owned(), source })
    }

    /// Takes over a socket that another server had, and with it the file if that was the server's own: then only this
    /// user may connect, as to a new one. If that file was removed, nobody can connect any more: a new socket takes the
    /// place of the old one.
    ///
    /// # Errors
    /// [`Error::Listen`], and as [`UnixSocket::bind`] for a new one.
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    pub(super) fn adopt(socket: StdUnixListener, file: Option<FileIdentity>) -> Result<Self, Error> {
        let mut adopted = Self::inherit(socket.into())?;
        let path = &adopted.path;
        let found = FileIdentity::of(path);
        if file.is_some() && found.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            warn!(path = %path.display(), "the socket was removed: it is made again");
            return Self::bind(path);
        }
        // What another socket has now is not this server's to remove.
        let identity = found.ok().filter(|now| file == Some(*now));
        if identity.is_some() {
            rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(|errno| Error::Listen {
                operation: "restrict",
                endpoint: path.display().to_string(),
                source: errno.into(),
            })?;
        }
        adopted.identity = identity;
        Ok(adopted)
    }

    /// Leaves the socket to another server, and with it the file if that is this server's own: also returned.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn leave(&mut self) -> io::Result<(OwnedFd, Option<FileIdentity>)> {
        let left = self.listener.as_fd().try_clone_to_owned()?;
        Ok((left, self.identity.take()))
    }

    /// Lets every user connect, if this process has made the socket: who is served is decided elsewhere.
    ///
    /// # Errors
    /// [`Error::Listen`].
    pub(super) fn open_to_all(&self) -> Result<(), Error> {
        if self.identity.is_none() {
            return Ok(());
        }
        rustix::fs::chmod(&self.path, Mode::from_raw_mode(0o666)).map_err(|errno| Error::Listen {
            operation: "open to other users",
            endpoint: self.path.display().to_string(),
            source: errno.into(),
        })
    }

    /// Its file, if this process has made it.
    pub fn file(&self) -> Option<SocketFile> {
        Some(SocketFile { path: self.path.clone(), identity: self.identity? })
    }

    /// Where it is: an absolute path, if whoever made it used one; empty when it has no name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for a client. Cancel safe.
    ///
    /// # Errors
    /// When the system is out of descriptors or memory.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    /// A client, as soon as there is one.
    pub(super) fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<UnixStream>> {
        self.listener.poll_accept(context).map_ok(|(stream, _)| stream)
    }
}

/// The file of a Unix socket that this process has made.
#[derive(Clone, Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: FileIdentity,
}

impl SocketFile {
    /// A handle on the file itself (`O_PATH`), whatever becomes of its name.
    ///
    /// # Errors
    /// If it has no name any more, or another file has.
    pub fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&self.path, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        if (FileIdentity { device: stat.st_dev, inode: stat.st_ino }) == self.identity {
            Ok(file)
        } else {
            Err(io::Error::other(format!("{}: another file has taken its place", self.path.display())))
        }
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if let Some(identity) = self.identity {
            identity.remove(&self.path);
        }
    }
}

/// Tells a file from another that took its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(path)?;
        Ok(Self { device: metadata.dev(), inode: metadata.ino() })
    }

    /// Removes the file, unless another one has its name.
    pub(super) fn remove(self, path: &Path) {
        let removed = match Self::of(path) {
            Ok(now) if now == self => fs::remove_file(path),
            Ok(_) => return,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            let path = path.display();
            warn!(%path, %error, "could not remove the socket: it stays until the next server replaces it");
        }
    }

    /// The identity for another process.
    pub(super) fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.device) << 64 | u128::from(self.inode)).to_be_bytes()
    }

    /// That of another process.
    pub(super) fn from_bytes(bytes: [u8; 16]) -> Self {
        let ([d0, d1, d2, d3, d4, d5, d6, d7, ..], [.., i0, i1, i2, i3, i4, i5, i6, i7]) = (bytes, bytes);
        let [device, inode] = [[d0, d1, d2, d3, d4, d5, d6, d7], [i0, i1, i2, i3, i4, i5, i6, i7]];
        Self { device: u64::from_be_bytes(device), inode: u64::from_be_bytes(inode) }
    }
}

/// Takes the lock of a directory; false if somebody else holds it.
fn lock(directory: &OwnedFd) -> Result<bool, Errno> {
    let mut waited = Duration::ZERO;
    loop {
        match rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if waited >= DIRECTORY_WAIT_MAX => return Ok(false),
            Err(Errno::WOULDBLOCK) => {
                std::thread::sleep(DIRECTORY_WAIT_STEP);
                waited += DIRECTORY_WAIT_STEP;
            }
            Err(errno) => return Err(errno),
        }
    }
}

fn unix_socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

/// Removes the socket at a path if nobody listens on it.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), Error> {
    let failed = |operation| move |source| Error::Listen { operation, endpoint: path.display().to_string(), source };
    let stat = match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        stat => stat.map_err(io::Error::from).map_err(failed("examine"))?,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(Error::NotASocket { path: path.to_owned() });
    }
    let probe = unix_socket().map_err(io::Error::from).map_err(failed("create a socket to probe"))?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => {
            debug!(path = %path.display(), "removing the socket of a server that is gone");
            fs::remove_file(path).map_err(failed("remove the stale socket"))
        }
        // A full backlog means that there is a server, too.
        Ok(()) | Err(Errno::AGAIN) => Err(Error::SocketInUse { path: path.to_owned() }),
        Err(errno) => Err(failed("probe")(errno.into())),
    }
}
