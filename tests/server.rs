//! `uraid serve` as a child process: ready when it prints its URI, killed when dropped.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::array::Array;
use crate::binary;
use crate::nbd::Client;
use crate::process::{Memory, Output, Process};

/// How long a server may take until it is ready, resync included, or until it has stopped.
const SERVER_TIME_MAX: Duration = Duration::from_secs(60);

/// A server that has printed its URI.
#[derive(Debug)]
pub struct Server {
    running: Process,
    printed: String,
    uri: String,
    socket: PathBuf,
    lines: Receiver<String>,
}

impl Server {
    /// Serves all members of `array` on its socket.
    #[must_use]
    #[track_caller]
    pub fn start(array: &Array) -> Self {
        Self::start_members(array, array.members(), &[])
    }

    /// Serves `members` on the array's socket with `options`.
    #[must_use]
    #[track_caller]
    pub fn start_members(array: &Array, members: &[PathBuf], options: &[&str]) -> Self {
        Self::try_start(array, members, options).unwrap_or_else(|output| {
            panic!("`{}` ended before it was ready\nstdout: {}\nstderr: {}", output.line, output.text(), output.stderr)
        })
    }

    /// Tries to serve `members`, which must be refused with exit code 1; returns what it said.
    #[must_use]
    #[track_caller]
    pub fn refused(array: &Array, members: &[PathBuf], options: &[&str]) -> Output {
        match Self::try_start(array, members, options) {
            Ok(server) => panic!("`{}` was to be refused, yet it serves", server.running.line()),
            Err(output) => output.code_is(1),
        }
    }

    /// Serves `members` on the array's socket with `options`; the output when it ended before it was ready.
    ///
    /// # Errors
    /// The server's output when it exits by itself.
    #[track_caller]
    pub fn try_start(array: &Array, members: &[PathBuf], options: &[&str]) -> Result<Self, Box<Output>> {
        Self::spawn(Self::command(array, members, options), array.socket())
    }

    /// The command that serves `members` on the array's socket with `options`.
    #[must_use]
    pub fn command(array: &Array, members: &[PathBuf], options: &[&str]) -> Command {
        let mut arguments: Vec<OsString> = vec!["serve".into()];
        if !options.contains(&"--listen") {
            arguments.extend(["--socket".into(), array.socket().into()]);
        }
        arguments.extend(options.iter().map(OsString::from));
        arguments.extend(members.iter().map(OsString::from));
        let mut command = binary::command();
        command.args(arguments);
        command
    }

    /// Starts a command that serves on `socket`; the output when it ended before it was ready.
    ///
    /// # Errors
    /// The server's output when it exits by itself.
    ///
    /// # Panics
    /// When it neither prints a URI nor exits in time.
    #[track_caller]
    pub fn spawn(command: Command, socket: PathBuf) -> Result<Self, Box<Output>> {
        let mut running = Process::start_with_open_stdout(command);
        let stdout = BufReader::new(running.take_stdout());
        let (sender, lines) = channel();
        // Ends when the server closes its output; the receiver may be gone by then.
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line))));
        let deadline = Instant::now() + SERVER_TIME_MAX;
        let mut printed = String::new();
        loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with("nbd") && line.contains("://") => {
                    let uri = line.trim_end().to_owned();
                    return Ok(Self { running, printed, uri, socket, lines });
                }
                Ok(line) => printed += &(line + "\n"),
                Err(RecvTimeoutError::Disconnected) => {
                    let output = running.finish(SERVER_TIME_MAX);
                    return Err(Box::new(Output { stdout: printed.into_bytes(), ..output }));
                }
                Err(RecvTimeoutError::Timeout) => {
                    panic!("`{}` printed no URI within {SERVER_TIME_MAX:?}:\n{printed}", running.line())
                }
            }
        }
    }

    /// What it printed before the URI.
    #[must_use]
    pub fn printed(&self) -> &str {
        &self.printed
    }

    /// The URI that it printed.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Waits for a line printed after the URI that begins with `start`; returns the rest of it.
    ///
    /// # Panics
    /// When none comes in time.
    #[must_use]
    #[track_caller]
    pub fn line_after(&self, start: &str) -> String {
        let deadline = Instant::now() + SERVER_TIME_MAX;
        loop {
            let line = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now()));
            let line = line.unwrap_or_else(|error| panic!("no line that begins with {start:?}: {error}"));
            if let Some(rest) = line.strip_prefix(start) {
                return rest.trim().to_owned();
            }
        }
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Its memory now.
    #[must_use]
    #[track_caller]
    pub fn memory(&self) -> Memory {
        self.running.memory().expect("it runs")
    }

    /// The socket that it listens on.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// A connection of the harness's own client.
    #[must_use]
    #[track_caller]
    pub fn connect(&self) -> Client {
        Client::connect(&self.socket)
    }

    /// Stops it with SIGTERM; it must exit with 0. Returns the lines that it printed after the URI.
    #[track_caller]
    pub fn stop(self) -> Vec<String> {
        self.stop_with(Signal::TERM)
    }

    /// Stops it with `signal`; it must exit with 0. Returns the lines that it printed after the URI.
    #[track_caller]
    pub fn stop_with(self, signal: Signal) -> Vec<String> {
        self.running.signal(signal);
        let _ = self.running.finish(SERVER_TIME_MAX).success();
        self.lines.iter().collect()
    }

    /// Sends it a signal, whatever it does about that.
    pub fn signal(&self, signal: Signal) {
        self.running.signal(signal);
    }

    /// Waits until it has ended, which somebody else brings about.
    #[must_use]
    #[track_caller]
    pub fn end(self) -> Output {
        self.end_within(SERVER_TIME_MAX)
    }

    /// The same, of one that may take longer.
    #[must_use]
    #[track_caller]
    pub fn end_within(self, time_max: Duration) -> Output {
        self.running.finish(time_max)
    }

    /// Ends it at once, as a crash would.
    pub fn kill(mut self) {
        self.running.kill();
    }
}
