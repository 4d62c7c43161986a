//! `uraid serve --takeover`: goes on where a running server stops.

use std::path::absolute;

use anyhow::{Context as _, Result};
use uraid_nbd::{Endpoint, Parting};
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
