//! What the kernel says of devices, in /sys.

use std::fs;

/// What is told of a device under this name, relative to its directory.
pub(super) fn told(device: u64, name: &str) -> Option<String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let told = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{name}")).ok()?;
    Some(told.trim_end_matches('\n').to_owned())
}
