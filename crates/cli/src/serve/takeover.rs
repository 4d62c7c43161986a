//! `uraid serve --takeover`: goes on where a running server stops.

use std::net::SocketAddr;
use std::path::{Path, absolute};

use anyhow::{Context as _, Result};
use uraid_nbd::{Endpoint, Listener, Parting};
use uraid_serve::takeover::ask;

use super::args::ServeArgs;
use super::sockets::{control_path, unix_socket};
use super::start::rehearse;
use crate::misuse::Misuse;
use crate::terminal::print;

/// Has the running server stop, if there is one, and takes its clients and sockets.
///
/// # Errors
/// If this server could not start as far as that can be told before; then the running one goes on. If it refuses, or
/// hands over less than it should.
pub(super) fn take(args: &ServeArgs) -> Result<Vec<Parting>> {
    let socket = unix_socket(&args.endpoint, &args.members).map(absolute).transpose()?;
    let endpoints: Vec<_> = socket.into_iter().map(Endpoint::Unix).collect();
    let control = control_path(&endpoints, &args.watch, None)?;
    let Some(control) = control else {
        let text = "--takeover asks the running server on its control socket: name that with --control";
        return Err(Misuse(text.into()).into());
    };
    rehearse(args).context("the running server goes on")?;
    let Some(partings) = ask(&control)? else {
        print(format_args!("no server answers at {}: there is nothing to take over", control.display()))?;
        return Ok(Vec::new());
    };
    let clients = partings.iter().filter(|parting| parting.is_client()).count();
    let noun = if clients == 1 { "client" } else { "clients" };
    // The other server has stopped, whoever reads this.
    let _ = print(format_args!("took over from the running server, with {clients} {noun}"));
    Ok(partings)
}

/// The sockets that are asked for: those that were taken, and others that are opened; those that nobody asks for any
/// more are closed.
pub(super) fn complete(
    taken: Vec<Parting>,
    unix: Option<&Path>,
    addresses: &[Vec<SocketAddr>],
) -> Result<Listener> {
    let unix = unix.map(absolute).transpose()?;
    let is_wanted = |endpoint: &Endpoint| match endpoint {
        Endpoint::Unix(path) => unix.as_ref() == Some(path),
        Endpoint::Tcp(address) => addresses.iter().flatten().any(|wanted| is_meant(*wanted, *address)),
    };
    let mut listener = Listener::take_over(taken)?.without(|endpoint| !is_wanted(endpoint));
    if let Some(path) = unix.filter(|path| !listener.endpoints().contains(&Endpoint::Unix(path.clone()))) {
        listener = Listener::unix(&path)?.and(listener);
    }
    for group in addresses {
        let mut there = listener.endpoints().iter().filter_map(Endpoint::address);
        if !there.any(|address| group.iter().any(|wanted| is_meant(*wanted, address))) {
            listener = listener.and(Listener::tcp(group)?);
        }
    }
    Ok(listener)
}

/// Whether an address is the one that is wanted, of which the system may have chosen the port.
fn is_meant(wanted: SocketAddr, address: SocketAddr) -> bool {
    wanted.ip() == address.ip() && (wanted.port() == address.port() || wanted.port() == 0)
}
