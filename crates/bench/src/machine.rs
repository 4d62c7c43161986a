//! What measurements are made on.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;

/// Where to measure.
#[derive(Args)]
pub(crate) struct Place {
    /// Where the members and files are: `tmpfs` (/dev/shm), `disk` (/var/tmp) or a directory
    #[arg(long, default_value = "tmpfs")]
    medium: PathBuf,
}

impl Place {
    /// The directory, and how to call its medium.
    pub(crate) fn find(&self) -> anyhow::Result<(PathBuf, String)> {
        let (directory, medium) = medium(&self.medium);
        let directory = directory.canonicalize().with_context(|| format!("looking for {}", directory.display()))?;
        Ok((directory, medium))
    }
}

/// Processor, cores and kernel.
pub(crate) fn machine() -> String {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{model}, {cores} cores, Linux {}", kernel.trim())
}

/// The directory that `--medium` means, and how to call it.
fn medium(option: &Path) -> (&Path, String) {
    match option.to_str() {
        Some("tmpfs") => (Path::new("/dev/shm"), "tmpfs".to_owned()),
        Some("disk") => (Path::new("/var/tmp"), "disk".to_owned()),
        _ => (option, option.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_have_names() {
        assert_eq!(medium(Path::new("tmpfs")).0, Path::new("/dev/shm"));
        assert_eq!(medium(Path::new("/mnt/x")), (Path::new("/mnt/x"), "/mnt/x".to_owned()));
    }
}
