//! Loop devices: a file and the devices that are made of it are the same bytes by different names.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::error::MemberError;
use super::inheritance;
use super::lock::{self, Access, Wait};
use super::sysfs;

/// What a loop device is made of.
pub(super) struct Beneath {
    pub(super) path: PathBuf,
    /// The device has all of it.
    pub(super) is_whole: bool,
}

/// What a loop device is made of, or a partition of one.
pub(super) fn beneath(device: u64) -> Option<Beneath> {
    let told = |name: &str| sysfs::told(device, name);
    let is_whole = ["loop/offset", "loop/sizelimit"].iter().all(|name| told(name).as_deref() == Some("0"));
    let path = told("loop/backing_file").or_else(|| told("../loop/backing_file"))?.into();
    Some(Beneath { path, is_whole })
}

/// Loop devices that are made of a file. It is known by the kernel's name for it: looking at every loop device's file
/// might take as long as some other process or machine likes.
fn above(path: &Path) -> Vec<PathBuf> {
    let Ok(path) = path.canonicalize() else { return Vec::new() };
    let disks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let devices = disks.map(|disk| Path::new("/dev").join(disk.file_name()));
    let is_made_of_it = |device: &PathBuf| {
        let number = device.metadata().ok().map(|metadata| metadata.rdev());
        number.and_then(beneath).is_some_and(|beneath| beneath.path == path)
    };
    devices.filter(is_made_of_it).collect()
}

/// Locks what is beneath a loop device, so that other processes of ours stay off it by its own name, too. None: nothing
/// is, or it may not be opened or locked.
///
/// # Errors
/// [`MemberError::Locked`].
pub(super) fn lock_beneath(path: &Path, device: u64, access: Access, wait: Wait) -> Result<Option<File>, MemberError> {
    let Some(Beneath { path: file, is_whole }) = beneath(device) else { return Ok(None) };
    let inherited = if access == Access::Inspect { None } else { inheritance::take_beneath(&file) };
    let Ok(file) = inherited.map_or_else(|| File::open(file), Ok) else { return Ok(None) };
    // Several parts of a file may be members of their own.
    let access = if is_whole || access == Access::Inspect { access } else { Access::ReadOnly };
    match lock::patiently(|| lock::take(&file, path, access), wait, std::thread::sleep) {
        Err(error @ MemberError::Locked { .. }) => Err(error),
        locked => Ok(locked.ok().map(|()| file)),
    }
}

/// Keeps the kernel off loop devices that are made of a member, as long as what it returns is open. What may not be
/// opened is left alone.
///
/// # Errors
/// [`MemberError::BusyAbove`].
pub(super) fn claim_above(path: &Path, wait: Wait) -> Result<Vec<File>, MemberError> {
    let mut claimed = Vec::new();
    for device in above(path) {
        match lock::patiently(|| claim(path, &device), wait, std::thread::sleep) {
            Err(error @ MemberError::BusyAbove { .. }) => return Err(error),
            device => claimed.extend(device.ok()),
        }
    }
    Ok(claimed)
}

/// Opens a device so that neither the kernel nor another such opener uses it.
fn claim(path: &Path, device: &Path) -> Result<File, MemberError> {
    let flags = (OFlags::EXCL | OFlags::NONBLOCK).bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(device).map_err(|source| {
        match source.raw_os_error() == Some(Errno::BUSY.raw_os_error()) {
            true => MemberError::BusyAbove { path: path.into(), device: device.into() },
            false => MemberError::Io { path: device.into(), action: "open it", source },
        }
    })
}
