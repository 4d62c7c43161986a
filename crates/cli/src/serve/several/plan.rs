//! What a configuration file with several arrays asks for, checked as far as that is possible without opening anything.

use std::path::{Path, PathBuf, absolute};

use anyhow::{Context as _, Result, ensure};
use uraid_nbd::{Endpoint, SharedExports, Tls};
use uraid_serve::fleet::{self, Berth, Change};
use uraid_serve::server::{Options, Reachable};
use uraid_serve::{Config, Confinement};

use super::change::change;
use crate::config::Source;
use crate::config::tables::{ArrayTable, Settings};
use crate::misuse::Misuse;
use crate::serve::privileges::Heir;
use crate::serve::security::SecurityArgs;
use crate::serve::sockets::{control_path, ensure_sockets, own_sockets, place};
use crate::serve::start::{Started, start};
use crate::serve::{DESCRIPTORS, Prepared, descriptors, options, prepare};
use crate::terminal::print;

/// What a file asks for.
pub(super) struct Plans {
    pub(super) server: ServerPlan,
    /// By name, in order.
    pub(super) arrays: Vec<Plan>,
}

/// What the server itself needs.
pub(super) struct ServerPlan {
    pub(super) settings: Settings,
    pub(super) prepared: Prepared,
    /// How clients of the server's sockets are encrypted.
    pub(super) tls: Option<Tls>,
    /// Whether they have to prove who they are.
    verifies: bool,
}

/// How to serve an array.
pub(super) struct Plan {
    pub(super) table: ArrayTable,
    pub(super) prepared: Prepared,
    /// The configuration file.
    pub(super) file: PathBuf,
    /// Known once the server has begun.
    pub(super) common: Common,
}

/// What all arrays of a server have in common.
#[derive(Clone, Default)]
pub(super) struct Common {
    /// The exports on the server's sockets.
    pub(super) exports: Option<SharedExports>,
    /// The user whose sockets are to be.
    pub(super) heir: Option<Heir>,
    pub(super) confinement: Confinement,
}

impl Plans {
    /// Reads the file.
    ///
    /// # Errors
    /// Whatever is wrong with it.
    pub(super) fn read(source: &Source) -> Result<Self> {
        let tables = source.read()?;
        let (file, settings) = (source.path().display().to_string(), tables.server);
        let prepared = prepare(&settings.args).with_context(|| file.clone())?;
        let plan = |table: ArrayTable| {
            let prepared = Plan::prepare(&table).with_context(|| format!("{file}: array.{}", table.name))?;
            Ok(Plan { table, prepared, file: source.path().to_owned(), common: Common::default() })
        };
        let mut arrays = tables.arrays.into_iter().map(plan).collect::<Result<Vec<_>>>()?;
        let security = &settings.args.endpoint.security;
        let listed = arrays.iter().find(|plan| plan.table.is_shared && plan.security().listed().is_some());
        let verifies = security.verifies(listed.is_some());
        let tls = security.tls_for_several(verifies).with_context(|| file.clone())?;
        if let Some(Plan { table, .. }) = listed.filter(|_| tls.is_none()) {
            let text =
                format!("{file}: array.{}: tls-allow-client needs tls = \"require\" above the tables", table.name);
            return Err(Misuse(text).into());
        }
        for plan in arrays.iter_mut().filter(|plan| plan.table.is_shared) {
            plan.prepared.tls.clone_from(&tls);
        }
        let plans = Self { server: ServerPlan { settings, prepared, tls, verifies }, arrays };
        plans.check_control_sockets().map_err(|text| Misuse(format!("{file}: {text}")))?;
        Ok(plans)
    }

    fn check_control_sockets(&self) -> Result<(), String> {
        let mut seen: Vec<(PathBuf, &str)> = Vec::new();
        for plan in &self.arrays {
            let control = plan.control(self.server.settings.args.endpoint.socket.as_deref());
            let Some(path) = control.map_err(|error| error.to_string())? else { continue };
            let name = plan.table.name.as_str();
            if let Some((_, other)) = seen.iter().find(|(other, _)| *other == path) {
                let path = path.display();
                return Err(format!(
                    "two arrays have the control socket {path}: {other} and {name}; give one of them a key control"
                ));
            }
            seen.push((path, name));
        }
        Ok(())
    }
}

