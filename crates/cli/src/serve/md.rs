//! `uraid serve --md`: serves an array of Linux md, for reading.

use std::io;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use uraid_layout::Bytes;
use uraid_md::superblock::Superblock;
use uraid_md::{Array, Assembly, FileSource, Options, Standing};
use uraid_nbd::{BlockSizes, ExportInfo};
use uraid_serve::plain::{self, Content, PlainOptions};
use uraid_serve::server::{self, Reachable, Sockets};
use uraid_serve::signals::{Signals, outlive_file_limits};
use uraid_serve::systemd::Notifier;
use uraid_serve::text::visible;

use super::args::{MdZones, ServeArgs};
use super::sockets::{PrivateDirectory, clients_sockets, ensure_sockets};
use super::{REQUEST_BYTES_MAX, REQUEST_MEMORY_MIN, announce, ensure_descriptors, exit_code, prepare, reach};
use crate::md::{Gathered, gather, health, name, said};

/// Serves until SIGINT or SIGTERM, or until the command ends that runs meanwhile: then its status is the server's.
pub(crate) fn run(args: &ServeArgs) -> Result<ExitCode> {
    let prepared = prepare(args)?;
    let tls = args.endpoint.security.tls()?;
    ensure_descriptors(args)?;
    outlive_file_limits()?;
    ensure_sockets(args)?;
    let privileges = args.privileges.check()?.of(reach::runs_programs(args), Vec::new(), args.exit_with_parent)?;
    privileges.close(&reach::of_one(args))?;
    let (signals, notifier) = (Signals::listen()?, Rc::new(Notifier::from_env()));
    let (superblock, array) = open(args)?;
    signals.hand_over();
    let options = PlainOptions {
        info: info(args, &superblock, &array),
        limits: args.clients.limits(args.cache.request_memory.unwrap_or(REQUEST_MEMORY_MIN)),
        client_rates: args.clients.rates(),
        tls,
        run: args.run.clone(),
    };
    let private = PrivateDirectory::default();
    let open = || {
        let listener = clients_sockets(args, &prepared.addresses, Vec::new(), &private)?;
        let sockets = Sockets { listener, control: None };
        if let Some(heir) = privileges.heir() {
            heir.gets(&sockets);
            private.path().into_iter().for_each(|directory| heir.gets_directory(directory));
        }
        Ok(sockets.listener)
    };
    let announce = |reachable: &Reachable<'_>| {
        privileges.give_up()?;
        args.run.as_ref().map_or_else(|| announce(reachable), |_| Ok(()))
    };
    let served = plain::serve(Arc::new(Md(array)), options, signals.stops(), notifier, open, announce);
    let ended = server::run(served).map_err(|error| privileges.confinement().explain(error))?;
    Ok(ended.map_or(ExitCode::SUCCESS, exit_code))
}

/// The array that is asked for. Says what it lacks.
fn open(args: &ServeArgs) -> Result<(Superblock, Array)> {
    let zone_order = args.md.md_zones.map(|order| match order {
        MdZones::Original => uraid_md::geometry::ZoneOrder::Original,
        MdZones::Alternate => uraid_md::geometry::ZoneOrder::Alternate,
    });
    let options = Options { trust_parity: args.force, zone_order };
    let Gathered { mut arrays, troubles } = gather(&args.members, FileSource::open_locked, &options)?;
    let found: Vec<String> = arrays.iter().map(shown).collect();
    arrays.retain(|assembly| is_wanted(args, &assembly.superblock));
    let assembly = match (arrays.len(), arrays.pop()) {
        (1, Some(assembly)) => assembly,
        (0, _) => bail!("no such array of Linux md is there, but {}", found.join("; ")),
        _ => bail!("there are several arrays of Linux md: choose one with --uuid or --name: {}", found.join("; ")),
    };
    for trouble in &troubles {
        tracing::warn!("{}: left out", said(trouble));
    }
    for member in &assembly.members {
        if !matches!(member.standing, Standing::Active { .. }) {
            tracing::warn!("member {}: {}", visible(&member.label), member.standing);
        }
    }
    let health = health(&assembly);
    let Assembly { superblock, missing, array, .. } = assembly;
    let array = array?;
    if !missing.is_empty() || superblock.resynced.is_some() {
        tracing::warn!("the array: {health}");
    }
    ensure!(array.capacity() > Bytes(0), "the array has no room for content");
    Ok((superblock, array))
}

/// An array in a few words.
fn shown(assembly: &Assembly) -> String {
    let Superblock { array, level, .. } = &assembly.superblock;
    format!("{} ({level}, uuid {array})", name(&assembly.superblock))
}

/// Whether an array is the one that is asked for; each is, if none is.
fn is_wanted(args: &ServeArgs, superblock: &Superblock) -> bool {
    let has_uuid = |uuid: &uuid::Uuid| superblock.array.0 == *uuid.as_bytes();
    // mdadm puts the host's name in front.
    let has_name = |wanted: &String| *wanted == superblock.name || *wanted == name(superblock);
    args.wanted.uuid.as_ref().is_none_or(has_uuid) && args.wanted.name.as_ref().is_none_or(has_name)
}

fn info(args: &ServeArgs, superblock: &Superblock, array: &Array) -> ExportInfo {
    let maximum_bytes = REQUEST_BYTES_MAX;
    ExportInfo {
        name: args.endpoint.export.clone().unwrap_or_else(|| name(superblock)),
        description: format!("{} of {} members, of Linux md", superblock.level, superblock.raid_disks),
        block_sizes: BlockSizes { minimum_bytes: 1, preferred_bytes: 4096, maximum_bytes },
        read_only: true,
        ..ExportInfo::new(array.capacity().0)
    }
}

/// An array as the server wants it.
struct Md(Array);

impl Content for Md {
    fn read(&self, buf: &mut [u8], at: Bytes) -> io::Result<()> {
        self.0.read(at, buf).map_err(io::Error::other)
    }
}
