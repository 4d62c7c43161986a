//! An array's log devices, as its members' records and the devices themselves tell of them.

use anyhow::{Result, bail};
use serde::Serialize;
use uraid_io::array::OpenedLog;
use uraid_io::format::superblock::{LogDevice, LogDevices, Superblock};
use uraid_serve::text::{list, size, visible};
use uuid::Uuid;

use crate::terminal::print;

/// A log device of an array.
#[derive(Debug, Serialize)]
pub(super) struct LogReport {
    /// Its place in the members' records; `null` if it is in none.
    number: Option<usize>,
    uuid: Uuid,
    /// `null` if it was not named.
    path: Option<String>,
    /// `active`, `failed`, `missing` if it is active and was not named, `old` if it is active and has nothing of what
    /// was written last, or `left` if it is none of the array's now.
    state: &'static str,
    /// Its part of the log of each member, in bytes.
    share: u64,
}

/// What is known of the log devices of the array of which `truth` is the newest superblock.
pub(super) fn reports<M>(truth: &Superblock, named: &[OpenedLog<M>]) -> Result<Vec<LogReport>> {
    if let Some(foreign) = named.iter().find(|named| named.header.array != truth.array) {
        let (path, array) = (foreign.path.display(), foreign.header.array);
        bail!("{path} is a log device of array {array}, and the members belong to array {}", truth.array);
    }
    let none = LogDevices { share: uraid_layout::Bytes(0), devices: Vec::new() };
    let LogDevices { share, devices } = truth.logs.as_ref().unwrap_or(&none);
    let on_record = |(number, device): (usize, &LogDevice)| {
        let own = named.iter().find(|named| named.header.uuid == device.uuid);
        let path = own.map(|own| own.path.display().to_string());
        let state = match own {
            _ if !device.is_active => "failed",
            None => "missing",
            Some(own) if own.is_old(truth) => "old",
            Some(_) => "active",
        };
        LogReport { number: Some(number), uuid: device.uuid, path, state, share: share.0 }
    };
    let mut reports: Vec<LogReport> = devices.iter().enumerate().map(on_record).collect();
    for left in named.iter().filter(|named| !devices.iter().any(|device| device.uuid == named.header.uuid)) {
        let (uuid, path, share) = (left.header.uuid, Some(left.path.display().to_string()), left.header.share.0);
        reports.push(LogReport { number: None, uuid, path, state: "left", share });
    }
    Ok(reports)
}

/// What is wrong with them, in a few words, as a part of a sentence; `None` if nothing is.
pub(super) fn health(logs: &[LogReport]) -> Option<String> {
    let of = |state: &str| -> Vec<usize> {
        logs.iter().filter(|log| log.state == state).filter_map(|log| log.number).collect()
    };
    let told = |numbers: &[usize], what: &str| match numbers {
        [] => None,
        [one] => Some(format!("log device {one} {what}")),
        more => Some(format!("log devices {} {what}", list(more))),
    };
    let old = "without what was written last";
    told(&of("missing"), "not found").or_else(|| told(&of("old"), old)).or_else(|| told(&of("failed"), "failed"))
}

/// The paths of those that are the array's and were named.
pub(super) fn paths(logs: &[LogReport]) -> impl Iterator<Item = String> {
    logs.iter().filter(|log| log.state == "active").filter_map(|log| log.path.clone())
}

/// Prints them.
pub(super) fn show(logs: &[LogReport]) -> Result<()> {
    for LogReport { number, uuid, path, state, share } in logs {
        let number = number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let path = path.as_ref().map_or_else(|| "not named here".to_owned(), |path| visible(path));
        print(format_args!("  log {number}  {state:<10} {uuid}  {} for each member  {path}", size(*share)))?;
    }
    Ok(())
}
