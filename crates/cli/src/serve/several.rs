//! `uraid serve --config` with several arrays.

mod certificates;
mod change;
mod plan;

use std::process::ExitCode;

use anyhow::{Result, bail};
use uraid_layout::Bytes;
use uraid_serve::fleet;
use uraid_serve::front::Front;
use uraid_serve::signals::{Signals, outlive_file_limits};

use super::privileges::{Heir, Privileges};
use super::reach;
use super::sockets::shared_sockets;
use crate::config::Source;
use crate::terminal::print;
use certificates::Certificates;
use plan::{Common, Plan, Plans, ServerPlan};

/// Serves the arrays of a file until all have ended, or SIGINT or SIGTERM comes. Reads the file again at SIGHUP.
pub(crate) fn run(source: &Source) -> Result<ExitCode> {
    let (mut plans, mut certificates) = (Plans::read(source)?, Certificates::default());
    certificates.renew(&mut plans);
    let Plans { server, arrays } = plans;
    plan::ensure_descriptors(&arrays)?;
    outlive_file_limits()?;
    let privileges = give_up_first(&server, &arrays, source)?;
    let signals = Signals::listen_for_reloads()?;
    signals.hand_over();
    let front = open(&server, privileges.heir().cloned())?;
    let (exports, heir) = (front.as_ref().map(Front::exports).cloned(), privileges.heir().cloned());
    let common = Common { exports, heir, confinement: privileges.confinement() };
    let in_common = |arrays: Vec<Plan>| -> Vec<Plan> {
        arrays.into_iter().map(|plan| Plan { common: common.clone(), ..plan }).collect()
    };
    let read = || {
        let mut plans = Plans::read(source)?;
        if let Some(key) = server.difference(&plans.server) {
            bail!("{key} of the server itself has changed, which takes effect only when the server is restarted");
        }
        plan::ensure_descriptors(&plans.arrays)?;
        let new = plans.arrays.iter().find(|plan| reach::runs_programs(&plan.table.settings.args));
        if let Some(Plan { table, .. }) = new.filter(|_| !privileges.may_run_programs()) {
            let name = &table.name;
            bail!(
                "array.{name} runs a program, and the server was started without any: its sandbox is to be restarted"
            );
        }
        certificates.renew(&mut plans);
        Ok(in_common(plans.arrays))
    };
    let metrics = server.prepared.metrics.as_deref();
    let begun = |metrics| -> Result<()> {
        privileges.give_up()?;
        announce(metrics);
        Ok(())
    };
    let served = fleet::run(in_common(arrays), read, &signals, metrics, begun);
    let closed = front.map_or(Ok(()), Front::close);
    served.and(closed).map(|()| ExitCode::SUCCESS)
}

/// Gives up what can be before anything is opened.
fn give_up_first(server: &ServerPlan, arrays: &[Plan], source: &Source) -> Result<Privileges> {
    let args = &server.settings.args;
    let arrays = || arrays.iter().map(|plan| &*plan.table.settings.args);
    let spares = arrays().flat_map(|array| array.spares.clone()).collect();
    let privileges = args.privileges.check()?;
    let privileges = privileges.of(arrays().any(reach::runs_programs), spares, args.exit_with_parent)?;
    privileges.close(&reach::of_several(args, arrays(), source.path()))?;
    Ok(privileges)
}

/// Opens the server's own sockets, which are to be this user's.
fn open(server: &ServerPlan, heir: Option<Heir>) -> Result<Option<Front>> {
    let (args, addresses) = (&server.settings.args, server.prepared.addresses.clone());
    let endpoint = args.endpoint.clone();
    // A handshake has no requests, so their memory is of no interest.
    let limits = args.clients.limits(Bytes(0));
    let open = move || {
        let listener = shared_sockets(&endpoint, &addresses)?;
        if let (Some(heir), Some(listener)) = (heir, &listener) {
            heir.gets_listener(listener);
        }
        Ok(listener)
    };
    Front::open(open, limits, server.tls.clone())
}

/// Prints that every array is served or has failed.
fn announce(metrics: Option<String>) {
    // The arrays are served, whoever reads that.
    let _ = print(format_args!("stop with Ctrl-C"));
    metrics.into_iter().for_each(|url| drop(print(format_args!("metrics at {url}"))));
}
