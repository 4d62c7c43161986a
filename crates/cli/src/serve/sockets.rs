//! The sockets of a server: where clients connect, and where administrators do.

use std::cell::OnceCell;
use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf, absolute};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;
use uraid_io::member::is_uri;
use uraid_nbd::{Endpoint, Listener, Parting, SharedExports, UnixSocket};
use uraid_serve::server::{Offer, Sockets};
use uraid_serve::systemd;

use super::args::{ServeArgs, WatchArgs};
use super::listen::EndpointArgs;
use crate::misuse::Misuse;

/// A directory for the socket of a server that nobody but its own command is to find, if one is needed. It goes when
/// this is dropped.
#[derive(Debug, Default)]
pub(super) struct PrivateDirectory(OnceCell<TempDir>);

impl PrivateDirectory {
    /// Where it is, if it was needed.
    pub(super) fn path(&self) -> Option<&Path> {
        self.0.get().map(TempDir::path)
    }

    /// A socket in it.
    fn socket(&self) -> Result<PathBuf> {
        let owners = Permissions::from_mode(0o700);
        let made = tempfile::Builder::new().prefix("uraid-").permissions(owners).tempdir();
        let made = made.context("--run: can't make a directory for the socket")?;
        Ok(self.0.get_or_init(|| made).path().join("nbd.sock"))
    }
}

