//! Running a program: bounded in time, its output captured, its end awaited from the kernel.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

/// How long any client may take; far above what it needs, so that only a hang reaches it.
pub const CLIENT_TIME_MAX: Duration = Duration::from_secs(120);

/// Debian package of each foreign program, for the message when it is missing.
const PACKAGES: &[(&str, &str)] = &[
    ("script", "bsdutils"),
    ("fio", "fio"),
    ("nbdkit", "nbdkit"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdfuse", "libnbd-bin"),
    ("losetup", "mount"),
    ("mount", "mount"),
    ("umount", "mount"),
    ("mkfs.ext4", "e2fsprogs"),
    ("fsck.ext4", "e2fsprogs"),
    ("nbd-client", "nbd-client"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("rsvg-convert", "librsvg2-bin"),
    ("convert", "imagemagick"),
    ("chromium", "chromium"),
    ("bash", "bash"),
    ("zsh", "zsh"),
    ("fish", "fish"),
    ("man", "man-db"),
];

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

/// Runs a foreign client to its end with the arguments given.
#[track_caller]
pub fn client<A: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = A>) -> Output {
    let mut command = client_command(program);
    command.args(arguments);
    run(command)
}

/// A foreign client's command, to be given arguments.
#[must_use]
#[track_caller]
pub fn client_command(program: &str) -> Command {
    let Some(found) = find(program) else {
        let package = PACKAGES.iter().find(|(name, _)| *name == program).map_or(program, |(_, package)| package);
        panic!("{program} is missing: `apt-get install {package}`, or run `cargo xtask test` as root");
    };
    Command::new(found)
}

/// Whether a foreign client is there.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    find(program).is_some()
}

/// Runs `command` to its end within [`CLIENT_TIME_MAX`].
#[must_use]
#[track_caller]
pub fn run(command: Command) -> Output {
    Running::start(command).finish(CLIENT_TIME_MAX)
}

/// A program that runs: killed and reaped when dropped.
#[derive(Debug)]
pub struct Running {
    line: String,
    child: Child,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl Running {
    /// Starts `command` with its output captured and, unless the caller set it up, no standard input.
    #[must_use]
    #[track_caller]
    pub fn start(command: Command) -> Self {
        let mut running = Self::start_with_open_stdout(command);
        let stdout = running.child.stdout.take().expect("standard output is a pipe");
        running.stdout = Some(collect(stdout));
        running
    }

    /// As [`Running::start`], but the caller reads standard output with [`Running::take_stdout`].
    #[must_use]
    #[track_caller]
    pub fn start_with_open_stdout(mut command: Command) -> Self {
        let program = Path::new(command.get_program()).file_name().unwrap_or_default();
        let words = std::iter::once(program).chain(command.get_args());
        let line = words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("starting `{line}`: {error}"));
        let stderr = child.stderr.take().expect("standard error is a pipe");
        Self { line, child, stdout: None, stderr: Some(collect(stderr)) }
    }

    /// The pipe of standard output, once.
    ///
    /// # Panics
    /// When it was taken before or is being collected.
    #[must_use]
    pub fn take_stdout(&mut self) -> std::process::ChildStdout {
        self.child.stdout.take().expect("standard output is still open to take")
    }

    /// The pipe of standard input, once.
    ///
    /// # Panics
    /// When it was taken before.
    #[must_use]
    pub fn take_stdin(&mut self) -> std::process::ChildStdin {
        self.child.stdin.take().expect("standard input is still open to take")
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The command as one line.
    #[must_use]
    pub fn line(&self) -> &str {
        &self.line
    }

    /// Sends `signal`.
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.kernel_pid(), signal).expect("signalling a child that was not reaped");
    }

    /// Waits for the end and gives the output.
    ///
    /// # Panics
    /// When the program still runs after `time_max`; it is killed then.
    #[must_use]
    #[track_caller]
    pub fn finish(mut self, time_max: Duration) -> Output {
        drop(self.child.stdin.take());
        let status = self.wait(time_max);
        let line = std::mem::take(&mut self.line);
        let Some(status) = status else {
            self.kill();
            let (_, stderr) = self.outputs();
            panic!("`{line}` still ran after {time_max:?}\nstderr: {stderr}");
        };
        let (stdout, stderr) = self.outputs();
        Output { line, code: status.code(), stdout, stderr }
    }

    /// Ends the program with SIGKILL and reaps it.
    pub fn kill(&mut self) {
        self.child.kill().expect("killing a child");
        self.child.wait().expect("reaping a child");
    }

    /// The exit status once the program has ended; `None` when it still runs after `time_max`.
    fn wait(&mut self, time_max: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + time_max;
        let pidfd =
            pidfd_open(self.kernel_pid(), PidfdFlags::empty()).expect("a child that was not reaped has a pidfd");
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).expect("minutes fit a timespec");
            match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return None,
                Ok(_) => return Some(self.child.wait().expect("reaping a child")),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("waiting for `{}`: {error}", self.line),
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

    fn kernel_pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Neither can fail in a way that matters: a child that was reaped already is not signalled again.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    directories.find_map(|directory| Some(directory.join(program)).filter(|file| file.is_file()))
}

fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // A program that is killed can leave the pipe in any state; what came before counts.
        drop(pipe.read_to_end(&mut bytes));
        bytes
    })
}
