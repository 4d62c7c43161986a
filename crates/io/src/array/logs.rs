//! Which of the log devices that were named are the array's. The members' superblocks say so, never a device: one that
//! is on record as failed, or not at all, has nothing that counts.

use std::path::PathBuf;

use uraid_layout::Bytes;
use uuid::Uuid;

use super::error::OpenError;
use super::judge::SetAside;
use crate::format::log_device::LogHeader;
use crate::format::superblock::{LogDevices, LogIndex, LogSet, Superblock};
use crate::member::Access;

/// A log device that is open, by whatever means.
#[derive(Debug)]
pub struct OpenedLog<M> {
    /// What it is reached by.
    pub device: M,
    /// Where it is.
    pub path: PathBuf,
    /// What it says.
    pub header: LogHeader,
    /// The runs that it is marked with.
    pub runs: Vec<Uuid>,
    /// Its size now.
    pub size: Bytes,
    /// The least that it reads and writes at once.
    pub sector_size: Bytes,
}

impl<M> OpenedLog<M> {
    /// Whether it has nothing of the run that the array was in when it was not closed, of which `truth` is the newest
    /// superblock.
    pub fn is_old(&self, truth: &Superblock) -> bool {
        !truth.is_clean && !self.runs.contains(&truth.journal) && !planted!(LogOfAnotherRunCounts)
    }
}

/// An array's log devices, as far as they were named.
#[derive(Debug)]
pub(super) struct Found {
    /// By number, where each is among those that were named.
    pub(super) devices: Vec<Option<usize>>,
    /// Those that should be there and are not.
    pub(super) lost: LogSet,
    pub(super) set_aside: Vec<(PathBuf, SetAside)>,
}

/// Finds the log devices of the array of which `truth` is the newest superblock.
///
/// # Errors
/// [`OpenError::ForeignLog`]; [`OpenError::LogTwice`].
pub(super) fn find<M>(truth: &Superblock, named: &[OpenedLog<M>]) -> Result<Found, OpenError> {
    let none = LogDevices { share: Bytes(0), devices: Vec::new() };
    let LogDevices { share, devices } = truth.logs.as_ref().unwrap_or(&none);
    let mut found = Found { devices: vec![None; devices.len()], lost: LogSet::EMPTY, set_aside: Vec::new() };
    for (index, opened) in named.iter().enumerate() {
        let OpenedLog { path, header, size, sector_size, .. } = opened;
        if header.array != truth.array {
            return Err(OpenError::ForeignLog { path: path.clone(), found: header.array, array: truth.array });
        }
        let mut aside = |reason| found.set_aside.push((path.clone(), reason));
        let Some(number) = devices.iter().position(|device| device.uuid == header.uuid) else {
            aside(SetAside::LogLeft);
            continue;
        };
        let needed = LogHeader::size_min(*share, truth.spec.members);
        if let Some(first) = found.devices[number] {
            let (first, second) = (named[first].path.clone(), path.clone());
            return Err(OpenError::LogTwice { first, second, device: header.uuid });
        } else if !devices[number].is_active {
            aside(SetAside::LogFailed);
        } else if *size < needed {
            aside(SetAside::Truncated { size: *size, expected: needed });
        } else if opened.is_old(truth) {
            aside(SetAside::LogOld);
        } else if *sector_size > crate::format::BLOCK.bytes() {
            return Err(OpenError::SectorSize {
                path: path.clone(),
                found: *sector_size,
                sector_size: crate::format::BLOCK.bytes(),
            });
        } else {
            found.devices[number] = Some(index);
        }
    }
    let is_lost = |log: &LogIndex| found.devices[usize::from(log.0)].is_none();
    found.lost = truth.logs.iter().flat_map(|logs| logs.active().iter()).filter(is_lost).collect();
    Ok(found)
}

/// Whether an array may be used without its `lost` log devices.
///
/// # Errors
/// [`OpenError::NoLogs`]; [`OpenError::LogsMissing`].
pub(super) fn check_presence(
    truth: &Superblock,
    lost: LogSet,
    set_aside: &[(PathBuf, SetAside)],
    (access, allow_degraded, force): (Access, bool, bool),
) -> Result<(), OpenError> {
    let Some(logs) = &truth.logs else { return Ok(()) };
    if lost.is_empty() {
        return Ok(());
    }
    let missing: Vec<Uuid> = lost.iter().map(|log| logs.devices[usize::from(log.0)].uuid).collect();
    let set_aside = set_aside.to_vec();
    // As a last resort what is in place is read without what was only in the log.
    let is_only_read = access != Access::ReadWrite && (truth.is_clean || force && access == Access::ReadOnly);
    if logs.active() == lost && !(is_only_read && allow_degraded) && !planted!(NoLogsAccepted) {
        return Err(OpenError::NoLogs { missing, is_clean: truth.is_clean, set_aside });
    }
    if !allow_degraded {
        return Err(OpenError::LogsMissing { missing, set_aside });
    }
    Ok(())
}
