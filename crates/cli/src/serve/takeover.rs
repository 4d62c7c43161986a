//! `uraid serve --takeover`: goes on where a running server stops.

use std::io::{Write as _, stderr};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::absolute;

use anyhow::{Context as _, Result};
use uraid_nbd::{Endpoint, Listener, Parting};
use uraid_serve::metrics;
use uraid_serve::protocol::Status;
use uraid_serve::server;
use uraid_serve::takeover::{Left, Running};

use super::args::ServeArgs;
use super::sockets::{control_path, open_others, unix_socket};
use super::start::rehearse;
use crate::misuse::Misuse;
use crate::terminal::print;

/// What a server begins with.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Clients and sockets, and sockets that the running server did not have.
    pub(super) partings: Vec<Parting>,
    /// The members' files, locked.
    pub(super) members: Vec<OwnedFd>,
    /// The socket of metrics, the running server's if it is the same.
    pub(super) metrics: Option<metrics::Socket>,
}

/// Says what a takeover that takes long waits for.
fn waiting() {
    let text = "waiting for the running server: it finishes what clients have asked for, and writes out its cache";
    // If standard error is closed, nobody wants to know.
    let _ = writeln!(stderr(), "{text}");
}

/// Has the running server stop, if there is one, and takes its clients and sockets. `addresses` and `metrics` are what
/// this server listens on.
///
/// # Errors
/// If this server could not start as far as that can be told before; then the running one goes on. If it refuses, or
/// hands over less than it should.
pub(super) fn take(args: &ServeArgs, addresses: &[Vec<SocketAddr>], metrics: Option<&[SocketAddr]>) -> Result<Taken> {
    let socket = unix_socket(&args.endpoint, &args.members).map(absolute).transpose()?;
    let endpoints: Vec<_> = socket.into_iter().map(Endpoint::Unix).collect();
    let control = control_path(&endpoints, &args.watch, None)?;
    let Some(control) = control else {
        let text = "--takeover asks the running server on its control socket: name that with --control";
        return Err(Misuse(text.into()).into());
    };
    let goes_on = "the running server goes on";
    let array = rehearse(args).map_err(|error| match Running::find(&control) {
        Ok(None) => error,
        _ => error.context(goes_on),
    })?;
    let Some(running) = Running::find(&control)? else {
        print(format_args!("no server answers at {}: there is nothing to take over", control.display()))?;
        return Ok(Taken::default());
    };
    let status = running.status().context("the running server does not say what it serves")?;
    let (same, other) = match metrics {
        Some(addresses) if has_metrics(&status, addresses) => (true, None),
        metrics => (false, metrics),
    };
    // What can't be had is found out before clients are without a server, and what can is kept.
    let taken = server::run(async {
        let others = open_others(args, addresses, &status.endpoints).context(goes_on)?;
        let other = other.map(metrics::Socket::listen).transpose().context(goes_on)?;
        let Left { members, mut partings, metrics } = running.hand_over(array, waiting)?;
        let metrics = other.or(metrics.filter(|_| same).map(metrics::Socket::from));
        partings.extend(others.map(Listener::part).unwrap_or_default());
        // People look for a Unix socket first.
        partings.sort_by_key(|parting| !parting.is_unix_socket());
        Ok(Taken { partings, members, metrics })
    })?;
    let clients = taken.partings.iter().filter(|parting| parting.is_client()).count();
    let noun = if clients == 1 { "client" } else { "clients" };
    // The other server has stopped, whoever reads this.
    let _ = print(format_args!("took over from the running server, with {clients} {noun}"));
    Ok(taken)
}

/// Whether the running server has its metrics at one of these addresses.
fn has_metrics(status: &Status, addresses: &[SocketAddr]) -> bool {
    addresses.iter().any(|address| status.metrics.as_deref() == Some(&address.to_string()))
}
