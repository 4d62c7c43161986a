//! `uraid serve --config` with several arrays.

mod change;
mod plan;

use std::process::ExitCode;

use anyhow::{Result, bail};
use uraid_layout::Bytes;
use uraid_serve::fleet;
use uraid_serve::front::Front;
use uraid_serve::signals::{Signals, outlive_file_limits};

use super::exit_with_parent;
use super::sockets::shared_sockets;
use crate::config::Source;
use crate::terminal::print;
use plan::{Plan, Plans, ServerPlan};

/// Serves the arrays of a file until all have ended, or SIGINT or SIGTERM comes. Reads the file again at SIGHUP.
pub(crate) fn run(source: &Source) -> Result<ExitCode> {
    let Plans { server, arrays } = Plans::read(source)?;
    plan::ensure_descriptors(&arrays)?;
    outlive_file_limits()?;
    if server.settings.args.exit_with_parent {
        exit_with_parent()?;
    }
    let signals = Signals::listen_for_reloads()?;
    signals.hand_over();
    let front = open(&server)?;
    let exports = front.as_ref().map(Front::exports);
    let with_exports = |arrays: Vec<Plan>| -> Vec<Plan> {
        arrays.into_iter().map(|plan| Plan { exports: exports.cloned(), ..plan }).collect()
    };
    let read = || {
        let plans = Plans::read(source)?;
        if let Some(key) = server.difference(&plans.server) {
            bail!("{key} of the server itself has changed, which takes effect only when the server is restarted");
        }
        plan::ensure_descriptors(&plans.arrays)?;
        Ok(with_exports(plans.arrays))
    };
    let metrics = server.prepared.metrics.as_deref();
    let served = fleet::run(with_exports(arrays), read, &signals, metrics, announce);
    let closed = front.map_or(Ok(()), Front::close);
    served.and(closed).map(|()| ExitCode::SUCCESS)
}

/// Opens the server's own sockets.
fn open(server: &ServerPlan) -> Result<Option<Front>> {
    let (args, addresses) = (&server.settings.args, server.prepared.addresses.clone());
    let endpoint = args.endpoint.clone();
    // A handshake has no requests, so their memory is of no interest.
    let limits = args.clients.limits(Bytes(0));
    Front::open(move || shared_sockets(&endpoint, &addresses), limits, server.tls.clone())
}

/// Prints that every array is served or has failed.
fn announce(metrics: Option<String>) {
    // The arrays are served, whoever reads that.
    let _ = print(format_args!("stop with Ctrl-C"));
    metrics.into_iter().for_each(|url| drop(print(format_args!("metrics at {url}"))));
}
