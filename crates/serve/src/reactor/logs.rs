//! Log devices that come and go while the array is served. Clients wait meanwhile: for as long as it takes to write out
//! what flushes have put into the log, and for two rounds of superblocks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use uraid_io::array::{make_log, unmake};
use uraid_io::disk::log_place;
use uraid_io::engine::Command;
use uraid_io::format::superblock::{LogChange, LogIndex, Superblock};
use uraid_io::member::{FileId, Member};
use uraid_layout::MemberIndex;
use uuid::Uuid;

use super::{Reactor, blocking};
use crate::disk::LiveDisk;

/// Takes a new log device in, in the place of another one or beside those that there are. Completes when that is on
/// record: its number, and who it is. No other change of members may run meanwhile.
///
/// # Errors
/// If it can't be one, by name; the array has its log devices as before then.
pub(crate) async fn take_in<D: LiveDisk>(
    reactor: &Reactor<D>,
    replaced: Option<LogIndex>,
    path: &Path,
    force: bool,
) -> Result<(LogIndex, Uuid)> {
    let change = |device| match replaced {
        Some(log) => LogChange::Replace { log, device },
        None => LogChange::Add { device },
    };
    let truth = check(reactor, change(Uuid::nil()))?;
    if let Some(log) = replaced {
        let_go_if_failed(reactor, log);
    }
    let (used, own_path) = (used(reactor), path.to_path_buf());
    let make = move || make_log(&own_path, force, &truth, &used);
    let (made, is_new) = blocking::prepare(reactor, path.to_path_buf(), make).await?;
    let (device, uuid) = made?;
    let changed = put_in(reactor, device, change(uuid)).await;
    let superblock = reactor.engine().superblock().clone();
    let place = superblock.logs.iter().flat_map(|logs| &logs.devices).position(|device| device.uuid == uuid);
    match (changed, place) {
        (Ok(()), Some(number)) => {
            Ok((LogIndex(u8::try_from(number).context("an array has at most four log devices")?), uuid))
        }
        (Ok(()), None) => bail!("the log device has left the array again"),
        (Err(error), place) => {
            // Where it may be on record it stays.
            if is_new && place.is_none() {
                unmake(path);
            }
            Err(error)
        }
    }
}

/// Has the array forget a log device that failed. Completes when that is on record.
///
/// # Errors
/// If the array uses it.
pub(crate) async fn remove<D: LiveDisk>(reactor: &Reactor<D>, log: LogIndex) -> Result<()> {
    let change = LogChange::Remove { log };
    check(reactor, change)?;
    let changed = reactor.administer(Command::ChangeLogs { change, generation: Uuid::new_v4() }).await;
    release(reactor);
    changed
}

/// What the members have on record, if log devices can change so.
fn check<D: LiveDisk>(reactor: &Reactor<D>, change: LogChange) -> Result<Superblock> {
    let engine = reactor.engine();
    engine.check_changes()?;
    let truth = engine.superblock().clone();
    truth.check_logs(change)?;
    Ok(truth)
}

/// Closes a log device that failed and is about to be replaced: the new one may be on the same file.
fn let_go_if_failed<D: LiveDisk>(reactor: &Reactor<D>, log: LogIndex) {
    let mut engine = reactor.engine.borrow_mut();
    if engine.troubles().failed_logs.contains(log) {
        let _ = engine.disk_mut().put(log_place(log), None);
    }
}

/// The files and devices that the array uses.
fn used<D: LiveDisk>(reactor: &Reactor<D>) -> Vec<(PathBuf, Option<FileId>)> {
    let engine = reactor.engine();
    let members = engine.disk().members().iter().flatten();
    members.map(|member| (member.path().to_path_buf(), Some(member.id()))).collect()
}

/// The place of the disk for one that is to come, and where one is that has left.
fn seat<D: LiveDisk>(reactor: &Reactor<D>) -> Option<MemberIndex> {
    reactor.engine().superblock().logs.as_ref().map(|logs| log_place(logs.next()))
}

async fn put_in<D: LiveDisk>(reactor: &Reactor<D>, device: Member, change: LogChange) -> Result<()> {
    let seat = seat(reactor).context("the array has no log devices")?;
    {
        let mut engine = reactor.engine.borrow_mut();
        let disk = engine.disk_mut();
        if disk.put(seat, Some(Arc::new(device))).is_err() {
            bail!("operations on the last log device that left are still under way; try again when they have ended");
        }
        disk.forget_latencies(seat);
    }
    let changed = reactor.administer(Command::ChangeLogs { change, generation: Uuid::new_v4() }).await;
    release(reactor);
    changed
}

/// Releases the log device that has left, or did not come.
fn release<D: LiveDisk>(reactor: &Reactor<D>) {
    let Some(seat) = seat(reactor) else { return };
    let mut engine = reactor.engine.borrow_mut();
    let is_taken = engine.disk().members().get(seat.index()).is_some_and(Option::is_some);
    if is_taken && let Ok(Some(device)) = engine.disk_mut().put(seat, None) {
        tracing::info!(path = %device.path().display(), "it is no log device any more, and can be taken away");
    }
}
