//! A command that runs as long as the array is served: the server stops when it ends, and it is asked to end when the
//! server stops for another reason, with all programs of its process group. A server in the foreground of a terminal
//! has its command in its own group, so that the terminal's keys reach both; then only the shell is asked.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use uraid_nbd::{Endpoint, Scheme};

/// How long the command may go on when the server has ended.
const FAREWELL: Duration = Duration::from_secs(10);

/// These variables are for the server alone.
const OF_SERVER: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// See the module. When it is dropped, its command is asked to end.
#[derive(Debug)]
pub(crate) struct Captive {
    child: Child,
    /// Becomes readable when the command has ended.
    process: AsyncFd<OwnedFd>,
    has_ended: Cell<bool>,
    /// Its process group is its own.
    is_leader: bool,
    /// It was asked to end.
    is_asked: Cell<bool>,
}

impl Captive {
    /// Has a shell run `command`, with [variables](variables()) in its environment.
    ///
    /// # Errors
    /// If there is no shell, or the system can't start it.
    pub(crate) fn start(command: &OsStr, variables: &[(&str, Option<OsString>)]) -> Result<Self> {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(command);
        for (name, value) in variables {
            match value {
                Some(value) => shell.env(name, value),
                // One that is in the server's own environment means something else.
                None => shell.env_remove(name),
            };
        }
        for name in OF_SERVER {
            shell.env_remove(name);
        }
        let is_leader = !is_in_foreground(&fs::read_to_string("/proc/self/stat").unwrap_or_default());
        if is_leader {
            shell.process_group(0);
        }
        let child = shell.spawn().context("--run: can't start /bin/sh")?;
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).context("--run: can't watch /bin/sh")?;
        #[expect(deprecated, reason = "an owned descriptor meets the conditions for which its replacement is unsafe")]
        let process = AsyncFd::with_interest(process, Interest::READABLE).context("--run: can't wait for /bin/sh")?;
        Ok(Self { child, process, has_ended: Cell::new(false), is_leader, is_asked: Cell::new(false) })
    }

    /// Waits for the command's end, if there is one. Cancel safe.
    pub(crate) async fn any_ended(captive: Option<&Self>) {
        match captive {
            Some(captive) => captive.ended().await,
            None => std::future::pending().await,
        }
    }

    /// Waits until the command has ended. Cancel safe.
    async fn ended(&self) {
        if self.process.readable().await.is_ok() {
            self.has_ended.set(true);
        }
    }

    /// Asks the command to end, once.
    pub(crate) fn end(&self) {
        if !self.has_ended.get() && !self.is_asked.replace(true) {
            // It may have ended by itself. Its number is nobody else's before it has been waited for.
            let _ = match self.is_leader {
                true => kill_process_group(Pid::from_child(&self.child), Signal::TERM),
                false => pidfd_send_signal(self.process.get_ref(), Signal::TERM),
            };
        }
    }

    /// How the command has ended, if there is one. Waits for that until its time is over, or `hurried` completes.
    ///
    /// # Errors
    /// If it goes on.
    pub(crate) async fn finish(captive: Option<Self>, hurried: impl Future<Output = ()>) -> Result<Option<ExitStatus>> {
        let Some(mut captive) = captive else { return Ok(None) };
        captive.end();
        tokio::select! {
            () = captive.ended() => {}
            () = tokio::time::sleep(FAREWELL) => {}
            () = hurried => {}
        }
        let ended = captive.child.try_wait().context("--run: can't tell how the command has ended")?;
        let process = captive.child.id();
        ensure!(ended.is_some(), "--run: the command goes on although it got SIGTERM: end process {process}");
        Ok(ended)
    }
}

impl Drop for Captive {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether the process of this `/proc/PID/stat` is in the foreground of a terminal.
fn is_in_foreground(stat: &str) -> bool {
    // The name, in parentheses, may have any characters.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    // State, parent, process group, session, terminal, and the terminal's foreground process group.
    matches!(fields.as_slice(), [_, _, group, _, terminal, foreground, ..] if group == foreground && *terminal != "0")
}

/// What tells a command where the server is. Those without a value do not apply.
pub(crate) fn variables(endpoints: &[Endpoint], scheme: Scheme, export: &str) -> [(&'static str, Option<OsString>); 4] {
    let socket = endpoints.iter().find_map(|endpoint| match endpoint {
        Endpoint::Unix(path) => Some(path.into()),
        Endpoint::Tcp(_) => None,
    });
    let port = endpoints.iter().find_map(Endpoint::address).map(|address| address.port().to_string().into());
    [
        ("uri", Some(endpoints[0].uri(scheme, export).into())),
        ("unixsocket", socket),
        ("port", port),
        ("exportname", Some(export.into())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::future::pending;

    /// Runs a command until it ends by itself.
    async fn status(command: &str, variables: &[(&str, Option<OsString>)]) -> ExitStatus {
        let captive = Captive::start(command.as_ref(), variables).unwrap();
        captive.ended().await;
        Captive::finish(Some(captive), pending()).await.unwrap().unwrap()
    }

    #[test]
    fn a_command_sees_where_the_server_is() {
        let endpoints = [Endpoint::Unix("/run/a b.sock".into()), Endpoint::Tcp("127.0.0.1:7".parse().unwrap())];
        let of_both = variables(&endpoints, Scheme::Nbd, "it");
        let of_unix = variables(&endpoints[..1], Scheme::Nbds, "");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let test = "test \"$uri,$unixsocket,$port,$exportname,${NOTIFY_SOCKET-none}\" = \
                        'nbd+unix:///it?socket=/run/a%20b.sock,/run/a b.sock,7,it,none'";
            assert!(status(test, &of_both).await.success());
            let test = "test \"$uri,${port-none},$exportname\" = 'nbds+unix:///?socket=/run/a%20b.sock,none,'";
            assert!(status(test, &of_unix).await.success());
        });
    }

    #[test]
    fn a_process_in_the_foreground_of_a_terminal_is_told_from_others() {
        assert!(is_in_foreground("7 (a) b) (c) S 1 7 7 34816 7 4194304 0"));
        assert!(!is_in_foreground("7 (uraid) S 1 7 7 34816 9 4194304 0"), "in the background");
        assert!(!is_in_foreground("7 (uraid) S 1 7 7 0 -1 4194304 0"), "without a terminal");
        assert!(!is_in_foreground(""));
    }

    #[test]
    fn a_command_that_goes_on_is_asked_to_end_and_not_waited_for_without_end() {
        use std::os::unix::process::ExitStatusExt as _;

        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let captive = Captive::start("exec sleep 1000".as_ref(), &[]).unwrap();
            let ended = Captive::finish(Some(captive), pending()).await.unwrap().unwrap();
            assert_eq!(ended.signal(), Some(Signal::TERM.as_raw()));
            let deaf = Captive::start("trap '' TERM; kill -STOP $$".as_ref(), &[]).unwrap();
            let process = Pid::from_child(&deaf.child);
            let stat = format!("/proc/{}/stat", process.as_raw_nonzero());
            while !fs::read_to_string(&stat).unwrap().contains(") T ") {
                std::thread::yield_now(); // it stops itself when it is deaf
            }
            // In a hurry it is not waited for, and somebody is told which process that is.
            let error = Captive::finish(Some(deaf), async {}).await.unwrap_err().to_string();
            rustix::process::kill_process(process, Signal::KILL).unwrap();
            assert!(error.contains(&format!("end process {}", process.as_raw_nonzero())), "{error}");
        });
    }
}