/// Refuses the same socket for clients and for administrators, and users of a socket that there is not.
pub(super) fn ensure_sockets(args: &ServeArgs) -> Result<()> {
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

/// Opens the sockets that the arguments ask for, but for those that were taken over with the clients of another server.
/// `private` is where one is made for `--run` alone.
pub(super) fn sockets(
    args: &ServeArgs,
    addresses: &[Vec<SocketAddr>],
    taken: Vec<Parting>,
    private: &PrivateDirectory,
) -> Result<Sockets> {
    let listener = clients_sockets(args, addresses, taken, private)?;
    let control = control_path(listener.endpoints(), &args.watch, None)?;
    Ok(Sockets { listener, control: control.map(|path| UnixSocket::bind(&path)).transpose()? })
}

/// The same without a control socket.
pub(super) fn clients_sockets(
    args: &ServeArgs,
    addresses: &[Vec<SocketAddr>],
    taken: Vec<Parting>,
    private: &PrivateDirectory,
) -> Result<Listener> {
    let ServeArgs { endpoint, members, run, .. } = args;
    match inherited(endpoint, addresses)? {
        Some(listener) => Ok(listener.and(Listener::take_over(taken)?.without(|_| true))),
        None if !taken.is_empty() => {
            admit(complete(taken, unix_socket(endpoint, members).as_deref(), addresses)?, endpoint)
        }
        None => listener(endpoint, addresses, || match run {
            Some(_) if endpoint.socket.is_none() && addresses.is_empty() => private.socket().map(Some),
            _ => Ok(unix_socket(endpoint, members)),
        }),
    }
}

/// The sockets that are asked for: those that were taken, and others that are opened; those that nobody asks for any
/// more are closed.
fn complete(taken: Vec<Parting>, unix: Option<&Path>, addresses: &[Vec<SocketAddr>]) -> Result<Listener> {
    let unix = unix.map(absolute).transpose()?;
    let is_wanted = |endpoint: &Endpoint| match endpoint {
        Endpoint::Unix(path) => unix.as_ref() == Some(path),
        Endpoint::Tcp(address) => addresses.iter().flatten().any(|wanted| is_meant(*wanted, *address)),
    };
    let listener = Listener::take_over(taken)?.without(|endpoint| !is_wanted(endpoint));
    let there: Vec<String> = listener.endpoints().iter().map(Endpoint::to_string).collect();
    Ok(match open_missing(unix.as_deref(), addresses, &there)? {
        Some(others) => others.and(listener),
        None => listener,
    })
}

/// Opens the sockets that are asked for, but for those that a running server has at these endpoints. None is opened if
/// the service manager hands over all of them.
pub(super) fn open_others(
    args: &ServeArgs,
    addresses: &[Vec<SocketAddr>],
    there: &[String],
) -> Result<Option<Listener>> {
    let unix = unix_socket(&args.endpoint, &args.members).map(absolute).transpose()?;
    if systemd::has_sockets() { Ok(None) } else { open_missing(unix.as_deref(), addresses, there) }
}

/// Opens those of the sockets that are not there.
fn open_missing(unix: Option<&Path>, addresses: &[Vec<SocketAddr>], there: &[String]) -> Result<Option<Listener>> {
    let is_there = |wanted: &SocketAddr| {
        there.iter().filter_map(|endpoint| endpoint.parse().ok()).any(|address| is_meant(*wanted, address))
    };
    let unix = unix.filter(|path| !there.contains(&Endpoint::Unix(path.to_path_buf()).to_string()));
    let unix = unix.map(Listener::unix);
    let missing = addresses.iter().filter(|group| !group.iter().any(is_there));
    let opened = unix.into_iter().chain(missing.map(|group| Listener::tcp(group)));
    let opened = opened.collect::<Result<Vec<_>, _>>()?;
    Ok(opened.into_iter().reduce(Listener::and))
}

/// Whether an address is the one that is wanted, of which the system may have chosen the port.
fn is_meant(wanted: SocketAddr, address: SocketAddr) -> bool {
    wanted.ip() == address.ip() && (wanted.port() == address.port() || wanted.port() == 0)
}

/// Opens the sockets of one of several arrays, which has its own.
pub(super) fn own_sockets(args: &ServeArgs, addresses: &[Vec<SocketAddr>]) -> Result<Sockets> {
    let listener = listener(&args.endpoint, addresses, || Ok(args.endpoint.socket.clone()))?;
    let control = control_path(listener.endpoints(), &args.watch, None)?;
    Ok(Sockets { listener, control: control.map(|path| UnixSocket::bind(&path)).transpose()? })
}

/// Opens the sockets that several arrays share, if there are any.
pub(super) fn shared_sockets(endpoint: &EndpointArgs, addresses: &[Vec<SocketAddr>]) -> Result<Option<Listener>> {
    if let Some(listener) = inherited(endpoint, addresses)? {
        return Ok(Some(listener));
    }
    if endpoint.socket.is_none() && addresses.is_empty() {
        return Ok(None);
    }
    listener(endpoint, addresses, || Ok(endpoint.socket.clone())).map(Some)
}

/// A place among the exports that share sockets, and a control socket beside these.
pub(super) fn place(name: &str, args: &ServeArgs, exports: &SharedExports, offer: Offer) -> Result<Sockets> {
    let listener = Listener::shared(exports, offer, args.endpoint.security.listed())?;
    let control = control_path(listener.endpoints(), &args.watch, Some(name))?;
    Ok(Sockets { listener, control: control.map(|path| UnixSocket::bind(&path)).transpose()? })
}

/// The sockets of the service manager, if it handed any over.
fn inherited(endpoint: &EndpointArgs, addresses: &[Vec<SocketAddr>]) -> Result<Option<Listener>> {
    let inherited = systemd::inherited()?;
    if inherited.is_empty() {
        return Ok(None);
    }
    let listener = handed_over(inherited, endpoint, addresses)?;
    admit(listener, endpoint).map(Some)
}

/// Everywhere that clients connect to: a Unix socket comes first, where people look for it.
fn listener(
    endpoint: &EndpointArgs,
    addresses: &[Vec<SocketAddr>],
    socket: impl FnOnce() -> Result<Option<PathBuf>>,
) -> Result<Listener> {
    let unix = socket()?.map(|path| Listener::unix(&path)).transpose()?;
    let tcp = addresses.iter().map(|addresses| Listener::tcp(addresses));
    let listeners = unix.into_iter().map(Ok).chain(tcp).collect::<Result<Vec<_>, _>>()?;
    admit(listeners.into_iter().reduce(Listener::and).expect("without an address there is a socket"), endpoint)
}

/// Says who may connect, and refuses to let everybody do so by accident.
fn admit(listener: Listener, endpoint: &EndpointArgs) -> Result<Listener> {
    endpoint.security.ensure_private(listener.endpoints().iter().filter_map(Endpoint::address))?;
    let guests = &endpoint.security.allow_uid;
    Ok(if guests.is_empty() { listener } else { listener.admit(guests.clone())? })
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
pub(super) fn unix_socket(endpoint: &EndpointArgs, members: &[PathBuf]) -> Option<PathBuf> {
    let default = || endpoint.listen.is_empty().then(|| default_socket(members));
    endpoint.socket.clone().or_else(default)
}

/// Where the control socket is, if there is one: beside the first Unix socket of these, under its name, or under that
/// of the array by which it is shared.
pub(super) fn control_path(
    endpoints: &[Endpoint],
    args: &WatchArgs,
    shared_by: Option<&str>,
) -> Result<Option<PathBuf>, Misuse> {
    // A socket without a name has no directory to put it in.
    let named = endpoints.iter().find_map(|endpoint| match endpoint {
        Endpoint::Unix(path) if path.file_name().is_some() => Some(path),
        _ => None,
    });
    match (&args.control, named) {
        (Some(path), _) => Ok(Some(path.clone())),
        (None, Some(socket)) => {
            let beside = beside(socket)?;
            Ok(Some(shared_by.map_or(beside, |name| socket.with_file_name(format!("{name}.ctl")))))
        }
        (None, None) => Ok(None),
    }
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

/// The default socket, in the first member's directory. For devices and exports it is in the working directory.
fn default_socket(members: &[PathBuf]) -> PathBuf {
    // One that is not there is taken for what its path says: files may be in /dev, too, as in /dev/shm.
    let is_device = |member: &Path| {
        member.metadata().map_or(member.starts_with("/dev"), |metadata| metadata.file_type().is_block_device())
    };
    let file = members.first().filter(|member| !is_uri(member) && !is_device(member));
    file.and_then(|member| member.parent()).unwrap_or(Path::new("")).join("uraid.sock")
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
        assert_eq!(default_socket(&[PathBuf::from("nbd://host/a/b")]), Path::new("uraid.sock"));
        assert_eq!(default_socket(&[PathBuf::from("/srv/d0"), PathBuf::from("/x/d1")]), Path::new("/srv/uraid.sock"));
    }
}
