//! A directory for everything that a run leaves on disk, and a janitor that takes it away.
//!
//! The janitor is a process of its own: it waits until this process closes a pipe, or is gone for whatever reason, then
//! ends the servers that still work in the directory, and unmounts, detaches and removes what lies there. A terminal's
//! Ctrl-C does not reach it.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};

use super::progress::say;

/// A directory of this process that is cleared away with this value, or with the process.
pub(crate) struct Scratch {
    path: PathBuf,
    janitor: Child,
}

/// Start of the name of every such directory; this process's id follows.
const PREFIX: &str = "uraid-bench-";

/// Mount point of a directory inside the scratch directory.
pub(crate) const MOUNT: &str = "mount";

/// Clears `$1` away. Servers are known by the path in their arguments; they have 10 seconds to leave a mount.
const CLEAR: &str = r#"
for file in $(grep -slF "$1/" /proc/[0-9]*/cmdline); do
    pid=${file#/proc/}
    kill "${pid%/cmdline}" 2>/dev/null
done
tries=0
# One whose server is gone can't be seen in its directory.
cat /proc/self/mounts | while read -r _ mount _; do
    case $mount in "$1"/*/mount) ;; *) continue ;; esac
    while grep -qsF " $mount " /proc/self/mounts && [ $tries -lt 100 ]; do
        umount "$mount" 2>/dev/null || sleep 0.1
        tries=$((tries + 1))
    done
done
if command -v losetup >/dev/null; then
    losetup --noheadings --output NAME,BACK-FILE | while read -r device file; do
        case $file in "$1"/*) losetup --detach "$device" ;; esac
    done
fi
rm -rf --one-file-system "$1"
"#;

impl Scratch {
    /// A new directory inside `parent`. Those whose process and janitor were killed go first.
    pub(crate) fn create(parent: &Path) -> anyhow::Result<Self> {
        let entries = fs::read_dir(parent).with_context(|| format!("looking into {}", parent.display()))?;
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let owner: Option<u32> = name.strip_prefix(PREFIX).and_then(|pid| pid.parse().ok());
            if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                let status = shell(CLEAR, &path).status().context("starting sh")?;
                ensure!(status.success(), "{} of an earlier run could not be removed", path.display());
            }
        }
        let path = parent.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        let mut janitor = shell(&format!("cat >/dev/null{CLEAR}"), &path);
        let janitor = janitor.stdin(Stdio::piped()).process_group(0).spawn().context("starting sh")?;
        Ok(Self { path, janitor })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        match self.janitor.wait() {
            Ok(status) if status.success() => {}
            _ => say(&format!("could not remove {}", self.path.display())),
        }
    }
}

fn shell(script: &str, path: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "janitor"]).arg(path).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_with_its_owner_and_takes_those_of_the_dead_along() {
        let parent = std::env::temp_dir().join(format!("scratch-test-{}", std::process::id()));
        fs::create_dir(&parent).unwrap();
        let mut child = Command::new("true").spawn().unwrap();
        let dead = parent.join(format!("{PREFIX}{}", child.id()));
        fs::create_dir_all(dead.join("0/mount")).unwrap();
        child.wait().unwrap();
        let stranger = parent.join("uraid-bench-of-somebody");
        fs::create_dir(&stranger).unwrap();

        let scratch = Scratch::create(&parent).unwrap();
        assert!(!dead.exists() && stranger.exists());
        let path = scratch.path().to_owned();
        fs::create_dir_all(path.join("0")).unwrap();
        fs::write(path.join("0/log"), "").unwrap();
        let mut server = Command::new("tail").arg("-f").arg(path.join("0/log")).stdout(Stdio::null()).spawn().unwrap();
        drop(scratch);
        assert!(!path.exists());
        assert!(!server.wait().unwrap().success(), "the janitor ends who still works there");
        fs::remove_dir_all(&parent).unwrap();
    }
}
