//! `uraid serve --smart-every`: finds members whose disks report that they are failing, according to `smartctl`.
//!
//! A separate thread asks the disks, one after the other. Nobody waits for a disk that hangs.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::Value;
use tokio::task::spawn_blocking;
use uraid_layout::MemberIndex;

use crate::disk::LiveDisk;
use crate::reactor::Reactor;

/// The program that asks disks. Debian installs it outside an ordinary user's `PATH`.
const PROGRAM: &str = "smartctl";
const SYSTEM_DIRECTORIES: [&str; 2] = ["/usr/sbin", "/sbin"];

/// How long one disk may take.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

/// Maximum length of an answer; the rest is not read.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Maximum depth of stacked devices: a partition, a volume, its encryption and so on.
const DEPTH_MAX: usize = 8;

/// The program to ask with, and the interval.
#[derive(Clone, Debug)]
pub struct Smart {
    program: PathBuf,
    every: Duration,
}

impl Smart {
    /// Finds the program.
    ///
    /// # Errors
    /// If it is not installed.
    pub fn new(every: Duration) -> Result<Self> {
        let path = env::var_os("PATH").unwrap_or_default();
        let mut places = env::split_paths(&path).chain(SYSTEM_DIRECTORIES.map(PathBuf::from));
        let program = places.find_map(|place| Some(place.join(PROGRAM)).filter(|program| program.is_file()));
        ensure!(
            program.is_some(),
            "--smart-every needs {PROGRAM}, which is not there: install smartmontools, or leave the option out"
        );
        Ok(Self { program: program.unwrap_or_default(), every })
    }

    /// Asks the disks of all members periodically, forever.
    pub(crate) async fn look_after_disks<D: LiveDisk>(self, reactor: Rc<Reactor<D>>) {
        loop {
            let (program, members) = (self.program.clone(), reactor.member_paths());
            if let Ok(failing) = spawn_blocking(move || failing(&program, members)).await {
                reactor.note_failing_disks(failing);
            }
            tokio::time::sleep(self.every).await;
        }
    }
}

/// The members with a failing disk.
fn failing(program: &Path, members: Vec<(MemberIndex, PathBuf)>) -> Vec<(MemberIndex, PathBuf)> {
    let mut known: BTreeMap<PathBuf, bool> = BTreeMap::new();
    let mut fails = |disk: PathBuf| {
        *known.entry(disk).or_insert_with_key(|disk| {
            has_passed(program, disk).map(|passed| !passed).unwrap_or_else(|error| {
                tracing::warn!(disk = %disk.display(), "it is not known whether the disk fails: {error:#}");
                false
            })
        })
    };
    let is_failing = |(_, path): &(MemberIndex, PathBuf)| disks(path).into_iter().any(&mut fails);
    members.into_iter().filter(is_failing).collect()
}

/// The disks under a file or device. Empty if they are unknown, for example on a network file system.
fn disks(path: &Path) -> Vec<PathBuf> {
    let Ok(metadata) = path.metadata() else { return Vec::new() };
    let device = if metadata.file_type().is_block_device() { metadata.rdev() } else { metadata.dev() };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let mut disks = Vec::new();
    if let Ok(place) = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) {
        under(&place, DEPTH_MAX, &mut disks);
    }
    disks
}

/// Adds the disks under a device, given by its path in `/sys`. A device that is not made of others counts itself.
fn under(place: &Path, depth: usize, disks: &mut Vec<PathBuf>) {
    let slaves: Vec<PathBuf> =
        fs::read_dir(place.join("slaves")).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    if let Some(depth) = depth.checked_sub(1) {
        let slaves = slaves.iter().filter_map(|slave| fs::canonicalize(slave).ok());
        slaves.for_each(|slave| under(&slave, depth, disks));
    }
    // A partition is in its disk's directory.
    let disk = if place.join("partition").exists() { place.parent().unwrap_or(place) } else { place };
    if let Some(name) = disk.file_name().filter(|_| slaves.is_empty()) {
        disks.push(Path::new("/dev").join(name));
    }
}

/// Whether a disk reports that its health is good.
fn has_passed(program: &Path, disk: &Path) -> Result<bool> {
    let mut command = Command::new(program);
    command.args(["--json", "-H"]).arg(disk);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let pipe = child.stdout.take().context("a program has an output")?;
    let (sender, answered) = channel();
    let read = move || {
        let mut answer = Vec::new();
        let read = pipe.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).map(|_| answer);
        // Nobody waits for a later answer.
        drop(sender.send(read));
    };
    thread::Builder::new().name(PROGRAM.into()).spawn(read)?;
    let answer = answered.recv_timeout(ANSWER_TIME_MAX);
    let _ = child.kill();
    let answer = answer.map_err(|_| anyhow!("{PROGRAM} did not answer within {} s", ANSWER_TIME_MAX.as_secs()))??;
    let _ = child.wait();
    passed(&answer)
}

/// The health of the disk according to the answer. The exit status would mix in other findings.
fn passed(answer: &[u8]) -> Result<bool> {
    let answer: Value = serde_json::from_slice(answer).with_context(|| format!("{PROGRAM} does not print JSON"))?;
    let why = || answer["smartctl"]["messages"][0]["string"].as_str().unwrap_or("the disk says nothing").to_owned();
    answer["smart_status"]["passed"].as_bool().with_context(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_may_say_nothing_of_health() {
        assert!(!passed(br#"{"smart_status": {"passed": false, "nvme": {"value": 4}}}"#).unwrap());
        assert!(passed(br#"{"smart_status": {"passed": true}}"#).unwrap());
        let denied = br#"{"smartctl": {"messages": [{"string": "Permission denied"}], "exit_status": 2}}"#;
        for (answer, why) in [
            (&denied[..], "Permission denied"),
            (br#"{"smartctl": {"exit_status": 0}}"#, "says nothing"),
            (b"smartctl 5.43 has no --json", "does not print JSON"),
        ] {
            let error = passed(answer).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_volume_lies_on_the_disks_of_its_parts() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for place in ["sda/sda1", "sdb", "dm-0/slaves"] {
            fs::create_dir_all(at(place)).unwrap();
        }
        fs::write(at("sda/sda1/partition"), "1").unwrap();
        for (name, to) in [("sda1", "sda/sda1"), ("sdb", "sdb")] {
            std::os::unix::fs::symlink(at(to), at("dm-0/slaves").join(name)).unwrap();
        }
        let found = |name: &str| {
            let mut disks = Vec::new();
            under(&at(name), DEPTH_MAX, &mut disks);
            disks.sort();
            disks
        };
        assert_eq!(found("dm-0"), [PathBuf::from("/dev/sda"), PathBuf::from("/dev/sdb")]);
        assert_eq!(found("sda/sda1"), [PathBuf::from("/dev/sda")]);
        assert_eq!(found("sdb"), [PathBuf::from("/dev/sdb")]);
    }
}
