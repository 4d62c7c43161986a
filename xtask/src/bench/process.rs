//! Child processes that end with their owner, and a directory that goes with it.
//!
//! Every wait has a deadline. What a child prints goes to a file, so that a failure can tell the child's last words.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// A child process; dropping it ends it.
pub(crate) struct Process {
    child: Child,
    /// The process that the child left behind, where it is a daemon's starter.
    daemon: Option<Pid>,
    name: String,
    log: PathBuf,
}

/// How long a child may take to end after it was asked to.
const FAREWELL: Duration = Duration::from_secs(10);
/// Between two looks at a child.
const LOOK_EVERY: Duration = Duration::from_millis(5);

impl Process {
    /// Starts `command`; its standard output and error go to `log`.
    pub(crate) fn start(command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let name = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let output = File::create(log).with_context(|| format!("creating {}", log.display()))?;
        let errors = output.try_clone()?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        match command.spawn() {
            Ok(child) => Ok(Self { child, daemon: None, name, log: log.to_owned() }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!("{name} is not installed"),
            Err(error) => Err(error).with_context(|| format!("starting {name}")),
        }
    }

    /// Starts `command`, which goes to the background and writes its process id to `pid_file`.
    pub(crate) fn start_daemon(command: &mut Command, log: &Path, pid_file: &Path) -> anyhow::Result<Self> {
        let mut process = Self::start(command, log)?;
        let deadline = Instant::now() + FAREWELL;
        loop {
            let written = fs::read_to_string(pid_file).unwrap_or_default();
            process.daemon = written.trim().parse().ok().and_then(Pid::from_raw);
            if process.daemon.is_some() {
                return Ok(process);
            }
            if let Some(status) = process.child.try_wait()?.filter(|status| !status.success()) {
                bail!("{} failed ({status}): {}", process.name, process.last_words());
            }
            ensure!(Instant::now() < deadline, "{} did not write {}", process.name, pid_file.display());
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Starts `command` and waits until it has ended well; an error when it fails or takes longer than `within`.
    pub(crate) fn complete(command: &mut Command, log: &Path, within: Duration) -> anyhow::Result<()> {
        let mut process = Self::start(command, log)?;
        match process.wait(within)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!("{} failed ({status}): {}", process.name, process.last_words()),
            None => bail!("{} did not end within {} s", process.name, within.as_secs()),
        }
    }

    /// An error with its last words if the process has ended.
    pub(crate) fn check_alive(&mut self) -> anyhow::Result<()> {
        if let Some(daemon) = self.daemon {
            ensure!(exists(daemon), "{} ended: {}", self.name, self.last_words());
            return Ok(());
        }
        match self.child.try_wait()? {
            Some(status) => bail!("{} ended ({status}): {}", self.name, self.last_words()),
            None => Ok(()),
        }
    }

    /// Processor time of all its threads and of its children that have ended, in user and kernel mode.
    pub(crate) fn processor_time(&self) -> anyhow::Result<Duration> {
        let pid = self.daemon.unwrap_or_else(|| Pid::from_child(&self.child));
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
            .with_context(|| format!("{} has ended: {}", self.name, self.last_words()))?;
        processor_time(&stat).with_context(|| format!("{} has an odd /proc/PID/stat: {stat}", self.name))
    }

    fn wait(&mut self, within: Duration) -> anyhow::Result<Option<ExitStatus>> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// The last line that it printed.
    fn last_words(&self) -> String {
        let printed = fs::read_to_string(&self.log).unwrap_or_default();
        printed.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it printed nothing").trim().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon {
            end_daemon(daemon);
        }
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // Errors mean that it has ended in the meantime.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        if !matches!(self.wait(FAREWELL), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Ends a process that is nobody's child here.
fn end_daemon(daemon: Pid) {
    for signal in [Signal::TERM, Signal::KILL] {
        // Errors mean that it has ended in the meantime.
        let _ = kill_process(daemon, signal);
        let deadline = Instant::now() + FAREWELL;
        while exists(daemon) && Instant::now() < deadline {
            std::thread::sleep(LOOK_EVERY);
        }
        if !exists(daemon) {
            return;
        }
    }
}

fn exists(process: Pid) -> bool {
    Path::new(&format!("/proc/{}", process.as_raw_nonzero())).exists()
}

/// utime, stime, cutime and cstime of `/proc/PID/stat`, in the 100 Hz of Linux's user interface (proc(5)).
fn processor_time(stat: &str) -> Option<Duration> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let fields = after_name.split_whitespace().skip(11).take(4);
    let ticks: Vec<u64> = fields.map(|field| field.parse().ok()).collect::<Option<_>>()?;
    (ticks.len() == 4).then(|| Duration::from_millis(ticks.iter().sum::<u64>() * 10))
}

/// A directory of this process that is removed with this value.
pub(crate) struct Scratch {
    path: PathBuf,
}

/// Start of the name of every such directory; this process's id follows.
const PREFIX: &str = "uraid-bench-";

impl Scratch {
    /// A new directory inside `parent`. Directories whose process was killed before it could remove them go first.
    pub(crate) fn create(parent: &Path) -> anyhow::Result<Self> {
        let entries = fs::read_dir(parent).with_context(|| format!("looking into {}", parent.display()))?;
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let owner: Option<u32> = name.strip_prefix(PREFIX).and_then(|pid| pid.parse().ok());
            if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))?;
            }
        }
        let path = parent.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self { path })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            crate::project::eprint_step(&format!("could not remove {}: {error}", self.path.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_survives_odd_names() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 120 30 4 1 20 0 3 0 55 1 2";
        assert_eq!(processor_time(stat), Some(Duration::from_millis(1550)));
        assert_eq!(processor_time("42 (a) S 1"), None);
        assert_eq!(processor_time(""), None);
    }

    #[test]
    fn a_failure_tells_the_last_words() {
        let scratch = Scratch::create(&std::env::temp_dir()).unwrap();
        let log = scratch.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo first; echo no such disk >&2; exit 3"]);
        let error = Process::complete(&mut command, &log, FAREWELL).unwrap_err().to_string();
        assert!(error.contains("no such disk"), "{error}");
        let missing = Process::start(&mut Command::new("uraid-no-such-program"), &log).err().unwrap().to_string();
        assert_eq!(missing, "uraid-no-such-program is not installed");

        let mut idle = Command::new("sleep");
        let process = Process::start(idle.arg("600"), &log).unwrap();
        let pid = process.child.id();
        drop(process);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists());
    }
}