/// Makes sure that the limit of open files is enough for all arrays together.
pub(super) fn ensure_descriptors(plans: &[Plan]) -> Result<()> {
    let args = || plans.iter().map(|plan| &plan.table.settings.args);
    let members = args().map(|args| args.members.len() + args.spares.len()).sum();
    let own = DESCRIPTORS + args().map(|args| DESCRIPTORS + descriptors(args)).sum::<u64>();
    args().map(|args| &args.clients).try_for_each(|clients| clients.ensure_descriptors(own, members))
}

impl ServerPlan {
    /// The key of a setting that is another one in `new`, of those that a server keeps as long as it runs.
    pub(super) fn difference(&self, new: &Self) -> Option<String> {
        let (old, now): (Vec<_>, Vec<_>) = (self.settings.lasting().collect(), new.settings.lasting().collect());
        let differs = old.iter().find(|setting| !now.contains(setting));
        let differs = differs.or_else(|| now.iter().find(|setting| !old.contains(setting)));
        let verifies = (self.verifies != new.verifies).then(|| "tls-allow-client".to_owned());
        differs.map(|setting| setting.key.clone()).or(verifies)
    }
}

impl Plan {
    fn prepare(table: &ArrayTable) -> Result<Prepared> {
        let args = &table.settings.args;
        ensure!(!args.md.md, Misuse("an array of Linux md is served alone, by `uraid serve --md`".into()));
        if table.is_shared {
            return prepare(args);
        }
        ensure_sockets(args)?;
        Ok(Prepared { tls: args.endpoint.security.tls()?, ..prepare(args)? })
    }

    fn security(&self) -> &SecurityArgs {
        &self.table.settings.args.endpoint.security
    }

    /// Where its control socket is, if that is known already.
    fn control(&self, shared: Option<&Path>) -> Result<Option<PathBuf>, Misuse> {
        let ArrayTable { name, settings, is_shared } = &self.table;
        let socket = if *is_shared { shared } else { settings.args.endpoint.socket.as_deref() };
        let path = |path: &Path| absolute(path).unwrap_or_else(|_| path.to_owned());
        let endpoints: Vec<_> = socket.map(path).map(Endpoint::Unix).into_iter().collect();
        control_path(&endpoints, &settings.args.watch, is_shared.then_some(name))
    }

    fn open_and_serve(&self, berth: Berth) -> Result<()> {
        let Self { table: ArrayTable { name, settings, is_shared }, prepared, file, common } = self;
        let Common { exports, heir, confinement } = common;
        let args = &settings.args;
        let Started { array, spares } = start(args, berth.notifier(), || berth.ensure_current())?;
        let config = Config { path: file.clone(), array: Some(name.clone()) };
        let (config, confinement) = (Some(config), confinement.clone());
        let options = Options { config, confinement, ..options(args, &array, spares, prepared) };
        let open = |offer| {
            let sockets = match exports {
                Some(exports) if *is_shared => place(name, args, exports, offer)?,
                _ => own_sockets(args, &prepared.addresses)?,
            };
            heir.iter().for_each(|heir| heir.gets(&sockets));
            Ok(sockets)
        };
        berth.serve(array, options, open, |reachable| {
            announce(name, reachable);
            Ok(())
        })
    }
}

impl fleet::Plan for Plan {
    fn name(&self) -> &str {
        &self.table.name
    }

    fn change(&self, new: &Self) -> Change {
        change(&self.table, &new.table)
    }

    fn serve(&self, berth: Berth) -> Result<()> {
        self.open_and_serve(berth).map_err(|error| self.common.confinement.explain(error))
    }
}

/// Prints where an array is served, in one piece: others may be announced at the same time.
fn announce(name: &str, Reachable { endpoints, scheme, info, .. }: &Reachable<'_>) {
    let uris: Vec<_> = endpoints.iter().map(|endpoint| endpoint.uri(*scheme, &info.name)).collect();
    // The array is served, whoever reads that.
    let _ = print(format_args!("{name}: {}", uris.join("\n  also ")));
}
