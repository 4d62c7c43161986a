//! `uraid serve --takeover`: goes on where a running server stops.

use std::io::{Write as _, stderr};
use std::path::absolute;

use anyhow::{Context as _, Result};
use uraid_nbd::{Endpoint, Parting};
use uraid_serve::takeover::ask;

use super::args::ServeArgs;
use super::sockets::{control_path, unix_socket};
use super::start::rehearse;
use crate::misuse::Misuse;
use crate::terminal::print;

/// Says what a takeover that takes long waits for.
fn waiting() {
    let text = "waiting for the running server: it finishes what clients have asked for, and writes out its cache";
    // If standard error is closed, nobody wants to know.
    let _ = writeln!(stderr(), "{text}");
}

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
    let array = rehearse(args).context("the running server goes on")?;
    let Some(partings) = ask(&control, array, waiting)? else {
        print(format_args!("no server answers at {}: there is nothing to take over", control.display()))?;
        return Ok(Vec::new());
    };
    let clients = partings.iter().filter(|parting| parting.is_client()).count();
    let noun = if clients == 1 { "client" } else { "clients" };
    // The other server has stopped, whoever reads this.
    let _ = print(format_args!("took over from the running server, with {clients} {noun}"));
    Ok(partings)
}
