//! btrfs RAID 5 on loop devices, where the host has them and the user is root.
//!
//! What is mounted and attached here lies inside the scratch directory, whose janitor takes it down again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use uraid_tests::process::Process;

use super::scratch::MOUNT;

const MEMBERS: u64 = 5;
/// What each member has beyond its share of the data: a copy-on-write file system needs room to write anew.
const SPARE_BYTES: u64 = 512 << 20;
/// How long each step may take.
const STEP_MAX: Duration = Duration::from_secs(30);

/// Makes a file system on five loop devices in `place`, with RAID 5 for data and metadata, and mounts it. Returns the
/// directory; an error where the host can't.
pub(crate) fn mount(place: &Path, capacity: u64) -> anyhow::Result<PathBuf> {
    ensure!(rustix::process::geteuid().is_root(), "mounting takes root");
    if !kernel_has_btrfs() {
        run("modprobe", Command::new("modprobe").arg("btrfs"), place).context("the kernel has no btrfs")?;
    }
    let mut devices = Vec::new();
    for slot in 0..MEMBERS {
        let path = place.join(format!("member{slot}"));
        let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        file.set_len((capacity / (MEMBERS - 1) * 2 + SPARE_BYTES).next_multiple_of(1 << 20))?;
        let attached = run("losetup", Command::new("losetup").args(["--find", "--show"]).arg(&path), place)?;
        devices.push(attached.trim().to_owned());
    }
    let mut make = Command::new("mkfs.btrfs");
    make.args(["--quiet", "--force", "--data", "raid5", "--metadata", "raid5"]).args(&devices);
    run("mkfs.btrfs", &mut make, place)?;
    let directory = place.join(MOUNT);
    fs::create_dir(&directory).with_context(|| format!("creating {}", directory.display()))?;
    let first = devices.first().expect("there are members");
    // The kernel learns of the devices from the command line: nothing depends on a device manager.
    let others: Vec<String> = devices.iter().map(|device| format!("device={device}")).collect();
    let mut mount = Command::new("mount");
    mount.args(["-t", "btrfs", "-o", &others.join(","), first]).arg(&directory);
    run("mount", &mut mount, place)?;
    Ok(directory)
}

fn kernel_has_btrfs() -> bool {
    let listed = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    listed.lines().any(|line| line.split_whitespace().last() == Some("btrfs"))
}

/// Runs `command` to its end and returns what it printed.
fn run(name: &str, command: &mut Command, place: &Path) -> anyhow::Result<String> {
    let log = place.join(format!("{name}.log"));
    Process::complete(command, &log, STEP_MAX)?;
    fs::read_to_string(&log).with_context(|| format!("reading {}", log.display()))
}
