//! A program that runs: started, waited for within a bound, measured, and ended with its owner.
//!
//! What it prints is collected, left open for whoever started it, or goes to a file, of which failures tell the last
//! words. The kernel says when it has ended. Tests use what panics; measurements use what returns errors, for a program
//! that fails there is left out.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// A program that has ended.
#[derive(Debug)]
pub struct Output {
    /// The command as one line, for messages.
    pub line: String,
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl Output {
    /// The output itself, once it is sure that the program exited with 0.
    #[must_use]
    #[track_caller]
    pub fn success(self) -> Self {
        self.code_is(0)
    }

    /// The output itself, once it is sure that the program exited with `code`.
    #[must_use]
    #[track_caller]
    pub fn code_is(self, code: i32) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "exit code of `{}`\nstdout: {}\nstderr: {}",
            self.line,
            self.text(),
            self.stderr
        );
        self
    }

    /// Standard output as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard output as JSON.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|error| panic!("`{}` prints JSON: {error}\n{}", self.line, self.text()))
    }
}

/// A program that runs: killed and reaped when dropped.
#[derive(Debug)]
pub struct Process {
    /// The command as one line.
    line: String,
    child: Child,
    /// The process that the child left behind, where it is a daemon's starter.
    daemon: Option<Pid>,
    /// What collects its output.
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
    /// Where its output goes otherwise.
    log: Option<PathBuf>,
}

/// A process's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All of its address space that is in use.
    pub mapped: u64,
    /// Resident now.
    pub resident: u64,
    /// The most that ever was resident.
    pub peak: u64,
}

/// How long a daemon may take to begin, and to end after it was asked to.
const DAEMON_TIME_MAX: Duration = Duration::from_secs(10);
/// How long to wait for a process that was killed.
const KILLED_TIME_MAX: Duration = Duration::from_secs(10);
/// Between two looks at a daemon, which is nobody's child here.
const LOOK_EVERY: Duration = Duration::from_millis(5);

impl Process {
    /// Starts `command` with its output captured and an open standard input.
    #[must_use]
    #[track_caller]
    pub fn start(command: Command) -> Self {
        let mut process = Self::start_with_open_stdout(command);
        let stdout = process.child.stdout.take().expect("standard output is a pipe");
        process.stdout = Some(collect(stdout));
        process
    }

    /// As [`Process::start`], but the caller reads standard output with [`Process::take_stdout`].
    #[must_use]
    #[track_caller]
    pub fn start_with_open_stdout(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Self::spawn(&mut command).unwrap_or_else(|error| panic!("{error:#}"));
        let stderr = process.child.stderr.take().expect("standard error is a pipe");
        process.stderr = Some(collect(stderr));
        process
    }

    /// Starts `command` without standard input; what it prints goes to `log`.
    ///
    /// # Errors
    /// When it can't be started or the log can't be made.
    pub fn start_logged(command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let output = File::create(log).with_context(|| format!("creating {}", log.display()))?;
        let errors = output.try_clone()?;
        let mut process = Self::spawn(command.stdin(Stdio::null()).stdout(output).stderr(errors))?;
        process.log = Some(log.to_owned());
        Ok(process)
    }

    /// As [`Process::start_logged`], of a command that goes to the background and writes its process id to `pid_file`.
    ///
    /// # Errors
    /// When it fails, or writes no process id.
    pub fn start_daemon(command: &mut Command, log: &Path, pid_file: &Path) -> anyhow::Result<Self> {
        let mut process = Self::start_logged(command, log)?;
        let deadline = Instant::now() + DAEMON_TIME_MAX;
        loop {
            let written = fs::read_to_string(pid_file).unwrap_or_default();
            process.daemon = written.trim().parse().ok().and_then(Pid::from_raw);
            if process.daemon.is_some() {
                return Ok(process);
            }
            process.has_ended(Duration::ZERO)?;
            ensure!(Instant::now() < deadline, "{} did not write {}", process.name(), pid_file.display());
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// As [`Process::start_logged`], and waits until it has ended well.
    ///
    /// # Errors
    /// When it fails, or takes longer than `within`.
    pub fn complete(command: &mut Command, log: &Path, within: Duration) -> anyhow::Result<()> {
        let mut process = Self::start_logged(command, log)?;
        ensure!(process.has_ended(within)?, "{} did not end within {} s", process.name(), within.as_secs());
        Ok(())
    }

    fn spawn(command: &mut Command) -> anyhow::Result<Self> {
        let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_owned();
        let words = std::iter::once(program.as_os_str()).chain(command.get_args());
        let line = words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ");
        match command.spawn() {
            Ok(child) => Ok(Self { line, child, daemon: None, stdout: None, stderr: None, log: None }),
            Err(error) if error.kind() == ErrorKind::NotFound => bail!("{} is not installed", program.display()),
            Err(error) => Err(error).with_context(|| format!("starting `{line}`")),
        }
    }

    /// The pipe of standard output, once.
    ///
    /// # Panics
    /// When it was taken before or is being collected.
    #[must_use]
    pub fn take_stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("standard output is still open to take")
    }

    /// The pipe of standard input, once.
    ///
    /// # Panics
    /// When it was taken before.
    #[must_use]
    pub fn take_stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("standard input is still open to take")
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.kernel_pid().as_raw_nonzero().get().cast_unsigned()
    }

    /// The command as one line.
    #[must_use]
    pub fn line(&self) -> &str {
        &self.line
    }

