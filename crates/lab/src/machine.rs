//! Facts of the machine that a result was measured on.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use jiff::Timestamp;
use rustix::fs::{FileType, major, minor};
use serde::{Deserialize, Serialize};

/// The facts, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine(pub BTreeMap<String, String>);

impl Machine {
    /// This machine with the disks of some directories or devices. A fact that can't be had is left out.
    #[must_use]
    pub fn this(places: &[std::path::PathBuf]) -> Self {
        let mut facts = BTreeMap::new();
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                facts.insert(name.to_owned(), value);
            }
        };
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let model = field("/proc/cpuinfo", "model name").unwrap_or_default();
        add("processor", Some(format!("{cores} cores, {model}").trim_end_matches([',', ' ']).to_owned()));
        add("memory", field("/proc/meminfo", "MemTotal").as_deref().and_then(gibibytes));
        let system = rustix::system::uname();
        add("kernel", Some(system.release().to_string_lossy().into_owned()));
        add("uraid", Some(env!("CARGO_PKG_VERSION").to_owned()));
        add("began", Some(format!("{:.0}", Timestamp::now())));
        for path in places {
            add(&path.display().to_string(), disk(path));
        }
        Self(facts)
    }
}

/// The first line of a file of `name : value` lines that has the name.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
    line.map(|value| value.trim().to_owned())
}

/// `8134440 kB` in GiB.
fn gibibytes(text: &str) -> Option<String> {
    let kib: f64 = text.strip_suffix("kB")?.trim().parse().ok()?;
    Some(format!("{:.1} GiB", kib / f64::from(1 << 20)))
}

/// The file system and the disk of a path.
fn disk(path: &Path) -> Option<String> {
    let metadata = path.metadata().ok()?;
    let is_device = FileType::from_raw_mode(metadata.mode()) == FileType::BlockDevice;
    let device = if is_device { metadata.rdev() } else { metadata.dev() };
    let number = format!("{}:{}", major(device), minor(device));
    let mount = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let kind = mount.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        (left.split(' ').nth(2)? == number).then(|| right.split(' ').next())?
    });
    let kind = if is_device { "block device" } else { kind.unwrap_or("file system") };
    let base = Path::new("/sys/dev/block").join(&number);
    // A partition's disk is the directory above it.
    let base = if base.join("queue").exists() { base } else { base.join("..") };
    let read = |file: &str| fs::read_to_string(base.join(file)).ok().map(|text| text.trim().to_owned());
    let spin = match read("queue/rotational").as_deref() {
        Some("0") => ", not rotating",
        Some("1") => ", rotating",
        _ => "",
    };
    let model = read("device/model").map_or(String::new(), |model| format!(", {model}"));
    Some(format!("{kind}{spin}{model}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_a_processor_and_a_kernel() {
        let Machine(facts) = Machine::this(&["/".into()]);
        for name in ["processor", "kernel", "/"] {
            assert!(facts.contains_key(name), "{facts:?}");
        }
    }
}
