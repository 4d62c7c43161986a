//! An array's log devices, for everyone who shows them: where they are, and in words what is wrong with them.

use std::path::{Path, PathBuf};

use uraid_io::array::Array;
use uraid_io::disk::{Disk, log_place};
use uraid_io::engine::Engine;
use uraid_io::format::superblock::{LogDevice, LogIndex, LogSet};
use uraid_io::member::absolute;
use uuid::Uuid;

use crate::disk::LiveDisk;
use crate::protocol::{Health, NamedLog};
use crate::text::list;

/// A log device that is or was an array's.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) uuid: Uuid,
    /// `None` if it was not there at the start.
    path: Option<PathBuf>,
}

/// The log devices of an array, by number; empty if its members keep the log.
pub(crate) fn known<D: Disk>(array: &Array<D>) -> Vec<Known> {
    let devices = array.superblock.logs.iter().flat_map(|logs| &logs.devices);
    let absolute = |path: &Path| absolute(path).unwrap_or_else(|_| path.to_owned());
    let known = |(number, device): (usize, &LogDevice)| {
        let path = array.log_paths.get(number).and_then(Option::as_deref).map(absolute);
        Known { uuid: device.uuid, path }
    };
    devices.enumerate().map(known).collect()
}

/// The log devices that the array of an engine has now; `before` knows where those were that are not open any more.
pub(crate) fn now<D: LiveDisk, T>(engine: &Engine<D, T>, before: &[Known]) -> Vec<Known> {
    let superblock = engine.superblock();
    let known = |(log, device): (LogIndex, &LogDevice)| {
        let open = engine.disk().members().get(log_place(log).index()).and_then(Option::as_ref);
        let open = open.map(|open| absolute(open.path()).unwrap_or_else(|_| open.path().to_owned()));
        let former = || before.iter().find(|known| known.uuid == device.uuid).and_then(|known| known.path.clone());
        Known { uuid: device.uuid, path: open.or_else(former) }
    };
    (0..).map(LogIndex).zip(superblock.logs.iter().flat_map(|logs| &logs.devices)).map(known).collect()
}

impl Known {
    /// Whether a path or UUID names it.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.path.as_ref().is_some_and(|path| path.as_os_str() == name) || self.uuid.to_string() == name
    }

    /// Its path, or its UUID if that is not known.
    pub(crate) fn name(&self) -> String {
        self.path().unwrap_or_else(|| self.uuid.to_string())
    }

    /// Its path, if known.
    pub(crate) fn path(&self) -> Option<String> {
        self.path.as_ref().map(|path| path.display().to_string())
    }
}

/// Some of them, with their paths.
fn named(known: &[Known], logs: LogSet) -> Vec<NamedLog> {
    let name = |log: LogIndex| NamedLog { number: log.0, path: known.get(usize::from(log.0)).and_then(Known::path) };
    logs.iter().map(name).collect()
}

/// All of them.
pub(crate) fn numbered(known: &[Known]) -> impl Iterator<Item = (LogIndex, &Known)> {
    (0..).map(LogIndex).zip(known)
}

/// Puts what is wrong with them into an array's health.
pub(crate) fn add_to(health: &mut Health, [failed, deleted, stalled]: [LogSet; 3], known: &[Known]) {
    if known.is_empty() {
        return;
    }
    let left = known.len().saturating_sub(failed.len());
    health.log_devices_left = Some(left);
    health.log_devices_failed = named(known, failed);
    health.log_devices_deleted = named(known, deleted);
    health.log_devices_stalled = named(known, stalled);
}

/// Those that failed, and how many are left.
pub(crate) fn degraded(health: &Health) -> Option<String> {
    let (who, left) = (who(&health.log_devices_failed)?, health.log_devices_left.unwrap_or_default());
    let verb = if health.log_devices_failed.len() == 1 { "has" } else { "have" };
    let left = match left {
        0 => "none is left".to_owned(),
        1 => "one is left, and the latest writes are lost with it: put another one in with `uraid replace`".to_owned(),
        more => format!("{more} are left"),
    };
    Some(format!("{who} {verb} failed or {verb} been missing, {left}"))
}

/// Those whose files were deleted, and which the array can't do without.
pub(crate) fn deleted(health: &Health) -> Option<String> {
    let who = who(&health.log_devices_deleted)?;
    let files = if health.log_devices_deleted.len() == 1 { "the file of" } else { "the files of" };
    let verb = if health.log_devices_deleted.len() == 1 { "was" } else { "were" };
    Some(format!(
        "{files} {who} {verb} deleted, and the latest writes are lost if the server is not stopped cleanly: put \
         another one in with `uraid replace`"
    ))
}

/// Those that keep everybody waiting.
pub(crate) fn stalled(health: &Health) -> Option<String> {
    let who = who(&health.log_devices_stalled)?;
    Some(if health.log_devices_stalled.len() == 1 {
        format!("{who} does not answer, and writes wait for it")
    } else {
        format!("{who} do not answer, and writes wait for them")
    })
}

/// `log device 1 (/srv/l1)`; `None` if there is none.
fn who(logs: &[NamedLog]) -> Option<String> {
    let name = |NamedLog { number, path }: &NamedLog| {
        path.as_ref().map_or_else(|| number.to_string(), |path| format!("{number} ({path})"))
    };
    let names: Vec<String> = logs.iter().map(name).collect();
    match names.as_slice() {
        [] => None,
        [one] => Some(format!("log device {one}")),
        more => Some(format!("log devices {}", list(more))),
    }
}