    /// Sends `signal`.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.kernel_pid(), signal).expect("signalling a child that was not reaped");
    }

    /// Waits for the end and gives the output.
    ///
    /// # Panics
    /// When the program still runs after `time_max`; it is killed then.
    #[must_use]
    #[track_caller]
    pub fn finish(mut self, time_max: Duration) -> Output {
        drop(self.child.stdin.take());
        let status = self.wait(time_max).unwrap_or_else(|error| panic!("waiting for `{}`: {error:#}", self.line));
        let line = self.line.clone();
        let Some(status) = status else {
            self.kill();
            let (_, stderr) = self.outputs();
            panic!("`{line}` still ran after {time_max:?}\nstderr: {stderr}");
        };
        let (stdout, stderr) = self.outputs();
        Output { line, code: status.code(), stdout, stderr }
    }

    /// Whether it has ended, once it has or so long has passed.
    ///
    /// # Errors
    /// When it failed.
    pub fn has_ended(&mut self, within: Duration) -> anyhow::Result<bool> {
        match self.wait(within)? {
            Some(status) if !status.success() => bail!("{} failed ({status}): {}", self.name(), self.last_words()),
            ended => Ok(ended.is_some()),
        }
    }

    /// Nothing, while it runs.
    ///
    /// # Errors
    /// When it has ended.
    pub fn check_alive(&mut self) -> anyhow::Result<()> {
        if let Some(daemon) = self.daemon {
            ensure!(exists(daemon), "{} ended: {}", self.name(), self.last_words());
            return Ok(());
        }
        match self.child.try_wait()? {
            Some(status) => bail!("{} ended ({status}): {}", self.name(), self.last_words()),
            None => Ok(()),
        }
    }

    /// Ends the program with SIGKILL, as a power cut would, and reaps it.
    pub fn kill(&mut self) {
        self.child.kill().expect("killing a child");
        self.child.wait().expect("reaping a child");
    }

    /// Processor time of all its threads and of its children that have ended, in user and kernel mode.
    ///
    /// # Errors
    /// When it has ended.
    pub fn processor_time(&self) -> anyhow::Result<Duration> {
        let stat = self.proc("stat")?;
        processor_time(&stat).with_context(|| format!("{} has an odd /proc/PID/stat: {stat}", self.name()))
    }

    /// Its memory, without that of its children.
    ///
    /// # Errors
    /// When it has ended.
    pub fn memory(&self) -> anyhow::Result<Memory> {
        let status = self.proc("status")?;
        memory(&status).with_context(|| format!("{} has an odd /proc/PID/status: {status}", self.name()))
    }

    /// A file of its directory in `/proc`.
    fn proc(&self, file: &str) -> anyhow::Result<String> {
        fs::read_to_string(format!("/proc/{}/{file}", self.pid()))
            .with_context(|| format!("{} has ended: {}", self.name(), self.last_words()))
    }

    /// The exit status once the program has ended; `None` when it still runs after `time_max`.
    fn wait(&mut self, time_max: Duration) -> anyhow::Result<Option<ExitStatus>> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(Some(status));
        }
        let deadline = Instant::now() + time_max;
        let pidfd = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).expect("minutes fit a timespec");
            match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return Ok(None),
                Ok(_) => return Ok(Some(self.child.wait()?)),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn outputs(&mut self) -> (Vec<u8>, String) {
        let take = |thread: Option<JoinHandle<Vec<u8>>>| {
            thread.map(|thread| thread.join().expect("a collecting thread does not panic")).unwrap_or_default()
        };
        let stdout = take(self.stdout.take());
        let stderr = take(self.stderr.take());
        (stdout, String::from_utf8_lossy(&stderr).into_owned())
    }

    /// The program's name.
    fn name(&self) -> &str {
        self.line.split(' ').next().unwrap_or_default()
    }

    /// What its log holds that tells most.
    fn last_words(&self) -> String {
        let printed = self.log.as_ref().and_then(|log| fs::read_to_string(log).ok());
        telling(&printed.unwrap_or_default()).to_owned()
    }

    fn kernel_pid(&self) -> Pid {
        self.daemon.unwrap_or_else(|| Pid::from_child(&self.child))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon {
            end_daemon(daemon);
        }
        // Neither can fail in a way that matters: a child that was reaped already is not signalled again. One that the
        // kernel has wait for a member that hangs does not end before the member fails, whose owner may be dropped
        // next.
        drop(self.child.kill());
        drop(self.wait(KILLED_TIME_MAX));
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
        let deadline = Instant::now() + DAEMON_TIME_MAX;
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

/// `VmSize`, `VmRSS` and `VmHWM` of `/proc/PID/status` (proc(5)).
fn memory(status: &str) -> Option<Memory> {
    let bytes = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
    };
    Some(Memory { mapped: bytes("VmSize")?, resident: bytes("VmRSS")?, peak: bytes("VmHWM")? })
}

fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // A program that is killed can leave the pipe in any state; what came before counts.
        drop(pipe.read_to_end(&mut bytes));
        bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let status = "Name:\tVmRSS\nVmPeak:\t  900000 kB\nVmSize:\t  800 kB\nVmHWM:\t  300 kB\n\
                      VmRSS:\t      20 kB\nThreads:\t1\n";
        assert_eq!(memory(status), Some(Memory { mapped: 800 << 10, resident: 20 << 10, peak: 300 << 10 }));
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
        let scratch = tempfile::tempdir().unwrap();
        let log = scratch.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo first; echo no such disk >&2; exit 3"]);
        let error = Process::complete(&mut command, &log, Duration::from_secs(60)).unwrap_err().to_string();
        assert!(error.contains("no such disk"), "{error}");
        let missing =
            Process::start_logged(&mut Command::new("uraid-no-such-program"), &log).err().unwrap().to_string();
        assert_eq!(missing, "uraid-no-such-program is not installed");

        let mut idle = Command::new("sleep");
        let process = Process::start_logged(idle.arg("600"), &log).unwrap();
        let pid = process.pid();
        drop(process);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}
