//! Child processes that end with their owner, and what the kernel tells of them.
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

/// A process's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Resident now.
    pub(crate) resident: u64,
    /// The most that ever was resident.
    pub(crate) peak: u64,
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
        ensure!(process.has_ended(within)?, "{} did not end within {} s", process.name, within.as_secs());
        Ok(())
    }

    /// Waits for its end for so long; an error when it fails.
    pub(crate) fn has_ended(&mut self, within: Duration) -> anyhow::Result<bool> {
        match self.wait(within)? {
            Some(status) if !status.success() => bail!("{} failed ({status}): {}", self.name, self.last_words()),
            ended => Ok(ended.is_some()),
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

    /// Ends it at once, as a power cut would.
    pub(crate) fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Processor time of all its threads and of its children that have ended, in user and kernel mode.
    pub(crate) fn processor_time(&self) -> anyhow::Result<Duration> {
        let stat = self.proc("stat")?;
        processor_time(&stat).with_context(|| format!("{} has an odd /proc/PID/stat: {stat}", self.name))
    }

    /// Its memory, without that of its children.
    pub(crate) fn memory(&self) -> anyhow::Result<Memory> {
        let status = self.proc("status")?;
        memory(&status).with_context(|| format!("{} has an odd /proc/PID/status: {status}", self.name))
    }

    /// A file of its directory in `/proc`.
    fn proc(&self, file: &str) -> anyhow::Result<String> {
        let pid = self.daemon.unwrap_or_else(|| Pid::from_child(&self.child));
        fs::read_to_string(format!("/proc/{}/{file}", pid.as_raw_nonzero()))
            .with_context(|| format!("{} has ended: {}", self.name, self.last_words()))
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

    /// What it printed that tells most.
    fn last_words(&self) -> String {
        telling(&fs::read_to_string(&self.log).unwrap_or_default()).to_owned()
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

/// The last line, or the last one that is marked as an error: hints may follow it.
fn telling(printed: &str) -> &str {
    let lines = || printed.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    lines().find(|line| line.starts_with("error:")).or_else(|| lines().next()).unwrap_or("it printed nothing")
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

/// `VmRSS` and `VmHWM` of `/proc/PID/status` (proc(5)).
fn memory(status: &str) -> Option<Memory> {
    let bytes = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
    };
    Some(Memory { resident: bytes("VmRSS")?, peak: bytes("VmHWM")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::scratch::Scratch;

    #[test]
    fn memory_is_read_in_bytes() {
        let status = "Name:\tVmRSS\nVmPeak:\t  900000 kB\nVmHWM:\t  300 kB\nVmRSS:\t      20 kB\nThreads:\t1\n";
        assert_eq!(memory(status), Some(Memory { resident: 20 << 10, peak: 300 << 10 }));
        assert_eq!(memory("Name:\tzombie\n"), None);
    }

    #[test]
    fn processor_time_survives_odd_names() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 120 30 4 1 20 0 3 0 55 1 2";
        assert_eq!(processor_time(stat), Some(Duration::from_millis(1550)));
        assert_eq!(processor_time("42 (a) S 1"), None);
        assert_eq!(processor_time(""), None);
    }

    #[test]
    fn hints_do_not_hide_an_error() {
        assert_eq!(telling("starting\nerror: no such option\n\nTry --help\n"), "error: no such option");
        assert_eq!(telling("one\ntwo\n\n"), "two");
        assert_eq!(telling(" \n"), "it printed nothing");
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
    }
}
